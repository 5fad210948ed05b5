//! Verbs hit what was named, tell all that became of it, and end as `--help` says.

use serde_json::Value;

use crate::godel::{Godel, Up, exit_code, run};

/// Exit code, standard output, standard error.
pub(crate) fn run_all(godel: &Godel, words: &[&str]) -> (i32, String, String) {
    let output = godel.run(words);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (exit_code(&output), text(&output.stdout), text(&output.stderr))
}

#[track_caller]
pub(crate) fn says(godel: &Godel, words: &[&str], code: i32, parts: &[&str]) {
    let (ended, out, err) = run_all(godel, words);
    assert_eq!(ended, code, "{words:?}: {out}{err}");
    for part in parts {
        assert!(out.contains(part) || err.contains(part), "{words:?} does not say {part}: {out}{err}");
    }
}

pub(crate) fn array(godel: &Godel, words: &[&str]) -> (i32, Vec<Value>) {
    let (code, out, _) = run_all(godel, &[words, &["-o", "json"]].concat());
    (code, serde_json::from_str::<Value>(&out).unwrap().as_array().unwrap().clone())
}

pub(crate) fn submit(godel: &Godel, name: &str, flags: &[&str]) {
    godel.ok(&[&["unit", "submit", "--name", name][..], flags].concat());
}

pub(crate) fn file(up: &Up, name: &str, text: &str) -> String {
    let path = up.dir().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn nothing_is_changed_that_was_not_named_whole() {
    let up = Up::start(&["--memory", "--simulate", "2x cpu=4,memory=8Gi"]);
    let godel = up.client();
    submit(&godel, "web-prod", &["--replicas", "2", "--cpu", "1"]);
    godel.ok(&["unit", "wait", "web-prod", "--for", "phase=running"]);
    let uid = godel.json(&["unit", "describe", "web"])["uid"].as_str().unwrap().to_owned();
    let near = ["no unit `", "did you mean `web-prod`?"];
    for name in ["web", &uid[..30]] {
        for words in [&["cancel"][..], &["suspend"], &["resume"], &["delete"], &["delete", "--cancel"]] {
            says(&godel, &[&["unit"][..], words, &[name]].concat(), 4, &near);
        }
        says(&godel, &["unit", "scale", name, "--replicas", "1"], 4, &near);
        says(&godel, &["unit", "move", name, "--queue", "default"], 4, &near);
        says(&godel, &["unit", "stop", name, "0"], 4, &near);
        says(&godel, &["unit", "wait", name, "--for", "bound"], 4, &near);
    }
    let near = ["no node `node-000`", "did you mean `node-0000`, `node-0001`?"];
    for words in [&["cordon"][..], &["uncordon"], &["drain"], &["undrain"], &["delete"]] {
        says(&godel, &[&["node"][..], words, &["node-000"]].concat(), 4, &near);
    }
    says(&godel, &["node", "label", "node-000", "a=b"], 4, &near);
    says(&godel, &["node", "taint", "node-000", "a:no-schedule"], 4, &near);
    assert_eq!(godel.json(&["unit", "describe", "web-prod"])["running"], 2);
    assert!(godel.json(&["node", "list"]).as_array().unwrap().iter().all(|node| node["status"] == "Ready"));
    says(&godel, &["unit", "cancel", &uid], 0, &["cancelled at revision"]);
    up.stop();
}

#[test]
fn all_that_is_named_is_tried_and_told() {
    let up = Up::start(&["--memory", "--simulate", "2x cpu=4,memory=8Gi"]);
    let godel = up.client();
    for name in ["a", "b", "c"] {
        submit(&godel, name, &["--cpu", "1"]);
    }
    says(
        &godel,
        &["unit", "cancel", "a", "nosuch", "b"],
        4,
        &[
            "unit a cancelled at revision",
            "unit nosuch: no unit `nosuch`",
            "unit b cancelled at revision",
            "2 units changed, 0 unchanged, 1 failed",
            "error: 1 of 3 units failed",
        ],
    );
    let (code, told) = array(&godel, &["unit", "cancel", "nosuch", "c"]);
    assert_eq!((code, told.len()), (4, 2));
    assert_eq!((&told[0]["outcome"], &told[0]["exit_code"]), (&"failed".into(), &4.into()));
    assert_eq!((&told[1]["name"], &told[1]["outcome"]), (&"c".into(), &"cancelled".into()));
    let (code, told) = array(&godel, &["node", "cordon", "node-0000", "node-0000", "node-0001"]);
    assert_eq!((code, told.len()), (0, 2));
    // One is an object, several are an array, whatever the verb.
    assert_eq!(godel.json(&["unit", "describe", "a"])["name"], "a");
    assert_eq!(godel.json(&["unit", "describe", "a", "b"]).as_array().unwrap().len(), 2);
    says(&godel, &["unit", "describe", "a", "nosuch"], 4, &["unit nosuch: no unit", "name       a"]);
    says(&godel, &["node", "describe", "node-0000", "node-0001"], 0, &["node-0000", "node-0001"]);
    says(
        &godel,
        &["queue", "create", "p", "q", "--max", "cpu=4"],
        0,
        &["queue p created", "queue q created"],
    );
    says(
        &godel,
        &["queue", "delete", "p", "x", "q"],
        4,
        &["queue p deleted", "queue x: ", "queue q deleted"],
    );
    up.stop();
}

#[test]
fn a_wait_for_the_end_fails_where_the_unit_did() {
    let up = Up::start(&["--memory", "--simulate", "2x cpu=4,memory=8Gi"]);
    let godel = up.client();
    let unit = |name: &str, code: i32| {
        format!(
            "{{name: {name}, restart_policy: never, template: {{requests: {{cpu: 1}}, \
             simulated: {{duration: 10ms, exit_code: {code}}}}}}}\n"
        )
    };
    let both = file(&up, "u.yaml", &format!("{}---\n{}", unit("well", 0), unit("ill", 3)));
    godel.ok(&["unit", "submit", "-f", &both]);
    says(
        &godel,
        &["unit", "wait", "well", "--for", "finished"],
        0,
        &["unit well completed: 1 replica succeeded"],
    );
    let failed = "unit ill failed: 1 of 1 replica failed (ordinal 0 on node-";
    says(&godel, &["unit", "wait", "ill", "--for", "finished"], 1, &[failed, "exit code 3"]);
    says(&godel, &["unit", "wait", "ill", "--for", "phase=completed"], 1, &[failed]);
    says(&godel, &["unit", "wait", "ill", "--for", "phase=failed"], 0, &["unit ill is Failed"]);
    let (code, told) = array(&godel, &["unit", "wait", "well", "ill", "--for", "finished"]);
    assert_eq!((code, &told[0]["holds"], &told[1]["holds"]), (1, &true.into(), &false.into()));
    submit(&godel, "long", &["--cpu", "1"]);
    godel.ok(&["unit", "cancel", "long"]);
    says(&godel, &["unit", "wait", "long", "--for", "finished"], 1, &["unit long was cancelled"]);
    says(&godel, &["unit", "wait", "nobody", "--for", "finished"], 4, &["no unit `nobody`"]);
    up.stop();
}

#[test]
fn the_record_of_an_ended_unit_is_deleted_and_its_name_free() {
    let up = Up::start(&["--memory", "--simulate", "2x cpu=4,memory=8Gi"]);
    let godel = up.client();
    submit(&godel, "job", &["--cpu", "1", "--duration", "10ms"]);
    godel.ok(&["unit", "wait", "job", "--for", "finished"]);
    let again = ["unit", "submit", "--name", "job", "--cpu", "2"];
    let taken = ["unit job ended", "(completed); its name is free again in", "or now: godel unit delete job"];
    says(&godel, &again, 5, &taken);
    let other = file(&up, "job.yaml", "{name: job, template: {requests: {cpu: 2}}}\n");
    says(&godel, &["apply", "-f", &other], 5, &taken);
    says(&godel, &["unit", "delete", "job"], 0, &["unit job deleted at revision"]);
    godel.ok(&again);
    says(&godel, &["unit", "delete", "job"], 1, &["cancel it first", "--cancel"]);
    says(&godel, &["unit", "delete", "--wait", "--timeout", "50ms", "job"], 6, &["timeout after 50ms"]);
    says(
        &godel,
        &["unit", "delete", "--cancel", "job", "nosuch"],
        4,
        &["unit job deleted", "unit nosuch: no unit"],
    );
    says(&godel, &["unit", "describe", "job"], 4, &["no unit `job`"]);
    godel.audit();
    up.stop();
}

#[test]
fn what_went_in_and_what_did_not_is_told() {
    let up = Up::start(&["--memory", "--simulate", "2x cpu=4,memory=8Gi"]);
    let godel = up.client();
    let one = |name: &str, queue: &str| {
        format!("---\n{{name: {name}, queue: {queue}, template: {{requests: {{cpu: 1m}}}}}}\n")
    };
    let few =
        file(&up, "few.yaml", &[one("x", "default"), one("y", "nowhere"), one("z", "default")].concat());
    says(
        &godel,
        &["unit", "submit", "-f", &few],
        4,
        &[
            "unit x submitted",
            "few.yaml document 2 (y): ",
            "there is no queue `nowhere`",
            "unit z submitted",
            "1 unit was refused; 2 units are in",
        ],
    );
    // So many go on one stream.
    let mut many: String = (0..400).map(|n| one(&format!("u{n}"), "default")).collect();
    many.push_str(&one("bad", "nowhere"));
    many.push_str(&one("x", "default"));
    let many = file(&up, "many.yaml", &many);
    let (code, told) = array(&godel, &["unit", "submit", "-f", &many]);
    assert_eq!((code, told.len()), (1, 402));
    assert!(told[..400].iter().all(|unit| unit["outcome"] == "submitted"), "{told:?}");
    assert_eq!((&told[400]["outcome"], &told[401]["outcome"]), (&"refused".into(), &"refused".into()));
    assert!(told[400]["place"].as_str().unwrap().contains("document 401"), "{:?}", told[400]);
    assert!(told[401]["error"].as_str().unwrap().contains("exists with another uid"), "{:?}", told[401]);
    says(&godel, &["unit", "submit", "-f", &many], 1, &["402 units were refused; 0 units are in"]);
    godel.until(&["status"], |status| status["dispatcher"]["phases"]["Running"] == 402);
    up.stop();
}

#[test]
fn a_plan_says_what_happens() {
    let up = Up::start(&["--memory", "--simulate", "2x cpu=4,memory=8Gi"]);
    let godel = up.client();
    godel.until(&["scheduler", "list"], |list| list[0]["status"] == "Attached");
    godel.ok(&["queue", "create", "small", "--max", "cpu=2"]);
    let plan = |name: &str, flags: &[&str]| [&["unit", "plan", "--name", name][..], flags].concat().join(" ");
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let check = |line: String, code, parts: &[&str]| {
        let line = words(&line);
        says(&godel, &line.iter().map(String::as_str).collect::<Vec<_>>(), code, parts);
    };
    check(plan("a", &["--replicas", "2", "--cpu", "1"]), 0, &["unit a fits: "]);
    let gang = ["--class", "gang", "--replicas", "4", "--cpu", "1", "--queue", "small"];
    check(plan("a", &gang), 1, &["unit a can never be placed", "queue `small` allows at most 2 cpu"]);
    check(plan("a", &["--cpu", "1", "--queue", "nowhere"]), 4, &["there is no queue `nowhere`"]);
    check(plan("A", &["--cpu", "1"]), 2, &["--name: `A` is not allowed"]);
    check(plan("a", &["--cpu", "9"]), 1, &["unit a would wait", "insufficient cpu"]);
    submit(&godel, "low", &["--replicas", "8", "--cpu", "1", "--class", "batch"]);
    godel.until(&["unit", "describe", "low"], |unit| unit["running"] == 8);
    check(plan("low", &["--cpu", "1"]), 5, &["unit low exists"]);
    // What preemption places a moment later.
    let high = ["--class", "service", "--replicas", "2", "--cpu", "4", "--priority-class", "online"];
    check(plan("high", &high), 0, &["unit high fits after preempting 8 running units of default/low"]);
    submit(&godel, "high", &high);
    godel.until(&["unit", "describe", "high"], |unit| unit["running"] == 2);
    let view = run_all(&godel, &["unit", "plan", "--name", "more", "--cpu", "1", "-o", "json"]).1;
    let view: Value = serde_json::from_str(&view).unwrap();
    assert_eq!((&view[0]["outcome"], &view[0]["unplaced"]), (&"waits".into(), &1.into()));
    up.stop();
}

#[test]
fn status_says_what_is_allocated_and_who_stands_by() {
    let up = Up::start(&[
        "--memory",
        // Over TLS a second process has no name that is in use.
        "--insecure",
        "--binders",
        "2",
        "--dispatchers",
        "2",
        "--simulate",
        "2x cpu=4,memory=8Gi,gpu=2:A10",
    ]);
    let godel = up.client();
    submit(&godel, "half", &["--replicas", "2", "--cpu", "2", "--memory", "2Gi", "--gpu", "1", "--wait"]);
    godel.until(&["status"], |status| status["dispatcher"]["allocated"]["cpu"] == 4_000);
    let line = "allocated   cpu 50 % (4 of 8), memory 25 % (4Gi of 16Gi), gpu 50 % (2 of 4)";
    says(&godel, &["status"], 0, &[line]);
    let standbys = |status: &Value, lease: &str| {
        let members = status["members"].as_array().unwrap();
        let member = members.iter().find(|member| member["lease"] == lease).unwrap();
        member["standbys"].as_array().unwrap().len()
    };
    godel.until(&["status"], |status| standbys(status, "binder") == 1 && standbys(status, "dispatcher") == 1);
    says(&godel, &["status"], 0, &["stands by"]);
    // A second process under the name of a scheduler that is at work does nothing, and is seen.
    let second = up.serve(&[
        "scheduler",
        "--name",
        "s1",
        "--listen",
        "127.0.0.1:0",
        "--metrics-listen",
        "127.0.0.1:0",
    ]);
    godel.until(&["status"], |status| standbys(status, "scheduler/s1") == 1);
    says(&godel, &["status"], 0, &["idle: another process has this name"]);
    drop(second);
    up.stop();
}

#[test]
fn exit_codes_are_those_of_the_help() {
    let up = Up::start(&["--memory", "--insecure"]);
    let godel = up.client();
    says(
        &godel,
        &["unit", "submit", "--name", "a", "--queue", "nowhere"],
        4,
        &["there is no queue `nowhere`"],
    );
    says(
        &godel,
        &["unit", "submit", "--name", "a", "--priority-class", "gold"],
        4,
        &["no priority class `gold`"],
    );
    godel.ok(&["queue", "create", "mine", "--submit-owner", "alice"]);
    says(&godel, &["unit", "submit", "--name", "a", "--queue", "mine"], 8, &["may not submit"]);
    // Not state, but the dispatcher beside it; and nobody at all.
    let members = godel.json(&["status"])["members"].as_array().unwrap().clone();
    let dispatcher = members.iter().find(|member| member["lease"] == "dispatcher").unwrap();
    let address = dispatcher["address"].as_str().unwrap().to_owned();
    let other = run(&["node", "list"], &[("GODEL_ADDR", &address)]);
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert_eq!(exit_code(&other), 3, "{said}");
    assert!(said.contains("is this the address of godel's state service?"), "{said}");
    let wrong = file(&up, "w.yaml", "{name: a, min_member: 2, template: {}}\n");
    let told = ["w.yaml:1:23: min_member: 2 is above the 1 replica"];
    says(&godel, &["unit", "validate", "-f", &wrong], 2, &told);
    up.stop();
}
