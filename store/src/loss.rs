//! What of a store cannot be recovered.

use godel_base::ids::Revision;

use crate::log::Claimed;

/// Acknowledged commits that cannot be recovered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// First revision that cannot be recovered; 0 where that is not known.
    pub from: u64,
    /// Last revision that was acknowledged, as far as the watermark knows.
    pub to: Option<u64>,
}

impl Loss {
    /// What is lost if the state can be recovered up to revision `reached` only.
    pub(crate) fn after(reached: Revision, claimed: &Claimed) -> Self {
        Self { from: reached.0 + 1, to: claimed.claim().map(|claim| claim.last.0) }
    }

    /// Commits that are missing, if that is known.
    pub fn n_commits(&self) -> Option<u64> {
        (self.from > 0).then_some(self.to?)?.checked_sub(self.from - 1)
    }
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.from, self.n_commits()) {
            (0, _) => f.write_str("It is not known which commits are missing."),
            (from, Some(0)) => write!(f, "Every commit up to revision {} can be recovered.", from - 1),
            (from, Some(n)) => {
                write!(f, "Commits are missing from revision {from} on: at least {n} acknowledged ones.")
            }
            (from, None) => write!(
                f,
                "Commits are missing from revision {from} on; their number is not known because the \
                 watermark is missing."
            ),
        }
    }
}
