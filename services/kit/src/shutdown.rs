//! The stop token of the process: SIGINT and SIGTERM cancel it.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that SIGINT or SIGTERM cancels. The second such signal ends the process at once.
///
/// # Errors
/// The handlers cannot be installed.
pub fn on_signals() -> io::Result<CancellationToken> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = CancellationToken::new();
    let token = stop.clone();
    crate::task::spawn("signals", async move {
        let name = tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
        };
        tracing::info!(signal = name, "stopping");
        token.cancel();
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        tracing::warn!("second signal, exiting at once");
        // 128 + SIGINT, as shells report it.
        std::process::exit(130);
    });
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[tokio::test]
    async fn sigterm_cancels_the_token() {
        let stop = on_signals().unwrap();
        assert!(!stop.is_cancelled());
        let pid = std::process::id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        tokio::time::timeout(std::time::Duration::from_secs(10), stop.cancelled()).await.unwrap();
    }
}
