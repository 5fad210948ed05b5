//! Applications, attempts and queues of the YARN adapter as shown.

use std::collections::BTreeMap;

use godel_proto::v1;
use serde::Serialize;

use super::shown_time;
use crate::output::View;

/// An amount in YARN's units.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct YarnAmountView {
    /// Memory, MiB.
    pub memory_mb: i64,
    /// Whole CPUs.
    pub vcores: i64,
    /// Other resources by YARN's name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub others: BTreeMap<String, i64>,
}

impl From<Option<&v1::YarnAmount>> for YarnAmountView {
    fn from(amount: Option<&v1::YarnAmount>) -> Self {
        let amount = amount.cloned().unwrap_or_default();
        Self {
            memory_mb: amount.memory_mb,
            vcores: amount.vcores,
            others: amount.others.into_iter().collect(),
        }
    }
}

impl YarnAmountView {
    /// For a column: `4096Mi/2`, memory and CPUs, and others behind them.
    fn shown(&self) -> String {
        let others: String = self.others.iter().map(|(name, amount)| format!(", {name}={amount}")).collect();
        format!("{}Mi/{}{others}", self.memory_mb, self.vcores)
    }
}

/// An application.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct YarnAppView {
    /// Its id.
    pub id: String,
    /// For people.
    pub name: String,
    /// Who submitted it.
    pub user: String,
    /// Its queue, as YARN names it.
    pub queue: String,
    /// `SPARK` and so on.
    pub kind: String,
    /// `ACCEPTED`, `RUNNING` and so on, as YARN writes it.
    pub state: String,
    /// How it ended; empty: it goes on, or nobody has said.
    pub final_status: String,
    /// Share that is done, per cent.
    pub progress: u32,
    /// Higher wins.
    pub priority: i32,
    /// What its containers have.
    pub used: YarnAmountView,
    /// Containers that have a place.
    pub containers: u32,
    /// Containers that it waits for.
    pub pending_containers: u32,
    /// When it was submitted, Unix milliseconds.
    pub start_ms: i64,
    /// When it ended, Unix milliseconds; 0: it goes on.
    pub finish_ms: i64,
    /// When it is ended, Unix milliseconds; absent: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_at_ms: Option<i64>,
    /// Its current attempt; empty: none.
    pub attempt: String,
    /// Node of its master; empty: none.
    pub master_node: String,
    /// Page of its master.
    pub tracking_url: String,
    /// Its master runs elsewhere.
    pub is_unmanaged: bool,
    /// Words for filters.
    pub tags: Vec<String>,
    /// Memory over time, MiB-seconds.
    pub memory_seconds: i64,
    /// CPUs over time, CPU-seconds.
    pub vcore_seconds: i64,
    /// What people are told of it.
    pub diagnostics: String,
    /// Its attempts; only in `describe`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<YarnAttemptView>,
}

/// An attempt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct YarnAttemptView {
    /// Its id.
    pub id: String,
    /// Where it is.
    pub state: String,
    /// Container of its master; empty: it has no place.
    pub container: String,
    /// Node of its master; empty: it has no place.
    pub node: String,
    /// When it began, Unix milliseconds.
    pub start_ms: i64,
    /// When it ended, Unix milliseconds; 0: it goes on.
    pub finish_ms: i64,
    /// What people are told of it.
    pub diagnostics: String,
}

/// A whole percentage of a share between 0 and 1.
fn per_cent(share: f32) -> u32 {
    (0..=100).rev().find(|whole: &u32| f64::from(*whole) <= f64::from(share) * 100.0 + 0.01).unwrap_or(0)
}

/// The value of an enumeration as YARN writes it; nothing for the first one, which says nothing.
fn known(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).filter(|word| *word != "UNSPECIFIED").unwrap_or_default().to_owned()
}

impl From<&v1::YarnApplicationStatus> for YarnAppView {
    fn from(app: &v1::YarnApplicationStatus) -> Self {
        Self {
            id: app.application_id.clone(),
            name: app.name.clone(),
            user: app.user.clone(),
            queue: app.queue.clone(),
            kind: app.kind.clone(),
            state: known(app.state().as_str_name(), "YARN_APP_STATE_"),
            final_status: known(app.final_status().as_str_name(), "YARN_APP_FINAL_STATUS_"),
            progress: per_cent(app.progress),
            priority: app.priority,
            used: app.used.as_ref().into(),
            containers: app.containers,
            pending_containers: app.pending_containers,
            start_ms: app.start_ms,
            finish_ms: app.finish_ms,
            timeout_at_ms: app.timeout_at_ms,
            attempt: app.attempt_id.clone(),
            master_node: app.master_node.clone(),
            tracking_url: app.tracking_url.clone(),
            is_unmanaged: app.unmanaged,
            tags: app.tags.clone(),
            memory_seconds: app.memory_seconds,
            vcore_seconds: app.vcore_seconds,
            diagnostics: app.diagnostics.clone(),
            attempts: Vec::new(),
        }
    }
}

impl From<&v1::YarnAttempt> for YarnAttemptView {
    fn from(attempt: &v1::YarnAttempt) -> Self {
        Self {
            id: attempt.attempt_id.clone(),
            state: known(attempt.state().as_str_name(), "YARN_ATTEMPT_STATE_"),
            container: attempt.container_id.clone(),
            node: attempt.node.clone(),
            start_ms: attempt.start_ms,
            finish_ms: attempt.finish_ms,
            diagnostics: attempt.diagnostics.clone(),
        }
    }
}

impl View for YarnAppView {
    const HEADERS: &'static [&'static str] =
        &["ID", "NAME", "KIND", "USER", "QUEUE", "STATE", "FINAL", "PROGRESS", "CONTAINERS", "USED"];
    const WIDE: &'static [&'static str] =
        &["PRIORITY", "PENDING", "STARTED", "ENDED", "MASTER", "TRACKING-URL", "TAGS"];

    fn row(&self) -> Vec<String> {
        vec![
            self.id.clone(),
            self.name.clone(),
            self.kind.clone(),
            self.user.clone(),
            self.queue.clone(),
            self.state.clone(),
            self.final_status.clone(),
            format!("{}%", self.progress),
            self.containers.to_string(),
            self.used.shown(),
        ]
    }

    fn wide(&self) -> Vec<String> {
        vec![
            self.priority.to_string(),
            self.pending_containers.to_string(),
            shown_time(self.start_ms),
            shown_time(self.finish_ms),
            self.master_node.clone(),
            self.tracking_url.clone(),
            self.tags.join(","),
        ]
    }
}

impl View for YarnAttemptView {
    const HEADERS: &'static [&'static str] = &["ATTEMPT", "STATE", "NODE", "STARTED", "ENDED", "DIAGNOSTICS"];

    fn row(&self) -> Vec<String> {
        vec![
            self.id.clone(),
            self.state.clone(),
            self.node.clone(),
            shown_time(self.start_ms),
            shown_time(self.finish_ms),
            // A row is one line.
            self.diagnostics.trim_end().replace('\n', "; "),
        ]
    }
}

/// A queue as YARN sees it; percentages.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct YarnQueueView {
    /// Its whole path as YARN names it.
    pub path: String,
    /// Share of its parent that is guaranteed.
    pub capacity: f32,
    /// Share of its parent that it may have at most.
    pub maximum_capacity: f32,
    /// Share of the cluster that is guaranteed.
    pub absolute_capacity: f32,
    /// Share of the cluster that it has now.
    pub absolute_used_capacity: f32,
    /// Share of its guarantee that it has now.
    pub used_capacity: f32,
    /// It takes applications.
    pub is_running: bool,
    /// What it has.
    pub used: YarnAmountView,
    /// What it waits for.
    pub pending: YarnAmountView,
    /// Containers in it and below.
    pub containers: u32,
    /// Applications whose master has a place.
    pub active_applications: u32,
    /// Applications whose master waits.
    pub pending_applications: u32,
    /// Who may submit there; empty: everybody.
    pub submit_owners: Vec<String>,
    /// No queue is below it.
    pub is_leaf: bool,
}

impl From<&v1::YarnQueue> for YarnQueueView {
    fn from(queue: &v1::YarnQueue) -> Self {
        Self {
            path: queue.path.clone(),
            capacity: queue.capacity,
            maximum_capacity: queue.maximum_capacity,
            absolute_capacity: queue.absolute_capacity,
            absolute_used_capacity: queue.absolute_used_capacity,
            used_capacity: queue.used_capacity,
            is_running: queue.running,
            used: queue.used.as_ref().into(),
            pending: queue.pending.as_ref().into(),
            containers: queue.containers,
            active_applications: queue.active_applications,
            pending_applications: queue.pending_applications,
            submit_owners: queue.submit_owners.clone(),
            is_leaf: queue.leaf,
        }
    }
}

impl View for YarnQueueView {
    const HEADERS: &'static [&'static str] =
        &["QUEUE", "STATE", "CAPACITY", "MAX", "USED-CAPACITY", "ACTIVE", "PENDING", "CONTAINERS", "USED"];
    const WIDE: &'static [&'static str] = &["OF-CLUSTER", "USED-OF-CLUSTER", "WAITS-FOR", "SUBMIT-OWNERS"];

    fn row(&self) -> Vec<String> {
        vec![
            self.path.clone(),
            if self.is_running { "RUNNING" } else { "STOPPED" }.to_owned(),
            format!("{:.1}%", self.capacity),
            format!("{:.1}%", self.maximum_capacity),
            format!("{:.1}%", self.used_capacity),
            self.active_applications.to_string(),
            self.pending_applications.to_string(),
            self.containers.to_string(),
            self.used.shown(),
        ]
    }

    fn wide(&self) -> Vec<String> {
        vec![
            format!("{:.1}%", self.absolute_capacity),
            format!("{:.1}%", self.absolute_used_capacity),
            self.pending.shown(),
            self.submit_owners.join(","),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applications_are_shown_in_words() {
        let app = v1::YarnApplicationStatus {
            application_id: "application_17_0001".to_owned(),
            state: v1::YarnAppState::NewSaving.into(),
            progress: 0.29,
            used: Some(v1::YarnAmount {
                memory_mb: 2_048,
                vcores: 2,
                others: [("yarn.io/gpu".to_owned(), 1)].into(),
            }),
            ..v1::YarnApplicationStatus::default()
        };
        let row = YarnAppView::from(&app).row();
        assert_eq!((row.len(), YarnAppView::HEADERS.len()), (10, 10));
        assert_eq!((row[5].as_str(), row[6].as_str(), row[7].as_str()), ("NEW_SAVING", "", "29%"));
        assert_eq!(row[9], "2048Mi/2, yarn.io/gpu=1");
        assert_eq!(YarnAppView::from(&app).wide().len(), YarnAppView::WIDE.len());
        assert_eq!((per_cent(1.0), per_cent(0.0), per_cent(f32::NAN)), (100, 0, 0));
    }

    #[test]
    fn queues_have_a_cell_for_each_title() {
        let queue = v1::YarnQueue { capacity: 33.333, running: true, ..v1::YarnQueue::default() };
        let view = YarnQueueView::from(&queue);
        assert_eq!((view.row()[1].as_str(), view.row()[2].as_str()), ("RUNNING", "33.3%"));
        assert_eq!(
            (view.row().len(), view.wide().len()),
            (YarnQueueView::HEADERS.len(), YarnQueueView::WIDE.len())
        );
        let attempt = YarnAttemptView::from(&v1::YarnAttempt::default());
        assert_eq!((attempt.row().len(), attempt.state.as_str()), (YarnAttemptView::HEADERS.len(), ""));
    }
}
