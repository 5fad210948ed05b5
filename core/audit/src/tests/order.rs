//! I10: histories in which places of a full node come free one by one.

use std::collections::{BTreeMap, VecDeque};

use godel_domain::records::Record;

use super::*;

/// Places of the node.
const N_PLACES: u32 = 12;
/// How often one comes free.
const N_ROUNDS: u32 = 150;

/// A node that two queues fill, of which `b` weighs so much; `next` says who gets a place, by round and what each has.
pub(super) fn served(weight_b: u32, next: impl Fn(u32, [usize; 2]) -> &'static str) -> Evidence {
    let queue = |name: &str, weight| {
        Change::Put(Record::Queue(Arc::new(QueueSpec { weight, ..QueueSpec::new(name) })))
    };
    let of = |id: u64, queue: &str| {
        let spec = spec(id, N_ROUNDS + N_PLACES, 1, demand(1_000, None));
        spec.queue(queue)
    };
    let units = [of(1, "a"), of(2, "b")];
    let story = Story(vec![
        node(1, i64::from(N_PLACES) * 1_000, &[]).into(),
        vec![queue("a", 1), queue("b", weight_b)],
        vec![unit(&units[0])],
    ]);
    let next = |round, n: [usize; 2]| usize::from(next(round, n) == "b");
    let mut evidence = turns(story, &units, N_ROUNDS, next).evidence();
    evidence.service.known_after_ms = 0;
    evidence
}

/// The node is filled with the first unit, and the second one comes; then the oldest running unit ends, and one of `next` takes its place.
fn turns(
    mut story: Story,
    units: &[UnitRecord; 2],
    n_rounds: u32,
    next: impl Fn(u32, [usize; 2]) -> usize,
) -> Story {
    let mut live: VecDeque<(usize, u32)> = VecDeque::new();
    let mut begun = [0, 0];
    let mut start = |story: Story, live: &mut VecDeque<(usize, u32)>, who: usize| {
        let ordinal = begun[who];
        begun[who] += 1;
        live.push_back((who, ordinal));
        story.then(vec![bind(&units[who], &[(ordinal, 1, 0)], 0)])
    };
    for _ in 0..N_PLACES {
        story = start(story, &mut live, 0);
    }
    story = story.then(vec![unit(&units[1])]);
    for round in 0..n_rounds {
        let Some((who, ordinal)) = live.pop_front() else { break };
        story = story.then(vec![status(&units[who], ordinal, 0, Phase::Succeeded)]);
        let n = |who: usize| live.iter().filter(|(one, _)| *one == who).count();
        let who = next(round, [n(0), n(1)]);
        story = start(story, &mut live, who);
    }
    story
}

/// Whoever has less for its weight.
fn by_share(weight_b: usize) -> impl Fn(u32, [usize; 2]) -> &'static str {
    move |_, [a, b]| if b < a * weight_b { "b" } else { "a" }
}

fn i10(evidence: &Evidence) -> InvariantReport {
    check_all(evidence).into_iter().find(|report| report.invariant == Invariant::I10).unwrap()
}

#[test]
fn places_that_go_by_shares_are_in_order() {
    for weight_b in [1, 3] {
        let report = i10(&served(weight_b, by_share(usize::try_from(weight_b).unwrap())));
        assert!(report.holds() && report.checked.starts_with("15"), "weight {weight_b}: {report}");
    }
}

#[test]
fn starved_queues_and_queues_below_their_share_are_found() {
    fails(&served(1, |_, _| "a"), Invariant::I10, "queue b is passed over");
    fails(
        &served(3, |round, _| if round % 2 == 0 { "a" } else { "b" }),
        Invariant::I10,
        "queue b is passed over",
    );
    // For equal weights taking turns is right.
    let report = i10(&served(1, |round, _| if round % 2 == 0 { "a" } else { "b" }));
    assert!(report.holds(), "{report}");
}

#[test]
fn what_was_under_way_counts_for_nobody() {
    let mut evidence = served(1, |_, _| "a");
    evidence.service.handed_out = Some([(UnitId(1), vec![HandedOut::default()])].into());
    assert!(i10(&evidence).holds(), "handed out before anything came free");
    let at = |heard_ms: fn(i64) -> i64| {
        let times = evidence.history.commits.iter().map(|commit| commit.time_ms);
        times.map(move |at_ms| HandedOut { at_ms, heard_ms: heard_ms(at_ms) }).collect::<Vec<_>>()
    };
    let (known, unheard) = (at(|at_ms| at_ms), at(|_| 0));
    evidence.service.handed_out = Some([(UnitId(1), known)].into());
    evidence.service.known_after_ms = 100;
    fails(&evidence, Invariant::I10, "queue b is passed over");
    evidence.service.handed_out = Some([(UnitId(1), unheard)].into());
    assert!(i10(&evidence).holds(), "the report of what came free is on its way");
}

#[test]
fn maxima_gangs_pauses_and_other_nodes_end_an_entitlement() {
    let changed = |change: &dyn Fn(&mut Change)| {
        let mut evidence = served(1, |_, _| "a");
        for commit in &mut evidence.history.commits {
            commit.changes.iter_mut().for_each(change);
        }
        let report = i10(&evidence);
        assert!(report.holds() && report.checked.starts_with("0 bindings"), "{report}");
    };
    let of_b = |change: &mut Change, edit: &dyn Fn(&mut UnitRecord)| match change {
        Change::Put(Record::Unit(record)) if record.spec.queue == "b" => edit(Arc::make_mut(record)),
        _ => {}
    };
    changed(&|change| of_b(change, &|record| record.spec.min_member = 2));
    changed(&|change| {
        of_b(change, &|record| {
            let selector = &mut record.spec.task_groups[0].template.node_selector;
            selector.insert("zone".to_owned(), "z".to_owned());
        });
    });
    changed(&|change| match change {
        Change::Put(Record::Queue(queue)) if queue.name == "b" => {
            Arc::make_mut(queue).max.insert(CPU.to_owned(), 100_000);
        }
        _ => {}
    });
    let (mut evidence, pause) = (
        served(1, |_, _| "a"),
        Pause { scope: Scope::All, since_ms: 0, reason: String::new(), sub_cluster_key: String::new() },
    );
    evidence.history.commits[1].changes.push(Change::Put(Record::Pause(pause)));
    assert!(i10(&evidence).checked.starts_with("0 bindings"));
}

/// Units of one queue, of which the second is of a lower band; of so many places that come free the lower one gets one of so many.
fn banded(n_rounds: u32, one_of: u32, floor_percent: u8) -> Evidence {
    let high = spec(1, n_rounds + N_PLACES, 1, demand(1_000, None));
    let low = spec(2, n_rounds + N_PLACES, 1, demand(1_000, None));
    let units = [high.priority(1_000_000), low];
    let story = Story(vec![node(1, i64::from(N_PLACES) * 1_000, &[]).into(), vec![unit(&units[0])]]);
    let next = |round: u32, _| usize::from(one_of > 0 && round % one_of == one_of - 1);
    let mut evidence = turns(story, &units, n_rounds, next).evidence();
    let handed_out = Some(BTreeMap::new());
    evidence.service = Service { floor_percent: Some(floor_percent), handed_out, known_after_ms: 0 };
    evidence
}

#[test]
fn a_lower_band_gets_its_floor_of_the_places_that_come_free() {
    for (percent, n_rounds) in [(1, 1_500), (5, 399), (20, 200)] {
        let report = i10(&banded(n_rounds, 100 / u32::from(percent), percent));
        assert!(report.holds(), "floor {percent}: {report}");
        assert!(!report.checked.contains(", 0 times for less"), "floor {percent}: {report}");
    }
    fails(
        &banded(150, 4, 5),
        Invariant::I10,
        "band batch got 25 of 100 places while a higher one waited as well, not 5",
    );
}

#[test]
fn a_lower_band_that_gets_nothing_is_found_however_small_its_floor() {
    for (percent, n_rounds) in [(1, 1_500), (5, 231), (20, 100)] {
        fails(&banded(n_rounds, 0, percent), Invariant::I10, "band batch got 0 of ");
    }
    // Nor is a part of its floor enough: 1 of a hundred where 5 are due.
    fails(&banded(399, 100, 5), Invariant::I10, "places while a higher one waited as well, not 8");
    let unknown = Service { floor_percent: None, ..Service::default() };
    let report = i10(&Evidence { service: unknown, ..banded(399, 0, 5) });
    assert!(report.holds() && report.checked.contains("bands are not compared"), "{report}");
    // A dispatcher without a floor starves lower bands, and may.
    assert!(i10(&banded(399, 0, 0)).holds());
}

#[test]
fn floors_are_judged_where_it_is_not_known_when_units_were_handed_out() {
    // As on a live cluster of one scheduler: 26 places are due for an allowance of 13.
    let live = |evidence: Evidence| {
        let service = Service { handed_out: None, ..evidence.service };
        Evidence { service, ..evidence }
    };
    fails(&live(banded(540, 0, 5)), Invariant::I10, "band batch got 0 of 520 places");
    assert!(i10(&live(banded(1_100, 20, 5))).holds());
}
