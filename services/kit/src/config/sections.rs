//! The sections that every service shares.

use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::HumanDuration;
use crate::{
    client::SharedStates,
    member::GivenToken,
    security::{ClientSecurity, ServerSecurity},
};

/// The format of log lines.
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
        /// Log filter in the syntax of tracing's EnvFilter, as `info,godel_state=debug`.
        pub filter: String = "info".to_owned(),
        /// Log format: `text` for people, `json` for machines.
        pub format: LogFormat = LogFormat::Text,
        /// Use colours in text logs. Colours appear on a terminal only.
        pub colour: bool = true,
    }
}

crate::section! {
    /// Addresses and limits of a gRPC server.
    pub struct ServerConfig {
        /// Address of the gRPC server. Port 0 takes a free port. An address that other machines can reach needs `insecure`.
        pub listen: SocketAddr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        /// Address at which other processes reach this server, such as `https://10.0.0.7:7700`; `host-name`: the name of this host, with
        /// the port in `listen`. Empty: the address in `listen`. Required if `listen` is `0.0.0.0` or `[::]`.
        pub advertise: String = String::new(),
        /// Address of the HTTP server for `/metrics` and `/healthz`. Port 0 takes a free port.
        pub metrics_listen: SocketAddr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        /// Serve metrics.
        pub metrics: bool = true,
        /// Listen in plain text on addresses that other machines can reach (`listen`, `metrics_listen`): nothing is encrypted, and whoever
        /// reaches them may do everything. With TLS it is not needed. The flag `--insecure` sets this.
        pub insecure: bool = false,
        /// Maximum number of calls in progress, counted from the arrival of their request message. Further calls are
        /// refused with RESOURCE_EXHAUSTED and a retry hint. Opening streams and lease calls have separate limits of
        /// the same size. One connection may hold as many slots as are free, that is, at most half of them.
        pub concurrency_limit: usize = 2048,
        /// Maximum number of bytes of answers that clients have not read, over all connections. One connection may hold as
        /// many as are free, that is, at most half of them; then its streams wait until it reads, and its further calls are
        /// refused with RESOURCE_EXHAUSTED and a retry hint.
        pub unread_bytes_max: usize = 64 << 20,
        /// Maximum number of calls and streams whose first message has not arrived, over all connections. One
        /// connection may hold as many slots as are free, that is, at most half of them.
        pub messages_waiting_max: usize = 8192,
        /// Timeout, from the headers on, for the request message of a call or the opening message of a session.
        pub message_timeout: HumanDuration = HumanDuration::from_secs(10),
        /// Delay in the retry hint of a refused RPC.
        pub retry_after: HumanDuration = HumanDuration::from_millis(100),
        /// Deadline of a unary RPC whose caller sets none.
        pub request_deadline: HumanDuration = HumanDuration::from_secs(10),
        /// Longest deadline that a caller may set for a unary RPC.
        pub request_deadline_max: HumanDuration = HumanDuration::from_secs(300),
        /// Time that open RPCs and streams get to end at a graceful stop. The server cuts the rest.
        pub stop_grace: HumanDuration = HumanDuration::from_secs(2),
        /// Interval between keepalive pings on idle connections.
        pub keepalive_interval: HumanDuration = HumanDuration::from_secs(5),
        /// A connection is closed if a ping is not answered within this time.
        pub keepalive_timeout: HumanDuration = HumanDuration::from_secs(10),
        /// Maximum number of streams on one connection.
        pub max_concurrent_streams: u32 = 65_536,
        /// New calls per second on one connection. The server slows down reading from a connection that exceeds the
        /// rate.
        pub calls_per_second: u32 = 20_000,
        /// HTTP/2 frames per second on one connection, without data frames of 256 bytes and more. The server slows
        /// down reading from a connection that exceeds the rate.
        pub frames_per_second: u32 = 100_000,
        /// A connection without an open call is closed after this time.
        pub idle_timeout: HumanDuration = HumanDuration::from_secs(300),
        /// Maximum number of connections from one address that have had no open call for two seconds; a TLS handshake
        /// in progress does not count. Beyond the limit the server closes those that have been idle longest.
        pub idle_connections_per_address_max: usize = 512,
        /// A TLS handshake must end within this time.
        pub handshake_timeout: HumanDuration = HumanDuration::from_secs(5),
        /// Maximum number of TLS handshakes in progress. Further ones wait: those of the address with the fewest in progress go
        /// first. Those of one address go in the order in which they came, until they have waited for a fifth of
        /// `handshake_timeout`; after those, the youngest goes first. While some wait, a handshake that has taken a fifth of
        /// `handshake_timeout` is ended.
        pub handshakes_max: usize = 256,
    }
    given {
        /// What it speaks and whom it believes.
        pub security: ServerSecurity,
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
    /// Addresses, timeouts and retries of clients of other services.
    pub struct ClientConfig {
        /// Address of the state service, or the addresses of several states of one cluster with commas between them: the one that leads is called.
        /// Clients find every other service through it.
        pub state: String = "http://127.0.0.1:7700".to_owned(),
        /// Longest pause before a state that does not say whether it leads is asked again. It counts where `state` has several addresses.
        pub state_retry_max: HumanDuration = HumanDuration::from_secs(1),
        /// Timeout for opening a connection.
        pub connect_timeout: HumanDuration = HumanDuration::from_secs(2),
        /// Deadline of a unary RPC.
        pub request_timeout: HumanDuration = HumanDuration::from_secs(5),
        /// Maximum number of attempts for one call, the first one included.
        pub retry_attempts: u32 = 8,
        /// Upper bound of the first pause between attempts. The bound doubles with each attempt; the pause is random
        /// between 0 and the bound.
        pub retry_base: HumanDuration = HumanDuration::from_millis(20),
        /// Longest pause between attempts.
        pub retry_max: HumanDuration = HumanDuration::from_secs(1),
        /// Deadline over all attempts of one call.
        pub retry_deadline: HumanDuration = HumanDuration::from_secs(15),
        /// Interval between keepalive pings on connections.
        pub keepalive_interval: HumanDuration = HumanDuration::from_secs(2),
        /// A connection is closed if a ping is not answered within this time.
        pub keepalive_timeout: HumanDuration = HumanDuration::from_secs(3),
        /// Interval between look-ups of the leaders in use.
        pub directory_interval: HumanDuration = HumanDuration::from_millis(300),
    }
    given {
        /// What it shows, and whom it believes.
        pub security: ClientSecurity,
        /// The states that all channels of the process share.
        pub shared_states: SharedStates,
    }
}

crate::section! {
    /// The certificate of a process, which it needs if state is at an `https://` address.
    pub struct IdentityConfig {
        /// Name of the process in its certificate. Empty: its own name if it has one, otherwise the name of the host.
        pub name: String = String::new(),
        /// Directory of the key and the certificate. The process makes it and renews them.
        pub dir: String = "godel-data/identity".to_owned(),
        /// File with a join token, for the first certificate; `-` reads it from standard input. Nobody else may read the file. The flag
        /// `--join-file` sets this.
        pub join_file: String = String::new(),
        /// DNS names and addresses in the certificate, for people's tools, besides those that the process listens on and tells others.
        pub san: Vec<String> = Vec::new(),
        /// Answer and call plain text too, which may do everything: for the time in which a cluster moves to TLS (`state.tls=migrate`).
        pub plain_text: bool = false,
    }
    given {
        /// A token in place of a file; the certificate stays in memory then.
        pub token: GivenToken,
    }
}

crate::section! {
    /// A lease: leadership or registration.
    pub struct LeaseConfig {
        /// Time to live of the lease, 500 ms to 60 s. The holder stops acting at two thirds of this time.
        pub ttl: HumanDuration = HumanDuration::from_secs(3),
    }
}

crate::section! {
    /// The pipeline of transactions to the store.
    pub struct TxnConfig {
        /// Maximum number of transactions without an answer.
        pub max_in_flight: usize = 64,
        /// Maximum number of bytes of operations without an answer.
        pub max_in_flight_bytes: usize = 16 << 20,
        /// Longest pause before the stream is opened again.
        pub reconnect_max: HumanDuration = HumanDuration::from_millis(500),
    }
}
