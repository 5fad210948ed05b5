//! Changes as they come: each watch looks at what was written since it last looked.

use std::{sync::Arc, time::Duration};

use godel_identity::{change_log::ChangeFilter, permission::Principal};
use godel_kit::{CancellationToken, clock::SharedClock, status, task};
use godel_proto::v1;
use godel_store::{Key, State, Store};
use tokio::{sync::mpsc, time::MissedTickBehavior};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::{logged, number, stored_line, submissions};

/// How often a watch looks. A commit is shown half a second later at most.
const INTERVAL: Duration = Duration::from_millis(500);
/// Messages that wait for a slow client; then the watch waits.
const N_WAITING_MAX: usize = 4;
/// Records of each kind in one message: 500 lines fit, as on a page.
const N_LOOK_MAX: usize = 250;

/// One watch.
pub(super) struct ChangeWatch {
    pub(super) store: Store,
    pub(super) clock: SharedClock,
    pub(super) principal: String,
    pub(super) object: String,
    pub(super) is_refused_only: bool,
    /// `None`: one who sees everything.
    pub(super) reader: Option<Arc<Principal>>,
}

/// The last change and the last unit that were looked at.
#[derive(Clone, Copy, Debug)]
struct WatchCursor {
    change: u64,
    unit: u64,
    /// Changes that the last look took.
    n_changes: usize,
}

impl WatchCursor {
    /// Whether there may be more behind it than one look took.
    fn is_far_from(self, before: Self) -> bool {
        self.unit.saturating_sub(before.unit) >= N_LOOK_MAX as u64 || self.n_changes >= N_LOOK_MAX
    }

    fn last_of(state: &State) -> Self {
        let last = state.records_back(v1::Kind::Change, None).next();
        Self { change: last.map_or(0, |(key, _)| number(key)), unit: state.last_unit_id().0, n_changes: 0 }
    }
}

pub(super) type ChangeStream = ReceiverStream<Result<v1::WatchChangesResponse, Status>>;

impl ChangeWatch {
    /// Begins a watch of what is committed from now on.
    pub(super) fn start(self, stop: CancellationToken) -> ChangeStream {
        let (messages, stream) = mpsc::channel(N_WAITING_MAX);
        let cursor = self.store.read(WatchCursor::last_of);
        task::spawn("change-watch", async move {
            tokio::select! {
                () = self.run(cursor, &messages) => {}
                () = stop.cancelled() => {
                    // The client may have left.
                    let _ = messages.send(Err(status::stopping())).await;
                }
            }
        });
        ReceiverStream::new(stream)
    }

    /// Sends until the client has left.
    async fn run(
        &self,
        mut cursor: WatchCursor,
        messages: &mpsc::Sender<Result<v1::WatchChangesResponse, Status>>,
    ) {
        let mut interval = tokio::time::interval(INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first message is empty: the watch has begun.
        let (mut changes, mut is_due) = (Vec::new(), true);
        loop {
            let message = v1::WatchChangesResponse { changes, now_ms: self.clock.wall_ms() };
            if is_due && messages.send(Ok(message)).await.is_err() {
                return;
            }
            tokio::select! {
                _ = interval.tick() => {}
                () = messages.closed() => return,
            }
            // Where much is written, the next look is at once.
            let before = cursor;
            changes = self.look(&mut cursor);
            is_due = !changes.is_empty();
            if cursor.is_far_from(before) {
                interval.reset_immediately();
            }
        }
    }

    /// What was written since the last look.
    fn look(&self, cursor: &mut WatchCursor) -> Vec<v1::LoggedChange> {
        let filter = ChangeFilter {
            principal: &self.principal,
            object: &self.object,
            is_refused_only: self.is_refused_only,
            reader: self.reader.as_deref(),
        };
        let mut found = self.store.read(|state| {
            let mut found = Vec::new();
            cursor.n_changes = 0;
            for (key, record) in
                state.records(v1::Kind::Change, Some(&Key::Id(cursor.change))).take(N_LOOK_MAX)
            {
                (cursor.change, cursor.n_changes) = (number(key), cursor.n_changes + 1);
                let line = stored_line(record).and_then(|line| filter.shown(line));
                found.extend(line.map(|line| logged(cursor.change, record.create_time_ms, &line)));
            }
            for submission in submissions::forward(state, cursor.unit, N_LOOK_MAX) {
                cursor.unit = submission.unit;
                let line = submission.line.and_then(|line| filter.shown(line));
                found.extend(line.map(|line| logged(0, submission.time_ms, &line)));
            }
            found
        });
        found.sort_by_key(|change| change.time_ms);
        found
    }
}
