//! What has been read of the records: up to which revision, what a list has shown, and whether units read at the start may
//! be assigned yet.

use std::collections::BTreeSet;

use godel_base::{
    ids::{NodeId, Revision, UnitId},
    time::Millis,
};
use godel_domain::records::{Record, RecordKey};

/// How far the records have been read.
#[derive(Debug, Default)]
pub struct Following {
    /// Everything up to this revision is known.
    pub(super) revision: Revision,
    /// What was seen since a list began; `None` when none is under way.
    pub(super) listed: Option<ListedRecords>,
}

impl Following {
    /// Everything up to `revision` is known.
    pub(super) fn advance(&mut self, revision: Revision) {
        self.revision = self.revision.max(revision);
    }

    /// Everything up to this revision is known.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// While a list is under way, what is known may be old.
    pub fn is_listing(&self) -> bool {
        self.listed.is_some()
    }

    /// A record is there, of any kind but units: these are noted where they are taken in, as the store's answers bring them too.
    pub(super) fn note_record(&mut self, record: &Record) {
        if let (Some(listed), false) = (&mut self.listed, matches!(record, Record::Unit(_))) {
            listed.note(record.key());
        }
    }
}

/// What a list has shown so far.
#[derive(Debug, Default)]
pub(super) struct ListedRecords {
    /// Units that are there, whether their records can be read or not.
    pub(super) units: BTreeSet<UnitId>,
    /// The same for other kinds that are forgotten when a list does not show them.
    records: BTreeSet<RecordKey>,
    pub(super) unreadable: BTreeSet<RecordKey>,
}

impl ListedRecords {
    /// A record is there.
    pub(super) fn note(&mut self, key: RecordKey) {
        match key {
            RecordKey::Unit(unit) => drop(self.units.insert(unit)),
            RecordKey::NodeSpec(_) | RecordKey::Lease(_) => {}
            _ => drop(self.records.insert(key)),
        }
    }

    /// A record that cannot be read is there, whatever it says.
    pub(super) fn note_unreadable(&mut self, key: &RecordKey) {
        self.unreadable.insert(key.clone());
        self.note(key.clone());
    }

    /// Whether a record of another kind than units is there.
    pub(super) fn has(&self, key: &RecordKey) -> bool {
        self.records.contains(key)
    }

    /// Whether an agent has reported a node.
    pub(super) fn has_report(&self, node: NodeId) -> bool {
        self.has(&RecordKey::NodeReport(node))
    }
}

/// Whether units read at the start may be assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settle {
    /// The first list is being read.
    Loading,
    /// The list is read; schedulers have until then to come back.
    Until(Millis),
    Settled,
}

/// How often in a row a unit that its full queue sends back is handed out again without a rest.
pub(super) const N_TRIES_AT_ONCE: u8 = 3;

/// How long a unit that its full queue sends back again and again rests, milliseconds: ten rounds a second are no load, and a tenth of a second
/// is nothing to one that waits for others to end.
const REST_MS: u64 = 100;

/// Who waits outside the queues: at the start for schedulers, later for a moment.
#[derive(Debug)]
pub(super) struct Settling {
    pub(super) phase: Settle,
    /// Units read at the start, which schedulers may hold, and those that rest.
    pub(super) unsettled: BTreeSet<UnitId>,
    /// When the rest of units ends. One that has left since may be in here as well.
    rests: BTreeSet<(Millis, UnitId)>,
    wait_ms: u64,
}

impl Settling {
    pub(super) fn new(wait_ms: u64) -> Self {
        Self { phase: Settle::Loading, unsettled: BTreeSet::new(), rests: BTreeSet::new(), wait_ms }
    }

    pub(super) fn is_loading(&self) -> bool {
        self.phase == Settle::Loading
    }

    /// The first list is read: schedulers have some time to come back.
    pub(super) fn begin(&mut self, now: Millis) {
        self.phase = Settle::Until(now.plus(self.wait_ms));
    }

    /// A unit rests from now on.
    pub(super) fn rest(&mut self, unit: UnitId, now: Millis) {
        self.unsettled.insert(unit);
        self.rests.insert((now.plus(REST_MS), unit));
    }

    /// Takes a unit that has rested.
    pub(super) fn take_rested(&mut self, now: Millis) -> Option<UnitId> {
        let (_, unit) = self.rests.first().filter(|(end, _)| *end <= now).copied()?;
        self.rests.pop_first();
        self.unsettled.remove(&unit);
        Some(unit)
    }

    /// When the next rest ends.
    pub(super) fn rest_ends(&self) -> Option<Millis> {
        self.rests.first().map(|(end, _)| *end)
    }
}
