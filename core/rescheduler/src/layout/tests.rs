//! Moves, their undoing, and room.

use proptest::prelude::*;

use super::*;
use crate::tests::clusters::{Size, assert_room, demand, node, random, running, settled, unit};
use godel_domain::unit::WorkloadClass;

const SIZE: Size = Size { n_nodes: 6, n_units: 5, n_running: 30, has_shares: true };

/// What is free, who is where with which devices, and how many are moved.
type State = (Vec<i64>, Vec<i32>, Vec<(NodeIdx, DeviceSet)>, usize);

/// Everything that a layout knows, as it can be compared.
fn state(layout: &Layout<'_>) -> State {
    let placed = layout.running().map(|unit| (layout.node_of(unit), layout.devices(unit))).collect();
    (layout.rooms.free.clone(), layout.rooms.device_left.clone(), placed, layout.n_moved())
}

proptest! {
    /// Any moves: what is free is what a fresh count says, no node gives more than it has, and undoing brings back the start.
    #[test]
    fn moves_keep_count_and_can_be_undone(seed: u64, steps in proptest::collection::vec((0usize..30, 0usize..6), 0..60)) {
        let snapshot = random(seed, SIZE);
        let mut layout = Layout::new(&snapshot).unwrap();
        let before = state(&layout);
        for (unit, to) in steps.iter().filter(|(unit, _)| *unit < snapshot.running.len()) {
            layout.relocate(RunIdx::at(*unit), NodeIdx::at(*to));
        }
        assert_room(&layout);
        let fresh = settled(&layout);
        let fresh = Layout::new(&fresh).unwrap();
        prop_assert_eq!((&fresh.rooms.free, &fresh.rooms.device_left), (&layout.rooms.free, &layout.rooms.device_left));
        let n_moved = layout.running().filter(|unit| layout.is_moved(*unit)).count();
        prop_assert_eq!(layout.n_moved(), n_moved);
        for node in layout.nodes() {
            prop_assert!(layout.on(node).iter().all(|unit| layout.node_of(*unit) == node));
        }
        layout.undo_to(LayoutMark::default());
        prop_assert_eq!(state(&layout), before);
    }
}

#[test]
fn a_snapshot_that_contradicts_itself_is_refused() {
    let sound = ClusterSnapshot {
        nodes: vec![node(0, 0)],
        units: vec![unit(0, WorkloadClass::Batch)],
        running: vec![running(0, 3, 0, demand(1, 0, 1_000))],
        ..ClusterSnapshot::default()
    };
    assert!(Layout::new(&sound).is_ok());
    let mut twice = sound.clone();
    twice.nodes.push(node(0, 0));
    assert_eq!(Layout::new(&twice).map(|_| ()), Err(BadSnapshot::NodeTwice(NodeId(1))));
    let mut unit_twice = sound.clone();
    unit_twice.units.push(unit(0, WorkloadClass::Batch));
    assert_eq!(Layout::new(&unit_twice).map(|_| ()), Err(BadSnapshot::UnitTwice(UnitId(1))));
    let mut no_node = sound.clone();
    no_node.running[0].node = NodeId(9);
    let expected = BadSnapshot::NoNode { unit: UnitId(1), ordinal: 3, node: NodeId(9) };
    assert_eq!(Layout::new(&no_node).map(|_| ()), Err(expected));
    let mut no_unit = sound;
    no_unit.units.clear();
    assert_eq!(Layout::new(&no_unit).map(|_| ()), Err(BadSnapshot::NoUnit { unit: UnitId(1), ordinal: 3 }));
}

#[test]
fn what_a_layout_does_not_know_stays_where_it_is() {
    let mut links = demand(1, 1, 1_000);
    links.devices[0].terms =
        Some(Box::new(godel_domain::demand::DeviceTerms { link: "nvlink".to_owned(), ..Default::default() }));
    let mut snapshot = ClusterSnapshot {
        nodes: vec![node(0, 1), node(1, 1)],
        units: vec![unit(0, WorkloadClass::Batch)],
        running: vec![running(0, 0, 0, links)],
        ..ClusterSnapshot::default()
    };
    assert!(!Layout::new(&snapshot).unwrap().relocate(RunIdx(0), NodeIdx(1)));
    snapshot.running[0].demand = demand(1, 1, 1_000);
    assert!(Layout::new(&snapshot).unwrap().relocate(RunIdx(0), NodeIdx(1)));
}

#[test]
fn kept_room_is_taken_until_it_is_undone() {
    let snapshot = ClusterSnapshot { nodes: vec![node(0, 2)], ..ClusterSnapshot::default() };
    let mut layout = Layout::new(&snapshot).unwrap();
    let shape = layout.rooms_mut().intern(&demand(1_000, 1, 1_000));
    let mark = layout.mark();
    assert!(
        layout.keep(shape, NodeIdx(0)) && layout.keep(shape, NodeIdx(0)) && !layout.keep(shape, NodeIdx(0))
    );
    layout.undo_to(mark);
    assert_eq!(layout.rooms().fit(shape, NodeIdx(0)), Some([0].into_iter().collect()));
}
