//! The keys that sign YARN's tokens, as everybody reads them from the store.

use godel_core_yarn_leader::KEY_NAMES;
use godel_domain::yarn_keys::YarnKeys;
use tokio::sync::watch;

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
    let senders =
        KEY_NAMES.map(|name| watch::Sender::new(YarnKeys { name: name.to_owned(), keys: Vec::new() }));
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
        if let Some(sender) =
            KEY_NAMES.iter().position(|name| *name == keys.name).and_then(|idx| self.0.get(idx))
        {
            sender.send_replace(keys.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use godel_domain::yarn_keys::YarnKeyPeriod;

    use super::*;

    #[test]
    fn keys_are_handed_to_whom_they_are_for() {
        let (source, ring) = ring();
        let period = YarnKeyPeriod { every_ms: 100, lead_ms: 10 };
        for name in KEY_NAMES {
            let mut keys = YarnKeys { name: name.to_owned(), keys: Vec::new() };
            assert!(keys.advance(5, period, || [7; 32]));
            source.on_keys(&keys);
        }
        let current =
            |keys: &watch::Receiver<YarnKeys>| (keys.borrow().name.clone(), keys.borrow().keys.len());
        assert_eq!(
            [&ring.amrm, &ring.nm, &ring.container].map(current),
            KEY_NAMES.map(|name| (name.to_owned(), 1))
        );
        source.on_keys(&YarnKeys { name: "other".to_owned(), keys: Vec::new() });
    }
}
