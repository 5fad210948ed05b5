//! What gives way on a node without memory.

use crate::RunKey;

/// A best-effort running unit, and its memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Which running unit.
    pub key: RunKey,
    /// Which life of it.
    pub incarnation: u32,
    /// What it uses.
    pub used: i64,
    /// What it asked for.
    pub asked: i64,
}

/// Best-effort running units that end so that `short` bytes become free: those first that are furthest above what they asked for.
pub fn to_squeeze(short: i64, runs: &[MemoryUse]) -> impl Iterator<Item = MemoryUse> {
    let mut by_excess: Vec<MemoryUse> = runs.iter().filter(|run| run.used > 0).copied().collect();
    by_excess.sort_by_key(|run| (run.asked - run.used, run.key, run.incarnation));
    let mut freed = 0;
    by_excess.into_iter().take_while(move |run| {
        let needs_more = freed < short;
        freed += run.used;
        needs_more
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_furthest_above_its_request_ends_first() {
        let run =
            |unit, used, asked| MemoryUse { key: RunKey { unit, ordinal: 0 }, incarnation: 0, used, asked };
        let runs = [run(1, 50, 100), run(2, 80, 10), run(3, 90, 50), run(4, 0, 0), run(5, 80, 10)];
        for (short, expected) in [
            (0, vec![]),
            (-5, vec![]),
            (1, vec![2]),
            (80, vec![2]),
            (81, vec![2, 5]),
            (200, vec![2, 5, 3]),
            (9_999, vec![2, 5, 3, 1]),
        ] {
            let squeezed: Vec<u64> = to_squeeze(short, &runs).map(|run| run.key.unit).collect();
            assert_eq!(squeezed, expected, "{short}");
        }
    }
}
