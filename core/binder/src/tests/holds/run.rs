//! The store, agents and a binder, and what may happen to them.

use std::collections::VecDeque;

use godel_audit::{Commit, Evidence, History, Invariant, World as Audited};
use godel_base::ids::{ReplicaId, RunningUnitId};
use godel_domain::{
    budget_spec::{BudgetSpec, Limit},
    node::Drain,
    records::{Record, RecordKey},
    reservation_spec::ReservationSpec,
};

mod steps;

pub(super) use steps::{Step, step};

use super::*;

/// What a transaction under way does.
#[derive(Debug)]
enum Work {
    /// With the queue records that it rests on.
    Accepted(Box<Accepted>, Vec<(String, Revision)>),
    Evict(Departure),
    Drop(Vec<(HoldId, Revision)>),
    Reserve((String, Revision), Vec<Arc<Hold>>),
}

/// The store, agents and a binder.
pub(super) struct Run {
    pub(super) binder: Binder,
    pub(super) world: Audited,
    commits: Vec<Commit>,
    rows: BTreeMap<UnitId, RunningUnits>,
    units: BTreeMap<u64, (UnitRecord, u64)>,
    in_flight: VecDeque<Work>,
    unread: VecDeque<Commit>,
    now_ms: i64,
    epoch: u64,
}

const HOLD_MS: u64 = 4_000;

impl Run {
    pub(super) fn new() -> Self {
        let mut run = Self {
            binder: Binder::new(),
            world: Audited::default(),
            commits: Vec::new(),
            rows: BTreeMap::new(),
            units: BTreeMap::new(),
            in_flight: VecDeque::new(),
            unread: VecDeque::new(),
            now_ms: 1_000,
            epoch: 1,
        };
        run.binder.lead(Epoch(1), HOLD_MS, 0);
        run.binder.gather_for(HOLD_MS);
        for id in 1..=3 {
            run.write(vec![
                Change::Put(Record::NodeSpec(node(id))),
                Change::Put(Record::NodeReport(report(id, 1000, 2))),
            ]);
        }
        for id in 1..=5 {
            let spec = match id {
                1 => unit(id, 6, 1, demand(250, 0)),
                2 => unit(id, 4, 3, demand(250, 500)).priority(1),
                3 => unit(id, 3, 1, demand(500, 0)).priority(5),
                4 => unit(id, 3, 2, demand(600, 0)).priority(9).min_run_ms(50),
                _ => unit(id, 2, 1, demand(300, 1000)).priority(12).preemptible(false),
            };
            let queue = ["default", "a.x", "b", "a.y", "b"][usize::try_from(id).unwrap() - 1].to_owned();
            let labels = [("parity".to_owned(), if id % 2 == 1 { "odd" } else { "even" }.to_owned())].into();
            run.put_unit(spec.queue(queue).labels(labels));
        }
        run.read();
        run
    }

    fn put_unit(&mut self, record: UnitRecord) {
        let revision = self.write(vec![Change::Put(Record::Unit(Arc::new(record.clone())))]);
        self.units.insert(record.id.0, (record, revision));
    }

    /// Commits; the binder reads it later.
    pub(super) fn write(&mut self, changes: Vec<Change>) -> u64 {
        self.now_ms += 1;
        let revision = u64::try_from(self.commits.len()).unwrap() + 1;
        let commit = Commit { revision: Revision(revision), time_ms: self.now_ms, changes };
        for change in &commit.changes {
            if let Change::Rows(unit, change) = change {
                let rows = self.rows.entry(*unit).or_default();
                rows.apply(change, Revision(revision), self.now_ms, |_, _, _| {});
            }
        }
        self.world.apply(&commit, |_, _| {});
        self.commits.push(commit.clone());
        self.unread.push_back(commit);
        revision
    }

    pub(super) fn read(&mut self) {
        while let Some(commit) = self.unread.pop_front() {
            for change in commit.changes {
                self.binder.on_change(change, commit.revision, commit.time_ms);
            }
            self.binder.on_revision(commit.revision);
        }
    }

    fn decide(&mut self, id: u64, n: usize) {
        let (spec, revision) = self.units[&id].clone();
        if !spec.is_wanted() {
            return;
        }
        let members = self.pending(&spec, n);
        if members.is_empty() {
            return;
        }
        let members: Vec<(u32, u32)> =
            members.iter().map(|replica| (replica.ordinal, replica.incarnation)).collect();
        let Some(decision) = claims(&self.binder, &spec, revision, &members) else { return };
        let verdict = self.binder.check(&decision);
        if let Verdict::Reject(rejections) = &verdict {
            // Found on the same picture it is refused for what is under way, and never again and again.
            let is_gone = rejections.iter().any(|one| one.reason == RejectionReason::VictimGone);
            assert!(!is_gone || !self.in_flight.is_empty() || !self.unread.is_empty(), "{rejections:?}");
        }
        if let Verdict::Bind(accepted) = verdict {
            let queues = self.binder.picture.quotas.records(accepted.queue);
            let queues = queues.map(|(_, path, revision)| (path.to_owned(), revision)).collect();
            self.in_flight.push_back(Work::Accepted(accepted, queues));
        }
    }

    /// So many running units of a unit that are to be bound, for a first binding as many as it needs.
    fn pending(&self, record: &UnitRecord, n: usize) -> Vec<ReplicaId> {
        let known = self.binder.cluster().rows().of(record.id).cloned().unwrap_or_default();
        let pending = record.iter_ordinals().filter_map(|ordinal| {
            let row = known.row(ordinal);
            let replica = ReplicaId::new(ordinal, row.incarnation);
            let is_free = row.phase == Phase::Pending
                && !self.binder.holds.known.has(RunningUnitId { unit: record.id, replica });
            is_free.then_some(replica)
        });
        let n = if known.rows.is_empty() { n.max(record.spec.min_member as usize) } else { n };
        pending.take(n).collect()
    }

    fn reserve(&mut self, name: &str, slots: Option<u32>, milli: i64) {
        let Some(slots) = slots else {
            if self.world.reservations.contains_key(name) {
                self.write(vec![Change::Gone(RecordKey::Reservation(name.to_owned()))]);
            }
            return;
        };
        let devices = if milli == 500 { 1_000 } else { 0 };
        let spec = ReservationSpec {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            selector: [("parity".to_owned(), "odd".to_owned())].into(),
            slots,
            demand: demand(milli, devices),
            expires_ms: (milli == 300).then_some(self.now_ms + 5_000),
            ..ReservationSpec::default()
        };
        self.write(vec![Change::Put(Record::Reservation(Arc::new(spec)))]);
    }

    fn enter(&mut self, id: u64, n: usize) {
        let (record, revision) = self.units[&id].clone();
        if !record.is_wanted() {
            return;
        }
        let mut cluster = self.binder.cluster().clone();
        let demand = record.spec.task_groups[0].template.demand.clone();
        let shape = cluster.shape(&demand, record.spec.pool);
        let labels = record.spec.labels.clone();
        let owned = cluster.held().owned(record.spec.pool, |reservation| {
            reservation.selector.iter().all(|(key, value)| labels.get(key) == Some(value))
        });
        let slots = cluster.held().free_slots(&owned, shape);
        let mut members = self.pending(&record, n);
        members.truncate(slots.len());
        if members.is_empty() {
            return;
        }
        let places: Vec<(u32, u32)> =
            members.iter().zip(&slots).map(|(replica, (_, node))| (replica.ordinal, node.0)).collect();
        let mut decision = Decision { nodes_as_of: self.binder.revision(), ..place(id, revision, &places) };
        decision.groups[0].incarnations = members.iter().map(|replica| replica.incarnation).collect();
        if let Verdict::Bind(accepted) = self.binder.check(&decision) {
            // The slots are there as they are seen, so all of them are taken.
            let n_bound: usize = accepted.binds.iter().map(|bind| bind.ordinals.len()).sum();
            assert_eq!(accepted.slots.len(), n_bound);
            let queues = self.binder.picture.quotas.records(accepted.queue);
            let queues = queues.map(|(_, path, revision)| (path.to_owned(), revision)).collect();
            self.in_flight.push_back(Work::Accepted(accepted, queues));
        }
    }

    fn gather(&mut self, id: u64, from: u32) {
        let (record, revision) = self.units[&id].clone();
        let n = record.spec.min_member;
        let nodes = (0..n).map(|ordinal| (ordinal, (from + ordinal) % 3 + 1)).collect::<Vec<_>>();
        let decision = Decision {
            nodes_as_of: self.binder.revision(),
            claim: Claim::Gathering,
            ..place(id, revision, &nodes)
        };
        if let Verdict::Bind(accepted) = self.binder.check(&decision) {
            let queues = self.binder.picture.quotas.records(accepted.queue);
            let queues = queues.map(|(_, path, revision)| (path.to_owned(), revision)).collect();
            self.in_flight.push_back(Work::Accepted(accepted, queues));
        }
        let pools: Vec<Pool> = self.binder.picture().gathering().iter().map(|gang| gang.pool).collect();
        assert!(pools.is_sorted_by(|a, b| a < b), "one gang per pool: {pools:?}");
    }

    /// As a batch of the leader is written.
    fn changes(work: &Work) -> Vec<Change> {
        match work {
            Work::Evict(Departure { unit, evict, .. }) => {
                vec![Change::Rows(*unit, RunChange::Evict(evict.clone()))]
            }
            Work::Drop(holds) => holds.iter().map(|(id, _)| Change::Gone(RecordKey::Hold(*id))).collect(),
            Work::Reserve(_, holds) => {
                holds.iter().map(|hold| Change::Put(Record::Hold(Arc::clone(hold)))).collect()
            }
            Work::Accepted(accepted, _) => {
                let binds = accepted.binds.iter().map(|bind| RunChange::Bind(bind.clone()));
                let mut changes: Vec<Change> = binds.map(|bind| Change::Rows(accepted.unit, bind)).collect();
                let evictions = accepted.evictions.iter();
                changes.extend(
                    evictions.map(|(unit, evict)| Change::Rows(*unit, RunChange::Evict(evict.clone()))),
                );
                let holds = accepted.holds.iter().chain(&accepted.slots);
                changes.extend(holds.map(|hold| Change::Put(Record::Hold(Arc::clone(hold)))));
                changes.extend(accepted.ends.iter().map(|(id, _)| Change::Gone(RecordKey::Hold(*id))));
                changes.extend(accepted.gone.iter().map(|(id, _)| Change::Gone(RecordKey::Hold(*id))));
                changes
            }
        }
    }

    /// What state checks.
    fn is_allowed(&self, work: &Work) -> bool {
        let rows = Self::changes(work).into_iter().all(|change| match change {
            Change::Rows(unit, change) => {
                self.rows.get(&unit).cloned().unwrap_or_default().check(&change).is_ok()
            }
            _ => true,
        });
        let is_now = |(path, revision): &(String, Revision)| {
            self.world.queues.get(path).map_or(Revision(0), |queue| queue.revision) == *revision
        };
        let allows = |(name, revision): &(String, Revision)| {
            self.world.budgets.get(name).is_some_and(|budget| budget.revision == *revision)
        };
        rows && match work {
            Work::Drop(_) => true,
            Work::Reserve((name, revision), _) => {
                self.world.reservations.get(name).is_some_and(|record| record.revision == *revision)
            }
            Work::Evict(departure) => departure.budgets.iter().all(allows),
            Work::Accepted(work, queues) => {
                self.units[&work.unit.0].1 == work.unit_revision.0
                    && queues.iter().all(is_now)
                    && work.budgets.iter().all(allows)
            }
        }
    }

    fn commit(&mut self, refuse: bool) {
        let Some(work) = self.in_flight.pop_front() else { return };
        let allowed = !refuse && self.is_allowed(&work);
        let revision = if allowed { Some(Revision(self.write(Self::changes(&work)))) } else { None };
        match (work, revision) {
            (Work::Accepted(accepted, _), Some(revision)) => self.binder.commit(accepted.ticket, revision),
            (Work::Accepted(accepted, _), None) => self.binder.take_back(accepted.ticket),
            (Work::Drop(holds), None) => self.binder.keep_holds(&holds),
            (Work::Evict(gone), None) => self.binder.departure_refused(gone.unit, &gone.evict),
            (Work::Reserve(_, holds), None) => self.binder.unreserve(&holds),
            (Work::Drop(_) | Work::Evict(_) | Work::Reserve(..), Some(_)) => {}
        }
    }

    fn holds(&mut self) {
        for work in self.binder.take_hold_work() {
            self.in_flight.push_back(match work {
                HoldWork::Bind(accepted) => Work::Accepted(accepted, Vec::new()),
                HoldWork::Drop { holds, .. } => Work::Drop(holds),
                HoldWork::Reserve { reservation, holds } => Work::Reserve(reservation, holds),
            });
        }
    }

    fn end(&mut self, unit: UnitId, ordinal: u32) {
        let Some(row) = self.rows.get(&unit).map(|rows| rows.row(ordinal)) else { return };
        if row.phase.is_live() {
            let statuses = Statuses {
                ordinals: vec![ordinal],
                incarnations: vec![row.incarnation],
                phases: vec![Phase::Stopped],
                ..Statuses::default()
            };
            self.write(vec![Change::Rows(unit, RunChange::Statuses(statuses))]);
        }
    }

    fn end_evicted(&mut self, n: usize) {
        let leaving = self.rows.iter().flat_map(|(unit, rows)| {
            let evicting = rows.live().filter(|(_, row)| row.eviction.is_some());
            evicting.map(|(ordinal, _)| (*unit, ordinal)).collect::<Vec<_>>()
        });
        for (unit, ordinal) in leaving.take(n).collect::<Vec<_>>() {
            self.end(unit, ordinal);
        }
    }

    fn restart(&mut self) {
        self.in_flight.clear();
        self.unread.clear();
        self.binder = Binder::new();
        self.epoch += 1;
        self.binder.lead(Epoch(self.epoch), HOLD_MS, 0);
        self.binder.gather_for(HOLD_MS);
        let revision = Revision(u64::try_from(self.commits.len()).unwrap());
        let world = &self.world;
        let mut put = |change, at| self.binder.on_change(change, at, 1);
        for node in world.nodes.values() {
            node.spec
                .iter()
                .for_each(|spec| put(Change::Put(Record::NodeSpec(spec.value.clone())), spec.revision));
            node.report.iter().for_each(|report| {
                put(Change::Put(Record::NodeReport(report.value.clone())), report.revision)
            });
        }
        for unit in world.units.values() {
            unit.record
                .iter()
                .for_each(|spec| put(Change::Put(Record::Unit(Arc::clone(&spec.value))), spec.revision));
        }
        for queue in world.queues.values() {
            put(Change::Put(Record::Queue(Arc::clone(&queue.value))), queue.revision);
        }
        for budget in world.budgets.values() {
            put(Change::Put(Record::Budget(Arc::clone(&budget.value))), budget.revision);
        }
        for spec in world.reservations.values() {
            put(Change::Put(Record::Reservation(Arc::clone(&spec.value))), spec.revision);
        }
        for hold in world.holds.values() {
            put(Change::Put(Record::Hold(Arc::clone(&hold.value))), hold.revision);
        }
        for (unit, rows) in &self.rows {
            put(Change::RowsLoaded(*unit, rows.clone()), revision);
        }
        self.binder.on_revision(revision);
        self.binder.on_wall(self.now_ms);
    }

    pub(super) fn step(&mut self, step: &Step) {
        match *step {
            Step::Decide { unit, n } => self.decide(unit, n),
            Step::Gather { unit, from } => self.gather(unit, from),
            Step::Commit => self.commit(false),
            Step::Refuse => self.commit(true),
            Step::Read => self.read(),
            Step::EndEvicted { n } => self.end_evicted(n),
            Step::End { unit, ordinal } => self.end(UnitId(unit), ordinal),
            Step::Holds => self.holds(),
            Step::Requeue => {
                for work in self.binder.take_requeues(10) {
                    let change = RunChange::Requeue(work.requeue.clone());
                    let is_allowed =
                        self.rows.get(&work.unit).is_some_and(|rows| rows.check(&change).is_ok());
                    if is_allowed {
                        self.write(vec![Change::Rows(work.unit, change)]);
                    } else {
                        self.binder.requeue_refused(&work);
                    }
                }
            }
            Step::Unit { unit, replicas, cancelled, suspended } => {
                let mut record = self.units[&unit].0.clone().replicas(replicas).suspended(suspended);
                record.status.cancelled |= cancelled;
                self.put_unit(record);
            }
            Step::Ready { node, ready } => {
                self.write(vec![Change::Put(Record::NodeReport(NodeReport {
                    ready,
                    ..report(node, 1000, 2)
                }))]);
            }
            Step::Later { ms } => {
                self.now_ms += ms;
                self.binder.on_wall(self.now_ms);
            }
            Step::Queue { path, min, max } => {
                let of =
                    |amount: Option<i64>| amount.map(|amount| (CPU.to_owned(), amount)).into_iter().collect();
                let (min, max) = (of(min), of(max));
                self.write(vec![Change::Put(Record::Queue(Arc::new(QueueSpec {
                    min,
                    max,
                    ..QueueSpec::new(path)
                })))]);
            }
            Step::Run => self.run_bound(),
            Step::Budget { name, limit } => self.put_budget(name, limit),
            Step::Drain { node, n } => self.drain(node, n),
            Step::Reserve { name, slots, milli } => self.reserve(name, slots, milli),
            Step::Enter { unit, n } => self.enter(unit, n),
            Step::Restart => self.restart(),
        }
    }

    fn run_bound(&mut self) {
        let bound = self.rows.iter().flat_map(|(unit, rows)| {
            let bound = rows.live().filter(|(_, row)| row.phase == Phase::Bound);
            bound.map(|(ordinal, row)| (*unit, ordinal, row.incarnation)).collect::<Vec<_>>()
        });
        for (unit, ordinal, incarnation) in bound.collect::<Vec<_>>() {
            let statuses = Statuses {
                ordinals: vec![ordinal],
                incarnations: vec![incarnation],
                phases: vec![Phase::Running],
                ..Statuses::default()
            };
            self.write(vec![Change::Rows(unit, RunChange::Statuses(statuses))]);
        }
    }

    fn put_budget(&mut self, name: &'static str, limit: Option<Limit>) {
        let is_there = self.world.budgets.contains_key(name);
        let Some(limit) = limit else {
            if is_there {
                self.write(vec![Change::Gone(RecordKey::Budget(name.to_owned()))]);
            }
            return;
        };
        let spec =
            BudgetSpec { name: name.to_owned(), namespace: "default".to_owned(), ..BudgetSpec::default() };
        let spec = match name {
            "low" => BudgetSpec { unit: "unit1".to_owned(), limit, ..spec },
            _ => BudgetSpec { selector: [("parity".to_owned(), "odd".to_owned())].into(), limit, ..spec },
        };
        self.write(vec![Change::Put(Record::Budget(Arc::new(spec)))]);
    }

    /// Asks for so many of each unit on a node, as who knows nothing of budgets; with 0 the drain is over.
    fn drain(&mut self, id: u32, n: usize) {
        let drain = (n > 0).then_some(Drain { since_ms: 1, deadline_ms: None, running_units: 0 });
        self.write(vec![Change::Put(Record::NodeSpec(NodeSpec { drain, ..node(id) }))]);
        for unit in (1..=5).map(UnitId) {
            let Some(rows) = self.binder.cluster().rows().of(unit).cloned() else { continue };
            let there = rows.live().filter(|(_, row)| row.eviction.is_none() && row.node == NodeId(id));
            let (ordinals, incarnations) =
                there.take(n).map(|(ordinal, row)| (ordinal, row.incarnation)).unzip();
            let reason = EvictionReason::Drained;
            let evict = Evict { ordinals, incarnations, reason, by: String::new(), preemptor: UnitId(0) };
            self.in_flight.extend(self.binder.depart(unit, evict).map(Work::Evict));
        }
    }

    /// Everything under way comes to its end.
    pub(super) fn settle(&mut self) {
        for _ in 0..6 {
            while !self.in_flight.is_empty() {
                self.commit(false);
            }
            self.read();
            self.end_evicted(usize::MAX);
            self.read();
            self.now_ms += 10_000;
            self.binder.on_wall(self.now_ms);
            self.holds();
        }
    }

    /// The binder's picture is that of one that begins now.
    pub(super) fn assert_same_picture(&mut self) {
        let taken = |binder: &Binder| -> Vec<_> {
            (1..=3).map(|id| binder.cluster().free().node_state(NodeId(id)).unwrap()).collect()
        };
        let (mine, used) =
            (taken(&self.binder), self.binder.picture.quotas.quota().usage().bound(QueueIdx::DEFAULT).0);
        self.restart();
        assert_eq!(mine, taken(&self.binder));
        assert_eq!(used, self.binder.picture.quotas.quota().usage().bound(QueueIdx::DEFAULT).0);
    }

    pub(super) fn judge(&self) {
        let up_to = Revision(u64::try_from(self.commits.len()).unwrap());
        let evidence = Evidence {
            listed: self.world.clone(),
            listed_again: self.world.clone(),
            history: History {
                floor: Revision(1),
                commits: self.commits.clone(),
                up_to,
                ..History::default()
            },
            ..Evidence::default()
        };
        for report in godel_audit::check_all(&evidence) {
            if matches!(report.invariant, Invariant::I1 | Invariant::I4 | Invariant::I5 | Invariant::I6) {
                assert!(!report.has_failed(), "{report}");
            }
        }
    }
}
