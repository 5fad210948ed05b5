//! What is wrong with what is known, and what to do about it. Pure.
//!
//! An error lets somebody in who should stay out, or keeps somebody out who should get in. A warning may turn into an error, or is a risk that was
//! accepted on purpose. Problems of one kind are one finding, so that a thousand machines that are off do not hide the rest.

use serde::Serialize;

use super::facts::{
    ClusterFacts, FileFacts, FileState, IdentityFacts, LocalFacts, MemberFacts, PrivateKind, Protocol, Reach,
    Standing,
};
use crate::output::{are, count, one_or, span};

/// A larger difference between clocks is a warning, milliseconds: people compare times of logs.
const CLOCK_WARNING_MS: i64 = 10_000;
/// A larger difference between clocks is an error, milliseconds: certificates live for 24 h and are renewed after 8 h, and some live for less.
const CLOCK_ERROR_MS: i64 = 3_600_000;
/// Lifetime of a person's token, milliseconds.
const TOKEN_LIFE_MS: i64 = 12 * 3_600_000;
/// Maximum number of names in a finding; the rest is counted.
const N_NAMED_MAX: usize = 5;
/// Permissions that others must not have on a private file.
const OTHERS: u32 = 0o077;
/// Permissions by which others could put files into a private directory.
const OTHERS_WRITE: u32 = 0o022;
/// Permission by which anybody could put files into the directory above a store.
const ANYBODY_WRITES: u32 = 0o002;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Fix it now.
    Error,
    /// Keep it in mind.
    Warning,
}

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Section {
    /// Certificates of services and agents.
    Certificates,
    /// Tokens of persons.
    Tokens,
    /// Clocks.
    Clock,
    /// Connections that are neither encrypted nor authenticated.
    PlainText,
    /// Modes of files.
    Files,
    /// Versions of programs.
    Versions,
    /// Addresses for clients of YARN.
    Yarn,
}

/// A problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad the problem is.
    pub severity: Severity,
    /// What the problem is about.
    pub section: Section,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub next: String,
}

impl Finding {
    fn error(section: Section, message: impl Into<String>, next: impl Into<String>) -> Self {
        Self { severity: Severity::Error, section, message: message.into(), next: next.into() }
    }

    fn warning(section: Section, message: impl Into<String>, next: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, section, message: message.into(), next: next.into() }
    }
}

/// Finds all problems, errors first.
pub(super) fn find_problems(local: &LocalFacts, cluster: Option<&ClusterFacts>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(cluster) = cluster {
        findings.extend(judge_plain_text(cluster));
        findings.extend(judge_certificates(&cluster.identities, cluster.now_ms(local)));
        findings.extend(judge_clock(cluster));
        findings.extend(judge_versions(local, cluster));
        findings.extend(judge_yarn(&cluster.members));
    }
    findings.extend(judge_token(local, cluster.map_or(local.now_ms, |cluster| cluster.now_ms(local))));
    findings.extend(local.files.iter().filter_map(judge_file));
    findings.sort_by_key(|finding| (finding.severity, finding.section));
    findings
}

/// Whoever reaches a port that speaks plain text is an administrator.
fn judge_plain_text(cluster: &ClusterFacts) -> Vec<Finding> {
    let speaks =
        |member: &&MemberFacts| matches!(member.speaks, Protocol::PlainText | Protocol::TlsAndPlainText);
    let plain: Vec<&MemberFacts> = cluster.members.iter().filter(speaks).collect();
    let exposed: Vec<String> = plain
        .iter()
        .filter(|member| member.open_to == Reach::Network)
        .map(|member| format!("{} at {}", member.name, member.address))
        .collect();
    let is_off = cluster.speaks == Protocol::PlainText;
    let mut findings = Vec::new();
    let next = match cluster.speaks {
        Protocol::PlainText | Protocol::Unknown => {
            "turn on TLS (docs/identities.md, \"From plain text to TLS\"); until then block these ports for other machines"
        }
        Protocol::Tls | Protocol::TlsAndPlainText => {
            "finish the move to TLS: remove `identity.plain_text` from services, then set `state.tls=on`; until then block these ports for other \
             machines"
        }
    };
    if !exposed.is_empty() {
        let message = format!(
            "other machines can reach {} in plain text: whoever connects there is an administrator",
            list_names(&exposed)
        );
        findings.push(Finding::error(Section::PlainText, message, next));
    } else if is_off {
        findings.push(Finding::warning(
            Section::PlainText,
            "the cluster speaks plain text: every program on this machine is an administrator, and nothing has an identity",
            "turn on TLS before you add other machines (docs/identities.md, \"From plain text to TLS\")",
        ));
    } else if !plain.is_empty() {
        let names: Vec<String> = plain.iter().map(|member| member.name.clone()).collect();
        let message = format!(
            "{} {} plain text: every program on the same machine is an administrator there",
            list_names(&names),
            one_or(names.len(), "answers", "answer")
        );
        findings.push(Finding::warning(Section::PlainText, message, next));
    }
    findings.extend(judge_callers(cluster).filter(|_| !is_off));
    findings
}

/// Callers in plain text where TLS is spoken too.
fn judge_callers(cluster: &ClusterFacts) -> Option<Finding> {
    let of_members: u64 = cluster.members.iter().map(|member| member.plain_text_connections).sum();
    let all = of_members.saturating_add(cluster.plain_text_connections);
    // The doctor's own connection is one of them.
    let own = u64::from(cluster.address.starts_with("http://") && cluster.plain_text_connections > 0);
    (all > own).then(|| {
        let n = all - own;
        Finding::warning(
            Section::PlainText,
            format!("{} in plain text {} open", count(n, "connection"), are(n)),
            "give the callers `https://` addresses before you turn plain text off: `ss -tnp` on the machines of state and of the services shows \
             who they are",
        )
    })
}

fn judge_certificates(identities: &[IdentityFacts], now_ms: i64) -> Vec<Finding> {
    let names_of = |is_one: &dyn Fn(&IdentityFacts) -> bool| -> Vec<String> {
        identities.iter().filter(|it| is_one(it)).map(|it| it.identity.clone()).collect()
    };
    let is_agent = |identity: &IdentityFacts| identity.identity.starts_with("agent/");
    let has_expired = |identity: &IdentityFacts| identity.standing == Standing::Expired;
    let certificates = |names: &[String]| {
        format!("the {} of {}", one_or(names.len(), "certificate", "certificates"), list_names(names))
    };
    let have_expired =
        |names: &[String]| format!("{} {} expired", certificates(names), one_or(names.len(), "has", "have"));
    let mut findings = Vec::new();
    let services = names_of(&|it| has_expired(it) && !is_agent(it));
    if !services.is_empty() {
        findings.push(Finding::error(
            Section::Certificates,
            have_expired(&services),
            "if the service is stopped, start it within 30 days of the expiry, and it renews its certificate; if it runs, its log says why it \
             cannot; if it is gone for good, run `godel identity revoke NAME`",
        ));
    }
    let agents = names_of(&|it| has_expired(it) && is_agent(it));
    if !agents.is_empty() {
        findings.push(Finding::warning(
            Section::Certificates,
            have_expired(&agents),
            "an agent that was off renews its certificate when it starts, within 30 days of the expiry; if the machine is gone for good, run \
             `godel identity revoke NAME`",
        ));
    }
    let gone = names_of(&|it| it.standing == Standing::Gone);
    if !gone.is_empty() {
        findings.push(Finding::warning(
            Section::Certificates,
            format!("{} expired more than 30 days ago and can no longer be renewed", certificates(&gone)),
            "if the process should return, let it join again with a token of `godel node join-token` or `godel join-token --role ROLE`",
        ));
    }
    let late = names_of(&|it| it.is_late(now_ms));
    if !late.is_empty() {
        let message = format!(
            "{} missed {}: less than a third of the lifetime is left, and processes renew after a third of it",
            certificates(&late),
            one_or(late.len(), "its renewal", "their renewals"),
        );
        findings.push(Finding::warning(
            Section::Certificates,
            message,
            "if the process runs, its log says why it cannot renew; if it is stopped, start it before the certificate expires",
        ));
    }
    findings
}

impl IdentityFacts {
    /// Whether a renewal was missed: a valid certificate is renewed after a third of its lifetime, with retries until it expires.
    pub(super) fn is_late(&self, now_ms: i64) -> bool {
        let life_ms = self.ends_ms.saturating_sub(self.issued_ms);
        let left_ms = self.ends_ms.saturating_sub(now_ms);
        self.standing == Standing::Valid && left_ms.saturating_mul(3) < life_ms
    }
}

/// A token that is not renewed and ends within this time is mentioned, milliseconds: time to ask an administrator for another one.
const TOKEN_SOON_MS: i64 = 3 * 24 * 3_600_000;

/// The token of the context: commands renew that of a session when half of its lifetime is over, and no other.
fn judge_token(local: &LocalFacts, now_ms: i64) -> Option<Finding> {
    let context = local.context.as_ref()?;
    let left_ms = context.token_ends_ms?.saturating_sub(now_ms);
    let soon_ms = if context.renews_token { TOKEN_LIFE_MS / 3 } else { TOKEN_SOON_MS };
    if left_ms >= soon_ms {
        return None;
    }
    let (next, how) = if context.renews_token {
        let login = format!(
            "get another token on the machine of state: `godel context login {} --socket godel-data/godel.sock --state {}`",
            context.name, context.address
        );
        (login, " and was not renewed")
    } else {
        let login = format!(
            "ask an administrator for another token (`godel token create`), and log in with it: `godel login {} --token-file FILE --state {}`",
            context.name, context.address
        );
        (login, "")
    };
    Some(match u64::try_from(left_ms) {
        Ok(left_ms) if left_ms > 0 => Finding::warning(
            Section::Tokens,
            format!("the token of context {} ends in {}{how}", context.name, span(left_ms)),
            next,
        ),
        _ => Finding::error(
            Section::Tokens,
            format!("the token of context {} has expired", context.name),
            next,
        ),
    })
}

fn judge_clock(cluster: &ClusterFacts) -> Option<Finding> {
    let clock = cluster.clock?;
    // The round trip explains a part of the difference.
    let off_ms = clock.ahead_ms.saturating_abs().saturating_sub(clock.within_ms).max(0);
    if off_ms <= CLOCK_WARNING_MS {
        return None;
    }
    let side = if clock.ahead_ms > 0 { "ahead of" } else { "behind" };
    let message = format!(
        "state's clock is {} {side} this machine's; certificates and tokens are judged by state's clock",
        span(clock.ahead_ms.unsigned_abs())
    );
    let next = "find out which of the two is wrong, and synchronize it with `chrony` or `systemd-timesyncd` (docs/identities.md, \"When clocks are \
                wrong\")";
    Some(match off_ms > CLOCK_ERROR_MS {
        true => Finding::error(Section::Clock, message, next),
        false => Finding::warning(Section::Clock, message, next),
    })
}

fn judge_versions(local: &LocalFacts, cluster: &ClusterFacts) -> Option<Finding> {
    if cluster.version.is_empty() {
        let message =
            format!("state does not report its version: it is older than this program, {}", local.version);
        return Some(Finding::warning(Section::Versions, message, UPGRADE));
    }
    let mut others: Vec<String> = Vec::new();
    if cluster.version != local.version {
        others.push(format!("this program {}", local.version));
    }
    let members = cluster.members.iter().filter(|member| !member.version.is_empty());
    others.extend(
        members
            .filter(|member| member.version != cluster.version)
            .map(|member| format!("{} {}", member.name, member.version)),
    );
    (!others.is_empty()).then(|| {
        let message =
            format!("state has version {}; other versions: {}", cluster.version, list_names(&others));
        Finding::warning(Section::Versions, message, UPGRADE)
    })
}

const UPGRADE: &str = "install the same version everywhere: docs/install.md, \"Update\"";

fn judge_yarn(members: &[MemberFacts]) -> Option<Finding> {
    let ports = members.iter().flat_map(|member| &member.plain_text_ports);
    let open: Vec<String> = ports
        .filter(|port| port.open_to == Reach::Network)
        .map(|port| format!("{} ({})", port.address, port.name))
        .collect();
    (!open.is_empty()).then(|| {
        let message = format!(
            "other machines can reach the YARN adapter at {}: it believes the user name that a client gives (`yarn.simple_auth`), and Hadoop \
             RPC has no TLS",
            list_names(&open)
        );
        let next = "block these ports for all machines but YARN's clients and nodes, or listen on 127.0.0.1 and remove `yarn.simple_auth`";
        Finding::warning(Section::Yarn, message, next)
    })
}

fn judge_file(file: &FileFacts) -> Option<Finding> {
    let FileFacts { path, kind, state } = file;
    let mode = match state {
        FileState::Absent => return None,
        FileState::Unreadable(why) => {
            let message = format!("the mode of {path} cannot be read: {why}");
            let next = "run the command as the owner of the file: `sudo -u USER godel doctor`";
            return Some(Finding::warning(Section::Files, message, next));
        }
        FileState::Mode(mode) => *mode,
    };
    let has = format!("{path} has mode {mode:04o}");
    match kind {
        PrivateKind::File if mode & OTHERS != 0 => Some(Finding::error(
            Section::Files,
            format!("{has}: others can read or use it"),
            format!("`chmod 600 {path}`, and replace the key or token in it if somebody may have read it"),
        )),
        PrivateKind::Dir if mode & OTHERS_WRITE != 0 => Some(Finding::error(
            Section::Files,
            format!("{has}: others can put files into it"),
            format!("`chmod 700 {path}`, and look for files that are not yours"),
        )),
        PrivateKind::Dir if mode & OTHERS != 0 => Some(Finding::warning(
            Section::Files,
            format!("{has}: others can list its files"),
            format!("`chmod 700 {path}`"),
        )),
        PrivateKind::AboveStore if mode & ANYBODY_WRITES != 0 => Some(Finding::error(
            Section::Files,
            format!(
                "{has}: anybody can create files beside the store, and state does not start with TLS there"
            ),
            format!("`chmod o-w {path}`, or move the store into a directory of its own"),
        )),
        PrivateKind::File | PrivateKind::Dir | PrivateKind::AboveStore => None,
    }
}

/// Lists names as `a, b and 3 more`.
pub(super) fn list_names(names: &[String]) -> String {
    let shown = names.get(..N_NAMED_MAX).filter(|_| names.len() > N_NAMED_MAX + 1).unwrap_or(names);
    match (shown, names.len() - shown.len()) {
        ([first @ .., last], 0) if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        (_, 0) => shown.join(", "),
        (_, n_more) => format!("{} and {n_more} more", shown.join(", ")),
    }
}
