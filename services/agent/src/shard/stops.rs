//! Stops that state sends: at once, or after a notice.

use godel_proto::v1;

use super::{Shard, Timer};
use crate::life::{Key, Notice};

impl Shard {
    pub(super) fn on_stops(&mut self, node: usize, stops: &v1::StopRequests) {
        let mut actions = Vec::new();
        for stop in &stops.stops {
            let v1::StopRequest { unit_id, ordinal, incarnation, grace_ms, notice_ms } = *stop;
            let key = Key { unit: unit_id, ordinal };
            let life = &mut self.slots[node].life;
            if stops.left_over {
                life.abandon(key, incarnation, grace_ms, &mut actions);
                continue;
            }
            let notice = if notice_ms > 0 { life.notice(key, incarnation) } else { Notice::Useless };
            match notice {
                Notice::Given => {
                    let at = self.clock.now().plus(u64::from(notice_ms));
                    self.timers.set(at, Timer::Stop { node, key, incarnation, grace_ms });
                }
                Notice::GivenBefore => {}
                Notice::Useless => life.stop(key, incarnation, grace_ms, &mut actions),
            }
        }
        self.act(node, actions);
    }

    pub(super) fn stop_noticed(&mut self, node: usize, key: Key, incarnation: u32, grace_ms: u32) {
        let mut actions = Vec::new();
        self.slots[node].life.stop_noticed(key, incarnation, grace_ms, &mut actions);
        self.act(node, actions);
        self.note(node);
    }
}
