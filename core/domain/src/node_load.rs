//! How much of a node is used: measured by its agent, and how much of that a replica accepts.

/// What is used of a node at one percentile of a time window, by the running units of both pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadAmounts {
    /// Milli-cores.
    pub cpu: i64,
    /// Bytes.
    pub memory: i64,
    /// In the unit of the resource [`NETWORK`](godel_base::resources::NETWORK); 0 where no network use is measured.
    pub network: i64,
}

/// Measured use of a node over the last minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeLoad {
    /// Median.
    pub p50: LoadAmounts,
    /// 95th percentile.
    pub p95: LoadAmounts,
}

/// Measured use of a zone over the last minutes, whoever uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneLoad {
    /// Index of the zone.
    pub zone: u8,
    /// Its use.
    pub load: NodeLoad,
}

/// How much of a node may be used, so that it still takes a replica: percent of what the node has, 1 to 100. `None`: however
/// much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MaxLoad {
    /// 95th percentile of cpu.
    pub cpu: Option<u32>,
    /// 95th percentile of memory.
    pub memory: Option<u32>,
}

impl MaxLoad {
    /// Any load is accepted.
    pub fn is_any(&self) -> bool {
        *self == Self::default()
    }
}
