//! Logs: text for people, JSON for machines, filtered by target and level, written to the error stream.
//!
//! Every RPC has a request id in the header [`REQUEST_ID`]: made here if the caller gave none, shown in the
//! span of the RPC, and sent along by [`crate::client`].

use std::io::{self, IsTerminal as _, Write as _};

use tracing_subscriber::{
    EnvFilter, Layer as _, filter::ParseError, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use crate::config::{LogFormat, TelemetryConfig};

/// Header that carries the request id.
pub const REQUEST_ID: &str = "x-request-id";

tokio::task_local! {
    /// Request id of the RPC that this task serves; clients send it along.
    pub(crate) static CURRENT_REQUEST_ID: String;
}

/// Why logs cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter cannot be parsed.
    #[error("bad log filter")]
    Filter(#[from] ParseError),
    /// Another subscriber is there already.
    #[error("logs are set up already")]
    Again(#[source] tracing_subscriber::util::TryInitError),
}

/// Keeps logs flowing; flushes them when dropped at the end of the process.
#[must_use = "logs are flushed when the guard is dropped"]
#[derive(Debug)]
pub struct Guard(());

impl Drop for Guard {
    fn drop(&mut self) {
        // Nothing can be said about a broken error stream.
        let _ = io::stderr().flush();
    }
}

/// Sets up logs for the whole process.
///
/// # Errors
/// The filter is wrong, or logs are set up already.
pub fn init(config: &TelemetryConfig) -> Result<Guard, TelemetryError> {
    let filter = EnvFilter::builder().parse(&config.filter)?;
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let lines = match config.format {
        LogFormat::Text => lines.with_ansi(config.colour && io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .try_init()
        .map_err(TelemetryError::Again)?;
    Ok(Guard(()))
}

/// A new request id: a UUID that sorts by time.
pub fn new_request_id() -> String {
    uuid::Uuid::now_v7().to_string()
}

/// Request id of the RPC that this task serves, if it serves one.
pub fn current_request_id() -> Option<String> {
    CURRENT_REQUEST_ID.try_with(Clone::clone).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_filter_is_refused_and_logs_are_set_up_once() {
        let wrong = TelemetryConfig { filter: "godel=loud".to_owned(), ..TelemetryConfig::default() };
        assert!(matches!(init(&wrong), Err(TelemetryError::Filter(_))));
        let json = TelemetryConfig { format: LogFormat::Json, ..TelemetryConfig::default() };
        let guard = init(&json).unwrap();
        assert!(matches!(init(&json), Err(TelemetryError::Again(_))));
        drop(guard);
    }

    #[tokio::test]
    async fn request_ids_belong_to_the_task_that_serves() {
        assert_eq!(current_request_id(), None);
        let inside = CURRENT_REQUEST_ID.scope("r1".to_owned(), async { current_request_id() }).await;
        assert_eq!(inside.as_deref(), Some("r1"));
        assert_ne!(new_request_id(), new_request_id());
    }
}
