//! Changes as the watch delivers them.

use godel_domain::{
    change::Change,
    records::{Record, RecordKey},
    unreadable::Unreadable,
};

use super::*;

#[test]
fn rows_that_follow_unreadable_rows_are_not_applied() {
    let mut rig = Rig::new();
    let mut apply = |revision: u64, change: &Change| {
        let revision = Revision(revision);
        let unit = rig.core.on_change(change, revision, Receipt { revision, time_ms: 5 }, NOW);
        rig.core.on_revision(revision);
        unit
    };
    assert_eq!(apply(11, &Change::Put(Record::Unit(Arc::new(spec(1, 2))))), Some(UnitId(1)));
    let rows = Unreadable::new(RecordKey::Rows(UnitId(1)), "field", "problem");
    apply(12, &Change::Unreadable(Box::new(rows)));
    let bind = Bind { ordinals: vec![0], incarnations: vec![0], nodes: vec![NodeId(1)], ..Bind::default() };
    apply(13, &Change::Rows(UnitId(1), RunChange::Bind(bind)));
    assert_eq!(rig.core.unit(UnitId(1)).unwrap().counts.live, 0);
    assert_eq!(rig.core.following().revision(), Revision(13));
}
