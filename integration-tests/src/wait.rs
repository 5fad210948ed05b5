//! Waiting for a predicate with a limit. Nothing in the tests sleeps for a fixed time.

use std::{fmt::Display, time::Duration};

use tokio::time::{Instant, MissedTickBehavior};

/// Longest wait for anything that should come within seconds. Generous: it only bounds a failing run.
pub const LIMIT: Duration = Duration::from_secs(60);

/// How often a predicate is asked again.
const POLL_INTERVAL: Duration = Duration::from_millis(40);

/// Asks `probe` until it answers `Ok`.
///
/// # Panics
/// After `limit`, with `what` and the last `Err`.
pub async fn wait_for<T, E: Display>(
    what: &str,
    limit: Duration,
    mut probe: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let deadline = Instant::now() + limit;
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = String::from("no answer yet");
    loop {
        ticks.tick().await;
        match tokio::time::timeout_at(deadline, probe()).await {
            Ok(Ok(value)) => return value,
            Ok(Err(error)) => last = format!("{error:#}"),
            Err(_) => {}
        }
        assert!(Instant::now() < deadline, "waited {limit:?} in vain for {what}: {last}");
    }
}

/// Lets `span` pass: the time for which a fault is kept up. It is never what a test's outcome rests on.
pub async fn keep_up(span: Duration) {
    let _ = tokio::time::timeout(span, std::future::pending::<()>()).await;
}
