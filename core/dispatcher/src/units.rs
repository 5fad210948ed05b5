//! The units that are known: what is kept of each, who is called what, and how many there are of each kind.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::ids::{IdMap, UnitId};
use godel_domain::{hold::Hold, unit::UnitRecord};

use super::{
    directory::Directory,
    gauges::{UnitTally, Waits},
    unit_entry::{Dispatched, UnitEntry, Whereabouts},
};

/// Units by id.
#[derive(Debug, Default)]
pub(super) struct Units {
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
}

impl Units {
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
