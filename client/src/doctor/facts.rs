//! What the doctor knows, in the form in which `-o json` shows it. Times are Unix milliseconds.

use godel_proto::v1;
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

/// What a server speaks at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// TLS only.
    Tls,
    /// TLS and plain text. Callers in plain text have all permissions.
    TlsAndPlainText,
    /// Plain text only.
    PlainText,
    /// The server does not say.
    Unknown,
}

/// What state reports about its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterFacts {
    /// Address at which state answered.
    pub address: String,
    /// Version of state; empty if state does not report it.
    pub version: String,
    /// What state speaks.
    pub speaks: Protocol,
    /// Open connections to state in plain text.
    pub plain_text_connections: u64,
    /// State's clock; `None` if state does not report it.
    pub clock: Option<ClockFacts>,
    /// Holders of leases and their standbys, in order of the leases.
    pub members: Vec<MemberFacts>,
    /// Identities in order of role and name; empty if the cluster has no CA.
    pub identities: Vec<IdentityFacts>,
    /// Join tokens that can still be used; empty if the cluster has no CA.
    pub join_tokens: Vec<JoinTokenFacts>,
    /// Tokens of persons that count; empty if the cluster has no CA.
    pub person_tokens: Vec<PersonTokenFacts>,
    /// Addresses at which application masters of YARN call agents, in order of the nodes' names; empty if no YARN adapter runs.
    pub container_ports: Vec<String>,
}

impl ClusterFacts {
    /// The time by which certificates and tokens are judged: state's, or this machine's if state does not report its own.
    pub(super) fn now_ms(&self, local: &LocalFacts) -> i64 {
        self.clock.map_or(local.now_ms, |clock| clock.state_ms)
    }
}

/// State's clock compared with this machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ClockFacts {
    /// Time that state's clock showed.
    pub state_ms: i64,
    /// By how much state's clock is ahead of this machine's; negative if it is behind.
    pub ahead_ms: i64,
    /// Uncertainty of `ahead_ms`: half of the round trip.
    pub within_ms: i64,
}

/// A service with an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemberFacts {
    /// Its lease without `member/`: `binder`, `scheduler/s1`, `state/main`.
    #[serde(rename = "member")]
    pub name: String,
    /// It does not hold the lease, but waits for it.
    pub stands_by: bool,
    /// Address at which others reach it.
    pub address: String,
    /// What it speaks at that address.
    pub speaks: Protocol,
    /// Who can reach that address.
    pub open_to: Reach,
    /// Version of its program; empty if it does not report it.
    pub version: String,
    /// Open connections to it in plain text, as it last reported.
    pub plain_text_connections: u64,
    /// Further addresses, at which it always speaks plain text.
    #[serde(skip)]
    pub plain_text_ports: Vec<PlainTextPort>,
}

impl MemberFacts {
    /// Whether it is state.
    pub(super) fn is_state(&self) -> bool {
        self.name.starts_with("state/")
    }
}

/// An address at which a member always speaks plain text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlainTextPort {
    /// Its purpose: `client`, `master`, `admin` or `rest` of the YARN adapter.
    pub name: String,
    /// Address such as `127.0.0.1:8032`.
    pub address: String,
    /// Who can reach it.
    pub open_to: Reach,
}

/// Validity of the last certificate of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It is accepted.
    Valid,
    /// It expired at most 30 days ago.
    Expired,
    /// It expired more than 30 days ago.
    Gone,
    /// It was revoked.
    Revoked,
    /// State reports a value that this version does not know.
    Unknown,
}

impl Standing {
    /// The word for it in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Expired => "expired",
            Self::Gone => "gone",
            Self::Revoked => "revoked",
            Self::Unknown => "unknown",
        }
    }
}

impl From<v1::IdentityStanding> for Standing {
    fn from(standing: v1::IdentityStanding) -> Self {
        match standing {
            v1::IdentityStanding::Unspecified => Self::Unknown,
            v1::IdentityStanding::Valid => Self::Valid,
            v1::IdentityStanding::Expired => Self::Expired,
            v1::IdentityStanding::Gone => Self::Gone,
            v1::IdentityStanding::Revoked => Self::Revoked,
        }
    }
}

/// An identity and its last certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IdentityFacts {
    /// Role and name, such as `agent/n1`.
    pub identity: String,
    /// Validity of its last certificate, by state's clock.
    pub standing: Standing,
    /// Time at which the last certificate was issued.
    pub issued_ms: i64,
    /// Time at which the last certificate ends.
    pub ends_ms: i64,
}

/// A join token that can still be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JoinTokenFacts {
    /// Id of the token.
    pub id: String,
    /// Role that it grants.
    pub role: String,
    /// How often it can still be used.
    pub uses_left: u32,
    /// Time at which it ends.
    pub ends_ms: i64,
}

/// A token of a person that counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PersonTokenFacts {
    /// Id of the token.
    pub id: String,
    /// Whose it is.
    pub principal: String,
    /// Time at which it ends.
    pub ends_ms: i64,
}

/// What is known about this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalFacts {
    /// Version of this program.
    pub version: String,
    /// Time by this machine's clock.
    pub now_ms: i64,
    /// The context that leads to the cluster.
    pub context: Option<ContextFacts>,
    /// Files that only their owner may access.
    pub files: Vec<FileFacts>,
}

/// A context of a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ContextFacts {
    /// Its name.
    pub name: String,
    /// Address of state.
    pub address: String,
    /// Time at which its token ends; `None` if it has no token.
    pub token_ends_ms: Option<i64>,
    /// Commands renew its token.
    pub renews_token: bool,
}

/// A file or directory that only its owner may access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// Its path.
    pub path: String,
    /// What it is.
    pub kind: PrivateKind,
    /// What was found there.
    pub state: FileState,
}

/// What a private file is, which decides the mode that it should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrivateKind {
    /// A file or a socket: 0600.
    File,
    /// A directory of such files: 0700.
    Dir,
    /// The directory above a store, in which other users must not be able to create files.
    AboveStore,
}

/// What was found at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileState {
    /// Nothing.
    Absent,
    /// A file or directory with these permissions.
    Mode(u32),
    /// Its mode cannot be read, for this reason.
    Unreadable(String),
}
