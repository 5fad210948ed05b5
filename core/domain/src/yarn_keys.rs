//! Keys that sign YARN's tokens, and when they roll over.
//!
//! A token proves that it was made with a key: the adapter signs, agents and the adapter verify. Each key signs for a while; it is handed
//! out before it signs anything, and verifies for one period more once the next one signs.

/// What a key is made of, bytes.
pub const YARN_SECRET_LEN: usize = 32;

/// One key.
#[derive(Clone, PartialEq, Eq)]
pub struct YarnKey {
    /// Unique in its set, above 0: tokens name it.
    pub id: i32,
    /// What signs.
    pub secret: [u8; YARN_SECRET_LEN],
    /// Signs from then on, Unix milliseconds.
    pub from_ms: i64,
}

impl std::fmt::Debug for YarnKey {
    /// Without the secret: logs are read by more people than tokens are for.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("YarnKey")
            .field("id", &self.id)
            .field("from_ms", &self.from_ms)
            .finish_non_exhaustive()
    }
}

/// The keys of one kind of token, in the order in which they sign.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct YarnKeys {
    /// What the tokens are for.
    pub name: String,
    /// The one before the current one, the current one, and the next one, as far as there are any.
    pub keys: Vec<YarnKey>,
}

/// When keys roll over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct YarnKeyPeriod {
    /// A key signs for this long, milliseconds. Tokens must not live longer.
    pub every_ms: i64,
    /// The next key is handed out this long before it signs, milliseconds.
    pub lead_ms: i64,
}

impl YarnKeys {
    /// The key that signs now: the last one whose time has come, or the first where the clock went back; `None`: there is no key yet.
    pub fn current(&self, now_ms: i64) -> Option<&YarnKey> {
        self.keys.iter().rev().find(|key| key.from_ms <= now_ms).or(self.keys.first())
    }

    /// The key with this id, if it verifies still.
    pub fn key(&self, id: i32) -> Option<&YarnKey> {
        self.keys.iter().find(|key| key.id == id)
    }

    /// Makes the next key when it is due, from `secret`, and drops what verifies nothing any more. Returns whether anything changed. The very
    /// first key signs at once.
    pub fn advance(
        &mut self,
        now_ms: i64,
        YarnKeyPeriod { every_ms, lead_ms }: YarnKeyPeriod,
        secret: impl FnOnce() -> [u8; YARN_SECRET_LEN],
    ) -> bool {
        let n_before = self.keys.len();
        let n_signing = self.keys.iter().filter(|key| key.from_ms <= now_ms).count();
        // The current one and the one before it stay.
        self.keys.drain(..n_signing.saturating_sub(2));
        let n_dropped = n_before - self.keys.len();
        let Some(last) = self.keys.last() else {
            self.keys.push(YarnKey { id: 1, secret: secret(), from_ms: now_ms });
            return true;
        };
        let next_ms = last.from_ms.saturating_add(every_ms);
        if last.from_ms > now_ms || now_ms < next_ms.saturating_sub(lead_ms) {
            return n_dropped > 0;
        }
        let from_ms = next_ms.max(now_ms.saturating_add(lead_ms));
        // Ids that have come round do not meet those of tokens that are still there.
        let id = last.id.checked_add(1).unwrap_or(1);
        self.keys.push(YarnKey { id, secret: secret(), from_ms });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: YarnKeyPeriod = YarnKeyPeriod { every_ms: 100, lead_ms: 10 };

    fn ids(keys: &YarnKeys) -> Vec<i32> {
        keys.keys.iter().map(|key| key.id).collect()
    }

    fn advance(keys: &mut YarnKeys, now_ms: i64) -> bool {
        keys.advance(now_ms, PERIOD, || [7; YARN_SECRET_LEN])
    }

    #[test]
    fn keys_are_handed_out_before_they_sign() {
        let mut keys = YarnKeys::default();
        assert_eq!(keys.current(0), None);
        assert!(advance(&mut keys, 1_000));
        assert_eq!((ids(&keys), keys.current(1_000).unwrap().id), (vec![1], 1));
        assert!(!advance(&mut keys, 1_089));
        assert!(advance(&mut keys, 1_090));
        assert!(!advance(&mut keys, 1_091), "the next one is there");
        assert_eq!((ids(&keys), keys.current(1_099).unwrap().id), (vec![1, 2], 1));
        assert_eq!(keys.current(1_100).unwrap().id, 2);
        assert_eq!(keys.current(0).unwrap().id, 1, "a clock that went back");
    }

    #[test]
    fn a_key_verifies_for_one_period_more() {
        let mut keys = YarnKeys::default();
        for now_ms in [0, 90, 190, 199] {
            advance(&mut keys, now_ms);
        }
        assert_eq!(ids(&keys), [1, 2, 3]);
        assert!(keys.key(1).is_some());
        assert!(advance(&mut keys, 200), "the first one is dropped");
        assert_eq!(ids(&keys), [2, 3]);
        assert!(keys.key(1).is_none() && keys.key(2).is_some());
    }

    #[test]
    fn a_key_that_comes_late_still_has_its_lead() {
        let mut keys = YarnKeys::default();
        advance(&mut keys, 0);
        assert!(advance(&mut keys, 5_000));
        assert_eq!((keys.keys[1].from_ms, keys.current(5_000).unwrap().id), (5_010, 1));
    }

    #[test]
    fn a_key_does_not_show_its_secret() {
        let mut keys = YarnKeys { name: "nm".to_owned(), keys: Vec::new() };
        advance(&mut keys, 3);
        assert_eq!(
            format!("{keys:?}"),
            "YarnKeys { name: \"nm\", keys: [YarnKey { id: 1, from_ms: 3, .. }] }"
        );
    }
}
