//! Units that were placed before and wait for several groups, of which any one may be placed alone.

use super::*;

/// Of one queue of [`world`].
const JOB_Q: Job = Job { queue: "p.q", ..JOB };

/// The child has a maximum of CPU, its parent one of memory.
fn world() -> World {
    let mut world = World::new(Config::default());
    world.put("p", &Quotas { max: &[("memory", 10)], ..Quotas::default() });
    world.put("p.q", &Quotas { max: &[("cpu", 10)], ..Quotas::default() });
    world
}

/// A unit of two groups of these shapes, one of each wanted.
fn submit(world: &mut World, shapes: [(i64, i64); 2]) -> UnitId {
    world.last_id += 1;
    let id = world.last_id;
    let [first, second] = shapes.map(|(cpu, memory)| Job { cpu, memory, ..JOB_Q });
    let mut account = world.queues.enroll(&spec_of(id, &first, &second));
    world.queues.choose(&mut account, [0, 1]);
    let need = account.need(Some(0));
    world.wait(first, account, need, id)
}

/// A unit of two groups, which says for the rest what the first one does.
fn spec_of(id: u64, first: &Job, second: &Job) -> UnitSpec {
    let second = second.spec(id).task_groups.remove(0);
    let mut spec = first.spec(id);
    spec.task_groups.push(TaskGroup { name: "second".to_owned(), ..second });
    spec
}

/// Such a unit, not placed before.
fn submit_fresh(world: &mut World, first: Job, second: &Job) -> UnitId {
    world.last_id += 1;
    let id = world.last_id;
    let account = world.queues.enroll(&spec_of(id, &first, second));
    let need = account.need(None);
    world.wait(first, account, need, id)
}

/// What uses so much, handed out.
fn run(world: &mut World, queue: &'static str, cpu: i64, memory: i64) -> UnitId {
    let unit = world.submit(Job { queue, cpu, memory, ..JOB });
    assert_eq!(world.hand_out(NOW), Some(unit));
    unit
}

#[test]
fn one_group_that_fits_is_enough() {
    for shapes in [[(4, 0), (1, 4)], [(1, 4), (4, 0)]] {
        let mut world = world();
        run(&mut world, "p.q", 8, 0);
        let unit = submit(&mut world, shapes);
        assert_eq!((world.why(unit, NOW), world.hand_out_all(NOW)), (None, vec![unit.0]), "{shapes:?}");
    }
}

#[test]
fn room_for_any_of_them_is_noticed_wherever_it_comes_from() {
    for which in 0..4 {
        let mut world = world();
        let cpu = run(&mut world, "p.q", 9, 0);
        let memory = run(&mut world, "p.r", 0, 9);
        let unit = submit(&mut world, [(4, 1), (1, 4)]);
        assert_eq!(world.hand_out(NOW), None, "a little of each is enough for none of them");
        assert_eq!(world.why(unit, NOW).unwrap(), "queue p is at its maximum of memory");
        match which {
            0 => world.end(cpu),
            1 => world.end(memory),
            2 => world.put("p.q", &Quotas { max: &[("cpu", 20)], ..Quotas::default() }),
            _ => world.put("p", &Quotas { max: &[("memory", 20)], ..Quotas::default() }),
        }
        assert_eq!(world.hand_out_all(NOW), [unit.0], "{which}");
    }
}

#[test]
fn where_more_is_used_than_allowed_another_group_may_still_fit() {
    let mut world = world();
    let cpu = run(&mut world, "p.q", 10, 0);
    let memory = run(&mut world, "p.r", 0, 10);
    world.put("p", &Quotas { max: &[("memory", 5)], ..Quotas::default() });
    let unit = submit(&mut world, [(4, 0), (0, 4)]);
    assert_eq!(world.hand_out(NOW), None);
    world.end(cpu);
    assert_eq!(world.hand_out_all(NOW), [unit.0]);
    world.end(memory);
}

#[test]
fn only_where_all_are_too_large_there_is_no_hope() {
    let mut world = world();
    run(&mut world, "p.r", 0, 9);
    let some = submit(&mut world, [(20, 0), (1, 4)]);
    assert_eq!(world.hand_out(NOW), None);
    assert_eq!(world.why(some, NOW).unwrap(), "queue p is at its maximum of memory");
    let none = submit(&mut world, [(20, 0), (0, 40)]);
    assert_eq!(world.hand_out(NOW), None);
    let why = world.why(none, NOW).unwrap();
    assert_eq!(why, "needs 40 of memory, more than queue p may ever use (10)");
}

#[test]
fn what_it_waits_for_may_change_while_it_waits() {
    let mut world = world();
    let full = run(&mut world, "p.q", 10, 10);
    let unit = submit(&mut world, [(4, 1), (1, 4)]);
    assert_eq!(world.hand_out(NOW), None);
    let (job, mut account, old) = world.jobs.remove(&unit).unwrap();
    world.queues.choose(&mut account, [1]);
    assert_eq!(world.queues.remove(&old), Some(old), "found where it was put");
    let need = account.need(Some(1));
    assert_eq!(need, Need { ask: account.ask(1).unwrap(), n: 1 });
    world.wait(job, account, need, unit.0);
    assert_eq!(world.hand_out(NOW), None);
    world.end(full);
    assert_eq!(world.hand_out_all(NOW), [unit.0]);
}

#[test]
fn a_group_scaled_to_nothing_makes_no_unit_fit() {
    for min_member in [0, 1] {
        let mut world = world();
        let full = run(&mut world, "p.q", 8, 0);
        let empty = Job { replicas: 0, ..JOB_Q };
        let unit = submit_fresh(&mut world, Job { cpu: 4, min_member, ..JOB_Q }, &empty);
        assert_eq!(world.hand_out(NOW), None);
        assert_eq!(world.why(unit, NOW).unwrap(), "queue p.q is at its maximum of cpu");
        world.end(full);
        assert_eq!(world.hand_out_all(NOW), [unit.0]);
    }
}

#[test]
fn a_gang_fits_where_a_resource_it_does_not_need_is_overused() {
    let mut world = world();
    run(&mut world, "p.r", 0, 10);
    world.put("p", &Quotas { max: &[("memory", 5)], ..Quotas::default() });
    let plain = Job { replicas: 2, min_member: 2, ..JOB_Q };
    let unit = submit_fresh(&mut world, plain, &Job { memory: 4, ..JOB_Q });
    assert_eq!((world.why(unit, NOW), world.hand_out_all(NOW)), (None, vec![unit.0]));
}

#[test]
fn what_a_unit_waited_for_is_forgotten_once_it_is_gone() {
    for is_choice in [false, true] {
        let mut world = world();
        let unit = if is_choice {
            submit(&mut world, [(4, 1), (1, 4)])
        } else {
            world.submit(Job { cpu: 4, ..JOB_Q })
        };
        let waiting = world.jobs[&unit].2;
        assert_eq!(waiting.need.ask.is_choice(), is_choice);
        world.queues.push(waiting);
        let cpu = |world: &World| {
            let usage = world.queues.quota().usage();
            usage.asks().amounts(waiting.need, usage.columns().len()).get(1).copied()
        };
        assert!(cpu(&world).is_some_and(|cpu| cpu > 0));
        world.cancel(unit);
        assert_eq!(cpu(&world).unwrap_or(0), 0, "{is_choice}");
    }
}
