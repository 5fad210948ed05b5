//! Calls of the services that have a leader: whoever holds the lease is asked.

use godel_kit::client::{Channel, FailedCall};
use godel_kit::message::RECEIVED_BYTES_MAX;
use godel_proto::v1::{
    budget_service_client::BudgetServiceClient, dispatch_service_client::DispatchServiceClient,
    queue_service_client::QueueServiceClient, reschedule_service_client::RescheduleServiceClient,
    reservation_service_client::ReservationServiceClient, unit_service_client::UnitServiceClient,
    yarn_service_client::YarnServiceClient,
};
use tonic::Status;

use super::{Client, YARN};
use crate::exit::Failure;

/// Lease of the rescheduler.
const RESCHEDULER: &str = "rescheduler";

impl Client {
    /// A call of the unit service, at whoever leads.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn units<T, F, Fut>(&self, mut op: F) -> Result<T, Failure>
    where
        F: FnMut(UnitServiceClient<Channel>) -> Fut,
        Fut: Future<Output = Result<T, Status>>,
    {
        self.leader("dispatcher", |channel| {
            op(UnitServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX))
        })
        .await
    }

    /// One call of the unit service, at whoever leads now: streams, which their callers open again.
    ///
    /// # Errors
    /// Who failed, and how.
    pub async fn leading_units<T>(
        &self,
        op: impl AsyncFnOnce(UnitServiceClient<Channel>) -> Result<T, Status>,
    ) -> Result<T, FailedCall> {
        let call = async |channel| {
            op(UnitServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX)).await
        };
        self.directory.call_once("dispatcher", call).await
    }

    /// A call of the dispatch service, at whoever leads.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn dispatch<T, F, Fut>(&self, mut op: F) -> Result<T, Failure>
    where
        F: FnMut(DispatchServiceClient<Channel>) -> Fut,
        Fut: Future<Output = Result<T, Status>>,
    {
        self.leader("dispatcher", |channel| {
            op(DispatchServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX))
        })
        .await
    }

    /// A call of the queue service, at whoever leads.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn queues<T, F, Fut>(&self, op: F) -> Result<T, Failure>
    where
        F: FnMut(QueueServiceClient<Channel>) -> Fut,
        Fut: Future<Output = Result<T, Status>>,
    {
        self.try_queues(op).await.map_err(|failed| self.explain_leader("dispatcher", failed))
    }

    /// The same, for callers who look at the answer's details.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn try_queues<T, F, Fut>(&self, mut op: F) -> Result<T, FailedCall>
    where
        F: FnMut(QueueServiceClient<Channel>) -> Fut,
        Fut: Future<Output = Result<T, Status>>,
    {
        self.directory
            .call_leader_named("dispatcher", |channel| {
                op(QueueServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX))
            })
            .await
    }

    /// A call of the budget service, at whoever leads.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn budgets<T, F, Fut>(&self, mut op: F) -> Result<T, Failure>
    where
        F: FnMut(BudgetServiceClient<Channel>) -> Fut,
        Fut: Future<Output = Result<T, Status>>,
    {
        self.leader("dispatcher", |channel| {
            op(BudgetServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX))
        })
        .await
    }

    /// A call of the reservation service, at whoever leads.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn reservations<T, F, Fut>(&self, mut op: F) -> Result<T, Failure>
    where
        F: FnMut(ReservationServiceClient<Channel>) -> Fut,
        Fut: Future<Output = Result<T, Status>>,
    {
        self.leader("dispatcher", |channel| {
            op(ReservationServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX))
        })
        .await
    }

    /// A call of the YARN adapter, at whoever leads.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn yarn<T, F, Fut>(&self, mut op: F) -> Result<T, Failure>
    where
        F: FnMut(YarnServiceClient<Channel>) -> Fut,
        Fut: Future<Output = Result<T, Status>>,
    {
        self.leader(YARN, |channel| {
            op(YarnServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX))
        })
        .await
    }

    /// A call of the rescheduler, at whoever leads.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn reschedule<T, F, Fut>(&self, mut op: F) -> Result<T, Failure>
    where
        F: FnMut(RescheduleServiceClient<Channel>) -> Fut,
        Fut: Future<Output = Result<T, Status>>,
    {
        self.leader(RESCHEDULER, |channel| {
            op(RescheduleServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX))
        })
        .await
    }

    /// One call of the rescheduler, at whoever leads now: what would be another one if it were made twice.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn reschedule_once<T>(
        &self,
        op: impl AsyncFnOnce(RescheduleServiceClient<Channel>) -> Result<T, Status>,
    ) -> Result<T, Failure> {
        let call = async |channel| {
            op(RescheduleServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX)).await
        };
        let called = self.directory.call_once(RESCHEDULER, call).await;
        called.map_err(|failed| self.explain_leader(RESCHEDULER, failed))
    }

    /// A call of whoever holds a lease.
    pub(super) async fn leader<T, F, Fut>(&self, lease: &str, op: F) -> Result<T, Failure>
    where
        F: FnMut(Channel) -> Fut,
        Fut: Future<Output = Result<T, Status>>,
    {
        let called = self.directory.call_leader_named(lease, op).await;
        called.map_err(|failed| self.explain_leader(lease, failed))
    }
}
