//! Operations on running units. What the rows of a unit allow is for the store to say, which has them.

use godel_base::ids::NODE_ID_MAX;
use godel_domain::{limits::MIN_RUN_MS_MAX, names::NAME_LEN_MAX, task_group_record::TASK_GROUPS_MAX};
use godel_proto::{raw, v1};
use prost::Message as _;

use super::{BadField, Result, distinct, some, within, words};

/// The most frequent operation of all: its demand is not looked into, which the store reads.
pub(in super::super) fn bind(pb: &raw::Binding) -> Result<()> {
    each_once(&pb.ordinals)?;
    if let Some(idx) = pb.node_ids.iter().position(|node| !(1..=NODE_ID_MAX).contains(node)) {
        let why = format!("{} is not in 1 to {NODE_ID_MAX}", pb.node_ids[idx]);
        return Err(BadField::new(format!("node_ids[{idx}]"), why));
    }
    match pb.standing.clone().map(v1::Standing::decode) {
        Some(Ok(standing)) => self::standing(&standing),
        // What does not decode is for the store to say.
        Some(Err(_)) | None => Ok(()),
    }
}

/// At least one, and each once.
fn each_once(ordinals: &[u32]) -> Result<()> {
    some("ordinals", ordinals)?;
    if ordinals.is_sorted_by(|a, b| a < b) { Ok(()) } else { distinct("ordinals", ordinals.iter()) }
}

pub(super) fn evict(pb: &v1::Eviction) -> Result<()> {
    each_once(&pb.ordinals)?;
    if pb.preemptor_id != 0 && pb.preemptor_id == pb.unit_id {
        return Err(BadField::new("preemptor_id", "a unit does not preempt itself"));
    }
    words("by", &pb.by, NAME_LEN_MAX)
}

pub(super) fn statuses(pb: &v1::RunStatuses) -> Result<()> {
    some("ordinals", &pb.ordinals)?;
    distinct(
        "ordinals",
        pb.ordinals.iter().zip(pb.incarnations.iter().map(Some).chain(std::iter::repeat(None))),
    )?;
    // Readers take a reason that they do not know for none, and a time as it is.
    for (idx, reason) in pb.reasons.iter().enumerate() {
        if v1::RunEndReason::try_from(*reason).is_err() {
            return Err(BadField::new(
                format!("reasons[{idx}]"),
                format!("{reason} is not a value that this version knows"),
            ));
        }
    }
    for (field, times) in [("started_times_ms", &pb.started_times_ms), ("ended_times_ms", &pb.ended_times_ms)]
    {
        if let Some((idx, time)) = times.iter().enumerate().find(|(_, time)| **time < 0) {
            return Err(BadField::new(format!("{field}[{idx}]"), format!("{time} is negative")));
        }
    }
    Ok(())
}

pub(super) fn requeue(pb: &v1::Requeue) -> Result<()> {
    each_once(&pb.ordinals)?;
    match pb.incarnations.iter().position(|incarnation| *incarnation == 0) {
        Some(idx) => Err(BadField::new(format!("incarnations[{idx}]"), "0: the first one does not return")),
        None => Ok(()),
    }
}

pub(super) fn terms(pb: &v1::TermsChange) -> Result<()> {
    if pb.group_minima.len() > TASK_GROUPS_MAX {
        return Err(BadField::new("group_minima", format!("more than {TASK_GROUPS_MAX}")));
    }
    pb.standing.as_ref().map_or(Ok(()), standing)
}

pub(super) fn compaction(pb: &v1::Compaction) -> Result<()> {
    let v1::Compaction { unit_id: _, ordinals, incarnations: _, task_groups } = pb;
    if ordinals.is_empty() && task_groups.is_empty() {
        return Err(BadField::new("ordinals", "nothing, and no task group either: one of the two is needed"));
    }
    if let Some(idx) = ordinals.windows(2).position(|pair| pair[0] >= pair[1]) {
        return Err(BadField::new(format!("ordinals[{}]", idx + 1), "not ascending"));
    }
    distinct("task_groups", task_groups.iter())
}

/// How running units stand against others.
fn standing(pb: &v1::Standing) -> Result<()> {
    if v1::RunningEnd::try_from(pb.end).is_err() {
        let why = format!("{} is not a value that this version knows", pb.end);
        return Err(BadField::new("standing.end", why));
    }
    within("standing.min_run_ms", pb.min_run_ms, 0, MIN_RUN_MS_MAX)?;
    words("standing.queue", &pb.queue, NAME_LEN_MAX)
}
