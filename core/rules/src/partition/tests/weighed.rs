//! As much free room for each, in whole racks or not.

use super::*;

const N_NODES: u32 = 60;

/// Nodes with weights, and racks of some.
#[derive(Clone, Debug, Default)]
struct World {
    weights: Vec<u64>,
    racks: FxHashMap<NodeId, Arc<str>>,
}

impl World {
    fn new(weights: Vec<u64>) -> Self {
        Self { weights, racks: FxHashMap::default() }
    }

    fn with_racks(mut self, rack: impl Fn(u32) -> Option<u32>) -> Self {
        for node in 0..N_NODES {
            if let Some(rack) = rack(node) {
                self.racks.insert(NodeId(node), format!("r{rack}").into());
            }
        }
        self
    }

    fn split(&self, old: &Partition, schedulers: &[u8], nodes: &BTreeSet<NodeId>) -> Option<Partition> {
        let kind = if self.racks.is_empty() { StrategyKind::FreeResources } else { StrategyKind::Topology };
        let traits = Traits { weights: &self.weights, domains: Some(&self.racks) };
        let schedulers = names(&schedulers.iter().copied().collect());
        super::super::split(old, PartitionMode::Strict, &schedulers, nodes, kind.strategy(), &traits)
    }

    fn weight(&self, node: NodeId) -> u64 {
        self.weights[node.idx()]
    }

    fn loads(&self, partition: &Partition) -> Vec<u64> {
        let mut loads = vec![0; partition.schedulers.len()];
        partition.slots.iter().for_each(|(node, slot)| loads[*slot as usize] += self.weight(*node));
        loads
    }
}

fn all() -> BTreeSet<NodeId> {
    ids(&(0..N_NODES).collect())
}

/// Nodes that have another owner now, by name.
fn moved(old: &Partition, new: &Partition) -> Vec<NodeId> {
    let (before, after) = (owners(old), owners(new));
    let is_other = |node: &&NodeId| before.contains_key(node) && before.get(node) != after.get(node);
    after.keys().filter(is_other).copied().collect()
}

#[test]
fn what_is_free_counts_not_how_many() {
    // The first half is nearly full.
    let world = World::new((0..N_NODES).map(|node| if node < N_NODES / 2 { 1 } else { 9 }).collect());
    let split = world.split(&Partition::default(), &[1, 2, 3], &all()).unwrap();
    assert_eq!(world.loads(&split), [100, 100, 100]);
}

#[test]
fn a_new_scheduler_gets_its_share_and_little_else_moves() {
    let world = World::new((0..N_NODES).map(|node| if node % 3 == 0 { 30 } else { 15 }).collect());
    let two = world.split(&Partition::default(), &[1, 2], &all()).unwrap();
    let three = world.split(&two, &[1, 2, 3], &all()).unwrap();
    // As alike as nodes of 30 can make them.
    assert!(world.loads(&three).iter().all(|load| load.abs_diff(400) <= 15), "{:?}", world.loads(&three));
    let moved = moved(&two, &three);
    let n_others = moved.iter().filter(|node| owners(&three)[*node] != "s3").count();
    assert!(n_others <= 1, "{moved:?}");
    let n_large = moved.iter().filter(|node| world.weight(**node) == 30).count();
    assert!((5..=8).contains(&n_large), "{n_large} large ones of {}", moved.len());
}

#[test]
fn a_leavers_nodes_go_where_there_is_least() {
    let world = World::new(vec![10; N_NODES as usize]);
    let old = Partition {
        mode: PartitionMode::Strict,
        schedulers: vec!["s1".into(), "s2".into(), "s3".into()],
        slots: (0..N_NODES).map(|node| (NodeId(node), if node < 24 { 0 } else { 1 + node % 2 })).collect(),
        ..Partition::default()
    };
    let two = world.split(&old, &[1, 2], &all()).unwrap();
    assert_eq!(world.loads(&two), [300, 300]);
    let stayed = moved(&old, &two).iter().all(|node| owners(&old)[node] == "s3");
    assert!(stayed, "who stays keeps what it has");
}

#[test]
fn a_node_that_joins_moves_no_other() {
    let world = World::new(vec![10; N_NODES as usize]);
    let split = world.split(&Partition::default(), &[1, 2], &ids(&(0..50).collect())).unwrap();
    let more = world.split(&split, &[1, 2], &all()).unwrap();
    assert_eq!(moved(&split, &more), []);
    assert_eq!(world.loads(&more), [300, 300]);
}

#[test]
fn a_rack_has_one_owner() {
    let world = World::new(vec![10; N_NODES as usize]).with_racks(|node| (node < 50).then_some(node / 10));
    let two = world.split(&Partition::default(), &[1, 2], &all()).unwrap();
    assert_eq!(world.loads(&two), [300, 300]);
    // One of a rack that was two's own is labelled anew.
    let other = world.clone().with_racks(|node| (node == 3).then_some(4));
    let anew = other.split(&two, &[1, 2], &all());
    let owner = |partition: &Partition, node: u32| owners(partition)[&NodeId(node)].clone();
    let is_same = owner(&two, 3) == owner(&two, 44);
    match anew {
        None => assert!(is_same),
        Some(anew) => assert_eq!(owner(&anew, 3), owner(&anew, 44)),
    }
}

proptest! {
    /// Every node has one owner, racks too; nobody has more than a fifth, or one block, above the average; planning
    /// again changes nothing.
    #[test]
    fn shares_are_alike(
        weights in prop::collection::vec(1..100u64, N_NODES as usize),
        n_racks in 0..12u32,
        worlds in prop::collection::vec(
            (prop::collection::btree_set(0..6u8, 1..6), prop::collection::btree_set(0..N_NODES, 0..60)),
            1..6,
        ),
    ) {
        let rack = |node: u32| (n_racks > 0 && !node.is_multiple_of(13)).then(|| node % n_racks);
        let world = World::new(weights).with_racks(rack);
        let mut old = Partition::default();
        for (schedulers, nodes) in &worlds {
            let (schedulers, nodes): (Vec<u8>, _) = (schedulers.iter().copied().collect(), ids(nodes));
            let new = world.split(&old, &schedulers, &nodes).unwrap_or_else(|| old.clone());
            prop_assert_eq!(new.slots.iter().map(|(node, _)| *node).collect::<BTreeSet<_>>(), nodes.clone());
            let mut by_rack: BTreeMap<Option<u32>, BTreeSet<u32>> = BTreeMap::new();
            let mut blocks: BTreeMap<(Option<u32>, u32), u64> = BTreeMap::new();
            for (node, slot) in &new.slots {
                let rack = rack(node.0);
                by_rack.entry(rack).or_default().insert(*slot);
                *blocks.entry((rack, if rack.is_some() { 0 } else { node.0 })).or_default() += world.weight(*node);
            }
            prop_assert!(by_rack.iter().all(|(rack, owners)| rack.is_none() || owners.len() == 1));
            let loads = world.loads(&new);
            let average = loads.iter().sum::<u64>() / loads.len() as u64;
            let largest = blocks.values().max().copied().unwrap_or(0);
            let most = average + largest.max(average / 5) + 1;
            prop_assert!(loads.iter().all(|load| *load <= most), "{:?} {}", loads, most);
            prop_assert_eq!(world.split(&new, &schedulers, &nodes), None);
            old = new;
        }
    }
}
