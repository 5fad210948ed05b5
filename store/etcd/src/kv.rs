//! Requests and answers, and the trait that the store uses to call an etcd.

use std::{
    fmt,
    sync::mpsc::{Receiver, sync_channel},
    time::{Duration, Instant},
};

use bytes::Bytes;

use crate::CallError;

/// Receives the outcome of a call. It runs on a thread of the client and must be quick. It is dropped if the client ends first.
pub type Answer = Box<dyn FnOnce(Result<Reply, CallError>) + Send>;

/// The calls of etcd that the store makes. All reads are linearizable.
pub trait Etcd: fmt::Debug + Send + Sync {
    /// Makes a call and waits for its outcome, at most for the timeout of calls. Any thread may call it, even a thread of a runtime.
    ///
    /// # Errors
    /// See [`CallError`].
    fn call(&self, request: Request) -> Result<Reply, CallError>;

    /// Starts a call, whose outcome is there after the timeout of calls at the latest. Makes the whole call unless a client does better.
    fn start(&self, request: Request) -> PendingReply {
        let (answer, pending) = PendingReply::new();
        answer(self.call(request));
        pending
    }

    /// Makes a call once `delay` has passed, and does not wait for it.
    fn submit(&self, request: Request, delay: Duration, answer: Answer);
}

impl dyn Etcd + '_ {
    /// Reads a page of keys in order.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn range(&self, request: RangeRequest) -> Result<Page, CallError> {
        match self.call(Request::Range(request))? {
            Reply::Page(page) => Ok(page),
            other => Err(other.unexpected_answer()),
        }
    }

    /// Makes a transaction.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn txn(&self, request: TxnRequest) -> Result<TxnReply, CallError> {
        self.call(Request::Txn(request))?.into_txn()
    }

    /// Reads the sizes of the database.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn sizes(&self) -> Result<Sizes, CallError> {
        match self.call(Request::Sizes)? {
            Reply::Sizes(sizes) => Ok(sizes),
            other => Err(other.unexpected_answer()),
        }
    }
}

/// A call that was started.
#[derive(Debug)]
pub struct PendingReply(Receiver<(Result<Reply, CallError>, Instant)>);

impl PendingReply {
    /// Returns what takes the outcome, and what waits for it.
    pub fn new() -> (Answer, Self) {
        let (sender, receiver) = sync_channel(1);
        let answer: Answer = Box::new(move |outcome| {
            // Nobody may wait any more.
            let _ = sender.send((outcome, Instant::now()));
        });
        (answer, Self(receiver))
    }

    /// Waits for the outcome.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn wait(self) -> Result<Reply, CallError> {
        self.wait_timed().map(|(reply, _)| reply)
    }

    /// Waits for the outcome of a transaction. Returns also when it came.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn wait_txn(self) -> Result<(TxnReply, Instant), CallError> {
        let (reply, came) = self.wait_timed()?;
        Ok((reply.into_txn()?, came))
    }

    fn wait_timed(self) -> Result<(Reply, Instant), CallError> {
        let ended = |_| CallError::Unknown("the client of etcd has ended".to_owned());
        let (outcome, came) = self.0.recv().map_err(ended)?;
        outcome.map(|reply| (reply, came))
    }
}

/// A request to etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A page of keys.
    Range(RangeRequest),
    /// A transaction.
    Txn(TxnRequest),
    /// Compacts etcd: discards values that were superseded or deleted up to this revision of etcd, for all clients.
    Compact(u64),
    /// The sizes of the database.
    Sizes,
}

/// An answer of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The answer to [`Request::Range`].
    Page(Page),
    /// The answer to [`Request::Txn`].
    Txn(TxnReply),
    /// The answer to [`Request::Compact`].
    Compacted,
    /// The answer to [`Request::Sizes`].
    Sizes(Sizes),
}

impl Reply {
    fn into_txn(self) -> Result<TxnReply, CallError> {
        match self {
            Self::Txn(reply) => Ok(reply),
            other => Err(other.unexpected_answer()),
        }
    }

    fn unexpected_answer(&self) -> CallError {
        CallError::Refused(format!("etcd sent an unexpected answer: {self:?}"))
    }
}

/// Identifies the etcd that answered, and its revision at that moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Id of the cluster.
    pub cluster: u64,
    /// Revision of etcd's store: each transaction that changes something raises it by one.
    pub revision: u64,
}

/// Requests a page of the keys from `from`, inclusive, to `to`, exclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRequest {
    /// First key.
    pub from: Bytes,
    /// End of the range; it is not part of it.
    pub to: Bytes,
    /// Maximum number of keys in the page; not 0.
    pub limit: u32,
    /// Omits the values.
    pub keys_only: bool,
}

/// Some keys, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The etcd that answered.
    pub header: Header,
    /// The keys.
    pub entries: Vec<Entry>,
    /// The range has more keys behind the last one.
    pub has_more: bool,
}

/// A key and its value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Bytes,
    /// The value; empty if only keys were requested.
    pub value: Bytes,
    /// Revision of etcd at which the key was created.
    pub create_revision: u64,
}

/// A transaction: all its operations are applied at once if all comparisons hold, and none of them otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxnRequest {
    /// The comparisons.
    pub compares: Vec<Compare>,
    /// The operations.
    pub ops: Vec<Op>,
    /// Keys that are read if a comparison does not hold.
    pub reads: Vec<Bytes>,
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The key does not exist.
    Absent(Bytes),
    /// The key exists.
    Present(Bytes),
    /// The key was created at this revision of etcd and has not been deleted since.
    CreatedAt(Bytes, u64),
    /// The key has this value.
    Holds(Bytes, Bytes),
}

/// An operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets a key.
    Put(Bytes, Bytes),
    /// Deletes a key.
    Delete(Bytes),
    /// Deletes the keys from the first one, inclusive, to the second, exclusive.
    DeleteRange(Bytes, Bytes),
}

impl Op {
    /// Number of bytes that the operation writes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Put(key, value) => key.len() + value.len(),
            Self::Delete(_) | Self::DeleteRange(..) => 0,
        }
    }
}

/// The outcome of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxnReply {
    /// The etcd that answered. If the operations were applied, its revision is that of their change.
    pub header: Header,
    /// Whether all comparisons held and the operations were applied.
    pub succeeded: bool,
    /// If not, the entries of [`TxnRequest::reads`] in their order, with `None` for a key that does not exist.
    pub reads: Vec<Option<Entry>>,
}

/// The sizes of the database; with several members, those of the largest one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// The etcd that answered.
    pub header: Header,
    /// Size of the file of the database. Only defragmentation shrinks it.
    pub db_bytes: u64,
    /// Number of bytes of the file that are in use.
    pub in_use_bytes: u64,
    /// Whether the alarm `NOSPACE` is raised: etcd then refuses the writes of all clients.
    pub has_no_space: bool,
}

/// Returns the first key behind all keys that begin with `prefix`.
pub fn prefix_end(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end.into();
        }
    }
    // There is no such key; etcd takes 0 as the end of all keys.
    Bytes::from_static(&[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        for (prefix, end) in [(&b"a/"[..], &b"a0"[..]), (b"a\xff", b"b"), (b"\xff\xff", b"\0"), (b"", b"\0")]
        {
            assert_eq!(prefix_end(prefix), end);
        }
    }
}
