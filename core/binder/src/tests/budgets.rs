//! Disruption budgets: claims and drains of several parties under one of them.

use godel_domain::{
    budget_spec::BudgetSpec,
    node::Drain,
    records::{Record, RecordKey},
};
use godel_testkit::{BuildUnit as _, web_budget};

use super::{
    holds::{claims, preemption},
    *,
};

fn web(id: u64, replicas: u32) -> UnitRecord {
    let labels = [("app".to_owned(), "web".to_owned()), ("id".to_owned(), id.to_string())].into();
    unit(id, replicas, 1, demand(1_000, 0)).labels(labels)
}

/// Two units of two replicas each under one budget, on a node each, all running; and who wants their room.
pub(super) fn filled(allowed: u32) -> (World, Vec<(UnitRecord, u64)>) {
    let mut world = World::new(4);
    world.change(Change::Put(Record::Budget(Arc::new(web_budget(allowed)))));
    for (id, nodes) in [(1, [(0, 1), (1, 2)]), (2, [(0, 3), (1, 4)])] {
        let revision = world.unit(web(id, 2));
        let accepted = world.accept(&place(id, revision, &nodes));
        world.commit(&accepted);
        world.statuses(id, &[0, 1], Phase::Running);
    }
    let seekers = [11, 12, 13].map(|id| {
        let spec = unit(id, 1, 1, demand(1_000, 0)).priority(9);
        let revision = world.unit(spec.clone());
        (spec, revision)
    });
    (world, seekers.into())
}

fn allowed(world: &World) -> u64 {
    world.binder.cluster().taken().budgets().get("web").unwrap().allowed()
}

pub(super) fn decide(world: &World, (spec, revision): &(UnitRecord, u64)) -> Option<Decision> {
    claims(&world.binder, spec, *revision, &[(0, 0)])
}

pub(super) fn drained(world: &mut World, unit: u64, ordinals: &[u32]) -> Option<Departure> {
    world.binder.depart(UnitId(unit), eviction(ordinals, EvictionReason::Drained))
}

fn shown(world: &mut World, departure: &Departure) {
    world.change(Change::Rows(departure.unit, RunChange::Evict(departure.evict.clone())));
}

#[test]
fn two_claims_together_take_no_more_than_a_budget_allows() {
    let (mut world, seekers) = filled(1);
    assert_eq!(allowed(&world), 1);
    let decisions: Vec<Decision> = seekers.iter().map(|one| decide(&world, one).unwrap()).collect();
    // Both were found on the same picture, with victims of their own.
    let other = Decision { unit: UnitId(12), spec_revision: Revision(seekers[1].1), ..decisions[0].clone() };
    let mut other = other;
    let claim = &mut preemption(&mut other).nodes[0];
    (claim.node, claim.victims[0].unit, claim.victims[0].replica.ordinal) = (NodeId(4), UnitId(2), 1);
    other.groups[0].nodes = vec![NodeId(4)];
    let first = world.accept(&decisions[0]);
    let budget = world.binder.cluster().taken().budgets().get("web").unwrap();
    assert_eq!(first.budgets, [("web".to_owned(), budget.revision)]);
    assert_eq!(world.refuse(&other), [(RejectionReason::VictimGone, vec![0])]);
    // The transaction is refused: the other one may, but for whom somebody else has leave at that moment.
    world.binder.take_back(first.ticket);
    let departure = world.binder.depart(UnitId(2), eviction(&[1], EvictionReason::BelowMin)).unwrap();
    assert_eq!(world.refuse(&other), [(RejectionReason::VictimGone, vec![0])]);
    world.binder.departure_refused(departure.unit, &departure.evict);
    let second = world.accept(&other);
    assert_eq!(allowed(&world), 0);
    assert_eq!(world.refuse(&decisions[0]), [(RejectionReason::VictimGone, vec![0])]);
    world.binder.take_back(second.ticket);
    assert_eq!(allowed(&world), 1);
}

#[test]
fn who_is_being_told_to_leave_is_not_told_twice() {
    let (mut world, _) = filled(1);
    let first = drained(&mut world, 2, &[0]).unwrap();
    // A second one would stay under way should the first be refused, and no budget would count it.
    assert!(drained(&mut world, 2, &[0]).is_none());
    assert_eq!(allowed(&world), 0);
    world.binder.departure_refused(first.unit, &first.evict);
    assert_eq!(allowed(&world), 1);
    assert_eq!(drained(&mut world, 2, &[0]).unwrap().evict.ordinals, [0]);
}

#[test]
fn a_claimed_victim_is_evicted_earlier_only_by_node_loss() {
    for claim_is_first in [true, false] {
        let (mut world, seekers) = filled(1);
        let decision = decide(&world, &seekers[0]).unwrap();
        let claim = &decision.claim.preemption().unwrap().nodes[0];
        let (unit, ordinal) = (claim.victims[0].unit, claim.victims[0].replica.ordinal);
        let accepted = world.accept(&decision);
        assert!(drained(&mut world, unit.0, &[ordinal]).is_none());
        world.change(Change::Put(Record::NodeReport(NodeReport {
            ready: false,
            ..report(claim.node.0, 1000, 2)
        })));
        let lost = world.binder.depart(unit, eviction(&[ordinal], EvictionReason::NodeLost)).unwrap();
        // Neither is the other's end.
        for claim_ends in [claim_is_first, !claim_is_first] {
            assert_eq!(allowed(&world), 0);
            match claim_ends {
                true => world.binder.take_back(accepted.ticket),
                false => world.binder.departure_refused(lost.unit, &lost.evict),
            }
        }
        assert_eq!(allowed(&world), 1);
    }
}

#[test]
fn a_list_shows_who_has_left_though_it_is_back() {
    let phase = |incarnation, phase| {
        let (ordinals, incarnations, phases) = (vec![0], vec![incarnation], vec![phase]);
        RunChange::Statuses(Statuses { ordinals, incarnations, phases, ..Statuses::default() })
    };
    let bind = Bind { ordinals: vec![0], incarnations: vec![1], nodes: vec![NodeId(3)], ..Bind::default() };
    for n_read in 0..=5 {
        let (mut world, _) = filled(1);
        let departure = drained(&mut world, 2, &[0]).unwrap();
        let mut rows = world.binder.cluster().rows().of(UnitId(2)).unwrap().clone();
        let life = [
            RunChange::Evict(departure.evict),
            phase(0, Phase::Stopped),
            RunChange::Requeue(Requeue { ordinals: vec![0], incarnations: vec![1], anew: false }),
            RunChange::Bind(bind.clone()),
            phase(1, Phase::Running),
        ];
        for change in &life[..n_read] {
            rows.apply(change, Revision(world.revision), 1, |_, _, _| {});
        }
        world.binder.reset();
        world.unit(web(2, 2));
        world.change(Change::RowsLoaded(UnitId(2), rows));
        assert_eq!(world.binder.evictions.n_asked(), usize::from(n_read == 0), "after {n_read}");
        let again = Evict { incarnations: vec![1], ..eviction(&[0], EvictionReason::Deadline) };
        assert_eq!(world.binder.depart(UnitId(2), again).is_some(), n_read > 3, "after {n_read}");
    }
}

#[test]
fn a_budget_is_free_again_once_a_successor_runs() {
    let (mut world, seekers) = filled(1);
    let departure = drained(&mut world, 2, &[0, 1]).unwrap();
    assert_eq!(departure.evict.ordinals, [0], "one may leave");
    assert_eq!((departure.budgets[0].0.as_str(), allowed(&world)), ("web", 0));
    shown(&mut world, &departure);
    world.statuses(2, &[0], Phase::Stopped);
    assert_eq!(allowed(&world), 0);
    world.change(Change::Rows(
        UnitId(2),
        RunChange::Requeue(Requeue { ordinals: vec![0], incarnations: vec![1], anew: false }),
    ));
    let mut again = place(2, 0, &[(0, 3)]);
    again.spec_revision = world.binder.picture.units[&UnitId(2)].revision;
    again.groups[0].incarnations = vec![1];
    let accepted = world.accept(&again);
    world.commit(&accepted);
    assert_eq!(allowed(&world), 0, "bound is not running");
    let statuses = Statuses {
        ordinals: vec![0],
        incarnations: vec![1],
        phases: vec![Phase::Running],
        ..Statuses::default()
    };
    world.change(Change::Rows(UnitId(2), RunChange::Statuses(statuses)));
    assert_eq!(allowed(&world), 1);
    assert!(decide(&world, &seekers[0]).is_some());
}

#[test]
fn drains_in_flight_count_until_they_are_read_or_refused() {
    let (mut world, _) = filled(3);
    let first = drained(&mut world, 1, &[0, 1]).unwrap();
    assert_eq!((first.evict.ordinals.as_slice(), allowed(&world)), (&[0, 1][..], 1));
    let second = drained(&mut world, 2, &[0, 1]).unwrap();
    assert_eq!((second.evict.ordinals.as_slice(), allowed(&world)), (&[0][..], 0));
    assert_eq!(drained(&mut world, 2, &[1]), None);
    world.binder.departure_refused(second.unit, &second.evict);
    assert_eq!(allowed(&world), 1);
    shown(&mut world, &first);
    assert_eq!(allowed(&world), 1, "counted once");
    // Nobody knows what became of it; then it is read.
    let third = drained(&mut world, 2, &[1]).unwrap();
    world.binder.take_back_all();
    assert_eq!(allowed(&world), 1);
    shown(&mut world, &third);
    assert_eq!(allowed(&world), 0);
}

#[test]
fn a_deadline_and_what_a_unit_wants_of_itself_are_not_held_back() {
    let (mut world, _) = filled(0);
    assert_eq!(drained(&mut world, 1, &[0]), None);
    for reason in [EvictionReason::ScaledIn, EvictionReason::Squeezed, EvictionReason::BelowMin] {
        let departure = world.binder.depart(UnitId(1), eviction(&[0], reason)).unwrap();
        assert_eq!((&departure.evict.ordinals[..], departure.budgets), (&[0][..], vec![]), "{reason:?}");
        world.binder.departure_refused(departure.unit, &departure.evict);
    }
    let drain = Some(Drain { since_ms: 1, deadline_ms: Some(5_000), running_units: 1 });
    world.change(Change::Put(Record::NodeSpec(NodeSpec { drain, ..node(1) })));
    assert_eq!(drained(&mut world, 1, &[0, 1]), None);
    world.binder.on_wall(5_000);
    assert_eq!(drained(&mut world, 1, &[0, 1]).unwrap().evict.ordinals, [0], "of the node past its deadline");
}

#[test]
fn a_gang_is_drained_whole_or_not_at_all() {
    for (allowed, expected) in [(1, None), (2, Some(vec![0, 1]))] {
        let mut world = World::new(4);
        let gang = web(1, 3).min_member(3);
        let revision = world.unit(gang);
        let accepted = world.accept(&place(1, revision, &[(0, 1), (1, 2), (2, 3)]));
        world.commit(&accepted);
        world.statuses(1, &[0, 1, 2], Phase::Running);
        // A budget that comes last finds its units.
        world.change(Change::Put(Record::Budget(Arc::new(web_budget(allowed)))));
        let departure = drained(&mut world, 1, &[0, 1]);
        assert_eq!(departure.map(|departure| departure.evict.ordinals), expected);
    }
}

#[test]
fn changed_budgets_count_at_once() {
    let (mut world, seekers) = filled(0);
    assert_eq!(decide(&world, &seekers[0]), None);
    world.change(Change::Put(Record::Budget(Arc::new(web_budget(2)))));
    assert_eq!(allowed(&world), 2);
    let other = BudgetSpec { selector: [("id".to_owned(), "2".to_owned())].into(), ..web_budget(0) };
    world.change(Change::Put(Record::Budget(Arc::new(other))));
    let budget = world.binder.cluster().taken().budgets().get("web").unwrap();
    assert_eq!((budget.n_units, budget.used.expected, budget.allowed()), (1, 2, 0));
    let decision = decide(&world, &seekers[0]).unwrap();
    assert!(decision.claim.victims().all(|victim| victim.unit == UnitId(1)));
    // The unit is another one's now.
    world.unit(web(2, 1));
    let budget = world.binder.cluster().taken().budgets().get("web").unwrap();
    assert_eq!((budget.used.expected, budget.used.available), (1, 1));
    world.change(Change::Gone(RecordKey::Unit(UnitId(2))));
    let budget = world.binder.cluster().taken().budgets().get("web").unwrap();
    assert_eq!((budget.n_units, budget.used.expected), (0, 0));
    world.change(Change::Gone(RecordKey::Budget("web".to_owned())));
    assert!(world.binder.cluster().taken().budgets().is_empty());
}
