//! What a step does.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use godel_proto::v1;

use super::{
    expect::Mismatch,
    file::{Crash, OneOrMore, Scenario, Step, Submit, Words},
    moves::move_units,
};
use crate::{
    cluster::{Cluster, shown},
    wait::{LIMIT, wait_for},
};

/// Parts of which one process leads: named without a number, the leader is meant.
const LED: [&str; 2] = ["dispatcher", "binder"];

/// Remembers which leader is away.
#[derive(Default)]
pub(super) struct Actor {
    away: BTreeMap<String, String>,
}

impl Actor {
    /// Starts the nodes that are there from the beginning, and applies queues and priority classes.
    pub(super) async fn open(&mut self, cluster: &mut Cluster, scenario: &Scenario) -> Result<(), Mismatch> {
        for group in scenario.story.nodes.iter().filter(|(_, nodes)| !nodes.later).map(|(group, _)| group) {
            start_nodes(cluster, scenario, group).await;
        }
        cluster.wait_ready().await;
        let has_queues = !scenario.queues.is_empty() || !scenario.classes.is_empty();
        let request = v1::ApplyQueuesRequest {
            queues: scenario.queues.clone(),
            priority_classes: scenario.classes.clone(),
        };
        let applied: Result<()> = async {
            if has_queues {
                cluster.api.queues().await?.apply_queues(request).await?;
            }
            for budget in &scenario.budgets {
                let request = v1::CreateBudgetRequest { budget: Some(budget.clone()) };
                cluster.api.budgets().await?.create_budget(request).await?;
            }
            for spec in &scenario.reservations {
                let request = v1::CreateReservationRequest { reservation: Some(spec.clone()) };
                cluster.api.reservations().await?.create_reservation(request).await?;
            }
            Ok(())
        }
        .await;
        applied.map_err(|error| {
            Mismatch::new(
                "queues, priority classes, budgets and reservations",
                "applied",
                format!("{error:#}"),
            )
        })
    }

    pub(super) async fn act(
        &mut self,
        cluster: &mut Cluster,
        scenario: &Scenario,
        step: &Step,
    ) -> Result<(), Mismatch> {
        if let Some(words) = &step.godel {
            return godel(cluster, words, step);
        }
        if let Some(of) = &step.moves {
            return move_units(cluster, of).await;
        }
        if let Some(submit) = &step.submit {
            let done = submit_all(cluster, scenario, submit).await;
            return done.map_err(|error| Mismatch::new("the submission", "accepted", format!("{error:#}")));
        }
        for name in self.leaving(cluster, &step.kill).await {
            cluster.kill(&name);
        }
        for name in self.leaving(cluster, &step.stop).await {
            cluster.stop(&name).await;
        }
        for name in self.leaving(cluster, &step.freeze).await {
            cluster.freeze(&name);
        }
        for name in self.returning(&step.thaw) {
            cluster.thaw(&name);
        }
        for name in self.returning(&step.start) {
            start(cluster, scenario, &name).await;
        }
        if let Some(Crash { part, at }) = &step.crash {
            let name = self.leaving(cluster, &Some(OneOrMore(vec![part.clone()]))).await.remove(0);
            let section = name.split('-').next().unwrap_or_default().to_uppercase();
            cluster.stop(&name).await;
            cluster.restart_with(&name, &[(format!("GODEL_{section}__CRASH_POINTS"), at.clone())]);
        }
        Ok(())
    }

    async fn leaving(&mut self, cluster: &Cluster, parts: &Option<OneOrMore>) -> Vec<String> {
        let mut names = Vec::new();
        for part in parts.iter().flat_map(|parts| &parts.0) {
            if !LED.contains(&part.as_str()) {
                names.push(part.clone());
                continue;
            }
            let name = cluster.leader(part).await;
            self.away.insert(part.clone(), name.clone());
            names.push(name);
        }
        names
    }

    fn returning(&mut self, parts: &Option<OneOrMore>) -> Vec<String> {
        let parts = parts.iter().flat_map(|parts| &parts.0);
        parts.map(|part| self.away.remove(part).unwrap_or_else(|| part.clone())).collect()
    }
}

/// Starts a process again, or for the first time: another scheduler, or nodes that come later.
async fn start(cluster: &mut Cluster, scenario: &Scenario, name: &str) {
    let is_known = cluster.processes().any(|process| process == name);
    match name.strip_prefix("agent-") {
        _ if is_known => cluster.restart(name),
        Some(group) => {
            start_nodes(cluster, scenario, group).await;
            cluster.wait_ready().await;
        }
        None => cluster.add_service(name.split('-').next().unwrap_or_default(), name).await,
    }
}

async fn start_nodes(cluster: &mut Cluster, scenario: &Scenario, group: &str) {
    let nodes = scenario.story.nodes.get(group);
    let nodes = nodes.unwrap_or_else(|| panic!("no nodes {group} in the scenario"));
    // Those that play nodes of another group again are none more.
    let n_new = if nodes.is_again() { 0 } else { nodes.count };
    let process = format!("agent-{group}");
    if nodes.real {
        return cluster
            .start_agent_of_this_machine(&process, &format!("{group}-0000"), &nodes.settings())
            .await;
    }
    cluster.start_agent(&process, &nodes.shapes(group), &nodes.settings(), n_new).await;
}

fn godel(cluster: &Cluster, words: &Words, step: &Step) -> Result<(), Mismatch> {
    let words: Vec<&str> = words.0.iter().map(String::as_str).collect();
    let output = cluster.godel(&words);
    let text = shown(&output);
    if output.status.code() != Some(step.exit) {
        return Err(Mismatch::new("godel", format!("exit code {}", step.exit), text));
    }
    match step.says.0.iter().find(|said| !text.contains(said.as_str())) {
        Some(said) => Err(Mismatch::new("godel", format!("`{said}` in what it prints"), text)),
        None => Ok(()),
    }
}

/// In one stream; tried again where the dispatcher is not there yet.
async fn submit_all(cluster: &Cluster, scenario: &Scenario, submit: &Submit) -> Result<()> {
    let mut units = Vec::new();
    for (name, copies) in &submit.0 {
        let spec = &scenario.units[name];
        match copies {
            None => units.push(named(spec, name.clone())),
            Some(n) => units.extend((0..*n).map(|number| named(spec, format!("{name}-{number}")))),
        }
    }
    let mut failed = None;
    let n_units = units.len();
    wait_for("a dispatcher that takes units", LIMIT, async || match submit_once(cluster, &units).await {
        Ok(n_durable) if n_durable == n_units => Ok(()),
        Ok(n_durable) => bail!("{n_durable} of {n_units} are durable"),
        Err(Refused(error)) => {
            failed = Some(error);
            Ok(())
        }
    })
    .await;
    failed.map_or(Ok(()), Err)
}

struct Refused(anyhow::Error);

/// How many are durable.
async fn submit_once(cluster: &Cluster, units: &[v1::UnitSpec]) -> Result<usize, Refused> {
    let items =
        (0..).zip(units).map(|(index, unit)| v1::SubmitUnitsRequest { index, unit: Some(unit.clone()) });
    let items: Vec<_> = items.collect();
    let Ok(mut service) = cluster.api.units().await else { return Ok(0) };
    let Ok(answers) = service.submit_units(tokio_stream::iter(items)).await else { return Ok(0) };
    let mut answers = answers.into_inner();
    let mut n_durable = 0;
    while let Ok(Some(answer)) = answers.message().await {
        if let Some(error) = answer.errors.into_iter().next() {
            return Err(Refused(anyhow::anyhow!("{}: {:?}", error.message, error.violations)));
        }
        n_durable = usize::try_from(answer.durable_below).context("few units").map_err(Refused)?;
    }
    Ok(n_durable)
}

fn named(spec: &v1::UnitSpec, name: String) -> v1::UnitSpec {
    let mut spec = spec.clone();
    let meta = spec.meta.get_or_insert_default();
    meta.name = name;
    // Chosen here, so that a lost answer can be asked for again.
    meta.uid = uuid::Uuid::now_v7().to_string();
    spec
}
