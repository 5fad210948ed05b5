//! `godel bench store`: what the store bears on this disk, without network and services: the real store with the
//! transactions that dispatcher, binder and agents send.

mod txns;

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args as ClapArgs;
use godel_base::ids::Revision;
use godel_client::{
    exit::{Code, Failure},
    output::{self, Format, View, ViewColumn},
    replay::Latency,
    usage,
};
use godel_kit::clock::SystemClock;
use godel_proto::raw;
use godel_store::{Committed, Engine, Role, SledConfig, Store as LogStore, StoreConfig};
use serde::Serialize;

use self::txns::Txns;
use godel_crash::CrashPoints;

use super::{
    cases::{dir_name, in_dir, per, show},
    report::wide,
};

/// Transactions without an answer at once, of a pipeline.
const N_IN_FLIGHT: usize = 16;
/// Agents that each wait for their answer.
const N_CLIENTS: u32 = 64;

/// `godel bench store`.
#[derive(Clone, Debug, ClapArgs)]
pub struct StoreArgs {
    /// Directory in which the store is created and removed again, on the disk to measure.
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    data_dir: PathBuf,
    /// Run each case for a twentieth of a second, as a check.
    #[arg(long)]
    quick: bool,
    /// Also write the figures to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Figures of one case; field names are stable.
#[derive(Debug, Default, Serialize)]
struct StoreCase {
    case: &'static str,
    what: &'static str,
    txns: u64,
    /// Puts or placements.
    ops: u64,
    seconds: f64,
    txns_per_s: f64,
    ops_per_s: f64,
    cpu_us_per_txn: f64,
    cpu_us_per_op: f64,
    /// From handing in a transaction to its answer.
    latency_ms: Latency,
    /// To the disk.
    bytes_written: u64,
    bytes_per_op: f64,
    txns_per_sync: f64,
}

/// A transaction ready to be sent.
struct Made {
    txn: raw::TxnRequest,
    role: Role,
    n_ops: u64,
}

/// Answers, and how long each took.
#[derive(Default)]
struct AnsweredTxns {
    committed: Vec<(Committed, u64)>,
    latencies: Vec<Duration>,
}

pub(super) async fn run(wanted: StoreArgs, format: Format) -> Result<(), Failure> {
    let StoreArgs { quick, data_dir, json } = wanted;
    in_dir(&data_dir, &dir_name("store"), async |dir| {
        show("store", format, json.as_deref(), measure(&dir.join("data"), quick)).await
    })
    .await
}

async fn measure(dir: &Path, quick: bool) -> Result<Vec<StoreCase>, Failure> {
    let time = if quick { Duration::from_millis(50) } else { Duration::from_millis(1_500) };
    let store = open(dir).await?;
    let mut txns = Txns::default();
    output::say("registering nodes");
    for made in txns.set_up() {
        store.submit(made.txn, made.role).await.map_err(|refusal| refused(&refusal))?;
    }
    let mut cases = Vec::new();
    let bench = StoreBench { store: &store, time };

    let put = || Some(txns.put_units(1, 1_000));
    let (case, answered) =
        bench.pipeline("put-serial", "one unit a transaction, one after the other", 1, put).await?;
    cases.push(case);
    let services = txns.take_units(&answered.committed);

    cases.push(bench.clients(&txns).await?);

    let put = || Some(txns.put_units(100, 1));
    let what = "100 units a transaction";
    let (case, answered) = bench.pipeline("put-100", what, N_IN_FLIGHT, put).await?;
    cases.push(case);
    let singles = txns.take_units(&answered.committed);

    let mut made = txns.bind(&services, 1, 1_000).into_iter();
    let what = "a unit's 1,000 placements a transaction";
    let (case, _) = bench.pipeline("bind-1000", what, N_IN_FLIGHT, || made.next()).await?;
    cases.push(case);

    let mut made = txns.bind(&singles, 100, 1).into_iter();
    let what = "the placements of 100 units of one replica a transaction";
    let (case, _) = bench.pipeline("bind-100x1", what, N_IN_FLIGHT, || made.next()).await?;
    cases.push(case);

    store.close().await;
    Ok(cases)
}

async fn open(dir: &Path) -> Result<LogStore, Failure> {
    let config = StoreConfig::new(Engine::Sled(SledConfig::new(dir)));
    let clock = SystemClock::shared();
    let open = move || LogStore::open(config, Arc::new(move || clock.wall_ms()), CrashPoints::default());
    let opened = tokio::task::spawn_blocking(open).await;
    let opened = opened.map_err(|error| Failure::failed(format!("the store cannot be opened: {error}")))?;
    opened.map_err(|error| Failure::chain(Code::Failed, &error))
}

struct StoreBench<'a> {
    store: &'a LogStore,
    time: Duration,
}

impl StoreBench<'_> {
    /// One writer with up to `n_in_flight` transactions under way, until the time is over or none is left.
    async fn pipeline(
        &self,
        case: &'static str,
        what: &'static str,
        n_in_flight: usize,
        make: impl FnMut() -> Option<Made>,
    ) -> Result<(StoreCase, AnsweredTxns), Failure> {
        let answered = pipeline(self.store, n_in_flight, self.time, make);
        self.measured(StoreCase { case, what, ..StoreCase::default() }, answered).await
    }

    /// Many writers of one transaction each.
    async fn clients(&self, txns: &Txns) -> Result<StoreCase, Failure> {
        let case = StoreCase {
            case: "put-64",
            what: "one node report a transaction, from 64 tasks",
            ..StoreCase::default()
        };
        let tasks: Vec<_> = (0..N_CLIENTS)
            .map(|client| {
                let (store, time, mut made) = (self.store.clone(), self.time, txns.reports(client));
                godel_kit::task::spawn(
                    "client",
                    async move { pipeline(&store, 1, time, || Some(made())).await },
                )
            })
            .collect();
        let all = async {
            let mut all = AnsweredTxns::default();
            for task in tasks {
                let one = task.await.map_err(|error| Failure::failed(error.to_string()))??;
                all.committed.extend(one.committed);
                all.latencies.extend(one.latencies);
            }
            Ok(all)
        };
        Ok(self.measured(case, all).await?.0)
    }

    async fn measured(
        &self,
        case: StoreCase,
        work: impl Future<Output = Result<AnsweredTxns, Failure>>,
    ) -> Result<(StoreCase, AnsweredTxns), Failure> {
        output::say(format!("{}: {}", case.case, case.what));
        let pid = std::process::id();
        let used = || {
            let cpu = usage::cpu_time(pid).unwrap_or_default().as_secs_f64();
            (cpu, usage::bytes_written(pid).unwrap_or(0), self.store.status().groups)
        };
        let (before, start) = (used(), Instant::now());
        let mut answered = work.await?;
        let (seconds, after) = (start.elapsed().as_secs_f64(), used());
        let (cpu_us, bytes_written) = ((after.0 - before.0) * 1e6, after.1 - before.1);
        let txns = answered.committed.len() as u64;
        let ops = answered.committed.iter().map(|(_, n_ops)| n_ops).sum();
        let case = StoreCase {
            txns,
            ops,
            seconds,
            txns_per_s: per(wide(txns), seconds),
            ops_per_s: per(wide(ops), seconds),
            cpu_us_per_txn: per(cpu_us, wide(txns)),
            cpu_us_per_op: per(cpu_us, wide(ops)),
            latency_ms: Latency::of(std::mem::take(&mut answered.latencies)),
            bytes_written,
            bytes_per_op: per(wide(bytes_written), wide(ops)),
            txns_per_sync: per(wide(txns), wide(after.2 - before.2)),
            ..case
        };
        Ok((case, answered))
    }
}

async fn pipeline(
    store: &LogStore,
    n_in_flight: usize,
    time: Duration,
    mut make: impl FnMut() -> Option<Made>,
) -> Result<AnsweredTxns, Failure> {
    let start = Instant::now();
    let mut answered = AnsweredTxns::default();
    let mut waiting = VecDeque::new();
    let mut is_open = true;
    loop {
        while is_open && waiting.len() < n_in_flight {
            let made = if start.elapsed() < time { make() } else { None };
            let Some(Made { txn, role, n_ops }) = made else {
                is_open = false;
                break;
            };
            let sent = Instant::now();
            let pending = store.enqueue(txn, role).await.map_err(|refusal| refused(&refusal))?;
            waiting.push_back((pending, n_ops, sent));
        }
        let Some((pending, n_ops, sent)) = waiting.pop_front() else { return Ok(answered) };
        let committed = pending.await.map_err(|refusal| refused(&refusal))?;
        answered.latencies.push(sent.elapsed());
        answered.committed.push((committed, n_ops));
    }
}

fn refused(refusal: &godel_store::TxnRefusal) -> Failure {
    Failure::failed(format!("the store refused a transaction: {refusal}"))
}

/// Revisions of records that `n_ops` of a transaction wrote.
fn revisions(committed: Committed, n_ops: u64) -> impl Iterator<Item = Revision> {
    (0..n_ops).map(move |_| committed.revision)
}

impl View for StoreCase {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("CASE", |view| view.case.to_owned()),
        ("TXNS/S", |view| format!("{:.0}", view.txns_per_s)),
        ("OPS/S", |view| format!("{:.0}", view.ops_per_s)),
        ("CPU US/TXN", |view| format!("{:.1}", view.cpu_us_per_txn)),
        ("CPU US/OP", |view| format!("{:.2}", view.cpu_us_per_op)),
        ("P50 MS", |view| format!("{:.2}", view.latency_ms.p50)),
        ("P99 MS", |view| format!("{:.2}", view.latency_ms.p99)),
        ("BYTES/OP", |view| format!("{:.0}", view.bytes_per_op)),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("TXNS", |view| view.txns.to_string()),
        ("OPS", |view| view.ops.to_string()),
        ("SECONDS", |view| format!("{:.2}", view.seconds)),
        ("TXNS/SYNC", |view| format!("{:.1}", view.txns_per_sync)),
        ("WHAT", |view| view.what.to_owned()),
    ];
}
