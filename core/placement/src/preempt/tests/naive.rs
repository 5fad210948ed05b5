//! Everything anew for each replica and node, without index, first look or memory.

use std::cmp::Reverse;

use super::*;

/// Who looks, and what queues are guaranteed.
pub(super) struct Wanted<'a> {
    pub(super) quota: &'a Quota,
    pub(super) queue: &'static str,
    pub(super) ask: &'a Demand,
    pub(super) wanted: usize,
}

fn levels(path: &str) -> Vec<&str> {
    let ends = path.match_indices('.').map(|(idx, _)| idx).chain([path.len()]);
    ends.map(|end| &path[..end]).collect()
}

fn amount(demand: &Demand, name: &str) -> i64 {
    let devices = demand.devices.iter().filter(|devices| devices.kind == name);
    demand.requests.get(name) + devices.map(|asked| i64::from(asked.milli)).sum::<i64>()
}

impl Wanted<'_> {
    fn min(&self, level: &str) -> BTreeMap<String, i64> {
        self.quota
            .tree()
            .find(level)
            .map(|queue| self.quota.tree().guaranteed(queue).clone())
            .unwrap_or_default()
    }

    /// The guarantee is about what is asked.
    fn concerns(&self, level: &str, asked: &Demand) -> bool {
        let min = self.min(level);
        let covers = asked.devices.is_empty() || min.contains_key("gpu");
        covers && min.keys().any(|name| amount(asked, name) > 0)
    }

    fn is_within(&self, level: &str, asked: &Demand, used: impl Fn(&str) -> i64) -> bool {
        let min = self.min(level);
        let mut named = min.iter().filter(|(name, _)| amount(asked, name) > 0);
        self.concerns(level, asked) && named.all(|(name, min)| used(name) <= *min)
    }

    /// Without those that are gone; but whoever the guarantee is not about may as well go last.
    fn used(&self, cluster: &Cluster, level: &str, gone: &BTreeSet<(UnitId, u32)>, name: &str) -> i64 {
        let mut used = 0;
        for (unit, rows) in units(cluster) {
            let path = rows.standing(0).unwrap().queue.clone().unwrap();
            let demand = &rows.groups[0].as_ref().unwrap().demand;
            let goes_last = !self.concerns(level, demand);
            let is_there = |ordinal: u32| goes_last || !gone.contains(&(unit, ordinal));
            let staying = staying(rows).filter(|(ordinal, _)| is_there(*ordinal)).count();
            if levels(&path).contains(&level) {
                used += amount(demand, name) * i64::try_from(staying).unwrap();
            }
        }
        used
    }

    pub(super) fn sides(
        &self,
        cluster: &Cluster,
        rows: &RunningUnits,
        gone: &BTreeSet<(UnitId, u32)>,
    ) -> Sides {
        if self.quota.tree().iter().all(|queue| self.quota.tree().guaranteed(queue).is_empty()) {
            return Sides::default();
        }
        let path = rows.standing(0).unwrap().queue.clone().unwrap();
        let (own, other) = (levels(self.queue), levels(&path));
        let takes = &rows.groups[0].as_ref().unwrap().demand;
        let n = i64::try_from(self.wanted).unwrap();
        let is_owed = |level: &&&str| {
            self.is_within(level, self.ask, |name| {
                self.used(cluster, level, &BTreeSet::new(), name) + n * amount(self.ask, name)
            })
        };
        let mine = own.iter().filter(|level| !other.contains(level));
        let theirs: Vec<&&str> = other.iter().filter(|level| !own.contains(level)).collect();
        if theirs.is_empty() || mine.clone().next().is_none() {
            let owed = own.iter().any(|level| is_owed(&level));
            return Sides { seeker: owed, other: owed };
        }
        let has_its_own =
            |level: &&&str| self.is_within(level, takes, |name| self.used(cluster, level, gone, name));
        Sides { seeker: mine.clone().any(|level| is_owed(&level)), other: theirs.iter().any(has_its_own) }
    }
}

pub(super) fn search(
    cluster: &Cluster,
    (claim, order): (&Wanted<'_>, &[usize]),
    shape: ShapeId,
    wanted: usize,
) -> Vec<(NodeId, Vec<(UnitId, u32)>)> {
    let mut gone: BTreeSet<(UnitId, u32)> = BTreeSet::new();
    let mut placed: Vec<(NodeId, Allocation)> = Vec::new();
    let mut steps = Vec::new();
    while placed.len() < wanted {
        let nodes = (1..cluster.free().n_indices()).map(|idx| NodeId(u32::try_from(idx).unwrap()));
        let on_nodes = nodes.filter_map(|node| on_node((cluster, claim), shape, node, &gone, &placed));
        let in_order = |key: &CostKey| order.iter().map(|idx| key[*idx]).collect::<Vec<i64>>();
        let best = on_nodes.min_by_key(|(key, node, ..)| (in_order(key), *node));
        let Some((_, node, victims, given)) = best else { break };
        gone.extend(victims.iter().copied());
        placed.push((node, given));
        steps.push((node, victims));
    }
    steps
}

/// What the candidate costs measure, each in its own words.
type CostKey = [i64; CANDIDATE_COSTS.len()];

fn units(cluster: &Cluster) -> impl Iterator<Item = (UnitId, &RunningUnits)> {
    (1..=40).map(UnitId).filter_map(|unit| Some((unit, cluster.rows().of(unit)?)))
}

fn may(unit: UnitId, rows: &RunningUnits, row: &RunningUnit, sides: Sides) -> bool {
    // Of a world in which nobody was preempted before, and without slots and budgets.
    may_leave(&VictimInput::new(&Cluster::new(), &SEEKER, &[], unit, rows, 0, row, sides)).is_ok()
}

fn room(
    cluster: &Cluster,
    shape: ShapeId,
    node: NodeId,
    without: &BTreeSet<(UnitId, u32)>,
    placed: &[(NodeId, Allocation)],
) -> Option<Allocation> {
    let mut after = cluster.clone();
    for (unit, rows) in units(cluster) {
        for (ordinal, row) in rows.live().filter(|(ordinal, _)| without.contains(&(unit, *ordinal))) {
            let statuses = godel_domain::running_units::Statuses {
                ordinals: vec![ordinal],
                incarnations: vec![row.incarnation],
                phases: vec![godel_domain::running_units::Phase::Stopped],
                ..godel_domain::running_units::Statuses::default()
            };
            after.apply_rows(unit, &RunChange::Statuses(statuses), Revision(9), NOW_MS);
        }
    }
    for (ordinal, (node, given)) in (0u32..).zip(placed) {
        after.assume(RunningUnitId::new(SEEKER.unit, 1_000 + ordinal, 0), shape, *node, *given);
    }
    after.free().fits(shape, node).ok().and_then(|()| after.free().pick(shape, node))
}

/// Whoever's queue borrows no more without those before it stays: one, or a whole unit.
fn overdrawn(
    (cluster, claim): (&Cluster, &Wanted<'_>),
    leaving: &[(UnitId, u32)],
    forced: &BTreeSet<UnitId>,
    gone: &BTreeSet<(UnitId, u32)>,
) -> Option<(UnitId, Option<u32>)> {
    let mut without = gone.clone();
    for (unit, ordinal) in leaving {
        let rows = cluster.rows().of(*unit).unwrap();
        let is_whole = forced.contains(unit) && min_member(rows) > 1;
        let is_counted = is_whole && leaving.iter().any(|one| one.0 == *unit && one.1 < *ordinal);
        let sides = claim.sides(cluster, rows, &without);
        let priority = rows.standing(0).unwrap().priority;
        if !is_counted && !sides.outranked(SEEKER.priority, priority) {
            return Some((*unit, Some(*ordinal).filter(|_| !is_whole)));
        }
        without.insert((*unit, *ordinal));
        if is_whole {
            without.extend(staying(rows).map(|(ordinal, _)| (*unit, ordinal)));
        }
    }
    None
}

#[allow(clippy::type_complexity, reason = "a test's own")]
fn on_node(
    (cluster, claim): (&Cluster, &Wanted<'_>),
    shape: ShapeId,
    node: NodeId,
    gone: &BTreeSet<(UnitId, u32)>,
    placed: &[(NodeId, Allocation)],
) -> Option<(CostKey, NodeId, Vec<(UnitId, u32)>, Allocation)> {
    let fits = |without: &BTreeSet<(UnitId, u32)>| room(cluster, shape, node, without, placed);
    if let Some(given) = fits(gone) {
        return Some(([0, 0, 0, 0, 0, 0, 0, i64::MIN], node, Vec::new(), given));
    }
    let spare = |unit: UnitId, rows: &RunningUnits| {
        let n = staying(rows).filter(|(ordinal, _)| !gone.contains(&(unit, *ordinal))).count();
        n.saturating_sub(min_member(rows))
    };
    // Sort key, member.
    let mut items = Vec::new();
    for (unit, rows) in units(cluster) {
        let sides = claim.sides(cluster, rows, gone);
        let whole = staying(rows).all(|(_, row)| may(unit, rows, row, sides));
        let mut own: Vec<(u32, &RunningUnit)> = rows
            .live()
            .filter(|(ordinal, row)| {
                row.node == node && may(unit, rows, row, sides) && !gone.contains(&(unit, *ordinal))
            })
            .collect();
        own.sort_by_key(|(ordinal, row)| (Reverse(row.bound_time_ms), *ordinal));
        for (at, (ordinal, row)) in own.into_iter().enumerate() {
            let breaks = at >= spare(unit, rows);
            if !breaks || whole {
                let group = rows.groups[0].as_ref().unwrap();
                let ask = cluster.catalogue().demand(shape);
                let parts = |name| group.demand.requests.get(name) * 1_000 / ask.requests.get(name);
                let mut least = parts(CPU).min(parts(MEMORY));
                if let Some(asked) = ask.devices.first() {
                    let milli = group.demand.devices.first().map_or(0, |devices| devices.milli);
                    least = least.min(i64::from(milli) * 1_000 / i64::from(asked.milli));
                }
                let priority = rows.standing(row.group).unwrap().priority;
                let rank = Rank { guaranteed: sides.other, priority };
                items.push((
                    (Reverse(rank), !breaks, least, row.bound_time_ms, unit, ordinal),
                    (unit, ordinal),
                ));
            }
        }
    }
    items.sort_unstable();
    let mut forced: BTreeSet<UnitId> = BTreeSet::new();
    loop {
        let all: BTreeSet<(UnitId, u32)> =
            gone.iter().copied().chain(items.iter().map(|(_, member)| *member)).collect();
        fits(&all)?;
        let mut left = all;
        for (_, member) in &items {
            if !forced.contains(&member.0) {
                left.remove(member);
                if fits(&left).is_none() {
                    left.insert(*member);
                }
            }
        }
        let leaving: Vec<(UnitId, u32)> = left.difference(gone).copied().collect();
        let broken: Vec<UnitId> = units(cluster)
            .filter(|(unit, rows)| {
                leaving.iter().filter(|member| member.0 == *unit).count() > spare(*unit, rows)
                    && !forced.contains(unit)
            })
            .map(|(unit, _)| unit)
            .collect();
        if !broken.is_empty() {
            forced.extend(broken);
            continue;
        }
        let kept = overdrawn((cluster, claim), &leaving, &forced, gone);
        if let Some((unit, ordinal)) = kept {
            items.retain(|(_, one)| one.0 != unit || ordinal.is_some_and(|ordinal| ordinal != one.1));
            forced.clear();
            continue;
        }
        let mut victims: BTreeSet<(UnitId, u32)> = leaving.into_iter().collect();
        for (unit, rows) in units(cluster).filter(|(unit, _)| forced.contains(unit)) {
            victims
                .extend(staying(rows).map(|(ordinal, _)| (unit, ordinal)).filter(|one| !gone.contains(one)));
        }
        let known = |unit: UnitId| cluster.rows().of(unit).unwrap();
        let rows = |(unit, ordinal): &(UnitId, u32)| known(*unit).row(*ordinal);
        let priorities = victims.iter().map(|one| known(one.0).standing(rows(one).group).unwrap().priority);
        let guaranteed = |one: &(UnitId, u32)| claim.sides(cluster, known(one.0), gone).other;
        let ranks = victims.iter().zip(priorities);
        let ranks: Vec<Rank> =
            ranks.map(|(one, priority)| Rank { guaranteed: guaranteed(one), priority }).collect();
        let weight = |rank: &Rank| {
            i64::from(rank.priority) + (1 << 31) + 1 + if rank.guaranteed { 1 << 33 } else { 0 }
        };
        let key = [
            i64::from(!victims.is_empty()),
            // Nobody here is a master.
            0,
            ranks.iter().max().map_or(0, weight),
            ranks.iter().map(weight).sum(),
            i64::try_from(victims.len()).unwrap(),
            i64::try_from(forced.len()).unwrap(),
            victims.iter().map(|one| NOW_MS - rows(one).bound_time_ms).sum(),
            victims.iter().map(|one| -rows(one).bound_time_ms - 1).max().unwrap_or(i64::MIN),
        ];
        return Some((key, node, victims.into_iter().collect(), fits(&left)?));
    }
}
