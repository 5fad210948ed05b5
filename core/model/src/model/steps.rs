//! What happens to the cluster from outside: requests, administrators, faults.

use std::sync::Arc;

use godel_base::{
    ids::{NodeId, UnitId},
    resources::{CPU, Resources},
};
use godel_core_dispatcher::{ModeChoice, SchedulerCounts, record_changes::Edit};
use godel_domain::{
    budget_spec::{Amount, BudgetSpec, Limit},
    change::{Change, PartitionMode},
    node::{Drain, NodeReport, NodeSpec, NodeUsage},
    node_load::{LoadAmounts, NodeLoad, ZoneLoad},
    pause::Scope,
    record_change::RecordChange,
    records::{Record, RecordKey},
    unit::UnitSpec,
};

use super::{
    dispatcher::Wish,
    identities, movements,
    net::{Line, Part},
    numbers::{Numbers, idx},
    people,
    reach::Mark,
    rescheduler::Death,
    units,
    world::Model,
};

/// Kinds of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepKind {
    Submit,
    /// Units of which nothing but room and their queue keeps one waiting.
    SubmitPlain,
    Cancel,
    Suspend,
    Resume,
    Scale,
    Stop,
    Succeed,
    Fail,
    Queue,
    QueueGone,
    /// A queue gets another weight and guarantee.
    Weigh,
    Class,
    Reserve,
    Cordon,
    Drain,
    Open,
    Shrink,
    Usage,
    Pause,
    Unpause,
    Mode,
    Count,
    /// Somebody asks the rescheduler to run a policy, to make room for a unit, or to end what it does.
    Move,
    Join,
    Leave,
    /// Faults from here on.
    Lose,
    Kill,
    LoseLease,
    Cut,
    Relist,
    /// The rescheduler dies amid a move.
    KillMover,
    /// A node is lost amid a move.
    LoseMoving,
    /// The process of an agent dies; what it runs goes on.
    KillAgent,
    /// It dies with all that it runs.
    KillNode,
    /// The session of an agent breaks.
    CutAgent,
    /// The certificate of an agent expires, and is renewed after a while, or not.
    ExpireLeaf,
    /// An agent is revoked, and let in again after a while, or not.
    RevokeAgent,
}

/// What may happen by itself, by weight.
const QUIET: &[(u64, StepKind)] = &[
    (30, StepKind::Submit),
    (2, StepKind::Cancel),
    (2, StepKind::Suspend),
    (3, StepKind::Resume),
    (2, StepKind::Scale),
    (1, StepKind::Stop),
    (8, StepKind::Succeed),
    (2, StepKind::Fail),
    (5, StepKind::Queue),
    (1, StepKind::QueueGone),
    (1, StepKind::Class),
    (3, StepKind::Reserve),
    (1, StepKind::Cordon),
    (1, StepKind::Drain),
    (3, StepKind::Open),
    (1, StepKind::Shrink),
    (4, StepKind::Usage),
    (1, StepKind::Pause),
    (2, StepKind::Unpause),
    (2, StepKind::Mode),
    (1, StepKind::Count),
    (1, StepKind::Join),
    (1, StepKind::Leave),
];

/// Faults, by weight.
const FAULTS: &[(u64, StepKind)] = &[
    (3, StepKind::Lose),
    (4, StepKind::Kill),
    (3, StepKind::LoseLease),
    (4, StepKind::Cut),
    (2, StepKind::Relist),
];

/// The same where running units move.
const MOVE_FAULTS: &[(u64, StepKind)] = &[
    (2, StepKind::Lose),
    (4, StepKind::Kill),
    (3, StepKind::LoseLease),
    (3, StepKind::Cut),
    (2, StepKind::Relist),
    (4, StepKind::KillMover),
    (3, StepKind::LoseMoving),
];

/// What happens on nodes that are full all the time, by weight.
const FULL: &[(u64, StepKind)] = &[
    (8, StepKind::SubmitPlain),
    (1, StepKind::Submit),
    (30, StepKind::Succeed),
    (2, StepKind::Cancel),
    (1, StepKind::Weigh),
    (1, StepKind::Usage),
];
/// Steps of such a case.
const N_FULL: u64 = 80;

/// Something that happens `after_ms` the one before; the numbers say to whom and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ModelStep {
    pub(super) after_ms: u64,
    pub(super) kind: StepKind,
    pub(super) to: u64,
    pub(super) how: u64,
}

/// The steps of a case: `n` of them, so many of a hundred faults; of one that `moves` every fourth one or so is a move.
pub(super) fn draw(
    n: u64,
    (percent_faults, moves): (u64, bool),
    gap_ms: u64,
    numbers: &mut Numbers,
) -> Vec<ModelStep> {
    let mut steps = Vec::new();
    for at in 0..n {
        let is_fault = numbers.chance(percent_faults);
        let kind = match at {
            // Something has to be there first.
            0..4 => StepKind::Submit,
            4 if numbers.chance(30) => StepKind::Reserve,
            _ if is_fault => numbers.draw(if moves { MOVE_FAULTS } else { FAULTS }),
            _ if moves && numbers.chance(45) => StepKind::Move,
            _ => numbers.draw(QUIET),
        };
        let after_ms = if numbers.chance(40) { 0 } else { numbers.below(gap_ms + 1) };
        steps.push(ModelStep { after_ms, kind, to: numbers.next(), how: numbers.next() });
    }
    steps
}

/// Faults of agents, by weight.
const AGENT_FAULTS: &[(u64, StepKind)] =
    &[(3, StepKind::KillAgent), (3, StepKind::KillNode), (4, StepKind::CutAgent)];
/// At most so many of them in a case.
const N_AGENT_FAULTS_MAX: u64 = 2;

/// Adds faults of agents to the steps of a case, which stay as they are.
pub(super) fn add_agent_faults(steps: &mut Vec<ModelStep>, numbers: &mut Numbers) {
    for _ in 0..numbers.below(N_AGENT_FAULTS_MAX + 1) {
        let kind = numbers.draw(AGENT_FAULTS);
        let step = ModelStep { after_ms: 0, kind, to: numbers.next(), how: numbers.next() };
        // Something has to be there first.
        let at = steps.len().min(4);
        steps.insert(at + idx(numbers.next(), steps.len() - at + 1), step);
    }
}

/// What becomes of the identities of agents, by weight.
const IDENTITY_FAULTS: &[(u64, StepKind)] = &[(1, StepKind::ExpireLeaf), (1, StepKind::RevokeAgent)];
/// At most so many of them in a case.
const N_IDENTITY_FAULTS_MAX: u64 = 6;

/// Adds what becomes of the identities of agents to the steps of a case, which stay as they are.
pub(super) fn add_identity_faults(steps: &mut Vec<ModelStep>, numbers: &mut Numbers) {
    for _ in 0..=numbers.below(N_IDENTITY_FAULTS_MAX) {
        let kind = numbers.draw(IDENTITY_FAULTS);
        let step = ModelStep { after_ms: 0, kind, to: numbers.next(), how: numbers.next() };
        // Something has to be there first.
        let at = steps.len().min(4);
        steps.insert(at + idx(numbers.next(), steps.len() - at + 1), step);
    }
}

/// The steps of a case of which the nodes are full all the time: what is submitted is far more than they take.
pub(super) fn draw_full(gap_ms: u64, numbers: &mut Numbers) -> Vec<ModelStep> {
    let kind = |at: u64, numbers: &mut Numbers| match at {
        0..4 => StepKind::Weigh,
        4..20 => StepKind::SubmitPlain,
        _ => numbers.draw(FULL),
    };
    let step = |at: u64| {
        let kind = kind(at, numbers);
        let after_ms = if numbers.chance(40) { 0 } else { numbers.below(gap_ms + 1) };
        ModelStep { after_ms, kind, to: numbers.next(), how: numbers.next() }
    };
    (0..N_FULL).map(step).collect()
}

impl Model {
    fn submit(&mut self, draw: fn(u64, &mut Numbers) -> UnitSpec, numbers: &mut Numbers) {
        self.n_submitted += 1;
        let mut spec = draw(self.n_submitted, numbers);
        if self.meets {
            units::meet(&mut spec, numbers);
        }
        if self.is_large {
            units::enlarge(&mut spec, numbers);
        }
        people::submit(self, spec);
    }

    pub(super) fn step(&mut self, step: ModelStep) {
        self.net.trace(|| format!("STEP {step:?}"));
        self.binder.note_turns(&mut self.net);
        let mut numbers = Numbers::new(step.how);
        match step.kind {
            StepKind::Submit => self.submit(units::unit, &mut numbers),
            StepKind::SubmitPlain => self.submit(units::plain_unit, &mut numbers),
            StepKind::Cancel => self.wish(step.to, Wish::Cancel),
            StepKind::Suspend => self.wish(step.to, Wish::Suspend(true)),
            StepKind::Resume => self.resume(),
            StepKind::Scale => {
                let replicas = u32::try_from(numbers.below(5)).expect("small");
                // As if it had not been drawn: the rest is the same for all that scale.
                let mut rest = numbers.clone();
                let wish = match rest.chance(60) {
                    true if rest.chance(40) => Wish::Grow(step.how),
                    true => Wish::Update(step.how),
                    false => Wish::Scale(replicas),
                };
                self.wish(step.to, wish);
            }
            StepKind::Stop => {
                let comes_back = numbers.clone().chance(30);
                let wish = if comes_back { Wish::RetryReplica(step.how) } else { Wish::Stop(step.how) };
                self.wish(step.to, wish);
            }
            StepKind::Succeed | StepKind::Fail => {
                self.agents.end_one(step.to, step.kind == StepKind::Succeed, &mut self.net);
            }
            StepKind::Queue => {
                let path = numbers.pick(&units::QUEUES);
                let change = RecordChange::Put(units::queue(path, &mut numbers));
                let edit = Edit { queues: vec![change], ..Edit::default() };
                self.dispatcher.edit(&edit);
            }
            StepKind::Weigh => {
                let path = units::QUEUES[idx(step.to, units::QUEUES.len())];
                let change = RecordChange::Put(units::open_queue(path, &mut numbers));
                let edit = Edit { queues: vec![change], ..Edit::default() };
                self.dispatcher.edit(&edit);
            }
            StepKind::QueueGone => {
                let path = numbers.pick(&units::QUEUES).to_owned();
                let edit = Edit { queues: vec![RecordChange::Delete(path)], ..Edit::default() };
                self.dispatcher.edit(&edit);
            }
            StepKind::Class => {
                let class = RecordChange::Put(units::class(&mut numbers));
                let edit = Edit { classes: vec![class], ..Edit::default() };
                self.dispatcher.edit(&edit);
            }
            StepKind::Reserve => {
                let name = numbers.pick(&["r0", "r1"]);
                let change = if numbers.chance(25) {
                    RecordChange::Delete(name.to_owned())
                } else {
                    RecordChange::Put(units::reservation(name, self.net.wall_ms(), &mut numbers))
                };
                let edit = Edit { reservations: vec![change], ..Edit::default() };
                self.dispatcher.edit(&edit);
            }
            StepKind::Pause | StepKind::Unpause => {
                let paused = step.kind == StepKind::Pause;
                let queue = Scope::Queue(numbers.pick(&["a", "b", "a.x"]).to_owned());
                let mut scope = numbers.pick(&[Scope::All, Scope::Preemption, queue.clone(), queue]);
                if self.dispatcher.has_zones() && numbers.chance(40) {
                    scope = Scope::SubCluster(numbers.pick(&["z0", "z1"]).to_owned());
                }
                self.dispatcher.pause(scope, paused, &self.net);
            }
            StepKind::Mode => self.set_mode(&mut numbers),
            StepKind::Count => self.count(),
            StepKind::Move => movements::ask(self, &mut numbers),
            StepKind::Cordon
            | StepKind::Drain
            | StepKind::Open
            | StepKind::Shrink
            | StepKind::Usage
            | StepKind::Join
            | StepKind::Leave
            | StepKind::Lose
            | StepKind::KillAgent
            | StepKind::KillNode
            | StepKind::CutAgent
            | StepKind::ExpireLeaf
            | StepKind::RevokeAgent => self.step_node(step, &mut numbers),
            StepKind::Kill | StepKind::LoseLease | StepKind::Cut | StepKind::Relist => {
                self.fault(step, &mut numbers)
            }
            StepKind::KillMover => {
                if let Some(part) = &mut self.rescheduler {
                    part.dies = Some(numbers.pick(&[Death::Recorded, Death::Asked, Death::Answered]));
                }
            }
            StepKind::LoseMoving => {
                let moving: Vec<NodeId> = movements::moving(&self.store).into_iter().collect();
                match moving.is_empty() {
                    true => self.loses_target = true,
                    false => self.lose(numbers.pick(&moving), &mut numbers),
                }
            }
        }
    }

    fn wish(&mut self, choice: u64, wish: Wish) {
        let units: Vec<UnitId> = self.store.world.units.keys().copied().collect();
        if !units.is_empty() {
            people::change(self, units[idx(choice, units.len())], wish);
        }
    }

    /// The first unit that is suspended goes on.
    fn resume(&mut self) {
        let units: Vec<UnitId> = self.store.world.units.keys().copied().collect();
        let suspended =
            |unit: &UnitId| self.store.record(*unit).is_some_and(|record| record.status.suspended);
        if let Some(unit) = units.into_iter().find(suspended) {
            people::change(self, unit, Wish::Suspend(false));
        }
    }

    fn set_mode(&mut self, numbers: &mut Numbers) {
        let modes = [PartitionMode::Global, PartitionMode::Preferred, PartitionMode::Strict];
        let mode = numbers.pick(&modes);
        if mode == PartitionMode::Strict {
            self.net.reach.mark(Mark::Strict);
        }
        let choice = if numbers.chance(25) { ModeChoice::Automatic } else { ModeChoice::Fixed(mode) };
        self.dispatcher.set_mode(choice);
    }

    fn count(&mut self) {
        let counted = self.schedulers.iter().filter(|scheduler| scheduler.is_registered()).map(|scheduler| {
            let stats = scheduler.core.stats();
            let name = scheduler.lease().trim_start_matches("scheduler/").to_owned();
            let (placed, conflicts) = (stats.placed, stats.conflicts);
            SchedulerCounts { scheduler: name, epoch: scheduler.epoch(), placed, conflicts }
        });
        let counted = counted.collect();
        self.dispatcher.on_counted(counted);
    }

    fn step_node(&mut self, step: ModelStep, numbers: &mut Numbers) {
        let nodes = self.agents.ids();
        if step.kind == StepKind::Join {
            if nodes.len() < 6 {
                self.join(numbers);
            }
            return;
        }
        if nodes.is_empty() {
            return;
        }
        let node = nodes[idx(step.to, nodes.len())];
        let of = &self.store.world.nodes[&node];
        let (Some(spec), Some(report)) = (&of.spec, &of.report) else { return };
        let (spec, report) = (spec.value.clone(), report.value.clone());
        match step.kind {
            StepKind::Cordon if numbers.chance(50) => {
                self.write(vec![Change::Put(Record::NodeSpec(NodeSpec { cordoned: true, ..spec }))]);
            }
            StepKind::Cordon => {
                self.write(vec![Change::Put(Record::NodeSpec(NodeSpec {
                    taints: vec![units::taint()],
                    ..spec
                }))]);
            }
            StepKind::Drain => {
                let deadline_ms = numbers.chance(60).then(|| self.net.wall_ms() + 300);
                let drain = Drain { since_ms: self.net.wall_ms(), deadline_ms, running_units: 0 };
                self.write(vec![Change::Put(Record::NodeSpec(NodeSpec { drain: Some(drain), ..spec }))]);
            }
            StepKind::Open => {
                // No administrator renews an agent.
                let open = |node: &NodeId| {
                    let spec = self.store.world.nodes[node].spec.as_ref()?;
                    let identity_expired_since_ms = spec.value.identity_expired_since_ms;
                    let open = NodeSpec { identity_expired_since_ms, ..units::node(node.0) };
                    (spec.value != open).then_some(open)
                };
                if let Some(open) = nodes.iter().find_map(open) {
                    self.write(vec![Change::Put(Record::NodeSpec(open))]);
                }
            }
            StepKind::Shrink => self.shrink(report, numbers),
            StepKind::Usage => self.use_node(node, numbers),
            StepKind::Leave => {
                if nodes.len() > 2 {
                    self.write(vec![Change::Gone(RecordKey::NodeSpec(node))]);
                    if !self.store.world.nodes.contains_key(&node) {
                        self.agents.disconnect(node);
                    }
                }
            }
            StepKind::Lose => self.lose(node, numbers),
            StepKind::KillAgent => self.kill_agent(node, false, numbers),
            StepKind::KillNode => self.kill_agent(node, true, numbers),
            StepKind::CutAgent => self.cut_agent(node, numbers),
            StepKind::ExpireLeaf => identities::expire_leaf(self, node, numbers),
            StepKind::RevokeAgent => identities::revoke_agent(self, node, numbers),
            other => unreachable!("not of a node: {other:?}"),
        }
    }

    /// A node joins.
    pub(super) fn join(&mut self, numbers: &mut Numbers) {
        self.n_nodes += 1;
        let id = self.n_nodes;
        let report = units::report(id, numbers);
        let spec = units::node(id);
        self.write(vec![Change::Put(Record::NodeSpec(spec)), Change::Put(Record::NodeReport(report))]);
        self.agents.join(NodeId(id), &mut self.net);
    }

    /// A node has less, or more, than before.
    fn shrink(&mut self, report: NodeReport, numbers: &mut Numbers) {
        // Where use is measured, best-effort running units are bound to a node that has come to have too little for its
        // guaranteed ones: not judged here.
        if !report.ready || !self.preempts {
            return;
        }
        let cpu = numbers.pick(&[1_000, 2_000, 3_000, 5_000]);
        if cpu < report.capacity.get(CPU) {
            self.net.reach.mark(Mark::Shrink);
        }
        let others = report.capacity.iter().filter(|(name, _)| *name != CPU);
        let capacity = Resources::new(others.chain([(CPU, cpu)])).expect("not negative");
        let devices = units::devices(report.id.0, numbers);
        let kept = devices.iter().zip(&report.devices).take_while(|(new, old)| new == old).count();
        if kept < report.devices.len() {
            self.net.reach.mark(Mark::FewerDevices);
        }
        self.write(vec![Change::Put(Record::NodeReport(NodeReport { capacity, devices, ..report }))]);
    }

    /// What guaranteed running units of a node use swings.
    fn use_node(&mut self, node: NodeId, numbers: &mut Numbers) {
        let before = self.store.world.nodes[&node].usage.as_ref().map_or(0, |usage| usage.value.as_of_ms);
        let reserved = Resources::new([(CPU, numbers.pick(&[0, 300, 1_000, 3_000]))]).expect("not negative");
        // Victims that a measured use covers keep nothing from best-effort, and what is held in their place does once they
        // have left: a best-effort binding in between is too much for a moment. Not judged here.
        let now_ms = self.net.wall_ms() - i64::try_from(numbers.below(300)).expect("small");
        let as_of_ms = if self.preempts { 0 } else { before.max(now_ms) };
        // As if it had not been drawn: the rest is the same with loads or without.
        let mut apart = numbers.clone();
        apart.below(3);
        let load = apart.chance(60).then(|| {
            let amounts = LoadAmounts { cpu: apart.pick(&[0, 500, 2_000, 8_000]), ..LoadAmounts::default() };
            NodeLoad { p50: amounts, p95: amounts }
        });
        let mut zones: Vec<u8> = if load.is_some() { (0..3).collect() } else { Vec::new() };
        zones.retain(|_| apart.chance(70));
        let zone_loads = zones.into_iter().map(|zone| {
            let amounts = LoadAmounts { cpu: apart.pick(&[0, 500, 2_000, 8_000]), ..LoadAmounts::default() };
            ZoneLoad { zone, load: NodeLoad { p50: amounts, p95: amounts } }
        });
        let zone_loads = zone_loads.collect();
        self.write(vec![Change::Put(Record::NodeUsage(NodeUsage {
            id: node,
            reserved,
            as_of_ms,
            load,
            zone_loads,
        }))]);
    }

    fn fault(&mut self, step: ModelStep, numbers: &mut Numbers) {
        let n_schedulers = self.schedulers.len();
        let scheduler = idx(step.to, n_schedulers);
        let mut parts = vec![(3, Part::Scheduler(scheduler)), (2, Part::Binder), (1, Part::Dispatcher)];
        parts.extend(self.rescheduler.iter().map(|_| (2, Part::Rescheduler)));
        let part = numbers.draw(&parts);
        match step.kind {
            StepKind::Cut => {
                self.net.reach.mark(Mark::Cut);
                let line = numbers.pick(&Line::ALL);
                let session = self.schedulers[scheduler].session(line);
                self.net.close(scheduler, line, session);
            }
            StepKind::Relist => {
                self.net.reach.mark(Mark::Relist);
                self.relist(part);
            }
            StepKind::Kill => {
                self.net.reach.mark(Mark::Kill);
                self.kill(part, numbers);
            }
            // A dispatcher that has lost its lease begins anew.
            StepKind::LoseLease if part == Part::Dispatcher => self.kill(part, numbers),
            StepKind::LoseLease => {
                self.net.reach.mark(Mark::LeaseLost);
                self.lose_lease(part, numbers);
            }
            other => unreachable!("not a fault of a part: {other:?}"),
        }
    }

    /// A disruption budget over the units with a label, which is there at the beginning where running units move.
    pub(super) fn budget(&mut self, numbers: &mut Numbers) {
        let percent = numbers.pick(&[20, 50, 80]);
        let spec = BudgetSpec {
            name: "kept".to_owned(),
            namespace: "default".to_owned(),
            selector: [("app".to_owned(), "kept".to_owned())].into(),
            limit: Limit::MaxUnavailable(Amount::Percent(percent)),
            ..BudgetSpec::default()
        };
        self.write(vec![Change::Put(Record::Budget(Arc::new(spec)))]);
    }

    /// The records that are there at the beginning.
    pub(super) fn found(&mut self, n_nodes: u64, n_queues: u64, numbers: &mut Numbers) {
        for _ in 0..n_nodes {
            self.join(numbers);
        }
        let class = units::class(numbers);
        self.write(vec![Change::Put(Record::PriorityClass(class))]);
        for _ in 0..n_queues {
            let path = numbers.pick(&["a.x", "b", "a", "default"]);
            let queue = units::queue(path, numbers);
            // As edits would be checked, what is guaranteed has to fit under what is allowed.
            if queue.min.iter().all(|(name, min)| queue.max.get(name).is_none_or(|max| min <= max))
                && (path != "a" && path != "a.x")
            {
                self.write(vec![Change::Put(Record::Queue(Arc::clone(&queue)))]);
            }
        }
        for path in ["a", "a.x", "a.y", "b"] {
            if !self.store.world.queues.contains_key(path) {
                self.write(vec![Change::Put(Record::Queue(Arc::new(
                    godel_domain::queue_spec::QueueSpec::new(path),
                )))]);
            }
        }
    }
}
