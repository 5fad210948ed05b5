//! An application that takes and gives back containers for days stays small, and no ordinal comes back.

use godel_base::ids::{NodeId, UnitId};
use godel_domain::{
    lifecycle::{Counts, Soft, UnitPhase, phase},
    running_units::{Bind, EvictionReason, RunChange, Statuses},
    submission::{Given, GroupChanges, GroupSubmission, Submission},
    unit::UnitSpec,
};

use super::*;
use crate::admission::{admit, grow::grow};

/// A unit with its rows, and the revision of the last change.
struct Growing {
    record: UnitRecord,
    rows: RunningUnits,
    revision: u64,
}

impl Growing {
    fn new(class: WorkloadClass) -> Self {
        let master = GroupSubmission { name: "master".to_owned(), replicas: 1, ..GroupSubmission::default() };
        let submission = Submission {
            name: "u".to_owned(),
            uid: "0190163d-8694-739b-aea5-000000000001".to_owned(),
            class: Given::Value(class),
            task_groups: vec![master],
            min_member: Some(1),
            ..Submission::default()
        };
        let spec: UnitSpec = admit(submission).unwrap().spec;
        let mut unit =
            Self { record: UnitRecord::new(UnitId(1), spec), rows: RunningUnits::default(), revision: 0 };
        unit.bind(0, &[0]);
        unit
    }

    fn apply(&mut self, change: &RunChange) {
        self.rows.check(change).unwrap();
        self.revision += 1;
        self.rows.apply(change, Revision(self.revision), 1_000, |_, _, _| {});
    }

    fn bind(&mut self, group: u16, ordinals: &[u32]) {
        let nodes = vec![NodeId(1); ordinals.len()];
        let bind = Bind { group, ordinals: ordinals.to_vec(), nodes, ..Bind::default() };
        self.apply(&RunChange::Bind(bind));
    }

    fn end(&mut self, ordinals: &[u32], phase: Phase) {
        let phases = vec![phase; ordinals.len()];
        self.apply(&RunChange::Statuses(Statuses {
            ordinals: ordinals.to_vec(),
            phases,
            ..Statuses::default()
        }));
    }

    fn grow(&mut self, changes: &GroupChanges) {
        self.record = grow(&self.record, &self.rows, changes).unwrap().unwrap().record;
    }

    fn add(&mut self, name: &str, replicas: u32) {
        let group = GroupSubmission { name: name.to_owned(), replicas, ..GroupSubmission::default() };
        self.grow(&GroupChanges { added: vec![group], ..GroupChanges::default() });
    }

    fn compact(&mut self) -> Option<CompactedUnit> {
        let compacted = compact(&self.record, &self.rows, Revision(self.revision), 9_000)?;
        self.record = compacted.record.clone();
        self.apply(&RunChange::Compact(compacted.compaction.clone()));
        Some(compacted)
    }

    fn wanted(&self) -> Vec<u32> {
        self.record.iter_ordinals().collect()
    }
}

#[test]
fn released_and_ended_replicas_go_and_their_sums_stay() {
    let mut unit = Growing::new(WorkloadClass::Yarn);
    unit.add("c", 4);
    assert_eq!(unit.wanted(), [0, 1, 2, 3, 4]);
    unit.bind(1, &[1, 2, 3, 4]);
    unit.end(&[1], Phase::Succeeded);
    unit.end(&[2], Phase::Failed);
    unit.end(&[4], Phase::Stopped);
    unit.grow(&GroupChanges { released: vec![4], ..GroupChanges::default() });
    let CompactedUnit { compaction, is_more, .. } = unit.compact().unwrap();
    assert_eq!((compaction.ordinals, compaction.groups, is_more), (vec![1, 2, 4], vec![], false));
    assert_eq!(unit.wanted(), [0, 3]);
    assert_eq!((unit.rows.rows.len(), unit.record.spec.replicas()), (2, 2));
    let sums = unit.record.status.compacted.as_deref().unwrap();
    assert_eq!((sums.replicas, sums.succeeded, sums.failed, sums.starts), (3, 1, 1, 3));
    assert_eq!(unit.compact(), None, "nothing more goes");
    unit.grow(&GroupChanges { sizes: vec![("c".to_owned(), 2)], ..GroupChanges::default() });
    assert_eq!(unit.wanted(), [0, 3, 5], "no ordinal comes back");
    unit.end(&[3], Phase::Succeeded);
    unit.end(&[0], Phase::Succeeded);
    unit.grow(&GroupChanges { released: vec![5], ..GroupChanges::default() });
    let counts = Counts::of(&unit.record, &unit.rows);
    assert_eq!(phase(&unit.record, &counts, Soft::Waiting), UnitPhase::Failed, "one failed, long ago");
}

#[test]
fn what_may_come_back_or_is_recent_stays() {
    let mut unit = Growing::new(WorkloadClass::Yarn);
    unit.add("c", 3);
    unit.bind(1, &[1, 2, 3]);
    unit.end(&[0], Phase::Succeeded);
    let evict = godel_domain::running_units::Evict {
        ordinals: vec![1],
        incarnations: Vec::new(),
        reason: EvictionReason::Preempted,
        by: String::new(),
        preemptor: UnitId(0),
    };
    unit.apply(&RunChange::Evict(evict));
    unit.end(&[1], Phase::Failed);
    let before = Revision(unit.revision);
    unit.end(&[2], Phase::Succeeded);
    assert_eq!(compact(&unit.record, &unit.rows, before, 9_000), None);
    unit.record.status.next_incarnations = vec![(2, 1)];
    assert_eq!(unit.compact(), None, "somebody asked for its next incarnation");
    let mut batch = Growing::new(WorkloadClass::Batch);
    batch.add("c", 2);
    batch.bind(1, &[1, 2]);
    batch.end(&[1, 2], Phase::Succeeded);
    assert_eq!(batch.compact(), None, "a batch ends with all of its replicas");
    batch.grow(&GroupChanges { released: vec![2], ..GroupChanges::default() });
    assert_eq!(batch.compact().unwrap().compaction.ordinals, [2]);
    assert_eq!(batch.wanted(), [0, 1]);
}

#[test]
fn a_unit_of_100_000_past_ordinals_stays_small() {
    let mut unit = Growing::new(WorkloadClass::Yarn);
    unit.add("c", 1);
    unit.bind(1, &[1]);
    let (mut last, mut n_rows_max) = (1, 0);
    for _ in 0..100 {
        unit.grow(&GroupChanges { sizes: vec![("c".to_owned(), 1_001)], ..GroupChanges::default() });
        let new: Vec<u32> = unit.wanted().into_iter().filter(|ordinal| *ordinal > last).collect();
        assert_eq!(new.len(), 1_000);
        unit.bind(1, &new);
        last = new[999];
        let (ended, released) = new.split_at(500);
        unit.end(ended, Phase::Succeeded);
        unit.end(released, Phase::Stopped);
        unit.grow(&GroupChanges { released: released.to_vec(), ..GroupChanges::default() });
        unit.compact().unwrap();
        n_rows_max = n_rows_max.max(unit.rows.rows.len());
        assert!(unit.record.ranges().count() <= 4, "{:?}", unit.record.status.ordinals);
    }
    assert_eq!((n_rows_max, last, unit.wanted().len()), (2, 100_001, 2));
    let sums = unit.record.status.compacted.as_deref().unwrap();
    assert_eq!((sums.replicas, sums.succeeded), (100_000, 50_000));
}

#[test]
fn emptied_groups_make_room_for_others() {
    let mut unit = Growing::new(WorkloadClass::Yarn);
    let mut last = 0;
    for n in 0..3_000 {
        unit.add(&format!("g{n}"), 1);
        let ordinal = *unit.wanted().iter().max().unwrap();
        assert!(ordinal > last);
        last = ordinal;
        let group = u16::try_from(unit.record.group_of(ordinal).unwrap()).unwrap();
        unit.bind(group, &[ordinal]);
        unit.end(&[ordinal], Phase::Succeeded);
        if n % 100 == 99 {
            unit.compact().unwrap();
        }
    }
    let n_groups = unit.record.spec.task_groups.len();
    assert!((2..=TASK_GROUPS_MAX).contains(&n_groups), "{n_groups}");
    let bytes: usize = unit.record.spec.task_groups.iter().skip(1).map(group_bytes).sum();
    assert!(bytes <= ADDED_BYTES_MAX, "{bytes}");
}
