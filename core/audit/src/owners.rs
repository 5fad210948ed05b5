//! I5, too: what the running units of one owner take of a queue that limits that, and what application masters take of their
//! share.
//!
//! Summed anew from the records, for those queues alone that ever had such a limit: without one nothing is replayed.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::ids::{Revision, UnitId};
use godel_domain::{
    change::Change,
    demand::Demand,
    queue_spec::QueueSpec,
    records::{Record, RecordKey},
    unit::UnitRecord,
};

use super::{
    Evidence, History, Start, movers,
    moves::moves,
    queues::{Used, levels},
    verdict::Findings,
    world::{Commit, World},
};

/// A queue, and the owner whose running units count; none: application masters do.
type OwnerAccount = (String, Option<String>);

/// What is taken, by account.
#[derive(Clone, Debug, Default)]
pub(super) struct Accounts {
    /// Queues that ever had a limit of owners or of masters.
    limited: BTreeSet<String>,
    used: BTreeMap<OwnerAccount, Used>,
}

impl Accounts {
    /// All that a world takes now, under the limits that it has now.
    pub(super) fn of(world: &World) -> Self {
        let limited = world.queues.iter().filter(|(_, record)| is_limited(&record.value));
        Self::with(limited.map(|(queue, _)| queue.clone()).collect(), world)
    }

    fn with(limited: BTreeSet<String>, world: &World) -> Self {
        let mut accounts = Self { limited, used: BTreeMap::new() };
        if accounts.limited.is_empty() {
            return accounts;
        }
        for id in world.units.keys() {
            let taken = accounts.of_unit(world, *id);
            accounts.shift(&taken, 1);
        }
        accounts
    }

    /// Whether a unit may use so much more; `group` says the task group of each.
    pub(super) fn hold<'d>(
        &self,
        world: &World,
        record: &UnitRecord,
        demands: impl Iterator<Item = (usize, &'d Demand)>,
    ) -> bool {
        if self.limited.is_empty() {
            return true;
        }
        let mut asked: BTreeMap<OwnerAccount, Used> = BTreeMap::new();
        for (group, demand) in demands {
            for account in self.accounts(&record.spec.queue, record, group) {
                asked.entry(account).or_default().add(demand, 1);
            }
        }
        asked.iter().all(|(account, asked)| {
            let mut sum = self.used.get(account).cloned().unwrap_or_default();
            sum.shift(asked, 1);
            world
                .queues
                .get(&account.0)
                .is_none_or(|queue| above(&queue.value, account, &sum, asked).is_empty())
        })
    }

    fn accounts(&self, queue: &str, record: &UnitRecord, group: usize) -> Vec<OwnerAccount> {
        let mut accounts = Vec::new();
        for level in levels(queue).filter(|level| self.limited.contains(*level)) {
            accounts.push((level.to_owned(), Some(record.spec.owner.clone())));
            if record.spec.is_of_masters(group) {
                accounts.push((level.to_owned(), None));
            }
        }
        accounts
    }

    /// All of a unit that is on nodes, and all that is held for it.
    fn of_unit(&self, world: &World, id: UnitId) -> BTreeMap<OwnerAccount, Used> {
        let mut taken: BTreeMap<OwnerAccount, Used> = BTreeMap::new();
        let Some(unit) = world.units.get(&id) else { return taken };
        let Some(record) = &unit.record else { return taken };
        let mut count = |queue: &str, group: u16, demand: &Demand, times: i64| {
            for account in self.accounts(queue, &record.value, usize::from(group)) {
                taken.entry(account).or_default().add(demand, times);
            }
        };
        if levels(&record.value.spec.queue).all(|level| !self.limited.contains(level)) {
            return taken;
        }
        let mut by_group: BTreeMap<u16, i64> = BTreeMap::new();
        for row in unit.rows.values().filter(|row| row.is_live()) {
            *by_group.entry(row.group).or_default() += 1;
        }
        for (group, n) in by_group {
            if let Some((demand, _)) = unit.demands.get(&group) {
                count(&record.value.spec.queue, group, demand, n);
            }
        }
        for hold in world.holds.values().map(|hold| &hold.value).filter(|hold| hold.unit == id) {
            if let Some((queue, n)) = movers::held(world, hold) {
                count(queue, hold.group, &hold.demand, n);
            }
        }
        taken
    }

    fn shift(&mut self, taken: &BTreeMap<OwnerAccount, Used>, times: i64) {
        for (account, taken) in taken {
            self.used.entry(account.clone()).or_default().shift(taken, times);
        }
    }
}

/// Every binding of the history, which has no gap, against the limits of that time.
pub(super) fn check(evidence: &Evidence, findings: &mut Findings) {
    let limited = ever_limited(&evidence.history);
    if !limited.is_empty() {
        replay(&evidence.history, limited, findings);
    }
}

fn ever_limited(history: &History) -> BTreeSet<String> {
    let at_start = match &history.start {
        Start::Kept(world) => world.queues.values().map(|record| &*record.value).collect::<Vec<_>>(),
        Start::Empty | Start::Unknown(_) => Vec::new(),
    };
    let changes = history.commits.iter().flat_map(|commit| &commit.changes);
    let later = changes.filter_map(|change| {
        let Change::Put(Record::Queue(spec)) = change else { return None };
        Some(&**spec)
    });
    let limited = at_start.into_iter().chain(later).filter(|spec| is_limited(spec));
    limited.map(|spec| spec.name.clone()).collect()
}

fn replay(history: &History, limited: BTreeSet<String>, findings: &mut Findings) {
    let mut world = match &history.start {
        Start::Kept(world) => (**world).clone(),
        Start::Empty | Start::Unknown(_) => World::default(),
    };
    let is_before = |revision: Revision| revision <= history.judged_after();
    for commit in history.commits.iter().filter(|commit| is_before(commit.revision)) {
        world.apply(commit, |_, _| {});
    }
    let mut accounts = Accounts::with(limited, &world);
    for commit in history.commits.iter().filter(|commit| !is_before(commit.revision)) {
        let before: BTreeMap<UnitId, BTreeMap<OwnerAccount, Used>> =
            touched(&world, commit).into_iter().map(|id| (id, accounts.of_unit(&world, id))).collect();
        let moved: BTreeSet<UnitId> = moves(&world, commit).map(|moved| moved.unit).collect();
        world.apply(commit, |_, _| {});
        let mut bound: BTreeMap<OwnerAccount, Used> = BTreeMap::new();
        for (id, before) in &before {
            let after = accounts.of_unit(&world, *id);
            accounts.shift(before, -1);
            accounts.shift(&after, 1);
            // What moves was let in by what was known then.
            for (account, mut more) in after.into_iter().filter(|_| !moved.contains(id)) {
                before.get(&account).into_iter().for_each(|before| more.shift(before, -1));
                bound.entry(account).or_default().shift(&more.where_positive(), 1);
            }
        }
        judge(&world, &accounts, &bound, commit.revision, findings);
    }
}

/// Units of which a commit may change what they take.
fn touched(world: &World, commit: &Commit) -> BTreeSet<UnitId> {
    let unit = |change: &Change| match change {
        Change::Put(Record::Hold(hold)) => Some(hold.unit),
        Change::Gone(RecordKey::Hold(id)) => world.holds.get(id).map(|hold| hold.value.unit),
        _ => change.unit(),
    };
    commit.changes.iter().filter_map(unit).collect()
}

fn judge(
    world: &World,
    accounts: &Accounts,
    bound: &BTreeMap<OwnerAccount, Used>,
    revision: Revision,
    findings: &mut Findings,
) {
    for (account, bound) in bound {
        let (Some(record), Some(used)) = (world.queues.get(&account.0), accounts.used.get(account)) else {
            continue;
        };
        for (name, used, max) in above(&record.value, account, used, bound) {
            let whose = account
                .1
                .as_ref()
                .map_or_else(|| "masters take".to_owned(), |owner| format!("{owner} takes"));
            findings
                .add(|| format!("queue {}: {whose} {name} {used} of {max} (revision {revision})", account.0));
        }
    }
}

/// Of what is asked, what is above the limit of an account: of what, used, most.
fn above(spec: &QueueSpec, account: &OwnerAccount, used: &Used, asked: &Used) -> Vec<(String, i64, i64)> {
    let limits: Vec<(&str, i64)> = match &account.1 {
        Some(_) => spec.max_per_owner.iter().map(|(name, max)| (name.as_str(), *max)).collect(),
        None => spec.max_of_masters().collect(),
    };
    let of = limits.into_iter().map(|(name, max)| (name.to_owned(), used.get(name), max));
    of.filter(|(name, used, max)| asked.get(name) > 0 && used > max).collect()
}

fn is_limited(spec: &QueueSpec) -> bool {
    !spec.max_per_owner.is_empty() || spec.am_share_milli > 0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use godel_base::{
        ids::{HoldId, NodeId},
        resources::Resources,
    };
    use godel_domain::{
        hold::Hold,
        running_units::{Bind, Phase, RunChange, Statuses},
        unit::WorkloadClass,
    };
    use godel_testkit::BuildUnit as _;

    use super::*;
    use crate::{Invariant, queues};

    fn unit(id: u64, queue: &str, owner: &str) -> Change {
        let record = godel_testkit::unit(format!("unit-{id}")).id(UnitId(id)).task_groups(Vec::new());
        Change::Put(Record::Unit(Arc::new(record.class(WorkloadClass::Yarn).owner(owner).queue(queue))))
    }

    fn cpus(n: i64) -> Demand {
        let requests = Resources::new([("cpu", n)]).unwrap();
        Demand { requests, devices: Vec::new(), host_ports: Vec::new(), zones: None }
    }

    fn bind(id: u64, group: u16, ordinals: std::ops::Range<u32>) -> Change {
        let (demand, nodes) = (Arc::new(cpus(10)), vec![NodeId(1); ordinals.len()]);
        let bind = Bind { group, demand, nodes, ordinals: ordinals.collect(), ..Bind::default() };
        Change::Rows(UnitId(id), RunChange::Bind(bind))
    }

    fn ended(id: u64, ordinal: u32) -> Change {
        let (ordinals, phases) = (vec![ordinal], vec![Phase::Succeeded]);
        Change::Rows(UnitId(id), RunChange::Statuses(Statuses { ordinals, phases, ..Statuses::default() }))
    }

    fn held(id: u64, hold: u64) -> Change {
        let (unit, demand) = (UnitId(id), Arc::new(cpus(10)));
        let (id, ordinals) = (HoldId(hold), vec![9]);
        Change::Put(Record::Hold(Arc::new(Hold {
            id,
            unit,
            demand,
            ordinals,
            group: 1,
            node: NodeId(1),
            ..Hold::default()
        })))
    }

    fn queue(path: &str, per_owner: i64, am_share_milli: u32) -> Change {
        let cpu = |n| [("cpu".to_owned(), n)].into();
        let max_per_owner = if per_owner > 0 { cpu(per_owner) } else { BTreeMap::new() };
        Change::Put(Record::Queue(Arc::new(QueueSpec {
            max: cpu(1_000),
            max_per_owner,
            am_share_milli,
            ..QueueSpec::new(path)
        })))
    }

    fn violations(changes: Vec<Change>) -> Vec<String> {
        let mut evidence = Evidence::default();
        evidence.history.floor = Revision(1);
        for (revision, change) in (1u64..).zip(changes) {
            let commit = Commit { revision: Revision(revision), time_ms: 0, changes: vec![change] };
            evidence.listed.apply(&commit, |_, _| {});
            evidence.history.commits.push(commit);
        }
        queues::check(&evidence).report(Invariant::I5).violations
    }

    #[test]
    fn an_owner_is_kept_to_its_limit_over_all_queues_below() {
        let story = |max: i64| {
            let units = [unit(1, "a.x", "ann"), unit(2, "a.y", "ann"), unit(3, "a.x", "bob")];
            let first = [bind(1, 1, 0..2), bind(3, 1, 0..2)];
            [vec![queue("a", max, 0)], units.to_vec(), first.to_vec()].concat()
        };
        let then = |max: i64, more: Vec<Change>| violations([story(max), more].concat());
        assert_eq!(then(20, vec![]), [""; 0]);
        assert_eq!(then(19, vec![])[0], "queue a: ann takes cpu 20 of 19 (revision 5)");
        assert_eq!(then(20, vec![bind(2, 1, 0..1)]), ["queue a: ann takes cpu 30 of 20 (revision 7)"]);
        assert_eq!(then(20, vec![ended(1, 0), bind(2, 1, 0..1)]), [""; 0]);
        assert_eq!(then(20, vec![held(2, 1)]), ["queue a: ann takes cpu 30 of 20 (revision 7)"]);
        // A limit set below what is taken evicts nobody, and lets nothing more in.
        let lowered = vec![queue("a", 10, 0), ended(1, 0), bind(2, 1, 0..1)];
        assert_eq!(then(50, lowered), ["queue a: ann takes cpu 20 of 10 (revision 9)"]);
        assert_eq!(then(20, vec![unit(1, "b", "ann"), bind(2, 1, 0..2)]), [""; 0], "moved away");
    }

    #[test]
    fn masters_are_kept_to_their_share() {
        let units = [unit(1, "a", "ann"), unit(2, "a", "bob")];
        let story = |group: u16| {
            [vec![queue("a", 0, 10)], units.to_vec(), vec![bind(1, 0, 0..1), bind(2, group, 0..1)]].concat()
        };
        assert_eq!(violations(story(1)), [""; 0]);
        assert_eq!(violations(story(0)), ["queue a: masters take cpu 20 of 10 (revision 5)"]);
    }
}
