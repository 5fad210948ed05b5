//! Replicas that move, as far as their queue is concerned: from the end of the old incarnation until the next one is bound, or its hold goes,
//! each counts as if it ran (ADR 0087). So what is bound meanwhile has not taken its place.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::ids::HoldId;
use godel_domain::{
    demand::Demand,
    hold::{BoundState, Hold},
};

use super::{preemptions::queue_of_hold, queues::levels, world::World};

/// What replicas that move count for in queues, by hold.
#[derive(Clone, Debug, Default)]
pub(super) struct QueuedMovers(BTreeMap<HoldId, QueuedMover>);

#[derive(Clone, Debug)]
struct QueuedMover {
    queue: String,
    demand: Arc<Demand>,
    n: i64,
    /// It starts before the one leaves that it replaces.
    starts_first: bool,
}

/// So many running units more, or less, count in a queue because they move.
pub(super) struct MoverChange<'a> {
    pub(super) queue: &'a str,
    pub(super) demand: &'a Demand,
    pub(super) n: i64,
    /// Room is held for them from now on that nothing of theirs had before, or what is bound has taken its place.
    pub(super) is_bound: bool,
}

impl QueuedMovers {
    pub(super) fn of(world: &World) -> Self {
        let targets = world.holds.values().map(|hold| &hold.value).filter(|hold| hold.movement.is_some());
        let counted = targets.filter_map(|hold| {
            let (queue, n) = held(world, hold)?;
            let (queue, demand) = (queue.to_owned(), Arc::clone(&hold.demand));
            let starts_first = hold.surge_ordinal().is_some();
            Some((hold.id, QueuedMover { queue, demand, n, starts_first }))
        });
        Self(counted.collect())
    }

    /// What has changed since, a commit later.
    pub(super) fn changes<'a>(&'a self, after: &'a Self) -> Vec<MoverChange<'a>> {
        let change = |of: &'a QueuedMover, n: i64, is_bound: bool| MoverChange {
            queue: &of.queue,
            demand: &of.demand,
            n,
            is_bound,
        };
        let mut changes = Vec::new();
        for (id, was) in &self.0 {
            match after.0.get(id) {
                Some(is) if is.queue == was.queue => changes.push(change(is, is.n - was.n, is.n < was.n)),
                Some(is) => changes.extend([change(was, -was.n, false), change(is, is.n, false)]),
                None => changes.push(change(was, -was.n, true)),
            }
        }
        // What ended in the same commit counted until then; of a replacement that starts first nothing did.
        let new = after.0.iter().filter(|(id, _)| !self.0.contains_key(*id));
        changes.extend(new.map(|(_, is)| change(is, is.n, is.starts_first)));
        changes.retain(|change| change.n != 0);
        changes
    }
}

/// The queue in which a hold counts, and for how many running units; `None`: in none, as slots of reservations do, and what moves while it
/// runs.
pub(super) fn held<'a>(world: &'a World, hold: &'a Hold) -> Option<(&'a str, i64)> {
    let queue = || queue_of_hold(world, hold);
    if hold.counts_in_queue() {
        return Some((queue(), i64::try_from(hold.ordinals.len()).unwrap_or(i64::MAX)));
    }
    let unit = world.units.get(&hold.unit).filter(|unit| unit.record.is_some())?;
    let bound = |ordinal: u32| {
        let row = unit.rows.get(&ordinal).copied().unwrap_or_default();
        BoundState { incarnation: row.incarnation, phase: row.phase, is_leaving: row.eviction.is_some() }
    };
    let n = i64::from(hold.mover_share(bound).n_counted);
    (n > 0).then(|| (queue(), n))
}

/// How many places are kept in a queue for replicas that move, in words that follow others.
pub(super) fn kept_in(world: &World, queue: &str) -> String {
    let targets = world.holds.values().map(|hold| &hold.value).filter(|hold| hold.movement.is_some());
    let counted = targets.filter_map(|hold| held(world, hold));
    match counted.filter(|(of, _)| levels(of).any(|level| level == queue)).map(|(_, n)| n).sum::<i64>() {
        0 => String::new(),
        n => format!(", {n} of what counts kept for what moves"),
    }
}
