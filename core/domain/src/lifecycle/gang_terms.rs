//! The minima of a unit, and who counts towards them.
//!
//! A unit has a minimum, and each of its task groups may have one of its own. A first binding has to reach all of them.

use smallvec::SmallVec;

use crate::{
    running_units::{Phase as RowPhase, RunningUnit, RunningUnits},
    unit::{OnBelowMin, OnEviction, RestartPolicy, UnitRecord, UnitSpec},
};

/// What a unit says of who counts: whom it wants, and of those that are gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangTerms {
    /// Of all its groups, as few half-open ranges as that takes.
    ordinals: SmallVec<[(u32, u32); 1]>,
    /// So many have to be there.
    pub min_member: u32,
    /// The task groups that have a minimum of their own.
    groups: Vec<GroupMinimum>,
    /// What follows when they are not any more.
    pub on_below_min: OnBelowMin,
    /// What becomes of one that others sent away.
    pub on_eviction: OnEviction,
    /// What becomes of one that ended by itself.
    pub restart_policy: RestartPolicy,
    /// While all comes back: what has succeeded does not.
    pub keeps_succeeded: bool,
}

/// A task group with a minimum of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMinimum {
    /// Index of the task group.
    pub group: u16,
    /// So many of it have to be there.
    pub min_member: u32,
    /// Half-open.
    ordinals: SmallVec<[(u32, u32); 1]>,
}

/// Running units of a unit that count towards its minima.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GangCount {
    /// Of all task groups.
    pub total: usize,
    /// Of each task group that has a minimum of its own, in the order of [`GangTerms::groups`].
    groups: SmallVec<[usize; 2]>,
}

impl GangCount {
    /// Returns how many there are of each task group that has a minimum of its own, in the order of [`GangTerms::groups`].
    pub fn of_groups(&self) -> impl Iterator<Item = usize> + '_ {
        self.groups.iter().copied()
    }
}

impl GangTerms {
    /// Of a unit of which nothing is known: it wants nobody.
    pub fn unknown() -> Self {
        Self {
            ordinals: SmallVec::new(),
            min_member: 0,
            groups: Vec::new(),
            on_below_min: OnBelowMin::default(),
            on_eviction: OnEviction::default(),
            restart_policy: RestartPolicy::Never,
            keeps_succeeded: false,
        }
    }

    /// Of a unit.
    pub fn of(record: &UnitRecord) -> Self {
        let UnitSpec { min_member, on_below_min, on_eviction, restart_policy, .. } = record.spec;
        let mut ordinals: SmallVec<[(u32, u32); 1]> = SmallVec::new();
        for (start, end) in record.ranges() {
            match ordinals.last_mut() {
                Some(last) if last.1 == start => last.1 = end,
                _ => ordinals.push((start, end)),
            }
        }
        let of_groups = (0u16..).zip(&record.spec.task_groups).zip(&record.status.ordinals);
        let groups = of_groups.filter(|((_, group), _)| group.min_member > 0);
        let groups = groups.map(|((idx, group), ordinals)| GroupMinimum {
            group: idx,
            min_member: group.min_member,
            ordinals: SmallVec::from_slice(ordinals),
        });
        Self {
            ordinals,
            min_member,
            groups: groups.collect(),
            on_below_min,
            on_eviction,
            restart_policy,
            keeps_succeeded: record.status.keeps_succeeded,
        }
    }

    /// Of all its groups, half-open.
    pub fn ranges(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.ordinals.iter().copied()
    }

    /// The task groups that have a minimum of their own.
    pub fn groups(&self) -> &[GroupMinimum] {
        &self.groups
    }

    /// Whether several of it are needed at once.
    pub fn is_gang(&self) -> bool {
        self.min_member > 1 || !self.groups.is_empty()
    }

    /// Whether some group has this ordinal.
    pub fn wants(&self, ordinal: u32) -> bool {
        self.ordinals.iter().any(|(start, end)| (*start..*end).contains(&ordinal))
    }

    /// Whether one that has ended comes back while its unit is being restarted.
    pub fn comes_again(&self, row: &RunningUnit) -> bool {
        let is_over = !row.was_sent_away() || self.is_over(row);
        let is_kept = self.keeps_succeeded && row.phase == RowPhase::Succeeded && is_over;
        row.phase.is_ended() && !is_kept
    }

    /// Whether one that was sent away is over all the same. What succeeded before it had to go is done, unless it always
    /// restarts; what others sent away has failed where its unit says so.
    pub fn is_over(&self, row: &RunningUnit) -> bool {
        let is_done = row.phase == RowPhase::Succeeded && self.restart_policy != RestartPolicy::Always;
        is_done || (self.on_eviction == OnEviction::Fail && row.was_evicted_by_others())
    }

    /// Adds running units of a task group to a count.
    pub fn add(&self, count: &mut GangCount, group: u16, n: usize) {
        count.total += n;
        if let Some(at) = self.groups.iter().position(|minimum| minimum.group == group) {
            count.groups.resize(self.groups.len(), 0);
            count.groups[at] += n;
        }
    }

    /// Whether a count reaches the minimum of the unit and those of its task groups.
    pub fn is_reached(&self, count: &GangCount) -> bool {
        count.total >= self.min_member as usize && self.lacking(count).next().is_none()
    }

    /// Returns the fewest running units that reach all minima together with those that are counted.
    pub fn lacks(&self, count: &GangCount) -> usize {
        let of_groups: usize = self.lacking(count).map(|(_, n)| n).sum();
        of_groups.max((self.min_member as usize).saturating_sub(count.total))
    }

    /// Returns the task groups whose own minimum a count does not reach, and how many each lacks.
    pub fn lacking<'a>(&'a self, count: &'a GangCount) -> impl Iterator<Item = (u16, usize)> + 'a {
        self.groups.iter().enumerate().filter_map(|(at, minimum)| {
            let n = count.groups.get(at).copied().unwrap_or(0);
            let lacks = (minimum.min_member as usize).saturating_sub(n);
            (lacks > 0).then_some((minimum.group, lacks))
        })
    }

    /// Returns in words what a count does not reach: `2 of 4`, or `1 of 3 of task group 1`.
    pub fn words(&self, count: &GangCount) -> String {
        match self.lacking(count).next() {
            Some((group, lacks)) if count.total >= self.min_member as usize => {
                let minimum = self.groups.iter().find(|minimum| minimum.group == group);
                let needed = minimum.map_or(0, |minimum| minimum.min_member as usize);
                format!("{} of {needed} of task group {group}", needed.saturating_sub(lacks))
            }
            _ => format!("{} of {}", count.total, self.min_member),
        }
    }

    fn count<'a>(&self, rows: impl Iterator<Item = (u32, &'a RunningUnit)>) -> GangCount {
        if self.groups.is_empty() {
            return GangCount { total: rows.count(), groups: SmallVec::new() };
        }
        let mut count = GangCount { total: 0, groups: SmallVec::from_elem(0, self.groups.len()) };
        for (ordinal, _) in rows {
            count.total += 1;
            if let Some(at) = self.groups.iter().position(|minimum| minimum.owns(ordinal)) {
                count.groups[at] += 1;
            }
        }
        count
    }
}

impl GroupMinimum {
    fn owns(&self, ordinal: u32) -> bool {
        self.ordinals.iter().any(|(start, end)| (*start..*end).contains(&ordinal))
    }
}

/// Whether all of a gang has left that was there: nobody stays, whoever is over aside.
pub fn has_left(rows: &RunningUnits, terms: &GangTerms) -> bool {
    let wanted = || rows.rows.iter().filter(|(ordinal, _)| terms.wants(*ordinal));
    terms.is_gang() && !wanted().any(|(_, row)| stays(row)) && wanted().any(|(_, row)| row.had_node())
}

fn stays(row: &RunningUnit) -> bool {
    row.phase.is_live() && row.eviction.is_none()
}

/// Running units that count when a binding has to reach the minima of a unit, of those that the unit wants. What comes back
/// later goes one by one, so whoever had a node in some incarnation does; but while some are yet to come back after a suspension
/// only who is there. Nor does a gang come back one by one of which all have left: nobody waits for the others then, and a part of it is of no use. Of a unit that restarts as a whole what is there counts while it is enough; once it is broken only
/// what is over for good does: the rest has to leave before any comes back.
pub fn counted(rows: &RunningUnits, terms: &GangTerms) -> GangCount {
    let wanted = || rows.rows.iter().filter(|(ordinal, _)| terms.wants(*ordinal));
    let is_over = |row: &RunningUnit| match row.was_sent_away() {
        true => terms.is_over(row),
        false => matches!(row.phase, RowPhase::Succeeded | RowPhase::Failed),
    };
    let is_there = |row: &RunningUnit| is_over(row) || stays(row);
    match terms.on_below_min {
        OnBelowMin::Keep | OnBelowMin::Stop if wanted().any(|(_, row)| row.is_set_aside()) => {
            terms.count(wanted().filter(|(_, row)| is_there(row)))
        }
        OnBelowMin::Keep if has_left(rows, terms) => terms.count(wanted().filter(|(_, row)| is_there(row))),
        OnBelowMin::Keep | OnBelowMin::Stop => terms.count(wanted().filter(|(_, row)| row.had_node())),
        OnBelowMin::Restart => {
            let there = terms.count(wanted().filter(|(_, row)| is_there(row)));
            match terms.is_reached(&there) {
                true => there,
                false => terms.count(wanted().filter(|(_, row)| is_over(row))),
            }
        }
    }
}
