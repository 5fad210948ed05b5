//! Files of several kinds: each document says with `kind:` what it is, a unit where it does not.

use godel_proto::v1;

use super::{
    Mistake, Mistakes, check,
    notation::{InFile, Notation as _},
    read::{Fields, MistakeReport, inside},
    unit,
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
            let mut report = MistakeReport::new(root.at);
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

fn document(root: &Node, report: &mut MistakeReport, with_rules: bool) -> Option<Document> {
    // An unknown kind says nothing about the other keys.
    let mut probe = Fields::of(root, String::new(), report)?;
    let is_short = unit::has_short_form(&probe);
    let mut kind = 1;
    if probe.has("kind") {
        kind = 0;
        probe.word("kind", &mut kind, &KINDS);
    }
    let document = match kind {
        1 => Document::Unit(Box::new(message(root, report, v1::UnitSpec::default())?)),
        2 => Document::Queue(Box::new(message(root, report, v1::Queue::default())?)),
        3 => {
            let class = v1::PriorityClass { preemptible: true, ..v1::PriorityClass::default() };
            Document::PriorityClass(message(root, report, class)?)
        }
        4 => Document::Budget(Box::new(message(root, report, v1::DisruptionBudget::default())?)),
        5 => Document::Reservation(Box::new(message(root, report, v1::Reservation::default())?)),
        _ => return None,
    };
    if with_rules {
        check::rules(&document, is_short, report);
    }
    Some(document)
}

/// Reads a whole document.
fn message<M: InFile>(root: &Node, report: &mut MistakeReport, mut message: M) -> Option<M> {
    inside(root, String::new(), report, |fields| message.visit(fields))?;
    Some(message)
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
    let mut report = MistakeReport::default();
    document(&tree.root.unwrap(), &mut report, false).unwrap();
    report.asked().to_vec()
}
