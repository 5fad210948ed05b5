//! Gangs that have waited for room for long ask for it by themselves, if the nodes alone keep them out.

use godel_base::ids::UnitId;
use godel_core_rescheduler::lacks_room_alone;
use godel_kit::task;
use godel_proto::v1::{self, unit_service_client::UnitServiceClient};
use tonic::Status;

use super::{Engine, outside::Outcome, plans::Job};

/// Lease of the leading dispatcher, which knows why units wait.
const DISPATCHER: &str = "dispatcher";

/// What the dispatcher says of a gang that waits.
pub(super) struct GangRefusals {
    gang: UnitId,
    /// Whether moves may help it.
    lacks_room: Result<bool, Status>,
}

impl Engine {
    /// Takes note of the gangs that wait; of none unless they may ask.
    pub(super) fn observe_gangs(&mut self) {
        let after_ms = self.parts.config.make_room_after.ms();
        let gangs = if after_ms > 0 { self.picture.waiting_gangs() } else { Default::default() };
        let now = self.now();
        self.requests.observe(&gangs, after_ms, now);
    }

    /// Asks the dispatcher what keeps the gang out that asks for room next.
    pub(super) fn look_at_a_gang(&mut self) {
        if !self.is_idle() || self.asking_gang.is_some() || self.manager.quiet_until_ms().is_some() {
            return;
        }
        let Some(gang) = self.requests.due(self.now()) else { return };
        let Some(record) = self.picture.units.get(&gang) else { return };
        let message = v1::GetUnitRequest {
            namespace: record.spec.namespace.clone(),
            name: record.spec.name.clone(),
            page_size: 1,
            page_token: String::new(),
        };
        self.asking_gang = Some(gang);
        let (directory, sender) = (self.parts.directory.clone(), self.outcomes.0.clone());
        task::spawn("rescheduler.gangs", async move {
            let answer = directory.call_leader(DISPATCHER, |channel| {
                let message = message.clone();
                let mut client = UnitServiceClient::new(channel);
                async move { client.get_unit(message).await }
            });
            let lacks_room = answer.await.map(|answer| {
                let unit = answer.into_inner().unit.unwrap_or_default();
                let refusals = unit.refusals.unwrap_or_default();
                // Another one may have the name by now.
                unit.unit_id == gang.0
                    && lacks_room_alone(refusals.reasons.iter().map(|refused| refused.plugin.as_str()))
            });
            // The engine may be gone.
            let _ = sender.send(Outcome::Gang(GangRefusals { gang, lacks_room })).await;
        });
    }

    pub(super) fn on_gang(&mut self, GangRefusals { gang, lacks_room }: GangRefusals) {
        self.asking_gang = None;
        match lacks_room {
            Ok(true) if self.term.is_some() => {
                return self.push_job(Job::Room { unit: gang, dry_run: false, reply: None });
            }
            Ok(_) => {}
            Err(status) => {
                tracing::debug!(code = ?status.code(), why = status.message(), "what keeps a gang out is not known");
            }
        }
        self.put_off(gang);
    }

    /// A gang that has asked asks again later.
    pub(super) fn put_off(&mut self, gang: UnitId) {
        let (after_ms, now) = (self.parts.config.make_room_after.ms(), self.now());
        self.requests.note_asked(gang, after_ms, now);
    }
}
