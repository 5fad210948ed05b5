//! Whoever reads a file of the API, or asks the reflection service, finds at every part what it is.

use crate::elements::elements;

/// Shorter says nothing that the name does not say.
const LEN_MIN: usize = 8;

#[test]
fn every_part_of_the_api_says_what_it_is() {
    let mut wrong = Vec::new();
    for element in elements() {
        let (name, comment) = (&element.name, element.comment.as_str());
        if comment.len() < LEN_MIN {
            wrong.push(format!("{name}: has no comment"));
        } else if !comment.ends_with(['.', ':', ')'])
            || comment.starts_with(|first: char| first.is_ascii_lowercase())
        {
            wrong.push(format!(
                "{name}: `{comment}` is no sentence: a capital letter first, a full stop last"
            ));
        }
    }
    assert!(wrong.is_empty(), "{} parts of the API lack a comment:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_parts_are_found() {
    let elements = elements();
    let comment = |name: &str| {
        elements.iter().find(|element| element.name == name).map(|element| element.comment.as_str())
    };
    for name in [
        "NodeService.Session",
        "Node.spec",
        "RunPhase.RUN_PHASE_BOUND",
        "SessionRequest.message",
        "Op.put_hold",
    ] {
        assert!(comment(name).is_some(), "{name}");
    }
    assert_eq!(comment("UpdateNodeRequest._cordoned"), None, "made up by the compiler");
    assert_eq!(comment("RunPhase.RUN_PHASE_BOUND"), Some("Bound, nothing heard from the agent yet."));
    assert!(elements.len() > 900, "{}", elements.len());
}
