//! The half of I1 that concerns domains: what a commit binds is apart from what it has to be apart from, and together with the
//! rest of its unit where its topology requires that.
//!
//! Judged at each commit that binds, against everything that runs then. What running units were near to, and what made a spread
//! even, may have ended in the meantime, so that these are not judged; nor is anything while labels of nodes have just changed.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::ids::{NodeId, Revision, UnitId};
use godel_domain::{
    change::Change,
    label_expression::LabelExpression,
    records::{Record, RecordKey},
    running_units::{Bind, EvictionReason, RunChange},
    unit::UnitSpec,
    unit_affinity::NODE,
    unit_topology::UnitTopology,
};

use super::{
    verdict::Findings,
    world::{Commit, World, WorldRow, WorldUnit},
};

/// A binder may decide on labels that are so many revisions old.
const N_STALE: u64 = 200;

/// What is followed from commit to commit.
#[derive(Debug, Default)]
pub(super) struct Terms {
    /// Units that keep others away.
    keeping: BTreeSet<UnitId>,
    /// When labels of a node changed last.
    relabelled: Revision,
    n_judged: usize,
}

impl Terms {
    /// Takes over what is there where the judgement begins.
    pub(super) fn begin(&mut self, world: &World) {
        for (id, unit) in &world.units {
            if unit.record.as_ref().is_some_and(|record| keeps_away(&record.value.spec)) {
                self.keeping.insert(*id);
            }
        }
    }

    /// A commit, before it is applied.
    pub(super) fn before(&mut self, world: &World, commit: &Commit) {
        for change in &commit.changes {
            match change {
                Change::Put(Record::Unit(record)) if keeps_away(&record.spec) => {
                    self.keeping.insert(record.id);
                }
                Change::Gone(RecordKey::Unit(unit)) => {
                    self.keeping.remove(unit);
                }
                Change::Put(Record::NodeSpec(spec)) => {
                    let known = world.nodes.get(&spec.id).and_then(|node| node.spec.as_ref());
                    if known.is_some_and(|known| known.value.labels != spec.labels) {
                        self.relabelled = commit.revision;
                    }
                }
                Change::Put(Record::NodeReport(report)) => {
                    let known = world.nodes.get(&report.id).and_then(|node| node.report.as_ref());
                    if known.is_some_and(|known| known.value.attributes != report.attributes) {
                        self.relabelled = commit.revision;
                    }
                }
                Change::Gone(RecordKey::NodeSpec(_)) => self.relabelled = commit.revision,
                _ => {}
            }
        }
    }

    /// The commit, once it is applied.
    pub(super) fn after(&mut self, world: &World, commit: &Commit, findings: &mut Findings) {
        if !self.are_labels_settled(commit.revision) {
            return;
        }
        for change in &commit.changes {
            let Change::Rows(id, RunChange::Bind(bind)) = change else { continue };
            let Some(unit) = world.units.get(id) else { continue };
            let Some(record) = &unit.record else { continue };
            let spec = &record.value.spec;
            if !spec.goes_by_unit() && self.keeping.is_empty() {
                continue;
            }
            self.n_judged += 1;
            for wrong in self.judge(world, *id, unit, spec, bind) {
                findings.add(|| format!("unit {}: {wrong} (revision {})", unit.name(), commit.revision));
            }
        }
    }

    /// How many bindings were judged.
    pub(super) fn n_judged(&self) -> usize {
        self.n_judged
    }

    fn judge(
        &self,
        world: &World,
        id: UnitId,
        unit: &WorldUnit,
        spec: &UnitSpec,
        bind: &Bind,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        if spec.is_daemon()
            && let Some(at) = meet(world, NODE, bind, unit, true)
        {
            wrong.push(format!("{at} is where another one of this daemon is"));
        }
        let live = |ranges: Option<&[(u32, u32)]>| -> Vec<(u32, NodeId)> {
            let is_of = |ordinal: u32| {
                ranges
                    .is_none_or(|ranges| ranges.iter().any(|(start, end)| (*start..*end).contains(&ordinal)))
            };
            // Who leaves for another node says no more where the others go.
            let stays = |row: &WorldRow| row.is_live() && row.eviction != Some(EvictionReason::Rescheduled);
            let live = unit.rows.iter().filter(|(ordinal, row)| stays(row) && is_of(**ordinal));
            live.map(|(ordinal, row)| (*ordinal, row.node)).collect()
        };
        wrong.extend(split(world, &spec.topology, 0, &live(None)).into_iter().map(|one| format!("it {one}")));
        let groups = unit.record.as_ref().map(|record| record.value.group_topologies()).unwrap_or_default();
        for of in groups {
            let found = split(world, &of.topology, of.first, &live(Some(&of.ordinals)));
            wrong.extend(found.into_iter().map(|one| format!("its task group {} {one}", of.group)));
        }
        for term in spec.affinity.apart.iter().filter(|term| term.weight == 0) {
            let others = world.units.iter().filter(|(other, of)| selects(id, spec, &term.units, **other, of));
            for (other, of) in others {
                if let Some(at) = meet(world, &term.topology, bind, of, *other == id) {
                    wrong.push(format!("{at} is not apart from unit {}", of.name()));
                }
            }
        }
        for other in self.keeping.iter().filter(|other| **other != id) {
            let Some(of) = world.units.get(other) else { continue };
            let Some(record) = &of.record else { continue };
            let keeping = record.value.spec.affinity.apart.iter();
            for term in keeping.filter(|term| term.weight == 0 && !term.units.is_empty()) {
                if selects(*other, &record.value.spec, &term.units, id, unit)
                    && let Some(at) = meet(world, &term.topology, bind, of, false)
                {
                    wrong.push(format!("{at} is where unit {} keeps it away", of.name()));
                }
            }
        }
        wrong
    }
}

impl Terms {
    /// Whether a commit may be judged by the labels of nodes: they have not just changed.
    pub(super) fn are_labels_settled(&self, revision: Revision) -> bool {
        self.relabelled.0 == 0 || revision.0 >= self.relabelled.0.saturating_add(N_STALE)
    }
}

/// What is not together of some running units that a topology is of, in words; segments are counted from an ordinal.
fn split(world: &World, topology: &UnitTopology, first: u32, live: &[(u32, NodeId)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for key in [&topology.required, &topology.homogeneous].into_iter().filter(|key| !key.is_empty()) {
        let domains: BTreeSet<_> = live.iter().map(|(_, node)| domain(world, key, *node)).collect();
        if domains.len() > 1 || domains.contains(&None) {
            wrong.push(format!("runs in several domains of {key}"));
        }
    }
    let Some(segments) = &topology.segments else { return wrong };
    let mut by_segment: BTreeMap<u32, BTreeSet<_>> = BTreeMap::new();
    for (ordinal, node) in live {
        let of = by_segment.entry(ordinal.saturating_sub(first) / segments.size.max(1)).or_default();
        of.insert(domain(world, &segments.within, *node));
    }
    let split = by_segment.iter().filter(|(_, domains)| domains.len() > 1).map(|(segment, _)| segment);
    wrong.extend(split.map(|segment| format!("has segment {segment} in several domains")));
    wrong
}

fn keeps_away(spec: &UnitSpec) -> bool {
    spec.affinity.apart.iter().any(|term| term.weight == 0 && !term.units.is_empty())
}

/// Whether a term of a unit selects another one, or itself.
pub(super) fn selects(
    id: UnitId,
    spec: &UnitSpec,
    units: &[LabelExpression],
    other: UnitId,
    of: &WorldUnit,
) -> bool {
    if units.is_empty() {
        return other == id;
    }
    let Some(record) = &of.record else { return false };
    let other = &record.value.spec;
    let accepts = |one: &LabelExpression| one.accepts(other.labels.get(&one.key).map(String::as_str));
    other.namespace == spec.namespace && units.iter().all(accepts)
}

/// The first running unit that is bound into a domain in which a unit runs, in words; of the same unit the running unit itself
/// does not count.
fn meet(world: &World, key: &str, bind: &Bind, of: &WorldUnit, is_own: bool) -> Option<String> {
    let bound = bind.ordinals.iter().zip(&bind.nodes);
    bound.into_iter().find_map(|(ordinal, node)| {
        let own = domain(world, key, *node)?;
        let is_there = |(other, row): (&u32, &WorldRow)| {
            row.is_live()
                && !(is_own && other == ordinal)
                && domain(world, key, row.node).as_ref() == Some(&own)
        };
        of.rows.iter().any(is_there).then(|| format!("running unit {ordinal} in {key} {own}"))
    })
}

/// The value of a topology key on a node.
pub(super) fn domain(world: &World, key: &str, node: NodeId) -> Option<String> {
    if key == NODE {
        return Some(node.to_string());
    }
    let node = world.nodes.get(&node)?;
    let own = node.spec.as_ref().and_then(|spec| spec.value.labels.get(key));
    own.or_else(|| node.report.as_ref()?.value.attributes.get(key)).cloned()
}
