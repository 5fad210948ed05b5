//! Score `dominant-fit`: best fit by the resource of which the replica takes the greatest part of what is free.
//!
//! The score is `SCORE_MAX` times the dominant share: the greatest of the quotients of what is asked for and what is free on the
//! node before the placement, over all resources and devices that the replica asks for. Where it is near 1, the placement
//! leaves little of the resource that decides how many more such replicas fit, and larger gaps stay whole on other nodes.
//!
//! The dominant share is from Ghodsi et al., "Dominant Resource Fairness: Fair Allocation of Multiple Resource Types" (NSDI '11),
//! which relates the demand to all that the cluster has, in order to share it fairly. Relating the demand of a task to what
//! is available on each machine, so that a task goes where it fits best in several resources at once, is from Grandl et al.,
//! "Multi-Resource Packing for Cluster Schedulers" (Tetris, SIGCOMM '14); Tetris adds up the products of demand and available
//! amount over the resources instead of taking the greatest quotient.
//!
//! - Of the devices of a request, those are free that can serve it: wholly free ones for whole devices, for a share those with
//!   as much left. Their free thousandths are added up.
//! - The number of running units that a node takes does not count: nobody asks for it.
//! - A replica that asks for nothing has no dominant share: 0 points on every node.

use godel_cluster::{
    devices::{DeviceAsk, NodeDevices, WHOLE},
    shapes::COUNT,
};

use crate::{
    args::NoArgs,
    point::{Plugin, Score, ScoreInput, points_of},
};

/// The plugin.
#[derive(Debug)]
pub struct DominantFit;

impl Plugin for DominantFit {
    const NAME: &'static str = "dominant-fit";
    const DOC: &'static str = "Prefers nodes that the replica fits best by its dominant resource: 100 points times the greatest quotient of what \
                               it asks for and what is free, over all resources and devices that it asks for. Packs, and leaves room on other \
                               nodes for larger replicas.";
}

impl Score for DominantFit {
    type Args = NoArgs;

    fn new(NoArgs {}: NoArgs) -> Result<Self, String> {
        Ok(Self)
    }

    fn score(&self, place: &ScoreInput<'_>) -> i64 {
        let shape = place.cluster.catalogue().shape(place.ask.shape());
        let free = place.cluster.free().room_of(shape).free(place.idx);
        let mut dominant = Quotient { asked: 0, free: 1 };
        for (id, asked) in shape.asks.iter().filter(|(id, _)| *id != COUNT) {
            dominant.raise(*asked, free[usize::from(*id)]);
        }
        let devices = place.cluster.free().devices(place.idx);
        for ask in &shape.devices {
            let milli = ask.milli.min(WHOLE);
            dominant.raise(i64::from(ask.count) * i64::from(milli), serving_milli(devices, ask, milli));
        }
        points_of(dominant.asked, dominant.free)
    }
}

/// What is asked for of what is free.
struct Quotient {
    asked: i128,
    free: i128,
}

impl Quotient {
    /// Becomes the quotient of these amounts if that is greater. Multiplying beats dividing.
    fn raise(&mut self, asked: i64, free: i64) {
        // Nothing is free where a node shrinks; whatever is asked for there is all of it.
        let (asked, free) = (i128::from(asked), i128::from(free.max(1)));
        if asked * self.free > self.asked * free {
            *self = Self { asked, free };
        }
    }
}

/// Thousandths left on the devices of which each has `milli` left for a request.
fn serving_milli(devices: &NodeDevices, ask: &DeviceAsk, milli: i32) -> i64 {
    let serves = |idx: &usize| devices.free(*idx) >= milli && ask.accepts(devices.classes[*idx]);
    (0..devices.len()).filter(serves).map(|idx| i64::from(devices.free(idx))).sum()
}

#[cfg(test)]
mod tests {
    use godel_base::resources::{CPU, MEMORY, Resources};
    use godel_domain::{
        demand::{Demand, DeviceRequest},
        node::{Device, NodeReport, NodeSpec},
    };
    use serde_json::Value;

    use super::*;
    use crate::{
        plugins::tests::{cluster, demand, score_of, score_on},
        point::SCORE_MAX,
    };

    #[test]
    fn the_greatest_part_of_what_is_free_decides() {
        let plugin = score_of("dominant-fit", Value::Null);
        let nothing = Demand::default();
        for (n_gpus, before, placed, expected) in [
            (0, &nothing, demand(5, 20, None), 50_000),
            (0, &nothing, demand(2, 90, None), 90_000),
            (0, &nothing, demand(10, 1, None), 100_000),
            (0, &nothing, demand(0, 25, None), 25_000),
            (0, &nothing, nothing.clone(), 0),
            // 6 cpu are free, then 30 memory beside them.
            (0, &demand(4, 0, None), demand(3, 20, None), 50_000),
            (0, &demand(4, 70, None), demand(3, 20, None), 66_666),
            (0, &demand(5, 50, None), demand(5, 1, None), 100_000),
            // Devices: of those that can serve the request.
            (2, &nothing, demand(1, 10, Some((1, 1000))), 50_000),
            (2, &nothing, demand(6, 10, Some((1, 1000))), 60_000),
            (2, &nothing, demand(1, 10, Some((2, 1000))), 100_000),
            (4, &nothing, demand(1, 10, Some((1, 100))), 10_000),
            (2, &nothing, demand(0, 0, Some((1, 100))), 5_000),
            (2, &demand(1, 1, Some((1, 500))), demand(1, 1, Some((1, 1000))), 100_000),
            (2, &demand(1, 1, Some((1, 500))), demand(1, 1, Some((1, 500))), 33_333),
            (2, &demand(1, 1, Some((1, 500))), demand(1, 1, Some((1, 600))), 60_000),
            // Not those that are not asked for.
            (2, &demand(1, 0, Some((2, 1000))), demand(3, 1, None), 33_333),
        ] {
            let scored = score_on(&*plugin, cluster(n_gpus, |_, _| {}), before, &placed, &[]);
            assert_eq!(scored, expected, "{before:?} then {placed:?}");
        }
    }

    #[test]
    fn every_named_resource_counts() {
        let node = |_: &mut NodeSpec, report: &mut NodeReport| {
            report.capacity = Resources::new([(CPU, 10), (MEMORY, 100), ("fpga", 4)]).unwrap();
        };
        let plugin = score_of("dominant-fit", Value::Null);
        let demand = |cpu: i64, fpgas: i64| Demand {
            requests: Resources::new([(CPU, cpu), ("fpga", fpgas)]).unwrap(),
            ..Demand::default()
        };
        for (before, n_fpgas, expected) in [(0, 1, 50_000), (0, 3, 75_000), (1, 2, 66_666), (3, 1, 100_000)] {
            let scored = score_on(&*plugin, cluster(0, node), &demand(0, before), &demand(5, n_fpgas), &[]);
            assert_eq!(scored, expected, "{before} then {n_fpgas}");
        }
    }

    #[test]
    fn only_devices_of_accepted_kinds_and_models_are_free() {
        let node = |_: &mut NodeSpec, report: &mut NodeReport| {
            let device = |kind: &str, model: &str| Device {
                kind: kind.to_owned(),
                model: model.to_owned(),
                numa_zone: 0,
                details: None,
            };
            let gpus = ["A10", "A10", "T4", "T4"].map(|model| device("gpu", model));
            report.devices = gpus.into_iter().chain([device("nic", "X"), device("nic", "X")]).collect();
        };
        let plugin = score_of("dominant-fit", Value::Null);
        let request = |kind: &str, count, milli, models: &[&str]| DeviceRequest {
            kind: kind.to_owned(),
            count,
            milli,
            models: models.iter().map(|model| (*model).to_owned()).collect(),
            terms: None,
        };
        for (devices, expected) in [
            (vec![request("gpu", 1, 1000, &[])], 25_000),
            (vec![request("gpu", 1, 1000, &["A10"])], 50_000),
            (vec![request("gpu", 2, 1000, &["A10", "T4"])], 50_000),
            (vec![request("nic", 1, 500, &[])], 25_000),
            (vec![request("gpu", 1, 1000, &[]), request("nic", 2, 1000, &[])], 100_000),
            (vec![request("gpu", 3, 1000, &[]), request("nic", 1, 1000, &[])], 75_000),
        ] {
            let placed = Demand { devices, ..Demand::default() };
            let scored = score_on(&*plugin, cluster(0, node), &Demand::default(), &placed, &[]);
            assert_eq!(scored, expected, "{placed:?}");
        }
    }

    #[test]
    fn amounts_of_any_size_are_compared() {
        let mut quotient = Quotient { asked: 0, free: 1 };
        for (asked, free, expected) in [
            (0, i64::MAX, 0),
            (i64::MAX / 4, i64::MAX, 24_999),
            (i64::MAX - 1, i64::MAX, 99_999),
            (1, 2, 99_999),
            (1, 0, SCORE_MAX),
            (1, -5, SCORE_MAX),
        ] {
            quotient.raise(asked, free);
            assert_eq!(points_of(quotient.asked, quotient.free), expected, "{asked} of {free}");
        }
    }
}
