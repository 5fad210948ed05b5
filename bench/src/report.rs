//! What a run comes to: one object with stable field names, and a table of it for people.

use std::{collections::BTreeMap, fmt::Write as _};

use godel_client::{exit::Failure, output, replay::Latency};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{endurance::Endurance, explain::Explain, latency::snapshot::BesideSnapshot, once::Figures};

/// One run. Times are from the first submission to the last binding seen on a watch; where agents run what is
/// placed, to the last end seen there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) workload: String,
    /// Of the store: `sled`, or `etcd` with its members.
    #[serde(default)]
    pub(super) engine: String,
    pub(super) nodes: usize,
    pub(super) schedulers: usize,
    pub(super) partition: String,
    /// `attached`, or `detached`: nodes stay ready by a long lease.
    pub(super) agents: String,
    /// What was switched off on purpose.
    pub(super) ablate: Vec<String>,
    pub(super) units: usize,
    /// (unit, ordinal)s bound, each once.
    pub(super) placements: usize,
    /// Running units for which no node had room, as the audit confirms; only of the mixed workload.
    #[serde(default)]
    pub(super) unplaced: usize,
    pub(super) seconds: f64,
    pub(super) placements_per_s: f64,
    /// Over all processes.
    pub(super) cpu_us_per_placement: f64,
    /// By process; `load` is the load generator.
    pub(super) cpu_s: BTreeMap<String, f64>,
    /// From handing a unit to its stream or call to seeing its last binding on the watch.
    pub(super) latency_ms: Latency,
    /// Running units refused by the binder.
    pub(super) conflicts: u64,
    pub(super) cache_hits: u64,
    pub(super) cache_misses: u64,
    /// The most that each process ever held.
    pub(super) rss_mib: BTreeMap<String, f64>,
    /// To disks, by all processes.
    pub(super) bytes_written: u64,
    /// Of the machine, before the run.
    pub(super) load_average: f64,
    /// Every invariant holds, and what a restarted state lists is what the watch showed.
    pub(super) audit: bool,
    pub(super) audit_s: f64,
    /// Per cent of the running units of a mix that belong to services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) online_share: Option<u32>,
    /// Hundredths of a core that each scheduler was held to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) scheduler_cpu_per_cent: Option<u32>,
    /// Of an open loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) offered_per_s: Option<u32>,
    /// Per cent of the nodes' room that what comes and goes is to take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) filled_percent: Option<u32>,
    /// With `--workload full`: the same in the cluster when it was half full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) half_full: Option<Box<Run>>,
    /// Of units that were offered before a snapshot was written and meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) snapshot: Option<BesideSnapshot>,
    /// Of units that come and go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) endurance: Option<Endurance>,
    /// Of a full cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) explain: Option<Explain>,
}

/// Medians of several runs, field by field, and the runs themselves.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RunReport {
    #[serde(flatten)]
    pub(super) median: Run,
    /// Lowest and highest placements per second.
    pub(super) placements_per_s_range: [f64; 2],
    /// Lowest and highest CPU time of a placement.
    pub(super) cpu_us_per_placement_range: [f64; 2],
    pub(super) runs: Vec<Run>,
}

impl RunReport {
    /// At least one run.
    pub(super) fn of(runs: Vec<Run>) -> Result<Self, Failure> {
        Ok(Self {
            median: median_of(&runs)?,
            placements_per_s_range: range(runs.iter().map(|run| run.placements_per_s)),
            cpu_us_per_placement_range: range(runs.iter().map(|run| run.cpu_us_per_placement)),
            runs,
        })
    }
}

impl Figures for RunReport {
    fn text(&self) -> String {
        let headers = [
            "WORKLOAD",
            "NODES",
            "SCHEDULERS",
            "PLACED",
            "SECONDS",
            "PER S",
            "CPU US",
            "P50 MS",
            "P90 MS",
            "P99 MS",
            "MAX MS",
            "CONFLICTS",
        ];
        let mut rows = Vec::new();
        for run in self.runs.iter().chain((self.runs.len() > 1).then_some(&self.median)) {
            rows.extend(run.half_full.as_deref().map(Run::row));
            rows.push(run.row());
        }
        if let Some(last) = rows.last_mut().filter(|_| self.runs.len() > 1) {
            last[0].push_str(" (median)");
        }
        let mut text = output::columns(&headers, &rows);
        let Run { cpu_s, rss_mib, placements, bytes_written, audit_s, load_average, agents, engine, .. } =
            &self.median;
        let each = |seconds: f64| seconds * 1e6 / count(*placements);
        text.push_str("\nCPU us each  ");
        text.push_str(&joined(cpu_s.iter().map(|(name, seconds)| format!("{name} {:.2}", each(*seconds)))));
        text.push_str("\npeak MiB     ");
        text.push_str(&by_process(rss_mib, 0));
        if self.median.unplaced > 0 {
            text.push_str(&format!(
                "\nunplaced     {}: no node has room, says the audit",
                self.median.unplaced
            ));
        }
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "\nwritten      {:.1} MiB\nstore        {engine}\nagents       {agents}\nload before  {load_average:.2}\naudit        ok in {audit_s:.1} s; a restarted state lists what the watch showed",
            mib(*bytes_written),
        );
        text.extend(self.median.snapshot.as_ref().map(BesideSnapshot::text));
        text.extend(self.median.endurance.as_ref().map(Endurance::text));
        text.extend(self.median.explain.as_ref().map(Explain::text));
        text
    }
}

impl Run {
    fn row(&self) -> Vec<String> {
        let Latency { p50, p90, p99, max } = self.latency_ms;
        let ms = |ms: f64| format!("{ms:.1}");
        vec![
            self.workload.clone(),
            self.nodes.to_string(),
            self.schedulers.to_string(),
            self.placements.to_string(),
            format!("{:.2}", self.seconds),
            format!("{:.0}", self.placements_per_s),
            format!("{:.2}", self.cpu_us_per_placement),
            ms(p50),
            ms(p90),
            ms(p99),
            ms(max),
            self.conflicts.to_string(),
        ]
    }
}

/// What a line says of each process, with so many digits: `state 12, binder 3`.
pub(super) fn by_process(figures: &BTreeMap<String, f64>, digits: usize) -> String {
    joined(figures.iter().map(|(name, figure)| format!("{name} {figure:.digits$}")))
}

/// What a line says of latencies.
pub(super) fn latencies(Latency { p50, p90, p99, max }: Latency) -> String {
    format!("p50 {p50:.1}, p90 {p90:.1}, p99 {p99:.1}, max {max:.1} ms")
}

/// Bytes in MiB.
pub(super) fn mib(bytes: u64) -> f64 {
    wide(bytes) / 1_048_576.0
}

pub(super) fn joined(words: impl Iterator<Item = String>) -> String {
    words.collect::<Vec<_>>().join(", ")
}

/// Medians of runs, field by field; at least one run.
pub(super) fn median_of<R: Serialize + DeserializeOwned>(runs: &[R]) -> Result<R, Failure> {
    let unreadable =
        |error: serde_json::Error| Failure::failed(format!("the runs cannot be compared: {error}"));
    let values = runs.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    serde_json::from_value(median(values)).map_err(unreadable)
}

/// Lowest and highest.
pub(super) fn range(figures: impl Iterator<Item = f64>) -> [f64; 2] {
    figures.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], one| [low.min(one), high.max(one)])
}

/// Numbers become their (upper) medians, everything else is the first one's.
fn median(mut values: Vec<Value>) -> Value {
    match values.first() {
        Some(Value::Number(_)) => {
            values.sort_by(|a, b| a.as_f64().unwrap_or(0.0).total_cmp(&b.as_f64().unwrap_or(0.0)));
            let middle = values.len() / 2;
            values.swap_remove(middle)
        }
        Some(Value::Object(first)) => {
            let fields = first.keys().map(|key| {
                let of_all = values.iter().filter_map(|value| value.get(key).cloned()).collect();
                (key.clone(), median(of_all))
            });
            Value::Object(fields.collect())
        }
        Some(_) => values.swap_remove(0),
        None => Value::Null,
    }
}

/// For display and division: above 2^53 the last digits do not matter.
pub(super) fn wide(n: u64) -> f64 {
    n as f64
}

/// As [`wide`].
pub(super) fn count(n: usize) -> f64 {
    wide(u64::try_from(n).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_taken_field_by_field() {
        let run = |seconds: f64, conflicts: u64, state: f64| Run {
            workload: "service".to_owned(),
            seconds,
            placements_per_s: 10.0 / seconds,
            conflicts,
            cpu_s: [("state".to_owned(), state)].into(),
            ..Run::default()
        };
        let report = RunReport::of(vec![run(1.0, 9, 0.3), run(2.0, 7, 0.1), run(4.0, 8, 0.2)]).unwrap();
        assert_eq!(
            (report.median.seconds, report.median.conflicts, report.median.cpu_s["state"]),
            (2.0, 8, 0.2)
        );
        assert_eq!(report.placements_per_s_range, [2.5, 10.0]);
        assert!(report.text().contains("service (median)"));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((&json["seconds"], json["runs"].as_array().unwrap().len()), (&2.0.into(), 3));
        assert!(json.get("half_full").is_none());
    }
}
