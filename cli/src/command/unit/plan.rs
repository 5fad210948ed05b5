//! `godel unit plan`: what would become of units if they were submitted now.

use std::collections::BTreeMap;

use godel_client::unit_file::Submit;
use godel_proto::v1;
use serde::Serialize;

use super::submit::units_of;
use crate::command::each::several;
use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::{self, Format, count, shown},
    user,
    views::{self, RefusalsView},
};

/// Nodes that are told by name.
const N_NODES_SHOWN: usize = 10;

/// What would become of a unit, as JSON.
#[derive(Debug, Serialize)]
struct PlanView {
    name: String,
    /// `fits`, `partly`, `preempts`, `waits`, `never`, or `refused`.
    outcome: &'static str,
    /// One for each replica that would be placed.
    nodes: Vec<String>,
    unplaced: u32,
    /// Running units that would have to leave, by unit.
    preempts: BTreeMap<String, u32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    why: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusals: Option<RefusalsView>,
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
}

pub(super) async fn run(client: &Client, submit: &Submit, format: Format) -> Result<(), Failure> {
    if submit.wait {
        return Err(Failure::usage("--wait: a plan submits nothing to wait for"));
    }
    let units = units_of(submit, &user::default_owner(client))?;
    let scheduler = scheduler(client).await?;
    let n_units = units.len();
    let (mut views, mut failures) = (Vec::with_capacity(n_units), Vec::new());
    for (place, unit) in units {
        let name = unit.meta.as_ref().map_or("", |meta| meta.name.as_str()).to_owned();
        match plan(client, &scheduler, unit).await {
            Ok(answer) => {
                let view = view(client, name, answer).await;
                match view.outcome {
                    "waits" => {
                        failures.push(Failure::failed(format!("unit {} would wait", shown(&view.name))))
                    }
                    "never" => {
                        let said = format!("unit {} can never be placed", shown(&view.name));
                        failures.push(
                            Failure::failed(said).hint("ask for less, or raise the maximum that is named"),
                        );
                    }
                    _ => {}
                }
                views.push(view);
            }
            // Without a scheduler there is nothing to say of the others either.
            Err(failure) if failure.code == Code::Unreachable => return Err(failure),
            Err(failure) => {
                views.push(refused(name, &failure));
                failures.push(failure.during(shown(&place)));
            }
        }
    }
    output::show(format, &views, || views.iter().map(text).collect::<String>())?;
    match Code::worst(failures.iter().map(|failure| failure.code)) {
        None => Ok(()),
        Some(_) if n_units == 1 => Err(failures.remove(0)),
        Some(code) => {
            let said = format!("{} of {} would not be placed", failures.len(), count(n_units, "unit"));
            Err(several(code, said, &failures))
        }
    }
}

/// Where a scheduler that is at work serves.
async fn scheduler(client: &Client) -> Result<v1::SchedulerStatus, Failure> {
    let schedulers = client.schedulers().await?.schedulers;
    let attached = schedulers.into_iter().find(|scheduler| scheduler.attached);
    attached.ok_or_else(|| {
        Failure::new(Code::Unreachable, "no scheduler is running")
            .hint("start one with `godel serve scheduler`, or everything with `godel up`")
    })
}

/// Whether it would be admitted, and where it would go then.
async fn plan(
    client: &Client,
    scheduler: &v1::SchedulerStatus,
    unit: v1::UnitSpec,
) -> Result<v1::PlanResponse, Failure> {
    let meta = unit.meta.clone().unwrap_or_default();
    let answer = client.plan(scheduler, unit).await?;
    match client.get_unit(&meta.namespace, &meta.name).await {
        Ok(known) => {
            let phase = known.unit.as_ref().map_or_else(String::new, |unit| views::phase(unit.phase()));
            let known = known.unit.and_then(|unit| unit.spec?.meta).unwrap_or_default();
            if known.name == meta.name && known.uid != meta.uid {
                let said = format!("unit {} exists with another uid ({phase})", shown(&meta.name));
                return Err(Failure::new(Code::Conflict, said));
            }
            Ok(answer)
        }
        // The name is free, or no whole one.
        Err(failure) if matches!(failure.code, Code::NotFound | Code::Usage) => Ok(answer),
        Err(failure) => Err(failure),
    }
}

async fn view(client: &Client, name: String, answer: v1::PlanResponse) -> PlanView {
    let outcome = match answer.outcome() {
        v1::PlanOutcome::Fits => "fits",
        v1::PlanOutcome::Partly => "partly",
        v1::PlanOutcome::Preempts => "preempts",
        v1::PlanOutcome::Never => "never",
        v1::PlanOutcome::Waits | v1::PlanOutcome::Unspecified => "waits",
    };
    let v1::PlanResponse { nodes, unplaced, refusals, outcome: _, victims, why } = answer;
    let names = if victims.is_empty() { BTreeMap::new() } else { names(client).await };
    let named = |victim: &v1::PlanVictims| {
        let name = names.get(&victim.unit_id).cloned();
        (name.unwrap_or_else(|| format!("unit {}", victim.unit_id)), victim.running_units)
    };
    let preempts = victims.iter().map(named).collect();
    let (refusals, error) = (refusals.as_ref().map(RefusalsView::from), String::new());
    PlanView { name, outcome, nodes, unplaced, preempts, why, refusals, error }
}

/// Names of units by id. A scheduler knows ids alone; without the names the ids are told.
async fn names(client: &Client) -> BTreeMap<u64, String> {
    let units = client.list_units(v1::ListUnitsRequest::default(), usize::MAX).await;
    let units = units.map(|(units, _)| units).unwrap_or_default();
    let named = units.into_iter().filter_map(|unit| {
        let meta = unit.spec?.meta?;
        Some((unit.unit_id, format!("{}/{}", meta.namespace, meta.name)))
    });
    named.collect()
}

fn refused(name: String, failure: &Failure) -> PlanView {
    PlanView {
        name,
        outcome: "refused",
        nodes: Vec::new(),
        unplaced: 0,
        preempts: BTreeMap::new(),
        why: String::new(),
        refusals: None,
        error: failure.message.clone(),
    }
}

fn text(view: &PlanView) -> String {
    let PlanView { name, outcome, nodes, unplaced, preempts, why, refusals, error } = view;
    let mut by_node: BTreeMap<&str, usize> = BTreeMap::new();
    nodes.iter().for_each(|node| *by_node.entry(node).or_default() += 1);
    let mut on: Vec<String> =
        by_node.iter().take(N_NODES_SHOWN).map(|(node, n)| format!("{n} on {}", shown(node))).collect();
    if by_node.len() > N_NODES_SHOWN {
        on.push(format!("others on {}", count(by_node.len() - N_NODES_SHOWN, "further node")));
    }
    let on = on.join(", ");
    let n_victims: u64 = preempts.values().map(|n| u64::from(*n)).sum();
    let of: Vec<String> = preempts.keys().map(|unit| shown(unit).into_owned()).collect();
    let after = match n_victims {
        0 => String::new(),
        n => format!(" after preempting {} of {}", count(n, "running unit"), of.join(", ")),
    };
    let name = shown(name);
    let mut text = match *outcome {
        "fits" | "preempts" => format!("unit {name} fits{after}: {on}\n"),
        "partly" => {
            format!("unit {name} fits in part{after}: {on}; {} would wait\n", count(*unplaced, "replica"))
        }
        "never" => format!("unit {name} can never be placed\n"),
        "refused" => format!("unit {name} would be refused: {error}\n"),
        _ => format!("unit {name} would wait\n"),
    };
    if !why.is_empty() {
        text.push_str(&format!("  {}\n", shown(why)));
    }
    for reason in refusals.iter().flat_map(|refusals| &refusals.reasons) {
        let nodes = count(reason.nodes, "node");
        text.push_str(&format!("  {nodes}: {}: {}\n", shown(&reason.plugin), shown(&reason.reason)));
    }
    if let Some(refusals) = refusals.as_ref().filter(|refusals| !refusals.nearest_miss.is_empty()) {
        text.push_str(&format!("  nearest miss: {}\n", shown(&refusals.nearest_miss)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_told_in_a_line_and_why() {
        let view = |outcome, nodes: &[&str], unplaced| PlanView {
            outcome,
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            unplaced,
            ..refused("we\u{1b}b".to_owned(), &Failure::failed("no"))
        };
        assert_eq!(text(&view("fits", &["a", "b", "a"], 0)), "unit we\\u{1b}b fits: 2 on a, 1 on b\n");
        let mut preempts = view("preempts", &["a"], 0);
        preempts.preempts = [("default/low".to_owned(), 2), ("default/mid".to_owned(), 1)].into();
        let expect =
            "unit we\\u{1b}b fits after preempting 3 running units of default/low, default/mid: 1 on a\n";
        assert_eq!(text(&preempts), expect);
        let partly = view("partly", &["a"], 1);
        assert_eq!(text(&partly), "unit we\\u{1b}b fits in part: 1 on a; 1 replica would wait\n");
        let never = PlanView { why: "queue `a` allows at most 4 cpu".to_owned(), ..view("never", &[], 8) };
        assert_eq!(text(&never), "unit we\\u{1b}b can never be placed\n  queue `a` allows at most 4 cpu\n");
        assert_eq!(text(&view("refused", &[], 0)), "unit we\\u{1b}b would be refused: no\n");
    }
}
