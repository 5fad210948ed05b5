//! Priorities of units by their class.

use std::sync::Arc;

use godel_domain::{
    lifecycle::GroupMinimum,
    priority_classes::PriorityClasses,
    queue_spec::{Band, PriorityClass},
    running_units::PreemptionTerms,
    unit::UnitSpec,
};
use rustc_hash::FxHashMap;

use super::unit::Unit;

/// Standings shared; many more than there are of in practice.
const N_STANDINGS_MAX: usize = 4_096;

/// The priority of a unit: a number of its own, or the name of a class, interned. There may be a million units.
#[derive(Clone, Copy, Debug)]
pub(super) enum Priority {
    Own(i32),
    OfClass(u32),
}

/// How running units of one unit stand: those of task groups with a minimum of their own, and all others.
#[derive(Debug)]
pub(super) struct Standings {
    of_groups: Vec<(u16, Arc<PreemptionTerms>)>,
    others: Arc<PreemptionTerms>,
}

impl Standings {
    /// Those of a task group.
    pub(super) fn of(&self, group: u16) -> Arc<PreemptionTerms> {
        let own = self.of_groups.iter().find(|(known, _)| *known == group).map(|(_, standing)| standing);
        Arc::clone(own.unwrap_or(&self.others))
    }
}

/// Priority classes, and the names that units say.
#[derive(Debug, Default)]
pub(super) struct Classes {
    known: PriorityClasses,
    names: Vec<Box<str>>,
    ids: FxHashMap<Box<str>, u32>,
    /// One value for all who stand alike, and the one asked for last.
    standings: FxHashMap<PreemptionTerms, Arc<PreemptionTerms>>,
    last: Arc<PreemptionTerms>,
}

impl Classes {
    pub(super) fn put(&mut self, class: PriorityClass) {
        self.known.put(class);
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.known.remove(name);
    }

    /// Forgets the records; names stay.
    pub(super) fn reset(&mut self) {
        self.known = PriorityClasses::default();
    }

    /// As [`PriorityClasses::priority`], which follows the class.
    pub(super) fn of(&mut self, spec: &UnitSpec) -> Priority {
        match self.id(&spec.priority_class) {
            Some(id) if spec.priority == 0 => Priority::OfClass(id),
            _ => Priority::Own(spec.priority),
        }
    }

    /// How running units of a unit stand once they are bound now.
    pub(super) fn standings(&mut self, unit: &Unit, queue: Option<&Arc<str>>) -> Standings {
        let standing = PreemptionTerms {
            priority: self.value(unit.priority),
            preemptible: self.may_be_preempted(unit),
            min_run_ms: unit.min_run_ms,
            min_member: unit.terms.min_member,
            group_min_member: 0,
            queue: queue.cloned(),
            end: unit.end,
            has_master: unit.has_masters,
        };
        let mut of_groups = Vec::new();
        for GroupMinimum { group, min_member, .. } in unit.terms.groups() {
            let standing = PreemptionTerms { group_min_member: *min_member, ..standing.clone() };
            of_groups.push((*group, self.shared(standing)));
        }
        Standings { of_groups, others: self.shared(standing) }
    }

    fn shared(&mut self, standing: PreemptionTerms) -> Arc<PreemptionTerms> {
        if *self.last != standing {
            if self.standings.len() >= N_STANDINGS_MAX {
                self.standings.clear();
            }
            let known = self.standings.entry(standing.clone()).or_insert_with(|| Arc::new(standing));
            self.last = Arc::clone(known);
        }
        Arc::clone(&self.last)
    }

    /// Whether running units of a unit may have to leave for others once they are bound now.
    pub(super) fn may_be_preempted(&self, unit: &Unit) -> bool {
        let is_system = Band::of(unit.pool, self.value(unit.priority)) == Band::System;
        let by_class = match unit.class {
            Some(id) => self.names.get(id as usize).is_none_or(|name| self.known.may_be_preempted(name)),
            None => true,
        };
        unit.preemptible && !is_system && by_class
    }

    /// A name as a small integer; `None` of none.
    pub(super) fn id(&mut self, name: &str) -> Option<u32> {
        if name.is_empty() {
            return None;
        }
        if let Some(&id) = self.ids.get(name) {
            return Some(id);
        }
        let id = u32::try_from(self.names.len()).expect("memory ends before 2^32 names");
        self.names.push(name.into());
        self.ids.insert(name.into(), id);
        Some(id)
    }

    /// The name of a small integer.
    pub(super) fn name(&self, id: u32) -> Option<&str> {
        self.names.get(id as usize).map(|name| &**name)
    }

    /// The number now.
    pub(super) fn value(&self, priority: Priority) -> i32 {
        match priority {
            Priority::Own(value) => value,
            Priority::OfClass(id) => {
                let name = self.names.get(id as usize);
                name.and_then(|name| self.known.get(name)).map_or(0, |class| class.value)
            }
        }
    }
}
