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
/// Amounts are those of [`Resources`](godel_base::resources::Resources); devices count by their kind in thousandths.
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
    /// Who may submit: owners, principals and groups; empty: whoever may above, and everyone at the top.
    pub submit_owners: Vec<String>,
    /// Most running units of the queue and those below it; 0: no limit.
    pub max_running_units: u32,
    /// What owners weigh beside each other under [`QueuePolicy::FairShare`]; who is not named weighs 1.
    pub owner_weights: BTreeMap<String, u32>,
    /// Most that running units of any one owner in the queue and those below it take. A resource not named is unlimited.
    pub max_per_owner: BTreeMap<String, i64>,
    /// Share of each maximum that application masters may take together, in thousandths; 0: no limit of their own.
    pub am_share_milli: u32,
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
            max_per_owner: BTreeMap::new(),
            am_share_milli: 0,
        }
    }

    /// Whether bindings in the queue or below it may be refused by a limit of this queue.
    pub fn has_limits(&self) -> bool {
        !self.max.is_empty() || self.max_running_units > 0 || !self.max_per_owner.is_empty()
    }

    /// Most that application masters in the queue and below it take together, by resource; nothing without a share.
    pub fn max_of_masters(&self) -> impl Iterator<Item = (&str, i64)> {
        let share = i128::from(self.am_share_milli);
        let part = move |max: i64| i64::try_from(i128::from(max) * share / 1_000).unwrap_or(i64::MAX);
        let named = self.max.iter().filter(move |_| share > 0);
        named.map(move |(name, max)| (name.as_str(), part(*max)))
    }
}

/// Whether a list of those who may submit lets a unit of `owner` in, which is submitted by somebody with these names. An empty list lets everybody in.
pub fn lets_submit(list: &[String], owner: &str, names: &[String]) -> bool {
    list.is_empty() || list.iter().any(|one| one == owner || names.contains(one))
}

/// A share as people write it, `0.1`, in thousandths.
///
/// # Errors
/// It is no number from 0.001 to 1 with at most three decimals.
pub fn parse_share(text: &str) -> Result<u32, String> {
    let wrong = || format!("`{text}` is no share: a number from 0.001 to 1, as `0.1`");
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || fraction.len() > 3 {
        return Err(wrong());
    }
    let fraction: u32 = format!("{fraction:0<3}").parse().map_err(|_| wrong())?;
    let whole: u32 = whole.parse().map_err(|_| wrong())?;
    let milli = whole.saturating_mul(1_000).saturating_add(fraction);
    (1..=1_000).contains(&milli).then_some(milli).ok_or_else(wrong)
}

/// A share in thousandths as people write it.
pub fn show_share(milli: u32) -> String {
    let text = format!("{}.{:03}", milli / 1_000, milli % 1_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
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
    fn shares_are_read_and_shown_in_thousandths() {
        for (text, milli) in [("0.1", 100), ("1", 1_000), ("1.000", 1_000), ("0.001", 1), ("0.25", 250)] {
            assert_eq!(parse_share(text), Ok(milli), "{text}");
            assert_eq!(parse_share(&show_share(milli)), Ok(milli), "{text}");
        }
        assert_eq!((show_share(100), show_share(1_000)), ("0.1".to_owned(), "1".to_owned()));
        for text in ["", "0", "1.001", ".5", "0.0001", "-1", "10%", "1.", "4294967296"] {
            assert!(parse_share(text).unwrap_err().contains("from 0.001 to 1"), "{text}");
        }
    }

    #[test]
    fn masters_get_their_share_of_each_maximum() {
        let max = [("cpu".to_owned(), 10_001), ("memory".to_owned(), i64::MAX)].into();
        let mut spec = QueueSpec { max, ..QueueSpec::new("a") };
        assert_eq!(spec.max_of_masters().count(), 0);
        spec.am_share_milli = 100;
        let most: Vec<_> = spec.max_of_masters().collect();
        assert_eq!(most, [("cpu", 1_000), ("memory", i64::MAX / 10)]);
    }

    #[test]
    fn paths_have_parents() {
        assert_eq!(parent("prod"), None);
        assert_eq!(parent("prod.search.index"), Some("prod.search"));
    }
}
