//! The openb trace through three schedulers that work at the same time on pictures that lag behind.

use super::*;

const N_SCHEDULERS: usize = 3;
/// Decided by each scheduler before it sees what the others did.
const BURST: usize = 16;

struct Task {
    demand: Demand,
    is_service: bool,
}

fn read(name: &str) -> Vec<Vec<String>> {
    let path = format!("{}/../../data/openb/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().skip(1).map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

fn number(text: &str) -> i64 {
    if text.is_empty() { 0 } else { text.parse().unwrap() }
}

fn nodes() -> BTreeMap<NodeId, NaiveNode> {
    let rows = (1u32..).zip(read("openb_node_list_all_node.csv"));
    rows.map(|(id, row)| {
        let (cpu, memory) = (number(&row[1]), number(&row[2]) << 20);
        (NodeId(id), NaiveNode::new(cpu, memory, row[3].parse().unwrap(), &row[4]))
    })
    .collect()
}

fn tasks(name: &str) -> Vec<Task> {
    let task = |row: Vec<String>| {
        let requests = resources(number(&row[1]), number(&row[2]) << 20);
        let count = u32::try_from(number(&row[3])).unwrap();
        let models: Vec<&str> = row[5].split('|').filter(|model| !model.is_empty()).collect();
        let devices = gpus(count, u32::try_from(number(&row[4])).unwrap(), &models);
        Task {
            demand: Demand { requests, devices, host_ports: Vec::new(), zones: None },
            is_service: row[6] != "BE",
        }
    };
    read(name).into_iter().map(task).collect()
}

pub(super) struct Replay {
    pub(super) n_unplaced: usize,
    pub(super) n_conflicts: u64,
    pub(super) gpu_milli: i64,
    pub(super) least_share: u64,
}

/// Replays a task list; panics if a task is left over that would fit.
fn replay(tasks: &[Task], config: &Config, profile: Option<&str>, seed: u64) -> Replay {
    let mut binder = NaiveBinder { nodes: nodes(), ..NaiveBinder::default() };
    let mut schedulers: Vec<Scheduler> =
        (0..N_SCHEDULERS as u64).map(|idx| Scheduler::new(config.clone(), seed * 31 + idx)).collect();
    for scheduler in &mut schedulers {
        for (id, node) in &binder.nodes {
            scheduler.picture.cluster.nodes_mut().put_spec(node_spec(id.0), Revision(1));
            let capacity = resources(node.capacity[0], node.capacity[1]);
            let report = node_report(id.0, capacity, node.gpus.len(), &node.model);
            scheduler.picture.cluster.nodes_mut().put_report(report, Revision(1));
        }
    }
    let by_class = |task: &Task| {
        if task.is_service { "least-allocated" } else { "most-allocated" }
    };
    let spec_of = |id: usize| {
        unit(id as u64, 1, 1, tasks[id - 1].demand.clone())
            .profile(profile.unwrap_or_else(|| by_class(&tasks[id - 1])))
    };
    let mut next = 1;
    let mut now = Millis(0);
    loop {
        now = now.plus(1);
        for idx in 0..N_SCHEDULERS * BURST {
            if next <= tasks.len() {
                schedulers[idx % N_SCHEDULERS]
                    .on_assign(&assignment(&spec_of(next), Revision(1), &replicas(&[(0, 0)]), 0), now);
                next += 1;
            }
        }
        let steps: Vec<Vec<Decision>> =
            schedulers.iter_mut().map(|scheduler| scheduler.step(now, BURST).decisions).collect();
        let mut changes = Vec::new();
        for turn in 0..BURST {
            for (idx, decisions) in steps.iter().enumerate() {
                let Some(decision) = decisions.get(turn) else { continue };
                let unit = usize::try_from(decision.unit.0).unwrap();
                let (outcome, watched) = binder.decide(&spec_of(unit), decision);
                schedulers[idx].on_outcome(&outcome, now);
                changes.extend(watched.into_iter().map(|change| (outcome.revision, change)));
            }
        }
        for (revision, change) in &changes {
            for scheduler in &mut schedulers {
                scheduler.load(change, *revision, 0, now);
            }
        }
        let is_idle = schedulers.iter().all(|scheduler| scheduler.next_wake().is_none());
        if next > tasks.len() && is_idle && changes.is_empty() {
            break;
        }
    }
    for (idx, task) in tasks.iter().enumerate() {
        if !binder.bound.contains_key(&(UnitId(idx as u64 + 1), 0)) {
            let fits = binder.nodes.values().any(|node| node.fits(&task.demand));
            assert!(!fits, "task {idx} is left over and would fit: {:?}", task.demand);
        }
    }
    let left: i64 = binder.nodes.values().flat_map(|node| &node.gpus).sum();
    Replay {
        n_unplaced: tasks.len() - binder.bound.len(),
        n_conflicts: schedulers.iter().map(|scheduler| scheduler.stats().conflicts).sum(),
        gpu_milli: 6_212_000 - left,
        least_share: schedulers.iter().map(|scheduler| scheduler.stats().placed).min().unwrap_or(0),
    }
}

/// At most 3 % may be left over (244); plain greedy orders leave 216, 421 and 475.
#[test]
fn the_default_trace_leaves_few_tasks_and_none_that_fits() {
    let tasks = tasks("openb_pod_list_default.csv");
    let replay = replay(&tasks, &Config::default(), Some("most-allocated"), 1);
    assert!(replay.n_unplaced <= 210, "{} unplaced", replay.n_unplaced);
    assert!(replay.gpu_milli >= 5_850_000, "{} milli allocated", replay.gpu_milli);
    assert!(replay.least_share * 5 >= 8152, "the scheduler with least to do placed {}", replay.least_share);
    assert!(replay.n_conflicts < 8152 / 10, "{} conflicts", replay.n_conflicts);
}

/// A third of the GPU tasks names models, and services spread by default; a plain packing order leaves about
/// 1,300.
#[test]
fn the_trace_with_models_leaves_nothing_that_fits() {
    let tasks = tasks("openb_pod_list_gpuspec33.csv");
    let replay = replay(&tasks, &Config::default(), None, 1);
    assert!(replay.n_unplaced <= 800, "{} unplaced", replay.n_unplaced);
}
