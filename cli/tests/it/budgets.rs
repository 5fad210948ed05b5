//! Disruption budgets from the command line, against a whole control plane.

use crate::godel::{Up, exit_code};

#[test]
fn budgets_are_created_changed_and_deleted() {
    let up = Up::start(&["--memory", "--simulate", "2x cpu=4,memory=4Gi"]);
    let godel = up.client();
    let said = |words: &[&str], code: i32, part: &str| {
        let output = godel.run(words);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(exit_code(&output), code, "{words:?}: {text}");
        assert!(text.contains(part), "{words:?}: {text}");
    };
    let web = ["budget", "create", "web", "--selector", "app=web,tier=front", "--max-unavailable", "20%"];
    said(&web, 0, "disruption budget web created at revision");
    said(&web, 0, "disruption budget web already exists at revision");
    said(&["budget", "create", "db", "-n", "prod", "--unit", "db", "--min-available", "2"], 0, "created");
    said(&["budget", "create", "db", "--unit", "other"], 5, "`godel budget set` changes it");
    said(&["budget", "create", "No", "--unit", "x"], 2, "name");
    said(&["budget", "create", "x"], 2, "neither a unit nor labels");
    said(&["budget", "create", "x", "--unit", "x", "--max-unavailable", "101%"], 2, "101%");
    said(&["budget", "create", "x", "--unit", "x", "--max-unavailable", "-"], 2, "--max-unavailable: `-`");
    said(&["budget", "delete", "nobody"], 4, "`godel budget list` shows");

    let unit = up.dir().join("unit.yaml");
    std::fs::write(&unit, "{name: one, labels: {app: web}, replicas: 4, template: {requests: {cpu: 1}}}")
        .unwrap();
    godel.ok(&["unit", "submit", "-f", unit.to_str().unwrap(), "--wait"]);
    said(&["budget", "set", "web", "--selector", "app=web"], 0, "updated");
    let view = godel.json(&["budget", "describe", "web"]);
    assert_eq!(view["selector"], serde_json::json!({"app": "web"}));
    assert_eq!((&view["max_unavailable"], &view["min_available"]), (&"20%".into(), &"".into()));
    assert_eq!((&view["units"], &view["expected"], &view["required"]), (&1.into(), &4.into(), &4.into()));
    said(
        &["budget", "set", "web", "--unit", "one", "--min-available", "1", "--revision", "1"],
        5,
        "it has changed",
    );
    said(&["budget", "set", "web", "--unit", "one", "--min-available", "1"], 0, "updated");
    let view = godel.json(&["budget", "describe", "web"]);
    assert_eq!(
        (&view["unit"], &view["selector"], &view["required"]),
        (&"one".into(), &serde_json::json!({}), &1.into())
    );
    let text = godel.ok(&["budget", "list"]);
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "UNITS", "LIMIT", "EXPECTED", "AVAILABLE", "REQUIRED", "ALLOWED"]);
    assert_eq!(lines[1], ["db", "0", "min-available=2", "0", "0", "2", "0"]);
    assert_eq!(lines[2][..4], ["web", "1", "min-available=1", "4"]);

    let path = up.dir().join("budgets.yaml");
    let text = "\
{kind: disruption-budget, name: new, unit: one}
---
{kind: disruption-budget, name: db, namespace: prod, unit: db, min_available: 3}
---
{kind: disruption-budget, name: web, unit: one, min_available: 1}
";
    std::fs::write(&path, text).unwrap();
    let applied = godel.json(&["apply", "-f", path.to_str().unwrap()]);
    let outcomes: Vec<&str> =
        applied.as_array().unwrap().iter().map(|one| one["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["created", "updated", "unchanged"]);
    said(&["budget", "delete", "new", "db", "web"], 0, "disruption budget web deleted");
    assert_eq!(godel.json(&["budget", "list"]), serde_json::json!([]));
    godel.audit();
    up.stop();
}
