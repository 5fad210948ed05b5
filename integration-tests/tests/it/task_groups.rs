//! Task groups that are added to a unit: they are records of their own, outlive every process, and go with their unit.

use anyhow::{Result, ensure};
use godel_integration_tests::{
    cluster::{Cluster, shown},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;
use tonic::Code;

/// An application of one running unit, its master.
fn application() -> v1::UnitSpec {
    let mut spec = unit("app", "", 1, resources(10, 1), None, 0);
    spec.workload_class = v1::WorkloadClass::Yarn.into();
    spec
}

fn added(name: &str, replicas: u32) -> v1::TaskGroup {
    let group = unit("", "", replicas, resources(10, 1), None, 0).task_groups.remove(0);
    v1::TaskGroup { name: name.to_owned(), ..group }
}

fn changes(added: Vec<v1::TaskGroup>, sizes: &[(&str, u32)], released: &[u32]) -> v1::TaskGroupChanges {
    let size = |(name, replicas): &(&str, u32)| v1::TaskGroupSize {
        task_group: (*name).to_owned(),
        replicas: *replicas,
    };
    v1::TaskGroupChanges {
        name: "app".to_owned(),
        added,
        sizes: sizes.iter().map(size).collect(),
        released_ordinals: released.to_vec(),
        ..v1::TaskGroupChanges::default()
    }
}

/// Changes the unit as soon as somebody takes it. Made twice a change is made once.
async fn grow(cluster: &Cluster, groups: v1::TaskGroupChanges) {
    let request = v1::UpdateUnitRequest { groups: Some(groups), ..v1::UpdateUnitRequest::default() };
    wait_for("the groups to change", LIMIT, async || -> Result<_> {
        Ok(cluster.api.units().await?.update_unit(request.clone()).await.map(drop)?)
    })
    .await;
}

/// The ordinals that run, with their incarnations, once these and no others do.
async fn wait_running(cluster: &Cluster, expected: &[(u32, u32)]) {
    wait_for(&format!("{expected:?} to run"), LIMIT, async || -> Result<_> {
        let answer = cluster.api.get_unit("app").await?;
        let is_live = |run: &&v1::RunningUnit| run.phase() == v1::RunPhase::Running;
        let running: Vec<_> =
            answer.running_units.iter().filter(is_live).map(|run| (run.ordinal, run.incarnation)).collect();
        ensure!(running == expected, "{running:?}");
        Ok(())
    })
    .await;
}

/// Keys of the records of task groups, as the store lists them.
async fn group_keys(cluster: &Cluster) -> Result<Vec<(u64, u32)>> {
    let kinds = vec![v1::Kind::TaskGroup.into()];
    let request = v1::ListRecordsRequest { kinds, ..v1::ListRecordsRequest::default() };
    let page = cluster.api.state().list_records(request).await?.into_inner();
    let groups = page.records.into_iter().filter_map(|record| match record.record {
        Some(v1::record::Record::TaskGroup(group)) => Some((group.unit_id, group.task_group)),
        _ => None,
    });
    Ok(groups.collect())
}

/// Added groups outlive every process, and go with their unit.
pub(crate) async fn grow_a_unit(cluster: &mut Cluster) {
    let id = cluster.api.submit(application()).await.unwrap().unit_id;
    wait_running(cluster, &[(0, 0)]).await;
    grow(cluster, changes(vec![added("map", 3), added("reduce", 0)], &[], &[])).await;
    wait_running(cluster, &[(0, 0), (1, 0), (2, 0), (3, 0)]).await;
    // In one transaction: a container is given back, and a group of no replicas gets some.
    grow(cluster, changes(Vec::new(), &[("reduce", 2)], &[2])).await;
    wait_running(cluster, &[(0, 0), (1, 0), (3, 0), (4, 0), (5, 0)]).await;

    let services = cluster.names();
    services.iter().for_each(|name| cluster.kill(name));
    services.iter().for_each(|name| cluster.restart(name));
    cluster.wait_ready().await;
    grow(cluster, changes(vec![added("late", 1)], &[("map", 1)], &[])).await;
    wait_running(cluster, &[(0, 0), (1, 0), (4, 0), (5, 0), (6, 0)]).await;
    assert_eq!(group_keys(cluster).await.unwrap(), [(id, 1), (id, 2), (id, 3)]);

    // The next attempt of the master, once the last one has ended.
    let retry = v1::RetryUnitRequest { name: "app".to_owned(), ordinals: vec![0], ..Default::default() };
    let refused = cluster.api.units().await.unwrap().retry_unit(retry).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    assert!(refused.message().contains("replica 0 of unit default/app has not ended"), "{refused:?}");

    let output = cluster.godel(&["unit", "describe", "app", "-o", "yaml"]);
    let yaml = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(["main", "map", "reduce", "late"].iter().all(|name| yaml.contains(name)), "{}", shown(&output));
    let file = cluster.path("again.yaml");
    std::fs::write(&file, yaml.replace("name: app", "name: again")).unwrap();
    let output = cluster.godel(&["unit", "submit", "-f", file.to_str().unwrap()]);
    assert!(output.status.success(), "{}", shown(&output));

    let output = cluster.godel(&["unit", "delete", "app", "--cancel"]);
    assert!(output.status.success(), "{}", shown(&output));
    wait_for("the groups to go", LIMIT, async || -> Result<_> {
        let keys = group_keys(cluster).await?;
        ensure!(keys.is_empty(), "{keys:?}");
        Ok(())
    })
    .await;
    cluster.audit(&[]);
    cluster.delete_units(&["again"]);
}
