//! Why a unit waits: what the nodes lacked in its last try, as reports and queues carry it.

/// Why nodes refused a unit in its last try.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Most frequent first, then by plugin and reason; at most 16.
    pub reasons: Vec<RefusalCount>,
    /// The node that came nearest to fitting, in words; empty when none came near.
    pub nearest_miss: String,
    /// Nodes looked at.
    pub nodes: u32,
    /// Times the unit was tried.
    pub attempts: u32,
}

/// Nodes that one plugin refused for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalCount {
    /// For example `resources-fit`.
    pub plugin: &'static str,
    /// For example `insufficient cpu`.
    pub reason: String,
    /// How many.
    pub nodes: u32,
}
