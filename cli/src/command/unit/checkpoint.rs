//! `godel unit checkpoint`: when running units saved their work last, reported to the rescheduler through state.

use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::{self, Format, count, shown},
    reschedule, user,
};
use godel_kit::clock::{Clock as _, SystemClock};
use godel_proto::v1;
use serde::Serialize;

use super::logs::ordinal_of;
use crate::{
    args::{CheckpointArgs, Moment, split},
    command::each::LIST_UNITS,
};

/// What became of a report, as JSON.
#[derive(Serialize)]
struct CheckpointView {
    /// The unit as `namespace/name`.
    unit: String,
    /// Running units whose last checkpoint it is.
    taken: u32,
    /// Running units that have begun since then.
    began_later: u32,
    /// Running units that have reported a later one already.
    known_later: u32,
}

pub(super) async fn run(client: &Client, wanted: &CheckpointArgs, format: Format) -> Result<(), Failure> {
    let (name, ordinal) = ordinal_of(&wanted.name);
    let namespace = user::namespace(client, &wanted.namespace).await;
    let (namespace, unit) = split(&namespace, name);
    let request = v1::ReportCheckpointRequest {
        namespace: namespace.to_owned(),
        unit: unit.to_owned(),
        task_group: wanted.group.clone(),
        ordinal,
        time_ms: wanted.at.map(time_ms),
    };
    let reported =
        reschedule::report_checkpoint(client, request).await.map_err(|failure| match failure.code {
            Code::NotFound if failure.message.starts_with("there is no unit") => failure.hint(LIST_UNITS),
            Code::NotFound | Code::Failed => {
                let unit = format!("{namespace}/{unit}");
                let unit = shown(&unit);
                failure.hint(format!("`godel unit describe {unit}` shows which replicas run, and since when"))
            }
            _ => failure,
        })?;
    let v1::ReportCheckpointResponse { taken, began_later, known_later } = reported;
    let view = CheckpointView { unit: format!("{namespace}/{unit}"), taken, began_later, known_later };
    match format {
        Format::Table | Format::Wide => {
            output::say(view.text());
            Ok(())
        }
        Format::Json | Format::Yaml => output::print_value(format, &view),
    }
}

fn time_ms(moment: Moment) -> i64 {
    match moment {
        Moment::Ago(ms) => SystemClock::new().wall_ms().saturating_sub(i64::try_from(ms).unwrap_or(i64::MAX)),
        Moment::Time(ms) => ms,
    }
}

impl CheckpointView {
    fn text(&self) -> String {
        let Self { unit, taken, began_later, known_later } = self;
        let mut text = format!("checkpoint of {} of unit {} reported", count(*taken, "replica"), shown(unit));
        if *began_later > 0 {
            text += &format!("; {} began later", count(*began_later, "replica"));
        }
        if *known_later > 0 {
            text += &format!("; a later one is known of {}", count(*known_later, "replica"));
        }
        text
    }
}
