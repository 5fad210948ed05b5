//! Snapshots: a stream of `godel.v1.Record`s in pieces, then the counters.
//!
//! Pieces are taken one at a time while transactions go on, so each shows the state at another revision, from
//! the generation's base on. Replaying the log from the base onto them gives the same state as if nothing had
//! happened meanwhile, since whatever is older than what is there is skipped. Nobody waits for a snapshot.

use bytes::{Bytes, BytesMut};
use godel_base::ids::{Revision, UnitId};
use godel_crash::CrashPoints;
use godel_proto::{kinds::WHOLE, v1};
use prost::Message as _;

use crate::{
    chunk::{self, Assembler},
    history::Extent,
    log::{End, Log, LogError, LogReader, Manifest, SnapshotPart},
    record::{Key, Record, decode_record, encode_delimited, split_delimited},
    state::{Counters, State},
};

/// Bytes of a piece, unless told otherwise: written between two groups, it must not hold up the second.
pub(crate) const PIECE_BYTES: usize = 256 << 10;

/// Cuts a state into pieces, which may change between two of them.
#[derive(Debug)]
pub(crate) struct Pieces {
    cursor: Option<Cursor>,
    buffer: BytesMut,
    piece_bytes: usize,
}

/// How far a snapshot has come.
#[derive(Debug)]
pub(crate) struct SnapshotWriter {
    base: Revision,
    attempt: u64,
    n_pieces: u64,
    crc: u32,
    bytes: u64,
    pieces: Pieces,
    /// The next piece, until it was put.
    cut: Option<CutPiece>,
    /// Revision of the state when its last piece was cut.
    end_revision: Option<Revision>,
}

/// A piece that is to be put.
#[derive(Debug)]
struct CutPiece {
    chunks: Vec<Bytes>,
    crc: u32,
}

#[derive(Debug)]
enum Cursor {
    /// Behind this record of this position in [`WHOLE`].
    Records(usize, Option<Key>),
    /// Behind the rows of this unit.
    Rows(Option<UnitId>),
}

impl Pieces {
    pub(crate) fn new(piece_bytes: usize) -> Self {
        Self { cursor: Some(Cursor::Records(0, None)), buffer: BytesMut::new(), piece_bytes }
    }

    /// The next piece of records; `None` once only the counters are left.
    pub(crate) fn next(&mut self, state: &State) -> Option<BytesMut> {
        while self.buffer.len() < self.piece_bytes
            && let Some(cursor) = self.cursor.take()
        {
            self.cursor = fill(state, cursor, &mut self.buffer, self.piece_bytes);
        }
        let len = self.buffer.len().min(self.piece_bytes);
        (len > 0).then(|| self.buffer.split_to(len))
    }
}

impl SnapshotWriter {
    /// Begins a snapshot of the generation with `base`: an `attempt` of which nothing was written yet.
    pub(crate) fn new(base: Revision, attempt: u64, piece_bytes: usize) -> Self {
        let pieces = Pieces::new(piece_bytes);
        Self { base, attempt, n_pieces: 0, crc: 0, bytes: 0, pieces, cut: None, end_revision: None }
    }

    /// Puts the next piece, or the manifest behind the last one, and returns that. After an error the next step does the same.
    pub(crate) fn step(
        &mut self,
        state: &State,
        log: &mut dyn Log,
        crash: &CrashPoints,
    ) -> Result<Option<Manifest>, LogError> {
        if self.cut.is_none() && self.end_revision.is_none() {
            self.cut = Some(self.cut_next(state));
        }
        if let Some(CutPiece { chunks, crc }) = &self.cut {
            crash.hit("store.snapshot-chunk");
            let (attempt, piece) = (self.attempt, self.n_pieces);
            log.put_snapshot(self.base, SnapshotPart::Piece { attempt, piece, chunks })?;
            self.crc = *crc;
            self.n_pieces += 1;
            self.bytes += chunks.iter().map(|chunk| chunk.len() as u64).sum::<u64>();
            self.cut = None;
            return Ok(None);
        }
        let manifest = Manifest {
            attempt: self.attempt,
            n_pieces: self.n_pieces,
            crc: self.crc,
            end_revision: self.end_revision.unwrap_or_else(|| state.revision()).0,
            bytes: self.bytes,
        };
        crash.hit("store.generation-complete");
        log.put_snapshot(self.base, SnapshotPart::Complete(manifest))?;
        Ok(Some(manifest))
    }

    /// Cuts the next piece of records; behind the last one the counters.
    fn cut_next(&mut self, state: &State) -> CutPiece {
        let payload = self.pieces.next(state).unwrap_or_else(|| {
            self.end_revision = Some(state.revision());
            BytesMut::from(&state.counters().encode_to_vec()[..])
        });
        let (chunks, crc) = chunk::cut(self.n_pieces, self.n_pieces, &payload, self.crc);
        CutPiece { chunks, crc }
    }
}

/// Makes `log`, which is new, one that holds `state` and no history.
pub(crate) fn write_whole(state: &State, log: &mut dyn Log) -> Result<(), LogError> {
    let base = state.revision();
    // Until the snapshot is complete the store refuses to open: this generation follows nothing.
    let end = End::new(base, 0, Extent::empty(Revision(0)));
    until_known(|| log.put_snapshot(base, SnapshotPart::Begin(end)))?;
    let mut snapshot = SnapshotWriter::new(base, base.0, PIECE_BYTES.min(log.piece_bytes_max()));
    while until_known(|| snapshot.step(state, log, &CrashPoints::default()))?.is_none() {}
    until_known(|| log.drop_before(base))
}

/// How often a tool makes a call whose outcome is not known.
const N_TRIES: u32 = 8;

/// Makes a call of a log until its outcome is known, but not for ever.
pub(crate) fn until_known<T>(mut call: impl FnMut() -> Result<T, LogError>) -> Result<T, LogError> {
    for _ in 1..N_TRIES {
        match call() {
            Err(LogError::Unknown(why)) => tracing::debug!(why, "a call of the log is made again"),
            known => return known,
        }
    }
    call()
}

/// An attempt at the snapshot of the generation with `base` of which nothing was written yet. The present revision
/// `now` will not do by itself: a process may have begun one there and ended without a commit.
pub(crate) fn unused_attempt(reader: &dyn LogReader, base: Revision, now: Revision) -> Result<u64, LogError> {
    let mut attempt = now.0;
    while reader.snapshot(base, attempt)?.next().is_some() {
        attempt += 1;
    }
    Ok(attempt)
}

/// Appends records behind `cursor` until the buffer has a piece; where to go on.
fn fill(state: &State, cursor: Cursor, buffer: &mut BytesMut, piece_bytes: usize) -> Option<Cursor> {
    match cursor {
        Cursor::Records(kind_idx, after) => {
            let kind = WHOLE[kind_idx];
            for (key, record) in state.records(kind, after.as_ref()) {
                encode_delimited(kind, record, buffer);
                if buffer.len() >= piece_bytes {
                    return Some(Cursor::Records(kind_idx, Some(key.clone())));
                }
            }
            let next = kind_idx + 1;
            Some(if next < WHOLE.len() { Cursor::Records(next, None) } else { Cursor::Rows(None) })
        }
        Cursor::Rows(after) => {
            for (unit, ..) in state.rows().iter(after) {
                let Some(record) = state.rows().record(unit) else { continue };
                encode_delimited(v1::Kind::Rows, &record, buffer);
                if buffer.len() >= piece_bytes {
                    return Some(Cursor::Rows(Some(unit)));
                }
            }
            None
        }
    }
}

/// Reads the snapshot of the generation with `base` into an empty state.
///
/// The state then is at [`Manifest::end_revision`] in part: the log from the base must be replayed onto it.
pub(crate) fn load(reader: &dyn LogReader, base: Revision, manifest: &Manifest) -> Result<State, LogError> {
    let mut loader = SnapshotLoader::default();
    let mut crc = 0;
    if manifest.n_pieces > 0 {
        let mut assembler = Assembler::new(Some(0), Some(0));
        for chunk in reader.snapshot(base, manifest.attempt)? {
            let bad = |what| LogError::Corrupt(format!("snapshot of generation {base}: {what}"));
            let Some(piece) = assembler.push(&chunk?).map_err(bad)? else { continue };
            crc = piece.crc;
            let is_last = piece.last.0 + 1 == manifest.n_pieces;
            loader.piece(piece.payload, is_last).map_err(bad)?;
            if is_last {
                break;
            }
        }
    }
    if crc != manifest.crc || !loader.is_complete(manifest.n_pieces) {
        return Err(LogError::Corrupt(format!("the snapshot of generation {base} is incomplete")));
    }
    Ok(loader.state)
}

/// The records that end in this piece; what goes on in the next one is the rest.
pub(crate) fn split_records(rest: &mut Bytes, payload: Bytes) -> Result<Vec<(v1::Kind, Record)>, String> {
    let mut buffer = if rest.is_empty() {
        payload
    } else {
        let mut joined = BytesMut::from(std::mem::take(rest));
        joined.extend_from_slice(&payload);
        joined.freeze()
    };
    let mut records = Vec::new();
    while let Some(message) = split_delimited(&mut buffer) {
        // A copy of its own: a record that lives on must not keep the whole piece.
        let record = decode_record(&Bytes::copy_from_slice(&message));
        records.push(record.ok_or("a record does not decode")?);
    }
    *rest = buffer;
    Ok(records)
}

/// Puts a state together from the pieces of its snapshot.
#[derive(Debug, Default)]
pub(crate) struct SnapshotLoader {
    pub(crate) state: State,
    rest: Bytes,
    n_pieces: u64,
    has_counters: bool,
}

impl SnapshotLoader {
    /// Takes the next piece; the last one holds the counters.
    pub(crate) fn piece(&mut self, payload: Bytes, is_last: bool) -> Result<(), String> {
        self.n_pieces += 1;
        if is_last {
            let counters = Counters::decode(payload).map_err(|_| "its counters do not decode".to_owned())?;
            self.state.load_counters(counters);
            self.has_counters = true;
            return Ok(());
        }
        for (kind, record) in split_records(&mut self.rest, payload)? {
            self.state.load_record(kind, record).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    pub(crate) fn is_complete(&self, n_pieces: u64) -> bool {
        self.n_pieces == n_pieces && self.rest.is_empty() && (self.has_counters || n_pieces == 0)
    }
}

#[cfg(test)]
mod tests {
    use godel_proto::raw;

    use super::*;
    use crate::{
        log::memory::{MemoryDisk, MemoryLog},
        role::Role,
    };

    /// One record of about so many bytes.
    fn state(bytes: usize) -> State {
        let node = v1::NodeSpec {
            node_id: 1,
            meta: Some(v1::ObjectMeta { name: "n".repeat(bytes), ..Default::default() }),
            ..Default::default()
        };
        let ops = vec![raw::encode_op(v1::op::Op::PutNodeSpec(node))];
        let mut state = State::default();
        let txn = raw::TxnRequest { ops, ..raw::TxnRequest::default() };
        state.transact(txn, Role::Admin, 0).unwrap();
        state
    }

    #[test]
    fn an_abandoned_attempt_leaves_nothing_in_the_next_one() {
        let mut log = MemoryLog::open(MemoryDisk::default());
        let base = Revision(1);
        log.put_snapshot(base, SnapshotPart::Begin(End::default())).unwrap();
        let mut begin = |state: &State, n_steps| {
            let attempt = unused_attempt(&*log.reader(), base, base).unwrap();
            let mut snapshot = SnapshotWriter::new(base, attempt, PIECE_BYTES);
            (0..n_steps).find_map(|_| snapshot.step(state, &mut log, &CrashPoints::default()).unwrap())
        };
        // Pieces of three chunks, then of one.
        assert_eq!(begin(&state(20_000), 1), None);
        assert_eq!(begin(&state(15_000), 1), None);
        // A piece, the counters and the manifest.
        let manifest = begin(&state(100), 3).unwrap();
        assert!(load(&*log.reader(), base, &manifest).unwrap() == state(100));
    }
}
