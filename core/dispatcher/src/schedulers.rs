//! Schedulers: their leases, streams, credits and what each of them holds.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::ids::{Epoch, IdSet, UnitId};
use godel_domain::change::PartitionMode;
use godel_queueing::{Queues, Waiting};
use godel_rules::partition;

use super::{
    Action,
    nodes::Nodes,
    partition::Partitioning,
    policy::{DispatchPolicy, SchedulerCandidate, hash_name},
    read::SchedulerView,
    unit_entry::Dispatched,
};

/// A stream of a scheduler, numbered by the caller, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// Whether the scheduler has to hear that a unit is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Revocation {
    Tell,
    Silent,
}

/// Schedulers by index, and what they have yet to hear.
#[derive(Debug)]
pub struct Schedulers {
    pub(super) all: Vec<SchedulerEntry>,
    by_name: BTreeMap<String, usize>,
    by_session: BTreeMap<SessionId, usize>,
    policy: Box<dyn DispatchPolicy>,
    /// Units whose schedulers have yet to hear of the newest record or rows.
    resend: BTreeSet<UnitId>,
    /// What is to be said to schedulers' streams with the next step.
    outbox: Vec<Action>,
}

/// A scheduler that this dispatcher has seen since it leads.
#[derive(Debug)]
pub(super) struct SchedulerEntry {
    pub(super) name: String,
    pub(super) name_hash: u64,
    pub(super) address: String,
    pub(super) epoch: Epoch,
    /// Its lease is in force.
    pub(super) live: bool,
    pub(super) session: Option<SessionId>,
    /// Below 0 after a unit larger than what was left.
    pub(super) credits: i64,
    pub(super) held: IdSet<UnitId>,
    pub(super) parked: u32,
    pub(super) outstanding: u64,
    pub(super) dispatched: u64,
    /// Number of assignments sent on its stream.
    pub(super) n_assigned: u64,
}

impl Schedulers {
    pub(super) fn new(policy: Box<dyn DispatchPolicy>) -> Self {
        Self {
            all: Vec::new(),
            by_name: BTreeMap::new(),
            by_session: BTreeMap::new(),
            policy,
            resend: BTreeSet::new(),
            outbox: Vec::new(),
        }
    }

    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Returns the index of the scheduler with this name, which is known from now on.
    pub(super) fn intern(&mut self, name: &str) -> usize {
        if let Some(idx) = self.find(name) {
            return idx;
        }
        self.all.push(SchedulerEntry {
            name: name.to_owned(),
            name_hash: hash_name(name),
            address: String::new(),
            epoch: Epoch(0),
            live: false,
            session: None,
            credits: 0,
            held: IdSet::default(),
            parked: 0,
            outstanding: 0,
            dispatched: 0,
            n_assigned: 0,
        });
        self.by_name.insert(name.to_owned(), self.all.len() - 1);
        self.all.len() - 1
    }

    pub(super) fn of_session(&self, session: SessionId) -> Option<usize> {
        self.by_session.get(&session).copied()
    }

    /// The stream of a scheduler is over, if it has one.
    pub(super) fn detach(&mut self, idx: usize) -> Option<SessionId> {
        let session = self.all[idx].session.take()?;
        self.by_session.remove(&session);
        self.all[idx].credits = 0;
        Some(session)
    }

    /// Ends the stream of a scheduler, if it has one.
    pub(super) fn close(&mut self, idx: usize) {
        if let Some(session) = self.detach(idx) {
            self.outbox.push(Action::Close(session));
        }
    }

    pub(super) fn open(&mut self, idx: usize, session: SessionId, credits: u32) {
        self.by_session.insert(session, idx);
        self.all[idx].session = Some(session);
        self.all[idx].credits = i64::from(credits);
        self.all[idx].n_assigned = 0;
    }

    /// Returns the schedulers that may get a unit now, in order of their indices.
    pub(super) fn candidates(&self) -> impl Iterator<Item = SchedulerCandidate> + '_ {
        let ready = |(_, one): &(usize, &SchedulerEntry)| one.session.is_some() && one.credits > 0;
        self.all.iter().enumerate().filter(ready).map(|(scheduler, one)| SchedulerCandidate {
            scheduler,
            name_hash: one.name_hash,
            outstanding: one.outstanding,
            dispatched: one.dispatched,
        })
    }

    /// Returns the index of the scheduler that gets a unit, of `candidates`, of which there is at least one.
    pub(super) fn pick(&mut self, unit: UnitId, candidates: &[SchedulerCandidate]) -> usize {
        candidates[self.policy.pick(unit, candidates).min(candidates.len() - 1)].scheduler
    }

    /// Whether some scheduler has a stream.
    pub(super) fn is_any_attached(&self) -> bool {
        !self.by_session.is_empty()
    }

    /// Returns the names of the schedulers whose leases are in force.
    pub(super) fn live(&self) -> BTreeSet<String> {
        self.all.iter().filter(|one| one.live).map(|one| one.name.clone()).collect()
    }

    /// Whether each scheduler whose lease is in force has a stream.
    pub(super) fn all_attached(&self) -> bool {
        self.all.iter().all(|one| !one.live || one.session.is_some())
    }

    /// The scheduler of a unit has to hear of its newest record or rows.
    pub(super) fn tell_again(&mut self, unit: UnitId, held: &mut Dispatched) {
        held.resend = true;
        self.resend.insert(unit);
    }

    /// Returns the units whose schedulers have yet to hear of the newest record or rows.
    pub(super) fn take_resend(&mut self) -> BTreeSet<UnitId> {
        std::mem::take(&mut self.resend)
    }

    /// A unit is gone: nobody has to hear of it.
    pub(super) fn forget(&mut self, unit: UnitId) {
        self.resend.remove(&unit);
    }

    /// A stream has to hear that a unit is not its scheduler's.
    pub(super) fn revoke(&mut self, session: SessionId, unit: UnitId) {
        self.outbox.push(Action::Revoke(session, unit));
    }

    /// Schedulers with a lease in force or units in hand, by name.
    pub fn views(&self, partition: &Partitioning, nodes: &Nodes) -> Vec<SchedulerView> {
        let partition = partition.records.whole();
        let shares = partition::shares(partition, nodes.names.keys().copied());
        let shown = self.all.iter().filter(|one| one.live || one.session.is_some());
        let mut views: Vec<SchedulerView> = shown
            .map(|one| {
                let slot = partition.schedulers.iter().position(|name| *name == one.name);
                let nodes = match partition.mode {
                    PartitionMode::Global => u32::try_from(nodes.names.len()).unwrap_or(u32::MAX),
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

    /// What is to be said to schedulers' streams.
    pub(super) fn outbox(&self) -> &[Action] {
        &self.outbox
    }

    pub(super) fn take_outbox(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.outbox)
    }

    /// A unit does not wait for room with its scheduler any more. Returns how it did.
    pub(super) fn unpark(&mut self, held: &mut Dispatched, queues: &mut Queues) -> Option<Waiting> {
        let waiting = held.parked.take()?;
        self.all[held.scheduler].parked -= 1;
        queues.remove(&waiting);
        Some(waiting)
    }

    /// Frees a unit's place at its scheduler; the unit's own place is the caller's business.
    pub(super) fn take_back(
        &mut self,
        unit: UnitId,
        mut held: Dispatched,
        tell: Revocation,
        queues: &mut Queues,
    ) {
        self.unpark(&mut held, queues);
        let scheduler = &mut self.all[held.scheduler];
        scheduler.reload(&mut held.load, 0);
        scheduler.held.remove(&unit);
        self.resend.remove(&unit);
        if let (Revocation::Tell, Some(session)) = (tell, scheduler.session) {
            self.outbox.push(Action::Revoke(session, unit));
        }
    }
}

impl SchedulerEntry {
    /// Changes what a held unit counts for.
    pub(super) fn reload(&mut self, load: &mut u32, new: u32) {
        self.outstanding = self.outstanding - u64::from(*load) + u64::from(new);
        *load = new;
    }
}
