//! Applications and queues of the YARN adapter, page by page.

use godel_proto::v1;

use crate::{
    client::Client,
    exit::Failure,
    pages::{PAGE_SIZE, read_all, read_pages},
};

/// Applications that match, at most `limit`, the newest first, and whether there are more.
///
/// # Errors
/// What the server answered.
pub async fn list_applications(
    client: &Client,
    request: v1::ListApplicationsRequest,
    limit: usize,
) -> Result<(Vec<v1::YarnApplicationStatus>, bool), Failure> {
    let page_size = u32::try_from(limit.saturating_add(1)).unwrap_or(u32::MAX).clamp(1, PAGE_SIZE);
    read_pages(limit, async |page_token| {
        let request = v1::ListApplicationsRequest { page_size, page_token, ..request.clone() };
        let page = client.yarn(async |mut service| service.list_applications(request.clone()).await).await?;
        Ok((page.applications, page.next_page_token))
    })
    .await
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
        .yarn(async |mut service| {
            service.get_application(v1::GetApplicationRequest { application_id: id.to_owned() }).await
        })
        .await?;
    let attempts = client
        .yarn(async |mut service| {
            service.list_attempts(v1::ListAttemptsRequest { application_id: id.to_owned() }).await
        })
        .await?;
    Ok((found.application.unwrap_or_default(), attempts.attempts))
}

/// Ends an application on behalf of a user. Whether it is over.
///
/// # Errors
/// What the server answered.
pub async fn kill(client: &Client, id: &str, user: &str, why: &str) -> Result<bool, Failure> {
    let answer = client
        .yarn(async |mut service| {
            service
                .kill_application(v1::KillApplicationRequest {
                    application_id: id.to_owned(),
                    user: user.to_owned(),
                    diagnostics: why.to_owned(),
                })
                .await
        })
        .await?;
    Ok(answer.done)
}

/// Every queue as YARN sees it.
///
/// # Errors
/// What the server answered.
pub async fn list_queues(client: &Client) -> Result<Vec<v1::YarnQueue>, Failure> {
    read_all(async |page_token| {
        let request = v1::ListYarnQueuesRequest { page_size: PAGE_SIZE, page_token };
        let page = client.yarn(async |mut service| service.list_yarn_queues(request.clone()).await).await?;
        Ok((page.queues, page.next_page_token))
    })
    .await
}
