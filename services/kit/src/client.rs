//! Clients: lazy channels with deadlines and request ids, bounded retries, and the directory of leaders.
//!
//! Every connection to a server of godel is opened in one place, `connect`.

mod connect;
mod directory;
mod known;
mod lazy;
mod methods;
mod refused;
mod retry;
mod states;

#[cfg(test)]
mod tests;

use std::time::Duration;

use godel_identity::names::Role;
use http::HeaderValue;
use tokio::sync::watch;
use tonic::{
    GrpcMethod, Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
};

pub(crate) use connect::{LazyConnection, connect_lazily};
pub use connect::{is_refused, open};
pub(crate) use directory::jittered;
pub use directory::{Directory, FailedCall, Leader};
pub(crate) use known::KnownChannels;
pub use lazy::{ChannelFuture, LazyChannel};
pub(crate) use methods::{MethodShape, is_known, is_stream_path, shape};
pub(crate) use refused::leaf_status_in;
pub use retry::{Backoff, RetryPolicy, retry, retry_idempotent};
pub(crate) use states::Selection;
pub use states::SharedStates;

pub use crate::address::BadAddress;
use states::States;

use crate::{
    address::listed,
    config::ClientConfig,
    security::{BearerToken, ExpectedServer},
    server::SCHEDULER,
    telemetry::{REQUEST_ID, current_request_id, new_request_id},
};

/// A connection that opens itself, with request ids and deadlines. Cheap to clone.
pub type Channel = InterceptedService<LazyChannel, OutgoingCall>;

/// Puts the request id into every call, the token of the person who calls, and a deadline into calls that are not streams and have none.
#[derive(Clone, Debug)]
pub struct OutgoingCall {
    timeout: Duration,
    /// Name of the scheduler that state is to forward calls to.
    scheduler: Option<MetadataValue<Ascii>>,
    token: Option<watch::Receiver<BearerToken>>,
}

impl Interceptor for OutgoingCall {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if !request.metadata().contains_key(REQUEST_ID) {
            let id = current_request_id().unwrap_or_else(new_request_id);
            // An id that came in may hold what a header must not.
            if let Ok(mut value) = id.parse::<MetadataValue<Ascii>>() {
                value.set_sensitive(true);
                request.metadata_mut().insert(REQUEST_ID, value);
            }
        }
        if let Some(name) = &self.scheduler {
            request.metadata_mut().insert(SCHEDULER, name.clone());
        }
        if let Some(token) = &self.token {
            request.metadata_mut().insert(AUTHORIZATION, token.borrow().header());
        }
        let streams = request
            .extensions()
            .get::<GrpcMethod<'static>>()
            .is_none_or(|method| methods::is_stream(method.service(), method.method()));
        if !streams && !request.metadata().contains_key("grpc-timeout") {
            request.set_timeout(self.timeout);
        }
        Ok(request)
    }
}

/// The header with the token of a person.
const AUTHORIZATION: &str = "authorization";

/// A channel to the state service at `address` ([`ServerAddress`](crate::address::ServerAddress)), or at one of several with commas between them: the
/// one that leads is followed. Nothing is opened before the first call.
///
/// # Errors
/// The address is malformed, or asks for something that this client does not speak.
pub fn channel(address: &str, config: &ClientConfig) -> Result<Channel, BadAddress> {
    Ok(with_deadlines(state_connection(address, config, Selection::Follow)?, config, None))
}

/// A channel to another server.
///
/// # Errors
/// The address is malformed, or asks for something that this client does not speak.
pub fn channel_to(
    expected: &ExpectedServer,
    address: &str,
    config: &ClientConfig,
) -> Result<Channel, BadAddress> {
    Ok(with_deadlines(connection(address, expected, config)?, config, None))
}

/// A connection on which calls have request ids and deadlines; state forwards those for schedulers to the one called
/// `scheduler`.
fn with_deadlines(
    connection: LazyConnection,
    config: &ClientConfig,
    scheduler: Option<MetadataValue<Ascii>>,
) -> Channel {
    let LazyConnection { channel, token } = connection;
    InterceptedService::new(channel, OutgoingCall { timeout: *config.request_timeout, scheduler, token })
}

/// A connection to state, at one address or several.
fn state_connection(
    addresses: &str,
    config: &ClientConfig,
    selection: Selection,
) -> Result<LazyConnection, BadAddress> {
    if listed(addresses).count() == 1 {
        return connection(addresses, &ExpectedServer::any_of(Role::State), config);
    }
    let states = States::new(addresses, config, selection)?;
    Ok(LazyConnection { token: states.token(), channel: LazyChannel::of(states) })
}

fn connection(
    address: &str,
    expected: &ExpectedServer,
    config: &ClientConfig,
) -> Result<LazyConnection, BadAddress> {
    connect_lazily(address, expected, config, |endpoint| {
        endpoint.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW)
    })
}

/// Bytes in flight on one stream: four messages of the largest size.
pub(crate) const STREAM_WINDOW: u32 = 4 << 20;
/// Bytes in flight on one connection.
pub(crate) const CONNECTION_WINDOW: u32 = 8 << 20;

/// A header value for a request id, if it can be one. Each is new, so it stays out of the tables in which HTTP/2
/// keeps headers to refer to later.
pub(crate) fn request_id_value(id: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(id).ok()?;
    value.set_sensitive(true);
    Some(value)
}
