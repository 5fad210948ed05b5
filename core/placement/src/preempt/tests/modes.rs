//! How far a search looks, and which of equally dear nodes it takes.

use godel_domain::{
    label_expression::parse,
    node_affinity::{NodeAffinity, PreferredNodes},
    unit::Template,
};
use godel_framework::{
    Ask, Profile, Typical,
    profile::{PreemptionMode, ProfileSpec},
    registry::CandidateSort,
};

use super::*;

fn seek_by(cluster: &mut Cluster, nodes: u32, wanted: usize, preference: &Preference<'_>) -> Found {
    let shape = cluster.shape(&demand(8_000, 1, 0), Pool::Guaranteed);
    let nodes = (1..=nodes).map(|node| node as usize);
    let (claimed, so_far, lent) = (&FxHashSet::default(), &SoFar::default(), &Lent::default());
    let query = VictimQuery { seeker: &SEEKER, shape, rights: None, claimed, so_far, lent };
    search_lent(cluster, &query, nodes, wanted, preference)
}

/// The order of a profile that names all costs, by their indices.
pub(super) fn sort_of(order: &[usize]) -> CandidateSort {
    let names = order.iter().map(|idx| CANDIDATE_COSTS[*idx].name.to_owned());
    let spec =
        ProfileSpec { candidate_sort: names.collect(), ..ProfileSpec::of_scores(&[("node-affinity", 1)]) };
    Profile::new(&spec).unwrap().candidate_sort()
}

fn fast(start: u64) -> Preference<'static> {
    Preference { mode: PreemptionMode::Fast, start, ..Preference::default() }
}

#[test]
fn a_fast_search_takes_the_cheapest_of_the_first_few() {
    const N_NODES: u32 = 100;
    // From node to node it costs less; on every second one nobody may leave.
    let mut cluster = cluster(N_NODES);
    for node in 1..=N_NODES {
        let priority = i32::try_from(N_NODES - node).unwrap() - 60;
        let preemptible = node % 2 == 0;
        run(&mut cluster, &Running { preemptible, ..running(u64::from(node), priority, 8_000, &[node]) });
    }
    let mut places = |wanted, preference: &Preference<'_>| {
        let found = seek_by(&mut cluster, N_NODES, wanted, preference);
        found.places.iter().map(|(node, _)| node.0).collect::<Vec<_>>()
    };
    let n_more = u32::try_from(N_FAST_MORE).unwrap();
    type Case<'a> = (&'a str, usize, Preference<'static>, Vec<u32>);
    let cases: [Case<'_>; 5] = [
        ("all nodes", 1, Preference::default(), vec![100]),
        ("the last of the first 17 with victims", 1, fast(0), vec![2 * (1 + n_more)]),
        ("of the 18 first ones the last two", 2, fast(0), vec![2 * (2 + n_more), 2 * (1 + n_more)]),
        ("from another place on", 1, fast(10), vec![10 + 2 * (1 + n_more)]),
        ("round the end", 1, fast(90), vec![100]),
    ];
    for (name, wanted, preference, expected) in cases {
        assert_eq!(places(wanted, &preference), expected, "{name}");
    }
    // More than the first ones hold: it goes on until there are enough, or no more.
    assert_eq!(places(60, &fast(0)).len(), 50);
}

#[test]
fn of_equally_dear_nodes_the_profile_takes_its_best() {
    let spec = ProfileSpec::of_scores(&[("node-affinity", 1)]);
    let profile = Profile::new(&spec).unwrap();
    let prefers = |wanted: &str| Template {
        demand: demand(8_000, 1, 0),
        node_affinity: NodeAffinity {
            required: Vec::new(),
            preferred: vec![PreferredNodes { weight: 1, term: parse(wanted).unwrap() }],
        },
        ..Template::default()
    };
    for (name, dear, wanted, expected) in [
        ("the preferred one of equals", None, "node = n3", 3),
        ("the first of equals that are all alike", None, "node = n9", 1),
        ("cost comes first", Some(3), "node = n3", 1),
        ("cost comes first among the others", Some(1), "node != n9", 2),
    ] {
        for mode in [PreemptionMode::Best, PreemptionMode::Fast] {
            let mut cluster = cluster(4);
            for node in 1..=4u32 {
                let labels = [("node".to_owned(), format!("n{node}"))].into();
                let spec =
                    NodeSpec { id: NodeId(node), name: format!("n{node}"), labels, ..NodeSpec::default() };
                cluster.nodes_mut().put_spec(spec, Revision(2));
                let priority = if dear == Some(node) { 9 } else { 5 };
                run(&mut cluster, &running(u64::from(node), priority, 8_000, &[node]));
            }
            let mut ask = Ask::new(&mut cluster, &prefers(wanted), Pool::Guaranteed);
            profile.prepare(&cluster, &mut ask);
            let typical = Typical::default();
            let preference =
                Preference { mode, scores: Some((&profile, &ask, &typical)), ..Preference::default() };
            let found = seek_by(&mut cluster, 4, 1, &preference);
            assert_eq!(places(&found), [expected], "{name}, {mode:?}");
        }
    }
}
