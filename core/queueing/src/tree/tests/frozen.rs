//! Queues that are frozen by records that cannot be read.

use std::sync::Arc;

use godel_base::ids::{HoldId, UnitId};
use godel_domain::{
    change::Change,
    frozen::Frozen,
    hold::Hold,
    queue_spec::QueueSpec,
    records::{Record, RecordKey},
    unreadable::Unreadable,
};

use crate::{QueueIdx, Quota};

fn frozen_of(subjects: impl IntoIterator<Item = RecordKey>) -> Frozen {
    let mut frozen = Frozen::default();
    for subject in subjects {
        let bad = Change::Unreadable(Box::new(Unreadable::new(subject, "field", "problem")));
        assert!(frozen.note(&bad).is_news);
    }
    frozen
}

#[test]
fn an_unreadable_hold_freezes_the_queues_under_the_same_maximum() {
    let unreadable = Unreadable {
        queue: Some("prod.search".to_owned()),
        ..Unreadable::new(RecordKey::Hold(HoldId(1)), "pool", "9")
    };
    let mut frozen = Frozen::default();
    let _ = frozen.note(&Change::Unreadable(Box::new(unreadable)));
    let mut quota = Quota::default();
    let [search, ads, other] = ["prod.search", "prod.ads", "dev"].map(|path| quota.queue(path));
    let is = |quota: &Quota, queue| quota.tree().frozen_by(&frozen, queue, |_| None).is_some();
    assert!(!is(&quota, search), "no maximum is under way to be passed");
    let max = [("cpu".to_owned(), 5)].into();
    quota.put(Arc::new(QueueSpec { max, ..QueueSpec::new("prod") }));
    assert!(is(&quota, search) && is(&quota, ads), "they share the maximum of prod");
    assert!(!is(&quota, other));
    let _ = frozen.note(&Change::Put(Record::Hold(Arc::new(Hold { id: HoldId(1), ..Hold::default() }))));
    assert!(quota.tree().frozen_by(&frozen, search, |_| None).is_none());
}

#[test]
fn a_change_without_a_key_freezes_every_queue() {
    let frozen = frozen_of([RecordKey::Unknown]);
    assert!(Quota::default().tree().frozen_by(&frozen, QueueIdx::DEFAULT, |_| None).is_some());
}

#[test]
fn a_queue_freezes_those_below_it_and_rows_freeze_their_queues() {
    let mut quota = Quota::default();
    let [prod, search, dev] = ["prod", "prod.search", "dev"].map(|path| quota.queue(path));
    let of_queue = frozen_of([RecordKey::Queue("prod".to_owned())]);
    let is =
        |frozen: &Frozen, quota: &Quota, queue| quota.tree().frozen_by(frozen, queue, |_| None).is_some();
    assert!(is(&of_queue, &quota, prod) && is(&of_queue, &quota, search) && !is(&of_queue, &quota, dev));

    let of_rows = frozen_of([RecordKey::Rows(UnitId(1))]);
    assert!(!is(&of_rows, &quota, search));
    quota.put(Arc::new(QueueSpec { max_running_units: 2, ..QueueSpec::new("prod.search") }));
    assert!(is(&of_rows, &quota, search), "whose they are is not known: it may be this one");
    assert!(!is(&of_rows, &quota, dev) && !is(&of_rows, &quota, prod));
    let elsewhere = quota.tree().frozen_by(&of_rows, search, |_| Some(dev));
    assert_eq!(elsewhere, None);
}
