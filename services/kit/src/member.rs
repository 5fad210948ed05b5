//! The identity of a process of the cluster: how it joins, what it keeps, and how it stays known.
//!
//! A process whose state is at an `https://` address takes its identity before it calls anybody ([`take_identity`]): the one that it kept at its
//! last run, or a new one, for which it needs a join token. From then on a task renews the leaf at a third of its life and follows the roots, over
//! connections that are there already; a service has a second task that asks state every two seconds whom to refuse ([`CallerRecords`]).
//! Both learn what time it is at state, and everything is judged by that.
//!
//! # Modules
//!
//! - `callers`: whom a service refuses, as state says.
//! - `clock`: the time at state.
//! - `files`: what a process keeps of its identity.
//! - `join`: the first leaf, for a join token.
//! - `renewal`: the leaves after the first, and the roots.

mod callers;
mod clock;
mod files;
mod join;
mod renewal;

use std::{fmt, path::PathBuf, sync::Arc};

use godel_identity::names::{AgentNames, BadIdentity, Identity, Role};
use godel_pki::{
    join_tokens::{BadJoinToken, JoinToken},
    leaves::{BadOwnLeaf, OwnLeaf},
    private_files::PrivateFileError,
    requests::{BadKey, LeafKey},
    roots::{BadTrust, RootCert, Trust},
    tls::TlsIdentity,
};
use godel_proto::v1;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::{
    address::{BadAddress, ServerAddress, Speech, parse_list},
    clock::SharedClock,
    config::{ClientConfig, IdentityConfig},
    security::{CallerRecords, ClientSecurity, ServerSecurity},
    task,
};
use clock::StateClock;
use files::IdentityFiles;

/// Who a process of the cluster is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMember {
    /// Its role.
    pub role: Role,
    /// Its name, or the prefix of the names of an agent's nodes with `*` behind it.
    pub name: String,
    /// DNS names and addresses under which people's tools reach it; none for agents, which serve nobody.
    pub hosts: Vec<String>,
}

impl NewMember {
    /// The agent of these nodes: it has the name of the one node, or what all names begin with, and `*`.
    pub fn agent_of<'a>(nodes: impl IntoIterator<Item = &'a str>) -> Self {
        let name = AgentNames::covering(nodes).map(|names| names.to_string()).unwrap_or_default();
        Self { role: Role::Agent, name, hosts: Vec::new() }
    }
}

/// What a process of the cluster shows, and whom it believes.
#[derive(Clone, Debug)]
pub struct MemberIdentity {
    /// With what it calls others.
    pub client: ClientSecurity,
    /// With what it serves; agents serve nobody.
    pub server: ServerSecurity,
}

/// A join token that a process was given by the one that started it, instead of a file. What it gets for that stays in memory.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct GivenToken(Option<Arc<str>>);

impl GivenToken {
    /// The text of a join token.
    pub fn new(token: &str) -> Self {
        Self(Some(token.into()))
    }
}

/// Says nothing of the token itself.
impl fmt::Debug for GivenToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "GivenToken" } else { "none" })
    }
}

/// Why a process has no identity.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The address of state.
    #[error("the address of the state service")]
    State(#[from] BadAddress),
    /// It was never given one.
    #[error(
        "{key} has no certificate in {dir}, and state is at an https:// address: get a join token with `{command}` where `godel status` works, and give \
         its file with `--join-file FILE`, or `-` for standard input"
    )]
    NoToken {
        /// `<role>/<name>`.
        key: String,
        /// Where certificates are kept.
        dir: String,
        /// What makes a token.
        command: String,
    },
    /// The token cannot be read.
    #[error("the join token of {from}")]
    Token {
        /// The file.
        from: String,
        /// What is wrong with it.
        source: BadJoinToken,
    },
    /// A file of the identity.
    #[error("a file of the identity")]
    File(#[from] PrivateFileError),
    /// What the files hold.
    #[error("{path}; remove the file to join again with a join token")]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: Damage,
    },
    /// The name is none.
    #[error("the name of the process (`identity.name`)")]
    Name(#[from] BadIdentity),
    /// State refuses.
    #[error("state does not take {key} in: {}", .status.message())]
    Refused {
        /// `<role>/<name>`.
        key: String,
        /// What it says.
        status: Box<Status>,
    },
    /// Who answers is not the state of the token's cluster.
    #[error("{state} is not the state that the join token or the certificate is of: {why}")]
    NotState {
        /// Its address.
        state: String,
        /// What is wrong.
        why: String,
    },
    /// State's answer makes no identity.
    #[error("state's answer makes no identity")]
    Answer(#[from] Damage),
    /// The process was stopped before it had joined.
    #[error("the process was stopped before it had joined")]
    Stopped,
}

/// What is wrong with an identity.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// The key.
    #[error(transparent)]
    Key(#[from] BadKey),
    /// The leaf.
    #[error(transparent)]
    Leaf(#[from] BadOwnLeaf),
    /// The roots.
    #[error(transparent)]
    Trust(#[from] BadTrust),
    /// Somebody else's.
    #[error("the certificate is of {found}, and this process is {own}")]
    Other {
        /// `<role>/<name>` of the certificate.
        found: String,
        /// `<role>/<name>` of the process.
        own: String,
    },
    /// Something is absent.
    #[error("{0} is missing")]
    Missing(&'static str),
}

/// A leaf with its key, and whom its holder trusts.
pub(crate) struct HeldIdentity {
    key: LeafKey,
    own: OwnLeaf,
    trust: Trust,
}

impl HeldIdentity {
    /// From what state has answered.
    ///
    /// # Errors
    /// It makes no identity.
    fn of_answer(
        key: LeafKey,
        leaf: Option<v1::Leaf>,
        trust: Option<v1::TrustRoots>,
    ) -> Result<Self, Damage> {
        let leaf = leaf.ok_or(Damage::Missing("the leaf"))?;
        let trust = read_trust(&trust.ok_or(Damage::Missing("the roots"))?)?;
        let leaf = leaf.certificate.into();
        let root = trust.root_of(&leaf)?.clone();
        let own = OwnLeaf::new(leaf, &root, &key)?;
        Ok(Self { key, own, trust })
    }

    fn identity(&self) -> &Identity {
        &self.own.leaf().identity
    }
}

/// Reads the roots that state tells.
fn read_trust(trust: &v1::TrustRoots) -> Result<Trust, BadTrust> {
    let roots: Result<Vec<RootCert>, _> =
        trust.roots.iter().map(|root| RootCert::read(root.certificate.clone())).collect();
    let cluster = trust.cluster.parse().map_err(|_| BadTrust::Cluster)?;
    Trust::new(cluster, roots?)
}

/// What a process needs all the time that it has an identity.
struct Joining<'a> {
    member: &'a NewMember,
    client: &'a ClientConfig,
    clock: StateClock,
    stop: &'a CancellationToken,
}

/// What a service is to speak: TLS if state is at an `https://` address.
///
/// # Errors
/// That address is malformed.
pub fn speech_of(client: &ClientConfig, identity: &IdentityConfig) -> Result<Speech, BadAddress> {
    // Of several, all speak the same.
    Ok(match parse_list(&client.state, false)?.first() {
        Some(ServerAddress::Tls(_)) if identity.plain_text => Speech::Both,
        Some(ServerAddress::Tls(_)) => Speech::Tls,
        Some(ServerAddress::PlainText(_) | ServerAddress::Unix(_)) | None => Speech::PlainText,
    })
}

/// Takes the identity of a process and keeps it until `stop`: by what it kept before, or by a join token. `None`: state is at a plain-text address,
/// and nobody has an identity, or the caller has given one (`client.security`).
///
/// While state does not answer it waits, as services do that start before state.
///
/// # Errors
/// There is no token, or state refuses it.
pub async fn take_identity(
    config: &IdentityConfig,
    member: NewMember,
    client: &ClientConfig,
    clock: SharedClock,
    stop: &CancellationToken,
) -> Result<Option<MemberIdentity>, JoinError> {
    let speech = speech_of(client, config)?;
    if client.security.speaks_tls() || speech == Speech::PlainText {
        return Ok(None);
    }
    let clock = StateClock::new(clock);
    let joining = Joining { member: &member, client, clock: clock.clone(), stop };
    let files = IdentityFiles::of(config, &member);
    let held = join::first_identity(&joining, config, files.as_ref()).await?;
    let cluster = held.identity().cluster().clone();
    let tls = TlsIdentity::new(held.trust.clone(), Some(held.own.clone()), clock.wall_clock());
    let with_plain_text = speech == Speech::Both;
    let security = ClientSecurity::new(tls.clone());
    let security = if with_plain_text { security.with_plain_text() } else { security };
    let client = ClientConfig { security: security.clone(), ..client.clone() };
    let records = CallerRecords::new(cluster);
    let server = if member.role.is_server() {
        let following = callers::follow(client.clone(), records.clone(), tls.clone(), clock.clone());
        task::spawn_service("callers", stop, stop.clone().run_until_cancelled_owned(following?));
        let server = ServerSecurity::new(tls.clone(), records, clock.wall_clock());
        if with_plain_text { server.with_plain_text() } else { server }
    } else {
        ServerSecurity::default()
    };
    let renewal = renewal::IdentityRenewal::new(member, held, files, tls, &client, clock)?;
    task::spawn_service("renewal", stop, stop.clone().run_until_cancelled_owned(renewal.run()));
    Ok(Some(MemberIdentity { client: security, server }))
}

/// The token that a process was given, and where it comes from.
fn read_token(config: &IdentityConfig) -> Result<Option<JoinToken>, JoinError> {
    let (from, text) = match (&config.token.0, config.join_file.as_str()) {
        (Some(given), _) => ("the process that started this one".to_owned(), given.to_string()),
        (None, "") => return Ok(None),
        (None, file) => (file.to_owned(), files::read_token_text(file)?),
    };
    let token = text.trim().parse();
    token.map(Some).map_err(|source| JoinError::Token { from, source })
}

/// Where certificates are kept, for people.
fn kept_in(config: &IdentityConfig) -> String {
    PathBuf::from(&config.dir).display().to_string()
}
