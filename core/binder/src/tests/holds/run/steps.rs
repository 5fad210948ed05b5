//! What may happen to the store, agents and a binder.

use godel_domain::budget_spec::{Amount, Limit};

use super::super::*;

#[derive(Clone, Debug)]
pub(in super::super) enum Step {
    /// Places some pending running units of a unit, on free room or with victims.
    Decide {
        unit: u64,
        n: usize,
    },
    /// Nodes on which a gang's room is to be gathered, from one on.
    Gather {
        unit: u64,
        from: u32,
    },
    Commit,
    Refuse,
    Read,
    /// Some of those told to leave have left.
    EndEvicted {
        n: usize,
    },
    End {
        unit: u64,
        ordinal: u32,
    },
    Holds,
    Requeue,
    Unit {
        unit: u64,
        replicas: u32,
        cancelled: bool,
        suspended: bool,
    },
    Ready {
        node: u32,
        ready: bool,
    },
    Later {
        ms: i64,
    },
    Queue {
        path: &'static str,
        min: Option<i64>,
        max: Option<i64>,
    },
    /// Agents say that what is bound runs.
    Run,
    Budget {
        name: &'static str,
        limit: Option<Limit>,
    },
    Drain {
        node: u32,
        n: usize,
    },
    /// A reservation has so many slots, or is gone.
    Reserve {
        name: &'static str,
        slots: Option<u32>,
        milli: i64,
    },
    /// Pending running units of a unit go where it has slots.
    Enter {
        unit: u64,
        n: usize,
    },
    /// Another binder begins from a list.
    Restart,
}

pub(in super::super) fn step() -> impl Strategy<Value = Step> {
    let unit = 1u64..=5;
    prop_oneof![
        12 => (unit.clone(), 1usize..4).prop_map(|(unit, n)| Step::Decide { unit, n }),
        3 => (prop::sample::select(vec![2u64, 4]), 0u32..3)
            .prop_map(|(unit, from)| Step::Gather { unit, from }),
        10 => Just(Step::Commit),
        1 => Just(Step::Refuse),
        4 => Just(Step::Read),
        5 => (1usize..4).prop_map(|n| Step::EndEvicted { n }),
        2 => (unit.clone(), 0u32..6).prop_map(|(unit, ordinal)| Step::End { unit, ordinal }),
        8 => Just(Step::Holds),
        3 => Just(Step::Requeue),
        1 => (unit, 1u32..6, prop::bool::weighted(0.3), prop::bool::weighted(0.3))
            .prop_map(|(unit, replicas, cancelled, suspended)| Step::Unit { unit, replicas, cancelled, suspended }),
        1 => (1u32..=3, prop::bool::weighted(0.6)).prop_map(|(node, ready)| Step::Ready { node, ready }),
        1 => prop_oneof![Just(10), Just(5_000)].prop_map(|ms| Step::Later { ms }),
        1 => (
            prop::sample::select(vec!["default", "a", "a.x", "a.y", "b"]),
            prop::option::of(0i64..2_000),
            prop::option::weighted(0.2, 0i64..3_000),
        )
            .prop_map(|(path, min, max)| Step::Queue { path, min, max }),
        4 => Just(Step::Run),
        1 => (prop::sample::select(vec!["low", "odd"]), prop::option::weighted(0.8, limit()))
            .prop_map(|(name, limit)| Step::Budget { name, limit }),
        3 => (1u32..=3, 0usize..4).prop_map(|(node, n)| Step::Drain { node, n }),
        2 => (prop::sample::select(vec!["kept", "more"]), prop::option::weighted(0.8, 0u32..4), 2i64..7)
            .prop_map(|(name, slots, hundreds)| Step::Reserve { name, slots, milli: hundreds * 100 }),
        6 => (1u64..=5, 1usize..4).prop_map(|(unit, n)| Step::Enter { unit, n }),
        1 => Just(Step::Restart),
    ]
}

fn limit() -> impl Strategy<Value = Limit> {
    let amount = prop_oneof![(0u32..4).prop_map(Amount::Count), (0u32..=100).prop_map(Amount::Percent)];
    (prop::bool::ANY, amount).prop_map(|(is_most, amount)| {
        if is_most { Limit::MaxUnavailable(amount) } else { Limit::MinAvailable(amount) }
    })
}
