//! `proto/api.txt` says what the API is, a line each. Whatever differs from it stops here: lines that are gone or changed
//! break clients and stored records, lines that are new are a promise.

use std::{collections::BTreeSet, fmt::Write as _, path::PathBuf};

use crate::elements::{What, elements, short};

/// How to say that it is meant.
const BLESS: &str = "GODEL_BLESS=1 cargo nextest run -p godel-proto";

/// The API in lines that do not depend on the order in files.
fn lines() -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for element in elements() {
        let name = element.name;
        match element.what {
            What::Message { reserved } => {
                lines.insert(format!("message {name}"));
                lines.extend(
                    reserved.into_iter().map(|reserved| format!("message {name} reserves {reserved}")),
                );
            }
            What::Oneof | What::Service => {}
            What::Field(field) => {
                let oneof = field.oneof.map_or_else(String::new, |oneof| format!(" in oneof {oneof}"));
                lines.insert(format!(
                    "field {name} = {}: {}{}{oneof}",
                    field.number, field.label, field.shown
                ));
            }
            What::Enum => {
                lines.insert(format!("enum {name}"));
            }
            What::Value { number } => {
                lines.insert(format!("value {name} = {number}"));
            }
            What::Rpc(rpc) => {
                let shown = |is_stream, message| {
                    format!("{}{}", if is_stream { "stream " } else { "" }, short(message))
                };
                let takes = shown(rpc.client_streaming(), rpc.input_type());
                let answers = shown(rpc.server_streaming(), rpc.output_type());
                lines.insert(format!("rpc {name}({takes}) returns ({answers})"));
            }
        }
    }
    lines
}

/// What differs, and what that means; empty when nothing does.
fn difference(committed: &BTreeSet<String>, now: &BTreeSet<String>) -> String {
    let mut text = String::new();
    let (gone, new): (Vec<_>, Vec<_>) =
        (committed.difference(now).collect(), now.difference(committed).collect());
    if !gone.is_empty() {
        text += "These lines of proto/api.txt are gone or changed: older clients, agents and stored records break.\n";
        gone.iter().for_each(|line| writeln!(text, "- {line}").unwrap());
        text += "A number that is not used any more is `reserved`; what is meant needs an ADR. ";
    }
    if !new.is_empty() {
        text += "These are new:\n";
        new.iter().for_each(|line| writeln!(text, "+ {line}").unwrap());
    }
    if !text.is_empty() {
        writeln!(text, "If that is meant: {BLESS}, and commit proto/api.txt.").unwrap();
    }
    text
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a test is told by the environment to write what it compares with"
)]
fn the_api_is_what_was_promised() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("api.txt");
    let now = lines();
    if std::env::var("GODEL_BLESS").is_ok() {
        let text: String = now.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(&path, text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let difference = difference(&committed.lines().map(str::to_owned).collect(), &now);
    assert!(difference.is_empty(), "{difference}");
}

#[test]
fn a_field_that_is_gone_changed_or_new_is_told() {
    let now = lines();
    let line = "field RunStatus.restarts = 6: uint32";
    assert!(now.contains(line), "{now:#?}");
    assert_eq!(difference(&now, &now), "");
    let mut without = now.clone();
    without.remove(line);
    let gone = difference(&now, &without);
    assert!(
        gone.contains(&format!("- {line}\n")) && gone.contains("break") && gone.contains(BLESS),
        "{gone}"
    );
    let new = difference(&without, &now);
    assert!(new.contains(&format!("+ {line}\n")) && !new.contains("break") && new.contains(BLESS), "{new}");
    for expected in [
        "field ListRecordsRequest.kinds = 1: repeated Kind",
        "field UpdateNodeRequest.cordoned = 3: optional bool",
        "field Resources.amounts = 1: map<string, int64>",
        "field SessionRequest.leave = 5: SessionLeave in oneof message",
        "value RunPhase.RUN_PHASE_BOUND = 1",
        "rpc NodeService.Session(stream SessionRequest) returns (stream SessionResponse)",
        "message SessionWelcome reserves 3",
        "message SessionWelcome reserves stop_after_disconnect_ms",
    ] {
        assert!(now.contains(expected), "{expected}");
    }
}
