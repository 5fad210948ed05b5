//! The day of a user: names and owners that need not be written, lists that are narrowed down, units as files.

use serde_json::Value;

use crate::{
    godel::{Godel, Up},
    verbs::{file, says, submit},
};

fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|unit| unit["name"].as_str().unwrap()).collect()
}

fn listed(godel: &Godel, flags: &[&str]) -> String {
    let list = godel.json(&[&["unit", "list"][..], flags].concat());
    names(&list).join(" ")
}

#[test]
fn a_unit_has_the_owner_and_the_name_that_were_left_out() {
    let up = Up::start(&["--memory", "--simulate", "2x cpu=4,memory=8Gi"]);
    let godel = up.client();
    submit(&godel, "web", &["--cpu", "1"]);
    submit(&godel, "db", &["--cpu", "1", "--owner", "alice"]);
    let me = String::from_utf8(std::process::Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
    assert_eq!(godel.json(&["unit", "describe", "web"])["owner"], me.trim());
    assert_eq!(godel.json(&["unit", "describe", "db"])["owner"], "alice");

    // With one uid it is one unit, however often it is submitted; without, another one each time.
    let uid = "0190163d-8694-739b-aea5-000000000001";
    let text = format!("{{generate_name: train-, uid: {uid}, template: {{requests: {{cpu: 1}}}}}}\n");
    let once = file(&up, "train.yaml", &text);
    let told = godel.json(&["unit", "submit", "-f", &once]);
    let name = told[0]["name"].as_str().unwrap().to_owned();
    assert!(name.starts_with("train-") && name.len() == "train-".len() + 8, "{name}");
    says(&godel, &["unit", "submit", "-f", &once], 0, &[&format!("unit {name} was submitted before")]);
    godel.ok(&["unit", "submit", "--generate-name", "train-", "--cpu", "1"]);
    assert_eq!(listed(&godel, &[]).split(' ').filter(|name| name.starts_with("train-")).count(), 2);
    says(&godel, &["apply", "-f", &once], 2, &["a generated name is another one each time"]);
    let both = file(&up, "both.yaml", "{name: a, generate_name: b, template: {}}\n");
    says(&godel, &["unit", "submit", "-f", &both], 2, &["both.yaml:1:26: generate_name: give a name or"]);
    let wrong = file(&up, "wrong.yaml", "{generate_name: Train-, template: {}}\n");
    says(
        &godel,
        &["unit", "submit", "-f", &wrong],
        2,
        &["generate_name: with its ending: `T` is not allowed"],
    );
    // Whoever applies a file without an owner again leaves the owner alone.
    let web = file(&up, "web.yaml", "{name: db, template: {requests: {cpu: 1}}}\n");
    says(&godel, &["apply", "-f", &web], 0, &["unit db unchanged"]);
    godel.audit();
    up.stop();
}

#[test]
fn a_unit_grows_by_groups_and_its_master_is_tried_again() {
    let up = Up::start(&["--memory", "--simulate", "2x cpu=4,memory=8Gi"]);
    let godel = up.client();
    let master = "name: app\nclass: yarn\ntask_groups:\n- name: master\n  template: {requests: {cpu: 1}, simulated: {duration: 10ms, exit_code: 3}}\n";
    let grown = format!("{master}- name: work\n  replicas: 2\n  template: {{requests: {{cpu: 1}}}}\n");
    godel.ok(&["unit", "submit", "-f", &file(&up, "app.yaml", &grown)]);
    godel.until(&["unit", "describe", "app"], |unit| unit["failed"] == 1 && unit["running"] == 2);
    // It restarts nothing by itself, and only what is asked for comes back.
    says(&godel, &["unit", "retry", "app"], 1, &["only a unit that has ended is retried"]);
    says(
        &godel,
        &["unit", "retry", "app", "--replicas", "1"],
        1,
        &["replica 1 of unit default/app has not ended"],
    );
    says(
        &godel,
        &["unit", "retry", "app", "--replicas", "9"],
        2,
        &["ordinals[0]: the unit has no replica 9"],
    );
    says(&godel, &["unit", "retry", "app", "--replicas", "0"], 0, &["unit app retried"]);
    let incarnation = |unit: &serde_json::Value| unit["running_units"][0]["incarnation"].as_u64();
    godel.until(&["unit", "describe", "app"], |unit| unit["failed"] == 1 && incarnation(unit) == Some(1));
    // Groups are added behind the others, and scaled by their names.
    let more = format!("{grown}- name: late\n  template: {{requests: {{cpu: 500m}}}}\n");
    let more = file(&up, "more.yaml", &more);
    says(&godel, &["unit", "edit", "app", "-f", &more], 0, &["name: late", "unit app updated"]);
    says(&godel, &["unit", "edit", "app", "-f", &more], 0, &["unit app unchanged"]);
    says(&godel, &["unit", "scale", "app", "--group", "late", "--replicas", "3"], 0, &["unit app scaled"]);
    godel.until(&["unit", "describe", "app"], |unit| unit["running"] == 5);
    let first = file(&up, "first.yaml", &grown);
    says(&godel, &["unit", "edit", "app", "-f", &first], 2, &["task_groups: cannot be changed"]);
    godel.ok(&["unit", "scale", "app", "--group", "work", "--replicas", "0"]);
    godel.until(&["unit", "describe", "app"], |unit| unit["running"] == 3);
    let yaml = godel.ok(&["unit", "describe", "app", "-o", "yaml"]);
    let again = file(&up, "again.yaml", &yaml.replace("name: app\n", "name: again\n"));
    godel.ok(&["unit", "submit", "-f", &again]);
    godel.until(&["unit", "describe", "again"], |unit| unit["running"] == 3);
    godel.audit();
    up.stop();
}

#[test]
fn a_list_is_narrowed_down_and_ordered() {
    let up = Up::start(&["--memory", "--simulate", "2x cpu=4,memory=8Gi"]);
    let godel = up.client();
    godel.ok(&["queue", "create", "prod"]);
    godel.ok(&["queue", "create", "prod.search"]);
    submit(&godel, "a", &["--cpu", "1", "--queue", "prod.search", "--owner", "alice", "--class", "service"]);
    submit(&godel, "b", &["--cpu", "1", "--priority", "7", "--owner", "bob", "--replicas", "2"]);
    submit(&godel, "c", &["--cpu", "90", "--owner", "alice"]);
    godel.ok(&["unit", "wait", "a", "b", "--for", "phase=running"]);
    godel.ok(&["unit", "wait", "c", "--for", "phase=unschedulable"]);
    let node =
        godel.json(&["unit", "describe", "a"])["running_units"][0]["node"].as_str().unwrap().to_owned();
    assert_eq!(godel.json(&["unit", "list", "--queue", "prod"])[0]["nodes"][0], node.as_str());
    for (flags, expected) in [
        (&["--queue", "prod"][..], "a"),
        (&["--queue", "default"], "b c"),
        (&["--owner", "alice"], "a c"),
        (&["--owner", "alice", "--class", "batch"], "c"),
        (&["--class", "service"], "a"),
        (&["--node", &node, "--owner", "alice"], "a"),
        (&["--sort", "age"], "c b a"),
        (&["--sort", "priority", "--limit", "2"], "a b"),
        (&["--sort", "replicas", "--limit", "1"], "b"),
        (&["--sort", "owner"], "a c b"),
        (&["--sort", "phase"], "c a b"),
    ] {
        assert_eq!(listed(&godel, flags), expected, "{flags:?}");
    }
    let table = godel.ok(&["unit", "list"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].ends_with("AGE  NODE       REASON") && lines[1].contains(&node), "{table}");
    assert!(lines[3].contains("insufficient cpu"), "{table}");
    says(&godel, &["unit", "list", "--queue", "pro"], 4, &["no queue pro", "`godel queue list`"]);
    says(&godel, &["unit", "list", "--node", "nowhere"], 4, &["no node `nowhere`"]);
    says(&godel, &["unit", "list", "--class", "web"], 2, &["--class: expected one of service, "]);
    says(&godel, &["unit", "list", "--sort", "size"], 2, &["invalid value 'size'"]);
    up.stop();
}

#[test]
fn a_unit_is_a_file_that_can_be_submitted_elsewhere() {
    let up = Up::start(&["--memory", "--simulate", "2x cpu=4,memory=8Gi"]);
    let godel = up.client();
    let text = "{name: web, class: service, labels: {version: 1.10}, replicas: 2, owner: alice, template: \
                {requests: {cpu: 500m, memory: 1Gi}, env: {A: 'x: y'}}}\n";
    godel.ok(&["unit", "submit", "-f", &file(&up, "web.yaml", text)]);
    submit(&godel, "db", &["--cpu", "1"]);
    let yaml = godel.ok(&["unit", "describe", "web", "-o", "yaml"]);
    assert!(yaml.starts_with("name: web\n") && yaml.contains("    cpu: 500m\n"), "{yaml}");
    // Here it is what is there; under another name it is another unit.
    says(&godel, &["apply", "-f", &file(&up, "same.yaml", &yaml)], 0, &["unit web unchanged"]);
    let other = file(&up, "other.yaml", &yaml.replace("name: web", "name: other"));
    says(&godel, &["unit", "submit", "-f", &other], 0, &["unit other submitted"]);
    let again = godel.ok(&["unit", "describe", "other", "-o", "yaml"]);
    assert_eq!(again.replace("name: other", "name: web"), yaml);
    let both = godel.ok(&["unit", "describe", "web", "db", "-o", "yaml"]);
    says(
        &godel,
        &["unit", "validate", "-f", &file(&up, "both.yaml", &both)],
        0,
        &["(web): valid", "(db): valid"],
    );
    says(&godel, &["unit", "describe", "nosuch", "-o", "yaml"], 4, &["no unit `nosuch`"]);
    says(
        &godel,
        &["unit", "describe", "web", "nosuch", "-o", "yaml"],
        4,
        &["name: web", "unit nosuch: no unit"],
    );
    up.stop();
}

#[test]
fn an_ended_unit_runs_again() {
    let up = Up::start(&["--memory", "--simulate", "2x cpu=4,memory=8Gi"]);
    let godel = up.client();
    let text = "{name: job, restart_policy: never, task_groups: [\
                {name: good, template: {requests: {cpu: 1}, simulated: {duration: 10ms}}}, \
                {name: bad, template: {requests: {cpu: 1}, simulated: {duration: 10ms, exit_code: 3}}}]}\n";
    godel.ok(&["unit", "submit", "-f", &file(&up, "job.yaml", text)]);
    says(&godel, &["unit", "wait", "job", "--for", "finished"], 1, &["1 of 2 replicas failed"]);
    let incarnations = |godel: &Godel| {
        let view = godel.json(&["unit", "describe", "job"]);
        let runs = view["running_units"].as_array().unwrap().clone();
        runs.iter().map(|run| run["incarnation"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    says(&godel, &["unit", "retry", "job"], 0, &["unit job retried at revision"]);
    godel.until(&["unit", "describe", "job"], |unit| unit["phase"] == "Failed" && unit["failed"] == 1);
    assert_eq!(incarnations(&godel), [0, 1], "what has succeeded stays");
    let told = godel.json(&["unit", "retry", "job", "--all"]);
    assert_eq!((&told[0]["outcome"], &told[0]["name"]), (&"retried".into(), &"job".into()));
    godel.until(&["unit", "describe", "job"], |unit| unit["phase"] == "Failed" && unit["failed"] == 1);
    assert_eq!(incarnations(&godel), [1, 2]);
    says(&godel, &["unit", "retry", "job", "--revision", "1"], 5, &["the unit is at revision"]);
    says(&godel, &["unit", "retry", "nosuch"], 4, &["no unit `nosuch`"]);
    submit(&godel, "long", &["--cpu", "1"]);
    says(&godel, &["unit", "retry", "long"], 1, &["only a unit that has ended is retried"]);
    submit(&godel, "well", &["--cpu", "1", "--duration", "10ms"]);
    godel.ok(&["unit", "wait", "well", "--for", "finished"]);
    says(&godel, &["unit", "retry", "well"], 1, &["has succeeded", "`--all` runs all of them"]);
    // Its queue must still be there.
    godel.ok(&["queue", "create", "gone"]);
    submit(&godel, "old", &["--cpu", "1", "--queue", "gone"]);
    godel.ok(&["unit", "cancel", "old"]);
    godel.ok(&["unit", "wait", "old", "--for", "phase=cancelled"]);
    says(&godel, &["unit", "retry", "old"], 0, &["unit old retried"]);
    godel.ok(&["unit", "wait", "old", "--for", "phase=running"]);
    godel.audit();
    up.stop();
}

#[test]
fn a_unit_is_edited_under_the_revision_that_was_read() {
    let up = Up::start(&["--memory", "--simulate", "2x cpu=4,memory=8Gi"]);
    let godel = up.client();
    godel.ok(&["queue", "create", "prod"]);
    submit(&godel, "web", &["--cpu", "1", "--class", "service", "--replicas", "2"]);
    godel.ok(&["unit", "wait", "web", "--for", "phase=running"]);
    let yaml = godel.ok(&["unit", "describe", "web", "-o", "yaml"]);
    let with = |from: &str, to: &str| {
        assert!(yaml.contains(from), "{yaml}");
        file(&up, "web.yaml", &yaml.replace(from, to))
    };
    let more = with("replicas: 2", "replicas: 3");
    says(
        &godel,
        &["unit", "edit", "web", "-f", &more],
        0,
        &["- replicas: 2", "+ replicas: 3", "unit web updated at revision"],
    );
    godel.until(&["unit", "describe", "web"], |unit| unit["running"] == 3);
    says(&godel, &["unit", "edit", "web", "-f", &more], 0, &["unit web unchanged"]);
    // Of what cannot be changed every field is named, with what to do instead.
    let wrong = yaml.replace("replicas: 2", "replicas: 3").replace("class: service", "class: batch");
    let wrong = wrong
        .replace("queue: default", "queue: prod")
        .replace("cpu: \"1\"", "cpu: 2")
        .replace("cpu: 1\n", "cpu: 2\n");
    let wrong = file(&up, "wrong.yaml", &wrong);
    says(
        &godel,
        &["unit", "edit", "web", "-f", &wrong],
        2,
        &[
            "class: cannot be changed: submit it as a new unit",
            "template: can be changed only before the unit has had a node",
        ],
    );
    says(&godel, &["unit", "edit", "web", "-f", &more, "--revision", "1"], 5, &["the unit is at revision"]);
    says(&godel, &["unit", "edit", "we", "-f", &more], 4, &["did you mean `web`?"]);
    let other = file(&up, "other.yaml", "{name: other, template: {}}\n");
    says(&godel, &["unit", "edit", "web", "-f", &other], 2, &["the file is of unit `other`, not of `web`"]);
    // The template waits until nothing is on a node.
    let yaml = godel.ok(&["unit", "describe", "web", "-o", "yaml"]);
    let command = file(&up, "command.yaml", &format!("{yaml}  env:\n    A: b\n"));
    says(&godel, &["unit", "edit", "web", "-f", &command], 2, &["suspend it first"]);
    godel.ok(&["unit", "suspend", "web"]);
    godel.until(&["unit", "describe", "web"], |unit| unit["phase"] == "Suspended" && unit["bound"] == 0);
    says(&godel, &["unit", "edit", "web", "-f", &command, "--yes"], 0, &["+     A: b", "updated"]);
    godel.ok(&["unit", "resume", "web"]);
    godel.until(&["unit", "describe", "web"], |unit| unit["running"] == 3);
    // What runs moves with its unit, and counts where it moved.
    let running = |queue: &str| godel.json(&["queue", "describe", queue])["running_units"].clone();
    says(&godel, &["unit", "move", "web", "--queue", "prod"], 0, &["unit web moved at revision"]);
    assert_eq!((running("default"), running("prod")), (0.into(), 3.into()));
    says(&godel, &["unit", "move", "web", "--queue", "prod"], 0, &["unit web unchanged"]);
    says(&godel, &["unit", "move", "web", "--queue", "nowhere"], 4, &["there is no queue `nowhere`"]);
    let stale = ["unit", "move", "web", "--queue", "default", "--revision", "1"];
    says(&godel, &stale, 5, &["the unit is at revision"]);
    godel.ok(&["queue", "create", "small", "--max", "cpu=2"]);
    let no_room = "what runs of unit default/web takes 3 of cpu, and queue small uses 0 of at most 2";
    says(&godel, &["unit", "move", "web", "--queue", "small"], 1, &[no_room, "raise the maximum of small"]);
    says(&godel, &["unit", "move", "web", "--queue", "default"], 0, &["moved"]);
    // A unit that waits can be put right, and moves to another queue.
    submit(&godel, "big", &["--cpu", "90"]);
    godel.ok(&["unit", "wait", "big", "--for", "phase=unschedulable"]);
    let yaml = godel.ok(&["unit", "describe", "big", "-o", "yaml"]);
    let nowhere = file(&up, "nowhere.yaml", &yaml.replace("queue: default", "queue: nowhere"));
    says(&godel, &["unit", "edit", "big", "-f", &nowhere], 4, &["there is no queue `nowhere`"]);
    let small = yaml.replace("queue: default", "queue: prod").replace("cpu: 90", "cpu: 1");
    says(&godel, &["unit", "edit", "big", "-f", &file(&up, "big.yaml", &small)], 0, &["unit big updated"]);
    godel.ok(&["unit", "wait", "big", "--for", "phase=running"]);
    assert_eq!(listed(&godel, &["--queue", "prod"]), "big");
    assert_eq!(godel.json(&["queue", "describe", "prod"])["running_units"], 1);
    godel.ok(&["unit", "cancel", "big"]);
    says(&godel, &["unit", "edit", "big", "-f", &nowhere], 1, &["the unit is over: Cancelled"]);
    godel.audit();
    up.stop();
}

#[test]
fn a_service_is_scaled_to_zero_and_back() {
    let up = Up::start(&["--memory", "--simulate", "2x cpu=4,memory=8Gi"]);
    let godel = up.client();
    submit(&godel, "web", &["--cpu", "1", "--class", "service", "--replicas", "2"]);
    godel.ok(&["unit", "wait", "web", "--for", "phase=running"]);
    godel.ok(&["unit", "scale", "web", "--replicas", "0"]);
    godel.until(&["unit", "describe", "web"], |unit| {
        unit["phase"] == "Scheduled" && unit["replicas"] == 0 && unit["bound"] == 0
    });
    says(&godel, &["unit", "list"], 0, &["0/0"]);
    let yaml = godel.ok(&["unit", "describe", "web", "-o", "yaml"]);
    assert!(yaml.contains("replicas: 0"), "{yaml}");
    says(&godel, &["unit", "validate", "-f", &file(&up, "zero.yaml", &yaml)], 0, &["(web): valid"]);
    godel.audit();
    godel.ok(&["unit", "scale", "web", "--replicas", "3"]);
    godel.until(&["unit", "describe", "web"], |unit| unit["phase"] == "Running" && unit["running"] == 3);
    submit(&godel, "job", &["--cpu", "1"]);
    says(
        &godel,
        &["unit", "scale", "job", "--replicas", "0"],
        2,
        &["replicas: 0 over all groups is not in 1"],
    );
    godel.audit();
    up.stop();
}

#[test]
fn ended_units_are_accounted_for_after_they_are_gone() {
    let up = Up::start(&["--memory", "--simulate", "2x cpu=4,memory=8Gi"]);
    let godel = up.client();
    godel.ok(&["queue", "create", "prod"]);
    let job = |name: &str, flags: &[&str]| {
        submit(&godel, name, &[&["--cpu", "2", "--memory", "1Gi", "--replicas", "2"][..], flags].concat());
    };
    job("a", &["--duration", "30ms", "--owner", "alice", "--queue", "prod"]);
    job("b", &["--duration", "30ms", "--owner", "bob", "--exit-code", "3", "--restart-policy", "never"]);
    job("c", &["--owner", "alice"]);
    godel.ok(&["unit", "wait", "a", "--for", "finished"]);
    godel.ok(&["unit", "wait", "b", "--for", "phase=failed"]);
    godel.ok(&["unit", "wait", "c", "--for", "phase=running"]);
    godel.ok(&["unit", "delete", "c", "--cancel"]);
    // Before its record goes and after it, a unit is there once.
    let kept = |name: &str| {
        let list = godel.json(&["history"]);
        let of_name: Vec<Value> =
            list.as_array().unwrap().iter().filter(|unit| unit["name"] == name).cloned().collect();
        assert_eq!(of_name.len(), 1, "{list}");
        of_name[0].clone()
    };
    let before = kept("a");
    assert_eq!((&before["phase"], &before["is_kept"]), (&"Completed".into(), &true.into()));
    godel.ok(&["unit", "delete", "a"]);
    let after = kept("a");
    assert_eq!((&after["is_kept"], &after["run_ms"]), (&false.into(), &before["run_ms"]));
    let run_ms = after["run_ms"].as_u64().unwrap();
    assert!(run_ms > 0 && after["runs"].as_array().unwrap().len() == 2, "{after}");
    assert_eq!(after["resource_seconds"]["cpu"].as_u64().unwrap() / 4, run_ms / 2, "{after}");
    assert_eq!((kept("b")["failed"].clone(), kept("c")["phase"].clone()), (2.into(), "Cancelled".into()));
    let listed = |flags: &[&str]| {
        let list = godel.json(&[&["history"][..], flags].concat());
        names(&list).join(" ")
    };
    for (flags, expected) in [
        (&[][..], "c b a"),
        (&["--limit", "2"], "c b"),
        (&["--owner", "alice"], "c a"),
        (&["--queue", "prod"], "a"),
        (&["--phase", "failed"], "b"),
        (&["--since", "1h", "--owner", "bob"], "b"),
        (&["-n", "nowhere"], ""),
    ] {
        assert_eq!(listed(flags), expected, "{flags:?}");
    }
    let sums = godel.json(&["history", "--sum", "owner"]);
    assert_eq!(
        (&sums[0]["name"], &sums[0]["units"], &sums[0]["cancelled"]),
        (&"alice".into(), &2.into(), &1.into())
    );
    assert_eq!((&sums[1]["name"], &sums[1]["failed"]), (&"bob".into(), &1.into()));
    says(&godel, &["history", "--sum", "queue"], 0, &["NAME     UNITS", "default  2", "prod     1"]);
    says(&godel, &["history", "--limit", "1"], 0, &["c ", "the newest 1; --limit shows more"]);
    says(
        &godel,
        &["history", "--phase", "running"],
        2,
        &["only completed, failed and cancelled units have ended"],
    );
    says(&godel, &["history", "--phase", "done"], 2, &["done"]);
    says(&godel, &["history", "--sum", "size"], 2, &["invalid value 'size'"]);
    godel.audit();
    up.stop();
}

#[test]
fn an_editor_changes_a_unit_and_a_draft_is_not_lost() {
    let up = Up::start(&["--memory", "--simulate", "2x cpu=4,memory=8Gi"]);
    let godel = up.client();
    submit(&godel, "web", &["--cpu", "1", "--class", "service", "--replicas", "2"]);
    godel.ok(&["unit", "wait", "web", "--for", "phase=running"]);
    let edit = |editor: &str, code: i32| {
        let output = godel.run_with(&["unit", "edit", "web", "--yes"], ("VISUAL", editor));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{editor}: {said}");
        said
    };
    assert!(edit("true", 0).contains("unit web unchanged"));
    let said = edit("sed -i 's/^replicas: 2/replicas: 1/'", 0);
    assert!(said.contains("- replicas: 2\n+ replicas: 1") && said.contains("unit web updated"), "{said}");
    godel.until(&["unit", "describe", "web"], |unit| unit["running"] == 1);
    assert!(edit("false", 1).contains("the editor `false` ended with"));
    // What the file says wrongly is told with its place, and the file is kept.
    let said = edit("sed -i 's/^replicas: 1/replicas: many/'", 2);
    let (_, path) = said.split_once("your draft is kept in ").unwrap_or_else(|| panic!("{said}"));
    let path = path.lines().next().unwrap().trim();
    assert!(said.contains("replicas: `many` is not a whole number"), "{said}");
    assert!(std::fs::read_to_string(path).unwrap().contains("replicas: many"));
    std::fs::remove_file(path).unwrap();
    up.stop();
}
