//! Changes of records that people write, and what is found wrong with them.

use crate::names::BadName;

/// Longest description of a record, bytes.
pub const DESCRIPTION_LEN_MAX: usize = 1_024;
/// Users named when something is in use.
pub const N_USERS_NAMED: usize = 10;

/// One change, of a queue or a priority class. Several are checked together, as one transaction makes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordChange<T> {
    /// New.
    Create(T),
    /// Replaces what is there, whole.
    Update(T),
    /// Whichever of the two it has to be.
    Put(T),
    /// Gone, by name.
    Delete(String),
}

impl<T> RecordChange<T> {
    /// Returns the record that is written; `None` if one is deleted.
    pub fn put(&self) -> Option<&T> {
        match self {
            Self::Create(record) | Self::Update(record) | Self::Put(record) => Some(record),
            Self::Delete(_) => None,
        }
    }
}

/// What kind of wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ground {
    /// Can never be valid beside the other records.
    Invalid,
    /// The name is taken.
    AlreadyExists,
    /// There is no such record.
    NotFound,
    /// In use, or built in: somebody has to do something else first.
    State,
}

/// One thing wrong with a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Position of the change.
    pub change: usize,
    /// What kind of wrong.
    pub ground: Ground,
    /// Path within the record, as `min["cpu"]`; of a deletion `name`.
    pub field: String,
    /// What is wrong.
    pub description: String,
}

/// Who names a queue or a priority class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    /// All of them.
    pub n: usize,
    /// The first ones, [`N_USERS_NAMED`] at most.
    pub first: Vec<String>,
}

impl Users {
    /// The first of them in words, and how many more there are.
    pub fn named(&self) -> String {
        list(&self.first, self.n)
    }
}

/// Adds to a report that a record of a kind, as `queue`, that is to be created is there already, or that one to be changed
/// or deleted is not.
pub fn existence<T>(
    change: &RecordChange<T>,
    known: bool,
    kind: &str,
    name: &str,
    field: &'static str,
    report: &mut Report,
) {
    match (change, known) {
        (RecordChange::Create(_), true) => {
            report.add(Ground::AlreadyExists, field, format!("there is a {kind} `{name}`"));
        }
        (RecordChange::Update(_) | RecordChange::Delete(_), false) => {
            report.add(Ground::NotFound, field, format!("there is no {kind} `{name}`"));
        }
        (RecordChange::Create(_) | RecordChange::Put(_), _)
        | (RecordChange::Update(_) | RecordChange::Delete(_), true) => {}
    }
}

/// Returns names as a list in words, with how many more there are than these.
pub fn list(first: &[String], n: usize) -> String {
    let shown = first.join(", ");
    if n > first.len() { format!("{shown} and {} more", n - first.len()) } else { shown }
}

/// What is found wrong, change by change.
#[derive(Debug, Default)]
pub struct Report {
    /// The change that is looked at.
    pub change: usize,
    violations: Vec<Violation>,
}

impl Report {
    /// Adds one thing that is wrong with a field of the change.
    pub fn add(&mut self, ground: Ground, field: &str, description: String) {
        let (change, field) = (self.change, field.to_owned());
        self.violations.push(Violation { change, ground, field, description });
    }

    /// Adds what is wrong with a name in a field, if anything is.
    pub fn named(&mut self, field: &str, checked: Result<(), BadName>) {
        if let Err(bad) = checked {
            self.add(Ground::Invalid, field, bad.to_string());
        }
    }

    /// Ends the report.
    ///
    /// # Errors
    /// Everything that was added, if anything was.
    pub fn finish(self) -> Result<(), Vec<Violation>> {
        if self.violations.is_empty() { Ok(()) } else { Err(self.violations) }
    }
}
