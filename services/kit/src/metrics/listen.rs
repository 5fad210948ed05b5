//! The listener of `/metrics` and of other pages: so many connections and no more, whatever strangers open.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    os::fd::AsRawFd as _,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::{
    quiet::Quiet,
    server::{is_short_of_descriptors, relieve},
};

/// Connections to metrics that are kept; of more the oldest is closed.
const N_MAX: usize = 64;
/// Pause after an accept that failed.
const FAILED_PAUSE: Duration = Duration::from_millis(100);

/// A listener that accepts connections, each of which pushes out the oldest when there are too many.
#[derive(Debug)]
pub struct Few {
    listener: TcpListener,
    n_max: usize,
    open: VecDeque<CancellationToken>,
    failed: Quiet,
}

impl Few {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self::at_most(listener, N_MAX)
    }

    /// Keeps at most `n_max` connections.
    pub fn at_most(listener: TcpListener, n_max: usize) -> Self {
        Self { listener, n_max, open: VecDeque::new(), failed: Quiet::default() }
    }
}

impl axum::serve::Listener for Few {
    type Io = Cuttable;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Cuttable, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    // Those that have ended are still in the queue: it is the number of the last ones.
                    while self.open.len() >= self.n_max || is_short_of_descriptors(stream.as_raw_fd()) {
                        let Some(oldest) = self.open.pop_front() else { break };
                        oldest.cancel();
                    }
                    let cut = CancellationToken::new();
                    self.open.push_back(cut.clone());
                    return (
                        Cuttable { stream, cut: Box::pin(cut.cancelled_owned()), is_cut: false },
                        address,
                    );
                }
                Err(error) => {
                    relieve();
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

/// A connection that fails once it is cut.
#[derive(Debug)]
pub struct Cuttable {
    stream: TcpStream,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    is_cut: bool,
}

impl AsyncRead for Cuttable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_cut || self.cut.as_mut().poll(cx).is_ready() {
            self.is_cut = true;
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "too many connections",
            )));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Cuttable {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
