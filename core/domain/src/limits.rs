//! How large units and what they ask for may be. Admission holds them, and state, which takes no record beyond them.

use godel_base::{duration::YEAR_MS, quantity};

/// Most running units of one unit.
pub const REPLICAS_MAX: u32 = 100_000;
/// Largest first binding.
pub const MIN_MEMBER_MAX: u32 = 10_000;
/// Largest encoded unit.
pub const SPEC_BYTES_MAX: usize = 64 * 1024;
/// Largest amount of one resource: 2^50, so that sums over 8,192 of the largest stay in an `i64`.
pub const AMOUNT_MAX: i64 = 1 << 50;
/// Longest retention after the end: one year.
pub const TTL_MS_MAX: u64 = YEAR_MS;
/// Most in-place restarts.
pub const RESTARTS_MAX: u32 = 1_000;
/// Longest polite end: one hour.
pub const STOP_GRACE_MS_MAX: u32 = 3_600 * 1_000;
/// Longest notice of an eviction: half of the time for which the binder holds room by default.
pub const EVICTION_NOTICE_MS_MAX: u32 = 300 * 1_000;
/// Shortest time between two checkpoints: one second.
pub const CHECKPOINT_EVERY_MS_MIN: u64 = 1_000;
/// Longest time between two checkpoints: 30 days.
pub const CHECKPOINT_EVERY_MS_MAX: u64 = 30 * 24 * 3_600 * 1_000;
/// Longest time that a running unit waits for its command: one day.
pub const AWAIT_COMMAND_MS_MAX: u64 = 24 * 3_600 * 1_000;
/// Longest time that running units are left alone: 30 days.
pub const MIN_RUN_MS_MAX: u64 = 30 * 24 * 3_600 * 1_000;
/// Longest wait before it is said that a unit finds no place: 30 days.
pub const SCHEDULING_TIMEOUT_MS_MAX: u64 = 30 * 24 * 3_600 * 1_000;
/// Longest active deadline: one year.
pub const ACTIVE_DEADLINE_MS_MAX: u64 = YEAR_MS;
/// Highest ordinal that a unit may ever reach whose rows are all kept.
pub const ORDINAL_MAX: u32 = 1_000_000;
/// Highest ordinal of a unit whose ended replicas are compacted: as many as an identifier of a container of YARN has room for.
pub const COMPACTED_ORDINAL_MAX: u32 = 1 << 30;

/// Of an amount that is not in 0 to [`AMOUNT_MAX`].
pub fn amount_out_of_range(name: &str, amount: i64) -> String {
    let shown = quantity::show(name, amount);
    if amount < 0 {
        return format!("{shown} is negative");
    }
    format!("{shown} is more than {}", quantity::show(name, AMOUNT_MAX))
}
