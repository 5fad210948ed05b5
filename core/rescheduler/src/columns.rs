//! Exact search where it is affordable: every way to share out the running units of two nodes between them.
//!
//! What one node has is a column of a linear program over nodes, as cutting stock has them (Gilmore, Gomory 1961). In a scope of a
//! few hundred running units, all pairs of columns of two nodes are tried after the search of a policy that wants nothing but a low
//! objective: those are the steps that a search by single moves misses, since several running units change places at once, and
//! none of them alone has room.

use godel_domain::allocation::DeviceSet;

use crate::{
    goal::EPSILON,
    layout::{NodeIdx, RunIdx},
    workspace::Workspace,
};

/// Running units and nodes of a scope in which columns are enumerated, at most.
const N_UNITS_MAX: usize = 300;
const N_NODES_MAX: usize = 64;
/// Running units of one pair of nodes that may change places, largest first: 64 pairs of columns.
const N_FREE_MAX: usize = 6;
/// Pairs of columns that one plan tries, at most: some tenths of a second.
const N_COLUMNS_MAX: u64 = 200_000;

/// A running unit, where it goes, and the devices that it gets there.
pub(crate) type Reassignment = (RunIdx, NodeIdx, DeviceSet);

/// Shares out the running units of all pairs of nodes as the goal likes it best, until no pair can be better. Larger scopes stay
/// as they are.
pub(crate) fn enumerate_columns(work: &mut Workspace<'_>) {
    let layout = work.layout();
    let n_movable = layout.running().filter(|unit| work.is_movable(*unit)).take(N_UNITS_MAX + 1).count();
    let nodes: Vec<NodeIdx> =
        layout.nodes().filter(|node| work.is_in_scope(*node)).take(N_NODES_MAX + 1).collect();
    if n_movable > N_UNITS_MAX || nodes.len() > N_NODES_MAX {
        return;
    }
    let mut n_left = N_COLUMNS_MAX;
    loop {
        let before = work.goal().value();
        for (at, one) in nodes.iter().enumerate() {
            for other in &nodes[at + 1..] {
                share_out(work, [*one, *other], &mut n_left);
            }
        }
        if n_left == 0 || work.goal().value() > before - EPSILON {
            return;
        }
    }
}

/// Tries every set of running units that could change from one node to the other, and makes the best change.
fn share_out(work: &mut Workspace<'_>, pair: [NodeIdx; 2], n_left: &mut u64) {
    let layout = work.layout();
    let mut units: Vec<RunIdx> = pair
        .iter()
        .flat_map(|node| layout.on(*node))
        .copied()
        .filter(|unit| work.is_movable(*unit) && !layout.rooms().shape(layout.shape_of(*unit)).is_fixed)
        .collect();
    units.sort_by_key(|unit| {
        let shape = layout.rooms().shape(layout.shape_of(*unit));
        let amounts = shape.amounts.iter().zip(layout.rooms().capacity(pair[0])).filter(|(_, has)| **has > 0);
        let greatest = amounts.map(|(asked, has)| asked.saturating_mul(1_000) / has).max();
        (std::cmp::Reverse((shape.device_milli(), greatest)), *unit)
    });
    units.truncate(N_FREE_MAX);
    let before = work.goal().value();
    let mut best: Option<(f64, Vec<Reassignment>)> = None;
    for set in 1u32..1 << units.len() {
        if *n_left == 0 {
            break;
        }
        *n_left -= 1;
        let moved: Vec<RunIdx> =
            units.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1).map(|(_, unit)| *unit).collect();
        let Some(change) = change_of(work, pair, &moved) else { continue };
        let mark = work.mark();
        if work.try_reassign(&change) {
            let value = work.goal().value();
            let least = best.as_ref().map_or(before, |(value, _)| *value);
            if value < least - EPSILON {
                best = Some((value, change));
            }
        }
        work.undo_to(mark);
    }
    if let Some((_, change)) = best {
        work.try_reassign(&change);
    }
}

/// Returns what becomes of two nodes when some of their running units change sides; `None`: one has no room for that.
fn change_of(work: &Workspace<'_>, pair: [NodeIdx; 2], moved: &[RunIdx]) -> Option<Vec<Reassignment>> {
    let layout = work.layout();
    let mut rooms = pair.map(|node| {
        let gone: Vec<RunIdx> = moved.iter().copied().filter(|unit| layout.node_of(*unit) == node).collect();
        layout.room_without(node, &gone)
    });
    let of_unit = moved.iter().map(|unit| {
        let side = usize::from(layout.node_of(*unit) == pair[0]);
        let (to, shape) = (pair[side], layout.shape_of(*unit));
        let devices = if to == layout.home(*unit) {
            let devices = layout.home_devices(*unit);
            layout.rooms().room_has(shape, to, &rooms[side], devices).then_some(devices)?
        } else {
            layout.rooms().fit_room(shape, to, &rooms[side])?
        };
        layout.rooms().change_room(&mut rooms[side], to, shape, devices, -1);
        Some((*unit, to, devices))
    });
    of_unit.collect()
}

#[cfg(test)]
mod tests {
    use godel_domain::unit::WorkloadClass;

    use crate::{
        ClusterSnapshot, Colocation, Layout, NodeFilters, PlanLimits, TrafficShare, make_plan,
        tests::clusters::{demand, node, running, settled, unit},
    };

    /// Two full nodes: units 0 and 1 talk, and only two others in return for one of them let it in.
    fn two_full_nodes() -> ClusterSnapshot {
        let placed = [(0, 12_000), (1, 4_000), (0, 2_000), (0, 2_000), (1, 6_000), (1, 6_000)];
        let mut snapshot =
            ClusterSnapshot { nodes: vec![node(0, 0), node(1, 0)], ..ClusterSnapshot::default() };
        for (at, (on, cpu)) in placed.into_iter().enumerate() {
            snapshot.units.push(unit(at, WorkloadClass::Service));
            snapshot.running.push(running(at, 0, on, demand(cpu, 0, 1_000)));
        }
        let between = (snapshot.units[0].id, snapshot.units[1].id);
        snapshot.traffic.push(TrafficShare { between, weight: 1.0 });
        snapshot
    }

    #[test]
    fn several_units_change_places_where_no_single_move_fits() {
        let snapshot = two_full_nodes();
        let layout = Layout::new(&snapshot).unwrap();
        let plan = |n_moves_max| {
            let limits = PlanLimits::of_moves(n_moves_max);
            make_plan(&Colocation::default(), &layout, &[], &NodeFilters, &limits)
        };
        assert_eq!((plan(3).after, plan(3).moves.len()), (0.0, 3));
        // The limit of moves holds, and what is planned has room.
        assert!(plan(2).moves.is_empty());
        let mut after = layout.clone();
        after.apply(&plan(3).moves);
        crate::tests::clusters::assert_room(&Layout::new(&settled(&after)).unwrap());
    }
}
