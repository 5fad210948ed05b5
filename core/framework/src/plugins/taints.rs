//! Filter `taints`: every `NoSchedule` and `NoExecute` taint of the node is tolerated, a `NoExecute` one without end. Soft taints that are not
//! tolerated put the node behind all nodes with fewer of them (see [`crate::NodeScore`]).

use std::sync::Arc;

use godel_base::ids::NodeId;
use godel_cluster::{Cluster, Unfit, labels::TaintVerdict};
use godel_domain::decision::RejectionReason;

use crate::{
    ask::{Ask, NodeAsk},
    point::{Filter, Plugin, RestsOn},
};

/// The plugin.
#[derive(Debug)]
pub struct Taints;

impl Plugin for Taints {
    const NAME: &'static str = "taints";
    const DOC: &'static str = "Every `no-schedule` and `no-execute` taint of the node is tolerated, a `no-execute` one without a time limit. Among the nodes that pass, those with \
                                fewer `prefer-no-schedule` taints that are not tolerated come first, whatever their scores.";
}

impl Filter for Taints {
    const RESTS_ON: RestsOn = RestsOn::Records;
    const REASONS: &'static [RejectionReason] = &[RejectionReason::Taint];
    type State = Arc<[TaintVerdict]>;

    /// Keeps what the tolerations say of each taint list.
    fn prepare(&self, _cluster: &Cluster, ask: &Ask) -> Option<Self::State> {
        let verdicts = ask.verdicts();
        verdicts.contains(&TaintVerdict::Refused).then(|| Arc::clone(verdicts))
    }

    #[inline]
    fn passes(verdicts: &Self::State, cluster: &Cluster, idx: usize) -> bool {
        let verdict = verdicts.get(cluster.nodes().node_taints(idx) as usize);
        verdict.is_some_and(|verdict| *verdict != TaintVerdict::Refused)
    }

    fn check(&self, cluster: &Cluster, ask: NodeAsk<'_>, node: NodeId) -> Result<(), Unfit> {
        cluster.nodes().is_tolerated_on(&ask.requirements.tolerations, node)
    }
}
