//! Daemons: how many replicas each has follows from the nodes that it is for.
//!
//! Of every node the labels and taints are known, as small integers. A change of a node is compared with what the node was to each
//! daemon before; a daemon that it concerns is looked at as a whole, no more often than [`PACE_MS`], so that ten thousand nodes
//! that join within a second are a few changes of its record and not ten thousand. Nothing survives a restart: after a list all
//! daemons are looked at.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_base::{
    ids::{NodeId, Revision, UnitId},
    time::Millis,
};
use godel_domain::{
    node::{NodeReport, NodeRuntime, NodeSpec, Taint},
    running_units::RunChange,
    unit::{Template, UnitRecord},
};
use godel_rules::daemon::{NodeUse, follow, node_use};
use rustc_hash::FxHashMap;

use super::{Action, gates::AssignmentGates, units::Units};

/// Between two changes of the record of a daemon, milliseconds. A change without effect, as another one is on its way, is asked
/// for again after this.
const PACE_MS: u64 = 200;
/// Between two replacements of replicas of a daemon that have ended for good, milliseconds: with every node they may end at
/// once, and ordinals are used up.
const REPLACE_MS: u64 = 5 * 60 * 1_000;
/// Daemons looked at in one step.
const LOOKS_MAX: usize = 64;

/// Daemons, and what nodes are to them.
#[derive(Debug, Default)]
pub(super) struct Daemons {
    words: Words,
    nodes: BTreeMap<NodeId, DaemonNode>,
    units: BTreeMap<UnitId, DaemonUnit>,
    /// Of `units`: their replicas may not be those that the nodes want.
    stale: BTreeSet<UnitId>,
    /// When they are looked at again because replicas of them have ended for good.
    ended: BTreeSet<(Millis, UnitId)>,
}

/// Texts by small integer: nodes have most labels in common.
#[derive(Debug, Default)]
struct Words {
    ids: FxHashMap<Arc<str>, u32>,
    words: Vec<Arc<str>>,
}

/// A key and a value.
type Label = (u32, u32);
/// What an administrator says of a node.
type LabelsAndTaints = (Box<[Label]>, Box<[Taint]>);

/// A node as far as daemons are concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DaemonNode {
    /// Of the administrator's record; `None`: there is none.
    spec: Option<LabelsAndTaints>,
    /// Found by its agent; `None`: it never reported.
    attributes: Option<Box<[Label]>>,
    runtime: NodeRuntime,
}

/// A daemon.
#[derive(Clone, Copy, Debug, Default)]
struct DaemonUnit {
    /// It is not looked at before, stale or not.
    due: Millis,
    /// Its record was changed then.
    changed_at: Option<Millis>,
    /// Replicas that have ended are replaced from then on.
    replaces_from: Millis,
}

impl Words {
    fn intern(&mut self, word: &str) -> u32 {
        if let Some(id) = self.ids.get(word) {
            return *id;
        }
        let id = u32::try_from(self.words.len()).expect("memory ends before 2^32 texts");
        let word: Arc<str> = word.into();
        self.words.push(Arc::clone(&word));
        self.ids.insert(word, id);
        id
    }

    fn labels(&mut self, labels: &BTreeMap<String, String>) -> Box<[Label]> {
        labels.iter().map(|(key, value)| (self.intern(key), self.intern(value))).collect()
    }

    /// The value of a label; an administrator's wins over the agent's.
    fn label(&self, node: &DaemonNode, key: &str) -> Option<&str> {
        let key = *self.ids.get(key)?;
        let own = node.spec.iter().flat_map(|(labels, _)| labels);
        let mut all = own.chain(node.attributes.iter().flatten());
        let value = all.find(|(of, _)| *of == key)?.1;
        self.words.get(value as usize).map(|word| &**word)
    }

    /// What a node is to replicas of a template.
    fn node_use(&self, node: &DaemonNode, template: &Template) -> NodeUse {
        match (&node.spec, &node.attributes) {
            (Some((_, taints)), Some(_)) => {
                node_use(template, taints, node.runtime, |key| self.label(node, key))
            }
            _ => NodeUse::Refused,
        }
    }
}

impl Daemons {
    /// A list follows: what is not in it is gone.
    pub(super) fn reset(&mut self) {
        (self.words, self.nodes) = (Words::default(), BTreeMap::new());
    }

    /// The list is complete.
    pub(super) fn on_listed(&mut self, now: Millis) {
        for (unit, daemon) in &mut self.units {
            daemon.due = now;
            self.stale.insert(*unit);
        }
    }

    /// An administrator's record of a node.
    pub(super) fn on_node_spec(&mut self, spec: &NodeSpec, units: &Units) {
        // When a taint was set makes no difference.
        let taints = spec.taints.iter().map(|taint| Taint { added_ms: 0, ..taint.clone() });
        let new = Some((self.words.labels(&spec.labels), taints.collect()));
        self.change_node(spec.id, units, |node| node.spec = new);
    }

    /// An agent's record of a node.
    pub(super) fn on_node_report(&mut self, report: &NodeReport, units: &Units) {
        let new = Some(self.words.labels(&report.attributes));
        self.change_node(report.id, units, |node| (node.attributes, node.runtime) = (new, report.runtime));
    }

    /// A node is gone.
    pub(super) fn remove_node(&mut self, node: NodeId, units: &Units) {
        self.change_node(node, units, |node| *node = DaemonNode::default());
        self.nodes.remove(&node);
    }

    fn change_node(&mut self, id: NodeId, units: &Units, change: impl FnOnce(&mut DaemonNode)) {
        let Self { words, nodes, units: daemons, stale, .. } = self;
        let node = nodes.entry(id).or_default();
        if daemons.is_empty() {
            return change(node);
        }
        let before = node.clone();
        change(node);
        if *node == before {
            return;
        }
        for unit in daemons.keys().filter(|unit| !stale.contains(unit)).copied().collect::<Vec<_>>() {
            let template = units.get(unit).and_then(|entry| template(&entry.record));
            let is_same = |template| words.node_use(&before, template) == words.node_use(node, template);
            if !template.is_some_and(is_same) {
                stale.insert(unit);
            }
        }
    }

    /// A unit's record was written.
    pub(super) fn on_unit(&mut self, record: &UnitRecord, now: Millis) {
        if !record.spec.is_daemon() {
            return;
        }
        let daemon = self.units.entry(record.id).or_default();
        daemon.due = daemon.changed_at.map_or(now, |at| at.plus(PACE_MS));
        self.stale.insert(record.id);
    }

    /// Running units of a unit changed: something of it may have ended on a node that is not for it any more, or for good.
    pub(super) fn on_rows(&mut self, unit: UnitId, change: &RunChange) {
        if self.units.is_empty() || !self.units.contains_key(&unit) {
            return;
        }
        let ends = match change {
            RunChange::Bind(_) | RunChange::Terms(_) | RunChange::Compact(_) => false,
            RunChange::Evict(_) | RunChange::Requeue(_) => true,
            RunChange::Statuses(statuses) => statuses.phases.iter().any(|phase| phase.is_ended()),
        };
        if ends {
            self.stale.insert(unit);
        }
    }

    /// A unit's record is gone.
    pub(super) fn remove_unit(&mut self, unit: UnitId) {
        self.units.remove(&unit);
        self.stale.remove(&unit);
    }

    /// Gives daemons the replicas that the nodes want. `read`: everything up to there is known.
    pub(super) fn follow(
        &mut self,
        units: &Units,
        gates: &AssignmentGates,
        read: Revision,
        now: Millis,
        actions: &mut Vec<Action>,
    ) {
        while let Some((_, unit)) = self.ended.first().copied().filter(|(at, _)| *at <= now) {
            self.ended.pop_first();
            self.stale.insert(unit);
        }
        let is_due = |unit: &&UnitId| self.units.get(unit).is_none_or(|daemon| daemon.due <= now);
        let due: Vec<UnitId> = self.stale.iter().filter(is_due).take(LOOKS_MAX).copied().collect();
        for unit in due {
            let (Some(entry), Some(daemon)) = (units.get(unit), self.units.get_mut(&unit)) else {
                self.stale.remove(&unit);
                continue;
            };
            let Some(template) = template(&entry.record).filter(|_| !entry.phase.is_terminal()) else {
                self.stale.remove(&unit);
                continue;
            };
            if gates.frozen.unit(unit).is_some() || read < entry.revision {
                // What it has cannot be read, or has yet to be.
                daemon.due = now.plus(PACE_MS);
                continue;
            }
            let replaces = daemon.replaces_from <= now;
            let Self { words, nodes, .. } = &*self;
            let use_of = |id: NodeId| match nodes.get(&id) {
                // Nobody knows what it says.
                _ if gates.frozen.has_node(id) => NodeUse::Kept,
                Some(node) => words.node_use(node, template),
                None => NodeUse::Refused,
            };
            let wanted = nodes.keys().copied().filter(|id| use_of(*id) == NodeUse::Wanted);
            let followed = follow(&entry.record, &entry.rows, wanted, use_of, replaces);
            let Some(daemon) = self.units.get_mut(&unit) else { continue };
            if followed.n_ended > 0 && replaces {
                daemon.replaces_from = now.plus(REPLACE_MS);
            }
            match followed.record {
                Some(record) => {
                    daemon.changed_at = Some(now);
                    daemon.due = now.plus(PACE_MS);
                    actions.push(Action::Follow(Arc::new(record), entry.revision));
                }
                None => {
                    if followed.n_ended > 0 {
                        self.ended.insert((daemon.replaces_from, unit));
                    }
                    self.stale.remove(&unit);
                }
            }
        }
    }

    /// When a daemon is to be looked at next.
    pub(super) fn next_at(&self) -> Option<Millis> {
        let stale = self.stale.iter().filter_map(|unit| self.units.get(unit)).map(|daemon| daemon.due);
        stale.chain(self.ended.first().map(|(at, _)| *at)).min()
    }
}

/// The template of a daemon.
fn template(record: &UnitRecord) -> Option<&Template> {
    record.spec.task_groups.first().map(|group| &group.template)
}
