//! Leases: leadership and registration.
//!
//! A holder acts only while its [`Fence`] is valid: two thirds of the TTL from the *send* of the last answered
//! renewal, on its own monotonic clock. The store refuses transactions of older epochs besides, so that a
//! holder that slept through its lease can never change anything.

mod fence;
mod heard;
mod keeper;

#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc};

use godel_base::ids::{Epoch, Revision};
use godel_proto::v1;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{VERSION, client::Channel, config::LeaseConfig};

pub use fence::Fence;
pub use heard::Heard;

/// Whether this process holds the lease.
#[derive(Clone, Debug)]
pub enum Leadership {
    /// It does not; it goes on trying.
    Standby {
        /// Address of the holder, if somebody holds it and it is known.
        leader: Option<String>,
    },
    /// It does.
    Leader {
        /// Fencing epoch of this grant.
        epoch: Epoch,
        /// Store revision of the grant: read at least up to here before acting.
        since: Revision,
        /// Says at any moment whether the grant is still good.
        fence: Fence,
    },
}

impl Leadership {
    /// The fence of a grant that is valid at this moment.
    pub fn fence(&self) -> Option<&Fence> {
        match self {
            Self::Leader { fence, .. } if fence.is_valid() => Some(fence),
            Self::Leader { .. } | Self::Standby { .. } => None,
        }
    }
}

/// What to hold and for whom.
#[derive(Clone)]
pub struct LeaseSpec {
    /// Name of the lease: `dispatcher`, `binder`, `yarn`, `scheduler/<name>`, `member/<kind>/<name>`.
    pub lease: String,
    /// Where this process serves.
    pub address: String,
    /// TTL.
    pub config: LeaseConfig,
    /// What is sent along with each renewal.
    pub status: Arc<dyn Fn() -> v1::MemberStatus + Send + Sync>,
    /// Where a test may kill the process: before each renewal, at the named point.
    pub crash: Option<(godel_crash::CrashPoints, &'static str)>,
}

impl LeaseSpec {
    /// Without counters and crash points.
    pub fn new(lease: impl Into<String>, address: impl Into<String>, config: LeaseConfig) -> Self {
        Self {
            lease: lease.into(),
            address: address.into(),
            config,
            status: Arc::new(|| own_status(Vec::new())),
            crash: None,
        }
    }

    /// With counters that are read before each renewal.
    #[must_use]
    pub fn with_counters(
        mut self,
        counters: impl Fn() -> Vec<(&'static str, u64)> + Send + Sync + 'static,
    ) -> Self {
        self.status = Arc::new(move || own_status(counters()));
        self
    }

    /// With addresses at which this process listens in plain text in any case, by what they are for.
    #[must_use]
    pub fn with_plain_text(mut self, addresses: HashMap<String, String>) -> Self {
        let status = self.status;
        self.status =
            Arc::new(move || v1::MemberStatus { plain_text_addresses: addresses.clone(), ..status() });
        self
    }

    /// With a crash point that is hit before each renewal, as `binder.lease-renew`.
    #[must_use]
    pub fn with_crash(mut self, crash: godel_crash::CrashPoints, point: &'static str) -> Self {
        self.crash = Some((crash, point));
        self
    }
}

fn own_status(counters: Vec<(&'static str, u64)>) -> v1::MemberStatus {
    v1::MemberStatus {
        counters: counters.into_iter().map(|(name, count)| (name.to_owned(), count)).collect(),
        version: VERSION.to_owned(),
        plain_text_addresses: HashMap::new(),
    }
}

/// Stands for election to a lease that several processes want.
#[derive(Debug)]
pub struct Election(HeldLease);

/// Keeps a registration that is this process's alone; after a loss it registers again with a new epoch.
#[derive(Debug)]
pub struct Membership(HeldLease);

#[derive(Debug)]
struct HeldLease {
    leadership: watch::Receiver<Leadership>,
    heard: Heard,
    task: JoinHandle<()>,
}

impl Election {
    /// Stands for election until `stop`, then gives the lease back: cancel it after the last transaction has
    /// been answered.
    pub fn spawn(spec: LeaseSpec, state: Channel, stop: CancellationToken) -> Self {
        Self(HeldLease::spawn("election", spec, state, stop, false))
    }

    /// The present leadership and its changes.
    pub fn watch(&self) -> watch::Receiver<Leadership> {
        self.0.leadership.clone()
    }

    /// When state last answered.
    pub fn heard(&self) -> Heard {
        self.0.heard.clone()
    }

    /// Waits, after a stop, until the lease has been given back.
    pub async fn released(self) {
        self.0.released().await;
    }
}

impl Membership {
    /// Keeps the registration until `stop`, then gives it back.
    pub fn spawn(spec: LeaseSpec, state: Channel, stop: CancellationToken) -> Self {
        Self(HeldLease::spawn("membership", spec, state, stop, true))
    }

    /// The present registration and its changes: `Leader` while registered.
    pub fn watch(&self) -> watch::Receiver<Leadership> {
        self.0.leadership.clone()
    }

    /// When state last answered.
    pub fn heard(&self) -> Heard {
        self.0.heard.clone()
    }

    /// Waits, after a stop, until the registration has been given back.
    pub async fn released(self) {
        self.0.released().await;
    }
}

impl HeldLease {
    fn spawn(
        name: &'static str,
        spec: LeaseSpec,
        state: Channel,
        stop: CancellationToken,
        is_alone: bool,
    ) -> Self {
        let (sender, leadership) = watch::channel(Leadership::Standby { leader: None });
        let heard = Heard::new(*spec.config.ttl);
        let keeper = keeper::LeaseKeeper::new(spec, state, sender, heard.clone(), is_alone);
        let task = crate::task::spawn_service(name, &stop.clone(), keeper.run(stop));
        Self { leadership, heard, task }
    }

    async fn released(self) {
        // A panic of the task has been logged and has stopped the service.
        let _ = self.task.await;
    }
}
