//! Verdicts over made-up reports.

use serde_json::json;

use super::*;

fn figures(runs: &[(&str, f64)]) -> SuiteFigures {
    let mut figures = SuiteFigures::default();
    for (run, rate) in runs {
        let report = json!({"placements_per_s": rate, "placements": 990, "conflicts": 10, "audit": true,
            "latency_ms": {"p99": 20.0}, "half_full": {"placements_per_s": 2.0 * rate}});
        figures.add(run, Ok(report));
    }
    figures
}

fn rate(run: &'static str) -> Figure {
    Figure { run, at: RATE }
}

/// Judges one check over runs `a` and `b` of these rates.
#[track_caller]
fn check(check: Check, a: f64, b: f64, words: &str, reached: bool) {
    let judged = check.judge(&figures(&[("a", a), ("b", b)])).unwrap();
    assert_eq!((judged.0.as_str(), judged.1), (words, reached));
}

const BOTH: &[&str] = &["a", "b"];

#[test]
fn bounds_belong_to_the_target() {
    let floor = Check::AtLeast { of: rate("a"), floor: 300_000.0, unit: "/s" };
    check(floor, 300_000.0, 0.0, "300,000/s", true);
    check(floor, 299_999.0, 0.0, "299,999/s", false);
    let ceiling = Check::AtMost { of: rate("a"), ceiling: 5.0, unit: "CPU-µs" };
    check(ceiling, 5.0, 0.0, "5.00 CPU-µs", true);
    check(ceiling, 12.34, 0.0, "12.3 CPU-µs", false);
    check(Check::Shown { of: rate("a"), unit: "/s" }, 12_345.6, 0.0, "12,346/s", true);
}

#[test]
fn a_slow_disk_raises_the_ceiling() {
    let of = Figure { run: "a", at: "/latency_ms/p99" };
    let or = |times| Check::AtMostOr { of, ceiling: 15.0, unit: "ms", times, other: rate("b"), name: "or" };
    check(or(6.0), 0.0, 1.0, "20.0 ms (or 6.00 ms)", false);
    check(or(6.0), 0.0, 4.0, "20.0 ms (or 24.0 ms)", true);
}

#[test]
fn what_is_told_names_its_figures_and_demands_nothing() {
    let mut figures = SuiteFigures::default();
    for (run, offered, conflicts) in [("a", 500, 0), ("b", 2_000, 220)] {
        let report = json!({"offered_per_s": offered, "placements": 780, "conflicts": conflicts,
            "latency_ms": {"p99": 2.5}});
        figures.add(run, Ok(report));
    }
    let told = Check::ConflictsTold { name: "here", runs: BOTH }.judge(&figures).unwrap();
    let words = "here 0.0 % of 500/s (2.50 ms at p99), 22 % of 2,000/s (2.50 ms at p99)";
    assert_eq!(told, (words.to_owned(), true));
    let runs = json!({"runs": [
        {"schedulers": 1, "placements_per_s": 27_000.4, "conflict_share": 0.0},
        {"schedulers": 2, "placements_per_s": 41_000.0, "conflict_share": 0.0213},
    ]});
    figures.add("sweep", Ok(runs));
    let told = Check::SweepTold { run: "sweep", name: "by" }.judge(&figures).unwrap();
    let words = "by 1: 27,000/s, 0.0 % conflicts; 2: 41,000/s, 2.1 % conflicts";
    assert_eq!(told, (words.to_owned(), true));
    assert!(Check::SweepTold { run: "a", name: "by" }.judge(&figures).is_err());
}

#[test]
fn runs_are_compared_with_each_other() {
    let within = Check::Within { name: "all", runs: BOTH, share: 0.10 };
    check(within, 1000.0, 900.0, "all 1,000, 900/s: within 10 %", true);
    check(within, 890.0, 1000.0, "all 890, 1,000/s: within 11 %", false);
    let slower = Check::AtMostSlower { of: rate("b"), than: rate("a"), share: 0.15 };
    check(slower, 1000.0, 860.0, "860/s after 1,000/s: 14 % slower", true);
    check(slower, 1000.0, 840.0, "840/s after 1,000/s: 16 % slower", false);
    check(slower, 1000.0, 1100.0, "1,100/s after 1,000/s: 10 % faster", true);
    let times = Check::Times { of: "b", than: "a", factor: 3.0 };
    check(times, 1.0, 3.0, "b 3.00 × a", true);
    check(times, 1.0, 2.9, "b 2.90 × a", false);
    let never = Check::NeverBelowFirst { runs: BOTH };
    check(never, 10.0, 10.0, "lowest 1.00 × one scheduler's", true);
    check(never, 10.0, 9.0, "lowest 0.90 × one scheduler's", false);
}

#[test]
fn an_ablation_counts_where_it_shows_most() {
    let both = |share| Check::AtLeastSlower {
        name: "cache",
        pairs: &[("a", "b"), ("a", "a"), ("a", "gone")],
        share,
    };
    check(both(0.6), 100.0, 30.0, "without cache: a 70 % slower, a 0.0 % slower", true);
    check(both(0.6), 100.0, 50.0, "without cache: a 50 % slower, a 0.0 % slower", false);
    let nothing = Check::AtLeastSlower { name: "cache", pairs: &[("a", "gone")], share: 0.6 };
    assert_eq!(nothing.judge(&figures(&[("a", 1.0)])), Err("gone was not run".to_owned()));
}

#[test]
fn conflicts_are_a_share_of_decisions() {
    check(Check::Conflicts { runs: BOTH, share: 0.01 }, 1.0, 1.0, "at most 1.0 % conflicts", false);
    check(Check::Conflicts { runs: BOTH, share: 0.011 }, 1.0, 1.0, "at most 1.0 % conflicts", true);
}

#[test]
fn what_a_report_says_holds() {
    let audit = |at| Check::Holds { of: Figure { run: "a", at }, name: "audit clean" };
    check(audit("/audit"), 1.0, 1.0, "audit clean", true);
    check(audit("/conflicts"), 1.0, 1.0, "audit clean not", false);
    check(Check::Told { of: Figure { run: "a", at: "/conflicts" }, name: "seen" }, 1.0, 1.0, "seen 10", true);
}

#[test]
fn the_worst_check_decides_and_missing_figures_have_reasons() {
    let floor = |run, floor| Check::AtLeast { of: rate(run), floor, unit: "/s" };
    let mut figures = figures(&[("a", 5.0)]);
    figures.add("broken", Err("the audit failed".to_owned()));
    assert_eq!(judge(&[floor("a", 5.0)], &figures), ("5.00/s".to_owned(), TargetVerdict::Reached, vec![]));
    assert_eq!(judge(&[floor("a", 5.0), floor("a", 6.0)], &figures).1, TargetVerdict::NotReached);
    let (words, verdict, reasons) =
        judge(&[floor("broken", 1.0), floor("a", 6.0), floor("broken", 2.0)], &figures);
    assert_eq!((words.as_str(), verdict), ("5.00/s", TargetVerdict::NoFigure));
    assert_eq!(reasons, ["broken: the audit failed"]);
    assert_eq!(judge(&[floor("gone", 1.0)], &figures).1, TargetVerdict::NotRun);
    assert_eq!(figures.failed().collect::<Vec<_>>(), [("broken", "the audit failed")]);
}

#[test]
fn guard_cases_are_found_by_name_and_missing_fields_named() {
    let mut figures = SuiteFigures::default();
    figures.add("store", Ok(json!({"bench": "store", "cases": [{"case": "put", "ops_per_s": 7.5}]})));
    assert_eq!(figures.number(Figure { run: "store", at: "/put/ops_per_s" }), Ok(7.5));
    figures.add("endurance", Ok(json!({"slope": {"state": -1.0, "s1": 0.25, "load": 9.0}, "empty": {}})));
    assert_eq!(figures.number(Figure { run: "endurance", at: "/slope" }), Ok(0.25));
    let why = figures.number(Figure { run: "endurance", at: "/empty" }).unwrap_err();
    assert_eq!(why, "endurance says {} for /empty");
    let why = figures.number(Figure { run: "store", at: "/get/ops_per_s" }).unwrap_err();
    assert_eq!(why, "store does not report /get/ops_per_s");
}

#[test]
fn numbers_are_short() {
    for (figure, text) in
        [(1.234, "1.23"), (12.34, "12.3"), (999.6, "1,000"), (1_234_567.8, "1,234,568"), (-123.0, "-123")]
    {
        assert_eq!(number(figure), text);
    }
}
