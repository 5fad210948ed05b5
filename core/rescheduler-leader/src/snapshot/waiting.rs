//! A unit that waits, as the parts of a gang for which room is made; labels of the snapshot's nodes say which domain of each part they are of.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::ids::NodeId;
use godel_core_rescheduler::{GangPart, NodeFacts, OrderedPlan, WaitingGang};
use godel_domain::{
    demand::Pool,
    lifecycle,
    running_units::RunningUnits,
    unit::UnitRecord,
    unit_affinity::NODE,
    unit_topology::{GroupTopology, Segments, UnitTopology},
};
use godel_framework::NodeRequirements;

use super::{
    PlanInput,
    members::{self, SeatedPart},
};
use crate::picture::ClusterPicture;

/// Label of nodes, in snapshots alone, by which all parts of a gang share a domain.
const WITHIN: &str = "godel.dev/room-within";
/// Most parts of a gang: each of them is planned by itself.
const N_PARTS_MAX: usize = 64;

/// The label of nodes, in snapshots alone, that says which domain they are of for a part. Nodes that the part may not use lack it.
pub(super) fn level_of(part: usize) -> String {
    format!("godel.dev/room-{part}")
}

/// Replicas of one task group that go to one domain.
pub(super) struct DomainPart {
    group: usize,
    pub(super) ordinals: Vec<u32>,
    /// Nodes of one domain are alike in all of these topology keys.
    keys: Vec<String>,
}

/// A gang that waits, with what says whether its members find their places.
pub(crate) struct RoomAsk {
    pub(crate) gang: WaitingGang,
    parts: Vec<DomainPart>,
    /// Of each part.
    classes: Vec<u32>,
}

impl RoomAsk {
    /// Takes the moves out of a plan after which the members of the gang would not find their places, and says why.
    pub(crate) fn check(
        &self,
        input: &mut PlanInput,
        record: &UnitRecord,
        picture: &ClusterPicture,
        plan: OrderedPlan,
    ) -> OrderedPlan {
        if plan.moves.is_empty() {
            return plan;
        }
        let nothing = RunningUnits::default();
        let rows = picture.cluster.rows().of(record.id).unwrap_or(&nothing);
        let parts = self.parts.iter().zip(&self.classes).zip(&self.gang.parts);
        let seated: Vec<SeatedPart<'_>> = parts
            .map(|((part, class), shown)| SeatedPart {
                part,
                class: *class,
                level: shown.level.as_deref().unwrap_or_default(),
            })
            .collect();
        let PlanInput { snapshot, filters } = input;
        let within = self.gang.within.as_deref();
        match members::find_places(filters, record, rows, &seated, within, &snapshot.nodes, &plan) {
            Ok(()) => plan,
            Err(why) => OrderedPlan {
                objective: (plan.objective.0, plan.objective.0),
                finding: format!("moves make room, but its members would not find their places: {why}"),
                kept: plan.kept,
                refusals: plan.refusals,
                ..OrderedPlan::default()
            },
        }
    }
}

/// Makes a snapshot show a gang the nodes that it may use as domains, and returns what waits.
///
/// # Errors
/// Why no room can be made for it, in words.
pub(crate) fn waiting_gang(
    input: &mut PlanInput,
    record: &UnitRecord,
    picture: &ClusterPicture,
) -> Result<RoomAsk, String> {
    if record.spec.pool == Pool::BestEffort {
        return Err("room is made in the guaranteed pool only".to_owned());
    }
    let nothing = RunningUnits::default();
    let rows = picture.cluster.rows().of(record.id).unwrap_or(&nothing);
    let parts = parts(record, rows)?;
    if parts.len() > N_PARTS_MAX {
        let n = parts.len();
        return Err(format!(
            "room is made for at most {N_PARTS_MAX} task groups and segments at once, not {n}"
        ));
    }
    let outer: Vec<String> =
        keys_of(&record.spec.topology).into_iter().chain(members::near_itself(record).cloned()).collect();
    let shares_domain = parts.len() > 1 && !outer.is_empty();
    if shares_domain {
        for node in &mut input.snapshot.nodes {
            if let Some(domain) = domain_of(node, &outer) {
                node.labels.insert(WITHIN.to_owned(), domain);
            }
        }
    }
    let shown: Vec<(GangPart, u32)> =
        parts.iter().enumerate().map(|(at, part)| show(input, record, at, part)).collect();
    let (mut gang_parts, classes): (Vec<GangPart>, Vec<u32>) = shown.into_iter().unzip();
    let levels: Vec<String> = gang_parts.iter().filter_map(|part| part.level.clone()).collect();
    let usable: BTreeSet<NodeId> = {
        let is_usable = |node: &&NodeFacts| levels.iter().any(|level| node.labels.contains_key(level));
        input.snapshot.nodes.iter().filter(is_usable).map(|node| node.id).collect()
    };
    let n_members = gang_parts.iter().fold(0u32, |sum, part| sum.saturating_add(part.n_members));
    let nodes = &mut input.snapshot.nodes;
    let limits = members::limits(nodes, record, n_members, &|node| usable.contains(&node), rows)?;
    for part in &mut gang_parts {
        part.limits.clone_from(&limits);
        if !part.demand.host_ports.is_empty() {
            part.limits.push(members::port_limit(nodes));
        }
    }
    let gang = WaitingGang { parts: gang_parts, within: shares_domain.then(|| WITHIN.to_owned()) };
    Ok(RoomAsk { gang, parts, classes })
}

/// Labels the nodes that a part may use.
fn show(input: &mut PlanInput, record: &UnitRecord, at: usize, part: &DomainPart) -> (GangPart, u32) {
    let PlanInput { snapshot, filters, .. } = input;
    let template = &record.spec.task_groups[part.group].template;
    let shape = filters.cluster_mut().shape_below(&template.demand, record.spec.pool, template.max_load);
    let group = u16::try_from(part.group).unwrap_or(u16::MAX);
    let class = filters.class(record.id, group, shape, NodeRequirements::of(template), false);
    let first = part.ordinals.first().copied().unwrap_or(0);
    let level = level_of(at);
    for node in &mut snapshot.nodes {
        // What has no place yet goes where the rest of its task group or segment is, if that has to be in one domain.
        let may_use = node.accepts
            && filters.ask(class, None, node.id)
            && filters.stays_with_its_parts(class, first, node.id);
        if let Some(domain) = domain_of(node, &part.keys).filter(|_| may_use) {
            node.labels.insert(level.clone(), domain);
        }
    }
    let n_members = u32::try_from(part.ordinals.len()).unwrap_or(u32::MAX);
    let demand = template.demand.clone();
    (GangPart { demand, n_members, level: Some(level), limits: Vec::new() }, class)
}

/// The domain of a node: its values of some topology keys; `None`: it lacks one.
pub(super) fn domain_of(node: &NodeFacts, keys: &[String]) -> Option<String> {
    let value = |key: &String| {
        if key == NODE { Some(node.name.as_str()) } else { node.labels.get(key).map(String::as_str) }
    };
    let values: Option<Vec<&str>> = keys.iter().map(value).collect();
    values.map(|values| values.join("\n"))
}

/// The keys in which all nodes of a topology have to be alike.
fn keys_of(topology: &UnitTopology) -> Vec<String> {
    let keys = [&topology.required, &topology.homogeneous].into_iter();
    keys.filter(|key| !key.is_empty()).cloned().collect()
}

/// What of a unit is placed next, by the domains to which it goes.
fn parts(record: &UnitRecord, rows: &RunningUnits) -> Result<Vec<DomainPart>, String> {
    let topologies = record.group_topologies();
    let placing = Placing { record, topologies: &topologies };
    let mut parts: BTreeMap<(usize, Option<u32>), DomainPart> = BTreeMap::new();
    for ordinal in placing.next(rows) {
        let Some(group) = record.group_of(ordinal) else { continue };
        let own = placing.own(group).map(|own| keys_of(&own.topology)).unwrap_or_default();
        let segment = placing.segment(group, ordinal);
        if segment.is_some() && !own.is_empty() {
            return Err(
                "room is not made for task groups that require a domain around their segments".to_owned()
            );
        }
        let key = (group, segment.map(|(_, number)| number));
        let within = segment.map(|(segments, _)| segments.within.clone());
        let near = members::near_itself(record).cloned();
        let keys =
            || keys_of(&record.spec.topology).into_iter().chain(near).chain(own).chain(within).collect();
        let part =
            parts.entry(key).or_insert_with(|| DomainPart { group, ordinals: Vec::new(), keys: keys() });
        part.ordinals.push(ordinal);
    }
    if parts.is_empty() {
        return Err("nothing of the unit waits for a place".to_owned());
    }
    Ok(parts.into_values().collect())
}

/// A unit whose replicas are to be placed.
struct Placing<'a> {
    record: &'a UnitRecord,
    topologies: &'a [GroupTopology],
}

impl Placing<'_> {
    /// The topology of a task group's own.
    fn own(&self, group: usize) -> Option<&GroupTopology> {
        self.topologies.iter().find(|own| usize::from(own.group) == group)
    }

    /// The segments that an ordinal is in, those of the unit or of its task group, and the number of its own.
    fn segment(&self, group: usize, ordinal: u32) -> Option<(&Segments, u32)> {
        let of_unit = self.record.spec.topology.segments.as_ref().map(|segments| (segments, 0));
        let of_group = || self.own(group).and_then(|own| Some((own.topology.segments.as_ref()?, own.first)));
        let (segments, first) = of_unit.or_else(of_group)?;
        Some((segments, ordinal.saturating_sub(first) / segments.size.max(1)))
    }

    /// The ordinals that have to be placed together next: what is missing of the gang, with the minima of its task groups and whole segments, or
    /// all that waits once it runs.
    fn next(&self, rows: &RunningUnits) -> BTreeSet<u32> {
        let (pending, _) = lifecycle::pending(self.record, rows);
        let live: Vec<u32> =
            self.record.iter_ordinals().filter(|ordinal| rows.row(*ordinal).phase.is_live()).collect();
        let min_member = self.record.spec.min_member as usize;
        let n_missing = if live.len() < min_member { min_member - live.len() } else { pending.len() };
        let mut next = BTreeSet::new();
        for (group, spec) in self.record.spec.task_groups.iter().enumerate() {
            let is_of_group = |ordinal: &&u32| self.record.group_of(**ordinal) == Some(group);
            let n_live = live.iter().filter(is_of_group).count();
            let n_lacking = (spec.min_member as usize).saturating_sub(n_live);
            next.extend(pending.iter().filter(is_of_group).take(n_lacking));
        }
        let rest: Vec<u32> = pending.iter().filter(|ordinal| !next.contains(*ordinal)).copied().collect();
        next.extend(rest.into_iter().take(n_missing.saturating_sub(next.len())));
        let of = |ordinal: u32| {
            let group = self.record.group_of(ordinal)?;
            self.segment(group, ordinal).map(|(_, number)| (group, number))
        };
        let begun: BTreeSet<(usize, u32)> = next.iter().filter_map(|ordinal| of(*ordinal)).collect();
        next.extend(pending.iter().filter(|ordinal| of(**ordinal).is_some_and(|one| begun.contains(&one))));
        next
    }
}
