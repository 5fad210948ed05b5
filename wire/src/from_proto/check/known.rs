//! Units that differ from one that was checked lately in their id and names alone: of thousands of submissions a second most
//! do, and reading each whole would cost a tenth of all that a placement costs.
//!
//! What readers make of a unit's id and `meta` does not depend on the rest, nor that on these. So what follows `meta` is
//! known by its bytes, and id and names are looked at without a copy. This only ever says that a unit is fine: where it
//! does not, the unit is read whole, which finds what is wrong.

use std::{cell::RefCell, collections::HashSet};

use bytes::Bytes;
use godel_proto::raw::{self, UnitParts};
use prost::Message as _;

use super::names::is_text;

/// Remembered by a thread.
const N_KNOWN_MAX: usize = 256;
/// A larger one is read whole each time.
const BYTES_MAX: usize = 4_096;

thread_local! {
    /// What followed `meta` in units that were read whole and found to be fine, and how much of it belonged to the `spec`.
    static KNOWN: RefCell<HashSet<(usize, Bytes)>> = RefCell::default();
}

/// `godel.v1.ObjectMeta` with texts as slices.
#[derive(Clone, PartialEq, prost::Message)]
struct Meta {
    #[prost(bytes = "bytes", tag = "1")]
    namespace: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    name: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    uid: Bytes,
    #[prost(bytes = "bytes", repeated, tag = "4")]
    labels: Vec<Bytes>,
    #[prost(bytes = "bytes", tag = "5")]
    owner: Bytes,
}

/// An entry of a map of texts.
#[derive(Clone, PartialEq, prost::Message)]
struct KnownLabel {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

/// Whether a unit is fine for all that is known; `false` says nothing.
pub(super) fn is_fine(unit: &Bytes) -> bool {
    let Some(UnitParts { id, meta, rest, n_spec }) = raw::unit_parts(unit) else { return false };
    id != 0 && KNOWN.with_borrow(|known| known.contains(&(n_spec, rest))) && is_meta_fine(meta)
}

/// A unit was read whole, and is fine.
pub(super) fn remember(unit: &Bytes) {
    let Some(UnitParts { rest, n_spec, .. }) = raw::unit_parts(unit) else { return };
    if rest.len() > BYTES_MAX {
        return;
    }
    KNOWN.with_borrow_mut(|known| {
        if known.len() >= N_KNOWN_MAX {
            known.clear();
        }
        // A copy: a slice would keep the whole message.
        known.insert((n_spec, Bytes::copy_from_slice(&rest)));
    });
}

fn is_meta_fine(meta: Bytes) -> bool {
    let is_fine = |text: &Bytes| std::str::from_utf8(text).is_ok_and(is_text);
    let is_label_fine = |label: Bytes| {
        KnownLabel::decode(label)
            .is_ok_and(|KnownLabel { key, value }| !key.is_empty() && is_fine(&key) && is_fine(&value))
    };
    Meta::decode(meta).is_ok_and(|Meta { namespace, name, uid, labels, owner }| {
        let has_names = !namespace.is_empty() && !name.is_empty();
        has_names
            && [namespace, name, uid, owner].iter().all(is_fine)
            && labels.into_iter().all(is_label_fine)
    })
}
