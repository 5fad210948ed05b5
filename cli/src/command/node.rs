//! `godel node`.

mod change;
mod drain;
mod volumes;
mod zones;

pub(super) use change::{give_notice, update};
pub(super) use drain::until_empty;

use godel_base::quantity;
use godel_client::{
    client::Client,
    exit::Failure,
    output::{self, Format, Paint, are, count, fields, shown},
    views::{self, ConflictView, NodeView, NoticeView, QuarantineView, ZoneView},
};
use godel_proto::v1;
use serde::Serialize;
use tonic::Response;

use crate::args::node::NodeVerb;

pub(super) async fn run(client: &Client, node: NodeVerb, format: Format) -> Result<(), Failure> {
    match node {
        NodeVerb::List { selector } => {
            let nodes = client.list_nodes(&selector).await?;
            output::print_views::<NodeView, _>(format, &nodes, "nodes")
        }
        NodeVerb::Describe { names } => describe(client, &names, format).await,
        NodeVerb::Cordon(nodes) => change::cordon(client, nodes, true, format).await,
        NodeVerb::Uncordon(nodes) => change::cordon(client, nodes, false, format).await,
        NodeVerb::Drain(drain) => drain::run(client, drain, format).await,
        NodeVerb::Notice(notice) => change::notice(client, notice, format).await,
        NodeVerb::Undrain(nodes) => change::undrain(client, nodes, format).await,
        NodeVerb::Label(changes) => change::label(client, changes, format).await,
        NodeVerb::Taint(changes) => change::taint(client, changes, format).await,
        NodeVerb::JoinToken(wanted) => super::identity::node_join_token(client, wanted, format).await,
        NodeVerb::ResumeEvictions => resume(client, format).await,
        NodeVerb::Delete { names } => change::delete(client, &names, format).await,
    }
}

/// Whether evictions were stopped, as JSON.
#[derive(Serialize)]
struct ResumedView {
    resumed: bool,
    nodes_not_ready: u32,
}

async fn resume(client: &Client, format: Format) -> Result<(), Failure> {
    let call =
        client.dispatch(async |mut dispatch| dispatch.resume_evictions(v1::ResumeEvictionsRequest {}).await);
    let v1::ResumeEvictionsResponse { resumed, nodes_not_ready } = call.await?;
    if matches!(format, Format::Json | Format::Yaml) {
        return output::print_value(format, &ResumedView { resumed, nodes_not_ready });
    }
    output::say(if resumed {
        let n_nodes = nodes_not_ready;
        let counts = output::one_or(n_nodes, "counts", "count");
        format!(
            "evictions continue: {} that {} not ready {counts} as lost",
            count(n_nodes, "node"),
            are(n_nodes)
        )
    } else {
        "evictions were not paused".to_owned()
    });
    Ok(())
}

pub(super) async fn get(client: &Client, name: &str) -> Result<v1::GetNodeResponse, Failure> {
    client
        .read(async || client.nodes().get_node(v1::GetNodeRequest { name: name.to_owned() }).await)
        .await
        .map(Response::into_inner)
}

/// A node, and what it says beside its view.
#[derive(Serialize)]
struct Described {
    #[serde(flatten)]
    view: NodeView,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    zones: Vec<ZoneView>,
    #[serde(skip)]
    running: Vec<v1::BoundRunningUnit>,
    #[serde(skip)]
    drain: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    volumes: Vec<volumes::VolumeView>,
}

async fn describe(client: &Client, names: &[String], format: Format) -> Result<(), Failure> {
    let described = super::describe_each(names, async |name| {
        let answer = get(client, &name).await.map_err(change::not_found)?;
        let node = answer.node.unwrap_or_default();
        let view = NodeView::from(&node);
        let zones = views::zones(&node.report.unwrap_or_default(), &answer.running_units, &node.zone_loads);
        let drain = match view.drain {
            Some(drain) if matches!(format, Format::Table | Format::Wide) => {
                drain::describe(client, view.node_id, drain, Paint::stdout()).await
            }
            _ => String::new(),
        };
        let volumes = volumes::views(answer.volumes);
        Ok(Described { view, zones, running: answer.running_units, drain, volumes })
    });
    super::print_described(
        format,
        "node",
        described.await,
        |Described { view, zones, running, drain, volumes }| {
            let mut text = describe_text(view, running, Paint::stdout());
            text.push_str(&zones::text(zones, &view.devices, Paint::stdout()));
            if let Some(conflict) = &view.conflict {
                text.push_str(&conflict_text(conflict, Paint::stdout()));
            }
            text.push_str(&trouble_text(view, Paint::stdout()));
            if let Some(quarantine) = &view.quarantine {
                text.push_str(&quarantine_text(quarantine, Paint::stdout()));
            }
            if let Some(since_ms) = view.identity_expired_since_ms {
                text.push_str(&expired_text(since_ms, Paint::stdout()));
            }
            if let Some(notice) = &view.notice {
                text.push_str(&notice_text(notice, Paint::stdout()));
            }
            text.push_str(&taints_text(view, Paint::stdout()));
            text.push_str(&volumes::text(volumes));
            text.push_str(drain);
            text
        },
    )
}

/// What the agent of a node says that it cannot do.
fn trouble_text(view: &NodeView, paint: Paint) -> String {
    let mut text = String::new();
    for (heading, why) in [("starts nothing", &view.trouble), ("runs no images", &view.images_trouble)] {
        if !why.is_empty() {
            text.push_str(&format!("\n{}\n{}\n", paint.bad(heading), shown(why)));
        }
    }
    text
}

fn quarantine_text(quarantine: &QuarantineView, paint: Paint) -> String {
    let QuarantineView { since_ms, until_ms, reason } = quarantine;
    let (since, until) = (output::time(*since_ms), output::time(*until_ms));
    let heading = paint.bad("quarantined");
    let reason = shown(reason);
    format!("\n{heading}\n{reason}\nsince {since}, until {until} or `godel node uncordon`\n")
}

fn expired_text(since_ms: i64, paint: Paint) -> String {
    format!(
        "\n{}\nthe certificate of its agent has expired: the node gets no new placements until the agent has renewed it. The agent keeps trying; its log says \
         why it fails\nsince {}\n",
        paint.bad("identity expired"),
        output::time(since_ms)
    )
}

fn conflict_text(conflict: &ConflictView, paint: Paint) -> String {
    let ConflictView { first_ms, last_ms, attempts, address, uid, .. } = conflict;
    let (first, last) = (output::time(*first_ms), output::time(*last_ms));
    let from = if address.is_empty() { "an unknown address" } else { address };
    let attempts = count(*attempts, "attempt");
    format!(
        "\n{}\n{}\n{attempts} since {first}, the last {last} from {} with uid {}; all were refused\n",
        paint.bad("conflict"),
        conflict.advice(),
        shown(from),
        shown(uid)
    )
}

fn notice_text(notice: &NoticeView, paint: Paint) -> String {
    let NoticeView { since_ms, deadline_ms, reason } = notice;
    let (since, until) = (output::time(*since_ms), output::time(*deadline_ms));
    let heading = paint.bad("notice");
    let reason = shown(reason);
    format!(
        "\n{heading}\n{reason}\nsince {since}: the node may be gone after {until}, and is drained until then\n"
    )
}

/// Taints that evict, and since when.
fn taints_text(view: &NodeView, paint: Paint) -> String {
    let mut text = String::new();
    for (taint, since_ms) in &view.evicting_taints {
        let since = output::time(*since_ms);
        text.push_str(&format!(
            "\n{}\nby {} since {since}: running units that do not tolerate it are evicted\n",
            paint.bad("evicts"),
            shown(taint)
        ));
    }
    text
}

fn describe_text(view: &NodeView, running: &[v1::BoundRunningUnit], paint: Paint) -> String {
    let mut text = fields(9, view);
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
    if let Some(load) = view.load_line() {
        text.push_str(&format!("\n{}\n{}\n", paint.bold("measured use"), shown(&load)));
    }
    if !view.bandwidth.is_empty() {
        text.push_str(&format!("\n{}\n", paint.bold("bandwidths")));
        view.bandwidth.iter().for_each(|care| text.push_str(&format!("{}\n", shown(&care.line()))));
    }
    let held = view.held_lines();
    if !held.is_empty() {
        text.push_str(&format!("\n{}\n", paint.bold("held")));
        held.iter().for_each(|line| text.push_str(&format!("{}\n", shown(line))));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expired_identity_is_shown_with_what_it_means() {
        let spec = v1::NodeSpec { identity_expired_since_ms: Some(1), ..v1::NodeSpec::default() };
        let view = NodeView::from(&v1::Node { spec: Some(spec), ..v1::Node::default() });
        assert_eq!(
            (view.status.as_str(), view.identity_expired_since_ms),
            ("NotReady,IdentityExpired", Some(1))
        );
        let text = expired_text(1, Paint::plain());
        assert!(text.starts_with("\nidentity expired\n") && text.contains("no new placements"), "{text}");
    }

    #[test]
    fn a_description_shows_what_came_from_elsewhere_as_it_is() {
        let nasty = || output::NASTY.to_owned();
        let node = v1::Node {
            report: Some(v1::NodeReport {
                devices: vec![v1::Device { kind: nasty(), model: nasty(), numa_zone: 0, details: None }],
                ..v1::NodeReport::default()
            }),
            held_running_units: 1,
            held: Some(v1::Resources { amounts: [(nasty(), 1)].into_iter().collect() }),
            slots: vec![v1::NodeSlots { reservation: nasty(), slots: 1, used: 0 }],
            ..v1::Node::default()
        };
        let running = [v1::BoundRunningUnit { unit_name: nasty(), ..v1::BoundRunningUnit::default() }];
        let text = describe_text(&NodeView::from(&node), &running, Paint::plain());
        output::assert_shown(&text);
        let quarantine = QuarantineView { since_ms: 1, until_ms: 2, reason: nasty() };
        let text = quarantine_text(&quarantine, Paint::plain());
        output::assert_shown(&text);
        assert_eq!(text.lines().count(), 4, "{text}");
        let text = notice_text(&NoticeView { since_ms: 1, deadline_ms: 2, reason: nasty() }, Paint::plain());
        output::assert_shown(&text);
        assert_eq!(text.lines().count(), 4, "{text}");
        let (kind, address, uid) = ("other-installation", nasty(), nasty());
        let conflict = ConflictView { kind, first_ms: 1, last_ms: 2, attempts: 3, address, uid };
        let text = conflict_text(&conflict, Paint::plain());
        output::assert_shown(&text);
        assert!(text.contains("3 attempts since ") && text.lines().count() == 4, "{text}");
    }
}
