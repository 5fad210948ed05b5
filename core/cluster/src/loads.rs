//! Measured use of nodes, as shares of what they have: what filters and scores compare.
//!
//! The state service records the use of a node when it has changed by a step, so this changes a few times a minute at most and
//! is resolved then: whoever looks at a node compares integers. Nothing is kept until the use of some node is known.

use godel_base::resources::{CPU, MEMORY, NETWORK, Resources};
use godel_domain::node_load::{LoadAmounts, MaxLoad, NodeLoad};

use super::room::SHARE_WHOLE;

/// What is used of a node at one percentile, in parts of [`SHARE_WHOLE`] of what the node has, rounded up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadShares {
    /// Of cpu.
    pub cpu: i64,
    /// Of memory.
    pub memory: i64,
    /// Of network; `None`: the node does not say how much it has.
    pub network: Option<i64>,
}

/// Measured use of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeShares {
    /// Median.
    pub p50: LoadShares,
    /// 95th percentile.
    pub p95: LoadShares,
}

/// Most that may be used of cpu and memory by the 95th percentile, as shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadLimits {
    /// Of cpu.
    pub cpu: i64,
    /// Of memory.
    pub memory: i64,
}

impl LoadLimits {
    /// Returns the limits of a replica; all of it where it says none.
    pub fn of(MaxLoad { cpu, memory }: MaxLoad) -> Self {
        let share = |percent: Option<u32>| {
            percent.map_or(SHARE_WHOLE, |percent| i64::from(percent) * SHARE_WHOLE / 100)
        };
        Self { cpu: share(cpu), memory: share(memory) }
    }

    /// Whether no more is used.
    #[inline]
    pub fn allow(self, used: &LoadShares) -> bool {
        used.cpu <= self.cpu && used.memory <= self.memory
    }
}

/// What has become of the measured use of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadChange {
    /// It is what it was.
    None,
    /// It is different, and nothing that a replica may limit is less.
    Risen,
    /// Something that a replica may limit is less, or no longer known.
    Fallen,
}

/// Measured use by node index; nodes beyond the end have none.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeLoads(Vec<Option<NodeShares>>);

impl NodeLoads {
    /// Returns the measured use of the node at an index; `None`: it is not known.
    #[inline]
    pub(crate) fn of(&self, idx: usize) -> Option<&NodeShares> {
        self.0.get(idx)?.as_ref()
    }

    /// Resolves what is measured of a node against what the node has.
    pub(crate) fn settle(
        &mut self,
        idx: usize,
        load: Option<&NodeLoad>,
        allocatable: Option<&Resources>,
    ) -> LoadChange {
        let now = load
            .zip(allocatable)
            .map(|(load, has)| NodeShares { p50: shares(&load.p50, has), p95: shares(&load.p95, has) });
        if idx >= self.0.len() {
            if now.is_none() {
                return LoadChange::None;
            }
            self.0.resize(idx + 1, None);
        }
        let was = std::mem::replace(&mut self.0[idx], now);
        LoadChange::between(was.as_ref(), now.as_ref())
    }
}

impl LoadChange {
    /// Returns what has become of a measured use.
    pub(crate) fn between(was: Option<&NodeShares>, now: Option<&NodeShares>) -> Self {
        let limited = |shares: &NodeShares| (shares.p95.cpu, shares.p95.memory);
        match (was.map(limited), now.map(limited)) {
            _ if was == now => Self::None,
            (Some(was), Some(now)) if now.0 < was.0 || now.1 < was.1 => Self::Fallen,
            (Some(_), None) => Self::Fallen,
            (None, _) | (Some(_), Some(_)) => Self::Risen,
        }
    }

    /// Both together.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Fallen, _) | (_, Self::Fallen) => Self::Fallen,
            (Self::Risen, _) | (_, Self::Risen) => Self::Risen,
            (Self::None, Self::None) => Self::None,
        }
    }
}

fn shares(used: &LoadAmounts, has: &Resources) -> LoadShares {
    let network = has.get(NETWORK);
    LoadShares {
        cpu: share(used.cpu, has.get(CPU)),
        memory: share(used.memory, has.get(MEMORY)),
        network: (network > 0).then(|| share(used.network, network)),
    }
}

/// All of it for a use of what the node does not have.
pub(crate) fn share(used: i64, whole: i64) -> i64 {
    if used <= 0 {
        return 0;
    }
    if used >= whole {
        return SHARE_WHOLE;
    }
    let share = (i128::from(used) * i128::from(SHARE_WHOLE) + i128::from(whole) - 1) / i128::from(whole);
    i64::try_from(share).unwrap_or(SHARE_WHOLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_rounded_up_and_never_above_the_whole() {
        for (used, whole, expected) in [
            (0, 10, 0),
            (-1, 10, 0),
            (1, 3, 33_334),
            (8_000, 10_000, 80_000),
            (8_001, 10_000, 80_010),
            (10, 10, SHARE_WHOLE),
            (11, 10, SHARE_WHOLE),
            (1, 0, SHARE_WHOLE),
            (0, 0, 0),
            (i64::MAX / 2, i64::MAX, 50_000),
        ] {
            assert_eq!(share(used, whole), expected, "{used} of {whole}");
        }
    }

    #[test]
    fn a_change_says_whether_more_may_fit() {
        let has = Resources::new([(CPU, 1_000), (MEMORY, 1_000)]).unwrap();
        let load = |cpu, memory| {
            let amounts = LoadAmounts { cpu, memory, network: 5 };
            NodeLoad { p50: LoadAmounts::default(), p95: amounts }
        };
        let mut loads = NodeLoads::default();
        let mut settle = |load: Option<NodeLoad>| loads.settle(3, load.as_ref(), Some(&has));
        assert_eq!(settle(None), LoadChange::None);
        assert_eq!(settle(Some(load(500, 500))), LoadChange::Risen);
        assert_eq!(settle(Some(load(500, 500))), LoadChange::None);
        assert_eq!(settle(Some(load(600, 500))), LoadChange::Risen);
        assert_eq!(settle(Some(load(700, 499))), LoadChange::Fallen);
        assert_eq!(settle(None), LoadChange::Fallen);
        assert_eq!(settle(Some(load(1, 1))), LoadChange::Risen);
        let shares = *loads.of(3).unwrap();
        assert_eq!((shares.p95.cpu, shares.p95.network, loads.of(2), loads.of(9)), (100, None, None, None));
        assert_eq!(loads.settle(3, Some(&load(1, 1)), None), LoadChange::Fallen, "its size is not known");
    }
}
