//! Who is served next: all units that wait, in a tree of queues.
//!
//! Bands come first: a lower one is served when nothing of a higher one fits, but for a floor that keeps it from
//! starving. Within a band the way leads from the root down: among sibling queues those below their guarantee, then
//! the smallest weighted dominant share of what is used or handed out (Ghodsi, Zaharia, Hindman, Konwinski, Shenker,
//! Stoica: *Dominant Resource Fairness*, NSDI 2011; applied level by level as in Bhattacharya et al.: *Hierarchical
//! Scheduling for Diverse Datacenter Workloads*, SoCC 2013, whose sparse queues cannot fall behind here because shares
//! are counted anew from what is used). Serving the smallest first is progressive filling, which ends max-min fair
//! (Bertsekas and Gallager: *Data Networks*, 6.5.2). Inside a queue its policy decides (`leaf`).
//!
//! Costs do not follow the number of queues or of units that wait. Each level has a heap of those below it that may
//! be served; a change of usage moves one member per level. What does not fit under a maximum is set aside at the
//! queue whose maximum it is, with all units of its lane that need the same, and is not looked at again before so
//! much room is there; a queue in which nothing that waits can fit leaves its parent's heap as a whole (`limit_gate`).

mod ready;

use std::{cmp::Ordering, collections::BTreeMap, sync::Arc};

use godel_base::ids::UnitId;
use godel_domain::queue_spec::{Band, QueueSpec};
use godel_domain::{demand::Demand, unit::UnitSpec};
use smallvec::SmallVec;

use super::{
    fifo::{Pushed, Removed},
    full::{FullQueues, VictimClasses, VictimCount},
    heap::Heap,
    interned::Interned,
    leaf::{ClassRef, Leaf},
    limit_gate::LimitGate,
    quota::Quota,
    rooms::{RoomIdx, RoomWaits},
    select::Floor,
    tree::QueueIdx,
    usage::{AskId, Need, OwnerLimitIdx, PayerIdx, ShareKey, SumKind, Usage},
};

pub(super) const N_BANDS: usize = Band::ALL.len();

/// How queues are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Of the running units handed out at least so many per cent are those of each lower band that waits.
    pub floor_percent: u8,
    /// A unit at the head of its queue that waits so long for room under a maximum gets the next room there,
    /// milliseconds: until then smaller ones may pass it.
    pub head_wait_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { floor_percent: 5, head_wait_ms: 60_000 }
    }
}

impl Config {
    /// Half at most: no lower band comes before a higher one.
    pub fn floor_percent_in_force(&self) -> u8 {
        self.floor_percent.min(50)
    }
}

/// An owner, interned; held by the units that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerIdx(u32);

/// A unit that waits. What does not change while it waits; `running_units` may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The unit. Ids rise with age.
    pub unit: UnitId,
    /// Of its [`Account`].
    pub queue: QueueIdx,
    /// Of its [`Account`].
    pub owner: OwnerIdx,
    /// Of its [`Account`].
    pub payer: PayerIdx,
    /// First sort key over all queues.
    pub band: Band,
    /// Higher first.
    pub priority: i32,
    /// It was dispatched before.
    pub again: bool,
    /// Commit time of its creation, Unix milliseconds: it ages from then on, across restarts.
    pub created_ms: i64,
    /// What has to fit at least: see [`Account::need`].
    pub need: Need,
    /// Running units to place.
    pub running_units: u32,
    /// What it lacks that found no place.
    pub room: RoomIdx,
    /// The scheduler that has it while it waits for that.
    pub held_by: Option<u32>,
}

/// What is kept of a unit for its queue, from [`Queues::enroll`] to [`Queues::forget_unit`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its queue.
    pub queue: QueueIdx,
    /// Its owner.
    pub owner: OwnerIdx,
    /// Its owner in its queue.
    pub payer: PayerIdx,
    groups: SmallVec<[AskId; 1]>,
    /// Of its first binding.
    gang: Need,
    /// Several groups wait, and it was placed before.
    choice: Option<AskId>,
}

impl Account {
    /// What has to fit under the maxima for a dispatch to make sense: `min_member` of any of its groups (of each resource
    /// what those take that take least of it), or one replica once the unit was placed: of any group that
    /// [`Queues::choose`] was told, or else of this one.
    pub fn need(&self, placed: Option<usize>) -> Need {
        let one = placed.and_then(|group| self.choice.or(self.ask(group)));
        one.map_or(self.gang, |ask| Need { ask, n: 1 })
    }

    /// What a running unit of a group takes.
    pub fn ask(&self, group: usize) -> Option<AskId> {
        self.groups.get(group).copied()
    }
}

/// Units that wait, and what their queues use.
#[derive(Debug)]
pub struct Queues {
    pub(super) config: Config,
    pub(super) quota: Quota,
    owners: Interned<Arc<str>>,
    /// By queue.
    pub(super) branches: Vec<Branch>,
    pub(super) floor: Floor,
    n_units: usize,
    n_running_units: u64,
    rooms: RoomWaits,
    /// Queues with a maximum: without any everything fits.
    pub(super) n_gates: usize,
    pub(super) full: FullQueues,
    #[cfg(test)]
    pub(super) n_looks: usize,
}

/// One queue in the order of service.
#[derive(Debug, Default)]
pub(super) struct Branch {
    /// By band, queues below with a unit that may fit.
    pub(super) order: [Heap<ShareKey>; N_BANDS],
    pub(super) leaf: Leaf,
    /// By band: nothing below can fit under its maximum as it is.
    pub(super) is_closed: [bool; N_BANDS],
    /// Of its own bound running units.
    pub(super) standings: VictimClasses,
    /// While it has a maximum.
    pub(super) gate: Option<Box<LimitGate>>,
    n_enrolled: usize,
}

impl Branch {
    /// Something below may fit.
    pub(super) fn is_ready(&self, band: Band) -> bool {
        self.leaf.is_ready(band) || !self.order[band.idx()].is_empty()
    }
}

impl Default for Queues {
    fn default() -> Self {
        Self::new(Config::default())
    }
}

impl Queues {
    /// Without records and units: there is `default` only.
    pub fn new(config: Config) -> Self {
        let mut queues = Self {
            config,
            quota: Quota::default(),
            owners: Interned::default(),
            branches: Vec::new(),
            floor: Floor::default(),
            n_units: 0,
            n_running_units: 0,
            rooms: RoomWaits::default(),
            n_gates: 0,
            full: FullQueues::default(),
            #[cfg(test)]
            n_looks: 0,
        };
        queues.grow();
        queues
    }

    /// Queues and their usage.
    pub fn quota(&self) -> &Quota {
        &self.quota
    }

    /// A queue's record as committed.
    pub fn put(&mut self, record: Arc<QueueSpec>) {
        let changed = self.quota.put(record);
        self.changed(&changed);
    }

    /// A queue's record is gone.
    pub fn remove_record(&mut self, path: &str) {
        let changed = self.quota.remove(path);
        self.changed(&changed);
    }

    /// What the cluster has in all, devices by their kind in thousandths: shares are parts of it. `O(queues)` when it
    /// has become another one by more than a hundredth, else nothing happens.
    pub fn set_total<'a>(&mut self, total: impl IntoIterator<Item = (&'a str, i64)>) {
        if !self.quota.usage_mut().set_total(total) {
            return;
        }
        for idx in (1u32..).take(self.branches.len().saturating_sub(1)) {
            self.move_in_order(QueueIdx(idx));
        }
        for branch in &mut self.branches {
            branch.leaf.reorder_all(self.quota.usage());
        }
    }

    /// A unit is known from now on.
    pub fn enroll(&mut self, spec: &UnitSpec) -> Account {
        let queue = self.quota.queue(&spec.queue);
        self.grow();
        self.branches[queue.idx()].n_enrolled += 1;
        let name = spec.owner.as_str();
        let owner = OwnerIdx(self.owners.intern_by(name, || Arc::from(name)));
        let payer = self.quota.enter(queue, name);
        let usage = self.quota.usage_mut();
        if let [group] = spec.task_groups.as_slice() {
            let ask = intern(usage, spec, 0, &group.template.demand);
            usage.asks_mut().retain(ask);
            let gang = Need { ask, n: group.replicas.min(spec.min_member.max(1)) };
            return Account { queue, owner, payer, groups: SmallVec::from_buf([ask]), gang, choice: None };
        }
        let demands = spec.task_groups.iter().map(|group| &group.template.demand).enumerate();
        let groups: SmallVec<[AskId; 1]> =
            demands.map(|(group, demand)| intern(usage, spec, group, demand)).collect();
        let of_groups = spec.task_groups.iter().zip(&groups);
        let some: SmallVec<[(Need, u32); 4]> = of_groups
            .map(|(group, ask)| (Need { ask: *ask, n: group.replicas }, group.min_member))
            .filter(|(need, _)| need.n > 0)
            .collect();
        let ask = match spec.min_member {
            0 | 1 if !spec.has_group_minima() => {
                usage.asks_mut().intern_any(some.iter().map(|(need, _)| need.ask))
            }
            n => usage.asks_mut().intern_least(&some, n),
        };
        let gang = Need { ask, n: 1 };
        Account { queue, owner, payer, groups, gang, choice: None }
    }

    /// Groups of a unit that was placed before and waits again. What is in the queue stays what it is.
    pub fn choose(&mut self, account: &mut Account, groups: impl IntoIterator<Item = usize>) {
        let asks: SmallVec<[AskId; 4]> = groups.into_iter().filter_map(|group| account.ask(group)).collect();
        let usage = self.quota.usage_mut();
        let choice = (asks.len() > 1).then(|| usage.asks_mut().intern_any(asks));
        if let Some(old) = std::mem::replace(&mut account.choice, choice) {
            usage.asks_mut().release(old);
        }
    }

    /// A unit is gone. It must not wait, and nothing may be counted for it any more.
    pub fn forget_unit(&mut self, account: &Account) {
        self.branches[account.queue.idx()].n_enrolled -= 1;
        self.owners.release(account.owner.0);
        self.quota.leave(account.payer);
        let usage = self.quota.usage_mut();
        for ask in account.groups.iter().chain([&account.gang.ask]).chain(&account.choice) {
            usage.asks_mut().release(*ask);
        }
    }

    /// Units that wait for room on nodes.
    pub fn rooms(&self) -> &RoomWaits {
        &self.rooms
    }

    /// Units enrolled that name a queue.
    pub fn n_enrolled(&self, queue: QueueIdx) -> usize {
        self.branches.get(queue.idx()).map_or(0, |branch| branch.n_enrolled)
    }

    /// Running units of a group count in their queue from now on: handed out, or bound and not ended. `O(depth)`.
    pub fn charge(&mut self, account: &Account, group: usize, n: u32) {
        let Some(ask) = account.ask(group).filter(|_| n > 0) else { return };
        let need = Need { ask, n };
        self.quota.usage_mut().add(account.payer, need);
        self.count_owner(account, need, 1);
        self.moved(account.queue);
    }

    /// Ends a [`Self::charge`]: what waits for room may fit. `O(depth)`, and what fits now.
    pub fn discharge(&mut self, account: &Account, group: usize, n: u32) {
        let Some(ask) = account.ask(group).filter(|_| n > 0) else { return };
        let need = Need { ask, n };
        self.quota.usage_mut().sub(account.payer, need);
        self.count_owner(account, need, -1);
        self.moved(account.queue);
        if self.n_gates == 0 {
            return;
        }
        let usage = self.quota.usage();
        let limited: SmallVec<[QueueIdx; 8]> = usage.sums().limited_upwards(account.queue).collect();
        let owners: SmallVec<[OwnerLimitIdx; 4]> = SmallVec::from_slice(usage.owners().limits(account.payer));
        for level in limited {
            self.wake(level, &owners);
            self.news_at(level);
        }
    }

    /// So many of the running units charged for a group are bound, `before` and `after`: shown, not judged.
    pub fn note_bound(&mut self, account: &Account, group: usize, before: u32, after: u32) {
        let Some(ask) = account.ask(group) else { return };
        let (n, sign) = if after > before { (after - before, 1) } else { (before - after, -1) };
        if n > 0 {
            self.quota.usage_mut().note(account.queue, Need { ask, n }, sign, SumKind::Bound);
        }
    }

    /// So many bound running units of a unit stand so now, and so many stood otherwise before.
    pub fn note_standing(&mut self, account: &Account, before: VictimCount, after: VictimCount) {
        self.branches[account.queue.idx()].standings.note(before, after);
        if self.n_gates > 0 {
            self.news_from(account.queue);
        }
    }

    /// Adds a unit; replaces it if it waits at the same place. One whose priority, age or need is another now has to
    /// be taken out as it was first.
    pub fn push(&mut self, waiting: Waiting) {
        let is_shut = !self.rooms.is_open(waiting.room);
        let Some(name) = self.owners.get(waiting.owner.0) else { return };
        let leaf = &mut self.branches[waiting.queue.idx()].leaf;
        let (seat, Pushed { old, may_fit, class }) = leaf.push(waiting, is_shut, name, self.quota.usage());
        if waiting.room != RoomIdx::NONE {
            let spot = ClassRef { band: waiting.band, seat, class };
            self.rooms.enter(&waiting, old.as_ref(), spot);
        }
        if waiting.need.ask.is_choice() && old.is_none() {
            self.quota.usage_mut().asks_mut().retain(waiting.need.ask);
        }
        if waiting.room == RoomIdx::NONE {
            self.n_units += usize::from(old.is_none());
            self.n_running_units += u64::from(waiting.running_units);
            self.n_running_units -= old.map_or(0, |old| u64::from(old.running_units));
        }
        if may_fit {
            self.entered(waiting.queue, waiting.band, waiting.need);
        } else {
            self.news_from(waiting.queue);
        }
    }

    /// Takes a unit out; `waiting` must be as it was pushed but for the number of running units.
    pub fn remove(&mut self, waiting: &Waiting) -> Option<Waiting> {
        let leaf = &mut self.branches[waiting.queue.idx()].leaf;
        let (seat, removed) = leaf.remove(waiting, self.quota.usage())?;
        self.removed(seat, &removed);
        Some(removed.waiting)
    }

    /// Whether the unit waits at its place.
    pub fn contains(&self, waiting: &Waiting) -> bool {
        self.branches.get(waiting.queue.idx()).is_some_and(|branch| branch.leaf.contains(waiting))
    }

    /// Units of one queue, by band and in order of its policy; of owners who take turns, who came first.
    pub fn iter(&self, queue: QueueIdx) -> impl Iterator<Item = &Waiting> {
        self.branches.get(queue.idx()).into_iter().flat_map(|branch| branch.leaf.iter())
    }

    /// Units that wait, but for those that wait for room on nodes.
    pub fn len(&self) -> usize {
        self.n_units
    }

    /// Nobody waits but for room on nodes.
    pub fn is_empty(&self) -> bool {
        self.n_units == 0
    }

    /// Something may fit: [`Self::next`](Self::next) is worth a look.
    pub fn is_ready(&self) -> bool {
        let root = &self.branches[QueueIdx::ROOT.idx()];
        Band::ALL.into_iter().any(|band| root.is_ready(band))
    }

    /// Running units to place of these.
    pub fn running_units(&self) -> u64 {
        self.n_running_units
    }

    /// Takes the first unit of a class out.
    pub(super) fn take(&mut self, queue: QueueIdx, spot: ClassRef) -> Option<Waiting> {
        let removed = self.branches[queue.idx()].leaf.take(spot, self.quota.usage())?;
        self.removed(spot.seat, &removed);
        Some(removed.waiting)
    }

    /// Something has changed below a queue, or in it: what waits there is looked at.
    pub(super) fn news_at(&mut self, queue: QueueIdx) {
        if let Some(gate) = &mut self.branches[queue.idx()].gate {
            self.full.on_news(queue, gate);
        }
    }

    /// The same for a queue and all above it.
    fn news_from(&mut self, queue: QueueIdx) {
        let limited: SmallVec<[QueueIdx; 8]> = self.quota.usage().sums().limited_upwards(queue).collect();
        limited.into_iter().for_each(|level| self.news_at(level));
    }

    fn removed(&mut self, seat: u32, removed: &Removed) {
        let waiting = &removed.waiting;
        let spot = ClassRef { band: waiting.band, seat, class: removed.class };
        if waiting.room == RoomIdx::NONE {
            self.n_units -= 1;
            self.n_running_units -= u64::from(waiting.running_units);
        } else {
            self.rooms.remove(waiting, spot, removed.is_gone);
        }
        if let Some(limit) = removed.parked {
            let worth = self.quota.usage().asks().worth(waiting.need, limit.resource);
            if let Some(gate) = &mut self.branches[limit.queue.idx()].gate {
                gate.unpark(limit, worth, (waiting.queue, spot));
            }
        }
        if let Some(stall) = removed.stall {
            self.end_stall(waiting.queue, spot, stall);
        }
        self.deactivate(waiting.queue, waiting.band);
        if waiting.need.ask.is_choice() {
            self.quota.usage_mut().asks_mut().release(waiting.need.ask);
        }
    }

    fn grow(&mut self) {
        while self.branches.len() < self.quota.tree().len() {
            let mut branch = Branch::default();
            let queue = u32::try_from(self.branches.len()).expect("queues are numbered in 32 bits");
            branch.leaf.set_tells_owners(self.quota.limits_owners(QueueIdx(queue)));
            self.branches.push(branch);
        }
    }

    fn count_owner(&mut self, account: &Account, need: Need, sign: i128) {
        if let Some(name) = self.owners.get(account.owner.0) {
            let leaf = &mut self.branches[account.queue.idx()].leaf;
            leaf.count(account.owner, name, need, sign, self.quota.usage());
        }
    }

    /// Records say something else of these queues.
    fn changed(&mut self, queues: &[QueueIdx]) {
        self.grow();
        for &queue in queues {
            let is_limited = self.quota.usage().sums().is_limited(queue);
            let branch = &mut self.branches[queue.idx()];
            if is_limited && branch.gate.is_none() {
                branch.gate = Some(Box::default());
                self.n_gates += 1;
            }
            let owners =
                self.branches[queue.idx()].gate.as_ref().map(|gate| gate.owners()).unwrap_or_default();
            self.wake(queue, &owners);
            // A choice waits at the highest of its maxima.
            let above: SmallVec<[QueueIdx; 8]> = self.quota.usage().sums().limited_upwards(queue).collect();
            above.into_iter().filter(|level| *level != queue).for_each(|level| self.wake(level, &[]));
            self.news_from(queue);
            if !is_limited {
                self.drop_gate(queue);
            }
            self.move_in_order(queue);
            self.follow_policy(queue);
            self.follow_weights(queue);
            self.follow_owner_limits(queue);
        }
    }

    /// Queues from one downwards tell owners apart, or do so no longer.
    fn follow_owner_limits(&mut self, queue: QueueIdx) {
        let mut below = vec![queue];
        while let Some(level) = below.pop() {
            below.extend(self.quota.tree().paths_below(level));
            let tells_owners = self.quota.limits_owners(level);
            if self.branches.get(level.idx()).is_some_and(|branch| branch.leaf.tells_owners() != tells_owners)
            {
                self.put_again(level, |leaf| leaf.set_tells_owners(tells_owners));
            }
        }
    }

    /// Changes the order of a queue while nothing waits in it.
    fn put_again(&mut self, queue: QueueIdx, change: impl FnOnce(&mut Leaf)) {
        let waiting: Vec<Waiting> = self.branches[queue.idx()].leaf.iter().copied().collect();
        for one in &waiting {
            self.remove(one);
        }
        change(&mut self.branches[queue.idx()].leaf);
        for one in waiting {
            self.push(one);
        }
    }

    fn follow_policy(&mut self, queue: QueueIdx) {
        let policy = self.quota.tree().policy(queue);
        let leaf = &self.branches[queue.idx()].leaf;
        if leaf.policy() == policy {
            return;
        }
        self.put_again(queue, |leaf| leaf.set_policy(policy));
    }

    fn follow_weights(&mut self, queue: QueueIdx) {
        static NONE: BTreeMap<String, u32> = BTreeMap::new();
        let weights = self.quota.tree().record(queue).map_or(&NONE, |record| &record.owner_weights);
        self.branches[queue.idx()].leaf.set_weights(weights, self.quota.usage());
    }

    /// What a queue uses is another now: it and those above it stand elsewhere among their siblings.
    fn moved(&mut self, queue: QueueIdx) {
        let mut level = queue;
        while level != QueueIdx::ROOT {
            self.move_in_order(level);
            level = self.quota.tree().parent(level);
        }
    }

    /// A queue stands elsewhere among its siblings. Where it is alone nobody asks: it is looked at when it gets company.
    fn move_in_order(&mut self, queue: QueueIdx) {
        let tree = self.quota.tree();
        let (above, place) = (tree.parent(queue), tree.place(queue));
        let orders = &mut self.branches[above.idx()].order;
        if orders.iter().all(|order| order.only().is_some() || !order.contains(place)) {
            return;
        }
        let turn = self.quota.usage().share_key(queue);
        for order in orders {
            if order.contains(place) {
                order.set(place, turn, &|a, b| by_path(&self.quota, above, a, b));
            }
        }
    }
}

/// What a running unit of a task group takes: an application master counts as one, too.
fn intern(usage: &mut Usage, spec: &UnitSpec, group: usize, demand: &Demand) -> AskId {
    let ask = usage.intern(demand);
    if !spec.is_of_masters(group) {
        return ask;
    }
    let of_master = usage.intern_master(ask);
    usage.asks_mut().release(ask);
    of_master
}

/// Ties among siblings go by name.
fn by_path(quota: &Quota, above: QueueIdx, a: u32, b: u32) -> Ordering {
    let tree = quota.tree();
    let path = |place: u32| tree.path(tree.paths_below(above)[place as usize]);
    path(a).cmp(path(b))
}
