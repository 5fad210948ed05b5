//! File descriptors: as many as the system allows, and some of them kept for what is not a connection.

use std::{os::fd::RawFd, sync::Once};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Kept for files of the store, metrics and connections to other services.
const RESERVE: u64 = 32;

static RAISED: Once = Once::new();

/// Raises the soft limit of this process to the hard one, once, and says so.
pub(super) fn raise() {
    RAISED.call_once(|| {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        if current == maximum {
            tracing::info!(limit = current.unwrap_or(u64::MAX), "file descriptors");
            return;
        }
        let wanted = Rlimit { current: maximum, maximum };
        match setrlimit(Resource::Nofile, wanted) {
            Ok(()) => tracing::info!(
                from = current.unwrap_or(u64::MAX),
                limit = maximum.unwrap_or(u64::MAX),
                "raised the limit of file descriptors"
            ),
            Err(error) => {
                tracing::warn!(%error, limit = current.unwrap_or(u64::MAX), "cannot raise the limit of file descriptors");
            }
        }
    });
}

/// How near the end a new descriptor is. Systems give the lowest free number, so that the number says how many are
/// in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Supply {
    /// There are enough.
    Enough,
    /// It is one of the reserve: others have to go.
    Short,
    /// Half of the reserve is gone: not even this one can be kept.
    Out,
}

/// Judges a descriptor that was just given.
pub(super) fn supply(descriptor: RawFd) -> Supply {
    judge(u64::try_from(descriptor).unwrap_or(0), getrlimit(Resource::Nofile).current)
}

/// Whether a descriptor that was just given is one of the reserve.
pub(crate) fn is_short(descriptor: RawFd) -> bool {
    supply(descriptor) != Supply::Enough
}

fn judge(descriptor: u64, limit: Option<u64>) -> Supply {
    let Some(limit) = limit else { return Supply::Enough };
    let reserve = RESERVE.min(limit / 4);
    if descriptor >= limit - reserve / 2 {
        Supply::Out
    } else if descriptor >= limit - reserve {
        Supply::Short
    } else {
        Supply::Enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_kept() {
        let at = |descriptor| judge(descriptor, Some(1_024));
        assert_eq!(
            (at(991), at(992), at(1_007), at(1_008)),
            (Supply::Enough, Supply::Short, Supply::Short, Supply::Out)
        );
        assert_eq!(
            (judge(47, Some(64)), judge(48, Some(64)), judge(56, Some(64))),
            (Supply::Enough, Supply::Short, Supply::Out)
        );
        assert_eq!(judge(1 << 40, None), Supply::Enough);
    }
}
