//! What keeps a running unit where it is, whatever a policy wants: everything that the binder refuses for the replica's sake, whoever the
//! target is, and what its unit says.

use std::{collections::BTreeMap, fmt};

use crate::{
    config::Protection,
    layout::{Layout, RunIdx},
};

/// Why a running unit stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeptReason {
    /// Its unit says so.
    NotMovable,
    /// It may not be preempted, and its unit does not say that it may be moved all the same.
    NotPreemptible,
    /// It was bound a short while ago, and its unit does not say that it may be moved all the same.
    MinRun,
    /// Its unit would lack replicas: a drain would not take one now either.
    NotSpared,
    /// The rest of its unit would leave as well.
    BreaksUnit,
    /// It would fail instead of coming back.
    FailsOnEviction,
    /// Units of its class are never moved.
    Class,
    /// It is of the best-effort pool.
    BestEffort,
    /// Its node keeps volumes for it.
    Volumes,
    /// It is in a slot of a reservation.
    Slot,
    /// It has ports, zones or places of devices, which plans do not choose.
    Places,
    /// It does not run yet, leaves already, or is not wanted any more.
    Unsettled,
    /// It is being replaced, or has yet to replace another one.
    Replaced,
    /// Its replacement would start first, and its queue has no room for one replica more.
    QueueFull,
    /// Its room is promised to a unit that preempts it.
    Victim,
    /// Records that a move rests on cannot be read.
    Unreadable,
    /// The binder refused to move it, and nothing has changed since.
    Refused,
    /// The configuration protects it.
    Protected,
    /// It is no running unit: its room is held.
    Held,
}

impl fmt::Display for KeptReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotMovable => "the unit says `movable: false`",
            Self::NotPreemptible => {
                "it may not be preempted (`preemptible`, its priority class, or its band), and the unit does not say `movable: true`"
            }
            Self::MinRun => "it is within `min_run`, and the unit does not say `movable: true`",
            Self::NotSpared => "the unit cannot spare a replica now, as with a drain",
            Self::BreaksUnit => "the rest of the unit would leave as well (`on_below_min`)",
            Self::FailsOnEviction => "it would fail instead of coming back (`on_eviction`)",
            Self::Class => "units of class daemon and yarn are never moved",
            Self::BestEffort => "it is of the best-effort pool",
            Self::Volumes => "its node keeps volumes for it",
            Self::Slot => "it is in a slot of a reservation",
            Self::Places => "it has ports, zones or places of devices, which plans do not choose",
            Self::Unsettled => "it does not run yet, or leaves already",
            Self::Replaced => "it is being replaced, or has yet to replace another one",
            Self::QueueFull => {
                "its replacement would start first (`max_surge`), and its queue, one above it, or what its owner may take there, has no room for one replica more"
            }
            Self::Victim => "its room is promised to a unit that preempts it",
            Self::Unreadable => "records that a move rests on cannot be read",
            Self::Refused => "the binder refused to move it, and its unit has not changed since",
            Self::Protected => "the configuration protects it",
            Self::Held => "its room is held",
        })
    }
}

/// Returns what keeps a running unit where it is; `None`: it may be moved.
pub(crate) fn kept_reason(layout: &Layout<'_>, unit: RunIdx, is_protected: bool) -> Option<KeptReason> {
    let unspared = || (layout.owner_facts(unit).spare == 0).then_some(KeptReason::NotSpared);
    let own = layout.facts(unit).kept;
    let places = || layout.rooms().shape(layout.shape_of(unit)).is_fixed.then_some(KeptReason::Places);
    let protected = || is_protected.then_some(KeptReason::Protected);
    own.or_else(protected).or_else(places).or_else(unspared)
}

/// Counts the running units of a layout that stay where they are, of those that `is_in_scope` says are meant: the most frequent reason first.
pub(crate) fn count_kept(
    layout: &Layout<'_>,
    protection: &Protection,
    is_in_scope: &dyn Fn(RunIdx) -> bool,
) -> Vec<(KeptReason, u64)> {
    let protects: Vec<bool> = layout.snapshot().units.iter().map(|unit| protection.protects(unit)).collect();
    let mut counts: BTreeMap<KeptReason, u64> = BTreeMap::new();
    for unit in layout.running().filter(|unit| is_in_scope(*unit)) {
        match kept_reason(layout, unit, protects[layout.owner(unit).idx()]) {
            // What does not run yet, or leaves, is no matter of plans.
            None | Some(KeptReason::Held | KeptReason::Unsettled) => {}
            Some(reason) => *counts.entry(reason).or_default() += 1,
        }
    }
    let mut counts: Vec<(KeptReason, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|(reason, n)| (std::cmp::Reverse(*n), *reason));
    counts
}
