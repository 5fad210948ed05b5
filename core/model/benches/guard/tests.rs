//! Tests of what the guard concludes. A target of its own, since the guard has no harness.

mod compare;

use compare::{BadLine, Figure, Figures, compare};

fn figure(instructions: u64) -> Figure {
    Figure { instructions, n_ops: 10, checksum: 0xabc }
}

fn figures(compiler: &str, of: &[(&str, Figure)]) -> Figures {
    let figures = of.iter().map(|(name, figure)| ((*name).to_owned(), *figure)).collect();
    Figures { compiler: compiler.to_owned(), figures }
}

#[test]
fn a_change_beyond_the_tolerance_either_way_fails_and_is_named() {
    let before = figures("1.95.0 x", &[("a", figure(1_000))]);
    for (instructions, change, passes) in [
        (1_000, "+0.0 %", true),
        (1_030, "+3.0 %", true),
        (970, "-3.0 %", true),
        (1_031, "SLOWER", false),
        (969, "FASTER", false),
        (5, "-99.5 %", false),
    ] {
        let comparison = compare(&before, &figures("1.95.0 x", &[("a", figure(instructions))]));
        assert_eq!(comparison.passes(), passes, "{instructions}");
        assert!(comparison.to_string().contains(change), "{comparison}");
        assert_eq!(comparison.to_string().contains("GODEL_BLESS"), !passes);
    }
}

#[test]
fn short_operations_may_differ_by_a_few_instructions() {
    let short = |instructions| figures("1.95.0 x", &[("a", Figure { n_ops: 100, ..figure(instructions) })]);
    for (instructions, passes) in [(6_300, true), (5_700, true), (6_301, false), (5_699, false)] {
        assert_eq!(compare(&short(6_000), &short(instructions)).passes(), passes, "{instructions}");
    }
}

#[test]
fn other_decisions_and_scenarios_that_come_or_go_fail() {
    let before = figures("1.95.0 x", &[("a", figure(1_000)), ("b", figure(1_000))]);
    let other = Figure { checksum: 1, ..figure(1_000) };
    let fewer = Figure { n_ops: 9, ..figure(1_000) };
    for (now, words) in [
        (vec![("a", other), ("b", figure(1_000))], "DECIDES OTHERWISE"),
        (vec![("a", fewer), ("b", figure(1_000))], "DECIDES OTHERWISE"),
        (vec![("a", figure(1_000))], "GONE"),
        (vec![("a", figure(1_000)), ("b", figure(1_000)), ("c", figure(1))], "NEW"),
    ] {
        let comparison = compare(&before, &figures("1.95.0 x", &now));
        assert!(!comparison.passes());
        assert!(comparison.to_string().contains(words), "{comparison}");
    }
}

#[test]
fn another_compiler_is_reported_and_never_fails() {
    let before = figures("1.95.0 x", &[("a", figure(1_000))]);
    let comparison = compare(&before, &figures("1.96.0 x", &[("a", figure(2_000))]));
    assert!(comparison.passes());
    let text = comparison.to_string();
    assert!(text.contains("SLOWER") && text.contains("not compared"), "{text}");
}

#[test]
fn figures_are_read_as_written() {
    let written = figures("1.95.0 x", &[("a", figure(12_345)), ("b-c", figure(7))]);
    assert_eq!(written.to_string().parse(), Ok(written));
    assert_eq!("a 1 2".parse::<Figures>(), Err(BadLine("a 1 2".to_owned())));
}

#[test]
fn a_run_is_read() {
    let said = "==7== Events    : Ir\n==7== Collected : 1234\n";
    let expect = Figure { instructions: 1_234, n_ops: 10, checksum: 0xabc };
    assert_eq!(Figure::of_run(said, "10 abc\n"), Some(expect));
    assert_eq!(Figure::of_run("nothing", "10 abc"), None);
    assert_eq!(Figure::of_run(said, ""), None);
}
