//! What the doctor knows. Times are Unix milliseconds.

use serde::Serialize;

/// Who can open a connection to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// Programs on the same machine.
    Machine,
    /// Other machines, as far as networks and firewalls let them.
    Network,
}

/// What is spoken at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Spoken {
    /// TLS alone.
    Tls,
    /// TLS, and plain text, which may do everything.
    #[serde(rename = "tls_and_plain_text")]
    Both,
    /// Plain text.
    PlainText,
    /// Not known.
    Unknown,
}

/// All that state says of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterFacts {
    /// Where state was asked.
    pub address: String,
    /// Version of state; empty if it does not say.
    pub version: String,
    /// What state speaks.
    pub tls: Spoken,
    /// Connections in plain text to state that are open.
    pub plain_text_connections: u64,
    /// The clock of state; `None` if it does not say.
    pub clock: Option<ClockFacts>,
    /// Those who serve, and those who stand by, in order of their leases.
    pub members: Vec<MemberFacts>,
    /// In order of role and name; empty if the cluster has no CA.
    pub identities: Vec<IdentityFacts>,
    /// Those that may still be used; empty if the cluster has no CA.
    pub join_tokens: Vec<JoinTokenFacts>,
    /// Where masters of YARN call agents, in order of the nodes' names; empty where no YARN adapter runs.
    pub container_ports: Vec<String>,
}

/// The clock of state beside the one of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockFacts {
    /// What state's clock showed.
    pub state_ms: i64,
    /// By how much state's clock is ahead of this machine's; negative: behind.
    pub ahead_ms: i64,
    /// By how much that may be wrong: half of the time that the answer took.
    pub within_ms: i64,
}

/// A service with an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberFacts {
    /// Its lease without `member/`: `binder`, `scheduler/s1`, `state/main`.
    pub name: String,
    /// It waits for the lease, and does not hold it.
    pub stands_by: bool,
    /// Where others reach it.
    pub address: String,
    /// What it speaks there.
    pub spoken: Spoken,
    /// Who can reach it there.
    pub reach: Reach,
    /// Version of its program; empty if it does not say.
    pub version: String,
    /// Connections to it in plain text that are open, as it said last.
    pub plain_text_connections: u64,
    /// Where it speaks plain text in any case.
    pub faces: Vec<PlainTextFace>,
}

impl MemberFacts {
    /// Whether it is a state.
    pub(super) fn is_state(&self) -> bool {
        self.name.starts_with("state/")
    }
}

/// An address at which a member speaks plain text in any case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainTextFace {
    /// What it is for: `client`, `master`, `admin` or `rest` of the YARN adapter.
    pub name: String,
    /// As `127.0.0.1:8032`.
    pub address: String,
    /// Who can reach it.
    pub reach: Reach,
}

/// How the last certificate of an identity counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It is accepted.
    Valid,
    /// It has ended at most 30 days ago.
    Expired,
    /// It has ended more than 30 days ago.
    Gone,
    /// It was revoked.
    Revoked,
    /// State says something that this version does not know.
    Unknown,
}

/// An identity and its last certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityFacts {
    /// Role and name, as `agent/n1`.
    pub identity: String,
    /// How its last certificate counts, by state's clock.
    pub standing: Standing,
    /// Issue of the last certificate.
    pub issued_ms: i64,
    /// End of the last certificate.
    pub ends_ms: i64,
}

/// A join token that may still be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinTokenFacts {
    /// Names the token.
    pub id: String,
    /// Role that it gives.
    pub role: String,
    /// End of the token.
    pub ends_ms: i64,
    /// How often it may still be used.
    pub uses_left: u32,
}

/// What is known of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalFacts {
    /// Version of this program.
    pub version: String,
    /// The clock of this machine.
    pub now_ms: i64,
    /// The context by which the cluster is reached.
    pub context: Option<ContextFacts>,
    /// Files that only their owners are to have.
    pub files: Vec<FileFacts>,
}

/// A context of a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextFacts {
    /// Its name.
    pub name: String,
    /// Where it leads.
    pub address: String,
    /// End of its token; `None`: it has none.
    pub token_ends_ms: Option<i64>,
}

/// Something on disk of which others are to have nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// Where it is.
    pub path: String,
    /// What it is.
    pub kind: PrivateKind,
    /// What is there.
    pub state: FileState,
}

/// What something on disk is, and so what mode it is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrivateKind {
    /// A file or a socket: 0600.
    File,
    /// A directory of such files: 0700.
    Dir,
    /// The directory above a store: nobody else may make files in it.
    AboveStore,
}

/// What is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileState {
    /// Nothing.
    Absent,
    /// Something with these permissions.
    Mode(u32),
    /// It cannot be looked at, and why.
    Unreadable(String),
}
