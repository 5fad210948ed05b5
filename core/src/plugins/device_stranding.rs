//! Score `device-stranding`: keeps devices usable.
//!
//! A free device is stranded for a kind of work when the rest of its node (cpu, memory, what is left on each
//! device, its model) cannot serve that work. The score asks how much more would be stranded after the
//! placement than before, weighed over the device work that the scheduler sees most ([`Typical`]): the
//! smaller the rise, the better.
//!
//! The idea is the fragmentation gradient of Weng et al. ("Beware of Fragmentation", USENIX ATC '23). It differs
//! in one point: a typical shape counts as often as it *fits together* on the node, in every resource,
//! not as "one more fits". On the openb trace, where memory and cpu run out beside free GPUs, that leaves half as
//! many tasks without a place.

use smallvec::SmallVec;

use crate::{
    cluster::{
        devices::{DeviceAsk, WHOLE, bits},
        room::Asks,
    },
    framework::{Place, SCORE_MAX, Score, Typical},
};

/// Score per stranded thousandth: 8 devices' worth spans half of the scale.
const PER_MILLI: i64 = SCORE_MAX / 2 / 8_000;
/// A share that breaks into a wholly free device counts as so many thousandths stranded more: enough to decide
/// between equals, and no more.
const OPENED_MILLI: i64 = 30;

/// The plugin.
#[derive(Debug)]
pub struct DeviceStranding;

impl Score for DeviceStranding {
    fn name(&self) -> &'static str {
        "device-stranding"
    }

    fn score(&self, place: &Place<'_>) -> i64 {
        let devices = place.cluster.devices(place.idx);
        let shape = place.cluster.shapes().get(place.ask.shape());
        if devices.len() == 0 {
            return SCORE_MAX;
        }
        let mut free: SmallVec<[i64; 8]> = SmallVec::from_slice(place.cluster.room().free(place.idx));
        let mut left: SmallVec<[i32; 8]> = (0..devices.len()).map(|idx| devices.free(idx).max(0)).collect();
        let before = stranded(place, &free, &left, &devices.classes);
        for (id, amount) in &shape.asks {
            free[usize::from(*id)] -= amount;
        }
        let milli = shape.device_milli();
        let mut rise = 0;
        for idx in bits(place.devices) {
            if let Some(left) = left.get_mut(idx) {
                rise += if *left >= WHOLE && milli < WHOLE { OPENED_MILLI } else { 0 };
                *left = (*left - milli).max(0);
            }
        }
        rise += stranded(place, &free, &left, &devices.classes) - before;
        let score = (SCORE_MAX / 2 - rise.saturating_mul(PER_MILLI)).clamp(0, SCORE_MAX);
        // Work without devices goes to nodes without devices first.
        if shape.devices.is_some() { score } else { score / 2 }
    }
}

/// Free thousandths that typical work could not use, its weighted mean.
fn stranded(place: &Place<'_>, free: &[i64], left: &[i32], classes: &[u16]) -> i64 {
    let idle: i64 = left.iter().map(|milli| i64::from(*milli)).sum();
    if idle == 0 {
        return 0;
    }
    let shapes = place.cluster.shapes();
    let mut sum = 0;
    for (shape, weight) in place.typical.shapes() {
        let shape = shapes.get(*shape);
        if let Some(ask) = &shape.devices {
            let usable =
                if shape.unknown.is_some() { 0 } else { usable(ask, &shape.asks, free, left, classes) };
            sum += weight * (idle - usable);
        }
    }
    sum / Typical::WEIGHT_SUM
}

/// Thousandths that so many of one shape as fit together on the node would take.
fn usable(ask: &DeviceAsk, asks: &Asks, free: &[i64], left: &[i32], classes: &[u16]) -> i64 {
    let mut times = i64::from(u32::MAX);
    for (id, amount) in asks {
        let free = free[usize::from(*id)];
        if free < *amount {
            return 0;
        }
        // Most nodes hold few of a shape: adding up beats dividing there.
        if amount.saturating_mul(times) > free {
            times = free / amount;
        }
    }
    let served = left.iter().zip(classes).filter(|(_, class)| ask.accepts(**class));
    if ask.is_whole() {
        let whole = served.filter(|(left, _)| **left >= WHOLE).count() as i64;
        let count = i64::from(ask.count.max(1));
        (whole / count).min(times) * count * i64::from(WHOLE)
    } else {
        let parts: i64 = served.map(|(left, _)| i64::from(*left / ask.milli.max(1))).sum();
        parts.min(times) * i64::from(ask.milli)
    }
}
