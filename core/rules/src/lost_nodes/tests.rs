use proptest::prelude::*;

use super::*;

const CONFIG: Config =
    Config { grace_ms: 60_000, brake_percent: 10, brake_nodes_min: 2, brake_window_ms: 60_000 };

fn ready(n: u32) -> Losses {
    let mut losses = Losses::new(CONFIG);
    (1..=n).for_each(|node| losses.put(NodeId(node), true, Millis(1_000)));
    losses
}

fn lose(losses: &mut Losses, nodes: impl IntoIterator<Item = u32>, at: u64) {
    nodes.into_iter().for_each(|node| losses.put(NodeId(node), false, Millis(at)));
}

fn lost(losses: &Losses, at: u64) -> Vec<u32> {
    losses.lost(Millis(at)).map(|node| node.0).collect()
}

#[test]
fn a_node_is_lost_only_after_its_grace() {
    let mut losses = ready(100);
    lose(&mut losses, [7, 8], 100_000);
    assert_eq!(losses.check(Millis(100_000)), None);
    assert_eq!(losses.next_at(|_| false), Some(Millis(160_000)));
    assert!(lost(&losses, 159_999).is_empty());
    losses.put(NodeId(8), true, Millis(159_000));
    // Said again: the time counts from the first.
    lose(&mut losses, [7], 159_500);
    assert_eq!(lost(&losses, 160_000), [7]);
    assert_eq!(losses.next_at(|node| node == NodeId(7)), None);
    losses.put(NodeId(7), true, Millis(161_000));
    assert!(lost(&losses, 300_000).is_empty());
    losses.put(NodeId(7), false, Millis(300_000));
    assert!(lost(&losses, 300_001).is_empty(), "grace anew");
    losses.remove(NodeId(7));
    assert_eq!((losses.absent().len(), losses.n_nodes()), (0, 99));
}

#[test]
fn too_many_at_once_engage_the_brake_until_enough_are_back() {
    let mut losses = ready(100);
    lose(&mut losses, 1..=10, 100_000);
    assert_eq!(losses.check(Millis(100_000)), None, "10 % is not more than 10 %");
    lose(&mut losses, [11], 159_999);
    assert_eq!(losses.check(Millis(159_999)), Some(BrakeChange::Engaged { lost: 11, nodes: 100 }));
    assert_eq!(losses.check(Millis(159_999)), None);
    assert!(losses.is_braked() && lost(&losses, 500_000).is_empty());
    assert_eq!(losses.check(Millis(500_000)), None, "it stays, however long");
    losses.put(NodeId(3), true, Millis(500_000));
    assert_eq!(losses.check(Millis(500_000)), Some(BrakeChange::Released));
    assert_eq!(lost(&losses, 500_000), [1, 2, 4, 5, 6, 7, 8, 9, 10, 11]);
}

#[test]
fn losses_spread_over_time_do_not_engage_it() {
    let mut losses = ready(100);
    for node in 1..=50 {
        let at = 100_000 + u64::from(node) * 10_000;
        lose(&mut losses, [node], at);
        assert_eq!(losses.check(Millis(at)), None, "{node}");
    }
    assert_eq!(lost(&losses, 700_000).len(), 50);
}

#[test]
fn resuming_accepts_the_losses_and_counts_new_ones() {
    let mut losses = ready(20);
    lose(&mut losses, 1..=5, 100_000);
    assert!(losses.check(Millis(100_000)).is_some());
    assert!(losses.resume());
    assert_eq!(losses.check(Millis(100_001)), None);
    assert_eq!(lost(&losses, 160_000), [1, 2, 3, 4, 5]);
    assert!(!losses.resume(), "it was not engaged");
    lose(&mut losses, 6..=7, 110_000);
    assert_eq!(losses.check(Millis(110_000)), None);
    lose(&mut losses, [8], 110_000);
    assert_eq!(losses.check(Millis(110_000)), Some(BrakeChange::Engaged { lost: 3, nodes: 20 }));
}

#[test]
fn newcomers_that_are_not_ready_yet_are_not_lost() {
    let mut losses = ready(10);
    losses.start(|_| true, Millis(0));
    lose(&mut losses, 11..=20, 100_000);
    assert_eq!(losses.check(Millis(100_000)), None);
    (11..=20).for_each(|node| losses.put(NodeId(node), true, Millis(100_001)));
    lose(&mut losses, 11..=20, 100_002);
    assert!(losses.check(Millis(100_002)).is_some());
}

#[test]
fn one_of_few_nodes_is_not_many() {
    let mut losses = ready(3);
    lose(&mut losses, [1], 100_000);
    assert_eq!(losses.check(Millis(100_000)), None);
    lose(&mut losses, [2], 100_000);
    assert!(losses.check(Millis(100_000)).is_some());
}

#[test]
fn a_new_leader_brakes_again_but_not_for_empty_nodes() {
    let mut losses = Losses::new(CONFIG);
    (1..=10).for_each(|node| losses.put(NodeId(node), node > 4, Millis(5)));
    losses.start(|node| node.0 <= 3, Millis(5));
    assert_eq!(losses.check(Millis(5)), None, "one of ten");
    let mut losses = Losses::new(CONFIG);
    (1..=10).for_each(|node| losses.put(NodeId(node), node > 4, Millis(0)));
    losses.start(|node| node.0 <= 2, Millis(0));
    assert_eq!(losses.check(Millis(0)), Some(BrakeChange::Engaged { lost: 2, nodes: 10 }));
    losses.retain(|node| (3..=10).contains(&node.0));
    assert_eq!((losses.n_nodes(), losses.absent().len()), (8, 2));
    // What a standby has seen for long has its grace from its election on.
    let mut losses = ready(10);
    lose(&mut losses, [1], 100_000);
    losses.start(|_| false, Millis(150_000));
    let end = 150_000 + CONFIG.grace_ms;
    assert_eq!((lost(&losses, end - 1), lost(&losses, end)), (vec![], vec![1]));
}

proptest! {
    /// Whatever happens: nobody is lost before its grace, nobody while the brake is engaged or too many went at
    /// once, and everybody in the end once somebody resumes.
    #[test]
    fn nothing_is_given_up_too_early_nor_kept_for_ever(
        events in prop::collection::vec((1..=20u32, any::<bool>(), 0..30_000u64), 1..80)
    ) {
        let mut losses = ready(20);
        let mut since: BTreeMap<u32, u64> = BTreeMap::new();
        let mut now = 100_000;
        for (node, ready, pause) in events {
            now += pause;
            losses.put(NodeId(node), ready, Millis(now));
            if ready { since.remove(&node); } else { since.entry(node).or_insert(now); }
            losses.check(Millis(now));
            let given_up = lost(&losses, now);
            prop_assert!(given_up.iter().all(|node| now - since[node] >= 60_000));
            let recent = since.values().filter(|at| now - **at < 60_000).count();
            prop_assert!(recent <= 2 || losses.is_braked(), "{recent} within the window");
            prop_assert!(!losses.is_braked() || given_up.is_empty());
        }
        losses.resume();
        losses.check(Millis(now));
        prop_assert_eq!(lost(&losses, now + 60_000), since.keys().copied().collect::<Vec<_>>());
    }
}
