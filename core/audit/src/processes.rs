//! I3: what really runs on nodes, found by their agents among the processes of their machines.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::{
    ids::{NodeId, ReplicaId, RunningUnitId, UnitId},
    words,
};
use godel_domain::{node::NodeRuntime, running_units::Phase, unit::RunSpec};

use super::{
    Before, Evidence,
    agents::{Named, placed_elsewhere},
    unreadable::LeftOut,
    verdict::Findings,
    world::{World, WorldNode, WorldRow, WorldUnit},
};

/// What really runs on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeProcesses {
    /// The node.
    pub node: NodeId,
    /// Name of the node.
    pub name: String,
    /// Running units that have processes.
    pub running: Vec<RunProcesses>,
    /// Processes that no running unit owns.
    pub orphans: Vec<Orphan>,
    /// Why something may be missing; `None`: this is everything.
    pub failure: Option<String>,
}

/// The processes of one running unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunProcesses {
    /// The running unit.
    pub id: RunningUnitId,
    /// How many there are, at least one.
    pub n_processes: u32,
}

/// A process, or a container, that no running unit owns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Orphan {
    /// Process number and start; zeros: it is a container.
    pub process: (u32, u64),
    /// Name of the program or of the container.
    pub name: String,
    /// Whose it would be.
    pub unit: OrphanUnit,
    /// Which replica of that.
    pub replica: ReplicaId,
}

/// The unit that an orphan would be of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OrphanUnit {
    /// By id.
    Id(UnitId),
    /// By uid.
    Uid(String),
}

/// Adds what is found, and returns how many running units with processes were seen on how many nodes.
pub(super) fn check(
    evidence: &Evidence,
    left: &LeftOut<'_>,
    moved: impl Fn(&WorldRow) -> bool,
    findings: &mut Findings,
) -> (usize, usize) {
    let Evidence { listed: world, processes, .. } = evidence;
    let mut running: BTreeMap<(UnitId, u32), &str> = BTreeMap::new();
    let mut n_running = 0;
    for on in processes {
        for RunProcesses { id, n_processes } in &on.running {
            n_running += 1;
            let RunningUnitId { unit, replica: ReplicaId { ordinal, incarnation } } = *id;
            let row = world.units.get(&unit).and_then(|unit| unit.rows.get(&ordinal));
            if left.units.contains(&unit) || row.is_some_and(&moved) {
                continue;
            }
            let name = name_of(world, unit);
            if let Some(other) = running.insert((unit, ordinal), &on.name) {
                findings.add(|| format!("processes of {name}/{ordinal} are on {other} and on {}", on.name));
            }
            if let Some(what) = placed_elsewhere(world, row, incarnation, on.node) {
                findings.add(|| {
                    let processes = words::count(*n_processes, "process");
                    format!(
                        "{processes} of {name}/{ordinal} incarnation {incarnation} live on {}: {what}",
                        on.name
                    )
                });
            }
        }
        add_orphans(evidence, left, on, findings);
    }
    add_missing(evidence, left, &moved, findings);
    add_unknown(evidence, findings);
    (n_running, processes.len())
}

/// An orphan may be about to end: only one that was there at each look counts.
fn add_orphans(evidence: &Evidence, left: &LeftOut<'_>, on: &NodeProcesses, findings: &mut Findings) {
    let world = &evidence.listed;
    for orphan in &on.orphans {
        let was_there = |before: &Before| before.orphans.contains(&(on.node, orphan.clone()));
        let unit = match &orphan.unit {
            OrphanUnit::Id(unit) => Some(*unit),
            OrphanUnit::Uid(uid) => unit_of_uid(world, uid),
        };
        if !evidence.before.as_ref().is_none_or(was_there)
            || unit.is_some_and(|unit| left.units.contains(&unit))
        {
            continue;
        }
        let ReplicaId { ordinal, incarnation } = orphan.replica;
        findings.add(|| {
            let what = match orphan.process {
                (0, _) => format!("container {}", orphan.name),
                (pid, _) => format!("process {pid} ({})", orphan.name),
            };
            let name = match (&orphan.unit, unit) {
                (_, Some(unit)) => name_of(world, unit),
                (OrphanUnit::Uid(uid), None) => format!("unit with uid {uid}"),
                (OrphanUnit::Id(unit), None) => format!("unit id {unit}"),
            };
            format!(
                "{what} on {} is of {name}/{ordinal} incarnation {incarnation}, but no running unit owns it",
                on.name
            )
        });
    }
}

/// Running units without a process, on nodes of which everything is known.
fn add_missing(
    evidence: &Evidence,
    left: &LeftOut<'_>,
    moved: impl Fn(&WorldRow) -> bool,
    findings: &mut Findings,
) {
    let Evidence { listed: world, processes, .. } = evidence;
    let known: BTreeMap<NodeId, &NodeProcesses> =
        processes.iter().filter(|on| on.failure.is_none()).map(|on| (on.node, on)).collect();
    if known.is_empty() {
        return;
    }
    let alive: BTreeSet<(NodeId, RunningUnitId)> =
        processes.iter().flat_map(|on| on.running.iter().map(|run| (on.node, run.id))).collect();
    for (id, unit) in world.units.iter().filter(|(id, _)| !left.units.contains(id)) {
        for (ordinal, row) in unit.rows.iter().filter(|(_, row)| row.phase == Phase::Running) {
            let Some(on) = known.get(&row.node) else { continue };
            let run = RunningUnitId::new(*id, *ordinal, row.incarnation);
            if has_process(unit, row) && !alive.contains(&(row.node, run)) && !moved(row) {
                findings.add(|| {
                    format!(
                        "{}/{ordinal} is Running on {}, but it has no process there",
                        unit.name(),
                        on.name
                    )
                });
            }
        }
    }
}

/// Nodes that run processes and are connected, and did not say which.
fn add_unknown(evidence: &Evidence, findings: &mut Findings) {
    let runs_processes = |node: NodeId| {
        let runtime = |node: &WorldNode| node.report.as_ref().map(|report| report.value.runtime);
        evidence.listed.nodes.get(&node).and_then(runtime).is_some_and(NodeRuntime::runs_processes)
    };
    let answers: BTreeMap<NodeId, &NodeProcesses> =
        evidence.processes.iter().map(|on| (on.node, on)).collect();
    let mut unknown = Named::default();
    let connected = evidence.agents.iter().filter(|agent| agent.connected && runs_processes(agent.node));
    for agent in connected {
        match answers.get(&agent.node) {
            Some(NodeProcesses { failure: None, .. }) => {}
            Some(NodeProcesses { failure: Some(why), .. }) => unknown.add(format!("{}: {why}", agent.name)),
            None => unknown.add(format!("{}: its agent was not asked", agent.name)),
        }
    }
    if let Some((n, names)) = unknown.names() {
        findings.not_judged(format!("the processes on {}: {names}", words::count(n, "node")));
    }
}

/// Whether what a row says runs is a process: nothing is one of what is simulated, or waits for its command.
fn has_process(unit: &WorldUnit, row: &WorldRow) -> bool {
    let run = unit.record.as_ref().and_then(|record| {
        let groups = &record.value.spec.task_groups;
        Some(&groups.get(usize::from(row.group))?.template.run)
    });
    let is_one = |RunSpec { command, image, await_command_ms, .. }: &RunSpec| {
        await_command_ms.is_none() && (!command.is_empty() || image.is_some())
    };
    run.is_some_and(is_one)
}

pub(super) fn name_of(world: &World, unit: UnitId) -> String {
    world.units.get(&unit).map_or_else(|| format!("unit id {unit}"), WorldUnit::name)
}

fn unit_of_uid(world: &World, uid: &str) -> Option<UnitId> {
    let has_uid = |unit: &WorldUnit| unit.record.as_ref().is_some_and(|record| record.value.spec.uid == uid);
    world.units.iter().find(|(_, unit)| has_uid(unit)).map(|(id, _)| *id)
}
