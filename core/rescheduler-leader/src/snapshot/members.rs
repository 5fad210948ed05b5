//! How the members of a waiting gang stand to one another, by what their unit says: what a plan has to leave them, and whether they would find
//! their places once its moves are made.

use std::collections::BTreeMap;

use godel_base::ids::{IdMap, NodeId, ReplicaId, RunningUnitId, UnitId};
use godel_core_rescheduler::{MemberLimit, NodeFacts, OrderedPlan};
use godel_domain::{
    allocation::Allocation, label_expression::LabelExpression, running_units::RunningUnits, unit::UnitRecord,
    unit_affinity::NODE,
};

use super::{
    ClusterFilters,
    waiting::{DomainPart, domain_of},
};

/// Labels of nodes, in snapshots alone, by whose values members are counted: each node by itself for ports, and the domains of a term.
const PORTS: &str = "godel.dev/room-ports";
const TERM: &str = "godel.dev/room-term";

/// Whether a unit is one of those that a term selects.
fn selects_itself(record: &UnitRecord, units: &[LabelExpression]) -> bool {
    units.iter().all(|one| one.accepts(record.spec.labels.get(&one.key).map(String::as_str)))
}

/// Returns the topology keys of which all replicas of a unit have to be in one domain, because they are near to one another.
pub(super) fn near_itself(record: &UnitRecord) -> impl Iterator<Item = &String> {
    let near = record.spec.affinity.near.iter().filter(|term| term.weight == 0);
    near.filter(|term| selects_itself(record, &term.units)).map(|term| &term.topology)
}

/// A limit as it is put into a snapshot: by the domains of a topology key, with so many members in each.
struct TermLimit<'r> {
    key: &'r str,
    label: String,
    most: (BTreeMap<String, u32>, u32),
}

/// Labels the nodes of a snapshot by what the members of a gang have to be apart by or spread over, and returns how many may stand together.
/// `usable` are the nodes that some member may use; `n_members` are placed.
///
/// # Errors
/// The terms are about more than one topology key beside `node`: room for that is not planned.
pub(super) fn limits(
    nodes: &mut [NodeFacts],
    record: &UnitRecord,
    n_members: u32,
    usable: &dyn Fn(NodeId) -> bool,
    rows: &RunningUnits,
) -> Result<Vec<MemberLimit>, String> {
    let affinity = &record.spec.affinity;
    let mut terms: Vec<TermLimit<'_>> = Vec::new();
    for term in affinity.apart.iter().filter(|term| term.weight == 0 && selects_itself(record, &term.units)) {
        let label = format!("{TERM}-{}", terms.len());
        terms.push(TermLimit { key: &term.topology, label, most: (BTreeMap::new(), 1) });
    }
    let mut on: IdMap<NodeId, u32> = IdMap::default();
    rows.live().for_each(|(_, row)| *on.entry(row.node).or_default() += 1);
    for term in affinity.spread.iter().filter(|term| term.weight == 0 && selects_itself(record, &term.units))
    {
        // As evenly as can be, which every skew allows.
        let mut known: BTreeMap<String, u32> = BTreeMap::new();
        for node in nodes.iter().filter(|node| usable(node.id) || on.contains_key(&node.id)) {
            if let Some(domain) = domain_of(node, std::slice::from_ref(&term.topology)) {
                *known.entry(domain).or_default() += on.get(&node.id).copied().unwrap_or(0);
            }
        }
        let all = known.values().sum::<u32>().saturating_add(n_members);
        let level = all.div_ceil(u32::try_from(known.len()).unwrap_or(u32::MAX).max(1));
        let most = known.into_iter().map(|(domain, n)| (domain, level.saturating_sub(n))).collect();
        let label = format!("{TERM}-{}", terms.len());
        terms.push(TermLimit { key: &term.topology, label, most: (most, 0) });
    }
    if terms.iter().filter(|term| term.key != NODE).count() > 1 {
        let why = "room is not made for units with several required `apart` or `spread` terms about domains of more than one node";
        return Err(why.to_owned());
    }
    let mut limits = Vec::new();
    for TermLimit { key, label, most } in terms {
        let keys = [key.to_owned()];
        for node in nodes.iter_mut() {
            if let Some(domain) = domain_of(node, &keys) {
                node.labels.insert(label.clone(), domain);
            }
        }
        limits.push(MemberLimit { label, most, is_by_node: key == NODE });
    }
    Ok(limits)
}

/// Returns the limit for members that listen on ports: one on each node.
pub(super) fn port_limit(nodes: &mut [NodeFacts]) -> MemberLimit {
    for node in nodes {
        node.labels.insert(PORTS.to_owned(), node.name.clone());
    }
    MemberLimit { label: PORTS.to_owned(), most: (BTreeMap::new(), 1), is_by_node: true }
}

/// Members of a gang that go to one domain, as filters know them.
pub(super) struct SeatedPart<'a> {
    pub(super) part: &'a DomainPart,
    pub(super) class: u32,
    /// The label that says which domain nodes are of.
    pub(super) level: &'a str,
}

/// Whether the members of a gang find their places, one after the other as a scheduler places them, with all moves of a plan made.
///
/// # Errors
/// What refuses the first one that finds none, in words.
pub(super) fn find_places(
    filters: &mut ClusterFilters,
    record: &UnitRecord,
    rows: &RunningUnits,
    parts: &[SeatedPart<'_>],
    within: Option<&str>,
    nodes: &[NodeFacts],
    plan: &OrderedPlan,
) -> Result<(), String> {
    let mut last: BTreeMap<(UnitId, u32), (NodeId, Allocation)> = BTreeMap::new();
    for one in &plan.moves {
        let given = Allocation { devices: one.devices, ..Allocation::default() };
        last.insert((one.id.unit, one.id.replica.ordinal), (one.to.0, given));
    }
    let mut by_unit: BTreeMap<UnitId, Vec<(u32, NodeId, Allocation)>> = BTreeMap::new();
    for ((unit, ordinal), (node, given)) in last {
        by_unit.entry(unit).or_default().push((ordinal, node, given));
    }
    let cluster = filters.cluster_mut();
    for (unit, moved) in by_unit {
        let Some(mut rows) = cluster.rows().of(unit).cloned() else { continue };
        for (ordinal, node, allocation) in moved {
            if let Some(row) = rows.rows.get_mut(ordinal) {
                (row.node, row.allocation) = (node, allocation);
            }
        }
        cluster.load_rows(unit, rows);
    }
    let mut why = "no node takes its members".to_owned();
    for domain in domains(nodes, within) {
        let mut seated: Vec<RunningUnitId> = Vec::new();
        let all = parts.iter().all(|part| {
            let inside: Vec<&NodeFacts> = nodes
                .iter()
                .filter(|node| domain.is_none_or(|(label, value)| node.labels.get(label) == Some(value)))
                .collect();
            seat_part(filters, record, rows, part, &inside, &mut seated, &mut why)
        });
        if all {
            return Ok(());
        }
        seated.iter().for_each(|id| filters.cluster_mut().forget(*id));
    }
    Err(why)
}

/// The values of a label, or one domain of all nodes.
fn domains<'n>(nodes: &'n [NodeFacts], label: Option<&'n str>) -> Vec<Option<(&'n str, &'n String)>> {
    let Some(label) = label else { return vec![None] };
    let mut values: Vec<&String> = nodes.iter().filter_map(|node| node.labels.get(label)).collect();
    values.sort_unstable();
    values.dedup();
    values.into_iter().map(|value| Some((label, value))).collect()
}

/// Seats a part in the first of its domains that takes all of it.
fn seat_part(
    filters: &mut ClusterFilters,
    record: &UnitRecord,
    rows: &RunningUnits,
    part: &SeatedPart<'_>,
    nodes: &[&NodeFacts],
    seated: &mut Vec<RunningUnitId>,
    why: &mut String,
) -> bool {
    let mut by_domain: BTreeMap<&String, Vec<NodeId>> = BTreeMap::new();
    for node in nodes {
        if let Some(value) = node.labels.get(part.level) {
            by_domain.entry(value).or_default().push(node.id);
        }
    }
    for nodes in by_domain.values() {
        let before = seated.len();
        let all = part.part.ordinals.iter().all(|ordinal| {
            let replica = ReplicaId::new(*ordinal, rows.row(*ordinal).incarnation);
            let id = RunningUnitId { unit: record.id, replica };
            let place = nodes.iter().find_map(|node| match filters.place(part.class, id, *node) {
                Ok(given) => Some((*node, given)),
                Err(refusal) => {
                    *why = refusal;
                    None
                }
            });
            if let Some((node, (shape, given))) = place {
                filters.cluster_mut().assume(id, shape, node, given);
                seated.push(id);
            }
            place.is_some()
        });
        if all {
            return true;
        }
        seated.drain(before..).for_each(|id| filters.cluster_mut().forget(id));
    }
    false
}
