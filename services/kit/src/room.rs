//! Room for bytes that a server holds for its clients: requests on their way in, answers that were not read yet.
//!
//! A client may hold as many bytes as are free: one greedy client gets half of the room, two a third each. A client that
//! holds nothing gets room for one message as long as there is any, so that a message never waits for ever because of its
//! size. Who a client is, the server says: a connection, or somebody whose calls another member forwards; never an
//! address, since thousands of agents may share one.

use std::{
    collections::HashMap,
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_stream::Stream;

/// A number of bytes.
#[derive(Debug)]
pub struct Room {
    size: usize,
    /// Who holds nothing gets room as long as all hold less than this.
    newcomers_max: usize,
    used: AtomicUsize,
    waiting: Mutex<Vec<Waker>>,
    n_waiting: AtomicUsize,
}

/// What one client holds of a room. Clones are of the same client.
#[derive(Clone, Debug)]
pub struct Share(Arc<Client>);

#[derive(Debug)]
struct Client {
    room: Arc<Room>,
    held: AtomicUsize,
}

/// Shares of a room by the names of clients, each as long as it holds anything or somebody has it.
#[derive(Debug)]
pub struct ShareByName {
    room: Arc<Room>,
    shares: Mutex<HashMap<String, Share>>,
}

/// Bytes of a room, until they are dropped.
#[derive(Debug)]
pub struct Taken {
    share: Share,
    bytes: usize,
}

impl Room {
    /// At least one byte.
    pub fn new(size: usize) -> Arc<Self> {
        Self::with(size, size)
    }

    /// With as much again for clients that hold nothing, one message each: others may have taken all of it.
    pub fn with_reserve(size: usize) -> Arc<Self> {
        Self::with(size, size.saturating_mul(2))
    }

    fn with(size: usize, newcomers_max: usize) -> Arc<Self> {
        Arc::new(Self {
            size: size.max(1),
            newcomers_max: newcomers_max.max(1),
            used: AtomicUsize::new(0),
            waiting: Mutex::default(),
            n_waiting: AtomicUsize::new(0),
        })
    }

    /// The share of a new client.
    pub fn share(self: &Arc<Self>) -> Share {
        Share(Arc::new(Client { room: Arc::clone(self), held: AtomicUsize::new(0) }))
    }

    /// Bytes that all clients hold.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Acquire)
    }

    /// Whether more than half of it is held, or somebody waits for it.
    pub fn is_short(&self) -> bool {
        self.used() > self.size / 2 || self.n_waiting.load(Ordering::SeqCst) > 0
    }

    /// Whether a client that holds `held` of `used` bytes gets `bytes` more.
    fn fits(&self, used: usize, held: usize, bytes: usize) -> bool {
        if held == 0 {
            return used < self.newcomers_max;
        }
        held.saturating_add(bytes) <= self.size.saturating_sub(used)
    }

    fn wake(&self) {
        if self.n_waiting.load(Ordering::SeqCst) > 0 {
            let waiting = std::mem::take(&mut *self.waiting.lock());
            self.n_waiting.fetch_sub(waiting.len(), Ordering::SeqCst);
            waiting.into_iter().for_each(Waker::wake);
        }
    }
}

impl ShareByName {
    /// Nobody has a share yet.
    pub fn new(room: Arc<Room>) -> Self {
        Self { room, shares: Mutex::default() }
    }

    /// The share of the client of that name.
    pub fn share(&self, name: &str) -> Share {
        let mut shares = self.shares.lock();
        if let Some(known) = shares.get(name) {
            return known.clone();
        }
        shares.retain(|_, share| Arc::strong_count(&share.0) > 1 || share.held() > 0);
        let share = self.room.share();
        shares.insert(name.to_owned(), share.clone());
        share
    }
}

impl Share {
    /// The share of a client without bounds, where there is no server in front.
    pub fn unbounded() -> Self {
        Room::new(usize::MAX).share()
    }

    /// Bytes that this client holds.
    pub fn held(&self) -> usize {
        self.0.held.load(Ordering::Acquire)
    }

    /// Takes room for so many bytes, if the client may have them now.
    pub fn try_take(&self, bytes: usize) -> Option<Taken> {
        let Client { room, held, .. } = &*self.0;
        let take = |used: usize| {
            room.fits(used, held.load(Ordering::Acquire), bytes).then(|| used.saturating_add(bytes))
        };
        room.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).ok()?;
        self.0.held.fetch_add(bytes, Ordering::AcqRel);
        Some(Taken { share: self.clone(), bytes })
    }

    /// Takes room for bytes that are there already, whether or not the client may have them.
    pub fn take_anyway(&self, bytes: usize) -> Taken {
        self.0.room.used.fetch_add(bytes, Ordering::SeqCst);
        self.0.held.fetch_add(bytes, Ordering::AcqRel);
        Taken { share: self.clone(), bytes }
    }

    /// Takes room for so many bytes, once the client may have them.
    pub async fn take(&self, bytes: usize) -> Taken {
        poll_fn(|cx| self.poll_take(cx, bytes)).await
    }

    /// As [`Share::take`].
    pub fn poll_take(&self, cx: &mut Context<'_>, bytes: usize) -> Poll<Taken> {
        self.poll_until(cx, || self.try_take(bytes))
    }

    /// Ready when the client may have at least one byte.
    pub fn poll_open(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_until(cx, || self.is_open().then_some(()))
    }

    /// Whether the client may have at least one byte now.
    pub fn is_open(&self) -> bool {
        self.0.room.fits(self.0.room.used(), self.held(), 1)
    }

    fn poll_until<T>(&self, cx: &mut Context<'_>, attempt: impl Fn() -> Option<T>) -> Poll<T> {
        if let Some(done) = attempt() {
            return Poll::Ready(done);
        }
        let room = &self.0.room;
        let mut waiting = room.waiting.lock();
        waiting.push(cx.waker().clone());
        room.n_waiting.fetch_add(1, Ordering::SeqCst);
        drop(waiting);
        // Some may have been given back meanwhile.
        attempt().map_or(Poll::Pending, Poll::Ready)
    }

    fn give_back(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.0.held.fetch_sub(bytes, Ordering::AcqRel);
        self.0.room.used.fetch_sub(bytes, Ordering::SeqCst);
        self.0.room.wake();
    }
}

impl Taken {
    /// Bytes that it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives back all but so many bytes.
    pub fn shrink_to(&mut self, bytes: usize) {
        if bytes < self.bytes {
            self.share.give_back(self.bytes - bytes);
            self.bytes = bytes;
        }
    }

    /// A part of it, or all of it if it is less.
    pub fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { share: self.share.clone(), bytes }
    }

    /// Adds what another one holds, of the same client.
    pub fn merge(&mut self, mut other: Self) {
        if Arc::ptr_eq(&self.share.0, &other.share.0) {
            self.bytes += std::mem::take(&mut other.bytes);
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.share.give_back(self.bytes);
    }
}

/// Messages of a stream that wait for their reader, each with the room that it takes until it is read.
#[derive(Debug)]
pub struct Messages<M, E>(mpsc::Receiver<Result<(M, Taken), E>>);

/// The other end of [`Messages`].
pub type MessageSender<M, E> = mpsc::Sender<Result<(M, Taken), E>>;

impl<M, E> Messages<M, E> {
    /// A queue of so many messages.
    pub fn channel(n_max: usize) -> (MessageSender<M, E>, Self) {
        let (sender, receiver) = mpsc::channel(n_max);
        (sender, Self(receiver))
    }
}

impl<M, E> Stream for Messages<M, E> {
    type Item = Result<M, E>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<M, E>>> {
        // Whoever takes a message counts it from then on.
        let next = self.0.poll_recv(cx);
        next.map(|next| next.map(|message| message.map(|(message, _taken)| message)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greedy(share: &Share, bytes: usize) -> Vec<Taken> {
        std::iter::from_fn(|| share.try_take(bytes)).collect()
    }

    #[test]
    fn one_client_gets_half_and_newcomers_get_in() {
        let room = Room::new(1_024);
        let clients: Vec<Share> = (0..6).map(|_| room.share()).collect();
        let first = greedy(&clients[0], 16);
        assert_eq!((first.len(), clients[0].held()), (32, 512));
        let second = greedy(&clients[1], 16);
        assert_eq!(second.len(), 16);
        let others: Vec<Vec<Taken>> = clients[2..].iter().map(|client| greedy(client, 16)).collect();
        assert!(others.iter().all(|taken| !taken.is_empty()));
        drop((first, second, others));
        assert_eq!(
            (room.used(), greedy(&clients[0], 16).len()),
            (0, 32),
            "what is given back is there again"
        );
    }

    #[test]
    fn a_message_larger_than_the_room_is_taken_alone() {
        let room = Room::new(10);
        let (one, other) = (room.share(), room.share());
        let large = one.try_take(100).unwrap();
        assert!(one.try_take(1).is_none() && other.try_take(1).is_none());
        drop(large);
        let reserved = Room::with_reserve(10);
        let _all = reserved.share().take_anyway(15);
        let (first, second) = (reserved.share(), reserved.share());
        let newcomer = first.try_take(7);
        assert!(newcomer.is_some() && first.try_take(1).is_none() && second.try_take(1).is_none());
        let mut small = other.try_take(4).unwrap();
        small.merge(other.take_anyway(3));
        assert_eq!((small.bytes(), other.held(), room.used()), (7, 7, 7));
        small.shrink_to(2);
        let part = small.split(5);
        assert_eq!((part.bytes(), small.bytes(), other.held(), room.used()), (2, 0, 2, 2));
    }

    #[tokio::test]
    async fn who_waits_gets_what_is_given_back() {
        let room = Room::new(100);
        let (one, other) = (room.share(), room.share());
        let all = one.try_take(100).unwrap();
        assert!(!other.is_open());
        let waiting = crate::task::spawn("waiting", async move { other.take(40).await.bytes() });
        while room.n_waiting.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        assert!(room.is_short());
        drop(all);
        assert_eq!((waiting.await.unwrap(), room.used(), room.is_short()), (40, 0, false));
    }

    #[test]
    fn a_name_has_one_share_while_anything_is_held() {
        let by_name = ShareByName::new(Room::new(8));
        let taken = by_name.share("ann").try_take(4);
        assert_eq!(by_name.share("ann").held(), 4);
        assert!(by_name.share("ann").try_take(1).is_none() && by_name.share("bob").try_take(2).is_some());
        drop(taken);
        // Of names that hold nothing, nothing is kept.
        for n in 0..100 {
            by_name.share(&n.to_string());
        }
        assert_eq!(by_name.shares.lock().len(), 1);
    }
}
