//! Applications of YARN as load: real processes with a YARN adapter among them, and masters that are played here.
//!
//! - `master`: the master of an unmanaged application.
//! - `replay`: `godel bench yarn-replay`.
//! - `shares`: what each queue had while every queue waited.
//! - `submissions`: `godel bench yarn-submissions`.
//! - `trace`: the jobs of a trace.
//! - `watched`: what state's watch shows of applications.

mod master;
pub(super) mod replay;
mod shares;
pub(super) mod submissions;
mod trace;
mod watched;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::{self, progress},
    usage,
};
use godel_kit::CancellationToken;
use godel_proto::v1;
use indicatif::ProgressBar;
use tokio::{
    task::JoinSet,
    time::{Instant, interval, sleep_until},
};
use tokio_util::sync::DropGuard;

use self::watched::{Progress, WatchedApplications};
use super::{
    cluster::{self, Layout, POLL, READY_TIMEOUT, STALL_TIMEOUT},
    processes::{self, BenchProcesses},
};

/// Between two looks at the processes.
const TICK: Duration = Duration::from_secs(1);
/// Between two lines that say how far it is.
const LINE: Duration = Duration::from_secs(30);
/// Applications that have not ended, at most: the adapter takes no more.
const N_ACTIVE_MAX: usize = 10_000;
/// Simulated nodes say that they start containers of YARN.
const STARTS_CONTAINERS: &str = "label.godel.dev/yarn-port=8041";
/// The faces of the adapter that are not called here.
const FACES: [&str; 4] = ["client_address", "master_address", "admin_address", "rest_address"];

/// A running control plane with an adapter.
struct YarnStage {
    client: Client,
    processes: BenchProcesses,
    watched: Arc<WatchedApplications>,
    _watching: DropGuard,
}

/// How far it was at the last look.
struct Looks {
    bar: ProgressBar,
    last: Progress,
    moved_at: Instant,
    said_at: Instant,
}

impl Looks {
    fn new(n_applications: usize) -> Self {
        let now = Instant::now();
        let bar = progress(n_applications, "finished");
        Self { bar, last: Progress::default(), moved_at: now, said_at: now }
    }
}

impl YarnStage {
    /// Starts everything; nodes are of this shape.
    async fn start(layout: &Layout, shape: &str) -> Result<Self, Failure> {
        let mut layout = layout.clone();
        layout.set.splice(0..0, FACES.map(|face| format!("yarn.{face}=127.0.0.1:0")));
        let shapes = [format!("{shape},{STARTS_CONTAINERS}")];
        let (mut processes, client) = cluster::bring_up(&layout, &shapes, true).await?;
        let args = ["serve", "yarn", "--address", client.address()].map(str::to_owned);
        cluster::serve(&mut processes, "yarn", args.into(), &layout.set).await?;
        leads(&client).await?;
        let stop = CancellationToken::new();
        let watched = WatchedApplications::start(&client, stop.clone()).await?;
        Ok(Self { client, processes, watched, _watching: stop.drop_guard() })
    }

    /// Begins each part at its time from now on, whatever became of those before, and waits for all of them.
    async fn play<T: Send + 'static, F: Future<Output = Result<T, Failure>> + Send + 'static>(
        &mut self,
        n_parts: usize,
        parts: impl Iterator<Item = (Duration, F)>,
    ) -> Result<Vec<T>, Failure> {
        let mut looks = Looks::new(n_parts);
        let (mut playing, mut played) = (JoinSet::new(), Vec::new());
        let mut parts = parts.peekable();
        let (began, mut ticks) = (Instant::now(), interval(TICK));
        while parts.peek().is_some() || !playing.is_empty() {
            let due = parts.peek().map_or(began, |(due, _)| began + *due);
            tokio::select! {
                biased;
                () = sleep_until(due), if parts.peek().is_some() => {
                    if playing.len() >= N_ACTIVE_MAX {
                        let text = format!("{N_ACTIVE_MAX} applications have not ended: it falls behind");
                        return Err(Failure::new(Code::Busy, text));
                    }
                    if let Some((_, part)) = parts.next() {
                        playing.spawn(part);
                    }
                }
                Some(ended) = playing.join_next() => {
                    played.push(ended.map_err(|_| Failure::failed("a master panicked"))??);
                }
                _ = ticks.tick() => self.look(&mut looks, playing.len())?,
            }
        }
        self.over(&mut looks, n_parts).await?;
        looks.bar.finish_and_clear();
        Ok(played)
    }

    /// Waits until so many applications have ended, and with them all of their containers.
    async fn over(&mut self, looks: &mut Looks, n_applications: usize) -> Result<(), Failure> {
        loop {
            let Progress { n_bound, n_ended, n_succeeded, n_failed, .. } = self.watched.progress();
            if n_succeeded + n_failed >= n_applications && n_bound == n_ended {
                return Ok(());
            }
            self.look(looks, 0)?;
            tokio::time::sleep(POLL).await;
        }
    }

    /// Fails if something is wrong or nothing moves.
    fn look(&mut self, looks: &mut Looks, n_active: usize) -> Result<(), Failure> {
        self.processes.check()?;
        if let Some(failure) = self.watched.failure() {
            return Err(failure);
        }
        let now = self.watched.progress();
        looks.bar.set_position(u64::try_from(now.n_succeeded).unwrap_or(u64::MAX));
        let line = || {
            let Progress { n_units, n_bound, n_ended, n_succeeded, n_failed } = now;
            let waiting = self.watched.shares().1;
            format!(
                "{n_units} applications submitted, {n_active} active, {n_succeeded} succeeded, {n_failed} failed; {n_bound} containers placed, {n_ended} ended, {waiting:?} wait"
            )
        };
        if std::mem::replace(&mut looks.last, now) != now
            || n_active == 0 && looks.last == Progress::default()
        {
            looks.moved_at = Instant::now();
        } else if looks.moved_at.elapsed() > STALL_TIMEOUT {
            let text = format!("no progress for {} s: {}", STALL_TIMEOUT.as_secs(), line());
            return Err(Failure::new(Code::Timeout, text));
        }
        if looks.said_at.elapsed() > LINE {
            looks.said_at = Instant::now();
            output::say(line());
        }
        Ok(())
    }

    /// What each process holds, MiB.
    fn memory(&self) -> BTreeMap<String, f64> {
        processes::memory(&self.processes.pids(), usage::rss_bytes)
    }

    /// CPU time of each process since its start.
    fn cpu(&self) -> BTreeMap<String, Duration> {
        processes::cpu(&self.processes.pids())
    }
}

/// Waits until the adapter leads.
async fn leads(client: &Client) -> Result<(), Failure> {
    let deadline = Instant::now() + READY_TIMEOUT;
    loop {
        let request = v1::ListYarnQueuesRequest::default();
        let answer = client.yarn(async |mut yarn| yarn.list_yarn_queues(request.clone()).await).await;
        match answer {
            Ok(_) => return Ok(()),
            Err(failure) if Instant::now() > deadline => {
                return Err(failure.during("the start of the adapter"));
            }
            Err(_) => tokio::time::sleep(POLL).await,
        }
    }
}
