//! I3: agents run current incarnations only, and each was placed once.

use std::collections::{BTreeMap, BTreeSet};

use godel_domain::{
    ids::{NodeId, ReplicaId, RunningUnitId, UnitId},
    running_units::Phase,
};

use super::{
    AgentReport, Evidence,
    history::{Replay, node_name},
    unreadable::LeftOut,
    verdict::Findings,
    world::{World, WorldRow},
};

/// Most nodes that a reason names.
const N_NAMED_MAX: usize = 5;

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
            let what = match row {
                None => Some("was never placed".to_owned()),
                Some(row) if row.incarnation != incarnation => {
                    Some(format!("incarnation {} is current", row.incarnation))
                }
                Some(row) if !row.is_live() => Some(format!("it is {:?}", row.phase)),
                Some(row) if row.node != agent.node => {
                    Some(format!("it is placed on {}", node_name(world, row.node)))
                }
                Some(_) => None,
            };
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
    let away = away(world, &connected);
    if !away.is_empty() {
        let named: Vec<&str> = away.iter().take(N_NAMED_MAX).copied().collect();
        let more = if away.len() > named.len() { ", ..." } else { "" };
        findings.not_judged(format!(
            "what runs on {} nodes whose agents are not connected: {}{more}",
            away.len(),
            named.join(", ")
        ));
    }
    findings.checked(format!(
        "{} agents connected, {n_running} running units reported; {} placements in the history{}, none twice",
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
