//! Why a unit waits: a bounded summary of what the nodes lacked in its last try.

use std::{cmp::Reverse, collections::BTreeMap};

use godel_base::{ids::NodeId, quantity};
use godel_cluster::{Cluster, NodeBlocks, ShapeId, Unfit, devices::DeviceAsk, shrunk::frozen_words};
use godel_domain::refusals::{RefusalCount, Refusals};
use godel_framework::Ask;

/// Stands for the plugins of reasons that are not kept.
const OTHERS: &str = "others";
/// Reasons kept: the most frequent ones.
const N_REASONS_MAX: usize = 16;

/// Orders what the filters said, and finds the nearest miss among the located nodes.
pub fn summary(
    cluster: &Cluster,
    ask: &Ask,
    located: NodeBlocks<'_>,
    counts: BTreeMap<(&'static str, Unfit), u32>,
    nodes: u32,
) -> Refusals {
    let mut reasons: Vec<_> = counts
        .into_iter()
        .map(|((plugin, refusal), nodes)| RefusalCount {
            plugin: plugin.into(),
            reason: refusal.to_string(),
            nodes,
        })
        .collect();
    reasons.sort_by(|a, b| {
        (Reverse(a.nodes), &a.plugin, &a.reason).cmp(&(Reverse(b.nodes), &b.plugin, &b.reason))
    });
    cut(&mut reasons);
    Refusals { reasons, nearest_miss: nearest_miss(cluster, ask, located), nodes, attempts: 0 }
}

/// Keeps the first reasons. The last one then says how many there are besides, and of how many nodes.
fn cut(reasons: &mut Vec<RefusalCount>) {
    if reasons.len() <= N_REASONS_MAX {
        return;
    }
    let others = reasons.split_off(N_REASONS_MAX - 1);
    let nodes = others.iter().map(|one| one.nodes).fold(0, u32::saturating_add);
    let reason = format!("{} more reasons", others.len());
    reasons.push(RefusalCount { plugin: OTHERS.into(), reason, nodes });
}

/// Among the nodes that lack only room: the one that lacks least, measured in thousandths of what is asked,
/// summed over resources and devices. Ties go to the lower id.
fn nearest_miss(cluster: &Cluster, ask: &Ask, located: NodeBlocks<'_>) -> String {
    let open = |node: &NodeId| ask.admits(cluster, node.idx());
    let lack = |node: NodeId| Some((lack(cluster, ask.shape(), node)?, node));
    let nearest =
        cluster.nodes().located(located).filter(open).filter_map(lack).filter(|(lack, _)| *lack > 0).min();
    nearest.map_or_else(String::new, |(_, node)| words(cluster, ask.shape(), node))
}

/// `None` when the node has no device of an accepted model, or lacks a resource that no node has.
fn lack(cluster: &Cluster, id: ShapeId, node: NodeId) -> Option<i64> {
    let shape = cluster.catalogue().shape(id);
    if shape.unknown.is_some() {
        return None;
    }
    let free = cluster.free().room_of(shape).free(node.idx());
    let mut lack = 0;
    for (id, amount) in &shape.asks {
        let missing = (amount - free[usize::from(*id)].max(0)).max(0);
        lack += missing.saturating_mul(1000) / amount;
    }
    for ask in &shape.devices {
        let (asked, left) = device_lack(cluster, ask, node)?;
        lack += (asked - left).max(0) * 1000 / asked.max(1);
    }
    // What the node has, and has not where it is wanted, is the least that it can lack.
    if lack == 0 && !cluster.free().has_zones(id, node.idx()) {
        lack = 1;
    }
    Some(lack)
}

/// Devices asked for and free, or thousandths asked for and left on the emptiest one.
fn device_lack(cluster: &Cluster, ask: &DeviceAsk, node: NodeId) -> Option<(i64, i64)> {
    let devices = cluster.free().devices(node.idx());
    let (accepted, free) = devices.count(ask);
    if accepted == 0 {
        return None;
    }
    if ask.is_whole() {
        return Some((i64::from(ask.count), i64::from(free)));
    }
    let accepted = (0..devices.len()).filter(|idx| ask.accepts(devices.classes[*idx]));
    let left = accepted.map(|idx| devices.free(idx)).max().unwrap_or(0);
    Some((i64::from(ask.milli), i64::from(left.max(0))))
}

fn words(cluster: &Cluster, id: ShapeId, node: NodeId) -> String {
    let shape = cluster.catalogue().shape(id);
    let free = cluster.free().room_of(shape).free(node.idx());
    let mut lacks = Vec::new();
    for (id, amount) in &shape.asks {
        let left = free[usize::from(*id)].max(0);
        if left < *amount {
            let name = cluster.catalogue().resource_name(*id);
            let (left, asked) = (quantity::show(name, left), quantity::show(name, *amount));
            lacks.push(format!("{name} ({left} free of {asked} asked)"));
        }
    }
    for (ask, request) in shape.devices.iter().zip(&shape.demand.devices) {
        let Some((asked, left)) = device_lack(cluster, ask, node).filter(|(asked, left)| left < asked) else {
            continue;
        };
        let show =
            |amount: i64| if ask.is_whole() { amount.to_string() } else { quantity::show_devices(amount) };
        lacks.push(if cluster.free().devices(node.idx()).is_frozen(ask) {
            frozen_words(&request.kind)
        } else {
            format!("{} ({} free of {} asked)", request.kind, show(left), show(asked))
        });
    }
    let name = cluster.nodes().spec(node).map_or_else(|| node.to_string(), |spec| spec.name.clone());
    if let (true, Err(wrong)) = (lacks.is_empty(), cluster.free().fits_zones(id, node)) {
        return format!("{name}: {wrong}");
    }
    format!("{name} lacks {}", lacks.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_that_are_cut_are_counted() {
        let reasons = |n: usize| -> Vec<RefusalCount> {
            let one = |idx| RefusalCount {
                plugin: "taints".into(),
                reason: format!("taint t{idx} not tolerated"),
                nodes: 2,
            };
            (0..n).map(one).collect()
        };
        let of = |n: usize| {
            let mut found = reasons(n);
            cut(&mut found);
            found
        };
        assert_eq!(of(16), reasons(16));
        let found = of(20);
        let last = RefusalCount { plugin: "others".into(), reason: "5 more reasons".to_owned(), nodes: 10 };
        assert_eq!((&found[..15], &found[15]), (&reasons(20)[..15], &last));
    }
}
