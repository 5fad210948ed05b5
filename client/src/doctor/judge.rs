//! What is wrong with what is known, and what to do about it. Pure.
//!
//! An error is what lets somebody in who should not be, or keeps somebody out who should not be; a warning is what becomes one, or what was accepted on
//! purpose. Findings of one kind are one finding, so that a thousand machines that are off do not hide what else there is.

use serde::Serialize;

use super::facts::{
    ClusterFacts, FileFacts, FileState, IdentityFacts, LocalFacts, MemberFacts, PrivateKind, Reach, Spoken,
    Standing,
};
use crate::output::{are, count, one_or, span};

/// A clock that differs by more than this is worth a look, milliseconds: people compare times of logs.
const CLOCK_WARNING_MS: i64 = 10_000;
/// A clock that differs by more than this errs, milliseconds: certificates live for 24 h and are renewed after 8, and some live for less.
const CLOCK_ERROR_MS: i64 = 3_600_000;
/// Life of a person's token, milliseconds.
const TOKEN_LIFE_MS: i64 = 12 * 3_600_000;
/// Most names in a finding; the rest is counted.
const N_NAMED_MAX: usize = 5;
/// What others may not have of a file.
const OTHERS: u32 = 0o077;
/// What others may not have of a directory, so that they put nothing into it.
const OTHERS_WRITE: u32 = 0o022;
/// What nobody may do in the directory above a store.
const ANYBODY_WRITES: u32 = 0o002;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It is to be mended now.
    Error,
    /// It is to be known.
    Warning,
}

/// What it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Section {
    /// Who reaches what.
    Addresses,
    /// Certificates of services and agents.
    Certificates,
    /// Tokens of persons.
    Tokens,
    /// Clocks.
    Clock,
    /// What goes unencrypted, and is not asked who it is.
    PlainText,
    /// Modes of files.
    Files,
    /// Versions of programs.
    Versions,
    /// Addresses for clients of YARN.
    Yarn,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about.
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

/// All that is wrong, errors first.
pub(super) fn judge(here: &LocalFacts, cluster: Option<&ClusterFacts>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(cluster) = cluster {
        findings.extend(judge_plain_text(cluster));
        findings.extend(judge_certificates(&cluster.identities, state_ms(here, cluster)));
        findings.extend(judge_clock(cluster));
        findings.extend(judge_versions(here, cluster));
        findings.extend(judge_yarn(&cluster.members));
    }
    findings.extend(judge_token(here, cluster.map_or(here.now_ms, |cluster| state_ms(here, cluster))));
    findings.extend(here.files.iter().filter_map(judge_file));
    findings.sort_by_key(|finding| (finding.severity, finding.section));
    findings
}

/// What time it is at state, as far as is known.
fn state_ms(here: &LocalFacts, cluster: &ClusterFacts) -> i64 {
    cluster.clock.map_or(here.now_ms, |clock| clock.state_ms)
}

/// Whoever reaches an address of plain text is an administrator.
fn judge_plain_text(cluster: &ClusterFacts) -> Vec<Finding> {
    let speaks = |member: &&MemberFacts| matches!(member.spoken, Spoken::PlainText | Spoken::Both);
    let plain: Vec<&MemberFacts> = cluster.members.iter().filter(speaks).collect();
    let exposed: Vec<String> = plain
        .iter()
        .filter(|member| member.reach == Reach::Network)
        .map(|member| format!("{} at {}", member.name, member.address))
        .collect();
    let is_off = cluster.tls == Spoken::PlainText;
    let mut findings = Vec::new();
    let next = match cluster.tls {
        Spoken::PlainText | Spoken::Unknown => {
            "turn TLS on: docs/identities.md, \"From plain text to TLS\"; until then close these ports to other machines"
        }
        Spoken::Tls | Spoken::Both => {
            "end the move to TLS: take `identity.plain_text` away, and then set `state.tls=on`; until then close these ports to other machines"
        }
    };
    if !exposed.is_empty() {
        let message = format!(
            "whoever reaches {} is an administrator: plain text is spoken there, and nobody is asked who calls",
            named(&exposed)
        );
        findings.push(Finding::error(Section::PlainText, message, next));
    } else if is_off {
        findings.push(Finding::warning(
            Section::PlainText,
            "the cluster speaks plain text: every program on this machine is an administrator, and there are no identities",
            "turn TLS on before other machines come: docs/identities.md, \"From plain text to TLS\"",
        ));
    } else if !plain.is_empty() {
        let names: Vec<String> = plain.iter().map(|member| member.name.clone()).collect();
        let message = format!(
            "{} {} plain text: every program on the machine is an administrator there",
            named(&names),
            one_or(names.len(), "answers", "answer")
        );
        findings.push(Finding::warning(Section::PlainText, message, next));
    }
    findings.extend(judge_callers(cluster).filter(|_| !is_off));
    findings
}

/// Whoever comes in plain text where TLS is spoken too.
fn judge_callers(cluster: &ClusterFacts) -> Option<Finding> {
    let of_members: u64 = cluster.members.iter().map(|member| member.plain_text_connections).sum();
    let all = of_members.saturating_add(cluster.plain_text_connections);
    // This program's own connection is one of them.
    let own = u64::from(cluster.address.starts_with("http://") && cluster.plain_text_connections > 0);
    (all > own).then(|| {
        let n = all - own;
        Finding::warning(
            Section::PlainText,
            format!("{} in plain text {} open", count(n, "connection"), are(n)),
            "give those who call `https://` addresses before plain text is turned off: `ss -tnp` on the machines of state and of the services shows them",
        )
    })
}

fn judge_certificates(identities: &[IdentityFacts], now_ms: i64) -> Vec<Finding> {
    let of = |is_one: &dyn Fn(&IdentityFacts) -> bool| -> Vec<String> {
        identities.iter().filter(|it| is_one(it)).map(|it| it.identity.clone()).collect()
    };
    let is_agent = |identity: &IdentityFacts| identity.identity.starts_with("agent/");
    let expired = |identity: &IdentityFacts| identity.standing == Standing::Expired;
    let certificates = |names: &[String]| {
        format!("the {} of {}", one_or(names.len(), "certificate", "certificates"), named(names))
    };
    let have = |names: &[String]| format!("{} {}", certificates(names), one_or(names.len(), "has", "have"));
    let mut findings = Vec::new();
    let services = of(&|it| expired(it) && !is_agent(it));
    if !services.is_empty() {
        findings.push(Finding::error(
            Section::Certificates,
            format!("{} expired", have(&services)),
            "start what does not run: it renews itself, up to 30 days after the end. Where it runs, its log says why it cannot. \
             What is gone for good: `godel identity revoke NAME`",
        ));
    }
    let agents = of(&|it| expired(it) && is_agent(it));
    if !agents.is_empty() {
        findings.push(Finding::warning(
            Section::Certificates,
            format!("{} expired", have(&agents)),
            "machines that were off renew theirs when their agents start, up to 30 days after the end. Machines that are gone for good: \
             `godel identity revoke NAME`",
        ));
    }
    let gone = of(&|it| it.standing == Standing::Gone);
    if !gone.is_empty() {
        findings.push(Finding::warning(
            Section::Certificates,
            format!("{} ended more than 30 days ago, and can no longer be renewed", certificates(&gone)),
            "those that are to come back join anew, with a token of `godel node join-token` or `godel join-token --role ROLE`",
        ));
    }
    let late = of(&|it| it.standing == Standing::Valid && is_late(it, now_ms));
    if !late.is_empty() {
        let message = format!(
            "{} missed {}: less than a third of the life is left, and processes renew after a third of it",
            certificates(&late),
            one_or(late.len(), "its renewal", "their renewals"),
        );
        findings.push(Finding::warning(
            Section::Certificates,
            message,
            "if it runs, its log says why it cannot renew itself; if it does not, start it before the end",
        ));
    }
    findings
}

/// Whether a renewal was missed: a certificate is renewed after a third of its life, and tried again until it ends.
pub(super) fn is_late(identity: &IdentityFacts, now_ms: i64) -> bool {
    let life_ms = identity.ends_ms.saturating_sub(identity.issued_ms);
    let left_ms = identity.ends_ms.saturating_sub(now_ms);
    left_ms.saturating_mul(3) < life_ms
}

/// The token of the context: commands renew it when half of it is over.
fn judge_token(here: &LocalFacts, now_ms: i64) -> Option<Finding> {
    let context = here.context.as_ref()?;
    let left_ms = context.token_ends_ms?.saturating_sub(now_ms);
    if left_ms.saturating_mul(3) >= TOKEN_LIFE_MS {
        return None;
    }
    let next = format!(
        "`godel context login {} --socket godel-data/godel.sock --state {}` on the machine of state takes another one",
        context.name, context.address
    );
    Some(match u64::try_from(left_ms) {
        Ok(left_ms) if left_ms > 0 => Finding::warning(
            Section::Tokens,
            format!(
                "the token of context {} ends in {}, and commands did not renew it",
                context.name,
                span(left_ms)
            ),
            next,
        ),
        _ => {
            Finding::error(Section::Tokens, format!("the token of context {} has ended", context.name), next)
        }
    })
}

fn judge_clock(cluster: &ClusterFacts) -> Option<Finding> {
    let clock = cluster.clock?;
    // What the call took explains a part of it.
    let off_ms = clock.ahead_ms.saturating_abs().saturating_sub(clock.within_ms).max(0);
    if off_ms <= CLOCK_WARNING_MS {
        return None;
    }
    let side = if clock.ahead_ms > 0 { "ahead of" } else { "behind" };
    let message = format!(
        "state's clock is {} {side} the one of this machine; certificates and tokens are judged by state's",
        span(u64::try_from(clock.ahead_ms.saturating_abs()).unwrap_or(0))
    );
    let next = "find out which of the two is wrong, and let `chrony` or `systemd-timesyncd` set it: docs/identities.md, \"When clocks are wrong\"";
    Some(match off_ms > CLOCK_ERROR_MS {
        true => Finding::error(Section::Clock, message, next),
        false => Finding::warning(Section::Clock, message, next),
    })
}

fn judge_versions(here: &LocalFacts, cluster: &ClusterFacts) -> Option<Finding> {
    if cluster.version.is_empty() {
        let message =
            format!("state does not say its version: it is older than this program, {}", here.version);
        return Some(Finding::warning(Section::Versions, message, UPGRADE));
    }
    let mut others: Vec<String> = Vec::new();
    if cluster.version != here.version {
        others.push(format!("this program {}", here.version));
    }
    let members = cluster.members.iter().filter(|member| !member.version.is_empty());
    others.extend(
        members
            .filter(|member| member.version != cluster.version)
            .map(|member| format!("{} {}", member.name, member.version)),
    );
    (!others.is_empty()).then(|| {
        let message = format!("state is {}, and others are not: {}", cluster.version, named(&others));
        Finding::warning(Section::Versions, message, UPGRADE)
    })
}

const UPGRADE: &str = "install the same version everywhere: docs/install.md, \"Update\"";

fn judge_yarn(members: &[MemberFacts]) -> Option<Finding> {
    let faces = members.iter().flat_map(|member| &member.faces);
    let open: Vec<String> = faces
        .filter(|face| face.reach == Reach::Network)
        .map(|face| format!("{} ({})", face.address, face.name))
        .collect();
    (!open.is_empty()).then(|| {
        let message = format!(
            "other machines reach the YARN adapter at {}: clients are believed whoever they say they are (`yarn.simple_auth`), and \
             Hadoop RPC has no TLS",
            named(&open)
        );
        let next = "close these ports to all machines but those of YARN's clients and nodes, or listen on 127.0.0.1 without `yarn.simple_auth`";
        Finding::warning(Section::Yarn, message, next)
    })
}

fn judge_file(file: &FileFacts) -> Option<Finding> {
    let FileFacts { path, kind, state } = file;
    let mode = match state {
        FileState::Absent => return None,
        FileState::Unreadable(why) => {
            let message = format!("{path} cannot be looked at: {why}");
            let next = "ask again as its owner, as with `sudo -u USER godel doctor`";
            return Some(Finding::warning(Section::Files, message, next));
        }
        FileState::Mode(mode) => *mode,
    };
    let has = format!("{path} has mode {mode:04o}");
    match kind {
        PrivateKind::File if mode & OTHERS != 0 => Some(Finding::error(
            Section::Files,
            format!("{has}: others may read or use it"),
            format!("`chmod 600 {path}`, and make what is in it anew if somebody may have read it"),
        )),
        PrivateKind::Dir if mode & OTHERS_WRITE != 0 => Some(Finding::error(
            Section::Files,
            format!("{has}: others may put files of their own into it"),
            format!("`chmod 700 {path}`, and look for files that are not yours"),
        )),
        PrivateKind::Dir if mode & OTHERS != 0 => Some(Finding::warning(
            Section::Files,
            format!("{has}: others see what is in it"),
            format!("`chmod 700 {path}`"),
        )),
        PrivateKind::AboveStore if mode & ANYBODY_WRITES != 0 => Some(Finding::error(
            Section::Files,
            format!(
                "{has}: anybody may make files beside the store, and state does not start with TLS there"
            ),
            format!("`chmod o-w {path}`, or give the store a directory of its own"),
        )),
        PrivateKind::File | PrivateKind::Dir | PrivateKind::AboveStore => None,
    }
}

/// `a, b and 3 more`.
pub(super) fn named(names: &[String]) -> String {
    let shown = names.get(..N_NAMED_MAX).filter(|_| names.len() > N_NAMED_MAX + 1).unwrap_or(names);
    match (shown, names.len() - shown.len()) {
        ([first @ .., last], 0) if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        (_, 0) => shown.join(", "),
        (_, n_more) => format!("{} and {n_more} more", shown.join(", ")),
    }
}
