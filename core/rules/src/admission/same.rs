//! Whether a submission under a uid that is known already is the one that was made before.
//!
//! Compared is what admission makes of both, so that a default that was written out makes no difference. What was done to
//! the unit since (scaling, stopping, suspending, cancelling) makes none either: the size that it was submitted with is
//! kept in its record once it has changed.

use std::{
    borrow::Cow,
    fmt,
    hash::{Hash as _, Hasher as _},
};

use godel_domain::{
    fields::{FieldValue, FieldVisitor},
    unit::{SubmittedSize, TaskGroup, UnitRecord, UnitSpec},
};
use rustc_hash::FxHasher;

/// Differences that are named in a message.
const NAMED_MAX: usize = 8;

/// What differs, in the words of unit files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences(Vec<String>);

impl Differences {
    /// It is the same unit.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, is_other: bool, path: &str) {
        if is_other {
            self.0.push(path.to_owned());
        }
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0[..self.0.len().min(NAMED_MAX)].join(", "))?;
        match self.0.len().saturating_sub(NAMED_MAX) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// In what a submission, as admitted, differs from the unit that its uid belongs to.
pub fn differences(known: &UnitRecord, again: &UnitSpec) -> Differences {
    if known.status.updated {
        // What was submitted is not known any more.
        let mut found = Differences::default();
        found.add(known.spec.namespace != again.namespace, "namespace");
        found.add(known.spec.name != again.name, "name");
        return found;
    }
    differences_of(&known.spec, known.status.submitted.as_deref(), again)
}

/// In what one unit differs from another, both as they are now.
pub fn spec_differences(one: &UnitSpec, other: &UnitSpec) -> Differences {
    differences_of(one, None, other)
}

fn differences_of(known: &UnitSpec, submitted: Option<&SubmittedSize>, again: &UnitSpec) -> Differences {
    let mut found = Comparison::default();
    as_submitted(known, submitted).visit(again, &mut found);
    found.differences
}

/// A number for everything that [`differences`] compares, equal for equal units; for those of which nothing else is kept.
/// It is the same within one run of the process only.
/// `submitted` is the size with which the unit was submitted, if it has changed since.
pub fn digest(spec: &UnitSpec, submitted: Option<&SubmittedSize>) -> u64 {
    let spec = as_submitted(spec, submitted);
    let mut digest = Digest(FxHasher::default());
    spec.visit(&spec, &mut digest);
    digest.0.finish()
}

/// The unit with the size that it was submitted with.
fn as_submitted<'a>(spec: &'a UnitSpec, submitted: Option<&SubmittedSize>) -> Cow<'a, UnitSpec> {
    let Some(size) = submitted else { return Cow::Borrowed(spec) };
    let mut spec = spec.clone();
    spec.min_member = size.min_member;
    for (idx, group) in spec.task_groups.iter_mut().enumerate() {
        group.replicas = size.replicas.get(idx).copied().unwrap_or(group.replicas);
        group.min_member = size.group_minima.get(idx).copied().unwrap_or(0);
    }
    Cow::Owned(spec)
}

/// Collects what differs, below a prefix of the keys.
#[derive(Default)]
struct Comparison {
    differences: Differences,
    prefix: String,
}

impl FieldVisitor for Comparison {
    fn field<V: FieldValue>(&mut self, key: &str, one: &V, other: &V) {
        if one == other {
            return;
        }
        let path = format!("{}{key}", self.prefix);
        match one.differing_keys(other) {
            None => self.differences.0.push(path),
            Some(keys) => self.differences.0.extend(keys.iter().map(|key| format!("{path}.{key}"))),
        }
    }

    fn groups(&mut self, one: &[TaskGroup], other: &[TaskGroup]) {
        if one.len() != other.len() {
            self.differences.add(true, "task_groups");
            return;
        }
        for (idx, (known, again)) in one.iter().zip(other).enumerate() {
            let TaskGroup { name, replicas, min_member, template, topology } = known;
            self.prefix = if one.len() == 1 { String::new() } else { format!("task_groups[{idx}].") };
            self.field("replicas", replicas, &again.replicas);
            self.field("min_member", min_member, &again.min_member);
            // Beside it, a unit has a topology of its own.
            self.differences.add(*topology != again.topology, &format!("task_groups[{idx}].topology"));
            self.field("name", name, &again.name);
            self.prefix.push_str("template.");
            template.visit(&again.template, self);
        }
        self.prefix.clear();
    }
}

struct Digest(FxHasher);

impl FieldVisitor for Digest {
    fn field<V: FieldValue>(&mut self, _key: &str, one: &V, _other: &V) {
        one.hash(&mut self.0);
    }

    fn groups(&mut self, one: &[TaskGroup], _other: &[TaskGroup]) {
        one.hash(&mut self.0);
    }
}

#[cfg(test)]
mod tests {
    use godel_base::ids::UnitId;
    use godel_domain::{
        running_units::RunningUnits,
        submission::{
            DeviceSubmission, Given, GroupSubmission, SpreadSubmission, Submission, UnitTermSubmission,
        },
        unit::{OnFailure, Volume, WorkloadClass},
    };
    use godel_testkit::BuildUnit as _;

    use super::*;
    use crate::admission::{admit, scale::scale, stop::stop};

    const UID: &str = "5f0c9a52-5d6f-4c1e-8a53-0f6f8b2f0001";

    fn submission() -> Submission {
        Submission {
            name: "job".to_owned(),
            uid: UID.to_owned(),
            task_groups: vec![GroupSubmission {
                replicas: 3,
                requests: vec![("cpu".to_owned(), 1_000)],
                ..GroupSubmission::default()
            }],
            ..Submission::default()
        }
    }

    fn term() -> UnitTermSubmission {
        UnitTermSubmission { topology: "rack".into(), ..UnitTermSubmission::default() }
    }

    fn record(spec: UnitSpec) -> UnitRecord {
        UnitRecord::new(UnitId(1), spec)
    }

    fn unit(change: impl Fn(&mut Submission)) -> UnitSpec {
        let mut submission = submission();
        change(&mut submission);
        admit(submission).unwrap().spec
    }

    #[test]
    fn what_differs_is_named_as_files_write_it() {
        type Case = (fn(&mut Submission), &'static str);
        let cases: [Case; 35] = [
            (|_| {}, ""),
            (|s| s.name = "job2".into(), "name"),
            (|s| s.namespace = "prod".into(), "namespace"),
            (|s| drop(s.labels.insert("a".into(), "b".into())), "labels.a"),
            (|s| s.owner = "me".into(), "owner"),
            (|s| s.class = Given::Value(WorkloadClass::Yarn), "class, restart_policy"),
            (|s| s.on_failure = Given::Value(OnFailure::Stop), "on_failure"),
            (|s| s.task_groups[0].replicas = 4, "replicas"),
            (|s| s.task_groups[0].name = "other".into(), "name"),
            (|s| s.task_groups[0].requests[0].1 = 3_000, "template.requests.cpu"),
            (|s| s.task_groups[0].requests.push(("fpga".into(), 1)), "template.requests.fpga"),
            (
                |s| {
                    s.task_groups[0].devices =
                        vec![DeviceSubmission { count: 1, ..DeviceSubmission::default() }]
                },
                "template.devices",
            ),
            (
                |s| drop(s.task_groups[0].node_selector.insert("z".into(), "a".into())),
                "template.node_selector.z",
            ),
            (|s| s.task_groups[0].run.command = vec!["x".into()], "template.command"),
            (|s| drop(s.task_groups[0].run.env.insert("A".into(), "b".into())), "template.env.A"),
            (|s| s.task_groups[0].run.simulated_duration_ms = Some(0), "template.simulated.duration"),
            (|s| s.task_groups[0].run.stop_grace_ms = 7, "template.stop_grace"),
            (|s| s.task_groups[0].run.eviction_notice_ms = 7, "template.eviction_notice"),
            (|s| s.task_groups[0].run.checkpoint_every_ms = Some(7_000), "template.checkpoint_every"),
            (|s| s.task_groups[0].run.await_command_ms = Some(7), "template.await_command"),
            (|s| s.task_groups[0].run.working_directory = Some("/x".into()), "template.working_directory"),
            (|s| s.task_groups[0].run.user = Some("x".into()), "template.user"),
            (|s| s.task_groups[0].run.umask = Some(7), "template.umask"),
            (|s| s.task_groups[0].run.image = Some("x".into()), "template.image"),
            (
                |s| s.task_groups[0].run.volumes = vec![Volume { name: "v".into(), bytes: 1, path: None }],
                "template.volumes",
            ),
            (|s| s.min_member = Some(2), "min_member"),
            (|s| s.queue = "q".into(), "queue"),
            (|s| s.profile = "least-allocated".into(), "profile"),
            (|s| s.priority = Some(9), "priority"),
            (|s| s.ttl_after_finished_ms = Some(0), "ttl_after_finished"),
            (|s| s.max_restarts = Some(0), "max_restarts"),
            (|s| s.active_deadline_ms = Some(9), "active_deadline"),
            (|s| s.affinity.near = vec![term()], "affinity.near"),
            (|s| s.affinity.apart = vec![term()], "affinity.apart"),
            (
                |s| {
                    let topology = "rack".into();
                    s.affinity.spread = vec![SpreadSubmission { topology, ..SpreadSubmission::default() }];
                },
                "affinity.spread",
            ),
        ];
        for (change, expected) in cases {
            let found = differences(&record(unit(|_| {})), &unit(change));
            assert_eq!(found.to_string(), expected);
            assert_eq!(found.is_empty(), expected.is_empty());
            assert_eq!(digest(&unit(|_| {}), None) == digest(&unit(change), None), expected.is_empty());
        }
        let both = differences(
            &record(unit(|_| {})),
            &unit(|s| {
                s.name = "job2".into();
                s.task_groups[0].requests[0].1 = 3_000;
            }),
        );
        assert_eq!(both.to_string(), "name, template.requests.cpu");
    }

    #[test]
    fn a_default_that_is_written_out_makes_no_difference() {
        let written = unit(|s| {
            s.namespace = "default".into();
            s.class = Given::Value(WorkloadClass::Batch);
            s.min_member = Some(1);
            s.max_restarts = Some(3);
            s.priority = Some(0);
        });
        assert!(differences(&record(unit(|_| {})), &written).is_empty());
    }

    #[test]
    fn what_was_done_to_a_unit_since_makes_no_difference() {
        let again = unit(|s| s.min_member = Some(3));
        let rows = RunningUnits::default();
        let first = record(again.clone());
        let grown = scale(&first, &rows, "", 9).unwrap().unwrap();
        let shrunk = scale(&grown, &rows, "", 1).unwrap().unwrap();
        let stopped = stop(&grown, &rows, &[0]).unwrap().unwrap();
        let ended = first.cancelled(true).suspended(true);
        for now in [&grown, &shrunk, &stopped, &ended] {
            assert!(differences(now, &again).is_empty(), "{now:?}");
            assert_eq!(digest(&now.spec, now.status.submitted.as_deref()), digest(&again, None));
            let other = unit(|s| s.task_groups[0].replicas = 9);
            assert_eq!(differences(now, &other).to_string(), "replicas, min_member");
        }
    }

    #[test]
    fn many_differences_are_counted() {
        let other = unit(|s| s.labels = (0..20).map(|n| (format!("k{n:02}"), String::new())).collect());
        let found = differences(&record(unit(|_| {})), &other).to_string();
        assert!(
            found.starts_with("labels.k00, labels.k01, ") && found.ends_with("labels.k07 and 12 more"),
            "{found}"
        );
    }
}
