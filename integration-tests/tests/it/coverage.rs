//! `scenarios/COVERAGE.md`: which scenario covers which plugin, policy, reason and transition. `GODEL_BLESS=1` rewrites it;
//! what nobody covers fails in any case.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use godel_integration_tests::scenario::{
    self,
    covers::{Code, Item, KINDS, Kind, REASON, TRANSITION, WAITING},
};
use godel_model::reached::{CHANGES, ModelChange};

/// What scenarios cannot provoke from outside.
struct Exception {
    kind: &'static str,
    names: &'static [&'static str],
    /// The test that covers it, and the file that the test is in.
    test: &'static str,
    file: &'static str,
    why: &'static str,
}

const EXCEPTIONS: [Exception; 8] = [
    Exception {
        kind: REASON,
        names: &["invalid"],
        test: "malformed_decisions_are_invalid",
        file: "core/binder/src/tests.rs",
        why: "no scheduler of this tree decides like that",
    },
    Exception {
        kind: REASON,
        names: &["preemption-loop"],
        test: "who_was_preempted_does_not_preempt_back",
        file: "core/binder/src/tests/holds.rs",
        why: "a scheduler that has read who preempted whom spares them",
    },
    Exception {
        kind: REASON,
        names: &["gang-turn"],
        test: "of_each_pool_one_gang_gathers_at_a_time",
        file: "core/binder/src/tests/gangs.rs",
        why: "the dispatcher gives the next turn after the last one has ended, but for a moment",
    },
    Exception {
        kind: REASON,
        names: &["stale"],
        test: "what_the_store_never_takes_is_given_up",
        file: "core/binder/src/leader/tests.rs",
        why: "the store would have to refuse one transaction again and again",
    },
    Exception {
        kind: REASON,
        names: &["filter"],
        test: "what_filters_say_has_a_reason",
        file: "core/binder/src/check/rejections.rs",
        why: "every built-in filter has a reason of its own",
    },
    Exception {
        kind: REASON,
        names: &["host-port", "unit-affinity", "topology-spread", "load-threshold"],
        test: "what_running_units_say_is_checked_once_more",
        file: "core/binder/src/tests/terms.rs",
        why: "schedulers see it first, unless two of them decide at the same moment",
    },
    Exception {
        kind: WAITING,
        names: &["unreadable"],
        test: "nothing_of_what_cannot_be_read_is_handed_out_and_the_rest_is",
        file: "core/dispatcher/src/tests/frozen.rs",
        why: "no client can write a record that this version cannot read",
    },
    Exception {
        kind: TRANSITION,
        names: &["bound-succeeded", "bound-starting-again", "bound-running-again", "starting-starting-again"],
        test: "the_rule_of_reports_is_the_table",
        file: "core/domain/src/running_units/tests.rs",
        why: "only where several reports of an agent become one change, which is a matter of milliseconds",
    },
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn code(kind: &str, name: &str) -> Code {
    Code::parse(&format!("{kind}/{name}")).unwrap()
}

/// The scenarios that cover each code, by name.
fn scenarios() -> BTreeMap<Code, Vec<String>> {
    let mut paths: Vec<PathBuf> = fs::read_dir(root().join("integration-tests/scenarios"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    paths.sort();
    let mut covering: BTreeMap<Code, Vec<String>> = BTreeMap::new();
    for path in paths {
        let name = path.file_name().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let scenario = scenario::parse(&text).unwrap_or_else(|mistake| panic!("{name}:{mistake}"));
        for code in scenario.covers() {
            covering.entry(code.clone()).or_default().push(name.to_owned());
        }
    }
    covering
}

/// The tests that cover each code that no scenario covers, and why.
fn tests() -> BTreeMap<Code, String> {
    let mut covering = BTreeMap::new();
    for ModelChange { change, by } in CHANGES {
        covering.insert(code(TRANSITION, change), format!("model: `{by}`"));
    }
    for Exception { kind, names, test, file, why } in EXCEPTIONS {
        let text = fs::read_to_string(root().join(file)).unwrap();
        assert!(text.contains(&format!("fn {test}(")), "there is no test {test} in {file}");
        for name in names {
            let known = covering.insert(code(kind, name), format!("`{test}` in `{file}`: {why}"));
            assert_eq!(known, None, "{kind}/{name} is covered by two tests");
        }
    }
    covering
}

/// What the comments of the API say of the values of its enums.
fn values_of_the_api() -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    for entry in fs::read_dir(root().join("proto/godel/v1")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        let mut comment: Vec<&str> = Vec::new();
        for line in text.lines().map(str::trim) {
            if let Some(words) = line.strip_prefix("//") {
                comment.push(words.trim());
                continue;
            }
            if let Some((name, _)) = line.split_once(" = ").filter(|(name, _)| *name == name.to_uppercase()) {
                values.insert(name.to_owned(), comment.join(" "));
            }
            comment.clear();
        }
    }
    assert!(values.len() > 100, "{} values found", values.len());
    values
}

/// What the codes of a kind are; those of an enum of the API are all of its values.
fn described(kind: &Kind, values: &BTreeMap<String, String>) -> Vec<Item> {
    let Some(prefix) = kind.api else { return kind.items() };
    let value = |name: &str| format!("{prefix}{}", name.to_uppercase().replace('-', "_"));
    let what =
        |name: &str| values.get(&value(name)).unwrap_or_else(|| panic!("the API has no {}", value(name)));
    let described = |item: Item| Item { what: what(&item.name).clone(), ..item };
    let items: Vec<Item> = kind.items().into_iter().map(described).collect();
    let known: Vec<String> = items.iter().map(|item| value(&item.name)).collect();
    for name in values.keys().filter(|name| name.starts_with(prefix) && !name.ends_with("_UNSPECIFIED")) {
        assert!(known.contains(name), "{name} of the API is not in the list of {}", kind.title);
    }
    items
}

const HEAD: &str = "\
# What the scenarios cover

Generated from the scenarios and from the lists of plugins, policies, reasons and transitions in the code; do not edit.
[scenarios.md](../../docs/scenarios.md) describes `covers`. The test `coverage` fails if nobody covers a code, and with
`GODEL_BLESS=1` rewrites this file. The last column names what covers a code that a scenario cannot provoke: a unit test,
or a step or event of the model (`core/model`).
";

#[test]
fn everything_is_covered_and_the_table_is_current() {
    let (scenarios, mut tests, values) = (scenarios(), tests(), values_of_the_api());
    let mut text = HEAD.to_owned();
    let (mut uncovered, mut needless) = (Vec::new(), Vec::new());
    for kind in &KINDS {
        write!(text, "\n## {}\n\n| code | what it is | scenarios | tests |\n|---|---|---|---|\n", kind.title)
            .unwrap();
        for Item { name, what } in described(kind, &values) {
            let code = code(kind.name, &name);
            let files = scenarios.get(&code).cloned().unwrap_or_default();
            let test = tests.remove(&code);
            match (files.is_empty(), &test) {
                (true, None) => uncovered.push(code.to_string()),
                (false, Some(_)) => needless.push(code.to_string()),
                (true, Some(_)) | (false, None) => {}
            }
            let linked: Vec<String> = files.iter().map(|file| format!("[{file}]({file})")).collect();
            let linked = linked.join(", ");
            writeln!(text, "| `{code}` | {what} | {linked} | {} |", test.unwrap_or_default()).unwrap();
        }
    }
    assert!(
        uncovered.is_empty(),
        "write a scenario that provokes and checks it, with `covers`: {uncovered:?}"
    );
    assert!(needless.is_empty(), "covered by a scenario, so no exception is needed: {needless:?}");
    let path = root().join("integration-tests/scenarios/COVERAGE.md");
    if std::env::var_os("GODEL_BLESS").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == text,
        "scenarios/COVERAGE.md is not what the scenarios say: run this test with GODEL_BLESS=1"
    );
}
