use super::*;

const NOW: u64 = 1_790_000_000_500;
const HOUR: u64 = 3_600_000;

fn user(namespace: &str) -> PrincipalAsk {
    PrincipalAsk { namespaces: vec![namespace.to_owned()], ..PrincipalAsk::default() }
}

fn create(people: &mut People, id: &str, name: &str) -> Result<PersonTokenRecord, PeopleRefusal> {
    people.create_token(id, name, PrincipalAsk::default(), HOUR, NOW)
}

#[test]
fn a_token_makes_its_principal_once() {
    let mut people = People::default();
    let token = people.create_token("t1", "ann", user("a"), HOUR, NOW).unwrap();
    assert_eq!((token.created_ms, token.ends_ms), (NOW - 500, NOW - 500 + HOUR));
    let ann = people.principal("ann").unwrap();
    assert_eq!((ann.role, ann.namespaces.as_slice()), (PersonRole::User, ["a".to_owned()].as_slice()));
    // The same again, and without saying what it is.
    people.create_token("t2", "ann", user("a"), HOUR, NOW).unwrap();
    create(&mut people, "t3", "ann").unwrap();
    let other = people.create_token("t4", "ann", user("b"), HOUR, NOW).unwrap_err();
    assert_eq!(other, PeopleRefusal::OtherTerms { name: "ann".to_owned() });
    assert_eq!(create(&mut people, "t3", "ann"), Err(PeopleRefusal::KnownToken { id: "t3".to_owned() }));
    assert_eq!((people.tokens().count(), people.principals().count()), (3, 1));
    // One transaction has both.
    let changes = people.take_changes();
    assert!(matches!(&changes[..], [PeopleChange::Principal(_), PeopleChange::Token(_), ..]), "{changes:?}");
    assert_eq!(people.n_changed(), 0);
}

#[test]
fn a_token_is_good_for_90_days_at_most() {
    let mut people = People::default();
    for (ttl_ms, is_good) in [
        (0, false),
        (999, false),
        (1_000, true),
        (PERSON_TOKEN_TTL_MS_MAX, true),
        (PERSON_TOKEN_TTL_MS_MAX + 1, false),
    ] {
        let id = ttl_ms.to_string();
        let made = people.create_token(&id, "ann", PrincipalAsk::default(), ttl_ms, NOW);
        assert_eq!(made.is_ok(), is_good, "{ttl_ms}: {made:?}");
    }
    assert_eq!(people.last_end_ms(), NOW - 500 + PERSON_TOKEN_TTL_MS_MAX);
}

#[test]
fn the_administrator_has_no_token_and_is_what_it_is() {
    let mut people = People::default();
    assert_eq!(create(&mut people, "t1", ADMIN), Err(PeopleRefusal::Admin));
    assert_eq!(people.set_principal(ADMIN, PrincipalAsk::default(), NOW).unwrap_err(), PeopleRefusal::Admin);
    assert_eq!(people.delete_principal(ADMIN), Err(PeopleRefusal::Admin));
    assert_eq!(people.principal(ADMIN), Some(Principal::admin()));
    // Its sessions end all the same.
    assert_eq!(people.revoke_all(ADMIN, NOW), Ok(0));
    assert_eq!(people.principal(ADMIN), Some(Principal::admin()));
    assert_eq!(people.issue_ms(ADMIN, NOW), NOW + 500);
}

#[test]
fn what_is_set_is_added_unless_it_replaces() {
    let mut people = People::default();
    people.set_principal("ann", user("b"), NOW).unwrap();
    people.set_principal("ann", user("a"), NOW + 1).unwrap();
    let operator = PrincipalAsk { role: Some(PersonRole::Operator), ..user("a") };
    let record = people.set_principal("ann", operator, NOW + 2).unwrap();
    assert_eq!((record.principal.namespaces.join(" ").as_str(), record.created_ms), ("a b", NOW));
    assert_eq!(record.principal.role, PersonRole::Operator);
    let ask = PrincipalAsk {
        replaces_lists: true,
        default_namespace: Some("c".to_owned()),
        groups: vec!["g".to_owned()],
        ..PrincipalAsk::default()
    };
    let Principal { role, groups, namespaces, default_namespace, .. } =
        people.set_principal("ann", ask, NOW).unwrap().principal.clone();
    assert_eq!((role, groups.join(" ").as_str(), namespaces.len()), (PersonRole::Operator, "g", 0));
    assert_eq!(default_namespace, "c");
}

#[test]
fn names_that_would_not_be_read_back_are_refused() {
    let mut people = People::default();
    let words = |word: &str| vec![word.to_owned()];
    for (name, ask, field) in [
        ("", PrincipalAsk::default(), "principal"),
        ("Ann", PrincipalAsk::default(), "principal"),
        ("a/b", PrincipalAsk::default(), "principal"),
        ("ann", PrincipalAsk { groups: words("a b"), ..PrincipalAsk::default() }, "groups"),
        ("ann", user("a,b"), "namespaces"),
        ("ann", PrincipalAsk { queues: words("a..b"), ..PrincipalAsk::default() }, "queues"),
        (
            "ann",
            PrincipalAsk { default_namespace: Some("A".to_owned()), ..PrincipalAsk::default() },
            "default_namespace",
        ),
    ] {
        match people.set_principal(name, ask, NOW) {
            Err(PeopleRefusal::BadName { field: bad, .. }) => assert_eq!(bad, field),
            other => panic!("{name}: {other:?}"),
        }
    }
    let many = (0..200).map(|n| format!("namespace-{n}")).collect();
    let many = PrincipalAsk { namespaces: many, ..PrincipalAsk::default() };
    assert!(matches!(people.set_principal("ann", many, NOW), Err(PeopleRefusal::Long { .. })));
    assert_eq!((people.principals().count(), people.n_changed()), (0, 0));
}

#[test]
fn a_revoked_token_stays_until_its_end() {
    let mut people = People::default();
    create(&mut people, "t1", "ann").unwrap();
    create(&mut people, "t2", "bob").unwrap();
    assert!(people.revoke_token("t1").unwrap().is_revoked && people.revoke_token("t1").is_ok());
    assert_eq!(people.revoke_token("t9"), Err(PeopleRefusal::NoToken { id: "t9".to_owned() }));
    // Another principal of the name is not called by the tokens of this one.
    people.delete_principal("bob").unwrap();
    assert_eq!(people.delete_principal("bob"), Err(PeopleRefusal::NoPrincipal { name: "bob".to_owned() }));
    assert_eq!(people.principal("bob"), None);
    create(&mut people, "t3", "bob").unwrap();
    let revoked: Vec<bool> = people.tokens().map(|token| token.is_revoked).collect();
    assert_eq!(revoked, [true, true, false]);
    let late = NOW + HOUR + EXPIRED_GRACE_MS;
    people.create_token("t4", "ann", PrincipalAsk::default(), HOUR, late).unwrap();
    assert_eq!(people.tokens().map(|token| token.id.as_str()).collect::<Vec<_>>(), ["t4"]);
}

#[test]
fn all_tokens_of_a_principal_are_refused_and_the_next_one_counts() {
    let mut people = People::default();
    create(&mut people, "t1", "ann").unwrap();
    create(&mut people, "t2", "bob").unwrap();
    assert_eq!(people.revoke_all("ann", NOW), Ok(1));
    let refused_before_ms = people.principals().next().unwrap().refused_before_ms;
    assert!(people.token("t1").unwrap().created_ms < refused_before_ms);
    assert!(!people.token("t2").unwrap().is_revoked);
    let next = create(&mut people, "t3", "ann").unwrap();
    assert!(next.created_ms >= refused_before_ms && !next.is_revoked);
    // Also where the clock does not move on.
    assert_eq!(people.revoke_all("ann", NOW), Ok(1));
    let refused_before_ms = people.principals().next().unwrap().refused_before_ms;
    assert!(next.created_ms < refused_before_ms);
    assert!(people.revoke_all("eve", NOW).is_err());
}

#[test]
fn there_are_not_more_than_fit_an_answer() {
    let mut people = People::default();
    for n in 0..N_PERSON_TOKENS_MAX {
        let ttl_ms = if n == 7 { 1_000 } else { HOUR };
        people.create_token(&format!("t{n}"), "ann", PrincipalAsk::default(), ttl_ms, NOW).unwrap();
    }
    assert_eq!(create(&mut people, "x", "ann"), Err(PeopleRefusal::TooManyTokens));
    // One that has ended makes room.
    people.create_token("x", "ann", PrincipalAsk::default(), HOUR, NOW + 2_000).unwrap();
    assert_eq!((people.tokens().count(), people.token("t7")), (N_PERSON_TOKENS_MAX, None));
    for n in 1..N_PRINCIPALS_MAX {
        people.set_principal(&format!("p{n}"), PrincipalAsk::default(), NOW).unwrap();
    }
    let refusal = people.set_principal("one-more", PrincipalAsk::default(), NOW).unwrap_err();
    assert_eq!(refusal, PeopleRefusal::TooManyPrincipals);
    people.set_principal("p1", user("a"), NOW).unwrap();
}

#[test]
fn another_book_that_makes_the_changes_is_the_same() {
    let mut people = People::default();
    let mut other = People::default();
    create(&mut people, "t1", "ann").unwrap();
    create(&mut people, "t2", "bob").unwrap();
    people.take_changes().into_iter().for_each(|change| other.apply(change));
    people.delete_principal("bob").unwrap();
    people.take_changes().into_iter().for_each(|change| other.apply(change));
    assert!(people.principals().eq(other.principals()) && people.tokens().eq(other.tokens()));
    assert!(people.all().eq(other.all()));
    let mut third = People::default();
    people.all().for_each(|change| third.apply(change));
    assert!(people.all().eq(third.all()));
}
