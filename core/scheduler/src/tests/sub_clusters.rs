//! Sub-clusters: whose nodes are looked at, whose turn it is, by which scores.

use std::collections::BTreeSet;

use godel_domain::{change::PartitionMode, records::Record, sub_cluster::KEY};
use godel_framework::profile::ProfileSpec;
use godel_placement::profiles::ProfileSettings;
use proptest::prelude::*;

use super::*;

fn labels(sub_cluster: &str) -> BTreeMap<String, String> {
    let named = (!sub_cluster.is_empty()).then(|| (KEY.to_owned(), sub_cluster.to_owned()));
    named.into_iter().collect()
}

fn join(scheduler: &mut Scheduler, id: u32, sub_cluster: &str, cpu: i64) {
    let report = NodeReport {
        attributes: labels(sub_cluster),
        max_running_units: 100_000,
        ..node_report(id, resources(cpu, 1_000_000), 0, "")
    };
    scheduler.load(&Change::Put(Record::NodeReport(report)), Revision(1), 0, Millis(0));
    scheduler.load(&Change::Put(Record::NodeSpec(node_spec(id))), Revision(1), 0, Millis(0));
}

/// Wants one CPU each.
fn located(id: u64, replicas: u32, sub_cluster: &str) -> UnitRecord {
    wants(id, replicas, sub_cluster, 1_000)
}

fn wants(id: u64, replicas: u32, sub_cluster: &str, cpu: i64) -> UnitRecord {
    let mut record = unit(
        id,
        replicas,
        1,
        Demand { requests: resources(cpu, 1), devices: Vec::new(), host_ports: Vec::new(), zones: None },
    );
    record.spec.task_groups[0].template.node_selector = labels(sub_cluster);
    record
}

fn assign(scheduler: &mut Scheduler, record: &UnitRecord) {
    assign_with(scheduler, record, Permit::default());
}

fn assign_with(scheduler: &mut Scheduler, record: &UnitRecord, permit: Permit) {
    let assigned = Assignment { permit, ..assignment(record, Revision(1), &all(record), 0) };
    scheduler.on_assign(&assigned, Millis(0));
}

fn decided(step: &Step) -> Vec<u64> {
    step.decisions.iter().map(|decision| decision.unit.0).collect()
}

fn config(profiles: Profiles) -> Config {
    Config { name: "a".to_owned(), profiles, ..Config::default() }
}

fn scheduler() -> Scheduler {
    Scheduler::new(config(Profiles::default()), 7)
}

#[test]
fn a_thousand_parked_units_do_not_delay_another_workflow() {
    for (other, pool) in [("b", Pool::Guaranteed), ("", Pool::Guaranteed), ("a", Pool::BestEffort)] {
        let mut scheduler = scheduler();
        join(&mut scheduler, 1, "a", 2_000);
        join(&mut scheduler, 2, "b", 2_000);
        for id in 1..=1_000 {
            // Different ones: each is a look of its own, and first by priority.
            let cpu = 10_000 + i64::try_from(id).unwrap();
            assign(&mut scheduler, &wants(id, 1, "a", cpu).priority(100));
        }
        assign(&mut scheduler, &located(2_000, 1, other).pool(pool));
        let step = scheduler.step(Millis(0), 2);
        assert_eq!(decided(&step), [2_000], "{other:?} {pool:?}");
        assert_eq!(step.reports.len(), 1, "one of the thousand was tried before");
        let rest = scheduler.step(Millis(0), 5_000);
        assert_eq!(rest.reports.len(), 999);
    }
}

#[test]
fn workflows_with_work_have_equal_shares() {
    let mut scheduler = scheduler();
    join(&mut scheduler, 1, "a", 100_000_000);
    join(&mut scheduler, 2, "b", 100_000_000);
    assign(&mut scheduler, &located(1, 20_000, "a").priority(9));
    for id in 2..=10_001 {
        assign(&mut scheduler, &located(id, 1, "b"));
    }
    scheduler.in_flight = InFlight::new(1 << 20);
    for _ in 0..21 {
        // What may be in flight grows with each round of answers.
        scheduler.in_flight.count_answers(1 << 30, 0, 0);
    }
    let mut placed = [0; 2];
    for decision in scheduler.step(Millis(0), 8_192).decisions {
        placed[usize::from(decision.unit.0 > 1)] += decision.len();
    }
    assert_eq!(placed, [4_096, 4_096]);
}

#[test]
fn a_unit_is_woken_by_room_in_its_own_sub_cluster_only() {
    let mut scheduler = scheduler();
    join(&mut scheduler, 1, "a", 500);
    join(&mut scheduler, 2, "b", 500);
    assign(&mut scheduler, &located(1, 1, "a"));
    let step = scheduler.step(Millis(0), 10);
    assert_eq!(step.reports[0].state, ReportState::Parked);
    let refusals = step.reports[0].refusals.clone().unwrap();
    let count = |plugin: &'static str, reason: &str| RefusalCount {
        plugin: plugin.into(),
        reason: reason.into(),
        nodes: 1,
    };
    let other = format!("no label {KEY}=a");
    assert_eq!(
        refusals.reasons,
        [count("node-selector", &other), count("resources-fit", "insufficient cpu")]
    );
    assert_eq!((refusals.nodes, refusals.nearest_miss.contains("n1 lacks cpu")), (2, true), "{refusals:?}");
    join(&mut scheduler, 2, "b", 5_000);
    join(&mut scheduler, 3, "", 5_000);
    assert_eq!(scheduler.step(Millis(1), 10), Step::default());
    // A node that comes over counts as room, one that goes does not.
    join(&mut scheduler, 3, "a", 5_000);
    let step = step_and_call(&mut scheduler, Millis(2), 10);
    assert_eq!(step.decisions[0].groups[0].nodes, [NodeId(3)]);
    join(&mut scheduler, 3, "b", 5_000);
    assign(&mut scheduler, &located(2, 1, "a"));
    assert!(scheduler.step(Millis(3), 10).decisions.is_empty());
}

#[test]
fn the_profile_of_a_sub_cluster_decides_there_and_nowhere_else() {
    let pack = ("pack".to_owned(), ProfileSpec::of_scores(&[("most-allocated", 1)]));
    let by_sub_cluster =
        ["nobody", "a"].map(|sub_cluster| (sub_cluster.to_owned(), "pack".to_owned())).into();
    let settings = ProfileSettings { own: [pack].into(), by_sub_cluster, ..ProfileSettings::default() };
    let mut scheduler = Scheduler::new(config(Profiles::new(&settings).unwrap()), 7);
    for (id, sub_cluster) in [(1, "a"), (2, "a"), (3, "b"), (4, "b")] {
        join(&mut scheduler, id, sub_cluster, 8_000);
    }
    let spread = |id, sub_cluster| located(id, 1, sub_cluster).class(WorkloadClass::Service).profile("");
    let mut places: BTreeMap<&str, BTreeSet<NodeId>> = BTreeMap::new();
    for id in 1..=4 {
        for sub_cluster in ["a", "b"] {
            assign(&mut scheduler, &spread(id * 10 + u64::from(sub_cluster == "b"), sub_cluster));
            let step = scheduler.step(Millis(0), 10);
            places.entry(sub_cluster).or_default().extend(&step.decisions[0].groups[0].nodes);
        }
    }
    assert_eq!((places["a"].len(), places["b"].len()), (1, 2), "{places:?}");
}

#[test]
fn a_unit_waits_whose_profile_is_not_configured() {
    let mut scheduler = scheduler();
    join(&mut scheduler, 1, "a", 5_000);
    join(&mut scheduler, 2, "b", 5_000);
    let unit = located(1, 1, "a").profile("fast");
    assign(&mut scheduler, &unit);
    let step = scheduler.step(Millis(0), 10);
    assert_eq!(step.reports[0].state, ReportState::Parked);
    let refusals = step.reports[0].refusals.clone().unwrap();
    let reason = "the scheduler has no profile `fast`; it has least-allocated, most-allocated".to_owned();
    assert_eq!(
        refusals.reasons,
        [RefusalCount { nodes: 2, ..RefusalCount::waits(WaitReason::Profile, reason) }]
    );
    // No room wakes it, and it does not keep others waiting.
    join(&mut scheduler, 3, "a", 9_000);
    assert_eq!(scheduler.step(Millis(1), 10), Step::default());
    assign(&mut scheduler, &located(2, 1, "a"));
    assert_eq!(decided(&scheduler.step(Millis(2), 10)), [2]);
}

#[test]
fn a_partition_without_the_sub_cluster_returns_the_unit() {
    let mut scheduler = scheduler();
    join(&mut scheduler, 1, "a", 2_000);
    join(&mut scheduler, 2, "b", 2_000);
    let schedulers = vec!["a".to_owned(), "other".to_owned()];
    let slots = vec![(NodeId(1), 0), (NodeId(2), 1)];
    let mode = PartitionMode::Strict;
    scheduler.on_partition(&Partition { mode, generation: 1, schedulers, slots, ..Partition::default() });
    assign(&mut scheduler, &located(1, 1, "b"));
    let step = scheduler.step(Millis(0), 10);
    assert_eq!((decided(&step), step.reports[0].state), (vec![], ReportState::Returned));
    assign_with(&mut scheduler, &located(1, 1, "b"), ANYWHERE);
    assert_eq!(scheduler.step(Millis(0), 10).decisions[0].groups[0].nodes, [NodeId(2)]);
}

#[test]
fn looking_for_a_place_costs_what_the_sub_cluster_has() {
    let mut scheduler = scheduler();
    for id in 1..=2_000 {
        // Five in the middle, far apart, and full.
        let (sub_cluster, cpu) = if id % 400 == 200 { ("a", 0) } else { ("b", 8_000) };
        join(&mut scheduler, id, sub_cluster, cpu);
    }
    assign(&mut scheduler, &located(1, 1, "a"));
    let step = scheduler.step(Millis(0), 10);
    assert_eq!(step.reports[0].state, ReportState::Parked);
    assert!(
        scheduler.picture.placer.n_looked <= 10,
        "{} blocks and nodes",
        scheduler.picture.placer.n_looked
    );
    let refusals = step.reports[0].refusals.as_ref().unwrap();
    let counts: Vec<_> = refusals.reasons.iter().map(|one| (&*one.plugin, one.nodes)).collect();
    assert_eq!(counts, [("node-selector", 1_995), ("resources-fit", 5)]);
}

#[derive(Clone, Debug)]
struct LocatedNode {
    id: u32,
    sub_cluster: &'static str,
    n_free: u32,
    is_own: bool,
}

fn nodes() -> impl Strategy<Value = Vec<LocatedNode>> {
    let node = (1..40u32, prop::sample::select(vec!["a", "b", "c", ""]), 0..4u32, any::<bool>());
    prop::collection::vec(node, 1..60).prop_map(|nodes| {
        let mut id = 0;
        let each = nodes.into_iter().map(|(gap, sub_cluster, n_free, is_own)| {
            id += gap;
            LocatedNode { id, sub_cluster, n_free, is_own }
        });
        each.collect()
    })
}

proptest! {
    /// What a unit of a sub-cluster gets is what the nodes of it have that its scheduler may use, one by one: as many, each as
    /// often, and no others.
    #[test]
    fn located_nodes_are_those_of_the_naive_filter(
        nodes in nodes(),
        units in prop::collection::vec((1..30u32, prop::sample::select(vec!["a", "b", "c", "d"])), 1..12),
        mode in prop::sample::select(vec![PartitionMode::Global, PartitionMode::Preferred, PartitionMode::Strict]),
        is_wide in any::<bool>(),
        (cache, limit_scan, surplus) in (any::<bool>(), any::<bool>(), 0..5u32),
    ) {
        let config = Config { cache, limit_scan, surplus, preemption: false, ..config(Profiles::default()) };
        let mut scheduler = Scheduler::new(config, 7);
        for node in &nodes {
            join(&mut scheduler, node.id, node.sub_cluster, i64::from(node.n_free) * 1_000);
        }
        let slots = nodes.iter().map(|node| (NodeId(node.id), u32::from(!node.is_own))).collect();
        let schedulers = vec!["a".to_owned(), "other".to_owned()];
        scheduler.on_partition(&Partition { mode, generation: 1, schedulers, slots, ..Partition::default() });
        let mut left: BTreeMap<u32, u32> = nodes.iter().map(|node| (node.id, node.n_free)).collect();
        for (id, (replicas, sub_cluster)) in (1..).zip(&units) {
            let may = |node: &&LocatedNode| {
                let reaches = mode != PartitionMode::Strict || is_wide || node.is_own;
                reaches && node.sub_cluster == *sub_cluster
            };
            let may: BTreeSet<u32> = nodes.iter().filter(may).map(|node| node.id).collect();
            let n_fit: u32 = may.iter().map(|id| left[id]).sum();
            let permit = if is_wide { ANYWHERE } else { Permit::default() };
            assign_with(&mut scheduler, &located(id, *replicas, sub_cluster), permit);
            let mut n_placed = 0;
            let mut is_on_others = false;
            loop {
                let step = scheduler.step(Millis(id), 7);
                if step.decisions.is_empty() {
                    break;
                }
                for decision in &step.decisions {
                    for node in &decision.groups[0].nodes {
                        prop_assert!(may.contains(&node.0), "{} is none of {}'s", node, sub_cluster);
                        let is_own = nodes.iter().any(|one| one.id == node.0 && one.is_own);
                        prop_assert!(mode == PartitionMode::Global || !is_own || !is_on_others, "own ones come first");
                        is_on_others |= !is_own;
                        let left = left.get_mut(&node.0).unwrap();
                        prop_assert!(*left > 0);
                        *left -= 1;
                        n_placed += 1;
                    }
                    let revision = Revision(decision.id + 10);
                    let outcome = Outcome { decision_id: decision.id, unit: decision.unit, revision, ..Outcome::default() };
                    scheduler.on_outcome(&outcome, Millis(id));
                }
            }
            prop_assert_eq!(n_placed, n_fit.min(*replicas));
            scheduler.on_revoke(UnitId(id));
        }
    }
}
