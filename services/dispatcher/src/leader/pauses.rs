//! What administrators pause: records, made and ended one transaction each.

use godel_domain::{
    ids::Revision,
    pause::{Pause, Scope},
    queue_spec::DEFAULT_QUEUE,
};
use godel_kit::{
    status,
    txn::{Conditions, Receipt, TxnError},
};
use godel_proto::v1;
use godel_wire::to_proto;
use tonic::{Code, Status};

use super::{DispatcherLeader, Ticket, overloaded, refused};
use crate::requests::{PauseCall, Reply};

/// A change on its way to the store.
pub(super) enum PauseChange {
    Begins(Pause),
    Ends(Scope),
}

impl DispatcherLeader<'_> {
    pub(super) fn set_pause(&mut self, call: PauseCall) {
        let PauseCall { scope, paused, reason, reply } = call;
        if let Scope::Queue(path) = &scope
            && paused
            && path != DEFAULT_QUEUE
            && self.core.queue_versions(path).is_none()
        {
            let message = format!("no queue `{path}`");
            let info = [("queue", path.clone())];
            let _ = reply.send(Err(status::with_info(
                Code::NotFound,
                status::reason::UNKNOWN_NAME,
                message,
                info,
            )));
            return;
        }
        let sub_cluster_key = match &scope {
            Scope::SubCluster(_) => self.context.config.sub_cluster_key.clone(),
            Scope::All | Scope::Preemption | Scope::Queue(_) => String::new(),
        };
        if matches!(scope, Scope::SubCluster(_)) && paused && sub_cluster_key.is_empty() {
            let why = "there are no sub-clusters: `dispatcher.sub_cluster_key` is empty";
            let _ = reply.send(Err(status::failed_precondition("PAUSE", scope.to_string(), why)));
            return;
        }
        let known = self.core.pauses().get(&scope);
        let is_same = |known: &Pause| known.reason == reason && known.sub_cluster_key == sub_cluster_key;
        if known.is_some() == paused && known.is_none_or(is_same) {
            let _ = reply.send(Ok(None));
            return;
        }
        let since_ms = known.map_or_else(|| self.context.clock.wall_ms(), |known| known.since_ms);
        let (change, op) = if paused {
            let pause = Pause { scope, since_ms, reason, sub_cluster_key };
            let op = to_proto::put_pause(&pause);
            (PauseChange::Begins(pause), op)
        } else {
            let op = to_proto::delete_named(v1::Kind::Pause, &scope.to_string());
            (PauseChange::Ends(scope), op)
        };
        match self.pipeline.try_submit(vec![op], Conditions::default()) {
            Ok(Some(pending)) => self.ticket(pending, Ticket::Pause(Box::new(change), reply)),
            Ok(None) => {
                let _ = reply.send(Err(overloaded("too many transactions are under way")));
            }
            Err(error) => {
                let _ = reply.send(Err(refused(&error)));
            }
        }
    }

    /// In force here as soon as it is durable: whoever hears the answer finds it so.
    pub(super) fn on_pause_written(
        &mut self,
        change: PauseChange,
        reply: Reply<Result<Option<Revision>, Status>>,
        result: &Result<Receipt, TxnError>,
    ) {
        let now = self.now();
        let answer = match result {
            Ok(committed) => {
                match change {
                    PauseChange::Begins(pause) => {
                        tracing::warn!(scope = %pause.scope, reason = pause.reason, "paused");
                        self.core.on_pause(pause, now);
                    }
                    PauseChange::Ends(scope) => {
                        tracing::info!(%scope, "goes on");
                        self.core.on_pause_deleted(&scope, now);
                    }
                }
                Ok(Some(committed.revision))
            }
            Err(error) => Err(refused(error)),
        };
        let _ = reply.send(answer);
    }
}
