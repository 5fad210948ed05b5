//! Units that run again after their end: the same record, whose ended replicas return as their next incarnations.
//!
//! What was in the way of the unit is taken back: its cancellation, its suspension, the reason for which the dispatcher
//! ended it, and the count of restarts of the whole. Until the ended replicas are pending again the unit is being
//! restarted, as after a failure that restarts all of it, so no replica is ever there in two incarnations.

use godel_domain::{lifecycle::Counts, unit::UnitRecord};

/// Which replicas of an ended unit run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryScope {
    /// Those that have not succeeded.
    Failed,
    /// Every one.
    All,
}

/// Why a unit does not run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryRefusal {
    /// So many running units have yet to leave their nodes.
    Leaving(u32),
    /// Every replica has succeeded, so nothing would run.
    AllSucceeded,
}

/// The record of a unit that has ended, once it is retried at `now_ms` (Unix milliseconds).
///
/// # Errors
/// See [`RetryRefusal`].
pub fn retry(
    record: &UnitRecord,
    counts: &Counts,
    scope: RetryScope,
    now_ms: i64,
) -> Result<UnitRecord, RetryRefusal> {
    if counts.live > 0 {
        return Err(RetryRefusal::Leaving(counts.live));
    }
    let keeps_succeeded = scope == RetryScope::Failed;
    if keeps_succeeded && counts.replicas > 0 && counts.succeeded >= counts.replicas {
        return Err(RetryRefusal::AllSucceeded);
    }
    let returning = counts.failed + counts.stopped + if keeps_succeeded { 0 } else { counts.succeeded };
    let mut retried = record.clone();
    let status = &mut retried.status;
    (status.cancelled, status.suspended, status.ended) = (false, false, None);
    status.whole_restarts = 0;
    // Without anything that has ended there is nothing to wait for.
    status.restarting = returning > 0;
    status.keeps_succeeded = keeps_succeeded && returning > 0;
    status.retried_ms = now_ms;
    Ok(retried)
}

#[cfg(test)]
mod tests {
    use godel_domain::unit::UnitEnd;
    use godel_testkit::BuildUnit as _;

    use super::*;

    fn counts(succeeded: u32, failed: u32, stopped: u32, live: u32) -> Counts {
        Counts { replicas: 4, succeeded, failed, stopped, live, ..Counts::default() }
    }

    #[test]
    fn what_kept_a_unit_from_running_is_taken_back() {
        let unit = godel_testkit::unit("u").cancelled(true).suspended(true).whole_restarts(3);
        let unit = unit.ended(Some(UnitEnd::Deadline));
        let again = retry(&unit, &counts(1, 2, 1, 0), RetryScope::Failed, 7).unwrap();
        assert!(again.status.restarting && again.status.keeps_succeeded && !again.is_wanted());
        assert!(!again.status.cancelled && !again.status.suspended && again.status.ended.is_none());
        assert_eq!((again.status.whole_restarts, again.status.retried_ms), (0, 7));
        let all = retry(&unit, &counts(4, 0, 0, 0), RetryScope::All, 7).unwrap();
        assert!(all.status.restarting && !all.status.keeps_succeeded);
        let never = retry(&unit, &counts(0, 0, 0, 0), RetryScope::Failed, 7).unwrap();
        assert!(never.is_wanted(), "nothing has ended that would have to come back first");
    }

    #[test]
    fn a_unit_that_nothing_would_come_of_is_refused() {
        let unit = godel_testkit::unit("u").cancelled(true);
        let refused = |counts: &Counts, scope| retry(&unit, counts, scope, 7).unwrap_err();
        assert_eq!(refused(&counts(3, 0, 0, 1), RetryScope::All), RetryRefusal::Leaving(1));
        assert_eq!(refused(&counts(4, 0, 0, 0), RetryScope::Failed), RetryRefusal::AllSucceeded);
    }
}
