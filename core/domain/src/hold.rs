//! Room on a node that is kept for someone: what a preemption claims until its victims have left, what a gang gathers as it
//! becomes free, a slot of a reservation, or where a running unit moves to.

use std::sync::Arc;

use crate::{
    allocation::{self, Allocation, DeviceSet, GivenZones},
    demand::{Demand, Pool},
    queue_spec::Band,
    running_units::{Phase, RunningUnit},
};
use godel_base::ids::{HoldId, NodeId, ReplicaId, Revision, RunningUnitId, UnitId};

/// What a movement's hold counts for in the queue of its unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoverShare {
    /// Replicas without a running unit that count as if they ran.
    pub n_counted: u32,
    /// Replicas of which the old incarnation counts still, and leaves: what it takes stays taken.
    pub n_returning: u32,
}

/// What is bound of an ordinal, as far as it matters for a replica that moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoundState {
    /// The current incarnation.
    pub incarnation: u32,
    /// Life of it.
    pub phase: Phase,
    /// It is told to leave.
    pub is_leaving: bool,
}

impl BoundState {
    /// Returns what a row says.
    pub fn of(row: &RunningUnit) -> Self {
        Self { incarnation: row.incarnation, phase: row.phase, is_leaving: row.eviction.is_some() }
    }
}

/// Units that a hold remembers from which it was taken over.
pub const N_TAKEN_FROM_MAX: usize = 16;

/// Room on one node for running units of one task group. It turns into their binding once those that back it have left,
/// or goes. One with a turn takes what is free of its room, and more as it becomes free. A slot of a reservation stays when
/// it is taken, and is held again afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// Never reused.
    pub id: HoldId,
    /// Where.
    pub node: NodeId,
    /// For whom; 0: for those that own the reservation.
    pub unit: UnitId,
    /// Revision of the unit's record that it rests on: it goes when the unit changes.
    pub spec_revision: Revision,
    /// Index of the task group.
    pub group: u16,
    /// What each of them takes.
    pub demand: Arc<Demand>,
    /// Pool that pays.
    pub pool: Pool,
    /// Which; ascending, not empty. Of a slot its number.
    pub ordinals: Vec<u32>,
    /// Empty: all 0.
    pub incarnations: Vec<u32>,
    /// Devices of each. Empty: no devices.
    pub devices: Vec<DeviceSet>,
    /// Zones of each. Empty: no zones.
    pub zones: Vec<GivenZones>,
    /// Running units of the same node that have to leave first; they take the room until then.
    pub victims: Vec<RunningUnitId>,
    /// A queue of the unit was at a maximum when it was made: what its victims take there counts for it until they have left.
    /// All such holds of a unit count together, turn into a binding together, and go together.
    pub at_maximum: bool,
    /// Victims on other nodes that have to leave first, for the sake of that maximum.
    pub queue_victims: Vec<RunningUnitId>,
    /// It goes if it has not turned into a binding by then, Unix milliseconds. Of a slot 0: its reservation says.
    pub expires_ms: i64,
    /// Path of the queue that pays; `None`: `default`.
    pub queue: Option<Arc<str>>,
    /// What the binder had read when it judged who has to leave.
    pub judged: Revision,
    /// Priority of the unit when it was made: one of higher rank may take it over. `None`: an older binder made it, or it is
    /// a slot, and nobody may.
    pub priority: Option<i32>,
    /// Units from which it was taken over, the newest last, at most [`N_TAKEN_FROM_MAX`]: none of them takes it back.
    pub taken_from: Vec<UnitId>,
    /// Of a gang's hold, which has no victims.
    pub turn: Option<GangTurn>,
    /// Of a reservation, which has neither victims nor a turn.
    pub slot: Option<Slot>,
    /// Of a movement, which has neither victims, nor a turn, nor a slot.
    pub movement: Option<MovementTarget>,
}

/// Where one running unit moves to: a scheduler places its successor there. It goes once that is bound, wherever that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovementTarget {
    /// Name of the movement.
    pub movement: Arc<str>,
    /// Who leaves. The hold is for the next incarnation of the same replica, or for another ordinal that runs before this one
    /// leaves.
    pub from: RunningUnitId,
}

impl Default for MovementTarget {
    fn default() -> Self {
        Self { movement: Arc::from(""), from: RunningUnitId::new(UnitId(0), 0, 0) }
    }
}

/// A slot of a reservation: room for one running unit of whoever owns it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Name.
    pub reservation: Arc<str>,
    /// Who took it last: as long as this one is there the slot takes only what this one leaves of it.
    pub occupant: Option<RunningUnitId>,
}

/// A unit's turn: until its holds end no gang of its pool that may want the same nodes gathers room, and no other unit on its node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GangTurn {
    /// When it began, Unix milliseconds.
    pub since_ms: i64,
    /// Priority of the gang then.
    pub priority: i32,
    /// Of the gang; `None`: it may want any node.
    pub sub_cluster: Option<Arc<str>>,
}

/// A unit that asks for room, for as much as a gang's hold wants to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Borrower {
    /// Higher wins.
    pub priority: i32,
    /// Pool that pays for it.
    pub pool: Pool,
    /// It ends once it was active for so long, milliseconds; 0: who knows.
    pub active_deadline_ms: u64,
    /// It may have to leave for units of higher rank, once it has run so long, milliseconds.
    pub leaves_after_ms: Option<u64>,
    /// Path of its queue where some queue guarantees something, so that ranks differ between queues.
    pub queue: Option<Arc<str>>,
    /// Path of its queue; `None`: that of the gang.
    pub home: Option<Arc<str>>,
    /// Unix milliseconds.
    pub now_ms: i64,
}

impl Hold {
    /// Returns what is held for the running unit at `idx` of the columns.
    pub fn allocation(&self, idx: usize) -> Allocation {
        allocation::at(&self.devices, &self.zones, idx)
    }

    /// Whether a unit may take room that is gathered: one that comes before the gang in the order of queues, as it is of a higher band, or of higher
    /// priority in the same queue; one that the gang may have leave again, as its priority is lower; and one that its active deadline ends in time. In time is before the last tenth of the turn:
    /// what is told to leave takes a while to do so. Room with victims is for nobody else; best-effort running units need
    /// not ask for what a guaranteed gang gathers, as it is not kept from them.
    pub fn admits(&self, borrower: &Borrower) -> bool {
        let Some(turn) = self.turn.as_ref().filter(|_| borrower.pool == self.pool) else { return false };
        let own = self.queue.as_deref().unwrap_or("default");
        let is_elsewhere = borrower.home.as_deref().is_some_and(|home| home != own);
        let band = |priority: i32| Band::of(self.pool, priority);
        // It is the turn of the gang's queue, and priorities say nothing between the queues of one band.
        if borrower.priority > turn.priority
            && (!is_elsewhere || band(borrower.priority) < band(turn.priority))
        {
            return true;
        }
        let last_ms = self.expires_ms.saturating_sub(self.expires_ms.saturating_sub(turn.since_ms) / 10);
        let is_in_time = |lasts_ms: u64| {
            borrower.now_ms.saturating_add(i64::try_from(lasts_ms).unwrap_or(i64::MAX)) <= last_ms
        };
        // Of two queues one may be owed what the other borrows: then the priority alone does not say who leaves.
        let is_told_apart = borrower.queue.as_deref().is_some_and(|queue| queue != own);
        if borrower.priority < turn.priority
            && !is_told_apart
            && borrower.leaves_after_ms.is_some_and(is_in_time)
        {
            return true;
        }
        borrower.active_deadline_ms > 0 && is_in_time(borrower.active_deadline_ms)
    }

    /// Whether it is a preemption's: room that victims leave, neither gathered, nor a slot, nor the target of a move.
    pub fn is_claim(&self) -> bool {
        self.turn.is_none() && self.slot.is_none() && self.movement.is_none()
    }

    /// Whether all of it counts in the queue of its unit for as long as it is there. Whoever takes a slot counts in its own queue,
    /// and of a replica that moves [`Self::mover_share`] says when it counts.
    pub fn counts_in_queue(&self) -> bool {
        self.slot.is_none() && self.movement.is_none()
    }

    /// Returns what replicas that move to it count for in the queue of their unit, beside what runs of the unit; `row` says what is
    /// bound of an ordinal. None of those that are past: a binding has taken the place of the hold.
    pub fn mover_share(&self, row: impl Fn(u32) -> BoundState) -> MoverShare {
        let mut share = MoverShare::default();
        if self.movement.is_none() {
            return share;
        }
        for ReplicaId { ordinal, incarnation } in self.replicas() {
            let bound = row(ordinal);
            let is_past = bound.incarnation > incarnation
                || (bound.incarnation == incarnation && bound.phase != Phase::Pending);
            if is_past {
                continue;
            }
            if !bound.phase.is_live() {
                share.n_counted += 1;
            } else if bound.is_leaving {
                share.n_returning += 1;
            }
        }
        share
    }

    /// Returns the ordinal that is to run before the one leaves that it replaces, if it is held for such a one.
    pub fn surge_ordinal(&self) -> Option<u32> {
        let target = self.movement.as_ref()?;
        self.ordinals.first().copied().filter(|ordinal| *ordinal != target.from.replica.ordinal)
    }

    /// All that have to leave first.
    pub fn all_victims(&self) -> impl Iterator<Item = &RunningUnitId> {
        self.victims.iter().chain(&self.queue_victims)
    }

    /// Returns the replicas for which the room is held.
    pub fn replicas(&self) -> impl Iterator<Item = ReplicaId> {
        ReplicaId::of_columns(&self.ordinals, &self.incarnations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn() -> Hold {
        let turn = Some(GangTurn { since_ms: 1_000, priority: 5, sub_cluster: None });
        Hold { turn, expires_ms: 11_000, ..Hold::default() }
    }

    fn borrower(priority: i32, now_ms: i64) -> Borrower {
        Borrower { priority, now_ms, pool: Pool::Guaranteed, ..Borrower::default() }
    }

    #[test]
    fn a_mover_counts_once_from_its_end_to_its_next_binding() {
        let target = |ordinal: u32, incarnation: u32| {
            let from = RunningUnitId::new(UnitId(1), 4, 2);
            let movement = Some(MovementTarget { movement: Arc::from("m"), from });
            Hold { movement, ordinals: vec![ordinal], incarnations: vec![incarnation], ..Hold::default() }
        };
        let cases = [
            (2, Phase::Running, false, (0, 0)),
            (2, Phase::Running, true, (0, 1)),
            (2, Phase::Stopped, true, (1, 0)),
            (3, Phase::Pending, false, (1, 0)),
            (3, Phase::Starting, false, (0, 0)),
            (3, Phase::Stopped, true, (0, 0)),
            (4, Phase::Pending, false, (0, 0)),
        ];
        for (incarnation, phase, is_leaving, (n_counted, n_returning)) in cases {
            let bound = BoundState { incarnation, phase, is_leaving };
            let share = target(4, 3).mover_share(|_| bound);
            assert_eq!(share, MoverShare { n_counted, n_returning }, "{bound:?}");
        }
        let new = target(9, 0).mover_share(|_| BoundState::default());
        assert_eq!(new, MoverShare { n_counted: 1, n_returning: 0 }, "a replacement that starts first");
        assert_eq!(turn().mover_share(|_| BoundState::default()), MoverShare::default());
    }

    #[test]
    fn a_turn_admits_higher_priority_and_what_ends_in_time() {
        let hold = turn();
        let cases: [(i32, u64, i64, bool); 8] = [
            (6, 0, 10_000, true),
            (5, 0, 1_000, false),
            (0, 0, 1_000, false),
            (0, 9_000, 1_000, true),
            (0, 9_001, 1_000, false),
            (0, 1_000, 9_000, true),
            (0, 1_000, 9_001, false),
            (0, u64::MAX, 1_000, false),
        ];
        for (priority, active_deadline_ms, now_ms, expected) in cases {
            let borrower = Borrower { active_deadline_ms, ..borrower(priority, now_ms) };
            assert_eq!(hold.admits(&borrower), expected, "{borrower:?}");
            assert!(!Hold { turn: None, ..hold.clone() }.admits(&borrower));
            assert!(!hold.admits(&Borrower { pool: Pool::BestEffort, ..borrower }));
        }
    }

    #[test]
    fn a_turn_admits_higher_priority_of_the_same_queue_and_higher_bands() {
        let hold = Hold { queue: Some(Arc::from("prod")), ..turn() };
        for (priority, home, expected) in [
            (6, None, true),
            (6, Some("prod"), true),
            (6, Some("other"), false),
            (5, Some("prod"), false),
            (1_000_000, Some("other"), true),
        ] {
            let borrower = Borrower { home: home.map(Arc::from), ..borrower(priority, 1_000) };
            assert_eq!(hold.admits(&borrower), expected, "{borrower:?}");
        }
    }

    #[test]
    fn a_turn_admits_whom_the_gang_may_have_leave_again() {
        let hold = Hold { queue: Some(Arc::from("prod")), ..turn() };
        let cases: [(i32, Option<u64>, Option<&str>, bool); 7] = [
            (4, Some(0), None, true),
            (5, Some(0), None, false),
            (4, None, None, false),
            (4, Some(9_000), None, true),
            (4, Some(9_001), None, false),
            (4, Some(0), Some("prod"), true),
            (4, Some(0), Some("other"), false),
        ];
        for (priority, leaves_after_ms, queue, expected) in cases {
            let queue = queue.map(Arc::from);
            let borrower = Borrower { leaves_after_ms, queue, ..borrower(priority, 1_000) };
            assert_eq!(hold.admits(&borrower), expected, "{borrower:?}");
        }
    }
}
