//! What people write: queues and priority classes, and the bands that follow from them.
//!
//! Shapes only. Whether a queue may be as written is `godel_queueing::check`'s, what it means for the order of
//! service `godel_queueing::Queues`'.

use std::{collections::BTreeMap, fmt};

use crate::demand::Pool;

/// The queue that always exists, with or without a record.
pub const DEFAULT_QUEUE: &str = "default";
/// Weight of a queue that names none.
pub const WEIGHT_DEFAULT: u32 = 1;
/// Largest weight. A share has 2^60 parts: a millionth of one still tells a billionth of the cluster from nothing.
pub const WEIGHT_MAX: u32 = 1_000_000;
/// Bounds of a priority, both ways.
pub const PRIORITY_MAX: i32 = 1_000_000_000;
/// Least priority of the band above all others.
pub const SYSTEM_PRIORITY: i32 = 1_000_000_000;
/// Least priority of the band of online units.
pub const ONLINE_PRIORITY: i32 = 1_000_000;

/// A queue as written.
///
/// Amounts are those of [`Resources`](crate::resources::Resources); devices count by their kind in thousandths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSpec {
    /// Path: labels with `.` between them.
    pub name: String,
    /// Chosen at its creation.
    pub uid: String,
    /// For selection.
    pub labels: BTreeMap<String, String>,
    /// Who runs it.
    pub owner: String,
    /// Guaranteed. A resource not named has no guarantee of its own.
    pub min: BTreeMap<String, i64>,
    /// Most that its running units and those below take. A resource not named is unlimited, 0 allows none.
    pub max: BTreeMap<String, i64>,
    /// Share among siblings.
    pub weight: u32,
    /// Order of its units.
    pub policy: QueuePolicy,
    /// Who may submit; empty: whoever may above, and everyone at the top.
    pub submit_owners: Vec<String>,
    /// Most running units of the queue and those below it; 0: no limit.
    pub max_running_units: u32,
    /// What owners weigh beside each other under [`QueuePolicy::FairShare`]; who is not named weighs 1.
    pub owner_weights: BTreeMap<String, u32>,
}

impl QueueSpec {
    /// A queue without limits, as `default` is without a record.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            uid: String::new(),
            labels: BTreeMap::new(),
            owner: String::new(),
            min: BTreeMap::new(),
            max: BTreeMap::new(),
            weight: WEIGHT_DEFAULT,
            policy: QueuePolicy::default(),
            submit_owners: Vec::new(),
            max_running_units: 0,
            owner_weights: BTreeMap::new(),
        }
    }
}

/// Path of the queue above; `None` at the top.
pub fn parent(path: &str) -> Option<&str> {
    path.rsplit_once('.').map(|(parent, _)| parent)
}

/// In which order the units of one queue are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QueuePolicy {
    /// Dispatched before first, then age.
    Fifo,
    /// Priority, one more for each 60 s waited; then as [`Self::Fifo`].
    #[default]
    Priority,
    /// The owner with the smallest dominant share first; of one owner as [`Self::Priority`].
    Drf,
    /// The owner with the smallest dominant share for its weight first, of equal ones the one with fewer running units for
    /// its weight; of one owner as [`Self::Priority`].
    FairShare,
}

impl QueuePolicy {
    /// Every policy.
    pub const ALL: [Self; 4] = [Self::Fifo, Self::Priority, Self::Drf, Self::FairShare];

    /// As shown and configured.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Priority => "priority",
            Self::Drf => "drf",
            Self::FairShare => "fair-share",
        }
    }

    /// Owners take turns.
    pub fn is_by_owner(self) -> bool {
        match self {
            Self::Fifo | Self::Priority => false,
            Self::Drf | Self::FairShare => true,
        }
    }
}

impl fmt::Display for QueuePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// First sort key over all queues, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Band {
    /// What the cluster itself needs.
    System,
    /// Somebody waits for it.
    Online,
    /// Nobody does.
    Batch,
    /// Of the best-effort pool.
    BestEffort,
}

impl Band {
    /// Every band, the best first.
    pub const ALL: [Self; 4] = [Self::System, Self::Online, Self::Batch, Self::BestEffort];

    /// The band of a unit.
    pub fn of(pool: Pool, priority: i32) -> Self {
        match (pool, priority) {
            (Pool::BestEffort, _) => Self::BestEffort,
            (Pool::Guaranteed, SYSTEM_PRIORITY..) => Self::System,
            (Pool::Guaranteed, ONLINE_PRIORITY..) => Self::Online,
            (Pool::Guaranteed, _) => Self::Batch,
        }
    }

    /// Place in [`Self::ALL`].
    pub fn idx(self) -> usize {
        self as usize
    }

    /// As shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Online => "online",
            Self::Batch => "batch",
            Self::BestEffort => "best-effort",
        }
    }
}

/// A priority by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityClass {
    /// A label.
    pub name: String,
    /// Priority of units without one of their own.
    pub value: i32,
    /// Its running units may be made to leave for others of higher rank.
    pub preemptible: bool,
    /// Free text.
    pub description: String,
}

#[cfg(test)]
mod tests {
    use crate::queue_spec::*;

    #[test]
    fn bands_follow_from_pool_and_priority() {
        for (pool, priority, band) in [
            (Pool::Guaranteed, i32::MAX, Band::System),
            (Pool::Guaranteed, 1_000_000_000, Band::System),
            (Pool::Guaranteed, 999_999_999, Band::Online),
            (Pool::Guaranteed, 1_000_000, Band::Online),
            (Pool::Guaranteed, 999_999, Band::Batch),
            (Pool::Guaranteed, 0, Band::Batch),
            (Pool::Guaranteed, -1_000_000, Band::Batch),
            (Pool::BestEffort, 1_000_000_000, Band::BestEffort),
        ] {
            assert_eq!(Band::of(pool, priority), band, "{pool:?} {priority}");
        }
        assert!(Band::ALL.iter().enumerate().all(|(idx, band)| band.idx() == idx));
        assert!(Band::ALL.is_sorted());
        assert_eq!(Band::ALL.map(Band::name), ["system", "online", "batch", "best-effort"]);
    }

    #[test]
    fn paths_have_parents() {
        assert_eq!(parent("prod"), None);
        assert_eq!(parent("prod.search.index"), Some("prod.search"));
    }
}
