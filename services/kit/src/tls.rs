//! Byte streams of connections: TCP and unix sockets in plain text, and TLS above TCP.
//!
//! An enum, so that plain text costs a branch and no indirect call. Sockets below TLS are read in large pieces: rustls asks for 4 KiB at a time.

mod refusal;
mod socket;

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use godel_pki::leaves::BadLeaf;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::TlsStream;

use crate::security::PeerLeaf;

pub(crate) use self::refusal::{answer_and_close, linger, plain_text_words, refuse_plain_text, refuse_tls};
pub use self::socket::TlsSocket;

/// The first byte of a connection that begins with TLS: the type of a record of the handshake. HTTP begins with a letter.
pub(crate) const FIRST_BYTE: u8 = 0x16;
/// What is spoken above TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.1.
    One,
    /// HTTP/2, as gRPC needs it.
    Two,
}

impl HttpVersion {
    /// Its name within TLS (ALPN).
    pub(crate) fn alpn(self) -> &'static [u8] {
        match self {
            Self::One => b"http/1.1",
            Self::Two => b"h2",
        }
    }
}

/// The bytes of one connection.
#[derive(Debug)]
pub enum ByteStream {
    /// Plain text over TCP.
    Tcp(TcpStream),
    /// Plain text over a unix socket.
    Unix(UnixStream),
    /// TLS over TCP.
    Tls(Box<TlsStream<TlsSocket>>),
}

impl ByteStream {
    /// The socket below TLS; `None` in plain text.
    pub(crate) fn below_tls(&self) -> Option<&TlsSocket> {
        match self {
            Self::Tls(stream) => Some(stream.get_ref().0),
            Self::Tcp(_) | Self::Unix(_) => None,
        }
    }
}

/// The leaf that the other side of a TLS connection has shown, if it has.
pub(crate) fn peer_leaf(session: &rustls::CommonState) -> Result<Option<Box<PeerLeaf>>, BadLeaf> {
    let leaf = session.peer_certificates().and_then(|chain| chain.first());
    leaf.map(PeerLeaf::read).transpose().map(|leaf| leaf.map(Box::new))
}

macro_rules! on {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Self::Tcp($stream) => $call,
            Self::Unix($stream) => $call,
            Self::Tls($stream) => {
                let $stream = &mut **$stream;
                $call
            }
        }
    };
}

impl AsyncRead for ByteStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        on!(self, stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl AsyncWrite for ByteStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        on!(self, stream => Pin::new(stream).poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on!(self, stream => Pin::new(stream).poll_write_vectored(cx, bufs))
    }

    /// All three write vectored.
    fn is_write_vectored(&self) -> bool {
        true
    }
}
