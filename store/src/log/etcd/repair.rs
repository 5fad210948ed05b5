//! Replaces a damaged store by another one, and keeps the keys of the damaged one.
//!
//! The new store is written below another line of keys. Then one transaction changes the fence to that line. The next repair deletes
//! whatever an interrupted repair has written.

use super::{
    EtcdLog,
    beside::{Job, Sweep},
    keys::StoreKeys,
    opening::{change_fence, read_fence},
    reading::unread,
    records::FenceRecord,
};
use crate::{
    log::{Claimed, Log as _, LogError, watermark::Found},
    recovery, snapshot,
    state::State,
};

impl EtcdLog {
    /// Replaces the store by one with `state` and no history. Returns the prefix of the keys of the damaged store, which stay.
    ///
    /// # Errors
    /// Another process has taken the store over, or etcd does not answer. Then either the damaged store is unchanged, or the new one is
    /// whole.
    pub(crate) fn replace(mut self, state: &State) -> Result<String, LogError> {
        let kept = self.keys.text();
        let line = self.held()?.record.line + 1;
        self.keys = StoreKeys::new(self.keys.prefix(), line);
        self.shared.generations.write().clear();
        self.store = rand::random_range(1..u64::MAX);
        (self.found, self.watermark) = (Found::Missing, None);
        self.unopened.clear();
        self.dropping.clear();
        self.beside.push(Job::Sweep(Sweep::new(self.keys.all(), None)));
        self.finish_work()?;
        snapshot::until_known(|| self.begin_store())?;
        snapshot::write_whole(state, &mut self)?;
        self.finish_work()?;
        let recovered = recovery::recover(&*self.shared, &Claimed::Never)?;
        if recovered.state != *state {
            return Err(LogError::Corrupt("the repaired store reads back differently".to_owned()));
        }
        let held = self.held()?.clone();
        let record = FenceRecord { number: held.record.number + 1, line, ..held.record.clone() };
        let changed = snapshot::until_known(|| {
            let changed = change_fence(&*self.shared.etcd, &held.key, Some(&held), record.clone());
            changed.map_err(unread)
        })?;
        // An earlier attempt may have changed the fence without an answer.
        let fence = match changed {
            Some(fence) => fence,
            None => {
                let now = read_fence(&*self.shared.etcd, &held.key)?;
                now.filter(|now| now.record == record).ok_or_else(LogError::fenced)?
            }
        };
        self.fence = Some(fence);
        self.opened(&recovered.generations, recovered.state.revision(), recovered.crc)?;
        Box::new(self).close()?;
        Ok(kept)
    }
}
