//! Filter `runtime`: a replica without a command goes to no node that runs processes.
//!
//! There it would take room that real work needs, and do nothing. On a simulated node nothing runs anyway. What declares a simulated run says
//! what it wants and is simulated wherever it is; what awaits its command gets one.

use godel_cluster::{Cluster, Unfit};
use godel_domain::{decision::RejectionReason, ids::NodeId};

use crate::{
    ask::{Ask, NodeAsk},
    point::{Filter, Plugin, RestsOn},
};

/// The plugin.
#[derive(Debug)]
pub struct Runtime;

impl Plugin for Runtime {
    const NAME: &'static str = "runtime";
    const DOC: &'static str = "A replica without a command goes to simulated nodes only. A replica that declares a simulated run (`simulated`) or whose command \
                               comes later (`await_command`, as those of class yarn) goes to any node, and so does one with a command.";
}

impl Filter for Runtime {
    const RESTS_ON: RestsOn = RestsOn::Records;
    const REASONS: &'static [RejectionReason] = &[RejectionReason::NodeSelector];
    type State = ();

    fn prepare(&self, cluster: &Cluster, ask: &Ask) -> Option<()> {
        (ask.requirements().lacks_command && cluster.labels().has_processes()).then_some(())
    }

    #[inline]
    fn passes((): &(), cluster: &Cluster, idx: usize) -> bool {
        !cluster.runs_processes(idx)
    }

    #[inline]
    fn check(&self, cluster: &Cluster, ask: NodeAsk<'_>, node: NodeId) -> Result<(), Unfit> {
        let is_idle = ask.requirements.lacks_command && cluster.runs_processes(node.idx());
        if is_idle { Err(Unfit::Runtime) } else { Ok(()) }
    }
}
