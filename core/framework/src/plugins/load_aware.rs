//! Score `load-aware`: prefers nodes on which running units use little, whatever they have asked for.
//!
//! Measured is the smoothed use of the guaranteed running units of a node, as the state service keeps it for the best-effort pool
//! (`docs/pools.md`), with its headroom. To that comes what the replica asks for, since nothing is known of its use yet. A node
//! whose use is not known counts as if its running units used all that they have asked for: it is neither full nor free.

use godel_domain::resources::{CPU, MEMORY};
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
    /// How much the use of cpu counts.
    pub cpu: u32,
    /// How much the use of memory counts.
    pub memory: u32,
}

impl Default for LoadArgs {
    fn default() -> Self {
        Self { cpu: 1, memory: 1 }
    }
}

impl PluginArgs for LoadArgs {
    const FIELDS: &'static [ArgField] = &[
        ArgField { name: "cpu", kind: "whole number", doc: "How much the use of cpu counts in the mean." },
        ArgField {
            name: "memory",
            kind: "whole number",
            doc: "How much the use of memory counts in the mean. One of both is above 0.",
        },
    ];
}

impl Plugin for LoadAware {
    const NAME: &'static str = "load-aware";
    const DOC: &'static str = "Prefers nodes of which the least cpu and memory would be used: the measured use of the guaranteed running units, and what \
                               the replica asks for. A node whose use is not known counts as if everything requested were used.";
}

impl Score for LoadAware {
    type Args = LoadArgs;

    fn new(args: LoadArgs) -> Result<Self, String> {
        if args.cpu == 0 && args.memory == 0 {
            return Err("`cpu` or `memory` is above 0".to_owned());
        }
        Ok(Self { args })
    }

    fn score(&self, place: &ScoreInput<'_>) -> i64 {
        let shape = place.cluster.shapes().get(place.ask.shape());
        let room = place.cluster.room_of(shape);
        let usage = place.cluster.usage(place.idx);
        // cpu and memory are the first two resources of every cluster.
        let used = |id: usize, name: &str| {
            let measured = usage.map(|usage| usage.reserved.get(name));
            let requested = || room.allocatable(place.idx)[id] - room.free(place.idx)[id];
            let after = measured.unwrap_or_else(requested).saturating_add(shape.first[id].max(0));
            room.share(place.idx, id, after)
        };
        let (cpu, memory) = (i64::from(self.args.cpu), i64::from(self.args.memory));
        let used = (cpu * used(0, CPU) + memory * used(1, MEMORY)) / (cpu + memory);
        SCORE_MAX - used
    }
}
