//! The movement driver: what a movement does next, from its record and from where its running units are now.
//!
//! The driver has no input or output. Each step looks at the running units of a movement, takes note of what has become of its moves,
//! and says which ones the binder is to be asked for. Whoever drives writes the movement down before the binder is asked: a
//! driver that begins with that record after a kill -9 asks again, which the binder answers as it did the first time.
//!
//! ```text
//! Waiting ─asked, held and evicted─▶ Leaving ─▶ Pending ─▶ Starting ─▶ Moved | Mismatched
//!    │  ▲ later                         └──────────┴───────────┴─────▶ TimedOut
//!    ├──┘
//!    └─────────────────────────────────────────────────────────────▶ Refused | Aborted
//! ```

use godel_base::ids::{NodeId, ReplicaId, Revision, RunningUnitId, UnitId};
use godel_domain::{
    decision::RejectionReason,
    running_units::{EvictionReason, Phase},
};

use self::found_replica::{FoundReplica, predecessor, successor};
use crate::{
    eligibility::has_failed_too_often,
    kept::KeptReason,
    movement::{MovePhase, MovementMove, MovementPhase, MovementRecord},
};

mod found_replica;
mod put_off;
#[cfg(test)]
mod tests;

/// Moves that may fail in any movement before the ratio of failures counts: two of two say little.
pub const N_FAILED_SPARED: u64 = 2;

/// What bounds the execution of movements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverTerms {
    /// A move that takes longer than this has failed, milliseconds.
    pub move_timeout_ms: u64,
    /// A movement that takes longer than this makes no further move, milliseconds.
    pub movement_timeout_ms: u64,
    /// Shortest and longest time until the binder is asked again, milliseconds.
    pub retry_ms: (u64, u64),
    /// A movement stops when more of its ended moves than this have failed, percent.
    pub failed_max_percent: u32,
    /// A plan of which nothing has begun is made anew when it is older than this, milliseconds.
    pub plan_age_max_ms: u64,
    /// How often a movement is planned anew.
    pub n_replans_max: u32,
}

/// A replica as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaView {
    /// Its incarnation.
    pub incarnation: u32,
    /// Its phase.
    pub phase: Phase,
    /// Where it is, or was last.
    pub node: NodeId,
    /// Why it leaves, if it does.
    pub eviction: Option<EvictionReason>,
}

/// Where running units are.
pub trait MovementWorld {
    /// Returns a replica; `None`: its unit is gone, or does not want it any more.
    fn replica(&self, unit: UnitId, ordinal: u32) -> Option<ReplicaView>;
    /// Returns the ordinal for which the target of a move is held, or was for a replacement that has yet to run.
    fn held_ordinal(&self, movement: &str, from: RunningUnitId) -> Option<u32>;
    /// Whether a movement had this incarnation of a replica leave.
    fn was_moved(&self, movement: &str, from: RunningUnitId) -> bool;
    /// Returns the name of a node.
    fn node_name(&self, node: NodeId) -> String;
    /// Whether a running unit may leave for a move now, as a drain would take it, while these replicas of its unit are missing or about to be.
    ///
    /// # Errors
    /// Why its unit cannot spare it yet, in words.
    fn may_leave(&self, _running: RunningUnitId, _missing: &[u32]) -> Result<(), String> {
        Ok(())
    }
    /// Returns why a running unit is not moved any more, as its unit says now: it may have been changed since the plan was made.
    fn keeps(&self, _running: RunningUnitId) -> Option<KeptReason> {
        None
    }
}

/// What the binder says to a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveReply {
    /// The target is held, and the running unit leaves.
    Moved,
    /// The target is held for this ordinal, and the running unit stays until that one runs.
    Surges(u32),
    /// Not now; it is to be asked again.
    Later(String),
    /// An earlier request for the same move is being carried out; it is to be asked again what became of it.
    UnderWay(String),
    /// The target does not take it any more: the rest is to be planned anew.
    TargetTaken(String),
    /// It is not there any more, or may not be moved.
    Refused(String),
}

impl MoveReply {
    /// Returns what a refusal of the binder means to a move: whether the move itself is void, or another target may do.
    pub fn refused(reason: RejectionReason, later: bool, why: String) -> Self {
        match reason {
            RejectionReason::AlreadyHeld if later => Self::UnderWay(why),
            _ if later => Self::Later(why),
            RejectionReason::NotThere
            | RejectionReason::NotMovable
            | RejectionReason::UnitChanged
            | RejectionReason::AlreadyBound
            | RejectionReason::Invalid
            | RejectionReason::DisruptionBudget
            | RejectionReason::Stale => Self::Refused(why),
            _ => Self::TargetTaken(why),
        }
    }
}

/// What is to be done after a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverStep {
    /// The movement is another one than before: it is to be written down first.
    pub has_changed: bool,
    /// Moves that the binder is to be asked for in one request, by position.
    pub asked: Vec<usize>,
    /// The rest is to be planned anew.
    pub replans: bool,
    /// When something is due if nothing happens before, Unix milliseconds.
    pub next_ms: Option<i64>,
}

/// What a replica's move has soft, beside its record.
#[derive(Clone, Copy, Debug, Default)]
struct Asking {
    is_in_flight: bool,
    /// The binder may have done what it was asked for, and was not heard.
    is_unheard: bool,
    /// The replica that is to replace the one that moves was wanted, or room was held for it.
    had_surge: bool,
    retry_ms: i64,
    n_later: u32,
}

/// Drives one movement.
#[derive(Clone, Debug)]
pub struct MovementDriver {
    movement: MovementRecord,
    asking: Vec<Asking>,
    planned_ms: i64,
    /// The binder has answered for this plan.
    is_answered: bool,
    is_target_taken: bool,
    awaits_plan: bool,
    /// Units of which a move began, or may have, since they were last taken, one entry for each move.
    begun: Vec<UnitId>,
}

fn span(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

impl MovementDriver {
    /// Drives a movement that was just created, or goes on with one that is recorded.
    pub fn new(movement: MovementRecord) -> Self {
        // What is recorded was there before.
        let asking = |one: &MovementMove| Asking {
            is_unheard: one.n_tries > 0,
            had_surge: one.surge_ordinal.is_some(),
            ..Asking::default()
        };
        let asking = movement.moves.iter().map(asking).collect();
        let planned_ms = movement.created_ms;
        Self {
            movement,
            asking,
            planned_ms,
            is_answered: false,
            is_target_taken: false,
            awaits_plan: false,
            begun: Vec::new(),
        }
    }

    /// Returns the movement as it is now.
    pub fn movement(&self) -> &MovementRecord {
        &self.movement
    }

    /// Returns the units of which moves began, or may have begun, since the last call, one entry for each move.
    pub fn take_begun(&mut self) -> Vec<UnitId> {
        std::mem::take(&mut self.begun)
    }

    /// Returns how many running units have left and do not run again yet.
    pub fn n_under_way(&self) -> usize {
        self.movement.moves.iter().filter(|one| one.phase.is_under_way()).count()
    }

    /// Returns how many moves have not begun.
    pub fn n_waiting(&self) -> usize {
        self.movement.moves.iter().filter(|one| one.phase == MovePhase::Waiting).count()
    }

    /// Takes note of what has happened, and says what is to be done. Repeated without anything new it changes nothing.
    pub fn step(&mut self, world: &impl MovementWorld, terms: &DriverTerms, now_ms: i64) -> DriverStep {
        let mut step = DriverStep::default();
        if self.movement.is_ended() {
            return step;
        }
        for at in 0..self.movement.moves.len() {
            step.has_changed |= self.follow(at, world, terms, now_ms);
        }
        step.has_changed |= self.judge(terms, now_ms);
        if !self.awaits_plan && self.movement.ending.is_none() {
            if self.is_target_taken && self.movement.n_replans >= terms.n_replans_max {
                // What cannot move does not keep the others from moving: the binder judges each of them.
                self.is_target_taken = false;
            }
            if self.wants_plan(terms, now_ms) {
                self.awaits_plan = true;
            } else {
                self.ask(world, terms, now_ms, &mut step);
            }
        }
        step.replans = self.awaits_plan;
        if step.replans {
            // What has not begun is given up for the new plan, which keeps the rates.
            (0..self.movement.moves.len()).for_each(|at| self.note_unheard(at));
        }
        step.has_changed |= self.end_if_done(now_ms);
        step.next_ms = self.next_ms(terms);
        step
    }

    /// Follows one move that the binder was asked for.
    fn follow(&mut self, at: usize, world: &impl MovementWorld, terms: &DriverTerms, now_ms: i64) -> bool {
        let one = &self.movement.moves[at];
        let was_asked = one.phase == MovePhase::Waiting && one.n_tries > 0;
        if !was_asked && !one.phase.is_under_way() {
            return self.give_up_unspared(at, terms, now_ms);
        }
        let replica = match one.surge_ordinal {
            Some(ordinal) => world.replica(one.id.unit, ordinal),
            None => world.replica(one.id.unit, one.id.replica.ordinal),
        };
        let held = world.held_ordinal(&self.movement.name, one.id);
        let held = held.filter(|ordinal| *ordinal != one.id.replica.ordinal);
        if let (Some(ordinal), None) = (held, one.surge_ordinal) {
            self.begin_surge(at, ordinal, now_ms);
            self.asking[at].had_surge = true;
            return true;
        }
        let has_surge = one.surge_ordinal.is_some() && (replica.is_some() || held.is_some());
        self.asking[at].had_surge |= has_surge;
        let found = match (replica, one.surge_ordinal) {
            // An ordinal that was given up never comes back.
            (None, Some(_)) if self.asking[at].had_surge && !has_surge => {
                FoundReplica::Gone("its replacement was given up".to_owned())
            }
            // The watch may be behind the answer of the binder.
            (None, Some(_)) => FoundReplica::Phase(MovePhase::Pending, None),
            (None, None) => FoundReplica::Gone("its unit is gone, or does not want it any more".to_owned()),
            (Some(replica), Some(_)) => successor(one, replica),
            (Some(replica), None) if replica.incarnation > one.id.replica.incarnation => {
                let is_ours = one.phase != MovePhase::Waiting || world.was_moved(&self.movement.name, one.id);
                match is_ours {
                    true => successor(one, replica),
                    false => {
                        FoundReplica::Gone("somebody else had it leave before its move began".to_owned())
                    }
                }
            }
            (Some(replica), None) => {
                predecessor(one, replica, || world.was_moved(&self.movement.name, one.id))
            }
        };
        let due_ms = one.changed_ms.saturating_add(span(terms.move_timeout_ms));
        let (next, actual) = match found {
            FoundReplica::Same => (one.phase, one.actual.clone()),
            FoundReplica::Phase(phase, node) => (phase, node.map(|node| (node, world.node_name(node)))),
            // Another ordinal may have replaced it meanwhile, which the answer says.
            FoundReplica::Gone(_) if self.asking[at].is_in_flight => return false,
            FoundReplica::Gone(why) => return self.refuse(at, why, now_ms),
        };
        if next == one.phase && actual == one.actual {
            if now_ms < due_ms || self.asking[at].is_in_flight {
                return false;
            }
            if next == MovePhase::Waiting {
                let why = format!("the binder did not allow it in time: {}", one.detail);
                return self.refuse(at, why, now_ms);
            }
            return self.set(at, MovePhase::TimedOut, now_ms);
        }
        if one.phase == MovePhase::Waiting {
            self.begin(at, now_ms);
        }
        self.movement.moves[at].actual = actual;
        self.set(at, next, now_ms);
        true
    }

    fn set(&mut self, at: usize, phase: MovePhase, now_ms: i64) -> bool {
        let one = &mut self.movement.moves[at];
        let has_changed = one.phase != phase;
        if has_changed {
            (one.phase, one.changed_ms) = (phase, now_ms);
        }
        has_changed
    }

    fn refuse(&mut self, at: usize, why: String, now_ms: i64) -> bool {
        self.movement.moves[at].detail = why;
        self.note_unheard(at);
        self.set(at, MovePhase::Refused, now_ms)
    }

    /// A move that is given up counts for the rate of its unit if the binder may have made it.
    fn note_unheard(&mut self, at: usize) {
        let one = &self.movement.moves[at];
        if one.phase == MovePhase::Waiting && std::mem::take(&mut self.asking[at].is_unheard) {
            self.begun.push(one.id.unit);
        }
    }

    /// The running unit of a move leaves.
    fn begin(&mut self, at: usize, now_ms: i64) {
        if self.movement.moves[at].phase == MovePhase::Waiting {
            self.begun.push(self.movement.moves[at].id.unit);
            self.movement.moves[at].detail.clear();
            self.asking[at] = Asking::default();
        }
        self.set(at, MovePhase::Leaving, now_ms);
    }

    /// Another ordinal is to replace the running unit of a move. If the move is a detour, its second leg is that of the replacement.
    fn begin_surge(&mut self, at: usize, ordinal: u32, now_ms: i64) {
        let id = self.movement.moves[at].id;
        let successor = ReplicaId::new(id.replica.ordinal, id.replica.incarnation.saturating_add(1));
        for one in &mut self.movement.moves {
            if one.phase == MovePhase::Waiting
                && one.id == (RunningUnitId { unit: id.unit, replica: successor })
            {
                one.id = RunningUnitId::new(id.unit, ordinal, 0);
            }
        }
        self.movement.moves[at].surge_ordinal = Some(ordinal);
        self.begin(at, now_ms);
    }

    /// Ends what has failed too often, or takes too long.
    fn judge(&mut self, terms: &DriverTerms, now_ms: i64) -> bool {
        if self.movement.ending.is_some() {
            return self.give_up_waiting(now_ms);
        }
        let (n_failed, n_ended) = self.movement.n_failed();
        if n_failed > N_FAILED_SPARED && has_failed_too_often(n_failed, n_ended, terms.failed_max_percent) {
            let percent = terms.failed_max_percent;
            let message =
                format!("{n_failed} of {n_ended} moves failed, more than the {percent} percent that may");
            self.end_early(MovementPhase::Stopped, message, now_ms);
            return true;
        }
        if now_ms.saturating_sub(self.movement.created_ms) >= span(terms.movement_timeout_ms) {
            let message = "it took longer than it may".to_owned();
            self.end_early(MovementPhase::Expired, message, now_ms);
            return true;
        }
        false
    }

    /// What has not begun is given up; what has runs to its end. The binder may have begun what it was asked for just now: that stays
    /// until it answers.
    fn end_early(&mut self, ending: MovementPhase, message: String, now_ms: i64) {
        self.movement.ending = Some(ending);
        self.movement.message = message;
        self.awaits_plan = false;
        self.give_up_waiting(now_ms);
    }

    fn give_up_waiting(&mut self, now_ms: i64) -> bool {
        let mut has_changed = false;
        for at in 0..self.movement.moves.len() {
            if self.movement.moves[at].phase == MovePhase::Waiting && !self.asking[at].is_in_flight {
                self.note_unheard(at);
                has_changed |= self.set(at, MovePhase::Aborted, now_ms);
            }
        }
        has_changed
    }

    /// Ends the movement at somebody's wish; true: it is another one than before.
    pub fn abort(&mut self, reason: &str, now_ms: i64) -> bool {
        if self.movement.is_ended() || self.movement.ending.is_some() {
            return false;
        }
        let message = if reason.is_empty() { "somebody ended it" } else { reason };
        self.end_early(MovementPhase::Aborted, message.to_owned(), now_ms);
        self.end_if_done(now_ms);
        true
    }

    fn end_if_done(&mut self, now_ms: i64) -> bool {
        let is_done = self.movement.moves.iter().all(|one| one.phase.is_ended());
        if !is_done || self.awaits_plan || self.is_target_taken && self.movement.ending.is_none() {
            return false;
        }
        self.movement.phase = self.movement.ending.unwrap_or(MovementPhase::Done);
        self.movement.ended_ms = now_ms;
        true
    }

    /// Whether the rest is to be planned anew: nothing has begun and the plan is old, or a target was taken.
    fn wants_plan(&self, terms: &DriverTerms, now_ms: i64) -> bool {
        if self.n_under_way() > 0 || self.asking.iter().any(|one| one.is_in_flight) {
            return false;
        }
        let is_untouched = self.movement.moves.iter().all(|one| one.phase == MovePhase::Waiting);
        let age_ms = now_ms.saturating_sub(self.planned_ms);
        let is_old = is_untouched
            && !self.is_answered
            && !self.movement.moves.is_empty()
            && age_ms > span(terms.plan_age_max_ms);
        let batch = self.movement.batch;
        let waits = |one: &MovementMove| one.phase == MovePhase::Waiting && one.batch == batch;
        let is_batch_over = !self.movement.moves.iter().any(waits);
        is_old || self.is_target_taken && is_batch_over
    }

    /// Chooses what the binder is asked for: what waits of the first batch that has not ended.
    fn ask(&mut self, world: &impl MovementWorld, terms: &DriverTerms, now_ms: i64, step: &mut DriverStep) {
        loop {
            let open = self.movement.moves.iter().filter(|one| !one.phase.is_ended());
            let Some(batch) = open.map(|one| one.batch).min() else { return };
            if batch != self.movement.batch {
                self.movement.batch = batch;
                step.has_changed = true;
                if self.is_target_taken {
                    // The rest of the plan counted on what was refused.
                    self.awaits_plan = true;
                    return;
                }
            }
            let mut has_refused = false;
            for at in 0..self.movement.moves.len() {
                let (one, asking) = (&self.movement.moves[at], self.asking[at]);
                let is_due = one.phase == MovePhase::Waiting && one.batch == batch;
                if !is_due || asking.is_in_flight || asking.retry_ms > now_ms {
                    continue;
                }
                if one.n_tries == 0 {
                    let now = world.replica(one.id.unit, one.id.replica.ordinal);
                    let stays = now.is_some_and(|now| {
                        now.incarnation == one.id.replica.incarnation
                            && now.phase.is_live()
                            && now.eviction.is_none()
                    });
                    if !stays {
                        let why = "it left its node before its move began".to_owned();
                        has_refused |= self.refuse(at, why, now_ms);
                        continue;
                    }
                    if let Some(kept) = world.keeps(one.id) {
                        has_refused |= self.refuse(at, kept.to_string(), now_ms);
                        continue;
                    }
                }
                if one.n_tries == 0 && asking.n_later == 0 {
                    self.movement.moves[at].changed_ms = now_ms;
                }
                if let Err(why) = world.may_leave(self.movement.moves[at].id, &self.missing(at)) {
                    step.has_changed |= self.put_off(at, why, terms, now_ms);
                    continue;
                }
                let one = &mut self.movement.moves[at];
                one.n_tries = one.n_tries.saturating_add(1);
                self.asking[at].is_in_flight = true;
                step.asked.push(at);
            }
            step.has_changed |= has_refused || !step.asked.is_empty();
            if !has_refused || !step.asked.is_empty() {
                return;
            }
        }
    }

    /// Takes note of what the binder says to moves that it was asked for.
    pub fn on_verdicts(
        &mut self,
        verdicts: impl IntoIterator<Item = (usize, MoveReply)>,
        terms: &DriverTerms,
        now_ms: i64,
    ) {
        for (at, verdict) in verdicts {
            if at >= self.asking.len() || !std::mem::take(&mut self.asking[at].is_in_flight) {
                continue;
            }
            self.is_answered = true;
            if self.movement.moves[at].phase != MovePhase::Waiting {
                continue;
            }
            match verdict {
                MoveReply::Moved => self.begin(at, now_ms),
                MoveReply::Surges(ordinal) => self.begin_surge(at, ordinal, now_ms),
                MoveReply::Later(why) => {
                    self.asking[at].is_unheard = false;
                    self.movement.moves[at].detail = why;
                    self.retry_later(at, terms, now_ms);
                }
                MoveReply::UnderWay(why) => {
                    self.asking[at].is_unheard = true;
                    self.movement.moves[at].detail = why;
                    self.retry_later(at, terms, now_ms);
                }
                MoveReply::TargetTaken(why) => {
                    self.asking[at].is_unheard = false;
                    self.is_target_taken = true;
                    self.refuse(at, why, now_ms);
                }
                MoveReply::Refused(why) => {
                    self.refuse(at, why, now_ms);
                }
            }
        }
    }

    /// The binder did not answer: it may have done what it was asked for.
    pub fn on_no_answer(&mut self, asked: &[usize], terms: &DriverTerms, now_ms: i64) {
        for &at in asked {
            if at < self.asking.len() && std::mem::take(&mut self.asking[at].is_in_flight) {
                self.asking[at].is_unheard = true;
                self.retry_later(at, terms, now_ms);
            }
        }
    }

    /// Puts new moves in the place of those that have not begun. Batches of `moves` are numbered from 0; without moves the
    /// movement ends when what has begun has ended.
    pub fn replace_plan(
        &mut self,
        revision: Revision,
        finding: &str,
        moves: Vec<MovementMove>,
        n_batches: u32,
        now_ms: i64,
    ) {
        if !self.awaits_plan || self.movement.ending.is_some() {
            return;
        }
        (self.awaits_plan, self.is_target_taken, self.is_answered) = (false, false, false);
        self.planned_ms = now_ms;
        let movement = &mut self.movement;
        movement.moves.retain(|one| one.phase != MovePhase::Waiting);
        let offset = movement.moves.iter().map(|one| one.batch + 1).max().unwrap_or(0);
        movement.n_replans = movement.n_replans.saturating_add(1);
        movement.plan_revision = revision;
        movement.finding = finding.to_owned();
        movement.n_batches = offset.saturating_add(n_batches);
        movement.batch = movement.batch.max(offset);
        if moves.is_empty() {
            "when it was planned anew, nothing was left to move".clone_into(&mut movement.message);
        }
        movement.moves.extend(
            moves.into_iter().map(|one| MovementMove { batch: one.batch.saturating_add(offset), ..one }),
        );
        self.asking = vec![Asking::default(); self.movement.moves.len()];
        self.end_if_done(now_ms);
    }

    fn next_ms(&self, terms: &DriverTerms) -> Option<i64> {
        if self.movement.is_ended() {
            return None;
        }
        let whole = self.movement.created_ms.saturating_add(span(terms.movement_timeout_ms));
        let of_moves = self.movement.moves.iter().zip(&self.asking).filter_map(|(one, asking)| {
            let due = one.changed_ms.saturating_add(span(terms.move_timeout_ms));
            match one.phase {
                MovePhase::Waiting if asking.is_in_flight => None,
                MovePhase::Waiting if one.n_tries == 0 && asking.n_later == 0 => None,
                MovePhase::Waiting => Some(asking.retry_ms.min(due)),
                MovePhase::Leaving | MovePhase::Pending | MovePhase::Starting => Some(due),
                MovePhase::Moved
                | MovePhase::Mismatched
                | MovePhase::Refused
                | MovePhase::Aborted
                | MovePhase::TimedOut => None,
            }
        });
        of_moves.chain([whole]).min()
    }
}
