//! Conversion of requests and answers to and from the messages of etcd.

use bytes::Bytes;

use crate::kv::{Compare, Entry, Header, Op, Page, RangeRequest, Sizes, TxnReply, TxnRequest};

/// Messages and clients of etcd, generated from its `.proto` files.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    clippy::enum_variant_names,
    reason = "generated from etcd's files"
)]
pub(crate) mod proto {
    /// Messages of keys and values.
    pub mod mvccpb {
        tonic::include_proto!("mvccpb");
    }
    /// Messages and clients of calls.
    pub mod etcdserverpb {
        tonic::include_proto!("etcdserverpb");
    }
}

use proto::{
    etcdserverpb::{
        self as pb,
        compare::{CompareResult, CompareTarget, TargetUnion},
        request_op, response_op,
    },
    mvccpb,
};

/// Converts a revision or a size, which etcd never sends negative.
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn header(header: Option<&pb::ResponseHeader>) -> Header {
    header.map_or_else(Header::default, |header| Header {
        cluster: header.cluster_id,
        revision: unsigned(header.revision),
    })
}

pub(crate) fn range_request(request: &RangeRequest) -> pb::RangeRequest {
    let RangeRequest { from, to, limit, keys_only } = request;
    pb::RangeRequest {
        key: from.clone(),
        range_end: to.clone(),
        limit: i64::from(*limit),
        keys_only: *keys_only,
        ..pb::RangeRequest::default()
    }
}

pub(crate) fn page(response: pb::RangeResponse) -> Page {
    Page {
        header: header(response.header.as_ref()),
        has_more: response.more,
        entries: response.kvs.into_iter().map(entry).collect(),
    }
}

fn entry(kv: mvccpb::KeyValue) -> Entry {
    Entry { key: kv.key, value: kv.value, create_revision: unsigned(kv.create_revision) }
}

pub(crate) fn txn_request(request: &TxnRequest) -> pb::TxnRequest {
    let TxnRequest { compares, ops, reads } = request;
    pb::TxnRequest {
        compare: compares.iter().map(compare).collect(),
        success: ops.iter().map(op).collect(),
        failure: reads.iter().map(read).collect(),
    }
}

fn compare(compare: &Compare) -> pb::Compare {
    let (key, result, target, union) = match compare {
        Compare::Absent(key) => {
            (key, CompareResult::Equal, CompareTarget::Create, TargetUnion::CreateRevision(0))
        }
        Compare::Present(key) => {
            (key, CompareResult::Greater, CompareTarget::Create, TargetUnion::CreateRevision(0))
        }
        Compare::CreatedAt(key, revision) => {
            let at = TargetUnion::CreateRevision(signed(*revision));
            (key, CompareResult::Equal, CompareTarget::Create, at)
        }
        Compare::Holds(key, value) => {
            (key, CompareResult::Equal, CompareTarget::Value, TargetUnion::Value(value.clone()))
        }
    };
    pb::Compare {
        result: result.into(),
        target: target.into(),
        key: key.clone(),
        range_end: Bytes::new(),
        target_union: Some(union),
    }
}

fn op(op: &Op) -> pb::RequestOp {
    let request = match op {
        Op::Put(key, value) => request_op::Request::RequestPut(pb::PutRequest {
            key: key.clone(),
            value: value.clone(),
            ..pb::PutRequest::default()
        }),
        Op::Delete(key) => request_op::Request::RequestDeleteRange(pb::DeleteRangeRequest {
            key: key.clone(),
            ..pb::DeleteRangeRequest::default()
        }),
        Op::DeleteRange(from, to) => request_op::Request::RequestDeleteRange(pb::DeleteRangeRequest {
            key: from.clone(),
            range_end: to.clone(),
            ..pb::DeleteRangeRequest::default()
        }),
    };
    pb::RequestOp { request: Some(request) }
}

fn read(key: &Bytes) -> pb::RequestOp {
    let request = pb::RangeRequest { key: key.clone(), ..pb::RangeRequest::default() };
    pb::RequestOp { request: Some(request_op::Request::RequestRange(request)) }
}

pub(crate) fn txn_reply(response: pb::TxnResponse) -> TxnReply {
    let pb::TxnResponse { header: from, succeeded, responses } = response;
    let found = |response: pb::ResponseOp| match response.response {
        Some(response_op::Response::ResponseRange(range)) => range.kvs.into_iter().next().map(entry),
        _ => None,
    };
    let reads = if succeeded { Vec::new() } else { responses.into_iter().map(found).collect() };
    TxnReply { header: header(from.as_ref()), succeeded, reads }
}

/// Name of the alarm for lack of space in the status of a member.
const NO_SPACE: &str = "NOSPACE";

pub(crate) fn sizes(response: &pb::StatusResponse) -> Sizes {
    let db_bytes = unsigned(response.db_size);
    Sizes {
        header: header(response.header.as_ref()),
        db_bytes,
        // Versions before 3.4 do not report it.
        in_use_bytes: if response.db_size_in_use > 0 { unsigned(response.db_size_in_use) } else { db_bytes },
        has_no_space: response.errors.iter().any(|error| error.contains(NO_SPACE)),
    }
}
