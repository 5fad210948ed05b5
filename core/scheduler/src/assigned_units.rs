//! The units that are assigned, each in one state, with what the dispatcher has yet to hear of them.

use std::{cmp::Reverse, collections::BTreeSet, sync::Arc};

use godel_base::{
    ids::{IdMap, NodeId, Revision, UnitId},
    seed::mix,
    time::Millis,
};
use godel_cluster::Cluster;
use godel_domain::{refusals::Refusals, unit_report::ReportState};
use godel_placement::place::templates::Templates;

use super::{
    Config,
    assigned_unit::{AssignedUnit, DecisionIds, UnitState},
    flows::Flows,
    park::{CountedRefusals, Parked, WaitKey},
};

mod outcome;
mod reports;
mod rooms;

pub(super) use self::outcome::{Answered, refused};
use self::reports::ReportQueue;

/// Units that are assigned, and the queues in which they stand.
#[derive(Debug)]
pub(super) struct AssignedUnits {
    units: IdMap<UnitId, Box<AssignedUnit>>,
    /// Decisions without an outcome of units not assigned any more.
    orphans: IdMap<UnitId, DecisionIds>,
    pub(super) ready: Flows,
    backoff: BTreeSet<(Millis, UnitId)>,
    /// Units that are tried once as much was read.
    reading: BTreeSet<(Revision, UnitId)>,
    pub(super) parked: Parked,
    /// Units in `ready` that the dispatcher called.
    n_called: usize,
    /// Of the unit that was assigned last.
    last_order: u64,
    /// Running units in ready and backoff.
    n_working: u64,
    /// Units whose replicas have volumes.
    n_with_volumes: usize,
    pub(super) reports: ReportQueue,
    delays: Delays,
}

/// How long units wait after rejections.
#[derive(Debug)]
struct Delays {
    ms_min: u64,
    ms_max: u64,
    seed: u64,
}

impl AssignedUnits {
    pub(super) fn new(config: &Config, seed: u64) -> Self {
        Self {
            units: IdMap::default(),
            orphans: IdMap::default(),
            ready: Flows::default(),
            backoff: BTreeSet::new(),
            reading: BTreeSet::new(),
            parked: Parked::default(),
            n_called: 0,
            last_order: 0,
            n_working: 0,
            n_with_volumes: 0,
            reports: ReportQueue::default(),
            delays: Delays { ms_min: config.backoff_ms_min, ms_max: config.backoff_ms_max, seed },
        }
    }

    pub(super) fn get(&self, unit: UnitId) -> Option<&AssignedUnit> {
        self.units.get(&unit).map(|assigned| &**assigned)
    }

    pub(super) fn get_mut(&mut self, unit: UnitId) -> Option<&mut AssignedUnit> {
        self.units.get_mut(&unit).map(|assigned| &mut **assigned)
    }

    /// Counts one assignment more of this stream. `is_called`: the dispatcher calls the unit, as there is room for it.
    pub(super) fn count_assignment(&mut self, is_called: bool) {
        self.reports.n_assigned += 1;
        if is_called {
            self.parked.note_call();
        }
    }

    /// Takes the decisions without an outcome that a unit has from an earlier assignment.
    pub(super) fn take_orphans(&mut self, unit: UnitId) -> DecisionIds {
        self.orphans.remove(&unit).unwrap_or_default()
    }

    /// The place of a unit in the order of assignments: that of the assignment that it replaces, or the next one.
    pub(super) fn dispatch_order(&mut self, replaced: Option<&AssignedUnit>) -> u64 {
        let order = replaced.map_or(self.last_order + 1, |old| old.queue_key.1);
        self.last_order = self.last_order.max(order);
        order
    }

    /// Puts a unit into a state, or lets it go when nothing is left to do. The dispatcher hears when it is parked no longer:
    /// it would call it for room otherwise, in the midst of whatever else becomes of it.
    pub(super) fn attach(
        &mut self,
        mut assigned: Box<AssignedUnit>,
        state: UnitState,
        templates: &mut Templates,
    ) {
        let unit = assigned.unit();
        if assigned.is_done() {
            let state = if assigned.full.is_some() { ReportState::QueueFull } else { ReportState::Done };
            let refusals = assigned.full.take();
            self.give_back(assigned, state, refusals, templates);
            return;
        }
        let was_parked = matches!(assigned.state, UnitState::Parked(_));
        assigned.state = if assigned.has_work() { state } else { UnitState::Waiting };
        if was_parked && !matches!(assigned.state, UnitState::Parked(_)) {
            self.reports.push(&assigned, ReportState::Woken, None, 0);
        }
        match &assigned.state {
            UnitState::Ready => {
                self.n_called += usize::from(assigned.permit.called);
                self.ready.insert(assigned.facts.flow, assigned.queue_key);
            }
            UnitState::Backoff { end, .. } => {
                self.backoff.insert((*end, unit));
            }
            // The group has it already.
            UnitState::Parked(_) | UnitState::Waiting => {}
        }
        if !matches!(assigned.state, UnitState::Ready) {
            self.finish_wake(&mut assigned, templates);
        }
        self.n_working += assigned.weight();
        self.n_with_volumes += usize::from(assigned.facts.has_volumes);
        self.units.insert(unit, assigned);
    }

    /// Takes a unit out of whatever state it is in, to be attached again or released.
    pub(super) fn detach(&mut self, unit: UnitId) -> Option<Box<AssignedUnit>> {
        let assigned = self.units.remove(&unit)?;
        self.n_with_volumes -= usize::from(assigned.facts.has_volumes);
        self.n_working -= assigned.weight();
        match &assigned.state {
            UnitState::Ready => {
                self.n_called -= usize::from(assigned.permit.called);
                self.ready.remove(assigned.facts.flow, &assigned.queue_key);
            }
            UnitState::Backoff { end, .. } => {
                self.backoff.remove(&(*end, unit));
            }
            UnitState::Parked(need) => self.parked.remove(need, &assigned.queue_key),
            UnitState::Waiting => {}
        }
        Some(assigned)
    }

    /// Ends a detached unit: it is assigned no longer.
    pub(super) fn release_unit(&mut self, mut assigned: Box<AssignedUnit>, templates: &mut Templates) {
        self.finish_wake(&mut assigned, templates);
        for group in &assigned.groups {
            templates.release(group.template);
        }
        if !assigned.decisions.is_empty() {
            self.orphans.insert(assigned.unit(), assigned.decisions);
        }
    }

    /// The unit is assigned no longer.
    pub(super) fn revoke(&mut self, unit: UnitId, templates: &mut Templates) {
        if let Some(assigned) = self.detach(unit) {
            self.release_unit(assigned, templates);
        }
    }

    /// A stream to a dispatcher opens: it knows nothing of the room that parked units have, nor which units are assigned in
    /// part. It may have read before that the hold that the rest waits for has ended: it assigns these anew.
    pub(super) fn begin_stream(&mut self, templates: &mut Templates) {
        self.reports.n_assigned = 0;
        self.parked.forget_stated();
        let partial = self.units.values().filter(|assigned| assigned.is_partial);
        let mut units: Vec<UnitId> = partial.map(|assigned| assigned.unit()).collect();
        units.sort_unstable();
        units.into_iter().for_each(|unit| self.revoke(unit, templates));
    }

    /// A class has this priority now: its units move in their queues, and those that are parked try again with that.
    pub(super) fn update_priorities(&mut self, class: &str, priority: i32, templates: &mut Templates) {
        let priority = Reverse(priority);
        let moves = |assigned: &AssignedUnit| {
            assigned.facts.class.as_deref() == Some(class) && assigned.queue_key.0 != priority
        };
        let of_class = self.units.values().filter(|assigned| moves(assigned));
        let mut moved: Vec<UnitId> = of_class.map(|assigned| assigned.unit()).collect();
        moved.sort_unstable();
        for unit in moved {
            let Some(mut assigned) = self.detach(unit) else { continue };
            assigned.queue_key.0 = priority;
            let state = match &assigned.state {
                UnitState::Parked(_) => UnitState::Ready,
                other => other.clone(),
            };
            self.attach(assigned, state, templates);
        }
    }

    /// Parks a detached unit that found no place. `shown`: the refusals as the dispatcher is to see them.
    pub(super) fn park(
        &mut self,
        mut assigned: Box<AssignedUnit>,
        need: &WaitKey,
        refusals: CountedRefusals,
        shown: Option<Arc<Refusals>>,
        now: Millis,
        templates: &mut Templates,
    ) {
        if let Some(refusals) = assigned.full.take() {
            if assigned.permit.called {
                self.parked.note_none(need);
            }
            self.give_back(assigned, ReportState::QueueFull, Some(refusals), templates);
            return;
        }
        let (id, is_new) = self.parked.park(need, assigned.queue_key, refusals, now);
        if is_new {
            need.templates.iter().for_each(|(template, _)| templates.retain(*template));
        }
        if std::mem::take(&mut assigned.permit.called) {
            self.parked.note_none(need);
        }
        self.reports.push(&assigned, ReportState::Parked, shown, id);
        if assigned.woken_from.as_ref() == Some(need) {
            assigned.woken_from = None;
        }
        self.attach(assigned, UnitState::Parked(need.clone()), templates);
    }

    /// Gives a detached unit back to the dispatcher.
    pub(super) fn give_back(
        &mut self,
        assigned: Box<AssignedUnit>,
        state: ReportState,
        refusals: Option<Arc<Refusals>>,
        templates: &mut Templates,
    ) {
        self.reports.push(&assigned, state, refusals, 0);
        self.release_unit(assigned, templates);
    }

    /// The unit woken from a group came to an end: the next one's turn.
    fn finish_wake(&mut self, assigned: &mut AssignedUnit, templates: &mut Templates) {
        if let Some(need) = assigned.woken_from.take()
            && self.parked.finish(&need, assigned.unit())
        {
            self.wake(&need, templates);
        }
    }

    /// Tries the first unit of a group of parked ones.
    pub(super) fn wake(&mut self, need: &WaitKey, templates: &mut Templates) {
        let Some(position) = self.parked.wake(need) else { return };
        let Some(mut assigned) = self.units.remove(&position.2) else { return };
        self.n_with_volumes -= usize::from(assigned.facts.has_volumes);
        assigned.woken_from = Some(need.clone());
        self.attach(assigned, UnitState::Ready, templates);
    }

    /// Units whose backoff is over are ready.
    pub(super) fn end_backoff(&mut self, now: Millis, templates: &mut Templates) {
        while let Some(&(end, unit)) = self.backoff.first() {
            if end > now {
                break;
            }
            match self.detach(unit) {
                Some(assigned) => self.attach(assigned, UnitState::Ready, templates),
                None => {
                    self.backoff.pop_first();
                }
            }
        }
    }

    /// Returns when the first backoff ends.
    pub(super) fn backoff_end(&self) -> Option<Millis> {
        self.backoff.first().map(|(end, _)| *end)
    }

    /// A detached unit has to wait until as much was read as its assignment says.
    pub(super) fn await_reading(&mut self, assigned: Box<AssignedUnit>, templates: &mut Templates) {
        self.reading.insert((assigned.permit.read, assigned.unit()));
        self.attach(assigned, UnitState::Waiting, templates);
    }

    /// Everything up to `read` was read: units that waited for that are ready.
    pub(super) fn try_those_that_read(&mut self, read: Revision, templates: &mut Templates) {
        while let Some((_, unit)) = self.reading.first().copied().filter(|(revision, _)| *revision <= read) {
            self.reading.pop_first();
            let waits = |assigned: &AssignedUnit| assigned.state == UnitState::Waiting && !assigned.awaits;
            if self.get(unit).is_some_and(waits)
                && let Some(assigned) = self.detach(unit)
            {
                self.attach(assigned, UnitState::Ready, templates);
            }
        }
    }

    /// Room gained on a node may be what a unit lacks beside what is held for it there.
    pub(super) fn wake_units_with_holds(
        &mut self,
        gained: &[NodeId],
        cluster: &Cluster,
        templates: &mut Templates,
    ) {
        let mut units: Vec<UnitId> = Vec::new();
        for node in gained {
            let holds = cluster.holds().on(*node).iter().filter_map(|id| cluster.holds().get(*id));
            let is_parked = |assigned: &AssignedUnit| {
                matches!(assigned.state, UnitState::Parked(_)) && !assigned.awaiting_hold.is_empty()
            };
            let is_lacking = |unit: &UnitId| self.get(*unit).is_some_and(is_parked);
            units.extend(holds.map(|hold| hold.unit).filter(is_lacking));
        }
        units.sort_unstable();
        units.dedup();
        for unit in units {
            if let Some(assigned) = self.detach(unit) {
                self.attach(assigned, UnitState::Ready, templates);
            }
        }
    }

    /// A hold is read: its unit may be tried elsewhere.
    pub(super) fn try_unit_with_hold(&mut self, unit: UnitId, templates: &mut Templates) {
        let is_next = |assigned: &AssignedUnit| {
            assigned.state == UnitState::Waiting
                && !assigned.awaits
                && !assigned.awaiting_hold.is_empty()
                && assigned.decisions.is_empty()
        };
        if self.get(unit).is_some_and(is_next)
            && let Some(assigned) = self.detach(unit)
        {
            self.attach(assigned, UnitState::Ready, templates);
        }
    }

    /// Whether there is something that a step would do at once: a report to be sent, or room to be counted. `has_gained`: nodes
    /// have gained room.
    pub(super) fn has_news(&self, has_gained: bool) -> bool {
        !self.reports.is_empty() || (!self.parked.is_empty() && (has_gained || self.parked.is_stale()))
    }

    /// Units with the revisions of their records, ascending.
    pub(super) fn inventory(&self) -> Vec<(UnitId, Revision)> {
        let mut units: Vec<_> =
            self.units.values().map(|assigned| (assigned.unit(), assigned.revision)).collect();
        units.sort_unstable();
        units
    }

    /// Whether replicas of some unit have volumes.
    pub(super) fn has_volumes(&self) -> bool {
        self.n_with_volumes > 0
    }

    pub(super) fn len(&self) -> usize {
        self.units.len()
    }

    pub(super) fn n_backoff(&self) -> usize {
        self.backoff.len()
    }

    /// Running units in ready and backoff.
    pub(super) fn n_working(&self) -> u64 {
        self.n_working
    }
}

impl Delays {
    /// `min` doubled with each rejection in a row up to `max`, less up to half of it by seeded jitter.
    fn after(&self, unit: UnitId, failures: u32) -> u64 {
        let doubled = self.ms_min.saturating_mul(1 << failures.saturating_sub(2).min(20));
        let delay = doubled.min(self.ms_max);
        let jitter = mix(self.seed ^ unit.0.rotate_left(16) ^ u64::from(failures)) % (delay / 2 + 1);
        (delay - jitter).max(1)
    }
}

#[cfg(test)]
mod tests {
    use godel_domain::demand::Demand;

    use super::*;
    use crate::{picture::Picture, tests};

    #[test]
    fn only_ready_and_backed_off_units_hold_credits() {
        let config = Config::default();
        let (mut picture, mut units) = (Picture::new(&config, 1), AssignedUnits::new(&config, 1));
        let order = units.dispatch_order(None);
        let assigned = tests::assigned(&mut picture, &tests::unit(1, 3, 1, Demand::default()), order);
        let templates = &mut picture.placer.templates;
        units.attach(assigned, UnitState::Ready, templates);
        assert_eq!((units.n_working(), units.ready.len()), (3, 1));
        for (state, n_working) in
            [(UnitState::Backoff { end: Millis(5), rests: false }, 3), (UnitState::Waiting, 0)]
        {
            let assigned = units.detach(UnitId(1)).unwrap();
            assert_eq!((units.n_working(), units.ready.len(), units.backoff_end()), (0, 0, None));
            units.attach(assigned, state, templates);
            assert_eq!((units.n_working(), units.n_backoff() as u64), (n_working, n_working / 3));
        }
        units.revoke(UnitId(1), templates);
        assert_eq!((units.len(), units.reports.take()), (0, Vec::new()));
        assert_eq!(units.dispatch_order(None), 2, "the next unit comes after it");
    }

    #[test]
    fn a_unit_of_which_all_is_bound_is_reported_and_gone() {
        let config = Config::default();
        let (mut picture, mut units) = (Picture::new(&config, 1), AssignedUnits::new(&config, 1));
        let mut assigned = tests::assigned(&mut picture, &tests::unit(1, 2, 1, Demand::default()), 1);
        assigned.groups[0].advance(2);
        units.attach(assigned, UnitState::Ready, &mut picture.placer.templates);
        let reports: Vec<ReportState> = units.reports.take().iter().map(|report| report.state).collect();
        assert_eq!((units.len(), reports), (0, vec![ReportState::Done]));
    }
}
