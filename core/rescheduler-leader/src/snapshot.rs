//! What plans are made of: the picture as a snapshot of the rescheduler's core, and the scheduler's filters over it.
//!
//! Everything that takes room stands in the snapshot: rows of the guaranteed pool with all that they take, rows of the best-effort pool with
//! their devices only (what they use beside is taken back when a guaranteed running unit comes), and holds as if somebody ran there. What is not
//! a running unit of the guaranteed pool that could be moved is fixed.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::{
    duration,
    ids::{IdMap, NodeId, RunningUnitId, UnitId},
    resources::{CPU, NETWORK, RUNNING_UNITS, Resources},
    time::Millis,
};
use godel_core_rescheduler::{
    BudgetRoom, ClusterSnapshot, KeptReason, MeasuredUse, NodeFacts, RunningFacts, TrafficShare, UnitFacts,
    last_checkpoint,
};
use godel_domain::{
    demand::{Demand, Pool},
    hold::Hold,
    running_units::{Phase, RunningUnit, RunningUnits},
    unit::{UnitRecord, WorkloadClass},
};
use godel_framework::NodeRequirements;
use rustc_hash::FxHashMap;

use crate::{
    Traffic,
    picture::{ClusterPicture, began_at},
};

mod filters;
mod kept;
mod members;
mod queue_room;
#[cfg(test)]
mod tests;
mod waiting;

pub(crate) use self::{filters::ClusterFilters, kept::kept_by_unit, waiting::waiting_gang};
use self::{
    filters::NOWHERE,
    kept::{KeptRules, breaks_unit, spare_of, spare_of_groups},
};

/// Label of units that says how long a restart takes.
const RESTART_TIME: &str = "godel.dev/restart-time";

/// What snapshots depend on beside the picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotConfig {
    /// Node label whose value is the sub-cluster of the node; if the label is absent, the attribute of that name.
    pub sub_cluster_key: String,
    /// Whether load that is not ours makes nodes hot and keeps moves away from them.
    pub other_load: bool,
    /// Time from leaving a node until a running unit does again what it did, unless its unit says otherwise, milliseconds.
    pub restart_ms: u64,
}

/// A snapshot with the filters that plans keep.
pub(crate) struct PlanInput {
    pub(crate) snapshot: ClusterSnapshot,
    pub(crate) filters: ClusterFilters,
}

pub(crate) fn wall(ms: i64) -> Millis {
    Millis(u64::try_from(ms).unwrap_or(0))
}

/// Takes a snapshot. `O(nodes + running units)`.
pub(crate) fn take(
    picture: &ClusterPicture,
    traffic: &Traffic,
    config: &SnapshotConfig,
    now_ms: i64,
) -> PlanInput {
    let mut making = Making {
        picture,
        snapshot: ClusterSnapshot {
            revision: picture.read.unwrap_or_default(),
            now: wall(now_ms),
            ..ClusterSnapshot::default()
        },
        filters: ClusterFilters::new(picture.cluster.clone(), Arc::clone(&picture.refused)),
        kept: KeptRules::new(picture, now_ms),
        own: NodeNotes::default(),
        groups: FxHashMap::default(),
        has_unit: IdMap::default(),
        budgets: BTreeMap::new(),
        on: IdMap::default(),
        restart_ms: config.restart_ms,
    };
    let mut rows: Vec<(UnitId, &RunningUnits)> = picture.cluster.rows().all().collect();
    rows.sort_unstable_by_key(|(unit, _)| *unit);
    for (unit, rows) in rows {
        let breaks = picture.units.get(&unit).is_some_and(|record| breaks_unit(record, rows));
        for (ordinal, row) in &rows.rows {
            if row.phase.is_live() {
                making.add_row(unit, rows, breaks, ordinal, row, began_at(rows, ordinal, row));
            }
        }
        making.add_group_minima(unit, rows);
    }
    let mut holds = picture.cluster.holds().all();
    holds.sort_unstable_by_key(|hold| hold.id);
    for hold in holds {
        making.add_hold(hold);
    }
    making.add_nodes(config);
    making.add_budgets();
    making.snapshot.traffic = shares(picture, traffic);
    PlanInput { snapshot: making.snapshot, filters: making.filters }
}

/// Traffic of pairs of which both are known.
fn shares(picture: &ClusterPicture, traffic: &Traffic) -> Vec<TrafficShare> {
    let id = |(namespace, name): &(String, String)| picture.unit_named(namespace, name).map(|unit| unit.id);
    traffic
        .iter()
        .filter_map(|((from, to), weight)| Some(TrafficShare { between: (id(from)?, id(to)?), weight }))
        .collect()
}

struct Making<'p> {
    picture: &'p ClusterPicture,
    snapshot: ClusterSnapshot,
    filters: ClusterFilters,
    kept: KeptRules<'p>,
    own: NodeNotes,
    /// Classes of what filters ask, by unit and task group.
    groups: FxHashMap<(UnitId, u16), u32>,
    has_unit: IdMap<UnitId, ()>,
    budgets: BTreeMap<String, BudgetRoom>,
    /// What running units that the snapshot names take of each node.
    on: IdMap<NodeId, Resources>,
    restart_ms: u64,
}

impl Making<'_> {
    fn add_row(
        &mut self,
        unit: UnitId,
        rows: &RunningUnits,
        breaks_unit: bool,
        ordinal: u32,
        row: &RunningUnit,
        started_at: Millis,
    ) {
        let picture = self.picture;
        let Some(shape) = picture.cluster.rows().group_shape(unit, row.group) else { return };
        let known = picture.cluster.catalogue().shape(shape);
        let mut demand: Demand = Demand::clone(&known.demand);
        let is_best_effort = known.pool == Pool::BestEffort;
        if is_best_effort {
            demand = Demand { devices: demand.devices, ..Demand::default() };
            *self.own.n_uncounted.entry(row.node).or_default() += 1;
        }
        let record = picture.units.get(&unit);
        let id = RunningUnitId::new(unit, ordinal, row.incarnation);
        let measured = picture.usage.get(&unit).and_then(|of_unit| of_unit.get(&ordinal)).copied();
        let usage = measured.unwrap_or_else(|| requested(&known.demand));
        self.own.note_use(row, usage, measured.is_some());
        let running = RunningFacts {
            id,
            node: row.node,
            demand,
            devices: row.allocation.devices,
            started_at,
            checkpoint_at: last_checkpoint(
                self.snapshot.now,
                started_at,
                record.map_or(0, |record| checkpoint_every_ms(record, row.group)),
                picture.checkpoints.of(id),
            ),
            ends_at: record.and_then(|record| ends_at(record, row.group, started_at)),
            usage,
            kept: self.kept.reason(unit, rows, ordinal, row, known.pool, breaks_unit),
        };
        for budget in picture.cluster.taken().budgets().counting(unit, ordinal, row) {
            let Some(known) = picture.cluster.taken().budgets().at(*budget) else { continue };
            let name = &known.spec.name;
            if !self.budgets.contains_key(name) {
                let allowed = u32::try_from(known.allowed()).unwrap_or(u32::MAX);
                let room = BudgetRoom { name: name.clone(), allowed, members: Vec::new() };
                self.budgets.insert(name.clone(), room);
            }
            if let Some(room) = self.budgets.get_mut(name) {
                room.members.push(id);
            }
        }
        let class = self.class_of(unit, row.group, record);
        self.push(running, class);
    }

    /// Of each task group with a minimum of its own no more may be missing than that leaves.
    fn add_group_minima(&mut self, unit: UnitId, rows: &RunningUnits) {
        let Some(record) = self.picture.units.get(&unit) else { return };
        for (group, allowed) in spare_of_groups(record, rows) {
            let members = rows.live().filter(|(ordinal, _)| record.group_of(*ordinal) == Some(group));
            let members = members.map(|(ordinal, row)| RunningUnitId::new(unit, ordinal, row.incarnation));
            let name =
                format!("min_member of task group {} of unit {unit}", record.spec.task_groups[group].name);
            self.snapshot.budgets.push(BudgetRoom { name, allowed, members: members.collect() });
        }
    }

    /// What a slot keeps beside what its occupant takes.
    fn add_rest_of_slot(&mut self, hold: &Hold) {
        let cluster = &self.picture.cluster;
        let Some((charge, _)) = cluster.held().given_by(hold.id) else { return };
        let amounts =
            charge.asks.iter().map(|(id, amount)| (cluster.catalogue().resource_name(*id), *amount));
        let amounts = amounts.filter(|(name, amount)| *amount > 0 && *name != RUNNING_UNITS);
        let Ok(requests) = Resources::new(amounts) else { return };
        if requests.iter().next().is_some() {
            *self.own.n_uncounted.entry(hold.node).or_default() += 1;
            let id = RunningUnitId::new(hold.unit, hold.ordinals.first().copied().unwrap_or(0), u32::MAX);
            let demand = Demand { requests, ..Demand::default() };
            let rest =
                RunningFacts { kept: Some(KeptReason::Held), ..RunningFacts::new(id, hold.node, demand) };
            self.push(rest, NOWHERE);
        }
    }

    /// Room that is held is as good as taken, by somebody who stays.
    fn add_hold(&mut self, hold: &Hold) {
        if hold.pool == Pool::BestEffort {
            return;
        }
        if self.picture.cluster.held().occupant_of(hold.id).is_some() {
            return self.add_rest_of_slot(hold);
        }
        for (idx, ordinal) in hold.ordinals.iter().enumerate() {
            let id = RunningUnitId::new(hold.unit, *ordinal, u32::MAX);
            let running = RunningFacts {
                id,
                node: hold.node,
                demand: Demand::clone(&hold.demand),
                devices: hold.allocation(idx).devices,
                started_at: self.snapshot.now,
                checkpoint_at: None,
                ends_at: None,
                usage: MeasuredUse::default(),
                kept: Some(KeptReason::Held),
            };
            self.push(running, NOWHERE);
        }
    }

    fn push(&mut self, running: RunningFacts, class: u32) {
        self.add_unit(running.id.unit);
        self.on.entry(running.node).or_default().add(&running.demand.requests, 1);
        self.snapshot.running.push(running);
        self.filters.push(class);
    }

    fn add_unit(&mut self, unit: UnitId) {
        if self.has_unit.insert(unit, ()).is_some() {
            return;
        }
        let facts = match self.picture.units.get(&unit) {
            Some(record) => {
                let spec = &record.spec;
                let rows = self.picture.cluster.rows().of(unit);
                let spare = rows.map_or(u32::MAX, |rows| spare_of(record, rows));
                let restart = spec.labels.get(RESTART_TIME).and_then(|text| duration::parse_ms(text).ok());
                UnitFacts {
                    id: unit,
                    name: format!("{}/{}", spec.namespace, spec.name),
                    class: spec.class,
                    queue: spec.queue.clone(),
                    labels: spec.labels.clone(),
                    restart_ms: restart.unwrap_or(self.restart_ms),
                    spare: spare.min(self.kept.n_surges(record)),
                }
            }
            // Slots of reservations, and units whose records cannot be read.
            None => UnitFacts {
                id: unit,
                name: format!("unit {unit}"),
                class: WorkloadClass::Daemon,
                queue: String::new(),
                labels: BTreeMap::new(),
                restart_ms: self.restart_ms,
                spare: u32::MAX,
            },
        };
        self.snapshot.units.push(facts);
    }

    fn add_nodes(&mut self, config: &SnapshotConfig) {
        let cluster = &self.picture.cluster;
        let mut nodes: Vec<NodeId> = cluster.nodes().ids().collect();
        // What is still taken on a node without records counts there.
        nodes.extend(self.on.keys().copied().filter(|node| cluster.nodes().spec(*node).is_none()));
        nodes.sort_unstable();
        nodes.dedup();
        for node in nodes {
            let spec = cluster.nodes().spec(node);
            let report = cluster.nodes().report(node);
            let mut labels = report.map(|report| report.attributes.clone()).unwrap_or_default();
            labels.extend(spec.into_iter().flat_map(|spec| spec.labels.clone()));
            let name = spec.map_or_else(|| format!("node {node}"), |spec| spec.name.clone());
            let capacity = cluster.free().allocatable(node).unwrap_or_default();
            // Some of what stands on the node counts for nobody there.
            let n_uncounted = self.own.n_uncounted.get(&node).copied().unwrap_or(0);
            self.snapshot.nodes.push(NodeFacts {
                id: node,
                sub_cluster: labels.get(&config.sub_cluster_key).cloned().unwrap_or_default(),
                n_running_max: report.map(|report| report.max_running_units.saturating_add(n_uncounted)),
                other_use: match config.other_load {
                    true => self.own.other_use(self.picture, node, &name),
                    false => MeasuredUse::default(),
                },
                name,
                capacity,
                devices: report.map(|report| report.devices.clone()).unwrap_or_default(),
                labels,
                accepts: cluster.nodes().usable(node).is_ok(),
            });
        }
    }

    fn add_budgets(&mut self) {
        self.snapshot.budgets.extend(std::mem::take(&mut self.budgets).into_values());
    }

    /// The class of what filters ask about replicas of a task group.
    fn class_of(&mut self, unit: UnitId, group: u16, record: Option<&Arc<UnitRecord>>) -> u32 {
        if let Some(class) = self.groups.get(&(unit, group)) {
            return *class;
        }
        let template = record.and_then(|record| record.spec.task_groups.get(usize::from(group)));
        let shape = self.picture.cluster.rows().group_shape(unit, group);
        let class = match template.zip(shape) {
            Some((group_spec, shape)) => {
                let surges = record.is_some_and(|record| record.spec.max_surge > 0);
                self.filters.class(unit, group, shape, NodeRequirements::of(&group_spec.template), surges)
            }
            None => NOWHERE,
        };
        self.groups.insert((unit, group), class);
        class
    }
}

/// What counts as used where nothing is measured: what is asked for.
fn requested(demand: &Demand) -> MeasuredUse {
    MeasuredUse { cpu_milli: demand.requests.get(CPU), network_bps: demand.requests.get(NETWORK) }
}

/// How often a replica saves its work, as its template says; 0: never.
fn checkpoint_every_ms(record: &UnitRecord, group: u16) -> u64 {
    let spec = record.spec.task_groups.get(usize::from(group));
    spec.and_then(|spec| spec.template.run.checkpoint_every_ms).unwrap_or(0)
}

/// When a replica ends by itself, if that is known.
fn ends_at(record: &UnitRecord, group: u16, started_at: Millis) -> Option<Millis> {
    let lasts = record.spec.task_groups.get(usize::from(group))?.template.run.simulated_duration_ms;
    let deadline = Some(record.spec.active_deadline_ms).filter(|deadline| *deadline > 0);
    lasts.into_iter().chain(deadline).min().map(|lasts| started_at.plus(lasts))
}

/// What is found of nodes while running units are looked at.
#[derive(Default)]
struct NodeNotes {
    /// What stands on a node and takes none of its places for running units.
    n_uncounted: IdMap<NodeId, u32>,
    /// What running units of which nothing is measured use, as plans count it.
    not_measured: IdMap<NodeId, MeasuredUse>,
}

impl NodeNotes {
    fn note_use(&mut self, row: &RunningUnit, usage: MeasuredUse, is_measured: bool) {
        if !is_measured && row.phase == Phase::Running {
            add(self.not_measured.entry(row.node).or_default(), usage);
        }
    }

    /// What others use of a node, as it was measured beside its running units; nothing before somebody has looked.
    fn other_use(&self, picture: &ClusterPicture, node: NodeId, name: &str) -> MeasuredUse {
        let others = picture.other_use.get(name).copied().unwrap_or_default();
        // What runs without being measured is in it.
        let own = self.not_measured.get(&node).copied().unwrap_or_default();
        MeasuredUse {
            cpu_milli: others.cpu_milli.saturating_sub(own.cpu_milli).max(0),
            network_bps: others.network_bps.saturating_sub(own.network_bps).max(0),
        }
    }
}

fn add(sum: &mut MeasuredUse, more: MeasuredUse) {
    sum.cpu_milli = sum.cpu_milli.saturating_add(more.cpu_milli);
    sum.network_bps = sum.network_bps.saturating_add(more.network_bps);
}
