//! What is done about the units of applications, one step after the other.
//!
//! Every step may be done twice: sizes of task groups are absolute, ordinals are released once, and the next incarnation is asked for by what
//! the rows show. A step calls the dispatcher, or waits until something is read. What an application wants done comes one after the other; what a
//! client has changed of its unit goes beside that.

use std::{collections::VecDeque, sync::Arc};

use godel_base::{ids::Revision, time::Millis};
use godel_core_yarn::{
    adapter::{AdapterTime, MASTER, OPPORTUNISTIC, YarnAction},
    asks::{AskGrowth, ExecutionType},
    attempt::AttemptState,
    ids::YarnApplicationId,
};
use godel_domain::change_line::CallCause;

use crate::{
    answers::ManagerRefusal,
    avoided::avoided,
    follow::tell_master,
    grow::{Growth, has_lost_one},
    outbox::{
        ChangedField, JobTicket, OrderedPause, UnitCall, UnitCallRefusal, UnitCallRefused, YarnNote,
        YarnOrder, YarnUnitSubmission,
    },
    state::LeaderState,
    work::YarnWork,
};

/// Ordinals in one request.
const N_ORDINALS_MAX: usize = 10_000;
/// What a client has changed is changed within that, milliseconds, or the client asks again: Hadoop's clients hear nothing later.
pub const CHANGE_LIMIT_MS: u64 = 60_000;
/// The longest pause before a master is asked for again, milliseconds.
const RETRY_MS: u64 = 1_000;

/// One thing that is done about a unit.
#[derive(Clone, Debug)]
enum UnitStep {
    /// It is submitted.
    Submit,
    /// Replicas are added.
    Grow(Growth),
    /// Ordinals of the application are released.
    Release(u32, Vec<u32>),
    /// The next incarnation of the master is asked for, which was refused so often.
    NextMaster(u32),
    /// It is changed as a whole.
    Change(u32, ChangedField),
    /// It is cancelled.
    Cancel(u32),
}

/// What a step waits for.
#[derive(Clone, Debug)]
pub(crate) enum JobWait {
    /// The dispatcher answers.
    Answer,
    /// A pause is over.
    Pause,
    /// The store is read up to a revision: then the step is done.
    Read(Revision),
    /// The store is read up to a revision: then the step goes on.
    ReadOn(Revision),
    /// The last master has left its node, or no other is wanted.
    MasterLeft(YarnApplicationId),
    /// One of these groups is known to be gone, or it is too late.
    GroupLost { application: YarnApplicationId, side: u32, groups: Vec<String>, until: Millis },
}

impl JobWait {
    /// Whether it has come by what was read, or by the time.
    pub(crate) fn is_over(&self, state: &LeaderState, at: AdapterTime) -> bool {
        match self {
            Self::Answer | Self::Pause => false,
            Self::Read(revision) | Self::ReadOn(revision) => {
                state.picture.read.is_some_and(|read| read >= *revision)
            }
            Self::MasterLeft(id) => !wants_master(state, *id) || !has_master(state, *id),
            Self::GroupLost { application, side, groups, until } => {
                at.now >= *until || has_lost_one(state, *application, *side, groups)
            }
        }
    }
}

/// What follows from one look at a step.
pub(crate) enum StepTurn {
    /// It is done, or there is nothing to do.
    Done,
    /// The dispatcher is asked.
    Call(UnitCall),
    /// It goes on later.
    Wait(JobWait),
    /// It is looked at again.
    Again,
    /// The same, once it is said what came of something, and why.
    Say(&'static str, String),
    /// It is done without its end: what came of that, and why.
    GiveUp(&'static str, String),
    /// It is tried again after a pause.
    Pause(OrderedPause),
    /// It and what was to follow it is given up.
    Fail(UnitCallRefused),
}

/// What is being done about the unit of an application.
#[derive(Debug)]
pub(crate) struct UnitJob<C> {
    application: YarnApplicationId,
    steps: VecDeque<UnitStep>,
    /// The first of `steps` waits for this.
    wait: Option<JobWait>,
    /// What somebody has changed; `None`: the application itself wants it done, and goes on with what it wants next.
    change: Option<YarnUnitChange<C>>,
}

/// What somebody wants changed of the units of an application.
#[derive(Debug)]
pub(crate) struct AskedChange {
    pub(crate) field: ChangedField,
    /// On whose behalf it is changed, for the change log.
    pub(crate) cause: Option<CallCause>,
}

/// What somebody has changed of the units of an application.
#[derive(Debug)]
struct YarnUnitChange<C> {
    caller: C,
    field: ChangedField,
    cause: Option<CallCause>,
    /// It is given up then.
    until: Millis,
}

impl<C> UnitJob<C> {
    /// What an application wants done.
    pub(crate) fn of_application(application: YarnApplicationId) -> Self {
        Self { application, steps: VecDeque::new(), wait: None, change: None }
    }

    /// What somebody has changed of the units of an application: first of the one with its master, whose refusal counts.
    fn of_caller(application: YarnApplicationId, change: YarnUnitChange<C>) -> Self {
        let steps = changes(&change.field).into();
        Self { application, steps, wait: None, change: Some(change) }
    }

    /// Who waits for its end.
    pub(crate) fn into_caller(self) -> Option<C> {
        self.change.map(|change| change.caller)
    }

    fn is_late(&self, at: AdapterTime) -> bool {
        self.change.as_ref().is_some_and(|change| at.now >= change.until)
    }

    pub(crate) fn wait(&self) -> Option<&JobWait> {
        self.wait.as_ref()
    }
}

fn changes(field: &ChangedField) -> Vec<UnitStep> {
    [MASTER, OPPORTUNISTIC].map(|side| UnitStep::Change(side, field.clone())).into()
}

/// Steps by which something that the adapter wants done is done.
fn steps_of(action: YarnAction) -> Vec<UnitStep> {
    match action {
        YarnAction::SubmitUnit(_) => vec![UnitStep::Submit],
        YarnAction::Grow(_, add) => {
            let is_opportunistic =
                |growth: &AskGrowth| growth.key.group.execution == ExecutionType::Opportunistic;
            let (opportunistic, guaranteed): (Vec<_>, Vec<_>) = add.into_iter().partition(is_opportunistic);
            let sides = [(MASTER, guaranteed), (OPPORTUNISTIC, opportunistic)];
            let sides = sides.into_iter().filter(|(_, add)| !add.is_empty());
            sides.map(|(side, add)| UnitStep::Grow(Growth::new(side, add))).collect()
        }
        YarnAction::Release(_, ordinals) => {
            let (opportunistic, guaranteed): (Vec<u32>, Vec<u32>) =
                ordinals.iter().partition(|ordinal| **ordinal >= OPPORTUNISTIC);
            let mut steps = Vec::new();
            for (side, ordinals) in [(MASTER, guaranteed), (OPPORTUNISTIC, opportunistic)] {
                let parts = ordinals.chunks(N_ORDINALS_MAX);
                steps.extend(parts.map(|part| UnitStep::Release(side, part.to_vec())));
            }
            steps
        }
        YarnAction::NextMaster(_) => vec![UnitStep::NextMaster(0)],
        YarnAction::MoveUnit(_, queue) => changes(&ChangedField::Queue(queue)),
        YarnAction::CancelUnit(_) => [OPPORTUNISTIC, MASTER].map(UnitStep::Cancel).into(),
        // Records are written, and masters started, beside that.
        YarnAction::PutRecord(..) | YarnAction::LaunchMaster(..) | YarnAction::StopMaster(_) => Vec::new(),
    }
}

/// Whether the next incarnation of a master is still to be asked for.
fn wants_master(state: &LeaderState, id: YarnApplicationId) -> bool {
    let Ok((application, _)) = state.application(id) else { return false };
    let waits = application.attempts().last().is_some_and(|attempt| attempt.state == AttemptState::Scheduled);
    let incarnation = application.attempts().incarnation();
    waits && state.picture.unit(id).is_some_and(|unit| unit.row(MASTER).incarnation < incarnation)
}

/// Whether a master is on its node. Whatever is there leaves first; what the dispatcher has yet to read it refuses.
fn has_master(state: &LeaderState, id: YarnApplicationId) -> bool {
    state.picture.unit(id).is_some_and(|unit| unit.row(MASTER).phase.is_live())
}

/// What a step does first, or once more.
fn begin(step: &mut UnitStep, state: &mut LeaderState, id: YarnApplicationId) -> StepTurn {
    match step {
        UnitStep::Submit => {
            let Ok((application, _)) = state.application(id) else { return StepTurn::Done };
            let of = application.submission();
            StepTurn::Call(UnitCall::Submit(YarnUnitSubmission {
                application: id,
                side: MASTER,
                user: of.user.clone(),
                queue: of.queue.clone(),
                priority: of.priority,
                master: of.master.clone(),
            }))
        }
        UnitStep::Grow(growth) => growth.turn(state, id),
        UnitStep::Release(side, ordinals) => {
            let unit = state.picture.unit_of(id, *side).filter(|unit| !unit.record.status.cancelled);
            let Some(unit) = unit else { return StepTurn::Done };
            let own = ordinals.iter().map(|ordinal| unit.own(*ordinal)).collect();
            StepTurn::Call(UnitCall::Release(id, *side, own))
        }
        UnitStep::NextMaster(_) if !wants_master(state, id) => StepTurn::Done,
        UnitStep::NextMaster(_) if has_master(state, id) => StepTurn::Wait(JobWait::MasterLeft(id)),
        UnitStep::NextMaster(_) => {
            let failed = state.application(id).map(|(application, _)| application.attempts().failed_nodes());
            let avoided = avoided(&failed.unwrap_or_default(), state.picture.launch_nodes());
            StepTurn::Call(UnitCall::Retry(id, avoided))
        }
        UnitStep::Change(side, field) => {
            let unit = state.picture.unit_of(id, *side).filter(|unit| *side == MASTER || unit.is_alive());
            unit.map_or(StepTurn::Done, |unit| {
                StepTurn::Call(UnitCall::Change(Arc::clone(&unit.record), field.clone()))
            })
        }
        UnitStep::Cancel(side) => {
            let is_there = state.picture.unit_of(id, *side).is_some_and(|unit| !unit.record.status.cancelled);
            if is_there { StepTurn::Call(UnitCall::Cancel(id, *side)) } else { StepTurn::Done }
        }
    }
}

/// What follows from an answer of the dispatcher.
fn answered(
    step: &mut UnitStep,
    id: YarnApplicationId,
    answer: Result<Revision, UnitCallRefused>,
    at: AdapterTime,
) -> StepTurn {
    let is_over =
        |refused: &UnitCallRefused| matches!(refused.reason, UnitCallRefusal::Gone | UnitCallRefusal::NotNow);
    match (step, answer) {
        (UnitStep::Grow(growth), answer) => growth.answered(id, answer, at),
        (UnitStep::Cancel(_), Ok(_)) => StepTurn::Done,
        // What comes next counts from here.
        (_, Ok(revision)) => StepTurn::Wait(JobWait::Read(revision)),
        // The unit is over: so is what was to be released.
        (UnitStep::Cancel(_) | UnitStep::Release(..), Err(refused)) if is_over(&refused) => StepTurn::Done,
        (UnitStep::Cancel(_), Err(refused)) => {
            StepTurn::GiveUp("the unit could not be cancelled", refused.why)
        }
        (UnitStep::Release(..), Err(refused)) => {
            StepTurn::GiveUp("containers could not be released", refused.why)
        }
        (UnitStep::NextMaster(n_refused), Err(refused)) if refused.reason == UnitCallRefusal::NotNow => {
            let pause = OrderedPause { n_before: *n_refused, most_ms: RETRY_MS };
            *n_refused = n_refused.saturating_add(1);
            StepTurn::Pause(pause)
        }
        (UnitStep::NextMaster(_), Err(refused)) => StepTurn::GiveUp("there is no next master", refused.why),
        (UnitStep::Submit | UnitStep::Change(..), Err(refused)) => StepTurn::Fail(refused),
    }
}

impl<C, M> YarnWork<C, M> {
    /// Somebody has a unit changed, and is answered when it is. The change log has a line with the record of that.
    pub(crate) fn change_unit(
        &mut self,
        id: YarnApplicationId,
        caller: C,
        asked: AskedChange,
        at: AdapterTime,
        out: &mut Vec<YarnOrder<C, M>>,
    ) {
        let ticket = self.ticket();
        let AskedChange { field, cause } = asked;
        let change = YarnUnitChange { caller, field, cause, until: at.now.plus(CHANGE_LIMIT_MS) };
        self.jobs.insert(ticket, UnitJob::of_caller(id, change));
        self.advance(ticket, at, out);
    }

    /// Gives up what clients have changed and nobody has taken in time. What the dispatcher answers later is nobody's.
    pub(crate) fn end_late_changes(&mut self, at: AdapterTime, out: &mut Vec<YarnOrder<C, M>>) {
        let late = self.jobs.iter().filter(|(_, job)| job.is_late(at));
        let late: Vec<JobTicket> = late.map(|(ticket, _)| *ticket).collect();
        for ticket in late {
            let why = "the dispatcher has not taken the change yet: ask for it again";
            self.end_change(ticket, Err(ManagerRefusal::Unavailable(why.to_owned())), at, out);
        }
    }

    /// The dispatcher has answered for good: with the revision of what it has written, or why it refuses.
    pub fn on_called(
        &mut self,
        ticket: JobTicket,
        answer: Result<Revision, UnitCallRefused>,
        at: AdapterTime,
        out: &mut Vec<YarnOrder<C, M>>,
    ) {
        let Some(job) = self.jobs.get_mut(&ticket) else { return };
        let Some(step) = job.steps.front_mut().filter(|_| matches!(job.wait, Some(JobWait::Answer))) else {
            return;
        };
        job.wait = None;
        let id = job.application;
        let turn = answered(step, id, answer, at);
        if self.turn(ticket, turn, at, out) {
            self.advance(ticket, at, out);
        }
    }

    /// Goes on with a job until it waits for something, or is done.
    pub(crate) fn advance(&mut self, ticket: JobTicket, at: AdapterTime, out: &mut Vec<YarnOrder<C, M>>) {
        loop {
            let Some(job) = self.jobs.get_mut(&ticket) else { return };
            let id = job.application;
            let turn = match (job.wait.take(), job.steps.front_mut()) {
                (Some(JobWait::Read(_)), Some(UnitStep::Grow(growth))) => growth.grown(&mut self.state, id),
                (Some(JobWait::Read(_)), Some(_)) => StepTurn::Done,
                (_, Some(step)) => begin(step, &mut self.state, id),
                (_, None) if job.change.is_none() => match self.state.next_action(id) {
                    Some(action) => {
                        self.do_action(ticket, action, at, out);
                        continue;
                    }
                    None => {
                        self.jobs.remove(&ticket);
                        return;
                    }
                },
                (_, None) => return self.end_change(ticket, Ok(()), at, out),
            };
            if !self.turn(ticket, turn, at, out) {
                return;
            }
        }
    }

    /// Begins with something that an application wants done.
    fn do_action(
        &mut self,
        ticket: JobTicket,
        action: YarnAction,
        at: AdapterTime,
        out: &mut Vec<YarnOrder<C, M>>,
    ) {
        match action {
            YarnAction::LaunchMaster(attempt, _) => self.start_master(attempt, at, out),
            YarnAction::StopMaster(attempt) => self.stop_master(attempt, at, out),
            action => {
                if let Some(job) = self.jobs.get_mut(&ticket) {
                    job.steps.extend(steps_of(action));
                }
            }
        }
    }

    /// Does what one look at a step has come to. Whether the job goes on now.
    fn turn(
        &mut self,
        ticket: JobTicket,
        turn: StepTurn,
        at: AdapterTime,
        out: &mut Vec<YarnOrder<C, M>>,
    ) -> bool {
        let Some(job) = self.jobs.get_mut(&ticket) else { return false };
        let id = job.application;
        match turn {
            StepTurn::Done => {
                let is_submitted = matches!(job.steps.pop_front(), Some(UnitStep::Submit));
                if is_submitted {
                    // It has an entry. Its master may have had a place before the application knew that it has a unit.
                    let _ = self.run(at, out, |state, out| {
                        let answered = state.adapter.with(id, |application, terms| {
                            application.unit_answered(Ok(()), terms, at, out);
                        });
                        if answered.is_ok() {
                            tell_master(state, id, at, out);
                        }
                    });
                }
                true
            }
            StepTurn::Again => true,
            StepTurn::Say(what, why) => {
                out.push(YarnOrder::Note(YarnNote::Refused(id, what, why)));
                true
            }
            StepTurn::GiveUp(what, why) => {
                job.steps.pop_front();
                out.push(YarnOrder::Note(YarnNote::Refused(id, what, why)));
                true
            }
            StepTurn::Call(call) => {
                job.wait = Some(JobWait::Answer);
                out.push(YarnOrder::Call(ticket, call));
                false
            }
            StepTurn::Wait(wait) => {
                let is_over = wait.is_over(&self.state, at);
                job.wait = Some(wait);
                is_over
            }
            StepTurn::Pause(pause) => {
                job.wait = Some(JobWait::Pause);
                out.push(YarnOrder::Pause(ticket, pause));
                false
            }
            StepTurn::Fail(refused) => self.fail(ticket, refused, at, out),
        }
    }

    /// A step is given up, and what was to follow it. Whether the job goes on.
    fn fail(
        &mut self,
        ticket: JobTicket,
        refused: UnitCallRefused,
        at: AdapterTime,
        out: &mut Vec<YarnOrder<C, M>>,
    ) -> bool {
        let Some(job) = self.jobs.get_mut(&ticket) else { return false };
        let id = job.application;
        if job.change.is_some() {
            self.end_change(ticket, Err(ManagerRefusal::Invalid(refused.why)), at, out);
            return false;
        }
        match job.steps.front() {
            Some(UnitStep::Submit) => {
                job.steps.clear();
                let why = format!("The application was refused: {}", refused.why);
                // There is one: somebody is at its unit.
                let _ = self.run(at, out, |state, out| {
                    state.adapter.with(id, |application, terms| {
                        application.unit_answered(Err(&why), terms, at, out);
                    })
                });
            }
            _ => {
                job.steps.clear();
                let what = "the unit stays in its queue";
                out.push(YarnOrder::Note(YarnNote::Refused(id, what, refused.why)));
            }
        }
        true
    }

    /// What somebody had changed of a unit is changed, or refused.
    fn end_change(
        &mut self,
        ticket: JobTicket,
        answer: Result<(), ManagerRefusal>,
        at: AdapterTime,
        out: &mut Vec<YarnOrder<C, M>>,
    ) {
        let Some(UnitJob { application: id, change: Some(change), .. }) = self.jobs.remove(&ticket) else {
            return;
        };
        let YarnUnitChange { caller, field, cause, .. } = change;
        let answer = answer.and_then(|()| {
            let changed = self.run(at, out, |state, actions| {
                let changed = state.adapter.with(id, |application, terms| match field {
                    ChangedField::Queue(queue) => application.change_queue(queue, terms, at, actions),
                    ChangedField::Priority(priority) => {
                        application.change_priority(priority, actions);
                    }
                });
                state.note_cause(id, cause, actions);
                changed
            })?;
            Ok(changed?)
        });
        out.push(YarnOrder::Answer(caller, answer));
    }
}
