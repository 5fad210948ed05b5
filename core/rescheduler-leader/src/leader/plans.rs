//! Plans: who wants one, when it is made, and what becomes of it.

use std::{sync::Arc, time::Duration};

use godel_base::{ids::UnitId, seed::mix};
use godel_core_rescheduler::{MovementDriver, MovementRecord, OrderedPlan, RunCause, lacks_room_alone};

use super::{ReschedulerLeader, unsigned};
use crate::{
    CallRefusal, PlanAnswer, PlanDone, PlanWork, RescheduleNote, RescheduleOutbox, ShownPlan,
    jobs::{N_JOBS_MAX, PlanJob, PlanUnderWay},
    plan_work::PlanTarget,
};

/// A plan that was made, or why there is none, in words.
type MadePlan = Result<Arc<OrderedPlan>, String>;

impl<C> ReschedulerLeader<C> {
    /// Somebody wants a policy to run; whether it may be asked for was checked.
    pub fn run_policy(&mut self, policy: String, caller: C, out: &mut impl RescheduleOutbox<Caller = C>) {
        self.push_job(PlanJob::Run { policy, cause: RunCause::Rpc, caller: Some(caller) }, out);
    }

    /// Somebody wants to see the plan of a policy.
    pub fn show_plan(&mut self, policy: String, caller: C, out: &mut impl RescheduleOutbox<Caller = C>) {
        self.push_job(PlanJob::Show { policy, caller }, out);
    }

    /// Somebody wants room for a unit, or to see how it would be made.
    pub fn make_room(
        &mut self,
        unit: UnitId,
        dry_run: bool,
        caller: C,
        out: &mut impl RescheduleOutbox<Caller = C>,
    ) {
        self.push_job(PlanJob::Room { unit, dry_run, caller: Some(caller) }, out);
    }

    fn push_job(&mut self, job: PlanJob<C>, out: &mut impl RescheduleOutbox<Caller = C>) {
        let refusal = if self.term.is_none() {
            CallRefusal::NotLeading
        } else if self.plans.is_full() {
            CallRefusal::TooMany(N_JOBS_MAX)
        } else {
            return self.plans.push(job);
        };
        refuse(job, refusal, out);
    }

    /// Why no movement begins now, in words; `None`: one may.
    fn held_back(&self) -> Option<String> {
        self.driver().map(|driver| format!("movement {} is being made", driver.movement().name))
    }

    /// Whether it leads, and nothing is planned or moved.
    fn is_idle(&self) -> bool {
        self.term.is_some() && self.plans.is_empty() && self.driver().is_none()
    }

    /// Has the policy that is due run, if nothing holds it back.
    pub(super) fn run_what_is_due(&mut self, now_ms: i64) {
        if !self.is_idle() || self.gangs.is_asking() {
            return;
        }
        if let Some(due) = self.manager.due(unsigned(now_ms)) {
            self.plans.push(PlanJob::Run { policy: due.name, cause: due.cause, caller: None });
        }
    }

    /// Starts the next plan, one at a time.
    pub(super) fn start_plan(&mut self, now_ms: i64, out: &mut impl RescheduleOutbox<Caller = C>) {
        let Some(term) = self.term.as_mut().filter(|_| self.picture.read().is_some()) else { return };
        if term.take_plan_wish() {
            self.plans.replan();
        }
        let Some(job) = self.plans.pop() else { return };
        let movement = term.driver().map(MovementDriver::movement);
        let target = match (&job, movement) {
            (PlanJob::Run { policy, .. } | PlanJob::Show { policy, .. }, _) => {
                PlanTarget::Policy(policy.clone())
            }
            (PlanJob::Room { unit, .. }, _) => PlanTarget::Room(*unit),
            (PlanJob::Replan, Some(movement)) => match movement.for_unit {
                Some(unit) => PlanTarget::Room(unit),
                None => PlanTarget::Policy(movement.policy.clone()),
            },
            (PlanJob::Replan, None) => return,
        };
        // Who runs a policy wants its moves soon.
        let is_shown = matches!(job, PlanJob::Show { .. });
        let bound_within = Duration::from_millis(self.config.bound_ms);
        let number = self.plans.begin(job, term.number());
        out.plan(PlanWork {
            target,
            picture: self.picture.clone(),
            traffic: Arc::new(self.traffic.merged()),
            snapshot: self.config.snapshot.clone(),
            moves_max: self.config.moves_max,
            rescheduling: self.manager.config().clone(),
            log: self.manager.log().clone(),
            seed: mix(self.seed ^ number),
            bound_within: Some(bound_within).filter(|time| is_shown && !time.is_zero()),
            now_ms,
        });
    }

    /// A plan is made.
    pub fn on_plan(&mut self, mut done: PlanDone, now_ms: i64, out: &mut impl RescheduleOutbox<Caller = C>) {
        let Some(PlanUnderWay { job, term }) = self.plans.end() else { return };
        if self.term.as_ref().is_none_or(|now| now.number() != term) {
            return refuse(job, CallRefusal::NotLeading, out);
        }
        out.note(RescheduleNote::Planned(done.planning_ms));
        let plan = std::mem::replace(&mut done.plan, Err(String::new())).map(Arc::new);
        match job {
            PlanJob::Run { policy, cause, caller } => {
                let shown = self.shown(&plan, &policy, &done, now_ms);
                let (movement, why_not) = self.run_plan(&policy, cause, &plan, &done);
                let result = match &plan {
                    Ok(plan) if why_not.is_empty() => words(plan),
                    _ => why_not.clone(),
                };
                out.note(RescheduleNote::PolicyRan {
                    policy: &policy,
                    cause,
                    movement: &movement,
                    result: &result,
                });
                self.manager.note_run(&policy, result, &movement, unsigned(now_ms));
                if let Some(caller) = caller {
                    self.answer(caller, PlanAnswer { shown, movement, why_not }, out);
                }
            }
            PlanJob::Show { policy, caller } => {
                let shown = self.shown(&plan, &policy, &done, now_ms);
                let answer = PlanAnswer { shown, movement: String::new(), why_not: String::new() };
                self.answer(caller, answer, out);
            }
            PlanJob::Room { unit, dry_run, caller } => {
                let cause = if caller.is_some() { RunCause::Rpc } else { RunCause::Waiting };
                let shown = self.shown(&plan, "", &done, now_ms);
                let (movement, why_not) = match &plan {
                    Err(why) => (String::new(), why.clone()),
                    Ok(plan) if plan.moves.is_empty() => (String::new(), nothing_found(plan)),
                    Ok(_) if dry_run => (String::new(), "only the plan was asked for".to_owned()),
                    Ok(plan) => self.create("", Some(unit), cause, plan, &done),
                };
                if let Some(caller) = caller {
                    return self.answer(caller, PlanAnswer { shown, movement, why_not }, out);
                }
                out.note(RescheduleNote::RoomAsked { gang: unit, movement: &movement, why_not: &why_not });
                self.put_off(unit, now_ms);
            }
            PlanJob::Replan => {
                if let Some(term) = &mut self.term {
                    term.on_replan(plan, &done, now_ms);
                }
            }
        }
    }

    /// A plan as somebody who asked for it sees it.
    fn shown(
        &self,
        plan: &MadePlan,
        policy: &str,
        done: &PlanDone,
        now_ms: i64,
    ) -> Result<ShownPlan, String> {
        Ok(ShownPlan {
            plan: plan.clone()?,
            policy: policy.to_owned(),
            revision: done.revision,
            planning_ms: done.planning_ms,
            held_back: self.held_back().or_else(|| self.quiet(now_ms)).unwrap_or_default(),
        })
    }

    fn quiet(&self, now_ms: i64) -> Option<String> {
        let until = self.manager.quiet_until_ms()?;
        Some(format!(
            "too many units wait for a place: policies do not run by themselves for {} ms at least",
            until.saturating_sub(unsigned(now_ms))
        ))
    }

    /// Makes a movement of the plan of a policy that runs, and returns its name, or an empty one and why there is none, in words.
    fn run_plan(
        &mut self,
        policy: &str,
        cause: RunCause,
        plan: &MadePlan,
        done: &PlanDone,
    ) -> (String, String) {
        let is_dry = self.manager.config().policies.get(policy).is_some_and(|known| known.dry_run);
        match plan {
            Err(why) => (String::new(), why.clone()),
            Ok(plan) if plan.moves.is_empty() => (String::new(), nothing_found(plan)),
            Ok(plan) if is_dry => (String::new(), format!("dry run: {}", words(plan))),
            Ok(plan) => self.create(policy, None, cause, plan, done),
        }
    }

    /// Makes a movement of a plan unless another one is being made, and returns its name, or an empty one and why there is none, in words.
    fn create(
        &mut self,
        policy: &str,
        for_unit: Option<UnitId>,
        cause: RunCause,
        plan: &OrderedPlan,
        done: &PlanDone,
    ) -> (String, String) {
        if let Some(why) = self.held_back() {
            return (String::new(), why);
        }
        let Some(term) = &mut self.term else { return (String::new(), String::new()) };
        let name = term.create(|number| {
            let movement = plan.movement(number, policy, cause, done.revision, done.taken_ms);
            MovementRecord { for_unit, ..movement }
        });
        (name, String::new())
    }

    /// Answers at once, or when the movement that was created is recorded.
    fn answer(&mut self, caller: C, answer: PlanAnswer, out: &mut impl RescheduleOutbox<Caller = C>) {
        match &mut self.term {
            Some(term) if !answer.movement.is_empty() => term.answer_when_recorded(caller, answer),
            _ => out.planned(caller, Ok(answer)),
        }
    }

    /// Asks the dispatcher what keeps the gang out that asks for room next.
    pub(super) fn look_at_a_gang(&mut self, now_ms: i64, out: &mut impl RescheduleOutbox<Caller = C>) {
        if !self.is_idle() || self.gangs.is_asking() || self.manager.quiet_until_ms().is_some() {
            return;
        }
        let Some(gang) = self.gangs.due(unsigned(now_ms)) else { return };
        let Some(record) = self.picture.units.get(&gang) else { return };
        self.gangs.ask(gang);
        out.ask_refusals(record);
    }

    /// The dispatcher has said what refused a gang in its last try, as refusals name it; `None`: it has not.
    pub fn on_gang<'r>(
        &mut self,
        gang: UnitId,
        refused_by: Option<impl IntoIterator<Item = &'r str>>,
        now_ms: i64,
        out: &mut impl RescheduleOutbox<Caller = C>,
    ) {
        self.gangs.on_answer();
        if self.term.is_some() && refused_by.is_some_and(lacks_room_alone) {
            return self.push_job(PlanJob::Room { unit: gang, dry_run: false, caller: None }, out);
        }
        self.put_off(gang, now_ms);
    }

    /// A gang that has asked asks again later.
    fn put_off(&mut self, gang: UnitId, now_ms: i64) {
        self.gangs.put_off(gang, self.config.make_room_after_ms, unsigned(now_ms));
    }
}

fn refuse<C>(job: PlanJob<C>, why: CallRefusal, out: &mut impl RescheduleOutbox<Caller = C>) {
    if let Some(caller) = job.into_caller() {
        out.planned(caller, Err(why));
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
