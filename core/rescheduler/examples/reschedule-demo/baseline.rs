//! What an eviction of the descheduler's kind does, followed by the scheduler of the churn: it names no target, so the scheduler
//! places what was evicted as it would place anything. Fixed before the policies were tuned:
//!
//! - defragmentation: nodes of eight GPUs with work, least GPUs in use first, are emptied one by one (`HighNodeUtilization`),
//!   until a tenth of what runs is evicted. A node that is being emptied is cordoned meanwhile.
//! - fragmentation rate: nodes that typical work can use least of, first ones first, evict running units in order of submission,
//!   latest first, as long as the node is less fragmented without them, until a tenth of what runs is evicted. A node that
//!   evicts is cordoned meanwhile.
//! - load balance: nodes above the threshold, hottest first, evict running units in order of submission, latest first, until they
//!   are below (`LowNodeUtilization`); the scheduler looks at requests only.

use godel_core_rescheduler::{HotNodes, Layout, LoadBalance};

use crate::openb::{Chooses, Filling, PlacedTask, Trace, snapshot};

/// What it came to.
pub(crate) struct Outcome {
    pub(crate) n_moves: usize,
    pub(crate) n_whole: usize,
    pub(crate) rate: f64,
}

fn filled<'t>(trace: &'t Trace, tasks: &[PlacedTask], seed: u64) -> Filling<'t> {
    let mut filling = Filling::new(trace, seed);
    tasks.iter().for_each(|task| filling.charge(task, 1));
    filling
}

/// Empties nodes of eight GPUs.
pub(crate) fn empty_nodes(trace: &Trace, tasks: &[PlacedTask], seed: u64) -> Outcome {
    let mut filling = filled(trace, tasks, seed);
    let mut tasks = tasks.to_vec();
    let n_moves_max = tasks.len() / 10;
    let used = |tasks: &[PlacedTask], node: usize| -> i64 {
        tasks.iter().filter(|task| task.node == node).map(|task| trace.shapes[task.shape].gpu_milli()).sum()
    };
    let mut nodes: Vec<(i64, usize)> = (0..trace.nodes.len())
        .filter(|node| trace.nodes[*node].n_gpus == 8)
        .map(|node| (used(&tasks, node), node))
        .filter(|(used, _)| *used > 0)
        .collect();
    nodes.sort_unstable();
    let mut n_moves = 0;
    for (_, node) in nodes {
        let evicted: Vec<usize> = (0..tasks.len()).filter(|at| tasks[*at].node == node).collect();
        if n_moves + evicted.len() > n_moves_max {
            break;
        }
        n_moves += evicted.len();
        evicted.iter().for_each(|at| filling.charge(&tasks[*at], -1));
        let cordon = filling.nodes[node].clone();
        filling.close(node);
        let placed: Vec<_> =
            evicted.iter().map(|at| (*at, filling.place(tasks[*at].shape, Chooses::ByGradient))).collect();
        filling.open(node, cordon);
        for (at, task) in placed {
            // What fits nowhere else comes back.
            let back = || tasks[at].clone();
            let task = task.unwrap_or_else(|| {
                let task = back();
                filling.charge(&task, 1);
                task
            });
            tasks[at] = task;
        }
    }
    Outcome { n_moves, n_whole: filling.n_whole(), rate: filling.rate() }
}

/// Evicts what its node is less fragmented without.
pub(crate) fn evict_fragmenting(trace: &Trace, tasks: &[PlacedTask], seed: u64) -> Outcome {
    let mut filling = filled(trace, tasks, seed);
    let mut tasks = tasks.to_vec();
    let n_moves_max = tasks.len() / 10;
    let mut nodes: Vec<(f64, usize)> =
        (0..trace.nodes.len()).map(|node| (filling.fragmentation(node), node)).collect();
    nodes.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut n_moves = 0;
    for (_, node) in nodes {
        let on_node: Vec<usize> = (0..tasks.len()).rev().filter(|at| tasks[*at].node == node).collect();
        for at in on_node {
            if n_moves >= n_moves_max {
                break;
            }
            let before = filling.fragmentation(node);
            filling.charge(&tasks[at], -1);
            if filling.fragmentation(node) >= before {
                filling.charge(&tasks[at], 1);
                continue;
            }
            let cordon = filling.nodes[node].clone();
            filling.close(node);
            let placed = filling.place(tasks[at].shape, Chooses::ByGradient);
            filling.open(node, cordon);
            match placed {
                Some(task) => {
                    n_moves += 1;
                    tasks[at] = task;
                }
                None => filling.charge(&tasks[at], 1),
            }
        }
    }
    Outcome { n_moves, n_whole: filling.n_whole(), rate: filling.rate() }
}

/// Cools hot nodes: hot nodes by CPU and network afterwards, and moves.
pub(crate) fn cool_nodes(
    trace: &Trace,
    tasks: &[PlacedTask],
    seed: u64,
    policy: LoadBalance,
) -> anyhow::Result<([HotNodes; 2], usize)> {
    let facts = snapshot(trace, tasks, seed);
    let mut filling = filled(trace, tasks, seed);
    let mut tasks = tasks.to_vec();
    let share = |tasks: &[PlacedTask], node: usize| {
        let on_node = (0..tasks.len()).filter(|at| tasks[*at].node == node);
        let (mut cpu, mut network) = (0, 0);
        for at in on_node {
            cpu += facts.running[at].usage.cpu_milli;
            network += facts.running[at].usage.network_bps;
        }
        let of = |used: i64, has: i64| {
            f64::from(i32::try_from(used / 1_000).unwrap_or(i32::MAX))
                / f64::from(i32::try_from(has / 1_000).unwrap_or(i32::MAX)).max(1.0)
        };
        of(cpu, trace.nodes[node].cpu).max(of(network, 25_000_000_000))
    };
    let mut hot: Vec<(f64, usize)> = (0..trace.nodes.len()).map(|node| (share(&tasks, node), node)).collect();
    hot.retain(|(share, _)| *share > policy.hot);
    hot.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut n_moves = 0;
    for (_, node) in hot {
        let on_node: Vec<usize> = (0..tasks.len()).rev().filter(|at| tasks[*at].node == node).collect();
        for at in on_node {
            if share(&tasks, node) <= policy.hot || n_moves >= tasks.len() / 10 {
                break;
            }
            filling.charge(&tasks[at], -1);
            let closed = filling.nodes[node].clone();
            filling.close(node);
            let placed = filling.place(tasks[at].shape, Chooses::ByGradient);
            filling.open(node, closed);
            match placed {
                Some(task) => {
                    n_moves += 1;
                    tasks[at] = task;
                }
                None => filling.charge(&tasks[at], 1),
            }
        }
    }
    let after = snapshot(trace, &tasks, seed);
    let layout = Layout::new(&after)?;
    Ok((policy.hot_nodes(&layout), n_moves))
}
