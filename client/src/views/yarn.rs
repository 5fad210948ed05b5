//! Applications, attempts and queues of the YARN adapter as shown.

use std::collections::BTreeMap;

use godel_proto::v1;

use super::shown_time;
use crate::{
    output::{View, ViewColumn},
    view,
};

view! {
    /// An amount in YARN's units.
    #[derive(Default)]
    pub struct YarnAmountView from (amount: Option<&v1::YarnAmount>) with {
        let amount = amount.cloned().unwrap_or_default();
    } {
        /// Memory, MiB.
        pub memory_mb: i64 = amount.memory_mb,
        /// Whole CPUs.
        pub vcores: i64 = amount.vcores,
        /// Other resources by YARN's name.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub others: BTreeMap<String, i64> = amount.others.into_iter().collect(),
    }
}

impl YarnAmountView {
    /// For a column: `4096Mi/2`, memory and CPUs, and others behind them.
    fn shown(&self) -> String {
        let others: String = self.others.iter().map(|(name, amount)| format!(", {name}={amount}")).collect();
        format!("{}Mi/{}{others}", self.memory_mb, self.vcores)
    }
}

view! {
    /// An application.
    pub struct YarnAppView from (app: &v1::YarnApplicationStatus) {
        /// Its id.
        pub id: String = app.application_id.clone(),
        /// For people.
        pub name: String = app.name.clone(),
        /// Who submitted it.
        pub user: String = app.user.clone(),
        /// Its queue, as YARN names it.
        pub queue: String = app.queue.clone(),
        /// `SPARK` and so on.
        pub kind: String = app.kind.clone(),
        /// `ACCEPTED`, `RUNNING` and so on, as YARN writes it.
        pub state: String = known(app.state().as_str_name(), "YARN_APP_STATE_"),
        /// How it ended; empty: it goes on, or nobody has said.
        pub final_status: String = known(app.final_status().as_str_name(), "YARN_APP_FINAL_STATUS_"),
        /// Share that is done, per cent.
        pub progress: u32 = per_cent(app.progress),
        /// Higher wins.
        pub priority: i32 = app.priority,
        /// What its containers have.
        pub used: YarnAmountView = app.used.as_ref().into(),
        /// Containers that have a place.
        pub containers: u32 = app.containers,
        /// Containers that it waits for.
        pub pending_containers: u32 = app.pending_containers,
        /// When it was submitted, Unix milliseconds.
        pub start_ms: i64 = app.start_ms,
        /// When it ended, Unix milliseconds; 0: it goes on.
        pub finish_ms: i64 = app.finish_ms,
        /// When it is ended, Unix milliseconds; absent: never.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub timeout_at_ms: Option<i64> = app.timeout_at_ms,
        /// Its current attempt; empty: none.
        pub attempt: String = app.attempt_id.clone(),
        /// Node of its master; empty: none.
        pub master_node: String = app.master_node.clone(),
        /// Page of its master.
        pub tracking_url: String = app.tracking_url.clone(),
        /// Its master runs elsewhere.
        pub is_unmanaged: bool = app.unmanaged,
        /// Words for filters.
        pub tags: Vec<String> = app.tags.clone(),
        /// Memory over time, MiB-seconds.
        pub memory_seconds: i64 = app.memory_seconds,
        /// CPUs over time, CPU-seconds.
        pub vcore_seconds: i64 = app.vcore_seconds,
        /// What people are told of it.
        pub diagnostics: String = app.diagnostics.clone(),
        /// Its attempts; only in `describe`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub attempts: Vec<YarnAttemptView> = Vec::new(),
    }
}

view! {
    /// An attempt.
    pub struct YarnAttemptView from (attempt: &v1::YarnAttempt) {
        /// Its id.
        pub id: String = attempt.attempt_id.clone(),
        /// Where it is.
        pub state: String = known(attempt.state().as_str_name(), "YARN_ATTEMPT_STATE_"),
        /// Container of its master; empty: it has no place.
        pub container: String = attempt.container_id.clone(),
        /// Node of its master; empty: it has no place.
        pub node: String = attempt.node.clone(),
        /// When it began, Unix milliseconds.
        pub start_ms: i64 = attempt.start_ms,
        /// When it ended, Unix milliseconds; 0: it goes on.
        pub finish_ms: i64 = attempt.finish_ms,
        /// What people are told of it.
        pub diagnostics: String = attempt.diagnostics.clone(),
    }
}

/// A whole percentage of a share between 0 and 1.
fn per_cent(share: f32) -> u32 {
    (0..=100).rev().find(|whole: &u32| f64::from(*whole) <= f64::from(share) * 100.0 + 0.01).unwrap_or(0)
}

/// The value of an enumeration as YARN writes it; nothing for the first one, which says nothing.
fn known(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).filter(|word| *word != "UNSPECIFIED").unwrap_or_default().to_owned()
}

impl View for YarnAppView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("ID", |view| view.id.clone()),
        ("NAME", |view| view.name.clone()),
        ("KIND", |view| view.kind.clone()),
        ("USER", |view| view.user.clone()),
        ("QUEUE", |view| view.queue.clone()),
        ("STATE", |view| view.state.clone()),
        ("FINAL", |view| view.final_status.clone()),
        ("PROGRESS", |view| format!("{}%", view.progress)),
        ("CONTAINERS", |view| view.containers.to_string()),
        ("USED", |view| view.used.shown()),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("PRIORITY", |view| view.priority.to_string()),
        ("PENDING", |view| view.pending_containers.to_string()),
        ("STARTED", |view| shown_time(view.start_ms)),
        ("ENDED", |view| shown_time(view.finish_ms)),
        ("MASTER", |view| view.master_node.clone()),
        ("TRACKING-URL", |view| view.tracking_url.clone()),
        ("TAGS", |view| view.tags.join(",")),
    ];
}

impl View for YarnAttemptView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("ATTEMPT", |view| view.id.clone()),
        ("STATE", |view| view.state.clone()),
        ("NODE", |view| view.node.clone()),
        ("STARTED", |view| shown_time(view.start_ms)),
        ("ENDED", |view| shown_time(view.finish_ms)),
        ("DIAGNOSTICS", |view| view.diagnostics.trim_end().replace('\n', "; ")),
    ];
}

view! {
    /// A queue as YARN sees it; percentages.
    pub struct YarnQueueView from (queue: &v1::YarnQueue) {
        /// Its whole path as YARN names it.
        pub path: String = queue.path.clone(),
        /// Share of its parent that is guaranteed.
        pub capacity: f32 = queue.capacity,
        /// Share of its parent that it may have at most.
        pub maximum_capacity: f32 = queue.maximum_capacity,
        /// Share of the cluster that is guaranteed.
        pub absolute_capacity: f32 = queue.absolute_capacity,
        /// Share of the cluster that it has now.
        pub absolute_used_capacity: f32 = queue.absolute_used_capacity,
        /// Share of its guarantee that it has now.
        pub used_capacity: f32 = queue.used_capacity,
        /// It takes applications.
        pub is_running: bool = queue.running,
        /// What it has.
        pub used: YarnAmountView = queue.used.as_ref().into(),
        /// What it waits for.
        pub pending: YarnAmountView = queue.pending.as_ref().into(),
        /// Containers in it and below.
        pub containers: u32 = queue.containers,
        /// Applications whose master has a place.
        pub active_applications: u32 = queue.active_applications,
        /// Applications whose master waits.
        pub pending_applications: u32 = queue.pending_applications,
        /// Who may submit there; empty: everybody.
        pub submit_owners: Vec<String> = queue.submit_owners.clone(),
        /// No queue is below it.
        pub is_leaf: bool = queue.leaf,
    }
}

impl View for YarnQueueView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("QUEUE", |view| view.path.clone()),
        ("STATE", |view| if view.is_running { "RUNNING" } else { "STOPPED" }.to_owned()),
        ("CAPACITY", |view| format!("{:.1}%", view.capacity)),
        ("MAX", |view| format!("{:.1}%", view.maximum_capacity)),
        ("USED-CAPACITY", |view| format!("{:.1}%", view.used_capacity)),
        ("ACTIVE", |view| view.active_applications.to_string()),
        ("PENDING", |view| view.pending_applications.to_string()),
        ("CONTAINERS", |view| view.containers.to_string()),
        ("USED", |view| view.used.shown()),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("OF-CLUSTER", |view| format!("{:.1}%", view.absolute_capacity)),
        ("USED-OF-CLUSTER", |view| format!("{:.1}%", view.absolute_used_capacity)),
        ("WAITS-FOR", |view| view.pending.shown()),
        ("SUBMIT-OWNERS", |view| view.submit_owners.join(",")),
    ];
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
        assert_eq!((row.len(), YarnAppView::COLUMNS.len()), (10, 10));
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
            (YarnQueueView::COLUMNS.len(), YarnQueueView::WIDE.len())
        );
        let attempt = YarnAttemptView::from(&v1::YarnAttempt::default());
        assert_eq!((attempt.row().len(), attempt.state.as_str()), (YarnAttemptView::COLUMNS.len(), ""));
    }
}
