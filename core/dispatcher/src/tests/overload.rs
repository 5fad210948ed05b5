//! What counts as work that the control plane is behind with.

use godel_domain::queue_spec::QueueSpec;

use super::*;

fn owed(rig: &Rig, units: std::ops::RangeInclusive<u64>) -> Vec<u64> {
    units.filter(|unit| rig.core.pending().is_owed(UnitId(*unit))).collect()
}

#[test]
fn what_waits_for_schedulers_to_be_there_is_no_backlog() {
    let mut rig = Rig::new();
    rig.submit(1..=3);
    rig.step();
    assert_eq!((rig.core.pending().count_backlog(), owed(&rig, 1..=3)), (0, vec![]));
    // Each unit takes two credits: the second one is what is left of them.
    rig.attach("a", 1, 1, &[], 3);
    rig.step();
    assert_eq!((rig.core.pending().count_backlog(), owed(&rig, 1..=3)), (1, vec![1, 2, 3]));
    rig.core.streams().on_credits(SessionId(1), 2);
    rig.step();
    assert_eq!((rig.core.pending().count_backlog(), owed(&rig, 1..=3)), (0, vec![1, 2, 3]));
}

#[test]
fn what_has_no_room_is_not_owed() {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 100);
    rig.submit(1..=4);
    rig.step();
    assert_eq!(owed(&rig, 1..=4), [1, 2, 3, 4]);
    rig.report(1, 1, ReportState::Parked);
    rig.report(1, 2, ReportState::Done);
    rig.bind(3, &[0, 1]);
    assert_eq!(owed(&rig, 1..=4), [4]);
    rig.report(1, 1, ReportState::Woken);
    assert_eq!(owed(&rig, 1..=4), [1, 4]);
}

#[test]
fn what_its_queue_holds_up_is_neither() {
    let mut rig = Rig::new();
    let record = QueueSpec { max: [("cpu".to_owned(), 200)].into(), ..QueueSpec::new("small") };
    let revision = rig.next();
    rig.core.on_change(
        &Change::Put(Record::Queue(Arc::new(record))),
        revision,
        Receipt { revision, time_ms: 7 },
        rig.now,
    );
    rig.attach("a", 1, 1, &[], 100);
    // Each asks for 200: one is all that the queue may use.
    for unit in 1..=3 {
        rig.put(spec(unit, 2).queue("small"));
    }
    rig.step();
    assert_eq!((rig.core.pending().count_backlog(), owed(&rig, 1..=3)), (0, vec![1]));
}
