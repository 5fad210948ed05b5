//! A TCP proxy that misbehaves on demand: it cuts connections at random byte positions, or holds back what
//! a client sends until it is released.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinHandle,
};

/// Bytes that one connection may hold back: more than any test sends meanwhile.
const HELD_BYTES_MAX: usize = 8 << 20;

/// Forwards connections to one target. Ends when dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Forward,
    /// Each connection is cut after a number of bytes chosen from 1 to this.
    Cut {
        bytes_max: usize,
    },
    /// What clients send stays here.
    Hold,
}

#[derive(Debug)]
struct Shared {
    mode: watch::Sender<Mode>,
    rng: Mutex<StdRng>,
    /// What was held since [`Proxy::hold`], over all connections.
    held: Mutex<Vec<u8>>,
    n_cuts: AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

impl Proxy {
    /// Listens on `ip` and forwards to `target`.
    pub async fn start(ip: IpAddr, target: SocketAddr, seed: u64) -> io::Result<Self> {
        let listener = TcpListener::bind((ip, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            mode: watch::Sender::new(Mode::Forward),
            rng: Mutex::new(StdRng::seed_from_u64(seed)),
            held: Mutex::new(Vec::new()),
            n_cuts: AtomicU64::new(0),
        });
        let accepting = tokio::spawn(accept(listener, target, Arc::clone(&shared)));
        Ok(Self { address, shared, accepting })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on each connection, old or new, is cut after at most `bytes_max` more bytes.
    pub fn cut_randomly(&self, bytes_max: usize) {
        self.shared.mode.send_replace(Mode::Cut { bytes_max: bytes_max.max(1) });
    }

    /// Keeps back what clients send from now on.
    pub fn hold(&self) {
        self.shared.held.lock().clear();
        self.shared.mode.send_replace(Mode::Hold);
    }

    /// Forwards again; what was held goes first.
    pub fn heal(&self) {
        self.shared.mode.send_replace(Mode::Forward);
    }

    /// Bytes held back since [`Proxy::hold`].
    pub fn held_bytes(&self) -> usize {
        self.shared.held.lock().len()
    }

    /// Whether `needle` is among the bytes held back.
    pub fn holds(&self, needle: &[u8]) -> bool {
        self.shared.held.lock().windows(needle.len()).any(|window| window == needle)
    }

    /// Connections cut so far.
    pub fn n_cuts(&self) -> u64 {
        self.shared.n_cuts.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        // Ends the pumps: their mode has gone.
        self.shared.mode.send_replace(Mode::Cut { bytes_max: 1 });
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        // A target that is down looks to the client like a connection that closes at once.
        let Ok(server) = TcpStream::connect(target).await else { continue };
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        tokio::spawn(connection(client, server, Arc::clone(&shared)));
    }
}

/// Pumps both ways until either side closes or the connection is cut; then closes both.
async fn connection(client: TcpStream, server: TcpStream, shared: Arc<Shared>) {
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    tokio::select! {
        _ = pump(client_read, server_write, Direction::ToServer, &shared) => {}
        _ = pump(server_read, client_write, Direction::ToClient, &shared) => {}
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    direction: Direction,
    shared: &Shared,
) -> io::Result<()> {
    let mut modes = shared.mode.subscribe();
    let mut chunk = vec![0; 16 << 10];
    let mut pending = Vec::new();
    let mut budget: Option<usize> = None;
    loop {
        let mode = *modes.borrow_and_update();
        let is_held = mode == Mode::Hold && direction == Direction::ToServer;
        if let Mode::Cut { bytes_max } = mode {
            let left = budget.get_or_insert_with(|| shared.rng.lock().random_range(1..=bytes_max));
            if pending.len() >= *left {
                to.write_all(&pending[..*left]).await?;
                shared.n_cuts.fetch_add(1, Ordering::SeqCst);
                return Ok(());
            }
            *left -= pending.len();
        } else {
            budget = None;
        }
        if !is_held && !pending.is_empty() {
            to.write_all(&pending).await?;
            pending.clear();
        }
        tokio::select! {
            read = from.read(&mut chunk), if pending.len() < HELD_BYTES_MAX => {
                let n_bytes = read?;
                if n_bytes == 0 {
                    return Ok(());
                }
                if is_held {
                    shared.held.lock().extend_from_slice(&chunk[..n_bytes]);
                }
                pending.extend_from_slice(&chunk[..n_bytes]);
            }
            changed = modes.changed() => if changed.is_err() { return Ok(()) },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::wait::{LIMIT, wait_for};

    const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// A server that echoes, behind a proxy.
    async fn echo_behind_proxy() -> (Proxy, JoinHandle<()>) {
        let listener = TcpListener::bind((LOCALHOST, 0)).await.unwrap();
        let target = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        (Proxy::start(LOCALHOST, target, 7).await.unwrap(), server)
    }

    #[tokio::test]
    async fn forwards_holds_and_releases() {
        let (proxy, server) = echo_behind_proxy().await;
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        let mut answer = [0; 4];
        stream.write_all(b"ping").await.unwrap();
        stream.read_exact(&mut answer).await.unwrap();
        proxy.hold();
        stream.write_all(b"held").await.unwrap();
        wait_for("held bytes", LIMIT, async || match proxy.held_bytes() {
            4 => Ok(()),
            held => Err(format!("{held} held")),
        })
        .await;
        proxy.heal();
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"held");
        server.abort();
    }

    #[tokio::test]
    async fn cuts_within_the_budget() {
        let (proxy, server) = echo_behind_proxy().await;
        proxy.cut_randomly(100);
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        stream.write_all(&[1; 200]).await.unwrap();
        let mut received = Vec::new();
        // Ends with an end of file or a reset.
        let _ = stream.read_to_end(&mut received).await;
        assert!(received.len() <= 100, "{} bytes", received.len());
        assert_eq!(proxy.n_cuts(), 1);
        server.abort();
    }
}
