//! `godel top`: what is used now.

use std::{cmp::Reverse, collections::BTreeMap};

use godel_base::resources;
use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::{self, Format, count, shown},
    user,
    views::{NetworkView, NodeUseView, UnitUseView},
};
use godel_proto::v1;

use crate::args::{
    split,
    top::{Sort, Top, TopNode, TopUnit},
};

pub(super) async fn run(client: &Client, top: Top, format: Format) -> Result<(), Failure> {
    match top {
        Top::Node(wanted) => nodes(client, &wanted, format).await,
        Top::Unit(wanted) => units(client, &wanted, format).await,
    }
}

async fn nodes(client: &Client, wanted: &TopNode, format: Format) -> Result<(), Failure> {
    let nodes = client.list_nodes(&wanted.selector).await?;
    let mut views: Vec<NodeUseView> = nodes.iter().map(NodeUseView::from).collect();
    if !wanted.names.is_empty() {
        find_all("node", &wanted.names, |name| views.iter().any(|view| view.node == *name))?;
        views.retain(|view| wanted.names.contains(&view.node));
    }
    match wanted.sort {
        // Nodes come in order of name.
        Sort::Name => {}
        Sort::Cpu => views.sort_by_key(|view| Reverse(view.used_of(resources::CPU))),
        Sort::Memory => views.sort_by_key(|view| Reverse(view.used_of(resources::MEMORY))),
    }
    print(format, views, wanted.limit, "node")
}

async fn units(client: &Client, wanted: &TopUnit, format: Format) -> Result<(), Failure> {
    let mut views = summed(&list_run_usage(client).await?, wanted.replicas);
    if let Some(namespace) = &wanted.namespace {
        views.retain(|view| split("default", &view.unit).0 == namespace);
    }
    if !wanted.names.is_empty() {
        let namespace = user::namespace(client, wanted.namespace.as_deref().unwrap_or_default()).await;
        let is = |name: &str, view: &UnitUseView| split(&namespace, name) == split("default", &view.unit);
        find_all("measured unit", &wanted.names, |name| views.iter().any(|view| is(name, view)))?;
        views.retain(|view| wanted.names.iter().any(|name| is(name, view)));
    }
    match wanted.sort {
        // As they are summed.
        Sort::Name => {}
        Sort::Cpu => views.sort_by_key(|view| Reverse(view.cpu_milli)),
        Sort::Memory => views.sort_by_key(|view| Reverse(view.memory)),
    }
    print(format, views, wanted.limit, "measured unit")
}

/// Every name is found, or all that are not are named.
fn find_all(what: &str, names: &[String], is_there: impl Fn(&String) -> bool) -> Result<(), Failure> {
    let missing = names.iter().filter(|name| !is_there(name));
    let missing: Vec<_> = missing.map(|name| format!("`{}`", shown(name))).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let failure = Failure::new(Code::NotFound, format!("no {what} {}", missing.join(", ")));
    Err(failure.hint("without names all of them are shown"))
}

fn print<V: output::View>(
    format: Format,
    mut views: Vec<V>,
    limit: usize,
    what: &str,
) -> Result<(), Failure> {
    let n_all = views.len();
    views.truncate(limit);
    output::print_list(format, &views, &format!("{what}s"))?;
    if views.len() < n_all {
        output::say(format!("{} of {}; --limit shows more", views.len(), count(n_all, what)));
    }
    Ok(())
}

/// What units or their replicas use, by name.
fn summed(nodes: &[v1::ListRunUsageResponse], by_replica: bool) -> Vec<UnitUseView> {
    let mut units: BTreeMap<(&str, Option<u32>), UnitUseView> = BTreeMap::new();
    for v1::ListRunUsageResponse { node, running, unit_names, .. } in nodes {
        for usage in running {
            let name = unit_names.get(&usage.unit_id).map_or("", String::as_str);
            // A unit whose record has just gone has no name.
            let name = name.strip_prefix("default/").unwrap_or(name);
            let ordinal = by_replica.then_some(usage.ordinal);
            let view = units.entry((name, ordinal)).or_insert_with(|| UnitUseView {
                unit: name.to_owned(),
                ordinal,
                node: if by_replica { node.clone() } else { String::new() },
                ..UnitUseView::default()
            });
            view.replicas += 1;
            view.cpu_milli += usage.cpu_milli;
            view.memory += usage.memory;
            view.device_milli += usage.device_milli;
            if let Some(network) = &usage.network {
                view.network.get_or_insert_default().add(NetworkView::from(network));
            }
            if let Some(bandwidth) = usage.memory_bandwidth {
                let sum = view.memory_bandwidth.get_or_insert_default();
                *sum = sum.saturating_add(bandwidth);
            }
        }
    }
    units.into_values().collect()
}

/// What running units use, node by node, where agents measure it.
async fn list_run_usage(client: &Client) -> Result<Vec<v1::ListRunUsageResponse>, Failure> {
    client
        .read(async || {
            let mut nodes = client.nodes();
            let mut stream = nodes.list_run_usage(v1::ListRunUsageRequest {}).await?.into_inner();
            let mut all = Vec::new();
            while let Some(node) = stream.message().await? {
                all.push(node);
            }
            Ok(all)
        })
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_of_all_nodes_are_summed() {
        let usage = |unit_id, ordinal, cpu_milli| v1::RunUsage {
            unit_id,
            ordinal,
            incarnation: 0,
            cpu_milli,
            memory: 10,
            device_milli: 0,
            network: Some(v1::NetworkRate { received: 3, sent: 4 }),
            memory_bandwidth: (ordinal > 0).then_some(7),
        };
        let node = |name: &str, running| v1::ListRunUsageResponse {
            node: name.to_owned(),
            running,
            unit_names: [(1, "default/web".to_owned()), (2, "team/web".to_owned())].into_iter().collect(),
            ..v1::ListRunUsageResponse::default()
        };
        let nodes = [node("a", vec![usage(1, 0, 100), usage(2, 0, 5)]), node("b", vec![usage(1, 1, 50)])];
        let shown = |by_replica| -> Vec<(String, Option<u32>, u32, i64, i64)> {
            let views = summed(&nodes, by_replica);
            let of =
                |view: UnitUseView| (view.unit, view.ordinal, view.replicas, view.cpu_milli, view.memory);
            views.into_iter().map(of).collect()
        };
        let of_all: Vec<_> =
            summed(&nodes, false).into_iter().map(|view| (view.network, view.memory_bandwidth)).collect();
        let network = |received, sent| Some(NetworkView { received, sent });
        assert_eq!(of_all, [(network(3, 4), None), (network(6, 8), Some(7))]);
        let web = || "web".to_owned();
        assert_eq!(shown(false), [("team/web".to_owned(), None, 1, 5, 10), (web(), None, 2, 150, 20)]);
        assert_eq!(shown(true)[1..], [(web(), Some(0), 1, 100, 10), (web(), Some(1), 1, 50, 10)]);
    }
}
