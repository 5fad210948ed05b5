//! What one replica asks of a node, resolved against the cluster as it is now.

use std::{
    collections::BTreeMap,
    hash::{Hash as _, Hasher as _},
    sync::Arc,
};

use godel_base::ids::{NodeId, UnitId};
use godel_cluster::{
    BlockMask, Cluster, DaemonIdx, GroupRef, ShapeId, StandingTerms, SubClusterId, TakersIdx, UnitRules,
    labels::{LabelSets, TaintVerdict},
    room::block_of,
};
use godel_domain::{
    demand::Pool,
    node::{RuntimeNeed, Toleration},
    node_affinity::NodeAffinity,
    node_load::MaxLoad,
    unit::Template,
    work_kind::WorkKind,
};
use rustc_hash::FxHasher;

use crate::point::Gates;

/// What a template asks of a node beside room. The binder keeps this of every task group, so that it can run the filters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRequirements {
    /// Labels that the node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Taints that are accepted.
    pub tolerations: Vec<Toleration>,
    /// Which nodes it may have and which it prefers, beyond the labels.
    pub node_affinity: NodeAffinity,
    /// How much of the node may be used already.
    pub max_load: MaxLoad,
    /// What it asks of the runtime of the node.
    pub runtime: RuntimeNeed,
    /// Nodes keep volumes for it.
    pub has_volumes: bool,
}

/// Requirements that every node without taints meets, but for those of the runtime.
const fn nothing(runtime: RuntimeNeed) -> NodeRequirements {
    NodeRequirements {
        node_selector: BTreeMap::new(),
        tolerations: Vec::new(),
        node_affinity: NodeAffinity { required: Vec::new(), preferred: Vec::new() },
        max_load: MaxLoad { cpu: None, memory: None },
        runtime,
        has_volumes: false,
    }
}

static NOTHING: NodeRequirements = nothing(RuntimeNeed::Nothing);
static SIMULATION: NodeRequirements = nothing(RuntimeNeed::Simulation);
static IMAGES: NodeRequirements = nothing(RuntimeNeed::Images);

impl NodeRequirements {
    /// Returns the requirements of a template.
    pub fn of(template: &Template) -> Self {
        Self {
            node_selector: template.node_selector.clone(),
            tolerations: template.tolerations.clone(),
            node_affinity: template.node_affinity.clone(),
            max_load: template.max_load,
            runtime: template.run.runtime_need(),
            has_volumes: !template.run.volumes.is_empty(),
        }
    }

    /// Whether these are the requirements of a template.
    pub fn are_of(&self, template: &Template) -> bool {
        let Self { node_selector, tolerations, node_affinity, max_load, runtime, has_volumes } = self;
        *node_selector == template.node_selector
            && *tolerations == template.tolerations
            && *node_affinity == template.node_affinity
            && *max_load == template.max_load
            && *runtime == template.run.runtime_need()
            && *has_volumes != template.run.volumes.is_empty()
    }

    /// Whether standing terms are those of a template with these requirements, whatever it takes.
    fn is_standing(&self, terms: &StandingTerms) -> bool {
        let StandingTerms { node_selector, required, tolerations, runtime, shape: _ } = terms;
        *runtime == self.runtime
            && *node_selector == self.node_selector
            && *required == self.node_affinity.required
            && *tolerations == self.tolerations
    }

    /// Returns a number that equal requirements share.
    pub fn hash_of(template: &Template) -> u64 {
        let mut hasher = FxHasher::default();
        (&template.node_selector, &template.tolerations, &template.node_affinity, template.max_load)
            .hash(&mut hasher);
        (template.run.runtime_need(), template.run.volumes.is_empty()).hash(&mut hasher);
        hasher.finish()
    }

    /// Returns requirements that every node without taints meets, but for those whose runtime does not.
    pub fn nothing(runtime: RuntimeNeed) -> &'static Self {
        match runtime {
            RuntimeNeed::Nothing => &NOTHING,
            RuntimeNeed::Simulation => &SIMULATION,
            RuntimeNeed::Images => &IMAGES,
        }
    }
}

/// The terms of a unit about running units, as they concern replicas of one template.
#[derive(Clone, Debug)]
pub struct UnitAsk {
    /// The terms, and what keeps the unit away.
    pub rules: Arc<UnitRules>,
    /// Nodes that take replicas of the template: their domains count in spreads. `None` without spreads.
    pub takers: Option<TakersIdx>,
}

impl UnitAsk {
    /// Returns the terms of a unit, as they concern a template; `None`: it may go anywhere.
    pub fn of(
        cluster: &Cluster,
        unit: UnitId,
        shape: ShapeId,
        requirements: &NodeRequirements,
    ) -> Option<Self> {
        let rules = cluster.domains().rules_of(unit)?;
        // What runs by an earlier record of the unit may have another demand than its template has now.
        let domains = cluster.domains();
        let exact =
            domains.takers_of(&rules, |terms| terms.shape == shape && requirements.is_standing(terms));
        let takers = exact.or_else(|| domains.takers_of(&rules, |terms| requirements.is_standing(terms)));
        Some(Self { takers, rules })
    }
}

/// What filters judge a node by.
#[derive(Clone, Copy, Debug)]
pub struct NodeAsk<'a> {
    /// The amounts of one replica.
    pub shape: ShapeId,
    /// Everything else that it asks of a node.
    pub requirements: &'a NodeRequirements,
    /// What its unit says about running units.
    pub unit: Option<&'a UnitAsk>,
    /// Its unit, if it is a daemon.
    pub daemon: Option<DaemonIdx>,
    /// The node that keeps volumes for it, if one does.
    pub volume_node: Option<NodeId>,
}

/// What one replica asks for, resolved once per template.
#[derive(Clone, Debug)]
pub struct Ask {
    shape: ShapeId,
    sub_cluster: Option<SubClusterId>,
    requirements: NodeRequirements,
    spreads: bool,
    work: WorkKind,
    is_nowhere: bool,
    unit: Option<Arc<UnitAsk>>,
    daemon: Option<DaemonIdx>,
    /// The node that keeps volumes for it, and its block.
    volume_node: Option<(NodeId, (usize, BlockMask))>,
    within: Option<GroupRef>,
    /// The labels and taints that the following is resolved against; 0: it is not resolved yet.
    pub(crate) labels_version: usize,
    /// What the tolerations say of each taint list.
    pub(crate) verdicts: Arc<[TaintVerdict]>,
    /// The filters that may refuse a node with room.
    pub(crate) gates: Gates,
    /// Of the profile's scores those that make a difference to it, a bit each.
    pub(crate) scores: u64,
    /// The preferred terms with their weights.
    pub(crate) preferred: Arc<[(i64, LabelSets)]>,
}

impl Ask {
    /// Interns what a template asks for.
    pub fn new(cluster: &mut Cluster, template: &Template, pool: Pool) -> Self {
        let shape = cluster.shape_below(&template.demand, pool, template.max_load);
        Self::of_shape(cluster, shape, template)
    }

    /// Like [`Self::new`], for a demand that has been interned before.
    pub fn of_shape(cluster: &mut Cluster, shape: ShapeId, template: &Template) -> Self {
        if !template.max_load.is_any() {
            cluster.nodes_mut().limit_load();
        }
        Self {
            shape,
            sub_cluster: cluster.catalogue_mut().demanded_sub_cluster(&template.node_selector),
            requirements: NodeRequirements::of(template),
            spreads: false,
            work: WorkKind::Neutral,
            is_nowhere: false,
            unit: None,
            daemon: None,
            volume_node: None,
            within: None,
            labels_version: 0,
            verdicts: Arc::default(),
            gates: Gates::default(),
            scores: 0,
            preferred: Arc::default(),
        }
    }

    /// Of a unit whose replicas are to be on different nodes where that costs little.
    pub fn spreading(self, spreads: bool) -> Self {
        Self { spreads, ..self }
    }

    /// Of a unit of a kind of work, where that is counted.
    pub fn of_work(self, work: WorkKind) -> Self {
        Self { work, ..self }
    }

    /// Of a unit whose profile is not configured: no node takes it.
    pub fn nowhere(self, is_nowhere: bool) -> Self {
        Self { is_nowhere, ..self }
    }

    /// Of a unit with terms about running units: what is found for it holds for that unit alone, and only until something
    /// comes or goes.
    pub fn of_unit(self, unit: Option<UnitAsk>) -> Self {
        Self { unit: unit.map(Arc::new), ..self }
    }

    /// Of a daemon: no node has two of its replicas.
    pub fn of_daemon(self, daemon: Option<DaemonIdx>) -> Self {
        Self { daemon, ..self }
    }

    /// Of a replica for which a node keeps volumes: it goes there only.
    pub fn of_volumes_on(self, node: NodeId) -> Self {
        let volume_node = Some((node, block_of(node)));
        Self { volume_node, within: None, labels_version: 0, ..self }
    }

    /// Returns the node that keeps volumes for it, if one does.
    pub fn volume_node(&self) -> Option<NodeId> {
        self.volume_node.map(|(node, _)| node)
    }

    /// Returns the same node with the block of it alone.
    pub fn volume_block(&self) -> Option<(NodeId, &(usize, BlockMask))> {
        self.volume_node.as_ref().map(|(node, block)| (*node, block))
    }

    /// Returns its unit, if that is a daemon.
    pub fn daemon(&self) -> Option<DaemonIdx> {
        self.daemon
    }

    /// Looks at the nodes of one group only from now on, or at all of them.
    pub fn set_within(&mut self, group: Option<GroupRef>) {
        self.within = group;
    }

    /// Returns the only group whose nodes are looked at; `None`: all nodes are.
    pub fn within(&self) -> Option<GroupRef> {
        self.within
    }

    /// Returns what its unit says about running units.
    pub fn unit(&self) -> Option<&Arc<UnitAsk>> {
        self.unit.as_ref()
    }

    /// Whether what was resolved of the unit's rules about running units is what they are now.
    pub fn has_rules_of_now(&self, cluster: &Cluster, unit: UnitId) -> bool {
        let now = UnitAsk::of(cluster, unit, self.shape, &self.requirements);
        match (&self.unit, now) {
            (Some(known), Some(now)) => known.takers == now.takers && known.rules == now.rules,
            (known, now) => known.is_none() && now.is_none(),
        }
    }

    /// Whether its replicas are to be on different nodes; the cluster has to count that unit then.
    pub fn spreads(&self) -> bool {
        self.spreads
    }

    /// Returns its kind of work; neutral where kinds are not counted.
    pub fn work(&self) -> WorkKind {
        self.work
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
        let Self { shape, requirements, unit, daemon, .. } = self;
        let (unit, volume_node) = (unit.as_deref(), self.volume_node());
        NodeAsk { shape: *shape, requirements, unit, daemon: *daemon, volume_node }
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
