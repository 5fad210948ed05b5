//! What clients ask of the leader.

use std::collections::BTreeMap;

use godel_core_yarn::{
    adapter::{AdapterTime, AppSubmission, MasterRefusal},
    asks::BadAsk,
    ids::{YarnApplicationId, YarnAttemptId},
};
use godel_domain::names::{APPLICATION_NAME_LEN_MAX, APPLICATION_QUEUE_LEN_MAX, N_TAGS_MAX, NAME_LEN_MAX};

use crate::{
    YarnLeader,
    answers::{AppCaller, AppSubmitter, ManagerRefusal, SubmittedApp},
    config::YarnLeaderConfig,
    jobs::AskedChange,
    notes::AppNotes,
    outbox::{ChangedField, YarnNote, YarnOrder},
    picture::YarnPicture,
    queues::yarn_name,
    reports::{YarnAmount, yarn_resource},
    show,
    state::{AppEntry, LeaderState},
};

impl<C, M> YarnLeader<C, M> {
    /// An id that nobody else gets, and the most that one container may ask for.
    ///
    /// # Errors
    /// It stands by.
    pub fn new_application(&mut self) -> Result<(YarnApplicationId, YarnAmount), ManagerRefusal> {
        let state = &mut self.work.state;
        state.term()?;
        let number = state.next_number;
        state.next_number = number.wrapping_add(1).max(1);
        let id = YarnApplicationId { cluster_timestamp: state.cluster_timestamp, number };
        Ok((id, show::largest(state)))
    }

    /// Takes a submission; the same again changes nothing. The caller is answered when it is recorded.
    pub fn submit(
        &mut self,
        id: YarnApplicationId,
        submitted: SubmittedApp,
        by: AppSubmitter,
        caller: C,
        at: AdapterTime,
        out: &mut Vec<YarnOrder<C, M>>,
    ) {
        let is_new = self.work.state.adapter.get(id).is_none();
        let cause = by.cause.clone();
        let taken = self.work.run(at, out, |state, actions| {
            let submission = new_submission(state, id, submitted, by)?;
            state.adapter.submit(id, submission, at, actions)?;
            state.note_cause(id, cause, actions);
            Ok(())
        });
        match taken.and_then(|taken| taken) {
            Ok(()) => {
                if is_new {
                    out.push(YarnOrder::Note(YarnNote::Submitted));
                }
                self.work.waiting.await_record(id, caller, at);
                self.work.answer_waiting(at, out);
            }
            Err(refusal) => out.push(YarnOrder::Answer(caller, Err(refusal))),
        }
    }

    /// Ends an application on behalf of a user. Whether it is over.
    ///
    /// # Errors
    /// There is none, the user may not, or this adapter stands by.
    pub fn kill(
        &mut self,
        id: YarnApplicationId,
        by: AppCaller<'_>,
        why: &str,
        at: AdapterTime,
        out: &mut Vec<YarnOrder<C, M>>,
    ) -> Result<bool, ManagerRefusal> {
        self.work.state.allowed_change(id, &by)?;
        let killed = format!("Application killed by user {}", by.user.name);
        let why = if why.is_empty() { killed } else { format!("{killed}: {why}") };
        let killed = self.work.run(at, out, |state, actions| {
            let is_over = state.adapter.with(id, |application, terms| {
                application.kill(&why, terms, at, actions);
                application.is_over()
            });
            state.note_cause(id, by.cause, actions);
            is_over
        })?;
        Ok(killed?)
    }

    /// Has an attempt fail on behalf of a user: another one follows while the application may have one.
    ///
    /// # Errors
    /// There is none, the user may not, or this adapter stands by.
    pub fn fail_attempt(
        &mut self,
        id: YarnAttemptId,
        by: AppCaller<'_>,
        at: AdapterTime,
        out: &mut Vec<YarnOrder<C, M>>,
    ) -> Result<(), ManagerRefusal> {
        self.work.state.allowed_change(id.application, &by)?;
        let why = format!("Attempt failed by user {}", by.user.name);
        let failed = self.work.run(at, out, |state, actions| {
            let failed = state.adapter.with(id.application, |application, terms| {
                application.fail_attempt(id, &why, terms, at, actions)
            });
            state.note_cause(id.application, by.cause, actions);
            failed
        })?;
        Ok(failed.map_err(|_| ManagerRefusal::NoAttempt(id))??)
    }

    /// Puts an application into another queue; the name of that queue. The caller is answered when the dispatcher has taken it.
    ///
    /// # Errors
    /// There is none, the user may not, or this adapter stands by; then the caller is not answered.
    pub fn move_to(
        &mut self,
        id: YarnApplicationId,
        by: AppCaller<'_>,
        queue: &str,
        caller: C,
        at: AdapterTime,
        out: &mut Vec<YarnOrder<C, M>>,
    ) -> Result<String, ManagerRefusal> {
        self.work.state.allowed_change(id, &by)?;
        let (application, _) = self.work.state.application(id)?;
        if application.is_over() {
            return Err(ManagerRefusal::Invalid(format!("application {id} is over: it stays in its queue")));
        }
        let path = self.work.state.queue(queue)?;
        self.work.state.allowed_target(id, by.user, &path)?;
        let name = yarn_name(&self.work.state.config.root_queue, &path);
        // The dispatcher decides; a unit that is not there yet is submitted to the new queue, or moved then.
        let asked = AskedChange { field: ChangedField::Queue(path), cause: by.cause };
        self.work.change_unit(id, caller, asked, at, out);
        Ok(name)
    }

    /// Changes the priority of an application. The caller is answered when the dispatcher has taken it.
    ///
    /// # Errors
    /// There is none, the user may not, or this adapter stands by; then the caller is not answered.
    pub fn set_priority(
        &mut self,
        id: YarnApplicationId,
        by: AppCaller<'_>,
        priority: i32,
        caller: C,
        at: AdapterTime,
        out: &mut Vec<YarnOrder<C, M>>,
    ) -> Result<(), ManagerRefusal> {
        self.work.state.allowed_change(id, &by)?;
        self.work.state.application(id)?;
        let asked = AskedChange { field: ChangedField::Priority(priority), cause: by.cause };
        self.work.change_unit(id, caller, asked, at, out);
        Ok(())
    }

    /// Has an application end at a time, Unix milliseconds.
    ///
    /// # Errors
    /// There is none, the user may not, it is over, the time has passed, or this adapter stands by.
    pub fn set_timeout(
        &mut self,
        id: YarnApplicationId,
        by: AppCaller<'_>,
        end_ms: i64,
        at: AdapterTime,
        out: &mut Vec<YarnOrder<C, M>>,
    ) -> Result<(), ManagerRefusal> {
        self.work.state.allowed_change(id, &by)?;
        let set = self.work.run(at, out, |state, actions| {
            let set = state.adapter.with(id, |application, _| {
                if application.is_over() {
                    return Err(ManagerRefusal::Invalid(format!("application {id} is over")));
                }
                if end_ms <= at.wall_ms {
                    return Err(ManagerRefusal::Invalid("the time of the end has passed already".to_owned()));
                }
                let lifetime = end_ms.saturating_sub(application.times_ms().0);
                application.change_lifetime(Some(lifetime), actions);
                Ok(())
            });
            state.note_cause(id, by.cause, actions);
            set
        })?;
        set?
    }
}

/// What is submitted, with its queue in godel and an entry, if it is to be taken.
fn new_submission(
    state: &mut LeaderState,
    id: YarnApplicationId,
    submitted: SubmittedApp,
    by: AppSubmitter,
) -> Result<AppSubmission, ManagerRefusal> {
    judge(&state.config, &submitted)?;
    let SubmittedApp { submission, launch, tags } = submitted;
    let queue = state.admit(id, &submission, &by)?;
    if state.adapter.get(id).is_none() {
        judge_submission(&state.picture, &submission).map_err(MasterRefusal::from)?;
        let active = state.adapter.iter().filter(|application| !application.is_over()).count();
        if active >= state.config.applications_max {
            return Err(ManagerRefusal::Unavailable(format!(
                "{active} applications have not ended; `yarn.applications_max` allows no more"
            )));
        }
        let notes = AppNotes { launch, tags, ..AppNotes::default() };
        state.entries.insert(id, AppEntry::new(notes, by.acls, 0));
    }
    Ok(AppSubmission { queue, ..submission })
}

/// Refuses what no record can keep.
fn judge(config: &YarnLeaderConfig, submitted: &SubmittedApp) -> Result<(), ManagerRefusal> {
    let SubmittedApp { submission, launch, tags } = submitted;
    if launch.len() > config.launch_bytes_max {
        return Err(ManagerRefusal::Invalid(format!(
            "the launch context of the master has {} bytes; `yarn.launch_bytes_max` allows {}",
            launch.len(),
            config.launch_bytes_max
        )));
    }
    if tags.len() > N_TAGS_MAX {
        return Err(ManagerRefusal::Invalid(format!("{} tags; at most {N_TAGS_MAX}", tags.len())));
    }
    let master = submission.master.as_ref();
    let label = master.map(|master| master.label.as_str()).unwrap_or_default();
    for (field, text, most) in [
        ("name", &*submission.name, APPLICATION_NAME_LEN_MAX),
        ("user", &submission.user, NAME_LEN_MAX),
        ("queue", &submission.queue, APPLICATION_QUEUE_LEN_MAX),
        ("type", &submission.kind, NAME_LEN_MAX),
        ("node label expression", &submission.label, NAME_LEN_MAX),
        ("node label expression of its master", label, NAME_LEN_MAX),
    ] {
        if text.len() > most {
            let n = text.len();
            let why = format!("the {field} of the application has {n} bytes; at most {most} are kept");
            return Err(ManagerRefusal::Invalid(why));
        }
    }
    let capability = master.map(|master| &master.capability);
    if capability.is_some_and(|capability| !capability.values().any(|amount| *amount > 0)) {
        return Err(ManagerRefusal::Invalid("the master needs memory and CPUs above 0".to_owned()));
    }
    Ok(())
}

/// Refuses a submission with labels and resources that no node has, as YARN does.
fn judge_submission(picture: &YarnPicture, submission: &AppSubmission) -> Result<(), BadAsk> {
    let of_master = submission.master.as_ref();
    let labels = [Some(&submission.label), of_master.map(|master| &master.label)];
    for label in labels.into_iter().flatten().filter(|label| !label.is_empty()) {
        if !picture.has_label(label) {
            return Err(BadAsk::Label(label.clone()));
        }
    }
    of_master.map_or(Ok(()), |master| judge_resources(picture, &master.capability))
}

/// Refuses amounts of resources that no node has.
pub(crate) fn judge_resources(
    picture: &YarnPicture,
    capability: &BTreeMap<String, i64>,
) -> Result<(), BadAsk> {
    match capability.keys().find(|name| !picture.has_resource(name)) {
        Some(unknown) => Err(BadAsk::Resource(yarn_resource(unknown).to_owned())),
        None => Ok(()),
    }
}
