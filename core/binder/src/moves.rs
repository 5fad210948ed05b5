//! Moves of running units to other nodes: room on the target is held, and the running unit begins to leave, in one transaction.
//!
//! A move is judged as a binding on its target would be, with the running unit thought away where terms keep units together or
//! apart; from then on it counts on its target for the terms of others, which is judged one move after the other as bindings
//! are. Disruption budgets count it as any eviction. What comes next is as after other evictions: the replica comes back as its
//! next incarnation, and a scheduler places it, on the target if that still takes it. The hold goes with that binding, wherever it
//! is, or once nobody will come. Nobody takes it over.
//!
//! In its queue, and for its owner, a replica that moves counts as if it ran (ADR 0087): its old incarnation until that has ended, then its
//! hold until it is placed or the hold goes, then what is placed. Its own binding asks for nothing more, and nobody else gets its place.
//!
//! Where the unit lets replacements start first, nothing leaves: see [`surge`].
//!
//! Nothing here survives a restart: a move that was committed is in its hold and in what the rows remember of the eviction, by
//! which the same request is known again.

use std::sync::Arc;

use godel_base::ids::{HoldId, NodeId, ReplicaId, Revision, RunningUnitId, UnitId};
use godel_domain::{
    decision::RejectionReason,
    hold::{Hold, MovementTarget},
    lifecycle::GangCount,
    requested_move::{MadeMove, MoveRefusal, RequestedMove, evicted_by},
    running_units::{Evict, EvictionReason, Phase, RunningUnit, RunningUnits},
    surge::Surge,
    unit::{OnBelowMin, OnEviction},
};
use godel_framework::plugins::movement::entered_on;
use godel_queueing::QueueIdx;

use super::{
    Binder,
    check::{UnitAsks, may_go, reason},
    picture::BinderPicture,
    requeue::comes_back,
    unit::Unit,
};

mod surge;

/// A movement that asks, and how long room is held for it, Unix milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveTerms {
    /// Name of the movement.
    pub movement: Arc<str>,
    /// Until when room is held.
    pub expires_ms: i64,
}

/// What becomes of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum MoveVerdict {
    /// Write it; the room is taken, and the running unit counts as leaving, until the records show it
    /// or the store refused it.
    Move(Box<AcceptedMove>),
    /// It was made before.
    Made(MadeMove),
    /// Nothing was taken.
    Refuse(MoveRefusal),
}

/// A move to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedMove {
    /// The unit.
    pub unit: UnitId,
    /// Revision of the unit's record: a precondition.
    pub unit_revision: Revision,
    /// Room on the target.
    pub hold: Arc<Hold>,
    /// Who leaves; `None`: its replacement starts first.
    pub evict: Option<Evict>,
    /// The queue in which it takes room that nobody had, for a replacement that starts first:
    /// its record and those of the queues above it are preconditions.
    pub queue: Option<QueueIdx>,
    /// Disruption budgets that it rests on, with the revisions of their records: preconditions.
    pub budgets: Vec<(String, Revision)>,
}

impl AcceptedMove {
    /// Returns what whoever asked is told.
    pub(crate) fn made(&self) -> MadeMove {
        MadeMove { hold: self.hold.id, surge: self.hold.surge_ordinal() }
    }
}

/// Judges a move as of now, and takes the room for it.
pub(crate) fn check_move(binder: &mut Binder, terms: &MoveTerms, asked: &RequestedMove) -> MoveVerdict {
    if let Some(known) = made(binder, terms, &asked.running) {
        return known;
    }
    match judge_move(binder, terms, asked) {
        Ok(accepted) => {
            let Binder { picture, holds, evictions, .. } = binder;
            let (queue, payer) = picture
                .units
                .get(&accepted.unit)
                .map_or((QueueIdx::DEFAULT, QueueIdx::DEFAULT.into()), |unit| (unit.queue, unit.payer));
            let shape = picture.cluster.shape(&accepted.hold.demand, accepted.hold.pool);
            let need = picture.quotas.need(shape.into(), 0, &picture.cluster);
            picture.cluster.held_mut().put(Arc::clone(&accepted.hold));
            holds.begin(Arc::clone(&accepted.hold), queue, payer, need);
            holds.settle_movers(accepted.unit, picture);
            if accepted.evict.is_some() {
                evictions.ask(asked.running, &mut picture.cluster);
            }
            MoveVerdict::Move(Box::new(accepted))
        }
        Err(refusal) => MoveVerdict::Refuse(refusal),
    }
}

/// The transaction of a move was refused: its room is free again, and the running unit stays.
pub(crate) fn move_refused(binder: &mut Binder, accepted: &AcceptedMove) {
    binder.holds.forget_made(&[accepted.hold.id], &mut binder.picture);
    if let Some(evict) = &accepted.evict {
        binder.evictions.end(accepted.unit, evict.replicas(), &mut binder.picture.cluster);
    }
}

/// What is known of a move that was asked for before.
fn made(binder: &Binder, terms: &MoveTerms, running: &RunningUnitId) -> Option<MoveVerdict> {
    let targets = binder.picture.cluster.holds().of(running.unit).into_iter().filter_map(|id| {
        let hold = binder.picture.cluster.holds().get(id)?;
        Some((id, hold.movement.as_ref()?))
    });
    let mut same = targets.filter(|(_, target)| target.from == *running && target.movement == terms.movement);
    if let Some((id, _)) = same.next() {
        let surge = binder.picture.cluster.holds().get(id).and_then(|hold| hold.surge_ordinal());
        return Some(match binder.holds.known.is_recorded(id) {
            true => MoveVerdict::Made(MadeMove { hold: id, surge }),
            false => refused(RejectionReason::AlreadyHeld, true, "the same move is under way".to_owned()),
        });
    }
    let gone = |surge| MoveVerdict::Made(MadeMove { hold: HoldId(0), surge });
    let surges = binder.picture.units.get(&running.unit).map_or(&[][..], |unit| &unit.surges);
    let is_same =
        |surge: &&Surge| surge.replaces == running.replica.ordinal && *surge.movement == *terms.movement;
    if let Some(surge) = surges.iter().find(is_same) {
        return Some(gone(Some(surge.ordinal)));
    }
    let last = binder.picture.cluster.rows().of(running.unit)?.last_eviction(running.replica.ordinal)?;
    let is_this = last.replica == running.replica
        && last.reason == EvictionReason::Rescheduled
        && *last.by == *evicted_by(&terms.movement);
    is_this.then(|| gone(None))
}

fn judge_move(
    binder: &mut Binder,
    terms: &MoveTerms,
    asked: &RequestedMove,
) -> Result<AcceptedMove, MoveRefusal> {
    let RequestedMove { running, to, .. } = *asked;
    let RunningUnitId { unit: id, replica: ReplicaId { ordinal, .. } } = running;
    let row = there(binder, &running)?;
    let unit = binder
        .picture
        .units
        .get(&id)
        .ok_or_else(|| refusal(RejectionReason::UnitChanged, false, "there is no such unit"))?;
    may_be_moved(&binder.picture, unit, &running, &row)?;
    let group = unit.groups.iter().position(|group| group.owns(ordinal));
    let at = group
        .filter(|_| unit.is_wanted)
        .ok_or_else(|| refusal(RejectionReason::UnitChanged, false, "its unit does not want it any more"))?;
    if row.node == to {
        return Err(refusal(RejectionReason::Invalid, false, "it is on that node"));
    }
    if terms.expires_ms <= binder.picture.now_ms {
        return Err(refusal(
            RejectionReason::Invalid,
            false,
            "the time for which room is to be held is over",
        ));
    }
    if unit.max_surge > 0 {
        return surge::judge(binder, terms, asked, at);
    }
    judge_leaving(binder, terms, asked, at, row.node)
}

/// Judges a move whose running unit leaves first.
fn judge_leaving(
    binder: &mut Binder,
    terms: &MoveTerms,
    asked: &RequestedMove,
    at: usize,
    home: NodeId,
) -> Result<AcceptedMove, MoveRefusal> {
    let running = asked.running;
    let (id, ordinal) = (running.unit, running.replica.ordinal);
    let unit = &binder.picture.units[&id];
    let never = |detail: &str| Err(refusal(RejectionReason::NotMovable, false, detail));
    if unit.terms.on_eviction == OnEviction::Fail {
        return never("it would have failed: on_eviction of its unit is fail");
    }
    if breaks_minimum(binder, unit, &running) {
        return never("too few of its unit would be left, and on_below_min would have the rest leave");
    }
    if !fits_queue_again(&mut binder.picture, id, at) {
        let detail = "its queue takes more than a maximum allows: it could not come back";
        return Err(refusal(RejectionReason::QueueFull, true, detail));
    }
    let budgets = binder.picture.afford([running].iter());
    let budgets =
        budgets.map_err(|(_, _, detail)| refusal(RejectionReason::DisruptionBudget, true, detail))?;
    let next = ReplicaId::new(ordinal, running.replica.incarnation.saturating_add(1));
    let hold = hold_target(binder, terms, asked, at, next, Some(home))?;
    let (ordinals, incarnations) = ReplicaId::columns([running.replica]);
    let by = evicted_by(&terms.movement);
    let evict =
        Evict { ordinals, incarnations, reason: EvictionReason::Rescheduled, by, preemptor: UnitId(0) };
    let unit_revision = hold.spec_revision;
    let (hold, evict) = (Arc::new(hold), Some(evict));
    Ok(AcceptedMove { unit: id, unit_revision, hold, evict, queue: None, budgets })
}

/// Whether the maxima of its queue would let one replica of a task group of a unit in again that leaves: they may have been lowered
/// since it was bound.
fn fits_queue_again(picture: &mut BinderPicture, id: UnitId, at: usize) -> bool {
    let BinderPicture { units, quotas, cluster, .. } = picture;
    let unit = &units[&id];
    let shape = unit.in_quota(u16::try_from(at).unwrap_or(u16::MAX), unit.groups[at].shape);
    let own = quotas.need(shape, 1, cluster);
    quotas.give_back(unit.payer, own);
    let n_fit = quotas.n_fit(unit.payer, shape, cluster);
    quotas.add_need(unit.payer, own);
    n_fit > 0
}

/// Room on the target for a replica of the task group at a position. With a node as its home the one that moves is judged as if it
/// had left there.
fn hold_target(
    binder: &mut Binder,
    terms: &MoveTerms,
    asked: &RequestedMove,
    at: usize,
    next: ReplicaId,
    home: Option<NodeId>,
) -> Result<Hold, MoveRefusal> {
    let RequestedMove { running, to, wanted } = *asked;
    let id = running.unit;
    let Binder { picture, holds, .. } = binder;
    let BinderPicture { cluster, units, quotas, revision: judged, .. } = picture;
    let (unit, index) = (&units[&id], u16::try_from(at).unwrap_or(u16::MAX));
    let asks = UnitAsks::of(cluster, id, unit);
    let asked = asks.asked(cluster, id, index, &unit.groups[at]);
    // Every filter is asked: the plan may rest on records of nodes that are older than anything a scheduler would use. What others have
    // just been placed on there is held for them until that is read.
    let entered = entered_on(cluster, to);
    let mut trial = cluster.trial();
    trial.lift_holds(&entered);
    if let Some(home) = home {
        trial.lift_member(id, home);
    }
    let given = may_go(&trial, &asked, next.ordinal, to, wanted, Revision(0));
    drop(trial);
    let given = given.map_err(|unfit| {
        let (reason, detail) = reason(unfit);
        MoveRefusal { reason, later: false, detail }
    })?;
    Ok(Hold {
        id: holds.issuer.next(),
        node: to,
        unit: id,
        spec_revision: unit.revision,
        group: index,
        demand: Arc::clone(cluster.catalogue().demand(unit.groups[at].shape)),
        pool: unit.pool,
        ordinals: vec![next.ordinal],
        incarnations: vec![next.incarnation],
        devices: if given.devices.is_empty() { Vec::new() } else { vec![given.devices] },
        zones: if given.zones.is_empty() { Vec::new() } else { vec![given.zones] },
        expires_ms: terms.expires_ms,
        queue: quotas.path(unit.queue).cloned(),
        judged: *judged,
        movement: Some(MovementTarget { movement: Arc::clone(&terms.movement), from: running }),
        ..Hold::default()
    })
}

/// The row of a running unit that is there and stays.
fn there(binder: &Binder, running: &RunningUnitId) -> Result<RunningUnit, MoveRefusal> {
    let gone = |detail: &str| refusal(RejectionReason::NotThere, false, detail);
    let rows =
        binder.picture.cluster.rows().of(running.unit).ok_or_else(|| gone("nothing of its unit is bound"))?;
    let row = rows.row(running.replica.ordinal);
    if row.incarnation != running.replica.incarnation {
        return Err(gone(&format!("incarnation {} is current", row.incarnation)));
    }
    if !row.phase.is_live() {
        return Err(gone("it has ended, or has no node"));
    }
    let leaves = row.eviction.is_some()
        || binder.evictions.is_asked(*running)
        || binder.evictions.is_victim(running.unit, running.replica.ordinal);
    if leaves { Err(gone("it leaves already")) } else { Ok(row) }
}

/// Whether a unit would be broken below its minimum without a running unit, and the rest of it leave.
fn breaks_minimum(binder: &Binder, unit: &Unit, running: &RunningUnitId) -> bool {
    if unit.terms.on_below_min == OnBelowMin::Keep {
        return false;
    }
    let rows = binder.picture.cluster.rows().of(running.unit);
    let stays = |(ordinal, row): &(u32, &RunningUnit)| {
        let id = RunningUnitId::new(running.unit, *ordinal, row.incarnation);
        row.eviction.is_none()
            && *ordinal != running.replica.ordinal
            && !binder.evictions.is_asked(id)
            && !binder.evictions.is_victim(running.unit, *ordinal)
    };
    let staying = rows.into_iter().flat_map(RunningUnits::live).filter(stays);
    let count = staying.fold(GangCount::default(), |count, (ordinal, _)| unit.count_one(count, ordinal));
    !unit.terms.is_reached(&count)
}

/// Whether a running unit may be moved at all.
fn may_be_moved(
    picture: &BinderPicture,
    unit: &Unit,
    running: &RunningUnitId,
    row: &RunningUnit,
) -> Result<(), MoveRefusal> {
    let frozen = picture.cluster.nodes().frozen();
    let is_kept = unit.is_unread
        || picture.is_kept_there(running.unit, row.node, EvictionReason::Rescheduled)
        || frozen.keeps_budgets();
    if is_kept {
        let detail = "records that the move rests on cannot be read";
        return Err(refusal(RejectionReason::Stale, true, detail));
    }
    let never = |detail: &str| Err(refusal(RejectionReason::NotMovable, false, detail));
    if picture.cluster.taken().daemons.find(running.unit).is_some() {
        return never("it is of a daemon, which has a replica on each of its nodes");
    }
    if picture.cluster.held().has_slots() && picture.cluster.held().slot_of(running).is_some() {
        return never("it is in a slot of a reservation");
    }
    Ok(())
}

/// What becomes of a move whose hold is there: why the hold ends, if it does.
pub(super) fn why_move_ends(hold: &Hold, picture: &BinderPicture) -> Option<&'static str> {
    let Some(unit) = picture.units.get(&hold.unit) else { return Some("changed") };
    let rows = picture.cluster.rows().of(hold.unit);
    let comes = |replica: ReplicaId| {
        let row = rows.map(|rows| rows.row(replica.ordinal)).unwrap_or_default();
        if row.incarnation == replica.incarnation {
            return row.phase == Phase::Pending;
        }
        let leaves = row.eviction.is_some() || row.phase.is_ended();
        row.incarnation.checked_add(1) == Some(replica.incarnation)
            && leaves
            && (row.phase.is_live() || comes_back(unit, replica.ordinal, &row))
    };
    let asks_for_this = unit.groups.get(usize::from(hold.group)).is_some_and(|group| {
        let is_wanted = match hold.surge_ordinal() {
            Some(ordinal) => surge::is_awaited(hold, ordinal, unit, rows),
            None => hold.ordinals.iter().all(|ordinal| group.owns(*ordinal)),
        };
        is_wanted && unit.pool == hold.pool && *picture.cluster.catalogue().demand(group.shape) == hold.demand
    });
    if !unit.is_wanted || !asks_for_this || !hold.replicas().all(comes) {
        return Some("changed");
    }
    if picture.cluster.nodes().usable(hold.node).is_err() {
        return Some("node-lost");
    }
    (hold.expires_ms <= picture.now_ms).then_some("expired")
}

fn refusal(reason: RejectionReason, later: bool, detail: impl Into<String>) -> MoveRefusal {
    MoveRefusal { reason, later, detail: detail.into() }
}

fn refused(reason: RejectionReason, later: bool, detail: String) -> MoveVerdict {
    MoveVerdict::Refuse(refusal(reason, later, detail))
}
