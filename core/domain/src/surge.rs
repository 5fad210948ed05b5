//! Replicas that start before those stop that they replace.
//!
//! A unit that lets replacements start first gets another ordinal when one of its replicas is to move. Both are wanted until
//! the new one runs; then the old one is wanted no more, and its ordinal never comes back.

/// Replicas of one unit that may start before others stop, at most: each stands in the unit's record.
pub const N_SURGES_MAX: u32 = 100;

/// A replica that is to run before another one of its unit stops, which it replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surge {
    /// The new one.
    pub ordinal: u32,
    /// The one that it replaces.
    pub replaces: u32,
    /// Name of the movement that asked for it.
    pub movement: String,
    /// It is given up if it does not run by then, Unix milliseconds.
    pub expires_ms: i64,
}

/// Returns ordinals without those that are to replace others: what a unit wants while nothing is replaced. Half-open ranges.
pub fn settled(ranges: impl Iterator<Item = (u32, u32)>, surges: &[Surge]) -> Vec<(u32, u32)> {
    let mut settled = Vec::new();
    for (start, end) in ranges {
        let mut holes: Vec<u32> = surges.iter().map(|surge| surge.ordinal).collect();
        holes.retain(|ordinal| (start..end).contains(ordinal));
        holes.sort_unstable();
        let mut from = start;
        for hole in holes {
            if from < hole {
                settled.push((from, hole));
            }
            from = hole + 1;
        }
        if from < end {
            settled.push((from, end));
        }
    }
    settled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_replaces_others_is_left_out() {
        let surge = |ordinal| Surge { ordinal, replaces: 0, movement: String::new(), expires_ms: 0 };
        let left = |surges: &[u32]| {
            let surges: Vec<Surge> = surges.iter().map(|ordinal| surge(*ordinal)).collect();
            settled([(0, 3), (5, 7)].into_iter(), &surges)
        };
        assert_eq!(left(&[]), [(0, 3), (5, 7)]);
        assert_eq!(left(&[6, 5]), [(0, 3)]);
        assert_eq!(left(&[1, 6]), [(0, 1), (2, 3), (5, 6)]);
    }
}
