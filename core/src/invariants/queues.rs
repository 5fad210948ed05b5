//! I5: what each queue uses, summed anew, and no binding that raises it above a maximum.
//!
//! A maximum may be set below what is used: that evicts nobody, so only a history tells a queue that was lowered from
//! one that was raised. It is replayed with the records as they were.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Evidence, Findings, History, Invariant, Report, room, world::World};
use crate::{
    change::Change, demand::Demand, ids::Revision, queue::spec::QueueSpec, resources::Resources,
    rows::RowChange,
};

/// What a queue and those below it use. Devices count by their kind in thousandths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Used {
    amounts: Resources,
    running_units: i64,
}

impl Used {
    fn add(&mut self, demand: &Demand, times: i64) {
        self.amounts.add(&demand.requests, times);
        if let Some(devices) = &demand.devices {
            let milli = i64::from(devices.count) * i64::from(devices.milli);
            self.amounts.add(&Resources::new([(devices.kind.as_str(), milli)]).unwrap_or_default(), times);
        }
        self.running_units += times;
    }

    /// What is above a maximum, in words.
    fn excess<'a>(&'a self, spec: &'a QueueSpec) -> impl Iterator<Item = String> + 'a {
        let amounts = spec.max.iter().map(|(name, max)| (name.as_str(), self.amounts.get(name), *max));
        let n_max = i64::from(spec.max_running_units);
        let running_units = (n_max > 0).then_some(("running units", self.running_units, n_max));
        let above = amounts.chain(running_units).filter(|(_, used, max)| used > max);
        above.map(|(name, used, max)| format!("queue {}: {name} {used} of {max}", spec.name))
    }
}

pub(super) fn check(evidence: &Evidence) -> Report {
    let mut findings = Findings::default();
    let world = &evidence.listed;
    let mut by_queue: BTreeMap<&str, Used> = BTreeMap::new();
    let mut n = 0usize;
    for (id, unit) in &world.units {
        for row in unit.rows.values().filter(|row| row.is_live()) {
            n += 1;
            let Some(spec) = &unit.spec else {
                findings
                    .add(|| format!("unit id {id} has running units but no record: no queue pays for them"));
                break;
            };
            if let Some((demand, _)) = unit.demands.get(&row.group) {
                for level in levels(&spec.value.queue) {
                    by_queue.entry(level).or_default().add(demand, 1);
                }
            }
        }
    }
    for (queue, maximum) in &evidence.queue_maxima {
        let Some(used) = by_queue.get(queue.as_str()) else { continue };
        for (name, most) in maximum.iter() {
            if used.amounts.get(name) > most {
                findings.add(|| format!("queue {queue}: {name} {} of {most}", used.amounts.get(name)));
            }
        }
    }
    let on_nodes: usize = room::usage(world, |_| true).values().map(|usage| usage.n).sum();
    if on_nodes != n {
        findings.add(|| format!("queues pay for {n} running units, nodes hold {on_nodes}"));
    }
    let how = if evidence.history.is_complete() {
        let n_maxima = replay(&evidence.history, &mut findings);
        format!("{n_maxima} with a maximum, kept by each of {} commits", evidence.history.commits.len())
    } else {
        format!("maxima not judged: the history begins at revision {}", evidence.history.floor)
    };
    findings.checked(format!("{} queues pay for {n} running units; {how}", by_queue.len()));
    findings.report(Invariant::I5)
}

/// Every level of the tree pays: `a.b` counts in `a` and in `a.b`.
fn levels(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('.').map(|(idx, _)| idx).chain([path.len()]).map(|end| &path[..end])
}

/// Looks at each queue in which a commit bound something. Returns how many ever had a maximum.
fn replay(history: &History, findings: &mut Findings) -> usize {
    let mut world = World::default();
    let mut records: BTreeMap<String, Arc<QueueSpec>> = BTreeMap::new();
    let mut used: BTreeMap<String, Used> = BTreeMap::new();
    let mut limited: BTreeSet<String> = BTreeSet::new();
    for commit in &history.commits {
        for change in &commit.changes {
            match change {
                Change::Queue(spec) => {
                    if !spec.max.is_empty() || spec.max_running_units > 0 {
                        limited.insert(spec.name.clone());
                    }
                    records.insert(spec.name.clone(), Arc::clone(spec));
                }
                Change::QueueDeleted(path) => {
                    records.remove(path);
                }
                Change::UnitDeleted(id) => {
                    let Some(unit) = world.units.get(id) else { continue };
                    for row in unit.rows.values().filter(|row| row.is_live()) {
                        count(&mut used, &world, *id, row.group, -1);
                    }
                }
                _ => {}
            }
        }
        let mut bound: BTreeSet<String> = BTreeSet::new();
        world.apply(commit, |world, step| {
            let after = world.units.get(&step.unit).and_then(|unit| unit.rows.get(&step.ordinal));
            let Some(after) = after.filter(|_| step.applied) else { return };
            match (step.before.is_live(), after.is_live()) {
                (false, true) => count(&mut used, world, step.unit, after.group, 1),
                (true, false) => count(&mut used, world, step.unit, step.before.group, -1),
                (true, true) | (false, false) => {}
            }
            if matches!(step.change, RowChange::Bind(_)) {
                let spec = world.units.get(&step.unit).and_then(|unit| unit.spec.as_ref());
                bound.extend(spec.iter().flat_map(|spec| levels(&spec.value.queue)).map(str::to_owned));
            }
        });
        judge(&records, &used, &bound, commit.revision, findings);
    }
    limited.len()
}

fn count(used: &mut BTreeMap<String, Used>, world: &World, id: crate::ids::UnitId, group: u16, times: i64) {
    let Some(unit) = world.units.get(&id) else { return };
    let (Some(spec), Some((demand, _))) = (&unit.spec, unit.demands.get(&group)) else { return };
    for level in levels(&spec.value.queue) {
        used.entry(level.to_owned()).or_default().add(demand, times);
    }
}

fn judge(
    records: &BTreeMap<String, Arc<QueueSpec>>,
    used: &BTreeMap<String, Used>,
    bound: &BTreeSet<String>,
    revision: Revision,
    findings: &mut Findings,
) {
    for queue in bound {
        let (Some(spec), Some(used)) = (records.get(queue), used.get(queue)) else { continue };
        for above in used.excess(spec) {
            findings.add(|| format!("{above} (revision {revision})"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        demand::{DeviceRequest, Pool},
        ids::{NodeId, UnitId},
        invariants::Commit,
        rows::{Bind, Phase, Statuses},
        unit::{RestartPolicy, ScoringProfile, UnitSpec, WorkloadClass},
    };

    fn unit(id: u64, queue: &str) -> Change {
        Change::UnitSpec(Arc::new(UnitSpec {
            id: UnitId(id),
            namespace: "default".to_owned(),
            name: format!("unit-{id}"),
            uid: String::new(),
            labels: BTreeMap::new(),
            owner: String::new(),
            class: WorkloadClass::Batch,
            task_groups: Vec::new(),
            min_member: 1,
            queue: queue.to_owned(),
            priority: 0,
            priority_class: String::new(),
            pool: Pool::Guaranteed,
            restart_policy: RestartPolicy::Never,
            scoring: ScoringProfile::LeastAllocated,
            ttl_after_finished_ms: 0,
            cancelled: false,
            max_restarts: 0,
        }))
    }

    fn bind(id: u64, ordinals: std::ops::Range<u32>) -> Change {
        let devices = DeviceRequest { kind: "gpu".to_owned(), count: 1, milli: 500, models: Vec::new() };
        let requests = Resources::new([("cpu", 10)]).unwrap();
        let bind = Bind {
            demand: Arc::new(Demand { requests, devices: Some(devices) }),
            nodes: vec![NodeId(1); ordinals.len()],
            ordinals: ordinals.collect(),
            ..Bind::default()
        };
        Change::Rows(UnitId(id), RowChange::Bind(bind))
    }

    fn ended(id: u64, ordinal: u32) -> Change {
        let (ordinals, phases) = (vec![ordinal], vec![Phase::Succeeded]);
        Change::Rows(UnitId(id), RowChange::Statuses(Statuses { ordinals, phases, ..Statuses::default() }))
    }

    fn queue(path: &str, max: &[(&str, i64)], max_running_units: u32) -> Change {
        let max = max.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect();
        Change::Queue(Arc::new(QueueSpec { max, max_running_units, ..QueueSpec::new(path) }))
    }

    fn violations(changes: Vec<Change>) -> Vec<String> {
        let mut evidence =
            Evidence { history: History { floor: Revision(1), ..History::default() }, ..Evidence::default() };
        for (revision, change) in (1u64..).zip(changes) {
            let commit = Commit { revision: Revision(revision), time_ms: 0, changes: vec![change] };
            evidence.listed.apply(&commit, |_, _| {});
            evidence.history.commits.push(commit);
        }
        check(&evidence).violations
    }

    #[test]
    fn every_level_keeps_its_maximum_at_every_commit() {
        let before = |change: Change| vec![change, unit(1, "a.b"), bind(1, 0..3)];
        let cases: [(Vec<Change>, &[&str]); 8] = [
            (before(queue("a.b", &[("cpu", 30), ("gpu", 1_500)], 3)), &[]),
            (before(queue("a.b", &[("cpu", 29)], 0)), &["queue a.b: cpu 30 of 29 (revision 3)"]),
            (before(queue("a", &[("gpu", 1_499)], 0)), &["queue a: gpu 1500 of 1499 (revision 3)"]),
            (before(queue("a", &[], 2)), &["queue a: running units 3 of 2 (revision 3)"]),
            (before(queue("a", &[("gpu", 0), ("memory", 0)], 0)), &["queue a: gpu 1500 of 0 (revision 3)"]),
            (before(Change::QueueDeleted("a".to_owned())), &[]),
            // Lowered later: stands, but nothing more may come.
            (vec![unit(1, "a"), bind(1, 0..3), queue("a", &[("cpu", 10)], 0), ended(1, 0)], &[]),
            (
                vec![
                    unit(1, "a"),
                    bind(1, 0..3),
                    queue("a", &[("cpu", 20)], 0),
                    ended(1, 0),
                    ended(1, 1),
                    bind(1, 3..5),
                ],
                &["queue a: cpu 30 of 20 (revision 6)"],
            ),
        ];
        for (changes, expected) in cases {
            assert_eq!(violations(changes.clone()), expected, "{changes:?}");
        }
    }

    #[test]
    fn what_ended_or_was_deleted_makes_room() {
        let max = || queue("a", &[("cpu", 20)], 0);
        assert_eq!(violations(vec![max(), unit(1, "a"), bind(1, 0..2), ended(1, 0), bind(1, 2..3)]), [""; 0]);
        let deleted = vec![
            max(),
            unit(1, "a"),
            bind(1, 0..2),
            Change::UnitDeleted(UnitId(1)),
            unit(2, "a"),
            bind(2, 0..2),
        ];
        assert_eq!(violations(deleted), [""; 0]);
    }
}
