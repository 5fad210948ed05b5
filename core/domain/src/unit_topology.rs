//! Where the running units of one unit, or of one of its task groups, go in relation to one another: in one domain, in groups of domains.
//!
//! Domains are as in [`crate::unit_affinity`]: all nodes with the same value of a label, or with the key
//! [`NODE`](crate::unit_affinity::NODE) each node.

/// Most preferred levels.
pub const N_LEVELS_MAX: usize = 8;

/// Where the running units of a unit, or of a task group, go in relation to one another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct UnitTopology {
    /// Topology key of which all running units are in one domain; empty: none is required.
    pub required: String,
    /// Topology keys of which all are in one domain if that is possible, the narrowest first.
    pub preferred: Vec<String>,
    /// Label of which all nodes have the same value; empty: nodes may differ.
    pub homogeneous: String,
    /// Groups of running units, each in one domain.
    pub segments: Option<Segments>,
}

/// Groups of running units, each in one domain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Segments {
    /// Running units with ordinals one after the other: so many are a segment. Of a unit they are counted from ordinal 0, of a task
    /// group from its first one.
    pub size: u32,
    /// Topology key.
    pub within: String,
}

impl UnitTopology {
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        let Self { required, preferred, homogeneous, segments } = self;
        required.is_empty() && preferred.is_empty() && homogeneous.is_empty() && segments.is_none()
    }
}

/// The topology of one task group, with what it takes to apply it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupTopology {
    /// Position of the task group in its unit.
    pub group: u16,
    /// What it says.
    pub topology: UnitTopology,
    /// Segments are counted from this ordinal.
    pub first: u32,
    /// The ordinals of the group, as half-open ranges.
    pub ordinals: Vec<(u32, u32)>,
}
