//! Watches of units: the present state, then each change, merged per unit where the reader is slow.
//!
//! The present state goes out in parts: a part is made once there is room for it in the queue of the watch and in the
//! reader's share of the room for unread answers, so that readers that do not read take next to nothing.
//!
//! Of deletions the newest are kept, for watches that begin at a revision and for slow readers. What was deleted before
//! this term has read the records nobody here knows: a watch of all units from before that is refused, and its client
//! lists again.

use std::collections::{BTreeSet, VecDeque};

use godel_base::{
    ids::{Revision, StoreId, UnitId},
    time::Millis,
};
use godel_core_dispatcher::Dispatcher;
use godel_domain::{sight::Sight, unit::UnitSpec};
use godel_kit::{
    room::{MessageSender, Share},
    status,
};
use godel_proto::v1;
use godel_wire::hidden::HideNames as _;
use prost::Message as _;
use tokio::sync::mpsc;
use tonic::{Code, Status};

use super::failures::overloaded;
use crate::{convert, requests::WatchCall};

/// Units in one message.
const UNITS_PER_MESSAGE: usize = 256;
/// A message that has so many bytes takes no further unit; one unit has little more than 300 KiB at most.
const BYTES_PER_MESSAGE: usize = 128 << 10;
/// About what a message without units takes.
const BYTES_OF_BOOKMARK: usize = 64;
/// Changes are gathered so long, milliseconds.
const GATHER_MS: u64 = 5;
/// Between two bookmarks, milliseconds.
const BOOKMARK_MS: u64 = 1_000;
/// Deletions that are kept, about 200 bytes each.
const GONE_KEPT_MAX: usize = 32_768;
/// Deletions in one message, about 400 bytes each.
const GONE_PER_MESSAGE: usize = 512;

pub(super) struct Watches {
    open: Vec<UnitWatch>,
    n_max: usize,
    gone: Gone,
    /// Sent with each message.
    store: StoreId,
}

/// A unit that was deleted.
struct GoneUnit {
    shown: v1::DeletedUnit,
    owner: String,
}

/// The newest deletions, oldest first.
#[derive(Default)]
struct Gone {
    units: VecDeque<GoneUnit>,
    /// Those that are not kept any more.
    n_dropped: u64,
    /// Every deletion from here on is kept.
    floor: Revision,
}

impl Gone {
    fn push(&mut self, unit: GoneUnit) {
        if self.units.len() >= GONE_KEPT_MAX
            && let Some(oldest) = self.units.pop_front()
        {
            self.n_dropped += 1;
            self.floor = self.floor.max(Revision(oldest.shown.revision + 1));
        }
        self.units.push_back(unit);
    }

    /// The number of the next one.
    fn end(&self) -> u64 {
        self.n_dropped + self.units.len() as u64
    }

    /// Some of those in sight, from number `next` on, which then is the number of the first that was not looked
    /// at; `None` if they are not all kept.
    fn take(&self, next: &mut u64, sight: &Sight) -> Option<Vec<v1::DeletedUnit>> {
        let skip = usize::try_from(next.checked_sub(self.n_dropped)?).ok()?;
        let mut taken = Vec::new();
        for GoneUnit { shown, owner } in self.units.iter().skip(skip).take(GONE_PER_MESSAGE) {
            *next += 1;
            if sight.sees_unit_of(&shown.namespace, owner) {
                taken.push(shown.clone());
            }
        }
        Some(taken)
    }
}

struct UnitWatch {
    units: ToSend,
    /// Units that its reader may see: others are not named.
    sight: Sight,
    messages: MessageSender<v1::WatchUnitsResponse, Status>,
    /// The reader's, for what waits for it.
    share: Share,
    /// The number of the next deletion to look at.
    next_gone: u64,
    /// Everything up to here has been sent.
    sent: Revision,
    started: bool,
    next_at: Millis,
    bookmark_at: Millis,
    /// The reader had no room: it is looked at again then.
    retry_at: Millis,
}

/// Which units a watch is about, and which of them are to be sent.
struct ToSend {
    /// What its reader sees of the namespace that it asks for, or of all.
    within: Sight,
    only: Option<UnitId>,
    /// Only units of this revision and later are listed at the beginning.
    from: Revision,
    /// The present state has been listed up to this unit; `None`: all of it.
    listed: Option<UnitId>,
    /// Units that changed since they were sent.
    dirty: BTreeSet<UnitId>,
}

impl Watches {
    pub(super) fn new(n_max: usize, store: StoreId) -> Self {
        Self { open: Vec::new(), n_max, gone: Gone::default(), store }
    }

    /// All records have been read up to `revision`, for the first time or anew: deletions before were missed.
    pub(super) fn begin(&mut self, revision: Revision) {
        let floor = Revision(revision.0 + 1);
        self.gone = Gone { n_dropped: self.gone.end(), floor, ..Gone::default() };
        self.open.retain(|watch| {
            let stays = watch.units.only.is_some();
            if !stays {
                let _ = watch.messages.try_send(Err(status::compacted(floor.0)));
            }
            stays
        });
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn open(&mut self, core: &Dispatcher, call: WatchCall, only: Option<UnitId>, now: Millis) {
        if self.open.len() >= self.n_max {
            let _ = call.messages.try_send(Err(overloaded("too many watches are open")));
            return;
        }
        let present = call.from == Revision(0);
        if !present && only.is_none() && call.from < self.gone.floor {
            let _ = call.messages.try_send(Err(status::compacted(self.gone.floor.0)));
            return;
        }
        let is_later = |gone: &GoneUnit| !present && gone.shown.revision >= call.from.0;
        let n_known = self.gone.units.iter().position(is_later).unwrap_or(self.gone.units.len());
        let is_new = |unit: &UnitId| core.unit(*unit).is_some_and(|view| view.revision >= call.from);
        let units = ToSend {
            within: call.sight.clone().within(&call.namespace),
            only,
            from: call.from,
            listed: only.is_none().then_some(UnitId(0)),
            dirty: only.into_iter().filter(is_new).collect(),
        };
        let watch = UnitWatch {
            units,
            sight: call.sight,
            messages: call.messages,
            share: call.share,
            next_gone: self.gone.n_dropped + n_known as u64,
            sent: Revision(0),
            started: false,
            next_at: now,
            bookmark_at: now,
            retry_at: now,
        };
        self.open.push(watch);
    }

    /// A unit's record or rows changed.
    pub(super) fn touch(&mut self, core: &Dispatcher, unit: UnitId) {
        for watch in &mut self.open {
            watch.units.touch(core, unit);
        }
    }

    /// A unit's record is gone, by the transaction of `revision`. Who watched it alone has nothing more to watch.
    pub(super) fn gone(&mut self, core: &Dispatcher, unit: UnitId, revision: Revision) {
        if let Some(view) = core.unit(unit) {
            let spec = &view.record.spec;
            let shown = v1::DeletedUnit {
                unit_id: unit.0,
                namespace: spec.namespace.clone(),
                name: spec.name.clone(),
                uid: spec.uid.clone(),
                revision: revision.0,
            };
            self.gone.push(GoneUnit { shown, owner: spec.owner.clone() });
        }
        self.open.retain_mut(|watch| {
            watch.units.dirty.remove(&unit);
            if watch.units.only != Some(unit) {
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
        let (gone, store) = (&self.gone, self.store);
        self.open.retain_mut(|watch| watch.flush(core, gone, store, now));
    }

    /// When to flush again.
    pub(super) fn next_wake(&self) -> Option<Millis> {
        let wake = |watch: &UnitWatch| {
            let wanted = if watch.is_idle(&self.gone) { watch.bookmark_at } else { watch.next_at };
            wanted.max(watch.retry_at)
        };
        self.open.iter().map(wake).min()
    }
}

impl ToSend {
    fn covers(&self, core: &Dispatcher, unit: UnitId) -> bool {
        match self.only {
            Some(only) => only == unit,
            None => {
                let is_seen = |spec: &UnitSpec| self.within.sees_unit_of(&spec.namespace, &spec.owner);
                self.within.is_all() || core.unit(unit).is_some_and(|view| is_seen(&view.record.spec))
            }
        }
    }

    /// A unit has changed.
    fn touch(&mut self, core: &Dispatcher, unit: UnitId) {
        // What is not listed yet is listed as it is then.
        let is_to_come = self.listed.is_some_and(|listed| unit > listed);
        if !is_to_come && self.covers(core, unit) {
            self.dirty.insert(unit);
        }
    }

    /// The next unit: of those that changed, or of the present state.
    fn next(&mut self, core: &Dispatcher) -> Option<UnitId> {
        if let Some(unit) = self.dirty.pop_first() {
            return Some(unit);
        }
        let is_wanted = |unit: &UnitId| {
            self.covers(core, *unit) && core.unit(*unit).is_some_and(|view| view.revision >= self.from)
        };
        let next = core.units().ids_after(self.listed?).find(is_wanted);
        self.listed = next;
        next
    }

    fn is_empty(&self) -> bool {
        self.dirty.is_empty() && self.listed.is_none()
    }
}

impl UnitWatch {
    /// Nothing waits to be sent.
    fn is_idle(&self, gone: &Gone) -> bool {
        self.units.is_empty() && (self.units.only.is_some() || self.next_gone >= gone.end())
    }

    /// False when nobody listens any more, or the reader was too slow.
    fn flush(&mut self, core: &Dispatcher, gone: &Gone, store: StoreId, now: Millis) -> bool {
        if self.messages.is_closed() {
            return false;
        }
        let bookmark = now >= self.bookmark_at && (!self.started || self.sent < core.following().revision());
        if now >= self.bookmark_at && !bookmark {
            self.bookmark_at = now.plus(BOOKMARK_MS);
        }
        if (self.is_idle(gone) && !bookmark) || now < self.next_at.max(self.retry_at) {
            return true;
        }
        loop {
            let wanted = if self.is_idle(gone) { BYTES_OF_BOOKMARK } else { BYTES_PER_MESSAGE };
            let room = match self.messages.try_reserve() {
                Ok(permit) => self.share.try_take(wanted).map(|taken| (permit, taken)),
                Err(mpsc::error::TrySendError::Full(())) => None,
                Err(mpsc::error::TrySendError::Closed(())) => return false,
            };
            let Some((permit, mut taken)) = room else {
                self.retry_at = now.plus(4 * GATHER_MS);
                return true;
            };
            let deleted = match self.units.only {
                Some(_) => Some(Vec::new()),
                None => gone.take(&mut self.next_gone, &self.units.within),
            };
            let Some(deleted) = deleted else {
                permit.send(Err(status::compacted(gone.floor.0)));
                return false;
            };
            let (mut units, mut bytes) = (Vec::new(), 0);
            while units.len() < UNITS_PER_MESSAGE && bytes < BYTES_PER_MESSAGE {
                let Some(unit) = self.units.next(core) else { break };
                let Some(unit) = core.unit(unit).map(|view| convert::unit(core, &view)) else { continue };
                let unit = unit.within_sight(&self.sight);
                bytes += unit.encoded_len();
                units.push(unit);
            }
            // A large unit takes more than was asked for, and the end of a list less.
            taken.merge(self.share.take_anyway(bytes.saturating_sub(wanted)));
            taken.shrink_to(bytes.max(BYTES_OF_BOOKMARK));
            let complete = self.is_idle(gone);
            if complete {
                self.sent = core.following().revision();
                self.started = true;
            }
            let (revision, store_id) = (self.sent.0, store.0);
            permit.send(Ok((v1::WatchUnitsResponse { units, revision, deleted, store_id }, taken)));
            if complete {
                self.next_at = now.plus(GATHER_MS);
                self.bookmark_at = now.plus(BOOKMARK_MS);
                return true;
            }
        }
    }
}

#[cfg(test)]
mod tests;
