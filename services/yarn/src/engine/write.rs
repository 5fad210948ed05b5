//! Writes the records of applications and the keys: one transaction after the other, each with what has changed since the last one.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use godel_core_yarn::ids::YarnApplicationId;
use godel_domain::{change::Change, records::Record, txn::TxnBuilder as _, yarn_keys::YarnKeys};
use godel_kit::{
    client::Backoff,
    quiet::Quiet,
    txn::{Conditions, TxnEncoder, TxnError, TxnPipeline},
};
use godel_proto::v1;
use godel_wire::to_proto;

use super::{
    shared::{Inner, Shared, Term},
    show::used_seconds,
};
use crate::record;

/// Bytes of records in one transaction; one that is larger goes alone.
const BYTES_MAX: usize = 512 << 10;
/// Pauses after a refusal: the first one at most, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// One transaction.
#[derive(Debug, Default)]
struct Batch {
    ops: Vec<Bytes>,
    /// Applications with the version that is written.
    written: Vec<(YarnApplicationId, u64)>,
    deleted: Vec<YarnApplicationId>,
    keys: Vec<YarnKeys>,
}

/// Writes until the time of this leader is over.
pub(crate) async fn write(shared: Arc<Shared>, term: Term, pipeline: TxnPipeline) {
    let (mut backoff, quiet) = (Backoff::new(PAUSE.0, PAUSE.1), Quiet::default());
    loop {
        let batch = next_batch(&mut shared.inner.lock(), shared.at().wall_ms);
        if batch.ops.is_empty() {
            tokio::select! {
                () = term.stop.cancelled() => return,
                () = shared.records.notified() => continue,
            }
        }
        shared.context.crash.hit("yarn.before-commit");
        let answer = match pipeline.submit(batch.ops.clone(), Conditions::default()).await {
            Ok(pending) => pending.await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(_) => {
                shared.context.crash.hit("yarn.after-commit");
                backoff.reset();
                on_written(&shared, &batch);
            }
            Err(TxnError::Refused(refusal)) => {
                shared.context.metrics.records_refused.inc();
                if quiet.may_speak() {
                    tracing::warn!(reason = ?refusal.reason, why = refusal.message, "records of applications are not written");
                }
                write_again(&mut shared.inner.lock(), &batch);
                tokio::select! {
                    () = term.stop.cancelled() => return,
                    () = tokio::time::sleep(backoff.pause()) => {}
                }
            }
            Err(TxnError::LeaseLost | TxnError::Closed) => {
                // Who leads next reads what was written.
                term.stop.cancel();
                return;
            }
        }
    }
}

fn next_batch(inner: &mut Inner, now_ms: i64) -> Batch {
    let keys = std::mem::take(&mut inner.keys_to_write);
    inner.are_keys_written |= !keys.is_empty();
    let mut encoder = TxnEncoder::default();
    for due in &keys {
        encoder.push(&Change::Put(Record::YarnKeys(due.clone())));
    }
    let mut batch = Batch { ops: encoder.ops, keys, ..Batch::default() };
    let mut n_bytes = 0;
    while let Some(id) = inner.to_write.pop_first() {
        let Some((application, entry)) = inner.adapter.get(id).zip(inner.entries.get_mut(&id)) else {
            continue;
        };
        let until = application.times_ms().1.unwrap_or(now_ms);
        let used = used_seconds(&inner.picture, application, &entry.notes.attempts, until);
        if let Some(used) = used {
            entry.notes.used_seconds = used;
        }
        let record = application.record();
        let version = record.version;
        let op = record::put(record, &entry.notes);
        if n_bytes > 0 && n_bytes + op.len() > BYTES_MAX {
            inner.to_write.insert(id);
            break;
        }
        n_bytes += op.len();
        batch.ops.push(op);
        batch.written.push((id, version));
    }
    while n_bytes < BYTES_MAX
        && let Some(id) = inner.to_delete.pop_first()
    {
        let op = to_proto::delete_named(v1::Kind::YarnApplication, &id.to_string());
        n_bytes += op.len();
        batch.ops.push(op);
        batch.deleted.push(id);
    }
    batch
}

/// What was refused is written again with whatever else is to be written then.
fn write_again(inner: &mut Inner, batch: &Batch) {
    inner.to_write.extend(batch.written.iter().map(|(id, _)| *id));
    inner.to_delete.extend(&batch.deleted);
    if !batch.keys.is_empty() {
        inner.keys_to_write.clone_from(&batch.keys);
        inner.are_keys_written = false;
    }
}

fn on_written(shared: &Arc<Shared>, batch: &Batch) {
    let n_records = u64::try_from(batch.written.len()).unwrap_or(u64::MAX);
    shared.context.metrics.records.inc_by(n_records);
    // Who follows reads what was written.
    let _ = shared.run(|inner, at, out| {
        for (id, version) in &batch.written {
            if let Some(entry) = inner.entries.get_mut(id) {
                entry.saved = entry.saved.max(*version);
            }
            // It is forgotten only after its record.
            let _ = inner.adapter.with(*id, |application, terms| application.saved(*version, terms, at, out));
        }
        for id in &batch.deleted {
            inner.adapter.forget(*id);
            inner.entries.remove(id);
        }
    });
    shared.note_change();
}
