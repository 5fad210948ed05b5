//! Reading of the log in etcd, page by page.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use godel_base::ids::Revision;
use godel_etcd::{CallError, Entry, Etcd, RangeRequest};
use parking_lot::RwLock;

use super::{
    generation::EtcdGeneration,
    keys::{GenerationKeys, KeyRange},
    packing::unpack,
};
use crate::log::{Chunks, Generation, LogError, LogReader};

/// Number of values in a page. A value has at most 512 KiB, so a page has at most 32 MiB.
pub(super) const N_VALUES: u32 = 64;
/// Number of keys in a page without values.
pub(super) const N_KEYS: u32 = 1_024;
/// How often a page is requested before the read fails.
const N_TRIES: u32 = 3;

/// State that the writer and the readers share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) etcd: Arc<dyn Etcd>,
    /// The generations, oldest first.
    pub(super) generations: RwLock<Vec<Arc<EtcdGeneration>>>,
}

/// Converts the error with which a read ended finally.
pub(super) fn unread(error: CallError) -> LogError {
    match error {
        // The read cannot succeed with these settings.
        CallError::Refused(why) => LogError::Engine(why),
        error => LogError::Unknown(error.to_string()),
    }
}

/// Reads a range of keys page by page.
#[derive(Debug)]
pub(super) struct Pages {
    etcd: Arc<dyn Etcd>,
    /// The rest of the range.
    range: Option<KeyRange>,
    keys_only: bool,
}

impl Pages {
    pub(super) fn of_values(etcd: &Arc<dyn Etcd>, range: KeyRange) -> Self {
        Self { etcd: Arc::clone(etcd), range: Some(range), keys_only: false }
    }

    pub(super) fn of_keys(etcd: &Arc<dyn Etcd>, range: KeyRange) -> Self {
        Self { etcd: Arc::clone(etcd), range: Some(range), keys_only: true }
    }

    /// Reads the next page; `None` behind the last one.
    pub(super) fn next_page(&mut self) -> Result<Option<Vec<Entry>>, LogError> {
        let Some(range) = self.range.take() else { return Ok(None) };
        let limit = if self.keys_only { N_KEYS } else { N_VALUES };
        let page = read_page(&*self.etcd, &range, limit, self.keys_only)?;
        if page.has_more {
            self.range = page.entries.last().map(|last| range.behind(&last.key));
        }
        Ok(Some(page.entries))
    }
}

/// Reads the first keys of a range.
pub(super) fn read_page(
    etcd: &dyn Etcd,
    range: &KeyRange,
    limit: u32,
    keys_only: bool,
) -> Result<godel_etcd::Page, LogError> {
    let request = RangeRequest { from: range.from.clone(), to: range.to.clone(), limit, keys_only };
    let mut n_tries = 1;
    loop {
        match etcd.range(request.clone()) {
            Ok(page) => return Ok(page),
            Err(error) if n_tries == N_TRIES || matches!(error, CallError::Refused(_)) => {
                return Err(unread(error));
            }
            Err(error) => {
                tracing::debug!(%error, n_tries, "etcd is asked again");
                n_tries += 1;
            }
        }
    }
}

/// Lists the first revisions of the groups of a log, and returns its last key, if it has one.
pub(super) fn list_groups(
    etcd: &Arc<dyn Etcd>,
    keys: &GenerationKeys,
) -> Result<(Vec<Revision>, Option<Bytes>), LogError> {
    let (mut firsts, mut last) = (Vec::new(), None);
    let mut pages = Pages::of_keys(etcd, keys.log());
    while let Some(page) = pages.next_page()? {
        firsts.extend(page.iter().filter_map(|entry| keys.first_of(&entry.key)));
        last = page.last().map(|entry| entry.key.clone()).or(last);
    }
    Ok((firsts, last))
}

impl Shared {
    pub(super) fn generation(&self, base: Revision) -> Result<Arc<EtcdGeneration>, LogError> {
        let generations = self.generations.read();
        let found = generations.iter().find(|generation| generation.base == base);
        found.cloned().ok_or_else(|| LogError::Corrupt(format!("there is no generation with base {base}")))
    }

    pub(super) fn newest(&self) -> Result<Arc<EtcdGeneration>, LogError> {
        let newest = self.generations.read().last().cloned();
        newest.ok_or_else(|| LogError::Corrupt("there is no generation".to_owned()))
    }

    fn chunks(&self, generation: Arc<EtcdGeneration>, range: KeyRange) -> Chunks {
        Box::new(ChunkIterator {
            pages: Pages::of_values(&self.etcd, range),
            ready: VecDeque::new(),
            failure: None,
            _generation: generation,
        })
    }
}

impl LogReader for Shared {
    fn generations(&self) -> Vec<Generation> {
        self.generations.read().iter().map(|generation| generation.describe()).collect()
    }

    fn scan(&self, base: Revision, from: Revision) -> Result<Chunks, LogError> {
        let generation = self.generation(base)?;
        if from.0 <= base.0 + 1 {
            let range = generation.keys.log();
            return Ok(self.chunks(generation, range));
        }
        if !generation.has_firsts() {
            generation.set_firsts(list_groups(&self.etcd, &generation.keys)?.0);
        }
        let first = generation.group_of(from).unwrap_or(base);
        let range = generation.keys.log_from(first);
        Ok(self.chunks(generation, range))
    }

    fn snapshot(&self, base: Revision, attempt: u64) -> Result<Chunks, LogError> {
        let generation = self.generation(base)?;
        let range = generation.keys.attempt(attempt);
        Ok(self.chunks(generation, range))
    }

    fn disk_bytes(&self) -> u64 {
        self.generations.read().iter().map(|generation| generation.bytes()).sum()
    }
}

/// Iterates over the chunks of a range of keys. The generation is not deleted meanwhile.
struct ChunkIterator {
    pages: Pages,
    ready: VecDeque<Bytes>,
    /// The error that follows the chunks that are ready.
    failure: Option<LogError>,
    _generation: Arc<EtcdGeneration>,
}

impl ChunkIterator {
    fn fail(&mut self, error: LogError) {
        self.failure = Some(error);
        self.pages.range = None;
    }
}

impl Iterator for ChunkIterator {
    type Item = Result<Bytes, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() && self.failure.is_none() {
            match self.pages.next_page() {
                Ok(None) => return None,
                Err(error) => self.fail(error),
                Ok(Some(page)) => {
                    for entry in &page {
                        match unpack(&entry.key, &entry.value) {
                            Ok(chunks) => self.ready.extend(chunks),
                            Err(error) => {
                                self.fail(error);
                                break;
                            }
                        }
                    }
                }
            }
        }
        let ready = self.ready.pop_front().map(Ok);
        ready.or_else(|| self.failure.take().map(Err))
    }
}
