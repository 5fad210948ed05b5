//! Calls of sled that are given up if they do not come back: in damaged files its search for a key may never end.
//!
//! A thread cannot be ended from outside. One that was given up stays until the process ends; its generation is not
//! read again before that, so that there is one at most for each.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, sync_channel},
    },
    time::Duration,
};

use parking_lot::{Condvar, Mutex};

use crate::log::LogError;

/// Items that are read ahead.
const N_AHEAD_MAX: usize = 128;
/// A disk reads more than this in a second.
const BYTES_PER_SECOND_MIN: u64 = 8 << 20;

/// How long to wait. It is counted in slices: a process that was stopped meanwhile begins a new slice, and finds what has
/// come in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) slice: Duration,
    pub(super) n_slices: u64,
}

impl Patience {
    /// For a look-up, or the next items.
    pub(super) const LOOK: Self = Self { slice: Duration::from_secs(1), n_slices: 30 };

    /// For all of a file.
    pub(super) fn for_bytes(bytes: u64) -> Self {
        Self { n_slices: Self::LOOK.n_slices + bytes / BYTES_PER_SECOND_MIN, ..Self::LOOK }
    }
}

/// Why a call brought nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    Panicked,
    /// Its thread still runs.
    Endless,
}

impl Lost {
    /// In words, for the files in `path`.
    pub(super) fn error(self, path: &Path) -> LogError {
        let path = path.display();
        LogError::Corrupt(match self {
            Self::Panicked => format!("{path}: sled panicked while reading it"),
            Self::Endless => format!("{path}: sled does not come to an end of reading it"),
        })
    }
}

/// The result of `work`, which runs on a thread of its own.
pub(super) fn call<T: Send + 'static>(
    patience: Patience,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Lost> {
    let (sender, receiver) = sync_channel(1);
    spawn(move || {
        if let Ok(result) = catch_unwind(AssertUnwindSafe(work)) {
            // Whoever waited may have given up.
            let _given_up = sender.send(result);
        }
    })?;
    wait(&receiver, patience)
}

/// The items of an iterator that runs on a thread of its own, a little ahead of what is taken.
pub(super) struct Items<T> {
    queue: Arc<Queue<T>>,
    taken: VecDeque<T>,
    patience: Patience,
}

/// What the thread has read and nobody has taken.
struct Queue<T> {
    state: Mutex<FileRead<T>>,
    changed: Condvar,
}

struct FileRead<T> {
    items: VecDeque<T>,
    ended: Option<Ended>,
    is_wanted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Whole,
    Panicked,
}

/// Reads `items` on a thread of its own.
pub(super) fn items<T: Send + 'static>(
    patience: Patience,
    mut items: impl Iterator<Item = T> + Send + 'static,
) -> Result<Items<T>, Lost> {
    let state = Mutex::new(FileRead { items: VecDeque::new(), ended: None, is_wanted: true });
    let queue = Arc::new(Queue { state, changed: Condvar::new() });
    let filled = Arc::clone(&queue);
    spawn(move || {
        loop {
            let next = match catch_unwind(AssertUnwindSafe(|| items.next())) {
                Ok(Some(item)) => Ok(item),
                Ok(None) => Err(Ended::Whole),
                Err(_) => Err(Ended::Panicked),
            };
            if !filled.put(next) {
                return;
            }
        }
    })?;
    Ok(Items { queue, taken: VecDeque::new(), patience })
}

impl<T> Queue<T> {
    /// Whether more is wanted.
    fn put(&self, next: Result<T, Ended>) -> bool {
        let mut state = self.state.lock();
        while state.is_wanted && state.items.len() >= N_AHEAD_MAX {
            self.changed.wait(&mut state);
        }
        let goes_on = state.is_wanted && next.is_ok();
        match next {
            Ok(item) => state.items.push_back(item),
            Err(ended) => state.ended = Some(ended),
        }
        self.changed.notify_all();
        goes_on
    }
}

impl<T> Items<T> {
    /// The next item; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<T>, Lost> {
        if let Some(item) = self.taken.pop_front() {
            return Ok(Some(item));
        }
        let mut state = self.queue.state.lock();
        for _ in 0..=self.patience.n_slices {
            std::mem::swap(&mut self.taken, &mut state.items);
            self.queue.changed.notify_all();
            match (self.taken.pop_front(), state.ended) {
                (Some(item), _) => return Ok(Some(item)),
                (None, Some(Ended::Whole)) => return Ok(None),
                (None, Some(Ended::Panicked)) => return Err(Lost::Panicked),
                (None, None) => {}
            }
            self.queue.changed.wait_for(&mut state, self.patience.slice);
        }
        Err(Lost::Endless)
    }
}

impl<T> Drop for Items<T> {
    fn drop(&mut self) {
        self.queue.state.lock().is_wanted = false;
        self.queue.changed.notify_all();
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<(), Lost> {
    let thread = std::thread::Builder::new().name("sled-reader".to_owned()).spawn(work);
    thread.map(drop).map_err(|error| {
        tracing::error!(%error, "no thread could be started for reading the store");
        Lost::Panicked
    })
}

fn wait<T>(receiver: &Receiver<T>, patience: Patience) -> Result<T, Lost> {
    for _ in 0..patience.n_slices {
        match receiver.recv_timeout(patience.slice) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Disconnected) => return Err(Lost::Panicked),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    Err(Lost::Endless)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const SHORT: Patience = Patience { slice: Duration::from_millis(1), n_slices: 3 };

    #[test]
    fn a_call_that_never_ends_is_given_up() {
        let (_never, blocked) = channel::<()>();
        assert_eq!(call(SHORT, move || blocked.recv().is_ok()), Err(Lost::Endless));
        assert_eq!(call(Patience::LOOK, || 7), Ok(7));
        assert_eq!(call(Patience::LOOK, || -> u8 { panic!("as sled does") }), Err(Lost::Panicked));
    }

    #[test]
    fn items_arrive_in_order_until_one_never_comes() {
        let mut whole = items(Patience::LOOK, 0..200).unwrap();
        for expected in 0..200 {
            assert_eq!(whole.next(), Ok(Some(expected)));
        }
        assert_eq!(whole.next(), Ok(None));
        let (_never, blocked) = channel::<()>();
        let endless = (0..200).map(move |n| if n == 150 { blocked.recv().map_or(n, |()| n) } else { n });
        let mut endless = items(Patience::LOOK, endless).unwrap();
        for expected in 0..150 {
            assert_eq!(endless.next(), Ok(Some(expected)), "what came before is not lost");
        }
        endless.patience = SHORT;
        assert_eq!(endless.next(), Err(Lost::Endless));
        let panics = (0..70).map(|n: u8| if n < 65 { n } else { panic!("as sled does") });
        let mut panics = items(Patience::LOOK, panics).unwrap();
        let came = std::iter::from_fn(|| panics.next().ok()).count();
        assert_eq!((came, panics.next()), (65, Err(Lost::Panicked)));
    }

    #[test]
    fn patience_grows_with_the_file() {
        let seconds = |bytes| Patience::for_bytes(bytes).n_slices;
        assert_eq!((seconds(0), seconds(80 << 20)), (30, 40));
    }
}
