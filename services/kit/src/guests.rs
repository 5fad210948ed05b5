//! Connections of listeners that do not speak gRPC (Hadoop RPC, REST, metrics): so many and no more, whatever strangers open.
//!
//! When there are as many as there may be, or when file descriptors run short, one without a call in hand goes for each that
//! comes: those that never said anything first, then those that never got as far as an answer, the longest idle first. That is
//! the order in which the gRPC server closes connections too. Who is at the other end does not count: many clients may share
//! an address.

use std::{
    collections::BTreeMap,
    os::fd::RawFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::server::{is_short_of_descriptors, relieve};

/// The connections of one listener.
#[derive(Debug)]
pub struct Guests {
    n_max: usize,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    next: u64,
    by_id: BTreeMap<u64, Arc<Connection>>,
}

#[derive(Debug)]
struct Connection {
    opened: Instant,
    merit: AtomicU8,
    n_calls: AtomicUsize,
    /// When it did something last, ms since `opened`.
    active_ms: AtomicU64,
    is_leaving: AtomicBool,
    leave: CancellationToken,
}

/// A connection's place among the others, until it is dropped.
#[derive(Debug)]
pub struct Guest {
    guests: Arc<Guests>,
    id: u64,
    connection: Arc<Connection>,
}

/// A call in hand: its connection is not idle until this is dropped.
#[derive(Debug)]
pub struct GuestCall(Arc<Connection>);

/// What a connection has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Merit {
    Silent,
    Spoke,
    Answered,
}

/// Who goes first: the order of the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Idleness {
    merit: u8,
    since: Instant,
}

impl Guests {
    /// At most so many connections.
    pub fn new(n_max: usize) -> Arc<Self> {
        Arc::new(Self { n_max: n_max.max(1), known: Mutex::default() })
    }

    /// A place for a connection with this descriptor; `None` when all others have calls in hand.
    pub fn admit(self: &Arc<Self>, descriptor: RawFd) -> Option<Guest> {
        let is_short = is_short_of_descriptors(descriptor);
        if is_short {
            relieve();
        }
        let mut known = self.known.lock();
        let n_staying = known.by_id.values().filter(|one| !one.is_leaving.load(Ordering::Acquire)).count();
        let is_full = n_staying >= self.n_max;
        if is_full || is_short {
            let makes_room = known.evict();
            if is_full && !makes_room {
                return None;
            }
        }
        let id = known.next;
        known.next += 1;
        let connection = Arc::new(Connection {
            opened: Instant::now(),
            merit: AtomicU8::new(Merit::Silent as u8),
            n_calls: AtomicUsize::new(0),
            active_ms: AtomicU64::new(0),
            is_leaving: AtomicBool::new(false),
            leave: CancellationToken::new(),
        });
        known.by_id.insert(id, Arc::clone(&connection));
        drop(known);
        Some(Guest { guests: Arc::clone(self), id, connection })
    }

    /// Closes one, because a new one could not be accepted.
    pub fn evict_one(&self) {
        relieve();
        self.known.lock().evict();
    }

    /// Connections open now.
    pub fn len(&self) -> usize {
        self.known.lock().by_id.len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Known {
    /// Asks the one that goes first to leave; whether there is one.
    fn evict(&self) -> bool {
        let idle = self.by_id.values().filter_map(|one| Some((one.idleness()?, one)));
        let Some((_, first)) = idle.min_by_key(|(idleness, _)| *idleness) else { return false };
        first.is_leaving.store(true, Ordering::Release);
        first.leave.cancel();
        true
    }
}

impl Connection {
    fn idleness(&self) -> Option<Idleness> {
        let is_busy = self.n_calls.load(Ordering::Acquire) > 0 || self.is_leaving.load(Ordering::Acquire);
        let since = self.opened + Duration::from_millis(self.active_ms.load(Ordering::Acquire));
        (!is_busy).then_some(Idleness { merit: self.merit.load(Ordering::Relaxed), since })
    }

    fn active(&self, merit: Merit) {
        self.merit.fetch_max(merit as u8, Ordering::Relaxed);
        let now = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.active_ms.store(now, Ordering::Release);
    }
}

impl Guest {
    /// It has sent something. A connection that only ever sends does not become more worth by that.
    pub fn spoke(&self) {
        self.connection.merit.fetch_max(Merit::Spoke as u8, Ordering::Relaxed);
    }

    /// It was answered.
    pub fn answered(&self) {
        self.connection.active(Merit::Answered);
    }

    /// A call begins.
    pub fn call(&self) -> GuestCall {
        self.connection.n_calls.fetch_add(1, Ordering::AcqRel);
        GuestCall(Arc::clone(&self.connection))
    }

    /// Cancelled when the connection has to go.
    pub fn leave(&self) -> CancellationToken {
        self.connection.leave.clone()
    }
}

impl Drop for GuestCall {
    fn drop(&mut self) {
        self.0.active(Merit::Answered);
        self.0.n_calls.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.guests.known.lock().by_id.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(guest: &Guest) -> bool {
        guest.leave().is_cancelled()
    }

    #[test]
    fn idle_connections_make_room_and_those_with_calls_stay() {
        let guests = Guests::new(4);
        let admit = || guests.admit(0).unwrap();
        let (silent, spoke, answered, busy) = (admit(), admit(), admit(), admit());
        spoke.spoke();
        answered.answered();
        let call = busy.call();
        let all = [&silent, &spoke, &answered, &busy];
        let left = || all.map(gone);
        let first = admit();
        assert_eq!(left(), [true, false, false, false], "who never said anything goes first");
        let _call = first.call();
        let second = admit();
        assert_eq!(left(), [true, true, false, false], "then who was never answered");
        let _other = second.call();
        let third = admit();
        assert_eq!(left(), [true, true, true, false], "then who is idle");
        let _third = third.call();
        assert!(guests.admit(0).is_none(), "all have calls in hand");
        drop(call);
        assert!(guests.admit(0).is_some() && gone(&busy));
    }

    #[test]
    fn a_flood_of_connections_does_not_push_out_clients_that_are_served() {
        let guests = Guests::new(100);
        let served: Vec<Guest> = (0..50).map(|_| guests.admit(0).unwrap()).collect();
        served.iter().for_each(Guest::answered);
        let mut flood = Vec::new();
        for _ in 0..5_000 {
            let one = guests.admit(0).unwrap();
            one.spoke();
            flood.push(one);
            flood.retain(|one| !gone(one));
        }
        assert!(!served.iter().any(gone));
        assert_eq!((flood.len(), guests.len()), (50, 100));
    }
}
