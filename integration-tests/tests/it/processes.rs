//! What really runs, as it is measured, and as `godel audit` finds it: agents look at their machine when they are asked, whatever they remember.

use std::{
    fs,
    process::{Child, Command},
};

use anyhow::{Result, ensure};
use godel_integration_tests::{
    cluster::{Cluster, kept, shown},
    settings,
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;

use super::{
    containers,
    keepers::{NODE, command, one_real_node, real_node_called, wait_running},
    usage,
};

/// A process that ends with its test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// What an audit says of I3: its verdict, what it looked at, and its violations.
fn i3(cluster: &Cluster) -> (String, String, Vec<String>) {
    let output = cluster.godel(&["audit", "-o", "json"]);
    let view: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let invariants = view["invariants"].as_array().unwrap_or_else(|| panic!("{}", shown(&output)));
    let i3 = invariants.iter().find(|one| one["id"] == "I3").unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let violations = i3["violations"].as_array().unwrap().iter().map(text).collect();
    (text(&i3["verdict"]), text(&i3["checked"]), violations)
}

#[track_caller]
fn holds(cluster: &Cluster, n_seen: usize) {
    let (verdict, checked, violations) = i3(cluster);
    assert_eq!((verdict.as_str(), &violations[..]), ("ok", &[][..]), "{checked}");
    assert!(checked.contains(&format!("{n_seen} of them seen by their processes on 1 nodes")), "{checked}");
}

#[track_caller]
fn finds(cluster: &Cluster, n: usize, words: &str) {
    let (verdict, checked, violations) = i3(cluster);
    assert_eq!((verdict.as_str(), violations.len()), ("failed", n), "{checked}: {violations:?}");
    assert!(violations.iter().all(|one| one.contains(words)), "{violations:?}");
}

fn kill(pid: u32) {
    let killed = Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    assert!(killed.success());
}

/// Cancels units, and waits until nothing of them runs.
pub(crate) async fn end(cluster: &Cluster, units: &[&str]) {
    let output = cluster.godel(&[&["unit", "cancel"], units].concat());
    assert!(output.status.success(), "{}", shown(&output));
    for name in units {
        wait_for(&format!("the end of {name}"), LIMIT, async || {
            let running = cluster.api.get_unit(name).await?.running_units;
            let is_live = |run: &v1::RunningUnit| {
                matches!(run.phase(), v1::RunPhase::Bound | v1::RunPhase::Starting | v1::RunPhase::Running)
            };
            ensure!(!running.iter().any(is_live), "{running:?}");
            Ok(())
        })
        .await;
    }
}

/// Waits until the only replica of a unit runs with so many restarts.
async fn wait_restarted(cluster: &Cluster, name: &str, restarts: u32) {
    wait_for(&format!("{name} to run again"), LIMIT, async || -> Result<()> {
        let running = cluster.api.get_unit(name).await?.running_units;
        let is_so = |run: &v1::RunningUnit| run.phase() == v1::RunPhase::Running && run.restarts == restarts;
        ensure!(running.len() == 1 && running.iter().all(is_so), "{running:?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_really_runs_is_measured_and_audited() {
    let mut cluster = one_real_node(settings::godel_bin(), &[]).await;
    usage::best_effort_work_gives_way_without_memory(&mut cluster).await;
    usage::use_of_nodes_and_running_units_is_measured(&cluster).await;
    what_an_agent_has_forgotten_is_ended_by_the_next_one(&mut cluster).await;
    an_audit_finds_who_took_another_ones_place(&cluster).await;
}

async fn what_an_agent_has_forgotten_is_ended_by_the_next_one(cluster: &mut Cluster) {
    let mark = format!("forgotten-{}", std::process::id());
    cluster.api.submit(command("web", 1, "exec sleep 100000", &mark)).await.unwrap();
    cluster.api.submit(command("db", 2, "sleep 100000 & exec sleep 100000", "db")).await.unwrap();
    wait_running(cluster, "web", 1).await;
    wait_running(cluster, "db", 2).await;
    holds(cluster, 3);
    // A process that is killed behind the back of its agent is started again, which is no finding.
    let first = *kept::with_env("MARK", &mark).first().unwrap();
    kill(first.0);
    wait_restarted(cluster, "web", 1).await;
    holds(cluster, 3);
    // The agent and the keeper are killed, and all that was written down is gone: the next agent finds
    // the process by its environment, ends it, and starts another one.
    let orphan = *kept::with_env("MARK", &mark).first().unwrap();
    cluster.kill(NODE);
    let runs = cluster.state_dir(NODE).join("runs");
    let run = fs::read_dir(&runs)
        .unwrap()
        .flatten()
        .find(|run| fs::read_to_string(run.path().join("run.json")).unwrap().contains(&mark));
    let run = run.unwrap().path();
    let keeper: serde_json::Value =
        serde_json::from_slice(&fs::read(run.join("keeper.json")).unwrap()).unwrap();
    kill(u32::try_from(keeper["pid"].as_u64().unwrap()).unwrap());
    fs::remove_dir_all(run).unwrap();
    cluster.restart(NODE);
    cluster.wait_ready().await;
    wait_for("another process in place of the one that was left", LIMIT, async || {
        let running = kept::with_env("MARK", &mark);
        ensure!(running.len() == 1 && !running.contains(&orphan), "{running:?} run, {orphan:?} was left");
        Ok(())
    })
    .await;
    let running = cluster.api.get_unit("web").await.unwrap().running_units;
    assert_eq!(running[0].phase(), v1::RunPhase::Running);
    holds(cluster, 3);
    cluster.announce(&["processes of this node were found that no run of its state directory owns"]);
    cluster.assert_quiet();
    end(cluster, &["web", "db"]).await;
}

async fn an_audit_finds_who_took_another_ones_place(cluster: &Cluster) {
    let mark = format!("place-{}", std::process::id());
    let spec = cluster.api.submit(command("place", 1, "exec sleep 100000", &mark)).await.unwrap();
    wait_running(cluster, "place", 1).await;
    let (pid, _) = *kept::with_env("MARK", &mark).first().unwrap();
    // It says that it is of a unit of this node, and none of its keepers has started it.
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
    let words = environment.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    let words: Vec<String> = words.filter(|word| word.starts_with("GODEL_")).collect();
    assert!(words.iter().any(|word| word.starts_with("GODEL_NODE_UID=")), "{spec:?}: {words:?}");
    let env = words.iter().filter_map(|word| word.split_once('='));
    let stranger = Ends(Command::new("sleep").arg("100000").envs(env).spawn().unwrap());
    finds(cluster, 1, &format!("process {} (sleep) on {NODE} is of place/0 incarnation 0", stranger.0.id()));
    drop(stranger);
    holds(cluster, 1);
    // One that says nothing, and is in the control group of a unit.
    let group = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let group =
        group.lines().find_map(|line| line.rsplit_once(':').filter(|(_, path)| path.contains("/godel-")));
    let Some((hierarchy, path)) = group else {
        return cluster.note("SKIPPED: there are no control groups here");
    };
    let controllers = hierarchy.split_once(':').map_or("", |(_, controllers)| controllers);
    let stranger = Ends(Command::new("sleep").arg("100000").env_clear().spawn().unwrap());
    let procs = format!("/sys/fs/cgroup/{controllers}{path}/cgroup.procs");
    fs::write(&procs, stranger.0.id().to_string()).unwrap_or_else(|error| panic!("{procs}: {error}"));
    finds(cluster, 1, &format!("process {} (sleep) on {NODE} is of place/0 incarnation 0", stranger.0.id()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_asks_the_engine_for_containers() {
    let Some(engine) = containers::engine().await else { return };
    let node = format!("audit-{}", std::process::id());
    let mut cluster = real_node_called(&node, settings::godel_bin(), &["agent.docker=on".to_owned()]).await;
    cluster.api.submit(containers::container(&engine, "web", 2, "exec sleep 100000")).await.unwrap();
    containers::wait_running(&cluster, "web", 2).await;
    holds(&cluster, 2);
    let mut labels = engine.labels(&node).await.unwrap().into_values().next().unwrap();
    labels.insert("godel.ordinal".to_owned(), "7".to_owned());
    let name = format!("godel-left-{node}");
    engine.leave(&name, labels).await.unwrap();
    finds(&cluster, 1, &format!("container {name} on {node} is of web/7 incarnation 0"));
    // The next agent removes it.
    cluster.stop(&node).await;
    cluster.restart(&node);
    cluster.wait_ready().await;
    holds(&cluster, 2);
    cluster.assert_quiet();
    engine.close().await;
}
