//! Who may have the next turn, and who is in the way of whom.

use std::collections::BTreeSet;

use godel_base::ids::UnitId;
use godel_domain::demand::Pool;
use godel_queueing::{QueueIdx, Queues, Waiting};

/// Units of a pool that gather room for one running unit each at the same time, at most.
const N_SINGLE_MAX: usize = 256;

/// A gang that may have the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GangCandidate<'a> {
    pub(super) unit: UnitId,
    pub(super) pool: Pool,
    pub(super) sub_cluster: Option<&'a str>,
    pub(super) priority: i32,
    /// It gathers already.
    pub(super) gathers: bool,
    /// Somebody was bound whose turn comes after its own.
    pub(super) is_passed: bool,
    /// Its queue would come first even with this unit.
    pub(super) is_due: bool,
    /// It gathers room for several running units at once, and not for one.
    pub(super) is_gang: bool,
    /// The queue that pays for it.
    pub(super) queue: QueueIdx,
    /// Its place among the queues of all candidates.
    pub(super) place: usize,
}

/// Turns of one pool that are in force, and next ones that are somebody's.
#[derive(Default)]
pub(super) struct Busy<'a> {
    /// Where gangs gather: nobody else does there.
    gangs: TakenSubClusters<'a>,
    /// Where others gather room for one running unit each, side by side.
    single: TakenSubClusters<'a>,
    /// The number of these.
    n_single: usize,
    /// The queues that pay for these.
    pub(super) queues: BTreeSet<QueueIdx>,
    /// A turn is offered to one that gathers for one running unit, and nobody has answered.
    is_offered: bool,
}

impl<'a> Busy<'a> {
    /// Whether a candidate has to wait for others.
    pub(super) fn has_to_wait(&self, one: &GangCandidate<'_>) -> bool {
        let is_single_full = || self.is_offered || self.n_single >= N_SINGLE_MAX;
        self.gangs.meets(one.sub_cluster)
            || if one.is_gang { self.single.meets(one.sub_cluster) } else { is_single_full() }
    }

    /// The next turn where a candidate gathers is its own.
    pub(super) fn take_next(&mut self, one: &GangCandidate<'a>) {
        if one.is_gang {
            self.gangs.add(one.sub_cluster);
        } else {
            self.single.add(one.sub_cluster);
        }
    }

    /// The turn of a candidate is in force, or offered.
    pub(super) fn begin_turn(&mut self, one: &GangCandidate<'a>) {
        self.take_next(one);
        if !one.is_gang {
            self.n_single += 1;
            self.queues.insert(one.queue);
            self.is_offered |= !one.gathers;
        }
    }
}

/// Sub-clusters of one pool.
#[derive(Default)]
struct TakenSubClusters<'a> {
    names: BTreeSet<&'a str>,
    /// A gang of none is among them.
    everywhere: bool,
}

impl<'a> TakenSubClusters<'a> {
    /// As [`godel_domain::sub_cluster::overlap`], with all of them.
    fn meets(&self, sub_cluster: Option<&str>) -> bool {
        self.everywhere || sub_cluster.map_or(!self.names.is_empty(), |name| self.names.contains(name))
    }

    fn add(&mut self, sub_cluster: Option<&'a str>) {
        match sub_cluster {
            Some(name) => {
                self.names.insert(name);
            }
            None => self.everywhere = true,
        }
    }
}

/// Candidates with their places in the order of queues: those of one queue and band have the same.
pub(super) fn in_order<'a>(
    mut waiting: Vec<(Waiting, GangCandidate<'a>)>,
    queues: &Queues,
) -> Vec<GangCandidate<'a>> {
    waiting.sort_by(|(a, _), (b, _)| queues.order_of_queues(a, b));
    let mut place = 0;
    let mut last: Option<Waiting> = None;
    let mut candidates = Vec::with_capacity(waiting.len());
    for (own, candidate) in waiting {
        place += usize::from(last.is_some_and(|last| queues.order_of_queues(&last, &own).is_ne()));
        last = Some(own);
        candidates.push(GangCandidate { place, ..candidate });
    }
    candidates
}
