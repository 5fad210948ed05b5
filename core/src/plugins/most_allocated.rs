//! Score `most-allocated`: packs. The fuller the node would be over cpu, memory and devices, the better.

use crate::{
    cluster::devices::WHOLE,
    framework::{Place, SCORE_MAX, Score},
};

/// The plugin.
#[derive(Debug)]
pub struct MostAllocated;

impl Score for MostAllocated {
    fn name(&self) -> &'static str {
        "most-allocated"
    }

    fn score(&self, place: &Place<'_>) -> i64 {
        allocated(place)
    }
}

/// Mean share of cpu, memory and (where there are any) devices that would be taken after the placement:
/// 0..=[`SCORE_MAX`]. A resource that the node does not have counts as wholly taken.
pub(crate) fn allocated(place: &Place<'_>) -> i64 {
    let room = place.cluster.room();
    let (free, allocatable) = (room.free(place.idx), room.allocatable(place.idx));
    let shape = place.cluster.shapes().get(place.ask.shape());
    // cpu and memory are the first two resources of every cluster.
    let mut after = [free[0], free[1]];
    for (id, amount) in &shape.asks {
        if let Some(left) = after.get_mut(usize::from(*id)) {
            *left -= amount;
        }
    }
    let mut sum = 2 * SCORE_MAX - share(after[0], allocatable[0]) - share(after[1], allocatable[1]);
    let devices = place.cluster.devices(place.idx);
    if devices.len() == 0 {
        return (sum / 2).clamp(0, SCORE_MAX);
    }
    let all = i64::from(WHOLE) * devices.len() as i64;
    let left: i64 = (0..devices.len()).map(|device| i64::from(devices.free(device).max(0))).sum();
    let asked = i64::from(shape.device_milli()) * i64::from(place.devices.count_ones());
    sum += SCORE_MAX - share(left - asked, all);
    (sum / 3).clamp(0, SCORE_MAX)
}

/// `left` of `all` in thousandths of a point; without any of it there is nothing left. Memory in bytes times
/// 100,000 stays below 2^63 up to 80 TiB; beyond, saturation only coarsens the score.
fn share(left: i64, all: i64) -> i64 {
    if all <= 0 { 0 } else { left.clamp(0, all).saturating_mul(SCORE_MAX) / all }
}
