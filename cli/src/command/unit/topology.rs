//! In which domains the running units of a unit are: what a topology has reached.

use std::collections::{BTreeMap, BTreeSet};

use godel_client::{client::Client, views::RunningUnitView};
use godel_domain::unit_affinity::NODE;
use godel_proto::v1;

use crate::command::node;

/// Most nodes that are asked for their labels.
const N_NODES_MAX: usize = 100;

/// Returns the domains of each level, the narrowest first, in words: `3 nodes, rack r7`; empty: nothing runs, or the nodes are
/// too many or do not answer.
pub(super) async fn reached(
    client: &Client,
    topology: &v1::UnitTopology,
    running: &[RunningUnitView],
) -> String {
    let live = running.iter().filter(|one| matches!(one.phase.as_str(), "Bound" | "Starting" | "Running"));
    let names: BTreeSet<&str> = live.map(|one| one.node.as_str()).filter(|name| !name.is_empty()).collect();
    if names.is_empty() || names.len() > N_NODES_MAX {
        return String::new();
    }
    let mut labels: BTreeMap<&str, BTreeMap<String, String>> = BTreeMap::new();
    for name in names {
        let Ok(answer) = node::get(client, name).await else { return String::new() };
        labels.insert(name, labels_of(answer.node.unwrap_or_default()));
    }
    words(topology, &labels)
}

/// An administrator's labels win over those that the agent has found.
fn labels_of(node: v1::Node) -> BTreeMap<String, String> {
    let mut labels: BTreeMap<String, String> =
        node.report.unwrap_or_default().attributes.into_iter().collect();
    labels.extend(node.spec.and_then(|spec| spec.meta).unwrap_or_default().labels);
    labels
}

fn words(topology: &v1::UnitTopology, labels: &BTreeMap<&str, BTreeMap<String, String>>) -> String {
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
}
