//! `godel doctor`: who can reach a cluster, and what proves who calls.
//!
//! `read` asks state through the public API, and `files` looks at what is kept on this machine; both make facts. `judge` makes findings of them
//! and is pure, so that no finding rests on anything that is not shown. `view` shows both to people and to machines. Nothing is changed.

mod facts;
mod files;
mod judge;
mod read;
#[cfg(test)]
mod tests;
mod view;

use std::path::PathBuf;

use godel_kit::{VERSION, clock::SystemClock};

pub use self::{
    facts::{
        ClockFacts, ClusterFacts, ContextFacts, FileFacts, FileState, IdentityFacts, JoinTokenFacts,
        LocalFacts, MemberFacts, PlainTextFace, PrivateKind, Reach, Spoken, Standing,
    },
    judge::{Finding, Section, Severity},
    read::look_at_cluster,
    view::DiagnosisView,
};
use crate::{context::ContextFile, exit::Failure, output::count};

/// What is looked at on this machine.
#[derive(Clone, Debug, Default)]
pub struct LocalPlaces {
    /// The file with the contexts of the person who asks.
    pub contexts: Option<ContextFile>,
    /// The context by which the cluster is reached.
    pub context: Option<ContextFacts>,
    /// Directory of the store of a state on this machine.
    pub data_dir: Option<PathBuf>,
    /// Directory with identities of services and agents on this machine.
    pub identity_dir: Option<PathBuf>,
}

/// What is known, and what is wrong with it.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// Of this machine.
    pub here: LocalFacts,
    /// Of the cluster; `None`: state does not answer.
    pub cluster: Option<ClusterFacts>,
    /// What is wrong, errors first.
    pub findings: Vec<Finding>,
}

/// Looks at this machine.
///
/// # Errors
/// A directory that was named is not there.
pub fn look_here(places: LocalPlaces) -> Result<LocalFacts, Failure> {
    let LocalPlaces { contexts, context, data_dir, identity_dir } = places;
    let mut files = contexts.as_ref().map(files::of_contexts).unwrap_or_default();
    if let Some(dir) = data_dir {
        files.extend(files::of_state(&dir)?);
    }
    if let Some(dir) = identity_dir {
        files.extend(files::of_identities(&dir)?);
    }
    let now_ms = SystemClock::shared().wall_ms();
    Ok(LocalFacts { version: VERSION.to_owned(), now_ms, context, files })
}

impl Diagnosis {
    /// Judges what is known.
    pub fn new(here: LocalFacts, cluster: Option<ClusterFacts>) -> Self {
        let findings = judge::judge(&here, cluster.as_ref());
        Self { here, cluster, findings }
    }

    /// How a process ends that has asked: with 1 if there are errors.
    ///
    /// # Errors
    /// There are.
    pub fn verdict(&self) -> Result<(), Failure> {
        let n_of = |severity| self.findings.iter().filter(|finding| finding.severity == severity).count();
        match (n_of(Severity::Error), n_of(Severity::Warning)) {
            (0, _) => Ok(()),
            (n_errors, 0) => Err(Failure::failed(format!("the doctor found {}", count(n_errors, "error")))),
            (n_errors, n_warnings) => Err(Failure::failed(format!(
                "the doctor found {} and {}",
                count(n_errors, "error"),
                count(n_warnings, "warning")
            ))),
        }
    }
}
