//! Units offered one by one, each by a call, at moments that do not depend on what became of those before (an open loop).
//!
//! There are so many clients at most. One that is refused waits for as long as it is told and tries the same unit again; a
//! unit that is due while all of them wait or call is turned away here. Clients share a few connections.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use godel_proto::v1;
use prost::Message as _;
use tokio::task::JoinSet;
use tonic::Status;

use crate::{
    load::unary::{Target, UnaryCalls, back_off},
    report::{count, wide},
};

/// Connections at most.
const N_CONNECTIONS: usize = 64;

/// What to offer.
pub(super) struct Offer {
    /// Its name and uid are set for each unit.
    unit: v1::UnitSpec,
    /// Units a second; `None`: as many as clients take.
    rate: Option<f64>,
    span: Duration,
    started: Instant,
    /// The next moment that nobody has taken.
    next: AtomicU64,
    numbers: Arc<AtomicUsize>,
    attempts: AtomicU64,
    refused: AtomicU64,
    turned_away: AtomicU64,
    given_up: AtomicU64,
}

/// A unit that was admitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdmittedUnit {
    /// From 0; the unit is called `u-1` and so on.
    pub(super) number: usize,
    /// When the call that was answered well began.
    pub(super) began: Instant,
}

/// What became of an offer.
#[derive(Debug, Default)]
pub(super) struct Offered {
    pub(super) admitted: Vec<AdmittedUnit>,
    /// Calls made.
    pub(super) attempts: u64,
    /// Calls that were refused with a hint.
    pub(super) refused: u64,
    /// Units for which there was no client.
    pub(super) turned_away: u64,
    /// Units refused until the end.
    pub(super) given_up: u64,
}

impl Offer {
    /// From now on. `numbers`: the next one.
    pub(super) fn new(
        unit: v1::UnitSpec,
        rate: Option<f64>,
        span: Duration,
        numbers: Arc<AtomicUsize>,
    ) -> Self {
        Self {
            unit,
            rate,
            span,
            started: Instant::now(),
            next: AtomicU64::new(0),
            numbers,
            attempts: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
        }
    }

    /// Until the span is over and every client has its answer.
    pub(super) async fn run(self, target: &Target, n_clients: usize) -> Result<Offered, Status> {
        let offer = Arc::new(self);
        let mut connections = JoinSet::new();
        let mut clients = JoinSet::new();
        let mut all_calls = Vec::new();
        for _ in 0..n_clients.min(N_CONNECTIONS) {
            let (calls, connection) = target.connect().await?;
            connections.spawn(connection);
            all_calls.push(calls);
        }
        for calls in all_calls.into_iter().cycle().take(n_clients) {
            clients.spawn(Arc::clone(&offer).client(calls));
        }
        let mut offered = Offered::default();
        while let Some(ended) = clients.join_next().await {
            let admitted = ended.map_err(|_| Status::internal("a client panicked"))??;
            offered.admitted.extend(admitted);
        }
        let counted = |counter: &AtomicU64| counter.load(Relaxed);
        offered.attempts = counted(&offer.attempts);
        offered.refused = counted(&offer.refused);
        offered.turned_away = counted(&offer.turned_away);
        offered.given_up = counted(&offer.given_up);
        Ok(offered)
    }

    async fn client(self: Arc<Self>, mut calls: UnaryCalls) -> Result<Vec<AdmittedUnit>, Status> {
        let mut admitted = Vec::new();
        while let Some(due) = self.take_next(self.started.elapsed()) {
            tokio::time::sleep(due.saturating_sub(self.started.elapsed())).await;
            let number = self.numbers.fetch_add(1, Relaxed);
            let unit = self.encoded(number);
            loop {
                let began = Instant::now();
                if began >= self.started + self.span {
                    self.given_up.fetch_add(1, Relaxed);
                    break;
                }
                self.attempts.fetch_add(1, Relaxed);
                match calls.submit(unit.clone()).await {
                    Ok(()) => {
                        admitted.push(AdmittedUnit { number, began });
                        break;
                    }
                    Err(refused) => {
                        self.refused.fetch_add(1, Relaxed);
                        back_off(refused).await?;
                    }
                }
            }
        }
        Ok(admitted)
    }

    /// When the client that asks at `now` has to offer its next unit; those due before are turned away.
    fn take_next(&self, now: Duration) -> Option<Duration> {
        let Some(rate) = self.rate else { return (now < self.span).then_some(now) };
        // Below 2^53, since both are of human size.
        let first = (now.as_secs_f64() * rate) as u64;
        let next = self.next.fetch_update(Relaxed, Relaxed, |next| Some(next.max(first) + 1));
        let next = next.unwrap_or_else(|next| next);
        self.turned_away.fetch_add(first.saturating_sub(next), Relaxed);
        let due = Duration::from_secs_f64(wide(next.max(first)) / rate);
        (due < self.span).then_some(due)
    }

    fn encoded(&self, number: usize) -> Bytes {
        let uid = uuid::Builder::from_random_bytes(rand::random()).into_uuid().to_string();
        let name = format!("u-{}", number + 1);
        let meta = Some(v1::ObjectMeta { name, uid, ..v1::ObjectMeta::default() });
        v1::UnitSpec { meta, ..self.unit.clone() }.encode_to_vec().into()
    }
}

/// So many a second, over a span.
pub(super) fn per_second(n: usize, span: Duration) -> f64 {
    count(n) / span.as_secs_f64().max(1e-6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(rate: Option<f64>) -> Offer {
        Offer::new(v1::UnitSpec::default(), rate, Duration::from_secs(1), Arc::default())
    }

    #[test]
    fn what_nobody_could_offer_in_time_is_turned_away() {
        let ms = Duration::from_millis;
        let offer = offer(Some(100.0));
        assert_eq!([offer.take_next(ms(0)), offer.take_next(ms(0))], [Some(ms(0)), Some(ms(10))]);
        // Due at 20, 30 and 40: nobody was free.
        assert_eq!(offer.take_next(ms(55)), Some(ms(50)));
        assert_eq!((offer.turned_away.load(Relaxed), offer.take_next(ms(55))), (3, Some(ms(60))));
        assert_eq!(offer.take_next(ms(1_000)), None);
        let free = self::offer(None);
        assert_eq!([free.take_next(ms(7)), free.take_next(ms(1_000))], [Some(ms(7)), None]);
    }

    #[test]
    fn units_are_called_by_their_numbers() {
        let unit = v1::UnitSpec::decode(offer(None).encoded(6)).unwrap();
        let meta = unit.meta.unwrap();
        assert_eq!((meta.name.as_str(), meta.uid.len()), ("u-7", 36));
    }
}
