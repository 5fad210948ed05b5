//! The watch over the state that leads, and taking its place.
//!
//! It runs on a thread of its own, so that a state which has much to do does not take the leader for silent.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use godel_base::ids::Revision;
use godel_kit::{
    CancellationToken,
    address::ServerAddress,
    client::{channel, is_refused},
    clock::boot_ms,
    config::ClientConfig,
    message::RECEIVED_BYTES_MAX,
};
use godel_membership::{
    leases::STATES,
    succession::{LeaderSign, LeaderSilence, Succession},
};
use godel_proto::v1::{self, member_service_client::MemberServiceClient};
use godel_store::{FenceHolder, NotTakenOver, Standing, Store};
use tokio::{
    sync::oneshot,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::error::Error;

/// How often the leader is judged.
const TICK: Duration = Duration::from_millis(50);
/// How often the leader is to say that it leads.
const BEAT_MS: u32 = 100;
/// How long other states may take to say what they have read.
const ASK_TIMEOUT: Duration = Duration::from_millis(150);
/// Time to connect to the leader's address, to hear whether it refuses.
const PROBE_TIMEOUT: Duration = Duration::from_millis(200);
/// Pause after a take-over that failed.
const RETRY: Duration = Duration::from_millis(100);
/// Pause after the log was found to lack what others have read.
const BEHIND_RETRY: Duration = Duration::from_secs(5);

/// Watches the state that leads, for one that follows it.
pub(super) struct LeaderWatcher {
    pub(super) store: Store,
    /// With what other states are called, once that is known.
    pub(super) client: Arc<OnceLock<ClientConfig>>,
    /// Under which other states know this one.
    pub(super) own_address: String,
    /// For so long a store that nobody holds is left to others: this state has given it back.
    pub(super) holds_back: Duration,
    pub(super) stop: CancellationToken,
}

/// What is heard of one leader.
#[derive(Default)]
struct Heard {
    /// When it last said that it leads, by [`boot_ms`]; 0: never.
    last_ms: AtomicU64,
    /// Its address refused a connection.
    is_refused: AtomicBool,
}

impl LeaderWatcher {
    /// Starts the thread. The answer comes once this state leads; never if it is stopped first.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(self) -> Result<oneshot::Receiver<Succession>, Error> {
        let (sender, leads) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Error::Thread)?;
        let run = move || {
            let stop = self.stop.clone();
            let succeeded = runtime.block_on(stop.run_until_cancelled(self.succeed()));
            if let Some(why) = succeeded {
                // Whoever waited may have left.
                let _ = sender.send(why);
            }
        };
        std::thread::Builder::new().name("leader-watch".to_owned()).spawn(run).map_err(Error::Thread)?;
        Ok(leads)
    }

    /// Returns once this state leads.
    async fn succeed(&self) -> Succession {
        let mut silence = LeaderSilence::new(boot_ms());
        let mut known: Option<FenceHolder> = None;
        let mut heard = Arc::new(Heard::default());
        let mut listening = JoinSet::new();
        let mut last_ms = 0;
        let held_back_ms =
            boot_ms().saturating_add(u64::try_from(self.holds_back.as_millis()).unwrap_or(u64::MAX));
        loop {
            let holder = match &*self.store.standing().borrow() {
                Standing::Follows(holder) => holder.clone(),
                // Somebody else decides what comes then.
                Standing::Leads(_) | Standing::Ended(_) => std::future::pending().await,
            };
            if holder != known {
                listening.abort_all();
                (silence, heard, last_ms) = (LeaderSilence::new(boot_ms()), Arc::default(), 0);
                known.clone_from(&holder);
                if let Some(holder) = holder.clone().filter(|holder| !holder.address.is_empty()) {
                    tracing::info!(leader = holder.address, process = holder.words, "this state follows");
                    if holder.address == self.own_address && !holder.is_predecessor {
                        tracing::warn!(
                            process = holder.words,
                            address = holder.address,
                            "a process on another machine holds the store under the address of this state: if it still runs, give each state an address of \
                             its own (`server.advertise`)"
                        );
                    }
                    listening.spawn(listen(holder, Arc::clone(&heard), Arc::clone(&self.client)));
                }
            }
            let now_ms = boot_ms();
            let newest_ms = heard.last_ms.load(Ordering::Acquire);
            // Without an identity nothing can be heard.
            if newest_ms > last_ms || self.client.get().is_none() {
                last_ms = newest_ms;
                silence.hear(now_ms);
            }
            let sign = self.sign(holder.as_ref(), heard.is_refused.load(Ordering::Acquire));
            // Nothing is heard of a leader that there is not.
            let is_held_back = now_ms < held_back_ms && self.is_open(holder.as_ref());
            if is_held_back {
                silence.hear(now_ms);
            }
            let sign = if is_held_back { LeaderSign::None } else { sign };
            let store_silent_ms = u64::try_from(self.store.silence().as_millis()).unwrap_or(u64::MAX);
            if let Some(why) = silence.judge(sign, store_silent_ms, now_ms) {
                let number = holder.as_ref().map_or(0, |holder| holder.number);
                let dead = holder.as_ref().map_or("", |holder| &holder.address);
                let seen = self.seen_by_others(dead).await;
                match self.store.take_over(number, seen).await {
                    Ok(()) => return why,
                    Err(NotTakenOver::Late) => sleep(TICK).await,
                    Err(error @ NotTakenOver::Behind { .. }) => {
                        tracing::error!(
                            %error,
                            "this state does not lead: the etcd has lost what it had acknowledged; restore the store"
                        );
                        sleep(BEHIND_RETRY).await;
                    }
                    Err(error @ (NotTakenOver::NoAnswer(_) | NotTakenOver::DoesNotFollow)) => {
                        tracing::warn!(%error, "this state has not taken over");
                        sleep(RETRY).await;
                    }
                }
                silence.tick(boot_ms());
                continue;
            }
            sleep(TICK).await;
        }
    }

    /// Whether nobody holds the store, as far as this state can tell, or somebody whom it cannot call: at its own address it answers itself.
    fn is_open(&self, holder: Option<&FenceHolder>) -> bool {
        holder.is_none_or(|holder| ["", self.own_address.as_str()].contains(&holder.address.as_str()))
    }

    fn sign(&self, holder: Option<&FenceHolder>, is_refused: bool) -> LeaderSign {
        match holder {
            Some(holder) if holder.is_predecessor || is_refused => LeaderSign::Refused,
            _ if self.is_open(holder) => LeaderSign::Vacant,
            Some(_) | None => LeaderSign::None,
        }
    }

    /// The highest revision that other states have, of those that answer; `dead` is the address of the one that led.
    async fn seen_by_others(&self, dead: &str) -> Revision {
        let Some(client) = self.client.get() else { return Revision(0) };
        let leases: Vec<v1::LeaseRecord> = self.store.read(|state| state.leases().cloned().collect());
        let others = leases.into_iter().filter(|lease| {
            lease.lease.starts_with(STATES)
                && ![dead, self.own_address.as_str()].contains(&lease.address.as_str())
        });
        let mut asked = JoinSet::new();
        for other in others.filter(|lease| !lease.holder.is_empty()) {
            let client = client.clone();
            asked.spawn(async move { timeout(ASK_TIMEOUT, first_word(&other.address, &client, 0)).await });
        }
        let mut seen = Revision(0);
        while let Some(answer) = asked.join_next().await {
            if let Ok(Ok(Some((word, _)))) = answer {
                seen = seen.max(Revision(word.revision));
            }
        }
        seen
    }
}

/// Opens a stream to a state that says who leads, and returns its first message; `None`: it does not answer.
async fn first_word(
    address: &str,
    client: &ClientConfig,
    beat_interval_ms: u32,
) -> Option<(v1::WatchLeaderResponse, tonic::Streaming<v1::WatchLeaderResponse>)> {
    let channel = channel(address, client).ok()?;
    let mut client = MemberServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX);
    let request = v1::WatchLeaderRequest { beat_interval_ms };
    let mut stream = client.watch_leader(request).await.ok()?.into_inner();
    let word = stream.message().await.ok()??;
    Some((word, stream))
}

/// Listens to the leader, and notes when it says that it leads. Once a connection ends, its address is asked.
async fn listen(holder: FenceHolder, heard: Arc<Heard>, client: Arc<OnceLock<ClientConfig>>) {
    loop {
        if let Some(client) = client.get()
            && let Some((mut word, mut stream)) = first_word(&holder.address, client, BEAT_MS).await
        {
            loop {
                if word.leads && word.term == holder.number {
                    heard.last_ms.store(boot_ms(), Ordering::Release);
                }
                match stream.message().await {
                    Ok(Some(next)) => word = next,
                    Ok(None) | Err(_) => break,
                }
            }
        }
        // An address of the loopback may mean another machine to the leader.
        let is_its_own = heard.last_ms.load(Ordering::Acquire) > 0
            || holder.is_on_this_host
            || ServerAddress::parse(&holder.address, true).is_ok_and(|address| !address.is_local());
        let is_refused = is_its_own && is_refused(&holder.address, PROBE_TIMEOUT).await;
        heard.is_refused.store(is_refused, Ordering::Release);
        sleep(TICK).await;
    }
}
