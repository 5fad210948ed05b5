//! Random interleavings of several schedulers' decisions, commits, refusals, node and unit changes.

use std::collections::{BTreeMap, VecDeque};

use godel_domain::records::{Record, RecordKey};
use proptest::prelude::*;

use super::{
    model::{Model, Pending},
    *,
};

const N_NODES: u32 = 4;
const N_UNITS: u64 = 5;

#[derive(Clone, Debug)]
enum Step {
    /// Places `(ordinal, node, device)`; `stale` decides on an older record of the unit, `behind` on node records of
    /// so many revisions ago.
    Decide { unit: u64, places: Vec<(u32, u32, u8)>, stale: bool, behind: u64 },
    /// Sends the last decision of a unit again.
    Repeat { unit: u64 },
    /// The oldest transaction under way commits; `read` at once or later, or even before it is answered.
    Commit { read: bool, late: bool },
    /// A queue's record is written, or deleted.
    Queue { path: &'static str, max: Option<Maxima> },
    /// The history is gone: everything is listed again.
    List,
    /// Reads everything that has committed.
    Read,
    /// The oldest transaction under way is refused.
    Refuse,
    /// A node's spec changes.
    Node { node: u32, cordoned: bool, ssd: bool, tainted: bool },
    /// A node's session is lost or found.
    Ready { node: u32, ready: bool },
    /// A unit is scaled, cancelled, suspended or resumed.
    Unit { unit: u64, replicas: u32, cancelled: bool, suspended: bool },
    /// A live running unit ends, evicted before or not.
    End { unit: u64, ordinal: u32, evicted: bool, phase: Phase },
    /// What has to come back does.
    Requeue,
    /// The lease is lost and found again.
    Lose,
}

/// Of milli-cores, thousandths of GPUs, running units.
type Maxima = (Option<i64>, Option<i64>, u32);

/// Of records that a binding rests on.
type QueueRevisions = Vec<(String, u64)>;

const QUEUES: [&str; 4] = ["a", "a.b", "a.c", "default"];

fn maxima() -> impl Strategy<Value = Option<Maxima>> {
    let cpu = prop::option::of(prop_oneof![Just(0), 0i64..3_000]);
    let milli = prop::option::weighted(0.3, 0i64..4_000);
    prop::option::weighted(0.8, (cpu, milli, prop_oneof![Just(0), 0u32..12]))
}

fn step() -> impl Strategy<Value = Step> {
    let unit = 1..=N_UNITS;
    let node = 1..=N_NODES;
    let places = prop::collection::btree_map(0u32..8, (1..=N_NODES + 1, 0u8..3), 1..6).prop_map(|places| {
        places.into_iter().map(|(ordinal, (node, device))| (ordinal, node, device)).collect()
    });
    prop_oneof![
        12 => (unit.clone(), places, prop::bool::weighted(0.1), prop_oneof![Just(0), 0u64..20])
            .prop_map(|(unit, places, stale, behind)| Step::Decide { unit, places, stale, behind }),
        2 => unit.clone().prop_map(|unit| Step::Repeat { unit }),
        6 => (any::<bool>(), any::<bool>()).prop_map(|(read, late)| Step::Commit { read, late }),
        2 => (prop::sample::select(QUEUES.to_vec()), maxima())
            .prop_map(|(path, max)| Step::Queue { path, max }),
        1 => Just(Step::List),
        2 => Just(Step::Read),
        2 => Just(Step::Refuse),
        1 => (node.clone(), prop::bool::weighted(0.2), any::<bool>(), prop::bool::weighted(0.2))
            .prop_map(|(node, cordoned, ssd, tainted)| Step::Node { node, cordoned, ssd, tainted }),
        1 => (node, prop::bool::weighted(0.7)).prop_map(|(node, ready)| Step::Ready { node, ready }),
        1 => (unit.clone(), 1u32..8, prop::bool::weighted(0.1), prop::bool::weighted(0.2))
            .prop_map(|(unit, replicas, cancelled, suspended)| Step::Unit { unit, replicas, cancelled, suspended }),
        4 => (unit, 0u32..8, any::<bool>(), prop::sample::select(vec![Phase::Stopped, Phase::Succeeded]))
            .prop_map(|(unit, ordinal, evicted, phase)| Step::End { unit, ordinal, evicted, phase }),
        2 => Just(Step::Requeue),
        1 => Just(Step::Lose),
    ]
}

/// The binder under test, the model, and what is between them.
struct Run {
    binder: Binder,
    model: Model,
    /// Revision of the last commit.
    revision: u64,
    /// Sent with what the binder had read, and the queues that it rests on; not answered.
    in_flight: VecDeque<(Box<Accepted>, Revision, QueueRevisions)>,
    /// Committed, not read by the binder yet. The model still counts them as pending.
    unread: VecDeque<(u64, Box<Accepted>)>,
    last: BTreeMap<u64, Decision>,
}

impl Run {
    fn new() -> Self {
        let mut run = Self {
            binder: Binder::new(),
            model: Model::default(),
            revision: 0,
            in_flight: VecDeque::new(),
            unread: VecDeque::new(),
            last: BTreeMap::new(),
        };
        for id in 1..=N_NODES {
            let mut spec = node(id);
            spec.labels.insert("disk".to_owned(), "ssd".to_owned());
            run.put_node(spec);
            run.put_report(report(id, 1000, 2));
        }
        for id in 1..=N_UNITS {
            let mut record = match id {
                1 => unit(id, 8, 1, demand(300, 0)),
                2 => unit(id, 8, 3, demand(250, 0)),
                3 => unit(id, 6, 6, demand(100, 400)),
                4 => unit(id, 8, 1, demand(100, 1000)),
                _ => unit(id, 4, 2, demand(400, 0)),
            };
            record.spec.queue = ["a.b", "a.b", "a.c", "a.c", "default"][id as usize - 1].to_owned();
            if id == 5 {
                record.spec.task_groups[0].template.node_selector.insert("disk".to_owned(), "ssd".to_owned());
            }
            run.put_unit(record);
        }
        run
    }

    fn commit_change(&mut self, change: Change) {
        self.read();
        self.revision += 1;
        self.binder.on_change(change, Revision(self.revision), 1);
        self.binder.on_revision(Revision(self.revision));
    }

    fn put_node(&mut self, spec: NodeSpec) {
        self.commit_change(Change::Put(Record::NodeSpec(spec.clone())));
        self.model.changed.insert(spec.id, self.revision);
        self.model.specs.insert(spec.id, (spec, self.revision));
    }

    fn put_report(&mut self, report: NodeReport) {
        self.commit_change(Change::Put(Record::NodeReport(report.clone())));
        self.model.changed.insert(report.id, self.revision);
        self.model.reports.insert(report.id, report);
    }

    fn put_unit(&mut self, record: UnitRecord) {
        self.commit_change(Change::Put(Record::Unit(Arc::new(record.clone()))));
        self.model.units.insert(record.id.0, (record, self.revision));
    }

    fn row_change(&mut self, unit: u64, change: RunChange) {
        self.commit_change(Change::Rows(UnitId(unit), change.clone()));
        self.model.apply(unit, &change, self.revision);
    }

    fn put_queue(&mut self, path: &str, max: Option<Maxima>) {
        let Some((cpu, milli, n)) = max else {
            self.commit_change(Change::Gone(RecordKey::Queue(path.to_owned())));
            self.model.queues.remove(path);
            return;
        };
        let amounts = [(CPU, cpu), ("gpu", milli)].into_iter();
        let max = amounts.filter_map(|(name, amount)| Some((name.to_owned(), amount?))).collect();
        let spec = QueueSpec { max, max_running_units: n, ..QueueSpec::new(path) };
        self.commit_change(Change::Put(Record::Queue(Arc::new(spec.clone()))));
        self.model.queues.insert(path.to_owned(), (spec, self.revision));
    }

    /// The binder lists everything, what it has not read of the watch included.
    fn list(&mut self) {
        self.binder.reset();
        for (revision, accepted) in std::mem::take(&mut self.unread) {
            self.bound(&accepted, revision);
        }
        let change = |binder: &mut Binder, change, revision| binder.on_change(change, Revision(revision), 1);
        // In another order than the records depend on each other.
        for (unit, rows) in &self.model.rows {
            change(&mut self.binder, Change::RowsLoaded(UnitId(*unit), rows.clone()), self.revision);
        }
        for (spec, revision) in self.model.units.values() {
            change(&mut self.binder, Change::Put(Record::Unit(Arc::new(spec.clone()))), *revision);
        }
        for (spec, revision) in self.model.queues.values() {
            change(&mut self.binder, Change::Put(Record::Queue(Arc::new(spec.clone()))), *revision);
        }
        for (spec, revision) in self.model.specs.values() {
            change(&mut self.binder, Change::Put(Record::NodeSpec(spec.clone())), *revision);
        }
        for (id, report) in &self.model.reports {
            change(&mut self.binder, Change::Put(Record::NodeReport(report.clone())), self.model.changed[id]);
        }
        self.assert_same_usage();
        self.binder.on_revision(Revision(self.revision));
    }

    /// The model sees a committed binding.
    fn bound(&mut self, accepted: &Accepted, revision: u64) {
        for bind in &accepted.binds {
            self.model.apply(accepted.unit.0, &RunChange::Bind(bind.clone()), revision);
            for ordinal in &bind.ordinals {
                self.model.pending.retain(|p| (p.unit, p.ordinal) != (accepted.unit.0, *ordinal));
            }
        }
    }

    /// The binder reads every commit that it has not read.
    fn read(&mut self) {
        while let Some((revision, accepted)) = self.unread.pop_front() {
            for bind in &accepted.binds {
                let change = RunChange::Bind(bind.clone());
                self.binder.on_change(Change::Rows(accepted.unit, change), Revision(revision), 1);
            }
            self.bound(&accepted, revision);
            self.assert_same_usage();
            self.binder.on_revision(Revision(revision));
        }
    }

    /// State's side of the preconditions.
    fn preconditions_hold(
        &self,
        accepted: &Accepted,
        nodes_as_of: Revision,
        queues: &[(String, u64)],
    ) -> bool {
        let unit_holds = self.model.units[&accepted.unit.0].1 == accepted.unit_revision.0;
        let mut nodes = accepted.binds.iter().flat_map(|bind| &bind.nodes);
        let queues_hold =
            self.model.queue_revisions(&self.model.units[&accepted.unit.0].0.spec.queue) == queues;
        unit_holds && queues_hold && nodes.all(|node| self.model.specs[node].1 <= nodes_as_of.0)
    }

    fn refuse(&mut self, accepted: &Accepted) {
        self.binder.take_back(accepted.ticket);
        for bind in &accepted.binds {
            for ordinal in &bind.ordinals {
                self.model.pending.retain(|p| (p.unit, p.ordinal) != (accepted.unit.0, *ordinal));
            }
        }
    }

    fn decide(&mut self, decision: &Decision) {
        let expected = self.model.judge(decision);
        // Its scheduler has read more: nothing is refused that this could end.
        let is_ahead = decision.nodes_as_of > self.binder.revision();
        let may_end = |refused: &BTreeMap<u32, RejectionReason>| {
            refused.values().any(|reason| reason.may_end_by_reading())
        };
        let expected = expected.filter(|(_, refused)| !is_ahead || !may_end(refused));
        match self.binder.check(decision) {
            Verdict::Wait(_) => assert_eq!(expected, None, "waits without a reason: {decision:?}"),
            Verdict::Reject(rejections) => {
                let (bound, refused) = expected.expect("it should wait");
                assert!(bound.is_empty(), "{bound:?} should be bound, not {rejections:?}");
                assert_eq!(by_ordinal(&rejections), refused);
            }
            Verdict::Bind(accepted) => {
                let (bound, refused) = expected.expect("it should wait");
                let devices = |bind: &Bind, idx: usize| bind.allocation(idx).devices;
                let placed = |bind: &Bind| {
                    let each = bind.ordinals.iter().enumerate();
                    each.map(|(idx, ordinal)| (*ordinal, devices(bind, idx))).collect::<Vec<_>>()
                };
                assert_eq!(accepted.binds.iter().flat_map(placed).collect::<BTreeMap<_, _>>(), bound);
                assert_eq!(by_ordinal(&accepted.rejections), refused);
                for bind in &accepted.binds {
                    for (idx, &ordinal) in bind.ordinals.iter().enumerate() {
                        self.model.pending.push(Pending {
                            unit: accepted.unit.0,
                            ordinal,
                            incarnation: bind.incarnations.get(idx).copied().unwrap_or(0),
                            node: bind.nodes[idx],
                            devices: devices(bind, idx),
                        });
                    }
                }
                let (record, _) = &self.model.units[&accepted.unit.0];
                let demand = &record.spec.task_groups[0].template.demand;
                assert!(
                    self.model.is_below_maxima(&record.spec.queue, demand),
                    "over a maximum: {decision:?}"
                );
                let mut queues: QueueRevisions = self
                    .binder
                    .picture
                    .quotas
                    .records(accepted.queue)
                    .map(|(_, path, revision)| (path.to_owned(), revision.0))
                    .collect();
                queues.reverse();
                self.in_flight.push_back((accepted, self.binder.revision(), queues));
            }
        }
    }

    fn decision(&self, unit: u64, places: &[(u32, u32, u8)], stale: bool, behind: u64) -> Decision {
        let rows = self.model.rows.get(&unit).cloned().unwrap_or_default();
        let revision = self.model.units[&unit].1;
        let has_devices = !self.model.units[&unit].0.spec.task_groups[0].template.demand.devices.is_empty();
        Decision {
            id: 1,
            claim: Claim::FreeRoom,
            unit: UnitId(unit),
            spec_revision: Revision(if stale { revision - 1 } else { revision }),
            nodes_as_of: Revision(self.revision.saturating_sub(behind)),
            groups: vec![GroupPlacement {
                group: 0,
                ordinals: places.iter().map(|place| place.0).collect(),
                incarnations: places.iter().map(|place| rows.row(place.0).incarnation).collect(),
                nodes: places.iter().map(|place| NodeId(place.1)).collect(),
                devices: places
                    .iter()
                    .map(|place| DeviceSet(if has_devices { 1 << place.2 } else { 0 }))
                    .collect(),
                zones: Vec::new(),
            }],
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Decide { unit, places, stale, behind } => {
                let decision = self.decision(unit, &places, stale, behind);
                self.decide(&decision);
                self.last.insert(unit, decision);
            }
            Step::Repeat { unit } => {
                if let Some(decision) = self.last.get(&unit).cloned() {
                    self.decide(&decision);
                }
            }
            Step::Commit { read, late } => {
                if let Some((accepted, nodes_as_of, queues)) = self.in_flight.pop_front() {
                    if self.preconditions_hold(&accepted, nodes_as_of, &queues) {
                        let ticket = accepted.ticket;
                        self.revision += 1;
                        self.unread.push_back((self.revision, accepted));
                        if late {
                            self.read();
                        }
                        self.binder.commit(ticket, Revision(self.revision));
                    } else {
                        self.refuse(&accepted);
                    }
                }
                if read {
                    self.read();
                }
            }
            Step::Queue { path, max } => self.put_queue(path, max),
            Step::List => self.list(),
            Step::Read => self.read(),
            Step::Refuse => {
                if let Some((accepted, ..)) = self.in_flight.pop_back() {
                    self.refuse(&accepted);
                }
            }
            Step::Node { node: id, cordoned, ssd, tainted } => {
                let mut spec = NodeSpec { cordoned, ..node(id) };
                spec.labels.insert("disk".to_owned(), if ssd { "ssd" } else { "hdd" }.to_owned());
                if tainted {
                    let (key, value) = ("dedicated".to_owned(), "x".to_owned());
                    spec.taints.push(Taint { key, value, effect: TaintEffect::NoSchedule, added_ms: 0 });
                }
                self.put_node(spec);
            }
            Step::Ready { node, ready } => self.put_report(NodeReport { ready, ..report(node, 1000, 2) }),
            Step::Unit { unit, replicas, cancelled, suspended } => {
                let mut record = self.model.units[&unit].0.clone().replicas(replicas).suspended(suspended);
                record.status.cancelled |= cancelled;
                self.put_unit(record);
            }
            Step::End { unit, ordinal, evicted, phase } => {
                self.read();
                let row = self.model.rows.get(&unit).map(|rows| rows.row(ordinal)).unwrap_or_default();
                if row.phase.is_live() {
                    if evicted {
                        let incarnations = vec![row.incarnation];
                        let evict = Evict { incarnations, ..eviction(&[ordinal], EvictionReason::Drained) };
                        self.row_change(unit, RunChange::Evict(evict));
                    }
                    let statuses = Statuses {
                        ordinals: vec![ordinal],
                        incarnations: vec![row.incarnation],
                        phases: vec![phase],
                        ..Statuses::default()
                    };
                    self.row_change(unit, RunChange::Statuses(statuses));
                }
            }
            Step::Requeue => {
                for work in self.binder.take_requeues(3) {
                    let (spec, revision) = &self.model.units[&work.unit.0];
                    assert_eq!(*revision, work.unit_revision.0);
                    assert!(
                        spec.is_wanted() && work.requeue.ordinals.iter().all(|o| spec.group_of(*o).is_some())
                    );
                    self.row_change(work.unit.0, RunChange::Requeue(work.requeue));
                }
            }
            Step::Lose => {
                self.binder.take_back_all();
                for (accepted, ..) in std::mem::take(&mut self.in_flight) {
                    self.refuse(&accepted);
                }
            }
        }
    }

    /// What queues use is what the model counts from scratch.
    fn assert_same_usage(&self) {
        let quota = self.binder.picture.quotas.quota();
        for path in QUEUES {
            let Some(queue) = quota.tree().find(path) else { continue };
            let used = |name| i64::try_from(quota.usage().used(queue, name)).unwrap();
            let n = i64::try_from(quota.usage().running_units(queue)).unwrap();
            assert_eq!((used(CPU), used("gpu"), n), self.model.used(path), "queue {path}");
        }
    }

    /// What the binder counts is what the model counts from scratch.
    fn assert_same(&self) {
        self.model.assert_no_over_commit();
        for id in 1..=N_NODES {
            let (cpu, milli) = self.model.taken(NodeId(id));
            let (allocated, free) = self.binder.cluster().free().node_state(NodeId(id)).unwrap();
            assert_eq!(allocated.get(CPU), cpu, "node {id}");
            assert_eq!(free, milli.iter().map(|milli| 1000 - milli).collect::<Vec<_>>(), "node {id}");
        }
        self.assert_same_usage();
        assert_eq!(self.binder.n_open(), self.in_flight.len() + self.unread.len());
    }
}

fn by_ordinal(rejections: &[Rejection]) -> BTreeMap<u32, RejectionReason> {
    let mut reasons = BTreeMap::new();
    for rejection in rejections {
        for &ordinal in &rejection.ordinals {
            assert!(
                reasons.insert(ordinal, rejection.reason).is_none(),
                "ordinal {ordinal} is refused twice"
            );
        }
    }
    reasons
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Never over-commits with everything under way counted, refuses only with a true reason, whole gangs or
    /// nothing, gives back exactly what it took.
    #[test]
    fn agrees_with_a_checker_that_recomputes_everything(steps in prop::collection::vec(step(), 1..80)) {
        let mut run = Run::new();
        for step in steps {
            run.apply(step);
            run.assert_same();
        }
    }
}
