//! Whose units an agent runs that is not root.
//!
//! Such an agent starts every program as the user that it runs as itself. Whoever submits the unit can read all that this user can: so only
//! the principal that started the agent may.

/// The administrator of the cluster, whose units are also those that name no principal: plain text, which is not judged, may do everything, so
/// that whoever called so could have written any principal.
pub const ADMINISTRATOR: &str = "person/admin";

/// A unit is of another principal than the one whose units an agent runs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the agent of this node does not run as root and runs units of `{agent}` only, and this one is of `{unit}`: submit it as `{agent}`, run the agent as \
     root with `agent.users`, or set its `agent.principal`"
)]
pub struct PrincipalRefusal {
    /// Whose the unit is.
    pub unit: String,
    /// Whose units the agent runs.
    pub agent: String,
}

/// Judges whether an agent that runs units of the principal `agent` alone may run one of the principal `unit`. `agent` may end with `*`, which
/// stands for whatever follows.
///
/// # Errors
/// The unit is of another one.
pub fn judge_principal(unit: &str, agent: &str) -> Result<(), PrincipalRefusal> {
    let unit = if unit.is_empty() { ADMINISTRATOR } else { unit };
    let is_own = match agent.strip_suffix('*') {
        Some(begin) => unit.starts_with(begin),
        None => unit == agent,
    };
    match is_own {
        true => Ok(()),
        false => Err(PrincipalRefusal { unit: unit.to_owned(), agent: agent.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_without_root_runs_units_of_its_principal_alone() {
        for (unit, agent, may) in [
            ("person/admin", "person/admin", true),
            ("", "person/admin", true),
            ("person/ann", "person/admin", false),
            ("person/admin2", "person/admin", false),
            ("yarn/y1", "person/admin", false),
            ("", "person/ann", false),
            ("", "yarn/*", false),
            ("yarn/y1", "yarn/*", true),
            ("yarn/y1", "yarn/y2", false),
            ("person/yarn", "yarn/*", false),
        ] {
            assert_eq!(judge_principal(unit, agent).is_ok(), may, "{unit} on {agent}");
        }
        let refusal = judge_principal("yarn/y1", "person/admin").unwrap_err().to_string();
        assert!(
            refusal.contains("runs units of `person/admin` only, and this one is of `yarn/y1`"),
            "{refusal}"
        );
    }
}
