//! Replicas that start before those stop that they replace: one stops only once its replacement runs, under an ordinal that is
//! new.

use godel_base::ids::RunningUnitId;
use godel_domain::{
    change::Change, hold::Hold, records::Record, running_units::Phase, surge::Surge, unit::UnitRecord,
};

use super::{
    verdict::Findings,
    world::{Commit, World, WorldRow, WorldUnit},
};

/// What `commit` does to the records of units; `world` is as before it.
pub(super) fn check(world: &World, commit: &Commit, findings: &mut Findings) {
    for change in &commit.changes {
        let Change::Put(Record::Unit(after)) = change else { continue };
        let Some(of) = world.units.get(&after.id) else { continue };
        let Some(before) = of.record.as_ref().map(|record| &*record.value) else { continue };
        let (old, new) = (&before.status.surges, &after.status.surges);
        if old.is_empty() && new.is_empty() {
            continue;
        }
        let mut wrong = |what: String| {
            let (name, revision) = (of.name(), commit.revision);
            findings.add(|| format!("unit {name}: {what} (revision {revision})"));
        };
        let most = after.spec.max_surge;
        if new.len() > most as usize {
            wrong(format!("{} replacements start at once, max_surge is {most}", new.len()));
        }
        let begun = new.iter().filter(|surge| !old.contains(surge));
        begun.filter_map(|surge| wrong_begin(of, before, surge)).for_each(&mut wrong);
        let ended = old.iter().filter(|surge| !new.contains(surge));
        ended.filter_map(|surge| wrong_end(of, after, surge)).for_each(&mut wrong);
    }
}

/// What is wrong with a replica that is added as a replacement.
fn wrong_begin(of: &WorldUnit, before: &UnitRecord, surge: &Surge) -> Option<String> {
    let Surge { ordinal, replaces, .. } = surge;
    if before.group_of(*ordinal).is_some() || of.rows.contains_key(ordinal) {
        return Some(format!("{ordinal} is to replace {replaces}, and was there before"));
    }
    let is_there = before.group_of(*replaces).is_some();
    (!is_there).then(|| format!("{ordinal} is to replace {replaces}, which is not wanted"))
}

/// What is wrong with how the record of a unit ends the replacement of one replica by another.
fn wrong_end(of: &WorldUnit, after: &UnitRecord, surge: &Surge) -> Option<String> {
    let Surge { ordinal, replaces, .. } = surge;
    let is_wanted = |ordinal: &u32| after.group_of(*ordinal).is_some();
    let row = |ordinal: &u32| of.rows.get(ordinal).copied().unwrap_or_default();
    let stays = |row: WorldRow| row.is_live() && row.eviction.is_none();
    let (new, old) = (row(ordinal), row(replaces));
    match (is_wanted(ordinal), is_wanted(replaces)) {
        (true, true) => Some(format!("{ordinal} replaces {replaces} no more, and both are wanted")),
        (true, false) if stays(old) && !(stays(new) && new.phase == Phase::Running) => {
            Some(format!("{replaces} is to stop, and {ordinal}, which replaces it, does not run"))
        }
        (true | false, false) | (false, true) => None,
    }
}

/// What is wrong with room that is held for a replacement; `world` is as before the commit.
pub(super) fn wrong_hold(world: &World, hold: &Hold, from: RunningUnitId, ordinal: u32) -> Option<String> {
    let of = world.units.get(&from.unit)?;
    let record = &of.record.as_ref()?.value;
    let row = of.rows.get(&from.replica.ordinal).copied().unwrap_or_default();
    // It may have ended by itself, or been told to leave, since the binder looked: then the hold goes unused.
    let (current, asked) = (row.incarnation, from.replica.incarnation);
    let was_there = current > asked || (current == asked && row.phase != Phase::Pending);
    if hold.unit != from.unit || !was_there {
        return Some("nobody is there whom it replaces".to_owned());
    }
    if record.spec.max_surge == 0 {
        return Some("its unit lets no replacement start first".to_owned());
    }
    let is_taken = record.group_of(ordinal).is_some() || of.rows.contains_key(&ordinal);
    is_taken.then(|| format!("it is for {ordinal}, which its unit has had before"))
}
