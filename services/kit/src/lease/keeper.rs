//! The task behind an election or a membership: acquire, renew, lose, start again, give back.

use std::time::Duration;

use godel_base::ids::{Epoch, Revision, StoreId};
use godel_proto::v1::{self, member_service_client::MemberServiceClient};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{Fence, Heard, Leadership, LeaseSpec};
use crate::{
    client::{Channel, jittered},
    message::RECEIVED_BYTES_MAX,
    status::{self, reason},
};

pub(super) struct LeaseKeeper {
    spec: LeaseSpec,
    /// Unique per process start.
    holder: String,
    client: MemberServiceClient<Channel>,
    leadership: watch::Sender<Leadership>,
    heard: Heard,
    /// Of a registration that is to be this process's alone: who has it instead.
    rival: Option<LeaseRival>,
    /// The warning that state speaks TLS and this process does not was logged.
    has_warned_of_tls: bool,
}

/// Another process holds what is to be this one's alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LeaseRival {
    holder: String,
    /// When it was met first, and when its lease was to end when that was last looked at.
    met: Option<(Instant, Instant)>,
    /// How often its lease was seen to go on.
    n_renewals: u32,
    is_told: bool,
}

/// A holder whose lease went on so often lives. Each start of state gives the lease of one that died its whole time anew,
/// so fewer say nothing.
const N_RENEWALS_MIN: u32 = 4;

impl LeaseRival {
    /// It holds the lease for `remaining` from now on. True, once, when it is certain that it lives: it renews its lease
    /// again and again, for longer than a predecessor takes to stop.
    fn meet(&mut self, holder: &str, remaining: Duration, ttl: Duration, now: Instant) -> bool {
        if self.holder != holder {
            let met = Some((now, now + remaining));
            *self = Self { holder: holder.to_owned(), met, ..Self::default() };
        }
        let Some((met_at, end)) = &mut self.met else { return false };
        if now + remaining > *end + ttl / 2 {
            *end = now + remaining;
            self.n_renewals += 1;
        }
        let tell = !self.is_told && self.n_renewals >= N_RENEWALS_MIN && now >= *met_at + ttl * 2;
        self.is_told |= tell;
        tell
    }
}

/// How a grant ended.
enum LeaseEnd {
    Lost,
    Stopped,
}

impl LeaseKeeper {
    /// `is_alone`: nobody else is to have the lease, so that somebody who has is worth a warning.
    pub(super) fn new(
        spec: LeaseSpec,
        state: Channel,
        leadership: watch::Sender<Leadership>,
        heard: Heard,
        is_alone: bool,
    ) -> Self {
        let holder = uuid::Uuid::now_v7().to_string();
        let client = MemberServiceClient::new(state).max_decoding_message_size(RECEIVED_BYTES_MAX);
        let rival = is_alone.then(LeaseRival::default);
        Self { spec, holder, client, leadership, heard, rival, has_warned_of_tls: false }
    }

    /// Runs until `stop`.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let ttl = *self.spec.config.ttl;
        loop {
            let sent = Instant::now();
            let granted = tokio::select! {
                granted = self.acquire(ttl) => granted,
                () = stop.cancelled() => return,
            };
            let mut pause = jittered(ttl / 10);
            match granted {
                Ok(grant) => {
                    self.heard.now();
                    let fence = Fence::expired(&self.spec.lease, Epoch(grant.epoch), StoreId(grant.store_id));
                    let ttl = Duration::from_millis(u64::from(grant.ttl_ms));
                    fence.extend(sent + ttl * 2 / 3);
                    let end = self.hold(&fence, Revision(grant.revision), ttl, &stop).await;
                    fence.revoke();
                    self.leadership.send_replace(Leadership::Standby { leader: None });
                    match end {
                        LeaseEnd::Stopped => return self.release(&fence, ttl).await,
                        LeaseEnd::Lost => {
                            // The store hears of a holder that slept through its lease, and counts it.
                            let _ = timeout(ttl / 4, self.renew(&fence)).await;
                            tracing::warn!(lease = self.spec.lease, epoch = grant.epoch, "lease lost");
                        }
                    }
                }
                Err(failure) => {
                    self.stand_by(&failure);
                    self.mind_rival(&failure, ttl);
                    pause = remaining(&failure).map_or(pause, |remaining| remaining.min(pause));
                }
            }
            tokio::select! {
                () = sleep(pause) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    async fn acquire(&mut self, ttl: Duration) -> Result<v1::AcquireLeaseResponse, Status> {
        let request = v1::AcquireLeaseRequest {
            lease: self.spec.lease.clone(),
            holder: self.holder.clone(),
            address: self.spec.address.clone(),
            ttl_ms: u32::try_from(ttl.as_millis()).unwrap_or(u32::MAX),
        };
        // A grant that takes longer would have been half spent before it arrived.
        match timeout(ttl / 3, self.client.acquire_lease(request)).await {
            Ok(answer) => answer.map(tonic::Response::into_inner),
            Err(_elapsed) => Err(Status::deadline_exceeded("no answer to AcquireLease")),
        }
    }

    /// Says that somebody else has the name.
    fn mind_rival(&mut self, failure: &Status, ttl: Duration) {
        let (Some(rival), Some(remaining)) = (&mut self.rival, remaining(failure)) else { return };
        let holder = status::metadata_of(failure, "holder").unwrap_or_default();
        if rival.meet(&holder, remaining, ttl, Instant::now()) {
            let address = status::metadata_of(failure, "address").unwrap_or_default();
            tracing::warn!(
                lease = self.spec.lease,
                holder,
                address,
                "another process has this name: this process does nothing until the other ends; give each \
                 its own name"
            );
        }
    }

    fn stand_by(&mut self, failure: &Status) {
        let needs_tls = status::has_reason(failure, reason::TLS_REQUIRED);
        if needs_tls && !std::mem::replace(&mut self.has_warned_of_tls, true) {
            tracing::warn!(
                lease = self.spec.lease,
                "state speaks TLS and this process does not, so it cannot hold its lease: restart it with state's https:// address and a token of \
                 `godel join-token --role ROLE` (`--join-file FILE`)"
            );
        }
        let held = status::has_reason(failure, reason::LEASE_HELD);
        if held {
            self.heard.now();
        } else {
            tracing::debug!(lease = self.spec.lease, code = ?failure.code(), why = failure.message(), "lease not granted");
        }
        let leader = status::metadata_of(failure, "address").filter(|address| held && !address.is_empty());
        self.leadership.send_if_modified(|known| match known {
            Leadership::Standby { leader: known } if *known == leader => false,
            // While state does not answer, the last leader known is the best guess.
            Leadership::Standby { .. } if !held => false,
            Leadership::Standby { .. } | Leadership::Leader { .. } => {
                *known = Leadership::Standby { leader: leader.clone() };
                true
            }
        });
    }

    /// Publishes the leadership and renews it until it is lost or `stop`.
    async fn hold(
        &mut self,
        fence: &Fence,
        since: Revision,
        ttl: Duration,
        stop: &CancellationToken,
    ) -> LeaseEnd {
        if !fence.is_valid() {
            return LeaseEnd::Lost;
        }
        let epoch = fence.epoch();
        tracing::info!(lease = self.spec.lease, epoch = epoch.0, "lease granted");
        self.leadership.send_replace(Leadership::Leader { epoch, since, fence: fence.clone() });
        let mut renew_at = Instant::now() + ttl / 4;
        loop {
            tokio::select! {
                biased;
                () = sleep_until(fence.deadline()) => return LeaseEnd::Lost,
                () = fence.lost() => return LeaseEnd::Lost,
                () = stop.cancelled() => return LeaseEnd::Stopped,
                () = sleep_until(renew_at) => {}
            }
            if let Some((crash, point)) = &self.spec.crash {
                crash.hit(point);
            }
            let sent = Instant::now();
            // A quarter of the TTL leaves time for another try before the validity ends.
            let limit = fence.deadline().min(sent + ttl / 4);
            let renewed = tokio::select! {
                renewed = timeout_at(limit, self.renew(fence)) => renewed,
                () = fence.lost() => return LeaseEnd::Lost,
                () = stop.cancelled() => return LeaseEnd::Stopped,
            };
            match renewed {
                Ok(Ok(answer)) => {
                    self.heard.now();
                    let ttl = Duration::from_millis(u64::from(answer.ttl_ms));
                    fence.extend(sent + ttl * 2 / 3);
                    renew_at = sent + ttl / 4;
                }
                Ok(Err(failure)) if status::is_lease_lost(&failure) => return LeaseEnd::Lost,
                Ok(Err(failure)) => {
                    tracing::debug!(lease = self.spec.lease, code = ?failure.code(), "lease not renewed");
                    renew_at = Instant::now() + jittered(ttl / 20);
                }
                Err(_elapsed) => renew_at = Instant::now(),
            }
        }
    }

    async fn renew(&mut self, fence: &Fence) -> Result<v1::RenewLeaseResponse, Status> {
        let request = v1::RenewLeaseRequest {
            lease: self.spec.lease.clone(),
            epoch: fence.epoch().0,
            status: Some((self.spec.status)()),
            store_id: fence.store().0,
        };
        self.client.renew_lease(request).await.map(tonic::Response::into_inner)
    }

    /// Gives the lease back, so that others need not wait for its end. Best effort.
    async fn release(&mut self, fence: &Fence, ttl: Duration) {
        let epoch = fence.epoch();
        let (lease, store_id) = (self.spec.lease.clone(), fence.store().0);
        let request = v1::ReleaseLeaseRequest { lease, epoch: epoch.0, store_id };
        match timeout(ttl / 3, self.client.release_lease(request)).await {
            Ok(Ok(_)) => tracing::info!(lease = self.spec.lease, epoch = epoch.0, "lease released"),
            Ok(Err(failure)) => {
                tracing::debug!(lease = self.spec.lease, code = ?failure.code(), "lease not released")
            }
            Err(_elapsed) => tracing::debug!(lease = self.spec.lease, "lease not released in time"),
        }
    }
}

/// How much longer a refused lease is held unless it is renewed: asked for then, it is free at once.
fn remaining(failure: &Status) -> Option<Duration> {
    let held = status::has_reason(failure, reason::LEASE_HELD);
    let remaining_ms: u64 = status::metadata_of(failure, "remaining_ms").filter(|_| held)?.parse().ok()?;
    // Whatever state says, it is not asked again without a pause.
    Some(Duration::from_millis(remaining_ms.max(1)))
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::{status::with_info, tests::fake::lease_held};

    #[test]
    fn a_rival_that_lives_is_told_of_once_and_one_that_stops_is_not() {
        let (start, ttl) = (Instant::now(), Duration::from_secs(3));
        let at = |ms: u64| start + Duration::from_millis(ms);
        let left = Duration::from_millis;
        let mut rival = LeaseRival::default();
        // A predecessor that was killed: its lease runs out.
        assert!(!rival.meet("old", left(2_900), ttl, at(0)));
        assert!(!rival.meet("old", left(100), ttl, at(2_800)));
        // One that renews, and goes on to.
        assert!(!rival.meet("other", left(2_900), ttl, at(3_000)));
        assert!(!rival.meet("other", left(2_800), ttl, at(5_000)), "it may be stopping");
        assert!(!rival.meet("other", left(2_900), ttl, at(7_000)), "state may have started anew");
        assert!(!rival.meet("other", left(2_900), ttl, at(9_000)));
        assert!(rival.meet("other", left(2_900), ttl, at(11_000)));
        assert!(!rival.meet("other", left(2_900), ttl, at(14_000)), "once");
        assert!(!rival.meet("third", left(2_900), ttl, at(15_000)));
    }

    #[test]
    fn a_refusal_says_when_to_ask_again() {
        let refused = |reason, remaining: &str| {
            let metadata = [("remaining_ms", remaining.to_owned())];
            remaining_of(&with_info(Code::FailedPrecondition, reason, "held", metadata))
        };
        assert_eq!(refused(reason::LEASE_HELD, "170"), Some(170));
        assert_eq!(refused(reason::LEASE_HELD, "0"), Some(1));
        assert_eq!(refused(reason::LEASE_HELD, "soon"), None);
        assert_eq!(refused(reason::OVERLOADED, "170"), None);
        assert_eq!(remaining_of(&lease_held("binder", "h1", "http://x")), None);
        assert_eq!(remaining_of(&Status::unavailable("no state")), None);
    }

    fn remaining_of(failure: &Status) -> Option<u128> {
        remaining(failure).map(|remaining| remaining.as_millis())
    }
}
