//! UnitService.

use std::{sync::atomic::Ordering, time::Duration};

use godel_base::ids::{Revision, StoreId};
use godel_core_dispatcher::{
    Dispatcher,
    leader::{UnitChange, UnitChangeKind},
    read::ListFilter,
};
use godel_domain::{names, unit_caller::UnitCaller};
use godel_kit::{
    client::{Directory, retry_idempotent},
    message::RECEIVED_BYTES_MAX,
    room::Messages,
    security::{
        CallerRecords, ListedNames, PersonCall, caller, permit_submission, permit_update, person_call,
    },
    server, status,
};
use godel_proto::v1::{self, state_service_client::StateServiceClient, unit_service_server::UnitService};
use godel_rules::admission::{
    self, Admitted,
    retry::{self, RetryScope},
};
use godel_wire::{BadField, from_proto, hidden::HideNames as _};
use tokio::{sync::oneshot, time::Instant};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{
    history, records,
    submit::{self, SubmittedBy},
};
use crate::{
    convert,
    leader_client::{Front, LeaderHandle, term_over},
    metrics::DispatcherMetrics,
    pages::{self, RowsPage},
    requests::{ChangeCaller, LeaderRequest, PendingSubmission, Refused, Submitter, WatchCall},
};

/// Running units on a page of a unit's: of 700 bytes at most, mostly names.
const RUNNING_UNITS_MAX: usize = 1_000;
/// Units on a page unless asked otherwise, and at most.
const PAGE_DEFAULT: usize = 500;
const PAGE_MAX: usize = 1_000;
/// A page that has so many bytes takes no further unit; one unit has at most 64 KiB, 128 KiB of task groups that were added,
/// 40 KiB of ordinal ranges and a few of refusals, so a page stays below 1 MiB.
const PAGE_BYTES: usize = 640 << 10;
/// Names looked at in one go while others wait.
const SCAN_PER_CALL: usize = 4_096;
/// Messages that wait on a watch; beyond that changes of the same unit are merged.
const WATCH_QUEUE: usize = 4;

/// Who changes a unit.
struct ChangedBy {
    call: PersonCall,
    /// As it is compared with who submitted the unit, and looked for in lists of queues.
    caller: UnitCaller,
    /// It may change units of the namespace only that it names.
    is_bound: bool,
}

impl ChangedBy {
    fn of<T>(request: &Request<T>) -> Self {
        let call = person_call(request);
        Self { caller: UnitCaller::new(&caller(request).principal()), is_bound: call.is_bound(), call }
    }
}

pub(crate) struct UnitRpc {
    front: Front,
    directory: Directory,
    metrics: DispatcherMetrics,
    /// What is known of principals; `None`: nobody is judged.
    callers: Option<CallerRecords>,
}

impl UnitRpc {
    pub(crate) fn new(
        front: Front,
        directory: Directory,
        metrics: DispatcherMetrics,
        callers: Option<CallerRecords>,
    ) -> Self {
        Self { front, directory, metrics, callers }
    }

    /// That a watch may begin at a revision, which is of store `asked`. What the loop has read may be behind what the
    /// client has: it is state that knows the last revision.
    async fn check_begin(&self, term: &LeaderHandle, from: Revision, asked: StoreId) -> Result<(), Status> {
        if !term.store.may_be(asked) {
            return Err(status::store_changed(asked, term.store));
        }
        if from.0 <= term.read.load(Ordering::Relaxed) + 1 {
            return Ok(());
        }
        let policy = self.directory.policy();
        let answer = retry_idempotent(&policy, || async {
            let mut client =
                StateServiceClient::new(self.directory.state()).max_decoding_message_size(RECEIVED_BYTES_MAX);
            client.get_store_status(v1::GetStoreStatusRequest {}).await
        });
        let last = Revision(answer.await?.into_inner().revision);
        if from.0 > last.0 + 1 { Err(status::future_revision(from, last)) } else { Ok(()) }
    }

    async fn change(
        &self,
        by: ChangedBy,
        namespace: String,
        name: String,
        expected_revision: u64,
        kind: UnitChangeKind,
    ) -> Result<Revision, Status> {
        if name.is_empty() {
            return Err(status::invalid_argument([BadField::new("name", "empty")]));
        }
        let expected_revision = Revision(expected_revision);
        let ChangedBy { call, caller: by, is_bound } = by;
        let cause = call.cause_about_unit(&namespace, &name);
        self.front
            .ask(|reply| {
                let caller = ChangeCaller { cause, reply };
                let change = UnitChange { namespace, name, expected_revision, kind, by, is_bound, caller };
                LeaderRequest::Change(change)
            })
            .await?
            .map(Option::unwrap_or_default)
    }

    fn overloaded(&self, message: &str, retry_after: Duration) -> Status {
        self.metrics.overloaded.inc();
        status::resource_exhausted(status::reason::OVERLOADED, message, retry_after)
    }
}

/// What a call is told that would be one too many in hand.
const TOO_MUCH: &str = "overloaded: try again after the retry delay, or submit in bulk with SubmitUnits";

/// A submission that may become a record, and its share of the admission queue, in KiB.
pub(crate) fn admit(unit: v1::UnitSpec) -> Result<(Admitted, u32), Vec<BadField>> {
    let mut submission = from_proto::submission(unit);
    let kib = room_of(submission.encoded_len);
    if submission.uid.is_empty() {
        submission.uid = uuid::Uuid::now_v7().to_string();
    }
    let admitted = admission::admit(submission).map_err(convert::bad_fields)?;
    Ok((admitted, kib))
}

fn room_of(encoded_len: usize) -> u32 {
    u32::try_from(encoded_len.div_ceil(1024).clamp(1, 64)).unwrap_or(64)
}

#[tonic::async_trait]
impl UnitService for UnitRpc {
    async fn submit_unit(
        &self,
        request: Request<v1::SubmitUnitRequest>,
    ) -> Result<Response<v1::SubmitUnitResponse>, Status> {
        let (term, since) = (self.front.term()?, Instant::now());
        // Before anything that costs more.
        let (call, principal) = (person_call(&request), caller(&request).principal().into());
        let names = ListedNames::of(&request, self.callers.as_ref());
        let pass = term.call_limiter.enter(call.name()).map_err(|hint| self.overloaded(TOO_MUCH, hint))?;
        let Some(mut unit) = request.into_inner().unit else {
            self.metrics.rejected.inc();
            return Err(status::invalid_argument([BadField::new("unit", "missing")]));
        };
        permit_submission(&call, &mut unit).inspect_err(|_| {
            self.metrics.rejected.inc();
        })?;
        let (Admitted { spec, defaults }, kib) = admit(unit).map_err(|wrong| {
            self.metrics.rejected.inc();
            status::invalid_argument(wrong)
        })?;
        let share = term.room.share(call.name());
        let Some(room) = term.room.take_now(share.as_ref(), kib) else {
            let hint = term.call_limiter.refuse().max(submit::RETRY_FULL);
            return Err(self.overloaded("the admission queue is full", hint));
        };
        let (name, (reply, answer)) = (spec.name.clone(), oneshot::channel());
        let (waiter, pass) = (Submitter::Unary(reply), Some(pass));
        let by = UnitCaller { principal, names: names.beside(&spec.owner) };
        let item = PendingSubmission { spec, by, waiter, since, room, pass };
        term.calls.send(LeaderRequest::Submit(vec![item])).await.map_err(|_| term_over())?;
        match answer.await.map_err(|_| term_over())? {
            Ok(done) => Ok(Response::new(v1::SubmitUnitResponse {
                unit_id: done.unit.0,
                uid: done.uid,
                revision: done.revision.0,
                defaults: defaults.iter().map(ToString::to_string).collect(),
                infeasible: done.infeasible,
                warnings: done.warnings,
                duplicate: done.duplicate,
                name,
            })),
            Err(Refused::Status(status) | Refused::Full(_, status)) => Err(status),
        }
    }

    type SubmitUnitsStream = ReceiverStream<Result<v1::SubmitUnitsResponse, Status>>;

    async fn submit_units(
        &self,
        request: Request<Streaming<v1::SubmitUnitsRequest>>,
    ) -> Result<Response<Self::SubmitUnitsStream>, Status> {
        let term = self.front.term()?;
        let by = SubmittedBy {
            principal: caller(&request).principal().into(),
            names: ListedNames::of(&request, self.callers.as_ref()),
            call: person_call(&request),
        };
        Ok(Response::new(submit::spawn(term, request.into_inner(), by, self.metrics.clone())))
    }

    async fn get_unit(
        &self,
        request: Request<v1::GetUnitRequest>,
    ) -> Result<Response<v1::GetUnitResponse>, Status> {
        let call = person_call(&request);
        let v1::GetUnitRequest { namespace, name, page_size, page_token } = request.into_inner();
        let namespace = call.default_namespace(namespace);
        let mut wrong = Vec::new();
        if name.is_empty() {
            wrong.push(BadField::new("name", "empty"));
        }
        let n_max = records::page_size(page_size, RUNNING_UNITS_MAX, RUNNING_UNITS_MAX, &mut wrong);
        let after = RowsPage::parse(&page_token);
        if after.is_none() && !page_token.is_empty() {
            wrong.push(records::bad_token());
        }
        if !wrong.is_empty() {
            return Err(status::invalid_argument(wrong));
        }
        let (page, sight) = (RowsPage { n_max, after }, call.sight());
        let show = move |core: &Dispatcher| pages::show_unit(core, &sight, &namespace, &name, &page);
        self.front.read(show).await?.map(Response::new)
    }

    async fn list_units(
        &self,
        request: Request<v1::ListUnitsRequest>,
    ) -> Result<Response<v1::ListUnitsResponse>, Status> {
        let sight = person_call(&request).sight();
        let request = request.into_inner();
        let phase = convert::phase_filter(request.phase);
        let class = from_proto::workload_class(request.workload_class);
        let token = PageToken::parse(&request.page_token);
        let mut wrong = Vec::new();
        let n_units = records::page_size(request.page_size, PAGE_DEFAULT, PAGE_MAX, &mut wrong);
        if token.is_none() {
            wrong.push(records::bad_token());
        }
        wrong.extend(phase.as_ref().err().cloned());
        wrong.extend(class.as_ref().err().cloned());
        wrong.extend(request.label_selector.keys().filter_map(|key| {
            // A key that no label can have is meant otherwise, and would match nothing.
            let bad = names::label_key(key).err()?;
            Some(BadField::new(format!("label_selector[{key:?}]"), bad.to_string()))
        }));
        let (Ok(phase), Ok(class), Some(token), true) = (phase, class, token, wrong.is_empty()) else {
            return Err(status::invalid_argument(wrong));
        };
        let labels = request.label_selector.into_iter().collect();
        let v1::ListUnitsRequest { namespace, queue, owner, node, .. } = request;
        let within = sight.clone().within(&namespace);
        let filter = ListFilter { sight: within, phase, labels, queue, owner, node: None, class };
        let store = self.front.term()?.store;
        if token.revision > 0 && token.store != store {
            return Err(status::store_changed(token.store, store));
        }
        let token = PageToken { store, ..token };
        let page = self.page(filter, node, token, n_units).await?;
        Ok(Response::new(page.within_sight(&sight)))
    }

    type WatchUnitsStream = Messages<v1::WatchUnitsResponse, Status>;

    async fn watch_units(
        &self,
        request: Request<v1::WatchUnitsRequest>,
    ) -> Result<Response<Self::WatchUnitsStream>, Status> {
        let term = self.front.term()?;
        let (share, call) = (server::unread_share(&request), person_call(&request));
        let v1::WatchUnitsRequest { mut namespace, name, from_revision, store_id } = request.into_inner();
        if !name.is_empty() {
            namespace = call.default_namespace(namespace);
        }
        self.check_begin(&term, Revision(from_revision), StoreId(store_id)).await?;
        let (messages, stream) = Messages::channel(WATCH_QUEUE);
        let (from, sight) = (Revision(from_revision), call.sight());
        let call = WatchCall { namespace, name, sight, from, messages, share };
        term.calls.send(LeaderRequest::Watch(call)).await.map_err(|_| term_over())?;
        Ok(Response::new(stream))
    }

    async fn cancel_unit(
        &self,
        request: Request<v1::CancelUnitRequest>,
    ) -> Result<Response<v1::CancelUnitResponse>, Status> {
        let (call, by) = (person_call(&request), ChangedBy::of(&request));
        let v1::CancelUnitRequest { namespace, name, expected_revision } = request.into_inner();
        let namespace = call.namespace(namespace)?;
        let revision = self.change(by, namespace, name, expected_revision, UnitChangeKind::Cancel).await?;
        Ok(Response::new(v1::CancelUnitResponse { revision: revision.0 }))
    }

    async fn suspend_unit(
        &self,
        request: Request<v1::SuspendUnitRequest>,
    ) -> Result<Response<v1::SuspendUnitResponse>, Status> {
        let (call, by) = (person_call(&request), ChangedBy::of(&request));
        let v1::SuspendUnitRequest { namespace, name, expected_revision } = request.into_inner();
        let namespace = call.namespace(namespace)?;
        let revision = self.change(by, namespace, name, expected_revision, UnitChangeKind::Suspend).await?;
        Ok(Response::new(v1::SuspendUnitResponse { revision: revision.0 }))
    }

    async fn resume_unit(
        &self,
        request: Request<v1::ResumeUnitRequest>,
    ) -> Result<Response<v1::ResumeUnitResponse>, Status> {
        let (call, by) = (person_call(&request), ChangedBy::of(&request));
        let v1::ResumeUnitRequest { namespace, name, expected_revision } = request.into_inner();
        let namespace = call.namespace(namespace)?;
        let revision = self.change(by, namespace, name, expected_revision, UnitChangeKind::Resume).await?;
        Ok(Response::new(v1::ResumeUnitResponse { revision: revision.0 }))
    }

    async fn stop_running_units(
        &self,
        request: Request<v1::StopRunningUnitsRequest>,
    ) -> Result<Response<v1::StopRunningUnitsResponse>, Status> {
        let (call, by) = (person_call(&request), ChangedBy::of(&request));
        let v1::StopRunningUnitsRequest { namespace, name, ordinals, expected_revision } =
            request.into_inner();
        let namespace = call.namespace(namespace)?;
        let kind = UnitChangeKind::Stop { ordinals };
        let revision = self.change(by, namespace, name, expected_revision, kind).await?;
        Ok(Response::new(v1::StopRunningUnitsResponse { revision: revision.0 }))
    }

    async fn scale_unit(
        &self,
        request: Request<v1::ScaleUnitRequest>,
    ) -> Result<Response<v1::ScaleUnitResponse>, Status> {
        let (call, by) = (person_call(&request), ChangedBy::of(&request));
        let v1::ScaleUnitRequest { namespace, name, task_group, replicas, expected_revision } =
            request.into_inner();
        let namespace = call.namespace(namespace)?;
        let kind = UnitChangeKind::Scale { group: task_group, replicas };
        let revision = self.change(by, namespace, name, expected_revision, kind).await?;
        Ok(Response::new(v1::ScaleUnitResponse { revision: revision.0 }))
    }

    async fn update_unit(
        &self,
        request: Request<v1::UpdateUnitRequest>,
    ) -> Result<Response<v1::UpdateUnitResponse>, Status> {
        let (call, mut by) = (person_call(&request), ChangedBy::of(&request));
        let names = ListedNames::of(&request, self.callers.as_ref());
        let v1::UpdateUnitRequest { unit, expected_revision, groups } = request.into_inner();
        let ((namespace, name), kind) = match (unit, groups) {
            (Some(mut unit), None) => {
                permit_update(&call, &mut unit)?;
                let submission = from_proto::submission(unit);
                let admitted = admission::admit_whole(submission).map_err(convert::bad_fields);
                let spec = admitted.map_err(status::invalid_argument)?.spec;
                by.caller.names = names.beside(&spec.owner);
                ((spec.namespace.clone(), spec.name.clone()), UnitChangeKind::Update(Box::new(spec)))
            }
            (None, Some(mut groups)) => {
                groups.namespace = call.namespace(groups.namespace)?;
                let named = (groups.namespace.clone(), groups.name.clone());
                (named, UnitChangeKind::Grow(Box::new(from_proto::group_changes(groups))))
            }
            (None, None) => return Err(status::invalid_argument([BadField::new("unit", "missing")])),
            (Some(_), Some(_)) => {
                let both = "cannot be given together with `unit`: send one of both";
                return Err(status::invalid_argument([BadField::new("groups", both)]));
            }
        };
        let revision = self.change(by, namespace, name, expected_revision, kind).await?;
        Ok(Response::new(v1::UpdateUnitResponse { revision: revision.0 }))
    }

    async fn retry_unit(
        &self,
        request: Request<v1::RetryUnitRequest>,
    ) -> Result<Response<v1::RetryUnitResponse>, Status> {
        let (call, by) = (person_call(&request), ChangedBy::of(&request));
        let v1::RetryUnitRequest {
            namespace,
            name,
            all_replicas,
            expected_revision,
            ordinals,
            preferred_nodes,
        } = request.into_inner();
        let namespace = call.namespace(namespace)?;
        let preferred = retry::preferred_nodes(from_proto::preferred_nodes(preferred_nodes))
            .map_err(|violations| status::invalid_argument(convert::bad_fields(violations)))?;
        if ordinals.is_empty() && !preferred.is_empty() {
            let alone = "goes with `ordinals` only: name the replicas";
            return Err(status::invalid_argument([BadField::new("preferred_nodes", alone)]));
        }
        let scope = if all_replicas { RetryScope::All } else { RetryScope::Failed };
        let kind = match (ordinals.is_empty(), all_replicas) {
            (true, _) => UnitChangeKind::Retry(scope),
            (false, false) => UnitChangeKind::RetryReplicas { ordinals, preferred },
            (false, true) => {
                let both = "cannot be given together with `all_replicas`: send one of both";
                return Err(status::invalid_argument([BadField::new("ordinals", both)]));
            }
        };
        let revision = self.change(by, namespace, name, expected_revision, kind).await?;
        Ok(Response::new(v1::RetryUnitResponse { revision: revision.0 }))
    }

    async fn list_unit_history(
        &self,
        request: Request<v1::ListUnitHistoryRequest>,
    ) -> Result<Response<v1::ListUnitHistoryResponse>, Status> {
        let sight = person_call(&request).sight();
        history::list(&self.front, request.into_inner(), sight).await.map(Response::new)
    }

    async fn delete_unit(
        &self,
        request: Request<v1::DeleteUnitRequest>,
    ) -> Result<Response<v1::DeleteUnitResponse>, Status> {
        let (call, by) = (person_call(&request), ChangedBy::of(&request));
        let v1::DeleteUnitRequest { namespace, name, expected_revision } = request.into_inner();
        let namespace = call.namespace(namespace)?;
        let revision = self.change(by, namespace, name, expected_revision, UnitChangeKind::Delete).await?;
        Ok(Response::new(v1::DeleteUnitResponse { revision: revision.0 }))
    }
}

impl UnitRpc {
    /// Fills a page bit by bit, so that a long list holds nobody up. The first page counts all matches.
    async fn page(
        &self,
        filter: ListFilter,
        node: String,
        token: PageToken,
        n_units: usize,
    ) -> Result<v1::ListUnitsResponse, Status> {
        let (revision, store_id) = (token.revision, token.store.0);
        let mut page = v1::ListUnitsResponse { revision, store_id, ..v1::ListUnitsResponse::default() };
        let (mut total, mut after) = (token.total, token.after);
        let (mut n_matched, mut bytes, mut filled) = (0u64, 0, false);
        loop {
            let missing = if filled { 0 } else { n_units - page.units.len() };
            let (filter, node, from) = (filter.clone(), node.clone(), after);
            let list = move |core: &Dispatcher| {
                pages::list_units(core, filter, &node, &from, SCAN_PER_CALL, missing)
            };
            let part = self.front.read(list).await??;
            if page.revision == 0 {
                page.revision = part.revision.0;
                total = total.or(part.total);
            }
            n_matched += u64::from(part.n_matched);
            for unit in part.units {
                if filled {
                    break;
                }
                bytes += prost::Message::encoded_len(&unit);
                page.units.push(unit);
                filled = page.units.len() >= n_units || bytes >= PAGE_BYTES;
            }
            if part.next.is_empty() || (filled && total.is_some()) {
                break;
            }
            after = part.next;
        }
        let total = total.unwrap_or(n_matched);
        page.total = u32::try_from(total).unwrap_or(u32::MAX);
        let last = page.units.last().and_then(|unit| unit.spec.as_ref()?.meta.as_ref());
        if let Some(last) = last.filter(|_| filled) {
            let after = format!("{}\0{}", last.namespace, last.name);
            let (store, revision) = (token.store, page.revision);
            page.next_page_token = PageToken { store, revision, total: Some(total), after }.text();
        }
        Ok(page)
    }
}

/// Where a list goes on: store, revision and total of the first page, and the last name of the page before.
#[derive(Debug, Default, PartialEq, Eq)]
struct PageToken {
    store: StoreId,
    revision: u64,
    total: Option<u64>,
    after: String,
}

impl PageToken {
    /// Of the first page when empty; `None` if it is no token.
    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::default());
        }
        let mut parts = text.splitn(5, ':');
        let store = StoreId(parts.next()?.parse().ok()?);
        let (revision, total) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let (namespace, name) = (parts.next()?, parts.next()?);
        names::name(namespace, names::NAMESPACE_LEN_MAX).ok()?;
        names::name(name, names::NAME_LEN_MAX).ok()?;
        let after = format!("{namespace}\0{name}");
        (revision > 0).then_some(Self { store, revision, total: Some(total), after })
    }

    fn text(&self) -> String {
        let Self { store, revision, total, after } = self;
        format!("{store}:{revision}:{}:{}", total.unwrap_or(0), after.replace('\0', ":"))
    }
}

#[cfg(test)]
mod tests;
