//! Movements and moves of units as records.

use bytes::Bytes;
use godel_base::ids::{NodeId, Revision, RunningUnitId, UnitId};
use godel_core_rescheduler::{
    MovePhase, MovementMove, MovementPhase, MovementRecord, OrderedPlan, RecordedReason, RunCause,
};
use godel_core_rescheduler_leader::RescheduleWrite;
use godel_domain::allocation::DeviceSet;
use godel_proto::{raw, v1};
use godel_wire::to_proto;
use prost::Message as _;

/// Largest record: it has to fit into one transaction and into one message, with what is around it.
const RECORD_BYTES_MAX: usize = 900 << 10;

/// A movement as a message.
pub(crate) fn shown(movement: &MovementRecord) -> v1::Movement {
    let MovementRecord {
        name,
        policy,
        number,
        for_unit,
        created_ms,
        plan_revision,
        objective,
        finding,
        phase,
        ending,
        ended_ms,
        message,
        n_batches,
        batch,
        n_replans,
        cause,
        moves,
    } = movement;
    v1::Movement {
        name: name.clone(),
        policy: policy.clone(),
        number: *number,
        for_unit_id: for_unit.map_or(0, |unit| unit.0),
        created_ms: *created_ms,
        plan_revision: plan_revision.0,
        objective_before: objective.0,
        objective_after: objective.1,
        finding: finding.clone(),
        phase: movement_phase(*phase).into(),
        // Another leader's clock may be behind the one by which it began.
        ended_ms: if *ended_ms == 0 { 0 } else { (*ended_ms).max(*created_ms) },
        message: message.clone(),
        n_batches: *n_batches,
        batch: *batch,
        n_replans: *n_replans,
        trigger: cause.name().to_owned(),
        moves: moves.iter().map(shown_move).collect(),
        ending: ending.map_or(v1::MovementPhase::Unspecified, movement_phase).into(),
    }
}

/// The operation that makes a change of the rescheduler's records.
pub(crate) fn encode(write: &RescheduleWrite) -> Bytes {
    match write {
        RescheduleWrite::Movement(movement) => put(movement),
        RescheduleWrite::MovementGone(name) => to_proto::delete_named(v1::Kind::Movement, name),
        RescheduleWrite::Rate(unit, times_ms) => put_rate(*unit, times_ms),
        RescheduleWrite::RateGone(unit) => to_proto::delete(v1::Kind::MoveRate, unit.0),
    }
}

/// The operation that writes a movement. One that is too large loses the numbers of its reasons, and then the reasons.
fn put(movement: &MovementRecord) -> Bytes {
    let mut pb = shown(movement);
    if pb.encoded_len() > RECORD_BYTES_MAX {
        for reason in pb.moves.iter_mut().filter_map(|one| one.reason.as_mut()) {
            reason.numbers.clear();
        }
    }
    if pb.encoded_len() > RECORD_BYTES_MAX {
        pb.moves.iter_mut().for_each(|one| one.reason = None);
    }
    raw::encode_op(v1::op::Op::PutMovement(pb))
}

/// The operation that writes when replicas of a unit were moved.
fn put_rate(unit: UnitId, times_ms: &[u64]) -> Bytes {
    let times_ms = times_ms.iter().map(|time| i64::try_from(*time).unwrap_or(i64::MAX)).collect();
    raw::encode_op(v1::op::Op::PutMoveRate(v1::MoveRate { unit_id: unit.0, times_ms }))
}

pub(crate) fn shown_move(one: &MovementMove) -> v1::MovementMove {
    let MovementMove {
        id,
        unit,
        from,
        to,
        devices,
        batch,
        is_detour,
        cost_ms,
        reason,
        phase,
        actual,
        detail,
        n_tries,
        changed_ms,
        surge_ordinal,
    } = one;
    let (actual_node_id, actual_node) = actual.clone().unwrap_or_default();
    v1::MovementMove {
        unit_id: id.unit.0,
        unit: unit.clone(),
        ordinal: id.replica.ordinal,
        incarnation: id.replica.incarnation,
        from_node_id: from.0.0,
        from_node: from.1.clone(),
        to_node_id: to.0.0,
        to_node: to.1.clone(),
        device_mask: devices.0,
        zone_mask: 0,
        batch: *batch,
        is_detour: *is_detour,
        cost_ms: *cost_ms,
        reason: Some(v1::MovementReason {
            why_unit: reason.why_unit.clone(),
            why_node: reason.why_node.clone(),
            why_now: reason.why_now.clone(),
            numbers: reason
                .numbers
                .iter()
                .map(|(name, value)| v1::MovementNumber { name: name.clone(), value: *value })
                .collect(),
        }),
        phase: move_phase(*phase).into(),
        actual_node_id: actual_node_id.0,
        actual_node,
        detail: detail.clone(),
        n_tries: *n_tries,
        changed_ms: *changed_ms,
        surge_ordinal: *surge_ordinal,
    }
}

/// A plan as a message.
pub(crate) fn shown_plan(plan: &OrderedPlan, policy: &str, revision: Revision) -> v1::ReschedulePlan {
    v1::ReschedulePlan {
        policy: policy.to_owned(),
        revision: revision.0,
        objective_before: plan.objective.0,
        objective_after: plan.objective.1,
        finding: plan.finding.clone(),
        moves: plan.moves.iter().map(shown_move).collect(),
        n_batches: plan.n_batches,
        n_batches_min: plan.n_batches_min,
        impossible: plan.n_impossible,
        refusals: plan
            .refusals
            .iter()
            .map(|(reason, n)| v1::PlanRefusals { reason: reason.clone(), n: *n })
            .collect(),
        cost_ms: plan.cost_ms(),
        planning_ms: 0,
        held_back: String::new(),
        objective_bound: plan.bound.map(|bound| bound.value),
        kept: plan
            .kept
            .iter()
            .map(|(reason, n)| v1::PlanRefusals { reason: reason.clone(), n: *n })
            .collect(),
        bound_is_exact: plan.bound.is_some_and(|bound| bound.is_exact),
    }
}

/// A record as a movement.
///
/// # Errors
/// What is wrong with it, in words: a later version may have written it.
pub(crate) fn read(pb: v1::Movement) -> Result<MovementRecord, String> {
    let phase = read_movement_phase(pb.phase()).ok_or("it has no phase")?;
    let cause = RunCause::named(&pb.trigger).ok_or_else(|| format!("its trigger is `{}`", pb.trigger))?;
    let ending = read_movement_phase(pb.ending());
    let moves = pb.moves.into_iter().map(read_move).collect::<Result<_, _>>()?;
    Ok(MovementRecord {
        name: pb.name,
        policy: pb.policy,
        number: pb.number,
        for_unit: (pb.for_unit_id != 0).then_some(UnitId(pb.for_unit_id)),
        created_ms: pb.created_ms,
        plan_revision: Revision(pb.plan_revision),
        objective: (pb.objective_before, pb.objective_after),
        finding: pb.finding,
        phase,
        ending,
        ended_ms: pb.ended_ms,
        message: pb.message,
        n_batches: pb.n_batches,
        batch: pb.batch,
        n_replans: pb.n_replans,
        cause,
        moves,
    })
}

fn read_move(pb: v1::MovementMove) -> Result<MovementMove, String> {
    let phase = match pb.phase() {
        v1::MovePhase::Unspecified => return Err(format!("a move has phase {}", pb.phase)),
        v1::MovePhase::Waiting => MovePhase::Waiting,
        v1::MovePhase::Leaving => MovePhase::Leaving,
        v1::MovePhase::Pending => MovePhase::Pending,
        v1::MovePhase::Starting => MovePhase::Starting,
        v1::MovePhase::Moved => MovePhase::Moved,
        v1::MovePhase::Mismatched => MovePhase::Mismatched,
        v1::MovePhase::Refused => MovePhase::Refused,
        v1::MovePhase::Aborted => MovePhase::Aborted,
        v1::MovePhase::TimedOut => MovePhase::TimedOut,
    };
    let reason = pb.reason.unwrap_or_default();
    Ok(MovementMove {
        id: RunningUnitId::new(UnitId(pb.unit_id), pb.ordinal, pb.incarnation),
        unit: pb.unit,
        from: (NodeId(pb.from_node_id), pb.from_node),
        to: (NodeId(pb.to_node_id), pb.to_node),
        devices: DeviceSet(pb.device_mask),
        batch: pb.batch,
        is_detour: pb.is_detour,
        cost_ms: pb.cost_ms,
        reason: RecordedReason {
            why_unit: reason.why_unit,
            why_node: reason.why_node,
            why_now: reason.why_now,
            numbers: reason.numbers.into_iter().map(|number| (number.name, number.value)).collect(),
        },
        phase,
        actual: (pb.actual_node_id != 0).then_some((NodeId(pb.actual_node_id), pb.actual_node)),
        detail: pb.detail,
        n_tries: pb.n_tries,
        changed_ms: pb.changed_ms,
        surge_ordinal: pb.surge_ordinal,
    })
}

fn read_movement_phase(phase: v1::MovementPhase) -> Option<MovementPhase> {
    match phase {
        v1::MovementPhase::Unspecified => None,
        v1::MovementPhase::Running => Some(MovementPhase::Running),
        v1::MovementPhase::Done => Some(MovementPhase::Done),
        v1::MovementPhase::Stopped => Some(MovementPhase::Stopped),
        v1::MovementPhase::Aborted => Some(MovementPhase::Aborted),
        v1::MovementPhase::Expired => Some(MovementPhase::Expired),
    }
}

fn movement_phase(phase: MovementPhase) -> v1::MovementPhase {
    match phase {
        MovementPhase::Running => v1::MovementPhase::Running,
        MovementPhase::Done => v1::MovementPhase::Done,
        MovementPhase::Stopped => v1::MovementPhase::Stopped,
        MovementPhase::Aborted => v1::MovementPhase::Aborted,
        MovementPhase::Expired => v1::MovementPhase::Expired,
    }
}

fn move_phase(phase: MovePhase) -> v1::MovePhase {
    match phase {
        MovePhase::Waiting => v1::MovePhase::Waiting,
        MovePhase::Leaving => v1::MovePhase::Leaving,
        MovePhase::Pending => v1::MovePhase::Pending,
        MovePhase::Starting => v1::MovePhase::Starting,
        MovePhase::Moved => v1::MovePhase::Moved,
        MovePhase::Mismatched => v1::MovePhase::Mismatched,
        MovePhase::Refused => v1::MovePhase::Refused,
        MovePhase::Aborted => v1::MovePhase::Aborted,
        MovePhase::TimedOut => v1::MovePhase::TimedOut,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn movement(n_moves: u32, n_text: usize) -> MovementRecord {
        let one = |ordinal| MovementMove {
            id: RunningUnitId::new(UnitId(7), ordinal, 2),
            unit: "default/web".to_owned(),
            from: (NodeId(1), "n1".to_owned()),
            to: (NodeId(2), "n2".to_owned()),
            devices: DeviceSet(5),
            batch: ordinal % 3,
            is_detour: ordinal % 2 == 1,
            cost_ms: 9,
            reason: RecordedReason {
                why_unit: "u".repeat(n_text),
                why_node: "n".to_owned(),
                why_now: "now".to_owned(),
                numbers: vec![("free".to_owned(), 1.5)],
            },
            phase: MovePhase::Mismatched,
            actual: Some((NodeId(3), "n3".to_owned())),
            detail: "d".to_owned(),
            n_tries: 4,
            changed_ms: 8,
            surge_ordinal: (ordinal == 1).then_some(9),
        };
        MovementRecord {
            name: "pack-3".to_owned(),
            policy: "pack".to_owned(),
            number: 3,
            for_unit: Some(UnitId(9)),
            created_ms: 1,
            plan_revision: Revision(17),
            objective: (4.0, 2.5),
            finding: "found".to_owned(),
            phase: MovementPhase::Running,
            ending: Some(MovementPhase::Aborted),
            ended_ms: 0,
            message: "m".to_owned(),
            n_batches: 3,
            batch: 1,
            n_replans: 1,
            cause: RunCause::Cron,
            moves: (0..n_moves).map(one).collect(),
        }
    }

    #[test]
    fn a_movement_is_read_as_it_was_written() {
        let before = movement(5, 1);
        let encoded = shown(&before).encode_to_vec();
        assert_eq!(read(v1::Movement::decode(encoded.as_slice()).unwrap()).unwrap(), before);
        assert_eq!(godel_wire::from_proto::check_op(&put(&before)), Ok(()));
    }

    #[test]
    fn every_phase_keeps_its_meaning() {
        for phase in [
            MovePhase::Waiting,
            MovePhase::Leaving,
            MovePhase::Pending,
            MovePhase::Starting,
            MovePhase::Moved,
            MovePhase::Mismatched,
            MovePhase::Refused,
            MovePhase::Aborted,
            MovePhase::TimedOut,
        ] {
            let mut one = movement(1, 1).moves.remove(0);
            one.phase = phase;
            assert_eq!(read_move(shown_move(&one)).unwrap().phase, phase);
        }
        assert!(read(v1::Movement::default()).is_err());
    }

    #[test]
    fn a_record_that_is_too_large_loses_its_reasons() {
        let large = movement(1_000, 1_000);
        let op = put(&large);
        assert!(op.len() < 1 << 20, "{}", op.len());
        let Some(v1::op::Op::PutMovement(pb)) = v1::Op::decode(op).unwrap().op else { panic!("another one") };
        assert_eq!((pb.moves.len(), pb.moves[0].reason.clone()), (1_000, None));
    }
}
