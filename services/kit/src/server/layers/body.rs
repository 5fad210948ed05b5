//! A response body that tells the metrics how its RPC ended.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::{Code, Status, body::Body};

use super::{super::connections::OpenCall, caller::is_refusal, code_name};
use crate::{client::is_known, metrics::RpcMetrics};

/// An RPC that has not ended; counts it once, whatever happens to it.
pub(super) struct CountedCall {
    metrics: RpcMetrics,
    method: String,
    /// Found in headers or trailers.
    code: Option<Code>,
    /// Keeps the connection from being taken for idle.
    _call: Option<OpenCall>,
}

impl CountedCall {
    pub(super) fn new(metrics: RpcMetrics, method: String, call: Option<OpenCall>) -> Self {
        metrics.in_flight.inc();
        Self { metrics, method, code: None, _call: call }
    }

    /// Path of the method.
    pub(super) fn method(&self) -> &str {
        &self.method
    }

    /// The answer (or the opening of a stream) took so long.
    pub(super) fn opened(&mut self, took: Duration, code: Option<Code>) {
        // Nobody's made-up path becomes a time series.
        if code == Some(Code::Unimplemented) || (is_refusal(code) && !is_known(&self.method)) {
            self.method = "unknown".to_owned();
        }
        self.metrics.took(&self.method, took);
        self.code = code;
    }
}

impl Drop for CountedCall {
    fn drop(&mut self) {
        self.metrics.in_flight.dec();
        // Without a code the caller left, or the connection broke.
        self.metrics.finish(&self.method, code_name(self.code.unwrap_or(Code::Cancelled)));
    }
}

/// A body whose trailers are read on the way.
pub(super) struct CountedBody {
    inner: Body,
    open: CountedCall,
}

impl CountedBody {
    pub(super) fn new(inner: Body, open: CountedCall) -> Self {
        Self { inner, open }
    }
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(trailers) = frame.trailers_ref()
        {
            self.open.code = code_in(trailers).or(self.open.code);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The code in headers or trailers, if it stands there.
pub(super) fn code_in(headers: &HeaderMap) -> Option<Code> {
    headers.get("grpc-status").map(|value| Code::from_bytes(value.as_bytes()))
}
