//! Whom a call is judged by.
//!
//! State passes calls on to the member that answers them, and says in a header on whose behalf: that header counts from state alone.

use std::{fmt, str::FromStr};

use godel_domain::names::{self, NAME_LEN_MAX};

use crate::names::{AgentNames, BadIdentity, Identity, Role};

/// The owner of state's socket, who is there without a record.
pub const ADMIN: &str = "admin";
/// The header in which state says on whose behalf it passes a call on: [`Caller`] as text.
pub const CALLER_HEADER: &str = "godel-caller";
/// The header beside it in which state says what a person may do: [`crate::permission::PrincipalTerms`].
pub const PRINCIPAL_HEADER: &str = "godel-principal";

/// The header beside them in which state says where the call came from: an address, or [`SOCKET`].
pub const ADDRESS_HEADER: &str = "godel-address";
/// Where calls over state's unix socket come from.
pub const SOCKET: &str = "socket";

/// Whom a call is judged by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// A service, by its leaf.
    Member {
        /// What it is for; never [`Role::Agent`].
        role: Role,
        /// What it is called.
        name: String,
    },
    /// An agent, by its leaf.
    Agent {
        /// The nodes that it speaks for.
        names: AgentNames,
    },
    /// A person, by a token or by the unix socket.
    Person {
        /// What the person is called.
        name: String,
    },
    /// Who calls in plain text where the configuration lets that do everything (`--insecure`, `--tls migrate`). It may do what any
    /// other may, and counts as the person [`ADMIN`].
    Unjudged,
    /// Nobody known: TLS with neither a certificate nor a token.
    Anonymous,
}

impl Caller {
    /// The administrator.
    pub fn admin() -> Self {
        Self::Person { name: ADMIN.to_owned() }
    }

    /// Who has a leaf of that identity.
    pub fn of_identity(identity: &Identity) -> Self {
        match identity.agent_names() {
            Some(names) => Self::Agent { names },
            None => Self::Member { role: identity.role(), name: identity.name().to_owned() },
        }
    }

    /// The role of its leaf; `None` without one.
    pub fn role(&self) -> Option<Role> {
        match self {
            Self::Member { role, .. } => Some(*role),
            Self::Agent { .. } => Some(Role::Agent),
            Self::Person { .. } | Self::Unjudged | Self::Anonymous => None,
        }
    }

    /// The person who calls; `None` when a process does, or nobody known.
    pub fn person(&self) -> Option<&str> {
        match self {
            Self::Person { name } => Some(name),
            Self::Unjudged => Some(ADMIN),
            Self::Member { .. } | Self::Agent { .. } | Self::Anonymous => None,
        }
    }

    /// Who is written into a unit as its principal: as [`Display`](fmt::Display) shows it, and empty where nobody was judged or nobody is known.
    pub fn principal(&self) -> String {
        match self {
            Self::Member { .. } | Self::Agent { .. } | Self::Person { .. } => self.to_string(),
            Self::Unjudged | Self::Anonymous => String::new(),
        }
    }

    /// Whether it may speak as the service of that role and name.
    pub fn speaks_as(&self, role: Role, name: &str) -> bool {
        match self {
            Self::Member { role: own, name: called } => *own == role && called == name,
            Self::Unjudged => true,
            Self::Agent { .. } | Self::Person { .. } | Self::Anonymous => false,
        }
    }

    /// That it may speak as the service of that role and name.
    ///
    /// # Errors
    /// It is somebody else.
    pub fn check_speaks_as(&self, role: Role, name: &str) -> Result<(), SpeaksAsOther> {
        if self.speaks_as(role, name) {
            return Ok(());
        }
        Err(SpeaksAsOther { caller: self.clone(), role, name: name.to_owned() })
    }

    /// Whether it may speak as the agent of the node of that name.
    pub fn speaks_for(&self, node: &str) -> bool {
        match self {
            Self::Agent { names } => names.covers(node),
            Self::Unjudged => true,
            Self::Member { .. } | Self::Person { .. } | Self::Anonymous => false,
        }
    }
}

/// As in logs and in the header [`CALLER_HEADER`]: `<role>/<name>`, `person/<name>`, `unjudged` or `anonymous`.
impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Member { role, name } => write!(f, "{role}/{name}"),
            Self::Agent { names } => write!(f, "agent/{names}"),
            Self::Person { name } => write!(f, "person/{name}"),
            Self::Unjudged => f.write_str("unjudged"),
            Self::Anonymous => f.write_str("anonymous"),
        }
    }
}

impl FromStr for Caller {
    type Err = BadIdentity;

    /// Reads what `Display` writes.
    ///
    /// # Errors
    /// What is wrong with it.
    fn from_str(text: &str) -> Result<Self, BadIdentity> {
        match text.split_once('/') {
            None if text == "unjudged" => Ok(Self::Unjudged),
            None if text == "anonymous" => Ok(Self::Anonymous),
            None => Err(BadIdentity::Role(text.chars().take(80).collect())),
            Some(("person", name)) => {
                let bad = |why| BadIdentity::Name { name: name.chars().take(80).collect(), why };
                names::name(name, NAME_LEN_MAX).map_err(bad)?;
                Ok(Self::Person { name: name.to_owned() })
            }
            Some(("agent", names)) => Ok(Self::Agent { names: names.parse()? }),
            Some((role, name)) => {
                // Any cluster: the name is checked as that of an identity is.
                let identity = Identity::new(crate::names::ClusterName::generate(0), role.parse()?, name)?;
                Ok(Self::of_identity(&identity))
            }
        }
    }
}

/// A service calls itself by the name of another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{caller} may not speak as {role}/{name}; it is to call itself by the name in its certificate")]
pub struct SpeaksAsOther {
    /// Who calls.
    pub caller: Caller,
    /// The role that it says.
    pub role: Role,
    /// The name that it says.
    pub name: String,
}

/// A header speaks for somebody else, and may not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    /// Not sent by state.
    #[error("{caller} may not call on behalf of others; leave out the header `{CALLER_HEADER}`")]
    NotState {
        /// Who sent it.
        caller: Caller,
    },
    /// Not a caller.
    #[error("the header `{CALLER_HEADER}` names no caller")]
    Unreadable(#[source] BadIdentity),
}

/// Whom a call is judged by that `sender` sends, with what it says in the header [`CALLER_HEADER`], if it sends one. State alone may
/// say that it passes on the call of another one. In plain text that may do everything, the header is not read.
///
/// # Errors
/// A header of anyone else, and one that names no caller.
pub fn behind(sender: Caller, header: Option<&str>) -> Result<Caller, BadHeader> {
    match (sender, header) {
        (sender @ Caller::Unjudged, _) | (sender, None) => Ok(sender),
        (Caller::Member { role: Role::State, .. }, Some(text)) => text.parse().map_err(BadHeader::Unreadable),
        (caller, Some(_)) => Err(BadHeader::NotState { caller }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(role: Role, name: &str) -> Caller {
        Caller::Member { role, name: name.to_owned() }
    }

    fn agent(names: &str) -> Caller {
        Caller::Agent { names: names.parse().unwrap() }
    }

    #[test]
    fn every_caller_is_read_as_it_is_written() {
        for (caller, text) in [
            (member(Role::State, "main"), "state/main"),
            (member(Role::Scheduler, "s1"), "scheduler/s1"),
            (agent("n1"), "agent/n1"),
            (agent("sim-*"), "agent/sim-*"),
            (Caller::admin(), "person/admin"),
            (Caller::Unjudged, "unjudged"),
            (Caller::Anonymous, "anonymous"),
        ] {
            assert_eq!(caller.to_string(), text);
            assert_eq!(text.parse(), Ok(caller));
        }
        for bad in
            ["", "admin", "person/", "person/A b", "state/", "state/a/b", "agent/", "king/a", "state/sim-*"]
        {
            assert!(bad.parse::<Caller>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_state_calls_on_behalf_of_others() {
        let state = member(Role::State, "main");
        assert_eq!(behind(state.clone(), Some("person/admin")), Ok(Caller::admin()));
        assert_eq!(behind(state.clone(), Some("anonymous")), Ok(Caller::Anonymous));
        assert_eq!(behind(state.clone(), None), Ok(state.clone()));
        assert!(matches!(behind(state, Some("root")), Err(BadHeader::Unreadable(_))));
        for caller in [member(Role::Scheduler, "s1"), agent("n1"), Caller::admin(), Caller::Anonymous] {
            let refusal = behind(caller.clone(), Some("person/admin"));
            assert_eq!(refusal, Err(BadHeader::NotState { caller: caller.clone() }));
            assert_eq!(behind(caller.clone(), None), Ok(caller));
        }
        assert_eq!(behind(Caller::Unjudged, Some("agent/n1")), Ok(Caller::Unjudged));
    }

    #[test]
    fn an_agent_speaks_for_its_own_nodes() {
        for (caller, node, speaks) in [
            (agent("n1"), "n1", true),
            (agent("n1"), "n10", false),
            (agent("sim-*"), "sim-3", true),
            (agent("sim-*"), "n1", false),
            (Caller::Unjudged, "n1", true),
            (Caller::admin(), "n1", false),
            (member(Role::State, "n1"), "n1", false),
            (Caller::Anonymous, "n1", false),
        ] {
            assert_eq!(caller.speaks_for(node), speaks, "{caller} for {node}");
        }
    }

    #[test]
    fn units_say_who_submitted_them_if_that_was_judged() {
        assert_eq!(Caller::admin().principal(), "person/admin");
        assert_eq!(member(Role::Yarn, "y1").principal(), "yarn/y1");
        assert_eq!(
            (Caller::Unjudged.principal(), Caller::Anonymous.principal()),
            (String::new(), String::new())
        );
    }

    #[test]
    fn a_service_speaks_as_itself() {
        for (caller, speaks) in [
            (member(Role::Scheduler, "s1"), true),
            (Caller::Unjudged, true),
            (member(Role::Scheduler, "s2"), false),
            (member(Role::Binder, "s1"), false),
            (agent("s1"), false),
            (Caller::admin(), false),
            (Caller::Anonymous, false),
        ] {
            assert_eq!(caller.speaks_as(Role::Scheduler, "s1"), speaks, "{caller}");
        }
        let refusal = member(Role::Scheduler, "s2").check_speaks_as(Role::Scheduler, "s1").unwrap_err();
        assert!(refusal.to_string().starts_with("scheduler/s2 may not speak as scheduler/s1; "), "{refusal}");
    }

    #[test]
    fn a_caller_is_a_person_or_has_a_role() {
        assert_eq!((Caller::admin().person(), Caller::admin().role()), (Some("admin"), None));
        assert_eq!((Caller::Unjudged.person(), Caller::Unjudged.role()), (Some("admin"), None));
        assert_eq!((agent("n1").person(), agent("n1").role()), (None, Some(Role::Agent)));
        let yarn = member(Role::Yarn, "y1");
        assert_eq!((yarn.person(), yarn.role()), (None, Some(Role::Yarn)));
        assert_eq!((Caller::Anonymous.person(), Caller::Anonymous.role()), (None, None));
    }
}
