//! Answers that end when another state is chosen than the one that gives them.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Code, Status, body::Body};

use super::States;
use crate::status::{OUTCOME, OUTCOME_UNKNOWN, reason, with_info};

/// What a caller hears of a state that leads no more, and may have done what it was asked for.
pub(super) fn superseded(address: &str) -> Status {
    let message =
        format!("another state than the one at {address} is called now, which had not answered to the end");
    let metadata = [("address", address), (OUTCOME, OUTCOME_UNKNOWN)];
    with_info(Code::Unavailable, reason::UNREACHABLE, message, metadata)
}

/// The answer of a state, as long as that state is the one to call.
pub(super) struct BoundBody {
    inner: Body,
    /// `None`: the answer has been ended.
    over: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    address: String,
    /// Who leads is followed as long as an answer is read.
    _states: States,
}

impl BoundBody {
    pub(super) fn new(inner: Body, over: CancellationToken, address: &str, states: States) -> Self {
        let over = Some(Box::pin(over.cancelled_owned()));
        Self { inner, over, address: address.to_owned(), _states: states }
    }
}

impl HttpBody for BoundBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if this.over.as_mut().is_some_and(|over| over.as_mut().poll(cx).is_ready()) {
            this.over = None;
            this.inner = Body::empty();
            let mut trailers = HeaderMap::new();
            let written = superseded(&this.address).add_header(&mut trailers);
            return Poll::Ready(Some(written.map(|()| Frame::trailers(trailers))));
        }
        Pin::new(&mut this.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
