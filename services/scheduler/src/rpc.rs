//! SchedulerService: a scheduler's own view.

use std::sync::Arc;

use godel_base::ids::{Epoch, Revision};
use godel_core_scheduler::Stats;
use godel_domain::unit::UnitSpec;
use godel_kit::{
    message::MESSAGE_BYTES_MAX,
    security::{ListedNames, permit_update, person_call},
    status,
};
use godel_proto::v1::{self, scheduler_service_server::SchedulerService};
use godel_wire::BadField;
use prost::Message as _;
use tokio::sync::{mpsc, oneshot, watch};
use tonic::{Request, Response, Status};

use crate::convert;

/// What the engine shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) stats: Stats,
    /// 0 while not registered.
    pub(crate) epoch: Epoch,
    /// Read up to here.
    pub(crate) revision: Revision,
}

/// A unit to plan.
#[derive(Debug)]
pub(crate) struct PlanRequest {
    pub(crate) spec: Box<UnitSpec>,
    /// Names of whoever plans, as queues list them.
    pub(crate) names: Arc<[String]>,
    pub(crate) reply: oneshot::Sender<Result<v1::PlanResponse, Status>>,
}

/// The service; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct SchedulerRpc {
    pub(crate) name: String,
    pub(crate) shown: watch::Receiver<Shown>,
    pub(crate) plans: mpsc::Sender<PlanRequest>,
}

#[tonic::async_trait]
impl SchedulerService for SchedulerRpc {
    async fn get_scheduler_status(
        &self,
        _request: Request<v1::GetSchedulerStatusRequest>,
    ) -> Result<Response<v1::GetSchedulerStatusResponse>, Status> {
        let Shown { stats, epoch, revision } = *self.shown.borrow();
        Ok(Response::new(v1::GetSchedulerStatusResponse {
            name: self.name.clone(),
            epoch: epoch.0,
            nodes: stats.nodes,
            ready_units: stats.ready_units,
            backoff_units: stats.backoff_units,
            parked_units: stats.parked_units,
            in_flight: stats.in_flight,
            placed: stats.placed,
            conflicts: stats.conflicts,
            cache_hits: stats.cache_hits,
            cache_misses: stats.cache_misses,
            revision: revision.0,
        }))
    }

    async fn plan(&self, request: Request<v1::PlanRequest>) -> Result<Response<v1::PlanResponse>, Status> {
        let (call, names) = (person_call(&request), ListedNames::of(&request, None));
        let mut unit = request.into_inner().unit;
        if let Some(unit) = &mut unit {
            permit_update(&call, unit)?;
        }
        let spec = convert::planned_unit(unit).map_err(status::invalid_argument)?;
        let (reply, answer) = oneshot::channel();
        self.plans
            .send(PlanRequest { names: names.beside(&spec.owner), spec: Box::new(spec), reply })
            .await
            .map_err(|_| status::stopping())?;
        let answer = answer.await.map_err(|_| status::stopping())??;
        if answer.encoded_len() > MESSAGE_BYTES_MAX {
            let problem = "the names of the nodes do not fit into one message; plan fewer replicas";
            return Err(BadField::new("unit.task_groups", problem).into());
        }
        Ok(Response::new(answer))
    }
}
