//! Identifiers and counters as newtypes. State hands out node and unit ids and never reuses one.

use std::fmt;

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

impl NodeId {
    /// As an index into dense arrays.
    pub fn idx(self) -> usize {
        self.0 as usize
    }
}
