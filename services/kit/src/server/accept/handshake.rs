//! What a new connection speaks, by its first byte: plain text or TLS, and the handshake of the latter.

use std::{io, sync::Arc};

use godel_pki::tls::explain_io;
use tokio::{
    net::TcpStream,
    time::{Instant, timeout_at},
};
use tokio_rustls::{LazyConfigAcceptor, TlsStream, server};

use super::{
    super::{
        connections::Connection,
        listeners::{Origin, Socket},
    },
    Serving,
};
use crate::{
    security::Transport,
    tls::{self, ByteStream, FIRST_BYTE, HttpVersion, TlsSocket, peer_leaf},
};

/// Why there is no stream after a handshake.
enum NoHandshake {
    /// It took too long, or lost its place.
    Ended,
    /// The other side left.
    Left,
    /// It failed; the other side is told if the connection still is there.
    Failed(String, Option<TcpStream>),
}

impl<S> Serving<S> {
    /// What a connection that has begun to speak is read from and written to. `None`: it is not served. Whatever plain text does not need is in a
    /// box, so that it needs no room in the task of a connection in plain text.
    pub(super) async fn opened(
        &self,
        socket: Socket,
        first: u8,
        connection: &Arc<Connection>,
    ) -> Option<ByteStream> {
        let stream = match socket {
            Socket::Tcp(stream) => stream,
            Socket::Unix(stream) => {
                connection.came_by(Transport::Unix);
                return Some(ByteStream::Unix(stream));
            }
        };
        stream.set_nodelay(true).ok()?;
        let security = &self.config.security;
        match (first == FIRST_BYTE, security.speaks_tls()) {
            (false, _) if security.serves_plain_text() => {
                connection.came_by(Transport::PlainText);
                Some(ByteStream::Tcp(stream))
            }
            (false, _) => {
                self.metrics.plain_text_refused.inc();
                if self.strange.may_speak() {
                    tracing::warn!(address = %connection.peer, "refused a connection in plain text: this server speaks TLS");
                }
                self.unless_it_leaves(connection, Box::pin(tls::refuse_plain_text(stream))).await;
                None
            }
            (true, false) => {
                self.metrics.tls_refused.inc();
                if self.strange.may_speak() {
                    tracing::warn!(address = %connection.peer, "refused a connection with TLS: this server speaks plain text");
                }
                self.unless_it_leaves(connection, Box::pin(tls::refuse_tls(stream))).await;
                None
            }
            (true, true) => Box::pin(self.tls_stream(stream, connection)).await,
        }
    }

    /// Does it until the connection is to leave or the server ends.
    async fn unless_it_leaves<F: Future>(&self, connection: &Connection, what: F) -> Option<F::Output> {
        tokio::select! {
            done = what => Some(done),
            _ = connection.asked_to_leave() => None,
            () = self.stop.cancelled() => None,
        }
    }

    async fn tls_stream(&self, stream: TcpStream, connection: &Arc<Connection>) -> Option<ByteStream> {
        let deadline = Instant::now() + *self.config.handshake_timeout;
        let shaken = timeout_at(deadline, self.handshake(stream, connection));
        let shaken = self.unless_it_leaves(connection, shaken).await?;
        match shaken.unwrap_or(Err(NoHandshake::Ended)) {
            Ok(stream) => Some(ByteStream::Tls(Box::new(TlsStream::Server(stream)))),
            Err(NoHandshake::Left) => None,
            Err(NoHandshake::Ended) => {
                self.metrics.handshakes_ended.inc();
                None
            }
            Err(NoHandshake::Failed(why, stream)) => {
                self.metrics.handshakes_failed.inc();
                if self.strange.may_speak() {
                    tracing::warn!(address = %connection.peer, why, "a TLS handshake failed");
                }
                if let Some(stream) = stream {
                    self.unless_it_leaves(connection, tls::linger(stream)).await;
                }
                None
            }
        }
    }

    async fn handshake(
        &self,
        stream: TcpStream,
        connection: &Arc<Connection>,
    ) -> Result<server::TlsStream<TlsSocket>, NoHandshake> {
        let mut hello = std::pin::pin!(LazyConfigAcceptor::new(Default::default(), TlsSocket::new(stream)));
        let hello = match hello.as_mut().await {
            Ok(hello) => hello,
            Err(error) => {
                let stream = hello.take_io().map(TlsSocket::into_inner);
                return Err(failed(&error, stream));
            }
        };
        connection.speaks();
        let place = self.handshakes.place(Origin::Tcp(connection.peer).counted_as()).await;
        // The one that is there now, not the one that was there when it began to wait.
        let config = self.config.security.tls(HttpVersion::Two).ok_or(NoHandshake::Left)?;
        let shaken = place.hold(hello.into_stream(config).into_fallible()).await;
        drop(place);
        let stream = shaken
            .ok_or(NoHandshake::Ended)?
            .map_err(|(error, socket)| failed(&error, Some(socket.into_inner())))?;
        Self::identify(stream, connection)
    }

    /// Reads who is at the other end.
    fn identify(
        stream: server::TlsStream<TlsSocket>,
        connection: &Connection,
    ) -> Result<server::TlsStream<TlsSocket>, NoHandshake> {
        match peer_leaf(stream.get_ref().1) {
            Ok(leaf) => {
                connection.came_by(Transport::Tls { leaf });
                Ok(stream)
            }
            Err(bad) => Err(NoHandshake::Failed(bad.to_string(), Some(stream.into_inner().0.into_inner()))),
        }
    }
}

fn failed(error: &io::Error, stream: Option<TcpStream>) -> NoHandshake {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            NoHandshake::Left
        }
        _ => NoHandshake::Failed(explain_io(error).unwrap_or_else(|| error.to_string()), stream),
    }
}
