//! Logs of running units, read through the control plane.

use std::fs;

use anyhow::ensure;
use godel_integration_tests::{
    cluster::{Cluster, shown},
    settings,
    trace::resources,
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;

use super::keepers::{NODE, command, one_real_node, wait_running};

/// What the command line prints of a log, at last as `is_so` wants it.
async fn wait_log(cluster: &Cluster, arguments: &[&str], is_so: impl Fn(&str) -> bool) -> String {
    let arguments = [&["unit", "logs"], arguments].concat();
    wait_for(&format!("{arguments:?}"), LIMIT, async || {
        let output = cluster.godel(&arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success() && is_so(&text), "{}", shown(&output));
        Ok(text)
    })
    .await
}

/// The command line refuses, with this code and these words.
fn assert_refused(cluster: &Cluster, arguments: &[&str], code: i32, words: &str) {
    let output = cluster.godel(&[&["unit", "logs"], arguments].concat());
    assert_eq!(output.status.code(), Some(code), "{}", shown(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains(words), "{}", shown(&output));
}

fn batch(name: &str, replicas: u32, script: &str) -> v1::UnitSpec {
    let mut spec = command(name, replicas, script, name);
    spec.workload_class = v1::WorkloadClass::Batch.into();
    spec.max_restarts = Some(0);
    spec
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_are_read_through_the_control_plane() {
    let settings = ["agent.log_max_bytes=1048576", "agent.log_files=4", "agent.advertise=10.1.2.3"];
    let mut cluster = one_real_node(settings::godel_bin(), &settings.map(str::to_owned)).await;
    logs_of_running_restarted_and_ended_replicas(&mut cluster).await;
    a_large_log_keeps_what_its_limit_keeps(&cluster).await;
    commands_are_told_where_their_peers_are(&cluster).await;
    cluster.assert_quiet();
    logs_that_cannot_be_read_say_why(&mut cluster).await;
}

async fn logs_of_running_restarted_and_ended_replicas(cluster: &mut Cluster) {
    let (first, second) = (cluster.path("first"), cluster.path("second"));
    // Of a job that is followed nothing is missing, the last words included.
    let script = format!(
        "echo begin; while ! test -e {}; do sleep 0.02; done; echo middle >&2; printf 'the last words'",
        first.display()
    );
    cluster.api.submit(batch("job", 1, &script)).await.unwrap();
    wait_log(cluster, &["job"], |text| text == "begin\n").await;
    fs::write(&first, "").unwrap();
    let followed = cluster.godel(&["unit", "logs", "job/0", "-f"]);
    assert_eq!(
        String::from_utf8_lossy(&followed.stdout),
        "begin\nmiddle\nthe last words",
        "{}",
        shown(&followed)
    );
    // It has ended.
    let ended = wait_log(cluster, &["job", "--tail=1"], |_| true).await;
    assert_eq!(ended, "the last words");

    // Starts in place are one log; the next incarnation has another one.
    let script = format!("echo start; test -e {} || exit 3; exec sleep 100000", second.display());
    let mut spec = command("web", 2, &script, "web");
    spec.restart_policy = v1::RestartPolicy::OnFailure.into();
    cluster.api.submit(spec).await.unwrap();
    wait_log(cluster, &["web/1"], |text| text.matches("start\n").count() >= 2).await;
    fs::write(&second, "").unwrap();
    let both = wait_log(cluster, &["web", "--tail", "1"], |_| true).await;
    assert_eq!(both, "0 | start\n1 | start\n");
    assert_refused(cluster, &["web/1", "--previous"], 4, "first incarnation");
    let is_now = async |phase, incarnation| {
        wait_for("the replicas", LIMIT, async || {
            let running = cluster.api.get_unit("web").await?.running_units;
            let is_so = |run: &v1::RunningUnit| run.phase() == phase && run.incarnation == incarnation;
            ensure!(running.iter().all(is_so), "{running:?}");
            Ok(())
        })
        .await;
    };
    is_now(v1::RunPhase::Running, 0).await;
    let before = wait_log(cluster, &["web/1"], |_| true).await;
    for (verb, phase, incarnation) in
        [("suspend", v1::RunPhase::Stopped, 0), ("resume", v1::RunPhase::Running, 1)]
    {
        let output = cluster.godel(&["unit", verb, "web"]);
        assert!(output.status.success(), "{}", shown(&output));
        is_now(phase, incarnation).await;
    }
    wait_log(cluster, &["web/1"], |text| text == "start\n").await;
    let previous = wait_log(cluster, &["web/1", "--previous"], |_| true).await;
    assert!(previous.starts_with(&before), "{previous} {before}");

    // An agent that starts asks which units are gone, and removes their logs.
    let logs = cluster.state_dir(NODE).join("logs");
    let n_logs = fs::read_dir(&logs).unwrap().count();
    assert_eq!(n_logs, 5, "one of the job, two of each replica of the service");
    let output = cluster.godel(&["unit", "delete", "job"]);
    assert!(output.status.success(), "{}", shown(&output));
    assert_refused(cluster, &["job"], 4, "job");
    cluster.stop(NODE).await;
    cluster.restart(NODE);
    wait_for("the log of the job to go", LIMIT, async || {
        let n_left = fs::read_dir(&logs)?.count();
        ensure!(n_left == 4, "{n_left} are left");
        Ok(())
    })
    .await;
    assert_refused(cluster, &["web/9"], 4, "no replica 9");
    let mut waits = command("waits", 1, "true", "waits");
    let template = waits.task_groups[0].template.as_mut().unwrap();
    template.demand.as_mut().unwrap().requests = Some(resources(1_000_000, 1));
    cluster.api.submit(waits).await.unwrap();
    assert_refused(cluster, &["waits"], 1, "waits for a node");
}

async fn a_large_log_keeps_what_its_limit_keeps(cluster: &Cluster) {
    const LAST: u64 = 12_500_000;
    cluster.api.submit(batch("large", 1, &format!("seq 1 {LAST}"))).await.unwrap();
    wait_for("the end", LIMIT, async || {
        let running = cluster.api.get_unit("large").await?.running_units;
        ensure!(running.iter().all(|run| run.phase() == v1::RunPhase::Succeeded), "{running:?}");
        Ok(())
    })
    .await;
    let text = wait_log(cluster, &["large"], |_| true).await;
    assert!(text.ends_with(&format!("\n{LAST}\n")), "nothing is missing at the end");
    assert!(text.len() >= 3 << 20, "{} bytes", text.len());
    // The first line may be the rest of one.
    let numbers: Vec<u64> = text.lines().skip(1).map(|line| line.parse().unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "nothing is missing in between");
}

async fn logs_that_cannot_be_read_say_why(cluster: &mut Cluster) {
    cluster.api.submit(command("here", 1, "echo here; exec sleep 100000", "here")).await.unwrap();
    wait_running(cluster, "here", 1).await;
    wait_log(cluster, &["here"], |text| text == "here\n").await;
    assert_refused(cluster, &["nobody"], 4, "no unit");
    assert_refused(cluster, &["here", "-o", "json"], 2, "as they were written");
    cluster.kill(NODE);
    assert_refused(cluster, &["here"], 3, "the agent of node real");
    cluster.restart(NODE);
    wait_log(cluster, &["here"], |text| text == "here\n").await;
}

async fn commands_are_told_where_their_peers_are(cluster: &Cluster) {
    let script = "echo $GODEL_PEERS; exec sleep 100000";
    let mut gang = command("gang", 2, script, "gang");
    gang.workload_class = v1::WorkloadClass::Gang.into();
    gang.min_member = Some(2);
    cluster.api.submit(gang).await.unwrap();
    wait_log(cluster, &["gang"], |text| text == "0 | 0=10.1.2.3,1=10.1.2.3\n1 | 0=10.1.2.3,1=10.1.2.3\n")
        .await;
    let mut serves = command("serves", 1, script, "serves");
    let demand = serves.task_groups[0].template.as_mut().unwrap().demand.as_mut().unwrap();
    demand.host_ports = [8080, 9090].map(|port| v1::HostPort { port, ..v1::HostPort::default() }).to_vec();
    cluster.api.submit(serves).await.unwrap();
    wait_log(cluster, &["serves"], |text| text == "0=10.1.2.3:8080+9090\n").await;
    // What needs no others is told of none.
    cluster.api.submit(command("alone", 1, script, "alone")).await.unwrap();
    wait_log(cluster, &["alone"], |text| text == "\n").await;
}
