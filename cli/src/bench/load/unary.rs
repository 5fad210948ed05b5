//! Many clients of one call at a time, each with a connection of its own.
//!
//! The calls are gRPC as tonic makes it (the server cannot tell), but a client is one task that drives its
//! connection itself: on a machine that load and control plane share, what a client costs is missing there.

use std::{sync::Arc, time::Instant};

use bytes::{BufMut as _, Bytes, BytesMut};
use h2::client::SendRequest;
use http::{HeaderMap, HeaderValue, Method, Request, Uri, header};
use prost::Message as _;
use tokio::{net::TcpStream, task::JoinSet};
use tonic::Status;

use super::Load;
use crate::client::Client;

/// The server gives up after this.
const TIMEOUT: HeaderValue = HeaderValue::from_static("60S");

/// `godel.v1.SubmitUnitRequest` with an encoded unit.
#[derive(Clone, PartialEq, prost::Message)]
struct One {
    #[prost(bytes = "bytes", tag = "1")]
    unit: Bytes,
}

/// Submits every unit of `load` and waits until all are durable.
pub(super) async fn submit(
    load: Arc<Load>,
    client: &Client,
    n_clients: usize,
    epoch: Instant,
) -> Result<(), Status> {
    let leader = client.directory().leader("dispatcher").await?;
    let no_url = || Status::internal(format!("the leader's address `{}` is no URL", leader.address));
    let address: Uri = leader.address.parse().map_err(|_| no_url())?;
    let host = address.authority().ok_or_else(no_url)?.to_string();
    let path: Uri = format!("http://{host}/godel.v1.UnitService/SubmitUnit").parse().map_err(|_| no_url())?;
    let mut clients: JoinSet<Result<(), Status>> = JoinSet::new();
    for first in 0..n_clients {
        let (load, path, host) = (Arc::clone(&load), path.clone(), host.clone());
        clients.spawn(async move {
            let socket = TcpStream::connect(host).await?;
            socket.set_nodelay(true)?;
            let (mut calls, connection) = h2::client::handshake(socket).await.map_err(broken)?;
            let submitting = async {
                for idx in (first..load.len()).step_by(n_clients) {
                    call(&mut calls, &path, load.hand_over(idx, epoch.elapsed())).await?;
                }
                Ok(())
            };
            tokio::select! {
                biased;
                submitted = submitting => submitted,
                ended = connection => {
                    Err(ended.map_or_else(broken, |()| Status::unavailable("the connection ended")))
                }
            }
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.map_err(|_| Status::internal("a client panicked"))??;
    }
    Ok(())
}

async fn call(calls: &mut SendRequest<Bytes>, path: &Uri, unit: Bytes) -> Result<(), Status> {
    std::future::poll_fn(|cx| calls.poll_ready(cx)).await.map_err(broken)?;
    let request = Request::builder()
        .method(Method::POST)
        .uri(path.clone())
        .header(header::TE, HeaderValue::from_static("trailers"))
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"))
        .header("grpc-timeout", TIMEOUT)
        .body(())
        .map_err(|error| Status::internal(error.to_string()))?;
    let (answer, mut body) = calls.send_request(request, false).map_err(broken)?;
    body.send_data(framed(&One { unit }), true).map_err(broken)?;
    let mut answer = answer.await.map_err(broken)?;
    ok(answer.headers(), false)?;
    let had_status = answer.headers().contains_key(Status::GRPC_STATUS);
    let body = answer.body_mut();
    while let Some(data) = body.data().await {
        let n_bytes = data.map_err(broken)?.len();
        body.flow_control().release_capacity(n_bytes).map_err(broken)?;
    }
    let trailers = body.trailers().await.map_err(broken)?;
    ok(&trailers.unwrap_or_default(), !had_status)
}

/// As one gRPC message: not compressed, its length, itself.
fn framed(one: &One) -> Bytes {
    let n_bytes = one.encoded_len();
    let mut framed = BytesMut::with_capacity(5 + n_bytes);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(n_bytes).unwrap_or(u32::MAX));
    // There is room.
    let _ = one.encode(&mut framed);
    framed.freeze()
}

/// What headers or trailers say of the call.
fn ok(headers: &HeaderMap, must_say: bool) -> Result<(), Status> {
    match Status::from_header_map(headers) {
        Some(status) if status.code() != tonic::Code::Ok => Err(status),
        None if must_say => Err(Status::internal("the answer has no status")),
        _ => Ok(()),
    }
}

fn broken(error: h2::Error) -> Status {
    Status::unavailable(format!("the connection broke: {error}"))
}

#[cfg(test)]
mod tests {
    use godel_proto::v1;

    use super::*;

    #[test]
    fn a_call_is_what_the_api_reads() {
        let unit = v1::UnitSpec { min_member: 3, ..v1::UnitSpec::default() };
        let framed = framed(&One { unit: unit.encode_to_vec().into() });
        let (prefix, message) = framed.split_at(5);
        assert_eq!((prefix[0], usize::from(prefix[4])), (0, message.len()));
        assert_eq!(v1::SubmitUnitRequest::decode(message).unwrap().unit, Some(unit));
    }

    #[test]
    fn a_refusal_is_no_success_and_neither_is_silence() {
        let mut headers = HeaderMap::new();
        assert!(ok(&headers, false).is_ok() && ok(&headers, true).is_err());
        headers.insert("grpc-status", HeaderValue::from_static("0"));
        assert!(ok(&headers, true).is_ok());
        headers.insert("grpc-status", HeaderValue::from_static("8"));
        assert_eq!(ok(&headers, false).unwrap_err().code(), tonic::Code::ResourceExhausted);
    }
}
