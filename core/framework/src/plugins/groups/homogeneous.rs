//! Grouper `homogeneous`: all nodes of a unit have the same value of one label.

use super::{OrderArgs, add_level, keys_of, merge_levels};
use crate::point::{Group, GroupInput, GroupLevel, GroupOrder, Plugin, Split};

/// The plugin.
#[derive(Debug)]
pub struct Homogeneous {
    order: GroupOrder,
}

impl Plugin for Homogeneous {
    const NAME: &'static str = "homogeneous";
    const DOC: &'static str = "One group for each value of the label in which all nodes of the unit have to be alike; this binds. Groups of `unit-topology` \
                               are split by the value.";
}

impl Group for Homogeneous {
    type Args = OrderArgs;
    const BINDS: bool = true;

    fn new(OrderArgs { order }: OrderArgs) -> Result<Self, String> {
        Ok(Self { order })
    }

    fn add_levels(&self, of: &GroupInput<'_>, levels: &mut Vec<GroupLevel>) {
        let Some(key) = of.keys.homogeneous else { return };
        for keys in levels.iter_mut().filter_map(keys_of) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        merge_levels(levels);
        if !levels.last().is_some_and(|last| last.is_binding) {
            add_level(
                levels,
                GroupLevel { split: Split::Alike(vec![key]), order: self.order, is_binding: true },
            );
        }
    }
}
