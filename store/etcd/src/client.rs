//! A client of etcd: a thread with connections to several endpoints of one cluster.
//!
//! The thread has a runtime of its own, so that any thread may call and wait, even a thread of another runtime. A call goes to the
//! endpoint that answered last; if that endpoint fails, later calls go to the next one. A call that surely was not executed is tried again,
//! at the next endpoint and with growing pauses, until its deadline. A call that may have been executed is tried
//! again only if it changes nothing.

use std::{
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};
use tonic::{
    Response, Status,
    metadata::{AsciiMetadataValue, MetadataValue},
    transport::Channel,
};

use crate::{
    connection::{Endpoint, TlsFiles},
    error::{CallError, ClientError, Verdict, judge},
    kv::{Answer, Etcd, PendingReply, Reply, Request, Sizes},
    wire::{
        self,
        proto::etcdserverpb::{
            AuthenticateRequest, CompactionRequest, StatusRequest, auth_client::AuthClient,
            kv_client::KvClient, maintenance_client::MaintenanceClient,
        },
    },
};

/// At most this many calls wait for the thread.
const N_CALLS_MAX: usize = 256;
/// Limit on the size of an answer; the largest one is a page of 64 values of 512 KiB.
const RECEIVED_BYTES_MAX: usize = 40 << 20;
/// First pause before a call is tried again; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// At most this many tokens are fetched for one call.
const N_TOKENS_MAX: u32 = 2;

/// How etcd is called.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Endpoints of the members of one cluster, as `http://10.0.0.7:2379`.
    pub endpoints: Vec<String>,
    /// A call ends within this time.
    pub timeout: Duration,
    /// Files of TLS, which `https` endpoints need.
    pub tls: Option<TlsFiles>,
    /// The user that calls, if etcd has authentication enabled.
    pub user: Option<User>,
}

/// A user of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Name of the user.
    pub name: String,
    /// File with the password in its first line. It is read whenever a token is fetched.
    pub password_file: PathBuf,
}

/// A client. Its connections open with the first call and close with the client.
#[derive(Debug)]
pub struct Client {
    calls: mpsc::Sender<Call>,
}

struct Call {
    request: Request,
    delay: Duration,
    answer: Answer,
}

impl Client {
    /// Starts a client.
    ///
    /// # Errors
    /// An endpoint is malformed, or no thread can be started.
    pub fn start(config: &ClientConfig) -> Result<Self, ClientError> {
        let parsed = config.endpoints.iter().map(|text| Endpoint::parse(text, config.tls.as_ref()));
        let endpoints = parsed.collect::<Result<Vec<_>, _>>()?;
        if endpoints.is_empty() {
            return Err(ClientError::NoEndpoint);
        }
        let members = Members {
            channels: endpoints.iter().map(|_| tokio::sync::Mutex::default()).collect(),
            endpoints,
            current: AtomicUsize::new(0),
            timeout: config.timeout,
            user: config.user.clone(),
            token: Mutex::default(),
            cluster: OnceLock::new(),
        };
        let (calls, queue) = mpsc::channel(N_CALLS_MAX);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ClientError::Thread)?;
        std::thread::Builder::new()
            .name("etcd-client".to_owned())
            .spawn(move || runtime.block_on(run(Arc::new(members), queue)))
            .map_err(ClientError::Thread)?;
        Ok(Self { calls })
    }
}

impl Etcd for Client {
    fn call(&self, request: Request) -> Result<Reply, CallError> {
        self.start(request).wait()
    }

    fn start(&self, request: Request) -> PendingReply {
        let (answer, pending) = PendingReply::new();
        self.submit(request, Duration::ZERO, answer);
        pending
    }

    fn submit(&self, request: Request, delay: Duration, answer: Answer) {
        if let Err(refused) = self.calls.try_send(Call { request, delay, answer }) {
            let (call, why) = match refused {
                mpsc::error::TrySendError::Full(call) => (call, "too many calls wait for etcd"),
                mpsc::error::TrySendError::Closed(call) => (call, "the client of etcd has ended"),
            };
            (call.answer)(Err(CallError::NotDone(why.to_owned())));
        }
    }
}

/// Makes calls until the client is dropped, which abandons the calls in progress.
async fn run(members: Arc<Members>, mut queue: mpsc::Receiver<Call>) {
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            call = queue.recv() => {
                let Some(Call { request, delay, answer }) = call else { return };
                let members = Arc::clone(&members);
                running.spawn(async move {
                    if !delay.is_zero() {
                        sleep(delay).await;
                    }
                    answer(members.make_call(&request).await);
                });
            }
            Some(ended) = running.join_next(), if !running.is_empty() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "a call of etcd panicked");
                }
            }
        }
    }
}

/// The members of one cluster.
struct Members {
    endpoints: Vec<Endpoint>,
    /// The connection to each endpoint, or `None` while it is not open.
    channels: Vec<tokio::sync::Mutex<Option<Channel>>>,
    /// Index of the endpoint that is called.
    current: AtomicUsize,
    timeout: Duration,
    user: Option<User>,
    token: Mutex<Option<AsciiMetadataValue>>,
    /// The cluster of the first endpoint that answered.
    cluster: OnceLock<u64>,
}

impl Members {
    /// Makes a call before its deadline.
    async fn make_call(&self, request: &Request) -> Result<Reply, CallError> {
        let deadline = Instant::now() + self.timeout;
        if matches!(request, Request::Sizes) {
            return self.sizes(deadline).await.map(Reply::Sizes);
        }
        let (mut n_tries, mut n_tokens, mut pause) = (0, 0, PAUSE_MIN);
        loop {
            let at = self.current.load(Ordering::Relaxed) % self.endpoints.len();
            n_tries += 1;
            let error = match self.try_at(at, request, deadline).await {
                Ok(reply) => return Ok(reply),
                Err(Verdict::StaleToken(words)) => {
                    self.token.lock().take();
                    n_tokens += 1;
                    if n_tokens >= N_TOKENS_MAX {
                        return Err(CallError::Refused(words));
                    }
                    continue;
                }
                Err(Verdict::Answered(error @ CallError::NotDone(_))) => error,
                Err(Verdict::Answered(error)) => return Err(error),
                Err(Verdict::Broken(error)) => {
                    self.leave_endpoint(at).await;
                    // Perhaps only this member is configured wrongly.
                    if matches!(error, CallError::Refused(_)) && n_tries >= self.endpoints.len() {
                        return Err(error);
                    }
                    error
                }
            };
            if !error.is_surely_not_done() && matches!(request, Request::Txn(_)) {
                return Err(error);
            }
            if n_tries % self.endpoints.len() == 0 {
                let jittered = pause.mul_f64(rand::random_range(0.5..1.0));
                if Instant::now() + jittered >= deadline {
                    return Err(error);
                }
                sleep(jittered).await;
                pause = (2 * pause).min(PAUSE_MAX);
            }
        }
    }

    /// Closes the connection to an endpoint and moves on to the next one, unless another call has moved on already.
    async fn leave_endpoint(&self, at: usize) {
        self.channels[at].lock().await.take();
        let next = (at + 1) % self.endpoints.len();
        // Another call may have moved on already.
        let _ = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Makes a call at one endpoint.
    async fn try_at(&self, at: usize, request: &Request, deadline: Instant) -> Result<Reply, Verdict> {
        let channel = self.channel(at, deadline).await?;
        // A read leaves time to try another endpoint.
        let deadline = if matches!(request, Request::Txn(_)) {
            deadline
        } else {
            deadline.min(Instant::now() + self.timeout / 2)
        };
        let mut kv = KvClient::new(channel.clone()).max_decoding_message_size(RECEIVED_BYTES_MAX);
        let endpoint = &self.endpoints[at];
        match request {
            Request::Range(range) => {
                let request = self.request(wire::range_request(range), at, &channel, deadline).await?;
                let answered = in_time(endpoint, deadline, kv.range(request)).await?;
                Ok(Reply::Page(wire::page(answered.into_inner())))
            }
            Request::Txn(txn) => {
                let request = self.request(wire::txn_request(txn), at, &channel, deadline).await?;
                let answered = in_time(endpoint, deadline, kv.txn(request)).await?;
                Ok(Reply::Txn(wire::txn_reply(answered.into_inner())))
            }
            Request::Compact(revision) => {
                let compaction = CompactionRequest { revision: wire::signed(*revision), physical: false };
                let request = self.request(compaction, at, &channel, deadline).await?;
                in_time(endpoint, deadline, kv.compact(request)).await?;
                Ok(Reply::Compacted)
            }
            Request::Sizes => self.sizes_at(at, &channel, deadline).await.map(Reply::Sizes),
        }
    }

    /// Returns the connection to an endpoint, and opens it if necessary. A member of another cluster is refused.
    async fn channel(&self, at: usize, deadline: Instant) -> Result<Channel, Verdict> {
        let mut held = self.channels[at].lock().await;
        if let Some(channel) = &*held {
            return Ok(channel.clone());
        }
        let endpoint = &self.endpoints[at];
        let connected = timeout_at(deadline, endpoint.connect()).await;
        let connected = connected
            .unwrap_or_else(|_| Err(CallError::NotDone(format!("{endpoint}: no connection in time"))));
        let channel = connected.map_err(Verdict::Broken)?;
        let cluster = match self.sizes_at(at, &channel, deadline).await {
            Ok(sizes) => sizes.header.cluster,
            // Only the status was requested: the call itself has not been sent.
            Err(Verdict::Broken(CallError::Unknown(why)) | Verdict::Answered(CallError::Unknown(why))) => {
                return Err(Verdict::Broken(CallError::NotDone(why)));
            }
            Err(other) => return Err(other),
        };
        let known = *self.cluster.get_or_init(|| cluster);
        if known != cluster {
            return Err(Verdict::Broken(CallError::Refused(format!(
                "{endpoint} belongs to the etcd cluster {cluster:x}, other endpoints to {known:x}: name endpoints of \
                 one cluster only"
            ))));
        }
        *held = Some(channel.clone());
        Ok(channel)
    }

    /// Returns the largest sizes among the members that answer.
    async fn sizes(&self, deadline: Instant) -> Result<Sizes, CallError> {
        let (mut all, mut failed) = (None::<Sizes>, None);
        for at in 0..self.endpoints.len() {
            let channel = self.channel(at, deadline).await;
            let sizes = match channel {
                Ok(channel) => self.sizes_at(at, &channel, deadline).await,
                Err(verdict) => Err(verdict),
            };
            match sizes {
                Ok(sizes) => {
                    let of_others = all.take().unwrap_or_default();
                    all = Some(Sizes {
                        header: if sizes.header.revision >= of_others.header.revision {
                            sizes.header
                        } else {
                            of_others.header
                        },
                        db_bytes: sizes.db_bytes.max(of_others.db_bytes),
                        in_use_bytes: sizes.in_use_bytes.max(of_others.in_use_bytes),
                        has_no_space: sizes.has_no_space || of_others.has_no_space,
                    });
                }
                Err(Verdict::StaleToken(words)) => failed = Some(CallError::NotDone(words)),
                Err(Verdict::Answered(error)) => failed = Some(error),
                Err(Verdict::Broken(error)) => {
                    // A member of another cluster is a mistake, not an outage.
                    if matches!(error, CallError::Refused(_)) {
                        return Err(error);
                    }
                    self.channels[at].lock().await.take();
                    failed = Some(error);
                }
            }
        }
        let no_answer = || CallError::NotDone("no endpoint of etcd answers".to_owned());
        all.ok_or_else(|| failed.unwrap_or_else(no_answer))
    }

    async fn sizes_at(&self, at: usize, channel: &Channel, deadline: Instant) -> Result<Sizes, Verdict> {
        let deadline = deadline.min(Instant::now() + self.timeout / 2);
        // etcd requires no token for this call, so that it works before a token is fetched.
        let mut client = MaintenanceClient::new(channel.clone());
        let answered = in_time(&self.endpoints[at], deadline, client.status(StatusRequest {})).await?;
        Ok(wire::sizes(&answered.into_inner()))
    }

    /// Wraps a message with the metadata of every request: the token, the condition that the member has a leader, and the deadline.
    async fn request<T>(
        &self,
        message: T,
        at: usize,
        channel: &Channel,
        deadline: Instant,
    ) -> Result<tonic::Request<T>, Verdict> {
        let token = self.token(at, channel, deadline).await?;
        let mut request = tonic::Request::new(message);
        request.set_timeout(deadline.saturating_duration_since(Instant::now()));
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = token {
            request.metadata_mut().insert("token", token);
        }
        Ok(request)
    }

    /// Returns the token of the user, if there is a user, and fetches it if necessary.
    async fn token(
        &self,
        at: usize,
        channel: &Channel,
        deadline: Instant,
    ) -> Result<Option<AsciiMetadataValue>, Verdict> {
        let Some(user) = &self.user else { return Ok(None) };
        if let Some(token) = &*self.token.lock() {
            return Ok(Some(token.clone()));
        }
        let refused = |words: String| Verdict::Answered(CallError::Refused(words));
        let read = std::fs::read_to_string(&user.password_file);
        let text = read.map_err(|error| {
            refused(format!("reading the password of etcd in {}: {error}", user.password_file.display()))
        })?;
        let password = text.lines().next().unwrap_or_default().to_owned();
        let request = AuthenticateRequest { name: user.name.clone(), password };
        let mut client = AuthClient::new(channel.clone());
        let answered = in_time(&self.endpoints[at], deadline, client.authenticate(request)).await;
        let answered = answered.map_err(|verdict| match verdict {
            // The call itself has not been sent.
            Verdict::Broken(CallError::Unknown(why)) => Verdict::Broken(CallError::NotDone(why)),
            other => other,
        })?;
        let token: AsciiMetadataValue = answered
            .into_inner()
            .token
            .parse()
            .map_err(|_| refused("the token of etcd is no text".to_owned()))?;
        *self.token.lock() = Some(token.clone());
        Ok(Some(token))
    }
}

/// Waits for the answer of a member until the deadline.
async fn in_time<T>(
    endpoint: &Endpoint,
    deadline: Instant,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<Response<T>, Verdict> {
    match timeout_at(deadline, call).await {
        Ok(answered) => answered.map_err(|status| judge(&endpoint.to_string(), &status)),
        Err(_) => Err(Verdict::Broken(CallError::Unknown(format!("{endpoint}: no answer in time")))),
    }
}
