//! How long units may wait, and how long they may be active.

use godel_domain::refusals::RefusalCount;

use super::*;

fn limited(id: u64, scheduling_timeout_ms: u64, active_deadline_ms: u64) -> UnitRecord {
    spec(id, 2).scheduling_timeout_ms(scheduling_timeout_ms).active_deadline_ms(active_deadline_ms)
}

impl Rig {
    fn reasons(&self, unit: u64) -> Vec<(String, String)> {
        let refusals = self.core.unit(UnitId(unit)).unwrap().refusals;
        let reasons = refusals.map(|refusals| refusals.reasons.clone()).unwrap_or_default();
        reasons.into_iter().map(|reason| (reason.plugin.into_owned(), reason.reason)).collect()
    }

    fn later(&mut self, ms: u64) {
        self.now = self.now.plus(ms);
        self.core.assignments.wall_ms += i64::try_from(ms).unwrap();
    }
}

#[test]
fn what_a_unit_lacks_stays_first_however_long_it_waits() {
    let mut rig = Rig::new();
    rig.step();
    rig.put(limited(1, 10_000, 0));
    rig.attach("a", 1, 1, &[], 100);
    assert_eq!(rig.step().len(), 1);
    let lacks =
        RefusalCount { plugin: "resources-fit".into(), reason: "insufficient cpu".to_owned(), nodes: 1 };
    let refusals = Arc::new(Refusals { reasons: vec![lacks], nodes: 1, ..Refusals::default() });
    let report = UnitReport {
        unit: UnitId(1),
        spec_revision: rig.core.unit(UnitId(1)).unwrap().spec_revision,
        state: ReportState::Parked,
        refusals: Some(refusals),
        need: 1,
        unplaced: None,
        lacking: Vec::new(),
        assigned: 0,
    };
    rig.core.streams().on_report(SessionId(1), report, rig.now);
    let of = |plugin: &str, reason: &str| (plugin.to_owned(), reason.to_owned());
    assert_eq!(rig.reasons(1), [of("resources-fit", "insufficient cpu")]);
    rig.later(10_300);
    rig.step();
    let waits = of("scheduling-timeout", "no place within 10 s, and still tried");
    assert_eq!(rig.reasons(1), [of("resources-fit", "insufficient cpu"), waits]);
}

#[test]
fn who_waits_for_too_long_finds_no_place_and_is_tried_on() {
    let mut rig = Rig::new();
    rig.step();
    for unit in [limited(1, 0, 0), limited(2, 10_000, 0), limited(3, 10_000, 0)] {
        rig.put(unit);
    }
    rig.step();
    rig.later(9_900);
    rig.step();
    assert_eq!([1, 2, 3].map(|unit| rig.phase(unit)), [UnitPhase::Queued; 3]);
    rig.attach("a", 1, 1, &[], 100);
    assert_eq!(rig.step().len(), 3);
    rig.bind(3, &[0]);
    let due = rig.core.next_wake(rig.now).unwrap();
    assert!(due <= rig.now.plus(350), "{due:?}");
    rig.later(350);
    assert_eq!(rig.step(), [""; 0]);
    // Whoever has it goes on with it; one place is enough for the third.
    assert_eq!(
        [1, 2, 3].map(|unit| rig.phase(unit)),
        [UnitPhase::Scheduling, UnitPhase::Unschedulable, UnitPhase::Scheduled]
    );
    assert_eq!(
        rig.reasons(2),
        [("scheduling-timeout".to_owned(), "no place within 10 s, and still tried".to_owned())]
    );
    assert_eq!((rig.reasons(1), rig.reasons(3)), (vec![], vec![]));
    rig.report(1, 2, ReportState::Returned);
    assert_eq!(
        (rig.phase(2), rig.step()),
        (UnitPhase::Unschedulable, vec!["assign 2 to 1: [0, 1] on all nodes".to_owned()])
    );
    rig.bind(2, &[0]);
    assert_eq!((rig.phase(2), rig.reasons(2)), (UnitPhase::Scheduled, vec![]));
    // It begins to wait anew.
    rig.status(2, &[0], RowPhase::Stopped);
    assert_eq!(rig.phase(2), UnitPhase::Scheduling);
    rig.later(9_000);
    rig.step();
    assert_eq!(rig.phase(2), UnitPhase::Scheduling);
    rig.later(1_300);
    rig.step();
    assert_eq!(rig.phase(2), UnitPhase::Unschedulable);
    rig.later(290_000);
    rig.step();
    assert_eq!(rig.phase(1), UnitPhase::Unschedulable, "five minutes by default");
    assert_eq!(rig.core.summary().counters.repairs, 0);
}

#[test]
fn a_new_leader_counts_from_the_submission() {
    let mut rig = Rig::loading(Config::default());
    for unit in [limited(1, 10_000, 0), limited(2, 0, 0)] {
        rig.put(unit);
    }
    rig.core.on_synced(Revision(rig.revision), rig.now);
    // Submitted at 5.
    rig.core.assignments.wall_ms = 5 + 20_000;
    rig.step();
    rig.later(1_000);
    rig.step();
    assert_eq!((rig.phase(1), rig.phase(2)), (UnitPhase::Unschedulable, UnitPhase::Queued));
}

#[test]
fn a_unit_ends_once_it_was_active_for_as_long_as_it_may_be() {
    let mut rig = Rig::new();
    rig.core.assignments.wall_ms = 77;
    rig.put(limited(1, 0, 5_000));
    rig.step();
    rig.later(60_000);
    assert_eq!(rig.step(), [""; 0], "waiting is not being active");
    rig.core.assignments.wall_ms = 77;
    // Bound at 77.
    rig.bind(1, &[0, 1]);
    rig.step();
    rig.later(4_900);
    assert_eq!(rig.step(), [""; 0]);
    rig.later(101);
    assert_eq!(rig.step(), ["end 1 Some(Deadline)"]);
    rig.put(limited(1, 0, 5_000).ended(Some(godel_domain::unit::UnitEnd::Deadline)));
    assert_eq!((rig.phase(1), rig.step()), (UnitPhase::Failed, vec!["evict 1 Deadline [1, 0]".to_owned()]));
    rig.status(1, &[0, 1], RowPhase::Stopped);
    rig.later(100_000);
    assert_eq!((rig.step(), rig.core.summary().ended), (vec![], 1));

    // What is suspended is not active, and neither is what was deleted.
    rig.core.assignments.wall_ms = 77;
    for unit in [2, 3] {
        rig.put(limited(unit, 0, 5_000));
        rig.bind(unit, &[0, 1]);
    }
    rig.put(limited(2, 0, 5_000).suspended(true));
    rig.core.on_unit_deleted(UnitId(3), rig.now);
    rig.later(6_000);
    assert_eq!(rig.step(), ["evict 2 Suspended [1, 0]"]);
    rig.status(2, &[0, 1], RowPhase::Stopped);
    rig.put(limited(2, 0, 5_000));
    assert_eq!(rig.step(), [""; 0], "it begins anew");
}
