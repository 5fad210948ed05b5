//! Decisions one by one, and every short course of them against all leaves that were ever issued.

use super::*;
use crate::{
    joins::{JoinNames, JoinRefusal},
    leaves::{LIFETIME_MS, LeafRefusal},
    names::ClusterName,
    records::{PersonTokenKey, TrustedRoot},
    rotation::ROOT_UNUSED_MS,
};

mod courses;
mod people;

/// In 2026.
const NOW: u64 = 1_790_000_000_000;
const DAY: u64 = 24 * 3_600_000;

fn at(now_ms: u64) -> IssueClock {
    IssueClock { now_ms, lifetime_ms: LIFETIME_MS }
}

fn identity(key: &str) -> Identity {
    format!("spiffe://c/{key}").parse().unwrap()
}

fn fingerprint(n: u8) -> RootFingerprint {
    RootFingerprint([n; 32])
}

fn root(n: u8, created_ms: u64) -> TrustedRoot {
    TrustedRoot {
        certificate: vec![n],
        fingerprint: fingerprint(n),
        created_ms,
        signs_from_ms: created_ms,
        is_leaving: false,
    }
}

fn next_root(n: u8, now_ms: u64) -> NextSigner {
    let root = TrustedRoot { signs_from_ms: now_ms + rotation::ROOT_LEAD_MS, ..root(n, now_ms) };
    NextSigner { root, person_key: person_key(n) }
}

fn person_key(n: u8) -> PersonTokenKey {
    PersonTokenKey { id: format!("p{n}"), public_key: [n; 32], ends_ms: None }
}

fn book() -> IdentityBook {
    let cluster: ClusterName = "c".parse().unwrap();
    let trust = ClusterTrust {
        cluster,
        store: StoreId(1),
        roots: vec![root(1, NOW - DAY)],
        person_keys: vec![person_key(1)],
    };
    IdentityBook::new(trust, [], [])
}

fn ask(role: Role, names: &str, n_uses: u32) -> JoinTokenAsk {
    let names: JoinNames = names.parse().unwrap();
    JoinTokenAsk { role, names, pool: String::new(), ttl_ms: 3_600_000, n_uses }
}

/// With a token for agents of any names, and one for schedulers.
fn with_tokens(n_uses: u32) -> IdentityBook {
    let mut book = book();
    for (id, role, names) in [("agents", Role::Agent, "*"), ("schedulers", Role::Scheduler, "")] {
        book.create_token(id.to_owned(), [7; 32], ask(role, names, n_uses), NOW).unwrap();
    }
    book.take_changes();
    book
}

fn join(book: &mut IdentityBook, key: &str, now_ms: u64) -> Result<LeafGrant, IssueRefusal> {
    let identity = identity(key);
    let token = if identity.role() == Role::Agent { "agents" } else { "schedulers" };
    book.join(&asked(token, &identity, 0), at(now_ms))
}

/// With the key of that number; each number above 0 is the key of one process, and 0 that of somebody new.
fn asked(token: &str, identity: &Identity, key: u8) -> JoinAsk {
    static N_KEYS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let mut key_hash = [key; 32];
    if key == 0 {
        let n = N_KEYS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        key_hash[..8].copy_from_slice(&n.to_be_bytes());
    }
    JoinAsk { token: token.to_owned(), identity: identity.clone(), key_hash }
}

/// Looks twice, as far apart as it takes to believe the clock.
fn tidy(book: &mut IdentityBook, now_ms: u64) -> Vec<RootFingerprint> {
    look(book, now_ms, 0);
    let mut dropped = look(book, now_ms, SURELY_ENDED_MS);
    dropped.extend(look(book, now_ms, SURELY_ENDED_MS + ROOT_UNUSED_MS));
    dropped
}

fn look(book: &mut IdentityBook, now_ms: u64, monotonic_ms: u64) -> Vec<RootFingerprint> {
    book.tidy(TidyClock { now_ms, monotonic: Millis(monotonic_ms) })
}

fn allow(book: &mut IdentityBook, key: &str) {
    book.allow(&identity(key), &identity("state/main")).unwrap();
}

fn standing(book: &IdentityBook, leaf: &LeafGrant, now_ms: u64) -> LeafStanding {
    let record = book.identity(&leaf.identity.key()).map(IdentityRecord::name_record);
    judge_leaf(leaf.times, record, now_ms)
}

#[test]
fn a_join_issues_a_leaf_and_counts_a_use() {
    let mut book = with_tokens(2);
    let mut with_pool = ask(Role::Agent, "gpu-*", 1);
    with_pool.pool = "gpu".to_owned();
    book.create_token("gpus".to_owned(), [7; 32], with_pool, NOW).unwrap();
    book.take_changes();
    let leaf = book.join(&asked("gpus", &identity("agent/gpu-1"), 0), at(NOW + 1)).unwrap();
    assert_eq!(
        (leaf.root, &*leaf.pool, leaf.times),
        (fingerprint(1), "gpu", LeafTimes::of_issue(NOW, LIFETIME_MS))
    );
    let changes = book.take_changes();
    let [IdentityChange::Identity(record), IdentityChange::Token(token)] = &changes[..] else {
        panic!("{changes:?}")
    };
    assert_eq!((record.joined_ms, record.issued_ms, record.ends_ms), (NOW + 1, NOW, NOW + DAY));
    assert_eq!((record.refused_before_ms, &*record.pool, record.root), (NOW, "gpu", fingerprint(1)));
    assert_eq!(token.terms.uses_left, 0);
    assert_eq!(book.take_changes(), []);
    let again = book.join(&asked("gpus", &identity("agent/gpu-2"), 0), at(NOW));
    assert_eq!(again, Err(JoinRefusal::UsedUp.into()));
    let unknown = book.join(&asked("x", &identity("agent/n1"), 0), at(NOW));
    assert_eq!(unknown, Err(IssueRefusal::NoSuchToken));
    assert_eq!(book.take_changes(), [], "a refusal changes nothing");
}

#[test]
fn a_name_is_held_until_its_leaf_ended_long_ago() {
    let mut book = with_tokens(10);
    join(&mut book, "agent/n1", NOW).unwrap();
    let taken = |book: &mut IdentityBook, key, now_ms| {
        book.tokens.get_mut("agents").unwrap().terms.expires_ms = u64::MAX;
        matches!(join(book, key, now_ms), Err(IssueRefusal::Join(JoinRefusal::NameTaken { .. })))
    };
    for key in ["agent/n1", "agent/n*", "agent/*"] {
        assert!(taken(&mut book.clone(), key, NOW), "{key}");
        assert!(
            taken(&mut book.clone(), key, NOW + 31 * DAY - 1),
            "{key}: it renews itself when it comes back"
        );
        assert!(!taken(&mut book.clone(), key, NOW + 31 * DAY), "{key}");
    }
    assert!(!taken(&mut book.clone(), "agent/n2", NOW) && !taken(&mut book, "agent/n11*", NOW));
}

#[test]
fn an_allowed_name_is_joined_once_and_ends_older_leaves() {
    let mut book = with_tokens(10);
    let first = join(&mut book, "agent/n1", NOW).unwrap();
    allow(&mut book, "agent/n1");
    assert_eq!(standing(&book, &first, NOW), LeafStanding::Valid, "until somebody joins");
    // Within the same second.
    let second = join(&mut book, "agent/n1", NOW + 1).unwrap();
    assert_eq!(standing(&book, &first, NOW + 1), LeafStanding::Refused(LeafRefusal::Superseded));
    assert_eq!(standing(&book, &second, NOW + 1), LeafStanding::Valid);
    let renewed = book.renew(&first.identity, first.times, at(NOW + 2)).unwrap_err();
    assert!(matches!(renewed, IssueRefusal::Leaf { why: LeafRefusal::Superseded, .. }), "{renewed}");
    assert!(matches!(join(&mut book, "agent/n1", NOW + 2), Err(IssueRefusal::Join(_))), "once");
}

#[test]
fn a_prefix_takes_over_the_names_that_are_allowed() {
    let mut book = with_tokens(10);
    let one = join(&mut book, "agent/sim-1", NOW).unwrap();
    let two = join(&mut book, "agent/sim-2", NOW).unwrap();
    allow(&mut book, "agent/sim-1");
    let refusal = join(&mut book, "agent/sim-*", NOW).unwrap_err();
    assert_eq!(
        refusal,
        JoinRefusal::NameTaken { asked: "agent/sim-*".into(), taken: "agent/sim-2".into() }.into()
    );
    allow(&mut book, "agent/sim-2");
    let all = join(&mut book, "agent/sim-*", NOW).unwrap();
    for old in [&one, &two] {
        assert_eq!(standing(&book, old, NOW), LeafStanding::Refused(LeafRefusal::Superseded));
    }
    assert_eq!(standing(&book, &all, NOW), LeafStanding::Valid);
    let refusal = join(&mut book, "agent/sim-1", NOW + DAY).unwrap_err();
    assert_eq!(refusal, IssueRefusal::Join(JoinRefusal::Expired));
}

#[test]
fn a_revoked_name_is_nobodys_until_it_is_allowed() {
    let mut book = with_tokens(10);
    let own = identity("state/main");
    let leaf = join(&mut book, "agent/n1", NOW).unwrap();
    book.revoke(&leaf.identity, &own).unwrap();
    book.take_changes();
    assert_eq!(standing(&book, &leaf, NOW), LeafStanding::Refused(LeafRefusal::Revoked));
    for key in ["agent/n1", "agent/n*"] {
        let refusal = join(&mut book, key, NOW).unwrap_err();
        assert_eq!(refusal, IssueRefusal::Revoked { taken: "agent/n1".to_owned() });
    }
    let renewed = book.renew(&leaf.identity, leaf.times, at(NOW)).unwrap_err();
    assert!(matches!(renewed, IssueRefusal::Leaf { why: LeafRefusal::Revoked, .. }), "{renewed}");
    assert_eq!(book.take_changes(), []);
    allow(&mut book, "agent/n1");
    assert_eq!(
        standing(&book, &leaf, NOW),
        LeafStanding::Refused(LeafRefusal::Revoked),
        "allowed is not joined"
    );
    let next = join(&mut book, "agent/n1", NOW).unwrap();
    assert_eq!(standing(&book, &leaf, NOW), LeafStanding::Refused(LeafRefusal::Superseded));
    assert_eq!(standing(&book, &next, NOW), LeafStanding::Valid);
    // And again, before a second has passed.
    book.revoke(&leaf.identity, &own).unwrap();
    allow(&mut book, "agent/n1");
    let last = join(&mut book, "agent/n1", NOW).unwrap();
    assert_eq!(standing(&book, &next, NOW), LeafStanding::Refused(LeafRefusal::Superseded));
    assert_eq!(standing(&book, &last, NOW), LeafStanding::Valid);
}

#[test]
fn refusals_of_administrators_say_what_is_there() {
    let mut book = with_tokens(10);
    let own = identity("state/main");
    book.issue_own(&own, at(NOW));
    join(&mut book, "agent/sim-*", NOW).unwrap();
    join(&mut book, "agent/sim-1", NOW).unwrap_err();
    let text = |refusal: BookRefusal| refusal.to_string();
    assert_eq!(
        text(book.revoke(&own, &own).unwrap_err()),
        "state/main is state's own identity: it can be neither revoked nor given to others; stop state to end it"
    );
    assert_eq!(book.allow(&own, &own), Err(BookRefusal::Own { key: own.key() }));
    let nobody = book.revoke(&identity("agent/sim-1"), &own).unwrap_err();
    assert_eq!(text(nobody), "agent/sim-1 has no identity; agent/sim-* speaks for it");
    let unknown = book.allow(&identity("scheduler/s1"), &own).unwrap_err();
    assert_eq!(text(unknown), "scheduler/s1 has no identity");
    assert_eq!(text(book.delete_token("x").unwrap_err()), "there is no join token x");
}

#[test]
fn a_renewal_keeps_the_holder_and_its_older_leaf() {
    let mut book = with_tokens(10);
    let first = join(&mut book, "agent/n1", NOW).unwrap();
    for n in 0..1_000 {
        // However often it renews, its leaves are not issued in the future.
        let next = book.renew(&first.identity, first.times, at(NOW + 8 * 3_600_000 + n)).unwrap();
        assert_eq!(next.times.issued_ms(), NOW + 8 * 3_600_000);
        assert_eq!(standing(&book, &first, NOW + DAY - 1), LeafStanding::Valid);
    }
    // An expired one renews, for 30 days.
    let late = book.renew(&first.identity, first.times, at(NOW + 20 * DAY)).unwrap();
    assert_eq!(standing(&book, &late, NOW + 20 * DAY), LeafStanding::Valid);
    let gone = book.renew(&first.identity, first.times, at(NOW + 31 * DAY)).unwrap_err();
    assert!(matches!(gone, IssueRefusal::Leaf { why: LeafRefusal::LongExpired, .. }), "{gone}");
    // A clock that goes back issues no leaf that is older than the last.
    let back = book.renew(&first.identity, late.times, at(NOW + 19 * DAY)).unwrap();
    assert_eq!(back.times.issued_ms(), NOW + 20 * DAY);
}

#[test]
fn who_joined_after_the_backup_stays_who_it_is() {
    let mut book = with_tokens(10);
    let restored = book.clone();
    let leaf = join(&mut book, "agent/n1", NOW).unwrap();
    let mut book = restored.clone();
    let next = book.renew(&leaf.identity, leaf.times, at(NOW + 1)).unwrap();
    for held in [&leaf, &next] {
        assert_eq!(standing(&book, held, NOW + 1), LeafStanding::Valid);
    }
    // Whoever has the name meanwhile keeps it.
    let mut book = restored.clone();
    let other = join(&mut book, "agent/n1", NOW + 1_000).unwrap();
    let refusal = book.renew(&leaf.identity, leaf.times, at(NOW + 1_001)).unwrap_err();
    assert!(matches!(refusal, IssueRefusal::Leaf { why: LeafRefusal::Superseded, .. }), "{refusal}");
    assert_eq!(standing(&book, &other, NOW + 1_001), LeafStanding::Valid);
    let mut book = restored;
    join(&mut book, "agent/n*", NOW + 1_000).unwrap();
    let refusal = book.renew(&leaf.identity, leaf.times, at(NOW + 1_001)).unwrap_err();
    assert!(matches!(refusal, IssueRefusal::Join(JoinRefusal::NameTaken { .. })), "{refusal}");
}

#[test]
fn state_issues_its_own_leaf_again_and_again() {
    let mut book = book();
    let own = identity("state/main");
    let first = book.issue_own(&own, at(NOW));
    let next = book.issue_own(&own, at(NOW + 40 * DAY));
    assert_eq!(standing(&book, &first, NOW + 1), LeafStanding::Valid);
    assert_eq!(standing(&book, &next, NOW + 40 * DAY), LeafStanding::Valid);
    assert_eq!(book.take_changes().len(), 1);
}

#[test]
fn tokens_have_bounds() {
    let mut book = book();
    let hash = [7; 32];
    for bad in [
        JoinTokenAsk { ttl_ms: TOKEN_TTL_MS_MAX + 1, ..ask(Role::Agent, "", 1) },
        ask(Role::Agent, "", TOKEN_USES_MAX + 1),
    ] {
        assert_eq!(book.create_token("t".to_owned(), hash, bad, NOW).unwrap_err(), BookRefusal::TooMuch);
    }
    let pool = JoinTokenAsk { pool: "p".to_owned(), ..ask(Role::Binder, "", 1) };
    let refusal = book.create_token("t".to_owned(), hash, pool, NOW).unwrap_err();
    assert_eq!(refusal, BookRefusal::PoolOfService { role: Role::Binder });
    for n in 0..N_JOIN_TOKENS_MAX {
        book.create_token(format!("t{n}"), hash, ask(Role::Agent, "", 1), NOW).unwrap();
    }
    let known = book.create_token("t1".to_owned(), hash, ask(Role::Agent, "", 1), NOW).unwrap_err();
    assert_eq!(known, BookRefusal::KnownToken { id: "t1".to_owned() });
    let many = book.create_token("u".to_owned(), hash, ask(Role::Agent, "", 1), NOW).unwrap_err();
    assert_eq!(many, BookRefusal::TooManyTokens);
    book.take_changes();
    // Those that have expired make room.
    book.create_token("u".to_owned(), hash, ask(Role::Agent, "", 1), NOW + 3_600_000).unwrap();
    assert_eq!(book.tokens().count(), 1);
    assert_eq!(book.take_changes().len(), N_JOIN_TOKENS_MAX + 1);
    book.delete_token("u").unwrap();
    assert_eq!(book.take_changes(), [IdentityChange::TokenGone("u".to_owned())]);
}

#[test]
fn a_prefix_ends_as_many_as_fit_one_transaction() {
    let mut book = with_tokens(10);
    for n in 0..=N_ENDED_MAX {
        book.issue_first(&identity(&format!("agent/sim-{n}")), "", None, &[], at(NOW));
        allow(&mut book, &format!("agent/sim-{n}"));
    }
    let refusal = join(&mut book, "agent/sim-*", NOW).unwrap_err();
    assert_eq!(refusal, IssueRefusal::TooManyNames { asked: "agent/sim-*".into(), n: N_ENDED_MAX + 1 });
    join(&mut book, "agent/sim-1*", NOW).unwrap();
}

#[test]
fn names_that_fit_no_record_are_refused() {
    let mut book = with_tokens(10);
    let long = format!("agent/{}", "n".repeat(248));
    assert_eq!(join(&mut book, &long, NOW), Err(IssueRefusal::Long { len: 248, max: 247 }));
    join(&mut book, &format!("agent/{}", "n".repeat(247)), NOW).unwrap();
}

#[test]
fn a_root_signs_once_everybody_trusts_it_and_goes_when_nobody_uses_it() {
    let mut book = with_tokens(10);
    let leaf = join(&mut book, "agent/n1", NOW).unwrap();
    let own = book.issue_own(&identity("state/main"), at(NOW));
    book.take_changes();
    book.rotate(next_root(2, NOW), NOW).unwrap();
    assert!(matches!(&book.take_changes()[..], [IdentityChange::Trust(trust)] if trust.roots.len() == 2));
    let under_way = book.rotate(next_root(3, NOW), NOW).unwrap_err();
    assert_eq!(under_way, RotationRefusal::UnderWay { root: fingerprint(1), n_left: 2 });
    assert_eq!(book.rotate(next_root(2, NOW), NOW), Err(RotationRefusal::Known { root: fingerprint(2) }));
    // It does not sign yet.
    let signs_ms = NOW + rotation::ROOT_LEAD_MS;
    assert!(!rotation::must_renew(book.trust(), leaf.root, signs_ms - 1));
    assert_eq!(book.renew(&leaf.identity, leaf.times, at(signs_ms - 1)).unwrap().root, fingerprint(1));
    assert_eq!(look(&mut book, signs_ms - 1, 0), []);
    // Now it does.
    assert!(rotation::must_renew(book.trust(), leaf.root, signs_ms));
    assert_eq!(book.renew(&leaf.identity, leaf.times, at(signs_ms)).unwrap().root, fingerprint(2));
    assert_eq!((look(&mut book, signs_ms, 0), book.n_with_leaving_root(signs_ms)), (Vec::new(), 1));
    assert_eq!(book.issue_own(&own.identity, at(signs_ms)).root, fingerprint(2));
    // A holder that did not receive its new leaf asks again with the old one.
    assert_eq!(look(&mut book, signs_ms, 0), []);
    assert_eq!(look(&mut book, signs_ms, ROOT_UNUSED_MS - 1), []);
    assert_eq!(look(&mut book, signs_ms, ROOT_UNUSED_MS), [fingerprint(1)]);
    assert!(!rotation::must_renew(book.trust(), fingerprint(2), signs_ms));
    book.rotate(next_root(3, signs_ms), signs_ms).unwrap();
}

#[test]
fn tokens_of_persons_count_for_twelve_hours_after_a_rotation() {
    let mut book = book();
    book.rotate(next_root(2, NOW), NOW).unwrap();
    let ends_ms = NOW + rotation::ROOT_LEAD_MS + rotation::PERSON_TOKEN_MS;
    let ends: Vec<Option<u64>> = book.trust().person_keys.iter().map(|key| key.ends_ms).collect();
    assert_eq!(ends, [Some(ends_ms), None]);
    look(&mut book, ends_ms - 1, 0);
    assert_eq!(book.trust().person_keys.len(), 2);
    book.take_changes();
    look(&mut book, ends_ms, 0);
    assert!(
        matches!(&book.take_changes()[..], [IdentityChange::Trust(trust)] if trust.person_keys == [person_key(2)])
    );
}

/// A reader of what is committed has the same book as the writer.
#[test]
fn changes_make_the_same_book_elsewhere() {
    let mut book = with_tokens(3);
    let mut reader = book.clone();
    join(&mut book, "agent/n1", NOW).unwrap();
    join(&mut book, "agent/n2", NOW).unwrap();
    book.revoke(&identity("agent/n1"), &identity("state/main")).unwrap();
    book.rotate(next_root(2, NOW), NOW).unwrap();
    book.delete_token("schedulers").unwrap();
    tidy(&mut book, NOW + 61 * DAY);
    let changes = book.take_changes();
    assert_eq!(changes.len(), 5);
    changes.into_iter().for_each(|change| reader.apply(change));
    assert!(reader.all().eq(book.all()));
    let mut empty = self::book();
    book.all().for_each(|change| empty.apply(change));
    assert!(empty.all().eq(book.all()));
}

#[test]
fn a_root_waits_for_leaves_that_may_renew_and_for_no_others() {
    let mut book = with_tokens(10);
    let lost = join(&mut book, "agent/n1", NOW).unwrap();
    let later_ms = NOW + rotation::ROOT_LEAD_MS;
    book.rotate(next_root(2, NOW), NOW).unwrap();
    assert_eq!(look(&mut book, later_ms, 0), []);
    assert_eq!(tidy(&mut book.clone(), NOW + 31 * DAY - 1), []);
    assert_eq!(look(&mut book.clone(), NOW + 31 * DAY, 0), [], "the clock may be wrong");
    assert_eq!(tidy(&mut book.clone(), NOW + 31 * DAY), [fingerprint(1)]);
    book.revoke(&lost.identity, &identity("state/main")).unwrap();
    assert_eq!(look(&mut book, later_ms, 0), []);
    let under_way = book.rotate(next_root(3, later_ms), later_ms).unwrap_err().to_string();
    assert!(under_way.contains("dropped within minutes"), "{under_way}");
    assert_eq!(look(&mut book, later_ms, ROOT_UNUSED_MS), [fingerprint(1)]);
}

#[test]
fn what_ended_long_ago_is_forgotten() {
    let mut book = with_tokens(10);
    let leaf = join(&mut book, "agent/n1", NOW).unwrap();
    join(&mut book, "agent/n2", NOW).unwrap();
    book.revoke(&leaf.identity, &identity("state/main")).unwrap();
    book.take_changes();
    tidy(&mut book, NOW + 61 * DAY - 1);
    assert_eq!(book.take_changes(), []);
    tidy(&mut book, NOW + 61 * DAY);
    assert_eq!(
        book.take_changes(),
        [IdentityChange::IdentityGone("agent/n2".to_owned())],
        "a revocation stays"
    );
}

#[test]
fn a_join_whose_answer_was_lost_is_answered_again() {
    let mut book = with_tokens(1);
    let (n1, n2) = (identity("agent/n1"), identity("agent/n2"));
    let first = book.join(&asked("agents", &n1, 1), at(NOW)).unwrap();
    book.take_changes();
    let again = book.join(&asked("agents", &n1, 1), at(NOW + 60_000)).unwrap();
    assert_eq!((&again.identity, again.times.issued_ms()), (&n1, NOW + 60_000));
    for leaf in [&first, &again] {
        assert_eq!(standing(&book, leaf, NOW + 60_000), LeafStanding::Valid, "they are of one holder");
    }
    let changes = book.take_changes();
    assert!(
        matches!(&changes[..], [IdentityChange::Identity(_)]),
        "the token is not used again: {changes:?}"
    );
    // With another key, for another name or with another token it is another join.
    book.create_token("more".to_owned(), [7; 32], ask(Role::Agent, "*", 9), NOW).unwrap();
    for other in [asked("agents", &n1, 2), asked("agents", &n2, 1)] {
        assert_eq!(book.join(&other, at(NOW)), Err(JoinRefusal::UsedUp.into()));
    }
    let other = book.join(&asked("more", &n1, 1), at(NOW)).unwrap_err();
    assert!(matches!(other, IssueRefusal::Join(JoinRefusal::NameTaken { .. })), "{other}");
    // Not once the token has expired, and not once the holder has lost the name.
    let expired = book.clone().join(&asked("agents", &n1, 1), at(NOW + 3_600_000));
    assert_eq!(expired, Err(JoinRefusal::Expired.into()));
    let mut revoked = book.clone();
    revoked.revoke(&n1, &identity("state/main")).unwrap();
    assert_eq!(revoked.join(&asked("agents", &n1, 1), at(NOW)), Err(JoinRefusal::UsedUp.into()));
    allow(&mut book, "agent/n1");
    book.join(&asked("more", &identity("agent/n*"), 3), at(NOW)).unwrap();
    assert_eq!(book.join(&asked("agents", &n1, 1), at(NOW)), Err(JoinRefusal::UsedUp.into()));
}

#[test]
fn tokens_that_are_used_up_make_room() {
    let mut book = book();
    for n in 0..N_JOIN_TOKENS_MAX {
        book.create_token(format!("t{n:04}"), [7; 32], ask(Role::Agent, "", 1), NOW + n as u64).unwrap();
    }
    for n in [7, 3] {
        let name = identity(&format!("agent/n{n}"));
        book.join(&asked(&format!("t{n:04}"), &name, n), at(NOW)).unwrap();
    }
    book.take_changes();
    let create = |book: &mut IdentityBook, id: &str| {
        book.create_token(id.to_owned(), [7; 32], ask(Role::Agent, "", 1), NOW + 2_000).map(drop)
    };
    for (made, gone) in [("u1", "t0003"), ("u2", "t0007")] {
        create(&mut book, made).unwrap();
        let changes = book.take_changes();
        let [IdentityChange::TokenGone(id), IdentityChange::Token(new)] = &changes[..] else {
            panic!("{changes:?}")
        };
        assert_eq!((id.as_str(), new.id.as_str()), (gone, made));
    }
    let refusal = create(&mut book, "u3").unwrap_err();
    assert_eq!(refusal, BookRefusal::TooManyTokens);
    assert!(refusal.to_string().contains("godel join-token delete"), "{refusal}");
}

#[test]
fn a_restored_store_takes_no_tokens_of_before() {
    let mut book = with_tokens(10);
    let leaf = join(&mut book, "agent/n1", NOW).unwrap();
    book.take_changes();
    assert!(!book.enter_store(StoreId(1)));
    assert_eq!(book.take_changes(), [], "it is the same store");
    assert!(book.enter_store(StoreId(2)));
    assert_eq!(book.take_changes().len(), 3, "two tokens, and the roots");
    assert_eq!(join(&mut book, "agent/n2", NOW), Err(IssueRefusal::NoSuchToken));
    assert_eq!(standing(&book, &leaf, NOW), LeafStanding::Valid);
    // A book that does not say where it was written is believed.
    let mut unknown = with_tokens(10);
    unknown.trust.store = StoreId(0);
    assert!(!unknown.enter_store(StoreId(2)));
    assert_eq!((unknown.tokens().count(), unknown.trust().store), (2, StoreId(2)));
}

#[test]
fn a_clock_that_is_wrong_for_a_while_ends_nobody() {
    let mut book = with_tokens(10);
    let leaf = join(&mut book, "agent/n1", NOW).unwrap();
    book.rotate(next_root(2, NOW), NOW).unwrap();
    book.take_changes();
    let ahead_ms = NOW + 400 * DAY;
    for monotonic_ms in [0, SURELY_ENDED_MS - 1] {
        assert_eq!(look(&mut book, ahead_ms, monotonic_ms), []);
        assert!(book.identity("agent/n1").is_some());
    }
    // It is set right, and wrong again: that counts from the start.
    look(&mut book, NOW, SURELY_ENDED_MS);
    assert_eq!(look(&mut book, ahead_ms, SURELY_ENDED_MS), []);
    assert_eq!(look(&mut book, ahead_ms, 2 * SURELY_ENDED_MS - 1), []);
    assert!(book.identity("agent/n1").is_some());
    // Whoever renewed while it was ahead gets a leaf that is valid now.
    let early = LeafTimes::of_issue(ahead_ms - DAY, LIFETIME_MS);
    let renewed = book.renew(&leaf.identity, early, at(ahead_ms)).unwrap();
    assert_eq!(standing(&book, &renewed, NOW), LeafStanding::Expired);
    let now = book.renew(&leaf.identity, renewed.times, at(NOW)).unwrap();
    assert_eq!(standing(&book, &now, NOW), LeafStanding::Valid);
    // And once another one has the name, both count no more.
    allow(&mut book, "agent/n1");
    join(&mut book, "agent/n1", NOW).unwrap();
    for old in [&leaf, &renewed, &now] {
        assert_eq!(standing(&book, old, NOW), LeafStanding::Refused(LeafRefusal::Superseded));
    }
}

#[test]
fn not_all_who_are_gone_are_forgotten_at_once() {
    let mut book = book();
    let all = (0..=N_FORGOTTEN_MAX).map(|n| identity(&format!("agent/n{n}")));
    all.for_each(|one| drop(book.issue_first(&one, "", None, &[], at(NOW))));
    look(&mut book, NOW + 61 * DAY, 0);
    book.take_changes();
    for n_gone in [N_FORGOTTEN_MAX, 1, 0] {
        look(&mut book, NOW + 61 * DAY, SURELY_ENDED_MS);
        assert_eq!(book.take_changes().len(), n_gone);
    }
}

#[test]
fn state_is_not_kept_from_its_own_name() {
    let mut book = book();
    let (own, other) = (identity("state/main"), identity("state/other"));
    let leaf = book.issue_own(&own, at(NOW));
    // While it is called otherwise.
    book.revoke(&own, &other).unwrap();
    assert_eq!(standing(&book, &leaf, NOW), LeafStanding::Refused(LeafRefusal::Revoked));
    let next = book.issue_own(&own, at(NOW));
    assert_eq!(standing(&book, &next, NOW), LeafStanding::Valid);
    assert_eq!(standing(&book, &leaf, NOW), LeafStanding::Refused(LeafRefusal::Superseded));
}

#[test]
fn overlapping_names_are_found_by_their_keys() {
    let names = ["n", "n1", "n1*", "n11", "n11*", "n2", "n2*", "*", "m", "n*"];
    for asked in names {
        for known in names {
            let mut book = book();
            let known = identity(&format!("agent/{known}"));
            book.issue_first(&known, "", None, &[], at(NOW));
            book.issue_own(&identity("state/n1"), at(NOW));
            let asked = identity(&format!("agent/{asked}"));
            let overlaps = asked.agent_names().unwrap().overlaps(&known.agent_names().unwrap());
            let found = book.overlapping(&asked);
            assert_eq!(found, if overlaps { vec![known.key()] } else { Vec::new() }, "{asked} and {known}");
        }
    }
    assert_eq!(with_tokens(1).overlapping(&identity("scheduler/s1")), [""; 0]);
}
