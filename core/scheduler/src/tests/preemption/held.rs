//! Units whose holds end or are of an older record: they are placed again, with the real binder behind them.

use super::*;
use godel_domain::records::{Record, RecordKey};

impl Pair {
    /// The victim of a hold has left, and the hold is dropped; the scheduler reads that, or a list that shows it.
    fn leave_nobody(&mut self, hold: HoldId, lists: bool) {
        let stopped = Statuses {
            ordinals: vec![0],
            incarnations: vec![0],
            phases: vec![Phase::Stopped],
            ..Statuses::default()
        };
        let changes =
            vec![Change::Rows(UnitId(1), RunChange::Statuses(stopped)), Change::Gone(RecordKey::Hold(hold))];
        if !lists {
            self.commit(changes);
            return;
        }
        self.revision += 1;
        let revision = Revision(self.revision);
        let time_ms = i64::try_from(self.revision * 100).unwrap();
        changes.into_iter().for_each(|change| self.binder.on_change(change, revision, time_ms));
        self.binder.on_revision(revision);
        self.list();
    }

    /// The scheduler reads a list of the node and of what runs there.
    fn list(&mut self) {
        let (revision, time_ms) = (Revision(self.revision), i64::try_from(self.revision * 100).unwrap());
        let (spec, report) = (node_spec(1), node_report(1, resources(1000, 100), 0, "A10"));
        let mut listed = vec![Change::Put(Record::NodeSpec(spec)), Change::Put(Record::NodeReport(report))];
        let rows =
            |id| Some(Change::RowsLoaded(UnitId(id), self.binder.cluster().rows().of(UnitId(id))?.clone()));
        listed.extend([1, 2].into_iter().filter_map(rows));
        listed.iter().for_each(|change| self.scheduler.load(change, revision, time_ms, self.now));
        self.scheduler.on_listed(revision);
    }
}

#[test]
fn what_is_held_by_an_older_record_is_to_be_placed_again() {
    let mut pair = Pair::new(1);
    pair.assign(&ranked(1, 0, 1, 1, cpu(1000)));
    pair.step();
    let high = ranked(2, 9, 1, 1, cpu(1000));
    pair.assign(&high);
    pair.steps();
    assert_eq!((pair.binder.n_holds(), pair.scheduler.inventory().len()), (1, 1), "room is held for it");
    // The binder gives it up as the unit is another one now; that is not read yet.
    pair.assign(&high.min_run_ms(1));
    assert!(!pair.step().contains(&(2, ReportState::Done)));
    assert!(pair.scheduler.inventory().iter().any(|(unit, _)| *unit == UnitId(2)));
}

#[test]
fn ordinals_left_out_as_held_are_placed_after_the_hold() {
    let mut pair = Pair::new(3);
    pair.assign(&ranked(1, 1, 2, 1, cpu(1000)));
    pair.steps();
    let gang = ranked(2, 9, 4, 3, cpu(1000));
    pair.assign(&gang);
    let revision = Revision(pair.revision);
    pair.steps();
    assert_eq!(pair.binder.n_holds(), 3);
    // The dispatcher has read that they have ended, the scheduler has not.
    pair.scheduler.on_assign(&assignment(&gang, revision, &all(&gang), 0), pair.now);
    pair.steps();
    let stopped = Statuses {
        ordinals: vec![0, 1],
        incarnations: vec![0, 0],
        phases: vec![Phase::Stopped; 2],
        ..Statuses::default()
    };
    pair.commit(vec![Change::Rows(UnitId(1), RunChange::Statuses(stopped))]);
    let holds: Vec<HoldId> = pair.binder.cluster().holds().all().iter().map(|hold| hold.id).collect();
    pair.commit(holds.into_iter().map(|it| Change::Gone(RecordKey::Hold(it))).collect());
    pair.now = pair.now.plus(10_000);
    pair.steps();
    assert_eq!((pair.live(2).len(), pair.binder.n_holds()), (3, 0));
    pair.assert_same();
}

#[test]
fn what_was_held_is_placed_again_though_nobody_dispatches() {
    // The scheduler reads the end of the hold, or a list made after it.
    for lists in [false, true] {
        let mut pair = Pair::new(1);
        pair.assign(&ranked(1, 1, 1, 1, cpu(600)));
        pair.steps();
        // It needs two rooms, and waits for the second one.
        let spec = ranked(2, 9, 3, 1, cpu(400));
        pair.assign(&spec);
        pair.steps();
        assert_eq!((pair.live(2).len(), pair.binder.n_holds()), (1, 1));
        let gone = pair.binder.cluster().holds().all().iter().map(|hold| hold.id).next().unwrap();
        if lists {
            pair.scheduler.on_reset();
        }
        pair.leave_nobody(gone, lists);
        pair.now = pair.now.plus(10_000);
        pair.steps();
        assert_eq!((pair.live(2).len(), pair.binder.n_holds()), (2, 0), "lists: {lists}");
    }
}

#[test]
fn an_assignment_after_the_end_of_a_hold_is_placed() {
    let mut pair = Pair::new(1);
    pair.assign(&ranked(1, 1, 1, 1, cpu(1000)));
    pair.steps();
    let spec = ranked(2, 9, 2, 1, cpu(500));
    pair.assign(&spec);
    let assigned = Revision(pair.revision);
    let first = pair.scheduler.step(pair.now, 1).decisions.remove(0);
    // Room is held for its first one, which is bound there then. The dispatcher has read that, the scheduler has not.
    let reads_nothing = Scheduler::new(Config::default(), 7);
    let scheduler = std::mem::replace(&mut pair.scheduler, reads_nothing);
    let answer = pair.decide(&first);
    assert!(answer.held);
    pair.leave();
    assert_eq!(pair.live(2).len(), 1);
    pair.scheduler = scheduler;
    pair.scheduler.on_assign(&assignment(&spec, assigned, &replicas(&[(1, 0)]), 1), pair.now);
    pair.scheduler.on_outcome(&answer, pair.now);
    pair.scheduler.on_reset();
    pair.list();
    assert!(!pair.steps().contains(&(2, ReportState::Parked)));
    assert_eq!(pair.live(2).len(), 2);
}

#[test]
fn a_new_stream_gives_up_what_is_assigned_in_part() {
    for (id, n_replicas, n_kept) in [(2, 1, 1), (3, 2, 0)] {
        let mut pair = Pair::new(1);
        pair.assign(&ranked(1, 1, 1, 1, cpu(1000)));
        pair.steps();
        // One waits for the victim; the other one was let go until the first binding.
        pair.assign(&ranked(id, 9, n_replicas, 1, cpu(1000)));
        pair.steps();
        assert_eq!((pair.binder.n_holds(), pair.scheduler.inventory().len()), (1, 1));
        pair.scheduler.on_attach();
        assert_eq!(pair.scheduler.inventory().len(), n_kept, "of {n_replicas}");
        // Assigned while the hold lasts it is what that is for, and no more.
        let (record, revision) = (ranked(id, 9, n_replicas, 1, cpu(1000)), Revision(pair.revision));
        pair.scheduler.on_assign(&assignment(&record, revision, &replicas(&[(0, 0)]), 0), pair.now);
        pair.scheduler.on_attach();
        assert_eq!(pair.scheduler.inventory().len(), n_kept, "of {n_replicas} again");
    }
}
