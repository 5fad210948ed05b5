//! Logs of running units: sent when state asks for them, and removed when their units are gone.

use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError},
};

use godel_proto::v1::{self, session_request::Message};

use super::Shard;
use crate::{
    life::Key,
    logs::{LogAsked, LogLimits},
    session,
};

/// Units in one question, at most: see `KeptLogs`.
const N_UNITS_ASKED: usize = 1_000;

impl Shard {
    pub(super) fn log_limits(&self) -> LogLimits {
        LogLimits { keep: *self.config.log_keep, bytes_max: self.config.log_ended_max_bytes }
    }

    /// State asks for a log, for somebody who reads it.
    pub(super) fn send_log(&mut self, node: usize, request: v1::LogRequest) {
        let slot = &self.slots[node];
        let key = Key { unit: request.unit_id, ordinal: request.ordinal };
        let dir = self.home.as_ref().map(|home| home.log_dir(key, request.incarnation));
        let is_live = slot.life.work(key, request.incarnation).is_some();
        let node = slot.name.to_string();
        self.senders.send(&self.config.client, LogAsked { node, dir, request, is_live });
    }

    /// Who follows the log of what is over gets the rest of it, and no more.
    pub(super) fn end_followed_logs(&mut self) {
        let slots = &self.slots;
        self.senders
            .end(|key, incarnation| slots.iter().any(|slot| slot.life.work(key, incarnation).is_some()));
    }

    /// Asks state which units are gone of those that only have logs or volumes here.
    pub(super) fn ask_for_kept_logs(&self, node: usize) {
        let Some(outbound) = self.slots[node].outbound.as_ref().filter(|_| self.home.is_some()) else {
            return;
        };
        let mut units = self.log_units.lock().unwrap_or_else(PoisonError::into_inner);
        if units.is_empty() || !outbound.has_room() {
            return;
        }
        let later = units.iter().nth(N_UNITS_ASKED).copied();
        let later = later.map(|first| units.split_off(&first)).unwrap_or_default();
        let unit_ids = std::mem::replace(&mut *units, later).into_iter().collect();
        outbound.send(session::message(Message::KeptLogs(v1::KeptLogs { unit_ids })));
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
    pub(super) fn report_volumes(&mut self, node: usize) {
        let Some(home) = &self.home else { return };
        let slot = &mut self.slots[node];
        let Some(outbound) = slot.outbound.as_ref().filter(|outbound| outbound.has_room()) else { return };
        let Some((changed_at, kept)) = home.kept_volumes(slot.volumes_said) else { return };
        slot.volumes_said = Some(changed_at);
        let volumes = kept.into_iter().map(|kept| v1::ReplicaVolumes {
            unit_id: kept.unit,
            ordinal: kept.ordinal,
            volumes: kept.volumes.into_iter().collect(),
            unit_name: String::new(),
        });
        outbound
            .send(session::message(Message::KeptVolumes(v1::KeptVolumes { replicas: volumes.collect() })));
    }
}
