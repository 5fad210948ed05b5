//! What waits for a node's stream: a bounded queue between the task of the node's connection, which fills it, and the
//! task of the stream, which empties it.
//!
//! A process may speak for thousands of nodes that say little: an empty queue takes next to nothing.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use futures_util::Stream;

/// The filling end; the stream ends with it, behind what waits.
#[derive(Debug)]
pub(crate) struct Outbound<T>(Arc<Shared<T>>);

/// The emptying end.
#[derive(Debug)]
pub(crate) struct Messages<T>(Arc<Shared<T>>);

#[derive(Debug)]
struct Shared<T> {
    len_max: usize,
    queue: Mutex<Queue<T>>,
}

#[derive(Debug)]
struct Queue<T> {
    messages: VecDeque<T>,
    waker: Option<Waker>,
    /// One of the ends is gone.
    over: bool,
}

/// An empty queue for at most `len_max` messages.
pub(crate) fn queue<T>(len_max: usize) -> (Outbound<T>, Messages<T>) {
    let queue = Queue { messages: VecDeque::new(), waker: None, over: false };
    let shared = Arc::new(Shared { len_max, queue: Mutex::new(queue) });
    (Outbound(Arc::clone(&shared)), Messages(shared))
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        // Nothing that holds the lock can leave it half changed.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) -> Option<Waker> {
        let mut queue = self.lock();
        queue.over = true;
        queue.waker.take()
    }
}

impl<T> Outbound<T> {
    /// Whether a message may be sent now.
    pub(crate) fn has_room(&self) -> bool {
        let queue = self.0.lock();
        !queue.over && queue.messages.len() < self.0.len_max
    }

    /// Sends a message, unless the queue is full or nobody reads it any more; whether it was sent.
    pub(crate) fn send(&self, message: T) -> bool {
        let mut queue = self.0.lock();
        let has_room = !queue.over && queue.messages.len() < self.0.len_max;
        if has_room {
            queue.messages.push_back(message);
            let waker = queue.waker.take();
            drop(queue);
            wake(waker);
        }
        has_room
    }
}

impl<T> Drop for Outbound<T> {
    fn drop(&mut self) {
        wake(self.0.end());
    }
}

impl<T> Stream for Messages<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut queue = self.0.lock();
        if let Some(message) = queue.messages.pop_front() {
            return Poll::Ready(Some(message));
        }
        if queue.over {
            return Poll::Ready(None);
        }
        queue.messages.shrink_to_fit();
        queue.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T> Drop for Messages<T> {
    fn drop(&mut self) {
        self.0.end();
        // What can never be read need not wait.
        let _unread = std::mem::take(&mut self.0.lock().messages);
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::{FutureExt as _, StreamExt as _};

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn messages_come_in_order_and_no_more_than_may_wait() {
        let (outbound, mut messages) = queue(2);
        assert!(outbound.has_room() && outbound.send(1) && outbound.send(2));
        assert!(!outbound.has_room() && !outbound.send(3));
        assert_eq!(messages.next().now_or_never(), Some(Some(1)));
        assert!(outbound.send(4));
        drop(outbound);
        let rest: Vec<i32> = std::iter::from_fn(|| messages.next().now_or_never().flatten()).collect();
        assert_eq!(rest, [2, 4], "what waits comes before the end");
        assert_eq!(messages.next().now_or_never(), Some(None));
    }

    #[test]
    fn who_waits_is_woken_by_a_message_and_by_the_end() {
        let (outbound, mut messages) = queue(2);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut poll = || messages.poll_next_unpin(&mut Context::from_waker(&waker));
        assert_eq!(poll(), Poll::Pending);
        outbound.send(1);
        outbound.send(2);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "once is enough");
        assert_eq!([poll(), poll(), poll()], [Poll::Ready(Some(1)), Poll::Ready(Some(2)), Poll::Pending]);
        drop(outbound);
        assert_eq!((woken.0.load(Ordering::Relaxed), poll()), (2, Poll::Ready(None)));
    }

    #[test]
    fn nothing_is_sent_to_nobody_and_nothing_is_kept_for_silence() {
        let (outbound, mut messages) = queue(100);
        assert!((0..100).all(|n| outbound.send(n)));
        while messages.next().now_or_never().is_some() {}
        assert_eq!(messages.0.lock().messages.capacity(), 0);
        outbound.send(1);
        drop(messages);
        assert!(!outbound.has_room() && !outbound.send(2));
        assert_eq!(outbound.0.lock().messages.len(), 0);
    }
}
