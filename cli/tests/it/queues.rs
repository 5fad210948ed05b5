//! Queues and priority classes from the command line, against a whole control plane.

use crate::godel::{Godel, Up, exit_code};

/// What a command says on standard error, and how it ends.
fn said(godel: &Godel, words: &[&str]) -> (i32, String) {
    let output = godel.run(words);
    (exit_code(&output), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[track_caller]
fn fails(godel: &Godel, words: &[&str], code: i32, parts: &[&str]) {
    let (ended, text) = said(godel, words);
    assert_eq!(ended, code, "{words:?}: {text}");
    for part in parts {
        assert!(text.contains(part), "{words:?}: {text}");
    }
}

#[track_caller]
fn says(godel: &Godel, words: &[&str], part: &str) {
    fails(godel, words, 0, &[part]);
}

/// Writes a file beside the data; its path.
fn file(up: &Up, name: &str, text: &str) -> String {
    let path = up.dir().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn queues_are_created_changed_and_deleted() {
    let up = Up::start(&["--memory"]);
    let godel = up.client();
    let prod = ["queue", "create", "prod", "--min", "cpu=2,memory=1Gi", "--max", "cpu=4,gpu=0.5"];
    says(&godel, &prod, "queue prod created at revision");
    says(&godel, &prod, "queue prod already exists at revision");
    fails(&godel, &["queue", "create", "prod"], 5, &["`godel queue set` changes it"]);
    let words = ["queue", "create", "prod.search", "--min", "cpu=1", "--weight", "3", "--policy", "fifo"];
    says(&godel, &words, "created");
    fails(&godel, &["queue", "create", "none.such"], 4, &["`none`"]);
    fails(&godel, &["queue", "create", "No"], 2, &["meta.name"]);
    fails(&godel, &["queue", "create", "x", "--policy", "fiffo"], 2, &["did you mean `fifo`?"]);
    fails(
        &godel,
        &["queue", "create", "x", "--max", "cpu=many"],
        2,
        &["--max cpu: `many` is no CPU quantity"],
    );
    // Nothing but what is named changes.
    says(
        &godel,
        &["queue", "set", "prod.search", "--max", "cpu=3", "--submit-owner", "alice,bob"],
        "updated",
    );
    let search = godel.json(&["queue", "describe", "prod.search"]);
    assert_eq!((&search["min"]["cpu"], &search["max"]["cpu"]), (&1_000.into(), &3_000.into()));
    assert_eq!((&search["weight"], &search["policy"]), (&3.into(), &"fifo".into()));
    assert_eq!(search["submit_owners"], serde_json::json!(["alice", "bob"]));
    fails(
        &godel,
        &["queue", "set", "prod.search", "--weight", "2", "--revision", "1"],
        5,
        &["it has changed"],
    );
    fails(&godel, &["queue", "set", "prod.search", "--min", "cpu=4"], 2, &["min[\"cpu\"]"]);
    fails(&godel, &["queue", "set", "nowhere", "--weight", "2"], 4, &["`godel queue list` shows"]);
    fails(&godel, &["queue", "describe", "nowhere"], 4, &["`godel queue list` shows"]);

    let text = godel.ok(&["queue", "list"]);
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "WEIGHT", "POLICY", "PENDING", "RUNNING", "CPU", "MEMORY", "GPU"]);
    assert_eq!(lines[1], ["default", "1", "priority", "0", "0", "0/0/-", "0/0/-", "0/0/-"]);
    assert_eq!(lines[2], ["prod", "1", "priority", "0", "0", "0/2/4", "0/1Gi/-", "0/0/0.5"]);
    // Its own maximum of CPU, that of GPUs from above.
    assert_eq!(lines[3], ["prod.search", "3", "fifo", "0", "0", "0/1/3", "0/0/-", "0/0/0.5"]);
    assert_eq!(lines.len(), 4);

    says(&godel, &["queue", "set", "default", "--max-running-units", "5"], "queue default created");
    says(&godel, &["queue", "set", "default", "--max-running-units", "0"], "queue default updated");
    says(&godel, &["queue", "delete", "default"], "queue default deleted");
    fails(&godel, &["queue", "delete", "prod"], 1, &["prod.search", "delete or cancel these first"]);
    says(&godel, &["queue", "delete", "prod.search", "prod"], "queue prod deleted");
    assert_eq!(godel.json(&["queue", "list"]).as_array().unwrap().len(), 1);
    up.stop();
}

#[test]
fn priority_classes_are_created_changed_and_deleted() {
    let up = Up::start(&["--memory", "--simulate", "1x cpu=1,memory=1Gi"]);
    let godel = up.client();
    let gold = ["priority-class", "create", "gold", "--value", "-5", "--not-preemptible"];
    says(&godel, &gold, "priority class gold created at revision");
    says(&godel, &["priority-class", "set", "gold", "--description", "for a fee"], "updated");
    let class = godel.json(&["priority-class", "describe", "gold"]);
    assert_eq!((&class["value"], &class["preemptible"]), (&(-5).into(), &false.into()));
    assert_eq!((&class["description"], &class["built_in"]), (&"for a fee".into(), &false.into()));
    let classes = godel.json(&["priority-class", "list"]);
    let names: Vec<&str> =
        classes.as_array().unwrap().iter().map(|class| class["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["batch", "best-effort", "gold", "online", "system"]);
    fails(&godel, &["priority-class", "create", "system", "--value", "1"], 5, &["system"]);
    fails(&godel, &["priority-class", "set", "online", "--value", "1"], 1, &["built in"]);
    fails(&godel, &["priority-class", "describe", "lead"], 4, &["`godel priority-class list` shows"]);

    godel.ok(&["unit", "submit", "--name", "one", "--cpu", "1", "--priority-class", "gold", "--wait"]);
    assert_eq!(godel.json(&["unit", "describe", "one"])["priority_class"], "gold");
    assert!(godel.ok(&["unit", "list"]).lines().nth(1).unwrap().contains(" gold "));
    fails(&godel, &["unit", "submit", "--name", "two", "--priority-class", "lead"], 4, &["lead"]);
    fails(&godel, &["unit", "submit", "--name", "two", "--queue", "nowhere"], 4, &["nowhere"]);
    fails(&godel, &["priority-class", "delete", "gold"], 1, &["default/one", "delete or cancel these first"]);
    godel.audit();
    up.stop();
}

const TREE: &str = "\
kind: queue
name: prod.search
min: {cpu: 1}
---
kind: queue
name: prod
min: {cpu: 2}
max: {cpu: 3}
---
{kind: priority-class, name: gold, value: 7}
---
name: array
class: batch
queue: prod.search
priority_class: gold
replicas: 5
template: {requests: {cpu: 1, memory: 1Gi}}
";

#[test]
fn files_are_applied_and_maxima_kept() {
    let up = Up::start(&["--memory", "--schedulers", "2", "--simulate", "4x cpu=4,memory=8Gi"]);
    let godel = up.client();
    let tree = file(&up, "tree.yaml", TREE);
    let text = godel.ok(&["apply", "-f", &tree]);
    for line in [
        "queue prod.search created",
        "queue prod created",
        "priority-class gold created",
        "unit array created",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let again = godel.json(&["apply", "-f", &tree]);
    let outcomes: Vec<&str> =
        again.as_array().unwrap().iter().map(|one| one["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["unchanged"; 4]);

    // Three of five fit under the maximum, and no more.
    godel.until(&["unit", "describe", "array"], |unit| unit["running"] == 3);
    godel.until(&["queue", "describe", "prod"], |queue| queue["running_units"] == 3);
    let queue = godel.json(&["queue", "describe", "prod"]);
    assert_eq!((&queue["used_with_children"]["cpu"], &queue["used"]["cpu"]), (&3_000.into(), &().into()));
    assert_eq!((&queue["guaranteed"]["cpu"], &queue["borrowed"]["cpu"]), (&2_000.into(), &1_000.into()));
    assert_eq!((&queue["max_in_force"]["cpu"], &queue["pending_units"]), (&3_000.into(), &1.into()));
    let table = godel.ok(&["queue", "list"]);
    assert!(table.contains("3/2/3 +1") && table.contains("3/1/3 +2"), "{table}");
    let described = godel.ok(&["queue", "describe", "prod"]);
    assert!(described.contains("RESOURCE  OWN-USE  USED  GUARANTEED  BORROWED  MAX"), "{described}");
    assert!(
        godel.ok(&["queue", "describe", "prod"]).contains("cpu       -        3     2           1         3")
    );
    let why = godel.ok(&["unit", "describe", "array"]);
    assert!(why.contains("why it waits: no room in its queue"), "{why}");
    let audit = godel.audit();
    assert!(audit.contains("1 with a maximum, kept by each of"), "{audit}");
    assert!(audit.contains("1 of them have no room in their queue"), "{audit}");

    // A gang of two does not take the room for one.
    godel.ok(&["queue", "set", "prod", "--max", "cpu=6"]);
    godel.until(&["unit", "describe", "array"], |unit| unit["running"] == 5);
    let gang = ["unit", "submit", "--name", "gang", "--class", "gang", "--replicas", "2", "--cpu", "1"];
    godel.ok(&[&gang[..], &["--queue", "prod.search"]].concat());
    godel.until(&["queue", "describe", "prod"], |queue| queue["pending_units"] == 1);
    godel.audit();
    assert_eq!(godel.json(&["unit", "describe", "gang"])["bound"], 0);
    // Lowered below what is used: nobody has to go, and what ends is not replaced.
    godel.ok(&["queue", "set", "prod", "--min", "cpu=1", "--max", "cpu=1"]);
    godel.audit();
    assert_eq!(godel.json(&["queue", "describe", "prod"])["running_units"], 5);
    godel.ok(&["queue", "set", "prod", "--max", "cpu-"]);
    godel.until(&["unit", "describe", "gang"], |unit| unit["running"] == 2);
    godel.audit();
    up.stop();
}

#[test]
fn what_is_wrong_with_a_file_is_told_by_document() {
    let up = Up::start(&["--memory"]);
    let godel = up.client();
    let apply = |name: &str, text: &str, code, parts: &[&str]| {
        fails(&godel, &["apply", "-f", &file(&up, name, text)], code, parts);
    };
    let wrong =
        "{kind: queue, name: a, min: {cpu: 1}}\n---\n{kind: queue, name: b, min: {cpu: 2}, max: {cpu: 1}}\n";
    apply("w.yaml", wrong, 2, &["w.yaml:3:35: min.cpu: 2 is above the maximum 1"]);
    apply("o.yaml", "{kind: queue, name: x.y}\n", 1, &["o.yaml document 1 (queue x.y): name: ", "`x`"]);
    apply("k.yaml", "kind: quueue\n", 2, &["k.yaml:1:", "did you mean `queue`?", "docs/queues.md"]);
    apply("e.yaml", "# nothing\n", 2, &["the files contain no documents"]);
    assert_eq!(godel.json(&["queue", "list"]).as_array().unwrap().len(), 1, "nothing was changed");
    // Queues are no units.
    let queue = file(&up, "q.yaml", "{kind: queue, name: a}\n");
    fails(&godel, &["unit", "submit", "-f", &queue], 2, &["document 1 is not a unit", "`godel apply -f`"]);
    // A unit that is there as another one stays what it is; what came before it is told.
    let unit = |replicas: u32| {
        format!("{{kind: queue, name: a}}\n---\n{{name: u, replicas: {replicas}, template: {{}}}}\n")
    };
    godel.ok(&["apply", "-f", &file(&up, "u.yaml", &unit(1))]);
    let output = godel.run(&["apply", "-f", &file(&up, "u.yaml", &unit(2))]);
    assert_eq!(exit_code(&output), 5);
    assert!(String::from_utf8_lossy(&output.stdout).contains("queue a unchanged"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("u.yaml document 2 (unit u)") && said.contains("`godel unit edit NAME -f FILE`"),
        "{said}"
    );
    up.stop();
}

#[test]
fn lists_go_on_over_many_pages() {
    let up = Up::start(&["--memory"]);
    let godel = up.client();
    let queues = |from: usize, n: usize| -> String {
        (from..from + n).map(|idx| format!("---\n{{kind: queue, name: q{idx:04}}}\n")).collect()
    };
    fails(&godel, &["apply", "-f", &file(&up, "many.yaml", &queues(0, 1_001))], 2, &["1001"]);
    for (name, from, n) in [("a.yaml", 0, 1_000), ("b.yaml", 1_000, 300)] {
        godel.ok(&["apply", "-f", &file(&up, name, &queues(from, n))]);
    }
    let list = godel.json(&["queue", "list"]);
    let names: Vec<&str> = list.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 1_301);
    assert!(names.is_sorted_by(|a, b| a < b) && names[0] == "default" && names[1_300] == "q1299");
    up.stop();
}
