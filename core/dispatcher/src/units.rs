//! The units that are known: what is kept of each, who is called what, and how many there are of each kind.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use godel_base::{
    ids::{IdMap, UnitId},
    time::Millis,
};
use godel_domain::{hold::Hold, running_units::LastEviction, unit::UnitRecord};

use super::{
    EndedView,
    directory::{self, Directory},
    gauges::{UnitTally, Waits},
    history::{HistoryLimits, UnitHistories},
    read::{ListChunk, ListFilter},
    unit_entry::{Dispatched, UnitEntry, Whereabouts},
};

/// Units by id.
#[derive(Debug, Default)]
pub struct Units {
    pub(super) entries: IdMap<UnitId, Box<UnitEntry>>,
    /// Of `entries`, in order.
    pub(super) ids: BTreeSet<UnitId>,
    pub(super) directory: Directory,
    /// Units that keep others away from where they run.
    pub(super) n_keeping: usize,
    /// Units of which no node known now could ever hold a replica.
    pub(super) infeasible: BTreeSet<UnitId>,
    /// Units that wait again, and the unit that took over the room that was held for each.
    pub(super) overtaken: BTreeMap<UnitId, UnitId>,
    pub(super) tally: UnitTally,
    pub(super) waits: Waits,
    /// What is kept of those that were deleted.
    pub(super) histories: UnitHistories,
}

impl Units {
    pub(super) fn new(limits: HistoryLimits) -> Self {
        Self { histories: UnitHistories::new(limits), ..Self::default() }
    }

    pub(super) fn get(&self, unit: UnitId) -> Option<&UnitEntry> {
        self.entries.get(&unit).map(|entry| &**entry)
    }

    pub(super) fn get_mut(&mut self, unit: UnitId) -> Option<&mut UnitEntry> {
        self.entries.get_mut(&unit).map(|entry| &mut **entry)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// A unit is known from now on.
    pub(super) fn insert(&mut self, entry: UnitEntry) {
        let unit = entry.record.id;
        self.directory.insert(&entry.record);
        self.tally.enter(entry.account.queue, entry.phase);
        self.n_keeping += usize::from(keeps_away(&entry.record));
        self.entries.insert(unit, Box::new(entry));
        self.ids.insert(unit);
    }

    /// A unit's record is gone. Its name and uid are the caller's business.
    pub(super) fn remove(&mut self, unit: UnitId) -> Option<Box<UnitEntry>> {
        let entry = self.entries.remove(&unit)?;
        self.ids.remove(&unit);
        self.n_keeping -= usize::from(keeps_away(&entry.record));
        self.tally.uncount(entry.account.queue, entry.phase);
        self.infeasible.remove(&unit);
        self.overtaken.remove(&unit);
        Some(entry)
    }

    /// Units in order of id, those after `after`.
    pub fn ids_after(&self, after: UnitId) -> impl Iterator<Item = UnitId> + '_ {
        self.ids.range((Bound::Excluded(after), Bound::Unbounded)).copied()
    }

    /// Units known, those on their way to the store included.
    pub fn n_known(&self) -> usize {
        self.len() + self.directory.n_in_flight()
    }

    /// How many units there are by phase.
    pub fn tally(&self) -> &UnitTally {
        &self.tally
    }

    /// Whether the deletion of a unit's record is on its way.
    pub(super) fn is_deleting(&self, unit: UnitId) -> bool {
        self.get(unit).is_some_and(|entry| entry.deleting)
    }

    /// When a unit ended and when its record goes; `None` while it has not, or while something of it is on a node.
    pub(super) fn ended(&self, unit: UnitId, now: Millis) -> Option<EndedView> {
        EndedView::of(self.get(unit)?, now)
    }

    /// Looks at `n_scan` names at most after `after` (from the start when empty; else [`ListChunk::next`] of
    /// the chunk before, or namespace and name of a unit with a zero byte between), keeping the first `n_units`
    /// matches.
    pub fn list(&self, filter: &ListFilter, after: &str, n_scan: usize, n_units: usize) -> ListChunk {
        // In the order of the names themselves.
        let prefixes: Vec<String> = match filter.sight.namespaces() {
            None => vec![String::new()],
            Some(some) => some.iter().map(|namespace| directory::key(namespace, "").into()).collect(),
        };
        let names = prefixes.iter().flat_map(|prefix| self.directory.after(prefix, after));
        let mut chunk = ListChunk::default();
        let mut last = "";
        for (scanned, (name, unit)) in names.enumerate() {
            if scanned >= n_scan {
                last.clone_into(&mut chunk.next);
                break;
            }
            last = name;
            let Some(entry) = self.get(unit) else { continue };
            if !filter.matches(entry) {
                continue;
            }
            chunk.n_matched += 1;
            if chunk.units.len() < n_units {
                chunk.units.push(unit);
            }
        }
        chunk
    }

    /// Matches over all pages where that is known without looking at each unit.
    pub fn count_listed(&self, filter: &ListFilter) -> Option<u64> {
        if (ListFilter { phase: filter.phase, ..ListFilter::default() }) != *filter {
            return None;
        }
        Some(filter.phase.map_or(self.len() as u64, |phase| self.tally.all()[phase.idx()]))
    }

    /// Every unit, in order of id, for a caller that changes them.
    pub(super) fn all(&self) -> Vec<UnitId> {
        self.ids.iter().copied().collect()
    }

    /// Where a unit's pending running units are.
    pub(super) fn place(&self, unit: UnitId) -> Option<&Whereabouts> {
        self.get(unit).map(|entry| &entry.place)
    }

    /// A unit as a scheduler has it, if one has.
    pub(super) fn dispatched_mut(&mut self, unit: UnitId) -> Option<&mut Dispatched> {
        self.get_mut(unit)?.dispatched_mut()
    }

    /// A unit as `namespace/name`.
    pub(super) fn name(&self, unit: UnitId) -> Option<String> {
        self.get(unit).map(|entry| format!("{}/{}", entry.record.spec.namespace, entry.record.spec.name))
    }

    /// Units that preempted some of a unit's running units, by name, the newest last.
    pub(super) fn preemptors(&self, preemptors: &[UnitId]) -> Vec<String> {
        let name = |unit: &UnitId| self.name(*unit).unwrap_or_else(|| format!("unit {unit}, which is gone"));
        preemptors.iter().map(name).collect()
    }

    /// A unit in a sentence, also one that is gone.
    pub(super) fn shown(&self, unit: UnitId) -> String {
        let name = self.name(unit).map(|name| format!("unit {name}"));
        name.unwrap_or_else(|| format!("unit {unit}, which is gone"))
    }

    /// Who had a replica leave, in words.
    pub fn evicted_by(&self, eviction: &LastEviction) -> String {
        match eviction.by_unit() {
            Some(unit) => self.shown(unit),
            None => eviction.by.to_string(),
        }
    }

    /// The units that room was held for before it was held as this wait again.
    pub(super) fn on_taken_over(&mut self, hold: &Hold) {
        if !self.overtaken.is_empty() {
            self.overtaken.remove(&hold.unit);
        }
        if let Some(owner) = hold.taken_from.last().filter(|owner| self.entries.contains_key(*owner)) {
            self.overtaken.insert(*owner, hold.unit);
        }
    }
}

/// Whether a unit keeps others away from where it runs.
fn keeps_away(record: &UnitRecord) -> bool {
    record.spec.affinity.apart.iter().any(|term| term.weight == 0 && !term.units.is_empty())
}
