//! The accounting record of an ended unit, made from its record and its rows when these are deleted, and before that
//! whenever somebody asks.
//!
//! Rows know the last incarnation of a replica only. What replicas used in earlier ones is not in the sums.

use std::collections::BTreeMap;

use godel_base::resources::MEMORY;
use godel_domain::{
    demand::Demand,
    lifecycle::{Counts, UnitPhase},
    running_units::{Phase, RunningUnit, RunningUnits},
    unit::{CompactedRuns, UnitRecord},
    unit_history::{N_RUNS_MAX, RunHistory, UnitHistory},
};

/// Memory is added up in mebibytes, so that a century of the largest amount stays within 64 bits.
const MEMORY_UNIT: u128 = 1 << 20;

/// When things happened to a unit, Unix milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnitTimes {
    /// Commit time of its submission.
    pub created_ms: i64,
    /// Commit time of its first binding; 0: none.
    pub bound_ms: i64,
    /// When the dispatcher saw its end; 0: it was there already when the dispatcher became the leader.
    pub ended_ms: i64,
}

/// What is kept of a unit that has ended in `phase`.
pub fn of(
    record: &UnitRecord,
    rows: &RunningUnits,
    counts: &Counts,
    phase: UnitPhase,
    times: UnitTimes,
) -> UnitHistory {
    let reported = rows.ends.values().map(|end| end.ended_ms).max().unwrap_or_default();
    let last_bound = rows.rows.values().map(|row| row.bound_time_ms).max().unwrap_or_default();
    // A simulated run does not say when it ended.
    let ended_ms =
        if times.ended_ms > 0 { times.ended_ms } else { reported.max(last_bound).max(times.created_ms) };
    let spec = &record.spec;
    let mut history = UnitHistory {
        id: record.id,
        namespace: spec.namespace.clone(),
        name: spec.name.clone(),
        uid: spec.uid.clone(),
        owner: spec.owner.clone(),
        queue: spec.queue.clone(),
        class: spec.class,
        phase,
        ended: record.status.ended,
        created_ms: times.created_ms,
        bound_ms: times.bound_ms,
        ended_ms,
        replicas: counts.replicas,
        succeeded: counts.succeeded,
        failed: counts.failed,
        run_ms: 0,
        used: BTreeMap::new(),
        runs: Vec::new(),
        starts: 0,
        principal: record.status.principal.clone(),
    };
    if let Some(compacted) = &record.status.compacted {
        add_compacted(&mut history, compacted);
    }
    for (ordinal, row) in &rows.rows {
        // One that waits for its next incarnation had a node in each of those before.
        let is_first_to_come = row.bound_time_ms == 0 || row.phase == Phase::Pending;
        history.starts += u64::from(row.incarnation) + u64::from(!is_first_to_come);
        if is_first_to_come {
            continue;
        }
        let run = run(rows, ordinal, row, ended_ms);
        let run_ms = u64::try_from(run.ended_ms.saturating_sub(run.bound_ms)).unwrap_or(0);
        history.run_ms = history.run_ms.saturating_add(run_ms);
        if let Some(Some(group)) = rows.groups.get(usize::from(row.group)) {
            add(&mut history.used, &group.demand, run_ms);
        }
        if history.runs.len() < N_RUNS_MAX {
            history.runs.push(run);
        }
    }
    history
}

/// Adds what is kept of replicas that were compacted.
fn add_compacted(history: &mut UnitHistory, compacted: &CompactedRuns) {
    let CompactedRuns { replicas, succeeded, failed, starts, run_ms, used, bound_ms: _ } = compacted;
    let sum =
        |count: u32, more: u64| u32::try_from(u64::from(count).saturating_add(more)).unwrap_or(u32::MAX);
    history.replicas = sum(history.replicas, *replicas);
    history.succeeded = sum(history.succeeded, *succeeded);
    history.failed = sum(history.failed, *failed);
    history.starts = history.starts.saturating_add(*starts);
    history.run_ms = history.run_ms.saturating_add(*run_ms);
    for (name, amount) in used {
        let sum = history.used.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

/// Adds running units that are compacted to the sums of their unit.
pub(crate) fn compact(
    sums: &mut CompactedRuns,
    rows: &RunningUnits,
    ordinal: u32,
    row: &RunningUnit,
    now_ms: i64,
) {
    sums.replicas += 1;
    sums.starts += u64::from(row.incarnation) + u64::from(row.bound_time_ms > 0);
    if row.bound_time_ms == 0 {
        return;
    }
    if matches!(row.phase, Phase::Succeeded | Phase::Failed) {
        let earliest = if sums.bound_ms == 0 { row.bound_time_ms } else { sums.bound_ms };
        sums.bound_ms = earliest.min(row.bound_time_ms);
    }
    let run = run(rows, ordinal, row, now_ms);
    let run_ms = u64::try_from(run.ended_ms.saturating_sub(run.bound_ms)).unwrap_or(0);
    sums.run_ms = sums.run_ms.saturating_add(run_ms);
    if let Some(Some(group)) = rows.groups.get(usize::from(row.group)) {
        add(&mut sums.used, &group.demand, run_ms);
    }
}

fn run(rows: &RunningUnits, ordinal: u32, row: &RunningUnit, unit_ended_ms: i64) -> RunHistory {
    let reported_ms = rows.end(ordinal).ended_ms;
    let ended_ms = if reported_ms > 0 { reported_ms } else { unit_ended_ms };
    RunHistory {
        ordinal,
        incarnation: row.incarnation,
        phase: row.phase,
        node: row.node,
        exit_code: row.exit_code,
        restarts: row.restarts,
        bound_ms: row.bound_time_ms,
        // Clocks of nodes may be behind.
        ended_ms: ended_ms.max(row.bound_time_ms),
    }
}

/// Amounts for some time: milli-core-seconds, mebibyte-seconds, thousandths of devices and whole ones of anything else
/// for seconds.
fn add(used: &mut BTreeMap<String, u64>, demand: &Demand, run_ms: u64) {
    let devices = demand.devices.iter().map(|device| {
        (device.kind.as_str(), i64::from(device.count).saturating_mul(i64::from(device.milli)))
    });
    for (name, amount) in demand.requests.iter().chain(devices) {
        let amount = u128::from(u64::try_from(amount).unwrap_or(0));
        let of_unit = 1_000 * if name == MEMORY { MEMORY_UNIT } else { 1 };
        let for_seconds = u64::try_from(amount * u128::from(run_ms) / of_unit).unwrap_or(u64::MAX);
        if for_seconds > 0 {
            let sum = used.entry(name.to_owned()).or_default();
            *sum = sum.saturating_add(for_seconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use godel_base::{
        ids::NodeId,
        resources::{CPU, Resources},
    };
    use godel_domain::{run_end::RunEnd, running_units::GroupDemand};

    use super::*;

    fn row(phase: Phase, bound_time_ms: i64) -> RunningUnit {
        RunningUnit { phase, bound_time_ms, node: NodeId(1), ..RunningUnit::default() }
    }

    #[test]
    fn what_replicas_were_given_counts_for_the_time_on_their_nodes() {
        let record = godel_testkit::unit("u");
        let requests = Resources::new([(CPU, 1_500), (MEMORY, 3 << 20)]).unwrap();
        let demand = Arc::new(Demand { requests, ..Demand::default() });
        let group = GroupDemand { demand, pool: Default::default(), standing: None };
        let mut rows = RunningUnits {
            groups: vec![Some(group)],
            rows: vec![
                row(Phase::Succeeded, 10_000),
                // Its node did not say when it ended.
                row(Phase::Failed, 10_000),
                // A clock that is behind takes nothing away.
                row(Phase::Stopped, 10_000),
                row(Phase::Pending, 0),
            ]
            .into(),
            ..RunningUnits::default()
        };
        for (ordinal, ended_ms) in [(0, 14_000), (2, 9_000)] {
            rows.ends.set(ordinal, RunEnd { ended_ms, ..RunEnd::default() });
        }
        let counts = Counts::of(&record, &rows);
        let times = UnitTimes { created_ms: 1_000, bound_ms: 10_000, ended_ms: 20_000 };
        let history = of(&record, &rows, &counts, UnitPhase::Failed, times);
        assert_eq!((history.run_ms, history.runs.len(), history.ended_ms), (14_000, 3, 20_000));
        assert_eq!(history.starts, 3);
        assert_eq!(history.used[CPU], 21_000, "1.5 cores for 14 s");
        assert_eq!(history.used[MEMORY], 42, "3 MiB for 14 s");
        let unseen = of(&record, &rows, &counts, UnitPhase::Failed, UnitTimes { ended_ms: 0, ..times });
        assert_eq!((unseen.ended_ms, unseen.run_ms), (14_000, 8_000), "as far as rows tell");
    }
}
