//! What a person's call on units is about: the namespace, the queue and the owner, which a `user` is bound to.

use std::sync::Arc;

use godel_identity::{
    names::Role,
    permission::{CallObject, Principal},
};
use godel_proto::v1;
use tonic::{Request, Status};

use super::{CallerRecords, PersonCall, caller, person_call};

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

/// What lists of queues may call whoever submits units, besides the owners of these. In plain text nobody has such names.
#[derive(Clone, Debug)]
pub struct ListedNames {
    /// Of the person who calls: its name, and its groups.
    own: Arc<[String]>,
    /// An adapter of YARN calls: the owners of its units are the principals on whose behalf it does, of which this is known.
    of_owners: Option<CallerRecords>,
}

impl ListedNames {
    /// Of who makes a request. `known` is what is known of principals; without it, units of an adapter of YARN have their owners alone.
    pub fn of<T>(request: &Request<T>, known: Option<&CallerRecords>) -> Self {
        let is_adapter = caller(request).role() == Some(Role::Yarn);
        let own = person_call(request).principal().map_or_else(Arc::default, |principal| names_of(principal));
        Self { own, of_owners: known.filter(|_| is_adapter).cloned() }
    }

    /// The names beside that of the owner of a unit.
    pub fn beside(&self, owner: &str) -> Arc<[String]> {
        let recorded = self.of_owners.as_ref().and_then(|known| known.recorded_principal(owner));
        recorded.map_or_else(|| Arc::clone(&self.own), |principal| names_of(&principal))
    }
}

fn names_of(principal: &Principal) -> Arc<[String]> {
    std::iter::once(&principal.name).chain(&principal.groups).cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use godel_identity::{caller::Caller, permission::PersonRole};
    use tonic::Code;

    use super::*;
    use crate::security::KnownPrincipal;

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

    #[test]
    fn lists_of_queues_name_persons_and_their_groups() {
        let known = CallerRecords::new("c".parse().unwrap());
        let principal =
            Arc::new(Principal { groups: vec!["ml".to_owned()], ..Principal::new("bob", PersonRole::User) });
        known.replace_people(vec![KnownPrincipal { principal, refused_before_ms: 0 }], HashSet::new());
        let names = |caller: Caller, call: PersonCall, owner: &str| {
            let mut request = Request::new(());
            request.extensions_mut().insert(caller);
            request.extensions_mut().insert(call);
            ListedNames::of(&request, Some(&known)).beside(owner).to_vec()
        };
        let none: [&str; 0] = [];
        let ann = || (Caller::Person { name: "ann".to_owned() }, call_of(PersonRole::User));
        assert_eq!(names(ann().0, ann().1, ""), ["ann", "etl"]);
        // Whoever submits counts, and not whom the unit names as its owner.
        assert_eq!(names(ann().0, ann().1, "bob"), ["ann", "etl"]);
        let member = |role| Caller::Member { role, name: "m".to_owned() };
        assert_eq!(names(member(Role::Yarn), PersonCall::default(), "bob"), ["bob", "ml"]);
        assert_eq!(names(member(Role::Yarn), PersonCall::default(), "yarn-simple:bob"), none);
        assert_eq!(names(member(Role::Dispatcher), PersonCall::default(), "bob"), none);
        assert_eq!(names(Caller::Unjudged, PersonCall::default(), "bob"), none);
    }
}
