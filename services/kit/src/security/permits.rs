//! What a person's call on units is about: the namespace, the queue and the owner, which a `user` is bound to.

use godel_identity::permission::CallObject;
use godel_proto::v1;
use tonic::Status;

use super::PersonCall;

/// The queue of a unit that names none.
const QUEUE_DEFAULT: &str = "default";

/// That a person may submit a unit where it says. Fills in the person's default namespace, and the person as the owner.
///
/// # Errors
/// `PERMISSION_DENIED`.
pub fn permit_submission(call: &PersonCall, unit: &mut v1::UnitSpec) -> Result<(), Status> {
    permit_update(call, unit)?;
    if let Some(principal) = call.principal() {
        let meta = unit.meta.get_or_insert_default();
        if meta.owner.is_empty() {
            meta.owner.clone_from(&principal.name);
        }
    }
    Ok(())
}

/// That a person may change a unit into this one. Fills in the person's default namespace.
///
/// # Errors
/// `PERMISSION_DENIED`.
pub fn permit_update(call: &PersonCall, unit: &mut v1::UnitSpec) -> Result<(), Status> {
    if call.principal().is_none() {
        return Ok(());
    }
    let queue = if unit.queue.is_empty() { QUEUE_DEFAULT } else { &unit.queue };
    let meta = unit.meta.get_or_insert_default();
    let object = CallObject {
        namespace: Some(&meta.namespace),
        queue: Some(queue),
        node: None,
        owner: Some(&meta.owner),
    };
    call.check(&object)?;
    meta.namespace = call.default_namespace(std::mem::take(&mut meta.namespace));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use godel_identity::permission::{PersonRole, Principal};
    use tonic::Code;

    use super::*;

    fn call_of(role: PersonRole) -> PersonCall {
        let principal = Principal {
            groups: vec!["etl".to_owned()],
            namespaces: vec!["team-a".to_owned()],
            queues: vec!["batch".to_owned()],
            default_namespace: "ann".to_owned(),
            ..Principal::new("ann", role)
        };
        PersonCall::new(Arc::new(principal), "/godel.v1.UnitService/SubmitUnit")
    }

    fn unit(namespace: &str, queue: &str, owner: &str) -> v1::UnitSpec {
        let (namespace, owner) = (namespace.to_owned(), owner.to_owned());
        let meta = v1::ObjectMeta { namespace, owner, ..v1::ObjectMeta::default() };
        v1::UnitSpec { meta: Some(meta), queue: queue.to_owned(), ..v1::UnitSpec::default() }
    }

    #[test]
    fn a_user_submits_as_itself_and_its_groups_to_its_own_namespaces_and_queues() {
        for (namespace, queue, owner, is_permitted) in [
            ("", "batch", "", true),
            ("team-a", "batch.nightly", "etl", true),
            ("ann", "batch", "ann", true),
            ("team-b", "batch", "", false),
            ("", "", "", false),
            ("", "default", "", false),
            ("", "batch", "bob", false),
        ] {
            let mut submitted = unit(namespace, queue, owner);
            let permitted = permit_submission(&call_of(PersonRole::User), &mut submitted);
            assert_eq!(permitted.is_ok(), is_permitted, "{namespace} {queue} {owner}: {permitted:?}");
            if let Err(refusal) = permitted {
                assert_eq!(refusal.code(), Code::PermissionDenied);
                continue;
            }
            let filled =
                |given: &str, default: &str| if given.is_empty() { default } else { given }.to_owned();
            let meta = submitted.meta.unwrap();
            assert_eq!((meta.namespace, meta.owner), (filled(namespace, "ann"), filled(owner, "ann")));
        }
        let mut others = unit("team-b", "", "bob");
        permit_submission(&call_of(PersonRole::Operator), &mut others).unwrap();
        assert_eq!(others, unit("team-b", "", "bob"));
    }

    #[test]
    fn an_update_keeps_the_owner_that_it_does_not_name() {
        let mut changed = unit("", "batch", "");
        permit_update(&call_of(PersonRole::User), &mut changed).unwrap();
        assert_eq!(changed, unit("ann", "batch", ""));
    }

    #[test]
    fn what_nobody_judged_stays_as_it_is() {
        let mut submitted = v1::UnitSpec::default();
        permit_submission(&PersonCall::default(), &mut submitted).unwrap();
        assert_eq!(submitted, v1::UnitSpec::default());
    }
}
