//! Operations and transactions as writers send them.

use bytes::Bytes;
use godel_proto::{raw, v1};

pub(super) fn op(op: v1::op::Op) -> Bytes {
    raw::encode_op(op)
}

pub(super) fn put_unit(id: u64) -> Bytes {
    let spec = Some(v1::UnitSpec { min_member: Some(1), ..Default::default() });
    op(v1::op::Op::PutUnit(v1::UnitRecord { unit_id: id, spec, ..Default::default() }))
}

pub(super) fn put_task_group(unit_id: u64, task_group: u32) -> Bytes {
    let group = Some(v1::TaskGroup { name: format!("g{task_group}"), ..Default::default() });
    op(v1::op::Op::PutTaskGroup(v1::TaskGroupRecord { unit_id, task_group, group, ordinals: None }))
}

pub(super) fn put_node(id: u32) -> Bytes {
    op(v1::op::Op::PutNodeSpec(v1::NodeSpec { node_id: id, ..Default::default() }))
}

pub(super) fn put_report(id: u32) -> Bytes {
    op(v1::op::Op::PutNodeReport(v1::NodeReport { node_id: id, ready: true, ..Default::default() }))
}

pub(super) fn put_allocatable(id: u32) -> Bytes {
    op(v1::op::Op::PutNodeAllocatable(v1::NodeAllocatable { node_id: id, ..Default::default() }))
}

pub(super) fn put_block(block_id: u32, slot: u32) -> Bytes {
    op(v1::op::Op::PutPartitionBlock(v1::PartitionBlock { block_id, slots: vec![slot; 64] }))
}

pub(super) fn put_partition(generation: u64) -> Bytes {
    op(v1::op::Op::PutPartition(v1::Partition { name: "default".into(), generation, ..Default::default() }))
}

pub(super) fn put_queue(name: &str, weight: u32) -> Bytes {
    let meta = Some(v1::ObjectMeta { name: name.into(), ..Default::default() });
    op(v1::op::Op::PutQueue(v1::Queue { meta, weight: Some(weight), ..Default::default() }))
}

pub(super) fn put_class(name: &str, value: i32) -> Bytes {
    op(v1::op::Op::PutPriorityClass(v1::PriorityClass { name: name.into(), value, ..Default::default() }))
}

pub(super) fn put_lease(lease: &str, holder: &str, epoch: u64) -> Bytes {
    op(v1::op::Op::PutLease(v1::LeaseRecord {
        lease: lease.into(),
        holder: holder.into(),
        epoch,
        ..Default::default()
    }))
}

pub(super) fn delete(kind: v1::Kind, id: u64) -> Bytes {
    let key = Some(v1::Key { id, name: String::new() });
    op(v1::op::Op::Delete(v1::Delete { kind: kind.into(), key }))
}

pub(super) fn delete_named(kind: v1::Kind, name: &str) -> Bytes {
    let key = Some(v1::Key { id: 0, name: name.into() });
    op(v1::op::Op::Delete(v1::Delete { kind: kind.into(), key }))
}

pub(super) fn bind(unit_id: u64, ordinals: &[u32], incarnation: u32, node: u32) -> Bytes {
    op(v1::op::Op::Bind(v1::Binding {
        unit_id,
        ordinals: ordinals.to_vec(),
        incarnations: vec![incarnation; ordinals.len()],
        node_ids: vec![node; ordinals.len()],
        ..Default::default()
    }))
}

pub(super) fn evict(unit_id: u64, ordinal: u32, incarnation: u32) -> Bytes {
    op(v1::op::Op::Evict(v1::Eviction {
        unit_id,
        ordinals: vec![ordinal],
        incarnations: vec![incarnation],
        reason: v1::EvictionReason::Drained.into(),
        by: "test".into(),
        preemptor_id: 0,
    }))
}

pub(super) fn status(unit_id: u64, ordinal: u32, incarnation: u32, phase: v1::RunPhase) -> Bytes {
    op(v1::op::Op::RunStatus(v1::RunStatuses {
        unit_id,
        ordinals: vec![ordinal],
        incarnations: vec![incarnation],
        phases: vec![phase.into()],
        ..Default::default()
    }))
}

pub(super) fn requeue(unit_id: u64, ordinal: u32, incarnation: u32) -> Bytes {
    let (ordinals, incarnations) = (vec![ordinal], vec![incarnation]);
    op(v1::op::Op::Requeue(v1::Requeue { unit_id, ordinals, incarnations, anew: false }))
}

pub(super) fn internal(ops: Vec<Bytes>) -> raw::TxnRequest {
    raw::TxnRequest { ops, ..raw::TxnRequest::default() }
}

pub(super) fn leased(lease: &str, epoch: u64, sequence: u64, ops: Vec<Bytes>) -> raw::TxnRequest {
    let writer = Some(v1::Writer { lease: lease.into(), epoch, sequence });
    raw::TxnRequest { writer, ops, ..raw::TxnRequest::default() }
}

/// Replicas of incarnation 0 are compacted.
pub(super) fn compact(unit_id: u64, ordinals: &[u32]) -> Bytes {
    op(v1::op::Op::Compact(v1::Compaction { unit_id, ordinals: ordinals.to_vec(), ..Default::default() }))
}

/// Terms of what is bound of a unit: those of a queue.
pub(super) fn terms(unit_id: u64, queue: &str) -> Bytes {
    let standing = Some(v1::Standing { queue: queue.into(), ..Default::default() });
    op(v1::op::Op::ChangeTerms(v1::TermsChange { unit_id, standing, group_minima: Vec::new() }))
}

/// What the keeper of identities alone writes.
pub(super) const IDENTITIES: [&str; 9] = [
    "trust roots",
    "sealed signer",
    "identity",
    "join token",
    "principal",
    "token of a person",
    "delete identity",
    "delete join token",
    "delete sealed signer",
];

pub(super) fn put_change(change_id: u64) -> Bytes {
    op(v1::op::Op::PutChange(v1::ChangeRecord { change_id, ..change("ann") }))
}

/// A line of the change log for what a principal has done.
pub(super) fn change(principal: &str) -> v1::ChangeRecord {
    let call = v1::CallCause { principal: principal.into(), method: "/m".into(), ..Default::default() };
    v1::ChangeRecord { call: Some(call), calls: 1, ..Default::default() }
}

pub(super) fn put_trust_roots() -> Bytes {
    let (name, cluster) = ("default".to_owned(), "godel-1".to_owned());
    op(v1::op::Op::PutTrustRoots(v1::TrustRoots { name, cluster, ..Default::default() }))
}

pub(super) fn put_signer() -> Bytes {
    let (name, sealed) = ("default".to_owned(), vec![7; 32]);
    op(v1::op::Op::PutSealedSigner(v1::SealedSigner { name, sealed, ..Default::default() }))
}

pub(super) fn put_identity(identity: &str) -> Bytes {
    op(v1::op::Op::PutIdentity(v1::IdentityRecord { identity: identity.into(), ..Default::default() }))
}

pub(super) fn put_join_token(token_id: &str) -> Bytes {
    op(v1::op::Op::PutJoinToken(v1::JoinToken { token_id: token_id.into(), ..Default::default() }))
}

pub(super) fn put_principal(name: &str) -> Bytes {
    op(v1::op::Op::PutPrincipal(v1::Principal { name: name.into(), ..Default::default() }))
}

pub(super) fn put_person_token(token_id: &str) -> Bytes {
    op(v1::op::Op::PutPersonToken(v1::PersonToken { token_id: token_id.into(), ..Default::default() }))
}
