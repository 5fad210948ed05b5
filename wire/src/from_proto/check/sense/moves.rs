//! Movements of the rescheduler.

use godel_domain::requested_move::MOVEMENT_LEN_MAX;
use godel_proto::v1::{self, MovementPhase};

use super::{BadField, Result, required, until, words};

pub(crate) fn movement(pb: &v1::Movement) -> Result<()> {
    required("name", &pb.name)?;
    words("name", &pb.name, MOVEMENT_LEN_MAX)?;
    words("policy", &pb.policy, MOVEMENT_LEN_MAX)?;
    until("ended_ms", pb.created_ms, pb.ended_ms)?;
    let is_running = pb.phase() == MovementPhase::Running;
    if is_running && pb.ended_ms != 0 {
        return Err(BadField::new("ended_ms", "it has ended, and its phase is that it runs"));
    }
    if pb.ending() == MovementPhase::Running {
        return Err(BadField::new("ending", "a movement does not end in the phase that it runs"));
    }
    if pb.batch > pb.n_batches {
        return Err(BadField::new("batch", format!("there are {} batches", pb.n_batches)));
    }
    for (idx, one) in pb.moves.iter().enumerate() {
        a_move(one, pb.n_batches).map_err(|bad| bad.under(&format!("moves[{idx}]")))?;
    }
    Ok(())
}

fn a_move(pb: &v1::MovementMove, n_batches: u32) -> Result<()> {
    if pb.from_node_id == pb.to_node_id {
        return Err(BadField::new("to_node_id", "it moves to the node that it leaves"));
    }
    if pb.surge_ordinal == Some(pb.ordinal) {
        return Err(BadField::new("surge_ordinal", "a replica does not replace itself"));
    }
    if pb.batch >= n_batches.max(1) {
        return Err(BadField::new(
            "batch",
            format!("{} is not below the number of batches, {n_batches}", pb.batch),
        ));
    }
    let numbers = pb.reason.iter().flat_map(|reason| reason.numbers.iter().enumerate());
    for (idx, number) in numbers {
        if !number.value.is_finite() {
            let why = format!("{} is no finite number", number.value);
            return Err(BadField::new(format!("reason.numbers[{idx}].value"), why));
        }
    }
    Ok(())
}
