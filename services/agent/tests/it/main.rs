//! Agents against a double of state that does and says what each test needs.

#![allow(clippy::unwrap_used, reason = "tests")]

mod clock;
mod containers;
mod fake;
mod sessions;

use std::{collections::BTreeSet, ffi::OsString, time::Duration};

use fake::{Fake, assign, assignment, simulated, stop_request};
use godel_agent::{Config, Deps, Mode, NodeDef, Stats, inventory};
use godel_base::resources::Resources;
use godel_kit::{
    CancellationToken,
    clock::{SharedClock, SystemClock},
    config::HumanDuration,
};
use godel_proto::v1::{self, RunPhase};
use tokio::{sync::watch, task::JoinHandle};

const LONG: Duration = Duration::from_secs(20);

/// The example of this crate, beside the tests.
fn keeper() -> Vec<OsString> {
    let own = std::env::current_exe().unwrap();
    let keeper = own.ancestors().nth(2).unwrap().join("examples/keeper");
    assert!(keeper.exists(), "no {}: it is built with all tests of this crate", keeper.display());
    vec![keeper.into_os_string()]
}

/// This machine, as a node with a state directory.
fn this_node(dir: &std::path::Path) -> NodeDef {
    let node = godel_agent::detect::this_machine(Some("me"), &Config::default()).unwrap();
    let uid = godel_agent::identity::of("me", Some(dir), std::path::Path::new("/")).unwrap();
    NodeDef { uid, ..node }
}

struct Agents {
    stop: CancellationToken,
    stats: watch::Receiver<Stats>,
    task: JoinHandle<Result<(), godel_agent::Error>>,
}

impl Agents {
    fn start(fake: &Fake, nodes: Vec<NodeDef>, mode: Mode, change: impl FnOnce(&mut Config)) -> Self {
        Self::start_by(SystemClock::shared(), fake, nodes, mode, change)
    }

    fn start_by(
        clock: SharedClock,
        fake: &Fake,
        nodes: Vec<NodeDef>,
        mode: Mode,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let mut config = Config {
            connections: 2,
            reconnect_spread: HumanDuration::from_millis(20),
            seed: Some(7),
            ..Config::default()
        };
        config.client.state = fake.address();
        change(&mut config);
        let (stats_tx, stats) = watch::channel(Stats::default());
        let deps = Deps { nodes, mode, clock, stats: stats_tx, says_goodbye: true, keeper: keeper() };
        let stop = CancellationToken::new();
        let task = godel_kit::task::spawn("agents", godel_agent::serve(config, deps, stop.clone()));
        Self { stop, stats, task }
    }

    async fn connected(&mut self, n: usize) {
        let reached = self.stats.wait_for(|stats| stats.connected == n);
        tokio::time::timeout(LONG, reached).await.unwrap().unwrap();
    }

    async fn end(self) {
        self.stop.cancel();
        tokio::time::timeout(LONG, self.task).await.unwrap().unwrap().unwrap();
    }
}

fn phases(report: &v1::RunStatusReport) -> Vec<(u64, RunPhase, i32)> {
    report.statuses.iter().map(|status| (status.unit_id, status.phase(), status.exit_code)).collect()
}

#[tokio::test]
async fn nodes_register_heartbeat_and_run_their_running_units() {
    let mut fake = Fake::start(20).await;
    let nodes = inventory::parse_shape("50x cpu=4,memory=1Gi,gpu=1:A10").unwrap();
    let mut agents = Agents::start(&fake, nodes, Mode::Simulated, |config| config.speed = 1000.0);
    agents.connected(50).await;
    let registered = fake.registered();
    assert_eq!(
        registered.iter().map(|request| &request.meta.as_ref().unwrap().name).collect::<BTreeSet<_>>().len(),
        50
    );
    let report = registered[0].report.as_ref().unwrap();
    assert!(report.ready && report.devices[0].model == "A10");
    // Heartbeats come from every node, with modelled use.
    let mut beating = BTreeSet::new();
    while beating.len() < 50 {
        if let (node, v1::session_request::Message::Heartbeat(beat)) = fake.next().await {
            assert!(beat.usage.is_some());
            beating.insert(node);
        }
    }
    fake.send(3, assignment(9, 20_000, 4));
    assert_eq!(phases(&fake.report_of(3).await), [(9, RunPhase::Running, 0)]);
    fake.send(3, assignment(9, 20_000, 4));
    assert_eq!(phases(&fake.report_of(3).await), [(9, RunPhase::Failed, 4)]);
    fake.ack(3, 2);
    fake.send(4, assignment(10, 0, 0));
    assert_eq!(phases(&fake.report_of(4).await), [(10, RunPhase::Running, 0)]);
    fake.send(4, stop_request(10));
    let report = fake.report_of(4).await;
    assert_eq!((phases(&report), report.sequence), (vec![(10, RunPhase::Stopped, 143)], 2));
    agents.end().await;
}

#[tokio::test]
async fn an_end_not_acknowledged_survives_the_agent() {
    let dir = tempfile::tempdir().unwrap();
    let mut fake = Fake::start(10_000).await;
    let node = || vec![NodeDef::new("n", Resources::new([("cpu", 1000)]).unwrap())];
    let keep = |config: &mut Config| config.state_dir = Some(dir.path().to_owned());
    let mut agents = Agents::start(&fake, node(), Mode::Simulated, keep);
    agents.connected(1).await;
    fake.send(1, assignment(1, 1, 5));
    while !phases(&fake.report_of(1).await).contains(&(1, RunPhase::Failed, 5)) {}
    agents.end().await;

    let mut agents = Agents::start(&fake, node(), Mode::Simulated, keep);
    agents.connected(1).await;
    let open = fake.open_of(1).await;
    assert_eq!(
        (open.running[0].unit_id, open.running[0].phase(), open.running[0].exit_code),
        (1, RunPhase::Failed, 5)
    );
    assert_eq!(phases(&fake.report_of(1).await), [(1, RunPhase::Failed, 5)]);
    fake.ack(1, 1);
    agents.end().await;
}

#[tokio::test]
async fn runs_unknown_to_the_new_store_end_before_others_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("order");
    let mut fake = Fake::start(10_000).await;
    fake.change_store(7, &[]);
    let node = || vec![NodeDef::new("n", Resources::new([("cpu", 1000)]).unwrap())];
    let keep = |config: &mut Config| config.state_dir = Some(dir.path().to_owned());
    let mut agents = Agents::start(&fake, node(), Mode::Processes, keep);
    agents.connected(1).await;
    // It takes its time to end.
    let say = |what: &str| format!("echo {what} >> {}", file.display());
    let trap = format!("sleep 0.2; {}; exit 0", say("ended"));
    let old = format!("trap '{trap}' TERM; {}; while :; do sleep 0.01; done", say("runs"));
    fake.send(1, assign(fake::command(1, &["sh", "-c", &old])));
    fake.send(1, assignment(2, 0, 0));
    fake.send(1, assignment(3, 1, 0));
    let mut said = Vec::new();
    while said.len() < 4 {
        said.extend(phases(&fake.report_of(1).await));
    }
    let begun = async {
        while !file.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, begun).await.unwrap();
    assert!(said.contains(&(3, RunPhase::Succeeded, 0)), "{said:?}");

    fake.change_store(8, &[1, 3]);
    fake.drop_session(1);
    let open = fake.open_of(1).await;
    let running: Vec<(u64, RunPhase)> = open.running.iter().map(|run| (run.unit_id, run.phase())).collect();
    let expected = [(1, RunPhase::Running), (2, RunPhase::Running), (3, RunPhase::Succeeded)];
    assert_eq!((open.store_id, &running[..]), (7, &expected[..]));
    // Another one with the same name, and nothing but that one is spoken of.
    fake.send(1, assign(fake::command(1, &["sh", "-c", &say("new")])));
    let mut said = Vec::new();
    while said.len() < 2 {
        // Unit 2 is there in both stores: what was not acknowledged of it may be said again.
        said.extend(phases(&fake.report_of(1).await).into_iter().filter(|(unit, ..)| *unit != 2));
    }
    assert_eq!(said, [(1, RunPhase::Running, 0), (1, RunPhase::Succeeded, 0)]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "runs\nended\nnew\n");
    agents.end().await;

    // A later start of the agent knows it too.
    let mut agents = Agents::start(&fake, node(), Mode::Processes, keep);
    agents.connected(1).await;
    let open = fake.open_of(1).await;
    let running: Vec<(u64, RunPhase)> = open.running.iter().map(|run| (run.unit_id, run.phase())).collect();
    assert_eq!((open.store_id, &running[..]), (8, &[(1, RunPhase::Succeeded)][..]));
    agents.end().await;
}

/// 1 asks to stop without contact for two seconds, 2 does not.
async fn two_that_differ(fake: &mut Fake) {
    fake.send(1, assign(v1::Assignment { stop_after_disconnect_ms: 2_000, ..simulated(1, 0, 0) }));
    fake.send(1, assignment(2, 0, 0));
    let mut said = Vec::new();
    while said.len() < 2 {
        said.extend(phases(&fake.report_of(1).await));
    }
    assert_eq!(said, [(1, RunPhase::Running, 0), (2, RunPhase::Running, 0)]);
}

#[tokio::test]
async fn without_contact_for_too_long_what_asks_for_it_stops() {
    let mut fake = Fake::start(50).await;
    let node = NodeDef::new("n", Resources::new([("cpu", 1000)]).unwrap());
    let mut agents = Agents::start(&fake, vec![node], Mode::Simulated, |config| {
        config.reconnect_spread = HumanDuration::from_millis(1);
    });
    agents.connected(1).await;
    two_that_differ(&mut fake).await;
    fake.refuse_registrations(true);
    let lost = std::time::Instant::now();
    fake.drop_session(1);
    while lost.elapsed() < Duration::from_secs(2) {
        fake.next_register().await;
    }
    fake.refuse_registrations(false);
    let open = fake.open_of(1).await;
    let running: Vec<(u64, RunPhase)> = open.running.iter().map(|run| (run.unit_id, run.phase())).collect();
    assert_eq!(running, [(1, RunPhase::Stopped), (2, RunPhase::Running)], "before it opens a session");
    agents.end().await;
}

#[tokio::test]
async fn an_open_stream_is_no_contact_but_answered_heartbeats_are() {
    let mut fake = Fake::start(50).await;
    let node = NodeDef::new("n", Resources::new([("cpu", 1000)]).unwrap());
    let mut agents = Agents::start(&fake, vec![node], Mode::Simulated, |_| {});
    agents.connected(1).await;
    two_that_differ(&mut fake).await;
    let answered = std::time::Instant::now();
    while answered.elapsed() < Duration::from_secs(3) {
        assert!(!matches!(fake.next().await, (_, v1::session_request::Message::Status(_))), "all goes on");
    }
    fake.turn_deaf(true);
    // What state sends meanwhile does not count.
    fake.send(1, v1::session_response::Message::HeartbeatIntervalMs(40));
    assert_eq!(phases(&fake.report_of(1).await), [(1, RunPhase::Stopped, 143)]);
    agents.end().await;
}

#[tokio::test]
async fn one_assignment_may_bring_many_that_are_alike() {
    let mut fake = Fake::start(10_000).await;
    let node = NodeDef::new("n", Resources::new([("cpu", 1000)]).unwrap());
    let mut agents = Agents::start(&fake, vec![node], Mode::Simulated, |_| {});
    agents.connected(1).await;
    fake.send(1, assign(v1::Assignment { ordinal: 3, more_ordinals: vec![5, 4], ..simulated(7, 1, 2) }));
    let mut ends = BTreeSet::new();
    while ends.len() < 3 {
        let report = fake.report_of(1).await;
        let ended = report.statuses.iter().filter(|status| status.phase() == RunPhase::Failed);
        ends.extend(ended.map(|status| (status.unit_id, status.ordinal, status.exit_code)));
    }
    assert_eq!(ends.into_iter().collect::<Vec<_>>(), [(7, 3, 2), (7, 4, 2), (7, 5, 2)]);
    agents.end().await;
}

#[tokio::test]
async fn state_says_how_many_statuses_a_report_has() {
    let mut fake = Fake::start(10_000).await;
    fake.limit_reports(2);
    let nodes = inventory::parse_shape("1x cpu=4").unwrap();
    let mut agents = Agents::start(&fake, nodes, Mode::Simulated, |_| {});
    agents.connected(1).await;
    let many = v1::Assignment { more_ordinals: (1..5).collect(), ..simulated(9, 0, 0) };
    fake.send(1, assign(many));
    let mut sizes = Vec::new();
    while sizes.iter().sum::<usize>() < 5 {
        sizes.push(fake.report_of(1).await.statuses.len());
    }
    assert_eq!(sizes, [2, 2, 1]);
    agents.end().await;
}

#[tokio::test]
async fn a_node_asks_for_answers_only_while_something_needs_them() {
    let mut fake = Fake::start(50).await;
    let node = NodeDef::new("n", Resources::new([("cpu", 1000)]).unwrap());
    let mut agents = Agents::start(&fake, vec![node], Mode::Simulated, |_| {});
    agents.connected(1).await;
    fake.turn_deaf(true);
    fake.send(1, assignment(2, 0, 0));
    assert_eq!(phases(&fake.report_of(1).await), [(2, RunPhase::Running, 0)]);
    // Longer than the lease.
    for _ in 0..5 {
        assert_eq!(fake.echo_of(1).await, 0, "nothing here stops without contact");
    }
    fake.send(1, assign(v1::Assignment { stop_after_disconnect_ms: 2_000, ..simulated(1, 0, 0) }));
    while fake.echo_of(1).await == 0 {}
    fake.send(1, stop_request(2));
    for _ in 0..5 {
        assert_ne!(fake.echo_of(1).await, 0, "it waits for an answer, and asks for one");
    }
    fake.turn_deaf(false);
    let mut said = Vec::new();
    while said.len() < 2 {
        said.extend(phases(&fake.report_of(1).await));
    }
    assert_eq!(said, [(1, RunPhase::Running, 0), (2, RunPhase::Stopped, 143)], "in the order of state");
    agents.end().await;
}

#[tokio::test]
async fn what_fails_starts_again_in_place() {
    let mut fake = Fake::start(10_000).await;
    let node = NodeDef::new("n", Resources::new([("cpu", 1000)]).unwrap());
    let mut agents = Agents::start(&fake, vec![node], Mode::Simulated, |config| config.speed = 100.0);
    agents.connected(1).await;
    let on_failure = v1::RestartPolicy::OnFailure.into();
    fake.send(
        1,
        assign(v1::Assignment { restart_policy: on_failure, max_restarts: 2, ..simulated(1, 1, 7) }),
    );
    let mut said = Vec::new();
    while said.last() != Some(&(RunPhase::Failed, 2, 7)) {
        let report = fake.report_of(1).await;
        said.extend(report.statuses.iter().map(|run| (run.phase(), run.restarts, run.exit_code)));
    }
    let expected = [
        (RunPhase::Running, 0, 0),
        (RunPhase::Starting, 1, 0),
        (RunPhase::Running, 1, 0),
        (RunPhase::Starting, 2, 0),
        (RunPhase::Running, 2, 0),
        (RunPhase::Failed, 2, 7),
    ];
    assert_eq!(said, expected);
    agents.end().await;
}

#[tokio::test]
async fn a_command_that_fails_starts_again_and_keeps_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let mut fake = Fake::start(10_000).await;
    let mut agents = Agents::start(&fake, vec![this_node(dir.path())], Mode::Processes, |config| {
        config.speed = 100.0;
        config.state_dir = Some(dir.path().to_owned());
    });
    agents.connected(1).await;
    let always = v1::RestartPolicy::Always.into();
    let command = fake::command(1, &["sh", "-c", "echo once; exit 0"]);
    fake.send(1, assign(v1::Assignment { restart_policy: always, max_restarts: 1, ..command }));
    while !phases(&fake.report_of(1).await).contains(&(1, RunPhase::Succeeded, 0)) {}
    assert_eq!(
        godel_agent::logs::read(&dir.path().join("logs/1-0-0"), 0, 100).unwrap().bytes,
        b"once\nonce\n"
    );
    agents.end().await;
}

#[tokio::test]
async fn a_real_node_runs_commands() {
    let mut fake = Fake::start(10_000).await;
    let node = godel_agent::detect::this_machine(Some("me"), &Config::default()).unwrap();
    let mut agents = Agents::start(&fake, vec![node], Mode::Processes, |_| {});
    agents.connected(1).await;
    fake.send(1, assign(fake::command(1, &["sh", "-c", "test \"$GODEL_UNIT\" = default/u && exit 6"])));
    let mut said = Vec::new();
    while said.len() < 2 {
        said.extend(phases(&fake.report_of(1).await));
    }
    assert_eq!(said, [(1, RunPhase::Running, 0), (1, RunPhase::Failed, 6)]);
    fake.send(1, assign(fake::command(2, &["sleep", "1000"])));
    assert_eq!(phases(&fake.report_of(1).await), [(2, RunPhase::Running, 0)]);
    fake.send(1, stop_request(2));
    assert_eq!(phases(&fake.report_of(1).await), [(2, RunPhase::Stopped, 143)]);
    agents.end().await;
}

#[tokio::test]
async fn a_graceful_end_says_goodbye_for_every_node_behind_all_else() {
    let mut fake = Fake::start(10_000).await;
    let nodes = inventory::parse_shape("3x cpu=4").unwrap();
    let mut agents = Agents::start(&fake, nodes, Mode::Simulated, |_| {});
    agents.connected(3).await;
    fake.send(2, assignment(1, 0, 0));
    fake.report_of(2).await;
    agents.end().await;
    let mut left = BTreeSet::new();
    while left.len() < 3 {
        let (node, message) = fake.next().await;
        assert!(!left.contains(&node), "nothing follows a goodbye: {message:?}");
        if matches!(message, v1::session_request::Message::Leave(_)) {
            left.insert(node);
        }
    }
}

#[tokio::test]
async fn an_agent_without_its_name_ends_what_runs_and_waits() {
    let mut fake = Fake::start(20).await;
    let nodes = inventory::parse_shape("1x cpu=4").unwrap();
    let mut agents = Agents::start(&fake, nodes, Mode::Simulated, |_| {});
    agents.connected(1).await;
    let instance = fake.registered()[0].instance;
    assert_ne!(instance, 0);
    fake.send(1, assignment(9, 0, 0));
    assert_eq!(phases(&fake.report_of(1).await), [(9, RunPhase::Running, 0)]);
    let none: [(&str, &str); 0] = [];
    fake.refuse_with(godel_kit::status::with_info(
        tonic::Code::AlreadyExists,
        godel_kit::status::reason::NODE_DISPLACED,
        "another agent has taken over",
        none,
    ));
    fake.drop_session(1);
    for _ in 0..3 {
        fake.next_register().await;
    }
    fake.refuse_registrations(false);
    let open = fake.open_of(1).await;
    assert_eq!((open.running.len(), open.instance), (0, instance), "what ran is another agent's now");
    // The same unit may come back to it.
    fake.send(1, assignment(9, 0, 0));
    assert_eq!(phases(&fake.report_of(1).await), [(9, RunPhase::Running, 0)]);
    agents.end().await;
}

#[tokio::test]
async fn an_agent_whose_nodes_have_all_left_ends_in_order() {
    let fake = Fake::start(10_000).await;
    let nodes = inventory::parse_shape("2x cpu=4").unwrap();
    let mut agents = Agents::start(&fake, nodes, Mode::Simulated, |_| {});
    agents.connected(2).await;
    let none: [(&str, &str); 0] = [];
    let (code, reason) = (tonic::Code::FailedPrecondition, godel_kit::status::reason::NODE_LEFT);
    for node in [1, 2] {
        fake.end_session(node, godel_kit::status::with_info(code, reason, "the node has left", none));
    }
    tokio::time::timeout(LONG, agents.task).await.unwrap().unwrap().unwrap();
    assert_eq!(fake.registered().len(), 2, "none came back");
}

#[tokio::test]
async fn what_state_will_never_take_is_given_up_and_the_others_go_on() {
    let fake = Fake::start(10_000).await;
    fake.refuse_names(&["node-0001"]);
    let nodes = inventory::parse_shape("3x cpu=4").unwrap();
    let mut agents = Agents::start(&fake, nodes, Mode::Simulated, |_| {});
    agents.connected(2).await;
    let refused = agents.stats.wait_for(|stats| stats.refused == 1);
    tokio::time::timeout(LONG, refused).await.unwrap().unwrap();
    agents.end().await;
}

#[tokio::test]
async fn an_agent_whose_nodes_are_all_refused_ends_with_the_reason() {
    let fake = Fake::start(10_000).await;
    let one = || vec![NodeDef::new("n", Resources::new([("cpu", 1000)]).unwrap())];
    let ended = async |agents: Agents| {
        let ended = tokio::time::timeout(LONG, agents.task).await.unwrap().unwrap();
        ended.unwrap_err().to_string()
    };
    fake.refuse_names(&["n"]);
    let refused = Agents::start(&fake, one(), Mode::Simulated, |_| {});
    let words = "state refuses node n for good: report.devices[0]: kind is missing";
    assert_eq!(ended(refused).await, words);
    // Some other service answers there.
    fake.refuse_with(tonic::Status::unimplemented(""));
    let elsewhere = Agents::start(&fake, one(), Mode::Simulated, |_| {});
    let words = format!("Unimplemented: is {} the address of state?", fake.address());
    assert_eq!(ended(elsewhere).await, format!("state refuses node n for good: {words}"));
}

#[tokio::test]
async fn a_node_that_was_let_in_once_is_not_given_up() {
    let mut fake = Fake::start(10_000).await;
    let node = NodeDef::new("n", Resources::new([("cpu", 1000)]).unwrap());
    let mut agents = Agents::start(&fake, vec![node], Mode::Simulated, |_| {});
    agents.connected(1).await;
    fake.next_register().await;
    fake.refuse_with(tonic::Status::unimplemented("an older state, for a while"));
    fake.drop_session(1);
    fake.next_register().await;
    fake.next_register().await;
    fake.refuse_registrations(false);
    fake.open_of(1).await;
    agents.connected(1).await;
    agents.end().await;
}

#[tokio::test]
async fn wrong_configurations_and_names_are_refused() {
    let fake = Fake::start(10_000).await;
    let node = || NodeDef::new("n", Resources::default());
    let twice = Agents::start(&fake, vec![node(), node()], Mode::Simulated, |_| {});
    assert!(matches!(twice.task.await.unwrap(), Err(godel_agent::Error::SameName(name)) if name == "n"));
    let named =
        Agents::start(&fake, vec![NodeDef::new("N_1", Resources::default())], Mode::Simulated, |_| {});
    let wrong = named.task.await.unwrap().unwrap_err().to_string();
    assert!(wrong.starts_with("`N_1` cannot be a node's name: `N` is not allowed"), "{wrong}");
    let slow = Agents::start(&fake, vec![node()], Mode::Simulated, |config| config.speed = 0.0);
    assert!(matches!(slow.task.await.unwrap(), Err(godel_agent::Error::Config(_))));
}

/// What the node says of itself once it can start nothing.
async fn trouble_of(fake: &mut Fake, is_it: impl Fn(&v1::NodeReport) -> bool) -> v1::NodeReport {
    fake.find(|(_, message)| match message {
        v1::session_request::Message::Report(report) => Some(report.clone()).filter(&is_it),
        _ => None,
    })
    .await
}

#[tokio::test]
async fn a_node_that_cannot_write_says_so_and_comes_back_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let mut fake = Fake::start(10_000).await;
    let mut agents = Agents::start(&fake, vec![this_node(dir.path())], Mode::Processes, |config| {
        config.state_dir = Some(dir.path().to_owned());
    });
    agents.connected(1).await;
    // Something that is no file stands in the way of every write, whoever the agent runs as.
    std::fs::create_dir(dir.path().join(".probe")).unwrap();
    let report = trouble_of(&mut fake, |report| !report.trouble.is_empty()).await;
    assert!(report.trouble.contains("cannot be written: "), "{}", report.trouble);
    assert!(report.capacity.is_some() && report.runtime() != v1::NodeRuntime::Unspecified, "{report:?}");
    fake.drop_session(1);
    fake.open_of(1).await;
    let again = fake.registered().pop().unwrap().report.unwrap();
    assert_eq!(again.trouble, report.trouble, "the next session begins with it");
    std::fs::remove_dir(dir.path().join(".probe")).unwrap();
    trouble_of(&mut fake, |report| report.trouble.is_empty()).await;
    agents.end().await;
}

#[tokio::test]
async fn an_agent_whose_directory_is_removed_ends_what_runs_and_signs_off() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("state");
    let mut fake = Fake::start(10_000).await;
    let mut agents = Agents::start(&fake, vec![this_node(&dir)], Mode::Processes, |config| {
        config.state_dir = Some(dir.clone());
    });
    agents.connected(1).await;
    fake.send(1, assign(fake::command(1, &["sleep", "1000"])));
    assert_eq!(phases(&fake.report_of(1).await), [(1, RunPhase::Running, 0)]);
    std::fs::remove_dir_all(&dir).unwrap();
    let report = trouble_of(&mut fake, |report| !report.trouble.is_empty()).await;
    assert!(report.trouble.contains("was removed"), "{}", report.trouble);
    let ended = fake.report_of(1).await;
    assert_eq!(ended.statuses[0].phase(), RunPhase::Stopped, "it is over before the agent is: {ended:?}");
    fake.find(|(_, message)| matches!(message, v1::session_request::Message::Leave(_)).then_some(())).await;
    let error = tokio::time::timeout(LONG, agents.task).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(error, godel_agent::Error::DirLost { .. }), "{error}");
}

#[tokio::test]
async fn a_second_agent_is_refused_without_the_lock_file_and_with_a_copy() {
    let parent = tempfile::tempdir().unwrap();
    let (dir, copy) = (parent.path().join("state"), parent.path().join("copy"));
    let fake = Fake::start(10_000).await;
    let start = |dir: &std::path::Path| {
        Agents::start(&fake, vec![this_node(dir)], Mode::Processes, |config| {
            config.state_dir = Some(dir.to_owned());
        })
    };
    let mut first = start(&dir);
    first.connected(1).await;
    std::fs::remove_file(dir.join("agent.lock")).unwrap();
    let refused = async |dir: &std::path::Path| start(dir).task.await.unwrap().unwrap_err().to_string();
    let error = refused(&dir).await;
    assert!(error.starts_with("another agent uses the state directory "), "{error}");
    std::fs::create_dir(&copy).unwrap();
    std::fs::create_dir(copy.join("identity")).unwrap();
    std::fs::copy(dir.join("identity/me"), copy.join("identity/me")).unwrap();
    let error = refused(&copy).await;
    assert!(error.starts_with("another agent of this machine speaks for the node me"), "{error}");
    first.end().await;
    let mut next = start(&copy);
    next.connected(1).await;
    next.end().await;
}
