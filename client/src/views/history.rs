//! Ended units as shown.

use std::collections::BTreeMap;

use godel_base::{
    quantity::{self, GPU},
    resources::{CPU, MEMORY},
};
use godel_proto::v1;
use serde::Serialize;

use super::{class, ended, phase, shown_time, word};
use crate::{
    output::{self, View, ViewColumn},
    view,
};

view! {
    /// An ended unit.
    pub struct HistoryView from (unit: &v1::UnitHistory) with {
        let columns = unit.runs.clone().unwrap_or_default();
        let at = |column: &[i64], idx: usize| column.get(idx).copied().unwrap_or_default();
        let small = |column: &[u32], idx: usize| column.get(idx).copied().unwrap_or_default();
        let run = |(idx, ordinal): (usize, &u32)| {
            let run = columns.phases.get(idx).and_then(|number| v1::RunPhase::try_from(*number).ok());
            RunHistoryView {
                ordinal: *ordinal,
                incarnation: small(&columns.incarnations, idx),
                phase: word(run.unwrap_or_default().as_str_name(), "RUN_PHASE_"),
                node_id: small(&columns.node_ids, idx),
                exit_code: columns.exit_codes.get(idx).copied().unwrap_or_default(),
                restarts: small(&columns.restarts, idx),
                bound_time_ms: at(&columns.bound_times_ms, idx),
                ended_time_ms: at(&columns.ended_times_ms, idx),
            }
        };
    } {
        /// Its name, which another unit may have now.
        pub name: String = unit.name.clone(),
        /// Its namespace.
        pub namespace: String = unit.namespace.clone(),
        /// Durable number.
        pub unit_id: u64 = unit.unit_id,
        /// Idempotence key of its submission.
        pub uid: String = unit.uid.clone(),
        /// Its owner.
        pub owner: String = unit.owner.clone(),
        /// Path of the queue that was charged.
        pub queue: String = unit.queue.clone(),
        /// `service`, `gang` and so on.
        pub class: String = class(unit.workload_class),
        /// How it ended: `Completed`, `Failed` or `Cancelled`.
        pub phase: String = phase(unit.phase()),
        /// Why the dispatcher ended it; empty if it did not.
        pub ended: String = ended(unit.ended()),
        /// Wanted.
        pub replicas: u32 = unit.replicas,
        /// Ended with 0.
        pub succeeded: u32 = unit.succeeded,
        /// Ended otherwise.
        pub failed: u32 = unit.failed,
        /// Of its submission, Unix milliseconds.
        pub create_time_ms: i64 = unit.create_time_ms,
        /// Of its first binding, Unix milliseconds; 0: it had no node.
        pub bound_time_ms: i64 = unit.bound_time_ms,
        /// Of its end, Unix milliseconds.
        pub ended_time_ms: i64 = unit.ended_time_ms,
        /// Time on nodes of all replicas together, milliseconds.
        pub run_ms: u64 = unit.run_ms,
        /// `cpu` in milli-cores, `memory` in mebibytes, devices in thousandths, each for seconds.
        pub resource_seconds: BTreeMap<String, u64> = unit.resource_seconds.clone().into_iter().collect(),
        /// Its record is still there: it may run again.
        pub is_kept: bool = unit.is_kept,
        /// How often replicas had a node: each incarnation counts.
        pub starts: u64 = unit.starts,
        /// Its replicas.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub runs: Vec<RunHistoryView> = columns.ordinals.iter().enumerate().map(run).collect(),
    }
}

/// A replica of an ended unit in its last incarnation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunHistoryView {
    /// Position in its unit.
    pub ordinal: u32,
    /// Which life.
    pub incarnation: u32,
    /// How far it came.
    pub phase: String,
    /// Number of its last node.
    pub node_id: u32,
    /// Of its end.
    pub exit_code: i32,
    /// In place.
    pub restarts: u32,
    /// Of its binding, Unix milliseconds.
    pub bound_time_ms: i64,
    /// Of its end, Unix milliseconds.
    pub ended_time_ms: i64,
}

/// Ended units of one owner or one queue, added up.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HistorySumView {
    /// The owner or the path of the queue.
    pub name: String,
    /// Units.
    pub units: u64,
    /// Of those completed.
    pub completed: u64,
    /// Of those failed.
    pub failed: u64,
    /// Of those cancelled.
    pub cancelled: u64,
    /// Time on nodes of all replicas together, milliseconds.
    pub run_ms: u64,
    /// `cpu` in milli-cores, `memory` in mebibytes, devices in thousandths, each for seconds.
    pub resource_seconds: BTreeMap<String, u64>,
}

impl HistorySumView {
    /// Counts a unit.
    pub fn add(&mut self, unit: &v1::UnitHistory) {
        self.units += 1;
        match unit.phase() {
            v1::UnitPhase::Completed => self.completed += 1,
            v1::UnitPhase::Cancelled => self.cancelled += 1,
            _ => self.failed += 1,
        }
        self.run_ms = self.run_ms.saturating_add(unit.run_ms);
        for (name, amount) in &unit.resource_seconds {
            let sum = self.resource_seconds.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*amount);
        }
    }
}

/// `cpu 3.5h, memory 12Gi h`: what people pay for, in hours.
fn hours(of: &BTreeMap<String, u64>) -> String {
    let shown = of.iter().map(|(name, amount)| {
        if *amount == u64::MAX {
            return format!("{name} {}", quantity::UNCOUNTED);
        }
        #[allow(clippy::cast_precision_loss, reason = "it is rounded to two digits")]
        let amount = *amount as f64 / 3_600.0;
        match name.as_str() {
            CPU => format!("cpu {:.2}", amount / 1_000.0),
            MEMORY => format!("memory {:.2}Gi", amount / 1_024.0),
            GPU => format!("gpu {:.2}", amount / 1_000.0),
            other => format!("{other} {amount:.2}"),
        }
    });
    shown.collect::<Vec<_>>().join(", ")
}

impl View for HistoryView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("NAME", |view| {
            if view.namespace == "default" {
                view.name.clone()
            } else {
                format!("{}/{}", view.namespace, view.name)
            }
        }),
        ("PHASE", |view| view.phase.clone()),
        ("CLASS", |view| view.class.clone()),
        ("OWNER", |view| view.owner.clone()),
        ("QUEUE", |view| view.queue.clone()),
        ("REPLICAS", |view| view.replicas.to_string()),
        ("ENDED", |view| shown_time(view.ended_time_ms)),
        ("RUN", |view| output::span(view.run_ms)),
        ("HOURS", |view| hours(&view.resource_seconds)),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("SUCCEEDED", |view| view.succeeded.to_string()),
        ("FAILED", |view| view.failed.to_string()),
        ("REASON", |view| view.ended.clone()),
        ("SUBMITTED", |view| shown_time(view.create_time_ms)),
        ("BOUND", |view| shown_time(view.bound_time_ms)),
        ("ID", |view| view.unit_id.to_string()),
        ("UID", |view| view.uid.clone()),
    ];
}

impl View for HistorySumView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("NAME", |view| view.name.clone()),
        ("UNITS", |view| view.units.to_string()),
        ("COMPLETED", |view| view.completed.to_string()),
        ("FAILED", |view| view.failed.to_string()),
        ("CANCELLED", |view| view.cancelled.to_string()),
        ("RUN", |view| output::span(view.run_ms)),
        ("HOURS", |view| hours(&view.resource_seconds)),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_is_shown_in_hours() {
        let used = [(CPU, 7_200_000), (MEMORY, 3_686_400), (GPU, 1_800_000), ("fpga", 3_600)];
        let used = used.into_iter().map(|(name, amount)| (name.to_owned(), amount)).collect();
        assert_eq!(hours(&used), "cpu 2.00, fpga 1.00, gpu 0.50, memory 1.00Gi");
        assert_eq!(hours(&[(CPU.to_owned(), u64::MAX)].into()), "cpu too much to count");
    }
}
