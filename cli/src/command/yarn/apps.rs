//! `godel yarn app` and `godel yarn queue`: what the YARN adapter has, through state.

use godel_client::{
    client::Client,
    exit::Failure,
    output::{self, Format},
    user,
    views::{YarnAppView, YarnAttemptView, YarnQueueView},
    yarn,
};
use godel_proto::v1;

use crate::{
    args::yarn::{YarnApp, YarnAppList, YarnQueueVerb},
    command::{
        describe_each,
        each::{Done, each},
        print_described,
        records::titled,
    },
};

const APPLICATION: &str = "application";
/// States that may be asked for, as they are written.
const STATES: [&str; 8] =
    ["new", "new-saving", "submitted", "accepted", "running", "finished", "failed", "killed"];

pub(super) async fn run(client: &Client, verb: YarnApp, format: Format) -> Result<(), Failure> {
    match verb {
        YarnApp::List(wanted) => list(client, wanted, format).await,
        YarnApp::Describe { ids } => {
            let found = describe_each(&ids, async |id| {
                let (app, attempts) = yarn::application(client, &id).await?;
                let attempts = attempts.iter().map(YarnAttemptView::from).collect();
                Ok(YarnAppView { attempts, ..YarnAppView::from(&app) })
            });
            print_described(format, APPLICATION, found.await, describe_text)
        }
        YarnApp::Kill { ids, user, reason } => {
            // Where callers are judged, the call is made as who makes it.
            let is_judged = !client.address().starts_with("http://");
            let user = user.unwrap_or_else(|| if is_judged { String::new() } else { user::name() });
            let killed = each(format, APPLICATION, &ids, async |id| {
                let (app, _) = yarn::application(client, &id).await?;
                if is_over(&app) {
                    return Ok(Done { said: Some("is over already"), ..Done::unchanged() });
                }
                let is_over = yarn::kill(client, &id, &user, &reason).await?;
                Ok(Done {
                    said: (!is_over).then_some("is being killed"),
                    ..Done::at(if is_over { "killed" } else { "killing" }, 0)
                })
            });
            killed.await.map(drop)
        }
    }
}

pub(super) async fn run_queue(client: &Client, verb: &YarnQueueVerb, format: Format) -> Result<(), Failure> {
    match verb {
        YarnQueueVerb::List => {
            let queues = yarn::list_queues(client).await?;
            output::print_views::<YarnQueueView, _>(format, &queues, "queues")
        }
    }
}

async fn list(client: &Client, wanted: YarnAppList, format: Format) -> Result<(), Failure> {
    let YarnAppList { states, users, queues, kinds, tags, name, limit } = wanted;
    let states: Result<Vec<i32>, Failure> = states.iter().map(|word| state(word).map(i32::from)).collect();
    let request = v1::ListApplicationsRequest {
        states: states?,
        users,
        queues,
        kinds,
        tags,
        name,
        ..v1::ListApplicationsRequest::default()
    };
    let (applications, is_more) = yarn::list_applications(client, request, limit).await?;
    output::print_views::<YarnAppView, _>(format, &applications, "applications")?;
    if is_more {
        output::say(format!("the newest {}; --limit shows more", applications.len()));
    }
    Ok(())
}

/// A state by its word, as YARN or as this command line writes it.
fn state(word: &str) -> Result<v1::YarnAppState, Failure> {
    let name = format!("YARN_APP_STATE_{}", word.trim().to_uppercase().replace('-', "_"));
    let known = v1::YarnAppState::from_str_name(&name);
    known.filter(|state| *state != v1::YarnAppState::Unspecified).ok_or_else(|| {
        let said = format!("--state: unknown state `{}`", output::shown(word));
        Failure::usage(said).hint(format!("states are {}", STATES.join(", ")))
    })
}

fn is_over(app: &v1::YarnApplicationStatus) -> bool {
    matches!(app.state(), v1::YarnAppState::Finished | v1::YarnAppState::Failed | v1::YarnAppState::Killed)
}

fn describe_text(view: &YarnAppView) -> String {
    let mut text = titled(view);
    text.push_str(&output::field_of_lines(13, "diagnostics", &view.diagnostics));
    if !view.attempts.is_empty() {
        text.push_str(&format!("\n{}", output::table(Format::Table, &view.attempts)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_in_any_way_of_writing() {
        for word in STATES {
            assert!(state(word).is_ok(), "{word}");
        }
        for word in ["RUNNING", "New_Saving", " killed "] {
            assert!(state(word).is_ok(), "{word}");
        }
        for word in ["", "unspecified", "over"] {
            let said = state(word).unwrap_err().to_string();
            assert!(said.contains("states are new, new-saving"), "{said}");
        }
    }
}
