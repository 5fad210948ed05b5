//! Victims for a whole unit that has to be in one domain: in the domain where that costs least, in one decision.
//!
//! Every domain that could hold the unit if it were empty is searched, and what was found there is taken back; the cheapest one
//! is searched once more. Domains are compared by the costs by which a search without domains compares nodes, in the order of the
//! profile. Here the ranks of victims are their priorities: all of a decision claim from queues together, wherever they are.

use godel_base::ids::{RunningUnitId, UnitId};
use godel_cluster::{Owned, TopologyLevel};
use godel_domain::running_units::RunningUnits;
use godel_framework::{
    plugins::victims::whole_gang::{group_minima, min_member, staying},
    point::{CountedVictim, Rank, Seeker},
    registry::{CandidateKey, CandidateSort, PlaceCost},
};

use super::{
    PreemptionSearch, SearchCounters,
    parts::{PartsIn, find_parts},
};
use crate::{
    assigned_unit::AssignedUnit,
    picture::{
        LevelGroup, Picture, Try,
        topology::{could_hold, look_within, rules_of_parts},
    },
};

impl PreemptionSearch {
    /// Places the first replicas of a unit in one domain of a level, where others leave. What was placed before is taken back.
    ///
    /// # Errors
    /// In no domain enough would leave, and nothing is placed: when somebody will have run long enough, Unix milliseconds.
    pub(super) fn find_in_domain(
        &mut self,
        picture: &mut Picture,
        assigned: &AssignedUnit,
        seeker: &Seeker,
        together: usize,
        left: usize,
        level: &TopologyLevel,
        tried: &mut Try,
    ) -> Result<(), Option<i64>> {
        picture.take_back(tried);
        let found = self.cheapest_domain(picture, assigned, together, level, |search, picture, within| {
            search.find_in(picture, assigned, seeker, together, left, within)
        });
        let retry_ms = |retries: Vec<Option<i64>>| retries.into_iter().flatten().min();
        *tried = found.map_err(retry_ms)?;
        Ok(())
    }

    /// Searches in every domain of a level that could hold the first replicas of a unit, and once more in the cheapest one.
    ///
    /// # Errors
    /// Nothing is found in any domain: what each search said.
    pub(super) fn cheapest_domain<E>(
        &mut self,
        picture: &mut Picture,
        assigned: &AssignedUnit,
        together: usize,
        level: &TopologyLevel,
        find_in: impl Fn(&mut Self, &mut Picture, LevelGroup) -> Result<Try, E>,
    ) -> Result<Try, Vec<E>> {
        let (number, groups) = picture.cluster.taken_mut().domains.groups_at(level);
        let mut best: Option<(CandidateKey, usize)> = None;
        let mut failures = Vec::new();
        let counters = self.counters();
        let n_max = assigned.groups.first().map_or(usize::MAX, |work| {
            picture.placer.preference(work.template, assigned.unit()).n_domains_max()
        });
        let mut n_found = 0;
        let compared = picture.placer.set_compares(true);
        for group in 0..groups.len() {
            if n_found >= n_max {
                break;
            }
            if !could_hold(picture, assigned, groups.nodes(group), together) {
                continue;
            }
            match find_in(self, picture, (number, group)) {
                Ok(found) => {
                    n_found += 1;
                    let cost = cost_of(picture, sort_of(picture, assigned), found.claim.victims());
                    if best.is_none_or(|(least, _)| cost < least) {
                        best = Some((cost, group));
                    }
                    if let Some(preemption) = found.claim.preemption() {
                        self.unclaim(&mut picture.cluster, preemption);
                    }
                    picture.cluster.take_back(found.mark);
                }
                Err(failure) => failures.push(failure),
            }
            let is_kept_by_budget = counters.is_kept_by_budget || self.counters.is_kept_by_budget;
            self.restore_counters(SearchCounters { is_kept_by_budget, ..counters });
        }
        picture.placer.set_compares(compared);
        let Some((_, group)) = best else { return Err(failures) };
        find_in(self, picture, (number, group)).map_err(|failure| vec![failure])
    }

    /// Searches one domain.
    fn find_in(
        &mut self,
        picture: &mut Picture,
        assigned: &AssignedUnit,
        seeker: &Seeker,
        together: usize,
        left: usize,
        within: LevelGroup,
    ) -> Result<Try, Option<i64>> {
        if let Some(rules) = rules_of_parts(picture, assigned) {
            let mut tried = Try::begin(&picture.cluster);
            let parts = PartsIn { together, within: Some(within), is_full: false };
            find_parts(self, picture, assigned, &rules, seeker, parts, &mut tried)?;
            return Ok(tried);
        }
        let mut tried = picture.place_in(assigned, &Owned::new(), left.max(together), Some(within));
        look_within(picture, assigned, Some(within));
        let missing = together.saturating_sub(tried.n_placed);
        let found = match missing {
            0 => Ok(()),
            _ => self.find_for(picture, assigned, seeker, missing, missing, &mut tried),
        };
        look_within(picture, assigned, None);
        if let Err(retry_ms) = found {
            picture.cluster.take_back(tried.mark);
            return Err(retry_ms);
        }
        Ok(tried)
    }
}

/// The order in which a unit compares places for which running units leave.
pub(super) fn sort_of(picture: &Picture, assigned: &AssignedUnit) -> CandidateSort {
    let first = assigned.groups.first();
    first.map(|work| picture.placer.preference(work.template, assigned.unit()).sort).unwrap_or_default()
}

/// What the victims of a decision cost, the cheapest first.
pub(super) fn cost_of<'a>(
    picture: &Picture,
    sort: CandidateSort,
    victims: impl Iterator<Item = &'a RunningUnitId>,
) -> CandidateKey {
    let mut victims: Vec<(UnitId, u32)> =
        victims.map(|victim| (victim.unit, victim.replica.ordinal)).collect();
    victims.sort_unstable();
    let mut cost = PlaceCost::NOBODY;
    for of_unit in victims.chunk_by(|a, b| a.0 == b.0) {
        let Some(rows) = picture.cluster.rows().of(of_unit[0].0) else { continue };
        let mut ends_gang = is_ended_by(rows, of_unit);
        for (_, ordinal) in of_unit {
            let row = rows.row(*ordinal);
            let standing = rows.standing(row.group);
            let priority = standing.map_or(i32::MAX, |standing| standing.priority);
            cost = cost.with(&CountedVictim {
                rank: Rank { guaranteed: false, priority },
                bound_time_ms: row.bound_time_ms,
                ran_ms: picture.wall_ms.saturating_sub(row.bound_time_ms).max(0),
                ends_gang: std::mem::take(&mut ends_gang),
                is_master: standing.is_some_and(|standing| standing.is_master(*ordinal)),
            });
        }
    }
    sort.key(cost)
}

/// Whether a unit is too small without some of its running units.
fn is_ended_by(rows: &RunningUnits, leaving: &[(UnitId, u32)]) -> bool {
    let n_needed = leaving.len() + min_member(rows);
    let lacks_of_group = |(group, minimum): (u16, usize)| {
        let n_leaving = leaving.iter().filter(|(_, ordinal)| rows.row(*ordinal).group == group).count();
        let of_group = staying(rows).filter(|(_, row)| row.group == group);
        n_leaving > 0 && of_group.take(n_leaving + minimum).count() < n_leaving + minimum
    };
    staying(rows).take(n_needed).count() < n_needed || group_minima(rows).any(lacks_of_group)
}
