//! Compactions: rows of what ended long ago go, and what goes was allowed to.

use godel_base::ids::{Revision, UnitId};
use godel_domain::running_units::{Phase, RunChange};

use super::{
    verdict::Findings,
    world::{Commit, RowStep, World, WorldRow, WorldUnit},
};

/// Takes away the rows that a commit compacts and that have ended. Whoever looks on sees each as it was, before it is gone.
pub(super) fn follow<'a>(
    world: &mut World,
    commit: &Commit,
    unit: UnitId,
    change: &'a RunChange,
    on_row: &mut impl FnMut(&World, RowStep<'a>),
) {
    let RunChange::Compact(compaction) = change else { return };
    for (idx, &ordinal) in compaction.ordinals.iter().enumerate() {
        let row = world.units.get(&unit).and_then(|unit| unit.rows.get(&ordinal)).copied();
        let Some(before) = row.filter(|row| row.revision < commit.revision) else { continue };
        on_row(world, RowStep { unit, ordinal, before, after: None, change, idx });
        let incarnation = compaction.incarnations.get(idx).copied().unwrap_or_default();
        if let Some(unit) = world.units.get_mut(&unit).filter(|_| has_ended(&before, incarnation)) {
            unit.rows.remove(&ordinal);
        }
    }
    if let Some(unit) = world.units.get_mut(&unit) {
        for group in &compaction.groups {
            unit.demands.remove(group);
            unit.standings.remove(group);
        }
    }
}

/// Whether a running unit has ended in an incarnation.
fn has_ended(row: &WorldRow, incarnation: u32) -> bool {
    !row.is_live() && row.phase != Phase::Pending && row.incarnation == incarnation
}

/// What is compacted has ended, and its unit wants it no more: nothing could come back under its ordinal.
pub(super) fn check(
    placements: &mut Findings,
    world: &World,
    step: &RowStep<'_>,
    incarnation: u32,
    revision: Revision,
) {
    let RowStep { unit, ordinal, before, .. } = step;
    let of = world.units.get(unit);
    let record = of.and_then(|unit| unit.record.as_ref());
    let is_wanted = record.is_some_and(|record| record.value.group_of(*ordinal).is_some());
    let has_ended = has_ended(before, incarnation);
    if is_wanted || !has_ended {
        let name = of.map_or_else(String::new, WorldUnit::name);
        let what = if has_ended { "its unit still wants it" } else { "it has not ended" };
        placements.add(|| format!("{name}/{ordinal} was compacted, but {what} (revision {revision})"));
    }
}
