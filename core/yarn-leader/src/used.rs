//! What an application has used: MiB-seconds and CPU-seconds of what ran, while it ran.
//!
//! A container counts from the start of its command to its end, as its agent saw both. One that was given back before it was started never
//! counts. Where an agent says no times, as of a lost node or of what is simulated, the times of the commits stand in. What has ended is added
//! up as it ends: its row may be compacted away, and its task group become another one.

use std::collections::BTreeMap;

use godel_base::resources::{CPU, MEMORY};
use godel_domain::{
    running_units::{Phase, RunningUnit, RunningUnits},
    unit::UnitRecord,
};

use crate::picture::amount_of;

/// MiB-seconds and CPU-seconds of one unit.
#[derive(Clone, Debug, Default)]
pub(crate) struct UsedSeconds {
    /// Of what has ended but for the last incarnation of ordinal 0, with what was compacted away before the unit was listed.
    ended: ResourceSeconds,
    /// When runs began of whose start no agent has said the time, Unix milliseconds.
    started_ms: BTreeMap<u32, i64>,
    /// The same of the end of ordinal 0, which may come again.
    first_ended_ms: i64,
}

/// MiB-seconds and CPU-seconds of running units.
#[derive(Clone, Copy, Debug, Default)]
struct ResourceSeconds {
    memory_mb: i64,
    vcores: i64,
}

impl ResourceSeconds {
    /// Adds those of a running unit for a time.
    fn add(&mut self, record: &UnitRecord, group: u16, start_ms: i64, end_ms: i64) {
        let Some(group) = record.spec.task_groups.get(usize::from(group)) else { return };
        let amount = amount_of(&group.template.demand);
        let seconds = end_ms.saturating_sub(start_ms).max(0) / 1_000;
        self.memory_mb = self.memory_mb.saturating_add(amount.memory_mb.saturating_mul(seconds));
        self.vcores = self.vcores.saturating_add(amount.vcores.saturating_mul(seconds));
    }
}

impl UsedSeconds {
    /// Of a unit as it is listed. Of what has ended without the times of its agent nothing is known.
    pub(crate) fn listed(record: &UnitRecord, rows: &RunningUnits) -> Self {
        let compacted = record.status.compacted.as_deref();
        let past = |resource| compacted.and_then(|of| of.used.get(resource)).copied().unwrap_or(0);
        let whole = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
        // Memory is in MiB-seconds there, and CPUs in thousandths.
        let ended = ResourceSeconds { memory_mb: whole(past(MEMORY)), vcores: whole(past(CPU) / 1_000) };
        let mut used = Self { ended, ..Self::default() };
        for (ordinal, row) in rows.rows.iter().filter(|(ordinal, row)| *ordinal != 0 && row.phase.is_ended())
        {
            let end = rows.end(ordinal);
            if end.started_ms > 0 && end.ended_ms > 0 {
                used.ended.add(record, row.group, end.started_ms, end.ended_ms);
            }
        }
        used
    }

    /// A running unit is another one than before; committed at a time.
    pub(crate) fn on_change(
        &mut self,
        record: &UnitRecord,
        rows: &RunningUnits,
        ordinal: u32,
        before: &RunningUnit,
        after: &RunningUnit,
        time_ms: i64,
    ) {
        if before.incarnation != after.incarnation || after.phase == Phase::Pending {
            self.started_ms.remove(&ordinal);
            return;
        }
        let end = rows.end(ordinal);
        if after.phase == Phase::Running && before.phase != Phase::Running && end.started_ms == 0 {
            self.started_ms.insert(ordinal, time_ms);
        }
        if !after.phase.is_ended() || before.phase.is_ended() {
            return;
        }
        let ended_ms = if end.ended_ms > 0 { end.ended_ms } else { time_ms };
        if ordinal == 0 {
            self.first_ended_ms = ended_ms;
        } else if let Some(start_ms) = self.start_of(rows, ordinal, before) {
            self.ended.add(record, after.group, start_ms, ended_ms);
            self.started_ms.remove(&ordinal);
        }
    }

    /// When the command of a running unit started; `None`: it never did.
    fn start_of(&self, rows: &RunningUnits, ordinal: u32, row: &RunningUnit) -> Option<i64> {
        let said = rows.end(ordinal).started_ms;
        let noted = || self.started_ms.get(&ordinal).copied();
        let bound = || (row.phase == Phase::Running).then_some(row.bound_time_ms);
        (said > 0).then_some(said).or_else(noted).or_else(bound)
    }

    /// All of it until a time, Unix milliseconds.
    pub(crate) fn until(&self, record: &UnitRecord, rows: &RunningUnits, now_ms: i64) -> (i64, i64) {
        let mut sum = self.ended;
        let counts = |ordinal: u32, row: &RunningUnit| {
            row.phase == Phase::Running || ordinal == 0 && row.phase.is_ended()
        };
        for (ordinal, row) in rows.rows.iter().filter(|(ordinal, row)| counts(*ordinal, row)) {
            let Some(start_ms) = self.start_of(rows, ordinal, row) else { continue };
            let ended_ms = match rows.end(ordinal).ended_ms {
                _ if row.phase == Phase::Running => now_ms,
                0 if self.first_ended_ms > 0 => self.first_ended_ms,
                0 => start_ms,
                ended_ms => ended_ms,
            };
            sum.add(record, row.group, start_ms, ended_ms);
        }
        (sum.memory_mb, sum.vcores)
    }
}

#[cfg(test)]
mod tests {
    use godel_base::{
        ids::{NodeId, Revision},
        resources::Resources,
    };
    use godel_domain::{
        run_end::RunEnd,
        running_units::{Bind, Compaction, Evict, EvictionReason, RunChange, Statuses},
    };
    use godel_testkit::{BuildUnit as _, unit};

    use super::*;

    /// A unit whose running units take 1 GiB and 2 CPUs each, and what is known of it.
    struct World {
        record: UnitRecord,
        rows: RunningUnits,
        used: UsedSeconds,
        revision: u64,
    }

    fn world() -> World {
        let mut record = unit("application-1-0001").replicas(8);
        let requests = Resources::new([("cpu", 2_000), ("memory", 1 << 30)]).unwrap();
        record.spec.task_groups[0].template.demand.requests = requests;
        World { record, rows: RunningUnits::default(), used: UsedSeconds::default(), revision: 1 }
    }

    impl World {
        fn on(&mut self, change: &RunChange, time_ms: i64) {
            self.revision += 1;
            let mut changed = Vec::new();
            let note = |ordinal: u32, before: &RunningUnit, after: &RunningUnit| {
                changed.push((ordinal, *before, *after));
            };
            self.rows.apply(change, Revision(self.revision), time_ms, note);
            for (ordinal, before, after) in changed {
                self.used.on_change(&self.record, &self.rows, ordinal, &before, &after, time_ms);
            }
        }

        fn bind(&mut self, ordinals: &[u32], time_ms: i64) {
            let nodes = vec![NodeId(1); ordinals.len()];
            let bind = Bind { ordinals: ordinals.to_vec(), nodes, ..Bind::default() };
            self.on(&RunChange::Bind(bind), time_ms);
        }

        fn report(&mut self, ordinal: u32, phase: Phase, (started_ms, ended_ms): (i64, i64), time_ms: i64) {
            let ends = vec![RunEnd { started_ms, ended_ms, ..RunEnd::default() }];
            let statuses =
                Statuses { ordinals: vec![ordinal], phases: vec![phase], ends, ..Statuses::default() };
            self.on(&RunChange::Statuses(statuses), time_ms);
        }

        /// CPU-seconds, of 2 CPUs each, as seconds.
        fn seconds(&self, now_ms: i64) -> i64 {
            let (memory, cpu) = self.used.until(&self.record, &self.rows, now_ms);
            assert_eq!(memory, cpu * 512);
            cpu / 2
        }
    }

    #[test]
    fn what_runs_counts_from_its_start_to_its_end() {
        let mut world = world();
        world.bind(&[1], 1_000);
        assert_eq!(world.seconds(60_000), 0, "it has not started");
        world.report(1, Phase::Running, (10_000, 0), 11_000);
        assert_eq!(world.seconds(40_000), 30);
        world.report(1, Phase::Succeeded, (10_000, 50_000), 55_000);
        assert_eq!((world.seconds(60_000), world.seconds(900_000)), (40, 40), "it has ended");
        let compaction = Compaction { ordinals: vec![1], ..Compaction::default() };
        world.on(&RunChange::Compact(compaction), 60_000);
        assert_eq!(world.seconds(900_000), 40, "its row is gone");
        let ended = UsedSeconds::listed(&world.record, &world.rows).ended;
        assert_eq!((ended.memory_mb, ended.vcores), (0, 0));
    }

    #[test]
    fn what_never_started_does_not_count_whenever_it_ends() {
        let mut world = world();
        world.bind(&[1, 2, 3], 1_000);
        world.report(1, Phase::Stopped, (0, 0), 2_000);
        world.report(2, Phase::Failed, (0, 0), 600_000);
        assert_eq!(world.seconds(900_000), 0);
        let listed = UsedSeconds::listed(&world.record, &world.rows);
        assert_eq!(listed.until(&world.record, &world.rows, 900_000), (0, 0), "after a restart");
    }

    #[test]
    fn where_no_times_are_said_those_of_the_commits_count() {
        let mut world = world();
        world.bind(&[1, 2], 1_000);
        world.report(1, Phase::Running, (0, 0), 5_000);
        world.report(2, Phase::Running, (6_000, 0), 7_000);
        let evict = Evict {
            ordinals: vec![1, 2],
            incarnations: Vec::new(),
            reason: EvictionReason::NodeLost,
            by: String::new(),
            preemptor: godel_base::ids::UnitId(0),
        };
        world.on(&RunChange::Evict(evict), 25_000);
        assert_eq!(world.seconds(900_000), 20 + 19, "their node is lost");
    }

    #[test]
    fn the_master_counts_in_its_last_incarnation() {
        let mut world = world();
        world.bind(&[0], 1_000);
        world.report(0, Phase::Running, (2_000, 0), 3_000);
        assert_eq!(world.seconds(12_000), 10);
        world.report(0, Phase::Failed, (2_000, 22_000), 23_000);
        assert_eq!(world.seconds(900_000), 20);
        let listed = UsedSeconds::listed(&world.record, &world.rows);
        assert_eq!(listed.until(&world.record, &world.rows, 900_000).1, 40, "after a restart");
        let requeue =
            godel_domain::running_units::Requeue { ordinals: vec![0], incarnations: vec![1], anew: false };
        world.on(&RunChange::Requeue(requeue), 30_000);
        assert_eq!(world.seconds(900_000), 0, "the notes of its attempt have it");
    }
}
