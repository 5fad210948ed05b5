//! Many clients of one call at a time, each with a connection of its own.
//!
//! The calls are gRPC as tonic makes it (the server cannot tell), but a client is one task that drives its
//! connection itself: on a machine that load and control plane share, what a client costs is missing there.

use std::{sync::Arc, time::Instant};

use bytes::{BufMut as _, Bytes, BytesMut};
use godel_client::client::Client;
use godel_kit::{client::open, config::ClientConfig, security::expected_holder, status, tls::HttpVersion};
use h2::client::SendRequest;
use http::{HeaderMap, HeaderValue, Method, Request, Uri, header};
use prost::Message as _;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use super::Load;

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
    let target = Target::leader(client).await?;
    let mut clients: JoinSet<Result<(), Status>> = JoinSet::new();
    for first in 0..n_clients {
        let (load, target) = (Arc::clone(&load), target.clone());
        clients.spawn(async move {
            let (mut calls, connection) = target.connect().await?;
            let submitting = async {
                for idx in (first..load.len()).step_by(n_clients) {
                    while let Err(refused) = calls.submit(load.hand_over(idx, epoch.elapsed())).await {
                        back_off(refused).await?;
                    }
                }
                Ok(())
            };
            tokio::select! {
                biased;
                submitted = submitting => submitted,
                ended = connection => Err(ended),
            }
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.map_err(|_| Status::internal("a client panicked"))??;
    }
    Ok(())
}

/// The dispatcher that calls go to.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    address: String,
    config: ClientConfig,
    path: Uri,
}

/// Calls on one connection; clones share it.
#[derive(Clone)]
pub(crate) struct UnaryCalls {
    sender: SendRequest<Bytes>,
    path: Uri,
}

impl Target {
    /// The one that leads.
    pub(crate) async fn leader(client: &Client) -> Result<Self, Status> {
        let leader = client.directory().leader("dispatcher").await?;
        let url = leader.address.clone();
        let no_url = || Status::internal(format!("the leader's address `{url}` is not a URL"));
        let address: Uri = url.parse().map_err(|_| no_url())?;
        let host = address.authority().ok_or_else(no_url)?.to_string();
        let path = format!("http://{host}/godel.v1.UnitService/SubmitUnit").parse().map_err(|_| no_url())?;
        Ok(Self { address: leader.address, config: client.directory().config().clone(), path })
    }

    /// A connection of its own, and what has to be polled for it to work: ends with it.
    pub(crate) async fn connect(
        &self,
    ) -> Result<(UnaryCalls, impl Future<Output = Status> + Send + use<>), Status> {
        let dispatcher = expected_holder("dispatcher");
        let stream = open(&self.address, &dispatcher, &self.config, HttpVersion::Two).await?;
        let (sender, connection) = h2::client::handshake(stream).await.map_err(broken)?;
        let over =
            async { connection.await.map_or_else(broken, |()| Status::unavailable("the connection ended")) };
        Ok((UnaryCalls { sender, path: self.path.clone() }, over))
    }
}

impl UnaryCalls {
    /// Submits an encoded unit; durable when this is well.
    pub(crate) async fn submit(&mut self, unit: Bytes) -> Result<(), Status> {
        std::future::poll_fn(|cx| self.sender.poll_ready(cx)).await.map_err(broken)?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(self.path.clone())
            .header(header::TE, HeaderValue::from_static("trailers"))
            .header(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"))
            .header("grpc-timeout", TIMEOUT)
            .body(())
            .map_err(|error| Status::internal(error.to_string()))?;
        let (answer, mut body) = self.sender.send_request(request, false).map_err(broken)?;
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
}

/// Waits for as long as a refusal asks for, and up to half of that more.
///
/// # Errors
/// It is no refusal for now, or does not say when to come back.
pub(crate) async fn back_off(refused: Status) -> Result<(), Status> {
    match status::retry_after(&refused) {
        Some(hint) if refused.code() == Code::ResourceExhausted => {
            tokio::time::sleep(hint.mul_f64(1.0 + rand::random::<f64>() / 2.0)).await;
            Ok(())
        }
        Some(_) | None => Err(refused),
    }
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

    #[tokio::test]
    async fn a_refusal_is_waited_for_as_long_as_it_says() {
        let hint = std::time::Duration::from_millis(5);
        let began = tokio::time::Instant::now();
        back_off(status::resource_exhausted(status::reason::OVERLOADED, "full", hint)).await.unwrap();
        assert!(began.elapsed() >= hint);
        assert!(back_off(Status::resource_exhausted("no hint")).await.is_err());
        assert!(back_off(Status::unavailable("gone")).await.is_err());
    }

    #[test]
    fn a_call_is_what_the_api_reads() {
        let unit = v1::UnitSpec { min_member: Some(3), ..v1::UnitSpec::default() };
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
