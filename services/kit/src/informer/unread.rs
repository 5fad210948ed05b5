//! What a follower could not read: said once for each record, and counted for metrics and the directory.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicI64},
};

use godel_base::ids::Revision;
use godel_domain::{
    change::Change,
    frozen::{Frozen, Noted},
    records::RecordKey,
};
use prometheus_client::metrics::gauge::Gauge;

use crate::metrics::Metrics;

/// How many records a follower cannot read now. Clones share the number.
#[derive(Clone, Debug, Default)]
pub struct UnreadCount(Gauge<i64, AtomicI64>);

impl UnreadCount {
    /// Counts in a metric of the service, `follower_unreadable_records`.
    pub fn register(metrics: &Metrics) -> Self {
        let help = "Records that this version cannot read; everything that depends on them is frozen";
        Self(metrics.gauge("follower_unreadable_records", help))
    }

    /// Now.
    pub fn get(&self) -> u64 {
        u64::try_from(self.0.get()).unwrap_or(0)
    }

    fn set(&self, n: usize) {
        self.0.set(i64::try_from(n).unwrap_or(i64::MAX));
    }
}

/// Name of the counter that a member says in the directory.
pub const UNREAD_COUNTER: &str = "unreadable";

/// What one follower could not read.
#[derive(Debug, Default)]
pub(super) struct UnreadRecords {
    frozen: Frozen,
    count: UnreadCount,
    /// Said already, with what was wrong: a list that shows the same again is no news.
    said: BTreeMap<RecordKey, Arc<str>>,
}

impl UnreadRecords {
    pub(super) fn new(count: UnreadCount) -> Self {
        Self { count, ..Self::default() }
    }

    /// A list follows.
    pub(super) fn reset(&mut self) {
        self.frozen.reset();
    }

    /// The list is complete: what it did not show is said again when it comes back.
    pub(super) fn listed(&mut self) {
        self.said.retain(|record, _| self.frozen.get(record).is_some());
        self.count.set(self.frozen.len());
    }

    /// Looks at a change that is about to be delivered. Two comparisons while everything can be read.
    pub(super) fn note(&mut self, change: &Change, revision: Revision) {
        let Noted { is_news, .. } = self.frozen.note(change);
        if !is_news {
            return;
        }
        if let Change::Unreadable(unreadable) = change {
            let what: Arc<str> = format!("{}: {}", unreadable.field, unreadable.problem).into();
            if self.said.insert(unreadable.key.clone(), Arc::clone(&what)).as_ref() != Some(&what) {
                tracing::warn!(
                    kind = unreadable.key.title(),
                    key = unreadable.key.text(),
                    field = unreadable.field,
                    problem = unreadable.problem,
                    revision = revision.0,
                    "a record cannot be read: everything that depends on it is frozen until it is written \
                     again or deleted"
                );
            }
        } else {
            let frozen = &self.frozen;
            self.said.retain(|record, _| {
                let stays = frozen.get(record).is_some();
                if !stays {
                    tracing::info!(
                        kind = record.title(),
                        key = record.text(),
                        revision = revision.0,
                        "a record that could not be read was replaced or deleted: it freezes nothing any more"
                    );
                }
                stays
            });
        }
        self.count.set(self.frozen.len());
    }
}
