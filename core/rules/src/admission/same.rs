//! Whether a submission under a uid that is known already is the one that was made before.
//!
//! Compared is what admission makes of both, so that a default that was written out makes no difference. What was done to
//! the unit since (scaling, stopping, suspending, cancelling) makes none either: the size that it was submitted with is
//! kept in its record once it has changed.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{Hash as _, Hasher as _},
};

use godel_domain::{
    demand::Demand,
    unit::{RunSpec, SubmittedSize, TaskGroup, Template, UnitRecord, UnitSpec},
    unit_affinity::UnitAffinity,
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
    // A new field breaks the build here: say whether a client writes it.
    let UnitSpec {
        namespace,
        name,
        uid: _,
        labels,
        owner,
        class,
        task_groups,
        min_member,
        queue,
        priority,
        priority_class,
        pool,
        restart_policy,
        profile,
        ttl_after_finished_ms,
        max_restarts,
        on_eviction,
        on_below_min,
        on_failure,
        scheduling_timeout_ms,
        active_deadline_ms,
        preemptible,
        min_run_ms,
        affinity,
        topology,
        max_surge,
        movable,
    } = known;
    let mut found = Differences::default();
    found.add(*namespace != again.namespace, "namespace");
    found.add(*name != again.name, "name");
    maps(&mut found, "labels", labels, &again.labels);
    found.add(*owner != again.owner, "owner");
    found.add(*class != again.class, "class");
    let n_groups = task_groups.len();
    if n_groups == again.task_groups.len() {
        for (idx, (known, again)) in task_groups.iter().zip(&again.task_groups).enumerate() {
            let prefix = if n_groups == 1 { String::new() } else { format!("task_groups[{idx}].") };
            let replicas = submitted.and_then(|size| size.replicas.get(idx));
            found.add(replicas.unwrap_or(&known.replicas) != &again.replicas, &format!("{prefix}replicas"));
            let minimum = group_minimum(known, submitted, idx);
            found.add(minimum != again.min_member, &format!("{prefix}min_member"));
            found.add(known.topology != again.topology, &format!("task_groups[{idx}].topology"));
            group(&mut found, &prefix, known, again);
        }
    } else {
        found.add(true, "task_groups");
    }
    let min_member = submitted.map_or(*min_member, |size| size.min_member);
    found.add(min_member != again.min_member, "min_member");
    found.add(*queue != again.queue, "queue");
    found.add(*priority != again.priority, "priority");
    found.add(*priority_class != again.priority_class, "priority_class");
    found.add(*pool != again.pool, "pool");
    found.add(*restart_policy != again.restart_policy, "restart_policy");
    found.add(*profile != again.profile, "profile");
    found.add(*ttl_after_finished_ms != again.ttl_after_finished_ms, "ttl_after_finished");
    found.add(*max_restarts != again.max_restarts, "max_restarts");
    found.add(*on_eviction != again.on_eviction, "on_eviction");
    found.add(*on_below_min != again.on_below_min, "on_below_min");
    found.add(*on_failure != again.on_failure, "on_failure");
    found.add(*preemptible != again.preemptible, "preemptible");
    found.add(*min_run_ms != again.min_run_ms, "min_run");
    found.add(*scheduling_timeout_ms != again.scheduling_timeout_ms, "scheduling_timeout");
    found.add(*active_deadline_ms != again.active_deadline_ms, "active_deadline");
    let UnitAffinity { near, apart, spread } = affinity;
    found.add(*near != again.affinity.near, "affinity.near");
    found.add(*apart != again.affinity.apart, "affinity.apart");
    found.add(*spread != again.affinity.spread, "affinity.spread");
    found.add(*topology != again.topology, "topology");
    found.add(*max_surge != again.max_surge, "max_surge");
    found.add(*movable != again.movable, "movable");
    found
}

/// A number for everything that [`differences`] compares, equal for equal units; for those of which nothing else is kept.
/// It is the same within one run of the process only.
/// `submitted` is the size with which the unit was submitted, if it has changed since.
pub fn digest(spec: &UnitSpec, submitted: Option<&SubmittedSize>) -> u64 {
    let mut hasher = FxHasher::default();
    let UnitSpec {
        namespace,
        name,
        uid: _,
        labels,
        owner,
        class,
        task_groups,
        min_member,
        queue,
        priority,
        priority_class,
        pool,
        restart_policy,
        profile,
        ttl_after_finished_ms,
        max_restarts,
        on_eviction,
        on_below_min,
        on_failure,
        scheduling_timeout_ms,
        active_deadline_ms,
        preemptible,
        min_run_ms,
        affinity,
        topology,
        max_surge,
        movable,
    } = spec;
    let min_member = submitted.map_or(*min_member, |size| size.min_member);
    (namespace, name, labels, owner, class, min_member, queue, priority, priority_class).hash(&mut hasher);
    (pool, restart_policy, profile, ttl_after_finished_ms, max_restarts, on_eviction, on_below_min)
        .hash(&mut hasher);
    (scheduling_timeout_ms, active_deadline_ms, preemptible, min_run_ms, on_failure, affinity, topology)
        .hash(&mut hasher);
    (max_surge, movable).hash(&mut hasher);
    for (idx, group) in task_groups.iter().enumerate() {
        let TaskGroup { name, replicas, min_member: _, template, topology } = group;
        let replicas = submitted.and_then(|size| size.replicas.get(idx)).unwrap_or(replicas);
        (name, replicas, group_minimum(group, submitted, idx), template, topology).hash(&mut hasher);
    }
    hasher.finish()
}

/// The minimum with which a task group was submitted.
fn group_minimum(group: &TaskGroup, submitted: Option<&SubmittedSize>, idx: usize) -> u32 {
    submitted.map_or(group.min_member, |size| size.group_minima.get(idx).copied().unwrap_or(0))
}

fn group(found: &mut Differences, prefix: &str, known: &TaskGroup, again: &TaskGroup) {
    let TaskGroup { name, replicas: _, min_member: _, template, topology: _ } = known;
    found.add(*name != again.name, &format!("{prefix}name"));
    let Template { demand, node_selector, tolerations, node_affinity, max_load, run } = template;
    let again = &again.template;
    let prefix = format!("{prefix}template.");
    let Demand { requests, devices, host_ports, zones } = demand;
    let amounts = |resources: &godel_base::resources::Resources| -> BTreeMap<String, i64> {
        resources.iter().map(|(name, amount)| (name.to_owned(), amount)).collect()
    };
    let requests = (amounts(requests), amounts(&again.demand.requests));
    maps(found, &format!("{prefix}requests"), &requests.0, &requests.1);
    found.add(*devices != again.demand.devices, &format!("{prefix}devices"));
    found.add(*host_ports != again.demand.host_ports, &format!("{prefix}host_ports"));
    found.add(*zones != again.demand.zones, &format!("{prefix}topology"));
    maps(found, &format!("{prefix}node_selector"), node_selector, &again.node_selector);
    found.add(*tolerations != again.tolerations, &format!("{prefix}tolerations"));
    found.add(*node_affinity != again.node_affinity, &format!("{prefix}node_affinity"));
    found.add(*max_load != again.max_load, &format!("{prefix}max_load"));
    let RunSpec {
        command,
        env,
        simulated_duration_ms,
        simulated_exit_code,
        stop_grace_ms,
        eviction_notice_ms,
        checkpoint_every_ms,
        await_command_ms,
        working_directory,
        user,
        umask,
        image,
        volumes,
    } = run;
    found.add(*command != again.run.command, &format!("{prefix}command"));
    maps(found, &format!("{prefix}env"), env, &again.run.env);
    let again = &again.run;
    found.add(*simulated_duration_ms != again.simulated_duration_ms, &format!("{prefix}simulated.duration"));
    found.add(*simulated_exit_code != again.simulated_exit_code, &format!("{prefix}simulated.exit_code"));
    found.add(*stop_grace_ms != again.stop_grace_ms, &format!("{prefix}stop_grace"));
    found.add(*eviction_notice_ms != again.eviction_notice_ms, &format!("{prefix}eviction_notice"));
    found.add(*checkpoint_every_ms != again.checkpoint_every_ms, &format!("{prefix}checkpoint_every"));
    found.add(*await_command_ms != again.await_command_ms, &format!("{prefix}await_command"));
    found.add(*working_directory != again.working_directory, &format!("{prefix}working_directory"));
    found.add(*user != again.user, &format!("{prefix}user"));
    found.add(*umask != again.umask, &format!("{prefix}umask"));
    found.add(*image != again.image, &format!("{prefix}image"));
    found.add(*volumes != again.volumes, &format!("{prefix}volumes"));
}

/// Each key that one of both lacks, or has with another value.
fn maps<V: PartialEq>(
    found: &mut Differences,
    path: &str,
    known: &BTreeMap<String, V>,
    again: &BTreeMap<String, V>,
) {
    let gone_or_other =
        known.iter().filter(|(key, value)| again.get(*key) != Some(value)).map(|(key, _)| key);
    let new = again.keys().filter(|key| !known.contains_key(*key));
    for key in gone_or_other.chain(new) {
        found.add(true, &format!("{path}.{key}"));
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
