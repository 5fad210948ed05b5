//! ReservationService.

use std::sync::Arc;

use godel_base::ids::Revision;
use godel_core_dispatcher::{leader::Edited, record_changes::Edit};
use godel_domain::{record_change::RecordChange, reservation_spec::ReservationSpec};
use godel_kit::{
    security::{PersonCall, person_call},
    status,
};
use godel_proto::v1::{self, reservation_service_server::ReservationService};
use godel_rules::reservation::check::ReservationChange;
use godel_wire::{BadField, from_proto, hidden::HideNames as _};
use tonic::{Request, Response, Status};

use super::records::{of_one, required};
use crate::{leader_client::Front, pages};

pub(crate) struct ReservationRpc {
    front: Front,
}

impl ReservationRpc {
    pub(crate) fn new(front: Front) -> Self {
        Self { front }
    }

    async fn edit(
        &self,
        call: &PersonCall,
        change: ReservationChange,
        expected_revision: u64,
        unread: Vec<BadField>,
    ) -> Result<Edited, Status> {
        let expected_revision = Revision(expected_revision);
        let edit = Edit { reservations: vec![change], expected_revision, ..Edit::default() };
        self.front.edit(call, edit, unread, false).await
    }

    async fn put(
        &self,
        call: &PersonCall,
        reservation: Option<v1::Reservation>,
        expected_revision: u64,
        change: impl FnOnce(Arc<ReservationSpec>) -> ReservationChange,
    ) -> Result<Edited, Status> {
        let reservation =
            reservation.ok_or_else(|| status::invalid_argument([BadField::new("reservation", "missing")]))?;
        let (spec, unread) = from_proto::given_reservation(reservation);
        self.edit(call, change(Arc::new(spec)), expected_revision, unread).await
    }
}

#[tonic::async_trait]
impl ReservationService for ReservationRpc {
    async fn create_reservation(
        &self,
        request: Request<v1::CreateReservationRequest>,
    ) -> Result<Response<v1::CreateReservationResponse>, Status> {
        let call = person_call(&request);
        let v1::CreateReservationRequest { reservation } = request.into_inner();
        let (revision, duplicate) = of_one(&self.put(&call, reservation, 0, RecordChange::Create).await?);
        Ok(Response::new(v1::CreateReservationResponse { revision, duplicate }))
    }

    async fn get_reservation(
        &self,
        request: Request<v1::GetReservationRequest>,
    ) -> Result<Response<v1::GetReservationResponse>, Status> {
        let sight = person_call(&request).sight();
        let name = request.into_inner().name;
        let reservation =
            Some(self.front.named("reservation", name, pages::show_reservation).await?.within_sight(&sight));
        Ok(Response::new(v1::GetReservationResponse { reservation }))
    }

    async fn list_reservations(
        &self,
        request: Request<v1::ListReservationsRequest>,
    ) -> Result<Response<v1::ListReservationsResponse>, Status> {
        let sight = person_call(&request).sight();
        let v1::ListReservationsRequest { page_size, page_token } = request.into_inner();
        let list = pages::list_reservations;
        let (reservations, token) = self.front.page(page_size, &page_token, list).await?;
        Ok(Response::new(v1::ListReservationsResponse {
            reservations: reservations.within_sight(&sight),
            next_page_token: token.text(),
            revision: token.revision,
            total: token.total,
        }))
    }

    async fn update_reservation(
        &self,
        request: Request<v1::UpdateReservationRequest>,
    ) -> Result<Response<v1::UpdateReservationResponse>, Status> {
        let call = person_call(&request);
        let v1::UpdateReservationRequest { reservation, expected_revision } = request.into_inner();
        let (revision, _) =
            of_one(&self.put(&call, reservation, expected_revision, RecordChange::Update).await?);
        Ok(Response::new(v1::UpdateReservationResponse { revision }))
    }

    async fn delete_reservation(
        &self,
        request: Request<v1::DeleteReservationRequest>,
    ) -> Result<Response<v1::DeleteReservationResponse>, Status> {
        let call = person_call(&request);
        let v1::DeleteReservationRequest { name, expected_revision } = request.into_inner();
        let change = RecordChange::Delete(required(name)?);
        let (revision, _) = of_one(&self.edit(&call, change, expected_revision, Vec::new()).await?);
        Ok(Response::new(v1::DeleteReservationResponse { revision }))
    }
}
