//! Which running units have to come back: evicted for another reason than their own unit's wish or stopped by
//! their agent alone, ended, and still wanted; of a unit that starts again as a whole all that have ended, and those
//! that somebody asked to come back. Derived from the records alone, so a new leader finds the same ones.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::ids::{ReplicaId, Revision, RunningUnitId, UnitId};
use godel_domain::{
    lifecycle::returns,
    running_units::{Requeue, RunningUnit, RunningUnits},
};

use super::{picture::BinderPicture, unit::Unit};

/// Running units of one unit that become pending again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequeueWork {
    /// The unit.
    pub unit: UnitId,
    /// Revision of the unit's record: a precondition.
    pub unit_revision: Revision,
    /// The operation.
    pub requeue: Requeue,
}

/// Running units that have ended and may come back, by unit and ordinal.
#[derive(Debug, Default)]
pub(super) struct Requeues {
    ready: BTreeMap<UnitId, BTreeSet<u32>>,
    /// With the incarnation asked for.
    under_way: BTreeMap<UnitId, BTreeMap<u32, u32>>,
    /// Units to be looked at again when something has come that can be read.
    frozen: BTreeSet<UnitId>,
}

impl Requeues {
    /// Forgets what was read; what is under way stays, a second requeue of it would only be refused.
    pub(super) fn clear(&mut self) {
        self.ready.clear();
    }

    pub(super) fn remove_unit(&mut self, unit: UnitId) {
        self.ready.remove(&unit);
        self.under_way.remove(&unit);
        self.frozen.remove(&unit);
    }

    /// Something has come that can be read: units whose running units could not come back because of that are looked at.
    pub(super) fn look_at_frozen(&mut self, picture: &BinderPicture) {
        for unit in std::mem::take(&mut self.frozen) {
            if let Some(rows) = picture.cluster.rows().of(unit) {
                self.look_at_all(unit, rows, picture);
            }
        }
    }

    /// Some rows of a unit may have come to be such, or have ceased to.
    pub(super) fn look_at(&mut self, unit: UnitId, ordinals: &[u32], picture: &BinderPicture) {
        let Some(rows) = picture.cluster.rows().of(unit).filter(|_| !ordinals.is_empty()) else { return };
        let known = picture.units.get(&unit).map(|known| &**known);
        for &ordinal in ordinals {
            self.look_at_row(unit, ordinal, &rows.row(ordinal), known);
        }
    }

    /// Looks at all that a unit has: those that it did not want before it may want now. Of one that starts again as a
    /// whole all that have ended come back.
    pub(super) fn look_at_all(&mut self, unit: UnitId, rows: &RunningUnits, picture: &BinderPicture) {
        let known = picture.units.get(&unit).map(|known| &**known);
        for (ordinal, row) in &rows.rows {
            self.look_at_row(unit, ordinal, row, known);
        }
    }

    /// All under way are to be asked for again.
    pub(super) fn give_up(&mut self) {
        for (unit, members) in std::mem::take(&mut self.under_way) {
            self.ready.entry(unit).or_default().extend(members.into_keys());
        }
    }

    fn look_at_row(&mut self, unit: UnitId, ordinal: u32, row: &RunningUnit, known: Option<&Unit>) {
        let asked = self.under_way.get(&unit).and_then(|members| members.get(&ordinal)).copied();
        if asked.is_some_and(|asked| asked <= row.incarnation) {
            self.forget_under_way(unit, ordinal);
        }
        let under_way = asked.is_some_and(|asked| asked > row.incarnation);
        let may_return = known.map_or(row.was_sent_away(), |known| known.may_return(ordinal, row));
        if may_return && !under_way {
            self.ready.entry(unit).or_default().insert(ordinal);
        } else if let Some(ready) = self.ready.get_mut(&unit) {
            ready.remove(&ordinal);
            if ready.is_empty() {
                self.ready.remove(&unit);
            }
        }
    }

    fn forget_under_way(&mut self, unit: UnitId, ordinal: u32) {
        if let Some(members) = self.under_way.get_mut(&unit) {
            members.remove(&ordinal);
            if members.is_empty() {
                self.under_way.remove(&unit);
            }
        }
    }

    /// Whether this incarnation was asked for and is not read yet.
    pub(super) fn is_under_way(&self, id: RunningUnitId) -> bool {
        let ReplicaId { ordinal, incarnation } = id.replica;
        self.under_way.get(&id.unit).and_then(|replicas| replicas.get(&ordinal)) == Some(&incarnation)
    }

    /// Some running units wait to come back.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// As [`Binder::take_requeues`](crate::Binder::take_requeues).
    pub(super) fn take(&mut self, max: usize, picture: &BinderPicture) -> Vec<RequeueWork> {
        let mut work = Vec::new();
        let mut n_taken = 0;
        while n_taken < max {
            let Some((unit, mut ordinals)) = self.ready.pop_first() else { break };
            if let Some(&rest) = ordinals.iter().nth(max - n_taken) {
                self.ready.insert(unit, ordinals.split_off(&rest));
            }
            let (Some(known), Some(rows)) = (picture.units.get(&unit), picture.cluster.rows().of(unit))
            else {
                continue;
            };
            if picture.cluster.nodes().frozen().unit(unit).is_some() {
                self.frozen.insert(unit);
                continue;
            }
            let members: BTreeMap<u32, u32> = ordinals
                .into_iter()
                .map(|ordinal| (ordinal, rows.row(ordinal)))
                .filter(|(ordinal, row)| comes_back(known, *ordinal, row))
                .map(|(ordinal, row)| (ordinal, row.incarnation + 1))
                .collect();
            if members.is_empty() {
                continue;
            }
            n_taken += members.len();
            let (ordinals, incarnations) = members.iter().unzip();
            let requeue = Requeue { ordinals, incarnations, anew: known.restarting };
            work.push(RequeueWork { unit, unit_revision: known.revision, requeue });
            self.under_way.entry(unit).or_default().extend(members);
        }
        work
    }

    /// As [`Binder::requeue_refused`](crate::Binder::requeue_refused).
    pub(super) fn refused(&mut self, work: &RequeueWork, picture: &BinderPicture) {
        for &ordinal in &work.requeue.ordinals {
            self.forget_under_way(work.unit, ordinal);
        }
        self.look_at(work.unit, &work.requeue.ordinals, picture);
    }
}

/// Whether its unit still wants it.
pub(super) fn comes_back(unit: &Unit, ordinal: u32, row: &RunningUnit) -> bool {
    let returns = match unit.restarting {
        true => unit.terms.comes_again(row),
        false if !unit.is_wanted => false,
        false => {
            let is_asked_for = returns(&unit.next_incarnations, ordinal, row);
            is_asked_for || (row.was_sent_away() && !unit.terms.is_over(row))
        }
    };
    returns && unit.terms.wants(ordinal)
}
