//! What the dispatcher shows of itself: units, schedulers, counters.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use godel_domain::{
    change::{Partition, PartitionMode},
    ids::{Epoch, NodeId, Revision, UnitId},
    lifecycle::{Counts, Phase},
    refusals::{RefusalCount, Refusals},
    running_units::RunningUnits,
    sub_cluster,
    unit::UnitSpec,
};
use godel_queueing::{PendingReason, RoomIdx};
use godel_rules::partition;

use super::{Action, Counters, Dispatcher, Settle, TurnView, UnitEntry, Whereabouts, directory, gangs};

/// Names of the reasons that are admission's or a queue's, not a scheduler's.
const FEASIBILITY: &str = "admission";
const QUEUE: &str = "queue";
const TIMEOUT: &str = "scheduling-timeout";

/// A unit as shown.
#[derive(Clone, Debug)]
pub struct UnitView<'a> {
    /// Its record.
    pub spec: &'a Arc<UnitSpec>,
    /// Revision of its record.
    pub spec_revision: Revision,
    /// Revision of its record or rows, whichever changed last.
    pub revision: Revision,
    /// Of the creating transaction.
    pub create_revision: Revision,
    /// Of the creating transaction, Unix milliseconds.
    pub create_time_ms: i64,
    /// Derived.
    pub phase: Phase,
    /// Derived.
    pub counts: &'a Counts,
    /// Its running units.
    pub rows: &'a RunningUnits,
    /// Soft: who has it.
    pub scheduler: Option<&'a str>,
    /// Soft: what its queue holds it up for, of the last failed try, or why no node could ever hold it.
    pub refusals: Option<Arc<Refusals>>,
    /// Commit time of the first binding, Unix milliseconds; 0 before.
    pub bound_time_ms: i64,
    /// Whose leaving it waits for, in words; empty: nobody's.
    pub waits_for: String,
    /// Its turn to gather room, while that lasts.
    pub turn: Option<TurnView>,
    /// Units that preempted some of its running units, the newest last.
    pub preempted_by: Vec<String>,
    /// What all its task groups demand.
    pub sub_cluster: Option<&'a str>,
}

/// Which units to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListFilter {
    /// Empty: all.
    pub namespace: String,
    /// `None`: all.
    pub phase: Option<Phase>,
    /// Every pair must be a label of the unit.
    pub labels: BTreeMap<String, String>,
}

/// A bounded part of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListChunk {
    /// The first matches, in order of namespace and name.
    pub units: Vec<UnitId>,
    /// All matches in the chunk.
    pub n_matched: u32,
    /// The last name looked at; empty after the last chunk.
    pub next: String,
}

/// A scheduler as the dispatcher sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerView {
    /// As in its lease.
    pub name: String,
    /// Where it serves.
    pub address: String,
    /// Of its lease.
    pub epoch: Epoch,
    /// Its lease is in force.
    pub live: bool,
    /// Its stream is open.
    pub attached: bool,
    /// Nodes of its own; all of them in global mode.
    pub nodes: u32,
    /// Units held.
    pub units: u32,
    /// Running units that it works on.
    pub running_units: u64,
    /// Units held without a place.
    pub parked_units: u32,
    /// Running units handed to it so far.
    pub dispatched: u64,
}

/// Lengths and counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Units known.
    pub units: u64,
    /// Waiting for a scheduler.
    pub queued_units: u64,
    /// Running units to place of those.
    pub queued_running_units: u64,
    /// With a scheduler.
    pub dispatched_units: u64,
    /// Without a place, with a scheduler or not.
    pub parked_units: u64,
    /// Since the start.
    pub counters: Counters,
    /// Everything up to here is known.
    pub revision: Revision,
    /// By phase, in order of [`Phase::ALL`].
    pub n_by_phase: [u64; Phase::ALL.len()],
    /// Units on their way to the store.
    pub n_in_flight: usize,
    /// Evictions asked for or to be asked for.
    pub evictions: usize,
    /// Ended units kept.
    pub ended: usize,
    /// Nodes known.
    pub nodes: usize,
    /// Nodes that are not ready.
    pub nodes_not_ready: usize,
    /// So many nodes were lost at once that nothing is evicted from them.
    pub evictions_paused: bool,
    /// Drained nodes that are not empty yet.
    pub nodes_draining: usize,
    /// Gangs that have waited for room for so long that they gather it in turn.
    pub gangs_waiting: usize,
    /// Of the running units handed out at least so many per cent are of each lower band that waits.
    pub floor_percent: u8,
}

impl Dispatcher {
    /// A unit as shown.
    pub fn unit(&self, unit: UnitId) -> Option<UnitView<'_>> {
        let entry = self.units.get(&unit)?;
        let scheduler = match &entry.place {
            Whereabouts::Dispatched(held) => Some(self.schedulers.all[held.scheduler].name.as_str()),
            Whereabouts::Idle | Whereabouts::Unsettled | Whereabouts::Paused | Whereabouts::Queued(_) => None,
        };
        Some(UnitView {
            spec: &entry.spec,
            spec_revision: entry.revision,
            revision: entry.revision.max(entry.rows_revision),
            create_revision: entry.create_revision,
            create_time_ms: entry.create_time_ms,
            phase: entry.phase,
            counts: &entry.counts,
            rows: &entry.rows,
            scheduler,
            refusals: self.refusals(entry),
            bound_time_ms: entry.bound_time_ms,
            waits_for: self.waits_for(unit, entry.holds()),
            turn: gangs::turn_of(entry.holds()),
            preempted_by: self.preempted_by(entry.rows.preemptors()),
            sub_cluster: sub_cluster::of(&entry.spec, &self.config.sub_cluster_key),
        })
    }

    /// Why no node known now could ever hold a replica of `spec`.
    pub fn infeasible(&self, spec: &UnitSpec) -> Option<String> {
        self.capacities.infeasible(spec)
    }

    /// Units in order of id, those after `after`.
    pub fn unit_ids(&self, after: UnitId) -> impl Iterator<Item = UnitId> + '_ {
        self.unit_ids.range((Bound::Excluded(after), Bound::Unbounded)).copied()
    }

    /// Units known, in flight ones included.
    pub fn n_units(&self) -> usize {
        self.units.len() + self.directory.n_in_flight()
    }

    /// Looks at `n_scan` names at most after `after` (from the start when empty; else [`ListChunk::next`] of
    /// the chunk before, or namespace and name of a unit with a zero byte between), keeping the first `n_units`
    /// matches.
    pub fn list(&self, filter: &ListFilter, after: &str, n_scan: usize, n_units: usize) -> ListChunk {
        let prefix = if filter.namespace.is_empty() {
            String::new()
        } else {
            directory::key(&filter.namespace, "").into()
        };
        let mut chunk = ListChunk::default();
        let mut last = "";
        for (scanned, (name, unit)) in self.directory.after(&prefix, after).enumerate() {
            if scanned >= n_scan {
                last.clone_into(&mut chunk.next);
                break;
            }
            last = name;
            let Some(entry) = self.units.get(&unit) else { continue };
            if !filter.matches(entry) {
                continue;
            }
            chunk.n_matched += 1;
            if chunk.units.len() < n_units {
                chunk.units.push(unit);
            }
        }
        chunk
    }

    /// Matches over all pages where that is known without looking at each unit.
    pub fn total(&self, filter: &ListFilter) -> Option<u64> {
        if !filter.namespace.is_empty() || !filter.labels.is_empty() {
            return None;
        }
        Some(filter.phase.map_or(self.units.len() as u64, |phase| self.tally.all()[phase.idx()]))
    }

    /// Everything up to this revision is known.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Schedulers may attach: everything has been read.
    pub fn is_loaded(&self) -> bool {
        self.settle != Settle::Loading
    }

    /// A list is under way.
    pub fn is_listing(&self) -> bool {
        self.listed.is_some()
    }

    /// A split is on its way to the store.
    pub fn is_partition_writing(&self) -> bool {
        self.partition_writing
    }

    /// Name of a node; empty when it is not known.
    pub fn node_name(&self, node: NodeId) -> &str {
        self.node_names.get(&node).map_or("", |name| name)
    }

    /// Model of the devices in `mask` on a node; empty when there are none.
    pub fn device_model(&self, node: NodeId, mask: u64) -> &str {
        self.capacities.model(node, mask)
    }

    /// How nodes are split, as committed, and the revision of the record of the mode and the schedulers.
    pub fn partition(&self) -> (&Partition, Revision) {
        (self.partition.whole(), self.partition.revision())
    }

    /// The present mode.
    pub fn mode(&self) -> PartitionMode {
        self.mode
    }

    /// Messages that wait for the next step.
    pub fn outbox(&self) -> &[Action] {
        &self.outbox
    }

    /// Schedulers with a lease in force or units in hand, by name.
    pub fn schedulers(&self) -> Vec<SchedulerView> {
        let partition = self.partition.whole();
        let shares = partition::shares(partition, self.node_names.keys().copied());
        let mut views: Vec<SchedulerView> = self
            .schedulers
            .all
            .iter()
            .filter(|one| one.live || one.session.is_some())
            .map(|one| {
                let slot = partition.schedulers.iter().position(|name| *name == one.name);
                let nodes = match partition.mode {
                    PartitionMode::Global => u32::try_from(self.node_names.len()).unwrap_or(u32::MAX),
                    PartitionMode::Preferred | PartitionMode::Strict => slot.map_or(0, |slot| shares[slot]),
                };
                SchedulerView {
                    name: one.name.clone(),
                    address: one.address.clone(),
                    epoch: one.epoch,
                    live: one.live,
                    attached: one.session.is_some(),
                    nodes,
                    units: u32::try_from(one.held.len()).unwrap_or(u32::MAX),
                    running_units: one.outstanding,
                    parked_units: one.parked,
                    dispatched: one.dispatched,
                }
            })
            .collect();
        views.sort_by(|a, b| a.name.cmp(&b.name));
        views
    }

    /// Lengths and counters.
    pub fn summary(&self) -> Summary {
        let held = |count: fn(&super::schedulers::SchedulerEntry) -> u64| {
            self.schedulers.all.iter().map(count).sum()
        };
        Summary {
            units: self.units.len() as u64,
            queued_units: (self.queues.len() + self.unsettled.len()) as u64,
            queued_running_units: self.queues.running_units(),
            dispatched_units: held(|one| one.held.len() as u64),
            parked_units: held(|one| u64::from(one.parked)) + self.queues.n_unheld() as u64,
            counters: self.counters,
            revision: self.revision,
            n_by_phase: *self.tally.all(),
            n_in_flight: self.directory.n_in_flight(),
            evictions: self.evictions.len(),
            ended: self.ended.len(),
            nodes: self.losses.n_nodes(),
            nodes_not_ready: self.losses.absent().len(),
            evictions_paused: self.losses.is_braked(),
            nodes_draining: self.departures.n_draining(),
            gangs_waiting: self.gangs.n_due(self.stepped_at),
            floor_percent: self.config.queues.floor_percent.min(50),
        }
    }

    /// Whether the next step for a unit is the control plane's: to hand it out, or to find its place. Otherwise it waits for
    /// room, for a quota, for whoever has to leave first, for an administrator, or until there is any scheduler. One that is
    /// not known is on its way to the store.
    pub fn is_owed(&self, unit: UnitId) -> bool {
        let Some(entry) = self.units.get(&unit) else { return true };
        match &entry.place {
            Whereabouts::Queued(waiting) if self.is_without_room(waiting.room) => false,
            Whereabouts::Queued(_) => {
                self.schedulers.is_any_attached() && self.pending_reason(entry).is_none()
            }
            Whereabouts::Dispatched(held) => held.parked.is_none() && held.done_at.is_none(),
            Whereabouts::Idle | Whereabouts::Unsettled | Whereabouts::Paused => false,
        }
    }

    /// Units that wait although some of them could be handed out, if schedulers took more: what the control plane is behind
    /// with.
    pub fn backlog(&self) -> usize {
        if self.queues.is_ready() && self.schedulers.is_any_attached() { self.queues.len() } else { 0 }
    }

    fn refusals(&self, entry: &UnitEntry) -> Option<Arc<Refusals>> {
        let found = self.paused(entry).or_else(|| self.found_refusals(entry));
        if !entry.is_overdue {
            return found;
        }
        let mut refusals = found.map_or_else(Refusals::default, |found| (*found).clone());
        let seconds = entry.spec.scheduling_timeout_ms().div_ceil(1_000);
        let reason = format!("no place within {seconds} s, and tried on");
        refusals.reasons.insert(0, RefusalCount { plugin: TIMEOUT, reason, nodes: 0 });
        Some(Arc::new(refusals))
    }

    fn found_refusals(&self, entry: &UnitEntry) -> Option<Arc<Refusals>> {
        if let Some(pending_reason) = self.pending_reason(entry) {
            let reasons = vec![RefusalCount { plugin: QUEUE, reason: pending_reason.to_string(), nodes: 0 }];
            return Some(Arc::new(Refusals { reasons, ..Refusals::default() }));
        }
        if entry.refusals.is_some() || !entry.infeasible || entry.phase != Phase::Unschedulable {
            return entry.refusals.clone();
        }
        let nodes = u32::try_from(self.capacities.len()).unwrap_or(u32::MAX);
        let reason = self.capacities.infeasible(&entry.spec)?;
        Some(Arc::new(Refusals {
            reasons: vec![RefusalCount { plugin: FEASIBILITY, reason, nodes }],
            nodes,
            ..Refusals::default()
        }))
    }

    /// Why a unit that waits for a scheduler is not handed out, as of the last step; `None` if it only waits for its
    /// turn.
    fn pending_reason(&self, entry: &UnitEntry) -> Option<PendingReason> {
        match &entry.place {
            Whereabouts::Queued(waiting) if waiting.room == RoomIdx::NONE => {
                self.queues.pending_reason(waiting, self.stepped_at)
            }
            Whereabouts::Queued(_) => None,
            Whereabouts::Idle | Whereabouts::Unsettled | Whereabouts::Paused | Whereabouts::Dispatched(_) => {
                None
            }
        }
    }
}

impl ListFilter {
    fn matches(&self, entry: &UnitEntry) -> bool {
        self.phase.is_none_or(|phase| entry.phase == phase)
            && self.labels.iter().all(|(key, value)| entry.spec.labels.get(key) == Some(value))
    }
}
