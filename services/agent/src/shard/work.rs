//! What state assigns, and what becomes of it: started, stopped and started again as the life of its node asks for.

use std::time::Duration;

use godel_proto::v1;

use super::{Shard, Timer};
use crate::{
    journal::Entry,
    life::{Action, Ended, Key},
    runtime::{Event, Run},
    service::Mode,
    session,
};

/// Exit code of a run that ends as soon as it is told to stop: 128 + SIGTERM.
const STOPPED: i32 = 143;

impl Shard {
    pub(super) fn on_assignment(&mut self, node: usize, assignment: &v1::Assignment, again: bool) {
        if self.ends_by.is_some() {
            // State says it again to the next agent.
            return;
        }
        if assignment.stop_after_disconnect_ms > 0 {
            self.look_after(node, assignment.stop_after_disconnect_ms);
        }
        let mut actions = Vec::new();
        let runs_programs = self.mode == Mode::Processes;
        for ordinal in session::ordinals(assignment) {
            let slot = &mut self.slots[node];
            let orders = session::orders(assignment, ordinal, &slot.def, runs_programs);
            let key = Key { unit: assignment.unit_id, ordinal };
            if again {
                slot.life.assign(key, assignment.incarnation, orders, &mut actions);
                continue;
            }
            let told = slot.n_to_refuse > 0;
            slot.n_to_refuse = slot.n_to_refuse.saturating_sub(1);
            let has = slot.def.has();
            if let Err(why) = slot.life.offer(key, assignment.incarnation, orders, &has, told, &mut actions) {
                let (unit, why) = (assignment.unit_name.as_str(), why.name());
                tracing::info!(node = %slot.name, unit, ordinal, why, "assignment refused");
            }
        }
        self.act(node, actions);
    }

    /// Does what a life asks for.
    pub(super) fn act(&mut self, node: usize, actions: Vec<Action>) {
        let mut more = Vec::new();
        for action in actions {
            match action {
                Action::Start(key, incarnation) => self.start(Run { node, key, incarnation }),
                Action::Wait { key, incarnation, restarts, after_ms } => {
                    let at = self.clock.now().plus(after_ms);
                    self.timers.set(at, Timer::Restart { node, key, incarnation, restarts });
                }
                Action::Stop { key, incarnation, grace_ms, reason } => {
                    let (run, grace) =
                        (Run { node, key, incarnation }, Duration::from_millis(grace_ms.into()));
                    if !self.runtimes.iter_mut().any(|runtime| runtime.stop(run, grace, reason)) {
                        let now = self.clock.now();
                        let ended = Ended { exit_code: STOPPED, ..Ended::default() };
                        self.slots[node].life.ended(key, incarnation, ended, now, &mut more);
                    }
                }
                Action::Keep(status) => {
                    self.containers.iter_mut().for_each(|desk| desk.on_end(&status));
                    self.keep.push(Entry::Ended(self.slots[node].name.clone(), status));
                }
                Action::Forget(status) => {
                    self.forget.push(Entry::Acknowledged(self.slots[node].name.clone(), status));
                }
            }
        }
        if !more.is_empty() {
            self.act(node, more);
        }
    }

    fn start(&mut self, run: Run) {
        let (now, life) = (self.clock.now(), &mut self.slots[run.node].life);
        let (restarts, in_row) = life.restarts(run.key);
        let Some(work) = life.work(run.key, run.incarnation) else { return };
        let Some(runtime) = self.runtimes.iter_mut().find(|runtime| runtime.takes(work)) else { return };
        match runtime.start(run, work, restarts, in_row, now) {
            Some(Event::Started(_, at_ms)) => life.started(run.key, run.incarnation, at_ms, now),
            Some(ended @ Event::Ended { .. }) => self.on_event(ended),
            Some(Event::Measured) | None => {}
        }
    }

    pub(super) fn on_event(&mut self, event: Event) {
        let now = self.clock.now();
        let mut actions = Vec::new();
        let node = match event {
            Event::Started(Run { node, key, incarnation }, at_ms) => {
                self.slots[node].life.started(key, incarnation, at_ms, now);
                node
            }
            Event::Ended { run, ended, since } => {
                self.runtimes.iter_mut().for_each(|runtime| runtime.forget(run));
                let Run { node, key, incarnation } = run;
                let life = &mut self.slots[node].life;
                // Of what had its name in another store it is none.
                if since.is_some() && life.running_since(key, incarnation) != since {
                    return;
                }
                life.ended(key, incarnation, ended, now, &mut actions);
                node
            }
            Event::Measured => return self.squeeze(),
        };
        self.act(node, actions);
        self.note(node);
    }
}
