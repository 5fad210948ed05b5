//! Victim rule `no-loop`: two units do not evict each other in turn, and no unit evicts what it has to be near to: it could not be placed
//! then, and what it has evicted would come back for it to evict again.

use godel_base::ids::UnitId;
use godel_cluster::Cluster;
use godel_domain::running_units::RunningUnits;

use crate::point::{Plugin, Spared, VictimInput, VictimRule};

/// Units of a round of evictions that are looked at.
const N_ROUND_MAX: usize = 64;

/// The plugin.
#[derive(Debug)]
pub struct NoLoop;

impl Plugin for NoLoop {
    const NAME: &'static str = "no-loop";
    const DOC: &'static str = "The unit of the running unit has not preempted the preemptor before. A longer round, in which each unit \
                               preempts the next one, is made once. The preemptor does not have to be near to the running unit.";
}

impl VictimRule for NoLoop {
    #[inline]
    fn check(of: &VictimInput<'_>) -> Result<(), Spared> {
        if of.cluster.domains().is_active() && of.cluster.domains().has_to_be_near(of.seeker.unit, of.unit) {
            return Err(Spared::Refused("is what the preemptor has to be near to"));
        }
        match is_loop(of.cluster, of.seeker.unit, of.preemptors, of.unit, of.rows) {
            true => Err(Spared::Loop),
            false => Ok(()),
        }
    }
}

/// Whether a seeker, preempted for the units of `own` before, and a unit evict each other in turn: that preempted the
/// seeker's before; or the seeker's preempted it before, and was evicted for it since by way of others. Ranks may go
/// round, as queues come to borrow and borrow no more, so no potential falls with each eviction: each such round is
/// made once.
pub fn is_loop(cluster: &Cluster, seeker: UnitId, own: &[UnitId], unit: UnitId, rows: &RunningUnits) -> bool {
    if own.contains(&unit) {
        return true;
    }
    if !rows.preemptors().contains(&seeker) {
        return false;
    }
    let mut round: Vec<UnitId> = own.to_vec();
    let mut at = 0;
    while let Some(one) = round.get(at).filter(|_| at < N_ROUND_MAX) {
        let preemptors = cluster.rows().of(*one).map_or(&[][..], RunningUnits::preemptors);
        if preemptors.contains(&unit) {
            return true;
        }
        at += 1;
        for other in preemptors {
            if !round.contains(other) {
                round.push(*other);
            }
        }
    }
    false
}
