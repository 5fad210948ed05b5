//! Trials that come to nothing leave everything as it was.

use godel_domain::hold::Hold;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Assume(u64, u32, u32, u64),
    Lift(u64),
    /// The rest is a trial of its own, which is joined or not.
    Nest(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..=N_UNITS, 0..3u32, 1..=N_NODES, 0..8u64)
            .prop_map(|(unit, ordinal, node, mask)| Step::Assume(unit, ordinal, node, mask)),
        2 => (1..=3u64).prop_map(Step::Lift),
        1 => any::<bool>().prop_map(Step::Nest),
    ]
}

/// A hold of two running units, backed by one that may run.
fn promised(id: u64, node: u32) -> Arc<Hold> {
    Arc::new(Hold {
        id: HoldId(id),
        node: NodeId(node),
        unit: UnitId(50 + id),
        demand: Arc::new(unit_demand(id)),
        pool: unit_pool(id),
        ordinals: vec![0, 1],
        victims: vec![RunningUnitId::new(UnitId(id), 0, 0)],
        ..Hold::default()
    })
}

fn run(mut trial: Trial<'_>, records: &Records, steps: &[Step], lifted: &mut Vec<u64>) {
    for (at, step) in steps.iter().enumerate() {
        match *step {
            Step::Assume(unit, ordinal, node, mask) => {
                let row = records.rows.get(&unit).map(|rows| rows.row(ordinal)).unwrap_or_default();
                let id = RunningUnitId::new(UnitId(unit), ordinal, row.incarnation);
                let shape = trial.shape(&unit_demand(unit), unit_pool(unit));
                trial.assume(id, shape, NodeId(node), given(unit, mask));
            }
            Step::Lift(id) if !lifted.contains(&id) => {
                lifted.push(id);
                trial.lift_holds(&[HoldId(id)]);
            }
            Step::Lift(_) => {}
            Step::Nest(is_joined) => {
                let rest = &steps[at + 1..];
                let mark = trial.trial().pause();
                run(trial.trial(), records, rest, lifted);
                let inner = trial.resume(mark);
                if is_joined {
                    inner.join();
                }
                return;
            }
        }
    }
    if steps.len().is_multiple_of(2) {
        trial.join();
    }
}

proptest! {
    #[test]
    fn what_is_tried_in_vain_leaves_the_room_as_it_was(
        events in prop::collection::vec(event(), 0..40),
        steps in prop::collection::vec(step(), 0..20),
    ) {
        let mut cluster = Cluster::new();
        let mut records = Records::default();
        for (revision, event) in (1u64..).zip(&events) {
            records.apply(&mut cluster, event, revision);
        }
        for id in 1..=3u32 {
            cluster.held_mut().put(promised(id.into(), id));
        }
        let before = picture(&mut cluster);
        let charges = |cluster: &Cluster| (1..=3).map(|id| format!("{:?}", cluster.held().given_by(HoldId(id)))).collect::<Vec<_>>();
        let assumed = |cluster: &Cluster| {
            let ids = (1..=N_UNITS).flat_map(|unit| (0..3u32).map(move |ordinal| (UnitId(unit), ordinal)));
            ids.map(|(unit, ordinal)| cluster.taken().assumptions.get(unit, ordinal)).collect::<Vec<_>>()
        };
        let (held, taken) = (charges(&cluster), assumed(&cluster));
        {
            let mut outer = cluster.trial();
            run(outer.trial(), &records, &steps, &mut Vec::new());
        }
        prop_assert_eq!(picture(&mut cluster), before);
        prop_assert_eq!(charges(&cluster), held);
        prop_assert_eq!(assumed(&cluster), taken);
    }
}
