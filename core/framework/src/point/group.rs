//! The point of grouping: in which groups of nodes the first replicas of a unit are tried together, one group after the other.

use std::{cmp::Reverse, fmt};

use godel_base::ids::UnitId;
use godel_cluster::{Cluster, NodeGroups, ShapeId, TopologyKeys, TopologyLevel};
use serde::{Deserialize, Serialize};

use super::Plugin;
use crate::args::PluginArgs;

/// Splits nodes into groups, within which the first replicas of a unit, or of one of its task groups, are placed together. Levels are tried one
/// after the other, and of a level its groups: those that have no room for the replicas are passed over, and what is placed in a group that
/// does not take all of them is taken back.
pub trait Group: Plugin {
    /// Its arguments in a profile.
    type Args: PluginArgs;
    /// Its levels may bind: units require them, and the binder checks that. A profile that does not name the grouper has its binding levels
    /// all the same.
    const BINDS: bool;
    /// It splits nodes for units without topology keys as well.
    const IS_FOR_ALL: bool = false;

    /// Returns the plugin with arguments.
    ///
    /// # Errors
    /// What is wrong with them.
    fn new(args: Self::Args) -> Result<Self, String>;

    /// Adds its levels behind those of the groupers before it, or narrows these. Behind a binding level nothing is tried.
    fn add_levels(&self, of: &GroupInput<'_>, levels: &mut Vec<GroupLevel>);

    /// Returns the groups of a level that is [`Split::Made`], in the order in which they are tried: each as indices of nodes, ascending.
    /// This is asked when the turn of the level has come.
    fn make_groups(&self, _of: &GroupInput<'_>) -> Vec<Vec<u32>> {
        Vec::new()
    }
}

/// What is to be placed together.
#[derive(Clone, Copy, Debug)]
pub struct GroupInput<'a> {
    /// The cluster as it is now.
    pub cluster: &'a Cluster,
    /// The unit.
    pub unit: UnitId,
    /// The topology keys of the unit, or of one of its task groups.
    pub keys: &'a TopologyKeys,
    /// Nothing else says on which nodes its replicas are: neither segments, nor task groups with topology keys of their own, nor
    /// recommended nodes.
    pub is_plain: bool,
    /// What one replica asks for, and how many go together; of each task group.
    pub wanted: &'a [(ShapeId, u32)],
}

/// One way to split the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLevel {
    /// What tells the groups apart.
    pub split: Split,
    /// The order in which the groups are tried.
    pub order: GroupOrder,
    /// Replicas have to be in one group, which filters and the binder check.
    pub is_binding: bool,
}

/// What tells the groups of a level apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Split {
    /// Nodes that are alike in these topology keys are one group.
    Alike(TopologyLevel),
    /// The grouper of this name makes them.
    Made(&'static str),
}

/// The order in which the groups of a level are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupOrder {
    /// From a group on that differs from unit to unit: schedulers seldom choose the same at the same time.
    #[default]
    Rotating,
    /// The group whose free room holds most of the replicas first; those that are alike in this as [`Self::Rotating`].
    FreeCapacity,
    /// As the grouper has made them.
    #[serde(skip)]
    Made,
}

impl GroupOrder {
    /// Returns some groups of a level in the order in which they are tried. `O(nodes)` where their free room matters.
    pub fn sort(self, of: &GroupInput<'_>, groups: &NodeGroups, mut among: Vec<usize>) -> Vec<usize> {
        if self == Self::Made {
            return among;
        }
        let start = usize::try_from(of.unit.0).unwrap_or(0) % among.len().max(1);
        among.rotate_left(start);
        if self == Self::FreeCapacity {
            among.sort_by_cached_key(|group| Reverse(of.capacity(groups.nodes(*group))));
        }
        among
    }
}

impl GroupInput<'_> {
    /// Returns how many times the free room of some nodes holds what goes together, in thousandths, each task group by itself.
    fn capacity(&self, nodes: &[u32]) -> u64 {
        let usable =
            || nodes.iter().map(|node| *node as usize).filter(|idx| self.cluster.nodes().is_usable(*idx));
        let held = self.wanted.iter().map(|(shape, n)| {
            let fits =
                usable().map(|idx| u64::from(self.cluster.free().n_fit_together(*shape, idx, u32::MAX)));
            fits.sum::<u64>().saturating_mul(1_000) / u64::from(*n).max(1)
        });
        held.min().unwrap_or(0)
    }
}

/// A [`Group`] with its arguments.
pub trait AnyGrouper: fmt::Debug + Send + Sync {
    /// [`Plugin::NAME`].
    fn name(&self) -> &'static str;
    /// [`Group::IS_FOR_ALL`].
    fn is_for_all(&self) -> bool;
    /// [`Group::add_levels`].
    fn add_levels(&self, of: &GroupInput<'_>, levels: &mut Vec<GroupLevel>);
    /// [`Group::make_groups`].
    fn make_groups(&self, of: &GroupInput<'_>) -> Vec<Vec<u32>>;
}

impl<G: Group> AnyGrouper for G {
    fn name(&self) -> &'static str {
        G::NAME
    }

    fn is_for_all(&self) -> bool {
        G::IS_FOR_ALL
    }

    fn add_levels(&self, of: &GroupInput<'_>, levels: &mut Vec<GroupLevel>) {
        Group::add_levels(self, of, levels);
    }

    fn make_groups(&self, of: &GroupInput<'_>) -> Vec<Vec<u32>> {
        Group::make_groups(self, of)
    }
}
