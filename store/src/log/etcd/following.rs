//! Following of the log that another process writes, and taking it over.
//!
//! A follower reads the log from where it has read it, again and again. It takes whole groups only: the values of an unfinished one are read again
//! until it is whole, or is gone because another process has taken the store over. A range is read at one revision of etcd, so what is
//! read is never a mixture of two processes' groups.
//!
//! To take the store over, a process first takes the fence. From then on nobody else writes, so that the end of the log stays where it is read next. An
//! unfinished group at the end was never acknowledged and is deleted.

use std::sync::Arc;

use bytes::Bytes;
use godel_base::ids::Revision;

use super::{
    EtcdLog,
    generation::EtcdGeneration,
    hold::{BootTime, FenceHold},
    keys::{KeyRange, StoreKeys, next_key},
    opening::{FenceHolder, Listing, TakenFence, change_fence, list, read_fence, take_fence_if},
    packing::unpack,
    reading::{N_VALUES, Pages, read_page},
    records::{BeginRecord, open},
};
use crate::{
    chunk::{Assembler, Group},
    log::{End, Log as _, LogError},
};

/// What a follower has read of the log.
#[derive(Clone, Debug)]
pub enum Tailed {
    /// A whole group.
    Group(Group),
    /// The generation behind this revision, whose log follows.
    Generation(Revision),
}

/// Maximum number of attempts to list generations that are being deleted meanwhile.
const N_LIST_TRIES: u32 = 5;

impl EtcdLog {
    fn fence_key(&self) -> Bytes {
        StoreKeys::fence(self.keys.prefix())
    }

    /// Reads who holds the store; `None` if nobody ever has.
    ///
    /// # Errors
    /// etcd does not answer.
    pub(crate) fn holder(&self) -> Result<Option<FenceHolder>, LogError> {
        let held = read_fence(&*self.shared.etcd, &self.fence_key())?;
        if let Some(held) = &held
            && held.record.line != self.keys.line()
        {
            return Err(LogError::Corrupt("the store in etcd was replaced by a repair".to_owned()));
        }
        Ok(held.as_ref().map(|held| FenceHolder::of(held, &self.own)))
    }

    /// Notes that the log was read up to revision `last`, which ends a group.
    ///
    /// # Errors
    /// etcd does not answer.
    pub(crate) fn begin_following(&mut self, last: Revision) -> Result<(), LogError> {
        let Some(newest) = self.shared.generations.read().last().cloned() else { return Ok(()) };
        let mut firsts = Vec::new();
        self.tail = newest.keys.begin();
        let mut pages = Pages::of_keys(&self.shared.etcd, newest.keys.log());
        while let Some(page) = pages.next_page()? {
            for entry in page {
                if let Some(first) = newest.keys.first_of(&entry.key).filter(|first| *first <= last) {
                    firsts.push(first);
                    self.tail = entry.key;
                }
            }
        }
        newest.set_firsts(firsts);
        Ok(())
    }

    /// Reads what follows revision `last` of the log, whose last chunk had the checksum `crc`. Empty: nothing follows yet.
    ///
    /// # Errors
    /// etcd does not answer, the log is damaged, or what follows was dropped already.
    pub(crate) fn read_on(&mut self, last: Revision, crc: u32) -> Result<Vec<Tailed>, LogError> {
        let Some(newest) = self.shared.generations.read().last().cloned() else {
            return self.find_first();
        };
        let range = newest.keys.log_from(Revision(last.0 + 1));
        let page = read_page(&*self.shared.etcd, &range, N_VALUES, false)?;
        self.hear(page.header.revision);
        if page.entries.is_empty() {
            return self.find_next(&newest, last, crc);
        }
        let mut assembler = Assembler::new(Some(last.0 + 1), Some(crc));
        let mut tailed = Vec::new();
        for entry in &page.entries {
            for chunk in unpack(&entry.key, &entry.value)? {
                let group = assembler.push(&chunk).map_err(|what| {
                    LogError::Corrupt(format!("the log in etcd behind revision {last}: {what}"))
                })?;
                if let Some(group) = group {
                    newest.add_group(group.first, group.bytes);
                    self.tail = entry.key.clone();
                    tailed.push(Tailed::Group(group));
                }
            }
        }
        if tailed.is_empty() && page.has_more {
            return Err(LogError::Corrupt(format!(
                "the log in etcd behind revision {last} has no whole group"
            )));
        }
        Ok(tailed)
    }

    /// Notes in the watermark that this process has read the log up to revision `last`, whose last chunk has the checksum `crc`: an etcd that
    /// lacks it has lost what it had acknowledged.
    ///
    /// # Errors
    /// The watermark cannot be written.
    pub(crate) fn note_read(&mut self, last: Revision, crc: u32) -> Result<(), LogError> {
        if self.watermark.is_some() {
            return self.synced(last, crc);
        }
        let watermark = self.watermark(last, crc);
        self.put_watermark(watermark)
    }

    /// Looks for the first generation of a store that had none.
    fn find_first(&mut self) -> Result<Vec<Tailed>, LogError> {
        self.refresh()?;
        let mut generations = self.shared.generations.write();
        // Those that follow are found in order.
        generations.truncate(1);
        let Some(first) = generations.first() else { return Ok(Vec::new()) };
        if first.base > Revision(0) {
            return Err(dropped(Revision(0)));
        }
        first.set_firsts(Vec::new());
        self.tail = first.keys.begin();
        Ok(vec![Tailed::Generation(first.base)])
    }

    /// Looks for the generation that follows `before`, of whose log nothing is left to be read.
    fn find_next(
        &mut self,
        before: &Arc<EtcdGeneration>,
        last: Revision,
        crc: u32,
    ) -> Result<Vec<Tailed>, LogError> {
        let etcd = Arc::clone(&self.shared.etcd);
        let behind = KeyRange { from: before.keys.all().to, to: self.keys.all().to };
        let page = read_page(&*etcd, &behind, 1, true)?;
        let Some(base) = page.entries.first().and_then(|entry| self.keys.base_of(&entry.key)) else {
            return Ok(Vec::new());
        };
        let keys = self.keys.generation(base);
        let begin = read_one(&*etcd, keys.begin())?;
        let end = read_one(&*etcd, before.keys.end())?;
        let (Some(begin), Some(end)) = (begin, end) else { return Err(dropped(last)) };
        let begin: BeginRecord = open(&keys.begin(), &begin)?;
        let end: End = open(&before.keys.end(), &end)?;
        if end.revision > last.0 {
            // The log went on after it was read.
            return Ok(Vec::new());
        }
        if (end.revision, end.crc) != (last.0, crc) || (begin.base, begin.previous_crc) != (last.0, crc) {
            let what = format!("generation {base} in etcd does not follow revision {last}");
            return Err(LogError::Corrupt(what));
        }
        before.set_end(end);
        let next = Arc::new(EtcdGeneration::new(base, begin.previous_crc, keys));
        next.set_firsts(Vec::new());
        self.tail = next.keys.begin();
        self.shared.generations.write().push(next);
        Ok(vec![Tailed::Generation(base)])
    }

    /// Reads which generations there are, and which of them have a snapshot. Generations that this process has known stay as they are.
    ///
    /// # Errors
    /// etcd does not answer, or a record is damaged.
    pub(crate) fn refresh(&mut self) -> Result<(), LogError> {
        let listing = self.list_generations()?;
        self.dropping = listing.dropping;
        if let Some(store) = listing.store {
            self.store = store;
        }
        let mut generations = self.shared.generations.write();
        // What follows the newest generation is read in order.
        let newest = generations.last().map(|newest| newest.base);
        generations.retain(|known| {
            Some(known.base) == newest || listing.generations.iter().any(|listed| listed.base == known.base)
        });
        for listed in listing.generations {
            match generations.iter().find(|known| known.base == listed.base) {
                Some(known) => {
                    if let Some(manifest) = listed.manifest() {
                        known.set_manifest(manifest);
                    }
                }
                None if newest.is_none() => generations.push(listed),
                None => {}
            }
        }
        Ok(())
    }

    fn list_generations(&self) -> Result<Listing, LogError> {
        let mut n_tries = 1;
        loop {
            let listing = list(&*self.shared.etcd, &self.keys)?;
            match listing.problems.first() {
                None => return Ok(listing),
                // A generation was deleted while it was listed.
                Some(_) if n_tries < N_LIST_TRIES => n_tries += 1,
                Some(problem) => return Err(LogError::Corrupt(problem.clone())),
            }
        }
    }

    /// Takes the fence, if its holder is still the process with the number `from` (0: nobody). Returns whether it has.
    ///
    /// # Errors
    /// etcd does not answer, or refuses.
    pub(crate) fn take_fence_from(&mut self, from: u64) -> Result<bool, LogError> {
        let may_take =
            |held: Option<&super::records::HeldFence>| held.map_or(0, |held| held.record.number) == from;
        let taken = take_fence_if(&*self.shared.etcd, &self.fence_key(), &self.own, may_take)?;
        let Some(TakenFence { held, sent }) = taken else { return Ok(false) };
        if held.record.line != self.keys.line() {
            return Err(LogError::Corrupt("the store in etcd was replaced by a repair".to_owned()));
        }
        self.fence = Some(held);
        self.keep_hold(sent);
        Ok(true)
    }

    /// Makes this process, which has taken the fence and read the log up to revision `last`, the one that writes it.
    ///
    /// # Errors
    /// As [`crate::log::Log::append`].
    pub(crate) fn begin_to_write(&mut self, last: Revision) -> Result<(), LogError> {
        self.refresh()?;
        if self.shared.generations.read().is_empty() {
            let sent = BootTime::now();
            self.begin_store()?;
            self.keep_hold(sent);
            return Ok(());
        }
        self.drop_after(last)
    }

    /// Has the hold of this process confirmed from now on; its fence was taken by a transaction that was sent at `sent`.
    pub(super) fn keep_hold(&mut self, sent: BootTime) {
        let etcd = Arc::clone(&self.shared.etcd);
        self.hold = self.fence.clone().map(|fence| FenceHold::keep(etcd, fence, sent));
    }

    /// Gives the store back, so that another process may take it over at once. Without an answer of etcd others find out themselves.
    pub(super) fn give_back(&mut self) {
        // The fence of a process that answers nobody is of no interest to others.
        if self.own.address.is_empty() {
            return;
        }
        self.hold = None;
        let Some(held) = self.fence.take() else { return };
        let record = held.given_back().record;
        match change_fence(&*self.shared.etcd, &held.key, Some(&held), record) {
            Ok(Some(_)) => tracing::info!("the store in etcd was given back"),
            Ok(None) => tracing::info!("another process has taken over the store in etcd"),
            Err(error) => tracing::warn!(%error, "the store in etcd was not given back"),
        }
    }
}

/// Reads the value of one key.
fn read_one(etcd: &dyn godel_etcd::Etcd, key: Bytes) -> Result<Option<Bytes>, LogError> {
    let range = KeyRange { to: next_key(&key), from: key };
    Ok(read_page(etcd, &range, 1, false)?.entries.pop().map(|entry| entry.value))
}

/// That the log behind a revision was deleted before it was read.
fn dropped(last: Revision) -> LogError {
    LogError::Corrupt(format!("the log in etcd behind revision {last} was dropped before it was read"))
}
