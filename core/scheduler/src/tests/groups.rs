//! In which groups of nodes first replicas are tried, as the groupers of profiles say.

use std::collections::BTreeSet;

use godel_base::ids::RunningUnitId;
use godel_domain::{
    allocation::Allocation,
    unit_affinity::{NODE, UnitAffinity, UnitTerm},
    unit_topology::UnitTopology,
};
use godel_framework::profile::{GrouperSpec, ProfileSpec};
use godel_placement::profiles::{ProfileSettings, Profiles};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// A scheduler with a profile `own` that packs and has these groupers, and one `plain` that packs alike.
fn scheduler(groupers: &[(&str, Value)]) -> Scheduler {
    let specs =
        groupers.iter().map(|(name, args)| GrouperSpec { name: (*name).to_owned(), args: args.clone() });
    let plain = ProfileSpec::of_scores(&[("most-allocated", 1)]);
    let own = ProfileSpec { groupers: Some(specs.collect()), ..plain.clone() };
    let own = [("own".to_owned(), own), ("plain".to_owned(), plain)].into();
    let profiles = Profiles::new(&ProfileSettings { own, ..ProfileSettings::default() }).unwrap();
    Scheduler::new(Config { name: "a".to_owned(), profiles, ..Config::default() }, 7)
}

/// Adds a node with so many milli-cores and GPUs, of which so many milli-cores are taken.
fn join(scheduler: &mut Scheduler, id: u32, rack: &str, (cpu, taken): (i64, i64), n_gpus: usize) {
    let cluster = &mut scheduler.picture.cluster;
    let labels = [("rack".to_owned(), rack.to_owned())].into();
    cluster.nodes_mut().put_spec(NodeSpec { labels, ..node_spec(id) }, Revision(1));
    cluster.nodes_mut().put_report(node_report(id, resources(cpu, 1_000), n_gpus, "A10"), Revision(1));
    let shape = cluster.shape(&demand(taken, 0), Pool::Guaranteed);
    let running = RunningUnitId::new(UnitId(1_000 + u64::from(id)), 0, 0);
    cluster.assume(running, shape, NodeId(id), Allocation::default());
}

fn demand(cpu: i64, n_gpus: u32) -> Demand {
    Demand { requests: resources(cpu, 1), devices: gpus(n_gpus, 1_000, &[]), ..Demand::default() }
}

/// The nodes of all replicas that are decided of a unit.
fn decided(scheduler: &mut Scheduler, record: &UnitRecord) -> Vec<u32> {
    scheduler.on_assign(&assignment(record, Revision(1), &all(record), 0), Millis(0));
    let decisions = scheduler.step(Millis(0), 1_000).decisions;
    let groups = decisions.iter().flat_map(|decision| &decision.groups);
    groups.flat_map(|group| &group.nodes).map(|node| node.0).collect()
}

/// Nodes of which 0, 30, 60 and 90 % are taken, twice each, the emptiest first.
fn of_four_buckets(groupers: &[(&str, Value)]) -> Scheduler {
    let mut scheduler = scheduler(groupers);
    for id in 1..=8 {
        let taken = (i64::from(id) - 1) / 2 * 3_000;
        join(&mut scheduler, id, if id % 2 == 0 { "even" } else { "odd" }, (10_000, taken), 0);
    }
    scheduler
}

#[test]
fn first_replicas_go_to_the_fullest_bucket_that_holds_them() {
    let bucket = || ("resource-bucket", Value::Null);
    let emptiest = || ("resource-bucket", json!({"first": "emptiest"}));
    for (grouper, replicas, cpu, expected) in [
        (bucket(), 2, 1_000, [7, 8]),
        // 1,000 are left on each of the fullest nodes, 4,000 on each of the next.
        (bucket(), 3, 1_000, [5, 6]),
        (bucket(), 2, 2_000, [5, 6]),
        (bucket(), 2, 5_000, [3, 4]),
        (bucket(), 4, 5_000, [1, 2]),
        (emptiest(), 2, 1_000, [1, 2]),
    ] {
        let mut scheduler = of_four_buckets(&[grouper]);
        let gang = unit(1, replicas, replicas, demand(cpu, 0)).profile("own");
        let nodes = decided(&mut scheduler, &gang);
        assert_eq!(nodes.len(), replicas as usize);
        assert!(nodes.iter().all(|node| expected.contains(node)), "{replicas} of {cpu}: {nodes:?}");
    }
}

#[test]
fn what_no_bucket_holds_goes_anywhere() {
    // Room for 0, 0, 2 and 4: five go to two buckets.
    let gang = unit(1, 5, 5, demand(5_000, 0)).profile("own");
    assert_eq!(decided(&mut of_four_buckets(&[("resource-bucket", Value::Null)]), &gang).len(), 5);
    // All that is needed fits into one bucket, the rest goes on at once.
    let most = unit(2, 22, 1, demand(1_000, 0)).profile("own");
    assert_eq!(decided(&mut of_four_buckets(&[("resource-bucket", Value::Null)]), &most).len(), 22);
    let plan = of_four_buckets(&[("resource-bucket", Value::Null)]).plan(&most.spec);
    assert_eq!((plan.outcome, plan.nodes.len()), (PlanOutcome::Fits, 22));
}

#[test]
fn a_profile_may_ignore_what_is_preferred_but_not_what_is_required() {
    let of = |required: &str, preferred: &[&str]| UnitTopology {
        required: required.to_owned(),
        preferred: preferred.iter().map(|key| (*key).to_owned()).collect(),
        ..UnitTopology::default()
    };
    let racks = |groupers: &[(&str, Value)], profile: &str, topology: &UnitTopology| {
        // Room for 9 replicas in the rack of the even nodes, if all of them are there, and for 3 in the other.
        let mut scheduler = scheduler(groupers);
        for id in 1..=6 {
            let (rack, cpu) = if id % 2 == 0 { ("even", 3_000) } else { ("odd", 1_700) };
            join(&mut scheduler, id, rack, (cpu, 0), 0);
        }
        let mut gang = unit(3, 8, 8, demand(1_000, 0)).profile(profile);
        gang.spec.topology = topology.clone();
        let nodes = decided(&mut scheduler, &gang);
        assert_eq!(nodes.len(), 8);
        nodes.iter().map(|node| node % 2).collect::<BTreeSet<_>>()
    };
    let even = BTreeSet::from([0]);
    for (groupers, topology) in [
        (vec![("unit-topology", Value::Null)], of("", &["rack"])),
        (vec![("unit-topology", json!({"order": "free-capacity"}))], of("", &["rack"])),
        (vec![], of("rack", &[])),
        (vec![("resource-bucket", Value::Null)], of("rack", &[NODE])),
    ] {
        assert_eq!(racks(&groupers, "own", &topology), even, "{groupers:?} {topology:?}");
    }
    assert_eq!(racks(&[], "plain", &of("", &["rack"])), even, "the default");
    assert_eq!(racks(&[], "own", &of("", &["rack"])), BTreeSet::from([0, 1]), "full nodes come first");
}

#[test]
fn the_rack_with_most_room_comes_first_where_a_profile_says_so() {
    // Of three racks the second one has most room.
    let rack_of = |groupers: &[(&str, Value)], id: u64| {
        let mut scheduler = scheduler(groupers);
        for node in 1..=6 {
            let (rack, cpu) = ([("a", 4_000), ("b", 6_000), ("c", 5_000)])[(node as usize - 1) / 2];
            join(&mut scheduler, node, rack, (cpu, 0), 0);
        }
        let mut gang = unit(id, 4, 4, demand(1_000, 0)).profile("own");
        gang.spec.topology = UnitTopology { required: "rack".to_owned(), ..UnitTopology::default() };
        let racks: BTreeSet<u32> = decided(&mut scheduler, &gang).iter().map(|node| (node - 1) / 2).collect();
        assert_eq!(racks.len(), 1, "{racks:?}");
        racks.into_iter().next().unwrap()
    };
    let free = [("unit-topology", json!({"order": "free-capacity"}))];
    assert_eq!([1, 2, 3].map(|id| rack_of(&free, id)), [1, 1, 1]);
    assert_eq!([1, 2, 3].map(|id| rack_of(&[("unit-topology", Value::Null)], id)), [1, 2, 0]);
}

/// A node: thousands of cpu, how many of them are taken, GPUs.
type RandomNode = (i64, i64, usize);

/// A unit: replicas, the least that are bound together, hundreds of cpu and GPUs of one replica, no two on one node.
type RandomUnit = (u32, u32, i64, u32, bool);

/// How many replicas the free room of each node holds.
fn room(nodes: &[RandomNode], (_, _, cpu, n_gpus, is_apart): RandomUnit) -> Vec<usize> {
    let of_node = |(all, taken, gpus): &RandomNode| {
        let by_cpu = usize::try_from((all - taken).max(0) * 1_000 / (cpu * 100)).unwrap();
        let fits = gpus.checked_div(n_gpus as usize).map_or(by_cpu, |by_gpus| by_gpus.min(by_cpu));
        if is_apart { fits.min(1) } else { fits }
    };
    nodes.iter().map(of_node).collect()
}

proptest! {
    /// With `resource-bucket` as many replicas get places as the nodes hold, and none if these are too few: as without it.
    #[test]
    fn what_fits_without_buckets_fits_with_them(
        nodes in prop::collection::vec((1..12i64, 0..12i64, 0..4usize), 1..14),
        (replicas, least) in (1..16u32).prop_flat_map(|n| (Just(n), 1..=n)),
        (cpu, n_gpus, is_apart) in (1..60i64, 0..3u32, any::<bool>()),
        (buckets, is_fullest, prefers) in (2..9usize, any::<bool>(), any::<bool>()),
        id in 1..50u64,
    ) {
        let unit_of = (replicas, least, cpu, n_gpus, is_apart);
        let room = room(&nodes, unit_of);
        let held: usize = room.iter().sum();
        let expected = if held >= least as usize { held.min(replicas as usize) } else { 0 };
        let first = if is_fullest { "fullest" } else { "emptiest" };
        let grouper = ("resource-bucket", json!({"buckets": buckets, "first": first}));
        for profile in ["plain", "own"] {
            let mut scheduler = scheduler(&[("unit-topology", Value::Null), grouper.clone()]);
            for (node, (cpu, taken, gpus)) in (1..).zip(&nodes) {
                let rack = if node % 3 == 0 { "a" } else { "b" };
                join(&mut scheduler, node, rack, (cpu * 1_000, taken.min(cpu) * 1_000), *gpus);
            }
            let mut record = unit(id, replicas, least, demand(cpu * 100, n_gpus)).profile(profile);
            if is_apart {
                let term = UnitTerm { units: Vec::new(), topology: NODE.to_owned(), weight: 0 };
                record.spec.affinity = UnitAffinity { apart: vec![term], ..UnitAffinity::default() };
            }
            if prefers && least == replicas {
                record.spec.topology.preferred = vec!["rack".to_owned()];
            }
            let nodes = decided(&mut scheduler, &record);
            prop_assert_eq!(nodes.len(), expected, "{}: {:?}", profile, nodes);
            for (node, held) in (1..).zip(&room) {
                prop_assert!(nodes.iter().filter(|one| **one == node).count() <= *held, "{}: {:?}", node, nodes);
            }
        }
    }
}

/// More than a first binding needs, of which the preferred rack holds only a part.
#[test]
fn replicas_beyond_the_preferred_rack_go_elsewhere() {
    let mut scheduler = scheduler(&[]);
    for id in 1..=4 {
        join(&mut scheduler, id, if id > 2 { "a" } else { "b" }, (3_000, 0), 0);
    }
    let mut record = unit(1, 8, 4, demand(1_000, 0)).profile("plain");
    record.spec.topology = UnitTopology { preferred: vec!["rack".to_owned()], ..UnitTopology::default() };
    assert_eq!(decided(&mut scheduler, &record).len(), 8);
}

#[test]
fn a_gang_that_has_to_be_near_to_itself_is_placed_where_all_of_it_fits() {
    // The best node of all is in the rack that has no room for the rest.
    let labels = || [("app".to_owned(), "x".to_owned())].into();
    let selected = vec![godel_domain::label_expression::LabelExpression {
        key: "app".to_owned(),
        operator: godel_domain::label_expression::LabelOperator::In,
        values: vec!["x".to_owned()],
    }];
    for (units, is_gang) in [(Vec::new(), true), (Vec::new(), false), (selected, true)] {
        let mut scheduler = scheduler(&[]);
        join(&mut scheduler, 1, "a", (10_000, 8_000), 0);
        for id in 2..=3 {
            join(&mut scheduler, id, "b", (10_000, 1_000), 0);
        }
        let mut gang = unit(1, 6, if is_gang { 6 } else { 1 }, demand(2_000, 0)).profile("plain");
        gang.spec.labels = labels();
        gang.spec.affinity.near.push(UnitTerm { units, topology: "rack".to_owned(), weight: 0 });
        let nodes = decided(&mut scheduler, &gang);
        if is_gang {
            assert_eq!((nodes.len(), nodes.contains(&1)), (6, false), "{nodes:?}");
        } else {
            assert!(!nodes.is_empty(), "the first replica goes where it fits");
        }
    }
}
