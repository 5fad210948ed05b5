//! Units, the task groups that were added to them, and what is kept of units that are gone.
//!
//! What is judged of a unit beside its names depends on neither its id nor its `meta`: see [`super::super::known`].

use std::collections::BTreeSet;

use godel_domain::{
    limits::{
        ACTIVE_DEADLINE_MS_MAX, AMOUNT_MAX, AWAIT_COMMAND_MS_MAX, CHECKPOINT_EVERY_MS_MAX,
        CHECKPOINT_EVERY_MS_MIN, COMPACTED_ORDINAL_MAX, EVICTION_NOTICE_MS_MAX, MIN_RUN_MS_MAX, REPLICAS_MAX,
        RESTARTS_MAX, SCHEDULING_TIMEOUT_MS_MAX, STOP_GRACE_MS_MAX, TTL_MS_MAX,
    },
    names::{ENTRIES_MAX, NAME_LEN_MAX},
    node_affinity::PREFERENCE_WEIGHT_MAX,
    queue_spec::PRIORITY_MAX,
    surge::N_SURGES_MAX,
    task_group_record::TASK_GROUPS_MAX,
    unit_affinity::{MAX_SKEW_MAX, TERM_WEIGHT_MAX},
    unit_history::N_RUNS_MAX,
    unit_topology::N_LEVELS_MAX,
};
use godel_proto::v1::{self, LabelOperator};

use super::{BadField, Result, distinct, keys, required, resources, some, within, words};

/// Characters of a role, and of what stands between it and a name.
const ROLE_LEN_MAX: usize = 16;
/// Of the mode of new files.
const UMASK_MAX: u32 = 0o777;
/// Percent of a node.
const PERCENT: u32 = 100;

pub(crate) fn unit(pb: &v1::UnitRecord) -> Result<()> {
    let v1::UnitRecord { unit_id: _, spec, status } = pb;
    let (spec, status) = (spec.clone().unwrap_or_default(), status.clone().unwrap_or_default());
    unit_spec(&spec).map_err(|bad| bad.under("spec"))?;
    unit_status(&status).map_err(|bad| bad.under("status"))?;
    for (idx, (group, ranges)) in spec.task_groups.iter().zip(&status.ordinals).enumerate() {
        counted(&format!("spec.task_groups[{idx}]"), group, ranges)?;
    }
    let compacted = status.compacted.as_ref().map_or(0, |compacted| compacted.replicas);
    let own: u64 = spec.task_groups.iter().map(|group| u64::from(group.replicas)).sum();
    // The replicas of groups that were added are in records of their own.
    let has_all = status.own_groups == 0;
    let most = own.saturating_add(compacted).max(1);
    if has_all && spec.min_member.is_some_and(|least| u64::from(least) > most) {
        let why = format!("{} are more than the replicas, {own}", spec.min_member.unwrap_or_default());
        return Err(BadField::new("spec.min_member", why));
    }
    Ok(())
}

pub(crate) fn task_group_record(pb: &v1::TaskGroupRecord) -> Result<()> {
    let group = pb.group.clone().unwrap_or_default();
    task_group(&group).map_err(|bad| bad.under("group"))?;
    let ranges = pb.ordinals.clone().unwrap_or_default();
    ordinals(std::slice::from_ref(&ranges))
        .map_err(|(_, range, why)| BadField::new(format!("ordinals.ranges[{range}]"), why))?;
    counted("group", &group, &ranges)
}

/// A task group has so many replicas as ordinals.
fn counted(
    path: &str,
    group: &v1::TaskGroup,
    v1::OrdinalRanges { ranges }: &v1::OrdinalRanges,
) -> Result<()> {
    let n: u64 = ranges.iter().map(|range| u64::from(range.end.saturating_sub(range.start))).sum();
    if n == u64::from(group.replicas) {
        return Ok(());
    }
    let why = format!("{} replicas have {n} ordinals", group.replicas);
    Err(BadField::new(format!("{path}.replicas"), why))
}

fn unit_spec(pb: &v1::UnitSpec) -> Result<()> {
    let meta = pb.meta.clone().unwrap_or_default();
    required("meta.namespace", &meta.namespace)?;
    required("meta.name", &meta.name)?;
    keys("meta.labels", &meta.labels)?;
    some("task_groups", &pb.task_groups)?;
    if pb.task_groups.len() > TASK_GROUPS_MAX {
        return Err(BadField::new("task_groups", format!("more than {TASK_GROUPS_MAX}")));
    }
    for (idx, group) in pb.task_groups.iter().enumerate() {
        task_group(group).map_err(|bad| bad.under(&format!("task_groups[{idx}]")))?;
    }
    distinct("task_groups", pb.task_groups.iter().map(|group| &group.name))?;
    let replicas: u64 = pb.task_groups.iter().map(|group| u64::from(group.replicas)).sum();
    // Replacements that start first come on top.
    let most = u64::from(REPLICAS_MAX + N_SURGES_MAX);
    if replicas > most {
        return Err(BadField::new("task_groups", format!("{replicas} replicas; at most {most}")));
    }
    let priority = pb.priority.unwrap_or(0);
    within("priority", priority, -PRIORITY_MAX, PRIORITY_MAX)?;
    words("profile", &pb.profile, NAME_LEN_MAX)?;
    for (path, ms, most) in [
        ("ttl_after_finished_ms", pb.ttl_after_finished_ms, TTL_MS_MAX),
        ("min_run_ms", Some(pb.min_run_ms), MIN_RUN_MS_MAX),
        ("scheduling_timeout_ms", pb.scheduling_timeout_ms, SCHEDULING_TIMEOUT_MS_MAX),
        ("active_deadline_ms", pb.active_deadline_ms, ACTIVE_DEADLINE_MS_MAX),
    ] {
        within(path, ms.unwrap_or(0), 0, most)?;
    }
    within("max_restarts", pb.max_restarts.unwrap_or(0), 0, RESTARTS_MAX)?;
    within("max_surge", pb.max_surge, 0, N_SURGES_MAX)?;
    affinity(&pb.affinity.clone().unwrap_or_default()).map_err(|bad| bad.under("affinity"))?;
    topology(&pb.topology.clone().unwrap_or_default()).map_err(|bad| bad.under("topology"))
}

fn unit_status(pb: &v1::UnitStatus) -> Result<()> {
    ordinals(&pb.ordinals)
        .map_err(|(group, range, why)| BadField::new(format!("ordinals[{group}].ranges[{range}]"), why))?;
    within("whole_restarts", pb.whole_restarts, 0, RESTARTS_MAX)?;
    words("principal", &pb.principal, ROLE_LEN_MAX + NAME_LEN_MAX)?;
    distinct("next_incarnations", pb.next_incarnations.iter().map(|next| next.ordinal))?;
    if let Some(idx) = pb.next_incarnations.iter().position(|next| next.incarnation == 0) {
        let why = "0: the first one does not return";
        return Err(BadField::new(format!("next_incarnations[{idx}].incarnation"), why));
    }
    distinct("surges", pb.surges.iter().map(|surge| surge.ordinal))?;
    for (idx, surge) in pb.surges.iter().enumerate() {
        if surge.ordinal == surge.replaces {
            let why = "a replica does not replace itself";
            return Err(BadField::new(format!("surges[{idx}].replaces"), why));
        }
    }
    if let Some(compacted) = &pb.compacted {
        let ended = compacted.succeeded.saturating_add(compacted.failed);
        if ended > compacted.replicas {
            let why = format!("{ended} have ended of {} replicas", compacted.replicas);
            return Err(BadField::new("compacted.replicas", why));
        }
    }
    Ok(())
}

/// No ordinal is of two groups, and none is above all that are ever given. Of a wrong range its group, its position and what is wrong.
fn ordinals(groups: &[v1::OrdinalRanges]) -> std::result::Result<(), (usize, usize, String)> {
    let mut all: Vec<(u32, u32, usize, usize)> = Vec::new();
    for (group, v1::OrdinalRanges { ranges }) in groups.iter().enumerate() {
        for (at, range) in ranges.iter().enumerate() {
            if range.end > COMPACTED_ORDINAL_MAX {
                return Err((group, at, format!("{} is above {COMPACTED_ORDINAL_MAX}", range.end)));
            }
            if range.start < range.end {
                all.push((range.start, range.end, group, at));
            }
        }
    }
    all.sort_unstable();
    match all.windows(2).find(|pair| pair[1].0 < pair[0].1) {
        Some(pair) => Err((pair[1].2, pair[1].3, format!("ordinal {} stands twice", pair[1].0))),
        None => Ok(()),
    }
}

fn task_group(pb: &v1::TaskGroup) -> Result<()> {
    let v1::TaskGroup { name, replicas, template: _, min_member, topology: own } = pb;
    required("name", name)?;
    within("replicas", *replicas, 0, REPLICAS_MAX + N_SURGES_MAX)?;
    within("min_member", min_member.unwrap_or(0), 0, (*replicas).max(1))?;
    template(&pb.template.clone().unwrap_or_default()).map_err(|bad| bad.under("template"))?;
    topology(&own.clone().unwrap_or_default()).map_err(|bad| bad.under("topology"))
}

fn template(pb: &v1::Template) -> Result<()> {
    let v1::Template { demand: wanted, node_selector, tolerations, run, node_affinity: nodes, max_load } = pb;
    demand(&wanted.clone().unwrap_or_default()).map_err(|bad| bad.under("demand"))?;
    keys("node_selector", node_selector)?;
    entries("node_selector", node_selector.len())?;
    entries("tolerations", tolerations.len())?;
    run_spec(&run.clone().unwrap_or_default()).map_err(|bad| bad.under("run"))?;
    let v1::MaxLoad { cpu, memory } = max_load.unwrap_or_default();
    for (path, percent) in [("max_load.cpu", cpu), ("max_load.memory", memory)] {
        within(path, percent.unwrap_or(PERCENT), 1, PERCENT)?;
    }
    let v1::NodeAffinity { required: terms, preferred } = nodes.clone().unwrap_or_default();
    for (idx, term) in terms.iter().enumerate() {
        node_term(term).map_err(|bad| bad.under(&format!("node_affinity.required[{idx}]")))?;
    }
    for (idx, one) in preferred.iter().enumerate() {
        let path = format!("node_affinity.preferred[{idx}]");
        within(&format!("{path}.weight"), one.weight, 1, PREFERENCE_WEIGHT_MAX)?;
        node_term(&one.nodes.clone().unwrap_or_default())
            .map_err(|bad| bad.under(&format!("{path}.nodes")))?;
    }
    Ok(())
}

/// What one replica takes.
pub(super) fn demand(pb: &v1::Demand) -> Result<()> {
    let v1::Demand { requests, devices: _, host_ports, zones: _ } = pb;
    resources("requests", requests.as_ref())?;
    let mut amounts = requests.iter().flat_map(|requests| &requests.amounts);
    if let Some((name, amount)) = amounts.find(|(_, amount)| **amount > AMOUNT_MAX) {
        let why = format!("{amount} is above {AMOUNT_MAX}");
        return Err(BadField::new(format!("requests.amounts[{name:?}]"), why));
    }
    distinct("host_ports", host_ports.iter().map(|port| (port.port, port.protocol().as_str_name())))
}

fn run_spec(pb: &v1::RunSpec) -> Result<()> {
    keys("env", &pb.env)?;
    within("stop_grace_ms", pb.stop_grace_ms, 0, STOP_GRACE_MS_MAX)?;
    within("eviction_notice_ms", pb.eviction_notice_ms, 0, EVICTION_NOTICE_MS_MAX)?;
    within("await_command_ms", pb.await_command_ms.unwrap_or(1), 1, AWAIT_COMMAND_MS_MAX)?;
    let every_ms = pb.checkpoint_every_ms.unwrap_or(CHECKPOINT_EVERY_MS_MIN);
    within("checkpoint_every_ms", every_ms, CHECKPOINT_EVERY_MS_MIN, CHECKPOINT_EVERY_MS_MAX)?;
    within("umask", pb.umask.unwrap_or(0), 0, UMASK_MAX)?;
    for (idx, volume) in pb.volumes.iter().enumerate() {
        required(&format!("volumes[{idx}].name"), &volume.name)?;
    }
    distinct("volumes", pb.volumes.iter().map(|volume| &volume.name))
}

fn affinity(pb: &v1::UnitAffinity) -> Result<()> {
    let v1::UnitAffinity { near, apart, spread } = pb;
    for (field, terms) in [("near", near), ("apart", apart)] {
        for (idx, v1::UnitTerm { units, topology, weight }) in terms.iter().enumerate() {
            term(units, topology, *weight).map_err(|bad| bad.under(&format!("{field}[{idx}]")))?;
        }
    }
    for (idx, v1::SpreadTerm { units, topology, max_skew, weight }) in spread.iter().enumerate() {
        let path = format!("spread[{idx}]");
        within(&format!("{path}.max_skew"), max_skew.unwrap_or(1), 1, MAX_SKEW_MAX)?;
        term(units, topology, *weight).map_err(|bad| bad.under(&path))?;
    }
    Ok(())
}

/// Which units, in which domains, and how much that counts.
fn term(units: &[v1::LabelExpression], topology: &str, weight: u32) -> Result<()> {
    required("topology", topology)?;
    within("weight", weight, 0, TERM_WEIGHT_MAX)?;
    expressions("units", units)
}

fn node_term(pb: &v1::NodeTerm) -> Result<()> {
    some("all_of", &pb.all_of)?;
    expressions("all_of", &pb.all_of)
}

fn expressions(path: &str, pbs: &[v1::LabelExpression]) -> Result<()> {
    entries(path, pbs.len())?;
    for (idx, pb) in pbs.iter().enumerate() {
        required(&format!("{path}[{idx}].key"), &pb.key)?;
        let n = pb.values.len();
        let wrong = match pb.operator() {
            LabelOperator::In | LabelOperator::NotIn => (n == 0).then_some("nothing: at least one is needed"),
            LabelOperator::Exists | LabelOperator::DoesNotExist => {
                (n > 0).then_some("values, and the operator looks at none")
            }
            LabelOperator::Gt | LabelOperator::Lt => {
                (n != 1).then_some("the operator compares with one value")
            }
            LabelOperator::Unspecified => None,
        };
        if let Some(why) = wrong {
            return Err(BadField::new(format!("{path}[{idx}].values"), why));
        }
        entries(&format!("{path}[{idx}].values"), n)?;
    }
    Ok(())
}

fn topology(pb: &v1::UnitTopology) -> Result<()> {
    let v1::UnitTopology { required: _, preferred, homogeneous: _, segments } = pb;
    if preferred.len() > N_LEVELS_MAX {
        return Err(BadField::new(
            "preferred",
            format!("{} levels; at most {N_LEVELS_MAX}", preferred.len()),
        ));
    }
    for (idx, level) in preferred.iter().enumerate() {
        required(&format!("preferred[{idx}]"), level)?;
    }
    let Some(segments) = segments else { return Ok(()) };
    within("segments.size", segments.size, 1, REPLICAS_MAX)?;
    required("segments.within", &segments.within)
}

/// As many as one replica may reasonably name.
fn entries(path: &str, n: usize) -> Result<()> {
    if n > ENTRIES_MAX {
        Err(BadField::new(path, format!("{n} entries; at most {ENTRIES_MAX}")))
    } else {
        Ok(())
    }
}

/// What is kept of a unit.
pub(crate) fn history(pb: &v1::UnitHistory) -> Result<()> {
    required("namespace", &pb.namespace)?;
    required("name", &pb.name)?;
    words("principal", &pb.principal, ROLE_LEN_MAX + NAME_LEN_MAX)?;
    let runs = pb.runs.clone().unwrap_or_default();
    if runs.ordinals.len() > N_RUNS_MAX {
        return Err(BadField::new("runs.ordinals", format!("more than {N_RUNS_MAX}")));
    }
    let mut seen = BTreeSet::new();
    if let Some(idx) = runs.ordinals.iter().position(|ordinal| !seen.insert(*ordinal)) {
        return Err(BadField::new(format!("runs.ordinals[{idx}]"), "stands twice"));
    }
    if let Some(idx) = runs.node_ids.iter().position(|node| *node == 0) {
        return Err(BadField::new(format!("runs.node_ids[{idx}]"), "missing"));
    }
    for (field, times) in [("bound_times_ms", &runs.bound_times_ms), ("ended_times_ms", &runs.ended_times_ms)]
    {
        if let Some((idx, time)) = times.iter().enumerate().find(|(_, time)| **time < 0) {
            return Err(BadField::new(format!("runs.{field}[{idx}]"), format!("{time} is negative")));
        }
    }
    let ended = u64::from(pb.succeeded) + u64::from(pb.failed);
    if ended > u64::from(pb.replicas) {
        let why = format!("{ended} have ended of {} replicas", pb.replicas);
        return Err(BadField::new("replicas", why));
    }
    Ok(())
}
