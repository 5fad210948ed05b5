//! The agent of one node: what its sessions with state mean for what runs there.

use godel_base::time::Millis;
use godel_membership::agent_admission::{AssignmentRefusal, Has};

use crate::{
    AgentAction, AgentOutbox, AgentSession, LeftRunning, NodeLife, RestartBackoff, RunKey, RunOrders,
    RunStatus, SessionTerms, StatusReport, StopOrder, StoreChange, contact::Contact, life::StopNotice,
};

/// What state assigns.
#[derive(Clone, Debug)]
pub struct AssignedRun<P> {
    /// Which running unit.
    pub key: RunKey,
    /// Which life of it.
    pub incarnation: u32,
    /// What state says of it.
    pub orders: RunOrders<P>,
    /// State says again what was bound before the node's session began.
    pub again: bool,
}

/// A message of state, as far as it may have to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MayWait {
    /// Assignments, one of which has to stop without contact.
    MustStop,
    /// Other assignments, or stops.
    Follows,
    /// Anything else, which never waits.
    Never,
}

/// A session begins so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionBegins {
    /// Its number.
    pub generation: u64,
    /// Everything that runs on the node, and every end not yet acknowledged.
    pub running: Vec<RunStatus>,
    /// The node begins anew in this store: what agents before this one have left there is to end before.
    pub is_first: bool,
}

/// What a welcome means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionWelcomed {
    /// The session was not welcomed before: it has no heartbeats yet.
    pub is_new: bool,
    /// State heard of the node so long ago, milliseconds.
    pub age_ms: Option<u64>,
    /// The store is another one than before.
    pub store_change: Option<StoreChange>,
}

/// See the module. `P` is a program, `M` a message of state that waits.
#[derive(Debug)]
pub struct NodeAgent<P, M> {
    life: NodeLife<P>,
    session: AgentSession,
    contact: Contact,
    /// Assignments and stops of the present session that wait for an answer of state.
    held: Vec<M>,
    /// Assignments that it has yet to refuse, for a test.
    n_to_refuse: u32,
    /// Whoever drives it knows that it has something to report.
    is_noted: bool,
}

impl<P, M> NodeAgent<P, M> {
    /// The agent of a node on which nothing runs, and whose journal is of `store`. It refuses the first assignments, so many.
    pub fn new(backoff: RestartBackoff, store: u64, n_to_refuse: u32, now: Millis) -> Self {
        Self {
            life: NodeLife::new(backoff),
            session: AgentSession::new(store),
            contact: Contact::new(now),
            held: Vec::new(),
            n_to_refuse,
            is_noted: false,
        }
    }

    /// What runs on the node.
    #[inline]
    pub fn life(&self) -> &NodeLife<P> {
        &self.life
    }

    /// The same, for what happens to it.
    #[inline]
    pub fn life_mut(&mut self) -> &mut NodeLife<P> {
        &mut self.life
    }

    /// Its session with state.
    #[inline]
    pub fn session(&self) -> &AgentSession {
        &self.session
    }

    /// Takes up what an earlier agent has left running; see [`NodeLife::adopt`].
    pub fn adopt(
        &mut self,
        key: RunKey,
        incarnation: u32,
        orders: RunOrders<P>,
        left: LeftRunning,
        now: Millis,
        out: &mut AgentOutbox,
    ) -> bool {
        let stop_after_ms = orders.stop_after_ms;
        let is_adopted = self.life.adopt(key, incarnation, orders, left, now);
        // Its keeper counts from the last contact of the earlier agent, and ends it sooner.
        if is_adopted && stop_after_ms > 0 {
            self.contact.look_after(stop_after_ms, out);
        }
        is_adopted
    }

    /// State has the node in `store`: a session is opened.
    pub fn open(&mut self, store: u64, now: Millis) -> SessionBegins {
        self.contact.open(now);
        let is_first = self.session.open(store);
        SessionBegins { generation: self.session.generation(), running: self.life.open(), is_first }
    }

    /// State speaks with the node.
    pub fn welcome(&mut self, terms: &SessionTerms, now: Millis, out: &mut AgentOutbox) -> SessionWelcomed {
        let age_ms = self.contact.welcome(terms.heartbeat_ms, terms.lease_ms, now);
        let is_new = self.session.welcome(terms);
        let store_change = self.session.settle_store(terms.store, out);
        if store_change.is_some() {
            self.life.change_store();
        }
        SessionWelcomed { is_new, age_ms, store_change }
    }

    /// The session is over. Returns whether it was welcomed.
    pub fn lose(&mut self) -> bool {
        self.held.clear();
        self.session.lose()
    }

    /// Whether an assignment or stop waits until contact is confirmed: a node on which nothing had to stop has not
    /// asked for a while, and what comes now would seem to be without contact since then. What comes after it
    /// waits too.
    pub fn must_wait(&self, message: MayWait, now: Millis) -> bool {
        match message {
            MayWait::MustStop if self.held.is_empty() => self.contact.is_old(now),
            MayWait::MustStop | MayWait::Follows => !self.held.is_empty(),
            MayWait::Never => false,
        }
    }

    /// Keeps a message that waits. Returns whether it is the first one: a heartbeat is to be sent at once.
    pub fn hold(&mut self, message: M) -> bool {
        self.held.push(message);
        self.held.len() == 1
    }

    /// State wants something to run here.
    ///
    /// # Errors
    /// It is not started, and why. That is reported.
    pub fn assign(
        &mut self,
        run: AssignedRun<P>,
        has: &Has,
        out: &mut AgentOutbox,
    ) -> Result<(), AssignmentRefusal> {
        let AssignedRun { key, incarnation, orders, again } = run;
        if orders.stop_after_ms > 0 {
            self.contact.look_after(orders.stop_after_ms, out);
        }
        if again {
            self.life.assign(key, incarnation, orders, out);
            return Ok(());
        }
        let told = self.n_to_refuse > 0;
        self.n_to_refuse = self.n_to_refuse.saturating_sub(1);
        self.life.offer(key, incarnation, orders, has, told, out)
    }

    /// State wants something to leave, at once or after a notice.
    pub fn stop(&mut self, stop: StopOrder, out: &mut AgentOutbox) {
        let StopOrder { key, incarnation, grace_ms, notice_ms } = stop;
        let notice = if notice_ms > 0 { self.life.notice(key, incarnation) } else { StopNotice::Useless };
        match notice {
            StopNotice::Given => out.push(AgentAction::StopLater(stop)),
            StopNotice::GivenBefore => {}
            StopNotice::Useless => self.life.stop(key, incarnation, grace_ms, out),
        }
    }

    /// What the heartbeat of this moment asks state to send back; 0 while there is no need: nothing here stops
    /// without contact, or contact is young.
    pub fn echo(&self, now: Millis) -> u64 {
        let asks = !self.held.is_empty() || self.contact.looks() && self.contact.is_old(now);
        if asks { now.0 + 1 } else { 0 }
    }

    /// State sent back an echo. Returns how old that contact is, milliseconds, and what has waited for it.
    pub fn on_echo(&mut self, echo: u64, now: Millis) -> (Option<u64>, Vec<M>) {
        match echo.checked_sub(1) {
            Some(sent) => (self.contact.hear(Millis(sent), now), std::mem::take(&mut self.held)),
            None => (None, Vec::new()),
        }
    }

    /// Stops what has been without contact for too long. Returns for how long, milliseconds, if contact was looked at.
    pub fn check_contact(&mut self, now: Millis, out: &mut AgentOutbox) -> Option<u64> {
        let alone_ms = self.contact.begin_look(now)?;
        if let Some(stop_after_ms) = self.life.stop_without_contact(alone_ms, out) {
            self.contact.look_after(stop_after_ms, out);
        }
        Some(alone_ms)
    }

    /// State wants to hear of the node this often from now on, milliseconds.
    pub fn set_heartbeat_ms(&mut self, heartbeat_ms: u64) {
        self.contact.heartbeat_ms = heartbeat_ms;
    }

    /// Between two heartbeats, milliseconds. The first of a session comes within this.
    #[inline]
    pub fn heartbeat_ms(&self) -> u64 {
        self.contact.heartbeat_ms
    }

    /// How much earlier a heartbeat may come, milliseconds.
    #[inline]
    pub fn early_ms_max(&self) -> u64 {
        self.session.early_ms_max(self.contact.heartbeat_ms)
    }

    /// Whether something is to be reported of which whoever drives it does not know yet. It knows from now on.
    pub fn note(&mut self) -> bool {
        let is_new = !self.is_noted && self.life.reports().is_waiting() && self.session.may_report();
        self.is_noted |= is_new;
        is_new
    }

    /// The reports that are due are taken: what comes later is noted anew.
    pub fn begin_reports(&mut self) {
        self.is_noted = false;
    }

    /// The next report, if state may have one now.
    pub fn next_report(&mut self) -> Option<StatusReport> {
        let n_max = self.session.n_statuses_max();
        if self.session.may_report() { self.life.reports_mut().next(n_max) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: RunKey = RunKey { unit: 1, ordinal: 0 };
    const HAS: Has = Has {
        cpu_milli: 1,
        memory: 1,
        n_devices: 0,
        zones: godel_domain::allocation::ZoneSet::NONE,
        n_running_units: 9,
    };

    fn terms(store: u64) -> SessionTerms {
        SessionTerms { heartbeat_ms: 10, lease_ms: 400, store, ..SessionTerms::default() }
    }

    fn welcomed(out: &mut AgentOutbox) -> NodeAgent<(), u32> {
        let mut agent = NodeAgent::new(RestartBackoff::default(), 0, 0, Millis(0));
        assert!(agent.open(7, Millis(100)).is_first);
        let welcomed = agent.welcome(&terms(7), Millis(120), out);
        assert_eq!(welcomed, SessionWelcomed { is_new: true, age_ms: Some(20), store_change: None });
        assert_eq!(std::mem::take(out), [AgentAction::KeepStore(7)]);
        agent
    }

    fn tied() -> AssignedRun<()> {
        let orders = RunOrders { stop_after_ms: 300, ..RunOrders::default() };
        AssignedRun { key: KEY, incarnation: 0, orders, again: false }
    }

    #[test]
    fn what_must_stop_waits_until_contact_is_confirmed_and_so_does_what_follows() {
        let mut out = AgentOutbox::new();
        let mut agent = welcomed(&mut out);
        assert!(!agent.must_wait(MayWait::MustStop, Millis(389)), "contact is young");
        assert!(agent.must_wait(MayWait::MustStop, Millis(390)));
        assert!(!agent.must_wait(MayWait::Follows, Millis(390)) && agent.hold(1));
        assert!(agent.must_wait(MayWait::Follows, Millis(391)) && !agent.hold(2));
        let echo = agent.echo(Millis(391));
        assert_eq!(agent.on_echo(echo, Millis(400)), (Some(9), vec![1, 2]));
        assert!(!agent.must_wait(MayWait::MustStop, Millis(400)));
        agent.hold(3);
        assert!(agent.lose() && agent.on_echo(echo, Millis(401)).1.is_empty(), "it was of another session");
    }

    #[test]
    fn contact_is_looked_at_when_something_may_have_to_stop() {
        let mut out = AgentOutbox::new();
        let mut agent = welcomed(&mut out);
        assert_eq!(agent.assign(tied(), &HAS, &mut out), Ok(()));
        assert_eq!(std::mem::take(&mut out), [AgentAction::LookAt(Millis(400)), AgentAction::Start(KEY, 0)]);
        agent.on_echo(301, Millis(310));
        assert_eq!(agent.check_contact(Millis(399), &mut out), None, "it is not time");
        assert_eq!(agent.check_contact(Millis(400), &mut out), Some(100));
        assert_eq!(std::mem::take(&mut out), [AgentAction::LookAt(Millis(600))], "it was heard meanwhile");
        assert_eq!(agent.check_contact(Millis(600), &mut out), Some(300));
        assert!(matches!(out[..], [AgentAction::Stop { key: KEY, grace_ms: 0, .. }]), "{out:?}");
    }

    #[test]
    fn nothing_is_said_to_a_store_that_may_not_know_what_is_here() {
        let mut out = AgentOutbox::new();
        let mut agent = welcomed(&mut out);
        assert_eq!(agent.assign(AssignedRun { again: true, ..tied() }, &HAS, &mut out), Ok(()));
        agent.life_mut().started(KEY, 0, 1, Millis(130));
        assert!(agent.note() && !agent.note(), "it is known");
        agent.begin_reports();
        assert!(agent.next_report().is_some());
        assert!(agent.lose());
        assert!(!agent.open(7, Millis(200)).is_first, "the same store");
        assert!(agent.note(), "what was not acknowledged is said again");
        agent.begin_reports();
        agent.lose();
        assert_eq!(agent.open(8, Millis(300)).running.len(), 1);
        assert!(!agent.note() && agent.next_report().is_none());
        let change = agent.welcome(&terms(8), Millis(310), &mut out).store_change;
        assert_eq!(change, Some(StoreChange { before: 7, store: 8 }));
        assert!(agent.note());
    }
}
