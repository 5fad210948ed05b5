//! The log in an etcd that others run.
//!
//! One process writes: it has put its number and a random token under the key of the fence, and each of its transactions
//! compares that. A transaction also compares that its own keys are absent and that what goes before them is there: the group
//! before, or the begin of its generation. So one that comes late, twice or out of order changes nothing, and a process that has
//! been taken over neither. Where etcd does not say what became of a transaction, the same one is sent again: either it is
//! made now, or what it puts is there already.
//!
//! A group is one value of packed chunks; a large one takes several, each of which rests on the one before, and counts only
//! whole. Pieces of a snapshot are put beside the commits, one at a time, and count once their manifest is there, which is put
//! when all of them are known to be. What is no longer needed is deleted beside the commits, in small steps in the order of keys.
//!
//! Keys that etcd holds are whole, or were damaged from outside: the end of the log is torn only between two values.
//!
//! The watermark is in a file of this machine: how far the log came, in which etcd, and how far that had come. A state
//! whose watermark claims more than etcd has is not served. A process on another machine, without one, takes what it finds.
//!
//! # Modules
//!
//! - `beside`: work beside the commits.
//! - `compaction`: when etcd is compacted.
//! - `generation`: a generation, as far as it is known.
//! - `keys`: names of keys.
//! - `opening`: from an etcd to a log that may be written.
//! - `packing`: chunks in values.
//! - `pacing`: how fast a snapshot is written.
//! - `place`: whether a store is there, and what a migration leaves there.
//! - `reading`: the log as readers use it.
//! - `records`: what keys hold beside chunks.
//! - `repair`: another store in the place of a damaged one.
//! - `space`: how much room etcd has.
//! - `writing`: the log as its writer uses it.

mod beside;
mod compaction;
mod generation;
mod keys;
mod opening;
mod pacing;
mod packing;
mod place;
mod reading;
mod records;
mod repair;
mod space;
mod writing;

use std::{fs::File, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use godel_base::ids::Revision;
use godel_crash::CrashPoints;
use godel_etcd::Etcd;

use self::{
    beside::Beside, compaction::Compaction, keys::StoreKeys, pacing::Pacer, reading::Shared,
    records::HeldFence, space::Space,
};
use super::watermark::{EtcdMark, Found, WatermarkFile};

pub use self::opening::is_in_etcd;

/// Where keys of the store begin, unless told otherwise.
pub const PREFIX_DEFAULT: &str = "godel/";
/// The quota that etcd has unless told otherwise.
pub const QUOTA_BYTES_DEFAULT: u64 = space::QUOTA_BYTES_DEFAULT;
/// etcd's revisions are compacted once they are so old.
const COMPACTION_AGE: Duration = Duration::from_mins(10);

/// A store in etcd.
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    /// How etcd is called.
    pub etcd: Arc<dyn Etcd>,
    /// What all keys begin with.
    pub prefix: String,
    /// Directory of this state on this machine: the watermark is in its folder `etcd`.
    pub dir: PathBuf,
    /// The quota of etcd's database, which is a flag of etcd that its calls do not tell.
    pub quota_bytes: u64,
    /// Compacts etcd, which concerns all its clients.
    pub compacts: bool,
    /// Age of what is compacted; leave it as it is.
    #[doc(hidden)]
    pub compaction_age: Duration,
}

impl EtcdConfig {
    /// A store in `etcd` whose state has the directory `dir`.
    pub fn new(etcd: Arc<dyn Etcd>, dir: impl Into<PathBuf>) -> Self {
        Self {
            etcd,
            prefix: PREFIX_DEFAULT.to_owned(),
            dir: dir.into(),
            quota_bytes: QUOTA_BYTES_DEFAULT,
            compacts: true,
            compaction_age: COMPACTION_AGE,
        }
    }
}

/// The engine. See the module.
#[derive(Debug)]
pub struct EtcdLog {
    shared: Arc<Shared>,
    keys: StoreKeys,
    /// `None`: the log is only looked at.
    fence: Option<HeldFence>,
    /// What ties watermark and generations together.
    store: u64,
    /// Which etcd it is, and how far it has come.
    mark: EtcdMark,
    /// The key on which the next group rests.
    tail: Bytes,
    /// Of the watermark.
    dir: PathBuf,
    /// What was found of it on opening.
    found: Found,
    /// There once it was written by this process.
    watermark: Option<WatermarkFile>,
    unopened: Vec<String>,
    /// Generations that an earlier process was deleting.
    dropping: Vec<Revision>,
    beside: Beside,
    space: Space,
    pacer: Pacer,
    compaction: Compaction,
    crash: CrashPoints,
    _lock: Option<File>,
}
