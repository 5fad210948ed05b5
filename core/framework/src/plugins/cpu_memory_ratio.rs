//! Score `cpu-memory-ratio`: leaves cpu and memory free in proportions that such replicas can use.
//!
//! Where the free amounts are in the ratio that the replica asks for, they still are after the placement, and more such replicas
//! use up both. On any other node one of the two runs out while some of the other is left. With `c` and `m` asked for, and `C`
//! and `M` free before the placement, the score is
//!
//! ```text
//! SCORE_MAX * min(c * M, C * m) / max(c * M, C * m)
//! ```
//!
//! which is the lesser of the two ratios `c / m` and `C / M` divided by the greater one: 100 points for equal ratios, 50 where
//! one is twice the other, in either direction.
//!
//! - A replica that asks for no cpu, or for no memory, counts the little of it that it counts in other scores too
//!   (`Shape::nominal`: 100m, 200Mi), so it goes where that resource is scarce.
//! - All nodes are alike to a replica that asks for neither: it takes nothing that could become useless.
//! - A node with no cpu left, or no memory, has no ratio that fits: 0 points.

use crate::{
    args::NoArgs,
    point::{Plugin, SCORE_MAX, Score, ScoreInput, points_of},
};

/// The plugin.
#[derive(Debug)]
pub struct CpuMemoryRatio;

impl Plugin for CpuMemoryRatio {
    const NAME: &'static str = "cpu-memory-ratio";
    const DOC: &'static str = "Prefers nodes whose ratio of free cpu to free memory is nearest to the ratio that the replica asks for, so \
                               that what stays free can be used: 100 points times the lesser ratio, divided by the greater one. A replica that \
                               asks for only one of the two counts 100m or 200Mi of the other. No effect on replicas that ask for neither.";
}

impl Score for CpuMemoryRatio {
    type Args = NoArgs;

    fn new(NoArgs {}: NoArgs) -> Result<Self, String> {
        Ok(Self)
    }

    fn score(&self, place: &ScoreInput<'_>) -> i64 {
        let shape = place.cluster.catalogue().shape(place.ask.shape());
        if shape.first[0] <= 0 && shape.first[1] <= 0 {
            return SCORE_MAX;
        }
        let room = place.cluster.free().room_of(shape);
        let asked = [0, 1].map(|id| shape.first[id].max(0) + shape.nominal[id]);
        let free = room.free(place.idx);
        if free[0] <= 0 || free[1] <= 0 {
            return 0;
        }
        let of_replica = i128::from(asked[0]) * i128::from(free[1]);
        let of_node = i128::from(free[0]) * i128::from(asked[1]);
        points_of(of_replica.min(of_node), of_replica.max(of_node))
    }
}

#[cfg(test)]
mod tests {
    use godel_base::resources::{CPU, MEMORY, Resources};
    use godel_cluster::Cluster;
    use godel_domain::demand::Demand;
    use serde_json::Value;

    use super::*;
    use crate::plugins::tests::{cluster, demand, score_of, score_on};

    fn node(cpu: i64, memory: i64) -> Cluster {
        cluster(0, |_, report| report.capacity = Resources::new([(CPU, cpu), (MEMORY, memory)]).unwrap())
    }

    #[track_caller]
    fn check(node: Cluster, before: (i64, i64), placed: (i64, i64), expected: i64) {
        let plugin = score_of("cpu-memory-ratio", Value::Null);
        let (before, placed) = (demand(before.0, before.1, None), demand(placed.0, placed.1, None));
        assert_eq!(score_on(&*plugin, node, &before, &placed, &[]), expected);
    }

    #[test]
    fn the_nearer_the_ratios_the_better() {
        for (before, placed, expected) in [
            ((0, 0), (1, 10), 100_000),
            ((0, 0), (10, 100), 100_000),
            ((0, 0), (1, 20), 50_000),
            ((0, 0), (2, 10), 50_000),
            ((0, 0), (3, 10), 33_333),
            // 5 and 100 are free.
            ((5, 0), (1, 20), 100_000),
            ((5, 0), (1, 10), 50_000),
            ((5, 0), (5, 100), 100_000),
            // 10 and 10 are free.
            ((0, 90), (1, 1), 100_000),
            ((0, 90), (10, 1), 10_000),
        ] {
            check(node(10, 100), before, placed, expected);
        }
    }

    #[test]
    fn what_is_not_asked_for_counts_a_little() {
        let mib = 1 << 20;
        // 400m and 200Mi on a node of 2 and of 4 GiB for each core.
        check(node(4000, 8 * 1024 * mib), (0, 0), (400, 0), 24_414);
        check(node(4000, 16 * 1024 * mib), (0, 0), (400, 0), 12_207);
        // 100m and 800Mi: 8 GiB for each core.
        check(node(4000, 32 * 1000 * mib), (0, 0), (0, 800 * mib), 100_000);
        check(node(4000, 16 * 1000 * mib), (0, 0), (0, 800 * mib), 50_000);
        check(node(4000, 8 * 1000 * mib), (0, 0), (0, 0), 100_000);
    }

    #[test]
    fn a_node_with_nothing_left_of_one_comes_last() {
        check(node(10, 100), (10, 0), (0, 10), 0);
        check(node(10, 100), (0, 100), (5, 0), 0);
        check(node(10, 0), (0, 0), (5, 0), 0);
        check(node(10, 100), (10, 100), (0, 0), 100_000);
    }

    #[test]
    fn amounts_of_any_size_are_compared() {
        let most = i64::MAX;
        check(node(most, most), (0, 0), (most, most), 100_000);
        check(node(most, most), (0, 0), (1 << 61, 1 << 62), 50_000);
        check(node(1, most), (0, 0), (1, 1), 0);
        assert_eq!(points_of(1, i128::MAX), 0);
    }

    #[test]
    fn a_placement_keeps_a_ratio_that_fits() {
        let plugin = score_of("cpu-memory-ratio", Value::Null);
        for n_there in 0..4 {
            let before: Demand = demand(2 * n_there, 30 * n_there, None);
            let scored = score_on(&*plugin, node(8, 120), &before, &demand(2, 30, None), &[]);
            assert_eq!(scored, SCORE_MAX, "{n_there}");
        }
    }
}
