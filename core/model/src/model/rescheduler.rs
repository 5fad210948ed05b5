//! The rescheduler: its leader with a lease, and with records, plans and answers that arrive later.

use godel_base::ids::{Epoch, Revision, StoreId, UnitId};
use godel_core_rescheduler::{
    MovementRecord, NodeUseTable, PolicyManager, RescheduleConfig, RunCause, UsageTable,
};
use godel_core_rescheduler_leader::{
    AbortRefusal, CallRefusal, MovesAnswered, MovesAsked, PlanAnswer, PlanDone, PlanWork,
    RescheduleLeaderConfig, RescheduleNote, RescheduleOutbox, RescheduleWrite, ReschedulerLeader,
    StoredMovements, Traffic, WriteFailure, WriteTicket,
};
use godel_domain::unit::UnitRecord;

use super::{
    net::{Event, MoveCall, MoveCaller, Net, Part},
    store::{EPOCH_MS, Store},
};

/// Its lease.
pub(super) const LEASE: &str = "rescheduler";

/// What a rescheduler is started with.
#[derive(Clone)]
pub(super) struct ReschedulerSettings {
    pub(super) leader: RescheduleLeaderConfig,
    pub(super) policies: RescheduleConfig,
    pub(super) seed: u64,
    /// Time between looks at the clock, milliseconds.
    pub(super) look_ms: u64,
}

/// Where a rescheduler dies that moves something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Death {
    /// Moves are recorded, and the binder is not asked for them.
    Recorded,
    /// The binder is asked, and has done nothing yet.
    Asked,
    /// The binder has answered, which is not heard.
    Answered,
}

/// The rescheduler of a case.
pub(super) struct ReschedulerPart {
    leader: ReschedulerLeader<()>,
    settings: ReschedulerSettings,
    out: ReschedulerOut,
    pub(super) life: u64,
    /// Granted at this revision, in this life.
    leads_from: Option<Revision>,
    /// The records of those before it are on their way.
    is_listing: bool,
    is_synced: bool,
    read: usize,
    hears: bool,
    wake: Option<u64>,
    /// Where it dies next.
    pub(super) dies: Option<Death>,
}

/// What the leader said that is yet to be sent.
#[derive(Default)]
struct ReschedulerOut {
    life: u64,
    epoch: Epoch,
    events: Vec<Event>,
    /// Movements that ended in this life.
    ended: Vec<MovementRecord>,
}

fn leader(settings: &ReschedulerSettings, now_ms: i64) -> ReschedulerLeader<()> {
    let mut leader = ReschedulerLeader::new(settings.leader.clone(), settings.seed);
    let configured = leader.configure(settings.leader.clone(), settings.policies.clone(), now_ms);
    configured.expect("the policies are sound");
    leader
}

impl ReschedulerPart {
    pub(super) fn new(settings: ReschedulerSettings) -> Self {
        Self {
            leader: leader(&settings, EPOCH_MS),
            settings,
            out: ReschedulerOut::default(),
            life: 0,
            leads_from: None,
            is_listing: false,
            is_synced: false,
            read: 0,
            hears: false,
            wake: None,
            dies: None,
        }
    }

    /// What it knows of policies and of moves.
    pub(super) fn manager(&self) -> &PolicyManager {
        self.leader.manager()
    }

    pub(super) fn core(&self) -> &ReschedulerLeader<()> {
        &self.leader
    }

    /// Takes the movements that ended since the last call.
    pub(super) fn take_ended(&mut self) -> Vec<MovementRecord> {
        std::mem::take(&mut self.out.ended)
    }

    /// Whether it leads, and knows what those before it have written.
    pub(super) fn is_up(&self) -> bool {
        self.leader.leads()
    }

    pub(super) fn leads(&self) -> bool {
        self.leads_from.is_some()
    }

    pub(super) fn begin(&mut self, net: &mut Net) {
        self.kill();
        self.leader = leader(&self.settings, net.wall_ms());
        self.relist(net);
    }

    pub(super) fn kill(&mut self) {
        self.life += 1;
        self.out.life = self.life;
        self.out.events.clear();
        (self.leads_from, self.is_listing, self.dies) = (None, false, None);
        (self.is_synced, self.hears) = (false, false);
    }

    /// Stops acting. What is under way may still be written, or made.
    pub(super) fn step_down(&mut self) {
        self.leads_from = None;
        self.is_listing = false;
        self.leader.step_down(&mut self.out);
        self.out.events.clear();
    }

    pub(super) fn lead(&mut self, epoch: Epoch, since: Revision) {
        (self.out.epoch, self.leads_from) = (epoch, Some(since));
    }

    pub(super) fn relist(&mut self, net: &mut Net) {
        self.leader.reset(StoreId(0), &mut self.out);
        self.out.events.clear();
        (self.is_synced, self.hears, self.is_listing) = (false, false, false);
        net.soon(Event::List(Part::Rescheduler, self.life));
    }

    pub(super) fn on_list(&mut self, store: &Store) {
        // Asked for twice, it comes once.
        if self.is_synced {
            return;
        }
        for listed in store.list() {
            self.leader.picture_mut().load(&listed.change, listed.revision, listed.created.time_ms);
        }
        (self.is_synced, self.read) = (true, store.commits.len());
        self.leader.picture_mut().on_synced(store.revision());
    }

    pub(super) fn receive_changes(&mut self, net: &mut Net) {
        if self.is_synced && !std::mem::replace(&mut self.hears, true) {
            net.soon(Event::Watch(Part::Rescheduler, self.life));
        }
    }

    pub(super) fn on_watch(&mut self, store: &Store) {
        if !std::mem::take(&mut self.hears) || !self.is_synced {
            return;
        }
        for commit in &store.seen[self.read..] {
            self.leader.picture_mut().apply(commit);
        }
        self.read = store.commits.len();
    }

    /// The records of those before it have come.
    pub(super) fn on_movements(&mut self, stored: StoredMovements) {
        if std::mem::take(&mut self.is_listing) && self.leads_from.is_some() {
            self.leader.lead(stored, &mut self.out);
        }
    }

    pub(super) fn on_written(&mut self, ticket: WriteTicket, answer: Result<(), WriteFailure>, net: &Net) {
        self.leader.on_written(ticket, answer, net.wall_ms(), &mut self.out);
    }

    pub(super) fn on_answered(&mut self, answered: MovesAnswered, net: &Net) {
        self.leader.on_moves_answered(answered, net.wall_ms());
    }

    pub(super) fn on_plan(&mut self, done: PlanDone, net: &Net) {
        self.leader.on_plan(done, net.wall_ms(), &mut self.out);
    }

    pub(super) fn on_gang(&mut self, gang: UnitId, refused_by: Option<&[String]>, net: &Net) {
        let refused_by = refused_by.map(|plugins| plugins.iter().map(String::as_str));
        self.leader.on_gang(gang, refused_by, net.wall_ms(), &mut self.out);
    }

    /// Somebody wants a policy to run at the next occasion.
    pub(super) fn ask_for_run(&mut self, policy: &str) {
        self.leader.manager_mut().ask(policy, RunCause::Http).expect("the policy is known");
    }

    /// Somebody wants room for a unit.
    pub(super) fn make_room(&mut self, unit: UnitId) {
        self.leader.make_room(unit, false, (), &mut self.out);
    }

    /// Somebody wants the movement to end that is being made.
    pub(super) fn abort(&mut self) {
        if let Some(name) = self.leader.driver().map(|driver| driver.movement().name.clone()) {
            self.leader.abort(name, "somebody wants it".to_owned(), (), &mut self.out);
        }
    }

    pub(super) fn set_usage(&mut self, usage: UsageTable) {
        self.leader.picture_mut().set_usage(usage, NodeUseTable::new());
    }

    pub(super) fn set_traffic(&mut self, traffic: Traffic) {
        self.leader.traffic_mut().replace_read(traffic);
    }

    /// Begins to lead when it may, does what is due, and says when it wants to be woken.
    pub(super) fn act(&mut self, net: &mut Net) {
        let Some(from) = self.leads_from else { return };
        let has_read = self.leader.picture().read().is_some_and(|read| read >= from);
        if !self.leader.leads() {
            if has_read && self.leader.may_lead() && !std::mem::replace(&mut self.is_listing, true) {
                net.soon(Event::Movements(self.life));
            }
            return;
        }
        self.leader.step(net.wall_ms(), &mut self.out);
        for event in std::mem::take(&mut self.out.events) {
            match event {
                // A call whose answer was lost is made again.
                Event::Move(call) => {
                    if net.numbers.chance(10) {
                        net.send((8, 0), Event::Move(Box::new(MoveCall { caller: None, ..(*call).clone() })));
                    }
                    net.send((8, 0), Event::Move(call));
                }
                Event::Write(..) => net.send((9, 0), event),
                other => net.soon(other),
            }
        }
        let next = self.leader.next_ms().and_then(|ms| u64::try_from(ms - EPOCH_MS).ok());
        let look = net.now + self.settings.look_ms;
        let at = next.map_or(look, |next| next.clamp(net.now + 1, look));
        if self.wake.is_none_or(|known| at < known || known <= net.now) {
            self.wake = Some(at);
            net.at(at, Event::Wake(Part::Rescheduler));
        }
    }
}

impl RescheduleOutbox for ReschedulerOut {
    type Caller = ();

    fn write(&mut self, ticket: WriteTicket, records: Vec<RescheduleWrite>, _callers: &[&()]) {
        self.events.push(Event::Write(self.life, self.epoch, ticket, records));
    }

    fn move_units(&mut self, asked: MovesAsked) {
        let MovesAsked { number, asked, movement, moves, expires_ms, read, store: _ } = asked;
        let caller = Some(MoveCaller { life: self.life, number, asked });
        self.events.push(Event::Move(Box::new(MoveCall { caller, movement, moves, expires_ms, read })));
    }

    fn plan(&mut self, work: PlanWork) {
        self.events.push(Event::Plan(self.life, Box::new(work)));
    }

    fn ask_refusals(&mut self, gang: &UnitRecord) {
        self.events.push(Event::Refusals(self.life, gang.id));
    }

    fn planned(&mut self, (): (), _answer: Result<PlanAnswer, CallRefusal>) {}

    fn aborted(&mut self, (): (), _answer: Result<MovementRecord, AbortRefusal>) {}

    fn note(&mut self, note: RescheduleNote<'_>) {
        if let RescheduleNote::Ended(movement) = note {
            self.ended.push(movement.clone());
        }
    }
}
