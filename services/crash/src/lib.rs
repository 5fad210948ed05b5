//! Named points at which a test makes the process die, to prove that nothing depends on going on.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Every point of every service.
pub const POINTS: &[&str] = &[
    "store.before-append",
    "store.after-append",
    "store.after-sync",
    "store.before-answer",
    "store.generation-begin",
    "store.snapshot-chunk",
    "store.generation-complete",
    "store.drop-generation",
    "store.migration-begun",
    "store.migration-copied",
    "store.migration-moved",
    "state.lease-grant",
    "state.lease-renew",
    "state.session-status",
    "state.before-answer",
    "dispatcher.before-commit",
    "dispatcher.after-commit",
    "dispatcher.lease-renew",
    "dispatcher.assign",
    "scheduler.before-decide",
    "scheduler.after-outcome",
    "scheduler.lease-renew",
    "binder.before-commit",
    "binder.after-commit",
    "binder.lease-renew",
    "yarn.before-commit",
    "yarn.after-commit",
    "yarn.after-submit",
    "yarn.after-grow",
    "yarn.after-launch",
    "yarn.lease-renew",
    "rescheduler.before-commit",
    "rescheduler.after-commit",
    "rescheduler.before-move",
    "rescheduler.after-move",
    "rescheduler.lease-renew",
];

/// Points that are armed in this process; usually none.
#[derive(Clone, Debug, Default)]
pub struct CrashPoints(Option<Arc<BTreeMap<&'static str, AtomicU64>>>);

/// Text that arms nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CrashPointsError {
    /// No such point.
    #[error("unknown crash point `{name}`; known are {}", POINTS.join(", "))]
    Unknown {
        /// As given.
        name: String,
    },
    /// The part behind the colon is no count.
    #[error("crash point `{name}`: `{count}` is not a count of at least 1")]
    Count {
        /// As given.
        name: String,
        /// As given.
        count: String,
    },
}

impl CrashPoints {
    /// From `name[:n][,name[:n]]…`: the process dies at the n-th hit, by default the first. Empty arms nothing.
    ///
    /// # Errors
    /// An unknown name or a count that is none.
    pub fn parse(text: &str) -> Result<Self, CrashPointsError> {
        let mut armed = BTreeMap::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, count) = part.split_once(':').unwrap_or((part, "1"));
            let point = POINTS
                .iter()
                .find(|point| **point == name)
                .ok_or_else(|| CrashPointsError::Unknown { name: name.to_owned() })?;
            let n_hits =
                count.parse::<u64>().ok().filter(|n_hits| *n_hits > 0).ok_or_else(|| {
                    CrashPointsError::Count { name: name.to_owned(), count: count.to_owned() }
                })?;
            armed.insert(*point, AtomicU64::new(n_hits));
        }
        Ok(Self((!armed.is_empty()).then(|| Arc::new(armed))))
    }

    /// Ends the process, as if it were killed, if this is the hit that `name` is armed for.
    pub fn hit(&self, name: &str) {
        debug_assert!(POINTS.contains(&name), "unknown crash point {name}");
        let Some(left) = self.0.as_ref().and_then(|armed| armed.get(name)) else { return };
        if left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)) == Ok(1) {
            tracing::error!(point = name, "crash point reached");
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_arms_known_points_only() {
        assert!(CrashPoints::parse("").unwrap().0.is_none());
        let points = CrashPoints::parse("store.after-sync:3, store.before-append").unwrap();
        points.hit("store.after-sync");
        points.hit("store.after-append");
        assert!(points.0.is_some());
        let unknown = CrashPoints::parse("store.never").unwrap_err().to_string();
        assert!(unknown.contains("`store.never`") && unknown.contains("store.after-sync"), "{unknown}");
        for bad in ["store.after-sync:0", "store.after-sync:x", "store.after-sync:"] {
            assert!(matches!(CrashPoints::parse(bad), Err(CrashPointsError::Count { .. })), "{bad}");
        }
    }
}
