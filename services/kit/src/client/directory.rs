//! Who leads what: asked from state, kept, and corrected by NOT_LEADER answers.

use std::{collections::HashMap, sync::Arc, time::Duration};

use godel_base::ids::Epoch;
use godel_proto::v1::{self, member_service_client::MemberServiceClient};
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::{Code, Status};

use super::{
    BadAddress, Channel, KnownChannels, LazyConnection, RetryPolicy, Selection, channel_to, retry,
    retry_idempotent, state_connection, with_deadlines,
};
use crate::{
    config::ClientConfig,
    message::RECEIVED_BYTES_MAX,
    security::{ExpectedServer, expected_holder, expected_scheduler},
    status,
};

/// The present holder of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Where it serves.
    pub address: String,
    /// Its epoch; 0 when known from a NOT_LEADER answer only.
    pub epoch: Epoch,
}

/// A call of a leader that failed.
#[derive(Debug)]
pub struct FailedCall {
    /// Whose answer it is, or who did not answer; `None`: state could not say who leads, or nobody does.
    pub leader: Option<String>,
    /// How.
    pub status: Status,
}

/// Finds leaders by their lease names, or leaves that to state ([`Directory::through_state`]). Cheap to clone.
#[derive(Clone)]
pub struct Directory {
    inner: Arc<DirectoryInner>,
}

struct DirectoryInner {
    config: ClientConfig,
    state: LazyConnection,
    /// Every call goes to state, which forwards it.
    is_through_state: bool,
    /// Leaders by lease name.
    leaders: Mutex<HashMap<String, Leader>>,
    /// One channel for each server at an address: connections are shared.
    channels: KnownChannels<Channel>,
}

/// Channels kept at most; a directory that meets more addresses starts anew.
const N_CHANNELS_MAX: usize = 1024;

impl Directory {
    /// Over the state service named in `config`; calls leaders directly, which costs state nothing.
    ///
    /// # Errors
    /// Its address is malformed.
    pub fn new(config: &ClientConfig) -> Result<Self, BadAddress> {
        Self::with(config, false)
    }

    /// Over the state service named in `config`, which forwards every call: for those who may not reach anybody else.
    ///
    /// # Errors
    /// Its address is malformed.
    pub fn through_state(config: &ClientConfig) -> Result<Self, BadAddress> {
        Self::with(config, true)
    }

    fn with(config: &ClientConfig, is_through_state: bool) -> Result<Self, BadAddress> {
        // Whoever may reach nobody else is a person, whose command need not follow who leads.
        let selection = if is_through_state { Selection::Ask } else { Selection::Follow };
        let state = state_connection(&config.state, config, selection)?;
        let inner = DirectoryInner {
            config: config.clone(),
            state,
            is_through_state,
            leaders: Mutex::new(HashMap::new()),
            channels: KnownChannels::new(N_CHANNELS_MAX, config.security.clone()),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The channel to the state service.
    pub fn state(&self) -> Channel {
        with_deadlines(self.inner.state.clone(), &self.inner.config, None)
    }

    /// The channel to a scheduler: to its address, or to state, which forwards to the scheduler of that name.
    ///
    /// # Errors
    /// The address is malformed, or the name cannot be that of a scheduler.
    pub fn scheduler(&self, name: &str, address: &str) -> Result<Channel, BadAddress> {
        if !self.inner.is_through_state {
            return self.channel(&expected_scheduler(name), address);
        }
        let name = name.parse().map_err(|_| BadAddress::Malformed(name.to_owned()))?;
        Ok(with_deadlines(self.inner.state.clone(), &self.inner.config, Some(name)))
    }

    /// The channel to the holder of a lease, or to state, which forwards to it.
    ///
    /// # Errors
    /// Its address is malformed, or asks for something that this client does not speak.
    pub fn leader_channel(&self, lease: &str, leader: &Leader) -> Result<Channel, BadAddress> {
        if self.inner.is_through_state {
            return Ok(self.state());
        }
        self.channel(&expected_holder(lease), &leader.address)
    }

    /// Calls the holder of `lease` once: for streams, which their callers open again.
    ///
    /// # Errors
    /// Who failed, and how.
    pub async fn call_once<T>(
        &self,
        lease: &str,
        op: impl AsyncFnOnce(Channel) -> Result<T, Status>,
    ) -> Result<T, FailedCall> {
        let leader = self.leader(lease).await.map_err(|status| FailedCall { leader: None, status })?;
        let channel =
            self.leader_channel(lease, &leader).map_err(|bad| self.failed_call(&leader, bad.into()))?;
        op(channel).await.map_err(|status| {
            self.failed(lease, &leader, &status);
            self.failed_call(&leader, status)
        })
    }

    fn failed_call(&self, leader: &Leader, status: Status) -> FailedCall {
        let leader = match self.inner.is_through_state {
            true => status::unreachable_member(&status),
            false => Some(leader.address.clone()),
        };
        FailedCall { leader, status }
    }

    /// The configuration it was made with.
    pub fn config(&self) -> &ClientConfig {
        &self.inner.config
    }

    /// Bounds of retried calls, from the configuration.
    pub fn policy(&self) -> RetryPolicy {
        RetryPolicy::from(&self.inner.config)
    }

    /// The shared channel to a server at an address.
    ///
    /// # Errors
    /// The address is malformed, or asks for something that this client does not speak.
    pub fn channel(&self, expected: &ExpectedServer, address: &str) -> Result<Channel, BadAddress> {
        let open = || channel_to(expected, address, &self.inner.config);
        self.inner.channels.get_or_open(expected, address, open)
    }

    /// Leases in force and the last holders of others whose name starts with `prefix`.
    ///
    /// # Errors
    /// State does not answer within the retry bounds.
    pub async fn members(&self, prefix: &str) -> Result<Vec<v1::Member>, Status> {
        retry_idempotent(&self.policy(), || self.members_once(prefix)).await
    }

    /// Checks with state, who alone judges leases, that `epoch` of `lease` is in force now.
    ///
    /// # Errors
    /// STALE_EPOCH when it is not, or what state answered.
    pub async fn check_lease(&self, lease: &str, epoch: Epoch) -> Result<(), Status> {
        let members = self.members(lease).await?;
        let is_holder = |member: &v1::Member| {
            member.lease == lease && !member.holder.is_empty() && member.epoch == epoch.0
        };
        if members.iter().any(is_holder) { Ok(()) } else { Err(status::stale_epoch(lease, epoch.0)) }
    }

    async fn members_once(&self, prefix: &str) -> Result<Vec<v1::Member>, Status> {
        let request = v1::ListMembersRequest { prefix: prefix.to_owned() };
        let mut client = MemberServiceClient::new(self.state()).max_decoding_message_size(RECEIVED_BYTES_MAX);
        Ok(client.list_members(request).await?.into_inner().members)
    }

    /// Who holds `lease` now: as known, else as state says.
    ///
    /// # Errors
    /// UNAVAILABLE when nobody holds it, or what state answered.
    pub async fn leader(&self, lease: &str) -> Result<Leader, Status> {
        if self.inner.is_through_state {
            return Ok(Leader { address: self.inner.config.state.clone(), epoch: Epoch(0) });
        }
        if let Some(known) = self.inner.leaders.lock().get(lease) {
            return Ok(known.clone());
        }
        self.look_up(lease).await?.ok_or_else(|| Status::unavailable(format!("nobody holds lease {lease}")))
    }

    /// Asks state who holds `lease`, and remembers it.
    async fn look_up(&self, lease: &str) -> Result<Option<Leader>, Status> {
        let members = self.members_once(lease).await?;
        let holder = members.into_iter().find(|member| member.lease == lease && !member.holder.is_empty());
        let leader = holder.map(|member| Leader { address: member.address, epoch: Epoch(member.epoch) });
        let mut leaders = self.inner.leaders.lock();
        match &leader {
            Some(leader) => leaders.insert(lease.to_owned(), leader.clone()),
            None => leaders.remove(lease),
        };
        Ok(leader)
    }

    /// Learns from a failed call to `leader`: the next look-up goes to the address that a NOT_LEADER answer
    /// named, or to state.
    pub fn failed(&self, lease: &str, leader: &Leader, status: &Status) {
        let is_away = status.code() == Code::Unavailable || status.code() == Code::DeadlineExceeded;
        if !is_away || self.inner.is_through_state {
            return;
        }
        let mut leaders = self.inner.leaders.lock();
        // Somebody else may have learnt better meanwhile.
        if leaders.get(lease) != Some(leader) {
            return;
        }
        match status::leader_of(status).filter(|address| *address != leader.address) {
            Some(address) => leaders.insert(lease.to_owned(), Leader { address, epoch: Epoch(0) }),
            None => leaders.remove(lease),
        };
    }

    /// Calls the holder of `lease`, within the retry bounds; each try goes to whoever leads then.
    ///
    /// # Errors
    /// A status that is not retryable, or the last one.
    pub async fn call_leader<T, F, Fut>(&self, lease: &str, op: F) -> Result<T, Status>
    where
        F: FnMut(Channel) -> Fut,
        Fut: Future<Output = Result<T, Status>>,
    {
        self.call_leader_named(lease, op).await.map_err(|failed| failed.status)
    }

    /// The same, and says who it was that failed.
    ///
    /// # Errors
    /// A status that is not retryable, or the last one.
    pub async fn call_leader_named<T, F, Fut>(&self, lease: &str, op: F) -> Result<T, FailedCall>
    where
        F: FnMut(Channel) -> Fut,
        Fut: Future<Output = Result<T, Status>>,
    {
        // `retry` cannot lend `op` to several tries at once, so each try takes it from here.
        let op = Mutex::new(op);
        // Who was called last; `None`: state was, to find out whom to call.
        let called = Mutex::new(None);
        let answer = retry(&self.policy(), || async {
            *called.lock() = None;
            let leader = self.leader(lease).await?;
            *called.lock() = Some(leader.clone());
            let call = (op.lock())(self.leader_channel(lease, &leader)?);
            let answer = call.await;
            if let Err(status) = &answer {
                self.failed(lease, &leader, status);
            }
            answer
        })
        .await;
        answer.map_err(|status| match called.into_inner() {
            Some(leader) => self.failed_call(&leader, status),
            None => FailedCall { leader: None, status },
        })
    }

    /// The holder of `lease` as it changes, looked up every `directory_interval`; ends when nobody listens.
    pub fn follow(&self, lease: &str) -> watch::Receiver<Option<Leader>> {
        let (sender, receiver) = watch::channel(None);
        let (directory, lease) = (self.clone(), lease.to_owned());
        crate::task::spawn("directory", async move {
            let interval = *directory.inner.config.directory_interval;
            loop {
                // While state does not answer, the last holder known is the best guess.
                if let Ok(leader) = directory.look_up(&lease).await {
                    sender.send_if_modified(|known| std::mem::replace(known, leader.clone()) != leader);
                }
                tokio::select! {
                    () = sender.closed() => return,
                    () = tokio::time::sleep(jittered(interval)) => {}
                }
            }
        });
        receiver
    }
}

impl std::fmt::Debug for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Directory").field("state", &self.inner.config.state).finish_non_exhaustive()
    }
}

/// `duration` give or take a tenth.
pub(crate) fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(0.9 + 0.2 * rand::random::<f64>())
}
