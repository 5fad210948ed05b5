//! The state machine as a beginner would write it: clone everything, change it, throw it away on a refusal.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::ids::NodeId;
use godel_domain::running_units::Phase;
use proptest::prelude::*;

use super::*;

/// One operation of a generated transaction.
#[derive(Clone, Debug)]
pub(super) enum Step {
    PutUnit(u64),
    DeleteUnit(u64),
    PutQueue(u32),
    DeleteQueue(u32),
    PutNode(u32),
    PutReport(u32),
    DeleteNode(u32),
    Bind { unit: u64, ordinal: u32, incarnation: u32, node: u32 },
    Evict { unit: u64, ordinal: u32, incarnation: u32 },
    Status { unit: u64, ordinal: u32, incarnation: u32, phase: Phase },
    Requeue { unit: u64, ordinal: u32, incarnation: u32 },
}

impl Step {
    pub(super) fn writer(&self) -> &'static str {
        match self {
            Self::PutUnit(_) | Self::DeleteUnit(_) | Self::PutQueue(_) | Self::DeleteQueue(_) => "dispatcher",
            Self::DeleteNode(_) => "admin",
            Self::PutNode(_) | Self::PutReport(_) | Self::Status { .. } => "agent",
            Self::Bind { .. } | Self::Evict { .. } | Self::Requeue { .. } => "binder",
        }
    }

    pub(super) fn op(&self) -> Bytes {
        match *self {
            Self::PutUnit(unit) => put_unit(unit),
            Self::DeleteUnit(unit) => delete(v1::Kind::Unit, unit),
            Self::PutQueue(queue) => put_queue(&format!("q{queue}"), 1),
            Self::DeleteQueue(queue) => delete_named(v1::Kind::Queue, &format!("q{queue}")),
            Self::PutNode(node) => put_node(node),
            Self::PutReport(node) => put_report(node),
            Self::DeleteNode(node) => delete(v1::Kind::NodeSpec, node.into()),
            Self::Bind { unit, ordinal, incarnation, node } => bind(unit, &[ordinal], incarnation, node),
            Self::Evict { unit, ordinal, incarnation } => evict(unit, ordinal, incarnation),
            Self::Status { unit, ordinal, incarnation, phase } => {
                status(unit, ordinal, incarnation, ops::phase_to_proto(phase))
            }
            Self::Requeue { unit, ordinal, incarnation } => requeue(unit, ordinal, incarnation),
        }
    }
}

/// A transaction of one writer.
pub(super) fn txn() -> impl Strategy<Value = Vec<Step>> {
    let (unit, node, ordinal, incarnation) = (1..5u64, 1..5u32, 0..3u32, 0..3u32);
    let row = (unit.clone(), ordinal, incarnation);
    let dispatcher = prop_oneof![
        unit.clone().prop_map(Step::PutUnit),
        unit.prop_map(Step::DeleteUnit),
        (1..3u32).prop_map(Step::PutQueue),
        (1..3u32).prop_map(Step::DeleteQueue),
    ];
    let phase = prop_oneof![
        Just(Phase::Starting),
        Just(Phase::Running),
        Just(Phase::Succeeded),
        Just(Phase::Stopped)
    ];
    let agent = prop_oneof![
        1 => node.clone().prop_map(Step::PutNode),
        1 => node.clone().prop_map(Step::PutReport),
        3 => (row.clone(), phase).prop_map(|((unit, ordinal, incarnation), phase)| Step::Status {
            unit, ordinal, incarnation, phase
        }),
    ];
    let binder = prop_oneof![
        3 => (row.clone(), node.clone()).prop_map(|((unit, ordinal, incarnation), node)| Step::Bind {
            unit, ordinal, incarnation, node
        }),
        1 => row.clone().prop_map(|(unit, ordinal, incarnation)| Step::Evict { unit, ordinal, incarnation }),
        2 => row.prop_map(|(unit, ordinal, incarnation)| Step::Requeue { unit, ordinal, incarnation }),
    ];
    prop_oneof![
        2 => proptest::collection::vec(dispatcher, 1..4),
        3 => proptest::collection::vec(agent, 1..4),
        4 => proptest::collection::vec(binder, 1..5),
        1 => proptest::collection::vec(node.prop_map(Step::DeleteNode), 1..3),
    ]
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Model {
    units: BTreeSet<u64>,
    last_unit: u64,
    queues: BTreeSet<u32>,
    nodes: BTreeSet<u32>,
    next_node: u32,
    reports: BTreeSet<u32>,
    /// Incarnation, phase, node, evicting; rows that were ever bound.
    rows: BTreeMap<(u64, u32), (u32, Phase, u32, bool)>,
}

impl Model {
    pub(super) fn populated() -> Self {
        Self {
            units: [1, 2].into(),
            last_unit: 2,
            queues: BTreeSet::new(),
            nodes: [1, 2].into(),
            next_node: 3,
            reports: [1, 2].into(),
            rows: BTreeMap::new(),
        }
    }

    /// What a state says of the same.
    pub(super) fn of(state: &State) -> Self {
        let ids = |kind| {
            state.records(kind, None).map(|(key, _)| match key {
                Key::Id(id) => *id,
                Key::Name(name) => panic!("{name} is no id"),
            })
        };
        let nodes = |kind| ids(kind).map(|id| u32::try_from(id).unwrap()).collect();
        let rows = state.rows().iter(None).flat_map(|(unit, _, rows)| {
            let rows = rows.rows.iter().filter(|(_, row)| row.revision > Revision(0));
            rows.map(move |(ordinal, row)| {
                ((unit.0, ordinal), (row.incarnation, row.phase, row.node.0, row.eviction.is_some()))
            })
        });
        let model = Self {
            units: ids(v1::Kind::Unit).collect(),
            last_unit: state.last_unit_id().0,
            queues: state.records(v1::Kind::Queue, None).map(|(key, _)| queue(key)).collect(),
            nodes: nodes(v1::Kind::NodeSpec),
            next_node: state.next_node_id().0,
            reports: nodes(v1::Kind::NodeReport),
            rows: rows.collect(),
        };
        for node in 1..10 {
            let live = model.rows.values().filter(|row| row.1.is_live() && row.2 == node).count();
            assert_eq!(state.rows().live_on_node(NodeId(node)) as usize, live, "live on node {node}");
        }
        model
    }

    pub(super) fn run(&mut self, steps: &[Step]) -> bool {
        let mut next = self.clone();
        let accepted = steps.iter().all(|step| next.step(step));
        if accepted {
            *self = next;
        }
        accepted
    }

    fn step(&mut self, step: &Step) -> bool {
        match *step {
            Step::PutUnit(unit) => {
                let ok = self.units.contains(&unit) || unit > self.last_unit;
                self.last_unit = self.last_unit.max(unit);
                self.units.insert(unit);
                ok
            }
            Step::DeleteUnit(unit) => {
                let live = self.rows.iter().any(|((of, _), row)| *of == unit && row.1.is_live());
                self.rows.retain(|(of, _), _| *of != unit);
                self.units.remove(&unit) && !live
            }
            Step::PutQueue(queue) => {
                self.queues.insert(queue);
                true
            }
            Step::DeleteQueue(queue) => self.queues.remove(&queue),
            Step::PutNode(node) => {
                // An agent only registers new nodes.
                let ok = node >= self.next_node;
                self.next_node = self.next_node.max(node + 1);
                self.nodes.insert(node) && ok
            }
            Step::PutReport(node) => {
                self.reports.insert(node);
                self.nodes.contains(&node)
            }
            Step::DeleteNode(node) => {
                let live = self.rows.values().any(|row| row.1.is_live() && row.2 == node);
                self.reports.remove(&node);
                self.nodes.remove(&node) && !live
            }
            Step::Bind { unit, ordinal, incarnation, node } => {
                let row = self.rows.entry((unit, ordinal)).or_insert((0, Phase::Pending, 0, false));
                let ok = row.0 == incarnation && row.1 == Phase::Pending;
                *row = (incarnation, Phase::Bound, node, false);
                ok && self.units.contains(&unit) && self.nodes.contains(&node)
            }
            Step::Evict { unit, ordinal, incarnation } => match self.rows.get_mut(&(unit, ordinal)) {
                Some(row) if row.0 == incarnation && row.1.is_live() => {
                    row.3 = true;
                    true
                }
                _ => false,
            },
            Step::Status { unit, ordinal, incarnation, phase } => {
                if let Some(row) = self.rows.get_mut(&(unit, ordinal))
                    && row.0 == incarnation
                    && row.1.is_live()
                    && phase > row.1
                {
                    row.1 = phase;
                }
                self.units.contains(&unit)
            }
            Step::Requeue { unit, ordinal, incarnation } => match self.rows.get_mut(&(unit, ordinal)) {
                Some(row) if row.1.is_ended() && row.0 + 1 == incarnation => {
                    // Who ended by itself comes back as after a failure; the node that it had is remembered.
                    let is_by_itself = !row.3 && row.1 != Phase::Stopped;
                    *row = (incarnation, Phase::Pending, row.2, is_by_itself);
                    true
                }
                _ => false,
            },
        }
    }
}

/// The queue of a key as [`Step::op`] names it.
fn queue(key: &Key) -> u32 {
    match key {
        Key::Name(name) => name[1..].parse().unwrap(),
        Key::Id(id) => panic!("{id} is no name"),
    }
}
