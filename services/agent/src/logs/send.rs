//! Sends logs to state, which passes them to who reads them: each on a connection of its own, so that a reader that is slow
//! holds up nothing else.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use godel_core_agent::RunKey;
use godel_kit::{CancellationToken, client::channel, config::ClientConfig};
use godel_proto::v1::{self, log_service_client::LogServiceClient};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;

use super::{Part, last_lines, read};

/// Logs that an agent sends at a time.
const N_SENDERS_MAX: usize = 16;
/// Parts that wait for the connection.
const N_PARTS_MAX: usize = 2;
/// Bytes of one part.
const PART_BYTES: usize = 64 << 10;
/// Between looks at the end of a log that is followed.
const PAUSE: Duration = Duration::from_millis(100);
/// State hears the rest of an answer in this time, or not at all.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// What state asks for.
#[derive(Debug)]
pub(crate) struct LogAsked {
    /// Name of the node.
    pub(crate) node: String,
    /// Where the log would be; `None`: the node keeps none.
    pub(crate) dir: Option<PathBuf>,
    pub(crate) request: v1::LogRequest,
    /// The incarnation is not over.
    pub(crate) is_live: bool,
}

/// The logs that are being sent.
#[derive(Debug)]
pub(crate) struct LogSenders {
    free: Arc<Semaphore>,
    /// Incarnations whose logs are followed, and what ends that.
    followed: Vec<(RunKey, u32, CancellationToken)>,
}

impl Default for LogSenders {
    fn default() -> Self {
        Self { free: Arc::new(Semaphore::new(N_SENDERS_MAX)), followed: Vec::new() }
    }
}

impl LogSenders {
    /// Answers a request, in a task of its own.
    pub(crate) fn send(&mut self, config: &ClientConfig, asked: LogAsked) {
        let kept = asked.dir.as_ref().is_some_and(|dir| dir.is_dir());
        if asked.request.if_kept && !kept {
            return;
        }
        // The address has served for the session.
        let Ok(channel) = channel(&config.state, config) else { return };
        let permit = Arc::clone(&self.free).try_acquire_owned().ok();
        let over = CancellationToken::new();
        if !asked.is_live || !asked.request.follow {
            over.cancel();
        } else if permit.is_some() {
            let key = RunKey { unit: asked.request.unit_id, ordinal: asked.request.ordinal };
            self.followed.push((key, asked.request.incarnation, over.clone()));
        }
        let client = LogServiceClient::new(channel);
        godel_kit::task::spawn("agent.log", answer(client, asked, permit, over));
    }

    /// Ends the following of what `is_live` does not know.
    pub(crate) fn end(&mut self, is_live: impl Fn(RunKey, u32) -> bool) {
        self.followed.retain(|(key, incarnation, over)| {
            if over.is_cancelled() {
                return false;
            }
            let stays = is_live(*key, *incarnation);
            if !stays {
                over.cancel();
            }
            stays
        });
    }
}

async fn answer(
    mut client: LogServiceClient<godel_kit::client::Channel>,
    asked: LogAsked,
    permit: Option<OwnedSemaphorePermit>,
    over: CancellationToken,
) {
    // The shard forgets it then.
    let _over = over.clone().drop_guard();
    let (parts, queue) = mpsc::channel(N_PARTS_MAX);
    let mut call = std::pin::pin!(client.send_log(ReceiverStream::new(queue)));
    let filled = fill(&parts, &asked, permit.is_some(), &over);
    tokio::select! {
        // Nobody reads any more, or state is away: whoever reads asks again.
        ended = &mut call => return note(&asked, ended.map(drop)),
        () = filled => {}
    }
    drop(parts);
    if let Ok(ended) = tokio::time::timeout(END_TIMEOUT, call).await {
        note(&asked, ended.map(drop));
    }
}

fn note(asked: &LogAsked, ended: Result<(), tonic::Status>) {
    if let Err(status) = ended {
        let unit_id = asked.request.unit_id;
        tracing::debug!(unit_id, code = ?status.code(), why = status.message(), "a log was not sent to its end");
    }
}

/// Puts the answer into the queue: why there is none, or the log up to its end.
async fn fill(
    parts: &mpsc::Sender<v1::SendLogRequest>,
    asked: &LogAsked,
    has_permit: bool,
    over: &CancellationToken,
) {
    let part = |said: Result<Part, v1::LogFailure>| {
        let (Part { start, bytes, .. }, failure) = match said {
            Ok(part) => (part, None),
            Err(failure) => (Part::default(), Some(failure)),
        };
        let (request_id, node) = (asked.request.request_id, asked.node.clone());
        v1::SendLogRequest { request_id, offset: start, data: bytes, failure, node }
    };
    let failed = |not_kept, message: String| part(Err(v1::LogFailure { not_kept, message, busy: false }));
    let Some(dir) = asked.dir.clone() else {
        let _is_gone =
            parts.send(failed(true, "it is simulated, and what runs there writes nothing".to_owned())).await;
        return;
    };
    if !has_permit {
        let text = format!("its agent sends {N_SENDERS_MAX} logs already: try again when some are done");
        let busy = v1::LogFailure { not_kept: false, message: text, busy: true };
        let _is_gone = parts.send(part(Err(busy))).await;
        return;
    }
    let v1::LogRequest { tail_lines, from_offset, .. } = asked.request;
    let begin = {
        let dir = dir.clone();
        in_background(move || match (from_offset, tail_lines) {
            (Some(offset), _) => Ok(offset),
            (None, Some(n_lines)) => {
                last_lines(&dir, usize::try_from(n_lines).unwrap_or(usize::MAX), u64::MAX)
            }
            (None, None) => Ok(0),
        })
    };
    let mut next = begin.await;
    // The first part is sent in any case: it says that there is a log.
    let mut is_first = true;
    // Who does not follow gets what is there now, however fast more is written.
    let mut until = u64::MAX;
    loop {
        // Looked at before the log is, so that nothing comes in between.
        let is_over = over.is_cancelled();
        let read = match next {
            Ok(offset) => {
                let dir = dir.clone();
                in_background(move || read(&dir, offset, PART_BYTES)).await
            }
            Err(error) => Err(error),
        };
        let mut log = match read {
            Ok(log) => log,
            Err(error) if error.kind() == io::ErrorKind::NotFound && asked.is_live && is_first => {
                // It was just started and has not written yet.
                Part::default()
            }
            Err(error) => {
                let not_kept = error.kind() == io::ErrorKind::NotFound;
                let text = match not_kept {
                    true => "the log was removed, or nothing was ever written".to_owned(),
                    false => format!("the log cannot be read: {error}"),
                };
                let _is_gone = parts.send(failed(not_kept, text)).await;
                return;
            }
        };
        if is_first && !asked.request.follow {
            until = log.end;
        }
        log.bytes.truncate(usize::try_from(until.saturating_sub(log.start)).unwrap_or(usize::MAX));
        let (reads_on, is_empty) = (log.next, log.bytes.is_empty());
        next = Ok(reads_on);
        if (is_first || !is_empty) && parts.send(part(Ok(log))).await.is_err() {
            return;
        }
        is_first = false;
        if reads_on >= until || (is_empty && is_over) {
            return;
        }
        if !is_empty {
            continue;
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = over.cancelled() => {}
            () = parts.closed() => return,
        }
    }
}

/// Reads files where that holds nobody up.
async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|panicked| Err(io::Error::other(panicked)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logs::LogWriter;

    fn asked(dir: Option<PathBuf>, request: v1::LogRequest, is_live: bool) -> LogAsked {
        LogAsked { node: "n".to_owned(), dir, request, is_live }
    }

    /// What is sent, as text, and why no more is.
    async fn sent(
        asked: LogAsked,
        has_permit: bool,
        over: CancellationToken,
    ) -> (String, Option<(bool, String)>) {
        let (parts, mut queue) = mpsc::channel(N_PARTS_MAX);
        let fill = async move { fill(&parts, &asked, has_permit, &over).await };
        let (mut text, mut failure) = (String::new(), None);
        let take = async {
            while let Some(part) = queue.recv().await {
                assert_eq!(part.node, "n");
                text.push_str(std::str::from_utf8(&part.data).unwrap());
                failure = part.failure.map(|failure| (failure.not_kept, failure.message));
            }
        };
        tokio::join!(fill, take);
        (text, failure)
    }

    fn over() -> CancellationToken {
        let over = CancellationToken::new();
        over.cancel();
        over
    }

    #[tokio::test]
    async fn a_log_is_sent_from_where_it_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        LogWriter::open(&path, 1 << 20, 2).unwrap().write(b"one\ntwo\nthree\n");
        let request = v1::LogRequest::default();
        for (tail_lines, from_offset, expected) in [
            (None, None, "one\ntwo\nthree\n"),
            (Some(2), None, "two\nthree\n"),
            (Some(0), None, ""),
            (Some(1), Some(4), "two\nthree\n"),
            (None, Some(99), ""),
        ] {
            let request = v1::LogRequest { tail_lines, from_offset, ..request };
            let (text, failure) = sent(asked(Some(path.clone()), request, false), true, over()).await;
            assert_eq!((text.as_str(), failure), (expected, None), "{tail_lines:?} {from_offset:?}");
        }
    }

    #[tokio::test]
    async fn who_does_not_follow_gets_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = LogWriter::open(&path, 1 << 30, 2).unwrap();
        let line = vec![b'x'; PART_BYTES];
        let n_parts = 4;
        (0..n_parts).for_each(|_| log.write(&line));
        let (parts, mut queue) = mpsc::channel(1);
        let asked = asked(Some(path), v1::LogRequest::default(), true);
        let fill = async move { fill(&parts, &asked, true, &over()).await };
        let take = async {
            let mut n_bytes = 0;
            while let Some(part) = queue.recv().await {
                n_bytes += part.data.len();
                log.write(&line);
            }
            n_bytes
        };
        let ((), n_bytes) = tokio::join!(fill, take);
        assert_eq!(n_bytes, n_parts * PART_BYTES);
    }

    #[tokio::test]
    async fn a_followed_log_is_sent_until_the_run_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let request = v1::LogRequest { follow: true, ..v1::LogRequest::default() };
        let over = CancellationToken::new();
        let write = async {
            let mut log = LogWriter::open(&path, 1 << 20, 2).unwrap();
            for text in ["a\n", "b\n", "c\n"] {
                log.write(text.as_bytes());
                tokio::time::sleep(PAUSE).await;
            }
            log.write(b"the last words\n");
            over.cancel();
        };
        let (_, (text, failure)) =
            tokio::join!(write, sent(asked(Some(path.clone()), request, true), true, over.clone()));
        assert_eq!((text.as_str(), failure), ("a\nb\nc\nthe last words\n", None));
    }

    #[tokio::test]
    async fn who_asks_hears_why_there_is_no_log() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("no");
        let why = async |dir, is_live, has_permit| {
            let request = v1::LogRequest::default();
            sent(asked(dir, request, is_live), has_permit, over()).await.1
        };
        let says = |failure: Option<(bool, String)>, not_kept: bool, word: &str| {
            let (is_not_kept, text) = failure.unwrap();
            assert!(is_not_kept == not_kept && text.contains(word), "{text}");
        };
        says(why(None, true, true).await, true, "simulated");
        says(why(Some(missing.clone()), false, true).await, true, "removed");
        says(why(Some(missing), true, false).await, false, "16 logs");
    }

    #[test]
    fn what_is_over_is_followed_no_longer() {
        let mut senders = LogSenders::default();
        let key = |unit| RunKey { unit, ordinal: 0 };
        let tokens: Vec<_> = (0..3).map(|_| CancellationToken::new()).collect();
        for (unit, token) in (0..).zip(&tokens) {
            senders.followed.push((key(unit), 0, token.clone()));
        }
        tokens[2].cancel();
        senders.end(|key, _| key.unit == 0);
        assert_eq!(
            tokens.iter().map(CancellationToken::is_cancelled).collect::<Vec<_>>(),
            [false, true, true]
        );
        assert_eq!(senders.followed.len(), 1);
    }
}
