//! The sections that every service shares.

use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::HumanDuration;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

crate::section! {
    /// Logs.
    pub struct TelemetryConfig {
        /// Which log lines are written, as `info,godel_state=debug` (syntax of tracing's EnvFilter).
        pub filter: String = "info".to_owned(),
        /// `text` for people or `json` for machines.
        pub format: LogFormat = LogFormat::Text,
        /// Colours in text logs; they appear on a terminal only.
        pub colour: bool = true,
    }
}

crate::section! {
    /// How a server listens and what it bears.
    pub struct ServerConfig {
        /// Address of the gRPC server; port 0 takes a free one.
        pub listen: SocketAddr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        /// Address that others reach this server at, as `http://10.0.0.7:7700`; empty: that of `listen`. Required where
        /// `listen` is `0.0.0.0` or `[::]`.
        pub advertise: String = String::new(),
        /// Address of the HTTP server for `/metrics` and `/healthz`; port 0 takes a free one.
        pub metrics_listen: SocketAddr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        /// Whether metrics are served.
        pub metrics: bool = true,
        /// Calls at work at once, counted from when their request message is there; further ones are refused with
        /// RESOURCE_EXHAUSTED and a retry hint. Streams that open and leases have as many each of their own. One
        /// connection may hold as many as are free, so never more than half of them.
        pub concurrency_limit: usize = 2048,
        /// Calls and streams whose first message has not come, over all connections; one connection may hold as many
        /// as are free, so never more than half of them.
        pub messages_waiting_max: usize = 8192,
        /// Time for the request message of a call, or the opening message of a session, after the headers.
        pub message_timeout: HumanDuration = HumanDuration::from_secs(10),
        /// What the retry hint of a refused RPC says.
        pub retry_after: HumanDuration = HumanDuration::from_millis(100),
        /// Deadline of an RPC that is not a stream, where the caller gives none.
        pub request_deadline: HumanDuration = HumanDuration::from_secs(10),
        /// The longest deadline that a caller may give an RPC that is not a stream.
        pub request_deadline_max: HumanDuration = HumanDuration::from_secs(300),
        /// Time for open RPCs and streams to end at a graceful stop; then they are cut.
        pub stop_grace: HumanDuration = HumanDuration::from_secs(2),
        /// Pings on idle connections.
        pub keepalive_interval: HumanDuration = HumanDuration::from_secs(5),
        /// A ping not answered within this ends the connection.
        pub keepalive_timeout: HumanDuration = HumanDuration::from_secs(10),
        /// Streams on one connection.
        pub max_concurrent_streams: u32 = 65_536,
        /// New calls a second on one connection; a connection that makes more is read more slowly.
        pub calls_per_second: u32 = 20_000,
        /// HTTP/2 frames a second on one connection, but for data of 256 bytes and more; the same.
        pub frames_per_second: u32 = 100_000,
        /// A connection without an open call is closed after that.
        pub idle_timeout: HumanDuration = HumanDuration::from_secs(300),
        /// Connections from one address without an open call; of more the longest idle are closed.
        pub idle_connections_per_address_max: usize = 512,
    }
}

impl ServerConfig {
    /// The defaults on a port of 127.0.0.1, metrics on the port 100 above it.
    pub fn on_port(port: u16) -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            metrics_listen: SocketAddr::from((Ipv4Addr::LOCALHOST, port.saturating_add(100))),
            ..Self::default()
        }
    }
}

crate::section! {
    /// How clients call other services.
    pub struct ClientConfig {
        /// Address of the state service; every other service is found there.
        pub state: String = "http://127.0.0.1:7700".to_owned(),
        /// Time to open a connection.
        pub connect_timeout: HumanDuration = HumanDuration::from_secs(2),
        /// Deadline of an RPC that is not a stream.
        pub request_timeout: HumanDuration = HumanDuration::from_secs(5),
        /// Tries of one call in all.
        pub retry_attempts: u32 = 8,
        /// First pause between tries; doubles with each, drawn at random between 0 and that.
        pub retry_base: HumanDuration = HumanDuration::from_millis(20),
        /// Longest pause between tries.
        pub retry_max: HumanDuration = HumanDuration::from_secs(1),
        /// Deadline over all tries of one call.
        pub retry_deadline: HumanDuration = HumanDuration::from_secs(15),
        /// Pings on connections.
        pub keepalive_interval: HumanDuration = HumanDuration::from_secs(2),
        /// A ping not answered within this ends the connection.
        pub keepalive_timeout: HumanDuration = HumanDuration::from_secs(3),
        /// How often the leaders that somebody follows are looked up.
        pub directory_interval: HumanDuration = HumanDuration::from_millis(300),
    }
}

crate::section! {
    /// A lease: leadership or registration.
    pub struct LeaseConfig {
        /// Time to live; the holder stops acting at two thirds of it. 500 ms to 60 s.
        pub ttl: HumanDuration = HumanDuration::from_secs(3),
    }
}

crate::section! {
    /// The pipeline of transactions to the store.
    pub struct TxnConfig {
        /// Transactions without an answer at once.
        pub max_in_flight: usize = 64,
        /// Bytes of operations without an answer at once.
        pub max_in_flight_bytes: usize = 16 << 20,
        /// Longest pause before the stream is opened again.
        pub reconnect_max: HumanDuration = HumanDuration::from_millis(500),
    }
}
