//! Logs of running units: sent when state asks for them, and removed when their units are gone.

use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError},
};

use godel_core_agent::RunKey;
use godel_proto::v1::{self, session_request::Message};

use super::{HostedNode, real_node::RealNode};
use crate::logs::{LogAsked, LogLimits};

/// Units in one question, at most: see `KeptLogs`.
const N_UNITS_ASKED: usize = 1_000;

impl RealNode {
    pub(super) fn log_limits(&self) -> LogLimits {
        LogLimits { keep: *self.config.log_keep, bytes_max: self.config.log_ended_max_bytes }
    }

    /// State asks for a log, for somebody who reads it.
    pub(super) fn send_log(&mut self, node: &HostedNode, request: v1::LogRequest) {
        let key = RunKey { unit: request.unit_id, ordinal: request.ordinal };
        let dir = self.home.as_ref().map(|home| home.log_dir(key, request.incarnation));
        let is_live = node.agent.life().live_run(key, request.incarnation).is_some();
        let node = node.name.to_string();
        self.senders.send(&self.config.client, LogAsked { node, dir, request, is_live });
    }

    /// Who follows the log of what is over gets the rest of it, and no more.
    pub(super) fn end_followed_logs(&mut self, nodes: &[HostedNode]) {
        let is_live =
            |node: &HostedNode, key, incarnation| node.agent.life().live_run(key, incarnation).is_some();
        self.senders.end(|key, incarnation| nodes.iter().any(|node| is_live(node, key, incarnation)));
    }

    /// Asks state which units are gone of those that only have logs or volumes here.
    pub(super) fn ask_for_kept_logs(&self, node: &HostedNode) {
        if self.home.is_none() {
            return;
        }
        let mut units = self.log_units.lock().unwrap_or_else(PoisonError::into_inner);
        if units.is_empty() || !node.has_room() {
            return;
        }
        let later = units.iter().nth(N_UNITS_ASKED).copied();
        let later = later.map(|first| units.split_off(&first)).unwrap_or_default();
        let unit_ids = std::mem::replace(&mut *units, later).into_iter().collect();
        node.send(Message::KeptLogs(v1::KeptLogs { unit_ids }));
    }

    /// The records of these units are gone: their logs and volumes go.
    pub(super) fn forget_logs(&self, forget: v1::ForgetLogs) {
        let Some(home) = self.home.as_ref().map(Arc::clone) else { return };
        let gone: BTreeSet<u64> = forget.unit_ids.into_iter().collect();
        if gone.is_empty() {
            return;
        }
        let limits = self.log_limits();
        // What cannot be removed is tried again with the next question.
        drop(tokio::task::spawn_blocking(move || home.sweep_logs(limits, &gone)));
    }

    /// Says what is kept for replicas, if that has changed since it was said in this session.
    pub(super) fn report_volumes(&self, node: &mut HostedNode) {
        let Some(home) = self.home.as_ref().filter(|_| node.has_room()) else { return };
        let Some((changed_at, kept)) = home.kept_volumes(node.volumes_said) else { return };
        node.volumes_said = Some(changed_at);
        let volumes = kept.into_iter().map(|kept| v1::ReplicaVolumes {
            unit_id: kept.unit,
            ordinal: kept.ordinal,
            volumes: kept.volumes.into_iter().collect(),
            unit_name: String::new(),
        });
        node.send(Message::KeptVolumes(v1::KeptVolumes { replicas: volumes.collect() }));
    }
}
