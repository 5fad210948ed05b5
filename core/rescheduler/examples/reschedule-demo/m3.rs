//! The microservice cluster in `data/m3`: services, their containers, machines and the traffic between services.

use std::{collections::BTreeMap, path::Path};

use godel_base::{
    ids::{NodeId, RunningUnitId, UnitId},
    resources::{CPU, MEMORY, Resources},
};
use godel_core_rescheduler::{ClusterSnapshot, NodeFacts, RunningFacts, TrafficShare, UnitFacts};
use godel_domain::{demand::Demand, unit::WorkloadClass};
use serde_json::Value;

/// Machines of one rack, by name order.
const N_PER_RACK: usize = 16;
/// Shares of the cluster are written as parts of this.
const SCALE: f64 = 1e12;

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

fn amount(value: &Value, key: &str) -> i64 {
    format!("{:.0}", value[key].as_f64().unwrap_or(0.0) * SCALE).parse().unwrap_or(0)
}

fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn index(at: usize) -> u32 {
    u32::try_from(at + 1).unwrap_or(u32::MAX)
}

/// Reads the cluster as it is.
pub(crate) fn read(path: &Path) -> anyhow::Result<ClusterSnapshot> {
    let data: Value = serde_json::from_slice(&std::fs::read(path)?)?;
    let mut nodes = Vec::new();
    let mut node_of: BTreeMap<&str, NodeId> = BTreeMap::new();
    for (at, machine) in list(&data, "MachineList").iter().enumerate() {
        let id = NodeId(index(at));
        let capacity = [(CPU, amount(machine, "TotalCPU")), (MEMORY, amount(machine, "TotalMem"))];
        let capacity = Resources::new(capacity).unwrap_or_default();
        let mut node = NodeFacts::new(id, format!("machine-{at:03}"), capacity);
        node.labels.insert("rack".to_owned(), format!("rack-{}", at / N_PER_RACK));
        nodes.push(node);
        let containers = list(machine, "InitialDeployingContainers").iter();
        node_of.extend(containers.filter_map(Value::as_str).map(|name| (name, id)));
    }
    let (mut units, mut running, mut ids) = (Vec::new(), Vec::new(), BTreeMap::new());
    for (at, service) in list(&data, "ServiceList").iter().enumerate() {
        let id = UnitId(u64::from(index(at)));
        ids.insert(text(service, "Service"), id);
        units.push(UnitFacts::new(id, text(service, "Service"), WorkloadClass::Service, 1));
        let requests = [(CPU, amount(service, "RequestCPU")), (MEMORY, amount(service, "RequestMem"))];
        let requests = Resources::new(requests).unwrap_or_default();
        let names = list(service, "ContainerList").iter().filter_map(Value::as_str);
        for (ordinal, node) in (0..).zip(names.filter_map(|name| node_of.get(name))) {
            let demand = Demand { requests: requests.clone(), ..Demand::default() };
            running.push(RunningFacts::new(RunningUnitId::new(id, ordinal, 0), *node, demand));
        }
    }
    let traffic = list(&data, "TrafficList").iter().filter_map(|pair| {
        Some(TrafficShare {
            between: (*ids.get(&text(pair, "Service1"))?, *ids.get(&text(pair, "Service2"))?),
            weight: pair["Traffic"].as_f64()?,
        })
    });
    let traffic = traffic.collect();
    Ok(ClusterSnapshot { nodes, units, running, traffic, ..ClusterSnapshot::default() })
}
