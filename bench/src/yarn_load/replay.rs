//! `godel bench yarn-replay`: a day of Facebook's Hadoop cluster as applications of YARN, in three queues that wait.
//!
//! Each job of the trace is an unmanaged application whose master is played here: it asks for all maps at once (or `--asks-max` at a time), and for all reduces
//! when the last map is over. A container lasts as long as the trace makes it ([`super::trace`]), divided by `--speed`, from the moment at which its
//! master hears of it; then its master gives it back. Queues have 50, 30 and 20 per cent of the nodes guaranteed, and the job's number says in which of them
//! it is: last digit 0 to 4, 5 to 7, 8 and 9.
//!
//! Nodes are few, so that all queues wait most of the time. What counts is what each queue had in seconds throughout which every queue had unmet
//! asks, by the bindings and ends that state's watch shows. A container that is taken from a job is asked for again.

mod work;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use clap::Args as ClapArgs;
use godel_client::{client::Client, exit::Failure, output::Format, replay::Latency, usage};
use godel_proto::v1;
use serde::Serialize;

use self::work::JobWork;
use super::{
    YarnStage,
    master::{CallPause, Master},
    shares::QUEUES,
    trace::{self, TraceJob},
    watched::WatchedApplications,
};
use crate::{
    cases::per,
    cluster::{self, Layout},
    once::{Figures, Once},
    processes,
    report::{by_process, count, joined, wide},
    setup::at_least_one,
};

/// Containers that a node has room for: a CPU and a GiB each.
const N_OF_NODE: usize = 10;
/// Between two calls of a master that hears nothing.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// What the shares of queues may be off, per cent of each.
const DEVIATION_MAX_PERCENT: f64 = 2.0;

/// `godel bench yarn-replay`.
#[derive(Clone, Debug, ClapArgs)]
#[command(mut_arg("nodes", |nodes| nodes.default_value("4").help("Nodes, with room for ten containers each")))]
pub struct YarnReplayArgs {
    /// Jobs of the trace to replay, the first ones. Default: all.
    #[arg(long, value_parser = at_least_one)]
    jobs: Option<usize>,
    /// Divisor of all times of the trace.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    speed: u32,
    /// Most containers that a job asks for at a time, as more come once half of these have. Default: all of a phase at once.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    asks_max: Option<u32>,
    /// Seconds in which every queue waits that there must be at least: without them the shares mean little.
    #[arg(long, default_value_t = 300)]
    windows_min: u64,
    /// The trace: job, submitted, gap, bytes read, shuffled and written, separated by tabs, as SWIM publishes it.
    #[arg(long, default_value = "data/swim/FB-2009_samples_24_times_1hr_0.tsv", value_name = "FILE")]
    trace: PathBuf,
    #[command(flatten)]
    once: Once,
}

/// What is reported; field names are stable.
#[derive(Clone, Debug, Serialize)]
struct ReplayFigures {
    workload: &'static str,
    nodes: usize,
    speed: u32,
    /// Containers that a job asked for at a time; absent: all of a phase.
    asks_max: Option<u32>,
    jobs: usize,
    /// Containers of the jobs, those that came again because they were taken, and those that came beyond that and were not needed, or were
    /// taken before their master heard of them.
    containers: u64,
    asked_again: u64,
    surplus: u64,
    /// From the first submission to the last end.
    seconds: f64,
    containers_per_s: f64,
    /// From the submission of a job until its record said that it had finished.
    job_ms: Latency,
    /// Seconds throughout which every queue waited, and all seconds.
    windows: u64,
    windows_all: u64,
    /// Fewer such seconds mean little.
    windows_min: u64,
    /// Of the MiB·s in those windows, per cent; and what it should be.
    shares_percent: BTreeMap<&'static str, f64>,
    configured_percent: BTreeMap<&'static str, u32>,
    /// The most by which a share is off, per cent of what it should be.
    deviation_percent: f64,
    /// Containers that did not come, and jobs that did not finish with success.
    lost: u64,
    cpu_s: BTreeMap<String, f64>,
    rss_end_mib: BTreeMap<String, f64>,
    load_average: f64,
    audit: bool,
    audit_s: f64,
}

/// What became of a job, as its master knows it.
struct PlayedJob {
    application: String,
    began: Duration,
    n_containers: u64,
    n_again: u64,
}

pub(crate) async fn run(wanted: YarnReplayArgs, format: Format) -> Result<(), Failure> {
    wanted.once.run(format, "yarn-replay", async |layout| measure(&wanted, layout).await).await
}

async fn measure(wanted: &YarnReplayArgs, layout: Layout) -> Result<ReplayFigures, Failure> {
    let jobs = wanted.jobs()?;
    let n_jobs = jobs.len();
    let shape = format!("{}x cpu={N_OF_NODE},memory={N_OF_NODE}Gi", layout.n_nodes);
    let mut stage = YarnStage::start(&layout, &shape).await?;
    create_queues(&stage.client, layout.n_nodes * N_OF_NODE).await?;
    let (load_average, cpu_before) = (usage::load_average(), stage.cpu());
    let first = jobs.first().map_or(Duration::ZERO, |job| job.submitted);
    let (client, watched) = (stage.client.clone(), Arc::clone(&stage.watched));
    let (speed, asks_max) = (wanted.speed, wanted.asks_max.unwrap_or(u32::MAX));
    let parts = jobs.into_iter().map(|job| {
        let due = job.submitted.saturating_sub(first) / speed;
        (due, play(client.clone(), Arc::clone(&watched), job, speed, asks_max))
    });
    let began = watched.now();
    let played = stage.play(n_jobs, parts).await?;
    let seconds = watched.now().saturating_sub(began).as_secs_f64();
    let Sums { containers, asked_again, surplus } = nothing_is_lost(&watched, &played)?;
    let shares = watched.shares().0;
    let audit_s = cluster::audited(&stage.client).await?;
    let took = |job: &PlayedJob| Some(watched.seen(&job.application).over?.saturating_sub(job.began));
    Ok(ReplayFigures {
        workload: "yarn-replay",
        nodes: layout.n_nodes,
        speed,
        asks_max: wanted.asks_max,
        jobs: n_jobs,
        containers,
        asked_again,
        surplus,
        seconds,
        containers_per_s: per(wide(containers), seconds),
        job_ms: Latency::of(played.iter().filter_map(took).collect()),
        windows: shares.n_windows,
        windows_all: shares.n_all,
        windows_min: wanted.windows_min,
        shares_percent: QUEUES.iter().map(|(queue, _)| *queue).zip(shares.percent()).collect(),
        configured_percent: QUEUES.into_iter().collect(),
        deviation_percent: shares.deviation_percent(),
        // Otherwise there are no figures.
        lost: 0,
        cpu_s: processes::used(&cpu_before, &stage.cpu()),
        rss_end_mib: stage.memory(),
        load_average,
        audit: true,
        audit_s,
    })
}

impl YarnReplayArgs {
    fn jobs(&self) -> Result<Vec<TraceJob>, Failure> {
        let shown = self.trace.display();
        let text = std::fs::read_to_string(&self.trace)
            .map_err(|error| Failure::usage(format!("the trace {shown} cannot be read: {error}")))?;
        let mut jobs = trace::read(&text).map_err(|wrong| Failure::usage(format!("{shown}: {wrong}")))?;
        jobs.truncate(self.jobs.unwrap_or(usize::MAX));
        match jobs.is_empty() {
            true => Err(Failure::usage(format!("{shown} has no jobs"))),
            false => Ok(jobs),
        }
    }
}

/// The queues have everything between them, guaranteed and by weight, as an import from YARN would make them.
async fn create_queues(client: &Client, n_containers: usize) -> Result<(), Failure> {
    let n_containers = i64::try_from(n_containers).unwrap_or(i64::MAX);
    let queue = |(name, percent): (&str, u32)| {
        let of = |all: i64| all.saturating_mul(percent.into()) / 100;
        let amounts =
            [("cpu".to_owned(), of(n_containers * 1_000)), ("memory".to_owned(), of(n_containers << 30))];
        v1::Queue {
            meta: Some(v1::ObjectMeta { name: name.to_owned(), ..v1::ObjectMeta::default() }),
            min: Some(v1::Resources { amounts: amounts.into() }),
            weight: Some(percent),
            ..v1::Queue::default()
        }
    };
    let request = v1::ApplyQueuesRequest { queues: QUEUES.map(queue).into(), ..Default::default() };
    client.queues(async |mut queues| queues.apply_queues(request.clone()).await).await?;
    Ok(())
}

/// The master of a job, from its submission to its goodbye.
async fn play(
    client: Client,
    watched: Arc<WatchedApplications>,
    job: TraceJob,
    speed: u32,
    asks_max: u32,
) -> Result<PlayedJob, Failure> {
    let began = watched.now();
    let queue = QUEUES.get(job.queue()).map_or("", |(queue, _)| queue);
    let name = format!("job{}", job.number);
    let mut master = Master::submit(&client, &watched, &name, queue).await?;
    master.register().await?;
    let n_containers = job.n_containers();
    let mut work = JobWork::new(job.phases, speed, asks_max);
    let mut asks = vec![work.ask()];
    let mut soon = CallPause::default();
    loop {
        let release = work.release(watched.now());
        if work.is_over() && release.is_empty() {
            break;
        }
        asks.extend(work.next_phase());
        let answer = master.allocate(std::mem::take(&mut asks), release).await?;
        asks.extend(work.take(answer, watched.now()));
        if !asks.is_empty() || work.is_over() {
            continue;
        }
        let until_due = work.until_due(watched.now()).unwrap_or(HEARTBEAT);
        if master.may_hear() {
            master.rung(soon.next().min(until_due)).await;
        } else {
            soon = CallPause::default();
            master.rung(HEARTBEAT.min(until_due)).await;
        }
    }
    master.finish().await?;
    Ok(PlayedJob {
        application: master.application().to_owned(),
        began,
        n_containers,
        n_again: work.n_again(),
    })
}

/// Containers of all jobs.
#[derive(Default)]
struct Sums {
    containers: u64,
    asked_again: u64,
    surplus: u64,
}

/// All containers of all jobs have come and ended, and all jobs have finished well, as the watch shows.
fn nothing_is_lost(watched: &WatchedApplications, played: &[PlayedJob]) -> Result<Sums, Failure> {
    let (mut sums, mut wrong) = (Sums::default(), Vec::new());
    for job in played {
        let seen = watched.seen(&job.application);
        let n_least = job.n_containers + job.n_again;
        let surplus = u64::from(seen.n_bound).checked_sub(n_least);
        if !seen.has_succeeded || surplus.is_none() || seen.n_ended != seen.n_bound {
            wrong.push(format!("{}: {n_least} containers expected, seen: {seen:?}", job.application));
        }
        sums.containers += job.n_containers;
        sums.asked_again += job.n_again;
        sums.surplus += surplus.unwrap_or_default();
    }
    match wrong.first() {
        None => Ok(sums),
        Some(first) => {
            Err(Failure::failed(format!("{} of {} jobs are wrong, as {first}", wrong.len(), played.len())))
        }
    }
}

impl Figures for ReplayFigures {
    fn judge(&self) -> Result<(), Failure> {
        if self.windows < self.windows_min {
            return Err(Failure::failed(format!(
                "all queues waited in {} of {} seconds only, at least {} are needed: take fewer nodes or more jobs",
                self.windows, self.windows_all, self.windows_min
            )));
        }
        // Few windows say little, and somebody wanted so few.
        if self.windows_min > 0 && self.deviation_percent > DEVIATION_MAX_PERCENT {
            return Err(Failure::failed(format!(
                "the queues had {:.2?} per cent instead of {:?} in {} seconds in which all waited",
                self.shares_percent, self.configured_percent, self.windows
            )));
        }
        Ok(())
    }

    fn text(&self) -> String {
        let Self { jobs, containers, nodes, speed, lost, asked_again, surplus, windows, windows_all, .. } =
            self;
        let Latency { p50, p90, p99, max } = self.job_ms;
        let shares = self.shares_percent.iter().map(|(queue, percent)| {
            let configured = self.configured_percent.get(queue).copied().unwrap_or_default();
            format!("{queue} {percent:.2} of {configured} %")
        });
        let of_job = |seconds: f64| seconds * 1e3 / count(*jobs);
        let cpu = self.cpu_s.iter().map(|(name, seconds)| format!("{name} {:.1}", of_job(*seconds)));
        format!(
            "replayed     {jobs} jobs with {containers} containers on {nodes} nodes, {speed} × as fast, lost {lost}\n\
             took         {:.0} s: {:.0} containers/s; {asked_again} were taken and asked for again, {surplus} came beyond that\n\
             jobs         p50 {:.1}, p90 {:.1}, p99 {:.1}, max {:.1} s from submission to FINISHED\n\
             shares       {}: {:.2} % off at most, in {windows} of {windows_all} seconds, in which all waited\n\
             CPU ms a job {}\n\
             last MiB     {}\n\
             load before  {:.2}\n\
             audit        ok in {:.1} s\n",
            self.seconds,
            self.containers_per_s,
            p50 / 1e3,
            p90 / 1e3,
            p99 / 1e3,
            max / 1e3,
            joined(shares),
            self.deviation_percent,
            joined(cpu),
            by_process(&self.rss_end_mib, 0),
            self.load_average,
            self.audit_s,
        )
    }
}
