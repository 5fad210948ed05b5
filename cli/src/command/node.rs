//! `godel node`.

mod change;
mod drain;

use godel_core::quantity;
use godel_proto::v1;
use tonic::Response;

use crate::{
    args::node::Node,
    client::Client,
    exit::Failure,
    output::{self, Format, Paint, View as _},
    views::{NodeView, QuarantineView},
};

pub(super) async fn run(client: &Client, node: Node, format: Format) -> Result<(), Failure> {
    match node {
        Node::List { selector } => {
            let nodes = client.list_nodes(&selector).await?;
            let views: Vec<NodeView> = nodes.iter().map(NodeView::from).collect();
            output::print_list(format, &views, "nodes")
        }
        Node::Describe { name } => describe(client, &name, format).await,
        Node::Cordon(nodes) => change::cordon(client, nodes, true).await,
        Node::Uncordon(nodes) => change::cordon(client, nodes, false).await,
        Node::Drain(drain) => drain::run(client, drain).await,
        Node::Undrain(nodes) => change::undrain(client, nodes).await,
        Node::Label(changes) => change::label(client, changes).await,
        Node::Taint(changes) => change::taint(client, changes).await,
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
            let mut text = describe_text(&view, &answer.running_units, Paint::stdout());
            if let Some(quarantine) = &view.quarantine {
                text.push_str(&quarantine_text(quarantine, Paint::stdout()));
            }
            if let Some(drain) = view.drain {
                text.push_str(&drain::describe(client, view.node_id, drain, Paint::stdout()).await);
            }
            output::print(&text)
        }
    }
}

fn quarantine_text(quarantine: &QuarantineView, paint: Paint) -> String {
    let QuarantineView { since_ms, until_ms, reason } = quarantine;
    let (since, until) = (output::time(*since_ms), output::time(*until_ms));
    let heading = paint.bad("quarantined");
    format!("\n{heading}\n{reason}\nsince {since}, until {until} or `godel node uncordon`\n")
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
                    quantity::show_devices(i64::from(device.free_milli)),
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
