//! Filter `load-threshold`: a node of which much is used takes nothing new that asks for a node below a limit.
//!
//! Compared is the 95th percentile of the measured use of all running units (`docs/pools.md`). It is a measurement: what was
//! placed since is not in it, and nobody is preempted to lower it.

use godel_base::ids::NodeId;
use godel_cluster::{Cluster, LoadLimits, ShapeId, Unfit};
use godel_domain::{decision::RejectionReason, node_load::MaxLoad};

use crate::{
    ask::{Ask, NodeAsk},
    point::{Filter, Plugin, RestsOn},
};

/// The plugin.
#[derive(Debug)]
pub struct LoadThreshold;

/// What is judged of each node.
#[derive(Clone, Copy, Debug)]
pub enum Judged {
    /// The node.
    Node(LoadLimits),
    /// The zones that a replica of this shape could be given.
    Zones(ShapeId),
}

/// Whether replicas of a shape are judged by their zones.
fn by_zones(cluster: &Cluster, shape: ShapeId) -> bool {
    cluster.catalogue().shape(shape).zone_limits.is_some()
}

impl Plugin for LoadThreshold {
    const NAME: &'static str = "load-threshold";
    const DOC: &'static str = "Of the node no more is used than `max_load` says, by the 95th percentile over 5 minutes that its agent measures. A node of \
                               which no use is known passes. A replica that is given zones (policies `restricted`, `single-zone` and \
                               `exclusive`) is judged by these, each by its own use, or by that of the node where it is not known. Nobody is \
                               preempted for that.";
}

impl Filter for LoadThreshold {
    const RESTS_ON: RestsOn = RestsOn::Anything;
    const REASONS: &'static [RejectionReason] = &[RejectionReason::LoadThreshold];
    type State = Judged;

    fn prepare(&self, cluster: &Cluster, ask: &Ask) -> Option<Judged> {
        let max_load = ask.requirements().max_load;
        if max_load.is_any() {
            return None;
        }
        let zones = by_zones(cluster, ask.shape()).then(|| Judged::Zones(ask.shape()));
        Some(zones.unwrap_or_else(|| Judged::Node(LoadLimits::of(max_load))))
    }

    #[inline]
    fn passes(judged: &Judged, cluster: &Cluster, idx: usize) -> bool {
        match judged {
            Judged::Node(limits) => cluster.nodes().load(idx).is_none_or(|load| limits.allow(&load.p95)),
            Judged::Zones(shape) => cluster.free().has_calm_zones(*shape, idx),
        }
    }

    #[inline]
    fn concerns(&self, _cluster: &Cluster, ask: &NodeAsk<'_>) -> bool {
        !ask.requirements.max_load.is_any()
    }

    #[inline]
    fn check(&self, cluster: &Cluster, ask: NodeAsk<'_>, node: NodeId) -> Result<(), Unfit> {
        let max_load = ask.requirements.max_load;
        if max_load.is_any() {
            Ok(())
        } else if by_zones(cluster, ask.shape) {
            check_zones(cluster, ask.shape, max_load, node)
        } else {
            check_load(cluster, max_load, node)
        }
    }
}

fn check_zones(cluster: &Cluster, shape: ShapeId, max_load: MaxLoad, node: NodeId) -> Result<(), Unfit> {
    if cluster.free().has_calm_zones(shape, node.idx()) {
        return Ok(());
    }
    let limits = [("cpu", max_load.cpu), ("memory", max_load.memory)];
    let limits = limits.into_iter().filter_map(|(name, percent)| Some((name, percent?)));
    let words: Vec<String> = limits.map(|(name, percent)| format!("{percent} % of {name}")).collect();
    Err(Unfit::Load {
        reason: format!("too few zones of which no more than {} is used", words.join(" and ")),
    })
}

fn check_load(cluster: &Cluster, max_load: MaxLoad, node: NodeId) -> Result<(), Unfit> {
    let Some(load) = cluster.nodes().load(node.idx()) else { return Ok(()) };
    let limits = LoadLimits::of(max_load);
    if limits.allow(&load.p95) {
        return Ok(());
    }
    let (name, percent) =
        if load.p95.cpu > limits.cpu { ("cpu", max_load.cpu) } else { ("memory", max_load.memory) };
    let percent = percent.unwrap_or(100);
    Err(Unfit::Load { reason: format!("more than {percent} % of {name} is used") })
}
