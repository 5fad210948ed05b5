//! The listener of `/metrics` and of other pages: so many connections and no more, whatever strangers open.

use std::{
    io,
    net::SocketAddr,
    os::fd::AsRawFd as _,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpListener,
    time::Sleep,
};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::opening::{GuestTransport, PageSecurity};
use crate::{
    guests::{Guest, Guests},
    quiet::Quiet,
    room::{Room, Taken},
    security::ServerSecurity,
    tls::{ByteStream, TlsSocket},
};

/// Connections to metrics that are kept.
const N_MAX: usize = 64;
/// A connection that takes nothing of an answer for so long is cut.
const WRITE_WITHIN: Duration = Duration::from_secs(30);
/// Pause after an accept that failed.
const FAILED_PAUSE: Duration = Duration::from_millis(100);

/// A listener that accepts connections, each of which pushes out an idle one when there are too many.
#[derive(Debug)]
pub struct Few {
    listener: TcpListener,
    guests: Arc<Guests>,
    failed: Quiet,
    pages: PageSecurity,
    write_within: Duration,
}

impl Few {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self::at_most(listener, N_MAX)
    }

    /// Keeps at most `n_max` connections.
    pub fn at_most(listener: TcpListener, n_max: usize) -> Self {
        let (failed, pages) = (Quiet::default(), PageSecurity::default());
        Self { listener, guests: Guests::new(n_max), failed, pages, write_within: WRITE_WITHIN }
    }

    /// Speaks what `security` says. Who calls is the handlers' to judge ([`GuestTransport`]).
    #[must_use]
    pub fn secured(mut self, security: &ServerSecurity) -> Self {
        self.pages.security = security.clone();
        self
    }

    /// Serves callers on this machine in plain text too.
    #[must_use]
    pub fn with_plain_text_on_loopback(mut self) -> Self {
        self.pages.is_plain_on_loopback = true;
        self
    }
}

impl axum::serve::Listener for Few {
    type Io = Cuttable;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Cuttable, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    // None of them counts as one with a call in hand: one always makes room.
                    let Some(guest) = self.guests.admit(stream.as_raw_fd()) else { continue };
                    let cut = Box::pin(guest.leave().cancelled_owned());
                    let transport = GuestTransport::default();
                    let stream = if self.pages.is_plain_text() {
                        GuestStream::Open(ByteStream::Tcp(stream))
                    } else {
                        GuestStream::Opening(Box::pin(self.pages.clone().open(stream, transport.clone())))
                    };
                    let io = Cuttable {
                        stream,
                        transport,
                        guest,
                        cut,
                        is_cut: false,
                        n_written: 0,
                        write_within: self.write_within,
                        write_by: None,
                    };
                    return (io, address);
                }
                Err(error) => {
                    self.guests.make_room();
                    if self.failed.may_speak() {
                        tracing::warn!(%error, "cannot accept connections");
                    }
                    tokio::time::sleep(FAILED_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// The body of an answer, with the room that it takes until it was written.
struct HeldConnection {
    body: Body,
    _taken: Taken,
}

/// Has an answer that was made whole hold room until it was written, or its connection has gone; `None`: there is none. Each
/// answer counts for itself, since a connection has one at a time.
pub fn hold(body: Body, room: &Arc<Room>) -> Option<Body> {
    let bytes = body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
    let taken = room.share().try_take(bytes)?;
    Some(Body::new(HeldConnection { body, _taken: taken }))
}

impl HttpBody for HeldConnection {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    /// Not before it was asked for more: only then has what it gave been written.
    fn is_end_stream(&self) -> bool {
        false
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection, which makes its handshake when it is first read from: in its own task, and nobody else waits for it.
enum GuestStream {
    Opening(Pin<Box<dyn Future<Output = io::Result<ByteStream>> + Send>>),
    Open(ByteStream),
    Failed,
}

impl GuestStream {
    /// The stream, once it is open.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut ByteStream>>> {
        if let Self::Opening(opening) = self {
            let opened = ready!(opening.as_mut().poll(cx));
            *self = Self::Failed;
            *self = Self::Open(opened?);
        }
        match self {
            Self::Open(stream) => Poll::Ready(Ok(Pin::new(stream))),
            Self::Opening(_) | Self::Failed => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl std::fmt::Debug for GuestStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Opening(_) => "Opening",
            Self::Open(_) => "Open",
            Self::Failed => "Failed",
        })
    }
}

/// A connection that fails once it is cut.
#[derive(Debug)]
pub struct Cuttable {
    stream: GuestStream,
    transport: GuestTransport,
    guest: Guest,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    is_cut: bool,
    /// Bytes that the other side had taken when it was looked at last, below TLS: there an answer may have been written and not sent.
    n_written: u64,
    write_within: Duration,
    /// While the other side takes nothing.
    write_by: Option<Pin<Box<Sleep>>>,
}

impl Cuttable {
    /// How it came.
    pub(super) fn transport(&self) -> &GuestTransport {
        &self.transport
    }

    /// Fails once the connection is cut, also where it waits for nothing but room to write.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.is_cut || self.cut.as_mut().poll(cx).is_ready() {
            self.is_cut = true;
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "too many connections"));
        }
        Ok(())
    }

    /// Writes, flushes or closes by `act`; fails if the other side has taken nothing for too long.
    fn poll_in_time<T>(
        &mut self,
        cx: &mut Context<'_>,
        act: impl FnOnce(Pin<&mut ByteStream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        self.check(cx)?;
        let mut stream = ready!(self.stream.poll_open(cx))?;
        let acted = act(stream.as_mut(), cx);
        let n_written = stream.below_tls().map(TlsSocket::n_written);
        let is_taken = match n_written {
            Some(n_written) => std::mem::replace(&mut self.n_written, n_written) != n_written,
            None => acted.is_ready(),
        };
        if is_taken {
            self.write_by = None;
        }
        if acted.is_pending() {
            let within = self.write_within;
            let write_by = self.write_by.get_or_insert_with(|| Box::pin(tokio::time::sleep(within)));
            if write_by.as_mut().poll(cx).is_ready() {
                self.is_cut = true;
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the answer is not read")));
            }
        }
        acted
    }
}

impl AsyncRead for Cuttable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let n_before = buf.filled().len();
        let stream = ready!(self.stream.poll_open(cx))?;
        let read = stream.poll_read(cx, buf);
        if buf.filled().len() > n_before {
            self.guest.spoke();
        }
        read
    }
}

impl AsyncWrite for Cuttable {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.poll_in_time(cx, |stream, cx| stream.poll_write(cx, buf));
        if let Poll::Ready(Ok(1..)) = &written {
            self.guest.answered();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.poll_in_time(cx, |stream, cx| stream.poll_flush(cx));
        if flushed.is_ready() {
            self.write_by = None;
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_in_time(cx, |stream, cx| stream.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use axum::{Router, routing::get};
    use rustls::pki_types::ServerName;
    use tokio::{io::AsyncWriteExt as _, net::TcpSocket};
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::{
        security::{ExpectedServer, Role, tests::TestCluster},
        tests::fake::eventually,
        tls::HttpVersion,
    };

    /// A socket for which the kernel keeps little.
    fn narrow_socket() -> TcpSocket {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_send_buffer_size(4_096).unwrap();
        socket.set_recv_buffer_size(4_096).unwrap();
        socket
    }

    #[tokio::test]
    async fn whoever_reads_nothing_is_cut_also_where_tls_holds_the_rest() {
        let cluster = TestCluster::new();
        let socket = narrow_socket();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(8).unwrap();
        let address = listener.local_addr().unwrap();
        let mut few = Few::at_most(listener, 8).secured(&cluster.server("state/main"));
        few.write_within = Duration::from_millis(200);
        let guests = Arc::clone(&few.guests);
        // More than the kernel takes, and less than TLS does.
        let routes = Router::new().route("/", get(async || "x".repeat(50_000)));
        let server = crate::task::spawn("pages", async move { axum::serve(few, routes).await });
        let config = cluster.stranger().config(&ExpectedServer::any_of(Role::State), HttpVersion::One);
        let stream = narrow_socket().connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = TlsConnector::from(config.unwrap()).connect(name, stream).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        stream.flush().await.unwrap();
        assert_eq!(guests.len(), 1);
        eventually("the connection is cut", || guests.is_empty().then_some(())).await;
        server.abort();
    }

    #[test]
    fn answers_hold_room_until_they_are_written() {
        let room = Room::new(1_000);
        let first = hold(Body::from("x".repeat(1_000)), &room).unwrap();
        assert_eq!((room.used(), first.size_hint().exact()), (1_000, Some(1_000)));
        assert!(hold(Body::from("y"), &room).is_none(), "others are refused");
        drop(first);
        assert_eq!(room.used(), 0);
    }
}
