//! The log in an etcd that others operate.
//!
//! One process writes. It has stored its number and a random token under the key of the fence, and each of its transactions
//! compares that key. A transaction also requires that its own keys are absent and that their predecessor exists: the previous
//! group, or the begin of the generation. So a transaction that arrives late, twice or out of order changes nothing, and neither does a
//! process whose store was taken over. When the outcome of a transaction is unknown, the same transaction is sent again: either it is
//! applied now, or its keys exist already.
//!
//! A group is one value of packed chunks. A large group takes several values, each of which requires the one before it, and is valid only if
//! all of them exist. Pieces of a snapshot are written beside the commits, one at a time, and are valid once their manifest exists, which is
//! written when all pieces are known to exist. Old generations are deleted beside the commits, in small steps in the order of keys.
//!
//! etcd stores a value whole or not at all, so the end of the log can be torn only between two values; a partial value is damage.
//!
//! The watermark is a file on this machine. It has the last revision of the log, the id of the etcd cluster, and the revision of etcd. A state
//! whose watermark is ahead of etcd is not served. A process on another machine has no watermark and accepts the store as it is.
//!
//! # Modules
//!
//! - `beside`: work beside the commits.
//! - `compaction`: when etcd is compacted.
//! - `following`: following of the log that another process writes, and taking it over.
//! - `generation`: a generation, as far as it is known.
//! - `hold`: the hold of this process on the store, as etcd confirms it.
//! - `keys`: names of keys.
//! - `opening`: opening the log, and taking the store over.
//! - `packing`: packing of chunks into values.
//! - `pacing`: how fast a snapshot is written.
//! - `place`: operations on a store that do not open its log.
//! - `reading`: reading of the log.
//! - `records`: records other than chunks.
//! - `repair`: replacing a damaged store by another one.
//! - `space`: the space that etcd has.
//! - `writing`: writing of the log.

mod beside;
mod compaction;
mod following;
mod generation;
mod hold;
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
    records::HeldFence, space::Space, writing::StartedGroup,
};
use super::watermark::{EtcdMark, Found, WatermarkFile};

pub use self::{
    following::Tailed,
    hold::{FenceHold, Unconfirmed},
    opening::{FenceHolder, is_in_etcd},
};

/// Default of [`EtcdConfig::prefix`].
pub const PREFIX_DEFAULT: &str = "godel/";
/// Default quota of etcd.
pub const QUOTA_BYTES_DEFAULT: u64 = space::QUOTA_BYTES_DEFAULT;
/// Revisions of etcd are compacted at this age.
const COMPACTION_AGE: Duration = Duration::from_mins(10);

/// A store in etcd.
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    /// How etcd is called.
    pub etcd: Arc<dyn Etcd>,
    /// Prefix of all keys.
    pub prefix: String,
    /// Directory of this state on this machine. The watermark is in its folder `etcd`.
    pub dir: PathBuf,
    /// The quota of etcd's database. It is a flag of etcd that no call returns.
    pub quota_bytes: u64,
    /// Whether this store compacts etcd, which affects all clients of etcd.
    pub compacts: bool,
    /// The address at which this process answers calls once it holds the store; the fence names it. Empty: it answers none.
    pub address: String,
    /// Age of the revisions that are compacted; only tests change it.
    #[doc(hidden)]
    pub compaction_age: Duration,
}

impl EtcdConfig {
    /// Configures a store in `etcd` for a state with the directory `dir`.
    pub fn new(etcd: Arc<dyn Etcd>, dir: impl Into<PathBuf>) -> Self {
        Self {
            etcd,
            prefix: PREFIX_DEFAULT.to_owned(),
            dir: dir.into(),
            quota_bytes: QUOTA_BYTES_DEFAULT,
            compacts: true,
            address: String::new(),
            compaction_age: COMPACTION_AGE,
        }
    }
}

/// The engine. See the module.
#[derive(Debug)]
pub struct EtcdLog {
    shared: Arc<Shared>,
    keys: StoreKeys,
    /// The fence of this process; `None` if the log is only read.
    fence: Option<HeldFence>,
    /// The hold that the fence gives.
    hold: Option<Arc<FenceHold>>,
    /// How this process is named in the fence.
    own: FenceHolder,
    /// Random number that the watermark and all generations of the store share.
    store: u64,
    /// Id of the etcd cluster, and its last known revision.
    mark: EtcdMark,
    /// Key that must exist before the next group is written.
    tail: Bytes,
    /// The group that is being written.
    started: Option<StartedGroup>,
    /// Directory of the watermark.
    dir: PathBuf,
    /// The watermark as it was on opening.
    found: Found,
    /// The file of the watermark, once this process has written it.
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
