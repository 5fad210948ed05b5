//! What a running unit is given on its node beside amounts of resources: devices and zones, as sets of small integers.

use super::{demand::N_DEVICES_MAX, zone::N_CORES_MAX};

/// Most zones of one node: a [`ZoneSet`] has a bit for each.
pub const N_ZONES_MAX: usize = 64;

const _: () = assert!(
    N_DEVICES_MAX == u64::BITS as usize
        && N_ZONES_MAX == u64::BITS as usize
        && N_CORES_MAX == u64::BITS as usize,
    "a bit each"
);

macro_rules! index_set {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// The empty set.
            pub const NONE: Self = Self(0);

            /// Whether the set has no member.
            #[inline]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// Returns the number of members.
            #[inline]
            pub const fn len(self) -> u32 {
                self.0.count_ones()
            }

            /// Whether an index is a member.
            #[inline]
            pub const fn contains(self, idx: usize) -> bool {
                idx < u64::BITS as usize && self.0 >> idx & 1 == 1
            }

            /// Adds an index, which must be below 64.
            #[inline]
            pub const fn insert(&mut self, idx: usize) {
                self.0 |= 1 << idx;
            }

            /// Returns the members of both sets.
            #[inline]
            #[must_use]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// Returns the members that another set lacks.
            #[inline]
            #[must_use]
            pub const fn minus(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// Returns the indices, ascending.
            #[inline]
            pub fn iter(self) -> impl Iterator<Item = usize> {
                let mut left = self.0;
                std::iter::from_fn(move || {
                    (left != 0).then(|| {
                        let idx = left.trailing_zeros() as usize;
                        left &= left - 1;
                        idx
                    })
                })
            }
        }

        impl FromIterator<usize> for $name {
            fn from_iter<I: IntoIterator<Item = usize>>(indices: I) -> Self {
                let mut set = Self::NONE;
                indices.into_iter().for_each(|idx| set.insert(idx));
                set
            }
        }
    };
}

index_set! {
    /// Devices of a node by index, over all kinds: bit i is device i.
    DeviceSet
}

index_set! {
    /// Zones of a node by index: bit i is zone i.
    ZoneSet
}

index_set! {
    /// Cores of one zone by index: bit i is core i.
    CoreSet
}

/// The zones that a running unit is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GivenZones {
    /// The zones from which its resources are taken, the same of each. Empty: the node is taken as a whole.
    pub zones: ZoneSet,
    /// The cores that are its own, if it has only one zone and dedicated CPUs. With several zones all cores are its own.
    pub cores: CoreSet,
}

impl GivenZones {
    /// The node as a whole.
    pub const NONE: Self = Self { zones: ZoneSet::NONE, cores: CoreSet::NONE };

    /// Whether the node is taken as a whole.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.zones.is_empty()
    }
}

impl From<ZoneSet> for GivenZones {
    /// Returns zones of which no core is dedicated.
    fn from(zones: ZoneSet) -> Self {
        Self { zones, cores: CoreSet::NONE }
    }
}

/// What a running unit is given on its node beside amounts of resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Allocation {
    /// The devices of the running unit.
    pub devices: DeviceSet,
    /// The zones from which its resources are taken.
    pub zones: GivenZones,
}

impl Allocation {
    /// Whether nothing is given beside amounts of resources.
    #[inline]
    pub const fn is_empty(self) -> bool {
        let GivenZones { zones, cores } = self.zones;
        self.devices.0 | zones.0 | cores.0 == 0
    }
}

impl From<DeviceSet> for Allocation {
    /// Returns an allocation of devices, without zones.
    fn from(devices: DeviceSet) -> Self {
        Self { devices, zones: GivenZones::NONE }
    }
}

/// Returns the allocation at `idx` of two columns, either of which may be empty.
#[inline]
pub(crate) fn at(devices: &[DeviceSet], zones: &[GivenZones], idx: usize) -> Allocation {
    Allocation {
        devices: devices.get(idx).copied().unwrap_or_default(),
        zones: zones.get(idx).copied().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_the_indices_put_into_it() {
        let set: DeviceSet = [0, 5, 63].into_iter().collect();
        assert_eq!(set, DeviceSet(1 | 1 << 5 | 1 << 63));
        assert_eq!((set.len(), set.iter().collect::<Vec<_>>()), (3, vec![0, 5, 63]));
        assert!(set.contains(5) && !set.contains(4) && !set.contains(64));
        assert_eq!(set.union(DeviceSet(0b10)).len(), 4);
        assert_eq!(set.minus(DeviceSet(0b11)), DeviceSet(1 << 5 | 1 << 63));
        assert!(ZoneSet::NONE.is_empty() && ZoneSet::NONE.iter().next().is_none());
    }

    #[test]
    fn missing_columns_give_nothing() {
        let allocation = at(&[DeviceSet(1), DeviceSet(2)], &[], 1);
        assert_eq!(allocation, Allocation::from(DeviceSet(2)));
        assert_eq!(
            at(&[], &[ZoneSet(1).into()], 0),
            Allocation { devices: DeviceSet::NONE, zones: ZoneSet(1).into() }
        );
    }
}
