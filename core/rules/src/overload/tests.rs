//! A control plane in modelled time: one thing after another, and then a while that nothing shortens.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use godel_base::seed::mix;

use super::*;

const SECOND: u64 = 1_000_000;

/// How much comes, and how much is taken in hand; microseconds.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Units per second that the control plane can place.
    capacity: u64,
    /// What a unit takes apart from its turn.
    pipeline_us: u64,
    /// Calls under way or waiting for their hint at most; without a free client nothing is offered.
    clients: usize,
    limits: OverloadLimits,
    seed: u64,
}

const USUAL: Case =
    Case { capacity: 5_000, pipeline_us: 3_000, clients: 500, limits: limits(64, 64), seed: 1 };
/// Few in hand in an overload.
const FEW: Case = Case { limits: limits(256, 4), ..USUAL };

const fn limits(usual: u32, overloaded: u32) -> OverloadLimits {
    OverloadLimits { usual, overloaded }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The next unit is offered by somebody new.
    Offer,
    /// A call is made, for the first time or again.
    Call {
        client: usize,
    },
    Bound {
        client: usize,
        began: u64,
    },
}

struct Sim {
    case: Case,
    control: Overload,
    now: u64,
    n_drawn: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    offered_per_s: u64,
    /// When the one that takes one unit after another is free.
    free_at: u64,
    in_hand: u32,
    counted: CallCounts,
    n_waiting: usize,
    n_clients: usize,
    /// Units bound: when their call began, how long it took.
    bound: Vec<(u64, u64)>,
    /// When calls were refused.
    refused: Vec<u64>,
    /// Clients that submit again a moment after a unit of theirs is bound, and how many were.
    again: BTreeMap<usize, u32>,
    /// Clients above this one try no more.
    n_stay: usize,
}

impl Sim {
    fn new(case: Case) -> Self {
        Self {
            case,
            control: Overload::new(case.limits),
            now: 0,
            n_drawn: case.seed << 32,
            events: BinaryHeap::new(),
            offered_per_s: 0,
            free_at: 0,
            in_hand: 0,
            counted: CallCounts::default(),
            n_waiting: 0,
            n_clients: 0,
            bound: Vec::new(),
            refused: Vec::new(),
            again: BTreeMap::new(),
            n_stay: usize::MAX,
        }
    }

    /// Evenly below `n`.
    fn draw(&mut self, n: u64) -> u64 {
        self.n_drawn += 1;
        mix(self.n_drawn) % n.max(1)
    }

    fn push(&mut self, at: u64, event: Event) {
        self.n_drawn += 1;
        self.events.push(Reverse((at, self.n_drawn, event)));
    }

    /// Clients that submit one unit after another, from now on.
    fn come(&mut self, clients: std::ops::RangeInclusive<usize>) {
        for client in clients {
            self.again.insert(client, 0);
            self.n_waiting += 1;
            self.push(self.now, Event::Call { client });
        }
    }

    /// So many units per second are offered for so long.
    fn run(&mut self, offered_per_s: u64, span: u64) {
        let until = self.now + span;
        if self.offered_per_s == 0 && offered_per_s > 0 {
            self.push(self.now, Event::Offer);
        }
        self.offered_per_s = offered_per_s;
        while let Some(Reverse((at, ..))) = self.events.peek()
            && *at <= until
        {
            let Some(Reverse((at, _, event))) = self.events.pop() else { return };
            self.now = at;
            self.on(event);
            self.control.step(std::mem::take(&mut self.counted), self.in_hand, micros(at));
        }
        self.now = until;
    }

    fn on(&mut self, event: Event) {
        match event {
            Event::Offer => {
                let pause = 2 * SECOND / self.offered_per_s.max(1);
                let next = self.now + self.draw(pause.max(1)) + 1;
                self.push(next, Event::Offer);
                // Without a free client it is not even tried.
                if self.n_waiting + (self.in_hand as usize) < self.case.clients {
                    self.n_clients += 1;
                    self.call(self.n_clients);
                }
            }
            Event::Call { client } => {
                self.n_waiting -= 1;
                if client <= self.n_stay {
                    self.call(client);
                }
            }
            Event::Bound { client, began } => {
                self.in_hand -= 1;
                self.bound.push((began, self.now - began));
                if let Some(n_bound) = self.again.get_mut(&client) {
                    *n_bound += 1;
                    self.n_waiting += 1;
                    let pause = self.draw(self.case.pipeline_us);
                    self.push(self.now + pause, Event::Call { client });
                }
            }
        }
    }

    fn call(&mut self, client: usize) {
        let service = SECOND / self.case.capacity;
        if self.in_hand >= self.control.limit() {
            self.counted.refused += 1;
            self.refused.push(self.now);
            // Saying no costs something, too.
            self.free_at = self.free_at.max(self.now) + service / 10;
            self.n_waiting += 1;
            let draw = self.draw(u64::MAX);
            let pause = spread(self.control.pause(), draw);
            self.push(self.now + u64::try_from(pause.as_micros()).unwrap(), Event::Call { client });
            return;
        }
        self.in_hand += 1;
        self.counted.admitted += 1;
        self.free_at = self.free_at.max(self.now) + service / 2 + self.draw(service + 1);
        let pipeline = self.case.pipeline_us;
        let slow = if self.draw(25) == 0 { pipeline } else { 0 };
        let jitter = self.draw(pipeline / 2);
        let at = self.free_at + pipeline + jitter + slow;
        self.push(at, Event::Bound { client, began: self.now });
    }

    /// Of units whose calls began after `from`, microseconds.
    fn p99(&self, from: u64) -> u64 {
        let mut delays: Vec<u64> =
            self.bound.iter().filter(|(began, _)| *began >= from).map(|(_, delay)| *delay).collect();
        assert!(delays.len() >= 100, "{} units are too few", delays.len());
        delays.sort_unstable();
        delays[delays.len() * 99 / 100]
    }

    fn n_bound(&self, from: u64) -> u64 {
        self.bound.iter().filter(|(began, _)| *began >= from).count() as u64
    }

    fn n_refused(&self, from: u64) -> usize {
        self.refused.iter().filter(|at| **at >= from).count()
    }
}

fn micros(us: u64) -> Duration {
    Duration::from_micros(us)
}

#[test]
fn what_is_admitted_takes_no_longer_than_all_in_hand() {
    let mut sim = Sim::new(USUAL);
    sim.run(10 * USUAL.capacity, 12 * SECOND);
    let from = 2 * SECOND;
    // Its turn, and what nothing shortens; jitter and refusals beside that.
    let most = u64::from(USUAL.limits.usual) * SECOND / USUAL.capacity + USUAL.pipeline_us;
    assert!(sim.p99(from) <= 2 * most, "{} of {most}", sim.p99(from));
    assert!(sim.n_bound(from) * 10 >= 10 * USUAL.capacity * 7, "{}", sim.n_bound(from));
}

#[test]
fn after_an_overload_everyone_is_admitted_again() {
    let mut sim = Sim::new(USUAL);
    sim.run(10 * USUAL.capacity, 6 * SECOND);
    assert!(sim.n_refused(0) > 0);
    sim.run(USUAL.capacity / 2, 20 * SECOND);
    // The longest hint, and what came back with it.
    assert_eq!(sim.n_refused(sim.now - 5 * SECOND), 0);
    assert_eq!(sim.n_waiting, 0, "nobody who tried again was left out");
    assert!(sim.control.pause() <= Duration::from_millis(2));
}

#[test]
fn refusing_takes_no_more_than_admitting_however_many_try() {
    for clients in [50, 5_000] {
        let mut sim = Sim::new(Case { clients, ..USUAL });
        // Only those who come back: the first calls of others cannot be helped.
        sim.run(10 * USUAL.capacity, SECOND / 2);
        sim.run(USUAL.capacity, 8 * SECOND);
        let from = 4 * SECOND;
        let (refused, bound) = (sim.n_refused(from) as u64, sim.n_bound(from));
        assert!(refused <= 3 * bound, "{clients} clients: {refused} refused, {bound} bound");
        assert!(bound * 10 >= 4 * USUAL.capacity * 6, "{clients} clients: {bound} bound");
    }
}

#[test]
fn whoever_comes_back_gets_in() {
    let mut sim = Sim::new(USUAL);
    sim.come(1..=300);
    sim.run(0, 10 * SECOND);
    let n_bound: u32 = sim.again.values().sum();
    assert!(u64::from(n_bound) * 10 >= 10 * USUAL.capacity * 6, "{n_bound}");
    let (least, mean) = (sim.again.values().min().unwrap(), n_bound / 300);
    assert!(*least >= mean / 3, "{least} of the unluckiest, {mean} on average");
}

#[test]
fn admitted_calls_stay_fast_in_an_overload() {
    for seed in 1..=20 {
        let mut sim = Sim::new(Case { seed, ..FEW });
        sim.run(100, 10 * SECOND);
        let alone = sim.p99(0);
        assert!(!sim.control.is_on() && sim.n_refused(0) == 0);
        sim.run(10 * FEW.capacity, 20 * SECOND);
        let from = 15 * SECOND;
        assert!(sim.p99(from) * 2 <= alone * 3, "seed {seed}: {} against {alone}", sim.p99(from));
        let (refused, bound) = (sim.n_refused(from) as u64, sim.n_bound(from));
        assert!(refused <= 3 * bound, "seed {seed}: {refused} refused, {bound} bound");
    }
}

#[test]
fn an_overload_lasts_until_all_who_call_can_be_in_hand() {
    let mut sim = Sim::new(FEW);
    sim.come(1..=250);
    sim.run(0, 5 * SECOND);
    assert_eq!((sim.control.limit(), sim.n_refused(0)), (256, 0));
    let alone = sim.n_bound(0);
    sim.come(251..=500);
    sim.run(0, 10 * SECOND);
    assert_eq!((sim.control.is_on(), sim.control.limit()), (true, 4));
    // Those who are left would be too many for the low limit, but not for the high one.
    let from = sim.now;
    sim.n_stay = 250;
    sim.run(0, 15 * SECOND);
    assert_eq!((sim.control.limit(), sim.n_refused(from + 10 * SECOND)), (256, 0));
    let again = sim.n_bound(from + 10 * SECOND);
    assert!(again * 10 >= alone * 9, "{again} of {alone} in five seconds");
}

#[test]
fn an_overload_lasts_while_most_calls_are_refused() {
    let mut control = Overload::new(limits(256, 8));
    for (tick, refused, is_on) in [(1, 100, true), (2, 100, true), (3, 21, true), (4, 20, false)] {
        control.step(CallCounts { admitted: 10, refused }, 8, TICK * tick);
        assert_eq!(control.is_on(), is_on, "{refused} refused, 10 admitted");
    }
}

#[test]
fn an_overload_lowers_calls_in_hand_to_one_at_least() {
    for (limits, expected) in [(limits(4, 8), (4, 4)), (limits(4, 2), (4, 2)), (limits(0, 0), (1, 1))] {
        let mut control = Overload::new(limits);
        let usual = control.limit();
        assert!(control.step(CallCounts { admitted: 1, refused: 1 }, usual, TICK));
        assert_eq!((usual, control.limit()), expected, "{limits:?}");
    }
}

#[test]
fn hints_are_spread_over_as_much_as_they_are() {
    let hint = Duration::from_millis(100);
    let drawn: Vec<Duration> = (0..1_000).map(|seed| spread(hint, seed)).collect();
    assert!(drawn.iter().all(|one| *one >= hint / 2 && *one <= hint * 3 / 2));
    assert!(drawn.iter().any(|one| *one < hint * 6 / 10) && drawn.iter().any(|one| *one > hint * 14 / 10));
}
