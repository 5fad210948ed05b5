//! What one replica asks of a node, resolved against the cluster as it is now.

use std::{collections::BTreeMap, sync::Arc};

use godel_cluster::{Cluster, ShapeId, SubClusterId, labels::TaintVerdict};
use godel_domain::{demand::Pool, node::Toleration, unit::Template};

use crate::point::Gates;

/// What a template asks of a node beside room. The binder keeps this of every task group, so that it can run the filters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRequirements {
    /// Labels that the node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Taints that are accepted.
    pub tolerations: Vec<Toleration>,
}

/// Requirements that every node without taints meets.
static NOTHING: NodeRequirements =
    NodeRequirements { node_selector: BTreeMap::new(), tolerations: Vec::new() };

impl NodeRequirements {
    /// Returns the requirements of a template.
    pub fn of(template: &Template) -> Self {
        Self { node_selector: template.node_selector.clone(), tolerations: template.tolerations.clone() }
    }

    /// Returns requirements that every node without taints meets.
    pub fn nothing() -> &'static Self {
        &NOTHING
    }
}

/// A demand and requirements, as filters judge a node by them.
#[derive(Clone, Copy, Debug)]
pub struct NodeAsk<'a> {
    /// The amounts of one replica.
    pub shape: ShapeId,
    /// Everything else that it asks of a node.
    pub requirements: &'a NodeRequirements,
}

/// What one replica asks for, resolved once per template.
#[derive(Clone, Debug)]
pub struct Ask {
    shape: ShapeId,
    sub_cluster: Option<SubClusterId>,
    requirements: NodeRequirements,
    spreads: bool,
    is_nowhere: bool,
    /// The labels and taints that the following is resolved against; 0: it is not resolved yet.
    pub(crate) labels_version: usize,
    /// What the tolerations say of each taint list.
    pub(crate) verdicts: Arc<[TaintVerdict]>,
    /// The filters that may refuse a node with room.
    pub(crate) gates: Gates,
}

impl Ask {
    /// Interns what a template asks for.
    pub fn new(cluster: &mut Cluster, template: &Template, pool: Pool) -> Self {
        let shape = cluster.shape(&template.demand, pool);
        Self::of_shape(cluster, shape, template)
    }

    /// Like [`Self::new`], for a demand that has been interned before.
    pub fn of_shape(cluster: &mut Cluster, shape: ShapeId, template: &Template) -> Self {
        Self {
            shape,
            sub_cluster: cluster.demanded_sub_cluster(&template.node_selector),
            requirements: NodeRequirements::of(template),
            spreads: false,
            is_nowhere: false,
            labels_version: 0,
            verdicts: Arc::default(),
            gates: Gates::default(),
        }
    }

    /// Of a unit whose replicas are to be on different nodes where that costs little.
    pub fn spreading(self, spreads: bool) -> Self {
        Self { spreads, ..self }
    }

    /// Of a unit whose profile is not configured: no node takes it.
    pub fn nowhere(self, is_nowhere: bool) -> Self {
        Self { is_nowhere, ..self }
    }

    /// Whether its replicas are to be on different nodes; the cluster has to count that unit then.
    pub fn spreads(&self) -> bool {
        self.spreads
    }

    /// Whether no node takes it, because its profile is not configured.
    pub fn is_nowhere(&self) -> bool {
        self.is_nowhere
    }

    /// Its demand.
    pub fn shape(&self) -> ShapeId {
        self.shape
    }

    /// Whose nodes it may use; `None`: all.
    pub fn sub_cluster(&self) -> Option<SubClusterId> {
        self.sub_cluster
    }

    /// Returns what it asks of a node beside room.
    pub fn requirements(&self) -> &NodeRequirements {
        &self.requirements
    }

    /// Returns what filters judge a node by.
    pub fn on_node(&self) -> NodeAsk<'_> {
        NodeAsk { shape: self.shape, requirements: &self.requirements }
    }

    /// Whether the node at `idx` takes it, room aside. A profile has to have prepared it.
    #[inline]
    pub fn admits(&self, cluster: &Cluster, idx: usize) -> bool {
        self.gates.admit(cluster, idx)
    }

    /// Returns the filters that may refuse a node with room. A profile has to have prepared it.
    pub fn gates(&self) -> &Gates {
        &self.gates
    }

    /// Returns what the tolerations say of each taint list known, by its integer. A profile has to have prepared it.
    pub fn verdicts(&self) -> &Arc<[TaintVerdict]> {
        &self.verdicts
    }

    /// Returns what the tolerations say of one taint list.
    #[inline]
    pub fn verdict(&self, taint_list: u32) -> TaintVerdict {
        self.verdicts.get(taint_list as usize).copied().unwrap_or(TaintVerdict::Refused)
    }
}
