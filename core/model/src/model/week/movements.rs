//! The rescheduler of the week: its policies when they are due, and one movement at a time, batch by batch.
//!
//! The planner, the limits, the rates, the quiet time and the order of moves are those of the crate. The binder makes
//! each move in one transaction: it holds the room on the target and has the running unit leave, as far as disruption budgets
//! allow. A move that a budget holds back is asked for again.

use std::collections::BTreeMap;

use godel_core_rescheduler::{
    Aim, Binpack, CheckedBy, ClusterSnapshot, Colocation, Defragmentation, FailureDomainSpread, Layout,
    LoadBalance, MoveLog, MoveRate, MoveStep, NodeFilters, PlanLimits, PolicyConfig, PolicyScope, Protection,
    QuietState, QuietTime, RescheduleConfig, RescheduleKind, Trigger, TypicalDemand, has_failed_too_often,
    limits_of, make_plan, next_due_ms, order_moves,
};
use godel_domain::{
    allocation::{Allocation, DeviceSet},
    ids::{NodeId, RunningUnitId, UnitId},
    requested_move::RequestedMove,
    running_units::{EvictionReason, Phase, RunningUnit},
    time::Millis,
};
use godel_testkit::BuildDemand as _;

use super::{
    HOUR_MS, MINUTE_MS, SECOND_MS,
    snapshot::{self, is_available},
    work::{N_GPUS, RACK, WeekWork},
};
use crate::model::{
    net::{Event, MoveCall},
    world::Model,
};

/// Why the binder evicts what is moved.
pub(super) const MOVED: EvictionReason = EvictionReason::Rescheduled;
/// A move is asked for again after this, and given up after that: a budget says later.
const ASK_AGAIN_MS: u64 = 20 * SECOND_MS;
const LEFT_WITHIN_MS: u64 = 2 * MINUTE_MS;
/// A replica that does not run again after this has failed to move.
const RUNS_WITHIN_MS: u64 = 5 * MINUTE_MS;
/// A movement older than this starts no batch.
const AGE_MAX_MS: u64 = 30 * MINUTE_MS;
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
        failed_max_percent: 30,
        plan_age_max_ms: 5 * SECOND_MS,
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

/// A running unit, where it goes, and the devices that the plan has for it there.
type MoveTarget = (RunningUnitId, NodeId, DeviceSet);

/// How far a move is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MoveStage {
    /// It is to leave.
    Left,
    /// It is to run again.
    Back,
    Over,
}

/// One move of a batch.
#[derive(Clone, Debug)]
struct WeekMove {
    id: RunningUnitId,
    to: NodeId,
    devices: DeviceSet,
    /// The name of the movement.
    name: String,
    stage: MoveStage,
    /// When the stage began, and when something was last asked for.
    since_ms: u64,
    asked_ms: u64,
}

/// What is being moved.
struct WeekMovement {
    begun_ms: u64,
    batches: std::vec::IntoIter<Vec<MoveTarget>>,
    moves: Vec<WeekMove>,
    n_ended: u64,
    n_failed: u64,
}

/// How many moves came to what.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WeekMoveCounts {
    pub(super) n_moved: u64,
    pub(super) n_mismatched: u64,
    pub(super) n_failed: u64,
}

/// See the module.
pub(super) struct Rescheduler {
    config: RescheduleConfig,
    seed: u64,
    log: MoveLog,
    quiet: QuietState,
    /// When each policy ran last, and how often.
    runs: BTreeMap<String, (u64, u64)>,
    movement: Option<WeekMovement>,
    n_names: u64,
    counts: WeekMoveCounts,
    /// Moves that each policy planned.
    planned: BTreeMap<String, usize>,
}

impl Rescheduler {
    pub(super) fn new(seed: u64) -> Self {
        let config = config();
        let faults = config.faults();
        assert!(faults.is_empty(), "the configuration of the week: {faults:?}");
        Self {
            config,
            seed,
            log: MoveLog::default(),
            quiet: QuietState::default(),
            runs: BTreeMap::new(),
            movement: None,
            n_names: 0,
            counts: WeekMoveCounts::default(),
            planned: BTreeMap::new(),
        }
    }

    pub(super) fn planned(&self) -> &BTreeMap<String, usize> {
        &self.planned
    }

    pub(super) fn config(&self) -> &RescheduleConfig {
        &self.config
    }

    pub(super) fn counts(&self) -> WeekMoveCounts {
        self.counts
    }

    pub(super) fn is_moving(&self) -> bool {
        self.movement.is_some()
    }

    /// Goes on with what is being moved, or runs the policy that is due.
    pub(super) fn look(&mut self, model: &mut Model, work: &WeekWork, ids: &BTreeMap<u64, UnitId>) {
        let now = model.net.now;
        if let Some(movement) = &mut self.movement {
            for one in &mut movement.moves {
                one.go_on(
                    model,
                    &mut self.log,
                    &mut self.counts,
                    (&mut movement.n_ended, &mut movement.n_failed),
                );
            }
            movement.moves.retain(|one| one.stage != MoveStage::Over);
            if !movement.moves.is_empty() {
                return;
            }
            let is_stopped =
                has_failed_too_often(movement.n_failed, movement.n_ended, self.config.failed_max_percent)
                    || now > movement.begun_ms + AGE_MAX_MS;
            match movement.batches.next().filter(|_| !is_stopped) {
                Some(batch) => self.begin_batch(batch, model),
                None => self.movement = None,
            }
            return;
        }
        let n_pending = n_pending(model);
        if self.quiet.observe(n_pending, self.config.quiet, Millis(now)).is_some() {
            return;
        }
        self.log.forget_before(Millis(now.saturating_sub(self.config.rate.within_ms)));
        let due = self.config.policies.iter().find(|(name, policy)| {
            let (last, n) = self.runs.get(*name).copied().unwrap_or((0, 0));
            let seed = self.seed ^ u64::from(name.as_bytes().first().copied().unwrap_or(0));
            next_due_ms(&policy.triggers, last, n, seed).is_some_and(|due| due <= now)
        });
        let Some((name, policy)) = due.map(|(name, policy)| (name.clone(), policy.clone())) else { return };
        let n_runs = self.runs.get(&name).map_or(0, |(_, n)| n + 1);
        let snapshot = snapshot::of(model, work, ids);
        let batches = self.plan(&policy, &snapshot, model);
        *self.planned.entry(name.clone()).or_default() += batches.iter().map(Vec::len).sum::<usize>();
        self.runs.insert(name, (now, n_runs));
        if !batches.is_empty() {
            self.movement = Some(WeekMovement {
                begun_ms: now,
                batches: batches.into_iter(),
                moves: Vec::new(),
                n_ended: 0,
                n_failed: 0,
            });
            self.look(model, work, ids);
        }
    }

    /// Plans a policy: its moves by batch, without those that go by a spare node.
    fn plan(&self, policy: &PolicyConfig, snapshot: &ClusterSnapshot, model: &Model) -> Vec<Vec<MoveTarget>> {
        let Ok(layout) = Layout::new(snapshot) else { return Vec::new() };
        let config = &self.config;
        let seed = self.seed ^ snapshot.now.0;
        let mut limits: PlanLimits =
            limits_of(&layout, policy, &config.protection, config.rate, &self.log, seed);
        for (unit, facts) in layout.running().zip(&snapshot.running) {
            let row = row(model, facts.id);
            limits.movable[unit.idx()] &= row.is_some_and(|row| is_available(&row));
        }
        let others = policy.checked_by.iter().filter_map(|name| config.policies.get(name));
        let checks: Vec<CheckedBy<'_>> =
            others.map(|other| CheckedBy { policy: other.kind.policy() }).collect();
        let plan = make_plan(policy.kind.policy(), &layout, &checks, &NodeFilters, &limits);
        let batches = order_moves(&layout, &plan.moves, &NodeFilters).batches;
        let of_step = |step: &MoveStep| {
            let is_last = !step.is_detour;
            is_last.then(|| (layout.facts(step.unit).id, layout.node(step.to).id, step.devices))
        };
        let batches = batches.iter().map(|batch| batch.iter().filter_map(of_step).collect());
        batches.filter(|batch: &Vec<_>| !batch.is_empty()).collect()
    }

    fn begin_batch(&mut self, batch: Vec<MoveTarget>, model: &mut Model) {
        let now = model.net.now;
        self.n_names += 1;
        let name = format!("week-{}", self.n_names);
        for (id, to, devices) in batch {
            let name = name.clone();
            let mut one =
                WeekMove { id, to, devices, name, stage: MoveStage::Left, since_ms: now, asked_ms: 0 };
            one.ask(model);
            self.movement.iter_mut().for_each(|movement| movement.moves.push(one.clone()));
        }
    }
}

/// Units that wait, whole or in part.
fn n_pending(model: &Model) -> u64 {
    let units = model.store.world.units.values().filter_map(|unit| unit.record.as_ref());
    let waits = units.filter(|record| {
        let record = &record.value;
        let n_live = model.store.rows.get(&record.id).map_or(0, |rows| rows.live().count());
        record.is_wanted() && u64::from(record.spec.replicas()) > u64::try_from(n_live).unwrap_or(0)
    });
    u64::try_from(waits.count()).unwrap_or(u64::MAX)
}

fn row(model: &Model, id: RunningUnitId) -> Option<RunningUnit> {
    let row = model.store.rows.get(&id.unit)?.row(id.replica.ordinal);
    (row.incarnation == id.replica.incarnation).then_some(row)
}

impl WeekMove {
    /// Does what comes next, if it is time.
    fn go_on(
        &mut self,
        model: &mut Model,
        log: &mut MoveLog,
        counts: &mut WeekMoveCounts,
        (n_ended, n_failed): (&mut u64, &mut u64),
    ) {
        let now = model.net.now;
        let waited_ms = now - self.since_ms;
        let row = model.store.rows.get(&self.id.unit).map(|rows| rows.row(self.id.replica.ordinal));
        let is_same = row.is_some_and(|row| row.incarnation == self.id.replica.incarnation);
        match self.stage {
            MoveStage::Left if !is_same || row.is_none_or(|row| row.eviction.is_some()) => {
                // After it is committed, so that no rate is exceeded by the time between.
                log.note(self.id.unit, Millis(now));
                self.enter(MoveStage::Back, now);
            }
            MoveStage::Left if waited_ms > LEFT_WITHIN_MS => {
                // It may still be under way.
                log.note(self.id.unit, Millis(now));
                self.fail(counts, (n_ended, n_failed));
            }
            MoveStage::Left if now > self.asked_ms + ASK_AGAIN_MS => self.ask(model),
            MoveStage::Back if model.store.record(self.id.unit).is_none_or(|unit| !unit.is_wanted()) => {
                self.end();
            }
            MoveStage::Back => {
                let runs = row.filter(|row| {
                    row.incarnation > self.id.replica.incarnation && row.phase == Phase::Running
                });
                if let Some(row) = runs {
                    *n_ended += 1;
                    let is_there = row.node == self.to;
                    counts.n_moved += u64::from(is_there);
                    counts.n_mismatched += u64::from(!is_there);
                    self.end();
                } else if waited_ms > RUNS_WITHIN_MS {
                    self.fail(counts, (n_ended, n_failed));
                }
            }
            MoveStage::Left | MoveStage::Over => {}
        }
    }

    fn enter(&mut self, stage: MoveStage, now: u64) {
        (self.stage, self.since_ms) = (stage, now);
    }

    /// Asks the binder, which answers nothing new if it was asked before.
    fn ask(&mut self, model: &mut Model) {
        self.asked_ms = model.net.now;
        let wanted = Allocation { devices: self.devices, ..Allocation::default() };
        let expires_ms = i64::try_from(RUNS_WITHIN_MS).unwrap_or(i64::MAX);
        let call = MoveCall {
            movement: self.name.clone(),
            moves: vec![RequestedMove { running: self.id, to: self.to, wanted }],
            expires_ms: model.net.wall_ms() + expires_ms,
            read: model.store.revision(),
        };
        model.net.soon(Event::Move(Box::new(call)));
    }

    fn fail(&mut self, counts: &mut WeekMoveCounts, (n_ended, n_failed): (&mut u64, &mut u64)) {
        (*n_ended, *n_failed) = (*n_ended + 1, *n_failed + 1);
        counts.n_failed += 1;
        self.end();
    }

    fn end(&mut self) {
        self.stage = MoveStage::Over;
    }
}
