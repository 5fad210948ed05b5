//! The dispatcher's admission checks, made here: `godel unit validate` needs no server.

use godel_core::admission::{admit, defaults::AppliedDefault};
use godel_kit::from_proto;
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
