//! Whether a caller may speak for what its call is about: a lease, the writer of a transaction, or a node.
//!
//! Who may call at all was judged before, by `godel_identity::needs`. Without TLS every caller is `Unjudged`, and may; a call of which nobody has
//! said who makes it is `Anonymous`, and may not.

use godel_identity::{caller::Caller, lease_rights::judge_lease};
use godel_kit::status::{reason, with_info};
use tonic::{Code, Status};

/// Whether a caller may acquire, renew or release a lease, and write under it: it is for the role that its name says.
///
/// # Errors
/// `PERMISSION_DENIED`.
pub(crate) fn check_lease(caller: &Caller, lease: &str) -> Result<(), Status> {
    judge_lease(lease, caller).map_err(|refusal| {
        with_info(Code::PermissionDenied, reason::FORBIDDEN, refusal.to_string(), [("lease", lease)])
    })
}

/// Whether a caller may speak for a node, if it is an agent: for its own ones. Others who may make the call may make it for every node.
///
/// # Errors
/// `PERMISSION_DENIED`.
pub(crate) fn check_node(caller: &Caller, node: &str) -> Result<(), Status> {
    match caller {
        Caller::Agent { names } if !names.covers(node) => {
            let message = format!(
                "{caller} does not speak for node {node}: join with a token for that name, or for a prefix of it"
            );
            Err(with_info(Code::PermissionDenied, reason::FORBIDDEN, message, [("node", node)]))
        }
        Caller::Anonymous => {
            let message = format!("nobody known speaks for node {node}: call with a certificate or a token");
            Err(with_info(Code::PermissionDenied, reason::FORBIDDEN, message, [("node", node)]))
        }
        Caller::Agent { .. } | Caller::Member { .. } | Caller::Person { .. } | Caller::Unjudged => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use godel_identity::names::Role;

    use super::*;

    #[test]
    fn leases_are_for_the_roles_of_their_names() {
        let binder = Caller::Member { role: Role::Binder, name: "b1".to_owned() };
        assert!(check_lease(&binder, "binder").is_ok() && check_lease(&binder, "member/binder/b1").is_ok());
        for (caller, lease) in [
            (&binder, "dispatcher"),
            (&binder, "scheduler/b1"),
            (&Caller::admin(), "binder"),
            (&Caller::Anonymous, "binder"),
        ] {
            assert_eq!(check_lease(caller, lease).unwrap_err().code(), Code::PermissionDenied);
        }
        assert!(check_lease(&Caller::Unjudged, "dispatcher").is_ok());
    }

    #[test]
    fn an_agent_speaks_for_its_own_nodes() {
        let agent = |names: &str| Caller::Agent { names: names.parse().unwrap() };
        assert!(check_node(&agent("n1"), "n1").is_ok() && check_node(&agent("sim-*"), "sim-7").is_ok());
        let refused = check_node(&agent("sim-*"), "n1").unwrap_err();
        assert!(
            refused.code() == Code::PermissionDenied && refused.message().contains("join with"),
            "{refused}"
        );
        for caller in [Caller::Unjudged, Caller::admin()] {
            assert!(check_node(&caller, "n1").is_ok());
        }
        assert_eq!(check_node(&Caller::Anonymous, "n1").unwrap_err().code(), Code::PermissionDenied);
    }
}
