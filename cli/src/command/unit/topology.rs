//! In which domains the running units of a unit are: what a topology has reached.

use std::collections::{BTreeMap, BTreeSet};

use godel_client::{client::Client, views::RunningUnitView};
use godel_domain::unit_affinity::NODE;
use godel_proto::v1;

use crate::command::node;

/// Most nodes that are asked for their labels.
const N_NODES_MAX: usize = 100;

/// Returns the domains of each level of a unit, the narrowest first, in words, then those of each task group that has a topology of its
/// own: `3 values of node, rack r7; workers: switch s2`. Empty: the unit has no topology, nothing runs, or the nodes are too many or
/// do not answer.
pub(super) async fn reached(client: &Client, spec: &v1::UnitSpec, running: &[RunningUnitView]) -> String {
    let has_own = spec.task_groups.iter().any(|group| group.topology.is_some());
    if spec.topology.is_none() && !has_own {
        return String::new();
    }
    let is_live = |one: &&RunningUnitView| {
        matches!(one.phase.as_str(), "Bound" | "Starting" | "Running") && !one.node.is_empty()
    };
    let live = running.iter().filter(is_live).map(|one| (one.task_group.as_str(), one.node.as_str()));
    let live: Vec<(&str, &str)> = live.collect();
    let names: BTreeSet<&str> = live.iter().map(|(_, node)| *node).collect();
    if names.is_empty() || names.len() > N_NODES_MAX {
        return String::new();
    }
    let mut labels: BTreeMap<&str, NodeLabels> = BTreeMap::new();
    for name in names {
        let Ok(answer) = node::get(client, name).await else { return String::new() };
        labels.insert(name, labels_of(answer.node.unwrap_or_default()));
    }
    all_words(spec, &live, &labels)
}

/// Labels of one node.
type NodeLabels = BTreeMap<String, String>;

/// The domains of a unit and of its task groups; `live`: task group and node of each live running unit.
fn all_words(spec: &v1::UnitSpec, live: &[(&str, &str)], labels: &BTreeMap<&str, NodeLabels>) -> String {
    let mut all: Vec<String> = spec.topology.iter().map(|topology| words(topology, labels)).collect();
    for group in &spec.task_groups {
        let Some(topology) = &group.topology else { continue };
        let of_group = live.iter().filter(|(of, _)| *of == group.name);
        let nodes: BTreeSet<&str> = of_group.map(|(_, node)| *node).collect();
        let labels = labels.iter().filter(|(name, _)| nodes.contains(*name));
        let labels: BTreeMap<&str, NodeLabels> = labels.map(|(name, of)| (*name, of.clone())).collect();
        if !labels.is_empty() {
            all.push(format!("{}: {}", group.name, words(topology, &labels)));
        }
    }
    all.join("; ")
}

/// An administrator's labels win over those that the agent has found.
fn labels_of(node: v1::Node) -> BTreeMap<String, String> {
    let mut labels: BTreeMap<String, String> =
        node.report.unwrap_or_default().attributes.into_iter().collect();
    labels.extend(node.spec.and_then(|spec| spec.meta).unwrap_or_default().labels);
    labels
}

fn words(topology: &v1::UnitTopology, labels: &BTreeMap<&str, NodeLabels>) -> String {
    let v1::UnitTopology { required, preferred, homogeneous, segments } = topology;
    let within = segments.as_ref().map(|segments| &segments.within);
    let keys = preferred.iter().chain(within).chain([required, homogeneous]);
    let mut shown: Vec<&str> = Vec::new();
    let mut words: Vec<String> = Vec::new();
    for key in keys.filter(|key| !key.is_empty()) {
        if shown.contains(&key.as_str()) {
            continue;
        }
        shown.push(key);
        let value = |(name, of): (&&str, &BTreeMap<String, String>)| match key.as_str() {
            NODE => Some((*name).to_owned()),
            key => of.get(key).cloned(),
        };
        let values: BTreeSet<Option<String>> = labels.iter().map(value).collect();
        words.push(match values.iter().collect::<Vec<_>>().as_slice() {
            [Some(value)] => format!("{key} {value}"),
            [None] => format!("no {key}"),
            several => format!("{} values of {key}", several.len()),
        });
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_says_whether_it_was_reached() {
        let node = |rack: &str, model: &str| -> BTreeMap<String, String> {
            [("rack", rack), ("model", model)].map(|(key, value)| (key.to_owned(), value.to_owned())).into()
        };
        let labels = BTreeMap::from([("n1", node("r7", "A")), ("n2", node("r7", "B"))]);
        let topology = v1::UnitTopology {
            required: "rack".to_owned(),
            preferred: vec![NODE.to_owned(), "rack".to_owned()],
            homogeneous: "model".to_owned(),
            segments: Some(v1::Segments { size: 2, within: "switch".to_owned() }),
        };
        assert_eq!(words(&topology, &labels), "2 values of node, rack r7, no switch, 2 values of model");
        let one = BTreeMap::from([("n1", node("r7", "A"))]);
        assert_eq!(words(&topology, &one), "node n1, rack r7, no switch, model A");
    }

    #[test]
    fn task_groups_follow_with_their_own_levels() {
        let labels_of = |rack: &str| -> NodeLabels { [("rack".to_owned(), rack.to_owned())].into() };
        let labels = BTreeMap::from([("n1", labels_of("r1")), ("n2", labels_of("r2"))]);
        let in_rack =
            || Some(v1::UnitTopology { required: "rack".to_owned(), ..v1::UnitTopology::default() });
        let group = |name: &str, topology| v1::TaskGroup {
            name: name.to_owned(),
            topology,
            ..v1::TaskGroup::default()
        };
        let task_groups =
            vec![group("a", in_rack()), group("b", in_rack()), group("c", None), group("d", in_rack())];
        let spec = v1::UnitSpec { task_groups, topology: in_rack(), ..v1::UnitSpec::default() };
        let said = all_words(&spec, &[("a", "n1"), ("b", "n2")], &labels);
        assert_eq!(said, "2 values of rack; a: rack r1; b: rack r2");
    }
}
