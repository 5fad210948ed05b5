//! Score `most-allocated`: packs. The fuller the node would be over cpu, memory and devices, the better.

use godel_cluster::{
    devices::{NodeDevices, WHOLE},
    room::SHARE_WHOLE,
    shapes::Shape,
};
use serde::{Deserialize, Serialize};

use crate::{
    args::{ArgField, PluginArgs},
    point::{Plugin, SCORE_MAX, Score, ScoreInput},
};

/// The plugin.
#[derive(Debug)]
pub struct MostAllocated {
    weights: ResourceWeights,
}

/// Arguments of `most-allocated` and `least-allocated`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AllocationArgs {
    /// How much each resource counts.
    pub resources: ResourceWeights,
}

/// How much each resource counts in the mean.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ResourceWeights {
    /// Of cpu.
    pub cpu: u32,
    /// Of memory.
    pub memory: u32,
    /// Of devices of whatever kind.
    pub gpu: u32,
}

impl Default for ResourceWeights {
    fn default() -> Self {
        Self { cpu: 1, memory: 1, gpu: 1 }
    }
}

impl PluginArgs for AllocationArgs {
    const FIELDS: &'static [ArgField] = &[ArgField {
        name: "resources",
        kind: "map of `cpu`, `memory` and `gpu` (devices of every kind) to whole numbers",
        doc: "How much each resource counts in the mean. With 0 a resource does not count; one at least counts. \
              Devices count on nodes that have some.",
    }];
}

impl AllocationArgs {
    /// Returns the weights.
    ///
    /// # Errors
    /// Nothing counts.
    pub(super) fn weights(self) -> Result<ResourceWeights, String> {
        let ResourceWeights { cpu, memory, gpu } = self.resources;
        if cpu == 0 && memory == 0 && gpu == 0 {
            return Err("`resources`: one weight at least is above 0".to_owned());
        }
        Ok(self.resources)
    }
}

impl Plugin for MostAllocated {
    const NAME: &'static str = "most-allocated";
    const DOC: &'static str =
        "Prefers nodes of which the most would be allocated after the placement: packs.";
}

impl Score for MostAllocated {
    type Args = AllocationArgs;

    fn new(args: AllocationArgs) -> Result<Self, String> {
        Ok(Self { weights: args.weights()? })
    }

    fn score(&self, place: &ScoreInput<'_>) -> i64 {
        allocated(&self.weights, place)
    }
}

/// Weighted mean share of cpu, memory and (where there are any) devices that would be taken after the placement:
/// 0..=[`SCORE_MAX`]. A resource that the node does not have counts as wholly taken. A template that asks for no cpu or memory
/// counts a little of it all the same, or everybody of the kind would prefer one node.
pub(super) fn allocated(weights: &ResourceWeights, place: &ScoreInput<'_>) -> i64 {
    let shape = place.cluster.catalogue().shape(place.ask.shape());
    let room = place.cluster.free().room_of(shape);
    let free = room.free(place.idx);
    // cpu and memory are the first two resources of every cluster.
    let nominal = place.cluster.free().nominal(place.idx);
    let taken = |id: usize| shape.first[id].max(0) + shape.nominal[id] + nominal[id];
    let share = |id: usize| SCORE_MAX - room.share(place.idx, id, free[id] - taken(id));
    let (cpu, memory, gpu) = (i64::from(weights.cpu), i64::from(weights.memory), i64::from(weights.gpu));
    let (mut sum, mut n) = (cpu * share(0) + memory * share(1), cpu + memory);
    if let Some(devices) = devices_taken(place, shape) {
        (sum, n) = (sum + gpu * devices, n + gpu);
    }
    match n {
        // A node without devices where nothing but devices counts.
        0 => SCORE_MAX,
        // The defaults divide by a constant (hot path).
        2 => sum / 2,
        3 => sum / 3,
        n => sum / n,
    }
}

/// Share of the node's devices, of whatever kind, that would be taken after the placement: 0..=[`SCORE_MAX`]; `None` where there
/// are none.
#[inline(always)]
pub(super) fn devices_taken(place: &ScoreInput<'_>, shape: &Shape) -> Option<i64> {
    let devices = place.cluster.free().devices(place.idx);
    if devices.is_empty() { None } else { Some(share_taken(devices, place, shape)) }
}

fn share_taken(devices: &NodeDevices, place: &ScoreInput<'_>, shape: &Shape) -> i64 {
    let all = i64::from(WHOLE) * devices.len() as i64;
    let given = place.allocation.devices.iter();
    let asked: i64 = given.map(|idx| i64::from(devices.milli_of(&shape.devices, idx))).sum();
    SCORE_MAX - (devices.idle() - asked).clamp(0, all) * SCORE_MAX / all
}

const _: () = assert!(SHARE_WHOLE == SCORE_MAX, "shares are scores");
