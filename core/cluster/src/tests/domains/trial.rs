//! Trials that come to nothing leave what terms count as it was.

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Assume(u64, u32, u32),
    LiftTarget(u64, u32),
    LiftMember(u64, u32),
    /// A trial of its own for all that follows; joined or not.
    Nest(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let (node, unit, ordinal) = (0..N_NODES, 1..=N_UNITS, 0..N_ORDINALS);
    prop_oneof![
        4 => (unit.clone(), ordinal.clone(), node).prop_map(|(unit, ordinal, node)| Step::Assume(unit, ordinal, node)),
        2 => (unit.clone(), ordinal.clone()).prop_map(|(unit, ordinal)| Step::LiftTarget(unit, ordinal)),
        1 => (unit, ordinal).prop_map(|(unit, ordinal)| Step::LiftMember(unit, ordinal)),
        1 => any::<bool>().prop_map(Step::Nest),
    ]
}

/// Tries the steps in a trial, and each replica once at most. Returns what is assumed, as [`World::placed`] has it.
fn run(world: &mut World, steps: &[Step], is_target_lifted: bool) -> TrialMark {
    let mut is_target_lifted = is_target_lifted;
    let mut trial = world.cluster.trial();
    let shape = trial.shape(&demand(1, 0, 0, &[]), Pool::Guaranteed);
    for (at, step) in steps.iter().enumerate() {
        let row = |unit, ordinal| world.rows.get(&(unit, ordinal)).copied().unwrap_or_default();
        match *step {
            Step::Assume(unit, ordinal, node) => {
                let row = row(unit, ordinal);
                if row.node.is_none() && world.units.contains(&unit) {
                    let id = RunningUnitId::new(UnitId(unit), ordinal, row.incarnation);
                    trial.assume(id, shape, NodeId(node), Allocation::default());
                }
            }
            Step::LiftTarget(unit, ordinal) if !is_target_lifted => {
                let incarnation = row(unit, ordinal).incarnation;
                is_target_lifted = trial.lift_target(RunningUnitId::new(UnitId(unit), ordinal, incarnation));
            }
            Step::LiftTarget(..) => {}
            Step::LiftMember(unit, ordinal) => {
                if let Some(node) = row(unit, ordinal).node {
                    trial.lift_member(UnitId(unit), NodeId(node));
                }
            }
            Step::Nest(is_joined) => {
                let mark = trial.pause();
                let inner = run(world, &steps[at + 1..], is_target_lifted);
                let inner = world.cluster.resume(inner);
                if is_joined {
                    inner.join()
                } else {
                    drop(inner)
                }
                return mark;
            }
        }
    }
    trial.pause()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn what_is_tried_in_vain_leaves_terms_as_they_were(
        events in proptest::collection::vec(event(), 1..40),
        steps in proptest::collection::vec(step(), 0..12),
    ) {
        let mut world = World::default();
        for event in &events {
            world.apply(event);
        }
        gained(&mut world);
        let mark = run(&mut world, &steps, false);
        drop(world.cluster.resume(mark));
        world.check();
        prop_assert_eq!(mark, TrialMark::default());
        // Whatever is tried and decided next.
        for event in &events {
            world.apply(event);
            world.check();
        }
    }
}

#[test]
fn a_trial_opens_nodes_only_if_it_is_kept() {
    for (unit, node, opened) in [(1, 1, vec![0, 1]), (3, 2, vec![2])] {
        let mut world = near_and_apart();
        world.offer(unit);
        let shape = world.cluster.shape(&demand(1, 0, 0, &[]), Pool::Guaranteed);
        let id = RunningUnitId::new(UnitId(unit), 0, 0);
        for is_kept in [false, true] {
            let before = world.cluster.free().generations().of(NodeId(node));
            let mut trial = world.cluster.trial();
            trial.assume(id, shape, NodeId(node), Allocation::default());
            assert!(trial.free().generations().of(NodeId(node)) > before, "candidates are looked at again");
            if is_kept {
                trial.join();
                world.cluster.keep_trial();
                assert_eq!(gained(&mut world), opened, "unit {unit}");
                continue;
            }
            drop(trial);
            // Whatever settles next.
            world.apply(&Event::Terms(2, 6));
            assert_eq!(gained(&mut world), [] as [u32; 0], "unit {unit}");
        }
    }
}
