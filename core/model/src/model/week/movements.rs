//! The policies of the week, what the rescheduler is told of it, and what is counted of its movements.

use std::collections::BTreeMap;

use godel_core_rescheduler::{
    Aim, Binpack, Colocation, Defragmentation, DriverTerms, FailureDomainSpread, LoadBalance, MeasuredUse,
    MoveCounts, MoveRate, MovementPhase, MovementRecord, PolicyConfig, PolicyScope, Protection, QuietTime,
    RescheduleConfig, RescheduleKind, Trigger, TypicalDemand, UsageTable,
};
use godel_core_rescheduler_leader::{RescheduleLeaderConfig, SnapshotConfig, Traffic};
use godel_domain::sub_cluster;
use godel_testkit::BuildDemand as _;

use super::{
    HOUR_MS, MINUTE_MS, SECOND_MS,
    work::{N_GPUS, RACK, WeekUnit, WeekWork},
};
use crate::model::{rescheduler::ReschedulerSettings, world::Model};

/// The rescheduler looks at the clock so often, milliseconds.
const LOOK_MS: u64 = 5 * SECOND_MS;
/// What bounds the execution of movements. A replica runs again within a minute or two, unless parts are dead.
const TERMS: DriverTerms = DriverTerms {
    move_timeout_ms: 5 * MINUTE_MS,
    movement_timeout_ms: 30 * MINUTE_MS,
    retry_ms: (5 * SECOND_MS, 20 * SECOND_MS),
    failed_max_percent: FAILED_MAX_PERCENT,
    plan_age_max_ms: PLAN_AGE_MAX_MS,
    n_replans_max: 3,
};
const FAILED_MAX_PERCENT: u32 = 30;
const PLAN_AGE_MAX_MS: u64 = 5 * SECOND_MS;
/// Most moves of one movement, as the service has it by default.
const N_MOVES_MAX: usize = 500;
/// Policies that are checked by one another.
const N_MUTUAL: usize = 3;

/// Returns the five policies, most important first.
pub(super) fn policies() -> Vec<(&'static str, RescheduleKind)> {
    let gpus = |count, milli| godel_testkit::demand(2_000).gpus(count, milli, &[]);
    let typical = [(gpus(1, 500), 1.0), (gpus(1, 1_000), 2.0), (gpus(2, 1_000), 1.0)];
    let typical = typical.map(|(demand, weight)| TypicalDemand { demand, weight });
    let aim = Aim::Room {
        demand: gpus(N_GPUS, 1_000),
        n_copies: 1,
        level: None,
        n_enough: None,
        n_moves_each_max: Some(4),
    };
    vec![
        (
            "spread",
            RescheduleKind::Spread(FailureDomainSpread { level: Some(RACK.to_owned()), n_domains: 3 }),
        ),
        ("load-balance", RescheduleKind::LoadBalance(LoadBalance { hot: 0.7, calm: 0.65 })),
        (
            "defragmentation",
            RescheduleKind::Defragmentation(Defragmentation { aim, typical: typical.into() }),
        ),
        (
            "colocation",
            RescheduleKind::Colocation(Colocation {
                remote_max: 0.1,
                n_steps_each: 200,
                ..Colocation::default()
            }),
        ),
        ("binpack", RescheduleKind::Binpack(Binpack { use_max: 0.6, ends_within_ms: 10 * MINUTE_MS })),
    ]
}

fn config() -> RescheduleConfig {
    let mut config = RescheduleConfig {
        protection: Protection::default(),
        rate: MoveRate { n_moves_max: 6, within_ms: 6 * HOUR_MS },
        quiet: QuietTime { n_pending_max: 20, for_ms: 2 * MINUTE_MS },
        failed_max_percent: FAILED_MAX_PERCENT,
        plan_age_max_ms: PLAN_AGE_MAX_MS,
        policies: BTreeMap::new(),
    };
    // Each is checked by those before it, and the first three by one another.
    let names: Vec<&str> = policies().into_iter().map(|(name, _)| name).collect();
    for (at, (name, kind)) in policies().into_iter().enumerate() {
        let others = names[..at.max(N_MUTUAL)].iter().filter(|other| **other != name);
        let every_ms = 30 * MINUTE_MS;
        let policy = PolicyConfig {
            kind,
            enabled: true,
            dry_run: false,
            triggers: vec![Trigger::Period { every_ms, jitter_ms: 10 * MINUTE_MS }],
            scope: PolicyScope::default(),
            checked_by: others.map(|other| (*other).to_owned()).collect(),
            moved_max_percent: 3,
        };
        config.policies.insert(name.to_owned(), policy);
    }
    config
}

/// How moves ended, and the movements that they were of.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WeekMoveCounts {
    pub(super) n_moved: u64,
    pub(super) n_mismatched: u64,
    pub(super) n_failed: u64,
    pub(super) n_aborted: u64,
    /// Movements that ended before all of their moves were made.
    pub(super) n_stopped: u64,
}

/// Returns what the rescheduler of the week is started with.
pub(super) fn settings(seed: u64) -> ReschedulerSettings {
    ReschedulerSettings {
        leader: RescheduleLeaderConfig {
            driver: TERMS,
            snapshot: SnapshotConfig {
                sub_cluster_key: sub_cluster::KEY.to_owned(),
                other_load: false,
                restart_ms: MINUTE_MS,
            },
            moves_max: N_MOVES_MAX,
            bound_ms: 0,
            make_room_after_ms: 0,
            movements_max: 20,
            movements_ttl_ms: 24 * HOUR_MS,
        },
        policies: config(),
        seed,
        look_ms: LOOK_MS,
    }
}

impl WeekMoveCounts {
    /// Counts a movement that has ended.
    pub(super) fn add(&mut self, movement: &MovementRecord) {
        let MoveCounts { all: _, moved, mismatched, failed, aborted } = movement.counts();
        self.n_moved += u64::from(moved);
        self.n_mismatched += u64::from(mismatched);
        self.n_failed += u64::from(failed);
        self.n_aborted += u64::from(aborted);
        self.n_stopped += u64::from(movement.phase != MovementPhase::Done);
    }
}

/// Tells the rescheduler what running units really use, and who talks to whom.
pub(super) fn measure(model: &mut Model, work: &WeekWork) {
    let Some(part) = &mut model.rescheduler else { return };
    let mut usage = UsageTable::default();
    for (unit, rows) in &model.store.rows {
        let record = model.store.record(*unit);
        let Some(number) = record.and_then(|record| WeekUnit::number_of(&record.spec.name)) else { continue };
        let of_unit = rows.live().map(|(ordinal, _)| {
            let (cpu_milli, network_bps) = work.usage(number, *unit, ordinal);
            (ordinal, MeasuredUse { cpu_milli, network_bps })
        });
        usage.insert(*unit, of_unit.collect());
    }
    part.set_usage(usage);
    let is_there = |number: u64| work.id(number).is_some_and(|id| model.store.rows.contains_key(&id));
    let name = |unit: &WeekUnit| ("default".to_owned(), unit.name());
    let mut traffic = Traffic::default();
    for (_, unit) in work.units().filter(|(number, _)| is_there(*number)) {
        for other in unit.partners.iter().copied().filter(|other| is_there(*other)) {
            traffic.set(name(unit), name(work.unit(other)), 1.0, usize::MAX);
        }
    }
    part.set_traffic(traffic);
}
