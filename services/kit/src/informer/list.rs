//! Pages of a list with encoded records: one that does not decode costs no other.

use bytes::Bytes;
use godel_domain::records::RecordKind;
use godel_proto::v1;
use http::uri::PathAndQuery;
use tonic::{GrpcMethod, Request, Status, client::Grpc};
use tonic_prost::ProstCodec;

use crate::{client::Channel, message::RECEIVED_BYTES_MAX};

/// `godel.v1.ListRecordsResponse` with encoded records.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListPage {
    /// Encoded `godel.v1.Record`s: see [`super::read_page`].
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub records: Vec<Bytes>,
    /// For the next call; empty: this was the last page.
    #[prost(string, tag = "2")]
    pub next_page_token: String,
    /// Store revision of the first page.
    #[prost(uint64, tag = "3")]
    pub revision: u64,
    /// The store that was listed.
    #[prost(uint64, tag = "4")]
    pub store_id: u64,
}

/// Returns the numbers of kinds for a request. A unit is made of all of its records: its task groups come before it.
pub(super) fn numbers(kinds: &[RecordKind]) -> Vec<i32> {
    let of = |kind: &RecordKind| match kind {
        RecordKind::Unit => vec![RecordKind::TaskGroup as i32, RecordKind::Unit as i32],
        kind => vec![*kind as i32],
    };
    kinds.iter().flat_map(of).collect()
}

/// One call of `ListRecords`, of which no record is decoded.
///
/// # Errors
/// As of the call.
pub async fn page(state: Channel, request: v1::ListRecordsRequest) -> Result<ListPage, Status> {
    let path = PathAndQuery::from_static("/godel.v1.StateService/ListRecords");
    let mut grpc = Grpc::new(state).max_decoding_message_size(RECEIVED_BYTES_MAX);
    grpc.ready().await.map_err(|error| Status::unavailable(format!("the store is not ready: {error}")))?;
    let mut request = Request::new(request);
    request.extensions_mut().insert(GrpcMethod::new("godel.v1.StateService", "ListRecords"));
    let codec = ProstCodec::<v1::ListRecordsRequest, ListPage>::default();
    Ok(grpc.unary(request, path, codec).await?.into_inner())
}
