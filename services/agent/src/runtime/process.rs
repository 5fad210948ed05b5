//! Running units as processes and containers of this machine: what a real node does.
//!
//! Each start of a command gets a directory and a [`keeper`], which does everything from then on. Here keepers are
//! started, told to stop, and waited for; and what an earlier agent has left running is found again (`left`).

use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    pin::pin,
    process::Child,
    sync::Arc,
    time::Duration,
};

use godel_domain::{
    run_end::{RunEnd, RunEndReason},
    time::Millis,
};
use rustc_hash::FxHashMap;
use rustix::{fd::OwnedFd, fs::OFlags};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, watch},
};

use self::home::Begun;
pub(crate) use self::{
    home::{Home, Images},
    usages::RunsUse,
};
use super::{Event, NOT_STARTED, Run, Runtime};
use crate::{
    bandwidth::BandwidthAsk,
    cgroup::GroupLimits,
    keeper::{
        self, Found,
        files::{self, CONTROL, END, KEEPER},
    },
    life::{Ended, Key, Work},
    volumes::Volume,
    yarn::launch::Launch,
};

mod home;
pub(crate) mod left;
pub(crate) mod seen;
mod usages;

/// Between looks at what is left of a run whose keeper was killed.
const PAUSE: Duration = Duration::from_millis(10);
/// Between looks whether the command of a keeper runs.
const LOOK: Duration = Duration::from_millis(100);
/// Looks until what is left is left behind.
const N_LOOKS: u32 = 1_000;

/// What to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Its environment, but for what follows from its user.
    pub env: BTreeMap<String, String>,
    /// Working directory; `None`: the root of the file system.
    pub directory: Option<String>,
    /// User that it runs as, by name or number; `None`: that of the agent.
    pub user: Option<String>,
    /// Bits that its new files do not get; `None`: 022.
    pub umask: Option<u32>,
    /// The image in whose container it runs; `None`: it is a process. With an image the command may be empty.
    pub image: Option<String>,
    /// NVIDIA's GPUs that a container is given, by number.
    pub gpus: Vec<u32>,
    /// Directories that the node keeps for it.
    pub volumes: Vec<Volume>,
    /// Uid of its unit.
    pub unit_uid: String,
    /// What its control group keeps it to.
    pub limits: GroupLimits,
    /// What it asks for of bandwidths.
    pub bandwidth: BandwidthAsk,
    /// It ends without contact for so long, milliseconds; 0: never.
    pub stop_after_ms: u32,
    /// Between its polite and its forced end, milliseconds, where nobody says another time.
    pub stop_grace_ms: u32,
    /// The assignment of state from which all of this follows, encoded, for the agent that comes later.
    pub assignment: Vec<u8>,
    /// What it needs before as a YARN container, whose command it starts.
    pub(crate) launch: Option<Box<Launch>>,
}

/// A grace and a reason, once it is to stop.
type Stop = Option<(Duration, RunEndReason)>;

/// Commands by run.
pub(crate) struct Processes {
    events: mpsc::Sender<Event>,
    home: Arc<Home>,
    live: FxHashMap<Run, Kept>,
    /// Directories of runs whose end was seen, but is not written down elsewhere yet.
    ended: Vec<PathBuf>,
}

/// A run that has a keeper.
struct Kept {
    stop: watch::Sender<Stop>,
    dir: PathBuf,
}

impl Processes {
    pub(crate) fn new(events: mpsc::Sender<Event>, home: Arc<Home>) -> Self {
        Self { events, home, live: FxHashMap::default(), ended: Vec::new() }
    }

    /// Notes a run and returns how it is told to stop.
    fn keep(&mut self, run: Run, dir: PathBuf) -> watch::Receiver<Stop> {
        let (stop, told) = watch::channel(None);
        self.live.insert(run, Kept { stop, dir });
        told
    }

    /// Waits for what an earlier agent has left running, or says how it has ended since.
    pub(crate) fn adopt(&mut self, run: Run, left: left::Left) {
        let left::Left { dir, state, started_ms, .. } = left;
        let told = self.keep(run, dir.clone());
        let events = self.events.clone();
        godel_kit::task::spawn("agent.run", async move {
            let ended = match state {
                left::State::Kept(keeper) => {
                    let said = Said { run, events: &events, is_started: started_ms > 0 };
                    attend(&dir, None, keeper, told, said).await
                }
                left::State::Over(ended) => Some(of_file(&ended)),
            };
            if let Some(ended) = ended {
                // Nobody listens any more when the agent stops.
                let _stopping = events.send(Event::Ended { run, ended, since: None }).await;
            }
        });
    }
}

impl Runtime for Processes {
    fn takes(&self, work: &Work) -> bool {
        matches!(work, Work::Program(_))
    }

    /// Both its start and its end come later.
    fn start(&mut self, run: Run, work: &Work, restarts: (u32, u32), _now: Millis) -> Option<Event> {
        let Work::Program(program) = work else { return None };
        let dir = match self.home.make_dir(run.key, run.incarnation) {
            Ok(dir) => dir,
            Err(error) => return Some(not_started(run, &error)),
        };
        let told = self.keep(run, dir.clone());
        let (events, home, program) = (self.events.clone(), Arc::clone(&self.home), program.clone());
        godel_kit::task::spawn("agent.run", async move {
            let begun = {
                let dir = dir.clone();
                tokio::task::spawn_blocking(move || home.begin(&dir, run, &program, restarts)).await
            };
            let ended = match begun.unwrap_or_else(|error| Err(io::Error::other(error))) {
                Ok(Begun { child, keeper }) => {
                    let said = Said { run, events: &events, is_started: false };
                    let ended = attend(&dir, Some(child), keeper, told, said).await;
                    ended.map(|ended| Event::Ended { run, ended, since: None })
                }
                Err(error) => Some(not_started(run, &error)),
            };
            if let Some(ended) = ended {
                let _stopping = events.send(ended).await;
            }
        });
        None
    }

    /// SIGTERM, and SIGKILL after the grace.
    fn stop(&mut self, run: Run, grace: Duration, reason: RunEndReason) -> bool {
        let Some(kept) = self.live.get(&run) else { return false };
        kept.stop.send_replace(Some((grace, reason)));
        true
    }

    fn forget(&mut self, run: Run) {
        self.ended.extend(self.live.remove(&run).map(|kept| kept.dir));
    }

    fn settle(&mut self) {
        for dir in self.ended.drain(..) {
            left::remove(&dir);
        }
    }
}

fn not_started(run: Run, error: &io::Error) -> Event {
    let Key { unit, ordinal } = run.key;
    tracing::warn!(unit_id = unit, ordinal, %error, "a running unit cannot be given a keeper");
    let end = RunEnd { reason: Some(RunEndReason::CannotStart), started_ms: 0, ended_ms: keeper::wall_ms() };
    Event::Ended { run, ended: Ended { exit_code: NOT_STARTED, end }, since: None }
}

/// Since when the command of a run runs, as its keeper says; `None`: it does not, or has ended already without.
fn started(run: Run, dir: &Path) -> Option<i64> {
    let keeper: files::Keeper = files::read(&dir.join(KEEPER)).ok()?;
    let started = keeper.started?;
    if !started.in_group {
        let Key { unit, ordinal } = run.key;
        tracing::warn!(
            unit_id = unit,
            ordinal,
            "a running unit runs outside of its control group: its limits are not kept"
        );
    }
    Some(started.at_ms)
}

/// What the shard has been told of a run.
struct Said<'a> {
    run: Run,
    events: &'a mpsc::Sender<Event>,
    is_started: bool,
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

fn of_file(ended: &files::Ended) -> Ended {
    Ended { exit_code: ended.exit_code, end: ended.end() }
}

/// Waits for the end of a keeper, and tells it to stop when that is wanted. `None`: the agent stops before.
async fn attend(
    dir: &Path,
    child: Option<Child>,
    keeper: OwnedFd,
    mut told: watch::Receiver<Stop>,
    mut said: Said<'_>,
) -> Option<Ended> {
    let mut over = pin!(over(keeper));
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
                    tell(dir, grace, reason);
                }
            }
        }
    }
    if !said.is_started {
        said.look(dir).await;
    }
    if let Some(mut child) = child {
        // It has ended: this takes no time.
        let _status = child.wait();
    }
    Some(end_of(dir).await)
}

/// Waits until a keeper does not live any more.
async fn over(keeper: OwnedFd) -> io::Result<()> {
    #[expect(
        deprecated,
        reason = "sound here, where the descriptor is owned; what replaces it is an unsafe function"
    )]
    let keeper = AsyncFd::with_interest(keeper, Interest::READABLE)?;
    keeper.readable().await.map(|_| ())
}

/// Tells a keeper to stop its run. A keeper that has just ended does not hear it.
fn tell(dir: &Path, grace: Duration, reason: RunEndReason) {
    let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits()).unwrap_or(0);
    let control = OpenOptions::new().write(true).custom_flags(flags).open(dir.join(CONTROL));
    let line = format!("stop {} {}\n", grace.as_millis(), reason.name());
    if let Err(error) = control.and_then(|mut control| control.write_all(line.as_bytes())) {
        tracing::debug!(%error, dir = %dir.display(), "a keeper does not listen");
    }
}

/// How a run ended whose keeper does not live any more. If the keeper was killed, what is left is ended here.
async fn end_of(dir: &Path) -> Ended {
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
            Ok(Found::Over(ended)) => {
                tracing::warn!(dir = %dir.display(), "the keeper of a running unit was killed: what was left of it is ended");
                return of_file(&ended);
            }
            Ok(Found::Nothing) => break,
            // A process that the keeper was just starting has its lock for a moment longer.
            Ok(Found::Kept) => tokio::time::sleep(PAUSE).await,
            Err(error) => {
                tracing::error!(%error, dir = %dir.display(), "what a killed keeper has left cannot be ended");
                break;
            }
        }
    }
    let end = RunEnd { reason: Some(RunEndReason::Lost), started_ms: 0, ended_ms: keeper::wall_ms() };
    Ended { exit_code: NOT_STARTED, end }
}

#[cfg(test)]
mod tests;
