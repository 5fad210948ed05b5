//! `godel unit watch`: goes on after a lost connection or a change of leader from where it was.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::{self, Format, shown},
    views::UnitView,
};
use godel_kit::{client::Backoff, status};
use godel_proto::v1;
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::StreamExt as _;
use tonic::{Code as Rpc, Status};

use crate::{args::split, command::each::LIST_UNITS};

/// A watch that nobody serves for so long is over.
const AWAY_MAX: Duration = Duration::from_secs(60);
/// A server that never answered is tried for so long, as by other verbs.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// After so long without a first answer it is said what is waited for.
const SILENT: Duration = Duration::from_secs(5);
/// Pauses between tries, at random up to these.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Changes of several watches that wait to be shown.
const N_AHEAD: usize = 64;

/// What a watch has to say.
enum WatchNews {
    Unit(Box<UnitView>),
    /// The record of one of all units is gone.
    Deleted(v1::DeletedUnit),
    /// The record of the only unit is gone.
    Gone(String),
    /// The server has not answered yet.
    Silence,
    Failed(Failure),
}

/// Prints each change until interrupted.
pub(super) async fn watch(
    client: &Client,
    namespace: &str,
    names: &[String],
    count: Option<usize>,
    format: Format,
) -> Result<(), Failure> {
    let titles = ["REVISION", "NAME", "PHASE", "READY", "PENDING", "SUCCEEDED", "FAILED"];
    if matches!(format, Format::Table | Format::Wide) {
        output::print(&line(&titles.map(str::to_owned)))?;
    }
    let (tx, mut said) = mpsc::channel(N_AHEAD);
    let all = [String::new()];
    for name in if names.is_empty() { &all[..] } else { names } {
        let (namespace, name) = split(namespace, name);
        let follow = follow(client.clone(), namespace.to_owned(), name.to_owned(), tx.clone());
        godel_kit::task::spawn("unit.watch", follow);
    }
    drop(tx);
    let mut left = count.unwrap_or(usize::MAX);
    while left > 0
        && let Some(said) = said.recv().await
    {
        match said {
            WatchNews::Unit(view) => {
                show(&view, format)?;
                left -= 1;
            }
            WatchNews::Deleted(unit) => {
                show_deletion(unit, format)?;
                left -= 1;
            }
            WatchNews::Gone(name) => output::say(format!("unit {}: its record was deleted", shown(&name))),
            WatchNews::Silence => {
                output::say(format!("no answer from {} yet: still trying", client.address()))
            }
            WatchNews::Failed(failure) => return Err(failure),
        }
    }
    Ok(())
}

/// What comes next after a stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterEnd {
    /// From where it was.
    Resume,
    /// The history is gone, or is another one: the present state first.
    Anew,
    Gone,
    Fail,
}

fn next(status: &Status, was_shown: bool) -> AfterEnd {
    match status.code() {
        Rpc::OutOfRange => AfterEnd::Anew,
        Rpc::NotFound if was_shown => AfterEnd::Gone,
        _ if status::is_retryable_idempotent(status)
            || status::has_reason(status, status::reason::SLOW_WATCHER) =>
        {
            AfterEnd::Resume
        }
        _ => AfterEnd::Fail,
    }
}

async fn follow(client: Client, namespace: String, name: String, said: mpsc::Sender<WatchNews>) {
    let (mut from_revision, mut store_id) = (0, 0);
    let mut was_shown = false;
    let mut backoff = Backoff::new(PAUSE, PAUSE_MAX);
    let mut heard = Instant::now();
    let began = heard;
    // Something has come of this server, and that nothing has was said.
    let (was_heard, mut was_told) = (AtomicBool::new(false), false);
    // Whoever listened may have had enough.
    while !said.is_closed() {
        let request = v1::WatchUnitsRequest {
            namespace: namespace.clone(),
            name: name.clone(),
            from_revision,
            store_id,
        };
        let call = client.leading_units(async |mut units| {
            let mut stream = units.watch_units(request.clone()).await?.into_inner();
            was_heard.store(true, Ordering::Relaxed);
            while let Some(answer) = stream.next().await {
                let answer = answer?;
                backoff.reset();
                heard = Instant::now();
                for unit in answer.deleted {
                    if said.send(WatchNews::Deleted(unit)).await.is_err() {
                        return Ok(());
                    }
                }
                for unit in &answer.units {
                    was_shown = true;
                    if said.send(WatchNews::Unit(Box::new(UnitView::from(unit)))).await.is_err() {
                        return Ok(());
                    }
                }
                (from_revision, store_id) = (answer.revision + 1, answer.store_id);
            }
            Err::<(), _>(Status::unavailable("the watch ended"))
        });
        let ended = {
            let mut call = std::pin::pin!(call);
            tokio::select! {
                ended = &mut call => ended,
                () = tokio::time::sleep_until(began + SILENT), if !was_told => {
                    was_told = true;
                    if !was_heard.load(Ordering::Relaxed) {
                        let _ = said.send(WatchNews::Silence).await;
                    }
                    call.await
                }
            }
        };
        let Err(failed) = ended else { return };
        let away_max = if was_heard.load(Ordering::Relaxed) { AWAY_MAX } else { CONNECT_MAX };
        let answer = match next(&failed.status, was_shown) {
            AfterEnd::Resume if heard.elapsed() < away_max => {
                tokio::time::sleep(backoff.pause()).await;
                continue;
            }
            AfterEnd::Anew if heard.elapsed() < away_max => {
                (from_revision, store_id) = (0, 0);
                tokio::time::sleep(backoff.pause()).await;
                continue;
            }
            AfterEnd::Gone => WatchNews::Gone(name),
            AfterEnd::Resume | AfterEnd::Anew | AfterEnd::Fail => {
                let failure = client.explain_leader("dispatcher", failed);
                WatchNews::Failed(match failure.code {
                    Code::NotFound => failure.hint(LIST_UNITS),
                    _ => failure,
                })
            }
        };
        // Whoever listened may have had enough.
        let _ = said.send(answer).await;
        return;
    }
}

fn show(view: &UnitView, format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => output::print_raw(&output::json_line(view)?),
        Format::Yaml => output::print_raw("---\n").and_then(|()| output::print_value(format, view)),
        Format::Table | Format::Wide => output::print(&line(&[
            view.revision.to_string(),
            view.shown(),
            view.phase.clone(),
            view.ready(),
            view.pending.to_string(),
            view.succeeded.to_string(),
            view.failed.to_string(),
        ])),
    }
}

/// A unit whose record is gone, as a watch shows it.
#[derive(serde::Serialize)]
struct DeletedView {
    unit_id: u64,
    uid: String,
    namespace: String,
    name: String,
    revision: u64,
    deleted: bool,
}

fn show_deletion(unit: v1::DeletedUnit, format: Format) -> Result<(), Failure> {
    let v1::DeletedUnit { unit_id, uid, namespace, name, revision } = unit;
    let view = DeletedView { unit_id, uid, namespace, name, revision, deleted: true };
    match format {
        Format::Json => output::print_raw(&output::json_line(&view)?),
        Format::Yaml => output::print_raw("---\n").and_then(|()| output::print_value(format, &view)),
        Format::Table | Format::Wide => {
            let name = match view.namespace.as_str() {
                "default" => view.name,
                namespace => format!("{namespace}/{}", view.name),
            };
            let mut cells = [const { String::new() }; 7];
            (cells[0], cells[1], cells[2]) = (revision.to_string(), name, "Deleted".to_owned());
            output::print(&line(&cells))
        }
    }
}

fn line(cells: &[String; 7]) -> String {
    let [revision, name, phase, ready, pending, succeeded, failed] = cells;
    let name = shown(name);
    format!("{revision:<9} {name:<30} {phase:<14} {ready:<10} {pending:<8} {succeeded:<10} {failed}\n")
}

#[cfg(test)]
mod tests {
    use godel_pki::person_tokens::BadToken;

    use super::*;

    #[test]
    fn a_watch_goes_on_unless_it_cannot() {
        let info = [("resume_from", "7")];
        let slow = status::with_info(tonic::Code::Aborted, status::reason::SLOW_WATCHER, "too slow", info);
        for (status, was_shown, expect) in [
            (status::not_leader(Some("http://b")), true, AfterEnd::Resume),
            (Status::unavailable("refused"), false, AfterEnd::Resume),
            (slow, true, AfterEnd::Resume),
            (Status::unknown("broken pipe"), true, AfterEnd::Resume),
            (status::compacted(7), true, AfterEnd::Anew),
            (Status::out_of_range("the future"), true, AfterEnd::Anew),
            (Status::not_found("gone"), true, AfterEnd::Gone),
            (Status::not_found("no unit"), false, AfterEnd::Fail),
            (Status::permission_denied("no"), true, AfterEnd::Fail),
            // By the next token; the same one would be refused.
            (status::token_ended(&BadToken::Expired), true, AfterEnd::Resume),
            (status::bad_token("expired"), true, AfterEnd::Fail),
        ] {
            assert_eq!(next(&status, was_shown), expect, "{status}");
        }
    }

    #[test]
    fn a_line_stays_one() {
        let cells = ["1", "a\n\u{1b}b", "Running", "1/1", "0", "0", "0"].map(str::to_owned);
        assert!(line(&cells).starts_with("1         a\\u{a}\\u{1b}b "), "{}", line(&cells));
    }
}
