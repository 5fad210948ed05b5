//! The change log: page by page, and as it grows.

use std::{collections::VecDeque, time::Duration};

use godel_kit::{client::Backoff, status};
use godel_proto::v1;
use tokio::time::Instant;
use tonic::Status;

use crate::{client::Client, exit::Failure, pages::read_pages};

/// Lines asked for in one page: what the server gives at most.
const PAGE_SIZE: u32 = 500;
/// Lines that are compared with what comes again after a stream was opened anew.
const N_SHOWN_MAX: usize = 2_000;
/// A log that nobody serves for so long is no longer followed.
const AWAY_MAX: Duration = Duration::from_secs(60);
/// Pauses between tries, at random up to these.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Lines that match, at most `limit`, the newest first, and whether there are more.
///
/// # Errors
/// What the server answered.
pub async fn list(
    client: &Client,
    request: &v1::ListChangesRequest,
    limit: usize,
) -> Result<(Vec<v1::LoggedChange>, bool), Failure> {
    read_pages(limit, async |page_token| {
        let request = v1::ListChangesRequest { page_size: PAGE_SIZE, page_token, ..request.clone() };
        let page = client.read(async || client.changes().list_changes(request.clone()).await).await?;
        let v1::ListChangesResponse { changes, next_page_token } = page.into_inner();
        Ok((changes, next_page_token))
    })
    .await
}

/// What was shown of a log that is followed.
struct FollowedLog<'a, S> {
    client: &'a Client,
    request: v1::ListChangesRequest,
    show: S,
    shown: VecDeque<v1::LoggedChange>,
    left: usize,
}

/// Shows lines that match, the oldest first: those since `request.since_ms`, or from now on if that is 0, and then each that comes, until `limit` were
/// shown. A stream that breaks off is opened again, and nothing is left out.
///
/// # Errors
/// What the server answered, or `show`.
pub async fn follow(
    client: &Client,
    request: v1::ListChangesRequest,
    limit: usize,
    show: impl FnMut(&v1::LoggedChange) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut log = FollowedLog { client, request, show, shown: VecDeque::new(), left: limit };
    let (mut backoff, mut heard) = (Backoff::new(PAUSE, PAUSE_MAX), Instant::now());
    while log.left > 0 {
        let began = Instant::now();
        let Some(ended) = log.follow_once().await? else { return Ok(()) };
        let away_for = if began.elapsed() > PAUSE_MAX { Duration::ZERO } else { heard.elapsed() };
        if !status::is_retryable_idempotent(&ended) || away_for >= AWAY_MAX {
            return Err(client.explain(ended));
        }
        if away_for.is_zero() {
            heard = Instant::now();
            backoff.reset();
        }
        tokio::time::sleep(backoff.pause()).await;
    }
    Ok(())
}

impl<S: FnMut(&v1::LoggedChange) -> Result<(), Failure>> FollowedLog<'_, S> {
    /// Follows one stream. Returns how it ended; `None`: enough was shown.
    async fn follow_once(&mut self) -> Result<Option<Status>, Failure> {
        let v1::ListChangesRequest { principal, object, refused_only, .. } = self.request.clone();
        let watch = v1::WatchChangesRequest { principal, object, refused_only };
        let client = self.client;
        let opened = client.read(async || client.changes().watch_changes(watch.clone()).await).await?;
        let mut stream = opened.into_inner();
        // What is written from here on comes by the stream, and what was written before is listed.
        match stream.message().await {
            Ok(Some(first)) if self.request.since_ms == 0 => self.request.since_ms = first.now_ms,
            Ok(Some(_)) => {}
            Ok(None) => return Ok(Some(Status::unavailable("the stream ended"))),
            Err(status) => return Ok(Some(status)),
        }
        let (before, _) = list(client, &self.request, usize::MAX).await?;
        if self.show_all(before.into_iter().rev())? {
            return Ok(None);
        }
        loop {
            match stream.message().await {
                Ok(Some(message)) => {
                    if self.show_all(message.changes)? {
                        return Ok(None);
                    }
                }
                Ok(None) => return Ok(Some(Status::unavailable("the stream ended"))),
                Err(status) => return Ok(Some(status)),
            }
        }
    }

    /// Shows lines that were not shown before. Returns whether that was enough.
    fn show_all(&mut self, changes: impl IntoIterator<Item = v1::LoggedChange>) -> Result<bool, Failure> {
        for change in changes {
            if self.left == 0 {
                break;
            }
            if self.shown.contains(&change) {
                continue;
            }
            (self.show)(&change)?;
            self.left -= 1;
            self.request.since_ms = self.request.since_ms.max(change.time_ms);
            if self.shown.len() >= N_SHOWN_MAX {
                self.shown.pop_front();
            }
            self.shown.push_back(change);
        }
        Ok(self.left == 0)
    }
}
