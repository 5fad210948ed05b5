//! Replicas that fail at once: which nodes they speak against, and which of them are tried on another node before their end is final.
//!
//! Everything here is kept in memory, bounded and for a short time: after a restart of state it begins anew. What a node gets for it, a taint
//! or a quarantine, is in its record.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{Hash as _, Hasher as _},
};

use godel_base::{
    ids::{NodeId, UnitId},
    time::Millis,
    words,
};
use godel_domain::{
    node::{NodeReport, NodeSpec, Quarantine, TaintEffect},
    running_units::Phase,
    unit::{RestartPolicy, Template, UnitRecord, WorkloadClass},
};
use godel_membership::{
    agent_admission::AssignmentRefusal,
    node_failures::{
        self, Elsewhere, FailureConfig, NodeVerdict, QuickEnd, QuickEnds, RunsHere, TriedNodes, could_use,
    },
};
use godel_proto::v1;
use godel_store::{Key, State};
use godel_wire::from_proto;
use prost::Message as _;
use rustc_hash::FxHasher;

use super::{NodeSessions, cell::CellReport};

/// How the reason of a quarantine begins that is about failures.
const REASON: &str = "units fail there: ";
/// How it ends where different commands fail, and where the same ones run elsewhere.
const BARREN: &str = "; nothing that was started there does well, and other units do elsewhere";
const PROVEN: &str = "; the same commands run on other nodes";
/// Nodes that are looked at to find another one for a replica.
const N_OTHERS_MAX: usize = 32;
/// Units that are looked at to see how a command does elsewhere, the newest ones.
const N_UNITS_MAX: u64 = 2_000;
/// Replicas that are being tried on other nodes.
const N_TRIED_MAX: usize = 10_000;
/// A command that has run for so long on another node has not failed at once there, milliseconds.
const RUNS_MS_MIN: u64 = 1_000;
/// So often it is looked whether a quarantined node is the last one for something that waits, milliseconds.
const LAST_LOOK_MS: u64 = 5_000;

/// What was seen of late.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    ends: QuickEnds,
    /// Since when nodes are suspect.
    suspect: BTreeMap<NodeId, Millis>,
    /// The taint of each node that has one, by its record.
    tainted: BTreeMap<NodeId, Option<TaintEffect>>,
    /// Quarantined for failures, by their records.
    bad: BTreeSet<NodeId>,
    /// Those of them where different commands fail.
    barren: BTreeSet<NodeId>,
    tried: BTreeMap<(UnitId, u32), TriedNodes<NodeId>>,
    order: VecDeque<(UnitId, u32)>,
    looked_for_last: Option<Millis>,
    /// The last ones that something that waits could use, when that was looked at.
    last: BTreeSet<NodeId>,
    /// Enough has failed on a node to look at it now.
    is_due: bool,
}

/// What runs, or has ended well, of what is on nodes.
#[derive(Debug, Default)]
struct DoesWell {
    /// Commands, on other nodes.
    kinds: BTreeSet<u64>,
    /// Queues of units that began there of late.
    queues: BTreeSet<String>,
    /// Something began on the node of late.
    here: bool,
}

/// A replica that does well.
struct WellRow {
    group: u16,
    /// For so long it has run; the longest time if it has ended well.
    ms: i64,
    began_of_late: bool,
}

/// What is to be done to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeMeasure {
    /// It gets the taint of a suspect node, or loses it.
    Suspect(NodeId, Option<TaintEffect>),
    /// It gets nothing for a while.
    Quarantine(NodeId, Quarantine),
    /// It may be used again: something that waits can go nowhere else.
    Lift(NodeId),
}

/// A node as far as it decides about replicas.
type JudgedNode = (NodeSpec, NodeReport);

impl NodeSessions {
    /// A replica has ended on a node. Returns its end as it is to be recorded: one that is the node's fault is none, and it is tried
    /// elsewhere.
    pub(crate) fn failed(&self, node: NodeId, report: CellReport) -> CellReport {
        let Some(reason) = report.end.reason.filter(|_| report.phase == Phase::Failed) else { return report };
        let is_lack = node_failures::is_lack(reason);
        let ran_ms = match report.end.started_ms {
            0 => 0,
            started_ms => u64::try_from(report.end.ended_ms.saturating_sub(started_ms)).unwrap_or(0),
        };
        let by_itself = is_lack || is_by_itself(&report);
        if self.failing.n_replicas == 0 || !by_itself || ran_ms > self.failing.quick_ms {
            return report;
        }
        let (id, ordinal) = (report.key.unit, report.key.replica.ordinal);
        let Some((unit, template)) = self.template_of(id, ordinal) else { return report };
        // These have no choice of their nodes, or their masters decide what becomes of them.
        let is_free = unit.spec.class != WorkloadClass::Daemon
            && unit.spec.class != WorkloadClass::Yarn
            && template.run.await_command_ms.is_none()
            && template.run.volumes.is_empty();
        if !is_free {
            return report;
        }
        let now = self.now();
        let end = QuickEnd { replica: (id, ordinal), kind: kind(&template), ran_ms, at: now };
        let mut failures = self.failures.lock();
        failures.ends.note(node, end);
        if failures.ends.n_on(node) >= self.failing.n_replicas && !failures.suspect.contains_key(&node) {
            failures.is_due = true;
            self.due_nodes.wake_writer();
        }
        let is_suspect = failures.suspect.contains_key(&node) || failures.bad.contains(&node);
        let may_move = is_lack || is_suspect && unit.spec.restart_policy != RestartPolicy::Never;
        if !may_move {
            return report;
        }
        let mut tried = failures.tried.get(&(id, ordinal)).cloned().unwrap_or_default();
        tried.note(node);
        drop(failures);
        if !tried.goes_elsewhere(|nodes| self.has_other(nodes, &template)) {
            self.failures.lock().tried.remove(&(id, ordinal));
            return report;
        }
        let mut failures = self.failures.lock();
        // It ranks lower for a while: the next try goes elsewhere if it can.
        if is_lack {
            let since = self.long_ago(now);
            failures.suspect.entry(node).or_insert(since);
        }
        failures.keep(id, ordinal, tried);
        failures.is_due = true;
        drop(failures);
        let why = AssignmentRefusal::Lacks;
        self.metrics.assignments_refused.get_or_create(&vec![("why", why.name())]).inc();
        self.due_nodes.wake_writer();
        CellReport { phase: Phase::Stopped, ..report }
    }

    /// The unit of a replica and its template.
    fn template_of(&self, unit: UnitId, ordinal: u32) -> Option<(UnitRecord, Template)> {
        let (value, group) = self.store.read(|state| {
            let record = state.record(v1::Kind::Unit, &Key::Id(unit.0))?;
            let group = state.rows().get(unit)?.row(ordinal).group;
            Some((record.value.clone(), usize::from(group)))
        })?;
        let unit = from_proto::unit_record(v1::UnitRecord::decode(value).ok()?).ok()?;
        let template = unit.spec.task_groups.get(group)?.template.clone();
        Some((unit, template))
    }

    /// Whether some node beside these would take a replica: among as many as are worth a look.
    fn has_other(&self, but: &[NodeId], template: &Template) -> bool {
        let first = but.first().map_or(0, |node| u64::from(node.0));
        let found = self.store.read(|state| {
            let behind = state.records(v1::Kind::NodeSpec, Some(&Key::Id(first)));
            let before = state.records(v1::Kind::NodeSpec, None);
            let nodes = behind.chain(before).filter_map(|(key, _)| match key {
                Key::Id(id) => u32::try_from(*id).ok().map(NodeId),
                Key::Name(_) => None,
            });
            let others = nodes.filter(|node| !but.contains(node)).take(N_OTHERS_MAX);
            others.filter_map(|node| raw_node(state, node)).collect::<Vec<_>>()
        });
        found
            .into_iter()
            .filter_map(|(spec, report)| known(spec, report))
            .any(|(spec, report)| could_use(&spec, &report, template))
    }

    /// Whether it is time to review before the next scan.
    pub(crate) fn is_review_due(&self) -> bool {
        self.failures.lock().is_due
    }

    /// What is to be done to nodes now, for what has failed there.
    pub(crate) fn review_failures(&self) -> Vec<NodeMeasure> {
        let now = self.now();
        let mut failures = self.failures.lock();
        failures.is_due = false;
        if failures.is_quiet() {
            return Vec::new();
        }
        failures.ends.prune(now, &self.failing);
        let ends: Vec<(NodeId, Vec<QuickEnd>)> = failures.ends.iter().collect();
        drop(failures);
        let mut measures = Vec::new();
        for (node, ends) in ends {
            match self.judge(node, &ends) {
                // Enough has failed there, and it is not the node's fault.
                NodeVerdict::Sound if ends.len() >= self.failing.n_replicas => {
                    self.failures.lock().suspect.remove(&node);
                }
                NodeVerdict::Sound => {}
                verdict => measures.extend(self.act_on(node, &ends, verdict, now)),
            }
        }
        let mut failures = self.failures.lock();
        measures.extend(failures.taints(now, &self.failing));
        let is_due = failures.looked_for_last.is_none_or(|at| now.since(at) >= LAST_LOOK_MS);
        let bad: Vec<NodeId> = if is_due { failures.bad.iter().copied().collect() } else { Vec::new() };
        if !bad.is_empty() {
            failures.looked_for_last = Some(now);
        }
        drop(failures);
        for node in bad.into_iter().filter(|node| self.is_last(*node)) {
            self.failures.lock().suspect.insert(node, self.long_ago(now));
            measures.push(NodeMeasure::Lift(node));
        }
        measures
    }

    /// Since when a node is suspect that only ranks lower.
    fn long_ago(&self, now: Millis) -> Millis {
        Millis(now.0.saturating_sub(self.failing.hold_ms))
    }

    /// Quarantines a node that is bad; one that is suspect, or the last one for something that waits, ranks lower.
    fn act_on(
        &self,
        node: NodeId,
        ends: &[QuickEnd],
        verdict: NodeVerdict,
        now: Millis,
    ) -> Option<NodeMeasure> {
        let n_nodes = self.store.read(|state| state.records(v1::Kind::NodeSpec, None).count());
        let mut failures = self.failures.lock();
        let may_be_barren = node_failures::may_be_barren(failures.barren.len(), n_nodes);
        let was_suspect = failures.suspect.contains_key(&node);
        let was_looked = failures.looked_for_last.is_some_and(|at| now.since(at) < LAST_LOOK_MS);
        let is_known = match verdict {
            NodeVerdict::Sound => true,
            NodeVerdict::Suspect => was_suspect,
            NodeVerdict::Barren if !may_be_barren => was_suspect,
            NodeVerdict::Barren | NodeVerdict::Bad => was_looked && failures.last.contains(&node),
        };
        if failures.bad.contains(&node) || is_known {
            return None;
        }
        failures.looked_for_last = Some(now);
        drop(failures);
        let is_last = self.is_last(node);
        let mut failures = self.failures.lock();
        if is_last {
            failures.last.insert(node);
        } else {
            failures.last.remove(&node);
        }
        let is_bad = verdict == NodeVerdict::Bad || verdict == NodeVerdict::Barren && may_be_barren;
        if is_bad && !is_last {
            failures.bad.insert(node);
            if verdict == NodeVerdict::Barren {
                failures.barren.insert(node);
            }
            failures.suspect.remove(&node);
            failures.ends.forget(node);
            drop(failures);
            return Some(NodeMeasure::Quarantine(node, self.quarantine_of(ends, verdict)));
        }
        let since = if is_last { self.long_ago(now) } else { now };
        failures.suspect.insert(node, since);
        if !was_suspect {
            tracing::warn!(
                node_id = node.0,
                n = ends.len(),
                "units fail on a node: it ranks lower until it is known whether they run elsewhere"
            );
        }
        None
    }

    fn judge(&self, node: NodeId, ends: &[QuickEnd]) -> NodeVerdict {
        if ends.len() < self.failing.n_replicas {
            return NodeVerdict::Sound;
        }
        let mut slowest: BTreeMap<u64, u64> = BTreeMap::new();
        let mut known: BTreeMap<u64, (String, Template)> = BTreeMap::new();
        for end in ends {
            let ran_ms = slowest.entry(end.kind).or_default();
            *ran_ms = end.ran_ms.max(*ran_ms);
            if !known.contains_key(&end.kind) {
                let found = self.template_of(end.replica.0, end.replica.1);
                known.extend(found.map(|(unit, template)| (end.kind, (unit.spec.queue, template))));
            }
        }
        let well = self.what_does_well(node, &slowest);
        let of_kind: BTreeMap<u64, Elsewhere> = slowest
            .keys()
            .map(|kind| {
                let fails = self.failures.lock().ends.fails_elsewhere(*kind, node);
                let of = known.get(kind);
                let could_run = of.is_some_and(|(_, template)| self.has_other(&[node], template));
                let others_run = of.is_some_and(|(queue, _)| well.queues.contains(queue));
                (*kind, Elsewhere { runs: well.kinds.contains(kind), fails, could_run, others_run })
            })
            .collect();
        let here = if well.here { RunsHere::Something } else { RunsHere::Nothing };
        let elsewhere = |end: &QuickEnd| of_kind.get(&end.kind).copied().unwrap_or_default();
        node_failures::judge(ends, elsewhere, here, &self.failing)
    }

    /// Which of these commands run on other nodes for longer than here, or have ended well there, and what else does well that began of
    /// late, on other nodes and here; among the newest units.
    fn what_does_well(&self, node: NodeId, slowest: &BTreeMap<u64, u64>) -> DoesWell {
        let now_ms = self.wall_ms();
        let runs_ms = |kind: u64| {
            let ms = slowest.get(&kind).copied().unwrap_or(0).saturating_mul(3).max(RUNS_MS_MIN);
            i64::try_from(ms).unwrap_or(i64::MAX)
        };
        let least = slowest.keys().map(|kind| runs_ms(*kind)).min().unwrap_or(i64::MAX);
        // What is not known to be one of these has to run for longer than each of them.
        let most = slowest.keys().map(|kind| runs_ms(*kind)).max().unwrap_or(i64::MAX);
        let window_ms = i64::try_from(self.failing.window_ms).unwrap_or(i64::MAX);
        let mut found = DoesWell::default();
        let candidates = self.store.read(|state| {
            let after = UnitId(state.last_unit_id().0.saturating_sub(N_UNITS_MAX));
            let mut candidates = Vec::new();
            for (unit, _, rows) in state.rows().iter(Some(after)) {
                let well = rows.rows.values().filter_map(|row| {
                    let age_ms = now_ms.saturating_sub(row.bound_time_ms);
                    let ms = match row.phase {
                        Phase::Succeeded => i64::MAX,
                        Phase::Running => age_ms,
                        Phase::Pending | Phase::Bound | Phase::Starting | Phase::Failed | Phase::Stopped => {
                            return None;
                        }
                    };
                    let well = WellRow { group: row.group, ms, began_of_late: age_ms < window_ms };
                    (ms >= least).then_some((row.node == node, well))
                });
                let (here, elsewhere): (Vec<_>, Vec<_>) = well.partition(|(is_here, _)| *is_here);
                found.here |= here.iter().any(|(_, well)| well.began_of_late && well.ms >= most);
                let elsewhere: Vec<WellRow> = elsewhere.into_iter().map(|(_, well)| well).collect();
                let record = state.record(v1::Kind::Unit, &Key::Id(unit.0));
                if let (false, Some(record)) = (elsewhere.is_empty(), record) {
                    candidates.push((record.value.clone(), elsewhere));
                }
            }
            candidates
        });
        for (value, rows) in candidates {
            let unit = v1::UnitRecord::decode(value).ok().and_then(|pb| from_proto::unit_record(pb).ok());
            let Some(unit) = unit else { continue };
            for WellRow { group, ms, .. } in &rows {
                let template = unit.spec.task_groups.get(usize::from(*group)).map(|group| &group.template);
                let of = template.map(kind);
                found.kinds.extend(of.filter(|kind| slowest.contains_key(kind) && *ms >= runs_ms(*kind)));
            }
            if rows.iter().any(|well| well.began_of_late && well.ms >= most) {
                found.queues.insert(unit.spec.queue);
            }
        }
        found
    }

    /// Whether something that waits could use a node and no other one; among the newest units.
    fn is_last(&self, node: NodeId) -> bool {
        let (waiting, nodes) = self.store.read(|state| {
            let after = Key::Id(state.last_unit_id().0.saturating_sub(N_UNITS_MAX));
            // How many of its replicas have a place, or have had one.
            let n_placed = |key: &Key| match key {
                Key::Id(id) => state
                    .rows()
                    .get(UnitId(*id))
                    .map_or(0, |rows| rows.rows.values().filter(|row| row.phase != Phase::Pending).count()),
                Key::Name(_) => 0,
            };
            let units = state.records(v1::Kind::Unit, Some(&after));
            let waiting: Vec<_> = units.map(|(key, record)| (record.value.clone(), n_placed(key))).collect();
            let ids = state.records(v1::Kind::NodeSpec, None).filter_map(|(key, _)| match key {
                Key::Id(id) => u32::try_from(*id).ok().map(NodeId),
                Key::Name(_) => None,
            });
            let nodes: Vec<_> = if waiting.is_empty() {
                Vec::new()
            } else {
                ids.filter_map(|id| raw_node(state, id)).collect()
            };
            (waiting, nodes)
        });
        let mut templates: BTreeMap<u64, Template> = BTreeMap::new();
        for (value, n_placed) in waiting {
            let unit = v1::UnitRecord::decode(value).ok().and_then(|pb| from_proto::unit_record(pb).ok());
            let waits = |unit: &UnitRecord| {
                let wanted = unit.spec.task_groups.iter().map(|group| u64::from(group.replicas)).sum::<u64>();
                let is_open = !unit.status.cancelled && unit.status.ended.is_none();
                is_open && wanted > u64::try_from(n_placed).unwrap_or(u64::MAX)
            };
            let Some(unit) = unit.filter(waits) else { continue };
            let of = unit.spec.task_groups.into_iter().map(|group| group.template);
            templates.extend(of.map(|template| (needs(&template), template)));
        }
        let nodes: Vec<JudgedNode> =
            nodes.into_iter().filter_map(|(spec, report)| known(spec, report)).collect();
        let (own, others): (Vec<JudgedNode>, Vec<JudgedNode>) =
            nodes.into_iter().partition(|(spec, _)| spec.id == node);
        let Some((mut spec, report)) = own.into_iter().next() else { return false };
        // As it would be without what is done to it here.
        spec.quarantine = None;
        spec.taints.retain(|taint| taint.key != node_failures::SUSPECT);
        templates.values().any(|template| {
            could_use(&spec, &report, template)
                && !others.iter().any(|(spec, report)| could_use(spec, report, template))
        })
    }

    fn quarantine_of(&self, ends: &[QuickEnd], verdict: NodeVerdict) -> Quarantine {
        let since_ms = self.wall_ms();
        let lasts_ms = i64::try_from(self.quarantine.lasts_ms).unwrap_or(i64::MAX);
        let replicas: BTreeSet<(UnitId, u32)> = ends.iter().map(|end| end.replica).collect();
        let n = u32::try_from(replicas.len()).unwrap_or(u32::MAX);
        let last = ends.last().and_then(|end| {
            let unit = self.templates.of_unit(&self.store, end.replica.0.0)?;
            Some(format!(", the last {}/{}", unit.unit_name, end.replica.1))
        });
        let reason = format!(
            "{REASON}{} ended at once within {} s{}{}",
            words::count(n, "replica"),
            self.failing.window_ms.div_ceil(1_000),
            last.unwrap_or_default(),
            if verdict == NodeVerdict::Barren { BARREN } else { PROVEN }
        );
        Quarantine { since_ms, until_ms: since_ms.saturating_add(lasts_ms), reason }
    }

    /// A node's record says this of its taints and its quarantine; `None`: the record is gone.
    pub(crate) fn note_spec(&self, node: NodeId, spec: Option<&v1::NodeSpec>) {
        let mut failures = self.failures.lock();
        let taint =
            spec.and_then(|spec| spec.taints.iter().find(|taint| taint.key == node_failures::SUSPECT));
        match taint {
            Some(taint) => {
                let effect = from_proto::taint(taint.clone()).ok().map(|taint| taint.effect);
                failures.tainted.insert(node, effect);
            }
            None => drop(failures.tainted.remove(&node)),
        }
        let quarantine = spec.and_then(|spec| spec.quarantine.as_ref());
        let reason =
            quarantine.map(|quarantine| quarantine.reason.as_str()).filter(|why| why.starts_with(REASON));
        if reason.is_some_and(|reason| reason.ends_with(BARREN)) {
            failures.barren.insert(node);
        } else {
            failures.barren.remove(&node);
        }
        if reason.is_some() {
            failures.bad.insert(node);
        } else if failures.bad.remove(&node) {
            // It begins anew.
            failures.ends.forget(node);
        }
        if spec.is_none() {
            failures.ends.forget(node);
            failures.suspect.remove(&node);
        }
    }
}

impl Failures {
    fn is_quiet(&self) -> bool {
        self.ends.is_empty() && self.suspect.is_empty() && self.tainted.is_empty() && self.bad.is_empty()
    }

    fn keep(&mut self, unit: UnitId, ordinal: u32, tried: TriedNodes<NodeId>) {
        let replica = (unit, ordinal);
        if self.tried.insert(replica, tried).is_none() {
            self.order.push_back(replica);
        }
        while self.order.len() > N_TRIED_MAX {
            let oldest = self.order.pop_front();
            oldest.iter().for_each(|oldest| drop(self.tried.remove(oldest)));
        }
    }

    /// The taints that nodes are to have, and have not.
    fn taints(&mut self, now: Millis, config: &FailureConfig) -> Vec<NodeMeasure> {
        let wanted = |since: Millis| node_failures::suspicion(since, now, config);
        self.suspect.retain(|_, since| wanted(*since).is_some());
        let mut measures: Vec<NodeMeasure> = self
            .suspect
            .iter()
            .map(|(node, since)| (*node, wanted(*since)))
            .filter(|(node, effect)| self.tainted.get(node).copied().flatten() != *effect)
            .map(|(node, effect)| NodeMeasure::Suspect(node, effect))
            .collect();
        let gone = self.tainted.keys().filter(|node| !self.suspect.contains_key(node));
        measures.extend(gone.map(|node| NodeMeasure::Suspect(*node, None)));
        measures
    }
}

/// Whether a command has ended because of what it did or could not do, and not because of its keeper, its agent or its machine.
fn is_by_itself(report: &CellReport) -> bool {
    use godel_domain::run_end::RunEndReason::{Exited, Signalled};
    matches!(report.end.reason, Some(Exited | Signalled))
}

/// Stands for what a template runs.
fn kind(template: &Template) -> u64 {
    let run = &template.run;
    let mut hasher = FxHasher::default();
    (&run.command, &run.image, &run.working_directory, &run.user).hash(&mut hasher);
    hasher.finish()
}

/// Stands for what a template needs of a node.
fn needs(template: &Template) -> u64 {
    let Template { demand, node_selector, tolerations, node_affinity, max_load: _, run } = template;
    let mut hasher = FxHasher::default();
    (demand, node_selector, tolerations, node_affinity, run.runtime_need()).hash(&mut hasher);
    hasher.finish()
}

fn raw_node(state: &State, node: NodeId) -> Option<(bytes::Bytes, bytes::Bytes)> {
    let key = Key::Id(u64::from(node.0));
    let spec = state.record(v1::Kind::NodeSpec, &key)?.value.clone();
    Some((spec, state.record(v1::Kind::NodeReport, &key)?.value.clone()))
}

fn known(spec: bytes::Bytes, report: bytes::Bytes) -> Option<JudgedNode> {
    let spec = from_proto::node_spec(v1::NodeSpec::decode(spec).ok()?).ok()?;
    Some((spec, from_proto::node_report(v1::NodeReport::decode(report).ok()?).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taint_follows_the_suspicion_and_goes_with_it_also_after_a_restart() {
        let config = FailureConfig::default();
        let mut failures = Failures::default();
        let (one, other) = (NodeId(1), NodeId(2));
        // Left behind by a state that was restarted.
        failures.tainted.insert(other, Some(TaintEffect::NoSchedule));
        failures.suspect.insert(one, Millis(0));
        let hard = NodeMeasure::Suspect(one, Some(TaintEffect::NoSchedule));
        assert_eq!(failures.taints(Millis(1), &config), [hard, NodeMeasure::Suspect(other, None)]);
        failures.tainted = BTreeMap::from([(one, Some(TaintEffect::NoSchedule))]);
        assert_eq!(failures.taints(Millis(2), &config), []);
        let soft = NodeMeasure::Suspect(one, Some(TaintEffect::PreferNoSchedule));
        assert_eq!(failures.taints(Millis(config.hold_ms), &config), [soft]);
        assert_eq!(failures.taints(Millis(config.window_ms), &config), [NodeMeasure::Suspect(one, None)]);
    }

    #[test]
    fn what_is_tried_elsewhere_is_bounded() {
        let mut failures = Failures::default();
        let n = u64::try_from(N_TRIED_MAX).unwrap() + 5;
        (0..n).for_each(|unit| failures.keep(UnitId(unit), 0, TriedNodes::default()));
        assert_eq!((failures.tried.len(), failures.order.len()), (N_TRIED_MAX, N_TRIED_MAX));
        assert!(
            !failures.tried.contains_key(&(UnitId(4), 0)) && failures.tried.contains_key(&(UnitId(5), 0))
        );
    }

    #[test]
    fn commands_are_told_apart_by_what_they_do() {
        let of = |words: &[&str]| {
            let mut template = Template::default();
            template.run.command = words.iter().map(|word| (*word).to_owned()).collect();
            kind(&template)
        };
        assert_eq!(of(&["sleep", "5"]), of(&["sleep", "5"]));
        assert_ne!(of(&["sleep", "5"]), of(&["sleep", "6"]));
    }
}
