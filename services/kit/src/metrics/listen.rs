//! The listener of `/metrics` and of other pages: so many connections and no more, whatever strangers open.

use std::{
    io,
    net::SocketAddr,
    os::fd::AsRawFd as _,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::{
    guests::{Guest, Guests},
    quiet::Quiet,
};

/// Connections to metrics that are kept.
const N_MAX: usize = 64;
/// Pause after an accept that failed.
const FAILED_PAUSE: Duration = Duration::from_millis(100);

/// A listener that accepts connections, each of which pushes out an idle one when there are too many.
#[derive(Debug)]
pub struct Few {
    listener: TcpListener,
    guests: Arc<Guests>,
    failed: Quiet,
}

impl Few {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self::at_most(listener, N_MAX)
    }

    /// Keeps at most `n_max` connections.
    pub fn at_most(listener: TcpListener, n_max: usize) -> Self {
        Self { listener, guests: Guests::new(n_max), failed: Quiet::default() }
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
                    return (Cuttable { stream, guest, cut, is_cut: false }, address);
                }
                Err(error) => {
                    self.guests.evict_one();
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
    guest: Guest,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    is_cut: bool,
}

impl Cuttable {
    /// Fails once the connection is cut, also where it waits for nothing but room to write.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.is_cut || self.cut.as_mut().poll(cx).is_ready() {
            self.is_cut = true;
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "too many connections"));
        }
        Ok(())
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
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > n_before {
            self.guest.spoke();
        }
        read
    }
}

impl AsyncWrite for Cuttable {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if matches!(written, Poll::Ready(Ok(n)) if n > 0) {
            self.guest.answered();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
