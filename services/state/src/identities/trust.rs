//! By what state judges those who call it.

use godel_identity::{
    leaves::{LeafStanding, LeafTimes, judge_leaf},
    names::Identity,
    records::IdentityRecord,
};
use godel_pki::{
    leaves::PresentedLeaf,
    person_tokens::{self, TokenKey},
};

use super::writer::Ledger;

impl Ledger {
    /// Whose a leaf is that chains to a root, and when it counts.
    ///
    /// # Errors
    /// It carries no identity of this cluster.
    pub(crate) fn read_leaf(&self, der: &[u8]) -> Result<(Identity, LeafTimes), String> {
        let leaf = PresentedLeaf::read(&der.to_vec().into()).map_err(|bad| bad.to_string())?;
        self.read(|book| {
            let cluster = &book.trust().cluster;
            if leaf.identity.cluster() == cluster {
                return Ok((leaf.identity, leaf.times));
            }
            Err(format!("{} is not of cluster {cluster}; join this cluster with a join token", leaf.identity))
        })
    }

    /// How a leaf counts at `now_ms`.
    pub(crate) fn standing(&self, identity: &Identity, times: LeafTimes, now_ms: u64) -> LeafStanding {
        let record = self.read(|book| book.identity(&identity.key()).map(IdentityRecord::name_record));
        judge_leaf(times, record, now_ms)
    }

    /// The person with a token.
    ///
    /// # Errors
    /// Why the token does not count, and what to do.
    pub(crate) fn person(&self, token: &str, now_ms: u64) -> Result<String, String> {
        let (cluster, keys) = self.read(|book| {
            let trust = book.trust();
            let live =
                trust.person_keys.iter().filter(|key| key.ends_ms.is_none_or(|ends_ms| ends_ms > now_ms));
            let keys: Vec<TokenKey> = live.map(|key| TokenKey::new(key.public_key)).collect();
            (trust.cluster.clone(), keys)
        });
        let token = person_tokens::check_token(token, &cluster, &keys, now_ms);
        token.map(|token| token.person).map_err(|bad| bad.to_string())
    }
}
