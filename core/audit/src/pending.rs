//! I8: pending units tried on every node in turn, the plainest way.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::{
    ids::{NodeId, Revision, UnitId},
    quantity::MILLI_WHOLE,
    resources::{CPU, MEMORY, RUNNING_UNITS, Resources},
};
use godel_domain::{
    allocation::{GivenZones, ZoneSet},
    demand::{DeviceRequest, Pool},
    hold::Hold,
    node::{Device, NODE_CLASS, TaintEffect},
    node_load::{MaxLoad, NodeLoad},
    running_units::{EvictionReason, Phase},
    unit::{OnBelowMin, TaskGroup, Template, UnitRecord},
    zone::{CpuMode, ZonePolicy},
};

use super::{
    Evidence, LocalProcess, Orphan,
    owners::Accounts,
    queues::{QueueRoom, levels},
    room::{self, NodeSums, ZoneSums},
    verdict::Findings,
    world::{World, WorldNode, WorldRow, WorldUnit},
};

/// Where the pending running units of a unit would fit: proof that it should have been placed.
pub type Witness = Vec<NodeId>;

/// Why a template does not fit a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Misfit {
    /// No contact with its agent.
    NotReady,
    /// Closed by an administrator.
    Cordoned,
    /// It is of a class that the replica does not name.
    Class,
    /// It runs processes and the replica has no command, or it runs no images and the replica has one.
    Runtime,
    /// A label is missing or has another value.
    Selector(String),
    /// Its labels meet no required term.
    Affinity,
    /// More of it is used than is accepted.
    Load,
    /// A taint that is not tolerated.
    Taint(String),
    /// Too little of a resource.
    Resource(String),
    /// Too few devices that are free and of an accepted model.
    Device,
    /// No zone has enough, or it is not judged whether some have.
    Zone,
}

/// What is left on every node, for trying units one by one against one state.
#[derive(Clone, Debug)]
pub struct Scan<'a> {
    world: &'a World,
    free: BTreeMap<NodeId, Free>,
    queues: QueueRoom<'a>,
    owners: Accounts,
}

/// What all looks until now have in common.
#[derive(Clone, Debug)]
pub struct Before {
    /// Revision of the first look.
    pub since: Revision,
    /// Units that waited each time.
    waiting: BTreeSet<UnitId>,
    /// The least that each node had left.
    free: BTreeMap<NodeId, Free>,
    /// Processes that no running unit owned each time.
    pub(super) orphans: BTreeSet<(NodeId, Orphan)>,
    /// Processes of the machine of the audit that were there each time.
    pub(super) local: BTreeSet<LocalProcess>,
}

impl Before {
    /// The look that `evidence` was, and those before it.
    pub fn of(evidence: &Evidence) -> Self {
        let world = &evidence.listed;
        let mut scan = Scan::new(world);
        let mut waiting: BTreeSet<UnitId> = waiting(world).iter().map(|(id, ..)| *id).collect();
        let orphans = evidence.processes.iter();
        let mut orphans: BTreeSet<(NodeId, Orphan)> =
            orphans.flat_map(|on| on.orphans.iter().map(|orphan| (on.node, orphan.clone()))).collect();
        let mut local: BTreeSet<LocalProcess> = evidence.local.iter().cloned().collect();
        let mut since = world.revision;
        if let Some(before) = &evidence.before {
            scan.keep_least(&before.free);
            waiting.retain(|id| before.waiting.contains(id));
            orphans.retain(|orphan| before.orphans.contains(orphan));
            local.retain(|one| before.local.contains(one));
            since = before.since;
        }
        Self { since, waiting, free: scan.free, orphans, local }
    }
}

/// What is left on a node.
#[derive(Clone, Debug)]
pub(super) struct Free {
    guaranteed: Resources,
    best_effort: Resources,
    devices: Vec<u32>,
    zones: ZoneSums,
}

impl<'a> Scan<'a> {
    /// Sums what is bound, evicting included.
    pub fn new(world: &'a World) -> Self {
        let mut taken = room::usage(world, |_| true);
        let kept = |hold: &Hold| !hold.is_claim();
        for hold in world.holds.values().map(|hold| &hold.value).filter(|hold| kept(hold)) {
            taken.entry(hold.node).or_default().add_gathered(hold);
        }
        let nothing = NodeSums::default();
        let (short, none) = (room::short_kinds(world), BTreeSet::new());
        let free = |(id, node): (&NodeId, &WorldNode)| {
            let (taken, short) = (taken.get(id).unwrap_or(&nothing), short.get(id).unwrap_or(&none));
            (*id, Free::new(node, taken, short))
        };
        let free = world.nodes.iter().map(free).collect();
        Self { world, free, queues: QueueRoom::new(world), owners: Accounts::of(world) }
    }

    /// Counts only room that was also there before.
    fn keep_least(&mut self, before: &BTreeMap<NodeId, Free>) {
        self.free.retain(|node, free| {
            let other = before.get(node);
            if let Some(other) = other {
                free.keep_least(other);
            }
            other.is_some()
        });
    }

    /// One running unit of `template` on the node as it is now.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn fits(&self, template: &Template, pool: Pool, node: NodeId) -> Result<(), Misfit> {
        let (Some(of), Some(free)) = (self.world.nodes.get(&node), self.free.get(&node)) else {
            return Err(Misfit::NotReady);
        };
        admits(of, template)?;
        free.clone().take(of, template, pool)
    }

    /// Places for the pending running units of a unit that it needs to move on: one if it is bound already,
    /// else as many as `min_member` lacks. `None` if this way of looking finds none, or its queue has no room for
    /// those. Sound: what it returns fits. For gangs of one template also complete; what is found for several together
    /// counts only if nobody can miss it, for whether they fit at all is bin packing, and schedulers are greedy.
    pub fn place(&self, record: &UnitRecord, unit: &WorldUnit) -> Option<Witness> {
        let (pending, needed) = wants(record, unit);
        if pending.len() < needed {
            return None;
        }
        let (places, templates) = self.place_some(&pending, record.spec.pool, needed)?;
        if !self.has_room_for_each(&templates, record.spec.pool) {
            return None;
        }
        let group = |template: &Template| {
            let groups = &record.spec.task_groups;
            groups.iter().position(|group| std::ptr::eq(&group.template, template)).unwrap_or(0)
        };
        let asked = templates.iter().map(|template| (group(template), &template.demand));
        if !self.owners.hold(self.world, record, asked) {
            return None;
        }
        let demands = templates.iter().map(|template| &template.demand);
        self.queues.holds(&record.spec.queue, demands).then_some(places)
    }

    /// Queues for which the first of its running units that a unit needs to move on are too much.
    fn held_up_at<'s>(&self, record: &'s UnitRecord, unit: &WorldUnit) -> Vec<&'s str> {
        let (pending, needed) = wants(record, unit);
        let demands = pending.iter().take(needed).map(|template| &template.demand);
        self.queues.short_of(&record.spec.queue, demands).collect()
    }

    /// Whether any order and any choice of nodes finds room for these together: each of them has a node with room for all
    /// of them. Of one template it is enough that they were found.
    fn has_room_for_each(&self, templates: &[&Template], pool: Pool) -> bool {
        let Some((first, others)) = templates.split_first() else { return true };
        if others.iter().all(|other| other == first) {
            return true;
        }
        templates.iter().all(|template| {
            self.world.nodes.iter().any(|(id, node)| {
                let Some(mut free) = self.free.get(id).cloned() else { return false };
                admits(node, template).is_ok()
                    && templates.iter().all(|each| free.take(node, each, pool).is_ok())
            })
        })
    }

    fn place_some<'t>(
        &self,
        pending: &[&'t Template],
        pool: Pool,
        needed: usize,
    ) -> Option<(Witness, Vec<&'t Template>)> {
        let mut places = Witness::new();
        let mut templates = Vec::new();
        let mut free = BTreeMap::new();
        let mut full: Option<&Template> = None;
        for template in pending {
            if places.len() == needed {
                break;
            }
            // The same template found no node a moment ago: it finds none now.
            if full.is_some_and(|full| full == *template) {
                continue;
            }
            let found = self.world.nodes.iter().find(|(id, node)| {
                admits(node, template).is_ok()
                    && self.free.get(id).is_some_and(|at_first| {
                        free.entry(**id)
                            .or_insert_with(|| at_first.clone())
                            .take(node, template, pool)
                            .is_ok()
                    })
            });
            match found {
                Some((id, _)) => {
                    places.push(*id);
                    templates.push(*template);
                }
                None => full = Some(template),
            }
        }
        (places.len() == needed).then_some((places, templates))
    }
}

impl Free {
    /// Of kinds of which a node is short nothing is free.
    pub(super) fn new(node: &WorldNode, taken: &NodeSums, short: &BTreeSet<&str>) -> Self {
        let left = |sums: &Resources| {
            let mut free = node.allocatable().into_owned();
            free.add_amount(RUNNING_UNITS, node.max_running_units());
            free.add(sums, -1);
            free
        };
        let devices = node.report.as_ref().map_or(&[][..], |report| &report.value.devices);
        let of_device = |(idx, device): (usize, &Device)| {
            let taken = taken.devices.get(idx).copied().unwrap_or(0);
            if short.contains(device.kind.as_str()) { 0 } else { MILLI_WHOLE.saturating_sub(taken) }
        };
        let devices = devices.iter().enumerate().map(of_device).collect();
        let mut best_effort = node.best_effort_allocatable(&taken.kept);
        best_effort.add(&taken.best_effort, -1);
        Self { guaranteed: left(&taken.guaranteed), best_effort, devices, zones: taken.zones.clone() }
    }

    fn keep_least(&mut self, other: &Self) {
        self.zones.keep_most(&other.zones);
        keep_least(&mut self.guaranteed, &other.guaranteed);
        keep_least(&mut self.best_effort, &other.best_effort);
        for (idx, left) in self.devices.iter_mut().enumerate() {
            *left = other.devices.get(idx).map_or(0, |other| *other.min(left));
        }
    }

    /// Takes what one running unit needs, or changes nothing.
    pub(super) fn take(&mut self, node: &WorldNode, template: &Template, pool: Pool) -> Result<(), Misfit> {
        let zone = self.zone_for(node, template);
        let free = match pool {
            Pool::Guaranteed => &mut self.guaranteed,
            Pool::BestEffort => &mut self.best_effort,
        };
        for (name, amount) in template.demand.requests.iter().chain([(RUNNING_UNITS, 1)]) {
            if amount > free.get(name) {
                return Err(Misfit::Resource(name.to_owned()));
            }
        }
        let zone = zone?;
        // Of different kinds: none takes what another one does.
        let chosen = template.demand.devices.iter().map(|request| choose(node, &self.devices, request));
        let chosen: Option<Vec<Vec<usize>>> = chosen.collect();
        for (request, taken) in template.demand.devices.iter().zip(chosen.ok_or(Misfit::Device)?) {
            for idx in taken {
                self.devices[idx] -= request.milli;
            }
        }
        free.add(&template.demand.requests, -1);
        free.add_amount(RUNNING_UNITS, -1);
        self.zones.add(&template.demand, zone, 1);
        Ok(())
    }

    /// The zones that a template needs. Only shared CPUs of one zone without devices are judged: who asks for more is taken not
    /// to fit.
    fn zone_for(&self, node: &WorldNode, template: &Template) -> Result<GivenZones, Misfit> {
        let demand = &template.demand;
        let is_placed =
            |request: &DeviceRequest| request.terms.as_ref().is_some_and(|terms| terms.is_about_places());
        if demand.devices.iter().any(is_placed) {
            return Err(Misfit::Zone);
        }
        let Some(request) = demand.zones else { return Ok(GivenZones::NONE) };
        if request.policy != ZonePolicy::SingleZone
            || request.cpu_mode != CpuMode::Shared
            || !demand.devices.is_empty()
        {
            return Err(Misfit::Zone);
        }
        let holds = |at: &usize| {
            let mut asked = demand.requests.iter().chain([(RUNNING_UNITS, 0)]);
            asked.all(|(name, amount)| self.zones.left(node, *at, name).is_some_and(|left| amount <= left))
        };
        let zone = room::assigned(node).iter().find(holds).ok_or(Misfit::Zone)?;
        Ok(GivenZones::from([zone].into_iter().collect::<ZoneSet>()))
    }
}

fn keep_least(sums: &mut Resources, others: &Resources) {
    for (name, amount) in sums.clone().iter() {
        sums.add_amount(name, others.get(name).saturating_sub(amount).min(0));
    }
}

/// Devices for a request: of those that fit, the fullest first.
fn choose(node: &WorldNode, free: &[u32], request: &DeviceRequest) -> Option<Vec<usize>> {
    let devices = node.report.as_ref().map_or(&[][..], |report| &report.value.devices);
    let mut fitting: Vec<usize> = (0..devices.len())
        .filter(|idx| {
            request.accepts(&devices[*idx]) && free.get(*idx).copied().unwrap_or(0) >= request.milli
        })
        .collect();
    fitting.sort_by_key(|idx| (free[*idx], *idx));
    let count = usize::try_from(request.count).ok()?;
    (fitting.len() >= count).then(|| fitting[..count].to_vec())
}

/// Whether the node takes the template at all, room apart.
pub(super) fn admits(node: &WorldNode, template: &Template) -> Result<(), Misfit> {
    let (Some(spec), Some(report)) = (&node.spec, &node.report) else { return Err(Misfit::NotReady) };
    if !report.value.can_start() {
        return Err(Misfit::NotReady);
    }
    if spec.value.is_closed() {
        return Err(Misfit::Cordoned);
    }
    if !report.value.runtime.takes(&template.run) {
        return Err(Misfit::Runtime);
    }
    for (key, value) in &template.node_selector {
        let has = spec.value.labels.get(key).or_else(|| report.value.attributes.get(key));
        if has != Some(value) {
            return Err(Misfit::Selector(key.clone()));
        }
    }
    let label = |key: &str| {
        spec.value.labels.get(key).or_else(|| report.value.attributes.get(key)).map(String::as_str)
    };
    if !template.node_affinity.admits(label) {
        return Err(Misfit::Affinity);
    }
    let mut conditions = template.node_affinity.required.iter().flatten();
    let names_class =
        template.node_selector.contains_key(NODE_CLASS) || conditions.any(|one| one.key == NODE_CLASS);
    if !names_class && label(NODE_CLASS).is_some() {
        return Err(Misfit::Class);
    }
    if is_overloaded(node, template) {
        return Err(Misfit::Load);
    }
    let refusing = spec.value.taints.iter().find(|taint| {
        let accepting = || template.tolerations.iter().filter(|toleration| toleration.tolerates(taint));
        let evicts = taint.effect == TaintEffect::NoExecute;
        taint.effect.is_hard()
            && (accepting().next().is_none()
                || evicts && accepting().any(|toleration| toleration.tolerated_s.is_some()))
    });
    refusing.map_or(Ok(()), |taint| Err(Misfit::Taint(taint.key.clone())))
}

/// Whether more of a node is used than a template accepts, or of one of its zones where replicas are given some: whether there are
/// enough others is not looked into.
fn is_overloaded(node: &WorldNode, template: &Template) -> bool {
    let Some(usage) = node.usage.as_ref().map(|usage| &usage.value) else { return false };
    let MaxLoad { cpu, memory } = template.max_load;
    let is_above = |used: i64, has: &Resources, name: &str, percent: Option<u32>| {
        percent.is_some_and(|percent| {
            i128::from(used.min(has.get(name))) * 100 > i128::from(has.get(name)) * i128::from(percent)
        })
    };
    let is_hot = |load: &NodeLoad, has: &Resources| {
        is_above(load.p95.cpu, has, CPU, cpu) || is_above(load.p95.memory, has, MEMORY, memory)
    };
    let zones = node.report.as_ref().map_or(&[][..], |report| &report.value.zones);
    let has_zones = template.demand.zones.is_some_and(|request| request.policy != ZonePolicy::BestEffort);
    let mut zone_loads = usage.zone_loads.iter().filter(|_| has_zones);
    usage.load.as_ref().is_some_and(|load| is_hot(load, &node.allocatable()))
        || zone_loads
            .any(|of| zones.get(usize::from(of.zone)).is_some_and(|zone| is_hot(&of.load, &zone.capacity)))
}

/// Units that wait although a plain look finds room for them, each tried alone against the state; after earlier looks
/// those that waited each time, against the room that was there each time.
pub(super) fn check(evidence: &Evidence) -> Findings {
    let Evidence { listed: world, before, busy, .. } = evidence;
    let mut findings = Findings::default();
    let waiting = waiting(world);
    if let Some(why) = busy {
        findings
            .not_judged(format!("whether any of {} units that wait could be placed: {why}", waiting.len()));
        return findings;
    }
    let is_new = |id: &UnitId| before.as_ref().is_some_and(|before| !before.waiting.contains(id));
    let mut scan = Scan::new(world);
    if let Some(before) = before {
        scan.keep_least(&before.free);
    }
    let mut held_up: BTreeMap<&str, Vec<UnitId>> = BTreeMap::new();
    for (id, record, unit) in &waiting {
        scan.held_up_at(record, unit)
            .into_iter()
            .for_each(|queue| held_up.entry(queue).or_default().push(*id));
    }
    // Room under a maximum may be kept for the one that has waited longest for it.
    let yields = |id: UnitId, record: &UnitRecord| {
        let mut others = levels(&record.spec.queue).filter_map(|queue| held_up.get(queue)).flatten();
        others.any(|other| *other != id)
    };
    let keeping = keeping(world);
    let is_beyond = |record: &UnitRecord| {
        let has_ports = |group: &TaskGroup| !group.template.demand.host_ports.is_empty();
        record.spec.goes_by_unit()
            || record.spec.is_ordered()
            || record.spec.task_groups.iter().any(has_ports)
            || keeping.contains(record.spec.namespace.as_str())
    };
    let (mut n_yielding, mut n_beyond) = (0, 0);
    // Where so many of one template found no place, as many or more find none.
    let mut tried: Vec<((&Template, Pool, &str), usize)> = Vec::new();
    for (id, record, unit) in waiting.iter().filter(|(id, ..)| !is_new(id)) {
        if is_beyond(record) {
            n_beyond += 1;
            continue;
        }
        let (pending, needed) = wants(record, unit);
        let is_one = record.spec.task_groups.len() == 1 && pending.len() >= needed;
        let key = is_one
            .then(|| (&record.spec.task_groups[0].template, record.spec.pool, record.spec.queue.as_str()));
        if key.is_some_and(|key| tried.iter().any(|(other, n)| *other == key && *n <= needed)) {
            continue;
        }
        match scan.place(record, unit) {
            None => tried.extend(key.map(|key| (key, needed))),
            Some(_) if yields(*id, record) => n_yielding += 1,
            Some(places) => findings.add(|| {
                let nodes: Vec<String> =
                    places.iter().take(3).map(|node| super::history::node_name(world, *node)).collect();
                format!("unit {} (id {id}) waits, but fits on {}", unit.name(), nodes.join(", "))
            }),
        }
    }
    findings.checked(format!(
        "{} units wait, each tried on {} nodes: none fits{}{}{}{}{}",
        waiting.len(),
        world.nodes.len(),
        if before.is_some() { " where room was left at every look" } else { "" },
        of_them(
            waiting.iter().filter(|(id, ..)| is_new(id)).count(),
            "are not tried: they did not wait at every look"
        ),
        of_them(held_up.values().flatten().collect::<BTreeSet<_>>().len(), "have no room in their queue"),
        of_them(n_beyond, "go by ports or by what runs elsewhere, which is not judged"),
        of_them(n_yielding, "fit, and may have to wait behind those")
    ));
    findings
}

/// Namespaces with units that keep others away.
fn keeping(world: &World) -> BTreeSet<&str> {
    let records = world.units.values().filter_map(|unit| unit.record.as_ref());
    let keeps = records.filter(|record| record.value.spec.affinity.apart.iter().any(|term| term.weight == 0));
    keeps.map(|record| record.value.spec.namespace.as_str()).collect()
}

fn of_them(n: usize, what: &str) -> String {
    if n == 0 { String::new() } else { format!("; {n} of them {what}") }
}

/// Units that wait for room under a maximum of their queue or of one above it.
pub fn held_up(world: &World) -> usize {
    let scan = Scan::new(world);
    waiting(world).iter().filter(|(_, spec, unit)| !scan.held_up_at(spec, unit).is_empty()).count()
}

/// What a unit wants placed, and how many of that it needs to move on: where a task group has a minimum of its own nothing but these, for others
/// would not do.
fn wants<'a>(record: &'a UnitRecord, unit: &WorldUnit) -> (Vec<&'a Template>, usize) {
    let is_pending = |ordinal: &u32| unit.rows.get(ordinal).is_none_or(|row| row.phase == Phase::Pending);
    let stays = |row: &WorldRow| row.is_live() && row.eviction.is_none();
    let is_over =
        |row: &WorldRow| matches!(row.phase, Phase::Succeeded | Phase::Failed) && row.eviction.is_none();
    let is_there = |row: &WorldRow| stays(row) || is_over(row);
    // Those that it was scaled in by count no more.
    let of_record = || unit.rows.iter().filter_map(|(ordinal, row)| Some((record.group_of(*ordinal)?, row)));
    let count = |of: Option<usize>, is: &dyn Fn(&WorldRow) -> bool| {
        of_record().filter(|(group, row)| of.is_none_or(|of| of == *group) && is(row)).count()
    };
    // What is lacking of a minimum, of one group or of all, where these count.
    let lacks = |minimum: u32, of: Option<usize>, counts: &dyn Fn(&WorldRow) -> bool| {
        usize::try_from(minimum).unwrap_or(usize::MAX).saturating_sub(count(of, counts))
    };
    let groups = || (0usize..).zip(&record.spec.task_groups);
    let is_whole = |counts: &dyn Fn(&WorldRow) -> bool| {
        lacks(record.spec.min_member, None, counts) == 0
            && groups().all(|(idx, group)| lacks(group.min_member, Some(idx), counts) == 0)
    };
    let is_gang = record.spec.min_member > 1 || record.spec.has_group_minima();
    let has_left =
        || is_gang && !of_record().any(|(_, row)| stays(row)) && of_record().any(|(_, row)| had_node(row));
    // What left whole comes back whole, and what restarts as a whole; otherwise whoever had a node may come back alone.
    let counts: &dyn Fn(&WorldRow) -> bool = match record.spec.on_below_min {
        OnBelowMin::Restart if is_whole(&is_there) => &is_there,
        OnBelowMin::Restart => &is_over,
        OnBelowMin::Keep | OnBelowMin::Stop if of_record().any(|(_, row)| is_set_aside(row)) => &is_there,
        OnBelowMin::Keep if has_left() => &is_there,
        OnBelowMin::Keep | OnBelowMin::Stop => &had_node,
    };
    let mut pending: Vec<&Template> = Vec::new();
    let mut beyond: Vec<&Template> = Vec::new();
    let mut n_of_groups = 0;
    for ((idx, group), ranges) in groups().zip(&record.status.ordinals) {
        let ordinals = ranges.iter().flat_map(|(start, end)| *start..*end);
        let n_pending = ordinals.filter(is_pending).count();
        let n_lacking = lacks(group.min_member, Some(idx), counts);
        n_of_groups += n_lacking;
        pending.extend(std::iter::repeat_n(&group.template, n_pending.min(n_lacking)));
        beyond.extend(std::iter::repeat_n(&group.template, n_pending.saturating_sub(n_lacking)));
    }
    let needed = lacks(record.spec.min_member, None, counts).max(n_of_groups).max(1);
    let has_minima = !pending.is_empty();
    pending.extend(beyond);
    if has_minima {
        pending.truncate(needed);
    }
    (pending, needed)
}

/// Whether something had a node, in this incarnation or an earlier one, since its unit was suspended or started again as a whole.
fn had_node(row: &WorldRow) -> bool {
    (row.phase != Phase::Pending || row.incarnation > 0) && !is_set_aside(row)
}

/// Whether something left as its unit was suspended or started again as a whole, and has had no node since.
fn is_set_aside(row: &WorldRow) -> bool {
    let left = matches!(row.eviction, Some(EvictionReason::Suspended | EvictionReason::Failure));
    left && matches!(row.phase, Phase::Pending | Phase::Stopped)
}

/// Whether an administrator keeps a unit from being placed.
fn is_paused(world: &World, record: &UnitRecord) -> bool {
    let queue = record.spec.queue.as_str();
    world.pauses.iter().any(|(scope, pause)| match scope.split_once('/') {
        Some(("queue", path)) => {
            queue == path || queue.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'))
        }
        Some(("sub-cluster", name)) => record.spec.task_groups.iter().all(|group| {
            let demanded = group.template.node_selector.get(&pause.value.sub_cluster_key);
            demanded.is_some_and(|demanded| demanded == name)
        }),
        Some(_) | None => scope == "all",
    })
}

/// Units with running units that should be placed and are not.
fn waiting(world: &World) -> Vec<(UnitId, &UnitRecord, &WorldUnit)> {
    world
        .units
        .iter()
        .filter_map(|(id, unit)| Some((*id, unit.record.as_ref()?.value.as_ref(), unit)))
        .filter(|(_, record, unit)| {
            record.is_wanted()
                && !is_paused(world, record)
                && record
                    .iter_ordinals()
                    .any(|ordinal| unit.rows.get(&ordinal).is_none_or(|row| row.phase == Phase::Pending))
        })
        .collect()
}
