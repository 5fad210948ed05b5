//! What the leader has under way: what the adapter wants done, the records that are being written, and who waits for these.

use std::collections::BTreeMap;

use godel_base::time::Millis;
use godel_core_yarn::{
    adapter::{AdapterTime, Registration, YarnAction},
    ids::{YarnApplicationId, YarnAttemptId},
};

use crate::{
    access::AdapterRules,
    answers::ManagerRefusal,
    config::YarnLeaderConfig,
    jobs::UnitJob,
    launches::MasterJob,
    masters::register,
    outbox::{JobTicket, OrderedPause, RecordsFailure, YarnNote, YarnOrder},
    state::{LeaderRole, LeaderState, RecordBatch},
    waits::{self, UnitWaits},
};

/// A record is written within that, milliseconds, or the client calls again.
const WRITE_LIMIT_MS: u64 = 10_000;
/// The longest pause after the store has refused records, milliseconds.
const REFUSED_MS: u64 = 5_000;

/// Who waits until something is recorded.
#[derive(Debug)]
pub(crate) struct RecordWaiters<C, M> {
    submitted: Vec<(Millis, YarnApplicationId, C)>,
    registering: Vec<(Millis, YarnAttemptId, Registration, M)>,
}

impl<C, M> Default for RecordWaiters<C, M> {
    fn default() -> Self {
        Self { submitted: Vec::new(), registering: Vec::new() }
    }
}

impl<C, M> RecordWaiters<C, M> {
    /// A client waits until an application is recorded.
    pub(crate) fn await_record(&mut self, id: YarnApplicationId, caller: C, at: AdapterTime) {
        self.submitted.push((at.now.plus(WRITE_LIMIT_MS), id, caller));
    }

    /// A master waits until its attempt is recorded, and its start known.
    pub(crate) fn await_start(
        &mut self,
        attempt: YarnAttemptId,
        registration: Registration,
        master: M,
        at: AdapterTime,
    ) {
        self.registering.push((at.now.plus(WRITE_LIMIT_MS), attempt, registration, master));
    }

    /// Nobody waits any more.
    pub(crate) fn clear(&mut self, refused: &impl Fn() -> ManagerRefusal, out: &mut Vec<YarnOrder<C, M>>) {
        let clients = self.submitted.drain(..);
        out.extend(clients.map(|(_, _, caller)| YarnOrder::Answer(caller, Err(refused()))));
        let masters = self.registering.drain(..);
        out.extend(masters.map(|(_, _, _, master)| YarnOrder::AnswerMaster(master, Err(refused()))));
    }
}

/// What is done about records that are to be written.
#[derive(Debug, Default)]
enum RecordWriting {
    /// Nothing.
    #[default]
    Idle,
    /// They are on their way.
    Sent(JobTicket, RecordBatch),
    /// They were refused, and are written again after a pause.
    Pausing(JobTicket),
}

/// What a leader has under way, which hears the answers to its orders. `C` is a client that waits, `M` a master that registers.
#[derive(Debug)]
pub struct YarnWork<C, M> {
    pub(crate) state: LeaderState,
    /// What is being done about units.
    pub(crate) jobs: BTreeMap<JobTicket, UnitJob<C>>,
    /// Masters that are being started and stopped.
    pub(crate) launches: BTreeMap<JobTicket, MasterJob>,
    pub(crate) waiting: RecordWaiters<C, M>,
    n_tickets: u64,
    writing: RecordWriting,
    /// Refusals of records in a row.
    n_refused: u32,
    /// What an earlier leadership was writing when it ended: it may be written yet, and is not in a list that is read before.
    pub(crate) left_over: Option<JobTicket>,
    /// It lost track of what it wrote while it led: it does not lead again before the next tick.
    pub(crate) awaits_tick: bool,
    /// The look at what applications wait for that is under way, and the last one that it is about.
    look: (Option<JobTicket>, Option<YarnApplicationId>),
}

impl<C, M> YarnWork<C, M> {
    pub(crate) fn new(config: YarnLeaderConfig, rules: AdapterRules, started_ms: i64) -> Self {
        Self {
            state: LeaderState::new(config, rules, started_ms),
            jobs: BTreeMap::new(),
            launches: BTreeMap::new(),
            waiting: RecordWaiters::default(),
            n_tickets: 0,
            writing: RecordWriting::Idle,
            n_refused: 0,
            left_over: None,
            awaits_tick: false,
            look: (None, None),
        }
    }

    /// Stops acting; `Some`: another one leads, there. What was not recorded is forgotten: nobody was told of it.
    pub(crate) fn step_down(&mut self, leader: Option<String>, out: &mut Vec<YarnOrder<C, M>>) {
        if self.state.leads() {
            out.push(YarnOrder::Note(YarnNote::SteppedDown));
        }
        self.state.forget_all(LeaderRole::Standby(leader.clone()));
        let changes = std::mem::take(&mut self.jobs).into_values().filter_map(UnitJob::into_caller);
        let refused = || ManagerRefusal::Standby(leader.clone());
        out.extend(changes.map(|caller| YarnOrder::Answer(caller, Err(refused()))));
        self.waiting.clear(&refused, out);
        self.launches.clear();
        self.look.0 = None;
        if let RecordWriting::Sent(ticket, _) = std::mem::take(&mut self.writing) {
            self.left_over = Some(ticket);
        }
    }

    /// The dispatcher says what keeps the unit of an application waiting.
    pub fn on_place(&mut self, ticket: JobTicket, id: YarnApplicationId, unit: &UnitWaits) {
        let still_waits = self.state.adapter.get(id).is_some_and(waits::has_no_place);
        let entry = self.state.entries.get_mut(&id);
        if let Some(entry) = entry.filter(|_| still_waits && self.look.0 == Some(ticket)) {
            entry.waits = waits::for_place(unit);
        }
    }

    /// It was asked about every one.
    pub fn on_looked(&mut self, ticket: JobTicket) {
        self.look.0.take_if(|look| *look == ticket);
    }

    /// The store has answered.
    pub fn on_written(
        &mut self,
        ticket: JobTicket,
        answer: Result<(), RecordsFailure>,
        at: AdapterTime,
        out: &mut Vec<YarnOrder<C, M>>,
    ) {
        self.left_over.take_if(|left_over| *left_over == ticket);
        let batch = match std::mem::take(&mut self.writing) {
            RecordWriting::Sent(sent, batch) if sent == ticket => batch,
            other => {
                self.writing = other;
                return;
            }
        };
        match answer {
            Ok(()) => {
                self.n_refused = 0;
                let mut actions = Vec::new();
                self.state.on_written(&batch, at, &mut actions);
                self.settle(actions, at, out);
                self.go_on(at, out);
            }
            Err(RecordsFailure::Refused) => {
                self.state.write_again(batch);
                let ticket = self.ticket();
                self.writing = RecordWriting::Pausing(ticket);
                out.push(YarnOrder::Pause(
                    ticket,
                    OrderedPause { n_before: self.n_refused, most_ms: REFUSED_MS },
                ));
                self.n_refused = self.n_refused.saturating_add(1);
            }
            // Who leads next reads what was written.
            Err(RecordsFailure::LeaseLost) => {
                self.awaits_tick = true;
                self.step_down(None, out);
            }
        }
    }

    /// A pause is over.
    pub fn on_paused(&mut self, ticket: JobTicket, at: AdapterTime, out: &mut Vec<YarnOrder<C, M>>) {
        if matches!(self.writing, RecordWriting::Pausing(paused) if paused == ticket) {
            self.writing = RecordWriting::Idle;
            self.write(at, out);
        } else if self.launches.contains_key(&ticket) {
            self.try_master(ticket, out);
        } else {
            self.advance(ticket, at, out);
        }
    }

    /// Has the dispatcher asked what the next applications wait for.
    pub(crate) fn look(&mut self, out: &mut Vec<YarnOrder<C, M>>) {
        if self.look.0.is_some() {
            return;
        }
        let ids = waits::waiting(&self.state, self.look.1);
        if let Some(last) = ids.last() {
            let ticket = self.ticket();
            self.look = (Some(ticket), Some(*last));
            out.push(YarnOrder::AskPlaces(ticket, ids));
        }
    }

    pub(crate) fn ticket(&mut self) -> JobTicket {
        self.n_tickets += 1;
        JobTicket(self.n_tickets)
    }

    /// Does something with what it knows while it leads, and what follows.
    ///
    /// # Errors
    /// It stands by.
    pub(crate) fn run<T>(
        &mut self,
        at: AdapterTime,
        out: &mut Vec<YarnOrder<C, M>>,
        what: impl FnOnce(&mut LeaderState, &mut Vec<YarnAction>) -> T,
    ) -> Result<T, ManagerRefusal> {
        self.state.term()?;
        let mut actions = Vec::new();
        let answer = what(&mut self.state, &mut actions);
        self.settle(actions, at, out);
        Ok(answer)
    }

    /// Has done what the adapter wants done.
    pub(crate) fn settle(
        &mut self,
        actions: Vec<YarnAction>,
        at: AdapterTime,
        out: &mut Vec<YarnOrder<C, M>>,
    ) {
        for id in self.state.take(actions, at) {
            let ticket = self.ticket();
            self.jobs.insert(ticket, UnitJob::of_application(id));
            self.advance(ticket, at, out);
        }
        self.write(at, out);
    }

    /// Something was read or recorded: what has waited for that goes on.
    pub(crate) fn go_on(&mut self, at: AdapterTime, out: &mut Vec<YarnOrder<C, M>>) {
        let has_come = |job: &UnitJob<C>| job.wait().is_some_and(|wait| wait.is_over(&self.state, at));
        let come: Vec<JobTicket> =
            self.jobs.iter().filter(|(_, job)| has_come(job)).map(|(ticket, _)| *ticket).collect();
        for ticket in come {
            self.advance(ticket, at, out);
        }
        self.answer_waiting(at, out);
    }

    /// Writes what is to be written, one transaction after the other.
    fn write(&mut self, at: AdapterTime, out: &mut Vec<YarnOrder<C, M>>) {
        if !matches!(self.writing, RecordWriting::Idle) || !self.state.leads() {
            return;
        }
        let (writes, batch) = self.state.next_batch(at.wall_ms);
        if !writes.is_empty() {
            let (ticket, causes) = (self.ticket(), batch.causes());
            self.writing = RecordWriting::Sent(ticket, batch);
            out.push(YarnOrder::Write(ticket, writes, causes));
        }
    }

    /// Answers those whose record is written, and those who have waited for long enough.
    pub(crate) fn answer_waiting(&mut self, at: AdapterTime, out: &mut Vec<YarnOrder<C, M>>) {
        let state = &self.state;
        let is_unwritten =
            |id: &YarnApplicationId| state.entries.get(id).is_some_and(|entry| entry.saved == 0);
        let clients =
            self.waiting.submitted.extract_if(.., |(until, id, _)| !is_unwritten(id) || at.now >= *until);
        out.extend(clients.map(|(_, id, caller)| {
            let answer = if is_unwritten(&id) {
                let why = "the store has not recorded the application yet: submit it again";
                Err(ManagerRefusal::Unavailable(why.to_owned()))
            } else {
                state.application(id).map(drop)
            };
            YarnOrder::Answer(caller, answer)
        }));
        let is_early = |attempt: &YarnAttemptId| {
            state.application(attempt.application).is_ok_and(|(of, _)| of.is_early(*attempt))
        };
        let masters: Vec<_> = self
            .waiting
            .registering
            .extract_if(.., |(until, attempt, ..)| !is_early(attempt) || at.now >= *until)
            .collect();
        for (_, attempt, registration, master) in masters {
            let registered =
                self.run(at, out, |state, actions| register(state, attempt, registration, at, actions));
            out.push(YarnOrder::AnswerMaster(master, registered.and_then(|answer| answer)));
        }
    }
}
