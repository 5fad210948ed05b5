//! Request messages that are waited for: a call that has sent headers only holds no slot of those at work.

use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep};
use tonic::{Status, body::Body};

use super::super::slots::CallSlot;

/// Flag and length before each message.
const PREFIX_BYTES: usize = 5;
/// Of a longer message only so much is waited for; a call at work reads the rest.
const ENOUGH_BYTES: usize = 64 * 1024;

/// What has come of a body, and what has not.
pub(super) struct BegunBody {
    /// Most messages are one part, which needs no list.
    first: Option<Bytes>,
    more: VecDeque<Bytes>,
    rest: Body,
}

/// Where waiting calls are counted: gives a place, or refuses one call too many.
pub(super) type Queue<'a> = &'a (dyn Fn() -> Result<CallSlot, Status> + Send + Sync);

/// Waits until the one message of a call is there, or so much of it that it is meant.
///
/// # Errors
/// It does not come in time, the body ends without it, or too many calls wait already.
pub(super) async fn of_call(body: Body, wait: Duration, queue: Queue<'_>) -> Result<Body, Status> {
    let mut begun = BegunBody { first: None, more: VecDeque::new(), rest: body };
    // Most messages come with their headers.
    let mut late: Option<(CallSlot, Pin<Box<Sleep>>)> = None;
    poll_fn(|cx| {
        loop {
            match Pin::new(&mut begun.rest).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data()
                        && !data.is_empty()
                    {
                        begun.push(data);
                    }
                    if let Err(status) = begun.check() {
                        return Poll::Ready(Err(status));
                    }
                    if begun.is_enough() {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(None) => return Poll::Ready(Err(begun.cut_short())),
                Poll::Ready(Some(Err(status))) => return Poll::Ready(Err(status)),
                Poll::Pending => break,
            }
        }
        let (_, until) = match &mut late {
            Some(late) => late,
            None => match queue() {
                Ok(slot) => late.insert((slot, Box::pin(tokio::time::sleep(wait)))),
                Err(status) => return Poll::Ready(Err(status)),
            },
        };
        until.as_mut().poll(cx).map(|()| Err(too_late(wait)))
    })
    .await?;
    Ok(Body::new(begun))
}

fn too_late(wait: Duration) -> Status {
    let wait = godel_base::duration::show(wait);
    Status::deadline_exceeded(format!("the request message did not arrive within {wait} after the headers"))
}

impl BegunBody {
    fn push(&mut self, data: Bytes) {
        match self.first {
            None => self.first = Some(data),
            Some(_) => self.more.push_back(data),
        }
    }

    fn parts(&self) -> impl Iterator<Item = &Bytes> {
        self.first.iter().chain(&self.more)
    }

    /// Whether it can be a message at all.
    fn check(&self) -> Result<(), Status> {
        match self.first.as_ref().and_then(|data| data.first()) {
            None | Some(0) => Ok(()),
            Some(1) => {
                Err(Status::invalid_argument("the request message is compressed; send it uncompressed"))
            }
            Some(flag) => Err(Status::invalid_argument(format!(
                "the request message begins with {flag}, which is not a valid flag"
            ))),
        }
    }

    fn cut_short(&self) -> Status {
        Status::invalid_argument(match self.first.is_none() {
            true => "the call has no request message",
            false => "the request message ends too early",
        })
    }

    /// Whether the message is whole, or longer than what is waited for.
    fn is_enough(&self) -> bool {
        let n_came: usize = self.parts().map(Bytes::len).sum();
        if n_came >= ENOUGH_BYTES {
            return true;
        }
        let mut prefix = self.parts().flat_map(|part| part.iter().copied()).skip(1);
        let mut length = [0; PREFIX_BYTES - 1];
        for byte in &mut length {
            let Some(next) = prefix.next() else { return false };
            *byte = next;
        }
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        n_came - PREFIX_BYTES.min(n_came) >= length
    }
}

impl HttpBody for BegunBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match self.first.take().or_else(|| self.more.pop_front()) {
            Some(data) => Poll::Ready(Some(Ok(Frame::data(data)))),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.more.is_empty() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// The body of a client's stream, whose first message is waited for while the handler is at work already.
pub(super) struct Opening {
    inner: Body,
    /// Until the first message.
    waiting: Option<OpeningWait>,
}

struct OpeningWait {
    _slot: CallSlot,
    until: Option<(Duration, Pin<Box<Sleep>>)>,
}

impl Opening {
    /// Holds a place among those that wait until the first bytes; fails after `wait` without them, if there is a
    /// bound.
    pub(super) fn new(inner: Body, slot: CallSlot, wait: Option<Duration>) -> Self {
        let until = wait.map(|wait| (wait, Box::pin(tokio::time::sleep_until(Instant::now() + wait))));
        Self { inner, waiting: Some(OpeningWait { _slot: slot, until }) }
    }
}

impl HttpBody for Opening {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = &mut *self;
        let frame = Pin::new(&mut this.inner).poll_frame(cx);
        if this.waiting.is_none() {
            return frame;
        }
        if let Poll::Ready(ended) = &frame {
            let has_content =
                |frame: &Frame<Bytes>| frame.data_ref().is_some_and(|data| data.has_remaining());
            if ended.as_ref().is_none_or(|frame| frame.as_ref().map_or(true, has_content)) {
                this.waiting = None;
            }
            return frame;
        }
        if let Some(OpeningWait { until: Some((wait, until)), .. }) = &mut this.waiting
            && pin!(until).poll(cx).is_ready()
        {
            let late = too_late(*wait);
            this.waiting = None;
            return Poll::Ready(Some(Err(late)));
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(parts: &[&[u8]]) -> BegunBody {
        let mut begun = BegunBody { first: None, more: VecDeque::new(), rest: Body::empty() };
        for part in parts {
            begun.push(Bytes::copy_from_slice(part));
        }
        begun
    }

    #[test]
    fn a_message_is_there_when_its_last_byte_is() {
        assert!(!begun(&[]).is_enough());
        assert!(!begun(&[&[0, 0, 0]]).is_enough());
        assert!(begun(&[&[0, 0, 0, 0, 0]]).is_enough(), "an empty message is one");
        assert!(!begun(&[&[0, 0, 0, 0, 2], &[1]]).is_enough());
        assert!(begun(&[&[0, 0], &[0, 0, 2, 1], &[2]]).is_enough());
        let long = vec![0xff; ENOUGH_BYTES];
        assert!(!begun(&[&long[1..]]).is_enough());
        assert!(begun(&[&long]).is_enough(), "the rest of a long one is read by the call at work");
    }
}
