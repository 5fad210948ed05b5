//! Rows, ordinals, and a naive count of both.

use proptest::prelude::*;

use super::*;

fn key(priority: i32, memory: i64) -> AskKey {
    let group = AskGroup {
        priority,
        execution: ExecutionType::Guaranteed,
        capability: [("memory".to_owned(), memory)].into(),
        label: String::new(),
    };
    AskKey { group, allocation_request_id: 0 }
}

fn row(key: &AskKey, name: &str, n: u32) -> AskRow {
    AskRow { key: key.clone(), name: name.to_owned(), n, relax_locality: true }
}

#[test]
fn rows_are_states_and_not_changes() {
    let (small, large) = (key(1, 1), key(1, 2));
    let mut asks = AskTable::default();
    assert_eq!(asks.update(&[row(&small, ANY, 3), row(&large, ANY, 1)]), Ok(true));
    assert_eq!(asks.settle().add, [(small.clone(), 3), (large.clone(), 1)]);
    asks.opened(&small, [1, 2, 3]);
    asks.opened(&large, [4]);
    assert!(asks.settle().is_empty());
    assert_eq!(asks.update(&[row(&small, ANY, 3)]), Ok(false), "the same again is no change");
    assert!(asks.settle().is_empty());
    // More of one kind, less of the other.
    assert_eq!(asks.update(&[row(&small, ANY, 5), row(&large, ANY, 0)]), Ok(true));
    assert_eq!(asks.settle(), AskChanges { add: vec![(small.clone(), 2)], release: vec![4] });
    assert_eq!(asks.forget(4), Some(large));
    assert_eq!(asks.update(&[row(&small, ANY, 1)]), Ok(true));
    assert_eq!(asks.settle(), AskChanges { add: Vec::new(), release: vec![3, 2] });
}

#[test]
fn places_count_down_the_rows_that_named_them() {
    let key = key(1, 1);
    let mut asks = AskTable::default();
    let rows = [row(&key, "n1", 1), row(&key, "r1", 2), row(&key, ANY, 4)];
    assert_eq!(asks.update(&rows), Ok(true));
    asks.opened(&key, 1..=4);
    let place =
        |asks: &mut AskTable, ordinal, node| asks.placed(ordinal, node, "r1").map(|(_, locality)| locality);
    assert_eq!(place(&mut asks, 1, "n1"), Some(AskLocality::Node));
    assert_eq!(place(&mut asks, 1, "n1"), None, "it does not wait any more");
    assert_eq!(place(&mut asks, 2, "n1"), Some(AskLocality::Rack));
    assert_eq!(place(&mut asks, 3, "n1"), Some(AskLocality::OffSwitch));
    assert_eq!((asks.n_wanted(&key), asks.preferred(&key)), (1, Vec::new()));
    assert!(asks.settle().is_empty());
    // One that ends is not asked for again by itself.
    assert_eq!(asks.forget(1), Some(key));
    assert!(asks.settle().is_empty());
    assert_eq!(asks.forget(9), None);
}

#[test]
fn what_is_lost_before_its_master_knows_of_it_is_asked_for_again() {
    let key = key(1, 1);
    let rows = [row(&key, "n1", 1), row(&key, "r1", 1), row(&key, ANY, 2)];
    // (the first ordinal is fetched, then lost; what is wanted, and where)
    for (is_fetched, n_wanted, preferred) in [(false, 2, vec!["n1", "r1"]), (true, 1, Vec::new())] {
        let mut asks = AskTable::default();
        asks.update(&rows).unwrap();
        asks.opened(&key, 1..=2);
        asks.placed(1, "n1", "r1").unwrap();
        assert_eq!((asks.n_wanted(&key), asks.preferred(&key)), (1, Vec::new()));
        if is_fetched {
            asks.fetched(1);
        }
        asks.lost(1);
        asks.lost(1);
        asks.forget(1);
        assert_eq!((asks.n_wanted(&key), asks.preferred(&key)), (n_wanted, preferred));
        let add = if is_fetched { Vec::new() } else { vec![(key.clone(), 1)] };
        assert_eq!(asks.settle(), AskChanges { add, release: Vec::new() });
    }
    // With its last row gone, too.
    let mut asks = AskTable::default();
    asks.update(&[row(&key, ANY, 1)]).unwrap();
    asks.opened(&key, [1]);
    asks.placed(1, "n1", "r1").unwrap();
    assert_eq!(asks.wanted().count(), 0);
    asks.lost(1);
    assert_eq!((asks.n_wanted(&key), asks.required(&key)), (1, Vec::new()));
    asks.clear();
    asks.lost(1);
    assert_eq!(asks.wanted().count(), 0);
}

#[test]
fn without_relaxation_only_named_places_do() {
    let key = key(1, 1);
    let strict = |name: &str, n, relax_locality| AskRow { relax_locality, ..row(&key, name, n) };
    let mut asks = AskTable::default();
    asks.update(&[strict("n1", 1, true), strict("r1", 1, false), strict(ANY, 1, false)]).unwrap();
    assert_eq!(asks.required(&key), ["n1", "r1"]);
    asks.update(&[strict(ANY, 1, true)]).unwrap();
    assert!(asks.required(&key).is_empty());
    assert_eq!(asks.preferred(&key), ["n1", "r1"]);
}

#[test]
fn what_is_too_much_is_refused_whole() {
    let (some, nothing) = (key(1, 1), key(1, 0));
    let mut asks = AskTable::default();
    assert_eq!(asks.update(&[row(&some, ANY, 1), row(&nothing, ANY, 1)]), Err(BadAsk::Capability));
    let n = N_CONTAINERS_MAX + 1;
    let refused = asks.update(&[row(&some, ANY, 1), row(&some, "n1", n)]);
    assert_eq!(refused, Err(BadAsk::Containers { name: "n1".to_owned(), n }));
    let many: Vec<AskRow> = (0..=N_ROWS_MAX).map(|idx| row(&some, &format!("n{idx}"), 1)).collect();
    assert_eq!(asks.update(&many), Err(BadAsk::Rows));
    assert_eq!(asks, AskTable::default());
    assert_eq!(asks.update(&many[1..]), Ok(true));
    assert_eq!(asks.update(&many[..1]), Err(BadAsk::Rows));
    assert_eq!(asks.update(&many[1..2]), Ok(false), "what is there may be asked for again");
}

#[test]
fn answers_are_given_in_turn() {
    for (seen, last, expected) in [
        (0, 0, AllocateTurn::Next),
        (0, 1, AllocateTurn::Repeat),
        (1, 1, AllocateTurn::Next),
        (2, 1, AllocateTurn::Wrong { expected: 1 }),
        (0, 2, AllocateTurn::Wrong { expected: 2 }),
        (-1, 0, AllocateTurn::Repeat),
        (i32::MAX, 0, AllocateTurn::Repeat),
        (i32::MAX, i32::MAX, AllocateTurn::Next),
    ] {
        assert_eq!(turn(seen, last), expected, "{seen} of {last}");
    }
    assert_eq!((next_response(7), next_response(i32::MAX)), (8, 0));
}

/// A step of a master or of its cluster.
#[derive(Clone, Debug)]
enum Step {
    Ask(i32, &'static str, u32),
    Settle,
    Place(usize, &'static str),
    End(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let name = prop::sample::select(vec!["n1", "n2", "r1", ANY, ANY, ANY]);
    prop_oneof![
        (0..3, name, 0u32..5).prop_map(|(priority, name, n)| Step::Ask(priority, name, n)),
        Just(Step::Settle),
        (0usize..20, prop::sample::select(vec!["n1", "n2"])).prop_map(|(nth, node)| Step::Place(nth, node)),
        (0usize..20).prop_map(Step::End),
    ]
}

proptest! {
    /// After each settling as many ordinals wait as are wanted, whatever happened.
    #[test]
    fn as_many_wait_as_are_wanted(steps in prop::collection::vec(step(), 0..60)) {
        let mut asks = AskTable::default();
        // Wanted of each priority, counted apart; ordinals with their priority, and those with a place.
        let mut wanted = [0u32; 3];
        let (mut waiting, mut placed): (Vec<(u32, i32)>, Vec<u32>) = (Vec::new(), Vec::new());
        let mut next = 1;
        for step in steps {
            match step {
                Step::Ask(priority, name, n) => {
                    asks.update(&[row(&key(priority, 1), name, n)]).unwrap();
                    if name == ANY {
                        wanted[usize::try_from(priority).unwrap()] = n;
                    }
                }
                Step::Settle => {
                    let changes = asks.settle();
                    for (key, n) in changes.add {
                        asks.opened(&key, next..next + n);
                        waiting.extend((next..next + n).map(|ordinal| (ordinal, key.group.priority)));
                        next += n;
                    }
                    for ordinal in changes.release {
                        prop_assert!(asks.forget(ordinal).is_some());
                        waiting.retain(|(known, _)| *known != ordinal);
                    }
                    prop_assert!(asks.settle().is_empty(), "settled is settled");
                    for (priority, n) in (0..).zip(wanted) {
                        let n_waiting = waiting.iter().filter(|(_, of)| *of == priority).count();
                        prop_assert_eq!(u32::try_from(n_waiting).unwrap(), n);
                    }
                }
                Step::Place(nth, node) if !waiting.is_empty() => {
                    let (ordinal, priority) = waiting.remove(nth % waiting.len());
                    prop_assert!(asks.placed(ordinal, node, "r1").is_some());
                    let n = &mut wanted[usize::try_from(priority).unwrap()];
                    *n = n.saturating_sub(1);
                    placed.push(ordinal);
                }
                Step::End(nth) if !placed.is_empty() => {
                    let ordinal = placed.remove(nth % placed.len());
                    prop_assert!(asks.forget(ordinal).is_some());
                }
                Step::Place(..) | Step::End(_) => {}
            }
        }
        let n_kept: usize = asks.keys.len();
        prop_assert_eq!(n_kept, waiting.len() + placed.len());
    }
}
