//! Conditions of transactions on records that only their writer may know.

use super::*;

/// Who may not write a record may not learn by a condition whether it is there, either.
#[test]
fn conditions_on_identities_are_for_their_writer() {
    let mut pair = Pair::populated();
    pair.ok(Role::Identities, internal(vec![put_identity("agent/n1"), put_join_token("t1")]));
    let on = |kind: v1::Kind, name: &str, revision: u64| v1::Precondition {
        kind: kind.into(),
        key: Some(v1::Key { id: 0, name: name.into() }),
        revision,
    };
    let revision = pair.head.revision().0;
    for condition in [
        on(v1::Kind::Identity, "agent/n1", revision),
        on(v1::Kind::JoinToken, "t1", revision),
        on(v1::Kind::JoinToken, "t2", 0),
        on(v1::Kind::SealedSigner, "default", 0),
        on(v1::Kind::TrustRoots, "default", 0),
    ] {
        let mut txn = leased("dispatcher", 1, 100, vec![put_queue("prod", 1)]);
        txn.preconditions = vec![condition.clone()];
        assert_eq!(reason(pair.run(Role::Leased, txn)), Some(RefusalReason::Forbidden));
        for role in [Role::Agent, Role::Admin, Role::State, Role::Repair] {
            let mut txn = internal(vec![put_node(1)]);
            txn.preconditions = vec![condition.clone()];
            assert_eq!(reason(pair.run(role, txn)), Some(RefusalReason::Forbidden), "{role:?}");
        }
        let mut txn = internal(vec![put_signer()]);
        txn.preconditions = vec![condition];
        let outcome = reason(pair.run(Role::Identities, txn));
        assert!(matches!(outcome, None | Some(RefusalReason::Precondition)), "{outcome:?}");
    }
}
