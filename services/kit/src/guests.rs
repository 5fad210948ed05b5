//! Connections of listeners that do not speak gRPC (Hadoop RPC, REST, metrics): so many and no more, whatever strangers open.
//!
//! When there are as many as there may be, one without a call in hand goes for each that comes, in the order of the module `idle`, by
//! which connections of all listeners go when file descriptors run short. Who is at the other end does not count: many clients
//! may share an address.

use std::{
    collections::BTreeMap,
    os::fd::RawFd,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{
    idle::{self, Activity, Evictable, Idleness, Listener, first_to_go, idle_ones, relieve},
    server::is_short_of_descriptors,
};

/// The connections of one listener.
#[derive(Debug)]
pub struct Guests {
    n_max: usize,
    known: Mutex<KnownGuest>,
}

#[derive(Debug, Default)]
struct KnownGuest {
    next: u64,
    by_id: BTreeMap<u64, Arc<GuestConnection>>,
}

#[derive(Debug, Default)]
struct GuestConnection {
    activity: Activity,
    leave: CancellationToken,
}

/// A connection's place among the others, until it is dropped.
#[derive(Debug)]
pub struct Guest {
    guests: Arc<Guests>,
    id: u64,
    connection: Arc<GuestConnection>,
}

/// A call in hand: its connection is not idle until this is dropped.
#[derive(Debug)]
pub struct GuestCall(Arc<GuestConnection>);

impl Guests {
    /// At most so many connections.
    pub fn new(n_max: usize) -> Arc<Self> {
        let guests = Arc::new(Self { n_max: n_max.max(1), known: Mutex::default() });
        let listener: Weak<Self> = Arc::downgrade(&guests);
        idle::register(listener);
        guests
    }

    /// A place for a connection with this descriptor; `None` when all others have calls in hand.
    pub fn admit(self: &Arc<Self>, descriptor: RawFd) -> Option<Guest> {
        if is_short_of_descriptors(descriptor) {
            relieve();
        }
        let mut known = self.known.lock();
        let n_staying = known.by_id.values().filter(|one| !one.activity.is_leaving()).count();
        if n_staying >= self.n_max && !known.evict() {
            return None;
        }
        let id = known.next;
        known.next += 1;
        let connection = Arc::new(GuestConnection::default());
        known.by_id.insert(id, Arc::clone(&connection));
        drop(known);
        Some(Guest { guests: Arc::clone(self), id, connection })
    }

    /// Closes idle connections of this process, because a new one could not be accepted.
    pub fn make_room(&self) {
        relieve();
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

impl KnownGuest {
    /// Asks the one that goes first to leave; whether there is one.
    fn evict(&self) -> bool {
        let first = first_to_go(idle_ones(self.by_id.values()), 1);
        first.iter().for_each(|one| one.ask_to_leave());
        !first.is_empty()
    }
}

impl GuestConnection {
    fn ask_to_leave(&self) {
        self.activity.set_leaving(true);
        self.leave.cancel();
    }
}

impl Evictable for GuestConnection {
    fn activity(&self) -> &Activity {
        &self.activity
    }

    fn evict_for_descriptor(&self) {
        self.ask_to_leave();
    }
}

impl Listener for Guests {
    fn add_idle(&self, idle: &mut Vec<(Idleness, Arc<dyn Evictable>)>) {
        let known = self.known.lock();
        let found = idle_ones(known.by_id.values());
        idle.extend(
            found.into_iter().map(|(idleness, one)| (idleness, Arc::clone(one) as Arc<dyn Evictable>)),
        );
    }
}

impl Guest {
    /// It has sent something. A connection that only ever sends does not become more worth by that.
    pub fn spoke(&self) {
        self.connection.activity.note_speech();
    }

    /// It was answered.
    pub fn answered(&self) {
        self.connection.activity.note_answer();
    }

    /// A call begins.
    pub fn call(&self) -> GuestCall {
        self.connection.activity.begin_call();
        GuestCall(Arc::clone(&self.connection))
    }

    /// Cancelled when the connection has to go.
    pub fn leave(&self) -> CancellationToken {
        self.connection.leave.clone()
    }
}

impl Drop for GuestCall {
    fn drop(&mut self) {
        self.0.activity.end_call();
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
    #[test]
    fn descriptors_are_taken_from_the_most_idle_of_all_listeners() {
        let (first, second) = (Guests::new(100), Guests::new(100));
        let served: Vec<Guest> = (0..8).map(|_| first.admit(0).unwrap()).collect();
        served.iter().for_each(Guest::answered);
        let silent: Vec<Guest> = (0..7).map(|_| second.admit(0).unwrap()).collect();
        let busy = second.admit(0).unwrap();
        let _call = busy.call();
        assert_eq!(relieve(), 8);
        assert!(silent.iter().all(gone) && !gone(&busy));
        assert_eq!(served.iter().filter(|one| gone(one)).count(), 1);
    }
}
