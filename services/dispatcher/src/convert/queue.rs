//! Queues and priority classes as shown, and what is wrong with changes of them.

use std::collections::BTreeMap;

use godel_core_dispatcher::{
    Dispatcher,
    queues::QueueView,
    record_changes::{EditOutcome, EditRefusal},
};
use godel_domain::{
    priority_classes::PriorityClasses,
    queue_spec::PriorityClass,
    record_change::{Ground, Violation},
};
use godel_kit::status;
use godel_proto::v1;
use godel_rules::admission::VIOLATIONS_MAX;
use godel_wire::{BadField, to_proto};
use tonic::{Code, Status};

/// Bytes of violations in one answer: they travel in a header, of which clients take 16 KiB, a third more than written
/// here and with the first one twice.
const VIOLATIONS_BYTES: usize = 4 << 10;

const NO_INFO: [(&str, &str); 0] = [];

/// A queue as shown.
pub(crate) fn queue(view: QueueView) -> v1::QueueStatus {
    let QueueView {
        spec,
        versions,
        used,
        used_with_children,
        guaranteed,
        borrowed,
        max,
        pending_units,
        running_units,
    } = view;
    let mut queue = to_proto::queue(&spec);
    if let Some(meta) = &mut queue.meta {
        meta.create_revision = versions.create_revision.0;
        meta.revision = versions.revision.0;
        meta.create_time_ms = versions.create_time_ms;
    }
    let amounts = |amounts: BTreeMap<String, i64>| {
        (!amounts.is_empty()).then(|| v1::Resources { amounts: amounts.into_iter().collect() })
    };
    v1::QueueStatus {
        queue: Some(queue),
        usage: Some(v1::QueueUsage {
            used: amounts(used),
            used_with_children: amounts(used_with_children),
            guaranteed: amounts(guaranteed),
            borrowed: amounts(borrowed),
            max: amounts(max),
            pending_units,
            running_units,
        }),
    }
}

/// A priority class as shown.
pub(crate) fn priority_class(core: &Dispatcher, class: &PriorityClass) -> v1::PriorityClassStatus {
    let versions = core.queueing().class_versions(&class.name).unwrap_or_default();
    v1::PriorityClassStatus {
        priority_class: Some(to_proto::priority_class(class)),
        built_in: PriorityClasses::is_built_in(&class.name),
        create_revision: versions.create_revision.0,
        revision: versions.revision.0,
        create_time_ms: versions.create_time_ms,
    }
}

pub(crate) fn outcome(outcome: EditOutcome) -> v1::ApplyOutcome {
    match outcome {
        EditOutcome::Created => v1::ApplyOutcome::Created,
        EditOutcome::Updated => v1::ApplyOutcome::Updated,
        EditOutcome::Unchanged(_) => v1::ApplyOutcome::Unchanged,
        // Nobody applies the absence of a record.
        EditOutcome::Deleted => v1::ApplyOutcome::Unspecified,
    }
}

/// Why a change of one record may not be made.
pub(crate) fn refusal_of_one(refusal: EditRefusal, unread: Vec<BadField>) -> Status {
    let violations = match violations(refusal, unread, |_, _| String::new()) {
        Ok(violations) => violations,
        Err(status) => return status,
    };
    let has = |ground| violations.iter().any(|(other, _)| *other == ground);
    let named = |code, reason, ground| {
        let found = violations.iter().find(|(other, _)| *other == ground);
        let message = found.map(|(_, bad)| bad.description.clone()).unwrap_or_default();
        status::with_info(code, reason, message, NO_INFO)
    };
    if has(Ground::Invalid) {
        status::invalid_argument(bounded(violations))
    } else if has(Ground::NotFound) {
        named(Code::NotFound, status::reason::UNKNOWN_NAME, Ground::NotFound)
    } else if has(Ground::AlreadyExists) {
        named(Code::AlreadyExists, status::reason::DUPLICATE_NAME, Ground::AlreadyExists)
    } else {
        status::failed_preconditions("RECORD", bounded(violations))
    }
}

/// Why several records may not be applied, each violation by its path in the request.
pub(crate) fn refusal_of_all(refusal: EditRefusal, unread: Vec<BadField>) -> Status {
    let violations = match violations(refusal, unread, |list, idx| format!("{list}[{idx}].")) {
        Ok(violations) => violations,
        Err(status) => return status,
    };
    if violations.iter().any(|(ground, _)| *ground == Ground::Invalid) {
        status::invalid_argument(bounded(violations))
    } else {
        status::failed_preconditions("RECORD", bounded(violations))
    }
}

/// Fields that could not be read, then everything else that is wrong.
fn violations(
    refusal: EditRefusal,
    unread: Vec<BadField>,
    prefix: impl Fn(&str, usize) -> String,
) -> Result<Vec<(Ground, BadField)>, Status> {
    let (queues, classes, budgets, reservations) = match refusal {
        EditRefusal::Revision { name, current } => {
            let current = current.to_string();
            let message = format!("`{name}` is now at revision {current}: read it again");
            let info = [("name", name), ("revision", current)];
            return Err(status::with_info(Code::Aborted, status::reason::REVISION_MISMATCH, message, info));
        }
        EditRefusal::Violations { queues, classes, budgets, reservations } => {
            (queues, classes, budgets, reservations)
        }
    };
    let shown = |list: &'static str, violations: Vec<Violation>| {
        let prefix = &prefix;
        violations.into_iter().map(move |Violation { change, ground, field, description }| {
            (ground, BadField::new(format!("{}{field}", prefix(list, change)), description))
        })
    };
    let mut all: Vec<(Ground, BadField)> = unread.into_iter().map(|bad| (Ground::Invalid, bad)).collect();
    all.extend(shown("queues", queues));
    all.extend(shown("priority_classes", classes));
    all.extend(shown("budgets", budgets));
    all.extend(shown("reservations", reservations));
    Ok(all)
}

/// As many as an answer holds, and how many more there are.
fn bounded(violations: Vec<(Ground, BadField)>) -> Vec<BadField> {
    let (n, mut n_bytes) = (violations.len(), 0);
    let mut shown: Vec<BadField> = Vec::new();
    for (_, bad) in violations.into_iter().take(VIOLATIONS_MAX) {
        n_bytes += bad.path.len() + bad.description.len();
        if n_bytes > VIOLATIONS_BYTES && !shown.is_empty() {
            break;
        }
        shown.push(bad);
    }
    if shown.len() < n {
        let more = format!("{} more violations are not shown", n - shown.len());
        shown.push(BadField::new("", more));
    }
    shown
}
