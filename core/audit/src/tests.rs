mod budgets;
mod clauses;
mod follows;
mod late;
mod order;
mod pending;
mod pools;
mod preemptions;
mod processes;
mod room;
mod turns;
mod unreadable;

use std::{collections::BTreeMap, sync::Arc};

use godel_base::{ids::UnitId, resources::Resources};
use godel_domain::{
    allocation::DeviceSet,
    change::{Change, Lease},
    demand::{Demand, Pool},
    node::{Device, NODE_CLASS, NodeReport, NodeRuntime, NodeSpec, Taint, TaintEffect},
    pause::{Pause, Scope},
    queue_spec::QueueSpec,
    records::{Record, RecordKey},
    running_units::{Bind, Compaction, Evict, EvictionReason, Requeue, RunChange, Statuses},
    unit::{OnBelowMin, TaskGroup, Template, UnitRecord},
};
use godel_testkit::{BuildDemand as _, BuildUnit as _};

use super::{
    verdict::{Findings, N_NAMED_MAX},
    *,
};

const CPU: &str = "cpu";

fn node(id: u32, cpu: i64, models: &[&str]) -> [Change; 2] {
    let spec =
        NodeSpec { id: NodeId(id), name: format!("n{id}"), uid: format!("u-{id}"), ..NodeSpec::default() };
    let devices = models
        .iter()
        .map(|model| Device {
            kind: "gpu".to_owned(),
            model: (*model).to_owned(),
            numa_zone: 0,
            details: None,
        })
        .collect();
    let report = NodeReport {
        id: NodeId(id),
        capacity: Resources::new([(CPU, cpu)]).unwrap(),
        devices,
        ready: true,
        ..NodeReport::default()
    };
    [Change::Put(Record::NodeSpec(spec)), Change::Put(Record::NodeReport(report))]
}

fn demand(cpu: i64, gpu: Option<(u32, u32, &str)>) -> Demand {
    let demand = godel_testkit::demand(cpu);
    match gpu {
        Some((count, milli, "")) => demand.gpus(count, milli, &[]),
        Some((count, milli, model)) => demand.gpus(count, milli, &[model]),
        None => demand,
    }
}

fn spec(id: u64, replicas: u32, min_member: u32, demand: Demand) -> UnitRecord {
    godel_testkit::unit(format!("unit-{id}"))
        .id(UnitId(id))
        .uid(format!("uid-{id}"))
        .main_group(replicas, demand)
        .min_member(min_member)
        .profile("most-allocated")
}

fn unit(record: &UnitRecord) -> Change {
    Change::Put(Record::Unit(Arc::new(record.clone())))
}

fn bind(unit: &UnitRecord, places: &[(u32, u32, u64)], incarnation: u32) -> Change {
    Change::Rows(
        unit.id,
        RunChange::Bind(Bind {
            group: 0,
            standing: None,
            demand: Arc::new(unit.spec.task_groups[0].template.demand.clone()),
            pool: unit.spec.pool,
            ordinals: places.iter().map(|place| place.0).collect(),
            incarnations: vec![incarnation; places.len()],
            nodes: places.iter().map(|place| NodeId(place.1)).collect(),
            devices: places.iter().map(|place| DeviceSet(place.2)).collect(),
            zones: Vec::new(),
        }),
    )
}

fn status(unit: &UnitRecord, ordinal: u32, incarnation: u32, phase: Phase) -> Change {
    Change::Rows(
        unit.id,
        RunChange::Statuses(Statuses {
            ordinals: vec![ordinal],
            incarnations: vec![incarnation],
            phases: vec![phase],
            ..Statuses::default()
        }),
    )
}

fn evict(unit: &UnitRecord, ordinal: u32, reason: EvictionReason) -> Change {
    Change::Rows(
        unit.id,
        RunChange::Evict(Evict {
            ordinals: vec![ordinal],
            incarnations: vec![],
            reason,
            by: String::new(),
            preemptor: UnitId(0),
        }),
    )
}

/// A history of one commit per entry, and evidence in which everything agrees with it.
struct Story(Vec<Vec<Change>>);

impl Story {
    /// Two nodes with 4 CPUs and two GPUs each (A10; A10 and T4), and a gang of two on them.
    fn healthy() -> (Self, UnitRecord) {
        let gang = spec(1, 2, 2, demand(2000, Some((1, 500, "A10"))));
        let story = Self(vec![
            node(1, 4000, &["A10", "A10"]).into(),
            node(2, 4000, &["A10", "T4"]).into(),
            vec![Change::Put(Record::Lease(Lease {
                name: "binder".to_owned(),
                holder: "b".to_owned(),
                ..Lease::default()
            }))],
            vec![unit(&gang)],
            vec![bind(&gang, &[(0, 1, 0b01), (1, 2, 0b01)], 0)],
            vec![status(&gang, 0, 0, Phase::Running), status(&gang, 1, 0, Phase::Running)],
        ]);
        (story, gang)
    }

    fn then(mut self, changes: Vec<Change>) -> Self {
        self.0.push(changes);
        self
    }

    fn evidence(&self) -> Evidence {
        let commits: Vec<Commit> = (1u64..)
            .zip(&self.0)
            .map(|(revision, changes)| Commit {
                revision: Revision(revision),
                time_ms: i64::try_from(revision).unwrap() * 10,
                changes: changes.clone(),
            })
            .collect();
        let mut world = World::default();
        for commit in &commits {
            world.apply(commit, |_, _| {});
        }
        let agents: Vec<AgentReport> = world
            .nodes
            .iter()
            .map(|(id, node)| AgentReport {
                node: *id,
                name: node.name().to_owned(),
                connected: true,
                running: runs_on(&world, *id),
            })
            .collect();
        let processes = processes_of(&world, &agents);
        Evidence {
            listed: world.clone(),
            listed_again: world,
            history: History {
                floor: Revision(1),
                up_to: commits.last().unwrap().revision,
                commits,
                ..History::default()
            },
            agents,
            processes,
            ..Evidence::default()
        }
    }
}

/// Two processes of each running unit, on nodes that run any.
fn processes_of(world: &World, agents: &[AgentReport]) -> Vec<NodeProcesses> {
    let runs = |agent: &&AgentReport| {
        world.nodes[&agent.node].report.as_ref().is_some_and(|report| report.value.runtime.runs_processes())
    };
    let seen = |run: &AgentRun| RunProcesses { id: run.id, n_processes: 2 };
    let on = |agent: &AgentReport| NodeProcesses {
        node: agent.node,
        name: agent.name.clone(),
        running: agent.running.iter().map(seen).collect(),
        ..NodeProcesses::default()
    };
    agents.iter().filter(runs).map(on).collect()
}

fn runs_on(world: &World, node: NodeId) -> Vec<AgentRun> {
    let rows = world
        .units
        .iter()
        .flat_map(|(id, unit)| unit.rows.iter().map(move |(ordinal, row)| (id, ordinal, row)));
    rows.filter(|(_, _, row)| row.is_live() && row.node == node)
        .map(|(id, ordinal, row)| AgentRun {
            id: RunningUnitId::new(*id, *ordinal, row.incarnation),
            phase: row.phase,
        })
        .collect()
}

/// Exactly `expected` fails, and a violation of it says `words`.
#[track_caller]
fn only(evidence: &Evidence, expected: Invariant, words: &str) {
    let reports = check_all(evidence);
    for report in &reports {
        assert_eq!(report.holds(), report.invariant != expected, "{report}");
    }
    let report = reports.iter().find(|report| report.invariant == expected).unwrap();
    assert!(report.violations.iter().any(|violation| violation.contains(words)), "{report}");
}

/// `expected` fails among others, and a violation of it says `words`.
#[track_caller]
fn fails(evidence: &Evidence, expected: Invariant, words: &str) {
    let reports = check_all(evidence);
    let report = reports.iter().find(|report| report.invariant == expected).unwrap();
    assert!(report.violations.iter().any(|violation| violation.contains(words)), "{report}");
}

#[test]
fn a_healthy_history_holds_and_every_invariant_has_a_line() {
    let (story, gang) = Story::healthy();
    let story = story
        .then(vec![status(&gang, 0, 0, Phase::Succeeded)])
        .then(vec![unit(&gang.clone().cancelled(true))])
        .then(vec![evict(&gang, 1, EvictionReason::Cancelled)])
        .then(vec![status(&gang, 1, 0, Phase::Stopped)]);
    let reports = check_all(&story.evidence());
    assert_eq!(reports.iter().map(|report| report.invariant).collect::<Vec<_>>(), Invariant::ALL);
    for report in reports {
        assert!(report.holds(), "{report}");
        assert!(report.to_string().starts_with(&format!("{} ok  ", report.invariant)), "{report}");
    }
}

#[test]
fn i3_names_what_was_compacted_and_is_wanted_or_lives() {
    let compact = |unit: &UnitRecord, ordinal: u32| {
        let compaction = Compaction { ordinals: vec![ordinal], ..Compaction::default() };
        Change::Rows(unit.id, RunChange::Compact(compaction))
    };
    let (story, gang) = Story::healthy();
    let story = story.then(vec![compact(&gang, 1)]);
    fails(&story.evidence(), Invariant::I3, "unit-1/1 was compacted, but it has not ended");
    let (story, gang) = Story::healthy();
    let ended = story.then(vec![status(&gang, 1, 0, Phase::Succeeded)]);
    let story = ended.then(vec![compact(&gang, 1)]);
    fails(&story.evidence(), Invariant::I3, "unit-1/1 was compacted, but its unit still wants it");
    let (story, gang) = Story::healthy();
    let mut left = gang.clone();
    left.status.ordinals[0] = vec![(0, 1), (2, 2)];
    (left.spec.task_groups[0].replicas, left.spec.min_member) = (1, 1);
    let ended = story.then(vec![status(&gang, 1, 0, Phase::Succeeded)]);
    let story = ended.then(vec![unit(&left), compact(&gang, 1)]);
    for report in check_all(&story.evidence()) {
        assert!(report.holds(), "{report}");
    }
}

#[test]
fn i2_names_what_was_acknowledged_and_is_not_there() {
    let entry = |uid: &str, name: &str, revision| Acknowledged {
        uid: uid.to_owned(),
        name: name.to_owned(),
        revision: Revision(revision),
    };
    let (story, gang) = Story::healthy();
    let mut evidence = story.evidence();
    evidence.ledger = Some(vec![entry("uid-1", "unit-1", 4)]);
    assert!(check_all(&evidence).iter().all(InvariantReport::holds));
    evidence.ledger = Some(vec![entry("uid-1", "unit-1", 4), entry("uid-7", "unit-7", 5)]);
    only(&evidence, Invariant::I2, "unit unit-7 (uid-7): acknowledged at revision 5, not there");
    evidence.ledger = Some(vec![entry("uid-1", "other", 4)]);
    only(&evidence, Invariant::I2, "uid uid-1: acknowledged as other, is unit-1");
    evidence.ledger = Some(vec![entry("uid-1", "unit-1", 3)]);
    only(&evidence, Invariant::I2, "acknowledged at revision 3, but created at 4");
    let ended = story
        .then(vec![status(&gang, 0, 0, Phase::Succeeded), status(&gang, 1, 0, Phase::Succeeded)])
        .then(vec![Change::Gone(RecordKey::Unit(gang.id))]);
    let mut evidence = ended.evidence();
    evidence.ledger = Some(vec![entry("uid-1", "unit-1", 4)]);
    assert!(check_all(&evidence).iter().all(InvariantReport::holds));
}

#[test]
fn i3_names_an_incarnation_placed_twice() {
    let (story, gang) = Story::healthy();
    let story = story.then(vec![bind(&gang, &[(0, 2, 0b01)], 0)]);
    only(
        &story.evidence(),
        Invariant::I3,
        "unit-1/0 incarnation 0 placed again at revision 7: on n2 after n1",
    );
    let (story, gang) = Story::healthy();
    let story = story.then(vec![bind(&gang, &[(1, 2, 0b01)], 1)]);
    only(
        &story.evidence(),
        Invariant::I3,
        "unit-1/1 bound at revision 7 as incarnation 1 while incarnation 0 was Running",
    );
}

#[test]
fn i3_allows_the_next_incarnation_after_a_requeue() {
    let (story, gang) = Story::healthy();
    let requeue = Change::Rows(
        gang.id,
        RunChange::Requeue(Requeue { ordinals: vec![1], incarnations: vec![1], anew: false }),
    );
    let story = story.then(vec![status(&gang, 1, 0, Phase::Stopped)]).then(vec![requeue]).then(vec![bind(
        &gang,
        &[(1, 1, 0b10)],
        1,
    )]);
    assert!(check_all(&story.evidence()).iter().all(InvariantReport::holds));
}

#[test]
fn i3_names_what_agents_run_and_should_not() {
    let run = |unit, ordinal, incarnation| AgentRun {
        id: RunningUnitId::new(UnitId(unit), ordinal, incarnation),
        phase: Phase::Running,
    };
    let corrupt = |change: &dyn Fn(&mut Vec<AgentReport>), words: &str| {
        let mut evidence = Story::healthy().0.evidence();
        change(&mut evidence.agents);
        only(&evidence, Invariant::I3, words);
    };
    corrupt(
        &|agents| agents[0].running.push(run(7, 0, 0)),
        "agent n1 runs unit id 7/0 incarnation 0: was never placed",
    );
    corrupt(
        &|agents| agents[0].running[0].id.replica.incarnation = 1,
        "unit-1/0 incarnation 1: incarnation 0 is current",
    );
    corrupt(&|agents| agents[0].running.push(run(1, 1, 0)), "unit-1/1 runs on n1 and on n2");
    corrupt(&|agents| agents[1].running.clear(), "unit-1/1 is Running on n2, but its agent does not have it");
    let mut away = Story::healthy().0.evidence();
    away.agents[1].connected = false;
    away.agents[1].running.clear();
    assert!(!check_all(&away).iter().any(InvariantReport::has_failed));
}

#[test]
fn i3_leaves_out_what_has_moved_since_an_earlier_look() {
    let (story, _) = Story::healthy();
    let silent = |story: &Story, before: &Story| {
        let mut evidence = story.evidence();
        evidence.before = Some(Before::of(&before.evidence()));
        evidence.agents.iter_mut().for_each(|agent| agent.running.clear());
        evidence
    };
    only(&silent(&story, &story), Invariant::I3, "but its agent does not have it");
    let (mut earlier, _) = Story::healthy();
    earlier.0.pop();
    assert!(check_all(&silent(&story, &earlier)).iter().all(InvariantReport::holds));
}

#[test]
fn i4_names_a_gang_bound_in_part() {
    let (story, _) = Story::healthy();
    let gang = spec(2, 3, 3, demand(10, None));
    let story = story
        .then(vec![unit(&gang)])
        .then(vec![bind(&gang, &[(0, 1, 0), (1, 2, 0)], 0)])
        .then(vec![bind(&gang, &[(2, 2, 0)], 0)]);
    only(&story.evidence(), Invariant::I4, "unit unit-2: first binding of 2 at revision 8, min_member 3");
}

#[test]
fn i5_names_a_queue_above_its_maximum_and_units_without_a_queue() {
    let queue = |path: &str, max: &[(&str, i64)]| {
        let max = max.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect();
        vec![Change::Put(Record::Queue(Arc::new(QueueSpec { max, ..QueueSpec::new(path) })))]
    };
    // As revision 4, before anything is bound.
    let before = |changes: Vec<Change>| {
        let (mut story, gang) = Story::healthy();
        story.0.insert(3, changes);
        (story, gang)
    };
    let story = before(queue("default", &[(CPU, 3000)])).0;
    only(&story.evidence(), Invariant::I5, "queue default: cpu 4000 of 3000 (revision 6)");
    let story = before(queue("default", &[("gpu", 0)])).0;
    only(&story.evidence(), Invariant::I5, "queue default: gpu 1000 of 0 (revision 6)");
    let story = before(queue("default", &[(CPU, 4000), ("gpu", 1000)])).0;
    assert!(check_all(&story.evidence()).iter().all(InvariantReport::holds));
    // A list that shows another record than was committed.
    let mut evidence = story.evidence();
    let listed = evidence.listed.queues.get_mut("default").unwrap();
    listed.value = Arc::new(QueueSpec::new("default"));
    fails(&evidence, Invariant::I7, "queue default: the list and the replayed watch differ");
    fails(&evidence, Invariant::I9, "queue default: one list and another differ");
    evidence.history.floor = Revision(3);
    evidence.history.commits.drain(..2);
    fails(&evidence, Invariant::I7, "queue default: its record differs between list and watch");
    let (story, gang) = Story::healthy();
    let mut orphans = story.0;
    orphans[3] = vec![Change::Put(Record::Partition(godel_domain::change::Partition::default()))];
    let evidence = Story(orphans).evidence();
    fails(&evidence, Invariant::I5, &format!("unit id {} has running units but no record", gang.id));
}

#[test]
fn i6_names_evictions_without_a_ground() {
    for (reason, words) in [
        (EvictionReason::Cancelled, "unit-1/0 on n1: evicted as cancelled, but its unit is not"),
        (EvictionReason::ScaledIn, "evicted as scaled in, but its unit wants it"),
        (EvictionReason::NodeLost, "evicted for the loss of its node, which is ready"),
        (EvictionReason::Drained, "evicted for a drain, but its node is not drained"),
        (EvictionReason::Suspended, "evicted as suspended, but its unit was not"),
        (EvictionReason::Deadline, "evicted for its deadline, but its unit has not ended"),
        (EvictionReason::Preempted, "preempted for unit 0, but there is no such unit"),
        (EvictionReason::Squeezed, "squeezed, but its unit is guaranteed"),
        (EvictionReason::Rescheduled, "unit 1, 0 is moved, but no room is held for it"),
    ] {
        let (story, gang) = Story::healthy();
        only(&story.then(vec![evict(&gang, 0, reason)]).evidence(), Invariant::I6, words);
    }
}

#[test]
fn i6_lets_what_succeeded_before_a_retry_keep_its_eviction() {
    let cancelled = |gang: &UnitRecord| gang.clone().cancelled(true);
    let retried = |gang: &UnitRecord| gang.clone().edit(|record| record.status.retried_ms = 1);
    let (story, gang) = Story::healthy();
    let story = story
        .then(vec![unit(&cancelled(&gang))])
        .then(vec![evict(&gang, 0, EvictionReason::Cancelled), evict(&gang, 1, EvictionReason::Cancelled)])
        .then(vec![status(&gang, 0, 0, Phase::Stopped), status(&gang, 1, 0, Phase::Succeeded)]);
    let evidence = story.then(vec![unit(&retried(&gang))]).evidence();
    let report = check_all(&evidence).into_iter().find(|report| report.invariant == Invariant::I6).unwrap();
    assert!(report.holds(), "{report}");
}

#[test]
fn i7_names_gaps_repeats_and_differences_from_the_list() {
    let corrupt = |change: &dyn Fn(&mut Evidence), words: &str| {
        let mut evidence = Story::healthy().0.evidence();
        change(&mut evidence);
        fails(&evidence, Invariant::I7, words);
    };
    corrupt(&|evidence| drop(evidence.history.commits.remove(2)), "revisions 3 to 3 were not delivered");
    corrupt(
        &|evidence| drop(evidence.history.commits.pop()),
        "all up to revision 6, the last delivered is 5",
    );
    corrupt(
        &|evidence| {
            let again = evidence.history.commits[4].clone();
            evidence.history.commits.insert(5, again);
        },
        "revision 5 delivered after 5",
    );
    corrupt(
        &|evidence| drop(evidence.listed.nodes.remove(&NodeId(2))),
        "node n2 (id 2): the list and the replayed watch differ",
    );
    corrupt(
        &|evidence| evidence.listed.leases.clear(),
        "lease binder: the list and the replayed watch differ",
    );
    corrupt(
        &|evidence| {
            let rows = &mut evidence.listed.units.get_mut(&UnitId(1)).unwrap().rows;
            rows.get_mut(&1).unwrap().phase = Phase::Bound;
        },
        "unit-1/1: the list says Bound on node 2 (revision 6), the replayed watch Running on node 2",
    );
}

#[test]
fn i7_of_a_late_history_compares_what_it_touched() {
    let mut evidence = Story::healthy().0.evidence();
    evidence.history.commits.drain(..4);
    evidence.history.floor = Revision(5);
    assert!(!check_all(&evidence).iter().any(InvariantReport::has_failed));
    evidence.listed.units.get_mut(&UnitId(1)).unwrap().rows.get_mut(&0).unwrap().revision = Revision(5);
    evidence.listed_again = evidence.listed.clone();
    fails(&evidence, Invariant::I7, "unit-1/0: the watch changed it at revision 6, the list is older");
}

#[test]
fn i9_names_where_two_lists_differ() {
    let mut evidence = Story::healthy().0.evidence();
    evidence.listed_again.units.get_mut(&UnitId(1)).unwrap().rows.remove(&1);
    only(&evidence, Invariant::I9, "unit-1/1: one list says Running on node 2 (revision 6), another nothing");
}

#[test]
fn a_list_and_the_changes_after_it_make_the_same_world() {
    let (story, gang) = Story::healthy();
    let evidence = story.then(vec![status(&gang, 0, 0, Phase::Failed)]).evidence();
    let commits = &evidence.history.commits;
    // The list began at revision 4; its page of rows was read at revision 6.
    let mut listed = World::default();
    for commit in &commits[..6] {
        listed.apply(commit, |_, _| {});
    }
    listed.revision = Revision(4);
    for commit in &commits[4..] {
        listed.apply(commit, |_, _| {});
    }
    assert_eq!(listed, evidence.listed);
}

#[test]
fn many_violations_are_counted_and_the_first_named() {
    let mut findings = Findings::default();
    for n in 0..25 {
        findings.add(|| format!("violation {n}"));
    }
    let report = findings.report(Invariant::I1);
    assert_eq!((report.n_violations, report.violations.len()), (25, N_NAMED_MAX));
    assert!(report.to_string().ends_with("   and 5 more"));
}
