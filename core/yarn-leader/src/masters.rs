//! What masters ask of the leader, and who waits until something is recorded.

use godel_core_yarn::{
    adapter::{
        AdapterTime, AllocateAnswer, AllocateCall, AllocatedContainer, MASTER, MasterRefusal, Registration,
        YarnAction, YarnApplication,
    },
    application::FinalStatus,
    asks::{ANY, AskRow, BadAsk},
    ids::{YarnAttemptId, YarnContainerId},
};

use crate::{
    YarnLeader,
    answers::{ContainerPlace, ManagerRefusal, MasterAnswer, RegisterAnswer},
    calls::judge_resources,
    outbox::YarnOrder,
    picture::YarnPicture,
    queues::yarn_name,
    show,
    state::LeaderState,
};

impl<C, M> YarnLeader<C, M> {
    /// A master registers. It may follow its submission, or its own start, more quickly than these are recorded: it is answered then. Who still
    /// comes early is told so.
    pub fn register(
        &mut self,
        attempt: YarnAttemptId,
        registration: Registration,
        master: M,
        at: AdapterTime,
        out: &mut Vec<YarnOrder<C, M>>,
    ) {
        self.work.waiting.await_start(attempt, registration, master, at);
        self.work.answer_waiting(at, out);
    }

    /// A master says what it wants and hears what it has. A call that changes nothing has nothing done.
    ///
    /// # Errors
    /// It is not the current one, has not registered, asks for what cannot be, or this adapter stands by.
    pub fn allocate(
        &mut self,
        attempt: YarnAttemptId,
        call: &AllocateCall,
        progress: f32,
        at: AdapterTime,
        out: &mut Vec<YarnOrder<C, M>>,
    ) -> Result<MasterAnswer, ManagerRefusal> {
        self.work.run(at, out, |state, actions| allocate(state, attempt, call, progress, at, actions))?
    }

    /// A master says goodbye. Whether that is recorded: until then it calls again.
    ///
    /// # Errors
    /// It is not the current one, has not registered, or this adapter stands by.
    pub fn finish(
        &mut self,
        attempt: YarnAttemptId,
        said: FinalStatus,
        tracking_url: &str,
        diagnostics: &str,
        at: AdapterTime,
        out: &mut Vec<YarnOrder<C, M>>,
    ) -> Result<bool, ManagerRefusal> {
        self.work.run(at, out, |state, actions| {
            let finished = state.adapter.with(attempt.application, |application, terms| {
                application.finish(attempt, said, tracking_url, terms, at, actions)
            });
            let is_recorded = finished.map_err(|_| ManagerRefusal::NoAttempt(attempt))??;
            let entry = state.entries.get_mut(&attempt.application);
            if let Some(notes) = entry.and_then(|entry| entry.attempt(attempt)) {
                notes.diagnostics = diagnostics.chars().take(show::DIAGNOSTICS_MAX).collect();
            }
            Ok(is_recorded)
        })?
    }
}

fn places(state: &LeaderState, containers: &[AllocatedContainer]) -> Vec<ContainerPlace> {
    let place = |container: &AllocatedContainer| {
        let (node, unit) = state.picture.place(container.id.attempt.application, container.ordinal)?;
        Some(ContainerPlace { node, unit })
    };
    containers.iter().filter_map(place).collect()
}

/// A master registers that is not early any more.
pub(crate) fn register(
    state: &mut LeaderState,
    attempt: YarnAttemptId,
    registration: Registration,
    at: AdapterTime,
    out: &mut Vec<YarnAction>,
) -> Result<RegisterAnswer, ManagerRefusal> {
    let id = attempt.application;
    let registered = state
        .adapter
        .with(id, |application, terms| application.register(attempt, registration, terms, at, out));
    let containers = registered.map_err(|_| ManagerRefusal::NoAttempt(attempt))??;
    let (application, _) = state.application(id)?;
    let submission = application.submission();
    Ok(RegisterAnswer {
        places: places(state, &containers),
        containers,
        user: submission.user.clone(),
        maximum: show::largest(state),
        queue: yarn_name(&state.config.root_queue, &submission.queue),
    })
}

fn allocate(
    state: &mut LeaderState,
    attempt: YarnAttemptId,
    call: &AllocateCall,
    progress: f32,
    at: AdapterTime,
    out: &mut Vec<YarnAction>,
) -> Result<MasterAnswer, ManagerRefusal> {
    let id = attempt.application;
    let known = state.adapter.get(id).ok_or(ManagerRefusal::NoAttempt(attempt))?;
    judge_asks(&state.picture, known, &call.asks).map_err(MasterRefusal::from)?;
    let answer =
        state.adapter.with(id, |application, terms| application.allocate(attempt, call, terms, at, out));
    let answer: AllocateAnswer = answer.map_err(|_| ManagerRefusal::NoAttempt(attempt))??;
    let n_changes = state.picture.n_node_changes;
    let told = state.entries.get_mut(&id).and_then(|entry| {
        entry.progress = if progress.is_finite() { progress.clamp(0.0, 1.0) } else { 0.0 };
        entry.n_node_changes_told.replace(n_changes)
    });
    let updated_nodes = match told {
        Some(told) if told < n_changes => show::nodes(state, at.wall_ms, told),
        Some(_) | None => Vec::new(),
    };
    let headroom = show::headroom(state, id);
    let (application, _) = state.application(id)?;
    Ok(MasterAnswer {
        places: places(state, &answer.allocated),
        user: application.submission().user.clone(),
        updated_nodes,
        headroom,
        n_nodes: state.picture.sums.n_nodes,
        preempted: preempted(state, application),
        priority: application.submission().priority,
        answer,
    })
}

/// Refuses labels and resources that no node has, as YARN does. What was asked for before stays, whatever becomes of the nodes.
fn judge_asks(picture: &YarnPicture, application: &YarnApplication, asks: &[AskRow]) -> Result<(), BadAsk> {
    for AskRow { key, label, .. } in asks.iter().filter(|row| row.n > 0 && row.name == ANY) {
        let is_known = application.asks().n_wanted(key) > 0;
        let label =
            label.as_ref().filter(|label| !label.is_empty() && !application.asks().has_label(key, label));
        if let Some(label) = label.filter(|label| !picture.has_label(label)) {
            return Err(BadAsk::Label(label.clone()));
        }
        if !is_known {
            judge_resources(picture, &key.group.capability)?;
        }
    }
    Ok(())
}

/// Containers that are about to be taken from an application, its master among them.
fn preempted(state: &LeaderState, application: &YarnApplication) -> Vec<YarnContainerId> {
    let leaving = state.picture.leaving(application.id());
    let named = leaving.filter_map(|ordinal| match ordinal {
        MASTER => application.attempts().master(),
        _ => application.containers().get(ordinal).map(|container| container.id),
    });
    named.collect()
}
