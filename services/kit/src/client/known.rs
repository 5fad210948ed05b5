//! Channels that are shared: one for each server at an address.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::{
    address::ServerAddress,
    security::{ClientSecurity, ExpectedServer},
};

/// Channels by address. Of more than so many it forgets all: they are opened again as they are needed.
#[derive(Debug)]
pub(crate) struct KnownChannels<C> {
    n_max: usize,
    security: ClientSecurity,
    /// Several of one address only where several servers are expected there, and TLS tells them apart.
    by_address: Mutex<HashMap<String, Vec<KnownServer<C>>>>,
}

/// A server, where it is told apart from others at its address, and the channel to it.
type KnownServer<C> = (Option<ExpectedServer>, C);

impl<C: Clone> KnownChannels<C> {
    /// At most `n_max`, of a client that speaks what `security` says.
    pub(crate) fn new(n_max: usize, security: ClientSecurity) -> Self {
        Self { n_max, security, by_address: Mutex::default() }
    }

    /// The channel to `expected` at `address`, which `open` opens if there is none.
    ///
    /// # Errors
    /// What `open` says.
    pub(crate) fn get_or_open<E>(
        &self,
        expected: &ExpectedServer,
        address: &str,
        open: impl FnOnce() -> Result<C, E>,
    ) -> Result<C, E> {
        let told_apart = Some(expected).filter(|_| self.tells_servers_apart(address));
        let mut by_address = self.by_address.lock();
        let mut of_address = by_address.get(address).into_iter().flatten();
        if let Some((_, channel)) = of_address.find(|(server, _)| server.as_ref() == told_apart) {
            return Ok(channel.clone());
        }
        let fresh = open()?;
        let n_known: usize = by_address.values().map(Vec::len).sum();
        if n_known >= self.n_max {
            by_address.clear();
        }
        by_address.entry(address.to_owned()).or_default().push((told_apart.cloned(), fresh.clone()));
        Ok(fresh)
    }

    /// Whether a connection to `address` says who answers there.
    fn tells_servers_apart(&self, address: &str) -> bool {
        let speaks_tls = self.security.speaks_tls();
        speaks_tls && matches!(ServerAddress::parse(address, speaks_tls), Ok(ServerAddress::Tls(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::{expected_holder, tests::TestCluster};

    /// Opens channels, each with the next number.
    fn opened(known: &KnownChannels<i32>, n_opened: &mut i32, lease: &str, address: &str) -> i32 {
        let opened = known.get_or_open::<()>(&expected_holder(lease), address, || {
            *n_opened += 1;
            Ok(*n_opened)
        });
        opened.unwrap()
    }

    #[test]
    fn a_channel_is_opened_once_for_each_server_until_there_are_too_many() {
        let known = KnownChannels::new(3, TestCluster::new().stranger().with_plain_text());
        let mut n_opened = 0;
        let mut open = |lease: &str, address: &str| opened(&known, &mut n_opened, lease, address);
        let (a, b) = ("https://a:1", "https://b:1");
        assert_eq!((open("binder", a), open("binder", a), open("binder", b)), (1, 1, 2));
        assert_eq!((open("scheduler/s", a), open("scheduler/s", a), open("binder", a)), (3, 3, 1));
        assert_eq!((open("yarn", a), open("binder", a)), (4, 5), "all were forgotten");
        assert_eq!(known.get_or_open(&expected_holder("yarn"), "z", || Err(7)), Err(7));
    }

    #[test]
    fn in_plain_text_one_channel_serves_whoever_is_expected_at_an_address() {
        for security in [ClientSecurity::default(), TestCluster::new().stranger().with_plain_text()] {
            let known = KnownChannels::new(9, security);
            let mut n_opened = 0;
            for lease in ["binder", "scheduler/s", "yarn"] {
                assert_eq!(opened(&known, &mut n_opened, lease, "http://a:1"), 1, "{lease}");
            }
            assert_eq!(opened(&known, &mut n_opened, "binder", "unix:/a"), 2);
            assert_eq!(opened(&known, &mut n_opened, "yarn", "unix:/a"), 2);
        }
    }
}
