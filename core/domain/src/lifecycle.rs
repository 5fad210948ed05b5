//! The life of a unit, derived: counts from its rows, its phase from record, counts and what is soft.
//!
//! Nothing here is ever stored. What a unit still wants placed ([`pending`]) and what it no longer wants running
//! ([`surplus`]) follow from the same two records, so every part that asks gets the same answer.

mod gang_terms;
mod transitions;

use crate::{
    running_units::{EvictionReason, Phase as RowPhase, RunningUnit, RunningUnits},
    unit::{OnBelowMin, OnEviction, OnFailure, UnitEnd, UnitRecord},
};
use godel_base::ids::ReplicaId;

pub use self::{
    gang_terms::{GangCount, GangTerms, GroupMinimum, counted, has_left},
    transitions::{TRANSITIONS, UnitTransition, may_become, render_transitions},
};

/// Where a unit is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnitPhase {
    /// Waits in the dispatcher.
    Queued,
    /// A scheduler has it.
    Scheduling,
    /// The last try found no place.
    Unschedulable,
    /// At least `min_member` are bound.
    Scheduled,
    /// At least `min_member` have started.
    Running,
    /// Every replica succeeded.
    Completed,
    /// Every replica ended, at least one failed.
    Failed,
    /// Cancelled.
    Cancelled,
    /// Wants nothing to run until it is resumed.
    Suspended,
}

impl UnitPhase {
    /// Every phase, in order.
    pub const ALL: [Self; 9] = [
        Self::Queued,
        Self::Scheduling,
        Self::Unschedulable,
        Self::Scheduled,
        Self::Running,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Suspended,
    ];

    /// As shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "Queued",
            Self::Scheduling => "Scheduling",
            Self::Unschedulable => "Unschedulable",
            Self::Scheduled => "Scheduled",
            Self::Running => "Running",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
            Self::Cancelled => "Cancelled",
            Self::Suspended => "Suspended",
        }
    }

    /// Place in [`Self::ALL`].
    pub fn idx(self) -> usize {
        self as usize
    }

    /// It waits for the places that it needs.
    pub fn waits(self) -> bool {
        match self {
            Self::Queued | Self::Scheduling | Self::Unschedulable => true,
            Self::Scheduled
            | Self::Running
            | Self::Completed
            | Self::Failed
            | Self::Cancelled
            | Self::Suspended => false,
        }
    }

    /// Nothing will be placed any more.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Cancelled => true,
            Self::Queued
            | Self::Scheduling
            | Self::Unschedulable
            | Self::Scheduled
            | Self::Running
            | Self::Suspended => false,
        }
    }
}

/// What the dispatcher knows of a unit beyond its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Soft {
    /// No scheduler has it.
    #[default]
    Waiting,
    /// A scheduler works on it.
    Dispatched,
    /// A scheduler found no place for it, or no node could ever hold it.
    Parked,
}

/// Running units of one unit by where they are.
///
/// A wanted ordinal is one that the record names, while the unit is neither cancelled nor ended nor suspended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Wanted by the record, cancelled or not.
    pub replicas: u32,
    /// Wanted, without a node.
    pub pending: u32,
    /// With a node and not ended, wanted or not.
    pub live: u32,
    /// Live and told to leave.
    pub evicting: u32,
    /// Live, not wanted, not yet told to leave.
    pub surplus: u32,
    /// Live, wanted, not told to leave.
    pub placed: u32,
    /// Live and running, wanted or not.
    pub running: u32,
    /// Named by the record and ended with exit code 0.
    pub succeeded: u32,
    /// Named by the record and ended with another exit code, or evicted where that is a failure.
    pub failed: u32,
    /// Of `failed` those that do not come back by themselves: nobody had told them to leave, or that is a failure.
    pub given_up: u32,
    /// Named by the record and ended because told to: comes back as its next incarnation.
    pub stopped: u32,
    /// The same by task group; empty unless some group has a minimum of its own.
    pub groups: Box<[GroupCounts]>,
}

/// Running units of one task group that matter for its minimum: those that the record names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounts {
    /// With a node and not ended.
    pub live: u32,
    /// Of these not told to leave.
    pub placed: u32,
    /// Of the live ones those that run.
    pub running: u32,
    /// Ended by themselves, or failed because others had them leave.
    pub ended: u32,
}

impl Counts {
    /// From scratch, in time of the rows.
    pub fn of(record: &UnitRecord, rows: &RunningUnits) -> Self {
        let replicas = record.spec.replicas();
        let pending = if record.is_wanted() { replicas } else { 0 };
        let groups = match record.spec.has_group_minima() {
            true => vec![GroupCounts::default(); record.spec.task_groups.len()].into(),
            false => Box::default(),
        };
        let mut counts = Self { replicas, pending, groups, ..Self::default() };
        for (ordinal, row) in &rows.rows {
            counts.move_row(record, ordinal, &RunningUnit::default(), row);
        }
        counts
    }

    /// Follows one row from `before` to `after`; the record is unchanged.
    pub fn move_row(&mut self, record: &UnitRecord, ordinal: u32, before: &RunningUnit, after: &RunningUnit) {
        let group = record.group_of(ordinal);
        let named = group.is_some();
        let wanted = named && record.is_wanted();
        let fails =
            |row: &RunningUnit| record.spec.on_eviction == OnEviction::Fail && row.was_evicted_by_others();
        let returns = |row: &RunningUnit| returns(&record.status.next_incarnations, ordinal, row);
        let (less, more) =
            (|count: &mut u32| *count = count.saturating_sub(1), |count: &mut u32| *count += 1);
        let (failed, fails) = (fails(before), fails(after));
        let (returned, returns) = (returns(before), returns(after));
        self.count(before, failed, returned, named, wanted, less);
        self.count(after, fails, returns, named, wanted, more);
        if let Some(of_group) = group.and_then(|group| self.groups.get_mut(group)) {
            of_group.count(before, failed, returned, less);
            of_group.count(after, fails, returns, more);
        }
    }

    fn count(
        &mut self,
        row: &RunningUnit,
        fails: bool,
        returns: bool,
        named: bool,
        wanted: bool,
        change: impl Fn(&mut u32),
    ) {
        match row.phase {
            _ if returns && named => change(&mut self.stopped),
            RowPhase::Pending => {
                if wanted {
                    change(&mut self.pending);
                }
            }
            RowPhase::Bound | RowPhase::Starting | RowPhase::Running => {
                change(&mut self.live);
                if row.phase == RowPhase::Running {
                    change(&mut self.running);
                }
                match (row.eviction.is_some(), wanted) {
                    (true, _) => change(&mut self.evicting),
                    (false, true) => change(&mut self.placed),
                    (false, false) => change(&mut self.surplus),
                }
            }
            RowPhase::Succeeded if named => change(&mut self.succeeded),
            RowPhase::Failed if named => {
                change(&mut self.failed);
                if fails || !row.was_sent_away() {
                    change(&mut self.given_up);
                }
            }
            RowPhase::Stopped if named && fails => {
                change(&mut self.failed);
                change(&mut self.given_up);
            }
            RowPhase::Stopped if named => change(&mut self.stopped),
            RowPhase::Succeeded | RowPhase::Failed | RowPhase::Stopped => {}
        }
    }

    /// Counts towards `min_member`: placed, or over by itself.
    pub fn bound(&self) -> u32 {
        self.placed + self.succeeded + self.failed
    }

    /// Whether `n` running units are enough for the minimum of the unit, and those that `of_group` says for the minimum of each
    /// task group.
    fn reaches(&self, record: &UnitRecord, n: u32, of_group: impl Fn(&GroupCounts) -> u32) -> bool {
        let mut groups = self.groups.iter().zip(&record.spec.task_groups);
        n >= record.spec.min_member && groups.all(|(counts, group)| of_group(counts) >= group.min_member)
    }
}

impl GroupCounts {
    fn count(&mut self, row: &RunningUnit, fails: bool, returns: bool, change: impl Fn(&mut u32)) {
        match row.phase {
            _ if returns => {}
            RowPhase::Bound | RowPhase::Starting | RowPhase::Running => {
                change(&mut self.live);
                if row.phase == RowPhase::Running {
                    change(&mut self.running);
                }
                if row.eviction.is_none() {
                    change(&mut self.placed);
                }
            }
            RowPhase::Succeeded | RowPhase::Failed => change(&mut self.ended),
            RowPhase::Stopped if fails => change(&mut self.ended),
            RowPhase::Pending | RowPhase::Stopped => {}
        }
    }
}

/// Whether a replica comes back as somebody asked for: it has ended in an incarnation before the one that is wanted.
pub fn returns(next_incarnations: &[(u32, u32)], ordinal: u32, row: &RunningUnit) -> bool {
    let is_wanted = |(of, incarnation): &(u32, u32)| *of == ordinal && row.incarnation < *incarnation;
    row.phase.is_ended() && next_incarnations.iter().any(is_wanted)
}

/// The phase of a unit: a pure function of its record, its counts and what is soft.
pub fn phase(record: &UnitRecord, counts: &Counts, soft: Soft) -> UnitPhase {
    let ended = counts.succeeded + counts.failed;
    if record.status.cancelled {
        UnitPhase::Cancelled
    } else if record.status.ended.is_some() {
        UnitPhase::Failed
    } else if record.status.restarting || has_to_restart(record, counts) {
        if record.status.suspended { UnitPhase::Suspended } else { UnitPhase::Queued }
    } else if is_ended(record, counts) {
        let past = record.status.compacted.as_ref().map_or(0, |compacted| compacted.failed);
        if counts.failed == 0 && past == 0 { UnitPhase::Completed } else { UnitPhase::Failed }
    } else if record.status.suspended {
        UnitPhase::Suspended
    } else if counts.replicas == 0 && !record.spec.is_daemon() {
        // Scaled to zero: it has all that it wants.
        UnitPhase::Scheduled
    } else if has_begun(record, counts)
        && counts.reaches(record, counts.running + ended, |group| group.running + group.ended)
    {
        UnitPhase::Running
    } else if counts.live > 0 && counts.reaches(record, counts.live + ended, |group| group.live + group.ended)
    {
        UnitPhase::Scheduled
    } else {
        match soft {
            Soft::Waiting => UnitPhase::Queued,
            Soft::Dispatched => UnitPhase::Scheduling,
            Soft::Parked => UnitPhase::Unschedulable,
        }
    }
}

/// Whether something of a unit runs; of a daemon, whose nodes may all be waiting for it to start again, or has run.
fn has_begun(record: &UnitRecord, counts: &Counts) -> bool {
    counts.running > 0 || (record.spec.is_daemon() && counts.succeeded + counts.failed > 0)
}

/// Whether the unit's life is over: a terminal phase and nothing left on any node.
pub fn is_over(phase: UnitPhase, counts: &Counts) -> bool {
    phase.is_terminal() && counts.live == 0
}

/// The first replica of an ordered unit that does not run.
fn first_to_run(record: &UnitRecord, rows: &RunningUnits) -> Option<(u32, RunningUnit)> {
    let mut ordinals: Vec<u32> = record.iter_ordinals().collect();
    ordinals.sort_unstable();
    ordinals.into_iter().map(|ordinal| (ordinal, rows.row(ordinal))).find(|(_, row)| !has_run(row))
}

/// The replica of an ordered unit that is to be placed now: the first one that does not run, if it has no node yet.
fn next_in_order(record: &UnitRecord, rows: &RunningUnits) -> Option<ReplicaId> {
    let first = first_to_run(record, rows).filter(|(_, row)| row.phase == RowPhase::Pending);
    first.map(|(ordinal, row)| ReplicaId::new(ordinal, row.incarnation))
}

/// The ordinal of the replica for which others of an ordered unit wait, as it has a node and does not run yet, or leaves.
pub fn awaited(record: &UnitRecord, rows: &RunningUnits) -> Option<u32> {
    if !record.spec.is_ordered() || !record.is_wanted() {
        return None;
    }
    let first = first_to_run(record, rows).filter(|(_, row)| row.phase != RowPhase::Pending);
    first.map(|(ordinal, _)| ordinal)
}

/// Whether the replicas after this one may start: it runs and stays, or has ended by itself.
pub fn has_run(row: &RunningUnit) -> bool {
    match row.phase {
        RowPhase::Running => row.eviction.is_none(),
        RowPhase::Succeeded | RowPhase::Failed => !row.was_sent_away(),
        RowPhase::Pending | RowPhase::Bound | RowPhase::Starting | RowPhase::Stopped => false,
    }
}

/// Ordinals to place now with their incarnations, ascending; of an ordered unit one at most.
pub fn pending(record: &UnitRecord, rows: &RunningUnits) -> (Vec<u32>, Vec<u32>) {
    let (mut ordinals, mut incarnations) = (Vec::new(), Vec::new());
    if !record.is_wanted() {
        return (ordinals, incarnations);
    }
    if record.spec.is_ordered() {
        return ReplicaId::columns(next_in_order(record, rows));
    }
    for ordinal in record.iter_ordinals() {
        let row = rows.row(ordinal);
        if row.phase == RowPhase::Pending {
            ordinals.push(ordinal);
            incarnations.push(row.incarnation);
        }
    }
    if !ordinals.is_sorted() {
        let mut pending: Vec<ReplicaId> = ReplicaId::of_columns(&ordinals, &incarnations).collect();
        pending.sort_unstable();
        return ReplicaId::columns(pending);
    }
    (ordinals, incarnations)
}

/// Running units that must leave because the record no longer wants them, highest ordinals first, at most
/// `limit`: why, ordinals, incarnations.
pub fn surplus(
    record: &UnitRecord,
    rows: &RunningUnits,
    limit: usize,
) -> (EvictionReason, Vec<u32>, Vec<u32>) {
    let reason = match record.status.ended {
        _ if record.status.cancelled => EvictionReason::Cancelled,
        Some(UnitEnd::BelowMin) => EvictionReason::BelowMin,
        Some(UnitEnd::Deadline) => EvictionReason::Deadline,
        Some(UnitEnd::Failure) => EvictionReason::Failure,
        None if record.status.suspended => EvictionReason::Suspended,
        None if record.status.restarting => EvictionReason::Failure,
        None => EvictionReason::ScaledIn,
    };
    let unwanted = |ordinal: u32| !record.is_wanted() || record.group_of(ordinal).is_none();
    let is_calm =
        matches!(reason, EvictionReason::Cancelled | EvictionReason::ScaledIn | EvictionReason::Suspended);
    if record.spec.is_ordered() && is_calm {
        // The next one goes once this one has left.
        let leaving = rows.live().filter(|(ordinal, row)| unwanted(*ordinal) || row.eviction.is_some());
        let last = leaving.last().filter(|(_, row)| row.eviction.is_none());
        let last = last.map(|(ordinal, row)| ReplicaId::new(ordinal, row.incarnation));
        let (ordinals, incarnations) = ReplicaId::columns(last);
        return (reason, ordinals, incarnations);
    }
    let (ordinals, incarnations) = staying(rows, limit, unwanted);
    (reason, ordinals, incarnations)
}

/// Fewer than `min_member` of a unit that had them are left, or fewer of a task group than that needs.
fn is_broken(record: &UnitRecord, counts: &Counts) -> bool {
    record.is_wanted() && !counts.reaches(record, counts.bound(), |group| group.placed + group.ended)
}

/// Whether the unit has to end: it had `min_member`, is broken and does not go on like that, or it was active for as
/// long as it may be.
pub fn has_to_end(record: &UnitRecord, counts: &Counts, rows: &RunningUnits, now_ms: i64) -> Option<UnitEnd> {
    let was_whole = || {
        let terms = GangTerms::of(record);
        terms.is_reached(&counted(rows, &terms))
    };
    if record.spec.on_below_min == OnBelowMin::Stop && is_broken(record, counts) && was_whole() {
        return Some(UnitEnd::BelowMin);
    }
    if fails_as_a_whole(record, counts) && !has_to_restart(record, counts) && !is_ended(record, counts) {
        return Some(UnitEnd::Failure);
    }
    deadline_ms(record, counts, rows).filter(|at_ms| *at_ms <= now_ms).map(|_| UnitEnd::Deadline)
}

/// A running unit of it has failed for good, and it does not go on like that.
fn fails_as_a_whole(record: &UnitRecord, counts: &Counts) -> bool {
    counts.given_up > 0 && record.spec.on_failure != OnFailure::Keep && record.is_wanted()
}

/// Whether all of the unit has to come back: a running unit of it has failed for good, and it may still start again.
pub fn has_to_restart(record: &UnitRecord, counts: &Counts) -> bool {
    fails_as_a_whole(record, counts)
        && record.spec.on_failure == OnFailure::Restart
        && record.status.whole_restarts < record.spec.max_restarts
}

/// Every replica has ended, and with them the unit.
fn is_ended(record: &UnitRecord, counts: &Counts) -> bool {
    counts.replicas > 0 && counts.succeeded + counts.failed >= counts.replicas && !record.spec.is_daemon()
}

/// Whether the record of a unit has to change by what its running units came to: see [`turned`].
pub fn is_turning(record: &UnitRecord, counts: &Counts, rows: &RunningUnits, now_ms: i64) -> bool {
    has_to_end(record, counts, rows, now_ms).is_some()
        || has_to_restart(record, counts)
        || (record.status.restarting && turned(record, counts, rows, now_ms).is_some())
}

/// What the record of a unit has to become by what its running units came to; `None`: it stays. It ends, or begins to start
/// again as a whole, or has done so: everything of it has left and waits for its next incarnation.
pub fn turned(record: &UnitRecord, counts: &Counts, rows: &RunningUnits, now_ms: i64) -> Option<UnitRecord> {
    let turned = |change: fn(&mut UnitRecord)| {
        let mut record = record.clone();
        change(&mut record);
        Some(record)
    };
    if let Some(end) = has_to_end(record, counts, rows, now_ms) {
        let mut record = record.clone();
        record.status.ended = Some(end);
        return Some(record);
    }
    if has_to_restart(record, counts) {
        return turned(|record| {
            record.status.restarting = true;
            record.status.keeps_succeeded = false;
            record.status.whole_restarts += 1;
        });
    }
    let is_over = record.status.cancelled || record.status.ended.is_some();
    let stays = if record.status.keeps_succeeded { 0 } else { counts.succeeded };
    let has_left = counts.live == 0 && stays + counts.failed + counts.stopped == 0;
    if record.status.restarting && has_left && !is_over {
        turned(|record| {
            record.status.restarting = false;
            record.status.keeps_succeeded = false;
        })
    } else {
        None
    }
}

/// When a unit will have been active for as long as it may be, Unix milliseconds: counted from the earliest binding of
/// what is there or has ended by itself. `None`: never, or it is not active.
pub fn deadline_ms(record: &UnitRecord, counts: &Counts, rows: &RunningUnits) -> Option<i64> {
    let is_over = is_ended(record, counts);
    if record.spec.active_deadline_ms == 0 || !record.is_wanted() || is_over {
        return None;
    }
    // What ended before a retry is of no concern to the time since.
    let has_ended = |row: &RunningUnit| {
        matches!(row.phase, RowPhase::Succeeded | RowPhase::Failed)
            && row.bound_time_ms >= record.status.retried_ms
    };
    let is_there = |row: &&RunningUnit| row.phase.is_live() || has_ended(row);
    let compacted = record.status.compacted.as_ref().map(|compacted| compacted.bound_ms);
    let compacted = compacted.filter(|bound_ms| *bound_ms > 0 && *bound_ms >= record.status.retried_ms);
    let since_ms = rows.rows.values().filter(is_there).map(|row| row.bound_time_ms).chain(compacted).min()?;
    Some(since_ms.saturating_add(i64::try_from(record.spec.active_deadline_ms).unwrap_or(i64::MAX)))
}

/// Running units that have to leave by their own unit's will: surplus, or what is left of a broken unit that comes
/// back as a whole.
pub fn n_leaving(record: &UnitRecord, counts: &Counts) -> u32 {
    let restarts = record.spec.on_below_min == OnBelowMin::Restart && is_broken(record, counts);
    counts.surplus + if restarts { counts.placed } else { 0 }
}

/// Those of [`n_leaving`], surplus first: why, ordinals, incarnations.
pub fn leaving(
    record: &UnitRecord,
    counts: &Counts,
    rows: &RunningUnits,
    limit: usize,
) -> (EvictionReason, Vec<u32>, Vec<u32>) {
    if counts.surplus > 0 || n_leaving(record, counts) == 0 {
        return surplus(record, rows, limit);
    }
    let (ordinals, incarnations) = staying(rows, limit, |ordinal| record.group_of(ordinal).is_some());
    (EvictionReason::BelowMin, ordinals, incarnations)
}

/// Live ones that nobody has told to leave, highest first: ordinals, incarnations.
fn staying(rows: &RunningUnits, limit: usize, wanted: impl Fn(u32) -> bool) -> (Vec<u32>, Vec<u32>) {
    let is_staying =
        |ordinal: u32, row: &RunningUnit| row.phase.is_live() && row.eviction.is_none() && wanted(ordinal);
    rows.rows
        .iter()
        .rev()
        .filter(|(ordinal, row)| is_staying(*ordinal, row))
        .take(limit)
        .map(|(ordinal, row)| (ordinal, row.incarnation))
        .unzip()
}
