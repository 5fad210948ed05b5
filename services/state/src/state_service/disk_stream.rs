//! Streams of what is read from disk: few readers at a time, each part read only when the one before has gone.
//!
//! So a slow reader holds neither a thread nor memory; one that stays away is cut off. The writer of the store waits for
//! none of them.

use std::{sync::Arc, time::Duration};

use godel_kit::{status, task};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// Streams of one kind at a time.
const N_STREAMS_MAX: usize = 2;
/// When to ask again where so many are served.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// Messages that may wait for a reader.
const N_WAITING_MAX: usize = 2;
/// A reader that takes no message for so long is cut off.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) type DiskAnswers<M> = ReceiverStream<Result<M, Status>>;

/// Where the messages of one stream go.
#[derive(Debug)]
pub(super) struct DiskMessages<M>(mpsc::Sender<Result<M, Status>>);

impl<M> DiskMessages<M> {
    /// Sends a message once the reader has taken those before.
    pub(super) async fn send(&self, message: M) -> Result<(), Status> {
        match tokio::time::timeout(SEND_TIMEOUT, self.0.send(Ok(message))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Status::cancelled("the reader has left")),
            Err(_) => Err(Status::deadline_exceeded("the reader is too slow: try again")),
        }
    }
}

/// Who reads now, of one kind of stream.
#[derive(Debug)]
pub(super) struct DiskReading {
    name: &'static str,
    free: Arc<Semaphore>,
}

impl DiskReading {
    /// Nobody reads; `name` says what is read.
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, free: Arc::new(Semaphore::new(N_STREAMS_MAX)) }
    }

    /// Streams what `run` sends, unless so many others read already.
    pub(super) fn start<M, F>(
        &self,
        stop: CancellationToken,
        run: impl FnOnce(DiskMessages<M>) -> F,
    ) -> Result<DiskAnswers<M>, Status>
    where
        M: Send + 'static,
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        let permit = Arc::clone(&self.free).try_acquire_owned().map_err(|_| {
            let what = format!("{N_STREAMS_MAX} other readers read the {}", self.name);
            status::resource_exhausted(status::reason::OVERLOADED, what, RETRY_AFTER)
        })?;
        let (messages, receiver) = mpsc::channel(N_WAITING_MAX);
        let run = run(DiskMessages(messages.clone()));
        task::spawn(self.name, async move {
            let end = tokio::select! {
                end = run => end.err(),
                () = stop.cancelled() => Some(status::stopping()),
                () = messages.closed() => None,
            };
            drop(permit);
            if let Some(status) = end {
                // The end of a stream says that it is whole, so a reader has to hear of this; it may have left.
                let _ = messages.send(Err(status)).await;
            }
        });
        Ok(ReceiverStream::new(receiver))
    }
}

/// Reads from disk.
pub(super) async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    tokio::task::spawn_blocking(read).await.map_err(|_| Status::internal("reading the store panicked"))
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt as _;

    use super::*;

    #[tokio::test]
    async fn more_readers_than_are_served_are_told_to_come_back() {
        let reading = DiskReading::new("test");
        let start =
            || reading.start(CancellationToken::new(), |messages| async move { messages.send(7).await });
        let served: Vec<_> =
            (0..N_STREAMS_MAX).map(|_| Arc::clone(&reading.free).try_acquire_owned().unwrap()).collect();
        let refused = start().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert_eq!(status::retry_after(&refused), Some(RETRY_AFTER));
        drop(served);
        // Who has read it all makes room for others.
        for _ in 0..2 * N_STREAMS_MAX {
            let answers: Vec<_> = start().unwrap().map(Result::unwrap).collect().await;
            assert_eq!(answers, [7]);
        }
    }

    #[tokio::test]
    async fn a_reader_hears_why_a_stream_ends_too_soon() {
        let reading = DiskReading::new("test");
        let lost = |messages: DiskMessages<u32>| async move {
            messages.send(1).await?;
            Err(Status::data_loss("gone"))
        };
        let answers: Vec<_> = reading.start(CancellationToken::new(), lost).unwrap().collect().await;
        assert!(answers[0].is_ok() && answers[1].as_ref().is_err_and(|status| status.message() == "gone"));
        let stop = CancellationToken::new();
        stop.cancel();
        let stopped = reading.start(stop, |_: DiskMessages<u32>| std::future::pending()).unwrap();
        let stopped: Vec<_> = stopped.collect().await;
        assert!(stopped[0].as_ref().is_err_and(|status| status.code() == tonic::Code::Unavailable));
    }
}
