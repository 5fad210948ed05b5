//! RescheduleService: calls become questions to the engine, which answers between two of its steps.

use godel_kit::{message::RECEIVED_BYTES_MAX, security::person_call, status};
use godel_proto::v1::{
    self,
    reschedule_service_server::{RescheduleService, RescheduleServiceServer},
};
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Response, Status};

use crate::engine::{Call, Engine, fitting};

/// The service over an engine; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct ReschedulerRpc {
    calls: mpsc::Sender<Call>,
}

/// The service for the server of the process.
pub(crate) fn service(calls: mpsc::Sender<Call>) -> RescheduleServiceServer<ReschedulerRpc> {
    RescheduleServiceServer::new(ReschedulerRpc { calls }).max_decoding_message_size(RECEIVED_BYTES_MAX)
}

impl ReschedulerRpc {
    /// Has the engine answer, now or later.
    async fn ask<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Engine, oneshot::Sender<Result<T, Status>>) + Send + 'static,
    ) -> Result<T, Status> {
        let (reply, answer) = oneshot::channel();
        let call: Call = Box::new(move |engine| what(engine, reply));
        self.calls.send(call).await.map_err(|_| status::stopping())?;
        answer.await.map_err(|_| status::stopping())?
    }

    /// Has the engine answer at once.
    async fn read<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Engine) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        // Nobody may be left to hear it.
        let answer = self.ask(move |engine, reply| drop(reply.send(what(engine)))).await?;
        Ok(Response::new(answer))
    }
}

#[tonic::async_trait]
impl RescheduleService for ReschedulerRpc {
    async fn list_policies(
        &self,
        request: Request<v1::ListPoliciesRequest>,
    ) -> Result<Response<v1::ListPoliciesResponse>, Status> {
        let sight = person_call(&request).sight();
        self.read(move |engine| engine.list_policies(&sight)).await
    }

    async fn plan_policy(
        &self,
        request: Request<v1::PlanPolicyRequest>,
    ) -> Result<Response<v1::PlanPolicyResponse>, Status> {
        let request = request.into_inner();
        Ok(Response::new(self.ask(move |engine, reply| engine.plan_policy(request, reply)).await?))
    }

    async fn run_policy(
        &self,
        request: Request<v1::RunPolicyRequest>,
    ) -> Result<Response<v1::RunPolicyResponse>, Status> {
        let cause = person_call(&request).cause("", [format!("policy/{}", request.get_ref().policy)]);
        let request = request.into_inner();
        Ok(Response::new(self.ask(move |engine, reply| engine.run_policy(request, cause, reply)).await?))
    }

    async fn make_room_for(
        &self,
        request: Request<v1::MakeRoomForRequest>,
    ) -> Result<Response<v1::MakeRoomForResponse>, Status> {
        let call = person_call(&request);
        let mut request = request.into_inner();
        request.namespace = call.default_namespace(request.namespace);
        let cause = call.cause_about_unit(&request.namespace, &request.unit);
        Ok(Response::new(self.ask(move |engine, reply| engine.make_room_for(request, cause, reply)).await?))
    }

    async fn get_reschedule_status(
        &self,
        _request: Request<v1::GetRescheduleStatusRequest>,
    ) -> Result<Response<v1::GetRescheduleStatusResponse>, Status> {
        self.read(Engine::reschedule_status).await
    }

    async fn list_movements(
        &self,
        request: Request<v1::ListMovementsRequest>,
    ) -> Result<Response<v1::ListMovementsResponse>, Status> {
        let sight = person_call(&request).sight();
        let request = request.into_inner();
        self.read(move |engine| engine.list_movements(&request, &sight)).await
    }

    async fn get_movement(
        &self,
        request: Request<v1::GetMovementRequest>,
    ) -> Result<Response<v1::GetMovementResponse>, Status> {
        let sight = person_call(&request).sight();
        let v1::GetMovementRequest { name } = request.into_inner();
        self.read(move |engine| engine.get_movement(&name, &sight)).await
    }

    async fn abort_movement(
        &self,
        request: Request<v1::AbortMovementRequest>,
    ) -> Result<Response<v1::AbortMovementResponse>, Status> {
        let cause = person_call(&request).cause("", [format!("movement/{}", request.get_ref().name)]);
        let request = request.into_inner();
        let movement = self.ask(move |engine, reply| engine.abort_movement(request, cause, reply)).await?;
        Ok(Response::new(v1::AbortMovementResponse { movement: Some(fitting(&movement)) }))
    }

    async fn report_traffic(
        &self,
        request: Request<v1::ReportTrafficRequest>,
    ) -> Result<Response<v1::ReportTrafficResponse>, Status> {
        let request = request.into_inner();
        self.read(move |engine| engine.report_traffic(request)).await
    }

    async fn report_checkpoint(
        &self,
        request: Request<v1::ReportCheckpointRequest>,
    ) -> Result<Response<v1::ReportCheckpointResponse>, Status> {
        let call = person_call(&request);
        let mut request = request.into_inner();
        request.namespace = call.namespace(request.namespace)?;
        self.read(move |engine| engine.report_checkpoint(request)).await
    }
}
