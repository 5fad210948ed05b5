//! Score `most-allocated`: packs. The fuller the node would be over cpu, memory and devices, the better.

use godel_cluster::{devices::WHOLE, room::SHARE_WHOLE};

use crate::{SCORE_MAX, Score, ScoreInput};

/// The plugin.
#[derive(Debug)]
pub struct MostAllocated;

impl Score for MostAllocated {
    fn name(&self) -> &'static str {
        "most-allocated"
    }

    fn score(&self, place: &ScoreInput<'_>) -> i64 {
        allocated(place)
    }
}

/// Mean share of cpu, memory and (where there are any) devices that would be taken after the placement:
/// 0..=[`SCORE_MAX`]. A resource that the node does not have counts as wholly taken. A template that asks for no cpu or memory
/// counts a little of it all the same, or everybody of the kind would prefer one node.
pub fn allocated(place: &ScoreInput<'_>) -> i64 {
    let shape = place.cluster.shapes().get(place.ask.shape());
    let room = place.cluster.room_of(shape);
    let free = room.free(place.idx);
    // cpu and memory are the first two resources of every cluster.
    let nominal = place.cluster.nominal(place.idx);
    let taken = |id: usize| shape.first[id].max(0) + shape.nominal[id] + nominal[id];
    let left = |id: usize| room.share(place.idx, id, free[id] - taken(id));
    let mut sum = 2 * SCORE_MAX - left(0) - left(1);
    let devices = place.cluster.devices(place.idx);
    if devices.is_empty() {
        return sum / 2;
    }
    let all = i64::from(WHOLE) * devices.len() as i64;
    let given = place.allocation.devices.iter();
    let asked: i64 = given.map(|idx| i64::from(devices.milli_of(&shape.devices, idx))).sum();
    sum += SCORE_MAX - (devices.idle() - asked).clamp(0, all) * SCORE_MAX / all;
    sum / 3
}

const _: () = assert!(SHARE_WHOLE == SCORE_MAX, "shares are scores");
