//! What really runs, looked at when state asks: one look at a time, which begins after the question that it answers.

use std::{future::Future, pin::Pin, sync::Arc};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use godel_core_agent::RunKey;
use godel_proto::v1::{self, session_request::Message};

use super::{HostedNode, real_node::RealNode};
use crate::runtime::process::{
    Home,
    seen::{self, Orphan, Seen, Whose},
};

/// Questions that wait for a look; an earlier one is forgotten, and not answered in time.
const N_ASKED_MAX: usize = 16;
/// Bytes of what is said of a failure.
const N_WORDS_MAX: usize = 1_024;

/// A question: the node, and its id.
type Asked = (usize, u64);

/// A look that is under way, or none.
#[derive(Default)]
pub(super) struct ProcessLooks {
    asked: Vec<Asked>,
    under_way: FuturesUnordered<Pin<Box<dyn Future<Output = LookDone> + Send>>>,
}

/// What a look has found, for those who asked before it began.
pub(super) struct LookDone {
    asked: Vec<Asked>,
    seen: Seen,
}

impl ProcessLooks {
    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    pub(super) async fn next(&mut self) -> Option<LookDone> {
        self.under_way.next().await
    }

    fn ask(&mut self, asked: Asked) {
        if self.asked.len() == N_ASKED_MAX {
            self.asked.remove(0);
        }
        self.asked.push(asked);
    }

    fn begin(&mut self, home: Arc<Home>) {
        if self.asked.is_empty() || !self.is_idle() {
            return;
        }
        let asked = std::mem::take(&mut self.asked);
        self.under_way.push(Box::pin(async move {
            let seen = seen::look(home).await;
            LookDone { asked, seen }
        }));
    }
}

impl RealNode {
    /// State asks which processes really run. A simulated node has none and is not asked.
    pub(super) fn look_at_processes(&mut self, node: usize, request_id: u64) {
        if self.home.is_some() {
            self.looks.ask((node, request_id));
            self.begin_look();
        }
    }

    fn begin_look(&mut self) {
        let Some(home) = &self.home else { return };
        self.looks.begin(Arc::clone(home));
    }

    pub(super) fn on_looked(&mut self, looked: LookDone, nodes: &[HostedNode]) {
        let LookDone { asked, seen } = looked;
        for (node, request_id) in asked {
            // One that is not sent is not answered in time, and state says so.
            nodes[node].send(Message::Processes(report(request_id, &seen)));
        }
        self.begin_look();
    }
}

fn report(request_id: u64, seen: &Seen) -> v1::ProcessesReport {
    let running = seen.running.iter().map(|(&(RunKey { unit, ordinal }, incarnation), &processes)| {
        v1::RunProcesses { unit_id: unit, ordinal, incarnation, processes }
    });
    let mut failure = seen.failure.clone().unwrap_or_default();
    failure.truncate(failure.floor_char_boundary(N_WORDS_MAX));
    v1::ProcessesReport {
        request_id,
        running: running.collect(),
        orphans: seen.orphans.iter().map(orphan).collect(),
        failure,
    }
}

fn orphan(orphan: &Orphan) -> v1::OrphanProcess {
    let Orphan { process, name, whose, incarnation } = orphan;
    let (unit_id, unit_uid, ordinal) = match whose {
        Whose::Unit(RunKey { unit, ordinal }) => (*unit, String::new(), *ordinal),
        Whose::Uid(uid, ordinal) => (0, uid.clone(), *ordinal),
    };
    v1::OrphanProcess {
        pid: process.map_or(0, |process| process.pid),
        began: process.map_or(0, |process| process.began),
        name: name.clone(),
        unit_id,
        unit_uid,
        ordinal,
        incarnation: *incarnation,
    }
}
