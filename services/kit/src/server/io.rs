//! The bytes of a connection, read no faster than the connection's budget allows.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

use super::{
    connections::Connection,
    frames::{FrameBudget, Frames},
};
use crate::tls::{ByteStream, TlsSocket};

/// A connection within its [`FrameBudget`]. It is counted above TLS: what is counted is HTTP/2. A record of TLS counts as a frame where more of them come
/// than frames: those without content, or with a byte each, cost as much.
pub(super) struct Paced {
    stream: ByteStream,
    connection: Arc<Connection>,
    frames: Frames,
    n_records: u64,
    budget: FrameBudget,
    /// Nothing is read until then.
    pause: Option<Pin<Box<Sleep>>>,
}

impl Paced {
    pub(super) fn new(stream: ByteStream, connection: Arc<Connection>, budget: FrameBudget) -> Self {
        let n_records = n_records(&stream);
        Self { stream, connection, frames: Frames::default(), n_records, budget, pause: None }
    }

    /// Pays for what came in, and pauses if it was too much.
    fn pay(&mut self, content: &[u8]) {
        let mut counted = self.frames.count(content);
        let n_records = n_records(&self.stream);
        let n_fresh = u32::try_from(n_records - self.n_records).unwrap_or(u32::MAX);
        self.n_records = n_records;
        counted.frames = counted.frames.max(n_fresh);
        if counted.frames > 0 {
            let now = Instant::now();
            if let Some(wait) = self.budget.pay(counted, now) {
                self.connection.slowed();
                self.pause = Some(Box::pin(tokio::time::sleep_until(now + wait)));
            }
        }
    }
}

fn n_records(stream: &ByteStream) -> u64 {
    stream.below_tls().map_or(0, TlsSocket::n_records)
}

impl AsyncRead for Paced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(pause) = &mut this.pause {
            ready!(pause.as_mut().poll(cx));
            this.pause = None;
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        this.pay(&buf.filled()[before..]);
        if let (Poll::Pending, Some(pause)) = (&read, &mut this.pause)
            && pause.as_mut().poll(cx).is_ready()
        {
            this.pause = None;
        }
        read
    }
}

impl AsyncWrite for Paced {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
