//! What the running units of a node ask of it: how much room they leave, and what the use of a simulated node is modelled from.

use godel_domain::{
    allocation::{Allocation, ZoneSet},
    demand::Pool,
};

use crate::{RunOrders, RunWeight};

/// Sums over what lives on a node, and what is left over there until it has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveWeights {
    guaranteed: RunWeight,
    best_effort: RunWeight,
    n: usize,
}

/// What guaranteed and best-effort running units ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolWeights {
    /// Guaranteed ones.
    pub guaranteed: RunWeight,
    /// Best-effort ones.
    pub best_effort: RunWeight,
}

impl LiveWeights {
    /// What all of them ask for.
    #[inline]
    pub fn weights(&self) -> PoolWeights {
        PoolWeights { guaranteed: self.guaranteed, best_effort: self.best_effort }
    }

    /// How many there are.
    #[inline]
    pub fn n(&self) -> usize {
        self.n
    }

    pub(crate) fn add(&mut self, weight: RunWeight, pool: Pool) {
        let sum = self.of(pool);
        *sum = sum.plus(weight);
        self.n += 1;
    }

    pub(crate) fn take(&mut self, weight: RunWeight, pool: Pool) {
        let sum = self.of(pool);
        sum.cpu_milli -= weight.cpu_milli;
        sum.memory -= weight.memory;
        sum.network -= weight.network;
        self.n = self.n.saturating_sub(1);
    }

    fn of(&mut self, pool: Pool) -> &mut RunWeight {
        match pool {
            Pool::Guaranteed => &mut self.guaranteed,
            Pool::BestEffort => &mut self.best_effort,
        }
    }
}

/// What running units with these orders ask of some zones: each of those that it was given the same, or of all of them.
pub(crate) fn of_zones<'a, P: 'a>(
    zones: &[usize],
    live: impl Iterator<Item = &'a RunOrders<P>>,
) -> Vec<PoolWeights> {
    let mut sums = vec![PoolWeights::default(); zones.len()];
    let all: ZoneSet = zones.iter().copied().collect();
    for orders in live {
        let Allocation { zones: given, .. } = orders.allocation;
        let given = if given.zones.is_empty() { all } else { given.zones };
        let part = orders.weight.part(i64::from(given.len()));
        for zone in given.iter() {
            let Some(at) = zones.iter().position(|known| *known == zone) else { continue };
            let sum = match orders.pool {
                Pool::Guaranteed => &mut sums[at].guaranteed,
                Pool::BestEffort => &mut sums[at].best_effort,
            };
            *sum = sum.plus(part);
        }
    }
    sums
}
