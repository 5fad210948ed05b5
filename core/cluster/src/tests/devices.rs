//! Devices of a node: which ones are picked, granted and refused.

use super::*;

pub(super) fn one_node(models: &[&str]) -> Cluster {
    let mut cluster = Cluster::new();
    cluster
        .nodes_mut()
        .put_spec(NodeSpec { id: NodeId(1), name: "n1".to_owned(), ..NodeSpec::default() }, Revision(1));
    let capacity = Resources::new([(CPU, 1000), (MEMORY, 100)]).unwrap();
    let devices = models.iter().map(|model| gpu(model)).collect();
    let report = NodeReport { id: NodeId(1), capacity, devices, ready: true, ..NodeReport::default() };
    cluster.nodes_mut().put_report(report, Revision(1));
    cluster
}

/// Takes devices of node 1 in thousandths, then checks what a request would get, or why nothing.
#[track_caller]
fn check_pick(models: &[&str], taken: &[(u64, u32)], ask: &Demand, expected: Result<u64, &str>) {
    let mut cluster = one_node(models);
    for (ordinal, (mask, milli)) in (0u32..).zip(taken) {
        let count = mask.count_ones();
        let shape = cluster.shape(&demand(0, count, *milli, &[]), Pool::Guaranteed);
        cluster.assume(RunningUnitId::new(UnitId(1), ordinal, 0), shape, NodeId(1), DeviceSet(*mask).into());
    }
    let shape = cluster.shape(ask, Pool::Guaranteed);
    let picked = cluster.free().pick(shape, NodeId(1));
    match expected {
        Ok(mask) => {
            let given = Allocation::from(DeviceSet(mask));
            assert_eq!(picked, Some(given));
            assert_eq!(cluster.free().grant(shape, NodeId(1), given), Ok(given));
            assert!(cluster.free().grant(shape, NodeId(1), DeviceSet(mask << 8).into()).is_err());
        }
        Err(words) => {
            assert_eq!(picked.is_none(), words.contains("gpu"));
            assert_eq!(cluster.free().fits(shape, NodeId(1)).unwrap_err().to_string(), words);
        }
    }
}

#[test]
fn devices_are_picked_whole_from_below_and_shared_by_best_fit() {
    let four = ["A"; 4];
    check_pick(&four, &[], &demand(0, 2, 1000, &[]), Ok(0b0011));
    check_pick(&four, &[(0b0001, 100)], &demand(0, 2, 1000, &[]), Ok(0b0110));
    check_pick(&four, &[(0b0100, 600), (0b1000, 300)], &demand(0, 1, 400, &[]), Ok(0b0100));
    check_pick(&four, &[(0b0100, 600), (0b1000, 300)], &demand(0, 1, 500, &[]), Ok(0b1000));
    check_pick(&four, &[], &demand(0, 1, 500, &[]), Ok(0b0001));
    check_pick(&four, &[(0b0111, 1000)], &demand(0, 2, 1000, &[]), Err("gpu: 1 free of 2 asked"));
    check_pick(&four, &[(0b1111, 1000)], &demand(0, 1, 10, &[]), Err("gpu: none with 0.01 free"));
    check_pick(&four, &[], &demand(0, 1, 10, &["P100"]), Err("no gpu of model P100"));
    check_pick(&[], &[], &demand(0, 1, 10, &[]), Err("no gpu"));
    check_pick(&["A", "B", "A"], &[], &demand(0, 2, 1000, &["A"]), Ok(0b101));
    check_pick(&["A", "B", "A"], &[], &demand(0, 1, 1000, &["B", "C"]), Ok(0b010));
    check_pick(&["A", "B", "A"], &[], &demand(1001, 1, 10, &["B"]), Err("insufficient cpu"));
}

/// A node with GPUs of these models, and network cards after them.
fn with_nics(models: &[&str], n_nics: usize) -> Cluster {
    let mut cluster = one_node(models);
    let nic = Device { kind: "nic".to_owned(), ..gpu("X") };
    let devices = models.iter().map(|model| gpu(model)).chain(vec![nic; n_nics]).collect();
    let capacity = Resources::new([(CPU, 1000), (MEMORY, 100)]).unwrap();
    let report = NodeReport { id: NodeId(1), capacity, devices, ready: true, ..NodeReport::default() };
    cluster.nodes_mut().put_report(report, Revision(2));
    cluster
}

/// GPUs, and a share of a network card.
pub(super) fn with_nic(gpus: (u32, u32, &[&str]), nic_milli: u32) -> Demand {
    let mut demand = demand(1, gpus.0, gpus.1, gpus.2);
    let nic =
        DeviceRequest { kind: "nic".to_owned(), count: 1, milli: nic_milli, models: Vec::new(), terms: None };
    demand.devices.push(nic);
    demand
}

#[test]
fn each_request_gets_devices_of_its_kind() {
    // GPUs 0 and 1, cards 2 and 3; what was taken before, what is asked for, and what is picked.
    type Case<'a> = (&'a [(u64, Demand)], Demand, Result<u64, &'a str>);
    let pair = || with_nic((1, 1000, &[]), 400);
    let cases: [Case<'_>; 7] = [
        (&[], pair(), Ok(0b0101)),
        (&[(0b0101, pair())], pair(), Ok(0b0110)),
        (&[(0b0101, pair()), (0b0110, pair())], pair(), Err("gpu: 0 free of 1 asked")),
        (&[(0b0101, with_nic((1, 500, &[]), 1000))], with_nic((1, 500, &[]), 1000), Ok(0b1001)),
        (&[(0b0101, with_nic((1, 500, &[]), 700))], with_nic((1, 600, &[]), 300), Ok(0b0110)),
        (&[(0b1100, with_nic((0, 1000, &[]), 900))], pair(), Err("nic: none with 0.4 free")),
        (&[], with_nic((1, 1000, &["B"]), 1), Err("no gpu of model B")),
    ];
    for (taken, ask, expected) in cases {
        let mut cluster = with_nics(&["A", "A"], 2);
        for (ordinal, (devices, takes)) in (0u32..).zip(taken) {
            let shape = cluster.shape(takes, Pool::Guaranteed);
            let id = RunningUnitId::new(UnitId(1), ordinal, 0);
            cluster.assume(id, shape, NodeId(1), DeviceSet(*devices).into());
        }
        let shape = cluster.shape(&ask, Pool::Guaranteed);
        let picked = cluster.free().pick(shape, NodeId(1)).map(|given| given.devices.0);
        assert_eq!(picked, expected.ok(), "{taken:?} {ask:?}");
        assert_eq!(cluster.free().room_for(shape, 1).is_some(), expected.is_ok());
        match expected {
            Ok(devices) => {
                let wanted = Allocation::from(DeviceSet(devices));
                assert_eq!(cluster.free().grant(shape, NodeId(1), wanted), Ok(wanted));
                assert_eq!(cluster.free().suits(shape, NodeId(1), wanted), Ok(()));
            }
            Err(words) => assert_eq!(cluster.free().fits(shape, NodeId(1)).unwrap_err().to_string(), words),
        }
    }
}

#[test]
fn devices_are_granted_kind_by_kind() {
    let mut cluster = with_nics(&["A", "A"], 2);
    let pair = with_nic((1, 1000, &[]), 400);
    let shape = cluster.shape(&pair, Pool::Guaranteed);
    cluster.assume(RunningUnitId::new(UnitId(1), 0, 0), shape, NodeId(1), DeviceSet(0b0101).into());
    let grant = |cluster: &Cluster, devices| {
        let granted = cluster.free().grant(shape, NodeId(1), DeviceSet(devices).into());
        granted.map(|given| given.devices.0).map_err(|refusal| refusal.to_string())
    };
    assert_eq!(grant(&cluster, 0b0101), Ok(0b0110), "the card has room, the GPU is another one");
    assert_eq!(grant(&cluster, 0b0011), Err("gpu: 2 chosen of 1 asked".to_owned()));
    assert_eq!(grant(&cluster, 0b0010), Err("nic: 0 chosen of 1 asked".to_owned()));
    assert_eq!(grant(&cluster, 1 << 9 | 0b0110), Err("device 9: not of those asked for".to_owned()));
    assert!(cluster.free().suits(shape, NodeId(1), DeviceSet(0b1100).into()).is_err());
    // It takes of each what it asks of its kind, also when the node says of them only later that they are others.
    let free = |cluster: &Cluster| cluster.free().pool_state(NodeId(1), Pool::Guaranteed).unwrap().1;
    assert_eq!(free(&cluster), [0, 1000, 600, 1000]);
    let nic = Device { kind: "nic".to_owned(), ..gpu("X") };
    let capacity = Resources::new([(CPU, 1000), (MEMORY, 100)]).unwrap();
    let devices = vec![nic.clone(), gpu("A"), gpu("A"), nic];
    let report = NodeReport { id: NodeId(1), capacity, devices, ready: true, ..NodeReport::default() };
    cluster.nodes_mut().put_report(report, Revision(3));
    assert_eq!(free(&cluster), [600, 1000, 0, 1000]);
    cluster.forget(RunningUnitId::new(UnitId(1), 0, 0));
    assert_eq!(free(&cluster), [1000; 4], "all is given back");
}

#[test]
fn refused_devices_are_named() {
    let mut cluster = one_node(&["A", "B"]);
    let shape = cluster.shape(&demand(0, 1, 600, &["A"]), Pool::Guaranteed);
    cluster.assume(RunningUnitId::new(UnitId(1), 0, 0), shape, NodeId(1), DeviceSet(0b01).into());
    let check = |mask| {
        cluster.free().grant(shape, NodeId(1), DeviceSet(mask).into()).map_err(|refusal| refusal.to_string())
    };
    assert_eq!(check(0b01), Err("gpu 0: 0.4 free of 0.6 asked".to_owned()));
    assert_eq!(check(0b10), Err("gpu 1: model not accepted".to_owned()));
    assert_eq!(check(0b11), Err("gpu: 2 chosen of 1 asked".to_owned()));
    assert_eq!(check(1 << 63), Err("gpu 63: no such device".to_owned()));
    let none = cluster.shape(&demand(1, 0, 0, &[]), Pool::Guaranteed);
    assert!(cluster.free().grant(none, NodeId(1), DeviceSet(1).into()).is_err());
    assert_eq!(cluster.free().grant(none, NodeId(1), Allocation::default()), Ok(Allocation::default()));
    let zoned = Allocation { zones: ZoneSet(1).into(), ..Allocation::default() };
    assert_eq!(
        cluster.free().grant(none, NodeId(1), zoned).map_err(|refusal| refusal.to_string()),
        Err("zones chosen, none asked".to_owned())
    );
    assert!(cluster.free().suits(none, NodeId(1), zoned).is_err());
}
