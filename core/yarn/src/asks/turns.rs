//! Calls of `allocate` in their order.

/// What a call of `allocate` is, by the response that its master has seen last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateTurn {
    /// The next one.
    Next,
    /// The last one again: its answer was lost, and is given again.
    Repeat,
    /// Neither (InvalidApplicationMasterRequestException).
    Wrong {
        /// The response that it should have seen.
        expected: i32,
    },
}

/// Judges the response that a master has seen last, against the last one that was given.
pub fn turn(seen: i32, last: i32) -> AllocateTurn {
    if next_response(seen) == last {
        AllocateTurn::Repeat
    } else if seen == last {
        AllocateTurn::Next
    } else {
        AllocateTurn::Wrong { expected: last }
    }
}

/// The number of the response after one; after the largest comes 0.
pub fn next_response(last: i32) -> i32 {
    last.wrapping_add(1) & i32::MAX
}
