//! Masters of applications, which leave once nobody else is enough.

use godel_framework::profile::PreemptionMode;

use super::{modes::sort_of, *};

fn app(id: u64, priority: i32, cpu: i64, nodes: &[u32]) -> Running {
    Running { has_master: true, ..running(id, priority, cpu, nodes) }
}

/// Nodes, and who leaves, for a seeker that spares masters or does not.
fn found_by(
    cluster: &mut Cluster,
    spares_masters: bool,
    (cpu, wanted): (i64, usize),
    preference: &Preference<'_>,
) -> (Vec<u32>, Vec<(u64, u32)>, bool) {
    let shape = cluster.shape(&demand(cpu, 1, 0), Pool::Guaranteed);
    let nodes = 1..cluster.free().n_indices();
    let (claimed, so_far, lent) = (&FxHashSet::default(), &SoFar::default(), &Lent::default());
    let seeker = &Seeker { spares_masters, ..SEEKER };
    let query = VictimQuery { seeker, shape, rights: None, claimed, so_far, lent };
    let found = search_lent(cluster, &query, nodes, wanted, preference);
    (places(&found), victims(&found), found.is_master_spared)
}

#[test]
fn a_master_stays_where_several_others_are_enough() {
    let mut cluster = cluster(2);
    // On node 1 one victim is enough, and it has the lowest rank; on node 2 four are needed.
    run(&mut cluster, &app(1, 0, 8_000, &[1]));
    run(&mut cluster, &running(2, 9, 2_000, &[2, 2, 2, 2]));
    let all = vec![(2, 0), (2, 1), (2, 2), (2, 3)];
    let orders = [sort_of(&[]), sort_of(&[3]), sort_of(&[2, 4])];
    for sort in orders {
        for mode in [PreemptionMode::Best, PreemptionMode::Fast] {
            let preference = Preference { mode, sort, ..Preference::default() };
            let found = found_by(&mut cluster, false, (8_000, 1), &preference);
            assert_eq!(found, (vec![2], all.clone(), true), "{preference:?}");
        }
    }
    // For the second place nobody else is left.
    let found = found_by(&mut cluster, false, (8_000, 2), &Preference::default());
    assert_eq!(found.0, [2, 1]);
    assert_eq!(found.1, [vec![(1, 0)], all.clone()].concat());
    let spared = found_by(&mut cluster, true, (8_000, 2), &Preference::default());
    assert_eq!(spared, (vec![2], all, true), "who spares masters finds less");
}

#[test]
fn of_an_application_its_master_is_the_last_to_leave() {
    let mut cluster = cluster(1);
    run(&mut cluster, &app(1, 0, 2_000, &[1, 1, 1, 1]));
    let mut leaves = |cpu: i64| {
        found_by(&mut cluster, false, (cpu, 1), &Preference::default()).1.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(leaves(2_000).len(), 1);
    assert!(!leaves(2_000).contains(&(1, 0)));
    assert_eq!(leaves(6_000), [(1, 1), (1, 2), (1, 3)]);
    assert_eq!(leaves(8_000), [(1, 0), (1, 1), (1, 2), (1, 3)]);
}

#[test]
fn as_few_masters_leave_as_can_be() {
    let mut cluster = cluster(2);
    for id in 1..=4 {
        run(&mut cluster, &app(id, 0, 2_000, &[1]));
    }
    run(&mut cluster, &app(5, 9, 8_000, &[2]));
    let found = found_by(&mut cluster, false, (8_000, 1), &Preference::default());
    assert_eq!((found.0, found.1), (vec![2], vec![(5, 0)]), "one of a higher rank, not four");
}

#[test]
fn an_application_that_leaves_whole_does_so_after_all_others() {
    let mut cluster = cluster(2);
    run(&mut cluster, &Running { min_member: 2, ..app(1, 0, 4_000, &[1, 1]) });
    run(&mut cluster, &running(2, 9, 1_000, &[2; 8]));
    let found = found_by(&mut cluster, false, (8_000, 1), &Preference::default());
    assert_eq!(found.0, [2]);
    let found = found_by(&mut cluster, false, (8_000, 2), &Preference::default());
    assert_eq!((found.0, found.1.len()), (vec![2, 1], 10));
}

#[test]
fn where_nobody_is_a_master_a_search_is_made_once() {
    let mut cluster = cluster(1);
    run(&mut cluster, &Running { preemptible: false, ..app(1, 0, 8_000, &[1]) });
    let found = found_by(&mut cluster, false, (8_000, 1), &Preference::default());
    assert_eq!(found, (vec![], vec![], false), "one that may not leave at all is not spared");
}
