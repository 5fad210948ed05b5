//! Wire ↔ domain of what only the dispatcher shows: units with their running units, reports of schedulers.

pub(crate) mod budget;
pub(crate) mod queue;
pub(crate) mod reservation;

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use godel_base::ids::{Epoch, NodeId, Revision, UnitId};
use godel_core_dispatcher::{Dispatcher, EvictRequest, read::UnitView};
use godel_domain::{
    assignment::{Assignment, Permit},
    change::NodeScope,
    lifecycle::{self, Counts, UnitPhase},
    refusals::{RefusalCount, Refusals},
    running_units::{Phase as RowPhase, RunningUnit},
    unit_report::{ReportState, RoomReport, UnitReport},
};
use godel_proto::{raw, v1};
use godel_rules::{admission::SpecViolation, drain::DrainBlock};
use godel_wire::{BadField, ops, to_proto};

/// Units shown that hold up a drain: of 600 bytes at most.
const DRAIN_BLOCKS_MAX: usize = 100;
/// Nodes of a unit that are named where all units are shown.
const NODES_MAX: usize = 3;
/// Reasons of a failed try that are kept.
const REASONS_MAX: usize = 32;
/// Bytes of the name of a plugin at most: a longer one is none of ours.
const PLUGIN_BYTES_MAX: usize = 63;

pub(crate) fn bad_fields(violations: Vec<SpecViolation>) -> Vec<BadField> {
    violations.into_iter().map(|one| BadField::new(one.field, one.description)).collect()
}

/// A unit as shown, without its running units.
pub(crate) fn unit(core: &Dispatcher, view: &UnitView<'_>) -> v1::Unit {
    let mut spec = to_proto::unit_spec(&view.record.spec);
    if let Some(meta) = &mut spec.meta {
        meta.create_revision = view.create_revision.0;
        meta.revision = view.spec_revision.0;
        meta.create_time_ms = view.create_time_ms;
    }
    let (nodes, more_nodes) = nodes(core, view);
    v1::Unit {
        unit_id: view.record.id.0,
        spec: Some(spec),
        status: Some(to_proto::unit_status(&view.record.status)),
        phase: phase(view.phase).into(),
        counts: Some(counts(view)),
        scheduler: view.scheduler.unwrap_or_default().to_owned(),
        refusals: view.refusals.as_deref().map(to_proto::refusals),
        bound_time_ms: view.bound_time_ms,
        revision: view.revision.0,
        waits_for: view.waits_for.clone(),
        preempted_by: view.preempted_by.clone(),
        sub_cluster: view.sub_cluster.unwrap_or_default().to_owned(),
        turn: view.turn.map(|turn| v1::UnitTurn {
            places: u32::try_from(turn.n_places).unwrap_or(u32::MAX),
            nodes: u32::try_from(turn.n_nodes).unwrap_or(u32::MAX),
            since_ms: turn.since_ms,
            until_ms: turn.expires_ms,
        }),
        nodes,
        more_nodes,
    }
}

/// Names of the first nodes on which something of a unit is, and whether there are more.
fn nodes(core: &Dispatcher, view: &UnitView<'_>) -> (Vec<String>, bool) {
    let mut found: Vec<NodeId> = Vec::new();
    for (_, row) in view.rows.live() {
        if !found.contains(&row.node) {
            found.push(row.node);
        }
        if found.len() > NODES_MAX {
            break;
        }
    }
    let is_more = found.len() > NODES_MAX;
    found.truncate(NODES_MAX);
    (found.into_iter().map(|node| core.nodes().name(node).to_owned()).collect(), is_more)
}

/// Running units of a unit by ordinal, pending ones included: `n_max` at most from ordinal `from` on, and where the next
/// ones begin.
pub(crate) fn running_units(
    core: &Dispatcher,
    view: &UnitView<'_>,
    from: u32,
    n_max: usize,
) -> (Vec<v1::RunningUnit>, Option<u32>) {
    let mut shown = ordinals_from(view, from).filter_map(|ordinal| {
        let (row, group) = (view.rows.row(ordinal), view.record.group_of(ordinal));
        let is_shown = row.phase != RowPhase::Pending || (group.is_some() && view.record.is_wanted());
        is_shown.then_some((ordinal, row, group))
    });
    let page: Vec<_> = shown.by_ref().take(n_max).collect();
    let next = shown.next().map(|(ordinal, ..)| ordinal);
    let running_unit =
        |(ordinal, row, group): &(u32, RunningUnit, _)| running_unit(core, view, *ordinal, row, *group);
    (page.iter().map(running_unit).collect(), next)
}

/// Ordinals that a unit wants or that have rows, ascending, from one on.
fn ordinals_from(view: &UnitView<'_>, from: u32) -> impl Iterator<Item = u32> {
    let mut ranges: Vec<(u32, u32)> = view.record.ranges().filter(|(_, end)| from < *end).collect();
    ranges.sort_unstable();
    let mut wanted = ranges.into_iter().flat_map(move |(start, end)| start.max(from)..end).peekable();
    let mut known = view.rows.rows.from(from).map(|(ordinal, _)| ordinal).peekable();
    std::iter::from_fn(move || {
        let next = match (wanted.peek(), known.peek()) {
            (Some(a), Some(b)) => *a.min(b),
            (Some(one), None) | (None, Some(one)) => *one,
            (None, None) => return None,
        };
        wanted.next_if_eq(&next);
        known.next_if_eq(&next);
        Some(next)
    })
}

fn running_unit(
    core: &Dispatcher,
    view: &UnitView<'_>,
    ordinal: u32,
    row: &RunningUnit,
    group: Option<usize>,
) -> v1::RunningUnit {
    // One that is no longer wanted is of the group that it was bound for.
    let group = view.record.spec.task_groups.get(group.unwrap_or(usize::from(row.group)));
    let end = view.rows.end(ordinal);
    v1::RunningUnit {
        ordinal,
        incarnation: row.incarnation,
        task_group: group.map(|group| group.name.clone()).unwrap_or_default(),
        phase: to_proto::phase(row.phase).into(),
        // Of one that waits, where it ran last is nobody's business but the scheduler's.
        node: if row.phase == RowPhase::Pending {
            String::new()
        } else {
            core.nodes().name(row.node).to_owned()
        },
        devices: indices(row.allocation.devices.iter()),
        zones: indices(row.allocation.zones.zones.iter()),
        cores: indices(row.allocation.zones.cores.iter()),
        evicting: row.eviction.is_some() && row.phase.is_live(),
        exit_code: row.exit_code,
        restarts: row.restarts,
        device_model: core.nodes().capacities().model(row.node, row.allocation.devices).to_owned(),
        reason: ops::run_end_reason_to_proto(end.reason).into(),
        eviction: ops::eviction_reason_to_proto(row.eviction).into(),
        started_time_ms: end.started_ms,
        ended_time_ms: end.ended_ms,
        last_eviction: view.rows.last_eviction(ordinal).map(|eviction| v1::LastEviction {
            by: core.units().evicted_by(eviction),
            ..ops::last_eviction_to_proto(eviction)
        }),
    }
}

fn indices(of: impl Iterator<Item = usize>) -> Vec<u32> {
    of.filter_map(|idx| u32::try_from(idx).ok()).collect()
}

pub(crate) fn phase(phase: UnitPhase) -> v1::UnitPhase {
    match phase {
        UnitPhase::Queued => v1::UnitPhase::Queued,
        UnitPhase::Scheduling => v1::UnitPhase::Scheduling,
        UnitPhase::Unschedulable => v1::UnitPhase::Unschedulable,
        UnitPhase::Scheduled => v1::UnitPhase::Scheduled,
        UnitPhase::Running => v1::UnitPhase::Running,
        UnitPhase::Completed => v1::UnitPhase::Completed,
        UnitPhase::Failed => v1::UnitPhase::Failed,
        UnitPhase::Cancelled => v1::UnitPhase::Cancelled,
        UnitPhase::Suspended => v1::UnitPhase::Suspended,
    }
}

/// A phase to filter by: `Ok(None)` for all.
pub(crate) fn phase_filter(number: i32) -> Result<Option<UnitPhase>, BadField> {
    let known = v1::UnitPhase::try_from(number)
        .map_err(|_| BadField::new("phase", format!("{number} is not a value of this enum")))?;
    if known == v1::UnitPhase::Unspecified {
        return Ok(None);
    }
    let found = UnitPhase::ALL.into_iter().find(|one| phase(*one) == known);
    found.map(Some).ok_or_else(|| BadField::new("phase", format!("{number} is not supported")))
}

fn counts(view: &UnitView<'_>) -> v1::UnitCounts {
    let counts: &Counts = view.counts;
    // What was told to leave and has ended is pending again in a moment, but for a unit that is over.
    let comes_back = view.record.is_wanted() || view.record.status.restarting;
    let returning = if comes_back { counts.stopped } else { 0 };
    v1::UnitCounts {
        replicas: counts.replicas,
        pending: counts.pending + returning,
        bound: counts.live,
        running: counts.running,
        succeeded: counts.succeeded,
        failed: counts.failed,
        evicting: counts.evicting,
    }
}

/// What a scheduler says of a unit; `None` when it says nothing that we know.
pub(crate) fn report(report: v1::UnitReport) -> Option<UnitReport> {
    let state = match report.state() {
        v1::UnitReportState::Unspecified => return None,
        v1::UnitReportState::Parked => ReportState::Parked,
        v1::UnitReportState::Woken => ReportState::Woken,
        v1::UnitReportState::Returned => ReportState::Returned,
        v1::UnitReportState::QueueFull => ReportState::QueueFull,
        v1::UnitReportState::Done => ReportState::Done,
    };
    let reason = |one: v1::RefusalCount| RefusalCount {
        plugin: if one.plugin.len() > PLUGIN_BYTES_MAX { "other".into() } else { one.plugin.into() },
        reason: one.reason,
        nodes: one.nodes,
    };
    let refusals = report.refusals.map(|found| {
        Arc::new(Refusals {
            reasons: found.reasons.into_iter().take(REASONS_MAX).map(reason).collect(),
            nearest_miss: found.nearest_miss,
            nodes: found.nodes,
            attempts: found.attempts,
        })
    });
    Some(UnitReport {
        unit: UnitId(report.unit_id),
        spec_revision: Revision(report.spec_revision),
        state,
        refusals,
        need: report.need,
        unplaced: report.unplaced,
        lacking: report.lacking_groups,
        assigned: report.assigned,
    })
}

/// What a scheduler says of room.
pub(crate) fn room(room: &v1::RoomReport) -> RoomReport {
    let v1::RoomReport { need, places, assigned, revision } = *room;
    RoomReport { need, places, assigned, revision: Revision(revision) }
}

/// What a scheduler gets, with the bytes of the unit's record.
pub(crate) fn assignment(assignment: Assignment, record: Bytes) -> raw::UnitAssignment {
    let Assignment { record: _, revision, ordinals, mut incarnations, bound, permit } = assignment;
    let Permit { scope, at_maximum, turn, called, places_max, read } = permit;
    if incarnations.iter().all(|incarnation| *incarnation == 0) {
        incarnations.clear();
    }
    let scope = match scope {
        NodeScope::Partition => v1::AssignmentScope::Unspecified,
        NodeScope::Global => v1::AssignmentScope::Global,
    };
    let (spec_revision, scope) = (revision.0, scope.into());
    raw::UnitAssignment {
        record,
        spec_revision,
        ordinals,
        incarnations,
        bound,
        scope,
        at_maximum,
        turn,
        called,
        places_max,
        read_revision: read.0,
    }
}

pub(crate) fn eviction(request: EvictRequest) -> v1::Eviction {
    let EvictRequest { unit, reason, ordinals, incarnations, by, read: _ } = request;
    let reason = to_proto::eviction_reason(Some(reason)).into();
    v1::Eviction { unit_id: unit.0, ordinals, incarnations, reason, by, preemptor_id: 0 }
}

/// What the dispatcher of a term does.
pub(crate) fn status(core: &Dispatcher, epoch: Epoch) -> v1::GetDispatcherStatusResponse {
    let (summary, partition) = (core.summary(), core.partition().records().whole());
    let (allocated, capacity) = core.queueing().allocated(core.nodes());
    let resources =
        |amounts: BTreeMap<String, i64>| Some(v1::Resources { amounts: amounts.into_iter().collect() });
    let phases = lifecycle::UnitPhase::ALL.into_iter().zip(summary.n_by_phase);
    v1::GetDispatcherStatusResponse {
        units: summary.units,
        queued_units: summary.queued_units,
        queued_running_units: summary.queued_running_units,
        dispatched_units: summary.dispatched_units,
        parked_units: summary.parked_units,
        submitted: summary.counters.submitted,
        redispatched: summary.counters.redispatched,
        assigned: summary.counters.assigned,
        repairs: summary.counters.repairs,
        epoch: epoch.0,
        revision: summary.revision.0,
        phases: phases.map(|(phase, count)| (phase.name().to_owned(), count)).collect(),
        nodes: summary.nodes as u64,
        nodes_not_ready: summary.nodes_not_ready as u64,
        evictions_paused: summary.evictions_paused,
        nodes_draining: summary.nodes_draining as u64,
        pauses: core.pauses().iter().map(to_proto::pause).collect(),
        partition_mode: to_proto::partition_mode(partition.mode).into(),
        partition_by_hand: partition.by_hand,
        partition_reason: partition.reason.clone(),
        partition_change_time_ms: partition.changed_ms,
        gangs_waiting: summary.gangs_waiting as u64,
        allocated: resources(allocated),
        capacity: resources(capacity),
        band_floor_percent: u32::from(summary.floor_percent),
    }
}

/// What a drained node waits for.
pub(crate) fn drain(core: &Dispatcher, node: NodeId) -> v1::GetDrainResponse {
    let view = core.node_evictions().drain_view(node, DRAIN_BLOCKS_MAX);
    let block = |(unit, block): &(UnitId, DrainBlock)| {
        let spec = &core.unit(*unit)?.record.spec;
        let unit_name = format!("{}/{}", spec.namespace, spec.name);
        Some(v1::DrainBlock { unit_name, reason: block.to_string() })
    };
    v1::GetDrainResponse {
        units: u32::try_from(view.n_units).unwrap_or(u32::MAX),
        blocked: view.blocked.iter().filter_map(block).collect(),
    }
}
