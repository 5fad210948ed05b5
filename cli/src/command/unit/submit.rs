//! `godel unit submit`: few units call by call, many on one stream; what went in and what did not is told in any case.

use std::{io::IsTerminal as _, sync::Arc, time::Duration};

use godel_client::{
    bulk,
    client::Client,
    exit::{Code, Failure},
    output::{self, Format, are, count, one_or, shown},
    unit_file::{self, Submit},
    user,
};
use godel_domain::names;
use godel_proto::v1;
use serde::Serialize;
use tokio::time::Instant;

use super::{DOCS, load};
use crate::command::{each::several, wait};

/// From so many units on they go on one stream, which tells less of each and takes a tenth of the time.
const N_STREAM_MIN: usize = 256;
/// Without a terminal to draw on a line says how far it is this often.
const TELL_EVERY: Duration = Duration::from_secs(3);

/// What became of a unit, as JSON.
#[derive(Clone, Debug, Default, Serialize)]
struct SubmittedView {
    name: String,
    namespace: String,
    uid: String,
    /// `submitted`, `had been submitted`, `refused`, or `unknown` where the server went away.
    outcome: &'static str,
    /// Of units that are told one by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    unit_id: Option<u64>,
    revision: u64,
    duplicate: bool,
    defaults: Vec<String>,
    infeasible: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    /// Where it stands, and why it was refused.
    #[serde(skip_serializing_if = "String::is_empty")]
    place: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
}

const SUBMITTED: &str = "submitted";
const DUPLICATE: &str = "was submitted before";
const REFUSED: &str = "refused";
const UNKNOWN: &str = "unknown";

pub(super) async fn run(client: &Client, submit: Submit, format: Format) -> Result<(), Failure> {
    let mut units = units_of(&submit, &user::default_owner(client))?;
    let namespace = user::namespace(client, &submit.namespace).await;
    for (_, unit) in &mut units {
        let meta = unit.meta.get_or_insert_default();
        if meta.namespace.is_empty() {
            // As the server would, so that it can be told.
            meta.namespace.clone_from(&namespace);
        }
        if meta.uid.is_empty() {
            // Chosen here, so that a lost answer can be asked for again.
            meta.uid = uuid::Uuid::now_v7().to_string();
        }
    }
    let is_alone = units.len() == 1;
    let (views, failures) = if units.len() < N_STREAM_MIN {
        one_by_one(client, &units, format).await
    } else {
        in_bulk(client, units, format).await
    };
    match format {
        Format::Json | Format::Yaml => output::print_value(format, &views)?,
        Format::Table | Format::Wide => {}
    }
    if submit.wait {
        for view in views.iter().filter(|view| [SUBMITTED, DUPLICATE].contains(&view.outcome)) {
            wait::until(client, &view.namespace, &view.uid, &wait::WaitCondition::Bound, submit.timeout)
                .await
                .map_err(|failure| Failure {
                    message: failure.message.replace(&view.uid, &view.name),
                    ..failure
                })?;
        }
    }
    ended(&views, failures, is_alone)
}

/// The units of files, or one from flags; each with where it stands. Those that name no owner are of `owner`.
pub(super) fn units_of(submit: &Submit, owner: &str) -> Result<Vec<(String, v1::UnitSpec)>, Failure> {
    let mut units = match submit.name.as_ref().or(submit.generate_name.as_ref()) {
        Some(name) => {
            let unit = unit_file::from_flags(submit);
            let unit = unit.map_err(|wrong| Failure::usage(wrong.join("\n")).hint(DOCS))?;
            vec![(format!("unit {name}"), unit)]
        }
        None => load(&submit.files)?,
    };
    for (_, unit) in &mut units {
        let meta = unit.meta.get_or_insert_default();
        if meta.namespace.is_empty() {
            meta.namespace.clone_from(&submit.namespace);
        }
        if meta.owner.is_empty() {
            owner.clone_into(&mut meta.owner);
        }
        if !unit.generate_name.is_empty() {
            if meta.uid.is_empty() {
                meta.uid = uuid::Uuid::now_v7().to_string();
            }
            if let Some(uid) = names::uuid(&meta.uid) {
                // The dispatcher would say the same.
                meta.name = names::generated(&std::mem::take(&mut unit.generate_name), uid);
            }
        }
    }
    Ok(units)
}

fn view_of(place: &str, unit: &v1::UnitSpec) -> SubmittedView {
    let meta = unit.meta.clone().unwrap_or_default();
    SubmittedView {
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        place: place.to_owned(),
        ..SubmittedView::default()
    }
}

/// A call for each unit; a refusal does not keep the others from it, a server that is away does.
async fn one_by_one(
    client: &Client,
    units: &[(String, v1::UnitSpec)],
    format: Format,
) -> (Vec<SubmittedView>, Vec<Failure>) {
    let (mut views, mut failures) = (Vec::with_capacity(units.len()), Vec::new());
    let mut is_away = false;
    for (place, unit) in units {
        let mut view = view_of(place, unit);
        view.outcome = UNKNOWN;
        if is_away {
            views.push(view);
            continue;
        }
        let answer = client.units(async |mut service| {
            service.submit_unit(v1::SubmitUnitRequest { unit: Some(unit.clone()) }).await
        });
        match answer.await {
            Ok(answer) => {
                let v1::SubmitUnitResponse {
                    unit_id,
                    uid,
                    revision,
                    defaults,
                    infeasible,
                    duplicate,
                    warnings,
                    name: _,
                } = answer;
                let outcome = if duplicate { DUPLICATE } else { SUBMITTED };
                let (unit_id, place) = (Some(unit_id), String::new());
                let (name, namespace, error) = (view.name, view.namespace, view.error);
                view = SubmittedView {
                    name,
                    namespace,
                    uid,
                    outcome,
                    unit_id,
                    revision,
                    duplicate,
                    defaults,
                    infeasible,
                    warnings,
                    place,
                    error,
                };
            }
            Err(failure) => {
                let failure = unit_file::in_keys(failure, unit);
                is_away = matches!(failure.code, Code::Unreachable | Code::Timeout);
                view.outcome = if is_away { UNKNOWN } else { REFUSED };
                view.error.clone_from(&failure.message);
                failures.push(failure.during(shown(place)));
            }
        }
        tell(&view, units.len(), format);
        views.push(view);
    }
    (views, failures)
}

/// A line for a unit, at once. A single refusal is told at the end.
fn tell(view: &SubmittedView, n_units: usize, format: Format) {
    if !matches!(format, Format::Table | Format::Wide) {
        return;
    }
    if view.error.is_empty() {
        // Whoever does not read it hears of it at the end.
        let _unread = output::print(&line(view, format));
    } else if n_units > 1 {
        output::say(format!("{}: {}", shown(&view.place), view.error));
    }
}

/// All on one stream.
async fn in_bulk(
    client: &Client,
    units: Vec<(String, v1::UnitSpec)>,
    format: Format,
) -> (Vec<SubmittedView>, Vec<Failure>) {
    let mut views: Vec<SubmittedView> = units
        .iter()
        .map(|(place, unit)| SubmittedView { outcome: UNKNOWN, ..view_of(place, unit) })
        .collect();
    let specs = Arc::new(units.into_iter().map(|(_, unit)| unit).collect::<Vec<_>>());
    let bar = output::progress(views.len(), "submitted");
    let (is_drawn, all) = (std::io::stderr().is_terminal(), views.len());
    let (mut n_in, mut told) = (0, Instant::now());
    let mut durable = |fresh: &[usize], revision: u64| {
        for idx in fresh {
            (views[*idx].outcome, views[*idx].revision) = (SUBMITTED, revision);
        }
        n_in += fresh.len();
        bar.set_position(u64::try_from(n_in).unwrap_or(u64::MAX));
        if !is_drawn && told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            output::say(format!("{n_in} of {} submitted", count(all, "unit")));
        }
        Ok(())
    };
    let submitted = bulk::submit(client, Arc::clone(&specs), Arc::new(|_| {}), &mut durable).await;
    bar.finish_and_clear();
    let mut failures = Vec::new();
    match submitted {
        Ok(refused) => {
            for (idx, error) in refused {
                let failure = unit_file::in_keys(bulk::failure(&error), &specs[idx]);
                views[idx].outcome = REFUSED;
                views[idx].error.clone_from(&failure.message);
                failures.push(failure.during(shown(&views[idx].place)));
            }
        }
        Err(failure) => failures.push(failure),
    }
    if matches!(format, Format::Table | Format::Wide) {
        for view in &views {
            match view.outcome {
                REFUSED => output::say(format!("{}: {}", shown(&view.place), view.error)),
                _ if format == Format::Wide => {
                    let _unread = output::print(&line(view, format));
                }
                _ => {}
            }
        }
        let n_in = views.iter().filter(|view| view.outcome == SUBMITTED).count();
        let _unread = output::print(&format!("{} submitted\n", count(n_in, "unit")));
    }
    for view in views.iter_mut().filter(|view| view.outcome == SUBMITTED) {
        view.place.clear();
    }
    (views, failures)
}

fn line(view: &SubmittedView, format: Format) -> String {
    let id = view.unit_id.map_or_else(String::new, |id| format!("id {id}, "));
    let mut text = format!("unit {} {} ({id}revision {})\n", shown(&view.name), view.outcome, view.revision);
    if !view.infeasible.is_empty() {
        text.push_str(&format!("  no known node could ever fit it: {}\n", shown(&view.infeasible)));
    }
    for warning in &view.warnings {
        text.push_str(&format!("  warning: {}\n", shown(warning)));
    }
    if format == Format::Wide {
        for line in &view.defaults {
            text.push_str(&format!("  {}\n", shown(line)));
        }
    }
    text
}

/// How the command ends: what did not go in, and what did.
fn ended(views: &[SubmittedView], mut failures: Vec<Failure>, is_alone: bool) -> Result<(), Failure> {
    let Some(code) = Code::worst(failures.iter().map(|failure| failure.code)) else { return Ok(()) };
    if is_alone {
        return Err(failures.remove(0));
    }
    let n = |outcome: &str| views.iter().filter(|view| view.outcome == outcome).count();
    let (n_refused, n_unknown) = (n(REFUSED), n(UNKNOWN));
    let mut said = Vec::new();
    if n_refused > 0 {
        said.push(format!("{} {} refused", count(n_refused, "unit"), one_or(n_refused, "was", "were")));
    }
    if n_unknown > 0 {
        // The failure that ended it is the last one.
        let why = failures.last().map_or_else(String::new, |failure| format!(": {}", failure.message));
        said.push(format!("it is not known whether {} were accepted{why}", count(n_unknown, "unit")));
    }
    let n_in = views.len() - n_refused - n_unknown;
    said.push(format!("{} {} in", count(n_in, "unit"), are(n_in)));
    Err(several(code, said.join("; "), &failures))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_says_what_went_in_and_what_did_not() {
        let view = |outcome| SubmittedView { outcome, ..SubmittedView::default() };
        let views = [view(SUBMITTED), view(REFUSED), view(SUBMITTED), view(DUPLICATE)];
        assert_eq!(ended(&views, Vec::new(), false), Ok(()));
        let refused = Failure::usage("f.yaml document 2 (x): bad").hint("look");
        let failure = ended(&views, vec![refused.clone()], false).unwrap_err();
        let expect = "1 unit was refused; 3 units are in\nlook";
        assert_eq!((failure.code, failure.to_string().as_str()), (Code::Usage, expect));
        assert_eq!(ended(&[view(REFUSED)], vec![refused.clone()], true), Err(refused));
        let away = Failure::new(Code::Unreachable, "the submission: away");
        let failure = ended(&[view(SUBMITTED), view(UNKNOWN), view(UNKNOWN)], vec![away], false).unwrap_err();
        let expect = "it is not known whether 2 units were accepted: the submission: away; 1 unit is in";
        assert_eq!(failure.to_string(), expect);
    }

    #[test]
    fn a_line_says_what_became_of_a_unit() {
        let view = SubmittedView {
            name: "we\u{1b}b".to_owned(),
            outcome: SUBMITTED,
            unit_id: Some(7),
            revision: 9,
            ..SubmittedView::default()
        };
        assert_eq!(line(&view, Format::Table), "unit we\\u{1b}b submitted (id 7, revision 9)\n");
        let streamed = SubmittedView { unit_id: None, ..view };
        assert_eq!(line(&streamed, Format::Table), "unit we\\u{1b}b submitted (revision 9)\n");
    }
}
