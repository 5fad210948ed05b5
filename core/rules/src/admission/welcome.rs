//! Whether a unit may be submitted where it wants to go: its queue, its priority class, its sub-cluster. The same for
//! whoever submits and for whoever plans.

use godel_domain::{priority_classes::PriorityClasses, sub_cluster, unit::UnitSpec, unwelcome::Unwelcome};
use godel_queueing::QueueTree;

/// Whether a unit may be submitted where it wants to go, by the queues, the priority classes and the label that names
/// sub-clusters. `names` are those of whoever submits it, as queues list them.
///
/// # Errors
/// Everything wrong.
pub fn check(
    spec: &UnitSpec,
    names: &[String],
    tree: &QueueTree,
    classes: &PriorityClasses,
    sub_cluster_key: &str,
) -> Result<(), Vec<Unwelcome>> {
    let mut wrong = Vec::new();
    wrong.extend(tree.admit(&spec.queue, &spec.owner, names).err().map(Unwelcome::Queue));
    let class = spec.priority_class.as_str();
    if !class.is_empty() && classes.get(class).is_none() {
        wrong.push(Unwelcome::UnknownClass(class.to_owned()));
    }
    wrong.extend(sub_cluster::check(spec, sub_cluster_key).err().map(Unwelcome::SubClusters));
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}
