//! What a replay comes to, in numbers.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use godel_audit::InvariantVerdict;
use godel_base::resources::{CPU, MEMORY};
use godel_proto::v1;
use serde::{Deserialize, Serialize};

use super::{Options, watch::ReplayBoard};
use crate::{audit, client::Client, exit::Failure, usage};

/// A replay in numbers. Field names are stable.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Tasks that were bound.
    pub placed: usize,
    /// Tasks that were not.
    pub unplaced: usize,
    /// From the first submission to the last durable binding seen on a watch.
    pub seconds: f64,
    /// Placed over seconds.
    pub placements_per_s: f64,
    /// CPU time of the processes that count, over placements; absent when they are not known.
    pub cpu_us_per_placement: Option<f64>,
    /// From handing a task to the submission stream to seeing its binding on a watch.
    pub latency_ms: Latency,
    /// Decisions of schedulers refused by the binder, in running units.
    pub conflicts: u64,
    /// Of all devices.
    pub gpu_allocated_pct: f64,
    /// Of all allocatable CPU.
    pub cpu_allocated_pct: f64,
    /// Of all allocatable memory.
    pub memory_allocated_pct: f64,
    /// Tasks by the reason that most nodes gave in their last try.
    pub unplaced_reasons: BTreeMap<String, usize>,
    /// By scheduler.
    pub by_scheduler: BTreeMap<String, SchedulerShare>,
    /// Every invariant holds; absent when not audited.
    pub audit: Option<bool>,
    /// Invariants by id: `ok` or the first violation.
    pub invariants: BTreeMap<String, String>,
}

/// Milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half were faster.
    pub p50: f64,
    /// Nine of ten were.
    pub p90: f64,
    /// Ninety-nine of a hundred were.
    pub p99: f64,
    /// The slowest.
    pub max: f64,
}

/// What one scheduler did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SchedulerShare {
    /// Running units placed.
    pub placed: u64,
    /// Of all placed, per cent.
    pub share_pct: f64,
    /// Running units refused by the binder.
    pub conflicts: u64,
}

/// Counters before the replay.
pub(super) struct Baseline {
    pub(super) revision: u64,
    schedulers: BTreeMap<String, (u64, u64)>,
    cpu: Option<Duration>,
}

impl Baseline {
    pub(super) async fn take(client: &Client, pids: &[u32]) -> Result<Self, Failure> {
        let revision = client.store_status().await?.revision;
        let schedulers = counters(client).await?;
        Ok(Self { revision, schedulers, cpu: cpu_time(pids)? })
    }

    pub(super) async fn summary(
        &self,
        client: &Client,
        board: &ReplayBoard,
        options: &Options,
    ) -> Result<Summary, Failure> {
        let cpu = cpu_time(&options.cpu_pids)?.zip(self.cpu).map(|(now, before)| now.saturating_sub(before));
        let latencies = board.latencies();
        let placed = latencies.len();
        let seconds = board.last_bound().as_secs_f64();
        let mut summary = Summary {
            placed,
            unplaced: options.tasks.len() - placed,
            seconds,
            placements_per_s: if seconds > 0.0 { count(placed) / seconds } else { 0.0 },
            cpu_us_per_placement: cpu
                .filter(|_| placed > 0)
                .map(|cpu| cpu.as_secs_f64() * 1e6 / count(placed)),
            latency_ms: Latency::of(latencies),
            ..Summary::default()
        };
        for (name, (now_placed, now_conflicts)) in counters(client).await? {
            let (placed, conflicts) = self.schedulers.get(&name).copied().unwrap_or_default();
            // A scheduler that was restarted counts from 0.
            let since = |now: u64, before: u64| if now >= before { now - before } else { now };
            let share = SchedulerShare {
                placed: since(now_placed, placed),
                share_pct: 0.0,
                conflicts: since(now_conflicts, conflicts),
            };
            summary.by_scheduler.insert(name, share);
        }
        summary.conflicts = summary.by_scheduler.values().map(|share| share.conflicts).sum();
        let all: u64 = summary.by_scheduler.values().map(|share| share.placed).sum();
        for share in summary.by_scheduler.values_mut() {
            share.share_pct = percent(share.placed, all);
        }
        summary.set_allocated(&client.list_nodes(&[]).await?);
        if summary.unplaced > 0 {
            summary.unplaced_reasons = reasons(client, &options.namespace).await?;
        }
        Ok(summary)
    }
}

/// Placed and conflicts by scheduler.
async fn counters(client: &Client) -> Result<BTreeMap<String, (u64, u64)>, Failure> {
    let mut counters = BTreeMap::new();
    for scheduler in client.schedulers().await?.schedulers {
        // Its own numbers are fresher than what it says with its lease.
        let own = client.scheduler_status(&scheduler).await;
        let numbers = own.map_or((scheduler.placed, scheduler.conflicts), |own| (own.placed, own.conflicts));
        counters.insert(scheduler.name, numbers);
    }
    Ok(counters)
}

async fn reasons(client: &Client, namespace: &str) -> Result<BTreeMap<String, usize>, Failure> {
    let mut reasons = BTreeMap::new();
    for phase in [v1::UnitPhase::Unschedulable, v1::UnitPhase::Scheduling, v1::UnitPhase::Queued] {
        let request = v1::ListUnitsRequest {
            namespace: namespace.to_owned(),
            phase: phase.into(),
            ..v1::ListUnitsRequest::default()
        };
        for unit in client.list_units(request, usize::MAX).await?.0 {
            let first = unit.refusals.and_then(|refusals| refusals.reasons.into_iter().next());
            let reason = first.map_or_else(|| "no try has failed".to_owned(), |first| first.reason);
            *reasons.entry(reason).or_default() += 1;
        }
    }
    Ok(reasons)
}

impl Latency {
    /// By rank.
    pub fn of(mut latencies: Vec<Duration>) -> Self {
        latencies.sort_unstable();
        let at = |per_mille: usize| {
            let last = latencies.len().saturating_sub(1);
            latencies.get(last * per_mille / 1000).map_or(0.0, |latency| latency.as_secs_f64() * 1000.0)
        };
        Self { p50: at(500), p90: at(900), p99: at(990), max: at(1000) }
    }
}

impl Summary {
    fn set_allocated(&mut self, nodes: &[v1::Node]) {
        let (mut gpu_all, mut gpu_free) = (0u64, 0u64);
        let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for node in nodes {
            let devices = node.report.as_ref().map_or(0, |report| report.devices.len());
            gpu_all += u64::try_from(devices).unwrap_or(0) * 1000;
            gpu_free += node.device_free_milli.iter().map(|milli| u64::from(*milli)).sum::<u64>();
            for name in [CPU, MEMORY] {
                let of = |resources: Option<&v1::Resources>| {
                    let amount = resources.and_then(|resources| resources.amounts.get(name)).copied();
                    u64::try_from(amount.unwrap_or(0)).unwrap_or(0)
                };
                let (used, all) = sums.entry(name).or_default();
                *used += of(node.allocated.as_ref());
                *all += of(node.allocatable.as_ref());
            }
        }
        let share = |name: &str| sums.get(name).map_or(0.0, |(used, all)| percent(*used, *all));
        self.gpu_allocated_pct = percent(gpu_all.saturating_sub(gpu_free), gpu_all);
        self.cpu_allocated_pct = share(CPU);
        self.memory_allocated_pct = share(MEMORY);
    }

    pub(super) fn set_audit(&mut self, findings: &audit::AuditFindings) {
        self.audit = Some(findings.hold());
        self.invariants = findings
            .reports
            .iter()
            .map(|report| {
                let said = match report.verdict() {
                    InvariantVerdict::Ok => "ok".to_owned(),
                    InvariantVerdict::NotJudged(why) => format!("not judged: {why}"),
                    InvariantVerdict::Failed => report.violations.first().cloned().unwrap_or_default(),
                };
                (report.invariant.to_string(), said)
            })
            .collect();
    }

    /// For people.
    pub fn text(&self) -> String {
        let Latency { p50, p90, p99, max } = self.latency_ms;
        let cpu = self.cpu_us_per_placement.map_or_else(String::new, |cpu| format!(", {cpu:.0} CPU-us each"));
        let mut text = format!(
            "placed       {} of {} tasks in {:.2} s ({:.0}/s{cpu})\nlatency      p50 {p50:.0} ms, p90 {p90:.0} ms, p99 {p99:.0} ms, max {max:.0} ms\nallocated    GPU {:.1} %, CPU {:.1} %, memory {:.1} %\nconflicts    {}\n",
            self.placed,
            self.placed + self.unplaced,
            self.seconds,
            self.placements_per_s,
            self.gpu_allocated_pct,
            self.cpu_allocated_pct,
            self.memory_allocated_pct,
            self.conflicts,
        );
        for (name, share) in &self.by_scheduler {
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "  {name:<10} {} placed ({:.0} %), {} conflicts",
                share.placed, share.share_pct, share.conflicts
            );
        }
        let _ = writeln!(text, "unplaced     {}", self.unplaced);
        for (reason, n) in &self.unplaced_reasons {
            let _ = writeln!(text, "  {n:>5}  {reason}");
        }
        text
    }
}

fn percent(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { wide(part) * 100.0 / wide(all) }
}

/// For display only: above 2^53 the last digits do not matter.
fn wide(n: u64) -> f64 {
    n as f64
}

fn count(n: usize) -> f64 {
    wide(u64::try_from(n).unwrap_or(u64::MAX))
}

/// User and system time of some processes of this machine; `None` without any.
fn cpu_time(pids: &[u32]) -> Result<Option<Duration>, Failure> {
    if pids.is_empty() {
        return Ok(None);
    }
    let mut sum = Duration::ZERO;
    for pid in pids {
        sum += usage::cpu_time(*pid).ok_or_else(|| {
            Failure::usage(format!("process {pid} does not exist: its CPU time is not known"))
        })?;
    }
    Ok(Some(sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_taken_at_their_ranks() {
        let latencies = (1..=1000).rev().map(Duration::from_millis).collect();
        let Latency { p50, p90, p99, max } = Latency::of(latencies);
        assert_eq!([p50, p90, p99, max].map(|ms| ms.round()), [500.0, 900.0, 990.0, 1000.0]);
        assert_eq!(Latency::of(Vec::new()), Latency::default());
    }

    #[test]
    fn cpu_time_of_nobody_is_not_known() {
        assert_eq!(cpu_time(&[]).unwrap(), None);
        assert!(cpu_time(&[std::process::id()]).unwrap().is_some());
    }

    #[test]
    fn allocation_is_a_share_of_everything() {
        let amounts =
            |cpu: i64| Some(v1::Resources { amounts: [("cpu".to_owned(), cpu)].into_iter().collect() });
        let gpu = v1::Device { kind: "gpu".to_owned(), ..v1::Device::default() };
        let node = v1::Node {
            report: Some(v1::NodeReport { devices: vec![gpu; 2], ..v1::NodeReport::default() }),
            allocatable: amounts(4000),
            allocated: amounts(1000),
            device_free_milli: vec![0, 500],
            ..v1::Node::default()
        };
        let mut summary = Summary::default();
        summary.set_allocated(&[node]);
        assert_eq!((summary.gpu_allocated_pct, summary.cpu_allocated_pct), (75.0, 25.0));
        assert!(summary.text().contains("GPU 75.0 %, CPU 25.0 %"));
    }
}
