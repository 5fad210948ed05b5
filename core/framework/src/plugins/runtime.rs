//! Filter `runtime`: a replica without a command goes to no node that runs processes, and one with an image to none that runs no images.
//!
//! Without a command it would take room that real work needs, and do nothing. On a simulated node nothing runs anyway. What declares a simulated run
//! says what it wants and is simulated wherever it is; what awaits its command gets one.

use godel_base::ids::NodeId;
use godel_cluster::{Cluster, Unfit};
use godel_domain::{decision::RejectionReason, node::RuntimeNeed};

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
                               comes later (`await_command`, as those of class yarn) goes to any node, and so does one with a command. A replica with an \
                               `image` goes to nodes that run images, and to simulated ones.";
}

impl Filter for Runtime {
    const RESTS_ON: RestsOn = RestsOn::Records;
    const REASONS: &'static [RejectionReason] = &[RejectionReason::NodeSelector];
    type State = RuntimeNeed;

    fn prepare(&self, cluster: &Cluster, ask: &Ask) -> Option<RuntimeNeed> {
        let need = ask.requirements().runtime;
        let matters = match need {
            RuntimeNeed::Nothing => false,
            RuntimeNeed::Simulation => cluster.catalogue().labels().has_processes(),
            RuntimeNeed::Images => true,
        };
        matters.then_some(need)
    }

    #[inline]
    fn passes(need: &RuntimeNeed, cluster: &Cluster, idx: usize) -> bool {
        cluster.nodes().runtime(idx).meets(*need)
    }

    #[inline]
    fn check(&self, cluster: &Cluster, ask: NodeAsk<'_>, node: NodeId) -> Result<(), Unfit> {
        let need = ask.requirements.runtime;
        match need {
            _ if cluster.nodes().runtime(node.idx()).meets(need) => Ok(()),
            RuntimeNeed::Nothing | RuntimeNeed::Simulation => Err(Unfit::Runtime),
            RuntimeNeed::Images => Err(Unfit::Images),
        }
    }
}
