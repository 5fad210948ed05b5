//! Applications and queues of the YARN adapter, page by page.

use godel_proto::v1;

use crate::{client::Client, exit::Failure};

/// Pages read of one list; beyond lies a server that never ends.
const N_PAGES_MAX: usize = 1_000_000;

/// Applications that match, at most `limit`, the newest first, and whether there are more.
///
/// # Errors
/// What the server answered.
pub async fn list_applications(
    client: &Client,
    request: v1::ListApplicationsRequest,
    limit: usize,
) -> Result<(Vec<v1::YarnApplicationStatus>, bool), Failure> {
    let page_size = u32::try_from(limit.saturating_add(1)).unwrap_or(u32::MAX).clamp(1, 1_000);
    let mut applications = Vec::new();
    let mut request = v1::ListApplicationsRequest { page_size, ..request };
    for _ in 0..N_PAGES_MAX {
        let page = client
            .yarn(|mut service| {
                let request = request.clone();
                async move { service.list_applications(request).await }
            })
            .await?
            .into_inner();
        applications.extend(page.applications);
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() || applications.len() > limit {
            break;
        }
    }
    let is_more = applications.len() > limit || !request.page_token.is_empty();
    applications.truncate(limit);
    Ok((applications, is_more))
}

/// One application with its attempts.
///
/// # Errors
/// What the server answered.
pub async fn application(
    client: &Client,
    id: &str,
) -> Result<(v1::YarnApplicationStatus, Vec<v1::YarnAttempt>), Failure> {
    let found = client
        .yarn(|mut service| {
            let request = v1::GetApplicationRequest { application_id: id.to_owned() };
            async move { service.get_application(request).await }
        })
        .await?
        .into_inner();
    let attempts = client
        .yarn(|mut service| {
            let request = v1::ListAttemptsRequest { application_id: id.to_owned() };
            async move { service.list_attempts(request).await }
        })
        .await?
        .into_inner();
    Ok((found.application.unwrap_or_default(), attempts.attempts))
}

/// Ends an application on behalf of a user. Whether it is over.
///
/// # Errors
/// What the server answered.
pub async fn kill(client: &Client, id: &str, user: &str, why: &str) -> Result<bool, Failure> {
    let answer = client
        .yarn(|mut service| {
            let request = v1::KillApplicationRequest {
                application_id: id.to_owned(),
                user: user.to_owned(),
                diagnostics: why.to_owned(),
            };
            async move { service.kill_application(request).await }
        })
        .await?;
    Ok(answer.into_inner().done)
}

/// Every queue as YARN sees it.
///
/// # Errors
/// What the server answered.
pub async fn list_queues(client: &Client) -> Result<Vec<v1::YarnQueue>, Failure> {
    let mut queues = Vec::new();
    let mut request = v1::ListYarnQueuesRequest { page_size: 1_000, page_token: String::new() };
    for _ in 0..N_PAGES_MAX {
        let page = client
            .yarn(|mut service| {
                let request = request.clone();
                async move { service.list_yarn_queues(request).await }
            })
            .await?
            .into_inner();
        queues.extend(page.queues);
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    Ok(queues)
}
