//! Score `load-aware`: prefers nodes on which running units use little, whatever they have asked for.
//!
//! Measured is a percentile of the use of all running units of a node over the last minutes, as its agent reports it
//! (`docs/pools.md`). To that comes what the replica asks for, since nothing is known of its use yet. A node whose use is not
//! known counts as if its running units used all that they have asked for: it is neither full nor free.

use godel_base::resources::NETWORK;
use godel_cluster::{LoadShares, NodeShares, Shape, ZoneShares};
use godel_domain::zone::ZonePolicy;
use serde::{Deserialize, Serialize};

use crate::{
    args::{ArgField, PluginArgs},
    point::{Plugin, SCORE_MAX, Score, ScoreInput},
};

/// The plugin.
#[derive(Debug)]
pub struct LoadAware {
    args: LoadArgs,
}

/// Arguments of `load-aware`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoadArgs {
    /// Which measured use counts.
    pub percentile: Percentile,
    /// How much the use of cpu counts.
    pub cpu: u32,
    /// How much the use of memory counts.
    pub memory: u32,
    /// How much the use of network counts.
    pub network: u32,
}

/// A percentile of measured use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Percentile {
    /// Median: what is used most of the time.
    P50,
    /// 95th percentile: what is used at peaks.
    #[default]
    P95,
}

impl Percentile {
    /// Returns the shares of a node at this percentile.
    #[inline]
    pub fn of(self, shares: &NodeShares) -> &LoadShares {
        match self {
            Self::P50 => &shares.p50,
            Self::P95 => &shares.p95,
        }
    }
}

impl Default for LoadArgs {
    fn default() -> Self {
        Self { percentile: Percentile::default(), cpu: 1, memory: 1, network: 0 }
    }
}

impl PluginArgs for LoadArgs {
    const FIELDS: &'static [ArgField] = &[
        ArgField {
            name: "percentile",
            kind: "`p50` or `p95`",
            doc: "Which measured use counts: the median or the 95th percentile.",
        },
        ArgField { name: "cpu", kind: "whole number", doc: "How much the use of cpu counts in the mean." },
        ArgField {
            name: "memory",
            kind: "whole number",
            doc: "How much the use of memory counts in the mean.",
        },
        ArgField {
            name: "network",
            kind: "whole number",
            doc: "How much the use of network counts in the mean, on nodes that say how much they have of the resource `network`. One of \
                  these three is above 0.",
        },
    ];
}

impl Plugin for LoadAware {
    const NAME: &'static str = "load-aware";
    const DOC: &'static str = "Prefers nodes of which the least would be used: the measured use of all running units, and what the replica asks for. A \
                               node whose use is not known counts as if everything requested were used. Of a replica that is given zones \
                               (policies `restricted`, `single-zone` and `exclusive`) cpu and memory of these are compared, where their use is \
                               known.";
}

impl LoadAware {
    /// What would be used of cpu and memory of the zones that a replica would be given, if it asks for zones and all is known of these.
    fn of_zones(&self, place: &ScoreInput<'_>, shape: &Shape) -> Option<[i64; 2]> {
        shape.zones.filter(|request| request.policy != ZonePolicy::BestEffort)?;
        let ZoneShares { used, asked } =
            place.cluster.free().hardware(place.idx).zone_load(shape, place.allocation.zones.zones)?;
        let LoadShares { cpu, memory, network: _ } = self.args.percentile.of(&used);
        Some([cpu + asked[0], memory + asked[1]].map(|share| share.min(SCORE_MAX)))
    }
}

impl Score for LoadAware {
    type Args = LoadArgs;

    fn new(args: LoadArgs) -> Result<Self, String> {
        if args.cpu == 0 && args.memory == 0 && args.network == 0 {
            return Err("`cpu`, `memory` or `network` is above 0".to_owned());
        }
        Ok(Self { args })
    }

    fn score(&self, place: &ScoreInput<'_>) -> i64 {
        let shape = place.cluster.catalogue().shape(place.ask.shape());
        let room = place.cluster.free().room_of(shape);
        let load = place.cluster.nodes().load(place.idx).map(|load| self.args.percentile.of(load));
        let after = |id: usize, measured: Option<i64>, asked: i64| {
            let asked = asked.max(0);
            let share = |amount: i64| room.share(place.idx, id, amount);
            let requested = || room.allocatable(place.idx)[id] - room.free(place.idx)[id];
            match measured {
                Some(measured) => (measured + share(asked)).min(SCORE_MAX),
                None => share(requested().saturating_add(asked)),
            }
        };
        let of_zones = self.of_zones(place, shape);
        // cpu and memory are the first two resources of every cluster.
        let mut sum = 0;
        let mut weights = 0;
        for (id, weight, measured) in [
            (0, self.args.cpu, load.map(|load| load.cpu)),
            (1, self.args.memory, load.map(|load| load.memory)),
        ] {
            let used = of_zones.map_or_else(|| after(id, measured, shape.first[id]), |used| used[id]);
            sum += i64::from(weight) * used;
            weights += i64::from(weight);
        }
        if self.args.network > 0
            && let Some(id) = place.cluster.catalogue().resource_id(NETWORK)
            && room.allocatable(place.idx)[id] > 0
        {
            let asked = shape.others.iter().find(|(other, _)| usize::from(*other) == id);
            let asked = asked.map_or(0, |(_, amount)| *amount);
            let weight = i64::from(self.args.network);
            sum += weight * after(id, load.and_then(|load| load.network), asked);
            weights += weight;
        }
        // Without a network that it could compare every node is alike.
        SCORE_MAX - sum / weights.max(1)
    }
}
