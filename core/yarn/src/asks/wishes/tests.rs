//! Random rows: every wish adds up to them, and what is allowed is what YARN allows.

use proptest::prelude::*;

use super::*;

const HOSTS: [(&str, &str); 7] = [
    ("a1", "/a"),
    ("a2", "/a"),
    ("b1", "/b"),
    ("b2", "/b"),
    ("b3", "/b"),
    ("c1", "/c"),
    ("d1", "/default-rack"),
];

fn terms() -> WishTerms {
    let racks = HOSTS.iter().map(|(host, rack)| ((*host).to_owned(), (*rack).to_owned()));
    WishTerms { racks: Arc::new(racks.collect()), ..WishTerms::default() }
}

fn rows(given: &[(&str, u32, bool)]) -> RequestRows {
    let mut rows = RequestRows::default();
    for (name, n, relax_locality) in given {
        rows.put(name, PlaceRow { n: *n, relax_locality: *relax_locality });
    }
    rows
}

/// Wishes as `hosts racks strict closed: n`.
fn shown(given: &[(&str, u32, bool)]) -> Vec<String> {
    let joined = |names: &BTreeSet<String>| names.iter().map(String::as_str).collect::<Vec<_>>().join("+");
    let shown = |(wish, n): (AskWish, u32)| {
        let end = if wish.is_strict { " only" } else { "" };
        let closed = joined(&wish.closed_racks);
        let closed = if closed.is_empty() { closed } else { format!(" without {closed}") };
        format!("{}|{}{end}{closed}: {n}", joined(&wish.hosts), joined(&wish.racks))
    };
    wishes(&rows(given), &terms(), 128).into_iter().map(shown).collect()
}

#[test]
fn relaxed_rows_of_hosts_keep_their_numbers() {
    let given = [("a1", 3, true), ("a2", 1, true), ("/a", 4, true), (ANY, 4, true)];
    assert_eq!(shown(&given), ["a1|/a: 3", "a2|/a: 1"]);
    // More are wanted than have a place by name.
    let given = [("a1", 1, true), ("/a", 2, true), (ANY, 4, true)];
    assert_eq!(shown(&given), ["a1|/a: 1", "|/a: 1", "|: 2"]);
    // Each of two containers would have any of three hosts.
    let given = [("a1", 2, true), ("b1", 2, true), ("c1", 2, true), (ANY, 2, true)];
    assert_eq!(shown(&given), ["a1+b1+c1|: 2"]);
    // Racks without a row, and hosts that nobody knows.
    assert_eq!(shown(&[("x", 1, true), ("a1", 1, true), (ANY, 3, true)]), ["a1|: 1", "x|: 1", "|: 1"]);
}

#[test]
fn strict_requests_wait_for_what_the_rows_relax_to() {
    let given = [("a1", 1, true), ("/a", 1, false), (ANY, 1, false)];
    assert_eq!(shown(&given), ["a1| only: 1"], "the rack does not relax");
    let given = [("a1", 1, true), ("/a", 1, true), (ANY, 1, false)];
    assert_eq!(shown(&given), ["a1|/a only: 1"], "the rack relaxes");
    assert_eq!(shown(&[("/a", 2, true), (ANY, 2, false)]), ["|/a only: 2"]);
    // No place does.
    assert_eq!(shown(&[(ANY, 2, false)]), [""; 0]);
    assert_eq!(shown(&[("/a", 1, false), (ANY, 1, false)]), [""; 0]);
    // Numbers are maxima.
    let given = [("a1", 2, true), ("b1", 1, true), (ANY, 4, false)];
    assert_eq!(shown(&given), ["a1| only: 2", "b1| only: 1"]);
    // Anywhere but in the rest of a rack.
    let given = [("a1", 1, true), ("/a", 1, false), (ANY, 2, true)];
    assert_eq!(shown(&given), ["a1| without /a: 1", "| without /a: 1"]);
}

#[test]
fn refused_places_are_not_wished_for() {
    let refused = Arc::new(["a1", "/b"].map(str::to_owned).into());
    let terms = WishTerms { refused, ..terms() };
    let given = [("a1", 1, true), ("a2", 1, true), ("b1", 1, true), ("/b", 2, true), (ANY, 3, false)];
    let given = wishes(&rows(&given), &terms, 9);
    // The one for `a1` waits.
    let hosts = |wish: &AskWish| wish.hosts.iter().cloned().collect::<Vec<_>>();
    let shown: Vec<_> = given.iter().map(|(wish, n)| (hosts(wish), wish.racks.len(), *n)).collect();
    assert!(shown.iter().all(|(_, n_racks, _)| *n_racks == 0), "{shown:?}");
    assert!(
        !shown.iter().any(|(hosts, ..)| hosts.contains(&"a1".to_owned()) || hosts.is_empty()),
        "{shown:?}"
    );
    let (wish, _) = &given[0];
    assert!(!wish.permits("a1", "/a") && !wish.permits("b1", "/b"));
}

#[test]
fn labels_are_those_of_the_row_for_all_else_of_the_application() {
    let mut rows = rows(&[("a1", 1, true), (ANY, 1, true)]);
    let terms = WishTerms { label: "fast".to_owned(), ..terms() };
    let label = |rows: &RequestRows| wishes(rows, &terms, 9)[0].0.label.clone();
    assert_eq!(label(&rows), "fast");
    rows.label = Some("slow".to_owned());
    assert_eq!(label(&rows), "slow");
    rows.label = Some(String::new());
    assert_eq!(label(&rows), "", "asked for without a label");
}

#[test]
fn many_hosts_are_few_wishes_and_strict_ones_leave_none_out() {
    for relax_locality in [true, false] {
        let mut rows = RequestRows::default();
        rows.put(ANY, PlaceRow { n: 900, relax_locality });
        for idx in 0..900 {
            rows.put(&format!("host-{idx:03}"), PlaceRow { n: 1 + idx % 2, relax_locality: true });
        }
        let given = wishes(&rows, &terms(), 20);
        assert!(given.len() <= 21, "{}", given.len());
        assert_eq!(given.iter().map(|(_, n)| n).sum::<u32>(), 900);
        let named: BTreeSet<&String> = given.iter().flat_map(|(wish, _)| &wish.hosts).collect();
        assert_eq!(named.len(), 900);
    }
    // Names that are too long together: those with the greatest numbers stay.
    let mut rows = RequestRows::default();
    rows.put(ANY, PlaceRow { n: 9_000, relax_locality: true });
    for idx in 0..3_000 {
        rows.put(
            &format!("host-{idx:020}"),
            PlaceRow { n: 1 + u32::from(idx == 2_999), relax_locality: true },
        );
    }
    let given = wishes(&rows, &terms(), 128);
    let named: BTreeSet<&String> = given.iter().flat_map(|(wish, _)| &wish.hosts).collect();
    assert!(named.len() < 1_500 && named.contains(&format!("host-{:020}", 2_999)), "{}", named.len());
    assert_eq!(given.iter().map(|(_, n)| n).sum::<u32>(), 9_000);
    // Any of more hosts than one wish may name.
    let mut rows = RequestRows::default();
    rows.put(ANY, PlaceRow { n: 1, relax_locality: true });
    for idx in 0..1_000 {
        rows.put(&format!("h{idx}"), PlaceRow { n: 1, relax_locality: true });
    }
    assert_eq!(wishes(&rows, &terms(), 128)[0].0.hosts.len(), N_PLACES_MAX);
}

#[test]
fn a_long_blacklist_makes_few_wishes() {
    let names = |n: usize| (0..n).map(|idx| format!("host-{idx:04}")).collect::<BTreeSet<String>>();
    assert_eq!(n_wishes_max(1, &names(0)), 128);
    assert_eq!(n_wishes_max(4, &names(0)), 32);
    assert_eq!(n_wishes_max(1, &names(1_000)), 4);
    assert_eq!(n_wishes_max(100, &names(1_000)), 1);
}

/// What YARN says of a node: `LocalityAppPlacementAllocator`, `canDelayTo` and the order of node, rack and off-switch.
fn yarn_permits(rows: &RequestRows, host: &str, rack: &str) -> bool {
    let row = |name: &str| rows.places.get(name);
    let Some(any) = row(ANY) else { return false };
    if row(host).is_some() {
        return true;
    }
    match row(rack) {
        Some(rack) => rack.relax_locality,
        None => any.relax_locality,
    }
}

fn random_rows() -> impl Strategy<Value = RequestRows> {
    let names = ["a1", "a2", "b1", "b2", "b3", "c1", "x1", "/a", "/b", "/default-rack"];
    let row = (prop::sample::select(names.to_vec()), 0u32..6, any::<bool>());
    (prop::collection::vec(row, 0..9), 0u32..8, any::<bool>()).prop_map(|(given, n, relax_locality)| {
        let mut made = rows(&given);
        made.put(ANY, PlaceRow { n, relax_locality });
        made
    })
}

proptest! {
    /// So many containers wish for each name as its row asks for, and no row counts for more than the one above it.
    #[test]
    fn wishes_add_up_to_the_rows(rows in random_rows()) {
        let terms = terms();
        let given = wishes(&rows, &terms, 128);
        let n_wanted = rows.n_wanted();
        let n_of = |is_in: &dyn Fn(&AskWish) -> bool| -> u32 {
            given.iter().filter(|(wish, _)| is_in(wish)).map(|(_, n)| n).sum()
        };
        let is_strict = rows.places.get(ANY).is_some_and(|any| !any.relax_locality);
        if !is_strict {
            prop_assert_eq!(n_of(&|_| true), n_wanted);
        }
        for (name, row) in rows.places.iter().filter(|(name, _)| *name != ANY) {
            let above = terms.racks.get(name).and_then(|rack| rows.places.get(rack)).map_or(n_wanted, |rack| rack.n);
            let expected = row.n.min(above).min(n_wanted);
            if is_rack(name) {
                let expected = if row.relax_locality { expected } else { 0 };
                prop_assert_eq!(n_of(&|wish| wish.racks.contains(name)), expected, "{}", name);
            } else {
                prop_assert_eq!(n_of(&|wish| wish.hosts.contains(name)), expected, "{}", name);
            }
        }
        // A wish for a host is one for its rack.
        for (wish, _) in &given {
            for host in &wish.hosts {
                let rack = terms.racks.get(host).and_then(|rack| rows.places.get_key_value(rack));
                if let Some((rack, row)) = rack {
                    prop_assert!(!row.relax_locality || wish.racks.contains(rack), "{:?}", wish);
                }
            }
        }
    }

    /// A node is allowed for some container where YARN would place one now.
    #[test]
    fn what_is_allowed_is_what_yarn_allows(rows in random_rows(), n_max in 1usize..130) {
        let given = wishes(&rows, &terms(), n_max);
        for (host, rack) in HOSTS.into_iter().chain([("x1", "/e")]) {
            let is_allowed = given.iter().any(|(wish, _)| wish.permits(host, rack));
            prop_assert_eq!(is_allowed, yarn_permits(&rows, host, rack), "{} {}: {:?}", host, rack, given);
        }
    }
}
