//! Whether a unit may be submitted where it wants to go: its queue, its priority class, its sub-cluster. The same for
//! whoever submits and for whoever plans.

use godel_domain::{
    priority_classes::PriorityClasses,
    sub_cluster::{self, Disagreement},
    unit::UnitSpec,
    unreadable::Unreadable,
};
use godel_queueing::{NotAdmitted, QueueTree};

/// What is wrong with where a unit wants to go.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unwelcome {
    /// Its queue does not take it.
    #[error(transparent)]
    Queue(#[from] NotAdmitted),
    /// There is no such priority class.
    #[error("there is no priority class `{0}`: create it first, or name another one")]
    UnknownClass(String),
    /// It would be of two sub-clusters.
    #[error(transparent)]
    SubClusters(#[from] Disagreement),
    /// Its queue, one above it or its priority class cannot be read.
    #[error("{0}: a newer version wrote it, or it is damaged; the log of the dispatcher says more")]
    Unreadable(Box<Unreadable>),
}

/// Whether a unit may be submitted where it wants to go, by the queues, the priority classes and the label that names
/// sub-clusters.
///
/// # Errors
/// Everything wrong.
pub fn check(
    spec: &UnitSpec,
    tree: &QueueTree,
    classes: &PriorityClasses,
    sub_cluster_key: &str,
) -> Result<(), Vec<Unwelcome>> {
    let mut wrong = Vec::new();
    wrong.extend(tree.admit(&spec.queue, &spec.owner).err().map(Unwelcome::Queue));
    let class = spec.priority_class.as_str();
    if !class.is_empty() && classes.get(class).is_none() {
        wrong.push(Unwelcome::UnknownClass(class.to_owned()));
    }
    wrong.extend(sub_cluster::check(spec, sub_cluster_key).err().map(Unwelcome::SubClusters));
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}
