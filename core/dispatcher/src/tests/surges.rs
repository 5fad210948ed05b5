//! Replicas that start before those stop that they replace: added when room is held for them, and taken out again.

use godel_base::ids::{HoldId, RunningUnitId};
use godel_domain::{
    change::Change,
    hold::{Hold, MovementTarget},
    records::{Record, RecordKey},
    unit::WorkloadClass,
};

use super::*;

const WALL_MS: i64 = 50_000;

impl Rig {
    /// A service of two that runs, of which one replacement may start first.
    fn service(&mut self) {
        self.core.assignments.wall_ms = WALL_MS;
        let record = spec(1, 2).class(WorkloadClass::Service).max_surge(1);
        self.change(Change::Put(Record::Unit(Arc::new(record))));
        self.bind(1, &[0, 1]);
        self.status(1, &[0, 1], RowPhase::Running);
    }

    fn change(&mut self, change: Change) {
        let revision = Revision(self.revision + 1);
        self.core.on_change(&change, revision, Receipt { revision, time_ms: 5 }, self.now);
        self.next();
    }

    /// Binds and reports as the watch shows it.
    fn show_rows(&mut self, change: RunChange) {
        self.change(Change::Rows(UnitId(1), change));
    }

    /// Room for replica 2 in the place of replica 0.
    fn hold(&mut self) {
        let from = RunningUnitId::new(UnitId(1), 0, 0);
        let movement = Some(MovementTarget { movement: Arc::from("m"), from });
        let ordinals = vec![2];
        let hold = Hold {
            id: HoldId(7),
            unit: UnitId(1),
            ordinals,
            movement,
            expires_ms: WALL_MS + 1_000,
            ..Hold::default()
        };
        self.change(Change::Put(Record::Hold(Arc::new(hold))));
    }

    /// Writes what the dispatcher makes of replacements. Returns the ordinals wanted from then on, and whether the write rests on
    /// the running units.
    fn surge(&mut self) -> Option<(Vec<u32>, bool)> {
        let actions = self.core.step(self.now);
        let surge = actions.into_iter().find_map(|action| match action {
            Action::Surge(record, revision, rows) => Some((record, revision, rows)),
            _ => None,
        });
        let (record, revision, rows) = surge?;
        let view = self.core.unit(UnitId(1)).unwrap();
        assert_eq!(revision, view.spec_revision);
        assert!(rows.is_none_or(|rows| rows == view.rows_revision));
        let wanted = record.iter_ordinals().collect();
        self.change(Change::Put(Record::Unit(record)));
        Some((wanted, rows.is_some()))
    }

    /// Surges that began, and those that were given up.
    fn counted(&self) -> (u64, u64) {
        let counters = self.core.summary().counters;
        (counters.surges_started, counters.surges_given_up)
    }

    fn evictions(&mut self) -> Vec<String> {
        self.step().into_iter().filter(|action| action.starts_with("evict")).collect()
    }
}

#[test]
fn the_old_one_is_told_to_leave_once_the_new_one_runs() {
    let mut rig = Rig::new();
    rig.service();
    assert_eq!(rig.surge(), None);
    rig.hold();
    assert_eq!(rig.surge(), Some((vec![0, 1, 2], false)));
    assert_eq!((rig.surge(), rig.phase(1)), (None, UnitPhase::Running));
    let view = rig.core.unit(UnitId(1)).unwrap();
    assert_eq!((view.counts.replicas, view.counts.pending), (3, 1), "it is handed out as any other");
    let bind = Bind { ordinals: vec![2], nodes: vec![NodeId(1)], ..Bind::default() };
    rig.show_rows(RunChange::Bind(bind));
    rig.change(Change::Gone(RecordKey::Hold(HoldId(7))));
    assert_eq!((rig.surge(), rig.evictions()), (None, Vec::new()));
    let status = Statuses { ordinals: vec![2], phases: vec![RowPhase::Running], ..Statuses::default() };
    rig.show_rows(RunChange::Statuses(status));
    assert_eq!(rig.surge(), Some((vec![1, 2], true)));
    assert_eq!(rig.evictions(), ["evict 1 ScaledIn [0]"]);
    assert_eq!((rig.surge(), rig.core.next_wake(rig.now).is_some()), (None, true));
    assert_eq!(rig.counted(), (1, 0));
}

#[test]
fn what_finds_no_place_is_given_up() {
    let mut rig = Rig::new();
    rig.service();
    rig.hold();
    assert_eq!(rig.surge(), Some((vec![0, 1, 2], false)));
    rig.change(Change::Gone(RecordKey::Hold(HoldId(7))));
    assert_eq!(rig.surge(), Some((vec![0, 1], true)));
    assert_eq!((rig.surge(), rig.evictions()), (None, Vec::new()));
    assert_eq!(rig.counted(), (1, 1));
}

#[test]
fn what_takes_too_long_is_given_up_without_an_event() {
    let mut rig = Rig::new();
    rig.service();
    rig.hold();
    assert!(rig.surge().is_some() && rig.surge().is_none());
    rig.now = rig.now.plus(1_000);
    rig.core.assignments.wall_ms = WALL_MS + 1_000;
    assert!(rig.core.next_wake(rig.now).is_some_and(|at| at <= rig.now));
    assert_eq!(rig.surge(), Some((vec![0, 1], true)));
}

#[test]
fn a_refused_write_is_asked_for_again() {
    let mut rig = Rig::new();
    rig.service();
    rig.hold();
    let asks = |rig: &mut Rig, ms: u64| {
        rig.now = rig.now.plus(ms);
        rig.step().iter().filter(|action| action.starts_with("surge")).count()
    };
    let retry_ms = Config::default().evict_retry_ms;
    assert_eq!((asks(&mut rig, 0), asks(&mut rig, 1), asks(&mut rig, retry_ms)), (1, 0, 1));
    // And after a list that shows nothing of it nothing is.
    rig.core.on_reset();
    list_node(&mut rig.core, rig.now);
    let record = spec(1, 2).class(WorkloadClass::Service).max_surge(1);
    rig.change(Change::Put(Record::Unit(Arc::new(record))));
    let revision = rig.next();
    rig.core.on_synced(revision, rig.now);
    assert_eq!(asks(&mut rig, retry_ms), 0);
}

#[test]
fn an_assignment_says_up_to_where_its_scheduler_must_have_read_of_moves() {
    for n_schedulers in 2..=4 {
        let mut rig = Rig::new();
        rig.core.assignments.wall_ms = WALL_MS;
        let names: Vec<String> = (0..n_schedulers).map(|idx| format!("s{idx}")).collect();
        for (session, name) in (1..).zip(&names) {
            rig.change(Change::Put(Record::Lease(lease(name, session, "p"))));
            rig.attach(name, session, session, &[], 100);
        }
        rig.change(Change::Put(Record::Unit(Arc::new(spec(1, 2)))));
        rig.change(Change::Put(Record::Unit(Arc::new(spec(2, 2)))));
        let assigned = |rig: &mut Rig| -> Vec<(u64, Revision)> {
            let actions = rig.core.step(rig.now);
            let of = |action: Action| match action {
                Action::Assign(_, one) => Some((one.record.id.0, one.permit.read)),
                _ => None,
            };
            actions.into_iter().filter_map(of).collect()
        };
        assert_eq!(assigned(&mut rig), [(1, Revision(0)), (2, Revision(0))], "nobody moves");
        rig.bind(1, &[0, 1]);
        for session in 1..=n_schedulers {
            rig.report(session, 1, ReportState::Done);
        }
        let from = RunningUnitId::new(UnitId(1), 1, 0);
        let movement = Some(MovementTarget { movement: Arc::from("m"), from });
        let (ordinals, incarnations) = (vec![1], vec![1]);
        let hold =
            Hold { id: HoldId(7), unit: UnitId(1), ordinals, incarnations, movement, ..Hold::default() };
        rig.change(Change::Put(Record::Hold(Arc::new(hold))));
        let held = Revision(rig.revision);
        let evict = Evict {
            ordinals: vec![1],
            incarnations: vec![0],
            reason: EvictionReason::Rescheduled,
            by: "movement m".to_owned(),
            preemptor: UnitId(0),
        };
        rig.rows(1, RunChange::Evict(evict));
        rig.status(1, &[1], RowPhase::Stopped);
        let again = Requeue { ordinals: vec![1], incarnations: vec![1], ..Requeue::default() };
        rig.rows(1, RunChange::Requeue(again));
        assert_eq!(assigned(&mut rig), [(1, held)], "{n_schedulers} schedulers");
    }
}
