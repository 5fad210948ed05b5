//! The same submission again: one unit, the first answer.

use std::collections::BTreeSet;

use godel_integration_tests::{
    cluster::Cluster,
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;
use tokio::task::JoinSet;
use tonic::Code;

const UID: &str = "0197d4a6-3c1e-7d5b-8f3a-2b6c9d0e1f2a";

fn web(name: &str, uid: &str) -> v1::UnitSpec {
    unit(name, uid, 2, resources(500, 64), None, 0)
}

/// A submission is repeated at the same time, one after the other, in one stream, and across the death of who took it: it is one unit.
pub(crate) async fn repeat_a_submission(cluster: &mut Cluster) {
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
    let meta = |unit: &v1::UnitRecord| unit.spec.as_ref().and_then(|spec| spec.meta.clone());
    let is_named = |unit: &&v1::UnitRecord| meta(unit).is_some_and(|meta| meta.name == "web");
    assert_eq!(records.units.values().filter(is_named).count(), 1);
    cluster.audit(&[]);
    cluster.delete_units(&["web"]);
}
