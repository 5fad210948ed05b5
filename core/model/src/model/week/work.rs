//! The nodes and units of the week: what is submitted when, how long it runs, what it really uses, and who talks to whom.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::{
    ids::{NodeId, UnitId},
    resources::{CPU, MEMORY, NETWORK, Resources},
};
use godel_domain::{
    budget_spec::{Amount, BudgetSpec, Limit},
    change::Change,
    demand::Demand,
    node::{Device, NodeReport, NodeSpec},
    records::Record,
    unit::{RestartPolicy, UnitRecord, UnitSpec, WorkloadClass},
};
use godel_testkit::{BuildDemand as _, BuildUnit as _};

use super::{HOUR_MS, MINUTE_MS};
use crate::model::{numbers::Numbers, units};

/// Label of nodes that share a rack, and how many do.
pub(super) const RACK: &str = "rack";
const N_PER_RACK: u32 = 16;
/// GPUs of every third node.
pub(super) const N_GPUS: u32 = 4;
/// Thousandths of a core of a node, its memory in bytes, and bits per second of its network.
const NODE_CPU: i64 = 20_000;
const NODE_MEMORY: i64 = 128 << 30;
const NODE_BPS: i64 = 25_000_000_000;
/// Units that are there at the beginning, submitted within the first two hours.
const N_FIRST: u64 = 700;
/// Services that let replacements start first.
const SURGING_PERCENT: u64 = 33;
/// Ended units are kept so long.
const KEPT_MS: u64 = 5 * MINUTE_MS;

/// A node as its administrator and its agent describe it.
pub(super) fn node(id: u32) -> [Change; 2] {
    let spec = NodeSpec {
        id: NodeId(id),
        name: format!("n{id}"),
        uid: format!("node-{id}"),
        labels: [(RACK.to_owned(), format!("r{}", (id - 1) / N_PER_RACK))].into(),
        ..NodeSpec::default()
    };
    let n_gpus = if id.is_multiple_of(3) { N_GPUS } else { 0 };
    let device = Device { kind: "gpu".to_owned(), model: "A".to_owned(), numa_zone: 0, details: None };
    let capacity = [(CPU, NODE_CPU), (MEMORY, NODE_MEMORY), (NETWORK, NODE_BPS)];
    let report = NodeReport {
        id: NodeId(id),
        capacity: Resources::new(capacity).expect("not negative"),
        devices: (0..n_gpus).map(|_| device.clone()).collect(),
        ready: true,
        ..NodeReport::default()
    };
    [Change::Put(Record::NodeSpec(spec)), Change::Put(Record::NodeReport(report))]
}

/// A unit of the week.
#[derive(Clone, Debug)]
pub(super) struct WeekUnit {
    number: u64,
    pub(super) begin_ms: u64,
    pub(super) end_ms: u64,
    pub(super) class: WorkloadClass,
    replicas: u32,
    demand: Demand,
    has_budget: bool,
    /// Replacements of its replicas that may start first.
    max_surge: u32,
    /// Other units that it talks to, by number.
    pub(super) partners: Vec<u64>,
}

impl WeekUnit {
    /// Returns the number of a unit by its name.
    pub(super) fn number_of(name: &str) -> Option<u64> {
        name.strip_prefix("w")?.parse().ok()
    }

    pub(super) fn name(&self) -> String {
        format!("w{}", self.number)
    }

    /// Returns it as it is submitted.
    pub(super) fn spec(&self) -> UnitSpec {
        godel_testkit::unit(self.name())
            .uid(units::uid(self.number))
            .class(self.class)
            .main_group(self.replicas, self.demand.clone())
            .restart_policy(RestartPolicy::OnFailure)
            .profile(self.profile())
            .ttl_after_finished_ms(KEPT_MS)
            .max_surge(self.max_surge)
            .spec
    }

    /// Returns the profile that places it: services and batch work fill nodes one after the other, training goes to the emptiest
    /// ones. So there are crowded racks, hot nodes, and few nodes with all GPUs free.
    fn profile(&self) -> &'static str {
        if self.class == WorkloadClass::Training { "least-allocated" } else { "most-allocated" }
    }

    /// Returns its disruption budget: some services let one replica be missing, or a quarter of them.
    pub(super) fn budget(&self) -> Option<Arc<BudgetSpec>> {
        let amount = if self.number.is_multiple_of(2) { Amount::Count(1) } else { Amount::Percent(25) };
        self.has_budget.then(|| {
            Arc::new(BudgetSpec {
                name: format!("b{}", self.number),
                namespace: "default".to_owned(),
                unit: self.name(),
                limit: Limit::MaxUnavailable(amount),
                ..BudgetSpec::default()
            })
        })
    }

    /// Returns what the replica with an ordinal of the beginning really uses: of the CPU 1.7 times what it asks for, in the mean two fifths of that, and of the
    /// network by its CPU.
    fn usage(&self, ordinal: u32) -> (i64, i64) {
        let mut numbers = Numbers::new((self.number << 16) ^ u64::from(ordinal) ^ 0x10ad);
        let mut four = [0; 4].map(|_| numbers.below(1_000));
        four.sort_unstable();
        // Beta(2, 3) is the second of four draws in order, Beta(1, 3) the first of three.
        let least = [0; 3].map(|_| numbers.below(1_000)).into_iter().min().unwrap_or(0);
        let cpu = self.demand.requests.get(CPU);
        let thousandth = |part: u64| i64::try_from(part).expect("small");
        let used = cpu * 17 / 10 * thousandth(four[1]) / 1_000;
        let bps = NODE_BPS / NODE_CPU * cpu * 5 / 2 * thousandth(least) / 1_000;
        (used, bps.min(NODE_BPS / 2))
    }
}

/// All units, with what the store made of them.
pub(super) struct WeekWork {
    units: BTreeMap<u64, WeekUnit>,
    /// Units of the store by their number.
    ids: BTreeMap<u64, UnitId>,
    /// The replica whose work one does that replaced it, by unit and ordinal: one of those that the unit began with.
    origins: BTreeMap<(UnitId, u32), u32>,
}

impl WeekWork {
    /// Draws what arrives between a beginning and an end: first many, then one a minute.
    pub(super) fn of(seed: u64, begin_ms: u64, end_ms: u64) -> Self {
        let mut numbers = Numbers::new(seed ^ 0x3011);
        let mut work = Self { units: BTreeMap::new(), ids: BTreeMap::new(), origins: BTreeMap::new() };
        let begin_ms = begin_ms + 2 * MINUTE_MS;
        for number in 1..=N_FIRST {
            work.add(number, begin_ms + (number - 1) * 2 * HOUR_MS / N_FIRST, &mut numbers);
        }
        let mut at = begin_ms + 2 * HOUR_MS;
        for number in N_FIRST + 1.. {
            if at >= end_ms {
                break;
            }
            work.add(number, at, &mut numbers);
            at += MINUTE_MS;
        }
        work
    }

    fn add(&mut self, number: u64, begin_ms: u64, numbers: &mut Numbers) {
        let small = |numbers: &mut Numbers, n: u64| u32::try_from(1 + numbers.below(n)).expect("small");
        let cpu = |numbers: &mut Numbers, n: u64| 500 * i64::from(small(numbers, n));
        let (class, replicas, demand, mean_ms) = match numbers.below(4) {
            0 | 1 => (
                WorkloadClass::Service,
                1 + small(numbers, 5),
                godel_testkit::demand(cpu(numbers, 8)),
                18 * HOUR_MS,
            ),
            2 => (
                WorkloadClass::Batch,
                small(numbers, 4),
                godel_testkit::demand(cpu(numbers, 16)),
                6 * HOUR_MS,
            ),
            _ => {
                let (count, milli) = numbers.pick(&[(1, 500), (1, 1_000), (1, 1_000), (2, 1_000)]);
                let demand = godel_testkit::demand(2_000).gpus(count, milli, &[]);
                (WorkloadClass::Training, 1, demand, 12 * HOUR_MS)
            }
        };
        let is_service = class == WorkloadClass::Service;
        let end_ms = begin_ms + 10 * MINUTE_MS + exponential(mean_ms, numbers);
        let has_budget = is_service && numbers.chance(50);
        // Drawn apart, so that all else of the work is the same with replacements that start first and without.
        let mut of_surge = Numbers::new(number ^ 0x50f9e);
        let surges = is_service && of_surge.chance(SURGING_PERCENT);
        let max_surge = if surges { small(&mut of_surge, 2) } else { 0 };
        let mut partners = Vec::new();
        if is_service {
            let known: Vec<u64> = self
                .units
                .values()
                .filter(|other| other.class == WorkloadClass::Service && other.end_ms > begin_ms)
                .map(|other| other.number)
                .collect();
            if !known.is_empty() {
                partners.push(numbers.pick(&known));
            }
        }
        let demand = demand.memory(1 << 30);
        let unit =
            WeekUnit { number, begin_ms, end_ms, class, replicas, demand, has_budget, max_surge, partners };
        self.units.insert(number, unit);
    }

    pub(super) fn units(&self) -> impl Iterator<Item = (u64, &WeekUnit)> {
        self.units.iter().map(|(number, unit)| (*number, unit))
    }

    pub(super) fn unit(&self, number: u64) -> &WeekUnit {
        &self.units[&number]
    }

    /// Takes note of a unit as the store has it.
    pub(super) fn note(&mut self, record: &UnitRecord) {
        let Some(number) = WeekUnit::number_of(&record.spec.name) else { return };
        self.ids.insert(number, record.id);
        for surge in &record.status.surges {
            let origin = self.origin(record.id, surge.replaces);
            self.origins.insert((record.id, surge.ordinal), origin);
        }
    }

    /// Returns the unit of the store of a number, if there was one.
    pub(super) fn id(&self, number: u64) -> Option<UnitId> {
        self.ids.get(&number).copied()
    }

    /// Returns what a replica really uses: one that replaced another one has its work.
    pub(super) fn usage(&self, number: u64, unit: UnitId, ordinal: u32) -> (i64, i64) {
        self.unit(number).usage(self.origin(unit, ordinal))
    }

    fn origin(&self, unit: UnitId, ordinal: u32) -> u32 {
        self.origins.get(&(unit, ordinal)).copied().unwrap_or(ordinal)
    }
}

/// A time that is as likely to end at every moment: the integer part by halves, the rest evenly.
fn exponential(mean_ms: u64, numbers: &mut Numbers) -> u64 {
    // Half of them are over after the mean times the natural logarithm of two.
    let half_ms = mean_ms * 693 / 1_000;
    let n_halves = u64::from(numbers.next().trailing_ones().min(6));
    n_halves * half_ms + numbers.below(half_ms)
}
