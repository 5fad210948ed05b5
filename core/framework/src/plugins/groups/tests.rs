//! Which levels each grouper adds, which groups it makes, and in which order they are tried.

use godel_base::{
    ids::{NodeId, Revision, RunningUnitId, UnitId},
    resources::{CPU, MEMORY, Resources},
};
use godel_cluster::{Cluster, ShapeId, TopologyKeys};
use godel_domain::{
    demand::{Demand, Pool},
    node::{Device, NodeReport, NodeSpec},
};
use godel_testkit::BuildDemand as _;
use serde_json::{Value, json};

use crate::{
    point::{GroupInput, GroupLevel, GroupOrder, Split},
    profile::{GrouperSpec, Profile, ProfileError, ProfileSpec},
    registry::GROUPERS,
};

/// Topology keys by position.
const KEYS: [&str; 4] = ["node", "rack", "zone", "model"];

fn key(name: &str) -> Option<usize> {
    KEYS.iter().position(|known| *known == name)
}

fn keys(required: &str, preferred: &[&str], homogeneous: &str) -> TopologyKeys {
    let preferred = preferred.iter().filter_map(|name| key(name)).collect();
    TopologyKeys { required: key(required), preferred, homogeneous: key(homogeneous) }
}

fn spec(name: &str, args: Value) -> GrouperSpec {
    GrouperSpec { name: name.to_owned(), args }
}

fn profile(groupers: Option<Vec<GrouperSpec>>) -> Result<Profile, ProfileError> {
    Profile::new(&ProfileSpec { groupers, ..ProfileSpec::of_scores(&[("spread", 1)]) })
}

fn named(names: &[&str]) -> Profile {
    profile(Some(names.iter().map(|name| spec(name, Value::Null)).collect())).unwrap()
}

/// Levels as text, a binding one with `!`.
fn show(levels: &[GroupLevel]) -> String {
    let one = |level: &GroupLevel| {
        let split = match &level.split {
            Split::Alike(keys) => keys.iter().map(|key| KEYS[*key]).collect::<Vec<_>>().join("+"),
            Split::Made(by) => (*by).to_owned(),
        };
        if level.is_binding { split + "!" } else { split }
    };
    levels.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[test]
fn levels_go_from_what_is_preferred_to_what_is_required() {
    let (cluster, by_default) = (Cluster::new(), profile(None).unwrap());
    let (none, bucket) = (named(&[]), named(&["resource-bucket"]));
    let all = named(&["resource-bucket", "homogeneous", "unit-topology"]);
    for (profile, keys, expected) in [
        (&by_default, keys("", &[], ""), ""),
        (&by_default, keys("rack", &[], ""), "rack!"),
        (&by_default, keys("", &["node", "rack"], ""), "node rack"),
        (&by_default, keys("zone", &["node", "rack"], ""), "node+zone rack+zone zone!"),
        (&by_default, keys("zone", &["zone"], ""), "zone!"),
        (&by_default, keys("", &[], "model"), "model!"),
        (&by_default, keys("", &["rack"], "model"), "rack+model model!"),
        (&by_default, keys("", &["rack", "model"], "model"), "rack+model model!"),
        (&by_default, keys("zone", &["rack"], "model"), "rack+zone+model zone+model!"),
        (&by_default, keys("zone", &[], "zone"), "zone!"),
        // Of groupers that are not named what is required counts.
        (&none, keys("", &["rack"], ""), ""),
        (&none, keys("zone", &["rack"], ""), "zone!"),
        (&none, keys("zone", &["zone"], "model"), "zone+model!"),
        (&named(&["unit-topology"]), keys("", &["rack"], "model"), "rack+model model!"),
        (&named(&["homogeneous"]), keys("", &["rack"], "model"), "model!"),
        (&bucket, keys("", &[], ""), "resource-bucket"),
        (&bucket, keys("", &["rack"], ""), "resource-bucket"),
        (&bucket, keys("rack", &[], ""), "rack!"),
        (&bucket, keys("", &[], "model"), "model!"),
        (&all, keys("", &["rack"], ""), "rack resource-bucket"),
        (&all, keys("", &["rack"], "model"), "rack+model model!"),
    ] {
        let of = GroupInput { cluster: &cluster, unit: UnitId(1), keys: &keys, is_plain: true, wanted: &[] };
        assert_eq!(show(&profile.groupers().levels(&of)), expected, "{profile:?} {keys:?}");
        assert_eq!(
            keys.is_required(),
            profile.groupers().levels(&of).last().is_some_and(|level| level.is_binding)
        );
    }
    let of = GroupInput {
        cluster: &cluster,
        unit: UnitId(1),
        keys: &keys("", &[], ""),
        is_plain: false,
        wanted: &[],
    };
    assert_eq!(show(&bucket.groupers().levels(&of)), "", "something else says where the replicas go");
}

/// Nodes from 1 on, each with 10 cpu, 100 memory and two A10, of which running units take so much.
fn cluster(taken: &[Demand]) -> Cluster {
    let mut cluster = Cluster::new();
    let gpu = Device { kind: "gpu".to_owned(), model: "A10".to_owned(), numa_zone: 0, details: None };
    for (id, taken) in (1..).zip(taken) {
        let capacity = Resources::new([(CPU, 10), (MEMORY, 100)]).unwrap();
        let devices = vec![gpu.clone(), gpu.clone()];
        let id = NodeId(id);
        cluster.nodes_mut().put_report(
            NodeReport { id, capacity, devices, ready: true, ..NodeReport::default() },
            Revision(1),
        );
        cluster
            .nodes_mut()
            .put_spec(NodeSpec { id, name: format!("n{}", id.0), ..NodeSpec::default() }, Revision(1));
        let shape = cluster.shape(taken, Pool::Guaranteed);
        let allocation = cluster.free().pick(shape, id).unwrap_or_default();
        let running = RunningUnitId::new(UnitId(u64::from(id.0)), 0, 0);
        cluster.assume(running, shape, id, allocation);
    }
    cluster
}

fn demand(cpu: i64, memory: i64, milli_gpus: u32) -> Demand {
    godel_testkit::demand(cpu).memory(memory).gpus(u32::from(milli_gpus > 0), milli_gpus, &["A10"])
}

/// Nodes by bucket, for replicas that go together.
fn buckets(cluster: &mut Cluster, args: Value, wanted: &[(Demand, u32)]) -> Vec<Vec<u32>> {
    let profile = profile(Some(vec![spec("resource-bucket", args)])).unwrap();
    let wanted: Vec<(ShapeId, u32)> =
        wanted.iter().map(|(demand, n)| (cluster.shape(demand, Pool::Guaranteed), *n)).collect();
    let keys = TopologyKeys::default();
    let of = GroupInput { cluster, unit: UnitId(9), keys: &keys, is_plain: true, wanted: &wanted };
    let levels = profile.groupers().levels(&of);
    profile.groupers().make_groups(&of, &levels[0])
}

#[test]
fn buckets_are_equal_parts_of_the_dominant_resource() {
    let taken =
        [demand(10, 0, 0), demand(8, 0, 0), demand(5, 90, 0), demand(1, 0, 1_000), demand(0, 30, 300)];
    for (args, wanted, expected) in [
        // Free: 0, 20, 50, 90 and 100 % of cpu.
        (json!(null), vec![(demand(2, 1, 0), 1)], vec![vec![1, 2], vec![3], vec![4, 5]]),
        (json!({"buckets": 2}), vec![(demand(2, 1, 0), 1)], vec![vec![1, 2], vec![3, 4, 5]]),
        (json!({"first": "emptiest"}), vec![(demand(2, 1, 0), 1)], vec![vec![4, 5], vec![3], vec![1, 2]]),
        (json!({"buckets": 8}), vec![(demand(2, 1, 0), 1)], vec![vec![1], vec![2], vec![3], vec![4, 5]]),
        // Of memory: 100, 100, 10, 100 and 70 %.
        (json!(null), vec![(demand(1, 20, 0), 1)], vec![vec![3], vec![5], vec![1, 2, 4]]),
        // All that goes together counts: 8 cpu of 50, 80 memory of 500, and then one more of memory.
        (
            json!({"buckets": 2}),
            vec![(demand(1, 0, 0), 8), (demand(0, 10, 0), 8)],
            vec![vec![1, 2], vec![3, 4, 5]],
        ),
        (
            json!({"buckets": 2}),
            vec![(demand(1, 0, 0), 8), (demand(0, 10, 0), 9)],
            vec![vec![3], vec![1, 2, 4, 5]],
        ),
        // Of devices: whole ones, of which node 4 and node 5 have one each, and shares, of which these have one and 1.7.
        (json!({"buckets": 2}), vec![(demand(1, 1, 1_000), 1)], vec![vec![1, 2, 3, 4, 5]]),
        (json!({"buckets": 4}), vec![(demand(1, 1, 1_000), 1)], vec![vec![4, 5], vec![1, 2, 3]]),
        (json!({"buckets": 4}), vec![(demand(1, 1, 500), 1)], vec![vec![4], vec![1, 2, 3, 5]]),
        // Nothing that any node has.
        (json!(null), vec![(Demand::default(), 3)], vec![]),
        (
            json!(null),
            vec![(godel_testkit::demand(1).gpus(1, 1_000, &["T4"]), 1)],
            vec![vec![1, 2], vec![3], vec![4, 5]],
        ),
    ] {
        assert_eq!(buckets(&mut cluster(&taken), args.clone(), &wanted), expected, "{args} {wanted:?}");
    }
}

#[test]
fn nodes_that_may_not_be_used_are_in_no_bucket() {
    let mut cluster = cluster(&[Demand::default(), Demand::default()]);
    cluster
        .nodes_mut()
        .put_spec(NodeSpec { id: NodeId(1), cordoned: true, ..NodeSpec::default() }, Revision(2));
    assert_eq!(buckets(&mut cluster, Value::Null, &[(demand(1, 1, 0), 1)]), [[2]]);
}

#[test]
fn groups_are_tried_from_one_that_differs_or_by_free_room() {
    let taken = [demand(9, 0, 0), demand(5, 0, 0), demand(5, 0, 0), demand(0, 0, 0)];
    let mut cluster = cluster(&taken);
    // Room for 0, 1 + 1, 3 and 2 + 0 replicas of the larger one.
    let (_, groups) = cluster.taken_mut().domains.groups.put(&[vec![1], vec![2, 3], vec![4], vec![2]]);
    let small = cluster.shape(&demand(1, 0, 0), Pool::Guaranteed);
    let large = cluster.shape(&demand(3, 0, 0), Pool::Guaranteed);
    let keys = TopologyKeys::default();
    let wanted = [(small, 10), (large, 2)];
    for (order, unit, among, expected) in [
        (GroupOrder::Made, 2, vec![0, 1, 2, 3], vec![0, 1, 2, 3]),
        (GroupOrder::Rotating, 2, vec![0, 1, 2, 3], vec![2, 3, 0, 1]),
        (GroupOrder::Rotating, 5, vec![0, 1, 3], vec![3, 0, 1]),
        (GroupOrder::Rotating, 5, vec![], vec![]),
        (GroupOrder::FreeCapacity, 0, vec![0, 1, 2, 3], vec![1, 2, 3, 0]),
        (GroupOrder::FreeCapacity, 2, vec![0, 1, 2, 3], vec![2, 1, 3, 0]),
        (GroupOrder::FreeCapacity, 1, vec![3, 0], vec![3, 0]),
    ] {
        let of = GroupInput {
            cluster: &cluster,
            unit: UnitId(unit),
            keys: &keys,
            is_plain: true,
            wanted: &wanted,
        };
        assert_eq!(order.sort(&of, &groups, among), expected, "{order:?} of unit {unit}");
    }
}

#[test]
fn bad_groupers_are_refused_with_what_is_allowed() {
    let said = |groupers: &[(&str, Value)]| {
        let specs = groupers.iter().map(|(name, args)| spec(name, args.clone())).collect();
        profile(Some(specs)).unwrap_err().to_string()
    };
    for (groupers, expected) in [
        (
            vec![("homogeneous", Value::Null), ("unit-topologi", Value::Null)],
            "`groupers[1].name`: there is no grouper `unit-topologi` (did you mean `unit-topology`?); there are unit-topology, homogeneous, \
             resource-bucket",
        ),
        (
            vec![("homogeneous", Value::Null), ("homogeneous", json!({}))],
            "`groupers[1].name`: duplicate grouper `homogeneous`",
        ),
        (
            vec![("unit-topology", json!({"order": "free"}))],
            "`groupers[0].args.order`: unknown variant `free`, expected `rotating` or `free-capacity`; allowed is: `rotating` or \
             `free-capacity`",
        ),
        (
            vec![("homogeneous", Value::Null), ("unit-topology", json!({"orders": 1}))],
            "`groupers[1].args.orders`: `unit-topology` has no argument `orders` (did you mean `order`?); it has order",
        ),
        (
            vec![("resource-bucket", json!({"buckets": 9}))],
            "`groupers[0].args`: `buckets`: 9 is not allowed; it is 2 to 8",
        ),
        (
            vec![("resource-bucket", json!({"first": "full"}))],
            "`groupers[0].args.first`: unknown variant `full`, expected `fullest` or `emptiest`; allowed is: `fullest` or `emptiest`",
        ),
    ] {
        assert_eq!(said(&groupers), expected);
    }
}

#[test]
fn profiles_differ_by_their_groupers() {
    let topology = ["unit-topology", "homogeneous"];
    assert_eq!(named(&topology), profile(None).unwrap(), "the default, named");
    assert_eq!(named(&topology), named(&["homogeneous", "unit-topology"]), "in whichever order");
    assert_ne!(named(&topology), named(&[]));
    assert_ne!(named(&topology), named(&["unit-topology", "homogeneous", "resource-bucket"]));
    let by_room = profile(Some(vec![
        spec("unit-topology", json!({"order": "free-capacity"})),
        spec("homogeneous", Value::Null),
    ]));
    assert_ne!(named(&topology), by_room.unwrap());
    let for_all = |names| named(names).groupers().is_for_all();
    assert_eq!((for_all(&[]), for_all(&topology), for_all(&["resource-bucket"])), (false, false, true));
    assert!(GROUPERS.iter().all(|grouper| grouper.binds == topology.contains(&grouper.name)));
}
