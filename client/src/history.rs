//! Ended units, page by page.

use godel_proto::v1;

use crate::{client::Client, exit::Failure};

/// Pages read of one list; beyond lies a server that never ends.
const N_PAGES_MAX: usize = 1_000_000;

/// Ended units that match, at most `limit`, the newest first, and whether there are more.
///
/// # Errors
/// What the server answered.
pub async fn list(
    client: &Client,
    request: v1::ListUnitHistoryRequest,
    limit: usize,
) -> Result<(Vec<v1::UnitHistory>, bool), Failure> {
    let mut units = Vec::new();
    let mut request = v1::ListUnitHistoryRequest { page_size: 1000, ..request };
    for _ in 0..N_PAGES_MAX {
        let page = client
            .units(|mut service| {
                let request = request.clone();
                async move { service.list_unit_history(request).await }
            })
            .await?
            .into_inner();
        units.extend(page.units);
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() || units.len() > limit {
            break;
        }
    }
    let is_more = units.len() > limit || !request.page_token.is_empty();
    units.truncate(limit);
    Ok((units, is_more))
}
