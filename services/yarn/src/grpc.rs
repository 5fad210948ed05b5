//! The gRPC face: YarnService, for the command line and for tools of our own.
//!
//! A master names its attempt and shows no token. Where callers are judged, it is a principal that may change the application; in plain text whoever
//! reaches this server may speak for any master (ADR 0062).
//!
//! # Modules
//!
//! - `given`: what requests say, read and checked.
//! - `pages`: lists in pages.
//! - `refused`: why the adapter refuses, as statuses.
//! - `shown`: reports as messages.

mod given;
mod pages;
mod refused;
mod shown;

use std::sync::Arc;

use godel_core_yarn::{
    AppAccess,
    ids::{YarnApplicationId, YarnAttemptId, YarnContainerId},
};
use godel_core_yarn_leader::AppReport;
use godel_domain::names::{APPLICATION_QUEUE_LEN_MAX, DIAGNOSTICS_LEN_MAX};
use godel_kit::{
    message::RECEIVED_BYTES_MAX,
    security::{CallObject, Caller, PersonCall, PersonRole, caller, person_call},
    status,
};
use godel_proto::v1::{
    self,
    yarn_service_server::{YarnService, YarnServiceServer},
};
use godel_wire::BadField;
use tonic::{Request, Response, Status};

use self::{given::Given, pages::Page, refused::refused};
use crate::manager::{ResourceManager, YarnCaller};

/// The service over an adapter, for the server of the process.
pub fn service(manager: Arc<dyn ResourceManager>) -> YarnServiceServer<YarnFace> {
    YarnServiceServer::new(YarnFace { manager }).max_decoding_message_size(RECEIVED_BYTES_MAX)
}

/// YarnService over an adapter.
#[derive(Clone, Debug)]
pub struct YarnFace {
    manager: Arc<dyn ResourceManager>,
}

impl YarnFace {
    fn application(
        &self,
        call: &PersonCall,
        id: YarnApplicationId,
    ) -> Result<v1::YarnApplicationStatus, Status> {
        let mut application = self.manager.application(id).map_err(refused)?;
        self.hide(call, std::slice::from_mut(&mut application));
        Ok(shown::application(application))
    }

    /// Takes from reports what a person may not see.
    fn hide(&self, call: &PersonCall, reports: &mut [AppReport]) {
        if let Some(principal) = call.principal() {
            self.manager.hide(&principal.name, reports);
        }
    }

    /// That a person may do something with an application. Of others nothing is asked.
    fn allow(&self, call: &PersonCall, id: YarnApplicationId, access: AppAccess) -> Result<(), Status> {
        let Some(name) = call.name() else { return Ok(()) };
        let by = YarnCaller { user: name.to_owned(), call: call.cause("", []) };
        self.manager.allow(id, &by, access).map_err(refused)
    }
}

/// Who acts, and on whose behalf: the role `user` on its own, and those above on that of whom they name. Others say it.
///
/// # Errors
/// PERMISSION_DENIED, and INVALID_ARGUMENT for a group.
fn acting(call: &PersonCall, by: &Caller, user: String) -> Result<YarnCaller, Status> {
    let Some(principal) = call.principal() else {
        // Whom nobody judges counts as the administrator.
        let unnamed = by.person().filter(|_| user.is_empty());
        return Ok(YarnCaller::unnoted(unnamed.unwrap_or(&user)));
    };
    let acting = |user: &str| YarnCaller { user: user.to_owned(), call: call.cause("", []) };
    if user.is_empty() || user == principal.name {
        return Ok(acting(&principal.name));
    }
    call.check(&CallObject { owner: Some(&user), ..CallObject::default() })?;
    if principal.role <= PersonRole::User {
        let why = "a group cannot act: leave it out, and the call is made as its principal";
        return Err(status::invalid_argument([BadField::new("user", why)]));
    }
    Ok(acting(&user))
}

#[tonic::async_trait]
impl YarnService for YarnFace {
    async fn new_application(
        &self,
        request: Request<v1::NewApplicationRequest>,
    ) -> Result<Response<v1::NewApplicationResponse>, Status> {
        let v1::NewApplicationRequest {} = request.into_inner();
        let (id, maximum) = self.manager.new_application().await.map_err(refused)?;
        let maximum = Some(shown::amount(maximum));
        Ok(Response::new(v1::NewApplicationResponse { application_id: id.to_string(), maximum }))
    }

    async fn submit_application(
        &self,
        request: Request<v1::SubmitApplicationRequest>,
    ) -> Result<Response<v1::SubmitApplicationResponse>, Status> {
        let (call, by) = (person_call(&request), caller(&request).clone());
        let mut request = request.into_inner();
        let by = acting(&call, &by, std::mem::take(&mut request.user))?;
        request.user.clone_from(&by.user);
        let (id, submitted) = given::submission(request)?;
        self.manager.submit(id, &by, submitted).await.map_err(refused)?;
        Ok(Response::new(v1::SubmitApplicationResponse {}))
    }

    async fn get_application(
        &self,
        request: Request<v1::GetApplicationRequest>,
    ) -> Result<Response<v1::GetApplicationResponse>, Status> {
        let call = person_call(&request);
        let v1::GetApplicationRequest { application_id } = request.into_inner();
        let mut given = Given::default();
        let id = given.id("application_id", &application_id);
        let application = Some(self.application(&call, given.checked(id)?)?);
        Ok(Response::new(v1::GetApplicationResponse { application }))
    }

    async fn list_applications(
        &self,
        request: Request<v1::ListApplicationsRequest>,
    ) -> Result<Response<v1::ListApplicationsResponse>, Status> {
        let call = person_call(&request);
        let request = request.into_inner();
        let mut given = Given::default();
        let n_max = given.page_size(request.page_size);
        let before: Option<YarnApplicationId> = given.page_token(&request.page_token);
        let filter = given::filter(&mut given, request);
        let filter = given.checked(Some(filter))?;
        let mut applications = self.manager.applications(&filter).map_err(refused)?;
        self.hide(&call, &mut applications);
        applications.retain(|application| before.is_none_or(|before| application.id < before));
        // The newest first, also if two faces of the same cluster disagree.
        applications.sort_by_key(|application| std::cmp::Reverse(application.id));
        let page = pages::page(applications, n_max, |application| {
            let id = application.id.to_string();
            (id, shown::application(application))
        });
        let Page { items, next_page_token, total } = page;
        Ok(Response::new(v1::ListApplicationsResponse { applications: items, next_page_token, total }))
    }

    async fn kill_application(
        &self,
        request: Request<v1::KillApplicationRequest>,
    ) -> Result<Response<v1::KillApplicationResponse>, Status> {
        let (call, by) = (person_call(&request), caller(&request).clone());
        let v1::KillApplicationRequest { application_id, user, diagnostics } = request.into_inner();
        let by = acting(&call, &by, user)?;
        let mut given = Given::default();
        let id = given.id("application_id", &application_id);
        given.user(&by.user);
        given.text("diagnostics", &diagnostics, DIAGNOSTICS_LEN_MAX);
        let id = given.checked(id)?;
        let done = self.manager.kill(id, &by, &diagnostics).await.map_err(refused)?;
        Ok(Response::new(v1::KillApplicationResponse { done }))
    }

    async fn move_application(
        &self,
        request: Request<v1::MoveApplicationRequest>,
    ) -> Result<Response<v1::MoveApplicationResponse>, Status> {
        let (call, by) = (person_call(&request), caller(&request).clone());
        let v1::MoveApplicationRequest { application_id, user, queue } = request.into_inner();
        let by = acting(&call, &by, user)?;
        let mut given = Given::default();
        let id = given.id("application_id", &application_id);
        given.user(&by.user);
        given.required("queue", &queue);
        given.text("queue", &queue, APPLICATION_QUEUE_LEN_MAX);
        let id = given.checked(id)?;
        let queue = self.manager.move_to(id, &by, &queue).await.map_err(refused)?;
        Ok(Response::new(v1::MoveApplicationResponse { queue }))
    }

    async fn update_application(
        &self,
        request: Request<v1::UpdateApplicationRequest>,
    ) -> Result<Response<v1::UpdateApplicationResponse>, Status> {
        let (call, by) = (person_call(&request), caller(&request).clone());
        let v1::UpdateApplicationRequest { application_id, user, priority, timeout_at_ms } =
            request.into_inner();
        let by = acting(&call, &by, user)?;
        let mut given = Given::default();
        let id = given.id("application_id", &application_id);
        given.user(&by.user);
        if priority.is_none() && timeout_at_ms.is_none() {
            given.wrong("priority", "missing, and so is `timeout_at_ms`: nothing would change");
        }
        let id = given.checked(id)?;
        if let Some(at_ms) = timeout_at_ms {
            self.manager.set_timeout(id, &by, at_ms).await.map_err(refused)?;
        }
        if let Some(priority) = priority {
            self.manager.set_priority(id, &by, priority).await.map_err(refused)?;
        }
        let application = Some(self.application(&call, id)?);
        Ok(Response::new(v1::UpdateApplicationResponse { application }))
    }

    async fn list_attempts(
        &self,
        request: Request<v1::ListAttemptsRequest>,
    ) -> Result<Response<v1::ListAttemptsResponse>, Status> {
        let call = person_call(&request);
        let v1::ListAttemptsRequest { application_id } = request.into_inner();
        let mut given = Given::default();
        let id = given.id("application_id", &application_id);
        let id = given.checked(id)?;
        self.allow(&call, id, AppAccess::View)?;
        let attempts = self.manager.attempts(id).map_err(refused)?;
        let attempts = attempts.into_iter().map(shown::attempt).collect();
        Ok(Response::new(v1::ListAttemptsResponse { attempts }))
    }

    async fn list_containers(
        &self,
        request: Request<v1::ListContainersRequest>,
    ) -> Result<Response<v1::ListContainersResponse>, Status> {
        let call = person_call(&request);
        let v1::ListContainersRequest { attempt_id, page_size, page_token } = request.into_inner();
        let mut given = Given::default();
        let id: Option<YarnAttemptId> = given.id("attempt_id", &attempt_id);
        let n_max = given.page_size(page_size);
        let after: Option<YarnContainerId> = given.page_token(&page_token);
        let id = given.checked(id)?;
        self.allow(&call, id.application, AppAccess::View)?;
        let mut containers = self.manager.containers(id).map_err(refused)?;
        containers.retain(|container| after.is_none_or(|after| container.id > after));
        containers.sort_by_key(|container| container.id);
        let page = pages::page(containers, n_max, |container| {
            let id = container.id.to_string();
            (id, shown::container(container))
        });
        let Page { items, next_page_token, total } = page;
        Ok(Response::new(v1::ListContainersResponse { containers: items, next_page_token, total }))
    }

    async fn register_master(
        &self,
        request: Request<v1::RegisterMasterRequest>,
    ) -> Result<Response<v1::RegisterMasterResponse>, Status> {
        let call = person_call(&request);
        let (attempt, registration) = given::registration(request.into_inner())?;
        self.allow(&call, attempt.application, AppAccess::Modify)?;
        let answer = self.manager.register(attempt, registration).await.map_err(refused)?;
        Ok(Response::new(v1::RegisterMasterResponse {
            containers: answer.containers.into_iter().map(shown::allocated).collect(),
            maximum: Some(shown::amount(answer.maximum)),
            queue: answer.queue,
        }))
    }

    async fn allocate(
        &self,
        request: Request<v1::AllocateRequest>,
    ) -> Result<Response<v1::AllocateResponse>, Status> {
        let by = person_call(&request);
        let given::Allocation { attempt, call, progress } = given::allocation(request.into_inner())?;
        self.allow(&by, attempt.application, AppAccess::Modify)?;
        let answer = self.manager.allocate(attempt, &call, progress).await.map_err(refused)?;
        Ok(Response::new(shown::allocation(answer)))
    }

    async fn finish_master(
        &self,
        request: Request<v1::FinishMasterRequest>,
    ) -> Result<Response<v1::FinishMasterResponse>, Status> {
        let call = person_call(&request);
        let v1::FinishMasterRequest { attempt_id, final_status, tracking_url, diagnostics } =
            request.into_inner();
        let mut given = Given::default();
        let attempt: Option<YarnAttemptId> = given.id("attempt_id", &attempt_id);
        let said = given.final_status(final_status);
        given.text("tracking_url", &tracking_url, given::URL_LEN_MAX);
        given.text("diagnostics", &diagnostics, DIAGNOSTICS_LEN_MAX);
        let (attempt, said) = given.checked(attempt.zip(said))?;
        self.allow(&call, attempt.application, AppAccess::Modify)?;
        let done = self.manager.finish(attempt, said, &tracking_url, &diagnostics).await.map_err(refused)?;
        Ok(Response::new(v1::FinishMasterResponse { done }))
    }

    async fn list_yarn_queues(
        &self,
        request: Request<v1::ListYarnQueuesRequest>,
    ) -> Result<Response<v1::ListYarnQueuesResponse>, Status> {
        let v1::ListYarnQueuesRequest { page_size, page_token } = request.into_inner();
        let mut given = Given::default();
        let n_max = given.page_size(page_size);
        let n_max = given.checked(Some(n_max))?;
        let mut queues = self.manager.queues().map_err(refused)?;
        let total = queues.len();
        if !page_token.is_empty() {
            let Some(index) = queues.iter().position(|queue| queue.path == page_token) else {
                let description = "the queue at which the page began is gone: start again";
                return Err(status::invalid_argument([BadField::new("page_token", description)]));
            };
            queues.drain(..=index);
        }
        let Page { items, next_page_token, total: _ } =
            pages::page(queues, n_max, |queue| (queue.path.clone(), shown::queue(queue)));
        let total = u32::try_from(total).unwrap_or(u32::MAX);
        Ok(Response::new(v1::ListYarnQueuesResponse { queues: items, next_page_token, total }))
    }
}

#[cfg(test)]
mod tests;
