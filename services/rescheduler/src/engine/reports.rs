//! Reports of checkpoints: which running units are meant, and what becomes of each report.

use std::sync::Arc;

use godel_base::{duration, ids::RunningUnitId, time::Millis};
use godel_domain::unit::{TaskGroup, UnitRecord};
use godel_kit::status;
use godel_proto::v1;
use godel_wire::BadField;
use tonic::Status;

use super::{Engine, show::unknown};
use crate::{
    checkpoints::Reported,
    picture::{Picture, began_at},
};

/// How far in the future a checkpoint may be: clocks differ.
const CLOCK_SKEW_MS: i64 = 10_000;

/// The replicas that a report means.
struct Meant {
    record: Arc<UnitRecord>,
    /// Only of this task group, by position.
    group: Option<usize>,
    /// Only this one.
    ordinal: Option<u32>,
    /// In words.
    said: String,
}

impl Engine {
    pub(crate) fn report_checkpoint(
        &mut self,
        request: v1::ReportCheckpointRequest,
    ) -> Result<v1::ReportCheckpointResponse, Status> {
        self.leads()?;
        let now = self.now_ms();
        let at_ms = request.time_ms.unwrap_or(now);
        let ahead_ms = at_ms.saturating_sub(now);
        if ahead_ms > CLOCK_SKEW_MS {
            let ahead = duration::show_ms(ahead_ms.unsigned_abs());
            let why = format!("the time is {ahead} in the future");
            return Err(status::invalid_argument([BadField::new("time_ms", why)]));
        }
        let meant = Meant::of(request, &self.picture)?;
        let response = meant.report(&mut self.picture, Millis(u64::try_from(at_ms).unwrap_or(0)));
        let v1::ReportCheckpointResponse { taken, began_later, known_later } = response;
        let why = match (taken, began_later, known_later) {
            (0, 0, 0) => "does not run",
            (0, _, 0) => "has begun since that checkpoint",
            _ => return Ok(response),
        };
        let why = format!("{} {why}", meant.said);
        Err(status::failed_precondition("UNIT", &meant.record.spec.name, why))
    }
}

impl Meant {
    /// # Errors
    /// NOT_FOUND: there is no such unit, task group or replica.
    fn of(request: v1::ReportCheckpointRequest, picture: &Picture) -> Result<Self, Status> {
        let v1::ReportCheckpointRequest { namespace, unit, task_group, ordinal, time_ms: _ } = request;
        let namespace = if namespace.is_empty() { "default".to_owned() } else { namespace };
        let name = format!("{namespace}/{unit}");
        let record = picture.unit_named(&namespace, &unit).ok_or_else(|| unknown("unit", &name))?;
        let is_named = |group: &TaskGroup| group.name == task_group;
        let group = match task_group.as_str() {
            "" => None,
            wanted => Some(
                record
                    .spec
                    .task_groups
                    .iter()
                    .position(is_named)
                    .ok_or_else(|| unknown("task group", &format!("{name}/{wanted}")))?,
            ),
        };
        let said = match ordinal {
            Some(ordinal) => format!("replica `{name}/{ordinal}`"),
            None if group.is_some() => format!("task group `{task_group}` of unit `{name}`"),
            None => format!("unit `{name}`"),
        };
        let meant = Self { record: Arc::clone(record), group, ordinal, said };
        match ordinal.filter(|ordinal| !meant.has(*ordinal)) {
            Some(ordinal) => Err(unknown("replica", &format!("{name}/{ordinal}"))),
            None => Ok(meant),
        }
    }

    fn has(&self, ordinal: u32) -> bool {
        let group = self.record.group_of(ordinal);
        group.is_some() && (self.group.is_none() || self.group == group)
    }

    /// Takes the report for each of them that runs, and counts what became of it.
    fn report(&self, picture: &mut Picture, at: Millis) -> v1::ReportCheckpointResponse {
        let mut response = v1::ReportCheckpointResponse::default();
        let unit = self.record.id;
        let Some(rows) = picture.cluster.rows().of(unit) else { return response };
        let ordinals: Vec<u32> = match self.ordinal {
            Some(ordinal) => vec![ordinal],
            None => rows.live().map(|(ordinal, _)| ordinal).filter(|ordinal| self.has(*ordinal)).collect(),
        };
        let checkpoints = Arc::make_mut(&mut picture.checkpoints);
        for ordinal in ordinals {
            let row = rows.row(ordinal);
            if !row.phase.is_live() {
                continue;
            }
            let id = RunningUnitId::new(unit, ordinal, row.incarnation);
            match checkpoints.report(id, began_at(rows, ordinal, &row), at) {
                Reported::Taken => response.taken += 1,
                Reported::BeganLater => response.began_later += 1,
                Reported::KnownLater => response.known_later += 1,
            }
        }
        response
    }
}
