//! `godel reschedule`: policies, plans and movements of the rescheduler, through state.

use std::path::Path;

use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::{self, Format, count},
    reschedule,
    views::{MovementView, ReschedulePlanView, ReschedulePolicyView, RescheduleStatusView},
};
use godel_proto::v1;
use serde::Serialize;

use super::{
    describe_each,
    each::{Done, LIST_UNITS, each},
    print_described,
    unit::read,
};
use crate::args::{
    reschedule::{MakeRoom, MovementList, Movements, Reschedule},
    split,
};

const MOVEMENT: &str = "movement";
/// What helps where a policy is not found.
const LIST_POLICIES: &str = "`godel reschedule policies` shows what there is";

/// What a run came to, as JSON.
#[derive(Serialize)]
struct RunView {
    /// The movement that was created; empty: nothing is moved.
    movement: String,
    /// Why nothing is moved.
    why_not: String,
    /// The plan of the run; absent: none was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<ReschedulePlanView>,
}

/// What became of a report of traffic, as JSON.
#[derive(Serialize)]
struct TrafficView {
    /// Pairs that the file has.
    reported: usize,
    /// Pairs that are known now.
    known: u64,
}

pub(super) async fn run(client: &Client, verb: Reschedule, format: Format) -> Result<(), Failure> {
    match verb {
        Reschedule::Policies => {
            let policies = reschedule::list_policies(client).await?;
            output::print_views::<ReschedulePolicyView, _>(format, &policies, "policies")
        }
        Reschedule::Plan { name } => {
            let plan =
                reschedule::plan(client, &name).await.map_err(|failure| hinted(failure, LIST_POLICIES))?;
            print_plan(format, &ReschedulePlanView::from(&plan))
        }
        Reschedule::Run { name } => {
            let ran =
                reschedule::run(client, &name).await.map_err(|failure| hinted(failure, LIST_POLICIES))?;
            let v1::RunPolicyResponse { movement, why_not, plan } = ran;
            print_run(format, movement, why_not, plan.as_ref())
        }
        Reschedule::MakeRoom(wanted) => make_room(client, &wanted, format).await,
        Reschedule::Status => {
            let view = RescheduleStatusView::from(&reschedule::status(client).await?);
            output::show(format, &view, || view.text())
        }
        Reschedule::Movements(verb) => movements(client, verb, format).await,
        Reschedule::Traffic { file } => traffic(client, &file, format).await,
    }
}

async fn make_room(client: &Client, wanted: &MakeRoom, format: Format) -> Result<(), Failure> {
    let (namespace, unit) = split(&wanted.namespace, &wanted.name);
    let request = v1::MakeRoomForRequest {
        namespace: namespace.to_owned(),
        unit: unit.to_owned(),
        dry_run: wanted.dry_run,
    };
    let made = reschedule::make_room(client, request).await.map_err(|failure| match failure.code {
        Code::Failed => {
            failure.hint("`godel unit list --phase unschedulable` shows which units wait for a place")
        }
        _ => hinted(failure, LIST_UNITS),
    })?;
    let v1::MakeRoomForResponse { movement, why_not, plan } = made;
    match plan {
        Some(plan) if wanted.dry_run => print_plan(format, &ReschedulePlanView::from(&plan)),
        plan => print_run(format, movement, why_not, plan.as_ref()),
    }
}

async fn movements(client: &Client, verb: Movements, format: Format) -> Result<(), Failure> {
    let not_found = |failure| hinted(failure, "`godel reschedule movements list` shows what there is");
    match verb {
        Movements::List(MovementList { policy, limit }) => {
            let (movements, is_more) = reschedule::list_movements(client, &policy, limit).await?;
            output::print_views::<MovementView, _>(format, &movements, "movements")?;
            if is_more {
                output::say(format!("the newest {}; --limit shows more", movements.len()));
            }
            Ok(())
        }
        Movements::Describe { names } => {
            let found = describe_each(&names, async |name| {
                let movement = reschedule::movement(client, &name).await.map_err(not_found)?;
                Ok(MovementView::from(&movement))
            });
            print_described(format, MOVEMENT, found.await, |view| view.text(format))
        }
        Movements::Abort { names, reason } => {
            let aborted = each(format, MOVEMENT, &names, async |name| {
                let aborted = reschedule::abort(client, &name, &reason).await;
                aborted.map_err(|failure| match failure.code {
                    Code::Failed => failure
                        .hint(format!("`godel reschedule movements describe {name}` shows what it came to")),
                    _ => not_found(failure),
                })?;
                Ok(Done::at("aborted", 0))
            });
            aborted.await.map(drop)
        }
    }
}

async fn traffic(client: &Client, file: &Path, format: Format) -> Result<(), Failure> {
    let text = read(file)?;
    let traffic = reschedule::read_traffic(&text).map_err(|wrong| {
        let lines: Vec<String> = wrong.iter().map(|line| format!("{}: {line}", file.display())).collect();
        Failure::usage(lines.join("\n")).hint("nothing was reported")
    })?;
    let view =
        TrafficView { reported: traffic.len(), known: reschedule::report_traffic(client, &traffic).await? };
    match format {
        Format::Table | Format::Wide => {
            output::say(format!(
                "traffic of {} reported; {} known",
                count(view.reported, "pair"),
                count(view.known, "pair")
            ));
            Ok(())
        }
        Format::Json | Format::Yaml => output::print_value(format, &view),
    }
}

fn hinted(failure: Failure, hint: &str) -> Failure {
    match failure.code {
        Code::NotFound => failure.hint(hint),
        _ => failure,
    }
}

fn print_plan(format: Format, view: &ReschedulePlanView) -> Result<(), Failure> {
    output::show(format, view, || view.text(format == Format::Wide))
}

/// Prints what a run came to: its plan, and the movement or why there is none.
fn print_run(
    format: Format,
    movement: String,
    why_not: String,
    plan: Option<&v1::ReschedulePlan>,
) -> Result<(), Failure> {
    let plan = plan.map(ReschedulePlanView::from);
    match format {
        Format::Table | Format::Wide => {
            if let Some(plan) = &plan {
                print_plan(format, plan)?;
            }
            if movement.is_empty() {
                output::say(format!("nothing is moved: {}", output::shown(&why_not)));
            } else {
                let movement = output::shown(&movement);
                output::say(format!(
                    "movement {movement} created; `godel reschedule movements describe {movement}` shows how far it is"
                ));
            }
            Ok(())
        }
        Format::Json | Format::Yaml => output::print_value(format, &RunView { movement, why_not, plan }),
    }
}
