//! Fixed pieces of work for measuring the decisions: the same code is timed by `godel bench core` and counted by
//! `make bench-guard`.
//!
//! A scenario is deterministic: sizes, order and seeds are constants, and it sums up what was decided in a
//! checksum, so that a change of behaviour shows and nothing is optimised away. Preparing and summing up are not
//! part of the work; what surrounds a decision in a service (decoding, sending, the store) is nowhere in it.

mod audit;
mod binder;
mod dispatcher;
mod explain;
mod permission;
mod rows;
mod scheduler;
mod trace;
mod world;

#[cfg(test)]
mod tests;

/// One kind of work.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Stable: figures are kept by it.
    pub name: &'static str,
    /// What is done, in a line.
    pub what: &'static str,
    /// What is counted.
    pub op: &'static str,
    make: fn(Size) -> Box<dyn Work>,
}

/// How much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// As the targets state it: 10,000 nodes and more.
    Full,
    /// A tenth or less, for counting instructions and for tests.
    Small,
}

/// Work that is prepared and can be done once.
pub trait Work {
    /// Does it. Only this is to be measured.
    fn run(&mut self);
    /// What was done.
    fn done(&self) -> Done;
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// How often what [`Scenario::op`] names.
    pub n_ops: u64,
    /// Of every decision.
    pub checksum: u64,
}

impl Scenario {
    /// Prepares the work.
    pub fn prepare(&self, size: Size) -> Box<dyn Work> {
        (self.make)(size)
    }
}

impl Size {
    fn pick(self, full: u32, small: u32) -> u32 {
        match self {
            Self::Full => full,
            Self::Small => small,
        }
    }
}

const fn scenario(
    name: &'static str,
    op: &'static str,
    what: &'static str,
    make: fn(Size) -> Box<dyn Work>,
) -> Scenario {
    Scenario { name, what, op, make }
}

/// Every scenario. A scheduler's placement is its part of the unit's assignment, the decision, the outcome and the
/// rows on the watch; a binder's is check, commit and rows; a dispatcher's is submission, hand-out, rows and report.
pub const ALL: &[Scenario] = &[
    scenario("scheduler-service", "placement", "units of 1,000 on 10,000 nodes", scheduler::service),
    scenario("scheduler-service-20k", "placement", "units of 1,000 on 20,000 nodes", scheduler::service_20k),
    scenario("scheduler-single", "placement", "units of 1 on 10,000 nodes", scheduler::single),
    scenario("scheduler-single-20k", "placement", "units of 1 on 20,000 nodes", scheduler::single_20k),
    scenario("scheduler-gang-10", "placement", "gangs of 10 on 10,000 nodes", scheduler::gang_10),
    scenario("scheduler-gang-100", "placement", "gangs of 100 on 10,000 nodes", scheduler::gang_100),
    scenario("scheduler-mixed", "placement", "the trace's shapes, a tenth constrained", scheduler::mixed),
    scenario(
        "scheduler-mixed-no-cache",
        "placement",
        "the same without kept candidates",
        scheduler::mixed_no_cache,
    ),
    scenario(
        "scheduler-mixed-no-scan-limit",
        "placement",
        "the same looking at all nodes",
        scheduler::mixed_no_limit,
    ),
    scenario(
        "scheduler-single-no-cache",
        "placement",
        "units of 1 without kept candidates",
        scheduler::single_no_cache,
    ),
    scenario(
        "scheduler-single-no-scan-limit",
        "placement",
        "units of 1 looking at all nodes",
        scheduler::single_no_limit,
    ),
    scenario(
        "scheduler-full-service",
        "placement",
        "units of 1,000 from 99 % full on",
        scheduler::full_service,
    ),
    scenario("scheduler-full-single", "placement", "units of 1 from 99 % full on", scheduler::full_single),
    scenario("scheduler-preempt", "placement", "units of 1,000, one victim a placement", scheduler::preempt),
    scenario(
        "scheduler-rack-gang",
        "placement",
        "gangs of 10, each in one of 300 racks",
        scheduler::rack_gang,
    ),
    scenario("scheduler-affinity", "placement", "units of 100 near, apart or spread", scheduler::affinity),
    scenario(
        "scheduler-rack-preempt",
        "placement",
        "gangs of 100 that preempt in one of 300 full racks",
        scheduler::rack_preempt,
    ),
    scenario("scheduler-follow", "placement", "other schedulers' binds and their ends", scheduler::follow),
    scenario("binder-service", "placement", "decisions of 1,000, committed", binder::service),
    scenario("binder-single", "placement", "decisions of 1, committed", binder::single),
    scenario("dispatcher-service", "placement", "units of 1,000 in and out", dispatcher::service),
    scenario("dispatcher-single", "placement", "units of 1 in and out", dispatcher::single),
    scenario("admission", "unit", "submissions checked and completed", dispatcher::admission),
    scenario("audit-service", "placement", "histories of units of 1,000 that end", audit::service),
    scenario("audit-preempt", "placement", "histories of one victim a placement, or none", audit::preempt),
    scenario("rows-life", "change", "rows checked, bound, started, ended", rows::life),
    scenario("explain", "explanation", "why nothing fits on 20,000 full nodes", explain::full),
    scenario("permission", "verdict", "calls of principals with lists and without", permission::verdicts),
];

/// A running checksum: order matters.
#[derive(Clone, Copy, Debug, Default)]
struct Checksum(u64);

impl Checksum {
    fn add(&mut self, value: u64) {
        self.0 = godel_base::seed::mix(self.0 ^ value);
    }

    fn add_text(&mut self, text: &str) {
        for byte in text.bytes() {
            self.add(u64::from(byte));
        }
    }
}
