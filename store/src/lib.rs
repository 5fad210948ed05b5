//! The state store: one revisioned state machine, written once, over a small log engine.
//!
//! [`State`] validates and applies transactions in memory. [`Store`] owns it: one writer thread merges what
//! waits into one group, appends it to the [`log::Log`] with one sync, and only then shows it to readers and
//! watchers and answers. After a restart the state is the last complete snapshot with the log after it.
//! What survives is exactly what was answered.
//!
//! # Modules
//!
//! - `admin`: check, export, restore and repair of a store that no process has open.
//! - `backup`: backups in a directory, full ones and increments, and what is restored from them.
//! - `chunk`: parts of a log, with their checksums.
//! - `envelope`: small messages in files, with a checksum.
//! - `feed`: committed transactions for watchers.
//! - `floor`: the state at the start of the kept history.
//! - `follower`: follows a store that another process writes, until this one takes it over.
//! - `history`: which generations are kept for the watch history.
//! - `identity`: the id of the store.
//! - `log`: the log engine, in memory, on sled or in an etcd.
//! - `loss`: what of a store cannot be recovered.
//! - `migration`: moves a store from one place to another.
//! - `nearby`: stores right above or below a directory that holds none.
//! - `place`: places of stores, and operations on any engine before a store runs on it.
//! - `record`: records, their keys and their encoding.
//! - `recovery`: rebuilds the state from the log engine.
//! - `role`: which writer may write which record.
//! - `snapshot`: snapshots of the state in the log.
//! - `state`: the state machine: one transaction after the other.
//! - `store`: the store as services use it.
//! - `store_reader`: reads the chunks of a store up to one revision.
//! - `writer`: the thread that writes, and commits in groups.

pub mod admin;
pub mod backup;
pub mod chunk;
pub mod history;
pub mod identity;
pub mod log;
pub mod migration;
pub mod record;
pub mod role;
pub mod state;

mod envelope;
mod feed;
mod floor;
mod follower;
mod loss;
mod nearby;
mod place;
mod recovery;
mod snapshot;
mod store;
mod store_reader;
mod writer;

pub use feed::{Compacted, Published, WatchEnd, WatchRefused, Watcher};
pub use floor::FloorReader;
pub use follower::{NotTakenOver, Standing};
pub use log::etcd::{FenceHold, FenceHolder, Unconfirmed};
pub use loss::Loss;
pub use place::{BadPlace, StorePlace};
pub use record::{Key, Record};
pub use role::Role;
pub use state::{Committed, RefusalReason, State, TxnRefusal, first_change_id};
pub use store::{
    Answer, Engine, OnFatal, OpenError, Opened, Pending, SledConfig, Status, Store, StoreConfig, SyncMode,
    WallClock,
};
pub use store_reader::{SnapshotStart, StorePart, StoreReadError, StoreReader, StoreStart};
