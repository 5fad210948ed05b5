//! NodeService.

use std::collections::HashMap;

use godel_integration_tests::{cluster::Cluster, trace::resources};
use godel_proto::v1;
use tonic::Code::{Aborted, AlreadyExists, FailedPrecondition, InvalidArgument, NotFound};
use v1::session_request::Message;

use super::{Cases, UID, first, meta};

pub(super) async fn check(cluster: &Cluster, cases: &mut Cases) {
    register(cluster, cases).await;
    session(cluster, cases).await;
    read(cluster, cases).await;
    change(cluster, cases).await;
}

fn report() -> v1::NodeReport {
    v1::NodeReport { capacity: Some(resources(1000, 1024)), ready: true, ..Default::default() }
}

async fn register(cluster: &Cluster, cases: &mut Cases) {
    let mut nodes = cluster.api.nodes();
    let gpu = v1::Device { kind: "gpu".into(), model: "A10".into(), numa_zone: 0, details: None };
    let negative = v1::Resources { amounts: [("cpu".into(), -1)].into() };
    let many = v1::Resources { amounts: (0..33).map(|number| (format!("r{number}"), 1)).collect() };
    let with = |meta: v1::ObjectMeta, report: v1::NodeReport| v1::RegisterNodeRequest {
        meta: Some(meta),
        report: Some(report),
        ..v1::RegisterNodeRequest::default()
    };
    for (case, request, field) in [
        ("nothing", v1::RegisterNodeRequest::default(), "meta"),
        ("no name", with(meta("", UID), report()), "meta.name"),
        ("a bad name", with(meta("Not_A_Name", UID), report()), "meta.name"),
        ("a long name", with(meta(&"n".repeat(254), UID), report()), "meta.name"),
        ("no uid", with(meta("n", ""), report()), "meta.uid"),
        ("no report", v1::RegisterNodeRequest { report: None, ..with(meta("n", UID), report()) }, "report"),
        (
            "negative capacity",
            with(meta("n", UID), v1::NodeReport { capacity: Some(negative), ..report() }),
            "capacity",
        ),
        (
            "too many resources",
            with(meta("n", UID), v1::NodeReport { capacity: Some(many), ..report() }),
            "capacity",
        ),
        (
            "too many devices",
            with(meta("n", UID), v1::NodeReport { devices: vec![gpu.clone(); 65], ..report() }),
            "devices",
        ),
        (
            "a device of no kind",
            with(
                meta("n", UID),
                v1::NodeReport { devices: vec![v1::Device { kind: String::new(), ..gpu }], ..report() },
            ),
            "devices[0]",
        ),
    ] {
        let result = nodes.register_node(request).await;
        cases.refused(&format!("RegisterNode: {case}"), result, InvalidArgument, field);
    }
    let present = any_node(cluster).await;
    let result = nodes.register_node(with(meta(&present, UID), report())).await;
    cases.refused("RegisterNode: a name that lives under another uid", result, AlreadyExists, "");
}

async fn session(cluster: &Cluster, cases: &mut Cases) {
    let mut nodes = cluster.api.nodes();
    let open = |node_id, uid: &str, epoch| {
        Message::Open(v1::SessionOpen { node_id, uid: uid.into(), epoch, ..v1::SessionOpen::default() })
    };
    for (case, message, codes) in [
        ("an empty first message", None, &[InvalidArgument][..]),
        ("a heartbeat first", Some(Message::Heartbeat(v1::Heartbeat::default())), &[InvalidArgument]),
        ("a status first", Some(Message::Status(v1::RunStatusReport::default())), &[InvalidArgument]),
        ("an unknown node", Some(open(4_000_000, UID, 1)), &[NotFound]),
        ("another uid", Some(open(1, UID, 1)), &[FailedPrecondition, InvalidArgument, NotFound]),
        ("node 0", Some(open(0, UID, 1)), &[NotFound, InvalidArgument]),
    ] {
        let request = tokio_stream::once(v1::SessionRequest { message });
        let result = first(nodes.session(request).await).await;
        cases.refused_by(&format!("Session: {case}"), result, codes, "");
    }
    let result = first(nodes.session(tokio_stream::empty()).await).await;
    let is_calm = !matches!(result, Ok(Some(_)));
    cases.holds("Session: no message at all", is_calm, &result);
}

async fn read(cluster: &Cluster, cases: &mut Cases) {
    let mut nodes = cluster.api.nodes();
    for (case, name, codes) in [
        ("no name", "", &[InvalidArgument][..]),
        ("an unknown name", "nobody", &[NotFound]),
        ("an ambiguous prefix", "openb", &[InvalidArgument, FailedPrecondition]),
    ] {
        let result = nodes.get_node(v1::GetNodeRequest { name: name.into() }).await;
        cases.refused_by(&format!("GetNode: {case}"), result, codes, "");
    }
    for (case, page_size, token, field) in
        [("a large page", 1001, "", "page_size"), ("a bad token", 10, "not-a-token", "page_token")]
    {
        let request = v1::ListNodesRequest { page_size, page_token: token.into(), ..Default::default() };
        cases.refused(&format!("ListNodes: {case}"), nodes.list_nodes(request).await, InvalidArgument, field);
    }
}

async fn change(cluster: &Cluster, cases: &mut Cases) {
    let mut nodes = cluster.api.nodes();
    let name = any_node(cluster).await;
    let update = || v1::UpdateNodeRequest { name: name.clone(), ..Default::default() };
    let taint =
        |key: &str, effect| v1::Taint { key: key.into(), value: String::new(), effect, added_time_ms: 0 };
    let no_schedule = v1::TaintEffect::NoSchedule.into();
    for (case, request, code, field) in [
        ("no name", v1::UpdateNodeRequest::default(), InvalidArgument, "name"),
        ("an unknown node", v1::UpdateNodeRequest { name: "nobody".into(), ..update() }, NotFound, ""),
        (
            "another revision",
            v1::UpdateNodeRequest { expected_revision: 1, cordoned: Some(true), ..update() },
            Aborted,
            "",
        ),
        (
            "a taint without an effect",
            v1::UpdateNodeRequest { set_taints: vec![taint("k", 0)], ..update() },
            InvalidArgument,
            "set_taints[0].effect",
        ),
        (
            "an unknown effect",
            v1::UpdateNodeRequest { set_taints: vec![taint("k", 99)], ..update() },
            InvalidArgument,
            "set_taints[0].effect",
        ),
        (
            "a taint without a key",
            v1::UpdateNodeRequest { set_taints: vec![taint("", no_schedule)], ..update() },
            InvalidArgument,
            "set_taints[0].key",
        ),
        (
            "a label without a key",
            v1::UpdateNodeRequest { set_labels: HashMap::from([(String::new(), "x".into())]), ..update() },
            InvalidArgument,
            "set_labels",
        ),
    ] {
        cases.refused(&format!("UpdateNode: {case}"), nodes.update_node(request).await, code, field);
    }
    let notice = |name: &str, reason: &str, deadline_in_ms| v1::GiveNoticeRequest {
        name: name.to_owned(),
        reason: reason.to_owned(),
        deadline_in_ms,
    };
    for (case, request, code, field) in [
        ("no name", notice("", "spot", Some(1)), InvalidArgument, "name"),
        ("no reason", notice("nobody", "", Some(1)), InvalidArgument, "reason"),
        ("no deadline", notice("nobody", "spot", None), InvalidArgument, "deadline_in_ms"),
        ("a reason of several lines", notice("nobody", "a\nb", Some(1)), InvalidArgument, "reason"),
        ("an unknown node", notice("nobody", "spot", Some(1)), NotFound, ""),
    ] {
        cases.refused(&format!("GiveNotice: {case}"), nodes.give_notice(request).await, code, field);
    }
    let busy = cluster.api.get_unit("web").await.unwrap().running_units[0].node.clone();
    let busy_too = busy.clone();
    let result = nodes.delete_node(v1::DeleteNodeRequest { name: busy }).await;
    cases.refused("DeleteNode: running units are bound to it", result, FailedPrecondition, "");
    let leave = |name: String| v1::DeregisterNodeRequest { name };
    let result = nodes.deregister_node(leave(busy_too)).await;
    cases.refused("DeregisterNode: running units are bound to it", result, FailedPrecondition, "");
    let result = nodes.deregister_node(leave("nobody".into())).await;
    cases.refused("DeregisterNode: an unknown node", result, NotFound, "");
    let result = nodes.deregister_node(leave(String::new())).await;
    cases.refused("DeregisterNode: no name", result, InvalidArgument, "name");
    let result = nodes.delete_node(v1::DeleteNodeRequest { name: "nobody".into() }).await;
    cases.refused("DeleteNode: an unknown node", result, NotFound, "");
    let result = nodes.delete_node(v1::DeleteNodeRequest::default()).await;
    cases.refused("DeleteNode: no name", result, InvalidArgument, "name");
}

async fn any_node(cluster: &Cluster) -> String {
    let page = cluster.api.nodes().list_nodes(v1::ListNodesRequest::default()).await.unwrap().into_inner();
    page.nodes[0].spec.clone().unwrap().meta.unwrap().name
}
