//! `godel bench endurance`: running units come, run on agents, end and are deleted, at a steady rate. What must not
//! grow with their number: memory, disk beyond the retention contract, latency.
//!
//! Units have `--replicas` replicas, so that a million running units are ten thousand units: few enough for the uids
//! that the dispatcher remembers for ten minutes after a submission not to pass for a leak. Each replica runs for
//! `--run-ms`, and its unit goes a second after its end; the limit on ended units stays as it is.
//!
//! `--warm-up` running units come first, unjudged, so that what is bounded is full: state's recent commits for
//! watchers (64 MiB, after about 2.3 million), the ends that agents remember (16 a node), the uids of the last ten
//! minutes in the dispatcher.
//!
//! The run is over when the last unit is deleted. Then: audit, SIGKILL for everything, restart of state; nothing may
//! be left of what was deleted.

mod growth;
pub(super) mod ledger;

use std::{sync::Arc, time::Duration};

use clap::Args as ClapArgs;
use godel_client::{
    audit,
    client::Client,
    exit::{Code, Failure},
    output::progress,
    replay::Latency,
    usage,
};
use godel_kit::CancellationToken;
use godel_proto::v1;
use tokio::time::Instant;

pub(super) use self::growth::Endurance;
use self::{
    growth::{DiskBound, GrowthSample},
    ledger::Ledger,
};
use super::{
    cluster::{self, Counters, Layout, STALL_TIMEOUT},
    load::{Load, SubmitWay},
    processes::{self, BenchProcesses},
    report::{Run, count},
    setup::{Setup, at_least_one},
    workload::Maker,
};

/// Ended units are kept for so long.
const TTL_MS: u64 = 1000;
/// Samples of a run, about.
const N_SAMPLES: u32 = 200;
/// Between two samples: each asks every process, which is part of what is measured.
const PAUSES: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(2);

/// `godel bench endurance`.
#[derive(Clone, Debug, ClapArgs)]
pub struct EnduranceArgs {
    /// Number of measured running units.
    #[arg(long, default_value_t = 1_000_000, value_parser = at_least_one)]
    running_units: usize,
    /// Running units before the measurement, at the same rate, that fill bounded memory: state's recent commits, the
    /// ends that agents remember.
    #[arg(long, default_value_t = 3_000_000)]
    warm_up: usize,
    /// Running units offered per second.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Replicas of each unit.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    replicas: u32,
    /// Run time of each replica in milliseconds.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    run_ms: u64,
    #[command(flatten)]
    setup: Setup,
}

pub(super) async fn run(wanted: EnduranceArgs, format: godel_client::output::Format) -> Result<(), Failure> {
    wanted.setup.repeat(format, "endurance", async |layout| measure(&wanted, layout).await).await
}

async fn measure(wanted: &EnduranceArgs, layout: Layout) -> Result<Run, Failure> {
    let load = Arc::new(wanted.load());
    let bound = DiskBound::of(&layout.set);
    let shapes = [format!("{}x cpu=100,memory=400Gi", layout.n_nodes)];
    let (mut processes, client) = cluster::bring_up(&layout, &shapes, true).await?;
    usage::reset_rss_max();
    let load_average = usage::load_average();
    let stop = CancellationToken::new();
    let ledger = Ledger::start(&client, load.len(), wanted.replicas, stop.clone()).await?;
    let _watching = stop.drop_guard();
    let way = SubmitWay::Paced { interval: wanted.interval() };
    let submitting = Arc::clone(&load).submit(client.clone(), way, ledger.started());
    let submitting = godel_kit::task::spawn("bench.load", submitting);
    let mut samples = vec![sample(&processes, &client, &ledger).await?];
    follow(wanted, &mut processes, &client, &ledger, &mut samples).await?;
    submitting.await.map_err(|_| Failure::failed("the submission panicked"))??;
    let rss = processes::memory(&processes.pids(), usage::rss_bytes_max);
    let conflicts = Counters::read(&client).await?.conflicts;
    let audit_s = cluster::audited(&client).await?;
    nothing_is_left(&mut processes, &layout).await?;

    let sent: Vec<Duration> = load.sent().map(|(_, sent)| sent).collect();
    let latencies = ledger.latencies(&sent);
    let (cpu_s, bytes_written) = growth::used(&samples);
    let seconds = ledger.last_ended().saturating_sub(sent.first().copied().unwrap_or_default()).as_secs_f64();
    let n_replicas = load.n_replicas();
    Ok(Run {
        nodes: layout.n_nodes,
        schedulers: layout.n_schedulers,
        partition: cluster::partition_name(layout.partition).to_owned(),
        agents: "attached".to_owned(),
        units: load.len(),
        placements: n_replicas,
        seconds,
        placements_per_s: count(n_replicas) / seconds.max(1e-6),
        cpu_us_per_placement: cpu_s.values().sum::<f64>() * 1e6 / count(n_replicas),
        cpu_s,
        conflicts,
        rss_mib: rss,
        bytes_written,
        load_average,
        audit: true,
        audit_s,
        offered_per_s: Some(wanted.rate),
        endurance: Some(Endurance::of(wanted.warm_up, wanted.replicas, &samples, &latencies, bound)),
        latency_ms: Latency::of(latencies),
        ..Run::default()
    })
}

impl EnduranceArgs {
    fn load(&self) -> Load {
        let mut maker = Maker::new(self.setup.seed, true);
        let mut load = Load::default();
        while load.n_replicas() < self.n_running() {
            load.push(&short_lived(&mut maker, self.replicas, self.run_ms));
        }
        load
    }

    /// Running units in all.
    fn n_running(&self) -> usize {
        self.warm_up.saturating_add(self.running_units)
    }

    /// Between two units.
    fn interval(&self) -> Duration {
        Duration::from_secs(1) * self.replicas / self.rate
    }

    /// Between two samples.
    fn pause(&self) -> Duration {
        let n_units = u32::try_from(self.n_running()).unwrap_or(u32::MAX) / self.replicas;
        (self.interval().saturating_mul(n_units) / N_SAMPLES).clamp(*PAUSES.start(), *PAUSES.end())
    }
}

/// A unit that runs for a moment, ends and is deleted.
pub(super) fn short_lived(maker: &mut Maker, replicas: u32, run_ms: u64) -> v1::UnitSpec {
    let mut unit = maker.unit(v1::WorkloadClass::Batch, replicas);
    unit.ttl_after_finished_ms = Some(TTL_MS);
    for template in unit.task_groups.iter_mut().filter_map(|group| group.template.as_mut()) {
        let run = v1::RunSpec { simulated_duration_ms: Some(run_ms), ..v1::RunSpec::default() };
        template.run = Some(run);
    }
    unit
}

/// Samples until every unit is gone.
async fn follow(
    wanted: &EnduranceArgs,
    processes: &mut BenchProcesses,
    client: &Client,
    ledger: &Ledger,
    samples: &mut Vec<GrowthSample>,
) -> Result<(), Failure> {
    let bar = progress(ledger.n_units(), "gone");
    let (mut last, mut moved_at) = (ledger.progress(), Instant::now());
    while last.n_gone < ledger.n_units() {
        tokio::time::sleep(wanted.pause()).await;
        processes.check()?;
        if let Some(failure) = ledger.failure() {
            return Err(failure);
        }
        samples.push(sample(processes, client, ledger).await?);
        let now = ledger.progress();
        bar.set_position(u64::try_from(now.n_gone).unwrap_or(0));
        if std::mem::replace(&mut last, now) != now {
            moved_at = Instant::now();
        } else if moved_at.elapsed() > STALL_TIMEOUT {
            let text = format!("no progress for {} s: {now:?}", STALL_TIMEOUT.as_secs());
            return Err(Failure::new(Code::Timeout, text));
        }
    }
    bar.finish_and_clear();
    Ok(())
}

async fn sample(
    processes: &BenchProcesses,
    client: &Client,
    ledger: &Ledger,
) -> Result<GrowthSample, Failure> {
    let store = client.store_status().await?;
    let pids = processes.pids();
    let mut sample = GrowthSample {
        n_ended: ledger.progress().n_ended,
        disk_bytes: store.disk_bytes,
        live_bytes: store.live_bytes,
        bytes_written: pids.iter().filter_map(|(_, pid)| usage::bytes_written(*pid)).sum(),
        ..GrowthSample::default()
    };
    for (name, pid) in pids {
        let (rss, cpu) = usage::rss_bytes(pid)
            .zip(usage::cpu_time(pid))
            .ok_or_else(|| Failure::failed(format!("memory and CPU time of {name} are not known")))?;
        sample.rss.insert(name.clone(), rss);
        sample.cpu.insert(name, cpu);
    }
    Ok(sample)
}

/// SIGKILL for everything; a restarted state lists no unit and no row.
pub(super) async fn nothing_is_left(processes: &mut BenchProcesses, layout: &Layout) -> Result<(), Failure> {
    processes.kill_all().await;
    let address = cluster::start_state(processes, layout, true).await?;
    let world = audit::list(&Client::direct(&address)?).await?;
    processes.kill_all().await;
    let n_rows: usize = world.units.values().map(|unit| unit.rows.len()).sum();
    if world.units.is_empty() {
        return Ok(());
    }
    let text =
        format!("after a kill state lists {} units and {n_rows} running units again", world.units.len());
    Err(Failure::failed(text))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: EnduranceArgs,
    }

    #[test]
    fn the_load_is_offered_at_the_rate() {
        let line = ["", "--running-units", "650", "--warm-up", "400", "--rate", "2000", "--run-ms", "7"];
        let wanted = Line::parse_from(line).arguments;
        let load = wanted.load();
        assert_eq!((load.len(), load.n_replicas()), (11, 1100));
        assert_eq!(wanted.interval(), Duration::from_millis(50));
        assert_eq!(wanted.pause(), *PAUSES.start());
        let unit = load.units().next().unwrap().unwrap();
        assert_eq!(unit.ttl_after_finished_ms, Some(TTL_MS));
        assert_eq!(
            unit.task_groups[0].template.as_ref().unwrap().run.as_ref().unwrap().simulated_duration_ms,
            Some(7)
        );
    }
}
