//! Shows what the doctor knows and found, as tables and as JSON.

use serde::Serialize;

use super::{
    Diagnosis,
    facts::{
        ClockFacts, ClusterFacts, ContextFacts, FileFacts, FileState, IdentityFacts, JoinTokenFacts,
        LocalFacts, MemberFacts, PersonTokenFacts, PlainTextPort, PrivateKind, Protocol, Reach, Standing,
    },
    judge::{Finding, Severity, list_names},
};
use crate::output::{Paint, columns, count, field, shown, span, time};

/// Width of the titles of single lines.
const WIDTH: usize = 11;
/// Maximum number of certificates, and of tokens, in a table; the rest is counted.
const N_CERTIFICATES_MAX: usize = 40;
/// Shorter differences between clocks are shown in milliseconds.
const SHORT_MS: u64 = 2_000;

impl Diagnosis {
    /// Returns tables of what is known, and the findings below them.
    pub fn text(&self, paint: Paint) -> String {
        let mut parts = Vec::new();
        if let Some(cluster) = &self.cluster {
            parts.push(members_text(&cluster.members));
            parts.push(certificates_text(&self.local, cluster));
            parts.push(join_tokens_text(&cluster.join_tokens));
            parts.push(person_tokens_text(&cluster.person_tokens));
            parts.push(plain_text_ports_text(&cluster.members));
        }
        parts.push(files_text(&self.local.files));
        parts.push(self.lines_text());
        parts.push(findings_text(&self.findings, paint));
        parts.retain(|part| !part.is_empty());
        parts.join("\n")
    }

    fn lines_text(&self) -> String {
        let mut text = String::new();
        if let Some(cluster) = &self.cluster {
            text.push_str(&field(WIDTH, "plain text", &plain_text_line(cluster)));
            text.push_str(&container_ports_text(&cluster.container_ports));
        }
        if let Some(ContextFacts { name, token_ends_ms, .. }) = &self.local.context {
            let token =
                token_ends_ms.map_or("no token".to_owned(), |ends| format!("token until {}", time(ends)));
            text.push_str(&field(WIDTH, "context", &format!("{name}: {token}")));
        }
        if let Some(clock) = self.cluster.as_ref().and_then(|cluster| cluster.clock) {
            let ahead = format_difference(clock.ahead_ms.unsigned_abs());
            let side = if clock.ahead_ms < 0 { "behind" } else { "ahead of" };
            let within = format_difference(clock.within_ms.unsigned_abs());
            text.push_str(&field(
                WIDTH,
                "clock",
                &format!("state is {ahead} {side} this machine, give or take {within}"),
            ));
        }
        let of_state = self.cluster.as_ref().map_or("not known", |cluster| match cluster.version.as_str() {
            "" => "older than this program",
            version => version,
        });
        text + &field(WIDTH, "versions", &format!("this program {}, state {of_state}", self.local.version))
    }

    /// Returns what `-o json` prints.
    pub fn view(&self) -> DiagnosisView<'_> {
        let Self { local, cluster, findings } = self;
        let verdict = match findings.first().map(|finding| finding.severity) {
            Some(Severity::Error) => "errors",
            Some(Severity::Warning) => "warnings",
            None => "ok",
        };
        DiagnosisView {
            verdict,
            findings,
            version: &local.version,
            context: local.context.as_ref(),
            files: local.files.iter().map(FileView::from).collect(),
            cluster: cluster.as_ref().map(|cluster| cluster_view(local, cluster)),
        }
    }
}

fn members_text(members: &[MemberFacts]) -> String {
    let row = |member: &MemberFacts| {
        let standby = if member.stands_by { " (stands by)" } else { "" };
        vec![
            format!("{}{standby}", member.name),
            member.address.clone(),
            protocol_name(member.speaks).to_owned(),
            reach_name(member.open_to).to_owned(),
            member.version.clone(),
        ]
    };
    let rows: Vec<_> = members.iter().map(row).collect();
    columns(&["MEMBER", "ADDRESS", "SPEAKS", "OPEN-TO", "VERSION"], &rows)
}

/// Certificates that need attention first, then as many of the others as there is room for.
fn certificates_text(local: &LocalFacts, cluster: &ClusterFacts) -> String {
    if cluster.identities.is_empty() {
        return String::new();
    }
    let now_ms = cluster.now_ms(local);
    let is_good = |it: &&IdentityFacts| it.standing == Standing::Valid && !it.is_late(now_ms);
    let (good, bad): (Vec<_>, Vec<_>) = cluster.identities.iter().partition(is_good);
    let row = |it: &&IdentityFacts| {
        let standing = if it.is_late(now_ms) { "renewal missed" } else { it.standing.name() };
        vec![it.identity.clone(), standing.to_owned(), time(it.ends_ms)]
    };
    let rows: Vec<_> = bad.iter().chain(&good).take(N_CERTIFICATES_MAX).map(row).collect();
    let mut text = columns(&["CERTIFICATE", "STANDING", "ENDS"], &rows);
    let n_more = cluster.identities.len() - rows.len();
    if n_more > 0 {
        text.push_str(&format!("{n_more} more: `godel identity list`\n"));
    }
    text
}

fn join_tokens_text(tokens: &[JoinTokenFacts]) -> String {
    if tokens.is_empty() {
        return String::new();
    }
    let row = |token: &JoinTokenFacts| {
        vec![token.id.clone(), token.role.clone(), token.uses_left.to_string(), time(token.ends_ms)]
    };
    let rows: Vec<_> = tokens.iter().map(row).collect();
    columns(&["JOIN-TOKEN", "ROLE", "USES-LEFT", "ENDS"], &rows)
}

/// Tokens that end first come first.
fn person_tokens_text(tokens: &[PersonTokenFacts]) -> String {
    if tokens.is_empty() {
        return String::new();
    }
    let mut tokens: Vec<&PersonTokenFacts> = tokens.iter().collect();
    tokens.sort_by_key(|token| token.ends_ms);
    let row =
        |token: &&PersonTokenFacts| vec![token.id.clone(), token.principal.clone(), time(token.ends_ms)];
    let rows: Vec<_> = tokens.iter().take(N_CERTIFICATES_MAX).map(row).collect();
    let mut text = columns(&["TOKEN", "PRINCIPAL", "ENDS"], &rows);
    let n_more = tokens.len() - rows.len();
    if n_more > 0 {
        text.push_str(&format!("{n_more} more: `godel token list`\n"));
    }
    text
}

fn plain_text_ports_text(members: &[MemberFacts]) -> String {
    let ports = members.iter().flat_map(|member| &member.plain_text_ports);
    let row = |port: &PlainTextPort| {
        let speaks = if port.name == "rest" { "HTTP without TLS" } else { "Hadoop RPC, which has no TLS" };
        vec![port.name.clone(), port.address.clone(), speaks.to_owned(), reach_name(port.open_to).to_owned()]
    };
    let rows: Vec<_> = ports.map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    columns(&["YARN", "ADDRESS", "SPEAKS", "OPEN-TO"], &rows)
}

fn container_ports_text(ports: &[String]) -> String {
    if ports.is_empty() {
        return String::new();
    }
    let note = "Hadoop RPC, which has no TLS, open to the agent's machine only unless `agent.yarn.simple_auth` is set there";
    field(WIDTH, "containers", &format!("{}: {note}", shown(&list_names(ports))))
}

fn files_text(files: &[FileFacts]) -> String {
    if files.is_empty() {
        return String::new();
    }
    let row = |file: &FileFacts| {
        let mode = match &file.state {
            FileState::Absent => "absent".to_owned(),
            FileState::Mode(mode) => format!("{mode:04o}"),
            FileState::Unreadable(_) => "not known".to_owned(),
        };
        vec![file.path.clone(), mode, wanted_mode(file.kind).to_owned()]
    };
    let rows: Vec<_> = files.iter().map(row).collect();
    columns(&["FILE", "MODE", "WANTED"], &rows)
}

fn findings_text(findings: &[Finding], paint: Paint) -> String {
    if findings.is_empty() {
        return format!("{}: no problems found\n", paint.good("ok"));
    }
    let line = |Finding { severity, message, next, .. }: &Finding| {
        let word = match severity {
            Severity::Error => paint.bad("error"),
            Severity::Warning => paint.bold("warning"),
        };
        format!("{word}: {}\n  {}\n", shown(message), shown(next))
    };
    findings.iter().map(line).collect()
}

/// What state speaks, and how many connections are in plain text.
fn plain_text_line(cluster: &ClusterFacts) -> String {
    let speaks = match cluster.speaks {
        Protocol::Unknown => "state does not report what it speaks".to_owned(),
        protocol => format!("state speaks {}", protocol_name(protocol)),
    };
    let of_members: u64 = cluster.members.iter().map(|member| member.plain_text_connections).sum();
    let to_state = count(cluster.plain_text_connections, "connection");
    format!("{speaks}; {to_state} in plain text to it, {of_members} to other members")
}

fn format_difference(ms: u64) -> String {
    if ms < SHORT_MS { format!("{ms}ms") } else { span(ms) }
}

fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tls => "TLS",
        Protocol::TlsAndPlainText => "TLS and plain text",
        Protocol::PlainText => "plain text",
        Protocol::Unknown => "not known",
    }
}

fn reach_name(reach: Reach) -> &'static str {
    match reach {
        Reach::Machine => "this machine",
        Reach::Network => "network",
    }
}

fn wanted_mode(kind: PrivateKind) -> &'static str {
    match kind {
        PrivateKind::File => "0600",
        PrivateKind::Dir => "0700",
        PrivateKind::AboveStore => "not writable by others",
    }
}

fn cluster_view<'a>(local: &LocalFacts, cluster: &'a ClusterFacts) -> ClusterView<'a> {
    let now_ms = cluster.now_ms(local);
    let certificate =
        |identity: &'a IdentityFacts| CertificateView { identity, missed_renewal: identity.is_late(now_ms) };
    ClusterView {
        address: &cluster.address,
        version: &cluster.version,
        speaks: cluster.speaks,
        plain_text_connections: cluster.plain_text_connections,
        members: &cluster.members,
        certificates: cluster.identities.iter().map(certificate).collect(),
        join_tokens: &cluster.join_tokens,
        person_tokens: &cluster.person_tokens,
        clock: cluster.clock,
        yarn: cluster.members.iter().flat_map(|member| &member.plain_text_ports).collect(),
        container_ports: &cluster.container_ports,
    }
}

/// A diagnosis as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct DiagnosisView<'a> {
    /// `ok`, `warnings` or `errors`.
    pub verdict: &'static str,
    /// Findings, errors first.
    pub findings: &'a [Finding],
    /// Version of this program.
    pub version: &'a str,
    /// The context that leads to the cluster.
    pub context: Option<&'a ContextFacts>,
    /// Files of this machine that only their owner may access.
    pub files: Vec<FileView<'a>>,
    /// Absent if state does not answer.
    pub cluster: Option<ClusterView<'a>>,
}

/// A file as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct FileView<'a> {
    /// Its path.
    pub path: &'a str,
    /// Its mode in octal digits, such as `0600`; absent if it is not known.
    pub mode: Option<String>,
    /// The mode that it should have.
    pub wanted: &'static str,
    /// Nothing is there.
    pub is_absent: bool,
    /// Why its mode cannot be read.
    pub unreadable: Option<&'a str>,
}

impl<'a> From<&'a FileFacts> for FileView<'a> {
    fn from(file: &'a FileFacts) -> Self {
        let FileFacts { path, kind, state } = file;
        let (mode, is_absent, unreadable) = match state {
            FileState::Absent => (None, true, None),
            FileState::Mode(mode) => (Some(format!("{mode:04o}")), false, None),
            FileState::Unreadable(why) => (None, false, Some(why.as_str())),
        };
        Self { path, mode, wanted: wanted_mode(*kind), is_absent, unreadable }
    }
}

/// What state reports about its cluster, as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct ClusterView<'a> {
    /// Address at which state answered.
    pub address: &'a str,
    /// Version of state.
    pub version: &'a str,
    /// What state speaks.
    pub speaks: Protocol,
    /// Open connections to state in plain text.
    pub plain_text_connections: u64,
    /// Members and their addresses.
    pub members: &'a [MemberFacts],
    /// Certificates of services and agents.
    pub certificates: Vec<CertificateView<'a>>,
    /// Join tokens that can still be used.
    pub join_tokens: &'a [JoinTokenFacts],
    /// Tokens of persons that count.
    pub person_tokens: &'a [PersonTokenFacts],
    /// State's clock compared with this machine's.
    pub clock: Option<ClockFacts>,
    /// Addresses for clients of YARN.
    pub yarn: Vec<&'a PlainTextPort>,
    /// Addresses at which application masters of YARN call agents in plain text, such as `n1:8041`.
    pub container_ports: &'a [String],
}

/// A certificate as JSON.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CertificateView<'a> {
    /// The identity, and the times of its last certificate.
    #[serde(flatten)]
    pub identity: &'a IdentityFacts,
    /// It is valid, but less than a third of its lifetime is left.
    pub missed_renewal: bool,
}
