//! The transactions that are sent: nodes and leases first, then units, placements, reports.

use bytes::Bytes;
use godel_base::ids::{NodeId, Revision, UnitId};
use godel_proto::{raw, v1};
use godel_store::{Committed, Role};
use godel_wire::to_proto;

use super::{Made, revisions};

const N_NODES: u32 = 10_000;
/// Nodes registered in one transaction.
const N_NODES_A_TXN: u32 = 500;
/// Most transactions of placements made ahead: 60 KiB each.
const N_BINDS_MAX: usize = 1_000;
/// Prime, and thus without a common divisor with the number of nodes: placements are all over the cluster.
const STRIDE: u64 = 7_919;
const DISPATCHER: &str = "dispatcher";
const BINDER: &str = "binder";

/// Makes transactions that the store accepts.
#[derive(Default)]
pub(super) struct Txns {
    sequence: u64,
    last_unit: u64,
    /// Units up to this one were taken.
    last_taken: u64,
    /// What a binder has read up to: the last unit that was taken.
    read: Revision,
}

/// A unit as written.
pub(super) struct Written {
    unit: UnitId,
    revision: Revision,
}

impl Txns {
    /// Leases, then nodes.
    pub(super) fn set_up(&self) -> Vec<Made> {
        let lease = |name: &str| {
            let record = v1::LeaseRecord {
                lease: name.to_owned(),
                holder: "bench".to_owned(),
                epoch: 1,
                ttl_ms: 1_000_000,
                ..v1::LeaseRecord::default()
            };
            raw::encode_op(v1::op::Op::PutLease(record))
        };
        let leases =
            Made { txn: unleased(vec![lease(DISPATCHER), lease(BINDER)]), role: Role::State, n_ops: 0 };
        let nodes = (0..N_NODES / N_NODES_A_TXN).map(|batch| {
            let ids = batch * N_NODES_A_TXN + 1..=(batch + 1) * N_NODES_A_TXN;
            let ops = ids.flat_map(|id| [put_node(id), put_report(id)]).collect();
            Made { txn: unleased(ops), role: Role::Agent, n_ops: u64::from(N_NODES_A_TXN) }
        });
        std::iter::once(leases).chain(nodes).collect()
    }

    /// So many units of so many replicas in one transaction.
    pub(super) fn put_units(&mut self, n_units: u32, replicas: u32) -> Made {
        let ids = self.last_unit + 1..=self.last_unit + u64::from(n_units);
        self.last_unit = *ids.end();
        let ops = ids.map(|id| raw::encode_op(v1::op::Op::PutUnit(unit(id, replicas)))).collect();
        Made { txn: self.leased(DISPATCHER, Vec::new(), ops), role: Role::Leased, n_ops: u64::from(n_units) }
    }

    /// The units of the answers to [`Self::put_units`] since the last call.
    pub(super) fn take_units(&mut self, committed: &[(Committed, u64)]) -> Vec<Written> {
        let all = committed.iter().flat_map(|(committed, n_ops)| revisions(*committed, *n_ops));
        let written = (self.last_taken + 1..).zip(all);
        let written: Vec<Written> =
            written.map(|(id, revision)| Written { unit: UnitId(id), revision }).collect();
        self.last_taken = self.last_unit;
        self.read = written.iter().map(|unit| unit.revision).max().unwrap_or(self.read);
        written
    }

    /// The placements of `n_units` units of `replicas` in each transaction, with the preconditions that the binder
    /// sets.
    pub(super) fn bind(&mut self, units: &[Written], n_units: usize, replicas: u32) -> Vec<Made> {
        units.chunks(n_units).take(N_BINDS_MAX).map(|some| self.bind_some(some, replicas)).collect()
    }

    fn bind_some(&mut self, units: &[Written], replicas: u32) -> Made {
        let mut preconditions = Vec::new();
        let mut ops = Vec::new();
        for Written { unit, revision } in units {
            preconditions.push(to_proto::precondition(v1::Kind::Unit, unit.0, *revision));
            let of = |ordinal: u32| node_of(unit.0 * u64::from(replicas) + u64::from(ordinal));
            let nodes: Vec<NodeId> = (0..replicas).map(of).collect();
            ops.push(raw::encode_op(v1::op::Op::Bind(v1::Binding {
                unit_id: unit.0,
                demand: Some(unit_demand()),
                pool: v1::Pool::Guaranteed.into(),
                ordinals: (0..replicas).collect(),
                node_ids: nodes.iter().map(|node| node.0).collect(),
                ..v1::Binding::default()
            })));
        }
        let nodes_as_of = self.read.0;
        let n_ops = units.len() as u64 * u64::from(replicas);
        let txn = raw::TxnRequest { nodes_as_of, ..self.leased(BINDER, preconditions, ops) };
        Made { txn, role: Role::Leased, n_ops }
    }

    /// Reports of one node after the other, for one of many clients.
    pub(super) fn reports(&self, client: u32) -> impl FnMut() -> Made + Send + use<> {
        let mut node = client;
        move || {
            node = (node + super::N_CLIENTS) % N_NODES;
            Made { txn: unleased(vec![put_report(node + 1)]), role: Role::Agent, n_ops: 1 }
        }
    }

    fn leased(
        &mut self,
        lease: &str,
        preconditions: Vec<v1::Precondition>,
        ops: Vec<Bytes>,
    ) -> raw::TxnRequest {
        self.sequence += 1;
        let writer = Some(v1::Writer { lease: lease.to_owned(), epoch: 1, sequence: self.sequence });
        raw::TxnRequest { writer, preconditions, ops, ..raw::TxnRequest::default() }
    }
}

fn node_of(running: u64) -> NodeId {
    NodeId(u32::try_from(running * STRIDE % u64::from(N_NODES) + 1).unwrap_or(1))
}

fn unleased(ops: Vec<Bytes>) -> raw::TxnRequest {
    raw::TxnRequest { ops, ..raw::TxnRequest::default() }
}

fn put_node(id: u32) -> Bytes {
    let meta = v1::ObjectMeta { name: format!("node-{id:05}"), ..v1::ObjectMeta::default() };
    raw::encode_op(v1::op::Op::PutNodeSpec(v1::NodeSpec {
        node_id: id,
        meta: Some(meta),
        ..v1::NodeSpec::default()
    }))
}

fn put_report(id: u32) -> Bytes {
    let capacity = Some(amounts(100_000, 400 << 30));
    let report = v1::NodeReport { node_id: id, capacity, ready: true, ..v1::NodeReport::default() };
    raw::encode_op(v1::op::Op::PutNodeReport(report))
}

fn unit(id: u64, replicas: u32) -> v1::UnitRecord {
    let template = v1::Template { demand: Some(unit_demand()), ..v1::Template::default() };
    let group = v1::TaskGroup {
        name: "main".to_owned(),
        replicas,
        template: Some(template),
        ..v1::TaskGroup::default()
    };
    let spec = v1::UnitSpec {
        meta: Some(v1::ObjectMeta {
            namespace: "default".to_owned(),
            name: format!("unit-{id}"),
            uid: format!("0190163d-8694-739b-aea5-{id:012x}"),
            ..v1::ObjectMeta::default()
        }),
        workload_class: v1::WorkloadClass::Service.into(),
        task_groups: vec![group],
        min_member: Some(1),
        queue: "default".to_owned(),
        ..v1::UnitSpec::default()
    };
    let ranges = vec![v1::OrdinalRange { start: 0, end: replicas }];
    let status = v1::UnitStatus { ordinals: vec![v1::OrdinalRanges { ranges }], ..v1::UnitStatus::default() };
    v1::UnitRecord { unit_id: id, spec: Some(spec), status: Some(status) }
}

fn unit_demand() -> v1::Demand {
    v1::Demand {
        requests: Some(amounts(500, 1 << 30)),
        devices: Vec::new(),
        host_ports: Vec::new(),
        zones: None,
    }
}

fn amounts(cpu_milli: i64, memory: i64) -> v1::Resources {
    use godel_base::resources::{CPU, MEMORY};
    let amounts = [(CPU.to_owned(), cpu_milli), (MEMORY.to_owned(), memory)].into_iter().collect();
    v1::Resources { amounts }
}
