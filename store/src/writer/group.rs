//! Transactions that become durable together.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use godel_base::ids::Revision;

use super::room::Room;
use crate::{
    chunk,
    feed::Published,
    recovery,
    state::{Committed, TxnRefusal},
    store::Answer,
};

/// Transactions that become durable together, with their answers.
pub(super) struct Group {
    /// What there was room for when it was opened.
    pub(super) room: Room,
    pub(super) n_txns: usize,
    /// Of the transactions.
    pub(super) bytes: usize,
    /// The store closes behind it.
    pub(super) closes: bool,
    payload: BytesMut,
    pub(super) published: Vec<Arc<Published>>,
    pub(super) answers: Vec<(Answer, Result<Committed, TxnRefusal>)>,
}

impl Group {
    pub(super) fn new(room: Room) -> Self {
        Self {
            room,
            n_txns: 0,
            bytes: 0,
            closes: false,
            payload: BytesMut::new(),
            published: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// Whether nothing was asked for.
    pub(super) fn is_empty(&self) -> bool {
        self.n_txns == 0 && !self.closes
    }

    /// Takes a commit.
    pub(super) fn push(&mut self, published: Published) -> Committed {
        let committed =
            Committed { revision: published.revision(), commit_time_ms: published.commit.commit_time_ms };
        recovery::put_commit(&published.encoded, &mut self.payload);
        self.published.push(Arc::new(published));
        committed
    }
}

/// A group that is being written.
pub(super) struct StartedGroup {
    pub(super) group: Group,
    /// `None` if nothing changes.
    pub(super) piece: Option<LogPiece>,
    /// The log writes it without the writer.
    pub(super) is_under_way: bool,
}

/// The commits of a group, as the log has them.
pub(super) struct LogPiece {
    pub(super) first: Revision,
    pub(super) last: Revision,
    pub(super) first_commit_ms: i64,
    pub(super) chunks: Vec<Bytes>,
    /// Checksum of the last chunk.
    pub(super) crc: u32,
}

impl StartedGroup {
    /// Cuts a group into chunks; `previous_crc` is the checksum of the chunk before the first.
    pub(super) fn cut(group: Group, previous_crc: u32) -> Self {
        let piece = group.published.first().zip(group.published.last()).map(|(first, last)| {
            let first_commit_ms = first.commit.commit_time_ms;
            let (first, last) = (first.revision(), last.revision());
            let (chunks, crc) = chunk::cut(first.0, last.0, &group.payload, previous_crc);
            LogPiece { first, last, first_commit_ms, chunks, crc }
        });
        Self { group, piece, is_under_way: false }
    }
}
