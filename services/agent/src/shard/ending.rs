//! The end of an agent that is told to stop: what runs goes on, or ends first.

use std::time::Duration;

use super::{Shard, ShardEnd, real_node::RealNode};
use crate::{claim::DirLoss, config::UnitsAtStop, service::Error};

/// What has to end gets its grace, and this long in addition.
const PATIENCE_MS: u64 = 15_000;

impl Shard {
    /// The agent is told to stop. Running units of a real node go on if they are configured to, and if a later agent can find them.
    pub(super) fn begin_to_end(&mut self) {
        let now = self.clock.now();
        self.ends_by = Some(now);
        if !self.real.ends_its_units() {
            return;
        }
        for node in 0..self.nodes.len() {
            let grace_ms = self.nodes[node].agent.life_mut().stop_with_agent(&mut self.out);
            let by = now.plus(u64::from(grace_ms) + PATIENCE_MS);
            self.ends_by = self.ends_by.max(Some(by));
            self.act(node);
            self.note(node);
        }
    }

    /// Whether the agent may end now: it is told to, and nothing is left that has to end first, or not in time.
    pub(super) fn has_ended(&self) -> bool {
        let Some(by) = self.ends_by else { return false };
        let n_live: usize = self.nodes.iter().map(|node| node.agent.life().live().n()).sum();
        let is_late = by <= self.clock.now();
        let has_to_end = self.real.ends_its_units();
        if has_to_end && is_late && n_live > 0 {
            tracing::warn!(n_live, "running units do not end: the agent ends without them");
        }
        !has_to_end || is_late || n_live == 0
    }

    /// Until the agent ends whatever still runs.
    pub(super) fn until_end(&self) -> Option<Duration> {
        let by = self.ends_by?;
        Some(Duration::from_millis(by.since(self.clock.now())))
    }
}

impl RealNode {
    /// Whether what runs ends with the agent: as configured, and where no later agent would find it. What another agent has taken is that
    /// one's.
    pub(super) fn ends_its_units(&self) -> bool {
        let is_kept = match self.condition.loss() {
            Some(loss) => loss == DirLoss::Taken,
            None => self.config.units_at_stop == UnitsAtStop::Keep && self.config.state_dir.is_some(),
        };
        self.home.is_some() && !is_kept
    }

    /// What to say at the end of the shard.
    pub(super) fn how_it_ends(&self) -> Result<ShardEnd, Error> {
        match self.condition.loss() {
            Some(loss) => {
                Err(Error::DirLost { dir: self.config.state_dir.clone().unwrap_or_default(), loss })
            }
            None => Ok(ShardEnd::Stopped),
        }
    }
}
