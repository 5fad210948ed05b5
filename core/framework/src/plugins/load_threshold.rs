//! Filter `load-threshold`: a node of which much is used takes nothing new that asks for a node below a limit.
//!
//! Compared is the 95th percentile of the measured use of all running units (`docs/pools.md`). It is a measurement: what was
//! placed since is not in it, and nobody is preempted to lower it.

use godel_cluster::{Cluster, LoadShares, Unfit, room::SHARE_WHOLE};
use godel_domain::{decision::RejectionReason, ids::NodeId, node_load::MaxLoad};

use crate::{
    ask::{Ask, NodeAsk},
    point::{Filter, Plugin, RestsOn},
};

/// The plugin.
#[derive(Debug)]
pub struct LoadThreshold;

/// Most that may be used of cpu and memory, as shares.
#[derive(Clone, Copy, Debug)]
pub struct LoadLimits {
    cpu: i64,
    memory: i64,
}

impl LoadLimits {
    fn of(MaxLoad { cpu, memory }: MaxLoad) -> Self {
        let share = |percent: Option<u32>| {
            percent.map_or(SHARE_WHOLE, |percent| i64::from(percent) * SHARE_WHOLE / 100)
        };
        Self { cpu: share(cpu), memory: share(memory) }
    }

    #[inline]
    fn allow(self, used: &LoadShares) -> bool {
        used.cpu <= self.cpu && used.memory <= self.memory
    }
}

impl Plugin for LoadThreshold {
    const NAME: &'static str = "load-threshold";
    const DOC: &'static str = "Of the node no more is used than `max_load` says, by the 95th percentile over 5 minutes that its agent measures. A node of \
                               which no use is known passes. Nobody is preempted for that.";
}

impl Filter for LoadThreshold {
    const RESTS_ON: RestsOn = RestsOn::Anything;
    const REASONS: &'static [RejectionReason] = &[RejectionReason::LoadThreshold];
    type State = LoadLimits;

    fn prepare(&self, _cluster: &Cluster, ask: &Ask) -> Option<LoadLimits> {
        let max_load = ask.requirements().max_load;
        (!max_load.is_any()).then(|| LoadLimits::of(max_load))
    }

    #[inline]
    fn passes(limits: &LoadLimits, cluster: &Cluster, idx: usize) -> bool {
        cluster.load(idx).is_none_or(|load| limits.allow(&load.p95))
    }

    #[inline]
    fn check(&self, cluster: &Cluster, ask: NodeAsk<'_>, node: NodeId) -> Result<(), Unfit> {
        let max_load = ask.requirements.max_load;
        if max_load.is_any() { Ok(()) } else { check_load(cluster, max_load, node) }
    }
}

fn check_load(cluster: &Cluster, max_load: MaxLoad, node: NodeId) -> Result<(), Unfit> {
    let Some(load) = cluster.load(node.idx()) else { return Ok(()) };
    let limits = LoadLimits::of(max_load);
    if limits.allow(&load.p95) {
        return Ok(());
    }
    let (name, percent) =
        if load.p95.cpu > limits.cpu { ("cpu", max_load.cpu) } else { ("memory", max_load.memory) };
    let percent = percent.unwrap_or(100);
    Err(Unfit::Load { reason: format!("more than {percent} % of {name} is used") })
}
