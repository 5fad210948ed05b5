//! QueueService.

use std::sync::Arc;

use godel_base::ids::Revision;
use godel_core_dispatcher::{
    leader::Edited,
    record_changes::{Edit, EditOutcome},
};
use godel_domain::{
    names,
    queue_spec::{PriorityClass, QueueSpec},
    record_change::RecordChange,
};
use godel_kit::status;
use godel_proto::v1::{self, queue_service_server::QueueService};
use godel_queueing::check::QueueChange;
use godel_wire::{BadField, from_proto};
use tonic::{Code, Request, Response, Status};

use crate::{
    convert,
    engine::Editor,
    leader_client::Front,
    requests::{EditCall, LeaderRequest, PageCall},
};

/// Records on a page unless asked otherwise, and at most.
const PAGE_DEFAULT: usize = 500;
const PAGE_MAX: usize = 1_000;
/// Records in one `ApplyQueues`.
const APPLIED_MAX: usize = 1_000;

pub(crate) struct Queues {
    front: Front,
}

impl Queues {
    pub(crate) fn new(front: Front) -> Self {
        Self { front }
    }

    async fn edit(&self, edit: Edit, unread: Vec<BadField>) -> Result<Edited, Status> {
        self.front
            .ask(|reply| {
                LeaderRequest::Edit(EditCall { edit, editor: Editor { unread, is_apply: false, reply } })
            })
            .await?
    }

    async fn edit_queue(
        &self,
        queue: Option<v1::Queue>,
        expected_revision: u64,
        change: impl FnOnce(Arc<QueueSpec>) -> QueueChange,
    ) -> Result<Edited, Status> {
        let queue = queue.ok_or_else(|| status::invalid_argument([BadField::new("queue", "missing")]))?;
        let (spec, unread) = given_queue(queue);
        let expected_revision = Revision(expected_revision);
        self.edit(Edit { queues: vec![change(spec)], expected_revision, ..Edit::default() }, unread).await
    }

    async fn edit_class(
        &self,
        class: Option<v1::PriorityClass>,
        expected_revision: u64,
        change: impl FnOnce(PriorityClass) -> RecordChange<PriorityClass>,
    ) -> Result<Edited, Status> {
        let class =
            class.ok_or_else(|| status::invalid_argument([BadField::new("priority_class", "missing")]))?;
        let classes = vec![change(from_proto::given_priority_class(class))];
        let expected_revision = Revision(expected_revision);
        self.edit(Edit { classes, expected_revision, ..Edit::default() }, Vec::new()).await
    }
}

/// A queue as given, and what of it cannot be read.
fn given_queue(queue: v1::Queue) -> (Arc<QueueSpec>, Vec<BadField>) {
    let (mut spec, unread) = from_proto::given_queue(queue);
    spec.uid.make_ascii_lowercase();
    (Arc::new(spec), unread)
}

#[tonic::async_trait]
impl QueueService for Queues {
    async fn create_queue(
        &self,
        request: Request<v1::CreateQueueRequest>,
    ) -> Result<Response<v1::CreateQueueResponse>, Status> {
        let v1::CreateQueueRequest { queue } = request.into_inner();
        let edited = self.edit_queue(queue, 0, RecordChange::Create).await?;
        let (revision, duplicate) = of_one(&edited);
        Ok(Response::new(v1::CreateQueueResponse { uid: edited.uid, revision, duplicate }))
    }

    async fn get_queue(
        &self,
        request: Request<v1::GetQueueRequest>,
    ) -> Result<Response<v1::GetQueueResponse>, Status> {
        let name = required(request.into_inner().name)?;
        let asked = name.clone();
        let queue = self.front.ask(|reply| LeaderRequest::GetQueue { name: asked, reply }).await?;
        let queue = queue.ok_or_else(|| unknown("queue", &name))?;
        Ok(Response::new(v1::GetQueueResponse { queue: Some(queue) }))
    }

    async fn list_queues(
        &self,
        request: Request<v1::ListQueuesRequest>,
    ) -> Result<Response<v1::ListQueuesResponse>, Status> {
        let v1::ListQueuesRequest { page_size, page_token } = request.into_inner();
        let (n_max, token) = page_of(page_size, &page_token)?;
        let after = token.after.clone();
        let page =
            self.front.ask(|reply| LeaderRequest::ListQueues(PageCall { after, n_max, reply })).await?;
        let token = token.next(page.next, page.total, page.revision);
        Ok(Response::new(v1::ListQueuesResponse {
            queues: page.items,
            next_page_token: token.text(),
            revision: token.revision,
            total: token.total,
        }))
    }

    async fn update_queue(
        &self,
        request: Request<v1::UpdateQueueRequest>,
    ) -> Result<Response<v1::UpdateQueueResponse>, Status> {
        let v1::UpdateQueueRequest { queue, expected_revision } = request.into_inner();
        let edited = self.edit_queue(queue, expected_revision, RecordChange::Update).await?;
        Ok(Response::new(v1::UpdateQueueResponse { revision: of_one(&edited).0 }))
    }

    async fn delete_queue(
        &self,
        request: Request<v1::DeleteQueueRequest>,
    ) -> Result<Response<v1::DeleteQueueResponse>, Status> {
        let v1::DeleteQueueRequest { name, expected_revision } = request.into_inner();
        let queues = vec![RecordChange::Delete(required(name)?)];
        let expected_revision = Revision(expected_revision);
        let edited = self.edit(Edit { queues, expected_revision, ..Edit::default() }, Vec::new()).await?;
        Ok(Response::new(v1::DeleteQueueResponse { revision: of_one(&edited).0 }))
    }

    async fn apply_queues(
        &self,
        request: Request<v1::ApplyQueuesRequest>,
    ) -> Result<Response<v1::ApplyQueuesResponse>, Status> {
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
        let call =
            |reply| LeaderRequest::Edit(EditCall { edit, editor: Editor { unread, is_apply: true, reply } });
        let Edited { revision, queues, classes, .. } = self.front.ask(call).await??;
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
        let v1::CreatePriorityClassRequest { priority_class } = request.into_inner();
        let edited = self.edit_class(priority_class, 0, RecordChange::Create).await?;
        let (revision, duplicate) = of_one(&edited);
        Ok(Response::new(v1::CreatePriorityClassResponse { revision, duplicate }))
    }

    async fn get_priority_class(
        &self,
        request: Request<v1::GetPriorityClassRequest>,
    ) -> Result<Response<v1::GetPriorityClassResponse>, Status> {
        let name = required(request.into_inner().name)?;
        let asked = name.clone();
        let class = self.front.ask(|reply| LeaderRequest::GetPriorityClass { name: asked, reply }).await?;
        let class = class.ok_or_else(|| unknown("priority class", &name))?;
        Ok(Response::new(v1::GetPriorityClassResponse { priority_class: Some(class) }))
    }

    async fn list_priority_classes(
        &self,
        request: Request<v1::ListPriorityClassesRequest>,
    ) -> Result<Response<v1::ListPriorityClassesResponse>, Status> {
        let v1::ListPriorityClassesRequest { page_size, page_token } = request.into_inner();
        let (n_max, token) = page_of(page_size, &page_token)?;
        let after = token.after.clone();
        let page = self
            .front
            .ask(|reply| LeaderRequest::ListPriorityClasses(PageCall { after, n_max, reply }))
            .await?;
        let token = token.next(page.next, page.total, page.revision);
        Ok(Response::new(v1::ListPriorityClassesResponse {
            priority_classes: page.items,
            next_page_token: token.text(),
            revision: token.revision,
            total: token.total,
        }))
    }

    async fn update_priority_class(
        &self,
        request: Request<v1::UpdatePriorityClassRequest>,
    ) -> Result<Response<v1::UpdatePriorityClassResponse>, Status> {
        let v1::UpdatePriorityClassRequest { priority_class, expected_revision } = request.into_inner();
        let edited = self.edit_class(priority_class, expected_revision, RecordChange::Update).await?;
        Ok(Response::new(v1::UpdatePriorityClassResponse { revision: of_one(&edited).0 }))
    }

    async fn delete_priority_class(
        &self,
        request: Request<v1::DeletePriorityClassRequest>,
    ) -> Result<Response<v1::DeletePriorityClassResponse>, Status> {
        let v1::DeletePriorityClassRequest { name, expected_revision } = request.into_inner();
        let classes = vec![RecordChange::Delete(required(name)?)];
        let expected_revision = Revision(expected_revision);
        let edited = self.edit(Edit { classes, expected_revision, ..Edit::default() }, Vec::new()).await?;
        Ok(Response::new(v1::DeletePriorityClassResponse { revision: of_one(&edited).0 }))
    }
}

pub(super) fn required(name: String) -> Result<String, Status> {
    if name.is_empty() { Err(status::invalid_argument([BadField::new("name", "empty")])) } else { Ok(name) }
}

pub(super) fn unknown(what: &str, name: &str) -> Status {
    let message = format!("there is no {what} `{name}`");
    status::with_info(Code::NotFound, status::reason::UNKNOWN_NAME, message, [("name", name)])
}

/// Revision of the only record, and whether it was there as given.
pub(super) fn of_one(edited: &Edited) -> (u64, bool) {
    let records = edited.queues.iter().chain(&edited.classes).chain(&edited.budgets);
    match records.chain(&edited.reservations).next() {
        Some(EditOutcome::Unchanged(revision)) => (revision.0, true),
        Some(EditOutcome::Created | EditOutcome::Updated | EditOutcome::Deleted) | None => {
            (edited.revision.0, false)
        }
    }
}

/// What a page may hold, and where it begins.
pub(super) fn page_of(page_size: u32, page_token: &str) -> Result<(usize, PageToken), Status> {
    let n_max = match usize::try_from(page_size).unwrap_or(usize::MAX) {
        0 => PAGE_DEFAULT,
        n_max => n_max,
    };
    let mut wrong = Vec::new();
    if n_max > PAGE_MAX {
        wrong.push(BadField::new("page_size", format!("{n_max} is not in 1..={PAGE_MAX}")));
    }
    let token = PageToken::parse(page_token);
    if token.is_none() {
        wrong.push(BadField::new("page_token", "not a token of a previous page"));
    }
    match token {
        Some(token) if wrong.is_empty() => Ok((n_max, token)),
        Some(_) | None => Err(status::invalid_argument(wrong)),
    }
}

/// Where a list goes on: revision and total of the first page, and the last name of the page before.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PageToken {
    pub(super) revision: u64,
    pub(super) total: u32,
    pub(super) after: String,
}

impl PageToken {
    /// Of the first page when empty; `None` if it is no token.
    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::default());
        }
        let mut parts = text.splitn(3, ':');
        let (revision, total) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let after = parts.next()?;
        names::queue(after).ok()?;
        (revision > 0).then(|| Self { revision, total, after: after.to_owned() })
    }

    /// After this page; empty `after` on the last one.
    pub(super) fn next(self, after: String, total: usize, revision: Revision) -> Self {
        if self.revision > 0 {
            return Self { after, ..self };
        }
        Self { revision: revision.0, total: u32::try_from(total).unwrap_or(u32::MAX), after }
    }

    pub(super) fn text(&self) -> String {
        let Self { revision, total, after } = self;
        if after.is_empty() { String::new() } else { format!("{revision}:{total}:{after}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_tokens_come_back_as_they_were() {
        let first = PageToken::parse("").unwrap();
        let next = first.next("prod.search".into(), 3, Revision(7));
        assert_eq!(next.text(), "7:3:prod.search");
        assert_eq!(
            PageToken::parse(&next.text()),
            Some(PageToken { revision: 7, total: 3, after: "prod.search".into() })
        );
        let last = next.next(String::new(), 9, Revision(9));
        assert_eq!((last.text().as_str(), last.total, last.revision), ("", 3, 7));
        for bad in ["7", "7:3", "0:3:prod", "x:3:prod", "7:3:Prod", "7:3:prod..a", "7:3:a:b"] {
            assert_eq!(PageToken::parse(bad), None, "{bad}");
        }
    }
}
