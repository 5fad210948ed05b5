//! Where the next master of an application had better not go: nodes on which earlier ones failed, as preferences of its task group.
//!
//! Masters are known to have been at a host and a port. Where several nodes have one host, their ports tell them apart.

use std::collections::BTreeSet;

use godel_core_yarn::{adapter::MASTER, ids::YarnApplicationId};
use godel_membership::node_failures::could_use;
use godel_proto::v1;

use crate::{
    launcher::LaunchNode,
    picture::Picture,
    unit::{HOST_ATTRIBUTE, PORT_ATTRIBUTE},
};

/// Weight of a preference, the greatest that there is.
const WEIGHT: u32 = 100;

/// What a master prefers that should go elsewhere than to these nodes, `host:port`, of all that start containers.
pub(crate) fn preferred(
    failed: &BTreeSet<&str>,
    nodes: impl Iterator<Item = LaunchNode>,
) -> Vec<v1::PreferredNodes> {
    let (mut hosts, mut ports) = (BTreeSet::new(), BTreeSet::new());
    let mut known = BTreeSet::new();
    let mut shared = BTreeSet::new();
    for node in nodes {
        if !known.insert(node.host.clone()) {
            shared.insert(node.host);
        }
    }
    for (host, port) in failed.iter().filter_map(|node| node.rsplit_once(':')) {
        let names = if shared.contains(host) { &mut ports } else { &mut hosts };
        names.insert(if shared.contains(host) { port } else { host }.to_owned());
    }
    let is_not = |key: &str, values: BTreeSet<String>| {
        let operator = v1::LabelOperator::NotIn.into();
        let values: Vec<String> = values.into_iter().collect();
        let term = v1::LabelExpression { key: key.to_owned(), operator, values };
        v1::PreferredNodes { weight: WEIGHT, nodes: Some(v1::NodeTerm { all_of: vec![term] }) }
    };
    let both = [(HOST_ATTRIBUTE, hosts), (PORT_ATTRIBUTE, ports)];
    both.into_iter()
        .filter(|(_, values)| !values.is_empty())
        .map(|(key, values)| is_not(key, values))
        .collect()
}

/// Whether the master of an application could be started on a node beside these, `host:port`.
pub(crate) fn has_other_node(picture: &Picture, id: YarnApplicationId, tried: &[&str]) -> bool {
    let record = picture.unit(id).map(|unit| &unit.record);
    let group = record.and_then(|record| record.spec.task_groups.get(record.group_of(MASTER)?));
    let Some(group) = group else { return false };
    picture.nodes.iter().any(|(id, node)| {
        let place = picture.launch_node(*id).map(|LaunchNode { host, port, .. }| format!("{host}:{port}"));
        let is_new = place.is_some_and(|place| !tried.contains(&&*place));
        let (Some(spec), Some(report), true) = (&node.spec, &node.report, is_new) else { return false };
        could_use(spec, report, &group.template)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: &str, port: u16) -> LaunchNode {
        LaunchNode { name: format!("{host}-{port}"), host: host.to_owned(), port }
    }

    fn shown(failed: &[&str], nodes: &[LaunchNode]) -> Vec<String> {
        let failed = failed.iter().copied().collect();
        let term = |of: v1::PreferredNodes| {
            let of = of.nodes.unwrap().all_of.remove(0);
            assert_eq!(of.operator(), v1::LabelOperator::NotIn);
            format!("{} {}", of.key.trim_start_matches("godel.dev/yarn-"), of.values.join(","))
        };
        preferred(&failed, nodes.iter().cloned()).into_iter().map(term).collect()
    }

    #[test]
    fn nodes_are_told_apart_by_their_hosts_or_else_by_their_ports() {
        let apart = [node("n1", 8041), node("n2", 8041), node("n3", 8041)];
        assert_eq!(shown(&["n1:8041", "n3:8041"], &apart), ["host n1,n3"]);
        let together = [node("h", 1), node("h", 2), node("n3", 3)];
        assert_eq!(shown(&["h:1", "n3:3"], &together), ["host n3", "port 1"]);
        assert_eq!(shown(&[], &apart), [""; 0]);
    }
}
