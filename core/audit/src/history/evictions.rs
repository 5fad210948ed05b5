//! I6: every eviction has a ground, as records are when it is committed and as they are now.

use godel_base::ids::{NodeId, Revision, UnitId};
use godel_domain::{
    demand::Pool,
    running_units::EvictionReason,
    unit::{OnBelowMin, UnitEnd, UnitRecord},
};

use super::{
    super::{
        History,
        verdict::Findings,
        world::{Commit, RowStep, World, WorldRow},
    },
    LATE_MS, Replay, node_name,
};

pub(super) fn check_eviction(
    findings: &mut Findings,
    world: &World,
    unit: UnitId,
    ordinal: u32,
    row: &WorldRow,
    reason: EvictionReason,
) {
    let Some(of) = world.units.get(&unit) else { return };
    let record = of.record.as_ref().map(|record| record.value.as_ref());
    if let Some(wrong) = illegal(world, unit, record, ordinal, row.node, reason) {
        findings.add(|| format!("{}/{ordinal} on {}: {wrong}", of.name(), node_name(world, row.node)));
    }
}

/// Whether an eviction may have been decided before the judgement begins: for a drain or a suspension that had ended by then.
pub(super) fn may_be_older(
    began_ms: Option<i64>,
    world: &World,
    step: &RowStep<'_>,
    reason: EvictionReason,
    commit: &Commit,
) -> bool {
    let is_soon = began_ms.is_some_and(|began_ms| commit.time_ms.saturating_sub(began_ms) <= LATE_MS);
    let changed = |created: Revision, revision: Revision| revision > created;
    is_soon
        && match reason {
            EvictionReason::Drained => {
                let spec = world.nodes.get(&step.before.node).and_then(|node| node.spec.as_ref());
                !world.drained.contains(&step.before.node)
                    && spec.is_some_and(|spec| changed(spec.created, spec.revision))
            }
            EvictionReason::Tainted => {
                let spec = world.nodes.get(&step.before.node).and_then(|node| node.spec.as_ref());
                !world.tainted.contains(&step.before.node)
                    && spec.is_some_and(|spec| changed(spec.created, spec.revision))
            }
            EvictionReason::Failure => {
                let record = world.units.get(&step.unit).and_then(|unit| unit.record.as_ref());
                !world.restarted.contains(&step.unit)
                    && record.is_some_and(|record| changed(record.created, record.revision))
            }
            EvictionReason::Suspended => {
                let record = world.units.get(&step.unit).and_then(|unit| unit.record.as_ref());
                !world.suspended.contains(&step.unit)
                    && record.is_some_and(|record| changed(record.created, record.revision))
            }
            _ => false,
        }
}

/// Whether a victim is preemptible, of the same pool, has run long enough, and is of no unit that preempted its preemptor
/// before: as the records were. Its rank is judged by [`Preemptions`](crate::preemptions::Preemptions).
pub(super) fn check_victim(
    findings: &mut Findings,
    world: &World,
    step: &RowStep<'_>,
    preemptor: UnitId,
    commit: &Commit,
) {
    let Some(victim) = world.units.get(&step.unit) else { return };
    let mut wrong = |what: String| {
        let (name, ordinal, revision) = (victim.name(), step.ordinal, commit.revision);
        findings.add(|| {
            format!("{name}/{ordinal}: preempted for unit {preemptor}, but {what} (revision {revision})")
        });
    };
    let of = world.units.get(&preemptor);
    let Some(record) = of.and_then(|unit| unit.record.as_ref()).map(|record| &record.value) else {
        return wrong("there is no such unit".to_owned());
    };
    if of.is_some_and(|unit| unit.preemptors.contains(&step.unit)) {
        wrong("that was preempted for this one before".to_owned());
    }
    if record.id == step.unit || record.status.cancelled {
        wrong("that is itself, or cancelled".to_owned());
    }
    if victim.demands.get(&step.before.group).is_some_and(|(_, pool)| *pool != record.spec.pool) {
        wrong("the pools differ".to_owned());
    }
    let Some(standing) = victim.standings.get(&step.before.group).filter(|standing| standing.preemptible)
    else {
        return wrong("it is not preemptible".to_owned());
    };
    let ran_ms = commit.time_ms.saturating_sub(step.before.bound_time_ms);
    if u64::try_from(ran_ms).is_ok_and(|ran_ms| ran_ms < standing.min_run_ms) {
        wrong(format!("it had run for {ran_ms} of {} ms", standing.min_run_ms));
    }
}

/// Why an eviction for `reason` has no ground.
fn illegal(
    world: &World,
    unit: UnitId,
    record: Option<&UnitRecord>,
    ordinal: u32,
    node_id: NodeId,
    reason: EvictionReason,
) -> Option<&'static str> {
    let wanted = record.is_some_and(|record| record.is_wanted() && record.group_of(ordinal).is_some());
    let node = world.nodes.get(&node_id);
    let ready = node.and_then(|node| node.report.as_ref()).is_some_and(|report| report.value.ready);
    let is_guaranteed = record.is_some_and(|record| record.spec.pool == Pool::Guaranteed);
    match reason {
        EvictionReason::Cancelled if record.is_some_and(|record| !record.status.cancelled) => {
            Some("evicted as cancelled, but its unit is not")
        }
        EvictionReason::ScaledIn if wanted => Some("evicted as scaled in, but its unit wants it"),
        EvictionReason::NodeLost if ready => Some("evicted for the loss of its node, which is ready"),
        EvictionReason::Drained if node.is_some() && !world.drained.contains(&node_id) => {
            Some("evicted for a drain, but its node is not drained")
        }
        EvictionReason::Tainted if node.is_some() && !world.tainted.contains(&node_id) => {
            Some("evicted for a taint, but its node has none that evicts")
        }
        EvictionReason::Failure
            if record.is_some_and(|record| record.status.ended != Some(UnitEnd::Failure))
                && !world.restarted.contains(&unit) =>
        {
            Some("evicted for a failure, but its unit neither ended for it nor started again")
        }
        EvictionReason::Suspended if record.is_some() && !world.suspended.contains(&unit) => {
            Some("evicted as suspended, but its unit was not")
        }
        EvictionReason::Deadline if record.is_some_and(|record| record.status.ended.is_none()) => {
            Some("evicted for its deadline, but its unit has not ended")
        }
        EvictionReason::BelowMin
            if record.is_some_and(|record| record.spec.on_below_min == OnBelowMin::Keep) =>
        {
            Some("evicted as too few were left, but its unit keeps what is left")
        }
        EvictionReason::Squeezed if is_guaranteed => Some("squeezed, but its unit is guaranteed"),
        // Judged with its preemptor, where that is known, or with the room that is held for it.
        EvictionReason::Preempted
        | EvictionReason::Rescheduled
        | EvictionReason::Squeezed
        | EvictionReason::Cancelled
        | EvictionReason::ScaledIn
        | EvictionReason::NodeLost
        | EvictionReason::Drained
        | EvictionReason::Suspended
        | EvictionReason::Deadline
        | EvictionReason::BelowMin
        | EvictionReason::Failure
        | EvictionReason::Tainted => None,
    }
}

/// I6, now and over the history. Of what is evicting now only grounds that cannot pass are judged again.
pub(crate) fn check_evictions(world: &World, history: &History, replay: &Replay) -> Findings {
    let mut findings = replay.evictions.clone();
    findings.extend(&replay.preemptions.findings);
    findings.extend(&replay.budgets.findings);
    let mut n_now = 0;
    for (id, unit) in &world.units {
        for (ordinal, row) in &unit.rows {
            let Some(reason) = row.eviction else { continue };
            n_now += 1;
            let may_pass = matches!(
                reason,
                EvictionReason::NodeLost
                    | EvictionReason::Drained
                    | EvictionReason::Tainted
                    | EvictionReason::Suspended
                    | EvictionReason::Failure
            );
            // A unit that is tried again keeps what has succeeded, and what that had been told.
            let was_retried = !row.phase.is_live()
                && unit.record.as_ref().is_some_and(|record| record.value.status.retried_ms > 0)
                && matches!(reason, EvictionReason::Cancelled | EvictionReason::Deadline);
            if !may_pass && !was_retried {
                check_eviction(&mut findings, world, *id, *ordinal, row, reason);
            }
        }
    }
    if let Some(gap) = history.gap() {
        findings.not_judged(gap);
        findings.checked(format!("grounds of {n_now} evicting or evicted now"));
        return findings;
    }
    let n_before = replay.preemptions.n_before + replay.budgets.n_before + replay.n_before;
    let before = if n_before == 0 {
        String::new()
    } else {
        format!("; {n_before} judgements rest on what was read before, and belong to it")
    };
    findings.checked(format!(
        "{} evictions in the history, {} of them preemptions, {} of these by guarantee, {} under a disruption budget, \
         {n_now} evicting or evicted now{}{}{before}",
        replay.n_evictions,
        replay.n_preempted,
        replay.preemptions.n_reclaimed,
        replay.budgets.n_judged,
        replay.moved.words(world),
        history.since(),
    ));
    findings
}
