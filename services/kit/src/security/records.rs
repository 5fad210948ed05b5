//! What a service knows of those who call it.

use std::{collections::HashMap, fmt, sync::Arc};

use godel_identity::{
    leaves::{LeafStanding, NameRecord, judge_leaf},
    names::ClusterName,
};
use godel_pki::person_tokens::{BadToken, TokenJudge, TokenKey};
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

    /// The name of the person with a token.
    pub(crate) fn person(&self, token: &str, now_ms: u64) -> Result<String, BadToken> {
        self.0.tokens.read().judge(token, now_ms).map(|token| token.person.clone())
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
        assert!(matches!(records.person(&token, 1_000), Err(BadToken::OtherKey(_))), "nothing is recorded");
        records.set_token_keys(vec![signer.token_key()]);
        for now_ms in [1_000, 8_999] {
            assert_eq!(records.person(&token, now_ms).as_deref(), Ok("admin"));
        }
        assert_eq!(records.person(&token, 9_000), Err(BadToken::Expired));
        assert_eq!(records.person(&token[1..], 1_000), Err(BadToken::Form));
        records.set_token_keys(Vec::new());
        assert!(matches!(records.person(&token, 1_000), Err(BadToken::OtherKey(_))));
    }
}
