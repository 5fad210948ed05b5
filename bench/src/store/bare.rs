//! What a bare client of the same etcd reaches with the values that the store has just written: a plain transaction for each of
//! the store's, which compares nothing.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use godel_client::exit::{Code, Failure};
use godel_etcd::{Answer, CallError, Client, Etcd, Op, PendingReply, Reply, Request, TxnRequest};

/// What one transaction puts.
type Values = Vec<Bytes>;

/// A client of etcd that remembers what the writer of the store has put since it was last asked. Pieces of snapshots and deletions are beside
/// the commits, and do not count.
#[derive(Debug)]
pub(super) struct Recorder {
    client: Arc<Client>,
    written: Mutex<Vec<Values>>,
}

impl Recorder {
    pub(super) fn new(client: Client) -> Arc<Self> {
        Arc::new(Self { client: Arc::new(client), written: Mutex::default() })
    }

    /// What was put since the last call, in order.
    pub(super) fn take_written(&self) -> Vec<Values> {
        std::mem::take(&mut *self.written.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts `written` again below `prefix`, with so many transactions under way at a time. What each took.
    pub(super) async fn put_bare(
        &self,
        prefix: &str,
        written: &Arc<Vec<Values>>,
        n_in_flight: usize,
    ) -> Result<Vec<Duration>, Failure> {
        let next = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..n_in_flight)
            .map(|_| {
                let (client, written, next) =
                    (Arc::clone(&self.client), Arc::clone(written), Arc::clone(&next));
                let prefix = prefix.to_owned();
                // The store's writer is a thread that waits for each answer, too.
                tokio::task::spawn_blocking(move || put_all(&*client, &prefix, &written, &next))
            })
            .collect();
        let mut latencies = Vec::with_capacity(written.len());
        for thread in threads {
            let took = thread.await.map_err(|error| Failure::failed(error.to_string()))?;
            latencies.extend(took.map_err(|error| Failure::chain(Code::Failed, &error))?);
        }
        Ok(latencies)
    }
}

/// Puts one after the other until none is left for any thread.
fn put_all(
    etcd: &dyn Etcd,
    prefix: &str,
    written: &[Values],
    next: &AtomicUsize,
) -> Result<Vec<Duration>, CallError> {
    let mut latencies = Vec::new();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let Some(values) = written.get(number) else { return Ok(latencies) };
        let txn = plain(prefix, number, values);
        let sent = Instant::now();
        etcd.txn(txn)?;
        latencies.push(sent.elapsed());
    }
}

fn plain(prefix: &str, number: usize, values: &[Bytes]) -> TxnRequest {
    let put = |(part, value): (usize, &Bytes)| {
        Op::Put(format!("{prefix}/{number:016x}/{part:04x}").into(), value.clone())
    };
    TxnRequest { ops: values.iter().enumerate().map(put).collect(), ..TxnRequest::default() }
}

impl Etcd for Recorder {
    fn call(&self, request: Request) -> Result<Reply, CallError> {
        self.start(request).wait()
    }

    fn start(&self, request: Request) -> PendingReply {
        let values = match &request {
            Request::Txn(txn) => values(txn),
            Request::Range(_) | Request::Compact(_) | Request::Sizes => Values::new(),
        };
        if !values.is_empty() {
            self.written.lock().unwrap_or_else(PoisonError::into_inner).push(values);
        }
        self.client.start(request)
    }

    fn submit(&self, request: Request, delay: Duration, answer: Answer) {
        self.client.submit(request, delay, answer);
    }
}

fn values(txn: &TxnRequest) -> Values {
    let put = |op: &Op| match op {
        Op::Put(_, value) => Some(value.clone()),
        Op::Delete(_) | Op::DeleteRange(..) => None,
    };
    txn.ops.iter().filter_map(put).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_values_are_put_without_conditions() {
        let key = Bytes::from_static(b"k");
        let ops = vec![Op::Put(key.clone(), "a".into()), Op::Delete(key.clone()), Op::Put(key, "b".into())];
        let written = values(&TxnRequest { ops, ..TxnRequest::default() });
        let again = plain("bare/x", 10, &written);
        let put = |key: &'static str, value: &'static str| Op::Put(key.into(), value.into());
        let expected =
            vec![put("bare/x/000000000000000a/0000", "a"), put("bare/x/000000000000000a/0001", "b")];
        assert_eq!(again, TxnRequest { ops: expected, ..TxnRequest::default() });
    }
}
