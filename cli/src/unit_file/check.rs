//! The dispatcher's admission checks, made here: `godel unit validate` needs no server.

use godel_core::admission::{
    DeviceSubmission, Given, GroupSubmission, Submission, TolerationSubmission, admit,
    defaults::AppliedDefault,
};
use godel_kit::{convert::BadField, from_proto};
use godel_proto::v1;

/// What would be filled in, as `field = value`.
///
/// # Errors
/// Every wrong field, as the dispatcher would name it: `field: what`.
pub fn check(spec: v1::UnitSpec) -> Result<Vec<String>, Vec<String>> {
    match admit(submission(spec)) {
        Ok(admitted) => Ok(admitted.defaults.iter().map(AppliedDefault::to_string).collect()),
        Err(violations) => {
            Err(violations.iter().map(|one| format!("{}: {}", one.field, one.description)).collect())
        }
    }
}

fn submission(unit: v1::UnitSpec) -> Submission {
    let meta = unit.meta.unwrap_or_default();
    // The service makes one up; here any will do.
    let uid = if meta.uid.is_empty() { uuid::Uuid::nil().to_string() } else { meta.uid };
    Submission {
        // Far below the limit: a file of that size was refused by its reader.
        encoded_len: 0,
        namespace: meta.namespace,
        name: meta.name,
        uid,
        labels: meta.labels.into_iter().collect(),
        owner: meta.owner,
        class: given(unit.workload_class, from_proto::workload_class),
        task_groups: unit.task_groups.into_iter().map(group).collect(),
        min_member: unit.min_member,
        queue: unit.queue,
        priority: unit.priority,
        pool: given(unit.pool, |number| match number {
            0 => Ok(None),
            number => from_proto::pool(number).map(Some),
        }),
        restart_policy: given(unit.restart_policy, from_proto::restart_policy),
        scoring: given(unit.scoring_profile, from_proto::scoring_profile),
        ttl_after_finished_ms: unit.ttl_after_finished_ms,
        max_restarts: unit.max_restarts,
    }
}

fn given<T>(number: i32, convert: impl Fn(i32) -> Result<Option<T>, BadField>) -> Given<T> {
    match convert(number) {
        Ok(Some(value)) => Given::Value(value),
        Ok(None) => Given::Absent,
        Err(_) => Given::Unknown(number),
    }
}

fn group(group: v1::TaskGroup) -> GroupSubmission {
    let template = group.template.unwrap_or_default();
    let demand = template.demand.unwrap_or_default();
    let mut requests: Vec<(String, i64)> = demand.requests.unwrap_or_default().amounts.into_iter().collect();
    requests.sort_unstable();
    GroupSubmission {
        name: group.name,
        replicas: group.replicas,
        requests,
        devices: demand.devices.map(|devices| DeviceSubmission {
            kind: devices.kind,
            count: devices.count,
            milli: devices.milli_per_device,
            models: devices.models,
        }),
        node_selector: template.node_selector.into_iter().collect(),
        tolerations: template.tolerations.into_iter().map(toleration).collect(),
        run: from_proto::run_spec(template.run.unwrap_or_default()),
    }
}

fn toleration(toleration: v1::Toleration) -> TolerationSubmission {
    use godel_core::node::TaintEffect;
    TolerationSubmission {
        effect: match toleration.effect() {
            v1::TaintEffect::Unspecified => Given::Absent,
            v1::TaintEffect::NoSchedule => Given::Value(TaintEffect::NoSchedule),
            v1::TaintEffect::PreferNoSchedule => Given::Value(TaintEffect::PreferNoSchedule),
        },
        key: toleration.key,
        value: toleration.value,
        any_value: toleration.any_value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit_file::parse;

    #[test]
    fn the_dispatchers_rules_hold_without_a_server() {
        let unit = |text: &str| parse(text).unwrap().remove(0).spec;
        let defaults =
            check(unit("name: web\nclass: service\nreplicas: 2\ntemplate: {requests: {cpu: 1}}\n")).unwrap();
        assert!(defaults.iter().any(|line| line.starts_with("min_member")), "{defaults:?}");
        let wrong = check(unit("name: NO_NAME\nreplicas: 0\nmin_member: 5\ntemplate: {gpu: {count: 99}}\n"))
            .unwrap_err();
        for field in ["meta.name", "task_groups[0].replicas", "task_groups[0].template.demand.devices"] {
            assert!(wrong.iter().any(|line| line.starts_with(field)), "{field}: {wrong:?}");
        }
    }
}
