//! A node of a shard: its agent's decisions, its stream, and what is known of its use.

use std::{sync::Arc, time::SystemTime};

use godel_base::time::Millis;
use godel_core_agent::{NodeAgent, RestartBackoff, RunStatus};
use godel_membership::load_window::NodeLoadWindow;
use godel_proto::v1::{self, session_request, session_response};

use crate::{NodeDef, outbound::Outbound, runtime::process::Program, session};

/// See the module.
pub(super) struct HostedNode {
    pub(super) def: NodeDef,
    pub(super) name: Arc<str>,
    pub(super) agent: NodeAgent<Program, session_response::Message>,
    /// Set from the first message of a session to its loss.
    pub(super) outbound: Option<Outbound<v1::SessionRequest>>,
    /// What is used of it of late.
    pub(super) load: NodeLoadWindow,
    /// The same of the zones that running units are given.
    pub(super) zone_loads: Vec<(usize, NodeLoadWindow)>,
    /// When it said last that another agent has its name.
    pub(super) warned: Option<Millis>,
    /// When the volumes had changed that it said last in this session.
    pub(super) volumes_said: Option<SystemTime>,
}

/// What a journal kept of a node.
#[derive(Debug, Default)]
pub(crate) struct KeptOfNode {
    /// Ends that state may not know.
    pub(crate) ended: Vec<RunStatus>,
    /// The store that they are of; 0: not known.
    pub(crate) store: u64,
}

impl HostedNode {
    pub(super) fn new(
        def: NodeDef,
        kept: KeptOfNode,
        backoff: RestartBackoff,
        n_to_refuse: u32,
        now: Millis,
    ) -> Self {
        let KeptOfNode { ended, store } = kept;
        let mut agent = NodeAgent::new(backoff, store, n_to_refuse, now);
        for status in ended {
            agent.life_mut().restore(status);
        }
        let zones = def.zones.iter().enumerate().filter(|(_, zone)| zone.is_assigned());
        let zone_loads = zones.map(|(at, _)| (at, NodeLoadWindow::default())).collect();
        let name = Arc::from(def.name.as_str());
        Self {
            def,
            name,
            agent,
            outbound: None,
            load: NodeLoadWindow::default(),
            zone_loads,
            warned: None,
            volumes_said: None,
        }
    }

    /// Sends a message, unless there is no session or its queue is full.
    pub(super) fn send(&self, message: session_request::Message) {
        if let Some(outbound) = &self.outbound {
            outbound.send(session::message(message));
        }
    }

    /// Whether a message may be sent now.
    pub(super) fn has_room(&self) -> bool {
        self.outbound.as_ref().is_some_and(Outbound::has_room)
    }

    /// State has refused another agent that claims this node.
    pub(super) fn warn_of_rival(&self, conflict: &v1::NodeConflict) {
        let v1::NodeConflict { address, uid, attempts, .. } = conflict;
        let what = match conflict.kind() {
            v1::NodeConflictKind::SameInstallation => {
                "an agent with a copy of this one's identity wants this node: stop it, or give it another name"
            }
            v1::NodeConflictKind::OtherInstallation | v1::NodeConflictKind::Unspecified => {
                "another machine wants the name of this node: stop its agent, or give it another name"
            }
        };
        tracing::warn!(node = %self.name, address, uid, attempts, "{what}; state refuses it");
    }
}
