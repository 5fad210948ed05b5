//! The connections of a server, and which of them go when there are too many: those without an open call, those
//! that never made one first, the longest idle first. A connection with an open call is never closed here.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{slots::Share, unread::Unread};
use crate::{metrics::ConnectionMetrics, room::Room};

/// Every server of this process: they share its descriptors.
static SERVERS: Mutex<Vec<Weak<Connections>>> = Mutex::new(Vec::new());

/// Connections that this process has accepted.
static N_ACCEPTED: AtomicU64 = AtomicU64::new(1);

/// Answers of which nothing was read for so long are cut when room is short.
const READ_PATIENCE: Duration = Duration::from_secs(10);

/// One accepted connection.
#[derive(Debug)]
pub(super) struct Connection {
    opened: Instant,
    /// Who is at the other end.
    pub(super) peer: SocketAddr,
    /// Calls and streams open now.
    open: AtomicUsize,
    /// What it has done so far: a [`Merit`].
    merit: AtomicU8,
    /// When its last call ended, in ms since `opened`.
    idle_since_ms: AtomicU64,
    /// Asks the connection's task to close it.
    leave: Notify,
    /// Asked already: others are next.
    is_leaving: AtomicBool,
    /// Whether its descriptor is needed at once.
    in_a_hurry: AtomicBool,
    was_slowed: AtomicBool,
    metrics: ConnectionMetrics,
    /// What it holds of each kind of slot.
    pub(super) shares: Shares,
    /// Answers that it has not read.
    pub(super) unread: Unread,
    /// Of all connections of this process.
    pub(super) number: u64,
}

/// What one connection holds of each pool of slots.
#[derive(Clone, Debug, Default)]
pub(super) struct Shares {
    pub(super) calls: Share,
    pub(super) streams: Share,
    pub(super) leases: Share,
    pub(super) waiting: Share,
    pub(super) forwarded_calls: Share,
    pub(super) forwarded_streams: Share,
}

/// An open call: its connection is not idle until this is dropped.
#[derive(Debug)]
pub(super) struct OpenCall(Arc<Connection>);

impl Connection {
    fn new(peer: SocketAddr, metrics: ConnectionMetrics, room: &Arc<Room>) -> Self {
        Self {
            unread: Unread::new(room),
            number: N_ACCEPTED.fetch_add(1, Ordering::Relaxed),
            opened: Instant::now(),
            peer,
            open: AtomicUsize::new(0),
            merit: AtomicU8::new(Merit::Silent as u8),
            idle_since_ms: AtomicU64::new(0),
            leave: Notify::new(),
            is_leaving: AtomicBool::new(false),
            in_a_hurry: AtomicBool::new(false),
            was_slowed: AtomicBool::new(false),
            metrics,
            shares: Shares::default(),
        }
    }

    /// A call or stream begins.
    pub(super) fn call(self: &Arc<Self>) -> OpenCall {
        self.merit.store(Merit::Called as u8, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::AcqRel);
        OpenCall(Arc::clone(self))
    }

    /// Its first byte has come.
    pub(super) fn speaks(&self) {
        self.merit.fetch_max(Merit::Spoke as u8, Ordering::Relaxed);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.open.load(Ordering::Acquire) == 0
    }

    /// It sends more than its budget allows; counted once for each connection.
    pub(super) fn slowed(&self) {
        if !self.was_slowed.swap(true, Ordering::Relaxed) {
            self.metrics.slowed.inc();
        }
    }

    /// Waits until it is to be closed; whether its descriptor is needed at once.
    pub(super) async fn asked_to_leave(&self) -> bool {
        self.leave.notified().await;
        self.in_a_hurry.load(Ordering::Acquire)
    }

    /// It was asked, and a call has come meanwhile.
    pub(super) fn cancel_close(&self) {
        self.is_leaving.store(false, Ordering::Release);
    }

    fn ask_to_leave(&self, in_a_hurry: bool) {
        self.is_leaving.store(true, Ordering::Release);
        self.in_a_hurry.store(in_a_hurry, Ordering::Release);
        self.leave.notify_one();
    }

    fn idleness(&self) -> Option<Idleness> {
        let since = Duration::from_millis(self.idle_since_ms.load(Ordering::Acquire));
        let idleness = Idleness { merit: self.merit.load(Ordering::Relaxed), since: self.opened + since };
        (self.is_idle() && !self.is_leaving.load(Ordering::Acquire)).then_some(idleness)
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        let since = u64::try_from(self.0.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.idle_since_ms.store(since, Ordering::Release);
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What a connection has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Merit {
    /// Nothing.
    Silent,
    /// It has sent something.
    Spoke,
    /// It has made a call.
    Called,
}

/// Who goes first: the order of the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Idleness {
    merit: u8,
    since: Instant,
}

/// The connections of one server.
#[derive(Debug)]
pub(super) struct Connections {
    known: Mutex<Known>,
    idle_timeout: Duration,
    idle_per_address_max: usize,
    metrics: ConnectionMetrics,
    /// For answers that are not read.
    room: Arc<Room>,
}

#[derive(Debug, Default)]
struct Known {
    next: u64,
    by_id: BTreeMap<u64, (IpAddr, Arc<Connection>)>,
    n_by_address: HashMap<IpAddr, usize>,
    /// Accepted since the idle ones of an address were last looked at.
    n_since_look: usize,
}

/// A connection's place among the others, until it is dropped.
pub(super) struct Place {
    connections: Arc<Connections>,
    id: u64,
    pub(super) connection: Arc<Connection>,
}

impl Connections {
    /// Of a server that closes connections idle for `idle_timeout`, and those above `idle_per_address_max` of one
    /// address.
    pub(super) fn new(
        idle_timeout: Duration,
        idle_per_address_max: usize,
        metrics: ConnectionMetrics,
        room: Arc<Room>,
    ) -> Arc<Self> {
        let connections =
            Arc::new(Self { known: Mutex::default(), idle_timeout, idle_per_address_max, metrics, room });
        let mut servers = SERVERS.lock();
        servers.retain(|server| server.strong_count() > 0);
        servers.push(Arc::downgrade(&connections));
        drop(servers);
        connections
    }

    pub(super) fn add(self: &Arc<Self>, peer: SocketAddr) -> Place {
        let connection = Arc::new(Connection::new(peer, self.metrics.clone(), &self.room));
        let address = peer.ip();
        let mut known = self.known.lock();
        let id = known.next;
        known.next += 1;
        known.by_id.insert(id, (address, Arc::clone(&connection)));
        let n = known.n_by_address.entry(address).or_default();
        *n += 1;
        let too_many = *n > self.idle_per_address_max;
        known.n_since_look += 1;
        // Looking at all of them each time would make a flood dear.
        if too_many && known.n_since_look > known.by_id.len() / 8 {
            known.n_since_look = 0;
            self.thin_out(&known, address);
        }
        drop(known);
        self.metrics.open.inc();
        Place { connections: Arc::clone(self), id, connection }
    }

    /// Closes those that are idle for too long, and those above the bound of their address; cuts answers that nobody reads.
    pub(super) fn sweep(&self, now: Instant) {
        if self.room.is_short() {
            let all: Vec<_> = self.known.lock().by_id.values().map(|(_, one)| Arc::clone(one)).collect();
            let n_cut: usize = all.iter().map(|one| one.unread.cut_stuck(now, READ_PATIENCE)).sum();
            self.metrics.answers_cut.inc_by(u64::try_from(n_cut).unwrap_or(u64::MAX));
        }
        let known = self.known.lock();
        for (_, connection) in known.by_id.values() {
            let idle = connection.idleness();
            if idle.is_some_and(|idle| now.saturating_duration_since(idle.since) >= self.idle_timeout) {
                self.metrics.closed_idle.inc();
                connection.ask_to_leave(false);
            }
        }
        for (address, n) in &known.n_by_address {
            if *n > self.idle_per_address_max {
                self.thin_out(&known, *address);
            }
        }
    }

    fn thin_out(&self, known: &Known, address: IpAddr) {
        let of_address = known.by_id.values().filter(|(of, _)| *of == address).map(|(_, one)| one);
        let idle = idle_ones(of_address);
        let n = idle.len().saturating_sub(self.idle_per_address_max);
        for connection in first_to_go(idle, n) {
            self.metrics.closed_idle.inc();
            connection.ask_to_leave(true);
        }
    }
}

/// Descriptors of this process run short: closes some connections without an open call, of any of its servers. How
/// many.
pub(crate) fn relieve() -> usize {
    let servers: Vec<Arc<Connections>> = SERVERS.lock().iter().filter_map(Weak::upgrade).collect();
    let mut idle = Vec::new();
    for server in &servers {
        idle.extend(idle_ones(server.known.lock().by_id.values().map(|(_, one)| one)));
    }
    let n = (idle.len() / 16).clamp(8, 256);
    let gone = first_to_go(idle, n);
    for connection in &gone {
        connection.metrics.closed_short.inc();
        connection.ask_to_leave(true);
    }
    gone.len()
}

fn idle_ones<'a>(connections: impl Iterator<Item = &'a Arc<Connection>>) -> Vec<(Idleness, Arc<Connection>)> {
    connections.filter_map(|one| Some((one.idleness()?, Arc::clone(one)))).collect()
}

/// The `n` that go first.
fn first_to_go<T>(mut idle: Vec<(Idleness, T)>, n: usize) -> Vec<T> {
    if n == 0 {
        return Vec::new();
    }
    if n < idle.len() {
        idle.select_nth_unstable_by_key(n, |(idleness, _)| *idleness);
    }
    idle.truncate(n);
    idle.into_iter().map(|(_, one)| one).collect()
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut known = self.connections.known.lock();
        if let Some((address, _)) = known.by_id.remove(&self.id)
            && let Some(n) = known.n_by_address.get_mut(&address)
        {
            *n -= 1;
            if *n == 0 {
                known.n_by_address.remove(&address);
            }
        }
        drop(known);
        self.connections.metrics.open.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_never_called_goes_first_and_then_who_is_idle_longest() {
        let start = Instant::now();
        let idle = |merit: Merit, s| Idleness { merit: merit as u8, since: start + Duration::from_secs(s) };
        let all = || {
            vec![
                (idle(Merit::Called, 1), "called, old"),
                (idle(Merit::Silent, 9), "silent, new"),
                (idle(Merit::Called, 5), "called"),
                (idle(Merit::Spoke, 2), "spoke"),
                (idle(Merit::Silent, 3), "silent"),
            ]
        };
        let first = |n| {
            let mut gone = first_to_go(all(), n);
            gone.sort_unstable();
            gone
        };
        assert!(first(0).is_empty());
        assert_eq!(first(1), ["silent"]);
        assert_eq!(first(2), ["silent", "silent, new"]);
        assert_eq!(first(3), ["silent", "silent, new", "spoke"]);
        assert_eq!(first(4), ["called, old", "silent", "silent, new", "spoke"]);
        assert_eq!(first(9).len(), 5);
    }

    fn metrics() -> ConnectionMetrics {
        ConnectionMetrics::default()
    }

    fn at(address: IpAddr) -> SocketAddr {
        SocketAddr::new(address, 7)
    }

    /// Whether the connection's task would be woken to close it.
    fn leaves(connection: &Connection) -> bool {
        let asked = std::pin::pin!(connection.asked_to_leave());
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        asked.poll(&mut cx).is_ready()
    }

    #[test]
    fn idle_connections_close_and_those_with_a_call_stay() {
        let server = Connections::new(Duration::from_secs(300), 1_000, metrics(), Room::new(1));
        let address = IpAddr::from([10, 0, 0, 1]);
        let (silent, busy, done) =
            (server.add(at(address)), server.add(at(address)), server.add(at(address)));
        let _open = busy.connection.call();
        drop(done.connection.call());
        let start = Instant::now();
        server.sweep(start + Duration::from_secs(290));
        assert!([&silent, &busy, &done].iter().all(|place| !leaves(&place.connection)));
        server.sweep(start + Duration::from_secs(301));
        assert!(leaves(&silent.connection) && !leaves(&busy.connection) && leaves(&done.connection));
        assert_eq!(server.metrics.open.get(), 3);
        drop((silent, done));
        assert_eq!((server.metrics.open.get(), server.known.lock().n_by_address[&address]), (1, 1));
    }

    #[test]
    fn the_bound_of_an_address_counts_idle_connections_only() {
        let server = Connections::new(Duration::from_secs(300), 4, metrics(), Room::new(1));
        let (flood, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let member = server.add(at(flood));
        let _open = member.connection.call();
        let elsewhere = server.add(at(other));
        let idle: Vec<Place> = (0..10).map(|_| server.add(at(flood))).collect();
        server.sweep(Instant::now());
        assert!(!leaves(&member.connection) && !leaves(&elsewhere.connection));
        let gone = idle.iter().filter(|place| leaves(&place.connection)).count();
        assert_eq!(gone, 6, "so many stay as the bound says");
    }
}
