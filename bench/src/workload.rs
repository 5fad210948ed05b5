//! Which nodes a run has and which units it submits. Everything follows from the arguments and a seed.

use std::{cmp::Reverse, collections::BTreeMap, path::PathBuf};

use clap::ValueEnum;
use godel_agent::{NodeDef, inventory};
use godel_base::resources::{CPU, MEMORY};
use godel_client::{
    exit::{Code, Failure},
    replay::read_tasks,
    trace::TraceTask,
};
use godel_domain::unit_affinity::NODE;
use godel_proto::v1;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde::Serialize;

mod passing;

pub(super) use self::passing::Passing;
use super::load::Load;

/// Running units that a node of the plain cluster has room for: 100 CPU over 500 m.
pub(super) const N_ROOM_OF_NODE: usize = 200;
/// Running units of a unit that only fills the cluster.
const N_FILL_REPLICAS: usize = 1000;
/// Zones of the mixed cluster; a constrained unit names one.
const N_ZONES: usize = 4;
/// One in so many units of the mixed workload is constrained.
const CONSTRAINED_OF: u32 = 10;
/// Gangs of the mix.
const GANG_SIZES: std::ops::RangeInclusive<u32> = 10..=200;
/// The two services: replicas for each node, at most so many, and what each takes: CPU in thousandths, memory in GiB.
const TWO: [(u32, u32, i64, i64); 2] = [(2, 20_000, 4_000, 8), (1, 10_000, 1_000, 4)];
/// Running units that a node holds where others preempt them, each 5 CPU: twice what arrives by default.
const N_VICTIMS_OF_NODE: usize = 20;
/// What each of them takes, and each of those that preempt them: CPU in thousandths, memory in GiB.
const VICTIM: (i64, i64) = (5_000, 20);
/// Nodes of a rack.
const N_NODES_OF_RACK: usize = 40;
/// Label of nodes whose value is their rack.
const RACK: &str = "rack";
/// Label of units by which others are near to them.
const APP: &str = "app";
/// Kinds of terms that units have by turns.
const N_TURNS: usize = 3;
/// Milliseconds that a run lasts where agents run it.
const RUN_MS: u64 = 10;

/// The workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Workload {
    /// Units of `--replicas` equal replicas.
    Service,
    /// Sizes, shapes and nodes of the trace; one unit in ten is bound to a zone.
    Mixed,
    /// Units of one replica on one stream.
    Single,
    /// Units of one replica, a call each from `--clients` clients.
    Unary,
    /// Gangs of `--replicas`, whole or not at all.
    Gang,
    /// Services of `--replicas` replicas (default 1), and best-effort gangs of 10 to 200, by `--online-share`.
    Mix,
    /// Services into a half full cluster, then until the cluster is full.
    Full,
    /// Services of high priority into a cluster full of services of low priority: each replica preempts one of those;
    /// needs `--agents`.
    Preempt,
    /// Services of `--replicas` replicas (default 100) in racks of 40 nodes that keep apart from one another on nodes, are spread
    /// evenly over racks, or are near to others, by turns.
    Affinity,
    /// Gangs of `--replicas` (default 10), each of which requires a rack of 40 nodes.
    Rack,
    /// A service of 20,000 large replicas beside one of 10,000 small ones; fewer on fewer than 10,000 nodes.
    Two,
}

/// What a run is made of.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) workload: Workload,
    pub(super) nodes: usize,
    pub(super) units: Option<usize>,
    pub(super) replicas: Option<u32>,
    pub(super) online_share: u32,
    /// Running units end after a moment.
    pub(super) ends: bool,
    pub(super) seed: u64,
    pub(super) trace: PathBuf,
    pub(super) trace_nodes: PathBuf,
}

/// A load and what it is for.
pub(super) struct Step {
    pub(super) load: Load,
    /// Its figures are reported; others prepare.
    pub(super) measured: bool,
}

/// What to start and what to submit, in order.
pub(super) struct Plan {
    /// Nodes, as `godel agent --simulate` takes them.
    pub(super) shapes: Vec<String>,
    pub(super) steps: Vec<Step>,
}

impl Wanted {
    /// What to do.
    ///
    /// # Errors
    /// More is asked for than the nodes have room for, the trace cannot be read, or no agent could stop a victim.
    pub(super) fn plan(&self) -> Result<Plan, Failure> {
        let mut maker = Maker::new(self.seed, self.ends && self.workload != Workload::Preempt);
        if self.workload == Workload::Mixed {
            return self.mixed(&mut maker);
        }
        let room = self.nodes * N_ROOM_OF_NODE;
        let shapes = match self.workload {
            Workload::Affinity | Workload::Rack => racks(self.nodes),
            _ => vec![format!("{}x cpu=100,memory=400Gi", self.nodes)],
        };
        if self.workload == Workload::Preempt {
            return Ok(Plan { shapes, steps: self.preempt(&mut maker)? });
        }
        let steps = match self.workload {
            Workload::Full => full(&mut maker, room),
            Workload::Mix => vec![measured(self.mix(&mut maker, room))],
            Workload::Two => vec![measured(self.two(&mut maker))],
            Workload::Affinity | Workload::Rack => vec![measured(self.in_racks(&mut maker, room))],
            _ => vec![measured(self.equal(&mut maker, room))],
        };
        let n_replicas: usize = steps.iter().map(|step| step.load.n_replicas()).sum();
        if n_replicas > room {
            let text = format!("{n_replicas} running units do not fit: there is room for {room}");
            return Err(Failure::new(Code::Usage, text).hint("use fewer units, or more --nodes"));
        }
        Ok(Plan { shapes, steps })
    }

    /// How many running units where nobody says.
    fn placements(&self, room: usize) -> usize {
        let usual = match self.workload {
            Workload::Service if self.ends => 200_000,
            Workload::Service | Workload::Gang => 1_000_000,
            Workload::Mix => 200_000,
            Workload::Single | Workload::Preempt => 100_000,
            Workload::Affinity | Workload::Rack => 100_000,
            Workload::Unary | Workload::Mixed | Workload::Full | Workload::Two => 50_000,
        };
        usual.min(room / 2)
    }

    fn equal(&self, maker: &mut Maker, room: usize) -> Load {
        let (class, usual) = match self.workload {
            Workload::Gang => (v1::WorkloadClass::Gang, 100),
            Workload::Single | Workload::Unary => (v1::WorkloadClass::Service, 1),
            _ => (v1::WorkloadClass::Service, 1000),
        };
        let replicas = self.replicas.unwrap_or(usual);
        let n_units = self.units.unwrap_or_else(|| (self.placements(room) / count(replicas)).max(1));
        let mut load = Load::default();
        for _ in 0..n_units {
            load.push(&maker.unit(class, replicas));
        }
        load
    }

    /// Fills the cluster, then asks for room that only others have.
    fn preempt(&self, maker: &mut Maker) -> Result<Vec<Step>, Failure> {
        if !self.ends {
            let text = "nothing would end: a victim's place becomes free when its agent reports the end";
            return Err(Failure::new(Code::Usage, text).hint("add --agents"));
        }
        let room = self.nodes * N_VICTIMS_OF_NODE;
        let replicas = self.replicas.unwrap_or(1000);
        let n_units = self.units.unwrap_or_else(|| (self.placements(room) / count(replicas)).max(1));
        if n_units * count(replicas) > room {
            let text =
                format!("{} running units do not fit: there is room for {room}", n_units * count(replicas));
            return Err(Failure::new(Code::Usage, text).hint("use fewer units, or more --nodes"));
        }
        let (cpu_milli, memory_gib) = VICTIM;
        let mut service = |n: usize, priority: i32| {
            let n = u32::try_from(n).unwrap_or(u32::MAX);
            let spec = maker.sized(v1::WorkloadClass::Service, n, cpu_milli, memory_gib);
            v1::UnitSpec { priority: Some(priority), preemptible: Some(true), ..spec }
        };
        let (mut full, mut arriving) = (Load::default(), Load::default());
        for first in (0..room).step_by(N_FILL_REPLICAS) {
            full.push(&service(N_FILL_REPLICAS.min(room - first), 1));
        }
        for _ in 0..n_units {
            arriving.push(&service(count(replicas), 2));
        }
        for load in [&mut full, &mut arriving] {
            load.stays = true;
        }
        Ok(vec![Step { load: full, measured: false }, measured(arriving)])
    }

    fn mix(&self, maker: &mut Maker, room: usize) -> Load {
        let replicas = self.replicas.unwrap_or(1);
        let units = mix_units(self.online_share, replicas, self.placements(room), &mut maker.rng);
        let mut load = Load::default();
        for (class, replicas) in units.into_iter().take(self.units.unwrap_or(usize::MAX)) {
            let mut unit = maker.unit(class, replicas);
            // What is offline runs on what nobody asked for.
            if class == v1::WorkloadClass::Gang {
                unit.pool = v1::Pool::BestEffort.into();
            }
            load.push(&unit);
        }
        load
    }

    /// Units that say where they go in relation to running units.
    fn in_racks(&self, maker: &mut Maker, room: usize) -> Load {
        let is_gang = self.workload == Workload::Rack;
        let (class, usual) =
            if is_gang { (v1::WorkloadClass::Gang, 10) } else { (v1::WorkloadClass::Service, 100) };
        let replicas = self.replicas.unwrap_or(usual);
        let n_units = self.units.unwrap_or_else(|| (self.placements(room) / count(replicas)).max(1));
        let mut load = Load::default();
        for at in 0..n_units {
            let mut unit = maker.unit(class, replicas);
            if is_gang {
                let required = RACK.to_owned();
                unit.topology = Some(v1::UnitTopology { required, ..v1::UnitTopology::default() });
            } else {
                let meta = unit.meta.get_or_insert_default();
                meta.labels.insert(APP.to_owned(), app_name(at / N_TURNS));
                unit.affinity = Some(terms(at));
            }
            load.push(&unit);
        }
        load
    }

    fn two(&self, maker: &mut Maker) -> Load {
        let nodes = u32::try_from(self.nodes).unwrap_or(u32::MAX);
        let mut load = Load::default();
        for (of_each, replicas_max, cpu_milli, memory_gib) in TWO {
            let replicas = nodes.saturating_mul(of_each).min(replicas_max);
            load.push(&maker.sized(v1::WorkloadClass::Service, replicas, cpu_milli, memory_gib));
        }
        load
    }

    fn mixed(&self, maker: &mut Maker) -> Result<Plan, Failure> {
        let applications = applications(read_tasks(&self.trace)?);
        let hosts = inventory::read_file(&self.trace_nodes)
            .map_err(|error| Failure::chain(Code::Usage, &error).during(self.trace_nodes.display()))?;
        if applications.is_empty() || hosts.is_empty() {
            return Err(Failure::usage("the trace is empty"));
        }
        // Node i of N is like node i / N of the list: the shapes keep their shares.
        let like: Vec<&NodeDef> = (0..self.nodes).map(|idx| &hosts[idx * hosts.len() / self.nodes]).collect();
        let mut room = Room::of(&like);
        let mut drawn = Vec::new();
        while drawn.len() < self.units.unwrap_or(usize::MAX) {
            let (task, n_tasks) = &applications[maker.rng.random_range(0..applications.len())];
            let replicas = self.replicas.unwrap_or(*n_tasks);
            if !room.take(task, replicas) {
                break;
            }
            drawn.push((task, replicas));
        }
        if drawn.is_empty() {
            return Err(Failure::usage("the nodes hold no application of the trace").hint("use more --nodes"));
        }
        // Whoever wants several GPUs of one node comes first: later, single ones may stand on every node.
        drawn.sort_by_key(|(task, _)| Reverse(task.num_gpu.max(1)));
        let mut load = Load::default();
        load.may_wait = true;
        for (task, replicas) in drawn {
            load.push(&maker.application(task, replicas));
        }
        Ok(Plan { shapes: shapes(&like), steps: vec![measured(load)] })
    }
}

fn measured(load: Load) -> Step {
    Step { load, measured: true }
}

/// Services and gangs, by turns. `online`: the share of services, which is one of running units and not of units, and
/// the replicas of each.
fn mix_units(
    online_share: u32,
    online_replicas: u32,
    n_replicas: usize,
    rng: &mut StdRng,
) -> Vec<(v1::WorkloadClass, u32)> {
    let (mut n_online, mut n_all) = (0, 0);
    let mut units = Vec::new();
    while n_all < n_replicas {
        let is_online = online_share >= 100 || n_online * 100 < count(online_share) * n_all;
        let (class, replicas) = match is_online {
            true => (v1::WorkloadClass::Service, online_replicas),
            false => (v1::WorkloadClass::Gang, rng.random_range(GANG_SIZES)),
        };
        n_online += if is_online { count(replicas) } else { 0 };
        n_all += count(replicas);
        units.push((class, replicas));
    }
    units
}

/// Half full, a tenth more; then nearly full, and a tenth more up to 99 %.
fn full(maker: &mut Maker, room: usize) -> Vec<Step> {
    let mut n_filled = 0;
    let mut up_to = |per_cent: usize, measured: bool| {
        let mut load = Load::default();
        while n_filled < room * per_cent / 100 {
            let n_replicas = N_FILL_REPLICAS.min(room * per_cent / 100 - n_filled);
            load.push(&maker.unit(v1::WorkloadClass::Service, u32::try_from(n_replicas).unwrap_or(u32::MAX)));
            n_filled += n_replicas;
        }
        Step { load, measured }
    };
    vec![up_to(50, false), up_to(60, true), up_to(89, false), up_to(99, true)]
}

/// The tasks of one shape are one application: the trace says nothing else of what belongs together.
fn applications(tasks: Vec<TraceTask>) -> Vec<(TraceTask, u32)> {
    let mut by_shape: BTreeMap<_, (TraceTask, u32)> = BTreeMap::new();
    for task in tasks {
        let shape = (
            task.cpu_milli,
            task.memory_mib,
            task.num_gpu,
            task.gpu_milli,
            task.gpu_models.clone(),
            task.offline,
        );
        by_shape.entry(shape).or_insert((task, 0)).1 += 1;
    }
    by_shape.into_values().collect()
}

/// Half of what the nodes have. A task of eight GPUs that the binder refused and that comes late may find no node,
/// although the sums say so.
struct Room {
    cpu_milli: i64,
    memory_mib: i64,
    gpu_milli: i64,
}

impl Room {
    fn of(nodes: &[&NodeDef]) -> Self {
        let half = |amount: fn(&NodeDef) -> i64| nodes.iter().map(|node| amount(node)).sum::<i64>() / 2;
        Self {
            cpu_milli: half(|node| node.capacity.get(CPU)),
            memory_mib: half(|node| node.capacity.get(MEMORY) >> 20),
            gpu_milli: half(|node| i64::try_from(node.devices.len()).unwrap_or(0) * 1000),
        }
    }

    /// Whether there was room.
    fn take(&mut self, task: &TraceTask, replicas: u32) -> bool {
        let n = i64::from(replicas);
        self.cpu_milli -= n * task.cpu_milli;
        self.memory_mib -= n * task.memory_mib;
        self.gpu_milli -= n * i64::from(task.num_gpu) * i64::from(task.gpu_milli);
        self.cpu_milli >= 0 && self.memory_mib >= 0 && self.gpu_milli >= 0
    }
}

/// Nodes by shape and zone, as the agent takes them.
fn shapes(nodes: &[&NodeDef]) -> Vec<String> {
    let mut counts: BTreeMap<(String, usize), usize> = BTreeMap::new();
    for (idx, node) in nodes.iter().enumerate() {
        let (cpu, memory) = (node.capacity.get(CPU), node.capacity.get(MEMORY));
        let mut shape = format!("cpu={cpu}m,memory={memory}");
        if let Some(device) = node.devices.first() {
            shape.push_str(&format!(",gpu={}:{}", node.devices.len(), device.model));
        }
        *counts.entry((shape, idx % N_ZONES)).or_default() += 1;
    }
    let named = counts.into_iter().enumerate();
    named
        .map(|(idx, ((shape, zone), n))| format!("{n}x name=n{idx},label.zone={},{shape}", zone_name(zone)))
        .collect()
}

/// Nodes by rack.
fn racks(n_nodes: usize) -> Vec<String> {
    let starts = (0..n_nodes).step_by(N_NODES_OF_RACK).enumerate();
    let rack = |(idx, start): (usize, usize)| {
        let n = N_NODES_OF_RACK.min(n_nodes - start);
        format!("{n}x name=r{idx},label.{RACK}=r{idx},cpu=100,memory=400Gi")
    };
    starts.map(rack).collect()
}

/// The terms of the units of a run, by turns: apart from itself on nodes; spread over racks; near to the first of the three.
fn terms(at: usize) -> v1::UnitAffinity {
    let mut affinity = v1::UnitAffinity::default();
    match at % N_TURNS {
        0 => affinity.apart.push(v1::UnitTerm { topology: NODE.to_owned(), ..v1::UnitTerm::default() }),
        1 => {
            let (topology, max_skew) = (RACK.to_owned(), Some(1));
            affinity.spread.push(v1::SpreadTerm { topology, max_skew, ..v1::SpreadTerm::default() });
        }
        _ => {
            let units = vec![v1::LabelExpression {
                key: APP.to_owned(),
                operator: v1::LabelOperator::In.into(),
                values: vec![app_name(at / N_TURNS)],
            }];
            let term = v1::UnitTerm { units, topology: RACK.to_owned(), ..v1::UnitTerm::default() };
            affinity.near.push(term);
        }
    }
    affinity
}

fn app_name(at: usize) -> String {
    format!("app-{at}")
}

fn zone_name(zone: usize) -> String {
    format!("z{zone}")
}

/// Makes units, each with a name and a uid of its own.
pub(super) struct Maker {
    n_units: usize,
    /// How long a running unit lasts, milliseconds.
    run_ms: Option<u64>,
    rng: StdRng,
}

impl Maker {
    /// The same units for the same seed. `ends`: their running units end after a moment.
    pub(super) fn new(seed: u64, ends: bool) -> Self {
        Self { n_units: 0, run_ms: ends.then_some(RUN_MS), rng: StdRng::seed_from_u64(seed) }
    }

    /// Each running unit lasts so long.
    pub(super) fn lasting(seed: u64, run_ms: u64) -> Self {
        Self { run_ms: Some(run_ms), ..Self::new(seed, true) }
    }

    /// 500 m and 1 GiB each, of the guaranteed pool.
    pub(super) fn unit(&mut self, class: v1::WorkloadClass, replicas: u32) -> v1::UnitSpec {
        self.sized(class, replicas, 500, 1)
    }

    /// Services of so many replicas each, and a smaller one for the rest.
    pub(super) fn services(&mut self, running_units: usize, replicas: u32) -> Load {
        let mut load = Load::default();
        while load.n_replicas() < running_units {
            let n_left = u32::try_from(running_units - load.n_replicas()).unwrap_or(u32::MAX);
            load.push(&self.unit(v1::WorkloadClass::Service, replicas.min(n_left)));
        }
        load
    }

    /// Replicas of any size, of the guaranteed pool.
    pub(super) fn sized(
        &mut self,
        class: v1::WorkloadClass,
        replicas: u32,
        cpu_milli: i64,
        memory_gib: i64,
    ) -> v1::UnitSpec {
        let amounts =
            [(CPU.to_owned(), cpu_milli), (MEMORY.to_owned(), memory_gib << 30)].into_iter().collect();
        let demand = v1::Demand {
            requests: Some(v1::Resources { amounts }),
            devices: Vec::new(),
            host_ports: Vec::new(),
            zones: None,
        };
        let template = v1::Template { demand: Some(demand), ..v1::Template::default() };
        let group = v1::TaskGroup { replicas, template: Some(template), ..v1::TaskGroup::default() };
        let spec = v1::UnitSpec {
            workload_class: class.into(),
            task_groups: vec![group],
            pool: v1::Pool::Guaranteed.into(),
            ..v1::UnitSpec::default()
        };
        self.named(spec)
    }

    /// So many replicas of a task; one unit in ten stays in a zone.
    fn application(&mut self, task: &TraceTask, replicas: u32) -> v1::UnitSpec {
        let mut spec = task.unit(String::new(), "", None);
        for group in &mut spec.task_groups {
            group.replicas = replicas;
            let constrained = self.rng.random_ratio(1, CONSTRAINED_OF);
            if let Some(template) = group.template.as_mut().filter(|_| constrained) {
                let zone = zone_name(self.rng.random_range(0..N_ZONES));
                template.node_selector.insert("zone".to_owned(), zone);
            }
        }
        self.named(spec)
    }

    fn named(&mut self, mut spec: v1::UnitSpec) -> v1::UnitSpec {
        self.n_units += 1;
        let uid = uuid::Builder::from_random_bytes(self.rng.random()).into_uuid().to_string();
        spec.meta =
            Some(v1::ObjectMeta { name: format!("u-{}", self.n_units), uid, ..v1::ObjectMeta::default() });
        if self.run_ms.is_some() {
            spec.restart_policy = v1::RestartPolicy::Never.into();
            for template in spec.task_groups.iter_mut().filter_map(|group| group.template.as_mut()) {
                template.run =
                    Some(v1::RunSpec { simulated_duration_ms: self.run_ms, ..v1::RunSpec::default() });
            }
        }
        spec
    }
}

fn count(n: u32) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(workload: Workload) -> Wanted {
        Wanted {
            workload,
            nodes: 100,
            units: None,
            replicas: None,
            online_share: 50,
            ends: false,
            seed: 1,
            trace: "../data/openb/openb_pod_list_default.csv".into(),
            trace_nodes: "../data/openb/openb_node_list_all_node.csv".into(),
        }
    }

    #[test]
    fn every_workload_fits_by_itself() {
        for workload in Workload::value_variants() {
            let ends = *workload == Workload::Preempt;
            let plan = Wanted { ends, ..wanted(*workload) }.plan().unwrap();
            assert!(
                plan.steps.iter().any(|step| step.measured && step.load.n_replicas() > 0),
                "{workload:?}"
            );
            let nodes: usize =
                plan.shapes.iter().map(|shape| inventory::parse_shape(shape).unwrap().len()).sum();
            assert_eq!(nodes, 100, "{workload:?}");
        }
    }

    #[test]
    fn too_much_is_refused() {
        let wanted = Wanted { units: Some(21), ..wanted(Workload::Service) };
        assert!(wanted.plan().err().unwrap().message.contains("there is room for 20000"));
    }

    #[test]
    fn preemption_without_agents_is_refused() {
        let failure = wanted(Workload::Preempt).plan().err().unwrap();
        assert_eq!((failure.code, failure.hint.as_deref()), (Code::Usage, Some("add --agents")));
    }

    #[test]
    fn full_ends_at_99_per_cent() {
        let steps = wanted(Workload::Full).plan().unwrap().steps;
        let sizes: Vec<usize> = steps.iter().map(|step| step.load.n_replicas()).collect();
        assert_eq!(sizes, [10_000, 2_000, 5_800, 2_000]);
    }

    #[test]
    fn the_online_share_is_one_of_running_units() {
        for (share, replicas) in [(0, 1), (25, 1), (50, 1), (100, 1), (25, 100), (75, 100)] {
            let units = mix_units(share, replicas, 100_000, &mut StdRng::seed_from_u64(1));
            let n_all: usize = units.iter().map(|(_, replicas)| count(*replicas)).sum();
            let services = units.iter().filter(|(class, _)| *class == v1::WorkloadClass::Service);
            let n_online: usize = services.map(|(_, replicas)| count(*replicas)).sum();
            assert!((n_online * 100 / n_all).abs_diff(count(share)) <= 1, "{share}: {n_online} of {n_all}");
        }
    }
}
