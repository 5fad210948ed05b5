//! Contact with state, which the agent of each node judges: looks at it, and what it means for the keepers of a real node.

use godel_core_agent::AgentAction;

use super::{HostedNode, Shard};

impl Shard {
    /// State sent back an echo.
    pub(super) fn on_echo(&mut self, node: usize, echo: u64) {
        let (age_ms, held) = self.nodes[node].agent.on_echo(echo, self.clock.now());
        self.real.renew_contact(age_ms);
        for message in held {
            self.obey(node, message);
        }
    }

    /// Stops what has been without contact for too long.
    pub(super) fn check_contact(&mut self) {
        let now = self.clock.now();
        while let Some(node) = self.looks.pop_due(now) {
            let HostedNode { name, agent, .. } = &mut self.nodes[node];
            let Some(alone_ms) = agent.check_contact(now, &mut self.out) else { continue };
            let n = self.out.iter().filter(|action| !matches!(action, AgentAction::LookAt(_))).count();
            if n > 0 {
                tracing::warn!(node = %name, n, alone_ms, "no contact for too long: stopping running units");
            }
            self.act(node);
            self.note(node);
        }
    }
}
