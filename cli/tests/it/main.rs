//! Sessions with the binary: `godel up` as a child process on free ports, and the client's verbs against it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod agents;
mod budgets;
mod changes;
mod contexts;
mod docs;
mod etcd;
mod godel;
mod permissions;
mod queues;
mod secured;
mod users;
mod verbs;
mod yarn;

use std::time::Duration;

use godel::{Godel, Up, exit_code, run};
use serde_json::Value;

const WEB: &str = "\
name: web
class: service
labels: {app: web}
replicas: 3
template:
  requests: {cpu: 500m, memory: 1Gi}
";

#[test]
fn a_unit_lives_its_life_from_the_command_line() {
    let up = Up::start(&["--memory", "--schedulers", "2", "--simulate", "10x cpu=4,memory=8Gi,gpu=2:A10"]);
    let godel = up.client();
    let file = up.dir().join("web.yaml");
    std::fs::write(&file, WEB).unwrap();
    let file = file.to_str().unwrap();
    assert!(godel.ok(&["unit", "submit", "-f", file, "--wait"]).contains("unit web submitted"));
    godel.ok(&["unit", "wait", "web", "--for", "phase=running", "--timeout", "20s"]);
    let view: Value = godel.json(&["unit", "describe", "web"]);
    assert_eq!(
        (&view["phase"], &view["running"], &view["class"]),
        (&"Running".into(), &3.into(), &"service".into())
    );
    let uid = view["uid"].as_str().unwrap();
    // A unique prefix of the uid or of the name does as well.
    assert_eq!(godel.json(&["unit", "describe", &uid[..uid.len() - 2]])["name"], "web");
    assert_eq!(godel.json(&["unit", "describe", "we"])["name"], "web");

    godel.ok(&["unit", "scale", "web", "--replicas", "5"]);
    godel.ok(&["unit", "wait", "web", "--for", "bound", "--timeout", "20s"]);
    assert_eq!(godel.json(&["unit", "list", "-l", "app=web"])[0]["replicas"], 5);
    godel.ok(&["unit", "scale", "web", "--replicas", "2"]);
    godel.until(&["unit", "describe", "web"], |view| view["running"] == 2);
    assert_eq!(exit_code(&godel.run(&["unit", "scale", "web", "--replicas", "1", "--revision", "1"])), 5);

    let changes = godel.ok(&["unit", "watch", "web", "--count", "1", "-o", "json"]);
    let change: Value = serde_json::from_str(changes.lines().next().unwrap()).unwrap();
    assert_eq!(change["name"], "web");
    godel.ok(&["unit", "cancel", "web"]);
    assert_eq!(exit_code(&godel.run(&["unit", "wait", "web", "--for", "finished", "--timeout", "20s"])), 1);
    assert_eq!(godel.json(&["unit", "describe", "web"])["phase"], "Cancelled");
    assert_eq!(exit_code(&godel.run(&["unit", "wait", "web", "--for", "phase=running"])), 1);
    godel.audit();
    up.stop();
}

#[test]
fn an_unplaceable_unit_says_why_and_where_it_came_nearest() {
    let up = Up::start(&["--memory", "--simulate", "4x cpu=4,memory=8Gi,gpu=2:A10"]);
    let godel = up.client();
    godel.ok(&[
        "unit",
        "submit",
        "--name",
        "big",
        "--class",
        "gang",
        "--replicas",
        "9",
        "--gpu",
        "1:A10",
        "--cpu",
        "1",
    ]);
    godel.ok(&["unit", "wait", "big", "--for", "phase=unschedulable", "--timeout", "20s"]);
    let text = godel.ok(&["unit", "describe", "big"]);
    assert!(text.contains("why it waits: 4 nodes refused it") && text.contains("nearest miss: "), "{text}");
    assert!(text.contains("4      device"), "{text}");
    let view = godel.json(&["unit", "describe", "big"]);
    assert_eq!(view["refusals"]["reasons"][0]["nodes"], 4);
    assert_eq!(exit_code(&godel.run(&["unit", "wait", "big", "--for", "bound", "--timeout", "50ms"])), 6);
    godel.audit();
    up.stop();
}

#[test]
fn nodes_are_listed_cordoned_and_labelled() {
    let up = Up::start(&["--memory", "--simulate", "3x cpu=4,memory=8Gi"]);
    let godel = up.client();
    assert_eq!(godel.json(&["node", "list"]).as_array().unwrap().len(), 3);
    godel.ok(&["node", "label", "node-0000", "zone=a"]);
    assert_eq!(godel.json(&["node", "list", "-l", "zone=a"])[0]["name"], "node-0000");
    godel.ok(&["node", "cordon", "node-0001", "node-0002"]);
    assert_eq!(godel.json(&["node", "describe", "node-0001"])["status"], "Ready,Cordoned");
    godel.ok(&["unit", "submit", "--name", "one", "--replicas", "2", "--cpu", "1", "--wait"]);
    let text = godel.ok(&["node", "describe", "node-0000"]);
    assert!(text.contains("default/one/0") && text.contains("default/one/1"), "{text}");
    godel.ok(&["node", "uncordon", "node-0001", "node-0002"]);
    godel.ok(&["node", "taint", "node-0001", "gpu=only:no-schedule"]);
    assert_eq!(godel.json(&["node", "describe", "node-0001"])["taints"][0], "gpu=only:no-schedule");
    assert_eq!(exit_code(&godel.run(&["node", "describe", "nowhere"])), 4);
    assert_eq!(exit_code(&godel.run(&["node", "label", "node-0000", "zone"])), 2);
    up.stop();
}

#[test]
fn a_trace_is_replayed_audited_and_still_there_after_a_restart() {
    let up = Up::start(&["--schedulers", "3", "--simulate", "20x cpu=32,memory=128Gi,gpu=8:A10"]);
    let godel = up.client();
    let (trace, ledger, json) =
        (up.dir().join("t.csv"), up.dir().join("ledger.csv"), up.dir().join("s.json"));
    let mut rows = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n".to_owned();
    for n in 0..200 {
        let (qos, gpus, milli) = if n % 2 == 0 { ("LS", 1, 500 + n % 7) } else { ("BE", 2, 1000) };
        rows.push_str(&format!("p-{n},1000,1024,{gpus},{milli},,{qos},Running,0,10,0\n"));
    }
    std::fs::write(&trace, rows).unwrap();
    let [trace, ledger, json] = [trace, ledger, json].map(|path| path.to_str().unwrap().to_owned());
    let text = godel.ok(&["trace", "replay", &trace, "--ledger", &ledger, "--json", &json, "--audit"]);
    assert!(text.contains("of 200 tasks") && text.contains("I9 ok"), "{text}");
    let summary: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let (placed, unplaced) = (summary["placed"].as_u64().unwrap(), summary["unplaced"].as_u64().unwrap());
    assert_eq!((placed + unplaced, &summary["audit"]), (200, &Value::Bool(true)));
    assert!(unplaced > 0 && summary["gpu_allocated_pct"].as_f64().unwrap() > 70.0, "{summary}");
    assert_eq!(std::fs::read_to_string(&ledger).unwrap().lines().count(), 200);
    // The same names again are a conflict, not a second placement.
    assert_eq!(exit_code(&godel.run(&["trace", "replay", &trace])), 5);

    let dir = up.kill();
    let up = Up::start_in(dir, &["--schedulers", "3", "--simulate", "20x cpu=32,memory=128Gi,gpu=8:A10"]);
    let godel = up.client();
    godel.until(&["status"], |status| status["store"]["sessions"] == 20);
    let units = godel.json(&["unit", "list"]);
    assert_eq!(units.as_array().unwrap().len(), 200);
    let text = godel.ok(&["audit", "--ledger", &ledger]);
    assert!(text.contains("I2 ok  200 acknowledged submissions are there"), "{text}");
    // A ledger with something that never was makes it fail, naming it.
    std::fs::write(&ledger, "01900000-0000-7000-8000-000000000000,ghost,1\n").unwrap();
    let failed = godel.run(&["audit", "--ledger", &ledger]);
    assert_eq!(exit_code(&failed), 1);
    assert!(String::from_utf8_lossy(&failed.stdout).contains("unit ghost"));
    up.stop();
}

#[test]
fn status_schedulers_and_partition_are_shown() {
    let up = Up::start(&["--memory", "--schedulers", "2", "--binders", "2", "--dispatchers", "2"]);
    let godel = up.client();
    let status = godel.json(&["status"]);
    let leases: Vec<&str> = status["members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|member| member["lease"].as_str().unwrap())
        .collect();
    for lease in ["binder", "dispatcher", "scheduler/s1", "scheduler/s2"] {
        assert!(leases.contains(&lease), "{leases:?}");
    }
    assert!(godel.ok(&["status"]).contains("store       memory"));
    godel.until(&["scheduler", "list"], |list| {
        let list = list.as_array().unwrap();
        list.len() == 2 && list.iter().all(|scheduler| scheduler["status"] == "Attached")
    });
    godel.ok(&["partition", "set", "preferred"]);
    godel.ok(&["partition", "set", "global"]);
    up.stop();
}

#[test]
fn verbs_without_a_server_work_and_others_say_how_to_start_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("web.yaml");
    std::fs::write(&file, WEB).unwrap();
    let ok = run(&["unit", "validate", "-f", file.to_str().unwrap()], &[]);
    assert_eq!(exit_code(&ok), 0);
    std::fs::write(&file, WEB.replace("replicas", "replicsa")).unwrap();
    let wrong = run(&["unit", "validate", "-f", file.to_str().unwrap()], &[]);
    assert_eq!(exit_code(&wrong), 2);
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(said.contains("web.yaml:4:1: unknown key `replicsa`: did you mean `replicas`?"), "{said}");

    let away = run(&["status"], &[("GODEL_ADDR", "http://127.0.0.1:1")]);
    assert_eq!(exit_code(&away), 3);
    let said = String::from_utf8_lossy(&away.stderr).into_owned();
    assert!(
        said.contains("state at http://127.0.0.1:1 does not answer") && said.contains("godel up"),
        "{said}"
    );
    assert_eq!(exit_code(&run(&["status"], &[("GODEL_ADDR", "not an address")])), 2);
    assert_eq!(exit_code(&run(&["no-such-verb"], &[])), 2);

    let completion = run(&["completion", "bash"], &[]);
    assert!(String::from_utf8_lossy(&completion.stdout).contains("_godel"));
    let reference = run(&["config", "reference"], &[]);
    assert!(String::from_utf8_lossy(&reference.stdout).contains("GODEL_STATE__DATA_DIR"));
    let help = run(&["--help"], &[]);
    assert!(String::from_utf8_lossy(&help.stdout).contains("Exit codes:"));
}

#[test]
fn a_store_is_checked_exported_and_restored() {
    let up = Up::start(&["--simulate", "2x cpu=4,memory=8Gi"]);
    up.client().ok(&["unit", "submit", "--name", "kept", "--cpu", "1", "--wait"]);
    let dir = up.stop();
    let store = dir.path().join("data/state");
    let store = store.to_str().unwrap();
    let (export, restored) = (dir.path().join("e.godel"), dir.path().join("other/state"));
    let ok = |words: &[&str]| {
        let output = run(words, &[]);
        assert_eq!(exit_code(&output), 0, "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    ok(&["state", "check", store]);
    ok(&["state", "export", store, export.to_str().unwrap()]);
    ok(&["state", "restore", export.to_str().unwrap(), restored.to_str().unwrap()]);
    ok(&["state", "check", restored.to_str().unwrap()]);
    // The key of the CA is no part of the store.
    let key = dir.path().join("other/pki/seal.key");
    std::fs::create_dir(key.parent().unwrap()).unwrap();
    std::fs::copy(dir.path().join("data/pki/seal.key"), key).unwrap();
    assert_eq!(exit_code(&run(&["state", "check", "/no/such/store"], &[])), 4);
    let up = Up::start_with_data(dir, "other", &["--simulate", "2x cpu=4,memory=8Gi"]);
    let godel: Godel = up.client();
    assert_eq!(godel.json(&["unit", "describe", "kept"])["name"], "kept");
    godel.until(&["status"], |status| status["store"]["sessions"] == 2);
    // The history begins at the export: what lies before is not replayed, and the audit says so.
    assert!(godel.audit().contains("I1 ok"));
    up.stop();
}

#[test]
fn a_demo_on_a_small_trace_ends_well() {
    let dir = tempfile::tempdir().unwrap();
    let (nodes, tasks, json) =
        (dir.path().join("n.csv"), dir.path().join("t.csv"), dir.path().join("s.json"));
    std::fs::write(&nodes, "sn,cpu_milli,memory_mib,gpu,model\nn-0,32000,262144,2,A10\nn-1,8000,1024,0,\n")
        .unwrap();
    let header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n";
    let rows = "a,1000,1024,1,1000,A10,LS,Running,0,1,0\nb,1000,512,1,500,,BE,Running,0,1,0\nc,1000,512,1,1000,T4,BE,Running,0,1,0\n";
    std::fs::write(&tasks, format!("{header}{rows}")).unwrap();
    let [nodes, tasks, json] = [nodes, tasks, json].map(|path| path.to_str().unwrap().to_owned());
    let data = dir.path().join("demo");
    let words = [
        "demo",
        "--once",
        "--nodes",
        &nodes,
        "--tasks",
        &tasks,
        "--json",
        &json,
        "--data-dir",
        data.to_str().unwrap(),
    ];
    let output = godel::run_for(&words, &[], Duration::from_secs(60));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(exit_code(&output), 0, "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("placed       2 of 3 tasks") && text.contains("I8 ok  1 units wait"), "{text}");
    let summary: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!((&summary["placed"], &summary["gpu_allocated_pct"]), (&2.into(), &75.0.into()));
}
