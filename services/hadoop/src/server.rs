//! The server: connections, what each of them may take, and how long each may take.
//!
//! One task per connection reads, calls and answers. What is read is bounded by [`Limits`], over all connections too: what has
//! arrived of a message takes room, and not what was announced, and a connection takes no more of it than is free
//! ([`godel_kit::room`]). A connection with as many calls as it may have is not read from. When there are too many
//! connections, idle ones make room for new ones ([`godel_kit::guests`]).

use std::{collections::BTreeMap, io, net::SocketAddr, os::fd::AsRawFd as _, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use godel_kit::{
    CancellationToken,
    guests::{Guest, Guests},
    quiet::Quiet,
    room::{Room, Share, Taken},
    task::TaskTracker,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::{Instant, timeout, timeout_at},
};

use crate::{
    Exception, Protocol,
    common::rpc_response_header_proto::{RpcErrorCodeProto, RpcStatusProto},
    exception,
    frame::{self, LEN_LEN, PREAMBLE_LEN},
    session::{Call, FatalCall, HadoopSession, Step},
    token::Password,
};

/// Between two attempts to accept a connection when the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Bytes of a message before its client is known.
const HANDSHAKE_BYTES_MAX: usize = 64 << 10;
/// Bytes that are read at once at least: most messages are shorter, and are read by one call of the system.
const READ_BYTES: usize = 1024;

/// The passwords of the tokens that a server accepts.
pub trait Passwords: std::fmt::Debug + Send + Sync {
    /// The password of a token with this identifier.
    ///
    /// # Errors
    /// There is no such token; the client is told why.
    fn password(&self, identifier: &[u8]) -> Result<Password, Exception>;

    /// Hears that a client at `address` has shown a token with this identifier, which does not count, or without its password.
    fn note_refused(&self, identifier: &[u8], address: SocketAddr) {
        let _ = (identifier, address);
    }
}

/// How clients show who they are.
#[derive(Clone, Debug)]
pub enum Authentication {
    /// They say which user they are of, and are believed.
    Simple,
    /// They have a token.
    Token(Arc<dyn Passwords>),
    /// Either.
    TokenOrSimple(Arc<dyn Passwords>),
}

/// What clients may take of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections; of more, one without a call in hand is closed for each new one.
    pub connections: usize,
    /// Calls of one connection at the same time; it is not read from while it has so many.
    pub calls_per_connection: usize,
    /// Bytes of one message.
    pub message_bytes: usize,
    /// Bytes of messages that are being read or worked on, over all connections; at least twice `message_bytes`, since one
    /// connection gets at most half of them.
    pub all_messages_bytes: usize,
    /// From the first byte of a connection until its client is known.
    pub handshake: Duration,
    /// From the first byte of a message to its last, and for an answer to be taken.
    pub message: Duration,
    /// Without a message and a call.
    pub idle: Duration,
    /// For a method to answer.
    pub call: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4_096,
            calls_per_connection: 16,
            message_bytes: 8 << 20,
            all_messages_bytes: 64 << 20,
            handshake: Duration::from_secs(15),
            message: Duration::from_secs(30),
            idle: Duration::from_secs(300),
            call: Duration::from_secs(60),
        }
    }
}

/// A server of protocols. See the [crate's documentation](crate).
#[derive(Clone, Debug)]
pub struct Server {
    protocols: BTreeMap<&'static str, Protocol>,
    authentication: Authentication,
    limits: Limits,
}

/// What the connections of a server share.
struct Shared {
    server: Server,
    /// For messages.
    room: Arc<Room>,
}

impl Server {
    /// A server without protocols.
    pub fn new(authentication: Authentication) -> Self {
        Self { protocols: BTreeMap::new(), authentication, limits: Limits::default() }
    }

    /// Serves one protocol more.
    #[must_use]
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocols.insert(protocol.name, protocol);
        self
    }

    /// Sets what clients may take.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Serves until `stop`; then each connection ends once its calls are answered.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) {
        let guests = Guests::new(self.limits.connections);
        let tasks = TaskTracker::new();
        let room = self.limits.all_messages_bytes.max(self.limits.message_bytes.saturating_mul(2));
        let shared = Arc::new(Shared { server: self, room: Room::with_reserve(room) });
        let full_said = Quiet::default();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = stop.cancelled() => break,
            };
            match accepted {
                Ok((stream, address)) => {
                    let Some(guest) = guests.admit(stream.as_raw_fd()) else {
                        if full_said.may_speak() {
                            tracing::warn!(
                                "a Hadoop client was refused: there are as many connections as there may be, and each \
                                 has a call in hand"
                            );
                        }
                        continue;
                    };
                    let (shared, stop) = (Arc::clone(&shared), stop.clone());
                    let token = tasks.token();
                    godel_kit::task::spawn("hadoop.connection", async move {
                        let leave = guest.leave();
                        let ended =
                            leave.run_until_cancelled(shared.connection(stream, address, &guest, stop));
                        let ended = ended.await.unwrap_or(Ended::Evicted);
                        tracing::debug!(%address, ?ended, "a connection of a Hadoop client has ended");
                        drop((guest, token));
                    });
                }
                Err(error) => {
                    guests.make_room();
                    if full_said.may_speak() {
                        tracing::warn!(%error, "a connection of a Hadoop client cannot be accepted");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        tasks.close();
        let _all = timeout(shared.server.limits.call, tasks.wait()).await;
    }
}

/// Why a connection ended.
#[derive(Debug)]
enum Ended {
    ByClient,
    ByServer,
    OtherProtocol,
    Refused,
    TooSlow,
    /// Others needed its place.
    Evicted,
    Io(#[expect(dead_code, reason = "it is logged")] io::Error),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A call that was answered.
struct AnsweredCall(Bytes);

impl Shared {
    async fn connection(
        self: Arc<Self>,
        mut stream: TcpStream,
        address: SocketAddr,
        guest: &Guest,
        stop: CancellationToken,
    ) -> Ended {
        let ended = self.talk(&mut stream, address, guest, &stop).await;
        let ended = ended.err().unwrap_or(Ended::ByServer);
        // What was answered last is still on its way.
        let _closed = timeout(self.server.limits.message, stream.shutdown()).await;
        ended
    }

    async fn talk(
        &self,
        stream: &mut TcpStream,
        address: SocketAddr,
        guest: &Guest,
        stop: &CancellationToken,
    ) -> Result<(), Ended> {
        let Limits { calls_per_connection, message_bytes, handshake, message, idle, .. } = self.server.limits;
        stream.set_nodelay(true)?;
        let handshake_ends = Instant::now() + handshake;
        let nonce = uuid::Uuid::new_v4().simple().to_string();
        let mut session = HadoopSession::new(self.server.authentication.clone(), address, nonce);
        let share = self.room.share();
        let mut reader = CallReader::new(share.clone());
        let mut calls = FuturesUnordered::new();
        let (mut input, mut output) = stream.split();

        self.open(&mut session, &mut input, &mut output, guest, handshake_ends).await?;
        let mut last_at = Instant::now();
        loop {
            let is_open = session.is_open();
            let limit = if is_open { message_bytes } else { message_bytes.min(HANDSHAKE_BYTES_MAX) };
            // A client that waits for an answer needs to say nothing.
            let silent_until = calls.is_empty().then_some(last_at + idle);
            let reads = calls.len() < calls_per_connection && !stop.is_cancelled();
            let frame = tokio::select! {
                biased;
                Some(AnsweredCall(answer)) = calls.next(), if !calls.is_empty() => {
                    let _unread = share.take_anyway(answer.len());
                    self.write(&mut output, &answer).await?;
                    guest.answered();
                    last_at = Instant::now();
                    continue;
                }
                frame = reader.next(&mut input, limit, silent_until, message), if reads => frame?,
                () = stop.cancelled(), if reads => continue,
                () = tokio::time::sleep_until(handshake_ends), if !is_open => return Err(Ended::TooSlow),
                else => return Ok(()),
            };
            last_at = Instant::now();
            let (frame, room) = match frame {
                CallFrame::Whole(frame, room) => (frame, room),
                CallFrame::End => return Err(Ended::ByClient),
                CallFrame::TooLong(len) => {
                    self.write(&mut output, &too_long(len, limit)).await?;
                    return Err(Ended::Refused);
                }
            };
            match session.on_frame(frame) {
                Ok(Step::Wait) => {}
                Ok(Step::Reply(answer)) => self.write(&mut output, &answer).await?,
                Ok(Step::Call(call)) => {
                    let in_hand = guest.call();
                    calls.push(async move {
                        let answered = self.call(call, room).await;
                        drop(in_hand);
                        answered
                    });
                }
                Ok(Step::Close) => return Err(Ended::ByClient),
                Err(FatalCall(answer)) => {
                    self.write(&mut output, &answer).await?;
                    return Err(Ended::Refused);
                }
            }
        }
    }

    /// Reads the first bytes of a connection.
    async fn open(
        &self,
        session: &mut HadoopSession,
        input: &mut (impl AsyncRead + Unpin),
        output: &mut (impl AsyncWrite + Unpin),
        guest: &Guest,
        until: Instant,
    ) -> Result<(), Ended> {
        let mut preamble = [0; PREAMBLE_LEN];
        timeout_at(until, input.read_exact(&mut preamble)).await.map_err(|_| Ended::TooSlow)??;
        guest.spoke();
        match session.on_preamble(preamble) {
            Ok(()) => Ok(()),
            Err(None) => Err(Ended::OtherProtocol),
            Err(Some(FatalCall(answer))) => {
                self.write(output, &answer).await?;
                Err(Ended::Refused)
            }
        }
    }

    async fn call(&self, call: Call, room: Taken) -> AnsweredCall {
        let Call { head, caller, method, protocol, version, body } = call;
        let answer = match self.find(&protocol, version, &method) {
            Ok(run) => match timeout(self.server.limits.call, run(caller, body)).await {
                Ok(answer) => answer.map_err(|exception| (RpcErrorCodeProto::ErrorApplication, exception)),
                Err(_) => {
                    let message = format!("{method} has not answered in time: its outcome is not known");
                    Err((RpcErrorCodeProto::ErrorRpcServer, Exception::new(exception::IO, message)))
                }
            },
            Err(refused) => Err(refused),
        };
        drop(room);
        AnsweredCall(match answer {
            Ok(body) => frame::success(&head, &body),
            Err((code, exception)) => frame::failure(&head, RpcStatusProto::Error, code, &exception),
        })
    }

    fn find(
        &self,
        protocol: &str,
        version: u64,
        method: &str,
    ) -> Result<&crate::protocol::Method, (RpcErrorCodeProto, Exception)> {
        let refused = |code, class: &'static str, message| Err((code, Exception::new(class, message)));
        let Some(found) = self.server.protocols.get(protocol) else {
            let served: Vec<&str> = self.server.protocols.keys().copied().collect();
            let message = format!("the protocol {protocol} is not served here, but {}", served.join(", "));
            let class = "org.apache.hadoop.ipc.RpcNoSuchProtocolException";
            return refused(RpcErrorCodeProto::ErrorNoSuchProtocol, class, message);
        };
        if found.version != version {
            let message = format!("{protocol} is served in version {}, and not {version}", found.version);
            let class = "org.apache.hadoop.ipc.RPC$VersionMismatch";
            return refused(RpcErrorCodeProto::ErrorRpcVersionMismatch, class, message);
        }
        match found.find(method) {
            Some(method) => Ok(method),
            None => {
                let message = format!("{protocol} has no method {method} here");
                let class = "org.apache.hadoop.ipc.RpcNoSuchMethodException";
                refused(RpcErrorCodeProto::ErrorNoSuchMethod, class, message)
            }
        }
    }

    async fn write(&self, output: &mut (impl AsyncWrite + Unpin), answer: &[u8]) -> Result<(), Ended> {
        timeout(self.server.limits.message, output.write_all(answer)).await.map_err(|_| Ended::TooSlow)??;
        Ok(())
    }
}

fn too_long(len: usize, limit: usize) -> Bytes {
    let message = format!("a message of {len} bytes is longer than the {limit} that are taken here");
    let (status, code) = (RpcStatusProto::Fatal, RpcErrorCodeProto::FatalInvalidRpcHeader);
    frame::failure(&frame::Head::none(), status, code, &Exception::new(exception::BAD_REQUEST, message))
}

/// What came of reading.
enum CallFrame {
    /// A message without its length, and the room that it takes.
    Whole(Bytes, Taken),
    /// The client closed the connection.
    End,
    /// A message of so many bytes was announced.
    TooLong(usize),
}

/// Reads messages. What was read of one is kept when reading is given up for something else.
struct CallReader {
    buffer: BytesMut,
    share: Share,
    /// Room for what is in the buffer.
    taken: Taken,
    /// Bytes that have arrived and have no room yet: nothing more is read before they do.
    n_waiting: usize,
    /// When the first byte of it came.
    began: Option<Instant>,
}

impl CallReader {
    fn new(share: Share) -> Self {
        let taken = share.take_anyway(0);
        Self { buffer: BytesMut::new(), share, taken, n_waiting: 0, began: None }
    }

    /// Reads the next message: of `limit` bytes at most, begun by `silent_until`, if there is such a time, and whole once `message` has
    /// passed since its first byte.
    async fn next(
        &mut self,
        input: &mut (impl AsyncRead + Unpin),
        limit: usize,
        silent_until: Option<Instant>,
        message: Duration,
    ) -> Result<CallFrame, Ended> {
        loop {
            if self.n_waiting > 0 {
                let taken = self.share.take(self.n_waiting).await;
                self.n_waiting = 0;
                self.taken.merge(taken);
                // The wait for room is no fault of the client.
                self.began = Some(Instant::now());
            }
            if let Some(length) = self.buffer.first_chunk::<LEN_LEN>() {
                let len = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
                if len > limit {
                    return Ok(CallFrame::TooLong(len));
                }
                if self.buffer.len() >= LEN_LEN + len {
                    let frame = self.buffer.split_to(LEN_LEN + len).freeze().slice(LEN_LEN..);
                    let taken = self.taken.split(LEN_LEN + len);
                    self.began = (!self.buffer.is_empty()).then(Instant::now);
                    return Ok(CallFrame::Whole(frame, taken));
                }
            }
            self.buffer.reserve(READ_BYTES);
            let until = self.began.map(|began| began + message).or(silent_until);
            let read = input.read_buf(&mut self.buffer);
            let n_read = match until {
                Some(until) => timeout_at(until, read).await.map_err(|_| Ended::TooSlow)??,
                None => read.await?,
            };
            if n_read == 0 {
                return Ok(CallFrame::End);
            }
            match self.share.try_take(n_read) {
                Some(taken) => self.taken.merge(taken),
                None => self.n_waiting = n_read,
            }
            self.began.get_or_insert_with(Instant::now);
        }
    }
}
