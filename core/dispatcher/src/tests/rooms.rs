//! Units that wait for the same room: who joins whom.

use godel_base::ids::{HoldId, RunningUnitId};
use godel_domain::{
    change::Change,
    hold::{Hold, MovementTarget},
    queue_spec::QueueSpec,
    records::Record,
    unit_report::RoomReport,
};
use godel_testkit::group;

use super::*;

/// A unit of which the first task group fits no node; the second one has as many replicas as given.
fn stuck(id: u64, n_others: u32) -> UnitRecord {
    let mut unit = spec(id, 1);
    unit.spec.task_groups[0].template.node_selector.insert("nowhere".to_owned(), "yes".to_owned());
    if n_others == 0 { unit } else { with_others(unit, n_others) }
}

fn with_others(unit: UnitRecord, n: u32) -> UnitRecord {
    let template = spec(1, 1).spec.task_groups[0].template.clone();
    unit.group(group("others", n, template))
}

impl Rig {
    /// The scheduler `a` has placed what it could, and lacks a place for one replica of a task group.
    fn park(&mut self, unit: u64, group: u32, need: u64) {
        self.park_after(unit, (group, need), 1, 0);
    }

    /// The same for some replicas, said after so many assignments.
    fn park_after(&mut self, unit: u64, (group, need): (u32, u64), unplaced: u32, assigned: u64) {
        let spec_revision = self.core.unit(UnitId(unit)).unwrap().spec_revision;
        let report = UnitReport {
            unit: UnitId(unit),
            spec_revision,
            state: ReportState::Parked,
            refusals: Some(Arc::default()),
            need,
            unplaced: Some(unplaced),
            lacking: vec![group],
            assigned,
        };
        self.core.streams().on_report(SessionId(1), report, self.now);
    }
}

#[test]
fn what_is_placed_and_not_yet_read_is_lacked_by_nobody() {
    for is_read_first in [true, false] {
        let mut rig = Rig::new();
        rig.attach("a", 1, 1, &[], 1_000);
        rig.put(stuck(1, 1));
        assert_eq!(rig.step(), ["assign 1 to 1: [0, 1]"]);
        if is_read_first {
            rig.bind_group(1, 1, &[1]);
        }
        rig.park(1, 0, 7);
        assert_eq!(rig.step(), [""; 0]);
        if !is_read_first {
            rig.bind_group(1, 1, &[1]);
        }
        for unit in 2..=20 {
            rig.put(stuck(unit, 1));
            assert_eq!(rig.step(), [format!("assign {unit} to 1: [0, 1]")], "read first: {is_read_first}");
            rig.park(unit, 0, 7);
        }
    }
}

#[test]
fn a_gang_that_is_placed_and_not_yet_read_keeps_no_other_gang_waiting() {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 1_000);
    let gang = |id| with_others(spec(id, 2), 1).min_member(2);
    rig.put(gang(1));
    assert_eq!(rig.step(), ["assign 1 to 1: [0, 1, 2]"]);
    rig.park(1, 1, 7);
    rig.put(gang(2));
    assert_eq!(rig.step(), ["assign 2 to 1: [0, 1, 2]"]);
}

#[test]
fn a_unit_that_waits_leaves_its_room_when_it_gets_a_task_group() {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 1_000);
    rig.put(stuck(1, 0));
    assert_eq!(rig.step(), ["assign 1 to 1: [0]"]);
    rig.park(1, 0, 7);
    rig.put(stuck(2, 0));
    assert_eq!(rig.step(), [""; 0], "nobody has a place for what it needs");
    assert_eq!(rig.phase(2), UnitPhase::Unschedulable);
    rig.put(stuck(2, 1));
    assert_eq!(rig.step(), ["assign 2 to 1: [0, 1]"]);
}

/// Two queues, of which the first one weighs twice as much, with a unit of nine replicas each that has found no place.
fn contested() -> Rig {
    let mut rig = Rig::new();
    for (name, weight) in [("a", 2), ("b", 1)] {
        let revision = rig.next();
        let queue = QueueSpec { weight, ..QueueSpec::new(name) };
        rig.core.on_change(
            &Change::Put(Record::Queue(Arc::new(queue))),
            revision,
            Receipt { revision, time_ms: 5 },
            rig.now,
        );
    }
    rig.attach("s", 1, 1, &[], 1_000);
    rig.put(spec(1, 9).queue("a"));
    rig.put(spec(2, 9).queue("b"));
    assert_eq!(rig.step().len(), 2);
    [1, 2].into_iter().for_each(|unit| rig.park_after(unit, (0, 7), 9, 2));
    assert_eq!(rig.step(), [""; 0]);
    rig
}

impl Rig {
    /// There are so many places for those that were parked.
    fn room(&mut self, places: u32, assigned: u64) {
        let report = RoomReport { need: 7, places, assigned, revision: Revision(self.revision) };
        self.core.streams().on_rooms(SessionId(1), &[report]);
    }
}

const NINE: &str = "[0, 1, 2, 3, 4, 5, 6, 7, 8]";

#[test]
fn contested_places_are_shared_out_by_weight() {
    let mut rig = contested();
    rig.room(6, 2);
    assert_eq!(
        rig.step(),
        [format!("assign 1 to 1: {NINE}, 4 at most"), format!("assign 2 to 1: {NINE}, 2 at most")]
    );
    let used = |rig: &Rig, queue: &str| {
        let quota = rig.core.queueing().quota();
        quota.usage().running_units(quota.tree().find(queue).unwrap())
    };
    assert_eq!((used(&rig, "a"), used(&rig, "b")), (4, 2), "what is on its way, and no more");
    // One of them got what it was called for, and its records have yet to say so.
    rig.park_after(1, (0, 7), 5, 4);
    rig.room(3, 4);
    assert_eq!(
        rig.step(),
        [format!("assign 1 to 1: {NINE}, 3 at most")],
        "the other one is trying its places"
    );
    assert_eq!((used(&rig, "a"), used(&rig, "b")), (7, 2));
}

#[test]
fn a_parked_unit_whose_record_changes_keeps_its_place() {
    let mut rig = contested();
    rig.put(spec(1, 9).queue("a").labels([("k".to_owned(), "v".to_owned())].into()));
    rig.room(1, 2);
    let (told, called) =
        (format!("assign 1 to 1: {NINE}, 0 at most"), format!("assign 1 to 1: {NINE}, 1 at most"));
    assert_eq!(rig.step(), [told, called]);
    // That it waits with the new record was said before it was called.
    rig.park_after(1, (0, 7), 9, 3);
    rig.room(1, 3);
    assert_eq!(rig.step(), [""; 0], "its place is on its way");
    rig.park_after(1, (0, 7), 8, 4);
    rig.room(1, 4);
    assert_eq!(rig.step(), [format!("assign 2 to 1: {NINE}, 1 at most")], "its queue has one");
}

/// A unit of two whose second replica comes back, as a movement moved it or for another reason, while another unit waits for
/// the same.
fn comes_back(is_moved: bool) -> Rig {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 1_000);
    rig.put(spec(2, 2));
    assert_eq!(rig.step(), ["assign 2 to 1: [0, 1]"]);
    rig.bind(2, &[0, 1]);
    rig.report(1, 2, ReportState::Done);
    rig.put(spec(1, 2));
    assert_eq!(rig.step(), ["assign 1 to 1: [0, 1]"]);
    rig.park_after(1, (0, 7), 2, 2);
    assert_eq!(rig.step(), [""; 0]);
    let from = RunningUnitId::new(UnitId(2), 1, 0);
    if is_moved {
        let movement = Some(MovementTarget { movement: Arc::from("m"), from });
        let (ordinals, incarnations) = (vec![1], vec![1]);
        let hold =
            Hold { id: HoldId(7), unit: UnitId(2), ordinals, incarnations, movement, ..Hold::default() };
        let revision = rig.next();
        rig.core.on_change(
            &Change::Put(Record::Hold(Arc::new(hold))),
            revision,
            Receipt { revision, time_ms: 5 },
            rig.now,
        );
    }
    let evict = Evict {
        ordinals: vec![1],
        incarnations: vec![0],
        reason: if is_moved { EvictionReason::Rescheduled } else { EvictionReason::Preempted },
        by: String::new(),
        preemptor: UnitId(0),
    };
    let ended = Statuses { ordinals: vec![1], phases: vec![RowPhase::Stopped], ..Statuses::default() };
    let again = Requeue { ordinals: vec![1], incarnations: vec![1], ..Requeue::default() };
    for change in [RunChange::Evict(evict), RunChange::Statuses(ended), RunChange::Requeue(again)] {
        let revision = rig.next();
        rig.core.on_change(
            &Change::Rows(UnitId(2), change),
            revision,
            Receipt { revision, time_ms: 5 },
            rig.now,
        );
    }
    rig
}

#[test]
fn who_moves_is_handed_out_though_others_wait_for_the_same() {
    assert_eq!(comes_back(false).step(), [""; 0], "it waits for its turn");
    let mut rig = comes_back(true);
    assert_eq!(rig.step(), ["assign 2 to 1: [1], 0 at most"], "its own room is held for it");
    assert_eq!(rig.step(), [""; 0]);
}
