//! Room taken before it is committed, by unit and ordinal.
//!
//! A unit's ordinals are assumed in order and, mostly, end in order: they stand in a sorted column that is appended
//! to and emptied from the front, and the place of the next one is guessed before it is searched. Thousands of one unit
//! come in a row, so the column of the last one stays at hand.

use godel_base::ids::{IdMap, NodeId, ReplicaId, RunningUnitId, UnitId};
use godel_domain::allocation::Allocation;

use super::shapes::ShapeId;

/// One running unit's room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assumed {
    /// Incarnation of the replica.
    pub incarnation: u32,
    /// What it asks for.
    pub shape: ShapeId,
    /// Where it goes.
    pub node: NodeId,
    /// What it is given there.
    pub allocation: Allocation,
}

/// Assumptions; few units at a time.
#[derive(Clone, Debug, Default)]
pub struct Assumptions {
    /// None is empty.
    units: IdMap<UnitId, Column>,
    /// The unit asked for last, and its column, which may be empty; it is not among the others.
    at_hand: (UnitId, Column),
}

/// By ordinal, ascending; those that ended leave a gap until the column is empty.
#[derive(Clone, Debug, Default)]
struct Column {
    slots: Vec<(u32, Option<Assumed>)>,
    n_live: usize,
    /// Behind the slot that was looked at last.
    guess: usize,
}

impl Column {
    /// The slot of an ordinal, or where it would stand.
    fn find(&mut self, ordinal: u32) -> Result<usize, usize> {
        let found = match self.slots.get(self.guess) {
            Some((at, _)) if *at == ordinal => Ok(self.guess),
            _ if self.slots.last().is_none_or(|(last, _)| *last < ordinal) => Err(self.slots.len()),
            _ => self.slots.binary_search_by_key(&ordinal, |(at, _)| *at),
        };
        self.guess = found.map_or(0, |idx| idx + 1);
        found
    }
}

impl Assumptions {
    /// In order of unit and ordinal.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (UnitId, u32, Assumed)> {
        let mut units: Vec<_> = self.units.iter().map(|(unit, column)| (*unit, column)).collect();
        units.push((self.at_hand.0, &self.at_hand.1));
        units.sort_unstable_by_key(|(unit, _)| *unit);
        units.into_iter().flat_map(|(unit, column)| {
            let live = column.slots.iter().filter_map(|(ordinal, assumed)| Some((*ordinal, (*assumed)?)));
            live.map(move |(ordinal, assumed)| (unit, ordinal, assumed))
        })
    }

    /// Returns what is assumed of a replica.
    pub fn get(&self, unit: UnitId, ordinal: u32) -> Option<Assumed> {
        let column = if self.at_hand.0 == unit { &self.at_hand.1 } else { self.units.get(&unit)? };
        let idx = column.slots.binary_search_by_key(&ordinal, |(at, _)| *at).ok()?;
        column.slots[idx].1
    }

    /// Whether something of a unit is assumed.
    pub fn has_of(&self, unit: UnitId) -> bool {
        self.of(unit).next().is_some()
    }

    /// Whether this incarnation of a replica is assumed somewhere.
    pub fn has(&self, id: RunningUnitId) -> bool {
        let assumed = self.get(id.unit, id.replica.ordinal);
        assumed.is_some_and(|assumed| assumed.incarnation == id.replica.incarnation)
    }

    /// Those of one unit, in order of ordinals.
    pub(crate) fn of(&self, unit: UnitId) -> impl Iterator<Item = Assumed> {
        let column = if self.at_hand.0 == unit { Some(&self.at_hand.1) } else { self.units.get(&unit) };
        column.into_iter().flat_map(|column| column.slots.iter().filter_map(|(_, assumed)| *assumed))
    }

    /// Sets an assumption; the one that it replaces.
    #[inline(always)]
    pub(crate) fn insert(&mut self, unit: UnitId, ordinal: u32, assumed: Assumed) -> Option<Assumed> {
        let column = self.column(unit);
        let before = match column.find(ordinal) {
            Ok(idx) => column.slots[idx].1.replace(assumed),
            Err(idx) => {
                column.slots.insert(idx, (ordinal, Some(assumed)));
                None
            }
        };
        column.n_live += usize::from(before.is_none());
        before
    }

    /// Takes out an assumption of this incarnation or an older one.
    pub(crate) fn take(&mut self, id: RunningUnitId) -> Option<Assumed> {
        let RunningUnitId { unit, replica: ReplicaId { ordinal, incarnation } } = id;
        if self.at_hand.0 != unit && !self.units.contains_key(&unit) {
            return None;
        }
        let column = self.column(unit);
        let idx = column.find(ordinal).ok()?;
        let slot = &mut column.slots[idx].1;
        let assumed = slot.take_if(|assumed| assumed.incarnation <= incarnation)?;
        column.n_live -= 1;
        if column.n_live == 0 {
            column.slots.clear();
        }
        Some(assumed)
    }

    /// Takes out everything of a unit, in order of ordinals.
    pub(crate) fn remove(&mut self, unit: UnitId) -> impl Iterator<Item = Assumed> + use<> {
        let column = if self.at_hand.0 == unit {
            std::mem::take(&mut self.at_hand.1)
        } else {
            self.units.remove(&unit).unwrap_or_default()
        };
        column.slots.into_iter().filter_map(|(_, assumed)| assumed)
    }

    fn column(&mut self, unit: UnitId) -> &mut Column {
        if self.at_hand.0 != unit {
            let next = self.units.remove(&unit).unwrap_or_default();
            let (last, column) = std::mem::replace(&mut self.at_hand, (unit, next));
            if column.n_live > 0 {
                self.units.insert(last, column);
            }
        }
        &mut self.at_hand.1
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use godel_domain::demand::Pool;
    use proptest::prelude::*;

    use super::*;
    use crate::Cluster;

    proptest! {
        #[test]
        fn agrees_with_a_map(steps in proptest::collection::vec((0u64..3, 0u32..12, 0u32..3, 0u8..8), 0..200)) {
            let shape = Cluster::new().shape(&Default::default(), Pool::Guaranteed);
            let mut assumptions = Assumptions::default();
            let mut map: BTreeMap<(UnitId, u32), Assumed> = BTreeMap::new();
            for (unit, ordinal, incarnation, step) in steps {
                let unit = UnitId(unit);
                match step {
                    0..4 => {
                        let node = NodeId(u32::try_from(map.len()).unwrap());
                        let assumed = Assumed { incarnation, shape, node, allocation: Allocation::default() };
                        let before = assumptions.insert(unit, ordinal, assumed);
                        prop_assert_eq!(before, map.insert((unit, ordinal), assumed));
                    }
                    4..7 => {
                        let fits = map.get(&(unit, ordinal)).is_some_and(|known| known.incarnation <= incarnation);
                        let expected = if fits { map.remove(&(unit, ordinal)) } else { None };
                        prop_assert_eq!(assumptions.take(RunningUnitId::new(unit, ordinal, incarnation)), expected);
                    }
                    _ => {
                        let removed: Vec<_> = assumptions.remove(unit).collect();
                        let expected: Vec<_> = map.extract_if((unit, 0)..=(unit, u32::MAX), |_, _| true).collect();
                        prop_assert_eq!(removed, expected.into_iter().map(|(_, assumed)| assumed).collect::<Vec<_>>());
                    }
                }
                prop_assert_eq!(assumptions.get(unit, ordinal), map.get(&(unit, ordinal)).copied());
                let all: Vec<_> = map.iter().map(|((unit, ordinal), assumed)| (*unit, *ordinal, *assumed)).collect();
                prop_assert_eq!(assumptions.iter().collect::<Vec<_>>(), all);
            }
        }
    }
}
