//! Movements: who is moved has room held for it on its target, and such room is held for nobody else and no longer than it
//! may be.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::ids::{HoldId, ReplicaId, RunningUnitId};
use godel_domain::{
    change::Change,
    hold::Hold,
    records::{Record, RecordKey},
    running_units::{EvictionReason, RunChange},
};

use super::{
    surges,
    verdict::Findings,
    world::{Commit, World},
};

/// A binder that is away, or a new one that reads first, ends a hold so much later at most, milliseconds.
const LATE_MS: i64 = 60_000;

/// What `commit` does to targets of moves; `world` is as before it.
pub(super) fn check(world: &World, commit: &Commit, findings: &mut Findings) {
    let mut moved: BTreeSet<RunningUnitId> = BTreeSet::new();
    let mut bound: BTreeSet<RunningUnitId> = BTreeSet::new();
    let mut made: Vec<&Hold> = Vec::new();
    let mut ended: BTreeSet<HoldId> = BTreeSet::new();
    for change in &commit.changes {
        match change {
            Change::Rows(unit, RunChange::Evict(evict)) if evict.reason == EvictionReason::Rescheduled => {
                moved.extend(evict.replicas().map(|replica| RunningUnitId { unit: *unit, replica }));
            }
            Change::Rows(unit, RunChange::Bind(bind)) if has_targets(world) => {
                let replicas = ReplicaId::of_columns(&bind.ordinals, &bind.incarnations);
                bound.extend(replicas.map(|replica| RunningUnitId { unit: *unit, replica }));
            }
            Change::Put(Record::Hold(hold))
                if hold.movement.is_some() && !world.holds.contains_key(&hold.id) =>
            {
                made.push(hold);
            }
            Change::Gone(RecordKey::Hold(id)) => {
                ended.insert(*id);
                if let Some(hold) = world.holds.get(id) {
                    check_late(&hold.value, commit.time_ms, findings);
                }
            }
            _ => {}
        }
    }
    let revision = commit.revision;
    let mut kept: BTreeMap<RunningUnitId, HoldId> = BTreeMap::new();
    for hold in made {
        let Some(target) = &hold.movement else { continue };
        let RunningUnitId { unit, replica: ReplicaId { ordinal, incarnation } } = target.from;
        if let Some(new) = hold.surge_ordinal() {
            let wrong = surges::wrong_hold(world, hold, target.from, new);
            let id = hold.id;
            wrong
                .into_iter()
                .for_each(|what| findings.add(|| format!("hold {id}: {what} (revision {revision})")));
            continue;
        }
        let next = ReplicaId::new(ordinal, incarnation.saturating_add(1));
        if !moved.contains(&target.from) || hold.unit != unit || !hold.replicas().eq([next]) {
            let (id, movement) = (hold.id, &target.movement);
            findings.add(|| {
                format!("hold {id}: nobody moves to it by movement {movement} (revision {revision})")
            });
        }
        if kept.insert(target.from, hold.id).is_some() {
            findings
                .add(|| format!("unit {unit}, {ordinal} moves to two nodes at once (revision {revision})"));
        }
    }
    for RunningUnitId { unit, replica } in moved.iter().filter(|id| !kept.contains_key(id)) {
        let ordinal = replica.ordinal;
        findings.add(|| {
            format!("unit {unit}, {ordinal} is moved, but no room is held for it (revision {revision})")
        });
    }
    for hold in targets(world).filter(|hold| !ended.contains(&hold.id) && !bound.is_empty()) {
        for replica in hold
            .replicas()
            .filter(|replica| bound.contains(&RunningUnitId { unit: hold.unit, replica: *replica }))
        {
            let (id, unit, ordinal) = (hold.id, hold.unit, replica.ordinal);
            findings.add(|| {
                format!("hold {id} is there after unit {unit}, {ordinal} has moved (revision {revision})")
            });
        }
    }
}

/// Targets that are still held at `now_ms`.
pub(super) fn check_left(world: &World, now_ms: i64, findings: &mut Findings) {
    targets(world).for_each(|hold| check_late(hold, now_ms, findings));
}

fn has_targets(world: &World) -> bool {
    targets(world).next().is_some()
}

fn targets(world: &World) -> impl Iterator<Item = &Hold> {
    world.holds.values().map(|hold| &*hold.value).filter(|hold| hold.movement.is_some())
}

fn check_late(hold: &Hold, at_ms: i64, findings: &mut Findings) {
    let late_ms = at_ms.saturating_sub(hold.expires_ms);
    if hold.movement.is_some() && late_ms > LATE_MS {
        findings
            .add(|| format!("hold {} of unit {}: kept {late_ms} ms after its expiry", hold.id, hold.unit));
    }
}
