//! Operations on a store in etcd that do not open its log: whether it exists, its migration mark, and its removal.

use bytes::Bytes;
use godel_etcd::{Compare, Op, TxnReply, TxnRequest, prefix_end};

use super::{
    EtcdConfig,
    beside::check_fence,
    keys::{KeyRange, StoreKeys, next_key},
    opening::{is_in_etcd, mark_dir, read_fence},
    reading::{N_KEYS, read_page, unread},
};
use crate::{
    log::{
        Fence, LogError,
        files::{remove_dir, sync_dir},
        sled::is_store,
    },
    snapshot::until_known,
};

impl EtcdConfig {
    fn mark_key(&self) -> Bytes {
        StoreKeys::mark(&self.prefix)
    }

    /// Returns all keys below the prefix except the migration mark.
    fn keys_but_mark(&self) -> [KeyRange; 2] {
        let (mark, prefix) = (self.mark_key(), Bytes::from(self.prefix.clone()));
        let behind = KeyRange { from: next_key(&mark), to: prefix_end(&prefix) };
        [KeyRange { from: prefix, to: mark }, behind]
    }

    /// Whether a store was ever created below the prefix.
    pub(crate) fn holds_store(&self) -> Result<bool, LogError> {
        Ok(read_fence(&*self.etcd, &StoreKeys::fence(&self.prefix))?.is_some())
    }

    /// Whether the prefix or the directory of the state contains anything except a migration mark.
    pub(crate) fn holds_anything(&self) -> Result<bool, LogError> {
        for range in self.keys_but_mark() {
            if !read_page(&*self.etcd, &range, 1, true)?.entries.is_empty() {
                return Ok(true);
            }
        }
        Ok(is_in_etcd(&self.dir) || is_store(&self.dir))
    }

    /// Removes the watermark on this machine and all keys except the migration mark, which must exist.
    pub(crate) fn clear(&self) -> Result<(), LogError> {
        for range in self.keys_but_mark() {
            loop {
                let page = read_page(&*self.etcd, &range, N_KEYS, true)?;
                let (Some(first), Some(last)) = (page.entries.first(), page.entries.last()) else { break };
                let reply = self.make(&TxnRequest {
                    compares: vec![Compare::Present(self.mark_key())],
                    ops: vec![Op::DeleteRange(first.key.clone(), next_key(&last.key))],
                    reads: Vec::new(),
                })?;
                if !reply.succeeded {
                    return Err(LogError::Engine("the mark of a migration is gone from etcd".to_owned()));
                }
            }
        }
        let watermark = mark_dir(&self.dir);
        if watermark.exists() {
            remove_dir(&watermark)?;
            sync_dir(&self.dir)?;
        }
        Ok(())
    }

    /// Reads the encoded migration mark.
    pub(crate) fn read_mark(&self) -> Result<Option<Vec<u8>>, LogError> {
        let key = self.mark_key();
        let page = read_page(&*self.etcd, &KeyRange { to: next_key(&key), from: key }, 1, false)?;
        Ok(page.entries.first().map(|entry| entry.value.to_vec()))
    }

    /// Writes the migration mark, or removes it.
    pub(crate) fn write_mark(&self, mark: Option<&[u8]>) -> Result<(), LogError> {
        let key = self.mark_key();
        let op = match mark {
            Some(mark) => Op::Put(key, Bytes::copy_from_slice(mark)),
            None => Op::Delete(key),
        };
        self.make(&TxnRequest { ops: vec![op], ..TxnRequest::default() }).map(drop)
    }

    /// Writes the mark of a migration, if the process with this fence still holds the store.
    pub(crate) fn write_mark_as(&self, mark: &[u8], fence: Fence) -> Result<(), LogError> {
        let key = StoreKeys::fence(&self.prefix);
        let held = read_fence(&*self.etcd, &key)?.ok_or_else(LogError::fenced)?;
        if held.record.number != fence.0 {
            return Err(held.record.taken_over());
        }
        let reply = self.make(&TxnRequest {
            compares: vec![held.compare()],
            ops: vec![Op::Put(self.mark_key(), Bytes::copy_from_slice(mark))],
            reads: vec![key],
        })?;
        check_fence(&reply, &held)
    }

    /// Whether both places are the same prefix of the same etcd.
    pub(crate) fn is_same(&self, other: &Self) -> Result<bool, LogError> {
        let cluster = |config: &Self| Ok::<_, LogError>(config.etcd.sizes().map_err(unread)?.header.cluster);
        Ok(self.prefix == other.prefix && cluster(self)? == cluster(other)?)
    }

    /// Makes an idempotent transaction until its outcome is known.
    fn make(&self, txn: &TxnRequest) -> Result<TxnReply, LogError> {
        until_known(|| self.etcd.txn(txn.clone()).map_err(unread))
    }
}
