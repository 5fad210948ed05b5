//! Devices that running units, holds and slots keep, on a node that has come to have others, or fewer.

use godel_base::ids::{HoldId, RunningUnitId};
use godel_domain::{
    allocation::DeviceSet,
    hold::{Hold, Slot},
};

use super::*;

const NODE: NodeId = NodeId(1);

fn device(kind: &str, model: &str) -> Device {
    Device { kind: kind.to_owned(), model: model.to_owned(), numa_zone: 0, details: None }
}

fn ask(kind: &str, count: u32, milli: u32, models: &[&str]) -> Demand {
    let mut demand = demand(1, count, milli, models);
    for devices in &mut demand.devices {
        kind.clone_into(&mut devices.kind);
    }
    demand
}

/// A node of one kind's devices after another's.
fn report(cluster: &mut Cluster, devices: &[(&str, &str)], revision: u64) {
    let capacity = Resources::new([(CPU, 1000), (MEMORY, 100)]).unwrap();
    let devices = devices.iter().map(|(kind, model)| device(kind, model)).collect();
    let report = NodeReport { id: NODE, capacity, devices, ready: true, ..NodeReport::default() };
    cluster.nodes_mut().put_report(report, Revision(revision));
}

fn with(devices: &[(&str, &str)]) -> Cluster {
    let mut cluster = Cluster::new();
    cluster
        .nodes_mut()
        .put_spec(NodeSpec { id: NODE, name: "n1".to_owned(), ..NodeSpec::default() }, Revision(1));
    report(&mut cluster, devices, 1);
    cluster
}

fn bind(cluster: &mut Cluster, unit: u64, demand: &Demand, masks: &[u64]) {
    let bind = Bind {
        demand: Arc::new(demand.clone()),
        ordinals: (0u32..).zip(masks).map(|(ordinal, _)| ordinal).collect(),
        incarnations: vec![0; masks.len()],
        nodes: vec![NODE; masks.len()],
        devices: masks.iter().copied().map(DeviceSet).collect(),
        ..Bind::default()
    };
    cluster.apply_rows(UnitId(unit), &RunChange::Bind(bind), Revision(2), 0);
}

fn end(cluster: &mut Cluster, unit: u64, ordinal: u32) {
    let ended = row_change(&Event::End(unit, ordinal), unit, ordinal, 0);
    cluster.apply_rows(UnitId(unit), &ended, Revision(3), 0);
}

/// The devices that one more would get, by each way of asking: they never differ.
#[track_caller]
fn gets(cluster: &mut Cluster, demand: &Demand) -> Result<u64, String> {
    let shape = cluster.shape(demand, Pool::Guaranteed);
    let picked = cluster.free().pick(shape, NODE);
    let fits = cluster.free().fits(shape, NODE).map_err(|refusal| refusal.to_string());
    assert_eq!(cluster.free().room_for(shape, NODE.idx()), picked.filter(|_| fits.is_ok()));
    let wanted = picked.unwrap_or(DeviceSet(0b1).into());
    assert_eq!(cluster.free().grant(shape, NODE, wanted).is_ok(), fits.is_ok());
    cluster.taken_mut().keep_occupants();
    let resolved = cluster.catalogue().shape(shape);
    let shrunk = cluster.held().shrunk_of(resolved, NODE.idx());
    assert_eq!(shrunk.is_some(), cluster.held().is_shrunk_of(resolved, NODE.idx()));
    fits.map(|()| picked.expect("it fits").devices.0)
}

fn short(kind: &str) -> Result<u64, String> {
    Err(format!("{kind}: what runs there holds some that the node no longer has"))
}

#[test]
fn missing_devices_stop_new_holders_of_their_kind() {
    for milli in [1000, 400] {
        let gpu = ask("gpu", 1, milli, &[]);
        let mut cluster = with(&[("gpu", "A"); 4]);
        bind(&mut cluster, 1, &gpu, &[0b0001, 0b0010, 0b0100, 0b1000]);
        report(&mut cluster, &[("gpu", "A"); 2], 3);
        for ended in [0, 1] {
            assert_eq!(gets(&mut cluster, &gpu), short("gpu"), "{milli} milli, {ended} ended");
            assert_eq!(gets(&mut cluster, &ask("gpu", 1, 1, &[])), short("gpu"));
            end(&mut cluster, 1, ended);
        }
        // All that is left is free now, and two still hold what is not there.
        assert_eq!(gets(&mut cluster, &gpu), short("gpu"));
        end(&mut cluster, 1, 2);
        assert_eq!(gets(&mut cluster, &gpu), short("gpu"));
        end(&mut cluster, 1, 3);
        assert_eq!(gets(&mut cluster, &gpu), Ok(0b01));
        assert_eq!(gets(&mut cluster, &ask("gpu", 2, 1000, &[])), Ok(0b11));
    }
}

#[test]
fn a_node_that_grows_back_gives_away_what_is_free_again() {
    let gpu = ask("gpu", 1, 1000, &[]);
    let mut cluster = with(&[("gpu", "A"); 4]);
    bind(&mut cluster, 1, &gpu, &[0b0001, 0b1000]);
    report(&mut cluster, &[("gpu", "A"); 2], 3);
    assert_eq!(gets(&mut cluster, &gpu), short("gpu"));
    let mut gained = Vec::new();
    cluster.free_mut().generations.take_gained(&mut gained);
    report(&mut cluster, &[("gpu", "A"); 4], 4);
    assert_eq!(gets(&mut cluster, &gpu), Ok(0b0010));
    cluster.free_mut().generations.take_gained(&mut gained);
    assert_eq!(gained, [NODE], "who waits is told");
}

#[test]
fn frozen_devices_concern_only_requests_that_accept_them() {
    let (gpu, npu) = (ask("gpu", 1, 1000, &[]), ask("npu", 1, 1000, &[]));
    let mut cluster = with(&[("npu", "X"), ("npu", "X"), ("gpu", "A"), ("gpu", "A")]);
    bind(&mut cluster, 1, &gpu, &[0b1000]);
    report(&mut cluster, &[("npu", "X"), ("npu", "X"), ("gpu", "A")], 3);
    assert_eq!(gets(&mut cluster, &gpu), short("gpu"));
    assert_eq!(gets(&mut cluster, &npu), Ok(0b0001));
    // The same place, another kind: whoever holds it holds none of its own.
    report(&mut cluster, &[("npu", "X"), ("npu", "X"), ("gpu", "A"), ("npu", "X")], 4);
    assert_eq!(gets(&mut cluster, &gpu), short("gpu"));
    assert_eq!(gets(&mut cluster, &npu), Ok(0b0001));

    let (any, picky) = (ask("gpu", 1, 1000, &[]), ask("gpu", 1, 1000, &["A"]));
    for (held, expected) in [(&any, Ok(0b10)), (&picky, short("gpu"))] {
        let mut cluster = with(&[("gpu", "A"); 2]);
        bind(&mut cluster, 1, held, &[0b01]);
        report(&mut cluster, &[("gpu", "B"), ("gpu", "A")], 3);
        assert_eq!(gets(&mut cluster, &any), expected);
    }
}

#[test]
fn whoever_asks_for_no_device_is_placed_as_before() {
    let mut cluster = with(&[("gpu", "A"); 2]);
    bind(&mut cluster, 1, &ask("gpu", 2, 1000, &[]), &[0b11]);
    report(&mut cluster, &[], 3);
    assert_eq!(gets(&mut cluster, &demand(1, 0, 0, &[])), Ok(0));
    assert_eq!(gets(&mut cluster, &ask("gpu", 1, 1000, &[])), Err("no gpu".to_owned()));
}

#[test]
fn assumptions_and_rows_that_are_read_first_count_as_well() {
    let gpu = ask("gpu", 1, 1000, &[]);
    let mut cluster = Cluster::new();
    bind(&mut cluster, 1, &gpu, &[0b0100]);
    let shape = cluster.shape(&gpu, Pool::Guaranteed);
    cluster
        .nodes_mut()
        .put_spec(NodeSpec { id: NODE, name: "n1".to_owned(), ..NodeSpec::default() }, Revision(1));
    report(&mut cluster, &[("gpu", "A"); 2], 3);
    assert_eq!(gets(&mut cluster, &gpu), short("gpu"));
    cluster.assume(RunningUnitId::new(UnitId(2), 0, 0), shape, NODE, DeviceSet(0b1000).into());
    end(&mut cluster, 1, 0);
    assert_eq!(gets(&mut cluster, &gpu), short("gpu"), "an assumption is on its way there");
    cluster.forget(RunningUnitId::new(UnitId(2), 0, 0));
    assert_eq!(gets(&mut cluster, &gpu), Ok(0b01));
}

#[test]
fn holds_and_slots_keep_missing_devices_like_running_units() {
    let gpu = ask("gpu", 1, 1000, &[]);
    let hold = |slot: Option<Slot>| Hold {
        id: HoldId(1),
        node: NODE,
        unit: UnitId(if slot.is_some() { 0 } else { 9 }),
        demand: Arc::new(gpu.clone()),
        ordinals: vec![0],
        devices: vec![DeviceSet(0b10)],
        slot,
        ..Hold::default()
    };
    for slot in [None, Some(Slot { reservation: Arc::from("r"), occupant: None })] {
        let is_slot = slot.is_some();
        let mut cluster = with(&[("gpu", "A"); 2]);
        cluster.held_mut().put(Arc::new(hold(slot)));
        assert_eq!(gets(&mut cluster, &gpu), Ok(0b01));
        report(&mut cluster, &[("gpu", "A")], 3);
        assert_eq!(gets(&mut cluster, &gpu), short("gpu"));
        if is_slot {
            assert!(!cluster.held().is_sound(HoldId(1)), "a slot on a node that is short is given up");
        }
        cluster.held_mut().remove(HoldId(1));
        assert_eq!(gets(&mut cluster, &gpu), Ok(0b01));
    }
    // Nothing new is held there either, not even what its victims would cover.
    let mut cluster = with(&[("gpu", "A"); 2]);
    bind(&mut cluster, 1, &gpu, &[0b01, 0b10]);
    report(&mut cluster, &[("gpu", "A")], 3);
    let victims = vec![godel_base::ids::RunningUnitId::new(UnitId(1), 0, 0)];
    let wanted = Hold { devices: vec![DeviceSet(0b01)], victims, ..hold(None) };
    let shape = cluster.shape(&gpu, Pool::Guaranteed);
    assert_eq!(
        cluster.held().fits_hold(shape, &wanted).map_err(|refusal| refusal.to_string()).map(|()| 0),
        short("gpu")
    );
    end(&mut cluster, 1, 1);
    assert_eq!(cluster.held().fits_hold(shape, &wanted), Ok(()));
}

#[test]
fn resources_that_are_short_are_not_held_either() {
    let mut cluster = with(&[]);
    bind(&mut cluster, 1, &demand(300, 0, 0, &[]), &[0, 0, 0]);
    cluster.nodes_mut().put_allocatable(
        NODE,
        Resources::new([(CPU, 700), (MEMORY, 100)]).unwrap(),
        Revision(3),
    );
    let wanted = |demand: &Demand| Hold {
        id: HoldId(1),
        node: NODE,
        unit: UnitId(9),
        demand: Arc::new(demand.clone()),
        ordinals: vec![0],
        victims: vec![godel_base::ids::RunningUnitId::new(UnitId(1), 0, 0)],
        ..Hold::default()
    };
    let (cpu, memory) = (demand(300, 0, 0, &[]), unit_demand(0));
    let memory = Demand { requests: Resources::new([(MEMORY, 5)]).unwrap(), ..memory };
    let (of_cpu, of_memory) =
        (cluster.shape(&cpu, Pool::Guaranteed), cluster.shape(&memory, Pool::Guaranteed));
    assert!(cluster.held().fits_hold(of_cpu, &wanted(&cpu)).is_err());
    assert_eq!(cluster.held().fits_hold(of_memory, &wanted(&memory)), Ok(()));
    end(&mut cluster, 1, 1);
    assert_eq!(cluster.held().fits_hold(of_cpu, &wanted(&cpu)), Ok(()), "600 of 700, and its victim leaves");
}
