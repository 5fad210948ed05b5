//! Writing of the log by its only writer, from the decision that the store opens to its orderly end.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use godel_base::ids::Revision;
use godel_etcd::{CallError, Compare, Op, PendingReply, Request, TxnRequest};

use super::{
    EtcdLog,
    beside::{Finished, Job, KeyBatch, Sweep, check_fence, judge},
    generation::EtcdGeneration,
    hold::{BootTime, FenceHold},
    packing::{PIECE_BYTES_MAX, PIECE_VALUE_BYTES_MAX, TXN_BYTES_MAX, VALUE_BYTES_MAX, pack},
    reading::{N_KEYS, list_groups, read_page},
    records::{BeginRecord, HeldFence, seal},
};
use crate::{
    history::Extent,
    log::{
        BesideWork, Claim, Claimed, End, Fence, Log, LogError, LogReader, Manifest, SnapshotPart, Waker,
        watermark::{Found, Watermark, WatermarkFile},
    },
};

/// How long a caller that has nothing else to do waits for the next step of work beside the commits.
const WORK_PATIENCE: Duration = Duration::from_mins(1);

/// Converts the error of a call that is made again until its outcome is known.
fn ask_again(error: CallError) -> LogError {
    LogError::Unknown(error.to_string())
}

/// A key and its new value.
#[derive(Clone, Debug)]
struct Put {
    key: Bytes,
    value: Bytes,
}

/// A group whose first transaction was sent.
#[derive(Debug)]
pub(super) struct StartedGroup {
    first: Revision,
    began: Instant,
    sent: BootTime,
    /// A piece of a snapshot was under way then.
    beside_piece: bool,
    txn: TxnRequest,
    pending: PendingReply,
    /// Values that follow in other transactions.
    rest: VecDeque<Put>,
}

/// The last key that a transaction writes.
fn last_key(txn: &TxnRequest) -> Option<Bytes> {
    txn.ops.iter().rev().find_map(|op| match op {
        Op::Put(key, _) => Some(key.clone()),
        Op::Delete(_) | Op::DeleteRange(..) => None,
    })
}

impl HeldFence {
    fn put_own(&self) -> Put {
        Put { key: self.key.clone(), value: seal(&self.record) }
    }

    /// Returns a transaction that writes keys if the prerequisites `rests_on` hold and none of the keys exists.
    fn put_new(&self, rests_on: Vec<Compare>, puts: Vec<Put>) -> TxnRequest {
        let absent = puts.iter().map(|put| Compare::Absent(put.key.clone()));
        let compares = rests_on.into_iter().chain(absent).collect();
        self.put(compares, puts)
    }

    /// Returns a transaction that writes keys if `compares` hold.
    fn put(&self, compares: Vec<Compare>, puts: Vec<Put>) -> TxnRequest {
        TxnRequest {
            compares: std::iter::once(self.compare()).chain(compares).collect(),
            reads: std::iter::once(self.key.clone()).chain(puts.iter().map(|put| put.key.clone())).collect(),
            ops: puts.into_iter().map(|Put { key, value }| Op::Put(key, value)).collect(),
        }
    }
}

impl EtcdLog {
    /// Returns the fence of this process, without which nothing is written.
    pub(super) fn held(&self) -> Result<&HeldFence, LogError> {
        self.fence.as_ref().ok_or_else(LogError::fenced)
    }

    /// Makes one attempt at a transaction that writes keys.
    fn make(&mut self, txn: TxnRequest) -> Result<(), LogError> {
        let sent = BootTime::now();
        let pending = self.shared.etcd.start(Request::Txn(txn.clone()));
        self.complete(&txn, sent, pending).map(drop)
    }

    /// Waits for an attempt at a transaction that writes keys. Returns when its outcome came.
    fn complete(
        &mut self,
        txn: &TxnRequest,
        sent: BootTime,
        pending: PendingReply,
    ) -> Result<Instant, LogError> {
        let (reply, came) = pending.wait_txn().map_err(ask_again)?;
        let header = judge(txn, &reply, self.held()?)?;
        if let Some(hold) = &self.hold {
            hold.note_confirmed(sent);
        }
        let bytes = txn.ops.iter().map(|op| match op {
            Op::Put(key, value) => (key.len() + value.len()) as u64,
            Op::Delete(_) | Op::DeleteRange(..) => 0,
        });
        self.space.add_written(bytes.sum());
        self.hear(header.revision);
        Ok(came)
    }

    /// Records the revision of etcd.
    pub(super) fn hear(&mut self, revision: u64) {
        self.mark.revision = self.mark.revision.max(revision);
    }

    pub(super) fn watermark(&self, last: Revision, crc: u32) -> Watermark {
        let generations = self.shared.generations.read();
        let floor = generations.first().map_or(1, |oldest| oldest.base.0 + 1);
        let base = generations.last().map_or(0, |newest| newest.base.0);
        let etcd = Some(self.mark);
        let sequence = self.found.watermark().map_or(0, |found| found.sequence);
        Watermark {
            store: self.store,
            sequence,
            oldest: 0,
            newest: 0,
            floor,
            base,
            revision: last.0,
            crc,
            etcd,
        }
    }

    pub(super) fn put_watermark(&mut self, watermark: Watermark) -> Result<(), LogError> {
        match &mut self.watermark {
            Some(file) => file.write_durably(watermark),
            None => {
                self.watermark = Some(WatermarkFile::open(&self.dir, watermark)?);
                Ok(())
            }
        }
    }

    /// Begins the first generation of a new store. It has no predecessor whose deletion would invalidate a late transaction, so the fence
    /// is changed in the same transaction, which therefore never succeeds again.
    pub(super) fn begin_store(&mut self) -> Result<(), LogError> {
        let base = Revision(0);
        let keys = self.keys.generation(base);
        let record = BeginRecord { base: 0, previous_crc: 0, store: self.store };
        let held = self.held()?;
        let next = held.next();
        let puts = vec![
            next.put_own(),
            Put { key: keys.begin(), value: seal(&record) },
            Put { key: keys.manifest(), value: seal(&Manifest::default()) },
        ];
        let absent = [keys.begin(), keys.manifest()].map(Compare::Absent);
        let txn = held.put(absent.to_vec(), puts);
        let reply = self.shared.etcd.txn(txn.clone()).map_err(ask_again)?;
        // An earlier attempt may have been applied without an answer: then the next fence is held already.
        let is_next = !reply.succeeded && !next.is_lost(reply.reads.first().and_then(Option::as_ref));
        let header = judge(&txn, &reply, if is_next { &next } else { held })?;
        self.hear(header.revision);
        self.tail = keys.begin();
        self.fence = Some(next);
        let generation = EtcdGeneration::new(base, 0, keys);
        generation.set_manifest(Manifest::default());
        self.shared.generations.write().push(Arc::new(generation));
        Ok(())
    }

    fn begin_generation(&mut self, base: Revision, end: End) -> Result<(), LogError> {
        let before = self.shared.newest()?;
        let keys = self.keys.generation(base);
        let record = BeginRecord { base: base.0, previous_crc: end.crc, store: self.store };
        let puts = vec![
            Put { key: keys.begin(), value: seal(&record) },
            Put { key: before.keys.end(), value: seal(&end) },
        ];
        let txn = self.held()?.put_new(vec![Compare::Present(self.tail.clone())], puts);
        self.make(txn)?;
        before.set_end(end);
        self.tail = keys.begin();
        let generation = EtcdGeneration::new(base, end.crc, keys);
        generation.set_firsts(Vec::new());
        self.shared.generations.write().push(Arc::new(generation));
        Ok(())
    }

    fn complete_generation(&mut self, base: Revision, manifest: Manifest) -> Result<(), LogError> {
        let generation = self.shared.generation(base)?;
        let (key, begin) = (generation.keys.manifest(), generation.keys.begin());
        // A manifest that could not be read may exist.
        let before = match generation.manifest() {
            Some(before) => Compare::Holds(key.clone(), seal(&before)),
            None => Compare::Absent(key.clone()),
        };
        let put = Put { key, value: seal(&manifest) };
        let txn = self.held()?.put(vec![Compare::Present(begin), before], vec![put]);
        self.make(txn)?;
        generation.set_manifest(manifest);
        Ok(())
    }

    /// Sends the first transaction of a group. `None`: the group has no chunks.
    fn start_group(&self, first: Revision, chunks: &[Bytes]) -> Result<Option<StartedGroup>, LogError> {
        let newest = self.shared.newest()?;
        let (began, sent) = (Instant::now(), BootTime::now());
        let puts = pack(chunks, VALUE_BYTES_MAX).into_iter().enumerate();
        let mut rest = puts
            .map(|(part, value)| Put { key: newest.keys.value(first, part), value })
            .collect::<VecDeque<_>>();
        let Some(txn) = self.next_txn(&self.tail, &mut rest)? else { return Ok(None) };
        let beside_piece = self.beside.is_putting_piece(began);
        let pending = self.shared.etcd.start(Request::Txn(txn.clone()));
        Ok(Some(StartedGroup { first, began, sent, beside_piece, txn, pending, rest }))
    }

    /// Takes the values of one transaction from those that are left of a group, and returns the transaction, which rests on the key `after`.
    /// `None`: nothing is left.
    fn next_txn(&self, after: &Bytes, left: &mut VecDeque<Put>) -> Result<Option<TxnRequest>, LogError> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some(put) = left.pop_front_if(|put| bytes == 0 || bytes + put.value.len() <= TXN_BYTES_MAX)
        {
            bytes += put.value.len();
            batch.push(put);
        }
        if batch.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.held()?.put_new(vec![Compare::Present(after.clone())], batch)))
    }

    /// Queues a piece, which is written beside the commits.
    fn submit_piece(
        &mut self,
        base: Revision,
        attempt: u64,
        piece: u64,
        chunks: &[Bytes],
    ) -> Result<(), LogError> {
        let generation = self.shared.generation(base)?;
        for (part, value) in pack(chunks, PIECE_VALUE_BYTES_MAX).into_iter().enumerate() {
            let put = Put { key: generation.keys.piece(attempt, piece, part), value };
            self.space.add_written(put.value.len() as u64);
            let rests_on = vec![Compare::Present(generation.keys.begin())];
            let txn = self.held()?.put_new(rests_on, vec![put]);
            self.beside.push(Job::Piece(txn));
        }
        self.tend(&no_waker()).map(drop)
    }

    /// Waits until all pieces are known to exist.
    fn finish_pieces(&mut self) -> Result<(), LogError> {
        self.finish(|log, _| !log.beside.has_piece())
    }

    /// Waits until there is no work beside the commits.
    pub(super) fn finish_work(&mut self) -> Result<(), LogError> {
        self.finish(|_, work| work == BesideWork::None)
    }

    /// Waits for work beside the commits, as long as etcd does some of it. What etcd refuses is not waited for: an operator
    /// must change something.
    fn finish(&mut self, is_done: fn(&Self, BesideWork) -> bool) -> Result<(), LogError> {
        let (mut n_done, mut since) = (self.beside.n_done(), Instant::now());
        loop {
            let work = self.tend(&no_waker())?;
            if is_done(self, work) {
                return Ok(());
            }
            if let Some(error @ (CallError::Refused(_) | CallError::NoSpace)) = self.beside.failure() {
                return Err(LogError::Engine(error.to_string()));
            }
            if self.beside.n_done() > n_done {
                (n_done, since) = (self.beside.n_done(), Instant::now());
            }
            let left = WORK_PATIENCE.saturating_sub(since.elapsed());
            if left.is_zero() {
                let why = self.beside.failure().map_or_else(String::new, |error| format!(": {error}"));
                return Err(LogError::Unknown(format!(
                    "the outcome of a snapshot or a deletion in etcd is unknown{why}"
                )));
            }
            self.beside.wait(left);
        }
    }

    /// Queues the measurement and the compaction that are due.
    fn keep_house(&mut self, now: Instant) {
        if self.space.is_due(now) {
            self.space.ask(now);
            self.beside.push(Job::Sizes);
        }
        if let Some(revision) = self.compaction.due(now, self.mark.revision) {
            self.beside.push(Job::Compact(revision));
        }
    }

    fn note(&mut self, finished: Finished) {
        match finished {
            Finished::Sizes(sizes) => {
                self.hear(sizes.as_ref().map_or(0, |sizes| sizes.header.revision));
                self.space.learn(sizes);
            }
            Finished::Compacted => self.compaction.finish(),
            Finished::Piece { took } => {
                let pause = self.pacer.add_piece(took);
                self.beside.set_piece_pause(pause);
            }
            Finished::Other => {}
        }
    }

    /// Queues the deletion of leftovers of earlier processes: generations that were being deleted, and attempts at snapshots that were
    /// never completed.
    fn sweep_leftovers(&mut self) -> Result<(), LogError> {
        for base in std::mem::take(&mut self.dropping) {
            let keys = self.keys.generation(base);
            self.beside.push(Job::Sweep(Sweep::new(keys.body(), Some(keys.dropping()))));
        }
        let newest = self.shared.newest()?;
        let mut range = newest.keys.snapshots();
        while newest.manifest().is_none()
            && let Some(entry) = read_page(&*self.shared.etcd, &range, 1, true)?.entries.first()
        {
            let Some(attempt) = newest.keys.attempt_of(&entry.key) else { break };
            let left = newest.keys.attempt(attempt);
            range.from = left.to.clone();
            self.beside.push(Job::Sweep(Sweep::new(left, None)));
        }
        Ok(())
    }
}

/// A waker that does nothing, for callers that wait themselves.
fn no_waker() -> Waker {
    Arc::new(|| {})
}

impl Log for EtcdLog {
    fn append(&mut self, first: Revision, chunks: &[Bytes], _fence: Fence) -> Result<(), LogError> {
        let started = match self.started.take() {
            Some(started) if started.first == first => Some(started),
            Some(_) | None => self.start_group(first, chunks)?,
        };
        let Some(StartedGroup { began, mut sent, beside_piece, mut txn, mut pending, mut rest, .. }) =
            started
        else {
            return Ok(());
        };
        let (after, came) = loop {
            let came = self.complete(&txn, sent, pending)?;
            self.crash.hit("store.after-append");
            let after = last_key(&txn).unwrap_or_else(|| self.tail.clone());
            let Some(next) = self.next_txn(&after, &mut rest)? else { break (after, came) };
            sent = BootTime::now();
            pending = self.shared.etcd.start(Request::Txn(next.clone()));
            txn = next;
        };
        self.tail = after;
        self.shared.newest()?.add_group(first, chunks.iter().map(|chunk| chunk.len() as u64).sum());
        self.pacer.add_commit(came.saturating_duration_since(began), beside_piece);
        Ok(())
    }

    fn start_append(&mut self, first: Revision, chunks: &[Bytes], _fence: Fence) -> Result<bool, LogError> {
        self.started = self.start_group(first, chunks)?;
        Ok(self.started.is_some())
    }

    fn synced(&mut self, last: Revision, crc: u32) -> Result<(), LogError> {
        let etcd = Some(self.mark);
        let Some(file) = &mut self.watermark else { return Ok(()) };
        let watermark = Watermark { revision: last.0, crc, etcd, ..file.last() };
        file.write(watermark)
    }

    fn claimed(&self) -> Claimed {
        match &self.found {
            Found::Whole(watermark) | Found::Half(watermark) => Claimed::AtLeast(Claim {
                floor: Revision(watermark.floor),
                last: Revision(watermark.revision),
                crc: watermark.crc,
            }),
            Found::Rotten => Claimed::Lost("the watermark cannot be read".to_owned()),
            Found::Missing => Claimed::Never,
        }
    }

    fn unopened(&self) -> Vec<String> {
        self.unopened.clone()
    }

    fn put_snapshot(&mut self, revision: Revision, part: SnapshotPart<'_>) -> Result<(), LogError> {
        match part {
            SnapshotPart::Begin(end) => self.begin_generation(revision, end),
            SnapshotPart::Piece { attempt, piece, chunks } => {
                self.finish_pieces()?;
                self.submit_piece(revision, attempt, piece, chunks)
            }
            SnapshotPart::Complete(manifest) => {
                self.finish_pieces()?;
                self.complete_generation(revision, manifest)
            }
        }
    }

    fn piece_bytes_max(&self) -> usize {
        PIECE_BYTES_MAX
    }

    fn drop_before(&mut self, revision: Revision) -> Result<(), LogError> {
        let dropped: Vec<_> = {
            let mut generations = self.shared.generations.write();
            let keep = generations.iter().position(|generation| generation.base >= revision);
            generations.drain(..keep.unwrap_or(0)).collect()
        };
        if dropped.is_empty() {
            return Ok(());
        }
        if let Some(last) = self.watermark.as_ref().map(WatermarkFile::last) {
            self.put_watermark(self.watermark(Revision(last.revision), last.crc))?;
        }
        for generation in dropped {
            self.beside.push(Job::Drop(generation));
        }
        self.tend(&no_waker()).map(drop)
    }

    fn drop_after(&mut self, revision: Revision) -> Result<(), LogError> {
        let newest = self.shared.newest()?;
        let range = newest.keys.log_from(Revision(revision.0 + 1));
        while let Some(batch) = KeyBatch::of(&read_page(&*self.shared.etcd, &range, N_KEYS, true)?) {
            let fence = self.held()?;
            let reply = self.shared.etcd.txn(batch.deletion(fence)).map_err(ask_again)?;
            check_fence(&reply, fence)?;
        }
        Ok(())
    }

    fn fence(&self) -> Fence {
        Fence(self.fence.as_ref().map_or(0, |fence| fence.record.number))
    }

    fn hold(&self) -> Option<Arc<FenceHold>> {
        self.hold.clone()
    }

    fn reader(&self) -> Arc<dyn LogReader> {
        Arc::clone(&self.shared) as Arc<dyn LogReader>
    }

    fn free_bytes(&self) -> Result<Option<u64>, LogError> {
        Ok(Some(self.space.free_bytes()))
    }

    fn reserve_bytes(&self, _of_disk: u64) -> u64 {
        self.space.reserve_bytes()
    }

    fn history_reserve_bytes(&self) -> u64 {
        self.space.history_reserve_bytes()
    }

    fn advice(&self) -> String {
        self.space.advice()
    }

    fn tend(&mut self, waker: &Waker) -> Result<BesideWork, LogError> {
        self.keep_house(Instant::now());
        if let Some(hold) = &self.hold {
            hold.wake_when_lost(waker);
            if let Some(error) = hold.lost() {
                return Err(error);
            }
        }
        let fence = self.fence.as_ref().ok_or_else(LogError::fenced)?;
        let mut finished = Vec::new();
        let tended = self.beside.tend(fence, waker, &mut finished);
        finished.into_iter().for_each(|finished| self.note(finished));
        tended
    }

    fn opened(&mut self, extents: &[Extent], last: Revision, crc: u32) -> Result<(), LogError> {
        let newest = self.shared.newest()?;
        // A process that has followed the log knows its groups.
        if self.tail.is_empty() {
            let (firsts, last_key) = list_groups(&self.shared.etcd, &newest.keys)?;
            newest.set_firsts(firsts);
            self.tail = last_key.unwrap_or_else(|| newest.keys.begin());
        }
        if let Some(extent) = extents.iter().find(|extent| extent.base == newest.base) {
            newest.set_log_bytes(extent.bytes);
        }
        self.sweep_leftovers()?;
        let watermark = self.watermark(last, crc);
        self.put_watermark(watermark)
    }

    fn abandon(self: Box<Self>) -> Result<(), LogError> {
        Ok(())
    }

    fn close(mut self: Box<Self>) -> Result<(), LogError> {
        self.give_back();
        if let Some(file) = &mut self.watermark {
            let last = file.last();
            file.write_durably(Watermark { etcd: Some(self.mark), ..last })?;
        }
        Ok(())
    }
}
