//! `godel apply`: what files say is there afterwards. Queues and priority classes change together or not at all; then
//! disruption budgets and reservations are put and units submitted one by one, and what is there as given is left alone.

use godel_client::{
    access::Access,
    client::Client,
    exit::{Code, Failure},
    output::{self, Format, count, shown},
    unit_file::{self, Document},
    user,
};
use godel_kit::{client::FailedCall, status as rpc};
use godel_proto::v1;
use godel_wire::BadField;
use serde::Serialize;

use super::{
    budget::NamedBudgets,
    each::several,
    records,
    reservation::NamedReservations,
    unit::{DOCS, read},
};
use crate::args::queue::Apply;

/// A document applied, as JSON.
#[derive(Serialize)]
struct AppliedView {
    kind: &'static str,
    name: String,
    /// `created`, `updated`, `unchanged`, `ended` (a unit that is there as given and has ended) or `failed`.
    outcome: &'static str,
    revision: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
}

const FAILED: &str = "failed";
const ENDED: &str = "ended";

/// Documents by kind, each with where it stands.
#[derive(Default)]
struct LoadedDocuments {
    queues: Vec<(String, v1::Queue)>,
    classes: Vec<(String, v1::PriorityClass)>,
    budgets: Vec<(String, v1::DisruptionBudget)>,
    reservations: Vec<(String, v1::Reservation)>,
    units: Vec<(String, v1::UnitSpec)>,
}

pub(super) async fn run(access: &Access, apply: &Apply, format: Format) -> Result<(), Failure> {
    let loaded = load(apply)?;
    let client = Client::new(access)?;
    let mut views = queues(&client, &loaded).await?;
    let failures = one_by_one(&client, &loaded, &mut views).await;
    // What was done is told in any case.
    print(format, &views)?;
    ended(views.len(), failures)
}

/// Puts queues together or not at all, each with where it stands, and says what became of them.
pub(super) async fn put_queues(
    access: &Access,
    placed: Vec<(String, v1::Queue)>,
    format: Format,
) -> Result<(), Failure> {
    let loaded = LoadedDocuments { queues: placed, ..LoadedDocuments::default() };
    let views = queues(&Client::new(access)?, &loaded).await?;
    print(format, &views)
}

/// Every document is tried, whatever became of the others; what failed.
async fn one_by_one(client: &Client, loaded: &LoadedDocuments, views: &mut Vec<AppliedView>) -> Vec<Failure> {
    let mut failures = Vec::new();
    let mut note =
        |kind, name: &str, place: &str, applied: Result<(&'static str, u64), Failure>| match applied {
            Ok((outcome, revision)) => {
                views.push(AppliedView {
                    kind,
                    name: name.to_owned(),
                    outcome,
                    revision,
                    error: String::new(),
                });
            }
            Err(failure) => {
                let (name, error) = (name.to_owned(), failure.message.clone());
                views.push(AppliedView { kind, name, outcome: FAILED, revision: 0, error });
                failures.push(failure.during(shown(place)));
            }
        };
    for (place, budget) in &loaded.budgets {
        note("disruption-budget", &budget.name, place, records::apply::<NamedBudgets>(client, budget).await);
    }
    for (place, spec) in &loaded.reservations {
        note("reservation", &spec.name, place, records::apply::<NamedReservations>(client, spec).await);
    }
    for (place, unit) in &loaded.units {
        let name = unit.meta.as_ref().map_or("", |meta| meta.name.as_str());
        note("unit", name, place, submit(client, unit).await);
    }
    failures
}

/// How the command ends. Every failure says where its document stands.
fn ended(n_tried: usize, mut failures: Vec<Failure>) -> Result<(), Failure> {
    let Some(code) = Code::worst(failures.iter().map(|failure| failure.code)) else { return Ok(()) };
    if failures.len() == 1 {
        return Err(failures.remove(0));
    }
    for failure in &failures {
        output::say(&failure.message);
    }
    Err(several(code, format!("{} of {} failed", failures.len(), count(n_tried, "document")), &failures))
}

fn load(apply: &Apply) -> Result<LoadedDocuments, Failure> {
    let mut loaded = LoadedDocuments::default();
    let mut n_documents = 0;
    for path in &apply.files {
        let shown = path.display();
        let documents = unit_file::parse_manifest(&read(path)?).map_err(|mistakes| {
            Failure::usage(mistakes.of(path)).hint(format!("{DOCS}, queues in docs/queues.md"))
        })?;
        n_documents += documents.len();
        for (position, document) in documents {
            let place = |kind: &str, name: &str| format!("{shown} document {position} ({kind} {name})");
            match document {
                Document::Queue(queue) => {
                    let name = queue.meta.as_ref().map_or("", |meta| meta.name.as_str());
                    loaded.queues.push((place("queue", name), *queue));
                }
                Document::PriorityClass(class) => {
                    loaded.classes.push((place("priority class", &class.name), class));
                }
                Document::Budget(budget) => {
                    loaded.budgets.push((place("disruption budget", &budget.name), *budget));
                }
                Document::Reservation(spec) => {
                    loaded.reservations.push((place("reservation", &spec.name), *spec));
                }
                Document::Unit(unit) => {
                    let name = unit.meta.as_ref().map_or("", |meta| meta.name.as_str());
                    loaded.units.push((place("unit", name), *unit));
                }
            }
        }
    }
    if n_documents == 0 {
        return Err(Failure::usage("the files contain no documents"));
    }
    Ok(loaded)
}

async fn queues(client: &Client, loaded: &LoadedDocuments) -> Result<Vec<AppliedView>, Failure> {
    if loaded.queues.is_empty() && loaded.classes.is_empty() {
        return Ok(Vec::new());
    }
    let request = v1::ApplyQueuesRequest {
        queues: loaded.queues.iter().map(|(_, queue)| queue.clone()).collect(),
        priority_classes: loaded.classes.iter().map(|(_, class)| class.clone()).collect(),
    };
    let answer = client
        .try_queues(async |mut queues| queues.apply_queues(request.clone()).await)
        .await
        .map_err(|failed| placed(client, failed, loaded))?;
    let revision = answer.revision;
    let queues = loaded.queues.iter().zip(&answer.queues).map(|((_, queue), &outcome)| AppliedView {
        kind: "queue",
        name: queue.meta.as_ref().map_or("", |meta| meta.name.as_str()).to_owned(),
        outcome: word(outcome),
        revision,
        error: String::new(),
    });
    let classes = loaded.classes.iter().zip(&answer.priority_classes).map(|((_, class), &outcome)| {
        let (name, outcome, error) = (class.name.clone(), word(outcome), String::new());
        AppliedView { kind: "priority-class", name, outcome, revision, error }
    });
    Ok(queues.chain(classes).collect())
}

fn word(outcome: i32) -> &'static str {
    match v1::ApplyOutcome::try_from(outcome).unwrap_or_default() {
        v1::ApplyOutcome::Created => "created",
        v1::ApplyOutcome::Updated => "updated",
        v1::ApplyOutcome::Unchanged | v1::ApplyOutcome::Unspecified => "unchanged",
    }
}

/// Says of what is wrong with `queues[3]` where that stands.
fn placed(client: &Client, failed: FailedCall, loaded: &LoadedDocuments) -> Failure {
    let mut violations = rpc::violations_of(&failed.status);
    violations.extend(rpc::preconditions_of(&failed.status));
    let queues = loaded.queues.iter().map(|(place, _)| place).enumerate();
    let classes = loaded.classes.iter().map(|(place, _)| place).enumerate();
    let places: Vec<(String, &String)> = queues
        .map(|(idx, place)| (format!("queues[{idx}]."), place))
        .chain(classes.map(|(idx, place)| (format!("priority_classes[{idx}]."), place)))
        .collect();
    let line = |bad: &BadField| {
        let found = places.iter().find_map(|(path, place)| Some((bad.path.strip_prefix(path)?, place)));
        match found {
            Some((field, place)) => {
                let key = unit_file::key_of_record(field);
                format!("{place}: {}: {}", shown(&key), shown(&bad.description))
            }
            None => shown(format!("{} {}", bad.path, bad.description).trim()).into_owned(),
        }
    };
    let lines: Vec<String> = violations.iter().map(line).collect();
    let mut failure = client.explain_leader("dispatcher", failed);
    if !lines.is_empty() {
        failure.message = lines.join("\n");
    }
    match failure.code {
        Code::Usage | Code::Failed => failure.hint("nothing was changed"),
        _ => failure,
    }
}

async fn submit(client: &Client, unit: &v1::UnitSpec) -> Result<(&'static str, u64), Failure> {
    let mut unit = unit.clone();
    if !unit.generate_name.is_empty() {
        let said = "a generated name is another one each time: give `name`, or use `godel unit submit -f`";
        return Err(Failure::usage(said));
    }
    let meta = unit.meta.get_or_insert_default();
    let has_owner = !meta.owner.is_empty();
    if !has_owner {
        meta.owner = user::default_owner(client);
    }
    if meta.namespace.is_empty() {
        // As the server would, so that it can be compared with the one that is there.
        meta.namespace = user::namespace(client, "").await;
    }
    if meta.uid.is_empty() {
        // Chosen here, so that a lost answer can be asked for again.
        meta.uid = uuid::Uuid::now_v7().to_string();
    }
    let (namespace, name) = (meta.namespace.clone(), meta.name.clone());
    let submitted = client
        .units(async |mut service| {
            service.submit_unit(v1::SubmitUnitRequest { unit: Some(unit.clone()) }).await
        })
        .await;
    let taken = match submitted {
        Ok(answer) => return Ok((if answer.duplicate { "unchanged" } else { "created" }, answer.revision)),
        Err(failure) if failure.code == Code::Conflict => failure,
        Err(failure) => return Err(unit_file::in_keys(failure, &unit)),
    };
    // Under another name it is the uid that is taken.
    let Ok(known) = client.get_unit(&namespace, &name).await else { return Err(taken) };
    let known = known.unit.unwrap_or_default();
    let has_ended =
        matches!(known.phase(), v1::UnitPhase::Completed | v1::UnitPhase::Failed | v1::UnitPhase::Cancelled);
    if let (false, Some(meta)) = (has_owner, &mut unit.meta) {
        // Who submitted it first is its owner, whoever applies the file again.
        let owner = known.spec.as_ref().and_then(|spec| spec.meta.as_ref()).map(|meta| meta.owner.clone());
        meta.owner = owner.unwrap_or_default();
    }
    let is_same = unit_file::is_same(&unit, &known);
    match (is_same, has_ended) {
        (true, false) => Ok(("unchanged", known.revision)),
        (true, true) => Ok((ENDED, known.revision)),
        // What the dispatcher says of it names the way out.
        (false, true) => Err(taken),
        (false, false) => {
            let hint = "`godel unit edit NAME -f FILE` changes what can be changed of it";
            Err(taken.hint(hint))
        }
    }
}

fn print(format: Format, views: &[AppliedView]) -> Result<(), Failure> {
    output::show(format, &views, || views.iter().map(line).collect::<String>())
}

fn line(view: &AppliedView) -> String {
    let AppliedView { kind, name, outcome, revision, error: _ } = view;
    let name = shown(name);
    match *outcome {
        FAILED => format!("{kind} {name} failed\n"),
        ENDED => format!(
            "{kind} {name} unchanged at revision {revision}: it has ended; `godel unit delete {name}` frees its name\n"
        ),
        outcome => format!("{kind} {name} {outcome} at revision {revision}\n"),
    }
}
