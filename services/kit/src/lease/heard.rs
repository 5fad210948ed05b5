//! When state last answered about a lease: a member that hears nothing of state is of no use to anybody.

use std::{sync::Arc, time::Duration};

use godel_base::duration;
use parking_lot::Mutex;
use tokio::time::Instant;

/// When state last answered, whatever it answered. Clones share it.
#[derive(Clone, Debug)]
pub struct Heard {
    at: Arc<Mutex<Option<Instant>>>,
    within: Duration,
}

impl Heard {
    /// Of a lease with that TTL, about which state is asked several times within it.
    pub(super) fn new(ttl: Duration) -> Self {
        Self { at: Arc::default(), within: ttl * 2 }
    }

    /// State has answered.
    pub(super) fn now(&self) {
        *self.at.lock() = Some(Instant::now());
    }

    /// That state has answered within twice the TTL.
    ///
    /// # Errors
    /// It has not; in words.
    pub fn check(&self) -> Result<(), String> {
        self.check_at(Instant::now())
    }

    fn check_at(&self, now: Instant) -> Result<(), String> {
        let Some(at) = *self.at.lock() else { return Err("state has not answered yet".to_owned()) };
        let since = now.saturating_duration_since(at);
        if since <= self.within {
            return Ok(());
        }
        let since = duration::show(Duration::from_secs(since.as_secs()));
        Err(format!("state has not answered for {since}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_of_state_is_noticed_after_a_while() {
        let heard = Heard::new(Duration::from_secs(3));
        assert_eq!(heard.check().unwrap_err(), "state has not answered yet");
        heard.clone().now();
        let at = heard.at.lock().unwrap();
        assert_eq!(heard.check_at(at + Duration::from_secs(6)), Ok(()));
        let late = heard.check_at(at + Duration::from_millis(7_500));
        assert_eq!(late.unwrap_err(), "state has not answered for 7s");
    }
}
