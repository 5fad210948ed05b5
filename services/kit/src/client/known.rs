//! Channels that are shared: one for each server at an address.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::security::ExpectedServer;

/// Channels by address. Of more than so many it forgets all: they are opened again as they are needed.
#[derive(Debug)]
pub(crate) struct KnownChannels<C> {
    n_max: usize,
    /// Several of one address only where several servers are expected there.
    by_address: Mutex<HashMap<String, Vec<(ExpectedServer, C)>>>,
}

impl<C: Clone> KnownChannels<C> {
    pub(crate) fn new(n_max: usize) -> Self {
        Self { n_max, by_address: Mutex::default() }
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
        let mut by_address = self.by_address.lock();
        let known = by_address.get(address).into_iter().flatten().find(|(server, _)| server == expected);
        if let Some((_, channel)) = known {
            return Ok(channel.clone());
        }
        let fresh = open()?;
        let n_known: usize = by_address.values().map(Vec::len).sum();
        if n_known >= self.n_max {
            by_address.clear();
        }
        by_address.entry(address.to_owned()).or_default().push((expected.clone(), fresh.clone()));
        Ok(fresh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::expected_holder;

    #[test]
    fn a_channel_is_opened_once_for_each_server_until_there_are_too_many() {
        let known = KnownChannels::new(3);
        let mut n_opened = 0;
        let mut open = |lease: &str, address: &str| {
            let opened = known.get_or_open::<()>(&expected_holder(lease), address, || {
                n_opened += 1;
                Ok(n_opened)
            });
            opened.unwrap()
        };
        assert_eq!((open("binder", "a"), open("binder", "a"), open("binder", "b")), (1, 1, 2));
        assert_eq!((open("scheduler/s", "a"), open("scheduler/s", "a"), open("binder", "a")), (3, 3, 1));
        assert_eq!((open("yarn", "a"), open("binder", "a")), (4, 5), "all were forgotten");
        assert_eq!(known.get_or_open(&expected_holder("yarn"), "z", || Err(7)), Err(7));
    }
}
