//! Who submits or changes a unit.

use std::sync::Arc;

/// Who submits or changes a unit: as units note it, and as queues list it. By default nobody is judged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitCaller {
    /// `<role>/<name>`; empty: it is not judged.
    pub principal: Arc<str>,
    /// What lists of queues may call it besides the owner of the unit: the name of its principal, and the groups of that.
    pub names: Arc<[String]>,
}

impl UnitCaller {
    /// A caller whom no list of a queue names.
    pub fn new(principal: &str) -> Self {
        Self { principal: principal.into(), names: Arc::default() }
    }
}
