//! Arguments that plugins refuse.

use super::*;

#[test]
fn bad_arguments_are_refused_with_what_is_allowed() {
    let with = |name: &str, args: Value| {
        let score = ScoreSpec { name: name.to_owned(), weight: 1, args };
        Profile::new(&ProfileSpec { scores: vec![score], ..ProfileSpec::default() })
    };
    let said = |name, args| with(name, args).unwrap_err().to_string();
    for (name, args, expected) in [
        (
            "most-allocated",
            json!({"resource": {}}),
            ".resource`: `most-allocated` has no argument `resource` (did you mean `resources`?); it has resources",
        ),
        (
            "least-allocated",
            json!({"resources": {"disk": 1}}),
            ".resources`: unknown field `disk`, expected one of `cpu`, `memory`, `gpu`; allowed is: map of `cpu`, `memory` and `gpu` \
             (devices of every kind) to whole numbers",
        ),
        (
            "most-allocated",
            json!({"resources": {"cpu": -1}}),
            ".resources`: invalid value: integer `-1`, expected u32; allowed is: map of `cpu`, `memory` and `gpu` (devices of every \
             kind) to whole numbers",
        ),
        (
            "most-allocated",
            json!({"resources": {"cpu": 0, "memory": 0, "gpu": 0}}),
            "`: `resources`: one weight at least is above 0",
        ),
        (
            "balanced-allocation",
            json!({"resources": ["cpu", "disk"]}),
            ".resources`: unknown variant `disk`, expected one of `cpu`, `memory`, `gpu`; allowed is: list of two or three of \
             `cpu`, `memory` and `gpu` (devices of every kind)",
        ),
        (
            "balanced-allocation",
            json!({"resources": ["cpu", "cpu"]}),
            "`: `resources`: a resource is listed twice",
        ),
        (
            "balanced-allocation",
            json!({"resources": ["gpu"]}),
            "`: `resources`: two at least, because one share has nothing to be near to",
        ),
        (
            "balanced-allocation",
            json!({"weights": {}}),
            ".weights`: `balanced-allocation` has no argument `weights`; it has resources",
        ),
        (
            "cpu-memory-ratio",
            json!({"cpu": 1}),
            ".cpu`: `cpu-memory-ratio` has no argument `cpu`; it has none",
        ),
        (
            "dominant-fit",
            json!({"resources": {}}),
            ".resources`: `dominant-fit` has no argument `resources`; it has none",
        ),
        ("spread", json!({"step": 5}), ".step`: `spread` has no argument `step`; it has none"),
    ] {
        assert_eq!(said(name, args), format!("`scores[0].args{expected}"));
    }
    let defaults = json!({"resources": {"cpu": 1, "memory": 1, "gpu": 1}});
    assert_eq!(with("most-allocated", defaults), with("most-allocated", Value::Null));
    assert_ne!(with("most-allocated", json!({"resources": {"gpu": 5}})), with("most-allocated", Value::Null));
}
