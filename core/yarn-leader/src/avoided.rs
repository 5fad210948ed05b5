//! Where the next master of an application had better not go: nodes on which earlier ones failed.
//!
//! Masters are known to have been at a host and a port. Where several nodes have one host, their ports tell them apart.

use std::collections::BTreeSet;

use godel_core_yarn::{adapter::MASTER, ids::YarnApplicationId};
use godel_membership::node_failures::could_use;

use crate::{answers::LaunchNode, picture::YarnPicture};

/// Nodes that a master had better not go to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AvoidedNodes {
    /// By the hosts under which masters reach them.
    pub hosts: BTreeSet<String>,
    /// By their ports, where several have one host.
    pub ports: BTreeSet<String>,
}

/// What a master avoids that should go elsewhere than to these nodes, `host:port`, of all that start containers.
pub(crate) fn avoided(failed: &BTreeSet<&str>, nodes: impl Iterator<Item = LaunchNode>) -> AvoidedNodes {
    let mut avoided = AvoidedNodes::default();
    let (mut known, mut shared) = (BTreeSet::new(), BTreeSet::new());
    for node in nodes {
        if !known.insert(node.host.clone()) {
            shared.insert(node.host);
        }
    }
    for (host, port) in failed.iter().filter_map(|node| node.rsplit_once(':')) {
        if shared.contains(host) {
            avoided.ports.insert(port.to_owned());
        } else {
            avoided.hosts.insert(host.to_owned());
        }
    }
    avoided
}

/// Whether the master of an application could be started on a node beside these, `host:port`.
pub(crate) fn has_other_node(picture: &YarnPicture, id: YarnApplicationId, tried: &[&str]) -> bool {
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
        let AvoidedNodes { hosts, ports } = avoided(&failed.iter().copied().collect(), nodes.iter().cloned());
        let named = |(kind, names): (&str, BTreeSet<String>)| {
            let names: Vec<String> = names.into_iter().collect();
            (!names.is_empty()).then(|| format!("{kind} {}", names.join(",")))
        };
        [("host", hosts), ("port", ports)].into_iter().filter_map(named).collect()
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
