//! Where partitions are strict: each scheduler tries a unit once, then one tries all nodes, and that ends it.

use godel_domain::change::PartitionMode;
use proptest::prelude::*;

use super::*;

/// Room of each partition, and whose room a unit may use.
struct Partitions {
    free: Vec<u32>,
    /// By unit: schedulers that gave it back, and whether it was tried on all nodes.
    tries: BTreeMap<UnitId, (Vec<usize>, u32)>,
}

impl Partitions {
    /// What becomes of a try, all or nothing.
    fn place(&mut self, idx: usize, scope: NodeScope, n_wanted: u32) -> bool {
        let own_first: Vec<usize> =
            std::iter::once(idx).chain((0..self.free.len()).filter(|at| *at != idx)).collect();
        let reach = match scope {
            NodeScope::Partition => &own_first[..1],
            NodeScope::Global => &own_first[..],
        };
        if reach.iter().map(|at| self.free[*at]).sum::<u32>() < n_wanted {
            return false;
        }
        let mut left = n_wanted;
        for at in reach {
            let taken = left.min(self.free[*at]);
            self.free[*at] -= taken;
            left -= taken;
        }
        true
    }
}

proptest! {
    /// Random partitions and gangs: nobody gets a unit twice, the try on all nodes comes last and once, and a gang is
    /// left over only if all partitions together had no room for it.
    #[test]
    fn each_partition_is_tried_once_and_then_all_of_them(
        free in prop::collection::vec(0..6u32, 1..5),
        gangs in prop::collection::vec(1..12u32, 1..12),
        policy in 0..3usize,
        credits in 1..30u32,
    ) {
        let config = Config { policy: PolicyKind::ALL[policy], ..Config::default() };
        let mut rig = Rig::with(config);
        let n_schedulers = free.len();
        for idx in 0..n_schedulers {
            rig.core.streams().on_lease(&lease(&format!("s{idx}"), 1, "h"), rig.now);
            rig.attach(&format!("s{idx}"), 1, idx as u64 + 1, &[], credits);
        }
        rig.core.partition.mode = PartitionMode::Strict;
        let mut partitions = Partitions { free, tries: BTreeMap::new() };
        for (id, replicas) in (1..).zip(&gangs) {
            rig.put(spec(id, *replicas).min_member(*replicas));
        }
        let mut placed = 0;
        for _ in 0..gangs.len() * (n_schedulers + 2) {
            for action in rig.core.step(rig.now) {
                let Action::Assign(session, one) = action else { continue };
                let idx = usize::try_from(session.0).unwrap() - 1;
                let unit = one.record.id;
                let (tried, n_over) = partitions.tries.entry(unit).or_default();
                // Once more by the scheduler that watches what waits, if another one found no place for it.
                prop_assert!(*n_over < 2, "{unit} was tried on all nodes");
                match one.permit.scope {
                    NodeScope::Partition => {
                        prop_assert!(*n_over == 0 && !tried.contains(&idx), "{unit} is back at {idx} after {tried:?}");
                        tried.push(idx);
                    }
                    NodeScope::Global => {
                        prop_assert_eq!(tried.len(), n_schedulers, "{} skipped a partition", unit);
                        *n_over += 1;
                    }
                }
                let n_wanted = u32::try_from(one.ordinals.len()).unwrap();
                if partitions.place(idx, one.permit.scope, n_wanted) {
                    rig.bind(unit.0, &one.ordinals);
                    partitions.tries.entry(unit).or_default().1 = 2;
                    placed += 1;
                } else {
                    let parked = one.permit.scope == NodeScope::Global;
                    if parked {
                        prop_assert!(partitions.free.iter().sum::<u32>() < n_wanted);
                    }
                    let state = if parked { ReportState::Parked } else { ReportState::Returned };
                    rig.report(session.0, unit.0, state);
                }
            }
            for idx in 0..n_schedulers {
                rig.core.streams().on_credits(SessionId(idx as u64 + 1), credits);
            }
        }
        let parked = rig.core.summary().parked_units;
        prop_assert_eq!(placed + parked, gangs.len() as u64, "each one came to an end");
        prop_assert_eq!(rig.core.summary().counters.repairs, 0);
    }
}

#[test]
fn who_was_evicted_after_a_round_goes_to_partitions_again() {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 100);
    rig.attach("b", 2, 2, &[], 100);
    rig.submit([1]);
    assert_eq!(rig.step(), ["assign 1 to 1: [0, 1]"]);
    rig.report(1, 1, ReportState::Returned);
    assert_eq!(rig.step(), ["assign 1 to 2: [0, 1]"]);
    rig.bind(1, &[0, 1]);
    rig.status(1, &[0], RowPhase::Failed);
    rig.rows(1, RunChange::Requeue(Requeue { ordinals: vec![0], incarnations: vec![1], anew: false }));
    let again = rig.step();
    assert_eq!(again.len(), 1, "{again:?}");
    assert!(!again[0].ends_with("on all nodes"), "{again:?}");
}
