//! Fetching a resource from a web server, over HTTP with TLS or without.

use std::{
    io::{self, BufRead as _, BufReader, Read, Write},
    net::{TcpStream, ToSocketAddrs as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};

const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Between two pieces of an answer.
const READ_WITHIN: Duration = Duration::from_secs(30);
/// Between looks whether the answer is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Bytes of the lines before the body.
const HEAD_BYTES_MAX: u64 = 64 << 10;

/// A body that is being read, and how long it is as far as the server says.
pub(super) struct Body<'a> {
    reader: BufReader<Box<dyn Connection + 'a>>,
    left: Option<u64>,
}

/// A connection that is read as long as its answer is wanted.
struct Patient<'a> {
    stream: TcpStream,
    is_stopped: &'a AtomicBool,
}

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let began = Instant::now();
        loop {
            let error = match self.stream.read(buffer) {
                Ok(n) => return Ok(n),
                Err(error) => error,
            };
            if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
                return Err(error);
            }
            if self.is_stopped.load(Ordering::Relaxed) {
                return Err(io::Error::other("its container was stopped"));
            }
            if began.elapsed() > READ_WITHIN {
                return Err(io::Error::other("its web server has said nothing for too long"));
            }
        }
    }
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// What requests and answers go through.
trait Connection: Read + Write {}

impl<C: Read + Write> Connection for C {}

/// Puts TLS on a connection to a server that shows a certificate of one of the authorities in a file. The certificate is checked with the
/// first bytes that are written.
fn encrypted<'a>(server: &str, ca_file: &Path, plain: Patient<'a>) -> io::Result<Box<dyn Connection + 'a>> {
    let unread = |why: String| io::Error::other(format!("the certificates in {}: {why}", ca_file.display()));
    let found = CertificateDer::pem_file_iter(ca_file).map_err(|error| unread(error.to_string()))?;
    let mut authorities = RootCertStore::empty();
    for certificate in found {
        // One that is not understood certifies nobody.
        let _ = authorities.add(certificate.map_err(|error| unread(error.to_string()))?);
    }
    if authorities.is_empty() {
        return Err(unread("there is none of an authority".to_owned()));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(authorities)
        .with_no_client_auth();
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    Ok(Box::new(StreamOwned::new(connection, plain)))
}

/// Asks a server, `host:port`, for a path: over TLS if there is a file with the certificates of authorities.
///
/// # Errors
/// The server cannot be reached, or has no such file.
pub(super) fn get<'a>(
    server: &str,
    ca_file: Option<&Path>,
    path: &str,
    is_stopped: &'a AtomicBool,
) -> io::Result<Body<'a>> {
    let plain = Patient { stream: connect(server)?, is_stopped };
    let mut connection: Box<dyn Connection + 'a> = match ca_file {
        None => Box::new(plain),
        Some(ca_file) => encrypted(server, ca_file, plain)?,
    };
    // Version 1.0: the body ends with the connection, and has no parts.
    let request =
        format!("GET {path} HTTP/1.0\r\nHost: {server}\r\nUser-Agent: godel\r\nAccept: */*\r\n\r\n");
    connection.write_all(request.as_bytes())?;
    connection.flush()?;
    let mut reader = BufReader::new(connection);
    let mut head = Vec::new();
    let mut lines = (&mut reader).take(HEAD_BYTES_MAX);
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line)? == 0 {
            return Err(io::Error::other("its web server answers no HTTP"));
        }
        match line.trim_end() {
            "" => break,
            line => head.push(line.to_owned()),
        }
    }
    let status = head.first().and_then(|line| line.strip_prefix("HTTP/1.")).unwrap_or_default();
    match status.split(' ').nth(1) {
        Some("200") => {}
        Some(code) if code.starts_with('3') => {
            return Err(io::Error::other(format!(
                "its web server answers {code}: give the address to which that leads"
            )));
        }
        Some(code) => return Err(io::Error::other(format!("its web server answers {code}"))),
        None => return Err(io::Error::other("its web server answers no HTTP")),
    }
    let header = |name: &str| {
        let fields = head.iter().filter_map(|line| line.split_once(':'));
        fields.filter(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
    };
    if header("transfer-encoding").is_some() {
        return Err(io::Error::other("its web server answers in parts to HTTP 1.0"));
    }
    let left = header("content-length").map(str::parse).transpose().map_err(io::Error::other)?;
    Ok(Body { reader, left })
}

fn connect(server: &str) -> io::Result<TcpStream> {
    let mut failed = io::Error::other("its web server has no address");
    for address in server.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_WITHIN) {
            Ok(stream) => {
                stream.set_read_timeout(Some(LOOK_EVERY))?;
                stream.set_write_timeout(Some(READ_WITHIN))?;
                return Ok(stream);
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

impl Read for Body<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(left) = &mut self.left else { return self.reader.read(buffer) };
        let most = usize::try_from(*left).unwrap_or(usize::MAX).min(buffer.len());
        let Some(buffer) = buffer.get_mut(..most).filter(|buffer| !buffer.is_empty()) else { return Ok(0) };
        let n = self.reader.read(buffer)?;
        if n == 0 {
            return Err(io::Error::other("its web server has broken off"));
        }
        *left -= u64::try_from(n).unwrap_or(0);
        Ok(n)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A web server that answers this to one request. Its address, and the request.
    pub(in super::super) fn serve(answer: Vec<u8>) -> (String, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            stream.write_all(&answer).unwrap();
            String::from_utf8(request).unwrap()
        });
        (address, served)
    }

    fn fetch(answer: &str) -> Result<String, String> {
        let (server, served) = serve(answer.as_bytes().to_vec());
        let mut text = String::new();
        let is_stopped = AtomicBool::new(false);
        let fetched =
            get(&server, None, "/a/b?c", &is_stopped).and_then(|mut body| body.read_to_string(&mut text));
        assert!(served.join().unwrap().starts_with("GET /a/b?c HTTP/1.0\r\nHost: 127.0.0.1:"));
        fetched.map(|_| text).map_err(|error| error.to_string())
    }

    #[test]
    fn bodies_end_where_the_server_says() {
        assert_eq!(fetch("HTTP/1.1 200 OK\r\ncontent-LENGTH: 2\r\n\r\nabc"), Ok("ab".to_owned()));
        assert_eq!(fetch("HTTP/1.0 200 OK\r\n\r\nabc"), Ok("abc".to_owned()));
        assert!(fetch("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc").unwrap_err().contains("broken off"));
    }

    #[test]
    fn other_answers_are_refused() {
        for (answer, said) in [
            ("HTTP/1.1 404 Not Found\r\n\r\n", "answers 404"),
            ("HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n", "answers 302: give the address"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "in parts"),
            ("SSH-2.0-x\r\n\r\n", "no HTTP"),
            ("", "no HTTP"),
        ] {
            let error = fetch(answer).unwrap_err();
            assert!(error.contains(said), "{answer}: {error}");
        }
        assert!(get("127.0.0.1:1", None, "/", &AtomicBool::new(false)).is_err());
    }

    /// A certificate for `localhost` with its key, and one of somebody else, until 2219. They certify themselves.
    const LOCALHOST: &str = include_str!("http/localhost.pem");
    const OTHER: &str = include_str!("http/other.pem");

    /// A web server with TLS that answers one request as `localhost`.
    fn serve_tls(answer: &'static [u8]) -> (u16, std::thread::JoinHandle<io::Result<()>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let certificate = CertificateDer::from_pem_slice(LOCALHOST.as_bytes()).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::from_pem_slice(LOCALHOST.as_bytes()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let served = std::thread::spawn(move || {
            let (stream, _) = listener.accept()?;
            let connection = rustls::ServerConnection::new(Arc::new(config)).unwrap();
            let mut stream = StreamOwned::new(connection, stream);
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte)?;
                request.push(byte[0]);
            }
            stream.write_all(answer)?;
            stream.conn.send_close_notify();
            stream.flush()
        });
        (port, served)
    }

    #[test]
    fn bodies_come_over_tls_from_certified_servers_only() {
        let dir = tempfile::tempdir().unwrap();
        let ca_file = dir.path().join("ca.pem");
        let is_stopped = AtomicBool::new(false);
        let fetch = |host: &str, ca_file: &Path| {
            let (port, served) = serve_tls(b"HTTP/1.1 200 OK\r\n\r\nhello");
            let mut text = String::new();
            let server = format!("{host}:{port}");
            let fetched = get(&server, Some(ca_file), "/f", &is_stopped)
                .and_then(|mut body| body.read_to_string(&mut text).map(|_| text));
            // A server that nobody asks for a path is told so, or sees the connection end.
            let served = served.join().unwrap();
            assert_eq!(fetched.is_ok(), served.is_ok(), "{fetched:?} {served:?}");
            fetched.map_err(|error| error.to_string())
        };
        std::fs::write(&ca_file, LOCALHOST).unwrap();
        assert_eq!(fetch("localhost", &ca_file), Ok("hello".to_owned()));
        let other = fetch("127.0.0.1", &ca_file).unwrap_err();
        assert!(other.contains("certificate"), "{other}");
        std::fs::write(&ca_file, OTHER).unwrap();
        let unknown = fetch("localhost", &ca_file).unwrap_err();
        assert!(unknown.contains("certificate"), "{unknown}");
        std::fs::write(&ca_file, "").unwrap();
        let none = get("127.0.0.1:1", Some(&ca_file), "/f", &is_stopped).err().unwrap().to_string();
        assert!(!none.is_empty());
    }
}
