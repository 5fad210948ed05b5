//! Victim rule `whole-gang`: a unit that would be too small without its victims leaves whole, or not at all.

use godel_domain::running_units::{RunningUnit, RunningUnits};

use crate::point::{Plugin, VictimRule, WholeUnit};

/// The plugin.
#[derive(Debug)]
pub struct WholeGang;

impl Plugin for WholeGang {
    const NAME: &'static str = "whole-gang";
    const DOC: &'static str = "A unit that would be left below its `min_member`, or below that of a task group, is evicted whole, wherever \
                               it runs, and all of it counts. So each of its running units must be a possible victim.";
}

impl VictimRule for WholeGang {
    #[inline]
    fn check_whole(of: &WholeUnit) -> bool {
        of.n_spared == 0
    }
}

/// Whether a running unit is live and does not leave.
pub fn is_staying(row: &RunningUnit) -> bool {
    row.phase.is_live() && row.eviction.is_none()
}

/// Live running units of a unit that do not leave.
pub fn staying(rows: &RunningUnits) -> impl Iterator<Item = (u32, &RunningUnit)> {
    rows.live().filter(|(_, row)| is_staying(row))
}

/// The task groups of which the unit is worth nothing with fewer running units than these.
pub fn group_minima(rows: &RunningUnits) -> impl Iterator<Item = (u16, usize)> {
    let standings = (0u16..).zip(&rows.groups).filter_map(|(idx, group)| {
        let standing = group.as_ref()?.standing.as_ref()?;
        Some((idx, standing.group_min_member as usize))
    });
    standings.filter(|(_, minimum)| *minimum > 0)
}

/// With fewer running units than this the unit is worth nothing.
pub fn min_member(rows: &RunningUnits) -> usize {
    let standings = rows.groups.iter().flatten().filter_map(|group| group.standing.as_ref());
    standings.map(|standing| standing.min_member as usize).max().unwrap_or(0)
}
