//! Zones of nodes: who is given which, and what is left.

use godel_domain::{
    demand::DeviceTerms,
    hold::Hold,
    node::DeviceDetails,
    node_load::{LoadAmounts, MaxLoad, NodeLoad, ZoneLoad},
};
use godel_testkit::{TestNode, node};

use super::*;

const ON: NodeId = NodeId(1);

fn cluster(of: TestNode) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.nodes_mut().put_spec(of.spec, Revision(1));
    cluster.nodes_mut().put_report(of.report, Revision(1));
    cluster
}

fn asks(cpu: i64, policy: ZonePolicy, cpu_mode: CpuMode) -> Demand {
    Demand { zones: Some(ZoneRequest { policy, cpu_mode }), ..demand(cpu, 0, 0, &[]) }
}

fn shared(cpu: i64, policy: ZonePolicy) -> Demand {
    asks(cpu, policy, CpuMode::Shared)
}

fn dedicated(cpu: i64, policy: ZonePolicy) -> Demand {
    asks(cpu, policy, CpuMode::Dedicated)
}

fn request(kind: &str, count: u32, terms: DeviceTerms) -> DeviceRequest {
    let terms = (terms != DeviceTerms::default()).then(|| Box::new(terms));
    DeviceRequest { kind: kind.to_owned(), count, milli: 1_000, models: Vec::new(), terms }
}

fn with(devices: Vec<DeviceRequest>, demand: Demand) -> Demand {
    Demand { devices, ..demand }
}

/// Places one after the other on the node and says what each is given: its zones and cores and devices as sets of bits, or why
/// nothing.
fn place(cluster: &mut Cluster, demands: &[Demand]) -> Vec<Result<(u64, u64, u64), String>> {
    let mut given = Vec::new();
    for (ordinal, demand) in (0u32..).zip(demands) {
        let shape = cluster.shape(demand, Pool::Guaranteed);
        let fits = cluster.free().fits(shape, ON);
        let idx = ON.idx();
        let passes = cluster.free().has_resources(shape, idx)
            && cluster.free().has_devices(shape, idx)
            && cluster.free().has_zones(shape, idx);
        assert_eq!(passes, fits.is_ok(), "with and without words: {demand:?}");
        assert_eq!(cluster.free().room_for(shape, idx).is_some(), fits.is_ok(), "{demand:?}");
        given.push(fits.map_err(|wrong| wrong.to_string()).map(|()| {
            let picked = cluster.free().pick(shape, ON).unwrap();
            assert_eq!(cluster.free().suits(shape, ON, picked), Ok(()), "{demand:?} {picked:?}");
            assert_eq!(cluster.free().grant(shape, ON, picked), Ok(picked), "{demand:?}");
            cluster.assume(RunningUnitId::new(UnitId(9), ordinal, 0), shape, ON, picked);
            (picked.zones.zones.0, picked.zones.cores.0, picked.devices.0)
        }));
    }
    given
}

fn check(of: TestNode, demands: &[Demand], expected: &[Result<(u64, u64, u64), &str>]) {
    let placed = place(&mut cluster(of), demands);
    let expected: Vec<_> = expected.iter().map(|one| one.map_err(str::to_owned)).collect();
    assert_eq!(placed, expected, "{demands:?}");
}

/// Two sockets, zones 2 to 5, each of 4 CPUs in two cores.
fn four_zones() -> TestNode {
    node(1).memory(64).zones(2, 2, 2, 2)
}

#[test]
fn one_zone_holds_all_of_a_replica() {
    let single = |cpu| shared(cpu, ZonePolicy::SingleZone);
    check(
        four_zones(),
        &[
            single(3_000),
            single(1_000),
            single(4_000),
            single(3_000),
            single(2_000),
            single(2_500),
            single(500),
        ],
        &[
            Ok((1 << 2, 0, 0)),
            // Where the least is left.
            Ok((1 << 2, 0, 0)),
            Ok((1 << 3, 0, 0)),
            Ok((1 << 4, 0, 0)),
            Ok((1 << 5, 0, 0)),
            Err("no zone has enough free"),
            Ok((1 << 4, 0, 0)),
        ],
    );
    check(four_zones(), &[single(4_001)], &[Err("no zone of the node has as much, even when it is empty")]);
    check(node(1).cpu(8_000), &[single(1)], &[Err("the node has no zones")]);
    let memory = Demand { requests: Resources::new([(MEMORY, 17)]).unwrap(), ..single(0) };
    check(four_zones(), &[memory], &[Err("no zone of the node has as much, even when it is empty")]);
}

#[test]
fn few_zones_hold_a_replica_evenly() {
    let restricted = |cpu| shared(cpu, ZonePolicy::Restricted);
    check(
        four_zones(),
        &[restricted(6_000), restricted(7_000), restricted(2_000), restricted(1_000)],
        &[Ok((0b11 << 2, 0, 0)), Ok((0b11 << 4, 0, 0)), Err("no zone has enough free"), Ok((1 << 2, 0, 0))],
    );
    // Two zones of one socket are nearer to one another than others.
    check(
        four_zones(),
        &[shared(3_000, ZonePolicy::SingleZone), restricted(6_000), restricted(7_000)],
        &[Ok((1 << 2, 0, 0)), Ok((0b11 << 4, 0, 0)), Err("no 2 zones have enough free")],
    );
}

#[test]
fn whoever_can_do_without_zones_takes_the_node() {
    let best_effort = |cpu| shared(cpu, ZonePolicy::BestEffort);
    check(
        four_zones(),
        &[best_effort(4_000), best_effort(3_500), best_effort(2_500), best_effort(2_500), best_effort(3_500)],
        &[Ok((1 << 2, 0, 0)), Ok((1 << 3, 0, 0)), Ok((1 << 4, 0, 0)), Ok((1 << 5, 0, 0)), Ok((0, 0, 0))],
    );
    check(node(1).cpu(4_000), &[best_effort(4_000)], &[Ok((0, 0, 0))]);
}

#[test]
fn exclusive_zones_are_shared_with_nobody_with_zones() {
    check(
        four_zones(),
        &[
            shared(1_000, ZonePolicy::SingleZone),
            shared(1_000, ZonePolicy::Exclusive),
            shared(5_000, ZonePolicy::Exclusive),
            shared(1_000, ZonePolicy::Exclusive),
            shared(1_000, ZonePolicy::SingleZone),
            demand(500, 0, 0, &[]),
        ],
        &[
            Ok((1 << 2, 0, 0)),
            Ok((1 << 3, 0, 0)),
            Ok((0b11 << 4, 0, 0)),
            Err("no zone has enough free and no other running unit"),
            Ok((1 << 2, 0, 0)),
            Ok((0, 0, 0)),
        ],
    );
}

#[test]
fn dedicated_cores_are_whole_and_lie_together() {
    // Two groups of four cores in zone 1, whose socket is 0.
    let of = || node(1).zones(1, 1, 8, 2).inner_zone("l3", 1, 0..8).inner_zone("l3", 1, 8..16);
    let cpus = |cpu| dedicated(cpu, ZonePolicy::SingleZone);
    check(
        of(),
        &[cpus(4_000), cpus(6_000), cpus(4_000), cpus(4_000)],
        &[Ok((0b10, 0b11, 0)), Ok((0b10, 0b111 << 4, 0)), Ok((0b10, 0b11 << 2, 0)), Err("insufficient cpu")],
    );
    check(
        of(),
        &[cpus(3_000), cpus(10_000)],
        &[
            Err("the dedicated cpu is not of whole cores, which have 2 CPUs each"),
            // More than a group has: one whole group and one of the other.
            Ok((0b10, 0b1_1111, 0)),
        ],
    );
    // Cores of several zones are all of them.
    check(
        four_zones(),
        &[dedicated(6_000, ZonePolicy::Restricted), shared(1_000, ZonePolicy::SingleZone)],
        &[Ok((0b11 << 2, 0, 0)), Ok((1 << 4, 0, 0))],
    );
}

#[test]
fn devices_lie_near_the_zones_of_a_replica() {
    let of = || four_zones().devices("gpu", "H", &[2, 2, 4, 4]).devices("nic", "", &[3, 5]);
    let gpus = |n| request("gpu", n, DeviceTerms::default());
    let nic = |beside: &str| {
        request("nic", 1, DeviceTerms { same_zone_as: beside.to_owned(), ..DeviceTerms::default() })
    };
    let single = || shared(1_000, ZonePolicy::SingleZone);
    check(
        of(),
        &[
            with(vec![gpus(2)], single()),
            with(vec![gpus(1)], single()),
            with(vec![gpus(3)], single()),
            single(),
        ],
        &[
            Ok((1 << 2, 0, 0b11)),
            Ok((1 << 4, 0, 0b100)),
            Err("gpu: 1 free of 3 asked"),
            // Without devices: away from those that are idle.
            Ok((1 << 2, 0, 0)),
        ],
    );
    check(of(), &[with(vec![gpus(3)], single())], &[Err("no zone with enough free has the devices")]);
    // No network card lies in a zone with GPUs, but in those around the same socket there is one.
    check(
        of(),
        &[
            with(vec![gpus(1), nic("gpu")], demand(1_000, 0, 0, &[])),
            with(vec![gpus(1), nic("")], demand(1_000, 0, 0, &[])),
        ],
        &[Err("the devices are free, but not in one zone as asked"), Ok((0, 0, 0b1_0001))],
    );
    let beside = four_zones().devices("gpu", "H", &[2, 4]).devices("nic", "", &[5, 4]);
    check(beside, &[with(vec![gpus(1), nic("gpu")], demand(1, 0, 0, &[]))], &[Ok((0, 0, 0b1010))]);
}

#[test]
fn linked_devices_and_fast_ones_are_told_apart() {
    let nvlink =
        |group| DeviceDetails { link: "nvlink".to_owned(), link_group: group, ..DeviceDetails::default() };
    let of = || {
        let node = node(1).cpu(8_000).devices("gpu", "H", &[0; 6]).devices("nic", "", &[0, 0]);
        let fast = DeviceDetails { gbps: 200, ..DeviceDetails::default() };
        node.details(0..2, &nvlink(1)).details(2..5, &nvlink(2)).details(7..8, &fast)
    };
    let gpus = |n, link: &str| {
        let terms = DeviceTerms { link: link.to_owned(), ..DeviceTerms::default() };
        with(vec![request("gpu", n, terms)], demand(1, 0, 0, &[]))
    };
    check(
        of(),
        &[gpus(2, "nvlink"), gpus(4, "nvlink"), gpus(3, "nvlink"), gpus(1, ""), gpus(1, "")],
        &[
            Ok((0, 0, 0b11)),
            Err("gpu: 3 free of 4 asked"),
            Ok((0, 0, 0b1_1100)),
            Ok((0, 0, 0b10_0000)),
            Err("gpu: 0 free of 1 asked"),
        ],
    );
    check(of(), &[gpus(4, "nvlink")], &[Err("gpu: no 4 free ones are joined by nvlink")]);
    let nic = |gbps, milli| {
        let terms = DeviceTerms { gbps, ..DeviceTerms::default() };
        with(vec![DeviceRequest { milli, ..request("nic", 1, terms) }], demand(1, 0, 0, &[]))
    };
    check(
        of(),
        &[nic(100, 500), nic(101, 500), nic(200, 1_000)],
        &[Ok((0, 0, 1 << 7)), Err("no nic of model "), Err("nic: 0 free of 1 asked")],
    );
}

#[test]
fn profiles_are_sets_of_slices_of_one_device() {
    let card = |number| DeviceDetails { link_group: number, ..DeviceDetails::default() };
    let of = || {
        let node = node(1).cpu(8_000).devices("gpu-slice", "A", &[0; 14]);
        let node = node.details(0..7, &card(1)).details(7..14, &card(2));
        let node = node.profile("gpu-slice", "A", "1g", &[1, 2, 4, 8, 16, 32, 64]);
        node.profile("gpu-slice", "A", "3g", &[0b1111, 0b111_0000]).profile(
            "gpu-slice",
            "A",
            "7g",
            &[0b111_1111],
        )
    };
    let of_profile = |profile: &str| {
        let terms = DeviceTerms { profile: profile.to_owned(), ..DeviceTerms::default() };
        with(vec![request("gpu-slice", 1, terms)], demand(1, 0, 0, &[]))
    };
    check(
        of(),
        &[
            of_profile("1g"),
            of_profile("3g"),
            of_profile("7g"),
            of_profile("3g"),
            of_profile("1g"),
            of_profile("9g"),
        ],
        &[
            Ok((0, 0, 1)),
            // The device that is begun, in the place that is left.
            Ok((0, 0, 0b111_0000)),
            Ok((0, 0, 0b111_1111 << 7)),
            Err("gpu-slice: no device has the free slices of profile 3g"),
            Ok((0, 0, 0b10)),
            Err("gpu-slice: no device has the free slices of profile 9g"),
        ],
    );
}

#[test]
fn what_ends_gives_its_zones_back_whatever_the_node_says() {
    let demand = dedicated(4_000, ZonePolicy::SingleZone);
    let mut cluster = cluster(four_zones());
    assert_eq!(place(&mut cluster, &[demand.clone(), demand.clone()]), [Ok((4, 3, 0)), Ok((8, 3, 0))]);
    // The node comes back with other zones, and then with those that it had.
    cluster.nodes_mut().put_report(node(1).cpu(16_000).report, Revision(2));
    cluster.forget(RunningUnitId::new(UnitId(9), 0, 0));
    cluster.nodes_mut().put_report(four_zones().report, Revision(3));
    let shape = cluster.shape(&demand, Pool::Guaranteed);
    let given = |zones: u64| {
        let zones = GivenZones { zones: ZoneSet(zones), cores: CoreSet(0b11) };
        Allocation { zones, ..Allocation::default() }
    };
    assert_eq!(cluster.free().grant(shape, ON, given(4)), Ok(given(4)));
    // Another one has it: what is free instead.
    assert_eq!(cluster.free().grant(shape, ON, given(8)), Ok(given(4)));
    assert_eq!(cluster.free().suits(shape, ON, given(8)), Ok(()));
    assert!(
        cluster.free().suits(shape, ON, given(1)).is_err()
            && cluster.free().suits(shape, ON, given(64)).is_err()
    );
}

#[test]
fn a_hold_keeps_zones_beyond_what_its_victims_have() {
    let demand = dedicated(4_000, ZonePolicy::SingleZone);
    let mut cluster = cluster(node(1).zones(1, 2, 2, 2));
    let shape = cluster.shape(&demand, Pool::Guaranteed);
    let victim = RunningUnitId::new(UnitId(1), 0, 0);
    let given = GivenZones { zones: ZoneSet(0b10), cores: CoreSet(0b11) };
    let bind = Bind {
        demand: Arc::new(demand.clone()),
        ordinals: vec![0],
        nodes: vec![ON],
        zones: vec![given],
        ..Bind::default()
    };
    cluster.apply_rows(UnitId(1), &RunChange::Bind(bind), Revision(2), 1);
    let hold = Hold {
        id: HoldId(1),
        node: ON,
        unit: UnitId(2),
        demand: Arc::new(demand.clone()),
        ordinals: vec![0],
        zones: vec![given],
        victims: vec![victim],
        ..Hold::default()
    };
    assert_eq!(cluster.held().fits_hold(shape, &hold), Ok(()));
    cluster.held_mut().put(Arc::new(hold));
    // The other zone is free, that of the victim is not, before and after it has left.
    assert_eq!(cluster.free().pick(shape, ON).map(|given| given.zones.zones.0), Some(0b100));
    let gone = Statuses { ordinals: vec![0], phases: vec![Phase::Succeeded], ..Statuses::default() };
    cluster.apply_rows(UnitId(1), &RunChange::Statuses(gone), Revision(3), 1);
    assert_eq!(cluster.free().pick(shape, ON).map(|given| given.zones.zones.0), Some(0b100));
    assert_eq!(
        place(&mut cluster, &[demand.clone(), demand]),
        [Ok((4, 3, 0)), Err("insufficient cpu".to_owned())]
    );
    cluster.held_mut().remove(HoldId(1));
    assert_eq!(cluster.free().pick(shape, ON).map(|given| given.zones.zones.0), Some(0b10));
}

/// Whoever limits the use of its zones is given calm ones, also instead of what somebody else has chosen for it; and whoever waits for
/// that is told when less is used.
#[test]
fn who_limits_the_use_of_zones_is_given_calm_ones() {
    let mut cluster = cluster(four_zones());
    cluster.nodes_mut().limit_load();
    let demand = shared(1_000, ZonePolicy::SingleZone);
    let max_load = MaxLoad { cpu: Some(50), memory: None };
    let any = cluster.shape(&demand, Pool::Guaranteed);
    let careful = cluster.shape_below(&demand, Pool::Guaranteed, max_load);
    assert_ne!(careful, any);
    assert_eq!(cluster.shape_below(&demand, Pool::Guaranteed, max_load), careful, "interned once");
    let (whole, of_node) = (
        shared(1, ZonePolicy::BestEffort),
        cluster.shape(&shared(1, ZonePolicy::BestEffort), Pool::Guaranteed),
    );
    assert_eq!(cluster.shape_below(&whole, Pool::Guaranteed, max_load), of_node, "judged by the node");
    let measure = |cluster: &mut Cluster, revision: u64, used: [i64; 4]| {
        let load = |cpu| {
            let amounts = LoadAmounts { cpu, ..LoadAmounts::default() };
            NodeLoad { p50: amounts, p95: amounts }
        };
        let zone_loads = (2..).zip(used).map(|(zone, cpu)| ZoneLoad { zone, load: load(cpu) }).collect();
        let usage =
            NodeUsage { id: ON, as_of_ms: 1, load: Some(load(0)), zone_loads, ..NodeUsage::default() };
        cluster.nodes_mut().put_usage(usage, Revision(revision));
        let mut gained = Vec::new();
        cluster.free_mut().generations.take_gained(&mut gained);
        gained
    };
    measure(&mut cluster, 2, [4_000, 3_000, 2_000, 0]);
    let zones = |allocation: Allocation| allocation.zones.zones.0;
    let chosen = cluster.free().pick(any, ON).unwrap();
    assert_eq!(zones(chosen), 1 << 2, "who limits nothing goes anywhere");
    assert_eq!(cluster.free().grant(any, ON, chosen), Ok(chosen));
    assert_eq!(zones(cluster.free().pick(careful, ON).unwrap()), 1 << 4);
    assert_eq!(cluster.free().grant(careful, ON, chosen).map(zones), Ok(1 << 4), "not what was chosen");
    assert_eq!(measure(&mut cluster, 3, [4_000; 4]), [], "more is used");
    assert_eq!(
        (cluster.free().room_for(careful, ON.idx()), cluster.free().has_calm_zones(careful, ON.idx())),
        (None, false)
    );
    assert!(cluster.free().room_for(any, ON.idx()).is_some() && cluster.free().has_calm_zones(any, ON.idx()));
    let wrong = cluster.free().grant(careful, ON, chosen).unwrap_err().to_string();
    assert_eq!(wrong, "no zone has enough free, and is used as little as asked for");
    assert_eq!(measure(&mut cluster, 4, [4_000, 2_000, 4_000, 4_000]), [ON], "less is");
    assert_eq!(zones(cluster.free().pick(careful, ON).unwrap()), 1 << 3);
    // A new report has the same zones, and what is measured of them counts on.
    cluster.nodes_mut().put_report(four_zones().report, Revision(5));
    assert_eq!(zones(cluster.free().pick(careful, ON).unwrap()), 1 << 3);
}
