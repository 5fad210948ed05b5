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
        let devices = place.cluster.free().devices(place.idx);
        if devices.is_empty() {
            return SCORE_MAX;
        }
        let shape = place.cluster.catalogue().shape(place.ask.shape());
        let before = place.cluster.free().room_of(shape).free(place.idx);
        let mut after: SmallVec<[i64; 8]> = SmallVec::from_slice(before);
        for (id, amount) in &shape.asks {
            after[usize::from(*id)] -= amount;
        }
        let given = place.allocation.devices;
        let n_opened = n_opened(devices, given, &shape.devices);
        let before = UsableRoom::new(before, devices, DeviceSet::NONE, &[]);
        let after = UsableRoom::new(&after, devices, given, &shape.devices);
        let rise = n_opened * OPENED_MILLI + after.stranded(place) - before.stranded(place);
        let score = (SCORE_MAX / 2 - rise.saturating_mul(PER_MILLI)).clamp(0, SCORE_MAX);
        // Work without devices goes to nodes without devices first.
        if shape.devices.is_empty() { score / 2 } else { score }
    }
}

/// What is free on a node: amounts, and devices by the class of their model.
struct UsableRoom<'a> {
    free: &'a [i64],
    cpu: i64,
    memory: i64,
    /// Wholly free devices. Nodes rarely have more than one model.
    whole: SmallVec<[(u16, i64); 1]>,
    /// What is left of each of the others.
    begun: SmallVec<[(u16, i32); 8]>,
}

/// How many of the given devices are wholly free, of which a share is taken.
fn n_opened(devices: &NodeDevices, given: DeviceSet, asks: &[DeviceAsk]) -> i64 {
    let is_opened = |idx: &usize| {
        *idx < devices.len() && devices.milli_of(asks, *idx) < WHOLE && devices.free(*idx) >= WHOLE
    };
    given.iter().filter(is_opened).map(|_| 1).sum()
}

impl<'a> UsableRoom<'a> {
    /// Returns what is free once `free` is left of the amounts and what is asked of the `given` devices is taken.
    fn new(free: &'a [i64], devices: &NodeDevices, given: DeviceSet, asks: &[DeviceAsk]) -> Self {
        let (mut whole, mut begun): (SmallVec<[(u16, i64); 1]>, SmallVec<_>) = Default::default();
        for (idx, class) in devices.classes.iter().enumerate() {
            let taken = if given.contains(idx) { milli_of(asks, Some(*class)) } else { 0 };
            let left = devices.free(idx) - taken;
            if left >= WHOLE {
                match whole.iter_mut().find(|(of, _)| of == class) {
                    Some((_, n)) => *n += 1,
                    None => whole.push((*class, 1)),
                }
            } else if left > 0 {
                begun.push((*class, left));
            }
        }
        Self { free, cpu: free[0], memory: free[1], whole, begun }
    }

    /// Thousandths left that typical work could not use, in its weighted mean.
    fn stranded(&self, place: &ScoreInput<'_>) -> i64 {
        let (whole, begun) = (self.whole.as_slice(), self.begun.as_slice());
        let n_whole: i64 = whole.iter().map(|(_, n)| n).sum();
        let idle = n_whole * i64::from(WHOLE) + begun.iter().map(|(_, left)| i64::from(*left)).sum::<i64>();
        let shapes = place.cluster.catalogue().shapes();
        let mut sum = 0;
        for (shape, weight) in place.typical.shapes() {
            let shape = shapes.get(*shape);
            if !shape.devices.is_empty() {
                sum += weight * (idle - self.usable(shape, whole, begun));
            }
        }
        sum / Typical::WEIGHT_SUM
    }

    /// Thousandths that as many of one shape as fit together would take.
    #[inline]
    fn usable(&self, shape: &Shape, whole: &[(u16, i64)], begun: &[(u16, i32)]) -> i64 {
        if shape.first[0] > self.cpu || shape.first[1] > self.memory || shape.unknown.is_some() {
            return 0;
        }
        let (mut times, mut milli) = (i64::MAX, 0);
        for ask in shape.devices.as_slice() {
            let (of_ask, milli_of_ask) = times_of(ask, whole, begun);
            times = times.min(of_ask);
            milli += milli_of_ask;
        }
        if times > 1 {
            times = as_often(self.cpu, shape.first[0], times);
            times = as_often(self.memory, shape.first[1], times);
        }
        for (id, amount) in &shape.others {
            times = as_often(self.free[usize::from(*id)], *amount, times);
        }
        times * milli
    }
}

/// How often wholly free and begun devices serve a request, and the thousandths that each time takes.
#[inline]
fn times_of(ask: &DeviceAsk, whole: &[(u16, i64)], begun: &[(u16, i32)]) -> (i64, i64) {
    let n_whole: i64 = whole.iter().filter(|(class, _)| ask.accepts(*class)).map(|(_, n)| n).sum();
    if ask.is_whole() {
        let count = i64::from(ask.count.max(1));
        return (if count == 1 { n_whole } else { n_whole / count }, count * i64::from(WHOLE));
    }
    let fitting = begun.iter().filter(|(class, left)| *left >= ask.milli && ask.accepts(*class));
    let parts: i64 = fitting.map(|(_, left)| i64::from(*left / ask.milli.max(1))).sum();
    (n_whole * ask.per_device + parts, i64::from(ask.milli))
}

/// How often `free` holds `amount`, `times` at most. Devices run out first on most nodes: multiplying beats dividing.
fn as_often(free: i64, amount: i64, times: i64) -> i64 {
    if amount.saturating_mul(times) > free { free.max(0) / amount.max(1) } else { times }
}
