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
    says(&godel, &["unit", "submit", "-f", &both], 2, &["both.yaml:1:27: generate_name: give a name or"]);
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
        (&["--queue", "pro"], ""),
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
