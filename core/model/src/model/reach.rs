//! What the cases reach: a test that never meets a conflict proves nothing about conflicts.

use std::{collections::BTreeSet, fmt};

use godel_domain::running_units::PhaseChange;

use super::store::Store;

/// Something that a case may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mark {
    /// The binder refused running units of a decision.
    Rejection,
    /// Of those, as another scheduler was faster.
    Conflict,
    /// Running units had to leave for others of higher rank.
    Preemption,
    /// A maximum kept running units from being bound.
    FullQueue,
    /// What one owner may take of a queue kept running units from being bound.
    OwnerFull,
    /// What application masters may take of a queue kept running units from being bound.
    MastersFull,
    /// Running units had to leave for others since a queue was at its maximum.
    Relief,
    /// More than one running unit in a first binding that needs them all.
    Gang,
    /// A hold turned into a binding.
    HoldBound,
    /// Slots of a reservation were held.
    Reserved,
    /// Somebody took a slot.
    SlotTaken,
    /// A hold was given up.
    HoldDropped,
    /// A hold went as its unit fitted elsewhere.
    Elsewhere,
    /// A unit of higher rank took a hold over.
    TakenOver,
    /// A running unit began to move to another node.
    Moved,
    /// Who moves was placed while its target was held.
    MovedIn,
    /// Who moves was placed on another node though its target was held.
    MovedAway,
    /// Somebody began to move who keeps others apart.
    MovedApart,
    /// The same of one that is near to others, or that others are near to.
    MovedNear,
    /// The same of one that is spread.
    MovedSpread,
    /// The same of one whose unit has to be in one domain, or in one kind of them.
    MovedTogether,
    /// The same of one with a port.
    MovedPort,
    /// The same of one of whose unit others waited.
    MovedBeforeOthers,
    /// Who moves came back to a queue that was at its maximum, while others waited for it.
    MovedInFullQueue,
    /// A unit gathered room when something else happened.
    Gathers,
    /// Several units of one pool did.
    GathersBeside,
    /// A policy of the rescheduler found something to move.
    Planned,
    /// The rescheduler was killed between the record of a batch and the holds of its moves.
    KilledBeforeHold,
    /// A node was lost that running units were moving from or to.
    LostInMove,
    /// What an agent said of an incarnation came to state when the next one was bound.
    LateStatus,
    /// An agent died with what ran on its node.
    KilledWithRuns,
    /// An agent took over what the one before it had left running.
    TakenOverRuns,
    /// A move was refused.
    MoveRefused,
    /// A disruption budget kept a running unit from moving.
    MoveKept,
    /// A replica was added that is to run before the one stops that it replaces.
    Surge,
    /// It took the place of that one.
    Replaced,
    /// It was given up.
    SurgeGivenUp,
    /// Best-effort running units were squeezed.
    Squeeze,
    /// Running units left a drained node.
    Drain,
    /// Running units were lost with their node.
    NodeLost,
    /// A node came to have less.
    Shrink,
    /// A node came to have fewer devices, or others.
    FewerDevices,
    /// A unit was cancelled.
    Cancel,
    /// A unit was scaled or changed otherwise, or some of it stopped.
    Scale,
    /// A unit was suspended.
    Suspend,
    /// A unit ran again after its end.
    Retry,
    /// What was bound of a unit came to count in another queue, or to stand otherwise against others.
    Terms,
    /// What was kept of running units that had ended was compacted.
    Compaction,
    /// Running units came back as their next incarnations.
    Requeue,
    /// A transaction was refused by the store.
    Refused,
    /// A part was killed.
    Kill,
    /// A lease was lost by a part that lives.
    LeaseLost,
    /// A connection was cut.
    Cut,
    /// A part read everything anew.
    Relist,
    /// A place was given away beside a queue that waited for it as well.
    Shared,
    /// Strict partitions.
    Strict,
    /// The certificate of an agent has expired.
    IdentityExpired,
    /// Running units were on its node.
    ExpiredWithRuns,
    /// Room was held there.
    ExpiredUnderHold,
    /// Running units were moving from or to there.
    ExpiredInMove,
    /// The agent has renewed it.
    IdentityRenewed,
    /// An agent was revoked.
    Revoked,
    /// Running units were moving from or to its node.
    RevokedInMove,
    /// A principal did what it may.
    Permitted,
    /// A principal was refused what it may not.
    Forbidden,
    /// A principal named a unit of another namespace by its uid.
    ForeignUid,
    /// The name of a unit was hidden from a principal that sees another one.
    Hidden,
    /// A principal got another rule.
    Regranted,
    /// A part of what is waiting was left to wait at the end.
    Waiting,
    /// Something was still tried again and again at the end: a gap that is known.
    Restless,
    /// The reconciler repaired something though nothing had failed: a gap that is known.
    Repaired,
}

impl Mark {
    pub(super) const ALL: [Self; 71] = [
        Self::Rejection,
        Self::Conflict,
        Self::Preemption,
        Self::FullQueue,
        Self::OwnerFull,
        Self::MastersFull,
        Self::Relief,
        Self::Gang,
        Self::HoldBound,
        Self::Reserved,
        Self::SlotTaken,
        Self::HoldDropped,
        Self::Elsewhere,
        Self::TakenOver,
        Self::Moved,
        Self::MovedIn,
        Self::MovedAway,
        Self::MovedApart,
        Self::MovedNear,
        Self::MovedSpread,
        Self::MovedTogether,
        Self::MovedPort,
        Self::MovedBeforeOthers,
        Self::MovedInFullQueue,
        Self::Gathers,
        Self::GathersBeside,
        Self::Planned,
        Self::KilledBeforeHold,
        Self::LostInMove,
        Self::LateStatus,
        Self::KilledWithRuns,
        Self::TakenOverRuns,
        Self::MoveRefused,
        Self::MoveKept,
        Self::Surge,
        Self::Replaced,
        Self::SurgeGivenUp,
        Self::Squeeze,
        Self::Drain,
        Self::NodeLost,
        Self::Shrink,
        Self::FewerDevices,
        Self::Cancel,
        Self::Scale,
        Self::Suspend,
        Self::Retry,
        Self::Terms,
        Self::Compaction,
        Self::Requeue,
        Self::Refused,
        Self::Kill,
        Self::LeaseLost,
        Self::Cut,
        Self::Relist,
        Self::Shared,
        Self::Strict,
        Self::IdentityExpired,
        Self::ExpiredWithRuns,
        Self::ExpiredUnderHold,
        Self::ExpiredInMove,
        Self::IdentityRenewed,
        Self::Revoked,
        Self::RevokedInMove,
        Self::Permitted,
        Self::Forbidden,
        Self::ForeignUid,
        Self::Hidden,
        Self::Regranted,
        Self::Waiting,
        Self::Restless,
        Self::Repaired,
    ];
}

/// How often each mark was met in one case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MarkCounts([u32; Mark::ALL.len()]);

impl Default for MarkCounts {
    fn default() -> Self {
        Self([0; Mark::ALL.len()])
    }
}

impl MarkCounts {
    pub(super) fn mark(&mut self, mark: Mark) {
        self.0[mark as usize] += 1;
    }

    pub(super) fn has(&self, mark: Mark) -> bool {
        self.0[mark as usize] > 0
    }
}

/// Over many cases.
#[derive(Clone, Debug)]
pub(super) struct Table {
    n_cases: u64,
    n_commits: u64,
    n_with: [u64; Mark::ALL.len()],
    changes: BTreeSet<PhaseChange>,
}

impl Default for Table {
    fn default() -> Self {
        Self { n_cases: 0, n_commits: 0, n_with: [0; Mark::ALL.len()], changes: BTreeSet::new() }
    }
}

impl Table {
    pub(super) fn add(&mut self, reach: &MarkCounts, store: &Store) {
        self.n_cases += 1;
        self.n_commits += store.commits.len() as u64;
        self.changes.extend(&store.changes);
        for mark in Mark::ALL {
            self.n_with[mark as usize] += u64::from(reach.has(mark));
        }
    }

    /// Whether some case has a change of this name.
    pub(super) fn has_change(&self, name: &str) -> bool {
        self.changes.iter().any(|change| change.to_string() == name)
    }

    /// Whether some case contains this.
    pub(super) fn has(&self, mark: Mark) -> bool {
        self.n_with[mark as usize] > 0
    }

    pub(super) fn percent(&self, mark: Mark) -> u64 {
        self.n_with[mark as usize] * 100 / self.n_cases.max(1)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cases, {} commits; with", self.n_cases, self.n_commits)?;
        for mark in Mark::ALL {
            write!(f, "\n{:>4} %  {mark:?}", self.percent(mark))?;
        }
        let changes: Vec<String> = self.changes.iter().map(ToString::to_string).collect();
        write!(f, "\nchanges of phases: {}", changes.join(", "))
    }
}
