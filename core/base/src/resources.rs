//! Quantities of named resources.
//!
//! [`Resources`] is what people write: amounts by name. [`Vector`] is what decisions use: amounts by the
//! small integer that [`ResourceNames`] gave each name.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Name of the CPU resource, in milli-cores.
pub const CPU: &str = "cpu";
/// Name of the memory resource, in bytes.
pub const MEMORY: &str = "memory";
/// Name of the resource that measured network use is compared with, in bits per second.
pub const NETWORK: &str = "network";
/// Name of the resource of bytes per second between CPUs and memory.
pub const MEMORY_BANDWIDTH: &str = "memory-bandwidth";
/// Name of what every running unit takes one of, and a node has its `max_running_units` of. Nobody asks for it.
pub const RUNNING_UNITS: &str = "running-units";
/// Most names that one request or node may have, and that one cluster may have in all.
pub const N_NAMES_MAX: usize = 32;

/// Amounts by name; none negative, zero amounts left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Resources(BTreeMap<String, i64>);

impl Resources {
    /// From pairs; of a name given twice the last amount counts.
    ///
    /// # Errors
    /// The first name with a negative amount.
    pub fn new<S: Into<String>>(amounts: impl IntoIterator<Item = (S, i64)>) -> Result<Self, String> {
        let mut map = BTreeMap::new();
        for (name, amount) in amounts {
            let name = name.into();
            match amount {
                ..0 => return Err(name),
                0 => {
                    map.remove(&name);
                }
                1.. => {
                    map.insert(name, amount);
                }
            }
        }
        Ok(Self(map))
    }

    /// Amount of `name`; 0 when absent.
    pub fn get(&self, name: &str) -> i64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Pairs in order of name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0.iter().map(|(name, amount)| (name.as_str(), *amount))
    }

    /// Number of names with an amount.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// No amounts at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds `times` × `other`, saturating.
    pub fn add(&mut self, other: &Self, times: i64) {
        other.iter().for_each(|(name, amount)| self.add_amount(name, amount.saturating_mul(times)));
    }

    /// Adds to one amount, or takes from it, saturating.
    pub fn add_amount(&mut self, name: &str, amount: i64) {
        match self.0.get_mut(name) {
            Some(sum) => {
                *sum = sum.saturating_add(amount);
                if *sum <= 0 {
                    self.0.remove(name);
                }
            }
            None if amount > 0 => {
                self.0.insert(name.to_owned(), amount);
            }
            None => {}
        }
    }
}

/// Small integers for resource names, in order of first sight: `cpu` is 0, `memory` 1.
#[derive(Clone, Debug)]
pub struct ResourceNames {
    names: Vec<String>,
    ids: FxHashMap<String, usize>,
}

impl Default for ResourceNames {
    fn default() -> Self {
        let mut names = Self { names: Vec::new(), ids: FxHashMap::default() };
        names.id(CPU);
        names.id(MEMORY);
        names
    }
}

impl ResourceNames {
    /// The integer of `name`, given now if it is new.
    pub fn id(&mut self, name: &str) -> usize {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = self.names.len();
        self.names.push(name.to_owned());
        self.ids.insert(name.to_owned(), id);
        id
    }

    /// Name of an integer; `?` if it was never given.
    pub fn name(&self, id: usize) -> &str {
        self.names.get(id).map_or("?", String::as_str)
    }

    /// Names known.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Never: `cpu` and `memory` are always there.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Amounts by integer.
    pub fn vector(&mut self, resources: &Resources) -> Vector {
        let mut vector = Vector::default();
        for (name, amount) in resources.iter() {
            vector.set(self.id(name), amount);
        }
        vector
    }

    /// Amounts by name.
    pub fn resources(&self, vector: &Vector) -> Resources {
        Resources(
            vector
                .iter()
                .filter(|(_, amount)| *amount > 0)
                .map(|(id, amount)| (self.name(id).to_owned(), amount))
                .collect(),
        )
    }
}

/// Amounts by the integers of [`ResourceNames`]; missing ones are 0. May go negative (over-allocation seen
/// during a shrink).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Vector(SmallVec<[i64; 4]>);

impl Vector {
    /// Amount of `id`.
    pub fn get(&self, id: usize) -> i64 {
        self.0.get(id).copied().unwrap_or(0)
    }

    /// Replaces the amount of `id`.
    pub fn set(&mut self, id: usize, amount: i64) {
        if self.0.len() <= id {
            self.0.resize(id + 1, 0);
        }
        self.0[id] = amount;
    }

    /// Pairs in order of integer, zeros included up to the last one set.
    pub fn iter(&self) -> impl Iterator<Item = (usize, i64)> {
        self.0.iter().copied().enumerate()
    }

    /// Adds `other`, saturating.
    pub fn add(&mut self, other: &Self) {
        for (id, amount) in other.iter() {
            self.set(id, self.get(id).saturating_add(amount));
        }
    }

    /// Subtracts `other`, saturating.
    pub fn sub(&mut self, other: &Self) {
        for (id, amount) in other.iter() {
            self.set(id, self.get(id).saturating_sub(amount));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_follow_names() {
        let mut names = ResourceNames::default();
        let want = names.vector(&Resources::new([("fpga", 2), (CPU, 500)]).unwrap());
        let mut free = names.vector(&Resources::new([(CPU, 500), (MEMORY, 7), ("fpga", 2)]).unwrap());
        free.sub(&want);
        assert_eq!(names.resources(&free).get(MEMORY), 7);
        assert_eq!(names.resources(&free).get(CPU), 0);
        free.add(&want);
        assert_eq!(names.resources(&free).get("fpga"), 2);
        assert_eq!(Resources::new([(CPU, -1)]), Err(CPU.to_owned()));
    }

    mod properties {
        use std::collections::BTreeMap;

        use proptest::{collection::btree_map, prelude::*};

        use super::*;

        fn amounts() -> impl Strategy<Value = BTreeMap<String, i64>> {
            btree_map("cpu|memory|fpga|nic|disk", 0i64..1_000, 0..5)
        }

        fn vector(names: &mut ResourceNames, amounts: &BTreeMap<String, i64>) -> Vector {
            names.vector(&Resources::new(amounts.clone()).unwrap())
        }

        proptest! {
            #[test]
            fn vectors_compute_as_maps_do(a in amounts(), b in amounts()) {
                let mut names = ResourceNames::default();
                let (left, right) = (vector(&mut names, &a), vector(&mut names, &b));
                let get = |map: &BTreeMap<String, i64>, name: &str| map.get(name).copied().unwrap_or(0);
                let (mut sum, mut difference) = (left.clone(), left.clone());
                sum.add(&right);
                difference.sub(&right);
                for id in 0..names.len() {
                    let (a, b) = (get(&a, names.name(id)), get(&b, names.name(id)));
                    prop_assert_eq!((sum.get(id), difference.get(id)), (a + b, a - b));
                }
                sum.sub(&right);
                prop_assert_eq!(names.resources(&sum), names.resources(&left));
            }

            #[test]
            fn amounts_by_name_add_up(a in amounts(), b in amounts(), times in 0i64..5) {
                let (mut sum, other) = (Resources::new(a.clone()).unwrap(), Resources::new(b.clone()).unwrap());
                sum.add(&other, times);
                for name in ["cpu", "memory", "fpga", "nic", "disk"] {
                    let get = |map: &BTreeMap<String, i64>| map.get(name).copied().unwrap_or(0);
                    prop_assert_eq!(sum.get(name), get(&a) + times * get(&b));
                }
                prop_assert!(sum.iter().all(|(_, amount)| amount > 0));
            }
        }
    }
}
