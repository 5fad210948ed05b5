//! The store in an etcd: on a model of one that answers late, twice or never, and on a real one.

mod faults;
mod prepared;
mod repair;
mod space;
mod standby;
mod together;
mod waiting;
mod watermark;

use std::{path::Path, sync::Arc};

use godel_crash::CrashPoints;
use godel_etcd::{
    Etcd,
    model::{EtcdModel, Session},
};
use godel_store::{Engine, OpenError, Store, StoreConfig, log::etcd::EtcdConfig};

use crate::support::{clock, small};

/// A store in the etcd of `session`, with the watermark in `dir`: small generations, so that tests see many.
fn config(session: Arc<dyn Etcd>, dir: &Path) -> StoreConfig {
    small(Engine::Etcd(EtcdConfig::new(session, dir)))
}

/// Opens the store of a model, as a new process does that may be cut off.
fn open_session(model: &EtcdModel, dir: &Path) -> (Store, Arc<Session>) {
    let session = model.connect();
    let config = config(Arc::clone(&session) as Arc<dyn Etcd>, dir);
    (Store::open(config, clock(), CrashPoints::default()).unwrap(), session)
}

/// Opens the store of a model, as a new process does.
fn open(model: &EtcdModel, dir: &Path) -> Result<Store, OpenError> {
    Store::open(config(model.connect(), dir), clock(), CrashPoints::default())
}
