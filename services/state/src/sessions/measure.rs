//! What a node's guaranteed running units use: samples from heartbeats, smoothed, and whether that is worth a record.
//!
//! The record is durable, so that everybody reckons with the same number and an auditor can check it; it is written only
//! when it has changed by a step, or when it covers bindings that counted with their requests until now. Samples are
//! not kept over a restart: the record is where the average begins again.

use godel_domain::{
    ids::NodeId,
    node::NodeUsage,
    resources::{CPU, MEMORY, Resources},
    time::Millis,
};
use godel_proto::v1;
use godel_rules::node_usage::{Measured, Samples, Smoothed, Smoothing};

use super::cell::Cell;

/// How use becomes a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measuring {
    pub(crate) smoothing: Smoothing,
    /// Kept from best-effort beyond the smoothed use, per cent of it.
    pub(crate) headroom_percent: u32,
    /// A change is worth a record from so many per cent of the node on.
    pub(crate) step_percent: u32,
}

impl Default for Measuring {
    fn default() -> Self {
        Self { smoothing: Smoothing::default(), headroom_percent: 10, step_percent: 2 }
    }
}

/// A node's use as its session measures it and as it is recorded.
#[derive(Debug, Default)]
pub(crate) struct Measure {
    /// There from the first sample on.
    samples: Option<Box<Samples>>,
    smoothed: Option<Smoothed>,
    /// What was delivered to the agent up to the last sample, by commit time.
    delivered_ms: i64,
    /// As in the record.
    recorded: Option<(Measured, i64)>,
    /// Not after the first, and the last guaranteed binding that the record does not cover.
    uncovered_ms: Option<(i64, i64)>,
    capacity: Measured,
}

impl Measure {
    /// A sample. `delivered_ms` is the commit time up to which the node's agent has been told. True if it is worth a record.
    pub(crate) fn add(&mut self, used: Measured, delivered_ms: i64, now: Millis, how: Measuring) -> bool {
        let recorded = self.recorded;
        let samples = self.samples.get_or_insert_with(|| {
            let before = recorded.map(|(reserved, _)| reserved.map(|amount| without(amount, how)));
            Box::new(before.map(Samples::resume).unwrap_or_default())
        });
        // What ran while it was measured: it was delivered before the sample before this one.
        let as_of_ms = std::mem::replace(&mut self.delivered_ms, delivered_ms);
        self.smoothed = Some(samples.add(used, as_of_ms, now, how.smoothing));
        self.due(how).is_some()
    }

    /// What is to be recorded, if it differs enough from what is.
    pub(crate) fn due(&self, how: Measuring) -> Option<(Measured, i64)> {
        let smoothed = self.smoothed?;
        let reserved = smoothed.used.map(|amount| with(amount, how));
        let Some((known, as_of_ms)) = self.recorded else { return Some((reserved, smoothed.as_of_ms)) };
        let is_far = (0..reserved.len()).any(|id| {
            let step = u64::from(self.capacity[id]) * u64::from(how.step_percent) / 100;
            u64::from(reserved[id].abs_diff(known[id])) > step
        });
        let covers_more = self.uncovered_ms.is_some_and(|(first, _)| first <= smoothed.as_of_ms);
        (is_far || covers_more).then_some((reserved, as_of_ms.max(smoothed.as_of_ms)))
    }

    /// What the record says now; `None`: there is none.
    pub(crate) fn recorded(&mut self, usage: Option<&v1::NodeUsage>) {
        self.recorded =
            usage.map(|usage| (usage.reserved.as_ref().map(measured).unwrap_or_default(), usage.as_of_ms));
        // What is not covered now was bound later.
        let later = |(_, as_of_ms): (Measured, i64)| as_of_ms.saturating_add(1);
        let from_ms = self.recorded.map_or(i64::MIN, later);
        let is_left = |(_, last): &(i64, i64)| *last >= from_ms;
        self.uncovered_ms = self.uncovered_ms.filter(is_left).map(|(first, last)| (first.max(from_ms), last));
    }

    /// A guaranteed running unit was bound to the node.
    pub(crate) fn bound_at(&mut self, time_ms: i64) {
        let (first, last) = self.uncovered_ms.unwrap_or((time_ms, time_ms));
        self.uncovered_ms = Some((first.min(time_ms), last.max(time_ms)));
    }

    /// What the node has of what is measured.
    pub(crate) fn capacity(&self) -> v1::Resources {
        let [cpu, memory] = self.capacity.map(i64::from);
        v1::Resources {
            amounts: [(CPU.to_owned(), cpu), (MEMORY.to_owned(), memory << 20)].into_iter().collect(),
        }
    }

    /// What the node has.
    pub(crate) fn set_capacity(&mut self, capacity: &v1::Resources) {
        self.capacity = measured(capacity);
    }
}

impl Cell {
    /// What is to be recorded of this node, if anything.
    pub(crate) fn usage_due(&self, node: NodeId, how: Measuring) -> Option<NodeUsage> {
        let ([cpu, memory], as_of_ms) = self.measure.due(how)?;
        let amounts = [(CPU, i64::from(cpu)), (MEMORY, i64::from(memory) << 20)];
        Some(NodeUsage { id: node, reserved: Resources::new(amounts).unwrap_or_default(), as_of_ms })
    }
}

/// Milli-cores and MiB, rounded up.
pub(crate) fn measured(usage: &v1::Resources) -> Measured {
    let amount = |name| usage.amounts.get(name).copied().unwrap_or(0).max(0);
    let mib = (amount(MEMORY).saturating_add((1 << 20) - 1)) >> 20;
    [amount(CPU), mib].map(|amount| u32::try_from(amount).unwrap_or(u32::MAX))
}

fn with(amount: u32, how: Measuring) -> u32 {
    let amount = u64::from(amount) * (100 + u64::from(how.headroom_percent)) / 100;
    u32::try_from(amount).unwrap_or(u32::MAX)
}

fn without(amount: u32, how: Measuring) -> u32 {
    let amount = u64::from(amount) * 100 / (100 + u64::from(how.headroom_percent));
    u32::try_from(amount).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(cpu: i64, memory: i64) -> v1::Resources {
        v1::Resources { amounts: [(CPU.to_owned(), cpu), (MEMORY.to_owned(), memory)].into_iter().collect() }
    }

    fn record(measure: &mut Measure, due: (Measured, i64)) {
        let ([cpu, memory], as_of_ms) = due;
        let reserved = Some(resources(cpu.into(), i64::from(memory) << 20));
        measure.recorded(Some(&v1::NodeUsage { node_id: 1, reserved, as_of_ms }));
    }

    #[test]
    fn amounts_are_rounded_up_and_bad_ones_do_not_panic() {
        assert_eq!(measured(&resources(5, 1)), [5, 1]);
        assert_eq!(measured(&resources(-5, 1 << 20)), [0, 1]);
        assert_eq!(measured(&resources(i64::MAX, i64::MAX)), [u32::MAX; 2]);
        assert_eq!(measured(&v1::Resources::default()), [0, 0]);
    }

    #[test]
    fn a_record_is_worth_a_step_of_the_node() {
        let how = Measuring::default();
        let mut measure = Measure::default();
        measure.set_capacity(&resources(10_000, 100 << 20));
        assert!(measure.add([1_000, 10], 1, Millis(0), how), "the first one");
        let due = measure.due(how).unwrap();
        assert_eq!(due, ([1_100, 11], 0), "with headroom");
        assert!(measure.add([1_000, 10], 1, Millis(1), how), "until it is recorded");
        record(&mut measure, due);
        // 2 % of 10,000 with 10 % headroom.
        assert!(!measure.add([1_180, 10], 1, Millis(2), how));
        assert!(measure.add([1_200, 10], 1, Millis(3), how));
    }

    #[test]
    fn a_record_is_worth_what_it_covers_for_the_first_time() {
        let how = Measuring::default();
        let mut measure = Measure::default();
        measure.set_capacity(&resources(10_000, 100 << 20));
        measure.add([1_000, 10], 5, Millis(0), how);
        let due = measure.due(how).unwrap();
        record(&mut measure, due);
        measure.bound_at(7);
        assert!(!measure.add([1_000, 10], 8, Millis(1), how), "it was not there all the time");
        assert!(measure.add([1_000, 10], 9, Millis(2), how));
        assert_eq!(measure.due(how).unwrap().1, 8);
        let due = measure.due(how).unwrap();
        record(&mut measure, due);
        assert!(!measure.add([1_000, 10], 20, Millis(3), how), "nothing is left to cover");
        measure.bound_at(21);
        assert!(!measure.add([1_000, 10], 22, Millis(4), how));
        assert!(measure.add([1_000, 10], 23, Millis(5), how));
    }

    #[test]
    fn the_average_goes_on_from_the_record() {
        let how = Measuring::default();
        let mut measure = Measure::default();
        measure.set_capacity(&resources(10_000, 100 << 20));
        record(&mut measure, ([1_100, 0], 50));
        measure.add([0, 0], 1, Millis(0), how);
        assert_eq!(measure.due(how), Some(([550, 0], 50)), "and covers no less than before");
    }
}
