//! Units as files: what [`super::unit`] reads, written back. A file of a unit's record can be submitted elsewhere, or
//! changed and given to `godel unit edit`.

use godel_domain::unit::UnitSpec;
use godel_proto::v1;
use godel_rules::admission::{admit, same::spec_differences};
use godel_wire::from_proto;

use super::{Document, notation::written, parse_manifest, unit::OF_DAEMON};

/// A unit that no file says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no unit file says {0} of this unit: it was submitted through the API")]
pub struct NoFile(String);

/// The file of a unit, as it is in a record or in a submission.
///
/// # Errors
/// The unit says something that has no notation in files, as a condition on a label whose value has a comma.
pub fn to_file(spec: &v1::UnitSpec) -> Result<String, NoFile> {
    let mut said = spec.clone();
    if spec.workload_class() == v1::WorkloadClass::Daemon {
        said.min_member = None;
        said.task_groups.iter_mut().for_each(|group| group.replicas = OF_DAEMON);
    }
    let text = written(&mut said).document();
    let read = match parse_manifest(&text) {
        Ok(documents) => documents.into_iter().next().map(|(_, document)| document),
        Err(mistakes) => return Err(NoFile(format!("all that is said ({mistakes})"))),
    };
    let Some(Document::Unit(read)) = read else { return Err(NoFile("all that is said".to_owned())) };
    let (Some(known), Some(read)) = (admitted(spec), admitted(&read)) else {
        return Err(NoFile("all that is said".to_owned()));
    };
    let found = spec_differences(&known, &read);
    if found.is_empty() { Ok(text) } else { Err(NoFile(found.to_string())) }
}

/// A unit with its defaults filled in. The replicas of a daemon follow the nodes.
fn admitted(spec: &v1::UnitSpec) -> Option<UnitSpec> {
    let mut submission = from_proto::submission(spec.clone());
    submission.uid = uuid::Uuid::nil().to_string();
    if spec.workload_class() == v1::WorkloadClass::Daemon {
        submission.task_groups.iter_mut().for_each(|group| group.replicas = 0);
    }
    admit(submission).ok().map(|admitted| admitted.spec)
}

#[cfg(test)]
mod tests;
