//! What could not be read: it is left out of everything that is judged, together with what depends on it, and each invariant
//! that it concerns says so.
//!
//! A node or a unit of which something cannot be read is left out whole, with all of its history: what is left is true of the
//! others. Sums get smaller by it, so that more than a node or a queue has stays more. Ranks, budgets and what finds room turn
//! on all that there is; of those nothing is said.

use std::{borrow::Cow, collections::BTreeSet, fmt};

use godel_base::ids::{HoldId, NodeId, Revision, UnitId};
use godel_domain::{
    change::Change,
    hold::Hold,
    records::{Record, RecordKey, RecordKind},
};

use super::{
    Evidence, Invariant, InvariantReport, Start,
    verdict::Findings,
    world::{Commit, World},
};

/// Most that one reason names.
const N_NAMED_MAX: usize = 3;

/// Returns the invariants that cannot be judged whole without a record. What lists and watches show is compared in any case.
fn concerned(key: &RecordKey) -> &'static [Invariant] {
    use Invariant::{I1, I3, I4, I5, I6, I7, I8, I9, I10};
    use RecordKind as Kind;
    let Some(kind) = key.kind() else { return &Invariant::ALL };
    match kind {
        Kind::NodeSpec | Kind::NodeReport | Kind::NodeAllocatable | Kind::NodeUsage => {
            &[I1, I6, I7, I8, I9, I10]
        }
        Kind::Unit | Kind::TaskGroup => &Invariant::ALL,
        Kind::Rows => &[I1, I3, I4, I5, I6, I7, I8, I9, I10],
        Kind::UnitHistory => &[I7],
        // Nothing is placed by them.
        Kind::YarnKeys | Kind::YarnApplication | Kind::Movement | Kind::MoveRate => &[],
        Kind::TrustRoots | Kind::SealedSigner | Kind::Identity | Kind::JoinToken => &[],
        Kind::Principal | Kind::PersonToken | Kind::Change => &[],
        Kind::Lease | Kind::Partition | Kind::PartitionBlock => &[I7, I9],
        Kind::Queue => &[I5, I6, I7, I8, I9, I10],
        Kind::PriorityClass => &[I6, I7, I9, I10],
        Kind::Budget => &[I6, I7, I9],
        Kind::Reservation | Kind::Pause => &[I7, I8, I9, I10],
        Kind::Hold => &[I1, I4, I5, I6, I7, I8, I9, I10],
    }
}

/// A record or an operation that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnreadableRecord {
    /// The record, or that of the running units that the operation changes.
    pub key: RecordKey,
    /// Path of the field at fault, as `task_groups[0].replicas`.
    pub field: String,
    /// What is wrong with it.
    pub why: String,
    /// Of the commit; `None` in a list.
    pub revision: Option<Revision>,
}

impl fmt::Display for UnreadableRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, field, why, revision } = self;
        write!(f, "{key}: {field}: {why}")?;
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
    let keys = || evidence.unreadable.iter().map(|one| &one.key);
    let nodes = keys().filter_map(RecordKey::node).collect();
    let units = keys().filter_map(RecordKey::unit).collect();
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
        let is_left_out = |change: &Change| {
            change.node().is_some_and(|node| self.nodes.contains(&node))
                || change.unit().is_some_and(|unit| self.units.contains(&unit))
        };
        commit.changes.retain(|change| match change {
            Change::Put(Record::Hold(hold)) if self.has(hold) => {
                holds.insert(hold.id);
                false
            }
            Change::Gone(RecordKey::Hold(id)) => !holds.contains(id),
            _ => !is_left_out(change),
        });
    }

    fn has(&self, hold: &Hold) -> bool {
        self.nodes.contains(&hold.node) || self.units.contains(&hold.unit)
    }

    /// With what could not be judged for want of a record.
    pub(super) fn report(&self, invariant: Invariant, mut findings: Findings) -> InvariantReport {
        let unreadable = &self.evidence.unreadable;
        let keys = unreadable.iter().map(|one| &one.key);
        let keys: BTreeSet<&RecordKey> = keys.filter(|key| concerned(key).contains(&invariant)).collect();
        if !keys.is_empty() {
            let turns_on_all = matches!(invariant, Invariant::I6 | Invariant::I8 | Invariant::I10);
            if turns_on_all || keys.contains(&RecordKey::Unknown) {
                findings.forget_violations();
            }
            findings.not_judged(reason(keys.into_iter()));
        }
        findings.report(invariant)
    }
}

fn reason<'a>(keys: impl ExactSizeIterator<Item = &'a RecordKey>) -> String {
    let n = keys.len();
    let named: Vec<String> = keys.take(N_NAMED_MAX).map(RecordKey::to_string).collect();
    let more = if n > named.len() { format!(" and {} more", n - named.len()) } else { String::new() };
    format!("what cannot be read is left out: {}{more}", named.join(", "))
}
