//! A cluster whose state speaks TLS, and a person who has a token.

use std::net::Ipv4Addr;

use super::{
    Up, exit_code,
    godel::{serve_alone, until_ok},
    run,
};

#[test]
fn a_person_logs_in_by_the_socket_and_calls_over_tls() {
    let up = Up::start(&["--set", "state.tls=migrate"]);
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
        "state.tls=on".to_owned(),
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
