//! What state knows of one node's running units: what is bound there and what its agent says.
//!
//! A [`Cell`] is changed by three parties: the feed of committed changes (`bind`, `evict`, `end`), the node's
//! session (`open`, `report`) and the status committer (`ack`). It owns the session's outbox and no clock, no
//! lock, no transport. Nothing here survives a restart: cells are built from the rows, reports come again with
//! the agents' next `open`.
//!
//! An entry may stay bound for a while after its row has ended (the feed cannot always tell on which node an
//! ended row was). Users compare entries with the rows of the store; what is over there is over for good.

use std::task::Waker;

use godel_base::{ids::RunningUnitId, time::Millis};
use godel_domain::{
    run_end::RunEnd,
    running_units::{Phase, Progress, RunEnds},
};
use godel_identity::session_leaf::SessionLeaf;
use godel_membership::{
    node_identity::{NodeConflict, NodeInstances, Rival},
    quarantine::NodeRefusals,
};
use godel_proto::v1;

/// Most assignments and stops that wait for one session; beyond it the session is compared anew.
const N_OUTBOX_MAX: usize = 16_384;
/// Most entries that an agent may report and that are not bound to its node.
const N_UNBOUND_MAX: usize = 16_384;
/// Statuses of one session that may wait for the committer; beyond it the session is not read.
const N_UNACKED_MAX: usize = 16_384;
/// Requests for logs that wait for one session.
const N_LOGS_MAX: usize = 64;
/// Questions for processes that wait for one session.
const N_LOOKS_MAX: usize = 16;
/// Entries for which a cell keeps room when they are gone: more room was a burst's.
const N_ROOM_KEPT: usize = 16;

/// What an agent says of one running unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellReport {
    pub(crate) key: RunningUnitId,
    pub(crate) phase: Phase,
    pub(crate) exit_code: i32,
    pub(crate) restarts: u32,
    pub(crate) end: RunEnd,
}

impl CellReport {
    /// How far it says that the running unit is.
    pub(crate) fn progress(&self) -> Progress {
        Progress { phase: self.phase, restarts: self.restarts }
    }
}

/// One running unit on a node, as bound and as reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: RunningUnitId,
    /// `Pending` while the agent has said nothing of it in this session.
    phase: Phase,
    exit_code: i32,
    restarts: u32,
    /// A row binds it here.
    pub(crate) bound: bool,
    /// Told to leave.
    pub(crate) evicting: bool,
}

/// One node: its running units, its lease and its session.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    /// By key.
    entries: Vec<Entry>,
    /// When commands ran and why they are over, of entries whose agent says so: what is simulated says nothing of that.
    ends: RunEnds<RunningUnitId>,
    n_unbound: usize,
    session: Option<Box<Outbox>>,
    /// Highest epoch that ever opened a session.
    epoch: u64,
    /// The node is lost from here on.
    pub(crate) deadline: Millis,
    /// Its agent has said goodbye, and nothing since.
    pub(crate) left: bool,
    /// As committed.
    pub(crate) ready: bool,
    /// Commands really run there.
    pub(crate) runs_processes: bool,
    /// The use of its agent's running units, smoothed.
    pub(crate) measure: super::measure::UsageMeasure,
    /// A changed inventory that is not committed yet.
    pub(crate) inventory: Option<Box<v1::NodeReport>>,
    /// What else is known of its agent: a binding has nothing to do with that.
    pub(crate) agent: Box<AgentFacts>,
}

/// What an agent has said of its node, its starts, and who else claims the node.
#[derive(Debug, Default)]
pub(crate) struct AgentFacts {
    /// Where other nodes reach it; empty: not known.
    pub(crate) address: Box<str>,
    /// Last reported use.
    pub(crate) usage: Option<v1::Resources>,
    /// Last reported use of guaranteed running units.
    pub(crate) guaranteed_usage: Option<v1::Resources>,
    /// Last reported use of single running units; most agents measure none.
    pub(crate) running_usage: Box<[v1::RunUsage]>,
    /// Last reported use of zones.
    pub(crate) zone_usage: Box<[v1::ZoneUsage]>,
    /// Last reported use of devices.
    pub(crate) device_usage: Box<[v1::DeviceUsage]>,
    /// Last reported traffic.
    pub(crate) network: Option<v1::NetworkRate>,
    /// What its agent does about bandwidths; most agents do nothing.
    pub(crate) bandwidth: Option<Box<v1::BandwidthReport>>,
    /// The volumes that it keeps, as its agent says; most keep none.
    pub(crate) volumes: Box<[v1::ReplicaVolumes]>,
    /// Assignments that its agent refused of late; most agents never do.
    pub(crate) refusals: Option<Box<NodeRefusals>>,
    /// The certificate of its agent; `None`: it has none.
    pub(crate) leaf: Option<Box<SessionLeaf>>,
    /// The starts of its agent.
    pub(crate) instances: NodeInstances,
    /// Another agent claims it.
    pub(crate) conflict: Option<Box<NodeConflict>>,
}

/// What waits for a session's stream.
#[derive(Debug, Default)]
struct Outbox {
    id: u64,
    assign: Vec<RunningUnitId>,
    stop: Vec<RunningUnitId>,
    /// Durable up to here and not said yet.
    ack: Option<u64>,
    /// The acknowledgement should not wait for company.
    ack_due: bool,
    n_unacked: usize,
    /// Something was left out: compare anew.
    dirty: bool,
    /// Some of `assign` were bound before the session was open, or before something was left out.
    again: bool,
    /// The agent has yet to hear of the conflict.
    conflict: bool,
    logs: Vec<v1::LogRequest>,
    looks: Vec<v1::ProcessesRequest>,
    close: Option<Close>,
    waker: Option<Waker>,
}

/// Why state ends a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Close {
    /// A newer session of the same node.
    Replaced,
    /// The node record is gone, or has another uid.
    Deleted,
    /// The node has left for good.
    Left,
    /// The agent reports too much that is not bound here.
    Flooded,
    /// State stops.
    Stopping,
}

/// An older session may not come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StaleSession {
    /// Highest epoch seen.
    pub(crate) current: u64,
}

/// What a report means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionVerdict {
    /// To be made durable.
    Record,
    /// Changes nothing that is kept.
    Ignore,
}

/// What a session's stream sends next.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeOutgoing {
    pub(crate) assign: Vec<RunningUnitId>,
    /// Some of them were bound before: the agent is to start them in any case.
    pub(crate) again: bool,
    pub(crate) stop: Vec<RunningUnitId>,
    pub(crate) ack: Option<u64>,
    /// Another agent claims the node.
    pub(crate) conflict: Option<Box<NodeConflict>>,
    /// Somebody reads these.
    pub(crate) logs: Vec<v1::LogRequest>,
    /// Somebody asks which processes run.
    pub(crate) looks: Vec<v1::ProcessesRequest>,
}

/// Answer of [`Cell::take`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Send this.
    Send(NodeOutgoing),
    /// Nothing to send.
    Idle,
    /// The session is over.
    Closed(Close),
}

impl Cell {
    /// A node without a session since `now`.
    pub(crate) fn new(now: Millis) -> Self {
        Self { deadline: now, ..Self::default() }
    }

    /// A row was bound here. Returns whom to wake.
    pub(crate) fn bind(&mut self, key: RunningUnitId) -> Option<Waker> {
        match self.find(key) {
            Ok(idx) => {
                let entry = &mut self.entries[idx];
                self.n_unbound -= usize::from(!entry.bound);
                entry.bound = true;
            }
            Err(idx) => self.entries.insert(idx, Entry::new(key, true)),
        }
        self.send(|outbox| outbox.assign.push(key))
    }

    /// A row bound here is to leave.
    pub(crate) fn evict(&mut self, key: RunningUnitId) -> Option<Waker> {
        let idx = self.find(key).ok()?;
        let entry = &mut self.entries[idx];
        if !entry.bound || std::mem::replace(&mut entry.evicting, true) {
            return None;
        }
        self.send(|outbox| outbox.stop.push(key))
    }

    /// A row bound here is over. If its agent still says that it runs, it is told to stop it.
    pub(crate) fn end(&mut self, key: RunningUnitId) -> Option<Waker> {
        let idx = self.find(key).ok()?;
        let entry = &mut self.entries[idx];
        if !entry.bound {
            return None;
        }
        if !entry.phase.is_live() {
            self.remove(idx);
            return None;
        }
        entry.bound = false;
        self.n_unbound += 1;
        self.send(|outbox| outbox.stop.push(key))
    }

    /// Takes over what the rows say now, after changes were missed; the session is compared anew.
    /// `live` is sorted by key.
    pub(crate) fn reload(&mut self, live: &[(RunningUnitId, bool)]) -> Option<Waker> {
        for entry in &mut self.entries {
            entry.bound = false;
        }
        for &(key, evicting) in live {
            match self.find(key) {
                Ok(idx) => (self.entries[idx].bound, self.entries[idx].evicting) = (true, evicting),
                Err(idx) => self.entries.insert(idx, Entry { evicting, ..Entry::new(key, true) }),
            }
        }
        self.entries.retain(|entry| entry.bound || entry.phase.is_live());
        self.forget_ends();
        self.n_unbound = self.entries.iter().filter(|entry| !entry.bound).count();
        self.send(|outbox| outbox.dirty = true)
    }

    /// Forgets entries whose rows are over; `gone` is sorted. Sessions are told by the next comparison.
    pub(crate) fn forget(&mut self, gone: &[RunningUnitId]) {
        for key in gone {
            self.end(*key);
        }
    }

    /// Opens session `id`: an older one ends, what the agent says is compared with what is bound here.
    /// Returns what has to be made durable: what the agent reports of its running units, and the end of those
    /// that were told to leave and that the agent does not have.
    ///
    /// # Errors
    /// A newer epoch has had a session.
    pub(crate) fn open(
        &mut self,
        id: u64,
        epoch: u64,
        running: &[CellReport],
    ) -> Result<(Vec<CellReport>, Option<Waker>), StaleSession> {
        if epoch < self.epoch {
            return Err(StaleSession { current: self.epoch });
        }
        self.epoch = epoch;
        let replaced = self.close(Close::Replaced);
        self.entries.retain(|entry| entry.bound);
        self.n_unbound = 0;
        for entry in &mut self.entries {
            *entry = Entry { evicting: entry.evicting, ..Entry::new(entry.key, true) };
        }
        self.ends = RunEnds::default();
        self.session = Some(Box::new(Outbox { id, ..Outbox::default() }));
        let mut record = Vec::new();
        for report in running {
            if self.report(*report) == SessionVerdict::Record {
                record.push(*report);
            }
        }
        for entry in self.entries.iter().filter(|entry| entry.evicting && entry.phase == Phase::Pending) {
            record.push(CellReport { phase: Phase::Stopped, ..self.said(entry) });
        }
        self.compare();
        Ok((record, replaced))
    }

    /// The agent reports a running unit; what is not bound here is to be stopped.
    pub(crate) fn report(&mut self, report: CellReport) -> SessionVerdict {
        self.forget_older(report.key);
        match self.find(report.key) {
            Ok(idx) => {
                let entry = &mut self.entries[idx];
                let is_first = entry.phase == Phase::Pending;
                let progress = Progress { phase: entry.phase, restarts: entry.restarts };
                if is_first || progress.may_become(report.progress()) {
                    entry.say(&report);
                    self.ends.set(report.key, report.end);
                }
                if entry.bound {
                    return if report.phase > Phase::Bound {
                        SessionVerdict::Record
                    } else {
                        SessionVerdict::Ignore
                    };
                }
                if report.phase.is_ended() {
                    self.remove(idx);
                    self.n_unbound -= 1;
                }
                SessionVerdict::Ignore
            }
            Err(_) if report.phase.is_ended() => SessionVerdict::Ignore,
            Err(idx) => {
                if self.n_unbound >= N_UNBOUND_MAX {
                    self.close(Close::Flooded).iter().for_each(Waker::wake_by_ref);
                    return SessionVerdict::Ignore;
                }
                let mut entry = Entry::new(report.key, false);
                entry.say(&report);
                self.entries.insert(idx, entry);
                self.ends.set(report.key, report.end);
                self.n_unbound += 1;
                self.send(|outbox| outbox.stop.push(report.key)).iter().for_each(Waker::wake_by_ref);
                SessionVerdict::Ignore
            }
        }
    }

    /// Statuses of session `id` are on their way to the committer.
    pub(crate) fn hand_over(&mut self, id: u64, n_reports: usize) {
        if let Some(outbox) = self.session.as_mut().filter(|outbox| outbox.id == id) {
            outbox.n_unacked += n_reports;
        }
    }

    /// Statuses of session `id` are durable, up to `sequence`. That is said along with the next assignment or
    /// stop, or when [`Cell::flush_ack`] asks for it.
    pub(crate) fn ack(&mut self, id: u64, sequence: u64, n_reports: usize) {
        if let Some(outbox) = self.session.as_mut().filter(|outbox| outbox.id == id) {
            let stalled = outbox.n_unacked >= N_UNACKED_MAX;
            outbox.n_unacked = outbox.n_unacked.saturating_sub(n_reports);
            outbox.ack = outbox.ack.max(Some(sequence));
            outbox.ack_due |= stalled;
        }
    }

    /// An acknowledgement of session `id` has waited long enough.
    pub(crate) fn flush_ack(&mut self, id: u64) -> Option<Waker> {
        let outbox = self.session.as_mut().filter(|outbox| outbox.id == id && outbox.ack.is_some())?;
        outbox.ack_due = true;
        outbox.waker.take()
    }

    /// An agent was refused because this one speaks for the node. Returns whether that is news, and whom to wake.
    pub(crate) fn note_rival(&mut self, rival: Rival, wall_ms: i64) -> (bool, Option<Waker>) {
        let known = self.agent.conflict.take().map(|known| *known);
        let (conflict, is_told) = NodeConflict::note(known, rival, wall_ms);
        self.agent.conflict = Some(Box::new(conflict));
        let waker = if is_told { self.send(|outbox| outbox.conflict = true) } else { None };
        (is_told, waker)
    }

    /// Asks the agent for a log, if it is connected and does not read too slowly. Returns whether it is asked, and whom to wake.
    pub(crate) fn ask_for_log(&mut self, request: v1::LogRequest) -> (bool, Option<Waker>) {
        let open = self.session.as_mut().filter(|outbox| outbox.close.is_none());
        match open.filter(|outbox| outbox.logs.len() < N_LOGS_MAX) {
            Some(outbox) => {
                outbox.logs.push(request);
                (true, outbox.waker.take())
            }
            None => (false, None),
        }
    }

    /// Asks the agent which processes really run, if it is connected and runs any. Returns whether it is asked, and whom to wake.
    pub(crate) fn ask_for_processes(&mut self, request: v1::ProcessesRequest) -> (bool, Option<Waker>) {
        let open = self.session.as_mut().filter(|outbox| self.runs_processes && outbox.close.is_none());
        match open.filter(|outbox| outbox.looks.len() < N_LOOKS_MAX) {
            Some(outbox) => {
                outbox.looks.push(request);
                (true, outbox.waker.take())
            }
            None => (false, None),
        }
    }

    /// What session `id` sends next. Remembers `waker` when there is nothing.
    pub(crate) fn take(&mut self, id: u64, waker: &Waker) -> Taken {
        if self.session.as_ref().is_some_and(|outbox| outbox.id == id && outbox.dirty && outbox.is_empty()) {
            self.compare();
        }
        let Some(outbox) = self.session.as_mut().filter(|outbox| outbox.id == id) else {
            return Taken::Closed(Close::Replaced);
        };
        if let Some(close) = outbox.close {
            return Taken::Closed(close);
        }
        if !outbox.is_empty() {
            outbox.ack_due = false;
            let conflict = std::mem::take(&mut outbox.conflict).then(|| self.agent.conflict.clone());
            return Taken::Send(NodeOutgoing {
                conflict: conflict.flatten(),
                assign: std::mem::take(&mut outbox.assign),
                again: std::mem::take(&mut outbox.again),
                stop: std::mem::take(&mut outbox.stop),
                ack: outbox.ack.take(),
                logs: std::mem::take(&mut outbox.logs),
                looks: std::mem::take(&mut outbox.looks),
            });
        }
        if !outbox.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            outbox.waker = Some(waker.clone());
        }
        Taken::Idle
    }

    /// Whether the agent of session `id` may be heard: not while too much of it waits for the disk.
    pub(crate) fn may_read(&self, id: u64) -> bool {
        self.session.as_ref().is_some_and(|outbox| outbox.id == id && outbox.n_unacked < N_UNACKED_MAX)
    }

    /// Another installation has the node now: the session of the one before ends, and what was said of its agents is over.
    pub(crate) fn replace(&mut self) -> Option<Waker> {
        (self.agent.instances, self.agent.conflict) = (NodeInstances::default(), None);
        self.close(Close::Deleted)
    }

    /// Session `id` has ended at its own end.
    pub(crate) fn leave(&mut self, id: u64) {
        if self.session.as_ref().is_some_and(|outbox| outbox.id == id) {
            self.session = None;
        }
    }

    /// Ends the session, whichever it is.
    pub(crate) fn close(&mut self, why: Close) -> Option<Waker> {
        let outbox = self.session.as_mut()?;
        if why == Close::Replaced {
            return self.session.take()?.waker;
        }
        outbox.close = Some(why);
        outbox.waker.take()
    }

    /// A session is open.
    pub(crate) fn is_connected(&self) -> bool {
        self.session.is_some()
    }

    /// All entries by key.
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// What the agent has said in this session of what it runs or ran, by key.
    pub(crate) fn reports(&self) -> impl Iterator<Item = CellReport> + '_ {
        self.entries.iter().filter(|entry| entry.phase != Phase::Pending).map(|entry| self.said(entry))
    }

    fn said(&self, entry: &Entry) -> CellReport {
        let Entry { key, phase, exit_code, restarts, bound: _, evicting: _ } = *entry;
        let end = self.ends.of(key);
        CellReport { key, phase, exit_code, restarts, end }
    }

    /// Keeps the ends of runs of which there are entries.
    fn forget_ends(&mut self) {
        let mut ends = std::mem::take(&mut self.ends);
        ends.retain(|key| self.find(*key).is_ok());
        self.ends = ends;
    }

    /// An agent runs one incarnation at a time: what it said of older ones is over.
    fn forget_older(&mut self, key: RunningUnitId) {
        let (Ok(mut idx) | Err(mut idx)) = self.find(key);
        let older = |entry: &Entry| {
            !entry.bound && (entry.key.unit, entry.key.replica.ordinal) == (key.unit, key.replica.ordinal)
        };
        while idx > 0 && older(&self.entries[idx - 1]) {
            idx -= 1;
            let gone = self.entries.remove(idx);
            self.ends.set(gone.key, RunEnd::default());
            self.n_unbound -= 1;
        }
    }

    /// Asks for everything that is bound here and not reported, and for the stop of everything else.
    fn compare(&mut self) {
        let Some(outbox) = self.session.as_mut() else { return };
        outbox.dirty = false;
        outbox.assign.clear();
        outbox.stop.clear();
        for entry in &self.entries {
            let key = entry.key;
            match (entry.bound, entry.evicting, entry.phase) {
                (true, false, Phase::Pending) => outbox.assign.push(key),
                (true, true, phase) if !phase.is_ended() => outbox.stop.push(key),
                (false, _, phase) if phase.is_live() => outbox.stop.push(key),
                (true | false, true | false, _) => {}
            }
        }
        outbox.again = !outbox.assign.is_empty();
    }

    fn find(&self, key: RunningUnitId) -> Result<usize, usize> {
        match self.entries.last() {
            // Bindings come in rising order nearly always.
            Some(last) if last.key < key => Err(self.entries.len()),
            _ => self.entries.binary_search_by_key(&key, |entry| entry.key),
        }
    }

    fn remove(&mut self, idx: usize) {
        let gone = self.entries.remove(idx);
        self.ends.set(gone.key, RunEnd::default());
        let (room, len) = (self.entries.capacity(), self.entries.len());
        if room > N_ROOM_KEPT && len < room / 4 {
            self.entries.shrink_to(2 * len);
        }
    }

    fn send(&mut self, put: impl FnOnce(&mut Outbox)) -> Option<Waker> {
        let outbox = self.session.as_mut()?;
        if outbox.assign.len() + outbox.stop.len() >= N_OUTBOX_MAX {
            outbox.dirty = true;
        } else {
            put(outbox);
        }
        outbox.waker.take()
    }
}

impl Outbox {
    fn is_empty(&self) -> bool {
        let has_ack = self.ack_due && self.ack.is_some();
        let is_asked = !self.logs.is_empty() || !self.looks.is_empty();
        self.assign.is_empty() && self.stop.is_empty() && !has_ack && !self.conflict && !is_asked
    }
}

impl Entry {
    fn new(key: RunningUnitId, bound: bool) -> Self {
        Self { key, phase: Phase::Pending, exit_code: 0, restarts: 0, bound, evicting: false }
    }

    /// The agent says this of it, beside when it ran.
    fn say(&mut self, report: &CellReport) {
        let CellReport { key: _, phase, exit_code, restarts, end: _ } = *report;
        (self.phase, self.exit_code, self.restarts) = (phase, exit_code, restarts);
    }
}

#[cfg(test)]
mod tests;
