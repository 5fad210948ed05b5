//! What the dispatcher shows of itself: units, schedulers, counters.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use godel_base::{
    ids::{Epoch, NodeId, Revision, UnitId},
    time::Millis,
};
use godel_domain::{
    allocation::DeviceSet,
    change::{Change, Partition, PartitionMode},
    frozen::Frozen,
    lifecycle::{self, Counts, UnitPhase},
    pause::Pauses,
    priority_classes::PriorityClasses,
    record_change::Users,
    refusals::{RefusalCount, Refusals, WaitReason},
    reservation_spec::ReservationSpec,
    running_units::{LastEviction, RunningUnits, UnitTerms},
    sub_cluster,
    unit::{UnitRecord, UnitSpec},
};
use godel_queueing::{Quota, RoomIdx};
use godel_rules::{budget::Budgets, partition};

use super::{
    Action, Counters, Dispatcher, DrainView, EndedView, TurnView, Unresolved,
    assignments::Assignments,
    budgets::BudgetView,
    directory, gangs,
    gauges::ByPhase,
    holds,
    moves::{EnteredQueue, NoRoomToMove},
    queues::{QueueView, Queueing, Unwelcome, Versions},
    record_changes::{Edit, EditPlan, EditRefusal, KnownRecords},
    reservations::ReservationView,
    schedulers::SchedulerEntry,
    unit_entry::{UnitEntry, Whereabouts},
};

mod list;

pub(super) use self::list::is_within;
pub use self::list::{ListChunk, ListFilter};

/// A unit as shown.
#[derive(Clone, Debug)]
pub struct UnitView<'a> {
    /// Its record.
    pub record: &'a Arc<UnitRecord>,
    /// Revision of its record.
    pub spec_revision: Revision,
    /// Revision of its record or rows, whichever changed last.
    pub revision: Revision,
    /// Revision of its rows; 0: there are none.
    pub rows_revision: Revision,
    /// Of the creating transaction.
    pub create_revision: Revision,
    /// Of the creating transaction, Unix milliseconds.
    pub create_time_ms: i64,
    /// Derived.
    pub phase: UnitPhase,
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
    /// By phase, in order of [`UnitPhase::ALL`].
    pub n_by_phase: [u64; UnitPhase::ALL.len()],
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
        let Assignments { units, schedulers, .. } = &self.assignments;
        let entry = units.get(unit)?;
        let scheduler = match &entry.place {
            Whereabouts::Dispatched(held) => Some(schedulers.all[held.scheduler].name.as_str()),
            Whereabouts::Idle | Whereabouts::Unsettled | Whereabouts::Paused | Whereabouts::Queued(_) => None,
        };
        Some(UnitView {
            record: &entry.record,
            spec_revision: entry.revision,
            revision: entry.revision.max(entry.rows_revision),
            rows_revision: entry.rows_revision,
            create_revision: entry.create_revision,
            create_time_ms: entry.create_time_ms,
            phase: entry.phase,
            counts: &entry.counts,
            rows: &entry.rows,
            scheduler,
            refusals: self.refusals(entry),
            bound_time_ms: entry.bound_time_ms,
            waits_for: self.waits_for(unit, entry),
            turn: gangs::turn_of(entry.holds()),
            preempted_by: units.preemptors(entry.rows.preemptors()),
            sub_cluster: sub_cluster::of(&entry.record.spec, &self.config.sub_cluster_key),
        })
    }

    /// Why no node known now could ever hold a replica of `spec`.
    pub fn infeasible(&self, spec: &UnitSpec) -> Option<String> {
        self.nodes.capacities.infeasible(spec)
    }

    /// What the submitter of a unit may not have meant, in sentences.
    pub fn warnings(&self, spec: &UnitSpec) -> Vec<String> {
        self.nodes.capacities.warnings(spec)
    }

    /// Units in order of id, those after `after`.
    pub fn unit_ids(&self, after: UnitId) -> impl Iterator<Item = UnitId> + '_ {
        self.assignments.units.ids.range((Bound::Excluded(after), Bound::Unbounded)).copied()
    }

    /// Units known, in flight ones included.
    pub fn n_units(&self) -> usize {
        self.assignments.units.len() + self.assignments.units.directory.n_in_flight()
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
        let units = &self.assignments.units;
        let mut chunk = ListChunk::default();
        let mut last = "";
        for (scanned, (name, unit)) in units.directory.after(&prefix, after).enumerate() {
            if scanned >= n_scan {
                last.clone_into(&mut chunk.next);
                break;
            }
            last = name;
            let Some(entry) = units.get(unit) else { continue };
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
        if (ListFilter { phase: filter.phase, ..ListFilter::default() }) != *filter {
            return None;
        }
        let units = &self.assignments.units;
        Some(filter.phase.map_or(units.len() as u64, |phase| units.tally.all()[phase.idx()]))
    }

    /// Everything up to this revision is known.
    pub fn revision(&self) -> Revision {
        self.following.revision
    }

    /// Schedulers may attach: everything has been read.
    pub fn is_loaded(&self) -> bool {
        !self.assignments.settling.is_loading()
    }

    /// A list is under way.
    pub fn is_listing(&self) -> bool {
        self.following.is_listing()
    }

    /// A split is on its way to the store.
    pub fn is_partition_writing(&self) -> bool {
        self.partition.is_writing
    }

    /// Name of a node; empty when it is not known.
    pub fn node_name(&self, node: NodeId) -> &str {
        self.nodes.names.get(&node).map_or("", |name| name)
    }

    /// Who had a replica leave, in words.
    pub fn evicted_by(&self, eviction: &LastEviction) -> String {
        match eviction.by_unit() {
            Some(unit) => self.assignments.units.shown(unit),
            None => eviction.by.to_string(),
        }
    }

    /// The node of a name.
    pub fn node_of_name(&self, name: &str) -> Option<NodeId> {
        self.nodes.names.iter().find(|(_, known)| ***known == *name).map(|(node, _)| *node)
    }

    /// Model of the first of some devices of a node; empty when there are none.
    pub fn device_model(&self, node: NodeId, devices: DeviceSet) -> &str {
        self.nodes.capacities.model(node, devices)
    }

    /// How nodes are split, as committed, and the revision of the record of the mode and the schedulers.
    pub fn partition(&self) -> (&Partition, Revision) {
        (self.partition.records.whole(), self.partition.records.revision())
    }

    /// The present mode.
    pub fn mode(&self) -> PartitionMode {
        self.partition.mode
    }

    /// Messages that wait for the next step.
    pub fn outbox(&self) -> &[Action] {
        self.assignments.schedulers.outbox()
    }

    /// Schedulers with a lease in force or units in hand, by name.
    pub fn schedulers(&self) -> Vec<SchedulerView> {
        let partition = self.partition.records.whole();
        let shares = partition::shares(partition, self.nodes.names.keys().copied());
        let mut views: Vec<SchedulerView> = self
            .assignments
            .schedulers
            .all
            .iter()
            .filter(|one| one.live || one.session.is_some())
            .map(|one| {
                let slot = partition.schedulers.iter().position(|name| *name == one.name);
                let nodes = match partition.mode {
                    PartitionMode::Global => u32::try_from(self.nodes.names.len()).unwrap_or(u32::MAX),
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
        let Assignments { units, queueing: Queueing { queues, .. }, schedulers, settling, ends, .. } =
            &self.assignments;
        let held = |count: fn(&SchedulerEntry) -> u64| schedulers.all.iter().map(count).sum();
        Summary {
            units: units.len() as u64,
            queued_units: (queues.len() + settling.unsettled.len()) as u64,
            queued_running_units: queues.running_units(),
            dispatched_units: held(|one| one.held.len() as u64),
            parked_units: held(|one| u64::from(one.parked)) + queues.n_unheld() as u64,
            counters: self.assignments.counters,
            revision: self.following.revision,
            n_by_phase: *units.tally.all(),
            n_in_flight: units.directory.n_in_flight(),
            evictions: ends.n_evictions(),
            ended: ends.n_ended(),
            nodes: self.node_evictions.n_nodes(),
            nodes_not_ready: self.node_evictions.n_not_ready(),
            evictions_paused: self.node_evictions.is_braked(),
            nodes_draining: self.node_evictions.n_draining(),
            gangs_waiting: self.gangs.n_due(self.stepped_at),
            floor_percent: self.config.queues.floor_percent.min(50),
        }
    }

    /// Whether the next step for a unit is the control plane's: to hand it out, or to find its place. Otherwise it waits for
    /// room, for a quota, for whoever has to leave first, for an administrator, or until there is any scheduler. One that is
    /// not known is on its way to the store.
    pub fn is_owed(&self, unit: UnitId) -> bool {
        let Assignments { units, queueing, schedulers, .. } = &self.assignments;
        let Some(entry) = units.get(unit) else { return true };
        match &entry.place {
            Whereabouts::Queued(waiting)
                if waiting.room != RoomIdx::NONE && !queueing.queues.is_open(waiting.room) =>
            {
                // No unit of its room is served now.
                false
            }
            Whereabouts::Queued(_) => {
                schedulers.is_any_attached() && queueing.pending_reason(entry, self.stepped_at).is_none()
            }
            Whereabouts::Dispatched(held) => held.parked.is_none() && held.done_at.is_none(),
            Whereabouts::Idle | Whereabouts::Unsettled | Whereabouts::Paused => false,
        }
    }

    /// Units that wait although some of them could be handed out, if schedulers took more: what the control plane is behind
    /// with.
    pub fn backlog(&self) -> usize {
        let Assignments { queueing: Queueing { queues, .. }, schedulers, .. } = &self.assignments;
        if queues.is_ready() && schedulers.is_any_attached() { queues.len() } else { 0 }
    }

    /// Whether a unit may be submitted where it wants to go.
    ///
    /// # Errors
    /// Everything wrong.
    pub fn admit(&self, spec: &UnitSpec) -> Result<(), Vec<Unwelcome>> {
        if let Some(why) = self.assignments.frozen_target(spec) {
            return Err(vec![Unwelcome::Unreadable(Box::new(why.clone()))]);
        }
        self.assignments.queueing.admit(spec, &self.config.sub_cluster_key)
    }

    /// Preemption terms of what is bound of a unit once its spec is another one; `None` if they stay.
    pub fn changed_terms(&self, old: &UnitSpec, new: &UnitSpec) -> Option<UnitTerms> {
        let classes = &self.assignments.queueing.classes;
        let terms = UnitTerms::of(new, classes);
        (terms != UnitTerms::of(old, classes)).then_some(terms)
    }

    /// Whether all that is on nodes of a unit may count in another queue, and the queues with a maximum that it enters by that.
    ///
    /// # Errors
    /// The first maximum that has no room.
    pub fn enter(&self, unit: UnitId, queue: &str) -> Result<Vec<EnteredQueue>, NoRoomToMove> {
        self.assignments.queueing.enter(unit, queue, &self.assignments.units)
    }

    /// What a change comes to, by the records known.
    ///
    /// # Errors
    /// It may not be made.
    pub fn plan(&self, edit: &Edit) -> Result<EditPlan, EditRefusal> {
        let known = KnownRecords {
            queueing: &self.assignments.queueing,
            budgets: &self.budgets,
            reservations: &self.reservations,
            units: &self.assignments.units,
        };
        known.plan(edit)
    }

    /// Queues and what they use, what was handed out included.
    pub fn quota(&self) -> &Quota {
        self.assignments.queueing.quota()
    }

    /// Priority classes.
    pub fn classes(&self) -> &PriorityClasses {
        &self.assignments.queueing.classes
    }

    /// When a queue's record was written; `None` without one.
    pub fn queue_versions(&self, path: &str) -> Option<Versions> {
        self.assignments.queueing.records.queues.get(path).copied()
    }

    /// When a priority class's record was written; `None` without one.
    pub fn class_versions(&self, name: &str) -> Option<Versions> {
        self.assignments.queueing.records.classes.get(name).copied()
    }

    /// Units, not ended and expired, that name a queue. Those of `default` are not told.
    pub fn queue_users(&self, path: &str) -> Users {
        self.assignments.queueing.queue_users(path, &self.assignments.units)
    }

    /// Units, not ended and expired, that name a priority class.
    pub fn class_users(&self, name: &str) -> Users {
        self.assignments.queueing.class_users(name, &self.assignments.units)
    }

    /// What running units that are bound and have not ended ask for, of both pools, and what all nodes have, by resource.
    /// Devices count by their kind, in thousandths.
    pub fn allocated(&self) -> (BTreeMap<String, i64>, BTreeMap<String, i64>) {
        self.assignments.queueing.allocated(&self.nodes)
    }

    /// A queue as shown; `None` if there is no such queue.
    pub fn queue_view(&self, path: &str) -> Option<QueueView> {
        self.assignments.queueing.queue_view(path)
    }

    /// Units by phase of the `n_max` queues with most units, by path, and of all others together.
    pub fn units_by_queue(&self, n_max: usize) -> (Vec<(&str, ByPhase)>, ByPhase) {
        self.assignments.units.tally.by_queue(n_max, self.quota().tree())
    }

    /// Budgets, and what they allow.
    pub fn budgets(&self) -> &Budgets {
        &self.budgets
    }

    /// A budget as shown; `None` if there is no such budget.
    pub fn budget_view(&self, name: &str) -> Option<BudgetView> {
        BudgetView::of(name, &self.budgets, &self.assignments.queueing.records)
    }

    /// Reservations by name.
    pub fn reservations(&self) -> &BTreeMap<String, Arc<ReservationSpec>> {
        &self.reservations.specs
    }

    /// A reservation as shown; `None` if there is no such reservation. `O(its slots)`.
    pub fn reservation_view(&self, name: &str) -> Option<ReservationView> {
        self.reservations.view(name, &self.assignments, &self.nodes)
    }

    /// Pauses in force.
    pub fn pauses(&self) -> &Pauses {
        &self.assignments.gates.pauses
    }

    /// What cannot be read.
    pub fn frozen(&self) -> &Frozen {
        &self.assignments.gates.frozen
    }

    /// The unit that `text` names: its whole name in `namespace`, or its whole uid, which is one of all namespaces.
    /// Whatever changes a unit takes nothing less.
    ///
    /// # Errors
    /// There is none, or `text` is the name of one unit and the uid of another.
    pub fn find(&self, namespace: &str, text: &str) -> Result<UnitId, Unresolved> {
        self.assignments.units.find(namespace, text)
    }

    /// The unit that `text` stands for when it is only looked at: as [`Self::find`] says, or a prefix that only one
    /// unit of `namespace` has, of its name or of its uid.
    ///
    /// # Errors
    /// None or several.
    pub fn resolve(&self, namespace: &str, text: &str) -> Result<UnitId, Unresolved> {
        self.assignments.units.resolve(namespace, text)
    }

    /// When a unit ended and when its record goes; `None` while it has not, or while something of it is on a node.
    pub fn ended(&self, unit: UnitId, now: Millis) -> Option<EndedView> {
        EndedView::of(self.assignments.units.get(unit)?, now)
    }

    /// What a drained node waits for; at most `n_max` units that stay for now.
    pub fn drain_view(&self, node: NodeId, n_max: usize) -> DrainView {
        self.node_evictions.drain_view(node, n_max)
    }

    /// What is to be written for a split: what moves, and no more.
    pub fn partition_changes(&self, split: &Partition) -> Vec<Change> {
        self.partition.records.changes_to(split)
    }

    /// What a unit waits for, in words; empty: nothing in particular.
    fn waits_for(&self, unit: UnitId, entry: &UnitEntry) -> String {
        let units = &self.assignments.units;
        if entry.record.spec.is_daemon() && entry.record.spec.replicas() == 0 && entry.record.is_wanted() {
            return "waits for a node that its template may have".to_owned();
        }
        if entry.counts.pending > 0
            && let Some(ordinal) = lifecycle::awaited(&entry.record, &entry.rows)
        {
            return format!("waits for replica {ordinal} to run");
        }
        match (units.overtaken.get(&unit), entry.holds()) {
            (Some(by), []) => {
                let by = units.preemptors(&[*by]).pop().unwrap_or_default();
                format!("waits again, as {by} took over the room that was held for it")
            }
            (None, []) => self.gangs.waits_for(unit, self.stepped_at),
            (_, holds) => holds::waits_for(holds, units, &self.nodes),
        }
    }

    fn refusals(&self, entry: &UnitEntry) -> Option<Arc<Refusals>> {
        let found = self.assignments.gate_refusals(entry).or_else(|| self.found_refusals(entry));
        if !entry.is_overdue {
            return found;
        }
        let mut refusals = found.map_or_else(Refusals::default, |found| (*found).clone());
        let seconds = entry.record.spec.scheduling_timeout_ms().div_ceil(1_000);
        // What it lacks stays first: that it has waited for long says nothing of what would help.
        let reason = format!("no place within {seconds} s, and still tried");
        refusals.reasons.push(RefusalCount::waits(WaitReason::SchedulingTimeout, reason));
        Some(Arc::new(refusals))
    }

    fn found_refusals(&self, entry: &UnitEntry) -> Option<Arc<Refusals>> {
        if let Some(pending_reason) = self.assignments.queueing.pending_reason(entry, self.stepped_at) {
            let reasons = vec![RefusalCount::waits(WaitReason::Queue, pending_reason.to_string())];
            return Some(Arc::new(Refusals { reasons, ..Refusals::default() }));
        }
        if entry.refusals.is_some() || !entry.infeasible || entry.phase != UnitPhase::Unschedulable {
            return entry.refusals.clone();
        }
        let nodes = u32::try_from(self.nodes.capacities.len()).unwrap_or(u32::MAX);
        let reason = self.nodes.capacities.infeasible(&entry.record.spec)?;
        Some(Arc::new(Refusals {
            reasons: vec![RefusalCount { nodes, ..RefusalCount::waits(WaitReason::Admission, reason) }],
            nodes,
            ..Refusals::default()
        }))
    }
}
