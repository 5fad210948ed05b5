//! `godel bench yarn`: the load of application masters on the YARN adapter, over Hadoop RPC.
//!
//! Every master is one of an application that was submitted here as unmanaged: a client connection applies for it, its token opens the
//! connection of the master. First all masters ask for their containers at once and call until these have come, with a pause between two calls
//! as masters have it: containers per second. Then nothing is left to do, and each master calls `allocate()` as fast as it is answered: calls per
//! second. Such a call changes nothing, so nothing may be written for it: a transaction of the adapter in that time is a failure. At the end the
//! masters say goodbye. There are figures if every container came once, the units hold as many, all applications are FINISHED, their
//! containers have ended, and the audit holds.

mod adapter;
mod master;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use clap::Args as ClapArgs;
use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::{self, Format},
    replay::Latency,
    usage,
};
use godel_hadoop::yarn::{ApplicationIdProto, YarnApplicationStateProto};
use godel_proto::v1;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use tokio_stream::StreamExt as _;
use tonic::Status;

use self::{adapter::Faces, master::HadoopMaster};
use super::{
    cases::per,
    cluster::{self, Layout, POLL, READY_TIMEOUT},
    once::{Figures, Once},
    processes::{self, BenchProcesses},
    report::{by_process, count, median_of, range},
    setup::at_least_one,
};

/// CPUs of each node, and so containers.
const NODE_CPU: usize = 100;
/// Namespace of the adapter's units.
const NAMESPACE: &str = "yarn";
/// So long nothing is committed before calls are counted.
const STILL: Duration = Duration::from_secs(1);

/// `godel bench yarn`.
#[derive(Clone, Debug, ClapArgs)]
#[command(mut_arg("nodes", |nodes| nodes.default_value("1000").help("Number of nodes, with 100 CPU and 400 GiB each")))]
pub struct YarnArgs {
    /// Number of masters, each with an application and a connection of its own.
    #[arg(long, default_value_t = 100, value_parser = at_least_one)]
    masters: usize,
    /// Containers that each master asks for.
    #[arg(long, default_value_t = 500, value_parser = at_least_one)]
    containers: usize,
    /// Length of the measurement of calls in seconds.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Number of runs, each with its own processes and store; medians are reported.
    #[arg(long, default_value_t = 1, value_parser = at_least_one)]
    repeat: usize,
    #[command(flatten)]
    once: Once,
}

/// One run; field names are stable.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Run {
    workload: String,
    nodes: usize,
    masters: usize,
    /// Of all masters.
    containers: usize,
    /// From the first ask to the last container of the last master.
    containers_s: f64,
    containers_per_s: f64,
    /// CPU time of all processes over that time, and of each.
    cpu_us_per_container: f64,
    container_cpu_us_by_process: BTreeMap<String, f64>,
    /// Calls of `allocate()` that changed nothing, and how long they were counted.
    allocate_calls: usize,
    allocate_s: f64,
    allocate_calls_per_s: f64,
    allocate_ms: Latency,
    /// CPU time of all processes over these calls, and of each.
    cpu_us_per_call: f64,
    call_cpu_us_by_process: BTreeMap<String, f64>,
    /// Transactions in that time, of others than the adapter; it has made none.
    store_commits: u64,
    load_average: f64,
    audit: bool,
    audit_s: f64,
}

/// Medians of the runs, field by field, and the runs themselves.
#[derive(Clone, Debug, Serialize)]
struct YarnReport {
    #[serde(flatten)]
    median: Run,
    /// Lowest and highest.
    allocate_calls_per_s_range: [f64; 2],
    containers_per_s_range: [f64; 2],
    runs: Vec<Run>,
}

pub(super) async fn run(wanted: YarnArgs, format: Format) -> Result<(), Failure> {
    wanted.fits()?;
    wanted.once.run(format, "yarn", async |layout| wanted.repeated(layout).await).await
}

impl YarnArgs {
    fn fits(&self) -> Result<(), Failure> {
        let (wanted, room) =
            (self.masters.saturating_mul(self.containers), self.once.nodes.saturating_mul(NODE_CPU));
        if wanted <= room {
            return Ok(());
        }
        let text = format!("{wanted} containers are more than there is room for: {room}");
        Err(Failure::usage(text).hint("ask for fewer with --containers, or for more --nodes"))
    }

    async fn repeated(&self, layout: Layout) -> Result<YarnReport, Failure> {
        let mut runs = Vec::with_capacity(self.repeat);
        for number in 1..=self.repeat {
            if self.repeat > 1 {
                output::say(format!("run {number} of {}", self.repeat));
            }
            let dir = layout.dir.join(number.to_string());
            std::fs::create_dir_all(&dir)
                .map_err(|error| Failure::failed(format!("{}: {error}", dir.display())))?;
            runs.push(measure(self, Layout { dir, ..layout.clone() }).await?);
        }
        Ok(YarnReport {
            median: median_of(&runs)?,
            allocate_calls_per_s_range: range(runs.iter().map(|run| run.allocate_calls_per_s)),
            containers_per_s_range: range(runs.iter().map(|run| run.containers_per_s)),
            runs,
        })
    }
}

async fn measure(wanted: &YarnArgs, layout: Layout) -> Result<Run, Failure> {
    let shape = format!("{}x cpu={NODE_CPU},memory=400Gi,label.godel.dev/yarn-port=8041", layout.n_nodes);
    let (mut processes, client) = cluster::bring_up(&layout, &[shape], true).await?;
    let faces = Faces::start(&mut processes, &layout, &client).await?;
    let load_average = usage::load_average();
    let masters = at_once((1..=wanted.masters).map(|number| HadoopMaster::register(faces, number))).await?;
    output::say(format!("{} masters have registered", masters.len()));

    let n = wanted.containers;
    let (before, began) = (processes::cpu(&processes.pids()), Instant::now());
    let masters = at_once(masters.into_iter().map(|master| master.fetch(n))).await?;
    let containers_s = began.elapsed().as_secs_f64();
    let of_containers = processes::used(&before, &processes::cpu(&processes.pids()));
    let containers = wanted.masters * n;
    processes.check()?;
    cluster::until("the units hold the containers", async || holds(&client, wanted.masters, n).await).await?;
    output::say(format!("{containers} containers have come"));

    let calls = IdleCalls::count(&client, &processes, masters, wanted.seconds).await?;
    processes.check()?;
    let ids: Vec<ApplicationIdProto> = calls.masters.iter().map(HadoopMaster::id).collect();
    at_once(calls.masters.into_iter().map(HadoopMaster::finish)).await?;
    let mut as_client = master::client_of(faces.client).await?;
    for id in ids {
        finished(&mut as_client, id).await?;
    }
    cluster::until("the containers end", async || holds(&client, wanted.masters, 0).await).await?;
    let audit_s = cluster::audited(&client).await?;
    processes.kill_all().await;
    let allocate_calls = calls.took.len();
    Ok(Run {
        workload: "yarn".to_owned(),
        nodes: layout.n_nodes,
        masters: wanted.masters,
        containers,
        containers_s,
        containers_per_s: per(count(containers), containers_s),
        cpu_us_per_container: each(&of_containers, containers).values().sum(),
        container_cpu_us_by_process: each(&of_containers, containers),
        allocate_calls,
        allocate_s: calls.seconds,
        allocate_calls_per_s: per(count(allocate_calls), calls.seconds),
        allocate_ms: Latency::of(calls.took),
        cpu_us_per_call: each(&calls.cpu, allocate_calls).values().sum(),
        call_cpu_us_by_process: each(&calls.cpu, allocate_calls),
        store_commits: calls.commits,
        load_average,
        audit: true,
        audit_s,
    })
}

/// Calls that changed nothing.
struct IdleCalls {
    masters: Vec<HadoopMaster>,
    took: Vec<Duration>,
    seconds: f64,
    cpu: BTreeMap<String, f64>,
    commits: u64,
}

impl IdleCalls {
    async fn count(
        client: &Client,
        processes: &BenchProcesses,
        masters: Vec<HadoopMaster>,
        seconds: u64,
    ) -> Result<Self, Failure> {
        let revision = still(client).await?;
        let before = processes::cpu(&processes.pids());
        let began = Instant::now();
        let end = began + Duration::from_secs(seconds);
        let called = at_once(masters.into_iter().map(|master| master.call_until(end))).await?;
        let seconds = began.elapsed().as_secs_f64();
        let used = processes::used(&before, &processes::cpu(&processes.pids()));
        let (commits, of_adapter) = committed_after(client, revision).await?;
        if of_adapter > 0 {
            let text =
                format!("the adapter made {of_adapter} transactions while nothing was asked for in any call");
            return Err(Failure::failed(text));
        }
        let (masters, took): (Vec<HadoopMaster>, Vec<Vec<Duration>>) = called.into_iter().unzip();
        Ok(Self { masters, took: took.concat(), seconds, cpu: used, commits })
    }
}

/// All do the same at the same time.
async fn at_once<F, T>(all: impl Iterator<Item = F>) -> Result<Vec<T>, Failure>
where
    F: Future<Output = Result<T, Failure>> + Send + 'static,
    T: Send + 'static,
{
    let all: Vec<_> = all.map(|one| godel_kit::task::spawn("bench.master", one)).collect();
    let mut done = Vec::with_capacity(all.len());
    for one in all {
        done.push(one.await.map_err(|_| Failure::failed("the task of a master panicked"))??);
    }
    Ok(done)
}

/// Microseconds for each of so many.
fn each(cpu_s: &BTreeMap<String, f64>, n: usize) -> BTreeMap<String, f64> {
    cpu_s.iter().map(|(name, seconds)| (name.clone(), per(seconds * 1e6, count(n)))).collect()
}

/// Waits until nothing has been committed for a while; the revision since then.
async fn still(client: &Client) -> Result<u64, Failure> {
    let deadline = Instant::now() + READY_TIMEOUT;
    let (mut revision, mut since) = (client.store_status().await?.revision, Instant::now());
    while since.elapsed() < STILL {
        if Instant::now() > deadline {
            return Err(Failure::new(Code::Timeout, "the store never rests"));
        }
        sleep(POLL).await;
        let now = client.store_status().await?.revision;
        if std::mem::replace(&mut revision, now) != now {
            since = Instant::now();
        }
    }
    Ok(revision)
}

/// Transactions after a revision: of all, and of the adapter.
async fn committed_after(client: &Client, revision: u64) -> Result<(u64, u64), Failure> {
    let up_to = client.store_status().await?.revision;
    if up_to <= revision {
        return Ok((0, 0));
    }
    let request = v1::WatchRequest { from_revision: revision + 1, ..v1::WatchRequest::default() };
    let explain = |status: Status| client.explain(status).during("reading what was committed");
    let mut answers = client.state().watch(request).await.map_err(explain)?.into_inner();
    let (mut n_all, mut n_of_adapter) = (0, 0);
    while let Some(answer) = answers.next().await {
        let answer = answer.map_err(explain)?;
        for commit in answer.commits.iter().filter(|commit| commit.revision <= up_to) {
            n_all += 1;
            n_of_adapter += u64::from(commit.writer.as_ref().is_some_and(|by| by.lease == adapter::NAME));
        }
        if answer.revision >= up_to {
            return Ok((n_all, n_of_adapter));
        }
    }
    Err(Failure::failed("the watch ended before all was read"))
}

/// Whether each unit of the adapter has so many running units on nodes.
async fn holds(client: &Client, n_units: usize, n: usize) -> Result<bool, Failure> {
    let request = v1::ListUnitsRequest { namespace: NAMESPACE.to_owned(), ..v1::ListUnitsRequest::default() };
    let (units, _) = client.list_units(request, usize::MAX).await?;
    let has = |unit: &v1::Unit| {
        let bound = unit.counts.as_ref().map_or(0, |counts| counts.bound);
        usize::try_from(bound).is_ok_and(|bound| bound == n)
    };
    Ok(units.len() == n_units && units.iter().all(has))
}

/// Waits until an application is over as it should be.
async fn finished(client: &mut godel_hadoop::client::Client, id: ApplicationIdProto) -> Result<(), Failure> {
    let deadline = Instant::now() + READY_TIMEOUT;
    loop {
        let state = master::state_of(client, id).await?;
        match state {
            YarnApplicationStateProto::Finished => return Ok(()),
            YarnApplicationStateProto::Running if Instant::now() < deadline => sleep(POLL).await,
            _ => return Err(Failure::failed(format!("an application is {state:?} after its master's end"))),
        }
    }
}

impl Figures for YarnReport {
    fn text(&self) -> String {
        let Run { allocate_ms: Latency { p50, p90, p99, max }, .. } = self.median;
        let run = &self.median;
        let [low, high] = self.allocate_calls_per_s_range;
        let runs = match self.runs.len() {
            1 => String::new(),
            n => format!("runs         {n}: {low:.0} to {high:.0} calls/s\n"),
        };
        format!(
            "containers   {} of {} masters in {:.2} s: {:.0}/s\n\
             allocate()   {} calls in {:.1} s: {:.0}/s, p50 {p50:.2}, p90 {p90:.2}, p99 {p99:.2}, max {max:.1} ms\n\
             CPU us       {:.1} a container: {}\n\
             CPU us       {:.1} a call: {}\n\
             store        {} transactions meanwhile, none of the adapter\n\
             {runs}\
             load before  {:.2}\n\
             audit        ok in {:.1} s\n",
            run.containers,
            run.masters,
            run.containers_s,
            run.containers_per_s,
            run.allocate_calls,
            run.allocate_s,
            run.allocate_calls_per_s,
            run.cpu_us_per_container,
            by_process(&run.container_cpu_us_by_process, 1),
            run.cpu_us_per_call,
            by_process(&run.call_cpu_us_by_process, 1),
            run.store_commits,
            run.load_average,
            run.audit_s,
        )
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: YarnArgs,
    }

    #[test]
    fn what_has_no_room_is_refused() {
        let of = |line: &[&str]| Line::parse_from([&[""], line].concat()).arguments;
        let all = of(&[]);
        assert_eq!((all.once.nodes, all.masters, all.repeat), (1_000, 100, 1));
        assert_eq!(all.fits(), Ok(()));
        let refused = of(&["--nodes", "2", "--masters", "3", "--containers", "67"]).fits().unwrap_err();
        assert!(refused.message.contains("201 containers") && refused.message.ends_with("200"), "{refused}");
    }

    #[test]
    fn a_report_has_medians_and_says_both_rates() {
        let run = |rate: f64| Run {
            workload: "yarn".to_owned(),
            allocate_calls_per_s: rate,
            containers_per_s: 4.0 * rate,
            call_cpu_us_by_process: [("yarn".to_owned(), 12.0)].into(),
            audit: true,
            ..Run::default()
        };
        let runs = vec![run(100.0), run(300.0), run(200.0)];
        let report = YarnReport {
            median: median_of(&runs).unwrap(),
            allocate_calls_per_s_range: range(runs.iter().map(|run| run.allocate_calls_per_s)),
            containers_per_s_range: [0.0; 2],
            runs,
        };
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((&json["allocate_calls_per_s"], &json["audit"]), (&200.0.into(), &true.into()));
        let text = report.text();
        assert!(text.contains("800/s") && text.contains("3: 100 to 300 calls/s"), "{text}");
    }
}
