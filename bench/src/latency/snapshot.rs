//! Latency while a snapshot of many running units is written: a cluster is filled, everything is killed and started again, and state begins
//! a generation of its log in the midst of the offered units.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use godel_client::{exit::Failure, output, replay::Latency};
use godel_kit::CancellationToken;
use serde::{Deserialize, Serialize};
use tokio_util::sync::DropGuard;

use crate::{
    board::Board,
    cluster::{self, BenchCluster, Layout, POLL},
    load::Load,
    report::latencies,
    restart,
    workload::{Maker, N_ROOM_OF_NODE},
};

/// Log of a unit of one replica and its binding, about.
const LOG_BYTES_OF_UNIT: u64 = 280;
/// One in so many units is offered before the generation begins.
const BEFORE_OF_UNITS: u64 = 4;
/// A generation of so many bytes never ends.
const LOG_BYTES_NEVER: u64 = 1 << 40;
const STARTED: &str = "store generation started";
const COMPLETE: &str = "store generation complete";

/// What runs before units are offered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filling {
    pub(super) running_units: usize,
    /// Of each unit.
    pub(super) replicas: u32,
    pub(super) seed: u64,
}

impl Filling {
    /// What runs, and so many units to offer then.
    pub(super) fn loads(self, nodes: usize, units: usize) -> Result<(Load, Load), Failure> {
        let (all, room) = (self.running_units + units, nodes * N_ROOM_OF_NODE);
        if all > room {
            let text = format!("{all} running units do not fit: there is room for {room}");
            return Err(Failure::usage(text).hint("use fewer, or more --nodes"));
        }
        let mut maker = Maker::new(self.seed, false);
        Ok((maker.services(self.running_units, self.replicas), maker.services(units, 1)))
    }
}

/// Fills a cluster and starts it again, so that its state begins a generation in the midst of so many units that are offered then.
pub(super) async fn start_filled(layout: Layout, filling: Load, units: u64) -> Result<BenchCluster, Failure> {
    let first = with_generations(&layout, LOG_BYTES_NEVER);
    let shapes = [format!("{}x cpu=100,memory=400Gi", layout.n_nodes)];
    let (mut processes, client) = cluster::bring_up(&first, &shapes, false).await?;
    let filled = restart::fill(&client, filling).await?;
    let log_bytes = client.store_status().await?.log_bytes;
    output::say("every running unit is bound");
    drop((filled, client));
    processes.kill_all().await;
    let log_bytes = log_bytes + units / BEFORE_OF_UNITS * LOG_BYTES_OF_UNIT;
    BenchCluster::start_again(processes, with_generations(&layout, log_bytes)).await
}

fn with_generations(layout: &Layout, log_bytes: u64) -> Layout {
    let mut layout = layout.clone();
    layout.set.push(format!("state.generation_bytes_min={log_bytes}"));
    layout
}

/// When a snapshot was begun and complete, since the board's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SnapshotSpan {
    begun: Option<Duration>,
    complete: Option<Duration>,
}

/// Looks for the first snapshot in the log of state.
pub(crate) struct SnapshotWatch {
    seen: Arc<Mutex<SnapshotSpan>>,
    _watching: DropGuard,
}

impl SnapshotWatch {
    pub(crate) fn start(log: PathBuf, board: Arc<Board>) -> Self {
        let (seen, stop) = (Arc::<Mutex<SnapshotSpan>>::default(), CancellationToken::new());
        let (noted, stopped) = (Arc::clone(&seen), stop.clone());
        godel_kit::task::spawn("bench.snapshot", async move {
            while !stopped.is_cancelled() {
                let text = tokio::fs::read_to_string(&log).await.unwrap_or_default();
                noted.lock().unwrap_or_else(PoisonError::into_inner).read(&text, board.now());
                tokio::time::sleep(POLL).await;
            }
        });
        Self { seen, _watching: stop.drop_guard() }
    }

    pub(super) fn end(self) -> SnapshotSpan {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SnapshotSpan {
    fn read(&mut self, log: &str, now: Duration) {
        if log.contains(STARTED) {
            self.begun.get_or_insert(now);
        }
        if log.contains(COMPLETE) {
            self.complete.get_or_insert(now);
        }
    }
}

/// Latencies beside a snapshot; field names are stable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct BesideSnapshot {
    pub(crate) running_units: usize,
    /// Number of replicas of each unit that ran before.
    pub(crate) replicas: u32,
    /// For which the snapshot was written while units were offered.
    pub(crate) seconds: f64,
    /// It was complete before the last unit was bound.
    pub(crate) complete: bool,
    /// Latency of units that were offered before it was begun.
    pub(crate) before_ms: Latency,
    /// Latency of units that were offered while it was written.
    pub(crate) during_ms: Latency,
    pub(crate) p99_ratio: f64,
}

impl BesideSnapshot {
    /// `latencies`: when each unit was due, and its latency.
    pub(crate) fn of(span: SnapshotSpan, latencies: &[(Duration, Duration)]) -> Result<Self, Failure> {
        let begun = span.begun.ok_or_else(|| {
            Failure::failed("no snapshot was begun before all units were bound").hint("use more --units")
        })?;
        let last = latencies.iter().map(|(due, latency)| *due + *latency).max().unwrap_or_default();
        let end = span.complete.unwrap_or(last);
        let of = |is_there: &dyn Fn(Duration) -> bool| {
            let there = latencies.iter().filter(|(due, _)| is_there(*due)).map(|(_, latency)| *latency);
            Latency::of(there.collect())
        };
        let (before_ms, during_ms) = (of(&|due| due < begun), of(&|due| begun <= due && due < end));
        Ok(Self {
            seconds: end.saturating_sub(begun).as_secs_f64(),
            complete: span.complete.is_some(),
            before_ms,
            during_ms,
            p99_ratio: during_ms.p99 / before_ms.p99.max(1e-6),
            ..Self::default()
        })
    }

    pub(crate) fn text(&self) -> String {
        let end = if self.complete { "" } else { " and not complete" };
        format!(
            "snapshot     of {} running units in units of {}, {:.1} s{end}\n\
             before it    {}\nbeside it    {}, {:.2} × at p99\n",
            self.running_units,
            self.replicas,
            self.seconds,
            latencies(self.before_ms),
            latencies(self.during_ms),
            self.p99_ratio,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn units_count_by_the_moment_at_which_they_were_due() {
        let mut span = SnapshotSpan::default();
        span.read("", ms(5));
        assert!(BesideSnapshot::of(span, &[]).is_err());
        span.read(STARTED, ms(10));
        let until_the_end = BesideSnapshot::of(span, &[(ms(9), ms(2)), (ms(20), ms(7))]).unwrap();
        assert_eq!((until_the_end.during_ms.max, until_the_end.complete), (7.0, false));
        span.read(&format!("{STARTED}\n{COMPLETE}"), ms(20));
        span.read(&format!("{STARTED}\n{COMPLETE}\n{STARTED}"), ms(90));
        let beside = BesideSnapshot::of(span, &[(ms(9), ms(2)), (ms(10), ms(3)), (ms(20), ms(7))]).unwrap();
        assert_eq!((beside.before_ms.max, beside.during_ms.max, beside.p99_ratio), (2.0, 3.0, 1.5));
        assert!((beside.seconds - 0.01).abs() < 1e-9 && beside.complete);
    }

    #[test]
    fn what_runs_and_what_is_offered_have_different_uids() {
        let filling = Filling { running_units: 25, replicas: 10, seed: 1 };
        let (runs, load) = filling.loads(1, 100).unwrap();
        assert_eq!((runs.n_replicas(), runs.len(), load.len()), (25, 3, 100));
        assert!(load.sent().all(|(uid, _)| runs.sent().all(|(other, _)| uid != other)));
        assert!(filling.loads(1, 176).is_err());
    }
}
