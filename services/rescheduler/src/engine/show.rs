//! What callers are shown, and what they ask for.

use godel_base::duration;
use godel_core_rescheduler::{MovementRecord, PolicyConfig, RunRefusal, Trigger};
use godel_core_rescheduler_leader::{MoveTotals, is_weight, unit_name};
use godel_domain::{change_line::CallCause, sight::Sight};
use godel_kit::{
    message::MESSAGE_BYTES_MAX,
    status::{self, reason},
};
use godel_proto::v1;
use godel_wire::{BadField, hidden::HideNames as _};
use prost::Message as _;
use tonic::{Code, Status};

use super::{Caller, Engine, Question, QuestionReply};
use crate::record;

/// Bytes of a message that are left for what is around its moves.
const FRAMING_BYTES: usize = 64 << 10;
/// Movements of a page that does not say how many, and of the largest one.
const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1_000;
/// Pairs of one report.
const N_PAIRS_MAX: usize = 10_000;
/// Bytes of why a movement is ended.
const REASON_LEN_MAX: usize = 1_024;

/// NOT_FOUND, with the name.
pub(super) fn unknown(kind: &str, name: &str) -> Status {
    let said = format!("there is no {kind} `{name}`");
    status::with_info(Code::NotFound, reason::UNKNOWN_NAME, said, [("name", name.to_owned())])
}

/// Has moves fit into one message: they lose the numbers of their reasons, and then their reasons.
pub(super) fn fit(moves: &mut [v1::MovementMove]) {
    let len = |moves: &[v1::MovementMove]| moves.iter().map(|one| one.encoded_len() + 6).sum::<usize>();
    if len(moves) + FRAMING_BYTES > MESSAGE_BYTES_MAX {
        moves.iter_mut().filter_map(|one| one.reason.as_mut()).for_each(|reason| reason.numbers.clear());
    }
    if len(moves) + FRAMING_BYTES > MESSAGE_BYTES_MAX {
        moves.iter_mut().for_each(|one| one.reason = None);
    }
}

/// A movement that fits into one message.
pub(crate) fn fitting(movement: &MovementRecord) -> v1::Movement {
    let mut shown = record::shown(movement);
    fit(&mut shown.moves);
    shown
}

fn trigger_words(trigger: &Trigger) -> String {
    match trigger {
        Trigger::Period { every_ms, jitter_ms: 0 } => format!("every {}", duration::show_ms(*every_ms)),
        Trigger::Period { every_ms, jitter_ms } => {
            format!("every {} (+ up to {})", duration::show_ms(*every_ms), duration::show_ms(*jitter_ms))
        }
        Trigger::Cron(table) => format!("cron {table}"),
        Trigger::Signal => "signal".to_owned(),
        Trigger::Request => "request".to_owned(),
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

impl Engine {
    pub(super) fn leads(&self) -> Result<(), Status> {
        if self.leader.leads() { Ok(()) } else { Err(self.out.not_leading()) }
    }

    pub(crate) fn list_policies(&self, sight: &Sight) -> Result<v1::ListPoliciesResponse, Status> {
        self.leads()?;
        let policies = self.leader.manager().config().policies.iter();
        let policies = policies.map(|(name, policy)| self.policy(name, policy).within_sight(sight)).collect();
        Ok(v1::ListPoliciesResponse { policies })
    }

    fn policy(&self, name: &str, policy: &PolicyConfig) -> v1::ReschedulePolicy {
        let state = self.leader.manager().state(name).cloned().unwrap_or_default();
        v1::ReschedulePolicy {
            name: name.to_owned(),
            kind: policy.kind.policy().name().to_owned(),
            enabled: policy.enabled,
            dry_run: policy.dry_run,
            triggers: policy.triggers.iter().map(trigger_words).collect(),
            checked_by: policy.checked_by.iter().cloned().collect(),
            last_run_ms: signed(state.last_run_ms),
            last_result: state.last_result,
            next_run_ms: self.leader.manager().next_run_ms(name).map_or(0, signed),
            last_movement: state.last_movement,
            runs: state.n_runs,
        }
    }

    pub(crate) fn plan_policy(
        &mut self,
        request: v1::PlanPolicyRequest,
        reply: QuestionReply<v1::PlanPolicyResponse>,
    ) {
        let v1::PlanPolicyRequest { policy } = request;
        let caller = Caller { cause: None, question: Question::Show(reply) };
        if self.leader.leads() && !self.leader.manager().config().policies.contains_key(&policy) {
            return caller.refuse(unknown("policy", &policy));
        }
        self.leader.show_plan(policy, caller, &mut self.out);
    }

    pub(crate) fn run_policy(
        &mut self,
        request: v1::RunPolicyRequest,
        cause: Option<CallCause>,
        reply: QuestionReply<v1::RunPolicyResponse>,
    ) {
        let v1::RunPolicyRequest { policy } = request;
        let checked = self.leads().and_then(|()| match self.leader.manager().may_be_asked(&policy) {
            Ok(known) if known.dry_run => {
                let why = format!("policy `{policy}` only says what it would do (`dry_run`)");
                Err(status::failed_precondition("POLICY", &policy, why))
            }
            Ok(_) => Ok(()),
            Err(RunRefusal::NoPolicy(name)) => Err(unknown("policy", &name)),
            Err(refused @ (RunRefusal::Disabled(_) | RunRefusal::NotOnRequest(_))) => {
                Err(status::failed_precondition("POLICY", &policy, refused.to_string()))
            }
        });
        let caller = Caller { cause, question: Question::Run(reply) };
        match checked {
            Ok(()) => self.leader.run_policy(policy, caller, &mut self.out),
            Err(refused) => caller.refuse(refused),
        }
    }

    pub(crate) fn make_room_for(
        &mut self,
        request: v1::MakeRoomForRequest,
        cause: Option<CallCause>,
        reply: QuestionReply<v1::MakeRoomForResponse>,
    ) {
        let v1::MakeRoomForRequest { namespace, unit, dry_run } = request;
        let namespace = if namespace.is_empty() { "default".to_owned() } else { namespace };
        let found = self.leads().and_then(|()| {
            let picture = self.leader.picture_mut();
            picture.count_waiting();
            let record = picture
                .unit_named(&namespace, &unit)
                .ok_or_else(|| unknown("unit", &format!("{namespace}/{unit}")))?;
            match picture.waits(record.id) {
                true => Ok(record.id),
                false => {
                    let why = format!("unit `{namespace}/{unit}` does not wait for a place");
                    Err(status::failed_precondition("UNIT", &unit, why))
                }
            }
        });
        let caller = Caller { cause, question: Question::Room(reply) };
        match found {
            Ok(unit) => self.leader.make_room(unit, dry_run, caller, &mut self.out),
            Err(refused) => caller.refuse(refused),
        }
    }

    pub(crate) fn reschedule_status(&mut self) -> Result<v1::GetRescheduleStatusResponse, Status> {
        self.leads()?;
        let pending_units = self.leader.picture_mut().count_waiting();
        let (driver, picture) = (self.leader.driver(), self.leader.picture());
        let policies = &self.leader.manager().config().policies;
        let MoveTotals { moved, mismatched, failed } = self.leader.totals();
        Ok(v1::GetRescheduleStatusResponse {
            movement: driver.map(|driver| driver.movement().name.clone()).unwrap_or_default(),
            moving: driver.map_or(0, |driver| count(driver.n_under_way())),
            quiet_until_ms: self.leader.manager().quiet_until_ms().map_or(0, signed),
            pending_units,
            revision: picture.read().unwrap_or_default().0,
            enabled_policies: count(policies.values().filter(|policy| policy.enabled).count()),
            config_faults: self.faults.clone(),
            config_read_ms: self.config_read_ms,
            moved,
            mismatched,
            failed,
            traffic_pairs: u64::try_from(self.leader.traffic().n_pairs()).unwrap_or(u64::MAX),
            movements: count(self.leader.movements().count()),
            checkpoints: u64::try_from(picture.n_checkpoints()).unwrap_or(u64::MAX),
        })
    }

    /// Movements as they are now, the newest first: those that move a unit in sight.
    fn movements<'a>(&'a self, sight: &'a Sight) -> Result<impl Iterator<Item = &'a MovementRecord>, Status> {
        self.leads()?;
        let is_seen = |movement: &&MovementRecord| {
            sight.is_all() || movement.moves.iter().any(|one| sight.sees_unit(&one.unit))
        };
        Ok(self.leader.movements().rev().filter(is_seen))
    }

    pub(crate) fn list_movements(
        &self,
        request: &v1::ListMovementsRequest,
        sight: &Sight,
    ) -> Result<v1::ListMovementsResponse, Status> {
        let v1::ListMovementsRequest { policy, page_size, page_token } = request;
        let n_max = match usize::try_from(*page_size).unwrap_or(usize::MAX) {
            0 => PAGE_DEFAULT,
            n if n <= PAGE_MAX => n,
            n => {
                let why = format!("{n}: at most {PAGE_MAX}");
                return Err(status::invalid_argument([BadField::new("page_size", why)]));
            }
        };
        let before = match page_token.as_str() {
            "" => u64::MAX,
            token => token
                .parse()
                .map_err(|_| status::invalid_argument([BadField::new("page_token", "not of this list")]))?,
        };
        let matching = self
            .movements(sight)?
            .filter(|movement| movement.number < before && (policy.is_empty() || movement.policy == *policy));
        let mut page = v1::ListMovementsResponse::default();
        let mut n_bytes = FRAMING_BYTES;
        for movement in matching {
            let shown = summary(movement, sight);
            n_bytes += shown.encoded_len() + 6;
            if page.movements.len() >= n_max || n_bytes > MESSAGE_BYTES_MAX {
                let last = page.movements.last().and_then(|last| last.movement.as_ref());
                page.next_page_token = last.map(|last| last.number.to_string()).unwrap_or_default();
                break;
            }
            page.movements.push(shown);
        }
        Ok(page)
    }

    pub(crate) fn get_movement(&self, name: &str, sight: &Sight) -> Result<v1::GetMovementResponse, Status> {
        let found = self.movements(sight)?.find(|movement| movement.name == name);
        let movement = found.map(fitting).ok_or_else(|| unknown("movement", name))?;
        Ok(v1::GetMovementResponse { movement: Some(movement.within_sight(sight)) })
    }

    pub(crate) fn abort_movement(
        &mut self,
        request: v1::AbortMovementRequest,
        cause: Option<CallCause>,
        reply: QuestionReply<MovementRecord>,
    ) {
        let v1::AbortMovementRequest { name, reason } = request;
        let caller = Caller { cause, question: Question::Abort(reply) };
        if self.leader.leads() && reason.len() > REASON_LEN_MAX {
            let why = format!("{} bytes; at most {REASON_LEN_MAX}", reason.len());
            return caller.refuse(status::invalid_argument([BadField::new("reason", why)]));
        }
        self.leader.abort(name, reason, caller, &mut self.out);
    }

    pub(crate) fn report_traffic(
        &mut self,
        request: v1::ReportTrafficRequest,
    ) -> Result<v1::ReportTrafficResponse, Status> {
        self.leads()?;
        let v1::ReportTrafficRequest { traffic: pairs } = request;
        if pairs.len() > N_PAIRS_MAX {
            let why = format!("{} pairs; at most {N_PAIRS_MAX}", pairs.len());
            return Err(status::invalid_argument([BadField::new("traffic", why)]));
        }
        let mut wrong = Vec::new();
        let mut read = Vec::new();
        for (idx, v1::UnitTraffic { from, to, weight }) in pairs.into_iter().enumerate() {
            let mut bad = |field: &str, why: String| {
                wrong.push(BadField::new(format!("traffic[{idx}].{field}"), why));
            };
            if !is_weight(weight) {
                bad("weight", format!("{weight} is no finite number from 0"));
            }
            let from = unit_name(&from).map_err(|why| bad("from", why));
            let to = unit_name(&to).map_err(|why| bad("to", why));
            if let (Ok(from), Ok(to)) = (from, to) {
                read.push((from, to, weight));
            }
        }
        if !wrong.is_empty() {
            wrong.truncate(16);
            return Err(status::invalid_argument(wrong));
        }
        let n_max = self.config.traffic_max;
        for (from, to, weight) in read {
            if !self.leader.traffic_mut().report(from, to, weight, n_max) {
                let why = format!("more than {n_max} pairs (`rescheduler.traffic_max`)");
                return Err(status::invalid_argument([BadField::new("traffic", why)]));
            }
        }
        let pairs = u64::try_from(self.leader.traffic().n_pairs()).unwrap_or(u64::MAX);
        Ok(v1::ReportTrafficResponse { pairs })
    }
}

/// A movement without its moves, of which those of units in sight count.
fn summary(movement: &MovementRecord, sight: &Sight) -> v1::MovementSummary {
    let counts = movement.counts_of(|one| sight.sees_unit(&one.unit));
    let without = MovementRecord { moves: Vec::new(), ..movement.clone() };
    v1::MovementSummary {
        movement: Some(record::shown(&without)),
        moves: counts.all,
        moved: counts.moved,
        mismatched: counts.mismatched,
        failed: counts.failed + counts.aborted,
    }
    .within_sight(sight)
}
