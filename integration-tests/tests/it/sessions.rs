//! The command line as people use it: the files of `integration-tests/sessions` are played against control planes, and every verb is in
//! them with a success, its errors and its JSON. `GODEL_BLESS=1` writes what is printed into the files.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use clap::CommandFactory as _;
use godel_cli::args::Args;
use godel_integration_tests::{
    cluster::{Cluster, Layout},
    session::{Kind, Player, Session, Step},
    settings,
};

use super::keepers::one_real_node;

/// Nobody listens there.
const NOBODY: &str = "http://127.0.0.1:1";

/// Verbs that need no control plane, or become a part of one.
const OFFLINE: [&str; 28] = [
    "context list",
    "context import",
    "context roots",
    "context token",
    "context set",
    "context use",
    "context delete",
    "context login",
    "login",
    "ca new",
    "up",
    "demo",
    "serve",
    "agent",
    "agent topology",
    "bench",
    "unit validate",
    "health",
    "state check",
    "state export",
    "state restore",
    "state repair",
    "state migrate",
    "backup list",
    "backup verify",
    "backup restore",
    "config reference",
    "completion",
];

/// Verbs that wait for a control plane that is away, as for everything else.
const PATIENT: [&str; 2] = ["unit wait", "unit watch"];

/// Verbs whose results are no documents, and what they are.
const NO_JSON: [(&str, &str); 17] = [
    ("context import", "says in a sentence where each context leads"),
    ("context roots", "prints what other tools read, PEM"),
    ("context token", "prints the token alone, for other tools"),
    ("context set", "says in a sentence where the context leads"),
    ("context use", "says in a sentence where commands go"),
    ("context delete", "says in a sentence what is gone"),
    ("context login", "says in a sentence where the context leads"),
    ("login", "says in a sentence who is logged in, and where the context leads"),
    ("ca new", "says in a sentence what it made, and what to do next"),
    ("demo", "runs until it is stopped; `--json FILE` writes the summary"),
    ("serve", "runs until it is stopped"),
    ("agent", "runs until it is stopped"),
    ("unit logs", "prints what others have written, and refuses the flag"),
    ("health", "is for health checks, which read its exit code"),
    ("bench", "runs `godel-bench`, whose verbs have formats of their own"),
    ("config reference", "prints Markdown"),
    ("completion", "prints a script"),
];

/// Verbs that the state of what they name, or its owner, may forbid: exit code 1 or 8.
const REFUSABLE: [&str; 24] = [
    "unit move",
    "unit submit",
    "unit plan",
    "unit cancel",
    "unit suspend",
    "unit resume",
    "unit stop",
    "unit scale",
    "unit edit",
    "unit retry",
    "unit delete",
    "unit logs",
    "unit checkpoint",
    "unit wait",
    "node delete",
    "queue delete",
    "priority-class set",
    "priority-class delete",
    "reservation delete",
    "reschedule run",
    "reschedule movements abort",
    "identity revoke",
    "identity allow",
    "ca rotate",
];

/// What a verb takes, as its flags say.
struct Verb {
    path: String,
    takes_input: bool,
    names_objects: bool,
    takes_revision: bool,
}

/// Every verb of the command line.
fn verbs() -> Vec<Verb> {
    fn collect(command: &clap::Command, path: &str, found: &mut Vec<Verb>) {
        let is_leaf = !command.has_subcommands() || command.is_args_conflicts_with_subcommands_set();
        if is_leaf && !path.is_empty() {
            let has = |wanted: fn(&clap::Arg) -> bool| command.get_arguments().any(wanted);
            found.push(Verb {
                path: path.to_owned(),
                takes_input: has(|_| true),
                names_objects: has(|arg| {
                    arg.is_positional() && ["names", "name", "words"].contains(&arg.get_id().as_str())
                }),
                takes_revision: has(|arg| arg.get_id() == "revision"),
            });
        }
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
            collect(verb, format!("{path} {}", verb.get_name()).trim(), found);
        }
    }
    let mut found = Vec::new();
    collect(&Args::command(), "", &mut found);
    found
}

/// The verb that a call's words begin with.
fn verb_of(words: &[&str]) -> String {
    let mut command = Args::command();
    let mut path = Vec::new();
    for word in words {
        let Some(next) = command.find_subcommand(word).cloned() else { break };
        path.push(*word);
        command = next;
    }
    path.join(" ")
}

fn files() -> BTreeMap<String, PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("sessions");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), path)).collect()
}

fn read(path: &Path) -> Session {
    let text = fs::read_to_string(path).unwrap();
    Session::parse(&text).unwrap_or_else(|wrong| panic!("{}: {wrong}", path.display()))
}

/// Plays a file against a cluster.
async fn play(name: &str, cluster: &Cluster, env: &[(&str, &str)]) {
    let dir = cluster.path("session");
    fs::create_dir_all(&dir).unwrap();
    let mut all = vec![("GODEL_ADDR".to_owned(), cluster.client_address())];
    all.extend(cluster.member_env());
    all.extend(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let player = Player { dir, env: all };
    let path = &files()[name];
    let session = read(path);
    let played = player.play(session.clone()).await;
    if std::env::var_os("GODEL_BLESS").is_some() {
        fs::write(path, played.session.text()).unwrap();
    } else {
        assert!(played.wrong.is_empty(), "{name}.session\n{}", played.wrong.join("\n"));
    }
    unreachable(&player, &session).await;
}

/// The first success of each verb again, where nobody listens: it ends with 3, and says what to do.
async fn unreachable(player: &Player, session: &Session) {
    let mut tried = BTreeSet::new();
    let mut playing = tokio::task::JoinSet::new();
    for step in session.steps().filter(|step| step.kind == Kind::Run && step.code == 0) {
        let calls = step.calls();
        let [words] = calls.as_slice() else { continue };
        let verb = verb_of(words);
        let is_plain = !step.command.contains(['|', '>', '\n']);
        let is_online =
            !verb.is_empty() && !PATIENT.contains(&verb.as_str()) && !OFFLINE.contains(&verb.as_str());
        if !is_plain || !is_online || !tried.insert(verb) {
            continue;
        }
        let (player, command) = (player.clone(), step.command.clone());
        playing.spawn(async move {
            let (code, lines) = player.printed(&command, &[("GODEL_ADDR", NOBODY)]).await.unwrap();
            (command, code, lines.join("\n"))
        });
    }
    while let Some(played) = playing.join_next().await {
        let (command, code, text) = played.unwrap();
        let says = ["does not answer", "`godel up`", "GODEL_ADDR"].iter().all(|part| text.contains(part));
        assert!(code == 3 && says, "{command}\n{text}\n[{code}]");
    }
}

/// A control plane with simulated nodes.
async fn simulated(shape: &str, n_nodes: usize) -> Cluster {
    let layout = Layout { n_nodes: 0, n_dispatchers: 1, n_schedulers: 1, n_binders: 1, ..Layout::default() };
    let mut cluster = Cluster::start(layout).await;
    cluster.start_agent("agent", &[shape.to_owned()], &[], n_nodes).await;
    cluster.wait_ready().await;
    cluster
}

#[tokio::test(flavor = "multi_thread")]
async fn units() {
    play("units", &simulated("2x cpu=4,memory=8Gi", 2).await, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes() {
    play("nodes", &simulated("3x cpu=4,memory=8Gi", 3).await, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queues() {
    play("queues", &simulated("2x cpu=4,memory=8Gi", 2).await, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn yarn() {
    play("yarn", &simulated("2x cpu=4,memory=8Gi", 2).await, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reschedule() {
    play("reschedule", &simulated("3x cpu=4,memory=8Gi", 3).await, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane() {
    let cluster = simulated("2x cpu=4,memory=8Gi", 2).await;
    let metrics = cluster.metrics_address("state").unwrap().to_string();
    let contexts = cluster.path("contexts.yaml").display().to_string();
    play("control-plane", &cluster, &[("METRICS", &metrics), ("GODEL_CONTEXTS", &contexts)]).await;
}

/// Who may join and call: a person comes over TLS, and the services as everywhere else, in plain text.
#[tokio::test(flavor = "multi_thread")]
async fn identities() {
    let settings = vec![("state.tls".to_owned(), "migrate".to_owned())];
    let layout = Layout {
        n_nodes: 0,
        n_dispatchers: 1,
        n_schedulers: 1,
        n_binders: 1,
        is_plain: true,
        settings,
        ..Layout::default()
    };
    let cluster = Cluster::start(layout).await;
    let state = cluster.address("state");
    let (over_tls, plain_text) = (format!("https://{state}"), format!("http://{state}"));
    let (contexts, socket) = (cluster.path("contexts.yaml"), cluster.path("godel.sock"));
    let env = [
        ("GODEL_ADDR", over_tls),
        ("PLAIN_TEXT", plain_text),
        ("GODEL_CONTEXTS", contexts.display().to_string()),
        ("SOCKET", socket.display().to_string()),
    ];
    play("identities", &cluster, &env.each_ref().map(|(name, value)| (*name, value.as_str()))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn machine() {
    let cluster = one_real_node(settings::godel_bin(), &[]).await;
    let state_dir = cluster.state_dir("real").display().to_string();
    play("machine", &cluster, &[("STATE_DIR", &state_dir)]).await;
}

/// A person's day: a wrong file is mended and submitted, followed, scaled, edited; a replica fails, is looked at and retried; the
/// unit goes into the history, and as a file to another cluster.
#[tokio::test(flavor = "multi_thread")]
async fn day() {
    let cluster = one_real_node(settings::godel_bin(), &[]).await;
    let other = one_real_node(settings::godel_bin(), &[]).await;
    let address = other.client_address();
    play("day", &cluster, &[("OTHER", &address)]).await;
}

/// Steps of all files, by verb.
fn steps_by_verb() -> BTreeMap<String, Vec<Step>> {
    let mut steps: BTreeMap<String, Vec<Step>> = BTreeMap::new();
    for path in files().values() {
        for step in read(path).steps().filter(|step| step.kind != Kind::Until) {
            for words in step.calls() {
                steps.entry(verb_of(&words)).or_default().push(step.clone());
            }
        }
    }
    steps
}

#[test]
fn every_verb_has_its_sessions() {
    let (verbs, steps) = (verbs(), steps_by_verb());
    assert!(verbs.len() > 60, "{} verbs found", verbs.len());
    let known = |name: &str| verbs.iter().any(|verb| verb.path == name);
    let exceptions = OFFLINE.iter().chain(&REFUSABLE).chain(NO_JSON.iter().map(|(verb, _)| verb));
    let gone: Vec<&&str> = exceptions.filter(|name| !known(name)).collect();
    assert!(gone.is_empty(), "no verbs: {gone:?}");
    let mut missing = Vec::new();
    for verb in &verbs {
        let own = steps.get(&verb.path).map_or(&[][..], Vec::as_slice);
        let mut needs = |what: &str, is_it: &dyn Fn(&Step) -> bool| {
            if !own.iter().any(is_it) {
                missing.push(format!("{}: {what}", verb.path));
            }
        };
        needs("a success", &|step| step.code == 0);
        if !NO_JSON.iter().any(|(name, _)| *name == verb.path) {
            needs("JSON", &|step| step.code == 0 && step.is_json());
        }
        if verb.takes_input && verb.path != "bench" {
            needs("wrong input (2)", &|step| step.code == 2);
        }
        let creates = verb.path.ends_with(" create");
        // A watch waits for what is not there yet, and what is not there is set.
        let takes_any =
            ["bench", "unit watch", "context set", "context login", "login"].contains(&verb.path.as_str());
        if verb.names_objects && !creates && !takes_any {
            needs("something that is not there (4)", &|step| step.code == 4);
        }
        if verb.takes_revision || creates {
            needs("a conflict (5)", &|step| step.code == 5);
        }
        if REFUSABLE.contains(&verb.path.as_str()) {
            needs("a refusal (1 or 8)", &|step| matches!(step.code, 1 | 8));
        }
    }
    assert!(
        missing.is_empty(),
        "write these into a file of integration-tests/sessions:\n{}",
        missing.join("\n")
    );
}
