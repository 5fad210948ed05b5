//! One case: the parts, the store between them, and what happens when.

use godel_core_dispatcher::{Config as DispatcherConfig, ModeChoice, policy::PolicyKind};
use godel_core_scheduler::Config;
use godel_domain::{change::PartitionMode, pause::Scope, sub_cluster};
use godel_queueing as queue;
use godel_rules::{lost_nodes, partition_mode};

use super::{
    agents::Agents,
    binder::BinderPart,
    check,
    dispatcher::{DispatcherPart, name},
    identities,
    movements::{self, KeptMovements},
    naive::Naive,
    net::{Event, Message, Net, Part},
    numbers::Numbers,
    people::{self, ModelPeople},
    reach::{Mark, MarkCounts},
    rescheduler::ReschedulerPart,
    scheduler::SchedulerPart,
    steps::{ModelStep, add_agent_faults, add_identity_faults, draw, draw_full},
    store::{Answer, Store},
    units,
};

/// Without a commit for so long nothing will happen any more: longer than anything waits, milliseconds.
const QUIET_MS: u64 = 4_000;
/// Who finds no place for so long gathers room in cases of large units, milliseconds.
const GATHER_AFTER_MS: u64 = 100;
/// The binder answers within this.
const ANSWER_MS: u64 = 1_000;
/// After the last step and fault it comes to rest within this, milliseconds.
const REST_MS: u64 = 30_000;
/// Bit of a seed whose case is of nodes that are full all the time.
pub(super) const FULL: u64 = 1 << 50;
/// Bit of a seed in whose case running units move.
pub(super) const MOVES: u64 = 1 << 51;
/// Bit of a seed in whose case nearly all units meet by terms about running units, and several schedulers place them.
pub(super) const MEETS: u64 = 1 << 52;
/// Bit of a seed in whose case queues are at their maximum when running units move, and several schedulers place them.
pub(super) const TIGHT: u64 = 1 << 53;
/// Bit of a seed in whose case some units need most of a node, and room is gathered for them soon.
pub(super) const LARGE: u64 = 1 << 54;
/// Bit of a seed in whose case certificates of agents expire, and agents are revoked.
pub(super) const EXPIRES: u64 = 1 << 55;
/// Bit of a seed in whose case principals are judged.
pub(super) const JUDGED: u64 = 1 << 56;
/// What must not run twice ends after so long without contact, milliseconds: before its node may count as lost.
const STOP_AFTER_MS: u32 = 300;
/// In one of so many of the cases where running units move agents are odd as well, and die: little moves then.
const ONE_IS_ODD: u64 = 4;
/// Events of one case at most.
const N_EVENTS_MAX: usize = 60_000;

/// What a case is made of, drawn from its seed.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) seed: u64,
    pub(super) steps: Vec<ModelStep>,
    n_schedulers: u64,
    n_nodes: u64,
    n_queues: u64,
    delay_ms: u64,
    has_faults: bool,
    /// Running units are moved.
    moves: bool,
    /// Nearly all units have terms about running units.
    meets: bool,
    /// Queues are at their maximum when running units move.
    is_tight: bool,
    /// Some units need most of a node, and room is gathered for them soon.
    is_large: bool,
    /// Units without a place look for others of lower rank.
    preempts: bool,
    mode: Option<PartitionMode>,
    /// In every second case zones are sub-clusters.
    sub_cluster_key: &'static str,
}

/// What became of it.
pub(super) struct Ended {
    pub(super) reach: MarkCounts,
    pub(super) model: Model,
}

impl Case {
    pub(super) fn of(seed: u64) -> Self {
        let mut numbers = Numbers::new(seed);
        let (is_full, moves, meets) = (seed & FULL != 0, seed & MOVES != 0, seed & MEETS != 0);
        let (is_tight, is_large) = (seed & TIGHT != 0, seed & LARGE != 0);
        let has_faults = !numbers.chance(25);
        let gap_ms = numbers.pick(&[5, 40, 150]);
        // Turns take a while.
        let gap_ms = if is_large { 300 } else { gap_ms };
        let n_steps = 15 + numbers.below(25);
        let n_schedulers = numbers.draw(&[(2, 1), (4, 2), (3, 3), (1, 4)]);
        let mut case = Self {
            seed,
            n_schedulers: if meets || is_tight { n_schedulers.max(2) } else { n_schedulers },
            n_nodes: 2 + numbers.below(2),
            n_queues: if is_full { 0 } else { 1 + numbers.below(4) },
            delay_ms: numbers.pick(&[1, 5, 20]),
            has_faults: has_faults && !is_full,
            moves,
            meets,
            is_tight,
            is_large,
            preempts: !numbers.chance(15),
            mode: numbers.draw(&[
                (4, None),
                (2, Some(PartitionMode::Preferred)),
                (2, Some(PartitionMode::Strict)),
            ]),
            sub_cluster_key: if seed.is_multiple_of(2) { units::ZONE } else { sub_cluster::KEY },
            steps: match is_full {
                true => draw_full(gap_ms, &mut numbers),
                false => draw(n_steps, (if has_faults { 15 } else { 0 }, moves), gap_ms, &mut numbers),
            },
        };
        if case.has_faults && case.is_odd() {
            add_agent_faults(&mut case.steps, &mut Numbers::new(seed ^ 0xa6e7));
        }
        if case.has_faults && seed & EXPIRES != 0 {
            add_identity_faults(&mut case.steps, &mut Numbers::new(seed ^ 0x1eaf));
        }
        case
    }

    /// Agents die, some runs are slow to start or end at once, and some reports wait.
    fn is_odd(&self) -> bool {
        !self.moves || (self.seed >> 3).is_multiple_of(ONE_IS_ODD)
    }

    /// Runs it, or says what was wrong.
    pub(super) fn run(&self, is_traced: bool) -> Result<Ended, (String, Vec<String>)> {
        let mut model = Model::new(self, is_traced);
        let ended = model.run(self);
        match ended {
            Ok(()) => Ok(Ended { reach: model.net.reach.clone(), model }),
            Err(what) => {
                let mut trace = model.net.trace.take().unwrap_or_default();
                if is_traced {
                    trace.extend(check::waiting(&model));
                }
                Err((what, trace))
            }
        }
    }
}

/// See the module.
pub(super) struct Model {
    pub(super) net: Net,
    pub(super) store: Store,
    pub(super) dispatcher: DispatcherPart,
    pub(super) binder: BinderPart,
    pub(super) schedulers: Vec<SchedulerPart>,
    /// Where running units move.
    pub(super) rescheduler: Option<ReschedulerPart>,
    /// Where principals are judged.
    pub(super) people: Option<ModelPeople>,
    pub(super) agents: Agents,
    pub(super) naive: Naive,
    pub(super) n_submitted: u64,
    pub(super) n_nodes: u32,
    /// Nearly all units have terms about running units.
    pub(super) meets: bool,
    /// Queues are at their maximum when running units move.
    pub(super) is_tight: bool,
    /// Some units need most of a node, and room is gathered for them soon.
    pub(super) is_large: bool,
    /// The rescheduler's records.
    pub(super) movements: KeptMovements,
    /// Many plans are made by chance.
    pub(super) scatters: bool,
    /// The next node that a running unit is to move to is lost.
    pub(super) loses_target: bool,
    /// Faults are over.
    pub(super) is_calm: bool,
    /// What is measured may be of running units that are preempted later.
    pub(super) preempts: bool,
    pub(super) wrong: Option<String>,
}

impl Model {
    fn new(case: &Case, is_traced: bool) -> Self {
        let mut numbers = Numbers::new(case.seed ^ 0x5eed);
        let scheduler = |idx: usize, numbers: &mut Numbers| {
            let config = Config {
                name: name(idx),
                surplus: numbers.pick(&[0, 1, 50]),
                cache: !numbers.chance(20),
                limit_scan: !numbers.chance(20),
                held_max: numbers.pick(&[4, 40]),
                backoff_ms_max: 400,
                foreign_ms: numbers.pick(&[20, 500]),
                preemption: case.preempts,
                sub_cluster_key: case.sub_cluster_key.to_owned(),
                ..Config::default()
            };
            let budget = numbers.pick(&[1, 4, 64]);
            SchedulerPart::new(idx, config, budget)
        };
        let n_schedulers = usize::try_from(case.n_schedulers).expect("small");
        let schedulers = (0..n_schedulers).map(|idx| scheduler(idx, &mut numbers)).collect();
        let is_on = numbers.chance(30);
        let config = DispatcherConfig {
            policy: numbers.pick(&PolicyKind::ALL),
            settle_ms: 200,
            evict_retry_ms: 1_000,
            partition_debounce_ms: 20,
            reconcile_ms: 400,
            done_grace_ms: 2_000,
            n_ended_max: numbers.pick(&[1, 100]),
            compact_after_ms: if case.seed.is_multiple_of(2) { 20 } else { 600_000 },
            queues: queue::Config { head_wait_ms: numbers.pick(&[300, 60_000]), ..queue::Config::default() },
            losses: lost_nodes::Config {
                grace_ms: 500,
                brake_window_ms: 1_000,
                ..lost_nodes::Config::default()
            },
            shuffle: partition_mode::Config {
                is_on,
                window_ms: 200,
                n_windows: 1,
                calm_ms: 500,
                calm_ms_max: 1_000,
                conflicts_per_s: 1,
                high: partition_mode::ModeLimits {
                    allocated_percent: 60,
                    placed_per_s: 10,
                    conflicts_permille: 1,
                },
                ..partition_mode::Config::default()
            },
            sub_cluster_key: case.sub_cluster_key.to_owned(),
            gang_hold_after_ms: if case.is_large { GATHER_AFTER_MS } else { 60_000 },
            ..DispatcherConfig::default()
        };
        let batch_max = numbers.pick(&[1, 3, 20]);
        let settings = || movements::settings(case.sub_cluster_key, &mut Numbers::new(case.seed ^ 0x30f3));
        let rescheduler = case.moves.then(|| ReschedulerPart::new(settings()));
        Self {
            dispatcher: DispatcherPart::new(config),
            binder: BinderPart::new(batch_max, (3_000, 100), case.sub_cluster_key),
            schedulers,
            rescheduler,
            people: (case.seed & JUDGED != 0).then(|| ModelPeople::new(case.seed)),
            agents: Agents::new(STOP_AFTER_MS, case.is_odd()),
            store: Store::default(),
            naive: Naive::default(),
            n_submitted: 0,
            n_nodes: 0,
            meets: case.meets,
            is_tight: case.is_tight,
            is_large: case.is_large,
            movements: KeptMovements::default(),
            scatters: case.moves,
            loses_target: false,
            is_calm: false,
            preempts: case.preempts,
            wrong: None,
            net: Net::new(numbers, case.delay_ms, is_traced),
        }
    }

    /// A model of settings of its own, for whoever says by itself what happens when (the simulated week).
    pub(super) fn of_settings(dispatcher: DispatcherConfig, schedulers: Vec<Config>, net: Net) -> Self {
        let schedulers = schedulers.into_iter().enumerate();
        Self {
            dispatcher: DispatcherPart::new(dispatcher),
            // Up to a hundred operations in a transaction; holds and best-effort wait for a minute.
            binder: BinderPart::new(100, (60_000, 60_000), sub_cluster::KEY),
            schedulers: schedulers.map(|(idx, config)| SchedulerPart::new(idx, config, 64)).collect(),
            preempts: false,
            agents: Agents::new(20_000, false),
            net,
            ..Self::new(&Case::of(0), false)
        }
    }

    /// Begins the first life of every part.
    pub(super) fn begin_all(&mut self) {
        self.parts().into_iter().for_each(|part| self.begin(part));
    }

    /// Lets everything happen that happens up to a moment.
    pub(super) fn advance(&mut self, end: u64) -> Result<(), String> {
        let mut case = Case::of(0);
        case.steps.clear();
        while self.net.next_at().is_some_and(|at| at <= end) {
            let Some(event) = self.net.pop() else { break };
            self.on_event(event, &case);
            if let Some(wrong) = self.wrong.take() {
                return Err(wrong);
            }
        }
        self.net.now = end.max(self.net.now);
        Ok(())
    }

    /// Lets a part act on what it was just asked.
    pub(super) fn wake(&mut self, part: Part) {
        self.act(part);
    }

    fn run(&mut self, case: &Case) -> Result<(), String> {
        let mut numbers = Numbers::new(case.seed ^ 0xf00d);
        self.found(case.n_nodes, case.n_queues, &mut numbers);
        if case.moves && numbers.chance(60) {
            self.budget(&mut numbers);
        }
        for part in self.parts() {
            self.begin(part);
        }
        let mut at = self.net.now + 10 * case.delay_ms + 60;
        self.until(at, case)?;
        if let Some(mode) = case.mode {
            self.dispatcher.set_mode(ModeChoice::Fixed(mode));
        }
        for (idx, step) in case.steps.iter().enumerate() {
            at += step.after_ms;
            self.net.at(at, Event::Step(idx));
        }
        self.until(at + 1_500, case)?;
        self.calm(&mut numbers);
        if self.run_until_calm(case)? {
            return check::at_rest(self, case.has_faults);
        }
        // Where nothing ends any more, units that wait have turns again and again, later each time.
        if !case.is_large {
            self.net.reach.mark(Mark::Restless);
        }
        check::judge(self)
    }

    fn parts(&self) -> Vec<Part> {
        let schedulers = (0..self.schedulers.len()).map(Part::Scheduler);
        let rescheduler = self.rescheduler.iter().map(|_| Part::Rescheduler);
        [Part::Dispatcher, Part::Binder].into_iter().chain(schedulers).chain(rescheduler).collect()
    }

    fn until(&mut self, end: u64, case: &Case) -> Result<(), String> {
        while self.net.next_at().is_some_and(|at| at <= end) {
            self.next(case)?;
        }
        self.net.now = end.max(self.net.now);
        Ok(())
    }

    /// Faults are over: nodes come back, or are given up.
    fn calm(&mut self, numbers: &mut Numbers) {
        self.net.trace(|| "CALM".to_owned());
        self.is_calm = true;
        for node in self.agents.ids() {
            if !self.agents.is_in_contact(node) && numbers.chance(50) {
                self.back(node);
            }
        }
        if self.dispatcher.is_up() {
            self.dispatcher.resume_evictions();
        }
        if numbers.chance(70) {
            let scopes: Vec<Scope> =
                self.store.world.pauses.values().map(|pause| pause.value.scope.clone()).collect();
            scopes.into_iter().for_each(|scope| self.dispatcher.pause(scope, false, &self.net));
        }
    }

    /// Runs until nothing happens any more; false if something happens for ever.
    fn run_until_calm(&mut self, case: &Case) -> Result<bool, String> {
        let end = self.net.now + REST_MS;
        self.net.active_at = self.net.now;
        while let Some(at) = self.net.next_at() {
            // What is tried again and again may have been tried just now: it has its answer first.
            let patience_ms = if self.binder.is_idle() { QUIET_MS } else { QUIET_MS + ANSWER_MS };
            if at > self.net.active_at + patience_ms {
                return Ok(true);
            }
            if at > end {
                return Ok(false);
            }
            self.next(case)?;
        }
        Ok(true)
    }

    fn next(&mut self, case: &Case) -> Result<(), String> {
        let Some(event) = self.net.pop() else { return Ok(()) };
        self.naive.n_events += 1;
        if self.naive.n_events > N_EVENTS_MAX {
            return Err(format!("more than {N_EVENTS_MAX} events"));
        }
        self.on_event(event, case);
        match self.wrong.take() {
            Some(wrong) => Err(wrong),
            None => Ok(()),
        }
    }

    fn on_event(&mut self, event: Event, case: &Case) {
        match event {
            Event::Step(idx) => {
                self.step(case.steps[idx]);
                people::look(self);
                if !self.net.reach.has(Mark::FullQueue) && self.dispatcher.has_full_queue() {
                    self.net.reach.mark(Mark::FullQueue);
                }
                self.act(Part::Dispatcher);
            }
            Event::Begin(part, life) => {
                if self.life(part) == life {
                    self.begin(part);
                }
            }
            Event::Stand(part, life) => {
                if self.life(part) == life {
                    self.stand(part);
                }
            }
            Event::Expire(part) => self.expire(part),
            Event::List(part, life) => {
                if self.life(part) == life {
                    self.on_list(part);
                }
            }
            Event::Watch(part, life) => {
                if self.life(part) == life {
                    self.on_watch(part);
                }
            }
            Event::Txn(part, term, id, txn) => {
                let answer = self.transact(*txn);
                let way = if part == Part::Binder { 5 } else { 7 };
                self.net.send((way, 0), Event::Answer(part, term, id, answer));
            }
            Event::Answer(part, term, id, answer) => self.on_answer(part, term, id, answer),
            Event::Wake(part) => self.act(part),
            Event::Connect(scheduler, line) => {
                let is_there = match line.end() {
                    Part::Dispatcher => self.dispatcher.is_up(),
                    _ => self.binder.is_up(),
                };
                self.schedulers[scheduler].open(line, is_there, &mut self.net);
            }
            Event::Message(scheduler, line, is_down, session, message) => {
                let is_over = matches!(*message, Message::Closed);
                if self.net.is_dead(session) && !is_over {
                    return;
                }
                let to = if is_down { Part::Scheduler(scheduler) } else { line.end() };
                match to {
                    Part::Scheduler(_) => {
                        self.schedulers[scheduler].take(line, session, *message, &mut self.net);
                    }
                    Part::Binder => self.binder.take(scheduler, session, *message, &mut self.net),
                    Part::Dispatcher => self.dispatcher.take(scheduler, session, *message, &mut self.net),
                    // Its calls are events of their own.
                    Part::Rescheduler => {}
                }
                self.act(to);
            }
            Event::Evict(term, requests) => {
                self.binder.evict(term, requests, &mut self.net);
                self.act(Part::Binder);
            }
            Event::Evicted(term, units, is_done) => {
                if term == self.dispatcher.life {
                    self.dispatcher.on_evicted(units, is_done);
                    self.act(Part::Dispatcher);
                }
            }
            event @ (Event::Move(_)
            | Event::Moved(..)
            | Event::Write(..)
            | Event::Written(..)
            | Event::Movements(_)
            | Event::Plan(..)
            | Event::Refusals(..)) => movements::on_event(self, event),
            event @ (Event::Tell(..)
            | Event::Down(..)
            | Event::Up(..)
            | Event::Durable(..)
            | Event::InAgent(..)
            | Event::OnMachine(..)
            | Event::Reopen(_)) => self.on_agent_event(event),
            Event::Lose(node) => {
                let mut numbers = Numbers::new(self.net.numbers.next());
                self.lose(node, &mut numbers);
            }
            Event::Judge(node) => self.judge(node),
            Event::Back(node) => self.back(node),
            Event::ScanLeaf(node) => identities::scan_leaf(self, node),
            Event::Renewed(node) => identities::renew_leaf(self, node),
            Event::Allowed(node) => identities::allow_agent(self, node),
        }
    }

    fn on_list(&mut self, part: Part) {
        match part {
            Part::Dispatcher => self.dispatcher.on_list(&self.store, &mut self.net),
            Part::Binder => self.binder.on_list(&self.store, &mut self.net),
            Part::Scheduler(idx) => self.schedulers[idx].on_list(&self.store, &mut self.net),
            Part::Rescheduler => self.rescheduler.iter_mut().for_each(|part| part.on_list(&self.store)),
        }
        self.act(part);
    }

    fn on_watch(&mut self, part: Part) {
        match part {
            Part::Dispatcher => self.dispatcher.on_watch(&self.store, &mut self.net),
            Part::Binder => self.binder.on_watch(&self.store, &mut self.net),
            Part::Scheduler(idx) => self.schedulers[idx].on_watch(&self.store, &mut self.net),
            Part::Rescheduler => self.rescheduler.iter_mut().for_each(|part| part.on_watch(&self.store)),
        }
        self.act(part);
    }

    fn on_answer(&mut self, part: Part, term: u64, id: u64, answer: Answer) {
        match part {
            Part::Dispatcher if term == self.dispatcher.life => {
                self.dispatcher.on_answer(id, answer, &mut self.net);
            }
            Part::Dispatcher | Part::Scheduler(_) | Part::Rescheduler => {}
            Part::Binder => self.binder.on_answer(term, id, answer, &mut self.net),
        }
        self.act(part);
    }

    fn act(&mut self, part: Part) {
        match part {
            Part::Dispatcher => self.dispatcher.act(&mut self.net),
            Part::Binder => self.binder.act(&mut self.net),
            Part::Scheduler(idx) => self.schedulers[idx].act(&mut self.net),
            Part::Rescheduler => {
                if let Some(part) = &mut self.rescheduler {
                    part.act(&mut self.net);
                }
            }
        }
    }
}
