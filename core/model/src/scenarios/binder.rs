//! The conflict check, with a store that commits everything.

use std::sync::Arc;

use godel_base::ids::{NodeId, Revision, UnitId};
use godel_core_binder::{Accepted, Binder, Verdict};
use godel_domain::{
    change::Change,
    decision::{Claim, Decision, GroupPlacement},
    records::Record,
    running_units::RunChange,
    unit::{UnitRecord, WorkloadClass},
};

use super::{
    Done, Size, Work,
    world::{equal_nodes, placements, plain, unit},
};

/// Decisions checked before the first of them is committed.
const N_UNDER_WAY: usize = 4;
/// Prime, and thus without a common divisor with the number of nodes: a decision's nodes are all over the cluster.
const STRIDE: u64 = 7_919;

struct Binding {
    core: Binder,
    revision: u64,
    units: Vec<Arc<UnitRecord>>,
    decisions: Vec<Decision>,
}

impl Binding {
    fn new(n_nodes: u32, n_units: u32, replicas: u32) -> Self {
        let units: Vec<_> = (1..=u64::from(n_units))
            .map(|id| Arc::new(unit(id, WorkloadClass::Service, replicas, plain())))
            .collect();
        let mut new = Self { core: Binder::new(), revision: 0, units, decisions: Vec::new() };
        for change in equal_nodes(n_nodes) {
            new.watch(change);
        }
        for id in 1..=u64::from(n_units) {
            let decision = new.decision(id, n_nodes, replicas);
            new.decisions.push(decision);
        }
        new
    }

    fn decision(&self, id: u64, n_nodes: u32, replicas: u32) -> Decision {
        let place = |ordinal: u32| {
            let running = id * u64::from(replicas) + u64::from(ordinal);
            let node = running * STRIDE % u64::from(n_nodes) + 1;
            NodeId(u32::try_from(node).expect("below the number of nodes"))
        };
        let nodes: Vec<NodeId> = (0..replicas).map(place).collect();
        let group = GroupPlacement {
            group: 0,
            ordinals: (0..replicas).collect(),
            nodes,
            ..GroupPlacement::default()
        };
        // Records of units come after those of nodes, in order.
        let spec_revision = Revision(self.revision + id);
        let nodes_as_of = self.core.revision();
        Decision {
            id,
            unit: UnitId(id),
            spec_revision,
            nodes_as_of,
            groups: vec![group],
            claim: Claim::FreeRoom,
        }
    }

    fn watch(&mut self, change: Change) {
        self.revision += 1;
        self.core.on_change(change, Revision(self.revision), 1);
        self.core.on_revision(Revision(self.revision));
    }

    /// The transaction is answered, then seen on the watch.
    fn commit(&mut self, accepted: Accepted) {
        self.revision += 1;
        self.core.commit(accepted.ticket, Revision(self.revision));
        for bind in accepted.binds {
            let change = Change::Rows(accepted.unit, RunChange::Bind(bind));
            self.core.on_change(change, Revision(self.revision), 1);
        }
        self.core.on_revision(Revision(self.revision));
    }
}

impl Work for Binding {
    fn run(&mut self) {
        for unit in std::mem::take(&mut self.units) {
            self.watch(Change::Put(Record::Unit(unit)));
        }
        let decisions = std::mem::take(&mut self.decisions);
        for some in decisions.chunks(N_UNDER_WAY) {
            let accepted: Vec<Box<Accepted>> = some
                .iter()
                .filter_map(|decision| match self.core.check(decision) {
                    Verdict::Bind(accepted) => Some(accepted),
                    Verdict::Wait(_) | Verdict::Reject(_) => None,
                })
                .collect();
            for accepted in accepted {
                self.commit(*accepted);
            }
        }
        self.decisions = decisions;
    }

    fn done(&self) -> Done {
        placements(self.core.cluster(), self.decisions.iter().map(|decision| decision.unit))
    }
}

pub(super) fn service(size: Size) -> Box<dyn Work> {
    Box::new(Binding::new(size.pick(10_000, 1_000), size.pick(300, 20), 1_000))
}

pub(super) fn single(size: Size) -> Box<dyn Work> {
    Box::new(Binding::new(size.pick(10_000, 1_000), size.pick(50_000, 5_000), 1))
}
