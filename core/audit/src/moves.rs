//! Units that a commit moves to another queue: what counted in one queue counts in the other from then on.

use godel_base::ids::{Revision, UnitId};
use godel_domain::{change::Change, demand::Demand, records::Record, running_units::RunChange};

use super::{
    verdict::Findings,
    world::{Commit, World, WorldRow},
};

/// A unit whose record names another queue than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueMove<'a> {
    pub(super) unit: UnitId,
    /// The queue before.
    pub(super) from: &'a str,
    /// The queue from the commit on.
    pub(super) to: &'a str,
}

/// Units that a commit moves; `world` is as before it.
pub(super) fn moves<'a>(world: &'a World, commit: &'a Commit) -> impl Iterator<Item = QueueMove<'a>> {
    commit.changes.iter().filter_map(|change| {
        let Change::Put(Record::Unit(record)) = change else { return None };
        let before = world.units.get(&record.id)?.record.as_ref()?;
        let (from, to) = (before.value.spec.queue.as_str(), record.spec.queue.as_str());
        (from != to).then_some(QueueMove { unit: record.id, from, to })
    })
}

/// What counts in the queue of a unit: so many running units of a demand, those that `counts` says and those that room is held
/// for.
pub(super) fn counted<'a>(
    world: &'a World,
    unit: UnitId,
    counts: impl Fn(&WorldRow) -> bool + 'a,
) -> impl Iterator<Item = (&'a Demand, i64)> {
    let of_unit = world.units.get(&unit).into_iter();
    let rows = of_unit.flat_map(move |of| {
        let rows = of.rows.values().filter(|row| counts(row));
        rows.filter_map(|row| of.demands.get(&row.group))
            .map(|(demand, _)| (&**demand, 1))
            .collect::<Vec<_>>()
    });
    let holds = world.holds.values().map(|hold| &hold.value);
    let holds = holds.filter(move |hold| hold.unit == unit && hold.counts_in_queue());
    rows.chain(holds.map(|hold| (&*hold.demand, i64::try_from(hold.ordinals.len()).unwrap_or(i64::MAX))))
}

/// That everybody charges what a commit binds, or moves, in the queue that the unit's record names: the preemption terms say
/// where. `world` is as after it; `moved` are the units whose queue it changes.
pub(super) fn check_terms(world: &World, commit: &Commit, moved: &[UnitId], findings: &mut Findings) {
    let mut check = |unit: UnitId, groups: &mut dyn Iterator<Item = u16>, revision: Revision| {
        let Some(of) = world.units.get(&unit) else { return };
        let Some(record) = &of.record else { return };
        for group in groups {
            let Some(terms) = of.standings.get(&group) else { continue };
            let (charged, named) = (terms.queue.as_deref().unwrap_or("default"), &record.value.spec.queue);
            if charged != named {
                findings.add(|| {
                    let name = of.name();
                    format!("unit {name}: task group {group} is charged in queue {charged}, and its record names {named} (revision {revision})")
                });
            }
        }
    };
    let all = |unit: UnitId| {
        let of = world.units.get(&unit);
        let bound = |row: &&WorldRow| row.is_live();
        of.into_iter().flat_map(move |of| of.rows.values().filter(bound).map(|row| row.group))
    };
    for change in &commit.changes {
        match change {
            Change::Rows(unit, RunChange::Bind(bind)) => {
                check(*unit, &mut std::iter::once(bind.group), commit.revision);
            }
            Change::Rows(unit, RunChange::Terms(_)) => check(*unit, &mut all(*unit), commit.revision),
            _ => {}
        }
    }
    for unit in moved {
        check(*unit, &mut all(*unit), commit.revision);
    }
}
