//! Bounded tries: exponential pauses with full jitter, a deadline over all of them, retryable codes only.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Status};

use crate::{config::ClientConfig, status};

/// Bounds of a retried call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Tries in all, at least 1.
    pub attempts: u32,
    /// First pause; doubles with each, drawn at random between 0 and that.
    pub base: Duration,
    /// Longest pause.
    pub max: Duration,
    /// Over all tries and pauses.
    pub deadline: Duration,
}

impl From<&ClientConfig> for RetryPolicy {
    fn from(config: &ClientConfig) -> Self {
        Self {
            attempts: config.retry_attempts.max(1),
            base: *config.retry_base,
            max: *config.retry_max,
            deadline: *config.retry_deadline,
        }
    }
}

/// Pauses between tries of something that is tried for ever, as a reconnect.
#[derive(Clone, Debug)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    /// Pauses that start at up to `base` and grow to up to `max`.
    pub fn new(base: Duration, max: Duration) -> Self {
        Self { base, max, failures: 0 }
    }

    /// The next pause: drawn evenly between 0 and the doubled ceiling.
    pub fn pause(&mut self) -> Duration {
        let ceiling = self.base.saturating_mul(1 << self.failures.min(20)).min(self.max);
        self.failures = self.failures.saturating_add(1);
        ceiling.mul_f64(rand::random::<f64>())
    }

    /// After a success: the next pause is short again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Calls `op` until it succeeds, fails for good, or the policy's bounds are reached; the last error is given.
///
/// # Errors
/// A status that is not retryable, or the last one.
pub async fn retry<T, F, Fut>(policy: &RetryPolicy, op: F) -> Result<T, Status>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, Status>>,
{
    retry_if(policy, status::is_retryable, op).await
}

/// Like [`retry`], also after answers that leave the outcome open: for calls that may be made twice.
///
/// # Errors
/// A status that is not retryable, or the last one.
pub async fn retry_idempotent<T, F, Fut>(policy: &RetryPolicy, op: F) -> Result<T, Status>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, Status>>,
{
    retry_if(policy, status::is_retryable_idempotent, op).await
}

async fn retry_if<T, F, Fut>(
    policy: &RetryPolicy,
    retryable: impl Fn(&Status) -> bool,
    mut op: F,
) -> Result<T, Status>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, Status>>,
{
    let deadline = Instant::now() + policy.deadline;
    let mut backoff = Backoff::new(policy.base, policy.max);
    let mut attempt = 1;
    loop {
        let answer = timeout_at(deadline, op()).await;
        let failure = match answer {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(status)) => status,
            Err(_elapsed) => {
                return Err(Status::new(Code::DeadlineExceeded, "the deadline over all tries has passed"));
            }
        };
        if attempt >= policy.attempts || !retryable(&failure) {
            return Err(failure);
        }
        let pause = backoff.pause() + status::retry_after(&failure).unwrap_or_default();
        if Instant::now() + pause >= deadline {
            return Err(failure);
        }
        tracing::debug!(attempt, code = ?failure.code(), why = failure.message(), "retrying call");
        sleep(pause).await;
        attempt += 1;
    }
}
