//! The socket below TLS, read ahead.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_util::io::poll_read_buf;

/// Bytes read from the socket at once: two records of the largest size.
const READ_BYTES: usize = 2 * (16 * 1024 + 261);

/// A TCP connection below TLS. What is read ahead takes memory only until TLS has taken it, so that idle connections hold none.
#[derive(Debug)]
pub struct TlsSocket {
    stream: TcpStream,
    ahead: BytesMut,
    came: RecordCount,
    n_written: u64,
}

/// Finds the records in the bytes that come, however they are cut.
#[derive(Debug, Default)]
struct RecordCount {
    n: u64,
    /// Bytes of the present record that are to come.
    skip: usize,
    head: [u8; RECORD_HEAD_BYTES],
    n_head: usize,
}

/// Type, version and length of a record.
const RECORD_HEAD_BYTES: usize = 5;

impl RecordCount {
    fn count(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let taken = (RECORD_HEAD_BYTES - self.n_head).min(bytes.len());
            self.head[self.n_head..self.n_head + taken].copy_from_slice(&bytes[..taken]);
            self.n_head += taken;
            bytes = &bytes[taken..];
            if self.n_head == RECORD_HEAD_BYTES {
                self.n_head = 0;
                let [_, _, _, high, low] = self.head;
                self.skip = usize::from(high) << 8 | usize::from(low);
                self.n += 1;
            }
        }
    }
}

impl TlsSocket {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, ahead: BytesMut::new(), came: RecordCount::default(), n_written: 0 }
    }

    /// Records that TLS has begun to read, also those that say nothing to what is above it.
    pub(crate) fn n_records(&self) -> u64 {
        self.came.n
    }

    /// Bytes that the other side has taken, or the kernel for it.
    pub(crate) fn n_written(&self) -> u64 {
        self.n_written
    }

    fn note_written(&mut self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(n)) = written {
            self.n_written += *n as u64;
        }
    }

    /// The connection itself; what was read ahead is lost.
    pub(crate) fn into_inner(self) -> TcpStream {
        self.stream
    }

    fn take_ahead(&mut self, buf: &mut ReadBuf<'_>) {
        let n = self.ahead.len().min(buf.remaining());
        self.came.count(&self.ahead[..n]);
        buf.put_slice(&self.ahead[..n]);
        self.ahead.advance(n);
        if self.ahead.is_empty() {
            self.ahead = BytesMut::new();
        }
    }
}

impl AsyncRead for TlsSocket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.ahead.is_empty() {
            // Nothing is allocated while there is nothing to read.
            ready!(this.stream.poll_read_ready(cx))?;
            this.ahead.reserve(READ_BYTES);
            let read = poll_read_buf(Pin::new(&mut this.stream), cx, &mut this.ahead);
            if this.ahead.is_empty() {
                this.ahead = BytesMut::new();
            }
            ready!(read)?;
        }
        this.take_ahead(buf);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TlsSocket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.note_written(&written);
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.note_written(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    #[test]
    fn records_are_found_however_they_are_cut() {
        let mut bytes = Vec::new();
        for length in [0_u16, 1, 17, 255, 256, 16_401, 0, 0, 5] {
            let [high, low] = length.to_be_bytes();
            bytes.extend([23, 3, 3, high, low]);
            bytes.resize(bytes.len() + usize::from(length), 7);
        }
        for size in [1, 2, 4, 5, 6, 7, 1_000, bytes.len()] {
            let mut count = RecordCount::default();
            bytes.chunks(size).for_each(|part| count.count(part));
            assert_eq!((count.n, count.skip, count.n_head), (9, 0, 0), "{size}");
        }
    }

    #[tokio::test]
    async fn bytes_come_in_order_however_little_is_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let mut socket = TlsSocket::new(stream);
        let sent: Vec<u8> = (0..100_000_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let writing = async {
            sender.write_all(&sent).await.unwrap();
            sender.shutdown().await.unwrap();
        };
        let reading = async {
            let mut came = Vec::new();
            let mut some = [0; 4_096];
            loop {
                let n = socket.read(&mut some).await.unwrap();
                if n == 0 {
                    return came;
                }
                came.extend_from_slice(&some[..n]);
            }
        };
        let ((), came) = tokio::join!(writing, reading);
        assert!(came == sent, "{} bytes came", came.len());
        assert_eq!(socket.ahead.capacity(), 0, "nothing is kept");
    }
}
