//! Which role may acquire which lease.

use crate::{caller::Caller, names::Role};

/// A lease is not for whoever asks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("lease {lease} is for {}; {caller} asked", needed(*.role))]
pub struct NotItsLease {
    /// Which lease.
    pub lease: String,
    /// The role that may have it; `None`: nobody.
    pub role: Option<Role>,
    /// Who asked.
    pub caller: Caller,
}

fn needed(role: Option<Role>) -> String {
    role.map_or_else(|| "nobody".to_owned(), |role| format!("a certificate of role {role}"))
}

/// The role that a lease is for, by its name: `dispatcher`, `scheduler/<name>`, `member/<role>/<name>`. `None`: nobody's.
pub fn role_of_lease(lease: &str) -> Option<Role> {
    let mut parts = lease.split('/');
    let role = match (parts.next()?, parts.next(), parts.next(), parts.next()) {
        (role @ ("dispatcher" | "binder" | "yarn" | "rescheduler"), None, None, None)
        | (role @ "scheduler", Some(_), None, None)
        | ("member", Some(role), Some(_), None) => role,
        _ => return None,
    };
    role.parse().ok().filter(|role| *role != Role::Agent)
}

/// Whether `caller` may acquire, renew and release the lease of that name.
///
/// # Errors
/// It is for another role, or for nobody.
pub fn judge_lease(lease: &str, caller: &Caller) -> Result<(), NotItsLease> {
    let role = role_of_lease(lease);
    if *caller == Caller::Unjudged || (role.is_some() && caller.role() == role) {
        return Ok(());
    }
    Err(NotItsLease { lease: lease.to_owned(), role, caller: caller.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_for_the_role_of_its_name() {
        for (lease, role) in [
            ("dispatcher", Some(Role::Dispatcher)),
            ("binder", Some(Role::Binder)),
            ("yarn", Some(Role::Yarn)),
            ("rescheduler", Some(Role::Rescheduler)),
            ("scheduler/s1", Some(Role::Scheduler)),
            ("member/state/main", Some(Role::State)),
            ("member/scheduler/s1", Some(Role::Scheduler)),
            ("member/agent/n1", None),
            ("member/king/x", None),
            ("member/state", None),
            ("member/state/a/b", None),
            ("scheduler", None),
            ("scheduler/a/b", None),
            ("dispatcher/x", None),
            ("state", None),
            ("agent", None),
            ("", None),
        ] {
            assert_eq!(role_of_lease(lease), role, "{lease}");
        }
    }

    #[test]
    fn another_role_is_refused_with_words() {
        let scheduler = Caller::Member { role: Role::Scheduler, name: "s1".to_owned() };
        assert_eq!(judge_lease("scheduler/s2", &scheduler), Ok(()));
        let refusal = judge_lease("binder", &scheduler).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "lease binder is for a certificate of role binder; scheduler/s1 asked"
        );
        let agent = Caller::Agent { names: "scheduler".parse().unwrap() };
        for caller in [Caller::admin(), Caller::Anonymous, agent] {
            assert!(judge_lease("scheduler/s1", &caller).is_err());
            assert!(judge_lease("member/agent/n1", &caller).is_err());
            assert!(judge_lease("nobody", &caller).is_err());
        }
        assert_eq!(judge_lease("binder", &Caller::Unjudged), Ok(()));
    }
}
