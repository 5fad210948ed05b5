//! What each kind takes for a replica, and that nothing of it is left once the replica is forgotten.

use std::sync::Arc;

use godel_base::{
    ids::{NodeId, Revision, RunningUnitId, UnitId},
    resources::CPU,
};
use godel_domain::{
    demand::{Demand, Pool},
    node::{Device, NodeReport},
    running_units::{Bind, Phase, RunChange, Statuses},
    unit_affinity::{NODE, UnitAffinity, UnitTerm},
    unit_topology::UnitTopology,
    work_kind::WorkKind,
    zone::{CpuMode, ZonePolicy, ZoneRequest},
};
use godel_rules::budget::{UnitIdentity, WantedOrdinals};
use godel_testkit::{BuildDemand as _, node};

use super::RESERVES;
use crate::{AffinityTerms, Cluster, TrialMark};

const ON: NodeId = NodeId(1);
const UNIT: UnitId = UnitId(1);

/// A node of 16 CPUs in four zones with two GPUs, on which running units are counted in every way.
fn cluster() -> Cluster {
    let of = node(1).memory(64).zones(2, 2, 2, 2);
    let mut cluster = Cluster::new();
    cluster.taken_mut().work.begin();
    cluster.nodes_mut().put_spec(of.spec, Revision(1));
    let gpu = |_| Device { kind: "gpu".to_owned(), model: "A10".to_owned(), numa_zone: 0, details: None };
    cluster
        .nodes_mut()
        .put_report(NodeReport { devices: (0..2).map(gpu).collect(), ..of.report }, Revision(1));
    let apart = UnitTerm { units: Vec::new(), topology: NODE.to_owned(), weight: 0 };
    let affinity = UnitAffinity { apart: vec![apart], ..UnitAffinity::default() };
    let identity = UnitIdentity::new("default", "u", [].into_iter());
    let topology = UnitTopology::default();
    let (groups, templates) = (&[], Vec::new());
    let terms =
        AffinityTerms { affinity: &affinity, topology: &topology, groups, templates, pool: Pool::Guaranteed };
    cluster.units_mut().put_terms(UNIT, &identity, &terms);
    cluster.units_mut().offer(UNIT, &identity, WantedOrdinals::default);
    cluster.units_mut().put_work(UNIT, WorkKind::Batch);
    cluster.taken_mut().put_daemon(UNIT);
    cluster.units_mut().count(UNIT);
    cluster
}

/// A replica that takes something of every kind.
fn everything() -> Demand {
    let zones = ZoneRequest { policy: ZonePolicy::SingleZone, cpu_mode: CpuMode::Dedicated };
    let mut demand = godel_testkit::demand(2_000).gpus(1, 500, &[]);
    demand.zones = Some(zones);
    demand.host_ports = vec!["80/tcp".parse().unwrap()];
    demand
}

/// What a kind shows of the node.
fn shown(name: &str, cluster: &mut Cluster, demand: &Demand) -> String {
    let idx = ON.idx();
    let shape = cluster.shape(demand, Pool::Guaranteed);
    match name {
        "replicas-by-node" => cluster.taken().counts.of(idx).to_string(),
        "replicas-by-domain" => {
            let rules = cluster.domains().rules_of(UNIT).unwrap();
            cluster.domains().is_admitted(&rules, idx).to_string()
        }
        "kinds-of-work" => format!("{:?}", cluster.taken().work.of(idx)),
        "daemon-reach" => {
            cluster.taken().daemons.is_on(cluster.taken().daemons.find(UNIT).unwrap(), idx).to_string()
        }
        "requested-resources" => cluster.free().node_state(ON).unwrap().0.get(CPU).to_string(),
        "given-devices" => format!("{:?}", cluster.free().node_state(ON).unwrap().1),
        "given-zones" => {
            let next = Demand { host_ports: Vec::new(), ..everything() };
            let next = cluster.shape(&next, Pool::Guaranteed);
            format!("the next one is given {:?}", cluster.free().pick(next, ON).unwrap().zones)
        }
        "default-requests" => format!("{:?}", cluster.free().nominal(idx)),
        "requested-ports" => cluster.free().taken_port(shape, idx).is_none().to_string(),
        other => panic!("say here what {other} shows"),
    }
}

#[test]
fn every_kind_takes_its_own_and_gives_all_of_it_back() {
    // A replica that asks for no memory counts in scores with more than it takes.
    let demands = [everything(), godel_testkit::demand(1_000)];
    let concerned: [&[&str]; 2] = [
        &RESERVES.map(|kind| kind.name),
        &[
            "replicas-by-node",
            "replicas-by-domain",
            "kinds-of-work",
            "daemon-reach",
            "requested-resources",
            "default-requests",
        ],
    ];
    for (demand, concerned) in demands.iter().zip(concerned) {
        let mut cluster = cluster();
        let shape = cluster.shape(demand, Pool::Guaranteed);
        let given = cluster.free().pick(shape, ON).unwrap();
        let id = RunningUnitId::new(UNIT, 0, 0);
        let all = |cluster: &mut Cluster| RESERVES.map(|kind| shown(kind.name, cluster, demand));
        let before = all(&mut cluster);
        for is_trial in [true, false] {
            match is_trial {
                true => cluster.try_out(id, shape, ON, given),
                false => cluster.assume(id, shape, ON, given),
            }
            for ((kind, before), after) in RESERVES.iter().zip(&before).zip(all(&mut cluster)) {
                assert_eq!(
                    *before != after,
                    concerned.contains(&kind.name),
                    "{}: {before}, {after}",
                    kind.name
                );
            }
            match is_trial {
                true => cluster.take_back(TrialMark::default()),
                false => cluster.forget(id),
            }
            assert_eq!(all(&mut cluster), before, "{demand:?}");
        }
    }
}

#[test]
fn a_binding_takes_the_place_of_its_assumption() {
    let demand = everything();
    let mut cluster = cluster();
    let shape = cluster.shape(&demand, Pool::Guaranteed);
    let given = cluster.free().pick(shape, ON).unwrap();
    let all = |cluster: &mut Cluster| RESERVES.map(|kind| shown(kind.name, cluster, &demand));
    let before = all(&mut cluster);
    cluster.assume(RunningUnitId::new(UNIT, 0, 0), shape, ON, given);
    let taken = all(&mut cluster);
    let bind = Bind {
        demand: Arc::new(demand.clone()),
        ordinals: vec![0],
        nodes: vec![ON],
        devices: vec![given.devices],
        zones: vec![given.zones],
        ..Bind::default()
    };
    cluster.apply_rows(UNIT, &RunChange::Bind(bind), Revision(2), 1);
    assert_eq!(all(&mut cluster), taken);
    let ended = Statuses { ordinals: vec![0], phases: vec![Phase::Succeeded], ..Statuses::default() };
    cluster.apply_rows(UNIT, &RunChange::Statuses(ended), Revision(3), 2);
    assert_eq!(all(&mut cluster), before);
}
