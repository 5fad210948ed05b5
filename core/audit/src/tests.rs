mod budgets;
mod clauses;
mod late;
mod order;
mod pending;
mod pools;
mod preemptions;
mod turns;
mod unreadable;

use std::{collections::BTreeMap, sync::Arc};

use godel_domain::{
    change::{Change, Lease},
    demand::{Demand, DeviceRequest, Pool},
    node::{Device, NodeReport, NodeSpec, Taint, TaintEffect},
    pause::{Pause, Scope},
    queue_spec::QueueSpec,
    resources::Resources,
    running_units::{Bind, Evict, EvictionReason, Requeue, RunChange, Statuses},
    unit::{RestartPolicy, ScoringProfile, TaskGroup, Template, UnitSpec, WorkloadClass},
};

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
        .map(|model| Device { kind: "gpu".to_owned(), model: (*model).to_owned(), numa_zone: 0 })
        .collect();
    let report = NodeReport {
        id: NodeId(id),
        capacity: Resources::new([(CPU, cpu)]).unwrap(),
        devices,
        ready: true,
        ..NodeReport::default()
    };
    [Change::NodeSpec(spec), Change::NodeReport(report)]
}

fn demand(cpu: i64, gpu: Option<(u32, u32, &str)>) -> Demand {
    let devices = gpu.map(|(count, milli, model)| DeviceRequest {
        kind: "gpu".to_owned(),
        count,
        milli,
        models: if model.is_empty() { Vec::new() } else { vec![model.to_owned()] },
    });
    Demand { requests: Resources::new([(CPU, cpu)]).unwrap(), devices }
}

fn spec(id: u64, replicas: u32, min_member: u32, demand: Demand) -> UnitSpec {
    UnitSpec {
        id: UnitId(id),
        namespace: "default".to_owned(),
        name: format!("unit-{id}"),
        uid: format!("uid-{id}"),
        labels: BTreeMap::new(),
        owner: String::new(),
        class: WorkloadClass::Batch,
        task_groups: vec![TaskGroup {
            name: "main".to_owned(),
            replicas,
            template: Template { demand, ..Template::default() },
            ordinals: vec![(0, replicas)],
        }],
        min_member,
        queue: "default".to_owned(),
        priority: 0,
        priority_class: String::new(),
        pool: Pool::Guaranteed,
        restart_policy: RestartPolicy::Never,
        scoring: ScoringProfile::MostAllocated,
        ttl_after_finished_ms: 0,
        cancelled: false,
        suspended: false,
        on_failure: Default::default(),
        whole_restarts: 0,
        restarting: false,
        submitted: None,
        scheduling_timeout_ms: 0,
        active_deadline_ms: 0,
        max_restarts: 0,
        on_eviction: Default::default(),
        on_below_min: Default::default(),
        ended: None,
        preemptible: true,
        min_run_ms: 0,
    }
}

fn unit(spec: &UnitSpec) -> Change {
    Change::UnitSpec(Arc::new(spec.clone()))
}

fn bind(unit: &UnitSpec, places: &[(u32, u32, u64)], incarnation: u32) -> Change {
    Change::Rows(
        unit.id,
        RunChange::Bind(Bind {
            group: 0,
            standing: None,
            demand: Arc::new(unit.task_groups[0].template.demand.clone()),
            pool: unit.pool,
            ordinals: places.iter().map(|place| place.0).collect(),
            incarnations: vec![incarnation; places.len()],
            nodes: places.iter().map(|place| NodeId(place.1)).collect(),
            device_masks: places.iter().map(|place| place.2).collect(),
        }),
    )
}

fn status(unit: &UnitSpec, ordinal: u32, incarnation: u32, phase: Phase) -> Change {
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

fn evict(unit: &UnitSpec, ordinal: u32, reason: EvictionReason) -> Change {
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
    fn healthy() -> (Self, UnitSpec) {
        let gang = spec(1, 2, 2, demand(2000, Some((1, 500, "A10"))));
        let story = Self(vec![
            node(1, 4000, &["A10", "A10"]).into(),
            node(2, 4000, &["A10", "T4"]).into(),
            vec![Change::Lease(Lease {
                name: "binder".to_owned(),
                holder: "b".to_owned(),
                ..Lease::default()
            })],
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
        let agents = world
            .nodes
            .iter()
            .map(|(id, node)| AgentReport {
                node: *id,
                name: node.name().to_owned(),
                connected: true,
                running: runs_on(&world, *id),
            })
            .collect();
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
            ..Evidence::default()
        }
    }
}

fn runs_on(world: &World, node: NodeId) -> Vec<AgentRun> {
    let rows = world
        .units
        .iter()
        .flat_map(|(id, unit)| unit.rows.iter().map(move |(ordinal, row)| (id, ordinal, row)));
    rows.filter(|(_, _, row)| row.is_live() && row.node == node)
        .map(|(id, ordinal, row)| AgentRun {
            unit: *id,
            ordinal: *ordinal,
            incarnation: row.incarnation,
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
        .then(vec![unit(&UnitSpec { cancelled: true, ..gang.clone() })])
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
fn i1_names_the_node_with_too_much_cpu_also_in_the_past() {
    let (story, _) = Story::healthy();
    let big = spec(2, 1, 1, demand(3000, None));
    let story = story.then(vec![unit(&big)]).then(vec![bind(&big, &[(0, 1, 0)], 0)]);
    only(&story.evidence(), Invariant::I1, "node n1: guaranteed cpu 5000 of 4000 (revision 8)");
    let past = Story(story.0).then(vec![status(&big, 0, 0, Phase::Succeeded)]);
    only(&past.evidence(), Invariant::I1, "(revision 8)");
}

#[test]
fn i1_counts_what_is_evicting_against_a_new_binding_only() {
    let (story, gang) = Story::healthy();
    let scaled = UnitSpec { cancelled: true, ..gang.clone() };
    let big = spec(2, 1, 1, demand(3000, None));
    let story = story
        .then(vec![unit(&scaled)])
        .then(vec![evict(&gang, 0, EvictionReason::Cancelled)])
        .then(vec![unit(&big), bind(&big, &[(0, 1, 0)], 0)]);
    only(&story.evidence(), Invariant::I1, "node n1: guaranteed cpu 5000 of 4000 (revision 9)");
    let (story, gang) = Story::healthy();
    let shrunk = story
        .then(vec![unit(&scaled), evict(&gang, 0, EvictionReason::Cancelled)])
        .then(vec![Change::NodeGrant(NodeId(1), Resources::new([(CPU, 1000)]).unwrap())]);
    assert!(check_all(&shrunk.evidence()).iter().all(Report::holds));
}

#[test]
fn i1_counts_the_running_units_of_a_node() {
    let [spec_of, report_of] = node(1, 4000, &[]);
    let Change::NodeReport(report_of) = report_of else { panic!("{report_of:?}") };
    for (most, wrong) in [(2, false), (1, true)] {
        let few = Change::NodeReport(NodeReport { max_running_units: most, ..report_of.clone() });
        let pair = spec(1, 2, 1, Demand::default());
        let story = Story(Vec::new()).then(vec![spec_of.clone(), few]).then(vec![unit(&pair)]);
        let story = story.then(vec![bind(&pair, &[(0, 1, 0), (1, 1, 0)], 0)]);
        if wrong {
            only(&story.evidence(), Invariant::I1, "node n1: guaranteed running-units 2 of 1 (revision 3)");
        } else {
            assert!(check_all(&story.evidence()).iter().all(Report::holds));
        }
    }
}

#[test]
fn i1_lets_a_shrunk_node_keep_what_it_has_and_get_no_more_of_what_is_short() {
    let (story, gang) = Story::healthy();
    let [_, less] = node(1, 1000, &[]);
    let shrunk = story.then(vec![less]);
    let all_hold = |story: &Story| check_all(&story.evidence()).iter().all(Report::holds);
    assert!(all_hold(&shrunk));
    let small = spec(2, 1, 1, demand(100, None));
    let bound = Story(shrunk.0.clone()).then(vec![unit(&small)]).then(vec![bind(&small, &[(0, 1, 0)], 0)]);
    only(&bound.evidence(), Invariant::I1, "node n1: guaranteed cpu 2100 of 1000 (revision 9)");
    let ended = vec![status(&gang, 0, 0, Phase::Succeeded)];
    // What takes nothing of what is short may come, in whichever pool.
    let other = Demand { requests: Resources::new([("memory", 0)]).unwrap(), devices: None };
    let idle = UnitSpec { pool: Pool::BestEffort, ..spec(2, 1, 1, other.clone()) };
    for harmless in [spec(2, 1, 1, other), idle] {
        let bound =
            Story(shrunk.0.clone()).then(vec![unit(&harmless)]).then(vec![bind(&harmless, &[(0, 1, 0)], 0)]);
        assert!(all_hold(&bound));
    }
    let squeezed = UnitSpec { pool: Pool::BestEffort, ..small.clone() };
    let bound =
        Story(shrunk.0.clone()).then(vec![unit(&squeezed)]).then(vec![bind(&squeezed, &[(0, 1, 0)], 0)]);
    only(&bound.evidence(), Invariant::I1, "node n1: best-effort cpu 100 of 0 (revision 9)");
    let fits = shrunk.then(ended).then(vec![unit(&small)]).then(vec![bind(&small, &[(0, 1, 0)], 0)]);
    assert!(all_hold(&fits));
}

#[test]
fn i1_no_longer_spares_a_shrunk_node_once_what_is_left_there_fits() {
    let (story, gang) = Story::healthy();
    let small = spec(2, 1, 1, demand(100, None));
    let [_, less] = node(1, 1000, &["A10", "A10"]);
    let shrunk = story.then(vec![unit(&small)]).then(vec![bind(&small, &[(0, 1, 0)], 0)]).then(vec![less]);
    let granted = |cpu| vec![Change::NodeGrant(NodeId(1), Resources::new([(CPU, cpu)]).unwrap())];
    let still = Story(shrunk.0.clone()).then(granted(50));
    assert!(check_all(&still.evidence()).iter().all(Report::holds));
    let fits = shrunk.then(vec![status(&gang, 0, 0, Phase::Succeeded)]);
    only(
        &fits.then(granted(50)).evidence(),
        Invariant::I1,
        "node n1: guaranteed cpu 100 of 50 (revision 11)",
    );
}

#[test]
fn i1_lets_a_node_with_fewer_or_other_devices_keep_those_it_has_and_give_no_more_of_that_kind() {
    let all_hold = |story: &Story| {
        check_all(&story.evidence())
            .iter()
            .filter(|report| !report.holds())
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    let device =
        |kind: &str, model: &str| Device { kind: kind.to_owned(), model: model.to_owned(), numa_zone: 0 };
    let report = |devices: Vec<Device>| {
        let [_, report] = node(1, 4000, &[]);
        let Change::NodeReport(report) = report else { unreachable!() };
        vec![Change::NodeReport(NodeReport { devices, ..report })]
    };
    let (gpu, npu) = (|| device("gpu", "A10"), || device("npu", "X"));
    let held = spec(1, 1, 1, demand(10, Some((1, 1000, "A10"))));
    let story = || {
        let [spec, _] = node(1, 0, &[]);
        let with = [vec![spec], report(vec![npu(), gpu(), gpu()])].concat();
        Story(vec![with, vec![unit(&held)], vec![bind(&held, &[(0, 1, 0b100)], 0)]])
    };
    // As they were, gone, of another kind, of another model.
    for (devices, is_short) in [
        (vec![npu(), gpu(), gpu()], false),
        (vec![npu(), gpu()], true),
        (vec![npu(), gpu(), npu()], true),
        (vec![npu(), gpu(), device("gpu", "T4")], true),
    ] {
        let shrunk = || story().then(report(devices.clone()));
        assert_eq!(all_hold(&shrunk()), [""; 0], "{devices:?}");
        let taking = |kind: &str, mask: u64| {
            let mut wanted = demand(10, Some((1, 1000, "")));
            kind.clone_into(&mut wanted.devices.as_mut().unwrap().kind);
            let wanted = spec(2, 1, 1, wanted);
            shrunk().then(vec![unit(&wanted)]).then(vec![bind(&wanted, &[(0, 1, mask)], 0)])
        };
        if is_short {
            only(
                &taking("gpu", 0b010).evidence(),
                Invariant::I1,
                "node n1: gpu held that it no longer has (revision 6)",
            );
        } else {
            assert_eq!(all_hold(&taking("gpu", 0b010)), [""; 0]);
        }
        assert_eq!(all_hold(&taking("npu", 0b001)), [""; 0], "{devices:?}");
        let plain = spec(2, 1, 1, demand(10, None));
        // Who leaves is there until it has left: what takes none of it may come meanwhile.
        let leaving = shrunk()
            .then(vec![evict(&held, 0, EvictionReason::Drained)])
            .then(vec![unit(&plain)])
            .then(vec![bind(&plain, &[(0, 1, 0)], 0)]);
        let i1 = check_all(&leaving.evidence())
            .into_iter()
            .find(|report| report.invariant == Invariant::I1)
            .unwrap();
        assert!(i1.holds(), "{i1}");
        // Once it has ended all is as ever.
        let wanted = spec(2, 1, 1, demand(10, Some((1, 1000, ""))));
        let fits = shrunk()
            .then(vec![status(&held, 0, 0, Phase::Succeeded)])
            .then(vec![unit(&wanted)])
            .then(vec![bind(&wanted, &[(0, 1, 0b010)], 0)]);
        assert_eq!(all_hold(&fits), [""; 0], "{devices:?}");
    }
}

#[test]
fn i8_knows_that_a_node_short_of_a_kind_of_devices_gives_none_away() {
    let held = spec(1, 1, 1, demand(10, Some((1, 1000, ""))));
    let waits = spec(2, 1, 1, demand(10, Some((1, 1000, ""))));
    let story = || {
        Story(vec![
            node(1, 4000, &["A10", "A10"]).into(),
            vec![unit(&held)],
            vec![bind(&held, &[(0, 1, 0b10)], 0)],
        ])
    };
    let [_, less] = node(1, 4000, &["A10"]);
    let shrunk = story().then(vec![less]).then(vec![unit(&waits)]);
    assert!(check_all(&shrunk.evidence()).iter().all(Report::holds));
    only(&story().then(vec![unit(&waits)]).evidence(), Invariant::I8, "unit-2 (id 2) waits, but fits on n1");
}

#[test]
fn i1_names_devices_shared_too_much_and_of_the_wrong_model() {
    let (story, _) = Story::healthy();
    let share = spec(2, 1, 1, demand(10, Some((1, 600, ""))));
    let taken = Story(story.0.clone()).then(vec![unit(&share)]).then(vec![bind(&share, &[(0, 1, 0b01)], 0)]);
    only(&taken.evidence(), Invariant::I1, "node n1: device 0 1100 of 1000 milli");
    let picky = spec(2, 1, 1, demand(10, Some((1, 1000, "A10"))));
    for (mask, words) in [
        (0b10, "unit-2/0 on n2: device 1 is a T4, not one of A10"),
        (0b11, "unit-2/0 on n2: 2 devices instead of 1"),
        (0b100, "device 2 does not exist"),
    ] {
        let wrong =
            Story(story.0.clone()).then(vec![unit(&picky)]).then(vec![bind(&picky, &[(0, 2, mask)], 0)]);
        fails(&wrong.evidence(), Invariant::I1, words);
    }
}

#[test]
fn i1_names_a_node_that_does_not_exist() {
    let (story, _) = Story::healthy();
    let lost = spec(2, 1, 1, demand(10, None));
    let story = story.then(vec![unit(&lost)]).then(vec![bind(&lost, &[(0, 9, 0)], 0)]);
    only(&story.evidence(), Invariant::I1, "node 9, which does not exist");
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
    assert!(check_all(&evidence).iter().all(Report::holds));
    evidence.ledger = Some(vec![entry("uid-1", "unit-1", 4), entry("uid-7", "unit-7", 5)]);
    only(&evidence, Invariant::I2, "unit unit-7 (uid-7): acknowledged at revision 5, not there");
    evidence.ledger = Some(vec![entry("uid-1", "other", 4)]);
    only(&evidence, Invariant::I2, "uid uid-1: acknowledged as other, is unit-1");
    evidence.ledger = Some(vec![entry("uid-1", "unit-1", 3)]);
    only(&evidence, Invariant::I2, "acknowledged at revision 3, but created at 4");
    let ended = story
        .then(vec![status(&gang, 0, 0, Phase::Succeeded), status(&gang, 1, 0, Phase::Succeeded)])
        .then(vec![Change::UnitDeleted(gang.id)]);
    let mut evidence = ended.evidence();
    evidence.ledger = Some(vec![entry("uid-1", "unit-1", 4)]);
    assert!(check_all(&evidence).iter().all(Report::holds));
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
    let requeue =
        Change::Rows(gang.id, RunChange::Requeue(Requeue { ordinals: vec![1], incarnations: vec![1] }));
    let story = story.then(vec![status(&gang, 1, 0, Phase::Stopped)]).then(vec![requeue]).then(vec![bind(
        &gang,
        &[(1, 1, 0b10)],
        1,
    )]);
    assert!(check_all(&story.evidence()).iter().all(Report::holds));
}

#[test]
fn i3_names_what_agents_run_and_should_not() {
    let run = |unit, ordinal, incarnation| AgentRun {
        unit: UnitId(unit),
        ordinal,
        incarnation,
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
        &|agents| agents[0].running[0].incarnation = 1,
        "unit-1/0 incarnation 1: incarnation 0 is current",
    );
    corrupt(&|agents| agents[0].running.push(run(1, 1, 0)), "unit-1/1 runs on n1 and on n2");
    corrupt(&|agents| agents[1].running.clear(), "unit-1/1 is Running on n2, but its agent does not have it");
    let mut away = Story::healthy().0.evidence();
    away.agents[1].connected = false;
    away.agents[1].running.clear();
    assert!(!check_all(&away).iter().any(Report::has_failed));
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
    assert!(check_all(&silent(&story, &earlier)).iter().all(Report::holds));
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
        vec![Change::Queue(Arc::new(QueueSpec { max, ..QueueSpec::new(path) }))]
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
    assert!(check_all(&story.evidence()).iter().all(Report::holds));
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
    orphans[3] = vec![Change::Partition(godel_domain::change::Partition::default())];
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
        (EvictionReason::Rescheduled, "evicted for a reason that nothing in this version may give"),
    ] {
        let (story, gang) = Story::healthy();
        only(&story.then(vec![evict(&gang, 0, reason)]).evidence(), Invariant::I6, words);
    }
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
    assert!(!check_all(&evidence).iter().any(Report::has_failed));
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
