//! Contact with state: what has to stop before state gives it away stops here.
//!
//! A node was last in contact when it sent the newest heartbeat or open that state has answered. State heard it
//! later than that, so whatever state counts from, this counts from earlier. That something arrives from state
//! says nothing: the way up may be cut while the way down is not.
//!
//! Each node has at most one look ahead of it, at the earliest moment at which something may have to stop. Looks
//! that are due come before anything else that a wake-up brings, hence also first after a pause of the process.

use godel_base::time::Millis;
use godel_proto::v1::{self, session_response::Message};

use super::Shard;

impl Shard {
    /// State has answered what this node sent at `sent`.
    pub(super) fn heard(&mut self, node: usize, sent: Millis) {
        // An answer to something that was never sent is none.
        if sent <= self.clock.now() {
            let age_ms = self.clock.now().since(sent);
            let slot = &mut self.slots[node];
            slot.contact = slot.contact.max(sent);
            // Keepers stop what has to stop when this agent cannot.
            if let Some(home) = &self.home {
                home.renew_contact(age_ms);
            }
        }
    }

    /// What the heartbeat of this moment asks state to send back; 0 while there is no need: nothing here stops
    /// without contact, or contact is young.
    pub(super) fn echo(&self, node: usize, now: Millis) -> u64 {
        let slot = &self.slots[node];
        let asks = !slot.held.is_empty() || slot.look_at.is_some() && self.is_contact_old(node, now);
        if asks { now.0 + 1 } else { 0 }
    }

    /// Whether contact would be older than three quarters of the lease at the next heartbeat. Where something may
    /// have to stop it never is: nothing has to before a whole lease.
    fn is_contact_old(&self, node: usize, now: Millis) -> bool {
        let slot = &self.slots[node];
        now.since(slot.contact) + slot.heartbeat_ms >= slot.lease_ms / 4 * 3
    }

    /// Whether an assignment or stop waits until contact is confirmed: a node on which nothing had to stop has not
    /// asked for a while, and what comes now would seem to be without contact since then. What comes after it
    /// waits too.
    pub(super) fn holds(&mut self, node: usize, message: &Message) -> bool {
        let now = self.clock.now();
        let is_first = self.slots[node].held.is_empty();
        let must_stop = |assignments: &v1::Assignments| {
            assignments.assignments.iter().any(|assignment| assignment.stop_after_disconnect_ms > 0)
        };
        let holds = match message {
            Message::Assign(assign) if is_first => must_stop(assign) && self.is_contact_old(node, now),
            Message::Assign(_) | Message::Stop(_) => !is_first,
            _ => false,
        };
        if holds {
            self.slots[node].held.push(message.clone());
            if is_first {
                self.send_heartbeat(node, now);
            }
        }
        holds
    }

    /// State sent back an echo.
    pub(super) fn on_echo(&mut self, node: usize, echo: u64) {
        if let Some(sent) = echo.checked_sub(1) {
            self.heard(node, Millis(sent));
            for message in std::mem::take(&mut self.slots[node].held) {
                self.obey(node, message);
            }
        }
    }

    /// Something on `node` has to stop after `stop_after_ms` without contact.
    pub(super) fn look_after(&mut self, node: usize, stop_after_ms: u32) {
        let slot = &mut self.slots[node];
        let at = slot.contact.plus(u64::from(stop_after_ms));
        if slot.look_at.is_none_or(|known| at < known) {
            slot.look_at = Some(at);
            self.looks.set(at, node);
        }
    }

    /// Stops what has been without contact for too long.
    pub(super) fn check_contact(&mut self) {
        let now = self.clock.now();
        while let Some(node) = self.looks.pop_due(now) {
            let slot = &mut self.slots[node];
            if slot.look_at.is_none_or(|at| at > now) {
                continue;
            }
            slot.look_at = None;
            let alone_ms = now.since(slot.contact);
            let mut actions = Vec::new();
            let next = slot.life.stop_without_contact(alone_ms, &mut actions);
            if !actions.is_empty() {
                tracing::warn!(node = %slot.name, n = actions.len(), alone_ms, "no contact for too long: stopping running units");
            }
            if let Some(stop_after_ms) = next {
                self.look_after(node, stop_after_ms);
            }
            self.act(node, actions);
            self.note(node);
        }
    }
}
