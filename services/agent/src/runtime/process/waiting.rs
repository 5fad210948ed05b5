//! Waiting for the keeper of a run: what it says of its command, telling it to stop, and ending the run for it if it does not.

use std::{
    fs::OpenOptions,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    pin::pin,
    process::Child,
    time::Duration,
};

use godel_core_agent::{HowEnded, RunKey};
use godel_domain::run_end::{RunEnd, RunEndReason};
use rustix::{fd::OwnedFd, fs::OFlags, process::Signal};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, watch},
    time::Instant,
};

use super::{
    super::{Event, HostedRun, NOT_STARTED},
    Stop,
    home::LiveKeeper,
};
use crate::keeper::{
    self, FoundRun,
    files::{self, CONTROL, END, KEEPER},
};

/// Between looks at what is left of a run whose keeper was killed.
const PAUSE: Duration = Duration::from_millis(10);
/// Between looks whether the command of a keeper runs.
const LOOK: Duration = Duration::from_millis(100);
/// Looks until what is left is left behind.
const N_LOOKS: u32 = 1_000;
/// A keeper gets the grace of its run, and this long in addition, before its agent ends the run.
const SLACK: Duration = Duration::from_secs(5);
/// Between attempts of an agent to do so.
const FORCE_AGAIN: Duration = Duration::from_secs(10);
/// Exit code of a run that was ended by force: 128 + SIGKILL.
const KILLED: i32 = 137;

/// Since when the command of a run runs, as its keeper says; `None`: it does not, or has ended already without.
fn started(run: HostedRun, dir: &Path) -> Option<i64> {
    let keeper: files::Keeper = files::read(&dir.join(KEEPER)).ok()?;
    let started = keeper.started?;
    if !started.in_group {
        let RunKey { unit, ordinal } = run.key;
        tracing::warn!(
            unit_id = unit,
            ordinal,
            "a running unit runs outside of its control group: its limits are not kept"
        );
    }
    Some(started.at_ms)
}

/// What the shard has been told of a run.
pub(super) struct Said<'a> {
    pub(super) run: HostedRun,
    pub(super) events: &'a mpsc::Sender<Event>,
    pub(super) is_started: bool,
}

impl Said<'_> {
    /// Says that the command runs, once it does. An image may have to be fetched before.
    async fn look(&mut self, dir: &Path) {
        if let Some(started_ms) = started(self.run, dir) {
            self.is_started = true;
            // Nobody listens any more when the agent stops.
            let _stopping = self.events.send(Event::Started(self.run, started_ms)).await;
        }
    }
}

/// What an end that was written down means.
pub(super) fn of_file(ended: &files::Ended) -> HowEnded {
    HowEnded { exit_code: ended.exit_code, end: ended.end(), refused: ended.refusal() }
}

/// What a keeper was told, and when its agent ends the run if it does not.
#[derive(Default)]
struct Telling {
    reason: Option<RunEndReason>,
    force_at: Option<Instant>,
    is_forced: bool,
}

impl Telling {
    fn stop(&mut self, dir: &Path, keeper: &LiveKeeper, grace: Duration, reason: RunEndReason) {
        if let Err(error) = tell(dir, grace, reason) {
            tracing::debug!(%error, dir = %dir.display(), "a keeper does not listen");
            // It may have ended just now. Where its directory is gone it cannot be told any more.
            keeper::signal_for_keeper(keeper.process, keeper.group.as_ref(), Signal::TERM);
        }
        // Somebody may have stopped it: it hears nothing then.
        keeper.process.signal(Signal::CONT);
        let at = Instant::now() + grace + SLACK;
        self.reason.get_or_insert(reason);
        self.force_at = Some(self.force_at.map_or(at, |known| known.min(at)));
    }

    async fn force(&mut self, dir: &Path, keeper: &LiveKeeper) {
        tracing::warn!(
            dir = %dir.display(),
            keeper = keeper.process.pid,
            "a keeper does not end its run in time: the agent ends both by force"
        );
        (self.is_forced, self.force_at) = (true, Some(Instant::now() + FORCE_AGAIN));
        let (process, group) = (keeper.process, keeper.group.clone());
        let ended = tokio::task::spawn_blocking(move || keeper::end_for_keeper(process, group.as_ref()));
        // The runtime ends otherwise, and the agent with it.
        let _ended = ended.await;
    }

    /// An end that nobody saw was the one that was wanted, if it was forced.
    fn settle(&self, ended: HowEnded) -> HowEnded {
        match (self.is_forced, ended.end.reason) {
            (true, Some(RunEndReason::Lost)) => {
                HowEnded { exit_code: KILLED, end: RunEnd { reason: self.reason, ..ended.end }, ..ended }
            }
            _ => ended,
        }
    }
}

/// Waits for a moment; without one for ever.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Waits for the end of a keeper, tells it to stop when that is wanted, and ends its run if it does not. `None`: the agent stops before.
pub(super) async fn attend(
    dir: &Path,
    child: Option<Child>,
    keeper: LiveKeeper,
    mut told: watch::Receiver<Stop>,
    mut said: Said<'_>,
) -> Option<HowEnded> {
    let mut telling = Telling::default();
    let mut over = pin!(over(keeper.opened.try_clone().ok()?));
    let mut looks = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            biased;
            _ = looks.tick(), if !said.is_started => said.look(dir).await,
            ended = &mut over => match ended {
                Ok(()) => break,
                Err(error) => {
                    // The runtime ends, or cannot watch so many: its keeper goes on.
                    tracing::error!(%error, "a keeper cannot be waited for");
                    return None;
                }
            },
            changed = told.changed() => {
                changed.ok()?;
                let stop = *told.borrow_and_update();
                if let Some((grace, reason)) = stop {
                    telling.stop(dir, &keeper, grace, reason);
                }
            }
            () = at(telling.force_at) => telling.force(dir, &keeper).await,
        }
    }
    if !said.is_started {
        said.look(dir).await;
    }
    if let Some(mut child) = child {
        // It has ended: this takes no time.
        let _status = child.wait();
    }
    Some(telling.settle(end_of(dir).await))
}

/// Tells a keeper to stop its run, and ends the run if it does not. False: the keeper still lives.
pub(super) async fn end(dir: &Path, keeper: LiveKeeper, grace: Duration) -> bool {
    let mut telling = Telling::default();
    telling.stop(dir, &keeper, grace, RunEndReason::Told);
    let Ok(opened) = keeper.opened.try_clone() else { return false };
    let mut over = pin!(over(opened));
    if let Ok(ended) = tokio::time::timeout(grace + SLACK, &mut over).await {
        return ended.is_ok();
    }
    telling.force(dir, &keeper).await;
    matches!(tokio::time::timeout(FORCE_AGAIN, over).await, Ok(Ok(())))
}

/// Waits until a keeper does not live any more.
pub(super) async fn over(keeper: OwnedFd) -> io::Result<()> {
    #[expect(
        deprecated,
        reason = "sound here, where the descriptor is owned; what replaces it is an unsafe function"
    )]
    let keeper = AsyncFd::with_interest(keeper, Interest::READABLE)?;
    keeper.readable().await.map(|_| ())
}

/// Tells a keeper to stop its run.
fn tell(dir: &Path, grace: Duration, reason: RunEndReason) -> io::Result<()> {
    let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits()).unwrap_or(0);
    let mut control = OpenOptions::new().write(true).custom_flags(flags).open(dir.join(CONTROL))?;
    control.write_all(format!("stop {} {}\n", grace.as_millis(), reason.name()).as_bytes())
}

/// How a run ended whose keeper does not live any more. If the keeper was killed, what is left is ended here.
async fn end_of(dir: &Path) -> HowEnded {
    for _ in 0..N_LOOKS {
        if let Ok(ended) = files::read::<files::Ended>(&dir.join(END)) {
            if !ended.why.is_empty() {
                tracing::info!(why = ended.why, dir = %dir.display(), "a command cannot be started");
            }
            return of_file(&ended);
        }
        let of_blocking = dir.to_owned();
        let found = tokio::task::spawn_blocking(move || keeper::end_left_over(&of_blocking)).await;
        match found.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(FoundRun::Over(ended)) => {
                tracing::warn!(dir = %dir.display(), "the keeper of a running unit was killed: what was left of it is ended");
                return of_file(&ended);
            }
            Ok(FoundRun::Nothing) => break,
            // A process that the keeper was just starting has its lock for a moment longer.
            Ok(FoundRun::Kept) => tokio::time::sleep(PAUSE).await,
            Err(error) => {
                tracing::error!(%error, dir = %dir.display(), "what a killed keeper has left cannot be ended");
                break;
            }
        }
    }
    let end = RunEnd { reason: Some(RunEndReason::Lost), started_ms: 0, ended_ms: keeper::wall_ms() };
    HowEnded { exit_code: NOT_STARTED, end, refused: None }
}
