//! Rows: the life of every running unit of one unit, and the only transitions it may take.
//!
//! The store's state machine, the followers (dispatcher, scheduler, binder) and the state service apply the
//! same committed changes through this module, so they cannot disagree on what runs where. A row exists for
//! each ordinal that was ever bound, until it was compacted away; an ordinal without a row is pending with incarnation 0.
//!
//! ```text
//! Pending ─bind─▶ Bound ─▶ Starting ─▶ Running ─▶ Succeeded | Failed | Stopped ─requeue─▶ Pending (incarnation + 1)
//!                            ▲  restart   │
//!                            └────────────┘ (restarts + 1)
//! ```
//! `evict` marks a live row; it keeps its room until it has ended. An eviction from a lost node is the end itself:
//! Stopped, reported by nobody. What agents report follows [`TRANSITIONS`].

use std::sync::Arc;

use crate::{
    allocation::{self, Allocation, DeviceSet, GivenZones},
    demand::{Demand, Pool},
    run_end::RunEnd,
};
use godel_base::ids::{NodeId, ReplicaId, Revision, UnitId};

mod check;
mod ends;
mod lineage;
mod phase;
mod table;
mod terms;

pub use self::{
    check::RowConflict,
    ends::RunEnds,
    lineage::{EVICTED_BY_LEN_MAX, LastEviction, Lineage, N_EVICTIONS_MAX},
    phase::{Phase, PhaseChange, Progress, Restarts, TRANSITIONS, Transition, render_transitions},
    table::{RowIter, RowTable},
    terms::{End, PreemptionTerms, UnitTerms},
};

/// Preemptors that the rows of a unit remember, the newest ones.
pub const N_PREEMPTORS_MAX: usize = 16;

/// Why a running unit is made to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EvictionReason {
    /// Its unit was cancelled.
    Cancelled,
    /// Its unit wants fewer replicas.
    ScaledIn,
    /// Something of higher rank needs the room.
    Preempted,
    /// Its node was lost: it is over, and nobody is there to say so.
    NodeLost,
    /// Its node is drained.
    Drained,
    /// Guaranteed units need the room back.
    Squeezed,
    /// Moved by the rescheduler.
    Rescheduled,
    /// Its unit is suspended.
    Suspended,
    /// Too few of its unit were left, and the rest goes with them.
    BelowMin,
    /// Its unit was active for as long as it may be.
    Deadline,
    /// One of its unit failed for good, and the rest goes with it.
    Failure,
    /// Its node has a taint that it does not tolerate, or not any longer.
    Tainted,
}

impl EvictionReason {
    /// Every reason, in order.
    pub const ALL: [Self; 12] = [
        Self::Cancelled,
        Self::ScaledIn,
        Self::Preempted,
        Self::NodeLost,
        Self::Drained,
        Self::Squeezed,
        Self::Rescheduled,
        Self::Suspended,
        Self::BelowMin,
        Self::Deadline,
        Self::Failure,
        Self::Tainted,
    ];

    /// As metrics name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::ScaledIn => "scaled-in",
            Self::Preempted => "preempted",
            Self::NodeLost => "node-lost",
            Self::Drained => "drained",
            Self::Squeezed => "squeezed",
            Self::Rescheduled => "rescheduled",
            Self::Suspended => "suspended",
            Self::BelowMin => "below-min",
            Self::Deadline => "deadline",
            Self::Failure => "failure",
            Self::Tainted => "tainted",
        }
    }

    /// The eviction is the end of what it evicts, and of what was leaving before.
    pub fn is_end(self) -> bool {
        self == Self::NodeLost
    }
}

/// One running unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunningUnit {
    /// Current incarnation.
    pub incarnation: u32,
    /// Where it is or was last; 0 if it was never bound.
    pub node: NodeId,
    /// What it was given on its node.
    pub allocation: Allocation,
    /// Life.
    pub phase: Phase,
    /// Set when told to leave. A pending one keeps [`EvictionReason::Suspended`] until it is bound again, and has
    /// [`EvictionReason::Failure`] where its unit started again as a whole.
    pub eviction: Option<EvictionReason>,
    /// Index of its task group.
    pub group: u16,
    /// Of an ended one.
    pub exit_code: i32,
    /// In-place restarts.
    pub restarts: u32,
    /// Store revision of its last change.
    pub revision: Revision,
    /// Commit time of its binding, Unix milliseconds.
    pub bound_time_ms: i64,
}

// Four processes keep a row for every replica: what few of them have stands beside the rows.
const _: () = assert!(size_of::<RunningUnit>() <= 64, "a row is one line of the cache");

impl RunningUnit {
    /// How far it is within its incarnation.
    pub fn progress(&self) -> Progress {
        Progress { phase: self.phase, restarts: self.restarts }
    }

    /// Over after an eviction that its unit did not ask for by wanting less, or stopped by its agent alone, without
    /// contact for too long.
    pub fn was_sent_away(&self) -> bool {
        let is_sent = match self.eviction {
            None => self.phase == Phase::Stopped,
            Some(EvictionReason::Cancelled | EvictionReason::ScaledIn | EvictionReason::Deadline) => false,
            Some(
                EvictionReason::Preempted
                | EvictionReason::NodeLost
                | EvictionReason::Drained
                | EvictionReason::Squeezed
                | EvictionReason::Rescheduled
                | EvictionReason::Suspended
                | EvictionReason::BelowMin
                | EvictionReason::Failure
                | EvictionReason::Tainted,
            ) => true,
        };
        is_sent && self.phase.is_ended()
    }

    /// Sent away for the sake of others, not of its own unit or the rest of it.
    pub fn was_evicted_by_others(&self) -> bool {
        let is_own = matches!(
            self.eviction,
            Some(EvictionReason::BelowMin | EvictionReason::Suspended | EvictionReason::Failure)
        );
        self.was_sent_away() && !is_own
    }

    /// Left because its unit was suspended or started again as a whole, and has had no node since.
    pub fn is_set_aside(&self) -> bool {
        matches!(self.eviction, Some(EvictionReason::Suspended | EvictionReason::Failure))
            && matches!(self.phase, Phase::Pending | Phase::Stopped)
    }

    /// Had a node, in this incarnation or an earlier one, since its unit was last suspended or started again as a whole.
    pub fn had_node(&self) -> bool {
        (self.phase != Phase::Pending || self.incarnation > 0) && !self.is_set_aside()
    }
}

/// What each running unit of a bound task group takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupDemand {
    /// Requests.
    pub demand: Arc<Demand>,
    /// Pool that pays.
    pub pool: Pool,
    /// How they stand against others; `None`: they are not preempted.
    pub standing: Option<Arc<PreemptionTerms>>,
}

/// All rows of one unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunningUnits {
    /// By task group; `None` for a group never bound.
    pub groups: Vec<Option<GroupDemand>>,
    /// By ordinal.
    pub rows: RowTable,
    /// Who had some of them leave; see [`Self::preemptors`] and [`Self::last_eviction`].
    pub lineage: Option<Box<Lineage>>,
    /// When commands ran and why they are over; see [`Self::end`].
    pub ends: RunEnds<u32>,
}

/// A binding of running units of one task group. Columns of equal length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bind {
    /// Index of the task group.
    pub group: u16,
    /// Shared by all.
    pub demand: Arc<Demand>,
    /// Pool that pays.
    pub pool: Pool,
    /// Which.
    pub ordinals: Vec<u32>,
    /// Empty: all 0.
    pub incarnations: Vec<u32>,
    /// Where.
    pub nodes: Vec<NodeId>,
    /// Devices of each. Empty: no devices.
    pub devices: Vec<DeviceSet>,
    /// Zones of each. Empty: no zones.
    pub zones: Vec<GivenZones>,
    /// How they stand against others.
    pub standing: Option<Arc<PreemptionTerms>>,
}

impl Bind {
    /// Returns what the running unit at `idx` of the columns is given.
    #[inline]
    pub fn allocation(&self, idx: usize) -> Allocation {
        allocation::at(&self.devices, &self.zones, idx)
    }
}

/// Running units that begin to leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evict {
    /// Which.
    pub ordinals: Vec<u32>,
    /// Empty: all 0.
    pub incarnations: Vec<u32>,
    /// Why.
    pub reason: EvictionReason,
    /// Who asked.
    pub by: String,
    /// The unit that they are preempted for; 0 for another reason.
    pub preemptor: UnitId,
}

impl Evict {
    /// Returns the replicas that begin to leave, in order of the columns.
    pub fn replicas(&self) -> impl Iterator<Item = ReplicaId> {
        ReplicaId::of_columns(&self.ordinals, &self.incarnations)
    }
}

/// What agents reported. Columns of equal length, or empty for all 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statuses {
    /// Which.
    pub ordinals: Vec<u32>,
    /// Empty: all 0.
    pub incarnations: Vec<u32>,
    /// Life.
    pub phases: Vec<Phase>,
    /// Empty: all 0.
    pub exit_codes: Vec<i32>,
    /// Empty: all 0.
    pub restarts: Vec<u32>,
    /// Empty: nothing is known of any.
    pub ends: Vec<RunEnd>,
}

/// Ended running units that become pending again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requeue {
    /// Which.
    pub ordinals: Vec<u32>,
    /// Their new incarnations.
    pub incarnations: Vec<u32>,
    /// With their unit as a whole, or after its end: as if none had had a node before.
    pub anew: bool,
}

/// Running units that ended long ago and that their unit wants no more: their rows go. Columns of equal length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compaction {
    /// Which, ascending.
    pub ordinals: Vec<u32>,
    /// Empty: all 0.
    pub incarnations: Vec<u32>,
    /// Task groups that have no rows any more: what their running units took is forgotten.
    pub groups: Vec<u16>,
}

/// One change to the rows of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunChange {
    /// Places.
    Bind(Bind),
    /// Begins to leave.
    Evict(Evict),
    /// Reported.
    Statuses(Statuses),
    /// Pending again.
    Requeue(Requeue),
    /// What is kept of running units that have ended goes.
    Compact(Compaction),
    /// All that is bound of the unit stands by these terms from now on, and so does what is bound later of the same task
    /// groups: the unit's record, which changes with it, says so.
    Terms(Arc<UnitTerms>),
}

/// `column[idx]`, or the default of an empty column.
fn at<T: Copy + Default>(column: &[T], idx: usize) -> T {
    column.get(idx).copied().unwrap_or_default()
}

impl RunningUnits {
    /// The row of `ordinal`; a pending one with incarnation 0 if it was never bound.
    #[inline]
    pub fn row(&self, ordinal: u32) -> RunningUnit {
        self.rows.get(ordinal).copied().unwrap_or_default()
    }

    /// When the command of a running unit ran, and why it is over.
    pub fn end(&self, ordinal: u32) -> RunEnd {
        self.ends.of(ordinal)
    }

    /// Ordinals and rows that hold room.
    pub fn live(&self) -> impl Iterator<Item = (u32, &RunningUnit)> {
        self.rows.iter().filter(|(_, row)| row.phase.is_live())
    }

    /// Something of it had a node since it was last suspended: its first binding is made.
    pub fn was_placed(&self) -> bool {
        self.rows.values().any(RunningUnit::had_node)
    }

    /// How running units of a task group stand against others; `None` when they are not preempted.
    pub fn standing(&self, group: u16) -> Option<&Arc<PreemptionTerms>> {
        self.groups.get(usize::from(group))?.as_ref()?.standing.as_ref()
    }

    /// Applies a committed change. `on_row(ordinal, before, after)` sees every row that changed.
    ///
    /// Entries that the rows do not allow are skipped: a committed change was checked, and followers may see
    /// a change again after a new list. One transaction may change a row several times, in its order.
    pub fn apply(
        &mut self,
        change: &RunChange,
        revision: Revision,
        time_ms: i64,
        mut on_row: impl FnMut(u32, &RunningUnit, &RunningUnit),
    ) {
        let on_row = &mut on_row;
        match change {
            RunChange::Terms(terms) => self.set_terms(terms),
            RunChange::Compact(compaction) => self.compact(compaction, revision, on_row),
            RunChange::Bind(bind) => {
                self.set_group(bind);
                self.rows.grow(&bind.ordinals);
                for (idx, &ordinal) in bind.ordinals.iter().enumerate() {
                    update(&mut self.rows, ordinal, revision, on_row, |row| {
                        let fresh =
                            row.phase == Phase::Pending && row.incarnation == at(&bind.incarnations, idx);
                        if fresh {
                            row.node = bind.nodes[idx];
                            row.allocation = bind.allocation(idx);
                            row.phase = Phase::Bound;
                            row.eviction = None;
                            row.group = bind.group;
                            row.bound_time_ms = time_ms;
                        }
                        fresh
                    });
                }
            }
            RunChange::Evict(evict) => {
                if evict.preemptor != UnitId(0) {
                    self.note_preemptor(evict.preemptor);
                }
                let mut told = Vec::new();
                for (idx, &ordinal) in evict.ordinals.iter().enumerate() {
                    update(&mut self.rows, ordinal, revision, on_row, |row| {
                        let is_end = evict.reason.is_end();
                        let leaves = row.incarnation == at(&evict.incarnations, idx)
                            && row.phase.is_live()
                            && (is_end || row.eviction.is_none());
                        if leaves {
                            // Of one that was leaving already the first reason counts.
                            if row.eviction.is_none() {
                                told.push(ReplicaId::new(ordinal, row.incarnation));
                            }
                            row.eviction = row.eviction.or(Some(evict.reason));
                            row.phase = if is_end { Phase::Stopped } else { row.phase };
                        }
                        leaves
                    });
                }
                self.note_evictions(&told, evict, revision);
            }
            RunChange::Statuses(statuses) => {
                let ends = &mut self.ends;
                let has_ends = !(statuses.ends.is_empty() && ends.is_empty());
                for (idx, &ordinal) in statuses.ordinals.iter().enumerate() {
                    let next =
                        Progress { phase: statuses.phases[idx], restarts: at(&statuses.restarts, idx) };
                    update(&mut self.rows, ordinal, revision, on_row, |row| {
                        let progress = row.progress();
                        let changes =
                            row.incarnation == at(&statuses.incarnations, idx) && progress.may_become(next);
                        if changes {
                            Progress { phase: row.phase, restarts: row.restarts } =
                                progress.followed_by(next);
                            row.exit_code = at(&statuses.exit_codes, idx);
                            if has_ends {
                                ends.set(ordinal, at(&statuses.ends, idx));
                            }
                        }
                        changes
                    });
                }
            }
            RunChange::Requeue(requeue) => {
                let ends = &mut self.ends;
                for (idx, &ordinal) in requeue.ordinals.iter().enumerate() {
                    update(&mut self.rows, ordinal, revision, on_row, |row| {
                        let again = row.phase.is_ended() && requeue.incarnations[idx] == row.incarnation + 1;
                        if again {
                            // Who ended by itself comes back with the whole unit only.
                            let is_by_itself = row.eviction.is_none() && !row.was_sent_away();
                            let is_whole = requeue.anew || is_by_itself;
                            let failure = is_whole.then_some(EvictionReason::Failure);
                            let eviction = row.eviction.filter(|_| row.is_set_aside()).or(failure);
                            let incarnation = row.incarnation + 1;
                            *row = RunningUnit {
                                incarnation,
                                eviction,
                                group: row.group,
                                node: row.node,
                                ..RunningUnit::default()
                            };
                            ends.set(ordinal, RunEnd::default());
                        }
                        again
                    });
                }
            }
        }
    }

    /// Takes away the rows of running units that have ended, and what is known of their evictions.
    fn compact(
        &mut self,
        compaction: &Compaction,
        revision: Revision,
        on_row: &mut impl FnMut(u32, &RunningUnit, &RunningUnit),
    ) {
        let Compaction { ordinals, incarnations, groups } = compaction;
        let is_past = |(idx, ordinal): (usize, &u32)| {
            let row = self.rows.get(*ordinal)?;
            let is_meant = row.phase.is_ended() && row.incarnation == at(incarnations, idx);
            (is_meant && row.revision <= revision).then_some((*ordinal, *row))
        };
        let gone: Vec<(u32, RunningUnit)> = ordinals.iter().enumerate().filter_map(is_past).collect();
        let ordinals: Vec<u32> = gone.iter().map(|(ordinal, _)| *ordinal).collect();
        self.rows.compact(&ordinals);
        self.forget_evictions(&ordinals);
        ordinals.iter().for_each(|ordinal| self.ends.set(*ordinal, RunEnd::default()));
        for group in groups {
            if let Some(group) = self.groups.get_mut(usize::from(*group)) {
                *group = None;
            }
        }
        for (ordinal, before) in &gone {
            on_row(*ordinal, before, &RunningUnit::default());
        }
    }

    /// Gives every task group that was ever bound these preemption terms.
    pub fn set_terms(&mut self, terms: &UnitTerms) {
        for (idx, group) in self.groups.iter_mut().enumerate() {
            if let Some(group) = group {
                group.standing = Some(terms.of_group(idx));
            }
        }
    }

    /// The first binding of a group says what its running units take.
    pub fn set_group(&mut self, bind: &Bind) {
        let idx = usize::from(bind.group);
        if self.groups.len() <= idx {
            self.groups.reserve_exact(idx + 1 - self.groups.len());
            self.groups.resize(idx + 1, None);
        }
        if self.groups[idx].is_none() {
            self.groups[idx] = Some(GroupDemand {
                demand: Arc::clone(&bind.demand),
                pool: bind.pool,
                standing: bind.standing.clone(),
            });
        }
    }
}

/// One step of a row, unless the row is newer than `revision`.
#[inline]
fn update(
    rows: &mut RowTable,
    ordinal: u32,
    revision: Revision,
    on_row: &mut impl FnMut(u32, &RunningUnit, &RunningUnit),
    change: impl FnOnce(&mut RunningUnit) -> bool,
) {
    let Some(row) = rows.get_mut(ordinal) else { return };
    let before = *row;
    if before.revision <= revision && change(row) {
        row.revision = revision;
        on_row(ordinal, &before, row);
    }
}

#[cfg(test)]
mod tests;
