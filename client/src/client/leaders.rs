//! Calls of the services that have a leader: whoever holds the lease is asked. A call may be made several times.

use godel_kit::client::{Channel, Directory, FailedCall};
use godel_kit::message::RECEIVED_BYTES_MAX;
use godel_proto::v1::{
    budget_service_client::BudgetServiceClient, dispatch_service_client::DispatchServiceClient,
    queue_service_client::QueueServiceClient, reschedule_service_client::RescheduleServiceClient,
    reservation_service_client::ReservationServiceClient, unit_service_client::UnitServiceClient,
    yarn_service_client::YarnServiceClient,
};
use tonic::{Response, Status};

use super::{Client, YARN};
use crate::exit::Failure;

/// What a call is answered.
type LeaderAnswer<T> = Result<Response<T>, Status>;

/// Lease of the dispatcher.
const DISPATCHER: &str = "dispatcher";
/// Lease of the rescheduler.
const RESCHEDULER: &str = "rescheduler";

impl Client {
    /// A call of the unit service, at whoever leads.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn units<T, F: Future<Output = LeaderAnswer<T>>>(
        &self,
        op: impl Fn(UnitServiceClient<Channel>) -> F,
    ) -> Result<T, Failure> {
        let connect = |channel| UnitServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX);
        self.leader(DISPATCHER, connect, op).await
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
        self.directory.call_once(DISPATCHER, call).await
    }

    /// A call of the dispatch service, at whoever leads.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn dispatch<T, F: Future<Output = LeaderAnswer<T>>>(
        &self,
        op: impl Fn(DispatchServiceClient<Channel>) -> F,
    ) -> Result<T, Failure> {
        let connect =
            |channel| DispatchServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX);
        self.leader(DISPATCHER, connect, op).await
    }

    /// A call of the queue service, at whoever leads.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn queues<T, F: Future<Output = LeaderAnswer<T>>>(
        &self,
        op: impl Fn(QueueServiceClient<Channel>) -> F,
    ) -> Result<T, Failure> {
        self.try_queues(op).await.map_err(|failed| self.explain_leader(DISPATCHER, failed))
    }

    /// The same, for callers who look at the answer's details.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn try_queues<T, F: Future<Output = LeaderAnswer<T>>>(
        &self,
        op: impl Fn(QueueServiceClient<Channel>) -> F,
    ) -> Result<T, FailedCall> {
        let connect =
            |channel| QueueServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX);
        ask(&self.directory, DISPATCHER, connect, op).await
    }

    /// A call of the budget service, at whoever leads.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn budgets<T, F: Future<Output = LeaderAnswer<T>>>(
        &self,
        op: impl Fn(BudgetServiceClient<Channel>) -> F,
    ) -> Result<T, Failure> {
        let connect =
            |channel| BudgetServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX);
        self.leader(DISPATCHER, connect, op).await
    }

    /// A call of the reservation service, at whoever leads.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn reservations<T, F: Future<Output = LeaderAnswer<T>>>(
        &self,
        op: impl Fn(ReservationServiceClient<Channel>) -> F,
    ) -> Result<T, Failure> {
        let connect =
            |channel| ReservationServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX);
        self.leader(DISPATCHER, connect, op).await
    }

    /// A call of the YARN adapter, at whoever leads.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn yarn<T, F: Future<Output = LeaderAnswer<T>>>(
        &self,
        op: impl Fn(YarnServiceClient<Channel>) -> F,
    ) -> Result<T, Failure> {
        let connect = |channel| YarnServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX);
        self.leader(YARN, connect, op).await
    }

    /// A call of the rescheduler, at whoever leads.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn reschedule<T, F: Future<Output = LeaderAnswer<T>>>(
        &self,
        op: impl Fn(RescheduleServiceClient<Channel>) -> F,
    ) -> Result<T, Failure> {
        let connect =
            |channel| RescheduleServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX);
        self.leader(RESCHEDULER, connect, op).await
    }

    /// One call of the rescheduler, at whoever leads now: what would be another one if it were made twice.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn reschedule_once<T>(
        &self,
        op: impl AsyncFnOnce(RescheduleServiceClient<Channel>) -> LeaderAnswer<T>,
    ) -> Result<T, Failure> {
        let call = async |channel| {
            op(RescheduleServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX)).await
        };
        let called = self.directory.call_once(RESCHEDULER, call).await;
        called.map(Response::into_inner).map_err(|failed| self.explain_leader(RESCHEDULER, failed))
    }

    /// A call of whoever holds a lease.
    pub(super) async fn leader<S, T, F: Future<Output = LeaderAnswer<T>>>(
        &self,
        lease: &str,
        connect: impl Fn(Channel) -> S,
        op: impl Fn(S) -> F,
    ) -> Result<T, Failure> {
        let called = ask(&self.directory, lease, connect, op).await;
        called.map_err(|failed| self.explain_leader(lease, failed))
    }
}

/// Calls whoever holds a lease.
async fn ask<S, T, F: Future<Output = LeaderAnswer<T>>>(
    directory: &Directory,
    lease: &str,
    connect: impl Fn(Channel) -> S,
    op: impl Fn(S) -> F,
) -> Result<T, FailedCall> {
    let called = directory.call_leader_named(lease, |channel| op(connect(channel))).await;
    called.map(Response::into_inner)
}
