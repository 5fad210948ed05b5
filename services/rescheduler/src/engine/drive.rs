//! Movements at work: steps of the driver, records, and calls of the binder.

use std::sync::Arc;

use bytes::Bytes;
use godel_base::ids::UnitId;
use godel_core_rescheduler::{MoveReply, MovementMove, MovementPhase, MovementRecord};
use godel_domain::decision::RejectionReason;
use godel_kit::{
    status,
    txn::{Conditions, TXN_BYTES_MAX, TxnError},
};
use godel_proto::v1;
use godel_wire::{from_proto, to_proto};
use tonic::{Code, Status};

use super::{Abort, Counts, Driven, Engine, outside::BinderAnswer, plans::Job};
use crate::{record, snapshot::wall};

/// Time until a record is written again that the store has refused.
const REFUSED_MS: i64 = 1_000;
/// Time between looks at what may be forgotten.
const MAINTENANCE_MS: i64 = 10_000;
/// Operations of one transaction that forgets.
const N_FORGOTTEN: usize = 200;
/// Time between counts of the units that wait.
const OBSERVE_MS: i64 = 1_000;

impl Engine {
    /// Does what is due, as the leader.
    pub(super) async fn work(&mut self) {
        let now = self.now_ms();
        if now.saturating_sub(self.observed_ms) >= OBSERVE_MS {
            self.observed_ms = now;
            let n_waiting = self.picture.count_waiting();
            let at = self.now();
            self.manager.observe(n_waiting, at);
            self.observe_gangs();
            self.parts.metrics.pending.set(i64::try_from(n_waiting).unwrap_or(i64::MAX));
            let read = self.picture.read.unwrap_or_default().0;
            self.parts.metrics.revision.set(i64::try_from(read).unwrap_or(i64::MAX));
        }
        self.abort_movements().await;
        self.drive().await;
        self.look_at_a_gang();
        self.run_what_is_due();
        self.start_job();
        if now.saturating_sub(self.maintained_ms) >= MAINTENANCE_MS {
            self.maintained_ms = now;
            self.forget_old().await;
        }
    }

    /// Steps on with the movement that is being made, until nothing is to be done now.
    async fn drive(&mut self) {
        if !self.is_valid() {
            return;
        }
        let terms = self.parts.config.terms();
        let now = self.now_ms();
        let Some(term) = &mut self.term else { return };
        if term.driven.is_none() {
            let open = term.movements.values().find(|movement| !movement.is_ended()).cloned();
            term.driven = open.map(Driven::of_record);
        }
        let Some(driven) = &mut term.driven else { return };
        if now < term.write_again_ms {
            return;
        }
        self.picture.now_ms = now;
        let step = driven.driver.step(&self.picture, &terms, now);
        driven.next_ms = step.next_ms;
        let wants_plan = step.replans && !driven.is_replanned;
        if !self.record().await {
            if let Some(driven) = self.term.as_mut().and_then(|term| term.driven.as_mut()) {
                driven.driver.on_no_answer(&step.asked, &terms, now);
            }
            return;
        }
        self.after_record.drain(..).for_each(|answer| answer(None));
        if !step.asked.is_empty() {
            self.call_binder(step.asked);
        }
        if wants_plan {
            if let Some(driven) = self.term.as_mut().and_then(|term| term.driven.as_mut()) {
                driven.is_replanned = true;
            }
            self.jobs.push_front(Job::Replan);
        }
        self.end_movement();
    }

    /// Writes the record of the movement that is being made, if it is another one than before, and the rates of units that moved. False: it is
    /// not written.
    pub(super) async fn record(&mut self) -> bool {
        let now = self.now();
        let Some(term) = &mut self.term else { return false };
        let Some(driven) = &mut term.driven else { return true };
        for unit in driven.driver.take_begun() {
            self.manager.note_move(unit, now);
            term.rates.insert(unit);
        }
        if driven.recorded.as_ref() == Some(driven.driver.movement()) && term.rates.is_empty() {
            return true;
        }
        let movement = driven.driver.movement().clone();
        let mut ops: Vec<Bytes> = Vec::new();
        let units: Vec<UnitId> = term.rates.iter().copied().collect();
        for unit in &units {
            let times = self.manager.log().iter().filter(|(of, _)| of == unit).map(|(_, at)| at.0);
            ops.push(record::put_rate(*unit, &times.collect::<Vec<_>>()));
        }
        ops.push(record::put(&movement));
        let is_written = self.write(ops).await;
        let Some(term) = &mut self.term else { return false };
        if !is_written {
            term.write_again_ms = self.parts.clock.wall_ms().saturating_add(REFUSED_MS);
            return false;
        }
        for unit in &units {
            term.rates.remove(unit);
        }
        term.movements.insert(movement.number, movement.clone());
        if let Some(driven) = &mut term.driven {
            driven.recorded = Some(movement);
        }
        self.parts.metrics.records.inc();
        true
    }

    /// Writes operations, in as many transactions as their bytes need. False: not all of them are written.
    async fn write(&mut self, ops: Vec<Bytes>) -> bool {
        let mut batch = Vec::new();
        let mut n_bytes = 0;
        for op in ops {
            let len = op.len() + 4;
            if n_bytes + len > TXN_BYTES_MAX && !batch.is_empty() {
                if !self.commit(std::mem::take(&mut batch)).await {
                    return false;
                }
                n_bytes = 0;
            }
            n_bytes += len;
            batch.push(op);
        }
        batch.is_empty() || self.commit(batch).await
    }

    async fn commit(&mut self, ops: Vec<Bytes>) -> bool {
        let Some(pipeline) = self.grant.as_ref().map(|grant| grant.pipeline.clone()) else { return false };
        self.parts.crash.hit("rescheduler.before-commit");
        let answer = match pipeline.submit(ops, Conditions::default()).await {
            Ok(pending) => pending.await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(_) => {
                self.parts.crash.hit("rescheduler.after-commit");
                true
            }
            Err(TxnError::Refused(refusal)) => {
                self.parts.metrics.records_refused.inc();
                tracing::warn!(reason = ?refusal.reason, why = refusal.message, "a record is not written");
                false
            }
            Err(TxnError::LeaseLost | TxnError::Closed) => {
                self.step_down();
                false
            }
        }
    }

    /// Asks the binder for moves; the answer comes as an outcome.
    fn call_binder(&mut self, asked: Vec<usize>) {
        let Some(driven) = self.term.as_ref().and_then(|term| term.driven.as_ref()) else { return };
        let movement = driven.driver.movement();
        let expires_ms = self.now_ms().saturating_add(
            i64::try_from(self.parts.config.move_timeout.ms()).unwrap_or(i64::MAX).min(HOLD_MS_MAX),
        );
        let moves = asked.iter().filter_map(|at| movement.moves.get(*at)).map(requested).collect();
        let message = v1::MoveRunningUnitsRequest {
            movement: movement.name.clone(),
            moves,
            expires_ms,
            read_revision: movement.plan_revision.0,
            store_id: self.picture.store.0,
        };
        self.parts.metrics.asked.inc_by(u64::try_from(asked.len()).unwrap_or(u64::MAX));
        self.parts.crash.hit("rescheduler.before-move");
        let number = movement.number;
        self.ask_binder(BinderAnswer { number, asked, answer: Ok(Vec::new()) }, message);
    }

    /// The binder has answered, or has not.
    pub(super) fn on_binder(&mut self, BinderAnswer { number, asked, answer }: BinderAnswer) {
        self.parts.crash.hit("rescheduler.after-move");
        let terms = self.parts.config.terms();
        let now = self.now_ms();
        let Some(driven) = self.term.as_mut().and_then(|term| term.driven.as_mut()) else { return };
        if driven.driver.movement().number != number {
            return;
        }
        if let Ok(answers) = &answer {
            let refused = Arc::make_mut(&mut self.picture.refused);
            let (units, cluster) = (&self.picture.units, &self.picture.cluster);
            for (one, refusal) in asked.iter().zip(answers).filter_map(|(at, answer)| {
                let refusal = answer.refused.as_ref().filter(|refusal| !refusal.later)?;
                Some((driven.driver.movement().moves.get(*at)?, refusal.clone()))
            }) {
                let reason = from_proto::move_refusal(refusal).map(|refusal| refusal.reason);
                if let (Some(record), Ok(reason)) = (units.get(&one.id.unit), reason) {
                    let generation = cluster.free().generations().of(one.to.0);
                    refused.note(one.id, record, one.to.0, generation, reason, wall(now));
                }
            }
        }
        match answer {
            Ok(answers) => {
                let verdicts = asked.iter().copied().zip(answers.into_iter().map(verdict));
                driven.driver.on_verdicts(verdicts, &terms, now);
                // What was not answered is asked for again.
                driven.driver.on_no_answer(&asked, &terms, now);
            }
            Err(status) => {
                tracing::info!(code = ?status.code(), why = status.message(), "the binder did not answer");
                if matches!(status.code(), Code::InvalidArgument | Code::Unimplemented) {
                    let why = format!("the binder refuses the request: {}", status.message());
                    let verdicts = asked.iter().map(|at| (*at, MoveReply::Refused(why.clone())));
                    driven.driver.on_verdicts(verdicts.collect::<Vec<_>>(), &terms, now);
                } else {
                    driven.driver.on_no_answer(&asked, &terms, now);
                }
            }
        }
    }

    /// The movement that was made has ended, and its record says so.
    fn end_movement(&mut self) {
        let Some(term) = &mut self.term else { return };
        let Some(driven) = &term.driven else { return };
        let movement = driven.driver.movement();
        if !movement.is_ended() || driven.recorded.as_ref() != Some(movement) {
            return;
        }
        let movement = movement.clone();
        let counts = movement.counts();
        let Counts { moved, mismatched, failed } = &mut term.counts;
        *moved += u64::from(counts.moved);
        *mismatched += u64::from(counts.mismatched);
        *failed += u64::from(counts.failed);
        self.parts.metrics.moved.inc_by(u64::from(counts.moved));
        self.parts.metrics.mismatched.inc_by(u64::from(counts.mismatched));
        self.parts.metrics.failed.inc_by(u64::from(counts.failed));
        self.parts.metrics.movements.inc();
        term.driven = None;
        tracing::info!(
            movement = movement.name,
            phase = ?movement.phase,
            moved = counts.moved,
            mismatched = counts.mismatched,
            failed = counts.failed,
            "a movement has ended"
        );
    }

    /// Ends movements that somebody wants to end, and answers when that is recorded.
    async fn abort_movements(&mut self) {
        let aborts = self.term.as_mut().map(|term| std::mem::take(&mut term.aborts)).unwrap_or_default();
        for Abort { name, reason, reply } in aborts {
            let now = self.now_ms();
            let Some(term) = &mut self.term else { return };
            let driven = term.driven.as_mut().filter(|driven| driven.driver.movement().name == name);
            let answer = match driven {
                Some(driven) => {
                    driven.driver.abort(&reason, now);
                    if self.record().await {
                        let driven = self.term.as_ref().and_then(|term| term.driven.as_ref());
                        driven
                            .map(|driven| driven.driver.movement().clone())
                            .ok_or_else(|| self.not_leading())
                    } else {
                        Err(Status::unavailable("the end of the movement is not recorded yet"))
                    }
                }
                None => match term.movements.values().find(|movement| movement.name == name) {
                    Some(movement) if movement.phase == MovementPhase::Aborted => Ok(movement.clone()),
                    Some(movement) => Err(status::failed_precondition(
                        "MOVEMENT",
                        &name,
                        format!("movement `{name}` has ended already: ")
                            + &format!("{:?}", movement.phase).to_lowercase(),
                    )),
                    None => Err(super::show::unknown("movement", &name)),
                },
            };
            // Nobody may be left to hear it.
            let _ = reply.send(answer);
            self.end_movement();
        }
    }

    /// Forgets ended movements that are too many or too old, and moves that no rate looks at.
    async fn forget_old(&mut self) {
        let now = self.now();
        let now_ms = self.now_ms();
        let (n_max, ttl) = (self.parts.config.movements_max, self.parts.config.movements_ttl.ms());
        let Some(term) = &self.term else { return };
        let ttl = i64::try_from(ttl).unwrap_or(i64::MAX);
        let gone = recycled(term.movements.values(), n_max, now_ms.saturating_sub(ttl));
        let mut ops: Vec<Bytes> = gone
            .iter()
            .filter_map(|number| term.movements.get(number))
            .map(|movement| to_proto::delete_named(v1::Kind::Movement, &movement.name))
            .collect();
        let units = self.manager.forget_moves(now);
        ops.extend(units.iter().map(|unit| to_proto::delete(v1::Kind::MoveRate, unit.0)));
        if ops.is_empty() || !self.is_valid() {
            return;
        }
        let mut is_written = true;
        let mut ops = ops.into_iter().peekable();
        while is_written && ops.peek().is_some() {
            let batch: Vec<Bytes> = ops.by_ref().take(N_FORGOTTEN).collect();
            is_written = self.commit(batch).await;
        }
        if let Some(term) = self.term.as_mut().filter(|_| is_written) {
            for number in gone {
                term.movements.remove(&number);
            }
        }
    }
}

/// Longest time for which the binder holds the target of a move.
const HOLD_MS_MAX: i64 = godel_domain::requested_move::MOVE_HOLD_MS_MAX - 60_000;

fn requested(one: &MovementMove) -> v1::RequestedMove {
    v1::RequestedMove {
        unit_id: one.id.unit.0,
        ordinal: one.id.replica.ordinal,
        incarnation: one.id.replica.incarnation,
        to_node_id: one.to.0.0,
        device_mask: one.devices.0,
        zone_mask: 0,
        core_mask: 0,
    }
}

/// What an answer of the binder means to a move.
fn verdict(answer: v1::MoveAnswer) -> MoveReply {
    let Some(refused) = answer.refused else {
        return answer.surge_ordinal.map_or(MoveReply::Moved, MoveReply::Surges);
    };
    let name = refused
        .reason()
        .as_str_name()
        .trim_start_matches("REJECTION_REASON_")
        .to_lowercase()
        .replace('_', "-");
    let why = if refused.detail.is_empty() { name } else { format!("{name}: {}", refused.detail) };
    // What a later binder says and this one does not know is no reason to look for another target.
    let later = refused.later;
    let reason = from_proto::move_refusal(refused).map_or(RejectionReason::Invalid, |refusal| refusal.reason);
    MoveReply::refused(reason, later, why)
}

/// Numbers of ended movements that go: all but the newest `n_max`, and those that ended before a time. The newest movement always stays: numbers
/// go on from it.
fn recycled<'m>(
    movements: impl Iterator<Item = &'m MovementRecord>,
    n_max: usize,
    before_ms: i64,
) -> Vec<u64> {
    let mut all: Vec<&MovementRecord> = movements.collect();
    all.sort_unstable_by_key(|movement| std::cmp::Reverse(movement.number));
    let ended = all.iter().enumerate().skip(1).filter(|(_, movement)| movement.is_ended());
    let goes = |(at, movement): &(usize, &&MovementRecord)| *at >= n_max || movement.ended_ms < before_ms;
    ended.filter(goes).map(|(_, movement)| movement.number).collect()
}
