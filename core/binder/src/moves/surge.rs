//! Moves of replicas whose replacement starts first, as their unit lets them (`max_surge`): room on the target is held for the next
//! free ordinal, and nothing leaves.
//!
//! The dispatcher adds the ordinal to the unit, a scheduler places it as any other, and the one that moves is wanted no more
//! once it runs. So neither budgets nor minima are asked. The replacement takes room of the queue as well until then, from its hold on:
//! without that the move is refused for now.

use std::sync::Arc;

use godel_base::ids::{ReplicaId, RunningUnitId};
use godel_domain::{
    decision::RejectionReason,
    hold::Hold,
    limits::ORDINAL_MAX,
    requested_move::{MoveRefusal, RequestedMove},
    running_units::RunningUnits,
};

use super::{AcceptedMove, MoveTerms, hold_target, refusal};
use crate::{Binder, unit::Unit};

/// Judges a move of a replica of the task group at a position.
pub(super) fn judge(
    binder: &mut Binder,
    terms: &MoveTerms,
    asked: &RequestedMove,
    at: usize,
) -> Result<AcceptedMove, MoveRefusal> {
    let ordinal = next_ordinal(binder, &asked.running)?;
    has_room_in_queue(binder, asked.running, at)?;
    let queue = binder.picture.units.get(&asked.running.unit).map(|unit| unit.queue);
    let hold = hold_target(binder, terms, asked, at, ReplicaId::new(ordinal, 0), None)?;
    Ok(AcceptedMove {
        unit: hold.unit,
        unit_revision: hold.spec_revision,
        hold: Arc::new(hold),
        evict: None,
        queue,
        budgets: Vec::new(),
    })
}

/// The ordinal of a replacement: the one behind all that the unit has had, and behind those that room is held for.
fn next_ordinal(binder: &Binder, running: &RunningUnitId) -> Result<u32, MoveRefusal> {
    let cluster = &binder.picture.cluster;
    let unit = &binder.picture.units[&running.unit];
    let replaced = running.replica.ordinal;
    let holds = cluster.holds().of(running.unit).into_iter().filter_map(|id| cluster.holds().get(id));
    let held =
        holds.filter_map(|hold| Some((hold.surge_ordinal()?, hold.movement.as_ref()?.from.replica.ordinal)));
    let mut open: Vec<(u32, u32)> = held.collect();
    open.extend(unit.surges.iter().map(|surge| (surge.ordinal, surge.replaces)));
    open.sort_unstable();
    open.dedup();
    let later = |detail: &str| Err(refusal(RejectionReason::NotMovable, true, detail));
    if open.iter().any(|(new, old)| [*new, *old].contains(&replaced)) {
        return later("it is being replaced, or has yet to replace another one");
    }
    if open.len() >= unit.max_surge as usize {
        return later("as many replacements of its unit start as may (max_surge)");
    }
    let behind_held = open.iter().map(|(new, _)| new.saturating_add(1)).max().unwrap_or(0);
    let next = unit.next_ordinal(cluster.rows().of(running.unit)).max(behind_held);
    if next >= ORDINAL_MAX {
        return Err(refusal(RejectionReason::NotMovable, false, "its unit has used up its ordinals"));
    }
    Ok(next)
}

fn has_room_in_queue(binder: &mut Binder, running: RunningUnitId, at: usize) -> Result<(), MoveRefusal> {
    let picture = &mut binder.picture;
    let unit = &picture.units[&running.unit];
    let shape = unit.in_quota(u16::try_from(at).unwrap_or(u16::MAX), unit.groups[at].shape);
    match picture.quotas.n_fit(unit.payer, shape, &picture.cluster) {
        0 => Err(refusal(RejectionReason::QueueFull, true, "its queue has no room for one replica more")),
        _ => Ok(()),
    }
}

/// Whether the replica with this ordinal, for which a hold keeps room, is still to come: it may be added to the unit, or was, as
/// the replacement of the one that moves.
pub(super) fn is_awaited(hold: &Hold, ordinal: u32, unit: &Unit, rows: Option<&RunningUnits>) -> bool {
    let Some(target) = &hold.movement else { return false };
    let ReplicaId { ordinal: old, incarnation } = target.from.replica;
    let is_wanted = |ordinal: u32| unit.groups.iter().any(|group| group.owns(ordinal));
    let row = rows.map(|rows| rows.row(old)).unwrap_or_default();
    let stays =
        is_wanted(old) && row.incarnation == incarnation && row.phase.is_live() && row.eviction.is_none();
    if is_wanted(ordinal) {
        // Of one that is about to take the place of the other the record says no more.
        !stays || unit.surges.iter().any(|surge| surge.ordinal == ordinal)
    } else {
        stays && unit.max_surge > 0 && ordinal >= unit.next_ordinal(rows)
    }
}
