//! Streams of schedulers, on the loop's side.

use godel_core_dispatcher::{AttachRefusal, SessionId};
use godel_kit::status;
use godel_proto::v1;

use super::{DispatcherLeader, outgoing::Session};
use crate::requests::{AttachCall, SchedulerMessage};

impl DispatcherLeader<'_> {
    pub(super) fn attach(&mut self, call: AttachCall) {
        let AttachCall { mut attach, messages, over, reply } = call;
        self.last_session += 1;
        let session = SessionId(self.last_session);
        attach.session = session;
        let (name, n_held) = (attach.name.clone(), attach.inventory.len());
        let now = self.now();
        match self.core.on_attached(attach, now) {
            Ok(()) => {
                tracing::info!(scheduler = name, n_held, "scheduler attached");
                let welcome = v1::AttachWelcome { epoch: self.epoch.0 };
                let welcome =
                    v1::AttachResponse { message: Some(v1::attach_response::Message::Welcome(welcome)) };
                let _ = messages.try_send(Ok(welcome));
                self.sessions.insert(session, Session::new(messages, over));
                if reply.send(Ok(session)).is_err() {
                    self.sessions.remove(&session);
                    self.core.on_detached(session);
                }
            }
            Err(AttachRefusal::StaleEpoch { asked, .. }) => {
                let _ = reply.send(Err(status::stale_epoch(&format!("scheduler/{name}"), asked.0)));
            }
        }
    }

    pub(super) fn on_scheduler(&mut self, session: SessionId, message: SchedulerMessage) {
        match message {
            SchedulerMessage::Credits(credits) => self.core.on_credits(session, credits),
            SchedulerMessage::Rooms(rooms) => self.core.on_rooms(session, &rooms),
            SchedulerMessage::Reports(reports) => {
                let now = self.now();
                for report in reports {
                    let unit = report.unit;
                    self.core.on_report(session, report, now);
                    self.check_owed(unit);
                }
            }
        }
    }
}
