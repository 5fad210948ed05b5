//! Random lives of units, schedulers and queues: no unit is ever lost, none is ever at two schedulers, and queues are
//! charged what the records and those who hold units say.

use godel_domain::{lifecycle, unit_report::RoomReport};
use godel_queueing::{QueueIdx, RoomIdx};
use godel_rules::admission::scale::scale;
use proptest::prelude::*;

use super::*;

mod queues;

use queues::{QUEUES, mixed};

const SCHEDULERS: usize = 3;

#[derive(Clone, Debug)]
enum Event {
    Submit,
    Cancel(usize),
    /// Or resumed: what had ended is pending again.
    Suspend(usize, bool),
    Scale(usize, u32),
    /// A pending ordinal is bound, wherever it is.
    Bind(usize),
    /// A live one ends, evicted, and is pending again.
    Evicted(usize),
    /// A live one ends well.
    Succeeded(usize),
    /// A record goes, wherever its unit is.
    Deleted(usize),
    /// Another record of a queue: cpu at most, if at all, its policy, its weight.
    Queue(usize, Option<u8>, usize, u32),
    QueueGone(usize),
    /// Another value of the priority class.
    Class(i32),
    /// A list begins; what it shows is what there was.
    ListedRecords,
    /// A stream opens; true: also with things that it should not have.
    Attach(usize, bool),
    Detach(usize),
    /// A lease ends; true: the process dies and forgets.
    LeaseLost(usize, bool),
    Park(usize, usize),
    Return(usize, usize),
    /// A scheduler has places for what it parked.
    Room(usize, usize, u32),
    Deliver(usize),
    Step,
    Later(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let scheduler = 0..SCHEDULERS;
    prop_oneof![
        5 => Just(Event::Submit),
        1 => any::<usize>().prop_map(Event::Cancel),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(unit, suspended)| Event::Suspend(unit, suspended)),
        1 => (any::<usize>(), 1..5u32).prop_map(|(unit, replicas)| Event::Scale(unit, replicas)),
        8 => any::<usize>().prop_map(Event::Bind),
        2 => any::<usize>().prop_map(Event::Evicted),
        2 => any::<usize>().prop_map(Event::Succeeded),
        1 => any::<usize>().prop_map(Event::Deleted),
        2 => (0..QUEUES.len(), prop::option::weighted(0.7, 0..8u8), 0..4usize, 1..4u32)
            .prop_map(|(queue, max, policy, weight)| Event::Queue(queue, max, policy, weight)),
        1 => (0..QUEUES.len()).prop_map(Event::QueueGone),
        1 => prop_oneof![Just(0), Just(7), Just(1_000_000)].prop_map(Event::Class),
        1 => Just(Event::ListedRecords),
        3 => (scheduler.clone(), any::<bool>()).prop_map(|(idx, odd)| Event::Attach(idx, odd)),
        1 => scheduler.clone().prop_map(Event::Detach),
        1 => (scheduler.clone(), any::<bool>()).prop_map(|(idx, dies)| Event::LeaseLost(idx, dies)),
        3 => (scheduler.clone(), any::<usize>()).prop_map(|(idx, unit)| Event::Park(idx, unit)),
        1 => (scheduler.clone(), any::<usize>()).prop_map(|(idx, unit)| Event::Return(idx, unit)),
        2 => (scheduler.clone(), any::<usize>(), 0..6u32)
            .prop_map(|(idx, unit, places)| Event::Room(idx, unit, places)),
        6 => scheduler.prop_map(Event::Deliver),
        6 => Just(Event::Step),
        1 => (1..1_000u64).prop_map(Event::Later),
    ]
}

/// A scheduler as its messages make it.
#[derive(Debug, Default)]
struct Fake {
    epoch: u64,
    registered: bool,
    session: Option<SessionId>,
    inbox: Vec<Action>,
    holds: BTreeMap<UnitId, (Revision, BTreeSet<(u32, u32)>)>,
}

struct World {
    rig: Rig,
    fakes: Vec<Fake>,
    next_session: u64,
    next_epoch: u64,
    next_unit: u64,
}

impl World {
    fn new() -> Self {
        let fakes = (0..SCHEDULERS).map(|_| Fake::default()).collect();
        Self { rig: Rig::new(), fakes, next_session: 1, next_epoch: 1, next_unit: 1 }
    }

    fn pick(&self, choice: usize) -> Option<UnitId> {
        let n_units = self.rig.core.assignments.units.entries.len();
        (n_units > 0).then(|| *self.rig.core.assignments.units.ids.iter().nth(choice % n_units).unwrap())
    }

    fn apply(&mut self, event: &Event) -> Result<(), TestCaseError> {
        match event {
            Event::Submit => {
                self.rig.put(mixed(self.next_unit));
                self.next_unit += 1;
            }
            Event::Deleted(choice) => {
                if let Some(unit) = self.pick(*choice) {
                    self.rig.core.on_unit_deleted(unit, self.rig.now);
                }
            }
            Event::Queue(queue, max, policy, weight) => self.put_queue(*queue, *max, *policy, *weight),
            Event::QueueGone(queue) => {
                self.rig.next();
                self.rig.core.assignments.queueing.on_queue_deleted(QUEUES[*queue]);
            }
            Event::Class(value) => self.put_class(*value),
            Event::ListedRecords => self.list(),
            Event::Cancel(choice) => {
                self.change(*choice, |entry| Some((*entry.record).clone().cancelled(true)))
            }
            Event::Suspend(choice, suspended) => self.suspend(*choice, *suspended),
            Event::Scale(choice, replicas) => {
                self.change(*choice, |entry| scale(&entry.record, &entry.rows, "", *replicas).ok().flatten());
            }
            Event::Bind(choice) => self.bind(*choice),
            Event::Evicted(choice) => self.end(*choice, RowPhase::Stopped),
            Event::Succeeded(choice) => self.end(*choice, RowPhase::Succeeded),
            Event::Attach(idx, odd) => self.attach(*idx, *odd),
            Event::Detach(idx) => self.detach(*idx),
            Event::LeaseLost(idx, dies) => {
                let fake = &mut self.fakes[*idx];
                if *dies {
                    fake.holds.clear();
                }
                let lost = lease(&format!("s{idx}"), fake.epoch, "");
                fake.registered = false;
                self.rig.core.streams().on_lease(&lost, self.rig.now);
            }
            Event::Park(idx, choice) => self.report(*idx, *choice, ReportState::Parked),
            Event::Return(idx, choice) => self.report(*idx, *choice, ReportState::Returned),
            Event::Room(idx, choice, places) => self.room(*idx, *choice, *places),
            Event::Deliver(idx) => self.deliver(*idx),
            Event::Step => self.step()?,
            Event::Later(ms) => self.rig.now = self.rig.now.plus(*ms),
        }
        Ok(())
    }

    fn change(&mut self, choice: usize, change: impl Fn(&UnitEntry) -> Option<UnitRecord>) {
        let Some(unit) = self.pick(choice) else { return };
        // The service refuses to change what is over.
        if self.rig.core.assignments.units.entries[&unit].phase.is_terminal() {
            return;
        }
        if let Some(spec) = change(&self.rig.core.assignments.units.entries[&unit]) {
            self.rig.put(spec);
        }
    }

    fn suspend(&mut self, choice: usize, suspended: bool) {
        let Some(unit) = self.pick(choice) else { return };
        self.change(choice, |entry| Some((*entry.record).clone().suspended(suspended)));
        let entry = &self.rig.core.assignments.units.entries[&unit];
        if !entry.record.is_wanted() {
            return;
        }
        let is_back = |(ordinal, row): &(u32, &godel_domain::running_units::RunningUnit)| {
            row.phase == RowPhase::Stopped && entry.record.group_of(*ordinal).is_some()
        };
        let (ordinals, incarnations): (Vec<u32>, Vec<u32>) = entry
            .rows
            .rows
            .iter()
            .filter(is_back)
            .map(|(ordinal, row)| (ordinal, row.incarnation + 1))
            .unzip();
        if !ordinals.is_empty() {
            self.rig.rows(unit.0, RunChange::Requeue(Requeue { ordinals, incarnations, anew: false }));
        }
    }

    /// The binder places a pending ordinal that some scheduler decided on.
    fn bind(&mut self, choice: usize) {
        let held: Vec<(usize, UnitId, u32, u32)> = self
            .fakes
            .iter()
            .enumerate()
            .flat_map(|(idx, fake)| {
                fake.holds
                    .iter()
                    .flat_map(move |(unit, (_, rows))| rows.iter().map(move |(o, i)| (idx, *unit, *o, *i)))
            })
            .collect();
        if held.is_empty() {
            return;
        }
        let (idx, unit, ordinal, incarnation) = held[choice % held.len()];
        let entry = self.rig.core.assignments.units.entries.get(&unit);
        let valid = entry.is_some_and(|entry| {
            let row = entry.rows.row(ordinal);
            let current = self.fakes[idx].holds[&unit].0 == entry.revision;
            current
                && row.phase == RowPhase::Pending
                && row.incarnation == incarnation
                && entry.record.group_of(ordinal).is_some()
                && entry.record.is_wanted()
        });
        if valid {
            let group = entry.and_then(|entry| entry.record.group_of(ordinal)).unwrap_or(0);
            self.rig.bind_group(unit.0, group, &[ordinal]);
        }
        let (revision, rows) = self.fakes[idx].holds.get_mut(&unit).unwrap();
        let revision = *revision;
        // Bound by its own decision, or it learns that somebody else was faster.
        if valid {
            rows.remove(&(ordinal, incarnation));
        }
        if rows.is_empty() {
            self.fakes[idx].holds.remove(&unit);
            if let Some(session) = self.fakes[idx].session {
                let report = UnitReport {
                    unit,
                    spec_revision: revision,
                    state: ReportState::Done,
                    refusals: None,
                    need: 0,
                    unplaced: None,
                    lacking: Vec::new(),
                    assigned: 0,
                };
                self.rig.core.streams().on_report(session, report, self.rig.now);
            }
        }
    }

    fn end(&mut self, choice: usize, phase: RowPhase) {
        let Some(unit) = self.pick(choice) else { return };
        let entry = &self.rig.core.assignments.units.entries[&unit];
        let Some((ordinal, row)) = entry.rows.live().next().map(|(ordinal, row)| (ordinal, *row)) else {
            return;
        };
        let wanted = entry.record.group_of(ordinal).is_some() && entry.record.is_wanted();
        self.rig.status(unit.0, &[ordinal], phase);
        if phase == RowPhase::Stopped && wanted {
            let requeue =
                Requeue { ordinals: vec![ordinal], incarnations: vec![row.incarnation + 1], anew: false };
            self.rig.rows(unit.0, RunChange::Requeue(requeue));
        }
    }

    fn attach(&mut self, idx: usize, odd: bool) {
        if !self.fakes[idx].registered {
            self.fakes[idx].epoch = self.next_epoch;
            self.fakes[idx].registered = true;
            self.next_epoch += 1;
        }
        self.detach(idx);
        if odd {
            // Something that it should not have: another scheduler's unit, or one that never was.
            let other = self.fakes[(idx + 1) % SCHEDULERS]
                .holds
                .iter()
                .next()
                .map(|(unit, held)| (*unit, held.clone()));
            if let Some((unit, held)) = other {
                self.fakes[idx].holds.entry(unit).or_insert(held);
            }
            self.fakes[idx].holds.insert(UnitId(999), (Revision(3), BTreeSet::from([(0, 0)])));
        }
        let fake = &mut self.fakes[idx];
        let session = self.next_session;
        self.next_session += 1;
        fake.session = Some(SessionId(session));
        let inventory: Vec<(u64, u64)> = fake.holds.iter().map(|(unit, held)| (unit.0, held.0.0)).collect();
        let epoch = fake.epoch;
        self.rig.core.streams().on_lease(&lease(&format!("s{idx}"), epoch, "h"), self.rig.now);
        self.rig.attach(&format!("s{idx}"), epoch, session, &inventory, 1_000);
    }

    /// Messages on their way are lost.
    fn detach(&mut self, idx: usize) {
        self.fakes[idx].inbox.clear();
        if let Some(session) = self.fakes[idx].session.take() {
            self.rig.core.streams().on_detached(session);
        }
    }

    fn report(&mut self, idx: usize, choice: usize, state: ReportState) {
        let fake = &mut self.fakes[idx];
        let (Some(session), n_held) = (fake.session, fake.holds.len()) else { return };
        if n_held == 0 {
            return;
        }
        let (unit, spec_revision) =
            fake.holds.iter().nth(choice % n_held).map(|(unit, held)| (*unit, held.0)).unwrap();
        if state == ReportState::Returned {
            fake.holds.remove(&unit);
        }
        self.rig.core.streams().on_report(
            session,
            UnitReport {
                unit,
                spec_revision,
                state,
                refusals: None,
                need: unit.0,
                unplaced: Some(u32::try_from(choice % 3).unwrap()),
                lacking: Vec::new(),
                assigned: 0,
            },
            self.rig.now,
        );
    }

    fn room(&mut self, idx: usize, choice: usize, places: u32) {
        let fake = &self.fakes[idx];
        let (Some(session), n_held) = (fake.session, fake.holds.len().max(1)) else { return };
        if let Some(unit) = fake.holds.keys().nth(choice % n_held) {
            let Some(at) = self.rig.core.assignments.schedulers.of_session(session) else { return };
            let assigned = self.rig.core.assignments.schedulers.all[at].n_assigned;
            let report = RoomReport { need: unit.0, places, assigned, revision: Revision(0) };
            self.rig.core.streams().on_rooms(session, &[report]);
        }
    }

    fn deliver(&mut self, idx: usize) {
        let fake = &mut self.fakes[idx];
        for action in std::mem::take(&mut fake.inbox) {
            match action {
                Action::Assign(_, one) => {
                    let rows = one.ordinals.into_iter().zip(one.incarnations).collect();
                    fake.holds.insert(one.record.id, (one.revision, rows));
                }
                Action::Revoke(_, unit) => drop(fake.holds.remove(&unit)),
                Action::Close(_) => {
                    fake.session = None;
                    fake.registered &= self
                        .rig
                        .core
                        .assignments
                        .schedulers
                        .find(&format!("s{idx}"))
                        .is_some_and(|at| self.rig.core.assignments.schedulers.all[at].live);
                    break;
                }
                other => panic!("not for schedulers: {other:?}"),
            }
        }
    }

    fn step(&mut self) -> Result<(), TestCaseError> {
        let before = self.waiting();
        let actions = self.rig.core.step(self.rig.now);
        self.check_handed_out(before, &actions)?;
        for action in actions {
            let session = match &action {
                Action::Assign(session, _) | Action::Revoke(session, _) | Action::Close(session) => *session,
                Action::WritePartition(split) => {
                    let (split, revision) = (split.clone(), self.rig.next());
                    self.rig.core.partition.on_partition(split, revision);
                    continue;
                }
                Action::Delete(unit) => {
                    self.rig.core.on_unit_deleted(*unit, self.rig.now);
                    continue;
                }
                Action::Evict(_)
                | Action::End(..)
                | Action::Follow(..)
                | Action::Surge(..)
                | Action::Compact(..)
                | Action::DeleteHistory(_) => {
                    continue;
                }
            };
            if let Some(fake) = self.fakes.iter_mut().find(|fake| fake.session == Some(session)) {
                fake.inbox.push(action);
            }
        }
        Ok(())
    }

    /// What must hold after every event.
    fn check(&self) -> Result<(), TestCaseError> {
        let core = &self.rig.core;
        let (mut n_queued, mut load, mut n_held, mut n_parked) =
            (0, vec![0u64; core.assignments.schedulers.all.len()], 0, 0);
        for (unit, entry) in &core.assignments.units.entries {
            prop_assert_eq!(&entry.counts, &Counts::of(&entry.record, &entry.rows));
            let wants = entry.counts.pending > 0;
            prop_assert_eq!(wants, entry.place != Whereabouts::Idle, "unit {} {:?}", unit, entry.place);
            match &entry.place {
                Whereabouts::Idle | Whereabouts::Paused => {}
                Whereabouts::Unsettled => prop_assert!(core.assignments.settling.unsettled.contains(unit)),
                Whereabouts::Queued(waiting) => {
                    prop_assert!(
                        core.assignments.queueing.queues.contains(waiting),
                        "unit {} is not in the queue",
                        unit
                    );
                    n_queued += usize::from(waiting.room == RoomIdx::NONE);
                }
                Whereabouts::Dispatched(held) => {
                    let scheduler = &core.assignments.schedulers.all[held.scheduler];
                    prop_assert!(scheduler.live && scheduler.held.contains(unit), "unit {}", unit);
                    load[held.scheduler] += u64::from(held.load);
                    n_held += 1;
                    n_parked += u32::from(held.parked.is_some());
                    let is_waiting =
                        held.parked.is_none_or(|waiting| core.assignments.queueing.queues.contains(&waiting));
                    prop_assert!(is_waiting, "unit {} is parked and not in the queue", unit);
                }
            }
        }
        prop_assert_eq!(core.assignments.queueing.queues.len(), n_queued);
        prop_assert_eq!(
            core.assignments.schedulers.all.iter().map(|one| one.held.len()).sum::<usize>(),
            n_held
        );
        prop_assert_eq!(core.assignments.schedulers.all.iter().map(|one| one.parked).sum::<u32>(), n_parked);
        for (scheduler, load) in core.assignments.schedulers.all.iter().zip(load) {
            prop_assert_eq!(scheduler.outstanding, load);
        }
        prop_assert_eq!(
            core.assignments.units.tally.all().iter().sum::<u64>(),
            core.assignments.units.entries.len() as u64
        );
        self.check_queues()
    }

    /// Everybody is back and all messages arrive: each pending ordinal is at exactly one scheduler, or waits in its
    /// queue for a reason.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        for idx in 0..SCHEDULERS {
            self.deliver(idx);
        }
        for idx in 0..SCHEDULERS {
            self.attach(idx, false);
        }
        for _ in 0..4 {
            self.step()?;
            for idx in 0..SCHEDULERS {
                self.deliver(idx);
                if let Some(session) = self.fakes[idx].session {
                    self.rig.core.streams().on_credits(session, 1_000);
                }
            }
            self.check()?;
        }
        for (unit, entry) in &self.rig.core.assignments.units.entries {
            let (ordinals, incarnations) = lifecycle::pending(&entry.record, &entry.rows);
            let holders: Vec<_> = self.fakes.iter().filter_map(|fake| fake.holds.get(unit)).collect();
            if ordinals.is_empty() {
                continue;
            }
            if let Whereabouts::Queued(waiting) = &entry.place {
                prop_assert!(holders.is_empty(), "unit {} is queued and held", unit);
                if waiting.room != RoomIdx::NONE
                    && !self.rig.core.assignments.queueing.queues.rooms().is_open(waiting.room)
                {
                    let is_watched = self
                        .rig
                        .core
                        .assignments
                        .queueing
                        .queues
                        .rooms()
                        .holders(waiting.room)
                        .next()
                        .is_some()
                        || self
                            .rig
                            .core
                            .rooms
                            .scout_of(waiting.room, &self.rig.core.assignments.units)
                            .is_some();
                    prop_assert!(is_watched, "nobody looks for room for unit {}", unit);
                    continue;
                }
                let pending_reason =
                    self.rig.core.assignments.queueing.queues.pending_reason(waiting, self.rig.now);
                prop_assert!(pending_reason.is_some(), "unit {} waits for nothing", unit);
                continue;
            }
            prop_assert_eq!(holders.len(), 1, "unit {} {:?}", unit, entry.place);
            let (revision, rows) = holders[0];
            prop_assert_eq!(*revision, entry.revision);
            for pair in ordinals.into_iter().zip(incarnations) {
                prop_assert!(rows.contains(&pair), "unit {} lacks {:?}", unit, pair);
            }
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn no_unit_is_lost_or_held_twice(events in prop::collection::vec(event(), 0..120)) {
        let mut world = World::new();
        for event in &events {
            let before: BTreeMap<UnitId, UnitPhase> =
                world.rig.core.assignments.units.entries.iter().map(|(unit, entry)| (*unit, entry.phase)).collect();
            world.apply(event)?;
            world.check()?;
            for (unit, entry) in &world.rig.core.assignments.units.entries {
                let from = before.get(unit).copied().unwrap_or(entry.phase);
                prop_assert!(
                    lifecycle::may_become(from, entry.phase),
                    "{from:?} to {:?} by {event:?}",
                    entry.phase
                );
            }
        }
        world.settle()?;
        prop_assert_eq!(world.rig.core.assignments.counters.repairs, 0);
        while let Some(unit) = world.pick(0) {
            world.rig.core.on_unit_deleted(unit, world.rig.now);
            world.check()?;
        }
        prop_assert!(world.rig.core.assignments.queueing.queues.is_empty());
        prop_assert_eq!(world.rig.core.queueing().quota().usage().running_units(QueueIdx::ROOT), 0);
    }
}
