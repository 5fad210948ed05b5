//! A scheduler with its streams, as its service drives it.

use std::collections::BTreeMap;

use godel_base::{
    ids::{Epoch, UnitId},
    time::Millis,
};
use godel_core_scheduler::{Config, Scheduler};
use godel_domain::unit_report::{ReportState, UnitReport};

use super::{
    net::{Event, Line, Message, Net, Part},
    store::Store,
};

/// Pause after a step that came to nothing, milliseconds, as in the service.
const IDLE_MS: u64 = 20;

/// The end of a stream; session 0: there is none.
#[derive(Clone, Copy, Debug, Default)]
struct LineEnd {
    session: u64,
    is_welcome: bool,
    is_connecting: bool,
}

/// See the module.
pub(super) struct SchedulerPart {
    idx: usize,
    config: Config,
    pub(super) core: Scheduler,
    pub(super) life: u64,
    epoch: Epoch,
    /// Its lease is in force, as far as it knows.
    is_registered: bool,
    is_synced: bool,
    read: usize,
    hears: bool,
    ends: [LineEnd; 2],
    granted: u32,
    parked: BTreeMap<UnitId, UnitReport>,
    idle_until: u64,
    budget: usize,
    wake: Option<u64>,
}

impl SchedulerPart {
    pub(super) fn new(idx: usize, config: Config, budget: usize) -> Self {
        Self {
            idx,
            core: Scheduler::new(config.clone(), idx as u64 + 1),
            config,
            life: 0,
            epoch: Epoch(0),
            is_registered: false,
            is_synced: false,
            read: 0,
            hears: false,
            ends: [LineEnd::default(); 2],
            granted: 0,
            parked: BTreeMap::new(),
            idle_until: 0,
            budget,
            wake: None,
        }
    }

    pub(super) fn part(&self) -> Part {
        Part::Scheduler(self.idx)
    }

    pub(super) fn lease(&self) -> String {
        format!("scheduler/{}", self.config.name)
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(super) fn is_registered(&self) -> bool {
        self.is_registered
    }

    pub(super) fn is_up(&self) -> bool {
        self.life > 0 && self.is_synced && self.is_registered
    }

    /// A new process that knows nothing.
    pub(super) fn begin(&mut self, net: &mut Net) {
        self.kill(net);
        self.core = Scheduler::new(self.config.clone(), self.idx as u64 + 1);
        self.parked.clear();
        self.relist(net);
    }

    /// The process is gone.
    pub(super) fn kill(&mut self, net: &mut Net) {
        self.lose_lease(net);
        self.life += 1;
        (self.is_synced, self.hears) = (false, false);
    }

    /// The lease is lost: no more decisions.
    pub(super) fn lose_lease(&mut self, net: &mut Net) {
        self.is_registered = false;
        for line in Line::ALL {
            net.close(self.idx, line, self.ends[line as usize].session);
            self.ends[line as usize] = LineEnd::default();
        }
    }

    /// Its lease is granted.
    pub(super) fn register(&mut self, epoch: Epoch, net: &mut Net) {
        (self.is_registered, self.epoch) = (true, epoch);
        Line::ALL.into_iter().for_each(|line| self.connect(line, net));
    }

    /// Reads everything anew.
    pub(super) fn relist(&mut self, net: &mut Net) {
        self.core.on_reset();
        (self.is_synced, self.hears) = (false, false);
        net.soon(Event::List(self.part(), self.life));
    }

    pub(super) fn on_list(&mut self, store: &Store, net: &mut Net) {
        // Asked for twice, it comes once.
        if self.is_synced {
            return;
        }
        for listed in store.list() {
            self.core.load(&listed.change, listed.revision, listed.created.time_ms, net.millis());
        }
        self.core.on_listed(store.revision());
        (self.is_synced, self.read) = (true, store.commits.len());
    }

    /// There is something to be read.
    pub(super) fn receive_changes(&mut self, net: &mut Net) {
        if self.is_synced && !std::mem::replace(&mut self.hears, true) {
            net.soon(Event::Watch(self.part(), self.life));
        }
    }

    pub(super) fn on_watch(&mut self, store: &Store, net: &mut Net) {
        if !std::mem::take(&mut self.hears) || !self.is_synced {
            return;
        }
        for commit in &store.seen[self.read..] {
            self.core.apply(commit, net.millis());
        }
        self.read = store.commits.len();
        self.idle_until = 0;
    }

    fn connect(&mut self, line: Line, net: &mut Net) {
        let end = &mut self.ends[line as usize];
        if self.is_registered && end.session == 0 && !std::mem::replace(&mut end.is_connecting, true) {
            let ms = 5 + net.numbers.below(2 * net.delay_ms + 20);
            net.after(ms, Event::Connect(self.idx, line));
        }
    }

    /// Opens a stream, if there is somebody at its other end.
    pub(super) fn open(&mut self, line: Line, is_there: bool, net: &mut Net) {
        self.ends[line as usize].is_connecting = false;
        if !self.is_registered || self.ends[line as usize].session > 0 {
            return;
        }
        if !is_there {
            return self.connect(line, net);
        }
        let session = net.new_session();
        self.ends[line as usize] = LineEnd { session, ..LineEnd::default() };
        let first = match line {
            Line::Attach => {
                self.core.on_attach();
                self.granted = self.core.credits();
                let inventory = self.core.inventory();
                self.parked.retain(|unit, _| inventory.binary_search_by_key(unit, |(held, _)| *held).is_ok());
                let parked = self.parked.values().cloned().collect();
                Message::Attach(self.epoch, inventory, self.granted, parked)
            }
            Line::Decide => Message::Open(self.epoch, self.core.undecided()),
        };
        net.message(self.idx, line, false, session, first);
    }

    pub(super) fn take(&mut self, line: Line, session: u64, message: Message, net: &mut Net) {
        if self.ends[line as usize].session != session {
            return;
        }
        self.idle_until = 0;
        match message {
            Message::Closed => {
                self.ends[line as usize] = LineEnd::default();
                self.connect(line, net);
            }
            Message::Welcome => self.ends[line as usize].is_welcome = true,
            Message::Assign(one) => {
                let n_pending = u32::try_from(one.ordinals.len()).unwrap_or(u32::MAX);
                self.granted = self.granted.saturating_sub(n_pending);
                self.parked.remove(&one.record.id);
                self.core.on_assign(&one, net.millis());
            }
            Message::Revoke(unit) => {
                self.parked.remove(&unit);
                self.core.on_revoke(unit);
            }
            Message::Outcomes(outcomes) => {
                for outcome in &outcomes {
                    self.core.on_outcome(outcome, net.millis());
                }
            }
            other => unreachable!("not for schedulers: {other:?}"),
        }
    }

    /// Decides, if there is something to decide, and says when it wants to again.
    pub(super) fn act(&mut self, net: &mut Net) {
        let now = net.now;
        let may = self.is_up() && self.ends[Line::Decide as usize].is_welcome;
        if may && self.idle_until <= now && self.core.next_wake().is_some_and(|wake| wake <= Millis(now)) {
            self.core.on_wall(net.wall_ms());
            let step = self.core.step(Millis(now), self.budget);
            if step.decisions.is_empty() && step.reports.is_empty() && step.rooms.is_empty() {
                self.idle_until = now + IDLE_MS;
            }
            for decision in &step.decisions {
                net.trace(|| format!("s{} decides {decision:?}", self.idx));
            }
            for report in &step.reports {
                net.trace(|| format!("s{} reports {} {:?}", self.idx, report.unit, report.state));
                match report.state {
                    ReportState::Parked => {
                        self.parked.insert(report.unit, report.clone());
                    }
                    ReportState::Woken
                    | ReportState::Returned
                    | ReportState::QueueFull
                    | ReportState::Done => {
                        self.parked.remove(&report.unit);
                    }
                }
            }
            if !step.decisions.is_empty() {
                self.send(Line::Decide, Message::Decisions(step.decisions), net);
            }
            for room in &step.rooms {
                net.trace(|| format!("s{} states {room:?}", self.idx));
            }
            if !step.reports.is_empty() || !step.rooms.is_empty() {
                self.send(Line::Attach, Message::Reports(step.reports, step.rooms), net);
            }
        }
        self.tell_credits(net);
        if let Some(wake) = self.core.next_wake().filter(|_| may) {
            self.wake_at(wake.0.max(self.idle_until).max(now + 1), net);
        }
    }

    fn tell_credits(&mut self, net: &mut Net) {
        let credits = self.core.credits();
        let notable = (self.config.held_max / 8).max(1);
        if self.ends[Line::Attach as usize].is_welcome
            && (credits.abs_diff(self.granted) >= notable || (self.granted == 0 && credits > 0))
        {
            self.granted = credits;
            self.send(Line::Attach, Message::Credits(credits), net);
        }
    }

    fn send(&self, line: Line, message: Message, net: &mut Net) {
        let session = self.ends[line as usize].session;
        if session > 0 {
            net.message(self.idx, line, false, session, message);
        }
    }

    /// The session of a stream, 0 if there is none.
    pub(super) fn session(&self, line: Line) -> u64 {
        self.ends[line as usize].session
    }

    fn wake_at(&mut self, at: u64, net: &mut Net) {
        if self.wake.is_none_or(|known| at < known || known <= net.now) {
            self.wake = Some(at);
            net.at(at, Event::Wake(self.part()));
        }
    }
}
