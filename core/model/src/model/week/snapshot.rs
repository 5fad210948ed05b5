//! The cluster as the objectives are measured on it: nodes, units, what runs, what room is held, budgets, traffic. It is taken of the store,
//! apart from what the rescheduler makes of the changes that it reads.

use std::collections::BTreeSet;

use godel_base::{
    ids::{RunningUnitId, UnitId},
    time::Millis,
};
use godel_core_rescheduler::{
    BudgetRoom, ClusterSnapshot, MeasuredUse, NodeFacts, RunningFacts, TrafficShare, UnitFacts,
};
use godel_domain::{
    running_units::{Phase, RunningUnit, RunningUnits},
    unit::UnitRecord,
};

use super::{
    MINUTE_MS,
    work::{WeekUnit, WeekWork},
};
use crate::model::{store::Store, world::Model};

/// The cluster, while it is taken.
struct WeekSnapshot(ClusterSnapshot);

/// Whether a running unit runs and is not told to leave.
fn is_available(row: &RunningUnit) -> bool {
    row.phase == Phase::Running && row.eviction.is_none()
}

/// Returns the cluster as it is. What is not available, or amid a replacement, is there for the room that it takes.
pub(super) fn of(model: &Model, work: &WeekWork) -> ClusterSnapshot {
    let store = &model.store;
    let now_ms = u64::try_from(model.net.wall_ms()).unwrap_or(0);
    let mut snapshot =
        ClusterSnapshot { revision: store.revision(), now: Millis(now_ms), ..ClusterSnapshot::default() };
    for (id, node) in &store.world.nodes {
        let (Some(spec), Some(report)) = (&node.spec, &node.report) else { continue };
        let mut facts = NodeFacts::new(*id, &*spec.value.name, report.value.capacity.clone());
        facts.devices.clone_from(&report.value.devices);
        facts.labels.clone_from(&spec.value.labels);
        facts.accepts = report.value.ready && !spec.value.cordoned && model.agents.is_in_contact(*id);
        snapshot.nodes.push(facts);
    }
    let mut input = WeekSnapshot(snapshot);
    let held: BTreeSet<UnitId> = store.world.holds.values().map(|hold| hold.value.unit).collect();
    for (unit, rows) in &store.rows {
        if rows.live().next().is_none() && !held.contains(unit) {
            continue;
        }
        let Some(record) = store.record(*unit) else { continue };
        let Some(number) = WeekUnit::number_of(&record.spec.name) else { continue };
        input.add_unit(record, work.unit(number));
        input.add_rows((record, rows), number, work);
        input.add_budget((record, rows), number, store);
    }
    input.add_holds(store);
    for (number, unit) in work.units() {
        let live = |number: u64| work.id(number).filter(|id| store.rows.contains_key(id));
        if let Some(id) = live(number) {
            let partners = unit.partners.iter().filter_map(|other| live(*other));
            let shares = partners.map(|other| TrafficShare { between: (id, other), weight: 1.0 });
            input.0.traffic.extend(shares);
        }
    }
    input.0
}

impl WeekSnapshot {
    fn add_unit(&mut self, record: &UnitRecord, unit: &WeekUnit) {
        let mut owner = UnitFacts::new(record.id, &*record.spec.name, unit.class, MINUTE_MS);
        owner.queue.clone_from(&record.spec.queue);
        owner.labels.clone_from(&record.spec.labels);
        self.0.units.push(owner);
    }

    fn add_rows(&mut self, (record, rows): (&UnitRecord, &RunningUnits), number: u64, work: &WeekWork) {
        for (ordinal, row) in rows.live() {
            let Some(Some(group)) = rows.groups.get(usize::from(row.group)) else { continue };
            let id = RunningUnitId::new(record.id, ordinal, row.incarnation);
            let (cpu_milli, network_bps) = work.usage(number, record.id, ordinal);
            self.0.running.push(RunningFacts {
                devices: row.allocation.devices,
                started_at: Millis(u64::try_from(row.bound_time_ms).unwrap_or(0)),
                usage: MeasuredUse { cpu_milli, network_bps },
                ..RunningFacts::new(id, row.node, (*group.demand).clone())
            });
        }
    }

    /// A replica that is to replace another one counts in a budget when it does.
    fn add_budget(&mut self, (record, rows): (&UnitRecord, &RunningUnits), number: u64, store: &Store) {
        let Some(budget) = store.world.budgets.get(&format!("b{number}")) else { return };
        let counts = |ordinal: u32| {
            record.group_of(ordinal).is_some()
                && record.status.surges.iter().all(|surge| surge.ordinal != ordinal)
        };
        let available = rows.live().filter(|(ordinal, row)| is_available(row) && counts(*ordinal));
        let members: Vec<RunningUnitId> =
            available.map(|(ordinal, row)| RunningUnitId::new(record.id, ordinal, row.incarnation)).collect();
        let n_surges = u64::try_from(record.status.surges.len()).unwrap_or(0);
        let floor = budget.value.limit.floor(u64::from(record.spec.replicas()).saturating_sub(n_surges));
        let n_available = u64::try_from(members.len()).unwrap_or(u64::MAX);
        let allowed = u32::try_from(n_available.saturating_sub(floor)).unwrap_or(u32::MAX);
        self.0.budgets.push(BudgetRoom { name: budget.value.name.clone(), allowed, members });
    }

    /// Room that is held is as good as taken.
    fn add_holds(&mut self, store: &Store) {
        for hold in store.world.holds.values().map(|hold| &hold.value) {
            let is_known = store.rows.contains_key(&hold.unit) && store.record(hold.unit).is_some();
            if !is_known {
                continue;
            }
            for (idx, ordinal) in hold.ordinals.iter().enumerate() {
                let id = RunningUnitId::new(hold.unit, *ordinal, u32::MAX);
                self.0.running.push(RunningFacts {
                    devices: hold.allocation(idx).devices,
                    started_at: self.0.now,
                    ..RunningFacts::new(id, hold.node, (*hold.demand).clone())
                });
            }
        }
    }
}
