//! The beginning of a term, and what is followed.

use godel_base::ids::UnitId;
use godel_core_rescheduler_leader::StoredMovements;
use godel_kit::informer::FollowEvent;
use godel_proto::v1::{self, record::Record};

use super::Engine;
use crate::record;

impl Engine {
    /// It is elected, has read everything up to the grant, and does not lead yet.
    pub(super) fn may_begin(&self) -> bool {
        let read = self.leader.picture().read();
        let has_read = self.out.terms.valid_grant().is_some_and(|grant| read >= Some(grant.since));
        has_read && self.leader.may_lead()
    }

    /// Reads every movement, and leads.
    pub(super) async fn begin(&mut self) {
        let kinds = [v1::Kind::Movement, v1::Kind::MoveRate];
        let Some(records) = self.out.terms.list(&kinds).await else { return };
        let mut stored = StoredMovements::default();
        for found in records {
            match found {
                Record::Movement(pb) => {
                    let name = pb.name.clone();
                    match record::read(pb) {
                        Ok(movement) => stored.movements.push(movement),
                        Err(why) => {
                            self.out.metrics.records_unread.inc();
                            tracing::warn!(
                                movement = name,
                                why,
                                "a movement cannot be read, and is left alone"
                            );
                        }
                    }
                }
                Record::MoveRate(pb) => {
                    let times = pb.times_ms.iter().filter_map(|time| u64::try_from(*time).ok());
                    stored.rates.push((UnitId(pb.unit_id), times.collect()));
                }
                _ => {}
            }
        }
        self.leader.lead(stored, &mut self.out);
    }

    pub(super) fn on_follow(&mut self, event: FollowEvent) {
        match event {
            FollowEvent::Reset { store } => self.leader.reset(store, &mut self.out),
            FollowEvent::Loaded(records) => {
                for loaded in &records {
                    self.leader.picture_mut().load(&loaded.change, loaded.revision, loaded.create_time_ms);
                }
            }
            FollowEvent::Synced { revision } => self.leader.picture_mut().on_synced(revision),
            FollowEvent::Committed(commit) => self.leader.picture_mut().apply(&commit),
        }
    }
}
