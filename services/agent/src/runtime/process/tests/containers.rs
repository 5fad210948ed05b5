//! Real keepers and an engine that only pretends.

use serde_json::json;

use super::{
    super::{Images, left, seen},
    engine::{Engine, Pull, STARTED_MS},
    *,
};

/// A node that runs images by this engine, as its configuration says.
pub(super) fn node_of(dir: TempDir, config: Config, engine: &Engine) -> Node {
    let images = Images { socket: engine.socket(), installation: uid_of(dir.path()), pull_timeout: LONG };
    let home = home_of(Config { state_dir: Some(dir.path().to_owned()), ..config }, images);
    Node::with(dir, home)
}

/// The uid of the node of a directory: other tests of this machine have others.
fn uid_of(dir: &Path) -> String {
    format!("0a1b2c3d-{}", dir.file_name().unwrap().to_str().unwrap())
}

/// The agent of a node that runs images so.
fn home_at(dir: &Path, images: Images) -> Arc<Home> {
    home_of(Config { state_dir: Some(dir.to_owned()), ..Config::default() }, images)
}

fn home_of(config: Config, images: Images) -> Arc<Home> {
    let uid = images.installation.clone();
    let home = Home::open(&config, "n", keeper(), |_| None).unwrap();
    Arc::new(home.with_images(Some(images)).owned_by(&uid, None))
}

/// An agent whose node runs images by this engine.
fn node_at(dir: TempDir, engine: &Engine, pull_timeout: Duration) -> Node {
    let images = Images { socket: engine.socket(), installation: uid_of(dir.path()), pull_timeout };
    let home = home_at(dir.path(), images);
    Node::with(dir, home)
}

fn node(engine: &Engine) -> Node {
    node_at(tempfile::tempdir().unwrap(), engine, LONG)
}

/// A program in a container of the image that is there.
pub(super) fn image(command: &[&str]) -> Program {
    let command = command.iter().map(|word| (*word).to_owned()).collect();
    Program { command, image: Some("web:1".to_owned()), ..Program::default() }
}

pub(super) fn name_of(incarnation: u32, n: u32) -> String {
    format!("godel-0a1b2c3d-1-0-{incarnation}-{n}")
}

#[tokio::test]
async fn an_image_runs_as_a_container_that_is_removed() {
    let engine = Engine::start();
    let mut node = node(&engine);
    let limits = GroupLimits { cpu_milli: Some(250), memory: Some(64 << 20), ..GroupLimits::default() };
    let env = BTreeMap::from([("WORD".to_owned(), "4711".to_owned())]);
    let program = Program { limits, env, user: Some("www:www".to_owned()), ..image(&["exit", "3"]) };
    node.start(run(0, 4), Program { directory: Some("/srv".to_owned()), gpus: vec![2, 5], ..program });
    assert_eq!(node.started(run(0, 4)).await, STARTED_MS);
    assert_eq!(node.ended(run(0, 4)).await, (3, Some(RunEndReason::Exited)));
    assert_eq!(node.log(run(0, 4)), "hello\nagain\n");
    assert_eq!(engine.names(), [""; 0], "it is removed");
    // Without a command the image says what runs.
    node.start(run(0, 5), image(&[]));
    node.started(run(0, 5)).await;
    assert_eq!(node.ended(run(0, 5)).await, (0, Some(RunEndReason::Exited)));
    assert_eq!(engine.n_asked("images/create"), 0, "what is there is not fetched");
}

#[tokio::test]
async fn a_container_is_what_its_unit_says_and_no_more() {
    let engine = Engine::start();
    let mut node = node(&engine);
    let env = BTreeMap::from([("WORD".to_owned(), "4711".to_owned())]);
    let limits =
        GroupLimits { memory: Some(1), cpus: vec![3, 0, 1], memory_nodes: vec![0], ..GroupLimits::default() };
    node.start(run(0, 4), Program { env, limits, gpus: vec![2, 5], ..image(&["sleep", "1"]) });
    node.started(run(0, 4)).await;
    let body = engine.with(|world| world.containers[&name_of(4, 0)].body.clone());
    let labels = json!({
        "godel.node": "n", "godel.unit": "1", "godel.ordinal": "0", "godel.incarnation": "4",
        "godel.installation": uid_of(node.dir.path()),
    });
    assert_eq!(
        (&body["Labels"], &body["Entrypoint"], &body["Cmd"]),
        (&labels, &json!(["sleep", "1"]), &json!(null))
    );
    let env = body["Env"].as_array().unwrap();
    let dir = node.dir.path();
    let (dir, uid) = (format!("GODEL_NODE_DIR={}", dir.display()), format!("GODEL_NODE_UID={}", uid_of(dir)));
    let (mark, others) = env.split_last().unwrap();
    assert_eq!(*others, [json!("GODEL_NODE=n"), json!(dir), json!(uid), json!("WORD=4711")]);
    assert!(mark.as_str().unwrap().starts_with("GODEL_RUN="));
    let host = &body["HostConfig"];
    assert_eq!(
        (&host["Memory"], &host["MemorySwap"], &host["CpuShares"]),
        (&json!(16 << 20), &json!(16 << 20), &json!(2))
    );
    assert_eq!(
        (&host["CpusetCpus"], &host["CpusetMems"], &host["NanoCpus"]),
        (&json!("0-1,3"), &json!("0"), &json!(null))
    );
    assert_eq!(
        (&host["Init"], &host["NetworkMode"], &host["LogConfig"]["Type"]),
        (&json!(true), &json!("host"), &json!("none"))
    );
    assert_eq!(host["DeviceRequests"][0]["DeviceIDs"], json!(["2", "5"]));
    assert!(node.processes.stop(run(0, 4), Duration::ZERO, Told));
    node.ended(run(0, 4)).await;
}

#[tokio::test]
async fn a_container_is_stopped_politely_then_by_force() {
    let engine = Engine::start();
    let mut node = node(&engine);
    node.start(run(0, 0), image(&["sleep"]));
    node.started(run(0, 0)).await;
    assert!(node.processes.stop(run(0, 0), LONG, Told));
    assert_eq!(node.ended(run(0, 0)).await, (143, Some(Told)));
    node.start(run(0, 1), image(&["deaf"]));
    node.started(run(0, 1)).await;
    assert!(node.processes.stop(run(0, 1), LONG, Told));
    wait_until("it was asked", || engine.with(|world| world.signals.len()) == 2).await;
    assert!(node.processes.stop(run(0, 1), Duration::ZERO, Told), "a later stop may be sooner");
    assert_eq!(node.ended(run(0, 1)).await, (137, Some(Told)));
    engine.with(|world| assert_eq!(world.signals, ["SIGTERM", "SIGTERM", "SIGKILL"]));
}

#[tokio::test]
async fn a_container_without_memory_or_killed_says_so() {
    let engine = Engine::start();
    let mut node = node(&engine);
    for (command, ended) in [
        (["oom"].as_slice(), (137, RunEndReason::OutOfMemory)),
        (&["exit", "139"], (139, RunEndReason::Signalled)),
        (&["exit", "137"], (137, RunEndReason::Signalled)),
    ] {
        node.start(run(0, 0), image(command));
        node.started(run(0, 0)).await;
        assert_eq!(node.ended(run(0, 0)).await, (ended.0, Some(ended.1)));
    }
}

#[tokio::test]
async fn a_missing_image_is_fetched_or_it_says_why_not() {
    let engine = Engine::start();
    let mut node = node_at(tempfile::tempdir().unwrap(), &engine, Duration::from_millis(50));
    let absent = Program { image: Some("reg:5000/a/b".to_owned()), ..image(&["exit", "0"]) };
    for (incarnation, how, why) in
        [(0, Pull::Refused, "no such host"), (1, Pull::Hangs, "no answer in 0.05 s")]
    {
        engine.with(|world| world.pull = how);
        node.start(run(0, incarnation), absent.clone());
        assert_eq!(node.refused(run(0, incarnation)).await, AssignmentRefusal::Engine);
        let log = node.log(run(0, incarnation));
        let begins = "[godel: the image `reg:5000/a/b` is not on this node, and it cannot be pulled: ";
        assert!(log.starts_with(begins) && log.contains(why), "{log}");
    }
    engine.with(|world| world.pull = Pull::Delivered);
    let latest = Program { image: Some("reg:5000/a/b:latest".to_owned()), ..absent };
    node.start(run(0, 2), latest);
    node.started(run(0, 2)).await;
    assert_eq!(node.ended(run(0, 2)).await, (0, Some(RunEndReason::Exited)));
    assert_eq!(engine.names(), [""; 0]);
}

#[tokio::test]
async fn a_stop_ends_the_wait_for_an_image() {
    let engine = Engine::start();
    engine.with(|world| world.pull = Pull::Hangs);
    let mut node = node(&engine);
    node.start(run(0, 0), Program { image: Some("other:1".to_owned()), ..image(&[]) });
    wait_until("it is being fetched", || engine.n_asked("images/create") == 1).await;
    assert!(node.processes.stop(run(0, 0), LONG, Told));
    assert_eq!(node.ended(run(0, 0)).await, (143, Some(Told)));
    assert_eq!(engine.n_asked("containers/create"), 0, "nothing was made");
}

#[tokio::test]
async fn a_container_that_does_not_start_says_why() {
    let engine = Engine::start();
    let mut node = node(&engine);
    for (words, reason) in [
        ("unable to find user eve: no matching entries", RunEndReason::NoUser),
        ("could not select device driver", RunEndReason::CannotStart),
    ] {
        engine.with(|world| world.start_error = Some(words));
        node.start(run(0, 0), image(&["exit", "0"]));
        assert_eq!(node.ended(run(0, 0)).await, (127, Some(reason)));
        let said = format!("[godel: the container cannot be started: {words}]\n");
        assert!(node.log(run(0, 0)).ends_with(&said));
        assert_eq!(engine.names(), [""; 0], "what was made is removed");
    }
    // A node without an engine, and one whose engine has gone.
    let mut plain = Node::new(false);
    plain.start(run(0, 0), image(&[]));
    assert_eq!(plain.refused(run(0, 0)).await, AssignmentRefusal::Keeper);
}

#[tokio::test]
async fn an_engine_that_is_away_is_waited_for_before_the_start_too() {
    let engine = Engine::start();
    let mut node = node(&engine);
    let (socket, aside) = (engine.socket(), engine.socket().with_extension("aside"));
    std::fs::rename(&socket, &aside).unwrap();
    node.start(run(0, 0), image(&["exit", "3"]));
    let waits = "[godel: the Docker engine does not answer: ";
    let log = node.dir.path().join("logs/1-0-0");
    wait_until("it waits and says so", || {
        let said = logs::read(&log, 0, usize::MAX);
        said.is_ok_and(|said| String::from_utf8_lossy(&said.bytes).starts_with(waits))
    })
    .await;
    std::fs::rename(&aside, &socket).unwrap();
    node.started(run(0, 0)).await;
    assert_eq!(node.ended(run(0, 0)).await, (3, Some(RunEndReason::Exited)), "it ran, and once");
    assert_eq!(engine.n_asked("/start"), 1);
}

#[tokio::test]
async fn a_registry_that_is_away_is_asked_again_until_the_image_is_due() {
    let engine = Engine::start();
    let mut node = node(&engine);
    let absent = Program { image: Some("other:1".to_owned()), ..image(&["exit", "0"]) };
    node.start(run(0, 0), absent.clone());
    wait_until("it is asked again", || engine.n_asked("images/create") == 2).await;
    engine.with(|world| world.pull = Pull::Delivered);
    node.started(run(0, 0)).await;
    assert_eq!(node.ended(run(0, 0)).await, (0, Some(RunEndReason::Exited)));
    // One that does not deliver in time is no end of the replica: it is given back.
    engine.with(|world| (world.pull, world.images) = (Pull::Refused, Default::default()));
    let mut hasty = node_at(tempfile::tempdir().unwrap(), &engine, Duration::from_millis(1));
    hasty.start(run(0, 0), absent);
    assert_eq!(hasty.refused(run(0, 0)).await, AssignmentRefusal::Engine);
}

#[tokio::test]
async fn a_container_goes_on_while_its_engine_is_away() {
    let engine = Engine::start();
    let mut node = node(&engine);
    node.start(run(0, 0), image(&["sleep"]));
    node.started(run(0, 0)).await;
    engine.cut_connections();
    wait_until("it is asked for again", || engine.n_asked("/attach") == 2).await;
    engine.end(&name_of(0, 0), 5);
    assert_eq!(node.ended(run(0, 0)).await, (5, Some(RunEndReason::Exited)));
    assert_eq!(engine.n_asked("/start"), 1);
}

#[tokio::test]
async fn a_killed_keeper_leaves_no_container() {
    let engine = Engine::start();
    let mut node = node(&engine);
    node.start(run(0, 0), image(&["sleep"]));
    node.started(run(0, 0)).await;
    let kill = |keeper: files::Keeper| {
        let pid = Pid::from_raw(i32::try_from(keeper.pid).unwrap()).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
    };
    kill(node.keeper_of("1-0-0.0"));
    assert_eq!(node.ended(run(0, 0)).await, (137, Some(RunEndReason::Lost)));
    assert_eq!(engine.names(), [""; 0]);
    // Its agent is killed as well: the next one ends what is left.
    node.start(run(0, 1), image(&["sleep"]));
    node.started(run(0, 1)).await;
    let keeper = node.keeper_of("1-0-1.0");
    let Node { dir, processes, events, home } = node;
    drop((processes, events, home));
    let process = keeper.process();
    kill(keeper);
    wait_until("it has ended", || process.open().is_none()).await;
    let next = node_at(dir, &engine, LONG);
    let found = left::find(Arc::clone(&next.home)).await.unwrap();
    assert!(found.iter().all(|left| !left.goes_on()), "{found:?}");
    assert_eq!(engine.names(), [""; 0]);
}

#[tokio::test]
async fn the_next_agent_goes_on_with_a_container() {
    let engine = Engine::start();
    let mut node = node(&engine);
    node.start(run(0, 0), image(&["sleep"]));
    node.started(run(0, 0)).await;
    let Node { dir, processes, events, home } = node;
    drop((processes, events, home));
    // Something that an earlier keeper has left, and a container of somebody else.
    engine.with(|world| {
        let left = world.containers[&name_of(0, 0)].clone();
        world.containers.insert(name_of(9, 9), left);
        world.containers.insert("other".to_owned(), super::engine::Pretended::default());
    });
    let mut next = node_at(dir, &engine, LONG);
    let mut found = left::find(Arc::clone(&next.home)).await.unwrap();
    assert_eq!(found.len(), 1);
    let left = found.remove(0);
    assert!(left.goes_on() && left.started_ms == STARTED_MS, "{left:?}");
    let kept = left.run.container.clone().unwrap().name;
    left::end_containers(&next.home, |one| one.name == kept).await;
    assert_eq!(engine.names(), [name_of(0, 0), "other".to_owned()]);
    next.processes.adopt(run(0, 0), left);
    engine.end(&name_of(0, 0), 6);
    assert_eq!(next.ended(run(0, 0)).await, (6, Some(RunEndReason::Exited)));
    assert_eq!((engine.n_asked("/start"), engine.names()), (1, vec!["other".to_owned()]));
}

#[tokio::test]
async fn without_a_state_directory_containers_end_too() {
    let engine = Engine::start();
    let installation = "0a1b2c3d".to_owned();
    let images = Images { socket: engine.socket(), installation, pull_timeout: LONG };
    let home = Home::open(&Config::default(), "n", keeper(), |_| None).unwrap().with_images(Some(images));
    let mut node = Node::with(tempfile::tempdir().unwrap(), Arc::new(home));
    node.start(run(0, 0), Program { stop_grace_ms: 60_000, ..image(&["sleep"]) });
    node.started(run(0, 0)).await;
    drop(node);
    wait_until("it was stopped and removed", || engine.names().is_empty()).await;
    engine.with(|world| assert_eq!(world.signals, ["SIGTERM"]));
}

#[tokio::test]
async fn of_a_replica_no_second_container_runs() {
    let engine = Engine::start();
    let mut node = node(&engine);
    node.start(run(0, 3), image(&["sleep"]));
    node.started(run(0, 3)).await;
    let copy = engine.with(|world| world.containers[&name_of(3, 0)].clone());
    assert!(node.processes.stop(run(0, 3), Duration::ZERO, Told));
    node.ended(run(0, 3)).await;
    // What a killed keeper has left while the engine was away: of an earlier life, and of another replica.
    let mut other = copy.clone();
    other.body["Labels"]["godel.ordinal"] = json!("1");
    engine.with(|world| world.containers.extend([(name_of(3, 7), copy), ("another".to_owned(), other)]));
    node.start(run(0, 4), image(&["sleep"]));
    node.started(run(0, 4)).await;
    assert_eq!(engine.names(), ["another".to_owned(), name_of(4, 0)]);
    assert!(node.processes.stop(run(0, 4), Duration::ZERO, Told));
    node.ended(run(0, 4)).await;
}

#[tokio::test]
async fn a_container_without_contact_ends_by_itself() {
    let engine = Engine::start();
    let mut node = node(&engine);
    node.home.renew_contact(0);
    node.start(run(0, 0), Program { stop_after_ms: 400, ..image(&["sleep"]) });
    node.started(run(0, 0)).await;
    assert_eq!(node.ended(run(0, 0)).await, (137, Some(NoContact)));
    engine.with(|world| assert_eq!(world.signals, ["SIGKILL"], "the grace is over already"));
}

/// Kills the agent and then the keepers of these starts: nobody sees how their containers end. The directory stays.
async fn kill_all(node: Node, names: &[&str]) -> TempDir {
    let keepers: Vec<_> = names.iter().map(|name| node.keeper_of(name).process()).collect();
    let Node { dir, processes, events, home } = node;
    let left = Arc::downgrade(&home);
    drop((processes, events, home));
    wait_until("the agent has ended", || left.strong_count() == 0).await;
    for keeper in keepers {
        keeper.signal(Signal::KILL);
        wait_until("its keeper has ended", || keeper.open().is_none()).await;
    }
    dir
}

/// What an audit is told of containers that no run owns.
async fn orphans(home: &Arc<Home>) -> Vec<String> {
    let seen = seen::look(Arc::clone(home)).await;
    assert_eq!(seen.failure, None);
    seen.orphans.into_iter().map(|orphan| orphan.name).collect()
}

#[tokio::test]
async fn containers_of_a_removed_directory_are_found_by_their_node() {
    let engine = Engine::start();
    let mut node = node(&engine);
    node.start(run(0, 0), image(&["sleep"]));
    node.started(run(0, 0)).await;
    node.start(run(1, 0), image(&["deaf"]));
    node.started(run(1, 0)).await;
    let dir = kill_all(node, &["1-0-0.0", "1-1-0.0"]).await;
    std::fs::remove_dir_all(dir.path().join("runs")).unwrap();
    // A node of the same name, of another directory and another cluster.
    engine.with(|world| {
        let mut other = world.containers[&name_of(0, 0)].clone();
        other.body["Labels"]["godel.installation"] = json!("other");
        other.body["Env"] = json!(["GODEL_NODE=n", "GODEL_NODE_UID=other", "GODEL_NODE_DIR=/elsewhere"]);
        world.containers.insert("another".to_owned(), other);
    });
    // With the directory went the uid of the node.
    let installation = format!("fresh{}", uid_of(dir.path()));
    let images = Images { socket: engine.socket(), installation, pull_timeout: LONG };
    let next = home_at(dir.path(), images);
    let left = [name_of(0, 0), "godel-0a1b2c3d-1-1-0-0".to_owned()];
    assert_eq!(orphans(&next).await, left);
    assert!(left::find(Arc::clone(&next)).await.unwrap().is_empty());
    left::end_containers(&next, |_| false).await;
    assert_eq!((engine.names(), orphans(&next).await), (vec!["another".to_owned()], Vec::new()));
    engine.with(|world| assert_eq!(world.signals, ["SIGTERM", "SIGTERM"], "politely, then by their removal"));
}

#[tokio::test]
async fn containers_of_another_directory_are_found_by_node_and_cluster() {
    let engine = Engine::start();
    let mut node = node(&engine);
    let store = uuid::Uuid::new_v4().as_u64_pair().0;
    node.home.set_store(store);
    node.start(run(0, 0), image(&["sleep"]));
    node.started(run(0, 0)).await;
    // Nothing but the container is left, and the next agent has another directory.
    drop(kill_all(node, &["1-0-0.0"]).await);
    let copy = engine.with(|world| world.containers[&name_of(0, 0)].clone());
    let mut next = node_at(tempfile::tempdir().unwrap(), &engine, LONG);
    next.start(run(7, 0), image(&["sleep"]));
    next.started(run(7, 0)).await;
    left::end_containers(&next.home, |one| one.is_own).await;
    left::end_predecessors(Arc::clone(&next.home), store ^ 1).await;
    let own = "godel-0a1b2c3d-1-7-0-0".to_owned();
    assert_eq!(engine.names(), [name_of(0, 0), own.clone()], "of its cluster nothing is known");
    left::end_predecessors(Arc::clone(&next.home), store).await;
    assert_eq!(engine.names(), std::slice::from_ref(&own));
    // Before a replica starts nothing else of it may run either, whoever has left it.
    engine.with(|world| world.containers.insert("left".to_owned(), copy));
    next.home.set_store(store);
    assert_eq!(orphans(&next.home).await, ["left"]);
    next.start(run(0, 0), image(&["sleep"]));
    next.started(run(0, 0)).await;
    assert_eq!(engine.names(), [name_of(0, 0), own]);
    for of in [run(0, 0), run(7, 0)] {
        assert!(next.processes.stop(of, Duration::ZERO, Told));
        next.ended(of).await;
    }
}

#[tokio::test]
async fn an_engine_that_comes_late_is_asked_for_what_nobody_owns() {
    let engine = Engine::start();
    let mut node = node(&engine);
    for ordinal in [0, 1] {
        node.start(run(ordinal, 0), image(&["sleep"]));
        node.started(run(ordinal, 0)).await;
    }
    engine.with(|world| {
        let copy = world.containers[&name_of(0, 0)].clone();
        world.containers.insert("left".to_owned(), copy);
    });
    left::end_unknown_containers(&node.home).await;
    assert_eq!(engine.names(), [name_of(0, 0), "godel-0a1b2c3d-1-1-0-0".to_owned()]);
    for ordinal in [0, 1] {
        assert!(node.processes.stop(run(ordinal, 0), Duration::ZERO, Told));
        node.ended(run(ordinal, 0)).await;
    }
}
