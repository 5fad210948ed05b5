//! The example of `docs/plugin-author.md` compiles and does what the text says.

use std::collections::BTreeMap;

use godel_base::ids::{NodeId, Revision};
use godel_cluster::Cluster;
use godel_domain::{
    demand::Pool,
    node::{NodeReport, NodeSpec},
    unit::Template,
};
use godel_framework::{ask::Ask, point::AnyFilter};

use crate::virtual_nodes::VirtualNodes;

#[allow(unreachable_pub, reason = "the example is as a file of the crate would be")]
mod virtual_nodes;

fn cluster(classes: &[&str]) -> Cluster {
    let mut cluster = Cluster::new();
    for (id, class) in (1..).map(NodeId).zip(classes) {
        let labels = BTreeMap::from([("node-class".to_owned(), (*class).to_owned())]);
        cluster.nodes_mut().put_report(NodeReport { id, ready: true, ..NodeReport::default() }, Revision(1));
        cluster.nodes_mut().put_spec(NodeSpec { id, labels, ..NodeSpec::default() }, Revision(1));
    }
    cluster
}

fn ask(cluster: &mut Cluster, class: Option<&str>) -> Ask {
    let node_selector = class.map(|class| ("node-class".to_owned(), class.to_owned())).into_iter().collect();
    Ask::new(cluster, &Template { node_selector, ..Template::default() }, Pool::Guaranteed)
}

#[test]
fn virtual_nodes_are_for_units_that_name_them() {
    let filter: &dyn AnyFilter = &VirtualNodes;
    let mut cluster = cluster(&["metal", "virtual"]);
    let plain = ask(&mut cluster, None);
    let gate = filter.prepare(&cluster, &plain).unwrap();
    let passes = [1, 2].map(|id| gate.passes(&cluster, NodeId(id).idx()));
    let checked = [1, 2].map(|id| filter.check(&cluster, plain.on_node(), NodeId(id)).is_ok());
    assert_eq!((passes, checked), ([true, false], [true, false]));
    let naming = ask(&mut cluster, Some("virtual"));
    assert!(filter.prepare(&cluster, &naming).is_none());
    assert_eq!(filter.check(&cluster, naming.on_node(), NodeId(2)), Ok(()));
}

#[test]
fn a_filter_that_concerns_no_node_is_left_out() {
    let mut cluster = cluster(&["metal", "metal"]);
    let plain = ask(&mut cluster, None);
    assert!(AnyFilter::prepare(&VirtualNodes, &cluster, &plain).is_none());
}

#[test]
fn the_document_shows_this_example() {
    let document = include_str!("../../../../docs/plugin-author.md");
    let example = include_str!("virtual_nodes.rs");
    assert!(
        document.contains(&format!("```rust\n{example}```\n")),
        "docs/plugin-author.md shows another text"
    );
    assert!(example.lines().count() <= 60);
}
