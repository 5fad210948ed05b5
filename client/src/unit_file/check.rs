//! The dispatcher's admission checks, made here: what a file says wrongly is told with its line and the user's own keys, and
//! `godel unit validate` needs no server.

use std::{collections::BTreeMap, sync::Arc};

use godel_domain::{
    defaults::AppliedDefault,
    priority_classes::PriorityClasses,
    record_change::{Ground, RecordChange, Users, Violation},
};
use godel_proto::v1;
use godel_queueing::{QueueTree, check as queues};
use godel_rules::{
    admission::admit,
    budget::{self, Budgets},
    reservation,
};
use godel_wire::{BadField, from_proto, to_proto};

use super::{Document, read::MistakeReport, unit};
use crate::exit::Failure;

/// What would be filled in, as `field = value`.
///
/// # Errors
/// Every wrong field, as the dispatcher would name it: `field: what`.
pub fn check(spec: v1::UnitSpec) -> Result<Vec<String>, Vec<String>> {
    let is_short = unit::is_short(&spec.task_groups);
    match admitted(spec) {
        Ok(admitted) => Ok(admitted.defaults.iter().map(AppliedDefault::to_string).collect()),
        Err(violations) => {
            let key = |field: &str| key_of_unit(field, is_short);
            Err(violations.iter().map(|one| format!("{}: {}", key(&one.field), one.description)).collect())
        }
    }
}

/// A unit as the dispatcher will keep it, with everything that its file leaves out. What the dispatcher would refuse comes back as it is.
pub fn filled(spec: &v1::UnitSpec) -> v1::UnitSpec {
    admitted(spec.clone()).map_or_else(|_| spec.clone(), |admitted| to_proto::unit_spec(&admitted.spec))
}

/// What a server refused of a unit, by the keys of its file instead of the fields of the API.
#[must_use]
pub fn in_keys(failure: Failure, spec: &v1::UnitSpec) -> Failure {
    let is_short = unit::is_short(&spec.task_groups);
    let line = |line: &str| match line.strip_prefix("  ").and_then(|rest| rest.split_once(": ")) {
        Some((field, what)) if !field.contains(' ') => format!("  {}: {what}", key_of_unit(field, is_short)),
        _ => line.to_owned(),
    };
    let message = failure.message.lines().map(line).collect::<Vec<_>>().join("\n");
    Failure { message, ..failure }
}

fn admitted(
    spec: v1::UnitSpec,
) -> Result<godel_rules::admission::Admitted, Vec<godel_rules::admission::SpecViolation>> {
    let mut submission = from_proto::submission(spec);
    if submission.uid.is_empty() {
        // The service makes one up; here any will do.
        submission.uid = uuid::Uuid::nil().to_string();
    }
    admit(submission)
}

/// What the dispatcher would refuse of a unit.
pub(super) fn violations(spec: v1::UnitSpec) -> Vec<godel_rules::admission::SpecViolation> {
    admitted(spec).err().unwrap_or_default()
}

/// Notes what the dispatcher would refuse of a document by itself, whatever else there is.
pub(super) fn rules(document: &Document, is_short: bool, report: &mut MistakeReport) {
    match document {
        Document::Unit(spec) => {
            for wrong in violations(spec.as_ref().clone()) {
                // With replicas that cannot be read the comparison says nothing.
                if wrong.field != "min_member" || !report.has_wrong("replicas") {
                    report.rule(&key_of_unit(&wrong.field, is_short), &wrong.description);
                }
            }
        }
        Document::Queue(queue) => {
            let (spec, unread) = from_proto::given_queue(queue.as_ref().clone());
            let change = [RecordChange::Put(Arc::new(spec))];
            let found = queues::queues(&QueueTree::default(), &change, &|_| Users::default());
            records(report, unread, found);
        }
        Document::PriorityClass(class) => {
            let change = [RecordChange::Put(from_proto::given_priority_class(class.clone()))];
            let found = queues::classes(&PriorityClasses::default(), &change, &|_| Users::default());
            records(report, Vec::new(), found);
        }
        Document::Budget(budget) => {
            let (spec, unread) = from_proto::given_budget(budget.as_ref().clone());
            let found = budget::check::budgets(&Budgets::default(), &[RecordChange::Put(Arc::new(spec))]);
            records(report, unread, found);
        }
        Document::Reservation(spec) => {
            let (spec, unread) = from_proto::given_reservation(spec.as_ref().clone());
            let change = [RecordChange::Put(Arc::new(spec))];
            let found = reservation::check::reservations(&BTreeMap::new(), &change, &|_| Users::default());
            records(report, unread, found);
        }
    }
}

fn records(report: &mut MistakeReport, unread: Vec<BadField>, found: Result<(), Vec<Violation>>) {
    for bad in unread {
        report.rule(&key_of_record(&bad.path), &bad.description);
    }
    let found = found.err().unwrap_or_default();
    // What depends on other records is the dispatcher's to say.
    for wrong in found.into_iter().filter(|wrong| wrong.ground == Ground::Invalid) {
        report.rule(&key_of_record(&wrong.field), &wrong.description);
    }
}

/// The key of a unit file for a field of the API: `template.requests["cpu"]` for
/// `task_groups[0].template.demand.requests["cpu"]` of a unit in the short form.
pub fn key_of_unit(field: &str, is_short: bool) -> String {
    let field = field.strip_prefix("meta.").unwrap_or(field);
    match field {
        "workload_class" => return "class".to_owned(),
        // All of it.
        "unit" => return String::new(),
        _ => {}
    }
    let Some(rest) = field.strip_prefix("task_groups[") else { return without_unit_of_time(field) };
    let Some((idx, rest)) = rest.split_once(']') else { return field.to_owned() };
    let group = match (idx.parse::<usize>(), is_short) {
        (Ok(0), true) => String::new(),
        (Ok(idx), true) => format!("task_groups[{}]", idx - 1),
        _ => format!("task_groups[{idx}]"),
    };
    let rest = rest.replacen(".template.demand", ".template", 1);
    let rest = rest.replacen(".template.zones", ".template.topology", 1);
    let rest = rest.replacen("].milli_per_device", "].milli", 1).replacen("].terms.", "].", 1);
    let rest = rest.replacen(".run.simulated_duration_ms", ".simulated.duration", 1);
    let rest = rest.replacen(".run.simulated_exit_code", ".simulated.exit_code", 1);
    let rest = rest.replacen(".template.run.", ".template.", 1);
    let key = without_unit_of_time(&format!("{group}{rest}"));
    key.strip_prefix('.').map_or(key.clone(), str::to_owned)
}

/// The key of a file of queues, classes, budgets or reservations for a field of the API.
pub fn key_of_record(field: &str) -> String {
    let field = field.strip_prefix("meta.").unwrap_or(field);
    let field = match field.strip_prefix("demand") {
        Some("") => "requests",
        Some(rest) => rest.trim_start_matches('.'),
        None => field,
    };
    let field = field.replacen("requests.amounts", "requests", 1);
    let field = field.replacen("].milli_per_device", "].milli", 1).replacen("].terms.", "].", 1);
    let field = match field.strip_prefix("zones") {
        Some(rest) => format!("topology{rest}"),
        None => field,
    };
    without_unit_of_time(&field)
}

/// Files write durations with their unit.
fn without_unit_of_time(field: &str) -> String {
    field.strip_suffix("_ms").unwrap_or(field).to_owned()
}

/// Whether a unit that is there is what a file says, defaults filled in. Not looked at are its uid, where its replicas
/// came from, and whether it is suspended.
pub fn is_same(spec: &v1::UnitSpec, stored: &v1::Unit) -> bool {
    if stored.status.as_ref().is_some_and(|status| status.cancelled || status.ended != 0) {
        return false;
    }
    let mut submission = from_proto::submission(spec.clone());
    submission.uid = uuid::Uuid::nil().to_string();
    let Ok(admitted) = admit(submission) else { return false };
    comparable(to_proto::unit_spec(&admitted.spec)) == comparable(stored.spec.clone().unwrap_or_default())
}

fn comparable(mut spec: v1::UnitSpec) -> v1::UnitSpec {
    let meta = spec.meta.take().unwrap_or_default();
    let v1::ObjectMeta { namespace, name, labels, owner, .. } = meta;
    spec.meta = Some(v1::ObjectMeta { namespace, name, labels, owner, ..v1::ObjectMeta::default() });
    if spec.workload_class() == v1::WorkloadClass::Daemon {
        // They follow the nodes.
        spec.task_groups.iter_mut().for_each(|group| group.replicas = 0);
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit_file::parse;

    #[test]
    fn what_a_server_refuses_is_told_by_the_keys_of_the_file() {
        let of = |text: &str, said: &str| {
            let spec = parse(text).unwrap().remove(0).spec;
            in_keys(Failure::usage(said), &spec).message
        };
        let said = "invalid input\n  task_groups[0].template.demand.requests[\"cpu\"]: too much\n  meta.name: taken: really";
        let short = "name: a\ntemplate: {requests: {cpu: 1}}\n";
        assert_eq!(
            of(short, said),
            "invalid input\n  template.requests[\"cpu\"]: too much\n  name: taken: really"
        );
        let long = "name: a\ntask_groups: [{name: x, template: {requests: {cpu: 1}}}, {name: y, template: {requests: {cpu: 1}}}]\n";
        assert!(of(long, said).contains("  task_groups[0].template.requests[\"cpu\"]: too much"));
        assert_eq!(of(short, "unit a: no"), "unit a: no");
    }

    #[test]
    fn what_a_file_leaves_out_is_no_change() {
        let spec = |text: &str| parse(text).unwrap().remove(0).spec;
        let kept = filled(&spec("name: a\nclass: service\nreplicas: 2\ntemplate: {requests: {cpu: 1}}\n"));
        let to_file = crate::unit_file::to_file;
        let same = spec("name: a\nclass: service\nreplicas: 2\ntemplate: {requests: {cpu: 1000m}}\n");
        assert_eq!(to_file(&filled(&same)).unwrap(), to_file(&kept).unwrap());
        let other = spec("name: a\nclass: service\nreplicas: 3\ntemplate: {requests: {cpu: 1}}\n");
        let (kept, other) = (to_file(&kept).unwrap(), to_file(&filled(&other)).unwrap());
        let differing = kept.lines().zip(other.lines()).filter(|(old, new)| old != new).count();
        assert_eq!((differing, kept.lines().count()), (1, other.lines().count()), "{kept}{other}");
    }

    #[test]
    fn fields_of_the_api_are_keys_of_files() {
        for (field, short, long) in [
            ("meta.name", "name", "name"),
            ("meta.labels[\"a\"]", "labels[\"a\"]", "labels[\"a\"]"),
            ("workload_class", "class", "class"),
            ("ttl_after_finished_ms", "ttl_after_finished", "ttl_after_finished"),
            ("task_groups[0].replicas", "replicas", "task_groups[0].replicas"),
            ("task_groups[1].replicas", "task_groups[0].replicas", "task_groups[1].replicas"),
            (
                "task_groups[0].template.demand.requests[\"cpu\"]",
                "template.requests[\"cpu\"]",
                "task_groups[0].template.requests[\"cpu\"]",
            ),
            (
                "task_groups[0].template.demand.devices[0].count",
                "template.devices[0].count",
                "task_groups[0].template.devices[0].count",
            ),
            (
                "task_groups[0].template.demand.devices[1].milli_per_device",
                "template.devices[1].milli",
                "task_groups[0].template.devices[1].milli",
            ),
            (
                "task_groups[0].template.run.command[0]",
                "template.command[0]",
                "task_groups[0].template.command[0]",
            ),
            (
                "task_groups[0].template.run.env[\"A\"]",
                "template.env[\"A\"]",
                "task_groups[0].template.env[\"A\"]",
            ),
            (
                "task_groups[0].template.run.stop_grace_ms",
                "template.stop_grace",
                "task_groups[0].template.stop_grace",
            ),
            (
                "task_groups[0].template.run.eviction_notice_ms",
                "template.eviction_notice",
                "task_groups[0].template.eviction_notice",
            ),
            (
                "task_groups[0].template.run.checkpoint_every_ms",
                "template.checkpoint_every",
                "task_groups[0].template.checkpoint_every",
            ),
            (
                "task_groups[0].template.run.simulated_duration_ms",
                "template.simulated.duration",
                "task_groups[0].template.simulated.duration",
            ),
            ("task_groups", "task_groups", "task_groups"),
            ("unit", "", ""),
        ] {
            assert_eq!(
                (key_of_unit(field, true), key_of_unit(field, false)),
                (short.to_owned(), long.to_owned())
            );
        }
        for (field, key) in [
            ("meta.name", "name"),
            ("min[\"cpu\"]", "min[\"cpu\"]"),
            ("demand", "requests"),
            ("demand.requests[\"cpu\"]", "requests[\"cpu\"]"),
            ("demand.devices[0].milli_per_device", "devices[0].milli"),
            ("demand.devices[0].terms.link", "devices[0].link"),
            ("demand.zones.cpu_mode", "topology.cpu_mode"),
            ("expires_ms", "expires"),
        ] {
            assert_eq!(key_of_record(field), key);
        }
    }

    #[test]
    fn the_dispatchers_rules_hold_without_a_server() {
        let unit = parse("name: web\nclass: service\nreplicas: 2\ntemplate: {requests: {cpu: 1}}\n")
            .unwrap()
            .remove(0);
        let defaults = check(unit.spec).unwrap();
        assert!(defaults.iter().any(|line| line.starts_with("min_member")), "{defaults:?}");
    }

    #[test]
    fn a_unit_is_the_same_whatever_the_server_filled_in() {
        let unit = |replicas: u32| {
            let text = format!(
                "name: web\nclass: service\nreplicas: {replicas}\ntemplate: {{requests: {{cpu: 1}}}}\n"
            );
            parse(&text).unwrap().remove(0).spec
        };
        let mut submission = from_proto::submission(unit(2));
        submission.uid = uuid::Uuid::now_v7().to_string();
        let mut spec = to_proto::unit_spec(&admit(submission).unwrap().spec);
        spec.meta.as_mut().unwrap().create_time_ms = 9;
        let ranges = vec![v1::OrdinalRange { start: 3, end: 5 }];
        let ordinals = vec![v1::OrdinalRanges { ranges }];
        let mut status = v1::UnitStatus { ordinals, suspended: true, ..v1::UnitStatus::default() };
        let stored = |status: &v1::UnitStatus| v1::Unit {
            unit_id: 7,
            spec: Some(spec.clone()),
            status: Some(status.clone()),
            ..v1::Unit::default()
        };
        assert!(is_same(&unit(2), &stored(&status)));
        assert!(!is_same(&unit(3), &stored(&status)));
        status.cancelled = true;
        assert!(!is_same(&unit(2), &stored(&status)));
        let daemon = parse("name: d\nclass: daemon\ntemplate: {}\n").unwrap().remove(0).spec;
        let mut spec = to_proto::unit_spec(&admitted(daemon.clone()).unwrap().spec);
        spec.task_groups[0].replicas = 7;
        let stored = v1::Unit { spec: Some(spec), ..v1::Unit::default() };
        assert!(is_same(&daemon, &stored), "its replicas follow the nodes");
    }
}
