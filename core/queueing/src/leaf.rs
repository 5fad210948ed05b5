//! The units of one queue: one lane a band, or under a policy that lets owners take turns, one for each owner.
//!
//! What each owner uses is counted under every policy, so that a change of policy finds the sums there.

use std::{cmp::Ordering, collections::BTreeMap, num::NonZeroU32, sync::Arc};

use godel_domain::queue_spec::{Band, QueuePolicy};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{
    fifo::{ClassKey, Fifo, FifoKey, Pushed, Removed, merge},
    heap::Heap,
    order::{OwnerIdx, Waiting},
    policies::{OwnerRank, OwnerUse, SortPolicy, sort_policy},
    usage::{Need, Shortage, Usage},
};

/// The seat that all owners share while they do not take turns.
const SHARED: u32 = 0;

/// Units of one queue.
#[derive(Debug)]
pub(super) struct Leaf {
    policy: &'static SortPolicy,
    /// Of owners that do not weigh 1.
    weights: BTreeMap<String, u32>,
    /// A queue upwards limits what one owner takes: units of different owners are never of one class.
    tells_owners: bool,
    seats: Vec<OwnerQueue>,
    free: Vec<u32>,
    by_owner: FxHashMap<OwnerIdx, u32>,
    /// By band, seats with a unit that may fit.
    order: [Heap<OwnerRank>; Band::ALL.len()],
    n_units: usize,
}

/// What one owner uses, and what waits in its name.
#[derive(Debug)]
struct OwnerQueue {
    owner: Option<OwnerIdx>,
    /// Among owners, where that counts.
    weight: NonZeroU32,
    /// Ties go by it.
    name: Option<Arc<str>>,
    used: SmallVec<[i128; 4]>,
    lanes: [Option<Box<Fifo>>; Band::ALL.len()],
}

impl Default for OwnerQueue {
    fn default() -> Self {
        let (owner, name) = (None, None);
        Self { owner, weight: NonZeroU32::MIN, name, used: SmallVec::new(), lanes: Default::default() }
    }
}

/// A class in a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClassRef {
    pub(super) band: Band,
    pub(super) seat: u32,
    pub(super) class: u32,
}

impl Default for Leaf {
    fn default() -> Self {
        Self {
            policy: sort_policy(QueuePolicy::default()),
            weights: BTreeMap::new(),
            tells_owners: false,
            seats: vec![OwnerQueue::default()],
            free: Vec::new(),
            by_owner: FxHashMap::default(),
            order: Default::default(),
            n_units: 0,
        }
    }
}

impl Leaf {
    pub(super) fn policy(&self) -> QueuePolicy {
        self.policy.policy
    }

    /// Another order; nothing may wait.
    pub(super) fn set_policy(&mut self, policy: QueuePolicy) {
        debug_assert_eq!(self.n_units, 0, "units wait in the order of another policy");
        self.policy = sort_policy(policy);
    }

    /// Owners weigh otherwise.
    pub(super) fn set_weights(&mut self, weights: &BTreeMap<String, u32>, usage: &Usage) {
        if self.weights == *weights {
            return;
        }
        self.weights.clone_from(weights);
        for seat in &mut self.seats {
            seat.weight = weight(&self.weights, seat.name.as_deref());
        }
        if self.policy.policy == QueuePolicy::FairShare {
            self.reorder_all(usage);
        }
    }

    /// Whether units of different owners are told apart.
    pub(super) fn tells_owners(&self) -> bool {
        self.tells_owners
    }

    /// Units of different owners are told apart from now on, or are not; nothing may wait.
    pub(super) fn set_tells_owners(&mut self, tells_owners: bool) {
        debug_assert_eq!(self.n_units, 0, "units wait in other classes");
        self.tells_owners = tells_owners;
    }

    fn class_key(&self, waiting: &Waiting) -> ClassKey {
        let payer = if self.tells_owners { waiting.payer } else { waiting.queue.into() };
        (waiting.need, payer, waiting.room)
    }

    /// Something that may fit.
    pub(super) fn is_ready(&self, band: Band) -> bool {
        !self.order[band.idx()].is_empty()
    }

    /// Adds a unit; replaces it if it stands at the same place. Returns its seat with what came of it.
    pub(super) fn push(
        &mut self,
        waiting: Waiting,
        is_shut: bool,
        name: &Arc<str>,
        usage: &Usage,
    ) -> (u32, Pushed) {
        let seat = if self.policy.rank.is_some() { self.seat(waiting.owner, name) } else { SHARED };
        let (key, class) = (FifoKey::new(self.policy.policy, &waiting), self.class_key(&waiting));
        let lane = self.seats[seat as usize].lanes[waiting.band.idx()].get_or_insert_default();
        let pushed = lane.push(key, class, waiting, is_shut);
        self.n_units += usize::from(pushed.old.is_none());
        self.reposition(waiting.band, seat, usage);
        (seat, pushed)
    }

    pub(super) fn contains(&self, waiting: &Waiting) -> bool {
        let lane = self.seat_of(waiting.owner).and_then(|seat| self.lane(waiting.band, seat));
        lane.is_some_and(|lane| {
            lane.contains(FifoKey::new(self.policy.policy, waiting), self.class_key(waiting))
        })
    }

    /// Takes a unit out, if it stands there; returns its seat with it.
    pub(super) fn remove(&mut self, waiting: &Waiting, usage: &Usage) -> Option<(u32, Removed)> {
        let seat = self.seat_of(waiting.owner)?;
        let (key, class) = (FifoKey::new(self.policy.policy, waiting), self.class_key(waiting));
        let removed = self.lane_mut(waiting.band, seat)?.remove(key, class)?;
        self.removed(seat, &removed, usage);
        Some((seat, removed))
    }

    /// Takes the first unit of a class out.
    pub(super) fn take(&mut self, spot: ClassRef, usage: &Usage) -> Option<Removed> {
        let removed = self.lane_mut(spot.band, spot.seat)?.take(spot.class)?;
        self.removed(spot.seat, &removed, usage);
        Some(removed)
    }

    /// The class whose turn it is.
    pub(super) fn first(&self, band: Band) -> Option<ClassRef> {
        let seat = self.order[band.idx()].first()?;
        let class = self.lane(band, seat)?.first()?;
        Some(ClassRef { band, seat, class })
    }

    /// The first unit of a class.
    pub(super) fn head(&self, spot: ClassRef) -> Option<(FifoKey, &Waiting)> {
        self.lane(spot.band, spot.seat)?.head(spot.class)
    }

    pub(super) fn lane(&self, band: Band, seat: u32) -> Option<&Fifo> {
        self.seats.get(seat as usize)?.lanes[band.idx()].as_deref()
    }

    pub(super) fn lane_mut(&mut self, band: Band, seat: u32) -> Option<&mut Fifo> {
        self.seats.get_mut(seat as usize)?.lanes[band.idx()].as_deref_mut()
    }

    /// A class does not fit under a maximum.
    pub(super) fn park(
        &mut self,
        spot: ClassRef,
        Shortage { limit, is_hopeless, .. }: Shortage,
        usage: &Usage,
    ) {
        if let Some(lane) = self.lane_mut(spot.band, spot.seat) {
            lane.park(spot.class, limit, is_hopeless);
            self.reposition(spot.band, spot.seat, usage);
        }
    }

    /// A class may fit again.
    pub(super) fn unpark(&mut self, spot: ClassRef, usage: &Usage) {
        if let Some(lane) = self.lane_mut(spot.band, spot.seat) {
            lane.unpark(spot.class);
            self.reposition(spot.band, spot.seat, usage);
        }
    }

    /// There is no room for a class on any node, or there may be again.
    pub(super) fn set_shut(&mut self, spot: ClassRef, is_shut: bool, usage: &Usage) {
        if let Some(lane) = self.lane_mut(spot.band, spot.seat) {
            lane.set_shut(spot.class, is_shut);
            self.reposition(spot.band, spot.seat, usage);
        }
    }

    /// What a class needs that may be served.
    pub(super) fn ready_need(&self, spot: ClassRef) -> Option<Need> {
        self.lane(spot.band, spot.seat)?.ready_need(spot.class)
    }

    /// Counts what an owner uses from now on (`sign` 1) or no more (-1).
    pub(super) fn count(&mut self, owner: OwnerIdx, name: &Arc<str>, need: Need, sign: i128, usage: &Usage) {
        let seat = self.seat(owner, name);
        usage.asks().add_to(&mut self.seats[seat as usize].used, need, sign);
        if self.policy.rank.is_some() {
            self.reorder(seat, usage);
        }
        if sign < 0 {
            self.drop_if_idle(seat);
        }
    }

    /// Shares are other ones now.
    pub(super) fn reorder_all(&mut self, usage: &Usage) {
        for seat in (0u32..).take(self.seats.len()) {
            self.reorder(seat, usage);
        }
    }

    /// Whose turn comes first of two units of one band.
    pub(super) fn order(&self, a: &Waiting, b: &Waiting, usage: &Usage) -> Ordering {
        if self.policy.rank.is_none() || a.owner == b.owner {
            let key = |one: &Waiting| FifoKey::new(self.policy.policy, one);
            return key(a).cmp(&key(b));
        }
        // Who has no seat uses nothing.
        let seats = (self.seat_of(a.owner), self.seat_of(b.owner));
        let claim = |seat: Option<u32>| seat.map(|seat| self.claim(seat, usage));
        let by_name = || match seats {
            (Some(a), Some(b)) => by_name(&self.seats, a, b),
            (None, _) | (_, None) => a.owner.cmp(&b.owner),
        };
        claim(seats.0).cmp(&claim(seats.1)).then_with(by_name)
    }

    /// Units by band, then in order of their keys; of owners who take turns that is who came first, not whose turn
    /// it is.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        Band::ALL.into_iter().flat_map(|band| {
            let lanes = self.seats.iter().filter_map(move |seat| seat.lanes[band.idx()].as_deref());
            merge(lanes.flat_map(Fifo::iter_classes).collect())
        })
    }

    /// The seat of an owner's units.
    pub(super) fn seat_of(&self, owner: OwnerIdx) -> Option<u32> {
        if self.policy.rank.is_some() { self.by_owner.get(&owner).copied() } else { Some(SHARED) }
    }

    fn seat(&mut self, owner: OwnerIdx, name: &Arc<str>) -> u32 {
        if let Some(seat) = self.by_owner.get(&owner) {
            return *seat;
        }
        let weight = weight(&self.weights, Some(name));
        let fresh =
            OwnerQueue { owner: Some(owner), weight, name: Some(Arc::clone(name)), ..OwnerQueue::default() };
        let seat = match self.free.pop() {
            Some(seat) => {
                self.seats[seat as usize] = fresh;
                seat
            }
            None => {
                self.seats.push(fresh);
                u32::try_from(self.seats.len() - 1).expect("memory ends before 2^32 owners")
            }
        };
        self.by_owner.insert(owner, seat);
        seat
    }

    fn removed(&mut self, seat: u32, removed: &Removed, usage: &Usage) {
        self.n_units -= 1;
        self.reposition(removed.waiting.band, seat, usage);
    }

    /// Who uses nothing and waits for nothing needs no seat.
    fn drop_if_idle(&mut self, seat: u32) {
        let OwnerQueue { owner: Some(owner), used, lanes, .. } = &self.seats[seat as usize] else { return };
        if used.iter().all(|amount| *amount == 0) && lanes.iter().all(Option::is_none) {
            self.by_owner.remove(owner);
            self.seats[seat as usize] = OwnerQueue::default();
            self.free.push(seat);
        }
    }

    /// Who comes first, by the policy. Raising the least of them first ends max-min fair.
    fn claim(&self, seat: u32, usage: &Usage) -> OwnerRank {
        let OwnerQueue { used, weight, .. } = &self.seats[seat as usize];
        let owner = OwnerUse { usage, used, weight: u64::from(weight.get()) };
        self.policy.rank.map_or((0, 0), |rank| rank(&owner))
    }

    fn reorder(&mut self, seat: u32, usage: &Usage) {
        if !self.order.iter().any(|order| order.contains(seat)) {
            return;
        }
        let claim = self.claim(seat, usage);
        let seats = &self.seats;
        for order in self.order.iter_mut().filter(|order| order.contains(seat)) {
            order.set(seat, claim, &|a, b| by_name(seats, a, b));
        }
    }

    /// A seat stands in the order of a band while a unit of that band may fit; it has no lane without units.
    fn reposition(&mut self, band: Band, seat: u32, usage: &Usage) {
        let lane = self.lane(band, seat);
        let is_ready = lane.is_some_and(|lane| lane.first().is_some());
        let is_empty = lane.is_some_and(Fifo::is_empty);
        // It has no claim to follow, and stays when it is empty.
        if seat == SHARED && is_ready == self.order[band.idx()].contains(seat) {
            return;
        }
        let claim = self.claim(seat, usage);
        let (order, seats) = (&mut self.order[band.idx()], &self.seats);
        if is_ready {
            order.set(seat, claim, &|a, b| by_name(seats, a, b));
        } else {
            order.remove(seat, &|a, b| by_name(seats, a, b));
        }
        if is_empty && seat != SHARED {
            self.seats[seat as usize].lanes[band.idx()] = None;
            self.drop_if_idle(seat);
        }
    }
}

/// Of an owner: 1 unless the queue says otherwise.
fn weight(weights: &BTreeMap<String, u32>, owner: Option<&str>) -> NonZeroU32 {
    let named = owner.and_then(|owner| weights.get(owner)).and_then(|weight| NonZeroU32::new(*weight));
    named.unwrap_or(NonZeroU32::MIN)
}

fn by_name(seats: &[OwnerQueue], a: u32, b: u32) -> Ordering {
    seats[a as usize].name.cmp(&seats[b as usize].name).then(a.cmp(&b))
}
