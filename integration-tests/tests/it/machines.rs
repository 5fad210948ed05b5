//! Machines that are paused, cut off, replaced, copied, smaller than before, or taken away, with real agents: what ran there comes
//! back elsewhere once, counted from `/proc`. Each has names of its own on a cluster that it shares with others, and is retired at the end.

use std::{path::Path, process::Output, time::Duration};

use anyhow::{Result, ensure};
use godel_integration_tests::{
    cluster::{Cluster, Layout, shown},
    machine::Processes,
    trace::{resources, unit},
    wait::{LIMIT, keep_up, wait_for},
};
use godel_proto::v1::{self, WorkloadClass};

use crate::agents;

/// What a real agent may warn of on any machine.
const OF_THIS_MACHINE: &[&str] = &["topology of this machine"];
const NO_CGROUPS: &str = "agent.cgroups=false";
/// How long what must not run twice goes on without contact.
pub(crate) const STOP_AFTER: Duration = Duration::from_secs(4);

/// A cluster without nodes in which lost ones are found soon.
async fn start(is_plain: bool) -> Cluster {
    let env = [
        ("GODEL_STATE__HEARTBEAT_INTERVAL", "200ms"),
        ("GODEL_STATE__NODE_LEASE_TTL", "2s"),
        ("GODEL_STATE__NODE_GRACE", "10s"),
        ("GODEL_STATE__STOP_AFTER_DISCONNECT", &format!("{}s", STOP_AFTER.as_secs())),
    ];
    let mut cluster = Cluster::start(Layout {
        n_nodes: 0,
        n_dispatchers: 1,
        n_schedulers: 1,
        n_binders: 1,
        is_proxied: true,
        is_plain,
        // Nobody who leads is lost here, however slow the machine is.
        settings: ["dispatcher", "binder", "scheduler"]
            .map(|part| (format!("{part}.lease.ttl"), "30s".to_owned()))
            .into(),
        env: env.into_iter().map(|(key, value)| ("state", key, value.to_owned())).collect(),
        ..Layout::default()
    })
    .await;
    cluster.announce(OF_THIS_MACHINE);
    cluster
}

/// Adds a machine; agent and node have its name.
async fn add_machine(cluster: &mut Cluster, name: &str) {
    cluster.start_agent_of_this_machine(name, name, &[NO_CGROUPS.to_owned()]).await;
    cluster.wait_ready().await;
}

async fn submit(
    cluster: &Cluster,
    processes: &Processes,
    (name, replicas): (&str, u32),
    class: WorkloadClass,
) -> Result<()> {
    let mut spec = unit(name, "", replicas, resources(10, 1), None, 0);
    spec.workload_class = class.into();
    spec.task_groups[0].template.as_mut().unwrap().run = Some(processes.run());
    cluster.api.submit(spec).await.map(drop)
}

/// Waits until exactly so many processes run of each incarnation of each unit.
async fn wait_counts(processes: &Processes, expected: &[(&str, usize)]) {
    let expected = expected.iter().map(|(of, n)| ((*of).to_owned(), *n)).collect();
    wait_for(&format!("processes {expected:?}"), LIMIT, async || {
        let counts = processes.counts();
        ensure!(counts == expected, "{counts:?}");
        Ok(())
    })
    .await;
}

/// What the description of a node says, once it says what `pick` looks for.
async fn described<T>(cluster: &Cluster, node: &str, pick: impl Fn(&serde_json::Value) -> Option<T>) -> T {
    wait_for(&format!("a description of {node}"), LIMIT, async || {
        let output = cluster.godel(&["node", "describe", node, "-o", "json"]);
        ensure!(output.status.success(), "{}", shown(&output));
        let view: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        pick(&view).ok_or_else(|| anyhow::anyhow!("{view}"))
    })
    .await
}

async fn wait_logged(cluster: &Cluster, process: &str, words: &str) {
    wait_for(&format!("{process} to say: {words}"), LIMIT, async || {
        let log = cluster.log(process);
        ensure!(log.contains(words), "{log}");
        Ok(())
    })
    .await;
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_dir(&path, &target);
        } else if path.is_file() {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_without_contact_end_what_must_not_run_twice() {
    // What is held on its way has to be read there.
    let mut cluster = start(true).await;
    cluster.announce(&["no contact for too long"]);
    pause_a_machine(&mut cluster).await;
    cut_a_machine_off(&mut cluster).await;
    kill_the_agent_of_a_gang(&mut cluster).await;
    agents::lose_contact_with_simulated_nodes(&mut cluster).await;
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_are_copied_repaired_taken_away_and_replaced() {
    let mut cluster = start(false).await;
    copy_a_state_directory(&mut cluster).await;
    take_devices_from_a_machine(&mut cluster).await;
    take_a_machine_away(&mut cluster).await;
    cluster.assert_quiet();
    replace_a_machine(&mut cluster).await;
    cluster.assert_quiet();
}

/// A paused machine ends what is not its own any more.
async fn pause_a_machine(cluster: &mut Cluster) {
    let processes = Processes::default();
    add_machine(cluster, "paused-1").await;
    submit(cluster, &processes, ("web", 2), WorkloadClass::Service).await.unwrap();
    submit(cluster, &processes, ("ring", 2), WorkloadClass::Gang).await.unwrap();
    wait_counts(&processes, &[("ring.0", 2), ("web.0", 2)]).await;
    add_machine(cluster, "paused-2").await;
    cluster.freeze("paused-1");
    // Elsewhere once, whatever its own processes do meanwhile: nobody reaches them.
    wait_for("both units to run on the other machine", LIMIT, async || {
        let counts = processes.counts();
        ensure!(counts.get("web.1") == Some(&2) && counts.get("ring.1") == Some(&2), "{counts:?}");
        Ok(())
    })
    .await;
    // The agent goes on and cannot reach state: what must not run twice ends before anything else.
    cluster.proxy_to_state("paused-1").hold();
    cluster.thaw("paused-1");
    wait_for("the gang to end on the first machine", LIMIT, async || {
        let twice = processes.twice("ring");
        ensure!(twice.is_none(), "{twice:?}");
        Ok(())
    })
    .await;
    cluster.proxy_to_state("paused-1").heal();
    wait_counts(&processes, &[("ring.1", 2), ("web.1", 2)]).await;
    cluster.audit(&[]);
    cluster.delete_units(&["web", "ring"]);
    cluster.retire_agent("paused-1", "paused-1").await;
    cluster.retire_agent("paused-2", "paused-2").await;
}

/// A gang never runs twice when its machine is cut off.
async fn cut_a_machine_off(cluster: &mut Cluster) {
    let processes = Processes::default();
    add_machine(cluster, "cut-off-1").await;
    submit(cluster, &processes, ("web", 2), WorkloadClass::Service).await.unwrap();
    submit(cluster, &processes, ("ring", 2), WorkloadClass::Gang).await.unwrap();
    wait_counts(&processes, &[("ring.0", 2), ("web.0", 2)]).await;
    add_machine(cluster, "cut-off-2").await;
    cluster.proxy_to_state("cut-off-1").hold();
    wait_for("both units to run on the other machine", LIMIT, async || {
        let twice = processes.twice("ring");
        assert!(twice.is_none(), "a replica of the gang runs twice: {twice:?}");
        let counts = processes.counts();
        ensure!(counts.get("web.1") == Some(&2) && counts.get("ring.1") == Some(&2), "{counts:?}");
        Ok(())
    })
    .await;
    cluster.proxy_to_state("cut-off-1").heal();
    wait_counts(&processes, &[("ring.1", 2), ("web.1", 2)]).await;
    cluster.audit(&[]);
    cluster.delete_units(&["web", "ring"]);
    cluster.retire_agent("cut-off-1", "cut-off-1").await;
    cluster.retire_agent("cut-off-2", "cut-off-2").await;
}

/// A gang whose agent is killed ends in time, and a service goes on.
async fn kill_the_agent_of_a_gang(cluster: &mut Cluster) {
    let processes = Processes::default();
    // This one makes control groups, where it may.
    cluster.announce(&["control groups"]);
    cluster.start_agent_of_this_machine("killed", "killed", &[]).await;
    cluster.wait_ready().await;
    submit(cluster, &processes, ("web", 1), WorkloadClass::Service).await.unwrap();
    submit(cluster, &processes, ("ring", 2), WorkloadClass::Gang).await.unwrap();
    wait_counts(&processes, &[("ring.0", 2), ("web.0", 1)]).await;
    // With contact it goes on for longer than that.
    let begun = processes.seen();
    keep_up(STOP_AFTER + Duration::from_secs(1)).await;
    assert_eq!(processes.seen(), begun);
    cluster.kill("killed");
    wait_counts(&processes, &[("web.0", 1)]).await;
    cluster.restart("killed");
    cluster.wait_ready().await;
    cluster.delete_units(&["web", "ring"]);
    cluster.retire_agent("killed", "killed").await;
}

/// A machine is replaced under its name.
async fn replace_a_machine(cluster: &mut Cluster) {
    let processes = Processes::default();
    cluster.announce(&[
        "state does not let this agent speak",
        "another installation claims the name",
        "another machine wants the name",
    ]);
    add_machine(cluster, "named").await;
    submit(cluster, &processes, ("web", 2), WorkloadClass::Service).await.unwrap();
    wait_counts(&processes, &[("web.0", 2)]).await;
    let uid = |view: &serde_json::Value| view["uid"].as_str().map(str::to_owned);
    let old = described(cluster, "named", uid).await;
    // Its lease lives: another machine is refused, and both sides say so.
    let settings = [NO_CGROUPS.to_owned()];
    let dir = cluster.path("new.state");
    cluster.start_agent_with("new", "named", &dir, &settings).await;
    wait_logged(cluster, "new", "connected with another uid").await;
    wait_logged(cluster, "named", "another machine wants the name of this node").await;
    let conflict = |view: &serde_json::Value| {
        let is_told = view["status"].as_str()?.contains("Conflict") && view["connected"] == true;
        view["conflict"].as_object().filter(|_| is_told).cloned()
    };
    let conflict = described(cluster, "named", conflict).await;
    assert_eq!(conflict["kind"], "other-installation");
    assert!(conflict["address"].as_str().unwrap().contains(':') && conflict["first_ms"].as_i64() > Some(0));
    wait_counts(&processes, &[("web.0", 2)]).await;
    // The first machine burns down. Its name goes to the other one, and what ran there comes back once.
    cluster.kill("named");
    processes.kill();
    wait_counts(&processes, &[("web.1", 2)]).await;
    let new = described(cluster, "named", |view| uid(view).filter(|new| *new != old)).await;
    // The first machine comes back: it is another one now, and starts nothing.
    cluster.restart("named");
    wait_logged(cluster, "named", "connected with another uid").await;
    let told = |view: &serde_json::Value| (view["conflict"]["uid"] == *old).then(|| uid(view)).flatten();
    assert_eq!(described(cluster, "named", told).await, new);
    wait_counts(&processes, &[("web.1", 2)]).await;
    cluster.audit(&[]);
    cluster.delete_units(&["web"]);
    cluster.stop("named").await;
    cluster.retire_agent("new", "named").await;
}

/// A copy of a state directory is refused beside the agent that it is a copy of.
async fn copy_a_state_directory(cluster: &mut Cluster) {
    let processes = Processes::default();
    add_machine(cluster, "copied").await;
    submit(cluster, &processes, ("web", 3), WorkloadClass::Service).await.unwrap();
    wait_counts(&processes, &[("web.0", 3)]).await;
    let running = processes.seen();
    let copied = cluster.path("copy.state");
    copy_dir(&cluster.path("copied.state").join("identity"), &copied.join("identity"));
    let second = cluster.godel(&["agent", "--name=copied", &format!("--state-dir={}", copied.display())]);
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success(), "{said}");
    assert!(said.contains("another agent of this machine speaks for the node copied"), "{said}");
    assert_eq!(processes.seen(), running, "the one that has the node keeps it, and what runs there");
    cluster.audit(&[]);
    cluster.delete_units(&["web"]);
    cluster.retire_agent("copied", "copied").await;
}

/// A service of one replica on so many GPUs, which does not wait for them in silence.
fn on_gpus(processes: &Processes, name: &str, count: u32) -> v1::UnitSpec {
    let gpus = v1::DeviceRequest { kind: "gpu".into(), count, ..v1::DeviceRequest::default() };
    let mut spec = unit(name, "", 1, resources(10, 1), Some(gpus), 0);
    spec.workload_class = WorkloadClass::Service.into();
    spec.task_groups[0].template.as_mut().unwrap().run = Some(processes.run());
    spec.scheduling_timeout_ms = Some(500);
    spec
}

/// A machine that lost devices gives out none of them.
async fn take_devices_from_a_machine(cluster: &mut Cluster) {
    let processes = Processes::default();
    let inventory = cluster.path("inventory.toml");
    let write = |count: u32| {
        let text =
            format!("replace_devices = ['gpu']\n[[devices]]\nkind = 'gpu'\nmodel = 'X'\ncount = {count}\n");
        std::fs::write(&inventory, text).unwrap();
    };
    write(2);
    let settings = [NO_CGROUPS.to_owned(), format!("agent.inventory={}", inventory.display())];
    cluster.start_agent_of_this_machine("repaired", "repaired", &settings).await;
    cluster.wait_ready().await;
    cluster.api.submit(on_gpus(&processes, "train", 2)).await.unwrap();
    wait_counts(&processes, &[("train.0", 1)]).await;
    // A repair takes one of them, and everything that ran.
    write(1);
    cluster.kill("repaired");
    processes.kill();
    cluster.restart("repaired");
    wait_counts(&processes, &[("train.0", 1)]).await;
    let gpus = |view: &serde_json::Value| {
        let gpus = view["devices"].as_array()?.iter().filter(|device| device["kind"] == "gpu");
        (gpus.count() == 1).then_some(())
    };
    described(cluster, "repaired", gpus).await;
    cluster.api.submit(on_gpus(&processes, "late", 1)).await.unwrap();
    wait_for("the other unit to wait", LIMIT, async || {
        let phase = cluster.api.get_unit("late").await?.unit.unwrap_or_default().phase();
        ensure!(phase == v1::UnitPhase::Unschedulable, "{phase:?}");
        Ok(())
    })
    .await;
    wait_counts(&processes, &[("train.0", 1)]).await;
    succeeded(&cluster.godel(&["unit", "cancel", "train"]));
    wait_counts(&processes, &[("late.0", 1)]).await;
    cluster.audit(&[]);
    cluster.delete_units(&["train", "late"]);
    cluster.retire_agent("repaired", "repaired").await;
}

/// A machine gives notice and leaves for good.
async fn take_a_machine_away(cluster: &mut Cluster) {
    let processes = Processes::default();
    add_machine(cluster, "leaving-1").await;
    submit(cluster, &processes, ("web", 2), WorkloadClass::Service).await.unwrap();
    wait_counts(&processes, &[("web.0", 2)]).await;
    add_machine(cluster, "leaving-2").await;
    let dir = cluster.path("leaving-1.state").display().to_string();
    let agent = |cluster: &Cluster, words: &[&str]| {
        cluster.godel(&[&["agent"], words, &["--name", "leaving-1", "--state-dir", &dir]].concat())
    };
    let refused = agent(cluster, &["leave"]);
    let said = shown(&refused);
    assert!(!refused.status.success() && said.contains("2 running units are bound there"), "{said}");
    assert!(said.contains("`--drain` waits"), "{said}");
    // Nobody's node: the uid decides, not the name.
    let elsewhere = cluster.path("elsewhere").display().to_string();
    let strange =
        cluster.godel(&["agent", "leave", "--force", "--name", "leaving-1", "--state-dir", &elsewhere]);
    assert_eq!(strange.status.code(), Some(4), "{}", shown(&strange));
    succeeded(&agent(cluster, &["notice", "--reason", "spot reclaim", "--deadline", "1h"]));
    let notice = |view: &serde_json::Value| {
        let is_drained = view["drain"]["deadline_ms"] == view["notice"]["deadline_ms"];
        view["notice"]["reason"].as_str().filter(|_| is_drained).map(str::to_owned)
    };
    assert_eq!(described(cluster, "leaving-1", notice).await, "spot reclaim");
    succeeded(&agent(cluster, &["leave", "--drain"]));
    cluster.wait_ended("leaving-1").await;
    wait_counts(&processes, &[("web.1", 2)]).await;
    let nodes =
        cluster.api.nodes().list_nodes(v1::ListNodesRequest::default()).await.unwrap().into_inner().nodes;
    assert_eq!(nodes.len(), 1, "{nodes:?}");
    let gone = agent(cluster, &["leave"]);
    assert_eq!(gone.status.code(), Some(4), "{}", shown(&gone));
    cluster.audit(&[]);
    cluster.delete_units(&["web"]);
    cluster.retire_agent("leaving-1", "leaving-1").await;
    cluster.retire_agent("leaving-2", "leaving-2").await;
}

#[track_caller]
fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", shown(output));
}
