//! The clocks of the shell: `core` gets `now` as an argument, services read it here.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use godel_base::time::Millis;
use tokio::time::Instant;

/// Reads the time.
pub trait Clock: Send + Sync + 'static {
    /// Monotonic milliseconds since some fixed moment of this process.
    fn now(&self) -> Millis;
    /// Unix milliseconds. They never go back and never jump: a time-out that has begun takes as long as it says, whatever happens to the
    /// clock of the machine.
    fn wall_ms(&self) -> i64;
}

/// A clock that can be handed around.
pub type SharedClock = Arc<dyn Clock>;

/// The clock of a process gains or loses at most one millisecond in so many to be as the clock of its machine.
const SLEW: u64 = 10;
/// So much time counts for that between two readings, milliseconds: a jump after a long pause is no reason to follow it at once.
const SLEWED_MS: u64 = 10_000;
/// A difference beyond this is told, milliseconds: time servers keep machines well within it.
const TOLD_MS: u64 = 5_000;

/// The machine's clocks. The monotonic part follows `tokio::time`, so that tests can pause it. The wall clock is the machine's at the start; from
/// then on it runs with the monotonic one, and nears the machine's clock slowly where that is another one.
#[derive(Clone, Debug)]
pub struct SystemClock {
    start: Instant,
    wall: Arc<Mutex<WallClock>>,
}

impl SystemClock {
    /// Starts at 0.
    pub fn new() -> Self {
        Self { start: Instant::now(), wall: Arc::new(Mutex::new(WallClock::starting_at(machine_ms()))) }
    }

    /// As a [`SharedClock`].
    pub fn shared() -> SharedClock {
        Arc::new(Self::new())
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Millis {
        Millis(u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn wall_ms(&self) -> i64 {
        let mut wall = self.wall.lock().unwrap_or_else(PoisonError::into_inner);
        let wall_ms = wall.read(self.now(), machine_ms());
        match wall.take_turn() {
            Some(ClockTurn::Off { by_ms }) => tracing::warn!(
                by_s = by_ms / 1_000,
                "the clock of this machine has jumped: time-outs go on as they began, and the time of this process nears it slowly"
            ),
            Some(ClockTurn::Right) => tracing::info!("the time of this process is that of its machine again"),
            None => {}
        }
        wall_ms
    }
}

/// Milliseconds since the machine was started, suspended times included (`CLOCK_BOOTTIME`): nobody can set that clock.
pub fn boot_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    seconds.unwrap_or(0).saturating_mul(1_000) + nanos.unwrap_or(0) / 1_000_000
}

/// Unix milliseconds, as the machine has them.
fn machine_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The wall clock of a process.
#[derive(Clone, Debug)]
struct WallClock {
    /// What it showed last.
    shown_ms: i64,
    /// When that was.
    read_at: Millis,
    /// What is left of the last readings: thousandths of a step that were too short to slew by.
    rest: u64,
    /// Whether it was told that the machine's clock is another one.
    is_off: bool,
    turn: Option<ClockTurn>,
}

/// What the machine's clock has turned to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClockTurn {
    /// Ahead by so much, or behind where that is negative.
    Off { by_ms: i64 },
    /// As the process has it.
    Right,
}

impl WallClock {
    fn starting_at(machine_ms: i64) -> Self {
        Self { shown_ms: machine_ms, read_at: Millis(0), rest: 0, is_off: false, turn: None }
    }

    /// Returns what it shows now, the machine's clock showing `machine_ms`.
    fn read(&mut self, now: Millis, machine_ms: i64) -> i64 {
        let elapsed = now.0.saturating_sub(self.read_at.0);
        self.read_at = self.read_at.max(now);
        let expected = self.shown_ms.saturating_add(i64::try_from(elapsed).unwrap_or(i64::MAX));
        let off = machine_ms.saturating_sub(expected);
        let room = self.rest.saturating_add(elapsed.min(SLEWED_MS));
        let step = i64::try_from(off.unsigned_abs().min(room / SLEW)).unwrap_or(i64::MAX);
        // What was not needed is not saved for a jump.
        self.rest = room % SLEW;
        self.shown_ms = expected.saturating_add(if off < 0 { -step } else { step });
        if !self.is_off && off.unsigned_abs() > TOLD_MS {
            (self.is_off, self.turn) = (true, Some(ClockTurn::Off { by_ms: off }));
        } else if self.is_off && off.unsigned_abs() < TOLD_MS / 5 {
            (self.is_off, self.turn) = (false, Some(ClockTurn::Right));
        }
        self.shown_ms
    }

    /// Takes what is to be told since the last reading.
    fn take_turn(&mut self) -> Option<ClockTurn> {
        self.turn.take()
    }
}

/// A clock that moves only when told to; both of its faces show the same number.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    ms: Arc<AtomicU64>,
}

impl ManualClock {
    /// Starts at `ms`.
    pub fn new(ms: u64) -> Self {
        Self { ms: Arc::new(AtomicU64::new(ms)) }
    }

    /// Moves it forward.
    pub fn advance(&self, ms: u64) {
        self.ms.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Millis {
        Millis(self.ms.load(Ordering::SeqCst))
    }

    fn wall_ms(&self) -> i64 {
        i64::try_from(self.ms.load(Ordering::SeqCst)).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_when_told() {
        let clock = ManualClock::new(5);
        clock.clone().advance(7);
        assert_eq!((clock.now(), clock.wall_ms()), (Millis(12), 12));
    }

    /// Reads every 250 ms for so many seconds, the machine's clock being off by `off_ms`.
    fn run(clock: &mut WallClock, seconds: u64, off_ms: i64) -> Vec<ClockTurn> {
        let mut turns = Vec::new();
        for _ in 0..seconds * 4 {
            let now = Millis(clock.read_at.0 + 250);
            let before = clock.shown_ms;
            let shown = clock.read(now, i64::try_from(now.0).unwrap() + off_ms);
            assert!((225..=275).contains(&(shown - before)), "{}", shown - before);
            turns.extend(clock.take_turn());
        }
        turns
    }

    #[test]
    fn a_jump_of_the_machines_clock_moves_no_time_out() {
        for jump_ms in [3_600_000, -3_600_000] {
            let mut clock = WallClock::starting_at(0);
            assert_eq!((run(&mut clock, 60, 0), clock.shown_ms), (vec![], 60_000));
            assert_eq!(run(&mut clock, 15, jump_ms), [ClockTurn::Off { by_ms: jump_ms }]);
            assert_eq!((clock.shown_ms - 75_000).abs(), 1_500, "a tenth of the time");
            assert_eq!(run(&mut clock, 60, 0), [ClockTurn::Right]);
            assert_eq!(clock.shown_ms, 135_000);
        }
    }

    #[test]
    fn a_clock_that_stays_another_one_is_adopted_slowly() {
        let mut clock = WallClock::starting_at(0);
        let turns = run(&mut clock, 700, 60_000);
        assert_eq!(
            (turns, clock.shown_ms),
            (vec![ClockTurn::Off { by_ms: 60_000 }, ClockTurn::Right], 760_000)
        );
        assert_eq!(run(&mut clock, 10, 60_900), [], "what time servers do is told to nobody");
        assert_eq!(clock.shown_ms, 770_900);
    }

    #[test]
    fn readings_that_are_close_together_slew_too() {
        let mut clock = WallClock::starting_at(0);
        for ms in 1..=1_000u64 {
            clock.read(Millis(ms), i64::try_from(ms).unwrap() + 50);
        }
        assert_eq!(clock.shown_ms, 1_050);
    }

    #[test]
    fn the_system_clock_never_goes_back() {
        let clock = SystemClock::new();
        let first = clock.now();
        assert!(clock.now() >= first && clock.wall_ms() > 1_600_000_000_000);
    }
}
