//! What a scheduler makes of nodes that move.

use super::{cases::*, *};
use godel_domain::{
    change::{Block, PartitionMode},
    records::Record,
};

const N_NODES: u32 = 20_000;

/// Nodes of 4 CPU, the even ones our own.
fn split(mode: PartitionMode, n_nodes: u32) -> Scheduler {
    let mut scheduler = scheduler(&vec![(4000, 0); n_nodes as usize]);
    let schedulers = vec!["a".to_owned(), "b".to_owned()];
    let head = Partition { mode, schedulers, ..Partition::default() };
    let mut changes = vec![Change::Put(Record::Partition(head))];
    changes.extend(
        (0..=n_nodes / Block::N_NODES).map(|number| Change::Put(Record::PartitionBlock(even(number)))),
    );
    for change in &changes {
        scheduler.load(change, Revision(2), 0, Millis(0));
    }
    scheduler.step(Millis(0), 10);
    scheduler
}

/// The even nodes are in slot 0.
fn even(number: u32) -> Block {
    Block { number, slots: (0..Block::N_NODES).map(|at| at % 2 + 1).collect() }
}

/// A node goes to another slot.
fn moved(node: u32, slot: u32) -> Change {
    let mut block = even(Block::of(NodeId(node)));
    block.slots[(node % Block::N_NODES) as usize] = slot + 1;
    Change::Put(Record::PartitionBlock(block))
}

fn nodes(step: &Step) -> Vec<u32> {
    step.decisions.iter().flat_map(|decision| &decision.groups[0].nodes).map(|node| node.0).collect()
}

fn place(scheduler: &mut Scheduler, id: u64, demand: Demand) -> Vec<u32> {
    assign(scheduler, &unit(id, 1, 1, demand));
    nodes(&scheduler.step(Millis(1), 10))
}

#[test]
fn one_of_20_000_nodes_that_moves_ends_no_list() {
    for mode in [PartitionMode::Preferred, PartitionMode::Strict] {
        let mut scheduler = split(mode, N_NODES);
        let first = place(&mut scheduler, 1, cpu(100))[0];
        let (misses, generation) =
            (scheduler.stats().cache_misses, scheduler.picture.cluster.free().generations().last());
        scheduler.picture.placer.n_looked = 0;
        let other = if first == 10_000 { 10_002 } else { 10_000 };
        scheduler.load(&moved(other, 1), Revision(3), 0, Millis(1));
        assert_eq!(
            scheduler.picture.cluster.free().generations().last(),
            generation + 1,
            "one node was looked at anew"
        );
        assert_eq!(place(&mut scheduler, 2, cpu(100)), [first]);
        assert_eq!(
            (scheduler.stats().cache_misses, scheduler.picture.placer.n_looked),
            (misses, 0),
            "{mode:?}"
        );
    }
}

#[test]
fn a_node_that_went_to_another_is_used_no_more() {
    let mut scheduler = split(PartitionMode::Strict, 200);
    let first = place(&mut scheduler, 1, cpu(100))[0];
    let misses = scheduler.stats().cache_misses;
    scheduler.load(&moved(first, 1), Revision(3), 0, Millis(1));
    let next = place(&mut scheduler, 2, cpu(100))[0];
    assert!(next != first && next.is_multiple_of(2), "{next}");
    assert_eq!(scheduler.stats().cache_misses, misses, "the others on the list stay");
}

#[test]
fn an_own_node_that_comes_ends_the_list_of_others_nodes() {
    let mut scheduler = split(PartitionMode::Preferred, 5);
    // The own ones, 2 and 4, are full.
    assert_eq!(place(&mut scheduler, 1, cpu(4000)).len() + place(&mut scheduler, 2, cpu(4000)).len(), 2);
    let others = place(&mut scheduler, 3, cpu(100));
    let gained = [1, 3, 5].into_iter().find(|node| !others.contains(node)).unwrap();
    scheduler.load(&moved(gained, 0), Revision(3), 0, Millis(1));
    assert_eq!(place(&mut scheduler, 4, cpu(100)), [gained]);
}

#[test]
fn only_what_a_node_gained_could_help_is_woken() {
    let mut scheduler = split(PartitionMode::Preferred, 4);
    // Everything is full but half of node 3.
    for (node, cpu) in [(1, 4000), (2, 4000), (3, 2000), (4, 4000)] {
        let bind = Bind {
            demand: Arc::new(Demand {
                requests: resources(cpu, 1),
                devices: Vec::new(),
                host_ports: Vec::new(),
                zones: None,
            }),
            ordinals: vec![0],
            nodes: vec![NodeId(node)],
            ..Bind::default()
        };
        let change = Change::Rows(UnitId(100 + u64::from(node)), RunChange::Bind(bind));
        scheduler.load(&change, Revision(3), 0, Millis(1));
    }
    // Parked before nodes were strictly split: nobody had room for it.
    assign(&mut scheduler, &unit(1, 1, 1, cpu(3000)));
    assign(&mut scheduler, &unit(2, 1, 1, cpu(3500)));
    assert_eq!(states(&scheduler.step(Millis(2), 10)).len(), 2);
    let schedulers = vec!["a".to_owned(), "b".to_owned()];
    let strict = Partition { mode: PartitionMode::Strict, schedulers, ..Partition::default() };
    scheduler.load(&Change::Put(Record::Partition(strict)), Revision(4), 0, Millis(3));
    assert_eq!(scheduler.step(Millis(3), 10), Step::default());
    // A node that could hold neither comes: nobody is tried.
    scheduler.load(&moved(3, 0), Revision(5), 0, Millis(4));
    assert_eq!(scheduler.step(Millis(4), 10), Step::default());
    assert_eq!(scheduler.stats().parked_units, 2);
    // One goes that had room for one of them: nobody is tried. It comes back: that one is.
    let fresh = NodeReport { ..node_report(3, resources(5000, 100), 0, "") };
    scheduler.load(&moved(3, 1), Revision(6), 0, Millis(5));
    scheduler.picture.cluster.nodes_mut().put_report(fresh, Revision(6));
    scheduler.picture.cluster.free_mut().generations.take_gained(&mut Vec::new());
    assert_eq!(scheduler.step(Millis(5), 10), Step::default());
    scheduler.load(&moved(3, 0), Revision(7), 0, Millis(6));
    let step = step_and_call(&mut scheduler, Millis(6), 10);
    assert_eq!((step.decisions.len(), nodes(&step), states(&step)), (1, vec![3], vec![]));
}

#[test]
fn other_schedulers_that_come_and_go_end_no_list() {
    let mut scheduler = split(PartitionMode::Preferred, 200);
    place(&mut scheduler, 1, cpu(100));
    let misses = scheduler.stats().cache_misses;
    let schedulers = vec!["a".to_owned(), "c".to_owned()];
    let head = Partition { mode: PartitionMode::Preferred, schedulers, ..Partition::default() };
    scheduler.load(&Change::Put(Record::Partition(head)), Revision(3), 0, Millis(1));
    place(&mut scheduler, 2, cpu(100));
    assert_eq!(scheduler.stats().cache_misses, misses);
}
