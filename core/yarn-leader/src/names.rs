//! How the units of applications and their task groups are named, and what of an ask can be read back from them.
//!
//! The name of a group says the priority and the execution type of its containers; what they take and their label stand in its template, and
//! where they are wanted is only hashed into the name: after a start, no more of it is needed.

use std::hash::{Hash as _, Hasher};

use godel_core_yarn::{
    adapter::OPPORTUNISTIC,
    asks::{AskGroup, ExecutionType, wishes::AskWish},
    ids::YarnApplicationId,
};
use godel_domain::unit::TaskGroup;

/// Rack of nodes that do not say theirs, as YARN has it.
pub const DEFAULT_RACK: &str = "/default-rack";
/// What is added to the name of an application for the unit of its opportunistic containers.
const OPPORTUNISTIC_UNIT: &str = "-opportunistic";
/// The task group of the master.
pub const MASTER_GROUP: &str = "master";
/// The attribute of nodes that start containers of YARN: their port.
pub const PORT_ATTRIBUTE: &str = "godel.dev/yarn-port";
/// The attribute with the host under which masters reach the node.
pub const HOST_ATTRIBUTE: &str = "godel.dev/yarn-host";
/// FNV-1a: the same in every version and on every machine, as names have to be.
struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// Name of the unit of an application.
pub fn unit_name(id: YarnApplicationId) -> String {
    id.to_string().replace('_', "-")
}

/// Name of the unit of an application that has an ordinal.
pub fn unit_name_of(id: YarnApplicationId, ordinal: u32) -> String {
    let name = unit_name(id);
    if ordinal >= OPPORTUNISTIC { name + OPPORTUNISTIC_UNIT } else { name }
}

/// The application that a unit is of, by its name, and whether the unit has the opportunistic containers.
pub(crate) fn application_of(name: &str) -> Option<(YarnApplicationId, bool)> {
    let main = name.strip_suffix(OPPORTUNISTIC_UNIT);
    let id = main.unwrap_or(name).replace('-', "_").parse().ok()?;
    Some((id, main.is_some()))
}

/// Name of the task group of containers that are alike.
pub fn group_name(group: &AskGroup, wish: &AskWish) -> String {
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    group.capability.hash(&mut hasher);
    group.label.hash(&mut hasher);
    wish.hash(&mut hasher);
    let execution = match group.execution {
        ExecutionType::Guaranteed => 'g',
        ExecutionType::Opportunistic => 'o',
    };
    let sign = if group.priority < 0 { "m" } else { "" };
    format!("{execution}{sign}{}-{:016x}", group.priority.unsigned_abs(), hasher.finish())
}

/// What the containers of a task group were asked for; `None`: it has no containers.
pub fn asked_of(group: &TaskGroup, label_key: &str) -> Option<AskGroup> {
    let (head, _) = group.name.split_once('-')?;
    let (execution, priority) = match head.split_at_checked(1)? {
        ("g", priority) => (ExecutionType::Guaranteed, priority),
        ("o", priority) => (ExecutionType::Opportunistic, priority),
        _ => return None,
    };
    let priority = match priority.strip_prefix('m') {
        Some(below) => -below.parse::<i64>().ok()?,
        None => priority.parse::<i64>().ok()?,
    };
    let template = &group.template;
    let group = AskGroup {
        priority: i32::try_from(priority).ok()?,
        execution,
        capability: template.demand.amounts().map(|(name, amount)| (name.to_owned(), amount)).collect(),
        label: template.node_selector.get(label_key).cloned().unwrap_or_default(),
    };
    Some(group)
}

#[cfg(test)]
mod tests {
    use godel_domain::names;

    use super::*;

    #[test]
    fn units_are_named_after_applications() {
        let id: YarnApplicationId = "application_1700000000000_0042".parse().unwrap();
        assert_eq!(unit_name(id), "application-1700000000000-0042");
        assert_eq!(application_of(&unit_name_of(id, 7)), Some((id, false)));
        assert_eq!(application_of(&unit_name_of(id, OPPORTUNISTIC)), Some((id, true)));
        assert_eq!(application_of("web-opportunistic"), None);
        // As the change log reads them.
        assert_eq!(names::yarn_application(&unit_name(id)), Some(id.to_string()));
        for other in
            [&unit_name_of(id, OPPORTUNISTIC), "application-7", "application-7-x", "application--1", "web"]
        {
            assert_eq!(names::yarn_application(other), None, "{other}");
        }
    }
}
