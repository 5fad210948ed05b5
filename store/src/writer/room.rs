//! What the disk has room for.

/// With so much room beside the reserve, and for all that the next start may copy, nobody need look at files.
pub(super) const PLENTY_BYTES: u64 = 4 << 30;
/// sled extends its file by as much at a time.
const LEASES_BYTES_MIN: u64 = 2 << 20;

/// What the disk has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Room {
    /// Nothing.
    None,
    /// Grants of leases: without them nobody could lead once a leader is gone.
    Leases,
    /// A snapshot as well.
    Snapshot,
    /// Everything.
    Commits,
}

impl Room {
    /// With so much `free` beside the copy of the next start, and `bytes` to be written.
    pub(super) fn of(free: u64, reserve: u64, bytes: u64) -> Self {
        if free >= reserve.saturating_add(2 * bytes) {
            Self::Commits
        } else if free >= reserve / 2 {
            Self::Snapshot
        } else if free >= reserve / 4 && free > LEASES_BYTES_MIN {
            Self::Leases
        } else {
            Self::None
        }
    }
}
