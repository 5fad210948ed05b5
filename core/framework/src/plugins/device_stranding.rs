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

use godel_cluster::{
    devices::{DeviceAsk, NodeDevices, WHOLE, milli_of},
    shapes::Shape,
};
use godel_domain::allocation::DeviceSet;
use smallvec::SmallVec;

use crate::{
    args::NoArgs,
    point::{Plugin, SCORE_MAX, Score, ScoreInput},
    typical::Typical,
};

/// Score per stranded thousandth: 8 devices' worth spans half of the scale.
const PER_MILLI: i64 = SCORE_MAX / 2 / 8_000;
/// A share that breaks into a wholly free device counts as this number of stranded thousandths more: enough to decide
/// between equals, and no more.
const OPENED_MILLI: i64 = 30;

/// The plugin.
#[derive(Debug)]
pub struct DeviceStranding;

impl Plugin for DeviceStranding {
    const NAME: &'static str = "device-stranding";
    const DOC: &'static str = "Prefers nodes on which the fewest devices become useless for the device work that the scheduler places most \
                               often. Work without devices goes to nodes without devices first.";
}

impl Score for DeviceStranding {
    type Args = NoArgs;

    fn new(NoArgs {}: NoArgs) -> Result<Self, String> {
        Ok(Self)
    }

    fn score(&self, place: &ScoreInput<'_>) -> i64 {
        let devices = place.cluster.devices(place.idx);
        if devices.is_empty() {
            return SCORE_MAX;
        }
        let shape = place.cluster.shapes().get(place.ask.shape());
        let before = place.cluster.room_of(shape).free(place.idx);
        let mut after: SmallVec<[i64; 8]> = SmallVec::from_slice(before);
        for (id, amount) in &shape.asks {
            after[usize::from(*id)] -= amount;
        }
        let given = place.allocation.devices;
        let n_opened = n_opened(devices, given, &shape.devices);
        let before = UsableRoom { free: before, idle: idle(devices, DeviceSet::NONE, &[]) };
        let after = UsableRoom { free: &after, idle: idle(devices, given, &shape.devices) };
        let rise = n_opened * OPENED_MILLI + rise(place, &before, &after);
        let score = (SCORE_MAX / 2 - rise.saturating_mul(PER_MILLI)).clamp(0, SCORE_MAX);
        // Work without devices goes to nodes without devices first.
        if shape.devices.is_empty() { score / 2 } else { score }
    }
}

/// Devices of one model with something left.
struct Idle {
    class: u16,
    n_whole: i64,
    /// What is left of each of the others.
    begun: SmallVec<[i32; 8]>,
}

/// What is free on a node.
struct UsableRoom<'a> {
    free: &'a [i64],
    idle: SmallVec<[Idle; 1]>,
}

/// How many of the given devices are wholly free, of which a share is taken.
fn n_opened(devices: &NodeDevices, given: DeviceSet, asks: &[DeviceAsk]) -> i64 {
    let is_opened = |idx: &usize| {
        *idx < devices.len() && devices.milli_of(asks, *idx) < WHOLE && devices.free(*idx) >= WHOLE
    };
    given.iter().filter(is_opened).map(|_| 1).sum()
}

/// Devices by model once what is asked of the `given` ones is taken. Nodes rarely have more than one model.
fn idle(devices: &NodeDevices, given: DeviceSet, asks: &[DeviceAsk]) -> SmallVec<[Idle; 1]> {
    let mut idle: SmallVec<[Idle; 1]> = SmallVec::new();
    for (idx, class) in devices.classes.iter().enumerate() {
        let taken = if given.contains(idx) { milli_of(asks, Some(*class)) } else { 0 };
        let left = devices.free(idx) - taken;
        if left <= 0 {
            continue;
        }
        let at = idle.iter().position(|of| of.class == *class).unwrap_or_else(|| {
            idle.push(Idle { class: *class, n_whole: 0, begun: SmallVec::new() });
            idle.len() - 1
        });
        if left >= WHOLE {
            idle[at].n_whole += 1;
        } else {
            idle[at].begun.push(left);
        }
    }
    idle
}

/// By how much the free thousandths rise that typical work could not use, in its weighted mean.
fn rise(place: &ScoreInput<'_>, before: &UsableRoom<'_>, after: &UsableRoom<'_>) -> i64 {
    let shapes = place.cluster.shapes();
    let (idle_before, idle_after) = (before.milli(), after.milli());
    let (mut sum_before, mut sum_after) = (0, 0);
    for (shape, weight) in place.typical.shapes() {
        let shape = shapes.get(*shape);
        if shape.devices.is_empty() {
            continue;
        }
        let usable_before = before.usable(shape);
        // Where it fits not even once, it does not after more is taken.
        let usable_after = if usable_before == 0 { 0 } else { after.usable(shape) };
        sum_before += weight * (idle_before - usable_before);
        sum_after += weight * (idle_after - usable_after);
    }
    sum_after / Typical::WEIGHT_SUM - sum_before / Typical::WEIGHT_SUM
}

impl UsableRoom<'_> {
    /// Thousandths left of all devices.
    fn milli(&self) -> i64 {
        let begun = |of: &Idle| of.begun.iter().map(|left| i64::from(*left)).sum::<i64>();
        self.idle.iter().map(|of| of.n_whole * i64::from(WHOLE) + begun(of)).sum()
    }

    /// Thousandths that as many of one shape as fit together would take.
    fn usable(&self, shape: &Shape) -> i64 {
        if shape.unknown.is_some() {
            return 0;
        }
        let (mut times, mut milli) = (i64::MAX, 0);
        for ask in &shape.devices {
            let (of_ask, milli_of_ask) = self.times(ask);
            times = times.min(of_ask);
            milli += milli_of_ask;
        }
        if times == 0 || milli == 0 {
            return 0;
        }
        times = as_often(self.free[0], shape.first[0], times);
        times = as_often(self.free[1], shape.first[1], times);
        for (id, amount) in &shape.others {
            times = as_often(self.free[usize::from(*id)], *amount, times);
        }
        times * milli
    }
}

impl UsableRoom<'_> {
    /// How often the devices serve a request, and the thousandths that each time takes.
    fn times(&self, ask: &DeviceAsk) -> (i64, i64) {
        let mut times = 0;
        for of in self.idle.iter().filter(|of| ask.accepts(of.class)) {
            if ask.is_whole() {
                times += of.n_whole;
            } else {
                times += of.n_whole * ask.per_device;
                for left in of.begun.iter().filter(|left| **left >= ask.milli) {
                    times += i64::from(*left / ask.milli.max(1));
                }
            }
        }
        if !ask.is_whole() {
            return (times, i64::from(ask.milli));
        }
        let count = i64::from(ask.count.max(1));
        (if count == 1 { times } else { times / count }, count * i64::from(WHOLE))
    }
}

/// How often `free` holds `amount`, `times` at most. Devices run out first on most nodes: multiplying beats dividing.
fn as_often(free: i64, amount: i64, times: i64) -> i64 {
    if amount.saturating_mul(times) > free { free.max(0) / amount.max(1) } else { times }
}
