//! The leaf of an agent during a session, which outlives a leaf.
//!
//! A session stays on one connection, which shows the leaf that was valid when the connection was opened. If a later leaf was issued for the same
//! name, the agent has renewed its own: the record of the identity tells.

use crate::{
    leaves::{LeafStanding, LeafTimes, judge_leaf},
    records::IdentityRecord,
};

/// The last known leaf of the agent of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionLeaf {
    key: String,
    times: LeafTimes,
}

impl SessionLeaf {
    /// The leaf with which a session began: `key` is `<role>/<name>` of its holder.
    pub fn new(key: String, times: LeafTimes) -> Self {
        Self { key, times }
    }

    /// Whether the holder has only expired leaves at `now_ms`, Unix milliseconds. `find` returns the record of a name, and is called only if the last
    /// known leaf is not valid. A holder whose leaves are refused has not expired: its connection is closed instead.
    pub fn has_expired<'a>(
        &mut self,
        now_ms: u64,
        find: impl FnOnce(&str) -> Option<&'a IdentityRecord>,
    ) -> bool {
        if judge_leaf(self.times, None, now_ms) == LeafStanding::Valid {
            return false;
        }
        // A store that was restored from a backup may not know the name.
        let Some(record) = find(&self.key) else { return true };
        match record.standing(now_ms) {
            LeafStanding::Valid => {
                self.times = record.last_leaf();
                false
            }
            LeafStanding::Expired => true,
            LeafStanding::Refused(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{ClusterName, Identity, Role};

    const HOUR: u64 = 3_600_000;
    const LIFETIME: u64 = 24 * HOUR;
    const ISSUED: u64 = 1_000 * LIFETIME;

    fn record(issued_ms: u64) -> IdentityRecord {
        let identity = Identity::new(ClusterName::generate(1), Role::Agent, "n1").unwrap();
        let ends_ms = issued_ms + LIFETIME;
        IdentityRecord { issued_ms, ends_ms, ..IdentityRecord::new(&identity, "", issued_ms) }
    }

    fn leaf() -> SessionLeaf {
        SessionLeaf::new("agent/n1".to_owned(), LeafTimes::of_issue(ISSUED, LIFETIME))
    }

    #[test]
    fn agent_has_expired_until_a_leaf_of_its_name_is_issued() {
        let first = record(ISSUED);
        let later = record(ISSUED + 30 * HOUR);
        let mut leaf = leaf();
        assert!(!leaf.has_expired(ISSUED + 23 * HOUR, |_| panic!("the own leaf is valid")));
        assert!(leaf.has_expired(ISSUED + LIFETIME, |_| Some(&first)));
        assert!(!leaf.has_expired(ISSUED + 31 * HOUR, |key| (key == "agent/n1").then_some(&later)));
        // From then on the later leaf counts.
        assert!(!leaf.has_expired(ISSUED + 53 * HOUR, |_| panic!("its last leaf is valid")));
        assert!(leaf.has_expired(ISSUED + 54 * HOUR, |_| Some(&later)));
    }

    #[test]
    fn unknown_name_has_expired_and_refused_leaf_has_not() {
        assert!(leaf().has_expired(ISSUED + LIFETIME, |_| None));
        let revoked = IdentityRecord { is_revoked: true, ..record(ISSUED) };
        assert!(!leaf().has_expired(ISSUED + LIFETIME, |_| Some(&revoked)));
        // Issued while the clock was ahead.
        let ahead = record(ISSUED);
        assert!(leaf().has_expired(ISSUED - 49 * HOUR, |_| Some(&ahead)));
    }
}
