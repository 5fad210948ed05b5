//! I3: what runs on the machine of the audit, by the environment of its processes, whatever agents and keepers say.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::ids::UnitId;

use super::{
    Before, Evidence,
    agents::placed_elsewhere,
    unreadable::LeftOut,
    verdict::Findings,
    world::{World, WorldRow},
};

/// A process that an agent of some cluster has started on this machine, as its environment says it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocalProcess {
    /// Process number and start.
    pub process: (u32, u64),
    /// The start of a command that it is of: no two have the same.
    pub mark: String,
    /// Name and uid of its node.
    pub node: (String, String),
    /// Uid of its unit.
    pub unit_uid: String,
    /// Which replica.
    pub ordinal: u32,
    /// Which life of it.
    pub incarnation: u32,
}

/// Adds replicas of which two commands run here, and processes of what should not be here, if they were there at each look. Returns how many
/// processes were looked at.
pub(super) fn check(
    evidence: &Evidence,
    left: &LeftOut<'_>,
    moved: impl Fn(&WorldRow) -> bool,
    findings: &mut Findings,
) -> usize {
    let world = &evidence.listed;
    let was_there = |one: &LocalProcess| {
        evidence.before.as_ref().is_none_or(|before: &Before| before.local.contains(one))
    };
    // What runs on without its agent is not judged, as on other machines.
    let connected: BTreeSet<&str> =
        evidence.agents.iter().filter(|agent| agent.connected).map(|agent| agent.name.as_str()).collect();
    let own: Vec<(&LocalProcess, UnitId)> = of_cluster(world, &evidence.local)
        .filter(|(one, _)| connected.contains(one.node.0.as_str()))
        .filter(|(one, unit)| was_there(one) && !left.units.contains(unit))
        .collect();
    let mut marks: BTreeMap<(UnitId, u32), BTreeMap<&str, u32>> = BTreeMap::new();
    for (one, unit) in &own {
        let of_replica = marks.entry((*unit, one.ordinal)).or_default();
        of_replica.entry(one.mark.as_str()).or_insert(one.process.0);
    }
    let mut said: BTreeSet<(UnitId, u32)> = BTreeSet::new();
    for ((unit, ordinal), marks) in marks.iter().filter(|(_, marks)| marks.len() > 1) {
        said.insert((*unit, *ordinal));
        findings.add(|| {
            let pids: Vec<String> = marks.values().map(u32::to_string).collect();
            let name = super::processes::name_of(world, *unit);
            format!(
                "{} commands of {name}/{ordinal} run on this machine: processes {}",
                marks.len(),
                pids.join(", ")
            )
        });
    }
    for (one, unit) in &own {
        let row = world.units.get(unit).and_then(|unit| unit.rows.get(&one.ordinal));
        if row.is_some_and(&moved) {
            continue;
        }
        let on = world.nodes.iter().find(|(_, node)| node.name() == one.node.0).map(|(id, _)| *id);
        let what = on.and_then(|on| placed_elsewhere(world, row, one.incarnation, on));
        // One line for each replica.
        if let Some(what) = what.filter(|_| said.insert((*unit, one.ordinal))) {
            findings.add(|| {
                let (name, LocalProcess { process, node, ordinal, incarnation, .. }) =
                    (super::processes::name_of(world, *unit), one);
                format!(
                    "process {} of {name}/{ordinal} incarnation {incarnation} runs on this machine, for node {}: {what}",
                    process.0, node.0
                )
            });
        }
    }
    own.len()
}

/// Those of this cluster: there is their unit, and there is their node, by its name or by its uid. Others may run on the same machine.
fn of_cluster<'a>(
    world: &'a World,
    local: &'a [LocalProcess],
) -> impl Iterator<Item = (&'a LocalProcess, UnitId)> {
    let units: BTreeMap<&str, UnitId> = world
        .units
        .iter()
        .filter_map(|(id, unit)| Some((unit.record.as_ref()?.value.spec.uid.as_str(), *id)))
        .collect();
    let nodes: BTreeSet<&str> = world
        .nodes
        .values()
        .filter_map(|node| Some([node.name(), node.spec.as_ref()?.value.uid.as_str()]))
        .flatten()
        .collect();
    let is_known =
        move |(name, uid): &(String, String)| nodes.contains(name.as_str()) || nodes.contains(uid.as_str());
    local
        .iter()
        .filter(move |one| is_known(&one.node))
        .filter_map(move |one| Some((one, *units.get(one.unit_uid.as_str())?)))
}
