use std::{error::Error as _, fs, path::PathBuf};

use super::{
    ClientConfig, ConfigError, HumanDuration, Loader, ServerConfig, effective, reference, reference_markdown,
};

crate::section! {
    /// A test service.
    struct Tea {
        /// How long a cup draws.
        pub draw: HumanDuration = HumanDuration::from_secs(180),
        /// Cups at once,
        /// over all pots.
        pub cups: usize = 4,
        /// Kinds of leaves.
        pub leaves: Vec<String> = vec!["assam".to_owned()],
        /// Whether sugar | milk is added.
        pub sugar: bool = false,
        /// Who drinks it; nobody in particular by default.
        pub guest: Option<String> = None,
    }
    sections {
        /// Where it serves.
        pub server: ServerConfig = ServerConfig::on_port(7799),
        /// How it calls.
        pub client: ClientConfig,
    }
}

fn file(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::write(&path, text).unwrap();
    (dir, path)
}

fn var(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

#[test]
fn later_layers_win() {
    let (_dir, path) =
        file("tea.toml", "cups = 5\ndraw = '2m'\nsugar = true\n[server]\nlisten = '127.0.0.1:1'\n");
    let loader = Loader::new()
        .file(path)
        .env_vars([var("GODEL_CUPS", "99"), var("GODEL_SERVER__LISTEN", "127.0.0.1:2"), var("PATH", "/bin")])
        .env_vars([var("GODEL_CLIENT__RETRY_ATTEMPTS", "3")])
        .set("server.concurrency_limit", 7)
        .set("draw", "90s");
    let tea: Tea = loader.load().unwrap();
    assert_eq!((tea.cups, tea.sugar, *tea.draw), (5, true, std::time::Duration::from_secs(90)));
    assert_eq!(tea.server.listen.port(), 2);
    assert_eq!((tea.server.concurrency_limit, tea.client.retry_attempts), (7, 3));
    assert_eq!(tea.server.metrics_listen.port(), 7899);
    assert_eq!(Loader::new().load::<Tea>().unwrap(), Tea::default());
    let again: Tea = loader.set("server.listen", "127.0.0.1:3").load().unwrap();
    assert_eq!(again.server.listen.port(), 3);
}

#[test]
fn yaml_lists_and_options_are_read() {
    let (_dir, path) = file("tea.yaml", "leaves: [oolong, sencha]\nclient:\n  connect_timeout: 250ms\n");
    let tea: Tea = Loader::new().file(path).set("guest", "alice").load().unwrap();
    assert_eq!(
        (tea.leaves, tea.client.connect_timeout.ms()),
        (vec!["oolong".to_owned(), "sencha".to_owned()], 250)
    );
    assert_eq!(tea.guest.as_deref(), Some("alice"));
    let tea: Tea = Loader::new().set("leaves", "a, b").load().unwrap();
    assert_eq!(tea.leaves, ["a", "b"]);
}

#[test]
fn unknown_keys_are_refused_with_a_suggestion() {
    let check = |loader: Loader, key: &str, origin: &str, suggestion: Option<&str>| {
        let error = loader.load::<Tea>().unwrap_err();
        let text = error.to_string();
        let ConfigError::UnknownKey { key: found, origin: at, suggestion: meant } = error else {
            panic!("{text}");
        };
        assert_eq!((found.as_str(), meant.as_deref()), (key, suggestion));
        assert!(at.contains(origin), "{at}");
    };
    let (_dir, path) = file("tea.toml", "cupz = 5\n");
    check(Loader::new().file(path), "cupz", "tea.toml", Some("cups"));
    let (_dir2, path) = file("tea.toml", "[server]\nlistn = '127.0.0.1:1'\n");
    check(Loader::new().file(path), "server.listn", "tea.toml", Some("server.listen"));
    let env = Loader::new().env_vars([var("GODEL_SERVER__LISTEN_ON", "x")]);
    check(env, "server.listen_on", "GODEL_SERVER__LISTEN_ON", Some("server.listen"));
    let env = Loader::new().env_vars([var("GODEL_ADDR", "x"), var("GODEL_SERVER_IDLE_TIMEOUT", "1s")]);
    check(env, "GODEL_SERVER_IDLE_TIMEOUT", "environment", Some("GODEL_SERVER__IDLE_TIMEOUT"));
    check(Loader::new().set("zzz.qqq", 1), "zzz.qqq", "flags", None);
    // A section in common is no likeness.
    check(Loader::new().set("server.foo", 1), "server.foo", "flags", None);
    check(Loader::new().set("client.foo", 1), "client.foo", "flags", None);
    check(
        Loader::new().set("server.metrics-listen", 1),
        "server.metrics-listen",
        "flags",
        Some("server.metrics_listen"),
    );
    check(
        Loader::new().set("keepalive_timeout", 1),
        "keepalive_timeout",
        "flags",
        Some("server.keepalive_timeout"),
    );
}

#[test]
fn wrong_values_and_files_are_refused_with_their_place() {
    let chain = |error: &ConfigError| {
        format!("{error}: {}", error.source().map(ToString::to_string).unwrap_or_default())
    };
    let error = Loader::new().env_vars([var("GODEL_SERVER__LISTEN", "nowhere")]).load::<Tea>().unwrap_err();
    assert!(chain(&error).contains("GODEL_SERVER__LISTEN"), "{}", chain(&error));
    let error = Loader::new().set("draw", "soon").load::<Tea>().unwrap_err();
    assert!(matches!(error, ConfigError::Value { .. }), "{}", chain(&error));
    let (_dir, path) = file("tea.toml", "cups = [");
    assert!(matches!(Loader::new().file(path).load::<Tea>(), Err(ConfigError::File { .. })));
    let missing = Loader::new().file("/nowhere/tea.toml").load::<Tea>().unwrap_err();
    assert!(chain(&missing).contains("/nowhere/tea.toml"), "{}", chain(&missing));
    let (_dir3, path) = file("tea.toml", "server = 5\n");
    assert!(Loader::new().file(path).load::<Tea>().is_err());
}

#[test]
fn the_reference_shows_every_key_with_default_and_meaning() {
    let entries = reference::<Tea>();
    let cups = entries.iter().find(|entry| entry.key == "cups").unwrap();
    assert_eq!(
        (cups.default.to_string(), cups.doc.as_str()),
        ("4".to_owned(), "Cups at once, over all pots.")
    );
    let listen = entries.iter().find(|entry| entry.key == "server.listen").unwrap();
    assert_eq!(
        (listen.default.to_string(), listen.env()),
        ("\"127.0.0.1:7799\"".to_owned(), "GODEL_SERVER__LISTEN".to_owned())
    );
    let draw = entries.iter().find(|entry| entry.key == "draw").unwrap();
    assert_eq!(draw.default, "3m");
    let text = reference_markdown::<Tea>();
    assert!(text.contains("## `server`") && text.contains("sugar \\| milk"), "{text}");
    assert_eq!(effective(&Tea::default()).len(), entries.len());
}
