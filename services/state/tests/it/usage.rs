//! Use of guaranteed running units: what becomes of it a record, and that it survives.

use godel_kit::config::HumanDuration;
use godel_proto::v1::{self, session_request::Message as Up};

use crate::harness::{Agent, State, resources, until};

async fn measure(agent: &Agent, cpu_milli: i64) {
    let guaranteed_usage = Some(resources(&[("cpu", cpu_milli)]));
    agent.send(Up::Heartbeat(v1::Heartbeat { guaranteed_usage, ..v1::Heartbeat::default() })).await;
}

/// Waits until so much is recorded.
async fn recorded(state: &State, cpu_milli: i64) {
    until("the record", async || {
        let reserved = state.node("n1").await.reserved?;
        (reserved.amounts.get("cpu") == Some(&cpu_milli)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn use_is_recorded_by_steps_and_survives() {
    let state = State::start_with(|config| config.node_scan_interval = HumanDuration::from_millis(20)).await;
    let registered = state.register("n1").await;
    let agent = Agent::open(&state.channel, "n1", registered, Vec::new()).await;
    assert_eq!(state.node("n1").await.reserved, None, "no use is known");
    measure(&agent, 2_000).await;
    recorded(&state, 2_200).await;
    // Half a per cent of the node is not worth a record; and a peak is remembered.
    measure(&agent, 2_050).await;
    measure(&agent, 5_000).await;
    recorded(&state, 5_500).await;
    measure(&agent, 1_000).await;
    let shown = state.node("n1").await;
    assert_eq!(shown.best_effort_allocatable.unwrap().amounts["cpu"], 4_500);
    let mut watch = state
        .state()
        .watch(v1::WatchRequest { from_revision: 0, kinds: vec![12], ..v1::WatchRequest::default() })
        .await
        .unwrap()
        .into_inner();
    let mut seen = Vec::new();
    while seen.len() < 2 {
        for commit in watch.message().await.unwrap().unwrap().commits {
            for op in commit.ops {
                let op: v1::Op = prost::Message::decode(op).unwrap();
                if let Some(v1::op::Op::PutNodeUsage(usage)) = op.op {
                    seen.push(usage.reserved.unwrap().amounts["cpu"]);
                }
            }
        }
    }
    assert_eq!(seen, [2_200, 5_500]);
    drop((agent, watch));

    // What was known holds until something else is, and the average begins there.
    let state = state.restart().await;
    let registered = state.register("n1").await;
    assert_eq!(state.node("n1").await.reserved.unwrap().amounts["cpu"], 5_500);
    let agent = Agent::open(&state.channel, "n1", registered, Vec::new()).await;
    measure(&agent, 0).await;
    recorded(&state, 2_750).await;
    drop(agent);
    state.stop().await;
}

#[tokio::test]
async fn a_load_is_recorded_and_forgotten_with_its_reports() {
    let amounts = |cpu| Some(v1::LoadAmounts { cpu, memory: 1 << 30, network: 5 });
    let load = v1::NodeLoad { p50: amounts(1_000), p95: amounts(4_000) };
    let zone_loads = |load: Option<v1::NodeLoad>| match load {
        Some(_) => vec![v1::ZoneLoad { zone: 3, load }],
        None => Vec::new(),
    };
    let network = Some(v1::NetworkRate { received: 7, sent: 8 });
    let care =
        v1::BandwidthCare { state: v1::BandwidthState::Measured.into(), reason: "so it is".to_owned() };
    let bandwidth = Some(v1::BandwidthReport { network: Some(care), memory: None });
    let heartbeat = |load| {
        let (zone_loads, bandwidth) = (zone_loads(load), bandwidth.clone());
        Up::Heartbeat(v1::Heartbeat { load, zone_loads, network, bandwidth, ..v1::Heartbeat::default() })
    };
    let state = State::start_with(|config| {
        config.node_scan_interval = HumanDuration::from_millis(20);
        config.heartbeat_interval = HumanDuration::from_millis(10);
    })
    .await;
    let registered = state.register("n1").await;
    let agent = Agent::open(&state.channel, "n1", registered, Vec::new()).await;
    agent.send(heartbeat(Some(load))).await;
    until("the load", async || (state.node("n1").await.load == Some(load)).then_some(())).await;
    let shown = state.node("n1").await;
    assert_eq!(shown.reserved, None, "guaranteed use is not measured");
    assert_eq!(
        (shown.zone_loads, shown.network, shown.bandwidth),
        (zone_loads(Some(load)), network, bandwidth.clone())
    );
    // Reports without a load: three intervals later it is not known any more.
    until("nothing", async || {
        agent.send(heartbeat(None)).await;
        let node = state.node("n1").await;
        (node.load.is_none() && node.zone_loads.is_empty()).then_some(())
    })
    .await;
    agent.send(heartbeat(Some(load))).await;
    until("the load again", async || (state.node("n1").await.load == Some(load)).then_some(())).await;
    // The agent goes, and with it what it measured.
    drop(agent);
    until("a lost node", async || state.node("n1").await.load.is_none().then_some(())).await;
    state.stop().await;
}
