//! Priorities of units by their class.

use rustc_hash::FxHashMap;

use crate::{queue::PriorityClasses, queue::spec::PriorityClass, unit::UnitSpec};

/// The priority of a unit: a number of its own, or the name of a class, interned. There may be a million units.
#[derive(Clone, Copy, Debug)]
pub(super) enum Priority {
    Own(i32),
    OfClass(u32),
}

/// Priority classes, and the names that units say.
#[derive(Debug, Default)]
pub(super) struct Classes {
    known: PriorityClasses,
    names: Vec<Box<str>>,
    ids: FxHashMap<Box<str>, u32>,
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
        if spec.priority != 0 || spec.priority_class.is_empty() {
            return Priority::Own(spec.priority);
        }
        let name = spec.priority_class.as_str();
        if let Some(&id) = self.ids.get(name) {
            return Priority::OfClass(id);
        }
        let id = u32::try_from(self.names.len()).expect("memory ends before 2^32 names");
        self.names.push(name.into());
        self.ids.insert(name.into(), id);
        Priority::OfClass(id)
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
