//! Several things named at once: each is tried, whatever became of the others, and has a line of its own.

use serde::Serialize;

use godel_client::{
    exit::{Code, Failure},
    output::{self, Format, count, shown},
};

/// What was done to one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Done {
    /// As a word behind its name: `cancelled`.
    pub(super) outcome: &'static str,
    /// Revision at which it was; 0: it is not told.
    pub(super) revision: u64,
    /// Its name, where it was called otherwise.
    pub(super) name: Option<String>,
    /// Other words for people than the outcome.
    pub(super) said: Option<&'static str>,
}

/// What helps where a unit is not found.
pub(super) const LIST_UNITS: &str = "`godel unit list` shows what there is";

/// The word for what was so already.
pub(super) const UNCHANGED: &str = "unchanged";

impl Done {
    pub(super) fn at(outcome: &'static str, revision: u64) -> Self {
        Self { outcome, revision, name: None, said: None }
    }

    pub(super) fn unchanged() -> Self {
        Self::at(UNCHANGED, 0)
    }
}

/// What became of one thing, as JSON.
#[derive(Serialize)]
struct DoneView<'a> {
    kind: &'a str,
    name: &'a str,
    /// A word, or `failed`.
    outcome: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    /// That one alone would have ended with.
    exit_code: u8,
}

/// Does the same to each of `names` in order, says what became of each (as JSON or YAML in one array), and fails in the
/// end if one failed. The names of those that it was done to.
pub(super) async fn each(
    format: Format,
    kind: &str,
    names: &[String],
    mut act: impl AsyncFnMut(String) -> Result<Done, Failure>,
) -> Result<Vec<String>, Failure> {
    let mut told: Vec<(String, Result<Done, Failure>)> = Vec::with_capacity(names.len());
    let is_table = matches!(format, Format::Table | Format::Wide);
    for name in names {
        // Who names something twice means it once.
        if told.iter().any(|(known, _)| known == name) {
            continue;
        }
        let done = act(name.clone()).await.map_err(|failure| hinted(kind, failure));
        if is_table {
            match &done {
                Ok(done) => output::say(line(kind, name, done)),
                // A single failure is told at the end.
                Err(_) if names.len() == 1 => {}
                Err(failure) => output::say(format!("{kind} {}: {}", shown(name), failure.message)),
            }
        }
        told.push((name.clone(), done));
    }
    if is_table && told.len() > 1 {
        let n_unchanged = told.iter().filter(|(_, done)| is_unchanged(done)).count();
        let n_failed = told.iter().filter(|(_, done)| done.is_err()).count();
        let n_changed = told.len() - n_unchanged - n_failed;
        output::say(format!(
            "{} changed, {n_unchanged} unchanged, {n_failed} failed",
            count(n_changed, kind)
        ));
    }
    if !is_table {
        let views: Vec<DoneView<'_>> = told.iter().map(|(name, done)| view(kind, name, done)).collect();
        output::print_value(format, &views)?;
    }
    ended(kind, told)
}

/// What helps with units is the same for all verbs that change them.
fn hinted(kind: &str, failure: Failure) -> Failure {
    match failure.code {
        _ if kind != "unit" || failure.hint.is_some() => failure,
        Code::NotFound if failure.message.starts_with("no unit ") => failure.hint(LIST_UNITS),
        Code::Failed if failure.message.starts_with("the unit is over") => {
            failure.hint("`godel unit retry` runs an ended unit again, `godel unit delete` frees its name")
        }
        _ => failure,
    }
}

fn is_unchanged(done: &Result<Done, Failure>) -> bool {
    done.as_ref().is_ok_and(|done| done.outcome == UNCHANGED)
}

fn line(kind: &str, name: &str, done: &Done) -> String {
    let name = shown(done.name.as_deref().unwrap_or(name));
    let at = match done.revision {
        0 => String::new(),
        revision => format!(" at revision {revision}"),
    };
    format!("{kind} {name} {}{at}", done.said.unwrap_or(done.outcome))
}

fn view<'a>(kind: &'a str, name: &'a str, done: &'a Result<Done, Failure>) -> DoneView<'a> {
    match done {
        Ok(done) => DoneView {
            kind,
            name: done.name.as_deref().unwrap_or(name),
            outcome: done.outcome,
            revision: (done.revision > 0).then_some(done.revision),
            error: None,
            exit_code: 0,
        },
        Err(failure) => DoneView {
            kind,
            name,
            outcome: "failed",
            revision: None,
            error: Some(&failure.message),
            exit_code: failure.code.number(),
        },
    }
}

/// How the command ends: with the only failure as it is, with the worst code of several.
fn ended(kind: &str, told: Vec<(String, Result<Done, Failure>)>) -> Result<Vec<String>, Failure> {
    let n_named = told.len();
    let (mut names, mut failures) = (Vec::new(), Vec::new());
    for (name, done) in told {
        match done {
            Ok(done) => names.push(done.name.unwrap_or(name)),
            Err(failure) => failures.push(failure),
        }
    }
    match Code::worst(failures.iter().map(|failure| failure.code)) {
        None => Ok(names),
        Some(_) if n_named == 1 => Err(failures.remove(0)),
        Some(code) => {
            Err(several(code, format!("{} of {} failed", failures.len(), count(n_named, kind)), &failures))
        }
    }
}

/// One failure for several that are told already, with what to do next.
pub(super) fn several(code: Code, message: String, failures: &[Failure]) -> Failure {
    let mut hints: Vec<&str> = Vec::new();
    for hint in failures.iter().filter_map(|failure| failure.hint.as_deref()) {
        if !hints.contains(&hint) {
            hints.push(hint);
        }
    }
    let failure = Failure::new(code, message);
    if hints.is_empty() { failure } else { failure.hint(hints.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[tokio::test]
    async fn each_is_tried_once_and_the_worst_code_counts() {
        let mut tried = Vec::new();
        let done =
            each(Format::Table, "unit", &names(&["a", "nosuch", "b", "a", "stuck"]), async |name: String| {
                tried.push(name.clone());
                match name.as_str() {
                    "nosuch" => Err(Failure::new(Code::NotFound, "no unit `nosuch`").hint("look")),
                    "stuck" => Err(Failure::failed("it runs").hint("look")),
                    _ => Ok(Done::at("cancelled", 7)),
                }
            })
            .await;
        assert_eq!(tried, ["a", "nosuch", "b", "stuck"]);
        let failure = done.unwrap_err();
        assert_eq!((failure.code, failure.to_string().as_str()), (Code::Failed, "2 of 4 units failed\nlook"));
        let alone =
            each(Format::Table, "unit", &names(&["x"]), async |_| Err(Failure::new(Code::NotFound, "no")))
                .await;
        assert_eq!(alone.unwrap_err(), Failure::new(Code::NotFound, "no"));
        let both = names(&["a", "b"]);
        let all = each(Format::Table, "node", &both, async |name: String| {
            Ok(Done { name: Some(format!("n-{name}")), ..Done::unchanged() })
        });
        assert_eq!(all.await.unwrap(), ["n-a", "n-b"]);
    }

    #[test]
    fn failures_of_units_say_what_helps() {
        let hint = |kind, failure| hinted(kind, failure).hint.unwrap_or_default();
        assert_eq!(hint("unit", Failure::new(Code::NotFound, "no unit `a`")), LIST_UNITS);
        assert!(hint("unit", Failure::failed("the unit is over: Completed")).contains("godel unit retry"));
        assert_eq!(hint("unit", Failure::failed("it runs").hint("look")), "look");
        assert_eq!(hint("unit", Failure::new(Code::NotFound, "no queue `a`")), "");
        assert_eq!(hint("node", Failure::new(Code::NotFound, "no unit `a`")), "");
    }

    #[test]
    fn lines_and_json_say_what_became_of_each() {
        let done = Ok(Done::at("cancelled", 7));
        assert_eq!(
            line("unit", "a\u{1b}b", done.as_ref().unwrap()),
            "unit a\\u{1b}b cancelled at revision 7"
        );
        let named = Done { name: Some("n1".to_owned()), ..Done::unchanged() };
        assert_eq!(line("node", "u-1", &named), "node n1 unchanged");
        let json = |done: &Result<Done, Failure>| serde_json::to_value(view("unit", "a", done)).unwrap();
        assert_eq!(
            json(&done),
            serde_json::json!({"kind": "unit", "name": "a", "outcome": "cancelled", "revision": 7, "exit_code": 0})
        );
        assert_eq!(
            json(&Err(Failure::new(Code::NotFound, "no unit `a`"))),
            serde_json::json!({"kind": "unit", "name": "a", "outcome": "failed", "error": "no unit `a`", "exit_code": 4})
        );
    }
}
