//! What each policy serves first.

use godel_domain::{priority_classes::PriorityClasses, queue_spec::PriorityClass};

use super::*;

type Unit = (u64, &'static str, i32, i64, bool);

/// Units as (id, owner, priority, created, again) in one queue, and the order in which they come out.
fn check(policy: QueuePolicy, name: &str, units: &[Unit], expected: &[u64]) {
    let mut world = World::new(Config::default());
    world.put("q", &Quotas { policy, ..Quotas::default() });
    for &(id, owner, priority, created_ms, again) in units {
        world.submit_as(Job { queue: "q", owner, priority, created_ms, again, ..JOB }, id);
    }
    assert_eq!((world.queues.len(), world.queues.is_empty()), (units.len(), units.is_empty()));
    assert_eq!(world.hand_out_all(NOW), expected, "{policy}: {name}");
    assert!(world.queues.is_empty());
}

#[test]
fn each_policy_has_its_order() {
    use QueuePolicy::{Drf, FairShare, Fifo, Priority};
    check(Fifo, "age alone", &[(3, "", 9, 0, false), (1, "", 0, 9, false), (2, "", 5, 5, false)], &[1, 2, 3]);
    check(
        Fifo,
        "dispatched before",
        &[(1, "", 9, 0, false), (3, "", 0, 0, true), (2, "", 0, 0, true)],
        &[2, 3, 1],
    );
    check(
        Priority,
        "priority",
        &[(1, "", 0, 0, false), (2, "", 5, 0, false), (3, "", -5, 0, false)],
        &[2, 1, 3],
    );
    check(Priority, "age", &[(3, "", 0, 1, false), (1, "", 0, 2, false), (2, "", 0, 3, false)], &[3, 1, 2]);
    check(Priority, "dispatched before", &[(1, "", 0, 5, false), (2, "", 0, 5, true)], &[2, 1]);
    check(Priority, "the id at last", &[(2, "", 0, 5, false), (1, "", 0, 5, false)], &[1, 2]);
    let a_minute = [(1, "", 1, 60_001, false), (2, "", 0, 0, false), (3, "", 1, 59_999, false)];
    check(Priority, "one of priority for a minute of age", &a_minute, &[3, 2, 1]);
    let owners = [(1, "a", 0, 0, false), (2, "a", 0, 0, false), (3, "a", 0, 0, false), (4, "b", 0, 9, false)];
    check(Drf, "owners take turns", &owners, &[1, 4, 2, 3]);
    check(FairShare, "owners take turns", &owners, &[1, 4, 2, 3]);
    let priorities = [(1, "a", 0, 0, false), (2, "a", 9, 0, false), (3, "b", 5, 0, false)];
    check(FairShare, "priority within an owner only", &priorities, &[2, 3, 1]);
    check(Priority, "owners do not matter", &priorities, &[2, 3, 1]);
}

#[test]
fn owners_take_turns_by_what_dominates_for_their_weight() {
    let weighs = |policy, owner_weights| Quotas { policy, owner_weights, ..Quotas::default() };
    for (quotas, expected) in [
        // `a` holds an eighth of the memory by one running unit, `b` takes a 32nd of the CPUs by each.
        (weighs(QueuePolicy::Drf, &[]), "bbbba"),
        (weighs(QueuePolicy::Drf, &[("a", 9)]), "bbbba"),
        (weighs(QueuePolicy::FairShare, &[]), "bbbba"),
        (weighs(QueuePolicy::FairShare, &[("a", 2)]), "bbaaa"),
        (weighs(QueuePolicy::FairShare, &[("a", 8), ("b", 1)]), "baaaa"),
    ] {
        let policy = quotas.policy;
        let mut world = World::new(Config::default());
        world.put("q", &quotas);
        let (big, small) = (Job { queue: "q", owner: "a", ..JOB }, Job { queue: "q", owner: "b", ..JOB });
        world.submit(Job { memory: 1 << 27, ..big.clone() });
        assert!(world.hand_out(NOW).is_some());
        for _ in 0..4 {
            world.submit(big.clone());
            world.submit(Job { cpu: 1 << 15, ..small.clone() });
        }
        let units: Vec<UnitId> = (0..5).map(|_| world.hand_out(NOW).unwrap()).collect();
        let owners: String = units.iter().map(|unit| world.jobs[unit].0.owner).collect();
        assert_eq!(owners, expected, "{policy} {:?}", quotas.owner_weights);
    }
}

#[test]
fn what_takes_nothing_of_the_cluster_counts_by_the_piece() {
    let mut world = World::new(Config::default());
    let owner_weights: &[(&str, u32)] = &[("a", 3)];
    world.put("q", &Quotas { policy: QueuePolicy::FairShare, owner_weights, ..Quotas::default() });
    for owner in ["a", "a", "a", "a", "b", "b"] {
        world.submit(Job { queue: "q", owner, cpu: 0, ..JOB });
    }
    assert_eq!(world.hand_out_all(NOW), [1, 5, 2, 3, 4, 6]);
}

#[test]
fn weights_of_owners_may_change_while_units_wait() {
    let mut world = World::new(Config::default());
    let quotas = Quotas { policy: QueuePolicy::FairShare, ..Quotas::default() };
    world.put("q", &quotas);
    for owner in ["a", "b"] {
        for _ in 0..4 {
            world.submit(Job { queue: "q", owner, ..JOB });
        }
    }
    let mut next = |weight: u32| {
        world.put("q", &Quotas { owner_weights: &[("b", weight)], ..quotas.clone() });
        world.hand_out(NOW).map(|unit| unit.0)
    };
    assert_eq!([next(1), next(1), next(1), next(9)], [Some(1), Some(5), Some(2), Some(6)]);
    assert_eq!(
        [next(9), next(1)],
        [Some(7), Some(3)],
        "with weight 9 two of `b` are less than two of `a`, without three are more"
    );
}

#[test]
fn a_policy_may_change_while_units_wait() {
    let mut world = World::new(Config::default());
    let job = |owner, priority| Job { queue: "q", owner, priority, ..JOB };
    for (owner, priority) in [("a", 0), ("a", 9), ("b", 5), ("b", 1), ("a", 5)] {
        world.submit(job(owner, priority));
    }
    for (policy, expected) in
        [(QueuePolicy::Fifo, 1), (QueuePolicy::Priority, 2), (QueuePolicy::FairShare, 3)]
    {
        world.put("q", &Quotas { policy, ..Quotas::default() });
        assert_eq!(world.hand_out(NOW), Some(UnitId(expected)), "{policy}");
    }
    let ids = |world: &World| {
        let queue = world.queues.quota().tree().find("q").unwrap();
        world.queues.iter(queue).map(|waiting| waiting.unit.0).collect::<Vec<_>>()
    };
    assert_eq!((ids(&world), world.queues.len(), world.queues.running_units()), (vec![5, 4], 2, 2));
    assert_eq!(world.hand_out_all(NOW), [4, 5]);
}

#[test]
fn bands_come_before_everything_else() {
    let mut world = World::new(Config { floor_percent: 0, ..Config::default() });
    world.put("a", &Quotas { weight: 1_000, min: &[("cpu", 100)], ..Quotas::default() });
    world.put("b", &Quotas::default());
    let job = |queue, priority| Job { queue, priority, ..JOB };
    world.submit(Job { pool: Pool::BestEffort, ..job("a", 2_000_000) });
    world.submit(job("a", 999_999));
    world.submit(job("b", 1_000_000));
    world.submit(job("a", 1_000_000));
    world.submit(job("b", 1_000_000_000));
    assert_eq!(world.hand_out_all(NOW), [5, 4, 3, 2, 1]);
}

#[test]
fn queues_take_turns_in_every_band() {
    let mut world = World::new(Config { floor_percent: 0, ..Config::default() });
    let bands = [(1_000_000_000, Pool::Guaranteed), (1_000_000, Pool::Guaranteed), (0, Pool::Guaranteed)];
    for (priority, pool) in bands.into_iter().chain([(0, Pool::BestEffort)]) {
        for queue in ["a", "a", "b", "b"] {
            world.put(queue, &Quotas::default());
            world.submit(Job { queue, priority, pool, ..JOB });
        }
    }
    let served: Vec<u64> = world.hand_out_all(NOW);
    assert_eq!(served, [1, 3, 2, 4, 5, 7, 6, 8, 9, 11, 10, 12, 13, 15, 14, 16]);
}

#[test]
fn a_new_owner_does_not_inherit_the_place_of_an_old_one() {
    let mut world = World::new(Config::default());
    world.put("q", &Quotas { policy: QueuePolicy::Drf, ..Quotas::default() });
    let of = |owner| Job { queue: "q", owner, ..JOB };
    let first = world.submit(of("z"));
    assert_eq!(world.hand_out(NOW), Some(first));
    world.end(first);
    for owner in ["a", "m"] {
        world.submit(of(owner));
    }
    assert_eq!(world.hand_out_all(NOW), [2, 3]);
}

#[test]
fn pushing_again_replaces_and_leaving_keeps_the_rest() {
    let mut world = World::new(Config::default());
    let unit = world.submit(Job { replicas: 10, ..JOB });
    let fewer = Waiting { running_units: 3, ..world.jobs[&unit].2 };
    world.queues.push(fewer);
    assert_eq!((world.queues.len(), world.queues.running_units()), (1, 3));
    assert_eq!(world.queues.remove(&Waiting { again: true, ..fewer }), None);
    assert_eq!(world.queues.remove(&fewer), Some(fewer));
    assert_eq!((world.queues.len(), world.queues.running_units()), (0, 0));
    assert!(!world.queues.is_ready() && world.queues.is_empty());
    assert_eq!(world.queues.n_enrolled(QueueIdx::DEFAULT), 1);
}

#[test]
fn a_gang_needs_its_first_members_of_groups_in_order() {
    let mut queues = Queues::default();
    let mut spec = Job { min_member: 3, replicas: 1, ..JOB }.spec(1);
    let mut workers = spec.task_groups[0].clone();
    (workers.name, workers.replicas) = ("workers".to_owned(), 5);
    workers.template.demand = Job { cpu: 10, memory: 4, ..JOB }.demand();
    spec.task_groups.push(workers);
    let account = queues.enroll(&spec);
    let amount = |queues: &Queues, need, name: &str| {
        let mut usage = queues.quota.usage().clone();
        usage.add(QueueIdx::ROOT, need);
        usage.used(QueueIdx::ROOT, name)
    };
    let gang = account.need(None);
    assert_eq!((amount(&queues, gang, "cpu"), amount(&queues, gang, "memory")), (21, 8));
    assert_eq!(amount(&queues, account.need(Some(0)), "cpu"), 1);
    assert_eq!(amount(&queues, account.need(Some(1)), "cpu"), 10);
    queues.forget_unit(&account);
    assert_eq!(amount(&queues, gang, "cpu"), 0, "what nobody holds is forgotten");
}

#[test]
fn policies_are_shown_by_name() {
    assert_eq!(QueuePolicy::ALL.map(|policy| policy.to_string()), ["fifo", "priority", "drf", "fair-share"]);
}

#[test]
fn a_class_says_the_priority_of_units_that_give_none() {
    let class = |value| PriorityClass {
        name: "gold".to_owned(),
        value,
        preemptible: true,
        description: String::new(),
    };
    let mut classes = PriorityClasses::default();
    classes.put(class(7));
    for (priority, priority_class, expected, deciding) in [
        (0, "gold", 7, Some("gold")),
        (5, "gold", 5, None),
        (5, "", 5, None),
        (0, "", 0, None),
        (0, "gone", 0, Some("gone")),
    ] {
        let mut spec = Job { priority, ..JOB }.spec(1);
        spec.priority_class = priority_class.to_owned();
        let found = (classes.priority(&spec), PriorityClasses::deciding(&spec));
        assert_eq!(found, (expected, deciding), "{priority} of `{priority_class}`");
    }
}

#[test]
fn who_waited_in_vain_and_left_leaves_its_name_to_nobody() {
    let mut world = World::new(Config::default());
    world.put("q", &Quotas { max: &[("cpu", 10)], policy: QueuePolicy::Drf, ..Quotas::default() });
    let of = |owner| Job { queue: "q", owner, ..JOB };
    let never = world.submit(Job { cpu: 11, ..of("z") });
    assert_eq!(world.hand_out(NOW), None);
    world.cancel(never);
    for owner in ["a", "m"] {
        world.submit(of(owner));
    }
    assert_eq!(world.hand_out_all(NOW), [2, 3]);
}

#[test]
fn owners_change_places_when_the_cluster_becomes_another_one() {
    for (cpu, expected) in [(100, [3, 4]), (20, [4, 3])] {
        let mut world = World::new(Config::default());
        world.put("q", &Quotas { policy: QueuePolicy::Drf, ..Quotas::default() });
        world.queues.set_total([("cpu", 100), ("memory", 100)]);
        // `a` has a tenth of the CPU, `b` a fifth of the memory.
        let a = Job { queue: "q", owner: "a", cpu: 10, ..JOB };
        let b = Job { queue: "q", owner: "b", cpu: 0, memory: 20, ..JOB };
        for job in [&a, &b] {
            world.submit(job.clone());
        }
        assert_eq!(world.hand_out_all(NOW), [1, 2]);
        for job in [&a, &b] {
            world.submit(job.clone());
        }
        world.queues.set_total([("cpu", cpu), ("memory", 100)]);
        assert_eq!(world.hand_out_all(NOW), expected, "{cpu}");
    }
}
