//! Who waits for the end of an owner's own running units, or of application masters, and who goes on meanwhile.

use super::*;

const LONG: u64 = 60_000;

fn job(owner: &'static str, cpu: i64) -> Job {
    Job { queue: "a.x", owner, cpu, ..JOB }
}

fn master(cpu: i64) -> Job {
    Job { is_yarn: true, ..job("ann", cpu) }
}

fn world(policy: QueuePolicy) -> World {
    let mut world = World::new(Config::default());
    world.put("a", &Quotas { max: &[("cpu", 100)], max_per_owner: &[("cpu", 10)], ..Quotas::default() });
    world.put("a.x", &Quotas { policy, ..Quotas::default() });
    world
}

#[test]
fn an_owner_at_its_limit_waits_and_others_go_on() {
    for policy in QueuePolicy::ALL {
        let mut world = world(policy);
        let first = world.submit(job("ann", 8));
        let second = world.submit(job("ann", 8));
        let other = world.submit(job("bob", 8));
        assert_eq!(world.hand_out_all(NOW), [first.0, other.0], "{policy}");
        assert_eq!(
            world.why(second, NOW).unwrap(),
            "running units of owner `ann` take 8m of the 10m cpu that one owner may take in queue a (max_per_owner): \
             more start when some of them end"
        );
        assert!(world.queues.full_due().is_none(), "nobody has to leave for it");
        // However long it waits, it keeps no room from others, nor from smaller ones of its owner.
        let small = world.submit(job("ann", 2));
        let late = world.submit(job("eve", 10));
        let mut served = world.hand_out_all(NOW.plus(LONG));
        served.sort_unstable();
        assert_eq!(served, [small.0, late.0], "{policy}");
        world.end(other);
        assert_eq!(world.hand_out(NOW.plus(LONG)), None);
        world.end(first);
        assert_eq!(world.hand_out(NOW.plus(LONG)), Some(second));
    }
}

#[test]
fn a_limit_that_comes_or_goes_counts_at_once() {
    let mut world = world(QueuePolicy::Priority);
    let (first, second) = (world.submit(job("ann", 8)), world.submit(job("ann", 8)));
    assert_eq!(world.hand_out_all(NOW), [first.0]);
    world.put("a", &Quotas { max_per_owner: &[("cpu", 16)], ..Quotas::default() });
    assert_eq!(world.hand_out_all(NOW), [second.0]);
    let third = world.submit(job("ann", 1));
    assert_eq!(world.hand_out(NOW), None);
    world.put("a", &Quotas::default());
    assert_eq!(world.hand_out_all(NOW), [third.0]);
    world.put("a.x", &Quotas { max_per_owner: &[("cpu", 18), ("memory", 0)], ..Quotas::default() });
    let [fits, beyond] = [1, 1].map(|cpu| world.submit(job("ann", cpu)));
    let memory = world.submit(Job { memory: 1, ..job("bob", 1) });
    assert_eq!(world.hand_out_all(NOW), [fits.0], "what ran before counts");
    assert!(world.why(beyond, NOW).unwrap().contains("take 18m of the 18m cpu"));
    assert_eq!(
        world.why(memory, NOW).unwrap(),
        "needs 1 of memory, more than one owner may ever use in queue a.x (0)"
    );
}

#[test]
fn masters_wait_for_their_share_and_containers_do_not() {
    let mut world = World::new(Config::default());
    world.put("a", &Quotas { max: &[("cpu", 100)], am_share_milli: 30, ..Quotas::default() });
    let (first, second) = (world.submit(master(2)), world.submit(master(2)));
    let (plain, small) = (world.submit(job("ann", 40)), world.submit(master(1)));
    assert_eq!(world.hand_out_all(NOW), [first.0, plain.0, small.0]);
    assert_eq!(
        world.why(second, NOW).unwrap(),
        "application masters take 3m of the 3m cpu that they may take in queue a (am_share): the application starts when \
         others end"
    );
    assert_eq!(world.used("a", "cpu"), 43, "a master counts once");
    assert!(world.queues.full_due().is_none());
    world.end(small);
    assert_eq!(world.hand_out(NOW), None);
    world.end(first);
    assert_eq!(world.hand_out(NOW), Some(second));
    let large = world.submit(master(4));
    assert_eq!(
        world.why(large, NOW).unwrap(),
        "needs 4m of cpu, more than application masters may ever use in queue a (3m)"
    );
    world.put("a", &Quotas { max: &[("cpu", 100)], ..Quotas::default() });
    assert_eq!(world.hand_out_all(NOW), [large.0]);
}
