//! How units end: what has to leave its nodes, what ends as a whole, how long records of ended units stay, and their
//! deletion before that.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_base::{
    ids::{Revision, UnitId},
    time::Millis,
};
use godel_domain::{
    lifecycle::{self, UnitPhase},
    running_units::EvictionReason,
};

use super::{
    Action, Config, Counters, EvictRequest, evicted_by, following::Settle, limits::TimeLimits,
    unit_entry::UnitEntry, units::Units,
};

/// Running units in one request to the binder.
pub(super) const EVICT_ORDINALS_MAX: usize = 4_096;
/// Requests to the binder and deletions in one step.
const FOLLOW_UP_MAX: usize = 1_000;
/// Between two passes over ended units that are to be deleted, milliseconds.
const DELETE_PASS_MS: u64 = 50;

/// Why the record of a unit may not be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteRefusal {
    /// It is not known.
    Unknown,
    /// It has not ended.
    Phase(UnitPhase),
    /// It has ended, and so many of its running units have yet to leave their nodes.
    Leaving(u32),
}

/// A unit that has ended, whose name is taken until its record goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedView {
    /// How it ended.
    pub phase: UnitPhase,
    /// How long ago, milliseconds; `None`: before this dispatcher led.
    pub ago_ms: Option<u64>,
    /// Its record goes in so long by itself, milliseconds; 0: it is on its way out.
    pub left_ms: u64,
}

/// Running units of a unit that have to leave as it wants fewer of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Eviction {
    next_at: Millis,
    surplus: u32,
    /// Of an ordered unit what is there: when one has left it is for the next one to go.
    live: u32,
    /// The binder said that it is done.
    answered: bool,
}

/// Units of which something ends.
#[derive(Debug)]
pub(super) struct Ends {
    evictions: BTreeMap<UnitId, Eviction>,
    /// Units that have to end, and when that is written, or written again.
    turns: BTreeMap<UnitId, Millis>,
    /// Ended units, by when their records go.
    ended: BTreeSet<(Millis, UnitId)>,
    /// Ended units are deleted again from then on.
    delete_from: Millis,
    pub(super) limits: TimeLimits,
    evict_retry_ms: u64,
    delete_retry_ms: u64,
    n_ended_max: usize,
}

impl Ends {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            evictions: BTreeMap::new(),
            turns: BTreeMap::new(),
            ended: BTreeSet::new(),
            delete_from: Millis::default(),
            limits: TimeLimits::default(),
            evict_retry_ms: config.evict_retry_ms,
            delete_retry_ms: config.reconcile_ms,
            n_ended_max: config.n_ended_max,
        }
    }

    /// Units of which something is asked to leave, or is to be asked.
    pub(super) fn n_evictions(&self) -> usize {
        self.evictions.len()
    }

    /// Ended units kept.
    pub(super) fn n_ended(&self) -> usize {
        self.ended.len()
    }

    /// A unit's record is gone, which was to be deleted at `delete_at`.
    pub(super) fn remove(&mut self, unit: UnitId, delete_at: Option<Millis>) {
        self.evictions.remove(&unit);
        self.turns.remove(&unit);
        self.limits.remove(unit);
        if let Some(at) = delete_at {
            self.ended.remove(&(at, unit));
        }
    }

    /// A unit cannot be read: what its record says of its end is not known, nor what its rows do.
    pub(super) fn suspend(&mut self, entry: &mut UnitEntry) {
        let unit = entry.record.id;
        self.evictions.remove(&unit);
        self.turns.remove(&unit);
        if let Some(at) = entry.delete_at.take() {
            self.ended.remove(&(at, unit));
        }
    }

    /// Follows a unit's record, rows and phase.
    pub(super) fn update(&mut self, entry: &mut UnitEntry, settle: Settle, wall_ms: i64, now: Millis) {
        let unit = entry.record.id;
        let surplus = lifecycle::n_leaving(&entry.record, &entry.counts);
        if surplus == 0 {
            self.evictions.remove(&unit);
        } else {
            let live = if entry.record.spec.is_ordered() { entry.counts.live } else { 0 };
            let fresh = Eviction { next_at: now, surplus, live, answered: false };
            let eviction = self.evictions.entry(unit).or_insert(fresh);
            if (eviction.surplus, eviction.live) != (surplus, live) {
                *eviction = fresh;
            }
        }
        self.limits.update(entry, now, wall_ms);
        if lifecycle::is_turning(&entry.record, &entry.counts, &entry.rows, wall_ms) {
            self.turns.entry(unit).or_insert(now);
        } else {
            self.turns.remove(&unit);
        }
        let over = lifecycle::is_over(entry.phase, &entry.counts);
        match entry.delete_at {
            None if over && !entry.deleting => {
                let at = now.plus(entry.record.spec.ttl_after_finished_ms);
                entry.delete_at = Some(at);
                entry.ended_at = (settle != Settle::Loading).then_some(now);
                entry.ended_wall_ms = if settle == Settle::Loading { 0 } else { wall_ms };
                self.ended.insert((at, unit));
            }
            Some(at) if !over => {
                entry.delete_at = None;
                entry.ended_at = None;
                self.ended.remove(&(at, unit));
            }
            None | Some(_) => {}
        }
    }

    /// The binder's answer to a request: what it was asked for is done, or has to be asked for again.
    pub(super) fn on_evict_answer(&mut self, unit: UnitId, reason: EvictionReason, done: bool) {
        let is_surplus = matches!(
            reason,
            EvictionReason::Cancelled
                | EvictionReason::ScaledIn
                | EvictionReason::Suspended
                | EvictionReason::Deadline
                | EvictionReason::BelowMin
                | EvictionReason::Failure
        );
        if let Some(eviction) = self.evictions.get_mut(&unit).filter(|_| is_surplus) {
            eviction.answered = done;
        }
    }

    /// Asks the binder for running units that are not wanted any more. `read`: everything up to there is known.
    pub(super) fn evict(
        &mut self,
        units: &Units,
        counters: &mut Counters,
        read: Revision,
        now: Millis,
        actions: &mut Vec<Action>,
    ) {
        let due =
            self.evictions.iter_mut().filter(|(_, eviction)| eviction.next_at <= now).take(FOLLOW_UP_MAX);
        for (&unit, eviction) in due {
            let was_answered = std::mem::take(&mut eviction.answered);
            eviction.next_at = now.plus(self.evict_retry_ms);
            let Some(entry) = units.get(unit) else { continue };
            if was_answered && !entry.record.spec.is_ordered() {
                // The binder said that they leave, and a while later they still do not.
                counters.repairs += 1;
            }
            let (reason, ordinals, incarnations) =
                lifecycle::leaving(&entry.record, &entry.counts, &entry.rows, EVICT_ORDINALS_MAX);
            if ordinals.is_empty() {
                // One of an ordered unit has yet to leave.
                continue;
            }
            let by = evicted_by::by_unit(reason, &entry.record.spec);
            actions.push(Action::Evict(EvictRequest { unit, reason, ordinals, incarnations, by, read }));
        }
    }

    /// Units that do not go on with fewer than `min_member` or after a failure, or were active for as long as they may be, and
    /// those that start again as a whole.
    pub(super) fn end(&mut self, units: &Units, wall_ms: i64, now: Millis, actions: &mut Vec<Action>) {
        let due = self.turns.iter_mut().filter(|(_, at)| **at <= now).take(FOLLOW_UP_MAX);
        for (unit, at) in due {
            *at = now.plus(self.evict_retry_ms);
            let Some(entry) = units.get(*unit) else { continue };
            let turned = lifecycle::turned(&entry.record, &entry.counts, &entry.rows, wall_ms);
            actions.extend(turned.map(|spec| Action::End(Arc::new(spec), entry.revision)));
        }
    }

    /// Deletes what ended long enough ago, in passes: each one costs a transaction, which everybody follows.
    pub(super) fn delete_ended(&mut self, units: &mut Units, now: Millis, actions: &mut Vec<Action>) {
        if now < self.delete_from {
            return;
        }
        for n in 0..FOLLOW_UP_MAX {
            let is_due = |at: Millis| at <= now || self.ended.len() > self.n_ended_max;
            let Some((_, unit)) = self.ended.first().copied().filter(|(at, _)| is_due(*at)) else {
                if n > 0 {
                    self.delete_from = now.plus(DELETE_PASS_MS);
                }
                return;
            };
            self.ended.pop_first();
            if let Some(entry) = units.get_mut(unit) {
                entry.deleting = true;
                entry.delete_at = None;
                actions.push(Action::Delete(unit));
            }
        }
    }

    /// Begins to delete the record of a unit that has ended. False: it is being deleted already.
    pub(super) fn delete(&mut self, unit: UnitId, units: &mut Units) -> Result<bool, DeleteRefusal> {
        let entry = units.get_mut(unit).ok_or(DeleteRefusal::Unknown)?;
        if !lifecycle::is_over(entry.phase, &entry.counts) {
            return Err(match entry.phase.is_terminal() {
                true => DeleteRefusal::Leaving(entry.counts.live),
                false => DeleteRefusal::Phase(entry.phase),
            });
        }
        if entry.deleting {
            return Ok(false);
        }
        entry.deleting = true;
        if let Some(at) = entry.delete_at.take() {
            self.ended.remove(&(at, unit));
        }
        Ok(true)
    }

    /// The transaction that was to delete a unit failed.
    pub(super) fn on_delete_failed(&mut self, entry: &mut UnitEntry, now: Millis) {
        let at = now.plus(self.delete_retry_ms);
        entry.deleting = false;
        entry.delete_at = Some(at);
        self.ended.insert((at, entry.record.id));
    }

    /// When something is to be asked for, written or deleted next.
    pub(super) fn next_at(&self) -> Option<Millis> {
        let deletion = self.ended.first().map(|(at, _)| (*at).max(self.delete_from));
        let turn = self.turns.values().copied().min();
        let eviction = self.evictions.values().map(|eviction| eviction.next_at).min();
        deletion.into_iter().chain(self.limits.next_at()).chain(turn).chain(eviction).min()
    }
}

impl EndedView {
    /// When a unit ended and when its record goes; `None` while it has not, or while something of it is on a node.
    pub(super) fn of(entry: &UnitEntry, now: Millis) -> Option<Self> {
        if !lifecycle::is_over(entry.phase, &entry.counts) {
            return None;
        }
        Some(Self {
            phase: entry.phase,
            ago_ms: entry.ended_at.map(|at| now.since(at)),
            left_ms: entry.delete_at.map_or(0, |at| at.since(now)),
        })
    }
}
