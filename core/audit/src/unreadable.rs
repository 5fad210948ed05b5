//! What could not be read: it is left out of everything that is judged, together with what depends on it, and each invariant
//! that it concerns says so.
//!
//! A node or a unit of which something cannot be read is left out whole, with all of its history: what is left is true of the
//! others. Sums get smaller by it, so that more than a node or a queue has stays more. Ranks, budgets and what finds room turn
//! on all that there is; of those nothing is said.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use godel_base::ids::{HoldId, NodeId, Revision, UnitId};
use godel_domain::{
    change::Change,
    hold::Hold,
    node::NodeAllocatable,
    records::{Record, RecordKey},
};

use super::{
    Evidence, Invariant, InvariantReport, Start,
    verdict::Findings,
    world::{Commit, World},
};

/// Most that one reason names.
const N_NAMED_MAX: usize = 3;

/// What a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecordSubject {
    /// A node: what an administrator or its agent says, what is granted, or its measured use.
    Node(NodeId),
    /// A unit's record.
    Unit(UnitId),
    /// Running units of a unit.
    Rows(UnitId),
    /// A lease.
    Lease,
    /// How nodes are split over schedulers.
    Partition,
    /// A queue.
    Queue,
    /// A priority class.
    PriorityClass,
    /// A disruption budget.
    Budget,
    /// A reservation.
    Reservation,
    /// Room kept for someone.
    Hold,
    /// What is kept of a deleted unit.
    History,
    /// Keys of YARN's tokens.
    YarnKeys,
    /// An application of YARN.
    YarnApplication,
    /// What the rescheduler keeps: a movement, or when a unit's replicas were moved.
    Rescheduling,
    /// What is paused.
    Pause,
    /// Not even that can be told.
    Unknown,
}

impl RecordSubject {
    /// Invariants that cannot be judged whole without it. What lists and watches show is compared in any case.
    pub fn concerns(self) -> &'static [Invariant] {
        use Invariant::{I1, I3, I4, I5, I6, I7, I8, I9, I10};
        match self {
            Self::Node(_) => &[I1, I6, I7, I8, I9, I10],
            Self::Unit(_) | Self::Unknown => &Invariant::ALL,
            Self::Rows(_) => &[I1, I3, I4, I5, I6, I7, I8, I9, I10],
            Self::History => &[I7],
            // Nothing is placed by them.
            Self::YarnKeys | Self::YarnApplication | Self::Rescheduling => &[],
            Self::Lease | Self::Partition => &[I7, I9],
            Self::Queue => &[I5, I6, I7, I8, I9, I10],
            Self::PriorityClass => &[I6, I7, I9, I10],
            Self::Budget => &[I6, I7, I9],
            Self::Reservation | Self::Pause => &[I7, I8, I9, I10],
            Self::Hold => &[I1, I4, I5, I6, I7, I8, I9, I10],
        }
    }
}

/// A record or an operation that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnreadableRecord {
    /// What it is of.
    pub kind: RecordSubject,
    /// Which, in words: `unit 7`, `queue a.b`, `rows of unit 7`.
    pub what: String,
    /// Path of the field at fault, as `task_groups[0].replicas`.
    pub field: String,
    /// What is wrong with it.
    pub why: String,
    /// Of the commit; `None` in a list.
    pub revision: Option<Revision>,
}

impl fmt::Display for UnreadableRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, field, why, revision, .. } = self;
        write!(f, "{what}: {field}: {why}")?;
        revision.map_or(Ok(()), |revision| write!(f, " (revision {revision})"))
    }
}

/// What is judged, and what is not.
pub(super) struct LeftOut<'a> {
    /// Without what could not be read.
    pub(super) evidence: Cow<'a, Evidence>,
    /// Nodes that are not judged.
    pub(super) nodes: BTreeSet<NodeId>,
    /// Units that are not judged.
    pub(super) units: BTreeSet<UnitId>,
}

/// Takes out of the evidence what depends on something unreadable.
pub(super) fn left_out(evidence: &Evidence) -> LeftOut<'_> {
    let (mut nodes, mut units) = (BTreeSet::new(), BTreeSet::new());
    for one in &evidence.unreadable {
        match one.kind {
            RecordSubject::Node(node) => nodes.extend([node]),
            RecordSubject::Unit(unit) | RecordSubject::Rows(unit) => units.extend([unit]),
            _ => {}
        }
    }
    let mut left = LeftOut { evidence: Cow::Borrowed(evidence), nodes, units };
    if !left.nodes.is_empty() || !left.units.is_empty() {
        let mut evidence = evidence.clone();
        left.filter(&mut evidence);
        left.evidence = Cow::Owned(evidence);
    }
    left
}

impl LeftOut<'_> {
    fn filter(&self, evidence: &mut Evidence) {
        self.filter_world(&mut evidence.listed);
        self.filter_world(&mut evidence.listed_again);
        let mut holds = BTreeSet::new();
        if let Start::Kept(world) = &mut evidence.history.start {
            holds.extend(world.holds.values().filter(|hold| self.has(&hold.value)).map(|hold| hold.value.id));
            self.filter_world(world);
        }
        for commit in &mut evidence.history.commits {
            self.filter_commit(commit, &mut holds);
        }
    }

    fn filter_world(&self, world: &mut World) {
        world.nodes.retain(|id, _| !self.nodes.contains(id));
        world.units.retain(|id, _| !self.units.contains(id));
        world.holds.retain(|_, hold| !self.has(&hold.value));
    }

    fn filter_commit(&self, commit: &mut Commit, holds: &mut BTreeSet<HoldId>) {
        commit.changes.retain(|change| match change {
            Change::Put(Record::NodeSpec(spec)) => !self.nodes.contains(&spec.id),
            Change::Put(Record::NodeReport(report)) => !self.nodes.contains(&report.id),
            Change::Put(Record::NodeUsage(usage)) => !self.nodes.contains(&usage.id),
            Change::Put(Record::NodeAllocatable(NodeAllocatable { id: node, .. }))
            | Change::Gone(RecordKey::NodeSpec(node)) => !self.nodes.contains(node),
            Change::Put(Record::Unit(record)) => !self.units.contains(&record.id),
            Change::Put(Record::TaskGroup(group)) => !self.units.contains(&group.unit),
            Change::Gone(RecordKey::Unit(unit)) | Change::Rows(unit, _) | Change::RowsLoaded(unit, _) => {
                !self.units.contains(unit)
            }
            Change::Put(Record::Hold(hold)) if self.has(hold) => {
                holds.insert(hold.id);
                false
            }
            Change::Gone(RecordKey::Hold(id)) => !holds.contains(id),
            _ => true,
        });
    }

    fn has(&self, hold: &Hold) -> bool {
        self.nodes.contains(&hold.node) || self.units.contains(&hold.unit)
    }

    /// With what could not be judged for want of a record.
    pub(super) fn report(&self, invariant: Invariant, mut findings: Findings) -> InvariantReport {
        let unreadable = &self.evidence.unreadable;
        let concerned: BTreeMap<&str, RecordSubject> = unreadable
            .iter()
            .filter(|one| one.kind.concerns().contains(&invariant))
            .map(|one| (one.what.as_str(), one.kind))
            .collect();
        if !concerned.is_empty() {
            let turns_on_all = matches!(invariant, Invariant::I6 | Invariant::I8 | Invariant::I10);
            if turns_on_all || concerned.values().any(|kind| *kind == RecordSubject::Unknown) {
                findings.forget_violations();
            }
            findings.not_judged(reason(concerned.into_keys()));
        }
        findings.report(invariant)
    }
}

fn reason<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let n = names.len();
    let named: Vec<&str> = names.take(N_NAMED_MAX).collect();
    let more = if n > named.len() { format!(" and {} more", n - named.len()) } else { String::new() };
    format!("what cannot be read is left out: {}{more}", named.join(", "))
}
