//! Where submissions come in: calls while few enough are in hand, streams while the backlog is short enough.
//!
//! Handlers ask here without a word to the loop, so that a refusal costs next to nothing. What is too much, the loop says
//! (`leader/overload.rs`).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use godel_kit::room::{Room, Share, ShareByName, Taken};
use godel_rules::overload::{self, CallCounts};
use tokio::sync::watch;

/// See the module. Of one term.
#[derive(Debug)]
pub(crate) struct CallLimiter {
    limit: AtomicU32,
    in_hand: AtomicU32,
    admitted: AtomicU32,
    refused: AtomicU32,
    hint_us: AtomicU64,
    n_hints: AtomicU64,
    is_open: watch::Sender<bool>,
    /// What each principal has in hand.
    principals: ShareByName,
}

/// A unit submitted by a call is in hand as long as this lives.
#[derive(Debug)]
pub(crate) struct CallPermit {
    limiter: Arc<CallLimiter>,
    _of_principal: Option<Taken>,
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        self.limiter.in_hand.fetch_sub(1, Relaxed);
    }
}

impl CallLimiter {
    pub(crate) fn new(limit: u32, hint: Duration) -> Arc<Self> {
        let call_limiter = Self {
            limit: AtomicU32::new(limit),
            in_hand: AtomicU32::new(0),
            admitted: AtomicU32::new(0),
            refused: AtomicU32::new(0),
            hint_us: AtomicU64::new(micros(hint)),
            n_hints: AtomicU64::new(0),
            is_open: watch::Sender::new(true),
            principals: ShareByName::new(Room::new(usize::MAX)),
        };
        Arc::new(call_limiter)
    }

    /// One more in hand, if that is not too many. A principal has at most as many as are free: one that submits more than are
    /// placed has half of them, however many connections it opens.
    ///
    /// # Errors
    /// It is: when to come back.
    pub(crate) fn enter(self: &Arc<Self>, principal: Option<&str>) -> Result<CallPermit, Duration> {
        let limit = self.limit.load(Relaxed);
        let share = principal.map(|name| self.principals.share(name));
        let n_own = share.as_ref().map_or(0, Share::held);
        let n_free = limit.saturating_sub(self.in_hand.load(Relaxed));
        if n_own > 0 && n_own >= usize::try_from(n_free).unwrap_or(usize::MAX) {
            // Others have room: that says nothing of the load.
            return Err(self.hint());
        }
        let more = |in_hand: u32| (in_hand < limit).then_some(in_hand + 1);
        match self.in_hand.fetch_update(Relaxed, Relaxed, more) {
            Ok(_) => {
                self.admitted.fetch_add(1, Relaxed);
                let of_principal = share.map(|share| share.take_anyway(1));
                Ok(CallPermit { limiter: Arc::clone(self), _of_principal: of_principal })
            }
            Err(_) => Err(self.refuse()),
        }
    }

    /// Counts a refusal. When to come back: another time for each.
    pub(crate) fn refuse(&self) -> Duration {
        self.refused.fetch_add(1, Relaxed);
        self.hint()
    }

    fn hint(&self) -> Duration {
        let hint = Duration::from_micros(self.hint_us.load(Relaxed));
        overload::spread(hint, self.n_hints.fetch_add(1, Relaxed))
    }

    /// Streams are read; waits while they are not.
    pub(crate) async fn opened(&self) {
        // The sender lives as long as this.
        let _ = self.is_open.subscribe().wait_for(|is_open| *is_open).await;
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.is_open.borrow()
    }

    pub(crate) fn set_open(&self, is_open: bool) {
        // Only the loop changes it.
        if self.is_open() != is_open {
            self.is_open.send_replace(is_open);
        }
    }

    /// What is in hand above a lower limit stays in hand.
    pub(crate) fn set(&self, limit: u32, hint: Duration) {
        self.limit.store(limit, Relaxed);
        self.hint_us.store(micros(hint), Relaxed);
    }

    pub(crate) fn in_hand(&self) -> u32 {
        self.in_hand.load(Relaxed)
    }

    /// What happened since the last call.
    pub(crate) fn take_counted(&self) -> CallCounts {
        CallCounts { admitted: self.admitted.swap(0, Relaxed), refused: self.refused.swap(0, Relaxed) }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HINT: Duration = Duration::from_millis(100);

    #[test]
    fn a_principal_has_as_many_in_hand_as_are_free() {
        let call_limiter = CallLimiter::new(8, HINT);
        let enter = |principal: Option<&str>| {
            let mut in_hand = Vec::new();
            while let Ok(more) = call_limiter.enter(principal) {
                in_hand.push(more);
            }
            in_hand
        };
        let of_ann = enter(Some("ann"));
        let of_bob = enter(Some("bob"));
        assert_eq!((of_ann.len(), of_bob.len()), (4, 2));
        // Refusals of one principal while others have room say nothing of the load.
        assert_eq!(call_limiter.take_counted(), CallCounts { admitted: 6, refused: 0 });
        assert_eq!(enter(None).len(), 2, "what no person submits has all that is free");
        assert_eq!(call_limiter.take_counted(), CallCounts { admitted: 2, refused: 1 });
        drop(of_ann);
        assert_eq!(enter(Some("ann")).len(), 3);
    }

    #[test]
    fn as_many_are_in_hand_as_the_limit_says() {
        let call_limiter = CallLimiter::new(2, HINT);
        let first = call_limiter.enter(None).unwrap();
        let _second = call_limiter.enter(None).unwrap();
        let hints = [call_limiter.enter(None).unwrap_err(), call_limiter.enter(None).unwrap_err()];
        assert!(hints[0] != hints[1] && hints.iter().all(|hint| *hint >= HINT / 2 && *hint <= 2 * HINT));
        assert_eq!(call_limiter.take_counted(), CallCounts { admitted: 2, refused: 2 });
        drop(first);
        let _third = call_limiter.enter(None).unwrap();
        assert_eq!(
            (call_limiter.in_hand(), call_limiter.take_counted()),
            (2, CallCounts { admitted: 1, refused: 0 })
        );
        call_limiter.set(1, 2 * HINT);
        assert_eq!(call_limiter.in_hand(), 2, "nothing is sent away");
        assert!(call_limiter.enter(None).is_err());
    }

    #[tokio::test]
    async fn a_closed_door_keeps_streams_waiting_until_it_opens() {
        let call_limiter = CallLimiter::new(1, HINT);
        call_limiter.opened().await;
        call_limiter.set_open(false);
        let waiting = tokio::spawn({
            let call_limiter = Arc::clone(&call_limiter);
            async move { call_limiter.opened().await }
        });
        tokio::task::yield_now().await;
        assert!(!call_limiter.is_open() && !waiting.is_finished());
        call_limiter.set_open(true);
        waiting.await.unwrap();
    }
}
