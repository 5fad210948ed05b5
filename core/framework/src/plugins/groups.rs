//! In which groups of nodes the first replicas of a unit are tried together, one file for each way to split the nodes.

use serde::{Deserialize, Serialize};

use crate::{
    args::{ArgField, PluginArgs},
    point::{GroupLevel, GroupOrder, Split},
};

pub mod homogeneous;
pub mod resource_bucket;
#[cfg(test)]
mod tests;
pub mod unit_topology;

/// Arguments of groupers by topology keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OrderArgs {
    /// The order in which the domains of a level are tried.
    pub order: GroupOrder,
}

impl PluginArgs for OrderArgs {
    const FIELDS: &'static [ArgField] = &[ArgField {
        name: "order",
        kind: "`rotating` or `free-capacity`",
        doc: "The order in which the domains of a level are tried. `rotating` starts with a domain that differs from unit to unit, because \
              schedulers that decide at the same time then seldom choose the same one. `free-capacity` starts with the domain whose free room \
              holds most of the replicas: fewer domains are tried, but schedulers choose alike, and each try looks at all nodes.",
    }];
}

/// Adds a level of topology keys behind others. One that equals the last level only makes it binding.
fn add_level(levels: &mut Vec<GroupLevel>, level: GroupLevel) {
    match levels.last_mut() {
        Some(last) if last.split == level.split => last.is_binding |= level.is_binding,
        _ => levels.push(level),
    }
}

/// Removes levels that equal the one before.
fn merge_levels(levels: &mut Vec<GroupLevel>) {
    for level in std::mem::take(levels) {
        add_level(levels, level);
    }
}

/// The keys of a level that is split by topology keys.
fn keys_of(level: &mut GroupLevel) -> Option<&mut Vec<usize>> {
    match &mut level.split {
        Split::Alike(keys) => Some(keys),
        Split::Made(_) => None,
    }
}
