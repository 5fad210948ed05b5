//! I6 for what becomes of moves: what was moved runs again, or why it does not.
//!
//! A hold for a replica that moves goes with its binding. It goes without one only at its time, or where something changed: the
//! unit, the node, or the replica. Whoever waits after that is named with the reason.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::ids::{ReplicaId, Revision, UnitId};
use godel_domain::{
    change::Change,
    hold::Hold,
    records::{Record, RecordKey},
    running_units::{Phase, RunChange},
};

use super::{
    history::LATE_MS,
    verdict::Findings,
    world::{Commit, Versioned, World, WorldRow},
};

/// Most replicas that wait which one report names.
const N_NAMED_MAX: usize = 3;

/// Replicas that were moved in the history.
#[derive(Clone, Debug, Default)]
pub(super) struct MovedReplicas {
    n_made: usize,
    n_run_again: usize,
    /// Those that have no new place yet, by unit and ordinal: the incarnation that comes, and why room is not held for it any more.
    waiting: BTreeMap<(UnitId, u32), (u32, Option<&'static str>)>,
}

impl MovedReplicas {
    /// Takes over who is on the way where the judgement begins.
    pub(super) fn begin(&mut self, world: &World) {
        for hold in world.holds.values().map(|hold| &hold.value).filter(|hold| hold.movement.is_some()) {
            self.note_target(hold);
        }
    }

    /// Room is held for a replica that moves. Of a replacement that starts first the old one stays meanwhile.
    fn note_target(&mut self, hold: &Hold) {
        if hold.surge_ordinal().is_some() {
            return;
        }
        self.n_made += hold.ordinals.len();
        for ReplicaId { ordinal, incarnation } in hold.replicas() {
            self.waiting.insert((hold.unit, ordinal), (incarnation, None));
        }
    }

    /// A commit, before it is applied.
    pub(super) fn before(&mut self, world: &World, commit: &Commit, findings: &mut Findings) {
        for change in &commit.changes {
            match change {
                Change::Put(Record::Hold(hold))
                    if hold.movement.is_some() && !world.holds.contains_key(&hold.id) =>
                {
                    self.note_target(hold);
                }
                Change::Rows(unit, RunChange::Bind(bind)) if !self.waiting.is_empty() => {
                    for placed in ReplicaId::of_columns(&bind.ordinals, &bind.incarnations) {
                        let of = (*unit, placed.ordinal);
                        if self.waiting.get(&of).is_some_and(|(comes, _)| *comes <= placed.incarnation) {
                            self.waiting.remove(&of);
                            self.n_run_again += 1;
                        }
                    }
                }
                Change::Gone(RecordKey::Unit(unit)) => self.waiting.retain(|(of, _), _| of != unit),
                _ => {}
            }
        }
        for change in &commit.changes {
            if let Change::Gone(RecordKey::Hold(id)) = change
                && let Some(hold) = world.holds.get(id)
            {
                self.on_given_up(world, hold, commit, findings);
            }
        }
    }

    /// Room is not held any more. Whoever is bound by the same commit waits no longer.
    fn on_given_up(
        &mut self,
        world: &World,
        hold: &Versioned<Arc<Hold>>,
        commit: &Commit,
        findings: &mut Findings,
    ) {
        let why = why_given_up(world, hold, commit.time_ms);
        for ReplicaId { ordinal, incarnation } in hold.value.replicas() {
            let Some((comes, known)) = self.waiting.get_mut(&(hold.value.unit, ordinal)) else { continue };
            if *comes != incarnation {
                continue;
            }
            *known = Some(why.unwrap_or("nothing changed"));
            if why.is_none() {
                let (id, unit, revision) = (hold.value.id, hold.value.unit, commit.revision);
                findings.add(|| {
                    format!(
                        "hold {id}: given up though unit {unit}, {ordinal} moves to it, and nothing changed (revision {revision})"
                    )
                });
            }
        }
    }

    /// What is to be said of moves in a report, as a part of a sentence.
    pub(super) fn words(&self, world: &World) -> String {
        if self.n_made == 0 {
            return String::new();
        }
        let waits = |(of, (comes, why)): (&(UnitId, u32), &(u32, Option<&'static str>))| {
            let unit = world.units.get(&of.0)?;
            let record = unit.record.as_ref()?;
            let row = unit.rows.get(&of.1).copied().unwrap_or_default();
            let is_wanted = record.value.group_of(of.1).is_some() && record.value.is_wanted();
            let is_awaited = row.incarnation == *comes && row.phase == Phase::Pending && is_wanted;
            Some(format!("{}/{}: {}", unit.name(), of.1, (*why)?)).filter(|_| is_awaited)
        };
        let waiting: Vec<String> = self.waiting.iter().filter_map(waits).collect();
        let mut words = format!(
            ", {}, {} of them run again",
            godel_base::words::count(self.n_made, "move"),
            self.n_run_again
        );
        if !waiting.is_empty() {
            let named = waiting[..waiting.len().min(N_NAMED_MAX)].join("; ");
            words += &format!(", {} wait for a place ({named})", waiting.len());
        }
        words
    }
}

/// Why room is not held any more for a replica that moves; `None`: there is no reason.
fn why_given_up(world: &World, hold: &Versioned<Arc<Hold>>, now_ms: i64) -> Option<&'static str> {
    let Hold { unit, node, spec_revision, expires_ms, .. } = &*hold.value;
    if expires_ms.saturating_sub(now_ms) <= LATE_MS {
        return Some("the time for which room was held is over");
    }
    let unit = world.units.get(unit);
    let record = unit.and_then(|unit| unit.record.as_ref());
    if record.is_none_or(|record| record.revision > *spec_revision) {
        return Some("its unit has changed");
    }
    let has_changed = |revision: Revision| revision > hold.revision;
    let of_node = world.nodes.get(node).and_then(|of| Some((of.spec.as_ref()?, of.report.as_ref()?)));
    if of_node.is_none_or(|(spec, report)| has_changed(spec.revision) || has_changed(report.revision)) {
        return Some("the node that it moved to has changed");
    }
    let row = |ordinal: u32| -> WorldRow {
        unit.and_then(|unit| unit.rows.get(&ordinal)).copied().unwrap_or_default()
    };
    let comes = |replica: ReplicaId| {
        let row = row(replica.ordinal);
        let leaves = row.eviction.is_some() && (row.is_live() || row.phase == Phase::Stopped);
        (row.incarnation == replica.incarnation && row.phase == Phase::Pending)
            || (row.incarnation.checked_add(1) == Some(replica.incarnation) && leaves)
    };
    let mut replicas = hold.value.replicas();
    if replicas.all(comes) { None } else { Some("it was placed, or ended by itself") }
}
