//! What would become of a unit: the steps that a try takes, on the live picture, without effect.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use godel_domain::{
    change::Scope,
    demand::Demand,
    ids::{NodeId, Revision, UnitId},
    lifecycle::GangTerms,
    priority_classes::PriorityClasses,
    quantity,
    refusals::Refusals,
    reservation_spec::marks,
    sub_cluster,
    unit::UnitSpec,
};
use godel_placement::place::templates::TemplateId;
use godel_queueing::{QueueIdx, QueueTree};
use godel_rules::admission::welcome::{self, Unwelcome};

use super::{
    Scheduler,
    assigned_unit::{AssignedUnit, DecisionIds, State, Wanted},
    cycle::Try,
};

/// What would become of a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlanOutcome {
    /// Every replica has a place.
    Fits,
    /// At least `min_member` replicas have a place.
    Partly,
    /// Every replica has a place once others have left.
    Preempts,
    /// Fewer than `min_member` have a place now: it waits.
    #[default]
    Waits,
    /// Its queue can never hold `min_member` replicas.
    Never,
}

/// Where a unit would go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanReport {
    /// What would become of it.
    pub outcome: PlanOutcome,
    /// One per replica that would be placed, in order of group and ordinal. A unit that waits has none.
    pub nodes: Vec<NodeId>,
    /// Replicas that would not.
    pub unplaced: u32,
    /// Of the replicas that fit nowhere.
    pub refusals: Option<Arc<Refusals>>,
    /// Running units that would have to leave, by unit.
    pub victims: BTreeMap<UnitId, u32>,
    /// What else keeps replicas from being placed, in words: a queue, a pause. Empty: nothing.
    pub why: String,
}

impl Scheduler {
    /// Whether a unit may be submitted where it wants to go: the dispatcher says the same.
    ///
    /// # Errors
    /// Everything wrong.
    pub fn welcome(&self, spec: &UnitSpec) -> Result<(), Vec<Unwelcome>> {
        welcome::check(spec, self.shares.tree(), &self.classes, &self.config.sub_cluster_key)
    }

    /// Tries a unit on the live picture, every replica of it, without effect.
    pub fn plan(&mut self, spec: &UnitSpec) -> PlanReport {
        // In whichever partition: it would go from one to the next.
        self.placer.set_scope(Scope::Global);
        let cursors = self.placer.cursors();
        let (hits, misses) = (self.placer.hits, self.placer.misses);
        let (seeks, has_occupants) = (self.seeks.marks(), self.cluster.has_occupants());
        // No unit has this id, so its assumptions meet no others.
        let spec = UnitSpec { id: UnitId(u64::MAX), ..spec.clone() };
        let assigned = self.planned(&spec);
        let mut kept: Vec<(TemplateId, _)> = Vec::new();
        for group in &assigned.groups {
            if kept.iter().all(|(template, _)| *template != group.template) {
                let candidates = &mut self.placer.templates.get_mut(group.template).candidates;
                kept.push((group.template, std::mem::take(candidates)));
            }
        }
        let report = self.plan_held(&spec, &assigned);
        for (template, candidates) in kept {
            self.placer.templates.get_mut(template).candidates = candidates;
        }
        self.let_go(assigned);
        self.placer.set_cursors(cursors);
        (self.placer.hits, self.placer.misses) = (hits, misses);
        self.seeks.restore(seeks);
        if !has_occupants {
            self.cluster.forget_occupants();
        }
        report
    }

    /// A unit as if it had just been assigned.
    fn planned(&mut self, spec: &UnitSpec) -> Box<AssignedUnit> {
        let mut pending: Vec<Wanted> = Vec::new();
        let mut groups = spec.task_groups.clone();
        let mut start = 0;
        for group in &mut groups {
            let end = start + group.replicas;
            group.ordinals = vec![(start, end)];
            pending.extend((start..end).map(|ordinal| (ordinal, 0)));
            start = end;
        }
        let spec = UnitSpec { task_groups: groups, ..spec.clone() };
        let (groups, _) = self.group_work(&spec, Revision(0), &pending);
        let class = PriorityClasses::deciding(&spec).filter(|class| !PriorityClasses::is_built_in(class));
        Box::new(AssignedUnit {
            revision: Revision(0),
            turn: (Reverse(self.classes.priority(&spec)), u64::MAX, spec.id),
            class: class.map(Box::from),
            terms: GangTerms::of(&spec),
            pool: spec.pool,
            flow: self.flow_of(&groups, spec.pool),
            queue: self.shares.queue(&spec.queue),
            scope: Scope::Global,
            at_maximum: false,
            has_turn: false,
            is_called: false,
            no_turn: false,
            active_deadline_ms: spec.active_deadline_ms,
            leaves_after_ms: self.leaves_after(&spec),
            marks: marks(&spec.namespace, &spec.labels).collect(),
            bound: 0,
            groups,
            state: State::Waiting,
            decisions: DecisionIds::new(),
            in_flight: 0,
            wanted_again: Vec::new(),
            awaiting_hold: Vec::new(),
            awaits: false,
            woken_from: None,
            attempts: 1,
            failures: 0,
            rests: false,
            one_by_one: false,
            full: None,
        })
    }

    fn plan_held(&mut self, spec: &UnitSpec, assigned: &AssignedUnit) -> PlanReport {
        let n_all = assigned.pending();
        let together = usize::try_from(spec.min_member).unwrap_or(usize::MAX).clamp(1, n_all.max(1));
        let waits =
            |outcome, why| PlanReport { outcome, why, unplaced: count(n_all), ..PlanReport::default() };
        if let Some(why) = never(self.shares.tree(), assigned.queue, spec, together) {
            return waits(PlanOutcome::Never, why);
        }
        if let Some(pause) = self.pauses.keeping(&spec.queue, |key| sub_cluster::of(spec, key)) {
            let reason = if pause.reason.is_empty() { String::new() } else { format!(": {}", pause.reason) };
            return waits(PlanOutcome::Waits, format!("`{}` is paused{reason}", pause.scope));
        }
        let (n_in_queue, why) = self.room_in_queue(assigned);
        let mut tried;
        let mut report = if n_in_queue < together {
            // Others may have to leave its queue.
            let Some(found) = self.plan_full(assigned, together) else {
                return waits(PlanOutcome::Waits, why);
            };
            tried = found;
            let n_placed = tried.n_placed;
            self.told(assigned, &mut tried, (together, n_placed), n_all)
        } else {
            let quota = n_in_queue.min(n_all);
            tried = self.place(assigned, quota);
            if tried.n_placed < quota {
                self.plan_seek(assigned, together, quota, &mut tried);
            }
            self.told(assigned, &mut tried, (together, quota), n_all)
        };
        if report.unplaced > 0 {
            report.why = why;
        }
        self.undo(assigned.unit(), &tried.groups);
        if let Some(preemption) = &tried.preemption {
            self.unclaim(preemption);
        }
        report
    }

    fn told(
        &mut self,
        assigned: &AssignedUnit,
        tried: &mut Try,
        (together, quota): (usize, usize),
        n_all: usize,
    ) -> PlanReport {
        let refusals = (tried.n_placed < quota).then(|| {
            let failed =
                tried.failed.first().or(assigned.groups.first().map(|group| &group.template)).copied();
            let refusals = failed.map(|template| self.placer.explain(&self.cluster, template));
            let mut refusals = Refusals { attempts: 1, ..refusals.unwrap_or_default() };
            if tried.n_placed < together && together > 1 {
                let nearest = std::mem::take(&mut refusals.nearest_miss);
                refusals.nearest_miss =
                    format!("room for {} of {together} together; {nearest}", tried.n_placed);
            }
            Arc::new(refusals)
        });
        if tried.n_placed < together {
            return PlanReport { unplaced: count(n_all), refusals, ..PlanReport::default() };
        }
        let mut victims: BTreeMap<UnitId, u32> = BTreeMap::new();
        if let Some(preemption) = &tried.preemption {
            // Also those that leave already, for what would be taken over.
            let taken = preemption.taken().filter_map(|id| self.cluster.hold(id));
            for victim in preemption.victims().chain(taken.flat_map(|hold| &hold.victims)) {
                *victims.entry(victim.unit).or_default() += 1;
            }
        }
        tried.groups.sort_by_key(|placement| placement.group);
        let nodes = tried.groups.iter().flat_map(|placement| placement.nodes.iter().copied());
        let outcome = match (tried.n_placed < n_all, tried.preemption.is_none()) {
            (true, _) => PlanOutcome::Partly,
            (false, true) => PlanOutcome::Fits,
            (false, false) => PlanOutcome::Preempts,
        };
        let unplaced = count(n_all - tried.n_placed);
        PlanReport { outcome, nodes: nodes.collect(), unplaced, refusals, victims, why: String::new() }
    }

    /// How many replicas its queue and those above it have room for now, in order, and what is at its maximum if that is not
    /// all of them.
    fn room_in_queue(&mut self, assigned: &AssignedUnit) -> (usize, String) {
        let n_all = assigned.pending();
        if self.shares.is_unlimited(assigned.queue) {
            return (n_all, String::new());
        }
        let mut now = self.shares_now();
        let (mut needs, mut n_fit) = (Vec::new(), 0);
        for group in &assigned.groups {
            let n = group.pending().len();
            let shape = self.placer.templates.get(group.template).ask.shape();
            // The most that fit beside those before.
            let (mut fits, mut fails) = (0, n + 1);
            while fits + 1 < fails {
                let middle = fits + (fails - fits) / 2;
                needs.push(now.need(shape, middle, &self.cluster));
                if now.lacking(assigned.queue, &needs).is_none() {
                    fits = middle;
                } else {
                    fails = middle;
                }
                needs.pop();
            }
            n_fit += fits;
            if fits < n {
                needs.push(now.need(shape, fits + 1, &self.cluster));
                return (n_fit, now.lacking(assigned.queue, &needs).unwrap_or_default());
            }
            needs.push(now.need(shape, n, &self.cluster));
        }
        (n_all, String::new())
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Why a queue, or one above it, can never hold so many replicas of a unit together, whatever else is there.
fn never(tree: &QueueTree, queue: QueueIdx, spec: &UnitSpec, together: usize) -> Option<String> {
    let least = |name: &str| {
        let mut amounts: Vec<(i128, usize)> = spec
            .task_groups
            .iter()
            .map(|group| {
                (asked(&group.template.demand, name), usize::try_from(group.replicas).unwrap_or(usize::MAX))
            })
            .collect();
        amounts.sort_unstable();
        let (mut left, mut sum) = (together, 0i128);
        for (amount, replicas) in amounts {
            let n = replicas.min(left);
            sum = sum.saturating_add(amount.saturating_mul(i128::try_from(n).unwrap_or(i128::MAX)));
            left -= n;
        }
        sum
    };
    tree.upwards(queue).filter_map(|level| tree.record(level)).find_map(|record| {
        let most = record.max_running_units;
        if most > 0 && together > usize::try_from(most).unwrap_or(usize::MAX) {
            return Some(format!("queue `{}` allows at most {most} running, {together} are asked for together: it can never hold it", record.name));
        }
        record.max.iter().find_map(|(name, max)| {
            let asked = least(name);
            (asked > i128::from(*max)).then(|| {
                let asked = quantity::show(name, i64::try_from(asked).unwrap_or(i64::MAX));
                let max = quantity::show(name, *max);
                let unit = if is_device(spec, name) { " thousandths of" } else { "" };
                format!(
                    "queue `{}` allows at most {max}{unit} {name}, {asked} are asked for together: it can never hold it",
                    record.name
                )
            })
        })
    })
}

fn is_device(spec: &UnitSpec, name: &str) -> bool {
    let mut devices = spec.task_groups.iter().filter_map(|group| group.template.demand.devices.as_ref());
    devices.any(|devices| devices.kind == name)
}

/// What one replica asks for of a resource; devices by their kind, in thousandths.
fn asked(demand: &Demand, name: &str) -> i128 {
    let devices = demand.devices.as_ref().filter(|devices| devices.kind == name);
    let devices = devices.map_or(0, |devices| i128::from(devices.count) * i128::from(devices.milli));
    i128::from(demand.requests.get(name)) + devices
}
