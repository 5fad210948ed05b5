//! Room on a node that is kept for somebody.

use godel_domain::{hold::N_TAKEN_FROM_MAX, task_group_record::TASK_GROUPS_MAX};
use godel_proto::v1;

use super::{BadField, Result, distinct, required, some, units};

pub(crate) fn hold(pb: &v1::Hold) -> Result<()> {
    some("ordinals", &pb.ordinals)?;
    if let Some(idx) = pb.ordinals.windows(2).position(|pair| pair[0] >= pair[1]) {
        return Err(BadField::new(format!("ordinals[{}]", idx + 1), "not ascending"));
    }
    if usize::try_from(pb.task_group).is_ok_and(|group| group >= TASK_GROUPS_MAX) {
        return Err(BadField::new("task_group", format!("{} is not below {TASK_GROUPS_MAX}", pb.task_group)));
    }
    units::demand(&pb.demand.clone().unwrap_or_default()).map_err(|bad| bad.under("demand"))?;
    for (field, victims) in [("victims", &pb.victims), ("queue_victims", &pb.queue_victims)] {
        each_victim(field, victims, pb.unit_id)?;
    }
    if pb.taken_from.len() > N_TAKEN_FROM_MAX {
        return Err(BadField::new("taken_from", format!("more than {N_TAKEN_FROM_MAX}")));
    }
    distinct("taken_from", pb.taken_from.iter())?;
    let has_victims = !pb.victims.is_empty() || !pb.queue_victims.is_empty();
    let kinds =
        [("turn", pb.turn.is_some()), ("slot", pb.slot.is_some()), ("movement", pb.movement.is_some())];
    let mut kinds = kinds.into_iter().filter(|(_, is_so)| *is_so).map(|(kind, _)| kind);
    match (kinds.next(), kinds.next()) {
        (Some(one), Some(other)) => {
            return Err(BadField::new(other, format!("a hold with `{one}` has no `{other}`")));
        }
        (Some(kind), None) if has_victims => {
            return Err(BadField::new("victims", format!("a hold with `{kind}` has none")));
        }
        (Some(_) | None, _) => {}
    }
    if let Some(slot) = &pb.slot {
        required("slot.reservation", &slot.reservation)?;
        if pb.unit_id != 0 {
            return Err(BadField::new("unit_id", "a slot is for all owners of its reservation"));
        }
    }
    if let Some(movement) = &pb.movement {
        required("movement.movement", &movement.movement)?;
        if movement.from.is_some_and(|from| from.unit_id != pb.unit_id) {
            return Err(BadField::new("movement.from.unit_id", "the hold is for another unit"));
        }
    }
    Ok(())
}

fn each_victim(field: &str, victims: &[v1::Victim], unit: u64) -> Result<()> {
    for (idx, victim) in victims.iter().enumerate() {
        let wrong = match victim.unit_id {
            0 => "missing",
            id if id == unit => "a unit is not its own victim",
            _ => continue,
        };
        return Err(BadField::new(format!("{field}[{idx}].unit_id"), wrong));
    }
    distinct(field, victims.iter().map(|victim| (victim.unit_id, victim.ordinal)))
}
