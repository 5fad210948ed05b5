//! `godel bench store`: what the store bears on this disk, without network and services: the real store with the
//! transactions that dispatcher, binder and agents send. Where the store is in an etcd, a bare client puts the values that the store
//! has written once more, one and two at a time.

mod bare;
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
use godel_store::{
    Committed, Engine, Role, SledConfig, Store as LogStore, StoreConfig, log::etcd::EtcdConfig,
};
use serde::Serialize;

use self::{bare::Recorder, txns::Txns};
use godel_crash::CrashPoints;

use super::{
    cases::{dir_name, in_dir, per, show},
    engine::{BenchEtcd, EngineFlags, QUOTA_BYTES, StoreEngine},
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
    #[command(flatten)]
    engine: EngineFlags,
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
    case: String,
    what: String,
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
    /// Its rate, of that of a bare client that puts the same values one at a time; absent without an etcd.
    #[serde(skip_serializing_if = "Option::is_none")]
    of_bare: Option<f64>,
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
    let StoreArgs { quick, data_dir, engine, json } = wanted;
    let time = if quick { Duration::from_millis(50) } else { Duration::from_millis(1_500) };
    in_dir(&data_dir, &dir_name("store"), async |dir| {
        show("store", format, json.as_deref(), async {
            let bench = StoreBench::open(dir, engine.engine(), time).await?;
            bench.measure().await
        })
        .await
    })
    .await
}

/// The store and its etcd, if it is in one.
struct StoreBench {
    store: LogStore,
    time: Duration,
    recorder: Option<Arc<Recorder>>,
    etcd: Option<BenchEtcd>,
    cases: Vec<StoreCase>,
}

/// What this process, the etcd and the store have used.
struct StoreUse {
    cpu_s: f64,
    bytes_written: u64,
    groups: u64,
}

impl StoreBench {
    async fn open(dir: &Path, engine: StoreEngine, time: Duration) -> Result<Self, Failure> {
        let data = dir.join("data");
        let (config, recorder, etcd) = match engine {
            StoreEngine::Sled => (Engine::Sled(SledConfig::new(data)), None, None),
            StoreEngine::Etcd { n_members } => {
                let etcd = BenchEtcd::start(&dir.join("etcd"), n_members).await?;
                let recorder = Recorder::new(etcd.client()?);
                let config =
                    EtcdConfig { quota_bytes: QUOTA_BYTES, ..EtcdConfig::new(recorder.clone(), data) };
                (Engine::Etcd(config), Some(recorder), Some(etcd))
            }
        };
        Ok(Self { store: open(config).await?, time, recorder, etcd, cases: Vec::new() })
    }

    async fn measure(mut self) -> Result<Vec<StoreCase>, Failure> {
        let mut txns = Txns::default();
        output::say("registering nodes");
        for made in txns.set_up() {
            self.store.submit(made.txn, made.role).await.map_err(|refusal| refused(&refusal))?;
        }

        let put = || Some(txns.put_units(1, 1_000));
        let what = "one unit a transaction, one after the other";
        let answered = self.pipeline("put-serial", what, 1, put).await?;
        let services = txns.take_units(&answered.committed);

        self.clients(&txns).await?;

        let put = || Some(txns.put_units(100, 1));
        let answered = self.pipeline("put-100", "100 units a transaction", N_IN_FLIGHT, put).await?;
        let singles = txns.take_units(&answered.committed);

        let mut made = txns.bind(&services, 1, 1_000).into_iter();
        let what = "a unit's 1,000 placements a transaction";
        self.pipeline("bind-1000", what, N_IN_FLIGHT, || made.next()).await?;

        let mut made = txns.bind(&singles, 100, 1).into_iter();
        let what = "the placements of 100 units of one replica a transaction";
        self.pipeline("bind-100x1", what, N_IN_FLIGHT, || made.next()).await?;

        self.store.close().await;
        Ok(self.cases)
    }

    /// One writer with up to `n_in_flight` transactions under way, until the time is over or none is left.
    async fn pipeline(
        &mut self,
        case: &str,
        what: &str,
        n_in_flight: usize,
        make: impl FnMut() -> Option<Made>,
    ) -> Result<AnsweredTxns, Failure> {
        let store = self.store.clone();
        self.measured(case, what, pipeline(&store, n_in_flight, self.time, make)).await
    }

    /// Many writers of one transaction each.
    async fn clients(&mut self, txns: &Txns) -> Result<(), Failure> {
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
        self.measured("put-64", "one node report a transaction, from 64 tasks", all).await.map(drop)
    }

    async fn measured(
        &mut self,
        case: &str,
        what: &str,
        work: impl Future<Output = Result<AnsweredTxns, Failure>>,
    ) -> Result<AnsweredTxns, Failure> {
        output::say(format!("{case}: {what}"));
        self.take_written();
        let (before, start) = (self.used(), Instant::now());
        let mut answered = work.await?;
        let (seconds, after) = (start.elapsed().as_secs_f64(), self.used());
        let txns = answered.committed.len() as u64;
        let ops = answered.committed.iter().map(|(_, n_ops)| n_ops).sum();
        let case = StoreCase {
            case: case.to_owned(),
            what: what.to_owned(),
            txns_per_sync: per(wide(txns), wide(after.groups - before.groups)),
            ..StoreCase::of(txns, ops, seconds, &before, &after)
        };
        let latency_ms = Latency::of(std::mem::take(&mut answered.latencies));
        self.compare(StoreCase { latency_ms, ..case }).await?;
        Ok(answered)
    }

    /// Adds a case, and what a bare client reaches with the values that it has put.
    async fn compare(&mut self, case: StoreCase) -> Result<(), Failure> {
        let written = Arc::new(self.take_written());
        let Some(recorder) = self.recorder.clone() else {
            self.cases.push(case);
            return Ok(());
        };
        let mut bare = Vec::new();
        for (suffix, what, n_in_flight) in [
            ("bare", "the same values by a bare client, one after the other", 1),
            ("bare-2", "the same values by a bare client, two at a time", 2),
        ] {
            let name = format!("{}-{suffix}", case.case);
            output::say(format!("{name}: {what}"));
            let (before, start) = (self.used(), Instant::now());
            let latencies = recorder.put_bare(&format!("bare/{name}"), &written, n_in_flight).await?;
            let (seconds, after) = (start.elapsed().as_secs_f64(), self.used());
            bare.push(StoreCase {
                case: name,
                what: what.to_owned(),
                latency_ms: Latency::of(latencies),
                ..StoreCase::of(written.len() as u64, case.ops, seconds, &before, &after)
            });
        }
        let seconds = bare[0].seconds;
        let of_bare = |case: StoreCase| StoreCase { of_bare: Some(per(seconds, case.seconds)), ..case };
        self.cases.extend(std::iter::once(case).chain(bare).map(of_bare));
        Ok(())
    }

    fn take_written(&self) -> Vec<Vec<bytes::Bytes>> {
        self.recorder.as_ref().map_or_else(Vec::new, |recorder| recorder.take_written())
    }

    fn used(&self) -> StoreUse {
        let members = self.etcd.iter().flat_map(BenchEtcd::pids).map(|(_, pid)| pid);
        let pids: Vec<u32> = members.chain([std::process::id()]).collect();
        StoreUse {
            cpu_s: pids.iter().filter_map(|pid| usage::cpu_time(*pid)).sum::<Duration>().as_secs_f64(),
            bytes_written: pids.iter().filter_map(|pid| usage::bytes_written(*pid)).sum(),
            groups: self.store.status().groups,
        }
    }
}

impl StoreCase {
    fn of(txns: u64, ops: u64, seconds: f64, before: &StoreUse, after: &StoreUse) -> Self {
        let cpu_us = (after.cpu_s - before.cpu_s) * 1e6;
        let bytes_written = after.bytes_written - before.bytes_written;
        Self {
            txns,
            ops,
            seconds,
            txns_per_s: per(wide(txns), seconds),
            ops_per_s: per(wide(ops), seconds),
            cpu_us_per_txn: per(cpu_us, wide(txns)),
            cpu_us_per_op: per(cpu_us, wide(ops)),
            bytes_written,
            bytes_per_op: per(wide(bytes_written), wide(ops)),
            ..Self::default()
        }
    }
}

async fn open(engine: Engine) -> Result<LogStore, Failure> {
    let config = StoreConfig::new(engine);
    let clock = SystemClock::shared();
    let open = move || LogStore::open(config, Arc::new(move || clock.wall_ms()), CrashPoints::default());
    let opened = tokio::task::spawn_blocking(open).await;
    let opened = opened.map_err(|error| Failure::failed(format!("the store cannot be opened: {error}")))?;
    opened.map_err(|error| Failure::chain(Code::Failed, &error))
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
        ("CASE", |view| view.case.clone()),
        ("TXNS/S", |view| format!("{:.0}", view.txns_per_s)),
        ("OPS/S", |view| format!("{:.0}", view.ops_per_s)),
        ("CPU US/TXN", |view| format!("{:.1}", view.cpu_us_per_txn)),
        ("CPU US/OP", |view| format!("{:.2}", view.cpu_us_per_op)),
        ("P50 MS", |view| format!("{:.2}", view.latency_ms.p50)),
        ("P99 MS", |view| format!("{:.2}", view.latency_ms.p99)),
        ("BYTES/OP", |view| format!("{:.0}", view.bytes_per_op)),
        ("OF BARE", |view| view.of_bare.map_or_else(String::new, |share| format!("{share:.2}"))),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("TXNS", |view| view.txns.to_string()),
        ("OPS", |view| view.ops.to_string()),
        ("SECONDS", |view| format!("{:.2}", view.seconds)),
        ("TXNS/SYNC", |view| format!("{:.1}", view.txns_per_sync)),
        ("WHAT", |view| view.what.clone()),
    ];
}
