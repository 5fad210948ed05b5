//! What a node's guaranteed running units use: samples from heartbeats, smoothed, and whether that is worth a record.
//!
//! The record is durable, so that everybody reckons with the same number and an auditor can check it; it is written only
//! when it has changed by a step, or when it covers bindings that counted with their requests until now. Samples are
//! not kept over a restart: the record is where the average begins again.

use godel_base::{
    ids::NodeId,
    resources::{CPU, MEMORY, NETWORK, Resources},
    time::Millis,
};
use godel_domain::{
    node::NodeUsage,
    node_load::{LoadAmounts, NodeLoad, ZoneLoad},
};
use godel_membership::node_usage::{Measured, Samples, Smoothed, Smoothing};
use godel_proto::v1;
use godel_wire::from_proto;

use super::cell::Cell;

/// How use becomes a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measuring {
    pub(crate) smoothing: Smoothing,
    /// Kept from best-effort beyond the smoothed use, per cent of it.
    pub(crate) headroom_percent: u32,
    /// A change of what is kept is worth a record from so many per cent of the node on.
    pub(crate) step_percent: u32,
    /// A change of the load is worth a record from so many per cent of the node on.
    pub(crate) load_step_percent: u32,
}

impl Default for Measuring {
    fn default() -> Self {
        Self { smoothing: Smoothing::default(), headroom_percent: 10, step_percent: 2, load_step_percent: 5 }
    }
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UsageRecord {
    pub(crate) reserved: Measured,
    /// `i64::MIN`: the use of guaranteed running units is not known.
    pub(crate) as_of_ms: i64,
    pub(crate) load: Option<NodeLoad>,
}

/// A node's use as its session measures it and as it is recorded.
#[derive(Debug, Default)]
pub(crate) struct UsageMeasure {
    /// Not after the first, and the last guaranteed binding that the record does not cover.
    uncovered_ms: Option<(i64, i64)>,
    /// What bindings have nothing to do with.
    kept: Box<KeptMeasure>,
}

#[derive(Debug, Default)]
struct KeptMeasure {
    /// There from the first sample on.
    samples: Option<Box<Samples>>,
    smoothed: Option<Smoothed>,
    /// What was delivered to the agent up to the last sample, by commit time.
    delivered_ms: i64,
    /// As reported last, unless that is too old; until the agent is heard, as recorded.
    load: Option<NodeLoad>,
    /// The same of its zones, and as recorded; most nodes have none.
    zone_loads: Box<[ZoneLoad]>,
    recorded_zones: Box<[ZoneLoad]>,
    /// When the load was reported last, or when its agent was first heard without any.
    loaded_at: Option<Millis>,
    recorded: Option<UsageRecord>,
    capacity: Measured,
    network_capacity: i64,
    /// Of zones, by index.
    zone_capacities: Box<[LoadAmounts]>,
}

impl UsageMeasure {
    /// A sample. `delivered_ms` is the commit time up to which the node's agent has been told.
    pub(crate) fn add(&mut self, used: Measured, delivered_ms: i64, now: Millis, how: Measuring) {
        let recorded = self.kept.recorded.filter(|record| record.as_of_ms > i64::MIN);
        let samples = self.kept.samples.get_or_insert_with(|| {
            let before = recorded.map(|record| record.reserved.map(|amount| without(amount, how)));
            Box::new(before.map(Samples::resume).unwrap_or_default())
        });
        // What ran while it was measured: it was delivered before the sample before this one.
        let as_of_ms = std::mem::replace(&mut self.kept.delivered_ms, delivered_ms);
        self.kept.smoothed = Some(samples.add(used, as_of_ms, now, how.smoothing));
    }

    /// The agent was heard, with a load and those of zones or without; one that is older than `age_max_ms` counts no longer.
    pub(crate) fn hear_load(
        &mut self,
        load: Option<NodeLoad>,
        zone_loads: Vec<ZoneLoad>,
        now: Millis,
        age_max_ms: u64,
    ) {
        match load {
            Some(_) => {
                (self.kept.load, self.kept.loaded_at) = (load, Some(now));
                // A node without zones allocates nothing.
                self.kept.zone_loads = zone_loads.into();
            }
            None => {
                let since = *self.kept.loaded_at.get_or_insert(now);
                if now.since(since) > age_max_ms {
                    self.forget_load();
                }
            }
        }
    }

    /// Contact with the agent is lost: what it has reported says nothing of now.
    pub(crate) fn lose_load(&mut self) {
        self.forget_load();
        self.kept.loaded_at.get_or_insert(Millis(0));
    }

    fn forget_load(&mut self) {
        self.kept.load = None;
        self.kept.zone_loads = Box::default();
    }

    /// What is to be recorded, if it differs enough from what is.
    pub(crate) fn due(&self, how: Measuring) -> Option<UsageRecord> {
        let smoothed = self
            .kept
            .smoothed
            .map(|smoothed| (smoothed.used.map(|amount| with(amount, how)), smoothed.as_of_ms));
        let Some(known) = self.kept.recorded else {
            let (reserved, as_of_ms) = smoothed.unwrap_or(([0; 2], i64::MIN));
            let is_known = smoothed.is_some() || self.kept.load.is_some();
            return is_known.then_some(UsageRecord { reserved, as_of_ms, load: self.kept.load });
        };
        // What guaranteed running units use is what it was until it is measured again.
        let (reserved, as_of_ms) = smoothed.unwrap_or((known.reserved, known.as_of_ms));
        let is_far = (0..reserved.len()).any(|id| {
            let step = u64::from(self.kept.capacity[id]) * u64::from(how.step_percent) / 100;
            u64::from(reserved[id].abs_diff(known.reserved[id])) > step
        });
        let is_first = smoothed.is_some() && known.as_of_ms == i64::MIN;
        let covers_more = self.uncovered_ms.is_some_and(|(first, _)| first <= as_of_ms);
        let is_due =
            is_far || is_first || covers_more || self.is_far_load(known.load, how) || self.are_far_zones(how);
        is_due.then_some(UsageRecord {
            reserved,
            as_of_ms: known.as_of_ms.max(as_of_ms),
            load: self.kept.load,
        })
    }

    /// Whether the load of a zone differs from the recorded one by more than a step of the zone.
    fn are_far_zones(&self, how: Measuring) -> bool {
        let (now, known) = (&self.kept.zone_loads, &self.kept.recorded_zones);
        let is_far = |(now, known): (&ZoneLoad, &ZoneLoad)| {
            let has = self.kept.zone_capacities.get(usize::from(now.zone)).copied().unwrap_or_default();
            now.zone != known.zone || is_far_from(&now.load, &known.load, has, how)
        };
        now.len() != known.len() || now.iter().zip(known).any(is_far)
    }

    /// Whether the load differs from a recorded one by more than a step of the node.
    fn is_far_load(&self, known: Option<NodeLoad>, how: Measuring) -> bool {
        let (Some(now), Some(known)) = (self.kept.load, known) else {
            return self.kept.load.is_some() != known.is_some();
        };
        let [cpu, memory] = self.kept.capacity.map(i64::from);
        let has = LoadAmounts { cpu, memory: memory << 20, network: self.kept.network_capacity };
        is_far_from(&now, &known, has, how)
    }

    /// What the record says now; `None`: there is none.
    pub(crate) fn recorded(&mut self, usage: Option<&v1::NodeUsage>) {
        self.kept.recorded = usage.map(|usage| UsageRecord {
            reserved: usage.reserved.as_ref().map(measured).unwrap_or_default(),
            as_of_ms: usage.as_of_ms,
            load: usage.load.and_then(|load| from_proto::node_load(load).ok()),
        });
        let zones = usage.and_then(|usage| from_proto::zone_loads(usage.zone_loads.clone()).ok());
        self.kept.recorded_zones = zones.unwrap_or_default().into();
        if self.kept.loaded_at.is_none() {
            self.kept.load = self.kept.recorded.and_then(|record| record.load);
            self.kept.zone_loads = self.kept.recorded_zones.clone();
        }
        // What is not covered now was bound later.
        let from_ms = self.kept.recorded.map_or(i64::MIN, |record| record.as_of_ms.saturating_add(1));
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
        let [cpu, memory] = self.kept.capacity.map(i64::from);
        v1::Resources {
            amounts: [(CPU.to_owned(), cpu), (MEMORY.to_owned(), memory << 20)].into_iter().collect(),
        }
    }

    /// What the node has.
    pub(crate) fn set_capacity(&mut self, capacity: &v1::Resources) {
        self.kept.capacity = measured(capacity);
        self.kept.network_capacity = capacity.amounts.get(NETWORK).copied().unwrap_or(0);
    }

    /// What its zones have.
    pub(crate) fn set_zones<'a>(&mut self, capacities: impl Iterator<Item = Option<&'a v1::Resources>>) {
        let has = |capacity: Option<&v1::Resources>| {
            let of = |name| capacity.and_then(|has| has.amounts.get(name).copied()).unwrap_or(0);
            LoadAmounts { cpu: of(CPU), memory: of(MEMORY), network: of(NETWORK) }
        };
        self.kept.zone_capacities = capacities.map(has).collect();
    }
}

impl Cell {
    /// What is to be recorded of this node, if anything.
    pub(crate) fn usage_due(&self, node: NodeId, how: Measuring) -> Option<NodeUsage> {
        let UsageRecord { reserved: [cpu, memory], as_of_ms, load } = self.measure.due(how)?;
        let amounts = [(CPU, i64::from(cpu)), (MEMORY, i64::from(memory) << 20)];
        let zone_loads = self.measure.kept.zone_loads.to_vec();
        Some(NodeUsage {
            id: node,
            reserved: Resources::new(amounts).unwrap_or_default(),
            as_of_ms,
            load,
            zone_loads,
        })
    }
}

/// Whether a load differs from another one by more than a step of what there is.
fn is_far_from(now: &NodeLoad, known: &NodeLoad, has: LoadAmounts, how: Measuring) -> bool {
    let is_far = |has: i64, now: i64, known: i64| {
        // Nobody compares the use of what the node does not say that it has.
        has > 0
            && u128::from(now.abs_diff(known)) * 100
                > u128::from(has.unsigned_abs()) * u128::from(how.load_step_percent)
    };
    [(now.p50, known.p50), (now.p95, known.p95)].into_iter().any(|(now, known)| {
        is_far(has.cpu, now.cpu, known.cpu)
            || is_far(has.memory, now.memory, known.memory)
            || is_far(has.network, now.network, known.network)
    })
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
    use godel_domain::node_load::LoadAmounts;
    use godel_wire::to_proto;

    use super::*;

    const HOW: Measuring = Measuring {
        smoothing: Smoothing { window_ms: 600_000, half_life_ms: 60_000 },
        headroom_percent: 10,
        step_percent: 2,
        load_step_percent: 5,
    };

    fn resources(cpu: i64, memory: i64) -> v1::Resources {
        v1::Resources { amounts: [(CPU.to_owned(), cpu), (MEMORY.to_owned(), memory)].into_iter().collect() }
    }

    /// Of a node with 10 cpu and 100 MiB.
    fn measure() -> UsageMeasure {
        let mut measure = UsageMeasure::default();
        measure.set_capacity(&resources(10_000, 100 << 20));
        measure
    }

    /// Takes a sample; whether that is worth a record.
    fn add(measure: &mut UsageMeasure, used: Measured, delivered_ms: i64, now: u64) -> bool {
        measure.add(used, delivered_ms, Millis(now), HOW);
        measure.due(HOW).is_some()
    }

    /// Records what is due.
    fn record(measure: &mut UsageMeasure) {
        let due = measure.due(HOW).expect("something is due");
        record_as(measure, due);
    }

    fn record_as(measure: &mut UsageMeasure, due: UsageRecord) {
        let UsageRecord { reserved: [cpu, memory], as_of_ms, load } = due;
        let reserved = Some(resources(cpu.into(), i64::from(memory) << 20));
        let load = load.as_ref().map(to_proto::node_load);
        let zone_loads = measure.kept.zone_loads.iter().map(to_proto::zone_load).collect();
        measure.recorded(Some(&v1::NodeUsage { node_id: 1, reserved, as_of_ms, load, zone_loads }));
    }

    fn load(p50: i64, p95: i64) -> Option<NodeLoad> {
        let of = |cpu| LoadAmounts { cpu, memory: 0, network: cpu };
        Some(NodeLoad { p50: of(p50), p95: of(p95) })
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
        let mut measure = measure();
        assert!(add(&mut measure, [1_000, 10], 1, 0), "the first one");
        let due = measure.due(HOW).unwrap();
        assert_eq!((due.reserved, due.as_of_ms, due.load), ([1_100, 11], 0, None), "with headroom");
        assert!(add(&mut measure, [1_000, 10], 1, 1), "until it is recorded");
        record_as(&mut measure, due);
        // 2 % of 10,000 with 10 % headroom.
        assert!(!add(&mut measure, [1_180, 10], 1, 2));
        assert!(add(&mut measure, [1_200, 10], 1, 3));
    }

    #[test]
    fn a_record_is_worth_what_it_covers_for_the_first_time() {
        let mut measure = measure();
        add(&mut measure, [1_000, 10], 5, 0);
        record(&mut measure);
        measure.bound_at(7);
        assert!(!add(&mut measure, [1_000, 10], 8, 1), "it was not there all the time");
        assert!(add(&mut measure, [1_000, 10], 9, 2));
        assert_eq!(measure.due(HOW).unwrap().as_of_ms, 8);
        record(&mut measure);
        assert!(!add(&mut measure, [1_000, 10], 20, 3), "nothing is left to cover");
        measure.bound_at(21);
        assert!(!add(&mut measure, [1_000, 10], 22, 4));
        assert!(add(&mut measure, [1_000, 10], 23, 5));
    }

    #[test]
    fn the_average_goes_on_from_the_record() {
        let mut measure = measure();
        record_as(&mut measure, UsageRecord { reserved: [1_100, 0], as_of_ms: 50, load: None });
        add(&mut measure, [0, 0], 1, 0);
        let due = measure.due(HOW).unwrap();
        assert_eq!((due.reserved, due.as_of_ms), ([550, 0], 50), "and covers no less than before");
    }

    #[test]
    fn a_load_is_worth_a_record_by_steps() {
        let mut measure = measure();
        measure.hear_load(load(1_000, 2_000), Vec::new(), Millis(0), 30);
        let due = measure.due(HOW).unwrap();
        assert_eq!((due.as_of_ms, due.load), (i64::MIN, load(1_000, 2_000)), "guaranteed use is not known");
        record(&mut measure);
        // The use of a network whose size is not known is worth nothing.
        for (p50, p95, is_due) in
            [(1_000, 2_000, false), (1_500, 1_500, false), (1_501, 2_000, true), (1_000, 1_499, true)]
        {
            measure.hear_load(load(p50, p95), Vec::new(), Millis(1), 30);
            assert_eq!(measure.due(HOW).is_some(), is_due, "{p50} {p95}");
        }
        // What is written for another reason has the newest load.
        measure.hear_load(load(1_100, 2_000), Vec::new(), Millis(2), 30);
        assert!(add(&mut measure, [100, 0], 1, 2), "guaranteed use is known for the first time");
        assert_eq!(measure.due(HOW).unwrap().load, load(1_100, 2_000));
    }

    #[test]
    fn a_load_that_is_not_reported_any_more_is_forgotten() {
        let mut measure = measure();
        measure.hear_load(load(1_000, 2_000), Vec::new(), Millis(100), 30);
        record(&mut measure);
        measure.hear_load(None, Vec::new(), Millis(130), 30);
        assert_eq!(measure.due(HOW), None, "three reports may be lost");
        measure.hear_load(None, Vec::new(), Millis(131), 30);
        assert_eq!(measure.due(HOW).map(|due| due.load), Some(None));
        record(&mut measure);
        measure.hear_load(load(1_000, 2_000), Vec::new(), Millis(140), 30);
        assert_eq!(measure.due(HOW).map(|due| due.load), Some(load(1_000, 2_000)));
        record(&mut measure);
        measure.lose_load();
        assert_eq!(measure.due(HOW).map(|due| due.load), Some(None), "contact is lost");
    }

    #[test]
    fn a_zone_is_worth_a_record_by_steps_of_its_own() {
        let mut measure = measure();
        measure.set_zones([None, Some(&resources(2_000, 1 << 30))].into_iter());
        let zones = |p95| vec![ZoneLoad { zone: 1, load: load(0, p95).unwrap() }];
        measure.hear_load(load(0, 0), zones(100), Millis(0), 30);
        record(&mut measure);
        for (p95, is_due) in [(100, false), (200, false), (201, true)] {
            measure.hear_load(load(0, 0), zones(p95), Millis(1), 30);
            assert_eq!(measure.due(HOW).is_some(), is_due, "{p95}");
        }
        measure.hear_load(load(0, 0), Vec::new(), Millis(1), 30);
        assert!(measure.due(HOW).is_some(), "nothing is known of the zone any more");
        record(&mut measure);
        // With the load of the node those of zones are forgotten.
        measure.hear_load(load(0, 0), zones(100), Millis(2), 30);
        record(&mut measure);
        measure.hear_load(None, Vec::new(), Millis(33), 30);
        assert!(measure.due(HOW).is_some() && measure.kept.zone_loads.is_empty());
    }

    #[test]
    fn a_recorded_load_counts_until_its_agent_is_heard() {
        let mut measure = measure();
        record_as(&mut measure, UsageRecord { reserved: [0, 0], as_of_ms: 5, load: load(1_000, 2_000) });
        assert_eq!(measure.due(HOW), None);
        measure.hear_load(None, Vec::new(), Millis(7), 30);
        assert_eq!(measure.due(HOW), None);
        measure.hear_load(None, Vec::new(), Millis(38), 30);
        assert_eq!(measure.due(HOW).map(|due| due.load), Some(None));
    }
}
