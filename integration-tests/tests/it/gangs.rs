//! Gangs that wait for room beside an endless stream of small units.

use std::{collections::BTreeSet, ops::Range};

use anyhow::{Result, ensure};
use godel_integration_tests::{
    cluster::{Cluster, Layout, shown},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;

/// Two nodes of four cores, and one that nobody uses.
async fn two_nodes(hold_after: &str, hold_max: &str) -> Cluster {
    let env = vec![
        ("dispatcher-1", "GODEL_DISPATCHER__GANG_HOLD_AFTER", hold_after.to_owned()),
        ("binder-1", "GODEL_BINDER__GANG_HOLD_MAX", hold_max.to_owned()),
    ];
    let layout =
        Layout { n_nodes: 1, n_dispatchers: 1, n_schedulers: 2, n_binders: 1, env, ..Layout::default() };
    let mut cluster = Cluster::start(layout).await;
    cluster.start_agent("agent-2", &["2x cpu=4,memory=16Gi,name=edge".to_owned()], &[], 2).await;
    let output = cluster.godel(&["node", "cordon", "openb-node-0000"]);
    assert!(output.status.success(), "{}", shown(&output));
    cluster
}

fn gang(name: &str, duration_ms: u64) -> v1::UnitSpec {
    let class = v1::WorkloadClass::Gang.into();
    v1::UnitSpec { workload_class: class, ..unit(name, "", 2, resources(4_000, 16), None, duration_ms) }
}

/// Small units that end one by one, never all of a node at once.
async fn stream(cluster: &Cluster, numbers: Range<u64>) {
    for number in numbers {
        let duration_ms = 500 + number * 377 % 1_300;
        let small = unit(&format!("small-{number:03}"), "", 1, resources(1_000, 16), None, duration_ms);
        cluster.api.submit(small).await.unwrap();
    }
}

async fn view(cluster: &Cluster, name: &str) -> Result<v1::Unit> {
    Ok(cluster.api.get_unit(name).await?.unit.unwrap_or_default())
}

/// Commit time of the first binding, once there is one.
async fn bound_ms(cluster: &Cluster, name: &str) -> i64 {
    wait_for(&format!("a place for {name}"), LIMIT, async || {
        let unit = view(cluster, name).await?;
        ensure!(unit.bound_time_ms > 0, "{:?} {}", unit.phase(), unit.waits_for);
        Ok(unit.bound_time_ms)
    })
    .await
}

const N_SMALL: u64 = 120;
const N_BEFORE: u64 = 24;

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_gets_its_room_beside_an_endless_stream() {
    let cluster = two_nodes("1s", "60s").await;
    // What was there before it goes first.
    stream(&cluster, 0..N_BEFORE).await;
    cluster.api.submit(gang("gang", 300)).await.unwrap();
    stream(&cluster, N_BEFORE..N_SMALL).await;
    wait_for("room that is gathered", LIMIT, async || {
        let unit = view(&cluster, "gang").await?;
        ensure!(unit.turn.is_some(), "{:?}", unit.phase());
        Ok(())
    })
    .await;
    let text = shown(&cluster.godel(&["unit", "describe", "gang"]));
    assert!(text.contains(" of 2 places on 2 nodes until "), "{text}");
    let gang_ms = bound_ms(&cluster, "gang").await;
    let last_ms = bound_ms(&cluster, &format!("small-{:03}", N_SMALL - 1)).await;
    assert!(gang_ms < last_ms, "the gang came after the stream");
    cluster.audit(&[]);
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_turns_a_gang_starves_as_long_as_the_stream_lasts() {
    let cluster = two_nodes("0s", "60s").await;
    stream(&cluster, 0..N_SMALL / 2).await;
    cluster.api.submit(gang("gang", 300)).await.unwrap();
    let last_ms = bound_ms(&cluster, &format!("small-{:03}", N_SMALL / 2 - 1)).await;
    let gang_ms = bound_ms(&cluster, "gang").await;
    assert!(gang_ms > last_ms, "the gang found room beside the stream");
    cluster.assert_quiet();
}

/// Names of the units that gather room now.
async fn gathering(cluster: &Cluster) -> Result<BTreeSet<String>> {
    let request = v1::ListUnitsRequest::default();
    let units = cluster.api.units().await?.list_units(request).await?.into_inner().units;
    let gathers = units.into_iter().filter(|unit| unit.turn.is_some());
    Ok(gathers.filter_map(|unit| Some(unit.spec?.meta?.name)).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_gangs_take_turns_until_there_is_room() {
    let cluster = two_nodes("500ms", "2s").await;
    // Nobody leaves these nodes.
    cluster.api.submit(unit("rest", "", 2, resources(1_000, 16), None, 0)).await.unwrap();
    let rest = bound_ms(&cluster, "rest").await;
    assert!(rest > 0);
    for name in ["a", "b"] {
        cluster.api.submit(gang(name, 300)).await.unwrap();
    }
    for name in ["a", "b", "a", "b"] {
        wait_for(&format!("the turn of {name}"), LIMIT, async || {
            let gathering = gathering(&cluster).await?;
            assert!(gathering.len() <= 1, "{gathering:?}");
            ensure!(gathering.contains(name), "{gathering:?}");
            Ok(())
        })
        .await;
    }
    let request = v1::CancelUnitRequest { name: "rest".into(), ..Default::default() };
    cluster.api.units().await.unwrap().cancel_unit(request).await.unwrap();
    bound_ms(&cluster, "a").await;
    bound_ms(&cluster, "b").await;
    wait_for("the end of both", LIMIT, async || {
        for name in ["a", "b"] {
            let phase = view(&cluster, name).await?.phase();
            ensure!(phase == v1::UnitPhase::Completed, "{name} {phase:?}");
        }
        Ok(())
    })
    .await;
    assert!(gathering(&cluster).await.unwrap().is_empty());
    cluster.audit(&[]);
    cluster.assert_quiet();
}
