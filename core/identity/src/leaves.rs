//! How long a leaf counts.
//!
//! Times are milliseconds since 1970 on the clock of whoever judges, which is state's. A leaf is valid from 48 hours before its issue, so that a
//! clock that is behind refuses nobody, and for 24 hours after it. Once expired it still serves for 30 days to do what its holder does already; so does one
//! that is valid only later, because it was issued while the clock was ahead.
//!
//! Certificates say times in whole seconds. The leaves of one name are therefore issued at least a second apart ([`issue_time`]): a name that is
//! issued anew ends every leaf before by its time of issue.

use std::time::Duration;

/// How long before its issue a leaf is valid, milliseconds: clocks that are two days behind accept it.
pub const BACKDATED_MS: u64 = 48 * 3_600_000;
/// How long a leaf is valid after its issue unless configured otherwise, milliseconds.
pub const LIFETIME_MS: u64 = 24 * 3_600_000;
/// Shortest lifetime that may be configured, milliseconds: a leaf is renewed at a third of it.
pub const LIFETIME_MS_MIN: u64 = 30_000;
/// Longest lifetime that may be configured, milliseconds.
pub const LIFETIME_MS_MAX: u64 = 30 * 24 * 3_600_000;
/// How long an expired leaf serves to renew itself and to go on with what its holder does, milliseconds.
pub const EXPIRED_GRACE_MS: u64 = 30 * 24 * 3_600_000;

/// The path of the call by which a leaf is renewed.
pub const RENEW_IDENTITY: &str = "/godel.v1.IdentityService/RenewIdentity";
/// What an expired leaf may still do: renew itself, keep a session, and keep a lease together with the work for which it is held. A leader that
/// may renew its lease but not write would keep others from leading. `AcquireLease` is not among them: nobody begins to lead with an expired leaf.
const EXPIRED_MAY_CALL: [&str; 16] = [
    RENEW_IDENTITY,
    // A leader goes on to judge who calls it.
    "/godel.v1.IdentityService/GetCallers",
    "/godel.v1.NodeService/Session",
    "/godel.v1.MemberService/RenewLease",
    "/godel.v1.MemberService/ReleaseLease",
    // Writes are fenced by the epoch of the lease.
    "/godel.v1.StateService/Txn",
    "/godel.v1.StateService/Transact",
    // What leaders follow, and how they find each other.
    "/godel.v1.StateService/Watch",
    "/godel.v1.StateService/ListRecords",
    "/godel.v1.StateService/GetStoreStatus",
    "/godel.v1.MemberService/ListMembers",
    "/godel.v1.MemberService/WatchLeader",
    // What they ask of each other.
    "/godel.v1.DispatchService/Attach",
    "/godel.v1.BindService/Decide",
    "/godel.v1.BindService/EvictRunningUnits",
    "/godel.v1.BindService/MoveRunningUnits",
];

/// The times of a leaf, milliseconds since 1970, as it says them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafTimes {
    /// From when it is valid; whole seconds.
    pub not_before_ms: u64,
    /// From when it has expired; whole seconds.
    pub not_after_ms: u64,
}

impl LeafTimes {
    /// The times of a leaf that is issued at `issued_ms` for `lifetime_ms`, both in whole seconds, rounded down.
    pub fn of_issue(issued_ms: u64, lifetime_ms: u64) -> Self {
        let issued_ms = whole_second(issued_ms);
        Self {
            not_before_ms: issued_ms.saturating_sub(BACKDATED_MS),
            not_after_ms: issued_ms.saturating_add(whole_second(lifetime_ms)),
        }
    }

    /// When it was issued.
    pub fn issued_ms(self) -> u64 {
        self.not_before_ms.saturating_add(BACKDATED_MS)
    }

    /// When its holder renews it: after a third of its lifetime, earlier or later by up to a tenth of that as `jitter` says, which is random
    /// and from 0 to 1. So those who joined at once do not renew at once.
    pub fn renewal_ms(self, jitter: f64) -> u64 {
        let third = self.not_after_ms.saturating_sub(self.issued_ms()) / 3;
        let fifth = Duration::from_millis(third / 5).mul_f64(jitter.clamp(0.0, 1.0));
        let spread = u64::try_from(fifth.as_millis()).unwrap_or(u64::MAX);
        self.issued_ms().saturating_add(third - third / 10).saturating_add(spread)
    }
}

/// What is recorded of the name that a leaf carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameRecord {
    /// Leaves issued before are refused, milliseconds since 1970.
    pub refused_before_ms: u64,
    /// All leaves are refused.
    pub is_revoked: bool,
}

/// How a leaf counts at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafStanding {
    /// It counts.
    Valid,
    /// It serves to renew itself, and to go on with what its holder does.
    Expired,
    /// It does not count.
    Refused(LeafRefusal),
}

/// Why a leaf does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeafRefusal {
    /// An administrator has revoked its name.
    #[error(
        "its name is revoked; an administrator may allow the name again, and the process joins with a new join token"
    )]
    Revoked,
    /// A newer leaf was issued for the name, as to a machine that was set up anew.
    #[error("its name was issued anew since; end the older process, or join with another name")]
    Superseded,
    /// It expired so long ago that it does not even renew itself.
    #[error("it expired more than 30 days ago; join with a new join token")]
    LongExpired,
}

/// How a leaf counts at `now_ms`, with what is recorded of its name.
///
/// Nothing recorded is no refusal: state's own leaf is made before there are records, and a restored store knows fewer names.
pub fn judge_leaf(times: LeafTimes, record: Option<NameRecord>, now_ms: u64) -> LeafStanding {
    let record = record.unwrap_or_default();
    if record.is_revoked {
        return LeafStanding::Refused(LeafRefusal::Revoked);
    }
    if times.issued_ms() < record.refused_before_ms {
        return LeafStanding::Refused(LeafRefusal::Superseded);
    }
    if (times.not_before_ms..times.not_after_ms).contains(&now_ms) {
        return LeafStanding::Valid;
    }
    // One that is valid only later was issued while the clock was ahead: its holder gets another one by a renewal.
    if now_ms < times.not_after_ms.saturating_add(EXPIRED_GRACE_MS) {
        return LeafStanding::Expired;
    }
    LeafStanding::Refused(LeafRefusal::LongExpired)
}

/// Whether an expired leaf suffices for a call of `path`, if a valid one does.
pub fn may_call_expired(path: &str) -> bool {
    EXPIRED_MAY_CALL.contains(&path)
}

/// When the next leaf of a name counts as issued: `now_ms` in whole seconds, but at least a second after the last one of the name, so that
/// [`NameRecord::refused_before_ms`] tells them apart.
pub fn issue_time(now_ms: u64, last_issued_ms: Option<u64>) -> u64 {
    let next_ms = last_issued_ms.map_or(0, |last| whole_second(last).saturating_add(1_000));
    whole_second(now_ms).max(next_ms)
}

fn whole_second(ms: u64) -> u64 {
    ms - ms % 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 3_600_000;
    /// In 2026.
    const NOW: u64 = 1_790_000_000_000;

    fn leaf() -> LeafTimes {
        LeafTimes::of_issue(NOW, LIFETIME_MS)
    }

    #[test]
    fn a_leaf_is_valid_for_two_days_before_its_issue_and_one_after() {
        let (valid, expired) = (LeafStanding::Valid, LeafStanding::Expired);
        for (now_ms, standing) in [
            (0, expired),
            (NOW - 2 * DAY - 1, expired),
            (NOW - 2 * DAY, valid),
            (NOW, valid),
            (NOW + DAY - 1, valid),
            (NOW + DAY, expired),
            (NOW + 31 * DAY - 1, expired),
            (NOW + 31 * DAY, LeafStanding::Refused(LeafRefusal::LongExpired)),
            (u64::MAX, LeafStanding::Refused(LeafRefusal::LongExpired)),
        ] {
            assert_eq!(judge_leaf(leaf(), None, now_ms), standing, "{now_ms}");
        }
        assert_eq!(leaf().issued_ms(), NOW);
    }

    #[test]
    fn a_clock_that_is_stepped_by_a_day_refuses_nobody() {
        for now_ms in [NOW - DAY, NOW + DAY - 1] {
            assert_eq!(judge_leaf(leaf(), None, now_ms), LeafStanding::Valid);
        }
        // By more than a month: whoever has the leaf renews it.
        assert_eq!(judge_leaf(leaf(), None, NOW - 40 * DAY), LeafStanding::Expired);
    }

    #[test]
    fn revoked_and_older_leaves_are_refused() {
        let record = |refused_before_ms, is_revoked| Some(NameRecord { refused_before_ms, is_revoked });
        for (record, standing) in [
            (record(0, false), LeafStanding::Valid),
            (record(NOW, false), LeafStanding::Valid),
            (record(NOW + 1, false), LeafStanding::Refused(LeafRefusal::Superseded)),
            (record(0, true), LeafStanding::Refused(LeafRefusal::Revoked)),
            (record(NOW + 1, true), LeafStanding::Refused(LeafRefusal::Revoked)),
        ] {
            assert_eq!(judge_leaf(leaf(), record, NOW), standing);
        }
        // Also once they have expired: who is revoked keeps no session.
        let revoked = judge_leaf(leaf(), record(0, true), NOW + 2 * DAY);
        assert_eq!(revoked, LeafStanding::Refused(LeafRefusal::Revoked));
    }

    #[test]
    fn a_name_that_is_issued_anew_within_a_second_ends_its_older_leaf() {
        let older = LeafTimes::of_issue(issue_time(NOW + 1, None), LIFETIME_MS);
        let newer_ms = issue_time(NOW + 2, Some(older.issued_ms()));
        let newer = LeafTimes::of_issue(newer_ms, LIFETIME_MS);
        let record = Some(NameRecord { refused_before_ms: newer_ms, is_revoked: false });
        assert_eq!(judge_leaf(newer, record, NOW + 3), LeafStanding::Valid);
        assert_eq!(judge_leaf(older, record, NOW + 3), LeafStanding::Refused(LeafRefusal::Superseded));
        assert_eq!(issue_time(NOW + 999, None), NOW);
        assert_eq!(issue_time(NOW + 5_999, Some(NOW)), NOW + 5_000);
        assert_eq!(
            issue_time(NOW - DAY, Some(NOW)),
            NOW + 1_000,
            "a clock that goes back issues no older leaf"
        );
    }

    #[test]
    fn a_leaf_is_renewed_at_a_third_with_jitter() {
        let hour = 3_600_000;
        assert_eq!(leaf().renewal_ms(0.0), NOW + 8 * hour - 48 * 60_000);
        assert_eq!(leaf().renewal_ms(0.5), NOW + 8 * hour);
        assert_eq!(leaf().renewal_ms(1.0), NOW + 8 * hour + 48 * 60_000);
        assert_eq!(leaf().renewal_ms(7.0), leaf().renewal_ms(1.0));
        assert_eq!(LeafTimes::of_issue(NOW, 60_000).renewal_ms(0.5), NOW + 20_000);
        let empty = LeafTimes { not_before_ms: u64::MAX, not_after_ms: 0 };
        assert_eq!(empty.renewal_ms(0.5), u64::MAX);
    }
}
