//! One session: what the agent sends is handled, and what waits in the cell is sent, whenever its connection's
//! task polls the stream.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
    time::Duration,
};

use godel_base::ids::{NodeId, RunningUnitId, StoreId};
use godel_identity::{caller::Caller, leaves::LeafTimes, session_leaf::SessionLeaf};
use godel_kit::status::{self, reason, with_info};
use godel_proto::v1::{self, session_request::Message as Up, session_response::Message as Down};
use godel_wire::{BadField, from_proto};
use prost::Message as _;
use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::{Code, Status, Streaming};

use super::{
    NodeEntry, NodeSessions,
    cell::{Close, NodeOutgoing, SessionVerdict, Taken},
    committer::ReportedRows,
    measure::measured,
    peers, statuses, wake,
};
use crate::{
    freshness,
    nodes::{validate, view},
    processes, rights,
};

/// Messages handled in one go before others get their turn.
const N_PER_POLL: usize = 64;
/// Assignments or stops in one message.
const N_PER_MESSAGE: usize = 1_000;
/// Volumes of a replica that are kept: those of its template, and of earlier versions of that.
const N_VOLUMES_MAX: usize = 64;
/// Running units of one node that a session may open with: a bound on memory, a thousand times what nodes hold.
const N_RUNNING_MAX: usize = 262_144;
/// Running units of which one heartbeat tells the use.
const N_USAGES_MAX: usize = 4_096;
/// Bytes of what an agent says of a bandwidth.
const N_WORDS_MAX: usize = 1_024;
/// How often a session looks whether it is certain again that this state leads.
const CERTAINTY_LOOK: Duration = Duration::from_millis(50);
/// A message ends once it is over this.
const MESSAGE_BYTES: usize = 256 * 1024;
/// Another uid has this node's name now.
pub(crate) const NODE_REPLACED: &str = "NODE_REPLACED";
/// A newer session of the node is open.
pub(crate) const SESSION_REPLACED: &str = "SESSION_REPLACED";

/// The answers of one session; reads its requests itself.
pub(crate) struct SessionStream {
    hub: Arc<NodeSessions>,
    caller: Caller,
    /// The certificate of the agent, until the session is open.
    leaf: Option<Box<SessionLeaf>>,
    inbound: Streaming<v1::SessionRequest>,
    life: SessionLife,
    queued: VecDeque<v1::SessionResponse>,
    /// While it is not certain that this state leads: when it looks again.
    next_look: Option<Pin<Box<Sleep>>>,
}

enum SessionLife {
    /// Until the opening message is whole.
    New(Pin<Box<Sleep>>, Option<v1::SessionOpen>),
    Open {
        slot: Arc<NodeEntry>,
        id: u64,
    },
    Over,
}

impl SessionStream {
    /// `caller` may open a session of its own nodes; `leaf_times` are those of its certificate, if it has one.
    pub(crate) fn new(
        hub: Arc<NodeSessions>,
        caller: Caller,
        leaf_times: Option<LeafTimes>,
        inbound: Streaming<v1::SessionRequest>,
    ) -> Self {
        let leaf = leaf_times.map(|times| Box::new(SessionLeaf::new(caller.to_string(), times)));
        let wait = Duration::from_millis(u64::from(hub.timing.open_timeout_ms));
        Self {
            hub,
            caller,
            leaf,
            inbound,
            life: SessionLife::New(Box::pin(tokio::time::sleep(wait)), None),
            queued: VecDeque::new(),
            next_look: None,
        }
    }

    /// Ready while it is certain that this state leads. Otherwise another one may, which the agent is to find: nothing is read, and nothing is said.
    fn poll_certainty(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !freshness::is_certain_to_lead(&self.hub.store) {
            let look = self.next_look.get_or_insert_with(|| Box::pin(tokio::time::sleep(CERTAINTY_LOOK)));
            ready!(look.as_mut().poll(cx));
            self.next_look = None;
        }
        self.next_look = None;
        Poll::Ready(())
    }

    /// Puts what the cell has into messages; ready when there are some or the session is over.
    fn poll_cell(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        match &mut self.life {
            SessionLife::Over => Poll::Ready(Ok(())),
            SessionLife::New(wait, _) => {
                ready!(wait.as_mut().poll(cx));
                Poll::Ready(Err(Status::deadline_exceeded("timeout: the session was not opened")))
            }
            SessionLife::Open { slot, id } => {
                let taken = slot.cell.lock().take(*id, cx.waker());
                match taken {
                    Taken::Send(outgoing) => {
                        let node = slot.node;
                        self.queue(node, outgoing);
                        Poll::Ready(Ok(()))
                    }
                    Taken::Closed(why) => Poll::Ready(Err(closed(why))),
                    Taken::Idle => Poll::Pending,
                }
            }
        }
    }

    /// Whether the agent may be heard now.
    fn may_read(&mut self, cx: &mut Context<'_>) -> bool {
        match &self.life {
            SessionLife::Over => false,
            SessionLife::New(..) => true,
            SessionLife::Open { slot, id } => {
                let taken = slot.cell.lock().may_read(*id);
                taken && !self.hub.queue.is_full(cx.waker())
            }
        }
    }

    fn queue(&mut self, node: NodeId, outgoing: NodeOutgoing) {
        let NodeOutgoing { assign, again, stop, ack, conflict, logs, looks } = outgoing;
        let mut send = |message| self.queued.push_back(v1::SessionResponse { message: Some(message) });
        // First of all who leaves: what comes has their room.
        for keys in stop.chunks(N_PER_MESSAGE) {
            let stops = self.hub.templates.stops(&self.hub.store, keys);
            send(Down::Stop(v1::StopRequests { stops, left_over: false }));
        }
        for keys in assign.chunks(N_PER_MESSAGE) {
            let mut assignments = self.hub.templates.assignments(&self.hub.store, node, keys);
            peers::fill(&self.hub, &mut assignments);
            for assignments in in_messages(assignments) {
                let n: usize = assignments.iter().map(|one| 1 + one.more_ordinals.len()).sum();
                self.hub.metrics.assignments.inc_by(n as u64);
                send(Down::Assign(v1::Assignments { assignments, again }));
            }
        }
        if let Some(sequence) = ack {
            send(Down::AckSequence(sequence));
        }
        if let Some(conflict) = conflict {
            send(Down::Conflict(view::conflict(&conflict)));
        }
        logs.into_iter().for_each(|request| send(Down::Log(request)));
        looks.into_iter().for_each(|request| send(Down::Processes(request)));
    }

    fn receive(&mut self, request: v1::SessionRequest) -> Result<(), Status> {
        let Some(message) = request.message else {
            return Err(BadField::new("message", "is required").into());
        };
        let SessionLife::Open { slot, id } = &self.life else {
            let Up::Open(open) = message else {
                return Err(BadField::new("message", "the first message must be open").into());
            };
            return self.opening(open);
        };
        match message {
            Up::Open(_) => Err(BadField::new("open", "this session is open").into()),
            Up::Heartbeat(heartbeat) => {
                let echo = heartbeat.echo;
                hear_heartbeat(&self.hub, slot, heartbeat)?;
                if echo > 0 {
                    let answer = Down::HeartbeatEcho(echo);
                    self.queued.push_back(v1::SessionResponse { message: Some(answer) });
                }
                Ok(())
            }
            Up::Status(report) => {
                let reports = reports("status.statuses", &report.statuses)?;
                let refused = report.statuses.iter().map(statuses::refused);
                let mut cell = slot.cell.lock();
                self.hub.heard(slot.node, &mut cell);
                let mut recorded = Vec::with_capacity(reports.len());
                for (report, refused) in reports.into_iter().zip(refused) {
                    if cell.report(report) == SessionVerdict::Record {
                        recorded.push(self.hub.failed(slot.node, report));
                        if let Some(why) = refused {
                            self.hub.refused(slot.node, &mut cell, why);
                        }
                    }
                }
                let reports = recorded;
                cell.hand_over(*id, reports.len());
                drop(cell);
                let (node, session) = (slot.node, *id);
                self.hub.queue.push(ReportedRows { node, session, sequence: report.sequence, reports });
                Ok(())
            }
            Up::Report(report) => {
                let mut bad = Vec::new();
                validate::report(&report, "report", &mut bad);
                if !bad.is_empty() {
                    return Err(status::invalid_argument(bad));
                }
                let mut cell = slot.cell.lock();
                self.hub.heard(slot.node, &mut cell);
                cell.inventory = Some(Box::new(report));
                drop(cell);
                self.hub.due_nodes.look_at(slot.node);
                Ok(())
            }
            Up::KeptLogs(v1::KeptLogs { unit_ids }) => {
                if unit_ids.len() > N_PER_MESSAGE {
                    return Err(
                        BadField::new("kept_logs.unit_ids", format!("more than {N_PER_MESSAGE}")).into()
                    );
                }
                let unit_ids = self.hub.gone(unit_ids);
                let message = Some(Down::ForgetLogs(v1::ForgetLogs { unit_ids }));
                self.queued.push_back(v1::SessionResponse { message });
                Ok(())
            }
            Up::YarnKeys(v1::YarnKeysRequest { revision }) => {
                if let Some(keys) = self.hub.yarn_keys(revision) {
                    let message = Some(Down::YarnKeys(keys));
                    self.queued.push_back(v1::SessionResponse { message });
                }
                Ok(())
            }
            Up::KeptVolumes(v1::KeptVolumes { replicas }) => {
                let has_too_many = |of: &v1::ReplicaVolumes| of.volumes.len() > N_VOLUMES_MAX;
                if replicas.len() > N_PER_MESSAGE || replicas.iter().any(has_too_many) {
                    let wrong =
                        format!("more than {N_PER_MESSAGE} replicas, or {N_VOLUMES_MAX} volumes of one");
                    return Err(BadField::new("kept_volumes.replicas", wrong).into());
                }
                let mut cell = slot.cell.lock();
                self.hub.heard(slot.node, &mut cell);
                cell.agent.volumes = replicas.into();
                Ok(())
            }
            Up::Processes(report) => {
                processes::check(&report)?;
                self.hub.heard(slot.node, &mut slot.cell.lock());
                self.hub.questions.answer(slot.node, report);
                Ok(())
            }
            Up::Leave(v1::SessionLeave {}) => {
                let mut cell = slot.cell.lock();
                // A newer session of the node is none of this one's business.
                if cell.may_read(*id) {
                    self.hub.left(slot.node, &mut cell);
                }
                drop(cell);
                self.end();
                Ok(())
            }
        }
    }

    /// Gathers the parts of the opening message.
    fn opening(&mut self, part: v1::SessionOpen) -> Result<(), Status> {
        let SessionLife::New(_, before) = &mut self.life else { return Ok(()) };
        let open = match before.take() {
            None => part,
            Some(before) if whose(&before) == whose(&part) => {
                let running = [before.running, part.running].concat();
                v1::SessionOpen { running, ..part }
            }
            Some(_) => return Err(BadField::new("open", "its parts belong to different sessions").into()),
        };
        if open.running.len() > N_RUNNING_MAX {
            return Err(BadField::new("open.running", format!("more than {N_RUNNING_MAX}")).into());
        }
        if open.more {
            *before = Some(open);
            return Ok(());
        }
        self.open(open)
    }

    fn open(&mut self, open: v1::SessionOpen) -> Result<(), Status> {
        let node = from_proto::node_id(open.node_id, "open.node_id")?;
        let running = reports("open.running", &open.running)?;
        if open.epoch == 0 {
            return Err(BadField::new("open.epoch", "is required: it comes with the registration").into());
        }
        let (asked, store) = (StoreId(open.store_id), self.hub.store_id());
        if !store.may_be(asked) && !self.hub.epochs.has_given(open.epoch) {
            // It registered in the other store: it does not know yet that this is another one.
            return Err(status::store_changed(asked, store));
        }
        let slot = self.hub.slot(node).ok_or_else(|| unknown(node))?;
        match self.hub.names.read().of(node) {
            None => return Err(unknown(node)),
            Some((name, uid)) => {
                rights::check_node(&self.caller, name)?;
                if uid != open.uid {
                    return Err(closed(Close::Deleted));
                }
            }
        }
        let (running, left_over) = self.hub.of_this_store(node, asked, running);
        let keys: Vec<_> = slot.cell.lock().entries().iter().map(|entry| entry.key).collect();
        let over = self.hub.over(node, &keys);
        let id = self.hub.next_session.fetch_add(1, Ordering::Relaxed);
        let mut cell = slot.cell.lock();
        cell.forget(&over);
        let (reports, replaced) = cell.open(id, open.epoch, &running).map_err(|stale| {
            let message = format!(
                "epoch {} of node {node} is outdated: epoch {} has opened",
                open.epoch, stale.current
            );
            with_info(Code::FailedPrecondition, reason::STALE_EPOCH, message, [("node", node.to_string())])
        })?;
        cell.agent.instances.open(open.instance);
        cell.agent.leaf = self.leaf.take();
        cell.hand_over(id, reports.len());
        self.hub.heard(node, &mut cell);
        drop(cell);
        wake(replaced);
        self.tell_left_over(node, &left_over);
        let timing = self.hub.timing;
        let welcome = v1::SessionWelcome {
            heartbeat_interval_ms: timing.heartbeat_interval_ms,
            lease_ttl_ms: timing.lease_ttl_ms,
            store_id: store.0,
            heartbeat_jitter_percent: Some(timing.heartbeat_jitter_percent),
            report_statuses_max: Some(timing.report_statuses_max),
        };
        self.queued.push_back(v1::SessionResponse { message: Some(Down::Welcome(welcome)) });
        if !running.is_empty() || !reports.is_empty() {
            self.hub.queue.push(ReportedRows { node, session: id, sequence: 0, reports });
        }
        self.hub.n_sessions.fetch_add(1, Ordering::Relaxed);
        self.hub.metrics.sessions.inc();
        self.life = SessionLife::Open { slot, id };
        Ok(())
    }

    /// Tells the agent to end what it has of another store, before anything of this one.
    fn tell_left_over(&mut self, node: NodeId, left_over: &[RunningUnitId]) {
        if left_over.is_empty() {
            return;
        }
        tracing::info!(%node, n = left_over.len(), "running units of another store must end first");
        for keys in left_over.chunks(N_PER_MESSAGE) {
            let stops = self.hub.templates.stops(&self.hub.store, keys);
            let message = Down::Stop(v1::StopRequests { stops, left_over: true });
            self.queued.push_back(v1::SessionResponse { message: Some(message) });
        }
    }

    fn end(&mut self) {
        if let SessionLife::Open { slot, id } = std::mem::replace(&mut self.life, SessionLife::Over) {
            slot.cell.lock().leave(id);
            self.hub.n_sessions.fetch_sub(1, Ordering::Relaxed);
            self.hub.metrics.sessions.dec();
        }
    }
}

/// Takes over what an agent measures.
fn hear_heartbeat(hub: &NodeSessions, slot: &NodeEntry, heartbeat: v1::Heartbeat) -> Result<(), Status> {
    let v1::Heartbeat {
        usage,
        echo: _,
        guaranteed_usage,
        load,
        running,
        zones,
        devices,
        zone_loads,
        network,
        bandwidth,
    } = heartbeat;
    if running.len().max(zones.len()).max(devices.len()) > N_USAGES_MAX {
        let wrong = format!("more than {N_USAGES_MAX} running units, zones or devices");
        return Err(BadField::new("heartbeat.running", wrong).into());
    }
    if let Some(usage) = &usage {
        validate::usage(usage).map_err(|bad| bad.under("heartbeat.usage"))?;
    }
    if let Some(usage) = &guaranteed_usage {
        validate::usage(usage).map_err(|bad| bad.under("heartbeat.guaranteed_usage"))?;
    }
    let load = load.map(from_proto::node_load).transpose();
    let load = load.map_err(|bad| bad.under("heartbeat.load"))?;
    let zone_loads = from_proto::zone_loads(zone_loads).map_err(|bad| bad.under("heartbeat"))?;
    let words = bandwidth.iter().flat_map(|report| report.network.iter().chain(&report.memory));
    if words.map(|care| care.reason.len()).max().unwrap_or(0) > N_WORDS_MAX {
        let wrong = format!("a reason has more than {N_WORDS_MAX} bytes");
        return Err(BadField::new("heartbeat.bandwidth", wrong).into());
    }
    let mut cell = slot.cell.lock();
    hub.heard(slot.node, &mut cell);
    let agent = &mut cell.agent;
    (agent.network, agent.bandwidth) = (network, bandwidth.map(Box::new));
    agent.usage = usage.or(agent.usage.take());
    (agent.running_usage, agent.zone_usage) = (running.into(), zones.into());
    agent.device_usage = devices.into();
    let (now, how) = (hub.now(), hub.measuring);
    if let Some(usage) = guaranteed_usage {
        cell.measure.add(measured(&usage), hub.delivery.time_ms(), now, how);
        cell.agent.guaranteed_usage = Some(usage);
    }
    cell.measure.hear_load(load, zone_loads, now, hub.load_age_max_ms());
    if cell.measure.due(how).is_some() {
        hub.due_nodes.record_usage(slot.node);
    }
    drop(cell);
    Ok(())
}

impl Stream for SessionStream {
    type Item = Result<v1::SessionResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        ready!(this.poll_certainty(cx));
        for _ in 0..N_PER_POLL {
            if let Some(message) = this.queued.pop_front() {
                return Poll::Ready(Some(Ok(message)));
            }
            let handled = match this.poll_cell(cx) {
                Poll::Ready(Ok(())) if matches!(this.life, SessionLife::Over) => return Poll::Ready(None),
                Poll::Ready(handled) => handled,
                Poll::Pending => {
                    if !this.may_read(cx) {
                        return Poll::Pending;
                    }
                    match ready!(Pin::new(&mut this.inbound).poll_next(cx)) {
                        Some(Ok(request)) => this.receive(request),
                        // The agent has left, politely or not.
                        None | Some(Err(_)) => {
                            this.end();
                            return Poll::Ready(None);
                        }
                    }
                }
            };
            if let Err(status) = handled {
                this.end();
                return Poll::Ready(Some(Err(status)));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for SessionStream {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whose opening message it is a part of.
fn whose(open: &v1::SessionOpen) -> (u32, u64, u64) {
    (open.node_id, open.epoch, open.store_id)
}

fn in_messages(mut assignments: Vec<v1::Assignment>) -> Vec<Vec<v1::Assignment>> {
    let mut messages = Vec::new();
    let mut bytes = 0;
    let mut start = 0;
    while let Some(assignment) = assignments.get(start) {
        bytes += assignment.encoded_len() + 4;
        start += 1;
        if bytes > MESSAGE_BYTES {
            let rest = assignments.split_off(start);
            messages.push(std::mem::replace(&mut assignments, rest));
            (bytes, start) = (0, 0);
        }
    }
    if !assignments.is_empty() {
        messages.push(assignments);
    }
    messages
}

fn reports(path: &str, statuses: &[v1::RunStatus]) -> Result<Vec<super::cell::CellReport>, Status> {
    let report = |(idx, status)| {
        statuses::report(status)
            .map_err(|field| BadField::new(format!("{path}[{idx}].{field}"), "is missing or unknown"))
    };
    Ok(statuses.iter().enumerate().map(report).collect::<Result<_, BadField>>()?)
}

fn unknown(node: NodeId) -> Status {
    let message = format!("node {node} is not registered");
    with_info(Code::NotFound, reason::UNKNOWN_NAME, message, [("node", node.to_string())])
}

fn closed(why: Close) -> Status {
    let none: [(&str, &str); 0] = [];
    match why {
        Close::Replaced => {
            with_info(Code::Aborted, SESSION_REPLACED, "a newer session of this node is open", none)
        }
        Close::Deleted => {
            let message = "the node's record was deleted or belongs to another uid: register again";
            with_info(Code::FailedPrecondition, NODE_REPLACED, message, none)
        }
        Close::Left => {
            let message = "the node has left: its record was deleted for good (`godel agent leave`)";
            with_info(Code::FailedPrecondition, reason::NODE_LEFT, message, none)
        }
        Close::Flooded => status::resource_exhausted(
            reason::OVERLOADED,
            "the agent reports too many running units that are not bound here",
            Duration::from_secs(1),
        ),
        Close::Stopping => status::stopping(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_by_size_and_lose_nothing() {
        let one = v1::Assignment { unit_name: "x".repeat(MESSAGE_BYTES / 3), ..v1::Assignment::default() };
        let sizes = |n| in_messages(vec![one.clone(); n]).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!([sizes(0), sizes(2), sizes(3), sizes(7)], [vec![], vec![2], vec![3], vec![3, 3, 1]]);
    }
}
