//! As whom runs start: processes and containers, with a table of users and with an identity.

use std::os::unix::fs::{MetadataExt as _, chown};

use serde_json::json;

use super::{
    containers::{image, name_of, node_of},
    engine::Engine,
    *,
};
use crate::{LocalUserConfig, volumes::Volume};

fn row(user: &str, administers: bool) -> LocalUserConfig {
    LocalUserConfig { user: user.to_owned(), administers, ..LocalUserConfig::default() }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// A row for some owners and groups.
fn of(user: &str, owners: &str, groups: &str) -> LocalUserConfig {
    LocalUserConfig { owners: words(owners), groups: words(groups), ..row(user, false) }
}

/// Of a root agent with these users that has an identity, or calls in plain text.
fn config(dir: &Path, users: &[LocalUserConfig], state: &str) -> Config {
    let mut config = Config {
        state_dir: Some(dir.to_owned()),
        log_max_bytes: LOG_BYTES,
        log_files: LOG_FILES,
        users: users.to_vec(),
        ..Config::default()
    };
    state.clone_into(&mut config.client.state);
    config
}

const PLAIN_TEXT: &str = "http://127.0.0.1:7700";
const TLS: &str = "https://127.0.0.1:7700";

fn as_user(user: &str) -> Program {
    let user = Some(user.to_owned()).filter(|user| !user.is_empty());
    Program { user, ..shell("id -u", "") }
}

/// Runs a program of a user to its end; returns how it ended, and its log.
async fn run_as(node: &mut Node, ordinal: u32, user: &str) -> (RunEndReason, String) {
    node.start(run(ordinal, 0), as_user(user));
    let mut event = node.next().await;
    if matches!(event, Event::Started(..)) {
        event = node.next().await;
    }
    let Event::Ended { ended: HowEnded { end, .. }, .. } = event else { panic!("{event:?}") };
    (end.reason.unwrap(), node.log(run(ordinal, 0)))
}

#[tokio::test]
async fn units_run_as_the_users_of_the_table_alone() {
    if !rustix::process::geteuid().is_root() {
        return skip("this test does not run as root");
    }
    let dir = tempfile::tempdir().unwrap();
    let users = [row("4711", false), row("root", false), row("4712", true), row("4714", false)];
    // A directory of the cluster, and what is in it.
    let cluster = tempfile::tempdir().unwrap();
    std::fs::create_dir(cluster.path().join("pki")).unwrap();
    chown(cluster.path().join("pki"), Some(4_714), None).unwrap();
    let cluster_paths = vec![cluster.path().to_owned(), "/no/such/path".into()];
    let config = Config { cluster_paths, ..config(dir.path(), &users, PLAIN_TEXT) };
    let home = Arc::new(Home::open(&config, "n", keeper(), |_| None).unwrap());
    let mut node = Node::with(dir, home);
    for (n, (user, uid)) in (0..).zip([("", "4711\n"), ("4711", "4711\n"), ("4712", "4712\n")]) {
        assert_eq!(run_as(&mut node, n, user).await, (RunEndReason::Exited, uid.to_owned()), "{user}");
    }
    for (n, (user, words)) in (10..).zip([
        ("root", "whoever runs as user 0 can read keys and tokens"),
        ("0", "whoever runs as user 0 can read keys and tokens"),
        ("4713", "`agent.users` does not name that user"),
        ("nobody", "`agent.users` does not name that user"),
        ("4714", "/pki; choose another user, or say `administers` in its row"),
    ]) {
        let (reason, log) = run_as(&mut node, n, user).await;
        assert_eq!(reason, RunEndReason::UserNotPermitted, "{user}: {log}");
        assert!(log.starts_with("[godel: ") && log.contains(words), "{log}");
    }
}

#[tokio::test]
async fn owners_and_groups_run_as_the_users_that_are_for_them() {
    if !rustix::process::geteuid().is_root() {
        return skip("this test does not run as root");
    }
    let dir = tempfile::tempdir().unwrap();
    let users = [
        row("4711", false),
        of("4712", "ann", ""),
        of("4713", "", "etl"),
        of("4714", "yarn-simple:*", ""),
        row("4715", false),
    ];
    let config = config(dir.path(), &users, TLS);
    let home = Arc::new(Home::open(&config, "n", keeper(), |_| None).unwrap());
    let mut node = Node::with(dir, home);
    let mut run_of = async |ordinal, owner: &str, groups: &str, program: Program| {
        let program = Program { owner: owner.to_owned(), owner_groups: words(groups), ..program };
        node.start(run(ordinal, 0), program);
        let mut event = node.next().await;
        if matches!(event, Event::Started(..)) {
            event = node.next().await;
        }
        let Event::Ended { ended: HowEnded { end, .. }, .. } = event else { panic!("{event:?}") };
        (end.reason.unwrap(), node.log(run(ordinal, 0)))
    };
    // As a container of YARN whose agent has `agent.yarn.local_user`.
    let of_yarn = || Program { otherwise_user: Some("4715".to_owned()), ..as_user("") };
    for (n, (owner, groups, program, uid)) in (0..).zip([
        ("ann", "etl", as_user(""), "4712\n"),
        ("bob", "staff etl", as_user(""), "4713\n"),
        ("yarn-simple:ann", "", of_yarn(), "4714\n"),
        ("ann", "", of_yarn(), "4712\n"),
        ("eve", "", of_yarn(), "4715\n"),
        ("eve", "", as_user(""), "4711\n"),
        ("ann", "", as_user("4715"), "4715\n"),
    ]) {
        let expected = (RunEndReason::Exited, uid.to_owned());
        assert_eq!(run_of(n, owner, groups, program).await, expected, "{owner} {groups}");
    }
    let (reason, log) = run_of(20, "eve", "", as_user("4712")).await;
    assert_eq!(reason, RunEndReason::UserNotPermitted, "{log}");
    assert!(log.contains("the row of that user in `agent.users` is for other owners"), "{log}");
}

#[tokio::test]
async fn with_an_identity_units_run_as_the_default_user_and_in_plain_text_as_anybody() {
    if !rustix::process::geteuid().is_root() {
        return skip("this test does not run as root");
    }
    let open = |state| {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(&config(dir.path(), &[], state), "n", keeper(), |_| None).unwrap();
        Node::with(dir, Arc::new(home))
    };
    let mut plain = open(PLAIN_TEXT);
    assert_eq!(run_as(&mut plain, 0, "").await, (RunEndReason::Exited, "0\n".to_owned()));
    assert_eq!(run_as(&mut plain, 1, "4711").await, (RunEndReason::Exited, "4711\n".to_owned()));

    let mut judged = open(TLS);
    let (reason, log) = run_as(&mut judged, 0, "4711").await;
    assert_eq!(reason, RunEndReason::UserNotPermitted, "{log}");
    let (reason, log) = run_as(&mut judged, 1, "").await;
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    if users.lines().any(|line| line.starts_with("godel-unit:")) {
        assert!(reason == RunEndReason::Exited && log != "0\n", "{log}");
    } else {
        assert_eq!(reason, RunEndReason::NoUser);
        assert!(log.contains("`useradd --system --home-dir /nonexistent godel-unit`"), "{log}");
    }
}

#[tokio::test]
async fn a_container_runs_as_a_user_of_the_table_whatever_its_image_says() {
    if !rustix::process::geteuid().is_root() {
        return skip("this test does not run as root");
    }
    let engine = Engine::start();
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &[row("4711", false)], TLS);
    let mut node = node_of(dir, config, &engine);
    let volume = Volume { name: "data".to_owned(), bytes: 1, path: Some("/data".to_owned()) };
    // Without a user the image would say which.
    let program = Program { volumes: vec![volume], unit_uid: "u-1".to_owned(), ..image(&["sleep"]) };
    node.start(run(0, 0), program);
    node.started(run(0, 0)).await;
    let body = engine.with(|world| world.containers[&name_of(0, 0)].body.clone());
    assert_eq!(body["User"], json!("4711:4711"));
    assert_eq!(body["HostConfig"]["SecurityOpt"], json!(["no-new-privileges:true"]));
    let about = std::fs::metadata(node.dir.path().join("volumes/1-0-u-1/data")).unwrap();
    assert_eq!((about.uid(), about.gid(), about.mode() & 0o777), (4_711, 4_711, 0o700));
    assert!(node.processes.stop(run(0, 0), Duration::ZERO, Told));
    node.ended(run(0, 0)).await;
    for (n, user) in (1..).zip(["0", "root", "www", "0:0"]) {
        node.start(run(0, n), Program { user: Some(user.to_owned()), ..image(&["exit", "0"]) });
        let ended = node.ended(run(0, n)).await;
        assert_eq!(ended, (127, Some(RunEndReason::UserNotPermitted)), "{user}");
    }
    assert_eq!(engine.n_asked("containers/create"), 1);
}

#[tokio::test]
async fn a_container_runs_as_the_user_that_is_for_its_owner_or_a_group() {
    if !rustix::process::geteuid().is_root() {
        return skip("this test does not run as root");
    }
    let engine = Engine::start();
    let dir = tempfile::tempdir().unwrap();
    let users = [row("4711", false), of("4712", "ann", ""), of("4713", "", "etl")];
    let config = config(dir.path(), &users, TLS);
    let mut node = node_of(dir, config, &engine);
    for (n, (owner, groups, user, expected)) in (0..).zip([
        ("ann", "etl", "", Some("4712:4712")),
        ("bob", "staff etl", "", Some("4713:4713")),
        ("etl", "", "", Some("4713:4713")),
        ("eve", "staff", "", Some("4711:4711")),
        ("ann", "", "4711", Some("4711:4711")),
        // A row that names somebody is closed to all others.
        ("eve", "", "4712", None),
        ("bob", "staff", "4713", None),
    ]) {
        let program = Program {
            owner: owner.to_owned(),
            owner_groups: words(groups),
            user: Some(user.to_owned()).filter(|user| !user.is_empty()),
            ..image(&["sleep"])
        };
        node.start(run(0, n), program);
        let Some(expected) = expected else {
            let ended = node.ended(run(0, n)).await;
            assert_eq!(ended, (127, Some(RunEndReason::UserNotPermitted)), "{owner} {groups} {user}");
            continue;
        };
        node.started(run(0, n)).await;
        let body = engine.with(|world| world.containers[&name_of(n, 0)].body.clone());
        assert_eq!(body["User"], json!(expected), "{owner} {groups} {user}");
        assert!(node.processes.stop(run(0, n), Duration::ZERO, Told));
        node.ended(run(0, n)).await;
    }
    assert_eq!(engine.n_asked("containers/create"), 5);
}
