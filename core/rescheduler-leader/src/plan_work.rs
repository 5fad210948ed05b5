//! One plan to be made, of copies, so that following goes on meanwhile.

use std::{sync::Arc, time::Duration};

use godel_base::ids::{Revision, UnitId};
use godel_core_rescheduler::{MoveLog, OrderedPlan, PlanTerms, RescheduleConfig, plan_policy, plan_room};

use crate::{
    ClusterPicture, SnapshotConfig, Traffic,
    snapshot::{PlanInput, take, waiting_gang, wall},
};

/// What is planned.
#[derive(Clone, Debug)]
pub(crate) enum PlanTarget {
    Policy(String),
    Room(UnitId),
}

/// See the module. Making it takes long: whoever has it made lets the leader go on meanwhile.
#[derive(Clone, Debug)]
pub struct PlanWork {
    pub(crate) target: PlanTarget,
    pub(crate) picture: ClusterPicture,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) snapshot: SnapshotConfig,
    pub(crate) moves_max: usize,
    pub(crate) rescheduling: RescheduleConfig,
    pub(crate) log: MoveLog,
    pub(crate) seed: u64,
    pub(crate) bound_within: Option<Duration>,
    pub(crate) now_ms: i64,
}

/// A plan is made, or not.
#[derive(Debug)]
pub struct PlanDone {
    /// The plan, or why there is none, in words.
    pub plan: Result<OrderedPlan, String>,
    /// What it rests on.
    pub revision: Revision,
    /// When its snapshot was taken, Unix milliseconds.
    pub taken_ms: i64,
    /// How long it took, milliseconds.
    pub planning_ms: u64,
}

impl PlanWork {
    /// Returns what comes back to the leader, with the plan yet to be made.
    pub fn unmade(&self) -> PlanDone {
        let plan = Err("the plan was not made".to_owned());
        let revision = self.picture.read().unwrap_or_default();
        PlanDone { plan, revision, taken_ms: self.now_ms, planning_ms: 0 }
    }

    /// Makes the plan.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub fn make(&mut self) -> Result<OrderedPlan, String> {
        let ClusterPicture { units, cluster, refused, .. } = &mut self.picture;
        let generation = |node| cluster.free().generations().of(node);
        Arc::make_mut(refused).forget_changed(|unit| units.get(&unit), generation, wall(self.now_ms));
        let mut input = take(&self.picture, &self.traffic, &self.snapshot, self.now_ms);
        let gang = match &self.target {
            PlanTarget::Policy(_) => None,
            PlanTarget::Room(unit) => {
                let record = self.picture.units.get(unit).ok_or("the unit is gone")?;
                if !self.picture.waits(*unit) {
                    return Err("the unit does not wait for a place".to_owned());
                }
                Some((waiting_gang(&mut input, record, &self.picture)?, record))
            }
        };
        let PlanInput { snapshot, filters } = &input;
        let terms = PlanTerms {
            log: &self.log,
            fixed: &[],
            n_moves_max: self.moves_max,
            seed: self.seed,
            bound_within: self.bound_within,
        };
        let plan = match (&self.target, &gang) {
            (PlanTarget::Policy(name), _) => plan_policy(&self.rescheduling, name, snapshot, filters, terms),
            (PlanTarget::Room(_), Some((ask, _))) => {
                plan_room(&self.rescheduling, &ask.gang, snapshot, filters, terms)
            }
            (PlanTarget::Room(_), None) => return Err("the unit is gone".to_owned()),
        };
        let plan = plan.map_err(|fault| fault.to_string())?;
        Ok(match &gang {
            Some((ask, record)) => ask.check(&mut input, record, &self.picture, plan),
            None => plan,
        })
    }
}
