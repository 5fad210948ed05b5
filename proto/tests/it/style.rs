//! The rules that tools for APIs agree on (`buf lint` among them), and those of `docs/adr/0015-times-in-the-api.md`.

use std::collections::BTreeMap;

use prost_types::field_descriptor_proto::Type;

use crate::elements::{What, elements, files, short};

/// RPCs whose messages are not `<Rpc>Request` and `<Rpc>Response` of their own, and why.
const OTHER_MESSAGES: [(&str, &str); 1] =
    [("StateService.Transact", "a pipeline of what StateService.Txn takes and answers one by one")];

/// Integers with a word of time in their names that are none, and why.
const NO_TIMES: [(&str, &str); 5] = [
    (
        "Toleration.tolerated_seconds",
        "whole seconds under the name that Kubernetes has for them: files move over unchanged",
    ),
    ("YarnApplication.memory_mb_seconds", "memory over time, as YARN counts it"),
    ("YarnApplication.vcore_seconds", "CPUs over time, as YARN counts it"),
    ("YarnApplicationStatus.memory_seconds", "memory over time, under the name that YARN has for it"),
    ("YarnApplicationStatus.vcore_seconds", "CPUs over time, under the name that YARN has for it"),
];

/// Words of times in names of fields.
const TIME_WORDS: [&str; 18] = [
    "time",
    "times",
    "timeout",
    "deadline",
    "ttl",
    "age",
    "interval",
    "duration",
    "since",
    "until",
    "expires",
    "grace",
    "remaining",
    "delay",
    "period",
    "window",
    "lasts",
    "after",
];
/// Units of time that the API does not use.
const OTHER_UNITS: [&str; 9] = ["s", "sec", "secs", "seconds", "us", "micros", "ns", "nanos", "minutes"];

#[track_caller]
fn none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn is_lower_snake(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(allowed)
        && !name.contains("__")
        && !name.ends_with('_')
}

fn is_pascal(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase()) && name.chars().all(|c| c.is_ascii_alphanumeric())
}

/// `NodeReport` as `NODE_REPORT`.
fn upper_snake(name: &str) -> String {
    let mut snake = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(c.to_ascii_uppercase());
    }
    snake
}

fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

#[test]
fn proto_files_lie_in_their_package_and_name_go_and_java() {
    let mut wrong = Vec::new();
    for file in files() {
        let name = file.name();
        let stem = name.strip_prefix("godel/v1/").and_then(|name| name.strip_suffix(".proto"));
        if !stem.is_some_and(is_lower_snake) {
            wrong.push(format!("{name}: is not in godel/v1, or not lower_snake.proto"));
        }
        let options = file.options.clone().unwrap_or_default();
        let given = (options.go_package(), options.java_package(), options.java_multiple_files());
        let go = "github.com/godel-scheduler/godel/proto/godel/v1;godelv1";
        if given != (go, "io.github.godel_scheduler.godel.v1", true) {
            wrong.push(format!("{name}: has other options than the other files: {given:?}"));
        }
        wrong.extend(file.dependency.iter().filter(|import| !import.starts_with("godel/v1/")).map(
            |import| {
                format!(
                    "{name}: imports {import}; times are integers, empty messages have names of their own"
                )
            },
        ));
        if file.service.len() > 1 {
            wrong.push(format!("{name}: has more than one service"));
        }
    }
    none(&wrong);
}

#[test]
fn names_have_the_case_of_what_they_name() {
    let mut wrong = Vec::new();
    for element in elements() {
        let (is_right, rule) = match &element.what {
            What::Message { .. } | What::Enum | What::Rpc(_) => {
                (is_pascal(last(&element.name)), "PascalCase")
            }
            What::Service => (
                is_pascal(&element.name) && element.name.ends_with("Service"),
                "PascalCase, with `Service` at its end",
            ),
            What::Field(_) | What::Oneof => (is_lower_snake(last(&element.name)), "lower_snake_case"),
            What::Value { .. } => continue,
        };
        if !is_right {
            wrong.push(format!("{}: is not {rule}", element.name));
        }
    }
    none(&wrong);
}

#[test]
fn values_of_enums_bear_its_name_and_0_is_unspecified() {
    let mut wrong = Vec::new();
    for element in elements() {
        let What::Value { number } = element.what else { continue };
        let (of, value) = element.name.rsplit_once('.').unwrap();
        let prefix = upper_snake(last(of)) + "_";
        if !value.starts_with(&prefix) {
            wrong.push(format!("{}: does not begin with {prefix}", element.name));
        }
        if (number == 0) != (value == format!("{prefix}UNSPECIFIED")) {
            wrong.push(format!("{}: 0 is {prefix}UNSPECIFIED, and nothing else is", element.name));
        }
    }
    none(&wrong);
}

#[test]
fn rpcs_have_messages_of_their_own() {
    let mut wrong = Vec::new();
    let mut used: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for element in elements() {
        let What::Rpc(rpc) = &element.what else { continue };
        if OTHER_MESSAGES.iter().any(|(name, _)| *name == element.name) {
            continue;
        }
        let expected = (format!("{}Request", rpc.name()), format!("{}Response", rpc.name()));
        let given = (short(rpc.input_type()).to_owned(), short(rpc.output_type()).to_owned());
        if given != expected {
            wrong.push(format!("{}: takes {} and answers {}", element.name, given.0, given.1));
        }
        for message in [given.0, given.1] {
            used.entry(message).or_default().push(element.name.clone());
        }
    }
    let shared = used.iter().filter(|(_, by)| by.len() > 1);
    wrong.extend(shared.map(|(message, by)| format!("{message}: is of several: {}", by.join(", "))));
    none(&wrong);
}

#[test]
fn exceptions_name_what_is_there() {
    let elements = elements();
    let named = OTHER_MESSAGES
        .iter()
        .chain(&NO_TIMES)
        .filter(|(name, why)| why.is_empty() || !elements.iter().any(|element| element.name == *name));
    none(
        &named
            .map(|(name, _)| format!("{name}: is no part of the API, or has no reason"))
            .collect::<Vec<_>>(),
    );
}

/// What is wrong with a field, if it is a time or looks like one.
fn wrong_time(name: &str, kind: Type) -> Option<&'static str> {
    let is_integer = matches!(
        kind,
        Type::Int32
            | Type::Int64
            | Type::Uint32
            | Type::Uint64
            | Type::Sint32
            | Type::Sint64
            | Type::Fixed32
            | Type::Fixed64
    );
    let mut words = name.split('_');
    let unit = name.rsplit('_').next().unwrap_or(name);
    if unit == "ms" {
        // Points in time are signed, as Unix times are; spans are not, as there are none below 0.
        return (!matches!(kind, Type::Int64 | Type::Uint32 | Type::Uint64))
            .then_some("milliseconds are int64 (points in time), uint32 or uint64 (spans)");
    }
    if !is_integer {
        return None;
    }
    if OTHER_UNITS.contains(&unit) {
        return Some("times are in milliseconds: `_ms`");
    }
    words.any(|word| TIME_WORDS.contains(&word)).then_some("looks like a time without its unit: `_ms`")
}

#[test]
fn times_are_integers_of_milliseconds_and_say_so() {
    let mut wrong = Vec::new();
    let mut n_times = 0;
    for element in elements() {
        let What::Field(field) = &element.what else { continue };
        n_times += usize::from(element.name.ends_with("_ms"));
        if let Some(why) = wrong_time(last(&element.name), field.kind)
            && !NO_TIMES.iter().any(|(name, _)| *name == element.name)
        {
            wrong.push(format!("{}: {why}", element.name));
        }
    }
    none(&wrong);
    assert!(n_times > 40, "{n_times}");
}

#[test]
fn what_looks_like_a_time_is_told() {
    for (name, kind, is_right) in [
        ("expires_ms", Type::Int64, true),
        ("bound_times_ms", Type::Int64, true),
        ("lease_ttl_ms", Type::Uint32, true),
        ("lease_ttl_ms", Type::String, false),
        ("lease_ttl", Type::Uint32, false),
        ("bound_time", Type::Int64, false),
        ("wait_s", Type::Uint32, false),
        ("wait_seconds", Type::Uint64, false),
        ("placed_per_s", Type::Double, true),
        ("nodes_as_of", Type::Uint64, true),
        ("restarts", Type::Uint32, true),
    ] {
        assert_eq!(wrong_time(name, kind).is_none(), is_right, "{name}");
    }
}
