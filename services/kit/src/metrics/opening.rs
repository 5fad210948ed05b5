//! How connections to pages begin: in plain text or with TLS.

use std::{
    io,
    net::IpAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{extract::connect_info::Connected, serve::IncomingStream};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsStream};

use super::Few;
use crate::{
    security::{ServerSecurity, Transport},
    tls::{ByteStream, FIRST_BYTE, HttpVersion, TlsSocket, answer_and_close, peer_leaf, plain_text_words},
};

/// Time for the first byte and the handshake.
const OPENING_TIME: Duration = Duration::from_secs(5);
/// Bytes of a request in plain text that are read before it is refused.
const REQUEST_BYTES: usize = 4_096;

/// How a connection to a page came, once that is known: a handler has it as `ConnectInfo<GuestTransport>`.
#[derive(Clone, Debug, Default)]
pub struct GuestTransport(Arc<OnceLock<Transport>>);

impl GuestTransport {
    /// How it came. Whoever has sent a request is past the handshake.
    pub fn get(&self) -> &Transport {
        self.0.get().unwrap_or(&Transport::PlainText)
    }
}

impl Connected<IncomingStream<'_, Few>> for GuestTransport {
    fn connect_info(stream: IncomingStream<'_, Few>) -> Self {
        stream.io().transport().clone()
    }
}

/// What a listener of pages speaks.
#[derive(Clone, Debug, Default)]
pub(super) struct PageSecurity {
    pub(super) security: ServerSecurity,
    /// Callers on this machine may speak plain text all the same.
    pub(super) is_plain_on_loopback: bool,
}

impl PageSecurity {
    /// Whether each connection is plain text, so that nothing is looked at.
    pub(super) fn is_plain_text(&self) -> bool {
        !self.security.speaks_tls()
    }

    /// Finds out what a connection speaks, and makes its handshake.
    ///
    /// # Errors
    /// It takes too long, fails, or is plain text where that is not served.
    pub(super) async fn open(self, stream: TcpStream, transport: GuestTransport) -> io::Result<ByteStream> {
        let opened = tokio::time::timeout(OPENING_TIME, self.begun(stream, &transport)).await;
        opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn begun(self, stream: TcpStream, transport: &GuestTransport) -> io::Result<ByteStream> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if first[0] != FIRST_BYTE {
            if !self.serves_plain_text(&stream) {
                refuse_plain_text(stream).await;
                return Err(io::Error::other("plain text to a port that speaks TLS"));
            }
            let _ = transport.0.set(Transport::PlainText);
            return Ok(ByteStream::Tcp(stream));
        }
        let config = self.security.tls(HttpVersion::One).ok_or(io::ErrorKind::Unsupported)?;
        let stream = TlsAcceptor::from(config).accept(TlsSocket::new(stream)).await?;
        let leaf = peer_leaf(stream.get_ref().1).map_err(io::Error::other)?;
        let _ = transport.0.set(Transport::Tls { leaf });
        Ok(ByteStream::Tls(Box::new(TlsStream::Server(stream))))
    }

    fn serves_plain_text(&self, stream: &TcpStream) -> bool {
        let is_local = |ip: IpAddr| ip.to_canonical().is_loopback();
        self.security.serves_plain_text()
            || (self.is_plain_on_loopback
                && stream.peer_addr().is_ok_and(|peer| is_local(peer.ip()))
                && stream.local_addr().is_ok_and(|local| is_local(local.ip())))
    }
}

/// Answers a request in plain text that it has to come with TLS.
async fn refuse_plain_text(stream: TcpStream) {
    let words = plain_text_words(&stream);
    let _read = stream.try_read(&mut [0; REQUEST_BYTES]);
    answer_and_close(stream, &words).await;
}
