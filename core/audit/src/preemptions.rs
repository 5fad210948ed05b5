//! I6 for preemptions: rank and whole units, with everything that a queue uses counted anew at every commit.
//! The binder judges what it has read and what it has under way; a hold says up to which revision that was. What ended of itself between that
//! and the commit counts as if it were still there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use godel_base::{
    ids::{Revision, UnitId},
    resources::{CPU, MEMORY},
};
use godel_domain::{
    change::Change,
    demand::Demand,
    hold::Hold,
    priority_classes::PriorityClasses,
    queue_spec::PriorityClass,
    records::{Record, RecordKey, RecordKind},
    running_units::{EvictionReason, RunChange},
};

use super::{
    moves::{QueueMove, counted, moves},
    queues::levels,
    verdict::Findings,
    world::{Commit, World, WorldRow},
};

/// Commits that are looked back on: a binder is never so far behind.
const N_BACK_MAX: usize = 10_000;

type Sums = BTreeMap<String, i64>;

/// Numbers of running units by task group.
type MembersByGroup = BTreeMap<u16, i64>;

/// A hold that a commit ends.
pub(super) struct Dropped {
    pub(super) unit: UnitId,
    pub(super) queue: String,
    pub(super) takes: Sums,
    /// `None`: nobody may take it over.
    pub(super) priority: Option<i32>,
    pub(super) taken_from: Vec<UnitId>,
}

/// One change of one row.
pub(super) struct RunTurn<'a> {
    pub(super) unit: UnitId,
    pub(super) ordinal: u32,
    pub(super) before: WorldRow,
    pub(super) after: WorldRow,
    pub(super) change: &'a RunChange,
}

/// What is counted from commit to commit.
#[derive(Default)]
pub(super) struct Preemptions {
    /// By queue: what it uses without those told to leave, with what is held for it.
    staying: BTreeMap<String, Sums>,
    /// Guarantees in force, by queue.
    guarantees: BTreeMap<String, Sums>,
    guaranteed_at: Revision,
    classes: PriorityClasses,
    /// What the commit at hand moves from one queue to another.
    moving: Vec<(String, String, Sums)>,
    /// By unit and task group: running units that are not told to leave.
    members: BTreeMap<UnitId, MembersByGroup>,
    /// By commit: what left queues of itself, and how members of units changed but for preemptions.
    back: VecDeque<Back>,
    pub(super) findings: Findings,
    /// Preemptions that rest on a guarantee.
    pub(super) n_reclaimed: usize,
    /// Claims judged on what was read before the first commit that is judged.
    pub(super) n_before: usize,
}

#[derive(Default)]
struct Back {
    revision: Revision,
    shifts: BTreeMap<String, Sums>,
    /// What moved into queues: who judged before did not count it there.
    entered: BTreeMap<String, Sums>,
    members: BTreeMap<UnitId, MembersByGroup>,
    /// Priority classes by name, as they were before.
    classes: Vec<(String, Option<PriorityClass>)>,
}

/// What one unit does in one commit.
#[derive(Default)]
struct UnitClaims {
    /// By unit and task group: ordinals.
    victims: BTreeMap<UnitId, BTreeMap<u16, Vec<u32>>>,
    asked: Sums,
    judged: Option<Revision>,
    /// Units from which holds are taken over.
    taken_from: BTreeSet<UnitId>,
}

/// What one unit claims in one commit, with the rank that its preemptor had when the binder judged it.
struct RankedClaim<'a> {
    preemptor: UnitId,
    queue: &'a str,
    priority: i32,
    asked: &'a Sums,
    judged: Revision,
    revision: Revision,
}

impl Preemptions {
    /// What is there where the judgement begins.
    pub(super) fn begin(&mut self, world: &World) {
        self.guarantees = guarantees(world);
        world.priority_classes.values().for_each(|class| self.classes.put(class.value.clone()));
        for (id, unit) in &world.units {
            for row in unit.rows.values().filter(|row| stays(row)) {
                shift_all(&mut self.staying, queue_of(world, *id), &takes_of(world, *id, row.group), 1);
                *self.members.entry(*id).or_default().entry(row.group).or_default() += 1;
            }
        }
        for hold in world.holds.values().map(|hold| &hold.value).filter(|hold| stays_held(hold)) {
            let n = i64::try_from(hold.ordinals.len()).unwrap_or(i64::MAX);
            shift_all(&mut self.staying, queue_of_hold(world, hold), &times(&takes(&hold.demand), n), 1);
        }
    }

    /// A unit's record and rows are about to go.
    pub(super) fn forget(&mut self, world: &World, unit: UnitId) {
        let Some(gone) = world.units.get(&unit) else { return };
        for row in gone.rows.values().filter(|row| stays(row)) {
            let takes = takes_of(world, unit, row.group);
            shift_all(&mut self.staying, queue_of(world, unit), &takes, -1);
        }
        self.members.remove(&unit);
    }

    /// A commit comes; `world` is as before it.
    pub(super) fn before(&mut self, world: &World, commit: &Commit) {
        for QueueMove { unit, from, to } in moves(world, commit) {
            let mut sums = Sums::new();
            counted(world, unit, stays).for_each(|(demand, n)| add(&mut sums, &takes(demand), n));
            let targets = world.holds.values().map(|hold| &hold.value).filter(|hold| hold.unit == unit);
            for hold in targets.filter(|hold| hold.movement.is_some()) {
                add(&mut sums, &takes(&hold.demand), i64::try_from(hold.ordinals.len()).unwrap_or(i64::MAX));
            }
            self.moving.push((from.to_owned(), to.to_owned(), sums));
        }
    }

    /// A commit that `world` has applied, and the holds that it has ended. What one unit claims stands together.
    pub(super) fn on_commit(
        &mut self,
        world: &World,
        commit: &Commit,
        turns: &[RunTurn<'_>],
        dropped: &BTreeMap<u64, Dropped>,
    ) {
        if commit.changes.iter().any(|change| change.kind() == Some(RecordKind::Queue)) {
            (self.guaranteed_at, self.guarantees) = (commit.revision, guarantees(world));
        }
        self.back.push_back(Back { revision: commit.revision, ..Back::default() });
        if self.back.len() > N_BACK_MAX {
            self.back.pop_front();
        }
        for (from, to, sums) in std::mem::take(&mut self.moving) {
            self.shift(&from, &sums, -1);
            self.shift(&to, &sums, 1);
            if let Some(back) = self.back.back_mut() {
                shift_all(&mut back.entered, &to, &sums, 1);
            }
        }
        self.follow_classes(commit);
        let mut claim: Option<(UnitId, UnitClaims)> = None;
        let mut at = 0;
        for change in &commit.changes {
            let by = match change {
                Change::Rows(_, RunChange::Evict(evict)) => Some(evict.preemptor),
                Change::Put(Record::Hold(hold)) => Some(hold.unit),
                _ => None,
            };
            if let Some((preemptor, claim)) = claim.take_if(|(preemptor, _)| Some(*preemptor) != by) {
                self.judge(world, preemptor, &claim, dropped, commit.revision);
                self.count_claim(world, preemptor, &claim);
            }
            match change {
                Change::Rows(unit, rows) => {
                    let rest = turns.get(at..).unwrap_or_default();
                    let n = rest.iter().take_while(|turn| std::ptr::eq(turn.change, rows)).count();
                    at += n;
                    self.on_rows(world, *unit, rows, &rest[..n], &mut claim);
                }
                Change::Put(Record::Hold(hold)) if hold.movement.is_some() => {
                    let n = i64::try_from(hold.ordinals.len()).unwrap_or(i64::MAX);
                    self.shift(queue_of_hold(world, hold), &times(&takes(&hold.demand), n), 1);
                }
                Change::Put(Record::Hold(hold)) if hold.counts_in_queue() => {
                    let n = i64::try_from(hold.ordinals.len()).unwrap_or(i64::MAX);
                    let takes = times(&takes(&hold.demand), n);
                    if !hold.taken_from.is_empty() {
                        let (_, claim) = claim.get_or_insert_with(|| (hold.unit, UnitClaims::default()));
                        claim.taken_from.extend(&hold.taken_from);
                    }
                    match &mut claim {
                        Some((_, claim)) => {
                            add(&mut claim.asked, &takes, 1);
                            claim.judged = claim.judged.max(Some(hold.judged));
                        }
                        None => shift_all(&mut self.staying, queue_of_hold(world, hold), &takes, 1),
                    }
                }
                Change::Gone(RecordKey::Hold(id)) => {
                    if let Some(hold) = dropped.get(&id.0) {
                        self.shift(&hold.queue, &hold.takes, -1);
                    }
                }
                _ => {}
            }
        }
        if let Some((preemptor, claim)) = claim {
            self.judge(world, preemptor, &claim, dropped, commit.revision);
            self.count_claim(world, preemptor, &claim);
        }
    }

    fn follow_classes(&mut self, commit: &Commit) {
        for change in &commit.changes {
            let (name, class) = match change {
                Change::Put(Record::PriorityClass(class)) => (&class.name, Some(class.clone())),
                Change::Gone(RecordKey::PriorityClass(name)) => (name, None),
                _ => continue,
            };
            let before = (name.clone(), self.classes.get(name).cloned());
            self.back.back_mut().into_iter().for_each(|back| back.classes.push(before.clone()));
            put_class(&mut self.classes, name, class);
        }
    }

    /// Priority classes in the eyes of who judged.
    fn classes_then(&self, judged: Revision) -> PriorityClasses {
        let mut classes = self.classes.clone();
        for back in self.back.iter().rev().take_while(|back| back.revision > judged) {
            for (name, before) in back.classes.iter().rev() {
                put_class(&mut classes, name, before.clone());
            }
        }
        classes
    }

    fn on_rows(
        &mut self,
        world: &World,
        unit: UnitId,
        change: &RunChange,
        turns: &[RunTurn<'_>],
        claim: &mut Option<(UnitId, UnitClaims)>,
    ) {
        if let RunChange::Evict(evict) = change
            && evict.reason == EvictionReason::Preempted
        {
            for turn in turns.iter().filter(|turn| stays(&turn.before) && !stays(&turn.after)) {
                let (_, claim) = claim.get_or_insert_with(|| (evict.preemptor, UnitClaims::default()));
                let by_group = claim.victims.entry(unit).or_default();
                by_group.entry(turn.before.group).or_default().push(turn.ordinal);
            }
            return;
        }
        let mut by_group: BTreeMap<u16, i64> = BTreeMap::new();
        for RunTurn { before, after, .. } in turns {
            let sign = i64::from(stays(after)) - i64::from(stays(before));
            if sign != 0 {
                let group = if sign > 0 { after.group } else { before.group };
                *by_group.entry(group).or_default() += sign;
            }
        }
        for (group, n) in by_group.into_iter().filter(|(_, n)| *n != 0) {
            self.shift(queue_of(world, unit), &times(&takes_of(world, unit, group), n.abs()), n.signum());
            *self.members.entry(unit).or_default().entry(group).or_default() += n;
            if let Some(back) = self.back.back_mut() {
                *back.members.entry(unit).or_default().entry(group).or_default() += n;
            }
        }
    }

    /// What a queue uses changes, but for a preemption.
    fn shift(&mut self, queue: &str, takes: &Sums, sign: i64) {
        shift_all(&mut self.staying, queue, takes, sign);
        if let Some(back) = self.back.back_mut() {
            shift_all(&mut back.shifts, queue, takes, sign);
        }
    }

    /// What a claim does is counted.
    fn count_claim(&mut self, world: &World, preemptor: UnitId, claim: &UnitClaims) {
        for (unit, by_group) in &claim.victims {
            for (group, victims) in by_group {
                let takes = times(&takes_of(world, *unit, *group), count(victims));
                shift_all(&mut self.staying, queue_of(world, *unit), &takes, -1);
                *self.members.entry(*unit).or_default().entry(*group).or_default() -= count(victims);
            }
        }
        shift_all(&mut self.staying, queue_of(world, preemptor), &claim.asked, 1);
    }

    fn judge(
        &mut self,
        world: &World,
        preemptor: UnitId,
        claim: &UnitClaims,
        dropped: &BTreeMap<u64, Dropped>,
        revision: Revision,
    ) {
        let judged = claim.judged.unwrap_or(Revision(revision.0.saturating_sub(1)));
        if self.back.front().is_some_and(|back| back.revision.0 > judged.0 + 1) {
            self.n_before += 1;
            return;
        }
        let record = world.units.get(&preemptor).and_then(|unit| unit.record.as_ref());
        // That there is one is judged elsewhere.
        let Some(record) = record.map(|record| &record.value) else { return };
        let queue = record.spec.queue.as_str();
        let priority = self.classes_then(judged).priority(&record.spec);
        let ranked = RankedClaim { preemptor, queue, priority, asked: &claim.asked, judged, revision };
        // By queue that had to borrow: all that is taken of it at once, and the most of one.
        let mut taken: BTreeMap<String, (Sums, Sums)> = BTreeMap::new();
        for (unit, by_group) in &claim.victims {
            let n_taken: i64 = by_group.values().map(|victims| count(victims)).sum();
            let members = self.members_then(*unit, judged);
            let n_left = members.values().sum::<i64>() - n_taken;
            let Some(of) = world.units.get(unit) else { continue };
            let min_member =
                of.standings.values().map(|standing| i64::from(standing.min_member)).max().unwrap_or(0);
            if n_left > 0 && n_left < min_member {
                self.findings.add(|| {
                    format!(
                        "{}: {n_taken} preempted for unit {preemptor} leave {n_left} of at least {min_member} \
                         (revision {revision})",
                        of.name()
                    )
                });
            }
            for (group, standing) in &of.standings {
                let n_of_group = by_group.get(group).map_or(0, |victims| count(victims));
                let left = members.get(group).copied().unwrap_or(0) - n_of_group;
                let least = i64::from(standing.group_min_member);
                if n_left > 0 && n_of_group > 0 && left < least {
                    self.findings.add(|| {
                        format!(
                            "{}: {n_of_group} preempted for unit {preemptor} leave {left} of at least {least} of task group {group} \
                             (revision {revision})",
                            of.name()
                        )
                    });
                }
            }
            let mut whole = Sums::new();
            let queue = queue_of(world, *unit);
            for (group, victims) in by_group {
                let priority = of.standings.get(group).map_or(i32::MAX, |standing| standing.priority);
                let takes = takes_of(world, *unit, *group);
                let Some(rests_on_borrowing) = self.outranks(&ranked, queue, priority, &takes) else {
                    let name = of.name();
                    for ordinal in victims {
                        self.findings.add(|| {
                            format!("{name}/{ordinal}: preempted for unit {preemptor}, whose rank is not higher (revision {revision})")
                        });
                    }
                    continue;
                };
                self.n_reclaimed += if priority >= ranked.priority { victims.len() } else { 0 };
                if rests_on_borrowing && n_left <= 0 && min_member > 1 {
                    add(&mut whole, &takes, count(victims));
                } else if rests_on_borrowing {
                    self.note(ranked.queue, queue, &takes, count(victims), &mut taken);
                }
            }
            self.note(ranked.queue, queue, &whole, 1, &mut taken);
        }
        for owner in &claim.taken_from {
            let holds: Vec<&Dropped> = dropped.values().filter(|hold| hold.unit == *owner).collect();
            self.judge_taken_over(&ranked, *owner, &holds, &mut taken);
        }
        self.judge_taken(&ranked, &taken);
    }

    /// Holds of a unit of lower rank are taken over, none of them back.
    fn judge_taken_over(
        &mut self,
        claim: &RankedClaim<'_>,
        owner: UnitId,
        holds: &[&Dropped],
        taken: &mut BTreeMap<String, (Sums, Sums)>,
    ) {
        let RankedClaim { preemptor, revision, .. } = *claim;
        // Of those that had it before nothing ends now.
        let Some(first) = holds.first() else { return };
        let mut takes = Sums::new();
        holds.iter().for_each(|hold| add(&mut takes, &hold.takes, 1));
        let highest = holds.iter().map(|hold| hold.priority.unwrap_or(i32::MAX)).max().unwrap_or(i32::MAX);
        let what = format!("what is held for unit {owner} is taken over for unit {preemptor}");
        if holds.iter().any(|hold| hold.taken_from.contains(&preemptor)) {
            self.findings.add(|| format!("{what}, from which it was taken over (revision {revision})"));
        }
        match self.outranks(claim, &first.queue, highest, &takes) {
            None => {
                self.findings.add(|| format!("{what}, whose rank is not higher (revision {revision})"));
            }
            Some(true) => self.note(claim.queue, &first.queue, &takes, 1, taken),
            Some(false) => {}
        }
    }

    fn judge_taken(&mut self, claim: &RankedClaim<'_>, taken: &BTreeMap<String, (Sums, Sums)>) {
        let RankedClaim { preemptor, judged, revision, .. } = *claim;
        for (queue, (sum, largest)) in taken {
            let mut less = times(sum, -1);
            add(&mut less, largest, 1);
            if self.guaranteed_at <= judged && self.is_within(queue, sum, &self.then(queue, &less, judged)) {
                self.findings.add(|| {
                    format!("queue {queue}: more than it borrows is preempted for unit {preemptor} (revision {revision})")
                });
            }
        }
    }

    /// Whether a unit outranks a running unit; if so, whether only because that one's queue borrows.
    fn outranks(&self, claim: &RankedClaim<'_>, other: &str, below: i32, takes: &Sums) -> Option<bool> {
        let RankedClaim { queue: own, priority, asked, judged, .. } = *claim;
        let (mine, theirs) = apart(own, other);
        if self.guaranteed_at > judged || mine.is_empty() || theirs.is_empty() {
            // Guarantees were others then, or are of no matter.
            return (self.guaranteed_at > judged || below < priority).then_some(false);
        }
        let owed = mine.iter().any(|level| {
            let mut with = self.staying.get(*level).cloned().unwrap_or_default();
            add(&mut with, asked, 1);
            for back in self.back.iter().rev().take_while(|back| back.revision > judged) {
                back.entered.get(*level).into_iter().for_each(|entered| add(&mut with, entered, -1));
            }
            self.is_within(level, asked, &with)
        });
        let borrows =
            !theirs.iter().any(|level| self.is_within(level, takes, &self.then(level, &Sums::new(), judged)));
        match (owed, borrows) {
            (true, true) => Some(below >= priority),
            (false, true) => (below < priority).then_some(true),
            (true, false) => (below < priority).then_some(false),
            (false, false) => None,
        }
    }

    /// Adds to what is taken of the queues that two do not share, where a guarantee is about it: `n` times as much.
    fn note(&self, own: &str, other: &str, takes: &Sums, n: i64, taken: &mut BTreeMap<String, (Sums, Sums)>) {
        for level in apart(own, other).1 {
            if !takes.is_empty() && self.concerns(level, takes) {
                let (sum, largest) = taken.entry(level.to_owned()).or_default();
                add(sum, takes, n);
                for (name, amount) in takes {
                    let most = largest.entry(name.clone()).or_default();
                    *most = amount.max(most).to_owned();
                }
            }
        }
    }

    fn concerns(&self, queue: &str, asked: &Sums) -> bool {
        let Some(min) = self.guarantees.get(queue) else { return false };
        let asked = || asked.iter().filter(|(_, amount)| **amount > 0).map(|(name, _)| name.as_str());
        asked().any(|name| min.contains_key(name))
            && asked().all(|name| min.contains_key(name) || name == CPU || name == MEMORY)
    }

    fn is_within(&self, queue: &str, asked: &Sums, used: &Sums) -> bool {
        let min = self.guarantees.get(queue);
        self.concerns(queue, asked)
            && min.into_iter().flatten().all(|(name, min)| {
                asked.get(name).is_none_or(|amount| *amount <= 0) || used.get(name).unwrap_or(&0) <= min
            })
    }

    /// The most that a queue may have used in the eyes of who judged, with `more`.
    fn then(&self, queue: &str, more: &Sums, judged: Revision) -> Sums {
        let mut used = self.staying.get(queue).cloned().unwrap_or_default();
        add(&mut used, more, 1);
        for back in self.back.iter().rev().take_while(|back| back.revision > judged) {
            for (name, amount) in back.shifts.get(queue).into_iter().flatten() {
                *used.entry(name.clone()).or_default() -= (*amount).min(0);
            }
        }
        used
    }

    /// Running units of a unit that were there, and are not preempted since.
    fn members_then(&self, unit: UnitId, judged: Revision) -> MembersByGroup {
        let since = self.back.iter().rev().take_while(|back| back.revision > judged);
        let mut members = self.members.get(&unit).cloned().unwrap_or_default();
        for (group, n) in since.filter_map(|back| back.members.get(&unit)).flatten() {
            *members.entry(*group).or_default() -= n;
        }
        members
    }
}

fn put_class(classes: &mut PriorityClasses, name: &str, class: Option<PriorityClass>) {
    match class {
        Some(class) => classes.put(class),
        None => classes.remove(name),
    }
}

fn count(victims: &[u32]) -> i64 {
    i64::try_from(victims.len()).unwrap_or(i64::MAX)
}

/// It takes room, and is not told to leave.
fn stays(row: &WorldRow) -> bool {
    row.is_live() && row.eviction.is_none()
}

fn queue_of(world: &World, unit: UnitId) -> &str {
    let record = world.units.get(&unit).and_then(|unit| unit.record.as_ref());
    record.map_or("default", |record| record.value.spec.queue.as_str())
}

/// Whether what is held stays taken in its queue: who moves is told to leave, and comes back (ADR 0087).
pub(super) fn stays_held(hold: &Hold) -> bool {
    hold.counts_in_queue() || hold.movement.is_some()
}

/// The queue that a hold counts in; its unit may be gone already.
pub(super) fn queue_of_hold<'a>(world: &'a World, hold: &'a Hold) -> &'a str {
    let is_known = world.units.get(&hold.unit).is_some_and(|unit| unit.record.is_some());
    if is_known { queue_of(world, hold.unit) } else { hold.queue.as_deref().unwrap_or("default") }
}

fn takes_of(world: &World, unit: UnitId, group: u16) -> Sums {
    let demand = world.units.get(&unit).and_then(|unit| unit.demands.get(&group));
    demand.map(|(demand, _)| takes(demand)).unwrap_or_default()
}

pub(super) fn takes(demand: &Demand) -> Sums {
    let mut sums: Sums = demand.requests.iter().map(|(name, amount)| (name.to_owned(), amount)).collect();
    for devices in &demand.devices {
        *sums.entry(devices.kind.clone()).or_default() += i64::from(devices.count) * i64::from(devices.milli);
    }
    sums
}

pub(super) fn times(sums: &Sums, times: i64) -> Sums {
    sums.iter().map(|(name, amount)| (name.clone(), amount.saturating_mul(times))).collect()
}

fn add(sums: &mut Sums, more: &Sums, sign: i64) {
    for (name, amount) in more {
        *sums.entry(name.clone()).or_default() += amount.saturating_mul(sign);
    }
}

fn shift_all(by_queue: &mut BTreeMap<String, Sums>, queue: &str, takes: &Sums, sign: i64) {
    for level in levels(queue) {
        match by_queue.get_mut(level) {
            Some(sums) => add(sums, takes, sign),
            None => {
                by_queue.insert(level.to_owned(), times(takes, sign));
            }
        }
    }
}

/// The queues of either path that are not above or of the other.
fn apart<'a>(own: &'a str, other: &'a str) -> (Vec<&'a str>, Vec<&'a str>) {
    let (mine, theirs): (BTreeSet<&str>, BTreeSet<&str>) = (levels(own).collect(), levels(other).collect());
    (mine.difference(&theirs).copied().collect(), theirs.difference(&mine).copied().collect())
}

/// Of each queue and resource the larger of what it says and what those below it say together.
fn guarantees(world: &World) -> BTreeMap<String, Sums> {
    let mut paths: BTreeSet<&str> = BTreeSet::new();
    world.queues.keys().for_each(|path| paths.extend(levels(path)));
    let mut guarantees: BTreeMap<String, Sums> = BTreeMap::new();
    // A path sorts after what it begins with: from the last to the first, children come before their parents.
    for path in paths.iter().rev() {
        let mut sums = Sums::new();
        let is_child = |other: &&&str| other.rsplit_once('.').is_some_and(|(parent, _)| parent == *path);
        for child in paths.iter().filter(is_child) {
            guarantees.get(*child).into_iter().for_each(|of_child| add(&mut sums, of_child, 1));
        }
        for (name, min) in world.queues.get(*path).into_iter().flat_map(|queue| &queue.value.min) {
            let known = sums.entry(name.clone()).or_default();
            *known = (*known).max(*min);
        }
        sums.retain(|_, min| *min > 0);
        guarantees.insert((*path).to_owned(), sums);
    }
    guarantees
}
