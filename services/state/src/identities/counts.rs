//! Counts identities by standing.

use godel_identity::leaves::{LeafRefusal, LeafStanding};
use godel_proto::v1;

use super::writer::IdentityLedger;

impl IdentityLedger {
    /// Counts identities by the standing of their last leaf. Takes time in proportion to their number.
    pub(crate) fn count_standings(&self) -> v1::IdentityCounts {
        let now_ms = self.now_ms();
        self.read(|book| count(book.identities().map(|record| record.standing(now_ms))))
    }
}

fn count(standings: impl Iterator<Item = LeafStanding>) -> v1::IdentityCounts {
    let mut counts = v1::IdentityCounts::default();
    for standing in standings {
        let counter = match standing {
            LeafStanding::Valid => &mut counts.valid,
            LeafStanding::Expired => &mut counts.expired,
            LeafStanding::Refused(LeafRefusal::Revoked) => &mut counts.revoked,
            LeafStanding::Refused(LeafRefusal::LongExpired | LeafRefusal::Superseded) => &mut counts.gone,
        };
        *counter += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_identity_counts_once() {
        let refused = LeafStanding::Refused;
        let standings = [
            LeafStanding::Valid,
            LeafStanding::Valid,
            LeafStanding::Expired,
            refused(LeafRefusal::Revoked),
            refused(LeafRefusal::LongExpired),
            refused(LeafRefusal::Superseded),
        ];
        let expect = v1::IdentityCounts { valid: 2, expired: 1, gone: 2, revoked: 1 };
        assert_eq!(count(standings.into_iter()), expect);
    }
}
