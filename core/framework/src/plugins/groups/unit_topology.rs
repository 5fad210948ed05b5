//! Grouper `unit-topology`: domains of the topology keys that a unit prefers, the narrowest first, inside of the domain that it requires.

use super::{OrderArgs, add_level};
use crate::point::{Group, GroupInput, GroupLevel, GroupOrder, Plugin, Split};

/// The plugin.
#[derive(Debug)]
pub struct ByTopology {
    order: GroupOrder,
}

impl Plugin for ByTopology {
    const NAME: &'static str = "unit-topology";
    const DOC: &'static str = "One group for each domain of a topology key: the keys that the unit prefers one after the other, the narrowest first, \
                               and then the one that it requires, which binds. Domains of preferred keys are inside of one of the required key.";
}

impl Group for ByTopology {
    type Args = OrderArgs;
    const BINDS: bool = true;

    fn new(OrderArgs { order }: OrderArgs) -> Result<Self, String> {
        Ok(Self { order })
    }

    fn add_levels(&self, of: &GroupInput<'_>, levels: &mut Vec<GroupLevel>) {
        let required = of.keys.required;
        let level =
            |keys, is_binding| GroupLevel { split: Split::Alike(keys), order: self.order, is_binding };
        for key in &of.keys.preferred {
            let outer = required.filter(|outer| outer != key);
            add_level(levels, level([*key].into_iter().chain(outer).collect(), false));
        }
        if let Some(key) = required {
            add_level(levels, level(vec![key], true));
        }
    }
}
