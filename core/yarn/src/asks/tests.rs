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
    AskRow { key: key.clone(), name: name.to_owned(), n, relax_locality: true, label: None }
}

/// What is to be added, without the wishes.
fn added(changes: &AskChanges) -> Vec<(AskKey, u32)> {
    changes.add.iter().map(|growth| (growth.key.clone(), growth.n)).collect()
}

/// Settles, and opens what is to be added from an ordinal on. What is to be released.
fn play(asks: &mut AskTable, mut next: u32) -> Vec<u32> {
    let changes = asks.settle();
    for growth in &changes.add {
        asks.opened(growth, next..next + growth.n);
        next += growth.n;
    }
    changes.release.iter().for_each(|ordinal| drop(asks.forget(*ordinal)));
    changes.release
}

/// Where containers of a key wait, as `hosts: n`.
fn waits(asks: &AskTable, key: &AskKey) -> Vec<String> {
    let shown = |(wish, n): (&AskWish, u32)| {
        let names = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join("+");
        let refused = names(&wish.refused);
        let refused = if refused.is_empty() { refused } else { format!(" not {refused}") };
        let label = if wish.label.is_empty() { String::new() } else { format!(" in {}", wish.label) };
        let strict = if wish.is_strict { " only" } else { "" };
        format!("{}{strict}{label}{refused}: {n}", names(&wish.hosts))
    };
    let mut shown: Vec<String> = asks.waiting_wishes(key).into_iter().map(shown).collect();
    shown.sort();
    shown
}

#[test]
fn rows_are_states_and_not_changes() {
    let (small, large) = (key(1, 1), key(1, 2));
    let mut asks = AskTable::default();
    assert_eq!(asks.update(&[row(&small, ANY, 3), row(&large, ANY, 1)]), Ok(true));
    let changes = asks.settle();
    assert_eq!(added(&changes), [(small.clone(), 3), (large.clone(), 1)]);
    asks.opened(&changes.add[0], 1..4);
    asks.opened(&changes.add[1], 4..5);
    assert!(asks.settle().is_empty());
    assert_eq!(asks.update(&[row(&small, ANY, 3)]), Ok(false), "the same again is no change");
    assert!(asks.settle().is_empty());
    // More of one kind, less of the other.
    assert_eq!(asks.update(&[row(&small, ANY, 5), row(&large, ANY, 0)]), Ok(true));
    let changes = asks.settle();
    assert_eq!((added(&changes), &changes.release), (vec![(small.clone(), 2)], &vec![4]));
    assert_eq!(asks.forget(4), Some(large));
    assert_eq!(asks.update(&[row(&small, ANY, 1)]), Ok(true));
    assert_eq!(asks.settle(), AskChanges { add: Vec::new(), release: vec![3, 2] });
    // Those that were being added come too late.
    asks.forget(2);
    asks.forget(3);
    asks.opened(&changes.add[0], 5..7);
    assert_eq!(asks.settle(), AskChanges { add: Vec::new(), release: vec![6, 5] });
}

#[test]
fn places_count_down_the_rows_that_named_them() {
    let key = key(1, 1);
    let mut asks = AskTable::default();
    let rows = [row(&key, "n1", 1), row(&key, "/r1", 2), row(&key, ANY, 4)];
    assert_eq!(asks.update(&rows), Ok(true));
    play(&mut asks, 1);
    let place =
        |asks: &mut AskTable, ordinal, node| asks.placed(ordinal, node, "/r1").map(|(_, locality)| locality);
    assert_eq!(place(&mut asks, 1, "n1"), Some(AskLocality::Node));
    assert_eq!(place(&mut asks, 1, "n1"), None, "it does not wait any more");
    assert_eq!(place(&mut asks, 2, "n1"), Some(AskLocality::Rack));
    assert_eq!(place(&mut asks, 3, "n1"), Some(AskLocality::OffSwitch));
    assert_eq!((asks.n_wanted(&key), waits(&asks, &key)), (1, vec![": 1".to_owned()]));
    assert!(asks.settle().is_empty());
    // One that ends is not asked for again by itself.
    assert_eq!(asks.forget(1), Some(key));
    assert!(asks.settle().is_empty());
    assert_eq!(asks.forget(9), None);
}

#[test]
fn what_is_lost_before_its_master_knows_of_it_is_asked_for_again() {
    let key = key(1, 1);
    let rows = [row(&key, "n1", 1), row(&key, "/r1", 1), row(&key, ANY, 2)];
    // (the first ordinal is fetched, then lost; what waits afterwards)
    for (is_fetched, expected) in [(false, vec![": 1", "n1: 1"]), (true, vec![": 1"])] {
        let mut asks = AskTable::default();
        asks.set_racks(&Arc::new([("n1".to_owned(), "/r1".to_owned())].into()));
        asks.update(&rows).unwrap();
        play(&mut asks, 1);
        let first = asks.keys.keys().copied().find(|ordinal| {
            let of = asks.waiting[&key].iter().find(|of| of.ordinals.contains(ordinal));
            of.is_some_and(|of| !of.wish.hosts.is_empty())
        });
        let first = first.unwrap();
        asks.placed(first, "n1", "/r1").unwrap();
        assert_eq!((asks.n_wanted(&key), waits(&asks, &key)), (1, vec![": 1".to_owned()]));
        if is_fetched {
            asks.fetched(first);
        }
        asks.lost(first);
        asks.lost(first);
        asks.forget(first);
        let released = play(&mut asks, 7);
        assert_eq!(
            (waits(&asks, &key), released),
            (expected.into_iter().map(str::to_owned).collect(), vec![])
        );
    }
    // With its last row gone, too.
    let mut asks = AskTable::default();
    asks.update(&[row(&key, ANY, 1)]).unwrap();
    play(&mut asks, 1);
    asks.placed(1, "n1", "/r1").unwrap();
    assert_eq!(asks.wanted().count(), 0);
    asks.lost(1);
    assert_eq!(asks.n_wanted(&key), 1);
    asks.clear();
    asks.lost(1);
    assert_eq!(asks.wanted().count(), 0);
}

#[test]
fn what_waits_follows_label_places_strictness_and_blacklist() {
    let key = key(1, 1);
    let strict = |row: AskRow| AskRow { relax_locality: false, ..row };
    let mut asks = AskTable::default();
    asks.set_label("fast");
    let mut next = 1;
    let mut after = |asks: &mut AskTable, rows: &[AskRow], add: &[&str], remove: &[&str]| {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let change = BlacklistChange { add: names(add), remove: names(remove) };
        let has_changed = asks.take(rows, &change).unwrap();
        let n_released = play(asks, next).len();
        next += 10;
        (has_changed, n_released, waits(asks, &key))
    };
    let waiting = |text: &str| vec![text.to_owned()];
    assert_eq!(after(&mut asks, &[row(&key, ANY, 2)], &[], &[]), (true, 0, waiting(" in fast: 2")));
    // A blacklist that comes while they wait.
    let found = after(&mut asks, &[], &["h9", "/r9"], &[]);
    assert_eq!(found, (true, 2, waiting(" in fast not /r9+h9: 2")));
    assert_eq!(after(&mut asks, &[], &["h9"], &["h7"]), (false, 0, waiting(" in fast not /r9+h9: 2")));
    assert_eq!(after(&mut asks, &[], &["h8"], &["h9", "/r9", "h8"]), (true, 2, waiting(" in fast: 2")));
    // A place, then a strict one, then none.
    let rows = [row(&key, "h1", 2), row(&key, ANY, 2)];
    assert_eq!(after(&mut asks, &rows, &[], &[]), (true, 2, waiting("h1 in fast: 2")));
    assert_eq!(
        after(&mut asks, &[strict(row(&key, ANY, 2))], &[], &[]),
        (true, 2, waiting("h1 only in fast: 2"))
    );
    assert_eq!(after(&mut asks, &[row(&key, "h1", 0)], &[], &[]), (true, 2, vec![]), "no place is named");
    // A label of its own, and without one.
    let labelled = |label: &str| AskRow { label: Some(label.to_owned()), ..row(&key, ANY, 2) };
    assert_eq!(after(&mut asks, &[labelled("slow")], &[], &[]), (true, 0, waiting(" in slow: 2")));
    assert_eq!(after(&mut asks, &[labelled("")], &[], &[]), (true, 2, waiting(": 2")));
    assert_eq!(after(&mut asks, &[labelled("")], &[], &[]), (false, 0, waiting(": 2")));
    asks.set_label("other");
    assert_eq!(after(&mut asks, &[row(&key, ANY, 2)], &[], &[]), (true, 2, waiting(" in other: 2")));
}

#[test]
fn rows_of_places_belong_to_the_row_of_all_whatever_its_label() {
    let key = key(1, 1);
    let any = AskRow { label: Some("fast".to_owned()), relax_locality: false, ..row(&key, ANY, 1) };
    let mut asks = AskTable::default();
    asks.update(&[row(&key, "h1", 1), any.clone()]).unwrap();
    let growth = asks.settle().add.remove(0);
    assert!(growth.wish.is_strict && growth.wish.hosts.contains("h1"));
    assert_eq!((growth.group().label.as_str(), growth.key), ("fast", key.clone()));
    let of_place = |label: &str| AskRow { label: Some(label.to_owned()), ..row(&key, "h2", 1) };
    assert_eq!(asks.update(&[of_place("fast")]), Ok(true));
    let refused = asks.update(&[of_place("slow")]).unwrap_err();
    assert_eq!(refused, BadAsk::LabelOfPlace { name: "h2".to_owned(), label: "slow".to_owned() });
    assert!(refused.exception().ends_with(".InvalidLabelResourceRequestException"));
    assert_eq!((asks.has_label(&key, "fast"), asks.labels()), (true, BTreeSet::from(["fast"])));
}

#[test]
fn long_lists_are_taken_whole_or_refused() {
    let key = key(1, 1);
    let names = |n: usize| (0..n).map(|idx| format!("host-{idx:05}")).collect::<Vec<String>>();
    let mut asks = AskTable::default();
    let list = |add| BlacklistChange { add, ..BlacklistChange::default() };
    assert_eq!(asks.take(&[], &list(names(1_500))), Ok(true));
    assert_eq!(asks.terms().refused.len(), 1_500);
    let rows = [row(&key, ANY, 1)];
    let refused = asks.take(&rows, &list(names(3_000))).unwrap_err();
    assert_eq!(refused, BadAsk::Blacklist { n: 3_000, n_bytes: 48_000 });
    assert!(refused.to_string().contains("32768") && refused.exception().contains("Blacklist"), "{refused}");
    assert_eq!((asks.terms().refused.len(), asks.n_wanted(&key)), (1_500, 0), "nothing was done");
    assert_eq!(asks.take(&rows, &list(vec![ANY.to_owned()])), Err(BadAsk::BlacklistAny));
    // A strict request in the same way, a relaxed one is taken.
    let places = |n: usize| (0..n).map(|idx| row(&key, &format!("h{idx:05}"), 1)).collect::<Vec<_>>();
    let any = |relax_locality| AskRow { relax_locality, ..row(&key, ANY, 1) };
    assert_eq!(asks.update(&[places(800), vec![any(false)]].concat()), Ok(true));
    let wish = asks.settle().add.remove(0).wish;
    assert_eq!((wish.hosts.len(), wish.refused.len()), (800, 1_500));
    let bad = BadAsk::Places { n: 897, n_bytes: 897 * 12 + 7 };
    assert_eq!(asks.update(&places(897)), Err(bad.clone()));
    assert_eq!(asks.update(&places(896)), Ok(true));
    assert_eq!(asks.update(&[places(897), vec![any(true)]].concat()), Ok(true));
    assert_eq!(asks.update(&[any(false)]), Err(bad));
}

#[test]
fn hosts_that_are_found_in_other_racks_are_wished_for_with_them() {
    let key = key(1, 1);
    let mut asks = AskTable::default();
    asks.update(&[row(&key, "h1", 1), row(&key, "/r1", 1), row(&key, ANY, 2)]).unwrap();
    play(&mut asks, 1);
    assert!(!asks.is_unsettled() || asks.settle().is_empty());
    asks.set_racks(&Arc::new([("h1".to_owned(), "/r1".to_owned())].into()));
    assert!(asks.is_unsettled());
    let racks = |asks: &AskTable| -> Vec<(usize, usize, u32)> {
        let shown = |(wish, n): (&AskWish, u32)| (wish.hosts.len(), wish.racks.len(), n);
        asks.waiting_wishes(&key).into_iter().map(shown).collect()
    };
    play(&mut asks, 5);
    let mut found = racks(&asks);
    found.sort_unstable();
    assert_eq!(found, [(0, 0, 1), (1, 1, 1)]);
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
    let name = prop::sample::select(vec!["n1", "n2", "/r1", ANY, ANY, ANY]);
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
                    for growth in changes.add {
                        let AskGrowth { key, wish: _, n } = growth.clone();
                        asks.opened(&growth, next..next + n);
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
                    prop_assert!(asks.placed(ordinal, node, "/r1").is_some());
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
