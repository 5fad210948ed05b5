//! Identifiers and counters as newtypes, and maps by them. State hands out node and unit ids and never reuses one.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    hash::{BuildHasherDefault, Hasher},
};

/// Node ids beyond this are ignored: dense arrays must not follow a corrupt number. State hands ids out
/// from 1, and 4 million nodes over a cluster's life are forty times the largest one planned for.
pub const NODE_ID_MAX: u32 = 1 << 22;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// A node, dense from 1.
    NodeId(u32)
);
number!(
    /// A scheduling unit, from 1.
    UnitId(u64)
);
number!(
    /// A hold, never reused.
    HoldId(u64)
);
number!(
    /// The store-wide revision: one more with each transaction. 0 is before the first.
    Revision(u64)
);
number!(
    /// Fencing epoch of a lease: rises with each grant, never reissued.
    Epoch(u64)
);

number!(
    /// A store, chosen at random when it is made and anew at each restore or truncation. 0: not known.
    StoreId(u64)
);

impl StoreId {
    /// Whether both may be the same: who does not say which one it means is not contradicted.
    pub fn may_be(self, other: Self) -> bool {
        self.0 == 0 || other.0 == 0 || self == other
    }
}

impl NodeId {
    /// As an index into dense arrays.
    pub fn idx(self) -> usize {
        self.0 as usize
    }
}

/// A replica of a unit in one incarnation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId {
    /// Number of the replica within its unit, from 0.
    pub ordinal: u32,
    /// How many times the replica became pending again, from 0.
    pub incarnation: u32,
}

impl ReplicaId {
    /// Returns the id of a replica in an incarnation.
    pub const fn new(ordinal: u32, incarnation: u32) -> Self {
        Self { ordinal, incarnation }
    }

    /// Returns the replicas that two columns name. Missing incarnations are 0.
    pub fn of_columns(ordinals: &[u32], incarnations: &[u32]) -> impl Iterator<Item = Self> {
        let incarnation = |idx: usize| incarnations.get(idx).copied().unwrap_or(0);
        ordinals.iter().enumerate().map(move |(idx, ordinal)| Self::new(*ordinal, incarnation(idx)))
    }

    /// Returns the ordinals and the incarnations of some replicas as two columns.
    pub fn columns(replicas: impl IntoIterator<Item = Self>) -> (Vec<u32>, Vec<u32>) {
        replicas.into_iter().map(|replica| (replica.ordinal, replica.incarnation)).unzip()
    }
}

/// Shows the ordinal, and the incarnation after a dot unless it is the first.
impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.incarnation {
            0 => write!(f, "{}", self.ordinal),
            incarnation => write!(f, "{}.{incarnation}", self.ordinal),
        }
    }
}

/// A running unit: a replica of a unit in one incarnation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunningUnitId {
    /// The unit that the replica belongs to.
    pub unit: UnitId,
    /// The replica.
    pub replica: ReplicaId,
}

impl RunningUnitId {
    /// Returns the id of a replica of `unit` in an incarnation.
    pub const fn new(unit: UnitId, ordinal: u32, incarnation: u32) -> Self {
        Self { unit, replica: ReplicaId::new(ordinal, incarnation) }
    }
}

/// A map by numbers that are handed out in order.
pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;
/// A set of them.
pub type IdSet<K> = HashSet<K, BuildHasherDefault<IdHasher>>;

/// Hashes one number so that sixteen in a row stand side by side in a table: units come, are placed and go
/// about in the order of their ids, and a table that scatters them misses the caches at every step. Which rows stand
/// where is mixed, so no pattern in the ids that remain makes probes long.
///
/// Of a hash, tables take the lowest bits as the place and the seven highest to tell entries apart.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdHasher(u64);

/// Places that a table looks at in one step.
const N_NEIGHBOURS: u64 = 16;
/// 2^64 over the golden ratio, as in Knuth, The Art of Computer Programming 3, 6.4.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bits below those that tell entries apart.
const PLACE_BITS: u32 = 57;

impl Hasher for IdHasher {
    fn write_u64(&mut self, id: u64) {
        let row = (id / N_NEIGHBOURS).wrapping_mul(FACTOR) >> (u64::BITS / 2);
        let place = (row * N_NEIGHBOURS + id % N_NEIGHBOURS) & ((1 << PLACE_BITS) - 1);
        self.0 = place | (id.wrapping_mul(FACTOR) >> PLACE_BITS << PLACE_BITS);
    }

    fn write_u32(&mut self, id: u32) {
        self.write_u64(u64::from(id));
    }

    /// Not the way of one number; correct all the same.
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0.wrapping_mul(FACTOR) ^ u64::from(*byte));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher as _;

    use super::*;

    #[test]
    fn replicas_show_the_incarnation_after_the_first() {
        assert_eq!(ReplicaId::new(3, 0).to_string(), "3");
        assert_eq!(ReplicaId::new(3, 1).to_string(), "3.1");
    }

    fn hash(id: u64) -> u64 {
        BuildHasherDefault::<IdHasher>::default().hash_one(UnitId(id))
    }

    #[test]
    fn neighbours_stand_side_by_side() {
        for first in [0, 16, 1 << 20, u64::MAX / 16 * 16] {
            let places: Vec<u64> = (0..N_NEIGHBOURS).map(|n| hash(first + n) & 0xff).collect();
            assert!(places.is_sorted_by(|a, b| a + 1 == *b), "{first}: {places:?}");
        }
    }

    #[test]
    fn whatever_ids_remain_are_spread() {
        const BITS: u32 = 14;
        for stride in [1, 2, 16, 17, 64, 1_000, 1 << 12, 1 << 16, 1 << 20, 1 << 32] {
            let mut rows = vec![0u32; 1 << (BITS - 4)];
            for n in 0..1 << (BITS - 1) {
                rows[(hash(n * stride) % (1 << BITS) / N_NEIGHBOURS) as usize] += 1;
            }
            // Half full: 8 in a row of 16 on average.
            let most = rows.iter().max().copied().unwrap_or(0);
            assert!(most <= 32, "stride {stride}: {most} in one row");
            let tags: HashSet<u64> = (0..1_000).map(|n| hash(n * stride) >> PLACE_BITS).collect();
            assert!(tags.len() >= 64, "stride {stride}: {} tags", tags.len());
        }
    }
}
