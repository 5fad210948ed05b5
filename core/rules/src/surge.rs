//! Replicas that start before those stop that they replace: what becomes of a unit's record while one of its replicas is replaced.
//!
//! A unit may let replacements start first (`max_surge`). When one of its replicas is to move, the binder holds room on the target
//! for the next free ordinal. [`begin`] adds that ordinal to the unit's record, beside the one that it replaces. [`follow`] says
//! how that ends:
//!
//! ```text
//! held ─begin─▶ old one and new one ─the new one runs, or the old one leaves─▶ new one alone
//!                     └─the new one ends, finds no place, or takes too long─▶ old one alone
//! ```
//!
//! Whoever changes the size of the unit meanwhile, or suspends it, ends its surges first: [`without_surges`]. An ordinal that
//! was given up never comes back.

use std::{borrow::Cow, collections::BTreeSet};

use godel_domain::{
    hold::Hold,
    limits::{ORDINAL_MAX, REPLICAS_MAX},
    running_units::{Phase, RunningUnits},
    surge::Surge,
    unit::UnitRecord,
};

use crate::admission::{
    scale::{N_RANGES_MAX, extend, next_ordinal},
    stop::without_ordinals,
};

/// How a surge ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SurgeEnd {
    /// The new replica takes the place of the old one.
    Replaced,
    /// The old replica stays.
    GivenUp,
}

/// Returns the unit with the replica for which a hold keeps room, beside the one that it replaces; `None`: it is known already, or
/// nobody is to be replaced any more.
pub fn begin(record: &UnitRecord, rows: &RunningUnits, hold: &Hold) -> Option<UnitRecord> {
    let (target, ordinal) = (hold.movement.as_ref()?, hold.surge_ordinal()?);
    let (replaces, group) = (target.from.replica.ordinal, usize::from(hold.group));
    let row = rows.row(replaces);
    let surges = &record.status.surges;
    let is_allowed = record.is_wanted()
        && surges.len() < record.spec.max_surge as usize
        && surges.iter().all(|surge| surge.replaces != replaces && surge.ordinal != replaces)
        && record.group_of(replaces) == Some(group)
        && row.incarnation == target.from.replica.incarnation
        && stays(rows, replaces)
        && ordinal >= next_ordinal(record, rows)
        && ordinal < ORDINAL_MAX
        && record.spec.replicas() < REPLICAS_MAX;
    if !is_allowed {
        return None;
    }
    let mut next = record.clone();
    next.note_submitted();
    extend(next.status.ordinals.get_mut(group)?, ordinal, ordinal + 1);
    next.spec.task_groups.get_mut(group)?.replicas += 1;
    let movement = target.movement.to_string();
    next.status.surges.push(Surge { ordinal, replaces, movement, expires_ms: hold.expires_ms });
    (next.ranges().count() <= N_RANGES_MAX).then_some(next)
}

/// Returns the unit without the surges that have ended by `now_ms`; `None`: none has. `is_held` says for which ordinals room is
/// held.
pub fn follow(
    record: &UnitRecord,
    rows: &RunningUnits,
    is_held: impl Fn(u32) -> bool,
    now_ms: i64,
) -> Option<UnitRecord> {
    if !record.is_wanted() {
        return None;
    }
    let ends = record.status.surges.iter().filter_map(|surge| {
        let is_late = surge.expires_ms <= now_ms;
        Some((surge, end_of(record, rows, surge, is_held(surge.ordinal), is_late)?))
    });
    let gone: BTreeSet<u32> = ends
        .map(|(surge, end)| match end {
            SurgeEnd::Replaced => surge.replaces,
            SurgeEnd::GivenUp => surge.ordinal,
        })
        .collect();
    let lasting = |surge: &Surge| !gone.contains(&surge.ordinal) && !gone.contains(&surge.replaces);
    (!record.status.surges.iter().all(lasting)).then(|| without_ordinals(record, rows, &gone))
}

/// Returns the unit as it is once all its surges are given up: whoever changes its size counts from there.
pub fn without_surges<'a>(record: &'a UnitRecord, rows: &RunningUnits) -> Cow<'a, UnitRecord> {
    if record.status.surges.is_empty() {
        return Cow::Borrowed(record);
    }
    let gone = record.status.surges.iter().map(|surge| surge.ordinal).collect();
    Cow::Owned(without_ordinals(record, rows, &gone))
}

/// How many surges of a unit began and ended from one record to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SurgeCounts {
    /// Replicas that are to start before others stop.
    pub started: u64,
    /// Those of them that took the place of the old one.
    pub replaced: u64,
    /// Those that were given up: the old one stays, or its unit wants neither.
    pub given_up: u64,
}

/// Counts the surges that began and ended from one record of a unit to the next.
pub fn count(before: &UnitRecord, after: &UnitRecord) -> SurgeCounts {
    let is_of =
        |record: &UnitRecord, ordinal: u32| record.status.surges.iter().any(|surge| surge.ordinal == ordinal);
    let mut counts = SurgeCounts::default();
    for surge in &after.status.surges {
        counts.started += u64::from(!is_of(before, surge.ordinal));
    }
    for surge in before.status.surges.iter().filter(|surge| !is_of(after, surge.ordinal)) {
        match after.group_of(surge.ordinal) {
            Some(_) => counts.replaced += 1,
            None => counts.given_up += 1,
        }
    }
    counts
}

/// How a surge ends as things are; `None`: it goes on.
fn end_of(
    record: &UnitRecord,
    rows: &RunningUnits,
    surge: &Surge,
    is_held: bool,
    is_late: bool,
) -> Option<SurgeEnd> {
    let new = rows.row(surge.ordinal);
    // One that is told to leave, or had to, is not what the unit waits for; nor does it keep what it has.
    let has_failed = new.phase.is_ended() || new.eviction.is_some() || new.incarnation > 0;
    if has_failed || record.group_of(surge.ordinal).is_none() {
        return Some(SurgeEnd::GivenUp);
    }
    if new.phase == Phase::Running
        || record.group_of(surge.replaces).is_none()
        || !stays(rows, surge.replaces)
    {
        return Some(SurgeEnd::Replaced);
    }
    let finds_no_place = new.phase == Phase::Pending && !is_held;
    (finds_no_place || is_late).then_some(SurgeEnd::GivenUp)
}

/// Whether a replica is on a node, and nobody has told it to leave.
fn stays(rows: &RunningUnits, ordinal: u32) -> bool {
    let row = rows.row(ordinal);
    row.phase.is_live() && row.eviction.is_none()
}

#[cfg(test)]
mod tests;
