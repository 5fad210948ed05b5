//! The points of preemption: which running units may leave for one of higher rank, and which of several places costs least.

use godel_base::ids::UnitId;
use godel_cluster::Cluster;
use godel_domain::{
    demand::Pool,
    running_units::{PreemptionTerms, RunningUnit, RunningUnits},
};
use godel_rules::budget::Spent;

use super::Plugin;

/// How a unit stands against another one: a queue within its guarantee first, then the priority. Field order is the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Its queue is within its guarantee, against the one that it is compared with.
    pub guaranteed: bool,
    /// Higher wins.
    pub priority: i32,
}

impl Rank {
    /// Returns a number above 0 that is greater for a higher rank.
    pub fn weight(self) -> i64 {
        i64::from(self.priority) - i64::from(i32::MIN) + 1 + (i64::from(self.guaranteed) << 33)
    }
}

/// Which of two units is guaranteed against the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sides {
    /// The unit that looks for room.
    pub seeker: bool,
    /// The possible victim.
    pub other: bool,
}

impl Sides {
    /// Whether the unit that looks for room has the higher rank, the priorities being these.
    pub fn outranked(self, seeker: i32, other: i32) -> bool {
        let other = Rank { guaranteed: self.other, priority: other };
        other < Rank { guaranteed: self.seeker, priority: seeker }
    }

    /// Whether the other one is a victim only because its queue borrows.
    pub fn rests_on_borrowing(self, seeker: i32, other: i32) -> bool {
        !self.other && !Sides { other: true, ..self }.outranked(seeker, other)
    }
}

/// The unit that looks for room.
#[derive(Clone, Copy, Debug)]
pub struct Seeker {
    /// The unit itself.
    pub unit: UnitId,
    /// Higher wins.
    pub priority: i32,
    /// The pool that pays for it.
    pub pool: Pool,
    /// Unix milliseconds.
    pub now_ms: i64,
    /// Nobody's application master leaves for it: others may be enough.
    pub spares_masters: bool,
}

impl Seeker {
    /// Returns the same unit for a search in which masters of applications stay.
    #[must_use]
    pub fn sparing_masters(&self) -> Self {
        Self { spares_masters: true, ..*self }
    }
}

/// A running unit that would have to leave, as the rules see it.
#[derive(Clone, Copy, Debug)]
pub struct VictimInput<'a> {
    /// The cluster as it is now.
    pub cluster: &'a Cluster,
    /// The unit that looks for room.
    pub seeker: &'a Seeker,
    /// Units that the seeker was preempted for.
    pub preemptors: &'a [UnitId],
    /// The unit of the possible victim.
    pub unit: UnitId,
    /// Its replica.
    pub ordinal: u32,
    /// All running units of that unit.
    pub rows: &'a RunningUnits,
    /// The possible victim.
    pub row: &'a RunningUnit,
    /// Its terms; `None`: it is not preempted.
    pub terms: Option<&'a PreemptionTerms>,
    /// How the queues of both stand.
    pub sides: Sides,
    /// What disruption budgets count as leaving by the same search; `None` where all victims of a decision are checked together.
    pub spent: Option<&'a Spent>,
}

impl<'a> VictimInput<'a> {
    /// Returns the possible victim of a seeker, `preemptors` being the units that the seeker was preempted for.
    #[inline]
    pub fn new(
        cluster: &'a Cluster,
        seeker: &'a Seeker,
        preemptors: &'a [UnitId],
        unit: UnitId,
        rows: &'a RunningUnits,
        ordinal: u32,
        row: &'a RunningUnit,
        sides: Sides,
    ) -> Self {
        let terms = rows.standing(row.group).map(|terms| &**terms);
        Self { cluster, seeker, preemptors, unit, ordinal, rows, row, terms, sides, spent: None }
    }
}

/// Why a running unit may not be preempted by a seeker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spared {
    /// A rule says so, in words that complete "the running unit".
    Refused(&'static str),
    /// It may be from then on, Unix milliseconds.
    Until(i64),
    /// The two would evict each other in turn, by themselves or by way of others.
    Loop,
    /// A disruption budget keeps it.
    Budget,
    /// It leaves after all others: the search goes on without it, and once more with it if nobody else is found.
    Last,
}

/// A unit that would be too small without its victims.
#[derive(Clone, Copy, Debug)]
pub struct WholeUnit {
    /// Running units of it that are live, do not leave, and pass no rule that judges them one by one.
    pub n_spared: usize,
}

/// Says which running units may not be preempted. The scheduler looks for victims by all rules, and the binder asks those once more
/// that judge a running unit by itself. A rule has no arguments, as a [`Filter`](super::Filter) has none: both have to come to the
/// same verdict.
pub trait VictimRule: Plugin {
    /// Whether a running unit may leave for the seeker.
    ///
    /// # Errors
    /// Why not.
    #[inline]
    fn check(_of: &VictimInput<'_>) -> Result<(), Spared> {
        Ok(())
    }

    /// Whether a unit may leave whole that would be too small without some of its running units, wherever they are.
    #[inline]
    fn check_whole(_of: &WholeUnit) -> bool {
        true
    }
}

/// A victim, as the costs of a place count it.
#[derive(Clone, Copy, Debug)]
pub struct CountedVictim {
    /// Against the seeker.
    pub rank: Rank,
    /// When it was bound, Unix milliseconds.
    pub bound_time_ms: i64,
    /// How long it has run, milliseconds.
    pub ran_ms: i64,
    /// It is the first of a unit that leaves whole, because the unit would be too small without its victims.
    pub ends_gang: bool,
    /// It is the master of an application.
    pub is_master: bool,
}

/// Measures what a place costs for which running units leave: of several places the one with the least cost is taken. Costs are compared
/// one after the other, in the order of the profile.
pub trait CandidateCost: Plugin {
    /// What a place costs for which nobody leaves. No place costs less.
    const NOBODY: i64;

    /// Returns what a place costs for which one more leaves: no less than `cost`, and no less for a victim of higher rank, that has run
    /// for longer, ends a gang or is a master. A search relies on that when it passes over nodes without looking at each victim.
    fn with(cost: i64, victim: &CountedVictim) -> i64;
}
