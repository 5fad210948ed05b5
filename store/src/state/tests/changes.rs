//! Lines of the change log in the transactions of others.

use super::{writes::change, *};

#[test]
fn a_transaction_says_on_whose_behalf_it_is_made() {
    let mut pair = Pair::populated();
    let lines = |pair: &Pair| -> Vec<(u64, v1::ChangeRecord)> {
        let read = |(key, record): (&Key, &Record)| match key {
            Key::Id(id) => (*id, v1::ChangeRecord::decode(record.value.clone()).unwrap()),
            Key::Name(name) => panic!("{name}"),
        };
        pair.head.records_back(v1::Kind::Change, None).map(read).collect()
    };
    // Each writer has its lines, which it may not write as operations; two of one transaction are in order.
    pair.ok(
        Role::Admin,
        raw::TxnRequest { changes: vec![change("ann"), change("bob")], ..internal(vec![put_node(3)]) },
    );
    let first = first_change_id(pair.head.revision());
    let numbered = |change_id, principal| (change_id, v1::ChangeRecord { change_id, ..change(principal) });
    assert_eq!(lines(&pair), [numbered(first + 1, "bob"), numbered(first, "ann")]);
    let (epoch, sequence) = (1, 100);
    let by_leader = |ops, changes| raw::TxnRequest { changes, ..leased("dispatcher", epoch, sequence, ops) };
    pair.ok(Role::Leased, by_leader(vec![put_unit(4)], vec![change("eve")]));
    let next = first_change_id(pair.head.revision());
    assert_eq!(lines(&pair)[0], numbered(next, "eve"));
    // The same transaction again is the same one.
    pair.ok(Role::Leased, by_leader(vec![put_unit(4)], vec![change("eve")]));
    assert_eq!(lines(&pair).len(), 3);
    let before = pair.head.records_back(v1::Kind::Change, Some(&Key::Id(next))).count();
    assert_eq!(before, 2);
    // What is refused leaves none.
    let refused =
        raw::TxnRequest { changes: vec![change("ann")], ..internal(vec![delete(v1::Kind::NodeSpec, 77)]) };
    assert_eq!(reason(pair.run(Role::Admin, refused)), Some(RefusalReason::RowConflict));
    let alone = raw::TxnRequest { changes: vec![change("ann")], ..internal(Vec::new()) };
    assert_eq!(reason(pair.run(Role::Admin, alone.clone())), Some(RefusalReason::Invalid));
    let many = raw::TxnRequest { changes: vec![change("ann"); 1_025], ..internal(Vec::new()) };
    assert_eq!(reason(pair.run(Role::Changes, many)), Some(RefusalReason::Invalid));
    assert_eq!(lines(&pair).len(), 3);
    // The log alone has lines without a transaction, and removes them.
    pair.ok(Role::Changes, alone);
    pair.ok(
        Role::Changes,
        internal(vec![delete(v1::Kind::Change, first), delete(v1::Kind::Change, first + 1)]),
    );
    assert_eq!(lines(&pair).len(), 2);
}
