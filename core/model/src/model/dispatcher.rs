//! The dispatcher with its streams and its callers, as its service drives it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_audit::Acknowledged;
use godel_core_dispatcher::{
    Action, Attach, Config, Counted, Dispatcher, ModeChoice, NameClaim, SessionId,
    read::UnitView,
    record_changes::{Edit, RecordName, Write},
};
use godel_domain::{
    change::{Change, Partition},
    ids::{Epoch, Revision, UnitId},
    pause::{Pause, Scope},
    running_units::EvictionReason,
    txn::Receipt,
    unit::{TaskGroup, UnitSpec},
};
use godel_rules::admission::{scale::scale, stop::stop};

use super::{
    net::{Event, Line, Message, Net, Part},
    reach::Mark,
    store::{Answer, Condition, Store, Txn},
    units,
};

/// Its lease.
pub(super) const LEASE: &str = "dispatcher";
/// A turn that came to nothing is not repeated at once, milliseconds.
const IDLE_MS: u64 = 20;

enum Ticket {
    Unit(Arc<UnitSpec>),
    Change(Arc<UnitSpec>),
    Deletes(Vec<UnitId>),
    Partition(Vec<Change>),
    Edit,
    Pause,
}

/// What somebody asks of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Cancel,
    Suspend(bool),
    Scale(u32),
    /// One running unit, for good.
    Stop(u64),
}

/// See the module.
pub(super) struct DispatcherPart {
    config: Config,
    pub(super) core: Dispatcher,
    pub(super) life: u64,
    epoch: Epoch,
    /// Granted at this revision, in this life.
    leads_from: Option<Revision>,
    is_synced: bool,
    read: usize,
    hears: bool,
    tickets: BTreeMap<u64, Ticket>,
    last: u64,
    changing: BTreeSet<UnitId>,
    is_editing: bool,
    sessions: BTreeMap<u64, usize>,
    idle_until: u64,
    n_idle: u32,
    wake: Option<u64>,
    /// Acknowledged submissions.
    pub(super) ledger: Vec<Acknowledged>,
    /// When each unit was handed out, Unix milliseconds.
    pub(super) handed_out: BTreeMap<UnitId, Vec<i64>>,
    /// Of lives before.
    pub(super) repairs: u64,
}

impl DispatcherPart {
    pub(super) fn new(config: Config) -> Self {
        Self {
            core: Dispatcher::new(config.clone()),
            config,
            life: 0,
            epoch: Epoch(0),
            leads_from: None,
            is_synced: false,
            read: 0,
            hears: false,
            tickets: BTreeMap::new(),
            last: 0,
            changing: BTreeSet::new(),
            is_editing: false,
            sessions: BTreeMap::new(),
            idle_until: 0,
            n_idle: 0,
            wake: None,
            ledger: Vec::new(),
            handed_out: BTreeMap::new(),
            repairs: 0,
        }
    }

    pub(super) fn leads(&self) -> bool {
        self.leads_from.is_some()
    }

    /// Whether it leads, and has read enough to serve.
    pub(super) fn is_up(&self) -> bool {
        self.leads_from.is_some() && self.core.is_loaded()
    }

    /// A new leadership begins, which knows nothing.
    pub(super) fn begin(&mut self, store: &Store, net: &mut Net) {
        self.kill(net);
        self.core = Dispatcher::new(self.config.clone());
        self.core.set_last_unit_id(store.last_unit());
        self.relist(net);
    }

    pub(super) fn kill(&mut self, net: &mut Net) {
        self.repairs += self.core.summary().counters.repairs;
        self.life += 1;
        self.leads_from = None;
        (self.is_synced, self.hears) = (false, false);
        self.tickets.clear();
        self.changing.clear();
        self.is_editing = false;
        for (session, scheduler) in std::mem::take(&mut self.sessions) {
            net.close(scheduler, Line::Attach, session);
        }
    }

    pub(super) fn lead(&mut self, epoch: Epoch, since: Revision) {
        (self.epoch, self.leads_from) = (epoch, Some(since));
    }

    pub(super) fn relist(&mut self, net: &mut Net) {
        self.core.on_reset();
        (self.is_synced, self.hears) = (false, false);
        net.soon(Event::List(Part::Dispatcher, self.life));
    }

    pub(super) fn on_list(&mut self, store: &Store, net: &mut Net) {
        // Asked for twice, it comes once.
        if self.is_synced {
            return;
        }
        for listed in store.list() {
            self.on_change(&listed.change, listed.revision, listed.created, net);
        }
        (self.is_synced, self.read) = (true, store.commits.len());
        self.on_read(store.revision(), net);
    }

    pub(super) fn hear(&mut self, net: &mut Net) {
        if self.is_synced && !std::mem::replace(&mut self.hears, true) {
            net.soon(Event::Watch(Part::Dispatcher, self.life));
        }
    }

    pub(super) fn on_watch(&mut self, store: &Store, net: &mut Net) {
        if !std::mem::take(&mut self.hears) || !self.is_synced {
            return;
        }
        self.heard();
        for commit in &store.commits[self.read..] {
            for change in &commit.changes {
                self.on_change(change, commit.revision, (commit.revision, commit.time_ms), net);
            }
            self.on_read(commit.revision, net);
        }
        self.read = store.commits.len();
    }

    fn on_read(&mut self, revision: Revision, net: &Net) {
        if self.leads_from.is_none_or(|since| revision < since) {
            return;
        }
        if !self.core.is_loaded() || self.core.is_listing() {
            self.core.on_synced(revision, net.millis());
        } else {
            self.core.on_revision(revision);
        }
    }

    fn on_change(&mut self, change: &Change, revision: Revision, created: (Revision, i64), net: &Net) {
        let now = net.millis();
        if !self.core.note_unreadable(change, revision, now) {
            return;
        }
        match change {
            Change::NodeSpec(spec) => self.core.on_node_spec(spec, now),
            Change::NodeReport(report) => self.core.on_node_report(report, now),
            Change::UnitSpec(spec) => self.core.on_unit(Arc::clone(spec), revision, created, now),
            Change::Lease(lease) => self.core.on_lease(lease, now),
            Change::Partition(partition) => self.core.on_partition(partition.clone(), revision),
            Change::PartitionBlock(block) => self.core.on_partition_block(block.clone(), revision),
            Change::Queue(queue) => self.core.on_queue(Arc::clone(queue), revision, created),
            Change::QueueDeleted(path) => self.core.on_queue_deleted(path),
            Change::PriorityClass(class) => self.core.on_priority_class(class.clone(), revision, created),
            Change::PriorityClassDeleted(name) => self.core.on_priority_class_deleted(name),
            Change::Hold(hold) => {
                self.core.on_hold(Arc::clone(hold), now);
            }
            Change::HoldDeleted(id) => {
                self.core.on_hold_deleted(*id, now);
            }
            Change::Pause(pause) => self.core.on_pause(pause.clone(), now),
            Change::PauseDeleted(scope) => self.core.on_pause_deleted(scope, now),
            Change::NodeDeleted(node) => self.core.on_node_deleted(*node, now),
            Change::UnitDeleted(unit) => self.core.on_unit_deleted(*unit, now),
            Change::Rows(unit, rows) => self.core.on_rows(*unit, rows, revision, created.1, now),
            Change::RowsLoaded(unit, rows) => self.core.on_rows_loaded(*unit, rows.clone(), now),
            Change::Budget(budget) => self.core.on_budget(Arc::clone(budget), revision, created),
            Change::BudgetDeleted(name) => self.core.on_budget_deleted(name),
            Change::Reservation(spec) => self.core.on_reservation(Arc::clone(spec), revision, created),
            Change::ReservationDeleted(name) => self.core.on_reservation_deleted(name),
            Change::NodeGrant(..)
            | Change::NodeUsage(_)
            | Change::Unreadable(_)
            | Change::UnreadableGone(_) => {}
        }
    }

    pub(super) fn take(&mut self, scheduler: usize, session: u64, message: Message, net: &mut Net) {
        let now = net.millis();
        self.heard();
        match message {
            Message::Attach(epoch, inventory, credits, parked) => {
                let attach =
                    Attach { name: name(scheduler), epoch, session: SessionId(session), inventory, credits };
                if !self.is_up() || self.core.on_attached(attach, now).is_err() {
                    return net.close(scheduler, Line::Attach, session);
                }
                self.sessions.insert(session, scheduler);
                net.message(scheduler, Line::Attach, true, session, Message::Welcome);
                for report in parked {
                    self.core.on_report(SessionId(session), report, now);
                }
            }
            Message::Reports(reports, rooms) => {
                for report in reports {
                    self.core.on_report(SessionId(session), report, now);
                }
                self.core.on_rooms(SessionId(session), &rooms);
            }
            Message::Credits(credits) => self.core.on_credits(SessionId(session), credits),
            Message::Closed => {
                if self.sessions.remove(&session).is_some() {
                    self.core.on_detached(SessionId(session));
                }
            }
            other => unreachable!("not for the dispatcher: {other:?}"),
        }
    }

    /// Decides, sends, and says when it wants to again.
    pub(super) fn turn(&mut self, net: &mut Net) {
        if !self.is_up() {
            return;
        }
        self.core.set_wall(net.wall_ms());
        if self.idle_until <= net.now {
            let actions = self.core.step(net.millis());
            self.n_idle = if actions.is_empty() { (self.n_idle + 1).min(4) } else { 0 };
            self.idle_until = net.now + if actions.is_empty() { IDLE_MS << self.n_idle } else { 1 };
            actions.into_iter().for_each(|action| self.carry_out(action, net));
        }
        if let Some(wake) = self.core.next_wake(net.millis()) {
            self.wake_at(wake.0.max(self.idle_until), net);
        }
    }

    fn carry_out(&mut self, action: Action, net: &mut Net) {
        net.tell(|| format!("dispatcher {}", shown(&action)));
        let now_ms = net.wall_ms();
        let mut send = |sessions: &BTreeMap<u64, usize>, SessionId(session): SessionId, message| {
            if let Some(scheduler) = sessions.get(&session) {
                net.message(*scheduler, Line::Attach, true, session, message);
            }
        };
        match action {
            Action::Assign(one) => {
                self.handed_out.entry(one.spec.id).or_default().push(now_ms);
                send(&self.sessions, one.session, Message::Assign(one));
            }
            Action::Revoke(session, unit) => send(&self.sessions, session, Message::Revoke(unit)),
            Action::Close(SessionId(session)) => {
                if let Some(scheduler) = self.sessions.remove(&session) {
                    net.close(scheduler, Line::Attach, session);
                }
            }
            Action::Evict(request) => {
                // A call whose answer was lost is made again.
                if net.numbers.chance(5) {
                    net.soon(Event::Evict(self.life, vec![request.clone()]));
                }
                net.soon(Event::Evict(self.life, vec![request]));
            }
            Action::End(spec, revision) => {
                if !self.changing.contains(&spec.id) {
                    self.write_change(spec, revision, net);
                }
            }
            Action::Delete(unit) => {
                self.write(vec![Change::UnitDeleted(unit)], Vec::new(), Ticket::Deletes(vec![unit]), net);
            }
            Action::WritePartition(split) => self.write_partition(split, net),
        }
    }

    fn write(&mut self, ops: Vec<Change>, conditions: Vec<Condition>, ticket: Ticket, net: &mut Net) {
        self.last += 1;
        self.tickets.insert(self.last, ticket);
        let txn = Txn { lease: LEASE, epoch: self.epoch, conditions, nodes_as_of: None, ops };
        net.send((3, 0), Event::Txn(Part::Dispatcher, self.life, self.last, Box::new(txn)));
    }

    fn write_change(&mut self, spec: Arc<UnitSpec>, revision: Revision, net: &mut Net) {
        self.changing.insert(spec.id);
        let conditions = vec![Condition::Unit(spec.id, revision)];
        self.write(vec![Change::UnitSpec(Arc::clone(&spec))], conditions, Ticket::Change(spec), net);
    }

    fn write_partition(&mut self, split: Partition, net: &mut Net) {
        let changes = self.core.partition_changes(&split);
        self.write(changes.clone(), Vec::new(), Ticket::Partition(changes), net);
    }

    /// The store's answer to a transaction of this leadership.
    pub(super) fn on_answer(&mut self, id: u64, answer: Answer, net: &mut Net) {
        let now = net.millis();
        let Some(ticket) = self.tickets.remove(&id) else { return };
        self.heard();
        if answer.as_ref().is_err_and(|refusal| refusal.reason.is_stale()) {
            // It leads no longer, and will hear so.
            return;
        }
        if answer.is_err() {
            net.reach.mark(Mark::Refused);
        }
        match (ticket, answer) {
            (Ticket::Unit(spec), Ok(Receipt { revision, time_ms })) => {
                let (uid, name) = (spec.uid.clone(), spec.name.clone());
                self.ledger.push(Acknowledged { uid, name, revision });
                self.core.on_unit(spec, revision, (revision, time_ms), now);
            }
            (Ticket::Unit(spec), Err(_)) => self.core.release(&spec),
            (Ticket::Change(spec), answer) => {
                self.changing.remove(&spec.id);
                if let Ok(Receipt { revision, time_ms }) = answer {
                    self.core.on_unit(spec, revision, (revision, time_ms), now);
                }
            }
            (Ticket::Deletes(units), Ok(_)) => {
                units.into_iter().for_each(|unit| self.core.on_unit_deleted(unit, now));
            }
            (Ticket::Deletes(units), Err(_)) => {
                units.into_iter().for_each(|unit| self.core.on_delete_failed(unit, now));
            }
            (Ticket::Partition(changes), Ok(Receipt { revision, .. })) => {
                self.core.on_partition_written(changes, revision);
            }
            (Ticket::Partition(_), Err(_)) => self.core.on_partition_failed(now),
            (Ticket::Edit, _) => self.is_editing = false,
            (Ticket::Pause, _) => {}
        }
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

/// What callers ask.
impl DispatcherPart {
    /// Somebody submits a unit.
    pub(super) fn submit(&mut self, mut spec: UnitSpec, net: &mut Net) {
        if !self.is_up() || self.is_editing {
            return;
        }
        let NameClaim::New(unit) = self.core.reserve(&spec.namespace, &spec.name, &spec.uid) else {
            return;
        };
        spec.id = unit;
        if self.core.admit(&spec).is_err() {
            return self.core.release(&spec);
        }
        let spec = Arc::new(spec);
        self.write(vec![Change::UnitSpec(Arc::clone(&spec))], Vec::new(), Ticket::Unit(spec), net);
    }

    /// Somebody wants something else of a unit.
    pub(super) fn wish(&mut self, unit: UnitId, wish: Wish, net: &mut Net) {
        if !self.is_up() || self.changing.contains(&unit) {
            return;
        }
        let Some(view) = self.core.unit(unit) else { return };
        if let Some(spec) = changed(&view, wish, self.core.revision()) {
            let revision = view.spec_revision;
            net.reach.mark(match wish {
                Wish::Cancel => Mark::Cancel,
                Wish::Suspend(_) => Mark::Suspend,
                Wish::Scale(_) | Wish::Stop(_) => Mark::Scale,
            });
            self.write_change(Arc::new(spec), revision, net);
        }
    }

    /// An administrator changes queues or priority classes.
    pub(super) fn edit(&mut self, edit: &Edit, net: &mut Net) {
        let is_submitting = self.tickets.values().any(|ticket| matches!(ticket, Ticket::Unit(_)));
        if !self.is_up() || self.is_editing || is_submitting || self.core.is_listing() {
            return;
        }
        let Ok(plan) = self.core.plan(edit) else { return };
        let op = |write: Write| match write {
            Write::Queue(spec) => Change::Queue(spec),
            Write::Class(class) => Change::PriorityClass(class),
            Write::Gone(RecordName::Queue(path)) => Change::QueueDeleted(path),
            Write::Gone(RecordName::Class(name)) => Change::PriorityClassDeleted(name),
            Write::Budget(spec) => Change::Budget(spec),
            Write::Reservation(spec) => Change::Reservation(spec),
            Write::Gone(RecordName::Budget(name)) => Change::BudgetDeleted(name),
            Write::Gone(RecordName::Reservation(name)) => Change::ReservationDeleted(name),
        };
        let condition = |(name, revision): (RecordName, Revision)| match name {
            RecordName::Queue(path) => Condition::Queue(path, revision),
            RecordName::Class(name) => Condition::Class(name, revision),
            RecordName::Budget(name) => Condition::Budget(name, revision),
            RecordName::Reservation(name) => Condition::Reservation(name, revision),
        };
        let ops: Vec<Change> = plan.writes.into_iter().map(op).collect();
        if !ops.is_empty() {
            self.is_editing = true;
            self.write(ops, plan.conditions.into_iter().map(condition).collect(), Ticket::Edit, net);
        }
    }

    /// Zones are sub-clusters.
    pub(super) fn has_zones(&self) -> bool {
        self.config.sub_cluster_key == units::ZONE
    }

    /// An administrator pauses something, or ends that.
    pub(super) fn pause(&mut self, scope: Scope, paused: bool, net: &mut Net) {
        if !self.is_up() || self.core.pauses().get(&scope).is_some() == paused {
            return;
        }
        let change = match paused {
            true => {
                let sub_cluster_key = self.config.sub_cluster_key.clone();
                let (since_ms, reason) = (net.wall_ms(), String::new());
                Change::Pause(Pause { scope, since_ms, reason, sub_cluster_key })
            }
            false => Change::PauseDeleted(scope),
        };
        self.write(vec![change], Vec::new(), Ticket::Pause, net);
    }

    /// An administrator says how nodes are split.
    pub(super) fn set_mode(&mut self, choice: ModeChoice, net: &mut Net) {
        if self.is_up()
            && !self.core.is_partition_writing()
            && let Some(split) = self.core.set_mode(choice, net.millis())
        {
            self.write_partition(split, net);
        }
    }

    pub(super) fn on_counted(&mut self, counted: Vec<Counted>) {
        if self.is_up() {
            self.core.on_counted(counted);
        }
    }

    pub(super) fn on_evicted(&mut self, units: Vec<(UnitId, EvictionReason)>, is_done: bool) {
        for (unit, reason) in units {
            self.core.on_evict_answer(unit, reason, is_done);
        }
    }

    /// Whether some unit waits for room in its queue.
    pub(super) fn has_full_queue(&self) -> bool {
        self.is_up()
            && self.core.unit_ids(UnitId(0)).any(|unit| {
                let refusals = self.core.unit(unit).and_then(|view| view.refusals);
                refusals.is_some_and(|refusals| refusals.reasons.iter().any(|one| one.plugin == "queue"))
            })
    }
}

fn changed(view: &UnitView<'_>, wish: Wish, read: Revision) -> Option<UnitSpec> {
    let spec = view.spec;
    if view.phase.is_terminal()
        || (matches!(wish, Wish::Scale(_) | Wish::Stop(_)) && read < view.spec_revision)
    {
        return None;
    }
    match wish {
        Wish::Cancel => (!spec.cancelled).then(|| UnitSpec { cancelled: true, ..(**spec).clone() }),
        Wish::Suspend(suspended) => {
            (spec.suspended != suspended).then(|| UnitSpec { suspended, ..(**spec).clone() })
        }
        Wish::Scale(replicas) => {
            let group = spec.task_groups.last().map_or("", |group| group.name.as_str());
            scale(spec, view.rows, group, replicas).ok().flatten()
        }
        Wish::Stop(choice) => {
            let ordinals: Vec<u32> = spec.task_groups.iter().flat_map(TaskGroup::iter_ordinals).collect();
            let ordinal = *ordinals.get(usize::try_from(choice).ok()? % ordinals.len().max(1))?;
            stop(spec, view.rows, &[ordinal]).ok().flatten()
        }
    }
}

pub(super) fn name(scheduler: usize) -> String {
    format!("s{scheduler}")
}

fn shown(action: &Action) -> String {
    match action {
        Action::Assign(one) => {
            let (scope, called) = (one.scope, if one.called { ", called" } else { "" });
            format!(
                "assigns {} {:?} {:?} {scope:?} on {:?}{called}",
                one.spec.id, one.ordinals, one.incarnations, one.session
            )
        }
        Action::End(spec, revision) => format!("ends {} {:?} of {revision}", spec.id, spec.ended),
        other => format!("{other:?}"),
    }
}
