//! Ended units, page by page.

use godel_proto::v1;

use crate::{
    client::Client,
    exit::Failure,
    pages::{PAGE_SIZE, read_pages},
};

/// Ended units that match, at most `limit`, the newest first, and whether there are more.
///
/// # Errors
/// What the server answered.
pub async fn list(
    client: &Client,
    request: v1::ListUnitHistoryRequest,
    limit: usize,
) -> Result<(Vec<v1::UnitHistory>, bool), Failure> {
    read_pages(limit, async |page_token| {
        let request = v1::ListUnitHistoryRequest { page_size: PAGE_SIZE, page_token, ..request.clone() };
        let page = client.units(async |mut service| service.list_unit_history(request.clone()).await).await?;
        Ok((page.units, page.next_page_token))
    })
    .await
}
