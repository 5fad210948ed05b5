use super::*;

fn call(principal: &str, method: &str) -> CallCause {
    CallCause::new(principal, method, "10.0.0.1:7")
}

fn refuse(notes: &mut CallNotes, principal: &str, method: &str, now_ms: u64) {
    notes.note(refused_call(call(principal, method), "role", now_ms), now_ms);
}

/// Lines as principal, method and number of calls.
fn taken(notes: &mut CallNotes, n_max: usize, now_ms: u64) -> Vec<String> {
    let lines = notes.take(n_max, now_ms);
    let text = |line: ChangeLine| format!("{} {} {}", line.call.principal, line.call.method, line.n_calls);
    lines.into_iter().map(text).collect()
}

#[test]
fn calls_alike_are_one_line_and_stay_quiet_for_a_while() {
    let mut notes = CallNotes::new(1_000);
    for (principal, now_ms) in [("bob", 1), ("ann", 2), ("bob", 3)] {
        refuse(&mut notes, principal, "/m", now_ms);
    }
    assert_eq!(taken(&mut notes, 9, 10), ["bob /m 2", "ann /m 1"]);
    refuse(&mut notes, "bob", "/m", 20);
    refuse(&mut notes, "bob", "/n", 21);
    assert_eq!(taken(&mut notes, 9, 30), ["bob /n 1"], "what follows is merged");
    refuse(&mut notes, "bob", "/m", 900);
    assert_eq!(taken(&mut notes, 9, 1_009), [""; 0]);
    let last = notes.take(9, 1_010);
    assert_eq!((last.len(), last[0].n_calls, last[0].first_ms), (1, 2, 20));
    // What is done without a transaction is merged as well.
    for (now_ms, expected) in [(2_000, "ann /done 1"), (2_001, ""), (3_000, "ann /done 2")] {
        notes.note(ChangeLine::done(call("ann", "/done")), now_ms);
        assert_eq!(taken(&mut notes, 9, now_ms).concat(), expected, "{now_ms}");
    }
}

#[test]
fn a_flood_is_bounded_and_counted() {
    let mut notes = CallNotes::new(QUIET_MS);
    let n = 3 * N_NOTES_MAX;
    for idx in 0..n {
        refuse(&mut notes, &format!("p{idx}"), "/m", 1);
    }
    assert_eq!(notes.notes.len(), N_NOTES_MAX);
    let (mut n_calls, mut n_lines) = (0, 0);
    for second in 0..200 {
        let lines = notes.take(N_NOTES_PER_SECOND, 1_000 * second + 2);
        assert!(lines.len() <= N_NOTES_PER_SECOND);
        n_calls += lines.iter().map(|line| line.n_calls + line.n_more_calls).sum::<u64>();
        n_lines += lines.len();
    }
    assert_eq!((n_calls, n_lines), (n as u64, N_NOTES_MAX), "each call is in a line or counted in one");
    assert!(notes.notes.is_empty(), "what is over is forgotten");
    // Those that were taken make room first.
    (0..N_NOTES_MAX).for_each(|idx| refuse(&mut notes, &format!("p{idx}"), "/m", 1));
    assert_eq!(notes.take(N_NOTES_MAX, 1).len(), N_NOTES_MAX);
    refuse(&mut notes, "late", "/m", 2);
    assert_eq!(taken(&mut notes, 9, 2), ["late /m 1"]);
}

#[test]
fn calls_that_others_counted_stay_counted() {
    let mut notes = CallNotes::new(0);
    notes.note(ChangeLine { n_more_calls: 5, ..refused_call(call("ann", "/m"), "role", 1) }, 1);
    notes.note(ChangeLine { n_more_calls: 2, ..refused_call(call("ann", "/m"), "role", 2) }, 2);
    notes.note_lost(1);
    let lines = notes.take(9, 3);
    assert_eq!((lines.len(), lines[0].n_calls, lines[0].n_more_calls), (1, 2, 8));
    notes.note_lost(4);
    assert_eq!((notes.take(9, 4), notes.take_lost(), notes.take_lost()), (Vec::new(), 4, 0));
}

#[test]
fn everybody_sees_its_own_and_what_was_done_in_its_namespaces() {
    let line = |principal: &str, namespace: &str, refused: &str| ChangeLine {
        refused: refused.to_owned(),
        n_more_calls: 3,
        ..ChangeLine::done(call(principal, "/m").about(namespace, ["unit/x".to_owned()]))
    };
    let mut ann = Principal::new("ann", PersonRole::User);
    ann.namespaces = vec!["team-a".to_owned()];
    let sees = |reader: &Principal, line: ChangeLine| {
        ChangeFilter { reader: Some(reader), ..ChangeFilter::default() }.shown(line)
    };
    for (line, is_shown) in [
        (line("ann", "team-b", ""), true),
        (line("ann", "", "role"), true),
        (line("bob", "team-a", ""), true),
        (line("bob", "default", ""), true),
        (line("bob", "team-b", ""), false),
        (line("bob", "team-a", "role"), false),
        (line("bob", "", ""), false),
    ] {
        let shown = sees(&ann, line.clone());
        assert_eq!(shown.is_some(), is_shown, "{line:?}");
        if let Some(shown) = shown {
            assert_eq!(shown.call.address.is_empty(), line.call.principal == "bob");
            assert_eq!(shown.n_more_calls, 0);
        }
        for role in [PersonRole::Operator, PersonRole::Admin] {
            assert_eq!(sees(&Principal::new("eve", role), line.clone()), Some(line.clone()));
        }
    }
}

#[test]
fn lines_are_found_by_who_by_object_and_by_refusal() {
    let line = ChangeLine::done(
        call("ann", "/m").about("team-a", ["node/n1".to_owned(), "unit/team-a/web".to_owned()]),
    );
    let finds = |filter: ChangeFilter<'_>| filter.shown(line.clone()).is_some();
    for (object, is_found) in [
        ("unit/team-a/web", true),
        ("unit/team-a", true),
        ("unit", true),
        ("team-a/web", true),
        ("team-a", true),
        ("node/n1", true),
        ("n1", true),
        ("web", false),
        ("n", false),
        ("unit/team", false),
        ("unit/team-a/web/x", false),
    ] {
        assert_eq!(finds(ChangeFilter { object, ..ChangeFilter::default() }), is_found, "{object}");
    }
    assert!(finds(ChangeFilter { principal: "ann", ..ChangeFilter::default() }));
    assert!(!finds(ChangeFilter { principal: "an", ..ChangeFilter::default() }));
    assert!(!finds(ChangeFilter { is_refused_only: true, ..ChangeFilter::default() }));
}

#[test]
fn old_lines_go_and_refusals_before_changes() {
    let oldest =
        |n: u64| -> Vec<AgedLine> { (1..=n).map(|id| AgedLine { id, written_ms: 100 * id }).collect() };
    let gone = |refused: &[u64], n_lines, n_max, now_ms| -> Vec<u64> {
        let limits = ChangeLimits { age_ms: 1_000, n_max };
        surplus(&oldest(4), &refused.iter().copied().collect(), n_lines, limits, now_ms).into_iter().collect()
    };
    assert_eq!(gone(&[], 4, 10, 1_100), [0; 0]);
    assert_eq!(gone(&[], 4, 10, 1_301), [1, 2, 3], "they are too old");
    assert_eq!(gone(&[], 12, 10, 1_000), [1, 2], "they are too many");
    assert_eq!(gone(&[], 99, 10, 1_000), [1, 2, 3, 4], "in bounded batches");
    assert_eq!(gone(&[6, 7, 8, 9, 10, 11, 12], 12, 10, 1_000), [6, 7], "refusals are too many");
    assert_eq!(gone(&[6, 7, 8, 9, 10, 11], 12, 10, 1_000), [1, 6]);
    assert_eq!(gone(&[2, 7, 8, 9, 10, 11], 11, 10, 1_000), [2]);
    assert_eq!(gone(&(10..99).collect::<Vec<_>>(), 99, 10, 1_000), [1, 2, 3, 4, 10, 11, 12, 13]);
}
