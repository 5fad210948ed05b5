//! A control plane of real processes for one run: brought up, loaded, measured, audited, killed and read again.

mod start;

use std::{
    collections::{BTreeMap, HashMap},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use godel_audit::InvariantVerdict;
use godel_client::{
    audit::{self, Quiet},
    client::Client,
    exit::{Code, Failure},
    output::{self, Paint, progress},
    replay::Latency,
    usage,
};
use godel_kit::CancellationToken;
use godel_proto::v1;
use indicatif::ProgressBar;
use tokio::time::Instant;
use tokio_util::sync::DropGuard;

use super::{
    board::{Board, Progress},
    cap::Cap,
    latency::snapshot::{BesideSnapshot, SnapshotSpan, SnapshotWatch},
    load::{Load, SubmitWay},
    processes::{self, BenchProcesses},
    report::{Run, count},
};
use start::parts;
pub(super) use start::{
    AgentProcess, Layout, serve, serve_logging, start_agents, start_all, start_state, start_state_at,
};

/// Time for the processes to be ready, and for the nodes to be there.
pub(super) const READY_TIMEOUT: Duration = Duration::from_secs(300);
/// A load that makes no progress for so long never will.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Units that a failure names.
const N_SHOWN: usize = 5;
/// So long an audit waits for what it cannot judge yet.
const AUDIT_PATIENCE: Duration = Duration::from_secs(3);
/// Between two looks at something that is waited for.
pub(super) const POLL: Duration = Duration::from_millis(50);
/// Between two looks at the processes while a load runs: rare, because it is part of what is measured.
const TICK: Duration = Duration::from_millis(500);
/// Looks in a row that must show rest.
const N_QUIET_LOOKS: u32 = 2;
/// Where some may find no room, at most one of so many.
const N_PLACED_OF_UNPLACED: usize = 100;

/// See the module.
pub(super) struct BenchCluster {
    layout: Layout,
    /// They stay, run what is placed and report; otherwise they are gone once every node is registered.
    agents: bool,
    processes: BenchProcesses,
    client: Client,
    /// Calls of whoever submits units.
    submitter: Client,
    board: Arc<Board>,
    /// Everything submitted so far.
    loads: Vec<Arc<Load>>,
    n_replicas: usize,
    _watching: DropGuard,
}

/// What the system says that processes have used.
struct ProcessesUse {
    cpu: BTreeMap<String, Duration>,
    bytes_written: u64,
}

/// What the schedulers count.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) conflicts: u64,
    pub(super) cache_hits: u64,
    pub(super) cache_misses: u64,
}

impl Counters {
    /// As of now.
    pub(super) async fn read(client: &Client) -> Result<Self, Failure> {
        let mut counters = Self::default();
        for scheduler in client.schedulers().await?.schedulers {
            let status = client.scheduler_status(&scheduler).await?;
            counters.conflicts += status.conflicts;
            counters.cache_hits += status.cache_hits;
            counters.cache_misses += status.cache_misses;
        }
        Ok(counters)
    }
}

/// A measured load; its latencies are known once the ids of its units are.
pub(super) struct Measured {
    load: Arc<Load>,
    run: Run,
    /// Written meanwhile.
    snapshot: Option<SnapshotSpan>,
}

impl Measured {
    /// Tells latencies before a snapshot and beside it, too.
    pub(super) fn beside(self, snapshot: SnapshotSpan) -> Self {
        Self { snapshot: Some(snapshot), ..self }
    }
}

impl BenchCluster {
    /// Starts everything and waits until it is quiet. `shapes`: nodes as `godel agent --simulate` takes them.
    pub(super) async fn start(layout: Layout, shapes: &[String], agents: bool) -> Result<Self, Failure> {
        let (processes, client) = bring_up(&layout, shapes, agents).await?;
        Self::of(layout, agents, processes, client).await
    }

    /// Starts everything again that was killed, without agents, and waits until it is quiet.
    pub(super) async fn start_again(mut processes: BenchProcesses, layout: Layout) -> Result<Self, Failure> {
        let (address, _parts) = start_all(&mut processes, &layout, false).await?;
        let client = layout.client(&address).await?;
        client.wait_ready(READY_TIMEOUT).await?;
        settle(&mut processes, &layout, &client, false).await?;
        Self::of(layout, false, processes, client).await
    }

    async fn of(
        layout: Layout,
        agents: bool,
        processes: BenchProcesses,
        client: Client,
    ) -> Result<Self, Failure> {
        // An earlier run of this process audited.
        usage::reset_rss_max();
        let stop = CancellationToken::new();
        let board = Board::start(&client, stop.clone()).await?;
        let watching = stop.drop_guard();
        let submitter = layout.submitter(&client).await?;
        Ok(Self {
            layout,
            agents,
            processes,
            client,
            submitter,
            board,
            loads: Vec::new(),
            n_replicas: 0,
            _watching: watching,
        })
    }

    /// Calls what was started.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Looks for the first snapshot that state writes.
    pub(super) fn watch_snapshot(&self) -> SnapshotWatch {
        SnapshotWatch::start(self.processes.log("state"), Arc::clone(&self.board))
    }

    /// Holds each scheduler to so many hundredths of a core for as long as its cap lives.
    pub(super) fn cap_schedulers(&self, per_cent: u32, caps: &mut Vec<Cap>) -> Result<(), Failure> {
        let parts = parts(self.layout.n_schedulers);
        for (name, pid) in self.processes.pids() {
            if parts.iter().any(|(other, part)| *other == name && *part == "scheduler") {
                caps.push(Cap::new(pid, per_cent)?);
            }
        }
        Ok(())
    }

    /// Submits a load and waits until all of it is bound, or has ended where agents run it.
    pub(super) async fn run(&mut self, load: Load, way: SubmitWay) -> Result<Measured, Failure> {
        quiet(&self.client, self.layout.n_schedulers, &mut self.processes).await?;
        let n_replicas = load.n_replicas();
        let load = Arc::new(load);
        self.loads.push(Arc::clone(&load));
        self.n_replicas += n_replicas;
        let load_average = usage::load_average();
        let counted = Counters::read(&self.client).await?;
        let before = self.used()?;
        let n_before = self.board.progress().n_bound;
        let started = self.board.now();
        let submitting = Arc::clone(&load).submit(self.submitter.clone(), way, self.board.started());
        let submitting = godel_kit::task::spawn("bench.load", submitting);
        let (progress, after) = self.settle(submitting, &load).await?;
        // The others found no room: that there was none, the audit says.
        let placements = progress.n_bound - n_before;
        if (n_replicas - placements) * N_PLACED_OF_UNPLACED > n_replicas {
            return Err(self.stalled(progress.n_bound, progress.n_ended).await);
        }
        let counters = Counters::read(&self.client).await?;
        let last = if self.agents && !load.stays { progress.last_ended } else { progress.last_bound };
        let seconds = last.saturating_sub(started).as_secs_f64();
        let cpu_s = processes::used(&before.cpu, &after.cpu);
        let run = Run {
            nodes: self.layout.n_nodes,
            schedulers: self.layout.n_schedulers,
            partition: partition_name(self.layout.partition).to_owned(),
            agents: if self.agents { "attached" } else { "detached" }.to_owned(),
            units: load.len(),
            placements,
            unplaced: n_replicas - placements,
            seconds,
            placements_per_s: count(placements) / seconds.max(1e-6),
            cpu_us_per_placement: cpu_s.values().sum::<f64>() * 1e6 / count(placements),
            cpu_s,
            conflicts: counters.conflicts.saturating_sub(counted.conflicts),
            cache_hits: counters.cache_hits.saturating_sub(counted.cache_hits),
            cache_misses: counters.cache_misses.saturating_sub(counted.cache_misses),
            rss_mib: processes::memory(&self.processes.pids(), usage::rss_bytes_max),
            bytes_written: after.bytes_written.saturating_sub(before.bytes_written),
            load_average,
            ..Run::default()
        };
        Ok(Measured { load, run, snapshot: None })
    }

    /// Audits the live system, kills everything, restarts state, and compares what it lists with what the watch
    /// showed and with what was submitted. Only then are there figures.
    pub(super) async fn verify(mut self, measured: Vec<Measured>) -> Result<Vec<Run>, Failure> {
        let audit_s = audited(&self.client).await?;
        self.processes.kill_all().await;
        let address = start_state(&mut self.processes, &self.layout, self.agents).await?;
        let world = audit::list(&self.layout.client(&address).await?).await?;
        self.processes.kill_all().await;
        let mut differences = self.board.differences(&world);
        let by_uid: HashMap<&str, u64> = world
            .units
            .iter()
            .filter_map(|(id, unit)| Some((unit.record.as_ref()?.value.spec.uid.as_str(), id.0)))
            .collect();
        let submitted = self.loads.iter().flat_map(|load| load.sent());
        let lost: Vec<&str> = submitted.map(|(uid, _)| uid).filter(|uid| !by_uid.contains_key(uid)).collect();
        if let Some(first) = lost.first() {
            differences.push(format!("{} units are lost, as {first}", lost.len()));
        }
        if !differences.is_empty() {
            return Err(Failure::failed(format!(
                "after a kill, the lists of state differ from what the watch showed\n{}",
                differences.join("\n")
            )));
        }
        let bound: HashMap<u64, Duration> = self.board.bound_times().collect();
        let with_latency = measured.into_iter().map(|Measured { load, run, snapshot }| {
            let latencies = load.sent().filter_map(|(uid, sent)| {
                let bound = bound.get(by_uid.get(uid)?)?;
                Some((sent, bound.saturating_sub(sent)))
            });
            let latencies: Vec<(Duration, Duration)> = latencies.collect();
            let snapshot = snapshot.map(|span| BesideSnapshot::of(span, &latencies)).transpose()?;
            let latency_ms = Latency::of(latencies.into_iter().map(|(_, latency)| latency).collect());
            Ok(Run { latency_ms, audit: true, audit_s, snapshot, ..run })
        });
        with_latency.collect()
    }

    /// Waits until all of a load is where it ends up. What the processes had used by then is read at once.
    async fn settle(
        &mut self,
        mut submitting: tokio::task::JoinHandle<Result<(), Failure>>,
        load: &Load,
    ) -> Result<(Progress, ProcessesUse), Failure> {
        let bar = progress(load.n_replicas(), "placed");
        let n_before = self.n_replicas - load.n_replicas();
        let board = Arc::clone(&self.board);
        let n_ending = if self.agents && !load.stays { self.n_replicas } else { 0 };
        let mut goal = pin!(board.reached(self.n_replicas, n_ending));
        let tick = if load.may_wait { POLL } else { TICK };
        let (mut is_submitted, mut last, mut moved_at, mut rest) = (false, (0, 0), Instant::now(), None);
        loop {
            tokio::select! {
                ended = &mut submitting, if !is_submitted => {
                    ended.map_err(|_| Failure::failed("the submission panicked"))??;
                    is_submitted = true;
                }
                reached = &mut goal, if is_submitted => {
                    let used = self.used()?;
                    bar.finish_and_clear();
                    return Ok((reached, used));
                }
                () = tokio::time::sleep(tick) => {
                    self.processes.check()?;
                    if let Some(failure) = self.board.failure() {
                        return Err(failure);
                    }
                    let seen = self.board.progress();
                    let Progress { n_bound, n_ended, .. } = seen;
                    show(&bar, n_bound - n_before, n_ended, self.agents);
                    if std::mem::replace(&mut last, (n_bound, n_ended)) != (n_bound, n_ended) {
                        (moved_at, rest) = (Instant::now(), None);
                    } else if moved_at.elapsed() > STALL_TIMEOUT {
                        return Err(self.stalled(n_bound, n_ended).await);
                    } else if load.may_wait && is_submitted {
                        // Looking costs CPU time that is not the load's.
                        let (used, n_looks) = match rest.take() {
                            Some(rest) => rest,
                            None => (self.used()?, 0),
                        };
                        let n_looks = if self.rests(seen).await? { n_looks + 1 } else { 0 };
                        if n_looks >= N_QUIET_LOOKS {
                            bar.finish_and_clear();
                            return Ok((seen, used));
                        }
                        rest = Some((used, n_looks));
                    }
                }
            }
        }
    }

    /// Whether nothing is on its way any more, to a node or from one, although some found no place.
    async fn rests(&self, seen: Progress) -> Result<bool, Failure> {
        let quiet = Quiet::look(&self.client).await?;
        let is_over = !self.agents || seen.n_ended == seen.n_bound;
        Ok(is_over && quiet.busy().is_none() && quiet.parked > 0 && self.board.read_up_to() >= quiet.revision)
    }

    async fn stalled(&self, n_bound: usize, n_ended: usize) -> Failure {
        let mut text = format!("{n_bound} of {} running units are bound", self.n_replicas);
        if self.agents {
            text.push_str(&format!(", {n_ended} have ended"));
        }
        text.push_str(&format!(", no progress for {} s", STALL_TIMEOUT.as_secs()));
        if let Ok(Some(busy)) = Quiet::look(&self.client).await.map(|quiet| quiet.busy()) {
            text.push_str(&format!("\n{busy}"));
        }
        let units = self.client.list_units(v1::ListUnitsRequest::default(), usize::MAX).await;
        let (units, _) = units.unwrap_or_default();
        let waits = |unit: &&v1::Unit| unit.counts.as_ref().is_some_and(|counts| counts.pending > 0);
        for unit in units.iter().filter(waits).take(N_SHOWN) {
            text.push_str(&format!("\n{}", waiting(unit)));
        }
        // Whether there was room for them.
        match audit::run(&self.client, audit::Wanted::default()).await {
            Ok(findings) => text.push_str(&format!("\n{}", findings.text(Paint::plain()).trim_end())),
            Err(failure) => text.push_str(&format!("\nno audit: {failure}")),
        }
        Failure::new(Code::Timeout, text).hint(format!("the logs are in {}", self.layout.dir.display()))
    }

    /// What every process has used so far.
    fn used(&self) -> Result<ProcessesUse, Failure> {
        let pids = self.processes.pids();
        let cpu = processes::cpu(&pids);
        if cpu.len() != pids.len() {
            return Err(Failure::failed("the CPU time of a process is not known"));
        }
        let bytes_written = pids.iter().filter_map(|(_, pid)| usage::bytes_written(*pid)).sum();
        Ok(ProcessesUse { cpu, bytes_written })
    }
}

/// Starts everything and waits until it is quiet.
pub(super) async fn bring_up(
    layout: &Layout,
    shapes: &[String],
    agents: bool,
) -> Result<(BenchProcesses, Client), Failure> {
    let mut processes = BenchProcesses::new(&layout.dir)?;
    let (address, _parts) = start_all(&mut processes, layout, agents).await?;
    let client = layout.client(&address).await?;
    client.wait_ready(READY_TIMEOUT).await?;
    // The names of the nodes are those of the shapes: whatever they are.
    start_agents(
        &mut processes,
        layout,
        &AgentProcess { address: &address, name: "agents", names: "*", shapes, is_behind: false },
    )
    .await?;
    if !agents {
        processes.kill("agents").await;
    }
    settle(&mut processes, layout, &client, agents).await?;
    Ok((processes, client))
}

/// Waits until every node and scheduler is there, sets the partition mode, and waits until it is quiet.
pub(super) async fn settle(
    processes: &mut BenchProcesses,
    layout: &Layout,
    client: &Client,
    agents: bool,
) -> Result<(), Failure> {
    until("the nodes and schedulers", async || {
        processes.check()?;
        is_ready(client, layout.n_nodes, agents).await
    })
    .await?;
    let request = v1::SetPartitionModeRequest { mode: layout.partition.into(), automatic: false };
    client.dispatch(async |mut dispatch| dispatch.set_partition_mode(request).await).await?;
    quiet(client, layout.n_schedulers, processes).await
}

/// Audits the live system; how many seconds that took.
pub(super) async fn audited(client: &Client) -> Result<f64, Failure> {
    let started = Instant::now();
    let findings =
        audit::run(client, audit::Wanted { ledger: None, patience: AUDIT_PATIENCE, look_here: None }).await?;
    match findings.verdict() {
        InvariantVerdict::Ok => {}
        InvariantVerdict::Failed => {
            return Err(Failure::failed(format!("the audit failed\n{}", findings.text(Paint::plain()))));
        }
        // A run without agents, or one that is never at rest, leaves something open.
        InvariantVerdict::NotJudged(_) => output::say(findings.text(Paint::plain())),
    }
    Ok(started.elapsed().as_secs_f64())
}

/// A unit that waits, and why.
fn waiting(unit: &v1::Unit) -> String {
    let name = unit.spec.as_ref().and_then(|spec| spec.meta.as_ref()).map_or("?", |meta| meta.name.as_str());
    let pending = unit.counts.as_ref().map_or(0, |counts| counts.pending);
    let refusals = unit.refusals.as_ref();
    let reasons = refusals.map_or_else(Vec::new, |refusals| {
        refusals.reasons.iter().map(|one| format!("{} nodes: {}", one.nodes, one.reason)).collect()
    });
    let reasons = if reasons.is_empty() { "no try has failed".to_owned() } else { reasons.join(", ") };
    format!("{name}: {pending} pending at {}: {reasons}", unit.scheduler)
}

/// Looks until something is so.
pub(super) async fn until(
    what: &str,
    mut is_so: impl AsyncFnMut() -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let deadline = Instant::now() + READY_TIMEOUT;
    while !is_so().await? {
        if Instant::now() > deadline {
            return Err(Failure::new(
                Code::Timeout,
                format!("timeout after {} s: {what}", READY_TIMEOUT.as_secs()),
            ));
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Every node is ready, and agents are connected or gone as they should be.
pub(super) async fn is_ready(client: &Client, n_nodes: usize, agents: bool) -> Result<bool, Failure> {
    let n_nodes = u64::try_from(n_nodes).unwrap_or(u64::MAX);
    let status = client.store_status().await?;
    if status.nodes != n_nodes || status.sessions != if agents { n_nodes } else { 0 } {
        return Ok(false);
    }
    let nodes = client.list_nodes(&[]).await?;
    Ok(nodes.iter().all(|node| node.report.as_ref().is_some_and(|report| report.ready)))
}

/// Waits until nothing is on its way with so many schedulers.
async fn quiet(client: &Client, n_schedulers: usize, processes: &mut BenchProcesses) -> Result<(), Failure> {
    until("quiet", async || {
        processes.check()?;
        let quiet = Quiet::look(client).await?;
        Ok(quiet.busy().is_none() && usize::try_from(quiet.schedulers).is_ok_and(|n| n == n_schedulers))
    })
    .await
}

fn show(bar: &ProgressBar, n_bound: usize, n_ended: usize, agents: bool) {
    bar.set_position(u64::try_from(n_bound).unwrap_or(0));
    if agents {
        bar.set_message(format!("({n_ended} ended)"));
    }
}

pub(super) fn partition_name(mode: v1::PartitionMode) -> &'static str {
    match mode {
        v1::PartitionMode::Preferred => "preferred",
        v1::PartitionMode::Strict => "strict",
        v1::PartitionMode::Global | v1::PartitionMode::Unspecified => "global",
    }
}
