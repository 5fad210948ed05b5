//! Connections to one endpoint, in plain text or over TLS.
//!
//! A channel has one connection and never opens another one by itself: a call on a broken connection fails, and the place
//! of the failure tells whether the call was sent. Certificate files are read for each connection, so that renewed files are used
//! without a restart.

use std::{fmt, io, path::PathBuf, sync::Arc, time::Duration};

use http::Uri;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::transport::{Channel, Endpoint as TonicEndpoint};
use tower::service_fn;

use crate::error::{CallError, ClientError, chain};

/// A connection is given up if it is not open within this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval and timeout of the keep-alive pings of a connection.
const KEEPALIVE: Duration = Duration::from_secs(2);
/// Flow-control window for received bytes: a page of a snapshot.
const WINDOW_BYTES: u32 = 4 << 20;

/// Files of TLS, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The roots of etcd's certificates.
    pub roots: PathBuf,
    /// The certificate that the client presents to etcd.
    pub own: Option<CertificateFiles>,
}

/// Files of a certificate, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, followed by the intermediate certificates up to the root.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
}

/// The address of a member of etcd.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    uri: Uri,
    tls: Option<TlsFiles>,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.uri.authority().map_or("", |authority| authority.as_str()))
    }
}

impl Endpoint {
    /// Parses an endpoint. Without a scheme it is plain text.
    pub(crate) fn parse(text: &str, tls: Option<&TlsFiles>) -> Result<Self, ClientError> {
        let malformed = || ClientError::Malformed(text.to_owned());
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let uri: Uri = format!("http://{}", rest.trim_end_matches('/')).parse().map_err(|_| malformed())?;
        if uri.host().is_none_or(str::is_empty) || uri.port_u16().is_none() || uri.path() != "/" {
            return Err(malformed());
        }
        match (scheme, tls) {
            ("http", _) => Ok(Self { uri, tls: None }),
            ("https", Some(tls)) => Ok(Self { uri, tls: Some(tls.clone()) }),
            ("https", None) => Err(ClientError::NoRoots(text.to_owned())),
            _ => Err(malformed()),
        }
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// No server answers there ([`CallError::NotDone`]), or the TLS handshake with it fails ([`CallError::Refused`]).
    pub(crate) async fn connect(&self) -> Result<Channel, CallError> {
        let opened = tokio::time::timeout(CONNECT_TIMEOUT, self.open()).await;
        opened.unwrap_or_else(|_| Err(CallError::NotDone(format!("{self}: no connection within 1 s"))))
    }

    async fn open(&self) -> Result<Channel, CallError> {
        let (host, port) = (self.uri.host().unwrap_or_default(), self.uri.port_u16().unwrap_or_default());
        let bare = host.trim_matches(['[', ']']);
        let not_done = |error: io::Error| CallError::NotDone(format!("{self}: {}", chain(&error)));
        let socket = TcpStream::connect((bare, port)).await.map_err(not_done)?;
        socket.set_nodelay(true).map_err(not_done)?;
        let endpoint = TonicEndpoint::from(self.uri.clone())
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES);
        let channel = match &self.tls {
            None => connect_over(&endpoint, socket).await,
            Some(files) => connect_over(&endpoint, self.shake_hands(files, bare, socket).await?).await,
        };
        channel.map_err(|error| CallError::NotDone(format!("{self}: {}", chain(&error))))
    }

    async fn shake_hands(
        &self,
        files: &TlsFiles,
        host: &str,
        socket: TcpStream,
    ) -> Result<TlsStream<TcpStream>, CallError> {
        let config = client_config(files).map_err(CallError::Refused)?;
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| CallError::Refused(format!("{self}: {error}")))?;
        let shaken = TlsConnector::from(Arc::new(config)).connect(name, socket).await;
        shaken.map_err(|error| {
            let words = format!("no TLS with {self}: {}", chain(&error));
            // A certificate that rustls rejects stays rejected; a broken connection may recover.
            let is_of_tls = error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
            if is_of_tls { CallError::Refused(words) } else { CallError::NotDone(words) }
        })
    }
}

/// A channel whose only connection is `stream`.
async fn connect_over<S>(endpoint: &TonicEndpoint, stream: S) -> Result<Channel, tonic::transport::Error>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let stream = Mutex::new(Some(stream));
    let once = service_fn(move |_: Uri| {
        let stream = stream.lock().take().map(TokioIo::new);
        async move { stream.ok_or_else(|| io::Error::other("the connection was lost")) }
    });
    endpoint.connect_with_connector(once).await
}

/// Builds the TLS configuration from the current contents of the files.
fn client_config(files: &TlsFiles) -> Result<rustls::ClientConfig, String> {
    let failed = |what: &str, path: &PathBuf, error: &dyn std::error::Error| {
        format!("{what} {}: {}", path.display(), chain(error))
    };
    let certificates = |path: &PathBuf| -> Result<Vec<CertificateDer<'static>>, String> {
        let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        match read {
            Ok(certificates) if certificates.is_empty() => {
                Err(format!("{} holds no certificate", path.display()))
            }
            read => read.map_err(|error| failed("reading", path, &error)),
        }
    };
    let mut roots = RootCertStore::empty();
    for root in certificates(&files.roots)? {
        roots.add(root).map_err(|error| failed("a root in", &files.roots, &error))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let mut config = match &files.own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let key = PrivateKeyDer::from_pem_file(&own.key)
                .map_err(|error| failed("reading", &own.key, &error))?;
            let chain = certificates(&own.certificate)?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| failed("using", &own.certificate, &error))?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_and_shown() {
        let tls = TlsFiles { roots: "ca.pem".into(), own: None };
        for (text, shown) in [
            ("http://127.0.0.1:2379", "http://127.0.0.1:2379"),
            ("127.0.0.1:2379", "http://127.0.0.1:2379"),
            ("https://etcd.example:2379/", "https://etcd.example:2379"),
            ("http://[::1]:2379", "http://[::1]:2379"),
        ] {
            assert_eq!(Endpoint::parse(text, Some(&tls)).unwrap().to_string(), shown);
        }
        for text in ["", "http://", "http://host", "ftp://host:1", "http://host:1/path", "http://a b:1"] {
            let parsed = Endpoint::parse(text, Some(&tls));
            assert!(matches!(parsed, Err(ClientError::Malformed(_))), "{text}: {parsed:?}");
        }
        assert!(matches!(Endpoint::parse("https://host:1", None), Err(ClientError::NoRoots(_))));
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let files = TlsFiles { roots: "/no/such/ca.pem".into(), own: None };
        assert!(client_config(&files).unwrap_err().contains("/no/such/ca.pem"));
        let files = TlsFiles { roots: "/dev/null".into(), own: None };
        assert_eq!(client_config(&files).unwrap_err(), "/dev/null holds no certificate");
    }
}
