//! The scheduler's whole state machine: units in, decisions out.
//!
//! A unit is *ready* (in the queue of its workflow, by priority and dispatch order), in *backoff* after rejections, *parked*
//! when a full scan found no place, or *waiting* for the outcome of its decisions. Decisions are assumed at once in
//! the scheduler's own [`Cluster`]; an outcome or the watch settles them. Equal events and an equal seed give
//! equal decisions: nothing depends on hash order or on time other than the `now` passed in. Nothing
//! survives a restart: the dispatcher assigns again.
//!
//! Four parts own what they change: the units in their queues, the decisions in flight, the picture of the cluster, and the
//! search for victims. An event, or a try of a unit, that concerns several of them calls them in turn.
//!
//! # Modules
//!
//! - `assigned_unit`: a unit that the scheduler was assigned, and what is left to place of it.
//! - `assigned_units`: the assigned units, each in one state, with outcomes, and reports of them and of room for them.
//! - `cycle`: the unit cycle: try the next unit, decide, or park it.
//! - `elsewhere`: units with a hold that fit on other nodes by now.
//! - `events`: committed changes, assignments and outcomes, and what each of them brings about.
//! - `flows`: one workflow per sub-cluster and pool.
//! - `gang_progress`: how far the first binding of a unit is.
//! - `in_flight`: decisions without an outcome, and those that were answered and not read yet.
//! - `movers`: replicas that move, which go to their targets first.
//! - `park`: units without a place, grouped by what they need.
//! - `picture`: the picture of the cluster, as read and as assumed, and places in it.
//! - `plan`: what would become of a unit that is not submitted.
//! - `preemption`: the search for victims of a unit without a place, or whose queue is at a maximum.
//! - `shares`: what queues use, for ranks and for what is lacking under maxima.

use godel_base::{
    ids::{Revision, UnitId},
    time::Millis,
};
use godel_cluster::Cluster;
use godel_domain::{
    decision::Decision,
    sub_cluster,
    unit::UnitSpec,
    unit_report::{RoomReport, UnitReport},
    unwelcome::Unwelcome,
};
use godel_placement::profiles::Profiles;
use godel_rules::admission::welcome::{self};

use self::{
    assigned_units::AssignedUnits, in_flight::InFlight, picture::Picture, preemption::PreemptionSearch,
};

mod assigned_unit;
mod assigned_units;
mod cycle;
mod elsewhere;
mod events;
mod flows;
mod gang_progress;
mod in_flight;
mod movers;
mod park;
mod picture;
mod plan;
mod preemption;
mod shares;

#[cfg(test)]
mod tests;

pub use events::{FOLLOWS, FOLLOWS_SELECTED};
pub use plan::{PlanOutcome, PlanReport};

/// How a scheduler works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// As in the lease `scheduler/<name>`; finds its slot in a partition.
    pub name: String,
    /// A scan stops once it has found this number of feasible nodes beyond the replicas that are asked for.
    pub surplus: u32,
    /// Feasible nodes are kept from one replica and unit to the next of the same template.
    pub cache: bool,
    /// A scan stops early at all; false looks at every node.
    pub limit_scan: bool,
    /// Most running units held in ready, backoff and in flight together, but for those that back off after many
    /// rejections.
    pub held_max: u32,
    /// Most running units decided and not yet answered; fewer while there are conflicts.
    pub in_flight_max: u32,
    /// First wait after a second rejection in a row, milliseconds.
    pub backoff_ms_min: u64,
    /// Longest wait, milliseconds.
    pub backoff_ms_max: u64,
    /// How long the scheduler believes what a rejection said of a node, milliseconds.
    pub foreign_ms: u64,
    /// Units without a place look for running units of lower rank to have them leave.
    pub preemption: bool,
    /// How nodes are preferred.
    pub profiles: Profiles,
    /// Label or attribute of nodes whose value is their sub-cluster; empty: there are none.
    pub sub_cluster_key: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: String::new(),
            surplus: 50,
            cache: true,
            limit_scan: true,
            held_max: 200_000,
            in_flight_max: 100_000,
            backoff_ms_min: 10,
            backoff_ms_max: 10_000,
            foreign_ms: 1_000,
            preemption: true,
            profiles: Profiles::default(),
            sub_cluster_key: sub_cluster::KEY.to_owned(),
        }
    }
}

/// What a step produced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// For the binder, in order.
    pub decisions: Vec<Decision>,
    /// For the dispatcher, in order.
    pub reports: Vec<UnitReport>,
    /// For the dispatcher, after these.
    pub rooms: Vec<RoomReport>,
}

/// Counters and queue lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Nodes of its own partition; all of them in global mode.
    pub nodes: u32,
    /// Units in the ready queue.
    pub ready_units: u32,
    /// Units waiting after rejections.
    pub backoff_units: u32,
    /// Units without a place.
    pub parked_units: u32,
    /// Units assigned.
    pub units: u32,
    /// Running units held in ready, backoff and in flight.
    pub running_units: u32,
    /// Decisions without an outcome.
    pub in_flight: u32,
    /// Running units bound by its decisions.
    pub placed: u64,
    /// Running units refused because another party was faster.
    pub conflicts: u64,
    /// Replicas placed from a kept candidate list.
    pub cache_hits: u64,
    /// Scans made.
    pub cache_misses: u64,
    /// Searches for victims.
    pub preemptions_tried: u64,
    /// Running units that decisions of this scheduler have leave.
    pub victims: u64,
    /// Units spared because the one that searched had been preempted for them.
    pub loops_refused: u64,
}

/// A scheduler.
#[derive(Debug)]
pub struct Scheduler {
    config: Config,
    /// What it decides on.
    picture: Picture,
    /// What it decides about.
    units: AssignedUnits,
    /// What it has decided.
    in_flight: InFlight,
    /// Who may leave for others.
    search: PreemptionSearch,
}

impl Scheduler {
    /// Without units and nodes. Equal events and an equal seed give equal decisions; schedulers of one cluster
    /// should have different seeds.
    pub fn new(config: Config, seed: u64) -> Self {
        Self {
            picture: Picture::new(&config, seed),
            units: AssignedUnits::new(&config, seed),
            in_flight: InFlight::new(config.in_flight_max),
            search: PreemptionSearch::new(config.preemption),
            config,
        }
    }

    /// Returns what it knows and assumes of the cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.picture.cluster
    }

    /// When to step again without an event: at 0 if there is something to do now, else at the end of the
    /// first backoff or foreign note.
    pub fn next_wake(&self) -> Option<Millis> {
        let Self { picture, units, in_flight, search, .. } = self;
        let can_decide = !units.ready.is_empty() && in_flight.is_open();
        if can_decide || units.has_news(picture.cluster.free().generations().has_gained()) {
            return Some(Millis(0));
        }
        let times = units.backoff_end().into_iter().chain(picture.foreign.first_end());
        let search = search.times.next().filter(|_| !units.parked.is_idle());
        times.chain(search).chain(picture.shares.maxima_end()).min()
    }

    /// Whether a unit may be submitted where it wants to go, by somebody with these names: the dispatcher says the same.
    ///
    /// # Errors
    /// Everything wrong.
    pub fn welcome(&self, spec: &UnitSpec, names: &[String]) -> Result<(), Vec<Unwelcome>> {
        let Picture { shares, classes, .. } = &self.picture;
        welcome::check(spec, names, shares.tree(), classes, &self.config.sub_cluster_key)
    }

    /// Tries a unit on the live picture, every replica of it, without effect.
    pub fn plan(&mut self, spec: &UnitSpec) -> PlanReport {
        plan::plan(&mut self.picture, &mut self.search, spec)
    }

    /// Returns a number that changes whenever budgets may select other units: then the records of all units are to be read
    /// again. `None` while there is no budget and nothing counts units by what their records say: no need to read them.
    pub fn selection(&self) -> Option<u64> {
        self.picture.selection.number(&self.picture.cluster)
    }

    /// Every unit assigned, ascending, with the revision of its record.
    pub fn inventory(&self) -> Vec<(UnitId, Revision)> {
        self.units.inventory()
    }

    /// Decisions without an outcome, in order: to be sent again after a reconnect.
    pub fn undecided(&self) -> Vec<Decision> {
        self.in_flight.undecided().cloned().collect()
    }

    /// Running units that it can take beyond what it holds in ready, backoff and in flight.
    pub fn credits(&self) -> u32 {
        self.config.held_max.saturating_sub(self.n_running_units())
    }

    fn n_running_units(&self) -> u32 {
        let n_running_units = self.units.n_working() + self.in_flight.n_running_units();
        u32::try_from(n_running_units).unwrap_or(u32::MAX)
    }

    /// Counters and queue lengths. `O(nodes)`.
    pub fn stats(&self) -> Stats {
        let Self { picture: Picture { cluster, placer, .. }, units, in_flight, search, .. } = self;
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Stats {
            nodes: count(cluster.nodes().ids().filter(|node| placer.view.is_own(node.idx())).count()),
            ready_units: count(units.ready.len()),
            backoff_units: count(units.n_backoff()),
            parked_units: count(units.parked.len()),
            units: count(units.len()),
            running_units: self.n_running_units(),
            in_flight: count(in_flight.undecided().len()),
            placed: in_flight.n_placed(),
            conflicts: in_flight.n_conflicts(),
            cache_hits: placer.hits,
            cache_misses: placer.misses,
            preemptions_tried: search.n_tried(),
            victims: search.n_victims(),
            loops_refused: search.n_loops(),
        }
    }
}
