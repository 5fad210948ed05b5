//! Turns of gangs: of those in a pool that may want the same nodes one gathers room at a time, none for much longer than
//! it may. Units that gather room for one replica each do so side by side, on nodes of their own.

use std::collections::BTreeMap;

use godel_base::ids::UnitId;
use godel_domain::{
    change::Change,
    hold::{GangTurn, Hold},
    records::{Record, RecordKey},
    sub_cluster::overlap,
};

use super::{
    verdict::Findings,
    world::{Commit, World},
};

/// A binder that is away, or a new one that reads first, ends a hold so much later at most, milliseconds.
const LATE_MS: i64 = 60_000;

/// What `commit` does to holds that gather; `world` is as before it.
pub(super) fn check(world: &World, commit: &Commit, findings: &mut Findings) {
    let gathers = |hold: &Hold| hold.turn.is_some();
    let mut ended = Vec::new();
    for change in &commit.changes {
        if let Change::Gone(RecordKey::Hold(id)) = change
            && let Some(hold) = world.holds.get(id).map(|hold| &hold.value).filter(|hold| gathers(hold))
        {
            check_late(hold, commit.time_ms, findings);
            ended.push(*id);
        }
    }
    let new = || {
        commit.changes.iter().filter_map(|change| match change {
            Change::Put(Record::Hold(hold)) if gathers(hold) => Some(hold),
            _ => None,
        })
    };
    if new().next().is_none() {
        return;
    }
    let kept = || world.holds.iter().filter(|(id, _)| !ended.contains(id)).map(|(_, hold)| &hold.value);
    let all = || kept().chain(new()).filter_map(|hold| Some((&**hold, hold.turn.as_ref()?)));
    let mut n_places: BTreeMap<UnitId, usize> = BTreeMap::new();
    for (hold, _) in all() {
        *n_places.entry(hold.unit).or_default() += hold.ordinals.len();
    }
    let is_single = |hold: &Hold| n_places.get(&hold.unit) == Some(&1);
    let mut turns: Vec<(&Hold, &GangTurn)> = Vec::new();
    for (hold, turn) in all() {
        if turns.iter().any(|(known, _)| known.unit == hold.unit) {
            continue;
        }
        let may_both = |known: &Hold| is_single(known) && is_single(hold) && known.node != hold.node;
        let meets = |(known, at): &&(&Hold, &GangTurn)| {
            known.pool == hold.pool
                && overlap(at.sub_cluster.as_deref(), turn.sub_cluster.as_deref())
                && !may_both(known)
        };
        if let Some((first, _)) = turns.iter().find(meets) {
            let (first, second, revision) = (first.unit, hold.unit, commit.revision);
            findings.add(|| {
                format!("units {first} and {second} gather room on the same nodes (revision {revision})")
            });
            return;
        }
        turns.push((hold, turn));
    }
}

/// Holds that are still there at `now_ms`.
pub(super) fn check_left(world: &World, now_ms: i64, findings: &mut Findings) {
    for hold in world.holds.values().map(|hold| &hold.value).filter(|hold| hold.turn.is_some()) {
        check_late(hold, now_ms, findings);
    }
}

fn check_late(hold: &Hold, at_ms: i64, findings: &mut Findings) {
    let late_ms = at_ms.saturating_sub(hold.expires_ms);
    if late_ms > LATE_MS {
        findings
            .add(|| format!("hold {} of unit {}: gathers {late_ms} ms after its expiry", hold.id, hold.unit));
    }
}
