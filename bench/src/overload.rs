//! `godel bench overload`: what the control plane does while many times more is offered than it can place.
//!
//! First one unit after another, at a slow pace: the latency without load. Then as many as some clients that wait for each
//! answer get in: the capacity. Then `--times` as many for `--seconds`, in an open loop. Latency is from the beginning of
//! the call that was admitted until the last binding is seen; refused calls are counted. Each unit runs on agents for a
//! moment, ends and is deleted. The run is over when everything that was admitted is gone that way; what is not, is lost,
//! and then there are no figures.

mod offer;

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use clap::Args as ClapArgs;
use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::Format,
    replay::Latency,
    usage,
};
use godel_kit::CancellationToken;
use serde::Serialize;
use tokio::time::Instant;

use self::offer::{AdmittedUnit, Offer, Offered, per_second};
use super::{
    cases::per,
    cluster::{self, Layout, STALL_TIMEOUT},
    endurance::{self, ledger::Ledger, short_lived},
    load::unary::Target,
    once::{Figures, Once},
    processes::{self, BenchProcesses},
    report::{by_process, count, latencies, wide},
    setup::at_least_one,
    workload::Maker,
};

/// Units of a run at most.
const N_UNITS_MAX: usize = 64 << 20;
/// Clients that find the capacity at most: few enough for all to be in hand.
const N_CAPACITY_CLIENTS: usize = 64;
/// What comes in the first part of the overload is reported apart: the limit has yet to come down.
const ONSET: Duration = Duration::from_secs(5);
/// Between two looks at what is not gone yet.
const TICK: Duration = Duration::from_millis(200);

/// `godel bench overload`.
#[derive(Clone, Debug, ClapArgs)]
pub struct OverloadArgs {
    /// Length of the overload in seconds.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Length of each of the two measurements before, in seconds.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds_before: u64,
    /// Units offered in the overload per unit that can be placed.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    times: u32,
    /// Units offered per second without load.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    unloaded_rate: u32,
    /// Maximum number of clients. Each has one unit to submit, and either calls or waits for its next try.
    #[arg(long, default_value_t = 1_000, value_parser = at_least_one)]
    clients: usize,
    /// Replicas of each unit.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    replicas: u32,
    /// Run time of each replica in milliseconds.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    run_ms: u64,
    #[command(flatten)]
    once: Once,
}

/// What is reported; field names are stable.
#[derive(Clone, Debug, Serialize)]
struct OverloadFigures {
    workload: &'static str,
    nodes: usize,
    replicas: u32,
    clients: usize,
    /// Of units offered one after another.
    unloaded_units: usize,
    unloaded_ms: Latency,
    /// Units bound a second while clients come back as soon as they may.
    capacity_per_s: f64,
    capacity_ms: Latency,
    /// In the overload.
    seconds: u64,
    offered_per_s: f64,
    attempts: u64,
    refused: u64,
    /// Units due while no client was free, and units refused until the end.
    turned_away: u64,
    given_up: u64,
    admitted: usize,
    admitted_per_s: f64,
    /// Without the first seconds, and those.
    admitted_ms: Latency,
    onset_ms: Latency,
    /// p99 of what was admitted over p99 without load.
    p99_ratio: f64,
    /// Admitted and not bound, run to the end and deleted.
    lost: usize,
    /// By process, when the onset was over and at the end of the overload.
    rss_start_mib: BTreeMap<String, f64>,
    rss_end_mib: BTreeMap<String, f64>,
    load_average: f64,
    audit: bool,
    audit_s: f64,
}

pub(super) async fn run(wanted: OverloadArgs, format: Format) -> Result<(), Failure> {
    wanted.once.run(format, "overload", async |layout| measure(&wanted, layout).await).await
}

async fn measure(wanted: &OverloadArgs, layout: Layout) -> Result<OverloadFigures, Failure> {
    let (processes, client) = cluster::bring_up(&layout, &wanted.once.shapes(), true).await?;
    let load_average = usage::load_average();
    let stop = CancellationToken::new();
    let ledger = Ledger::start(&client, N_UNITS_MAX, wanted.replicas, stop.clone()).await?;
    let _watching = stop.drop_guard();
    let target = Target::leader(&client).await.map_err(|status| client.explain(status))?;
    let mut bench =
        OverloadBench { wanted, client, processes, ledger, target, numbers: Arc::default(), n_admitted: 0 };

    let before = Duration::from_secs(wanted.seconds_before);
    let all = wanted.clients;
    let unloaded = bench.offer(Some(f64::from(wanted.unloaded_rate)), all, before).await?;
    let unloaded_ms = bench.latency(&unloaded.admitted)?;
    let capacity = bench.offer(None, all.min(N_CAPACITY_CLIENTS), before).await?;
    let capacity_per_s = per_second(capacity.admitted.len(), before);
    let capacity_ms = bench.latency(&capacity.admitted)?;

    let (span, offered_per_s) =
        (Duration::from_secs(wanted.seconds), capacity_per_s * f64::from(wanted.times));
    let onset = ONSET.min(span / 4);
    let began = std::time::Instant::now();
    let pids = bench.processes.pids();
    let (offered, rss) =
        tokio::join!(bench.offer(Some(offered_per_s), all, span), memory(&pids, onset, span));
    let offered = offered?;
    let (early, late): (Vec<AdmittedUnit>, Vec<AdmittedUnit>) =
        offered.admitted.iter().partition(|unit| unit.began < began + onset);
    let admitted_ms = bench.latency(&late)?;
    let onset_ms = bench.latency(&early)?;

    let audit_s = cluster::audited(&bench.client).await?;
    endurance::nothing_is_left(&mut bench.processes, &layout).await?;
    Ok(OverloadFigures {
        workload: "overload",
        nodes: layout.n_nodes,
        replicas: wanted.replicas,
        clients: wanted.clients,
        unloaded_units: unloaded.admitted.len(),
        unloaded_ms,
        capacity_per_s,
        capacity_ms,
        seconds: wanted.seconds,
        offered_per_s,
        attempts: offered.attempts,
        refused: offered.refused,
        turned_away: offered.turned_away,
        given_up: offered.given_up,
        admitted: offered.admitted.len(),
        admitted_per_s: per_second(offered.admitted.len(), span),
        admitted_ms,
        onset_ms,
        p99_ratio: per(admitted_ms.p99, unloaded_ms.p99),
        // Otherwise there are no figures.
        lost: 0,
        rss_start_mib: rss.0,
        rss_end_mib: rss.1,
        load_average,
        audit: true,
        audit_s,
    })
}

struct OverloadBench<'a> {
    wanted: &'a OverloadArgs,
    client: Client,
    processes: BenchProcesses,
    ledger: Arc<Ledger>,
    target: Target,
    numbers: Arc<AtomicUsize>,
    n_admitted: usize,
}

impl OverloadBench<'_> {
    /// Offers for so long, and waits until everything that was admitted is gone.
    async fn offer(
        &mut self,
        rate: Option<f64>,
        n_clients: usize,
        span: Duration,
    ) -> Result<Offered, Failure> {
        let unit = short_lived(&mut Maker::new(1, true), self.wanted.replicas, self.wanted.run_ms);
        let offer = Offer::new(unit, rate, span, Arc::clone(&self.numbers));
        let offered = offer.run(&self.target, n_clients).await;
        let offered = offered.map_err(|status| self.client.explain(status).during("the offer"))?;
        self.n_admitted += offered.admitted.len();
        self.gone().await?;
        Ok(offered)
    }

    async fn gone(&mut self) -> Result<(), Failure> {
        let (mut last, mut moved_at) = (self.ledger.progress(), Instant::now());
        while last.n_gone < self.n_admitted {
            tokio::time::sleep(TICK).await;
            self.processes.check()?;
            if let Some(failure) = self.ledger.failure() {
                return Err(failure);
            }
            let now = self.ledger.progress();
            if std::mem::replace(&mut last, now) != now {
                moved_at = Instant::now();
            } else if moved_at.elapsed() > STALL_TIMEOUT {
                let n_lost = self.n_admitted - now.n_gone;
                let text = format!("{n_lost} admitted units are lost: no progress for a minute: {now:?}");
                return Err(Failure::new(Code::Timeout, text));
            }
        }
        Ok(())
    }

    fn latency(&self, admitted: &[AdmittedUnit]) -> Result<Latency, Failure> {
        let started = self.ledger.started();
        let of = |unit: &AdmittedUnit| {
            let bound = self.ledger.bound_at(unit.number)?;
            Some(bound.saturating_sub(unit.began.saturating_duration_since(started)))
        };
        let latencies: Option<Vec<Duration>> = admitted.iter().map(of).collect();
        latencies.map(Latency::of).ok_or_else(|| Failure::failed("a deleted unit was never bound"))
    }
}

/// What each process holds after `onset`, and after `span`.
async fn memory(
    pids: &[(String, u32)],
    onset: Duration,
    span: Duration,
) -> (BTreeMap<String, f64>, BTreeMap<String, f64>) {
    tokio::time::sleep(onset).await;
    let start = processes::memory(pids, usage::rss_bytes);
    tokio::time::sleep(span.saturating_sub(onset)).await;
    (start, processes::memory(pids, usage::rss_bytes))
}

impl Figures for OverloadFigures {
    fn text(&self) -> String {
        let Self { clients, attempts, refused, turned_away, given_up, admitted, lost, .. } = self;
        format!(
            "unloaded     {}\n\
             capacity     {:.0} units/s, {}\n\
             offered      {:.0} units/s for {:.1} min by {clients} clients\n\
             calls        {attempts}, of which {refused} refused; {:.2} per admitted one\n\
             not admitted {turned_away} units without a client, {given_up} refused until the end\n\
             admitted     {admitted} units, {:.0}/s, lost {lost}\n\
             latency      {}: {:.2} × unloaded at p99\n\
             at first     {}\n\
             first MiB    {}\n\
             last MiB     {}\n\
             load before  {:.2}\n\
             audit        ok in {:.1} s; nothing is left\n",
            latencies(self.unloaded_ms),
            self.capacity_per_s,
            latencies(self.capacity_ms),
            self.offered_per_s,
            wide(self.seconds) / 60.0,
            per(wide(*refused), count(*admitted)),
            self.admitted_per_s,
            latencies(self.admitted_ms),
            self.p99_ratio,
            latencies(self.onset_ms),
            by_process(&self.rss_start_mib, 0),
            by_process(&self.rss_end_mib, 0),
            self.load_average,
            self.audit_s,
        )
    }
}
