//! Units of any size on nodes that are full all the time: the real dispatcher, scheduler and binder, one after the other in every millisecond.
//!
//! Queues have more work than ever finds places; who gets what is counted in CPUs over time. Large units get in beside small ones, whatever their
//! queue and their priority, queues get their shares whatever the sizes of their units, and lower bands their floor of places that come free one at a
//! time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_audit::{Evidence, History, Invariant, InvariantReport, Service, check_all};
use godel_base::{
    ids::{Epoch, NodeId, Revision, UnitId},
    seed::mix,
    time::Millis,
};
use godel_core_binder::{Accepted, Binder, HoldWork, Verdict};
use godel_core_dispatcher::{Action, Attach, Config, Dispatcher, SessionId};
use godel_core_scheduler::{Config as SchedulerConfig, Scheduler};
use godel_domain::{
    change::{Change, Commit, Lease},
    decision::{Decision, Outcome},
    queue_spec::QueueSpec,
    records::{Record, RecordKey},
    running_units::{Phase, RunChange, Statuses},
    txn::Receipt,
    unit::WorkloadClass,
};
use godel_testkit::{BuildDemand as _, BuildUnit as _};

const SESSION: SessionId = SessionId(1);
/// What each node has room for, in CPUs of a running unit.
const N_OF_NODE: i64 = 8;
const CPU_MILLI: i64 = 1_000;
/// How long running units run if nothing else is said.
const LIFE_MS: (u64, u64) = (300, 300);
/// Who finds no place for so long gathers room, milliseconds.
const GATHER_AFTER_MS: u64 = 1_000;
/// The longest turn, milliseconds.
const TURN_MS: i64 = 5_000;

/// Units that a world has waiting at any time.
#[derive(Clone, Copy, Debug)]
struct LoadStream {
    queue: &'static str,
    /// CPUs of a running unit, one after the other.
    sizes: &'static [i64],
    priority: i32,
    /// Running units of each, all of them needed at once.
    n_members: u32,
}

const SMALL: LoadStream = LoadStream { queue: "default", sizes: &[1], priority: 0, n_members: 1 };

struct MixedWorld {
    dispatcher: Dispatcher,
    scheduler: Scheduler,
    binder: Binder,
    now: u64,
    revision: u64,
    granted: u32,
    streams: Vec<LoadStream>,
    /// Of each stream how many units were made.
    n_made: Vec<u64>,
    /// The stream of each unit, and the CPUs of one of its running units.
    of: BTreeMap<UnitId, (usize, i64)>,
    /// Units that wait, by stream.
    n_waiting: Vec<usize>,
    ends: BTreeSet<(u64, UnitId, u32)>,
    /// CPUs that run, by stream.
    live: Vec<i64>,
    /// CPU-milliseconds.
    had: Vec<i64>,
    /// Placements.
    n_bound: Vec<u64>,
    /// The first one of each stream.
    first_ms: Vec<Option<u64>>,
    /// Between two ends of running units on nodes with one place, milliseconds; `None`: each has its own life.
    one_at_a_time_ms: Option<u64>,
    /// A running unit runs for so long at least, and at most so much longer, milliseconds.
    life_ms: (u64, u64),
    n_lives: u64,
    commits: Vec<Commit>,
}

impl MixedWorld {
    fn new(n_nodes: u32, floor_percent: u8, queues: &[(&str, u32)], streams: &[LoadStream]) -> Self {
        let config =
            SchedulerConfig { name: "s".to_owned(), preemption: false, ..SchedulerConfig::default() };
        let mut core = Config { gang_hold_after_ms: GATHER_AFTER_MS, ..Config::default() };
        core.queues.floor_percent = floor_percent;
        let n = streams.len();
        let mut world = Self {
            dispatcher: Dispatcher::new(core),
            scheduler: Scheduler::new(config, 1),
            binder: Binder::new(),
            now: 1,
            revision: 1,
            granted: 0,
            streams: streams.to_vec(),
            n_made: vec![0; n],
            of: BTreeMap::new(),
            n_waiting: vec![0; n],
            ends: BTreeSet::new(),
            live: vec![0; n],
            had: vec![0; n],
            n_bound: vec![0; n],
            first_ms: vec![None; n],
            one_at_a_time_ms: None,
            life_ms: LIFE_MS,
            n_lives: 0,
            commits: Vec::new(),
        };
        world.dispatcher.on_reset();
        world.dispatcher.on_synced(Revision(1), Millis(1));
        world.scheduler.on_reset();
        world.scheduler.on_listed(Revision(1));
        world.binder.gather_for(u64::try_from(TURN_MS).unwrap());
        let mut changes = Vec::new();
        for id in 1..=n_nodes {
            let node = godel_testkit::node(id).cpu(N_OF_NODE * CPU_MILLI).memory(1 << 40);
            changes.extend([
                Change::Put(Record::NodeSpec(node.spec)),
                Change::Put(Record::NodeReport(node.report)),
            ]);
        }
        let queues =
            queues.iter().map(|(name, weight)| QueueSpec { weight: *weight, ..QueueSpec::new(*name) });
        changes.extend(queues.map(|queue| Change::Put(Record::Queue(Arc::new(queue)))));
        let (name, holder) = ("scheduler/s".to_owned(), "s".to_owned());
        changes.push(Change::Put(Record::Lease(Lease { name, holder, epoch: Epoch(1), ..Lease::default() })));
        world.commit(changes);
        world.scheduler.on_attach();
        world.granted = world.scheduler.credits();
        let (name, epoch, inventory) = ("s".to_owned(), Epoch(1), Vec::new());
        let attach = Attach { name, epoch, session: SESSION, inventory, credits: world.granted };
        world.dispatcher.streams().on_attached(attach, Millis(1)).unwrap();
        world
    }

    /// Adds a stream of one unit. Returns its index.
    fn add(&mut self, stream: LoadStream) -> usize {
        let at = self.streams.len();
        self.streams.push(stream);
        self.n_made.push(0);
        self.live.push(0);
        self.had.push(0);
        self.n_bound.push(0);
        self.first_ms.push(None);
        self.n_waiting.push(0);
        self.submit(at);
        // No other one comes.
        self.n_waiting[at] = usize::MAX;
        at
    }

    /// Keeps `n` units of each stream waiting.
    fn refill(&mut self, n: usize) {
        for at in 0..self.streams.len() {
            while self.n_waiting[at] < n {
                self.submit(at);
            }
        }
    }

    fn submit(&mut self, at: usize) -> UnitId {
        let stream = self.streams[at];
        let id = u64::try_from(self.of.len()).unwrap() + 1;
        let draw = self.n_made[at];
        self.n_made[at] += 1;
        let size = stream.sizes[usize::try_from(draw).unwrap() % stream.sizes.len()];
        let unit = godel_testkit::unit(format!("u{id}"))
            .id(UnitId(id))
            .uid(format!("0190163d-8694-739b-aea5-{id:012x}"))
            .queue(stream.queue)
            .priority(stream.priority)
            .preemptible(false)
            .class(WorkloadClass::Batch)
            .main_group(stream.n_members, godel_testkit::demand(size * CPU_MILLI).memory(1))
            .min_member(stream.n_members);
        self.of.insert(UnitId(id), (at, size));
        self.n_waiting[at] += 1;
        self.commit(vec![Change::Put(Record::Unit(Arc::new(unit)))]);
        UnitId(id)
    }

    fn run(&mut self, until_ms: u64, n_waiting: usize) {
        while self.now < until_ms {
            self.refill(n_waiting);
            self.end_due();
            self.act();
            for (had, live) in self.had.iter_mut().zip(&self.live) {
                *had += live;
            }
            self.now += 1;
            self.binder.on_wall(i64::try_from(self.now).unwrap());
        }
    }

    fn end_due(&mut self) {
        while let Some((at_ms, unit, ordinal)) = self.ends.first().copied()
            && at_ms <= self.now
        {
            self.ends.pop_first();
            let (at, size) = self.of[&unit];
            self.live[at] -= size;
            let statuses =
                Statuses { ordinals: vec![ordinal], phases: vec![Phase::Succeeded], ..Statuses::default() };
            self.commit(vec![Change::Rows(unit, RunChange::Statuses(statuses))]);
        }
    }

    fn act(&mut self) {
        let now = Millis(self.now);
        for action in self.dispatcher.step(now) {
            let Action::Assign(_, one) = action else { continue };
            self.granted = self.granted.saturating_sub(u32::try_from(one.ordinals.len()).unwrap());
            self.scheduler.on_assign(&one, now);
        }
        let step = self.scheduler.step(now, 1_000);
        for decision in &step.decisions {
            let outcome = self.decide(decision);
            self.scheduler.on_outcome(&outcome, now);
        }
        for report in step.reports {
            self.dispatcher.streams().on_report(SESSION, report, now);
        }
        self.dispatcher.streams().on_rooms(SESSION, &step.rooms);
        if self.binder.has_hold_work() {
            self.do_hold_work();
        }
        let credits = self.scheduler.credits();
        if credits != self.granted {
            self.granted = credits;
            self.dispatcher.streams().on_credits(SESSION, credits);
        }
    }

    fn decide(&mut self, decision: &Decision) -> Outcome {
        let mut outcome = Outcome { decision_id: decision.id, unit: decision.unit, ..Outcome::default() };
        match self.binder.check(decision) {
            Verdict::Bind(accepted) => {
                outcome.held = !accepted.holds.is_empty();
                outcome.revision = self.write(&accepted);
                outcome.rejections = accepted.rejections;
            }
            Verdict::Reject(rejections) => {
                outcome.nodes = self.binder.picture().fresh_nodes(decision.unit, &rejections);
                outcome.rejections = rejections;
            }
            Verdict::Wait(wait) => panic!("waits for {wait:?}"),
        }
        outcome
    }

    fn do_hold_work(&mut self) {
        for work in self.binder.take_hold_work() {
            match work {
                HoldWork::Bind(accepted) => {
                    self.write(&accepted);
                }
                HoldWork::Drop { holds, .. } => {
                    self.commit(holds.iter().map(|(id, _)| Change::Gone(RecordKey::Hold(*id))).collect());
                }
                HoldWork::Reserve { .. } => panic!("nobody reserves"),
            }
        }
    }

    fn write(&mut self, accepted: &Accepted) -> Revision {
        let unit = accepted.unit;
        let binds = accepted.binds.iter().map(|bind| Change::Rows(unit, RunChange::Bind(bind.clone())));
        let holds = accepted.holds.iter().map(|hold| Change::Put(Record::Hold(Arc::clone(hold))));
        let ends = accepted.ends.iter().map(|(id, _)| *id);
        let ends =
            ends.chain(accepted.gone.iter().map(|(id, _)| *id)).map(|it| Change::Gone(RecordKey::Hold(it)));
        let revision = self.commit(binds.chain(holds).chain(ends).collect());
        self.binder.commit(accepted.ticket, revision);
        for bind in &accepted.binds {
            self.begin(unit, &bind.ordinals, &bind.nodes);
        }
        revision
    }

    fn begin(&mut self, unit: UnitId, ordinals: &[u32], nodes: &[NodeId]) {
        assert_eq!(ordinals.len(), nodes.len());
        let (at, size) = self.of[&unit];
        self.n_waiting[at] = self.n_waiting[at].saturating_sub(1);
        self.first_ms[at].get_or_insert(self.now);
        for ordinal in ordinals {
            self.n_bound[at] += 1;
            self.n_lives += 1;
            self.live[at] += size;
            let life_ms = self.life_ms.0 + mix(self.n_lives) % self.life_ms.1;
            let end_ms = match self.one_at_a_time_ms {
                // The last one to come is the last one to go.
                Some(between_ms) => {
                    let last_ms = self.ends.last().map_or(0, |(at_ms, _, _)| *at_ms);
                    last_ms.max(self.now) + between_ms
                }
                None => self.now + life_ms,
            };
            self.ends.insert((end_ms, unit, *ordinal));
        }
    }

    fn commit(&mut self, changes: Vec<Change>) -> Revision {
        self.revision += 1;
        let (revision, now) = (Revision(self.revision), Millis(self.now));
        let time_ms = i64::try_from(self.now).unwrap();
        let commit = Commit { revision, time_ms, changes };
        for change in &commit.changes {
            self.dispatcher.on_change(change, revision, Receipt { revision, time_ms }, now);
        }
        self.dispatcher.on_revision(revision);
        self.scheduler.apply(&commit, now);
        self.commits.push(commit.clone());
        for change in commit.changes {
            self.binder.on_change(change, revision, time_ms);
        }
        self.binder.on_revision(revision);
        revision
    }

    /// Returns the audit's verdict on the order of queues and bands (I10).
    fn judge_order(&self, floor_percent: u8) -> InvariantReport {
        let (commits, up_to) = (self.commits.clone(), Revision(self.revision));
        let evidence = Evidence {
            history: History { floor: Revision(1), commits, up_to, ..History::default() },
            service: Service { floor_percent: Some(floor_percent), known_after_ms: 1, ..Service::default() },
            ..Evidence::default()
        };
        let of_order = |report: &InvariantReport| report.invariant == Invariant::I10;
        check_all(&evidence).into_iter().find(of_order).unwrap()
    }

    /// Of all CPUs in use, per cent.
    fn percent(&self) -> Vec<f64> {
        let all: i64 = self.had.iter().sum();
        self.had.iter().map(|had| 100.0 * *had as f64 / all.max(1) as f64).collect()
    }
}

#[test]
fn one_large_unit_gets_in_beside_a_stream_of_small_ones() {
    let queues = [("a", 1), ("b", 1), ("rich", 100)];
    for (large, small) in [("a", "b"), ("a", "a"), ("a", "rich"), ("rich", "a")] {
        for priority in [0, 50] {
            for n_members in [1, 2] {
                // A higher priority in another queue of the band makes no difference.
                let small =
                    LoadStream { queue: small, priority: if small == large { 0 } else { 10 }, ..SMALL };
                let of_small = [small, LoadStream { sizes: &[2], ..small }];
                let large = LoadStream { queue: large, sizes: &[N_OF_NODE], priority, n_members };
                let mut world = MixedWorld::new(4, 5, &queues, &of_small);
                world.run(1_000, 20);
                let large = world.add(large);
                while world.now < 15_000 && world.first_ms[large].is_none() {
                    world.run(world.now + 100, 20);
                }
                let waited_ms = world.first_ms[large].map(|at_ms| at_ms - 1_000);
                let large = world.streams[large];
                let case =
                    format!("{n_members} of {} beside {}, priority {priority}", large.queue, small.queue);
                assert!(waited_ms.is_some_and(|waited_ms| waited_ms < 12_000), "{case}: {waited_ms:?}");
            }
        }
    }
}

#[test]
fn shares_are_kept_in_resources_where_all_units_are_small() {
    let queues = [("a", 50), ("b", 30), ("c", 20)];
    let of = |queue, sizes| LoadStream { queue, sizes, ..SMALL };
    let one: &[i64] = &[1];
    let sizes = [one, one, one];
    let streams = [of("a", sizes[0]), of("b", sizes[1]), of("c", sizes[2])];
    let mut world = MixedWorld::new(12, 5, &queues, &streams);
    world.run(4_000, 40);
    world.had.fill(0);
    world.run(14_000, 40);
    let percent = world.percent();
    let used = world.had.iter().sum::<i64>() as f64 / 10_000.0;
    println!("{sizes:?}: {percent:.1?} %, {used:.1} of 96 in use, {:?} bound", world.n_bound);
    let is_off = |(had, (_, share)): (&f64, &(&str, u32))| (had - f64::from(*share)).abs() > 5.0;
    assert!(!percent.iter().zip(&queues).any(is_off), "{sizes:?}: {percent:.1?}");
}

#[test]
fn queues_of_large_units_get_their_shares() {
    const KINDS: [&[i64]; 7] =
        [&[1], &[2], &[1, 2], &[4], &[N_OF_NODE], &[1, N_OF_NODE], &[N_OF_NODE, 1, 1, 4]];
    let mut missed = Vec::new();
    for case in 0..24 {
        let draw = |at: u64, n: u64| mix(case * 100 + at) % n;
        let drawn = [("a", 0), ("b", 1), ("c", 2)].map(|(queue, at)| {
            let sizes = KINDS[usize::try_from(draw(at, 7)).unwrap()];
            let weight = 10 + u32::try_from(draw(10 + at, 40)).unwrap();
            ((queue, weight), LoadStream { queue, sizes, ..SMALL })
        });
        let mut world = MixedWorld::new(16, 5, &drawn.map(|one| one.0), &drawn.map(|one| one.1));
        world.life_ms = (3_000, 3_000);
        world.run(20_000, 40);
        world.had.fill(0);
        world.run(50_000, 40);
        let all: u32 = drawn.iter().map(|((_, weight), _)| weight).sum();
        let used = world.had.iter().sum::<i64>() as f64 / 30_000.0;
        for (had, ((_, weight), LoadStream { sizes, .. })) in world.percent().iter().zip(&drawn) {
            let share = 100.0 * f64::from(*weight) / f64::from(all);
            let one = 100.0 * sizes.iter().copied().max().unwrap() as f64 / used;
            println!("case {case}: {sizes:?} had {had:.1} of {share:.1} %, {used:.1} of 128 in use");
            // Shares are of whole units, and what gathers counts before it runs.
            if had + one < 0.8 * share {
                missed.push(format!("case {case}: {sizes:?} had {had:.1} of {share:.1} %"));
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn lower_bands_get_their_floor_of_places_that_come_free_one_at_a_time() {
    for floor_percent in [20, 5, 1] {
        let streams = [LoadStream { priority: 1_000_000, ..SMALL }, SMALL];
        let mut world = MixedWorld::new(2, floor_percent, &[], &streams);
        world.one_at_a_time_ms = Some(5);
        world.run(2_000, 10);
        world.n_bound.fill(0);
        world.run(12_000, 10);
        let (high, low) = (world.n_bound[0], world.n_bound[1]);
        let expected = (high + low) * u64::from(floor_percent) / 100;
        let report = world.judge_order(floor_percent);
        println!("{floor_percent} %: {low} of {}, and {report}", high + low);
        assert!(!report.has_failed(), "{report}");
        assert!(low.abs_diff(expected) <= 2 + expected / 10, "{low} of {}, not {expected}", high + low);
    }
}
