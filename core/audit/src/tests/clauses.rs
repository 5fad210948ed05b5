//! Every clause of every invariant has evidence that breaks it, and that nothing else in it does: without its check the
//! words are not found. What a commit breaks is found from a late history, too, and from one whose start is several
//! revisions wide.

mod moves;
mod surges;

use godel_base::ids::{HoldId, RunningUnitId};
use godel_domain::{
    hold::{GangTurn, Hold, MovementTarget, Slot},
    queue_spec::PriorityClass,
    records::{Record, RecordKey},
    reservation_spec::ReservationSpec,
    running_units::PreemptionTerms,
};
use godel_testkit::{BuildUnit as _, web_budget};

use super::{
    late::{cut, cut_wide},
    preemptions::{lone, preempted},
    *,
};

/// Evidence that breaks one clause, and in which words that is said.
struct Clause {
    invariant: Invariant,
    words: &'static str,
    evidence: Evidence,
    /// It is the last commit that breaks it.
    by_commit: bool,
}

fn commit(invariant: Invariant, words: &'static str, story: Story) -> Clause {
    Clause { invariant, words, evidence: story.evidence(), by_commit: true }
}

fn seen(invariant: Invariant, words: &'static str, evidence: Evidence) -> Clause {
    Clause { invariant, words, evidence, by_commit: false }
}

fn healthy() -> Story {
    Story::healthy().0
}

fn gang() -> UnitRecord {
    Story::healthy().1
}

/// A unit of one that is bound to node 1 with these devices.
fn bound(demand: Demand, mask: u64) -> Story {
    let small = spec(2, 1, 1, demand);
    healthy().then(vec![unit(&small)]).then(vec![bind(&small, &[(0, 1, mask)], 0)])
}

fn hold(id: u64, of: UnitId, cpu: i64) -> Hold {
    Hold {
        id: HoldId(id),
        node: NodeId(1),
        unit: of,
        demand: Arc::new(demand(cpu, None)),
        ordinals: vec![0],
        expires_ms: 1_000,
        ..Hold::default()
    }
}

fn slot(id: u64, number: u32, occupant: Option<RunningUnitId>) -> Change {
    let slot = Some(Slot { reservation: Arc::from("r"), occupant });
    Change::Put(Record::Hold(Arc::new(Hold { ordinals: vec![number], slot, ..hold(id, UnitId(0), 10) })))
}

fn i1() -> Vec<Clause> {
    use Invariant::I1;
    let nowhere = spec(2, 1, 1, demand(10, None));
    let nowhere = healthy().then(vec![unit(&nowhere)]).then(vec![bind(&nowhere, &[(0, 9, 0)], 0)]);
    let leaving = gang().cancelled(true);
    let big = spec(2, 1, 1, demand(3000, None));
    let beside_leaving = healthy()
        .then(vec![unit(&leaving)])
        .then(vec![evict(&gang(), 0, EvictionReason::Cancelled)])
        .then(vec![unit(&big)])
        .then(vec![bind(&big, &[(0, 1, 0)], 0)]);
    let offline = spec(2, 1, 1, demand(2500, None)).pool(Pool::BestEffort);
    let squeezed = healthy().then(vec![unit(&offline)]).then(vec![bind(&offline, &[(0, 1, 0)], 0)]);
    let mut unsqueezed = squeezed.evidence();
    unsqueezed.history.commits.last_mut().unwrap().time_ms += 100_000;
    unsqueezed.history.commits.push(Commit {
        revision: Revision(9),
        time_ms: 1_000_000,
        changes: Vec::new(),
    });
    unsqueezed.history.up_to = Revision(9);
    let mut unknown = healthy().evidence();
    unknown.listed.units.get_mut(&UnitId(1)).unwrap().demands.clear();
    let mut gone = healthy().evidence();
    gone.listed.nodes.remove(&NodeId(1));
    let occupant = Some(RunningUnitId::new(UnitId(1), 0, 0));
    vec![
        commit(I1, "node n1: guaranteed cpu 5000 of 4000", bound(demand(3000, None), 0)),
        commit(I1, "node n1: device 0 1100 of 1000 milli", bound(demand(10, Some((1, 600, ""))), 0b1)),
        commit(I1, "node n1: device 2 of 2", bound(demand(10, Some((1, 600, ""))), 0b100)),
        commit(I1, "on n1: devices 0b10 without a request", bound(demand(10, None), 0b10)),
        commit(I1, "on n1: 2 devices instead of 1", bound(demand(10, Some((1, 10, ""))), 0b11)),
        commit(I1, "on n1: device 2 does not exist", bound(demand(10, Some((1, 10, ""))), 0b100)),
        commit(I1, "on n1: device 1 is a A10, not one of T4", bound(demand(10, Some((1, 10, "T4"))), 0b10)),
        commit(I1, "on n1: device 1 is a gpu, not a npu", {
            let mut npu = demand(10, Some((1, 10, "")));
            npu.devices[0].kind = "npu".to_owned();
            bound(npu, 0b10)
        }),
        commit(I1, "running units on node 9, which does not exist", nowhere),
        commit(I1, "node n1: guaranteed cpu 5000 of 4000 (revision 10)", beside_leaving),
        commit(I1, "node n1: guaranteed cpu 4500 of 4000", {
            healthy().then(vec![Change::Put(Record::Hold(Arc::new(hold(1, UnitId(1), 2500))))])
        }),
        commit(I1, "node n1: best-effort cpu 2500 of 2000 (revision 8)", squeezed),
        seen(I1, "node n1: best-effort cpu 2500 of 2000 for", unsqueezed),
        seen(I1, "ordinal 0: no demand known", unknown),
        seen(I1, "running units on node 1, which does not exist", gone),
        seen(I1, "slot [0] of reservation r is held twice", {
            healthy().then(vec![slot(1, 0, None)]).then(vec![slot(2, 0, None)]).evidence()
        }),
        seen(I1, "unit 1, 0 is in two slots", {
            healthy().then(vec![slot(1, 0, occupant)]).then(vec![slot(2, 1, occupant)]).evidence()
        }),
    ]
}

fn i2() -> Vec<Clause> {
    use Invariant::I2;
    let with = |name: &str, uid: &str, revision| {
        let mut evidence = healthy().evidence();
        let (name, uid) = (name.to_owned(), uid.to_owned());
        evidence.ledger = Some(vec![Acknowledged { uid, name, revision: Revision(revision) }]);
        evidence
    };
    let mut lost = healthy().evidence();
    lost.listed.units.remove(&UnitId(1));
    vec![
        seen(I2, "unit id 1 (uid-1): submitted at revision 4, not there", lost),
        seen(I2, "unit a (uid-9): acknowledged at revision 5, not there", with("a", "uid-9", 5)),
        seen(I2, "uid uid-1: acknowledged as a, is unit-1", with("a", "uid-1", 4)),
        seen(I2, "acknowledged at revision 3, but created at 4", with("unit-1", "uid-1", 3)),
    ]
}

fn i3() -> Vec<Clause> {
    use Invariant::I3;
    let agents = |change: &dyn Fn(&mut Vec<AgentReport>)| {
        let mut evidence = healthy().evidence();
        change(&mut evidence.agents);
        evidence
    };
    let run =
        |unit, ordinal| AgentRun { id: RunningUnitId::new(UnitId(unit), ordinal, 0), phase: Phase::Running };
    let mut ended = healthy().then(vec![status(&gang(), 1, 0, Phase::Succeeded)]).evidence();
    ended.agents[1].running.push(run(1, 1));
    vec![
        commit(I3, "incarnation 0 placed again at revision 7: on n2 after n1", {
            healthy().then(vec![bind(&gang(), &[(0, 2, 0b01)], 0)])
        }),
        commit(I3, "as incarnation 1 while incarnation 0 was Running", {
            healthy().then(vec![bind(&gang(), &[(1, 2, 0b01)], 1)])
        }),
        commit(I3, "ran when its unit was deleted at revision 7", {
            healthy().then(vec![Change::Gone(RecordKey::Unit(UnitId(1)))])
        }),
        seen(I3, "incarnation 0: was never placed", agents(&|all| all[0].running.push(run(7, 0)))),
        seen(
            I3,
            "incarnation 4: incarnation 0 is current",
            agents(&|all| all[0].running[0].id.replica.incarnation = 4),
        ),
        seen(I3, "incarnation 0: it is Succeeded", ended),
        seen(
            I3,
            "incarnation 0: it is placed on n2",
            agents(&|all| {
                let moved = all[1].running.remove(0);
                all[0].running.push(moved);
            }),
        ),
        seen(I3, "unit-1/1 runs on n1 and on n2", agents(&|all| all[0].running.push(run(1, 1)))),
        seen(I3, "is Running on n2, but its agent does not have it", agents(&|all| all[1].running.clear())),
    ]
}

fn i4() -> Vec<Clause> {
    use Invariant::I4;
    let three = spec(2, 3, 3, demand(10, None));
    let turn = |id, unit: u64, expires_ms| {
        let turn = Some(GangTurn { since_ms: 0, priority: 0, sub_cluster: None });
        Change::Put(Record::Hold(Arc::new(Hold { turn, expires_ms, ..hold(id, UnitId(unit), 10) })))
    };
    let four = spec(4, 1, 1, demand(10, None));
    // The first of two groups needs one, and one of the second is bound.
    let mut of_two =
        spec(2, 1, 1, demand(10, None)).group(godel_testkit::group("second", 1, Template::default()));
    of_two.spec.task_groups[0].min_member = 1;
    vec![
        commit(I4, "unit unit-2: first binding of 2 at revision 8, min_member 3", {
            healthy().then(vec![unit(&three)]).then(vec![bind(&three, &[(0, 1, 0), (1, 2, 0)], 0)])
        }),
        commit(
            I4,
            "unit unit-2: first binding of 0 of task group main at revision 8, its min_member is 1",
            healthy().then(vec![unit(&of_two)]).then(vec![bind_second(&of_two, 1)]),
        ),
        commit(I4, "units 1 and 4 gather room on the same nodes (revision 9)", {
            let waiting = healthy().then(vec![unit(&four)]).then(vec![turn(1, 1, 1_000)]);
            waiting.then(vec![turn(2, 4, 1_000)])
        }),
        commit(I4, "hold 1 of unit 1: gathers", healthy().then(vec![turn(1, 1, -90_000)])),
        commit(I4, "ms after its expiry", {
            healthy().then(vec![turn(1, 1, -90_000)]).then(vec![Change::Gone(RecordKey::Hold(HoldId(1)))])
        }),
    ]
}

/// Binds one replica of the second task group to node 1.
fn bind_second(of: &UnitRecord, ordinal: u32) -> Change {
    let demand = Arc::new(of.spec.task_groups[1].template.demand.clone());
    let (ordinals, nodes) = (vec![ordinal], vec![NodeId(1)]);
    Change::Rows(of.id, RunChange::Bind(Bind { group: 1, demand, ordinals, nodes, ..Bind::default() }))
}

fn i5() -> Vec<Clause> {
    use Invariant::I5;
    // The gang uses 4000 of `a.b`, and 1000 of its devices.
    let story = |queue: &str, max: &[(&str, i64)], max_running_units| {
        let max = max.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect();
        let spec = QueueSpec { max, max_running_units, ..QueueSpec::new(queue) };
        let mut story = healthy();
        story.0.truncate(5);
        story.0[3] = vec![unit(&gang().queue("a.b"))];
        story.0.insert(4, vec![Change::Put(Record::Queue(Arc::new(spec)))]);
        story
    };
    let mut orphan = healthy();
    orphan.0[3] = vec![Change::Put(Record::Partition(godel_domain::change::Partition::default()))];
    let mut unpaid = healthy().evidence();
    unpaid.listed.units.get_mut(&UnitId(1)).unwrap().demands.clear();
    let for_held = {
        let mut story = story("a", &[(CPU, 4000)], 0);
        story.0.push(vec![Change::Put(Record::Hold(Arc::new(Hold {
            queue: Some("a.b".into()),
            ..hold(1, UnitId(1), 100)
        })))]);
        story
    };
    let moved = {
        let mut story = preemptions::preemption(lone(1, 1), 1, gold(9), 8);
        story.0.truncate(6);
        story.0.push(vec![unit(&lone(1, 1).queue("elsewhere"))]);
        story
    };
    vec![
        commit(
            I5,
            "task group 0 is charged in queue default, and its record names elsewhere (revision 7)",
            moved,
        ),
        commit(I5, "queue a.b: cpu 4000 of 3999 (revision 6)", story("a.b", &[(CPU, 3999)], 0)),
        commit(I5, "queue a: cpu 4000 of 3999 (revision 6)", story("a", &[(CPU, 3999)], 0)),
        commit(I5, "queue a: gpu 1000 of 999 (revision 6)", story("a", &[("gpu", 999)], 0)),
        commit(I5, "queue a: running units 2 of 1 (revision 6)", story("a", &[], 1)),
        commit(I5, "queue a: cpu 4100 of 4000 (revision 7)", for_held),
        seen(I5, "unit id 1 has running units but no record", orphan.evidence()),
        seen(I5, "queues pay for 2 running units, nodes hold 0", unpaid),
    ]
}

fn grounds() -> Vec<Clause> {
    use EvictionReason as Reason;
    let of = |reason, words| commit(Invariant::I6, words, healthy().then(vec![evict(&gang(), 0, reason)]));
    vec![
        of(Reason::Cancelled, "evicted as cancelled, but its unit is not"),
        of(Reason::ScaledIn, "evicted as scaled in, but its unit wants it"),
        of(Reason::NodeLost, "evicted for the loss of its node, which is ready"),
        of(Reason::Drained, "evicted for a drain, but its node is not drained"),
        of(Reason::Suspended, "evicted as suspended, but its unit was not"),
        of(Reason::Deadline, "evicted for its deadline, but its unit has not ended"),
        of(Reason::Squeezed, "squeezed, but its unit is guaranteed"),
        of(Reason::Rescheduled, "unit 1, 0 is moved, but no room is held for it (revision 7)"),
        of(Reason::Preempted, "preempted for unit 0, but there is no such unit"),
        commit(Invariant::I6, "evicted as too few were left, but its unit keeps what is left", {
            let keeps = gang().on_below_min(godel_domain::unit::OnBelowMin::Keep);
            healthy().then(vec![unit(&keeps)]).then(vec![evict(&gang(), 0, Reason::BelowMin)])
        }),
    ]
}

/// Room on node 1 for a running unit that moves there.
fn target(id: u64, of: &UnitRecord, ordinal: u32, expires_ms: i64) -> Change {
    let movement =
        Some(MovementTarget { movement: Arc::from("m"), from: RunningUnitId::new(of.id, ordinal, 0) });
    let (ordinals, incarnations, spec_revision) = (vec![ordinal], vec![1], Revision(9));
    Change::Put(Record::Hold(Arc::new(Hold {
        ordinals,
        incarnations,
        spec_revision,
        movement,
        expires_ms,
        ..hold(id, of.id, 10)
    })))
}

fn movements() -> Vec<Clause> {
    use EvictionReason::Rescheduled;
    use Invariant::I6;
    let moving =
        |expires_ms| healthy().then(vec![evict(&gang(), 0, Rescheduled), target(1, &gang(), 0, expires_ms)]);
    let requeue = Requeue { ordinals: vec![0], incarnations: vec![1], anew: false };
    let back = |story: Story| {
        let ended = story.then(vec![status(&gang(), 0, 0, Phase::Stopped)]);
        let pending = ended.then(vec![Change::Rows(gang().id, RunChange::Requeue(requeue.clone()))]);
        pending.then(vec![bind(&gang(), &[(0, 1, 1)], 1)])
    };
    vec![
        commit(
            I6,
            "hold 1: nobody moves to it by movement m",
            healthy().then(vec![target(1, &gang(), 0, 1)]),
        ),
        commit(I6, "hold 1: nobody moves to it by movement m", {
            healthy().then(vec![evict(&gang(), 0, EvictionReason::Rescheduled), target(1, &gang(), 1, 1)])
        }),
        commit(I6, "unit 1, 0 moves to two nodes at once", {
            let twice = vec![target(1, &gang(), 0, 1_000), target(2, &gang(), 0, 1_000)];
            healthy().then([vec![evict(&gang(), 0, Rescheduled)], twice].concat())
        }),
        commit(I6, "hold 1 of unit 1: kept", moving(-90_000)),
        commit(
            I6,
            "ms after its expiry",
            moving(-90_000).then(vec![Change::Gone(RecordKey::Hold(HoldId(1)))]),
        ),
        commit(I6, "hold 1 is there after unit 1, 0 has moved", back(moving(i64::MAX))),
        commit(
            I6,
            "hold 1: given up though unit 1, 0 moves to it, and nothing changed",
            moving(i64::MAX).then(vec![Change::Gone(RecordKey::Hold(HoldId(1)))]),
        ),
    ]
}

fn gold(value: i32) -> Vec<Change> {
    let (name, description) = ("gold".to_owned(), String::new());
    vec![Change::Put(Record::PriorityClass(PriorityClass { name, value, preemptible: true, description }))]
}

/// As [`preempted`], the story changed before it is told.
fn preempted_but(victim: UnitRecord, n_victims: u32, change: impl FnOnce(&mut Story)) -> Story {
    let mut story = preemptions::preemption(victim, n_victims, gold(9), 8);
    change(&mut story);
    story
}

fn standing(story: &mut Story, change: impl FnOnce(&mut PreemptionTerms)) {
    let Change::Rows(_, RunChange::Bind(bind)) = &mut story.0[4][0] else { unreachable!() };
    let mut standing = PreemptionTerms::clone(bind.standing.as_ref().unwrap());
    change(&mut standing);
    bind.standing = Some(Arc::new(standing));
}

fn victims() -> Vec<Clause> {
    use Invariant::I6;
    let web = |record: UnitRecord| record.labels([("app".to_owned(), "web".to_owned())].into());
    let seeker = |change: &dyn Fn(&mut UnitRecord)| {
        preempted_but(lone(1, 1), 1, |story| {
            let Change::Put(Record::Unit(record)) = &mut story.0[6][0] else { unreachable!() };
            change(Arc::make_mut(record));
        })
    };
    let before = preempted_but(lone(1, 1), 1, |story| {
        // The victim preempted the one that preempts it now.
        let mut evicted = spec(2, 1, 1, demand(0, None));
        evicted.id = UnitId(2);
        let Change::Rows(unit, RunChange::Evict(evict)) = evict(&evicted, 0, EvictionReason::Preempted)
        else {
            unreachable!()
        };
        story.0[7].push(Change::Rows(unit, RunChange::Evict(Evict { preemptor: UnitId(1), ..evict })));
    });
    let borrows = |story: &mut Story| {
        let queue = |name: &str, min: i64| {
            let min = [(CPU.to_owned(), min)].into();
            Change::Put(Record::Queue(Arc::new(QueueSpec { min, ..QueueSpec::new(name) })))
        };
        story.0[2] = vec![queue("a", 1000), queue("b", 3000)];
        // Not by rank.
        (story.0[1], story.0[7]) = (gold(1), gold(1));
    };
    let lower = lone(4, 1).queue("b");
    vec![
        commit(I6, "whose rank is not higher", preemptions::preemption(lone(1, 1), 1, gold(5), 8)),
        commit(I6, "whose rank is not higher", {
            preemptions::preemption(lone(1, 1).queue("b"), 1, gold(9), 8)
        }),
        commit(I6, "but it is not preemptible", {
            preempted_but(lone(1, 1), 1, |story| standing(story, |standing| standing.preemptible = false))
        }),
        commit(I6, "but it had run for 40 of 1000 ms", {
            preempted_but(lone(1, 1), 1, |story| standing(story, |standing| standing.min_run_ms = 1000))
        }),
        commit(I6, "but the pools differ", seeker(&|record| record.spec.pool = Pool::BestEffort)),
        commit(I6, "but that is itself, or cancelled", seeker(&|record| record.status.cancelled = true)),
        commit(I6, "but that was preempted for this one before", before),
        commit(I6, "3 preempted for unit 2 leave 1 of at least 2", {
            preemptions::preemption(lone(4, 2), 3, gold(9), 8)
        }),
        commit(I6, "queue b: more than it borrows is preempted for unit 2", preempted_but(lower, 3, borrows)),
        commit(I6, "disruption budget web: 2 were made to leave, 1 might", {
            let budget = Change::Put(Record::Budget(Arc::new(web_budget(1))));
            preempted_but(web(lone(4, 1)), 2, |story| story.0[7].push(budget))
        }),
    ]
}

fn i7_and_i9() -> Vec<Clause> {
    use Invariant::{I7, I9};
    let told = || {
        let all = vec![
            Change::Put(Record::Queue(Arc::new(QueueSpec::new("q")))),
            Change::Put(Record::Budget(Arc::new(web_budget(1)))),
            Change::Put(Record::Reservation(Arc::new(reservation()))),
            Change::Put(Record::Pause(Pause {
                scope: Scope::All,
                since_ms: 0,
                reason: String::new(),
                sub_cluster_key: String::new(),
            })),
            Change::Put(Record::Hold(Arc::new(hold(1, UnitId(1), 10)))),
            Change::Put(Record::Partition(godel_domain::change::Partition::default())),
        ];
        healthy().then(gold(1)).then(all).evidence()
    };
    let seven = |change: &dyn Fn(&mut Evidence), words| {
        let mut evidence = told();
        change(&mut evidence);
        seen(I7, words, evidence)
    };
    let mut clauses = vec![
        seven(&|evidence| drop(evidence.history.commits.remove(2)), "revisions 3 to 3 were not delivered"),
        seven(
            &|evidence| {
                let again = evidence.history.commits[4].clone();
                evidence.history.commits.insert(5, again);
            },
            "revision 5 delivered after 5",
        ),
        seven(
            &|evidence| drop(evidence.history.commits.pop()),
            "all up to revision 8, the last delivered is 7",
        ),
        seven(
            &|evidence| evidence.listed.revision = Revision(9),
            "the list is at revision 9, the watch at 8",
        ),
    ];
    let differ: [Differ<'_>; 12] = [
        ("node n2 (id 2): ", &|world| drop(world.nodes.remove(&NodeId(2)))),
        ("lease binder: ", &|world| world.leases.clear()),
        ("queue q: ", &|world| world.queues.clear()),
        ("priority class gold: ", &|world| world.priority_classes.clear()),
        ("disruption budget web: ", &|world| world.budgets.clear()),
        ("reservation r: ", &|world| world.reservations.clear()),
        ("pause all: ", &|world| world.pauses.clear()),
        ("hold 1: ", &|world| world.holds.clear()),
        ("the partition: ", &|world| world.partition = None),
        ("unit-1/0: ", &|world| {
            world.units.get_mut(&UnitId(1)).unwrap().rows.retain(|ordinal, _| *ordinal != 0)
        }),
        ("its record differs", &|world| {
            world.units.get_mut(&UnitId(1)).unwrap().record.as_mut().unwrap().revision = Revision(5);
        }),
        ("its demands differ", &|world| {
            let demands = &mut world.units.get_mut(&UnitId(1)).unwrap().demands;
            demands.values_mut().for_each(|(_, pool)| *pool = Pool::BestEffort);
        }),
    ];
    for (words, change) in differ {
        clauses.push(seven(&|evidence| change(&mut evidence.listed), words));
        let mut again = told();
        change(&mut again.listed_again);
        clauses.push(seen(I9, words, again));
    }
    let mut lost = told();
    lost.listed_again.units.clear();
    clauses.push(seen(I9, "unit unit-1 (id 1): only one list has it", lost));
    clauses
}

/// What differs in one world, and how.
type Differ<'a> = (&'static str, &'a dyn Fn(&mut World));

fn reservation() -> ReservationSpec {
    ReservationSpec { name: "r".to_owned(), ..ReservationSpec::default() }
}

fn i8() -> Vec<Clause> {
    let small = spec(2, 1, 1, demand(1000, None));
    vec![seen(Invariant::I8, "unit unit-2 (id 2) waits, but fits on n1", {
        healthy().then(vec![unit(&small)]).evidence()
    })]
}

fn i10() -> Vec<Clause> {
    let words = "queue b is passed over again and again, the last time at revision";
    vec![seen(Invariant::I10, words, super::order::served(1, |_, _| "a"))]
}

fn all() -> Vec<Clause> {
    [
        i1(),
        i2(),
        i3(),
        i4(),
        i5(),
        grounds(),
        movements(),
        moves::in_the_way(),
        moves::astray(),
        surges::clauses(),
        victims(),
        i7_and_i9(),
        i8(),
        i10(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[test]
fn every_clause_has_evidence_that_breaks_it() {
    for Clause { invariant, words, evidence, .. } in all() {
        fails(&evidence, invariant, words);
    }
    let broken: std::collections::BTreeSet<_> = all().iter().map(|clause| clause.invariant).collect();
    assert_eq!(broken.into_iter().collect::<Vec<_>>(), Invariant::ALL);
}

#[test]
fn what_the_evidence_is_made_of_holds() {
    for story in [
        healthy(),
        healthy().then(gold(1)).then(vec![Change::Put(Record::Hold(Arc::new(hold(1, UnitId(1), 10))))]),
    ] {
        for report in check_all(&story.evidence()) {
            assert!(report.holds(), "{report}");
        }
    }
    let six = |evidence: Evidence| {
        let report = &check_all(&evidence)[5];
        assert!(report.holds(), "{report}");
    };
    six(preempted(lone(1, 1), 1, gold(9), 8));
    six(preempted(lone(4, 2), 2, gold(9), 8));
}

#[test]
fn a_violation_is_found_wherever_the_history_begins() {
    for Clause { invariant, words, evidence, .. } in all().into_iter().filter(|clause| clause.by_commit) {
        let last = evidence.history.up_to.0;
        // A preemption is judged as of the commit before it.
        for floor in 2..last {
            fails(&cut(&evidence, floor), invariant, words);
            fails(&cut_wide(&evidence, floor, (floor + 1).min(last - 1)), invariant, words);
        }
    }
}
