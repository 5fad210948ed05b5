//! What each cost says of places, and in which order a profile compares them.

use crate::{
    point::{CountedVictim, Rank},
    profile::{Profile, ProfileError, ProfileSpec},
    registry::{CANDIDATE_COSTS, CandidateSort, PlaceCost},
};

/// A place, by the victims that leave for it.
fn place(victims: &[CountedVictim]) -> PlaceCost {
    victims.iter().fold(PlaceCost::NOBODY, |cost, victim| cost.with(victim))
}

/// A victim of a priority that was bound at a time, 1,000 being now.
fn victim(priority: i32, bound_time_ms: i64) -> CountedVictim {
    CountedVictim {
        rank: Rank { guaranteed: false, priority },
        bound_time_ms,
        ran_ms: 1_000 - bound_time_ms,
        ends_gang: false,
        is_master: false,
    }
}

fn profile(names: &[&str]) -> Result<Profile, ProfileError> {
    let candidate_sort = names.iter().map(|name| (*name).to_owned()).collect();
    Profile::new(&ProfileSpec { candidate_sort, ..ProfileSpec::of_scores(&[("spread", 1)]) })
}

fn sort(names: &[&str]) -> CandidateSort {
    profile(names).unwrap().candidate_sort()
}

#[test]
fn each_cost_prefers_what_its_name_says() {
    let guaranteed = CountedVictim { rank: Rank { guaranteed: true, priority: -5 }, ..victim(0, 500) };
    let ending = CountedVictim { ends_gang: true, ..victim(0, 500) };
    let master = CountedVictim { is_master: true, ..victim(i32::MIN, 999) };
    let cases: [(&str, &[CountedVictim], &[CountedVictim]); 10] = [
        ("no-victims", &[], &[victim(i32::MIN, 999)]),
        ("fewest-masters", &[victim(9, 0), victim(9, 0)], &[master]),
        ("lowest-highest-rank", &[victim(4, 0), victim(4, 0)], &[victim(5, 999)]),
        ("lowest-highest-rank", &[victim(i32::MAX, 0)], &[guaranteed]),
        ("lowest-rank-sum", &[victim(3, 0), victim(4, 0)], &[victim(3, 999), victim(5, 999)]),
        ("lowest-rank-sum", &[victim(i32::MAX, 0)], &[victim(i32::MIN, 999), victim(i32::MAX, 999)]),
        ("fewest-victims", &[victim(9, 0)], &[victim(1, 999), victim(1, 999)]),
        ("fewest-gangs", &[victim(9, 0), victim(9, 0)], &[ending]),
        ("least-lost-work", &[victim(9, 900), victim(9, 900)], &[victim(1, 700)]),
        ("latest-start", &[victim(9, 500), victim(9, 600)], &[victim(1, 400)]),
    ];
    let mut seen: Vec<&str> = cases.iter().map(|(name, ..)| *name).collect();
    for (name, cheap, dear) in cases {
        let sort = sort(&[name]);
        let (cheap_key, dear_key) = (sort.key(place(cheap)), sort.key(place(dear)));
        assert!(cheap_key < dear_key, "{name}: {cheap:?} {dear:?}");
        assert!(
            sort.key(PlaceCost::NOBODY) <= cheap_key,
            "{name}: no place costs less than one without victims"
        );
    }
    seen.dedup();
    assert_eq!(seen, CANDIDATE_COSTS.map(|cost| cost.name), "a case for each");
}

#[test]
fn one_more_victim_never_costs_less() {
    for cost in CANDIDATE_COSTS {
        let sort = sort(&[cost.name]);
        let mut victims = Vec::new();
        for (priority, bound) in [(3, 400), (-3, 700), (3, 100), (i32::MIN, 1_000), (i32::MAX, -5)] {
            let before = sort.key(place(&victims));
            victims.push(victim(priority, bound));
            assert!(sort.key(place(&victims)) >= before, "{} {victims:?}", cost.name);
        }
    }
}

#[test]
fn what_a_profile_names_comes_first_and_the_others_follow() {
    let all = CANDIDATE_COSTS.map(|cost| cost.name);
    assert_eq!(sort(&[]).names(), all);
    assert_eq!(sort(&all), sort(&[]), "the default, named");
    assert_eq!(sort(&["no-victims", "fewest-masters"]), sort(&[]), "its beginning");
    assert_eq!(
        sort(&["latest-start", "fewest-victims"]).names(),
        [
            "latest-start",
            "fewest-victims",
            "no-victims",
            "fewest-masters",
            "lowest-highest-rank",
            "lowest-rank-sum",
            "fewest-gangs",
            "least-lost-work"
        ]
    );
    // Two of low rank, or one of high rank.
    let (two, one) = (place(&[victim(1, 0), victim(1, 0)]), place(&[victim(9, 0)]));
    assert!(sort(&[]).key(two) < sort(&[]).key(one));
    let fewest = sort(&["fewest-victims"]);
    assert!(fewest.key(one) < fewest.key(two));
    // Alike by the first, so the next one decides.
    assert!(fewest.key(place(&[victim(1, 0)])) < fewest.key(one));
    assert_ne!(profile(&["fewest-victims"]).unwrap(), profile(&[]).unwrap());
}

#[test]
fn nobody_leaves_where_there_is_room_whatever_comes_first() {
    for cost in CANDIDATE_COSTS {
        let sort = sort(&[cost.name]);
        let cheapest = place(&[victim(i32::MIN, 1_000)]);
        assert!(sort.key(PlaceCost::NOBODY) < sort.key(cheapest), "{}", cost.name);
    }
}

#[test]
fn a_bad_order_is_refused_with_what_is_allowed() {
    let said = |names: &[&str]| profile(names).unwrap_err().to_string();
    assert_eq!(
        said(&["fewest-victims", "fewest-gang"]),
        "`candidate_sort[1]`: there is no candidate cost `fewest-gang` (did you mean `fewest-gangs`?); there are no-victims, \
         fewest-masters, lowest-highest-rank, lowest-rank-sum, fewest-victims, fewest-gangs, least-lost-work, latest-start"
    );
    assert_eq!(
        said(&["latest-start", "latest-start"]),
        "`candidate_sort[1]`: duplicate candidate cost `latest-start`"
    );
}
