//! Reports of checkpoints: which running units are meant, and what becomes of each report.

use std::sync::Arc;

use godel_base::{duration, time::Millis};
use godel_core_rescheduler_leader::{CheckpointCounts, ClusterPicture};
use godel_domain::unit::{TaskGroup, UnitRecord};
use godel_kit::status;
use godel_proto::v1;
use godel_wire::BadField;
use tonic::Status;

use super::{Engine, show::unknown};

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
        let meant = Meant::of(request, self.leader.picture())?;
        let at = Millis(u64::try_from(at_ms).unwrap_or(0));
        let is_meant = |ordinal| meant.is_of_group(ordinal);
        let picture = self.leader.picture_mut();
        let counts = picture.report_checkpoints(meant.record.id, meant.ordinal, is_meant, at);
        let CheckpointCounts { n_taken: taken, n_began_later: began_later, n_known_later: known_later } =
            counts;
        let why = match (taken, began_later, known_later) {
            (0, 0, 0) => "does not run",
            (0, _, 0) => "has begun since that checkpoint",
            _ => return Ok(v1::ReportCheckpointResponse { taken, began_later, known_later }),
        };
        let why = format!("{} {why}", meant.said);
        Err(status::failed_precondition("UNIT", &meant.record.spec.name, why))
    }
}

impl Meant {
    /// # Errors
    /// NOT_FOUND: there is no such unit, task group or replica.
    fn of(request: v1::ReportCheckpointRequest, picture: &ClusterPicture) -> Result<Self, Status> {
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
        match ordinal.filter(|ordinal| !meant.is_of_group(*ordinal)) {
            Some(ordinal) => Err(unknown("replica", &format!("{name}/{ordinal}"))),
            None => Ok(meant),
        }
    }

    /// Whether a replica is of the task group that is meant.
    fn is_of_group(&self, ordinal: u32) -> bool {
        let group = self.record.group_of(ordinal);
        group.is_some() && (self.group.is_none() || self.group == group)
    }
}
