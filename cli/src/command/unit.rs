//! `godel unit`.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    time::Duration,
};

use godel_core::admission::stop::ORDINALS_MAX;
use godel_proto::v1::{self, unit_service_client::UnitServiceClient};
use serde::Serialize;
use tokio_stream::StreamExt as _;
use tonic::Response;

use super::wait;
use crate::{
    args::{Named, Submit, Unit},
    client::Client,
    exit::{Code, Failure},
    output::{self, Format, Paint, View as _},
    unit_file,
    views::{RunningUnitView, UnitView},
};

pub(super) async fn run(address: &str, unit: Unit, format: Format) -> Result<(), Failure> {
    // This one needs no server, and no address either.
    if let Unit::Validate { files } = &unit {
        return validate(files, format);
    }
    let client = Client::new(address)?;
    match unit {
        Unit::Submit(submit) => run_submit(&client, *submit, format).await,
        Unit::Validate { .. } => Ok(()),
        Unit::List { namespace, phase, selector, limit } => {
            list(&client, (namespace, phase, selector), limit, format).await
        }
        Unit::Describe(which) => {
            let (namespace, name) = which.split();
            describe(&client, namespace, name, format).await
        }
        Unit::Cancel(units) => change(&client, Change::Cancel, units).await,
        Unit::Suspend(units) => change(&client, Change::Suspend, units).await,
        Unit::Resume(units) => change(&client, Change::Resume, units).await,
        Unit::Stop { name, ordinals, namespace, revision } => {
            let (namespace, name) = name.split_once('/').unwrap_or((&namespace, &name));
            let request = v1::StopRunningUnitsRequest {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                // One more than is allowed is refused, and the rest need not be sent.
                ordinals: ordinals.into_iter().flatten().take(ORDINALS_MAX + 1).collect(),
                expected_revision: revision,
            };
            let call = |mut units: UnitServiceClient<_>| {
                let request = request.clone();
                async move { units.stop_running_units(request).await }
            };
            let answer = client.units(call).await?.into_inner();
            output::say(format!("running units of {name} stopped at revision {}", answer.revision));
            Ok(())
        }
        Unit::Scale { which, replicas, group, revision } => {
            let (namespace, name) = which.split();
            let request = v1::ScaleUnitRequest {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                task_group: group,
                replicas,
                expected_revision: revision,
            };
            let answer = client
                .units(|mut units| {
                    let request = request.clone();
                    async move { units.scale_unit(request).await }
                })
                .await
                .map(Response::into_inner)?;
            output::say(format!("unit {name} scaled to {replicas} at revision {}", answer.revision));
            Ok(())
        }
        Unit::Watch { name, namespace, count } => watch(&client, namespace, name, count, format).await,
        Unit::Wait { which, condition, timeout } => {
            let condition = wait::Condition::parse(&condition)?;
            let (namespace, name) = which.split();
            wait::until(&client, namespace, name, &condition, timeout).await
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
                text.push_str(&format!("{}: {}\n", unit.place, if unit.ok { "valid" } else { "invalid" }));
                let lines = if format == Format::Wide && unit.ok { &unit.defaults } else { &unit.violations };
                for line in lines {
                    text.push_str(&format!("  {line}\n"));
                }
            }
            output::print(&text)?;
        }
    }
    if n_wrong == 0 { Ok(()) } else { Err(Failure::usage(format!("{n_wrong} units are invalid")).hint(DOCS)) }
}

/// A submitted unit as JSON.
#[derive(Serialize)]
struct SubmittedView {
    name: String,
    unit_id: u64,
    uid: String,
    revision: u64,
    duplicate: bool,
    defaults: Vec<String>,
    infeasible: String,
}

async fn run_submit(client: &Client, submit: Submit, format: Format) -> Result<(), Failure> {
    let mut units: Vec<v1::UnitSpec> = match &submit.name {
        Some(_) => {
            let unit = unit_file::from_flags(&submit);
            vec![unit.map_err(|wrong| Failure::usage(wrong.join("\n")).hint(DOCS))?]
        }
        None => load(&submit.files)?.into_iter().map(|(_, spec)| spec).collect(),
    };
    for unit in &mut units {
        let meta = unit.meta.get_or_insert_default();
        if meta.namespace.is_empty() {
            meta.namespace.clone_from(&submit.namespace);
        }
        if meta.uid.is_empty() {
            // Chosen here, so that a lost answer can be asked for again.
            meta.uid = uuid::Uuid::now_v7().to_string();
        }
    }
    let mut views = Vec::new();
    for unit in &units {
        let name = unit.meta.as_ref().map_or("", |meta| meta.name.as_str()).to_owned();
        let answer = client
            .units(|mut service| {
                let request = v1::SubmitUnitRequest { unit: Some(unit.clone()) };
                async move { service.submit_unit(request).await }
            })
            .await
            .map_err(|failure| failure.during(format!("unit {name}")))?
            .into_inner();
        views.push(SubmittedView {
            name,
            unit_id: answer.unit_id,
            uid: answer.uid,
            revision: answer.revision,
            duplicate: answer.duplicate,
            defaults: answer.defaults,
            infeasible: answer.infeasible,
        });
    }
    match format {
        Format::Json | Format::Yaml => output::print_value(format, &views)?,
        Format::Table | Format::Wide => output::print(&submitted_text(&views, format))?,
    }
    if submit.wait {
        for (unit, view) in units.iter().zip(&views) {
            let namespace = unit.meta.as_ref().map_or("", |meta| meta.namespace.as_str());
            let namespace = if namespace.is_empty() { "default" } else { namespace };
            wait::until(client, namespace, &view.uid, &wait::Condition::Bound, submit.timeout).await?;
        }
    }
    Ok(())
}

fn submitted_text(views: &[SubmittedView], format: Format) -> String {
    let mut text = String::new();
    for view in views {
        let how = if view.duplicate { "had been submitted" } else { "submitted" };
        text.push_str(&format!(
            "unit {} {how} (id {}, revision {})\n",
            view.name, view.unit_id, view.revision
        ));
        if !view.infeasible.is_empty() {
            text.push_str(&format!("  no node could ever hold it: {}\n", view.infeasible));
        }
        if format == Format::Wide {
            for line in &view.defaults {
                text.push_str(&format!("  {line}\n"));
            }
        }
    }
    text
}

async fn list(
    client: &Client,
    (namespace, phase, selector): (Option<String>, Option<String>, Vec<(String, String)>),
    limit: usize,
    format: Format,
) -> Result<(), Failure> {
    let phase = phase.map(|word| wait::phase(&word)).transpose()?;
    let request = v1::ListUnitsRequest {
        namespace: namespace.unwrap_or_default(),
        phase: phase.unwrap_or_default().into(),
        label_selector: selector.into_iter().collect(),
        ..v1::ListUnitsRequest::default()
    };
    let (units, total) = client.list_units(request, limit).await?;
    let views: Vec<UnitView> = units.iter().map(UnitView::from).collect();
    output::print_list(format, &views, "units")?;
    if views.len() < total {
        output::say(format!("{} of {total} units; --limit shows more", views.len()));
    }
    Ok(())
}

async fn describe(client: &Client, namespace: &str, name: &str, format: Format) -> Result<(), Failure> {
    let answer = client.get_unit(namespace, name).await.map_err(|failure| match failure.code {
        Code::NotFound => failure.hint("`godel unit list` shows what there is"),
        _ => failure,
    })?;
    let mut view = UnitView::described(&answer);
    if let Some(turn) = answer.unit.as_ref().and_then(|unit| unit.turn) {
        // A binder that is away leaves the number open.
        let gathering = client.binder_status().await.map(|status| status.gathering).unwrap_or_default();
        let held = gathering.iter().find(|gang| gang.unit_id == view.unit_id).map(|gang| gang.held);
        view.waits_for = turn_text(turn, held);
    }
    match format {
        Format::Json | Format::Yaml => output::print_value(format, &view),
        Format::Table | Format::Wide => output::print(&describe_text(&view, format, Paint::stdout())),
    }
}

/// `holds 3 of 8 places on 4 nodes since … until …`.
fn turn_text(turn: v1::UnitTurn, held: Option<u32>) -> String {
    let v1::UnitTurn { places, nodes, since_ms, until_ms } = turn;
    let held = held.map_or_else(|| "some".to_owned(), |held| held.to_string());
    let nodes = if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") };
    let (since, until) = (output::time(since_ms), output::time(until_ms));
    format!("holds {held} of {places} places on {nodes} until {until}, since {since}")
}

fn describe_text(view: &UnitView, format: Format, paint: Paint) -> String {
    let mut text = String::new();
    let titles = UnitView::HEADERS.iter().chain(UnitView::WIDE);
    for (title, cell) in titles.zip(view.row().into_iter().chain(view.wide())) {
        text.push_str(&format!(
            "{:<10} {}\n",
            title.to_lowercase(),
            if cell.is_empty() { "-" } else { &cell }
        ));
    }
    if !view.sub_cluster.is_empty() {
        text.push_str(&format!("{:<10} {}\n", "sub-cluster", view.sub_cluster));
    }
    if !view.ended.is_empty() {
        text.push_str(&format!("{:<10} by the dispatcher: {}\n", "ended", view.ended));
    }
    if !view.preempted_by.is_empty() {
        let by = view.preempted_by.join(", ");
        text.push_str(&format!("{:<10} by {by}\n", "preempted"));
    }
    if !view.waits_for.is_empty() {
        text.push_str(&format!("\n{}\n", paint.bold(&view.waits_for)));
    } else if let Some(refusals) = view.refusals.as_ref().filter(|_| view.pending > 0) {
        let heading = if refusals.reasons.iter().any(|reason| reason.plugin == "queue") {
            "why it waits: no room in its queue".to_owned()
        } else if refusals.reasons.iter().any(|reason| reason.plugin == "pause") {
            "why it waits: it is paused".to_owned()
        } else {
            format!("why it waits: {} nodes refused it (tries: {})", refusals.nodes, refusals.attempts)
        };
        text.push_str(&format!("\n{}\n", paint.bold(&heading)));
        let rows: Vec<Vec<String>> = refusals
            .reasons
            .iter()
            .map(|reason| vec![reason.nodes.to_string(), reason.plugin.clone(), reason.reason.clone()])
            .collect();
        text.push_str(&output::columns(&["NODES", "PLUGIN", "REASON"], &rows));
        if !refusals.nearest_miss.is_empty() {
            text.push_str(&format!("nearest miss: {}\n", refusals.nearest_miss));
        }
    }
    if !view.running_units.is_empty() {
        text.push_str(&format!("\n{}\n", paint.bold("running units")));
        text.push_str(&output::table::<RunningUnitView>(format, &view.running_units));
    }
    text
}

/// What units are told that takes nothing but their names.
#[derive(Clone, Copy)]
enum Change {
    Cancel,
    Suspend,
    Resume,
}

/// One after the other, until the first failure.
async fn change(client: &Client, change: Change, units: Named) -> Result<(), Failure> {
    let Named { names, namespace, revision } = units;
    for name in &names {
        let (namespace, name) = name.split_once('/').unwrap_or((&namespace, name));
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let expected_revision = revision;
        let said = match change {
            Change::Cancel => {
                let request = v1::CancelUnitRequest { namespace, name: name.clone(), expected_revision };
                let call = |mut units: UnitServiceClient<_>| {
                    let request = request.clone();
                    async move { units.cancel_unit(request).await }
                };
                ("cancelled", client.units(call).await?.into_inner().revision)
            }
            Change::Suspend => {
                let request = v1::SuspendUnitRequest { namespace, name: name.clone(), expected_revision };
                let call = |mut units: UnitServiceClient<_>| {
                    let request = request.clone();
                    async move { units.suspend_unit(request).await }
                };
                ("suspended", client.units(call).await?.into_inner().revision)
            }
            Change::Resume => {
                let request = v1::ResumeUnitRequest { namespace, name: name.clone(), expected_revision };
                let call = |mut units: UnitServiceClient<_>| {
                    let request = request.clone();
                    async move { units.resume_unit(request).await }
                };
                ("resumed", client.units(call).await?.into_inner().revision)
            }
        };
        output::say(format!("unit {name} {} at revision {}", said.0, said.1));
    }
    Ok(())
}

/// Prints each change until interrupted; a lost connection goes on where it was.
async fn watch(
    client: &Client,
    namespace: String,
    name: String,
    count: Option<usize>,
    format: Format,
) -> Result<(), Failure> {
    let mut left = count.unwrap_or(usize::MAX);
    let mut from_revision = 0;
    let mut n_failures = 0;
    let titles = ["REVISION", "NAME", "PHASE", "READY", "PENDING", "SUCCEEDED", "FAILED"];
    if matches!(format, Format::Table | Format::Wide) {
        output::print(&watch_line(&titles.map(str::to_owned)))?;
    }
    while left > 0 {
        let request =
            v1::WatchUnitsRequest { namespace: namespace.clone(), name: name.clone(), from_revision };
        let opened = client
            .units(|mut units| {
                let request = request.clone();
                async move { units.watch_units(request).await }
            })
            .await;
        let mut stream = opened?.into_inner();
        let status = loop {
            match stream.next().await {
                None => break tonic::Status::unavailable("the watch ended"),
                Some(Err(status)) => break status,
                Some(Ok(answer)) => {
                    n_failures = 0;
                    for unit in &answer.units {
                        show_change(&UnitView::from(unit), format)?;
                        left -= 1;
                        if left == 0 {
                            return Ok(());
                        }
                    }
                    from_revision = answer.revision + 1;
                }
            }
        };
        n_failures += 1;
        if n_failures > 10 || !godel_kit::status::is_retryable_idempotent(&status) {
            return Err(client.explain(status));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

fn show_change(view: &UnitView, format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => {
            let line = serde_json::to_string(view).map_err(|error| Failure::failed(error.to_string()))?;
            output::print(&(line + "\n"))
        }
        Format::Yaml => output::print("---\n").and_then(|()| output::print_value(format, view)),
        Format::Table | Format::Wide => output::print(&watch_line(&[
            view.revision.to_string(),
            view.shown(),
            view.phase.clone(),
            format!("{}/{}", view.running, view.replicas),
            view.pending.to_string(),
            view.succeeded.to_string(),
            view.failed.to_string(),
        ])),
    }
}

fn watch_line(cells: &[String; 7]) -> String {
    let [revision, name, phase, ready, pending, succeeded, failed] = cells;
    format!("{revision:<9} {name:<30} {phase:<14} {ready:<10} {pending:<8} {succeeded:<10} {failed}\n")
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
