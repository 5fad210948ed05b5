//! The connections of a server, and which of them go when they are idle for long or too many: in the order of
//! [`crate::idle`]. A connection with an open call is never closed here.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use godel_identity::leaves::LeafStanding;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{listeners::Origin, slots::SlotShare, unread::UnreadBytes};
use crate::{
    idle::{self, Activity, Evictable, Idleness, Listener, first_to_go, idle_ones},
    metrics::ConnectionMetrics,
    room::Room,
    security::{PeerLeaf, ServerSecurity, Transport},
};

/// Connections that this process has accepted.
static N_ACCEPTED: AtomicU64 = AtomicU64::new(1);

/// A connection counts towards the bound of its address once it has been idle for so long. One that was accepted a moment ago may have
/// sent something that a busy server has not read yet.
const IDLE_MIN: Duration = Duration::from_secs(2);

/// Answers of which nothing was read for so long are cut when room is short.
const READ_PATIENCE: Duration = Duration::from_secs(10);

/// One accepted connection.
#[derive(Debug)]
pub(super) struct Connection {
    /// Who is at the other end.
    pub(super) peer: SocketAddr,
    activity: Activity,
    /// How it came; not known before the end of its handshake.
    transport: OnceLock<Transport>,
    /// Asks the connection's task to close it.
    leave: Notify,
    /// The most urgent [`Leave`] that it was asked for.
    how_to_leave: AtomicU8,
    was_slowed: AtomicBool,
    metrics: ConnectionMetrics,
    /// What it holds of each kind of slot.
    pub(super) shares: ConnectionShares,
    /// Answers that it has not read.
    pub(super) unread: UnreadBytes,
    /// Of all connections of this process.
    pub(super) number: u64,
    /// Cancelled when the connection is gone.
    pub(super) ended: CancellationToken,
}

/// How a connection is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Leave {
    /// It is idle, and ends in good order unless a call has come meanwhile.
    Idle,
    /// The same, and its descriptor is needed at once.
    InAHurry,
    /// At once, whatever is under way: its leaf does not count any more.
    Revoked,
}

/// What one connection holds of each pool of slots.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionShares {
    pub(super) calls: SlotShare,
    pub(super) streams: SlotShare,
    pub(super) leases: SlotShare,
    pub(super) waiting: SlotShare,
    pub(super) forwarded_calls: SlotShare,
    pub(super) forwarded_streams: SlotShare,
}

/// An open call: its connection is not idle until this is dropped.
#[derive(Debug)]
pub(super) struct OpenCall(Arc<Connection>);

impl Connection {
    fn new(peer: SocketAddr, metrics: ConnectionMetrics, room: &Arc<Room>) -> Self {
        Self {
            unread: UnreadBytes::new(room),
            number: N_ACCEPTED.fetch_add(1, Ordering::Relaxed),
            peer,
            activity: Activity::default(),
            transport: OnceLock::new(),
            leave: Notify::new(),
            how_to_leave: AtomicU8::new(Leave::Idle as u8),
            was_slowed: AtomicBool::new(false),
            metrics,
            shares: ConnectionShares::default(),
            ended: CancellationToken::new(),
        }
    }

    /// A call or stream begins.
    pub(super) fn call(self: &Arc<Self>) -> OpenCall {
        self.activity.begin_call();
        OpenCall(Arc::clone(self))
    }

    /// Its first message has come.
    pub(super) fn speaks(&self) {
        self.activity.note_speech();
    }

    pub(super) fn is_idle(&self) -> bool {
        self.activity.is_idle()
    }

    /// It sends more than its budget allows; counted once for each connection.
    pub(super) fn slowed(&self) {
        if !self.was_slowed.swap(true, Ordering::Relaxed) {
            self.metrics.slowed.inc();
        }
    }

    /// Says how it came, once that is known.
    pub(super) fn came_by(&self, transport: Transport) {
        let _ = self.transport.set(transport);
    }

    /// How it came. Until that is known it counts as plain text.
    pub(super) fn transport(&self) -> &Transport {
        self.transport.get().unwrap_or(&Transport::PlainText)
    }

    /// Waits until it is to be closed.
    pub(super) async fn asked_to_leave(&self) -> Leave {
        self.leave.notified().await;
        let asked = self.how_to_leave.swap(Leave::Idle as u8, Ordering::AcqRel);
        [Leave::Revoked, Leave::InAHurry]
            .into_iter()
            .find(|leave| *leave as u8 == asked)
            .unwrap_or(Leave::Idle)
    }

    /// It was asked, and a call has come meanwhile.
    pub(super) fn cancel_close(&self) {
        self.activity.set_leaving(false);
    }

    /// Whether the first message of its handshake is whole and the handshake has not ended. It has a deadline of its own, and work was
    /// done for it: a client that is sent away now begins anew.
    fn is_in_handshake(&self) -> bool {
        self.transport.get().is_none() && !self.activity.is_silent()
    }

    fn ask_to_leave(&self, leave: Leave) {
        self.activity.set_leaving(true);
        self.how_to_leave.fetch_max(leave as u8, Ordering::AcqRel);
        self.leave.notify_one();
    }

    fn leaf(&self) -> Option<&PeerLeaf> {
        match self.transport.get()? {
            Transport::Tls { leaf } => leaf.as_deref(),
            Transport::PlainText | Transport::Unix => None,
        }
    }
}

impl Evictable for Connection {
    fn activity(&self) -> &Activity {
        &self.activity
    }

    fn evict_for_descriptor(&self) {
        self.metrics.closed_short.inc();
        self.ask_to_leave(Leave::InAHurry);
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.0.activity.end_call();
    }
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
        let listener: Weak<Self> = Arc::downgrade(&connections);
        idle::register(listener);
        connections
    }

    pub(super) fn add(self: &Arc<Self>, origin: Origin) -> Place {
        let connection = Arc::new(Connection::new(origin.peer(), self.metrics.clone(), &self.room));
        let address = origin.counted_as();
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
            self.thin_out(&known, address, Instant::now());
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
            let idle = connection.activity.idleness();
            if idle.is_some_and(|idle| idle.age(now) >= self.idle_timeout) {
                self.metrics.closed_idle.inc();
                connection.ask_to_leave(Leave::Idle);
            }
        }
        for (address, n) in &known.n_by_address {
            if *n > self.idle_per_address_max {
                self.thin_out(&known, *address, now);
            }
        }
    }

    /// Ends the connections whose leaf counts no more, whatever is under way on them.
    pub(super) fn sweep_leaves(&self, security: &ServerSecurity) {
        let known = self.known.lock();
        for (_, connection) in known.by_id.values() {
            let Some(leaf) = connection.leaf() else { continue };
            if let LeafStanding::Refused(why) = security.standing(leaf) {
                self.metrics.revoked.inc();
                tracing::debug!(caller = leaf.key, %why, "ended a connection whose certificate counts no more");
                connection.ask_to_leave(Leave::Revoked);
            }
        }
    }

    fn thin_out(&self, known: &Known, address: IpAddr, now: Instant) {
        let of_address = known.by_id.values().filter(|(of, _)| *of == address).map(|(_, one)| one);
        let mut idle = idle_ones(of_address.filter(|one| !one.is_in_handshake()));
        idle.retain(|(idle, _)| idle.age(now) >= IDLE_MIN);
        let n = idle.len().saturating_sub(self.idle_per_address_max);
        for connection in first_to_go(idle, n) {
            self.metrics.closed_idle.inc();
            connection.ask_to_leave(Leave::InAHurry);
        }
    }
}

impl Listener for Connections {
    fn add_idle(&self, idle: &mut Vec<(Idleness, Arc<dyn Evictable>)>) {
        let known = self.known.lock();
        let found = idle_ones(known.by_id.values().map(|(_, one)| one));
        idle.extend(
            found.into_iter().map(|(idleness, one)| (idleness, Arc::clone(one) as Arc<dyn Evictable>)),
        );
    }
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
        self.connection.ended.cancel();
        self.connections.metrics.open.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics() -> ConnectionMetrics {
        ConnectionMetrics::default()
    }

    fn at(address: IpAddr) -> Origin {
        Origin::Tcp(SocketAddr::new(address, 7))
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
        assert!(!idle.iter().any(|place| leaves(&place.connection)), "they were accepted a moment ago");
        server.sweep(Instant::now() + IDLE_MIN);
        assert!(!leaves(&member.connection) && !leaves(&elsewhere.connection));
        let gone = idle.iter().filter(|place| leaves(&place.connection)).count();
        assert_eq!(gone, 6, "so many stay as the bound says");
    }

    #[test]
    fn a_handshake_under_way_is_not_idle_for_the_bound_of_its_address() {
        let server = Connections::new(Duration::from_secs(300), 2, metrics(), Room::new(1));
        let address = IpAddr::from([10, 0, 0, 1]);
        let shaking: Vec<Place> = (0..10).map(|_| server.add(at(address))).collect();
        shaking.iter().for_each(|place| place.connection.speaks());
        let later = || Instant::now() + IDLE_MIN;
        server.sweep(later());
        assert!(!shaking.iter().any(|place| leaves(&place.connection)));
        // Those that never sent anything are, and those whose handshake has ended.
        let silent: Vec<Place> = (0..3).map(|_| server.add(at(address))).collect();
        shaking[..2].iter().for_each(|place| place.connection.came_by(Transport::Tls { leaf: None }));
        server.sweep(later());
        assert_eq!(silent.iter().filter(|place| leaves(&place.connection)).count(), 3);
        assert!(!shaking.iter().any(|place| leaves(&place.connection)));
    }
}
