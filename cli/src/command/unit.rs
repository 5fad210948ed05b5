//! `godel unit`.

mod change;
mod checkpoint;
mod edit;
mod list;
mod logs;
mod plan;
mod submit;
mod topology;
mod watch;

use std::{
    io::Read as _,
    path::{Path, PathBuf},
};

use godel_client::{
    access::Access,
    client::Client,
    exit::{Code, Failure},
    output::{self, Format, Paint, are, count, field, fields, shown},
    unit_file,
    views::{RunningUnitView, TaskGroupView, UnitView},
};
use godel_domain::run_end::RunEndReason;
use godel_kit::clock::{Clock as _, SystemClock};
use godel_proto::v1;
use serde::Serialize;

use self::change::Change;
use super::{
    each::{LIST_UNITS, several},
    wait,
};
use crate::args::{UnitVerb, WhichUnits, split};

pub(super) async fn run(access: &Access, unit: UnitVerb, format: Format) -> Result<(), Failure> {
    // This one needs no server, and no address either.
    if let UnitVerb::Validate { files } = &unit {
        return validate(files, format);
    }
    let client = Client::new(access)?;
    match unit {
        UnitVerb::Submit(submit) => submit::run(&client, *submit, format).await,
        UnitVerb::Plan(submit) => plan::run(&client, &submit, format).await,
        UnitVerb::Validate { .. } => Ok(()),
        UnitVerb::List(wanted) => list::list(&client, wanted, format).await,
        UnitVerb::Describe(which) => describe(&client, &which, format).await,
        UnitVerb::Cancel(units) => change::change(&client, Change::Cancel, &units, format).await,
        UnitVerb::Suspend(units) => change::change(&client, Change::Suspend, &units, format).await,
        UnitVerb::Resume(units) => change::change(&client, Change::Resume, &units, format).await,
        UnitVerb::Stop(stop) => change::stop(&client, &stop, format).await,
        UnitVerb::Scale(scale) => change::scale(&client, &scale, format).await,
        UnitVerb::Move(wanted) => change::move_units(&client, &wanted, format).await,
        UnitVerb::Edit(wanted) => edit::edit(&client, &wanted, format).await,
        UnitVerb::Retry(retry) => change::retry(&client, &retry, format).await,
        UnitVerb::Delete(delete) => change::delete(&client, &delete, format).await,
        UnitVerb::Logs(logs) => logs::run(&client, &logs, format).await,
        UnitVerb::Checkpoint(wanted) => checkpoint::run(&client, &wanted, format).await,
        UnitVerb::Watch { names, namespace, count } => {
            watch::watch(&client, &namespace, &names, count, format).await
        }
        UnitVerb::Wait { names, namespace, condition, timeout } => {
            let condition = wait::WaitCondition::parse(&condition)?;
            wait::run(&client, &namespace, &names, &condition, timeout, format).await
        }
    }
}

/// A file's text; `-` is standard input.
pub(super) fn read(path: &Path) -> Result<String, Failure> {
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        std::fs::read(path)
    };
    let bytes =
        bytes.map_err(|error| Failure::usage(format!("{} cannot be read: {error}", path.display())))?;
    unit_file::decode(bytes).map_err(|mistakes| Failure::usage(mistakes.of(path)))
}

/// The units of some files, each with where it stands.
fn load(files: &[PathBuf]) -> Result<Vec<(String, v1::UnitSpec)>, Failure> {
    let mut units = Vec::new();
    for path in files {
        let shown = path.display();
        let loaded = unit_file::parse(&read(path)?)
            .map_err(|mistakes| Failure::usage(mistakes.of(path)).hint(DOCS))?;
        for unit in loaded {
            let name = unit.spec.meta.as_ref().map_or("", |meta| meta.name.as_str()).to_owned();
            units.push((format!("{shown} document {} ({name})", unit.document), unit.spec));
        }
    }
    Ok(units)
}

/// Evictions that a description shows.
const N_EVICTIONS_SHOWN: usize = 20;
pub(super) const DOCS: &str = "unit files are described in docs/unit-file.md";

/// A checked unit as JSON.
#[derive(Serialize)]
struct CheckedView {
    place: String,
    ok: bool,
    violations: Vec<String>,
    defaults: Vec<String>,
}

fn validate(files: &[PathBuf], format: Format) -> Result<(), Failure> {
    let checked: Vec<CheckedView> = load(files)?
        .into_iter()
        .map(|(place, spec)| match unit_file::check(spec) {
            Ok(defaults) => CheckedView { place, ok: true, violations: Vec::new(), defaults },
            Err(violations) => CheckedView { place, ok: false, violations, defaults: Vec::new() },
        })
        .collect();
    let n_wrong = checked.iter().filter(|unit| !unit.ok).count();
    match format {
        Format::Json | Format::Yaml => output::print_value(format, &checked)?,
        Format::Table | Format::Wide => {
            let mut text = String::new();
            for unit in &checked {
                let word = if unit.ok { "valid" } else { "invalid" };
                text.push_str(&format!("{}: {word}\n", shown(&unit.place)));
                let lines = if format == Format::Wide && unit.ok { &unit.defaults } else { &unit.violations };
                for line in lines {
                    text.push_str(&format!("  {}\n", shown(line)));
                }
            }
            output::print(&text)?;
        }
    }
    if n_wrong == 0 {
        return Ok(());
    }
    let said = format!("{} {} invalid", count(n_wrong, "unit"), are(n_wrong));
    Err(Failure::usage(said).hint(DOCS))
}

async fn describe(client: &Client, which: &WhichUnits, format: Format) -> Result<(), Failure> {
    if format == Format::Yaml {
        return files(client, which).await;
    }
    let views = super::describe_each(&which.names, async |name| {
        let (namespace, name) = split(&which.namespace, &name);
        view_of(client, namespace, name).await
    });
    super::print_described(format, "unit", views.await, |view| describe_text(view, format, Paint::stdout()))
}

/// Unit files, one document for each unit.
async fn files(client: &Client, which: &WhichUnits) -> Result<(), Failure> {
    let documents = super::describe_each(&which.names, async |name| {
        let (namespace, name) = split(&which.namespace, &name);
        let answer = client.get_unit(namespace, name).await?;
        let spec = answer.unit.and_then(|unit| unit.spec).unwrap_or_default();
        unit_file::to_file(&spec).map_err(|no_file| Failure::failed(no_file.to_string()))
    });
    let (mut texts, mut failures) = (Vec::new(), Vec::new());
    for (name, found) in documents.await {
        match found {
            Ok(text) => texts.push(text),
            Err(failure) if which.names.len() == 1 => return Err(failure),
            Err(failure) => {
                output::say(format!("unit {}: {}", shown(&name), failure.message));
                failures.push(failure);
            }
        }
    }
    output::print_raw(&texts.join("---\n"))?;
    match Code::worst(failures.iter().map(|failure| failure.code)) {
        None => Ok(()),
        Some(code) => {
            let said = format!("{} of {} failed", failures.len(), count(which.names.len(), "unit"));
            Err(several(code, said, &failures))
        }
    }
}

async fn view_of(client: &Client, namespace: &str, name: &str) -> Result<UnitView, Failure> {
    let answer = client.get_whole_unit(namespace, name).await.map_err(|failure| match failure.code {
        Code::NotFound => failure.hint(LIST_UNITS),
        _ => failure,
    })?;
    let mut view = UnitView::described(&answer).at(SystemClock::new().wall_ms());
    let spec = answer.unit.as_ref().and_then(|unit| unit.spec.as_ref());
    if let Some(spec) = spec {
        view.topology = topology::reached(client, spec, &view.running_units).await;
    }
    if let Some(turn) = answer.unit.as_ref().and_then(|unit| unit.turn) {
        // A binder that is away leaves the number open.
        let gathering = client.binder_status().await.map(|status| status.gathering).unwrap_or_default();
        let held = gathering.iter().find(|gang| gang.unit_id == view.unit_id).map(|gang| gang.held);
        view.waits_for = turn_text(turn, held);
    }
    Ok(view)
}

/// `holds 3 of 8 places on 4 nodes since … until …`.
fn turn_text(turn: v1::UnitTurn, held: Option<u32>) -> String {
    let v1::UnitTurn { places, nodes, since_ms, until_ms } = turn;
    let held = held.map_or_else(|| "some".to_owned(), |held| held.to_string());
    let nodes = count(nodes, "node");
    let (since, until) = (output::time(since_ms), output::time(until_ms));
    format!("holds {held} of {places} places on {nodes} until {until}, since {since}")
}

fn describe_text(view: &UnitView, format: Format, paint: Paint) -> String {
    let mut text = fields(10, view);
    if !view.principal.is_empty() {
        text.push_str(&field(10, "principal", &view.principal));
    }
    if !view.sub_cluster.is_empty() {
        text.push_str(&field(10, "sub-cluster", &view.sub_cluster));
    }
    if !view.topology.is_empty() {
        text.push_str(&field(10, "topology", &view.topology));
    }
    if !view.ended.is_empty() {
        text.push_str(&field(10, "ended", &format!("by the dispatcher: {}", view.ended)));
    }
    if !view.replacements.is_empty() {
        text.push_str(&field(10, "starting", &view.replacements.join(", ")));
    }
    if !view.preempted_by.is_empty() {
        text.push_str(&field(10, "preempted", &format!("by {}", view.preempted_by.join(", "))));
    }
    if !view.waits_for.is_empty() {
        text.push_str(&format!("\n{}\n", paint.bold(&shown(&view.waits_for))));
    } else if let Some(refusals) = view.refusals.as_ref().filter(|_| view.pending > 0) {
        let heading = if refusals.reasons.iter().any(|reason| reason.plugin == "queue") {
            "why it waits: no room in its queue".to_owned()
        } else if refusals.reasons.iter().any(|reason| reason.plugin == "pause") {
            "why it waits: it is paused".to_owned()
        } else {
            let nodes = count(refusals.nodes, "node");
            format!("why it waits: {nodes} refused it (tries: {})", refusals.attempts)
        };
        text.push_str(&format!("\n{}\n", paint.bold(&heading)));
        let rows: Vec<Vec<String>> = refusals
            .reasons
            .iter()
            .map(|reason| vec![reason.nodes.to_string(), reason.plugin.clone(), reason.reason.clone()])
            .collect();
        text.push_str(&output::columns(&["NODES", "PLUGIN", "REASON"], &rows));
        if !refusals.nearest_miss.is_empty() {
            text.push_str(&format!("nearest miss: {}\n", shown(&refusals.nearest_miss)));
        }
    }
    if !view.task_groups.is_empty() {
        text.push_str(&format!("\n{}\n", paint.bold("task groups")));
        text.push_str(&output::table::<TaskGroupView>(format, &view.task_groups));
    }
    if !view.running_units.is_empty() {
        text.push_str(&format!("\n{}\n", paint.bold("running units")));
        text.push_str(&output::table::<RunningUnitView>(format, &view.running_units));
        text.push_str(&advice_text(&view.running_units));
    }
    text.push_str(&evictions_text(&view.running_units, paint));
    text
}

/// What to do about the ends of replicas, each reason once.
fn advice_text(running_units: &[RunningUnitView]) -> String {
    let reasons = RunEndReason::ALL.into_iter().filter_map(|reason| Some((reason.name(), reason.advice()?)));
    let is_shown = |reason: &str| running_units.iter().any(|run| run.reason == reason);
    let lines = reasons.filter(|(reason, _)| is_shown(reason));
    lines.map(|(reason, advice)| format!("{reason}: {advice}\n")).collect()
}

/// Which replicas were evicted last, why and by whom; nothing where none was.
fn evictions_text(running_units: &[RunningUnitView], paint: Paint) -> String {
    let evicted = running_units.iter().filter_map(|run| Some((run.ordinal, run.last_eviction.as_ref()?)));
    let mut rows: Vec<Vec<String>> = evicted
        .map(|(ordinal, last)| {
            vec![ordinal.to_string(), last.incarnation.to_string(), last.reason.clone(), last.by.clone()]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let n_more = rows.len().saturating_sub(N_EVICTIONS_SHOWN);
    rows.truncate(N_EVICTIONS_SHOWN);
    let columns = output::columns(&["ORDINAL", "INCARNATION", "REASON", "BY"], &rows);
    let more = if n_more > 0 { format!("and {n_more} more: see `-o json`\n") } else { String::new() };
    format!("\n{}\n{columns}{more}", paint.bold("last evictions"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describe_says_why_a_unit_waits() {
        let unit = v1::Unit {
            counts: Some(v1::UnitCounts { replicas: 1, pending: 1, ..v1::UnitCounts::default() }),
            phase: v1::UnitPhase::Unschedulable.into(),
            refusals: Some(v1::Refusals {
                reasons: vec![
                    v1::RefusalCount {
                        plugin: "device".to_owned(),
                        reason: "no free gpu".to_owned(),
                        nodes: 1213,
                    },
                    v1::RefusalCount {
                        plugin: "resources-fit".to_owned(),
                        reason: "insufficient cpu".to_owned(),
                        nodes: 310,
                    },
                ],
                nearest_miss: "node-7 lacks gpu (0.46 free of 0.5 asked)".to_owned(),
                nodes: 1523,
                attempts: 2,
            }),
            ..v1::Unit::default()
        };
        let text = describe_text(&UnitView::from(&unit), Format::Table, Paint::plain());
        for expected in [
            "why it waits: 1523 nodes refused it (tries: 2)",
            "1213   device         no free gpu",
            "310    resources-fit  insufficient cpu",
            "nearest miss: node-7 lacks gpu (0.46 free of 0.5 asked)",
        ] {
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn describe_says_whose_a_unit_is_and_what_to_do_where_it_may_not_run() {
        let status = v1::UnitStatus { principal: "yarn/y1".to_owned(), ..v1::UnitStatus::default() };
        let unit = v1::Unit { status: Some(status), ..v1::Unit::default() };
        let refused = v1::RunningUnit {
            reason: v1::RunEndReason::PrincipalNotPermitted.into(),
            ..v1::RunningUnit::default()
        };
        let answer = v1::GetUnitResponse {
            unit: Some(unit),
            running_units: vec![refused.clone(), refused],
            ..v1::GetUnitResponse::default()
        };
        let text = describe_text(&UnitView::described(&answer), Format::Table, Paint::plain());
        assert!(
            text.lines().any(|line| line.starts_with("principal") && line.ends_with("yarn/y1")),
            "{text}"
        );
        let advice = "principal-not-permitted: the agent of the node does not run as root";
        assert_eq!(text.matches(advice).count(), 1, "{text}");
    }

    #[test]
    fn a_description_shows_what_came_from_elsewhere_as_it_is() {
        let nasty = || output::NASTY.to_owned();
        let view = |waits_for: String| {
            let refusals = v1::Refusals {
                reasons: vec![v1::RefusalCount { plugin: nasty(), reason: nasty(), nodes: 1 }],
                nearest_miss: nasty(),
                nodes: 1,
                attempts: 1,
            };
            let unit = v1::Unit {
                counts: Some(v1::UnitCounts { replicas: 1, pending: 1, ..v1::UnitCounts::default() }),
                refusals: Some(refusals),
                waits_for,
                preempted_by: vec![nasty()],
                sub_cluster: nasty(),
                ..v1::Unit::default()
            };
            let by = v1::LastEviction { by: nasty(), ..v1::LastEviction::default() };
            let running_units = vec![v1::RunningUnit {
                node: nasty(),
                last_eviction: Some(by),
                ..v1::RunningUnit::default()
            }];
            UnitView::described(&v1::GetUnitResponse {
                unit: Some(unit),
                running_units,
                ..v1::GetUnitResponse::default()
            })
        };
        for view in [view(String::new()), view(nasty())] {
            let text = describe_text(&view, Format::Wide, Paint::plain());
            output::assert_shown(&text);
            assert!(!text.lines().any(|line| line.trim_start().starts_with("\\u{9b}c")), "{text}");
        }
    }

    #[test]
    fn files_are_checked_without_a_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("web.yaml");
        std::fs::write(&path, "name: web\ntemplate:\n  requets: {cpu: 1}\n").unwrap();
        let failure = validate(std::slice::from_ref(&path), Format::Table).unwrap_err();
        assert_eq!(failure.code, Code::Usage);
        let expected = "web.yaml:3:3: template: unknown key `requets`: did you mean `requests`?";
        assert!(failure.message.ends_with(expected), "{failure}");
        std::fs::write(&path, "name: web\ntemplate:\n  requests: {cpu: 1}\n").unwrap();
        assert_eq!(validate(&[path], Format::Table), Ok(()));
        assert!(validate(&[dir.path().join("no.yaml")], Format::Table).is_err());
    }
}
