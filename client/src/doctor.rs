//! `godel doctor`: who can reach a cluster, and how callers prove their identity.
//!
//! `read` asks state through the public API, and `files` reads the modes of files on this machine; both produce facts. `judge` derives findings
//! from the facts alone, so that every finding rests on something that `view` shows. Nothing is changed.

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
        LocalFacts, MemberFacts, PersonTokenFacts, PlainTextPort, PrivateKind, Protocol, Reach, Standing,
    },
    files::check_store_dir,
    judge::{Finding, Section, Severity},
    read::read_cluster,
    view::DiagnosisView,
};
use crate::{context::ContextFile, exit::Failure, output::count};

/// What to examine on this machine.
#[derive(Clone, Debug, Default)]
pub struct LocalPlaces {
    /// File with the contexts of the person who calls.
    pub contexts: Option<ContextFile>,
    /// The context that leads to the cluster.
    pub context: Option<ContextFacts>,
    /// Directory of the store, if state runs on this machine.
    pub data_dir: Option<PathBuf>,
    /// Directory with identities of services and agents on this machine.
    pub identity_dir: Option<PathBuf>,
}

/// What is known, and what is wrong with it.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// Facts about this machine.
    pub local: LocalFacts,
    /// Facts about the cluster; `None` if state does not answer.
    pub cluster: Option<ClusterFacts>,
    /// Findings, errors first.
    pub findings: Vec<Finding>,
}

/// Reads the facts about this machine.
///
/// # Errors
/// A directory that `places` names does not exist or cannot be read.
pub fn read_local(places: LocalPlaces) -> Result<LocalFacts, Failure> {
    let LocalPlaces { contexts, context, data_dir, identity_dir } = places;
    let mut files = contexts.as_ref().map(files::read_contexts).unwrap_or_default();
    if let Some(dir) = data_dir {
        files.extend(files::read_state(&dir)?);
    }
    if let Some(dir) = identity_dir {
        files.extend(files::read_identities(&dir)?);
    }
    let now_ms = SystemClock::shared().wall_ms();
    Ok(LocalFacts { version: VERSION.to_owned(), now_ms, context, files })
}

impl Diagnosis {
    /// Derives findings from what is known.
    pub fn new(local: LocalFacts, cluster: Option<ClusterFacts>) -> Self {
        let findings = judge::find_problems(&local, cluster.as_ref());
        Self { local, cluster, findings }
    }

    /// Returns how the command ends: exit code 1 if there are errors; warnings do not count.
    ///
    /// # Errors
    /// At least one finding is an error.
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
