//! Names of clusters, roles and identities.

use std::{fmt, str::FromStr};

use godel_domain::names::{self, BadName, NAME_LEN_MAX, NAMESPACE_LEN_MAX};

/// The scheme of an identity's URI.
pub const SCHEME: &str = "spiffe://";
/// Longest name of a cluster, bytes.
pub const CLUSTER_LEN_MAX: usize = 63;
/// Longest URI of an identity, bytes: scheme, cluster, the longest role and the longest name, with the slashes between them.
pub const URI_LEN_MAX: usize =
    SCHEME.len() + CLUSTER_LEN_MAX + 1 + "rescheduler".len() + 1 + NAME_LEN_MAX + 1;

/// What is wrong with the name of a cluster, a role, an identity or an agent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadIdentity {
    /// The cluster's name.
    #[error(
        "cluster `{}` must have 1 to {CLUSTER_LEN_MAX} lower-case letters, digits and `-`, and begin and end with a letter or digit",
        .0.escape_debug()
    )]
    Cluster(String),
    /// Not a role.
    #[error(
        "role `{}` is unknown: state, dispatcher, binder, scheduler, rescheduler, yarn and agent are roles",
        .0.escape_debug()
    )]
    Role(String),
    /// The name of the process.
    #[error("name `{}`: {why}", .name.escape_debug())]
    Name {
        /// As given.
        name: String,
        /// What is wrong with it.
        why: BadName,
    },
    /// Not of the form of an identity.
    #[error("`{}` is no identity: one has the form spiffe://CLUSTER/ROLE/NAME", .0.escape_debug())]
    Form(String),
}

/// The name of a cluster: the trust domain of its identities. It stays the same when the store is restored from a backup.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterName(String);

impl ClusterName {
    /// A name for a cluster that was given none: `godel-` and 8 hexadecimal digits of `random`.
    pub fn generate(random: u32) -> Self {
        Self(format!("godel-{random:08x}"))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ClusterName {
    type Err = BadIdentity;

    /// Lower-case letters, digits and `-`, at most [`CLUSTER_LEN_MAX`] of them.
    ///
    /// # Errors
    /// [`BadIdentity::Cluster`].
    fn from_str(text: &str) -> Result<Self, BadIdentity> {
        let is_sound = names::name(text, CLUSTER_LEN_MAX).is_ok() && !text.contains('.');
        if is_sound { Ok(Self(text.to_owned())) } else { Err(BadIdentity::Cluster(shortened(text))) }
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a process is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Stores every record and answers for the others.
    State,
    /// Queues units and assigns them to schedulers.
    Dispatcher,
    /// Turns decisions into placements.
    Binder,
    /// Decides where units go.
    Scheduler,
    /// Moves running units.
    Rescheduler,
    /// Speaks with clients of YARN.
    Yarn,
    /// Hosts nodes. It calls others and is never a server.
    Agent,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 7] = [
        Self::State,
        Self::Dispatcher,
        Self::Binder,
        Self::Scheduler,
        Self::Rescheduler,
        Self::Yarn,
        Self::Agent,
    ];

    /// The word for it, as in an identity.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Dispatcher => "dispatcher",
            Self::Binder => "binder",
            Self::Scheduler => "scheduler",
            Self::Rescheduler => "rescheduler",
            Self::Yarn => "yarn",
            Self::Agent => "agent",
        }
    }

    /// Whether a leaf of this role may be a server's: every one but an agent's.
    pub fn is_server(self) -> bool {
        self != Self::Agent
    }
}

impl FromStr for Role {
    type Err = BadIdentity;

    /// # Errors
    /// [`BadIdentity::Role`].
    fn from_str(text: &str) -> Result<Self, BadIdentity> {
        let role = Self::ALL.into_iter().find(|role| role.as_str() == text);
        role.ok_or_else(|| BadIdentity::Role(shortened(text)))
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The nodes that an agent speaks for. As text it is the name of the node, or what the names begin with and `*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AgentNames {
    /// One node, by its name.
    One(String),
    /// Every node whose name begins so; empty for all nodes.
    Prefixed(String),
}

impl AgentNames {
    /// The narrowest ones that cover all of `nodes`: the name of the one node, or what all names begin with. `None`: there are no nodes.
    pub fn covering<'a>(nodes: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let mut nodes = nodes.into_iter();
        let first = nodes.next()?;
        let mut n_common = None;
        for node in nodes {
            let (n_before, common) = (n_common.unwrap_or(first.len()), first.bytes().zip(node.bytes()));
            n_common = Some(common.take_while(|(one, other)| one == other).count().min(n_before));
        }
        let Some(n_common) = n_common else { return Some(Self::One(first.to_owned())) };
        // Names are ASCII: every place is between two characters.
        let prefix = first.get(..n_common).unwrap_or_default();
        let is_fit = names::name(&format!("{prefix}0"), NAME_LEN_MAX).is_ok();
        Some(Self::Prefixed(if is_fit { prefix.to_owned() } else { String::new() }))
    }

    /// Whether it speaks for the node of that name.
    pub fn covers(&self, node: &str) -> bool {
        match self {
            Self::One(name) => name == node,
            Self::Prefixed(prefix) => node.starts_with(prefix.as_str()),
        }
    }

    /// Whether it speaks for every node that `others` speak for.
    pub fn covers_all(&self, others: &Self) -> bool {
        match others {
            Self::One(name) => self.covers(name),
            Self::Prefixed(prefix) => matches!(self, Self::Prefixed(own) if prefix.starts_with(own.as_str())),
        }
    }

    /// Whether both may speak for one node.
    pub fn overlaps(&self, others: &Self) -> bool {
        self.covers_all(others) || others.covers_all(self)
    }
}

impl FromStr for AgentNames {
    type Err = BadIdentity;

    /// A name as nodes have it, or the beginning of one and `*`.
    ///
    /// # Errors
    /// [`BadIdentity::Name`].
    fn from_str(text: &str) -> Result<Self, BadIdentity> {
        let bad = |why| BadIdentity::Name { name: shortened(text), why };
        let Some(prefix) = text.strip_suffix('*') else {
            return names::name(text, NAME_LEN_MAX).map_err(bad).map(|()| Self::One(text.to_owned()));
        };
        // A prefix may end where a name may not: it is sound if a name that goes on is.
        names::name(&format!("{prefix}0"), NAME_LEN_MAX).map_err(bad)?;
        Ok(Self::Prefixed(prefix.to_owned()))
    }
}

impl fmt::Display for AgentNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(name) => f.write_str(name),
            Self::Prefixed(prefix) => write!(f, "{prefix}*"),
        }
    }
}

/// The name of a process, as its leaf carries it: `spiffe://<cluster>/<role>/<name>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    cluster: ClusterName,
    role: Role,
    name: String,
}

impl Identity {
    /// An identity. An agent's name is one of [`AgentNames`], another's a name of at most 63 characters.
    ///
    /// # Errors
    /// [`BadIdentity::Name`].
    pub fn new(cluster: ClusterName, role: Role, name: &str) -> Result<Self, BadIdentity> {
        if role == Role::Agent {
            name.parse::<AgentNames>()?;
        } else {
            let bad = |why| BadIdentity::Name { name: shortened(name), why };
            names::name(name, NAMESPACE_LEN_MAX).map_err(bad)?;
        }
        Ok(Self { cluster, role, name: name.to_owned() })
    }

    /// The trust domain.
    pub fn cluster(&self) -> &ClusterName {
        &self.cluster
    }

    /// What the process is for.
    pub fn role(&self) -> Role {
        self.role
    }

    /// What the process is called; of an agent [`AgentNames`] as text.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The nodes that it speaks for; `None` unless it is an agent's.
    pub fn agent_names(&self) -> Option<AgentNames> {
        (self.role == Role::Agent).then(|| self.name.parse().ok()).flatten()
    }

    /// The key of its record: `<role>/<name>`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.role, self.name)
    }
}

impl FromStr for Identity {
    type Err = BadIdentity;

    /// Reads the URI of an identity, in the one form in which it is written.
    ///
    /// # Errors
    /// What is wrong with it.
    fn from_str(uri: &str) -> Result<Self, BadIdentity> {
        let form = || BadIdentity::Form(shortened(uri));
        let rest = uri.strip_prefix(SCHEME).filter(|_| uri.len() <= URI_LEN_MAX).ok_or_else(form)?;
        let (cluster, rest) = rest.split_once('/').ok_or_else(form)?;
        let (role, name) = rest.split_once('/').ok_or_else(form)?;
        Self::new(cluster.parse()?, role.parse()?, name)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}/{}", self.cluster, self.role, self.name)
    }
}

/// The beginning of what somebody sent, for an error.
fn shortened(text: &str) -> String {
    const SHOWN_MAX: usize = 80;
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
