//! What people write: reservations. Shapes only.

use std::{collections::BTreeMap, hash::Hasher as _};

use rustc_hash::FxHasher;

use crate::demand::Demand;

/// A reservation as written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationSpec {
    /// A label, unique.
    pub name: String,
    /// Of the units that own it.
    pub namespace: String,
    /// Labels that a unit must have to own it, all of them; not empty.
    pub selector: BTreeMap<String, String>,
    /// How many running units it has room for.
    pub slots: u32,
    /// What each of them may take, of the guaranteed pool.
    pub demand: Demand,
    /// Labels that its nodes must have.
    pub node_selector: BTreeMap<String, String>,
    /// From then on it holds nothing, Unix milliseconds; `None`: it holds until it is deleted.
    pub expires_ms: Option<i64>,
    /// Free text.
    pub description: String,
}

impl ReservationSpec {
    /// It holds nothing any more.
    pub fn is_expired(&self, now_ms: i64) -> bool {
        self.expires_ms.is_some_and(|at| at <= now_ms)
    }

    /// Whether a unit with these marks owns it.
    pub fn is_marked(&self, marks: &[u64]) -> bool {
        let mut selector = self.selector.iter();
        !self.selector.is_empty() && selector.all(|label| marks.contains(&mark(&self.namespace, label)))
    }
}

/// The labels of a unit, as schedulers keep them: hashed, since most never matter. Should two be alike by accident, the
/// binder, which compares the labels themselves, refuses the slot.
pub fn marks(namespace: &str, labels: &BTreeMap<String, String>) -> impl Iterator<Item = u64> {
    labels.iter().map(move |label| mark(namespace, label))
}

fn mark(namespace: &str, (key, value): (&String, &String)) -> u64 {
    let mut hasher = FxHasher::default();
    for part in [namespace, key, value] {
        hasher.write(part.as_bytes());
        hasher.write_u8(0xff);
    }
    hasher.finish()
}
