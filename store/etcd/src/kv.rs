//! Requests and answers, and what the store needs of an etcd.

use std::{fmt, time::Duration};

use bytes::Bytes;

use crate::CallError;

/// Gets the outcome of a call. It is called on a thread of the etcd and must be quick; it is dropped if the client ends first.
pub type Answer = Box<dyn FnOnce(Result<Reply, CallError>) + Send>;

/// An etcd, as far as the store needs one. All reads are linearizable.
pub trait Etcd: fmt::Debug + Send + Sync {
    /// Makes a call and waits for its outcome, at most as long as calls may take. From any thread, also one of a runtime.
    ///
    /// # Errors
    /// See [`CallError`].
    fn call(&self, request: Request) -> Result<Reply, CallError>;

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
            other => Err(other.is_unexpected()),
        }
    }

    /// Makes a transaction.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn txn(&self, request: TxnRequest) -> Result<TxnReply, CallError> {
        match self.call(Request::Txn(request))? {
            Reply::Txn(reply) => Ok(reply),
            other => Err(other.is_unexpected()),
        }
    }

    /// Asks for the sizes of the database.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn sizes(&self) -> Result<Sizes, CallError> {
        match self.call(Request::Sizes)? {
            Reply::Sizes(sizes) => Ok(sizes),
            other => Err(other.is_unexpected()),
        }
    }
}

/// What is asked of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A page of keys.
    Range(RangeRequest),
    /// A transaction.
    Txn(TxnRequest),
    /// Forgets what was superseded or deleted up to this revision of etcd, for all clients of the etcd.
    Compact(u64),
    /// The sizes of the database.
    Sizes,
}

/// What etcd answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To [`Request::Range`].
    Page(Page),
    /// To [`Request::Txn`].
    Txn(TxnReply),
    /// To [`Request::Compact`].
    Compacted,
    /// To [`Request::Sizes`].
    Sizes(Sizes),
}

impl Reply {
    fn is_unexpected(&self) -> CallError {
        CallError::Refused(format!("etcd answered something else than was asked: {self:?}"))
    }
}

/// Which etcd answered, and in which state it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Id of the cluster.
    pub cluster: u64,
    /// Revision of etcd's store: each transaction that changes something raises it by one.
    pub revision: u64,
}

/// Keys from `from` on, those before `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRequest {
    /// First key.
    pub from: Bytes,
    /// Behind the last key.
    pub to: Bytes,
    /// Keys in one page at most; not 0.
    pub limit: u32,
    /// Leaves the values out.
    pub keys_only: bool,
}

/// Some keys, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Who answered.
    pub header: Header,
    /// The keys.
    pub entries: Vec<Entry>,
    /// There are more behind the last one.
    pub has_more: bool,
}

/// A key and what it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Bytes,
    /// Empty if only keys were asked for.
    pub value: Bytes,
    /// Revision of etcd at which the key was made.
    pub create_revision: u64,
}

/// Operations that are made at once if all comparisons hold, and none otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxnRequest {
    /// What must hold.
    pub compares: Vec<Compare>,
    /// What is done then.
    pub ops: Vec<Op>,
    /// Keys that are read if something does not hold.
    pub reads: Vec<Bytes>,
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// There is no such key.
    Absent(Bytes),
    /// There is such a key.
    Present(Bytes),
    /// The key was made at this revision of etcd and was not deleted since.
    CreatedAt(Bytes, u64),
    /// The key holds this.
    Holds(Bytes, Bytes),
}

/// An operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets a key.
    Put(Bytes, Bytes),
    /// Deletes a key.
    Delete(Bytes),
    /// Deletes the keys from the first one on, those before the second.
    DeleteRange(Bytes, Bytes),
}

impl Op {
    /// Bytes that it writes.
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
    /// Who answered. If the operations were made, the revision is that of their change.
    pub header: Header,
    /// All comparisons held: the operations were made.
    pub succeeded: bool,
    /// Otherwise what [`TxnRequest::reads`] asked for, in its order; `None`: there is no such key.
    pub reads: Vec<Option<Entry>>,
}

/// How large the database is: of several members, that of the largest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Who answered.
    pub header: Header,
    /// Bytes of the database's file. It never shrinks, but by defragmentation.
    pub db_bytes: u64,
    /// Bytes of it that are in use.
    pub in_use_bytes: u64,
    /// The alarm for want of space is raised: etcd refuses the writes of all clients.
    pub has_no_space: bool,
}

/// The key behind all that begin with `prefix`.
pub fn prefix_end(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end.into();
        }
    }
    // There is none: as etcd has it, all keys.
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
