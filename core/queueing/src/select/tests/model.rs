//! Everything at random, against the plainest way to choose.

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{tree::QueueTree, usage::Need};

const PATHS: [&str; 8] = ["a", "a.x", "a.y", "b", "b.u", "b.u.v", "b.w", "default"];
const LEAVES: [&str; 5] = ["a.x", "a.y", "b.u.v", "b.w", "default"];
const OWNERS: [&str; 3] = ["alice", "bob", "carol"];

#[derive(Clone, Debug)]
struct Limits {
    max: Vec<(&'static str, i64)>,
    min: Vec<(&'static str, i64)>,
    weight: u32,
    policy: QueuePolicy,
    n: u32,
    /// Of the first owner; the others weigh 1.
    owner_weight: u32,
    max_per_owner: Vec<(&'static str, i64)>,
    am_share_milli: u32,
}

#[derive(Clone, Debug)]
enum Op {
    Put(usize, Limits),
    Remove(usize),
    Submit(Job),
    HandOut,
    End(usize),
    Cancel(usize),
    Total(i64),
}

fn limits() -> impl Strategy<Value = Limits> {
    let max = [(1u32, 0i64..40), (1, 0i64..200)].map(|(_, range)| prop::option::weighted(0.4, range));
    let min = prop::option::weighted(0.4, 1i64..12);
    let n = prop::option::weighted(0.2, 1u32..12);
    let shares = (prop::option::weighted(0.3, 0i64..20), prop::option::weighted(0.3, 1u32..=1_000));
    (max, min, 1u32..4, 0usize..4, n, 1u32..4, shares).prop_map(
        |(max, min, weight, policy, n, owner_weight, (per_owner, am_share))| Limits {
            max: ["cpu", "memory"]
                .into_iter()
                .zip(max)
                .filter_map(|(name, max)| Some((name, max?)))
                .collect(),
            min: min.map(|min| ("cpu", min)).into_iter().collect(),
            weight,
            policy: QueuePolicy::ALL[policy],
            n: n.unwrap_or(0),
            owner_weight,
            max_per_owner: per_owner.map(|max| ("cpu", max)).into_iter().collect(),
            am_share_milli: am_share.unwrap_or(0),
        },
    )
}

fn job() -> impl Strategy<Value = Job> {
    let replicas = prop_oneof![3 => Just((1u32, 1u32)), 1 => (1u32..5, 1u32..5)];
    let amounts =
        (prop::sample::select(vec![0i64, 1, 1, 2, 3, 7]), prop::sample::select(vec![0i64, 0, 1, 20]));
    let is_yarn = prop::bool::weighted(0.3);
    let order =
        (prop::sample::select(vec![-1, 0, 0, 1, 1_000_000, 1_000_000_000]), 0i64..200_000, any::<bool>());
    (0..LEAVES.len(), 0..OWNERS.len(), replicas, amounts, order, prop::bool::weighted(0.1), is_yarn).prop_map(
        |(
            leaf,
            owner,
            (replicas, min_member),
            (cpu, memory),
            (priority, created_ms, again),
            is_best_effort,
            is_yarn,
        )| Job {
            queue: LEAVES[leaf],
            owner: OWNERS[owner],
            cpu,
            memory,
            gpu_milli: 0,
            replicas,
            min_member: min_member.min(replicas),
            priority,
            pool: if is_best_effort { Pool::BestEffort } else { Pool::Guaranteed },
            created_ms,
            again,
            is_yarn,
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (0..PATHS.len(), limits()).prop_map(|(at, limits)| Op::Put(at, limits)),
        1 => (0..PATHS.len()).prop_map(Op::Remove),
        10 => job().prop_map(Op::Submit),
        10 => Just(Op::HandOut),
        5 => (0usize..1_000).prop_map(Op::End),
        2 => (0usize..1_000).prop_map(Op::Cancel),
        1 => (10i64..200).prop_map(Op::Total),
    ]
}

/// The plainest way: all units that wait, looked at in the order of service, the first that fits.
struct Naive<'a> {
    world: &'a World,
    waiting: Vec<Waiting>,
}

impl Naive<'_> {
    fn next(&self) -> Option<UnitId> {
        Band::ALL.into_iter().find_map(|band| self.below(QueueIdx::ROOT, band))
    }

    fn below(&self, queue: QueueIdx, band: Band) -> Option<UnitId> {
        let (tree, usage) = (self.world.queues.quota().tree(), self.world.queues.quota().usage());
        let mut children: Vec<QueueIdx> = tree.paths_below(queue).to_vec();
        children.sort_by_key(|child| (usage.share_key(*child), tree.path(*child).to_owned()));
        self.in_queue(queue, band).or_else(|| children.into_iter().find_map(|child| self.below(child, band)))
    }

    fn in_queue(&self, queue: QueueIdx, band: Band) -> Option<UnitId> {
        let policy = self.world.queues.quota().tree().policy(queue);
        let mut here: Vec<&Waiting> =
            self.waiting.iter().filter(|one| (one.queue, one.band) == (queue, band)).collect();
        here.sort_by_key(|one| {
            let owner = self.world.jobs[&one.unit].0.owner;
            let seat =
                if policy.is_by_owner() { (self.claim(queue, owner, policy), owner) } else { ((0, 0), "") };
            (seat, FifoKey::new(policy, one))
        });
        here.into_iter().find(|one| self.fits(one)).map(|one| one.unit)
    }

    fn claim(&self, queue: QueueIdx, owner: &str, policy: QueuePolicy) -> (u64, u64) {
        let usage = self.world.queues.quota().usage();
        let mut row = smallvec::SmallVec::new();
        for (job, account, waiting) in self.world.jobs.values() {
            if account.queue == queue && job.owner == owner && !self.waiting.contains(waiting) {
                usage.asks().add_to(&mut row, Need { ask: account.ask(0).unwrap(), n: job.replicas }, 1);
            }
        }
        if policy == QueuePolicy::Drf {
            return (usage.dominant_share(&row), 0);
        }
        let record = self.world.queues.quota().tree().record(queue);
        let weight = record.and_then(|record| record.owner_weights.get(owner)).copied().unwrap_or(1);
        let n = row.first().map_or(0, |n| u64::try_from(*n).unwrap());
        (usage.dominant_share(&row) / u64::from(weight), n * 1_000_000 / u64::from(weight))
    }

    fn fits(&self, waiting: &Waiting) -> bool {
        let tree = self.world.queues.quota().tree();
        let job = &self.world.jobs[&waiting.unit].0;
        let n = i64::from(job.min_member);
        tree.upwards(waiting.queue).filter_map(|level| Some((level, tree.record(level)?))).all(
            |(level, record)| {
                let n_max = i64::from(record.max_running_units);
                let max = record.max.iter().map(|(name, max)| (name.as_str(), *max));
                max.chain((n_max > 0).then_some(("n", n_max))).all(|(name, max)| {
                    let asked = n * amount(job, name);
                    asked == 0 || self.used(tree, level, name, |_| true) + asked <= max
                }) && record.max_per_owner.iter().all(|(name, max)| {
                    let asked = n * amount(job, name);
                    asked == 0
                        || self.used(tree, level, name, |other| other.owner == job.owner) + asked <= *max
                }) && record.max_of_masters().all(|(name, max)| {
                    let asked = n * amount(job, name);
                    asked == 0
                        || !job.is_yarn
                        || self.used(tree, level, name, |other| other.is_yarn) + asked <= max
                })
            },
        )
    }

    fn used(&self, tree: &QueueTree, level: QueueIdx, name: &str, counts: impl Fn(&Job) -> bool) -> i64 {
        let running = self.world.jobs.values().filter(|(_, _, waiting)| !self.waiting.contains(waiting));
        running
            .filter(|(job, account, _)| counts(job) && tree.upwards(account.queue).any(|up| up == level))
            .map(|(job, _, _)| amount(job, name) * i64::from(job.replicas))
            .sum()
    }
}

fn amount(job: &Job, name: &str) -> i64 {
    match name {
        "cpu" => job.cpu,
        "memory" => job.memory,
        _ => 1,
    }
}

/// Units that wait, as the world's own list says.
fn waiting(world: &World) -> Vec<Waiting> {
    let paths = PATHS.iter().filter_map(|path| world.queues.quota().tree().find(path));
    paths.flat_map(|queue| world.queues.iter(queue).copied()).collect()
}

/// Each queue stands in its parent's order exactly while something below may fit.
fn check_orders(world: &World) -> Result<(), TestCaseError> {
    let (queues, tree) = (&world.queues, world.queues.quota().tree());
    for queue in PATHS.iter().filter_map(|path| tree.find(path)) {
        let (branch, above) = (&queues.branches[queue.idx()], tree.parent(queue));
        prop_assert_eq!(branch.gate.is_some(), queues.quota().usage().sums().is_limited(queue));
        for band in Band::ALL {
            let stands = queues.branches[above.idx()].order[band.idx()].contains(tree.place(queue));
            let is_closed = branch.is_closed[band.idx()];
            prop_assert_eq!(stands, branch.is_ready(band) && !is_closed, "{} {:?}", tree.path(queue), band);
            prop_assert!(!is_closed || branch.gate.is_some());
            for (seat, lane) in (0..9).filter_map(|seat| Some((seat, branch.leaf.lane(band, seat)?))) {
                prop_assert!(
                    lane.stall.is_some() || lane.next_stall().is_none(),
                    "nobody waits in its place"
                );
                let Some(stall) = lane.stall else { continue };
                let gate = queues.branches[stall.at.idx()].gate.as_ref().unwrap();
                let lane_ref = LaneRef { queue, seat };
                prop_assert!(gate.iter_stalled().any(|waits| waits == (band, lane_ref)));
                prop_assert!(lane.head(stall.class).is_some());
            }
        }
    }
    Ok(())
}

fn run(ops: &[Op], is_checked: bool) -> Result<Vec<UnitId>, TestCaseError> {
    let mut world = World::new(Config { floor_percent: 0, ..Config::default() });
    let (mut running, mut served): (Vec<UnitId>, Vec<UnitId>) = (Vec::new(), Vec::new());
    for op in ops {
        match op {
            Op::Put(
                at,
                Limits { max, min, weight, policy, n, owner_weight, max_per_owner, am_share_milli },
            ) => {
                let owner_weights: &[(&str, u32)] = &[(OWNERS[0], *owner_weight)];
                let (weight, policy, max_running_units) = (*weight, *policy, *n);
                let am_share_milli = *am_share_milli;
                let quotas = Quotas {
                    min,
                    max,
                    weight,
                    policy,
                    max_running_units,
                    owner_weights,
                    max_per_owner,
                    am_share_milli,
                };
                world.put(PATHS[*at], &quotas);
            }
            Op::Remove(at) => world.queues.remove_record(PATHS[*at]),
            Op::Submit(job) => {
                world.submit(job.clone());
            }
            Op::HandOut => {
                let naive = is_checked.then(|| Naive { world: &world, waiting: waiting(&world) }.next());
                let unit = world.hand_out(NOW);
                prop_assert!(naive.is_none_or(|naive| naive == unit), "{:?} instead of {:?}", unit, naive);
                running.extend(unit);
                served.extend(unit);
            }
            Op::End(which) if !running.is_empty() => world.end(running.swap_remove(which % running.len())),
            Op::Cancel(which) if !world.queues.is_empty() => {
                let all = waiting(&world);
                world.cancel(all[which % all.len()].unit);
            }
            Op::End(_) | Op::Cancel(_) => {}
            Op::Total(cpu) => world.queues.set_total([("cpu", *cpu), ("memory", 500)]),
        }
        if is_checked {
            check_orders(&world)?;
            let all = waiting(&world);
            prop_assert_eq!(all.len(), world.queues.len());
            prop_assert_eq!(all.len() + running.len(), world.jobs.len());
            let n_running_units: u64 = all.iter().map(|one| u64::from(one.running_units)).sum();
            prop_assert_eq!(n_running_units, world.queues.running_units());
        }
    }
    // Without limits everything that waits comes out, once.
    for path in PATHS {
        world.queues.remove_record(path);
    }
    let rest = world.hand_out_all(NOW);
    served.extend(rest.iter().copied().map(UnitId));
    prop_assert!(world.queues.is_empty());
    prop_assert_eq!(rest.len() + running.len(), world.jobs.len());
    for unit in running.into_iter().chain(rest.into_iter().map(UnitId)) {
        world.end(unit);
    }
    let root = world.queues.quota().usage().running_units(QueueIdx::ROOT);
    prop_assert_eq!(root, 0);
    Ok(served)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_next_unit_is_the_first_that_fits(ops in vec(op(), 1..120)) {
        run(&ops, true)?;
    }

    #[test]
    fn equal_events_give_an_equal_order(ops in vec(op(), 1..150)) {
        prop_assert_eq!(run(&ops, false)?, run(&ops, false)?);
    }

    #[test]
    fn the_order_does_not_depend_on_who_came_in_first(jobs in vec(job(), 1..40), seed in any::<u64>()) {
        let order = |mut ids: Vec<usize>, is_shuffled: bool| {
            let mut world = World::new(Config::default());
            for (idx, path) in PATHS.iter().enumerate() {
                let policy = QueuePolicy::ALL[idx % 4];
                world.put(path, &Quotas { max: &[("cpu", 30)], policy, ..Quotas::default() });
            }
            if is_shuffled {
                ids.sort_by_key(|id| godel_base::seed::mix(seed ^ *id as u64));
            }
            for id in ids {
                world.submit_as(jobs[id].clone(), id as u64 + 1);
            }
            world.hand_out_all(NOW)
        };
        let ids: Vec<usize> = (0..jobs.len()).collect();
        prop_assert_eq!(order(ids.clone(), false), order(ids, true));
    }
}
