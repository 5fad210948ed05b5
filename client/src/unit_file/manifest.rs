//! Files of several kinds: each document says with `kind:` what it is, a unit where it does not.

use godel_proto::v1;

use super::{
    Mistake, Mistakes, budget, check, queue,
    read::{Fields, Report, inside},
    reservation, unit,
    yaml::{Documents, Node},
};

/// What a document says.
#[derive(Clone, Debug, PartialEq)]
pub enum Document {
    /// A scheduling unit.
    Unit(Box<v1::UnitSpec>),
    /// A queue.
    Queue(Box<v1::Queue>),
    /// A priority class.
    PriorityClass(v1::PriorityClass),
    /// A disruption budget.
    Budget(Box<v1::DisruptionBudget>),
    /// A reservation.
    Reservation(Box<v1::Reservation>),
}

/// Words behind `kind:`.
const KINDS: [(&str, i32); 5] =
    [("unit", 1), ("queue", 2), ("priority-class", 3), ("disruption-budget", 4), ("reservation", 5)];

/// Every document of a file with its position in it, from 1, all of them checked by the rules of the dispatcher.
///
/// # Errors
/// Every mistake of every document.
pub fn parse_manifest(text: &str) -> Result<Vec<(usize, Document)>, Mistakes> {
    read(text, true)
}

/// The same as far as a file's form goes: what the dispatcher would refuse for what it says passes.
///
/// # Errors
/// Every mistake of every document.
pub fn parse_form(text: &str) -> Result<Vec<(usize, Document)>, Mistakes> {
    read(text, false)
}

fn read(text: &str, with_rules: bool) -> Result<Vec<(usize, Document)>, Mistakes> {
    let (mut documents, mut mistakes) = (Vec::new(), Vec::new());
    for (position, tree) in (1..).zip(Documents::of(text)) {
        let mut wrong = tree.mistakes;
        // A document of comments only is none.
        if let Some(root) = &tree.root {
            let mut report = Report::new(root.at);
            if let Some(document) = document(root, &mut report, with_rules) {
                documents.push((position, document));
            }
            wrong.extend(report.into_mistakes());
        }
        wrong.sort_by_key(|mistake: &Mistake| (mistake.line, mistake.column));
        mistakes.append(&mut wrong);
    }
    if mistakes.is_empty() { Ok(documents) } else { Err(Mistakes(mistakes)) }
}

fn document(root: &Node, report: &mut Report, with_rules: bool) -> Option<Document> {
    let mut is_short = false;
    // An unknown kind says nothing about the other keys.
    let kind = {
        let mut probe = Fields::of(root, String::new(), report)?;
        is_short |= unit::is_short(&probe);
        if probe.has("kind") { probe.word("kind", &KINDS) } else { 1 }
    };
    let path = String::new();
    let document = match kind {
        1 => Document::Unit(Box::new(inside(root, path, report, unit::unit)?)),
        2 => Document::Queue(Box::new(inside(root, path, report, queue::queue)?)),
        3 => Document::PriorityClass(inside(root, path, report, queue::priority_class)?),
        4 => Document::Budget(Box::new(inside(root, path, report, budget::budget)?)),
        5 => Document::Reservation(Box::new(inside(root, path, report, reservation::reservation)?)),
        _ => return None,
    };
    if with_rules {
        check::rules(&document, is_short, report);
    }
    Some(document)
}

/// Every key that a unit may have, as `template.simulated.duration`.
#[cfg(test)]
pub(crate) fn keys_of_a_unit() -> Vec<String> {
    let text = "\
name: a
affinity: {near: [{}], apart: [{}], spread: [{}]}
topology: {segments: {}}
template: {gpu: {}, devices: [{}], tolerations: [{}], simulated: {}, max_load: {}, volumes: [{}], node_affinity: {preferred: [{}]}}
";
    let tree = Documents::of(text).next().unwrap();
    let mut report = Report::default();
    document(&tree.root.unwrap(), &mut report, false).unwrap();
    report.asked().to_vec()
}
