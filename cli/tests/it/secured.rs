//! A cluster whose state speaks TLS, and a person who has a token.

use std::{
    fs,
    net::Ipv4Addr,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    process::Command,
    time::{Duration, Instant},
};

use godel_kit::{
    CancellationToken,
    client::Directory,
    clock::SystemClock,
    config::{ClientConfig, IdentityConfig},
    member::{NewMember, take_identity},
    security::{Role, expected_holder},
    status::{has_reason, reason},
};
use godel_proto::v1::{
    self, bind_service_client::BindServiceClient, dispatch_service_client::DispatchServiceClient,
};
use serde_json::Value;
use tonic::{Code, Status};

use super::{
    Godel, Up, exit_code,
    godel::{Killed, LONG, serve_alone, until_ok},
    run,
};

#[test]
fn a_person_logs_in_by_the_socket_and_calls_over_tls() {
    let up = Up::start(&["--tls", "migrate"]);
    let dir = tempfile::tempdir().unwrap();
    let contexts = dir.path().join("contexts.yaml");
    let contexts = contexts.to_str().unwrap();
    let godel = |words: &[&str]| {
        let output = run(words, &[("GODEL_CONTEXTS", contexts)]);
        let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
        (exit_code(&output), String::from_utf8_lossy(&text).into_owned())
    };
    let state = up.address().replace("http://", "https://");
    let (code, said) = godel(&["status", "--address", &state]);
    assert!(code != 0 && said.contains("knows no roots of the cluster"), "{said}");
    let socket = up.dir().join("data/godel.sock");
    let socket = socket.to_str().unwrap();
    let (code, said) = godel(&["context", "login", "mine", "--socket", socket, "--state", &state]);
    assert!(code == 0 && said.contains("context mine leads to https://"), "{said}");
    let (code, said) = godel(&["status"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(godel(&["node", "list"]).0, 0);

    // Tokens with which others join, and who has joined.
    let (code, token) = godel(&["node", "join-token", "--ttl", "5m", "-o", "json"]);
    assert!(code == 0 && token.contains("godel-join-v1."), "{token}");
    let (code, tokens) = godel(&["join-token", "list", "-o", "json"]);
    let tokens: serde_json::Value = serde_json::from_str(&tokens).unwrap();
    let id = tokens[0]["id"].as_str().unwrap();
    assert_eq!((code, tokens[0]["role"].as_str()), (0, Some("agent")));
    assert_eq!(godel(&["join-token", "delete", id]).0, 0);
    let (code, identities) = godel(&["identity", "list"]);
    assert!(code == 0 && identities.contains("state/"), "{identities}");
    assert_eq!(godel(&["identity", "revoke", "agent/nobody"]).0, 4);
    let (code, roots) = godel(&["ca", "show", "-o", "json"]);
    let roots: serde_json::Value = serde_json::from_str(&roots).unwrap();
    assert_eq!((code, roots.as_array().unwrap().len()), (0, 1));

    // A context whose roots are old takes the new one, whatever command uses it.
    assert_eq!(godel(&["ca", "rotate"]).0, 0);
    let n_roots = || std::fs::read_to_string(contexts).unwrap().matches("BEGIN CERTIFICATE").count();
    assert_eq!((godel(&["status"]).0, n_roots()), (0, 1), "an hour is not over");
    let text = std::fs::read_to_string(contexts).unwrap();
    let old = text.lines().map(|line| match line.split_once("asked_ms: ") {
        Some((before, _)) => format!("{before}asked_ms: 1\n"),
        None => format!("{line}\n"),
    });
    std::fs::write(contexts, old.collect::<String>()).unwrap();
    assert_eq!((godel(&["status"]).0, n_roots()), (0, 2));
    let (code, said) = godel(&["context", "login", "mine", "--socket", socket, "--state", &state]);
    assert_eq!((code, n_roots()), (0, 2), "{said}");

    // A token that is none.
    let text = std::fs::read_to_string(contexts).unwrap();
    let spoilt: String = text
        .lines()
        .map(|line| match line.split_once("token: ") {
            Some((before, token)) if !token.is_empty() => format!("{before}token: x{token}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    std::fs::write(contexts, spoilt).unwrap();
    let (code, said) = godel(&["status"]);
    assert_eq!(code, 8, "{said}");
    up.stop();
}

#[test]
fn health_is_asked_over_tls_where_the_port_speaks_it() {
    let dir = tempfile::tempdir().unwrap();
    // An address of this process alone, so that its ports are free.
    let ip = Ipv4Addr::from(0x7f00_0000 | 0x80_0000 | (std::process::id() & 0x3_ffff) << 4);
    let metrics = format!("{ip}:7800");
    let settings = [
        format!("state.data_dir={}", dir.path().join("state").display()),
        format!("state.server.listen={ip}:7700"),
        format!("state.server.metrics_listen={metrics}"),
    ];
    let words: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let _state = serve_alone(&[&["state"][..], &words].concat());
    let over_tls = format!("https://{metrics}");
    for address in [&metrics, &over_tls] {
        assert_eq!(until_ok(&["health", address]), "ok\n");
    }
    let refused = run(&["health", &format!("http://{metrics}")], &[]);
    assert_eq!(exit_code(&refused), 1);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("HTTP status 400"), "{said}");
}

/// A cluster with TLS, which a person reaches by the context that it keeps.
struct SecuredCluster {
    up: Up,
    godel: Godel,
}

impl SecuredCluster {
    fn start(flags: &[&str]) -> Self {
        let up = Up::start(flags);
        assert!(up.address().starts_with("https://"), "{}", up.address());
        Self { godel: up.person(), up }
    }

    fn path(&self, name: &str) -> String {
        self.up.dir().join(name).display().to_string()
    }

    /// A file with a join token that a verb makes.
    fn token(&self, name: &str, verb: &[&str]) -> String {
        let (path, token) = (self.path(name), self.godel.ok(verb));
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path).unwrap();
        std::io::Write::write_all(&mut file, token.as_bytes()).unwrap();
        path
    }

    /// `godel agent` of two nodes, which keeps its identity in a directory.
    fn agent_words(&self, nodes: &str, token: &str) -> Vec<String> {
        let shape = format!("2x name={nodes},cpu=4,memory=8Gi");
        let dir = format!("agent.identity.dir={}", self.path(&format!("{nodes}.identity")));
        let words = [
            "agent",
            "--simulate",
            &shape,
            "--set",
            &dir,
            "--set",
            "agent.reconnect_spread=300ms",
            "--join-file",
            token,
        ];
        words.map(str::to_owned).to_vec()
    }

    fn agent(&self, nodes: &str, token: &str) -> Killed {
        let words = self.agent_words(nodes, token);
        self.up.spawn(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// What an agent says that is not let in.
    #[track_caller]
    fn refused(&self, nodes: &str, token: &str) -> String {
        let words = self.agent_words(nodes, token);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = self.up.client().run(&words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(exit_code(&output), 1, "{said}");
        said
    }

    /// Checks that the doctor finds no problem until others can read a key.
    #[track_caller]
    fn finds_what_others_can_read(&self, identities: &str, key: &str) {
        let (data_dir, dir) = (self.path("data/state"), self.path(identities));
        let words = ["doctor", "--data-dir", &data_dir, "--identity-dir", &dir];
        let said = self.godel.ok(&words);
        for part in ["scheduler/s2", "seal.key", "state speaks TLS", "ok: no problems found"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let key = self.up.dir().join(identities).join(key);
        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
        let output = self.godel.run(&words);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let command = format!("`chmod 600 {}`", key.display());
        assert!(exit_code(&output) == 1 && said.contains(&command), "{said}");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// Waits until the two nodes of an agent are ready, or no longer.
    #[track_caller]
    fn until_nodes(&self, prefix: &str, are_ready: bool) {
        self.godel.until(&["node", "list"], |nodes| {
            let of_agent = |node: &&Value| node["name"].as_str().unwrap().starts_with(prefix);
            let is_so = |node: &Value| node["status"].as_str().unwrap().starts_with("NotReady") != are_ready;
            let nodes: Vec<&Value> = nodes.as_array().unwrap().iter().filter(of_agent).collect();
            nodes.len() == 2 && nodes.into_iter().all(is_so)
        });
    }
}

#[test]
fn one_of_several_states_is_enough() {
    let cluster = SecuredCluster::start(&["--simulate", "1x name=west,cpu=4,memory=8Gi"]);
    let up = &cluster.up;
    // Nobody listens there, and no server gets that port.
    let both = format!("https://127.0.0.1:1,{}", up.address());
    let godel = Godel::with_contexts(&up.dir().join("both.yaml"));
    godel.ok(&["context", "login", "both", "--socket", &cluster.path("data/godel.sock"), "--state", &both]);
    assert_eq!(godel.json(&["status"])["address"], both.as_str());
    // One of the addresses is enough to find the context.
    for address in [up.address(), &both] {
        godel.ok(&["unit", "submit", "--address", address, "--name", "web", "--cpu", "1", "--wait"]);
        godel.ok(&["unit", "wait", "web", "--for", "bound", "--timeout", "20s"]);
        godel.ok(&["unit", "delete", "web", "--cancel"]);
    }

    // A member and an agent join by them, and work.
    let token = cluster.token("scheduler.token", &["join-token", "--role", "scheduler"]);
    let own_dir = format!("scheduler.identity.dir={}", cluster.path("s2.identity"));
    let words = ["scheduler", "--name", "s2", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];
    let s2 =
        up.serve(&[&words[..], &["--address", &both, "--join-file", &token, "--set", &own_dir]].concat());
    let token = cluster.token("east.token", &["node", "join-token", "--names", "east-*"]);
    let mut words = cluster.agent_words("east", &token);
    words.extend(["--address".to_owned(), both.clone()]);
    let agent = up.spawn(&words.iter().map(String::as_str).collect::<Vec<_>>());
    godel.until(&["scheduler", "list"], |schedulers| {
        let is_s2 = |one: &Value| one["name"] == "s2" && one["status"] == "Attached";
        schedulers.as_array().unwrap().iter().any(is_s2)
    });
    cluster.until_nodes("east-", true);
    agent.stop();
    s2.stop();

    let (mixed, twice) = (format!("{both},http://127.0.0.1:2"), format!("{both},{}", up.address()));
    for (bad, why) in [(&mixed, "either all addresses"), (&twice, "stands there twice")] {
        let refused = godel.run(&["status", "--address", bad]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(exit_code(&refused) == 2 && said.contains(why), "{said}");
    }
    let nobody = godel.run(&["status", "--address", "http://127.0.0.1:1,http://127.0.0.1:2"]);
    let said = String::from_utf8_lossy(&nobody.stderr).into_owned();
    let names_all = ["http://127.0.0.1:1: ", "http://127.0.0.1:2: "].iter().all(|each| said.contains(each));
    assert!(exit_code(&nobody) == 3 && names_all, "{said}");
}

#[test]
fn members_and_agents_join_over_tls() {
    let cluster = SecuredCluster::start(&["--simulate", "1x name=west,cpu=4,memory=8Gi"]);
    let SecuredCluster { up, godel } = &cluster;

    // The context that it keeps is enough for people.
    godel.ok(&["status"]);
    let contexts = godel.json(&["context", "list"]);
    assert_eq!((&contexts[0]["address"], &contexts[0]["is_current"]), (&up.address().into(), &true.into()));
    godel.ok(&["unit", "submit", "--name", "web", "--cpu", "1", "--wait"]);
    assert_eq!(godel.json(&["unit", "describe", "web"])["principal"], "person/admin");
    let plain_text = up.address().replace("https://", "http://");
    let output = run(&["status"], &[("GODEL_ADDR", &plain_text)]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(exit_code(&output) == 8 && said.contains("this port speaks TLS"), "{said}");

    // A scheduler beside those of `godel up`.
    let token = cluster.token("scheduler.token", &["join-token", "--role", "scheduler"]);
    let own_dir = format!("scheduler.identity.dir={}", cluster.path("s2.identity"));
    let words = ["scheduler", "--name", "s2", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];
    let s2 = up.serve(&[&words[..], &["--join-file", &token, "--set", &own_dir]].concat());
    godel.until(&["scheduler", "list"], |schedulers| {
        let is_s2 = |one: &Value| one["name"] == "s2" && one["status"] == "Attached";
        schedulers.as_array().unwrap().iter().any(is_s2)
    });
    let own = fs::metadata(up.dir().join("s2.identity/scheduler-s2.pem")).unwrap();
    assert_eq!(own.permissions().mode() & 0o777, 0o600);
    cluster.finds_what_others_can_read("s2.identity", "scheduler-s2.pem");
    s2.stop();

    // An agent goes on with what it kept, although its token is used up.
    let token = cluster.token("east.token", &["node", "join-token", "--names", "east-*"]);
    let agent = cluster.agent("east", &token);
    cluster.until_nodes("east-", true);
    agent.stop();
    cluster.until_nodes("east-", false);
    let agent = cluster.agent("east", &token);
    cluster.until_nodes("east-", true);

    // Whoever is revoked is out at once, and comes back by an administrator alone.
    godel.ok(&["identity", "revoke", "agent/east-000*"]);
    cluster.until_nodes("east-", false);
    drop(agent);
    let said = cluster.refused("east", &token);
    assert!(said.contains("state does not take agent/east-000* in: "), "{said}");
    godel.ok(&["identity", "allow", "agent/east-000*"]);
    let token = cluster.token("east.token", &["node", "join-token", "--names", "east-*"]);
    let agent = cluster.agent("east", &token);
    cluster.until_nodes("east-", true);
    agent.stop();

    // Tokens that are not good for an agent say which one is.
    let token = cluster.token("scheduler.token", &["join-token", "--role", "scheduler", "--names", "*"]);
    let said = cluster.refused("north", &token);
    assert!(said.contains("the join token is for role scheduler, not for agent"), "{said}");
    assert!(!cluster.up.dir().join("north.identity").exists());
    let token = cluster.token("one.token", &["node", "join-token"]);
    let said = cluster.refused("north", &token);
    assert!(said.contains("`godel node join-token --names 'north-000*'`"), "{said}");
    let said = cluster.refused("north", "");
    assert!(said.contains("`godel node join-token --names 'north-000*'`"), "{said}");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).unwrap();
    let said = cluster.refused("north", &token);
    assert!(said.contains("has mode 0644"), "{said}");
    cluster.up.stop();
}

/// A process that has joined a cluster under that name, and calls its services.
async fn member_of(cluster: &SecuredCluster, role: Role, name: &str, verb: &[&str]) -> Directory {
    let config = IdentityConfig {
        dir: cluster.path(&format!("{role}-{name}.identity")),
        join_file: cluster.token(&format!("{role}-{name}.token"), verb),
        ..IdentityConfig::default()
    };
    let hosts = if role == Role::Agent { Vec::new() } else { vec!["localhost".to_owned()] };
    let member = NewMember { role, name: name.to_owned(), hosts };
    let client = ClientConfig { state: cluster.up.address().to_owned(), ..ClientConfig::default() };
    let stop = CancellationToken::new();
    let taken = take_identity(&config, member, &client, SystemClock::shared(), &stop).await.unwrap().unwrap();
    Directory::new(&ClientConfig { security: taken.client, ..client }).unwrap()
}

/// Where the holder of a lease is.
async fn address_of(directory: &Directory, lease: &str) -> String {
    directory.leader(lease).await.unwrap().address
}

/// Opens the stream of the scheduler of that name at the dispatcher; how that is refused.
async fn attach(directory: &Directory, address: &str, name: &str) -> Status {
    let channel = directory.channel(&expected_holder("dispatcher"), address).unwrap();
    let open = v1::AttachOpen { name: name.to_owned(), epoch: 1_000_000, ..v1::AttachOpen::default() };
    let open = v1::AttachRequest { message: Some(v1::attach_request::Message::Open(open)) };
    match DispatchServiceClient::new(channel).attach(tokio_stream::iter([open])).await {
        Ok(answers) => answers.into_inner().message().await.unwrap_err(),
        Err(refused) => refused,
    }
}

/// The same at the binder.
async fn decide(directory: &Directory, address: &str, name: &str) -> Status {
    let channel = directory.channel(&expected_holder("binder"), address).unwrap();
    let open = v1::DecideOpen { scheduler: name.to_owned(), epoch: 1_000_000, ..v1::DecideOpen::default() };
    let open = v1::DecideRequest { message: Some(v1::decide_request::Message::Open(open)) };
    match BindServiceClient::new(channel).decide(tokio_stream::iter([open])).await {
        Ok(answers) => answers.into_inner().message().await.unwrap_err(),
        Err(refused) => refused,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedulers_attach_and_decide_over_tls_in_their_own_names_alone() {
    let cluster = SecuredCluster::start(&[]);
    let scheduler = member_of(&cluster, Role::Scheduler, "s9", &["join-token", "--role", "scheduler"]).await;
    let [at_dispatcher, at_binder] =
        [address_of(&scheduler, "dispatcher").await, address_of(&scheduler, "binder").await];
    let both = async |directory: &Directory, name: &str| {
        [attach(directory, &at_dispatcher, name).await, decide(directory, &at_binder, name).await]
    };
    let schedulers = cluster.godel.json(&["scheduler", "list"]);
    let other = schedulers[0]["name"].as_str().unwrap();
    assert_ne!(other, "s9");
    // Whoever has just got a lease is about to lead.
    let deadline = Instant::now() + LONG;
    while both(&scheduler, other).await.iter().any(|refused| has_reason(refused, reason::NOT_LEADER)) {
        assert!(Instant::now() < deadline, "nobody leads");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for refused in both(&scheduler, other).await {
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
        assert!(has_reason(&refused, reason::FORBIDDEN) && refused.message().contains("s9"), "{refused:?}");
    }
    // In its own name it is asked for its lease.
    for refused in both(&scheduler, "s9").await {
        assert!(has_reason(&refused, reason::STALE_EPOCH), "{refused:?}");
    }
    // No other role makes these calls at all, whatever its name is.
    let binder = member_of(&cluster, Role::Binder, "s9", &["join-token", "--role", "binder"]).await;
    let agent = member_of(&cluster, Role::Agent, "s9", &["node", "join-token"]).await;
    for directory in [&binder, &agent] {
        for refused in both(directory, "s9").await {
            assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
            assert!(has_reason(&refused, reason::NOT_ALLOWED), "{refused:?}");
        }
    }
    cluster.up.stop();
}

/// Says which of its arguments can be opened: sockets are written to, the rest is read.
const OPEN_ALL: &str = r#"for path in "$@"; do
    if [ -S "$path" ]; then [ -w "$path" ] && echo "open $path"; else (: < "$path") 2> /dev/null && echo "open $path"; fi
done; echo "as $(id -u)""#;

#[test]
fn unit_of_a_root_agent_reaches_no_key_and_no_socket() {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return godel_testkit::skip("this test does not run as root");
    }
    let cluster = SecuredCluster::start(&[]);
    let token = cluster.token("real.token", &["node", "join-token"]);
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let has_user = users.lines().any(|line| line.starts_with("godel-unit:"));
    // Where the machine lacks the user, another one without rights stands for it.
    let user = if has_user { "godel-unit" } else { "nobody" };
    let settings = [
        format!("agent.users={user}"),
        format!("agent.identity.dir={}", cluster.path("real.identity")),
        "agent.reconnect_spread=300ms".to_owned(),
    ];
    let state_dir = cluster.path("real.state");
    let mut words = vec!["agent", "--name", "real", "--state-dir", &state_dir, "--join-file", &token];
    settings.iter().for_each(|setting| words.extend(["--set", setting]));
    let agent = cluster.up.spawn(&words);
    cluster.godel.until(&["node", "list"], |nodes| {
        nodes.as_array().unwrap().iter().any(|node| node["name"] == "real" && node["status"] == "Ready")
    });

    // Nothing but the modes of the files themselves keeps others out.
    for dir in [cluster.up.dir().to_owned(), cluster.up.dir().join("data")] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut paths = [
        "data/godel.sock",
        "data/pki",
        "data/pki/seal.key",
        "contexts.yaml",
        "real.identity/agent-real.pem",
        "real.token",
    ]
    .map(|path| cluster.path(path))
    .to_vec();
    paths.extend(["environ", "mem", "root", "fd"].map(|file| format!("/proc/{}/{file}", agent.pid())));
    let of_root = Command::new("sh").args(["-c", OPEN_ALL, "sh"]).args(&paths).output().unwrap();
    let of_root = String::from_utf8(of_root.stdout).unwrap();
    for path in &paths {
        assert!(of_root.contains(&format!("open {path}\n")), "root opens {path}: {of_root}");
    }

    let command: Vec<&str> =
        ["sh", "-c", OPEN_ALL, "sh"].into_iter().chain(paths.iter().map(String::as_str)).collect();
    let unit = serde_json::json!({
        "name": "thief",
        "restart_policy": "never",
        "template": {"requests": {"cpu": "10m"}, "command": command},
    });
    let file = cluster.path("thief.yaml");
    fs::write(&file, unit.to_string()).unwrap();
    cluster.godel.ok(&["unit", "submit", "-f", &file]);
    cluster.godel.ok(&["unit", "wait", "thief", "--for", "finished"]);
    let said = cluster.godel.ok(&["unit", "logs", "thief"]);
    assert!(!said.contains("open ") && said.contains("as "), "{said}");
    assert!(!said.contains("as 0\n"), "{said}");
    agent.stop();
    cluster.up.stop();
}
