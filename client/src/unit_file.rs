//! Unit files, and files of queues, priority classes, disruption budgets and reservations: YAML, several documents in one
//! file, as `docs/unit-file.md`, `docs/queues.md`, `docs/budgets.md` and `docs/reservations.md` say.
//!
//! All mistakes of all documents are told at once, each with its line and column and the user's own keys, those of form
//! and those that the dispatcher's rules find.

mod budget;
mod check;
mod flags;
mod manifest;
mod node_selector;
mod notation;
mod queue;
mod read;
mod reservation;
mod run;
mod submit;
mod unit;
mod unit_affinity;
mod unit_topology;
pub(crate) mod words;
mod write;
mod yaml;
mod yaml_out;
mod zones;

use std::{fmt, path::Path};

use godel_proto::v1;

pub use check::{check, filled, in_keys, is_same, key_of_record, key_of_unit};
pub use flags::from_flags;
pub use godel_base::duration::parse as parse_duration;
#[cfg(test)]
pub(crate) use manifest::keys_of_a_unit;
pub use manifest::{Document, parse_form, parse_manifest};
pub use queue::{parse_amount, queues_to_file, show_amount};
pub use reservation::time as parse_time;
pub use run::RunFlags;
pub use submit::{Submit, label_pair, pair};
pub use write::{NoFile, to_file};

/// Mistakes that are told of one file.
const TOLD_MAX: usize = 100;

/// A mistake in a unit file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// From 1; 0 when unknown.
    pub line: usize,
    /// From 1.
    pub column: usize,
    /// What is wrong, with a suggestion where there is one.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "{}:{}: ", self.line, self.column)?;
        }
        f.write_str(&self.message)
    }
}

/// All mistakes of a file, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes(pub Vec<Mistake>);

impl Mistakes {
    fn one(message: impl Into<String>) -> Self {
        Self(vec![Mistake { line: 0, column: 0, message: message.into() }])
    }

    /// A line for each, as `web.yaml:4:1: what`.
    pub fn of(&self, file: &Path) -> String {
        self.lines(&format!("{}:", file.display()))
    }

    fn lines(&self, before: &str) -> String {
        let line = |mistake: &Mistake| {
            let gap = if mistake.line == 0 && !before.is_empty() { " " } else { "" };
            format!("{before}{gap}{mistake}")
        };
        let mut lines: Vec<String> = self.0.iter().take(TOLD_MAX).map(line).collect();
        if self.0.len() > TOLD_MAX {
            lines.push(format!("and {} more errors", self.0.len() - TOLD_MAX));
        }
        lines.join("\n")
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines(""))
    }
}

/// A unit of a file, and where its document begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// As it will be submitted; the dispatcher fills the defaults in.
    pub spec: v1::UnitSpec,
    /// Position of the document in the file, from 1.
    pub document: usize,
}

/// The text of a file.
///
/// # Errors
/// It is not UTF-8; the first byte that is not is named by its line and column.
pub fn decode(bytes: Vec<u8>) -> Result<String, Mistakes> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(Mistakes::one("the file is UTF-16; save it as UTF-8"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let before =
            String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]).into_owned();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
        Mistakes(vec![Mistake { line, column, message: "the file is not UTF-8 from here on".to_owned() }])
    })
}

/// Reads every unit of a file that has nothing else, and checks it by the rules of the dispatcher.
///
/// # Errors
/// Every mistake of every document.
pub fn parse(text: &str) -> Result<Vec<Loaded>, Mistakes> {
    let mut units = Vec::new();
    let mut others = Vec::new();
    for (document, what) in parse_manifest(text)? {
        match what {
            Document::Unit(spec) => units.push(Loaded { spec: *spec, document }),
            _ => {
                let message = format!("document {document} is not a unit: `godel apply -f` accepts it");
                others.push(Mistake { line: 0, column: 0, message });
            }
        }
    }
    if !others.is_empty() {
        return Err(Mistakes(others));
    }
    if units.is_empty() {
        return Err(Mistakes::one("the file has no unit"));
    }
    Ok(units)
}

/// The number of a workload class in the API, by its word.
///
/// # Errors
/// The words that there are.
pub fn parse_class(text: &str) -> Result<i32, String> {
    words::of(text, &words::CLASS)
}

/// The known word nearest to an unknown one, if it is near: a slip or two in it, or a beginning of it.
pub fn nearest<'a>(unknown: &str, known: &[&'a str]) -> Option<&'a str> {
    let unknown = unknown.to_lowercase().replace('-', "_");
    let score = |word: &str| {
        let word = word.replace('-', "_");
        let is_beginning = unknown.len() >= 3 && word.starts_with(&unknown);
        if is_beginning { 0.99 } else { strsim::normalized_damerau_levenshtein(&unknown, &word) }
    };
    let best = known.iter().copied().max_by(|a, b| score(a).total_cmp(&score(b)))?;
    (score(best) > 0.6).then_some(best)
}

#[cfg(test)]
mod tests;
