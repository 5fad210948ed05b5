//! Streams that persons have opened over TLS: each ends with the token that opened it, when that expires, is revoked, or its key goes, and with what its
//! principal might do, when that changes.
//!
//! Other calls are judged when they begin and are over soon. A connection is nobody's while no call is open on it, since each call shows its own token.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Status, body::Body};

use crate::{
    security::{ServerSecurity, TokenBearer},
    status,
};

/// The streams that are open.
#[derive(Debug, Default)]
pub(super) struct PersonStreams(Mutex<KnownStreams>);

#[derive(Debug, Default)]
struct KnownStreams {
    next: u64,
    by_id: HashMap<u64, KnownStream>,
}

#[derive(Debug)]
struct KnownStream {
    bearer: TokenBearer,
    end: StreamEnd,
}

/// Whether a stream is to end, and why.
#[derive(Clone, Debug, Default)]
struct StreamEnd {
    has_come: CancellationToken,
    why: Arc<OnceLock<Status>>,
}

/// A stream that is open, until this is dropped.
pub(super) struct PersonStream {
    streams: Arc<PersonStreams>,
    id: u64,
    end: StreamEnd,
}

impl PersonStreams {
    /// A stream begins.
    pub(super) fn open(self: &Arc<Self>, bearer: TokenBearer) -> PersonStream {
        let end = StreamEnd::default();
        let mut known = self.0.lock();
        let id = known.next;
        known.next += 1;
        known.by_id.insert(id, KnownStream { bearer, end: end.clone() });
        PersonStream { streams: Arc::clone(self), id, end }
    }

    /// Ends the streams whose token counts no more.
    pub(super) fn sweep(&self, security: &ServerSecurity) {
        for KnownStream { bearer, end } in self.0.lock().by_id.values() {
            if let Err(why) = security.judge_again(bearer)
                && end.why.set(status::token_ended(&why)).is_ok()
            {
                tracing::debug!(person = bearer.token.person, %why, "ended a stream whose token counts no more");
                end.has_come.cancel();
            }
        }
    }
}

impl PersonStream {
    /// Has a call end in time: what it sends, from now on.
    pub(super) fn bound_request(&self, request: Request<Body>) -> Request<Body> {
        request.map(|inner| Body::new(EndingBody::new(inner, &self.end, None)))
    }

    /// And what it is answered.
    pub(super) fn bound_answer(self, answer: Response<Body>) -> Response<Body> {
        let end = self.end.clone();
        answer.map(|inner| Body::new(EndingBody::new(inner, &end, Some(self))))
    }
}

impl Drop for PersonStream {
    fn drop(&mut self) {
        self.streams.0.lock().by_id.remove(&self.id);
    }
}

/// A body that ends early: that of an answer with a status, that of a request with an error.
struct EndingBody {
    inner: Body,
    end: Pin<Box<WaitForCancellationFutureOwned>>,
    why: Arc<OnceLock<Status>>,
    is_over: bool,
    /// Of an answer.
    stream: Option<PersonStream>,
}

impl EndingBody {
    fn new(inner: Body, end: &StreamEnd, stream: Option<PersonStream>) -> Self {
        let has_come = Box::pin(end.has_come.clone().cancelled_owned());
        Self { inner, end: has_come, why: Arc::clone(&end.why), is_over: false, stream }
    }

    fn ended(&mut self) -> Result<Frame<Bytes>, Status> {
        self.is_over = true;
        // What answers goes at once, also while the other side does not read.
        self.inner = Body::empty();
        let why = self.why.get().cloned().unwrap_or_else(status::stopping);
        if self.stream.is_none() {
            return Err(why);
        }
        let mut trailers = HeaderMap::new();
        why.add_header(&mut trailers).map(|()| Frame::trailers(trailers))
    }
}

impl HttpBody for EndingBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if self.end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(self.ended()));
        }
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::{
        security::{CallerRecords, tests::TestCluster},
        status::{has_reason, reason},
    };

    /// A body of which nothing comes.
    struct Endless;

    impl HttpBody for Endless {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Pending
        }
    }

    fn polled(body: &mut Body) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn both_directions_of_a_stream_end_with_its_token() {
        let (cluster, streams) = (TestCluster::new(), Arc::new(PersonStreams::default()));
        let security = cluster.server("state/main");
        let records = CallerRecords::new("c".parse().unwrap());
        records.set_token_keys(vec![cluster.signer.token_key()]);
        let header = cluster.token_for(60_000).header();
        let text = header.to_str().unwrap().trim_start_matches("Bearer ").to_owned();
        let stream = streams.open(records.bearer(&text, 0).unwrap());
        let mut sent = stream.bound_request(Request::new(Body::new(Endless))).into_body();
        let mut answered = stream.bound_answer(Response::new(Body::new(Endless))).into_body();
        streams.sweep(&security);
        assert!(polled(&mut sent).is_pending() && polled(&mut answered).is_pending());
        cluster.pass_ms(60_000);
        streams.sweep(&security);
        let Poll::Ready(Some(Err(end))) = polled(&mut sent) else { panic!("it goes on") };
        assert!(has_reason(&end, reason::TOKEN_ENDED), "{end}");
        let Poll::Ready(Some(Ok(end))) = polled(&mut answered) else { panic!("it goes on") };
        assert_eq!(end.trailers_ref().unwrap()["grpc-status"], "16");
        assert!(matches!(polled(&mut sent), Poll::Ready(None)));
        assert!(matches!(polled(&mut answered), Poll::Ready(None)));
        drop(answered);
        assert!(streams.0.lock().by_id.is_empty());
    }
}
