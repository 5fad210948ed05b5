//! Watches of units: the present state, then each change, merged per unit where the reader is slow.

use std::collections::BTreeSet;

use godel_core::{
    dispatcher::Dispatcher,
    ids::{Revision, UnitId},
    time::Millis,
};
use godel_kit::status;
use godel_proto::v1;
use prost::Message as _;
use tokio::sync::mpsc;
use tonic::{Code, Status};

use super::overloaded;
use crate::{calls::WatchCall, convert};

/// Units in one message.
const UNITS_PER_MESSAGE: usize = 256;
/// A message that has so many bytes takes no further unit; one unit has little more than 100 KiB at most.
const BYTES_PER_MESSAGE: usize = 512 << 10;
/// Changes are gathered so long, milliseconds.
const GATHER_MS: u64 = 5;
/// Between two bookmarks, milliseconds.
const BOOKMARK_MS: u64 = 1_000;

pub(super) struct Watches {
    open: Vec<Watch>,
    n_max: usize,
}

struct Watch {
    /// Empty: all.
    namespace: String,
    only: Option<UnitId>,
    messages: mpsc::Sender<Result<v1::WatchUnitsResponse, Status>>,
    /// Units that changed since they were sent.
    dirty: BTreeSet<UnitId>,
    /// Everything up to here has been sent.
    sent: Revision,
    started: bool,
    next_at: Millis,
    bookmark_at: Millis,
}

impl Watches {
    pub(super) fn new(n_max: usize) -> Self {
        Self { open: Vec::new(), n_max }
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn open(&mut self, core: &Dispatcher, call: WatchCall, only: Option<UnitId>, now: Millis) {
        if self.open.len() >= self.n_max {
            let _ = call.messages.try_send(Err(overloaded("too many watches are open")));
            return;
        }
        let mut watch = Watch {
            namespace: call.namespace,
            only,
            messages: call.messages,
            dirty: BTreeSet::new(),
            sent: Revision(0),
            started: false,
            next_at: now,
            bookmark_at: now,
        };
        let newer = |unit: &UnitId| core.unit(*unit).is_some_and(|view| view.revision >= call.from);
        let dirty: BTreeSet<UnitId> = match only {
            Some(unit) => [unit].into_iter().filter(newer).collect(),
            None => {
                core.unit_ids(UnitId(0)).filter(|unit| watch.covers(core, *unit) && newer(unit)).collect()
            }
        };
        watch.dirty = dirty;
        self.open.push(watch);
    }

    /// A unit's record or rows changed.
    pub(super) fn touch(&mut self, core: &Dispatcher, unit: UnitId) {
        for watch in &mut self.open {
            if watch.covers(core, unit) {
                watch.dirty.insert(unit);
            }
        }
    }

    /// A unit's record is gone: who watched it alone is told, for others it simply changes no more.
    pub(super) fn gone(&mut self, unit: UnitId) {
        self.open.retain_mut(|watch| {
            watch.dirty.remove(&unit);
            if watch.only != Some(unit) {
                return true;
            }
            let status = status::with_info(
                Code::NotFound,
                status::reason::UNKNOWN_NAME,
                "the unit's record is gone",
                [("unit_id", unit.to_string())],
            );
            let _ = watch.messages.try_send(Err(status));
            false
        });
    }

    /// Ends them all.
    pub(super) fn close(&mut self, status: &Status) {
        for watch in self.open.drain(..) {
            let _ = watch.messages.try_send(Err(status.clone()));
        }
    }

    /// Sends what has gathered to whoever takes it.
    pub(super) fn flush(&mut self, core: &Dispatcher, now: Millis) {
        self.open.retain_mut(|watch| watch.flush(core, now));
    }

    /// When to flush again.
    pub(super) fn next_wake(&self, now: Millis) -> Option<Millis> {
        let wake = |watch: &Watch| {
            let full = !watch.dirty.is_empty() && watch.messages.capacity() == 0;
            match watch.dirty.is_empty() {
                true => watch.bookmark_at,
                false if full => now.plus(4 * GATHER_MS),
                false => watch.next_at,
            }
        };
        self.open.iter().map(wake).min()
    }
}

impl Watch {
    fn covers(&self, core: &Dispatcher, unit: UnitId) -> bool {
        match self.only {
            Some(only) => only == unit,
            None => {
                self.namespace.is_empty()
                    || core.unit(unit).is_some_and(|view| view.spec.namespace == self.namespace)
            }
        }
    }

    /// False when nobody listens any more.
    fn flush(&mut self, core: &Dispatcher, now: Millis) -> bool {
        if self.messages.is_closed() {
            return false;
        }
        let bookmark = now >= self.bookmark_at && (!self.started || self.sent < core.revision());
        if now >= self.bookmark_at && !bookmark {
            self.bookmark_at = now.plus(BOOKMARK_MS);
        }
        if (self.dirty.is_empty() && !bookmark) || now < self.next_at {
            return true;
        }
        loop {
            let permit = match self.messages.try_reserve() {
                Ok(permit) => permit,
                Err(error) => return error == mpsc::error::TrySendError::Full(()),
            };
            let (mut units, mut bytes) = (Vec::new(), 0);
            while units.len() < UNITS_PER_MESSAGE && bytes < BYTES_PER_MESSAGE {
                let Some(unit) = self.dirty.pop_first() else { break };
                let Some(unit) = core.unit(unit).map(|view| convert::unit(&view)) else { continue };
                bytes += unit.encoded_len();
                units.push(unit);
            }
            let complete = self.dirty.is_empty();
            if complete {
                self.sent = core.revision();
                self.started = true;
            }
            permit.send(Ok(v1::WatchUnitsResponse { units, revision: self.sent.0 }));
            if complete {
                self.next_at = now.plus(GATHER_MS);
                self.bookmark_at = now.plus(BOOKMARK_MS);
                return true;
            }
        }
    }
}
