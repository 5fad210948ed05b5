//! The dispatcher's admission checks, made here: `godel unit validate` needs no server.

use godel_core::admission::{admit, defaults::AppliedDefault};
use godel_kit::{from_proto, to_proto};
use godel_proto::v1;

/// What would be filled in, as `field = value`.
///
/// # Errors
/// Every wrong field, as the dispatcher would name it: `field: what`.
pub fn check(spec: v1::UnitSpec) -> Result<Vec<String>, Vec<String>> {
    let mut submission = from_proto::submission(spec);
    if submission.uid.is_empty() {
        // The service makes one up; here any will do.
        submission.uid = uuid::Uuid::nil().to_string();
    }
    match admit(submission) {
        Ok(admitted) => Ok(admitted.defaults.iter().map(AppliedDefault::to_string).collect()),
        Err(violations) => {
            Err(violations.iter().map(|one| format!("{}: {}", one.field, one.description)).collect())
        }
    }
}

/// Whether a unit that is there is what a file says, defaults filled in. Not looked at are its uid, where its replicas
/// came from, and whether it is suspended.
pub fn is_same(spec: &v1::UnitSpec, stored: &v1::UnitSpec) -> bool {
    let mut submission = from_proto::submission(spec.clone());
    submission.uid = uuid::Uuid::nil().to_string();
    let Ok(admitted) = admit(submission) else { return false };
    comparable(to_proto::unit_spec(&admitted.spec)) == comparable(stored.clone())
}

fn comparable(mut spec: v1::UnitSpec) -> v1::UnitSpec {
    let meta = spec.meta.take().unwrap_or_default();
    let v1::ObjectMeta { namespace, name, labels, owner, .. } = meta;
    spec.meta = Some(v1::ObjectMeta { namespace, name, labels, owner, ..v1::ObjectMeta::default() });
    spec.unit_id = 0;
    spec.suspended = false;
    spec.task_groups.iter_mut().for_each(|group| group.ordinals.clear());
    spec
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
        let mut stored = to_proto::unit_spec(&admit(submission).unwrap().spec);
        stored.unit_id = 7;
        stored.meta.as_mut().unwrap().create_time_ms = 9;
        stored.task_groups[0].ordinals = vec![v1::OrdinalRange { start: 3, end: 5 }];
        stored.suspended = true;
        assert!(is_same(&unit(2), &stored));
        assert!(!is_same(&unit(3), &stored));
        stored.cancelled = true;
        assert!(!is_same(&unit(2), &stored));
    }
}
