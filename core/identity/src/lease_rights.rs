//! Who may acquire which lease.

use std::fmt;

use crate::{caller::Caller, names::Role};

/// A lease is not for whoever asks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("lease {lease} is for {}; {caller} asked", .candidate.as_ref().map_or("nobody".to_owned(), ToString::to_string))]
pub struct NotItsLease {
    /// Which lease.
    pub lease: String,
    /// Who may have it; `None`: nobody.
    pub candidate: Option<LeaseCandidate>,
    /// Who asked.
    pub caller: Caller,
}

/// Who may have a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseCandidate {
    /// Every service of a role: the leases of those of which one leads.
    Any(Role),
    /// The scheduler of that name. Schedulers do not replace each other.
    Scheduler(String),
}

/// As in an error: `a certificate of role binder`, `scheduler/s1`.
impl fmt::Display for LeaseCandidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any(role) => write!(f, "a certificate of role {role}"),
            Self::Scheduler(name) => write!(f, "{}/{name}", Role::Scheduler),
        }
    }
}

/// Who may have a lease, by its name: `dispatcher`, `scheduler/<name>`, `member/<role>/<name>`. `None`: nobody.
pub fn candidate_for(lease: &str) -> Option<LeaseCandidate> {
    let mut parts = lease.split('/');
    let (role, name) = match (parts.next()?, parts.next(), parts.next(), parts.next()) {
        (role @ ("dispatcher" | "binder" | "yarn" | "rescheduler"), None, None, None) => (role, ""),
        (role @ "scheduler", Some(name), None, None) | ("member", Some(role), Some(name), None) => {
            (role, name)
        }
        _ => return None,
    };
    match role.parse().ok()? {
        Role::Agent => None,
        Role::Scheduler => Some(LeaseCandidate::Scheduler(name.to_owned())),
        role => Some(LeaseCandidate::Any(role)),
    }
}

/// The role that a lease is for; `None`: nobody's.
pub fn role_of_lease(lease: &str) -> Option<Role> {
    candidate_for(lease).map(|candidate| match candidate {
        LeaseCandidate::Any(role) => role,
        LeaseCandidate::Scheduler(_) => Role::Scheduler,
    })
}

/// Whether `caller` may acquire, renew and release the lease of that name.
///
/// # Errors
/// It is for others, or for nobody.
pub fn judge_lease(lease: &str, caller: &Caller) -> Result<(), NotItsLease> {
    let candidate = candidate_for(lease);
    let may_have = match &candidate {
        None => false,
        Some(LeaseCandidate::Any(role)) => caller.role() == Some(*role),
        Some(LeaseCandidate::Scheduler(name)) => caller.speaks_as(Role::Scheduler, name),
    };
    if may_have || *caller == Caller::Unjudged {
        return Ok(());
    }
    Err(NotItsLease { lease: lease.to_owned(), candidate, caller: caller.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_for_the_role_or_scheduler_of_its_name() {
        let any = |role| Some(LeaseCandidate::Any(role));
        let s1 = || Some(LeaseCandidate::Scheduler("s1".to_owned()));
        for (lease, candidate) in [
            ("dispatcher", any(Role::Dispatcher)),
            ("binder", any(Role::Binder)),
            ("yarn", any(Role::Yarn)),
            ("rescheduler", any(Role::Rescheduler)),
            ("scheduler/s1", s1()),
            ("member/state/main", any(Role::State)),
            ("member/binder/b1", any(Role::Binder)),
            ("member/scheduler/s1", s1()),
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
            assert_eq!(candidate_for(lease), candidate, "{lease}");
            assert_eq!(role_of_lease(lease).is_some(), candidate.is_some(), "{lease}");
        }
    }

    #[test]
    fn others_are_refused_with_words() {
        let scheduler = Caller::Member { role: Role::Scheduler, name: "s1".to_owned() };
        for own in ["scheduler/s1", "member/scheduler/s1"] {
            assert_eq!(judge_lease(own, &scheduler), Ok(()));
        }
        for other in ["scheduler/s2", "member/scheduler/s2"] {
            let refusal = judge_lease(other, &scheduler).unwrap_err().to_string();
            assert_eq!(refusal, format!("lease {other} is for scheduler/s2; scheduler/s1 asked"));
        }
        // Any of those that stand by may lead.
        let binder = Caller::Member { role: Role::Binder, name: "b2".to_owned() };
        assert_eq!(judge_lease("binder", &binder), Ok(()));
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
