//! Opens connections: the one way to a server, over TLS, in plain text or over a unix socket.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use godel_pki::{
    roots::UnfitLeaf,
    tls::{UnfitServer, explain_io, unfit_server},
};
use http::Uri;
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use rustls::{InvalidMessage, pki_types::ServerName};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _},
    net::{TcpStream, UnixStream},
    sync::watch,
};
use tokio_rustls::{TlsConnector, TlsStream};
use tonic::transport::Endpoint;
use tower::{Service, ServiceExt as _};

use super::{BadAddress, LazyChannel};
use crate::{
    address::ServerAddress,
    config::ClientConfig,
    security::{BearerToken, ClientSecurity, ExpectedServer},
    tls::{ByteStream, HttpVersion, TlsSocket},
};

/// Pause before a process that seems to die is tried again.
const DYING_PAUSE: Duration = Duration::from_millis(5);
/// What stands for the host where there is none.
const NO_HOST: &str = "http://localhost";

/// An address whose connection opens itself.
#[derive(Clone)]
pub(crate) struct LazyConnection {
    pub(crate) channel: LazyChannel,
    /// What each call shows; none in plain text, where anybody could read it, and none over a unix socket, which needs none.
    pub(crate) token: Option<watch::Receiver<BearerToken>>,
}

/// A connection to `expected` at `address`, for HTTP of that version.
///
/// # Errors
/// The address cannot be used ([`BadAddress`]), nobody answers there, or another one than expected.
pub async fn open(
    address: &str,
    expected: &ExpectedServer,
    config: &ClientConfig,
    version: HttpVersion,
) -> io::Result<ByteStream> {
    let address = checked(address, &config.security).map_err(io::Error::other)?;
    let connector = Connector::new(address, expected, config, version);
    connector.open_in_time().await
}

/// Whether nobody listens at `address`, an `http://` or `https://` address: the machine there refuses connections within `timeout`, to
/// each address of its name.
pub async fn is_refused(address: &str, timeout: Duration) -> bool {
    let Ok(ServerAddress::PlainText(uri) | ServerAddress::Tls(uri)) = ServerAddress::parse(address, false)
    else {
        return false;
    };
    let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let all_refuse = async {
        let Ok(found) = tokio::net::lookup_host((host, port)).await else { return false };
        let mut n_refused = 0;
        for one in found {
            if !refuses(one).await {
                return false;
            }
            n_refused += 1;
        }
        n_refused > 0
    };
    tokio::time::timeout(timeout, all_refuse).await.unwrap_or(false)
}

/// Whether connections to `address` are refused. A process that dies may accept one until its port is closed, and the connection ends with it: then
/// another one is tried. A server that lives waits for the first byte, for as long as the caller has time.
async fn refuses(address: SocketAddr) -> bool {
    loop {
        match TcpStream::connect(address).await {
            Ok(mut stream) => {
                if stream.read(&mut [0]).await.is_ok_and(|n| n > 0) {
                    return false;
                }
                tokio::time::sleep(DYING_PAUSE).await;
            }
            Err(error) => return error.kind() == io::ErrorKind::ConnectionRefused,
        }
    }
}

/// A channel to `expected` at `address`. Nothing is opened before the first call. `set` sets what this connection needs.
///
/// # Errors
/// The address cannot be used.
pub(crate) fn connect_lazily(
    address: &str,
    expected: &ExpectedServer,
    config: &ClientConfig,
    set: impl FnOnce(Endpoint) -> Endpoint,
) -> Result<LazyConnection, BadAddress> {
    let address = checked(address, &config.security)?;
    let endpoint = |uri: &Uri| {
        Endpoint::from(uri.clone())
            .tcp_nodelay(true)
            .http2_keep_alive_interval(*config.keepalive_interval)
            .keep_alive_timeout(*config.keepalive_timeout)
            .keep_alive_while_idle(true)
    };
    Ok(match &address {
        ServerAddress::PlainText(uri) => {
            let endpoint = set(endpoint(uri).connect_timeout(*config.connect_timeout));
            LazyConnection { channel: LazyChannel::fixed(endpoint.connect_lazy()), token: None }
        }
        ServerAddress::Tls(uri) => {
            let endpoint = set(endpoint(uri));
            let connector = Connector::new(address, expected, config, HttpVersion::Two);
            let open = move || endpoint.connect_with_connector_lazy(connector.clone());
            let channel = LazyChannel::renewed(config.security.clone(), expected.role, open);
            LazyConnection { channel, token: config.security.token() }
        }
        ServerAddress::Unix(_) => {
            let endpoint = set(endpoint(&Uri::from_static(NO_HOST)));
            let connector = Connector::new(address, expected, config, HttpVersion::Two);
            let channel = LazyChannel::fixed(endpoint.connect_with_connector_lazy(connector));
            LazyConnection { channel, token: None }
        }
    })
}

/// Reads an address that this client may call.
fn checked(address: &str, security: &ClientSecurity) -> Result<ServerAddress, BadAddress> {
    let parsed = ServerAddress::parse(address, security.speaks_tls())?;
    match &parsed {
        ServerAddress::PlainText(_) if !security.calls_plain_text() => {
            Err(BadAddress::PlainText(address.to_owned()))
        }
        ServerAddress::Tls(_) if !security.speaks_tls() => Err(BadAddress::NoRoots(address.to_owned())),
        ServerAddress::PlainText(_) | ServerAddress::Tls(_) | ServerAddress::Unix(_) => Ok(parsed),
    }
}

/// Opens connections to one address.
#[derive(Clone)]
struct Connector {
    address: ServerAddress,
    expected: ExpectedServer,
    security: ClientSecurity,
    version: HttpVersion,
    timeout: Duration,
    tcp: HttpConnector,
}

impl Connector {
    fn new(
        address: ServerAddress,
        expected: &ExpectedServer,
        config: &ClientConfig,
        version: HttpVersion,
    ) -> Self {
        let timeout = *config.connect_timeout;
        let mut tcp = HttpConnector::new();
        // It opens TCP for whatever is above it.
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(timeout));
        let (expected, security) = (expected.clone(), config.security.clone());
        Self { address, expected, security, version, timeout, tcp }
    }

    /// Opens a connection within the time for that, the handshake included.
    async fn open_in_time(self) -> io::Result<ByteStream> {
        let timeout = self.timeout;
        tokio::time::timeout(timeout, self.open()).await.unwrap_or_else(|_| {
            let timeout = godel_base::duration::show(timeout);
            Err(io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {timeout}")))
        })
    }

    async fn open(self) -> io::Result<ByteStream> {
        match &self.address {
            ServerAddress::PlainText(uri) => Ok(ByteStream::Tcp(self.tcp(uri).await?.into_inner())),
            ServerAddress::Unix(path) => {
                let opened = UnixStream::connect(path).await;
                let opened = opened.map_err(|error| {
                    io::Error::new(error.kind(), format!("unix socket {}: {error}", path.display()))
                });
                Ok(ByteStream::Unix(opened?))
            }
            ServerAddress::Tls(uri) => {
                // The one that is there now: a leaf may have been renewed since the last connection.
                let config = self.security.config(&self.expected, self.version);
                let config = config.ok_or_else(|| io::Error::other("there is no TLS"))?;
                let socket = TlsSocket::new(self.tcp(uri).await?.into_inner());
                let shaken = TlsConnector::from(config).connect(server_name(uri), socket).await;
                let mut stream = shaken.map_err(|error| self.explained(&error, uri))?;
                if self.version == HttpVersion::Two {
                    // A client has shaken hands before the server has judged its leaf. The server speaks first once it has: no call is lost to a
                    // refusal.
                    let begun = stream.fill_buf().await.map(<[u8]>::is_empty);
                    if begun.map_err(|error| self.explained(&error, uri))? {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Ok(ByteStream::Tls(Box::new(TlsStream::Client(stream))))
            }
        }
    }

    async fn tcp(&self, uri: &Uri) -> io::Result<TokioIo<tokio::net::TcpStream>> {
        self.tcp.clone().oneshot(uri.clone()).await.map_err(io::Error::other)
    }

    /// Says of a handshake that failed with whom it was, and what may help.
    fn explained(&self, error: &io::Error, uri: &Uri) -> io::Error {
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        let host = uri.authority().map_or("", |authority| authority.as_str());
        let words = match tls {
            Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
                format!("{host} speaks plain text, not TLS: call http://{host}, or start its server with TLS")
            }
            _ => {
                let why = explain_io(error).unwrap_or_else(|| error.to_string());
                let is_foreign =
                    matches!(tls.and_then(unfit_server), Some(UnfitServer::Leaf(UnfitLeaf::Foreign { .. })));
                let hint = if is_foreign && self.security.token().is_some() { NEW_ROOTS } else { "" };
                format!("no TLS with {host}: {why}{hint}")
            }
        };
        io::Error::new(error.kind(), words)
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<ByteStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<ByteStream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.open_in_time().await.map(TokioIo::new) })
    }
}

/// What the client names as the server in the handshake. Nothing is judged by it: a server is known by the identity in its leaf.
fn server_name(uri: &Uri) -> ServerName<'static> {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    ServerName::try_from(host).unwrap_or(ServerName::IpAddress(std::net::Ipv4Addr::LOCALHOST.into()))
}

/// What a person may do whose context was not used while the roots changed.
const NEW_ROOTS: &str =
    "; if the cluster has new roots, take them with `godel context login` on the machine of state";

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_an_address_at_which_nobody_listens_refuses() {
        let patience = Duration::from_secs(10);
        // Its port is taken, so that no other test gets it, and nobody listens.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = socket.local_addr().unwrap().port();
        for address in [format!("http://127.0.0.1:{port}"), format!("https://localhost:{port}/")] {
            assert!(is_refused(&address, patience).await, "{address}");
        }
        let listener = socket.listen(1).unwrap();
        for unclear in [&format!("http://127.0.0.1:{port}"), "unix:/nowhere", "http://"] {
            assert!(!is_refused(unclear, Duration::from_millis(50)).await, "{unclear}");
        }
        // The port of a process that dies is closed after connections to it were accepted.
        let dying = async {
            for _ in 0..3 {
                drop(listener.accept().await.unwrap());
            }
            drop(listener);
        };
        let address = format!("http://127.0.0.1:{port}");
        let ((), is_gone) = tokio::join!(dying, is_refused(&address, patience));
        assert!(is_gone);
    }
}
