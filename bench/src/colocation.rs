//! `godel bench tide`: a day of online work in minutes, and best-effort work that fills what it leaves.
//!
//! Online demand goes up threefold from the ebb to noon, where it has a burst for an hour; each second units come or are
//! cancelled so that it is met. Agents report a modelled use. Offline work is best-effort and never ends. All spans over
//! which use is smoothed are shortened as the day is; latencies are in real seconds.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use clap::Args as ClapArgs;
use godel_base::resources::CPU;
use godel_client::{client::Client, exit::Failure, output::Format, replay::Latency, usage};
use godel_proto::v1;
use prost::Message as _;
use serde::Serialize;
use tokio::time::MissedTickBehavior;

use super::{
    board::{self, unreadable},
    cases::per,
    chart::{self, ChartLine},
    cluster::{self, Layout},
    once::{Figures, Once},
    report::count,
    workload::Maker,
};

/// Shares of the nodes' CPU that online work asks for at the ebb and at noon, and more of it in the burst, per cent.
const EBB: f64 = 25.0;
const CREST: f64 = 75.0;
const BURST: f64 = 25.0;
/// The burst, in hours of the day.
const BURST_HOURS: std::ops::Range<f64> = 12.0..13.0;
/// Hours over which use is averaged at the peak and in the trough.
const PEAK_HOURS: std::ops::Range<f64> = 10.0..14.0;
const TROUGH_HOURS: std::ops::Range<f64> = 22.0..24.0;
/// Replicas of an online unit, and what each takes: CPU in thousandths, memory in GiB. 25 fill a node.
const ONLINE: (u32, i64, i64) = (20, 4_000, 16);
/// The same of offline work. 50 fill a node.
const OFFLINE: (u32, i64, i64) = (100, 2_000, 8);
/// Between two looks at the tide.
const TICK: Duration = Duration::from_millis(500);
/// Offline work is back when so many per cent run of what ran before the burst.
const BACK_PERCENT: f64 = 95.0;

/// `godel bench tide`.
#[derive(Clone, Debug, ClapArgs)]
pub struct TideArgs {
    /// Length of the day in minutes.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1440))]
    minutes: u64,
    /// Write the chart to this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    once: Once,
}

/// What is reported; field names are stable.
#[derive(Clone, Debug, Serialize)]
struct Tide {
    workload: &'static str,
    nodes: usize,
    minutes: u64,
    /// Units of online work that came, until each was wholly bound, milliseconds.
    online_units: usize,
    online_ms: Latency,
    /// From the end of the burst until as much offline work runs as before it.
    offline_back_s: f64,
    /// Mean use of the nodes' CPU, per cent.
    use_peak_percent: f64,
    use_trough_percent: f64,
    offline_bound: u64,
    offline_squeezed: u64,
    load_average: f64,
    audit: bool,
    audit_s: f64,
    hours: Vec<Hour>,
}

/// A look at the tide.
#[derive(Clone, Copy, Debug, Serialize)]
struct Hour {
    hour: f64,
    /// Per cent of the nodes' CPU: asked for by online work, used by it, used by all.
    online_asked: f64,
    online_used: f64,
    used: f64,
    /// Running units of offline work.
    offline: u64,
}

/// What the watch has seen.
#[derive(Default)]
struct Seen {
    revision: u64,
    /// Running units bound of each guaranteed unit, and when the last of its replicas was.
    online: BTreeMap<u64, (usize, Instant)>,
    /// Bound less evicted, of best-effort.
    offline: u64,
    offline_units: std::collections::BTreeSet<u64>,
    bound: u64,
    squeezed: u64,
}

pub(super) async fn run(wanted: TideArgs, format: Format) -> Result<(), Failure> {
    wanted.once.run(format, "tide", async |layout| measure(&wanted, layout).await).await
}

async fn measure(wanted: &TideArgs, mut layout: Layout) -> Result<Tide, Failure> {
    let n_nodes = layout.n_nodes;
    layout.set.splice(0..0, settings(wanted.minutes, n_nodes));
    let (mut processes, client) = cluster::bring_up(&layout, &wanted.once.shapes(), true).await?;
    let load_average = usage::load_average();
    let seen = Mutex::new(Seen::default());
    let kinds = [v1::Kind::Rows];
    let watching =
        board::watch(&client, &kinds, || locked(&seen).revision, |response| locked(&seen).take(response));
    let day = Duration::from_secs(wanted.minutes * 60);
    let tide = async {
        let mut driver = Driver::new(&client, &seen, n_nodes, day);
        driver.fill().await?;
        driver.run().await?;
        Ok::<_, Failure>(driver)
    };
    let driver = tokio::select! {
        failure = watching => return Err(failure),
        driver = tide => driver?,
    };
    processes.check()?;
    let Driver { sent, hours, back_s, .. } = driver;
    let seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    let latencies: Vec<Duration> = sent
        .iter()
        .filter_map(|(unit, at)| Some(seen.online.get(unit)?.1.saturating_duration_since(*at)))
        .collect();
    let mean = |range: &std::ops::Range<f64>| {
        let of: Vec<f64> = hours.iter().filter(|at| range.contains(&at.hour)).map(|at| at.used).collect();
        per(of.iter().sum(), count(of.len()))
    };
    if let Some(path) = &wanted.svg {
        let svg =
            chart::by_hour(&lines(&hours, n_nodes)).map_err(|error| Failure::failed(error.to_string()))?;
        chart::write(path, &svg)?;
    }
    let tide = Tide {
        workload: "tide",
        nodes: n_nodes,
        minutes: wanted.minutes,
        online_units: latencies.len(),
        online_ms: Latency::of(latencies),
        offline_back_s: back_s
            .ok_or_else(|| Failure::failed("offline work did not come back after the burst"))?,
        use_peak_percent: mean(&PEAK_HOURS),
        use_trough_percent: mean(&TROUGH_HOURS),
        offline_bound: seen.bound,
        offline_squeezed: seen.squeezed,
        load_average,
        audit: false,
        audit_s: 0.0,
        hours,
    };
    match cluster::audited(&client).await {
        Ok(audit_s) => Ok(Tide { audit: true, audit_s, ..tide }),
        // A day's figures are worth having all the same.
        Err(failure) => Err(Failure::new(failure.code, format!("{}{failure}", tide.text()))),
    }
}

fn locked(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ten minutes and a minute of the day, in its time; 2,000 heartbeats a second at most.
fn settings(minutes: u64, n_nodes: usize) -> Vec<String> {
    let ms_of_minute = minutes * 60_000 / 1_440;
    let heartbeat_ms = (n_nodes / 2).max(500);
    vec![
        format!("state.heartbeat_interval={heartbeat_ms}ms"),
        format!("state.node_lease_ttl={}ms", (3 * heartbeat_ms).max(10_000)),
        format!("state.usage_window={}ms", (10 * ms_of_minute).max(60)),
        format!("state.usage_half_life={}ms", ms_of_minute.max(1)),
        "binder.squeeze_after=500ms".to_owned(),
        "agent.usage_percent=60".to_owned(),
        "agent.usage_noise_percent=5".to_owned(),
        "agent.usage_best_effort_percent=90".to_owned(),
    ]
}

/// Per cent of the nodes' CPU that online work asks for at an hour.
fn demand(hour: f64) -> f64 {
    let wave = (EBB + CREST) / 2.0 - (CREST - EBB) / 2.0 * (hour / 24.0 * std::f64::consts::TAU).cos();
    wave + if BURST_HOURS.contains(&hour) { BURST } else { 0.0 }
}

impl Seen {
    fn take(&mut self, response: &v1::WatchResponse) -> Result<(), tonic::Status> {
        let now = Instant::now();
        for op in response.commits.iter().flat_map(|commit| &commit.ops) {
            match v1::Op::decode(op.clone()).map_err(unreadable)?.op {
                Some(v1::op::Op::Bind(bind)) if bind.pool() == v1::Pool::BestEffort => {
                    let n = bind.ordinals.len() as u64;
                    self.offline_units.insert(bind.unit_id);
                    (self.offline, self.bound) = (self.offline + n, self.bound + n);
                }
                Some(v1::op::Op::Bind(bind)) => {
                    let unit = self.online.entry(bind.unit_id).or_insert((0, now));
                    *unit = (unit.0 + bind.ordinals.len(), now);
                }
                Some(v1::op::Op::Evict(evict)) if self.offline_units.contains(&evict.unit_id) => {
                    let n = evict.ordinals.len() as u64;
                    (self.offline, self.squeezed) = (self.offline.saturating_sub(n), self.squeezed + n);
                }
                _ => {}
            }
        }
        self.revision = self.revision.max(response.revision);
        Ok(())
    }
}

/// Makes the tide.
struct Driver<'a> {
    client: &'a Client,
    seen: &'a Mutex<Seen>,
    n_nodes: usize,
    day: Duration,
    maker: Maker,
    /// Names of the online units that are there, the oldest first.
    online: std::collections::VecDeque<String>,
    /// Online units by id, and when each was asked for.
    sent: Vec<(u64, Instant)>,
    hours: Vec<Hour>,
    before_burst: Option<u64>,
    burst_over: Option<Instant>,
    back_s: Option<f64>,
}

impl<'a> Driver<'a> {
    fn new(client: &'a Client, seen: &'a Mutex<Seen>, n_nodes: usize, day: Duration) -> Self {
        Self {
            client,
            seen,
            n_nodes,
            day,
            maker: Maker::new(1, false),
            online: std::collections::VecDeque::new(),
            sent: Vec::new(),
            hours: Vec::new(),
            before_burst: None,
            burst_over: None,
            back_s: None,
        }
    }

    /// Offline work for every core there is.
    async fn fill(&mut self) -> Result<(), Failure> {
        let (replicas, cpu_milli, memory_gib) = OFFLINE;
        for _ in 0..self.n_nodes.div_ceil(2) {
            let unit = self.maker.sized(v1::WorkloadClass::Batch, replicas, cpu_milli, memory_gib);
            self.submit(v1::UnitSpec { pool: v1::Pool::BestEffort.into(), ..unit }).await?;
        }
        Ok(())
    }

    async fn run(&mut self) -> Result<(), Failure> {
        let started = Instant::now();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let passed = started.elapsed();
            if passed >= self.day {
                return Ok(());
            }
            let hour = passed.as_secs_f64() / self.day.as_secs_f64() * 24.0;
            self.follow(demand(hour)).await?;
            self.look(hour).await?;
        }
    }

    /// As many online units as are asked for.
    async fn follow(&mut self, percent: f64) -> Result<(), Failure> {
        let (replicas, cpu_milli, memory_gib) = ONLINE;
        // 100 CPU a node, 80 a unit.
        let of_unit = count(usize::try_from(replicas).unwrap_or(0)) * 4.0;
        let wanted = |n: usize| count(n) * of_unit <= count(self.n_nodes) * percent;
        let mut n_wanted = self.online.len();
        while wanted(n_wanted + 1) {
            n_wanted += 1;
        }
        while n_wanted > 0 && !wanted(n_wanted) {
            n_wanted -= 1;
        }
        while self.online.len() < n_wanted {
            let unit = self.maker.sized(v1::WorkloadClass::Service, replicas, cpu_milli, memory_gib);
            let name = unit.meta.as_ref().map(|meta| meta.name.clone()).unwrap_or_default();
            let at = Instant::now();
            let id = self.submit(unit).await?;
            self.sent.push((id, at));
            self.online.push_back(name);
        }
        while self.online.len() > n_wanted {
            let Some(name) = self.online.pop_front() else { break };
            let request = v1::CancelUnitRequest { name, ..v1::CancelUnitRequest::default() };
            self.client.units(async |mut units| units.cancel_unit(request.clone()).await).await?;
        }
        Ok(())
    }

    async fn submit(&self, unit: v1::UnitSpec) -> Result<u64, Failure> {
        let request = v1::SubmitUnitRequest { unit: Some(unit) };
        let answer = self.client.units(async |mut units| units.submit_unit(request.clone()).await).await?;
        Ok(answer.unit_id)
    }

    async fn look(&mut self, hour: f64) -> Result<(), Failure> {
        let status = self.client.store_status().await?;
        let cpu = |amounts: &Option<v1::Resources>| {
            let amount = amounts.as_ref().and_then(|amounts| amounts.amounts.get(CPU)).copied();
            count(usize::try_from(amount.unwrap_or(0)).unwrap_or(0))
        };
        let percent = |amount: f64| per(amount * 100.0, cpu(&status.capacity));
        let offline = locked(self.seen).offline;
        let asked = self.online.len() * usize::try_from(ONLINE.0).unwrap_or(0) * 4_000;
        self.hours.push(Hour {
            hour,
            online_asked: percent(count(asked)),
            online_used: percent(cpu(&status.guaranteed_usage)),
            used: percent(cpu(&status.usage)),
            offline,
        });
        if hour < BURST_HOURS.start {
            self.before_burst = Some(offline);
        }
        if hour >= BURST_HOURS.end {
            let over = *self.burst_over.get_or_insert_with(Instant::now);
            let enough = wide_percent(self.before_burst.unwrap_or(0), BACK_PERCENT);
            if self.back_s.is_none() && count(usize::try_from(offline).unwrap_or(0)) >= enough {
                self.back_s = Some(over.elapsed().as_secs_f64());
            }
        }
        Ok(())
    }
}

fn wide_percent(n: u64, percent: f64) -> f64 {
    super::report::wide(n) * percent / 100.0
}

fn lines(hours: &[Hour], n_nodes: usize) -> Vec<ChartLine> {
    // A mark each quarter of an hour at most.
    let step = hours.len().div_ceil(96).max(1);
    let line = |name: &str, of: fn(&Hour) -> f64| ChartLine {
        name: name.to_owned(),
        points: hours.iter().step_by(step).map(|at| (at.hour, of(at))).collect(),
    };
    let offline = ChartLine {
        name: "offline, requests".to_owned(),
        points: hours
            .iter()
            .step_by(step)
            .map(|at| (at.hour, per(super::report::wide(at.offline) * 2.0, count(n_nodes))))
            .collect(),
    };
    vec![
        line("online, requests", |at| at.online_asked),
        line("online, use", |at| at.online_used),
        offline,
        line("all, use", |at| at.used),
    ]
}

impl Figures for Tide {
    fn text(&self) -> String {
        format!(
            "{} nodes, a day in {} minutes\n\
             online       {} units placed: p50 {:.0} ms, p99 {:.0} ms, slowest {:.0} ms\n\
             offline      back {:.1} s after the burst; {} bound, {} squeezed\n\
             cpu use      {:.1} % at the peak, {:.1} % in the trough\n\
             load before  {:.2}\n\
             audit        {}\n",
            self.nodes,
            self.minutes,
            self.online_units,
            self.online_ms.p50,
            self.online_ms.p99,
            self.online_ms.max,
            self.offline_back_s,
            self.offline_bound,
            self.offline_squeezed,
            self.use_peak_percent,
            self.use_trough_percent,
            self.load_average,
            if self.audit { format!("ok in {:.1} s", self.audit_s) } else { "failed".to_owned() },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_is_threefold_at_noon_and_has_one_burst() {
        assert!((demand(0.0) - EBB).abs() < 1e-9 && (demand(24.0) - EBB).abs() < 1e-9);
        assert!((demand(11.999) - 3.0 * EBB).abs() < 0.1);
        assert!((demand(12.0) - 100.0).abs() < 0.1, "all that there is");
        let jumps = (0..2_399).map(|at| f64::from(at) / 100.0);
        assert_eq!(jumps.filter(|at| (demand(at + 0.01) - demand(*at)).abs() > 5.0).count(), 2);
    }

    #[test]
    fn spans_shrink_with_the_day() {
        assert!(settings(1_440, 200).contains(&"state.usage_window=600000ms".to_owned()));
        assert!(settings(10, 200).contains(&"state.usage_window=4160ms".to_owned()));
    }
}
