//! I1: rooms and devices of nodes, and nodes that have come to have less.

use super::*;
use godel_domain::{node::NodeAllocatable, records::Record};
#[test]
fn i1_names_the_node_with_too_much_cpu_also_in_the_past() {
    let (story, _) = Story::healthy();
    let big = spec(2, 1, 1, demand(3000, None));
    let story = story.then(vec![unit(&big)]).then(vec![bind(&big, &[(0, 1, 0)], 0)]);
    only(&story.evidence(), Invariant::I1, "node n1: guaranteed cpu 5000 of 4000 (revision 8)");
    let past = Story(story.0).then(vec![status(&big, 0, 0, Phase::Succeeded)]);
    only(&past.evidence(), Invariant::I1, "(revision 8)");
}

#[test]
fn i1_counts_what_is_evicting_against_a_new_binding_only() {
    let (story, gang) = Story::healthy();
    let scaled = gang.clone().cancelled(true);
    let big = spec(2, 1, 1, demand(3000, None));
    let story = story
        .then(vec![unit(&scaled)])
        .then(vec![evict(&gang, 0, EvictionReason::Cancelled)])
        .then(vec![unit(&big), bind(&big, &[(0, 1, 0)], 0)]);
    only(&story.evidence(), Invariant::I1, "node n1: guaranteed cpu 5000 of 4000 (revision 9)");
    let (story, gang) = Story::healthy();
    let shrunk =
        story.then(vec![unit(&scaled), evict(&gang, 0, EvictionReason::Cancelled)]).then(vec![Change::Put(
            Record::NodeAllocatable(NodeAllocatable {
                id: NodeId(1),
                amounts: Resources::new([(CPU, 1000)]).unwrap(),
            }),
        )]);
    assert!(check_all(&shrunk.evidence()).iter().all(InvariantReport::holds));
}

#[test]
fn i1_counts_the_running_units_of_a_node() {
    let [spec_of, report_of] = node(1, 4000, &[]);
    let Change::Put(Record::NodeReport(report_of)) = report_of else { panic!("{report_of:?}") };
    for (most, wrong) in [(2, false), (1, true)] {
        let few =
            Change::Put(Record::NodeReport(NodeReport { max_running_units: most, ..report_of.clone() }));
        let pair = spec(1, 2, 1, Demand::default());
        let story = Story(Vec::new()).then(vec![spec_of.clone(), few]).then(vec![unit(&pair)]);
        let story = story.then(vec![bind(&pair, &[(0, 1, 0), (1, 1, 0)], 0)]);
        if wrong {
            only(&story.evidence(), Invariant::I1, "node n1: guaranteed running-units 2 of 1 (revision 3)");
        } else {
            assert!(check_all(&story.evidence()).iter().all(InvariantReport::holds));
        }
    }
}

#[test]
fn i1_allows_a_shrunk_node_to_keep_what_it_has() {
    let (story, gang) = Story::healthy();
    let [_, less] = node(1, 1000, &[]);
    let shrunk = story.then(vec![less]);
    let all_hold = |story: &Story| check_all(&story.evidence()).iter().all(InvariantReport::holds);
    assert!(all_hold(&shrunk));
    let small = spec(2, 1, 1, demand(100, None));
    let bound = Story(shrunk.0.clone()).then(vec![unit(&small)]).then(vec![bind(&small, &[(0, 1, 0)], 0)]);
    only(&bound.evidence(), Invariant::I1, "node n1: guaranteed cpu 2100 of 1000 (revision 9)");
    let ended = vec![status(&gang, 0, 0, Phase::Succeeded)];
    // What takes nothing of what is short may come, in whichever pool.
    let other = Demand {
        requests: Resources::new([("memory", 0)]).unwrap(),
        devices: Vec::new(),
        host_ports: Vec::new(),
        zones: None,
    };
    let idle = spec(2, 1, 1, other.clone()).pool(Pool::BestEffort);
    for harmless in [spec(2, 1, 1, other), idle] {
        let bound =
            Story(shrunk.0.clone()).then(vec![unit(&harmless)]).then(vec![bind(&harmless, &[(0, 1, 0)], 0)]);
        assert!(all_hold(&bound));
    }
    let squeezed = small.clone().pool(Pool::BestEffort);
    let bound =
        Story(shrunk.0.clone()).then(vec![unit(&squeezed)]).then(vec![bind(&squeezed, &[(0, 1, 0)], 0)]);
    only(&bound.evidence(), Invariant::I1, "node n1: best-effort cpu 100 of 0 (revision 9)");
    let fits = shrunk.then(ended).then(vec![unit(&small)]).then(vec![bind(&small, &[(0, 1, 0)], 0)]);
    assert!(all_hold(&fits));
}

#[test]
fn i1_judges_a_shrunk_node_again_once_its_rest_fits() {
    let (story, gang) = Story::healthy();
    let small = spec(2, 1, 1, demand(100, None));
    let [_, less] = node(1, 1000, &["A10", "A10"]);
    let shrunk = story.then(vec![unit(&small)]).then(vec![bind(&small, &[(0, 1, 0)], 0)]).then(vec![less]);
    let granted = |cpu| {
        vec![Change::Put(Record::NodeAllocatable(NodeAllocatable {
            id: NodeId(1),
            amounts: Resources::new([(CPU, cpu)]).unwrap(),
        }))]
    };
    let still = Story(shrunk.0.clone()).then(granted(50));
    assert!(check_all(&still.evidence()).iter().all(InvariantReport::holds));
    let fits = shrunk.then(vec![status(&gang, 0, 0, Phase::Succeeded)]);
    only(
        &fits.then(granted(50)).evidence(),
        Invariant::I1,
        "node n1: guaranteed cpu 100 of 50 (revision 11)",
    );
}

#[test]
fn i1_allows_a_node_with_fewer_devices_to_keep_what_it_has() {
    let all_hold = |story: &Story| {
        check_all(&story.evidence())
            .iter()
            .filter(|report| !report.holds())
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    let device = |kind: &str, model: &str| Device {
        kind: kind.to_owned(),
        model: model.to_owned(),
        numa_zone: 0,
        details: None,
    };
    let report = |devices: Vec<Device>| {
        let [_, report] = node(1, 4000, &[]);
        let Change::Put(Record::NodeReport(report)) = report else { unreachable!() };
        vec![Change::Put(Record::NodeReport(NodeReport { devices, ..report }))]
    };
    let (gpu, npu) = (|| device("gpu", "A10"), || device("npu", "X"));
    let held = spec(1, 1, 1, demand(10, Some((1, 1000, "A10"))));
    let story = || {
        let [spec, _] = node(1, 0, &[]);
        let with = [vec![spec], report(vec![npu(), gpu(), gpu()])].concat();
        Story(vec![with, vec![unit(&held)], vec![bind(&held, &[(0, 1, 0b100)], 0)]])
    };
    // As they were, gone, of another kind, of another model.
    for (devices, is_short) in [
        (vec![npu(), gpu(), gpu()], false),
        (vec![npu(), gpu()], true),
        (vec![npu(), gpu(), npu()], true),
        (vec![npu(), gpu(), device("gpu", "T4")], true),
    ] {
        let shrunk = || story().then(report(devices.clone()));
        assert_eq!(all_hold(&shrunk()), [""; 0], "{devices:?}");
        let taking = |kind: &str, mask: u64| {
            let mut wanted = demand(10, Some((1, 1000, "")));
            kind.clone_into(&mut wanted.devices[0].kind);
            let wanted = spec(2, 1, 1, wanted);
            shrunk().then(vec![unit(&wanted)]).then(vec![bind(&wanted, &[(0, 1, mask)], 0)])
        };
        if is_short {
            only(
                &taking("gpu", 0b010).evidence(),
                Invariant::I1,
                "node n1: gpu held that it no longer has (revision 6)",
            );
        } else {
            assert_eq!(all_hold(&taking("gpu", 0b010)), [""; 0]);
        }
        assert_eq!(all_hold(&taking("npu", 0b001)), [""; 0], "{devices:?}");
        let plain = spec(2, 1, 1, demand(10, None));
        // Who leaves is there until it has left: what takes none of it may come meanwhile.
        let leaving = shrunk()
            .then(vec![evict(&held, 0, EvictionReason::Drained)])
            .then(vec![unit(&plain)])
            .then(vec![bind(&plain, &[(0, 1, 0)], 0)]);
        let i1 = check_all(&leaving.evidence())
            .into_iter()
            .find(|report| report.invariant == Invariant::I1)
            .unwrap();
        assert!(i1.holds(), "{i1}");
        // Once it has ended all is as ever.
        let wanted = spec(2, 1, 1, demand(10, Some((1, 1000, ""))));
        let fits = shrunk()
            .then(vec![status(&held, 0, 0, Phase::Succeeded)])
            .then(vec![unit(&wanted)])
            .then(vec![bind(&wanted, &[(0, 1, 0b010)], 0)]);
        assert_eq!(all_hold(&fits), [""; 0], "{devices:?}");
    }
}

#[test]
fn i1_names_devices_shared_too_much_and_of_the_wrong_model() {
    let (story, _) = Story::healthy();
    let share = spec(2, 1, 1, demand(10, Some((1, 600, ""))));
    let taken = Story(story.0.clone()).then(vec![unit(&share)]).then(vec![bind(&share, &[(0, 1, 0b01)], 0)]);
    only(&taken.evidence(), Invariant::I1, "node n1: device 0 1100 of 1000 milli");
    let picky = spec(2, 1, 1, demand(10, Some((1, 1000, "A10"))));
    for (mask, words) in [
        (0b10, "unit-2/0 on n2: device 1 is a T4, not one of A10"),
        (0b11, "unit-2/0 on n2: 2 devices instead of 1"),
        (0b100, "device 2 does not exist"),
    ] {
        let wrong =
            Story(story.0.clone()).then(vec![unit(&picky)]).then(vec![bind(&picky, &[(0, 2, mask)], 0)]);
        fails(&wrong.evidence(), Invariant::I1, words);
    }
}

#[test]
fn i1_names_a_node_that_does_not_exist() {
    let (story, _) = Story::healthy();
    let lost = spec(2, 1, 1, demand(10, None));
    let story = story.then(vec![unit(&lost)]).then(vec![bind(&lost, &[(0, 9, 0)], 0)]);
    only(&story.evidence(), Invariant::I1, "node 9, which does not exist");
}
