//! How large a message may be, and cutting what is larger.
//!
//! The rule: whoever sends keeps every message, framing included, within [`MESSAGE_BYTES_MAX`]. What grows with
//! the cluster goes in parts: pages end before they are over it, lists of items are cut by [`parts`], and what
//! cannot be cut (one record, one assignment, one decision) is bounded by what it may hold. A transaction leaves
//! room for its framing (`godel_wire::TXN_BYTES_MAX`), so its commit and its records fit as well.

use prost::Message;

/// Most bytes of a message that any part of godel sends.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Most bytes of a message that any part takes: servers and clients alike set it as their decoding limit. Twice
/// what is sent, so that a client's request that is somewhat too large is refused by name and not by the
/// transport.
pub const RECEIVED_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;

/// A part takes no item beyond this; half of a message, so that a single larger item may still go alone.
const PART_BYTES: usize = MESSAGE_BYTES_MAX / 2;

/// Items of a repeated field in parts of bounded size, in order: half a mebibyte each, or one larger item.
pub fn parts<T: Message>(items: impl IntoIterator<Item = T>) -> Vec<Vec<T>> {
    let mut parts = Vec::new();
    let mut part = Vec::new();
    let mut n_bytes = 0;
    for item in items {
        let len = field_len(item.encoded_len());
        if n_bytes + len > PART_BYTES && !part.is_empty() {
            parts.push(std::mem::take(&mut part));
            n_bytes = 0;
        }
        n_bytes += len;
        part.push(item);
    }
    if !part.is_empty() {
        parts.push(part);
    }
    parts
}

/// Bytes that a message of `len` bytes takes as a field: with its tag (below 16) and its length.
pub fn field_len(len: usize) -> usize {
    1 + prost::length_delimiter_len(len) + len
}

#[cfg(test)]
mod tests {
    use godel_proto::v1;
    use proptest::prelude::*;

    use super::*;

    fn outcome(decision_id: u64, len: usize) -> v1::Outcome {
        let detail = "x".repeat(len);
        let rejections = vec![v1::Rejection { detail, ..v1::Rejection::default() }];
        v1::Outcome { decision_id, rejections, ..v1::Outcome::default() }
    }

    proptest! {
        #[test]
        fn parts_keep_order_lose_nothing_and_are_bounded(
            lens in proptest::collection::vec(prop_oneof![0..100usize, 0..PART_BYTES, Just(900_000)], 0..40)
        ) {
            let items: Vec<_> = (1..).zip(&lens).map(|(id, len)| outcome(id, *len)).collect();
            let parts = parts(items.clone());
            prop_assert!(parts.iter().all(|part| !part.is_empty()));
            for part in &parts {
                let len = v1::Outcomes { outcomes: part.clone() }.encoded_len();
                prop_assert!(len <= PART_BYTES || (part.len() == 1 && len <= MESSAGE_BYTES_MAX), "{len}");
            }
            // Two neighbours would not have fitted into one.
            for pair in parts.windows(2) {
                let outcomes = pair[0].clone();
                let len = v1::Outcomes { outcomes }.encoded_len() + field_len(pair[1][0].encoded_len());
                prop_assert!(len > PART_BYTES, "{len}");
            }
            prop_assert_eq!(parts.concat(), items);
        }
    }

    #[test]
    fn small_items_are_counted_with_their_framing() {
        let held = (0..300_000).map(|unit_id| v1::HeldUnit { unit_id, spec_revision: 0 });
        let parts = parts(held);
        assert!(parts.len() > 1);
        assert!(
            parts
                .into_iter()
                .all(|units| v1::Inventory { units, more: true }.encoded_len() <= PART_BYTES + 2)
        );
    }
}
