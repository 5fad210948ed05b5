//! The movements of one leadership: one is driven, and written down before anything follows from it.
//!
//! A step of the driver changes the movement and says which moves the binder is to be asked for. While its record is being written nothing
//! else is done with the movement; the binder is asked once the record is durable. A record that the store refuses is written again later, as if
//! the binder had not answered.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use godel_base::ids::UnitId;
use godel_core_rescheduler::{
    MoveReply, MovementDriver, MovementMove, MovementPhase, MovementRecord, OrderedPlan, PolicyManager,
};
use godel_domain::{
    allocation::Allocation,
    decision::RejectionReason,
    requested_move::{MOVE_HOLD_MS_MAX, MOVEMENT_LEN_MAX, MadeMove, RequestedMove},
};

use crate::{
    AbortRefusal, CallRefusal, ClusterPicture, HeardRefusal, MovesAnswered, MovesAsked, MovesUnanswered,
    PlanAnswer, PlanDone, RescheduleLeaderConfig, RescheduleNote, RescheduleOutbox, RescheduleWrite,
    WriteFailure, WriteTicket, snapshot::wall,
};

const _: () = assert!(MOVEMENT_LEN_MAX >= 63 + 1 + 16, "the name of a policy and a number fit");
/// Time until a record is written again that the store has refused.
const REFUSED_MS: i64 = 1_000;
/// Longest time for which the binder holds the target of a move.
const HOLD_MS_MAX: i64 = MOVE_HOLD_MS_MAX - 60_000;

/// Moves since the leader began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveTotals {
    /// Those that run where they should.
    pub moved: u64,
    /// Those that run elsewhere.
    pub mismatched: u64,
    /// Those that were refused, or took too long.
    pub failed: u64,
}

/// The movement that is being made.
struct DrivenMovement {
    driver: MovementDriver,
    /// As its record is.
    recorded: Option<MovementRecord>,
    /// A plan of its rest is being made.
    is_replanned: bool,
    next_ms: Option<i64>,
}

impl DrivenMovement {
    /// Goes on with what is recorded.
    fn of_record(movement: MovementRecord) -> Self {
        let recorded = Some(movement.clone());
        Self { driver: MovementDriver::new(movement), recorded, is_replanned: false, next_ms: None }
    }
}

/// Somebody wants a movement to end.
struct AbortRequest<C> {
    name: String,
    reason: String,
    caller: C,
}

/// Records that are being written.
struct Writing<C> {
    ticket: WriteTicket,
    what: WritingOf<C>,
}

enum WritingOf<C> {
    /// The movement that is being made, with the rates of units that moved.
    Movement { movement: Arc<MovementRecord>, rates: Vec<UnitId>, then: AfterRecord<C> },
    /// The end of movements by number, and of rates.
    Forgotten(Vec<u64>),
}

/// What follows once the movement that is being made is recorded.
enum AfterRecord<C> {
    /// The binder is asked for moves; the rest may have to be planned anew.
    Step { asked: Vec<usize>, replans: bool },
    /// Somebody hears that it ends.
    Abort(C),
}

/// What a leadership looks at and changes beside its movements.
pub(crate) struct TermInputs<'a> {
    pub(crate) picture: &'a mut ClusterPicture,
    pub(crate) manager: &'a mut PolicyManager,
    pub(crate) config: &'a RescheduleLeaderConfig,
    /// Unix milliseconds.
    pub(crate) now_ms: i64,
}

impl TermInputs<'_> {
    fn now(&self) -> u64 {
        u64::try_from(self.now_ms).unwrap_or(0)
    }
}

/// See the module.
pub(crate) struct MovementTerm<C> {
    number: u64,
    /// Every movement by its number, as recorded; the one that is driven as it was created, or is recorded.
    movements: BTreeMap<u64, MovementRecord>,
    driven: Option<DrivenMovement>,
    /// Units whose move rates are to be written.
    rates: BTreeSet<UnitId>,
    n_written: u64,
    writing: Option<Writing<C>>,
    /// No record is written before this, Unix milliseconds: the store has refused one.
    write_again_ms: i64,
    aborts: VecDeque<AbortRequest<C>>,
    /// Answers that wait until the movement that was created is recorded.
    answers: Vec<(C, PlanAnswer)>,
    /// The rest of the movement is to be planned anew.
    wants_plan: bool,
    totals: MoveTotals,
}

impl<C> MovementTerm<C> {
    /// Begins with the movements that are recorded.
    pub(crate) fn new(number: u64, movements: Vec<MovementRecord>) -> Self {
        let movements: BTreeMap<u64, MovementRecord> =
            movements.into_iter().map(|movement| (movement.number, movement)).collect();
        let mut term = Self {
            number,
            movements,
            driven: None,
            rates: BTreeSet::new(),
            n_written: 0,
            writing: None,
            write_again_ms: 0,
            aborts: VecDeque::new(),
            answers: Vec::new(),
            wants_plan: false,
            totals: MoveTotals::default(),
        };
        term.take_open();
        term
    }

    /// Nothing is done any more. Who leads next begins with what is recorded.
    /// Returns what is still being written.
    pub(crate) fn end(self, out: &mut impl RescheduleOutbox<Caller = C>) -> Option<WriteTicket> {
        let lost = AbortRefusal::NotLeading;
        let unanswered = self.writing.as_ref().map(|writing| writing.ticket);
        if let Some(Writing { what: WritingOf::Movement { then: AfterRecord::Abort(caller), .. }, .. }) =
            self.writing
        {
            out.aborted(caller, Err(lost.clone()));
        }
        self.aborts.into_iter().for_each(|abort| out.aborted(abort.caller, Err(lost.clone())));
        self.answers.into_iter().for_each(|(caller, _)| out.planned(caller, Err(CallRefusal::NotLeading)));
        unanswered
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn totals(&self) -> MoveTotals {
        self.totals
    }

    /// Returns every movement by number as it is now.
    pub(crate) fn movements(&self) -> impl DoubleEndedIterator<Item = &MovementRecord> {
        let driven = self.driven.as_ref().map(|driven| driven.driver.movement());
        let now = move |known: u64| driven.filter(|driven| known == driven.number);
        self.movements.iter().map(move |(number, movement)| now(*number).unwrap_or(movement))
    }

    /// Returns the driver of the movement that is being made.
    pub(crate) fn driver(&self) -> Option<&MovementDriver> {
        self.driven.as_ref().map(|driven| &driven.driver)
    }

    /// Returns when something is due if nothing happens before, Unix milliseconds.
    pub(crate) fn next_ms(&self) -> Option<i64> {
        let next_ms = self.driven.as_ref()?.next_ms?;
        self.writing.is_none().then_some(next_ms.max(self.write_again_ms))
    }

    /// Takes the wish to have the rest of the movement planned anew.
    pub(crate) fn take_plan_wish(&mut self) -> bool {
        std::mem::take(&mut self.wants_plan)
    }

    /// A movement that has not ended goes on.
    fn take_open(&mut self) {
        let open = self.movements.values().find(|movement| !movement.is_ended()).cloned();
        self.driven = open.map(DrivenMovement::of_record);
    }

    /// Takes a movement that was just created. It is recorded, and begins, with the next step.
    pub(crate) fn create(&mut self, movement_of: impl FnOnce(u64) -> MovementRecord) -> String {
        let number = self.movements.last_key_value().map_or(0, |(last, _)| *last) + 1;
        let movement = movement_of(number);
        let name = movement.name.clone();
        let driver = MovementDriver::new(movement.clone());
        self.driven = Some(DrivenMovement { driver, recorded: None, is_replanned: false, next_ms: None });
        self.movements.insert(number, movement);
        name
    }

    /// Answers somebody once the movement that was created is recorded.
    pub(crate) fn answer_when_recorded(&mut self, caller: C, answer: PlanAnswer) {
        self.answers.push((caller, answer));
    }

    /// Steps on with the movement that is being made, until nothing is to be done now.
    pub(crate) fn drive(&mut self, inputs: &mut TermInputs<'_>, out: &mut impl RescheduleOutbox<Caller = C>) {
        if self.writing.is_some() {
            return;
        }
        if self.driven.is_none() {
            self.take_open();
        }
        let now_ms = inputs.now_ms;
        let Some(driven) = &mut self.driven else { return };
        if now_ms < self.write_again_ms {
            return;
        }
        inputs.picture.now_ms = now_ms;
        let step = driven.driver.step(&*inputs.picture, &inputs.config.driver, now_ms);
        driven.next_ms = step.next_ms;
        let replans = step.replans && !driven.is_replanned;
        self.record(AfterRecord::Step { asked: step.asked, replans }, inputs, out);
    }

    /// Writes the record of the movement that is being made, if it is another one than before, and the rates of units that moved, and goes on
    /// from there.
    fn record(
        &mut self,
        then: AfterRecord<C>,
        inputs: &mut TermInputs<'_>,
        out: &mut impl RescheduleOutbox<Caller = C>,
    ) {
        let Some(driven) = &mut self.driven else { return };
        for unit in driven.driver.take_begun() {
            inputs.manager.note_move(unit, inputs.now());
            self.rates.insert(unit);
        }
        let movement = driven.driver.movement();
        if driven.recorded.as_ref() == Some(movement) && self.rates.is_empty() {
            return self.go_on(then, inputs, out);
        }
        let movement = Arc::new(movement.clone());
        let rates: Vec<UnitId> = self.rates.iter().copied().collect();
        let mut records: Vec<RescheduleWrite> = Vec::with_capacity(rates.len() + 1);
        for unit in &rates {
            let log = inputs.manager.log().iter();
            let times = log.filter(|(of, _)| of == unit).map(|(_, at)| at.0);
            records.push(RescheduleWrite::Rate(*unit, times.collect()));
        }
        records.push(RescheduleWrite::Movement(Arc::clone(&movement)));
        self.write(WritingOf::Movement { movement, rates, then }, records, out);
    }

    fn write(
        &mut self,
        what: WritingOf<C>,
        records: Vec<RescheduleWrite>,
        out: &mut impl RescheduleOutbox<Caller = C>,
    ) {
        self.n_written += 1;
        let ticket = WriteTicket { term: self.number, number: self.n_written };
        let callers: Vec<&C> = match &what {
            WritingOf::Movement { then: AfterRecord::Abort(caller), .. } => {
                self.answers.iter().map(|(waiting, _)| waiting).chain([caller]).collect()
            }
            WritingOf::Movement { .. } => self.answers.iter().map(|(waiting, _)| waiting).collect(),
            WritingOf::Forgotten(_) => Vec::new(),
        };
        out.write(ticket, records, &callers);
        self.writing = Some(Writing { ticket, what });
    }

    /// The store's answer to records.
    pub(crate) fn on_written(
        &mut self,
        ticket: WriteTicket,
        answer: Result<(), WriteFailure>,
        inputs: &mut TermInputs<'_>,
        out: &mut impl RescheduleOutbox<Caller = C>,
    ) {
        let Some(writing) = self.writing.take_if(|writing| writing.ticket == ticket) else { return };
        match (writing.what, answer) {
            (WritingOf::Movement { movement, rates, then }, Ok(())) => {
                for unit in &rates {
                    self.rates.remove(unit);
                }
                self.movements.insert(movement.number, MovementRecord::clone(&movement));
                if let Some(driven) = &mut self.driven {
                    driven.recorded = Some(Arc::unwrap_or_clone(movement));
                }
                out.note(RescheduleNote::Recorded);
                self.go_on(then, inputs, out);
            }
            (WritingOf::Movement { then, .. }, Err(_)) => {
                self.write_again_ms = inputs.now_ms.saturating_add(REFUSED_MS);
                let Some(driven) = &mut self.driven else { return };
                driven.next_ms = Some(self.write_again_ms);
                match then {
                    AfterRecord::Step { asked, .. } => {
                        driven.driver.on_no_answer(&asked, &inputs.config.driver, inputs.now_ms);
                    }
                    AfterRecord::Abort(caller) => out.aborted(caller, Err(AbortRefusal::NotRecorded)),
                }
            }
            (WritingOf::Forgotten(numbers), Ok(())) => {
                for number in numbers {
                    self.movements.remove(&number);
                }
            }
            (WritingOf::Forgotten(_), Err(_)) => {}
        }
    }

    /// The movement that is being made is recorded as it is: what follows from it may happen.
    fn go_on(
        &mut self,
        then: AfterRecord<C>,
        inputs: &TermInputs<'_>,
        out: &mut impl RescheduleOutbox<Caller = C>,
    ) {
        for (caller, answer) in self.answers.drain(..) {
            out.planned(caller, Ok(answer));
        }
        let Some(driven) = &mut self.driven else { return };
        match then {
            AfterRecord::Step { asked, replans } => {
                if replans {
                    driven.is_replanned = true;
                    self.wants_plan = true;
                }
                if !asked.is_empty() {
                    out.move_units(moves_asked(driven.driver.movement(), asked, inputs));
                }
            }
            AfterRecord::Abort(caller) => {
                let recorded = driven.recorded.as_ref().unwrap_or(driven.driver.movement());
                out.aborted(caller, Ok(recorded.clone()));
            }
        }
        self.end_movement(out);
    }

    /// The movement that was made has ended, and its record says so.
    fn end_movement(&mut self, out: &mut impl RescheduleOutbox<Caller = C>) {
        let is_over = |driven: &mut DrivenMovement| {
            let movement = driven.driver.movement();
            movement.is_ended() && driven.recorded.as_ref() == Some(movement)
        };
        let Some(driven) = self.driven.take_if(is_over) else { return };
        let counts = driven.driver.movement().counts();
        self.totals.moved += u64::from(counts.moved);
        self.totals.mismatched += u64::from(counts.mismatched);
        self.totals.failed += u64::from(counts.failed);
        out.note(RescheduleNote::Ended(driven.driver.movement()));
    }

    /// The binder has answered, or has not.
    pub(crate) fn on_moves_answered(
        &mut self,
        MovesAnswered { number, asked, answer }: MovesAnswered,
        inputs: &mut TermInputs<'_>,
    ) {
        let (terms, now_ms) = (&inputs.config.driver, inputs.now_ms);
        let Some(driver) = self.driven.as_mut().map(|driven| &mut driven.driver) else { return };
        if driver.movement().number != number {
            return;
        }
        match answer {
            Ok(answers) => {
                for (at, answer) in asked.iter().zip(&answers) {
                    if let (Err(refusal), Some(one)) = (answer, driver.movement().moves.get(*at)) {
                        note_refused(inputs.picture, one, refusal, now_ms);
                    }
                }
                let verdicts = asked.iter().copied().zip(answers.into_iter().map(reply_of));
                driver.on_verdicts(verdicts, terms, now_ms);
                // What was not answered is asked for again.
                driver.on_no_answer(&asked, terms, now_ms);
            }
            Err(MovesUnanswered::Unusable(why)) => {
                let why = format!("the binder refuses the request: {why}");
                let verdicts = asked.iter().map(|at| (*at, MoveReply::Refused(why.clone())));
                driver.on_verdicts(verdicts.collect::<Vec<_>>(), terms, now_ms);
            }
            Err(MovesUnanswered::Silent) => driver.on_no_answer(&asked, terms, now_ms),
        }
    }

    /// Somebody wants a movement to end.
    pub(crate) fn abort(&mut self, name: String, reason: String, caller: C) {
        self.aborts.push_back(AbortRequest { name, reason, caller });
    }

    /// Ends the movement that somebody wants to end, and answers when that is recorded; one after the other.
    pub(crate) fn make_aborts(
        &mut self,
        inputs: &mut TermInputs<'_>,
        out: &mut impl RescheduleOutbox<Caller = C>,
    ) {
        while self.writing.is_none()
            && let Some(AbortRequest { name, reason, caller }) = self.aborts.pop_front()
        {
            let driven = self.driven.as_mut().filter(|driven| driven.driver.movement().name == name);
            if let Some(driven) = driven {
                driven.driver.abort(&reason, inputs.now_ms);
                self.record(AfterRecord::Abort(caller), inputs, out);
                continue;
            }
            out.aborted(
                caller,
                match self.movements.values().find(|movement| movement.name == name) {
                    Some(movement) if movement.phase == MovementPhase::Aborted => Ok(movement.clone()),
                    Some(movement) => Err(AbortRefusal::HasEnded(movement.clone())),
                    None => Err(AbortRefusal::Unknown(name)),
                },
            );
        }
    }

    /// The rest of the movement that is being made is planned anew, or nothing is left of the plan.
    pub(crate) fn on_replan(&mut self, plan: Result<Arc<OrderedPlan>, String>, done: &PlanDone, now_ms: i64) {
        let Some(driven) = &mut self.driven else { return };
        driven.is_replanned = false;
        let driver = &mut driven.driver;
        match plan {
            Ok(plan) => {
                let moves = plan.moves.clone();
                driver.replace_plan(done.revision, &plan.finding, moves, plan.n_batches, now_ms);
            }
            Err(why) => driver.replace_plan(done.revision, &why, Vec::new(), 0, now_ms),
        }
    }

    /// Forgets ended movements that are too many or too old, and moves that no rate looks at. False: something else is being written.
    pub(crate) fn forget_old(
        &mut self,
        inputs: &mut TermInputs<'_>,
        out: &mut impl RescheduleOutbox<Caller = C>,
    ) -> bool {
        if self.writing.is_some() {
            return false;
        }
        let ttl_ms = i64::try_from(inputs.config.movements_ttl_ms).unwrap_or(i64::MAX);
        let before_ms = inputs.now_ms.saturating_sub(ttl_ms);
        let gone = forgettable(self.movements.values(), inputs.config.movements_max, before_ms);
        let named = gone.iter().filter_map(|number| self.movements.get(number));
        let mut records: Vec<RescheduleWrite> =
            named.map(|movement| RescheduleWrite::MovementGone(movement.name.clone())).collect();
        let units = inputs.manager.forget_moves(inputs.now());
        records.extend(units.into_iter().map(RescheduleWrite::RateGone));
        if !records.is_empty() {
            self.write(WritingOf::Forgotten(gone), records, out);
        }
        true
    }
}

/// The request for moves of a movement, by position.
fn moves_asked(movement: &MovementRecord, asked: Vec<usize>, inputs: &TermInputs<'_>) -> MovesAsked {
    let held_ms = i64::try_from(inputs.config.driver.move_timeout_ms).unwrap_or(i64::MAX);
    MovesAsked {
        number: movement.number,
        movement: movement.name.clone(),
        moves: asked.iter().filter_map(|at| movement.moves.get(*at)).map(requested).collect(),
        asked,
        expires_ms: inputs.now_ms.saturating_add(held_ms.min(HOLD_MS_MAX)),
        read: movement.plan_revision,
        store: inputs.picture.store,
    }
}

fn requested(one: &MovementMove) -> RequestedMove {
    let wanted = Allocation { devices: one.devices, ..Allocation::default() };
    RequestedMove { running: one.id, to: one.to.0, wanted }
}

/// What an answer of the binder means to a move.
fn reply_of(answer: Result<MadeMove, HeardRefusal>) -> MoveReply {
    match answer {
        Ok(made) => made.surge.map_or(MoveReply::Moved, MoveReply::Surges),
        // What a later binder says and this one does not know is no reason to look for another target.
        Err(HeardRefusal { reason, later, why }) => {
            MoveReply::refused(reason.unwrap_or(RejectionReason::Invalid), later, why)
        }
    }
}

/// What the binder refused is not planned again for now.
fn note_refused(picture: &mut ClusterPicture, one: &MovementMove, refusal: &HeardRefusal, now_ms: i64) {
    let (Some(record), Some(reason)) = (picture.units.get(&one.id.unit), refusal.reason) else { return };
    if !refusal.later {
        let generation = picture.cluster.free().generations().of(one.to.0);
        let refused = Arc::make_mut(&mut picture.refused);
        refused.note(one.id, record, one.to.0, generation, reason, wall(now_ms));
    }
}

/// Numbers of ended movements that go: all but the newest `n_max`, and those that ended before a time. The newest movement always stays: numbers
/// go on from it.
fn forgettable<'m>(
    movements: impl Iterator<Item = &'m MovementRecord>,
    n_max: usize,
    before_ms: i64,
) -> Vec<u64> {
    let mut all: Vec<&MovementRecord> = movements.collect();
    all.sort_unstable_by_key(|movement| std::cmp::Reverse(movement.number));
    let ended = all.iter().enumerate().skip(1).filter(|(_, movement)| movement.is_ended());
    let goes = |(at, movement): &(usize, &&MovementRecord)| *at >= n_max || movement.ended_ms < before_ms;
    ended.filter(goes).map(|(_, movement)| movement.number).collect()
}
