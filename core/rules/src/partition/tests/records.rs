//! What is written where nodes move, and what it comes to.

use super::*;
use godel_base::ids::Revision;
use godel_domain::{
    change::{Block, Change},
    records::Record,
};

/// As committed in one transaction.
fn commit(records: &mut PartitionRecords, revision: u64, split: &Partition) -> Vec<Change> {
    let changes = records.changes_to(split);
    // A list shows records in any order.
    for change in changes.iter().rev() {
        match change.clone() {
            Change::Put(Record::Partition(partition)) => drop(records.put(partition, Revision(revision))),
            Change::Put(Record::PartitionBlock(block)) => records.put_block(block, Revision(revision)),
            other => panic!("not of a split: {other:?}"),
        }
    }
    changes
}

fn shown(changes: &[Change]) -> Vec<String> {
    let show = |change: &Change| match change {
        Change::Put(Record::Partition(head)) => format!("{} {}", head.mode.name(), head.schedulers.join(" ")),
        Change::Put(Record::PartitionBlock(block)) => format!("{}: {}", block.number, block.iter().count()),
        other => format!("{other:?}"),
    };
    changes.iter().map(show).collect()
}

fn preferred(old: &Partition, schedulers: &[u8], nodes: u32) -> Partition {
    let (schedulers, nodes) = (names(&schedulers.iter().copied().collect()), ids(&(1..=nodes).collect()));
    split(old, PartitionMode::Preferred, &schedulers, &nodes).unwrap()
}

#[test]
fn a_node_that_joins_20_000_writes_its_block_and_no_more() {
    let mut records = PartitionRecords::default();
    let first = preferred(&Partition::default(), &[1, 2, 3], 20_000);
    assert_eq!(commit(&mut records, 1, &first).len(), 1 + 313);
    let more = preferred(records.whole(), &[1, 2, 3], 20_001);
    let changes = commit(&mut records, 2, &more);
    assert_eq!(shown(&changes), ["312: 34"], "nodes 19,968 to 20,001");
    assert_eq!(records.whole().slots, more.slots);
    assert_eq!(records.revision(), Revision(1));
}

#[test]
fn a_scheduler_that_leaves_moves_its_nodes_only() {
    let mut records = PartitionRecords::default();
    // Each has nodes of its own next to each other.
    let slots = (1..=6 * 64).map(|id| (NodeId(id), (id - 1) / 128)).collect();
    let schedulers = vec!["s1".to_owned(), "s2".to_owned(), "s3".to_owned()];
    let mode = PartitionMode::Strict;
    commit(&mut records, 1, &Partition { mode, schedulers, slots, ..Partition::default() });
    let (left, nodes) = (names(&BTreeSet::from([2, 3])), ids(&(1..=6 * 64).collect()));
    let after = split(records.whole(), mode, &left, &nodes).unwrap();
    assert_eq!(after.schedulers, ["s3", "s2"], "the last takes the vacant slot");
    let before = owners(records.whole());
    let now = owners(&after);
    assert!(before.iter().all(|(node, name)| name == "s1" || now[node] == *name));
    let changes = commit(&mut records, 2, &after);
    // All of the first and of the last, which has another number; of the second the block that borders on the first.
    assert_eq!(shown(&changes)[0], "strict s3 s2");
    assert!(changes.len() <= 1 + 6, "{:?}", shown(&changes));
}

#[test]
fn shared_nodes_have_no_blocks() {
    let mut records = PartitionRecords::default();
    let split = preferred(&Partition::default(), &[1, 2], 100);
    commit(&mut records, 1, &split);
    let shared = Partition { mode: PartitionMode::Global, slots: Vec::new(), ..split };
    assert_eq!(shown(&commit(&mut records, 2, &shared)), ["global s1 s2", "0: 0", "1: 0"]);
    assert_eq!(records.whole().slots, []);
    assert_eq!(records.changes_to(&shared), []);
}

#[test]
fn a_record_that_lists_all_nodes_is_read_and_replaced_by_blocks() {
    let mut records = PartitionRecords::default();
    let old = preferred(&Partition::default(), &[1, 2], 200);
    assert!(records.put(old.clone(), Revision(5)));
    records.put_block(Block { number: 1, slots: vec![9; 64] }, Revision(6));
    assert_eq!(records.whole().slots, old.slots, "it says all");
    let more = preferred(records.whole(), &[1, 2], 201);
    let changes = commit(&mut records, 7, &more);
    assert_eq!(shown(&changes), ["preferred s1 s2", "0: 63", "1: 64", "2: 64", "3: 10"]);
    assert_eq!(records.whole().slots, more.slots);
}

#[test]
fn what_is_read_again_changes_nothing() {
    let mut records = PartitionRecords::default();
    let split = preferred(&Partition::default(), &[1, 2], 100);
    let first = commit(&mut records, 5, &split);
    let later = preferred(records.whole(), &[1, 2], 120);
    commit(&mut records, 9, &later);
    for change in first {
        match change {
            Change::Put(Record::Partition(partition)) => assert!(!records.put(partition, Revision(5))),
            Change::Put(Record::PartitionBlock(block)) => records.put_block(block, Revision(5)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(records.whole().slots, later.slots);
    // A list without the second block: it is gone, unless it was written since.
    records.retain_blocks(|number| number == 0, Revision(9));
    assert_eq!(records.whole().slots, later.slots);
    records.retain_blocks(|number| number == 0, Revision(10));
    assert_eq!(records.whole().slots, later.slots[..63]);
}

proptest! {
    /// Whatever splits follow each other: what is written comes to what was wanted, and an equal split writes nothing.
    #[test]
    fn what_is_written_is_what_was_wanted(
        splits in prop::collection::vec(
            (0..3usize, 1..4u32, prop::collection::btree_map(1..400u32, 0..3u32, 0..80)),
            1..8,
        ),
    ) {
        let modes = [PartitionMode::Global, PartitionMode::Preferred, PartitionMode::Strict];
        let mut records = PartitionRecords::default();
        for (revision, (mode, n, slots)) in (1..).zip(&splits) {
            let slots: Vec<_> = slots.iter().map(|(node, slot)| (NodeId(*node), slot % n)).collect();
            let wanted = Partition {
                mode: modes[*mode],
                schedulers: (0..*n).map(|slot| format!("s{slot}")).collect(),
                slots: if *mode == 0 { Vec::new() } else { slots },
                generation: records.whole().generation + 1,
                ..Partition::default()
            };
            let before = records.whole().clone();
            let changes = commit(&mut records, revision, &wanted);
            let whole = records.whole();
            prop_assert_eq!((whole.mode, &whole.schedulers, &whole.slots), (wanted.mode, &wanted.schedulers, &wanted.slots));
            prop_assert_eq!(records.changes_to(whole), vec![]);
            for change in changes {
                let Change::Put(Record::PartitionBlock(block)) = change else { continue };
                let of = |slots: &[(NodeId, u32)]| -> Vec<_> {
                    slots.iter().filter(|(node, _)| Block::of(*node) == block.number).copied().collect()
                };
                prop_assert_ne!(of(&before.slots), of(&wanted.slots), "nothing is written in vain");
            }
        }
    }
}
