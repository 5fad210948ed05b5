//! Grouper `resource-bucket`: nodes by the part that is free of the dominant resource of what goes together.
//!
//! The dominant resource is the one of whose whole in the cluster the replicas take the greatest part (Ghodsi et al., "Dominant Resource
//! Fairness", NSDI '11), devices included. The part of it that is free on a node, from 0 to 1, is cut into equal intervals, and nodes
//! of one interval are one group.

use godel_cluster::{
    Cluster, ShapeId,
    devices::{DeviceAsk, WHOLE},
    room::SHARE_WHOLE,
    shapes::COUNT,
};
use serde::{Deserialize, Serialize};

use crate::{
    args::{ArgField, PluginArgs},
    point::{Group, GroupInput, GroupLevel, GroupOrder, Plugin, Split},
};

/// Most buckets: as many as the domains of a level in which placing is tried.
const N_BUCKETS_MAX: usize = 8;

/// The plugin.
#[derive(Debug)]
pub struct ResourceBucket {
    args: BucketArgs,
}

/// Arguments of `resource-bucket`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BucketArgs {
    /// Number of buckets.
    pub buckets: usize,
    /// The bucket that is tried first.
    pub first: BucketEnd,
}

/// An end of the row of buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BucketEnd {
    /// Nodes with the least free.
    #[default]
    Fullest,
    /// Nodes with the most free.
    Emptiest,
}

impl Default for BucketArgs {
    fn default() -> Self {
        Self { buckets: 4, first: BucketEnd::default() }
    }
}

impl PluginArgs for BucketArgs {
    const FIELDS: &'static [ArgField] = &[
        ArgField {
            name: "buckets",
            kind: "whole number from 2 to 8",
            doc: "Into how many buckets the nodes are split; empty ones are passed over.",
        },
        ArgField {
            name: "first",
            kind: "`fullest` or `emptiest`",
            doc: "Which end is tried first: `fullest` keeps nearly empty nodes for large work, `emptiest` spreads.",
        },
    ];
}

impl Plugin for ResourceBucket {
    const NAME: &'static str = "resource-bucket";
    const DOC: &'static str = "One group for each of a few buckets of nodes, by the free part of the resource of which the replicas take the greatest part \
                               of the cluster. Replicas that go together are placed within one bucket if one holds them, or else anywhere; what comes \
                               later goes anywhere. It leaves out units with required topology keys, segments, task groups with a topology of their own, \
                               or recommended nodes. No profile has it unless it names it, because each first try then looks at all nodes.";
}

impl Group for ResourceBucket {
    type Args = BucketArgs;
    const BINDS: bool = false;
    const IS_FOR_ALL: bool = true;

    fn new(args: BucketArgs) -> Result<Self, String> {
        if !(2..=N_BUCKETS_MAX).contains(&args.buckets) {
            return Err(format!("`buckets`: {} is not allowed; it is 2 to {N_BUCKETS_MAX}", args.buckets));
        }
        Ok(Self { args })
    }

    fn add_levels(&self, of: &GroupInput<'_>, levels: &mut Vec<GroupLevel>) {
        if of.is_plain && !of.keys.is_required() {
            let split = Split::Made(Self::NAME);
            levels.push(GroupLevel { split, order: GroupOrder::Made, is_binding: false });
        }
    }

    fn make_groups(&self, of: &GroupInput<'_>) -> Vec<Vec<u32>> {
        let Some(dominant) = Dominant::of(of) else { return Vec::new() };
        let mut buckets = vec![Vec::new(); self.args.buckets];
        for idx in usable(of.cluster) {
            if let Some(part) = dominant.free_part(of.cluster, idx) {
                buckets[bucket_of(part, self.args.buckets)].extend(u32::try_from(idx));
            }
        }
        if self.args.first == BucketEnd::Emptiest {
            buckets.reverse();
        }
        buckets.retain(|bucket| !bucket.is_empty());
        buckets
    }
}

/// The bucket of a free part in parts of [`SHARE_WHOLE`].
fn bucket_of(part: i64, n_buckets: usize) -> usize {
    let part = usize::try_from(part).unwrap_or(0);
    let whole = usize::try_from(SHARE_WHOLE).unwrap_or(usize::MAX);
    (part * n_buckets / whole).min(n_buckets - 1)
}

fn usable(cluster: &Cluster) -> impl Iterator<Item = usize> {
    (0..cluster.free().n_indices()).filter(|idx| cluster.nodes().is_usable(*idx))
}

/// The resource of which replicas take the greatest part of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dominant {
    /// An amount, in the room of the pool of a shape.
    Amount(ShapeId, u8),
    /// The devices that serve a request of a shape.
    Devices(ShapeId, usize),
}

impl Dominant {
    /// Returns the dominant resource; `None` if nothing is asked for of which some node has any. `O(nodes × resources asked for)`.
    fn of(of: &GroupInput<'_>) -> Option<Self> {
        let shapes = of.cluster.catalogue().shapes();
        let mut best: Option<(i128, i128, Self)> = None;
        for (shape, _) in of.wanted {
            let asked = shapes.get(*shape);
            let amounts = asked.asks.iter().map(|(id, _)| *id).filter(|id| *id != COUNT);
            let amounts = amounts.map(|id| Self::Amount(*shape, id));
            let devices = (0..asked.devices.len()).map(|at| Self::Devices(*shape, at));
            for one in amounts.chain(devices) {
                let (taken, whole) = (one.asked(of), one.whole(of.cluster));
                let is_more = |(most, of_whole, _): &(i128, i128, Self)| {
                    taken.saturating_mul(*of_whole) > most.saturating_mul(whole)
                };
                if whole > 0 && best.as_ref().is_none_or(is_more) {
                    best = Some((taken, whole, one));
                }
            }
        }
        best.map(|(_, _, dominant)| dominant)
    }

    /// How much of it is asked for together.
    fn asked(self, of: &GroupInput<'_>) -> i128 {
        let one = |shape: ShapeId| match self {
            Self::Amount(_, id) => {
                let asks = of.cluster.catalogue().shape(shape).asks.iter();
                asks.filter(|(known, _)| *known == id).map(|(_, amount)| i128::from(*amount)).sum::<i128>()
            }
            Self::Devices(known, at) if known == shape => {
                let ask = &of.cluster.catalogue().shape(shape).devices[at];
                i128::from(ask.count) * i128::from(ask.milli)
            }
            Self::Devices(..) => 0,
        };
        of.wanted
            .iter()
            .map(|(shape, n)| one(*shape).saturating_mul(i128::from(*n)))
            .fold(0, i128::saturating_add)
    }

    /// How much of it usable nodes have.
    fn whole(self, cluster: &Cluster) -> i128 {
        usable(cluster).map(|idx| i128::from(self.on_node(cluster, idx).1)).sum()
    }

    /// Which part of it is free on a node, in parts of [`SHARE_WHOLE`]; `None`: the node has none of it.
    fn free_part(self, cluster: &Cluster, idx: usize) -> Option<i64> {
        let (free, whole) = self.on_node(cluster, idx);
        let part =
            (i128::from(free.max(0)) * i128::from(SHARE_WHOLE)).checked_div(i128::from(whole.max(0)))?;
        i64::try_from(part).ok()
    }

    /// What is free of it on a node, and what the node has of it.
    fn on_node(self, cluster: &Cluster, idx: usize) -> (i64, i64) {
        match self {
            Self::Amount(shape, id) => {
                let (room, id) = (cluster.free().room(shape), usize::from(id));
                (room.free(idx)[id], room.allocatable(idx)[id])
            }
            Self::Devices(shape, at) => {
                devices_on(cluster, idx, &cluster.catalogue().shape(shape).devices[at])
            }
        }
    }
}

/// Thousandths of the devices of a node that serve a request: of those on which enough of one is left, and of all.
fn devices_on(cluster: &Cluster, idx: usize, ask: &DeviceAsk) -> (i64, i64) {
    let (devices, milli) = (cluster.free().devices(idx), ask.milli.min(WHOLE));
    let accepted = (0..devices.len()).filter(|device| ask.accepts(devices.classes[*device]));
    accepted.fold((0, 0), |(free, whole), device| {
        let left = devices.free(device);
        let serving = if left >= milli { i64::from(left) } else { 0 };
        (free + serving, whole + i64::from(WHOLE))
    })
}
