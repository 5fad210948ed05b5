//! A checker that recomputes everything from plain records for each question.

use std::collections::BTreeMap;

use godel_base::{
    ids::{NodeId, Revision},
    resources::CPU,
};
use godel_domain::{
    allocation::DeviceSet,
    decision::{Decision, RejectionReason},
    demand::Demand,
    node::{NodeReport, NodeSpec},
    queue_spec::QueueSpec,
    running_units::{Phase, RunChange, RunningUnits},
    unit::UnitRecord,
};

/// A binding that is under way.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) unit: u64,
    pub(super) ordinal: u32,
    pub(super) incarnation: u32,
    pub(super) node: NodeId,
    pub(super) devices: DeviceSet,
}

/// All records.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) specs: BTreeMap<NodeId, (NodeSpec, u64)>,
    pub(super) reports: BTreeMap<NodeId, NodeReport>,
    /// Last change of a node's spec or report.
    pub(super) changed: BTreeMap<NodeId, u64>,
    pub(super) units: BTreeMap<u64, (UnitRecord, u64)>,
    pub(super) rows: BTreeMap<u64, RunningUnits>,
    pub(super) pending: Vec<Pending>,
    pub(super) queues: BTreeMap<String, (QueueSpec, u64)>,
}

/// (milli-cores, thousandths of GPUs, running units) taken.
pub(super) type Used = (i64, i64, i64);

/// `a.b` is below `a`, and below itself.
fn is_below(path: &str, above: &str) -> bool {
    path == above || path.strip_prefix(above).is_some_and(|rest| rest.starts_with('.'))
}

impl Model {
    fn demand(&self, unit: u64) -> Demand {
        self.units[&unit].0.spec.task_groups[0].template.demand.clone()
    }

    /// (milli-cores, thousandths per device) taken on a node, everything under way included.
    pub(super) fn taken(&self, node: NodeId) -> (i64, Vec<u32>) {
        let mut cpu = 0;
        let mut milli = vec![0; self.reports.get(&node).map_or(0, |report| report.devices.len())];
        let live = self.rows.iter().flat_map(|(unit, rows)| {
            let demand = rows.groups.first().cloned().flatten().map(|group| (*group.demand).clone());
            rows.live()
                .map(|(_, row)| (*unit, row.node, row.allocation.devices, demand.clone().unwrap_or_default()))
                .collect::<Vec<_>>()
        });
        let pending = self
            .pending
            .iter()
            .map(|pending| (pending.unit, pending.node, pending.devices, self.demand(pending.unit)));
        for (_, on, devices, demand) in live.chain(pending) {
            if on != node {
                continue;
            }
            cpu += demand.requests.get(CPU);
            for (idx, milli) in milli.iter_mut().enumerate() {
                if devices.contains(idx) {
                    *milli += demand.devices.first().map_or(0, |devices| devices.milli);
                }
            }
        }
        (cpu, milli)
    }

    /// No node has more taken than it has.
    pub(super) fn assert_no_over_commit(&self) {
        for (node, report) in &self.reports {
            let (cpu, milli) = self.taken(*node);
            assert!(cpu <= report.capacity.get(CPU), "{node}: {cpu} of {}", report.capacity.get(CPU));
            assert!(milli.iter().all(|milli| *milli <= 1000), "{node}: {milli:?}");
        }
    }

    /// What a queue and those below it take, everything under way included.
    pub(super) fn used(&self, queue: &str) -> Used {
        let mut used = (0, 0, 0);
        for (id, (record, _)) in
            self.units.iter().filter(|(_, (record, _))| is_below(&record.spec.queue, queue))
        {
            let n_live = self.rows.get(id).map_or(0, |rows| rows.live().count());
            let n_pending = self.pending.iter().filter(|pending| pending.unit == *id).count();
            let n = i64::try_from(n_live + n_pending).unwrap();
            let demand = &record.spec.task_groups[0].template.demand;
            let milli = demand.devices.first().map_or(0, |devices| i64::from(devices.milli));
            used = (used.0 + n * demand.requests.get(CPU), used.1 + n * milli, used.2 + n);
        }
        used
    }

    /// Whether a queue and those above it have no more taken than they may, of what a demand asks for.
    pub(super) fn is_below_maxima(&self, queue: &str, demand: &Demand) -> bool {
        self.queues.iter().filter(|(path, _)| is_below(queue, path)).all(|(path, (spec, _))| {
            let (cpu, milli, n) = self.used(path);
            let within = |name: &str, asks: bool, used: i64| {
                !asks || spec.max.get(name).is_none_or(|max| used <= *max)
            };
            within(CPU, demand.requests.get(CPU) > 0, cpu)
                && within("gpu", !demand.devices.is_empty(), milli)
                && (spec.max_running_units == 0 || n <= i64::from(spec.max_running_units))
        })
    }

    /// Revisions of the records of a queue and those above it; 0 where there is none.
    pub(super) fn queue_revisions(&self, queue: &str) -> Vec<(String, u64)> {
        let ends = queue.match_indices('.').map(|(end, _)| end).chain([queue.len()]);
        let paths = ends.map(|end| queue[..end].to_owned());
        paths.map(|path| (path.clone(), self.queues.get(&path).map_or(0, |queue| queue.1))).collect()
    }

    fn covered(&self, unit: u64, ordinal: u32, incarnation: u32) -> bool {
        self.pending.iter().any(|p| (p.unit, p.ordinal, p.incarnation) == (unit, ordinal, incarnation))
    }

    /// The devices that a running unit gets on a node, or why it may not go there.
    fn grant(
        &self,
        unit: &UnitRecord,
        node: NodeId,
        nodes_as_of: Revision,
        devices: DeviceSet,
    ) -> Result<DeviceSet, RejectionReason> {
        let Some((spec, _)) = self.specs.get(&node) else { return Err(RejectionReason::NodeGone) };
        let Some(report) = self.reports.get(&node).filter(|report| report.ready) else {
            return Err(RejectionReason::NodeNotReady);
        };
        if spec.cordoned {
            return Err(RejectionReason::NodeCordoned);
        }
        let template = &unit.spec.task_groups[0].template;
        if self.changed[&node] > nodes_as_of.0 {
            if template.node_selector.iter().any(|(key, value)| spec.labels.get(key) != Some(value)) {
                return Err(RejectionReason::NodeSelector);
            }
            if !spec.taints.is_empty() {
                return Err(RejectionReason::Taint);
            }
        }
        let (cpu, milli) = self.taken(node);
        if cpu + template.demand.requests.get(CPU) > report.capacity.get(CPU) {
            return Err(RejectionReason::InsufficientResources);
        }
        let asked = template.demand.devices.first().map_or(0, |devices| devices.milli);
        let left = |idx: usize| 1000 - milli[idx];
        let granted = if asked == 0 {
            devices.is_empty().then_some(DeviceSet::NONE)
        } else if devices.len() != 1 || devices.iter().any(|idx| idx >= milli.len()) {
            None
        } else if devices.iter().all(|idx| left(idx) >= asked) {
            Some(devices)
        } else {
            let others = (0..milli.len()).filter(|idx| left(*idx) >= asked);
            others.min_by_key(|idx| left(*idx)).map(|idx| DeviceSet(1 << idx))
        };
        granted.ok_or(RejectionReason::DeviceTaken)
    }

    /// What has to become of a decision of one task group: the ordinals bound with their devices, and a reason for each of the
    /// others; `None` when it has to wait for what is under way.
    pub(super) fn judge(
        &mut self,
        decision: &Decision,
    ) -> Option<(BTreeMap<u32, DeviceSet>, BTreeMap<u32, RejectionReason>)> {
        let (id, placement) = (decision.unit.0, &decision.groups[0]);
        let rows = self.rows.get(&id).cloned().unwrap_or_default();
        let mut bound = BTreeMap::new();
        let mut refused = BTreeMap::new();
        let mut rest = Vec::new();
        for (idx, &ordinal) in placement.ordinals.iter().enumerate() {
            let row = rows.row(ordinal);
            if row.incarnation == placement.incarnation(idx) && row.phase != Phase::Pending {
                refused.insert(ordinal, RejectionReason::AlreadyBound);
            } else if self.covered(id, ordinal, placement.incarnation(idx)) {
                return None;
            } else {
                rest.push(idx);
            }
        }
        let n_pending_before = self.pending.len();
        let under_way = self.pending.iter().filter(|pending| pending.unit == id).count();
        let unit = self.units.get(&id).filter(|(_, revision)| *revision == decision.spec_revision.0).cloned();
        for idx in rest {
            let (ordinal, incarnation) = (placement.ordinals[idx], placement.incarnation(idx));
            let wanted = unit.as_ref().filter(|(record, _)| {
                record.is_wanted()
                    && record.group_of(ordinal) == Some(0)
                    && rows.row(ordinal).incarnation == incarnation
            });
            let Some((record, _)) = wanted else {
                refused.insert(ordinal, RejectionReason::UnitChanged);
                continue;
            };
            let (node, devices) = (placement.nodes[idx], placement.allocation(idx).devices);
            match self.grant(record, node, decision.nodes_as_of, devices) {
                Err(reason) => {
                    refused.insert(ordinal, reason);
                }
                Ok(devices) => {
                    bound.insert(ordinal, devices);
                    self.pending.push(Pending { unit: id, ordinal, incarnation, node, devices });
                }
            }
        }
        // Of those the first that fit under the maxima.
        let mut full = false;
        if let Some((record, _)) = &unit {
            let placed = self.pending.split_off(n_pending_before);
            for pending in placed {
                let ordinal = pending.ordinal;
                self.pending.push(pending);
                if full
                    || !self.is_below_maxima(&record.spec.queue, &record.spec.task_groups[0].template.demand)
                {
                    full = true;
                    self.pending.pop();
                    bound.remove(&ordinal);
                    refused.insert(ordinal, RejectionReason::QueueFull);
                }
            }
        }
        self.pending.truncate(n_pending_before);
        let min_member = unit.as_ref().map_or(0, |(record, _)| record.spec.min_member as usize);
        let is_wanted = |ordinal| unit.as_ref().is_some_and(|(record, _)| record.group_of(ordinal).is_some());
        let wanted = rows.rows.iter().filter(|(ordinal, _)| is_wanted(*ordinal));
        let existing = wanted.filter(|(_, row)| row.phase != Phase::Pending || row.incarnation > 0).count();
        if !bound.is_empty() && bound.len() + existing < min_member {
            if bound.len() + existing + under_way >= min_member {
                return None;
            }
            let reason = if full { RejectionReason::QueueFull } else { RejectionReason::MinMember };
            refused.extend(std::mem::take(&mut bound).into_keys().map(|ordinal| (ordinal, reason)));
        }
        Some((bound, refused))
    }

    /// A committed change to rows.
    pub(super) fn apply(&mut self, unit: u64, change: &RunChange, revision: u64) {
        let rows = self.rows.entry(unit).or_default();
        assert_eq!(rows.check(change), Ok(()), "state would refuse it");
        rows.apply(change, godel_base::ids::Revision(revision), 1, |_, _, _| {});
    }
}
