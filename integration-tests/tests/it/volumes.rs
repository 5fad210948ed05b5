//! Volumes that a real node keeps for replicas: they outlive runs, and go with their unit.

use std::{collections::BTreeSet, fs, path::PathBuf};

use anyhow::{Result, ensure};
use godel_integration_tests::{
    cluster::{Cluster, shown},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;
use godel_testkit::skip;

use super::keepers::{NODE, command};

fn volume(name: &str, path: &str) -> v1::Volume {
    v1::Volume { name: name.to_owned(), bytes: 1 << 20, path: path.to_owned() }
}

/// A unit with volumes, of which the replicas count their starts in the first one.
fn counting(name: &str, replicas: u32, volumes: Vec<v1::Volume>) -> v1::UnitSpec {
    let script = "cd \"$GODEL_VOLUME_DATA\" && echo start >> starts && echo \"start $(wc -l < starts)\"; exec sleep 100000";
    let mut spec = command(name, replicas, script, name);
    spec.task_groups[0].template.as_mut().unwrap().run.as_mut().unwrap().volumes = volumes;
    spec
}

async fn wait_logs(cluster: &Cluster, name: &str, expected: &str) {
    wait_for(&format!("`{expected}` in the logs of {name}"), LIMIT, async || -> Result<_> {
        let output = cluster.godel(&["unit", "logs", name]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(text == expected, "{}", shown(&output));
        Ok(())
    })
    .await;
}

/// Directories of replicas with volumes.
fn kept(cluster: &Cluster) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(cluster.state_dir(NODE).join("volumes")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Volumes outlive runs, and go with their unit.
pub(crate) async fn keep_volumes(cluster: &mut Cluster) {
    cluster.api.submit(counting("db", 2, vec![volume("data", ""), volume("wal", "")])).await.unwrap();
    wait_logs(cluster, "db", "0 | start 1\n1 | start 1\n").await;
    assert_eq!(kept(cluster).len(), 2);
    wait_for("the volumes that state knows of", LIMIT, async || -> Result<_> {
        let output = cluster.godel(&["node", "describe", NODE]);
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(
            text.contains(
                "\nvolumes\ndefault/db/0  data  1Mi\ndefault/db/0  wal  1Mi\ndefault/db/1  data  1Mi\n"
            ),
            "{}",
            shown(&output)
        );
        Ok(())
    })
    .await;

    let ok = |arguments: &[&str]| {
        let output = cluster.godel(arguments);
        assert!(output.status.success(), "{}", shown(&output));
    };
    ok(&["unit", "suspend", "db"]);
    ok(&["unit", "resume", "db"]);
    wait_logs(cluster, "db", "0 | start 2\n1 | start 2\n").await;

    // Nothing but the end of the unit's record removes them, and then the next look does.
    ok(&["unit", "cancel", "db"]);
    wait_for("the end of db", LIMIT, async || -> Result<_> {
        let output = cluster.godel(&["unit", "delete", "db"]);
        ensure!(output.status.success(), "{}", shown(&output));
        Ok(())
    })
    .await;
    assert_eq!(kept(cluster).len(), 2);
    cluster.stop(NODE).await;
    cluster.restart(NODE);
    wait_for("the end of the volumes", LIMIT, async || -> Result<_> {
        let kept = kept(cluster);
        ensure!(kept.is_empty(), "{kept:?}");
        Ok(())
    })
    .await;
    cluster.wait_ready().await;
}

/// A volume is seen at its path by its program only.
pub(crate) async fn mount_a_volume(cluster: &Cluster) {
    if !rustix::process::geteuid().is_root() {
        return skip("mounts need root");
    }
    let (path, missing) = (cluster.path("data"), cluster.path("missing"));
    fs::create_dir(&path).unwrap();
    let unit = counting("db", 1, vec![volume("data", path.to_str().unwrap())]);
    cluster.api.submit(unit).await.unwrap();
    wait_logs(cluster, "db", "start 1\n").await;
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "others see the directory below");
    let starts = kept(cluster).pop_first().unwrap().join("data/starts");
    assert_eq!(fs::read_to_string(starts).unwrap(), "start\n");

    let mut lost = counting("lost", 1, vec![volume("data", missing.to_str().unwrap())]);
    lost.restart_policy = v1::RestartPolicy::Never.into();
    cluster.api.submit(lost).await.unwrap();
    wait_for("the end of lost", LIMIT, async || -> Result<_> {
        let output = cluster.godel(&["unit", "logs", "lost"]);
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(text.contains("make one, or leave `path` out of the volume"), "{}", shown(&output));
        Ok(())
    })
    .await;
    cluster.delete_units(&["db", "lost"]);
}
