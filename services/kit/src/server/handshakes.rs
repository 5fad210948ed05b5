//! Places for TLS handshakes: so many at once, and who gets one when there are none left.
//!
//! A place is needed only once the first message of a handshake is whole, so one that never gets so far holds none. Among those that wait, the
//! address goes first that has fewest handshakes under way. Of one address the oldest goes first as long as it has waited for less than a fifth of the
//! deadline: whoever comes back at once after a restart is ahead of the crowd that follows. When all have waited longer, the youngest goes first: it is
//! the one whose client is still there, while a backlog of clients that have given up is left to its deadline. A handshake that has had its place for
//! a fifth of the deadline is overdue. It goes on while places are free, and loses its place as soon as somebody waits, the longest overdue first. So
//! endless handshakes take places from each other, and the places that one address can hold keep nobody else waiting for long.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

/// The part of the deadline after which a handshake is overdue, and after which one that waits is no longer served in the order of its coming.
const PATIENCE_PART: u32 = 5;

/// The places of one server.
#[derive(Debug)]
pub(super) struct Handshakes {
    n_max: usize,
    /// See [`PATIENCE_PART`].
    patience: Duration,
    line: Mutex<HandshakeLine>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct HandshakePlace {
    handshakes: Arc<Handshakes>,
    address: IpAddr,
    /// In the order in which places were asked for.
    number: u64,
    /// Somebody waits for it.
    yields: Arc<Notify>,
}

#[derive(Debug, Default)]
struct HandshakeLine {
    next: u64,
    n_running: usize,
    by_address: HashMap<IpAddr, AddressLine>,
    /// Addresses that wait, the next one first: by handshakes under way, then by the youngest that waits.
    order: BTreeSet<(usize, Reverse<u64>, IpAddr)>,
    overdue: BTreeMap<u64, Arc<Notify>>,
}

#[derive(Debug, Default)]
struct AddressLine {
    n_running: usize,
    waiting: BTreeMap<u64, WaitingHandshake>,
    /// The first of those that were not yet found to have waited for too long.
    first_fresh: u64,
}

#[derive(Debug)]
struct WaitingHandshake {
    since: Instant,
    sender: oneshot::Sender<HandshakePlace>,
}

/// One that waits, until it is dropped.
struct HandshakeWait<'a> {
    handshakes: &'a Handshakes,
    address: IpAddr,
    number: u64,
}

impl Handshakes {
    /// At most `n_max` at once, each of which takes at most `timeout`.
    pub(super) fn new(n_max: usize, timeout: Duration) -> Arc<Self> {
        let patience = timeout / PATIENCE_PART;
        Arc::new(Self { n_max: n_max.max(1), patience, line: Mutex::default() })
    }

    /// Waits for a place.
    pub(super) async fn place(self: &Arc<Self>, address: IpAddr) -> HandshakePlace {
        let (number, place) = {
            let mut line = self.line.lock();
            let number = line.next;
            line.next += 1;
            if line.n_running < self.n_max {
                line.n_running += 1;
                line.change(address, |of_address| of_address.n_running += 1);
                return self.made(address, number);
            }
            let (sender, place) = oneshot::channel();
            let waiting = WaitingHandshake { since: Instant::now(), sender };
            line.change(address, |of_address| drop(of_address.waiting.insert(number, waiting)));
            if let Some((_, yields)) = line.overdue.pop_first() {
                yields.notify_one();
            }
            (number, place)
        };
        let waiting = HandshakeWait { handshakes: self, address, number };
        let place = place.await;
        drop(waiting);
        // Whoever waits is in the line, and who leaves the line is given a place.
        place.unwrap_or_else(|_| self.made(address, number))
    }

    fn made(self: &Arc<Self>, address: IpAddr, number: u64) -> HandshakePlace {
        HandshakePlace { handshakes: Arc::clone(self), address, number, yields: Arc::default() }
    }

    /// Gives the place of one that has ended to the next.
    fn pass_on(self: &Arc<Self>, number: u64, address: IpAddr) {
        let next = {
            let mut line = self.line.lock();
            line.overdue.remove(&number);
            line.change(address, |of_address| of_address.n_running -= 1);
            let next = line.pop(self.patience);
            if next.is_none() {
                line.n_running -= 1;
            }
            next
        };
        if let Some((address, number, sender)) = next {
            // Whoever has left meanwhile drops it, and it goes to the next one.
            let _ = sender.send(self.made(address, number));
        }
    }

    /// Whether it may go on although it is overdue.
    fn is_spared(&self, place: &HandshakePlace) -> bool {
        let mut line = self.line.lock();
        let is_spared = line.order.is_empty();
        if is_spared {
            line.overdue.insert(place.number, Arc::clone(&place.yields));
        }
        is_spared
    }

    #[cfg(test)]
    fn n_waiting(&self) -> usize {
        self.line.lock().by_address.values().map(|of_address| of_address.waiting.len()).sum()
    }
}

impl HandshakeLine {
    /// Changes what an address has, and keeps the order.
    fn change(&mut self, address: IpAddr, change: impl FnOnce(&mut AddressLine)) {
        let of_address = self.by_address.entry(address).or_default();
        if let Some(key) = of_address.key(address) {
            self.order.remove(&key);
        }
        change(of_address);
        if let Some(key) = of_address.key(address) {
            self.order.insert(key);
        } else if of_address.n_running == 0 {
            self.by_address.remove(&address);
        }
    }

    /// Takes the next one out, and counts it as under way.
    fn pop(&mut self, patience: Duration) -> Option<(IpAddr, u64, oneshot::Sender<HandshakePlace>)> {
        let (_, _, address) = *self.order.first()?;
        let mut next = None;
        self.change(address, |of_address| {
            next = of_address.pop(patience);
            of_address.n_running += 1;
        });
        next.map(|(number, waiting)| (address, number, waiting.sender))
    }
}

impl AddressLine {
    /// Its place in the order; `None`: nobody waits.
    fn key(&self, address: IpAddr) -> Option<(usize, Reverse<u64>, IpAddr)> {
        let (youngest, _) = self.waiting.last_key_value()?;
        Some((self.n_running, Reverse(*youngest), address))
    }

    /// Takes the next one out.
    fn pop(&mut self, patience: Duration) -> Option<(u64, WaitingHandshake)> {
        while let Some((number, waiting)) = self.waiting.range(self.first_fresh..).next() {
            let number = *number;
            if waiting.since.elapsed() < patience {
                return self.waiting.remove(&number).map(|waiting| (number, waiting));
            }
            self.first_fresh = number + 1;
        }
        self.waiting.pop_last()
    }
}

impl HandshakePlace {
    /// Waits for the end of a handshake; `None`: it was overdue, and another one waits for the place.
    pub(super) async fn hold<F: Future>(&self, handshake: F) -> Option<F::Output> {
        let mut handshake = std::pin::pin!(handshake);
        if let Ok(ended) = tokio::time::timeout(self.handshakes.patience, handshake.as_mut()).await {
            return Some(ended);
        }
        if !self.handshakes.is_spared(self) {
            return None;
        }
        tokio::select! {
            ended = handshake => Some(ended),
            () = self.yields.notified() => None,
        }
    }
}

impl Drop for HandshakePlace {
    fn drop(&mut self) {
        self.handshakes.pass_on(self.number, self.address);
    }
}

impl Drop for HandshakeWait<'_> {
    fn drop(&mut self) {
        let mut line = self.handshakes.line.lock();
        line.change(self.address, |of_address| drop(of_address.waiting.remove(&self.number)));
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use super::*;
    use crate::tests::fake::soon;

    type Waiting = Pin<Box<dyn Future<Output = HandshakePlace>>>;

    const TIMEOUT: Duration = Duration::from_secs(5);

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn ask(handshakes: &Arc<Handshakes>, last: u8) -> Waiting {
        let handshakes = Arc::clone(handshakes);
        Box::pin(async move { handshakes.place(address(last)).await })
    }

    /// The place, if there is one by now.
    fn look(waiting: &mut Waiting) -> Option<HandshakePlace> {
        ended(waiting)
    }

    fn take(handshakes: &Arc<Handshakes>, last: u8) -> HandshakePlace {
        look(&mut ask(handshakes, last)).unwrap()
    }

    #[test]
    fn of_one_address_the_oldest_goes_first_while_it_has_not_waited_long() {
        let handshakes = Handshakes::new(1, TIMEOUT);
        let held = take(&handshakes, 1);
        let mut waiting: Vec<Waiting> = (0..3).map(|_| ask(&handshakes, 1)).collect();
        assert!(waiting.iter_mut().all(|one| look(one).is_none()));
        drop(held);
        let served: Vec<Option<HandshakePlace>> = waiting.iter_mut().map(look).collect();
        assert_eq!(served.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, false]);
    }

    #[test]
    fn of_one_address_the_youngest_goes_first_when_all_have_waited_long() {
        let handshakes = Handshakes::new(2, Duration::ZERO);
        let (first, second) = (take(&handshakes, 1), take(&handshakes, 1));
        let mut waiting: Vec<Waiting> = (0..3).map(|_| ask(&handshakes, 1)).collect();
        assert!(waiting.iter_mut().all(|one| look(one).is_none()));
        drop(first);
        let served: Vec<Option<HandshakePlace>> = waiting.iter_mut().map(look).collect();
        assert_eq!(served.iter().map(Option::is_some).collect::<Vec<_>>(), [false, false, true]);
        // One that gives up holds nobody up.
        drop(waiting.remove(1));
        drop(second);
        assert!(look(&mut waiting[0]).is_some());
        assert_eq!(handshakes.n_waiting(), 0);
    }

    #[test]
    fn the_address_with_fewest_under_way_goes_first() {
        let handshakes = Handshakes::new(3, Duration::ZERO);
        let mut held: Vec<HandshakePlace> = (0..3).map(|_| take(&handshakes, 1)).collect();
        let mut other = ask(&handshakes, 2);
        assert!(look(&mut other).is_none());
        let mut flood: Vec<Waiting> = (0..50).map(|_| ask(&handshakes, 1)).collect();
        assert!(flood.iter_mut().all(|one| look(one).is_none()));
        held.pop();
        assert!(flood.iter_mut().all(|one| look(one).is_none()));
        let place = look(&mut other).unwrap();
        held.pop();
        assert!(look(&mut flood[49]).is_some(), "as many each: the youngest");
        drop((place, held, flood));
        let line = handshakes.line.lock();
        assert_eq!((line.n_running, line.by_address.len(), line.order.len()), (0, 0, 0));
    }

    #[test]
    fn a_place_for_one_that_has_left_goes_to_the_next() {
        let handshakes = Handshakes::new(1, Duration::ZERO);
        let held = take(&handshakes, 1);
        let (mut old, mut young) = (ask(&handshakes, 1), ask(&handshakes, 1));
        assert!(look(&mut old).is_none() && look(&mut young).is_none());
        drop(held);
        // It has the place and never looks.
        drop(young);
        assert!(look(&mut old).is_some());
    }

    fn ended<F: Future + ?Sized>(handshake: &mut Pin<Box<F>>) -> Option<F::Output> {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match handshake.as_mut().poll(&mut cx) {
            std::task::Poll::Ready(ended) => Some(ended),
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn an_overdue_handshake_is_spared_until_another_waits() {
        let handshakes = Handshakes::new(2, TIMEOUT);
        let (first, second) = (take(&handshakes, 1), take(&handshakes, 1));
        assert!(handshakes.is_spared(&second) && handshakes.is_spared(&first), "nobody waits");
        let yields = [&first, &second].map(|place| Arc::clone(&place.yields));
        let is_told = |at: usize| ended(&mut Box::pin(yields[at].notified())).is_some();
        let mut third = ask(&handshakes, 1);
        assert!(look(&mut third).is_none());
        assert_eq!((is_told(1), is_told(0)), (false, true), "the one longest overdue");
        drop(first);
        let third = look(&mut third).unwrap();
        let mut fourth = ask(&handshakes, 1);
        assert!(look(&mut fourth).is_none() && is_told(1), "then the next one");
        assert!(!handshakes.is_spared(&third), "somebody waits");
    }

    #[tokio::test]
    async fn endless_handshakes_pass_their_places_on() {
        let handshakes = Handshakes::new(2, Duration::from_millis(5));
        for _ in 0..2 {
            let place = take(&handshakes, 1);
            crate::task::spawn("endless", async move { place.hold(std::future::pending::<()>()).await });
        }
        for last in [1, 2] {
            let place = soon("a place", handshakes.place(address(last))).await;
            assert_eq!(place.hold(std::future::ready(7)).await, Some(7));
        }
    }
}
