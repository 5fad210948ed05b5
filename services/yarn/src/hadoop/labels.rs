//! Labels and attributes of nodes for clients.
//!
//! A node has at most one label, that of its partition. An attribute `PREFIX/NAME` of godel has that prefix in YARN; one without a prefix has
//! `nm.yarn.io`, which YARN gives to what nodes say of themselves.

use std::collections::{BTreeMap, BTreeSet};

use godel_core_yarn_leader::YarnNodeReport;
use godel_hadoop::yarn::{
    AttributeToNodesProto, GetAttributesToNodesRequestProto, GetAttributesToNodesResponseProto,
    GetClusterNodeAttributesResponseProto, GetClusterNodeLabelsResponseProto, GetLabelsToNodesRequestProto,
    GetLabelsToNodesResponseProto, GetNodesToAttributesRequestProto, GetNodesToAttributesResponseProto,
    GetNodesToLabelsResponseProto, LabelsToNodeIdsProto, NodeAttributeInfoProto, NodeAttributeKeyProto,
    NodeAttributeProto, NodeAttributeTypeProto, NodeIdProto, NodeIdToLabelsProto, NodeLabelProto,
    NodeToAttributeValueProto, NodeToAttributesProto,
};

use super::ids;

const NODE_PREFIX: &str = "nm.yarn.io";

fn key(name: &str) -> NodeAttributeKeyProto {
    let (prefix, name) = name.split_once('/').unwrap_or((NODE_PREFIX, name));
    NodeAttributeKeyProto { attribute_prefix: Some(prefix.to_owned()), attribute_name: name.to_owned() }
}

fn attribute(name: &str, value: &str) -> NodeAttributeProto {
    NodeAttributeProto {
        attribute_key: key(name),
        attribute_type: Some(NodeAttributeTypeProto::String.into()),
        attribute_value: Some(value.to_owned()),
    }
}

/// Attributes of a node.
pub(super) fn attributes(node: &YarnNodeReport) -> Vec<NodeAttributeProto> {
    node.attributes.iter().map(|(name, value)| attribute(name, value)).collect()
}

fn id(node: &YarnNodeReport) -> NodeIdProto {
    ids::node_pb(&node.host, node.port)
}

fn by_label(nodes: &[YarnNodeReport]) -> BTreeMap<&str, Vec<NodeIdProto>> {
    let mut by_label: BTreeMap<&str, Vec<NodeIdProto>> = BTreeMap::new();
    for node in nodes.iter().filter(|node| !node.label.is_empty()) {
        by_label.entry(&node.label).or_default().push(id(node));
    }
    by_label
}

pub(super) fn cluster_labels(nodes: &[YarnNodeReport]) -> GetClusterNodeLabelsResponseProto {
    let labels = by_label(nodes);
    GetClusterNodeLabelsResponseProto {
        deprecated_node_labels: labels.keys().map(|label| (*label).to_owned()).collect(),
        node_labels: labels
            .keys()
            .map(|label| NodeLabelProto { name: Some((*label).to_owned()), is_exclusive: Some(true) })
            .collect(),
    }
}

pub(super) fn nodes_to_labels(nodes: &[YarnNodeReport]) -> GetNodesToLabelsResponseProto {
    let labelled = nodes.iter().filter(|node| !node.label.is_empty());
    let node_to_labels = labelled
        .map(|node| NodeIdToLabelsProto { node_id: Some(id(node)), node_labels: vec![node.label.clone()] })
        .collect();
    GetNodesToLabelsResponseProto { node_to_labels }
}

pub(super) fn labels_to_nodes(
    nodes: &[YarnNodeReport],
    asked: &GetLabelsToNodesRequestProto,
) -> GetLabelsToNodesResponseProto {
    let is_asked =
        |label: &str| asked.node_labels.is_empty() || asked.node_labels.iter().any(|asked| asked == label);
    let labels = by_label(nodes).into_iter().filter(|(label, _)| is_asked(label));
    let labels_to_nodes =
        labels.map(|(label, node_id)| LabelsToNodeIdsProto { node_labels: Some(label.to_owned()), node_id });
    GetLabelsToNodesResponseProto { labels_to_nodes: labels_to_nodes.collect() }
}

pub(super) fn cluster_attributes(nodes: &[YarnNodeReport]) -> GetClusterNodeAttributesResponseProto {
    let names: BTreeSet<&String> = nodes.iter().flat_map(|node| node.attributes.keys()).collect();
    let node_attributes = names
        .into_iter()
        .map(|name| NodeAttributeInfoProto {
            attribute_key: key(name),
            attribute_type: NodeAttributeTypeProto::String.into(),
        })
        .collect();
    GetClusterNodeAttributesResponseProto { node_attributes }
}

pub(super) fn attributes_to_nodes(
    nodes: &[YarnNodeReport],
    asked: &GetAttributesToNodesRequestProto,
) -> GetAttributesToNodesResponseProto {
    let is_asked = |name: &str| {
        let key = key(name);
        let is_same = |asked: &NodeAttributeKeyProto| {
            (asked.attribute_prefix(), &asked.attribute_name) == (key.attribute_prefix(), &key.attribute_name)
        };
        asked.node_attributes.is_empty() || asked.node_attributes.iter().any(is_same)
    };
    let mut by_name: BTreeMap<&str, Vec<NodeToAttributeValueProto>> = BTreeMap::new();
    for node in nodes {
        for (name, value) in node.attributes.iter().filter(|(name, _)| is_asked(name)) {
            let valued =
                NodeToAttributeValueProto { hostname: node.host.clone(), attribute_value: value.clone() };
            by_name.entry(name).or_default().push(valued);
        }
    }
    let attributes_to_nodes = by_name
        .into_iter()
        .map(|(name, node_value_map)| AttributeToNodesProto { node_attribute: key(name), node_value_map })
        .collect();
    GetAttributesToNodesResponseProto { attributes_to_nodes }
}

pub(super) fn nodes_to_attributes(
    nodes: &[YarnNodeReport],
    asked: &GetNodesToAttributesRequestProto,
) -> GetNodesToAttributesResponseProto {
    let is_asked = |host: &String| asked.hostnames.is_empty() || asked.hostnames.contains(host);
    let nodes_to_attributes = nodes
        .iter()
        .filter(|node| is_asked(&node.host))
        .map(|node| NodeToAttributesProto {
            node: Some(node.host.clone()),
            node_attributes: attributes(node),
        })
        .collect();
    GetNodesToAttributesResponseProto { nodes_to_attributes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::samples::node;

    #[test]
    fn nodes_are_found_by_label_and_attribute() {
        let mut nodes = vec![node("n1"), node("n2")];
        nodes[0].label = "fast".to_owned();
        nodes[0].attributes.insert("godel.dev/yarn-port".to_owned(), "1".to_owned());
        nodes[1].attributes.insert("os".to_owned(), "linux".to_owned());
        assert_eq!(cluster_labels(&nodes).deprecated_node_labels, ["fast"]);
        assert_eq!(nodes_to_labels(&nodes).node_to_labels.len(), 1);
        let asked = |label: &str| GetLabelsToNodesRequestProto { node_labels: vec![label.to_owned()] };
        assert_eq!(labels_to_nodes(&nodes, &asked("fast")).labels_to_nodes[0].node_id, [id(&nodes[0])]);
        assert!(labels_to_nodes(&nodes, &asked("slow")).labels_to_nodes.is_empty());
        assert_eq!(cluster_attributes(&nodes).node_attributes.len(), 2);
        let one = GetAttributesToNodesRequestProto { node_attributes: vec![key("os")] };
        let found = attributes_to_nodes(&nodes, &one).attributes_to_nodes;
        assert_eq!((found.len(), found[0].node_value_map[0].hostname.as_str()), (1, "n2"));
        assert_eq!(found[0].node_attribute.attribute_prefix(), NODE_PREFIX);
        let of_n1 = GetNodesToAttributesRequestProto { hostnames: vec!["n1".to_owned()] };
        let found = nodes_to_attributes(&nodes, &of_n1).nodes_to_attributes;
        assert_eq!(found[0].node_attributes[0].attribute_key.attribute_prefix(), "godel.dev");
        assert_eq!(found.len(), 1);
    }
}
