//! What small integers stand for in one cluster: resource names, device models, labels, taint lists, demands, sub-clusters.
//!
//! Nothing that is known here changes with running units: new words and demands are added as they appear, and what a demand
//! asks for is resolved again then. The catalogue outlives a new list of records.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::resources::Resources;
use godel_domain::{
    demand::{Demand, N_DEVICES_MAX, Pool},
    node::{Device, Taint},
    node_load::MaxLoad,
};
use smallvec::SmallVec;

use super::{
    devices::DeviceClasses,
    labels::Labels,
    shapes::{Names, Shape, ShapeId, Shapes},
    sub_clusters::{SubClusterId, SubClusters},
    unfit::Unfit,
};

/// Words and demands as small integers.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    names: Names,
    classes: DeviceClasses,
    labels: Labels,
    shapes: Shapes,
    sub_clusters: SubClusters,
}

impl Catalogue {
    /// Returns the catalogue without the nodes of its sub-clusters; every integer keeps its meaning.
    pub(crate) fn without_nodes(self) -> Self {
        Self { sub_clusters: self.sub_clusters.without_nodes(), ..self }
    }

    /// Returns the shape of a demand; equal demands of one pool have the same shape.
    pub(crate) fn intern(&mut self, demand: &Demand, pool: Pool) -> ShapeId {
        self.shapes.intern(demand, pool, &self.names, &self.classes)
    }

    /// Returns the shape that asks for the same, and accepts so much use of its zones.
    pub(crate) fn intern_below(&mut self, shape: ShapeId, max_load: MaxLoad) -> ShapeId {
        self.shapes.intern_below(shape, max_load)
    }

    /// Returns what a shape asks for.
    #[inline]
    pub fn shape(&self, id: ShapeId) -> &Shape {
        self.shapes.get(id)
    }

    /// Returns the demand of a shape.
    #[inline]
    pub fn demand(&self, id: ShapeId) -> &Arc<Demand> {
        &self.shape(id).demand
    }

    /// Returns all shapes.
    #[inline]
    pub fn shapes(&self) -> &Shapes {
        &self.shapes
    }

    /// Returns amounts by resource integer. A name that is new gets its integer now, and shapes that ask for it are resolved:
    /// rows of amounts are to be widened to [`Self::n_resources`] before they are looked at again.
    pub(crate) fn amounts(&mut self, resources: &Resources) -> Vec<(u8, i64)> {
        let n_known = self.names.len();
        let amounts =
            resources.iter().filter_map(|(name, amount)| Some((self.names.id(name)?, amount))).collect();
        if self.names.len() > n_known {
            self.shapes.resolve_names(&self.names);
        }
        amounts
    }

    /// Returns the positive amounts of a row by resource name.
    pub(crate) fn resources(&self, row: &[i64]) -> Resources {
        let positive = row.iter().enumerate().filter(|(_, amount)| **amount > 0);
        Resources::new(positive.map(|(id, amount)| (self.names.name(id), *amount))).unwrap_or_default()
    }

    /// Returns the number of resources that have an integer.
    pub(crate) fn n_resources(&self) -> usize {
        self.names.len()
    }

    /// Returns the name of a resource; `?` for a number that no resource has.
    pub fn resource_name(&self, id: u8) -> &str {
        self.names.name(usize::from(id))
    }

    /// Returns the integer of a resource; `None`: it has none yet.
    pub fn resource_id(&self, name: &str) -> Option<usize> {
        self.names.find(name).map(usize::from)
    }

    /// Returns the refusal of a node that has too little of a resource.
    pub(crate) fn short_of(&self, id: u8) -> Unfit {
        Unfit::Resource { name: self.resource_name(id).to_owned() }
    }

    /// Returns the classes of a node's devices. Shapes are resolved again if one of them is new.
    pub(crate) fn device_classes(&mut self, devices: &[Device]) -> SmallVec<[u16; 8]> {
        let mut is_new = false;
        let classes = &mut self.classes;
        let known = devices.iter().take(N_DEVICES_MAX).map(|device| {
            let (id, new) = classes.id(device);
            is_new |= new;
            id
        });
        let known = known.collect();
        if is_new {
            self.shapes.resolve_devices(&self.classes);
        }
        known
    }

    /// Returns the device models that nodes have, or have had.
    pub(crate) fn classes(&self) -> &DeviceClasses {
        &self.classes
    }

    /// Returns the label pairs of the node at an index, ascending, `over` winning over `under`, and notes its sub-cluster.
    pub(crate) fn node_labels(
        &mut self,
        idx: usize,
        under: &BTreeMap<String, String>,
        over: &BTreeMap<String, String>,
    ) -> Box<[u32]> {
        let labels = self.labels.intern(under, over);
        self.sub_clusters.set_labels(idx, under, over);
        labels
    }

    /// Some node runs processes.
    pub(crate) fn note_processes(&mut self) {
        self.labels.note_processes();
    }

    /// Returns the integer of a taint list.
    pub(crate) fn taints(&mut self, taints: &[Taint]) -> u32 {
        self.labels.taints(taints)
    }

    /// Returns the label pairs and taint lists of all nodes.
    #[inline]
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// Returns the sub-clusters and their nodes.
    #[inline]
    pub fn sub_clusters(&self) -> &SubClusters {
        &self.sub_clusters
    }

    /// Begins without sub-clusters, which from now on are named by this label of nodes.
    pub(crate) fn set_sub_cluster_key(&mut self, key: &str) {
        self.sub_clusters = SubClusters::by_label(key);
    }

    /// Returns the sub-cluster of a name, known or new.
    pub fn sub_cluster(&mut self, name: &str) -> SubClusterId {
        self.sub_clusters.id(name)
    }

    /// Returns the sub-cluster that a node selector demands.
    pub fn demanded_sub_cluster(&mut self, selector: &BTreeMap<String, String>) -> Option<SubClusterId> {
        self.sub_clusters.demanded(selector)
    }
}
