//! Units with an image on the Docker engine of this machine, where there is one. What runs is counted by the engine, not asked of godel.
//! The nodes are of one control plane, one after the other.

use std::{collections::BTreeMap, fs};

use anyhow::{Result, ensure};
use godel_integration_tests::{
    cluster::{Cluster, kept, shown},
    engine::{Engine, Which},
    settings,
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;
use godel_testkit::skip;

use super::{keepers::real_node_called, kills::AWAY};

/// The engine of this machine; `None`, said in the output of the test, where none answers.
pub(crate) async fn engine() -> Option<Engine> {
    Engine::open().await.map_err(|error| skip(format!("no Docker engine answers: {error:#}"))).ok()
}

/// What lets a node run containers.
const DOCKER: &str = "agent.docker=on";

/// One more node of the cluster, under a name that no other container has in its labels.
async fn add_node(cluster: &mut Cluster, node: &str) {
    cluster.start_agent_of_this_machine(node, node, &[DOCKER.to_owned()]).await;
    cluster.wait_ready().await;
}

fn node(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// From now on lost nodes are not waited for. Who leads has read the grace when it began to.
async fn shorten_grace(cluster: &mut Cluster) {
    cluster.announce(AWAY);
    let settings = [("GODEL_STATE__NODE_GRACE", "12s"), ("GODEL_STATE__STOP_AFTER_DISCONNECT", "3s")];
    cluster.stop("state").await;
    cluster.restart_with("state", &settings.map(|(key, value)| (key.to_owned(), value.to_owned())));
    cluster.wait_ready().await;
    cluster.stop("dispatcher-1").await;
    cluster.restart("dispatcher-1");
    cluster.wait_ready().await;
}

/// A unit whose replicas run a script in a container.
pub(crate) fn container(engine: &Engine, name: &str, replicas: u32, script: &str) -> v1::UnitSpec {
    let mut spec = unit(name, "", replicas, resources(10, 32), None, 0);
    spec.workload_class = v1::WorkloadClass::Service.into();
    let template = spec.task_groups[0].template.as_mut().unwrap();
    template.run = Some(v1::RunSpec {
        image: engine.image.clone(),
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        env: std::iter::once(("WORD".to_owned(), "4711".to_owned())).collect(),
        stop_grace_ms: 10_000,
        ..v1::RunSpec::default()
    });
    spec
}

/// The same, and an end is an end.
fn once(engine: &Engine, name: &str, script: &str) -> v1::UnitSpec {
    let spec = container(engine, name, 1, script);
    v1::UnitSpec { workload_class: v1::WorkloadClass::Batch.into(), max_restarts: Some(0), ..spec }
}

/// Waits until the only replica of a unit has ended, and returns it.
async fn ended(cluster: &Cluster, name: &str) -> v1::RunningUnit {
    wait_for(&format!("the end of {name}"), LIMIT, async || -> Result<_> {
        let running = cluster.api.get_unit(name).await?.running_units;
        let is_over =
            |phase| matches!(phase, v1::RunPhase::Failed | v1::RunPhase::Succeeded | v1::RunPhase::Stopped);
        let over = running.into_iter().find(|run| is_over(run.phase()));
        over.ok_or_else(|| anyhow::anyhow!("it goes on"))
    })
    .await
}

pub(crate) async fn wait_running(cluster: &Cluster, name: &str, n: usize) {
    wait_for(&format!("{name} to run"), LIMIT, async || {
        let running = cluster.api.get_unit(name).await?.running_units;
        let is_so = |run: &v1::RunningUnit| run.phase() == v1::RunPhase::Running && run.incarnation == 0;
        ensure!(running.len() == n && running.iter().all(is_so), "{running:?}");
        Ok::<_, anyhow::Error>(())
    })
    .await;
}

/// Waits until so many containers of a node run, and none is left of others; returns their ids by name.
async fn wait_containers(engine: &Engine, node: &str, n: usize) -> BTreeMap<String, String> {
    wait_for(&format!("{n} containers"), LIMIT, async || {
        let all = engine.containers(node, Which::All).await?;
        let running = engine.containers(node, Which::Running).await?;
        ensure!(running.len() == n && all == running, "{all:?}");
        Ok::<_, anyhow::Error>(running)
    })
    .await
}

fn cancel(cluster: &Cluster, name: &str) {
    let output = cluster.godel(&["unit", "cancel", name]);
    assert!(output.status.success(), "{}", shown(&output));
}

/// What all replicas on a node have written.
fn written(cluster: &Cluster, node: &str) -> String {
    let logs = cluster.state_dir(node).join("logs");
    let replicas = fs::read_dir(logs).unwrap().flatten();
    let files = replicas.flat_map(|replica| fs::read_dir(replica.path()).unwrap().flatten());
    files.map(|file| String::from_utf8(fs::read(file.path()).unwrap()).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_end_outlive_their_agent_and_run_once() {
    let Some(engine) = engine().await else { return };
    let first = node("ends");
    let mut cluster = real_node_called(&first, settings::godel_bin(), &[DOCKER.to_owned()]).await;
    end_containers_for_a_reason(&cluster, &engine, &first).await;
    keep_a_volume_of_a_container(&cluster, &engine).await;
    wait_containers(&engine, &first, 0).await;
    cluster.retire_agent(&first, &first).await;

    let second = node("outlive");
    add_node(&mut cluster, &second).await;
    kill_agents_of_containers(&mut cluster, &engine, &second).await;
    cluster.retire_agent(&second, &second).await;

    cluster.assert_quiet();
    shorten_grace(&mut cluster).await;
    let third = node("removed");
    add_node(&mut cluster, &third).await;
    cluster.assert_quiet();
    remove_a_state_directory(&mut cluster, &engine, &third).await;
    cluster.retire_agent(&third, &third).await;

    let last = node("gang");
    add_node(&mut cluster, &last).await;
    kill_the_agent_of_a_gang(&mut cluster, &engine, &last).await;
    cluster.assert_quiet();
    drop(cluster);
    wait_containers(&engine, &last, 0).await;
    engine.close().await;
}

/// Containers end for a reason and are removed.
async fn end_containers_for_a_reason(cluster: &Cluster, engine: &Engine, node: &str) {
    let described = cluster.godel(&["node", "describe", node]);
    let described = shown(&described);
    assert!(described.contains("processes and containers"), "{described}");

    let script = "echo out $WORD $GODEL_UNIT; echo err >&2; exit 7";
    cluster.api.submit(once(engine, "seven", script)).await.unwrap();
    let seven = ended(cluster, "seven").await;
    assert_eq!((seven.exit_code, seven.reason()), (7, v1::RunEndReason::Exited), "{seven:?}");
    assert!(seven.started_time_ms > 0 && seven.ended_time_ms >= seven.started_time_ms, "{seven:?}");
    let text = written(cluster, node);
    assert!(text.contains("out 4711 default/seven\n") && text.contains("err\n"), "{text}");

    cluster.api.submit(once(engine, "hog", "tail /dev/zero")).await.unwrap();
    let hog = ended(cluster, "hog").await;
    assert_eq!((hog.exit_code, hog.reason()), (137, v1::RunEndReason::OutOfMemory), "{hog:?}");

    let mut absent = once(engine, "absent", "true");
    let template = absent.task_groups[0].template.as_mut().unwrap();
    template.run.as_mut().unwrap().image = "localhost:1/nobody/has-this:1".to_owned();
    cluster.api.submit(absent).await.unwrap();
    // Its registry does not answer, which may pass.
    wait_for("the registry to be asked again", LIMIT, async || {
        let text = written(cluster, node);
        let is_asked = text.contains("`localhost:1/nobody/has-this:1` is not on this node");
        ensure!(is_asked && text.contains("it is tried again"), "{text}");
        Ok::<_, anyhow::Error>(())
    })
    .await;
    cancel(cluster, "absent");
    let absent = ended(cluster, "absent").await;
    assert_eq!(absent.reason(), v1::RunEndReason::Told, "{absent:?}");

    let polite = "trap 'echo bye; exit 0' TERM; while :; do sleep 0.05; done";
    cluster.api.submit(container(engine, "polite", 1, polite)).await.unwrap();
    wait_running(cluster, "polite", 1).await;
    wait_containers(engine, node, 1).await;
    wait_for("its use and its log", LIMIT, async || {
        let top = cluster.godel(&["top", "unit", "polite", "--replicas", "-o", "json"]);
        let text = String::from_utf8_lossy(&top.stdout).into_owned();
        ensure!(top.status.success() && text.contains("\"memory\""), "{}", shown(&top));
        Ok::<_, anyhow::Error>(())
    })
    .await;
    cancel(cluster, "polite");
    let polite = ended(cluster, "polite").await;
    assert_eq!((polite.exit_code, polite.reason()), (0, v1::RunEndReason::Told), "{polite:?}");
    let log = cluster.godel(&["unit", "logs", "polite/0", "--tail", "1"]);
    assert_eq!(String::from_utf8_lossy(&log.stdout), "bye\n", "{}", shown(&log));
    wait_containers(engine, node, 0).await;
    cluster.delete_units(&["seven", "hog", "absent", "polite"]);
}

/// Containers outlive their agent and run once.
async fn kill_agents_of_containers(cluster: &mut Cluster, engine: &Engine, node: &str) {
    cluster.api.submit(container(engine, "web", 3, "exec sleep 100000")).await.unwrap();
    wait_running(cluster, "web", 3).await;
    let begun = wait_containers(engine, node, 3).await;
    let keepers = kept::keepers(&cluster.state_dir(node));
    for round in 1..=2 {
        cluster.kill(node);
        assert_eq!(engine.containers(node, Which::All).await.unwrap(), begun, "they go on");
        let mut labels = engine.labels(node).await.unwrap().into_values().next().unwrap();
        labels.insert("godel.ordinal".to_owned(), "99".to_owned());
        engine.leave(&format!("godel-left-{node}-{round}"), labels).await.unwrap();
        cluster.restart(node);
        wait_for("the next agent to take them over", LIMIT, async || {
            let n_taken = cluster.log(node).matches("of an earlier agent are taken over").count();
            ensure!(n_taken == round, "{n_taken} agents have");
            Ok(())
        })
        .await;
        cluster.wait_ready().await;
        wait_running(cluster, "web", 3).await;
        assert_eq!(engine.containers(node, Which::All).await.unwrap(), begun, "the same ones, each once");
        assert_eq!(kept::keepers(&cluster.state_dir(node)), keepers);
    }
    // Agent and keepers are killed: what they leave is removed before it is started again.
    cluster.kill(node);
    for (pid, _) in keepers {
        let killed = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
        assert!(killed.success());
    }
    cluster.restart(node);
    wait_for("all of them to have been started again", LIMIT, async || {
        let running = cluster.api.get_unit("web").await?.running_units;
        let is_so = |run: &v1::RunningUnit| run.phase() == v1::RunPhase::Running && run.restarts == 1;
        ensure!(running.len() == 3 && running.iter().all(is_so), "{running:?}");
        Ok(())
    })
    .await;
    let again = wait_containers(engine, node, 3).await;
    assert!(again.values().all(|id| begun.values().all(|old| old != id)), "{again:?}");
    cluster.delete_units(&["web"]);
    wait_containers(engine, node, 0).await;
}

/// A gang in containers ends without contact, and a service goes on.
async fn kill_the_agent_of_a_gang(cluster: &mut Cluster, engine: &Engine, node: &str) {
    let mut gang = container(engine, "gang", 2, "exec sleep 100000");
    gang.workload_class = v1::WorkloadClass::Gang.into();
    cluster.api.submit(gang).await.unwrap();
    cluster.api.submit(container(engine, "web", 1, "exec sleep 100000")).await.unwrap();
    wait_running(cluster, "gang", 2).await;
    wait_running(cluster, "web", 1).await;
    wait_containers(engine, node, 3).await;
    cluster.kill(node);
    wait_containers(engine, node, 1).await;
}

/// Containers of a removed directory end before others start. With the state directory goes the uid of the node: the next agent finds
/// containers by name, directory and cluster.
async fn remove_a_state_directory(cluster: &mut Cluster, engine: &Engine, node: &str) {
    cluster.announce(&[
        "processes of this node were found",
        "its session is over",
        "lost",
        "let this agent speak",
        "another installation claims",
    ]);
    cluster.api.submit(container(engine, "web", 2, "exec sleep 100000")).await.unwrap();
    wait_running(cluster, "web", 2).await;
    let begun = wait_containers(engine, node, 2).await;
    let keepers = kept::keepers(&cluster.state_dir(node));
    cluster.kill(node);
    for (pid, _) in keepers {
        let killed = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
        assert!(killed.success());
    }
    fs::remove_dir_all(cluster.state_dir(node)).unwrap();
    assert_eq!(engine.containers(node, Which::Running).await.unwrap(), begun, "they go on");
    cluster.restart(node);
    wait_for("the next lives of both to run", LIMIT, async || {
        let running = cluster.api.get_unit("web").await?.running_units;
        let is_so = |run: &v1::RunningUnit| run.phase() == v1::RunPhase::Running && run.incarnation > 0;
        ensure!(running.len() == 2 && running.iter().all(is_so), "{running:?}");
        Ok::<_, anyhow::Error>(())
    })
    .await;
    let again = wait_containers(engine, node, 2).await;
    assert!(again.values().all(|id| begun.values().all(|old| old != id)), "{again:?}");
    cluster.audit(&[]);
    cluster.delete_units(&["web"]);
    wait_containers(engine, node, 0).await;
}

/// A container has its volume.
async fn keep_a_volume_of_a_container(cluster: &Cluster, engine: &Engine) {
    let script = "echo start >> /var/data/starts; n=0; while read -r _; do n=$((n + 1)); done < /var/data/starts; \
                  echo \"$GODEL_VOLUME_DATA $n\"; exec sleep 100000";
    let mut spec = container(engine, "db", 1, script);
    let run = spec.task_groups[0].template.as_mut().unwrap().run.as_mut().unwrap();
    run.volumes = vec![v1::Volume { name: "data".to_owned(), bytes: 1 << 20, path: "/var/data".to_owned() }];
    cluster.api.submit(spec).await.unwrap();
    let says = async |words: &str| {
        wait_for(&format!("`{words}`"), LIMIT, async || -> Result<_> {
            let output = cluster.godel(&["unit", "logs", "db"]);
            ensure!(String::from_utf8_lossy(&output.stdout) == words, "{}", shown(&output));
            Ok(())
        })
        .await;
    };
    says("/var/data 1\n").await;
    for verb in ["suspend", "resume"] {
        let output = cluster.godel(&["unit", verb, "db"]);
        assert!(output.status.success(), "{}", shown(&output));
    }
    says("/var/data 2\n").await;
    cluster.delete_units(&["db"]);
}
