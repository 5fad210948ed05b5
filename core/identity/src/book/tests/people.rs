//! Principals and tokens beside identities: one commit has all, and keys check tokens until their end.

use super::*;
use crate::people::{PERSON_TOKEN_TTL_MS_MAX, PeopleChange, PrincipalAsk};

fn create(book: &mut IdentityBook, id: &str, key: &str, ttl_ms: u64, now_ms: u64) -> u64 {
    let people = book.people_mut();
    let ends_ms = people.create_token(id, "ann", PrincipalAsk::default(), ttl_ms, now_ms).unwrap().ends_ms;
    book.keep_person_key(key, ends_ms);
    ends_ms
}

fn ends_ms(book: &IdentityBook, key: &str) -> Option<u64> {
    book.trust().person_keys.iter().find(|known| known.id == key).unwrap().ends_ms
}

#[test]
fn a_key_that_is_replaced_checks_tokens_until_the_last_one_has_ended() {
    let mut book = book();
    let first = create(&mut book, "t1", "p1", 30 * DAY, NOW);
    assert_eq!(ends_ms(&book, "p1"), None, "it signs");
    book.rotate(next_root(2, NOW), NOW).unwrap();
    assert_eq!(ends_ms(&book, "p1"), Some(first));
    // Until the next root signs, the old key signs what outlives its end.
    book.take_changes();
    let second = create(&mut book, "t2", "p1", PERSON_TOKEN_TTL_MS_MAX, NOW);
    assert_eq!(ends_ms(&book, "p1"), Some(second));
    assert!(matches!(book.take_changes().first(), Some(IdentityChange::Trust(_))));
    create(&mut book, "t3", "p1", DAY, NOW);
    assert_eq!(ends_ms(&book, "p1"), Some(second));
    create(&mut book, "t4", "p2", DAY, NOW);
    assert_eq!(ends_ms(&book, "p2"), None);
    assert!(!book.take_changes().iter().any(|change| matches!(change, IdentityChange::Trust(_))));
    tidy(&mut book, second - 1);
    assert!(book.trust().person_keys.iter().any(|key| key.id == "p1"));
    tidy(&mut book, second);
    assert!(!book.trust().person_keys.iter().any(|key| key.id == "p1"));
}

#[test]
fn one_commit_has_identities_and_people() {
    let mut book = with_tokens(9);
    let mut other = book.clone();
    create(&mut book, "t1", "p1", DAY, NOW);
    join(&mut book, "agent/n1", NOW).unwrap();
    assert_eq!(book.n_changed(), 4);
    let changes = book.take_changes();
    let is_person = |change: &IdentityChange| matches!(change, IdentityChange::Person(_));
    assert_eq!((changes.len(), changes.iter().filter(|change| is_person(change)).count()), (4, 2));
    changes.into_iter().for_each(|change| other.apply(change));
    assert!(other.all().eq(book.all()));
    assert!(book.all().any(|change| matches!(change, IdentityChange::Person(PeopleChange::Token(_)))));
}
