//! Priority classes by name, those built in among them.

use std::collections::BTreeMap;

use crate::queue_spec::{ONLINE_PRIORITY, PriorityClass, SYSTEM_PRIORITY};
use crate::unit::UnitSpec;

/// Name, value, preemptible, description.
const BUILT_IN: [(&str, i32, bool, &str); 4] = [
    ("system", SYSTEM_PRIORITY, false, "what the cluster itself needs"),
    ("online", ONLINE_PRIORITY, true, "somebody waits for it"),
    ("batch", 0, true, "runs when there is room"),
    ("best-effort", -ONLINE_PRIORITY, true, "takes what nobody else wants"),
];

/// Priority classes by name.
#[derive(Clone, Debug)]
pub struct PriorityClasses(BTreeMap<String, PriorityClass>);

impl Default for PriorityClasses {
    fn default() -> Self {
        let built_in = BUILT_IN.map(|(name, value, preemptible, description)| {
            let (name, description) = (name.to_owned(), description.to_owned());
            (name.clone(), PriorityClass { name, value, preemptible, description })
        });
        Self(built_in.into())
    }
}

impl PriorityClasses {
    /// It has no record and stays as it is.
    pub fn is_built_in(name: &str) -> bool {
        BUILT_IN.iter().any(|(built_in, ..)| *built_in == name)
    }

    /// A class by name.
    pub fn get(&self, name: &str) -> Option<&PriorityClass> {
        self.0.get(name)
    }

    /// In order of name.
    pub fn iter(&self) -> impl Iterator<Item = &PriorityClass> {
        self.0.values()
    }

    /// A record as committed.
    pub fn put(&mut self, class: PriorityClass) {
        if !Self::is_built_in(&class.name) {
            self.0.insert(class.name.clone(), class);
        }
    }

    /// A record is gone.
    pub fn remove(&mut self, name: &str) {
        if !Self::is_built_in(name) {
            self.0.remove(name);
        }
    }

    /// Whether running units of a class may be preempted; those without one, or of one that is gone, may.
    pub fn may_be_preempted(&self, class: &str) -> bool {
        self.get(class).is_none_or(|class| class.preemptible)
    }

    /// Priority of a unit: its own, or that of its class if it has none; 0 of a class that is gone.
    pub fn priority(&self, spec: &UnitSpec) -> i32 {
        Self::deciding(spec).map_or(spec.priority, |class| self.value(class))
    }

    /// Priority of units of a class; 0 of one that is gone.
    pub fn value(&self, class: &str) -> i32 {
        self.get(class).map_or(0, |class| class.value)
    }

    /// The class that says a unit's priority, unless the unit does.
    pub fn deciding(spec: &UnitSpec) -> Option<&str> {
        Some(spec.priority_class.as_str()).filter(|class| spec.priority == 0 && !class.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_classes_stay() {
        let mut classes = PriorityClasses::default();
        let gold = |name: &str| PriorityClass {
            name: name.to_owned(),
            value: 7,
            preemptible: false,
            description: String::new(),
        };
        for name in ["gold", "online"] {
            classes.put(gold(name));
        }
        let values = |classes: &PriorityClasses| -> Vec<(String, i32)> {
            classes.iter().map(|class| (class.name.clone(), class.value)).collect()
        };
        let expected = [("batch", 0), ("best-effort", -1_000_000), ("gold", 7), ("online", 1_000_000)];
        let expected = expected.into_iter().chain([("system", 1_000_000_000)]);
        assert!(values(&classes).into_iter().eq(expected.map(|(name, value)| (name.to_owned(), value))));
        for name in ["gold", "system"] {
            classes.remove(name);
        }
        assert_eq!(classes.iter().count(), BUILT_IN.len());
        assert!(!classes.get("system").unwrap().preemptible);
    }

    #[test]
    fn running_units_are_preemptible_unless_their_class_forbids() {
        let classes = PriorityClasses::default();
        for (class, may_be) in
            [("system", false), ("online", true), ("best-effort", true), ("gone", true), ("", true)]
        {
            assert_eq!(classes.may_be_preempted(class), may_be, "{class}");
        }
    }
}
