//! Lists in pages of bounded numbers and bytes.

use godel_kit::message::{MESSAGE_BYTES_MAX, field_len};
use prost::Message;

/// Bytes left for what a page has beside its items.
const FRAMING_BYTES: usize = 1 << 10;

/// A page of a list.
pub(super) struct Page<M> {
    pub(super) items: Vec<M>,
    /// Token of the last item; empty on the last page.
    pub(super) next_page_token: String,
    /// Items from this page on.
    pub(super) total: u32,
}

/// The first items of a list, at most `n_max` and as many bytes as a message has; each with its token. One item always fits.
pub(super) fn page<T, M: Message>(items: Vec<T>, n_max: usize, show: impl Fn(T) -> (String, M)) -> Page<M> {
    let n_items = items.len();
    let mut page = Page {
        items: Vec::new(),
        next_page_token: String::new(),
        total: u32::try_from(n_items).unwrap_or(u32::MAX),
    };
    let (mut n_bytes, mut last) = (FRAMING_BYTES, String::new());
    for item in items.into_iter().take(n_max) {
        let (token, message) = show(item);
        n_bytes += field_len(message.encoded_len());
        if n_bytes > MESSAGE_BYTES_MAX && !page.items.is_empty() {
            break;
        }
        page.items.push(message);
        last = token;
    }
    if page.items.len() < n_items {
        page.next_page_token = last;
    }
    page
}

#[cfg(test)]
mod tests {
    use godel_proto::v1;

    use super::*;

    fn queues(items: Vec<(&str, usize)>, n_max: usize) -> Page<v1::YarnQueue> {
        page(items, n_max, |(path, len)| {
            let queue = v1::YarnQueue { path: path.repeat(len), ..v1::YarnQueue::default() };
            (path.to_owned(), queue)
        })
    }

    #[test]
    fn pages_end_at_the_number_and_at_the_bytes() {
        let small = queues(vec![("a", 1), ("b", 1), ("c", 1)], 2);
        assert_eq!((small.items.len(), small.next_page_token.as_str(), small.total), (2, "b", 3));
        let all = queues(vec![("a", 1), ("b", 1)], 2);
        assert_eq!((all.items.len(), all.next_page_token.as_str()), (2, ""));
        let large = queues(vec![("a", 600_000), ("b", 600_000), ("c", 1)], 10);
        assert_eq!((large.items.len(), large.next_page_token.as_str()), (1, "a"));
        let too_large = queues(vec![("a", 2_000_000)], 10);
        assert_eq!((too_large.items.len(), too_large.next_page_token.as_str()), (1, ""));
    }
}
