//! Masters that are being started and stopped on their nodes, each until its node answers for good or its time is over.

use godel_base::time::Millis;
use godel_core_yarn::{
    adapter::{AdapterTime, LaunchFailure, LaunchFailureScope},
    ids::YarnAttemptId,
};

use crate::{
    answers::LaunchRefusal,
    avoided,
    outbox::{JobTicket, OrderedPause, YarnNote, YarnOrder},
    show::DIAGNOSTICS_MAX,
    state::LeaderState,
    waits,
    work::YarnWork,
};

/// A master that is to be stopped is tried for so long, milliseconds; its unit ends it at last.
const STOP_LIMIT_MS: u64 = 60_000;
/// The longest pause between tries, milliseconds.
const PAUSE_MS: u64 = 5_000;

/// A master that is being started or stopped.
#[derive(Clone, Debug)]
pub(crate) struct MasterJob {
    attempt: YarnAttemptId,
    is_stop: bool,
    deadline: Millis,
    /// Tries so far.
    n_tries: u32,
}

impl<C, M> YarnWork<C, M> {
    pub(crate) fn start_master(
        &mut self,
        attempt: YarnAttemptId,
        at: AdapterTime,
        out: &mut Vec<YarnOrder<C, M>>,
    ) {
        // It waits for a place no more.
        note_waits(&mut self.state, attempt, String::new());
        let deadline = at.now.plus(self.state.config.launch_timeout_ms);
        self.begin_master(MasterJob { attempt, is_stop: false, deadline, n_tries: 0 }, out);
    }

    /// Has a master stopped where it runs. One that cannot be reached ends with its node or with its unit.
    pub(crate) fn stop_master(
        &mut self,
        attempt: YarnAttemptId,
        at: AdapterTime,
        out: &mut Vec<YarnOrder<C, M>>,
    ) {
        let deadline = at.now.plus(STOP_LIMIT_MS);
        self.begin_master(MasterJob { attempt, is_stop: true, deadline, n_tries: 0 }, out);
    }

    fn begin_master(&mut self, job: MasterJob, out: &mut Vec<YarnOrder<C, M>>) {
        let ticket = self.ticket();
        self.launches.insert(ticket, job);
        self.try_master(ticket, out);
    }

    /// Asks the node on which a master is now.
    pub(crate) fn try_master(&mut self, ticket: JobTicket, out: &mut Vec<YarnOrder<C, M>>) {
        let Some(job) = self.launches.get(&ticket) else { return };
        match self.state.master_launch(job.attempt).map(Box::new) {
            Some(launch) if job.is_stop => out.push(YarnOrder::Stop(ticket, launch)),
            Some(launch) => out.push(YarnOrder::Launch(ticket, launch)),
            None => drop(self.launches.remove(&ticket)),
        }
    }

    /// A node has answered that it starts or stops a master, or why it does not.
    pub fn on_launched(
        &mut self,
        ticket: JobTicket,
        answer: Result<(), LaunchRefusal>,
        at: AdapterTime,
        out: &mut Vec<YarnOrder<C, M>>,
    ) {
        let Some(job) = self.launches.get_mut(&ticket) else { return };
        let attempt = job.attempt;
        let ended = match answer {
            Err(LaunchRefusal::Unavailable(why)) if at.now < job.deadline => {
                let pause = OrderedPause { n_before: job.n_tries, most_ms: PAUSE_MS };
                job.n_tries = job.n_tries.saturating_add(1);
                if !job.is_stop {
                    note_waits(&mut self.state, attempt, waits::for_launch(&why));
                }
                return out.push(YarnOrder::Pause(ticket, pause));
            }
            Ok(()) => Ok(()),
            Err(LaunchRefusal::Refused(why)) => Err((why, LaunchFailureScope::Node)),
            Err(LaunchRefusal::Hopeless(why)) => Err((why, LaunchFailureScope::Everywhere)),
            Err(LaunchRefusal::Unavailable(why)) => Err((why, LaunchFailureScope::Late)),
        };
        let is_stop = job.is_stop;
        self.launches.remove(&ticket);
        let note = match &ended {
            Err((why, LaunchFailureScope::Late)) if is_stop => YarnNote::StopFailed(attempt, why.clone()),
            _ if is_stop => return,
            Ok(()) => YarnNote::Launched,
            Err((why, _)) => YarnNote::LaunchFailed(attempt, why.clone()),
        };
        out.push(YarnOrder::Note(note));
        if is_stop {
            return;
        }
        // Who follows starts it again.
        let _ = self.run(at, out, |state, out| {
            let id = attempt.application;
            note_waits(state, attempt, String::new());
            let notes = state.entries.get_mut(&id).and_then(|entry| entry.attempt(attempt));
            match (notes, &ended) {
                (Some(notes), Ok(())) if notes.launch_ms == 0 => notes.launch_ms = at.wall_ms,
                (Some(notes), Err((why, _))) => {
                    notes.diagnostics = why.chars().take(DIAGNOSTICS_MAX).collect();
                }
                (Some(_) | None, _) => {}
            }
            let LeaderState { picture, adapter, .. } = state;
            // It was there when its place was looked up.
            let _ = adapter.with(id, |application, terms| {
                let launched = ended.as_ref().copied().map_err(|(why, scope)| {
                    let has_other_node =
                        avoided::has_other_node(picture, id, application.attempts().tried_nodes().nodes());
                    LaunchFailure { why, scope: *scope, has_other_node }
                });
                application.master_launched(attempt, launched, terms, at, out);
            });
        });
        // It may wait to be registered.
        self.go_on(at, out);
    }
}

/// Notes what an application waits for.
fn note_waits(state: &mut LeaderState, attempt: YarnAttemptId, waits: String) {
    if let Some(entry) = state.entries.get_mut(&attempt.application) {
        entry.waits = waits;
    }
}
