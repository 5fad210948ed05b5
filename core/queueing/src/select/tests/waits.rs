//! What waits for room: who may pass, for how long, and what that costs.

use super::*;

const LONG: u64 = 60_000;

fn world(path: &str, cpu: i64) -> World {
    let mut world = World::new(Config::default());
    world.put(path, &Quotas { max: &[("cpu", cpu)], ..Quotas::default() });
    world
}

fn job(queue: &'static str, cpu: i64) -> Job {
    Job { queue, cpu, ..JOB }
}

#[test]
fn a_reason_is_shown() {
    let mut world = world("prod", 10);
    world.put("prod.search", &Quotas { max: &[("cpu", 8)], max_running_units: 2, ..Quotas::default() });
    let whole = world.submit(job("prod.search", 8));
    assert_eq!(world.why(whole, NOW), None);
    world.hand_out_all(NOW);
    let (small, big) = (world.submit(job("prod.search", 1)), world.submit(job("prod.search", 9)));
    assert_eq!(world.why(small, NOW).unwrap(), "queue prod.search is at its maximum of cpu");
    assert_eq!(
        world.why(big, NOW).unwrap(),
        "needs 9m of cpu, more than queue prod.search may ever use (8m)"
    );
    let beside = world.submit(job("prod.web", 3));
    assert_eq!(world.why(beside, NOW).unwrap(), "queue prod is at its maximum of cpu");
    let crowd = world.submit(Job { replicas: 3, min_member: 3, ..job("prod.search", 0) });
    assert_eq!(
        world.why(crowd, NOW).unwrap(),
        "needs 3 of running units, more than queue prod.search may ever use (2)"
    );
}

#[test]
fn smaller_units_pass_until_the_head_has_waited_long() {
    let mut world = world("q", 10);
    let running = world.submit(job("q", 8));
    assert_eq!(world.hand_out(NOW), Some(running));
    let head = world.submit(job("q", 6));
    let early = world.submit(job("q", 1));
    assert_eq!(world.hand_out_all(NOW), [early.0], "it passes");
    let late = world.submit(job("q", 1));
    assert_eq!(world.hand_out(NOW.plus(LONG)), None, "room is kept");
    assert_eq!(world.why(late, NOW.plus(LONG)).unwrap(), format!("room in queue q is kept for unit {head}"));
    assert_eq!(world.why(head, NOW.plus(LONG)).unwrap(), "queue q is at its maximum of cpu");
    world.end(early);
    assert_eq!(world.hand_out(NOW.plus(LONG)), None, "two are free, six are asked for");
    world.end(running);
    assert_eq!(world.hand_out_all(NOW.plus(LONG)), [head.0, late.0]);
}

#[test]
fn who_comes_before_the_head_and_other_queues_are_not_held_up() {
    let mut world = world("q", 11);
    let running = world.submit(job("q", 8));
    world.hand_out_all(NOW);
    let head = world.submit(job("q", 6));
    let early = world.submit(job("q", 1));
    assert_eq!(world.hand_out_all(NOW), [early.0]);
    let late = NOW.plus(LONG);
    let beside = world.submit(job("default", 1));
    let urgent = world.submit(Job { priority: 5, ..job("q", 1) });
    let higher = world.submit(Job { priority: 1_000_000, ..job("q", 1) });
    let behind = world.submit(job("q", 0));
    assert_eq!(world.hand_out_all(late), [higher.0, beside.0, urgent.0]);
    world.cancel(head);
    assert_eq!(world.hand_out_all(late), [behind.0], "nobody is waited for any more");
    world.end(running);
    assert!(world.queues.is_empty());
}

#[test]
fn time_runs_from_the_first_who_passes() {
    let mut world = world("q", 10);
    let running = world.submit(job("q", 9));
    world.hand_out_all(NOW);
    let head = world.submit(job("q", 5));
    assert_eq!(world.hand_out(NOW), None, "nobody passes it");
    let small: Vec<UnitId> = (0..2).map(|_| world.submit(job("q", 1))).collect();
    assert_eq!(world.hand_out_all(NOW.plus(LONG)), [small[0].0]);
    world.end(small[0]);
    assert_eq!(world.hand_out_all(NOW.plus(2 * LONG - 1)), [small[1].0]);
    world.end(small[1]);
    let last = world.submit(job("q", 1));
    assert_eq!(world.hand_out(NOW.plus(2 * LONG)), None);
    world.end(running);
    assert_eq!(world.hand_out_all(NOW.plus(2 * LONG)), [head.0, last.0]);
}

#[test]
fn room_is_kept_over_all_queues_below_the_maximum() {
    let mut world = world("org", 10);
    let first = world.submit(job("org.a", 5));
    let second = world.submit(job("org.b", 5));
    assert_eq!(world.hand_out_all(NOW).len(), 2);
    let big = world.submit(job("org.a", 9));
    let small: Vec<UnitId> = (0..20).map(|_| world.submit(job("org.b", 1))).collect();
    world.end(first);
    // `org.a` uses less and comes first, but its unit does not fit: the small ones pass.
    assert_eq!(world.hand_out_all(NOW).len(), 5);
    world.end(small[0]);
    assert_eq!(world.hand_out(NOW.plus(LONG)), None);
    world.end(second);
    for unit in &small[1..4] {
        world.end(*unit);
    }
    assert_eq!(world.hand_out(NOW.plus(LONG)), Some(big));
    assert_eq!(world.used("org", "cpu"), 10);
}

#[test]
fn the_next_that_waits_takes_over_whoever_is_ready_beside_it() {
    let mut world = world("q", 20);
    world.submit(job("q", 14));
    world.hand_out_all(NOW);
    let (head, next) = (world.submit(job("q", 7)), world.submit(job("q", 8)));
    assert_eq!(world.hand_out(NOW), None);
    let before = world.submit(Job { priority: 1, ..job("q", 1) });
    world.cancel(head);
    let passes = world.submit(job("q", 1));
    assert_eq!(world.hand_out_all(NOW), [before.0, passes.0]);
    let late = world.submit(job("q", 1));
    assert_eq!(world.hand_out(NOW.plus(LONG)), None);
    let why = world.why(late, NOW.plus(LONG)).unwrap();
    assert_eq!(why, format!("room in queue q is kept for unit {next}"));
}

#[test]
fn who_waits_elsewhere_by_now_keeps_no_room() {
    let mut world = world("a", 10);
    world.put("a.b", &Quotas { max: &[("cpu", 6)], ..Quotas::default() });
    let running = world.submit(job("a.c", 8));
    world.hand_out_all(NOW);
    let (head, early) = (world.submit(job("a.b", 5)), world.submit(job("a.c", 1)));
    assert_eq!(world.hand_out_all(NOW), [early.0]);
    assert_eq!(world.why(head, NOW).unwrap(), "queue a is at its maximum of cpu");
    // Bound without having waited here, as after a restart.
    let bound = world.queues.enroll(&job("a.b", 4).spec(99));
    world.queues.charge(&bound, 0, 1);
    world.end(running);
    assert_eq!(world.why(head, NOW).unwrap(), "queue a.b is at its maximum of cpu");
    let other = world.submit(job("a.c", 1));
    assert_eq!(world.hand_out_all(NOW.plus(LONG)), [other.0]);
    world.queues.discharge(&bound, 0, 1);
    assert_eq!(world.hand_out_all(NOW.plus(LONG)), [head.0]);
}

#[test]
fn a_higher_band_waits_for_none_below_it() {
    let mut world = world("q", 10);
    let running: Vec<UnitId> = (0..10).map(|_| world.submit(job("q", 1))).collect();
    world.hand_out_all(NOW);
    let online = world.submit(Job { priority: 1_000_000, ..job("q", 5) });
    let mut small: Vec<UnitId> = (0..50).map(|_| world.submit(job("q", 1))).collect();
    // Batch units take what gets free one by one, for a while.
    world.end(running[0]);
    assert_eq!(world.hand_out_all(NOW).len(), 1);
    for unit in &running[1..5] {
        world.end(*unit);
        assert_eq!(world.hand_out(NOW.plus(LONG)), None);
    }
    world.end(running[5]);
    assert_eq!(world.hand_out(NOW.plus(LONG)), Some(online));
    small.truncate(0);
}

#[test]
fn what_never_fits_takes_over_nobodys_wait() {
    let mut world = world("q", 10);
    let running = world.submit(job("q", 8));
    world.hand_out_all(NOW);
    let head = world.submit(job("q", 6));
    let early = world.submit(job("q", 1));
    assert_eq!(world.hand_out_all(NOW), [early.0]);
    world.submit(Job { priority: 5, ..job("q", 11) });
    assert_eq!(world.hand_out(NOW), None);
    let late = world.submit(job("q", 1));
    assert_eq!(world.hand_out(NOW.plus(LONG)), None, "room is kept");
    world.end(running);
    assert_eq!(world.hand_out_all(NOW.plus(LONG)), [head.0, late.0]);
}

#[test]
fn what_never_fits_does_not_wait_in_place_of_the_next() {
    let mut world = world("q", 10);
    let running = world.submit(job("q", 8));
    world.hand_out_all(NOW);
    world.submit(job("q", 11));
    let head = world.submit(job("q", 6));
    let early = world.submit(job("q", 1));
    assert_eq!(world.hand_out_all(NOW), [early.0], "it passes");
    let late = world.submit(job("q", 1));
    assert_eq!(world.hand_out(NOW.plus(LONG)), None);
    let why = world.why(late, NOW.plus(LONG)).unwrap();
    assert_eq!(why, format!("room in queue q is kept for unit {head}"));
    world.end(running);
    assert_eq!(world.hand_out_all(NOW.plus(LONG)), [head.0, late.0]);
}

#[test]
fn what_never_fits_holds_up_nobody() {
    let mut world = world("q", 10);
    let never: Vec<UnitId> = (0..300).map(|_| world.submit(job("q", 11))).collect();
    let small = world.submit(job("q", 10));
    assert_eq!(world.hand_out_all(NOW), [small.0]);
    let next = world.submit(job("q", 10));
    world.end(small);
    assert_eq!(world.hand_out_all(NOW.plus(10 * LONG)), [next.0]);
    world.put("q", &Quotas { max: &[("cpu", 40)], ..Quotas::default() });
    assert_eq!(world.hand_out_all(NOW.plus(10 * LONG)), [never[0].0, never[1].0]);
}

#[test]
fn room_goes_to_the_next_once_the_first_has_no_hope() {
    let mut world = world("q", 10);
    let running = world.submit(job("q", 7));
    world.hand_out_all(NOW);
    world.submit(job("q", 9));
    let next = world.submit(job("q", 5));
    assert_eq!(world.hand_out(NOW), None);
    world.put("q", &Quotas { max: &[("cpu", 8)], ..Quotas::default() });
    let mut pass = |now| {
        let small = world.submit(job("q", 1));
        assert_eq!(world.hand_out_all(now), [small.0]);
        world.end(small);
    };
    pass(NOW);
    // The first has waited long, and gives up: from now on the next one is passed.
    pass(NOW.plus(LONG));
    let (late, now) = (world.submit(job("q", 1)), NOW.plus(2 * LONG));
    assert_eq!(world.hand_out(now), None);
    assert_eq!(world.why(late, now).unwrap(), format!("room in queue q is kept for unit {next}"));
    world.end(running);
    assert_eq!(world.hand_out_all(now), [next.0, late.0]);
}

#[test]
fn maxima_come_and_go() {
    let mut world = World::new(Config::default());
    for _ in 0..30 {
        world.submit(job("q", 1));
    }
    world.put("q", &Quotas { max: &[("cpu", 10)], ..Quotas::default() });
    assert_eq!(world.hand_out_all(NOW).len(), 10);
    world.put("q", &Quotas { max: &[("cpu", 5)], ..Quotas::default() });
    world.end(UnitId(1));
    assert_eq!(world.hand_out_all(NOW), [], "lowering evicts nothing and admits nothing");
    world.put("q", &Quotas { max: &[("cpu", 12)], ..Quotas::default() });
    assert_eq!(world.hand_out_all(NOW).len(), 3);
    world.put("q", &Quotas { max_running_units: 15, ..Quotas::default() });
    assert_eq!(world.hand_out_all(NOW).len(), 3);
    world.queues.remove_record("q");
    assert_eq!(world.hand_out_all(NOW).len(), 14);
    assert!(world.queues.is_empty());
}

#[test]
fn units_of_a_queue_that_got_others_below_it_are_served() {
    let mut world = World::new(Config::default());
    world.submit(job("a", 1));
    world.put("a", &Quotas { max: &[("cpu", 2)], ..Quotas::default() });
    world.put("a.b", &Quotas::default());
    world.submit(job("a.b", 1));
    world.submit(job("a", 1));
    assert_eq!(world.hand_out_all(NOW), [1, 3]);
    world.end(UnitId(1));
    assert_eq!(world.hand_out_all(NOW), [2]);
}

#[test]
fn what_does_not_fit_is_not_looked_at_again() {
    const N_QUEUES: usize = 500;
    let paths: Vec<&'static str> =
        (0..N_QUEUES).map(|n| &*Box::leak(format!("org.q{n}").into_boxed_str())).collect();
    let mut world = world("org", 100);
    for path in &paths {
        for cpu in [4, 4, 8] {
            world.submit(job(path, cpu));
        }
    }
    let mut running: Vec<u64> = world.hand_out_all(NOW);
    assert_eq!(running.len(), 25);
    let before = world.queues.n_looks;
    for _ in 0..200 {
        assert_eq!(world.hand_out(NOW), None);
        world.submit(job(paths[0], 4));
    }
    assert!(world.queues.n_looks - before <= 400, "{} looks", world.queues.n_looks - before);
    let before = world.queues.n_looks;
    for _ in 0..400 {
        world.end(UnitId(running.remove(0)));
        running.extend(world.hand_out_all(NOW));
    }
    // A look for each that is served and one that finds no more room; the large ones are looked at once.
    let looks = world.queues.n_looks - before;
    assert!(looks <= 3 * 400 + N_QUEUES, "{looks} looks");
}

#[test]
fn a_thousand_shapes_of_one_queue_are_looked_at_once() {
    let mut world = world("q", 1_000);
    let first = world.submit(job("q", 1_000));
    world.hand_out_all(NOW);
    for cpu in 1..=1_000 {
        world.submit(Job { priority: 1_000, ..job("q", cpu) });
    }
    assert_eq!(world.hand_out(NOW), None);
    assert!(world.queues.n_looks <= 2, "the least that is asked for does not fit: {}", world.queues.n_looks);
    world.end(first);
    let running = world.hand_out_all(NOW);
    assert_eq!(running.len(), 44, "in order of age: 1 + 2 + … + 44 are 990");
    let once = world.queues.n_looks;
    assert!((44..=2 + 1_000).contains(&once), "{once}");
    for unit in &running[..7] {
        world.end(UnitId(*unit));
        assert_eq!(world.hand_out(NOW), None);
    }
    assert_eq!(world.queues.n_looks, once, "10 + (1 + … + 7) are 38: too few for any");
}

#[test]
fn gates_are_counted_while_queues_have_maxima() {
    let mut queues = Queues::new(Config::default());
    for max_running_units in [3, 4, 0, 5, 0] {
        queues.put(Arc::new(QueueSpec { max_running_units, ..QueueSpec::new("q") }));
        assert_eq!(queues.n_gates, usize::from(max_running_units > 0));
    }
}

#[test]
fn what_fits_is_served_where_others_wait_for_more_room() {
    let mut world = world("org", 10);
    world.submit(job("org.a", 8));
    world.hand_out_all(NOW);
    for queue in ["org.a", "org.b"] {
        world.submit(job(queue, 5));
    }
    assert_eq!(world.hand_out(NOW), None);
    let small = world.submit(job("org.a", 1));
    assert_eq!(world.hand_out_all(NOW), [small.0]);
}

#[test]
fn nothing_is_ready_where_nothing_that_waits_fits() {
    let mut world = world("q", 10);
    world.submit(job("q", 8));
    world.hand_out_all(NOW);
    for cpu in [5, 6] {
        world.submit(job("q", cpu));
    }
    assert_eq!((world.hand_out(NOW), world.queues.is_ready()), (None, false));
    world.submit(job("q", 4));
    assert!(!world.queues.is_ready(), "it does not fit either");
    world.submit(job("q", 2));
    assert!(world.queues.is_ready());
}

#[test]
fn a_unit_passes_kept_room_only_in_its_own_queue() {
    // Another queue, then another owner.
    for (waiting, policy) in [("org.b", QueuePolicy::Priority), ("org.a", QueuePolicy::Drf)] {
        let mut world = world("org", 10);
        world.put("org.a", &Quotas { policy, ..Quotas::default() });
        let urgent = Job { owner: "a", priority: 5, ..job("org.a", 1) };
        world.submit(Job { cpu: 8, ..urgent.clone() });
        world.hand_out_all(NOW);
        let head = world.submit(Job { owner: "b", ..job(waiting, 5) });
        let early = world.submit(urgent.clone());
        assert_eq!(world.hand_out_all(NOW), [early.0]);
        let late = world.submit(urgent);
        assert_eq!(world.hand_out(NOW.plus(LONG)), None, "{policy}");
        let why = world.why(late, NOW.plus(LONG)).unwrap();
        assert_eq!(why, format!("room in queue org is kept for unit {head}"));
    }
}

#[test]
fn whoever_comes_before_the_one_that_waits_takes_over_its_wait() {
    let mut world = world("q", 10);
    let [large, small] = [5, 3].map(|cpu| world.submit(job("q", cpu)));
    world.hand_out_all(NOW);
    let head = world.submit(job("q", 6));
    let early = world.submit(job("q", 1));
    assert_eq!(world.hand_out_all(NOW), [early.0]);
    let urgent = world.submit(Job { priority: 5, ..job("q", 7) });
    assert_eq!(world.hand_out(NOW), None);
    world.end(large);
    let late = NOW.plus(LONG);
    assert_eq!(world.hand_out(late), None, "six are free, enough for the one that waited first");
    assert_eq!(world.why(head, late).unwrap(), format!("room in queue q is kept for unit {urgent}"));
    world.end(small);
    assert_eq!(world.hand_out_all(late), [urgent.0]);
}

#[test]
fn room_that_goes_to_another_before_its_turn_ends_no_wait() {
    let mut world = world("q", 10);
    let running = world.submit(job("q", 8));
    world.hand_out_all(NOW);
    let head = world.submit(job("q", 5));
    let early = world.submit(job("q", 1));
    assert_eq!(world.hand_out_all(NOW), [early.0]);
    world.end(running);
    let urgent = world.submit(Job { priority: 5, ..job("q", 7) });
    assert_eq!(world.hand_out_all(NOW), [urgent.0]);
    let late = world.submit(job("q", 1));
    assert_eq!(world.hand_out(NOW.plus(LONG)), None);
    let why = world.why(late, NOW.plus(LONG)).unwrap();
    assert_eq!(why, format!("room in queue q is kept for unit {head}"), "it waits since it was passed first");
}

#[test]
fn a_wait_goes_on_at_the_maximum_that_is_in_the_way_by_now() {
    let mut world = world("org", 10);
    world.put("org.b", &Quotas { max: &[("cpu", 5)], ..Quotas::default() });
    let running = world.submit(job("org.b", 4));
    world.submit(job("org.a", 4));
    world.hand_out_all(NOW);
    let head = world.submit(job("org.b", 3));
    let early = world.submit(job("org.b", 1));
    assert_eq!(world.hand_out_all(NOW), [early.0], "it passes under the maximum of their own queue");
    world.end(running);
    let online = world.submit(Job { priority: 1_000_000, ..job("org.a", 4) });
    assert_eq!(world.hand_out_all(NOW), [online.0]);
    assert_eq!(world.why(head, NOW).unwrap(), "queue org is at its maximum of cpu");
    let late = world.submit(job("org.a", 1));
    assert_eq!(world.hand_out(NOW.plus(LONG)), None);
    let why = world.why(late, NOW.plus(LONG)).unwrap();
    assert_eq!(why, format!("room in queue org is kept for unit {head}"));
}

#[test]
fn a_seeker_at_a_maximum_goes_as_one_of_a_full_queue() {
    let mut world = World::new(Config::default());
    world.put("lim", &Quotas { max: &[("cpu", 2)], ..Quotas::default() });
    let job = Job { queue: "lim", ..JOB };
    let (first, second) = (world.submit(job.clone()), world.submit(Job { cpu: 2, ..job.clone() }));
    let never = world.submit(Job { cpu: 3, ..job });
    let seek = |world: &mut World, unit: UnitId, now: Millis| {
        let waiting = world.jobs[&unit].2;
        let taken = world.queues.take_seeker(&waiting, now);
        assert_eq!(world.queues.contains(&waiting), taken.is_none());
        taken.map(|(taken, at_maximum)| {
            world.queues.push(taken);
            at_maximum
        })
    };
    assert_eq!(seek(&mut world, second, NOW), Some(false), "there is room in the queue");
    assert_eq!(world.hand_out(NOW), Some(first));
    assert_eq!(seek(&mut world, second, NOW), Some(true), "others of the queue would have to leave");
    assert_eq!(seek(&mut world, never, NOW), None, "it is more than the maximum");
    world.queues.note_vain(second, NOW);
    assert_eq!(seek(&mut world, second, NOW.plus(500)), None, "it was tried a moment ago");
    assert_eq!(seek(&mut world, second, NOW.plus(1_000)), Some(true));
}
