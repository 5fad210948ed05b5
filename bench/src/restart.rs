//! `godel bench restart`: SIGKILL for everything in a loaded cluster, start everything again on the same directory, and
//! the time until a unit submitted at once has its first durable binding.
//!
//! Running units belong to units of `--replicas` replicas, which go to nodes whose agents are gone: what processes hold
//! is without agents' sessions. The clock starts before the first process does. While it runs, every process is asked
//! each [`POLL`] how far it is, which is part of what is measured.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use clap::Args as ClapArgs;
use godel_client::{
    audit,
    client::Client,
    exit::{Code, Failure},
    output::{self, Format},
    usage,
};
use godel_kit::{
    CancellationToken,
    client::Channel,
    message::RECEIVED_BYTES_MAX,
    security::{ExpectedServer, Role},
};
use godel_proto::v1::{
    self, bind_service_client::BindServiceClient, dispatch_service_client::DispatchServiceClient,
    scheduler_service_client::SchedulerServiceClient, unit_service_client::UnitServiceClient,
};
use serde::Serialize;
use tokio_util::sync::DropGuard;
use tonic::Status;

use super::{
    board::Board,
    cluster::{self, Layout},
    load::{Load, SubmitWay},
    once::{Figures, Once},
    processes::{self, BenchProcesses},
    report::{by_process, mib},
    setup::at_least_one,
    workload::Maker,
};

/// Between two tries to submit, and two looks at a process.
const POLL: Duration = Duration::from_millis(20);
/// Everything is bound within this, or never.
const TIMEOUT: Duration = Duration::from_secs(120);

/// `godel bench restart`.
#[derive(Clone, Debug, ClapArgs)]
pub struct RestartArgs {
    /// Running units that are bound when all processes are killed.
    #[arg(long, default_value_t = 1_000_000, value_parser = at_least_one)]
    running_units: usize,
    /// Replicas of each unit.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    replicas: u32,
    #[command(flatten)]
    once: Once,
}

/// What is reported; field names are stable. Times are seconds since the first process was started.
#[derive(Clone, Debug, Serialize)]
struct Restart {
    workload: &'static str,
    nodes: usize,
    running_units: usize,
    replicas: u32,
    /// A binding of the new unit is seen on a watch.
    first_binding_s: f64,
    /// State answers: the store is open and recovered.
    state_s: f64,
    /// The first look at which a lease was granted anew. Nothing is bound without them: where no look came before the
    /// first binding, that.
    leases_s: BTreeMap<String, f64>,
    /// The first look at which a process had read everything that was stored.
    lists_s: BTreeMap<String, f64>,
    /// The new unit is durable.
    submitted_s: f64,
    /// CPU time by process, up to the first binding.
    cpu_s: BTreeMap<String, f64>,
    /// The most that each process held, from its restart to the first binding.
    rss_mib: BTreeMap<String, f64>,
    /// What each process held then.
    rss_then_mib: BTreeMap<String, f64>,
    /// What each process held before the kill.
    rss_before_mib: BTreeMap<String, f64>,
    /// What state read at its restart.
    disk_bytes: u64,
    load_average: f64,
    audit: bool,
    audit_s: f64,
}

pub(super) async fn run(wanted: RestartArgs, format: Format) -> Result<(), Failure> {
    wanted.once.run(format, "restart", async |layout| measure(&wanted, layout).await).await
}

async fn measure(wanted: &RestartArgs, layout: Layout) -> Result<Restart, Failure> {
    let mut maker = Maker::new(1, false);
    let load = maker.services(wanted.running_units, wanted.replicas);
    let unit = maker.unit(v1::WorkloadClass::Service, 1);
    let (mut processes, client) = cluster::bring_up(&layout, &wanted.once.shapes(), false).await?;
    let (filled, watching) = fill(&client, load).await?;
    output::say("every running unit is bound");
    let rss_before_mib = processes::memory(&children(&processes), usage::rss_bytes);
    let epochs = epochs(&client).await?;
    let disk_bytes = client.store_status().await?.disk_bytes;
    drop(watching);
    processes.kill_all().await;

    let load_average = usage::load_average();
    let started = Instant::now();
    let (address, parts) = cluster::start_all(&mut processes, &layout, false).await?;
    let client = Client::direct(&address)?;
    let stop = CancellationToken::new();
    let _watching = stop.clone().drop_guard();
    let board = Board::start(&client, stop.clone()).await?;
    let state_s = started.elapsed().as_secs_f64();
    let looks = Looks { started, seen: Arc::default(), stop };
    let leases: Vec<String> = epochs.keys().cloned().collect();
    looks.start(&client, epochs, parts).await?;
    submit(&client, unit).await?;
    let submitted_s = started.elapsed().as_secs_f64();
    let bound = tokio::time::timeout(TIMEOUT, board.reached(1, 0)).await;
    let bound = bound.map_err(|_| Failure::new(Code::Timeout, "the new unit is not bound"))?;
    let first_binding_s = (board.started() + bound.last_bound - started).as_secs_f64();
    let children = children(&processes);
    let rss_mib = processes::memory(&children, usage::rss_bytes_max);
    let rss_then_mib = processes::memory(&children, usage::rss_bytes);
    let cpu_s = processes::each(&children, |pid| Some(usage::cpu_time(pid)?.as_secs_f64()));
    let Seen { mut leases_s, lists_s } = looks.end();
    for lease in leases {
        leases_s.entry(lease).or_insert(first_binding_s);
    }

    let audit_s = cluster::audited(&client).await?;
    nothing_is_lost(&mut processes, &layout, &filled, &board).await?;
    Ok(Restart {
        workload: "restart",
        nodes: layout.n_nodes,
        running_units: wanted.running_units,
        replicas: wanted.replicas,
        first_binding_s,
        state_s,
        leases_s,
        lists_s,
        submitted_s,
        cpu_s,
        rss_mib,
        rss_then_mib,
        rss_before_mib,
        disk_bytes,
        load_average,
        audit: true,
        audit_s,
    })
}

/// The processes of the run without this one.
fn children(processes: &BenchProcesses) -> Vec<(String, u32)> {
    processes.pids().into_iter().filter(|(name, _)| name != "load").collect()
}

/// Submits a load and waits until a watch has shown all of it bound.
pub(super) async fn fill(client: &Client, load: Load) -> Result<(Arc<Board>, DropGuard), Failure> {
    let stop = CancellationToken::new();
    let board = Board::start(client, stop.clone()).await?;
    let n_replicas = load.n_replicas();
    Arc::new(load).submit(client.clone(), SubmitWay::Stream, board.started()).await?;
    let bound = tokio::time::timeout(TIMEOUT, board.reached(n_replicas, 0)).await;
    bound.map_err(|_| {
        let n_bound = board.progress().n_bound;
        Failure::new(Code::Timeout, format!("{n_bound} of {n_replicas} running units are bound"))
    })?;
    Ok((board, stop.drop_guard()))
}

/// Submits until a dispatcher has it, which none has before it leads.
async fn submit(client: &Client, unit: v1::UnitSpec) -> Result<(), Failure> {
    let directory = client.directory();
    let request = v1::SubmitUnitRequest { unit: Some(unit) };
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let status = match directory.leader("dispatcher").await {
            Ok(leader) => {
                let channel = directory.leader_channel("dispatcher", &leader).map_err(Status::from)?;
                match UnitServiceClient::new(channel).submit_unit(request.clone()).await {
                    Ok(_) => return Ok(()),
                    Err(status) => {
                        directory.failed("dispatcher", &leader, &status);
                        status
                    }
                }
            }
            Err(status) => status,
        };
        if !godel_kit::status::is_retryable_idempotent(&status) || Instant::now() > deadline {
            return Err(client.explain(status).during("the submission"));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Leases and the epochs of their last grants.
async fn epochs(client: &Client) -> Result<BTreeMap<String, u64>, Status> {
    let members = client.directory().members("").await?;
    let elected = members.into_iter().filter(|member| !member.lease.starts_with("member/"));
    Ok(elected.map(|member| (member.lease, member.epoch)).collect())
}

/// When something was first seen, in seconds.
#[derive(Clone, Debug, Default)]
struct Seen {
    leases_s: BTreeMap<String, f64>,
    lists_s: BTreeMap<String, f64>,
}

/// Looks at every process until it is far enough.
struct Looks {
    started: Instant,
    seen: Arc<Mutex<Seen>>,
    stop: CancellationToken,
}

impl Looks {
    /// `epochs`: before the kill. `parts`: addresses by name.
    async fn start(
        &self,
        client: &Client,
        epochs: BTreeMap<String, u64>,
        parts: BTreeMap<String, String>,
    ) -> Result<(), Failure> {
        let stored = client.store_status().await?.revision;
        self.spawn(leases(client.clone(), epochs, self.started, Arc::clone(&self.seen)));
        for (name, address) in parts {
            let channel = client.directory().channel(&expected(&name), &address).map_err(Status::from)?;
            self.spawn(list(name, channel, stored, self.started, Arc::clone(&self.seen)));
        }
        Ok(())
    }

    fn spawn(&self, looks: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        godel_kit::task::spawn("bench.look", async move {
            tokio::select! {
                () = looks => {}
                () = stop.cancelled() => {}
            }
        });
    }

    fn end(self) -> Seen {
        self.stop.cancel();
        lock(&self.seen).clone()
    }
}

async fn leases(client: Client, before: BTreeMap<String, u64>, started: Instant, seen: Arc<Mutex<Seen>>) {
    loop {
        let granted = epochs(&client).await.unwrap_or_default();
        let anew =
            granted.into_iter().filter(|(lease, epoch)| before.get(lease).is_some_and(|old| epoch > old));
        let now = started.elapsed().as_secs_f64();
        {
            let mut seen = lock(&seen);
            for (lease, _) in anew {
                seen.leases_s.entry(lease).or_insert(now);
            }
            if seen.leases_s.len() == before.len() {
                return;
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Who serves the list of a process.
fn expected(name: &str) -> ExpectedServer {
    ExpectedServer::any_of(match name {
        "dispatcher" => Role::Dispatcher,
        "binder" => Role::Binder,
        _scheduler => Role::Scheduler,
    })
}

async fn list(name: String, channel: Channel, stored: u64, started: Instant, seen: Arc<Mutex<Seen>>) {
    while !read_up_to(&name, channel.clone()).await.is_ok_and(|read| read >= stored) {
        tokio::time::sleep(POLL).await;
    }
    lock(&seen).lists_s.insert(name, started.elapsed().as_secs_f64());
}

/// The revision up to which a process has read.
async fn read_up_to(name: &str, channel: Channel) -> Result<u64, Status> {
    Ok(match name {
        "dispatcher" => {
            let mut client =
                DispatchServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX);
            client.get_dispatcher_status(v1::GetDispatcherStatusRequest {}).await?.into_inner().revision
        }
        "binder" => {
            let mut client = BindServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX);
            client.get_binder_status(v1::GetBinderStatusRequest {}).await?.into_inner().revision
        }
        _scheduler => {
            let mut client =
                SchedulerServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX);
            client.get_scheduler_status(v1::GetSchedulerStatusRequest {}).await?.into_inner().revision
        }
    })
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    // Nothing that holds the lock can leave it half changed.
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// SIGKILL for everything once more: what state lists then is what the watches before and after the restart showed.
async fn nothing_is_lost(
    processes: &mut BenchProcesses,
    layout: &Layout,
    before: &Board,
    after: &Board,
) -> Result<(), Failure> {
    processes.kill_all().await;
    let address = cluster::start_state(processes, layout, false).await?;
    let mut world = audit::list(&Client::direct(&address)?).await?;
    processes.kill_all().await;
    let mut differences = after.differences(&world);
    world.units.retain(|id, _| id.0 <= after.id_base());
    differences.extend(before.differences(&world));
    if differences.is_empty() {
        return Ok(());
    }
    let text = "after a kill, the lists of state differ from what the watches showed";
    Err(Failure::failed(format!("{text}\n{}", differences.join("\n"))))
}

impl Figures for Restart {
    fn text(&self) -> String {
        let Self { nodes, running_units, replicas, first_binding_s, state_s, submitted_s, .. } = self;
        let disk_mib = mib(self.disk_bytes);
        format!(
            "{nodes} nodes, {running_units} running units in units of {replicas}, {disk_mib:.0} MiB on disk; seconds since the start\n\
             first binding {first_binding_s:.2}\n\
             state         {state_s:.2}\n\
             leases        {}\n\
             lists         {}\n\
             submitted     {submitted_s:.2}\n\
             CPU s         {}\n\
             peak MiB      {}\n\
             before MiB    {}\n\
             load before   {:.2}\n\
             audit         ok in {:.1} s; a restarted state lists what the watches showed\n",
            by_process(&self.leases_s, 2),
            by_process(&self.lists_s, 2),
            by_process(&self.cpu_s, 2),
            by_process(&self.rss_mib, 0),
            by_process(&self.rss_before_mib, 0),
            self.load_average,
            self.audit_s,
        )
    }
}
