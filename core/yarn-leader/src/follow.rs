//! What changes of units mean to applications, one after the other or after a start.

use std::{collections::VecDeque, ops::Range};

use godel_base::ids::{NodeId, ReplicaId};
use godel_core_yarn::{
    adapter::{AdapterTime, LaunchFailure, LaunchFailureScope, MASTER, YarnAction},
    asks::AskGrowth,
    ids::{YarnApplicationId, YarnAttemptId},
};
use godel_membership::node_failures;

use crate::{
    avoided,
    names::asked_of,
    picture::{UnitEvent, YarnUnit},
    state::LeaderState,
};

/// What people are told of an application whose unit somebody else has ended.
const UNIT_GONE: &str = "the unit of the application was cancelled or deleted in godel";

/// Tells an application what has happened to its unit.
pub(crate) fn tell(
    state: &mut LeaderState,
    id: YarnApplicationId,
    event: UnitEvent,
    at: AdapterTime,
    out: &mut Vec<YarnAction>,
) {
    match event {
        UnitEvent::Added(group, ordinals) => on_added(state, id, &group, &ordinals, out),
        UnitEvent::Gone => {
            // One that is over has ended its unit itself.
            let _ = state.adapter.with(id, |application, terms| {
                application.unit_gone(UNIT_GONE, terms, at, out);
            });
        }
        UnitEvent::Placed { ordinal: MASTER, .. } => tell_master(state, id, at, out),
        UnitEvent::Placed { ordinal, incarnation, node } => {
            let Some((node, rack)) = named(state, node) else {
                out.push(YarnAction::Release(id, vec![ordinal]));
                return;
            };
            // Of an application that is not known any more nothing is placed.
            let _ = state.adapter.with(id, |application, terms| {
                application.placed(ReplicaId::new(ordinal, incarnation), &node, &rack, terms, at, out);
            });
        }
        UnitEvent::Started(ordinal) => {
            let _ = state
                .adapter
                .with(id, |application, _| application.containers_mut().started(ordinal, at, out));
        }
        UnitEvent::Ended { ordinal: MASTER, incarnation, .. } => end_master(state, id, incarnation, at, out),
        UnitEvent::Ended { ordinal, incarnation, exit } => {
            let _ = state.adapter.with(id, |application, terms| {
                application.ended(ReplicaId::new(ordinal, incarnation), exit, terms, at, out);
            });
        }
    }
}

/// Gives ordinals that were added to the keys for which they were asked, in order.
fn on_added(
    state: &mut LeaderState,
    id: YarnApplicationId,
    group: &str,
    ordinals: &[u32],
    out: &mut Vec<YarnAction>,
) {
    let Some(entry) = state.entries.get_mut(&id) else { return };
    let Some((_, keys)) = entry.growing.iter_mut().find(|(name, _)| name == group) else { return };
    let given = shared_out(keys, ordinals);
    // It has an entry.
    let _ = state.adapter.with(id, |application, _| {
        for (growth, ordinals) in given {
            application.grown(&growth, ordinals, out);
        }
    });
}

/// Ordinals in order, to what wants so many of them, as ranges.
fn shared_out(growing: &mut VecDeque<AskGrowth>, ordinals: &[u32]) -> Vec<(AskGrowth, Range<u32>)> {
    let mut given: Vec<(AskGrowth, Range<u32>)> = Vec::new();
    for ordinal in ordinals {
        let Some(first) = growing.front_mut() else { break };
        match given.last_mut() {
            Some((last, range)) if last.key == first.key && range.end == *ordinal => range.end += 1,
            _ => given.push((first.clone(), *ordinal..ordinal.saturating_add(1))),
        }
        first.n -= 1;
        if first.n == 0 {
            growing.pop_front();
        }
    }
    given
}

fn named(state: &LeaderState, node: NodeId) -> Option<(String, String)> {
    let launch = state.picture.launch_node(node)?;
    Some((format!("{}:{}", launch.host, launch.port), state.picture.rack(node)))
}

/// After a start: tells an application what its unit has.
pub(crate) fn replay(
    state: &mut LeaderState,
    id: YarnApplicationId,
    at: AdapterTime,
    out: &mut Vec<YarnAction>,
) {
    let is_known = state.adapter.get(id).is_some_and(|application| !application.is_over());
    let had_unit = state.adapter.get(id).is_some_and(|application| !application.attempts().is_empty());
    let Some(unit) = state.picture.unit(id).filter(|_| is_known) else {
        if is_known && had_unit {
            tell(state, id, UnitEvent::Gone, at, out);
        }
        return;
    };
    if !unit.is_alive() {
        tell(state, id, UnitEvent::Gone, at, out);
        return;
    }
    tell_master(state, id, at, out);
    let units: Vec<YarnUnit> = state.picture.units_of(id).cloned().collect();
    for unit in units {
        for own in unit.record.iter_ordinals().filter(|ordinal| *ordinal != MASTER) {
            let group = unit.record.group_of(own).and_then(|idx| unit.record.spec.task_groups.get(idx));
            let Some(asked) = group.and_then(|group| asked_of(group, &state.config.label_key)) else {
                continue;
            };
            let (ordinal, row) = (unit.shown(own), unit.rows.row(own));
            let node = named(state, row.node)
                .map(|(node, _)| node)
                .filter(|_| row.phase.is_live() || row.phase.is_ended());
            // It was recovered.
            let ended = row.phase.is_ended().then(|| unit.exit_of(ordinal));
            let _ = state.adapter.with(id, |application, _| {
                application.found(ordinal, asked, node.as_deref(), ended, at, out);
            });
        }
    }
}

/// Tells an application where its master is by now.
pub(crate) fn tell_master(
    state: &mut LeaderState,
    id: YarnApplicationId,
    at: AdapterTime,
    out: &mut Vec<YarnAction>,
) {
    let Some(entry) = state.picture.unit(id) else { return };
    let row = entry.row(MASTER);
    let Some(node) = state.picture.launch_node(row.node) else { return };
    let rack = state.picture.rack(row.node);
    let replica = ReplicaId::new(MASTER, row.incarnation);
    if row.phase.is_live() || row.phase.is_ended() {
        // There is one: the unit is of it.
        let _ = state.adapter.with(id, |application, terms| {
            let node = format!("{}:{}", node.host, node.port);
            application.placed(replica, &node, &rack, terms, at, out);
        });
    }
    if row.phase.is_ended() {
        end_master(state, id, row.incarnation, at, out);
    }
}

/// Tells an application that an incarnation of its master has ended, or that its command never ran.
fn end_master(
    state: &mut LeaderState,
    id: YarnApplicationId,
    incarnation: u32,
    at: AdapterTime,
    out: &mut Vec<YarnAction>,
) {
    let LeaderState { picture, adapter, entries, .. } = state;
    let Some(unit) = picture.unit(id) else { return };
    let (row, exit) = (unit.row(MASTER), unit.exit_of(MASTER));
    let is_it = row.incarnation == incarnation && row.eviction.is_none();
    let lack = unit.end(MASTER).reason.filter(|reason| is_it && node_failures::is_lack(*reason));
    let Some(reason) = lack else {
        // There is one: the unit is of it.
        let _ = adapter.with(id, |application, terms| {
            application.ended(ReplicaId::new(MASTER, incarnation), exit, terms, at, out);
        });
        return;
    };
    let node = picture.launch_node(row.node).map_or_else(|| "its node".to_owned(), |node| node.name);
    let meta = &unit.record.spec;
    let why = format!(
        "{node} could not start it ({}): `godel unit logs {}/{MASTER} -n {}` shows what it lacks",
        reason.name(),
        meta.name,
        meta.namespace
    );
    let attempt = YarnAttemptId { application: id, number: incarnation.saturating_add(1) };
    if let Some(notes) = entries.get_mut(&id).and_then(|entry| entry.attempt(attempt)) {
        notes.diagnostics.clone_from(&why);
    }
    let _ = adapter.with(id, |application, terms| {
        let has_other_node =
            avoided::has_other_node(picture, id, application.attempts().tried_nodes().nodes());
        let failure = LaunchFailure { why: &why, scope: LaunchFailureScope::Node, has_other_node };
        application.master_never_ran(incarnation, failure, terms, at, out);
    });
}
