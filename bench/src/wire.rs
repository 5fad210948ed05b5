//! `godel bench wire`: how much gRPC carries between two processes of this machine without any service behind it: calls,
//! streams of small items, and the messages of a scheduler's decisions.

mod serve;

use std::{
    future::Future,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use clap::Args as ClapArgs;
use godel_client::{
    exit::{Code, Failure},
    output::{self, Format, View, ViewColumn},
    usage,
};
use godel_kit::{client, config::ClientConfig};
use godel_proto::v1::{self, bind_service_client::BindServiceClient};
use prost::Message as _;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

pub(super) use self::serve::run as serve;
use self::serve::{CONNECTION_WINDOW, STREAM_WINDOW};
use super::{
    cases::{dir_name, in_dir, per, show},
    processes::BenchProcesses,
    report::wide,
};

/// Capacity of the channel in front of a stream, messages.
const N_WAITING: usize = 64;
/// Number of placements of a small decision, whose message has 150 bytes.
const N_SMALL: u32 = 43;

/// `godel bench wire`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Wire {
    /// Run each case for a twentieth of a second, as a check.
    #[arg(long)]
    quick: bool,
    /// Directory for the log of the other process; removed afterwards.
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    data_dir: PathBuf,
    /// Also write the figures to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Figures of one case; field names are stable.
#[derive(Debug, Serialize)]
struct WireCase {
    case: &'static str,
    what: &'static str,
    clients: usize,
    item_bytes: usize,
    items_per_message: usize,
    items: u64,
    seconds: f64,
    items_per_s: f64,
    /// CPU time of both processes.
    cpu_us_per_item: f64,
}

pub(super) async fn run(wanted: Wire, format: Format) -> Result<(), Failure> {
    let Wire { quick, data_dir, json } = wanted;
    in_dir(&data_dir, &dir_name("wire"), async |dir| {
        show("wire", format, json.as_deref(), measure(dir, quick)).await
    })
    .await
}

async fn measure(dir: &Path, quick: bool) -> Result<Vec<WireCase>, Failure> {
    let time = if quick { Duration::from_millis(50) } else { Duration::from_millis(1_500) };
    let mut processes = BenchProcesses::new(dir)?;
    let line = processes.start("server", &["bench".to_owned(), "wire-serve".to_owned()]).await?;
    let (bare, service) = addresses(&line)
        .ok_or_else(|| Failure::failed(format!("the other process printed `{line}` instead of addresses")))?;
    let bench = WireBench { pids: processes.pids().into_iter().map(|(_, pid)| pid).collect(), time };
    let bare = BindServiceClient::new(bare_channel(bare)?);
    let service = client::channel(&service.to_string(), &ClientConfig::default());
    let service = BindServiceClient::new(service.map_err(|error| Failure::chain(Code::Failed, &error))?);
    let mut cases = Vec::new();
    for (case, what, n_clients) in [
        ("unary-1", "calls one after the other", 1),
        ("unary-64", "calls of 64 clients on one connection", 64),
    ] {
        let client = bare.clone();
        let call = move |request| {
            let mut client = client.clone();
            async move { client.evict_running_units(request).await.map(drop) }
        };
        cases.push(bench.unary(case, what, n_clients, call).await?);
    }
    let call = move |request| {
        let mut client = service.clone();
        async move { client.evict_running_units(request).await.map(drop) }
    };
    let what = "the same through the layers that services have";
    cases.push(bench.unary("unary-64-service", what, 64, call).await?);
    for (case, what, n_decisions, n_placements) in [
        ("stream-1", "small items, one a message", 1, N_SMALL),
        ("stream-100", "small items, 100 a message", 100, N_SMALL),
        ("decision-1000", "decisions of 1,000 placements, one a message", 1, 1_000),
    ] {
        cases.push(bench.stream(case, what, n_decisions, &decision(n_placements), &bare).await?);
    }
    processes.kill_all().await;
    Ok(cases)
}

fn addresses(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let (bare, service) = line.split_once(' ')?;
    Some((bare.parse().ok()?, service.parse().ok()?))
}

fn bare_channel(address: SocketAddr) -> Result<Channel, Failure> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| Failure::chain(Code::Failed, &error))?
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    Ok(endpoint.connect_lazy())
}

/// Returns a decision with placements on nodes all over the cluster.
fn decision(n_placements: u32) -> v1::Decision {
    let group = v1::GroupPlacement {
        ordinals: (0..n_placements).collect(),
        node_ids: (0..n_placements).map(|ordinal| ordinal * 7_919 % 10_000 + 1).collect(),
        ..v1::GroupPlacement::default()
    };
    v1::Decision {
        decision_id: 1_000_000,
        unit_id: 1_000_000,
        spec_revision: 1_000_000,
        groups: vec![group],
        nodes_as_of: 1_000_000,
        claim: None,
    }
}

struct WireBench {
    pids: Vec<u32>,
    time: Duration,
}

impl WireBench {
    /// Measures clients that each send the next call after the answer to the last one.
    async fn unary<C, F>(
        &self,
        case: &'static str,
        what: &'static str,
        n_clients: usize,
        call: C,
    ) -> Result<WireCase, Failure>
    where
        C: Fn(v1::EvictRunningUnitsRequest) -> F + Clone + Send + 'static,
        F: Future<Output = Result<(), Status>> + Send,
    {
        let eviction = v1::Eviction { unit_id: 1_000_000, by: "x".repeat(138), ..v1::Eviction::default() };
        let request = v1::EvictRunningUnitsRequest { evictions: vec![eviction], ..Default::default() };
        let item_bytes = request.encoded_len();
        // The connection is opened before time counts.
        call(request.clone()).await?;
        let time = self.time;
        let calls = async {
            let clients: Vec<_> = (0..n_clients)
                .map(|_| {
                    let (call, request) = (call.clone(), request.clone());
                    godel_kit::task::spawn("bench.client", async move {
                        let (start, mut n_calls) = (Instant::now(), 0);
                        while start.elapsed() < time {
                            call(request.clone()).await?;
                            n_calls += 1;
                        }
                        Ok::<u64, Status>(n_calls)
                    })
                })
                .collect();
            let mut n_all = 0;
            for client in clients {
                n_all += client.await.map_err(|error| Failure::failed(error.to_string()))??;
            }
            Ok(n_all)
        };
        self.measured(case, what, n_clients, item_bytes, 1, calls).await
    }

    /// One stream of messages with `n_items` decisions, each message answered.
    async fn stream(
        &self,
        case: &'static str,
        what: &'static str,
        n_items: usize,
        decision: &v1::Decision,
        client: &BindServiceClient<Channel>,
    ) -> Result<WireCase, Failure> {
        let decisions = v1::Decisions { decisions: vec![decision.clone(); n_items] };
        let message = v1::DecideRequest { message: Some(v1::decide_request::Message::Decisions(decisions)) };
        let (time, mut client) = (self.time, client.clone());
        let messages = async {
            let (sender, receiver) = mpsc::channel(N_WAITING);
            godel_kit::task::spawn("bench.stream", async move {
                let start = Instant::now();
                while start.elapsed() < time && sender.send(message.clone()).await.is_ok() {}
            });
            let mut answers = client.decide(ReceiverStream::new(receiver)).await?.into_inner();
            let mut n_messages = 0;
            while answers.message().await?.is_some() {
                n_messages += 1;
            }
            Ok(n_messages * u64::try_from(n_items).unwrap_or(0))
        };
        self.measured(case, what, 1, decision.encoded_len(), n_items, messages).await
    }

    async fn measured(
        &self,
        case: &'static str,
        what: &'static str,
        clients: usize,
        item_bytes: usize,
        items_per_message: usize,
        work: impl Future<Output = Result<u64, Failure>>,
    ) -> Result<WireCase, Failure> {
        output::say(format!("{case}: {what}"));
        let cpu = || self.pids.iter().filter_map(|pid| usage::cpu_time(*pid)).sum::<Duration>();
        let (before, start) = (cpu(), Instant::now());
        let items = work.await?;
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu().saturating_sub(before));
        Ok(WireCase {
            case,
            what,
            clients,
            item_bytes,
            items_per_message,
            items,
            seconds,
            items_per_s: per(wide(items), seconds),
            cpu_us_per_item: per(cpu.as_secs_f64() * 1e6, wide(items)),
        })
    }
}

impl View for WireCase {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("CASE", |view| view.case.to_owned()),
        ("CLIENTS", |view| view.clients.to_string()),
        ("ITEM BYTES", |view| view.item_bytes.to_string()),
        ("ITEMS/MESSAGE", |view| view.items_per_message.to_string()),
        ("ITEMS/S", |view| format!("{:.0}", view.items_per_s)),
        ("CPU US/ITEM", |view| format!("{:.2}", view.cpu_us_per_item)),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("ITEMS", |view| view.items.to_string()),
        ("SECONDS", |view| format!("{:.2}", view.seconds)),
        ("WHAT", |view| view.what.to_owned()),
    ];
}
