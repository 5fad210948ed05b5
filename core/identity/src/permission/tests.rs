mod yarn;

use super::*;
use crate::needs::{NEEDS, Needs};

const SUBMIT: &str = "/godel.v1.UnitService/SubmitUnit";
const LIST: &str = "/godel.v1.UnitService/ListUnits";
const SET_PAUSE: &str = "/godel.v1.DispatchService/SetPause";
const CREATE_QUEUE: &str = "/godel.v1.QueueService/CreateQueue";
const LIST_TOKENS: &str = "/godel.v1.IdentityService/ListTokens";
const SESSION: &str = "/godel.v1.NodeService/Session";

fn ann(role: PersonRole) -> Principal {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
    Principal {
        groups: words("etl ml"),
        namespaces: words("team-a team-b"),
        queues: words("batch online.web"),
        default_namespace: "ann".to_owned(),
        ..Principal::new("ann", role)
    }
}

fn within_namespace(namespace: &str) -> CallObject<'_> {
    CallObject { namespace: Some(namespace), ..CallObject::default() }
}

#[test]
fn each_role_may_what_the_roles_before_it_may() {
    for (method, may) in [
        (LIST, [true, true, true, true]),
        (SUBMIT, [false, true, true, true]),
        (SET_PAUSE, [false, false, true, true]),
        (CREATE_QUEUE, [false, false, false, true]),
        (SESSION, [false; 4]),
        ("/godel.v1.NoService/NoCall", [false, false, false, true]),
        ("", [false, false, false, true]),
    ] {
        for (role, may) in PersonRole::ALL.into_iter().zip(may) {
            let granted = allow(&ann(role), method, &CallObject::default()) == Permission::Granted;
            assert_eq!(granted, may, "{role} {method}");
        }
    }
    for (method, needs) in NEEDS {
        let granted = allow(&Principal::admin(), method, &CallObject::default());
        let expected =
            if needs.of_persons().is_some() { Permission::Granted } else { Permission::NotForPersons };
        assert_eq!(granted, expected, "{method}");
    }
}

#[test]
fn a_user_is_bound_to_its_namespaces_queues_and_owners() {
    let object = |namespace, queue, owner| CallObject {
        namespace: Some(namespace),
        queue: Some(queue),
        node: Some("n1"),
        owner: Some(owner),
    };
    for (object, expected) in [
        (object("", "", ""), Permission::Granted),
        (object("ann", "batch", "ann"), Permission::Granted),
        (object("team-b", "batch.nightly", "ml"), Permission::Granted),
        (object("team-a", "online.web.eu", "etl"), Permission::Granted),
        (object("default", "batch", "ann"), Permission::Namespace),
        (object("team", "batch", "ann"), Permission::Namespace),
        (object("team-a", "online", "ann"), Permission::Queue),
        (object("team-a", "batchy", "ann"), Permission::Queue),
        (object("team-a", "online.webby", "ann"), Permission::Queue),
        (object("team-a", "batch", "bob"), Permission::Owner),
        (object("team-c", "other", "bob"), Permission::Namespace),
    ] {
        assert_eq!(allow(&ann(PersonRole::User), SUBMIT, &object), expected, "{object:?}");
        assert_eq!(allow(&ann(PersonRole::Operator), SUBMIT, &object), Permission::Granted);
        assert_eq!(allow(&ann(PersonRole::Viewer), SUBMIT, &object), Permission::Role(PersonRole::User));
        // Reading is bound to namespaces alone, and not even to them where the units are one's own.
        let is_foreign = expected == Permission::Namespace && object.owner != Some("ann");
        let seen = if is_foreign { expected } else { Permission::Granted };
        for role in [PersonRole::Viewer, PersonRole::User] {
            assert_eq!(allow(&ann(role), LIST, &object), seen, "{object:?}");
        }
        assert_eq!(allow(&ann(PersonRole::Operator), LIST, &object), Permission::Granted);
    }
    let plain = Principal::new("bob", PersonRole::User);
    for (object, expected) in [
        (object("default", "any.queue", "bob"), Permission::Granted),
        (object("ann", "", ""), Permission::Namespace),
    ] {
        assert_eq!(allow(&plain, SUBMIT, &object), expected, "{object:?}");
    }
}

#[test]
fn a_principal_asks_for_itself_and_an_administrator_for_all() {
    let about = |owner| CallObject { owner: Some(owner), ..CallObject::default() };
    for role in PersonRole::ALL {
        let others = if role == PersonRole::Admin { Permission::Granted } else { Permission::OtherPrincipal };
        assert_eq!(allow(&ann(role), LIST_TOKENS, &about("ann")), Permission::Granted);
        assert_eq!(allow(&ann(role), LIST_TOKENS, &about("bob")), others);
        // Nor are its groups itself.
        assert_eq!(allow(&ann(role), LIST_TOKENS, &about("etl")), others);
    }
}

#[test]
fn what_state_tells_of_a_principal_is_read_as_it_is_written() {
    for principal in [
        ann(PersonRole::User),
        Principal::admin(),
        Principal::new("bob", PersonRole::Viewer),
        Principal { queues: vec!["a.b".to_owned()], ..Principal::new("c", PersonRole::Operator) },
    ] {
        let text = PrincipalTerms(&principal).to_string();
        assert_eq!(PrincipalTerms::read(&principal.name, &text), Some(principal), "{text}");
    }
    let text = PrincipalTerms(&ann(PersonRole::User)).to_string();
    assert_eq!(text, "role=user groups=etl,ml namespaces=team-a,team-b queues=batch,online.web default=ann");
    assert_eq!(
        PrincipalTerms::read("a", "role=viewer later=x"),
        Some(Principal::new("a", PersonRole::Viewer))
    );
    for bad in ["", "groups=a", "role=king", "user", "role=user groups"] {
        assert_eq!(PrincipalTerms::read("a", bad), None, "{bad}");
    }
}

#[test]
fn a_refusal_names_what_is_missing_and_who_can_give_it() {
    let object = |namespace, queue, owner| CallObject { namespace, queue, owner, node: None };
    for (role, method, object, words) in [
        (PersonRole::User, SET_PAUSE, CallObject::default(), "needs role operator; ann has role user"),
        (PersonRole::User, SUBMIT, within_namespace("x"), "`godel principal set ann --namespace x`"),
        (PersonRole::User, SUBMIT, object(None, Some("x"), None), "`godel principal set ann --queue x`"),
        (PersonRole::User, SUBMIT, object(None, None, Some("x")), "leave `owner` out"),
        (PersonRole::User, LIST_TOKENS, object(None, None, Some("x")), "of principal x"),
        (PersonRole::Admin, SESSION, CallObject::default(), "needs a certificate of role agent"),
    ] {
        let refusal = PermissionRefusal::judge(&ann(role), method, &object).unwrap_err().to_string();
        assert!(refusal.contains(words) && refusal.starts_with(method), "{refusal}");
    }
    assert_eq!(PermissionRefusal::judge(&ann(PersonRole::User), SUBMIT, &within_namespace("ann")), Ok(()));
}

#[test]
fn units_are_seen_where_they_may_be_asked_for() {
    let everywhere =
        Principal { namespaces: vec!["*".to_owned()], ..Principal::new("board", PersonRole::Viewer) };
    for (principal, seen, unseen) in [
        (ann(PersonRole::Viewer), &["ann", "team-a", "team-b", ""][..], &["default", "team", "*"][..]),
        (ann(PersonRole::User), &["team-a"], &["default"]),
        (ann(PersonRole::Operator), &["ann", "default", "x"], &[]),
        (Principal::admin(), &["default", "x"], &[]),
        (Principal::new("bob", PersonRole::Viewer), &["", "default"], &["bob", "team-a"]),
        (everywhere, &["default", "x"], &[]),
    ] {
        let sight = principal.sight();
        assert_eq!(sight.is_all(), unseen.is_empty(), "{principal:?}");
        for (namespace, is_seen) in
            seen.iter().map(|one| (*one, true)).chain(unseen.iter().map(|one| (*one, false)))
        {
            assert_eq!(principal.may_see(namespace), is_seen, "{namespace}");
            // A call without a namespace is about the default one of the principal; a unit without one is in `default`.
            assert!(namespace.is_empty() || sight.sees(namespace) == is_seen, "{namespace}");
            let permission = allow(&principal, LIST, &within_namespace(namespace));
            assert_eq!(permission == Permission::Granted, is_seen, "{namespace}");
        }
    }
    let everywhere =
        Principal { namespaces: vec!["*".to_owned()], ..Principal::new("ann", PersonRole::User) };
    assert_eq!(allow(&everywhere, SUBMIT, &within_namespace("x")), Permission::Granted);
}

#[test]
fn what_one_owns_is_seen_in_every_namespace_and_changed_in_ones_own() {
    let in_yarn = |owner| CallObject { namespace: Some("yarn"), owner: Some(owner), ..CallObject::default() };
    for role in [PersonRole::Viewer, PersonRole::User] {
        let ann = ann(role);
        assert_eq!(allow(&ann, LIST, &in_yarn("ann")), Permission::Granted);
        // A group is not the principal: its units are seen where the namespace is.
        for other in ["bob", "etl", "yarn-simple:ann", ""] {
            assert_eq!(allow(&ann, LIST, &in_yarn(other)), Permission::Namespace, "{other}");
            assert!(!ann.sight().sees_unit_of("yarn", other), "{other}");
        }
        assert!(ann.sight().sees_unit_of("yarn", "ann"));
    }
    assert_eq!(allow(&ann(PersonRole::User), SUBMIT, &in_yarn("ann")), Permission::Namespace);
}

#[test]
fn what_is_bound_to_namespaces_is_so_from_users_on() {
    for (method, needs) in NEEDS {
        let (Needs::Person(least, ObjectScope::Namespace)
        | Needs::PersonOr(least, ObjectScope::Namespace, _)) = needs
        else {
            continue;
        };
        assert_eq!(*least, PersonRole::User, "{method}");
    }
}
