//! The same submission again: one unit, the first answer.

use std::collections::BTreeSet;

use godel_integration_tests::{
    cluster::{Cluster, Layout},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;
use tokio::task::JoinSet;
use tonic::Code;

use crate::kills::AWAY;

const UID: &str = "0197d4a6-3c1e-7d5b-8f3a-2b6c9d0e1f2a";

fn web(name: &str, uid: &str) -> v1::UnitSpec {
    unit(name, uid, 2, resources(500, 64), None, 0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submission_repeated_is_one_unit() {
    let mut cluster = Cluster::start(Layout { n_nodes: 10, ..Layout::default() }).await;
    cluster.announce(AWAY);

    // At the same time.
    let mut tries = JoinSet::new();
    for _ in 0..16 {
        let api = cluster.api.clone();
        tries.spawn(async move { api.submit(web("web", UID)).await });
    }
    let answers: Vec<_> = tries.join_all().await.into_iter().map(Result::unwrap).collect();
    let unit_ids: BTreeSet<u64> = answers.iter().map(|answer| answer.unit_id).collect();
    assert_eq!(unit_ids.len(), 1, "{answers:?}");
    assert_eq!(
        answers.iter().filter(|answer| !answer.duplicate).count(),
        1,
        "one was the first: {answers:?}"
    );
    let first = answers.iter().find(|answer| !answer.duplicate).unwrap().clone();

    // One after the other.
    let again = cluster.api.submit(web("web", UID)).await.unwrap();
    assert!(again.duplicate);
    assert_eq!((again.unit_id, &again.uid, again.revision), (first.unit_id, &first.uid, first.revision));

    // Through the stream, twice in one.
    let items = (0..2).map(|index| v1::SubmitUnitsRequest { index, unit: Some(web("web", UID)) });
    let items: Vec<_> = items.collect();
    let mut units = cluster.api.units().await.unwrap();
    let mut answers = units.submit_units(tokio_stream::iter(items)).await.unwrap().into_inner();
    let mut durable_below = 0;
    while let Some(answer) = answers.message().await.unwrap() {
        assert_eq!(answer.errors, vec![], "a repeated submission is no error");
        durable_below = durable_below.max(answer.durable_below);
    }
    assert_eq!(durable_below, 2);

    // Across a dispatcher's death, and a state's.
    for part in ["dispatcher", "state"] {
        let name = if part == "state" { part.to_owned() } else { cluster.leader(part).await };
        cluster.kill(&name);
        cluster.restart(&name);
        let again = wait_for("an answer of the next dispatcher", LIMIT, async || {
            cluster.api.submit(web("web", UID)).await
        })
        .await;
        assert!(again.duplicate, "after the death of {name}: {again:?}");
        assert_eq!(again.unit_id, first.unit_id);
    }

    // The same name is another unit's.
    let refused = cluster.api.submit(web("web", "")).await.unwrap_err();
    let status = refused.downcast_ref::<tonic::Status>().unwrap();
    assert_eq!(status.code(), Code::AlreadyExists, "{status:?}");

    let records = cluster.wait_all_bound(1).await;
    assert_eq!(records.units.len(), 1);
    cluster.audit(&[]);
}
