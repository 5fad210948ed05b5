//! GroupDeltas of gangs: one per pool, bound whole, over in time; and nobody starves for good.

use super::*;
use godel_domain::records::{Record, RecordKey};

/// Room is to be gathered for (ordinal, node) pairs.
fn gather(unit: u64, revision: u64, places: &[(u32, u32)]) -> Decision {
    Decision { claim: Claim::Gathering, ..place(unit, revision, places) }
}

fn gang(id: u64, n: u32, cpu: i64) -> UnitRecord {
    unit(id, n, n, demand(cpu, 0))
}

/// Two nodes, both full of running units of 500; unit 1 has ordinals 0 and 1 on the first and 2 and 3 on the second.
fn full() -> World {
    let mut world = World::new(2);
    let low = world.unit(unit(1, 4, 1, demand(500, 0)));
    let accepted = world.accept(&place(1, low, &[(0, 1), (1, 1), (2, 2), (3, 2)]));
    world.commit(&accepted);
    world.binder.gather_for(1_000);
    world
}

fn begin(world: &mut World, decision: &Decision) -> Accepted {
    let accepted = world.accept(decision);
    assert!(accepted.binds.is_empty() && accepted.evictions.is_empty() && !accepted.holds.is_empty());
    world.commit_hold(&accepted);
    accepted
}

#[test]
fn freed_room_is_gathered_until_the_gang_is_bound_whole() {
    let mut world = full();
    let revision = world.unit(gang(2, 2, 800));
    begin(&mut world, &gather(2, revision, &[(0, 1), (1, 2)]));
    assert!(world.binder.take_hold_work().is_empty());
    let progress = |world: &World| {
        let gang = world.binder.picture().gathering()[0];
        (gang.unit, gang.n_gathered, gang.n_wanted)
    };
    world.statuses(1, &[0], Phase::Succeeded);
    assert_eq!(progress(&world), (UnitId(2), 0, 2));
    let small = world.unit(unit(3, 9, 1, demand(100, 0)));
    let nothing = [(RejectionReason::InsufficientResources, vec![0])];
    assert_eq!(world.refuse(&place(3, small, &[(0, 1)])), nothing, "what is free is gathered");
    world.statuses(1, &[1], Phase::Succeeded);
    assert_eq!(progress(&world), (UnitId(2), 1, 2));
    assert!(!world.binder.has_hold_work() || world.binder.take_hold_work().is_empty(), "one is not enough");
    assert_eq!(world.accept(&place(3, small, &[(0, 1)])).binds.len(), 1, "200 are left beside it");
    // Decided again it is bound elsewhere if it fits there, and gathers once.
    let again = place(2, revision, &[(0, 1), (1, 2)]);
    let too_little = (RejectionReason::InsufficientResources, vec![1]);
    assert_eq!(world.refuse(&again), [too_little, (RejectionReason::MinMember, vec![0])]);
    let twice = gather(2, revision, &[(0, 1), (1, 2)]);
    assert_eq!(world.refuse(&twice), [(RejectionReason::AlreadyHeld, vec![0, 1])]);
    world.statuses(1, &[2], Phase::Succeeded);
    world.statuses(1, &[3], Phase::Succeeded);
    assert!(world.binder.has_hold_work());
    let work = world.binder.take_hold_work();
    let [HoldWork::Bind(bound)] = work.as_slice() else { panic!("{work:?}") };
    assert_eq!((bound.binds[0].ordinals.as_slice(), bound.ends.len()), (&[0, 1][..], 2));
    let bound = bound.clone();
    world.commit(&bound);
    for (id, _) in &bound.ends {
        world.change(Change::Gone(RecordKey::Hold(*id)));
    }
    assert!(world.binder.picture().gathering().is_empty() && world.binder.n_holds() == 0);
}

#[test]
fn room_is_gathered_for_the_rest_of_a_gang_as_well() {
    let mut world = World::new(2);
    let revision = world.unit(unit(1, 6, 3, demand(300, 0)));
    let first = world.accept(&place(1, revision, &[(0, 1), (1, 1), (2, 1)]));
    world.commit(&first);
    let rest = world.accept(&gather(1, revision, &[(3, 2), (4, 2), (5, 2)]));
    assert_eq!((rest.holds.len(), rest.holds[0].ordinals.clone()), (1, vec![3, 4, 5]));
}

#[test]
fn of_each_pool_one_gang_gathers_at_a_time() {
    let mut world = full();
    let (first, second) = (world.unit(gang(2, 2, 800)), world.unit(gang(3, 2, 800)));
    let places = [(0, 1), (1, 2)];
    let accepted = world.accept(&gather(2, first, &places));
    let taken = [(RejectionReason::GangTurn, vec![0, 1])];
    assert_eq!(world.refuse(&gather(3, second, &places)), taken, "under way");
    world.commit_hold(&accepted);
    assert_eq!(world.refuse(&gather(3, second, &places)), taken);
    // Another pool has a turn of its own.
    let other = gang(4, 2, 800).pool(Pool::BestEffort);
    let revision = world.unit(other);
    begin(&mut world, &gather(4, revision, &places));
    assert_eq!(world.binder.picture().gathering().len(), 2);
    let id = accepted.holds[0].id;
    let turn = world.binder.holds.known.turn_of(id);
    assert_eq!(turn.as_ref().map(|(unit, turn)| (*unit, turn.since_ms)), Some((UnitId(2), world.time_ms)));
    world.binder.on_wall(world.time_ms + 999);
    assert!(!world.binder.has_hold_work() || world.binder.take_hold_work().is_empty());
    world.binder.on_wall(world.time_ms + 1_000);
    assert!(world.binder.has_hold_work());
    let work = world.binder.take_hold_work();
    assert!(work.iter().all(|work| matches!(work, HoldWork::Drop { why: "expired", .. })), "{work:?}");
    assert_eq!(world.refuse(&gather(3, second, &places)), taken, "its end is under way");
    assert_eq!(world.binder.holds.known.turn_of(id), turn);
    for work in work {
        let HoldWork::Drop { holds, .. } = work else { continue };
        holds.into_iter().for_each(|(id, _)| {
            world.change(Change::Gone(RecordKey::Hold(id)));
        });
    }
    assert_eq!(world.binder.holds.known.turn_of(id), None, "it is gone");
    begin(&mut world, &gather(3, second, &places));
}

#[test]
fn units_gather_for_one_running_unit_each_side_by_side_on_nodes_of_their_own() {
    let mut world = full();
    let [first, second, gang] =
        [unit(2, 2, 1, demand(800, 0)), unit(3, 1, 1, demand(800, 0)), gang(4, 2, 800)]
            .map(|unit| world.unit(unit));
    begin(&mut world, &gather(2, first, &[(0, 1)]));
    let taken = |ordinals| [(RejectionReason::GangTurn, ordinals)];
    assert_eq!(world.refuse(&gather(3, second, &[(0, 1)])), taken(vec![0]), "on the same node");
    assert_eq!(world.refuse(&gather(2, first, &[(1, 2)])), taken(vec![1]), "for another one of its own");
    assert_eq!(world.refuse(&gather(4, gang, &[(0, 2), (1, 2)])), taken(vec![0, 1]), "for a gang");
    begin(&mut world, &gather(3, second, &[(0, 2)]));
    assert_eq!(world.binder.picture().gathering().len(), 2);
}

#[test]
fn of_each_sub_cluster_one_gang_gathers_and_one_of_none_alone() {
    let key = godel_domain::sub_cluster::KEY;
    let located = |id, sub_cluster: &str| {
        let mut gang = gang(id, 2, 400);
        let selector = &mut gang.spec.task_groups[0].template.node_selector;
        selector.insert(key.to_owned(), sub_cluster.to_owned());
        gang
    };
    let mut world = full();
    world.binder.set_sub_cluster_key(key);
    for (node, sub_cluster) in [(1, "a"), (2, "b")] {
        let labels = [(key.to_owned(), sub_cluster.to_owned())].into();
        let spec = NodeSpec { labels, ..world.binder.cluster().nodes().spec(NodeId(node)).unwrap().clone() };
        world.change(Change::Put(Record::NodeSpec(spec)));
    }
    let gather = |world: &World, unit, revision, places: [(u32, u32); 2]| Decision {
        nodes_as_of: world.binder.revision(),
        ..gather(unit, revision, &places)
    };
    let (in_a, in_b) = ([(0, 1), (1, 1)], [(0, 2), (1, 2)]);
    let taken = [(RejectionReason::GangTurn, vec![0, 1])];
    let [a, b] = [(2, "a"), (3, "b")].map(|(id, name)| world.unit(located(id, name)));
    let (again, any) = (world.unit(located(4, "a")), world.unit(gang(5, 2, 400)));
    let decision = gather(&world, 2, a, in_a);
    begin(&mut world, &decision);
    let decision = gather(&world, 3, b, in_b);
    begin(&mut world, &decision);
    assert_eq!(world.binder.picture().gathering().len(), 2);
    assert_eq!(world.refuse(&gather(&world, 4, again, in_a)), taken);
    assert_eq!(world.refuse(&gather(&world, 5, any, in_b)), taken, "it may want any node");
    let of_hold = |world: &World, unit| {
        let hold =
            world.binder.cluster().holds().all().into_iter().find(|hold| hold.unit == UnitId(unit)).cloned();
        hold.and_then(|hold| hold.turn.clone()?.sub_cluster)
    };
    assert_eq!(of_hold(&world, 3).as_deref(), Some("b"));
}

#[test]
fn turns_are_for_whole_first_bindings_that_could_fit() {
    let mut world = full();
    let revision = world.unit(gang(3, 2, 800));
    assert_eq!(world.refuse(&gather(3, revision, &[(0, 1)]))[0].0, RejectionReason::MinMember);
    let both_on_one = gather(3, revision, &[(0, 1), (1, 1)]);
    assert_eq!(world.refuse(&both_on_one)[0].0, RejectionReason::InsufficientResources);
    world.change(Change::Put(Record::NodeSpec(NodeSpec { cordoned: true, ..node(2) })));
    let cordoned = gather(3, revision, &[(0, 1), (1, 2)]);
    assert_eq!(world.refuse(&cordoned)[0].0, RejectionReason::NodeCordoned);
    assert_eq!(world.binder.n_holds(), 0);
    assert!(!world.binder.cluster().free().gathering().is_any());
}

#[test]
fn higher_priority_and_what_ends_soon_may_take_what_is_gathered() {
    let mut world = full();
    let revision = world.unit(gang(2, 2, 800).priority(5));
    begin(&mut world, &gather(2, revision, &[(0, 1), (1, 2)]));
    world.statuses(1, &[0, 2], Phase::Succeeded);
    let small = |id| unit(id, 1, 1, demand(500, 0));
    let cases = [
        (small(3).preemptible(false), false),
        (small(4).priority(5), false),
        (small(5).active_deadline_ms(60_000).priority(5), false),
        (small(6).priority(6), true),
    ];
    for (spec, enters) in cases {
        let id = spec.id.0;
        let revision = world.unit(spec);
        let verdict = world.binder.check(&place(id, revision, &[(0, 1)]));
        assert_eq!(matches!(verdict, Verdict::Bind(_)), enters, "unit {id}: {verdict:?}");
    }
    assert_eq!(world.binder.cluster().held().n_gathered(world.binder.cluster().holds().all()[0].id), 0);
    // A turn long enough that a deadline is before its last tenth.
    let mut world = full();
    world.binder.gather_for(600_000);
    let revision = world.unit(gang(2, 2, 800));
    begin(&mut world, &gather(2, revision, &[(0, 1), (1, 2)]));
    world.statuses(1, &[0], Phase::Succeeded);
    for (id, active_deadline_ms, enters) in [(5, 560_000, false), (6, 500_000, true)] {
        let revision = world.unit(small(id).active_deadline_ms(active_deadline_ms));
        let verdict = world.binder.check(&place(id, revision, &[(0, 1)]));
        assert_eq!(matches!(verdict, Verdict::Bind(_)), enters, "{active_deadline_ms}: {verdict:?}");
    }
}

#[test]
fn a_new_binder_goes_on_with_a_turn() {
    let mut world = full();
    let spec = gang(2, 2, 800);
    let revision = world.unit(spec.clone());
    begin(&mut world, &gather(2, revision, &[(0, 1), (1, 2)]));
    let mut other = World::new(2);
    other.revision = world.revision;
    for hold in world.binder.cluster().holds().all() {
        other.binder.on_change(Change::Put(Record::Hold(Arc::clone(hold))), Revision(world.revision), 1);
    }
    let rows = world.binder.cluster().rows().of(UnitId(1)).unwrap().clone();
    other.binder.on_change(Change::RowsLoaded(UnitId(1), rows), Revision(world.revision), 1);
    other.binder.on_change(Change::Put(Record::Unit(Arc::new(spec))), Revision(revision), 1);
    other.binder.on_revision(Revision(world.revision));
    assert!(other.binder.take_hold_work().is_empty(), "the nodes are full");
    assert_eq!(other.binder.picture().gathering(), world.binder.picture().gathering());
    let second = other.unit(gang(3, 2, 800));
    assert_eq!(other.refuse(&gather(3, second, &[(0, 1), (1, 2)]))[0].0, RejectionReason::GangTurn);
    other.statuses(1, &[0, 1, 2, 3], Phase::Succeeded);
    assert!(matches!(other.binder.take_hold_work().as_slice(), [HoldWork::Bind(_)]));
}

#[test]
fn a_turn_that_was_bound_before_a_list_is_over() {
    let mut world = full();
    let (spec, other) = (gang(2, 2, 800), gang(3, 2, 800));
    let (first, second) = (world.unit(spec.clone()), world.unit(other.clone()));
    begin(&mut world, &gather(2, first, &[(0, 1), (1, 2)]));
    world.statuses(1, &[0, 1, 2, 3], Phase::Succeeded);
    let work = world.binder.take_hold_work();
    let [HoldWork::Bind(bound)] = work.as_slice() else { panic!("{work:?}") };
    // It commits, and instead of reading that the binder lists what there is: no hold.
    world.revision += 1;
    let landed = Revision(world.revision);
    world.binder.commit(bound.ticket, landed);
    world.binder.reset();
    let mut put = |change, at| world.binder.on_change(change, at, 1);
    for id in 1..=2 {
        put(Change::Put(Record::NodeSpec(node(id))), landed);
        put(Change::Put(Record::NodeReport(report(id, 1000, 1))), landed);
    }
    put(Change::Put(Record::Unit(Arc::new(spec))), Revision(first));
    put(Change::Put(Record::Unit(Arc::new(other))), Revision(second));
    let mut rows = RunningUnits::default();
    rows.apply(&RunChange::Bind(bound.binds[0].clone()), landed, 1, |_, _, _| {});
    put(Change::RowsLoaded(UnitId(2), rows), landed);
    world.binder.on_revision(landed);
    assert_eq!(world.binder.n_holds(), 0);
    begin(&mut world, &gather(3, second, &[(0, 1), (1, 2)]));
}

#[test]
fn a_gang_is_one_wherever_its_ordinals_begin() {
    let mut world = World::new(1);
    for (min_member, is_gang) in [(2, false), (3, true)] {
        let mut gang = unit(1, 3, min_member, demand(100, 0));
        gang.status.ordinals[0] = vec![(2, 4), (7, 8)];
        world.unit(gang);
        assert_eq!(world.binder.picture.units[&UnitId(1)].is_gang(), is_gang, "{min_member} of 3");
    }
}

mod endless {
    //! Nodes that are never empty: small units fill at once whatever is free, and each lasts for a while.

    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const N_NODES: u32 = 3;
    const TURN_MS: i64 = 40;

    struct Stream {
        world: World,
        /// Unit, ordinal and end of each small running unit.
        running: Vec<(u64, u32, i64)>,
        last_unit: u64,
        durations: Vec<i64>,
        now_ms: i64,
        /// Gangs that wait, in the order of their turns.
        waiting: VecDeque<(u64, u64, u32)>,
        bound: Vec<u64>,
    }

    impl Stream {
        fn new(gangs: &[(u32, i64)], durations: Vec<i64>) -> Self {
            let mut world = World::new(N_NODES);
            world.binder.gather_for(u64::try_from(TURN_MS).unwrap());
            let mut stream = Self {
                world,
                running: Vec::new(),
                last_unit: 100,
                durations,
                now_ms: 1,
                waiting: VecDeque::new(),
                bound: Vec::new(),
            };
            stream.fill();
            for (id, (n, cpu)) in (1..).zip(gangs) {
                let revision = stream.world.unit(gang(id, *n, *cpu));
                stream.waiting.push_back((id, revision, *n));
            }
            stream
        }

        /// Small units take whatever they may.
        fn fill(&mut self) {
            for node in 1..=N_NODES {
                loop {
                    self.last_unit += 1;
                    let id = self.last_unit;
                    let revision = self.world.unit(unit(id, 1, 1, demand(200, 0)));
                    let Verdict::Bind(accepted) = self.world.binder.check(&place(id, revision, &[(0, node)]))
                    else {
                        break;
                    };
                    self.world.commit(&accepted);
                    let lasts = self.durations[usize::try_from(id).unwrap() % self.durations.len()];
                    self.running.push((id, 0, self.now_ms + lasts));
                }
            }
        }

        fn tick(&mut self, gathers: bool) {
            self.now_ms += 1;
            self.world.time_ms = self.now_ms;
            self.world.binder.on_wall(self.now_ms);
            let over: Vec<_> = self.running.extract_if(.., |(.., end)| *end <= self.now_ms).collect();
            for (unit, ordinal, _) in over {
                self.world.statuses(unit, &[ordinal], Phase::Succeeded);
            }
            self.follow_holds();
            self.fill();
            // Whoever is small is faster.
            for (id, revision, n) in self.waiting.clone() {
                let places: Vec<(u32, u32)> =
                    (0..n).map(|ordinal| (ordinal, ordinal % N_NODES + 1)).collect();
                if let Verdict::Bind(accepted) = self.world.binder.check(&place(id, revision, &places)) {
                    self.world.commit(&accepted);
                    self.bound.push(id);
                }
            }
            if gathers && self.world.binder.picture().gathering().is_empty() && !self.waiting.is_empty() {
                self.begin_turn();
            }
            let gangs = self.world.binder.picture().gathering();
            assert!(gangs.len() <= 1, "{gangs:?}");
            assert!(gangs.iter().all(|gang| gang.expires_ms >= self.now_ms), "{gangs:?}");
        }

        fn begin_turn(&mut self) {
            let Some(gang) = self.waiting.pop_front() else { return };
            let (id, revision, n) = gang;
            let places: Vec<(u32, u32)> = (0..n).map(|ordinal| (ordinal, ordinal % N_NODES + 1)).collect();
            begin(&mut self.world, &gather(id, revision, &places));
            // Should it come to nothing it is the last one's turn.
            self.waiting.push_back(gang);
        }

        fn follow_holds(&mut self) {
            while self.world.binder.has_hold_work() {
                let work = self.world.binder.take_hold_work();
                for work in work {
                    match work {
                        HoldWork::Bind(accepted) => {
                            self.world.commit(&accepted);
                            self.bound.push(accepted.unit.0);
                            self.waiting.retain(|gang| gang.0 != accepted.unit.0);
                            accepted.ends.iter().for_each(|(id, _)| {
                                self.world.change(Change::Gone(RecordKey::Hold(*id)));
                            });
                            // It has done its work at once.
                            let ordinals: Vec<u32> = accepted.binds[0].ordinals.clone();
                            self.world.statuses(accepted.unit.0, &ordinals, Phase::Succeeded);
                        }
                        HoldWork::Drop { holds, .. } => holds.iter().for_each(|(id, _)| {
                            self.world.change(Change::Gone(RecordKey::Hold(*id)));
                        }),
                        HoldWork::Reserve { .. } => panic!("nobody reserves"),
                    }
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn every_gang_is_bound_by_turns_and_none_without(
            gangs in prop::collection::vec((2u32..=3, 500i64..=1_000), 1..4),
            durations in prop::collection::vec(2i64..35, 7..20),
        ) {
            // Ends are never all at once: nothing but a turn makes room for a gang.
            let mut starving = Stream::new(&gangs, durations.clone());
            let mut stream = Stream::new(&gangs, durations);
            for _ in 0..200 {
                starving.tick(false);
                stream.tick(true);
            }
            prop_assert!(stream.waiting.is_empty(), "{:?} wait", stream.waiting);
            prop_assert_eq!(stream.bound.len(), gangs.len());
            prop_assert!(starving.bound.is_empty());
            prop_assert_eq!(stream.world.binder.n_holds(), 0, "every turn comes to an end");
        }
    }
}

#[test]
fn a_binding_says_whether_its_running_units_end_by_themselves() {
    use godel_domain::{
        running_units::End,
        unit::{RestartPolicy, WorkloadClass},
    };
    let cases = [
        (WorkloadClass::Batch, RestartPolicy::OnFailure, 0, None, End::ByItself),
        (WorkloadClass::Gang, RestartPolicy::Never, 0, None, End::ByItself),
        (WorkloadClass::Batch, RestartPolicy::Always, 0, Some(1_000), End::Never),
        (WorkloadClass::Batch, RestartPolicy::Always, 60_000, None, End::ByItself),
        (WorkloadClass::Service, RestartPolicy::Always, 0, None, End::Never),
        (WorkloadClass::Service, RestartPolicy::Always, 60_000, None, End::ByItself),
        (WorkloadClass::Service, RestartPolicy::OnFailure, 0, None, End::Never),
        (WorkloadClass::Service, RestartPolicy::OnFailure, 0, Some(1_000), End::ByItself),
        (WorkloadClass::Stream, RestartPolicy::Always, 0, None, End::Never),
        (WorkloadClass::Daemon, RestartPolicy::Always, 0, None, End::Never),
    ];
    let mut world = World::new(1);
    for (id, (class, restart_policy, active_deadline_ms, duration, end)) in (1..).zip(cases) {
        let mut record = unit(id, 1, 1, demand(10, 0))
            .class(class)
            .restart_policy(restart_policy)
            .active_deadline_ms(active_deadline_ms);
        record.spec.task_groups[0].template.run.simulated_duration_ms = duration;
        let revision = world.unit(record);
        let accepted = world.accept(&place(id, revision, &[(0, 1)]));
        assert_eq!(accepted.binds[0].standing.as_ref().map(|standing| standing.end), Some(end), "unit {id}");
    }
}
