//! What became of checking one invariant.

use std::fmt;

use super::Invariant;

/// Most violations that one report names; the rest is counted.
pub(super) const N_NAMED_MAX: usize = 20;

/// What an audit says of one invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvariantVerdict {
    /// Everything that there is to see was looked at, and it holds.
    Ok,
    /// It does not hold.
    Failed,
    /// What was looked at holds; something that there is to see was not looked at, or could not be judged: why.
    NotJudged(String),
}

/// What became of checking one invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvariantReport {
    /// Which.
    pub invariant: Invariant,
    /// What was looked at.
    pub checked: String,
    /// Violations by name, the first ones only.
    pub violations: Vec<String>,
    /// All violations, those not named included.
    pub n_violations: usize,
    /// What was not judged, and why; also beside violations.
    pub not_judged: Vec<String>,
}

impl InvariantReport {
    /// What is to be said of the invariant.
    pub fn verdict(&self) -> InvariantVerdict {
        if self.has_failed() {
            InvariantVerdict::Failed
        } else if self.not_judged.is_empty() {
            InvariantVerdict::Ok
        } else {
            InvariantVerdict::NotJudged(self.not_judged.join("; "))
        }
    }

    /// It was judged whole, and it holds.
    pub fn holds(&self) -> bool {
        self.verdict() == InvariantVerdict::Ok
    }

    /// It was seen not to hold.
    pub fn has_failed(&self) -> bool {
        self.n_violations > 0
    }
}

impl fmt::Display for InvariantReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { invariant, checked, violations, n_violations, not_judged } = self;
        match self.verdict() {
            InvariantVerdict::Ok => return write!(f, "{invariant} ok  {checked}"),
            InvariantVerdict::NotJudged(why) => {
                write!(f, "{invariant} not judged: {why}")?;
                return if checked.is_empty() {
                    Ok(())
                } else {
                    write!(f, "\n   ok as far as it was: {checked}")
                };
            }
            InvariantVerdict::Failed => {}
        }
        write!(f, "{invariant} FAILED  {n_violations} violations ({})", invariant.sentence())?;
        for violation in violations {
            write!(f, "\n   {violation}")?;
        }
        if *n_violations > violations.len() {
            write!(f, "\n   and {} more", n_violations - violations.len())?;
        }
        for why in not_judged {
            write!(f, "\n   not judged: {why}")?;
        }
        Ok(())
    }
}

/// Collects violations of one invariant, bounded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    checked: String,
    named: Vec<String>,
    n: usize,
    not_judged: Vec<String>,
}

impl Findings {
    pub(crate) fn add(&mut self, violation: impl FnOnce() -> String) {
        if self.named.len() < N_NAMED_MAX {
            self.named.push(violation());
        }
        self.n += 1;
    }

    pub(crate) fn extend(&mut self, other: &Self) {
        for violation in &other.named {
            self.add(|| violation.clone());
        }
        self.n += other.n - other.named.len();
        self.not_judged.extend_from_slice(&other.not_judged);
    }

    /// What was looked at.
    pub(crate) fn checked(&mut self, text: String) {
        self.checked = text;
    }

    /// Something that there is to see was not judged.
    pub(crate) fn not_judged(&mut self, why: impl Into<String>) {
        self.not_judged.push(why.into());
    }

    /// Takes back what was found: it may be of what could not be read.
    pub(crate) fn forget_violations(&mut self) {
        self.named.clear();
        self.n = 0;
    }

    pub(crate) fn report(self, invariant: Invariant) -> InvariantReport {
        let Self { checked, named, n, not_judged } = self;
        InvariantReport { invariant, checked, violations: named, n_violations: n, not_judged }
    }
}
