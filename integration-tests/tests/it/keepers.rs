//! Commands of real nodes, and what becomes of them when their agent is stopped, killed or replaced. What runs is counted from
//! `/proc`, not asked of godel. The nodes are of one control plane, one after the other.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};
use godel_integration_tests::{
    cluster::{
        Cluster, Layout,
        kept::{self, Process},
        shown,
    },
    settings,
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;

use crate::volumes;

/// Rounds of each way to lose an agent: a share in `make test`, all in `make test-long`.
const N_ROUNDS: usize = 2;
const N_ROUNDS_LONG: usize = 20;
/// Running units of the node.
const N_RUNNING: u32 = 10;
pub(crate) const NODE: &str = "real";

/// A control plane and the agent of this machine.
pub(crate) async fn one_real_node(program: PathBuf, settings: &[String]) -> Cluster {
    real_node_called(NODE, program, settings).await
}

/// The same, where the node has a name of its own.
pub(crate) async fn real_node_called(node: &str, program: PathBuf, settings: &[String]) -> Cluster {
    let layout = Layout {
        n_nodes: 0,
        n_dispatchers: 1,
        n_schedulers: 1,
        n_binders: 1,
        settings: vec![
            ("state.heartbeat_interval".to_owned(), "200ms".to_owned()),
            ("state.node_lease_ttl".to_owned(), "2s".to_owned()),
        ],
        ..Layout::default()
    };
    let mut cluster = Cluster::start(layout).await;
    // This machine may have anything, and may not let us make control groups.
    cluster.announce(&["the topology of this machine", "control groups"]);
    cluster.start_agent_of_this_machine_by(node, program, settings).await;
    cluster.wait_ready().await;
    cluster
}

/// A unit whose replicas run a script, each with the mark in its environment.
pub(crate) fn command(name: &str, replicas: u32, script: &str, mark: &str) -> v1::UnitSpec {
    let mut spec = unit(name, "", replicas, resources(10, 1), None, 0);
    spec.workload_class = v1::WorkloadClass::Service.into();
    let template = spec.task_groups[0].template.as_mut().unwrap();
    template.run = Some(v1::RunSpec {
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        env: std::iter::once(("MARK".to_owned(), mark.to_owned())).collect(),
        stop_grace_ms: 10_000,
        ..v1::RunSpec::default()
    });
    spec
}

fn cancel(cluster: &Cluster, name: &str) {
    let output = cluster.godel(&["unit", "cancel", name]);
    assert!(output.status.success(), "{}", shown(&output));
}

fn mark(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// Waits until so many processes have the mark, and returns them.
async fn wait_marked(mark: &str, n: usize) -> BTreeSet<Process> {
    wait_for(&format!("{n} processes"), LIMIT, async || -> Result<_> {
        let found = kept::with_env("MARK", mark);
        ensure!(found.len() == n, "{} run", found.len());
        Ok(found)
    })
    .await
}

/// Waits until every replica of the unit runs in its first incarnation, without a restart, and godel says so.
pub(crate) async fn wait_running(cluster: &Cluster, name: &str, n: u32) {
    wait_for(&format!("{name} to run"), LIMIT, async || {
        let running = cluster.api.get_unit(name).await?.running_units;
        let is_so = |run: &v1::RunningUnit| {
            run.phase() == v1::RunPhase::Running && run.incarnation == 0 && run.restarts == 0
        };
        ensure!(running.len() == usize::try_from(n)? && running.iter().all(is_so), "{running:?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_outlive_their_agent_and_run_once() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("godel");
    fs::copy(settings::godel_bin(), &program).unwrap();
    let mut cluster = real_node_called("ten", program.clone(), &[]).await;
    replace_agents_of_ten_processes(&mut cluster, "ten", &program).await;
    cluster.retire_agent("ten", "ten").await;

    add_node(&mut cluster, "ends", &[]).await;
    end_commands_without_an_agent(&mut cluster, "ends").await;
    cluster.retire_agent("ends", "ends").await;

    add_node(&mut cluster, "polite", &["agent.units_at_stop=end".to_owned()]).await;
    end_commands_with_their_agent(&mut cluster, "polite").await;
    cluster.retire_agent("polite", "polite").await;

    add_node(&mut cluster, NODE, &[]).await;
    start_a_second_agent(&cluster);
    volumes::keep_volumes(&mut cluster).await;
    volumes::mount_a_volume(&cluster).await;
    measure_a_cpu_hog(&cluster).await;
    cluster.assert_quiet();
}

/// One more real node of the cluster.
async fn add_node(cluster: &mut Cluster, node: &str, settings: &[String]) {
    cluster.start_agent_of_this_machine(node, node, settings).await;
    cluster.wait_ready().await;
}

/// Ten processes outlive their agent, whether it is killed, stopped or replaced by another binary, and run once.
async fn replace_agents_of_ten_processes(cluster: &mut Cluster, node: &str, program: &Path) {
    let n_rounds = if settings::is_long() { N_ROUNDS_LONG } else { N_ROUNDS };
    let update = program.with_extension("new");
    let mark = mark("ten");
    cluster.api.submit(command("ten", N_RUNNING, "exec sleep 100000", &mark)).await.unwrap();
    let n = usize::try_from(N_RUNNING).unwrap();
    wait_running(cluster, "ten", N_RUNNING).await;
    let begun = wait_marked(&mark, n).await;
    let keepers = kept::keepers(&cluster.state_dir(node));
    assert_eq!(keepers.len(), n);
    for round in 0..3 * n_rounds {
        let is_killed = round % 3 == 0;
        cluster.note(&format!("round {round}"));
        match round % 3 {
            0 => cluster.kill(node),
            1 => cluster.stop(node).await,
            // The binary is replaced while the agent runs, as package managers do it.
            _ => {
                fs::copy(settings::godel_bin(), &update).unwrap();
                fs::rename(&update, program).unwrap();
                cluster.stop(node).await;
            }
        }
        assert_eq!(
            kept::with_env("MARK", &mark),
            begun,
            "they go on without their agent: killed {is_killed}"
        );
        cluster.restart(node);
        wait_for("the next agent to take them over", LIMIT, async || {
            let n_taken = cluster.log(node).matches("of an earlier agent are taken over").count();
            ensure!(n_taken == round + 1, "{n_taken} agents have");
            Ok(())
        })
        .await;
        cluster.wait_ready().await;
        wait_running(cluster, "ten", N_RUNNING).await;
        assert_eq!(kept::with_env("MARK", &mark), begun, "the same ones, each once: killed {is_killed}");
        assert_eq!(kept::keepers(&cluster.state_dir(node)), keepers);
    }
    // The last agent knows them: it ends them all.
    cluster.delete_units(&["ten"]);
    wait_marked(&mark, 0).await;
    wait_for("the end of all keepers", LIMIT, async || {
        let left = kept::keepers(&cluster.state_dir(node)).len();
        ensure!(left == 0, "{left} are left");
        Ok(())
    })
    .await;
}

/// Ends without an agent are reported by the next one.
async fn end_commands_without_an_agent(cluster: &mut Cluster, node: &str) {
    let mark = mark("ends");
    let go = cluster.path("go");
    let script = format!("while ! test -e {}; do sleep 0.02; done; exit 7", go.display());
    let mut spec = command("ends", 3, &script, &mark);
    spec.workload_class = v1::WorkloadClass::Batch.into();
    spec.max_restarts = Some(0);
    cluster.api.submit(spec).await.unwrap();
    cluster.api.submit(command("gone", 2, "setsid sleep 100000 & exec sleep 100000", &mark)).await.unwrap();
    wait_running(cluster, "ends", 3).await;
    wait_running(cluster, "gone", 2).await;
    cluster.kill(node);
    fs::write(go, "").unwrap();
    cancel(cluster, "gone");
    // Three have ended meanwhile; what is cancelled waits for an agent.
    wait_marked(&mark, 4).await;
    cluster.restart(node);
    wait_marked(&mark, 0).await;
    wait_for("the ends", LIMIT, async || {
        let running = cluster.api.get_unit("ends").await?.running_units;
        for run in &running {
            let is_so = run.exit_code == 7 && run.reason() == v1::RunEndReason::Exited;
            ensure!(is_so && run.phase() == v1::RunPhase::Failed && run.incarnation == 0, "{run:?}");
            ensure!(run.started_time_ms > 0 && run.ended_time_ms >= run.started_time_ms, "{run:?}");
        }
        let gone = cluster.api.get_unit("gone").await?.running_units;
        for run in &gone {
            let is_so =
                run.reason() == v1::RunEndReason::Told && run.eviction() == v1::EvictionReason::Cancelled;
            ensure!(is_so && run.phase() == v1::RunPhase::Stopped, "{run:?}");
        }
        ensure!(running.len() == 3 && gone.len() == 2);
        Ok(())
    })
    .await;
    cluster.delete_units(&["ends", "gone"]);
}

/// An agent may end what it runs when it is stopped.
async fn end_commands_with_their_agent(cluster: &mut Cluster, node: &str) {
    let mark = mark("at-stop");
    let file = cluster.path("ended");
    // It takes its time, which it is given.
    let script =
        format!("trap 'sleep 0.3; echo >> {}; exit 0' TERM; while :; do sleep 0.02; done", file.display());
    cluster.api.submit(command("polite", 3, &script, &mark)).await.unwrap();
    wait_running(cluster, "polite", 3).await;
    cluster.stop(node).await;
    assert_eq!(kept::with_env("MARK", &mark).len(), 0, "nothing outlives the agent");
    assert_eq!(fs::read_to_string(file).unwrap(), "\n\n\n", "each was asked");
    wait_for("state to hear of it", LIMIT, async || {
        let running = cluster.api.get_unit("polite").await?.running_units;
        let is_over = |run: &v1::RunningUnit| run.incarnation == 1 || run.phase() == v1::RunPhase::Stopped;
        ensure!(running.len() == 3 && running.iter().all(is_over), "{running:?}");
        Ok(())
    })
    .await;
    // What is bound there once more ends where there is an agent.
    cluster.restart(node);
    cluster.wait_ready().await;
    cluster.delete_units(&["polite"]);
}

/// One state directory is for one agent.
fn start_a_second_agent(cluster: &Cluster) {
    let state_dir = format!("--state-dir={}", cluster.state_dir(NODE).display());
    let second = cluster.godel(&["agent", "--name=second", &state_dir]);
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success(), "{said}");
    assert!(said.contains("another agent uses the state directory"), "{said}");
    assert!(said.contains("agent.state_dir"), "{said}");
}

/// Nanoseconds of CPU time of a process's control group, of either version.
fn cpu_ns(pid: u32) -> Option<u64> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path_of = |controllers: &str| {
        groups.lines().find_map(|line| line.split_once(':')?.1.strip_prefix(controllers)?.strip_prefix(':'))
    };
    if let Some(path) = path_of("cpuacct").or_else(|| path_of("cpu,cpuacct")) {
        let file =
            ["cpuacct", "cpu,cpuacct"].map(|mount| format!("/sys/fs/cgroup/{mount}{path}/cpuacct.usage"));
        let text = file.iter().find_map(|file| fs::read_to_string(file).ok())?;
        return text.trim().parse().ok();
    }
    let text = fs::read_to_string(format!("/sys/fs/cgroup{}/cpu.stat", path_of("")?)).ok()?;
    let usage_us = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    usage_us.parse::<u64>().ok().map(|us| us * 1_000)
}

/// A CPU hog is held to its limit. How much a machine gives to a process depends on what else runs there: only where nothing else
/// does, within 10 %.
async fn measure_a_cpu_hog(cluster: &Cluster) {
    if !settings::is_long() {
        return cluster.note("no CPU hog is measured: GODEL_TEST_LONG=1 has it");
    }
    let mark = mark("hog");
    let mut spec = command("hog", 1, "while :; do :; done", &mark);
    let template = spec.task_groups[0].template.as_mut().unwrap();
    template.demand.as_mut().unwrap().requests = Some(resources(300, 64));
    cluster.api.submit(spec).await.unwrap();
    wait_running(cluster, "hog", 1).await;
    let (pid, _) = *wait_marked(&mark, 1).await.first().unwrap();
    let Some(before) = cpu_ns(pid) else {
        return cluster.note("no CPU hog is measured without control groups");
    };
    let begun = std::time::Instant::now();
    godel_integration_tests::wait::keep_up(std::time::Duration::from_secs(10)).await;
    let used_ns = cpu_ns(pid).unwrap() - before;
    let milli = u128::from(used_ns) * 1_000 / begun.elapsed().as_nanos();
    assert!((270..=330).contains(&milli), "{milli} thousandths of a CPU");
}
