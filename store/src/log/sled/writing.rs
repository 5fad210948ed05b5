//! The log as its one writer uses it, from the decision that the store opens to its orderly end.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use godel_base::ids::Revision;
use godel_crash::CrashPoints;

use super::{
    SledLog,
    aside::{generation_path, put_back, ready_path, remove_leftovers, write_clean},
    files::{remove_dir, remove_file, sync_dir, write_file, write_marker},
    free_bytes,
    generation::{Base, Db, engine, log_key, snapshot_key, wait_until_closed},
    watermark::{Found, Watermark},
};
use crate::{
    history::Extent,
    log::{Claim, Claimed, End, Fence, Log, LogError, LogReader, SnapshotPart},
};

/// Closes files that are written no more, with sled's cache and tables of them. sled may take its time: commits need
/// not wait.
fn close_aside(db: Arc<Db>) {
    let closing = std::thread::Builder::new().name("store-close".to_owned()).spawn(move || drop(db));
    if let Err(error) = closing {
        tracing::debug!(%error, "closed without a thread of its own");
    }
}

impl Log for SledLog {
    fn append(&mut self, first: Revision, chunks: &[Bytes], _fence: Fence) -> Result<(), LogError> {
        let entries = (0u16..).zip(chunks).map(|(index, chunk)| (log_key(first.0, index), &chunk[..]));
        self.files.newest()?.write(entries, &self.crash)
    }

    fn synced(&mut self, last: Revision, crc: u32) -> Result<(), LogError> {
        let Some(file) = &mut self.watermark else { return Ok(()) };
        let watermark = Watermark { revision: last.0, crc, ..file.last() };
        file.write(watermark)
    }

    fn claimed(&self) -> Claimed {
        let of_generation = self.files.generations.read().last().map_or(0, |newest| newest.base.store);
        match &self.found {
            Found::Whole(watermark) | Found::Half(watermark) => {
                if of_generation > 0 && of_generation != watermark.store {
                    return Claimed::Lost("the watermark belongs to another store".to_owned());
                }
                Claimed::AtLeast(Claim {
                    floor: Revision(watermark.floor),
                    last: Revision(watermark.revision),
                    crc: watermark.crc,
                })
            }
            Found::Rotten => Claimed::Lost("the watermark cannot be read".to_owned()),
            Found::Missing if of_generation > 0 => Claimed::Lost("the watermark is missing".to_owned()),
            Found::Missing => Claimed::Never,
        }
    }

    fn unopened(&self) -> Vec<String> {
        self.unopened.clone()
    }

    fn put_snapshot(&mut self, revision: Revision, part: SnapshotPart<'_>) -> Result<(), LogError> {
        match part {
            SnapshotPart::Begin(end) => {
                let before = self.files.newest()?;
                let store = self.store();
                self.create(Base { revision: revision.0, previous_crc: end.crc, store })?;
                self.mark_generations(revision, end.crc)?;
                before.put_end(end)
            }
            SnapshotPart::Piece { attempt, piece, chunks } => {
                let entries =
                    (0u16..).zip(chunks).map(|(idx, chunk)| (snapshot_key(attempt, piece, idx), &chunk[..]));
                self.files.generation(revision)?.write(entries, &CrashPoints::default())
            }
            SnapshotPart::Complete(manifest) => {
                self.files.generation(revision)?.complete(manifest)?;
                let generations = self.files.generations.read().clone();
                for older in generations.iter().filter(|older| older.base.revision < revision.0) {
                    older.seal()?.into_iter().for_each(close_aside);
                }
                Ok(())
            }
        }
    }

    fn drop_before(&mut self, revision: Revision) -> Result<(), LogError> {
        let mut generations = self.files.generations.write();
        let keep = generations.iter().position(|generation| generation.base.revision >= revision.0);
        let dropped: Vec<_> = generations.drain(..keep.unwrap_or(0)).collect();
        drop(generations);
        if dropped.is_empty() {
            return Ok(());
        }
        if let Some(file) = &self.watermark {
            let Watermark { revision, crc, .. } = file.last();
            self.mark_generations(Revision(revision), crc)?;
        }
        for generation in &dropped {
            generation.doom()?;
        }
        let closed: VecDeque<_> = {
            let mut recent = self.files.recent.lock();
            let (closed, kept) = recent.drain(..).partition(|db| db.is_doomed());
            *recent = kept;
            closed
        };
        drop(closed);
        sync_dir(&self.files.dir)
    }

    fn drop_after(&mut self, revision: Revision) -> Result<(), LogError> {
        for generation in self.files.generations.read().iter().filter(|generation| !generation.is_sealed()) {
            let db = generation.db()?;
            for key in db.range(log_key(revision.0 + 1, 0)..vec![b'l' + 1]).keys() {
                db.remove(key.map_err(engine)?).map_err(engine)?;
            }
            generation.write([], &CrashPoints::default())?;
        }
        Ok(())
    }

    fn fence(&self) -> Fence {
        // The lock on the directory is the fence.
        Fence(0)
    }

    fn reader(&self) -> Arc<dyn LogReader> {
        Arc::clone(&self.files) as Arc<dyn LogReader>
    }

    fn free_bytes(&self) -> Result<Option<u64>, LogError> {
        free_bytes(&self.files.dir).map(Some)
    }

    fn copy_bytes(&self) -> u64 {
        let generations = self.files.generations.read();
        let written = generations.iter().filter(|generation| !generation.is_sealed());
        written.map(|generation| generation.written_bytes()).sum()
    }

    fn opened(&mut self, extents: &[Extent], last: Revision, crc: u32) -> Result<(), LogError> {
        let dir = &self.files.dir.clone();
        self.files.decide()?;
        let generations = self.files.generations.read().clone();
        for generation in generations.iter().filter(|generation| !generation.is_sealed()) {
            // What sled changed while it opened is made durable before the copy goes.
            generation.write([], &CrashPoints::default())?;
        }
        for pair in generations.windows(2) {
            // A crash may have come between the creation of the second and this.
            let next = pair[1].base;
            if let Some(&ended) = extents.iter().find(|extent| extent.base.0 == pair[0].base.revision) {
                pair[0].put_end(End::new(Revision(next.revision), next.previous_crc, ended))?;
            }
        }
        let complete = generations.iter().rposition(|generation| generation.describe().manifest.is_some());
        for older in generations.iter().take(complete.unwrap_or(0)) {
            // It has lost its seal, or a crash came before it had one.
            older.seal()?.into_iter().for_each(close_aside);
        }
        for number in std::mem::take(&mut self.adopted) {
            tracing::warn!(generation = number, "a generation had lost its marker; the marker was restored");
            write_marker(&ready_path(&generation_path(dir, number)))?;
        }
        // What is here is good and durable: the copy is not needed any more. It goes before the watermark is written,
        // or a kill in between would leave a copy that a watermark contradicts.
        remove_file(&dir.join("aside.ready"))?;
        sync_dir(dir)?;
        self.mark_generations(last, crc)?;
        remove_leftovers(dir, &std::mem::take(&mut self.leftovers))?;
        remove_dir(&dir.join("aside"))
    }

    fn abandon(mut self: Box<Self>) -> Result<(), LogError> {
        let dir = self.files.dir.clone();
        self.files.decide()?;
        for number in self.close_files() {
            wait_until_closed(&generation_path(&dir, number));
        }
        if !self.is_copied {
            return Ok(());
        }
        put_back(&dir)?;
        self.clean.as_ref().map_or(Ok(()), |clean| write_file(&dir.join("clean"), clean))
    }

    fn close(mut self: Box<Self>) -> Result<(), LogError> {
        for generation in self.files.generations.read().iter().filter(|generation| !generation.is_sealed()) {
            generation.db()?.sync_all()?;
        }
        if let Some(file) = &mut self.watermark {
            let last = file.last();
            file.write_durably(last)?;
        }
        let dir = self.files.dir.clone();
        let written = self.close_files();
        // What sled does at its very end belongs to what it leaves.
        if written.iter().all(|number| wait_until_closed(&generation_path(&dir, *number))) {
            return write_clean(&dir, &written);
        }
        tracing::warn!("a reader still uses the store: its stop is not marked as clean");
        Ok(())
    }
}
