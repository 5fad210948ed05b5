//! The next unit, and why another one is not.

use std::fmt;

use godel_base::{ids::UnitId, quantity, time::Millis};
use godel_domain::queue_spec::Band;
use smallvec::SmallVec;

use super::{
    fifo::{FifoKey, Stall},
    full::take_full,
    leaf::ClassRef,
    limit_gate::LaneRef,
    order::{N_BANDS, Queues, Waiting},
    tree::QueueIdx,
    usage::{Need, OwnerLimitIdx, QueueMaximum, Shortage},
};

/// A band that has earned so many places and takes none of them earns no more.
const N_TURNS_MAX: i64 = 16;

/// What lower bands have earned while higher ones were served: `floor_percent` for each running unit, to be spent at
/// what is left to a hundred. Spent ahead, if the unit is a large one: in the long run it comes to the same.
///
/// A band earns if it could have been served in place of the unit that was: places that come free one at a time are gone once
/// that one has them. One that does not take the turns that it has earned does not earn ever more of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Floor {
    credits: FloorChange,
    /// The unit that was taken out last, and the bands of which something might have been served then.
    turn: Option<(UnitId, [bool; N_BANDS])>,
}

/// What bands have earned or spent, by band.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FloorChange([i64; N_BANDS]);

impl FloorChange {
    /// Adds another change.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }

    /// The part of it that belongs to `n` of `of` running units.
    #[must_use]
    pub fn part(&self, n: u32, of: u32) -> Self {
        Self(self.0.map(|amount| amount * i64::from(n.min(of)) / i64::from(of.max(1))))
    }
}

/// Why a unit is not served now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PendingReason {
    /// A queue is at its maximum.
    Full {
        /// The queue.
        queue: String,
        /// Of what.
        resource: String,
    },
    /// What one owner may take of a queue is taken.
    OwnerFull {
        /// The queue whose limit it is.
        queue: String,
        /// The owner.
        owner: String,
        /// Of what.
        resource: String,
        /// The owner's running units take.
        used: i64,
        /// One owner may take.
        max: i64,
    },
    /// What application masters may take of a queue is taken.
    MastersFull {
        /// The queue whose limit it is.
        queue: String,
        /// Of what.
        resource: String,
        /// They take.
        used: i64,
        /// They may take.
        max: i64,
    },
    /// It needs more than a queue may ever use.
    Hopeless {
        /// The queue.
        queue: String,
        /// Who may not use more there, if others may.
        who: Option<&'static str>,
        /// Of what.
        resource: String,
        /// It needs.
        asked: i64,
        /// The queue may use.
        max: i64,
    },
    /// What gets free there goes to a unit that has waited long for it.
    Kept {
        /// The queue.
        queue: String,
        /// The unit that waits.
        unit: UnitId,
    },
}

impl fmt::Display for PendingReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { queue, resource } => write!(f, "queue {queue} is at its maximum of {resource}"),
            Self::OwnerFull { queue, owner, resource, used, max } => {
                let show = |amount| quantity::show_queued(resource, amount);
                write!(
                    f,
                    "running units of owner `{owner}` take {} of the {} {resource} that one owner may take in queue {queue} \
                     (max_per_owner): more start when some of them end",
                    show(*used),
                    show(*max)
                )
            }
            Self::MastersFull { queue, resource, used, max } => {
                let show = |amount| quantity::show_queued(resource, amount);
                write!(
                    f,
                    "application masters take {} of the {} {resource} that they may take in queue {queue} (am_share): the \
                     application starts when others end",
                    show(*used),
                    show(*max)
                )
            }
            Self::Hopeless { queue, who, resource, asked, max } => {
                let (asked, max) =
                    (quantity::show_queued(resource, *asked), quantity::show_queued(resource, *max));
                write!(f, "needs {asked} of {resource}, more than ")?;
                match who {
                    Some(who) => write!(f, "{who} may ever use in queue {queue} ({max})"),
                    None => write!(f, "queue {queue} may ever use ({max})"),
                }
            }
            Self::Kept { queue, unit } => write!(f, "room in queue {queue} is kept for unit {unit}"),
        }
    }
}

impl Queues {
    /// Takes out the unit to be served next; `None` when nothing fits. Costs `O(depth × log siblings)`, and a look at
    /// each class that turns out not to fit, which is then left alone until there is room for it.
    ///
    /// The caller then says [`Self::charge`] and [`Self::served`], or puts the unit back.
    pub fn next(&mut self, now: Millis) -> Option<Waiting> {
        while let Some(band) = self.band() {
            let ready = self.ready_bands();
            let (queue, spot) = self.first(band)?;
            if let Some(waiting) = self.try_head(queue, spot, now) {
                self.full.forget_vain(waiting.unit);
                self.floor.turn = Some((waiting.unit, ready));
                return Some(waiting);
            }
        }
        None
    }

    /// When [`Self::take_full`] may find somebody; `None`: only after an event.
    pub fn full_due(&self) -> Option<Millis> {
        self.full.due()
    }

    /// Takes out units that are worth a try though a queue of theirs is full, the highest priority first. The caller charges
    /// them, or puts them back.
    pub fn take_full(&mut self, now: Millis) -> Vec<Waiting> {
        take_full(self, now)
    }

    /// Takes out a unit that waits for room on nodes, out of turn, for victims; with it whether a queue of it is at a maximum,
    /// so that they have to be found in that queue. `None`: it does not wait here, or that was tried in vain a moment ago, or
    /// what it needs is more than a maximum.
    pub fn take_seeker(&mut self, waiting: &Waiting, now: Millis) -> Option<(Waiting, bool)> {
        let usage = self.quota.usage();
        let shortage = usage.shortage(waiting.payer, waiting.need);
        let is_vain = |one: &Shortage| {
            one.is_hopeless || usage.columns().is_quiet(one.limit) || self.full.is_vain(waiting.unit, now)
        };
        if shortage.as_ref().is_some_and(is_vain) {
            return None;
        }
        Some((self.remove(waiting)?, shortage.is_some()))
    }

    /// A unit that was given out as one of a full queue has come back: nobody could be made to leave.
    pub fn note_vain(&mut self, unit: UnitId, now: Millis) {
        self.full.note_vain(unit, now);
    }

    /// A unit was handed out: bands below it that wait with what might have been served in its place have earned a little, or its
    /// own has spent that. Returns what has changed, for [`Self::unserved`].
    pub fn served(&mut self, waiting: &Waiting) -> FloorChange {
        let n = i64::from(waiting.running_units.max(1));
        let percent = i64::from(self.config.floor_percent_in_force());
        let turn = self.floor.turn.take().filter(|(unit, _)| *unit == waiting.unit);
        let ready = turn.map_or_else(|| self.ready_bands(), |(_, ready)| ready);
        let (mut is_beside_higher, mut change) = (false, FloorChange::default());
        for band in Band::ALL {
            let credit = self.floor.credits.0[band.idx()];
            let is_ready = ready[band.idx()];
            change.0[band.idx()] = if band < waiting.band {
                is_beside_higher |= is_ready;
                0
            } else if band == waiting.band {
                if is_beside_higher { -n * (100 - percent) } else { (-credit).max(0) }
            } else if is_ready && credit < N_TURNS_MAX * (100 - percent) {
                n * percent
            } else {
                0
            };
        }
        self.floor.credits.add(&change);
        change
    }

    /// So much of what was handed out has found no place: what that earned or spent is undone.
    pub fn unserved(&mut self, change: &FloorChange) {
        self.floor.credits.0.iter_mut().zip(change.0).for_each(|(credit, amount)| *credit -= amount);
    }

    /// Why a unit that waits is not served, as of now; `None` if it only waits for its turn.
    pub fn pending_reason(&self, waiting: &Waiting, now: Millis) -> Option<PendingReason> {
        let (tree, usage) = (self.quota.tree(), self.quota.usage());
        if let Some(Shortage { limit, amount, is_hopeless }) = usage.shortage(waiting.payer, waiting.need) {
            if !is_hopeless {
                return Some(self.quota.full(limit));
            }
            let (queue, (resource, of_masters)) =
                (tree.path(limit.queue).to_owned(), usage.columns().resource_of(limit));
            let of_masters = of_masters.then_some("application masters");
            let who = limit.owner.map(|_| "one owner").or(of_masters);
            let (resource, max) = (resource.to_owned(), usage.max_of(limit));
            return Some(PendingReason::Hopeless { queue, who, resource, asked: amount, max });
        }
        let (queue, band, LaneRef { queue: leaf, seat }) = self.claim(waiting, now)?;
        let leaf = &self.branches[leaf.idx()].leaf;
        let stall = leaf.lane(band, seat)?.stall?;
        let (_, first) = leaf.head(ClassRef { band, seat, class: stall.class })?;
        Some(PendingReason::Kept { queue: tree.path(queue).to_owned(), unit: first.unit })
    }

    /// By band, whether something of it may fit.
    fn ready_bands(&self) -> [bool; N_BANDS] {
        Band::ALL.map(|band| self.branches[QueueIdx::ROOT.idx()].is_ready(band))
    }

    /// The band to serve: the highest with something that may fit, unless a lower one has earned its turn.
    fn band(&self) -> Option<Band> {
        let root = &self.branches[QueueIdx::ROOT.idx()];
        let price = 100 - i64::from(self.config.floor_percent_in_force());
        let mut ready = Band::ALL.into_iter().filter(|band| root.is_ready(*band));
        let highest = ready.next()?;
        Some(ready.find(|band| self.floor.credits.0[band.idx()] >= price).unwrap_or(highest))
    }

    /// Whose turn it is in a band.
    fn first(&self, band: Band) -> Option<(QueueIdx, ClassRef)> {
        let mut queue = QueueIdx::ROOT;
        loop {
            let branch = &self.branches[queue.idx()];
            // Units of a queue that got others below it later.
            if let Some(spot) = branch.leaf.first(band) {
                return Some((queue, spot));
            }
            let place = branch.order[band.idx()].first()?;
            queue = self.quota.tree().paths_below(queue)[place as usize];
        }
    }

    /// The unit whose turn it is, if it fits and no room that it needs is kept for another one, which is served then if
    /// it fits. Otherwise something was set aside: looking again finds another one.
    fn try_head(&mut self, queue: QueueIdx, spot: ClassRef, now: Millis) -> Option<Waiting> {
        #[cfg(test)]
        {
            self.n_looks += 1;
        }
        if self.n_gates == 0 {
            return self.take(queue, spot);
        }
        let (key, &waiting) = self.branches[queue.idx()].leaf.head(spot)?;
        if let Some((level, band, claimant)) = self.claim(&waiting, now) {
            return self.serve_claimant(level, waiting.band, band, claimant);
        }
        match self.quota.usage().shortage(waiting.payer, waiting.need) {
            None => {
                self.note_passed(&waiting, now);
                self.take(queue, spot)
            }
            Some(shortage) => {
                self.set_aside(queue, spot, key, waiting, shortage);
                None
            }
        }
    }

    /// On a unit's way upwards, the first queue whose room is kept for a lane of the same or a higher band because its
    /// first unit has waited too long there. Who comes before that unit in its own lane may still pass.
    fn claim(&self, waiting: &Waiting, now: Millis) -> Option<(QueueIdx, Band, LaneRef)> {
        self.quota.usage().sums().limited_upwards(waiting.queue).find_map(|level| {
            let gate = self.branches[level.idx()].gate.as_ref()?;
            let bands = Band::ALL.into_iter().take_while(|band| *band <= waiting.band);
            bands.filter_map(|band| Some((band, gate.first_passed(band)?))).find_map(
                |(band, (since, lane))| {
                    let is_due = now.since(since) >= self.config.head_wait_ms;
                    (is_due && !self.is_before(waiting, band, lane)).then_some((level, band, lane))
                },
            )
        })
    }

    /// Whether a unit is in a stalled lane and not behind the one that waits there.
    fn is_before(&self, waiting: &Waiting, band: Band, lane: LaneRef) -> bool {
        let LaneRef { queue, seat } = lane;
        let leaf = &self.branches[queue.idx()].leaf;
        if (waiting.queue, waiting.band) != (queue, band) || leaf.seat_of(waiting.owner) != Some(seat) {
            return false;
        }
        let stalled = leaf.lane(band, seat).and_then(|lane| lane.head(lane.stall?.class));
        stalled.is_none_or(|(first, _)| FifoKey::new(leaf.policy(), waiting) <= first)
    }

    /// The unit for which the room of `level` is kept, if it fits; else nothing of `band` is served there.
    fn serve_claimant(
        &mut self,
        level: QueueIdx,
        band: Band,
        own_band: Band,
        LaneRef { queue, seat }: LaneRef,
    ) -> Option<Waiting> {
        let leaf = &self.branches[queue.idx()].leaf;
        let stall = leaf.lane(own_band, seat)?.stall?;
        let spot = ClassRef { band: own_band, seat, class: stall.class };
        let (_, waiting) = leaf.head(spot)?;
        let usage = self.quota.usage();
        match usage.shortage(waiting.payer, waiting.need) {
            None => return self.take(queue, spot),
            Some(shortage) if shortage.is_hopeless || usage.columns().is_quiet(shortage.limit) => {
                if let Some(lane) = self.branches[queue.idx()].leaf.lane_mut(own_band, seat) {
                    lane.give_up(stall.class);
                }
                self.set_stall(queue, spot, None);
            }
            Some(shortage) if shortage.limit.queue == level => self.close(level, band),
            Some(shortage) => {
                self.set_stall(queue, spot, Some(Stall { at: shortage.limit.queue, ..stall }));
            }
        }
        None
    }

    /// A unit is served: whoever waits for room on its way, in its band or a higher one, is passed from now on.
    fn note_passed(&mut self, waiting: &Waiting, now: Millis) {
        let mut passed: SmallVec<[(QueueIdx, Band, LaneRef); 4]> = SmallVec::new();
        for level in self.quota.usage().sums().limited_upwards(waiting.queue) {
            let Some(gate) = &self.branches[level.idx()].gate else { continue };
            let behind =
                gate.iter_fresh(waiting.band).filter(|(band, lane)| !self.is_before(waiting, *band, *lane));
            passed.extend(behind.map(|(band, lane)| (level, band, lane)));
        }
        for (level, band, lane) in passed {
            let leaf = &mut self.branches[lane.queue.idx()].leaf;
            let Some(stall) = leaf.lane_mut(band, lane.seat).and_then(|lane| lane.stall.as_mut()) else {
                continue;
            };
            stall.since = Some(now);
            if let Some(gate) = &mut self.branches[level.idx()].gate {
                gate.unstall(band, None, lane);
                gate.stall(band, Some(now), lane);
            }
        }
    }

    /// The class does not fit: it waits at the queue whose maximum is in its way.
    fn set_aside(
        &mut self,
        queue: QueueIdx,
        spot: ClassRef,
        key: FifoKey,
        waiting: Waiting,
        shortage: Shortage,
    ) {
        let (usage, limit) = (self.quota.usage(), at_gate(shortage.limit, waiting.need));
        // Who waits for the end of its own owner's running units, or of masters, keeps nobody else waiting.
        let is_hopeless = shortage.is_hopeless || usage.columns().is_quiet(shortage.limit);
        let worth = usage.asks().worth(waiting.need, limit.resource);
        self.branches[queue.idx()].leaf.park(spot, Shortage { limit, is_hopeless, ..shortage }, usage);
        let Some(gate) = &mut self.branches[limit.queue.idx()].gate else { return };
        gate.park(limit, worth, (queue, spot));
        let lane = self.branches[queue.idx()].leaf.lane(spot.band, spot.seat);
        let old = lane.and_then(|lane| lane.stall);
        let first = lane.zip(old).and_then(|(lane, old)| lane.head(old.class)).map(|(first, _)| first);
        let since = old.and_then(|old| old.since).or_else(|| self.full.passed_before(waiting.unit));
        let fresh = Stall { class: spot.class, at: limit.queue, since };
        let new = match old {
            // What never fits keeps nobody waiting.
            Some(old) if is_hopeless => (old.class != spot.class).then_some(old),
            None if is_hopeless => None,
            Some(old) if first.is_some_and(|first| first < key) => Some(old),
            Some(_) | None => Some(fresh),
        };
        self.set_stall(queue, spot, new);
        self.deactivate(queue, spot.band);
        let branch = &self.branches[limit.queue.idx()];
        let is_shut =
            branch.gate.as_ref().is_some_and(|gate| gate.is_shut(limit.queue, spot.band, self.quota.usage()));
        if is_shut && branch.is_ready(spot.band) {
            self.close(limit.queue, spot.band);
        }
    }

    /// Where the first unit of a lane waits, if it does; if it does not any more, the next one that waits takes over.
    pub(super) fn set_stall(&mut self, queue: QueueIdx, spot: ClassRef, new: Option<Stall>) {
        let Some(lane) = self.branches[queue.idx()].leaf.lane_mut(spot.band, spot.seat) else { return };
        let new = new.or_else(|| lane.next_stall());
        let old = std::mem::replace(&mut lane.stall, new);
        let place = |stall: Stall| (stall.at, stall.since);
        if old.map(place) == new.map(place) {
            return;
        }
        if let Some(old) = old {
            self.leave_gate(queue, spot, old);
        }
        if let Some(new) = new
            && let Some(gate) = &mut self.branches[new.at.idx()].gate
        {
            gate.stall(spot.band, new.since, LaneRef { queue, seat: spot.seat });
            self.news_at(new.at);
        }
    }

    /// The first unit of a lane is gone, and with it its wait.
    pub(super) fn end_stall(&mut self, queue: QueueIdx, spot: ClassRef, stall: Stall) {
        self.leave_gate(queue, spot, stall);
        self.set_stall(queue, spot, None);
    }

    /// Nobody waits for room any more where the first unit of a lane did: others may take it.
    fn leave_gate(&mut self, queue: QueueIdx, spot: ClassRef, stall: Stall) {
        if let Some(gate) = &mut self.branches[stall.at.idx()].gate {
            gate.unstall(spot.band, stall.since, LaneRef { queue, seat: spot.seat });
        }
        for band in Band::ALL {
            self.reopen(stall.at, band);
        }
    }

    /// There is more room in a queue: what fits now may be served, and what else may fit is looked at again. `owners` are those
    /// under a limit for whom there may be more room, too.
    pub(super) fn wake(&mut self, queue: QueueIdx, owners: &[OwnerLimitIdx]) {
        let Some(gate) = &mut self.branches[queue.idx()].gate else { return };
        let mut fitting = gate.take_fitting(queue, self.quota.usage());
        owners.iter().for_each(|owner| gate.take_fitting_of(*owner, self.quota.usage(), &mut fitting));
        for band in Band::ALL {
            self.reopen(queue, band);
        }
        for (leaf, spot) in fitting {
            let usage = self.quota.usage();
            let branch = &mut self.branches[leaf.idx()];
            branch.leaf.unpark(spot, usage);
            let Some(need) = branch.leaf.ready_need(spot) else { continue };
            let stall = branch.leaf.lane(spot.band, spot.seat).and_then(|lane| lane.stall);
            // Whom nobody has passed only waits for its turn from now on. For others the time runs on: room that comes
            // and goes before their turn is none.
            let is_fresh = stall.is_some_and(|stall| stall.class == spot.class && stall.since.is_none());
            let payer = branch.leaf.head(spot).map(|(_, waiting)| waiting.payer);
            let fits = |payer| usage.shortage(payer, need).is_none();
            if is_fresh && payer.is_some_and(fits) {
                self.set_stall(leaf, spot, None);
            }
            self.entered(leaf, spot.band, need);
        }
    }

    /// A queue without a maximum keeps nobody waiting.
    pub(super) fn drop_gate(&mut self, queue: QueueIdx) {
        let Some(gate) = self.branches[queue.idx()].gate.take() else { return };
        self.n_gates -= 1;
        self.full.forget_looks(gate.looks, queue);
        for (band, LaneRef { queue: leaf, seat }) in gate.iter_stalled() {
            self.set_stall(leaf, ClassRef { band, seat, class: 0 }, None);
        }
    }
}

/// Where something waits for room: what may be served without the lacking resource is looked at again whatever ends in the
/// queue, and not only when its owner gets room.
fn at_gate(limit: QueueMaximum, need: Need) -> QueueMaximum {
    if need.ask.is_choice() { QueueMaximum { owner: None, ..limit } } else { limit }
}

#[cfg(test)]
mod tests;
