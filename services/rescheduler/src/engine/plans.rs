//! Plans: who wants one, how it is made on a thread of its own, and what becomes of it.

use std::{sync::Arc, time::Duration};

use godel_base::{
    ids::{Epoch, Revision, UnitId},
    seed::mix,
};
use godel_core_rescheduler::{
    MoveLog, MovementRecord, OrderedPlan, PlanTerms, RescheduleConfig, RunCause, plan_policy, plan_room,
};
use godel_kit::{status, task};
use godel_proto::v1;
use tokio::sync::oneshot;
use tonic::Status;

use super::{Driven, Engine, outside::Outcome, show};
use crate::{
    config::Config,
    picture::Picture,
    record,
    snapshot::{PlanInput, take, waiting_gang, wall},
    traffic::Traffic,
};

/// Plans that wait for their turn.
const N_JOBS_MAX: usize = 16;

type Reply<T> = oneshot::Sender<Result<T, Status>>;

/// Somebody wants a plan.
pub(super) enum Job {
    /// A policy runs; somebody may wait for it.
    Run { policy: String, cause: RunCause, reply: Option<Reply<v1::RunPolicyResponse>> },
    /// Somebody wants to see the plan of a policy.
    Show { policy: String, reply: Reply<v1::PlanPolicyResponse> },
    /// Somebody wants room for a unit, or the unit does.
    Room { unit: UnitId, dry_run: bool, reply: Option<Reply<v1::MakeRoomForResponse>> },
    /// The rest of the movement that is being made is planned anew.
    Replan,
}

/// The plan that is being made.
pub(super) struct Planning {
    job: Job,
    epoch: Epoch,
}

/// A plan is made.
pub(super) struct PlanDone {
    plan: Result<OrderedPlan, String>,
    revision: Revision,
    /// When its snapshot was taken, Unix milliseconds.
    taken_ms: i64,
    planning_ms: u64,
}

/// What is planned.
enum Target {
    Policy(String),
    Room(UnitId),
}

impl Job {
    pub(super) fn refuse(self, status: Status) {
        // Nobody may be left to hear it.
        match self {
            Self::Run { reply: Some(reply), .. } => drop(reply.send(Err(status))),
            Self::Show { reply, .. } => drop(reply.send(Err(status))),
            Self::Room { reply: Some(reply), .. } => drop(reply.send(Err(status))),
            Self::Run { reply: None, .. } | Self::Room { reply: None, .. } | Self::Replan => {}
        }
    }
}

impl Engine {
    /// Puts a wish of somebody who calls into the queue.
    pub(super) fn push_job(&mut self, job: Job) {
        if self.term.is_none() {
            let refused = self.not_leading();
            return job.refuse(refused);
        }
        if self.jobs.len() >= N_JOBS_MAX {
            let pause = Duration::from_secs(1);
            let why = format!("{N_JOBS_MAX} plans wait already");
            return job.refuse(status::resource_exhausted(status::reason::OVERLOADED, why, pause));
        }
        self.jobs.push_back(job);
    }

    /// Why no movement begins now, in words; `None`: one may.
    pub(super) fn held_back(&self) -> Option<String> {
        let driven = self.term.as_ref().and_then(|term| term.driven.as_ref());
        driven.map(|driven| format!("movement {} is being made", driven.driver.movement().name))
    }

    /// Whether it leads, and nothing is planned or moved.
    pub(super) fn is_idle(&self) -> bool {
        let is_busy = self.planning.is_some() || !self.jobs.is_empty() || self.held_back().is_some();
        self.term.is_some() && !is_busy
    }

    /// Has the policy that is due run, if nothing holds it back.
    pub(super) fn run_what_is_due(&mut self) {
        if !self.is_idle() || self.asking_gang.is_some() {
            return;
        }
        if let Some(due) = self.manager.due(self.now()) {
            self.jobs.push_back(Job::Run { policy: due.name, cause: due.cause, reply: None });
        }
    }

    /// Starts the next plan, one at a time.
    pub(super) fn start_job(&mut self) {
        if self.planning.is_some() || self.term.is_none() || self.picture.read.is_none() {
            return;
        }
        let Some(epoch) = self.grant.as_ref().map(|grant| grant.fence.epoch()) else { return };
        let Some(job) = self.jobs.pop_front() else { return };
        let movement =
            self.term.as_ref().and_then(|term| term.driven.as_ref()).map(|driven| driven.driver.movement());
        let target = match (&job, movement) {
            (Job::Run { policy, .. } | Job::Show { policy, .. }, _) => Target::Policy(policy.clone()),
            (Job::Room { unit, .. }, _) => Target::Room(*unit),
            (Job::Replan, Some(movement)) => match movement.for_unit {
                Some(unit) => Target::Room(unit),
                None => Target::Policy(movement.policy.clone()),
            },
            (Job::Replan, None) => return,
        };
        self.n_plans = self.n_plans.wrapping_add(1);
        // Who runs a policy wants its moves soon.
        let is_shown = matches!(job, Job::Show { .. });
        let bound_time = self.parts.config.bound_time.0;
        let mut made_of = MadeOf {
            picture: self.picture.clone(),
            traffic: self.known_traffic(),
            config: self.parts.config.clone(),
            rescheduling: self.manager.config().clone(),
            log: self.manager.log().clone(),
            seed: mix(self.seed ^ self.n_plans),
            bound_within: Some(bound_time).filter(|time| is_shown && !time.is_zero()),
            now_ms: self.now_ms(),
        };
        self.planning = Some(Planning { job, epoch });
        let (clock, sender) = (self.parts.clock.clone(), self.outcomes.0.clone());
        let started = clock.now();
        let (revision, taken_ms) = (made_of.picture.read.unwrap_or_default(), made_of.now_ms);
        task::spawn("rescheduler.plan", async move {
            let plan = tokio::task::spawn_blocking(move || made_of.plan(&target)).await;
            let plan = plan.unwrap_or_else(|error| Err(format!("the plan was not made: {error}")));
            let planning_ms = clock.now().since(started);
            let done = PlanDone { plan, revision, taken_ms, planning_ms };
            // The engine may be gone.
            let _ = sender.send(Outcome::Plan(Box::new(done))).await;
        });
    }

    /// A plan is made.
    pub(super) fn on_plan(&mut self, done: PlanDone) {
        let Some(Planning { job, epoch }) = self.planning.take() else { return };
        let is_same = self.grant.as_ref().is_some_and(|grant| grant.fence.epoch() == epoch);
        if self.term.is_none() || !is_same {
            let refused = self.not_leading();
            return job.refuse(refused);
        }
        self.parts.metrics.plans.inc();
        let seconds = Duration::from_millis(done.planning_ms).as_secs_f64();
        self.parts.metrics.planning.observe(seconds);
        match job {
            Job::Run { policy, cause, reply } => self.on_run(policy, cause, reply, done),
            Job::Show { policy, reply } => {
                let answer =
                    self.shown(&done, &policy).map(|plan| v1::PlanPolicyResponse { plan: Some(plan) });
                // Nobody may be left to hear it.
                let _ = reply.send(answer);
            }
            Job::Room { unit, dry_run, reply } => self.on_room(unit, dry_run, reply, &done),
            Job::Replan => self.on_replan(done),
        }
    }

    /// A plan as somebody who asked for it sees it.
    fn shown(&self, done: &PlanDone, policy: &str) -> Result<v1::ReschedulePlan, Status> {
        let plan = done.plan.as_ref().map_err(|why| Status::failed_precondition(why.clone()))?;
        let mut shown = record::shown_plan(plan, policy, done.revision);
        shown.planning_ms = done.planning_ms;
        shown.held_back = self.held_back().or_else(|| self.quiet()).unwrap_or_default();
        show::fit(&mut shown.moves);
        Ok(shown)
    }

    fn quiet(&self) -> Option<String> {
        let until = self.manager.quiet_until_ms()?;
        let now = self.now();
        Some(format!(
            "too many units wait for a place: policies do not run by themselves for {} ms at least",
            until.saturating_sub(now)
        ))
    }

    fn on_run(
        &mut self,
        policy: String,
        cause: RunCause,
        reply: Option<Reply<v1::RunPolicyResponse>>,
        done: PlanDone,
    ) {
        let now = self.now();
        let shown = self.shown(&done, &policy);
        let is_dry = self.manager.config().policies.get(&policy).is_some_and(|known| known.dry_run);
        let (movement, result) = match &done.plan {
            Err(why) => (None, why.clone()),
            Ok(plan) if plan.moves.is_empty() => (None, nothing_found(plan)),
            Ok(plan) if is_dry => (None, format!("dry run: {}", words(plan))),
            Ok(plan) => match self.held_back() {
                Some(why) => (None, why),
                None => {
                    let name = self.create(&policy, None, cause, plan, &done);
                    (Some(name), words(plan))
                }
            },
        };
        let name = movement.clone().unwrap_or_default();
        tracing::info!(policy, cause = cause.name(), movement = name, result, "a policy ran");
        self.manager.note_run(&policy, result.clone(), &name, now);
        let Some(reply) = reply else { return };
        let why_not = if movement.is_some() { String::new() } else { result };
        let answer = shown.map(|plan| v1::RunPolicyResponse { movement: name, why_not, plan: Some(plan) });
        self.answer_when_recorded(movement.is_some(), reply, answer);
    }

    fn on_room(
        &mut self,
        unit: UnitId,
        dry_run: bool,
        reply: Option<Reply<v1::MakeRoomForResponse>>,
        done: &PlanDone,
    ) {
        let shown = self.shown(done, "");
        let cause = if reply.is_some() { RunCause::Rpc } else { RunCause::Waiting };
        let (movement, why_not) = match &done.plan {
            Err(why) => (None, why.clone()),
            Ok(plan) if plan.moves.is_empty() => (None, nothing_found(plan)),
            Ok(_) if dry_run => (None, "only the plan was asked for".to_owned()),
            Ok(plan) => match self.held_back() {
                Some(why) => (None, why),
                None => (Some(self.create("", Some(unit), cause, plan, done)), String::new()),
            },
        };
        let name = movement.clone().unwrap_or_default();
        let Some(reply) = reply else {
            tracing::info!(unit = %unit, movement = name, why_not, "a gang that waits asked for room");
            return self.put_off(unit);
        };
        let plan = shown.ok();
        let answer = Ok(v1::MakeRoomForResponse { movement: name, why_not, plan });
        self.answer_when_recorded(movement.is_some(), reply, answer);
    }

    /// Makes a movement of a plan. It is recorded, and begins, with the next step.
    fn create(
        &mut self,
        policy: &str,
        for_unit: Option<UnitId>,
        cause: RunCause,
        plan: &OrderedPlan,
        done: &PlanDone,
    ) -> String {
        let Some(term) = &mut self.term else { return String::new() };
        let number = term.movements.last_key_value().map_or(0, |(last, _)| *last) + 1;
        let movement = plan.movement(number, policy, cause, done.revision, done.taken_ms);
        let movement = MovementRecord { for_unit, ..movement };
        let name = movement.name.clone();
        let mut driven = Driven::of_record(movement.clone());
        driven.recorded = None;
        term.driven = Some(driven);
        term.movements.insert(number, movement);
        name
    }

    /// Answers at once, or when the movement that was created is recorded.
    fn answer_when_recorded<T: Send + 'static>(
        &mut self,
        is_created: bool,
        reply: Reply<T>,
        answer: Result<T, Status>,
    ) {
        // Nobody may be left to hear it.
        if is_created {
            self.after_record.push(Box::new(move |lost| {
                let _ = reply.send(lost.map_or(answer, Err));
            }));
        } else {
            let _ = reply.send(answer);
        }
    }

    /// The rest of the movement that is being made is planned anew, or nothing is left of the plan.
    fn on_replan(&mut self, done: PlanDone) {
        let now = self.now_ms();
        let Some(driven) = self.term.as_mut().and_then(|term| term.driven.as_mut()) else { return };
        driven.is_replanned = false;
        match done.plan {
            Ok(plan) => {
                driven.driver.replace_plan(done.revision, &plan.finding, plan.moves, plan.n_batches, now);
            }
            Err(why) => driven.driver.replace_plan(done.revision, &why, Vec::new(), 0, now),
        }
    }
}

fn nothing_found(plan: &OrderedPlan) -> String {
    let found = if plan.finding.is_empty() { "nothing is wrong" } else { &plan.finding };
    if plan.n_impossible > 0 {
        return format!("nothing to move: {found}; {} moves cannot be made in any order", plan.n_impossible);
    }
    format!("nothing to move: {found}")
}

fn words(plan: &OrderedPlan) -> String {
    let (before, after) = plan.objective;
    let n = plan.moves.len();
    format!("{n} moves in {} batches, objective {before:.3} -> {after:.3}: {}", plan.n_batches, plan.finding)
}

/// What a plan is made of: copies, so that following goes on meanwhile.
struct MadeOf {
    picture: Picture,
    traffic: Arc<Traffic>,
    config: Config,
    rescheduling: RescheduleConfig,
    log: MoveLog,
    seed: u64,
    bound_within: Option<Duration>,
    now_ms: i64,
}

impl MadeOf {
    fn plan(&mut self, target: &Target) -> Result<OrderedPlan, String> {
        let Picture { units, cluster, refused, .. } = &mut self.picture;
        let generation = |node| cluster.free().generations().of(node);
        Arc::make_mut(refused).forget_changed(|unit| units.get(&unit), generation, wall(self.now_ms));
        let mut input = take(&self.picture, &self.traffic, &self.config, self.now_ms);
        let gang = match target {
            Target::Policy(_) => None,
            Target::Room(unit) => {
                let record = self.picture.units.get(unit).ok_or("the unit is gone")?;
                if !self.picture.waits(*unit) {
                    return Err("the unit does not wait for a place".to_owned());
                }
                Some((waiting_gang(&mut input, record, &self.picture)?, record))
            }
        };
        let PlanInput { snapshot, filters } = &input;
        let n_moves_max = self.config.moves_max;
        let terms = PlanTerms {
            log: &self.log,
            fixed: &[],
            n_moves_max,
            seed: self.seed,
            bound_within: self.bound_within,
        };
        let plan = match (target, &gang) {
            (Target::Policy(name), _) => plan_policy(&self.rescheduling, name, snapshot, filters, terms),
            (Target::Room(_), Some((ask, _))) => {
                plan_room(&self.rescheduling, &ask.gang, snapshot, filters, terms)
            }
            (Target::Room(_), None) => return Err("the unit is gone".to_owned()),
        };
        let plan = plan.map_err(|fault| fault.to_string())?;
        Ok(match &gang {
            Some((ask, record)) => ask.check(&mut input, record, &self.picture, plan),
            None => plan,
        })
    }
}
