//! Several states of one cluster, of which the one that leads is called.
//!
//! A service or an agent holds a stream to each of its addresses ([`Selection::Follow`]), shared by all channels that it makes with one
//! configuration: it learns at once who leads, also when the leader before is paused and says nothing any more. When another state is
//! chosen, what is under way at the one before ends with `UNAVAILABLE` and an open outcome: nothing else would end it. A command asks
//! once and keeps no stream ([`Selection::Ask`]).
//!
//! Nothing is opened before the first call. Which state is chosen, [`godel_membership::state_choice`] decides.
//!
//! # Modules
//!
//! - `ask`: asks a state once whether it leads, and chooses among the answers.
//! - `bound`: answers that end when another state is chosen.
//! - `follow`: follows who leads at each address.

mod ask;
mod bound;
mod follow;

#[cfg(test)]
mod tests;

use std::{
    fmt,
    future::poll_fn,
    sync::{Arc, Weak},
};

use godel_identity::names::Role;
use http::{Request, Response};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Status, body::Body, transport::Error};
use tower::Service as _;

use super::{BadAddress, Channel, LazyConnection, connection, with_deadlines};
use crate::{
    address::{listed, parse_list},
    config::ClientConfig,
    security::{BearerToken, ClientSecurity, ExpectedServer},
};
use bound::BoundBody;
use follow::Followed;

/// How a client finds out which state leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// By a stream to each, for as long as anybody has a channel.
    Follow,
    /// By asking when it first calls, and again when a call has failed.
    Ask,
}

/// The states at several addresses. Clones share them.
#[derive(Clone)]
pub(crate) struct States(Arc<Handle>);

struct Handle {
    known: Arc<KnownStates>,
    chooser: Chooser,
    /// Ends what runs in the background with the last channel.
    _end: DropGuard,
}

enum Chooser {
    Follow(Arc<Followed>),
    Ask(ask::AskedStates),
}

/// The addresses and the channels to them.
struct KnownStates {
    states: Vec<KnownState>,
    config: ClientConfig,
}

struct KnownState {
    address: String,
    connection: LazyConnection,
    /// Of calls about who leads.
    channel: Channel,
}

/// The state that is called now.
#[derive(Clone, Debug)]
struct ChosenState {
    idx: usize,
    /// Cancelled when another one is chosen.
    over: CancellationToken,
}

impl States {
    /// The states at `addresses`, with commas between them.
    ///
    /// # Errors
    /// One of them is malformed, or asks for something that this client does not speak.
    pub(super) fn new(
        addresses: &str,
        config: &ClientConfig,
        selection: Selection,
    ) -> Result<Self, BadAddress> {
        let make = || Self::make(addresses, config, selection);
        match selection {
            Selection::Follow => config.shared_states.get_or_make(addresses, &config.security, make),
            Selection::Ask => make(),
        }
    }

    fn make(addresses: &str, config: &ClientConfig, selection: Selection) -> Result<Self, BadAddress> {
        parse_list(addresses, config.security.speaks_tls())?;
        let expected = ExpectedServer::any_of(Role::State);
        let open = |address: &str| {
            let connection = connection(address, &expected, config)?;
            let channel = with_deadlines(connection.clone(), config, None);
            Ok(KnownState { address: address.to_owned(), connection, channel })
        };
        let states = listed(addresses).map(open).collect::<Result<Vec<_>, BadAddress>>()?;
        let known = Arc::new(KnownStates { states, config: config.clone() });
        let end = CancellationToken::new();
        let chooser = match selection {
            Selection::Follow => Chooser::Follow(Arc::new(Followed::new(Arc::clone(&known), end.clone()))),
            Selection::Ask => Chooser::Ask(ask::AskedStates::default()),
        };
        Ok(Self(Arc::new(Handle { known, chooser, _end: end.drop_guard() })))
    }

    /// What calls show: the same at each address, because all are called in one way.
    pub(super) fn token(&self) -> Option<watch::Receiver<BearerToken>> {
        self.0.known.states.first().and_then(|state| state.connection.token.clone())
    }

    /// Makes a call at the state that is called now.
    pub(super) async fn call(self, request: Request<Body>) -> Result<Response<Body>, Error> {
        let chosen = match &self.0.chooser {
            Chooser::Follow(followed) => followed.chosen().await,
            Chooser::Ask(asked) => asked.chosen(&self.0.known).await,
        };
        let ChosenState { idx, over } = match chosen {
            Ok(chosen) => chosen,
            Err(nobody) => return Ok(nobody.into_http()),
        };
        let states = self.clone();
        let KnownState { address, connection, .. } = &states.0.known.states[idx];
        let mut channel = connection.channel.clone();
        let call = async {
            poll_fn(|cx| channel.poll_ready(cx)).await?;
            channel.call(request).await
        };
        let answer = tokio::select! {
            biased;
            () = over.cancelled() => return Ok(bound::superseded(address).into_http()),
            answer = call => answer,
        };
        if answer.is_err()
            && let Chooser::Ask(asked) = &states.0.chooser
        {
            asked.forget(idx);
        }
        answer.map(|answer| answer.map(|body| Body::new(BoundBody::new(body, over, address, self))))
    }
}

impl fmt::Debug for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self.0.known.states.iter().map(|state| &state.address);
        f.debug_list().entries(addresses).finish()
    }
}

impl KnownStates {
    fn len(&self) -> usize {
        self.states.len()
    }

    /// What a caller hears while no state answers: of each why.
    fn nobody(&self, reasons: &[String]) -> Status {
        let each = self.states.iter().zip(reasons);
        let each: Vec<String> = each.map(|(state, why)| format!("{}: {why}", state.address)).collect();
        Status::unavailable(format!("no state answers: {}", each.join("; ")))
    }
}

/// The states that channels of one configuration share, with the security that they are called with. Clones of a configuration share it.
#[derive(Clone, Default)]
pub struct SharedStates(Arc<Mutex<Vec<SharedEntry>>>);

struct SharedEntry {
    addresses: String,
    security: ClientSecurity,
    handle: Weak<Handle>,
}

impl SharedStates {
    fn get_or_make(
        &self,
        addresses: &str,
        security: &ClientSecurity,
        make: impl FnOnce() -> Result<States, BadAddress>,
    ) -> Result<States, BadAddress> {
        let mut entries = self.0.lock();
        entries.retain(|entry| entry.handle.strong_count() > 0);
        let is_same = |entry: &&SharedEntry| entry.addresses == addresses && entry.security == *security;
        if let Some(handle) = entries.iter().find(is_same).and_then(|entry| entry.handle.upgrade()) {
            return Ok(States(handle));
        }
        let made = make()?;
        entries.push(SharedEntry {
            addresses: addresses.to_owned(),
            security: security.clone(),
            handle: Arc::downgrade(&made.0),
        });
        Ok(made)
    }
}

impl fmt::Debug for SharedStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedStates")
    }
}

/// It says nothing of a configuration.
impl PartialEq for SharedStates {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
