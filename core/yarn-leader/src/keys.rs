//! The keys that sign YARN's tokens: the leader has them made, everybody reads them from the store.

use godel_domain::yarn_keys::{YARN_SECRET_LEN, YarnKeyPeriod, YarnKeys};

/// What the keys are for: masters at the ResourceManager, masters at nodes, containers to be started.
pub const KEY_NAMES: [&str; 3] = ["amrm", "nm", "container"];

/// The keys of each kind of token, as the store has them.
#[derive(Clone, Debug)]
pub(crate) struct KnownKeys([YarnKeys; 3]);

impl Default for KnownKeys {
    fn default() -> Self {
        Self(KEY_NAMES.map(|name| YarnKeys { name: name.to_owned(), keys: Vec::new() }))
    }
}

impl KnownKeys {
    /// The store has these keys.
    pub(crate) fn on_keys(&mut self, keys: &YarnKeys) {
        if let Some(known) = self.0.iter_mut().find(|known| known.name == keys.name) {
            known.clone_from(keys);
        }
    }

    /// Keys that are to be written now, made from `secret`.
    pub(crate) fn due(
        &self,
        now_ms: i64,
        period: YarnKeyPeriod,
        secret: &mut dyn FnMut() -> [u8; YARN_SECRET_LEN],
    ) -> Vec<YarnKeys> {
        let advanced = self.0.iter().filter_map(|known| {
            let mut keys = known.clone();
            keys.advance(now_ms, period, &mut *secret).then_some(keys)
        });
        advanced.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_made_once() {
        let mut known = KnownKeys::default();
        let period = YarnKeyPeriod { every_ms: 100, lead_ms: 10 };
        let due = known.due(5, period, &mut || [7; 32]);
        assert_eq!(due.iter().map(|keys| keys.name.as_str()).collect::<Vec<_>>(), KEY_NAMES);
        due.iter().for_each(|keys| known.on_keys(keys));
        assert!(known.due(6, period, &mut || [8; 32]).is_empty());
        known.on_keys(&YarnKeys { name: "other".to_owned(), keys: Vec::new() });
        assert_eq!(known.due(96, period, &mut || [8; 32]).len(), 3);
    }
}
