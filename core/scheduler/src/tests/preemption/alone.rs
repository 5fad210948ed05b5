//! Random work of one scheduler that has read all that the binder has: whatever it decides the binder takes.
//!
//! About half of the cases have others leave; a third gathers room, a third has slots of a reservation.

use godel_base::ids::{Epoch, ReplicaId};
use godel_domain::{
    lifecycle,
    records::{Record, RecordKey},
    reservation_spec::ReservationSpec,
    running_units::{Evict, EvictionReason},
};
use godel_testkit::web_budget;
use proptest::prelude::*;

use super::{parts::with_another, *};

/// Queues with a guarantee of one node each, and one without.
const QUEUES: [&str; 3] = ["own", "other", "lab"];

#[derive(Clone, Debug)]
enum Op {
    Submit(Asked),
    /// The n-th bound running unit runs, or ends.
    GangTurn(usize, Phase),
    /// Who was told to leave has left.
    Leave,
    Join,
    /// A node, and what it has.
    Shrink(u32, i64),
    Cordon(u32, bool),
    /// What a queue is guaranteed.
    Queue(usize, i64),
    /// The n-th unit wants so many more of its first task group.
    Scale(usize, u32),
    Cancel(usize),
    /// So many units labelled `app: web` may be unavailable.
    Budget(u32),
    /// Slots for units labelled `app: web`.
    Reserve(u32),
    Later(u64),
}

/// A unit.
#[derive(Clone, Debug)]
struct Asked {
    replicas: u32,
    is_gang: bool,
    cpu: i64,
    gpu_milli: u32,
    priority: i32,
    queue: usize,
    is_best_effort: bool,
    is_web: bool,
    preemptible: bool,
    is_short: bool,
    /// It is its turn to gather room.
    has_turn: bool,
    /// With one replica of a second task group.
    other_cpu: Option<i64>,
}

fn asked() -> impl Strategy<Value = Asked> {
    let size =
        (1..5u32, any::<bool>(), 1..6i64, prop_oneof![4 => Just(0u32), 1 => Just(500), 1 => Just(1000)]);
    let rank = (0..4i32, 0..QUEUES.len(), prop::bool::weighted(0.15), any::<bool>());
    let rest = (prop::bool::weighted(0.8), prop::bool::weighted(0.2), any::<bool>());
    let other = prop::option::weighted(0.2, 1..6i64);
    (size, rank, rest, other).prop_map(|(size, rank, rest, other)| Asked {
        replicas: size.0,
        is_gang: size.1,
        cpu: size.2 * 200,
        gpu_milli: size.3,
        priority: rank.0,
        queue: rank.1,
        is_best_effort: rank.2,
        is_web: rank.3,
        preemptible: rest.0,
        is_short: rest.1,
        has_turn: rest.2,
        other_cpu: other.map(|cpu| cpu * 200),
    })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => asked().prop_map(Op::Submit),
        4 => (0..50usize).prop_map(|nth| Op::GangTurn(nth, Phase::Running)),
        3 => (0..50usize).prop_map(|nth| Op::GangTurn(nth, Phase::Succeeded)),
        4 => Just(Op::Leave),
        1 => Just(Op::Join),
        1 => (1..4u32, 2..6i64).prop_map(|(id, cpu)| Op::Shrink(id, cpu * 200)),
        1 => (1..4u32, any::<bool>()).prop_map(|(id, cordoned)| Op::Cordon(id, cordoned)),
        1 => (0..QUEUES.len(), 0..4i64).prop_map(|(queue, min)| Op::Queue(queue, min * 500)),
        1 => (0..20usize, 1..3u32).prop_map(|(nth, more)| Op::Scale(nth, more)),
        1 => (0..20usize).prop_map(Op::Cancel),
        1 => (0..3u32).prop_map(Op::Budget),
        1 => (0..3u32).prop_map(Op::Reserve),
        2 => (1..2_000u64).prop_map(Op::Later),
    ]
}

struct Alone {
    pair: Pair,
    specs: Vec<(UnitRecord, Revision)>,
    n_nodes: u32,
}

fn web() -> BTreeMap<String, String> {
    [("app".to_owned(), "web".to_owned())].into()
}

impl Alone {
    fn new(with_queues: bool) -> Self {
        let mut pair = Pair::new(0);
        pair.binder.lead(Epoch(1), 100_000, 0);
        pair.binder.gather_for(1_000_000);
        if with_queues {
            pair.commit(vec![queue(QUEUES[0], 1_000), queue(QUEUES[1], 1_000)]);
        }
        pair.commit(vec![Change::Put(Record::Budget(Arc::new(web_budget(1))))]);
        let mut alone = Self { pair, specs: Vec::new(), n_nodes: 0 };
        (0..3).for_each(|_| alone.join());
        alone
    }

    fn join(&mut self) {
        self.n_nodes += 1;
        let report = node_report(self.n_nodes, resources(1000, 100), 2, "A10");
        self.pair.commit(vec![
            Change::Put(Record::NodeSpec(node_spec(self.n_nodes))),
            Change::Put(Record::NodeReport(report)),
        ]);
    }

    fn submit(&mut self, asked: &Asked) {
        let id = self.specs.len() as u64 + 1;
        let devices = if asked.gpu_milli > 0 { gpus(1, asked.gpu_milli, &[]) } else { Vec::new() };
        let demand =
            Demand { requests: resources(asked.cpu, 1), devices, host_ports: Vec::new(), zones: None };
        let mut unit = ranked(id, asked.priority, asked.replicas, 1, demand);
        if let Some(cpu) = asked.other_cpu {
            unit = with_another(unit, self::cpu(cpu));
        }
        let replicas = unit.spec.replicas();
        let spec = unit
            .min_member(if asked.is_gang { replicas } else { 1 })
            .queue(QUEUES[asked.queue])
            .pool(if asked.is_best_effort { Pool::BestEffort } else { Pool::Guaranteed })
            .labels(if asked.is_web { web() } else { BTreeMap::new() })
            .preemptible(asked.preemptible)
            .active_deadline_ms(if asked.is_short { 60_000 } else { 0 });
        let revision = self.pair.commit(vec![Change::Put(Record::Unit(Arc::new(spec.clone())))]);
        self.specs.push((spec, revision));
        self.assign(id, asked.has_turn);
    }

    /// What is pending and has no room held.
    fn assign(&mut self, id: u64, has_turn: bool) {
        let (spec, revision) = &self.specs[usize::try_from(id).unwrap() - 1];
        let rows = self.pair.binder.cluster().rows().of(UnitId(id)).cloned().unwrap_or_default();
        let (ordinals, incarnations) = lifecycle::pending(spec, &rows);
        let holds = self.pair.binder.cluster().holds().all();
        let held: Vec<ReplicaId> =
            holds.iter().filter(|hold| hold.unit == UnitId(id)).flat_map(|hold| hold.replicas()).collect();
        let mut pending: Vec<ReplicaId> = ReplicaId::of_columns(&ordinals, &incarnations).collect();
        pending.retain(|wanted| !held.contains(wanted));
        let bound = u32::try_from(rows.live().count()).unwrap();
        if pending.is_empty() || (!held.is_empty() && !rows.was_placed()) {
            return;
        }
        // The dispatcher gives turns one after the other.
        let turn = has_turn && self.pair.binder.picture().gathering().is_empty();
        let permit = Permit { turn, ..Permit::default() };
        let assigned = Assignment { permit, ..assignment(spec, *revision, &pending, bound) };
        self.pair.scheduler.on_assign(&assigned, self.pair.now);
    }

    fn turn(&mut self, nth: usize, phase: Phase) {
        let mut live = Vec::new();
        for (spec, _) in &self.specs {
            let rows = self.pair.binder.cluster().rows().of(spec.id).cloned().unwrap_or_default();
            let of = rows.live().filter(|(_, row)| row.phase != phase && row.eviction.is_none());
            live.extend(of.map(|(ordinal, row)| (spec.id, ordinal, row.incarnation)));
        }
        let Some(&(unit, ordinal, incarnation)) = live.get(nth % live.len().max(1)) else { return };
        let statuses = Statuses {
            ordinals: vec![ordinal],
            incarnations: vec![incarnation],
            phases: vec![phase],
            ..Statuses::default()
        };
        self.pair.commit(vec![Change::Rows(unit, RunChange::Statuses(statuses))]);
    }

    fn leave(&mut self) {
        for idx in 0..self.specs.len() {
            let id = self.specs[idx].0.id;
            let Some(rows) = self.pair.binder.cluster().rows().of(id) else { continue };
            let leaving = rows.live().filter(|(_, row)| row.eviction.is_some());
            let (ordinals, incarnations): (Vec<u32>, Vec<u32>) =
                leaving.map(|(ordinal, row)| (ordinal, row.incarnation)).unzip();
            if !ordinals.is_empty() {
                let phases = vec![Phase::Stopped; ordinals.len()];
                let statuses = Statuses { ordinals, incarnations, phases, ..Statuses::default() };
                self.pair.commit(vec![Change::Rows(id, RunChange::Statuses(statuses))]);
            }
        }
    }

    fn change(&mut self, idx: usize, record: UnitRecord) {
        let revision = self.pair.commit(vec![Change::Put(Record::Unit(Arc::new(record.clone())))]);
        self.specs[idx] = (record, revision);
        self.pair.scheduler.on_revoke(UnitId(idx as u64 + 1));
    }

    /// Units of one task group only: ordinals of the others follow those of the first.
    fn scale(&mut self, nth: usize, more: u32) {
        let idx = nth % self.specs.len().max(1);
        let Some((record, _)) = self.specs.get(idx).filter(|(record, _)| record.spec.task_groups.len() == 1)
        else {
            return;
        };
        let replicas = record.spec.task_groups[0].replicas + more;
        self.change(idx, record.clone().replicas(replicas));
        self.assign(idx as u64 + 1, false);
    }

    fn cancel(&mut self, nth: usize) {
        let idx = nth % self.specs.len().max(1);
        let Some((spec, _)) = self.specs.get(idx) else { return };
        self.change(idx, spec.clone().cancelled(true));
        let id = UnitId(idx as u64 + 1);
        let rows = self.pair.binder.cluster().rows().of(id).cloned().unwrap_or_default();
        let live = rows.live().filter(|(_, row)| row.eviction.is_none());
        let (ordinals, incarnations) = live.map(|(ordinal, row)| (ordinal, row.incarnation)).unzip();
        let evict = Evict {
            ordinals,
            incarnations,
            reason: EvictionReason::Cancelled,
            by: String::new(),
            preemptor: UnitId(0),
        };
        self.pair.commit(vec![Change::Rows(id, RunChange::Evict(evict))]);
    }

    /// What the binder does by itself, and what it gives back to be placed.
    fn keep(&mut self) {
        while self.pair.binder.has_hold_work() {
            let works = self.pair.binder.take_hold_work();
            if works.is_empty() {
                break;
            }
            for work in works {
                match work {
                    HoldWork::Bind(accepted) => {
                        self.pair.write(&accepted);
                    }
                    HoldWork::Drop { holds, .. } => {
                        let gone = holds.iter().map(|(id, _)| Change::Gone(RecordKey::Hold(*id)));
                        self.pair.commit(gone.collect());
                    }
                    HoldWork::Reserve { holds, .. } => {
                        self.pair.commit(holds.into_iter().map(|it| Change::Put(Record::Hold(it))).collect());
                    }
                }
            }
        }
        for work in self.pair.binder.take_requeues(100) {
            self.pair.commit(vec![Change::Rows(work.unit, RunChange::Requeue(work.requeue))]);
        }
        let kept: Vec<UnitId> = self.pair.scheduler.inventory().iter().map(|(unit, _)| *unit).collect();
        for idx in 0..self.specs.len() {
            let id = self.specs[idx].0.id;
            if !kept.contains(&id) {
                self.assign(id.0, false);
            }
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Submit(asked) => self.submit(asked),
            Op::GangTurn(nth, phase) => self.turn(*nth, *phase),
            Op::Leave => self.leave(),
            Op::Join => self.join(),
            Op::Shrink(id, cpu) => {
                let report = node_report(*id, resources(*cpu, 100), 2, "A10");
                self.pair.commit(vec![Change::Put(Record::NodeReport(report))]);
            }
            Op::Cordon(id, cordoned) => {
                let spec = NodeSpec { cordoned: *cordoned, ..node_spec(*id) };
                self.pair.commit(vec![Change::Put(Record::NodeSpec(spec))]);
            }
            Op::Queue(nth, min) => {
                self.pair.commit(vec![queue(QUEUES[*nth], *min)]);
            }
            Op::Scale(nth, more) => self.scale(*nth, *more),
            Op::Cancel(nth) => self.cancel(*nth),
            Op::Budget(n) => {
                self.pair.commit(vec![Change::Put(Record::Budget(Arc::new(web_budget(*n))))]);
            }
            Op::Reserve(slots) => {
                let reservation = ReservationSpec {
                    name: "r".to_owned(),
                    namespace: "default".to_owned(),
                    selector: web(),
                    slots: *slots,
                    demand: cpu(400),
                    ..ReservationSpec::default()
                };
                self.pair.commit(vec![Change::Put(Record::Reservation(Arc::new(reservation)))]);
            }
            Op::Later(ms) => {
                self.pair.now = self.pair.now.plus(*ms);
                let wall = i64::try_from(self.pair.now.0).unwrap();
                self.pair.scheduler.on_wall(wall);
                self.pair.binder.on_wall(wall);
            }
        }
        for _ in 0..6 {
            self.keep();
            self.pair.assert_same();
            self.step();
            self.pair.assert_same();
        }
    }

    /// Nothing has happened before the first decision of a step that it does not know of; those after it may rest on what
    /// the binder has not answered.
    fn step(&mut self) {
        let step = self.pair.scheduler.step(self.pair.now, 1_000);
        for (nth, decision) in step.decisions.iter().enumerate() {
            let outcome = self.pair.decide(decision);
            let holds = self.pair.binder.cluster().holds().all();
            // Of a gang that has left, whoever is pending already is refused until all of it is.
            let is_early = |reason| reason == godel_domain::decision::RejectionReason::MinMember;
            assert!(
                nth > 0 || outcome.rejections.iter().all(|one| is_early(one.reason)),
                "{decision:?}: {:?} {holds:?}",
                outcome.rejections
            );
            self.pair.scheduler.on_outcome(&outcome, self.pair.now);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_binder_takes_what_one_scheduler_decides(ops in prop::collection::vec(op(), 1..40), with_queues in any::<bool>()) {
        let mut alone = Alone::new(with_queues);
        for op in &ops {
            alone.apply(op);
        }
        alone.pair.assert_same();
    }
}
