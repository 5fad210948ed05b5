//! What people read of policies, plans and movements.

use super::*;
use crate::output::Format;

fn one(ordinal: u32, phase: v1::MovePhase) -> v1::MovementMove {
    let numbers = vec![v1::MovementNumber { name: "use before, %".to_owned(), value: 25.0 }];
    v1::MovementMove {
        unit: "default/web".to_owned(),
        ordinal,
        from_node: "n1".to_owned(),
        to_node: "n2".to_owned(),
        device_mask: 0b1001,
        cost_ms: 90_000,
        reason: Some(v1::MovementReason {
            why_unit: "its node becomes empty".to_owned(),
            why_node: "n2 has work".to_owned(),
            why_now: "1 node is hardly used".to_owned(),
            numbers,
        }),
        phase: phase.into(),
        ..v1::MovementMove::default()
    }
}

#[test]
fn numbers_are_short_and_never_minus_nothing() {
    for (value, text) in
        [(5.0, "5"), (0.1234567, "0.123"), (-0.00001, "0"), (12.5, "12.5"), (1e7, "10000000")]
    {
        assert_eq!(number(value), text);
    }
    assert_eq!((bits(0b1001), bits(0), bits(1 << 63)), (vec![0, 3], vec![], vec![63]));
}

#[test]
fn plans_show_moves_batches_reasons_and_objectives() {
    let refusals = [("filters", 2), ("plan limit", 7)];
    let refusals = refusals.map(|(reason, n)| v1::PlanRefusals { reason: reason.to_owned(), n });
    let plan = v1::ReschedulePlan {
        policy: "pack".to_owned(),
        objective_before: 5.0,
        objective_after: 3.0,
        finding: "2 of the 5 nodes are hardly used".to_owned(),
        moves: vec![one(0, v1::MovePhase::Unspecified)],
        n_batches: 1,
        impossible: 2,
        refusals: refusals.to_vec(),
        kept: vec![v1::PlanRefusals { reason: "the unit says so".to_owned(), n: 3 }],
        cost_ms: 90_000,
        ..v1::ReschedulePlan::default()
    };
    let view = ReschedulePlanView::from(&plan);
    let text = view.text(false);
    for part in [
        "objective     5 → 3\n",
        "moves         1 move in 1 batch; 2 left out, because no order makes them possible\n",
        "cost          90s\n",
        "refused       plan limit: 7, filters: 2\n",
        "stay          the unit says so: 3\n",
        "held-back     -\n",
        "1      default/web/0  n1    n2  90s   its node becomes empty; n2 has work\n",
    ] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    let wide = view.text(true);
    assert!(wide.contains("0,3") && wide.contains("use before, %: 25"), "{wide}");
    assert!(!text.contains("\nbound "), "{text}");
    for (bound, is_exact, expected) in [
        (3.0, true, "bound         3: no plan can do better\n"),
        (2.0, true, "bound         2: the best, if checks, budgets and thresholds did not matter\n"),
        (1.25, false, "bound         1.25 at least: the best was not found in time\n"),
        (2.999_999, false, "bound         3: no plan can do better\n"),
    ] {
        let plan =
            v1::ReschedulePlan { objective_bound: Some(bound), bound_is_exact: is_exact, ..plan.clone() };
        let text = ReschedulePlanView::from(&plan).text(false);
        assert!(text.contains(expected), "{expected:?} in\n{text}");
    }
    let empty = ReschedulePlanView::from(&v1::ReschedulePlan::default()).text(false);
    assert!(empty.contains("moves         0 moves\n") && !empty.contains("BATCH"), "{empty}");
}

#[test]
fn movements_count_their_moves_by_phase() {
    use v1::MovePhase::{Aborted, Leaving, Mismatched, Moved, Refused, TimedOut, Waiting};
    let phases = [Moved, Moved, Mismatched, Refused, TimedOut, Aborted, Waiting, Leaving];
    let movement = v1::Movement {
        name: "pack-7".to_owned(),
        phase: v1::MovementPhase::Running.into(),
        n_batches: 3,
        batch: 1,
        moves: (0..).zip(phases).map(|(ordinal, phase)| one(ordinal, phase)).collect(),
        ..v1::Movement::default()
    };
    let view = MovementView::from(&movement);
    assert_eq!((view.n_moves, view.moved, view.mismatched, view.failed), (8, 2, 1, 3));
    assert_eq!((view.row()[1].as_str(), view.row()[2].as_str()), ("running", "2/3"));
    assert_eq!(
        (view.row().len(), view.wide().len()),
        (MovementView::COLUMNS.len(), MovementView::WIDE.len())
    );
    let text = view.text(Format::Table);
    assert!(text.contains("timed-out") && text.contains("default/web/4"), "{text}");
    let over = MovementView::from(&v1::Movement { batch: 3, ..movement });
    assert_eq!(over.row()[2], "3/3");
}

#[test]
fn every_title_has_its_cell() {
    let policy = ReschedulePolicyView::from(&v1::ReschedulePolicy {
        enabled: true,
        dry_run: true,
        ..Default::default()
    });
    assert_eq!(policy.row()[2], "dry-run");
    assert_eq!(policy.row().len(), ReschedulePolicyView::COLUMNS.len());
    assert_eq!(policy.wide().len(), ReschedulePolicyView::WIDE.len());
    let one = MoveView::from(&one(1, v1::MovePhase::Moved));
    assert_eq!((one.row().len(), one.wide().len()), (MoveView::COLUMNS.len(), MoveView::WIDE.len()));
    let faults = vec!["policy `a` is enabled and has no trigger".to_owned()];
    let status = v1::GetRescheduleStatusResponse { config_faults: faults, ..Default::default() };
    let status = RescheduleStatusView::from(&status);
    assert!(
        status.text().ends_with("config-fault  policy `a` is enabled and has no trigger\n"),
        "{}",
        status.text()
    );
    assert_eq!(status.row().len(), RescheduleStatusView::COLUMNS.len());
    assert_eq!(status.wide().len(), RescheduleStatusView::WIDE.len());
}
