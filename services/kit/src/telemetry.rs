//! Logs: text for people, JSON for machines, filtered by target and level, written to the error stream.
//!
//! Every RPC has a request id in the header [`REQUEST_ID`]: made here if the caller gave none, shown in the
//! span of the RPC, and sent along by [`crate::client`].

use std::io::{self, IsTerminal as _, Write as _};

use tracing_subscriber::{
    EnvFilter, Layer, filter::ParseError, fmt::MakeWriter, layer::SubscriberExt as _, registry::LookupSpan,
    util::SubscriberInitExt as _,
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
    let mut filter = EnvFilter::builder().parse(&config.filter)?;
    if !config.filter.contains("h2") {
        // It warns of each connection that does what it must not; the server counts those and says so once in a while.
        filter = filter.add_directive("h2=error".parse()?);
    }
    tracing_subscriber::registry()
        .with(lines(config, io::stderr).with_filter(filter))
        .try_init()
        .map_err(TelemetryError::Again)?;
    Ok(Guard(()))
}

/// Writes lines of the configured kind. In JSON the fields of an event stand beside its message, and each span once, in
/// `spans`, the outermost first.
fn lines<S, W>(config: &TelemetryConfig, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    match config.format {
        LogFormat::Text => lines.with_ansi(config.colour && io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).boxed(),
    }
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
    use std::{
        collections::BTreeMap,
        fmt,
        sync::{Arc, Mutex},
    };

    use serde::{
        Deserialize, Deserializer,
        de::{Error as _, MapAccess, SeqAccess, Visitor},
    };

    use super::*;

    /// A JSON value, each key of which stands there once.
    #[derive(Clone, Debug, PartialEq)]
    enum Strict {
        Map(BTreeMap<String, Strict>),
        List(Vec<Strict>),
        Text(String),
        Other,
    }

    impl<'de> Deserialize<'de> for Strict {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Reader;
            impl<'de> Visitor<'de> for Reader {
                type Value = Strict;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("JSON")
                }

                fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strict, A::Error> {
                    let mut fields = BTreeMap::new();
                    while let Some((key, value)) = map.next_entry::<String, Strict>()? {
                        if fields.insert(key.clone(), value).is_some() {
                            return Err(A::Error::custom(format!("{key} stands there twice")));
                        }
                    }
                    Ok(Strict::Map(fields))
                }

                fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Strict, A::Error> {
                    let mut items = Vec::new();
                    while let Some(item) = list.next_element()? {
                        items.push(item);
                    }
                    Ok(Strict::List(items))
                }

                fn visit_str<E>(self, text: &str) -> Result<Strict, E> {
                    Ok(Strict::Text(text.to_owned()))
                }

                fn visit_u64<E>(self, _: u64) -> Result<Strict, E> {
                    Ok(Strict::Other)
                }

                fn visit_i64<E>(self, _: i64) -> Result<Strict, E> {
                    Ok(Strict::Other)
                }

                fn visit_bool<E>(self, _: bool) -> Result<Strict, E> {
                    Ok(Strict::Other)
                }
            }
            deserializer.deserialize_any(Reader)
        }
    }

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Written {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    #[test]
    fn a_json_line_says_everything_once() {
        let json = TelemetryConfig { format: LogFormat::Json, ..TelemetryConfig::default() };
        let written = Written::default();
        let subscriber = tracing_subscriber::registry().with(lines(&json, written.clone()));
        tracing::subscriber::with_default(subscriber, || {
            let rpc = tracing::info_span!("rpc", request_id = "r1", code = tracing::field::Empty).entered();
            rpc.record("code", "OK");
            let _task = tracing::info_span!("task", task = "writer").entered();
            let (some, none) = (Some(7_u64), None::<u64>);
            tracing::info!(some, none, why = "full", "a unit is ended");
        });
        let written = written.0.lock().unwrap().clone();
        let text = String::from_utf8(written).unwrap();
        assert!(text.contains("\"some\":7") && !text.contains("Some(") && !text.contains("none"), "{text}");
        assert_eq!(text.matches("r1").count(), 1, "{text}");
        let Strict::Map(line) = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
        let Strict::List(spans) = &line["spans"] else { panic!("{text}") };
        assert_eq!(spans.len(), 2);
        assert_eq!(line["message"], Strict::Text("a unit is ended".to_owned()));
        assert!(serde_json::from_str::<Strict>("{\"a\":1,\"a\":2}").is_err());
    }

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
