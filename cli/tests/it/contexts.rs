//! Contexts: which cluster commands go to.

use super::{exit_code, run};

#[test]
fn commands_go_to_the_cluster_of_the_context() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("godel/contexts.yaml");
    let file = file.to_str().unwrap();
    let godel = |words: &[&str], vars: &[(&str, &str)]| {
        let vars: Vec<(&str, &str)> = vars.iter().copied().chain([("GODEL_CONTEXTS", file)]).collect();
        let output = run(words, &vars);
        let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
        (exit_code(&output), String::from_utf8_lossy(&text).into_owned())
    };
    // Nobody listens at either of them.
    let goes_to = |words: &[&str], vars: &[(&str, &str)], address: &str| {
        let (code, said) = godel(words, vars);
        assert!(code == 3 && said.contains(&format!("state at {address} does not answer")), "{said}");
    };
    let (one, two) = ("http://127.0.0.1:1", "http://127.0.0.1:2");
    assert_eq!(godel(&["context", "set", "one", "--state", one], &[]).0, 0);
    assert_eq!(godel(&["context", "set", "two", "--state", two], &[]).0, 0);
    goes_to(&["status"], &[], one);
    goes_to(&["status", "--context", "two"], &[], two);
    goes_to(&["status"], &[("GODEL_CONTEXT", "two")], two);
    goes_to(&["status", "--context", "two"], &[("GODEL_ADDR", one)], one);
    assert_eq!(godel(&["context", "use", "two"], &[]).0, 0);
    goes_to(&["status"], &[], two);
    let (code, list) = godel(&["context", "list", "-o", "json"], &[]);
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let shown: Vec<_> =
        list.as_array().unwrap().iter().map(|row| (&row["name"], &row["is_current"])).collect();
    assert_eq!((code, shown), (0, vec![(&"one".into(), &false.into()), (&"two".into(), &true.into())]));

    let (code, said) = godel(&["status", "--context", "three"], &[]);
    assert!(code == 4 && said.contains("there is no context `three`"), "{said}");
    assert_eq!(godel(&["context", "set", "bad", "--state", "not an address"], &[]).0, 2);
    assert_eq!(godel(&["context", "delete", "two"], &[]).0, 0);
    assert!(godel(&["context", "list"], &[]).1.contains("one"));
    assert_eq!(godel(&["context", "delete", "two"], &[]).0, 4);
}
