//! The agents: they start what is bound to their nodes, stop what has to leave, and say so while they are in contact.

use std::collections::BTreeMap;

use godel_audit::{AgentReport, AgentRun};
use godel_base::ids::{NodeId, RunningUnitId, UnitId};
use godel_domain::{
    change::Change,
    defaults::stops_without_contact,
    running_units::{Phase, RunChange, RunningUnit, Statuses},
    unit::RestartPolicy,
};

use super::{
    net::{Event, Net},
    numbers::idx,
    store::Store,
};

#[derive(Clone, Copy, Debug)]
struct Run {
    incarnation: u32,
    phase: Phase,
}

/// One agent.
#[derive(Debug, Default)]
struct Agent {
    in_contact: bool,
    runs: BTreeMap<(UnitId, u32), Run>,
    /// It is to look at its node.
    is_called: bool,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Agents {
    agents: BTreeMap<NodeId, Agent>,
}

impl Agents {
    /// A node joins.
    pub(super) fn join(&mut self, node: NodeId) {
        self.agents.insert(node, Agent { in_contact: true, ..Agent::default() });
    }

    pub(super) fn disconnect(&mut self, node: NodeId) {
        self.agents.remove(&node);
    }

    pub(super) fn nodes(&self) -> Vec<NodeId> {
        self.agents.keys().copied().collect()
    }

    pub(super) fn is_in_contact(&self, node: NodeId) -> bool {
        self.agents.get(&node).is_some_and(|agent| agent.in_contact)
    }

    pub(super) fn set_contact(&mut self, node: NodeId, in_contact: bool) {
        if let Some(agent) = self.agents.get_mut(&node) {
            agent.in_contact = in_contact;
        }
    }

    /// Without contact for too long: what must not run twice stops, and nobody hears of it yet.
    pub(super) fn stop_alone(&mut self, node: NodeId, store: &Store) {
        let Some(agent) = self.agents.get_mut(&node) else { return };
        for ((unit, _), run) in &mut agent.runs {
            let record = store.record(*unit);
            if run.phase.is_live()
                && record
                    .is_none_or(|record| stops_without_contact(record.spec.class, record.spec.min_member))
            {
                run.phase = Phase::Stopped;
            }
        }
    }

    /// Something is bound to a node, or has to leave it.
    pub(super) fn call(&mut self, node: NodeId, net: &mut Net) {
        if let Some(agent) = self.agents.get_mut(&node)
            && agent.in_contact
            && !std::mem::replace(&mut agent.is_called, true)
        {
            net.soon(Event::Agent(node));
        }
    }

    /// An agent looks at its node: what it has to say of it.
    pub(super) fn report_runs(&mut self, node: NodeId, store: &Store, net: &mut Net) -> Vec<Change> {
        let Some(agent) = self.agents.get_mut(&node) else { return Vec::new() };
        agent.is_called = false;
        if !agent.in_contact {
            return Vec::new();
        }
        let mut said: BTreeMap<UnitId, Statuses> = BTreeMap::new();
        let mut runs = BTreeMap::new();
        let mut again = false;
        let bound = store.rows.iter().flat_map(|(unit, rows)| rows.live().map(move |row| (*unit, row)));
        for (unit, (ordinal, row)) in bound.filter(|(_, (_, row))| row.node == node) {
            let known = agent.runs.get(&(unit, ordinal)).filter(|run| run.incarnation == row.incarnation);
            let phase = match known.map(|run| run.phase) {
                Some(ended) if ended.is_ended() => ended,
                // Some take longer to stop.
                Some(live) if row.eviction.is_some() && net.numbers.chance(40) => {
                    again = true;
                    live
                }
                _ if row.eviction.is_some() => Phase::Stopped,
                None if net.numbers.chance(30) => {
                    again = true;
                    Phase::Starting
                }
                _ => Phase::Running,
            };
            if phase > row.phase {
                say(&mut said, unit, ordinal, row, phase);
            }
            if phase.is_live() {
                runs.insert(
                    (unit, ordinal),
                    Run { incarnation: row.incarnation, phase: phase.max(row.phase) },
                );
            }
        }
        agent.runs = runs;
        if again {
            self.call(node, net);
        }
        said.into_iter().map(|(unit, statuses)| Change::Rows(unit, RunChange::Statuses(statuses))).collect()
    }

    /// One of the running units of nodes in contact ends by itself, or begins again in place.
    pub(super) fn end(&mut self, choice: u64, is_well: bool, store: &Store) -> Option<Change> {
        let live: Vec<(NodeId, UnitId, u32)> = self
            .agents
            .iter()
            .filter(|(_, agent)| agent.in_contact)
            .flat_map(|(node, agent)| agent.runs.keys().map(move |(unit, ordinal)| (*node, *unit, *ordinal)))
            .collect();
        if live.is_empty() {
            return None;
        }
        let (node, unit, ordinal) = live[idx(choice, live.len())];
        let row = store.rows.get(&unit)?.row(ordinal);
        let policy = store.record(unit)?.spec.restart_policy;
        let runs = &mut self.agents.get_mut(&node)?.runs;
        let run = runs.get_mut(&(unit, ordinal)).filter(|run| run.incarnation == row.incarnation)?;
        if row.node != node || !row.phase.is_live() {
            return None;
        }
        let restarts = policy == RestartPolicy::OnFailure && !is_well && row.restarts == 0;
        let (phase, restarts) = match (restarts, is_well) {
            (true, _) => (Phase::Running, row.restarts + 1),
            (false, true) => (Phase::Succeeded, row.restarts),
            (false, false) => (Phase::Failed, row.restarts),
        };
        run.phase = phase;
        if phase.is_ended() {
            runs.remove(&(unit, ordinal));
        }
        let statuses = Statuses {
            ordinals: vec![ordinal],
            incarnations: vec![row.incarnation],
            phases: vec![phase],
            exit_codes: vec![i32::from(!is_well)],
            restarts: vec![restarts],
            ends: Vec::new(),
        };
        Some(Change::Rows(unit, RunChange::Statuses(statuses)))
    }

    /// For the audit.
    pub(super) fn reports(&self) -> Vec<AgentReport> {
        let run = |((unit, ordinal), run): (&(UnitId, u32), &Run)| AgentRun {
            id: RunningUnitId::new(*unit, *ordinal, run.incarnation),
            phase: run.phase,
        };
        self.agents
            .iter()
            .map(|(node, agent)| AgentReport {
                node: *node,
                name: format!("n{node}"),
                connected: agent.in_contact,
                running: agent.runs.iter().map(run).collect(),
            })
            .collect()
    }
}

fn say(said: &mut BTreeMap<UnitId, Statuses>, unit: UnitId, ordinal: u32, row: &RunningUnit, phase: Phase) {
    let statuses = said.entry(unit).or_default();
    statuses.ordinals.push(ordinal);
    statuses.incarnations.push(row.incarnation);
    statuses.phases.push(phase);
    statuses.exit_codes.push(0);
    statuses.restarts.push(row.restarts);
}
