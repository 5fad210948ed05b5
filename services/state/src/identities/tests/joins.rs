//! Joins that are repeated, that ask for hosts, and that end many identities.

use godel_identity::book::{IssueClock, JoinAsk};

use super::*;

#[tokio::test]
async fn a_join_is_repeated_until_its_answer_arrives() {
    let fixture = Fixture::new().await;
    let token = fixture.token("agent", "", 1).await;
    let key = LeafKey::generate().unwrap();
    fixture.join_with(&token, "n1", &key, &[]).await.unwrap();
    // Also after a restart.
    let fixture = fixture.restart().await;
    fixture.wait(60_000);
    let leaf = fixture.join_with(&token, "n1", &key, &[]).await.unwrap().leaf.unwrap();
    assert_eq!((leaf.identity.as_str(), leaf.issued_ms), ("agent/n1", NOW + 60_000));
    assert_eq!(fixture.standing(&leaf), LeafStanding::Valid);
    is_refused(fixture.join(&token, "n1").await, Code::Unauthenticated, reason::JOIN_REFUSED);
    is_refused(fixture.join_with(&token, "n2", &key, &[]).await, Code::Unauthenticated, reason::JOIN_REFUSED);
    fixture.wait(3_600_000);
    is_refused(fixture.join_with(&token, "n1", &key, &[]).await, Code::Unauthenticated, reason::JOIN_REFUSED);
}

#[tokio::test]
async fn no_service_gets_a_leaf_for_the_hosts_of_state() {
    let fixture = Fixture::new().await;
    let token = fixture.token("scheduler", "", 5).await;
    let key = LeafKey::generate().unwrap();
    let says = |leaf: &v1::Leaf, host: &str| {
        leaf.certificate.windows(host.len()).any(|bytes| bytes.eq_ignore_ascii_case(host.as_bytes()))
    };
    let joined = fixture.join_with(&token, "s1", &key, &["host-of-s1", "State.example.com"]).await.unwrap();
    let leaf = joined.leaf.clone().unwrap();
    assert!(says(&leaf, "host-of-s1") && !says(&leaf, "state.example.com"));
    let mut request = Request::new(v1::RenewIdentityRequest {
        csr: key.request().unwrap(),
        hosts: vec!["state.example.com".to_owned()],
    });
    request.extensions_mut().insert(Caller::Member { role: Role::Scheduler, name: "s1".to_owned() });
    request.extensions_mut().insert(presented(&joined.leaf.unwrap()).times);
    let renewed = fixture.rpc.renew_identity(request).await.unwrap().into_inner().leaf.unwrap();
    assert!(!says(&renewed, "state.example.com"));
    // A second state is reached like the first.
    let token = fixture.token("state", "", 1).await;
    let other = fixture.join_with(&token, "other", &key, &["state.example.com"]).await.unwrap();
    assert!(says(&other.leaf.unwrap(), "state.example.com"));
}

/// Two joins of prefixes that each end as many identities as one join may: they are written one after the other.
#[tokio::test]
async fn joins_that_end_many_identities_fit_their_commits() {
    let fixture = Fixture::new().await;
    let ledger = &fixture.identities.ledger;
    let (cluster, own) = (fixture.identities.own.cluster().clone(), fixture.identities.own.clone());
    let clock = IssueClock { now_ms: ledger.now_ms(), lifetime_ms: 86_400_000 };
    let token = fixture.token("agent", "*", 10_000).await;
    let id = token.split('.').nth(2).unwrap().to_owned();
    // The longest records that there may be, nearly.
    let name = |group: &str, n: usize| format!("{group}-{}-{n}", "x".repeat(200));
    for (group, n) in ["a", "b"].into_iter().flat_map(|group| (0..10).map(move |n| (group, n))) {
        let (cluster, own, id) = (cluster.clone(), own.clone(), id.clone());
        let filled = ledger.decide(move |draft| {
            for n in n * 100..(n + 1) * 100 {
                let identity = Identity::new(cluster.clone(), Role::Agent, &name(group, n)).unwrap();
                let ask = JoinAsk { token: id.clone(), identity: identity.clone(), key_hash: [7; 32] };
                draft.book.join(&ask, clock).unwrap();
                draft.book.allow(&identity, &own).unwrap();
            }
            Ok(())
        });
        filled.await.unwrap();
    }
    let joins = ["a-*", "b-*"].map(|prefix| {
        let identity = Identity::new(cluster.clone(), Role::Agent, prefix).unwrap();
        let ask = JoinAsk { token: id.clone(), identity, key_hash: [9; 32] };
        ledger.decide(move |draft| Ok(draft.book.join(&ask, clock).unwrap()))
    });
    let [one, two] = joins;
    let (one, two) = tokio::join!(one, two);
    assert_eq!(
        (one.unwrap().identity.key(), two.unwrap().identity.key()),
        ("agent/a-*".into(), "agent/b-*".into())
    );
}
