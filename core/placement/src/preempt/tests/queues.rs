//! Who may leave together of queues that borrow.

use super::*;

/// Who leaves for replicas of a queue `a.x` that is guaranteed all of them, and how many places there are, on nodes that are full.
fn claimed_back(units: &[Running], min_of_b: i64, cpu: i64, n: u32) -> (usize, Vec<(u64, u32)>) {
    let n_nodes = units.iter().flat_map(|unit| &unit.nodes).max();
    let mut cluster = cluster(*n_nodes.unwrap());
    units.iter().for_each(|unit| run(&mut cluster, unit));
    let ask = demand(cpu, 1, 0);
    let mut quota = quota(&cluster, &[("a.x", 16, 0), ("b", min_of_b, 0)]);
    let queue = quota.queue("a.x");
    let need = Need { ask: quota.usage_mut().intern(&ask), n };
    let rights = Rights::new(&quota, queue, &[need]);
    let found = seek_with(&mut cluster, rights.as_ref(), &ask, n as usize);
    (found.places.len(), victims(&found))
}

fn of_b(id: u64, priority: i32, cpu: i64, nodes: &[u32]) -> Running {
    Running { queue: "b", ..running(id, priority, cpu, nodes) }
}

#[test]
fn a_gang_is_evicted_whole_though_a_part_would_suffice() {
    let gang = Running { min_member: 2, ..of_b(1, 60, 4_000, &[1, 1]) };
    assert_eq!(claimed_back(std::slice::from_ref(&gang), 4, 8_000, 1), (1, vec![(1, 0), (1, 1)]));
    assert_eq!(claimed_back(&[gang], 8, 8_000, 1), (0, vec![]), "it borrows nothing");
    let no_gang = of_b(1, 60, 4_000, &[1, 1]);
    assert_eq!(claimed_back(&[no_gang], 4, 8_000, 1), (0, vec![]), "the last one has its guarantee");
}

#[test]
fn of_a_unit_of_which_not_all_may_leave_the_rest_does() {
    // Of three that take 6 of 2 cores two may leave; the other unit has to leave with them, though its priority is higher.
    let units = [of_b(1, 60, 2_000, &[1, 1, 1]), running(2, 70, 2_000, &[1])];
    assert_eq!(claimed_back(&units, 1, 6_000, 1), (1, vec![(1, 0), (1, 1), (1, 2)]));
    assert_eq!(claimed_back(&units, 2, 6_000, 1), (1, vec![(1, 0), (1, 1), (2, 0)]));
}

#[test]
fn what_leaves_of_each_of_two_units_counts_for_its_queue() {
    // Unit 2 has to leave beside unit 1, which is of another queue; then unit 3 is all that `b` has.
    let units = [running(1, 60, 4_000, &[1]), of_b(2, 60, 4_000, &[1]), of_b(3, 70, 8_000, &[2])];
    assert_eq!(claimed_back(&units, 7, 8_000, 2), (2, vec![(1, 0), (2, 0), (3, 0)]));
    assert_eq!(claimed_back(&units, 8, 8_000, 2), (1, vec![(1, 0), (2, 0)]));
}
