//! Which scheduler gets a unit.

use std::{cmp::Reverse, fmt};

use godel_base::{ids::UnitId, seed::mix};

/// A scheduler that may get a unit: attached, with credits left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerCandidate {
    /// Index in the dispatcher's list; stable while the process lives.
    pub scheduler: usize,
    /// Hash of its name.
    pub name_hash: u64,
    /// Running units that it works on now.
    pub outstanding: u64,
    /// Running units handed to it since it was first seen.
    pub dispatched: u64,
}

/// Picks a scheduler. Pure but for its own counters.
pub trait DispatchPolicy: fmt::Debug + Send {
    /// Index into `candidates`, which is not empty and in order of `scheduler`.
    fn pick(&mut self, unit: UnitId, candidates: &[SchedulerCandidate]) -> usize;
}

/// Names of the policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// Fewest outstanding running units, then fewest handed out so far.
    #[default]
    LeastLoaded,
    /// Always the same scheduler for a unit while the same ones are there.
    Hash,
    /// In turn.
    RoundRobin,
}

impl PolicyKind {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::LeastLoaded, Self::Hash, Self::RoundRobin];

    /// As configuration writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::LeastLoaded => "least-loaded",
            Self::Hash => "hash",
            Self::RoundRobin => "round-robin",
        }
    }

    /// The policy.
    pub fn build(self) -> Box<dyn DispatchPolicy> {
        match self {
            Self::LeastLoaded => Box::new(LeastLoaded),
            Self::Hash => Box::new(Rendezvous),
            Self::RoundRobin => Box::new(RoundRobin { last: usize::MAX }),
        }
    }
}

#[derive(Debug)]
struct LeastLoaded;

impl DispatchPolicy for LeastLoaded {
    fn pick(&mut self, _unit: UnitId, candidates: &[SchedulerCandidate]) -> usize {
        best(candidates, |one| (Reverse(one.outstanding), Reverse(one.dispatched), Reverse(one.scheduler)))
    }
}

#[derive(Debug)]
struct Rendezvous;

impl DispatchPolicy for Rendezvous {
    fn pick(&mut self, unit: UnitId, candidates: &[SchedulerCandidate]) -> usize {
        best(candidates, |one| (mix(one.name_hash ^ mix(unit.0)), Reverse(one.scheduler)))
    }
}

#[derive(Debug)]
struct RoundRobin {
    last: usize,
}

impl DispatchPolicy for RoundRobin {
    fn pick(&mut self, _unit: UnitId, candidates: &[SchedulerCandidate]) -> usize {
        let last = self.last;
        let idx = candidates.iter().position(|one| last == usize::MAX || one.scheduler > last).unwrap_or(0);
        self.last = candidates[idx].scheduler;
        idx
    }
}

fn best<K: Ord>(candidates: &[SchedulerCandidate], key: impl Fn(&SchedulerCandidate) -> K) -> usize {
    (0..candidates.len()).max_by_key(|idx| key(&candidates[*idx])).unwrap_or(0)
}

/// FNV-1a with [`mix`] at the end: the same in every process.
pub(crate) fn hash_name(name: &str) -> u64 {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    mix(name.bytes().fold(0xcbf2_9ce4_8422_2325, fnv))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(scheduler: usize, outstanding: u64, dispatched: u64) -> SchedulerCandidate {
        SchedulerCandidate {
            scheduler,
            name_hash: hash_name(&format!("s{scheduler}")),
            outstanding,
            dispatched,
        }
    }

    #[test]
    fn least_loaded_prefers_little_work_then_few_assignments() {
        let mut policy = PolicyKind::LeastLoaded.build();
        let pick = |policy: &mut Box<dyn DispatchPolicy>, candidates: &[SchedulerCandidate]| {
            policy.pick(UnitId(1), candidates)
        };
        assert_eq!(pick(&mut policy, &[candidate(0, 5, 0), candidate(1, 4, 9)]), 1);
        assert_eq!(pick(&mut policy, &[candidate(0, 4, 9), candidate(1, 4, 8)]), 1);
        assert_eq!(pick(&mut policy, &[candidate(0, 4, 9), candidate(1, 4, 9)]), 0);
    }

    #[test]
    fn round_robin_goes_around_whoever_is_there() {
        let mut policy = PolicyKind::RoundRobin.build();
        let all = [candidate(0, 0, 0), candidate(2, 0, 0), candidate(5, 0, 0)];
        let mut order: Vec<usize> = (0..4).map(|_| all[policy.pick(UnitId(1), &all)].scheduler).collect();
        order.push(all[1..][policy.pick(UnitId(1), &all[1..])].scheduler);
        assert_eq!(order, [0, 2, 5, 0, 2]);
    }

    #[test]
    fn a_leaver_moves_only_its_own_units_under_hash() {
        let mut policy = PolicyKind::Hash.build();
        let all = [candidate(0, 0, 0), candidate(1, 0, 0), candidate(2, 0, 0)];
        let mut counts = [0; 3];
        for unit in 0..3_000 {
            let with_all = all[policy.pick(UnitId(unit), &all)].scheduler;
            counts[with_all] += 1;
            let without = all[..2][policy.pick(UnitId(unit), &all[..2])].scheduler;
            assert!(with_all == 2 || with_all == without, "unit {unit}");
        }
        assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{counts:?}");
    }
}
