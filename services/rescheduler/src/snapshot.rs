//! What plans are made of: the picture as a snapshot of the rescheduler's core, and the scheduler's filters over it.
//!
//! Everything that takes room stands in the snapshot: rows of the guaranteed pool with all that they take, rows of the best-effort pool with
//! their devices only (what they use beside is taken back when a guaranteed running unit comes), and holds as if somebody ran there. What is not
//! a running unit of the guaranteed pool that could be moved is fixed.

use std::{cell::RefCell, collections::BTreeMap, sync::Arc};

use godel_cluster::{Cluster, ShapeId};
use godel_core_rescheduler::{
    BudgetRoom, ClusterSnapshot, Filters, Layout, MeasuredUse, NodeFacts, NodeFilters, NodeIdx, RunIdx,
    RunningFacts, TrafficShare, UnitFacts, last_checkpoint,
};
use godel_domain::{
    demand::{Demand, Pool},
    duration,
    hold::Hold,
    ids::{IdMap, NodeId, RunningUnitId, UnitId},
    resources::{CPU, NETWORK, Resources},
    running_units::{Phase, RunningUnit, RunningUnits},
    time::Millis,
    unit::{OnBelowMin, OnEviction, UnitRecord, WorkloadClass},
};
use godel_framework::{NodeAsk, NodeRequirements, UnitAsk};
use rustc_hash::FxHashMap;

use crate::{
    config::Config,
    picture::{Picture, began_at},
    traffic::Traffic,
};

#[cfg(test)]
mod tests;
mod waiting;

pub(crate) use waiting::waiting_gang;

/// Label of units that says how long a restart takes.
const RESTART_TIME: &str = "godel.dev/restart-time";

/// A snapshot with the filters that plans keep.
pub(crate) struct PlanInput {
    pub(crate) snapshot: ClusterSnapshot,
    pub(crate) filters: ClusterFilters,
    /// Whether each running unit of the snapshot stays where it is, by position.
    pub(crate) fixed: Vec<bool>,
}

fn wall(ms: i64) -> Millis {
    Millis(u64::try_from(ms).unwrap_or(0))
}

/// Takes a snapshot. `O(nodes + running units)`.
pub(crate) fn take(picture: &Picture, traffic: &Traffic, config: &Config, now_ms: i64) -> PlanInput {
    let mut making = Making {
        picture,
        snapshot: ClusterSnapshot {
            revision: picture.read.unwrap_or_default(),
            now: wall(now_ms),
            ..ClusterSnapshot::default()
        },
        filters: ClusterFilters::new(picture.cluster.clone()),
        fixed: Vec::new(),
        groups: FxHashMap::default(),
        has_unit: IdMap::default(),
        budgets: BTreeMap::new(),
        on: IdMap::default(),
        restart_ms: config.restart_time.ms(),
    };
    let mut rows: Vec<(UnitId, &RunningUnits)> = picture.cluster.all_rows().collect();
    rows.sort_unstable_by_key(|(unit, _)| *unit);
    for (unit, rows) in rows {
        for (ordinal, row) in &rows.rows {
            if row.phase.is_live() {
                making.add_row(unit, (ordinal, row), began_at(rows, ordinal, row));
            }
        }
    }
    let mut holds = picture.cluster.holds();
    holds.sort_unstable_by_key(|hold| hold.id);
    for hold in holds {
        making.add_hold(hold);
    }
    making.add_nodes(&config.sub_cluster_key);
    making.add_budgets();
    making.snapshot.traffic = shares(picture, traffic);
    PlanInput { snapshot: making.snapshot, filters: making.filters, fixed: making.fixed }
}

/// Traffic of pairs of which both are known.
fn shares(picture: &Picture, traffic: &Traffic) -> Vec<TrafficShare> {
    let id = |(namespace, name): &(String, String)| picture.unit_named(namespace, name).map(|unit| unit.id);
    traffic
        .iter()
        .filter_map(|((from, to), weight)| Some(TrafficShare { between: (id(from)?, id(to)?), weight }))
        .collect()
}

struct Making<'p> {
    picture: &'p Picture,
    snapshot: ClusterSnapshot,
    filters: ClusterFilters,
    fixed: Vec<bool>,
    /// Classes of what filters ask, by unit and task group.
    groups: FxHashMap<(UnitId, u16), u32>,
    has_unit: IdMap<UnitId, ()>,
    budgets: BTreeMap<String, BudgetRoom>,
    /// What running units that the snapshot names take of each node.
    on: IdMap<NodeId, Resources>,
    restart_ms: u64,
}

impl Making<'_> {
    fn add_row(&mut self, unit: UnitId, (ordinal, row): (u32, &RunningUnit), started_at: Millis) {
        let picture = self.picture;
        let Some(shape) = picture.cluster.group_shape(unit, row.group) else { return };
        let known = picture.cluster.shapes().get(shape);
        let mut demand: Demand = Demand::clone(&known.demand);
        let is_best_effort = known.pool == Pool::BestEffort;
        if is_best_effort {
            demand = Demand { devices: demand.devices, ..Demand::default() };
        }
        let record = picture.units.get(&unit);
        let is_fixed = is_best_effort
            || row.phase != Phase::Running
            || row.eviction.is_some()
            || record.is_none_or(|record| !may_move(record, ordinal));
        let id = RunningUnitId::new(unit, ordinal, row.incarnation);
        let usage = picture.usage.get(&unit).and_then(|of_unit| of_unit.get(&ordinal)).copied();
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
            usage: usage.unwrap_or_else(|| requested(&known.demand)),
        };
        for budget in picture.cluster.budgets().counting(unit, ordinal, row) {
            let Some(known) = picture.cluster.budgets().at(*budget) else { continue };
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
        self.push(running, is_fixed, class);
    }

    /// Room that is held is as good as taken, by somebody who stays.
    fn add_hold(&mut self, hold: &Hold) {
        if hold.pool == Pool::BestEffort || self.picture.cluster.occupant_of(hold.id).is_some() {
            return;
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
            };
            self.push(running, true, NOWHERE);
        }
    }

    fn push(&mut self, running: RunningFacts, is_fixed: bool, class: u32) {
        self.add_unit(running.id.unit);
        self.on.entry(running.node).or_default().add(&running.demand.requests, 1);
        self.snapshot.running.push(running);
        self.fixed.push(is_fixed);
        self.filters.class_of.push(class);
    }

    fn add_unit(&mut self, unit: UnitId) {
        if self.has_unit.insert(unit, ()).is_some() {
            return;
        }
        let facts = match self.picture.units.get(&unit) {
            Some(record) => {
                let spec = &record.spec;
                let restart = spec.labels.get(RESTART_TIME).and_then(|text| duration::parse_ms(text).ok());
                UnitFacts {
                    id: unit,
                    name: format!("{}/{}", spec.namespace, spec.name),
                    class: spec.class,
                    queue: spec.queue.clone(),
                    labels: spec.labels.clone(),
                    restart_ms: restart.unwrap_or(self.restart_ms),
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
            },
        };
        self.snapshot.units.push(facts);
    }

    fn add_nodes(&mut self, sub_cluster_key: &str) {
        let cluster = &self.picture.cluster;
        let mut nodes: Vec<NodeId> = cluster.nodes().collect();
        // What is still taken on a node without records counts there.
        nodes.extend(self.on.keys().copied().filter(|node| cluster.spec(*node).is_none()));
        nodes.sort_unstable();
        nodes.dedup();
        for node in nodes {
            let spec = cluster.spec(node);
            let report = cluster.report(node);
            let mut labels = report.map(|report| report.attributes.clone()).unwrap_or_default();
            labels.extend(spec.into_iter().flat_map(|spec| spec.labels.clone()));
            self.snapshot.nodes.push(NodeFacts {
                id: node,
                name: spec.map_or_else(|| format!("node {node}"), |spec| spec.name.clone()),
                sub_cluster: labels.get(sub_cluster_key).cloned().unwrap_or_default(),
                capacity: cluster.allocatable(node).unwrap_or_default(),
                devices: report.map(|report| report.devices.clone()).unwrap_or_default(),
                labels,
                accepts: cluster.usable(node).is_ok(),
            });
        }
    }

    fn add_budgets(&mut self) {
        self.snapshot.budgets = std::mem::take(&mut self.budgets).into_values().collect();
    }

    /// The class of what filters ask about replicas of a task group.
    fn class_of(&mut self, unit: UnitId, group: u16, record: Option<&Arc<UnitRecord>>) -> u32 {
        if let Some(class) = self.groups.get(&(unit, group)) {
            return *class;
        }
        let template = record.and_then(|record| record.spec.task_groups.get(usize::from(group)));
        let shape = self.picture.cluster.group_shape(unit, group);
        let class = match template.zip(shape) {
            Some((group_spec, shape)) => {
                self.filters.class((unit, group), shape, NodeRequirements::of(&group_spec.template))
            }
            None => NOWHERE,
        };
        self.groups.insert((unit, group), class);
        class
    }
}

/// Whether a move does a unit no harm: its replicas come back by themselves, and do not take others with them.
fn may_move(record: &UnitRecord, ordinal: u32) -> bool {
    let spec = &record.spec;
    let breaks_gang = spec.min_member > 1 && spec.on_below_min != OnBelowMin::Keep;
    record.is_wanted()
        && record.group_of(ordinal).is_some()
        && !matches!(spec.class, WorkloadClass::Daemon | WorkloadClass::Yarn)
        && spec.on_eviction != OnEviction::Fail
        && !breaks_gang
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

/// No node is admitted.
const NOWHERE: u32 = u32::MAX;

/// What filters ask about replicas that are alike.
struct AskClass {
    unit: UnitId,
    group: u16,
    shape: ShapeId,
    requirements: NodeRequirements,
    about_units: Option<UnitAsk>,
}

/// A class, the node from which the running unit is thought away, and the node that is asked about.
type Question = (u32, Option<NodeId>, NodeId);

/// The scheduler's filters over the cluster as it was when the snapshot was taken. Room is the layout's business.
pub(crate) struct ClusterFilters {
    /// The running unit that is asked about is thought away from it while its terms are judged.
    cluster: RefCell<Cluster>,
    classes: Vec<AskClass>,
    /// Classes that no unit has for itself.
    shared: FxHashMap<(ShapeId, u64), Vec<u32>>,
    /// Of each running unit of the snapshot.
    class_of: Vec<u32>,
    /// What the filters said.
    said: RefCell<FxHashMap<Question, bool>>,
}

impl ClusterFilters {
    fn new(cluster: Cluster) -> Self {
        Self {
            cluster: RefCell::new(cluster),
            classes: Vec::new(),
            shared: FxHashMap::default(),
            class_of: Vec::new(),
            said: RefCell::default(),
        }
    }

    fn class(&mut self, (unit, group): (UnitId, u16), shape: ShapeId, requirements: NodeRequirements) -> u32 {
        if requirements.has_volumes {
            return NOWHERE;
        }
        let cluster = self.cluster.get_mut();
        let about_units = UnitAsk::of(cluster, unit, (shape, &requirements));
        let is_shared = about_units.is_none() && cluster.daemon(unit).is_none();
        let key = (shape, hash_of(&requirements));
        if is_shared {
            let alike = self.shared.get(&key).into_iter().flatten();
            let found = alike.copied().find(|class| {
                self.classes.get(*class as usize).is_some_and(|known| known.requirements == requirements)
            });
            if let Some(class) = found {
                return class;
            }
        }
        let class = u32::try_from(self.classes.len()).unwrap_or(NOWHERE);
        self.classes.push(AskClass { unit, group, shape, requirements, about_units });
        if is_shared {
            self.shared.entry(key).or_default().push(class);
        }
        class
    }

    /// Asks all filters about a node, with one replica thought away from the node `without`: from where it moves away it is gone when its
    /// next incarnation comes.
    fn ask(&self, class: u32, without: Option<NodeId>, node: NodeId) -> bool {
        let Some(known) = self.classes.get(class as usize) else { return false };
        let mut cluster = self.cluster.borrow_mut();
        let ask = NodeAsk {
            shape: known.shape,
            requirements: &known.requirements,
            unit: known.about_units.as_ref(),
            daemon: cluster.daemon(known.unit),
            volume_node: None,
        };
        let admit = |cluster: &Cluster| {
            let concerned = godel_framework::concerned(cluster, &ask);
            godel_framework::admit(cluster, (ask, concerned), node, true).is_ok()
        };
        match without {
            Some(home) => cluster.without_one(known.unit, home, |cluster| admit(cluster)),
            None => admit(&cluster),
        }
    }

    /// Whether a replica of a class stays with the others of its segment, and of its task group if that has to be in one domain.
    fn stays_with_its_parts(&self, class: u32, ordinal: u32, node: NodeId) -> bool {
        let Some(known) = self.classes.get(class as usize) else { return false };
        let Some(ask) = known.about_units.as_ref().filter(|ask| ask.rules.has_parts()) else { return true };
        let cluster = self.cluster.borrow();
        let mut parts = ask.rules.segments_of(known.group);
        parts.all(|rule| cluster.fits_segment(known.unit, rule, ordinal, node).is_ok())
    }
}

fn hash_of(requirements: &NodeRequirements) -> u64 {
    use std::hash::{Hash as _, Hasher as _};
    let mut hasher = rustc_hash::FxHasher::default();
    let NodeRequirements { node_selector, tolerations, node_affinity, max_load, runtime, has_volumes } =
        requirements;
    (node_selector, tolerations, node_affinity, max_load, runtime, has_volumes).hash(&mut hasher);
    hasher.finish()
}

impl Filters for ClusterFilters {
    fn admits(&self, layout: &Layout<'_>, unit: RunIdx, node: NodeIdx) -> bool {
        let class = self.class_of.get(unit.idx()).copied().unwrap_or(NOWHERE);
        if class == NOWHERE || !NodeFilters.admits(layout, unit, node) {
            return false;
        }
        let to = layout.node(node).id;
        let has_terms = self.classes.get(class as usize).is_some_and(|known| known.about_units.is_some());
        if has_terms {
            // The cluster does not know of the other moves of the plan.
            let owner = layout.owner(unit);
            let comes_too =
                |other: &RunIdx| *other != unit && layout.owner(*other) == owner && layout.is_moved(*other);
            if layout.on(node).iter().any(comes_too) {
                return false;
            }
            // Nor need it: wherever the others of its parts go, they stay in the domain in which they are.
            if !self.stays_with_its_parts(class, layout.facts(unit).id.replica.ordinal, to) {
                return false;
            }
        }
        let without = has_terms.then(|| layout.node(layout.home(unit)).id);
        let key = (class, without, to);
        if let Some(said) = self.said.borrow().get(&key) {
            return *said;
        }
        let said = self.ask(class, without, to);
        self.said.borrow_mut().insert(key, said);
        said
    }
}
