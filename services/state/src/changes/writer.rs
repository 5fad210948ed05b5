//! The one writer of lines that belong to no transaction: once a second it writes what was noted, and removes what is too old or too many.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use godel_domain::change_line::ChangeLine;
use godel_identity::change_log::{
    AgedLine, ChangeLimits, N_NOTES_MAX, N_NOTES_PER_SECOND, QUIET_MS, surplus,
};
use godel_kit::{CancellationToken, clock::SharedClock, quiet::Quiet, security::CallLog};
use godel_proto::{raw, v1};
use godel_store::{Key, Role, Store, TxnRefusal, first_change_id};
use godel_wire::to_proto;
use tokio::time::MissedTickBehavior;

use super::{number, stored_line};

/// How often it writes.
const INTERVAL: Duration = Duration::from_secs(1);
/// The oldest lines that one commit may remove, beside as many of refused calls. They are read under the lock of the store.
const N_GONE_MAX: usize = 500;
/// Lines read under one lock of the store at the start.
const N_SLICE: usize = 512;

/// What was noted and is not written yet. Clones share it.
#[derive(Clone)]
pub(crate) struct ChangeLog {
    notes: CallLog,
}

/// Writes what was noted, as long as it runs.
pub(crate) struct ChangeWriter {
    store: Store,
    clock: SharedClock,
    limits: ChangeLimits,
    notes: CallLog,
    /// What state's own server refuses; `None`: it judges nobody.
    own: Option<CallLog>,
    /// Numbers of the lines of refused calls, in order.
    refused: VecDeque<u64>,
    failures: Quiet,
}

impl ChangeLog {
    pub(crate) fn new(
        store: Store,
        clock: SharedClock,
        limits: ChangeLimits,
        own: Option<CallLog>,
    ) -> (Self, ChangeWriter) {
        let notes = CallLog::new(QUIET_MS);
        let (refused, failures) = (VecDeque::new(), Quiet::default());
        let writer = ChangeWriter { store, clock, limits, notes: notes.clone(), own, refused, failures };
        (Self { notes }, writer)
    }

    /// Notes what a member reports.
    pub(super) fn note(&self, lines: Vec<ChangeLine>, n_more_calls: u64, now_ms: u64) {
        for line in lines {
            self.notes.note(line, now_ms);
        }
        self.notes.note_lost(n_more_calls);
    }
}

impl ChangeWriter {
    /// Writes until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        self.load();
        let mut interval = tokio::time::interval(INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = interval.tick() => {}
                () = stop.cancelled() => return,
            }
            tokio::select! {
                () = self.write() => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Finds the lines of refused calls that there are.
    fn load(&mut self) {
        let mut last = 0;
        loop {
            let n_read = self.store.read(|state| {
                let records = state.records(v1::Kind::Change, Some(&Key::Id(last))).take(N_SLICE);
                let mut n_read = 0;
                for (key, record) in records {
                    (last, n_read) = (number(key), n_read + 1);
                    if stored_line(record).is_some_and(|line| line.is_refused()) {
                        self.refused.push_back(last);
                    }
                }
                n_read
            });
            if n_read < N_SLICE {
                return;
            }
        }
    }

    /// Writes what is due, and removes what goes, in as many commits as that takes.
    async fn write(&mut self) {
        let now_ms = self.now_ms();
        if let Some(own) = &self.own {
            for line in own.take(N_NOTES_MAX, now_ms) {
                self.notes.note(line, now_ms);
            }
            self.notes.note_lost(own.take_lost());
        }
        let mut lines = self.notes.take(N_NOTES_PER_SECOND, now_ms);
        loop {
            let gone = self.surplus(now_ms);
            if lines.is_empty() && gone.is_empty() {
                return;
            }
            if let Err(refusal) = self.commit(&lines, &gone).await {
                if self.failures.may_speak() {
                    tracing::warn!(%refusal, "lines of the change log wait, because they cannot be written");
                }
                for line in lines {
                    self.notes.note(line, now_ms);
                }
                return;
            }
            lines.clear();
        }
    }

    fn surplus(&self, now_ms: u64) -> Vec<u64> {
        let (oldest, n_lines) = self.store.read(|state| {
            let oldest = state.records(v1::Kind::Change, None).take(N_GONE_MAX);
            let aged = oldest.map(|(key, record)| AgedLine {
                id: number(key),
                written_ms: u64::try_from(record.create_time_ms).unwrap_or(0),
            });
            (aged.collect::<Vec<_>>(), state.count(v1::Kind::Change))
        });
        surplus(&oldest, &self.refused, n_lines, self.limits, now_ms).into_iter().collect()
    }

    async fn commit(&mut self, lines: &[ChangeLine], gone: &[u64]) -> Result<(), TxnRefusal> {
        let delete = |id: &u64| -> Bytes {
            let key = Some(v1::Key { id: *id, name: String::new() });
            raw::encode_op(v1::op::Op::Delete(v1::Delete { kind: v1::Kind::Change.into(), key }))
        };
        let changes = lines.iter().map(to_proto::change_line).collect();
        let txn = raw::TxnRequest { ops: gone.iter().map(delete).collect(), changes, ..Default::default() };
        let committed = self.store.submit(txn, Role::Changes).await?;
        self.refused.retain(|id| gone.binary_search(id).is_err());
        let numbered = (first_change_id(committed.revision)..).zip(lines);
        self.refused.extend(numbered.filter(|(_, line)| line.is_refused()).map(|(id, _)| id));
        Ok(())
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.wall_ms()).unwrap_or(0)
    }
}
