//! What a server listens on: any number of TCP ports and unix sockets.

use std::{
    future::poll_fn,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsRawFd, RawFd},
    task::{Context, Poll},
};

use tokio::net::{TcpListener, TcpStream, UnixStream};

use super::unix::UnixDoor;

/// What a server listens on.
#[derive(Debug, Default)]
pub struct Listeners {
    all: Vec<OneListener>,
    /// Which one is asked first: they take turns, so that a flood at one keeps nobody from another.
    next: usize,
}

#[derive(Debug)]
enum OneListener {
    Tcp(TcpListener),
    Unix(UnixDoor),
}

/// A connection that was accepted.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Tcp(SocketAddr),
    /// A process of this machine.
    Unix,
}

impl Listeners {
    /// Adds a TCP port.
    #[must_use]
    pub fn and_tcp(mut self, listener: TcpListener) -> Self {
        self.all.push(OneListener::Tcp(listener));
        self
    }

    /// Adds a unix socket.
    #[must_use]
    pub fn and_unix(mut self, door: UnixDoor) -> Self {
        self.all.push(OneListener::Unix(door));
        self
    }

    /// Waits for a connection to any of them.
    pub(super) async fn accept(&mut self) -> io::Result<(Socket, Origin)> {
        poll_fn(|cx| {
            let n = self.all.len();
            for offset in 0..n {
                let at = (self.next + offset) % n;
                if let Poll::Ready(accepted) = self.all[at].poll_accept(cx) {
                    self.next = at + 1;
                    return Poll::Ready(accepted);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Where they are, for the log.
    pub(super) fn places(&self) -> Vec<String> {
        self.all.iter().map(OneListener::place).collect()
    }
}

impl From<TcpListener> for Listeners {
    fn from(listener: TcpListener) -> Self {
        Self::default().and_tcp(listener)
    }
}

impl OneListener {
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Socket, Origin)>> {
        match self {
            Self::Tcp(listener) => listener
                .poll_accept(cx)
                .map_ok(|(stream, address)| (Socket::Tcp(stream), Origin::Tcp(address))),
            Self::Unix(door) => {
                door.listener().poll_accept(cx).map_ok(|(stream, _)| (Socket::Unix(stream), Origin::Unix))
            }
        }
    }

    fn place(&self) -> String {
        match self {
            Self::Tcp(listener) => {
                listener.local_addr().map_or_else(|_| "?".to_owned(), |address| address.to_string())
            }
            Self::Unix(door) => format!("unix:{}", door.path().display()),
        }
    }
}

impl Socket {
    /// Waits until something has come, and returns the first byte of a TCP connection; `None`: it is closed, or broken.
    pub(super) async fn first_byte(&self) -> Option<u8> {
        match self {
            Self::Tcp(stream) => {
                let mut first = [0];
                matches!(stream.peek(&mut first).await, Ok(1)).then_some(first[0])
            }
            // There is no TLS to tell from plain text.
            Self::Unix(stream) => stream.readable().await.ok().map(|()| 0),
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
        }
    }
}

impl Origin {
    /// The address at the other end; that of this machine for processes that came by a unix socket.
    pub(super) fn peer(self) -> SocketAddr {
        match self {
            Self::Tcp(address) => address,
            Self::Unix => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        }
    }

    /// The address that its connections count for. All that come by unix sockets count for one that no other connection can have.
    pub(super) fn counted_as(self) -> IpAddr {
        match self {
            Self::Tcp(address) => address.ip(),
            Self::Unix => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
    }
}
