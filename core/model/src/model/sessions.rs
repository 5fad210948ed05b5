//! What state does between the store and the agents: it tells each what is bound to its node and what has to leave, and makes what agents say
//! durable, in order, before it says so.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::ids::{NodeId, RunningUnitId, UnitId};
use godel_core_agent::{AssignedRun, RunKey, RunOrders, RunStatus, StatusReport, StopOrder};
use godel_domain::{
    change::Change,
    defaults::stops_without_contact,
    running_units::{Phase, Progress, RunChange, Statuses},
    unit::{RestartPolicy, UnitRecord},
};

use super::{
    agents::Agents,
    net::{Event, Net},
    reach::Mark,
    store::Store,
};

/// What state says to an agent.
#[derive(Debug)]
pub(super) enum FromState {
    /// So many statuses may stand in one report.
    Welcome(usize),
    Assign {
        runs: Vec<AssignedRun<()>>,
    },
    Stop(Vec<StopOrder>),
    Ack(u64),
    Echo(u64),
}

/// What an agent says.
#[derive(Debug)]
pub(super) enum FromAgent {
    Open(Vec<RunStatus>),
    Status(StatusReport),
    Heartbeat(u64),
}

/// A session as state has it.
#[derive(Debug, Default)]
pub(super) struct StateSession {
    /// 0: there is none.
    pub(super) number: u64,
    /// The agent was heard in it.
    pub(super) is_open: bool,
    /// What the agent has said of each.
    said: BTreeMap<RunningUnitId, Phase>,
    assigned: BTreeSet<RunningUnitId>,
    stopped: BTreeSet<RunningUnitId>,
    /// What is durable, and not said yet.
    ack: Option<u64>,
    /// What was bound before it opened is told.
    is_compared: bool,
    /// The agent is to be told something.
    is_called: bool,
}

impl StateSession {
    pub(super) fn new(number: u64) -> Self {
        Self { number, ..Self::default() }
    }
}

fn id_of(status: &RunStatus) -> RunningUnitId {
    RunningUnitId::new(UnitId(status.key.unit), status.key.ordinal, status.incarnation)
}

/// Whether a later incarnation of the same running unit is bound by now.
fn is_late(status: &RunStatus, store: &Store) -> bool {
    let rows = store.rows.get(&UnitId(status.key.unit));
    let row = rows.map(|rows| rows.row(status.key.ordinal));
    row.is_some_and(|row| row.incarnation > status.incarnation && row.phase.is_live())
}

impl Agents {
    /// Something is bound to a node, or has to leave it, or what its agent said is durable.
    pub(super) fn call(&mut self, node: NodeId, after_ms: u64, net: &mut Net) {
        let Some(session) = self.nodes.get_mut(&node).map(|node| &mut node.session) else { return };
        if session.is_open && !std::mem::replace(&mut session.is_called, true) {
            net.after(after_ms, Event::Tell(node, session.number));
        }
    }

    /// State tells an agent what is new.
    pub(super) fn tell(&mut self, id: NodeId, number: u64, store: &Store, net: &mut Net) {
        let stop_after_ms = self.stop_after_ms;
        let Some(session) = self.nodes.get_mut(&id).map(|node| &mut node.session) else { return };
        if session.number != number {
            return;
        }
        session.is_called = false;
        let again = !std::mem::replace(&mut session.is_compared, true);
        let (mut runs, mut stops, mut bound) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (unit, rows) in &store.rows {
            let Some(record) = store.record(*unit) else { continue };
            for (ordinal, row) in rows.live().filter(|(_, row)| row.node == id) {
                let running = RunningUnitId::new(*unit, ordinal, row.incarnation);
                bound.insert(running);
                let is_over = session.said.get(&running).is_some_and(|phase| phase.is_ended());
                if row.eviction.is_some() {
                    if !is_over && session.stopped.insert(running) {
                        stops.push(running);
                    }
                } else if !session.said.contains_key(&running) && session.assigned.insert(running) {
                    let orders = orders(record, row.restarts, stop_after_ms);
                    let key = RunKey { unit: unit.0, ordinal };
                    runs.push(AssignedRun { key, incarnation: row.incarnation, orders, again });
                }
            }
        }
        // What nobody knows there.
        let said = session.said.iter().filter(|(running, phase)| phase.is_live() && !bound.contains(running));
        let unknown: Vec<RunningUnitId> = said.map(|(running, _)| *running).collect();
        stops.extend(unknown.into_iter().filter(|running| session.stopped.insert(*running)));
        let notice_ms = if net.numbers.chance(20) { 20 } else { 0 };
        let stop = |running: RunningUnitId| StopOrder {
            key: RunKey { unit: running.unit.0, ordinal: running.replica.ordinal },
            incarnation: running.replica.incarnation,
            grace_ms: 0,
            notice_ms,
        };
        // First of all who leaves: what comes has their room.
        if !stops.is_empty() {
            net.down(id, number, FromState::Stop(stops.into_iter().map(stop).collect()));
        }
        if !runs.is_empty() {
            net.down(id, number, FromState::Assign { runs });
        }
        if let Some(sequence) = session.ack.take() {
            net.down(id, number, FromState::Ack(sequence));
        }
    }

    /// An agent is heard.
    pub(super) fn hear_agent(
        &mut self,
        id: NodeId,
        number: u64,
        message: FromAgent,
        store: &Store,
        net: &mut Net,
    ) {
        let node = self.nodes.get_mut(&id).filter(|node| node.in_contact && node.session.number == number);
        let Some(session) = node.map(|node| &mut node.session) else { return };
        let (sequence, mut statuses) = match message {
            FromAgent::Open(statuses) => {
                session.is_open = true;
                let n_statuses_max = net.numbers.pick(&[1, 3, 1_000]);
                net.down(id, number, FromState::Welcome(n_statuses_max));
                (0, statuses)
            }
            FromAgent::Status(StatusReport { sequence, statuses }) => (sequence, statuses),
            FromAgent::Heartbeat(echo) => {
                return net.down(id, number, FromState::Echo(echo));
            }
        };
        for status in &statuses {
            session.said.insert(id_of(status), status.phase);
            if is_late(status, store) {
                net.reach.mark(Mark::LateStatus);
            }
        }
        if sequence == 0 {
            // What was told to leave, and its agent does not have, has left.
            for (unit, rows) in &store.rows {
                for (ordinal, row) in rows.live().filter(|(_, row)| row.node == id && row.eviction.is_some())
                {
                    let running = RunningUnitId::new(*unit, ordinal, row.incarnation);
                    if !session.said.contains_key(&running) {
                        statuses.push(stopped(running));
                    }
                }
            }
            self.call(id, 0, net);
        }
        // Now and then the disk is busy.
        let longest_ms = if net.numbers.chance(3) { 200 } else { 1 };
        let after_ms = net.numbers.below(longest_ms);
        net.send_after(after_ms, (10, 0), Event::Durable(id, number, sequence, statuses));
    }

    /// What an agent said arrives at the store: what changes there.
    pub(super) fn durable(id: NodeId, statuses: Vec<RunStatus>, store: &Store, net: &mut Net) -> Vec<Change> {
        let mut kept: BTreeMap<RunningUnitId, RunStatus> = BTreeMap::new();
        for status in statuses {
            if is_late(&status, store) {
                net.reach.mark(Mark::LateStatus);
            }
            let kept = kept.entry(id_of(&status)).or_insert(status);
            let (before, next) = (progress(kept), progress(&status));
            if before.may_become(next) {
                let Progress { phase, restarts } = before.followed_by(next);
                *kept = RunStatus { phase, restarts, ..status };
            }
        }
        let mut said: BTreeMap<UnitId, Statuses> = BTreeMap::new();
        for (running, status) in kept {
            let Some(rows) = store.rows.get(&running.unit) else { continue };
            let row = rows.row(status.key.ordinal);
            let is_its = row.node == id && row.incarnation == status.incarnation;
            if is_its && row.progress().may_become(progress(&status)) {
                let statuses = said.entry(running.unit).or_default();
                statuses.ordinals.push(status.key.ordinal);
                statuses.incarnations.push(status.incarnation);
                statuses.phases.push(status.phase);
                statuses.exit_codes.push(status.exit_code);
                statuses.restarts.push(status.restarts);
            }
        }
        said.into_iter().map(|(unit, statuses)| Change::Rows(unit, RunChange::Statuses(statuses))).collect()
    }

    /// What an agent said is durable: it is told so, with the next message or after a while.
    pub(super) fn acknowledge(&mut self, id: NodeId, number: u64, sequence: u64, net: &mut Net) {
        let Some(session) = self.nodes.get_mut(&id).map(|node| &mut node.session) else { return };
        if session.number == number && sequence > 0 {
            session.ack = session.ack.max(Some(sequence));
            let longest_ms = net.numbers.pick(&[20, 300]);
            let after_ms = net.numbers.below(longest_ms);
            self.call(id, after_ms, net);
        }
    }
}

fn progress(status: &RunStatus) -> Progress {
    Progress { phase: status.phase, restarts: status.restarts }
}

fn stopped(running: RunningUnitId) -> RunStatus {
    RunStatus {
        key: RunKey { unit: running.unit.0, ordinal: running.replica.ordinal },
        incarnation: running.replica.incarnation,
        phase: Phase::Stopped,
        exit_code: 0,
        restarts: 0,
        refused: None,
        end: godel_domain::run_end::RunEnd::default(),
    }
}

/// What state says of a running unit that it assigns.
fn orders(record: &UnitRecord, restarts: u32, stop_after_ms: u32) -> RunOrders<()> {
    let spec = &record.spec;
    let is_tied = stops_without_contact(spec.class, spec.min_member);
    RunOrders {
        // What is to run for ever ends as well, so that nodes have room again.
        restart_policy: match spec.restart_policy {
            RestartPolicy::OnFailure => RestartPolicy::OnFailure,
            RestartPolicy::Never | RestartPolicy::Always => RestartPolicy::Never,
        },
        max_restarts: 3,
        restarts,
        stop_after_ms: if is_tied { stop_after_ms } else { 0 },
        ..RunOrders::default()
    }
}
