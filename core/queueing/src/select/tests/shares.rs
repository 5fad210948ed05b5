//! Shares over many units, against allocations computed by hand.

use proptest::{collection::vec, prelude::*};

use super::*;

/// A party in a filling: weight, and what a unit takes of each resource, in parts of the whole.
#[derive(Clone, Debug)]
struct Party {
    weight: f64,
    takes: [f64; 3],
}

impl Party {
    fn dominant(&self) -> f64 {
        self.takes.iter().copied().fold(0.0, f64::max)
    }
}

/// Dominant share of each party when all grow at the pace of their weights until a resource that they need is used up:
/// progressive filling of divisible units, after Ghodsi et al. 2011, algorithm 1.
fn filled(parties: &[Party]) -> Vec<f64> {
    let mut shares = vec![0.0; parties.len()];
    let mut left = [1.0f64; 3];
    let mut growing = vec![true; parties.len()];
    while growing.iter().any(|grows| *grows) {
        let mut pace = [0.0; 3];
        for (party, _) in parties.iter().zip(&growing).filter(|(_, grows)| **grows) {
            for (pace, takes) in pace.iter_mut().zip(party.takes) {
                *pace += party.weight * takes / party.dominant();
            }
        }
        let step = left.iter().zip(pace).filter(|(_, pace)| *pace > 0.0);
        let step = step.map(|(left, pace)| left / pace).fold(f64::INFINITY, f64::min);
        for (left, pace) in left.iter_mut().zip(pace) {
            *left = (*left - pace * step).max(0.0);
        }
        for (idx, party) in parties.iter().enumerate().filter(|(idx, _)| growing[*idx]).collect::<Vec<_>>() {
            shares[idx] += party.weight * step;
            growing[idx] = !party.takes.iter().zip(left).any(|(takes, left)| *takes > 0.0 && left < 1e-9);
        }
    }
    shares
}

const WHOLE: [(&str, i64); 3] = [("cpu", 1 << 20), ("memory", 1 << 30), ("gpu", 1 << 20)];
const OWNERS: [&str; 4] = ["alice", "bob", "carol", "dave"];
const LEAVES: [&str; 4] = ["org.a", "org.b", "org.c", "org.d"];

/// A unit that takes so many 4,096ths of each whole.
fn job(parts: [i64; 3]) -> Job {
    Job {
        cpu: parts[0] << 8,
        memory: parts[1] << 18,
        gpu_milli: u32::try_from(parts[2] << 8).unwrap(),
        ..JOB
    }
}

/// Some resources not at all, of the others a third of a per cent at most, and none much more than another: what is
/// left of one when a larger unit does not fit any more then makes less than a per cent of what dominates a smaller one.
fn parts() -> impl Strategy<Value = [i64; 3]> {
    let some = || prop_oneof![1 => Just(0i64), 3 => 4i64..13];
    [some(), some(), some()].prop_filter("takes something", |parts| parts.iter().sum::<i64>() > 0)
}

/// Hands out until nothing fits, each job in so many copies as could ever fit.
fn saturate(world: &mut World, jobs: &[Job]) -> Vec<f64> {
    for _ in 0..1_030 {
        for job in jobs {
            world.submit(job.clone());
        }
    }
    let mut counts = vec![0i64; jobs.len()];
    while let Some(unit) = world.hand_out(NOW) {
        counts[usize::try_from(unit.0 - 1).unwrap() % jobs.len()] += 1;
    }
    let share = |amount: i64, whole: i64| amount as f64 / whole as f64;
    jobs.iter()
        .zip(counts)
        .map(|(job, n)| {
            let takes = [
                share(job.cpu, WHOLE[0].1),
                share(job.memory, WHOLE[1].1),
                share(job.gpu_milli.into(), WHOLE[2].1),
            ];
            takes.into_iter().fold(0.0, f64::max) * n as f64
        })
        .collect()
}

fn near(shares: &[f64], expected: &[f64], tolerance: f64) -> bool {
    shares.iter().zip(expected).all(|(share, expected)| (share - expected).abs() <= tolerance)
}

fn party(parts: [i64; 3], weight: f64) -> Party {
    Party { weight, takes: parts.map(|part| part as f64 / 4_096.0) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn owners_get_their_dominant_shares(takes in vec(parts(), 2..=4)) {
        let mut world = World::new(Config::default());
        world.put("q", &Quotas { max: &WHOLE, policy: QueuePolicy::Drf, ..Quotas::default() });
        let jobs: Vec<Job> =
            takes.iter().zip(OWNERS).map(|(takes, owner)| Job { queue: "q", owner, ..job(*takes) }).collect();
        let shares = saturate(&mut world, &jobs);
        let expected = filled(&takes.iter().map(|takes| party(*takes, 1.0)).collect::<Vec<_>>());
        prop_assert!(near(&shares, &expected, 0.02), "{:?} instead of {:?}", shares, expected);
    }

    #[test]
    fn owners_get_their_weighted_dominant_shares(takes in vec((parts(), 1u32..8), 2..=4)) {
        let mut world = World::new(Config::default());
        let weights: Vec<(&str, u32)> = takes.iter().zip(OWNERS).map(|((_, weight), owner)| (owner, *weight)).collect();
        let quotas = Quotas { max: &WHOLE, policy: QueuePolicy::FairShare, owner_weights: &weights, ..Quotas::default() };
        world.put("q", &quotas);
        let jobs: Vec<Job> =
            takes.iter().zip(OWNERS).map(|((takes, _), owner)| Job { queue: "q", owner, ..job(*takes) }).collect();
        let shares = saturate(&mut world, &jobs);
        let parties: Vec<Party> = takes.iter().map(|(takes, weight)| party(*takes, f64::from(*weight))).collect();
        let expected = filled(&parties);
        prop_assert!(near(&shares, &expected, 0.02), "{:?} instead of {:?}", shares, expected);
    }

    #[test]
    fn queues_get_their_weighted_dominant_shares(takes in vec((parts(), 1u32..8), 2..=4)) {
        let mut world = World::new(Config::default());
        world.put("org", &Quotas { max: &WHOLE, ..Quotas::default() });
        for ((_, weight), path) in takes.iter().zip(LEAVES) {
            world.put(path, &Quotas { weight: *weight, ..Quotas::default() });
        }
        let jobs: Vec<Job> =
            takes.iter().zip(LEAVES).map(|((takes, _), queue)| Job { queue, ..job(*takes) }).collect();
        let shares = saturate(&mut world, &jobs);
        let parties: Vec<Party> = takes.iter().map(|(takes, weight)| party(*takes, f64::from(*weight))).collect();
        let expected = filled(&parties);
        prop_assert!(near(&shares, &expected, 0.02), "{:?} instead of {:?}", shares, expected);
    }

    #[test]
    fn fair_share_raises_the_least_first(backlogs in vec(0u32..300, 4), room in 1u32..600) {
        let mut world = World::new(Config::default());
        let policy = QueuePolicy::FairShare;
        world.put("q", &Quotas { max_running_units: room, policy, ..Quotas::default() });
        for (owner, n) in OWNERS.into_iter().zip(&backlogs) {
            for _ in 0..*n {
                world.submit(Job { queue: "q", owner, ..JOB });
            }
        }
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        while let Some(unit) = world.hand_out(NOW) {
            *counts.entry(world.jobs[&unit].0.owner).or_default() += 1;
        }
        let counts = OWNERS.map(|owner| counts.get(owner).copied().unwrap_or(0));
        prop_assert_eq!(counts.iter().sum::<u32>(), room.min(backlogs.iter().sum()));
        // Max-min: who still waits has at least as many as anybody else, but for the one of the last round.
        for (idx, (count, backlog)) in counts.iter().zip(&backlogs).enumerate() {
            prop_assert!(count == backlog || counts.iter().all(|other| *other <= count + 1), "{} {:?}", idx, counts);
        }
    }
}

#[test]
fn the_example_of_the_paper() {
    // 9 CPUs and 18 GB; A takes (1, 4), B (3, 1): A gets three units and B two. A hundred times that.
    let mut world = World::new(Config::default());
    world.queues.set_total([("cpu", 900), ("memory", 1_800)]);
    world.put(
        "q",
        &Quotas { max: &[("cpu", 900), ("memory", 1_800)], policy: QueuePolicy::Drf, ..Quotas::default() },
    );
    let (a, b) = (
        Job { queue: "q", owner: "a", cpu: 1, memory: 4, ..JOB },
        Job { queue: "q", owner: "b", cpu: 3, memory: 1, ..JOB },
    );
    for _ in 0..900 {
        world.submit(a.clone());
        world.submit(b.clone());
    }
    let units = world.hand_out_all(NOW);
    let n = |owner: &str| units.iter().filter(|unit| world.jobs[&UnitId(**unit)].0.owner == owner).count();
    assert_eq!((n("a"), n("b")), (300, 200));
}

#[test]
fn guarantees_are_met_before_anybody_borrows() {
    let mut world = World::new(Config::default());
    world.put("org", &Quotas { max: &[("cpu", 100)], ..Quotas::default() });
    world.put("org.idle", &Quotas { min: &[("cpu", 30)], ..Quotas::default() });
    world.put("org.sure", &Quotas { min: &[("cpu", 40)], ..Quotas::default() });
    world.put("org.heavy", &Quotas { weight: 1_000, ..Quotas::default() });
    for _ in 0..200 {
        world.submit(Job { queue: "org.heavy", ..JOB });
        world.submit(Job { queue: "org.sure", ..JOB });
    }
    let first: Vec<u64> = (0..40).map(|_| world.hand_out(NOW).unwrap().0).collect();
    assert!(first.iter().all(|unit| unit % 2 == 0), "the guarantee first: {first:?}");
    world.hand_out_all(NOW);
    assert_eq!((world.used("org.sure", "cpu"), world.used("org.heavy", "cpu")), (40, 60), "idle is lent");
    // Whoever ends, its room goes to the owner of the idle guarantee until that is met.
    for _ in 0..50 {
        world.submit(Job { queue: "org.idle", ..JOB });
    }
    let borrowers: Vec<UnitId> = first_of(&world, "org.heavy", 50);
    for unit in borrowers {
        world.end(unit);
        world.hand_out_all(NOW);
    }
    assert_eq!((world.used("org.idle", "cpu"), world.used("org.heavy", "cpu")), (30, 30));
}

/// Units of a queue that were handed out.
fn first_of(world: &World, queue: &str, n: usize) -> Vec<UnitId> {
    let of = |(_, (job, _, waiting)): &(&UnitId, &(Job, Account, Waiting))| {
        job.queue == queue && !world.queues.contains(waiting)
    };
    world.jobs.iter().filter(of).take(n).map(|(unit, _)| *unit).collect()
}

#[test]
fn weights_hold_while_units_end_slowly() {
    // One end in 40 s under a full maximum: every head waits longer than anybody may before room is kept for it, and
    // still gets its share only.
    let mut world = World::new(Config::default());
    world.put("org", &Quotas { max: &[("cpu", 400)], ..Quotas::default() });
    for (path, weight) in LEAVES.into_iter().zip([1, 1, 3, 5]) {
        world.put(path, &Quotas { weight, ..Quotas::default() });
    }
    for queue in LEAVES {
        for _ in 0..2_000 {
            world.submit(Job { queue, ..JOB });
        }
    }
    world.hand_out_all(NOW);
    let mut running: Vec<UnitId> =
        LEAVES.into_iter().flat_map(|queue| first_of(&world, queue, 400)).collect();
    let mut seed = 7usize;
    for step in 0..2_000u64 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (seed >> 33) % running.len();
        world.end(running.swap_remove(at));
        running.extend(world.hand_out_all(NOW.plus(step * 40_000)).into_iter().map(UnitId));
        assert_eq!(running.len(), 400);
    }
    let used = LEAVES.map(|path| world.used(path, "cpu"));
    assert_eq!(used, [40, 40, 120, 200]);
}

#[test]
fn lower_bands_get_their_floor() {
    for (floor_percent, expected) in [(0, 0), (5, 500), (20, 2_000)] {
        let mut world = World::new(Config { floor_percent, ..Config::default() });
        for _ in 0..10_000 {
            world.submit(Job { priority: 1_000_000, ..JOB });
            world.submit(JOB);
        }
        let units: Vec<UnitId> = (0..10_000).map(|_| world.hand_out(NOW).unwrap()).collect();
        let n_low = units.iter().filter(|unit| world.jobs[unit].0.priority == 0).count();
        assert!(n_low.abs_diff(expected) <= 1, "{n_low} instead of {expected}");
        // Nowhere do they wait long for it.
        let longest = units.split(|unit| world.jobs[unit].0.priority == 0).map(<[_]>::len).max().unwrap();
        assert!(floor_percent == 0 || longest <= 100 / usize::from(floor_percent) + 1, "{longest}");
    }
}

/// Units of these bands wait for the same room, and `n_at_once` places come free at a time: how many the lower one gets of so many
/// places.
fn served_beside_higher(floor_percent: u8, n_at_once: usize, n_places: usize) -> usize {
    let mut world = World::new(Config { floor_percent, ..Config::default() });
    let room = crate::RoomIdx(1);
    for _ in 0..n_places {
        world.submit_to_room(Job { priority: 1_000_000, ..JOB }, room);
        world.submit_to_room(JOB, room);
    }
    let mut units = Vec::new();
    while units.len() < n_places {
        world.queues.set_open(room, true);
        for n_left in (0..n_at_once).rev() {
            let waiting = world.queues.next(NOW).unwrap();
            // The last place is gone with the unit that takes it.
            world.queues.set_open(room, n_left > 0);
            world.queues.served(&waiting);
            units.push(waiting.unit);
        }
        assert!(world.queues.next(NOW).is_none());
    }
    units.iter().filter(|unit| world.jobs[unit].0.priority == 0).count()
}

#[test]
fn lower_bands_get_their_floor_of_places_that_come_free_one_at_a_time() {
    for floor_percent in [1, 5, 20] {
        for n_at_once in [1, 2, 7, 16] {
            let n_low = served_beside_higher(floor_percent, n_at_once, 2_000);
            let expected = 20 * usize::from(floor_percent);
            assert!(
                n_low.abs_diff(expected) <= 1,
                "{n_low} of 2,000 in steps of {n_at_once}, not {expected}"
            );
        }
    }
}

#[test]
fn a_band_that_does_not_take_its_turns_earns_a_bounded_number_of_them() {
    let mut world = World::new(Config::default());
    for _ in 0..1_000 {
        world.submit(Job { priority: 1_000_000, ..JOB });
    }
    let low: Vec<UnitId> = (0..100).map(|_| world.submit(JOB)).collect();
    for _ in 0..900 {
        let waiting = world.queues.next(NOW).unwrap();
        if waiting.band == Band::Batch {
            // Nobody takes it now: it waits on.
            let higher = {
                world.queues.push(waiting);
                world.jobs.values().find(|(_, _, one)| one.band == Band::Online && world.queues.contains(one))
            };
            let higher = higher.unwrap().2;
            world.queues.remove(&higher);
            world.queues.served(&higher);
        } else {
            world.queues.served(&waiting);
        }
    }
    // 900 places are worth 47 turns.
    let n_low = (0..60).filter(|_| low.contains(&world.hand_out(NOW).unwrap())).count();
    assert!((16..=20).contains(&n_low), "{n_low} of 60");
}

#[test]
fn what_finds_no_place_spends_nothing_of_the_floor() {
    let mut world = World::new(Config::default());
    for _ in 0..4_000 {
        world.submit(Job { priority: 1_000_000, ..JOB });
        world.submit(JOB);
    }
    let mut n = [0usize; 4];
    let mut seed = 1u64;
    while n.iter().sum::<usize>() < 2_000 {
        let waiting = world.queues.next(NOW).unwrap();
        let change = world.queues.served(&waiting);
        seed = godel_base::seed::mix(seed);
        // Two of three tries of the lower band find no place, and one of four of the higher one.
        let is_placed = match waiting.band {
            Band::Batch => seed.is_multiple_of(3),
            _ => !seed.is_multiple_of(4),
        };
        if is_placed {
            n[waiting.band.idx()] += 1;
        } else {
            world.queues.unserved(&change);
        }
    }
    assert!(n[Band::Batch.idx()].abs_diff(100) <= 2, "{n:?}");
}

#[test]
fn the_band_floor_counts_running_units_of_all_lower_bands() {
    let mut world = World::new(Config::default());
    for _ in 0..20_000 {
        world.submit(Job { priority: 1_000_000_000, ..JOB });
        world.submit(Job { priority: 0, replicas: 100, min_member: 100, ..JOB });
        world.submit(Job { pool: Pool::BestEffort, ..JOB });
    }
    let mut n = [0u32; 4];
    while n.iter().sum::<u32>() < 20_000 {
        let unit = world.hand_out(NOW).unwrap();
        let (job, _, waiting) = &world.jobs[&unit];
        n[waiting.band.idx()] += job.replicas;
    }
    let all: u32 = n.iter().sum();
    // The lowest has its twentieth of all, the next one a twentieth of what it and those above it got.
    assert!(n[3].abs_diff(all / 20) <= 10, "{n:?}");
    assert!(n[2].abs_diff((all - n[3]) / 20) <= 100, "{n:?}");
}

#[test]
fn a_lower_band_pays_nothing_while_it_is_alone() {
    let mut world = World::new(Config::default());
    for _ in 0..1_000 {
        world.submit(JOB);
    }
    for _ in 0..500 {
        world.hand_out(NOW).unwrap();
    }
    for _ in 0..100 {
        world.submit(Job { priority: 1_000_000, ..JOB });
    }
    let units: Vec<UnitId> = (0..40).map(|_| world.hand_out(NOW).unwrap()).collect();
    assert_eq!(units.iter().filter(|unit| world.jobs[unit].0.priority == 0).count(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn large_units_are_not_starved_by_small_ones(
        sizes in vec((2i64..=20, 0..LEAVES.len()), 1..6),
        lives in vec(1usize..12, 40),
    ) {
        // Ten seconds a step; small units without end in every queue, one for each that ends.
        let mut world = World::new(Config::default());
        world.put("org", &Quotas { max: &[("cpu", 20)], ..Quotas::default() });
        for path in LEAVES {
            world.put(path, &Quotas::default());
        }
        let mut ends: BTreeMap<usize, Vec<UnitId>> = BTreeMap::new();
        let mut large: Vec<UnitId> = Vec::new();
        for step in 0..600usize {
            for unit in ends.remove(&step).unwrap_or_default() {
                world.end(unit);
            }
            for queue in LEAVES {
                world.submit(Job { queue, created_ms: i64::try_from(step).unwrap() * 10_000, ..JOB });
            }
            if step == 10 {
                large = sizes
                    .iter()
                    .map(|(cpu, at)| world.submit(Job { queue: LEAVES[*at], cpu: *cpu, created_ms: 0, ..JOB }))
                    .collect();
            }
            let now = NOW.plus(u64::try_from(step).unwrap() * 10_000);
            for unit in world.hand_out_all(now) {
                let life = lives[usize::try_from(unit).unwrap() % lives.len()];
                ends.entry(step + life).or_default().push(UnitId(unit));
            }
            prop_assert!(world.used("org", "cpu") <= 20);
        }
        let waiting = |unit: &&UnitId| world.jobs.get(*unit).is_some_and(|(_, _, one)| world.queues.contains(one));
        prop_assert_eq!(large.iter().filter(waiting).count(), 0);
    }
}
