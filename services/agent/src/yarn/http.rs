//! Fetching a resource from a web server, over HTTP without TLS.

use std::{
    io::{self, BufRead as _, BufReader, Read, Write as _},
    net::{TcpStream, ToSocketAddrs as _},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
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
    reader: BufReader<Patient<'a>>,
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

/// Asks a server, `host:port`, for a path.
///
/// # Errors
/// The server cannot be reached, or has no such file.
pub(super) fn get<'a>(server: &str, path: &str, is_stopped: &'a AtomicBool) -> io::Result<Body<'a>> {
    let mut stream = connect(server)?;
    // Version 1.0: the body ends with the connection, and has no parts.
    let request =
        format!("GET {path} HTTP/1.0\r\nHost: {server}\r\nUser-Agent: godel\r\nAccept: */*\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut reader = BufReader::new(Patient { stream, is_stopped });
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
        let fetched = get(&server, "/a/b?c", &is_stopped).and_then(|mut body| body.read_to_string(&mut text));
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
        assert!(get("127.0.0.1:1", "/", &AtomicBool::new(false)).is_err());
    }
}
