//! Smoothed use of a node's guaranteed running units: what is kept from best-effort ones.
//!
//! Of the last ten minutes the 95th percentile, or the moving average with a half-life of one minute, whichever is higher:
//! the percentile remembers peaks, the average notices at once a use that was not there before. Samples come with
//! heartbeats; of those within one sixtieth of the window the highest counts, so a node costs half a KiB however often it is heard.
//!
//! A use *covers* a running unit once the unit was there in so many samples that the percentile must show it. Until then
//! its request counts instead: the smoothed use comes with the time up to which bindings are covered.

use godel_base::time::Millis;

/// Resources that are measured, and that best-effort running units may have of what others do not use: milli-cores and
/// MiB. Everything else is counted by requests.
pub type Measured = [u32; 2];

/// Parts of the window. Of sixty, three are above the 95th percentile.
const N_PARTS: usize = 60;
/// One part in so many is above the percentile.
const ABOVE: usize = 20;

/// How use is smoothed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Smoothing {
    /// Of the percentile, milliseconds.
    pub window_ms: u64,
    /// Of the moving average, milliseconds.
    pub half_life_ms: u64,
}

impl Default for Smoothing {
    fn default() -> Self {
        Self { window_ms: 600_000, half_life_ms: 60_000 }
    }
}

/// What a node's guaranteed running units use, smoothed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Smoothed {
    /// Milli-cores and MiB.
    pub used: Measured,
    /// What was bound up to then is in it, commit time in Unix milliseconds.
    pub as_of_ms: i64,
}

#[derive(Clone, Copy, Debug)]
struct UsagePart {
    /// Number of the part since the clock began.
    number: u64,
    highest: Measured,
    /// What was bound up to then was there at the last sample.
    as_of_ms: i64,
}

/// Samples of one node. Bounded: `N_PARTS` parts.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Oldest first.
    parts: Vec<UsagePart>,
    /// In 65,536ths: small uses must not stay where they are by rounding.
    average: [u64; 2],
    last: Option<Millis>,
}

impl Samples {
    /// Goes on where a predecessor was: its smoothed use is where the average begins.
    pub fn resume(used: Measured) -> Self {
        Self { average: used.map(|amount| u64::from(amount) << 16), ..Self::default() }
    }

    /// A measured use. What was bound up to `as_of_ms` was there while it was measured. `O(N_PARTS)`.
    pub fn add(&mut self, used: Measured, as_of_ms: i64, now: Millis, smoothing: Smoothing) -> Smoothed {
        let part_ms = (smoothing.window_ms / N_PARTS as u64).max(1);
        let number = now.0 / part_ms;
        let first = (number + 1).saturating_sub(N_PARTS as u64);
        let n_old = self.parts.iter().take_while(|part| part.number < first).count();
        self.parts.drain(..n_old);
        match self.parts.last_mut() {
            Some(part) if part.number >= number => {
                part.highest = std::array::from_fn(|id| part.highest[id].max(used[id]));
                part.as_of_ms = part.as_of_ms.max(as_of_ms);
            }
            Some(_) | None => {
                if self.parts.capacity() == 0 {
                    self.parts.reserve_exact(N_PARTS);
                }
                self.parts.push(UsagePart { number, highest: used, as_of_ms });
            }
        }
        let kept = match self.last {
            Some(last) => remainder(now.since(last), smoothing.half_life_ms),
            // Nothing is known of the time since the predecessor's last sample.
            None if self.average == [0; 2] => 0,
            None => WHOLE / 2,
        };
        self.last = Some(now);
        for (average, used) in self.average.iter_mut().zip(used) {
            *average = (*average * kept + (u64::from(used) << 16) * (WHOLE - kept)) >> 16;
        }
        self.smoothed()
    }

    fn smoothed(&self) -> Smoothed {
        let n_above = self.parts.len() / ABOVE;
        let used = std::array::from_fn(|id| {
            let mut highest = [0; N_PARTS];
            let of = &mut highest[..self.parts.len()];
            for (slot, part) in of.iter_mut().zip(&self.parts) {
                *slot = part.highest[id];
            }
            let at = of.len().saturating_sub(1 + n_above);
            let percentile = if of.is_empty() { 0 } else { *of.select_nth_unstable(at).1 };
            percentile.max(u32::try_from((self.average[id] + 0xFFFF) >> 16).unwrap_or(u32::MAX))
        });
        // As many parts as are above the percentile, and one more: it is at least the least of these.
        let as_of_ms = self.parts.iter().rev().nth(n_above).map_or(i64::MIN, |part| part.as_of_ms);
        Smoothed { used, as_of_ms }
    }
}

/// One, in the moving average's arithmetic.
const WHOLE: u64 = 1 << 16;

/// 2^(-n/16) of [`WHOLE`], n from 0 on.
const SIXTEENTHS: [u64; 17] = [
    65_536, 62_757, 60_097, 57_549, 55_109, 52_772, 50_535, 48_393, 46_341, 44_376, 42_495, 40_693, 38_968,
    37_316, 35_734, 34_219, 32_768,
];

/// What is left of [`WHOLE`] after a time, halved each half-life. Between sixteenths of a half-life it is a line: exact to
/// one part in 4,000.
fn remainder(elapsed_ms: u64, half_life_ms: u64) -> u64 {
    let half_life_ms = half_life_ms.max(1);
    let halvings = elapsed_ms / half_life_ms;
    if halvings >= 16 {
        return 0;
    }
    let rest = (elapsed_ms % half_life_ms).saturating_mul(16);
    let (sixteenth, within) = (rest / half_life_ms, rest % half_life_ms);
    let at = usize::try_from(sixteenth).unwrap_or(0).min(15);
    let (from, to) = (SIXTEENTHS[at], SIXTEENTHS[at + 1]);
    (from - (from - to) * within / half_life_ms) >> halvings
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Ten minutes of samples each ten seconds.
    const MINUTE: u64 = 60_000;

    fn feed(samples: &mut Samples, from_ms: u64, n: u64, used: u32) -> Smoothed {
        let mut last = Smoothed::default();
        for at in (0..n).map(|idx| from_ms + idx * 10_000) {
            let as_of_ms = i64::try_from(at).unwrap();
            last = samples.add([used, used / 2], as_of_ms, Millis(at), Smoothing::default());
        }
        last
    }

    #[test]
    fn the_first_sample_counts_at_once() {
        let smoothed = feed(&mut Samples::default(), MINUTE, 1, 4_000);
        assert_eq!(smoothed, Smoothed { used: [4_000, 2_000], as_of_ms: 60_000 });
    }

    #[test]
    fn a_peak_is_remembered_and_a_blip_is_not() {
        let mut samples = Samples::default();
        feed(&mut samples, 0, 60, 1_000);
        // Three samples of sixty are above the 95th percentile: the average alone sees them.
        let blip = feed(&mut samples, 10 * MINUTE, 3, 2_000).used[0];
        assert!((1_200..1_400).contains(&blip), "{blip}");
        let peak = feed(&mut samples, 10 * MINUTE + 30_000, 1, 2_000).used[0];
        assert_eq!(peak, 2_000, "the fourth is the percentile");
        let after = feed(&mut samples, 10 * MINUTE + 40_000, 56, 500).used[0];
        assert_eq!(after, 2_000, "remembered while it is in the window");
        let gone = feed(&mut samples, 20 * MINUTE, 4, 500).used[0];
        assert!((500..=501).contains(&gone), "{gone}");
    }

    #[test]
    fn the_average_halves_its_distance_each_half_life() {
        let mut samples = Samples::resume([1_000, 0]);
        // What was before is half of the first average: nothing is known of the time between.
        let first = samples.add([0, 0], 0, Millis(0), Smoothing::default()).used[0];
        assert_eq!(first, 500);
        let one = samples.add([0, 0], 0, Millis(MINUTE), Smoothing::default()).used[0];
        assert_eq!(one, 250);
        let later = samples.add([0, 0], 0, Millis(3 * MINUTE), Smoothing::default()).used[0];
        assert!((62..=63).contains(&later), "{later}");
    }

    #[test]
    fn what_was_bound_is_covered_once_the_percentile_must_show_it() {
        let mut samples = Samples::default();
        feed(&mut samples, 0, 60, 1_000);
        let bound_ms = 10 * 60_000 + 5_000;
        let mut covered = Vec::new();
        for n in 0..6 {
            let smoothed = feed(&mut samples, 10 * MINUTE + n * 10_000, 1, 3_000);
            covered.push(smoothed.as_of_ms >= bound_ms);
            if smoothed.as_of_ms >= bound_ms {
                assert_eq!(smoothed.used[0], 3_000);
            }
        }
        assert_eq!(covered, [false, false, false, false, true, true]);
    }

    #[test]
    fn of_samples_close_together_the_highest_counts() {
        let mut samples = Samples::default();
        let mut last = Smoothed::default();
        for at in 0..1_200 {
            let used = if at == 1_180 { 2_000 } else { 1_000 };
            last = samples.add([used, 0], 0, Millis(at * 50), Smoothing::default());
        }
        // A minute of them are six parts: none is above the percentile.
        assert_eq!((last.used[0], samples.parts.len()), (2_000, 6));
    }

    #[test]
    fn the_average_begins_where_the_first_sample_is() {
        let slow = Smoothing { half_life_ms: 60 * MINUTE, ..Smoothing::default() };
        let mut samples = Samples::default();
        samples.add([4_000, 0], 0, Millis(0), slow);
        let add = |at: u64| samples.add([0, 0], 0, Millis(at * 10_000), slow).used[0];
        // From twenty parts on the percentile leaves the peak out; the average has lost a tenth of a half-life by then.
        let used = (1..36).map(add).last().expect("some");
        assert!((3_700..3_800).contains(&used), "{used}");
    }

    proptest! {
        /// Between the least and the highest sample of the window; and at least what all of the newest parts show.
        #[test]
        fn smoothed_use_is_bounded_by_the_samples(
            steps in prop::collection::vec((0u32..100_000, 1u64..40_000), 1..200)
        ) {
            let mut samples = Samples::default();
            let (mut now, mut seen) = (0, Vec::new());
            for (idx, (used, wait)) in steps.iter().enumerate() {
                now += wait;
                seen.push((now, *used, i64::try_from(idx).unwrap()));
                let smoothed = samples.add([*used, *used], i64::try_from(idx).unwrap(), Millis(now), Smoothing::default());
                prop_assert_eq!(smoothed.used[0], smoothed.used[1]);
                let highest = seen.iter().map(|(_, used, _)| *used).max().unwrap();
                prop_assert!(smoothed.used[0] <= highest);
                // Had everything since `as_of` been at least so much, it would be shown.
                let least = seen.iter().filter(|(_, _, mark)| *mark >= smoothed.as_of_ms).map(|(_, used, _)| *used).min();
                prop_assert!(least.is_none_or(|least| smoothed.used[0] >= least));
                prop_assert!(samples.parts.len() <= N_PARTS);
            }
        }

        #[test]
        fn remainders_fall_and_compose(a in 0u64..400_000, b in 0u64..400_000) {
            let (of_a, of_sum) = (remainder(a, MINUTE), remainder(a + b, MINUTE));
            prop_assert!(of_sum <= of_a);
            let composed = (of_a * remainder(b, MINUTE)) >> 16;
            prop_assert!(composed.abs_diff(of_sum) <= 32);
        }
    }
}
