//! Records of nodes as they are now: which nodes there are, what their labels and taints say, and whether they may be used.
//!
//! What is free on them is `free`'s business. A node that is known only from what runs there has no record.

use std::collections::BTreeMap;

use godel_base::{
    ids::{NodeId, Revision},
    resources::Resources,
};
use godel_domain::{
    change::Change,
    frozen::{Frozen, Noted},
    label_expression,
    node::{NodeReport, NodeRuntime, NodeSpec, NodeUsage, Toleration, may_come},
    node_affinity::NodeAffinity,
};

use super::{
    catalogue::Catalogue,
    labels::is_tolerated,
    loads::{LoadChange, NodeLoads, NodeShares},
    sub_clusters::{NodeBlocks, nodes_of},
    unfit::Unfit,
};

/// Records of nodes, by node index; nodes beyond the end have none.
#[derive(Clone, Debug, Default)]
pub struct NodeRecords {
    entries: Vec<NodeEntry>,
    /// As many as `entries`.
    usable: Vec<bool>,
    /// What becomes of running units there; as many as `entries`.
    runtimes: Vec<NodeRuntime>,
    loads: NodeLoads,
    /// Nodes that have a spec.
    n_known: u32,
    frozen: Frozen,
}

/// The records of one node.
#[derive(Clone, Debug, Default)]
struct NodeEntry {
    spec: Option<(NodeSpec, Revision)>,
    report: Option<(NodeReport, Revision)>,
    allocatable: Option<(Resources, Revision)>,
    usage: Option<(NodeUsage, Revision)>,
    labels: Box<[u32]>,
    taints: u32,
}

/// Whether a record of a later revision is known.
fn is_stale<T>(known: Option<&(T, Revision)>, revision: Revision) -> bool {
    known.is_some_and(|known| known.1 > revision)
}

impl NodeRecords {
    /// An administrator's record. False, and without effect, if a later one is known.
    pub(crate) fn put_spec(
        &mut self,
        catalogue: &mut Catalogue,
        idx: usize,
        spec: NodeSpec,
        revision: Revision,
    ) -> bool {
        let entry = self.entry(idx);
        if is_stale(entry.spec.as_ref(), revision) {
            return false;
        }
        entry.taints = catalogue.taints(&spec.taints);
        let old = entry.spec.replace((spec, revision));
        self.n_known += u32::from(old.is_none());
        self.settle_labels(catalogue, idx);
        self.settle_usable(idx);
        true
    }

    /// An agent's record. False, and without effect, if a later one is known.
    pub(crate) fn put_report(
        &mut self,
        catalogue: &mut Catalogue,
        idx: usize,
        report: NodeReport,
        revision: Revision,
    ) -> bool {
        let entry = self.entry(idx);
        if is_stale(entry.report.as_ref(), revision) {
            return false;
        }
        entry.report = Some((report, revision));
        self.settle_labels(catalogue, idx);
        self.settle_usable(idx);
        true
    }

    /// Allocatable in force. False, and without effect, if a later one is known.
    pub(crate) fn put_allocatable(&mut self, idx: usize, allocatable: Resources, revision: Revision) -> bool {
        let entry = self.entry(idx);
        let is_stale = is_stale(entry.allocatable.as_ref(), revision);
        if !is_stale {
            entry.allocatable = Some((allocatable, revision));
        }
        !is_stale
    }

    /// Whether a later record of a node's use is known.
    pub(crate) fn has_later_usage(&self, idx: usize, revision: Revision) -> bool {
        self.entries.get(idx).is_some_and(|entry| is_stale(entry.usage.as_ref(), revision))
    }

    /// A record of a node's use. Returns the one that it replaces.
    pub(crate) fn put_usage(
        &mut self,
        idx: usize,
        usage: NodeUsage,
        revision: Revision,
    ) -> Option<NodeUsage> {
        self.entry(idx).usage.replace((usage, revision)).map(|(usage, _)| usage)
    }

    /// The records of a node are gone. Returns whether its use was known.
    pub(crate) fn remove(&mut self, catalogue: &mut Catalogue, idx: usize) -> bool {
        let Some(entry) = self.entries.get_mut(idx) else { return false };
        let old = std::mem::take(entry);
        self.n_known -= u32::from(old.spec.is_some());
        self.settle_labels(catalogue, idx);
        self.settle_usable(idx);
        old.usage.is_some()
    }

    /// Follows what of a change cannot be read. What nodes may be used follows too.
    pub(crate) fn note_unreadable(&mut self, change: &Change) -> Noted {
        let noted = self.frozen.note(change);
        if noted.any_node {
            (0..self.entries.len()).for_each(|idx| self.settle_usable(idx));
        }
        for node in &noted.nodes {
            if node.idx() < self.entries.len() {
                self.settle_usable(node.idx());
            }
        }
        noted
    }

    /// Returns what cannot be read.
    pub fn frozen(&self) -> &Frozen {
        &self.frozen
    }

    /// Labels mean other sub-clusters than before.
    pub(crate) fn settle_all_labels(&mut self, catalogue: &mut Catalogue) {
        (0..self.entries.len()).for_each(|idx| self.settle_labels(catalogue, idx));
    }

    /// Returns a node's spec.
    pub fn spec(&self, node: NodeId) -> Option<&NodeSpec> {
        self.entries.get(node.idx())?.spec.as_ref().map(|(spec, _)| spec)
    }

    /// Returns a node's report.
    pub fn report(&self, node: NodeId) -> Option<&NodeReport> {
        self.entries.get(node.idx())?.report.as_ref().map(|(report, _)| report)
    }

    /// Returns what is known of the use of the node at an index.
    pub(crate) fn usage(&self, idx: usize) -> Option<&NodeUsage> {
        self.entries.get(idx)?.usage.as_ref().map(|(usage, _)| usage)
    }

    /// Returns the measured use of the node at an index; `None`: it is not known.
    #[inline]
    pub fn load(&self, idx: usize) -> Option<&NodeShares> {
        self.loads.of(idx)
    }

    /// Compares the measured use of a node with what the node has now.
    pub(crate) fn settle_load(&mut self, idx: usize) -> LoadChange {
        let load = self.usage(idx).and_then(|usage| usage.load);
        let mut loads = std::mem::take(&mut self.loads);
        let allocatable = self.allocatable(idx).map(|(amounts, _)| amounts);
        let change = loads.settle(idx, load.as_ref(), allocatable);
        self.loads = loads;
        change
    }

    /// Returns what the node at an index may give away, and how many running units. The record of the binder says how much of a reported
    /// node may be used; without the report there is no node yet.
    pub(crate) fn allocatable(&self, idx: usize) -> Option<(&Resources, u32)> {
        let entry = self.entries.get(idx)?;
        let (report, _) = entry.report.as_ref()?;
        let granted = entry.allocatable.as_ref().map(|(amounts, _)| amounts);
        Some((granted.unwrap_or(&report.capacity), report.max_running_units))
    }

    /// Returns the value of a node's label; an administrator's wins over the agent's.
    pub fn label(&self, node: NodeId, key: &str) -> Option<&str> {
        let own = self.spec(node).and_then(|spec| spec.labels.get(key));
        own.or_else(|| self.report(node)?.attributes.get(key)).map(String::as_str)
    }

    /// Returns when what labels and taints of a node rest on changed last: its spec or its report; 0 when unknown.
    pub fn changed_at(&self, node: NodeId) -> Revision {
        let Some(entry) = self.entries.get(node.idx()) else { return Revision(0) };
        let spec = entry.spec.as_ref().map(|(_, revision)| *revision);
        let report = entry.report.as_ref().map(|(_, revision)| *revision);
        spec.max(report).unwrap_or(Revision(0))
    }

    /// Returns the nodes that have a spec, ascending.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.entries.iter().filter_map(|entry| entry.spec.as_ref()).map(|(spec, _)| spec.id)
    }

    /// Returns the nodes that have a spec, of some blocks or of all, ascending.
    pub fn located(&self, blocks: NodeBlocks<'_>) -> impl Iterator<Item = NodeId> {
        let all = if blocks.is_none() { 0..self.entries.len() } else { 0..0 };
        all.chain(blocks.into_iter().flat_map(nodes_of)).filter_map(|idx| self.id_at(idx))
    }

    /// Returns the id of the node at an index, if it has a spec.
    pub(crate) fn id_at(&self, idx: usize) -> Option<NodeId> {
        self.entries.get(idx)?.spec.as_ref().map(|(spec, _)| spec.id)
    }

    /// Returns the number of indices of nodes that have had records.
    pub(crate) fn n_entries(&self) -> usize {
        self.entries.len()
    }

    /// Returns how many nodes have a spec.
    pub fn count(&self) -> u32 {
        self.n_known
    }

    /// Whether the node at an index may get something new.
    #[inline]
    pub fn is_usable(&self, idx: usize) -> bool {
        self.usable.get(idx).copied().unwrap_or(false)
    }

    /// Returns what becomes of running units on the node at an index.
    #[inline]
    pub fn runtime(&self, idx: usize) -> NodeRuntime {
        self.runtimes.get(idx).copied().unwrap_or(NodeRuntime::Unknown)
    }

    /// Returns the label pairs of the node at an index, ascending.
    #[inline]
    pub fn node_labels(&self, idx: usize) -> &[u32] {
        self.entries.get(idx).map_or(&[], |entry| &entry.labels)
    }

    /// Returns the taint list of the node at an index.
    #[inline]
    pub fn node_taints(&self, idx: usize) -> u32 {
        self.entries.get(idx).map_or(0, |entry| entry.taints)
    }

    /// Whether a node exists, is ready, can start something, is neither cordoned nor drained, and all of its records can be read.
    ///
    /// # Errors
    /// The first of these that fails.
    #[inline]
    pub fn usable(&self, node: NodeId) -> Result<(), Unfit> {
        if self.frozen.has_node(node) {
            return Err(Unfit::Unreadable);
        }
        let Some(spec) = self.spec(node) else { return Err(Unfit::Gone) };
        if !self.report(node).is_some_and(NodeReport::can_start) {
            return Err(Unfit::NotReady);
        }
        if spec.is_closed() { Err(Unfit::Cordoned) } else { Ok(()) }
    }

    /// Whether labels and taints of a node allow a template.
    ///
    /// # Errors
    /// The first label or taint that does not.
    pub fn allows(
        &self,
        selector: &BTreeMap<String, String>,
        tolerations: &[Toleration],
        node: NodeId,
    ) -> Result<(), Unfit> {
        self.has_labels(selector, node)?;
        self.is_tolerated_on(tolerations, node)
    }

    /// Whether the labels of a node meet one of the required terms.
    ///
    /// # Errors
    /// They meet none.
    pub fn meets(&self, affinity: &NodeAffinity, node: NodeId) -> Result<(), Unfit> {
        if affinity.admits(|key| self.label(node, key)) {
            return Ok(());
        }
        let terms: Vec<String> = affinity.required.iter().map(|term| label_expression::show(term)).collect();
        Err(Unfit::Affinity { terms: terms.join(" or ") })
    }

    /// Whether a node has every label of a selector.
    ///
    /// # Errors
    /// The first label that it lacks.
    pub fn has_labels(&self, selector: &BTreeMap<String, String>, node: NodeId) -> Result<(), Unfit> {
        for (key, value) in selector {
            if self.label(node, key) != Some(value.as_str()) {
                return Err(Unfit::Selector { key: key.clone(), value: value.clone() });
            }
        }
        Ok(())
    }

    /// Whether replicas with these tolerations may come to a node, by its taints.
    ///
    /// # Errors
    /// The first hard taint that is not tolerated.
    pub fn is_tolerated_on(&self, tolerations: &[Toleration], node: NodeId) -> Result<(), Unfit> {
        let Some(spec) = self.spec(node) else { return Err(Unfit::Gone) };
        for taint in &spec.taints {
            if may_come(taint, tolerations) {
                continue;
            }
            let separator = if taint.value.is_empty() { "" } else { "=" };
            let words = format!("{}{separator}{}", taint.key, taint.value);
            return Err(match is_tolerated(taint, tolerations) {
                true => Unfit::BriefTaint { taint: words },
                false => Unfit::Taint { taint: words },
            });
        }
        Ok(())
    }

    fn entry(&mut self, idx: usize) -> &mut NodeEntry {
        if idx >= self.entries.len() {
            self.entries.resize_with(idx + 1, NodeEntry::default);
            self.usable.resize(idx + 1, false);
            self.runtimes.resize(idx + 1, NodeRuntime::Unknown);
        }
        &mut self.entries[idx]
    }

    fn settle_labels(&mut self, catalogue: &mut Catalogue, idx: usize) {
        let entry = &mut self.entries[idx];
        let none = BTreeMap::new();
        let under = entry.report.as_ref().map_or(&none, |(report, _)| &report.attributes);
        let over = entry.spec.as_ref().map_or(&none, |(spec, _)| &spec.labels);
        entry.labels = catalogue.node_labels(idx, under, over);
        let runtime = entry.report.as_ref().map_or(NodeRuntime::Unknown, |(report, _)| report.runtime);
        self.runtimes[idx] = runtime;
        if runtime.runs_processes() {
            catalogue.note_processes();
        }
    }

    fn settle_usable(&mut self, idx: usize) {
        let entry = &self.entries[idx];
        let ready = entry.report.as_ref().is_some_and(|(report, _)| report.can_start());
        let is_open = ready && entry.spec.as_ref().is_some_and(|(spec, _)| !spec.is_closed());
        self.usable[idx] =
            is_open && !u32::try_from(idx).is_ok_and(|node| self.frozen.has_node(NodeId(node)));
    }
}

#[cfg(test)]
mod tests {
    use godel_domain::{
        records::{Record, RecordKey},
        unreadable::Unreadable,
    };

    use super::*;

    const NODE: NodeId = NodeId(2);

    fn labels(value: &str) -> BTreeMap<String, String> {
        std::iter::once(("zone".to_owned(), value.to_owned())).collect()
    }

    /// Records of one node, which is ready.
    fn ready() -> (Catalogue, NodeRecords) {
        let (mut catalogue, mut records) = (Catalogue::default(), NodeRecords::default());
        let spec = NodeSpec { id: NODE, ..NodeSpec::default() };
        let report =
            NodeReport { id: NODE, ready: true, attributes: labels("agent"), ..NodeReport::default() };
        assert!(records.put_report(&mut catalogue, NODE.idx(), report, Revision(1)));
        assert!(records.put_spec(&mut catalogue, NODE.idx(), spec, Revision(2)));
        (catalogue, records)
    }

    #[test]
    fn an_older_record_changes_nothing() {
        let (mut catalogue, mut records) = ready();
        let cordoned = NodeSpec { id: NODE, cordoned: true, labels: labels("admin"), ..NodeSpec::default() };
        assert!(!records.put_spec(&mut catalogue, NODE.idx(), cordoned.clone(), Revision(1)));
        assert!(records.is_usable(NODE.idx()));
        assert_eq!((records.label(NODE, "zone"), records.changed_at(NODE)), (Some("agent"), Revision(2)));
        assert!(records.put_spec(&mut catalogue, NODE.idx(), cordoned, Revision(3)));
        assert_eq!(records.usable(NODE), Err(Unfit::Cordoned));
        assert!(!records.is_usable(NODE.idx()));
        assert_eq!((records.label(NODE, "zone"), records.count()), (Some("admin"), 1));
        let admin = catalogue.labels().find("zone", "admin").unwrap();
        assert_eq!(records.node_labels(NODE.idx()), [admin]);
    }

    #[test]
    fn a_node_that_can_start_nothing_gets_nothing_until_it_can() {
        let (mut catalogue, mut records) = ready();
        let report = |trouble: &str| {
            let (trouble, attributes) = (trouble.to_owned(), labels("agent"));
            NodeReport { id: NODE, ready: true, attributes, trouble, ..NodeReport::default() }
        };
        assert!(records.put_report(&mut catalogue, NODE.idx(), report("its disk is full"), Revision(3)));
        assert_eq!((records.usable(NODE), records.is_usable(NODE.idx())), (Err(Unfit::NotReady), false));
        assert!(records.put_report(&mut catalogue, NODE.idx(), report(""), Revision(4)));
        assert_eq!((records.usable(NODE), records.is_usable(NODE.idx())), (Ok(()), true));
    }

    #[test]
    fn a_node_without_records_is_gone() {
        let (mut catalogue, mut records) = ready();
        assert!(!records.remove(&mut catalogue, NODE.idx()), "its use was not known");
        for node in [NODE, NodeId(0), NodeId(9)] {
            assert_eq!(records.usable(node), Err(Unfit::Gone));
            assert!(!records.is_usable(node.idx()));
            assert!(records.node_labels(node.idx()).is_empty());
        }
        assert_eq!((records.count(), records.ids().count()), (0, 0));
    }

    #[test]
    fn an_unreadable_record_closes_its_node_until_it_can_be_read() {
        let (mut catalogue, mut records) = ready();
        for node in [NODE, NodeId(7)] {
            let unreadable = Unreadable::new(RecordKey::NodeSpec(node), "taints", "unknown effect");
            let noted = records.note_unreadable(&Change::Unreadable(Box::new(unreadable)));
            assert_eq!(noted.nodes.into_iter().collect::<Vec<_>>(), [node]);
        }
        assert_eq!(records.usable(NODE), Err(Unfit::Unreadable));
        assert!(!records.is_usable(NODE.idx()));
        let spec = NodeSpec { id: NODE, ..NodeSpec::default() };
        let _ = records.note_unreadable(&Change::Put(Record::NodeSpec(spec.clone())));
        records.put_spec(&mut catalogue, NODE.idx(), spec, Revision(3));
        assert_eq!((records.usable(NODE), records.is_usable(NODE.idx())), (Ok(()), true));
    }
}
