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
}

impl TlsSocket {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, ahead: BytesMut::new() }
    }

    /// The connection itself; what was read ahead is lost.
    pub(crate) fn into_inner(self) -> TcpStream {
        self.stream
    }

    fn take_ahead(&mut self, buf: &mut ReadBuf<'_>) {
        let n = self.ahead.len().min(buf.remaining());
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
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
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
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
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
