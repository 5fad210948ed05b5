//! Whether the holder of a lease whose connection has ended still listens.
//!
//! The kernel of a machine says of a process that has died what no time-out can: nobody listens at its port. So a lease need not last
//! for its TTL. Everything else, as a machine that is off, says nothing, and the TTL decides. Whether a lease ends is decided by
//! [`godel_membership::leases::Leases::end_of_dead`].

use std::{collections::HashMap, future::Future, net::IpAddr, time::Duration};

use godel_kit::{address::ServerAddress, client, task};
use godel_membership::leases::HolderProbe;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;

/// Time to find out whether a holder is gone: round trips within a data centre and the end of a process that was killed take less, and a machine
/// that is off would only be waited for.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// Holders that are asked for at the same time.
const N_PROBES_MAX: usize = 64;

static PROBES: Semaphore = Semaphore::const_new(N_PROBES_MAX);

/// What waits for the ends of holders' connections: at most one task for each lease.
#[derive(Debug, Default)]
pub(crate) struct HolderWatches(Mutex<HashMap<String, AbortOnDropHandle<()>>>);

impl HolderWatches {
    /// Has `watch` wait for the holder of a lease in place of the one before, however far that was; `None`: nobody waits.
    pub(crate) fn replace(&self, lease: &str, watch: Option<impl Future<Output = ()> + Send + 'static>) {
        let mut by_lease = self.0.lock();
        match watch {
            Some(watch) => {
                let task = AbortOnDropHandle::new(task::spawn("holder", watch));
                by_lease.insert(lease.to_owned(), task);
            }
            None => drop(by_lease.remove(lease)),
        }
    }
}

/// Asks once whether anybody listens at the address of a holder that called from `peer`.
pub(crate) async fn probe(address: &str, peer: IpAddr) -> HolderProbe {
    if !means_the_same_machine(address, peer) {
        return HolderProbe::Unclear;
    }
    let Ok(_permit) = PROBES.acquire().await else { return HolderProbe::Unclear };
    match client::is_refused(address, PROBE_TIMEOUT).await {
        true => HolderProbe::Refused,
        false => HolderProbe::Unclear,
    }
}

/// Whether `address` means to this process what it means to a holder that calls from `peer`: an address of the loopback means another
/// machine to each.
fn means_the_same_machine(address: &str, peer: IpAddr) -> bool {
    let is_local = ServerAddress::parse(address, false).is_ok_and(|address| address.is_local());
    !is_local || peer.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_the_loopback_says_nothing_of_a_holder_on_another_machine() {
        for (address, peer, is_asked) in [
            ("http://127.0.0.1:1", "127.0.0.1", true),
            ("https://localhost:1", "::1", true),
            ("https://10.0.0.7:1", "10.0.0.7", true),
            ("http://10.0.0.7:1", "127.0.0.1", true),
            ("http://127.0.0.1:1", "10.0.0.7", false),
            ("http://localhost:1", "10.0.0.7", false),
        ] {
            let asked = means_the_same_machine(address, peer.parse().unwrap());
            assert_eq!(asked, is_asked, "{address} {peer}");
        }
    }

    #[tokio::test]
    async fn one_task_waits_for_each_lease() {
        let watches = HolderWatches::default();
        let (first, first_over) = tokio::sync::oneshot::channel::<()>();
        let (second, second_over) = tokio::sync::oneshot::channel::<()>();
        let wait = |kept: tokio::sync::oneshot::Sender<()>| async move {
            let _kept = kept;
            std::future::pending::<()>().await;
        };
        watches.replace("binder", Some(wait(first)));
        watches.replace("binder", Some(wait(second)));
        assert!(first_over.await.is_err(), "the first one was ended");
        watches.replace("binder", None::<std::future::Ready<()>>);
        assert!(second_over.await.is_err());
    }
}
