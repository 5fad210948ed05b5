//! YARN containers of a real node: what masters ask, and the keys by which they are known.

use godel_core_agent::{HowEnded, LocalRun, NotAwaiting, RunKey, RunStatus};
use godel_domain::{run_end::RunEndReason, yarn_keys::YarnKeys};
use godel_hadoop::{Exception, exception};
use godel_proto::v1::{self, session_request::Message};
use godel_wire::from_proto;
use tokio::sync::{mpsc, watch};

use super::{HostedNode, Shard};
use crate::{
    runtime::{Event, HostedRun, NOT_STARTED, process::Program},
    yarn::{
        ids::ContainerId,
        server::{Ask, Start, StartAnswer},
        table::{Containers, Life},
    },
};

/// The only node of a process that runs commands.
const NODE: usize = 0;

/// What a shard has for masters.
#[derive(Debug)]
pub(crate) struct ContainerDesk {
    pub(crate) asks: mpsc::Receiver<Ask>,
    /// Of tokens of masters.
    pub(crate) master_keys: watch::Sender<YarnKeys>,
    /// Of tokens of containers.
    pub(crate) container_keys: watch::Sender<YarnKeys>,
    containers: Containers,
    /// Store revision of the keys; 0: there are none.
    revision: u64,
}

impl ContainerDesk {
    /// A desk without containers and keys, and the other ends of its channels: asks, keys of masters, keys of containers.
    pub(crate) fn new(asks: mpsc::Receiver<Ask>) -> Self {
        Self {
            asks,
            master_keys: watch::Sender::default(),
            container_keys: watch::Sender::default(),
            containers: Containers::default(),
            revision: 0,
        }
    }

    /// A container that an earlier agent has started.
    pub(super) fn adopt(&mut self, id: ContainerId, life: Life) {
        self.containers.add(id, life);
    }

    /// A running unit has ended.
    pub(super) fn on_end(&mut self, status: &RunStatus) {
        self.containers.on_end(status);
    }

    /// Asks state whether there are other keys than those that are known.
    pub(super) fn ask_for_keys(&self, node: &HostedNode) {
        if node.has_room() {
            node.send(Message::YarnKeys(v1::YarnKeysRequest { revision: self.revision }));
        }
    }

    pub(super) fn on_keys(&mut self, sent: v1::NodeYarnKeys) {
        for pb in sent.keys {
            match from_proto::yarn_keys(pb) {
                Ok(keys) if keys.name == "nm" => drop(self.master_keys.send_replace(keys)),
                Ok(keys) if keys.name == "container" => drop(self.container_keys.send_replace(keys)),
                Ok(keys) => tracing::debug!(name = keys.name, "keys of YARN that this agent does not use"),
                Err(error) => tracing::warn!(%error, "keys of YARN cannot be read: update this agent"),
            }
        }
        self.revision = sent.revision;
    }

    /// The store behind state may be another one: its keys have other revisions.
    pub(super) fn forget_revision(&mut self) {
        self.revision = 0;
    }
}

/// The next ask; none for ever where no containers are started.
pub(super) async fn next_ask(desk: &mut Option<ContainerDesk>) -> Option<Ask> {
    match desk {
        Some(desk) => desk.asks.recv().await,
        None => None,
    }
}

impl Shard {
    pub(super) fn on_ask(&mut self, ask: Ask) {
        let Some(desk) = &mut self.containers else { return };
        // Whoever has given up does not hear the answer.
        match ask {
            Ask::Start(start, answer) => {
                let started = self.start_container(*start);
                let _gone = answer.send(started);
            }
            Ask::Stop { id, never_started, grace, answer } => {
                let stopped = desk.containers.stop(id);
                if let Ok(Some((key, incarnation))) = stopped {
                    let run = HostedRun { node: NODE, key, incarnation };
                    self.runtimes.iter_mut().any(|runtime| runtime.stop(run, grace, RunEndReason::Told));
                }
                let awaited = never_started.filter(|_| stopped.is_err());
                let is_given_back =
                    awaited.is_some_and(|(key, incarnation)| self.give_back(key, incarnation));
                let _gone = answer.send(if is_given_back { Ok(()) } else { stopped.map(|_| ()) });
            }
            Ask::Status(id, answer) => {
                let _gone = answer.send(desk.containers.status(id));
            }
        }
    }

    /// Gives back the place of a running unit whose command is not waited for any longer. Returns whether it waited for one.
    fn give_back(&mut self, key: RunKey, incarnation: u32) -> bool {
        let run = self.nodes[NODE].agent.life().live_run(key, incarnation);
        if !run.is_some_and(LocalRun::is_awaiting) {
            return false;
        }
        let run = HostedRun { node: NODE, key, incarnation };
        // Its time to wait is over, as if it were up.
        self.runtimes.iter_mut().for_each(|runtime| runtime.command_came(run));
        let ended = HowEnded { exit_code: NOT_STARTED, ..HowEnded::default() };
        self.on_event(Event::Ended { run, ended, since: None });
        true
    }

    fn start_container(&mut self, start: Start) -> StartAnswer {
        let Start { key, incarnation, launch, user, otherwise_user } = start;
        let id = launch.container;
        let refused = |message| StartAnswer::Refused(Exception::new(exception::YARN, message));
        let Some(desk) = &mut self.containers else { return StartAnswer::NotHere };
        if desk.containers.knows(id) {
            return refused(format!("Attempt to relaunch the same container with id {id}"));
        }
        if self.ends_by.is_some() {
            return refused("the agent of this node is stopping".to_owned());
        }
        let complete =
            |program: Program| Program { launch: Some(Box::new(launch)), user, otherwise_user, ..program };
        match self.nodes[NODE].agent.life_mut().give_command(key, incarnation, complete, &mut self.out) {
            Ok(()) => {
                desk.containers.add(id, (key, incarnation));
                let run = HostedRun { node: NODE, key, incarnation };
                self.runtimes.iter_mut().for_each(|runtime| runtime.command_came(run));
                tracing::info!(unit_id = key.unit, ordinal = key.ordinal, container = %id, "a container is started");
                self.act(NODE);
                self.note(NODE);
                StartAnswer::Yes
            }
            Err(NotAwaiting::NotHere) => StartAnswer::NotHere,
            Err(NotAwaiting::NoMore) => refused(format!(
                "the running unit of {id} does not wait for a command: it has one, is leaving, or is over"
            )),
        }
    }
}
