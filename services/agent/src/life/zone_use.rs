//! What the running units of a node ask of its zones: what the use of a simulated node is modelled from.

use godel_domain::{allocation::ZoneSet, demand::Pool};

use super::{NodeLife, Weight};

impl NodeLife {
    /// Returns what guaranteed and best-effort running units that live here ask of some zones: each of those that it was given the
    /// same, or of all of them.
    pub fn zone_weights(&self, zones: &[usize]) -> Vec<(Weight, Weight)> {
        let mut sums = vec![(Weight::default(), Weight::default()); zones.len()];
        let all: ZoneSet = zones.iter().copied().collect();
        for run in self.runs.values().filter(|run| run.phase.is_live()) {
            let given = run.orders.allocation.zones.zones;
            let given = if given.is_empty() { all } else { given };
            let part = run.orders.weight.part(i64::from(given.len()));
            for zone in given.iter() {
                let Some(at) = zones.iter().position(|known| *known == zone) else { continue };
                let sum = match run.orders.pool {
                    Pool::Guaranteed => &mut sums[at].0,
                    Pool::BestEffort => &mut sums[at].1,
                };
                *sum = sum.plus(part);
            }
        }
        sums
    }
}
