//! Lists that servers give out page by page.

use crate::exit::Failure;

/// Pages read of one list; beyond lies a server that never ends.
const N_PAGES_MAX: usize = 1_000_000;
/// Entries asked for in one page.
pub const PAGE_SIZE: u32 = 1_000;

/// At most `limit` entries of a list, and whether there are more. `read` returns the page of a token: its entries, and the
/// token of the next page, which is empty after the last one.
///
/// # Errors
/// What the server answered.
pub async fn read_pages<T>(
    limit: usize,
    mut read: impl AsyncFnMut(String) -> Result<(Vec<T>, String), Failure>,
) -> Result<(Vec<T>, bool), Failure> {
    let (mut found, mut page_token) = (Vec::new(), String::new());
    for _ in 0..N_PAGES_MAX {
        let (page, next) = read(page_token).await?;
        found.extend(page);
        page_token = next;
        if page_token.is_empty() || found.len() >= limit {
            break;
        }
    }
    let is_more = found.len() > limit || !page_token.is_empty();
    found.truncate(limit);
    Ok((found, is_more))
}

/// Every entry of a list.
///
/// # Errors
/// What the server answered.
pub async fn read_all<T>(
    read: impl AsyncFnMut(String) -> Result<(Vec<T>, String), Failure>,
) -> Result<Vec<T>, Failure> {
    Ok(read_pages(usize::MAX, read).await?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pages_are_read_until_there_is_enough() {
        // Of ten numbers three to a page.
        let read = async |limit: usize| {
            let mut n_read = 0;
            let page = async |token: String| {
                n_read += 1;
                let from: u32 = token.parse().unwrap_or(0);
                let end = (from + 3).min(10);
                Ok(((from..end).collect(), if end < 10 { end.to_string() } else { String::new() }))
            };
            let (found, is_more): (Vec<u32>, bool) = read_pages(limit, page).await.unwrap();
            (found.len(), is_more, n_read)
        };
        assert_eq!(read(usize::MAX).await, (10, false, 4));
        assert_eq!(read(10).await, (10, false, 4));
        assert_eq!(read(9).await, (9, true, 3));
        assert_eq!(read(4).await, (4, true, 2));
        let failed = read_all(async |_| Err::<(Vec<u32>, String), _>(Failure::usage("no"))).await;
        assert!(failed.is_err());
    }
}
