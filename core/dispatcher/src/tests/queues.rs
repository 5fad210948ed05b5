//! Queues in the dispatcher: what is handed out, charged and shown, and which changes of records are planned.

use godel_base::ids::{HoldId, RunningUnitId};
use godel_domain::{
    change::Change,
    hold::{Hold, MovementTarget},
    queue_spec::{PriorityClass, QueuePolicy, QueueSpec},
    record_change::{Ground, RecordChange},
    records::{Record, RecordKey},
    running_units::{End, PreemptionTerms},
    unit::TaskGroup,
};
use godel_queueing::QueueIdx;

use super::*;
use crate::record_changes::{Edit, EditOutcome, EditRefusal, RecordName, Write};

fn queue(path: &str, max_cpu: Option<i64>) -> QueueSpec {
    QueueSpec {
        max: max_cpu.map(|max| ("cpu".to_owned(), max)).into_iter().collect(),
        ..QueueSpec::new(path)
    }
}

fn class(name: &str, value: i32) -> PriorityClass {
    PriorityClass { name: name.into(), value, preemptible: true, description: String::new() }
}

impl Rig {
    fn queue(&mut self, spec: QueueSpec) -> Revision {
        let revision = self.next();
        self.core.on_change(
            &Change::Put(Record::Queue(Arc::new(spec))),
            revision,
            Receipt { revision, time_ms: 7 },
            self.now,
        );
        revision
    }

    /// A unit of one replica with 100 cpu.
    fn submit_to(&mut self, queue: &str, ids: impl IntoIterator<Item = u64>) {
        for id in ids {
            self.put(spec(id, 1).queue(queue));
        }
    }

    /// Ids of the units handed out now.
    fn handed(&mut self) -> Vec<u64> {
        let actions = self.core.step(self.now);
        actions
            .iter()
            .filter_map(|action| match action {
                Action::Assign(_, one) => Some(one.record.id.0),
                _ => None,
            })
            .collect()
    }

    /// The same of those whose queue is full; others are none.
    fn handed_to_full(&mut self) -> Vec<u64> {
        let actions = self.core.step(self.now);
        let full = actions.iter().filter_map(|action| match action {
            Action::Assign(_, one) => {
                assert!(one.permit.at_maximum, "there is room for {}", one.record.id);
                Some(one.record.id.0)
            }
            _ => None,
        });
        full.collect()
    }

    /// The only replica of a unit is bound, and may be preempted.
    fn bind_standing(&mut self, unit: u64, priority: i32) {
        let standing = PreemptionTerms {
            priority,
            preemptible: true,
            min_run_ms: 0,
            min_member: 1,
            group_min_member: 0,
            queue: None,
            end: End::default(),
            has_master: false,
        };
        let bind = Bind {
            ordinals: vec![0],
            nodes: vec![NodeId(1)],
            standing: Some(Arc::new(standing)),
            ..Bind::default()
        };
        self.rows(unit, RunChange::Bind(bind));
    }

    fn why(&self, unit: u64) -> Option<String> {
        Some(self.core.unit(UnitId(unit))?.refusals?.reasons[0].reason.clone())
    }
}

#[test]
fn queues_share_by_weight() {
    let mut rig = Rig::new();
    rig.queue(QueueSpec { weight: 3, ..queue("a", None) });
    rig.queue(queue("b", None));
    rig.submit_to("a", 1..=40);
    rig.submit_to("b", 101..=140);
    rig.attach("s", 1, 1, &[], 20);
    let handed = rig.handed();
    assert_eq!((handed.len(), handed.iter().filter(|unit| **unit < 100).count()), (20, 15), "{handed:?}");
    // What is bound counts on; what ends makes room for its queue.
    for unit in &handed {
        rig.bind(*unit, &[0]);
    }
    for unit in handed.iter().filter(|unit| **unit < 100) {
        rig.status(*unit, &[0], RowPhase::Succeeded);
    }
    rig.core.streams().on_credits(SessionId(1), 10);
    assert!(rig.handed().iter().all(|unit| *unit < 100), "a uses nothing any more");
}

#[test]
fn what_its_full_queue_sends_back_again_and_again_lets_others_pass() {
    let mut rig = Rig::new();
    rig.queue(queue("a", Some(100)));
    rig.submit_to("a", [1, 2, 3]);
    rig.attach("s", 1, 1, &[], 100);
    assert_eq!(rig.handed(), [1]);
    for unit in [1, 2] {
        for _ in 0..3 {
            rig.report(1, unit, ReportState::QueueFull);
            assert_eq!(rig.handed(), [unit], "the binder may have counted late: it keeps its place");
        }
        rig.report(1, unit, ReportState::QueueFull);
        assert_eq!(rig.handed(), [unit + 1], "there is room for one");
    }
    rig.report(1, 3, ReportState::Returned);
    assert_eq!(rig.core.next_wake(rig.now), Some(rig.now), "the third has its turn at once");
    rig.core.on_unit_deleted(UnitId(3), rig.now);
    assert_eq!(rig.handed(), [0; 0]);
    let ends = rig.core.next_wake(rig.now).unwrap();
    assert_eq!(ends, rig.now.plus(100));
    rig.now = ends;
    assert_eq!(rig.handed(), [1], "it has rested, and came first");
}

#[test]
fn a_maximum_is_kept_from_the_hand_out_to_the_end() {
    let mut rig = Rig::new();
    rig.queue(queue("top", Some(300)));
    rig.queue(queue("top.a", Some(200)));
    rig.queue(queue("top.b", None));
    rig.attach("s", 1, 1, &[], 100);
    rig.submit_to("top.a", 1..=3);
    rig.submit_to("top.b", 11..=13);
    let mut handed = rig.handed();
    handed.sort_unstable();
    assert_eq!(handed, [1, 2, 11]);
    assert_eq!(rig.why(3).as_deref(), Some("queue top.a is at its maximum of cpu"));
    assert_eq!(rig.why(12).as_deref(), Some("queue top is at its maximum of cpu"));
    assert_eq!(rig.phase(12), UnitPhase::Queued);
    // Binding changes nothing, an end does.
    let first = handed[0];
    rig.bind(first, &[0]);
    assert_eq!(rig.handed(), [0u64; 0]);
    assert_ne!(rig.core.next_wake(rig.now), Some(rig.now), "nobody looks before there is room");
    rig.status(first, &[0], RowPhase::Succeeded);
    assert_eq!(rig.handed().len(), 1);
    // Below what is used: nothing new, and nobody leaves.
    rig.queue(queue("top", Some(100)));
    rig.bind(handed[1], &[0]);
    rig.status(handed[1], &[0], RowPhase::Succeeded);
    assert_eq!(rig.step(), [""; 0]);
    rig.queue(queue("top", None));
    assert_eq!(rig.handed().len(), 2);
    assert_eq!(rig.core.summary().counters.repairs, 0);
}

#[test]
fn a_unit_deleted_while_it_waits_for_room_frees_its_place() {
    let mut rig = Rig::new();
    rig.queue(queue("a", Some(200)));
    rig.attach("s", 1, 1, &[], 100);
    rig.submit_to("a", [1]);
    assert_eq!(rig.handed(), [1]);
    // Two replicas at once, which do not fit, are passed by one that does.
    rig.put(spec(2, 2).queue("a").min_member(2));
    rig.submit_to("a", [3, 4]);
    assert_eq!(rig.handed(), [3]);
    // It has waited long: what gets free is kept for it.
    rig.now = rig.now.plus(60_000);
    rig.core.on_unit_deleted(UnitId(1), rig.now);
    assert_eq!(rig.handed(), [0u64; 0]);
    assert_eq!(rig.why(4).as_deref(), Some("room in queue a is kept for unit 2"));
    rig.core.on_unit_deleted(UnitId(2), rig.now);
    assert_eq!(rig.handed(), [4]);
    assert_eq!(rig.core.queueing().queue_users("a", rig.core.units()).n, 2);
}

#[test]
fn a_queue_changes_under_its_units() {
    let mut rig = Rig::new();
    rig.queue(queue("a", Some(0)));
    rig.put(spec(1, 1).queue("a"));
    rig.put(spec(2, 1).queue("a").priority(9));
    rig.attach("s", 1, 1, &[], 1);
    assert_eq!(rig.handed(), [0u64; 0]);
    assert_eq!(rig.why(1).as_deref(), Some("needs 100m of cpu, more than queue a may ever use (0)"));
    rig.queue(QueueSpec { policy: QueuePolicy::Fifo, ..queue("a", Some(100)) });
    assert_eq!(rig.handed(), [1], "first come, first served");
    rig.core.assignments.queueing.on_queue_deleted("a");
    rig.core.streams().on_credits(SessionId(1), 1);
    assert_eq!(rig.handed(), [2], "without its record it has no limits");
    assert_eq!(rig.core.queueing().queue_view("a"), None);
}

#[test]
fn what_is_parked_keeps_nobody_out() {
    let mut rig = Rig::new();
    rig.queue(queue("a", Some(100)));
    rig.attach("s", 1, 1, &[], 100);
    rig.submit_to("a", [1]);
    // Something else, or it would wait for the same room.
    rig.put(spec(2, 1).queue("a").active_deadline_ms(60_000));
    assert_eq!(rig.handed(), [1]);
    rig.report(1, 1, ReportState::Parked);
    assert_eq!(rig.handed(), [2]);
    rig.bind(2, &[0]);
    rig.report(1, 1, ReportState::Woken);
    rig.submit_to("a", [3]);
    rig.bind(1, &[0]);
    assert_eq!(rig.handed(), [0u64; 0]);
    let view = rig.core.queueing().queue_view("a").unwrap();
    assert_eq!((view.running_units, view.pending_units), (2, 1));
    assert_eq!(view.used, [("cpu".to_owned(), 200)].into());
}

/// A record that changes how much it needs at once is charged anew.
#[test]
fn a_scaled_unit_needs_something_else() {
    let mut rig = Rig::new();
    rig.queue(queue("a", Some(200)));
    rig.attach("s", 1, 1, &[], 100);
    let gang = spec(1, 3).queue("a").min_member(3);
    rig.put(gang.clone());
    assert_eq!(rig.handed(), [0u64; 0]);
    assert!(rig.why(1).unwrap().starts_with("needs 300m of cpu"), "{:?}", rig.why(1));
    let smaller = gang.min_member(2).replicas(2);
    rig.put(smaller.clone());
    assert_eq!(rig.handed(), [1]);
    rig.put(smaller.cancelled(true));
    let usage = rig.core.queueing().quota().usage();
    assert_eq!(usage.running_units(QueueIdx::ROOT), 0);
}

#[test]
fn a_group_whose_room_is_held_is_not_what_a_unit_needs() {
    let mut rig = Rig::new();
    rig.queue(queue("a", Some(1_200)));
    rig.attach("s", 1, 1, &[], 100);
    let unit = spec(1, 2).queue("a");
    let small = TaskGroup { name: "small".into(), replicas: 1, ..unit.spec.task_groups[0].clone() };
    let mut unit = unit.cpu(500).group(small);
    rig.put(unit.clone());
    assert_eq!(rig.handed(), [1]);
    rig.bind_group(1, 0, &[0]);
    rig.bind_group(1, 1, &[2]);
    let hold = Hold { id: HoldId(7), unit: UnitId(1), ordinals: vec![1], ..Hold::default() };
    rig.core.on_hold(Arc::new(hold), rig.now);
    rig.report(1, 1, ReportState::Done);
    assert_eq!(rig.handed(), [0u64; 0]);
    // Room for 100 is left in the queue.
    unit.spec.task_groups[1].replicas = 2;
    unit.status.ordinals[1] = vec![(2, 4)];
    rig.put(unit);
    assert_eq!(rig.handed(), [1]);
}

#[test]
fn a_list_forgets_what_it_does_not_show() {
    let mut rig = Rig::new();
    rig.queue(queue("a", Some(100)));
    rig.queue(queue("b", Some(100)));
    let revision = rig.next();
    rig.core.on_change(
        &Change::Put(Record::PriorityClass(class("gold", 7))),
        revision,
        Receipt { revision, time_ms: 7 },
        rig.now,
    );
    rig.submit_to("a", [1, 2]);
    let unit = |rig: &Rig, id| Arc::clone(rig.core.unit(UnitId(id)).unwrap().record);
    let (one, two) = (unit(&rig, 1), unit(&rig, 2));
    rig.core.on_reset();
    assert!(rig.core.queueing().queue_versions("a").is_some(), "until the list is complete nothing is gone");
    rig.core.on_unit(one, Revision(13), Receipt { revision: Revision(13), time_ms: 5 }, rig.now);
    rig.core.on_unit(two, Revision(14), Receipt { revision: Revision(14), time_ms: 5 }, rig.now);
    let changed = Change::Put(Record::Queue(Arc::new(queue("a", Some(200)))));
    rig.core.on_change(&changed, Revision(20), Receipt { revision: Revision(11), time_ms: 7 }, rig.now);
    rig.core.on_synced(Revision(20), rig.now);
    let versions = rig.core.queueing().queue_versions("a").unwrap();
    assert_eq!((versions.create_revision, versions.revision), (Revision(11), Revision(20)));
    assert_eq!(
        (rig.core.queueing().queue_versions("b"), rig.core.queueing().class_versions("gold")),
        (None, None)
    );
    assert!(rig.core.queueing().classes().get("gold").is_none());
    rig.attach("s", 1, 1, &[], 100);
    assert_eq!(rig.handed(), [1, 2]);
}

#[test]
fn a_submission_is_told_everything_wrong_with_where_it_goes() {
    let mut rig = Rig::new();
    rig.queue(queue("a", None));
    rig.queue(queue("a.b", None));
    let ask = |rig: &Rig, queue: &str, class: &str| {
        let unit = spec(1, 1).queue(queue).priority_class(class);
        rig.core.admit(&unit.spec, &[]).err().map_or(0, |wrong| wrong.len())
    };
    for (queue, class, n_wrong) in
        [("a.b", "online", 0), ("default", "", 0), ("a", "", 1), ("c", "gold", 2), ("a.b", "gold", 1)]
    {
        assert_eq!(ask(&rig, queue, class), n_wrong, "{queue} {class}");
    }
}

#[test]
fn changes_of_records_are_planned() {
    let mut rig = Rig::new();
    let a = QueueSpec { uid: uid(1), ..queue("a", Some(100)) };
    let revision = rig.queue(a.clone());
    let plan = |rig: &Rig, queues: Vec<RecordChange<Arc<QueueSpec>>>, expected: u64| {
        let edit = Edit { queues, expected_revision: Revision(expected), ..Edit::default() };
        record_changes::KnownRecords::of(&rig.core).plan(&edit)
    };
    let put = |spec: QueueSpec| RecordChange::Put(Arc::new(spec));
    // As it is there, whatever revision is expected and whoever created it.
    for change in [
        RecordChange::Create(Arc::new(queue("a", Some(100)))),
        RecordChange::Update(Arc::new(QueueSpec { uid: "x".into(), ..a.clone() })),
        put(queue("a", Some(100))),
    ] {
        let unchanged = plan(&rig, vec![change], 99).unwrap();
        assert_eq!(
            (unchanged.queues, unchanged.writes),
            (vec![EditOutcome::Unchanged(revision)], Vec::new())
        );
    }
    // The uid stays, and what it was checked against must still be there.
    let planned = plan(&rig, vec![put(queue("a", None)), put(queue("a.b", None))], 0).unwrap();
    assert_eq!(planned.queues, [EditOutcome::Updated, EditOutcome::Created]);
    let Write::Queue(first) = &planned.writes[0] else { panic!("{planned:?}") };
    assert_eq!(first.uid, uid(1));
    let name = |path: &str| RecordName::Queue(path.into());
    assert_eq!(planned.conditions, [(name("a"), revision), (name("a.b"), Revision(0))].into());

    let stale = plan(&rig, vec![RecordChange::Delete("a".into())], 99);
    assert_eq!(stale, Err(EditRefusal::Revision { name: "a".into(), current: revision }));
    let grounds = |refused: Result<_, EditRefusal>| match refused {
        Err(EditRefusal::Violations { queues, .. }) => {
            queues.into_iter().map(|one| (one.change, one.ground)).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    for (change, ground) in [
        (RecordChange::Create(Arc::new(queue("a", None))), Ground::AlreadyExists),
        (RecordChange::Create(Arc::new(QueueSpec { uid: uid(2), ..a })), Ground::AlreadyExists),
        (RecordChange::Update(Arc::new(queue("b", None))), Ground::NotFound),
        (RecordChange::Delete("b".into()), Ground::NotFound),
        (RecordChange::Create(Arc::new(queue("c.d", None))), Ground::NotFound),
        (RecordChange::Create(Arc::new(QueueSpec { uid: "x".into(), ..queue("b", None) })), Ground::Invalid),
    ] {
        let changes = vec![put(queue("fine", None)), change];
        assert_eq!(grounds(plan(&rig, changes, 0)), [(1, ground)]);
    }
    // What was created before is left out of the checks, and the rest keeps its place.
    let again = RecordChange::Create(Arc::new(queue("a", Some(100))));
    assert_eq!(
        grounds(plan(&rig, vec![again, RecordChange::Delete("b".into())], 0)),
        [(1, Ground::NotFound)]
    );

    // Users keep a queue and a class.
    rig.submit_to("a", 1..=12);
    assert_eq!(rig.core.queueing().queue_users("a", rig.core.units()).first.len(), 10);
    assert_eq!(grounds(plan(&rig, vec![RecordChange::Delete("a".into())], 0)), [(0, Ground::State)]);
    let closes = |change| Edit { queues: vec![change], ..Edit::default() }.closes();
    assert_eq!(closes(RecordChange::Delete("a".into())), [name("a")].into());
    assert_eq!(closes(put(queue("a.b", None))), [name("a")].into());
    assert!(closes(put(queue("a", None))).is_empty());
    assert!(closes(RecordChange::Delete("default".into())).is_empty());
}

#[test]
fn the_head_of_a_full_queue_may_preempt_within_it() {
    let mut rig = Rig::new();
    rig.queue(queue("a", Some(200)));
    rig.attach("s", 1, 1, &[], 100);
    rig.submit_to("a", [1, 2]);
    assert_eq!(rig.handed(), [1, 2]);
    rig.bind_standing(1, 0);
    rig.bind_standing(2, 3);
    let ranked = |id, priority| spec(id, 1).queue("a").priority(priority);
    rig.put(ranked(3, 0));
    rig.put(ranked(4, -1));
    assert_eq!(rig.handed_to_full(), [0u64; 0], "nobody has a lower priority");
    rig.put(ranked(5, 2));
    rig.put(ranked(6, 1));
    rig.now = rig.now.plus(1_000);
    assert_eq!(rig.handed_to_full(), [5], "the first in order");
    rig.report(1, 5, ReportState::QueueFull);
    // In vain, and not again so soon: twice as long each time.
    let mut waits = Vec::new();
    for _ in 0..3 {
        let mut ms = 0;
        while rig.handed_to_full().is_empty() {
            (rig.now, ms) = (rig.now.plus(500), ms + 500);
            assert!(ms < 60_000, "it goes out again");
        }
        waits.push(ms);
        rig.report(1, 5, ReportState::QueueFull);
    }
    assert_eq!(waits, [1_000, 2_000, 4_000]);
    assert_eq!(rig.why(5).as_deref(), Some("queue a is at its maximum of cpu"));
    rig.status(1, &[0], RowPhase::Succeeded);
    assert_eq!(rig.handed(), [5], "room is its own whenever it is there");
}

#[test]
fn an_owner_below_a_full_queue_goes_out_whatever_its_priority() {
    let mut rig = Rig::new();
    rig.queue(queue("co", Some(200)));
    rig.queue(QueueSpec { min: [("cpu".to_owned(), 100)].into(), ..queue("co.a", None) });
    rig.queue(queue("co.b", None));
    rig.attach("s", 1, 1, &[], 100);
    rig.submit_to("co.b", [1, 2]);
    assert_eq!(rig.handed(), [1, 2]);
    rig.bind_standing(1, 9);
    rig.bind_standing(2, 9);
    rig.submit_to("co.b", [3]);
    rig.submit_to("co.a", [4, 5]);
    assert_eq!(rig.handed_to_full(), [4], "its queue is guaranteed one");
}

#[test]
fn nobody_goes_out_for_a_full_queue_while_preemption_is_paused() {
    let mut rig = Rig::new();
    rig.queue(queue("a", Some(100)));
    rig.attach("s", 1, 1, &[], 100);
    rig.submit_to("a", [1]);
    assert_eq!(rig.handed(), [1]);
    rig.bind_standing(1, 0);
    let scope = godel_domain::pause::Scope::Preemption;
    let pause = godel_domain::pause::Pause {
        scope: scope.clone(),
        since_ms: 1,
        reason: String::new(),
        sub_cluster_key: String::new(),
    };
    rig.core.assignments.on_pause(pause, rig.now);
    rig.put(spec(2, 1).queue("a").priority(2));
    assert_eq!(rig.handed_to_full(), [0u64; 0]);
    assert_ne!(rig.core.next_wake(rig.now), Some(rig.now), "nor does anybody look");
    rig.core.assignments.on_pause_deleted(&scope, rig.now);
    assert_eq!(rig.handed_to_full(), [2]);
}

impl Rig {
    /// Room is held for the second replica of unit 1, which moves, or that hold is gone.
    fn target(&mut self, is_there: bool) {
        let from = RunningUnitId::new(UnitId(1), 1, 0);
        let movement = Some(MovementTarget { movement: Arc::from("m"), from });
        let (id, ordinals, incarnations) = (HoldId(7), vec![1], vec![1]);
        let hold = Hold { id, unit: UnitId(1), ordinals, incarnations, movement, ..Hold::default() };
        let change = if is_there {
            Change::Put(Record::Hold(Arc::new(hold)))
        } else {
            Change::Gone(RecordKey::Hold(id))
        };
        let revision = self.next();
        self.core.on_change(&change, revision, Receipt { revision, time_ms: 5 }, self.now);
    }

    fn told_to_move(&mut self) {
        self.target(true);
        let (reason, by, preemptor) = (EvictionReason::Rescheduled, String::new(), UnitId(0));
        let (ordinals, incarnations) = (vec![1], vec![0]);
        self.rows(1, RunChange::Evict(Evict { ordinals, incarnations, reason, by, preemptor }));
    }

    fn comes_again(&mut self) {
        let again =
            RunChange::Requeue(Requeue { ordinals: vec![1], incarnations: vec![1], ..Requeue::default() });
        let revision = self.next();
        self.core.on_change(
            &Change::Rows(UnitId(1), again),
            revision,
            Receipt { revision, time_ms: 5 },
            self.now,
        );
    }

    /// Running units that count in a queue.
    fn n_counted(&self, path: &str) -> i128 {
        let quota = self.core.queueing().quota();
        quota.usage().running_units(quota.tree().find(path).unwrap())
    }
}

/// A unit of two that runs in `top.a`, where `top` has room for no more, and others that wait there.
fn full_with_two() -> Rig {
    let mut rig = Rig::new();
    rig.queue(queue("top", Some(200)));
    rig.queue(queue("top.a", None));
    rig.attach("s", 1, 1, &[], 100);
    rig.put(spec(1, 2).queue("top.a"));
    assert_eq!(rig.step(), ["assign 1 to 1: [0, 1]"]);
    rig.bind(1, &[0, 1]);
    rig.report(1, 1, ReportState::Done);
    rig.submit_to("top.a", [2, 3]);
    assert_eq!(rig.step(), [""; 0]);
    rig
}

#[test]
fn a_replica_that_moves_keeps_its_place_in_a_full_queue_and_is_handed_out_at_once() {
    let mut rig = full_with_two();
    rig.told_to_move();
    assert_eq!((rig.step(), rig.n_counted("top")), (vec![], 2));
    rig.status(1, &[1], RowPhase::Stopped);
    assert_eq!((rig.step(), rig.n_counted("top")), (vec![], 2), "it has ended, and nobody has its place");
    rig.comes_again();
    assert_eq!(rig.n_counted("top"), 2);
    assert_eq!(rig.step(), ["assign 1 to 1: [1], 0 at most"]);
    assert_eq!(rig.why(2).as_deref(), Some("queue top is at its maximum of cpu"));
    rig.bind(1, &[1]);
    rig.target(false);
    assert_eq!((rig.step(), rig.n_counted("top")), (vec![], 2), "bound, and counted once");
    rig.status(1, &[1], RowPhase::Succeeded);
    assert_eq!((rig.handed(), rig.core.summary().counters.repairs), (vec![2], 0));
}

#[test]
fn what_waits_gets_the_place_of_a_replica_whose_hold_went_unused() {
    let mut rig = full_with_two();
    rig.told_to_move();
    rig.status(1, &[1], RowPhase::Stopped);
    assert_eq!(rig.step(), [""; 0]);
    rig.target(false);
    assert_eq!((rig.n_counted("top"), rig.handed()), (1, vec![2]));
    rig.comes_again();
    assert_eq!(rig.step(), [""; 0], "it waits for its queue as any other");
}

#[test]
fn a_replica_on_its_way_counts_for_the_queue_that_its_unit_wants_to_go_to() {
    let mut rig = full_with_two();
    rig.queue(queue("b", Some(150)));
    rig.told_to_move();
    rig.status(1, &[1], RowPhase::Stopped);
    let refused = |rig: &Rig| rig.core.queueing().enter(UnitId(1), "b", rig.core.units()).is_err();
    assert!(refused(&rig), "both are of the unit still");
    rig.target(false);
    assert!(!refused(&rig), "one runs");
}
