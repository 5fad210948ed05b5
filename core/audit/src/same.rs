//! I7 and I9: two lists, and a list and what a watch showed, say the same.

use std::collections::BTreeMap;

use godel_base::ids::{Revision, UnitId};
use godel_domain::running_units::Phase;

use super::{
    Evidence,
    history::Replay,
    verdict::Findings,
    world::{World, WorldNode, WorldRow, WorldUnit},
};

/// I7: order of the watch, and the replayed state against the listed one.
pub(super) fn check_watch(evidence: &Evidence, replay: &Replay) -> Findings {
    let (history, listed) = (&evidence.history, &evidence.listed);
    let mut findings = replay.order.clone();
    let last = history.commits.last().map_or(Revision(history.floor.0.max(1) - 1), |commit| commit.revision);
    if last != history.up_to {
        findings.add(|| {
            format!("the watch says all up to revision {}, the last delivered is {last}", history.up_to)
        });
    }
    if listed.revision > history.up_to {
        findings
            .add(|| format!("the list is at revision {}, the watch at {}", listed.revision, history.up_to));
    }
    if history.has_start() {
        differences(listed, &replay.world, "the list", "the replayed watch", &mut findings);
    } else {
        compare_touched(listed, replay, &mut findings);
    }
    let scope =
        if history.has_start() { "equal to the list" } else { "what it touched is equal to the list" };
    findings.checked(format!(
        "{} commits from revision {} to {} replayed, {scope}",
        history.commits.len(),
        history.floor,
        history.up_to
    ));
    if let Some(gap) = history.gap() {
        findings.not_judged(format!("what the watch has not touched: {gap}"));
    }
    findings
}

/// I9 as far as a live system shows it.
pub(super) fn check_same_state(listed: &World, again: &World) -> Findings {
    let mut findings = Findings::default();
    differences(listed, again, "one list", "another", &mut findings);
    findings.checked(format!(
        "two lists brought to revision {} agree on {} nodes and {} units (same decisions for the same seed: tested in core, not observable here)",
        listed.revision,
        listed.nodes.len(),
        listed.units.len()
    ));
    findings
}

fn differences(left: &World, right: &World, of_left: &str, of_right: &str, findings: &mut Findings) {
    let differ = format!("{of_left} and {of_right} differ");
    for id in left.nodes.keys().chain(right.nodes.keys().filter(|id| !left.nodes.contains_key(id))) {
        let (a, b) = (left.nodes.get(id), right.nodes.get(id));
        if a != b {
            let name = a.or(b).map_or("?", WorldNode::name);
            findings.add(|| format!("node {name} (id {id}): {differ}"));
        }
    }
    for id in left.units.keys().chain(right.units.keys().filter(|id| !left.units.contains_key(id))) {
        compare_units(*id, left.units.get(id), right.units.get(id), of_left, of_right, findings);
    }
    compare_named("lease", &left.leases, &right.leases, &differ, findings);
    compare_named("queue", &left.queues, &right.queues, &differ, findings);
    compare_named("priority class", &left.priority_classes, &right.priority_classes, &differ, findings);
    compare_named("disruption budget", &left.budgets, &right.budgets, &differ, findings);
    compare_named("reservation", &left.reservations, &right.reservations, &differ, findings);
    compare_named("pause", &left.pauses, &right.pauses, &differ, findings);
    let ids = |world: &World| -> BTreeMap<String, _> {
        world.holds.iter().map(|(id, hold)| (id.to_string(), hold.clone())).collect()
    };
    compare_named("hold", &ids(left), &ids(right), &differ, findings);
    let blocks = |world: &World| -> BTreeMap<String, _> {
        world.partition_blocks.iter().map(|(number, block)| (number.to_string(), block.clone())).collect()
    };
    compare_named("partition block", &blocks(left), &blocks(right), &differ, findings);
    if left.partition != right.partition {
        findings.add(|| format!("the partition: {differ}"));
    }
}

fn compare_named<T: PartialEq>(
    kind: &str,
    left: &BTreeMap<String, T>,
    right: &BTreeMap<String, T>,
    differ: &str,
    findings: &mut Findings,
) {
    for name in left.keys().chain(right.keys().filter(|name| !left.contains_key(*name))) {
        if left.get(name) != right.get(name) {
            findings.add(|| format!("{kind} {name}: {differ}"));
        }
    }
}

fn compare_units(
    id: UnitId,
    left: Option<&WorldUnit>,
    right: Option<&WorldUnit>,
    of_left: &str,
    of_right: &str,
    findings: &mut Findings,
) {
    let name = || left.or(right).map_or_else(|| "?".to_owned(), WorldUnit::name);
    let (Some(a), Some(b)) = (left, right) else {
        let only = if left.is_some() { of_left } else { of_right };
        findings.add(|| format!("unit {} (id {id}): only {only} has it", name()));
        return;
    };
    if a.record != b.record {
        findings.add(|| {
            format!("unit {} (id {id}): its record differs between {of_left} and {of_right}", name())
        });
    }
    for ordinal in a.rows.keys().chain(b.rows.keys().filter(|ordinal| !a.rows.contains_key(ordinal))) {
        let (x, y) = (a.rows.get(ordinal), b.rows.get(ordinal));
        if x != y {
            let say = |row: Option<&WorldRow>| {
                row.map_or_else(
                    || "nothing".to_owned(),
                    |row| format!("{:?} on node {} (revision {})", row.phase, row.node, row.revision),
                )
            };
            findings
                .add(|| format!("{}/{ordinal}: {of_left} says {}, {of_right} {}", name(), say(x), say(y)));
        }
    }
    if a.demands != b.demands && a.rows.values().any(|row| row.phase != Phase::Pending) {
        findings.add(|| {
            format!("unit {} (id {id}): its demands differ between {of_left} and {of_right}", name())
        });
    }
}

/// A history that begins late knows the units created in it whole; older ones by their touched rows.
fn compare_touched(listed: &World, replay: &Replay, findings: &mut Findings) {
    let queues = replay.world.queues.iter().map(|(path, seen)| {
        let has = listed.queues.get(path);
        ("queue", path, has.is_some_and(|has| (has.revision, &has.value) == (seen.revision, &seen.value)))
    });
    let classes = replay.world.priority_classes.iter().map(|(name, seen)| {
        let has = listed.priority_classes.get(name);
        (
            "priority class",
            name,
            has.is_some_and(|has| (has.revision, &has.value) == (seen.revision, &seen.value)),
        )
    });
    for (kind, name, _) in queues.chain(classes).filter(|(_, _, is_same)| !is_same) {
        findings.add(|| format!("{kind} {name}: its record differs between list and watch"));
    }
    for id in &replay.touched_units {
        let Some(seen) = replay.world.units.get(id) else {
            if listed.units.contains_key(id) {
                findings.add(|| format!("unit id {id}: deleted in the watch, still listed"));
            }
            continue;
        };
        let Some(has) = listed.units.get(id) else {
            findings.add(|| format!("unit {} (id {id}): in the watch, not listed", seen.name()));
            continue;
        };
        let record = |unit: &WorldUnit| unit.record.as_ref().map(|record| record.revision);
        if record(seen).is_some_and(|revision| record(has) != Some(revision)) {
            findings
                .add(|| format!("unit {} (id {id}): its record differs between list and watch", has.name()));
        }
        for (ordinal, row) in seen.rows.iter().filter(|(_, row)| row.phase != Phase::Pending) {
            let same = has.rows.get(ordinal).is_some_and(|listed| listed.revision >= row.revision);
            if !same {
                findings.add(|| {
                    format!(
                        "{}/{ordinal}: the watch changed it at revision {}, the list is older",
                        has.name(),
                        row.revision
                    )
                });
            }
        }
    }
}
