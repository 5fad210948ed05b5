//! Score `complementary`: puts together on one node what does not get in each other's way.
//!
//! Two things count. *Kinds*: latency-sensitive work goes to nodes with batch work and the other way round, by what units declare
//! ([`WorkKind::of`]). *Resources*: a replica that asks above all for one resource goes to nodes of which another one is used
//! more, as measured, or as requested where nothing is measured; a replica that asks for all resources alike is indifferent.

use godel_base::resources::NETWORK;
use godel_cluster::{KindCounts, ShapeId, room::Room};
use godel_domain::work_kind::WorkKind;
use serde::{Deserialize, Serialize};

use super::load_aware::Percentile;
use crate::{
    args::{ArgField, PluginArgs},
    ask::Ask,
    point::{Plugin, SCORE_MAX, Score, ScoreInput, points_of},
};

/// The plugin.
#[derive(Debug)]
pub struct Complementary {
    args: ComplementaryArgs,
}

/// Arguments of `complementary`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ComplementaryArgs {
    /// How much kinds of work count.
    pub kinds: u32,
    /// How much use of resources counts.
    pub resources: u32,
    /// Which measured use counts.
    pub percentile: Percentile,
}

impl Default for ComplementaryArgs {
    fn default() -> Self {
        Self { kinds: 1, resources: 1, percentile: Percentile::P50 }
    }
}

impl PluginArgs for ComplementaryArgs {
    const FIELDS: &'static [ArgField] = &[
        ArgField {
            name: "kinds",
            kind: "whole number",
            doc: "How much the kinds of work count in the mean.",
        },
        ArgField {
            name: "resources",
            kind: "whole number",
            doc: "How much the use of resources counts in the mean. One of both is above 0.",
        },
        ArgField {
            name: "percentile",
            kind: "`p50` or `p95`",
            doc: "Which measured use counts: the median or the 95th percentile.",
        },
    ];
}

impl Plugin for Complementary {
    const NAME: &'static str = "complementary";
    const DOC: &'static str = "Prefers nodes whose running units complement the replica. By kind: latency-sensitive work (classes service, stateful and stream) \
                               goes to nodes with batch work (batch, gang, training and yarn) and the other way round; the label `godel.dev/work` of a unit \
                               (`latency`, `batch` or `neutral`) declares another kind. By resource: a replica that asks above all for cpu, memory or \
                               network goes to nodes of which another one of these is used more, as measured, or as requested where nothing is \
                               measured. A node on which nothing runs has half of the points.";
}

impl Score for Complementary {
    type Args = ComplementaryArgs;

    fn new(args: ComplementaryArgs) -> Result<Self, String> {
        if args.kinds == 0 && args.resources == 0 {
            return Err("`kinds` or `resources` is above 0".to_owned());
        }
        Ok(Self { args })
    }

    fn counts_work(&self) -> bool {
        self.args.kinds > 0
    }

    fn concerns(&self, ask: &Ask) -> bool {
        self.args.resources > 0 || ask.work() != WorkKind::Neutral
    }

    fn score(&self, place: &ScoreInput<'_>) -> i64 {
        let (kinds, resources) = (i64::from(self.args.kinds), i64::from(self.args.resources));
        let mut sum = 0;
        if kinds > 0 {
            sum += kinds * by_kind(place.ask.work(), place.cluster.taken().work.of(place.idx));
        }
        if resources > 0 {
            sum += resources * self.by_resource(place, place.ask.shape());
        }
        sum / (kinds + resources)
    }
}

impl Complementary {
    fn by_resource(&self, place: &ScoreInput<'_>, shape: ShapeId) -> i64 {
        let shape = place.cluster.catalogue().shape(shape);
        let room = place.cluster.free().room_of(shape);
        let load = place.cluster.nodes().load(place.idx).map(|load| self.args.percentile.of(load));
        let share = |id: usize, amount: i64| room.share(place.idx, id, amount);
        let taken = |id: usize| share(id, requested(room, place.idx, id));
        // cpu and memory are the first two resources of every cluster.
        let mut asked = [share(0, shape.first[0]), share(1, shape.first[1]), 0];
        let mut used = match load {
            Some(load) => [load.cpu, load.memory, load.network.unwrap_or(0)],
            None => [taken(0), taken(1), 0],
        };
        let network =
            place.cluster.catalogue().resource_id(NETWORK).filter(|id| room.allocatable(place.idx)[*id] > 0);
        if let Some(id) = network {
            let amount = shape.others.iter().find(|(other, _)| usize::from(*other) == id);
            asked[2] = share(id, amount.map_or(0, |(_, amount)| *amount));
            if load.is_none() {
                used[2] = taken(id);
            }
        }
        balance(asked, used)
    }
}

fn requested(room: &Room, idx: usize, id: usize) -> i64 {
    room.allocatable(idx)[id].saturating_sub(room.free(idx)[id])
}

/// The part that the complement has of all that counts, as if one of each kind were there already.
fn by_kind(own: WorkKind, on_node: KindCounts) -> i64 {
    if own == WorkKind::Neutral {
        return SCORE_MAX / 2;
    }
    let (same, other) = (on_node.of(own), on_node.of(own.complement()));
    points_of(i128::from(other) + 1, i128::from(same) + i128::from(other) + 2)
}

/// Half of the points, and the more as the most used of the other resources is used more than the one that is asked for above
/// all, as far as that one stands out.
fn balance(asked: [i64; 3], used: [i64; 3]) -> i64 {
    let dominant = (1..3).fold(0, |best, id| if asked[id] > asked[best] { id } else { best });
    let others = (0..3).filter(|id| *id != dominant);
    let second = others.clone().map(|id| asked[id]).max().unwrap_or(0);
    let stands_out = points_of(i128::from(asked[dominant] - second), i128::from(asked[dominant].max(1)));
    let apart = others.map(|id| used[id]).max().unwrap_or(0) - used[dominant];
    let apart = apart.clamp(-SCORE_MAX, SCORE_MAX);
    (SCORE_MAX + apart * stands_out / SCORE_MAX) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_go_to_their_complements() {
        let on = |latency, batch| KindCounts { latency, batch };
        for (own, on_node, expected) in [
            (WorkKind::Latency, on(0, 0), 50_000),
            (WorkKind::Latency, on(0, 1), 66_666),
            (WorkKind::Latency, on(0, 8), 90_000),
            (WorkKind::Latency, on(1, 0), 33_333),
            (WorkKind::Latency, on(4, 4), 50_000),
            (WorkKind::Batch, on(0, 8), 10_000),
            (WorkKind::Batch, on(8, 0), 90_000),
            (WorkKind::Neutral, on(0, 8), 50_000),
        ] {
            assert_eq!(by_kind(own, on_node), expected, "{own:?} {on_node:?}");
        }
    }

    #[test]
    fn what_stands_out_goes_where_another_resource_is_used() {
        for (name, asked, used, expected) in [
            ("an idle node", [500, 0, 0], [0, 0, 0], 50_000),
            ("cpu beside network", [500, 0, 0], [10_000, 0, 90_000], 90_000),
            ("cpu beside cpu", [500, 0, 0], [90_000, 0, 10_000], 10_000),
            ("network beside cpu", [0, 0, 500], [80_000, 10_000, 0], 90_000),
            ("memory beside memory", [0, 500, 0], [0, 100_000, 0], 0),
            ("nothing stands out", [500, 500, 0], [90_000, 0, 0], 50_000),
            ("it stands out by half", [500, 250, 0], [0, 0, 80_000], 70_000),
            ("nothing is asked for", [0, 0, 0], [90_000, 0, 0], 50_000),
        ] {
            assert_eq!(balance(asked, used), expected, "{name}");
        }
    }
}
