//! `godel bench turns`: nodes that are full, and many queues that wait: how soon a place that comes free is given out, to whom,
//! and how often a unit is tried in vain for it.
//!
//! A quarter of the room belongs to one queue for ever, which therefore never comes next; units are offered to it all the time.
//! The rest is taken by units of two sizes that run for a moment, of as many queues as wanted, most of which wait. Time is from
//! the commit in which something ended on a node to the one that binds something there, as a watch shows both.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use clap::{Args as ClapArgs, ValueEnum};
use godel_base::ids::{NodeId, UnitId};
use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::{self, Format},
    replay::Latency,
};
use godel_domain::{change::Change, records::Record, running_units::RunChange};
use godel_kit::CancellationToken;
use godel_proto::v1;
use godel_wire::from_proto;
use serde::Serialize;
use tonic::Status;

use super::{
    board,
    cluster::{self, Layout, POLL, READY_TIMEOUT},
    load::{Load, SubmitWay},
    once::{Figures, Once},
    processes,
    setup::at_least_one,
    workload::Maker,
};

/// CPUs of each node.
const NODE_CPU: usize = 4;
/// The queue that has a quarter of the room.
const HOG: &str = "hog";
/// What the two sizes take of a CPU, thousandths.
const SIZES_MILLI: [i64; 2] = [1_000, 2_000];
/// Without a divisor of 101, which neighbours differ by.
const STRIDE: u64 = 37;
/// Queues of one call.
const N_QUEUES_OF_CALL: usize = 500;

/// `godel bench turns`.
#[derive(Clone, Debug, ClapArgs)]
#[command(mut_arg("nodes", |nodes| nodes.default_value("100").help("Nodes: 4 CPU, 16 GiB each")))]
pub struct TurnsArgs {
    /// Units that wait for room at the start of the measurement.
    #[arg(long, default_value_t = 20_000, value_parser = at_least_one)]
    waiting: usize,
    /// Number of queues of these units.
    #[arg(long, default_value_t = 1_000, value_parser = at_least_one)]
    queues: usize,
    /// Units offered per second during the measurement, all in the queue whose turn is last.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Run time of running units in milliseconds: random between 0.5 and 1.5 times this value.
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u64).range(10..))]
    run_ms: u64,
    /// Length of the measurement in seconds.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Number of schedulers.
    #[arg(long, default_value_t = 3, value_parser = at_least_one)]
    schedulers: usize,
    /// The partition mode.
    #[arg(long, value_enum, default_value = "global")]
    partition: Split,
    #[command(flatten)]
    once: Once,
}

/// The partition mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Split {
    /// Every scheduler uses all nodes alike.
    Global,
    /// Own nodes first, then the others.
    Preferred,
    /// Own nodes only.
    Strict,
}

/// What is reported; field names are stable.
#[derive(Clone, Debug, Serialize)]
struct Turns {
    workload: &'static str,
    nodes: usize,
    schedulers: usize,
    partition: String,
    queues: usize,
    /// Units that waited at the beginning and at the end.
    waiting: [u64; 2],
    offered_per_s: u32,
    seconds: u64,
    /// Running units bound.
    places: usize,
    /// Number of queues of these units.
    queues_served: usize,
    /// Of the queue that does not come next.
    places_out_of_turn: usize,
    /// From something that ends on a node to what is bound there.
    place_ms: Latency,
    /// Units handed to a scheduler for each running unit bound: 1 where nothing is tried in vain.
    wakeups_per_place: f64,
    /// CPU time of all processes for each running unit bound, and each unit that came.
    cpu_us_per_place: f64,
    audit: bool,
    audit_s: f64,
}

impl Figures for Turns {
    fn text(&self) -> String {
        let Self { nodes, queues, schedulers, partition, offered_per_s, seconds, places, .. } = self;
        let Self { place_ms: Latency { p50, p99, max, .. }, waiting: [before, after], .. } = self;
        format!(
            "{before} units of {queues} queues wait on {nodes} full nodes, {after} at the end; {schedulers} schedulers, {partition}, {offered_per_s} more units/s for {seconds} s\n\
             {places} places assigned: p50 {p50:.2} ms, p99 {p99:.2} ms, max {max:.2} ms after a running unit ended there\n\
             {} queues were served; {} places went to the queue whose turn is last\n\
             {:.2} units were handed out, and {:.0} CPU-us used, per place; audit ok in {:.1} s\n",
            self.queues_served,
            self.places_out_of_turn,
            self.wakeups_per_place,
            self.cpu_us_per_place,
            self.audit_s,
        )
    }
}

pub(super) async fn run(wanted: TurnsArgs, format: Format) -> Result<(), Failure> {
    wanted.once.run(format, "turns", async |layout| measure(&wanted, layout).await).await
}

async fn measure(wanted: &TurnsArgs, layout: Layout) -> Result<Turns, Failure> {
    let partition = match wanted.partition {
        Split::Global => v1::PartitionMode::Global,
        Split::Preferred => v1::PartitionMode::Preferred,
        Split::Strict => v1::PartitionMode::Strict,
    };
    let layout = Layout { n_schedulers: wanted.schedulers, partition, ..layout };
    let shapes = [format!("{}x cpu={NODE_CPU},memory=16Gi", layout.n_nodes)];
    let (processes, client) = cluster::bring_up(&layout, &shapes, true).await?;
    create_queues(&client, wanted.queues).await?;
    let stop = CancellationToken::new();
    let _watching = stop.clone().drop_guard();
    let seen = Seen::start(&client, stop).await?;
    let clock = Instant::now();

    let mut maker = Maker::lasting(1, wanted.run_ms);
    let hog = wanted.hog();
    let n_hog = hog.n_replicas();
    Arc::new(hog).submit(client.clone(), SubmitWay::Stream, clock).await?;
    let placed = "the queue that has a quarter of the room is placed";
    cluster::until(placed, async || Ok(seen.lock().n_bound >= n_hog)).await?;
    Arc::new(wanted.many(&mut maker)).submit(client.clone(), SubmitWay::Stream, clock).await?;
    // Most wait for room, and not for a first try.
    let deadline = Instant::now() + READY_TIMEOUT;
    let n_left = u64::try_from(wanted.waiting / 100).unwrap_or(u64::MAX);
    while client.dispatcher_status().await?.queued_units > n_left {
        if Instant::now() > deadline {
            return Err(Failure::new(Code::Timeout, "too few units were tried and wait"));
        }
        tokio::time::sleep(POLL).await;
    }
    output::say("the nodes are full, and the others wait");

    let cpu = || processes::cpu(&processes.pids()).values().sum::<Duration>();
    let before = client.dispatcher_status().await?;
    seen.lock().begin();
    let cpu_before = cpu();
    let load = wanted.offered(&mut maker);
    Arc::new(load)
        .submit(client.clone(), SubmitWay::Paced { interval: Duration::from_secs(1) / wanted.rate }, clock)
        .await?;
    let after = client.dispatcher_status().await?;
    let cpu_used = cpu().saturating_sub(cpu_before);
    let figures = seen.lock().end()?;
    let audit_s = cluster::audited(&client).await?;
    let places = figures.places.len();
    let per_place = |n: f64| n / f64::from(u32::try_from(places.max(1)).unwrap_or(u32::MAX));
    let n_assigned = after.assigned.saturating_sub(before.assigned);
    let queue_of = |unit: &UnitId| figures.queues.get(unit).map_or("", String::as_str);
    Ok(Turns {
        workload: "turns",
        nodes: layout.n_nodes,
        schedulers: layout.n_schedulers,
        partition: partition.as_str_name().trim_start_matches("PARTITION_MODE_").to_lowercase(),
        queues: wanted.queues,
        waiting: [before.parked_units, after.parked_units],
        offered_per_s: wanted.rate,
        seconds: wanted.seconds,
        places,
        queues_served: figures.places.iter().map(|(unit, _)| queue_of(unit)).collect::<BTreeSet<_>>().len(),
        places_out_of_turn: figures.places.iter().filter(|(unit, _)| queue_of(unit) == HOG).count(),
        place_ms: Latency::of(figures.places.iter().map(|(_, latency)| *latency).collect()),
        wakeups_per_place: per_place(super::report::wide(n_assigned)),
        cpu_us_per_place: per_place(cpu_used.as_secs_f64() * 1e6),
        audit: true,
        audit_s,
    })
}

fn queue_name(number: usize) -> String {
    format!("q{number}")
}

async fn create_queues(client: &Client, n: usize) -> Result<(), Failure> {
    let names: Vec<String> = (0..n).map(queue_name).chain([HOG.to_owned()]).collect();
    for some in names.chunks(N_QUEUES_OF_CALL) {
        let queue = |name: &String| v1::Queue {
            meta: Some(v1::ObjectMeta { name: name.clone(), ..v1::ObjectMeta::default() }),
            ..v1::Queue::default()
        };
        let request =
            v1::ApplyQueuesRequest { queues: some.iter().map(queue).collect(), ..Default::default() };
        client.queues(async |mut queues| queues.apply_queues(request.clone()).await).await?;
    }
    Ok(())
}

impl TurnsArgs {
    /// A quarter of the room, for ever.
    fn hog(&self) -> Load {
        let replicas = u32::try_from(self.once.nodes * NODE_CPU / 4).unwrap_or(u32::MAX).max(1);
        let mut load = Load::default();
        let spec = Maker::new(2, false).sized(v1::WorkloadClass::Service, replicas, 1_000, 1);
        let meta = spec.meta.clone().map(|meta| v1::ObjectMeta { name: HOG.to_owned(), ..meta });
        load.push(&v1::UnitSpec { queue: HOG.to_owned(), meta, ..spec });
        load
    }

    /// What fills the rest, and what waits.
    fn many(&self, maker: &mut Maker) -> Load {
        let mut load = Load::default();
        for number in 0..self.waiting + self.once.nodes * NODE_CPU {
            let mut spec =
                maker.sized(v1::WorkloadClass::Batch, 1, SIZES_MILLI[number % SIZES_MILLI.len()], 1);
            // What began together ends one by one.
            let percent = 50 + u64::try_from(number).unwrap_or(0) * STRIDE % 101;
            for template in spec.task_groups.iter_mut().filter_map(|group| group.template.as_mut()) {
                let run = template.run.get_or_insert_default();
                run.simulated_duration_ms = Some(self.run_ms * percent / 100);
            }
            // Neighbours of one queue are of both sizes.
            let queue = queue_name(number / SIZES_MILLI.len() % self.queues);
            load.push(&v1::UnitSpec { queue, ..spec });
        }
        load
    }

    /// What comes meanwhile.
    fn offered(&self, maker: &mut Maker) -> Load {
        let n = u64::from(self.rate) * self.seconds;
        let mut load = Load::default();
        for _ in 0..n {
            let spec = maker.sized(v1::WorkloadClass::Batch, 1, SIZES_MILLI[0], 1);
            load.push(&v1::UnitSpec { queue: HOG.to_owned(), ..spec });
        }
        load
    }
}

/// What a watch has shown.
#[derive(Default)]
struct Shown {
    read_up_to: u64,
    n_bound: usize,
    nodes: HashMap<(UnitId, u32), NodeId>,
    /// When something ended on each node last.
    ended: HashMap<NodeId, Instant>,
    queues: HashMap<UnitId, String>,
    measures: bool,
    /// What was bound while it was measured, and how long after something had ended there.
    places: Vec<(UnitId, Duration)>,
    failure: Option<Failure>,
}

#[derive(Clone)]
struct Seen(Arc<Mutex<Shown>>);

/// The result of a measurement.
struct MeasuredPlaces {
    places: Vec<(UnitId, Duration)>,
    queues: HashMap<UnitId, String>,
}

impl Seen {
    async fn start(client: &Client, stop: CancellationToken) -> Result<Self, Failure> {
        let read_up_to = client.store_status().await?.revision;
        let seen = Self(Arc::new(Mutex::new(Shown { read_up_to, ..Shown::default() })));
        let (watching, client) = (seen.clone(), client.clone());
        godel_kit::task::spawn("bench.watch", async move {
            let kinds = [v1::Kind::Rows, v1::Kind::Unit];
            tokio::select! {
                () = stop.cancelled() => {}
                failure = board::watch(
                    &client,
                    &kinds,
                    || watching.lock().read_up_to,
                    |answer| watching.lock().take(answer, Instant::now()),
                ) => watching.lock().failure = Some(failure),
            }
        });
        Ok(seen)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shown> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shown {
    fn begin(&mut self) {
        self.places.clear();
        self.measures = true;
    }

    fn end(&mut self) -> Result<MeasuredPlaces, Failure> {
        self.measures = false;
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        Ok(MeasuredPlaces {
            places: std::mem::take(&mut self.places),
            queues: std::mem::take(&mut self.queues),
        })
    }

    fn take(&mut self, answer: &v1::WatchResponse, now: Instant) -> Result<(), Status> {
        for op in answer.commits.iter().flat_map(|commit| &commit.ops) {
            let change = from_proto::op(op).map_err(|bad| Status::data_loss(bad.to_string()))?;
            match change {
                Change::Put(Record::Unit(record)) => {
                    self.queues.entry(record.id).or_insert_with(|| record.spec.queue.clone());
                }
                Change::Rows(unit, RunChange::Bind(bind)) => {
                    for (ordinal, node) in bind.ordinals.iter().zip(&bind.nodes) {
                        self.n_bound += 1;
                        self.nodes.insert((unit, *ordinal), *node);
                        if let Some(ended) = self.ended.get(node).filter(|_| self.measures) {
                            self.places.push((unit, now.saturating_duration_since(*ended)));
                        }
                    }
                }
                Change::Rows(unit, RunChange::Statuses(statuses)) => {
                    let ended = statuses.ordinals.iter().zip(&statuses.phases);
                    for (ordinal, _) in ended.filter(|(_, phase)| phase.is_ended()) {
                        if let Some(node) = self.nodes.remove(&(unit, *ordinal)) {
                            self.ended.insert(node, now);
                        }
                    }
                }
                _ => {}
            }
        }
        self.read_up_to = self.read_up_to.max(answer.revision);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_of_both_sizes_in_every_queue() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            wanted: TurnsArgs,
        }
        let line =
            ["turns", "--waiting", "40", "--queues", "10", "--nodes", "1", "--seconds", "2", "--rate", "3"];
        let wanted = <Line as clap::Parser>::parse_from(line).wanted;
        let load = wanted.many(&mut Maker::lasting(1, 50));
        let units: Vec<v1::UnitSpec> = load.units().map(Result::unwrap).collect();
        let queues: BTreeSet<&str> = units.iter().map(|unit| unit.queue.as_str()).collect();
        assert_eq!((units.len(), queues.len()), (44, 10));
        assert!(units[0].queue == units[1].queue && units[0].task_groups != units[1].task_groups);
        assert_eq!((wanted.hog().n_replicas(), wanted.offered(&mut Maker::lasting(1, 50)).len()), (1, 6));
    }
}
