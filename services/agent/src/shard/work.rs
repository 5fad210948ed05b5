//! What state assigns, and what becomes of it: started, stopped and started again as the agent of its node wants.

use std::time::Duration;

use godel_base::time::Millis;
use godel_core_agent::{AgentAction, AssignedRun, HowEnded, JournalEntry, RunKey, StopOrder};
use godel_proto::v1;

use super::{ContainerDesk, HostedNode, Shard, Timer};
use crate::{
    runtime::{Event, HostedRun},
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
        let runs_programs = self.mode == Mode::Processes;
        let HostedNode { def, name, agent, .. } = &mut self.nodes[node];
        let has = def.has();
        for ordinal in session::ordinals(assignment) {
            let orders = session::orders(assignment, ordinal, def, runs_programs);
            let key = RunKey { unit: assignment.unit_id, ordinal };
            let run = AssignedRun { key, incarnation: assignment.incarnation, orders, again };
            if let Err(why) = agent.assign(run, &has, &mut self.out) {
                let (unit, why) = (assignment.unit_name.as_str(), why.name());
                tracing::info!(node = %name, unit, ordinal, why, "assignment refused");
            }
        }
        self.act(node);
    }

    pub(super) fn on_stops(&mut self, node: usize, stops: &v1::StopRequests) {
        let agent = &mut self.nodes[node].agent;
        for stop in &stops.stops {
            let v1::StopRequest { unit_id, ordinal, incarnation, grace_ms, notice_ms } = *stop;
            let key = RunKey { unit: unit_id, ordinal };
            if stops.left_over {
                agent.life_mut().abandon(key, incarnation, grace_ms, &mut self.out);
            } else {
                agent.stop(StopOrder { key, incarnation, grace_ms, notice_ms }, &mut self.out);
            }
        }
        self.act(node);
    }

    /// Does what the agent of a node wants, and what follows from that.
    pub(super) fn act(&mut self, node: usize) {
        let mut at = 0;
        while let Some(action) = self.out.get(at).copied() {
            at += 1;
            self.do_action(node, action);
        }
        self.out.clear();
    }

    fn do_action(&mut self, node: usize, action: AgentAction) {
        match action {
            AgentAction::Start(key, incarnation) => self.start(HostedRun { node, key, incarnation }),
            AgentAction::Wait { key, incarnation, restarts, after_ms } => {
                let at = self.clock.now().plus(after_ms);
                self.timers.set(at, Timer::Restart { node, key, incarnation, restarts });
            }
            AgentAction::Stop { key, incarnation, grace_ms, reason } => {
                let (run, grace) =
                    (HostedRun { node, key, incarnation }, Duration::from_millis(grace_ms.into()));
                if !self.runtimes.iter_mut().any(|runtime| runtime.stop(run, grace, reason)) {
                    let ended = HowEnded { exit_code: STOPPED, ..HowEnded::default() };
                    let now = self.clock.now();
                    let life = self.nodes[node].agent.life_mut();
                    life.ended(key, incarnation, ended, None, now, &mut self.out);
                }
            }
            AgentAction::StopLater(stop) => {
                let at = self.clock.now().plus(u64::from(stop.notice_ms));
                self.timers.set(at, Timer::Stop(node, stop));
            }
            AgentAction::Keep(status) => {
                self.containers.iter_mut().for_each(|desk| desk.on_end(&status));
                self.unwritten.keep.push(JournalEntry::Ended(self.nodes[node].name.clone(), status));
            }
            AgentAction::Forget(status) => {
                self.unwritten.forget.push(JournalEntry::Acknowledged(self.nodes[node].name.clone(), status));
            }
            AgentAction::KeepStore(store) => {
                self.real.set_store(store);
                self.unwritten.forget.push(JournalEntry::Store(self.nodes[node].name.clone(), store));
                self.containers.iter_mut().for_each(ContainerDesk::forget_revision);
            }
            AgentAction::LookAt(at) => self.looks.set(at, node),
        }
    }

    fn start(&mut self, run: HostedRun) {
        let now = self.clock.now();
        let life = self.nodes[run.node].agent.life();
        let Some(local) = life.live_run(run.key, run.incarnation) else { return };
        let Some(runtime) = self.runtimes.iter_mut().find(|runtime| runtime.takes(&local.orders().work))
        else {
            return;
        };
        if let Some(event) =
            runtime.start(run, &local.orders().work, local.restarts(), local.restarts_in_row(), now)
        {
            // At the moment at which the runtime knows it to have begun: its end is told apart by that.
            self.hear(event, now);
        }
    }

    pub(super) fn on_event(&mut self, event: Event) {
        let Some(node) = event.node() else { return self.squeeze() };
        let now = self.clock.now();
        self.hear(event, now);
        self.act(node);
        self.note(node);
    }

    /// Tells the agent of a node what became of a run.
    fn hear(&mut self, event: Event, now: Millis) {
        match event {
            Event::Started(HostedRun { node, key, incarnation }, at_ms) => {
                self.nodes[node].agent.life_mut().started(key, incarnation, at_ms, now);
            }
            Event::Ended { run, ended, since } => {
                self.runtimes.iter_mut().for_each(|runtime| runtime.forget(run));
                let HostedRun { node, key, incarnation } = run;
                let life = self.nodes[node].agent.life_mut();
                life.ended(key, incarnation, ended, since, now, &mut self.out);
            }
            Event::Measured => {}
        }
    }
}
