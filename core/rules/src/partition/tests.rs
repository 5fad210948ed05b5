use proptest::prelude::*;

use super::*;

mod records;
mod weighed;

fn names(indices: &BTreeSet<u8>) -> BTreeSet<String> {
    indices.iter().map(|idx| format!("s{idx}")).collect()
}

fn ids(indices: &BTreeSet<u32>) -> BTreeSet<NodeId> {
    indices.iter().map(|idx| NodeId(*idx)).collect()
}

/// As many nodes for each.
fn split(
    old: &Partition,
    mode: PartitionMode,
    schedulers: &BTreeSet<String>,
    nodes: &BTreeSet<NodeId>,
) -> Option<Partition> {
    super::split(old, mode, schedulers, nodes, StrategyKind::EvenCount.strategy(), &Traits::default())
}

/// Owner of each node by name.
fn owners(partition: &Partition) -> BTreeMap<NodeId, String> {
    let name = |slot: u32| partition.schedulers[slot as usize].clone();
    partition.slots.iter().map(|(node, slot)| (*node, name(*slot))).collect()
}

#[test]
fn global_names_schedulers_only() {
    let old = Partition::default();
    let (schedulers, nodes) = (names(&BTreeSet::from([1, 2])), ids(&(1..10).collect()));
    let split = split(&old, PartitionMode::Global, &schedulers, &nodes).unwrap();
    assert_eq!((split.generation, split.schedulers.len(), split.slots.len()), (1, 2, 0));
    assert_eq!(self::split(&split, PartitionMode::Global, &schedulers, &ids(&(1..99).collect())), None);
    assert_eq!(self::split(&split, PartitionMode::Global, &BTreeSet::new(), &nodes), None);
    assert_eq!(shares(&split, nodes.iter().copied()), [9, 9]);
    assert_eq!(slot_of(&split, NodeId(3)), Some(1));
    assert_eq!(slot_of(&old, NodeId(3)), None);
}

#[test]
fn a_joiner_takes_a_leavers_slot_and_nodes() {
    let nodes = ids(&(1..=9).collect());
    let three =
        split(&Partition::default(), PartitionMode::Preferred, &names(&BTreeSet::from([1, 2, 3])), &nodes)
            .unwrap();
    let swapped =
        split(&three, PartitionMode::Preferred, &names(&BTreeSet::from([1, 3, 4])), &nodes).unwrap();
    assert_eq!(swapped.schedulers, ["s1", "s4", "s3"]);
    assert_eq!(swapped.slots, three.slots);
    assert_eq!(shares(&swapped, nodes.iter().copied()), [3, 3, 3]);
}

/// Whether each scheduler has its share of any `n` nodes in a row, give or take one.
fn is_mixed(partition: &Partition, n: usize) -> bool {
    let n_slots = partition.schedulers.len();
    partition.slots.windows(n).all(|nodes| {
        (0u32..).take(n_slots).all(|slot| {
            let own = nodes.iter().filter(|(_, owner)| *owner == slot).count();
            own.abs_diff(n / n_slots) <= 1
        })
    })
}

#[test]
fn neighbours_have_different_owners() {
    let nodes = ids(&(1..=120).collect());
    let preferred = |old: &Partition, schedulers: &[u8], nodes: &BTreeSet<NodeId>| {
        split(old, PartitionMode::Preferred, &names(&schedulers.iter().copied().collect()), nodes).unwrap()
    };
    let three = preferred(&Partition::default(), &[1, 2, 3], &nodes);
    assert!(is_mixed(&three, 6), "at once: {:?}", three.slots);
    let one = preferred(&Partition::default(), &[1], &nodes);
    let two = preferred(&one, &[1, 2], &nodes);
    assert!(is_mixed(&two, 4), "a scheduler joins: {:?}", two.slots);
    let again = preferred(&two, &[2], &nodes);
    let two = preferred(&again, &[2, 3], &nodes);
    assert!(is_mixed(&two, 4), "another takes its place: {:?}", two.slots);
    let more = preferred(&two, &[2, 3], &ids(&(1..=240).collect()));
    assert!(is_mixed(&more, 4), "nodes join: {:?}", more.slots);
}

proptest! {
    /// Even shares; every node has one owner; exactly the fewest possible nodes change owner; planning again
    /// changes nothing.
    #[test]
    fn only_necessary_nodes_move(
        worlds in prop::collection::vec(
            (prop::collection::btree_set(0..6u8, 1..6), prop::collection::btree_set(1..60u32, 0..60)),
            1..6,
        ),
    ) {
        let mut old = Partition::default();
        for (schedulers, nodes) in &worlds {
            let (schedulers, nodes) = (names(schedulers), ids(nodes));
            let Some(new) = split(&old, PartitionMode::Preferred, &schedulers, &nodes) else {
                let (before, after) = (owners(&old), nodes.clone());
                prop_assert_eq!(before.into_keys().collect::<BTreeSet<_>>(), after);
                continue;
            };
            prop_assert_eq!(new.generation, old.generation + 1);
            prop_assert_eq!(new.schedulers.iter().cloned().collect::<BTreeSet<_>>(), schedulers.clone());
            prop_assert_eq!(new.slots.iter().map(|(node, _)| *node).collect::<BTreeSet<_>>(), nodes.clone());
            let shares = shares(&new, nodes.iter().copied());
            prop_assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
            for (node, slot) in &new.slots {
                prop_assert_eq!(slot_of(&new, *node), Some(*slot));
            }
            // Lower bound: each kept share can keep at most its quota, and only `odd` of them the larger one.
            let before = owners(&old);
            let kept: Vec<usize> = schedulers.iter()
                .map(|name| nodes.iter().filter(|node| before.get(node) == Some(name)).count())
                .collect();
            let (share, odd) = (nodes.len() / schedulers.len(), nodes.len() % schedulers.len());
            let larger = kept.iter().filter(|kept| **kept > share).count().min(odd);
            let stay_max: usize = kept.iter().map(|kept| (*kept).min(share)).sum::<usize>() + larger;
            let after = owners(&new);
            let stay = nodes.iter().filter(|node| before.contains_key(node) && before.get(node) == after.get(node)).count();
            prop_assert_eq!(stay, stay_max);
            prop_assert_eq!(split(&new, PartitionMode::Preferred, &schedulers, &nodes), None);
            old = new;
        }
    }
}
