//! Shares of queues on nodes that are full all the time: the real dispatcher and a real scheduler, with everything around them as plain as it
//! can be.
//!
//! Three queues have 50, 30 and 20 per cent of the nodes guaranteed and as weights, and each has more work than ever finds places: units as
//! those of YARN's applications, with a master that runs elsewhere and one to some dozens of replicas that take a slot each. When a replica is given
//! back its unit's record changes, and a moment later it has ended. Messages take a few milliseconds. What counts is what each queue had over time.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::{
    ids::{Epoch, NodeId, Revision, UnitId},
    resources::{CPU, MEMORY},
    seed::mix,
    time::Millis,
};
use godel_core_dispatcher::{Action, Attach, Config, Dispatcher, SessionId};
use godel_core_scheduler::{Config as SchedulerConfig, Scheduler};
use godel_domain::{
    assignment::Assignment,
    change::{Change, Commit, Lease},
    decision::{Decision, Outcome, Rejection, RejectionReason},
    demand::Demand,
    queue_spec::QueueSpec,
    records::Record,
    running_units::{Bind, Phase, RunChange, Statuses},
    txn::Receipt,
    unit::{TaskGroup, Template, UnitRecord},
    unit_report::{RoomReport, UnitReport},
};
use godel_testkit::{BuildDemand as _, BuildUnit as _};

const QUEUES: [(&str, u32); 3] = [("half", 50), ("third", 30), ("fifth", 20)];
const SESSION: SessionId = SessionId(1);
/// Replicas that a node has room for: a CPU and a GiB each.
const N_OF_NODE: i64 = 10;
const CPU_MILLI: i64 = 1_000;
const MEMORY_BYTES: i64 = 1 << 30;
/// A message is on its way for so long at least, and at most so much longer, milliseconds.
const DELAY_MS: (u64, u64) = (1, 2);
/// A replica runs for so long at least, and at most so much longer, milliseconds.
const LIFE_MS: (u64, u64) = (110, 60);
/// After it was given back a replica runs for so long, milliseconds.
const STOP_MS: u64 = 5;
/// Shares count from the first moment on, to the second one.
const WINDOW_MS: (u64, u64) = (1_000, 7_000);
/// What shares may be off, percentage points.
const DEVIATION_MAX: f64 = 2.0;

/// What arrives at a moment.
enum ShareMessage {
    Assign(Box<Assignment>),
    Reports(Vec<UnitReport>, Vec<RoomReport>),
    Decisions(Vec<Decision>),
    Outcomes(Vec<Outcome>),
    Commit(Commit),
    Credits(u32),
    /// A replica of a unit is given back.
    Release(UnitId, u32),
    /// It has ended.
    End(UnitId, u32),
}

struct ShareWorld {
    dispatcher: Dispatcher,
    scheduler: Scheduler,
    now: u64,
    n_sent: u64,
    messages: BTreeMap<(u64, u64), ShareMessage>,
    /// When the last message of each kind arrives: they keep their order.
    last_at: [u64; 6],
    revision: u64,
    records: BTreeMap<UnitId, Arc<UnitRecord>>,
    spec_revisions: BTreeMap<UnitId, Revision>,
    granted: u32,
    live: [u64; 3],
    /// Slot-milliseconds.
    had: [u64; 3],
    n_calls: u64,
    n_bound: u64,
    n_refused: u64,
}

impl ShareWorld {
    fn new(n_slots: i64) -> Self {
        let config =
            SchedulerConfig { name: "s".to_owned(), preemption: false, ..SchedulerConfig::default() };
        let mut scheduler = Scheduler::new(config, 1);
        let mut dispatcher = Dispatcher::new(Config::default());
        dispatcher.on_reset();
        dispatcher.on_synced(Revision(1), Millis(1));
        scheduler.on_reset();
        scheduler.on_listed(Revision(1));
        let mut world = Self {
            dispatcher,
            scheduler,
            now: 1,
            n_sent: 0,
            messages: BTreeMap::new(),
            last_at: [0; 6],
            revision: 1,
            records: BTreeMap::new(),
            spec_revisions: BTreeMap::new(),
            granted: 0,
            live: [0; 3],
            had: [0; 3],
            n_calls: 0,
            n_bound: 0,
            n_refused: 0,
        };
        let mut changes = Vec::new();
        for id in 1..=(n_slots + N_OF_NODE - 1) / N_OF_NODE {
            let n = N_OF_NODE.min(n_slots - (id - 1) * N_OF_NODE);
            let node = godel_testkit::node(u32::try_from(id).unwrap());
            let node = node.cpu(n * CPU_MILLI).memory(n * MEMORY_BYTES);
            changes.extend([
                Change::Put(Record::NodeSpec(node.spec)),
                Change::Put(Record::NodeReport(node.report)),
            ]);
        }
        for (name, percent) in QUEUES {
            let of = |all: i64| n_slots * all * i64::from(percent) / 100;
            let min = [(CPU.to_owned(), of(CPU_MILLI)), (MEMORY.to_owned(), of(MEMORY_BYTES))].into();
            changes.push(Change::Put(Record::Queue(Arc::new(QueueSpec {
                weight: percent,
                min,
                ..QueueSpec::new(name)
            }))));
        }
        world.commit(changes);
        world.attach();
        world
    }

    fn attach(&mut self) {
        let lease = Lease {
            name: "scheduler/s".to_owned(),
            holder: "s".to_owned(),
            epoch: Epoch(1),
            ..Lease::default()
        };
        self.commit(vec![Change::Put(Record::Lease(lease))]);
        while let Some(message) = self.messages.pop_first() {
            self.take(message.1);
        }
        self.scheduler.on_attach();
        self.granted = self.scheduler.credits();
        let (name, epoch, session, credits) = ("s".to_owned(), Epoch(1), SESSION, self.granted);
        let attach = Attach { name, epoch, session, inventory: Vec::new(), credits };
        self.dispatcher.streams().on_attached(attach, Millis(self.now)).unwrap();
    }

    /// Each queue gets work for longer than anybody looks.
    fn submit_all(&mut self, n_slots: i64) {
        let n_all = u64::try_from(n_slots).unwrap() * WINDOW_MS.1 / LIFE_MS.0;
        let mut id = 0;
        for (at, (queue, percent)) in QUEUES.into_iter().enumerate() {
            let mut left = n_all * u64::from(percent) / 100 + 200;
            while left > 0 {
                id += 1;
                // A few are large, most are small.
                let draw = mix(id + 1_000 * at as u64);
                let n = if draw.is_multiple_of(4) { 10 + draw / 7 % 60 } else { 1 + draw / 7 % 6 };
                let n = n.min(left);
                left -= n;
                let unit = godel_testkit::unit(format!("u{id}"))
                    .id(UnitId(id))
                    .uid(format!("0190163d-8694-739b-aea5-{id:012x}"))
                    .queue(queue)
                    .task_groups(groups(u32::try_from(n).unwrap()));
                self.commit(vec![Change::Put(Record::Unit(Arc::new(unit.clone())))]);
                self.records.insert(UnitId(id), Arc::new(unit));
            }
        }
    }

    fn run(&mut self) {
        while self.now < WINDOW_MS.1 {
            while let Some(entry) = self.messages.first_entry()
                && entry.key().0 <= self.now
            {
                let message = entry.remove();
                self.take(message);
            }
            self.act();
            if self.now >= WINDOW_MS.0 {
                for (had, live) in self.had.iter_mut().zip(self.live) {
                    *had += live;
                }
            }
            self.now += 1;
        }
    }

    fn take(&mut self, message: ShareMessage) {
        let now = Millis(self.now);
        match message {
            ShareMessage::Assign(one) => {
                self.granted = self.granted.saturating_sub(u32::try_from(one.ordinals.len()).unwrap());
                self.scheduler.on_assign(&one, now);
            }
            ShareMessage::Reports(reports, rooms) => {
                for report in reports {
                    self.dispatcher.streams().on_report(SESSION, report, now);
                }
                self.dispatcher.streams().on_rooms(SESSION, &rooms);
            }
            ShareMessage::Decisions(decisions) => self.bind(decisions),
            ShareMessage::Outcomes(outcomes) => {
                outcomes.iter().for_each(|outcome| self.scheduler.on_outcome(outcome, now));
            }
            ShareMessage::Commit(commit) => {
                for change in &commit.changes {
                    let created = Receipt { revision: commit.revision, time_ms: commit.time_ms };
                    self.dispatcher.on_change(change, commit.revision, created, now);
                }
                self.dispatcher.on_revision(commit.revision);
                self.scheduler.apply(&commit, now);
            }
            ShareMessage::Credits(credits) => self.dispatcher.streams().on_credits(SESSION, credits),
            ShareMessage::Release(unit, ordinal) => {
                // The unit's record says so, and before long its node has stopped it.
                let record = Arc::clone(&self.records[&unit]);
                self.commit(vec![Change::Put(Record::Unit(record))]);
                self.n_sent += 1;
                self.messages.insert((self.now + STOP_MS, self.n_sent), ShareMessage::End(unit, ordinal));
            }
            ShareMessage::End(unit, ordinal) => {
                self.live[self.queue_of(unit)] -= 1;
                let (ordinals, phases) = (vec![ordinal], vec![Phase::Succeeded]);
                let statuses = Statuses { ordinals, phases, ..Statuses::default() };
                self.commit(vec![Change::Rows(unit, RunChange::Statuses(statuses))]);
            }
        }
    }

    /// Who decides does so whenever there is something to decide.
    fn act(&mut self) {
        let now = Millis(self.now);
        for action in self.dispatcher.step(now) {
            if let Action::Assign(_, one) = action {
                self.n_calls += u64::from(one.permit.called);
                self.send(ShareMessage::Assign(Box::new(one)));
            }
        }
        let step = self.scheduler.step(now, 1_000);
        if !step.decisions.is_empty() {
            self.send(ShareMessage::Decisions(step.decisions));
        }
        if !step.reports.is_empty() || !step.rooms.is_empty() {
            self.send(ShareMessage::Reports(step.reports, step.rooms));
        }
        let credits = self.scheduler.credits();
        if credits != self.granted {
            self.granted = credits;
            self.send(ShareMessage::Credits(credits));
        }
    }

    /// As the binder does: what rests on another record than the newest is refused.
    fn bind(&mut self, decisions: Vec<Decision>) {
        let mut outcomes = Vec::new();
        for decision in decisions {
            let is_newest = self.spec_revisions.get(&decision.unit) == Some(&decision.spec_revision);
            let mut outcome = Outcome {
                decision_id: decision.id,
                unit: decision.unit,
                revision: Revision(0),
                held: false,
                rejections: Vec::new(),
                nodes: Vec::new(),
            };
            for group in &decision.groups {
                if !is_newest {
                    self.n_refused += 1;
                    outcome.rejections.push(Rejection {
                        reason: RejectionReason::UnitChanged,
                        ordinals: group.ordinals.clone(),
                        node: NodeId(0),
                        detail: String::new(),
                    });
                    continue;
                }
                let bind = Bind {
                    group: group.group,
                    demand: Arc::new(demand()),
                    ordinals: group.ordinals.clone(),
                    incarnations: group.incarnations.clone(),
                    nodes: group.nodes.clone(),
                    ..Bind::default()
                };
                outcome.revision = self.commit(vec![Change::Rows(decision.unit, RunChange::Bind(bind))]);
                self.live[self.queue_of(decision.unit)] += group.ordinals.len() as u64;
                for ordinal in &group.ordinals {
                    self.n_bound += 1;
                    let life = LIFE_MS.0 + mix(self.n_bound) % LIFE_MS.1;
                    self.n_sent += 1;
                    let key = (self.now + life, self.n_sent);
                    self.messages.insert(key, ShareMessage::Release(decision.unit, *ordinal));
                }
            }
            outcomes.push(outcome);
        }
        self.send(ShareMessage::Outcomes(outcomes));
    }

    fn commit(&mut self, changes: Vec<Change>) -> Revision {
        self.revision += 1;
        let revision = Revision(self.revision);
        for change in &changes {
            if let Change::Put(Record::Unit(record)) = change {
                self.spec_revisions.insert(record.id, revision);
            }
        }
        self.send(ShareMessage::Commit(Commit { revision, time_ms: 1_000, changes }));
        revision
    }

    fn send(&mut self, message: ShareMessage) {
        let way = match message {
            ShareMessage::Assign(_) => 0,
            ShareMessage::Reports(..) => 1,
            ShareMessage::Decisions(_) => 2,
            ShareMessage::Outcomes(_) => 3,
            ShareMessage::Commit(_) => 4,
            ShareMessage::Credits(_) | ShareMessage::Release(..) | ShareMessage::End(..) => 5,
        };
        self.n_sent += 1;
        let at = self.now + DELAY_MS.0 + mix(self.n_sent) % (DELAY_MS.1 + 1);
        let at = at.max(self.last_at[way]);
        self.last_at[way] = at;
        self.messages.insert((at, self.n_sent), message);
    }

    fn queue_of(&self, unit: UnitId) -> usize {
        let queue = &self.records[&unit].spec.queue;
        QUEUES.iter().position(|(name, _)| name == queue).unwrap()
    }

    fn percent(&self) -> [f64; 3] {
        let all: u64 = self.had.iter().sum();
        self.had.map(|had| 100.0 * had as f64 / all.max(1) as f64)
    }
}

/// A master that runs elsewhere, whose place is never found, and replicas.
fn groups(n: u32) -> Vec<TaskGroup> {
    let node_selector = [("nowhere".to_owned(), "true".to_owned())].into();
    let master = Template { node_selector, ..Template::default() };
    let replica = Template { demand: demand(), ..Template::default() };
    vec![godel_testkit::group("master", 1, master), godel_testkit::group("maps", n, replica)]
}

fn demand() -> Demand {
    godel_testkit::demand(CPU_MILLI).memory(MEMORY_BYTES)
}

#[test]
fn queues_that_wait_get_their_shares() {
    let mut wrong = Vec::new();
    for n_slots in [20, 37, 40, 60] {
        let mut world = ShareWorld::new(n_slots);
        world.submit_all(n_slots);
        world.run();
        let percent = world.percent();
        let used = world.had.iter().sum::<u64>() as f64 / (WINDOW_MS.1 - WINDOW_MS.0) as f64;
        println!(
            "{n_slots} slots: {percent:.1?} %, {used:.1} in use, {} bound, {} calls, {} refused",
            world.n_bound, world.n_calls, world.n_refused
        );
        let is_off = |(had, (_, share)): (f64, (&str, u32))| (had - f64::from(share)).abs() > DEVIATION_MAX;
        if percent.into_iter().zip(QUEUES).any(is_off) {
            wrong.push((n_slots, percent));
        }
        // Places are not left empty to keep shares.
        assert!(used > 0.85 * n_slots as f64, "{used} of {n_slots} slots are in use");
    }
    assert!(wrong.is_empty(), "{wrong:.1?}");
}
