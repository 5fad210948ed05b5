//! I3: agents run current incarnations only, and each was placed once.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::{
    ids::{NodeId, ReplicaId, RunningUnitId, UnitId},
    words,
};
use godel_domain::running_units::Phase;

use super::{
    AgentReport, Evidence,
    history::{Replay, node_name},
    local, processes,
    unreadable::LeftOut,
    verdict::Findings,
    world::{World, WorldRow},
};

/// Most nodes that a reason names.
const N_NAMED_MAX: usize = 5;

/// Nodes that a reason names, the first ones of them.
#[derive(Default)]
pub(super) struct Named {
    named: Vec<String>,
    n: usize,
}

impl Named {
    pub(super) fn add(&mut self, name: String) {
        if self.n < N_NAMED_MAX {
            self.named.push(name);
        }
        self.n += 1;
    }

    /// How many there are, and the first of them; `None`: none.
    pub(super) fn names(&self) -> Option<(usize, String)> {
        let more = if self.n > self.named.len() { ", ..." } else { "" };
        (self.n > 0).then(|| (self.n, format!("{}{more}", self.named.join(", "))))
    }
}

/// Why an incarnation that is on a node should not be there; `None`: it should.
pub(super) fn placed_elsewhere(
    world: &World,
    row: Option<&WorldRow>,
    incarnation: u32,
    node: NodeId,
) -> Option<String> {
    match row {
        None => Some("was never placed".to_owned()),
        Some(row) if row.incarnation != incarnation => {
            Some(format!("incarnation {} is current", row.incarnation))
        }
        Some(row) if !row.is_live() => Some(format!("it is {:?}", row.phase)),
        Some(row) if row.node != node => Some(format!("it is placed on {}", node_name(world, row.node))),
        Some(_) => None,
    }
}

pub(super) fn check(evidence: &Evidence, replay: &Replay, left: &LeftOut<'_>) -> Findings {
    let Evidence { listed: world, before, agents, history, .. } = evidence;
    let moved = |row: &WorldRow| before.as_ref().is_some_and(|before| row.revision > before.since);
    let mut findings = replay.placements.clone();
    let mut running: BTreeMap<(UnitId, u32), &str> = BTreeMap::new();
    let mut n_running = 0;
    let connected: BTreeMap<_, _> =
        agents.iter().filter(|agent| agent.connected).map(|agent| (agent.node, agent)).collect();
    let mut reported: BTreeSet<(RunningUnitId, NodeId)> = BTreeSet::new();
    for agent in connected.values() {
        reported.extend(agent.running.iter().map(|run| (run.id, agent.node)));
        for run in agent.running.iter().filter(|run| run.phase.is_live()) {
            n_running += 1;
            let RunningUnitId { unit: unit_id, replica: ReplicaId { ordinal, incarnation } } = run.id;
            if left.units.contains(&unit_id) {
                continue;
            }
            let unit = world.units.get(&unit_id);
            let row = unit.and_then(|unit| unit.rows.get(&ordinal));
            if row.is_some_and(moved) {
                continue;
            }
            let name = unit.map_or_else(|| format!("unit id {unit_id}"), super::world::WorldUnit::name);
            if let Some(other) = running.insert((unit_id, ordinal), &agent.name) {
                findings.add(|| format!("{name}/{ordinal} runs on {other} and on {}", agent.name));
            }
            let what = placed_elsewhere(world, row, incarnation, agent.node);
            if let Some(what) = what {
                findings.add(|| {
                    format!("agent {} runs {name}/{ordinal} incarnation {incarnation}: {what}", agent.name)
                });
            }
        }
    }
    for (id, unit) in &world.units {
        let started =
            unit.rows.iter().filter(|(_, row)| matches!(row.phase, Phase::Starting | Phase::Running));
        for (ordinal, row) in started {
            let Some(agent) = connected.get(&row.node) else { continue };
            if !reported.contains(&(RunningUnitId::new(*id, *ordinal, row.incarnation), row.node))
                && !moved(row)
            {
                findings.add(|| {
                    format!(
                        "{}/{ordinal} is {:?} on {}, but its agent does not have it",
                        unit.name(),
                        row.phase,
                        agent.name
                    )
                });
            }
        }
    }
    if let Some(gap) = history.gap() {
        findings.not_judged(format!("placements of what was placed before the history: {gap}"));
    }
    let mut away_named = Named::default();
    away(world, &connected).into_iter().for_each(|name| away_named.add(name.to_owned()));
    if let Some((n, names)) = away_named.names() {
        findings.not_judged(format!("what runs on {n} nodes whose agents are not connected: {names}"));
    }
    let (n_seen, n_looked) = processes::check(evidence, left, moved, &mut findings);
    let n_local = local::check(evidence, left, moved, &mut findings);
    let seen = match n_looked {
        0 => String::new(),
        _ => format!(", {n_seen} of them seen by their processes on {n_looked} nodes"),
    };
    let here = match n_local {
        0 => String::new(),
        _ => format!(
            ", {} of this machine looked at",
            words::count(u32::try_from(n_local).unwrap_or(u32::MAX), "process")
        ),
    };
    findings.checked(format!(
        "{} agents connected, {n_running} running units reported{seen}{here}; {} placements in the history{}, none twice",
        connected.len(),
        replay.n_placements,
        history.since()
    ));
    findings
}

/// Nodes that once had an agent which does not say now what runs there.
fn away<'a>(world: &'a World, connected: &BTreeMap<NodeId, &AgentReport>) -> Vec<&'a str> {
    let nodes = world.nodes.iter();
    let away = nodes.filter(|(id, node)| node.report.is_some() && !connected.contains_key(id));
    away.map(|(_, node)| node.name()).collect()
}
