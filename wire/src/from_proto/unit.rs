//! Units as they are stored, with everything that the dispatcher filled in.

use godel_domain::{
    label_expression::{LabelExpression, LabelOperator},
    node_affinity::{NodeAffinity, NodeTerm, PreferredNodes},
    node_load::MaxLoad,
    surge::Surge,
    task_group_record::{TASK_GROUPS_MAX, TaskGroupRecord},
    unit::{
        CompactedRuns, OnBelowMin, OnEviction, OnFailure, RestartPolicy, RunSpec, SubmittedSize, TaskGroup,
        Template, UnitEnd, UnitRecord, UnitSpec, UnitStatus, Volume, WorkloadClass,
    },
    unit_affinity::{SpreadTerm, UnitAffinity, UnitTerm},
    unit_topology::{Segments, UnitTopology},
};
use godel_proto::v1;

use super::{BadField, Result, demand, each, pool, toleration, unit_id, value};
use crate::to_proto;

/// A unit as stored.
///
/// # Errors
/// Something that the dispatcher fills in is missing, or a field is out of range.
pub fn unit_record(pb: v1::UnitRecord) -> Result<UnitRecord> {
    let spec = unit_spec(pb.spec.unwrap_or_default()).map_err(|bad| bad.under("spec"))?;
    let status = unit_status(pb.status.unwrap_or_default()).map_err(|bad| bad.under("status"))?;
    if status.ordinals.len() != spec.task_groups.len() {
        return Err(BadField::new("status.ordinals", "not one entry for each task group"));
    }
    if usize::from(status.own_groups) > spec.task_groups.len() {
        return Err(BadField::new("status.own_groups", "more than there are task groups"));
    }
    Ok(UnitRecord { id: unit_id(pb.unit_id, "unit_id")?, spec, status })
}

/// A task group that was added to a unit, as stored.
///
/// # Errors
/// Something that the dispatcher fills in is missing, or a field is out of range.
pub fn task_group_record(pb: v1::TaskGroupRecord) -> Result<TaskGroupRecord> {
    let v1::TaskGroupRecord { unit_id: unit, task_group: idx, group, ordinals } = pb;
    let group = group.ok_or_else(|| BadField::new("group", "missing"))?;
    let idx = u16::try_from(idx).ok().filter(|idx| usize::from(*idx) < TASK_GROUPS_MAX);
    Ok(TaskGroupRecord {
        unit: unit_id(unit, "unit_id")?,
        idx: idx.ok_or_else(|| BadField::new("task_group", format!("not below {TASK_GROUPS_MAX}")))?,
        group: task_group(group).map_err(|bad| bad.under("group"))?,
        ordinals: ordinal_ranges(ordinals.unwrap_or_default()).map_err(|bad| bad.under("ordinals"))?,
    })
}

/// What the control plane writes about a unit.
///
/// # Errors
/// A field is out of range, or ordinals are out of order.
fn unit_status(pb: v1::UnitStatus) -> Result<UnitStatus> {
    let v1::UnitStatus {
        ordinals,
        cancelled,
        suspended,
        ended,
        whole_restarts,
        restarting,
        submitted,
        keeps_succeeded,
        retried_time_ms: retried_ms,
        updated,
        own_groups,
        next_incarnations,
        compacted,
        surges,
        principal,
    } = pb;
    let of_groups = ordinals
        .into_iter()
        .enumerate()
        .map(|(idx, group)| ordinal_ranges(group).map_err(|bad| bad.under(&format!("ordinals[{idx}]"))));
    Ok(UnitStatus {
        ordinals: of_groups.collect::<Result<_>>()?,
        cancelled,
        suspended,
        ended: unit_end(ended)?,
        whole_restarts,
        restarting,
        submitted: submitted.map(|size| {
            let v1::SubmittedSize { min_member, replicas, group_minima } = size;
            Box::new(SubmittedSize { min_member, replicas, group_minima })
        }),
        keeps_succeeded,
        retried_ms,
        updated,
        own_groups: u16::try_from(own_groups).map_err(|_| BadField::new("own_groups", "out of range"))?,
        next_incarnations: next_incarnations.into_iter().map(|one| (one.ordinal, one.incarnation)).collect(),
        compacted: compacted.map(|sums| {
            let v1::CompactedRuns {
                replicas,
                succeeded,
                failed,
                starts,
                run_ms,
                resource_seconds,
                bound_time_ms: bound_ms,
            } = sums;
            let used = resource_seconds.into_iter().collect();
            Box::new(CompactedRuns { replicas, succeeded, failed, starts, run_ms, used, bound_ms })
        }),
        surges: surges.into_iter().map(surge).collect(),
        principal,
    })
}

fn surge(pb: v1::Surge) -> Surge {
    let v1::Surge { ordinal, replaces, movement, expires_ms } = pb;
    Surge { ordinal, replaces, movement, expires_ms }
}

/// A unit as submitted, with its defaults filled in.
///
/// # Errors
/// Something that the dispatcher fills in is missing, or a field is out of range.
fn unit_spec(pb: v1::UnitSpec) -> Result<UnitSpec> {
    let meta = pb.meta.unwrap_or_default();
    let missing = |path: &str| BadField::new(path, "missing");
    Ok(UnitSpec {
        namespace: meta.namespace,
        name: meta.name,
        uid: meta.uid,
        labels: meta.labels.into_iter().collect(),
        owner: meta.owner,
        class: workload_class(pb.workload_class)?.ok_or_else(|| missing("workload_class"))?,
        task_groups: each("task_groups", pb.task_groups, task_group)?,
        min_member: pb.min_member.unwrap_or(0),
        queue: pb.queue,
        priority: pb.priority.unwrap_or(0),
        priority_class: pb.priority_class,
        pool: pool(pb.pool)?,
        restart_policy: restart_policy(pb.restart_policy)?.ok_or_else(|| missing("restart_policy"))?,
        profile: pb.profile,
        ttl_after_finished_ms: pb.ttl_after_finished_ms.unwrap_or(0),
        max_restarts: pb.max_restarts.unwrap_or(0),
        on_eviction: on_eviction(pb.on_eviction)?.unwrap_or_default(),
        on_below_min: on_below_min(pb.on_below_min)?.unwrap_or_default(),
        on_failure: on_failure(pb.on_failure)?.unwrap_or_default(),
        scheduling_timeout_ms: pb.scheduling_timeout_ms.unwrap_or(0),
        active_deadline_ms: pb.active_deadline_ms.unwrap_or(0),
        // One committed before there was preemption is left alone.
        preemptible: pb.preemptible.unwrap_or(false),
        min_run_ms: pb.min_run_ms,
        affinity: unit_affinity(pb.affinity.unwrap_or_default()).map_err(|bad| bad.under("affinity"))?,
        topology: unit_topology(pb.topology.unwrap_or_default()),
        max_surge: pb.max_surge,
        movable: pb.movable,
    })
}

/// Replicas of one template.
///
/// # Errors
/// The template is wrong.
fn task_group(pb: v1::TaskGroup) -> Result<TaskGroup> {
    Ok(TaskGroup {
        name: pb.name,
        replicas: pb.replicas,
        min_member: pb.min_member.unwrap_or(0),
        template: template(pb.template.unwrap_or_default()).map_err(|bad| bad.under("template"))?,
        topology: group_topology(pb.topology),
    })
}

fn ordinal_ranges(pb: v1::OrdinalRanges) -> Result<Vec<(u32, u32)>> {
    let mut ordinals = Vec::with_capacity(pb.ranges.len());
    let mut last_end = 0;
    for (idx, range) in pb.ranges.iter().enumerate() {
        // An empty one says where new ordinals begin.
        if range.start > range.end || range.start < last_end {
            return Err(BadField::new(format!("ranges[{idx}]"), "out of order"));
        }
        last_end = range.end;
        ordinals.push((range.start, range.end));
    }
    Ok(ordinals)
}

/// One replica.
///
/// # Errors
/// Its demand or a toleration is wrong.
pub fn template(pb: v1::Template) -> Result<Template> {
    Ok(Template {
        demand: demand(pb.demand.unwrap_or_default()).map_err(|bad| bad.under("demand"))?,
        node_selector: pb.node_selector.into_iter().collect(),
        tolerations: each("tolerations", pb.tolerations, toleration)?,
        node_affinity: node_affinity(pb.node_affinity.unwrap_or_default())
            .map_err(|bad| bad.under("node_affinity"))?,
        max_load: pb.max_load.map(max_load).unwrap_or_default(),
        run: run_spec(pb.run.unwrap_or_default()),
    })
}

fn node_affinity(pb: v1::NodeAffinity) -> Result<NodeAffinity> {
    Ok(NodeAffinity {
        required: each("required", pb.required, node_term)?,
        preferred: each("preferred", pb.preferred, |preferred: v1::PreferredNodes| {
            let term = node_term(preferred.nodes.unwrap_or_default()).map_err(|bad| bad.under("nodes"))?;
            Ok(PreferredNodes { weight: preferred.weight, term })
        })?,
    })
}

/// How much of a node may be used already.
pub(super) fn max_load(pb: v1::MaxLoad) -> MaxLoad {
    let v1::MaxLoad { cpu, memory } = pb;
    MaxLoad { cpu, memory }
}

fn node_term(pb: v1::NodeTerm) -> Result<NodeTerm> {
    each("all_of", pb.all_of, label_expression)
}

/// Where the running units of a task group go in relation to one another; `None`: the group says nothing.
pub(super) fn group_topology(pb: Option<v1::UnitTopology>) -> Option<Box<UnitTopology>> {
    pb.map(unit_topology).filter(|topology| !topology.is_empty()).map(Box::new)
}

/// Where the running units of a unit go in relation to one another.
pub(super) fn unit_topology(pb: v1::UnitTopology) -> UnitTopology {
    let v1::UnitTopology { required, preferred, homogeneous, segments } = pb;
    let segments = segments.map(|segments| Segments { size: segments.size, within: segments.within });
    UnitTopology { required, preferred, homogeneous, segments }
}

fn unit_affinity(pb: v1::UnitAffinity) -> Result<UnitAffinity> {
    let v1::UnitAffinity { near, apart, spread } = pb;
    Ok(UnitAffinity {
        near: each("near", near, unit_term)?,
        apart: each("apart", apart, unit_term)?,
        spread: each("spread", spread, spread_term)?,
    })
}

fn unit_term(pb: v1::UnitTerm) -> Result<UnitTerm> {
    let v1::UnitTerm { units, topology, weight } = pb;
    Ok(UnitTerm { units: each("units", units, label_expression)?, topology, weight })
}

fn spread_term(pb: v1::SpreadTerm) -> Result<SpreadTerm> {
    let v1::SpreadTerm { units, topology, max_skew, weight } = pb;
    let max_skew = max_skew.ok_or_else(|| BadField::new("max_skew", "missing"))?;
    Ok(SpreadTerm { units: each("units", units, label_expression)?, topology, max_skew, weight })
}

/// A condition on one label.
///
/// # Errors
/// Its operator stands for nothing.
pub fn label_expression(pb: v1::LabelExpression) -> Result<LabelExpression> {
    let operator = label_operator(pb.operator)
        .ok_or_else(|| BadField::new("operator", format!("{} stands for nothing", pb.operator)))?;
    Ok(LabelExpression { key: pb.key, operator, values: pb.values })
}

/// What an expression says of a value; `None`: the number stands for nothing.
pub(super) fn label_operator(code: i32) -> Option<LabelOperator> {
    value("operator", code, &LabelOperator::ALL, to_proto::label_operator).ok().flatten()
}

/// What an agent runs.
pub fn run_spec(pb: v1::RunSpec) -> RunSpec {
    RunSpec {
        command: pb.command,
        env: pb.env.into_iter().collect(),
        simulated_duration_ms: pb.simulated_duration_ms,
        simulated_exit_code: pb.simulated_exit_code,
        stop_grace_ms: pb.stop_grace_ms,
        eviction_notice_ms: pb.eviction_notice_ms,
        checkpoint_every_ms: pb.checkpoint_every_ms,
        await_command_ms: pb.await_command_ms,
        working_directory: Some(pb.working_directory).filter(|path| !path.is_empty()),
        user: Some(pb.user).filter(|user| !user.is_empty()),
        umask: pb.umask,
        image: Some(pb.image).filter(|image| !image.is_empty()),
        volumes: pb.volumes.into_iter().map(volume).collect(),
    }
}

fn volume(pb: v1::Volume) -> Volume {
    Volume { name: pb.name, bytes: pb.bytes, path: Some(pb.path).filter(|path| !path.is_empty()) }
}

/// Kind of work; `None` when unspecified.
///
/// # Errors
/// An unknown number.
pub fn workload_class(number: i32) -> Result<Option<WorkloadClass>> {
    value("workload_class", number, &WorkloadClass::ALL, to_proto::workload_class)
}

/// Restart policy; `None` when unspecified.
///
/// # Errors
/// An unknown number.
pub fn restart_policy(number: i32) -> Result<Option<RestartPolicy>> {
    value("restart_policy", number, &RestartPolicy::ALL, to_proto::restart_policy)
}

/// What becomes of an evicted running unit; `None` when unspecified.
///
/// # Errors
/// An unknown number.
pub fn on_eviction(number: i32) -> Result<Option<OnEviction>> {
    value("on_eviction", number, &OnEviction::ALL, to_proto::on_eviction)
}

/// What becomes of a unit after a failure.
///
/// # Errors
/// An unknown number.
pub fn on_failure(number: i32) -> Result<Option<OnFailure>> {
    value("on_failure", number, &OnFailure::ALL, to_proto::on_failure)
}

/// What becomes of a unit below `min_member`; `None` when unspecified.
///
/// # Errors
/// An unknown number.
pub fn on_below_min(number: i32) -> Result<Option<OnBelowMin>> {
    value("on_below_min", number, &OnBelowMin::ALL, to_proto::on_below_min)
}

pub(super) fn unit_end(number: i32) -> Result<Option<UnitEnd>> {
    value("ended", number, &UnitEnd::ALL, |end| to_proto::unit_end(Some(end)))
}
