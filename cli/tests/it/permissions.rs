//! What people do with the tokens that an administrator gives them.

use std::{fs, os::unix::fs::PermissionsExt as _};

use serde_json::Value;

use super::{
    Godel, Up,
    verbs::{run_all, says},
};

/// A person with contexts of its own, in the directory of the cluster.
pub(crate) fn person(up: &Up, name: &str) -> Godel {
    let contexts = up.dir().join(format!("{name}.contexts.yaml"));
    Godel::with_contexts(&contexts)
}

pub(crate) fn path(up: &Up, name: &str) -> String {
    up.dir().join(name).display().to_string()
}

/// Makes a token for that person, who logs in with it.
pub(crate) fn log_in(up: &Up, admin: &Godel, name: &str, flags: &[&str]) -> Godel {
    let file = path(up, &format!("{name}.token"));
    admin.ok(&[&["token", "create", name, "--file", &file][..], flags].concat());
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let godel = person(up, name);
    godel.ok(&["login", "--token-file", &file, "--state", up.address()]);
    godel
}

#[test]
fn people_do_what_their_principals_may() {
    let up = Up::start(&["--simulate", "2x cpu=4,memory=8Gi"]);
    assert!(up.address().starts_with("https://"), "{}", up.address());
    let admin = up.person();
    assert_eq!(admin.json(&["whoami"])["principal"]["role"], "admin");
    let vic = log_in(&up, &admin, "vic", &["--role", "viewer", "--namespace", "*"]);
    let ann = log_in(&up, &admin, "ann", &["--namespace", "team-a", "--group", "etl"]);
    let olga = log_in(&up, &admin, "olga", &["--role", "operator"]);
    let who = ann.json(&["whoami"]);
    assert_eq!((&who["caller"], &who["principal"]["role"]), (&"person/ann".into(), &"user".into()));

    // A user submits to its own namespaces, as itself or one of its groups.
    let submit = |name: &'static str, namespace: &'static str| {
        vec!["unit", "submit", "--name", name, "--cpu", "1", "-n", namespace]
    };
    ann.ok(&submit("web", "team-a"));
    ann.ok(&[&submit("batch", "default")[..], &["--owner", "etl"]].concat());
    let unit = vic.json(&["unit", "describe", "web", "-n", "team-a"]);
    assert_eq!((&unit["owner"], &unit["principal"]), (&"ann".into(), &"person/ann".into()));
    says(
        &ann,
        &submit("web", "team-b"),
        8,
        &["in namespace team-b", "`godel principal set ann --namespace team-b`"],
    );
    says(&ann, &[&submit("x", "team-a")[..], &["--owner", "bob"]].concat(), 8, &["for owner bob"]);
    says(&vic, &submit("web", "default"), 8, &["needs role user; vic has role viewer"]);
    olga.ok(&submit("web", "team-b"));
    for words in [
        &["unit", "cancel", "web", "-n", "team-b"][..],
        &["unit", "suspend", "web", "-n", "team-b"],
        &["unit", "delete", "web", "-n", "team-b", "--cancel"],
        &["unit", "scale", "web", "-n", "team-b", "--replicas", "2"],
    ] {
        says(&ann, words, 8, &["in namespace team-b"]);
    }
    ann.ok(&["unit", "cancel", "web", "-n", "team-a"]);
    says(&ann, &["node", "cordon", "node-0000"], 8, &["needs role operator"]);
    olga.ok(&["node", "cordon", "node-0000"]);
    says(&olga, &["queue", "create", "q"], 8, &["needs role admin"]);
    vic.ok(&["node", "list"]);
    says(&olga, &["token", "create", "eve"], 8, &["needs role admin"]);

    // Asked before.
    says(&ann, &["auth", "can-i", "SubmitUnit", "namespace/team-a"], 0, &["yes"]);
    says(&ann, &["auth", "can-i", "SubmitUnit", "namespace/team-b"], 1, &["no", "in namespace team-b"]);
    says(&admin, &["auth", "can-i", "SetPause", "--as", "ann"], 1, &["needs role operator"]);
    says(&ann, &["auth", "can-i", "SetPause", "--as", "olga"], 8, &["only role admin may ask for others"]);
    says(&ann, &["auth", "can-i", "SubmitUnit", "planet/mars"], 2, &["must be `namespace/NAME`"]);
    up.stop();
}

#[test]
fn a_person_sees_and_names_units_of_its_own_namespaces() {
    let up = Up::start(&["--simulate", "1x cpu=4,memory=8Gi"]);
    let admin = up.person();
    let ann = log_in(&up, &admin, "ann", &["--default-namespace", "ann", "--namespace", "team-a"]);
    let eve = log_in(&up, &admin, "eve", &["--role", "viewer"]);
    let board = log_in(&up, &admin, "board", &["--role", "viewer", "--namespace", "*"]);

    // Without `-n` the default namespace of the principal is meant, by every verb.
    let submitted = ann.json(&["unit", "submit", "--name", "zebra", "--cpu", "1", "--wait"]);
    assert_eq!((&submitted[0]["namespace"], &submitted[0]["outcome"]), (&"ann".into(), &"submitted".into()));
    let file = path(&up, "file.yaml");
    fs::write(&file, "{name: filed, class: service, template: {requests: {cpu: 1}}}\n").unwrap();
    assert!(ann.ok(&["apply", "-f", &file]).contains("created"));
    assert!(ann.ok(&["apply", "-f", &file]).contains("unchanged"));
    ann.ok(&["unit", "scale", "filed", "--replicas", "2"]);
    ann.ok(&["unit", "wait", "filed", "--for", "bound"]);
    for name in ["zebra", "filed"] {
        assert_eq!(ann.json(&["unit", "describe", name])["namespace"], "ann");
        assert_eq!(admin.json(&["unit", "describe", name, "-n", "ann"])["owner"], "ann");
        says(&admin, &["unit", "describe", name], 4, &["in namespace `default`"]);
    }
    ann.ok(&["unit", "submit", "--name", "shared", "--cpu", "1", "-n", "team-a"]);
    ann.ok(&["unit", "wait", "shared", "-n", "team-a", "--for", "bound"]);

    // Who may not see a unit hears of none, whatever it asks.
    let listed = |godel: &Godel| {
        let units = godel.json(&["unit", "list"]);
        let name = |unit: &Value| unit["name"].as_str().unwrap().to_owned();
        units.as_array().unwrap().iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(listed(&ann), ["filed", "zebra", "shared"]);
    assert_eq!(listed(&board), ["filed", "zebra", "shared"]);
    assert_eq!(listed(&eve), [""; 0]);
    let uid = ann.json(&["unit", "describe", "zebra"])["uid"].as_str().unwrap().to_owned();
    for (foreign, absent) in
        [("ann/zebra", "ann/none"), (uid.as_str(), "0190163d-8694-739b-aea5-000000000001")]
    {
        for verb in [&["unit", "describe"][..], &["unit", "logs"], &["unit", "watch"]] {
            let said = |name: &str| {
                let (code, out, err) = run_all(&eve, &[verb, &[name]].concat());
                let bare = name.rsplit('/').next().unwrap();
                (code, out, err.replace(bare, "NAME"))
            };
            assert_eq!(said(foreign), said(absent), "{verb:?}");
            assert_eq!(said(foreign).0, 4, "{verb:?}");
        }
    }
    // Where something else names it, its name is hidden.
    let words = ["node", "describe", "node-0000"];
    let (code, out, err) = run_all(&eve, &words);
    assert!(code == 0 && out.contains("(hidden)") && !out.contains("zebra"), "{out}{err}");
    let (_, out, _) = run_all(&ann, &words);
    assert!(out.contains("ann/zebra") && !out.contains("(hidden)"), "{out}");
    for words in [&["top", "unit"][..], &["history"], &["status"], &["queue", "list"], &["doctor"]] {
        let (_, out, err) = run_all(&eve, words);
        assert!(!out.contains("zebra") && !err.contains("zebra"), "{words:?}: {out}{err}");
    }
    up.stop();
}

#[test]
fn a_revoked_token_ends_what_it_opened() {
    let up = Up::start(&["--simulate", "1x cpu=4,memory=8Gi"]);
    let admin = up.person();
    let ann = log_in(&up, &admin, "ann", &[]);
    ann.ok(&["unit", "submit", "--name", "web", "--cpu", "1"]);
    let following = ann.spawn(&["unit", "watch", "web"]);
    // Changed permissions do not end a command that follows: it opens its stream again.
    admin.ok(&["principal", "set", "ann", "--group", "etl"]);
    let tokens = ann.json(&["token", "list"]);
    let id = tokens[0]["id"].as_str().unwrap().to_owned();
    let said = admin.ok(&["doctor"]);
    assert!(said.contains(&id) && said.contains("PRINCIPAL"), "{said}");
    admin.ok(&["token", "revoke", &id]);
    let (code, said) = following.end();
    assert!(code == 8 && said.contains("the token was revoked"), "{code}: {said}");
    let (code, _, said) = run_all(&ann, &["unit", "list"]);
    assert!(code == 8 && said.contains("the token was revoked; ask an administrator"), "{said}");
    let listed = admin.json(&["token", "list", "ann"]);
    assert_eq!(listed[0]["standing"], "revoked");

    // The next token, on standard output, with the roots of the context that is there.
    let token = admin.ok(&["token", "create", "ann", "--ttl", "1h"]);
    let file = path(&up, "next.token");
    fs::write(&file, &token).unwrap();
    let words = ["login", "--token-file", &file, "--state", up.address()];
    says(&ann, &words, 2, &["has mode 06"]);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    ann.ok(&words);
    ann.ok(&["unit", "list"]);
    let stranger = person(&up, "stranger");
    says(&stranger, &words, 2, &["no roots of it", "`--roots FILE`"]);
    let roots = path(&up, "roots.pem");
    fs::write(&roots, ann.ok(&["context", "roots"])).unwrap();
    stranger.ok(&[&words[..], &["--roots", &roots]].concat());

    // All of it at once, and the principal.
    admin.ok(&["token", "revoke", "--all-of", "ann"]);
    says(&ann, &["whoami"], 8, &["the token was revoked"]);
    admin.ok(&["principal", "delete", "ann"]);
    let principals = admin.json(&["principal", "list"]);
    let names: Vec<&Value> =
        principals.as_array().unwrap().iter().map(|principal| &principal["name"]).collect();
    assert_eq!(names, ["admin"]);
    up.stop();
}

#[test]
fn a_token_file_for_clients_of_yarn_has_no_token() {
    let up = Up::start(&[]);
    let admin = up.person();
    let file = path(&up, "ann.hadoop");
    let words = ["token", "create", "ann", "--yarn", &file];
    says(&admin, &words, 1, &["no YARN adapter leads", "`--yarn-address ADDRESS:PORT`"]);
    assert_eq!(admin.json(&["token", "list"]), serde_json::json!([]));
    says(&admin, &[&words[..], &["--yarn-address", "rm1"]].concat(), 2, &["give HOST:PORT"]);
    let made =
        admin.ok(&[&words[..], &["--yarn-address", "127.0.0.1:8032,[::1]:8032", "-o", "json"]].concat());
    assert!(!made.contains("\"token\""), "{made}");
    let bytes = fs::read(&file).unwrap();
    let has = |words: &str| bytes.windows(words.len()).any(|window| window == words.as_bytes());
    assert!(bytes.starts_with(b"HDTS\0") && has("RM_DELEGATION_TOKEN"));
    for service in ["127.0.0.1:8032", "0:0:0:0:0:0:0:1:8032"] {
        assert!(has(service), "{service}");
    }
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    says(&admin, &words, 2, &["exists already"]);
    let yarn = ["auth", "can-i", "submitApplication", "owner/bob", "--as"];
    says(&admin, &[&yarn[..], &["ann"]].concat(), 1, &["for an application of bob"]);
    says(&admin, &[&yarn[..], &["yarn-simple:bob"]].concat(), 1, &["has not proved its name"]);
    says(&admin, &[&yarn[..], &["admin"]].concat(), 0, &["yes"]);
    up.stop();
}
