//! What keeps running units where they are: everything that the binder refuses for their own sake, and what their units say of moves.

use godel_base::ids::{RunningUnitId, UnitId};
use godel_core_rescheduler::KeptReason;
use godel_domain::{
    demand::Pool,
    running_units::{Phase, RunningUnit, RunningUnits},
    unit::{OnBelowMin, OnEviction, UnitRecord, UnitSpec, WorkloadClass},
};
use godel_rules::drain::{self, Standing};
use rustc_hash::FxHashSet;

use super::queue_room::QueueRooms;
use crate::picture::ClusterPicture;

/// Returns why a running unit is not moved as its unit says: what may not be preempted now stays, unless `movable` says otherwise.
pub(crate) fn kept_by_unit(
    record: &UnitRecord,
    rows: &RunningUnits,
    ordinal: u32,
    now_ms: i64,
) -> Option<KeptReason> {
    match record.spec.movable {
        Some(true) => return None,
        Some(false) => return Some(KeptReason::NotMovable),
        None => {}
    }
    let row = rows.row(ordinal);
    let standing = rows.standing(row.group);
    let (preemptible, min_run_ms) = standing.map_or(
        // An older binder bound it.
        (record.spec.preemptible, record.spec.min_run_ms),
        |standing| (standing.preemptible, standing.min_run_ms),
    );
    if !preemptible {
        return Some(KeptReason::NotPreemptible);
    }
    let free_at = row.bound_time_ms.saturating_add(i64::try_from(min_run_ms).unwrap_or(i64::MAX));
    // Without `min_run` the clock of whoever bound it does not matter.
    (min_run_ms > 0 && free_at > now_ms).then_some(KeptReason::MinRun)
}

/// What is asked about every running unit of a snapshot.
pub(super) struct KeptRules<'p> {
    picture: &'p ClusterPicture,
    now_ms: i64,
    /// Running units whose room is promised to others.
    victims: FxHashSet<RunningUnitId>,
    /// `None`: no queue keeps a replacement out.
    rooms: Option<QueueRooms>,
}

impl<'p> KeptRules<'p> {
    pub(super) fn new(picture: &'p ClusterPicture, now_ms: i64) -> Self {
        let holds = picture.cluster.holds().all();
        let victims = holds.iter().flat_map(|hold| hold.victims.iter().chain(&hold.queue_victims));
        Self { picture, now_ms, victims: victims.copied().collect(), rooms: QueueRooms::of(picture) }
    }

    /// How many replacements of a unit that start first its queue takes at a time, whichever task group has most room.
    pub(super) fn n_surges(&mut self, record: &UnitRecord) -> u32 {
        let Some(rooms) = self.rooms.as_mut().filter(|_| record.spec.max_surge > 0) else { return u32::MAX };
        let groups = 0..record.spec.task_groups.len();
        groups.map(|group| rooms.n_fit(record, group)).max().unwrap_or(u32::MAX)
    }

    /// Returns why a running unit stays where it is; `None`: the binder may be asked to move it.
    pub(super) fn reason(
        &mut self,
        unit: UnitId,
        rows: &RunningUnits,
        ordinal: u32,
        row: &RunningUnit,
        pool: Pool,
        breaks_unit: bool,
    ) -> Option<KeptReason> {
        let cluster = &self.picture.cluster;
        let frozen = cluster.nodes().frozen();
        if !frozen.is_empty()
            && (frozen.unit(unit).is_some() || frozen.has_node(row.node) || frozen.keeps_budgets())
        {
            return Some(KeptReason::Unreadable);
        }
        let Some(record) = self.picture.units.get(&unit) else { return Some(KeptReason::Unreadable) };
        if record.spec.is_daemon() || record.spec.class == WorkloadClass::Yarn {
            return Some(KeptReason::Class);
        }
        if pool == Pool::BestEffort {
            return Some(KeptReason::BestEffort);
        }
        let is_wanted = record.is_wanted() && record.group_of(ordinal).is_some();
        if !is_wanted || row.phase != Phase::Running || row.eviction.is_some() {
            return Some(KeptReason::Unsettled);
        }
        let id = RunningUnitId::new(unit, ordinal, row.incarnation);
        if self.victims.contains(&id) {
            return Some(KeptReason::Victim);
        }
        if cluster.held().has_slots() && cluster.held().slot_of(&id).is_some() {
            return Some(KeptReason::Slot);
        }
        if self.picture.refused.has_replica(id) {
            return Some(KeptReason::Refused);
        }
        kept_by_unit(record, rows, ordinal, self.now_ms)
            .or_else(|| kept_by_terms(record, ordinal, breaks_unit))
            .or_else(|| {
                let rooms = self.rooms.as_mut().filter(|_| record.spec.max_surge > 0)?;
                let group = record.group_of(ordinal)?;
                (rooms.n_fit(record, group) == 0).then_some(KeptReason::QueueFull)
            })
    }
}

/// Returns why a replica would not come back, or not alone, if it was moved.
fn kept_by_terms(record: &UnitRecord, ordinal: u32, breaks_unit: bool) -> Option<KeptReason> {
    let spec = &record.spec;
    let template = record.group_of(ordinal).and_then(|group| spec.task_groups.get(group));
    if template.is_some_and(|group| !group.template.run.volumes.is_empty()) {
        return Some(KeptReason::Volumes);
    }
    if spec.max_surge > 0 {
        let surges = &record.status.surges;
        let is_replaced = surges.iter().any(|surge| [surge.ordinal, surge.replaces].contains(&ordinal));
        return is_replaced.then_some(KeptReason::Replaced);
    }
    if spec.on_eviction == OnEviction::Fail {
        return Some(KeptReason::FailsOnEviction);
    }
    breaks_unit.then_some(KeptReason::BreaksUnit)
}

/// Whether the rest of a unit would leave if one of its replicas did. `O(rows of the unit × task groups with minima)`.
pub(super) fn breaks_unit(record: &UnitRecord, rows: &RunningUnits) -> bool {
    let spec = &record.spec;
    if spec.on_below_min == OnBelowMin::Keep {
        return false;
    }
    let n_staying = |group: Option<usize>| {
        let stays = |(ordinal, row): &(u32, &RunningUnit)| {
            let own = record.group_of(*ordinal);
            row.eviction.is_none() && own.is_some() && group.is_none_or(|group| own == Some(group))
        };
        rows.live().filter(stays).count()
    };
    let is_least = |n: usize, least: u32| least > 0 && usize::try_from(least).is_ok_and(|least| n <= least);
    let of_groups = spec.task_groups.iter().enumerate();
    is_least(n_staying(None), spec.min_member)
        || of_groups
            .filter(|(_, group)| group.min_member > 0)
            .any(|(at, group)| is_least(n_staying(Some(at)), group.min_member))
}

/// Returns how many replicas of a unit may be missing at a time because they are moved: as many as a drain would take of those that run.
/// Replacements that start first leave nothing missing, and at most so many may start.
pub(super) fn spare_of(record: &UnitRecord, rows: &RunningUnits) -> u32 {
    let spec = &record.spec;
    if spec.max_surge > 0 {
        let n_open = u32::try_from(record.status.surges.len()).unwrap_or(u32::MAX);
        return spec.max_surge.saturating_sub(n_open);
    }
    drain::spare(spec, Standing::of(record, rows), u32::MAX).unwrap_or(0)
}

/// Returns how many replicas of each task group with a minimum of its own may be missing at a time, by position.
pub(super) fn spare_of_groups(record: &UnitRecord, rows: &RunningUnits) -> Vec<(usize, u32)> {
    let spec: &UnitSpec = &record.spec;
    if !spec.has_group_minima() || drain::is_whole(spec) || spec.max_surge > 0 {
        return Vec::new();
    }
    let groups = spec.task_groups.iter().enumerate();
    let limited = groups.filter(|(_, group)| group.min_member > 0 && group.min_member < group.replicas);
    limited
        .map(|(at, group)| {
            let is_there = |row: &RunningUnit| match row.phase {
                Phase::Running => row.eviction.is_none(),
                Phase::Succeeded | Phase::Failed => true,
                Phase::Pending | Phase::Bound | Phase::Starting | Phase::Stopped => false,
            };
            let rows = rows
                .rows
                .iter()
                .filter(|(ordinal, row)| record.group_of(*ordinal) == Some(at) && is_there(row));
            let n = u32::try_from(rows.count()).unwrap_or(u32::MAX);
            (at, n.saturating_sub(group.min_member))
        })
        .collect()
}
