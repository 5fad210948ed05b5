//! The auditor over whole histories, with what state's store keeps of them.

use std::{collections::BTreeMap, sync::Arc};

use godel_audit::{Commit, Evidence, InvariantReport, check_all};
use godel_base::{
    ids::{HoldId, NodeId, Revision, RunningUnitId, UnitId},
    resources::CPU,
};
use godel_domain::{
    change::Change,
    hold::Hold,
    queue_spec::QueueSpec,
    records::{Record, RecordKey},
    running_units::{Bind, Evict, EvictionReason, Phase, PreemptionTerms, RunChange, Statuses},
    submission::GroupSubmission,
    unit::{UnitRecord, WorkloadClass},
};
use godel_testkit::BuildUnit as _;

use super::{
    Checksum, Done, Size, Work,
    world::{equal_nodes, plain, unit},
};

/// Running units of a unit.
const REPLICAS: u32 = 1_000;
/// Of them reported on at once.
const N_REPORTED: usize = 100;
/// Teams with a queue each, which two levels pay for.
const N_TEAMS: u64 = 4;
/// Running units on each node of a full cluster.
const N_ON_NODE: u32 = 20;
const COMMIT_MS: i64 = 10;

struct Auditing {
    evidence: Evidence,
    reports: Vec<InvariantReport>,
    n_placements: u64,
}

impl Auditing {
    /// Nodes, and queues that allow everything.
    fn new(n_nodes: u32) -> Self {
        let mut new = Self { evidence: Evidence::default(), reports: Vec::new(), n_placements: 0 };
        new.evidence.busy = Some("a scenario".to_owned());
        new.commit(equal_nodes(n_nodes));
        let queues = (0..N_TEAMS).flat_map(|team| [format!("team-{team}"), queue(team)]);
        let max: BTreeMap<String, i64> = [(CPU.to_owned(), i64::MAX / 2)].into();
        let spec = |path: String| QueueSpec { max: max.clone(), ..QueueSpec::new(&path) };
        new.commit(queues.map(|path| Change::Put(Record::Queue(Arc::new(spec(path))))).collect());
        new
    }

    fn commit(&mut self, changes: Vec<Change>) {
        let revision = Revision(self.evidence.listed.revision.0 + 1);
        let commit = Commit { revision, time_ms: COMMIT_MS * revision.0.cast_signed(), changes };
        self.evidence.listed.apply(&commit, |_, _| {});
        self.evidence.history.up_to = revision;
        self.evidence.history.commits.push(commit);
    }

    fn submit(&mut self, id: u64, priority: i32, group: GroupSubmission) -> UnitRecord {
        let unit = unit(id, WorkloadClass::Service, REPLICAS, group);
        let spec = unit.priority(priority).queue(queue(id % N_TEAMS));
        self.commit(vec![Change::Put(Record::Unit(Arc::new(spec.clone())))]);
        spec
    }

    /// The binding of all of a unit, from a node on.
    fn bind(&mut self, record: &UnitRecord, node: impl Fn(u32) -> NodeId) -> Change {
        self.n_placements += u64::from(REPLICAS);
        let standing = PreemptionTerms {
            priority: record.spec.priority,
            preemptible: true,
            min_member: 1,
            queue: Some(record.spec.queue.as_str().into()),
            ..PreemptionTerms::default()
        };
        let bind = Bind {
            demand: Arc::new(record.spec.task_groups[0].template.demand.clone()),
            standing: Some(Arc::new(standing)),
            ordinals: (0..REPLICAS).collect(),
            nodes: (0..REPLICAS).map(node).collect(),
            ..Bind::default()
        };
        Change::Rows(record.id, RunChange::Bind(bind))
    }

    fn report(&mut self, unit: UnitId, ordinals: &[u32], phase: Phase) {
        for ordinals in ordinals.chunks(N_REPORTED) {
            let (ordinals, phases) = (ordinals.to_vec(), vec![phase; ordinals.len()]);
            let statuses = Statuses { ordinals, phases, ..Statuses::default() };
            self.commit(vec![Change::Rows(unit, RunChange::Statuses(statuses))]);
        }
    }

    /// One running unit of a unit leaves on each node; what comes in their place takes as much.
    fn preempt(&mut self, victim: &UnitRecord, preemptor: &UnitRecord, node: impl Fn(u32) -> NodeId) {
        let ordinals: Vec<u32> = (0..REPLICAS).collect();
        let evict = Evict {
            ordinals: ordinals.clone(),
            incarnations: Vec::new(),
            reason: EvictionReason::Preempted,
            by: String::new(),
            preemptor: preemptor.id,
        };
        let judged = self.evidence.listed.revision;
        let id = |ordinal: u32| HoldId(preemptor.id.0 * u64::from(REPLICAS) + u64::from(ordinal));
        let hold = |ordinal: u32| Hold {
            id: id(ordinal),
            node: node(ordinal),
            unit: preemptor.id,
            demand: Arc::new(preemptor.spec.task_groups[0].template.demand.clone()),
            ordinals: vec![ordinal],
            victims: vec![RunningUnitId::new(victim.id, ordinal, 0)],
            expires_ms: i64::MAX,
            queue: Some(preemptor.spec.queue.as_str().into()),
            judged,
            ..Hold::default()
        };
        let holds = ordinals.iter().map(|ordinal| Change::Put(Record::Hold(Arc::new(hold(*ordinal)))));
        let evict = Change::Rows(victim.id, RunChange::Evict(evict));
        self.commit([evict].into_iter().chain(holds).collect());
        self.report(victim.id, &ordinals, Phase::Stopped);
        let bind = self.bind(preemptor, node);
        let ended = ordinals.iter().map(|ordinal| Change::Gone(RecordKey::Hold(id(*ordinal))));
        self.commit(ended.chain([bind]).collect());
    }

    fn ready(mut self) -> Box<dyn Work> {
        self.evidence.listed_again = self.evidence.listed.clone();
        Box::new(self)
    }
}

impl Work for Auditing {
    fn run(&mut self) {
        self.reports = check_all(&self.evidence);
    }

    /// What was placed in the history, if it is a good one.
    fn done(&self) -> Done {
        let mut checksum = Checksum::default();
        self.reports.iter().for_each(|report| checksum.add_text(&report.to_string()));
        let is_good = !self.reports.iter().any(InvariantReport::has_failed);
        Done { n_ops: if is_good { self.n_placements } else { 0 }, checksum: checksum.0 }
    }
}

fn queue(team: u64) -> String {
    format!("team-{team}.prod")
}

/// Units that come, run and end.
pub(super) fn service(size: Size) -> Box<dyn Work> {
    let (n_nodes, n_units) = (size.pick(10_000, 1_000), u64::from(size.pick(300, 20)));
    let mut auditing = Auditing::new(n_nodes);
    for id in 1..=n_units {
        let spec = auditing.submit(id, 0, plain());
        let bind = auditing.bind(&spec, |ordinal| NodeId(1 + ordinal % n_nodes));
        auditing.commit(vec![bind]);
        let ordinals: Vec<u32> = (0..REPLICAS).collect();
        auditing.report(spec.id, &ordinals, Phase::Running);
        auditing.report(spec.id, &ordinals, Phase::Succeeded);
    }
    auditing.ready()
}

/// A full cluster in which each unit that comes has another one leave.
pub(super) fn preempt(size: Size) -> Box<dyn Work> {
    let n_units = u64::from(size.pick(100, 10));
    let requests = vec![(CPU.to_owned(), 100_000 / i64::from(N_ON_NODE))];
    let twentieth = || GroupSubmission { requests: requests.clone(), ..GroupSubmission::default() };
    let n_nodes = u32::try_from(n_units).unwrap_or(u32::MAX) * REPLICAS / N_ON_NODE;
    let place = |id: u64| {
        let first = u32::try_from(id).unwrap_or(u32::MAX) * REPLICAS;
        move |ordinal: u32| NodeId(1 + (first + ordinal) % n_nodes)
    };
    let mut auditing = Auditing::new(n_nodes);
    let mut victims = Vec::new();
    for id in 1..=n_units {
        let spec = auditing.submit(id, 1, twentieth());
        let bind = auditing.bind(&spec, place(id));
        auditing.commit(vec![bind]);
        victims.push(spec);
    }
    for victim in victims {
        let preemptor = auditing.submit(n_units + victim.id.0, 2, twentieth());
        auditing.preempt(&victim, &preemptor, place(victim.id.0));
    }
    auditing.ready()
}
