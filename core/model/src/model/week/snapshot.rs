//! What the rescheduler is given of the model: nodes, units, what runs, budgets, traffic.

use std::collections::BTreeMap;

use godel_core_rescheduler::{
    BudgetRoom, ClusterSnapshot, MeasuredUse, NodeFacts, RunningFacts, TrafficShare, UnitFacts,
};
use godel_domain::{
    ids::{RunningUnitId, UnitId},
    running_units::{Phase, RunningUnit},
    time::Millis,
};

use super::{
    MINUTE_MS,
    work::{WeekUnit, WeekWork},
};
use crate::model::world::Model;

/// Whether a running unit runs and is not told to leave.
pub(super) fn is_available(row: &RunningUnit) -> bool {
    row.phase == Phase::Running && row.eviction.is_none()
}

/// Returns the cluster as it is. What is not available is there for the room that it takes.
pub(super) fn of(model: &Model, work: &WeekWork, ids: &BTreeMap<u64, UnitId>) -> ClusterSnapshot {
    let store = &model.store;
    let mut snapshot = ClusterSnapshot {
        revision: store.revision(),
        now: Millis(model.net.now),
        ..ClusterSnapshot::default()
    };
    for (id, node) in &store.world.nodes {
        let (Some(spec), Some(report)) = (&node.spec, &node.report) else { continue };
        let mut facts = NodeFacts::new(*id, &*spec.value.name, report.value.capacity.clone());
        facts.devices.clone_from(&report.value.devices);
        facts.labels.clone_from(&spec.value.labels);
        facts.accepts = report.value.ready && !spec.value.cordoned && model.agents.is_in_contact(*id);
        snapshot.nodes.push(facts);
    }
    for (unit, rows) in &store.rows {
        let Some(record) = store.record(*unit) else { continue };
        let Some(number) = WeekUnit::number_of(&record.spec.name) else { continue };
        let facts = work.unit(number);
        let mut live = rows.live().peekable();
        if live.peek().is_none() {
            continue;
        }
        let mut owner = UnitFacts::new(*unit, &*record.spec.name, facts.class, MINUTE_MS);
        owner.queue.clone_from(&record.spec.queue);
        owner.labels.clone_from(&record.spec.labels);
        snapshot.units.push(owner);
        let budget = store.world.budgets.get(&format!("b{number}"));
        let mut members = Vec::new();
        for (ordinal, row) in live {
            let Some(Some(group)) = rows.groups.get(usize::from(row.group)) else { continue };
            let id = RunningUnitId::new(*unit, ordinal, row.incarnation);
            let (cpu_milli, network_bps) = facts.usage(ordinal);
            let began_ms = row.bound_time_ms - crate::model::store::EPOCH_MS;
            snapshot.running.push(RunningFacts {
                devices: row.allocation.devices,
                started_at: Millis(u64::try_from(began_ms).unwrap_or(0)),
                usage: MeasuredUse { cpu_milli, network_bps },
                ..RunningFacts::new(id, row.node, (*group.demand).clone())
            });
            if is_available(row) {
                members.push(id);
            }
        }
        if let Some(budget) = budget {
            let floor = budget.value.limit.floor(u64::from(record.spec.replicas()));
            let n_available = u64::try_from(members.len()).unwrap_or(u64::MAX);
            let allowed = u32::try_from(n_available.saturating_sub(floor)).unwrap_or(u32::MAX);
            snapshot.budgets.push(BudgetRoom { name: budget.value.name.clone(), allowed, members });
        }
    }
    for (number, unit) in work.units() {
        let Some(id) = ids.get(&number) else { continue };
        let pairs = unit.partners.iter().filter_map(|other| ids.get(other));
        let live = |id: &UnitId| store.rows.contains_key(id);
        if live(id) {
            let shares = pairs.filter(|other| live(other));
            snapshot.traffic.extend(shares.map(|other| TrafficShare { between: (*id, *other), weight: 1.0 }));
        }
    }
    snapshot
}
