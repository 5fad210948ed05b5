//! QueueService.

use std::sync::Arc;

use godel_base::ids::Revision;
use godel_core_dispatcher::{
    leader::Edited,
    record_changes::{Edit, EditOutcome},
};
use godel_domain::{
    queue_spec::{PriorityClass, QueueSpec},
    record_change::RecordChange,
};
use godel_kit::{
    security::{PersonCall, person_call},
    status,
};
use godel_proto::v1::{self, queue_service_server::QueueService};
use godel_queueing::check::QueueChange;
use godel_wire::{BadField, from_proto};
use tonic::{Request, Response, Status};

use super::records::{of_one, required};
use crate::{convert, leader_client::Front, pages};

/// Records in one `ApplyQueues`.
const APPLIED_MAX: usize = 1_000;

pub(crate) struct QueueRpc {
    front: Front,
}

impl QueueRpc {
    pub(crate) fn new(front: Front) -> Self {
        Self { front }
    }

    async fn edit_queue(
        &self,
        call: &PersonCall,
        queue: Option<v1::Queue>,
        expected_revision: u64,
        change: impl FnOnce(Arc<QueueSpec>) -> QueueChange,
    ) -> Result<Edited, Status> {
        let queue = queue.ok_or_else(|| status::invalid_argument([BadField::new("queue", "missing")]))?;
        let (spec, unread) = given_queue(queue);
        let expected_revision = Revision(expected_revision);
        let edit = Edit { queues: vec![change(spec)], expected_revision, ..Edit::default() };
        self.front.edit(call, edit, unread, false).await
    }

    async fn edit_class(
        &self,
        call: &PersonCall,
        class: Option<v1::PriorityClass>,
        expected_revision: u64,
        change: impl FnOnce(PriorityClass) -> RecordChange<PriorityClass>,
    ) -> Result<Edited, Status> {
        let class =
            class.ok_or_else(|| status::invalid_argument([BadField::new("priority_class", "missing")]))?;
        let classes = vec![change(from_proto::given_priority_class(class))];
        let expected_revision = Revision(expected_revision);
        self.front.edit(call, Edit { classes, expected_revision, ..Edit::default() }, Vec::new(), false).await
    }
}

/// A queue as given, and what of it cannot be read.
fn given_queue(queue: v1::Queue) -> (Arc<QueueSpec>, Vec<BadField>) {
    let (mut spec, unread) = from_proto::given_queue(queue);
    spec.uid.make_ascii_lowercase();
    (Arc::new(spec), unread)
}

#[tonic::async_trait]
impl QueueService for QueueRpc {
    async fn create_queue(
        &self,
        request: Request<v1::CreateQueueRequest>,
    ) -> Result<Response<v1::CreateQueueResponse>, Status> {
        let call = person_call(&request);
        let v1::CreateQueueRequest { queue } = request.into_inner();
        let edited = self.edit_queue(&call, queue, 0, RecordChange::Create).await?;
        let (revision, duplicate) = of_one(&edited);
        Ok(Response::new(v1::CreateQueueResponse { uid: edited.uid, revision, duplicate }))
    }

    async fn get_queue(
        &self,
        request: Request<v1::GetQueueRequest>,
    ) -> Result<Response<v1::GetQueueResponse>, Status> {
        let name = request.into_inner().name;
        let queue = Some(self.front.named("queue", name, pages::show_queue).await?);
        Ok(Response::new(v1::GetQueueResponse { queue }))
    }

    async fn list_queues(
        &self,
        request: Request<v1::ListQueuesRequest>,
    ) -> Result<Response<v1::ListQueuesResponse>, Status> {
        let v1::ListQueuesRequest { page_size, page_token } = request.into_inner();
        let list = pages::list_queues;
        let (queues, token) = self.front.page(page_size, &page_token, list).await?;
        Ok(Response::new(v1::ListQueuesResponse {
            queues,
            next_page_token: token.text(),
            revision: token.revision,
            total: token.total,
        }))
    }

    async fn update_queue(
        &self,
        request: Request<v1::UpdateQueueRequest>,
    ) -> Result<Response<v1::UpdateQueueResponse>, Status> {
        let call = person_call(&request);
        let v1::UpdateQueueRequest { queue, expected_revision } = request.into_inner();
        let edited = self.edit_queue(&call, queue, expected_revision, RecordChange::Update).await?;
        Ok(Response::new(v1::UpdateQueueResponse { revision: of_one(&edited).0 }))
    }

    async fn delete_queue(
        &self,
        request: Request<v1::DeleteQueueRequest>,
    ) -> Result<Response<v1::DeleteQueueResponse>, Status> {
        let call = person_call(&request);
        let v1::DeleteQueueRequest { name, expected_revision } = request.into_inner();
        let queues = vec![RecordChange::Delete(required(name)?)];
        let expected_revision = Revision(expected_revision);
        let edit = Edit { queues, expected_revision, ..Edit::default() };
        let edited = self.front.edit(&call, edit, Vec::new(), false).await?;
        Ok(Response::new(v1::DeleteQueueResponse { revision: of_one(&edited).0 }))
    }

    async fn apply_queues(
        &self,
        request: Request<v1::ApplyQueuesRequest>,
    ) -> Result<Response<v1::ApplyQueuesResponse>, Status> {
        let call = person_call(&request);
        let v1::ApplyQueuesRequest { queues, priority_classes } = request.into_inner();
        let n = queues.len() + priority_classes.len();
        if !(1..=APPLIED_MAX).contains(&n) {
            let description = format!("{n} queues and priority classes; 1 to {APPLIED_MAX} are accepted");
            return Err(status::invalid_argument([BadField::new("queues", description)]));
        }
        let (mut edit, mut unread) = (Edit::default(), Vec::new());
        for (idx, queue) in queues.into_iter().enumerate() {
            let (spec, bad) = given_queue(queue);
            unread.extend(bad.into_iter().map(|bad| bad.under(&format!("queues[{idx}]"))));
            edit.queues.push(RecordChange::Put(spec));
        }
        let classes = priority_classes.into_iter().map(from_proto::given_priority_class);
        edit.classes = classes.map(RecordChange::Put).collect();
        let Edited { revision, queues, classes, .. } = self.front.edit(&call, edit, unread, true).await?;
        let outcomes = |outcomes: Vec<EditOutcome>| {
            outcomes.into_iter().map(|outcome| convert::queue::outcome(outcome).into()).collect()
        };
        Ok(Response::new(v1::ApplyQueuesResponse {
            revision: revision.0,
            queues: outcomes(queues),
            priority_classes: outcomes(classes),
        }))
    }

    async fn create_priority_class(
        &self,
        request: Request<v1::CreatePriorityClassRequest>,
    ) -> Result<Response<v1::CreatePriorityClassResponse>, Status> {
        let call = person_call(&request);
        let v1::CreatePriorityClassRequest { priority_class } = request.into_inner();
        let edited = self.edit_class(&call, priority_class, 0, RecordChange::Create).await?;
        let (revision, duplicate) = of_one(&edited);
        Ok(Response::new(v1::CreatePriorityClassResponse { revision, duplicate }))
    }

    async fn get_priority_class(
        &self,
        request: Request<v1::GetPriorityClassRequest>,
    ) -> Result<Response<v1::GetPriorityClassResponse>, Status> {
        let name = request.into_inner().name;
        let priority_class = Some(self.front.named("priority class", name, pages::show_class).await?);
        Ok(Response::new(v1::GetPriorityClassResponse { priority_class }))
    }

    async fn list_priority_classes(
        &self,
        request: Request<v1::ListPriorityClassesRequest>,
    ) -> Result<Response<v1::ListPriorityClassesResponse>, Status> {
        let v1::ListPriorityClassesRequest { page_size, page_token } = request.into_inner();
        let list = pages::list_classes;
        let (priority_classes, token) = self.front.page(page_size, &page_token, list).await?;
        Ok(Response::new(v1::ListPriorityClassesResponse {
            priority_classes,
            next_page_token: token.text(),
            revision: token.revision,
            total: token.total,
        }))
    }

    async fn update_priority_class(
        &self,
        request: Request<v1::UpdatePriorityClassRequest>,
    ) -> Result<Response<v1::UpdatePriorityClassResponse>, Status> {
        let call = person_call(&request);
        let v1::UpdatePriorityClassRequest { priority_class, expected_revision } = request.into_inner();
        let edited = self.edit_class(&call, priority_class, expected_revision, RecordChange::Update).await?;
        Ok(Response::new(v1::UpdatePriorityClassResponse { revision: of_one(&edited).0 }))
    }

    async fn delete_priority_class(
        &self,
        request: Request<v1::DeletePriorityClassRequest>,
    ) -> Result<Response<v1::DeletePriorityClassResponse>, Status> {
        let call = person_call(&request);
        let v1::DeletePriorityClassRequest { name, expected_revision } = request.into_inner();
        let classes = vec![RecordChange::Delete(required(name)?)];
        let expected_revision = Revision(expected_revision);
        let edited = self
            .front
            .edit(&call, Edit { classes, expected_revision, ..Edit::default() }, Vec::new(), false)
            .await?;
        Ok(Response::new(v1::DeletePriorityClassResponse { revision: of_one(&edited).0 }))
    }
}
