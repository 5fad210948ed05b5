//! Who gets an identity for a join token, and under which name.

use std::{fmt, str::FromStr};

use crate::names::{AgentNames, BadIdentity, Identity, Role};

/// Longest that a join token may be good for, milliseconds.
pub const TOKEN_TTL_MS_MAX: u64 = 30 * 24 * 3_600_000;
/// Most identities that one join token may be good for.
pub const TOKEN_USES_MAX: u32 = 100_000;

/// The names that a join token is good for. As text it is empty, a name, or what the names begin with and `*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum JoinNames {
    /// Any one name at a time. An agent for a prefix of names needs a token that says the prefix.
    #[default]
    AnyOne,
    /// These, and what is within them.
    Within(AgentNames),
}

impl JoinNames {
    /// Whether an identity may be called `name`, which is a name, or of an agent [`AgentNames`].
    fn admit_name(&self, name: &str) -> bool {
        match (self, name.parse::<AgentNames>()) {
            (_, Err(_)) => false,
            (Self::AnyOne, Ok(names)) => matches!(names, AgentNames::One(_)),
            (Self::Within(within), Ok(names)) => within.covers_all(&names),
        }
    }
}

impl FromStr for JoinNames {
    type Err = BadIdentity;

    /// # Errors
    /// [`BadIdentity::Name`].
    fn from_str(text: &str) -> Result<Self, BadIdentity> {
        if text.is_empty() { Ok(Self::AnyOne) } else { text.parse().map(Self::Within) }
    }
}

impl fmt::Display for JoinNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AnyOne => Ok(()),
            Self::Within(names) => names.fmt(f),
        }
    }
}

/// What is recorded of a join token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinTerms {
    /// The role that it is good for.
    pub role: Role,
    /// The names that it is good for.
    pub names: JoinNames,
    /// Until when, milliseconds since 1970.
    pub expires_ms: u64,
    /// How many more identities it is good for.
    pub uses_left: u32,
}

/// Why nobody joins.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinRefusal {
    /// Its time is over.
    #[error("the join token has expired; ask an administrator for a new one")]
    Expired,
    /// It was used as often as it may be.
    #[error("the join token is used up; ask an administrator for a new one")]
    UsedUp,
    /// For another role.
    #[error(
        "the join token is for role {allowed}, not for {asked}; ask an administrator for one for {asked}"
    )]
    OtherRole {
        /// What it is for.
        allowed: Role,
        /// What was asked for.
        asked: Role,
    },
    /// For other names.
    #[error(
        "the join token is not good for the name {asked}: it is for {}; join with such a name, or ask an administrator for a token for this one \
         (`{}`)",
        shown(.allowed), join_token_command(*.role, .asked)
    )]
    OtherName {
        /// What it is for.
        allowed: JoinNames,
        /// The role that was asked for.
        role: Role,
        /// The name that was asked for.
        asked: String,
    },
    /// Another process has the name, or one that covers it.
    #[error(
        "{taken} has an identity already, and {asked} would speak for the same; choose another name, or have an administrator allow the \
         name to be issued anew, which ends the identity that has it"
    )]
    NameTaken {
        /// What was asked for.
        asked: String,
        /// The key of the identity that has it.
        taken: String,
    },
}

fn shown(names: &JoinNames) -> String {
    match names {
        JoinNames::AnyOne => "any single name".to_owned(),
        JoinNames::Within(names) => names.to_string(),
    }
}

/// The command that makes a join token for a role and these names, as [`JoinNames`] has them as text.
pub fn join_token_command(role: Role, names: &str) -> String {
    let command = match role {
        Role::Agent => "godel node join-token".to_owned(),
        Role::State | Role::Dispatcher | Role::Binder | Role::Scheduler | Role::Rescheduler | Role::Yarn => {
            format!("godel join-token --role {role}")
        }
    };
    if names.is_empty() { command } else { format!("{command} --names '{names}'") }
}

/// Whether a join token gives `asked` an identity at `now_ms`. Whether the secret is right was compared before.
///
/// # Errors
/// Why not. The role comes last of what the token says of itself: who holds an expired one learns nothing else.
pub fn judge_join(terms: &JoinTerms, asked: &Identity, now_ms: u64) -> Result<(), JoinRefusal> {
    if now_ms >= terms.expires_ms {
        return Err(JoinRefusal::Expired);
    }
    if terms.uses_left == 0 {
        return Err(JoinRefusal::UsedUp);
    }
    if terms.role != asked.role() {
        return Err(JoinRefusal::OtherRole { allowed: terms.role, asked: asked.role() });
    }
    if !terms.names.admit_name(asked.name()) {
        return Err(JoinRefusal::OtherName {
            allowed: terms.names.clone(),
            role: asked.role(),
            asked: asked.name().to_owned(),
        });
    }
    Ok(())
}

/// Whether the name of `asked` is free of all `taken`, identities in use. An agent's name is taken too where one covers a node of the other.
///
/// # Errors
/// [`JoinRefusal::NameTaken`] with the first one that has it.
pub fn check_name_free<'a>(
    asked: &Identity,
    taken: impl IntoIterator<Item = &'a Identity>,
) -> Result<(), JoinRefusal> {
    let names = asked.agent_names();
    let is_same = |other: &Identity| match (&names, other.agent_names()) {
        (Some(own), Some(others)) => own.overlaps(&others),
        (None, None) => asked.role() == other.role() && asked.name() == other.name(),
        (Some(_), None) | (None, Some(_)) => false,
    };
    match taken.into_iter().find(|other| is_same(other)) {
        None => Ok(()),
        Some(other) => Err(JoinRefusal::NameTaken { asked: asked.key(), taken: other.key() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(key: &str) -> Identity {
        format!("spiffe://c/{key}").parse().unwrap()
    }

    fn terms(role: Role, names: &str) -> JoinTerms {
        JoinTerms { role, names: names.parse().unwrap(), expires_ms: 1_000, uses_left: 1 }
    }

    #[test]
    fn a_token_is_good_for_its_role_and_names() {
        for (role, names, key, is_good) in [
            (Role::Agent, "", "agent/n1", true),
            (Role::Agent, "", "agent/sim-*", false),
            (Role::Agent, "", "agent/*", false),
            (Role::Agent, "sim-*", "agent/sim-*", true),
            (Role::Agent, "sim-*", "agent/sim-1-*", true),
            (Role::Agent, "sim-*", "agent/sim-1", true),
            (Role::Agent, "sim-*", "agent/*", false),
            (Role::Agent, "sim-*", "agent/n1", false),
            (Role::Agent, "n1", "agent/n1", true),
            (Role::Agent, "n1", "agent/n2", false),
            (Role::Agent, "n1", "agent/n1*", false),
            (Role::Agent, "*", "agent/*", true),
            (Role::Agent, "", "scheduler/n1", false),
            (Role::Scheduler, "", "scheduler/s1", true),
            (Role::Scheduler, "s*", "scheduler/s1", true),
            (Role::Scheduler, "s*", "scheduler/t1", false),
            (Role::Scheduler, "", "agent/s1", false),
        ] {
            let answer = judge_join(&terms(role, names), &identity(key), 999);
            assert_eq!(answer.is_ok(), is_good, "{role} `{names}` for {key}: {answer:?}");
        }
    }

    #[test]
    fn an_expired_or_used_token_is_refused() {
        let asked = identity("agent/n1");
        assert_eq!(judge_join(&terms(Role::Agent, ""), &asked, 1_000), Err(JoinRefusal::Expired));
        let used = JoinTerms { uses_left: 0, ..terms(Role::Agent, "") };
        assert_eq!(judge_join(&used, &asked, 0), Err(JoinRefusal::UsedUp));
        let refusal = judge_join(&terms(Role::Scheduler, ""), &asked, 0).unwrap_err().to_string();
        assert!(refusal.starts_with("the join token is for role scheduler, not for agent; "), "{refusal}");
        let refusal =
            judge_join(&terms(Role::Agent, ""), &identity("agent/sim-*"), 0).unwrap_err().to_string();
        assert!(refusal.contains("not good for the name sim-*: it is for any single name; "), "{refusal}");
        assert!(refusal.contains("(`godel node join-token --names 'sim-*'`)"), "{refusal}");
        let refusal = judge_join(&terms(Role::Scheduler, "t*"), &identity("scheduler/s1"), 0).unwrap_err();
        let says = refusal.to_string();
        assert!(says.contains("it is for t*; ") && says.contains("--role scheduler --names 's1'"), "{says}");
    }

    #[test]
    fn a_name_in_use_is_refused() {
        for (asked, taken, is_free) in [
            ("agent/n1", "agent/n1", false),
            ("agent/n1", "agent/n2", true),
            ("agent/n1", "agent/n*", false),
            ("agent/n*", "agent/n1", false),
            ("agent/n*", "agent/*", false),
            ("agent/n*", "agent/m*", true),
            ("scheduler/s1", "scheduler/s1", false),
            ("scheduler/s1", "agent/s1", true),
            ("scheduler/s1", "binder/s1", true),
            ("agent/s1", "scheduler/s1", true),
        ] {
            let answer = check_name_free(&identity(asked), [&identity("state/main"), &identity(taken)]);
            assert_eq!(answer.is_ok(), is_free, "{asked} beside {taken}");
        }
        let refusal =
            check_name_free(&identity("agent/n*"), [&identity("agent/n1")]).unwrap_err().to_string();
        assert!(refusal.starts_with("agent/n1 has an identity already, and agent/n* would "), "{refusal}");
    }

    #[test]
    fn names_of_a_token_are_read_as_they_are_written() {
        for text in ["", "n1", "sim-*", "*"] {
            assert_eq!(text.parse::<JoinNames>().unwrap().to_string(), text);
        }
        assert!("A".parse::<JoinNames>().is_err());
    }
}
