//! The keys that sign YARN's tokens: the leader makes them, everybody reads them from the store.

use godel_domain::yarn_keys::{YarnKeyPeriod, YarnKeys};
use tokio::sync::watch;

/// What the keys are for: masters at the ResourceManager, masters at nodes, containers to be started.
const NAMES: [&str; 3] = ["amrm", "nm", "container"];

/// The keys of each kind of token, as they are known now. Clones share them.
#[derive(Clone, Debug)]
pub struct KeyRing {
    /// Keys of the tokens by which masters call the adapter.
    pub amrm: watch::Receiver<YarnKeys>,
    /// Keys of the tokens by which masters call nodes.
    pub nm: watch::Receiver<YarnKeys>,
    /// Keys of the tokens of containers.
    pub container: watch::Receiver<YarnKeys>,
}

/// Where the keys come from.
#[derive(Debug)]
pub(crate) struct KeySource([watch::Sender<YarnKeys>; 3]);

/// Keys that nobody has yet.
pub(crate) fn ring() -> (KeySource, KeyRing) {
    let senders = NAMES.map(|name| watch::Sender::new(YarnKeys { name: name.to_owned(), keys: Vec::new() }));
    let [amrm, nm, container] = [0, 1, 2].map(|idx: usize| senders.get(idx).map(watch::Sender::subscribe));
    let none = || watch::Sender::new(YarnKeys::default()).subscribe();
    let ring = KeyRing {
        amrm: amrm.unwrap_or_else(none),
        nm: nm.unwrap_or_else(none),
        container: container.unwrap_or_else(none),
    };
    (KeySource(senders), ring)
}

impl KeySource {
    /// The store has these keys.
    pub(crate) fn on_keys(&self, keys: &YarnKeys) {
        if let Some(sender) = NAMES.iter().position(|name| *name == keys.name).and_then(|idx| self.0.get(idx))
        {
            sender.send_replace(keys.clone());
        }
    }

    /// Keys that are to be written now, made from `secret`.
    pub(crate) fn due(
        &self,
        now_ms: i64,
        period: YarnKeyPeriod,
        mut secret: impl FnMut() -> [u8; godel_domain::yarn_keys::YARN_SECRET_LEN],
    ) -> Vec<YarnKeys> {
        let advanced = self.0.iter().filter_map(|sender| {
            let mut keys = sender.borrow().clone();
            keys.advance(now_ms, period, &mut secret).then_some(keys)
        });
        advanced.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_made_once_and_handed_to_whom_they_are_for() {
        let (source, ring) = ring();
        let period = YarnKeyPeriod { every_ms: 100, lead_ms: 10 };
        let due = source.due(5, period, || [7; 32]);
        assert_eq!(due.iter().map(|keys| keys.name.as_str()).collect::<Vec<_>>(), NAMES);
        due.iter().for_each(|keys| source.on_keys(keys));
        assert!(source.due(6, period, || [8; 32]).is_empty());
        let current =
            |keys: &watch::Receiver<YarnKeys>| (keys.borrow().name.clone(), keys.borrow().keys.len());
        assert_eq!(
            [&ring.amrm, &ring.nm, &ring.container].map(current),
            NAMES.map(|name| (name.to_owned(), 1))
        );
        source.on_keys(&YarnKeys { name: "other".to_owned(), keys: Vec::new() });
        assert_eq!(source.due(96, period, || [8; 32]).len(), 3);
    }
}
