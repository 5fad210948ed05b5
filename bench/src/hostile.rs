//! Connections that mean harm to a server with TLS: half-open ones, and handshakes without an end.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpSocket,
    task::JoinSet,
};

/// Where they come from: an address of their own, as other machines have one.
const FROM: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)), 0);
/// Between two tries while nobody listens.
const PAUSE: Duration = Duration::from_millis(20);
/// The first byte of a TLS record that holds a part of a handshake.
const HANDSHAKE: u8 = 0x16;

/// So many connections, opened again as soon as the server closes them, until this is dropped.
pub(super) struct HostileConnections {
    _open: JoinSet<()>,
    n_opened: Arc<AtomicU64>,
}

impl HostileConnections {
    /// Half of them say one byte and no more; the others begin a handshake and never go on with it.
    pub(super) fn start(address: SocketAddr, n: usize) -> Self {
        let (mut open, n_opened) = (JoinSet::new(), Arc::<AtomicU64>::default());
        for number in 0..n {
            let words = if number % 2 == 0 { vec![HANDSHAKE] } else { client_hello() };
            let n_opened = Arc::clone(&n_opened);
            open.spawn(async move {
                loop {
                    if hold(address, &words, &n_opened).await.is_err() {
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            });
        }
        Self { _open: open, n_opened }
    }

    /// How many were opened so far.
    pub(super) fn n_opened(&self) -> u64 {
        self.n_opened.load(Ordering::Relaxed)
    }
}

/// Opens one, says its words, and listens until the server closes it.
async fn hold(address: SocketAddr, words: &[u8], n_opened: &AtomicU64) -> io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(FROM)?;
    let mut stream = socket.connect(address).await?;
    n_opened.fetch_add(1, Ordering::Relaxed);
    stream.write_all(words).await?;
    let mut answer = [0; 4_096];
    while stream.read(&mut answer).await? > 0 {}
    Ok(())
}

/// The first message of a handshake of TLS 1.3 for HTTP/2, with a key that nobody has.
fn client_hello() -> Vec<u8> {
    let mut share = vec![0x00, 0x1d];
    share.extend(with_length(&[9; 32]));
    let extensions = [
        // The version.
        extension(0x2b, &[2, 0x03, 0x04]),
        // Key exchange by X25519, and a share for it.
        extension(0x0a, &with_length(&[0x00, 0x1d])),
        extension(0x33, &with_length(&share)),
        // Signatures by ECDSA with P-256, Ed25519, and RSA.
        extension(0x0d, &with_length(&[0x04, 0x03, 0x08, 0x07, 0x08, 0x04])),
        // HTTP/2.
        extension(0x10, &with_length(b"\x02h2")),
    ];
    let mut hello = vec![0x03, 0x03];
    hello.extend([7; 32]);
    // No session; all ciphers of TLS 1.3; no compression.
    hello.push(0);
    hello.extend(with_length(&[0x13, 0x01, 0x13, 0x02, 0x13, 0x03]));
    hello.extend([1, 0]);
    hello.extend(with_length(&extensions.concat()));
    let mut message = vec![1, 0];
    message.extend(with_length(&hello));
    let mut record = vec![HANDSHAKE, 0x03, 0x01];
    record.extend(with_length(&message));
    record
}

fn extension(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, kind];
    bytes.extend(with_length(content));
    bytes
}

/// With two bytes of length before it.
fn with_length(content: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(content.len()).unwrap_or(u16::MAX).to_be_bytes().to_vec();
    bytes.extend(content);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_a_first_message_are_right() {
        let hello = client_hello();
        let length = |at: usize| usize::from(hello[at]) << 8 | usize::from(hello[at + 1]);
        assert_eq!((hello[0], length(3)), (HANDSHAKE, hello.len() - 5), "the record");
        assert_eq!((hello[5], hello[6], length(7)), (1, 0, hello.len() - 9), "the message");
        let extensions = 9 + 2 + 32 + 1 + 8 + 2;
        assert_eq!(length(extensions), hello.len() - extensions - 2, "the extensions");
    }
}
