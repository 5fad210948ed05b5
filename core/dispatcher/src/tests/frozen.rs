//! Records that cannot be read: who is set aside because of them, and what is not done meanwhile.

use godel_domain::{
    change::Change,
    node::Drain,
    queue_spec::{PriorityClass, QueueSpec},
    records::{Record, RecordKey},
    refusals::WaitReason,
    unreadable::Unreadable,
};
use godel_rules::drain::DrainBlock;

use super::*;
use crate::queues::Unwelcome;

impl Rig {
    fn unreadable(&mut self, subject: RecordKey) {
        self.unreadable_with(Unreadable::new(subject, "field", "problem"));
    }

    fn unreadable_with(&mut self, unreadable: Unreadable) {
        let revision = self.next();
        assert!(self.core.note_unreadable(&Change::Unreadable(Box::new(unreadable)), revision, self.now));
    }

    /// The change is noted; it is the test's to apply it.
    fn thaws(&mut self, change: Change) {
        let revision = self.next();
        assert!(self.core.note_unreadable(&change, revision, self.now));
    }

    fn frozen_by(&self, unit: u64) -> String {
        let Some(refusals) = self.core.unit(UnitId(unit)).unwrap().refusals else { return String::new() };
        let [refusal] = &refusals.reasons[..] else { panic!("{refusals:?}") };
        assert!(refusal.is(WaitReason::Unreadable), "{refusal:?}");
        refusal.reason.clone()
    }

    fn sorted_step(&mut self) -> Vec<String> {
        let mut seen = self.step();
        seen.sort();
        seen
    }
}

fn in_queue(id: u64, queue: &str) -> UnitRecord {
    spec(id, 2).queue(queue)
}

#[test]
fn nothing_of_what_cannot_be_read_is_handed_out_and_the_rest_is() {
    let (name, description) = ("gold".to_owned(), String::new());
    let gold = PriorityClass { name, value: 0, preemptible: true, description };
    let queue = Change::Put(Record::Queue(Arc::new(QueueSpec::new("prod"))));
    let scope = godel_domain::pause::Scope::Queue("prod".to_owned());
    for (subject, thaw) in [
        (RecordKey::Queue("prod".to_owned()), queue),
        (RecordKey::PriorityClass("gold".to_owned()), Change::Put(Record::PriorityClass(gold))),
        (RecordKey::Pause("queue/prod".to_owned()), Change::Gone(RecordKey::Pause(scope.to_string()))),
    ] {
        let mut rig = Rig::new();
        rig.attach("a", 1, 1, &[], 100);
        rig.put(in_queue(1, "prod.search").priority_class("gold"));
        assert_eq!(rig.step(), ["assign 1 to 1: [0, 1]"]);
        rig.unreadable(subject.clone());
        rig.put(in_queue(2, "prod.search").priority_class("gold"));
        rig.put(spec(3, 2));
        assert_eq!(rig.sorted_step(), ["assign 3 to 1: [0, 1]", "revoke 1 from 1"]);
        assert_eq!(rig.frozen_by(2), format!("{subject} cannot be read: field: problem"));
        assert_eq!(rig.phase(2), UnitPhase::Queued);
        let wrong = rig.core.admit(&in_queue(4, "prod.search").priority_class("gold").spec, &[]);
        assert!(matches!(wrong.unwrap_err().as_slice(), [Unwelcome::Unreadable(_)]), "{subject}");
        rig.now = rig.now.plus(10_000);
        assert_eq!(rig.step(), [""; 0]);
        rig.thaws(thaw);
        assert_eq!(rig.sorted_step(), ["assign 1 to 1: [0, 1]", "assign 2 to 1: [0, 1]"]);
        assert_eq!(rig.core.summary().counters.repairs, 0);
    }
}

#[test]
fn an_unreadable_unit_keeps_its_name_and_says_nothing_else() {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 100);
    rig.submit(1..=2);
    assert_eq!(rig.step().len(), 2);
    rig.bind(1, &[0]);
    rig.bind(2, &[0, 1]);
    // What is surplus would have to leave, and what has ended would go.
    rig.put(spec(1, 2).cancelled(true));
    rig.status(2, &[0, 1], RowPhase::Succeeded);
    for unit in [1, 2] {
        rig.unreadable(RecordKey::Unit(UnitId(unit)));
    }
    rig.now = rig.now.plus(1_000_000_000);
    let seen = rig.step();
    assert!(seen.iter().all(|action| action.starts_with("revoke")), "{seen:?}");
    rig.thaws(Change::Put(Record::Unit(Arc::new(spec(1, 2)))));
    rig.put(spec(1, 2).cancelled(true));
    assert!(rig.step().contains(&"evict 1 Cancelled [0]".to_owned()));
}

#[test]
fn the_name_of_a_unit_that_was_never_read_is_taken() {
    let mut rig = Rig::new();
    let name = Some(("default".to_owned(), "web".to_owned()));
    rig.unreadable_with(Unreadable {
        name,
        ..Unreadable::new(RecordKey::Unit(UnitId(9)), "field", "problem")
    });
    assert_eq!(rig.core.assignments.reserve("default", "web", &uid(5)), NameClaim::NameTaken(UnitId(9)));
    rig.thaws(Change::Gone(RecordKey::Unit(UnitId(9))));
    assert!(matches!(rig.core.assignments.reserve("default", "web", &uid(5)), NameClaim::New(_)));
}

#[test]
fn a_node_whose_report_cannot_be_read_is_not_lost() {
    let mut rig = Rig::new();
    rig.ready(1..=20, true);
    rig.submit([1]);
    rig.bind_on(1, &[(0, 7), (1, 8)]);
    rig.ready([7], false);
    rig.unreadable(RecordKey::NodeReport(NodeId(7)));
    assert_eq!(rig.run_for(600_000), [""; 0]);
    // Listed anew, it is still there, though nobody knows what it is.
    rig.core.on_reset();
    list_node(&mut rig.core, rig.now);
    rig.ready((2..=20).filter(|node| *node != 7), true);
    rig.core.on_unit(
        Arc::new(spec(1, 2)),
        Revision(11),
        Receipt { revision: Revision(11), time_ms: 5 },
        rig.now,
    );
    rig.unreadable(RecordKey::NodeReport(NodeId(7)));
    rig.core.on_synced(Revision(rig.revision), rig.now);
    assert_eq!(rig.run_for(600_000), [""; 0]);
    rig.thaws(Change::Gone(RecordKey::NodeReport(NodeId(7))));
    rig.ready([7], false);
    assert_eq!(rig.run_for(60_300), ["evict 1 NodeLost [0]"]);
}

#[test]
fn unreadable_budgets_and_units_stop_drains_before_the_deadline() {
    for subject in
        [RecordKey::Budget("web".to_owned()), RecordKey::Unit(UnitId(99)), RecordKey::Unit(UnitId(1))]
    {
        let mut rig = Rig::new();
        rig.ready(1..=9, true);
        rig.submit([1]);
        rig.bind_on(1, &[(0, 7), (1, 8)]);
        rig.status(1, &[0, 1], RowPhase::Running);
        rig.unreadable(subject.clone());
        let drain = |deadline_ms| {
            let drain = Drain { since_ms: 1, deadline_ms, running_units: 1 };
            NodeSpec { id: NodeId(7), name: "n7".into(), drain: Some(drain), ..NodeSpec::default() }
        };
        rig.core.on_node_spec(&drain(None), rig.now);
        assert_eq!(rig.run_for(60_000), [""; 0], "{subject}");
        assert_eq!(
            rig.core.node_evictions().drain_view(NodeId(7), 9).blocked,
            [(UnitId(1), DrainBlock::Unreadable)]
        );
        rig.core.assignments.wall_ms = 1_000;
        rig.core.on_node_spec(&drain(Some(500)), rig.now);
        let leaves = if subject == RecordKey::Unit(UnitId(1)) { 0 } else { 1 };
        assert_eq!(rig.run_for(300).len(), leaves, "{subject}");
        // Whether it is to be left nobody knows.
        rig.unreadable(RecordKey::NodeSpec(NodeId(7)));
        assert_eq!(rig.run_for(60_000), [""; 0], "{subject}");
    }
}

#[test]
fn a_change_without_a_key_stops_everything_at_no_cost() {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 100);
    rig.submit(1..=2);
    assert_eq!(rig.step().len(), 2);
    rig.bind(1, &[0, 1]);
    rig.put(spec(1, 2).cancelled(true));
    rig.unreadable(RecordKey::Unknown);
    rig.submit([3]);
    let seen = rig.run_for(30_000);
    assert_eq!(seen, ["revoke 2 from 1"]);
    // All is listed again.
    rig.core.on_reset();
    list_node(&mut rig.core, rig.now);
    for unit in 1..=3 {
        let known = rig.core.unit(UnitId(unit)).unwrap();
        rig.core.on_unit(
            Arc::clone(known.record),
            known.spec_revision,
            Receipt { revision: Revision(11), time_ms: 5 },
            rig.now,
        );
    }
    rig.core.on_synced(Revision(rig.revision), rig.now);
    let mut seen = rig.step();
    seen.sort();
    assert_eq!(seen, ["assign 2 to 1: [0, 1]", "assign 3 to 1: [0, 1]", "evict 1 Cancelled [1, 0]"]);
}
