//! The rescheduler of the week: its policies when they are due, and one movement at a time.
//!
//! The manager of policies, the planner and the driver of movements are those of the crate; what is here does what the service does
//! around them: it makes the plans, carries calls to the binder and its answers back, and keeps over a restart what records keep.

use std::collections::BTreeMap;

use godel_base::{ids::Revision, seed::mix};
use godel_core_rescheduler::{
    Aim, Binpack, Colocation, Defragmentation, DriverTerms, FailureDomainSpread, LoadBalance, MoveCounts,
    MoveRate, MoveReply, MovementDriver, MovementMove, MovementPhase, MovementRecord, NodeFilters,
    OrderedPlan, PlanTerms, PolicyConfig, PolicyManager, PolicyScope, Protection, QuietTime,
    RescheduleConfig, RescheduleKind, Trigger, TypicalDemand, plan_policy,
};
use godel_domain::{
    allocation::Allocation,
    lifecycle::Counts,
    requested_move::{MadeMove, MoveRefusal, RequestedMove},
    running_units::RunningUnits,
};
use godel_testkit::BuildDemand as _;

use super::{
    HOUR_MS, MINUTE_MS, SECOND_MS, snapshot,
    work::{N_GPUS, RACK, WeekWork},
};
use crate::model::{
    net::{Event, MoveAnswer, MoveCall},
    world::Model,
};

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

/// The rescheduler, and what is counted of it.
pub(super) struct Rescheduler {
    seed: u64,
    manager: PolicyManager,
    driver: Option<MovementDriver>,
    /// Moves that the binder was asked for and has not answered, by position, by the number of the call.
    asked: BTreeMap<u64, Vec<usize>>,
    n_calls: u64,
    n_movements: u64,
    n_plans: u64,
    counts: WeekMoveCounts,
    /// Moves that each policy planned.
    planned: BTreeMap<String, usize>,
}

/// Returns the wall clock as a manager of policies reads it, Unix milliseconds.
fn wall_ms(model: &Model) -> u64 {
    u64::try_from(model.net.wall_ms()).unwrap_or(0)
}

fn manager(seed: u64, now_ms: u64) -> PolicyManager {
    let mut manager = PolicyManager::new(seed);
    manager.configure(config(), now_ms).expect("the configuration of the week has no faults");
    manager
}

impl Rescheduler {
    pub(super) fn new(seed: u64, model: &Model) -> Self {
        Self {
            seed,
            manager: manager(seed, wall_ms(model)),
            driver: None,
            asked: BTreeMap::new(),
            n_calls: 0,
            n_movements: 0,
            n_plans: 0,
            counts: WeekMoveCounts::default(),
            planned: BTreeMap::new(),
        }
    }

    pub(super) fn planned(&self) -> &BTreeMap<String, usize> {
        &self.planned
    }

    pub(super) fn rate(&self) -> MoveRate {
        self.manager.config().rate
    }

    pub(super) fn counts(&self) -> WeekMoveCounts {
        self.counts
    }

    pub(super) fn is_moving(&self) -> bool {
        self.driver.is_some()
    }

    /// Another process takes over. It knows what records say: the movement that is being made, and when units were moved.
    pub(super) fn restart(&mut self, model: &Model) {
        let mut next = manager(self.seed, wall_ms(model));
        for (unit, at) in self.manager.log().iter() {
            next.load_moves(unit, [at.0]);
        }
        self.manager = next;
        self.driver = self.driver.take().map(|driver| MovementDriver::new(driver.movement().clone()));
        self.asked.clear();
    }

    /// Reads what the binder has answered, and goes on with what is being moved, or runs the policy that is due.
    pub(super) fn look(&mut self, model: &mut Model, work: &WeekWork) {
        for answer in std::mem::take(&mut model.move_answers) {
            self.hear(answer, model.net.wall_ms());
        }
        if self.driver.is_none() {
            let now = wall_ms(model);
            self.manager.observe(n_pending(model), now);
            self.manager.forget_moves(now);
            self.run_what_is_due(model, work);
        }
        self.drive(model, work);
    }

    fn hear(&mut self, MoveAnswer { caller, moves }: MoveAnswer, now_ms: i64) {
        // What an earlier process asked for is not known any more.
        let Some(asked) = self.asked.remove(&caller) else { return };
        let Some(driver) = &mut self.driver else { return };
        let replies = moves.into_iter().flatten().map(reply_of);
        driver.on_verdicts(asked.iter().copied().zip(replies), &TERMS, now_ms);
        driver.on_no_answer(&asked, &TERMS, now_ms);
    }

    fn run_what_is_due(&mut self, model: &Model, work: &WeekWork) {
        let now = wall_ms(model);
        let Some(due) = self.manager.due(now) else { return };
        let (revision, plan) = self.plan(&due.name, model, work);
        let finding = plan.finding.clone();
        let mut name = String::new();
        if !plan.moves.is_empty() {
            self.n_movements += 1;
            let wall_ms = model.net.wall_ms();
            let movement = plan.movement(self.n_movements, &due.name, due.cause, revision, wall_ms);
            name.clone_from(&movement.name);
            self.driver = Some(MovementDriver::new(movement));
        }
        self.manager.note_run(&due.name, finding, &name, now);
    }

    fn plan(&mut self, policy: &str, model: &Model, work: &WeekWork) -> (Revision, OrderedPlan) {
        self.n_plans += 1;
        let input = snapshot::of(model, work);
        let terms = PlanTerms {
            log: self.manager.log(),
            fixed: &input.fixed,
            n_moves_max: N_MOVES_MAX,
            seed: mix(self.seed ^ self.n_plans),
            bound_within: None,
        };
        let plan = plan_policy(self.manager.config(), policy, &input.snapshot, &NodeFilters, terms);
        let plan = plan.expect("the snapshot is sound, and the policy known");
        *self.planned.entry(policy.to_owned()).or_default() += plan.moves.len();
        (input.snapshot.revision, plan)
    }

    /// Takes a step of the movement that is being made, and does what the driver says.
    fn drive(&mut self, model: &mut Model, work: &WeekWork) {
        let now = model.net.wall_ms();
        let Some(driver) = &mut self.driver else { return };
        let mut step = driver.step(&model.store, &TERMS, now);
        // Before the rest is planned anew, which has what is left of the rates.
        for unit in driver.take_begun() {
            self.manager.note_move(unit, wall_ms(model));
        }
        if step.replans {
            let policy = driver.movement().policy.clone();
            let (revision, plan) = self.plan(&policy, model, work);
            let Some(driver) = &mut self.driver else { return };
            driver.replace_plan(revision, &plan.finding, plan.moves, plan.n_batches, now);
            step = driver.step(&model.store, &TERMS, now);
        }
        let Some(driver) = &mut self.driver else { return };
        let movement = driver.movement();
        if !step.asked.is_empty() {
            self.n_calls += 1;
            let moves = step.asked.iter().filter_map(|at| movement.moves.get(*at)).map(requested).collect();
            let expires_ms = now.saturating_add(i64::try_from(TERMS.move_timeout_ms).unwrap_or(i64::MAX));
            let (movement, read) = (movement.name.clone(), movement.plan_revision);
            let call = MoveCall { caller: Some(self.n_calls), movement, moves, expires_ms, read };
            self.asked.insert(self.n_calls, step.asked);
            model.net.soon(Event::Move(Box::new(call)));
        } else if movement.is_ended() {
            self.counts.add(movement);
            self.driver = None;
        }
    }
}

impl WeekMoveCounts {
    fn add(&mut self, movement: &MovementRecord) {
        let MoveCounts { all: _, moved, mismatched, failed, aborted } = movement.counts();
        self.n_moved += u64::from(moved);
        self.n_mismatched += u64::from(mismatched);
        self.n_failed += u64::from(failed);
        self.n_aborted += u64::from(aborted);
        self.n_stopped += u64::from(movement.phase != MovementPhase::Done);
    }
}

fn requested(one: &MovementMove) -> RequestedMove {
    let wanted = Allocation { devices: one.devices, ..Allocation::default() };
    RequestedMove { running: one.id, to: one.to.0, wanted }
}

/// Returns what an answer of the binder means to a move.
fn reply_of(answer: Result<MadeMove, MoveRefusal>) -> MoveReply {
    match answer {
        Ok(made) => made.surge.map_or(MoveReply::Moved, MoveReply::Surges),
        Err(MoveRefusal { reason, later, detail }) => {
            MoveReply::refused(reason, later, format!("{reason:?}: {detail}"))
        }
    }
}

/// Units that wait, whole or in part.
fn n_pending(model: &Model) -> u64 {
    let nothing = RunningUnits::default();
    let units = model.store.world.units.values().filter_map(|unit| unit.record.as_ref());
    let waits = units.filter(|record| {
        let record = &record.value;
        Counts::of(record, model.store.rows.get(&record.id).unwrap_or(&nothing)).pending > 0
    });
    u64::try_from(waits.count()).unwrap_or(u64::MAX)
}
