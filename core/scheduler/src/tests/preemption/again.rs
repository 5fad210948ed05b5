//! When searches for victims are repeated, with the real binder behind them.

use godel_domain::{
    budget_spec::BudgetSpec,
    records::{Record, RecordKey},
    running_units::PreemptionTerms,
};
use godel_testkit::web_budget;

use super::*;

fn put(budget: BudgetSpec) -> Change {
    Change::Put(Record::Budget(Arc::new(budget)))
}

impl Pair {
    fn turn(&mut self, unit: u64, phase: Phase) {
        let statuses = Statuses { ordinals: vec![0], phases: vec![phase], ..Statuses::default() };
        self.commit(vec![Change::Rows(UnitId(unit), RunChange::Statuses(statuses))]);
    }

    fn n_tried(&self) -> u64 {
        self.scheduler.stats().preemptions_tried
    }
}

#[test]
fn a_unit_kept_by_a_budget_leaves_once_it_allows() {
    for gain in [put(web_budget(1)), Change::Gone(RecordKey::Budget("web".to_owned()))] {
        let mut pair = Pair::new(1);
        pair.commit(vec![put(web_budget(0))]);
        let labels = [("app".to_owned(), "web".to_owned())].into();
        pair.assign(&ranked(1, 1, 1, 1, cpu(1000)).labels(labels));
        pair.steps();
        pair.turn(1, Phase::Running);
        pair.assign(&ranked(2, 9, 1, 1, cpu(1000)));
        assert!(pair.steps().contains(&(2, ReportState::Parked)));
        assert_eq!((pair.n_tried(), pair.binder.n_holds(), pair.scheduler.next_wake()), (1, 0, None));
        pair.commit(vec![gain.clone()]);
        pair.now = pair.scheduler.next_wake().unwrap_or_else(|| panic!("{gain:?}: it looks again by itself"));
        pair.steps();
        assert_eq!(pair.binder.n_holds(), 1, "{gain:?}");
        pair.leave();
        assert_eq!(pair.live(2), [1]);
    }
}

#[test]
fn a_budget_that_kept_nobody_lets_nobody_search_again() {
    let mut pair = Pair::new(1);
    pair.assign(&ranked(1, 9, 1, 1, cpu(1000)));
    pair.steps();
    pair.assign(&ranked(2, 1, 1, 1, cpu(1000)));
    assert!(pair.steps().contains(&(2, ReportState::Parked)));
    pair.commit(vec![put(web_budget(1))]);
    assert_eq!(pair.scheduler.next_wake(), None);
}

#[test]
fn units_are_to_be_offered_whenever_budgets_select_others() {
    let mut pair = Pair::new(1);
    assert_eq!(pair.scheduler.selection(), None, "nobody selects any");
    pair.commit(vec![put(web_budget(0))]);
    let first = pair.scheduler.selection();
    assert!(first.is_some());
    pair.commit(vec![put(web_budget(1))]);
    assert_eq!(pair.scheduler.selection(), first, "the same units");
    pair.commit(vec![put(BudgetSpec { selector: BTreeMap::new(), unit: "u1".to_owned(), ..web_budget(1) })]);
    assert!(pair.scheduler.selection() > first);
    pair.commit(vec![Change::Gone(RecordKey::Budget("web".to_owned()))]);
    assert_eq!(pair.scheduler.selection(), None);
}

#[test]
fn a_failed_search_is_repeated_each_second_after_changes() {
    let mut pair = Pair::new(1);
    pair.assign(&ranked(1, 1, 1, 1, cpu(500)));
    pair.assign(&ranked(2, 9, 1, 1, cpu(500)));
    pair.steps();
    let gang = |id, n| ranked(id, 5, n, n, cpu(500));
    pair.assign(&gang(3, 3));
    pair.assign(&gang(4, 4));
    pair.steps();
    assert_eq!((pair.n_tried(), pair.scheduler.next_wake()), (2, None));
    // Both are called, for room that is not enough for either.
    pair.now = Millis(300);
    pair.turn(2, Phase::Succeeded);
    assert!(pair.steps().contains(&(3, ReportState::Parked)));
    assert_eq!((pair.n_tried(), pair.scheduler.next_wake()), (2, Some(Millis(1_000))));
    pair.now = Millis(1_000);
    pair.steps();
    assert_eq!((pair.n_tried(), pair.scheduler.next_wake()), (4, None));
    // Another one that needs the same learns from them.
    pair.now = Millis(1_500);
    pair.assign(&gang(5, 3));
    assert!(pair.steps().contains(&(5, ReportState::Parked)));
    assert_eq!((pair.n_tried(), pair.scheduler.next_wake()), (4, None));
}

#[test]
fn a_failed_search_of_a_lower_rank_does_not_stand_for_a_higher() {
    // Just when it might be repeated, and later.
    for later in [1_000, 5_000] {
        let mut pair = Pair::new(2);
        pair.assign(&ranked(1, 7, 1, 1, cpu(500)));
        pair.assign(&ranked(2, 9, 1, 1, cpu(500)).preemptible(false));
        pair.steps();
        assert_eq!(pair.live(1), pair.live(2), "packed");
        pair.assign(&ranked(3, 1, 1, 1, cpu(600)));
        pair.steps();
        pair.assign(&ranked(4, 9, 1, 1, cpu(400)).preemptible(false));
        pair.steps();
        let asks = |id, priority| ranked(id, priority, 1, 1, cpu(1000));
        pair.assign(&asks(5, 9));
        assert!(pair.steps().contains(&(5, ReportState::Parked)));
        pair.scheduler.on_revoke(UnitId(5));
        // Now there is somebody for it, though not for one of lower rank that searches first.
        pair.now = Millis(later);
        pair.turn(2, Phase::Succeeded);
        pair.assign(&asks(6, 5));
        assert!(pair.steps().contains(&(6, ReportState::Parked)));
        assert_eq!((pair.n_tried(), pair.binder.n_holds()), (2, 0), "at {later}");
        pair.assign(&asks(7, 9));
        pair.steps();
        assert_eq!(pair.binder.n_holds(), 1, "at {later}");
    }
}

#[test]
fn without_a_search_for_a_minute_nobody_keeps_who_is_where() {
    let mut pair = Pair::new(1);
    pair.assign(&ranked(1, 1, 1, 1, cpu(500)));
    pair.assign(&ranked(2, 9, 1, 1, cpu(500)));
    pair.steps();
    pair.assign(&ranked(3, 5, 1, 1, cpu(1000)));
    pair.steps();
    let n_kept = |pair: &Pair| pair.scheduler.picture.cluster.taken().occupants.on(NodeId(1)).len();
    for (now, n) in [(0, 2), (59_999, 2), (60_000, 0)] {
        pair.now = Millis(now);
        pair.steps();
        assert_eq!((pair.n_tried(), n_kept(&pair)), (1, n), "at {now}");
    }
}

#[test]
fn a_pause_of_something_else_stops_no_search() {
    let mut pair = Pair::new(1);
    pair.assign(&ranked(1, 1, 1, 1, cpu(1000)));
    pair.steps();
    let scope = Scope::Queue("lab".to_owned());
    let pause = Pause { scope, since_ms: 1, reason: String::new(), sub_cluster_key: String::new() };
    pair.commit(vec![Change::Put(Record::Pause(pause))]);
    pair.assign(&ranked(2, 9, 1, 1, cpu(1000)));
    pair.steps();
    assert_eq!((pair.n_tried(), pair.binder.n_holds()), (1, 1));
}

#[test]
fn who_has_not_run_long_enough_leaves_later() {
    let mut pair = Pair::new(1);
    pair.assign(&ranked(1, 1, 1, 1, cpu(1000)).min_run_ms(5_000));
    pair.steps();
    pair.assign(&ranked(2, 9, 1, 1, cpu(1000)));
    pair.steps();
    assert_eq!(pair.binder.n_holds(), 0);
    let wake = pair.scheduler.next_wake().expect("it tries again by itself");
    assert!(wake >= Millis(4_000), "{wake:?}");
    pair.now = wake;
    pair.scheduler.on_wall(10_000);
    pair.binder.on_wall(10_000);
    pair.steps();
    assert_eq!(pair.binder.n_holds(), 1);
}

#[test]
fn who_takes_a_place_before_it_is_seen_free_is_found() {
    let mut pair = Pair::new(1);
    pair.assign(&ranked(1, 9, 1, 1, cpu(1000)));
    pair.assign(&ranked(2, 9, 1, 1, cpu(1000)));
    assert!(pair.steps().contains(&(2, ReportState::Parked)));
    // One commit that ends the first and binds what another scheduler placed there.
    let ended = Statuses { ordinals: vec![0], phases: vec![Phase::Stopped], ..Statuses::default() };
    let bind = Bind {
        demand: Arc::new(cpu(1000)),
        ordinals: vec![0],
        nodes: vec![NodeId(1)],
        standing: Some(Arc::new(PreemptionTerms {
            priority: 1,
            preemptible: true,
            ..PreemptionTerms::default()
        })),
        ..Bind::default()
    };
    pair.commit(vec![
        Change::Rows(UnitId(1), RunChange::Statuses(ended)),
        Change::Rows(UnitId(3), RunChange::Bind(bind)),
    ]);
    pair.steps();
    pair.now = pair.scheduler.next_wake().expect("it looks again by itself");
    pair.steps();
    assert_eq!(pair.binder.n_holds(), 1);
    // Those of its own rank are left alone, and it does not look for ever.
    assert_eq!(pair.scheduler.next_wake(), None);
}

#[test]
fn whoever_was_claimed_in_vain_is_found_by_others() {
    let mut pair = Pair::new(1);
    pair.assign(&ranked(1, 1, 1, 1, cpu(1000)));
    pair.steps();
    // It claims the only one, the binder has not answered yet, and another finds nobody.
    pair.assign(&ranked(2, 8, 1, 1, cpu(900)));
    let claim = pair.scheduler.step(pair.now, 1_000).decisions.remove(0);
    pair.assign(&ranked(3, 9, 1, 1, cpu(800)));
    let parked = pair.scheduler.step(pair.now, 1_000);
    assert_eq!((parked.decisions.len(), parked.reports[0].state), (0, ReportState::Parked));
    let refused = Rejection {
        reason: RejectionReason::VictimGone,
        ordinals: claim.groups[0].ordinals.clone(),
        node: NodeId(1),
        detail: String::new(),
    };
    let outcome =
        Outcome { decision_id: claim.id, unit: claim.unit, rejections: vec![refused], ..Outcome::default() };
    pair.scheduler.on_revoke(UnitId(2));
    pair.scheduler.on_outcome(&outcome, pair.now);
    pair.steps();
    pair.now = pair.scheduler.next_wake().expect("it looks again by itself");
    pair.steps();
    assert_eq!(pair.binder.n_holds(), 1);
    pair.leave();
    assert_eq!(pair.live(3), [1]);
}

#[test]
fn two_that_search_in_vain_do_not_keep_each_other_awake() {
    let mut pair = Pair::new(1);
    pair.assign(&ranked(1, 1, 1, 1, cpu(1000)).min_run_ms(1_000_000));
    pair.steps();
    for (id, cores) in [(2, 900), (3, 800)] {
        pair.assign(&ranked(id, 9, 1, 1, cpu(cores)));
        pair.steps();
        pair.now = pair.now.plus(300);
    }
    let tried = pair.scheduler.stats().preemptions_tried;
    for _ in 0..20 {
        pair.now = pair.now.plus(500);
        pair.steps();
    }
    assert!(pair.scheduler.stats().preemptions_tried <= tried + 2, "{:?}", pair.scheduler.stats());
    assert!(pair.scheduler.next_wake().is_some_and(|at| at > pair.now.plus(100_000)));
}
