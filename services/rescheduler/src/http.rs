//! Runs of policies by HTTP, `POST /policies/NAME/run` where metrics are served, and by the signal SIGUSR1.
//!
//! Nobody proves who calls, so HTTP is answered on a loopback address only, and not to pages of browsers: these name their origin.

use godel_kit::{
    CancellationToken,
    config::ServerConfig,
    metrics::{Metrics, Post, PostAnswer},
    task,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, oneshot},
};

use crate::engine::Call;

/// Answers posts to the listener of metrics.
pub(crate) fn answer(metrics: &Metrics, server: &ServerConfig, calls: &mpsc::Sender<Call>) {
    if !server.metrics_listen.ip().is_loopback() {
        return;
    }
    let calls = calls.clone();
    metrics.answer_posts(move |post| {
        let calls = calls.clone();
        Box::pin(async move { run(&post, &calls).await })
    });
}

async fn run(post: &Post, calls: &mpsc::Sender<Call>) -> PostAnswer {
    let name = post.path.strip_prefix("/policies/").and_then(|rest| rest.strip_suffix("/run"));
    let Some(name) = name.filter(|name| !name.is_empty() && !name.contains('/')) else {
        return (404, "there is only /policies/NAME/run\n".to_owned());
    };
    if post.has_origin {
        return (403, "pages of browsers may not run policies\n".to_owned());
    }
    let (reply, answer) = oneshot::channel();
    let policy = name.to_owned();
    let call: Call = Box::new(move |engine| {
        // Nobody may be left to hear it.
        let _ = reply.send(engine.ask_by_http(&policy));
    });
    let gone = || (503, "the rescheduler stops\n".to_owned());
    if calls.send(call).await.is_err() {
        return gone();
    }
    match answer.await {
        Ok(Ok(())) => (202, format!("policy `{name}` runs at the next occasion\n")),
        Ok(Err((true, why))) => (404, format!("{why}\n")),
        Ok(Err((false, why))) => (503, format!("{why}\n")),
        Err(_) => gone(),
    }
}

/// Has policies run at the signal SIGUSR1.
pub(crate) fn follow_signal(calls: &mpsc::Sender<Call>, stop: CancellationToken) {
    let mut signals = match signal(SignalKind::user_defined1()) {
        Ok(signals) => signals,
        Err(error) => {
            tracing::warn!(%error, "the signal SIGUSR1 cannot be followed");
            return;
        }
    };
    let calls = calls.clone();
    task::spawn("rescheduler.signal", async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                got = signals.recv() => if got.is_none() { return },
            }
            let call: Call = Box::new(|engine| engine.on_signal());
            if calls.send(call).await.is_err() {
                return;
            }
        }
    });
}
