//! `godel changes`: what people did and were refused, on a whole cluster; and what is never in it.

use std::{fs, fs::File, process::Stdio};

use serde_json::Value;

use super::{
    Godel, Up,
    permissions::{log_in, path},
    verbs::says,
};

/// Lines as who, method, objects and result, the newest first.
fn lines(godel: &Godel, flags: &[&str]) -> Vec<String> {
    let listed = godel.json(&[&["changes"][..], flags].concat());
    listed.as_array().unwrap().iter().map(line).collect()
}

fn line(change: &Value) -> String {
    let word = |key: &str| change[key].as_str().unwrap().to_owned();
    let objects: Vec<&str> =
        change["objects"].as_array().unwrap().iter().map(|object| object.as_str().unwrap()).collect();
    let refused = word("refused");
    let result = if refused.is_empty() { "done" } else { &refused };
    format!("{} {} {} {result}", word("who"), word("method"), objects.join(","))
}

#[test]
fn who_changed_what_is_shown_to_those_whom_it_concerns() {
    let up = Up::start(&["--simulate", "2x cpu=4,memory=8Gi"]);
    let admin = up.person();
    let ann = log_in(&up, &admin, "ann", &["--namespace", "team-a"]);
    let bob = log_in(&up, &admin, "bob", &["--namespace", "team-a"]);
    let olga = log_in(&up, &admin, "olga", &["--role", "operator"]);
    admin.until(&["changes"], |listed| {
        listed.as_array().unwrap().iter().any(|change| change["method"] == "IssueToken")
    });
    let began = lines(&admin, &["--limit", "1000"]).len();
    ann.ok(&["unit", "submit", "--name", "web", "--cpu", "1", "-n", "team-a"]);
    ann.ok(&["unit", "suspend", "web", "-n", "team-a"]);
    // It is so already.
    ann.ok(&["unit", "suspend", "web", "-n", "team-a"]);
    ann.ok(&["unit", "cancel", "web", "-n", "team-a"]);
    ann.ok(&["unit", "wait", "web", "-n", "team-a", "--for", "phase=cancelled", "--timeout", "20s"]);
    bob.ok(&["unit", "delete", "web", "-n", "team-a"]);
    olga.ok(&["node", "cordon", "node-0000"]);
    admin.ok(&["queue", "create", "batch"]);
    olga.ok(&["admin", "pause", "queue/batch", "--reason", "upgrade"]);
    says(&bob, &["unit", "cancel", "x", "-n", "team-b"], 8, &["in namespace team-b"]);
    says(&bob, &["node", "cordon", "node-0001"], 8, &["needs role operator"]);
    let expected = [
        "olga SetPause pause/queue/batch done",
        "admin CreateQueue queue/batch done",
        "olga UpdateNode node/node-0000 done",
        "bob DeleteUnit unit/team-a/web done",
        "ann CancelUnit unit/team-a/web done",
        "ann SuspendUnit unit/team-a/web done",
        // The unit's record is gone.
        "ann SubmitUnit unit/team-a/web done",
    ];
    let done: Vec<String> =
        lines(&admin, &["--limit", "1000"]).into_iter().filter(|line| line.ends_with(" done")).collect();
    assert_eq!(done[..expected.len()], expected);
    // A submission is no record beside its unit.
    for change in admin.json(&["changes", "--limit", "1000"]).as_array().unwrap() {
        assert_eq!(change["change_id"] == 0, change["method"] == "SubmitUnit", "{change}");
    }
    // Both are reported within seconds, by state and by the dispatcher.
    let refused = ["bob CancelUnit namespace/team-b namespace", "bob UpdateNode  role"];
    admin.until(&["changes", "--refused", "--who", "bob"], |listed| {
        let mut found: Vec<String> = listed.as_array().unwrap().iter().map(line).collect();
        found.sort();
        found == refused
    });
    assert_eq!(lines(&admin, &["--limit", "1000"]).len(), began + expected.len() + refused.len());
    for change in admin.json(&["changes", "--who", "bob"]).as_array().unwrap() {
        assert!(change["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{change}");
    }
    // Others see what is theirs and what was done in their namespaces.
    let mut seen = lines(&ann, &[]);
    seen.sort();
    let mut of_namespace = expected[3..].to_vec();
    of_namespace.sort_unstable();
    assert_eq!(seen, of_namespace);
    let of_bob = bob.json(&["changes"]);
    let of_ann: Vec<&Value> =
        of_bob.as_array().unwrap().iter().filter(|change| change["who"] == "ann").collect();
    assert!(of_ann.len() == 3 && of_ann.iter().all(|change| change["address"] == ""), "{of_bob}");
    assert_eq!(lines(&olga, &["--object", "node"]), ["olga UpdateNode node/node-0000 done"]);
    assert_eq!(
        lines(&admin, &["--object", "team-a/web", "--who", "bob"]),
        ["bob DeleteUnit unit/team-a/web done"]
    );
    assert_eq!(lines(&admin, &["--since", "1s", "--who", "nobody"]), [""; 0]);
    says(
        &admin,
        &["changes", "--limit", "2"],
        0,
        &["refused: namespace", "the newest 2; --limit shows more"],
    );

    // Followed from what was before to what comes.
    let following = olga.spawn(&["changes", "-f", "--since", "1h", "--object", "node", "--limit", "2"]);
    olga.ok(&["node", "uncordon", "node-0000"]);
    assert_eq!(following.end(), (0, String::new()));
    // Nobody follows with a token that was revoked.
    let following = ann.spawn(&["changes", "-f"]);
    admin.ok(&["token", "revoke", "--all-of", "ann"]);
    let (code, said) = following.end();
    assert!(code == 8 && said.contains("revoked"), "{code}: {said}");
    up.stop();
}

#[test]
fn secrets_are_in_no_line_log_or_export() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log.txt");
    let filter =
        "info,godel_state=debug,godel_kit=debug,godel_dispatcher=debug,godel_pki=debug,godel_client=debug";
    let stderr = Stdio::from(File::create(&log).unwrap());
    let up = Up::start_logging(dir, "data", &["--simulate", "1x cpu=4,memory=8Gi"], (filter, stderr));
    let admin = up.person();
    let ann = log_in(&up, &admin, "ann", &[]);
    let of_ann = fs::read_to_string(path(&up, "ann.token")).unwrap();
    let mut secrets = vec![
        of_ann.lines().next().unwrap().to_owned(),
        admin.ok(&["context", "token"]).trim().to_owned(),
        admin.ok(&["token", "create", "eve"]).trim().to_owned(),
        admin.ok(&["join-token", "--role", "agent", "--names", "x*"]).trim().to_owned(),
        admin.ok(&["node", "join-token", "--names", "y1"]).trim().to_owned(),
    ];
    assert!(secrets.iter().all(|secret| secret.len() > 40), "{}", secrets.len());
    // The signature of a token, and the secret of a join token, behind which is the fingerprint of the root.
    let proof = |secret: &String| {
        let from_end = usize::from(secret.starts_with("godel-join"));
        secret.rsplit('.').nth(from_end).unwrap().to_owned()
    };
    let proofs: Vec<String> = secrets.iter().map(proof).collect();
    secrets.extend(proofs);
    let has_secret = |text: &[u8]| {
        secrets.iter().position(|secret| text.windows(secret.len()).any(|part| part == secret.as_bytes()))
    };
    assert_eq!(has_secret(of_ann.as_bytes()), Some(0), "the test finds one");

    // Each of them is used, and refused once it counts no more.
    ann.ok(&["unit", "submit", "--name", "web", "--cpu", "1"]);
    ann.ok(&["whoami"]);
    admin.ok(&["token", "revoke", "--all-of", "ann"]);
    says(&ann, &["unit", "list"], 8, &["revoked"]);
    admin.ok(&["ca", "rotate"]);
    admin.until(&["changes", "--refused"], |listed| {
        listed
            .as_array()
            .unwrap()
            .iter()
            .any(|change| line(change).starts_with("ann ") && line(change).ends_with(" revoked token"))
    });
    let mut shown = Vec::new();
    for words in [
        &["changes", "--limit", "1000", "-o", "json"][..],
        &["changes", "--limit", "1000", "-o", "wide"],
        &["token", "list", "-o", "json"],
        &["principal", "list", "-o", "json"],
        &["join-token", "list", "-o", "json"],
        &["identity", "list", "-o", "json"],
        &["unit", "describe", "web", "-o", "json"],
        &["node", "describe", "node-0000", "-o", "json"],
        &["status", "-o", "json"],
        &["doctor", "-o", "json"],
    ] {
        let (_, out, err) = super::verbs::run_all(&admin, words);
        shown.push((words.join(" "), format!("{out}{err}").into_bytes()));
    }
    let lines = lines(&admin, &["--limit", "1000"]);
    for method in ["CreateToken", "CreateJoinToken", "IssueToken", "RevokeToken", "RotateCa"] {
        assert!(lines.iter().any(|line| line.contains(method)), "{method}: {lines:#?}");
    }
    let dir = up.stop();
    let export = dir.path().join("export");
    let store = dir.path().join("data/state");
    let words = ["state", "export", store.to_str().unwrap(), export.to_str().unwrap()];
    assert!(super::run(&words, &[]).status.success());
    shown.push(("the export".to_owned(), fs::read(&export).unwrap()));
    shown.push(("the log".to_owned(), fs::read(&log).unwrap()));
    for (name, text) in &shown {
        assert!(!text.is_empty(), "{name}");
        assert_eq!(has_secret(text), None, "{name} has a secret");
    }
    let said = String::from_utf8_lossy(&shown.last().unwrap().1);
    assert!(said.contains("a token was made"), "the log says something");
    // The change log is in the export.
    let export = &shown[shown.len() - 2].1;
    assert!(export.windows(11).any(|part| part == b"CreateToken"));
}
