//! Columns of `godel.v1` to and from core row types.

use std::{cell::RefCell, hash::Hash, sync::Arc};

use bytes::Bytes;
use godel_base::ids::{NodeId, Revision, UnitId};
use godel_domain::{
    allocation::{Allocation, CoreSet, DeviceSet, GivenZones, ZoneSet},
    demand::{Demand, Pool},
    run_end::RunEnd,
    running_units::{
        Bind, Compaction, End, Evict, EvictionReason, GroupDemand, LastEviction, Phase, PreemptionTerms,
        Requeue, RunningUnit, RunningUnits, Statuses, UnitTerms,
    },
};
use godel_proto::{raw, v1};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{to_proto, zones};

use super::ends::{end_at, ends_from_proto, run_end_reason_to_proto};
use super::{
    N_ORDINALS_MAX, N_ROWS_PER_RECORD, N_TASK_GROUPS_MAX, OpError,
    demand::demand_from_proto,
    evictions::{last_eviction_from_proto, last_eviction_to_proto},
};

/// Demands that a thread remembers.
const N_RECENT_MAX: usize = 256;

thread_local! {
    static DEMANDS: RefCell<Recent<Demand>> = RefCell::default();
    static STANDINGS: RefCell<Recent<PreemptionTerms>> = RefCell::default();
}

/// Values seen last, so that all who take the same share one: millions of units have a few demands, of half a KiB each.
/// Which of equal values is used makes no difference to anybody.
struct Recent<T> {
    values: FxHashSet<Arc<T>>,
    /// By their encodings in bindings.
    encoded: FxHashMap<Bytes, Arc<T>>,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self { values: FxHashSet::default(), encoded: FxHashMap::default() }
    }
}

impl<T: Eq + Hash> Recent<T> {
    fn shared(&mut self, value: T) -> Arc<T> {
        if let Some(known) = self.values.get(&value) {
            return Arc::clone(known);
        }
        if self.values.len() >= N_RECENT_MAX {
            self.values.clear();
        }
        let value = Arc::new(value);
        self.values.insert(Arc::clone(&value));
        value
    }

    /// The value of these bytes, decoded unless the same were seen of late.
    fn decoded(
        &mut self,
        encoded: &Bytes,
        decode: impl FnOnce(&Bytes) -> Result<T, OpError>,
    ) -> Result<Arc<T>, OpError> {
        if let Some(known) = self.encoded.get(encoded) {
            return Ok(Arc::clone(known));
        }
        let value = decode(encoded)?;
        let value = self.shared(value);
        if self.encoded.len() >= N_RECENT_MAX {
            self.encoded.clear();
        }
        // A copy: a slice would keep the whole message.
        self.encoded.insert(Bytes::copy_from_slice(encoded), Arc::clone(&value));
        Ok(value)
    }
}

/// A binding and whose it is.
///
/// # Errors
/// The first field that can never be valid.
pub fn bind_from_proto(binding: raw::Binding) -> Result<(UnitId, Bind), OpError> {
    let unit = unit_id(binding.unit_id)?;
    let pool = pool_from_proto(binding.pool)?;
    let len = binding.ordinals.len();
    ordinals(&binding.ordinals)?;
    column("node_ids", len, binding.node_ids.len())?;
    optional_column("incarnations", len, binding.incarnations.len())?;
    optional_column("device_masks", len, binding.device_masks.len())?;
    optional_column("zone_masks", len, binding.zone_masks.len())?;
    optional_column("core_masks", len, binding.core_masks.len())?;
    if binding.node_ids.contains(&0) {
        return Err(OpError::field("node_ids", "0 is not a node"));
    }
    let bind = Bind {
        group: group(binding.task_group)?,
        demand: encoded_demand(&binding.demand)?,
        pool,
        ordinals: binding.ordinals,
        incarnations: binding.incarnations,
        nodes: binding.node_ids.into_iter().map(NodeId).collect(),
        devices: binding.device_masks.into_iter().map(DeviceSet).collect(),
        zones: zones::given(binding.zone_masks, &binding.core_masks),
        standing: binding.standing.as_ref().map(encoded_standing).transpose()?,
    };
    Ok((unit, bind))
}

/// An eviction and whose it is.
///
/// # Errors
/// The first field that can never be valid.
pub fn evict_from_proto(eviction: v1::Eviction) -> Result<(UnitId, Evict), OpError> {
    let unit = unit_id(eviction.unit_id)?;
    ordinals(&eviction.ordinals)?;
    optional_column("incarnations", eviction.ordinals.len(), eviction.incarnations.len())?;
    let reason = eviction_reason_from_proto(eviction.reason)?
        .ok_or_else(|| OpError::field("reason", "is required"))?;
    Ok((
        unit,
        Evict {
            ordinals: eviction.ordinals,
            incarnations: eviction.incarnations,
            reason,
            by: eviction.by,
            preemptor: UnitId(eviction.preemptor_id),
        },
    ))
}

/// Reported statuses and whose they are.
///
/// # Errors
/// The first field that can never be valid.
pub fn statuses_from_proto(statuses: v1::RunStatuses) -> Result<(UnitId, Statuses), OpError> {
    let unit = unit_id(statuses.unit_id)?;
    let len = statuses.ordinals.len();
    ordinals(&statuses.ordinals)?;
    column("phases", len, statuses.phases.len())?;
    optional_column("incarnations", len, statuses.incarnations.len())?;
    optional_column("exit_codes", len, statuses.exit_codes.len())?;
    optional_column("restarts", len, statuses.restarts.len())?;
    optional_column("reasons", len, statuses.reasons.len())?;
    optional_column("started_times_ms", len, statuses.started_times_ms.len())?;
    optional_column("ended_times_ms", len, statuses.ended_times_ms.len())?;
    let ends = ends_from_proto(len, &statuses.reasons, &statuses.started_times_ms, &statuses.ended_times_ms);
    let mut phases = Vec::with_capacity(len);
    for phase in statuses.phases {
        match phase_from_proto(phase)? {
            Phase::Pending => return Err(OpError::field("phases", "an agent never reports pending")),
            phase => phases.push(phase),
        }
    }
    let statuses = Statuses {
        ordinals: statuses.ordinals,
        incarnations: statuses.incarnations,
        phases,
        exit_codes: statuses.exit_codes,
        restarts: statuses.restarts,
        ends,
    };
    Ok((unit, statuses))
}

/// Preemption terms of all that is bound of a unit, and whose it is.
///
/// # Errors
/// There are none, or the unit is missing.
pub fn terms_from_proto(change: v1::TermsChange) -> Result<(UnitId, Arc<UnitTerms>), OpError> {
    let v1::TermsChange { unit_id: unit, standing, group_minima } = change;
    let standing = standing.ok_or_else(|| OpError::field("standing", "missing"))?;
    let others = shared_standing(&standing);
    Ok((unit_id(unit)?, Arc::new(UnitTerms { others, group_minima })))
}

/// A compaction and whose it is.
///
/// # Errors
/// The first field that can never be valid.
pub fn compaction_from_proto(compaction: v1::Compaction) -> Result<(UnitId, Compaction), OpError> {
    let v1::Compaction { unit_id: unit, ordinals: columns, incarnations, task_groups } = compaction;
    ordinals(&columns)?;
    optional_column("incarnations", columns.len(), incarnations.len())?;
    let groups = task_groups.into_iter().map(group).collect::<Result<_, _>>()?;
    Ok((unit_id(unit)?, Compaction { ordinals: columns, incarnations, groups }))
}

/// A requeue and whose it is.
///
/// # Errors
/// The first field that can never be valid.
pub fn requeue_from_proto(requeue: v1::Requeue) -> Result<(UnitId, Requeue), OpError> {
    let unit = unit_id(requeue.unit_id)?;
    ordinals(&requeue.ordinals)?;
    column("incarnations", requeue.ordinals.len(), requeue.incarnations.len())?;
    let v1::Requeue { unit_id: _, ordinals, incarnations, anew } = requeue;
    Ok((unit, Requeue { ordinals, incarnations, anew }))
}

fn encoded_demand(encoded: &Bytes) -> Result<Arc<Demand>, OpError> {
    DEMANDS.with_borrow_mut(|recent| {
        recent.decoded(encoded, |encoded| demand_from_proto(Some(decode("Demand", encoded)?)))
    })
}

/// How running units of a binding stand.
fn encoded_standing(encoded: &Bytes) -> Result<Arc<PreemptionTerms>, OpError> {
    STANDINGS.with_borrow_mut(|recent| {
        recent.decoded(encoded, |encoded| Ok(standing_from_proto(&decode("PreemptionTerms", encoded)?)))
    })
}

fn decode<M: prost::Message + Default>(message: &'static str, encoded: &Bytes) -> Result<M, OpError> {
    M::decode(encoded.clone()).map_err(|_| OpError::Malformed { message })
}

fn shared_standing(standing: &v1::Standing) -> Arc<PreemptionTerms> {
    STANDINGS.with_borrow_mut(|recent| recent.shared(standing_from_proto(standing)))
}

fn standing_from_proto(standing: &v1::Standing) -> PreemptionTerms {
    let v1::Standing {
        priority,
        preemptible,
        min_run_ms,
        min_member,
        queue,
        end: _,
        group_min_member,
        has_master,
    } = standing;
    PreemptionTerms {
        priority: *priority,
        preemptible: *preemptible,
        min_run_ms: *min_run_ms,
        min_member: *min_member,
        group_min_member: *group_min_member,
        queue: (!queue.is_empty()).then(|| Arc::from(queue.as_str())),
        // One that is not known is none.
        end: match standing.end() {
            v1::RunningEnd::Unspecified => End::Unknown,
            v1::RunningEnd::Never => End::Never,
            v1::RunningEnd::ByItself => End::ByItself,
        },
        has_master: *has_master,
    }
}

/// How running units stand against others.
pub fn standing_to_proto(standing: &PreemptionTerms) -> v1::Standing {
    let PreemptionTerms {
        priority,
        preemptible,
        min_run_ms,
        min_member,
        group_min_member,
        queue,
        end,
        has_master,
    } = standing;
    v1::Standing {
        priority: *priority,
        preemptible: *preemptible,
        min_run_ms: *min_run_ms,
        min_member: *min_member,
        group_min_member: *group_min_member,
        queue: queue.as_deref().unwrap_or_default().to_owned(),
        end: match end {
            End::Unknown => v1::RunningEnd::Unspecified,
            End::Never => v1::RunningEnd::Never,
            End::ByItself => v1::RunningEnd::ByItself,
        }
        .into(),
        has_master: *has_master,
    }
}

/// The pool; unspecified is guaranteed.
///
/// # Errors
/// An unknown number.
pub fn pool_from_proto(pool: i32) -> Result<Pool, OpError> {
    match v1::Pool::try_from(pool) {
        Ok(v1::Pool::Unspecified | v1::Pool::Guaranteed) => Ok(Pool::Guaranteed),
        Ok(v1::Pool::BestEffort) => Ok(Pool::BestEffort),
        Err(_) => Err(OpError::field("pool", format!("{pool} is unknown"))),
    }
}

/// The inverse of [`pool_from_proto`].
pub fn pool_to_proto(pool: Pool) -> v1::Pool {
    match pool {
        Pool::Guaranteed => v1::Pool::Guaranteed,
        Pool::BestEffort => v1::Pool::BestEffort,
    }
}

/// The phase; unspecified is pending.
///
/// # Errors
/// An unknown number.
pub fn phase_from_proto(phase: i32) -> Result<Phase, OpError> {
    Ok(match v1::RunPhase::try_from(phase) {
        Ok(v1::RunPhase::Unspecified) => Phase::Pending,
        Ok(v1::RunPhase::Bound) => Phase::Bound,
        Ok(v1::RunPhase::Starting) => Phase::Starting,
        Ok(v1::RunPhase::Running) => Phase::Running,
        Ok(v1::RunPhase::Succeeded) => Phase::Succeeded,
        Ok(v1::RunPhase::Failed) => Phase::Failed,
        Ok(v1::RunPhase::Stopped) => Phase::Stopped,
        Err(_) => return Err(OpError::field("phases", format!("{phase} is unknown"))),
    })
}

/// The inverse of [`phase_from_proto`].
pub fn phase_to_proto(phase: Phase) -> v1::RunPhase {
    match phase {
        Phase::Pending => v1::RunPhase::Unspecified,
        Phase::Bound => v1::RunPhase::Bound,
        Phase::Starting => v1::RunPhase::Starting,
        Phase::Running => v1::RunPhase::Running,
        Phase::Succeeded => v1::RunPhase::Succeeded,
        Phase::Failed => v1::RunPhase::Failed,
        Phase::Stopped => v1::RunPhase::Stopped,
    }
}

/// The reason; unspecified is none.
///
/// # Errors
/// An unknown number.
pub fn eviction_reason_from_proto(reason: i32) -> Result<Option<EvictionReason>, OpError> {
    let known = EvictionReason::ALL.into_iter();
    let mut known = known.filter(|known| i32::from(eviction_reason_to_proto(Some(*known))) == reason);
    match known.next() {
        None if reason != 0 => Err(OpError::field("reason", format!("{reason} is unknown"))),
        found => Ok(found),
    }
}

/// The inverse of [`eviction_reason_from_proto`].
pub fn eviction_reason_to_proto(reason: Option<EvictionReason>) -> v1::EvictionReason {
    match reason {
        None => v1::EvictionReason::Unspecified,
        Some(EvictionReason::Cancelled) => v1::EvictionReason::Cancelled,
        Some(EvictionReason::ScaledIn) => v1::EvictionReason::ScaledIn,
        Some(EvictionReason::Preempted) => v1::EvictionReason::Preempted,
        Some(EvictionReason::NodeLost) => v1::EvictionReason::NodeLost,
        Some(EvictionReason::Drained) => v1::EvictionReason::Drained,
        Some(EvictionReason::Squeezed) => v1::EvictionReason::Squeezed,
        Some(EvictionReason::Rescheduled) => v1::EvictionReason::Rescheduled,
        Some(EvictionReason::Suspended) => v1::EvictionReason::Suspended,
        Some(EvictionReason::Deadline) => v1::EvictionReason::Deadline,
        Some(EvictionReason::BelowMin) => v1::EvictionReason::BelowMin,
        Some(EvictionReason::Failure) => v1::EvictionReason::Failure,
        Some(EvictionReason::Tainted) => v1::EvictionReason::Tainted,
    }
}

/// All rows of a unit as stored: a block per task group, rows that never changed left out.
pub fn rows_to_proto(unit: UnitId, rows: &RunningUnits) -> v1::UnitRows {
    blocks_to_proto(unit, rows, 0, usize::MAX).0
}

/// The first rows of a unit from ordinal `from` on, as many as one listed record holds, and the ordinal at which
/// the next one begins; `None` when this was the last.
pub fn rows_part_to_proto(unit: UnitId, rows: &RunningUnits, from: u32) -> (v1::UnitRows, Option<u32>) {
    blocks_to_proto(unit, rows, from, N_ROWS_PER_RECORD)
}

/// At most `n_max` rows that ever changed, from ordinal `from` on, and the ordinal of the next one.
fn blocks_to_proto(
    unit: UnitId,
    rows: &RunningUnits,
    from: u32,
    n_max: usize,
) -> (v1::UnitRows, Option<u32>) {
    let used = rows.rows.from(from).filter(|(_, row)| row.revision > Revision(0));
    let part = || used.clone().take(n_max);
    let next = if n_max == usize::MAX { None } else { used.clone().nth(n_max).map(|(ordinal, _)| ordinal) };
    let n_groups =
        part().map(|(_, row)| usize::from(row.group) + 1).max().unwrap_or(0).max(rows.groups.len());
    let mut blocks: Vec<v1::RowBlock> = (0u32..)
        .take(n_groups)
        .map(|task_group| v1::RowBlock { task_group, ..v1::RowBlock::default() })
        .collect();
    for (block, group) in blocks.iter_mut().zip(&rows.groups) {
        if let Some(GroupDemand { demand, pool, standing }) = group {
            block.standing = standing.as_deref().map(standing_to_proto);
            block.demand = Some(to_proto::demand(demand));
            block.pool = pool_to_proto(*pool).into();
        }
    }
    for (ordinal, row) in part() {
        push_row(&mut blocks[usize::from(row.group)], ordinal, rows.end(ordinal), row);
    }
    for block in &mut blocks {
        if block.zone_masks.iter().all(|zones| *zones == 0) {
            block.zone_masks.clear();
        }
        if block.core_masks.iter().all(|cores| *cores == 0) {
            block.core_masks.clear();
        }
        if block.reasons.iter().all(|reason| *reason == 0) {
            block.reasons.clear();
        }
        for times in [&mut block.started_times_ms, &mut block.ended_times_ms] {
            if times.iter().all(|time| *time == 0) {
                times.clear();
            }
        }
    }
    blocks.retain(|block| block.demand.is_some() || !block.ordinals.is_empty());
    let preemptor_ids = rows.preemptors().iter().map(|preemptor| preemptor.0).collect();
    let ordinals = from..next.unwrap_or(u32::MAX);
    let is_of_part = |eviction: &&LastEviction| ordinals.contains(&eviction.replica.ordinal);
    let evictions = rows.evictions().iter().filter(is_of_part).map(last_eviction_to_proto).collect();
    (v1::UnitRows { unit_id: unit.0, blocks, preemptor_ids, evictions }, next)
}

/// The inverse of [`rows_to_proto`]; of a part, the rows in it.
///
/// # Errors
/// The first field that can never be valid.
pub fn rows_from_proto(proto: v1::UnitRows) -> Result<(UnitId, RunningUnits), OpError> {
    let unit = unit_id(proto.unit_id)?;
    let mut rows = RunningUnits::default();
    let preemptors = proto.preemptor_ids.into_iter().map(UnitId).collect();
    rows.set_lineage(preemptors, proto.evictions.iter().filter_map(last_eviction_from_proto).collect());
    for block in proto.blocks {
        load_block(&mut rows, block)?;
    }
    Ok((unit, rows))
}

fn push_row(block: &mut v1::RowBlock, ordinal: u32, end: RunEnd, row: &RunningUnit) {
    let RunningUnit {
        incarnation,
        node,
        allocation: Allocation { devices, zones },
        phase,
        eviction,
        group: _,
        exit_code,
        restarts,
        revision,
        bound_time_ms,
    } = row;
    let RunEnd { reason, started_ms, ended_ms } = end;
    block.ordinals.push(ordinal);
    block.incarnations.push(*incarnation);
    block.phases.push(phase_to_proto(*phase).into());
    block.node_ids.push(node.0);
    block.device_masks.push(devices.0);
    block.zone_masks.push(zones.zones.0);
    block.core_masks.push(zones.cores.0);
    block.exit_codes.push(*exit_code);
    block.restarts.push(*restarts);
    block.evictions.push(i32::from(eviction_reason_to_proto(*eviction)).unsigned_abs());
    block.revisions.push(revision.0);
    block.bound_times_ms.push(*bound_time_ms);
    block.reasons.push(run_end_reason_to_proto(reason).into());
    block.started_times_ms.push(started_ms);
    block.ended_times_ms.push(ended_ms);
}

fn load_block(rows: &mut RunningUnits, block: v1::RowBlock) -> Result<(), OpError> {
    let len = block.ordinals.len();
    ordinals(&block.ordinals)?;
    for (field, column) in [
        ("phases", block.phases.len()),
        ("node_ids", block.node_ids.len()),
        ("incarnations", block.incarnations.len()),
        ("device_masks", block.device_masks.len()),
        ("zone_masks", block.zone_masks.len()),
        ("core_masks", block.core_masks.len()),
        ("exit_codes", block.exit_codes.len()),
        ("restarts", block.restarts.len()),
        ("evictions", block.evictions.len()),
        ("revisions", block.revisions.len()),
        ("bound_times_ms", block.bound_times_ms.len()),
        ("reasons", block.reasons.len()),
        ("started_times_ms", block.started_times_ms.len()),
        ("ended_times_ms", block.ended_times_ms.len()),
    ] {
        optional_column(field, len, column)?;
    }
    let group = group(block.task_group)?;
    if block.demand.is_some() {
        let idx = usize::from(group);
        if rows.groups.len() <= idx {
            rows.groups.reserve_exact(idx + 1 - rows.groups.len());
            rows.groups.resize(idx + 1, None);
        }
        let demand = demand_from_proto(block.demand)?;
        let demand = DEMANDS.with_borrow_mut(|recent| recent.shared(demand));
        let standing = block.standing.as_ref().map(shared_standing);
        rows.groups[idx] = Some(GroupDemand { demand, pool: pool_from_proto(block.pool)?, standing });
    }
    rows.rows.grow(&block.ordinals);
    for (idx, ordinal) in block.ordinals.iter().enumerate() {
        let reason = i32::try_from(at(&block.evictions, idx))
            .map_err(|_| OpError::field("evictions", "is out of range"))?;
        let row = RunningUnit {
            incarnation: at(&block.incarnations, idx),
            node: NodeId(at(&block.node_ids, idx)),
            allocation: Allocation {
                devices: DeviceSet(at(&block.device_masks, idx)),
                zones: GivenZones {
                    zones: ZoneSet(at(&block.zone_masks, idx)),
                    cores: CoreSet(at(&block.core_masks, idx)),
                },
            },
            phase: phase_from_proto(at(&block.phases, idx))?,
            eviction: eviction_reason_from_proto(reason)?,
            group,
            exit_code: at(&block.exit_codes, idx),
            restarts: at(&block.restarts, idx),
            revision: Revision(at(&block.revisions, idx)),
            bound_time_ms: at(&block.bound_times_ms, idx),
        };
        if let Some(known) = rows.rows.get_mut(*ordinal) {
            *known = row;
        }
        let end = end_at(&block.reasons, &block.started_times_ms, &block.ended_times_ms, idx);
        rows.ends.set(*ordinal, end);
    }
    Ok(())
}

fn at<T: Copy + Default>(column: &[T], idx: usize) -> T {
    column.get(idx).copied().unwrap_or_default()
}

fn unit_id(id: u64) -> Result<UnitId, OpError> {
    if id == 0 { Err(OpError::field("unit_id", "is required")) } else { Ok(UnitId(id)) }
}

fn group(task_group: u32) -> Result<u16, OpError> {
    u16::try_from(task_group)
        .ok()
        .filter(|group| usize::from(*group) < N_TASK_GROUPS_MAX)
        .ok_or_else(|| OpError::field("task_group", format!("{task_group} is not below {N_TASK_GROUPS_MAX}")))
}

fn ordinals(ordinals: &[u32]) -> Result<(), OpError> {
    match ordinals.iter().find(|ordinal| **ordinal >= N_ORDINALS_MAX) {
        Some(ordinal) => Err(OpError::field("ordinals", format!("{ordinal} is not below {N_ORDINALS_MAX}"))),
        None => Ok(()),
    }
}

fn column(field: &'static str, len: usize, column: usize) -> Result<(), OpError> {
    if column == len {
        Ok(())
    } else {
        Err(OpError::field(field, format!("has {column} entries, not {len}")))
    }
}

fn optional_column(field: &'static str, len: usize, other: usize) -> Result<(), OpError> {
    if other == 0 { Ok(()) } else { column(field, len, other) }
}
