//! Reads of what any user of the API sees.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context as _, Result};
use godel_proto::v1;

use crate::{api::Api, cluster::Cluster};

/// The counters of running units that the binder has rejected, or not moved.
const REJECTED: [&str; 2] = ["binder_rejected", "binder_moves_refused"];

/// Time in which a service shows its metrics.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(5);

/// Units and nodes now: scenarios have few.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) units: Vec<v1::Unit>,
    pub(super) nodes: Vec<v1::Node>,
}

pub(super) async fn look(api: &Api) -> Result<Seen> {
    let mut units = Vec::new();
    let mut service = api.units().await?;
    let mut request = v1::ListUnitsRequest { page_size: 1_000, ..v1::ListUnitsRequest::default() };
    loop {
        let page = service.list_units(request.clone()).await?.into_inner();
        units.extend(page.units);
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    let request = v1::ListNodesRequest { page_size: 1_000, ..v1::ListNodesRequest::default() };
    let nodes = api.nodes().list_nodes(request).await?.into_inner().nodes;
    Ok(Seen { units, nodes })
}

pub(super) async fn replicas(api: &Api, units: &[&v1::Unit]) -> Result<Vec<v1::RunningUnit>> {
    let mut replicas = Vec::new();
    for unit in units {
        let meta = unit.spec.as_ref().and_then(|spec| spec.meta.as_ref()).context("a unit has a name")?;
        replicas.extend(api.get_unit(&meta.name).await?.running_units);
    }
    Ok(replicas)
}

pub(super) async fn queue(api: &Api, path: &str) -> Result<v1::QueueUsage> {
    let request = v1::GetQueueRequest { name: path.to_owned() };
    let answer = api.queues().await?.get_queue(request).await?.into_inner();
    answer.queue.and_then(|queue| queue.usage).context("no usage")
}

/// Running units of which the agents of a group say that they are there; none counts while one is away.
pub(super) async fn reported(api: &Api, group: &str) -> Result<usize> {
    let mut reports = api.state().list_agent_reports(v1::ListAgentReportsRequest {}).await?.into_inner();
    let mut n_live = 0;
    while let Some(report) = reports.message().await? {
        if report.node.strip_prefix(group).is_some_and(|rest| rest.starts_with('-')) {
            anyhow::ensure!(report.connected, "the agent of {} is away", report.node);
            n_live += report.running.iter().filter(|run| run.phase() <= v1::RunPhase::Running).count();
        }
    }
    Ok(n_live)
}

/// Metrics of the services that run.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    /// Each of them, summed over its labels and over the services.
    pub(super) sums: BTreeMap<String, i64>,
    /// Reasons for which the binder has rejected something.
    pub(super) rejected: BTreeSet<String>,
}

/// Nobody waits for a process that is frozen.
pub(super) async fn metrics(cluster: &Cluster) -> Metrics {
    let mut metrics = Metrics::default();
    for name in cluster.processes().filter(|name| !cluster.is_frozen(name)) {
        let asked = tokio::time::timeout(SCRAPE_TIMEOUT, cluster.metrics(name)).await;
        let Ok(Ok(text)) = asked else { continue };
        text.lines().filter_map(|line| line.strip_prefix("godel_")).for_each(|line| metrics.add(line));
    }
    metrics
}

impl Metrics {
    /// A line of a service, without its `godel_`.
    pub(super) fn add(&mut self, line: &str) {
        let (Some(end), Some((labelled, value))) = (line.find(['{', ' ']), line.rsplit_once(' ')) else {
            return;
        };
        let (name, Ok(value)) = (line[..end].trim_end_matches("_total"), value.parse::<i64>()) else {
            return;
        };
        *self.sums.entry(name.to_owned()).or_insert(0) += value;
        let reason = labelled[end..].split_once("reason=\"").and_then(|(_, rest)| rest.split_once('"'));
        if let (Some((reason, _)), 1..) = (reason, value)
            && REJECTED.contains(&name)
        {
            self.rejected.insert(reason.to_owned());
        }
    }
}

pub(super) fn name(node: &v1::Node) -> &str {
    node.spec.as_ref().and_then(|spec| spec.meta.as_ref()).map_or("", |meta| meta.name.as_str())
}

/// Given by an administrator, or found by the agent.
pub(super) fn label<'a>(node: &'a v1::Node, key: &str) -> Option<&'a str> {
    let given = node.spec.as_ref().and_then(|spec| spec.meta.as_ref()).and_then(|meta| meta.labels.get(key));
    let found = || node.report.as_ref().and_then(|report| report.attributes.get(key));
    given.or_else(found).map(String::as_str)
}

/// Why a unit waits, in one line.
pub(super) fn why(unit: &v1::Unit) -> String {
    let reasons = unit.refusals.iter().flat_map(|refusals| &refusals.reasons);
    let mut words: Vec<String> =
        reasons.map(|one| format!("{} nodes: {}: {}", one.nodes, one.plugin, one.reason)).collect();
    words.extend(unit.refusals.iter().map(|refusals| format!("{} tries", refusals.attempts)));
    words.join(", ")
}

/// A unit in one line.
pub(super) fn show(unit: &v1::Unit) -> String {
    let meta = unit.spec.as_ref().and_then(|spec| spec.meta.clone()).unwrap_or_default();
    let counts = unit.counts.unwrap_or_default();
    format!(
        "{}: {} of {} replicas ({} pending, {} bound, {} running, {} evicting){}{}",
        meta.name,
        unit.phase().as_str_name(),
        counts.replicas,
        counts.pending,
        counts.bound,
        counts.running,
        counts.evicting,
        if unit.waits_for.is_empty() { String::new() } else { format!(", {}", unit.waits_for) },
        unit.refusals.as_ref().map_or_else(String::new, |_| format!(", {}", why(unit))),
    )
}
