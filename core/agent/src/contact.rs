//! Contact with state: what has to stop before state gives it away stops here.
//!
//! A node was last in contact when it sent the newest heartbeat or open that state has answered. State heard it
//! later than that, so whatever state counts from, this counts from earlier. That something arrives from state
//! says nothing: the way up may be cut while the way down is not.
//!
//! Each node has at most one look ahead of it, at the earliest moment at which something may have to stop. Looks
//! that are due come before anything else that a wake-up brings, hence also first after a pause of the process.

use godel_base::time::Millis;

use crate::{AgentAction, AgentOutbox};

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Contact {
    lease_ms: u64,
    pub(crate) heartbeat_ms: u64,
    /// The sending of the present session's open.
    opened: Millis,
    /// The sending of the newest message that state has answered.
    heard: Millis,
    /// When contact is looked at next; none while nothing has to stop without it.
    look_at: Option<Millis>,
}

impl Contact {
    /// An agent begins: what it finds running has not been without contact for long.
    pub(crate) fn new(now: Millis) -> Self {
        Self { heard: now, ..Self::default() }
    }

    pub(crate) fn open(&mut self, now: Millis) {
        self.opened = now;
    }

    /// State has answered the open, and says by when it wants to hear of the node. Returns the age of that contact.
    pub(crate) fn welcome(&mut self, heartbeat_ms: u64, lease_ms: u64, now: Millis) -> Option<u64> {
        (self.heartbeat_ms, self.lease_ms) = (heartbeat_ms, lease_ms);
        self.hear(self.opened, now)
    }

    /// State has answered what this node sent at `sent`. Returns how long ago that was. An answer to something that was never sent is none.
    pub(crate) fn hear(&mut self, sent: Millis, now: Millis) -> Option<u64> {
        (sent <= now).then(|| {
            self.heard = self.heard.max(sent);
            now.since(sent)
        })
    }

    /// Whether contact would be older than three quarters of the lease at the next heartbeat. Where something may
    /// have to stop it never is: nothing has to before a whole lease.
    pub(crate) fn is_old(&self, now: Millis) -> bool {
        now.since(self.heard) + self.heartbeat_ms >= self.lease_ms / 4 * 3
    }

    pub(crate) fn looks(&self) -> bool {
        self.look_at.is_some()
    }

    /// Something on the node has to stop after `stop_after_ms` without contact.
    pub(crate) fn look_after(&mut self, stop_after_ms: u32, out: &mut AgentOutbox) {
        let at = self.heard.plus(u64::from(stop_after_ms));
        if self.look_at.is_none_or(|known| at < known) {
            self.look_at = Some(at);
            out.push(AgentAction::LookAt(at));
        }
    }

    /// How long the node has been without contact, if that is to be looked at by now.
    pub(crate) fn begin_look(&mut self, now: Millis) -> Option<u64> {
        self.look_at.take_if(|at| *at <= now)?;
        Some(now.since(self.heard))
    }
}
