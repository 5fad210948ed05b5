//! Units, nodes and queues of the cases: few and small, so that they meet.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::{
    ids::NodeId,
    resources::{CPU, MEMORY, Resources},
};
use godel_domain::{
    demand::{Demand, DeviceRequest, Pool},
    host_port::{HostPort, Protocol},
    label_expression::parse,
    node::{Device, NodeReport, NodeSpec, Taint, TaintEffect, Toleration},
    node_load::MaxLoad,
    queue_spec::{PriorityClass, QueuePolicy, QueueSpec},
    reservation_spec::ReservationSpec,
    submission::{GroupChanges, GroupSubmission},
    unit::{
        OnBelowMin, OnEviction, RestartPolicy, RunSpec, TaskGroup, Template, UnitRecord, UnitSpec, Volume,
        WorkloadClass,
    },
    unit_affinity::{NODE, SpreadTerm, UnitTerm},
    unit_topology::{Segments, UnitTopology},
    zone::{CpuMode, Zone, ZonePolicy, ZoneRequest},
};
use godel_testkit::BuildUnit as _;

use super::numbers::Numbers;

/// Queues that units name; only the leaves among them.
pub(super) const LEAVES: [&str; 4] = ["default", "a.x", "a.y", "b"];
/// Queues that may have records.
pub(super) const QUEUES: [&str; 5] = ["a", "a.x", "a.y", "b", "default"];
/// The one priority class.
pub(super) const CLASS: &str = "gold";
/// Label of units that have terms about running units.
const APP: &str = "app";
/// Label of nodes; some units ask for one of its values.
pub(super) const ZONE: &str = "zone";
const TAINT: &str = "dedicated";

fn resources(cpu: i64, memory: i64) -> Resources {
    Resources::new([(CPU, cpu), (MEMORY, memory)]).expect("not negative")
}

/// An id that looks as a client would choose it.
pub(super) fn uid(number: u64) -> String {
    format!("0190163d-8694-739b-aea5-{number:012x}")
}

/// Some units become units of which each replica needs most of a node, or a whole one.
pub(super) fn enlarge(spec: &mut UnitSpec, numbers: &mut Numbers) {
    if numbers.chance(60) {
        return;
    }
    for group in &mut spec.task_groups {
        group.template.demand.requests = resources(numbers.pick(&[3_000, 4_000, 4_000, 6_000]), 1);
    }
}

/// A unit as it is submitted.
pub(super) fn unit(number: u64, numbers: &mut Numbers) -> UnitSpec {
    let pool = if numbers.chance(20) { Pool::BestEffort } else { Pool::Guaranteed };
    let class = numbers.pick(&[WorkloadClass::Service, WorkloadClass::Batch, WorkloadClass::Gang]);
    let replicas = u32::try_from(numbers.draw(&[(4, 1u64), (3, 2), (3, 3), (1, 5)])).expect("small");
    let mut task_groups = vec![group("g0", replicas, numbers)];
    if numbers.chance(15) {
        let more = u32::try_from(1 + numbers.below(2)).expect("small");
        // As if it had not been drawn: the rest is the same whether the groups are alike or not.
        let mut apart = numbers.clone();
        let mut template = task_groups[0].template.clone();
        if apart.chance(50) {
            // Of one sub-cluster at most.
            let node_selector = std::mem::take(&mut template.node_selector);
            template = Template { node_selector, ..group("g1", 1, &mut apart).template };
        }
        task_groups.push(godel_testkit::group("g1", more, template));
    }
    let all: u32 = task_groups.iter().map(|group| group.replicas).sum();
    let min_member = match class {
        WorkloadClass::Gang => all,
        _ if numbers.chance(15) => u32::try_from(1 + numbers.below(u64::from(all))).expect("small"),
        _ => 1,
    };
    let priority = numbers.draw(&[(5, 0), (3, 10), (2, 100), (1, 2_000_000), (1, 1_000_000_000)]);
    let has_class = numbers.chance(15);
    let millis = |numbers: &mut Numbers, percent: u64, of: u64| match numbers.chance(percent) {
        true => 1 + numbers.below(of),
        false => 0,
    };
    let mut spec = godel_testkit::unit(format!("u{number}"))
        .uid(uid(number))
        .labels(if number.is_multiple_of(2) { owner() } else { BTreeMap::new() })
        .owner(format!("o{}", number % 2))
        .class(class)
        .task_groups(task_groups)
        .min_member(min_member)
        .queue(numbers.pick(&LEAVES))
        .priority(if has_class { 0 } else { priority })
        .priority_class(if has_class { CLASS } else { "" })
        .pool(pool)
        .restart_policy(numbers.pick(&[RestartPolicy::Never, RestartPolicy::OnFailure]))
        .profile(numbers.pick(&["least-allocated", "most-allocated"]))
        .ttl_after_finished_ms(numbers.below(2_000))
        .on_eviction(if numbers.chance(10) { OnEviction::Fail } else { OnEviction::Requeue })
        .on_below_min(numbers.draw(&[(4, OnBelowMin::Keep), (2, OnBelowMin::Restart), (1, OnBelowMin::Stop)]))
        .scheduling_timeout_ms(millis(numbers, 10, 500))
        .active_deadline_ms(millis(numbers, 5, 3_000))
        .preemptible(!numbers.chance(15))
        .min_run_ms(millis(numbers, 10, 800))
        .spec;
    // As if it had not been drawn: the rest is the same for all, with terms or without.
    draw_terms(&mut spec, &mut numbers.clone());
    if spec.pool == Pool::BestEffort {
        spec.task_groups.iter_mut().for_each(|group| group.template.demand.zones = None);
    }
    draw_class(&mut spec, &mut numbers.clone());
    draw_minima(&mut spec, &mut numbers.clone());
    draw_volumes(&mut spec, &mut numbers.clone());
    draw_group_topologies(&mut spec, &mut numbers.clone());
    draw_masters(&mut spec, &mut numbers.clone());
    draw_surge(&mut spec, &mut numbers.clone());
    spec
}

/// Most services let replacements start first.
fn draw_surge(spec: &mut UnitSpec, numbers: &mut Numbers) {
    numbers.below(19);
    let has_segments = |topology: &UnitTopology| topology.segments.is_some();
    let mut of_groups = spec.task_groups.iter().filter_map(|group| group.topology.as_deref());
    let is_whole = !has_segments(&spec.topology) && !of_groups.any(has_segments);
    if spec.class == WorkloadClass::Service && is_whole && numbers.chance(85) {
        spec.max_surge = u32::try_from(1 + numbers.below(2)).expect("small");
    }
}

/// A few units are YARN applications, whose first task group is that of their masters.
fn draw_masters(spec: &mut UnitSpec, numbers: &mut Numbers) {
    numbers.below(5);
    if spec.class == WorkloadClass::Batch && numbers.chance(90) {
        spec.class = WorkloadClass::Yarn;
    }
}

/// A few units have a replica on each node that they may have, or an order.
fn draw_class(spec: &mut UnitSpec, numbers: &mut Numbers) {
    numbers.below(3);
    if !numbers.chance(5) {
        // And a few others are started in the order of their ordinals.
        if spec.class == WorkloadClass::Service && numbers.chance(15) {
            spec.class = WorkloadClass::Stateful;
        }
        return;
    }
    spec.class = WorkloadClass::Daemon;
    spec.task_groups.truncate(1);
    spec.task_groups[0].replicas = 0;
    spec.min_member = 1;
    spec.restart_policy = RestartPolicy::Always;
    spec.topology = UnitTopology::default();
}

/// Some units of two task groups need a number of each.
fn draw_minima(spec: &mut UnitSpec, numbers: &mut Numbers) {
    numbers.below(7);
    if spec.task_groups.len() < 2 || spec.class == WorkloadClass::Stateful || !numbers.chance(60) {
        return;
    }
    for group in &mut spec.task_groups {
        group.min_member = u32::try_from(numbers.below(u64::from(group.replicas) + 1)).expect("small");
    }
    let of_groups: u32 = spec.task_groups.iter().map(|group| group.min_member).sum();
    spec.min_member = match numbers.chance(50) {
        true => of_groups.max(1),
        false => spec.min_member.max(of_groups),
    };
}

/// Task groups of some units go to domains of their own.
fn draw_group_topologies(spec: &mut UnitSpec, numbers: &mut Numbers) {
    numbers.below(11);
    let has_none = spec.class == WorkloadClass::Daemon || spec.topology.segments.is_some();
    if has_none || spec.task_groups.len() < 2 || !numbers.chance(40) {
        return;
    }
    for group in &mut spec.task_groups {
        let within = numbers.pick(&[ZONE, NODE]).to_owned();
        let mut topology = UnitTopology::default();
        match numbers.below(4) {
            0 => topology.required = ZONE.to_owned(),
            1 => topology.preferred = vec![within],
            2 => topology.segments = Some(Segments { size: 2, within }),
            _ => continue,
        }
        group.topology = Some(Box::new(topology));
    }
}

/// Nodes keep volumes for the replicas of a few units.
fn draw_volumes(spec: &mut UnitSpec, numbers: &mut Numbers) {
    numbers.below(5);
    if spec.class == WorkloadClass::Daemon || !numbers.chance(8) {
        return;
    }
    let n_groups = spec.task_groups.len();
    let n_groups = if numbers.chance(50) { 1 } else { n_groups };
    for group in &mut spec.task_groups[..n_groups] {
        group.template.run.volumes = vec![Volume { name: "data".to_owned(), bytes: 1, path: None }];
    }
}

/// A few units say where they go in relation to running units; only those are selected by others.
fn draw_terms(spec: &mut UnitSpec, numbers: &mut Numbers) {
    numbers.below(2);
    if !numbers.chance(15) {
        return;
    }
    spec.labels.insert(APP.to_owned(), numbers.pick(&["a", "b"]).to_owned());
    let term = |units: &str, topology: &str, weight| UnitTerm {
        units: if units.is_empty() { Vec::new() } else { parse(units).expect("a condition") },
        topology: topology.to_owned(),
        weight,
    };
    let weight = numbers.draw(&[(3, 0), (1, 10)]);
    let topology = numbers.pick(&[ZONE, NODE]);
    match numbers.below(6) {
        0 => spec.affinity.near.push(term("app = a", topology, weight)),
        1 => spec.affinity.apart.push(term("", topology, weight)),
        2 => spec.affinity.apart.push(term("app = b", topology, weight)),
        3 => spec.affinity.spread.push(SpreadTerm {
            units: Vec::new(),
            topology: topology.to_owned(),
            max_skew: 1,
            weight,
        }),
        4 => spec.topology.required = ZONE.to_owned(),
        _ => {
            spec.topology.preferred = vec![topology.to_owned()];
            let within = ZONE.to_owned();
            spec.topology.segments = numbers.chance(50).then_some(Segments { size: 2, within });
        }
    }
}

/// Nearly all units of a case meet: by labels that terms select, by terms or by a port, and most are of several replicas.
pub(super) fn meet(spec: &mut UnitSpec, numbers: &mut Numbers) {
    if spec.class == WorkloadClass::Daemon {
        return;
    }
    if numbers.chance(60) {
        // No replacement starts first: who moves leaves.
        spec.max_surge = 0;
    }
    spec.labels.insert(APP.to_owned(), numbers.pick(&["a", "b"]).to_owned());
    let topology = numbers.pick(&[ZONE, NODE]).to_owned();
    let term = |units: &str| UnitTerm {
        units: if units.is_empty() { Vec::new() } else { parse(units).expect("a condition") },
        topology: topology.clone(),
        weight: 0,
    };
    let has_segments = spec.topology.segments.is_some();
    match numbers.below(8) {
        0 => spec.affinity.near.push(term("app = a")),
        1 => spec.affinity.apart.push(term("")),
        2 => spec.affinity.apart.push(term("app = b")),
        3 => {
            let units = Vec::new();
            spec.affinity.spread.push(SpreadTerm { units, topology, max_skew: 1, weight: 0 });
        }
        4 if !has_segments => spec.topology.required = ZONE.to_owned(),
        5 if !has_segments => spec.topology.homogeneous = ZONE.to_owned(),
        6 => {
            let port = HostPort { port: 80, protocol: Protocol::Tcp };
            spec.task_groups.iter_mut().for_each(|group| group.template.demand.host_ports = vec![port]);
        }
        _ => {}
    }
}

/// Whether a unit has required terms about running units, or a port.
pub(super) fn is_met(spec: &UnitSpec) -> bool {
    let has_port = |group: &TaskGroup| !group.template.demand.host_ports.is_empty();
    spec.has_terms() || spec.task_groups.iter().any(has_port)
}

/// What somebody may want to be otherwise of a unit: its queue, its rank, its size, or what its replicas take.
pub(super) fn change(spec: &mut UnitSpec, numbers: &mut Numbers) {
    match numbers.below(5) {
        0 => numbers.pick(&LEAVES).clone_into(&mut spec.queue),
        1 if spec.priority_class.is_empty() => spec.priority = numbers.pick(&[0, 10, 100, 2_000_000]),
        2 => spec.task_groups[0].replicas = u32::try_from(numbers.below(5)).expect("small"),
        3 => {
            let requests = resources(numbers.pick(&[500, 1_000, 3_000]), 1);
            spec.task_groups[0].template.demand.requests = requests;
        }
        _ => {
            spec.task_groups[0].template.node_selector.clear();
            spec.active_deadline_ms = 1 + numbers.below(3_000);
        }
    }
    // As admission does.
    for group in &mut spec.task_groups {
        group.min_member = group.min_member.min(group.replicas);
    }
    spec.min_member = spec.min_member.min(spec.replicas()).max(1);
}

/// Changes of a unit's task groups.
pub(super) fn grow(record: &UnitRecord, numbers: &mut Numbers) -> GroupChanges {
    let groups = &record.spec.task_groups;
    let mut changes = GroupChanges::default();
    if numbers.chance(60) && groups.len() < 6 {
        let requests = vec![("cpu".to_owned(), numbers.pick(&[500, 1_000]))];
        let replicas = u32::try_from(numbers.below(3)).expect("small");
        let name = format!("g{}", groups.len());
        // As if it had not been drawn: the rest is the same, with a topology or without.
        let mut apart = numbers.clone();
        apart.below(17);
        let topology = match apart.below(6) {
            _ if record.spec.topology.segments.is_some() => None,
            0 => Some(UnitTopology { required: ZONE.to_owned(), ..UnitTopology::default() }),
            1 => {
                let segments = Some(Segments { size: 2, within: apart.pick(&[ZONE, NODE]).to_owned() });
                Some(UnitTopology { segments, ..UnitTopology::default() })
            }
            _ => None,
        };
        let topology = topology.map(Box::new);
        changes.added.push(GroupSubmission {
            name,
            replicas,
            requests,
            topology,
            ..GroupSubmission::default()
        });
    }
    if numbers.chance(40) {
        let idx = usize::try_from(numbers.below(groups.len() as u64)).expect("small");
        changes.sizes.push((groups[idx].name.clone(), u32::try_from(numbers.below(4)).expect("small")));
    }
    if numbers.chance(40) {
        let ordinals: Vec<u32> = record.iter_ordinals().collect();
        let at = usize::try_from(numbers.below(ordinals.len().max(1) as u64)).expect("small");
        changes.released.extend(ordinals.get(at));
    }
    changes
}

/// A unit that nothing but room and its queue keeps waiting.
pub(super) fn plain_unit(number: u64, numbers: &mut Numbers) -> UnitSpec {
    let mut spec = unit(number, numbers);
    spec.task_groups.truncate(1);
    let group = &mut spec.task_groups[0];
    group.replicas = u32::try_from(1 + numbers.below(4)).expect("small");
    group.min_member = 0;
    group.topology = None;
    group.template = Template {
        demand: Demand {
            requests: resources(numbers.pick(&[500, 1_000, 1_000, 2_000]), 1),
            devices: Vec::new(),
            host_ports: Vec::new(),
            zones: None,
        },
        ..Template::default()
    };
    (spec.affinity, spec.topology) = Default::default();
    spec.labels.remove(APP);
    spec.class = WorkloadClass::Batch;
    if spec.restart_policy == RestartPolicy::Always {
        spec.restart_policy = RestartPolicy::Never;
    }
    spec.min_member = 1;
    spec.pool = Pool::Guaranteed;
    spec.priority = numbers.draw(&[(8, 0), (1, 10), (1, 2_000_000)]);
    spec.priority_class = String::new();
    spec.scheduling_timeout_ms = 0;
    spec.active_deadline_ms = 0;
    spec
}

fn group(name: &str, replicas: u32, numbers: &mut Numbers) -> TaskGroup {
    let cpu = numbers.draw(&[(4, 1_000), (3, 2_000), (2, 500), (2, 3_000), (1, 4_000)]);
    let gpus = numbers.chance(20).then(|| {
        let count = u32::try_from(1 + numbers.below(2)).expect("small");
        let milli = if count > 1 { 1_000 } else { numbers.pick(&[300, 600, 1_000]) };
        let models = if numbers.chance(30) { vec!["A".to_owned()] } else { Vec::new() };
        DeviceRequest { kind: "gpu".to_owned(), count, milli, models, terms: None }
    });
    // Who wants two whole GPUs, or the smallest share of one, wants a share of a network card as well.
    let with_nic = gpus.as_ref().is_some_and(|gpus| gpus.count > 1 || gpus.milli == 300);
    let nic = with_nic.then(|| DeviceRequest {
        kind: "nic".to_owned(),
        count: 1,
        milli: 400,
        models: Vec::new(),
        terms: None,
    });
    let mut template = Template {
        demand: Demand {
            requests: resources(cpu, numbers.pick(&[1, 1, 4])),
            devices: gpus.into_iter().chain(nic).collect(),
            host_ports: Vec::new(),
            zones: None,
        },
        run: RunSpec::default(),
        ..Template::default()
    };
    if numbers.chance(15) {
        template.node_selector.insert(ZONE.to_owned(), numbers.pick(&["z0", "z1"]).to_owned());
    }
    // As if it had not been drawn: the rest is the same for all, with conditions or without.
    let mut apart = numbers.clone();
    apart.below(2);
    if apart.chance(14) {
        let conditions = apart.pick(&["zone != z0", "zone in (z0, z1)", "!zone", "zone"]);
        template.node_affinity.required.extend(parse(conditions));
    }
    if apart.chance(10) {
        template.demand.host_ports.push(apart.pick(&[
            HostPort { port: 80, protocol: Protocol::Tcp },
            HostPort { port: 53, protocol: Protocol::Udp },
        ]));
    }
    if apart.chance(15) {
        let policy = apart.draw(&[
            (4, ZonePolicy::SingleZone),
            (2, ZonePolicy::Restricted),
            (1, ZonePolicy::BestEffort),
            (1, ZonePolicy::Exclusive),
        ]);
        let is_dedicated = cpu % 1_000 == 0 && apart.chance(30);
        let cpu_mode = if is_dedicated { CpuMode::Dedicated } else { CpuMode::Shared };
        template.demand.zones = Some(ZoneRequest { policy, cpu_mode });
    }
    if apart.chance(8) {
        template.max_load = MaxLoad { cpu: Some(60), memory: None };
    }
    if numbers.chance(30) {
        template.tolerations.push(Toleration {
            key: TAINT.to_owned(),
            value: None,
            effect: None,
            tolerated_s: None,
        });
    }
    godel_testkit::group(name, replicas, template)
}

/// An administrator's record of a node.
pub(super) fn node(id: u32) -> NodeSpec {
    NodeSpec {
        id: NodeId(id),
        name: format!("n{id}"),
        uid: format!("node-{id}"),
        labels: [(ZONE.to_owned(), format!("z{}", id % 2))].into(),
        ..NodeSpec::default()
    }
}

/// The taint that some units accept.
pub(super) fn taint() -> Taint {
    Taint { key: TAINT.to_owned(), value: String::new(), effect: TaintEffect::NoSchedule, added_ms: 0 }
}

/// Devices that a node's agent finds.
pub(super) fn devices(id: u32, numbers: &mut Numbers) -> Vec<Device> {
    let n_devices = numbers.below(3);
    let model = if id.is_multiple_of(2) { "A" } else { "B" };
    let device = Device { kind: "gpu".to_owned(), model: model.to_owned(), numa_zone: 0, details: None };
    let nic = Device { kind: "nic".to_owned(), ..device.clone() };
    // The card comes first: no device becomes one of another kind where the node has more or fewer GPUs.
    (n_devices > 0).then_some(nic).into_iter().chain((0..n_devices).map(|_| device.clone())).collect()
}

/// What a node's agent finds.
pub(super) fn report(id: u32, numbers: &mut Numbers) -> NodeReport {
    let mut devices = devices(id, numbers);
    let cpu = numbers.pick(&[2_000, 4_000, 4_000, 6_000]);
    // As if it had not been drawn: the rest is the same for all, with zones or without.
    let mut apart = numbers.clone();
    apart.below(2);
    let zones = if apart.chance(60) { two_zones(cpu) } else { Vec::new() };
    if !zones.is_empty() {
        for (at, device) in (0u32..).zip(&mut devices) {
            device.numa_zone = 1 + at % 2;
        }
    }
    NodeReport {
        id: NodeId(id),
        capacity: resources(cpu, 10),
        devices,
        zones,
        ready: true,
        ..NodeReport::default()
    }
}

/// A socket with two zones, each of which has half of the cores.
fn two_zones(cpu: i64) -> Vec<Zone> {
    let n_cpus = u32::try_from(cpu / 2_000).expect("small");
    let zone = |at: u32| Zone {
        kind: "numa".to_owned(),
        parent: Some(0),
        capacity: resources(cpu / 2, 5),
        cpus: (at * n_cpus..(at + 1) * n_cpus).collect(),
        threads_per_core: 1,
    };
    let socket = Zone { kind: "socket".to_owned(), ..Zone::default() };
    vec![socket, zone(0), zone(1)]
}

/// A queue's record.
pub(super) fn queue(path: &str, numbers: &mut Numbers) -> Arc<QueueSpec> {
    let mut spec = QueueSpec::new(path);
    if numbers.chance(75) {
        spec.max.insert(CPU.to_owned(), numbers.pick(&[0, 2_000, 3_000, 4_000, 6_000]));
    }
    if numbers.chance(15) {
        spec.max.insert("gpu".to_owned(), numbers.pick(&[0, 600, 1_000, 2_000]));
    }
    if numbers.chance(15) {
        spec.max_running_units = u32::try_from(1 + numbers.below(4)).expect("small");
    }
    if numbers.chance(25) {
        spec.min.insert(CPU.to_owned(), numbers.pick(&[1_000, 2_000, 3_000]));
    }
    spec.weight = u32::try_from(1 + numbers.below(3)).expect("small");
    spec.policy = numbers.pick(&QueuePolicy::ALL);
    // As if it had not been drawn: the rest is the same with these limits and without.
    let mut apart = numbers.clone();
    apart.below(7);
    if apart.chance(25) {
        spec.max_per_owner.insert(CPU.to_owned(), apart.pick(&[0, 1_000, 2_000, 4_000]));
    }
    if !spec.max.is_empty() && apart.chance(60) {
        spec.am_share_milli = apart.pick(&[1, 300, 500, 1_000]);
    }
    Arc::new(spec)
}

/// A queue's record without maxima.
pub(super) fn open_queue(path: &str, numbers: &mut Numbers) -> Arc<QueueSpec> {
    let mut spec = QueueSpec::new(path);
    if numbers.chance(30) {
        spec.min.insert(CPU.to_owned(), numbers.pick(&[1_000, 2_000, 3_000]));
    }
    spec.weight = u32::try_from(1 + numbers.below(6)).expect("small");
    spec.policy = numbers.pick(&QueuePolicy::ALL);
    Arc::new(spec)
}

/// Labels of those who own the reservations.
fn owner() -> BTreeMap<String, String> {
    [("app".to_owned(), "kept".to_owned())].into()
}

/// A reservation's record.
pub(super) fn reservation(name: &str, now_ms: i64, numbers: &mut Numbers) -> Arc<ReservationSpec> {
    let gpu =
        DeviceRequest { kind: "gpu".to_owned(), count: 1, milli: 1_000, models: Vec::new(), terms: None };
    let cpu = numbers.pick(&[1_000, 2_000, 3_000]);
    let devices = numbers.chance(15).then_some(gpu);
    let zone = numbers.chance(20).then(|| (ZONE.to_owned(), numbers.pick(&["z0", "z1"]).to_owned()));
    // As if it had not been drawn: the rest is the same, with zones or without.
    let mut apart = numbers.clone();
    apart.below(13);
    let zones = apart.chance(30).then(|| ZoneRequest {
        policy: apart.pick(&[ZonePolicy::SingleZone, ZonePolicy::Restricted, ZonePolicy::Exclusive]),
        cpu_mode: if apart.chance(30) { CpuMode::Dedicated } else { CpuMode::Shared },
    });
    Arc::new(ReservationSpec {
        name: name.to_owned(),
        namespace: "default".to_owned(),
        selector: owner(),
        slots: u32::try_from(numbers.below(4)).expect("small"),
        demand: Demand {
            requests: resources(cpu, 4),
            devices: devices.into_iter().collect(),
            host_ports: Vec::new(),
            zones,
        },
        node_selector: zone.into_iter().collect(),
        expires_ms: numbers.chance(30).then(|| now_ms + i64::try_from(numbers.below(2_000)).expect("small")),
        description: String::new(),
    })
}

/// The priority class.
pub(super) fn class(numbers: &mut Numbers) -> PriorityClass {
    PriorityClass {
        name: CLASS.to_owned(),
        value: numbers.pick(&[-5, 7, 50, 1_000_001]),
        preemptible: numbers.chance(70),
        description: String::new(),
    }
}
