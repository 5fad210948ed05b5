//! The index of nodes by sub-cluster against the labels themselves.

use godel_base::ids::NodeId;

use super::*;

const PART: &str = "part";
const NAMES: [&str; 4] = ["a", "b", "c", ""];

#[derive(Clone, Debug)]
enum Step {
    /// Labels of an administrator: none, or one of the names.
    Spec(u32, Option<usize>),
    /// What the agent found.
    Report(u32, Option<usize>),
    Remove(u32),
    Reset,
}

fn step() -> impl Strategy<Value = Step> {
    let node = || 0..300u32;
    let name = || prop::option::of(0..NAMES.len());
    prop_oneof![
        6 => (node(), name()).prop_map(|(node, name)| Step::Spec(node, name)),
        6 => (node(), name()).prop_map(|(node, name)| Step::Report(node, name)),
        2 => node().prop_map(Step::Remove),
        1 => Just(Step::Reset),
    ]
}

fn labels(name: Option<usize>) -> BTreeMap<String, String> {
    name.map(|name| (PART.to_owned(), NAMES[name].to_owned())).into_iter().collect()
}

proptest! {
    #[test]
    fn located_nodes_are_those_with_the_label(steps in prop::collection::vec(step(), 1..80)) {
        let mut cluster = Cluster::new();
        cluster.nodes_mut().set_sub_cluster_key(PART);
        let d = cluster.catalogue_mut().sub_cluster("d");
        for step in &steps {
            match step {
                Step::Spec(node, name) => {
                    let spec = NodeSpec { id: NodeId(*node), labels: labels(*name), ..NodeSpec::default() };
                    cluster.nodes_mut().put_spec(spec, Revision(1));
                }
                Step::Report(node, name) => {
                    let report = NodeReport { id: NodeId(*node), attributes: labels(*name), ..NodeReport::default() };
                    cluster.nodes_mut().put_report(report, Revision(1));
                }
                Step::Remove(node) => cluster.nodes_mut().remove(NodeId(*node)),
                Step::Reset => cluster.reset(),
            }
        }
        let known: Vec<NodeId> = cluster.nodes().ids().collect();
        prop_assert_eq!(usize::try_from(cluster.nodes().count()), Ok(known.len()));
        let n_slots = u32::try_from(cluster.free().n_indices()).unwrap();
        for name in &NAMES[..3] {
            let id = cluster.catalogue_mut().sub_cluster(name);
            let naive = (0..n_slots).filter(|node| cluster.nodes().label(NodeId(*node), PART) == Some(name));
            let located: Vec<usize> = cluster.free().located(Some(cluster.catalogue().sub_clusters().blocks_of(id))).collect();
            prop_assert_eq!(&located, &naive.map(|node| node as usize).collect::<Vec<_>>());
            let of_known: Vec<NodeId> = cluster.nodes().located(Some(cluster.catalogue().sub_clusters().blocks_of(id))).collect();
            let naive = known.iter().copied().filter(|node| cluster.nodes().label(*node, PART) == Some(name));
            prop_assert_eq!(of_known, naive.collect::<Vec<_>>());
            let of_it: Vec<NodeId> =
                known.iter().copied().filter(|node| cluster.catalogue().sub_clusters().has(Some(id), *node)).collect();
            prop_assert_eq!(of_it, cluster.nodes().located(Some(cluster.catalogue().sub_clusters().blocks_of(id))).collect::<Vec<_>>());
        }
        prop_assert_eq!(cluster.free().located(Some(cluster.catalogue().sub_clusters().blocks_of(d))).count(), 0);
        prop_assert_eq!(cluster.free().located(None).count(), cluster.free().n_indices());
        prop_assert_eq!(cluster.nodes().located(None).collect::<Vec<_>>(), known);
    }
}
