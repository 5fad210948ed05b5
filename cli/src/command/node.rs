//! `godel node`.

use godel_proto::v1;
use tonic::Response;

use crate::{
    args::node::{Node, Nodes},
    client::Client,
    exit::Failure,
    output::{self, Format, Paint, View as _},
    views::NodeView,
};

pub(super) async fn run(client: &Client, node: Node, format: Format) -> Result<(), Failure> {
    match node {
        Node::List { selector } => {
            let nodes = client.list_nodes(&selector).await?;
            let views: Vec<NodeView> = nodes.iter().map(NodeView::from).collect();
            output::print_list(format, &views, "nodes")
        }
        Node::Describe { name } => describe(client, &name, format).await,
        Node::Cordon(nodes) => cordon(client, nodes, true).await,
        Node::Uncordon(nodes) => cordon(client, nodes, false).await,
        Node::Label { name, changes } => update(client, label_request(name, &changes)?).await,
        Node::Taint { name, changes } => update(client, taint_request(name, &changes)?).await,
        Node::ResumeEvictions => resume(client).await,
        Node::Delete { name } => {
            let request = v1::DeleteNodeRequest { name: name.clone() };
            let mut nodes = client.nodes();
            let answer = nodes.delete_node(request).await.map_err(|status| client.explain(status))?;
            output::say(format!("node {name} deleted at revision {}", answer.into_inner().revision));
            Ok(())
        }
    }
}

async fn resume(client: &Client) -> Result<(), Failure> {
    let call = client.dispatch(|mut dispatch| async move {
        dispatch.resume_evictions(v1::ResumeEvictionsRequest {}).await
    });
    let v1::ResumeEvictionsResponse { resumed, nodes_not_ready } = call.await?.into_inner();
    output::say(if resumed {
        format!("evictions go on: {nodes_not_ready} nodes that are not ready count as lost")
    } else {
        "evictions were not paused".to_owned()
    });
    Ok(())
}

async fn get(client: &Client, name: &str) -> Result<v1::GetNodeResponse, Failure> {
    client
        .read(|| {
            let (mut nodes, request) = (client.nodes(), v1::GetNodeRequest { name: name.to_owned() });
            async move { nodes.get_node(request).await }
        })
        .await
        .map(Response::into_inner)
}

async fn describe(client: &Client, name: &str, format: Format) -> Result<(), Failure> {
    let answer = get(client, name).await?;
    let view = NodeView::from(&answer.node.unwrap_or_default());
    match format {
        Format::Json | Format::Yaml => output::print_value(format, &view),
        Format::Table | Format::Wide => {
            output::print(&describe_text(&view, &answer.running_units, Paint::stdout()))
        }
    }
}

fn describe_text(view: &NodeView, running: &[v1::BoundRunningUnit], paint: Paint) -> String {
    let titles = NodeView::HEADERS.iter().chain(NodeView::WIDE);
    let cells = view.row().into_iter().chain(view.wide());
    let mut text = String::new();
    for (title, cell) in titles.zip(cells) {
        text.push_str(&format!(
            "{:<9} {}\n",
            title.to_lowercase(),
            if cell.is_empty() { "-" } else { &cell }
        ));
    }
    if !view.devices.is_empty() {
        let rows: Vec<Vec<String>> = view
            .devices
            .iter()
            .map(|device| {
                vec![
                    device.index.to_string(),
                    device.kind.clone(),
                    device.model.clone(),
                    format!("{}/1000", device.free_milli),
                ]
            })
            .collect();
        text.push_str(&format!("\n{}\n", paint.bold("devices")));
        text.push_str(&output::columns(&["INDEX", "KIND", "MODEL", "FREE"], &rows));
    }
    if !running.is_empty() {
        let rows: Vec<Vec<String>> = running
            .iter()
            .map(|run| {
                let devices: Vec<String> = (0..64u32)
                    .filter(|idx| run.device_mask >> idx & 1 == 1)
                    .map(|idx| idx.to_string())
                    .collect();
                let phase = run.phase().as_str_name().trim_start_matches("RUN_PHASE_").to_lowercase();
                vec![format!("{}/{}", run.unit_name, run.ordinal), phase, devices.join(",")]
            })
            .collect();
        text.push_str(&format!("\n{}\n", paint.bold("running units")));
        text.push_str(&output::columns(&["UNIT", "PHASE", "DEVICES"], &rows));
    }
    text
}

async fn cordon(client: &Client, nodes: Nodes, cordoned: bool) -> Result<(), Failure> {
    let mut names = nodes.names;
    if !nodes.selector.is_empty() {
        let selected = client.list_nodes(&nodes.selector).await?;
        names.extend(selected.iter().map(|node| NodeView::from(node).name));
    }
    if names.is_empty() {
        return Err(Failure::usage("no node is named, and no label selects one"));
    }
    for name in names {
        let request =
            v1::UpdateNodeRequest { name, cordoned: Some(cordoned), ..v1::UpdateNodeRequest::default() };
        update(client, request).await?;
    }
    Ok(())
}

async fn update(client: &Client, request: v1::UpdateNodeRequest) -> Result<(), Failure> {
    let name = request.name.clone();
    let answer = client
        .read(|| {
            // The same change made twice is the same.
            let (mut nodes, request) = (client.nodes(), request.clone());
            async move { nodes.update_node(request).await }
        })
        .await?
        .into_inner();
    let full = answer.spec.and_then(|spec| spec.meta).map_or(name, |meta| meta.name);
    output::say(format!("node {full} updated at revision {}", answer.revision));
    Ok(())
}

fn label_request(name: String, changes: &[String]) -> Result<v1::UpdateNodeRequest, Failure> {
    let mut request = v1::UpdateNodeRequest { name, ..v1::UpdateNodeRequest::default() };
    for change in changes {
        match (change.split_once('='), change.strip_suffix('-')) {
            (Some((key, value)), _) if !key.is_empty() => {
                request.set_labels.insert(key.to_owned(), value.to_owned());
            }
            (None, Some(key)) if !key.is_empty() => request.remove_labels.push(key.to_owned()),
            _ => return Err(Failure::usage(format!("`{change}` is neither key=value nor key-"))),
        }
    }
    Ok(request)
}

fn taint_request(name: String, changes: &[String]) -> Result<v1::UpdateNodeRequest, Failure> {
    let mut request = v1::UpdateNodeRequest { name, ..v1::UpdateNodeRequest::default() };
    for change in changes {
        if let Some(key) = change.strip_suffix('-').filter(|key| !key.is_empty() && !key.contains(':')) {
            request.remove_taints.push(key.to_owned());
            continue;
        }
        let bad = || {
            Failure::usage(format!(
                "`{change}` is neither key[=value]:no-schedule, key[=value]:prefer-no-schedule, nor key-"
            ))
        };
        let (taint, effect) = change.rsplit_once(':').ok_or_else(bad)?;
        let effect = match effect {
            "no-schedule" | "NoSchedule" => v1::TaintEffect::NoSchedule,
            "prefer-no-schedule" | "PreferNoSchedule" => v1::TaintEffect::PreferNoSchedule,
            _ => return Err(bad()),
        };
        let (key, value) = taint.split_once('=').unwrap_or((taint, ""));
        if key.is_empty() {
            return Err(bad());
        }
        request.set_taints.push(v1::Taint {
            key: key.to_owned(),
            value: value.to_owned(),
            effect: effect.into(),
        });
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn labels_are_set_and_removed() {
        let request = label_request("n".to_owned(), &words(&["zone=a", "empty=", "old-"])).unwrap();
        assert_eq!(request.set_labels["zone"], "a");
        assert_eq!(request.set_labels["empty"], "");
        assert_eq!(request.remove_labels, ["old"]);
        for bad in ["zone", "=a", "-"] {
            assert!(label_request("n".to_owned(), &words(&[bad])).is_err(), "{bad}");
        }
    }

    #[test]
    fn taints_are_set_and_removed() {
        let changes = words(&["gpu=only:no-schedule", "spot:prefer-no-schedule", "old-"]);
        let request = taint_request("n".to_owned(), &changes).unwrap();
        assert_eq!(request.set_taints[0].value, "only");
        assert_eq!(request.set_taints[1].effect(), v1::TaintEffect::PreferNoSchedule);
        assert_eq!(request.remove_taints, ["old"]);
        for bad in ["gpu", "gpu=only:never", ":no-schedule", "-"] {
            assert!(taint_request("n".to_owned(), &words(&[bad])).is_err(), "{bad}");
        }
    }
}
