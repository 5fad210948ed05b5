//! Named tasks. A panic is a bug report: it is logged as an ERROR with the task's name, counted for the exit
//! code of the process, and stops the service when the service cannot live without the task.

use std::{
    any::Any,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering},
    task::Poll,
};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

pub use tokio_util::task::TaskTracker;

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Spawns `future` in a span of its name. A panic is logged and counted, and the handle shows it.
pub fn spawn<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    spawn_with(name, None, future)
}

/// Spawns a task without which the service is worth nothing: its panic also cancels `stop`.
pub fn spawn_service<F>(name: &'static str, stop: &CancellationToken, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    spawn_with(name, Some(stop.clone()), future)
}

/// Tasks of this process that have panicked; a process with any should exit with a failure.
pub fn panics() -> usize {
    PANICS.load(Ordering::SeqCst)
}

fn spawn_with<F>(name: &'static str, stop: Option<CancellationToken>, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let span = tracing::info_span!(parent: None, "task", task = name);
    let guarded = async move {
        let mut future = pin!(future);
        let outcome = poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(panic) => Poll::Ready(Err(panic)),
        })
        .await;
        match outcome {
            Ok(output) => output,
            Err(panic) => {
                PANICS.fetch_add(1, Ordering::SeqCst);
                tracing::error!(task = name, panic = panic_text(&*panic), "task panicked");
                if let Some(stop) = stop {
                    stop.cancel();
                }
                resume_unwind(panic)
            }
        }
    };
    tokio::spawn(guarded.instrument(span))
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_stops_the_service_and_is_counted() {
        let stop = CancellationToken::new();
        let before = panics();
        let handle = spawn_service("doomed", &stop, async { panic!("on purpose") });
        stop.cancelled().await;
        assert!(handle.await.is_err_and(|error| error.is_panic()));
        assert!(panics() > before);
        assert_eq!(spawn("fine", async { 7 }).await.unwrap(), 7);
    }
}
