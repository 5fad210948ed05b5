//! Running units as processes and containers of this machine: what a real node does.
//!
//! Each start of a command gets a directory and a [`keeper`], which does everything from then on. Here keepers are
//! started, told to stop, and waited for; and what an earlier agent has left running is found again (`left`).

use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc, time::Duration};

use godel_base::time::Millis;
use godel_core_agent::{HowEnded, RunKey, RunWork};
use godel_domain::run_end::{RunEnd, RunEndReason};
use godel_membership::agent_admission::AssignmentRefusal;
use rustc_hash::FxHashMap;
use tokio::sync::{mpsc, watch};

use self::home::Begun;
pub(crate) use self::{
    home::{Home, Images},
    usages::RunsUse,
};
use super::{Event, HostedRun, NOT_STARTED, Runtime};
use crate::{
    bandwidth::BandwidthAsk,
    cgroup::GroupLimits,
    keeper::{self, files},
    volumes::Volume,
    yarn::launch::Launch,
};

mod home;
pub(crate) mod left;
pub(crate) mod seen;
pub(crate) mod strays;
mod usages;
mod waiting;

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
    /// User that it runs as if it names none and the node has no row for its owner; `None`: the default.
    pub otherwise_user: Option<String>,
    /// Owner of its unit.
    pub owner: String,
    /// Groups of the owner.
    pub owner_groups: Vec<String>,
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
    /// Who has submitted its unit; empty: that was not judged.
    pub principal: String,
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
    live: FxHashMap<HostedRun, Kept>,
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
    fn keep(&mut self, run: HostedRun, dir: PathBuf) -> watch::Receiver<Stop> {
        let (stop, told) = watch::channel(None);
        self.live.insert(run, Kept { stop, dir });
        told
    }

    /// Waits for what an earlier agent has left running, or says how it has ended since.
    pub(crate) fn adopt(&mut self, run: HostedRun, left: left::Left) {
        let left::Left { dir, state, started_ms, .. } = left;
        let told = self.keep(run, dir.clone());
        let events = self.events.clone();
        godel_kit::task::spawn("agent.run", async move {
            let ended = match state {
                left::LeftRunState::Kept(keeper) => {
                    let said = waiting::Said { run, events: &events, is_started: started_ms > 0 };
                    waiting::attend(&dir, None, keeper, told, said).await
                }
                left::LeftRunState::Over(ended) => Some(waiting::of_file(&ended)),
            };
            if let Some(ended) = ended {
                // Nobody listens any more when the agent stops.
                let _stopping = events.send(Event::Ended { run, ended, since: None }).await;
            }
        });
    }
}

impl Runtime for Processes {
    fn takes(&self, work: &RunWork<Program>) -> bool {
        matches!(work, RunWork::Program(_))
    }

    /// Both its start and its end come later.
    fn start(
        &mut self,
        run: HostedRun,
        work: &RunWork<Program>,
        restarts: u32,
        in_row: u32,
        _now: Millis,
    ) -> Option<Event> {
        let RunWork::Program(program) = work else { return None };
        let dir = match self.home.make_dir(run.key, run.incarnation) {
            Ok(dir) => dir,
            Err(error) => return Some(not_started(run, &error, &self.home)),
        };
        let told = self.keep(run, dir.clone());
        let (events, home, program) = (self.events.clone(), Arc::clone(&self.home), program.clone());
        godel_kit::task::spawn("agent.run", async move {
            let begun = {
                let (dir, home) = (dir.clone(), Arc::clone(&home));
                tokio::task::spawn_blocking(move || home.begin(&dir, run, &program, restarts, in_row)).await
            };
            let ended = match begun.unwrap_or_else(|error| Err(io::Error::other(error))) {
                Ok(Begun { child, keeper }) => {
                    let said = waiting::Said { run, events: &events, is_started: false };
                    let ended = waiting::attend(&dir, Some(child), keeper, told, said).await;
                    ended.map(|ended| Event::Ended { run, ended, since: None })
                }
                Err(error) => Some(not_started(run, &error, &home)),
            };
            if let Some(ended) = ended {
                let _stopping = events.send(ended).await;
            }
        });
        None
    }

    /// SIGTERM, and SIGKILL after the grace.
    fn stop(&mut self, run: HostedRun, grace: Duration, reason: RunEndReason) -> bool {
        let Some(kept) = self.live.get(&run) else { return false };
        kept.stop.send_replace(Some((grace, reason)));
        true
    }

    fn forget(&mut self, run: HostedRun) {
        self.ended.extend(self.live.remove(&run).map(|kept| kept.dir));
    }

    fn settle(&mut self) {
        for dir in self.ended.drain(..) {
            left::remove(&dir);
        }
    }
}

/// Nothing of it has run, so that nothing of it has failed: it is given back.
fn not_started(run: HostedRun, error: &io::Error, home: &Home) -> Event {
    let RunKey { unit, ordinal } = run.key;
    tracing::warn!(unit_id = unit, ordinal, %error, "a running unit cannot be given a keeper");
    let end = RunEnd { reason: Some(RunEndReason::CannotStart), started_ms: 0, ended_ms: keeper::wall_ms() };
    let is_disk = files::may_pass(error) || !home.trouble().is_empty();
    let refused = Some(if is_disk { AssignmentRefusal::Disk } else { AssignmentRefusal::Keeper });
    Event::Ended { run, ended: HowEnded { exit_code: NOT_STARTED, end, refused }, since: None }
}

#[cfg(test)]
mod tests;
