//! Ended replicas of units that grow are compacted after a while.

use godel_domain::{
    submission::{GroupChanges, GroupSubmission},
    unit::WorkloadClass,
};
use godel_rules::admission::grow::grow;

use super::*;

impl Rig {
    fn application(&mut self, unit: u64) {
        let mut record = spec(unit, 1);
        record.spec.class = WorkloadClass::Yarn;
        self.put(record);
        self.bind(unit, &[0]);
    }

    fn change_groups(&mut self, unit: u64, changes: &GroupChanges) {
        let view = self.core.unit(UnitId(unit)).unwrap();
        let record = grow(view.record, view.rows, changes).unwrap().unwrap().record;
        self.put(record);
    }

    fn add_group(&mut self, unit: u64, name: &str, replicas: u32) {
        let group = GroupSubmission { name: name.to_owned(), replicas, ..GroupSubmission::default() };
        self.change_groups(unit, &GroupChanges { added: vec![group], ..GroupChanges::default() });
    }

    /// Steps after so long, writes what is compacted, and says which ordinals that was.
    fn compact_after(&mut self, ms: u64) -> Vec<Vec<u32>> {
        self.now = self.now.plus(ms);
        let mut compacted = Vec::new();
        for action in self.core.step(self.now) {
            if let Action::Compact(record, revision, compaction) = action {
                assert_eq!(revision, self.core.unit(record.id).unwrap().spec_revision);
                let unit = record.id.0;
                self.put((*record).clone());
                compacted.push(compaction.ordinals.clone());
                self.rows(unit, RunChange::Compact(compaction));
            }
        }
        compacted
    }

    /// The same in steps of half a minute.
    fn compact_within(&mut self, n_steps: u32) -> Vec<Vec<u32>> {
        (0..n_steps).flat_map(|_| self.compact_after(MINUTE / 2)).collect()
    }

    fn n_rows(&self, unit: u64) -> usize {
        self.core.unit(UnitId(unit)).unwrap().rows.rows.len()
    }
}

const MINUTE: u64 = 60_000;

#[test]
fn ended_replicas_of_an_application_go_after_ten_minutes() {
    let mut rig = Rig::new();
    rig.application(1);
    rig.add_group(1, "c", 4);
    rig.bind_group(1, 1, &[1, 2, 3, 4]);
    rig.status(1, &[1], RowPhase::Succeeded);
    assert_eq!(rig.compact_after(0), [[0; 0]; 0]);
    assert_eq!(rig.compact_within(10), [[0; 0]; 0]);
    // After five minutes.
    rig.status(1, &[2], RowPhase::Failed);
    rig.change_groups(1, &GroupChanges { released: vec![3], ..GroupChanges::default() });
    rig.status(1, &[3], RowPhase::Stopped);
    assert_eq!(rig.compact_within(9), [[0; 0]; 0]);
    assert_eq!(rig.compact_within(2), [[1]], "the others ended later");
    assert_eq!(rig.compact_within(8), [[0; 0]; 0]);
    assert_eq!(rig.compact_within(7), [[2, 3]], "two and a half minutes late at most");
    assert_eq!((rig.n_rows(1), rig.phase(1)), (2, UnitPhase::Scheduled));
    let counts = rig.core.unit(UnitId(1)).unwrap().counts.clone();
    assert_eq!((counts.replicas, counts.live, counts.failed, counts.pending), (2, 2, 0, 0));
    assert_eq!(rig.core.summary().counters.repairs, 0);
}

#[test]
fn what_does_not_grow_and_what_has_ended_keeps_its_rows() {
    let mut rig = Rig::new();
    rig.submit([1]);
    rig.bind(1, &[0, 1]);
    rig.status(1, &[0], RowPhase::Succeeded);
    rig.application(2);
    rig.add_group(2, "c", 1);
    rig.bind_group(2, 1, &[1]);
    rig.status(2, &[0, 1], RowPhase::Succeeded);
    for _ in 0..20 {
        assert_eq!(rig.compact_after(2 * MINUTE), [[0; 0]; 0]);
    }
    assert_eq!((rig.n_rows(1), rig.n_rows(2)), (2, 2));
}

#[test]
fn a_refused_compaction_is_asked_for_again() {
    let mut rig = Rig::new();
    rig.application(1);
    rig.add_group(1, "c", 1);
    rig.bind_group(1, 1, &[1]);
    rig.status(1, &[1], RowPhase::Succeeded);
    let compacts = |rig: &mut Rig, ms: u64| {
        rig.now = rig.now.plus(ms);
        rig.step().iter().filter(|action| action.starts_with("compact")).count()
    };
    assert_eq!(compacts(&mut rig, 0), 0);
    assert_eq!(compacts(&mut rig, 10 * MINUTE), 1);
    assert_eq!((compacts(&mut rig, 1), compacts(&mut rig, 999), compacts(&mut rig, 1_000)), (0, 1, 1));
}
