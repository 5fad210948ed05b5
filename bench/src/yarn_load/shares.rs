//! What each queue had while every queue waited: memory over time, in windows throughout which none had all it asked for.

use std::time::Duration;

/// Queues of a replay.
pub(super) const N_QUEUES: usize = 3;
/// Their names, and what each of them is to have, per cent.
pub(super) const QUEUES: [(&str, u32); N_QUEUES] = [("half", 50), ("third", 30), ("fifth", 20)];

/// Follows containers of queues, window by window. Times never go back.
#[derive(Clone, Debug)]
pub(super) struct ShareMeter {
    window: Duration,
    at: Duration,
    /// End of the window that is open.
    end: Duration,
    /// What containers have now.
    mib: [u64; N_QUEUES],
    /// Containers that are asked for and have no place.
    waiting: [u64; N_QUEUES],
    /// MiB·s in the window so far.
    used: [f64; N_QUEUES],
    /// Every queue waited in the window so far.
    all_wait: bool,
    shares: QueueShares,
}

/// Sums over the windows that count.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct QueueShares {
    /// Windows in which every queue waited throughout.
    pub(super) n_windows: u64,
    /// Windows in all.
    pub(super) n_all: u64,
    /// MiB·s of each queue in those that count.
    pub(super) mib_s: [f64; N_QUEUES],
}

impl ShareMeter {
    /// From time 0 on.
    pub(super) fn new(window: Duration) -> Self {
        Self {
            window,
            at: Duration::ZERO,
            end: window,
            mib: [0; N_QUEUES],
            waiting: [0; N_QUEUES],
            used: [0.0; N_QUEUES],
            all_wait: false,
            shares: QueueShares::default(),
        }
    }

    /// So many containers of a queue waited for a place before, and so many do now.
    pub(super) fn waits(&mut self, now: Duration, queue: usize, before: u64, after: u64) {
        self.advance(now);
        self.waiting[queue] = (self.waiting[queue] + after).saturating_sub(before);
        self.all_wait &= self.waiting[queue] > 0;
    }

    /// A container has a place.
    pub(super) fn placed(&mut self, now: Duration, queue: usize, mib: u64) {
        self.advance(now);
        self.mib[queue] += mib;
    }

    /// A container has ended.
    pub(super) fn ended(&mut self, now: Duration, queue: usize, mib: u64) {
        self.advance(now);
        self.mib[queue] = self.mib[queue].saturating_sub(mib);
    }

    /// What was counted until the last window that is over.
    pub(super) fn shares(&self) -> QueueShares {
        self.shares
    }

    /// Containers that wait, by queue.
    pub(super) fn waiting(&self) -> [u64; N_QUEUES] {
        self.waiting
    }

    fn advance(&mut self, now: Duration) {
        while now >= self.end {
            self.add_up(self.end);
            self.shares.n_all += 1;
            if self.all_wait {
                self.shares.n_windows += 1;
                for (sum, used) in self.shares.mib_s.iter_mut().zip(self.used) {
                    *sum += used;
                }
            }
            self.used = [0.0; N_QUEUES];
            self.all_wait = self.waiting.iter().all(|n| *n > 0);
            self.end += self.window;
        }
        self.add_up(now);
    }

    fn add_up(&mut self, until: Duration) {
        let seconds = until.saturating_sub(self.at).as_secs_f64();
        for (used, mib) in self.used.iter_mut().zip(self.mib) {
            *used += crate::report::wide(mib) * seconds;
        }
        self.at = self.at.max(until);
    }
}

impl QueueShares {
    /// What each queue had, per cent of all.
    pub(super) fn percent(&self) -> [f64; N_QUEUES] {
        let all: f64 = self.mib_s.iter().sum();
        self.mib_s.map(|mib_s| if all > 0.0 { 100.0 * mib_s / all } else { 0.0 })
    }

    /// The most by which a queue had more or less than it is to have, per cent of what it is to have.
    pub(super) fn deviation_percent(&self) -> f64 {
        let of_queue = |(had, (_, share)): (f64, (&str, u32))| 100.0 * (had / f64::from(share) - 1.0).abs();
        self.percent().into_iter().zip(QUEUES).map(of_queue).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn only_windows_in_which_every_queue_waits_count() {
        let mut meter = ShareMeter::new(ms(1_000));
        for (queue, n) in [(0, 5), (1, 3), (2, 2)] {
            meter.waits(ms(0), queue, 0, n + 1);
            (0..n).for_each(|_| meter.placed(ms(500), queue, 100));
            meter.waits(ms(500), queue, n + 1, 1);
        }
        // The first window began before anybody waited; the second one counts.
        meter.waits(ms(2_000), 0, 1, 2);
        assert_eq!((meter.shares().n_windows, meter.shares().n_all), (1, 2));
        let percent = [50.0, 30.0, 20.0];
        assert_eq!((meter.shares().mib_s, meter.shares().percent()), ([500.0, 300.0, 200.0], percent));
        assert!(meter.shares().deviation_percent() < 1e-9);
        // One more for the last queue, which waits no longer: the third does not count, and neither does the fourth.
        meter.placed(ms(2_500), 2, 100);
        meter.waits(ms(2_500), 2, 1, 0);
        assert_eq!(meter.waiting(), [2, 1, 0]);
        meter.waits(ms(3_500), 2, 0, 1);
        meter.ended(ms(4_000), 0, 100);
        assert_eq!((meter.shares().n_windows, meter.shares().n_all), (1, 4));
        // The fifth counts: four, three and three.
        meter.waits(ms(5_000), 0, 2, 0);
        let shares = meter.shares();
        assert_eq!((shares.n_windows, shares.mib_s), (2, [900.0, 600.0, 500.0]));
        assert!((shares.deviation_percent() - 25.0).abs() < 1e-9, "{}", shares.deviation_percent());
        assert!(QueueShares::default().deviation_percent() > 99.0, "nothing was counted");
    }
}
