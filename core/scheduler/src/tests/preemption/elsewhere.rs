//! Units for which room is held: they are placed elsewhere as soon as they fit there, and give way to those of higher rank.

use super::*;
use godel_domain::records::Record;

impl Pair {
    fn add_node(&mut self, id: u32) {
        self.commit(vec![
            Change::Put(Record::NodeSpec(node_spec(id))),
            Change::Put(Record::NodeReport(node_report(id, resources(1000, 100), 0, "A10"))),
        ]);
    }

    /// For whom room is held.
    fn owners(&self) -> Vec<u64> {
        self.binder.cluster().holds().all().iter().map(|hold| hold.unit.0).collect()
    }
}

/// Units of priority 1 fill so many nodes.
fn full(n_nodes: u32) -> Pair {
    let mut pair = Pair::new(n_nodes);
    pair.assign(&ranked(1, 1, n_nodes, 1, cpu(1000)));
    pair.steps();
    pair
}

#[test]
fn a_unit_whose_victim_stays_is_placed_on_a_node_that_comes() {
    let mut pair = full(1);
    pair.assign(&ranked(2, 9, 1, 1, cpu(1000)));
    assert!(pair.steps().contains(&(2, ReportState::Parked)), "it waits as others do");
    assert_eq!(pair.owners(), [2]);
    for _ in 0..3 {
        pair.now = pair.now.plus(10_000);
        assert_eq!(pair.steps(), [] as [(u64, ReportState); 0], "nothing is tried before room is gained");
    }
    assert_eq!(pair.scheduler.stats().victims, 1);
    pair.add_node(2);
    assert!(pair.steps().contains(&(2, ReportState::Done)));
    assert_eq!((pair.live(2), pair.owners()), (vec![2], vec![]));
    pair.leave();
    assert_eq!(pair.live(1), [] as [u32; 0], "who was told to leave has left");
    pair.assert_same();
}

#[test]
fn a_gang_is_placed_elsewhere_as_a_whole_with_its_held_room() {
    let mut pair = full(2);
    pair.add_node(3);
    // The third node is free, and held beside what victims leave on the others.
    pair.assign(&ranked(2, 9, 3, 3, cpu(1000)));
    pair.steps();
    assert_eq!((pair.owners(), pair.leaving()), (vec![2; 3], vec![(1, 1), (1, 2)]));
    pair.add_node(4);
    pair.steps();
    assert_eq!(pair.live(2).len(), 0, "one node more is not enough");
    pair.assign(&ranked(3, 9, 1, 1, cpu(200)));
    pair.steps();
    assert_eq!(pair.live(3), [4], "it keeps nothing more than what is held");
    pair.add_node(5);
    pair.add_node(6);
    pair.steps();
    let mut nodes = pair.live(2);
    nodes.sort_unstable();
    assert_eq!((nodes, pair.owners()), (vec![3, 5, 6], vec![]));
    pair.leave();
    pair.assert_same();
}

#[test]
fn replicas_of_a_bound_unit_are_placed_elsewhere_one_by_one() {
    let mut pair = full(2);
    pair.add_node(3);
    pair.assign(&ranked(2, 9, 3, 1, cpu(1000)));
    pair.steps();
    assert_eq!((pair.live(2), pair.owners()), (vec![3], vec![2, 2]));
    pair.add_node(4);
    pair.steps();
    assert_eq!((pair.live(2).len(), pair.owners()), (2, vec![2]));
    pair.leave();
    assert_eq!((pair.live(2).len(), pair.owners()), (3, vec![]));
    pair.assert_same();
}

#[test]
fn a_unit_of_higher_rank_takes_over_what_is_held() {
    let mut pair = full(1);
    pair.assign(&ranked(2, 5, 1, 1, cpu(1000)));
    pair.steps();
    assert_eq!(pair.owners(), [2]);
    pair.assign(&ranked(3, 9, 1, 1, cpu(700)));
    pair.steps();
    assert_eq!((pair.owners(), pair.leaving()), (vec![3], vec![(1, 1)]));
    assert_eq!(pair.scheduler.stats().victims, 1, "nobody leaves but who did already");
    // One of equal rank does not.
    pair.assign(&ranked(4, 9, 1, 1, cpu(700)));
    pair.steps();
    assert_eq!(pair.owners(), [3]);
    pair.leave();
    assert_eq!((pair.live(3).len(), pair.live(2).len()), (1, 0));
    pair.assert_same();
    // The owner waits again, as any other.
    pair.add_node(2);
    pair.now = pair.now.plus(10_000);
    pair.steps();
    assert_eq!(pair.live(2).len() + pair.live(4).len(), 1);
}

#[test]
fn victims_come_before_what_is_held_for_others() {
    let mut pair = full(2);
    pair.assign(&ranked(2, 5, 1, 1, cpu(1000)));
    pair.steps();
    pair.assign(&ranked(3, 9, 1, 1, cpu(1000)));
    pair.steps();
    assert_eq!((pair.owners(), pair.leaving()), (vec![2, 3], vec![(1, 1), (1, 2)]));
}

#[test]
fn a_gang_takes_over_and_preempts_for_the_rest() {
    let mut pair = full(2);
    pair.assign(&ranked(2, 5, 1, 1, cpu(1000)));
    pair.steps();
    pair.assign(&ranked(3, 9, 2, 2, cpu(1000)));
    pair.steps();
    assert_eq!((pair.owners(), pair.leaving()), (vec![3, 3], vec![(1, 1), (1, 2)]));
    pair.leave();
    assert_eq!((pair.live(3).len(), pair.live(2).len()), (2, 0));
    pair.assert_same();
}

#[test]
fn only_what_is_needed_is_taken_over_the_lowest_rank_first() {
    let mut pair = Pair::new(1);
    pair.assign(&ranked(1, 1, 2, 1, cpu(500)));
    pair.steps();
    for (id, priority) in [(2, 6), (3, 5)] {
        pair.assign(&ranked(id, priority, 1, 1, cpu(500)));
        pair.steps();
    }
    assert_eq!(pair.owners(), [2, 3]);
    pair.assign(&ranked(4, 9, 1, 1, cpu(400)));
    pair.steps();
    let mut owners = pair.owners();
    owners.sort_unstable();
    assert_eq!(owners, [2, 4]);
}
