//! Clients: lazy channels with deadlines and request ids, bounded retries, and the directory of leaders.

mod directory;
mod methods;
mod retry;

#[cfg(test)]
mod tests;

use std::time::Duration;

use http::HeaderValue;
use tonic::{
    GrpcMethod, Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::Endpoint,
};

pub(crate) use directory::jittered;
pub use directory::{Directory, FailedCall, Leader};
pub(crate) use methods::{MethodShape, is_known, is_stream_path, shape};
pub use retry::{Backoff, RetryPolicy, retry, retry_idempotent};

pub use crate::address::BadAddress;

use crate::{
    address::url,
    config::ClientConfig,
    server::SCHEDULER,
    telemetry::{REQUEST_ID, current_request_id, new_request_id},
};

/// A connection that opens itself, with request ids and deadlines. Cheap to clone.
pub type Channel = InterceptedService<tonic::transport::Channel, OutgoingCall>;

/// Puts the request id into every call, and a deadline into calls that are not streams and have none.
#[derive(Clone, Debug)]
pub struct OutgoingCall {
    timeout: Duration,
    /// Name of the scheduler that state is to forward calls to.
    scheduler: Option<MetadataValue<Ascii>>,
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

/// A channel to `address` (`http://host:port`, or `host:port`). Nothing is opened before the first call.
///
/// # Errors
/// The address is malformed, or asks for TLS.
pub fn channel(address: &str, config: &ClientConfig) -> Result<Channel, BadAddress> {
    Ok(with_deadlines(connection(address, config)?, config, None))
}

/// A connection on which calls have request ids and deadlines; state forwards those for schedulers to the one called
/// `scheduler`.
fn with_deadlines(
    connection: tonic::transport::Channel,
    config: &ClientConfig,
    scheduler: Option<MetadataValue<Ascii>>,
) -> Channel {
    InterceptedService::new(connection, OutgoingCall { timeout: *config.request_timeout, scheduler })
}

fn connection(address: &str, config: &ClientConfig) -> Result<tonic::transport::Channel, BadAddress> {
    let endpoint = endpoint(address, config)?
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    Ok(endpoint.connect_lazy())
}

/// An address with the timeouts of every connection.
pub(crate) fn endpoint(address: &str, config: &ClientConfig) -> Result<Endpoint, BadAddress> {
    Ok(Endpoint::from(url(address)?)
        .connect_timeout(*config.connect_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(*config.keepalive_interval)
        .keep_alive_timeout(*config.keepalive_timeout)
        .keep_alive_while_idle(true))
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
