//! Plans say what would happen, and change nothing.

use godel_domain::{
    queue_spec::QueueSpec,
    records::{Record, RecordKey},
    unwelcome::{NotAdmitted, Unwelcome},
};

use super::*;

fn capped(path: &str, max_cpu: i64) -> Change {
    let max = [("cpu".to_owned(), max_cpu)].into_iter().collect();
    Change::Put(Record::Queue(Arc::new(QueueSpec { max, ..QueueSpec::new(path) })))
}

fn in_queue(path: &str, record: UnitRecord) -> UnitRecord {
    record.queue(path)
}

#[test]
fn what_preemption_places_is_planned_with_its_victims() {
    let mut pair = Pair::new(2);
    pair.assign(&ranked(1, 1, 2, 1, cpu(1000)));
    pair.steps();
    assert_eq!(pair.live(1).len(), 2);
    let high = ranked(2, 9, 2, 2, cpu(1000));
    let report = pair.scheduler.plan(&high.spec);
    assert_eq!((report.outcome, report.nodes.len(), report.unplaced), (PlanOutcome::Preempts, 2, 0));
    assert_eq!(report.victims, [(UnitId(1), 2)].into());
    // One of equal priority has nobody leave.
    let equal = pair.scheduler.plan(&ranked(2, 1, 1, 1, cpu(1000)).spec);
    assert_eq!((equal.outcome, equal.nodes.len(), equal.unplaced), (PlanOutcome::Waits, 0, 1));
    assert_eq!(equal.refusals.unwrap().reasons[0].reason, "insufficient cpu");
    // Three do not fit on two nodes, whoever leaves.
    let gang = pair.scheduler.plan(&ranked(2, 9, 3, 3, cpu(1000)).spec);
    assert_eq!((gang.outcome, gang.victims.len()), (PlanOutcome::Waits, 0));
    let some = pair.scheduler.plan(&ranked(2, 9, 3, 1, cpu(1000)).spec);
    assert_ne!(some.outcome, PlanOutcome::Fits);
    // That it was planned changes nothing: what happens is what was said.
    assert_eq!(pair.scheduler.stats().victims, 0);
    pair.assert_same();
    pair.assign(&high);
    pair.steps();
    assert_eq!(pair.leaving().len(), 2);
    pair.leave();
    assert_eq!(pair.live(2).len(), 2);
}

#[test]
fn a_gang_that_its_queue_can_never_hold_is_told_so() {
    let mut pair = Pair::new(4);
    pair.commit(vec![capped("prod", 2_500), capped("prod.search", 9_000)]);
    let plan = |pair: &mut Pair, replicas, min_member| {
        pair.scheduler.plan(&in_queue("prod.search", ranked(2, 0, replicas, min_member, cpu(1000))).spec)
    };
    let never = plan(&mut pair, 3, 3);
    assert_eq!((never.outcome, never.unplaced), (PlanOutcome::Never, 3));
    assert!(never.why.contains("queue `prod` allows at most 2.5 cpu, 3 are asked for"), "{}", never.why);
    assert_eq!(plan(&mut pair, 2, 2).outcome, PlanOutcome::Fits);
    let partly = plan(&mut pair, 3, 1);
    assert_eq!((partly.outcome, partly.nodes.len(), partly.unplaced), (PlanOutcome::Partly, 2, 1));
    assert_eq!(partly.why, "no room in queue `prod`: it is at its maximum of cpu");
    let units = QueueSpec { max_running_units: 1, ..QueueSpec::new("few") };
    pair.commit(vec![Change::Put(Record::Queue(Arc::new(units)))]);
    let few = pair.scheduler.plan(&in_queue("few", ranked(2, 0, 2, 2, cpu(100))).spec);
    assert_eq!((few.outcome, few.why.contains("allows at most 1 running")), (PlanOutcome::Never, true));
}

#[test]
fn usage_counts_whether_or_not_some_queue_has_a_guarantee() {
    for guaranteed in [false, true] {
        let mut pair = Pair::new(4);
        pair.commit(vec![capped("prod", 2_000)]);
        if guaranteed {
            pair.commit(vec![queue("other", 1_000)]);
        }
        pair.assign(&in_queue("prod", ranked(1, 0, 1, 1, cpu(1000))));
        pair.steps();
        assert_eq!(pair.live(1).len(), 1);
        let mut plan = |replicas, min_member| {
            pair.scheduler.plan(&in_queue("prod", ranked(2, 0, replicas, min_member, cpu(1000))).spec)
        };
        let full = plan(2, 2);
        assert_eq!((full.outcome, full.unplaced), (PlanOutcome::Waits, 2), "{guaranteed}");
        assert_eq!(full.why, "no room in queue `prod`: it is at its maximum of cpu");
        assert_eq!(plan(1, 1).outcome, PlanOutcome::Fits);
        assert_eq!(plan(2, 1).outcome, PlanOutcome::Partly);
    }
}

#[test]
fn a_paused_unit_is_planned_to_wait() {
    let mut pair = Pair::new(1);
    let pause = Pause {
        scope: Scope::Queue("default".to_owned()),
        since_ms: 1,
        reason: "moving".to_owned(),
        sub_cluster_key: String::new(),
    };
    let one = ranked(2, 0, 1, 1, cpu(1000));
    pair.commit(vec![Change::Put(Record::Pause(pause.clone()))]);
    let report = pair.scheduler.plan(&one.spec);
    assert_eq!(
        (report.outcome, report.why.as_str()),
        (PlanOutcome::Waits, "`queue/default` is paused: moving")
    );
    pair.commit(vec![Change::Gone(RecordKey::Pause(pause.scope.to_string()))]);
    assert_eq!(pair.scheduler.plan(&one.spec).outcome, PlanOutcome::Fits);
}

#[test]
fn where_a_unit_may_not_go_is_told_as_submission_tells_it() {
    let mut pair = Pair::new(1);
    pair.commit(vec![capped("prod", 1_000), capped("prod.search", 1_000)]);
    let one = ranked(2, 0, 1, 1, cpu(1000));
    assert_eq!(pair.scheduler.welcome(&one.spec, &[]), Ok(()));
    let wrong = in_queue("nowhere", one.clone()).priority_class("gold");
    assert_eq!(
        pair.scheduler.welcome(&wrong.spec, &[]),
        Err(vec![
            Unwelcome::Queue(NotAdmitted::Unknown("nowhere".to_owned())),
            Unwelcome::UnknownClass("gold".to_owned())
        ])
    );
    let leafless = pair.scheduler.welcome(&in_queue("prod", one).spec, &[]).unwrap_err();
    assert!(matches!(&leafless[..], [Unwelcome::Queue(NotAdmitted::NotALeaf { .. })]), "{leafless:?}");
}
