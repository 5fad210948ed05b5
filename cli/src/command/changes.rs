//! `godel changes`: who changed what, and who was refused.

use godel_client::{
    changes,
    client::Client,
    exit::Failure,
    output::{self, Format, View, ViewColumn, shown, time},
    view,
};
use godel_kit::clock::{Clock as _, SystemClock};
use godel_proto::v1;

use crate::args::changes::ChangesArgs;

/// Changes that are listed unless asked otherwise.
const LIMIT: usize = 100;

view! {
    struct ChangeView from (logged: &v1::LoggedChange) with {
        let change = logged.change.clone().unwrap_or_default();
        let call = change.call.clone().unwrap_or_default();
        let method = short_method(&call.method).to_owned();
    } {
        time_ms: i64 = logged.time_ms,
        who: String = call.principal,
        method: String = method,
        objects: Vec<String> = call.objects,
        more_objects: u32 = call.more_objects,
        namespace: String = call.namespace,
        address: String = call.address,
        refused: String = change.refused,
        calls: u64 = change.calls,
        first_ms: i64 = change.first_ms,
        more_calls: u64 = change.more_calls,
        change_id: u64 = change.change_id,
    }
}

/// `SubmitUnit` of `/godel.v1.UnitService/SubmitUnit`; a page by HTTP stays as it is.
fn short_method(path: &str) -> &str {
    match path.strip_prefix("rest/") {
        Some(page) => page,
        None if path.contains(' ') => path,
        None => path.rsplit('/').next().unwrap_or_default(),
    }
}

impl View for ChangeView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("TIME", |view| time(view.time_ms)),
        ("WHO", |view| view.who.clone()),
        ("METHOD", |view| view.method.clone()),
        ("OBJECT", Self::objects_text),
        ("FROM", |view| view.address.clone()),
        ("RESULT", Self::result_text),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("CALLS", |view| view.calls.to_string()),
        ("FIRST", |view| if view.first_ms == 0 { String::new() } else { time(view.first_ms) }),
        ("NAMESPACE", |view| view.namespace.clone()),
        ("ID", |view| if view.change_id == 0 { String::new() } else { view.change_id.to_string() }),
    ];
}

impl ChangeView {
    fn objects_text(&self) -> String {
        let named = self.objects.join(", ");
        if self.more_objects == 0 { named } else { format!("{named} and {} more", self.more_objects) }
    }

    /// What became of the calls, and of how many.
    fn result_text(&self) -> String {
        let mut text = match self.refused.as_str() {
            "" => "done".to_owned(),
            why => format!("refused: {why}"),
        };
        if self.calls > 1 {
            text += &format!(" ({} calls)", self.calls);
        }
        if self.more_calls > 0 {
            text += &format!("; {} more refused", self.more_calls);
        }
        text
    }

    /// As a line of a log that is followed: columns cannot be as wide as what is still to come.
    fn line(&self) -> String {
        let from = if self.address.is_empty() { "-" } else { &self.address };
        let cells = [time(self.time_ms), self.who.clone(), self.method.clone(), self.objects_text()];
        let [time, who, method, objects] = cells.map(|cell| shown(&cell).into_owned());
        format!("{time}  {who:<12}  {method:<20}  {objects:<30}  {from:<21}  {}\n", self.result_text())
    }
}

pub(super) async fn run(client: &Client, wanted: ChangesArgs, format: Format) -> Result<(), Failure> {
    let ChangesArgs { who, object, since, refused, limit, follow } = wanted;
    let since_ms = since.map_or(0, |since| {
        let since = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
        SystemClock::new().wall_ms().saturating_sub(since)
    });
    let request = v1::ListChangesRequest {
        principal: who,
        object,
        since_ms,
        refused_only: refused,
        ..v1::ListChangesRequest::default()
    };
    if follow {
        let show = |change: &v1::LoggedChange| show(&ChangeView::from(change), format);
        return changes::follow(client, request, limit.unwrap_or(usize::MAX), show).await;
    }
    let (listed, is_more) = changes::list(client, &request, limit.unwrap_or(LIMIT)).await?;
    output::print_views::<ChangeView, _>(format, &listed, "changes")?;
    if is_more {
        output::say(format!("the newest {}; --limit shows more", listed.len()));
    }
    Ok(())
}

fn show(view: &ChangeView, format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => output::print_raw(&output::json_line(view)?),
        Format::Yaml => output::print_raw("---\n").and_then(|()| output::print_value(format, view)),
        Format::Table | Format::Wide => output::print(&view.line()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_shown_without_their_service() {
        for (path, shown) in [
            ("/godel.v1.UnitService/CancelUnit", "CancelUnit"),
            ("hadoop/ApplicationClientProtocol/forceKillApplication", "forceKillApplication"),
            ("rest/PUT /ws/v1/cluster/apps/ID/state", "PUT /ws/v1/cluster/apps/ID/state"),
            ("POST /policies/spread/run", "POST /policies/spread/run"),
            ("unknown", "unknown"),
        ] {
            assert_eq!(short_method(path), shown);
        }
    }

    #[test]
    fn a_line_says_who_did_what_and_what_became_of_it() {
        let call = v1::CallCause {
            principal: "ann".to_owned(),
            method: "/godel.v1.UnitService/CancelUnit".to_owned(),
            objects: vec!["unit/team-a/web".to_owned(), "unit/team-a/db".to_owned()],
            more_objects: 3,
            ..v1::CallCause::default()
        };
        let change = v1::ChangeRecord { call: Some(call), calls: 1, ..v1::ChangeRecord::default() };
        let view = |change: v1::ChangeRecord| {
            ChangeView::from(&v1::LoggedChange { time_ms: 0, change: Some(change) })
        };
        let done = view(change.clone());
        assert_eq!((done.method.as_str(), done.result_text().as_str()), ("CancelUnit", "done"));
        assert_eq!(done.objects_text(), "unit/team-a/web, unit/team-a/db and 3 more");
        let refused = v1::ChangeRecord { refused: "namespace".to_owned(), calls: 7, more_calls: 2, ..change };
        assert_eq!(view(refused).result_text(), "refused: namespace (7 calls); 2 more refused");
    }
}
