//! Which state leads, as clients that know several states hear of it.
//!
//! A stream has no task and no queue: it says what is known when its client has room for a message, so a slow client takes no
//! memory and is told the newest.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use godel_base::ids::Epoch;
use godel_kit::{CancellationToken, status};
use godel_proto::v1;
use godel_store::{Standing, Store};
use tokio::sync::watch;
use tokio_stream::Stream;
use tokio_util::sync::ReusableBoxFuture;
use tonic::Status;

use crate::freshness;

/// Shortest time between two messages: 20,000 clients that ask for it take 400,000 messages a second.
const BEAT_MS_MIN: u32 = 50;
/// Longest time between two messages of a client that asks for any.
const BEAT_MS_MAX: u32 = 10_000;

/// Which state leads, as far as this one knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaderView {
    /// This state leads.
    pub(crate) leads: bool,
    /// Address of the leader; empty: not known.
    pub(crate) address: String,
    /// Grows with each leader of the store; 0: not known.
    pub(crate) term: u64,
}

/// How often the leader looks whether it is certain to lead.
const CERTAINTY_LOOK: Duration = Duration::from_millis(50);

/// Shows which state leads: this one, at its `own` address, or another one. `epoch` is that of its own registration, which counts its turns where no other state may
/// lead.
pub(crate) async fn show_leader(
    store: Store,
    own: String,
    epoch: Epoch,
    views: watch::Sender<LeaderView>,
    stop: CancellationToken,
) {
    let mut standing = store.standing();
    loop {
        let view = view_of(&standing.borrow_and_update(), &own, epoch);
        views.send_if_modified(|known| std::mem::replace(known, view.clone()) != view);
        tokio::select! {
            changed = standing.changed() => if changed.is_err() { stop.cancelled().await; return },
            () = tokio::time::sleep(CERTAINTY_LOOK) => {}
            () = stop.cancelled() => return,
        }
    }
}

fn view_of(standing: &Standing, own: &str, epoch: Epoch) -> LeaderView {
    match standing {
        Standing::Leads(Some(hold)) => {
            LeaderView { leads: freshness::is_certain(hold), address: own.to_owned(), term: hold.number() }
        }
        Standing::Follows(Some(holder)) => {
            LeaderView { leads: false, address: holder.address.clone(), term: holder.number }
        }
        Standing::Leads(None) => LeaderView { leads: true, address: own.to_owned(), term: epoch.0 },
        Standing::Follows(None) | Standing::Ended(_) => LeaderView::default(),
    }
}

/// What streams about the leader are made of.
#[derive(Clone)]
pub(crate) struct LeaderWatch {
    store: Store,
    /// Changes when the leader does.
    views: watch::Receiver<LeaderView>,
    stop: CancellationToken,
}

impl LeaderWatch {
    pub(crate) fn new(store: Store, views: watch::Receiver<LeaderView>, stop: CancellationToken) -> Self {
        Self { store, views, stop }
    }

    /// The stream for one client: a message at once, at each change, and at each beat that the client asks for.
    pub(crate) fn stream(&self, request: &v1::WatchLeaderRequest) -> LeaderStream {
        let beat = beat_of(request.beat_interval_ms);
        let mut watch = self.clone();
        watch.views.mark_changed();
        LeaderStream { next: Some(ReusableBoxFuture::new(next(watch, beat))), beat }
    }

    fn message(&mut self) -> v1::WatchLeaderResponse {
        let LeaderView { leads, address, term } = self.views.borrow_and_update().clone();
        let (revision, store_id) = self.store.read(|state| (state.revision().0, state.store_id().0));
        v1::WatchLeaderResponse { leads, address, term, revision, store_id }
    }
}

/// Messages about the leader; it ends when this state stops.
pub(crate) struct LeaderStream {
    /// `None`: the stream has ended.
    next: Option<ReusableBoxFuture<'static, Option<(v1::WatchLeaderResponse, LeaderWatch)>>>,
    beat: Option<Duration>,
}

/// Longest time between two messages; `None`: the client asks for no beats.
fn beat_of(asked_ms: u32) -> Option<Duration> {
    let beat_ms = asked_ms.clamp(BEAT_MS_MIN, BEAT_MS_MAX);
    (asked_ms > 0).then(|| Duration::from_millis(u64::from(beat_ms)))
}

/// The message after the next change or beat; `None`: this state stops.
async fn next(
    mut watch: LeaderWatch,
    beat: Option<Duration>,
) -> Option<(v1::WatchLeaderResponse, LeaderWatch)> {
    let beat = async {
        match beat {
            Some(beat) => tokio::time::sleep(beat).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = watch.stop.cancelled() => return None,
        changed = watch.views.changed() => changed.ok()?,
        () = beat => {}
    }
    Some((watch.message(), watch))
}

impl Stream for LeaderStream {
    type Item = Result<v1::WatchLeaderResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let Some(pending) = &mut this.next else { return Poll::Ready(None) };
        let Some((message, watch)) = ready!(pending.poll(cx)) else {
            this.next = None;
            return Poll::Ready(Some(Err(status::stopping())));
        };
        pending.set(next(watch, this.beat));
        Poll::Ready(Some(Ok(message)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use godel_crash::CrashPoints;
    use godel_store::{Engine, StoreConfig, log::memory::MemoryDisk};
    use tokio_stream::StreamExt as _;

    use super::*;

    fn view(leads: bool, address: &str, term: u64) -> LeaderView {
        LeaderView { leads, address: address.to_owned(), term }
    }

    /// A watch that was told of no leader, and the way to tell it.
    fn watch_of_none() -> (watch::Sender<LeaderView>, CancellationToken, LeaderWatch) {
        let engine = Engine::Memory(MemoryDisk::default());
        let store = Store::open(StoreConfig::new(engine), Arc::new(|| 1), CrashPoints::default()).unwrap();
        let ((leader, views), stop) = (watch::channel(LeaderView::default()), CancellationToken::new());
        (leader, stop.clone(), LeaderWatch::new(store, views, stop))
    }

    async fn told(stream: &mut LeaderStream) -> LeaderView {
        let v1::WatchLeaderResponse { leads, address, term, .. } = stream.next().await.unwrap().unwrap();
        LeaderView { leads, address, term }
    }

    #[tokio::test]
    async fn each_change_is_told_and_a_slow_client_is_told_the_newest() {
        let (leader, stop, watch) = watch_of_none();
        let mut stream = watch.stream(&v1::WatchLeaderRequest::default());
        assert_eq!(told(&mut stream).await, view(false, "", 0));
        leader.send_replace(view(false, "http://a", 1));
        assert_eq!(told(&mut stream).await, view(false, "http://a", 1));
        leader.send_replace(view(false, "http://b", 2));
        leader.send_replace(view(true, "http://c", 3));
        assert_eq!(told(&mut stream).await, view(true, "http://c", 3));
        // Whoever comes late is told at once.
        assert_eq!(told(&mut watch.stream(&v1::WatchLeaderRequest::default())).await.term, 3);
        stop.cancel();
        let end = stream.next().await.unwrap().unwrap_err();
        assert_eq!(end.code(), tonic::Code::Unavailable);
        assert!(stream.next().await.is_none());
    }

    #[test]
    fn beats_come_as_often_as_asked_within_the_bounds() {
        for (asked_ms, beat_ms) in [(1, 50), (50, 50), (700, 700), (60_000, 10_000)] {
            assert_eq!(beat_of(asked_ms), Some(Duration::from_millis(beat_ms)));
        }
        assert_eq!(beat_of(0), None);
    }

    #[tokio::test]
    async fn a_beat_comes_without_a_change() {
        let (_leader, _stop, watch) = watch_of_none();
        let mut stream = watch.stream(&v1::WatchLeaderRequest { beat_interval_ms: 1 });
        for _ in 0..3 {
            assert_eq!(told(&mut stream).await, view(false, "", 0));
        }
    }
}
