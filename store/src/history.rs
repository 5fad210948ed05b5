//! Which generations stay for the watch history.
//!
//! Decided when a generation is complete, and again when the disk is full. That is enough: history gets longer
//! between two decisions, never shorter, and without commits it takes no more room however old it grows.

use std::time::Duration;

use godel_base::ids::Revision;

/// What the log of a generation holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The log begins behind this revision.
    pub base: Revision,
    /// Bytes of its chunks.
    pub bytes: u64,
    /// Time of its first commit, Unix milliseconds; `None` before that.
    pub first_commit_ms: Option<i64>,
}

impl Extent {
    /// A log without commits.
    pub fn empty(base: Revision) -> Self {
        Self { base, bytes: 0, first_commit_ms: None }
    }
}

/// History that must stay: one of the two is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryMin {
    /// Bytes of log.
    pub bytes: u64,
    /// Time since the oldest commit.
    pub age: Duration,
}

/// The generations that stay, of all of them (oldest first): the fewest that hold the least history, but at
/// least the last `needed`.
pub fn kept(generations: &[Extent], needed: usize, min: HistoryMin, now_ms: i64) -> &[Extent] {
    let newest_first = (0..=generations.len().saturating_sub(needed)).rev();
    let mut suffixes = newest_first.map(|first| &generations[first..]);
    suffixes.find(|suffix| is_enough(suffix, min, now_ms)).unwrap_or(generations)
}

fn is_enough(generations: &[Extent], min: HistoryMin, now_ms: i64) -> bool {
    bytes(generations) >= min.bytes || age(generations, now_ms).is_some_and(|age| age >= min.age)
}

/// Bytes of the log in these generations.
pub fn bytes(generations: &[Extent]) -> u64 {
    generations.iter().map(|generation| generation.bytes).sum()
}

/// Time of the oldest commit in these generations.
pub fn first_commit_ms(generations: &[Extent]) -> Option<i64> {
    generations.iter().find_map(|generation| generation.first_commit_ms)
}

/// How long ago the oldest commit in these generations was made; `None` if there is none, or if the clock has
/// gone back behind it.
fn age(generations: &[Extent], now_ms: i64) -> Option<Duration> {
    let age_ms = now_ms.saturating_sub(first_commit_ms(generations)?);
    u64::try_from(age_ms).ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes and first commit time of each generation.
    type Of<'a> = &'a [(u64, Option<i64>)];

    /// Generations of these bytes and first commit times, with bases 0, 10, 20 …
    fn generations(of: Of<'_>) -> Vec<Extent> {
        let bases = (0..).step_by(10).map(Revision);
        let extent = |(base, (bytes, first_commit_ms)): (_, &(u64, Option<i64>))| Extent {
            base,
            bytes: *bytes,
            first_commit_ms: *first_commit_ms,
        };
        bases.zip(of).map(extent).collect()
    }

    #[test]
    fn the_fewest_generations_stay_that_hold_the_history() {
        let (min, now) = (HistoryMin { bytes: 100, age: Duration::from_millis(1_000) }, 5_000);
        let (young, old) = (Some(4_500), Some(4_000));
        // (what is there, how many are needed, how many stay, why)
        let table: [(Of<'_>, usize, usize, &str); 14] = [
            (&[], 2, 0, "nothing is there"),
            (&[(0, None)], 2, 1, "the first is empty"),
            (&[(500, old)], 2, 1, "one is all there is"),
            (&[(500, old), (500, old)], 2, 2, "the previous one always stays"),
            (&[(60, young), (60, young), (60, young)], 2, 2, "two hold enough bytes"),
            (&[(60, young), (60, young), (40, young)], 2, 2, "exactly enough bytes"),
            (&[(60, young), (60, young), (39, young)], 2, 3, "a byte too few"),
            (&[(9, young), (9, young), (9, young), (9, young)], 2, 4, "all are too few and too young"),
            (&[(9, Some(3_000)), (9, old), (9, young), (0, None)], 2, 3, "three reach back far enough"),
            (&[(9, Some(3_000)), (9, old), (9, Some(4_001)), (0, None)], 2, 3, "a millisecond too young"),
            (&[(9, Some(3_000)), (9, Some(3_500)), (0, None), (9, young)], 2, 3, "an empty one has no age"),
            (&[(9, Some(3_000)), (9, Some(9_000)), (9, Some(9_001))], 2, 3, "the clock has gone back"),
            (&[(500, old), (500, old), (500, old), (0, None)], 3, 3, "three are needed"),
            (&[(500, old), (500, old), (500, old), (500, old)], 9, 4, "all are needed"),
        ];
        for (of, needed, expected, why) in table {
            assert_eq!(kept(&generations(of), needed, min, now).len(), expected, "{why}");
        }
        let none = HistoryMin { bytes: 0, age: Duration::MAX };
        assert_eq!(kept(&generations(&[(9, young); 5]), 2, none, now).len(), 2, "no history is asked for");
    }

    proptest! {
        #[test]
        fn what_stays_is_a_suffix_that_is_enough_and_no_larger(
            steps in prop::collection::vec((0..200_u64, prop::option::of(0..500_i64)), 0..12),
            needed in 1..4_usize,
            bytes_min in 0..600_u64,
            age_ms in 0..1_500_u64,
            late in -500..3_000_i64,
        ) {
            let mut time = 0;
            let of: Vec<_> = steps
                .iter()
                .map(|(bytes, step)| (*bytes, step.map(|step| { time += step; time })))
                .collect();
            let all = generations(&of);
            let min = HistoryMin { bytes: bytes_min, age: Duration::from_millis(age_ms) };
            let now = time + late;
            let kept = kept(&all, needed, min, now);
            prop_assert!(all.ends_with(kept));
            prop_assert!(kept.len() >= needed.min(all.len()));
            // An oracle of its own: sums and ages over the lists as given.
            let enough = |from: usize| {
                let held: u64 = of[from..].iter().map(|(bytes, _)| bytes).sum();
                let oldest = of[from..].iter().filter_map(|(_, time)| *time).next();
                held >= bytes_min || oldest.is_some_and(|oldest| now - oldest >= i64::try_from(age_ms).unwrap())
            };
            let first = all.len() - kept.len();
            prop_assert!(first == 0 || enough(first), "too little stays");
            prop_assert!(kept.len() <= needed || !enough(first + 1), "more stays than must");
            // Time alone and smaller demands never make more stay.
            let smaller = HistoryMin { bytes: bytes_min / 2, age: min.age / 2 };
            prop_assert!(super::kept(&all, needed, min, now + 100).len() <= kept.len());
            prop_assert!(super::kept(&all, needed, smaller, now).len() <= kept.len());
        }
    }
}
