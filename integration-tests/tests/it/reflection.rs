//! What grpcurl does: knowing nothing but an address, list services, submit a unit, watch it.

use anyhow::{Context as _, Result};
use godel_integration_tests::{
    api::channel,
    cluster::Cluster,
    reflect::{Protocol, ReflectionClient, to_json},
    wait::LIMIT,
};

const UNITS: &str = "godel.v1.UnitService";
const MEMBERS: &str = "godel.v1.MemberService";

pub(crate) async fn a_client_with_reflection_alone_submits_and_watches_a_unit(cluster: &Cluster) {
    for (protocol, name) in [(Protocol::V1, "by-v1"), (Protocol::V1Alpha, "by-v1alpha")] {
        tokio::time::timeout(LIMIT, tour(cluster, protocol, name))
            .await
            .expect("an end of the tour")
            .unwrap();
    }
    every_service_lists_itself(cluster).await.unwrap();
}

async fn tour(cluster: &Cluster, protocol: Protocol, name: &str) -> Result<()> {
    // State knows who leads.
    let mut state = ReflectionClient::new(channel(&cluster.address("state").to_string())?, protocol);
    assert!(state.list_services().await?.iter().any(|service| service == MEMBERS));
    state.load(MEMBERS).await?;
    let members = state.call(MEMBERS, "ListMembers", r#"{"prefix": "dispatcher"}"#).await?;
    let address = members["members"][0]["address"].as_str().context("no leading dispatcher")?.to_owned();

    let mut dispatcher = ReflectionClient::new(channel(&address)?, protocol);
    let services = dispatcher.list_services().await?;
    assert!(services.iter().any(|service| service == UNITS), "{services:?}");
    dispatcher.load(UNITS).await?;
    let unit = format!(
        r#"{{"unit": {{"meta": {{"name": "{name}"}}, "workload_class": "WORKLOAD_CLASS_SERVICE",
            "task_groups": [{{"name": "main", "replicas": 3, "template":
                {{"demand": {{"requests": {{"amounts": {{"cpu": "250", "memory": "1048576"}}}}}}}}}}]}}}}"#
    );
    let answer = dispatcher.call(UNITS, "SubmitUnit", &unit).await?;
    assert!(answer["unit_id"].as_u64().is_some_and(|unit_id| unit_id > 0), "{answer}");

    let mut changes = dispatcher.stream(UNITS, "WatchUnits", &format!(r#"{{"name": "{name}"}}"#)).await?;
    loop {
        let change = changes.message().await?.context("the watch ended")?;
        let units = to_json(&change)?["units"].clone();
        let bound = units[0]["counts"]["bound"].as_u64();
        if bound == Some(3) {
            return Ok(());
        }
    }
}

/// Both versions of reflection and health, on every service.
async fn every_service_lists_itself(cluster: &Cluster) -> Result<()> {
    for (name, service) in [
        ("state", "godel.v1.StateService"),
        ("state", "godel.v1.NodeService"),
        ("dispatcher-1", UNITS),
        ("dispatcher-2", "godel.v1.DispatchService"),
        ("dispatcher-1", "godel.v1.QueueService"),
        ("binder-1", "godel.v1.BindService"),
        ("binder-3", "godel.v1.BindService"),
        ("scheduler-2", "godel.v1.SchedulerService"),
    ] {
        for protocol in [Protocol::V1, Protocol::V1Alpha] {
            let client = ReflectionClient::new(channel(&cluster.address(name).to_string())?, protocol);
            let services = client.list_services().await.with_context(|| format!("{name} by {protocol:?}"))?;
            for expected in [service, "grpc.health.v1.Health"] {
                assert!(services.iter().any(|known| known == expected), "{name}: {expected} in {services:?}");
            }
        }
        let mut health = ReflectionClient::new(channel(&cluster.address(name).to_string())?, Protocol::V1);
        health.load("grpc.health.v1.Health").await?;
        let answer = health.call("grpc.health.v1.Health", "Check", "{}").await?;
        assert!(answer["status"].is_string(), "{name}: {answer}");
    }
    Ok(())
}
