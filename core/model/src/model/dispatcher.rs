//! The dispatcher: its leader with streams, callers, a lease and transactions that arrive later.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_audit::Acknowledged;
use godel_base::ids::{Epoch, Revision, UnitId};
use godel_core_dispatcher::{
    Attach, Config, Dispatcher, ModeChoice, SchedulerCounts, SessionId,
    leader::{
        ChangeFailure, DispatcherLeader, DispatcherLeaderConfig, DispatcherNote, DispatcherOutbox,
        EditRequest, NotSent, NotSubmitted, Outgoing, TxnFailure, TxnTicket, UnitBatch, UnitChange,
        UnitChangeKind, UnitSubmission,
    },
    record_changes::Edit,
};
use godel_domain::{
    change::Change,
    pause::Scope,
    records::Record,
    refusals::WaitReason,
    running_units::EvictionReason,
    txn::TxnBuilder,
    unit::{UnitRecord, UnitSpec},
    unit_caller::UnitCaller,
};
use godel_rules::admission::retry::RetryScope;

use super::{
    net::{Event, Line, Message, Net, Part},
    numbers::Numbers,
    people::UnitAddress,
    reach::Mark,
    store::{Answer, Store, Txn},
    units,
};

/// Its lease.
pub(super) const LEASE: &str = "dispatcher";
/// A turn that came to nothing is not repeated at once, milliseconds.
const IDLE_MS: u64 = 20;

/// What somebody asks of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Cancel,
    Suspend(bool),
    Scale(u32),
    /// One running unit, for good.
    Stop(u64),
    /// It runs again after its end, all of it or what has failed.
    Retry(bool),
    /// It is to be another one.
    Update(u64),
    /// It gets another task group, a group gets another size, or some of it is released.
    Grow(u64),
    /// A replica of it runs again.
    RetryReplica(u64),
}

/// The dispatcher of a case.
pub(super) struct DispatcherPart {
    config: Config,
    leader: DispatcherLeader<DispatcherCallers>,
    callers: DispatcherCallers,
    pub(super) life: u64,
    /// Granted at this revision, in this life.
    leads_from: Option<Revision>,
    is_synced: bool,
    read: usize,
    hears: bool,
    sessions: BTreeMap<u64, usize>,
    idle_until: u64,
    n_idle: u32,
    wake: Option<u64>,
    /// When each unit was handed out, Unix milliseconds, and the change up to which free room had been reported by then.
    pub(super) handed_out: BTreeMap<UnitId, Vec<(i64, Revision)>>,
    /// Changes on which reports of room rest.
    reported: BTreeSet<Revision>,
    /// All changes up to here are read.
    seen: Revision,
    /// Of lives before.
    pub(super) repairs: u64,
}

/// Transactions under way, and what the leader said that is yet to be sent.
#[derive(Default)]
struct DispatcherCallers {
    epoch: Epoch,
    tickets: BTreeMap<u64, TxnTicket<Self>>,
    last: u64,
    txns: Vec<(u64, Txn)>,
    outgoing: Vec<Outgoing>,
    /// What becomes of replicas that start before others stop.
    surges: Vec<Mark>,
    /// Acknowledged submissions.
    ledger: Vec<Acknowledged>,
    /// Answers to calls of principals that are judged.
    answers: BTreeMap<usize, Result<(), ChangeFailure>>,
}

impl DispatcherPart {
    pub(super) fn new(config: Config) -> Self {
        Self {
            leader: leader(&config, UnitId(0)),
            config,
            callers: DispatcherCallers::default(),
            life: 0,
            leads_from: None,
            is_synced: false,
            read: 0,
            hears: false,
            sessions: BTreeMap::new(),
            idle_until: 0,
            n_idle: 0,
            wake: None,
            handed_out: BTreeMap::new(),
            reported: BTreeSet::new(),
            seen: Revision(0),
            repairs: 0,
        }
    }

    pub(super) fn core(&self) -> &Dispatcher {
        self.leader.core()
    }

    /// Acknowledged submissions.
    pub(super) fn ledger(&self) -> &[Acknowledged] {
        &self.callers.ledger
    }

    pub(super) fn leads(&self) -> bool {
        self.leads_from.is_some()
    }

    /// Whether it leads, and has read enough to serve.
    pub(super) fn is_up(&self) -> bool {
        self.leads_from.is_some() && self.core().is_loaded()
    }

    /// A new leadership begins, which knows nothing.
    pub(super) fn begin(&mut self, store: &Store, net: &mut Net) {
        self.kill(net);
        self.leader = leader(&self.config, store.last_unit());
        self.relist(net);
    }

    pub(super) fn kill(&mut self, net: &mut Net) {
        self.repairs += self.core().summary().counters.repairs;
        self.life += 1;
        self.leads_from = None;
        (self.is_synced, self.hears) = (false, false);
        let DispatcherCallers { tickets, txns, outgoing, .. } = &mut self.callers;
        tickets.clear();
        txns.clear();
        outgoing.clear();
        for (session, scheduler) in std::mem::take(&mut self.sessions) {
            net.close(scheduler, Line::Attach, session);
        }
    }

    pub(super) fn lead(&mut self, epoch: Epoch, since: Revision) {
        (self.callers.epoch, self.leads_from) = (epoch, Some(since));
        self.leader.lead(since);
    }

    pub(super) fn relist(&mut self, net: &mut Net) {
        self.leader.reset();
        (self.is_synced, self.hears) = (false, false);
        net.soon(Event::List(Part::Dispatcher, self.life));
    }

    pub(super) fn on_list(&mut self, store: &Store, net: &mut Net) {
        // Asked for twice, it comes once.
        if self.is_synced {
            return;
        }
        let now = net.millis();
        for listed in store.list() {
            self.leader.load(&listed.change, listed.revision, listed.created, now, &mut self.callers);
        }
        (self.is_synced, self.read) = (true, store.commits.len());
        self.seen = store.revision();
        self.leader.on_synced(store.revision(), now, &mut self.callers);
    }

    pub(super) fn receive_changes(&mut self, net: &mut Net) {
        if self.is_synced && !std::mem::replace(&mut self.hears, true) {
            net.soon(Event::Watch(Part::Dispatcher, self.life));
        }
    }

    pub(super) fn on_watch(&mut self, store: &Store, net: &mut Net) {
        if !std::mem::take(&mut self.hears) || !self.is_synced {
            return;
        }
        self.heard();
        for commit in &store.seen[self.read..] {
            self.leader.apply(commit, net.millis(), &mut self.callers);
        }
        self.read = store.commits.len();
        self.seen = store.revision();
    }

    pub(super) fn take(&mut self, scheduler: usize, session: u64, message: Message, net: &mut Net) {
        let now = net.millis();
        self.heard();
        match message {
            Message::Attach(epoch, inventory, credits, parked) => {
                let attach =
                    Attach { name: name(scheduler), epoch, session: SessionId(session), inventory, credits };
                if !self.is_up() || self.leader.attach(attach, now).is_err() {
                    return net.close(scheduler, Line::Attach, session);
                }
                self.sessions.insert(session, scheduler);
                net.message(scheduler, Line::Attach, true, session, Message::Welcome);
                self.leader.on_reports(SessionId(session), parked, now, &mut self.callers);
            }
            Message::Reports(reports, rooms) => {
                self.leader.on_reports(SessionId(session), reports, now, &mut self.callers);
                self.leader.on_rooms(SessionId(session), &rooms);
                self.reported.extend(rooms.iter().map(|room| room.revision));
            }
            Message::Credits(credits) => self.leader.on_credits(SessionId(session), credits),
            Message::Closed => {
                if self.sessions.remove(&session).is_some() {
                    self.leader.detach(SessionId(session));
                }
            }
            other => unreachable!("not for the dispatcher: {other:?}"),
        }
    }

    /// Decides, sends, and says when it wants to again.
    pub(super) fn act(&mut self, net: &mut Net) {
        if !self.is_up() {
            return;
        }
        if self.idle_until <= net.now {
            let is_busy = self.leader.step(net.millis(), net.wall_ms(), &mut self.callers);
            self.n_idle = if is_busy { 0 } else { (self.n_idle + 1).min(4) };
            self.idle_until = net.now + if is_busy { 1 } else { IDLE_MS << self.n_idle };
        }
        std::mem::take(&mut self.callers.surges).into_iter().for_each(|mark| net.reach.mark(mark));
        for message in std::mem::take(&mut self.callers.outgoing) {
            net.trace(|| format!("dispatcher {}", shown(&message)));
            self.send(message, net);
        }
        for (id, txn) in std::mem::take(&mut self.callers.txns) {
            net.send((3, 0), Event::Txn(Part::Dispatcher, self.life, id, Box::new(txn)));
        }
        if let Some(wake) = self.leader.next_wake(net.millis()) {
            self.wake_at(wake.0.max(self.idle_until), net);
        }
    }

    fn send(&mut self, message: Outgoing, net: &mut Net) {
        let now_ms = net.wall_ms();
        let mut send = |SessionId(session): SessionId, message| {
            if let Some(scheduler) = self.sessions.get(&session) {
                net.message(*scheduler, Line::Attach, true, session, message);
            }
        };
        match message {
            Outgoing::Assign(session, one) => {
                // What is reported counts once all that it rests on is read.
                let heard = self.reported.range(..=self.seen).next_back().copied().unwrap_or(Revision(0));
                // One that waits on only hears that its record is another.
                if one.permit.places_max != Some(0) {
                    self.handed_out.entry(one.record.id).or_default().push((now_ms, heard));
                }
                send(session, Message::Assign(one));
            }
            Outgoing::Revoke(session, unit) => send(session, Message::Revoke(unit)),
            Outgoing::Close(SessionId(session)) => {
                if let Some(scheduler) = self.sessions.remove(&session) {
                    net.close(scheduler, Line::Attach, session);
                }
            }
            Outgoing::Evict(request) => {
                // A call whose answer was lost is made again.
                if net.numbers.chance(5) {
                    net.soon(Event::Evict(self.life, vec![request.clone()]));
                }
                net.soon(Event::Evict(self.life, vec![request]));
            }
        }
    }

    /// The store's answer to a transaction of this leadership.
    pub(super) fn on_answer(&mut self, id: u64, answer: Answer, net: &mut Net) {
        let Some(ticket) = self.callers.tickets.remove(&id) else { return };
        self.heard();
        if answer.as_ref().is_err_and(|refusal| refusal.reason.is_stale()) {
            // It leads no longer, and will hear so.
            return;
        }
        if answer.is_err() {
            net.reach.mark(Mark::Refused);
        }
        let answer = answer.map_err(TxnFailure::Refused);
        self.leader.on_answer(ticket, answer, net.millis(), &mut self.callers);
    }

    /// There may be something to do.
    fn heard(&mut self) {
        (self.idle_until, self.n_idle) = (0, 0);
    }

    fn wake_at(&mut self, at: u64, net: &mut Net) {
        if self.wake.is_none_or(|known| at < known || known <= net.now) {
            self.wake = Some(at);
            net.at(at, Event::Wake(Part::Dispatcher));
        }
    }
}

/// Who submits the unit of a uid: nobody who is judged, a person or an adapter.
pub(super) fn principal_of(uid: &str) -> &'static str {
    let sum: usize = uid.bytes().map(usize::from).sum();
    ["", "person/admin", "yarn/y1"][sum % 3]
}

/// What callers ask.
impl DispatcherPart {
    /// Somebody submits a unit.
    pub(super) fn submit(&mut self, spec: UnitSpec, principal: &str, net: &Net) {
        if self.is_up() {
            self.heard();
            let by = UnitCaller::new(principal);
            let submission = UnitSubmission { spec, by, submitter: () };
            self.leader.submit(submission, net.millis(), &mut self.callers);
        }
    }

    /// What comes of a wish for a unit, beside its record; `None` if it makes no sense.
    pub(super) fn wished(&self, unit: UnitId, wish: Wish) -> Option<(Wish, UnitChangeKind, Arc<UnitRecord>)> {
        let view = self.core().unit(unit).filter(|_| self.is_up())?;
        // Who cancels what is over wants it back.
        let wish = match wish {
            Wish::Cancel if view.phase.is_terminal() => Wish::Retry(unit.0.is_multiple_of(2)),
            _ if view.phase.is_terminal() => return None,
            other => other,
        };
        Some((wish, kind(view.record, wish)?, Arc::clone(view.record)))
    }

    /// Somebody wants something else of a unit.
    pub(super) fn change(&mut self, wish: Wish, kind: UnitChangeKind, to: UnitAddress, net: &mut Net) {
        net.reach.mark(match wish {
            Wish::Cancel => Mark::Cancel,
            Wish::Suspend(_) => Mark::Suspend,
            Wish::Scale(_) | Wish::Stop(_) | Wish::Update(_) | Wish::Grow(_) => Mark::Scale,
            Wish::Retry(_) | Wish::RetryReplica(_) => Mark::Retry,
        });
        self.heard();
        let expected_revision = Revision(0);
        let UnitAddress { namespace, name, principal, is_bound, call: caller } = to;
        let by = UnitCaller::new(&principal);
        let change = UnitChange { namespace, name, expected_revision, kind, by, is_bound, caller };
        self.leader.change(change, net.millis(), &mut self.callers);
    }

    /// Answers to calls of principals that are judged.
    pub(super) fn answers(&self) -> &BTreeMap<usize, Result<(), ChangeFailure>> {
        &self.callers.answers
    }

    /// An administrator changes queues or priority classes.
    pub(super) fn edit(&mut self, edit: &Edit) {
        if self.is_up() {
            self.heard();
            let request = EditRequest { edit: edit.clone(), is_unreadable: false, editor: () };
            self.leader.edit(request, &mut self.callers);
        }
    }

    /// Zones are sub-clusters.
    pub(super) fn has_zones(&self) -> bool {
        self.config.sub_cluster_key == units::ZONE
    }

    /// An administrator pauses something, or ends that.
    pub(super) fn pause(&mut self, scope: Scope, paused: bool, net: &Net) {
        if self.is_up() {
            self.heard();
            self.leader.set_pause(scope, paused, String::new(), None, net.wall_ms(), &mut self.callers);
        }
    }

    pub(super) fn resume_evictions(&mut self) {
        if self.is_up() {
            self.leader.resume_evictions();
        }
    }

    /// An administrator says how nodes are split.
    pub(super) fn set_mode(&mut self, choice: ModeChoice) {
        if self.is_up() {
            self.heard();
            self.leader.set_mode(choice, None, &mut self.callers);
        }
    }

    pub(super) fn on_counted(&mut self, counted: Vec<SchedulerCounts>) {
        if self.is_up() {
            self.leader.on_counted(counted);
        }
    }

    pub(super) fn on_evicted(&mut self, units: Vec<(UnitId, EvictionReason)>, is_done: bool) {
        self.leader.on_evicted(units, is_done);
    }

    /// Whether some unit waits for room in its queue.
    pub(super) fn has_full_queue(&self) -> bool {
        let core = self.core();
        self.is_up()
            && core.units().ids_after(UnitId(0)).any(|unit| {
                let refusals = core.unit(unit).and_then(|view| view.refusals);
                refusals.is_some_and(|refusals| refusals.reasons.iter().any(|one| one.is(WaitReason::Queue)))
            })
    }
}

impl DispatcherCallers {
    fn add(&mut self, mut txn: Txn, ticket: TxnTicket<Self>) {
        self.last += 1;
        txn.epoch = self.epoch;
        self.tickets.insert(self.last, ticket);
        self.txns.push((self.last, txn));
    }
}

impl DispatcherOutbox for DispatcherCallers {
    type Submitter = ();
    type Caller = Option<usize>;
    type Editor = ();
    type Record = ();
    type Txn = Txn;

    fn encode(&mut self, _record: &UnitRecord) -> ((), usize) {
        ((), 1)
    }

    fn begin(&mut self) -> Txn {
        Txn::of(LEASE, self.epoch)
    }

    fn submit(&mut self, txn: Txn, ticket: TxnTicket<Self>) -> Result<(), (TxnTicket<Self>, NotSent)> {
        self.add(txn, ticket);
        Ok(())
    }

    fn submit_units(&mut self, batch: UnitBatch<Self>) -> Result<(), (UnitBatch<Self>, NotSent)> {
        let mut txn = self.begin();
        for unit in &batch.units {
            txn.push(&Change::Put(Record::Unit(Arc::clone(&unit.record))));
        }
        self.add(txn, TxnTicket::Units(batch));
        Ok(())
    }

    fn submitted(
        &mut self,
        _core: &Dispatcher,
        (): (),
        spec: &UnitSpec,
        _unit: UnitId,
        revision: Revision,
        is_duplicate: bool,
    ) {
        if !is_duplicate {
            let (uid, name) = (spec.uid.clone(), spec.name.clone());
            self.ledger.push(Acknowledged { uid, name, revision });
        }
    }

    fn not_submitted(&mut self, (): (), _spec: UnitSpec, _why: NotSubmitted) {}

    fn answer(&mut self, caller: Option<usize>, answer: Result<Option<Revision>, ChangeFailure>) {
        self.answers.extend(caller.map(|call| (call, answer.map(drop))));
    }

    fn send(&mut self, messages: Vec<Outgoing>) -> Vec<SessionId> {
        self.outgoing.extend(messages);
        Vec::new()
    }

    fn new_uid(&mut self) -> String {
        String::new()
    }

    fn note(&mut self, core: &Dispatcher, note: DispatcherNote<'_>) {
        let DispatcherNote::Surges(next) = note else { return };
        let Some(view) = core.unit(next.id) else { return };
        let known = &view.record.status.surges;
        let begins = next.status.surges.iter().any(|surge| !known.contains(surge));
        let over = known.iter().filter(|surge| !next.status.surges.contains(surge));
        let marks = over.map(|surge| match next.group_of(surge.ordinal) {
            Some(_) => Mark::Replaced,
            None => Mark::SurgeGivenUp,
        });
        self.surges.extend(marks.chain(begins.then_some(Mark::Surge)));
    }
}

fn leader(config: &Config, last_unit: UnitId) -> DispatcherLeader<DispatcherCallers> {
    let leader = DispatcherLeaderConfig {
        units_max: usize::MAX,
        txn_units_max: 4,
        txn_bytes_max: usize::MAX,
        txns_in_flight_max: 2,
        edit_bytes_max: usize::MAX,
        sub_cluster_key: config.sub_cluster_key.clone(),
    };
    DispatcherLeader::new(Dispatcher::new(config.clone()), last_unit, leader)
}

/// What a wish comes to; `None` if it makes no sense.
fn kind(record: &UnitRecord, wish: Wish) -> Option<UnitChangeKind> {
    Some(match wish {
        Wish::Cancel => UnitChangeKind::Cancel,
        Wish::Update(choice) => {
            let mut spec = record.spec.clone();
            (spec.uid, spec.owner) = Default::default();
            let mut numbers = Numbers::new(choice);
            units::change(&mut spec, &mut numbers);
            UnitChangeKind::Update(Box::new(spec))
        }
        Wish::Grow(choice) => UnitChangeKind::Grow(Box::new(units::grow(record, &mut Numbers::new(choice)))),
        Wish::RetryReplica(choice) => {
            let ordinals: Vec<u32> = record.iter_ordinals().collect();
            let ordinal = *ordinals.get(usize::try_from(choice).ok()? % ordinals.len().max(1))?;
            UnitChangeKind::RetryReplicas { ordinals: vec![ordinal], preferred: Vec::new() }
        }
        Wish::Retry(true) => UnitChangeKind::Retry(RetryScope::All),
        Wish::Retry(false) => UnitChangeKind::Retry(RetryScope::Failed),
        Wish::Suspend(true) => UnitChangeKind::Suspend,
        Wish::Suspend(false) => UnitChangeKind::Resume,
        Wish::Scale(replicas) => {
            UnitChangeKind::Scale { group: record.spec.task_groups.last()?.name.clone(), replicas }
        }
        Wish::Stop(choice) => {
            let ordinals: Vec<u32> = record.iter_ordinals().collect();
            let ordinal = *ordinals.get(usize::try_from(choice).ok()? % ordinals.len().max(1))?;
            UnitChangeKind::Stop { ordinals: vec![ordinal] }
        }
    })
}

pub(super) fn name(scheduler: usize) -> String {
    format!("s{scheduler}")
}

fn shown(message: &Outgoing) -> String {
    match message {
        Outgoing::Assign(session, one) => {
            let (scope, called) = (one.permit.scope, if one.permit.called { ", called" } else { "" });
            format!(
                "assigns {} {:?} {:?} {scope:?} on {:?}{called}",
                one.record.id, one.ordinals, one.incarnations, session
            )
        }
        other => format!("{other:?}"),
    }
}
