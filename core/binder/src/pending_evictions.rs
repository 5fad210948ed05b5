//! Evictions under way: those asked for, and those of victims for whose room holds were made.
//!
//! Nobody else has such a running unit leave, and budgets count it as gone. What is promised to queues by victims is taken
//! back as soon as their rows show it. Nothing here survives a restart.

use std::collections::BTreeSet;

use godel_base::ids::{ReplicaId, Revision, RunningUnitId, UnitId};
use godel_cluster::Cluster;
use godel_domain::running_units::{Evict, EvictionReason};
use godel_queueing::{Need, QueueIdx};
use rustc_hash::FxHashMap;

use super::{picture::BinderPicture, quotas::Quotas};

/// An eviction to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Whose.
    pub unit: UnitId,
    /// Who of it.
    pub evict: Evict,
    /// Disruption budgets that it rests on, with the revisions of their records: preconditions.
    pub budgets: Vec<(String, Revision)>,
}

/// Evictions under way, by unit and ordinal.
#[derive(Debug, Default)]
pub(super) struct PendingEvictions {
    /// Those asked for, with the incarnation of each.
    asked: FxHashMap<(UnitId, u32), u32>,
    /// Victims of decisions, with what their queues are promised to lose until the rows show it.
    victims: FxHashMap<(UnitId, u32), Option<(QueueIdx, Need)>>,
}

impl PendingEvictions {
    /// As [`Binder::evictions`](crate::Binder::evictions).
    pub(super) fn evictions(
        &self,
        asked: &[(UnitId, Evict)],
        picture: &BinderPicture,
    ) -> Vec<(UnitId, Evict)> {
        let mut evictions = Vec::new();
        for (unit, evict) in asked {
            let Some(rows) = picture.cluster.rows().of(*unit) else { continue };
            let replicas: BTreeSet<ReplicaId> = evict
                .replicas()
                .filter(|replica| {
                    let row = rows.row(replica.ordinal);
                    if picture.is_kept_there(*unit, row.node, evict.reason) {
                        return false;
                    }
                    let leaves = match evict.reason.is_end() {
                        // A node that is back reports for itself.
                        true => !picture.cluster.nodes().report(row.node).is_some_and(|report| report.ready),
                        false => {
                            row.eviction.is_none()
                                && !self.is_asked(RunningUnitId { unit: *unit, replica: *replica })
                                && !self.is_victim(*unit, replica.ordinal)
                        }
                    };
                    row.phase.is_live() && row.incarnation == replica.incarnation && leaves
                })
                .collect();
            if !replicas.is_empty() {
                let (ordinals, incarnations) = ReplicaId::columns(replicas);
                evictions.push((
                    *unit,
                    Evict {
                        ordinals,
                        incarnations,
                        reason: evict.reason,
                        by: evict.by.clone(),
                        preemptor: evict.preemptor,
                    },
                ));
            }
        }
        evictions
    }

    /// As [`Binder::depart`](crate::Binder::depart).
    pub(super) fn depart(
        &mut self,
        unit: UnitId,
        evict: Evict,
        picture: &mut BinderPicture,
    ) -> Option<Departure> {
        let (unit, mut evict) = self.evictions(&[(unit, evict)], picture).pop()?;
        let budgets = match evict.reason {
            EvictionReason::Drained => picture.keep_some(unit, &mut evict),
            _ => Vec::new(),
        };
        // Under way they count for budgets too that are not known yet, and nobody else has them leave.
        let departs = |ReplicaId { ordinal, incarnation }| {
            let is_new = self.asked.insert((unit, ordinal), incarnation).is_none();
            is_new.then_some((unit, ordinal))
        };
        picture.cluster.taken_mut().depart(evict.replicas().filter_map(departs));
        (!evict.ordinals.is_empty()).then_some(Departure { unit, evict, budgets })
    }

    /// The eviction of a running unit that moves is under way.
    pub(super) fn ask(&mut self, running: RunningUnitId, cluster: &mut Cluster) {
        let RunningUnitId { unit, replica: ReplicaId { ordinal, incarnation } } = running;
        if self.asked.insert((unit, ordinal), incarnation).is_none() {
            cluster.taken_mut().depart([(unit, ordinal)]);
        }
    }

    /// The evictions of some running units, for which holds were made, are under way.
    pub(super) fn add_victims(&mut self, victims: &[(UnitId, u32)], picture: &mut BinderPicture) {
        for &(unit, ordinal) in victims {
            let promised = picture.need_of_row(unit, ordinal);
            promised.into_iter().for_each(|(queue, need)| picture.quotas.promise(queue, need, 1));
            self.victims.insert((unit, ordinal), promised);
        }
        picture.cluster.taken_mut().depart(victims.iter().copied());
    }

    /// The evictions of victims are read, or were refused.
    pub(super) fn remove_victims(&mut self, victims: &[(UnitId, u32)], picture: &mut BinderPicture) {
        for victim in victims {
            if let Some(Some((queue, need))) = self.victims.remove(victim) {
                picture.quotas.promise(queue, need, -1);
            }
        }
        self.count_as_staying(victims.iter().copied(), &mut picture.cluster);
    }

    /// The rows show evictions: what they promised is promised no longer.
    pub(super) fn end_promises(
        &mut self,
        unit: UnitId,
        ordinals: impl IntoIterator<Item = u32>,
        quotas: &mut Quotas,
    ) {
        if self.victims.is_empty() {
            return;
        }
        for ordinal in ordinals {
            let promised = self.victims.get_mut(&(unit, ordinal)).and_then(Option::take);
            promised.into_iter().for_each(|(queue, need)| quotas.promise(queue, need, -1));
        }
    }

    /// Usage was forgotten: what is promised counts again.
    pub(super) fn reset(&self, quotas: &mut Quotas) {
        for (queue, need) in self.victims.values().flatten() {
            quotas.promise(*queue, *need, 1);
        }
    }

    /// Whether an eviction of this incarnation was asked for and is under way.
    pub(super) fn is_asked(&self, id: RunningUnitId) -> bool {
        self.asked.get(&(id.unit, id.replica.ordinal)) == Some(&id.replica.incarnation)
    }

    /// Whether a running unit leaves for a decision under way.
    pub(super) fn is_victim(&self, unit: UnitId, ordinal: u32) -> bool {
        self.victims.contains_key(&(unit, ordinal))
    }

    /// The rows show evictions of these incarnations or of later ones, or they are not made.
    pub(super) fn end(
        &mut self,
        unit: UnitId,
        replicas: impl Iterator<Item = ReplicaId>,
        cluster: &mut Cluster,
    ) {
        if self.asked.is_empty() {
            return;
        }
        let is_known = |replica: &ReplicaId| {
            self.asked.get(&(unit, replica.ordinal)).is_some_and(|asked| *asked <= replica.incarnation)
        };
        let shown: Vec<(UnitId, u32)> =
            replicas.filter(is_known).map(|replica| (unit, replica.ordinal)).collect();
        for member in &shown {
            self.asked.remove(member);
        }
        self.count_as_staying(shown, cluster);
    }

    /// The rows of a unit were listed: who leaves by now, has left, or is there again.
    pub(super) fn on_rows_loaded(&mut self, unit: UnitId, cluster: &mut Cluster) {
        if self.asked.is_empty() {
            return;
        }
        let Some(rows) = cluster.rows().of(unit) else { return };
        let shown = rows.rows.iter().filter_map(|(ordinal, row)| {
            let is_past = row.eviction.is_some() || !row.phase.is_live();
            let past = if is_past { Some(row.incarnation) } else { row.incarnation.checked_sub(1) };
            Some(ReplicaId::new(ordinal, past?))
        });
        let shown: Vec<ReplicaId> = shown.collect();
        self.end(unit, shown.into_iter(), cluster);
    }

    /// The fate of those asked for is unknown: what was committed is read as records.
    pub(super) fn give_up(&mut self, cluster: &mut Cluster) {
        let gone: Vec<(UnitId, u32)> = self.asked.drain().map(|(member, _)| member).collect();
        self.count_as_staying(gone, cluster);
    }

    #[cfg(test)]
    pub(super) fn n_asked(&self) -> usize {
        self.asked.len()
    }

    /// One eviction of these is under way no longer; of some there may be another.
    fn count_as_staying(&self, members: impl IntoIterator<Item = (UnitId, u32)>, cluster: &mut Cluster) {
        let stays = |(unit, ordinal): &(UnitId, u32)| {
            !self.asked.contains_key(&(*unit, *ordinal)) && !self.is_victim(*unit, *ordinal)
        };
        cluster.taken_mut().arrive(members.into_iter().filter(stays));
    }
}
