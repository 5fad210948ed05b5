//! I6 for preemptions: rank as it was when the binder judged, whole gangs, guarantees.

use godel_base::ids::{HoldId, RunningUnitId};
use godel_domain::{
    hold::Hold,
    queue_spec::PriorityClass,
    records::{Record, RecordKey},
    running_units::PreemptionTerms,
};

use super::*;

fn gold(value: i32) -> Change {
    let (name, description) = ("gold".to_owned(), String::new());
    Change::Put(Record::PriorityClass(PriorityClass { name, value, preemptible: true, description }))
}

fn queue(name: &str, min: i64) -> Change {
    let min = [(CPU.to_owned(), min)].into();
    Change::Put(Record::Queue(Arc::new(QueueSpec { min, ..QueueSpec::new(name) })))
}

/// A unit of priority 5 fills a node of 4 CPUs; another one of class `gold` has so many of its running units leave, which
/// was judged at revision `judged`. What `meanwhile` says is committed as revision 8 in between.
pub(super) fn preemption(victim: UnitRecord, n_victims: u32, meanwhile: Vec<Change>, judged: u64) -> Story {
    let seeker = spec(2, 1, 1, demand(1000, None)).priority_class("gold").queue("a");
    let replicas = victim.spec.task_groups[0].replicas;
    let places: Vec<(u32, u32, u64)> = (0..replicas).map(|ordinal| (ordinal, 1, 0)).collect();
    let Change::Rows(unit_id, RunChange::Bind(mut bound)) = bind(&victim, &places, 0) else { unreachable!() };
    bound.standing = Some(Arc::new(PreemptionTerms {
        priority: 5,
        preemptible: true,
        min_run_ms: 0,
        min_member: victim.spec.min_member,
        queue: Some(victim.spec.queue.as_str().into()),
        ..PreemptionTerms::default()
    }));
    let members = |ordinal| RunningUnitId::new(victim.id, ordinal, 0);
    let hold = Hold {
        id: HoldId(1),
        node: NodeId(1),
        unit: seeker.id,
        spec_revision: Revision(7),
        group: 0,
        demand: Arc::new(seeker.spec.task_groups[0].template.demand.clone()),
        pool: Pool::Guaranteed,
        ordinals: vec![0],
        incarnations: vec![0],
        devices: Vec::new(),
        zones: Vec::new(),
        victims: (0..n_victims).map(members).collect(),
        expires_ms: 1_000,
        queue: Some("a".into()),
        judged: Revision(judged),
        priority: Some(9),
        ..Hold::default()
    };
    let leave = |ordinal| {
        let Change::Rows(unit, RunChange::Evict(evict)) = evict(&victim, ordinal, EvictionReason::Preempted)
        else {
            unreachable!()
        };
        Change::Rows(unit, RunChange::Evict(Evict { preemptor: seeker.id, ..evict }))
    };
    let running = (0..replicas).map(|ordinal| status(&victim, ordinal, 0, Phase::Running)).collect();
    let claim = (0..n_victims).map(leave).chain([Change::Put(Record::Hold(Arc::new(hold)))]).collect();
    Story(vec![
        node(1, 4000, &[]).into(),
        vec![gold(9)],
        vec![queue("a", 0), queue("b", 4000)],
        vec![unit(&victim)],
        vec![Change::Rows(unit_id, RunChange::Bind(bound))],
        running,
        vec![unit(&seeker)],
        meanwhile,
        claim,
    ])
}

pub(super) fn preempted(victim: UnitRecord, n_victims: u32, meanwhile: Vec<Change>, judged: u64) -> Evidence {
    preemption(victim, n_victims, meanwhile, judged).evidence()
}

pub(super) fn lone(replicas: u32, min_member: u32) -> UnitRecord {
    spec(1, replicas, min_member, demand(4000 / i64::from(replicas), None))
}

#[track_caller]
pub(super) fn holds(evidence: &Evidence) {
    let reports = check_all(evidence);
    let report = reports.iter().find(|report| report.invariant == Invariant::I6).unwrap();
    assert!(report.holds(), "{report}");
}

#[test]
fn i6_ranks_by_priority_classes_as_they_were_judged() {
    holds(&preempted(lone(1, 1), 1, vec![gold(9)], 7));
    holds(&preempted(lone(1, 1), 1, vec![gold(1)], 7));
    fails(&preempted(lone(1, 1), 1, vec![gold(1)], 8), Invariant::I6, "whose rank is not higher");
    fails(&preempted(lone(1, 1), 1, vec![gold(5)], 8), Invariant::I6, "whose rank is not higher");
    let gone = vec![Change::Gone(RecordKey::PriorityClass("gold".to_owned()))];
    holds(&preempted(lone(1, 1), 1, gone.clone(), 7));
    fails(&preempted(lone(1, 1), 1, gone, 8), Invariant::I6, "whose rank is not higher");
}

#[test]
fn i6_names_a_gang_that_is_left_in_pieces() {
    holds(&preempted(lone(4, 2), 2, vec![gold(9)], 8));
    holds(&preempted(lone(4, 2), 4, vec![gold(9)], 8));
    let pieces = preempted(lone(4, 2), 3, vec![gold(9)], 8);
    fails(&pieces, Invariant::I6, "3 preempted for unit 2 leave 1 of at least 2");
}

#[test]
fn i6_keeps_what_a_queue_is_guaranteed() {
    let guaranteed = lone(1, 1).queue("b");
    fails(&preempted(guaranteed.clone(), 1, vec![gold(9)], 8), Invariant::I6, "whose rank is not higher");
    // Its guarantee is less than it uses now: it borrows, and rank decides.
    holds(&preempted(guaranteed, 1, vec![queue("b", 1000)], 8));
}

/// What is held for unit 2, of priority 9, is taken over for unit 3; what is held was taken from some before.
fn taken_over(priority: i32, taken_from: Vec<UnitId>) -> Evidence {
    let mut story = preemption(lone(1, 1), 1, vec![gold(9)], 7);
    let claim = story.0.last_mut().unwrap();
    let Some(Change::Put(Record::Hold(first))) = claim.last() else { unreachable!() };
    let first = Hold { taken_from, ..(**first).clone() };
    let third = spec(3, 1, 1, demand(1000, None)).priority(priority).queue("a");
    let taken = Hold {
        id: HoldId(2),
        unit: third.id,
        spec_revision: Revision(10),
        judged: Revision(10),
        priority: Some(priority),
        taken_from: vec![first.unit],
        ..first.clone()
    };
    *claim.last_mut().unwrap() = Change::Put(Record::Hold(Arc::new(first)));
    story.0.push(vec![unit(&third)]);
    story.0.push(vec![Change::Put(Record::Hold(Arc::new(taken))), Change::Gone(RecordKey::Hold(HoldId(1)))]);
    story.evidence()
}

#[test]
fn i6_ranks_who_takes_over_what_is_held_for_another() {
    holds(&taken_over(10, Vec::new()));
    holds(&taken_over(10, vec![UnitId(7)]));
    fails(&taken_over(9, Vec::new()), Invariant::I6, "whose rank is not higher");
    fails(&taken_over(10, vec![UnitId(3)]), Invariant::I6, "from which it was taken over");
}
