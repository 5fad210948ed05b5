//! The fields of units and templates one after the other, for everything that is done with all of them: what differs between two
//! units, and how many bytes a template takes in a record.

use std::{collections::BTreeMap, hash::Hash};

use godel_base::resources::Resources;

use crate::{
    demand::{DeviceRequest, Pool},
    host_port::HostPort,
    label_expression::LabelExpression,
    node::Toleration,
    node_affinity::NodeAffinity,
    node_load::MaxLoad,
    template::Volume,
    unit::{OnBelowMin, OnEviction, OnFailure, RestartPolicy, TaskGroup, WorkloadClass},
    unit_affinity::{SpreadTerm, UnitTerm},
    unit_topology::UnitTopology,
    zone::ZoneRequest,
};

/// What is done with each field of two units, or of one with itself.
pub trait FieldVisitor {
    /// A field of both, by its key in unit files.
    fn field<V: FieldValue>(&mut self, key: &str, one: &V, other: &V);

    /// The task groups of both.
    fn groups(&mut self, one: &[TaskGroup], other: &[TaskGroup]);
}

/// A key, and a number of 64 bits or the length of a message.
pub const NUMBER_BYTES: usize = 12;
/// A key, and the length of a text that a record can have.
const LENGTH_BYTES: usize = 6;

/// The value of a field.
pub trait FieldValue: PartialEq + Hash {
    /// So many bytes it has at most in a record.
    fn n_bytes(&self) -> usize {
        NUMBER_BYTES
    }

    /// The keys of a map that the other one has not, or has with another value, and those that only the other one has; `None`: the
    /// value is no map.
    fn differing_keys(&self, _other: &Self) -> Option<Vec<String>> {
        None
    }
}

impl FieldValue for bool {}
impl FieldValue for Pool {}
impl FieldValue for WorkloadClass {}
impl FieldValue for RestartPolicy {}
impl FieldValue for OnEviction {}
impl FieldValue for OnBelowMin {}
impl FieldValue for OnFailure {}

impl FieldValue for i32 {
    fn n_bytes(&self) -> usize {
        if *self == 0 { 0 } else { NUMBER_BYTES }
    }
}

impl FieldValue for u32 {
    fn n_bytes(&self) -> usize {
        if *self == 0 { 0 } else { NUMBER_BYTES }
    }
}

impl FieldValue for u64 {
    fn n_bytes(&self) -> usize {
        if *self == 0 { 0 } else { NUMBER_BYTES }
    }
}

impl FieldValue for String {
    fn n_bytes(&self) -> usize {
        self.len() + LENGTH_BYTES
    }
}

impl<V: FieldValue> FieldValue for Box<V> {
    fn n_bytes(&self) -> usize {
        self.as_ref().n_bytes()
    }
}

impl<V: FieldValue> FieldValue for Option<V> {
    fn n_bytes(&self) -> usize {
        // One that is given is written, whatever it is.
        self.as_ref().map_or(0, |value| value.n_bytes().max(LENGTH_BYTES))
    }
}

impl<V: FieldValue> FieldValue for Vec<V> {
    fn n_bytes(&self) -> usize {
        self.iter().map(V::n_bytes).sum()
    }
}

impl FieldValue for BTreeMap<String, String> {
    fn n_bytes(&self) -> usize {
        self.iter().map(|(key, value)| key.n_bytes() + value.n_bytes() + LENGTH_BYTES).sum()
    }

    fn differing_keys(&self, other: &Self) -> Option<Vec<String>> {
        let lost = self.iter().filter(|(key, value)| other.get(*key) != Some(value)).map(|(key, _)| key);
        let new = other.keys().filter(|key| !self.contains_key(*key));
        Some(lost.chain(new).cloned().collect())
    }
}

impl FieldValue for Resources {
    fn n_bytes(&self) -> usize {
        self.iter().map(|(name, _)| name.len() + NUMBER_BYTES + 2 * LENGTH_BYTES).sum()
    }

    fn differing_keys(&self, other: &Self) -> Option<Vec<String>> {
        let amount_of = |amounts: &Self, name: &str| {
            amounts.iter().find(|(known, _)| *known == name).map(|(_, amount)| amount)
        };
        let lost = self.iter().filter(|(name, amount)| amount_of(other, name) != Some(*amount));
        let new = other.iter().filter(|(name, _)| amount_of(self, name).is_none());
        Some(lost.chain(new).map(|(name, _)| name.to_owned()).collect())
    }
}

impl FieldValue for DeviceRequest {
    fn n_bytes(&self) -> usize {
        let Self { kind, count: _, milli: _, models, terms } = self;
        let terms = terms.as_ref().map_or(0, |terms| {
            terms.link.n_bytes() + terms.same_zone_as.n_bytes() + terms.profile.n_bytes() + 3 * NUMBER_BYTES
        });
        kind.n_bytes() + models.n_bytes() + terms + 3 * NUMBER_BYTES
    }
}

impl FieldValue for HostPort {
    fn n_bytes(&self) -> usize {
        2 * NUMBER_BYTES
    }
}

impl FieldValue for ZoneRequest {
    fn n_bytes(&self) -> usize {
        3 * NUMBER_BYTES
    }
}

impl FieldValue for Toleration {
    fn n_bytes(&self) -> usize {
        let value = self.value.as_ref().map_or(0, String::len);
        self.key.n_bytes() + value + 2 * LENGTH_BYTES + 4 * NUMBER_BYTES
    }
}

impl FieldValue for MaxLoad {
    fn n_bytes(&self) -> usize {
        let Self { cpu, memory } = self;
        [cpu, memory].into_iter().flatten().count() * NUMBER_BYTES
    }
}

impl FieldValue for Volume {
    fn n_bytes(&self) -> usize {
        let Self { name, bytes: _, path } = self;
        name.n_bytes() + path.n_bytes() + 2 * NUMBER_BYTES
    }
}

impl FieldValue for LabelExpression {
    fn n_bytes(&self) -> usize {
        self.key.n_bytes() + self.values.n_bytes() + 2 * NUMBER_BYTES
    }
}

impl FieldValue for NodeAffinity {
    fn n_bytes(&self) -> usize {
        let Self { required, preferred } = self;
        let terms = required.iter().chain(preferred.iter().map(|one| &one.term));
        let bytes: usize = terms.map(|term| term.n_bytes() + 3 * NUMBER_BYTES).sum();
        if self.is_empty() { 0 } else { bytes + NUMBER_BYTES }
    }
}

impl FieldValue for UnitTopology {
    fn n_bytes(&self) -> usize {
        let Self { required, preferred, homogeneous, segments } = self;
        let within = segments.as_ref().map_or(0, |segments| segments.within.n_bytes());
        required.n_bytes() + preferred.n_bytes() + homogeneous.n_bytes() + within + 3 * NUMBER_BYTES
    }
}

impl FieldValue for UnitTerm {
    fn n_bytes(&self) -> usize {
        self.units.n_bytes() + self.topology.n_bytes() + 2 * NUMBER_BYTES
    }
}

impl FieldValue for SpreadTerm {
    fn n_bytes(&self) -> usize {
        self.units.n_bytes() + self.topology.n_bytes() + 3 * NUMBER_BYTES
    }
}
