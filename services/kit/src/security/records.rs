//! What a service knows of those who call it.

use std::{collections::HashMap, fmt, sync::Arc};

use godel_identity::{
    leaves::{LeafStanding, NameRecord, judge_leaf},
    names::ClusterName,
};
use godel_pki::person_tokens::{BadToken, PersonToken, TokenJudge, TokenKey};
use parking_lot::RwLock;

use super::PeerLeaf;

/// What a service knows of those who call it: which keys sign persons' tokens, and what is recorded of the names of processes. Whoever follows
/// the records changes it. Clones are the same one.
#[derive(Clone)]
pub struct CallerRecords(Arc<KnownCallers>);

struct KnownCallers {
    cluster: ClusterName,
    names: RwLock<HashMap<String, NameRecord>>,
    tokens: RwLock<TokenJudge>,
}

impl CallerRecords {
    /// Of a cluster of which nothing is recorded: no token counts, and every leaf that its times allow.
    pub fn new(cluster: ClusterName) -> Self {
        let tokens = RwLock::new(TokenJudge::new(cluster.clone(), Vec::new()));
        Self(Arc::new(KnownCallers { cluster, names: RwLock::default(), tokens }))
    }

    /// Has tokens count that one of these keys has signed.
    pub fn set_token_keys(&self, keys: Vec<TokenKey>) {
        *self.0.tokens.write() = TokenJudge::new(self.0.cluster.clone(), keys);
    }

    /// Sets what is recorded of a name, `<role>/<name>`; `None`: nothing.
    pub fn set_name(&self, key: &str, record: Option<NameRecord>) {
        let mut names = self.0.names.write();
        match record {
            Some(record) => drop(names.insert(key.to_owned(), record)),
            None => drop(names.remove(key)),
        }
    }

    /// Sets what is recorded of all names.
    pub fn replace_names(&self, names: HashMap<String, NameRecord>) {
        *self.0.names.write() = names;
    }

    /// How a leaf counts at `now_ms`.
    pub(crate) fn standing(&self, leaf: &PeerLeaf, now_ms: u64) -> LeafStanding {
        let record = self.0.names.read().get(&leaf.key).copied();
        judge_leaf(leaf.presented.times, record, now_ms)
    }

    /// What the token of a person says.
    pub(crate) fn token(&self, token: &str, now_ms: u64) -> Result<Arc<PersonToken>, BadToken> {
        self.0.tokens.read().judge(token, now_ms)
    }

    /// Judges again a token that has counted.
    pub(crate) fn judge_again(&self, token: &PersonToken, now_ms: u64) -> Result<(), BadToken> {
        self.0.tokens.read().judge_again(token, now_ms)
    }
}

impl fmt::Debug for CallerRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallerRecords").field("cluster", &self.0.cluster).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use godel_pki::{person_tokens::make_token, signer::Signer};

    use super::*;

    #[test]
    fn a_token_counts_until_it_expires_or_its_key_goes() {
        let cluster: ClusterName = "c".parse().unwrap();
        let signer = Signer::make(cluster.clone()).unwrap();
        let records = CallerRecords::new(cluster);
        let token = make_token(&signer, "admin", 9_000).unwrap();
        let person = |token: &str, now_ms| records.token(token, now_ms).map(|token| token.person.clone());
        assert!(matches!(person(&token, 1_000), Err(BadToken::OtherKey(_))), "nothing is recorded");
        records.set_token_keys(vec![signer.token_key()]);
        for now_ms in [1_000, 8_999] {
            assert_eq!(person(&token, now_ms).as_deref(), Ok("admin"));
        }
        assert_eq!(person(&token, 9_000), Err(BadToken::Expired));
        assert_eq!(person(&token[1..], 1_000), Err(BadToken::Form));
        let counted = records.token(&token, 1_000).unwrap();
        assert_eq!(records.judge_again(&counted, 8_999), Ok(()));
        records.set_token_keys(Vec::new());
        assert!(matches!(person(&token, 1_000), Err(BadToken::OtherKey(_))));
        assert!(records.judge_again(&counted, 1_000).is_err());
    }
}
