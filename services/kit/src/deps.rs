//! What every service gets from outside, so that tests and `godel up` choose it.

use godel_crash::CrashPoints;
use tokio::net::TcpListener;

use crate::clock::{SharedClock, SystemClock};

/// Listener, time and crash points of a service.
pub struct Deps {
    /// Serves here; otherwise it binds `server.listen`.
    pub listener: Option<TcpListener>,
    /// Time as decisions see it.
    pub clock: SharedClock,
    /// Where a test may kill the process; those of the configuration win.
    pub crash: CrashPoints,
}

impl Default for Deps {
    fn default() -> Self {
        Self { listener: None, clock: SystemClock::shared(), crash: CrashPoints::default() }
    }
}
