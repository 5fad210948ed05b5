//! Lives, leases and nodes of a case: who comes and goes, and what is written by nobody who could be refused.

use std::sync::Arc;

use godel_base::ids::{NodeId, ReplicaId, UnitId};
use godel_domain::{
    change::{Change, PartitionMode},
    hold::Hold,
    lifecycle,
    node::NodeReport,
    records::Record,
    running_units::{EvictionReason, RunChange},
};

use super::{
    agents::{Agents, PlayedLeaf},
    binder, dispatcher, identities, movements, naive,
    net::{Event, Part},
    numbers::Numbers,
    reach::{Mark, MarkCounts},
    rescheduler::{self, ReschedulerPart},
    store::{Answer, Store, Txn},
    world::Model,
};

/// Lives and leases.
impl Model {
    pub(super) fn life(&self, part: Part) -> u64 {
        match part {
            Part::Dispatcher => self.dispatcher.life,
            Part::Binder => self.binder.life,
            Part::Scheduler(idx) => self.schedulers[idx].life,
            Part::Rescheduler => self.rescheduler.as_ref().map_or(0, |part| part.life),
        }
    }

    fn lease(&self, part: Part) -> String {
        match part {
            Part::Dispatcher => dispatcher::LEASE.to_owned(),
            Part::Binder => binder::LEASE.to_owned(),
            Part::Scheduler(idx) => self.schedulers[idx].lease(),
            Part::Rescheduler => rescheduler::LEASE.to_owned(),
        }
    }

    fn leads(&self, part: Part) -> bool {
        match part {
            Part::Dispatcher => self.dispatcher.leads(),
            Part::Binder => self.binder.leads(),
            Part::Scheduler(idx) => self.schedulers[idx].is_registered(),
            Part::Rescheduler => self.rescheduler.as_ref().is_some_and(ReschedulerPart::leads),
        }
    }

    pub(super) fn begin(&mut self, part: Part) {
        match part {
            Part::Dispatcher => self.dispatcher.begin(&self.store, &mut self.net),
            Part::Binder => self.binder.begin(&mut self.net),
            Part::Scheduler(idx) => self.schedulers[idx].begin(&mut self.net),
            Part::Rescheduler => {
                if let Some(part) = &mut self.rescheduler {
                    part.begin(&mut self.net);
                }
            }
        }
        let life = self.life(part);
        self.net.soon(Event::Stand(part, life));
    }

    pub(super) fn stand(&mut self, part: Part) {
        if self.leads(part) {
            return;
        }
        let name = self.lease(part);
        let held = self.store.world.leases.get(&name).is_some_and(|lease| !lease.value.holder.is_empty());
        if held {
            self.expire(part);
        }
        let lease = self.store.grant(&name, "somebody");
        let epoch = lease.epoch;
        self.write(vec![Change::Put(Record::Lease(lease))]);
        let since = self.store.revision();
        match part {
            Part::Dispatcher => self.dispatcher.lead(epoch, since),
            Part::Binder => self.binder.lead(epoch, since),
            Part::Scheduler(idx) => self.schedulers[idx].register(epoch, &mut self.net),
            Part::Rescheduler => {
                if let Some(part) = &mut self.rescheduler {
                    part.lead(epoch, since);
                }
                self.wake(part);
            }
        }
    }

    pub(super) fn expire(&mut self, part: Part) {
        let expired = self.store.expired(&self.lease(part));
        if let Some(lease) = expired.filter(|_| !self.leads(part)) {
            self.write(vec![Change::Put(Record::Lease(lease))]);
        }
    }

    pub(super) fn kill(&mut self, part: Part, numbers: &mut Numbers) {
        match part {
            Part::Dispatcher => self.dispatcher.kill(&mut self.net),
            Part::Binder => self.binder.kill(&mut self.net),
            Part::Scheduler(idx) => self.schedulers[idx].kill(&mut self.net),
            Part::Rescheduler => {
                movements::mark_death(self);
                self.rescheduler.iter_mut().for_each(ReschedulerPart::kill);
            }
        }
        let life = self.life(part);
        self.net.after(1 + numbers.below(300), Event::Begin(part, life));
        self.net.after(20 + numbers.below(200), Event::Expire(part));
    }

    pub(super) fn lose_lease(&mut self, part: Part, numbers: &mut Numbers) {
        if !self.leads(part) {
            return;
        }
        match part {
            Part::Dispatcher => {}
            Part::Binder => self.binder.step_down(&mut self.net),
            Part::Scheduler(idx) => self.schedulers[idx].lose_lease(&mut self.net),
            Part::Rescheduler => self.rescheduler.iter_mut().for_each(ReschedulerPart::step_down),
        }
        let life = self.life(part);
        self.net.after(20 + numbers.below(200), Event::Expire(part));
        self.net.after(20 + numbers.below(300), Event::Stand(part, life));
    }

    pub(super) fn relist(&mut self, part: Part) {
        if !self.leads(part) {
            return;
        }
        match part {
            Part::Dispatcher => self.dispatcher.relist(&mut self.net),
            Part::Binder => self.binder.relist(&mut self.net),
            Part::Scheduler(idx) => self.schedulers[idx].relist(&mut self.net),
            Part::Rescheduler => {
                if let Some(part) = &mut self.rescheduler {
                    part.relist(&mut self.net);
                }
            }
        }
    }
}

/// The store and the nodes.
impl Model {
    pub(super) fn transact(&mut self, txn: Txn) -> Answer {
        self.naive.before(&self.store, &txn.ops);
        let is_away = is_placed_away(&self.store, &txn.ops);
        let answer = self.store.transact(txn, self.net.wall_ms());
        if is_away && answer.is_ok() {
            self.net.reach.mark(Mark::MovedAway);
        }
        self.committed(answer.is_ok());
        answer
    }

    /// What nobody can refuse; what makes no sense is not written.
    pub(super) fn write(&mut self, ops: Vec<Change>) {
        if ops.is_empty() {
            return;
        }
        self.naive.before(&self.store, &ops);
        let answer = self.store.write(ops, self.net.wall_ms());
        self.committed(answer.is_ok());
    }

    fn committed(&mut self, is_ok: bool) {
        if !is_ok {
            return;
        }
        self.net.active_at = self.net.now;
        let Some(commit) = self.store.commits.last() else { return };
        self.net.trace(|| format!("COMMIT {} {:?}", commit.revision, commit.changes));
        for change in &commit.changes {
            mark(change, &self.store, &mut self.net.reach);
        }
        for node in self.store.touched_nodes(commit) {
            self.agents.call(node, 0, &mut self.net);
        }
        let mut wrong =
            self.naive.after(&self.store).and_then(|()| identities::check_bound(&self.store)).err();
        let mut targets = Vec::new();
        for change in &commit.changes {
            if let Change::Put(Record::Hold(hold)) = change
                && hold.movement.is_some()
            {
                wrong = wrong.or(self.movements.on_hold(hold).err());
                targets.push(hold.node);
            }
        }
        if let Some(people) = &mut self.people {
            wrong = wrong.or(people.on_commits(&self.store.commits, &mut self.net.reach).err());
        }
        self.wrong = self.wrong.take().or(wrong);
        if let Some(node) = targets.first().filter(|_| std::mem::take(&mut self.loses_target)) {
            self.net.after(0, Event::Lose(*node));
        }
        self.dispatcher.receive_changes(&mut self.net);
        self.binder.receive_changes(&mut self.net);
        for scheduler in &mut self.schedulers {
            scheduler.receive_changes(&mut self.net);
        }
        if let Some(rescheduler) = &mut self.rescheduler {
            rescheduler.receive_changes(&mut self.net);
        }
    }

    /// A node loses contact, and comes back or not.
    pub(super) fn lose(&mut self, node: NodeId, numbers: &mut Numbers) {
        self.agents.lose_contact(node);
        self.net.after(10 + numbers.below(100), Event::Judge(node));
        if numbers.chance(75) {
            self.net.after(30 + numbers.below(2_000), Event::Back(node));
        }
    }

    pub(super) fn judge(&mut self, node: NodeId) {
        if self.agents.is_in_contact(node) {
            return;
        }
        if movements::moving(&self.store).contains(&node) {
            self.net.reach.mark(Mark::LostInMove);
        }
        self.set_ready(node, false);
    }

    pub(super) fn back(&mut self, node: NodeId) {
        if !self.agents.is_in_contact(node) && self.agents.leaf(node) != PlayedLeaf::Revoked {
            self.agents.open(node, &mut self.net);
            // Before it is ready.
            identities::record_leaf(self, node);
            self.set_ready(node, true);
        }
    }

    /// The agent of a node dies, and what runs there with it, or not. The next one comes soon.
    pub(super) fn kill_agent(&mut self, node: NodeId, dies_all: bool, numbers: &mut Numbers) {
        self.agents.kill(node, dies_all, &mut self.net);
        self.net.after(60 + numbers.below(100), Event::Judge(node));
        self.net.after(1 + numbers.below(120), Event::Back(node));
    }

    /// The session of a node breaks.
    pub(super) fn cut_agent(&mut self, node: NodeId, numbers: &mut Numbers) {
        if self.agents.is_in_contact(node) {
            self.agents.cut(node);
            self.net.after(1 + numbers.below(200), Event::Reopen(node));
        }
    }

    pub(super) fn on_agent_event(&mut self, event: Event) {
        match event {
            Event::Tell(node, session) => self.agents.tell(node, session, &self.store, &mut self.net),
            Event::Down(node, session, said) => self.agents.hear(node, session, *said, &mut self.net),
            Event::Up(node, session, said) => {
                self.agents.hear_agent(node, session, *said, &self.store, &mut self.net);
            }
            Event::Durable(node, session, sequence, statuses) => {
                let changes = Agents::durable(node, statuses, &self.store, &mut self.net);
                self.write(changes);
                self.agents.acknowledge(node, session, sequence, &mut self.net);
            }
            Event::InAgent(node, life, what) => self.agents.on_agent(node, life, what, &mut self.net),
            Event::OnMachine(node, key, incarnation, number, what) => {
                self.agents.on_machine(node, key, incarnation, number, what, &mut self.net);
            }
            Event::Reopen(node) if self.agents.is_in_contact(node) => self.agents.open(node, &mut self.net),
            _ => {}
        }
        self.wrong = self.wrong.take().or(self.agents.wrong.take());
    }

    fn set_ready(&mut self, node: NodeId, ready: bool) {
        let report = self.store.world.nodes.get(&node).and_then(|node| node.report.as_ref());
        if let Some(report) = report.filter(|report| report.value.ready != ready) {
            let report = NodeReport { ready, ..report.value.clone() };
            self.write(vec![Change::Put(Record::NodeReport(report))]);
        }
    }
}

/// Whether a transaction binds a replica elsewhere than on the target that is held for it.
fn is_placed_away(store: &Store, ops: &[Change]) -> bool {
    let targets = store.world.holds.values().map(|hold| &hold.value);
    let targets: Vec<_> = targets.filter(|hold| hold.movement.is_some()).collect();
    ops.iter().any(|op| {
        let Change::Rows(unit, RunChange::Bind(bind)) = op else { return false };
        let placed = ReplicaId::of_columns(&bind.ordinals, &bind.incarnations).zip(&bind.nodes);
        placed.into_iter().any(|(replica, node)| {
            let is_its = |hold: &&&Arc<Hold>| hold.unit == *unit && hold.replicas().any(|one| one == replica);
            targets.iter().find(is_its).is_some_and(|hold| hold.node != *node)
        })
    })
}

/// What is special about somebody who moves.
fn mark_move(hold: &Hold, store: &Store, reach: &mut MarkCounts) {
    let Some(record) = store.record(hold.unit) else { return };
    let (spec, topology) = (&record.spec, &record.spec.topology);
    let waits = store.rows.get(&hold.unit).is_some_and(|rows| !lifecycle::pending(record, rows).0.is_empty());
    for (mark, is_met) in [
        (Mark::MovedApart, !spec.affinity.apart.is_empty()),
        (Mark::MovedNear, !spec.affinity.near.is_empty()),
        (Mark::MovedSpread, !spec.affinity.spread.is_empty()),
        (Mark::MovedTogether, !topology.required.is_empty() || !topology.homogeneous.is_empty()),
        (Mark::MovedPort, !hold.demand.host_ports.is_empty()),
        (Mark::MovedBeforeOthers, waits),
    ] {
        if is_met {
            reach.mark(mark);
        }
    }
}

/// Whether a replica that moves comes back to a queue that is at a maximum of what it takes, while others wait for that.
fn comes_to_full_queue(unit: UnitId, store: &Store) -> bool {
    let targets = store.world.holds.values().map(|hold| &hold.value);
    let mut targets = targets.filter(|hold| hold.unit == unit && hold.movement.is_some());
    let Some(hold) = targets.find(|hold| naive::is_between(store, hold)) else { return false };
    let (Some(record), used) = (store.record(unit), naive::queues(store)) else { return false };
    let is_full = |level: &str| {
        let (Some(queue), Some(used)) = (store.world.queues.get(level), used.get(level)) else {
            return false;
        };
        let left = |name: &str, max: i64| max - used.get(name).copied().unwrap_or(0);
        let n_max = i64::from(queue.value.max_running_units);
        let mut maxima = queue.value.max.iter();
        (n_max > 0 && left("", n_max) < 1)
            || maxima.any(|(name, max)| left(name, *max) < hold.demand.requests.get(name))
    };
    let waits_below = |level: &str| {
        store.world.units.keys().filter(|id| **id != unit).filter_map(|id| store.record(*id)).any(|other| {
            let rows = store.rows.get(&other.id).cloned().unwrap_or_default();
            naive::levels(&other.spec.queue).any(|of| of == level)
                && !lifecycle::pending(other, &rows).0.is_empty()
        })
    };
    naive::levels(&record.spec.queue).any(|level| is_full(level) && waits_below(level))
}

fn mark(change: &Change, store: &Store, reach: &mut MarkCounts) {
    match change {
        Change::Rows(unit, RunChange::Requeue(_)) if comes_to_full_queue(*unit, store) => {
            reach.mark(Mark::MovedInFullQueue);
        }
        Change::Rows(unit, RunChange::Bind(bind))
            if bind.ordinals.len() > 1
                && store.record(*unit).is_some_and(|record| record.spec.min_member > 1) =>
        {
            reach.mark(Mark::Gang);
        }
        Change::Rows(unit, RunChange::Terms(_))
            if store.rows.get(unit).is_some_and(|rows| rows.live().next().is_some()) =>
        {
            reach.mark(Mark::Terms);
        }
        Change::Rows(_, RunChange::Compact(_)) => reach.mark(Mark::Compaction),
        Change::Rows(_, RunChange::Evict(evict)) => match evict.reason {
            EvictionReason::Preempted => reach.mark(Mark::Preemption),
            EvictionReason::Squeezed => reach.mark(Mark::Squeeze),
            EvictionReason::Drained => reach.mark(Mark::Drain),
            EvictionReason::NodeLost => reach.mark(Mark::NodeLost),
            EvictionReason::Cancelled
            | EvictionReason::ScaledIn
            | EvictionReason::Rescheduled
            | EvictionReason::Suspended
            | EvictionReason::BelowMin
            | EvictionReason::Deadline
            | EvictionReason::Failure
            | EvictionReason::Tainted => {}
        },
        Change::Put(Record::Hold(hold)) if hold.at_maximum => reach.mark(Mark::Relief),
        Change::Put(Record::Hold(hold)) if hold.movement.is_some() => mark_move(hold, store, reach),
        Change::Put(Record::Partition(partition)) if partition.mode == PartitionMode::Strict => {
            reach.mark(Mark::Strict);
        }
        _ => {}
    }
}
