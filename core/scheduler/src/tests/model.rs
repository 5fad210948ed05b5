//! Random work against a naive binder: nothing that fits is left over, nothing is placed twice or where it does
//! not fit, whatever is switched on.

use godel_domain::{
    change::PartitionMode,
    records::Record,
    running_units::{Phase, RunningUnits, Statuses},
};
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    /// A unit: replicas, whole or not, kind of demand, priority.
    Submit {
        replicas: u32,
        is_gang: bool,
        kind: usize,
        priority: i32,
    },
    /// The n-th bound running unit ends.
    End(usize),
    Cordon(usize, bool),
    /// A node is added: cpu, GPUs.
    Join(i64, usize),
    Revoke(usize),
    /// Nodes are listed as other schedulers' than before.
    Share(u32),
    /// One round: all schedulers step, the binder decides, everybody sees it.
    Round(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1..7u32, any::<bool>(), 0..5usize, -1..2i32)
            .prop_map(|(replicas, is_gang, kind, priority)| Op::Submit { replicas, is_gang, kind, priority }),
        3 => (0..50usize).prop_map(Op::End),
        1 => (0..6usize, any::<bool>()).prop_map(|(node, cordoned)| Op::Cordon(node, cordoned)),
        1 => (1..9i64, 0..3usize).prop_map(|(cpu, gpus)| Op::Join(cpu * 1000, gpus)),
        1 => (0..20usize).prop_map(Op::Revoke),
        1 => (1..50u32).prop_map(Op::Share),
        4 => (1..5usize).prop_map(Op::Round),
    ]
}

fn demand(kind: usize) -> Demand {
    let (requests, devices) = match kind {
        0 => (resources(1000, 1), Vec::new()),
        1 => (resources(3000, 1), Vec::new()),
        2 => (resources(500, 1), gpus(1, 300, &[])),
        3 => (resources(500, 1), gpus(1, 700, &["A"])),
        _ => (resources(1000, 1), gpus(2, 1000, &[])),
    };
    Demand { requests, devices, host_ports: Vec::new(), zones: None }
}

struct World {
    binder: NaiveBinder,
    schedulers: Vec<Scheduler>,
    specs: Vec<UnitRecord>,
    /// By unit: scheduler, or none once revoked.
    owner: Vec<Option<usize>>,
    now: Millis,
    log: Vec<Step>,
    partition: Partition,
    /// Between the ids of two nodes: with a large one few share a block, and most of its places are empty.
    stride: u32,
}

impl World {
    fn new(configs: &[Config], mode: PartitionMode, stride: u32) -> Self {
        let schedulers: Vec<Scheduler> =
            (1u64..).zip(configs).map(|(seed, config)| Scheduler::new(config.clone(), seed)).collect();
        let names = configs.iter().map(|config| config.name.clone()).collect();
        let partition = Partition { mode, schedulers: names, ..Partition::default() };
        let binder = NaiveBinder::default();
        let mut world = Self {
            binder,
            schedulers,
            specs: Vec::new(),
            owner: Vec::new(),
            now: Millis(0),
            log: Vec::new(),
            partition,
            stride,
        };
        world.share(Vec::new());
        for cpu in [4000, 8000, 2000] {
            world.join(cpu, 2);
        }
        world
    }

    fn share(&mut self, slots: Vec<(NodeId, u32)>) {
        self.partition =
            Partition { slots, generation: self.partition.generation + 1, ..self.partition.clone() };
        for scheduler in &mut self.schedulers {
            scheduler.on_partition(&self.partition);
        }
    }

    fn tell(&mut self, change: &Change) {
        for scheduler in &mut self.schedulers {
            scheduler.load(change, Revision(self.binder.revision), 0, self.now);
        }
    }

    fn join(&mut self, cpu: i64, n_gpus: usize) {
        let n = u32::try_from(self.binder.nodes.len()).unwrap();
        let id = n * self.stride + 1;
        let model = if n.is_multiple_of(2) { "A" } else { "B" };
        self.binder.revision += 1;
        self.binder.nodes.insert(NodeId(id), NaiveNode::new(cpu, 100, n_gpus, model));
        self.tell(&Change::Put(Record::NodeReport(node_report(id, resources(cpu, 100), n_gpus, model))));
        self.tell(&Change::Put(Record::NodeSpec(node_spec(id))));
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Submit { replicas, is_gang, kind, priority } => {
                let id = self.specs.len() as u64 + 1;
                let min_member = if is_gang { replicas } else { 1 };
                let spec = unit(id, replicas, min_member, demand(kind)).priority(priority);
                let owner = self.specs.len() % self.schedulers.len();
                self.schedulers[owner].on_assign(&assignment(&spec, Revision(1), &all(&spec), 0), self.now);
                self.specs.push(spec);
                self.owner.push(Some(owner));
            }
            Op::End(nth) => self.end(nth),
            Op::Cordon(nth, cordoned) => {
                let Some(id) = self.binder.nodes.keys().nth(nth).copied() else { return };
                self.binder.revision += 1;
                self.binder.nodes.get_mut(&id).unwrap().cordoned = cordoned;
                self.tell(&Change::Put(Record::NodeSpec(NodeSpec { cordoned, ..node_spec(id.0) })));
            }
            Op::Join(cpu, n_gpus) => self.join(cpu, n_gpus),
            Op::Revoke(nth) => {
                if let Some(Some(owner)) = self.owner.get(nth).copied() {
                    self.schedulers[owner].on_revoke(self.specs[nth].id);
                    self.owner[nth] = None;
                }
            }
            Op::Share(by) => {
                let n = u32::try_from(self.schedulers.len()).unwrap();
                let listed = self.binder.nodes.keys().filter(|id| id.0 % 5 != by % 5);
                self.share(listed.map(|id| (*id, id.0 / by % n)).collect());
            }
            Op::Round(budget) => self.round(budget),
        }
    }

    fn end(&mut self, nth: usize) {
        let live: Vec<(UnitId, u32)> =
            self.binder.bound.iter().filter(|(_, at)| at.0 != NodeId(0)).map(|(key, _)| *key).collect();
        let Some(&(unit, ordinal)) = live.get(nth % live.len().max(1)) else { return };
        assert!(self.binder.end(unit, ordinal));
        let statuses =
            Statuses { ordinals: vec![ordinal], phases: vec![Phase::Succeeded], ..Statuses::default() };
        self.tell(&Change::Rows(unit, RunChange::Statuses(statuses)));
    }

    fn round(&mut self, budget: usize) {
        self.now = self.now.plus(1);
        let now = self.now;
        let steps: Vec<Step> =
            self.schedulers.iter_mut().map(|scheduler| scheduler.step(now, budget)).collect();
        for (scheduler, step) in self.schedulers.iter_mut().zip(&steps) {
            call(scheduler, &step.rooms);
        }
        let mut changes = Vec::new();
        for (idx, step) in steps.iter().enumerate() {
            for decision in &step.decisions {
                let spec = &self.specs[usize::try_from(decision.unit.0).unwrap() - 1];
                let (outcome, watched) = self.binder.decide(spec, decision);
                self.schedulers[idx].on_outcome(&outcome, now);
                changes.extend(watched);
            }
        }
        self.log.extend(steps);
        for change in changes {
            self.tell(&change);
        }
    }

    /// Lets everything come to rest.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            match self.schedulers.iter().filter_map(Scheduler::next_wake).min() {
                None => return,
                Some(at) => self.now = self.now.max(at),
            }
            self.round(3);
        }
        panic!(
            "it never comes to rest: {:?}",
            self.schedulers.iter().map(Scheduler::stats).collect::<Vec<_>>()
        );
    }

    /// Of the units still assigned, none could be helped.
    fn check(&self) {
        for (record, owner) in self.specs.iter().zip(&self.owner) {
            let Some(owner) = owner else { continue };
            let is_bound = |ordinal: &u32| self.binder.bound.contains_key(&(record.id, *ordinal));
            let n_bound = (0..record.spec.replicas()).filter(is_bound).count();
            let is_held = self.schedulers[*owner].inventory().iter().any(|(unit, _)| *unit == record.id);
            assert_eq!(
                is_held,
                n_bound < record.spec.replicas() as usize,
                "{} has {n_bound} bound",
                record.spec.name
            );
            let demand = &record.spec.task_groups[0].template.demand;
            let needed = (record.spec.min_member as usize).saturating_sub(n_bound).max(1);
            let n_fit = self.binder.how_many(demand);
            assert!(!is_held || n_fit < needed, "{}: {n_fit} of {needed} needed would fit", record.spec.name);
        }
        for scheduler in &self.schedulers {
            let stats = scheduler.stats();
            assert_eq!((stats.ready_units, stats.backoff_units, stats.in_flight), (0, 0, 0));
            assert_eq!((stats.running_units, stats.parked_units), (0, stats.units));
            for (id, node) in &self.binder.nodes {
                let (allocated, free) = scheduler.picture.cluster.free().node_state(*id).unwrap();
                assert_eq!(allocated.get(CPU), node.capacity[0] - node.free[0], "{id}");
                assert_eq!(free.iter().map(|left| i64::from(*left)).collect::<Vec<_>>(), node.gpus, "{id}");
            }
        }
    }
}

fn config(name: &str, cache: bool, limit_scan: bool, surplus: u32) -> Config {
    Config { name: name.to_owned(), cache, limit_scan, surplus, ..Config::default() }
}

/// With small ones scans end early, with large ones lists serve several units.
fn surplus() -> impl Strategy<Value = u32> {
    prop_oneof![0..3u32, 8..40u32]
}

fn stride() -> impl Strategy<Value = u32> {
    prop_oneof![Just(1u32), 10..40u32]
}

fn run(ops: &[Op], configs: &[Config], mode: PartitionMode, stride: u32) -> World {
    let mut world = World::new(configs, mode, stride);
    for op in ops {
        world.apply(op);
    }
    world.settle();
    world.check();
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    /// Sound and complete alone: what it decides the binder takes, what it refuses fits nowhere, and parked
    /// units wake when room appears.
    #[test]
    fn alone(ops in prop::collection::vec(op(), 1..50), cache in any::<bool>(), limit in any::<bool>(), surplus in surplus(), stride in stride()) {
        let world = run(&ops, &[config("a", cache, limit, surplus)], PartitionMode::Global, stride);
        prop_assert_eq!(world.schedulers[0].stats().conflicts, 0);
    }

    /// Several at a time come to an end in which nothing that fits is left over.
    #[test]
    fn together(ops in prop::collection::vec(op(), 1..50), is_preferred in any::<bool>(), stride in stride()) {
        let mode = if is_preferred { PartitionMode::Preferred } else { PartitionMode::Global };
        run(&ops, &[config("a", true, true, 1), config("b", true, true, 20), config("c", false, true, 0)], mode, stride);
    }

    /// I9.
    #[test]
    fn equal_events_and_seed_give_equal_decisions(ops in prop::collection::vec(op(), 1..40)) {
        let configs = [config("a", true, true, 1), config("b", true, true, 20)];
        let logs = [(); 2].map(|()| run(&ops, &configs, PartitionMode::Global, 30).log);
        prop_assert_eq!(&logs[0], &logs[1]);
    }

    /// A new list in the middle changes nothing in the end.
    #[test]
    fn a_reset_in_the_middle(before in prop::collection::vec(op(), 1..25), after in prop::collection::vec(op(), 1..25)) {
        let mut world = World::new(&[config("a", true, true, 20)], PartitionMode::Global, 30);
        for op in &before {
            world.apply(op);
        }
        let units: Vec<(UnitId, RunningUnits)> = world.specs.iter()
            .filter_map(|spec| Some((spec.id, world.schedulers[0].picture.cluster.rows().of(spec.id)?.clone())))
            .collect();
        world.schedulers[0].on_reset();
        for (unit, rows) in units {
            world.tell(&Change::RowsLoaded(unit, rows));
        }
        for (id, node) in world.binder.nodes.clone() {
            let capacity = resources(node.capacity[0], node.capacity[1]);
            world.tell(&Change::Put(Record::NodeReport(node_report(id.0, capacity, node.gpus.len(), &node.model))));
            world.tell(&Change::Put(Record::NodeSpec(NodeSpec { cordoned: node.cordoned, ..node_spec(id.0) })));
        }
        for op in &after {
            world.apply(op);
        }
        world.settle();
        world.check();
    }
}
