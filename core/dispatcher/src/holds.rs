//! Room that the binder holds: whoever it is for is not handed out while it lasts.

use std::sync::Arc;

use godel_domain::{
    hold::{Hold, Member},
    ids::{HoldId, NodeId, UnitId},
    running_units::Phase,
    time::Millis,
};

use super::{Dispatcher, ListedRecords, Whereabouts, gangs};

impl Dispatcher {
    /// A hold's record. Returns its unit.
    pub fn on_hold(&mut self, hold: Arc<Hold>, now: Millis) -> UnitId {
        let (id, unit) = (hold.id, hold.unit);
        if let Some(listed) = &mut self.listed {
            listed.holds.insert(id);
        }
        self.holds.insert(id, Arc::clone(&hold));
        self.on_slot(&hold);
        self.on_gathering(&hold, now);
        self.on_taken_over(&hold);
        if let Some(entry) = self.units.get_mut(&unit) {
            entry.holds.retain(|other| other.id != id);
            entry.holds.push(hold);
            self.refresh(unit, now);
        }
        unit
    }

    /// A hold's record is gone: whoever it was for is bound, or pending again. Returns its unit.
    pub fn on_hold_deleted(&mut self, id: HoldId, now: Millis) -> Option<UnitId> {
        let hold = self.holds.remove(&id)?;
        self.on_slot_gone(&hold);
        let unit = hold.unit;
        if hold.turn.is_some() {
            let gathers = self.units.get(&unit).is_some_and(|entry| gangs::gathers(entry, Some(id)));
            if !gathers {
                self.gangs.end(unit, now);
            }
        }
        let entry = self.units.get_mut(&unit)?;
        let at = entry.holds.iter().position(|hold| hold.id == id)?;
        let gone = entry.holds.remove(at);
        let is_pending = |(ordinal, incarnation): (u32, u32)| {
            let row = entry.rows.row(ordinal);
            row.phase == Phase::Pending && row.incarnation == incarnation
        };
        let comes_back = gone.members().any(is_pending);
        // What waited for the first binding is to be placed from then on.
        let is_more = entry.holds.is_empty() && entry.counts.pending > 0;
        if (comes_back || is_more)
            && let Whereabouts::Dispatched(held) = &mut entry.place
        {
            held.resend = true;
            self.resend.insert(unit);
        }
        self.refresh(unit, now);
        Some(unit)
    }

    /// After a list: what it did not show is gone.
    pub(super) fn forget_holds(&mut self, listed: &ListedRecords, now: Millis) {
        let gone: Vec<HoldId> = self.holds.keys().filter(|id| !listed.holds.contains(*id)).copied().collect();
        for id in gone {
            self.on_hold_deleted(id, now);
        }
    }

    /// What is held was held for others of lower rank: they wait again.
    fn on_taken_over(&mut self, hold: &Hold) {
        if !self.overtaken.is_empty() {
            self.overtaken.remove(&hold.unit);
        }
        if let Some(owner) = hold.taken_from.last().filter(|owner| self.units.contains_key(*owner)) {
            self.overtaken.insert(*owner, hold.unit);
        }
    }

    /// What a unit waits for, in words: `waits for 2 victims to leave node n1`; empty: nothing in particular.
    pub(super) fn waits_for(&self, unit: UnitId, holds: &[Arc<Hold>]) -> String {
        if holds.is_empty()
            && let Some(by) = self.overtaken.get(&unit)
        {
            let by = self.preempted_by(&[*by]).pop().unwrap_or_default();
            return format!("waits again, as {by} took over the room that was held for it");
        }
        if holds.is_empty() {
            return self.gangs.waits_for(unit, self.stepped_at);
        }
        if let Some(turn) = gangs::turn_of(holds) {
            let nodes = godel_domain::words::count(turn.n_nodes, "node");
            return format!("holds room for {} as it becomes free on {nodes}", turn.n_places);
        }
        let n_in_queue: usize = holds.iter().map(|hold| self.n_remaining(&hold.queue_victims)).sum();
        let remains = |hold: &&Arc<Hold>| self.n_remaining(&hold.victims) > 0;
        let nodes: Vec<NodeId> = holds.iter().filter(remains).map(|hold| hold.node).collect();
        let Some(first) = nodes.first() else {
            if n_in_queue > 0 {
                let victims = godel_domain::words::count(n_in_queue, "victim");
                return format!("waits for {victims} to leave a queue that is full");
            }
            return if holds.is_empty() { String::new() } else { "room is held for it".to_owned() };
        };
        let n: usize = holds.iter().map(|hold| self.n_remaining(&hold.victims)).sum::<usize>() + n_in_queue;
        let victims = godel_domain::words::count(n, "victim");
        let name = self.node_names.get(first).map_or_else(|| first.to_string(), |name| name.to_string());
        match nodes.len() {
            1 => format!("waits for {victims} to leave node {name}"),
            more => format!("waits for {victims} to leave node {name} and {} more", more - 1),
        }
    }

    fn n_remaining(&self, victims: &[Member]) -> usize {
        let remains = |victim: &&Member| {
            self.units.get(&victim.unit).is_some_and(|entry| {
                let row = entry.rows.row(victim.ordinal);
                row.phase.is_live() && row.incarnation == victim.incarnation
            })
        };
        victims.iter().filter(remains).count()
    }

    /// Units that preempted some of a unit's running units, by name, the newest last.
    pub(super) fn preempted_by(&self, preemptors: &[UnitId]) -> Vec<String> {
        let name = |unit: &UnitId| match self.units.get(unit) {
            Some(entry) => format!("{}/{}", entry.spec.namespace, entry.spec.name),
            None => format!("unit {unit}, which is gone"),
        };
        preemptors.iter().map(name).collect()
    }
}
