//! What waits for room under the maximum of one queue.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::time::Millis;
use godel_domain::queue_spec::Band;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{
    full::LookTimes,
    leaf::ClassRef,
    order::N_BANDS,
    tree::QueueIdx,
    usage::{OwnerLimitIdx, QueueMaximum, ResourceIdx, Usage},
};

/// A class of a queue.
pub(super) type Place = (QueueIdx, ClassRef);

/// Names the lane of a queue whose first unit waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LaneRef {
    pub(super) queue: QueueIdx,
    pub(super) seat: u32,
}

/// Amounts by resource.
pub(super) type LimitRow = SmallVec<[i64; 8]>;

/// What waits at one queue.
#[derive(Debug, Default)]
pub(super) struct LimitGate {
    /// By band and resource: at most the least that a class below asks for which may be served as far as the queues
    /// between are concerned. Follows what comes, and begins anew when there is none; between, it may be lower than
    /// true, which costs a look.
    least: [LimitRow; N_BANDS],
    /// Classes set aside, by the room for which they are worth another look.
    parked: BTreeMap<ResourceIdx, BTreeSet<(i64, Place)>>,
    /// The same of those that wait for room under the limit of their owner.
    of_owners: FxHashMap<OwnerLimitIdx, BTreeMap<ResourceIdx, BTreeSet<(i64, Place)>>>,
    /// By band, lanes whose first unit nobody has passed yet.
    fresh: [BTreeSet<LaneRef>; N_BANDS],
    /// By band, the others, the longest wait first.
    passed: [BTreeSet<(Millis, LaneRef)>; N_BANDS],
    /// When those that wait are looked at, for whether others have to leave for them.
    pub(super) looks: LookTimes,
}

impl LimitGate {
    pub(super) fn park(&mut self, limit: QueueMaximum, amount: i64, place: Place) {
        let parked = match limit.owner {
            Some(owner) => self.of_owners.entry(owner).or_default(),
            None => &mut self.parked,
        };
        parked.entry(limit.resource).or_default().insert((amount, place));
    }

    pub(super) fn unpark(&mut self, limit: QueueMaximum, amount: i64, place: Place) {
        let Some(owner) = limit.owner else {
            if let Some(parked) = self.parked.get_mut(&limit.resource) {
                parked.remove(&(amount, place));
            }
            return;
        };
        if let Some(of_owner) = self.of_owners.get_mut(&owner)
            && let Some(parked) = of_owner.get_mut(&limit.resource)
        {
            parked.remove(&(amount, place));
            if of_owner.values().all(BTreeSet::is_empty) {
                self.of_owners.remove(&owner);
            }
        }
    }

    /// Classes that may have room now, the smallest first; they are parked no more.
    pub(super) fn take_fitting(&mut self, queue: QueueIdx, usage: &Usage) -> Vec<Place> {
        let mut fitting = Vec::new();
        take_fitting(&mut self.parked, |resource| usage.sums().room(queue, resource), &mut fitting);
        fitting
    }

    /// The same of those that wait for room under the limit of one owner.
    pub(super) fn take_fitting_of(&mut self, owner: OwnerLimitIdx, usage: &Usage, fitting: &mut Vec<Place>) {
        let Some(of_owner) = self.of_owners.get_mut(&owner) else { return };
        take_fitting(of_owner, |resource| usage.owners().room(owner, resource), fitting);
        if of_owner.values().all(BTreeSet::is_empty) {
            self.of_owners.remove(&owner);
        }
    }

    /// Owners with something that waits for room under their limit.
    pub(super) fn owners(&self) -> Vec<OwnerLimitIdx> {
        self.of_owners.keys().copied().collect()
    }

    pub(super) fn stall(&mut self, band: Band, since: Option<Millis>, lane: LaneRef) {
        match since {
            Some(since) => self.passed[band.idx()].insert((since, lane)),
            None => self.fresh[band.idx()].insert(lane),
        };
    }

    pub(super) fn unstall(&mut self, band: Band, since: Option<Millis>, lane: LaneRef) {
        match since {
            Some(since) => self.passed[band.idx()].remove(&(since, lane)),
            None => self.fresh[band.idx()].remove(&lane),
        };
    }

    /// The lane of a band whose first unit was passed first.
    pub(super) fn first_passed(&self, band: Band) -> Option<(Millis, LaneRef)> {
        self.passed[band.idx()].first().copied()
    }

    /// Lanes of a band or above it that nobody has passed yet.
    pub(super) fn iter_fresh(&self, lowest: Band) -> impl Iterator<Item = (Band, LaneRef)> + '_ {
        let by_band = Band::ALL.into_iter().zip(&self.fresh).take_while(move |(band, _)| *band <= lowest);
        by_band.flat_map(|(band, lanes)| lanes.iter().map(move |lane| (band, *lane)))
    }

    /// Every lane that waits.
    pub(super) fn iter_stalled(&self) -> impl Iterator<Item = (Band, LaneRef)> + '_ {
        let by_band = Band::ALL.into_iter().zip(&self.passed);
        let passed = by_band.flat_map(|(band, lanes)| lanes.iter().map(move |(_, lane)| (band, *lane)));
        self.iter_fresh(Band::BestEffort).chain(passed)
    }

    /// Somebody waits.
    pub(super) fn has_stalled(&self) -> bool {
        self.fresh.iter().any(|lanes| !lanes.is_empty()) || self.passed.iter().any(|lanes| !lanes.is_empty())
    }

    pub(super) fn least(&self, band: Band) -> &LimitRow {
        &self.least[band.idx()]
    }

    /// Something may be served that needs at least this.
    pub(super) fn lower(&mut self, band: Band, row: &LimitRow) {
        let least = &mut self.least[band.idx()];
        // A resource that one of them does not know yet is not known to be asked for.
        let n_columns = least.len().max(row.len());
        least.resize(n_columns, 0);
        for (idx, least) in least.iter_mut().enumerate() {
            *least = row.get(idx).copied().unwrap_or(0).min(*least);
        }
    }

    /// Nothing is ready in a band.
    pub(super) fn forget_least(&mut self, band: Band) {
        self.least[band.idx()].fill(i64::MAX);
    }

    /// Nothing that is ready in a band fits under the queue's maximum.
    pub(super) fn is_shut(&self, queue: QueueIdx, band: Band, usage: &Usage) -> bool {
        let least = &self.least[band.idx()];
        usage.sums().limits(queue).any(|resource| {
            let least = least.get(resource.idx()).copied().unwrap_or(0);
            least > 0 && least > usage.sums().room(queue, resource)
        })
    }
}

fn take_fitting(
    parked: &mut BTreeMap<ResourceIdx, BTreeSet<(i64, Place)>>,
    room: impl Fn(ResourceIdx) -> i64,
    fitting: &mut Vec<Place>,
) {
    for (&resource, parked) in parked {
        let room = room(resource);
        while let Some(&(amount, place)) = parked.first()
            && amount <= room
        {
            parked.pop_first();
            fitting.push(place);
        }
    }
}
