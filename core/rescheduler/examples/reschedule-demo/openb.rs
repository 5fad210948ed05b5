//! The GPU trace in `data/openb` after a churn: which tasks are on which node when a scheduler has placed, lost and placed.
//!
//! The scheduler here is the policy of the paper that the trace came with, as the issue fixes it (`fragmentation-gradient`): Weng
//! et al., "Beware of Fragmentation" (USENIX ATC '23). It is written apart from the crate, which places nothing.

use std::{collections::BTreeMap, path::Path};

use godel_base::{
    ids::{NodeId, RunningUnitId, UnitId},
    resources::{CPU, MEMORY, NETWORK, Resources},
};
use godel_core_rescheduler::{
    ClusterSnapshot, Draws, MeasuredUse, NodeFacts, RunningFacts, TypicalDemand, UnitFacts,
};
use godel_domain::{allocation::DeviceSet, demand::Demand, node::Device, unit::WorkloadClass};
use godel_testkit::BuildDemand as _;

/// Bits per second of every node's network card.
const NIC_BPS: f64 = 25e9;
const WHOLE: i64 = 1_000;

/// A demand of the trace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TaskShape {
    pub(crate) cpu: i64,
    pub(crate) memory: i64,
    pub(crate) gpus: u32,
    pub(crate) milli: i64,
    pub(crate) models: Vec<String>,
}

impl TaskShape {
    fn accepts(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|one| one == model)
    }

    /// Thousandths of GPUs in all.
    pub(crate) fn gpu_milli(&self) -> i64 {
        i64::from(self.gpus) * self.milli
    }

    pub(crate) fn demand(&self, with_memory: bool) -> Demand {
        let memory = if with_memory { self.memory << 20 } else { 0 };
        let milli = u32::try_from(self.milli).unwrap_or(1_000);
        let models: Vec<&str> = self.models.iter().map(String::as_str).collect();
        godel_testkit::demand(self.cpu).memory(memory).gpus(self.gpus, milli, &models)
    }
}

/// A node of the trace, with what is free.
#[derive(Clone, Debug)]
pub(crate) struct TraceNode {
    pub(crate) name: String,
    pub(crate) model: String,
    pub(crate) cpu: i64,
    pub(crate) memory: i64,
    pub(crate) n_gpus: usize,
    free_cpu: i64,
    free_memory: i64,
    left: Vec<i64>,
}

/// The trace.
pub(crate) struct Trace {
    pub(crate) nodes: Vec<TraceNode>,
    /// In order of name.
    tasks: Vec<usize>,
    pub(crate) shapes: Vec<TaskShape>,
    /// Shapes that make up 95 % of the tasks, with their shares; memory is not looked at.
    typical: Vec<(usize, f64)>,
}

fn rows(path: &Path) -> anyhow::Result<Vec<BTreeMap<String, String>>> {
    let mut reader = csv::Reader::from_path(path)?;
    Ok(reader.deserialize().collect::<Result<_, _>>()?)
}

fn number(row: &BTreeMap<String, String>, column: &str) -> i64 {
    row.get(column).and_then(|text| text.trim().parse::<f64>().ok()).map_or(0, whole)
}

/// A number without its fraction.
fn whole(value: f64) -> i64 {
    format!("{value:.0}").parse().unwrap_or(0)
}

fn share(part: i64) -> f64 {
    f64::from(i32::try_from(part).unwrap_or(i32::MAX))
}

impl Trace {
    /// Reads the nodes with GPUs and the default list of tasks.
    pub(crate) fn read(folder: &Path) -> anyhow::Result<Self> {
        let text =
            |row: &BTreeMap<String, String>, column: &str| row.get(column).cloned().unwrap_or_default();
        let nodes = rows(&folder.join("openb_node_list_all_node.csv"))?;
        let nodes = nodes.iter().filter(|row| number(row, "gpu") > 0).map(|row| TraceNode {
            name: text(row, "sn"),
            model: text(row, "model"),
            cpu: number(row, "cpu_milli"),
            memory: number(row, "memory_mib"),
            n_gpus: usize::try_from(number(row, "gpu")).unwrap_or(0),
            free_cpu: number(row, "cpu_milli"),
            free_memory: number(row, "memory_mib"),
            left: vec![WHOLE; usize::try_from(number(row, "gpu")).unwrap_or(0)],
        });
        let mut tasks = rows(&folder.join("openb_pod_list_default.csv"))?;
        tasks.sort_by_key(|row| text(row, "name"));
        let mut ids: BTreeMap<TaskShape, usize> = BTreeMap::new();
        let mut shapes = Vec::new();
        let of_task: Vec<usize> = tasks
            .iter()
            .map(|row| {
                let gpus = u32::try_from(number(row, "num_gpu")).unwrap_or(0);
                let milli = if gpus > 1 { WHOLE } else { number(row, "gpu_milli") };
                let models = text(row, "gpu_spec");
                let models: Vec<String> =
                    models.split('|').filter(|model| !model.is_empty()).map(str::to_owned).collect();
                let (cpu, memory) = (number(row, "cpu_milli"), number(row, "memory_mib"));
                let shape = TaskShape { cpu, memory, gpus, milli, models };
                *ids.entry(shape.clone()).or_insert_with(|| {
                    shapes.push(shape);
                    shapes.len() - 1
                })
            })
            .collect();
        let mut trace = Self { nodes: nodes.collect(), tasks: of_task, shapes, typical: Vec::new() };
        trace.typical = trace.typical_shapes();
        Ok(trace)
    }

    /// Shapes without memory, most frequent first until they make up 95 %, each by one shape of the list.
    fn typical_shapes(&self) -> Vec<(usize, f64)> {
        let mut counts: BTreeMap<TaskShape, (usize, i64)> = BTreeMap::new();
        for shape in &self.tasks {
            let key = TaskShape { memory: 0, ..self.shapes[*shape].clone() };
            counts.entry(key).or_insert((*shape, 0)).1 += 1;
        }
        let mut counts: Vec<(usize, i64)> = counts.into_values().collect();
        counts.sort_by_key(|(shape, n)| (std::cmp::Reverse(*n), *shape));
        let n_all = share(i64::try_from(self.tasks.len()).unwrap_or(0));
        let mut sum = 0.0;
        counts.retain(|(_, n)| {
            let is_needed = sum < 0.95 * n_all;
            sum += if is_needed { share(*n) } else { 0.0 };
            is_needed
        });
        counts.into_iter().map(|(shape, n)| (shape, share(n) / sum)).collect()
    }

    /// The typical demands, as the policy is given them.
    pub(crate) fn typical(&self) -> Vec<TypicalDemand> {
        let of = |(shape, weight): &(usize, f64)| TypicalDemand {
            demand: self.shapes[*shape].demand(false),
            weight: *weight,
        };
        self.typical.iter().map(of).collect()
    }

    /// The typical shapes, with their shares.
    pub(crate) fn typical_shares(&self) -> &[(usize, f64)] {
        &self.typical
    }

    fn fragmentation(&self, node: &TraceNode, cpu: i64, left: &[i64]) -> f64 {
        let idle: i64 = left.iter().sum();
        let of_shape = |(shape, weight): &(usize, f64)| {
            let shape = &self.shapes[*shape];
            let enough = left.iter().filter(|left| **left >= shape.milli).count();
            let fits = shape.gpus > 0
                && shape.accepts(&node.model)
                && cpu >= shape.cpu
                && enough >= shape.gpus as usize;
            let lost = if fits { left.iter().filter(|left| **left < shape.milli).sum() } else { idle };
            weight * share(lost)
        };
        if idle == 0 { 0.0 } else { self.typical.iter().map(of_shape).sum() }
    }
}

/// How the scheduler of the churn chooses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chooses {
    /// The node whose fragmentation rises least.
    ByGradient,
    /// Any node where it fits.
    AtRandom,
}

/// A task on a node.
#[derive(Clone)]
pub(crate) struct PlacedTask {
    pub(crate) shape: usize,
    pub(crate) node: usize,
    pub(crate) gpus: DeviceSet,
}

/// The score of a node for a shape and the GPUs that it would get; `None`: it does not fit.
type ScoredNode = Option<(i64, DeviceSet)>;

/// A cluster that a scheduler fills.
pub(crate) struct Filling<'t> {
    trace: &'t Trace,
    pub(crate) nodes: Vec<TraceNode>,
    /// Ties between nodes: the lowest wins.
    order: Vec<usize>,
    /// The score and GPUs of each shape on each node; `None`: to be computed.
    scores: Vec<Vec<Option<ScoredNode>>>,
    before: Vec<f64>,
    allocated: i64,
    draws: Draws,
}

impl<'t> Filling<'t> {
    pub(crate) fn new(trace: &'t Trace, seed: u64) -> Self {
        let mut draws = Draws::new(seed);
        let nodes = trace.nodes.clone();
        let mut order: Vec<usize> = (0..nodes.len()).collect();
        shuffle(&mut order, &mut draws);
        Self {
            trace,
            before: nodes.iter().map(|node| trace.fragmentation(node, node.free_cpu, &node.left)).collect(),
            scores: vec![vec![None; trace.shapes.len()]; nodes.len()],
            nodes,
            order,
            allocated: 0,
            draws,
        }
    }

    fn score(&mut self, node: usize, shape: usize) -> Option<(i64, DeviceSet)> {
        if let Some(known) = self.scores[node][shape] {
            return known;
        }
        let score = self.compute(node, shape);
        self.scores[node][shape] = Some(score);
        score
    }

    fn compute(&self, at: usize, shape: usize) -> Option<(i64, DeviceSet)> {
        let (node, shape) = (&self.nodes[at], &self.trace.shapes[shape]);
        if node.free_cpu < shape.cpu || node.free_memory < shape.memory {
            return None;
        }
        let cpu = node.free_cpu - shape.cpu;
        let fits = |gpu: &usize| node.left[*gpu] >= shape.milli;
        let fitting: Vec<usize> = (0..node.left.len()).filter(fits).collect();
        let gpu_sets: Vec<DeviceSet> = match shape.gpus {
            0 => vec![DeviceSet::NONE],
            _ if !shape.accepts(&node.model) || fitting.len() < shape.gpus as usize => return None,
            1 if shape.milli < WHOLE => fitting.iter().map(|gpu| [*gpu].into_iter().collect()).collect(),
            n => vec![fitting.iter().copied().take(n as usize).collect()],
        };
        let rated = gpu_sets.into_iter().map(|gpus| {
            let mut left = node.left.clone();
            gpus.iter().for_each(|gpu| left[gpu] -= shape.milli);
            let fall = (self.before[at] - self.trace.fragmentation(node, cpu, &left)) / 1_000.0;
            (whole((100.0 / (1.0 + (-fall).exp())).floor()), gpus)
        });
        rated.reduce(|best, one| if one.0 > best.0 { one } else { best })
    }

    /// Places a task; `None`: it fits nowhere.
    pub(crate) fn place(&mut self, shape: usize, chooses: Chooses) -> Option<PlacedTask> {
        let order = std::mem::take(&mut self.order);
        let mut best: Option<(i64, usize, DeviceSet)> = None;
        let mut n_fitting = 0usize;
        for node in &order {
            let Some((score, gpus)) = self.score(*node, shape) else { continue };
            n_fitting += 1;
            let is_better = match chooses {
                Chooses::ByGradient => best.is_none_or(|(known, ..)| score > known),
                Chooses::AtRandom => self.draws.below(n_fitting) == 0,
            };
            if is_better {
                best = Some((score, *node, gpus));
            }
        }
        self.order = order;
        let (_, node, gpus) = best?;
        let task = PlacedTask { shape, node, gpus };
        self.charge(&task, 1);
        Some(task)
    }

    /// Takes the room of a task, or gives it back.
    pub(crate) fn charge(&mut self, task: &PlacedTask, sign: i64) {
        let shape = &self.trace.shapes[task.shape];
        let node = &mut self.nodes[task.node];
        node.free_cpu -= sign * shape.cpu;
        node.free_memory -= sign * shape.memory;
        task.gpus.iter().for_each(|gpu| node.left[gpu] -= sign * shape.milli);
        self.allocated += sign * shape.gpu_milli();
        let node = &self.nodes[task.node];
        self.before[task.node] = self.trace.fragmentation(node, node.free_cpu, &node.left);
        self.scores[task.node].fill(None);
    }

    /// Closes a node to tasks.
    pub(crate) fn close(&mut self, node: usize) {
        self.nodes[node].free_cpu = -1;
        self.scores[node].fill(None);
    }

    /// Opens a node again, as it was when it was closed.
    pub(crate) fn open(&mut self, node: usize, was: TraceNode) {
        self.nodes[node] = was;
        self.before[node] =
            self.trace.fragmentation(&self.nodes[node], self.nodes[node].free_cpu, &self.nodes[node].left);
        self.scores[node].fill(None);
    }

    /// The thousandths of a node that typical work cannot use.
    pub(crate) fn fragmentation(&self, node: usize) -> f64 {
        self.before[node]
    }

    fn n_gpu_milli(&self) -> i64 {
        self.nodes.iter().map(|node| WHOLE * i64::try_from(node.n_gpus).unwrap_or(0)).sum()
    }

    fn is_above(&self, percent: i64) -> bool {
        self.allocated * 100 >= percent * self.n_gpu_milli()
    }

    /// The fragmentation rate.
    pub(crate) fn rate(&self) -> f64 {
        self.before.iter().sum::<f64>() / share(self.n_gpu_milli())
    }

    /// Nodes of eight GPUs with all of them free.
    pub(crate) fn n_whole(&self) -> usize {
        let is_whole = |node: &&TraceNode| node.n_gpus == 8 && node.left.iter().all(|left| *left == WHOLE);
        self.nodes.iter().filter(is_whole).count()
    }
}

fn shuffle<T>(items: &mut [T], draws: &mut Draws) {
    for last in (1..items.len()).rev() {
        items.swap(last, draws.below(last + 1));
    }
}

/// The churn of the issue: 90 % of the GPUs allocated, a random 30 % of the tasks ended, the same shapes submitted until 80 %.
pub(crate) fn churn(trace: &Trace, seed: u64, chooses: Chooses) -> Vec<PlacedTask> {
    let mut filling = Filling::new(trace, seed);
    let mut placed = Vec::new();
    let mut list = trace.tasks.clone();
    let mut draws = Draws::new(seed ^ 0x5eed);
    shuffle(&mut list, &mut draws);
    let mut at = 0;
    // No more attempts than there would be with room for half of them: the cluster is full then.
    while !filling.is_above(90) && at < 4 * list.len() {
        let shape = list.get(at).copied().unwrap_or_else(|| trace.tasks[draws.below(trace.tasks.len())]);
        placed.extend(filling.place(shape, chooses));
        at += 1;
    }
    shuffle(&mut placed, &mut draws);
    for task in placed.split_off(placed.len() * 7 / 10) {
        filling.charge(&task, -1);
    }
    at = 0;
    while !filling.is_above(80) && at < 4 * list.len() {
        placed.extend(filling.place(trace.tasks[draws.below(trace.tasks.len())], chooses));
        at += 1;
    }
    placed
}

/// What the rescheduler is given of tasks on the trace's nodes. Each is a unit of its own, with use by the seed.
pub(crate) fn snapshot(trace: &Trace, tasks: &[PlacedTask], seed: u64) -> ClusterSnapshot {
    let node_id = |at: usize| NodeId(u32::try_from(at + 1).unwrap_or(u32::MAX));
    let nodes = trace.nodes.iter().enumerate().map(|(at, node)| {
        let capacity = [(CPU, node.cpu), (MEMORY, node.memory << 20), (NETWORK, whole(NIC_BPS))];
        let capacity = Resources::new(capacity).unwrap_or_default();
        let model = node.model.clone();
        let device = Device { kind: "gpu".to_owned(), model, numa_zone: 0, details: None };
        NodeFacts {
            devices: vec![device; node.n_gpus],
            ..NodeFacts::new(node_id(at), node.name.clone(), capacity)
        }
    });
    let mut draws = Draws::new(seed ^ 0x10ad);
    let mut running = Vec::new();
    let mut units = Vec::new();
    for (at, task) in tasks.iter().enumerate() {
        let shape = &trace.shapes[task.shape];
        let id = UnitId(u64::try_from(at + 1).unwrap_or(0));
        // Beta(2, 3) is the second of four draws in order, Beta(1, 3) the first of three.
        let mut four = [draws.unit(), draws.unit(), draws.unit(), draws.unit()];
        four.sort_by(f64::total_cmp);
        let least = draws.unit().min(draws.unit()).min(draws.unit());
        let cpu = share(shape.cpu);
        units.push(UnitFacts::new(id, format!("task-{}", at + 1), WorkloadClass::Service, 1));
        running.push(RunningFacts {
            devices: task.gpus,
            usage: MeasuredUse {
                cpu_milli: whole(1.7 * cpu * four[1]),
                network_bps: whole(NIC_BPS * (2.5 * cpu / 96_000.0 * least).min(0.5)),
            },
            ..RunningFacts::new(RunningUnitId::new(id, 0, 0), node_id(task.node), shape.demand(true))
        });
    }
    ClusterSnapshot { nodes: nodes.collect(), units, running, ..ClusterSnapshot::default() }
}
