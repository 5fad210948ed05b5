//! Who speaks for a node when several agents claim it.
//!
//! A node is an installation: its uid is made once and kept on its disk. A name belongs to the installation that has it until the lease of
//! its session is over. An installation has one agent, which is another *instance* after each start. A new instance takes over at once: it
//! is the same agent, restarted. An instance that was taken over from does not come back by itself, because its process has ended;
//! if it does come back while the other one lives, two agents share one identity, as two machines with copies of one disk do. The newer one
//! keeps the node, so that they do not take turns.

use std::collections::VecDeque;

/// Instances of one node that are remembered. More agents than that with one identity take turns.
const N_DISPLACED_MAX: usize = 8;
/// A conflict is told again while it lasts, but not more often than this, milliseconds.
const TELL_EVERY_MS: i64 = 60_000;
/// A conflict is over so long after the last attempt, milliseconds.
pub const CONFLICT_KEPT_MS: i64 = 3_600_000;

/// The starts of the agent of one node, of late. An instance of 0 is an agent that gives none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInstances {
    current: u64,
    displaced: VecDeque<u64>,
}

impl NodeInstances {
    /// Whether an instance may open a session, the lease of the node being in force or not.
    pub fn may_speak(&self, instance: u64, is_alive: bool) -> bool {
        instance == 0 || !is_alive || !self.displaced.contains(&instance)
    }

    /// An instance has opened a session.
    pub fn open(&mut self, instance: u64) {
        if instance == self.current {
            return;
        }
        self.displaced.retain(|known| *known != instance);
        if self.current != 0 {
            if self.displaced.len() == N_DISPLACED_MAX {
                self.displaced.pop_front();
            }
            self.displaced.push_back(self.current);
        }
        self.current = instance;
    }
}

/// What an agent is that claims a node while another one speaks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RivalKind {
    /// Another installation with the name of the node.
    OtherInstallation,
    /// A second agent with the identity of the node, that another one has taken over from.
    SameInstallation,
}

/// An agent that was refused, because another one speaks for its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rival {
    /// What it is.
    pub kind: RivalKind,
    /// Where it called from; empty: not known.
    pub address: String,
    /// What it gave.
    pub uid: String,
}

/// Two agents claim one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConflict {
    /// The one that is refused, at its last attempt.
    pub rival: Rival,
    /// Its first attempt, Unix milliseconds.
    pub first_ms: i64,
    /// Its last attempt, Unix milliseconds.
    pub last_ms: i64,
    /// How many there were.
    pub n_attempts: u32,
    told_ms: i64,
}

impl NodeConflict {
    /// One more attempt at `wall_ms`, after those that are known. Returns the conflict as it is now, and whether it is to be told: when it
    /// begins, and once in a while as long as it lasts, however many agents there are.
    pub fn note(known: Option<Self>, rival: Rival, wall_ms: i64) -> (Self, bool) {
        let known = known.filter(|known| !known.is_over(wall_ms));
        let told_ms = known.as_ref().map(|known| known.told_ms);
        let told_ms = told_ms.filter(|told_ms| wall_ms.saturating_sub(*told_ms) < TELL_EVERY_MS);
        let same = known.filter(|known| known.rival.is_same(&rival));
        let (first_ms, n_before) = same.map_or((wall_ms, 0), |known| (known.first_ms, known.n_attempts));
        let conflict = Self {
            rival,
            first_ms,
            last_ms: wall_ms,
            n_attempts: n_before.saturating_add(1),
            told_ms: told_ms.unwrap_or(wall_ms),
        };
        (conflict, told_ms.is_none())
    }

    /// Whether it is so long ago that it is over.
    pub fn is_over(&self, wall_ms: i64) -> bool {
        wall_ms.saturating_sub(self.last_ms) >= CONFLICT_KEPT_MS
    }
}

impl Rival {
    /// Whether it is the same agent, which may call from another port each time.
    fn is_same(&self, other: &Self) -> bool {
        self.kind == other.kind && self.uid == other.uid && host(&self.address) == host(&other.address)
    }
}

fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_takes_over_and_the_old_one_stays_out() {
        let mut instances = NodeInstances::default();
        for instance in [1, 2, 3] {
            assert!(instances.may_speak(instance, true), "a start that nobody knows is a restart");
            instances.open(instance);
            instances.open(instance);
        }
        for (instance, is_alive, expected) in [
            (1, true, false),
            (2, true, false),
            (3, true, true),
            (4, true, true),
            // The other one is gone.
            (1, false, true),
            // An agent that gives no instance.
            (0, true, true),
        ] {
            assert_eq!(instances.may_speak(instance, is_alive), expected, "{instance} {is_alive}");
        }
        // It came back after the lease of the other: now that one is out.
        instances.open(1);
        assert!(instances.may_speak(1, true) && !instances.may_speak(3, true));
    }

    #[test]
    fn agents_without_an_instance_displace_nobody() {
        let mut instances = NodeInstances::default();
        instances.open(0);
        instances.open(1);
        assert!(instances.may_speak(0, true));
        instances.open(0);
        assert!(!instances.may_speak(1, true), "somebody else has the node");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut instances = NodeInstances::default();
        (1..100).for_each(|instance| instances.open(instance));
        assert_eq!(instances.displaced.len(), N_DISPLACED_MAX);
        assert!(!instances.may_speak(98, true) && instances.may_speak(1, true));
    }

    fn rival(address: &str, uid: &str) -> Rival {
        Rival { kind: RivalKind::OtherInstallation, address: address.to_owned(), uid: uid.to_owned() }
    }

    #[test]
    fn a_conflict_is_told_when_it_begins_and_once_in_a_while() {
        let mut known = None;
        let mut told = Vec::new();
        for (at_s, address, uid) in [
            (0, "10.0.0.1:5", "a"),
            (5, "10.0.0.1:6", "a"),
            (59, "10.0.0.1:7", "a"),
            (60, "10.0.0.1:8", "a"),
            (61, "10.0.0.1:8", "a"),
            // Another one.
            (62, "10.0.0.2:8", "a"),
            (63, "10.0.0.2:8", "b"),
            // The same after a long time is a new conflict.
            (63 + 3_600, "10.0.0.2:8", "b"),
        ] {
            let (conflict, is_told) = NodeConflict::note(known, rival(address, uid), at_s * 1_000);
            told.push((is_told, conflict.n_attempts, (conflict.last_ms - conflict.first_ms) / 1_000));
            assert_eq!(conflict.rival.address, address);
            known = Some(conflict);
        }
        assert_eq!(
            told,
            [
                (true, 1, 0),
                (false, 2, 5),
                (false, 3, 59),
                (true, 4, 60),
                (false, 5, 61),
                (false, 1, 0),
                (false, 1, 0),
                (true, 1, 0)
            ]
        );
        let conflict = known.unwrap();
        assert!(!conflict.is_over(conflict.last_ms + CONFLICT_KEPT_MS - 1));
        assert!(conflict.is_over(conflict.last_ms + CONFLICT_KEPT_MS));
    }
}
