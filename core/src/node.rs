//! What a node is and how it may be used.

use std::collections::BTreeMap;

use crate::{ids::NodeId, resources::Resources};

/// Written by administrators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSpec {
    /// Given at registration.
    pub id: NodeId,
    /// Unique name.
    pub name: String,
    /// Of this installation.
    pub uid: String,
    /// Win over the report's attributes.
    pub labels: BTreeMap<String, String>,
    /// No new placements.
    pub cordoned: bool,
    /// Refuse units that do not tolerate them.
    pub taints: Vec<Taint>,
    /// Its running units are to leave, and none comes.
    pub drain: Option<Drain>,
    /// Its agent refused what it was assigned.
    pub quarantine: Option<Quarantine>,
}

impl NodeSpec {
    /// Takes no new placements.
    pub fn is_closed(&self) -> bool {
        self.cordoned || self.drain.is_some() || self.quarantine.is_some()
    }
}

/// A node that gets nothing new for a while. What runs there goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quarantine {
    /// Unix milliseconds.
    pub since_ms: i64,
    /// It ends by itself then, Unix milliseconds.
    pub until_ms: i64,
    /// In words.
    pub reason: String,
}

/// A node that its running units are to leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drain {
    /// When it was asked for first, Unix milliseconds.
    pub since_ms: i64,
    /// From here on they go whatever their units lose by it, Unix milliseconds.
    pub deadline_ms: Option<i64>,
    /// Bound there when it was asked for first.
    pub running_units: u32,
}

impl Drain {
    /// Nothing is spared any more.
    pub fn is_overdue(&self, wall_ms: i64) -> bool {
        self.deadline_ms.is_some_and(|deadline| deadline <= wall_ms)
    }
}

/// Running units that a node takes unless its agent says otherwise: Kubernetes' 110 pods and some more would bind a large
/// node, and a thousand processes are what one agent starts, watches and reports on with ease.
pub const MAX_RUNNING_UNITS: u32 = 1_000;

/// Written by the agent's session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// The node.
    pub id: NodeId,
    /// What it has for running units.
    pub capacity: Resources,
    /// By index.
    pub devices: Vec<Device>,
    /// False while the session's lease is lost.
    pub ready: bool,
    /// Found by the agent.
    pub attributes: BTreeMap<String, String>,
    /// Most running units that it takes, whatever they ask for.
    pub max_running_units: u32,
}

impl Default for NodeReport {
    fn default() -> Self {
        Self {
            id: NodeId::default(),
            capacity: Resources::default(),
            devices: Vec::new(),
            ready: false,
            attributes: BTreeMap::new(),
            max_running_units: MAX_RUNNING_UNITS,
        }
    }
}

/// What best-effort running units may not have of a node, for the use of guaranteed ones. Written by state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeUsage {
    /// The node.
    pub id: NodeId,
    /// Smoothed use of guaranteed running units, and headroom: cpu and memory.
    pub reserved: Resources,
    /// Guaranteed running units bound after this count with their requests on top, commit time in Unix milliseconds.
    pub as_of_ms: i64,
}

/// One device of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// `gpu`.
    pub kind: String,
    /// For example `A10`.
    pub model: String,
    /// Nearest NUMA zone.
    pub numa_zone: u32,
}

/// Refuses units that do not tolerate it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Taint {
    /// Not empty.
    pub key: String,
    /// May be empty.
    pub value: String,
    /// How hard it refuses.
    pub effect: TaintEffect,
}

/// How hard a taint refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaintEffect {
    /// No new placement.
    NoSchedule,
    /// Only if nothing better fits.
    PreferNoSchedule,
}

/// Accepts taints.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Toleration {
    /// Empty: every key.
    pub key: String,
    /// `None`: every value.
    pub value: Option<String>,
    /// `None`: every effect.
    pub effect: Option<TaintEffect>,
}

impl Toleration {
    /// Whether it accepts `taint`.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        (self.key.is_empty() || self.key == taint.key)
            && self.value.as_ref().is_none_or(|value| *value == taint.value)
            && self.effect.is_none_or(|effect| effect == taint.effect)
    }
}
