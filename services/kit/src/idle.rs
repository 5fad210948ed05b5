//! Which connections go first when there are too many, or when file descriptors run short: those without a call in hand, those
//! that never said anything first, then those that were never served, the longest idle first.
//!
//! This is one rule for every listener of the process, of gRPC (`server`) and of anything else (`guests`). They share its
//! descriptors, so [`relieve`] looks at the connections of all of them.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Every listener of this process.
static LISTENERS: Mutex<Vec<Weak<dyn Listener>>> = Mutex::new(Vec::new());
/// Of the idle connections of a process that is short of descriptors one of so many goes, within these bounds.
const PART_THAT_GOES: usize = 16;
const N_MIN: usize = 8;
const N_MAX: usize = 256;

/// What has connections.
pub(crate) trait Listener: Send + Sync {
    /// Adds its connections that are idle.
    fn add_idle(&self, idle: &mut Vec<(Idleness, Arc<dyn Evictable>)>);
}

/// A connection that can be closed for others.
pub(crate) trait Evictable: Send + Sync {
    /// Returns what it has done.
    fn activity(&self) -> &Activity;

    /// Closes it: descriptors run short.
    fn evict_for_descriptor(&self);
}

/// What a connection has done, and whether it does something.
#[derive(Debug)]
pub(crate) struct Activity {
    opened: Instant,
    /// A [`Merit`].
    merit: AtomicU8,
    /// Calls and streams open now.
    n_calls: AtomicUsize,
    /// When it was served last, in ms since `opened`.
    served_ms: AtomicU64,
    /// It was asked to leave: others are next.
    is_leaving: AtomicBool,
}

/// What a connection has done so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Merit {
    /// Nothing.
    Silent,
    /// It has sent something.
    Spoke,
    /// It has made a call, or was answered.
    Served,
}

/// Which of two goes first: the order of the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Idleness {
    merit: u8,
    since: Instant,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            opened: Instant::now(),
            merit: AtomicU8::new(Merit::Silent as u8),
            n_calls: AtomicUsize::new(0),
            served_ms: AtomicU64::new(0),
            is_leaving: AtomicBool::new(false),
        }
    }
}

impl Activity {
    /// Notes that it has sent something. A connection that only ever sends does not become more worth by that.
    pub(crate) fn note_speech(&self) {
        self.merit.fetch_max(Merit::Spoke as u8, Ordering::Relaxed);
    }

    /// Whether it has never sent anything.
    pub(crate) fn is_silent(&self) -> bool {
        self.merit.load(Ordering::Relaxed) == Merit::Silent as u8
    }

    /// Notes that it was answered.
    pub(crate) fn note_answer(&self) {
        self.merit.store(Merit::Served as u8, Ordering::Relaxed);
        let now = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.served_ms.store(now, Ordering::Release);
    }

    /// Begins a call: the connection is not idle until [`Self::end_call`].
    pub(crate) fn begin_call(&self) {
        self.merit.store(Merit::Served as u8, Ordering::Relaxed);
        self.n_calls.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends a call.
    pub(crate) fn end_call(&self) {
        self.note_answer();
        self.n_calls.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether it has no call in hand.
    pub(crate) fn is_idle(&self) -> bool {
        self.n_calls.load(Ordering::Acquire) == 0
    }

    /// Whether it was asked to leave.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Acquire)
    }

    /// Notes that it was asked to leave, or that it stays all the same.
    pub(crate) fn set_leaving(&self, is_leaving: bool) {
        self.is_leaving.store(is_leaving, Ordering::Release);
    }

    /// Returns its place in the order; `None`: it has a call in hand, or leaves already.
    pub(crate) fn idleness(&self) -> Option<Idleness> {
        let since = self.opened + Duration::from_millis(self.served_ms.load(Ordering::Acquire));
        let idleness = Idleness { merit: self.merit.load(Ordering::Relaxed), since };
        (self.is_idle() && !self.is_leaving()).then_some(idleness)
    }
}

impl Idleness {
    /// Returns for how long it has been idle.
    pub(crate) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

/// Returns those of some connections that are idle.
pub(crate) fn idle_ones<'a, C: Evictable>(
    connections: impl Iterator<Item = &'a Arc<C>>,
) -> Vec<(Idleness, &'a Arc<C>)> {
    connections.filter_map(|one| Some((one.activity().idleness()?, one))).collect()
}

/// Returns the `n` that go first.
pub(crate) fn first_to_go<T>(mut idle: Vec<(Idleness, T)>, n: usize) -> Vec<T> {
    if n == 0 {
        return Vec::new();
    }
    if n < idle.len() {
        idle.select_nth_unstable_by_key(n, |(idleness, _)| *idleness);
    }
    idle.truncate(n);
    idle.into_iter().map(|(_, one)| one).collect()
}

/// Lets [`relieve`] close connections of a listener.
pub(crate) fn register(listener: Weak<dyn Listener>) {
    let mut listeners = LISTENERS.lock();
    listeners.retain(|listener| listener.strong_count() > 0);
    listeners.push(listener);
}

/// Descriptors of this process run short: closes some connections without a call in hand, of any of its listeners. How many.
pub(crate) fn relieve() -> usize {
    let listeners: Vec<Arc<dyn Listener>> = LISTENERS.lock().iter().filter_map(Weak::upgrade).collect();
    let mut idle = Vec::new();
    for listener in &listeners {
        listener.add_idle(&mut idle);
    }
    let n = (idle.len() / PART_THAT_GOES).clamp(N_MIN, N_MAX);
    let gone = first_to_go(idle, n);
    for connection in &gone {
        connection.evict_for_descriptor();
    }
    gone.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_never_served_goes_first_and_then_who_is_idle_longest() {
        let start = Instant::now();
        let idle = |merit: Merit, s| Idleness { merit: merit as u8, since: start + Duration::from_secs(s) };
        let all = || {
            vec![
                (idle(Merit::Served, 1), "served, old"),
                (idle(Merit::Silent, 9), "silent, new"),
                (idle(Merit::Served, 5), "served"),
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
        assert_eq!(first(4), ["served, old", "silent", "silent, new", "spoke"]);
        assert_eq!(first(9).len(), 5);
    }

    #[test]
    fn what_has_a_call_in_hand_or_leaves_is_not_idle() {
        let activity = Activity::default();
        assert!(activity.idleness().is_some());
        activity.begin_call();
        activity.begin_call();
        activity.end_call();
        assert!(activity.idleness().is_none() && !activity.is_idle());
        activity.end_call();
        assert!(activity.idleness().is_some());
        activity.note_speech();
        assert_eq!(activity.idleness().unwrap().merit, Merit::Served as u8, "merit is not lost");
        activity.set_leaving(true);
        assert!(activity.idleness().is_none() && activity.is_idle());
        activity.set_leaving(false);
        assert!(activity.idleness().is_some());
    }
}
