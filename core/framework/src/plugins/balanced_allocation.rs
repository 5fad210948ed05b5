//! Score `balanced-allocation`: keeps the taken shares of cpu, memory and devices near one another, so that no resource of a
//! node runs out while much is left of the others.
//!
//! The score is that of `NodeResourcesBalancedAllocation` in Kubernetes: [`SCORE_MAX`] minus the standard deviation of the shares
//! that would be taken after the placement, here in integers. The standard deviation of numbers from 0 to 1 is at most 1/2, so a
//! score is 50 points at least. Also as in Kubernetes:
//!
//! - Devices count only for a replica that asks for some, and any resource only on nodes that have it.
//! - Only what is asked for counts as taken, without the little that empty requests count in other scores (`Shape::nominal`).
//! - All nodes are alike to a replica that asks for none of the resources. It changes no share, so all such replicas would go to
//!   the node whose shares are nearest to one another.

use serde::{Deserialize, Serialize};

use super::most_allocated::devices_taken;
use crate::{
    args::{ArgField, PluginArgs},
    point::{Plugin, SCORE_MAX, Score, ScoreInput},
};

/// The plugin.
#[derive(Debug)]
pub struct BalancedAllocation {
    /// Whether cpu and memory count, by their integers.
    counts: [bool; 2],
    counts_devices: bool,
}

/// Arguments of `balanced-allocation`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BalanceArgs {
    /// Whose shares are compared.
    pub resources: Vec<ComparedResource>,
}

/// A resource whose share is compared with those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ComparedResource {
    /// Cpu.
    Cpu,
    /// Memory.
    Memory,
    /// Devices of whatever kind.
    Gpu,
}

impl Default for BalanceArgs {
    fn default() -> Self {
        Self { resources: vec![ComparedResource::Cpu, ComparedResource::Memory, ComparedResource::Gpu] }
    }
}

impl PluginArgs for BalanceArgs {
    const FIELDS: &'static [ArgField] = &[ArgField {
        name: "resources",
        kind: "list of two or three of `cpu`, `memory` and `gpu` (devices of every kind)",
        doc: "The resources whose shares are compared. Devices count for replicas that ask for some, on nodes that have some.",
    }];
}

impl Plugin for BalancedAllocation {
    const NAME: &'static str = "balanced-allocation";
    const DOC: &'static str = "Prefers nodes whose allocated shares of cpu, memory and devices would be nearest to one another after the \
                               placement: 100 points minus the standard deviation of the shares. No effect on replicas that ask for none of \
                               these resources.";
}

impl Score for BalancedAllocation {
    type Args = BalanceArgs;

    fn new(BalanceArgs { resources }: BalanceArgs) -> Result<Self, String> {
        let counts = |resource| resources.contains(&resource);
        let plugin = Self {
            counts: [counts(ComparedResource::Cpu), counts(ComparedResource::Memory)],
            counts_devices: counts(ComparedResource::Gpu),
        };
        let n_counting = plugin.counts.into_iter().chain([plugin.counts_devices]).filter(|counts| *counts);
        let n_counting = n_counting.count();
        if n_counting < resources.len() {
            return Err("`resources`: a resource is listed twice".to_owned());
        }
        if n_counting < 2 {
            return Err("`resources`: two at least, because one share has nothing to be near to".to_owned());
        }
        Ok(plugin)
    }

    fn score(&self, place: &ScoreInput<'_>) -> i64 {
        let shape = place.cluster.catalogue().shape(place.ask.shape());
        let asks_devices = self.counts_devices && !shape.devices.is_empty();
        let asks = |id: usize| self.counts[id] && shape.first[id] > 0;
        if !asks_devices && !asks(0) && !asks(1) {
            return SCORE_MAX;
        }
        let room = place.cluster.free().room_of(shape);
        let (allocatable, free) = (room.allocatable(place.idx), room.free(place.idx));
        let share = |id: usize| {
            let left = free[id] - shape.first[id].max(0);
            (self.counts[id] && allocatable[id] > 0).then(|| SCORE_MAX - room.share(place.idx, id, left))
        };
        let devices = if asks_devices { devices_taken(place, shape) } else { None };
        SCORE_MAX - deviation([share(0), share(1), devices])
    }
}

/// The standard deviation of the shares that count, rounded down; 0 of fewer than two.
fn deviation(shares: [Option<i64>; 3]) -> i64 {
    match shares {
        // Two numbers are equally far from their mean, which saves the root.
        [Some(a), Some(b), None] | [Some(a), None, Some(b)] | [None, Some(a), Some(b)] => (a - b).abs() / 2,
        [Some(a), Some(b), Some(c)] => {
            let (sum, squares) = (a + b + c, a * a + b * b + c * c);
            // Of n numbers the variance is n times the sum of their squares minus the square of their sum, by n².
            (3 * squares - sum * sum).isqrt() / 3
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use godel_base::resources::{CPU, Resources};
    use godel_domain::demand::Demand;
    use serde_json::{Value, json};

    use super::*;
    use crate::plugins::tests::{cluster, demand, score_of, score_on};

    #[test]
    fn the_nearer_the_shares_the_better() {
        let nothing = Demand::default();
        let gpu = Some((1, 1000));
        for (args, n_gpus, before, placed, expected) in [
            (Value::Null, 0, &nothing, demand(5, 50, None), 100_000),
            (Value::Null, 0, &nothing, demand(10, 0, None), 50_000),
            (Value::Null, 0, &demand(4, 0, None), demand(2, 20, None), 80_000),
            // The placement makes unequal shares equal.
            (Value::Null, 0, &demand(4, 0, None), demand(1, 50, None), 100_000),
            // One of two devices is taken, then some of one.
            (Value::Null, 2, &nothing, demand(5, 50, gpu), 100_000),
            (Value::Null, 2, &nothing, demand(9, 90, gpu), 81_144),
            (Value::Null, 2, &nothing, demand(10, 0, gpu), 59_176),
            (Value::Null, 2, &demand(1, 10, Some((1, 500))), demand(2, 20, Some((1, 100))), 100_000),
            // Devices that the replica does not ask for do not count.
            (Value::Null, 2, &demand(1, 10, gpu), demand(4, 40, None), 100_000),
            (Value::Null, 2, &nothing, demand(10, 0, None), 50_000),
            // Only what is listed counts.
            (json!({"resources": ["cpu", "memory"]}), 2, &nothing, demand(9, 90, gpu), 100_000),
            (json!({"resources": ["gpu", "cpu"]}), 2, &nothing, demand(9, 1, gpu), 80_000),
            (json!({"resources": ["memory", "gpu"]}), 2, &nothing, demand(9, 50, gpu), 100_000),
            // Without devices one share is left.
            (json!({"resources": ["memory", "gpu"]}), 2, &nothing, demand(9, 50, None), 100_000),
        ] {
            let plugin = score_of("balanced-allocation", args.clone());
            let scored = score_on(&*plugin, cluster(n_gpus, |_, _| {}), before, &placed, &[]);
            assert_eq!(scored, expected, "{args} {before:?} then {placed:?}");
        }
    }

    #[test]
    fn all_nodes_are_alike_to_a_replica_that_asks_for_nothing() {
        let full_of_cpu = demand(10, 0, None);
        for (args, placed) in [
            (Value::Null, Demand::default()),
            (json!({"resources": ["cpu", "gpu"]}), demand(0, 50, None)),
            (json!({"resources": ["cpu", "memory"]}), demand(0, 0, Some((1, 1000)))),
        ] {
            let plugin = score_of("balanced-allocation", args);
            let scored = score_on(&*plugin, cluster(2, |_, _| {}), &full_of_cpu, &placed, &[]);
            assert_eq!(scored, SCORE_MAX, "{placed:?}");
        }
    }

    #[test]
    fn a_resource_that_the_node_does_not_have_does_not_count() {
        let only_cpu = cluster(0, |_, report| report.capacity = Resources::new([(CPU, 10)]).unwrap());
        let plugin = score_of("balanced-allocation", Value::Null);
        assert_eq!(score_on(&*plugin, only_cpu, &Demand::default(), &demand(9, 0, None), &[]), SCORE_MAX);
    }

    #[test]
    fn the_deviation_of_three_shares_is_that_of_the_formula() {
        let shares = || (0..=SCORE_MAX).step_by(4_321);
        for (a, b, c) in shares().flat_map(|a| shares().flat_map(move |b| shares().map(move |c| (a, b, c)))) {
            let numbers = [a, b, c].map(|n| n as f64);
            let mean = numbers.iter().sum::<f64>() / 3.0;
            let variance = numbers.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / 3.0;
            let found = deviation([Some(a), Some(b), Some(c)]);
            assert!((variance.sqrt() - found as f64).abs() <= 1.0, "{a} {b} {c}: {found}");
            assert!((0..=SCORE_MAX / 2).contains(&found));
        }
    }
}
