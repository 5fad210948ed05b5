//! What the doctor knows and found, for people and for machines.

use serde::Serialize;

use super::{
    Diagnosis,
    facts::{
        ClusterFacts, ContextFacts, FileFacts, FileState, IdentityFacts, LocalFacts, MemberFacts,
        PrivateKind, Reach, Spoken, Standing,
    },
    judge::{Finding, Severity, is_late, named},
};
use crate::output::{Paint, columns, count, field, shown, span, time};

/// Width of the titles of single lines.
const WIDTH: usize = 11;
/// Most certificates that people are shown; the rest is counted.
const N_CERTIFICATES_MAX: usize = 40;
/// A clock that differs by less is shown in milliseconds.
const SHORT_MS: u64 = 2_000;

impl Diagnosis {
    /// Tables of what is known, and what is wrong below them.
    pub fn text(&self, paint: Paint) -> String {
        let mut parts = Vec::new();
        if let Some(cluster) = &self.cluster {
            parts.push(members_text(&cluster.members));
            parts.push(certificates_text(&self.here, cluster));
            parts.push(join_tokens_text(cluster));
            parts.push(faces_text(&cluster.members));
        }
        parts.push(files_text(&self.here.files));
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
        if let Some(ContextFacts { name, token_ends_ms, .. }) = &self.here.context {
            let token =
                token_ends_ms.map_or("no token".to_owned(), |ends| format!("token until {}", time(ends)));
            text.push_str(&field(WIDTH, "context", &format!("{name}: {token}")));
        }
        if let Some(clock) = self.cluster.as_ref().and_then(|cluster| cluster.clock) {
            let ahead = difference(clock.ahead_ms.unsigned_abs());
            let side = if clock.ahead_ms < 0 { "behind" } else { "ahead of" };
            let within = difference(clock.within_ms.unsigned_abs());
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
        text + &field(WIDTH, "versions", &format!("this program {}, state {of_state}", self.here.version))
    }

    /// For machines.
    pub fn view(&self) -> DiagnosisView<'_> {
        let Self { here, cluster, findings } = self;
        let verdict = match findings.first().map(|finding| finding.severity) {
            Some(Severity::Error) => "errors",
            Some(Severity::Warning) => "warnings",
            None => "ok",
        };
        DiagnosisView {
            verdict,
            findings,
            version: &here.version,
            context: here.context.as_ref().map(|context| ContextTokenView {
                name: &context.name,
                address: &context.address,
                token_ends_ms: context.token_ends_ms,
            }),
            files: here.files.iter().map(FileView::from).collect(),
            cluster: cluster.as_ref().map(|cluster| cluster_view(here, cluster)),
        }
    }
}

fn members_text(members: &[MemberFacts]) -> String {
    let row = |member: &MemberFacts| {
        let waits = if member.stands_by { " (stands by)" } else { "" };
        vec![
            format!("{}{waits}", member.name),
            member.address.clone(),
            spoken_name(member.spoken).to_owned(),
            reach_name(member.reach).to_owned(),
            member.version.clone(),
        ]
    };
    let rows: Vec<_> = members.iter().map(row).collect();
    columns(&["MEMBER", "ADDRESS", "SPEAKS", "OPEN-TO", "VERSION"], &rows)
}

/// Those that need to be looked at first, and of the others as many as there is room for.
fn certificates_text(here: &LocalFacts, cluster: &ClusterFacts) -> String {
    if cluster.identities.is_empty() {
        return String::new();
    }
    let now_ms = cluster.clock.map_or(here.now_ms, |clock| clock.state_ms);
    let is_good = |it: &&IdentityFacts| it.standing == Standing::Valid && !is_late(it, now_ms);
    let (good, bad): (Vec<_>, Vec<_>) = cluster.identities.iter().partition(is_good);
    let row = |it: &&IdentityFacts| {
        let standing = match it.standing {
            Standing::Valid if is_late(it, now_ms) => "renewal missed",
            standing => standing_name(standing),
        };
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

fn join_tokens_text(cluster: &ClusterFacts) -> String {
    if cluster.join_tokens.is_empty() {
        return String::new();
    }
    let rows: Vec<_> = cluster
        .join_tokens
        .iter()
        .map(|token| {
            vec![token.id.clone(), token.role.clone(), token.uses_left.to_string(), time(token.ends_ms)]
        })
        .collect();
    columns(&["JOIN-TOKEN", "ROLE", "USES-LEFT", "ENDS"], &rows)
}

fn faces_text(members: &[MemberFacts]) -> String {
    let faces = members.iter().flat_map(|member| &member.faces);
    let row = |face: &super::PlainTextFace| {
        let speaks = if face.name == "rest" { "HTTP without TLS" } else { "Hadoop RPC, which has no TLS" };
        vec![face.name.clone(), face.address.clone(), speaks.to_owned(), reach_name(face.reach).to_owned()]
    };
    let rows: Vec<_> = faces.map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    columns(&["YARN", "ADDRESS", "SPEAKS", "OPEN-TO"], &rows)
}

fn container_ports_text(ports: &[String]) -> String {
    if ports.is_empty() {
        return String::new();
    }
    let what = "Hadoop RPC, which has no TLS, open to this machine alone unless `agent.yarn.simple_auth` says otherwise there";
    field(WIDTH, "containers", &format!("{}: {what}", shown(&named(ports))))
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
        return format!("{}: nothing is wrong with what was looked at\n", paint.good("ok"));
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

/// What state speaks, and who comes in plain text.
fn plain_text_line(cluster: &ClusterFacts) -> String {
    let speaks = match cluster.tls {
        Spoken::Unknown => "state does not say what it speaks".to_owned(),
        spoken => format!("state speaks {}", spoken_name(spoken)),
    };
    let of_members: u64 = cluster.members.iter().map(|member| member.plain_text_connections).sum();
    let to_state = count(cluster.plain_text_connections, "connection");
    format!("{speaks}; {to_state} in plain text to it, {of_members} to other members")
}

fn difference(ms: u64) -> String {
    if ms < SHORT_MS { format!("{ms}ms") } else { span(ms) }
}

fn spoken_name(spoken: Spoken) -> &'static str {
    match spoken {
        Spoken::Tls => "TLS",
        Spoken::Both => "TLS and plain text",
        Spoken::PlainText => "plain text",
        Spoken::Unknown => "not known",
    }
}

fn reach_name(reach: Reach) -> &'static str {
    match reach {
        Reach::Machine => "this machine",
        Reach::Network => "network",
    }
}

fn standing_name(standing: Standing) -> &'static str {
    match standing {
        Standing::Valid => "valid",
        Standing::Expired => "expired",
        Standing::Gone => "gone",
        Standing::Revoked => "revoked",
        Standing::Unknown => "unknown",
    }
}

fn wanted_mode(kind: PrivateKind) -> &'static str {
    match kind {
        PrivateKind::File => "0600",
        PrivateKind::Dir => "0700",
        PrivateKind::AboveStore => "not writable by others",
    }
}

fn cluster_view<'a>(here: &LocalFacts, cluster: &'a ClusterFacts) -> ClusterView<'a> {
    let now_ms = cluster.clock.map_or(here.now_ms, |clock| clock.state_ms);
    let member = |member: &'a MemberFacts| MemberAddressView {
        member: &member.name,
        stands_by: member.stands_by,
        address: &member.address,
        speaks: member.spoken,
        open_to: member.reach,
        version: &member.version,
        plain_text_connections: member.plain_text_connections,
    };
    let certificate = |it: &'a IdentityFacts| CertificateView {
        identity: &it.identity,
        standing: it.standing,
        missed_renewal: it.standing == Standing::Valid && is_late(it, now_ms),
        issued_ms: it.issued_ms,
        ends_ms: it.ends_ms,
    };
    let faces = cluster.members.iter().flat_map(|member| &member.faces).map(|face| FaceView {
        name: &face.name,
        address: &face.address,
        open_to: face.reach,
    });
    ClusterView {
        address: &cluster.address,
        version: &cluster.version,
        speaks: cluster.tls,
        plain_text_connections: cluster.plain_text_connections,
        members: cluster.members.iter().map(member).collect(),
        certificates: cluster.identities.iter().map(certificate).collect(),
        join_tokens: cluster
            .join_tokens
            .iter()
            .map(|token| AliveTokenView {
                id: &token.id,
                role: &token.role,
                uses_left: token.uses_left,
                ends_ms: token.ends_ms,
            })
            .collect(),
        clock: cluster.clock.map(|clock| ClockView {
            state_ms: clock.state_ms,
            ahead_ms: clock.ahead_ms,
            within_ms: clock.within_ms,
        }),
        yarn: faces.collect(),
        container_ports: &cluster.container_ports,
    }
}

/// A diagnosis as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct DiagnosisView<'a> {
    /// `ok`, `warnings` or `errors`.
    pub verdict: &'static str,
    /// What is wrong, errors first.
    pub findings: &'a [Finding],
    /// Version of this program.
    pub version: &'a str,
    /// The context by which the cluster is reached.
    pub context: Option<ContextTokenView<'a>>,
    /// Files of this machine that others are to have nothing of.
    pub files: Vec<FileView<'a>>,
    /// Absent if state does not answer.
    pub cluster: Option<ClusterView<'a>>,
}

/// A context and its token as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct ContextTokenView<'a> {
    /// Its name.
    pub name: &'a str,
    /// Where it leads.
    pub address: &'a str,
    /// End of its token.
    pub token_ends_ms: Option<i64>,
}

/// A file as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct FileView<'a> {
    /// Where it is.
    pub path: &'a str,
    /// In octal digits, as `0600`; absent if it is not known.
    pub mode: Option<String>,
    /// The mode that it is to have.
    pub wanted: &'static str,
    /// Nothing is there.
    pub is_absent: bool,
    /// Why it cannot be looked at.
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

/// What state says of its cluster as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct ClusterView<'a> {
    /// Where state was asked.
    pub address: &'a str,
    /// Version of state.
    pub version: &'a str,
    /// What state speaks.
    pub speaks: Spoken,
    /// Connections in plain text to state that are open.
    pub plain_text_connections: u64,
    /// Who serves where.
    pub members: Vec<MemberAddressView<'a>>,
    /// Certificates of services and agents.
    pub certificates: Vec<CertificateView<'a>>,
    /// Join tokens that may still be used.
    pub join_tokens: Vec<AliveTokenView<'a>>,
    /// State's clock beside the one of this machine.
    pub clock: Option<ClockView>,
    /// Addresses for clients of YARN.
    pub yarn: Vec<FaceView<'a>>,
    /// Where masters of YARN call agents, as `n1:8041`, in plain text.
    pub container_ports: &'a [String],
}

/// A member and its address as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct MemberAddressView<'a> {
    /// Its lease without `member/`.
    pub member: &'a str,
    /// It waits for the lease.
    pub stands_by: bool,
    /// Where others reach it.
    pub address: &'a str,
    /// What it speaks there.
    pub speaks: Spoken,
    /// Who can reach it there.
    pub open_to: Reach,
    /// Version of its program.
    pub version: &'a str,
    /// Connections in plain text to it that are open.
    pub plain_text_connections: u64,
}

/// A certificate as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct CertificateView<'a> {
    /// Role and name.
    pub identity: &'a str,
    /// How it counts.
    pub standing: Standing,
    /// Less than a third of its life is left.
    pub missed_renewal: bool,
    /// Its issue.
    pub issued_ms: i64,
    /// Its end.
    pub ends_ms: i64,
}

/// A join token that may still be used, as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct AliveTokenView<'a> {
    /// Names the token.
    pub id: &'a str,
    /// Role that it gives.
    pub role: &'a str,
    /// How often it may still be used.
    pub uses_left: u32,
    /// Its end.
    pub ends_ms: i64,
}

/// Two clocks as JSON.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ClockView {
    /// What state's clock showed, Unix milliseconds.
    pub state_ms: i64,
    /// By how much it is ahead of this machine's; negative: behind.
    pub ahead_ms: i64,
    /// By how much that may be wrong.
    pub within_ms: i64,
}

/// An address for clients of YARN as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct FaceView<'a> {
    /// What it is for.
    pub name: &'a str,
    /// As `127.0.0.1:8032`.
    pub address: &'a str,
    /// Who can reach it.
    pub open_to: Reach,
}
