//! The leader itself: who asks, what is due, and what becomes of a plan.

use godel_base::ids::StoreId;
use godel_core_rescheduler::{ConfigFault, MovementDriver, MovementRecord, PolicyManager, RescheduleConfig};

use crate::{
    AbortRefusal, CallRefusal, ClusterPicture, MoveTotals, MovesAnswered, RescheduleLeaderConfig,
    RescheduleNote, RescheduleOutbox, StoredMovements, WriteFailure, WriteTicket,
    gangs::GangQuestions,
    jobs::PlanQueue,
    term::{MovementTerm, TermInputs},
    traffic::KnownTraffic,
};

mod plans;
#[cfg(test)]
mod tests;

/// Time between looks at what may be forgotten.
const MAINTENANCE_MS: i64 = 10_000;
/// Time between counts of the units that wait.
const OBSERVE_MS: i64 = 1_000;

/// The leading rescheduler, or one that follows to lead next. `C` is who asks for plans and for the end of movements.
pub struct ReschedulerLeader<C> {
    config: RescheduleLeaderConfig,
    picture: ClusterPicture,
    manager: PolicyManager,
    traffic: KnownTraffic,
    seed: u64,
    plans: PlanQueue<C>,
    gangs: GangQuestions,
    /// What it has while it leads.
    term: Option<MovementTerm<C>>,
    /// What an earlier term was writing when it ended: it may be written yet, and is not in a list that is read before.
    left_over: Option<WriteTicket>,
    n_terms: u64,
    observed_ms: i64,
    maintained_ms: i64,
}

/// What it follows and is told, whether it leads or not.
impl<C> ReschedulerLeader<C> {
    /// Returns one that knows nothing and has no policies. What looks random in plans follows from `seed`.
    pub fn new(config: RescheduleLeaderConfig, seed: u64) -> Self {
        Self {
            picture: ClusterPicture::new(&config.snapshot.sub_cluster_key),
            config,
            manager: PolicyManager::new(seed),
            traffic: KnownTraffic::default(),
            seed,
            plans: PlanQueue::default(),
            gangs: GangQuestions::default(),
            term: None,
            left_over: None,
            n_terms: 0,
            observed_ms: 0,
            maintained_ms: 0,
        }
    }

    /// Puts a configuration in force.
    ///
    /// # Errors
    /// Everything that is wrong with its policies; the one before stays in force.
    pub fn configure(
        &mut self,
        config: RescheduleLeaderConfig,
        rescheduling: RescheduleConfig,
        now_ms: i64,
    ) -> Result<(), Vec<ConfigFault>> {
        self.manager.configure(rescheduling, unsigned(now_ms))?;
        self.config = config;
        Ok(())
    }

    /// Returns the cluster as it was read.
    pub fn picture(&self) -> &ClusterPicture {
        &self.picture
    }

    /// Returns the cluster as it was read, to be followed further, and to be told of checkpoints and measured use.
    pub fn picture_mut(&mut self) -> &mut ClusterPicture {
        &mut self.picture
    }

    /// Returns the policies, and when they ran.
    pub fn manager(&self) -> &PolicyManager {
        &self.manager
    }

    /// Returns the policies, to ask for runs of them.
    pub fn manager_mut(&mut self) -> &mut PolicyManager {
        &mut self.manager
    }

    /// A list of everything follows: what is known is not known any more, as after a start.
    pub fn reset(&mut self, store: StoreId, out: &mut impl RescheduleOutbox<Caller = C>) {
        self.step_down(out);
        self.picture.reset(store, &self.config.snapshot.sub_cluster_key);
    }

    /// Returns the traffic between units.
    pub fn traffic(&self) -> &KnownTraffic {
        &self.traffic
    }

    /// Returns the traffic between units, to be told of more.
    pub fn traffic_mut(&mut self) -> &mut KnownTraffic {
        &mut self.traffic
    }
}

/// What it does while it leads.
impl<C> ReschedulerLeader<C> {
    /// Leads, with what those before it have written down.
    pub fn lead(&mut self, stored: StoredMovements, out: &mut impl RescheduleOutbox<Caller = C>) {
        self.step_down(out);
        self.manager.forget_all_moves();
        for (unit, times_ms) in stored.rates {
            self.manager.load_moves(unit, times_ms);
        }
        self.n_terms += 1;
        let n_movements = stored.movements.len();
        let term = MovementTerm::new(self.n_terms, stored.movements);
        if let Some(driver) = term.driver() {
            out.note(RescheduleNote::GoesOn(driver.movement()));
        }
        self.term = Some(term);
        out.note(RescheduleNote::Leads(n_movements));
    }

    /// Stops acting. Who leads next begins with what is recorded.
    pub fn step_down(&mut self, out: &mut impl RescheduleOutbox<Caller = C>) {
        if let Some(term) = self.term.take() {
            out.note(RescheduleNote::SteppedDown);
            self.left_over = term.end(out);
        }
        self.plans.clear().for_each(|caller| out.planned(caller, Err(CallRefusal::NotLeading)));
    }

    /// Whether the records that it leads with may be read now: it does not lead, and nothing that it wrote is on its way.
    pub fn may_lead(&self) -> bool {
        self.term.is_none() && self.left_over.is_none()
    }

    /// Whether it leads.
    pub fn leads(&self) -> bool {
        self.term.is_some()
    }

    /// Returns every movement as it is now, in the order of their numbers; none if it does not lead.
    pub fn movements(&self) -> impl DoubleEndedIterator<Item = &MovementRecord> {
        self.term.iter().flat_map(|term| term.movements())
    }

    /// Returns the driver of the movement that is being made.
    pub fn driver(&self) -> Option<&MovementDriver> {
        self.term.as_ref()?.driver()
    }

    /// Returns how moves have ended since it leads.
    pub fn totals(&self) -> MoveTotals {
        self.term.as_ref().map(MovementTerm::totals).unwrap_or_default()
    }

    /// Returns when something is due if nothing happens before, Unix milliseconds.
    pub fn next_ms(&self) -> Option<i64> {
        self.term.as_ref()?.next_ms()
    }

    /// Does what is due.
    pub fn step(&mut self, now_ms: i64, out: &mut impl RescheduleOutbox<Caller = C>) {
        if self.term.is_none() {
            return;
        }
        if now_ms.saturating_sub(self.observed_ms) >= OBSERVE_MS {
            self.observed_ms = now_ms;
            self.observe(now_ms, out);
        }
        self.with_term(now_ms, |term, inputs| {
            term.make_aborts(inputs, out);
            term.drive(inputs, out);
        });
        self.look_at_a_gang(now_ms, out);
        self.run_what_is_due(now_ms);
        self.start_plan(now_ms, out);
        if now_ms.saturating_sub(self.maintained_ms) >= MAINTENANCE_MS {
            let is_done = self.with_term(now_ms, |term, inputs| term.forget_old(inputs, out));
            if is_done == Some(true) {
                self.maintained_ms = now_ms;
            }
        }
    }

    /// The store's answer to records.
    pub fn on_written(
        &mut self,
        ticket: WriteTicket,
        answer: Result<(), WriteFailure>,
        now_ms: i64,
        out: &mut impl RescheduleOutbox<Caller = C>,
    ) {
        if self.term.as_ref().is_none_or(|term| term.number() != ticket.term) {
            if self.left_over == Some(ticket) {
                self.left_over = None;
            }
            return;
        }
        if answer == Err(WriteFailure::LeaseLost) {
            self.step_down(out);
            self.left_over = None;
            return;
        }
        self.with_term(now_ms, |term, inputs| term.on_written(ticket, answer, inputs, out));
    }

    /// The binder has answered, or has not.
    pub fn on_moves_answered(&mut self, answered: MovesAnswered, now_ms: i64) {
        self.with_term(now_ms, |term, inputs| term.on_moves_answered(answered, inputs));
    }

    /// Somebody wants a movement to end.
    pub fn abort(
        &mut self,
        name: String,
        reason: String,
        caller: C,
        out: &mut impl RescheduleOutbox<Caller = C>,
    ) {
        match &mut self.term {
            Some(term) => term.abort(name, reason, caller),
            None => out.aborted(caller, Err(AbortRefusal::NotLeading)),
        }
    }

    /// Takes note of how many units wait, and which gangs do.
    fn observe(&mut self, now_ms: i64, out: &mut impl RescheduleOutbox<Caller = C>) {
        let n_waiting = self.picture.count_waiting();
        self.manager.observe(n_waiting, unsigned(now_ms));
        let after_ms = self.config.make_room_after_ms;
        let gangs = if after_ms > 0 { self.picture.waiting_gangs() } else { Default::default() };
        self.gangs.observe(&gangs, after_ms, unsigned(now_ms));
        out.note(RescheduleNote::Observed(n_waiting, self.picture.read().unwrap_or_default()));
    }

    fn with_term<T>(
        &mut self,
        now_ms: i64,
        act: impl FnOnce(&mut MovementTerm<C>, &mut TermInputs<'_>) -> T,
    ) -> Option<T> {
        let Self { config, picture, manager, term, .. } = self;
        let inputs = &mut TermInputs { picture, manager, config, now_ms };
        term.as_mut().map(|term| act(term, inputs))
    }
}

fn unsigned(ms: i64) -> u64 {
    u64::try_from(ms).unwrap_or(0)
}
