//! Answers that clients do not read: bounded in bytes, for each client and over all.
//!
//! HTTP/2 takes a part of an answer when its client has room for one, so what is taken is cut into small pieces, and each
//! piece and what waits behind it is counted. A client whose share of the room is used up gets no further part of any of its
//! streams until it reads, and further calls are refused with a hint. When the room is short, answers of which nothing was
//! read for a while are cut.

use std::{
    collections::HashMap,
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::{Status, body::Body};

use crate::{
    room::{Room, Share, Taken},
    status::{self, reason},
};

/// Most of what HTTP/2 holds of one answer.
const PIECE_BYTES: usize = 16 << 10;
/// Origins of forwarded calls that are remembered before those that have none open are forgotten.
const N_ORIGINS_LOOK: usize = 64;

/// Unread answers of one connection.
#[derive(Debug)]
pub(super) struct UnreadBytes {
    room: Arc<Room>,
    own: Reader,
    /// Of a member that forwards calls: each of its clients.
    origins: Mutex<HashMap<u64, WeakReader>>,
}

/// One client: its share, and its answers under way.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    pub(super) share: Share,
    answers: Arc<UnreadAnswers>,
}

/// What happens to an answer without room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnreadWait {
    /// A stream waits.
    ForRoom,
    /// A unary call is refused.
    Refuse,
    /// A lease is answered all the same: who leads must not depend on who reads.
    Never,
}

type WeakReader = (Share, Weak<UnreadAnswers>);

#[derive(Debug, Default)]
struct UnreadAnswers(Mutex<Vec<Weak<Mutex<UnreadAnswer>>>>);

/// An answer under way.
#[derive(Debug)]
struct UnreadAnswer {
    /// `None`: it was cut.
    inner: Option<Body>,
    /// What was taken from `inner` and not by HTTP/2.
    rest: Bytes,
    /// For `rest` and the last piece.
    taken: Option<Taken>,
    trailers: Option<HeaderMap>,
    is_over: bool,
    /// When HTTP/2 was given something, or could ask for it first; `None` while there is nothing to read.
    offered_at: Option<Instant>,
}

impl UnreadBytes {
    pub(super) fn new(room: &Arc<Room>) -> Self {
        let own = Reader { share: room.share(), answers: Arc::default() };
        Self { room: Arc::clone(room), own, origins: Mutex::default() }
    }

    /// Who reads the answer of a call: the connection, or who had it forwarded.
    pub(super) fn reader(&self, origin: Option<u64>) -> Reader {
        let Some(origin) = origin else { return self.own.clone() };
        let mut origins = self.origins.lock();
        if let Some((share, answers)) = origins.get(&origin)
            && let Some(answers) = answers.upgrade()
        {
            return Reader { share: share.clone(), answers };
        }
        if origins.len() >= N_ORIGINS_LOOK {
            origins.retain(|_, (_, answers)| answers.strong_count() > 0);
        }
        let reader = Reader { share: self.room.share(), answers: Arc::default() };
        origins.insert(origin, (reader.share.clone(), Arc::downgrade(&reader.answers)));
        reader
    }

    /// If the room is short, cuts the answers of which nothing was read for `patience`. How many.
    pub(super) fn cut_stuck(&self, now: Instant, patience: Duration) -> usize {
        if !self.room.is_short() {
            return 0;
        }
        let origins: Vec<Reader> = {
            let origins = self.origins.lock();
            let known =
                origins.values().filter_map(|(share, answers)| Some((share.clone(), answers.upgrade()?)));
            known.map(|(share, answers)| Reader { share, answers }).collect()
        };
        origins.iter().chain([&self.own]).map(|reader| reader.cut_stuck(now, patience)).sum()
    }
}

impl Reader {
    fn cut_stuck(&self, now: Instant, patience: Duration) -> usize {
        let answers: Vec<_> = self.answers.0.lock().iter().filter_map(Weak::upgrade).collect();
        let is_stuck = |answer: &UnreadAnswer| {
            answer.offered_at.is_some_and(|since| now.saturating_duration_since(since) >= patience)
        };
        let cut = answers.iter().filter_map(|answer| {
            let mut answer = answer.lock();
            if is_stuck(&answer) { answer.cut() } else { None }
        });
        // What an answer was made of may hold more: it goes while nothing is locked.
        let cut: Vec<Body> = cut.collect();
        cut.len()
    }

    fn add(&self, answer: &Arc<Mutex<UnreadAnswer>>) {
        let mut answers = self.answers.0.lock();
        // Twice as many as there are is rare, and looking at all of them then costs little for each.
        if answers.len() >= 32 && answers.len() == answers.capacity() {
            answers.retain(|answer| answer.strong_count() > 0);
        }
        answers.push(Arc::downgrade(answer));
    }

    /// The answer of a call, which is counted from now on. Of a unary call the message must have room at once; a small one
    /// always has for a client that holds nothing, and every lease.
    ///
    /// # Errors
    /// The client has not read its other answers.
    pub(super) async fn counted(
        self,
        answer: Response<Body>,
        wait: UnreadWait,
        retry_after: Duration,
    ) -> Result<Response<Body>, Status> {
        let (parts, mut inner) = answer.into_parts();
        if inner.is_end_stream() {
            return Ok(Response::from_parts(parts, inner));
        }
        let (mut rest, mut taken, mut trailers) = (Bytes::new(), None, None);
        if wait != UnreadWait::ForRoom {
            match poll_fn(|cx| Pin::new(&mut inner).poll_frame(cx)).await {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        let taken_now = self.room_for(data.len(), wait);
                        taken = Some(taken_now.ok_or_else(|| self.refusal(retry_after))?);
                        rest = data;
                    }
                    Err(frame) => trailers = frame.into_trailers().ok(),
                },
                Some(Err(status)) => return Err(status),
                None => {}
            }
        }
        let is_cuttable = wait == UnreadWait::ForRoom || rest.len() > PIECE_BYTES;
        let offered_at = Some(Instant::now());
        let answer = UnreadAnswer { inner: Some(inner), rest, taken, trailers, is_over: false, offered_at };
        let answer = Arc::new(Mutex::new(answer));
        if is_cuttable {
            self.add(&answer);
        }
        Ok(Response::from_parts(parts, Body::new(UnreadPieces { answer, reader: self })))
    }

    /// Room for a unary answer, if it gets any.
    fn room_for(&self, bytes: usize, wait: UnreadWait) -> Option<Taken> {
        let is_small = self.share.held() == 0 && bytes <= PIECE_BYTES;
        let taken = self.share.try_take(bytes);
        taken.or_else(|| (is_small || wait == UnreadWait::Never).then(|| self.share.take_anyway(bytes)))
    }

    fn refusal(&self, retry_after: Duration) -> Status {
        let held = self.share.held();
        let message =
            format!("{held} bytes of answers to this client have not been read: read them, then call again");
        status::resource_exhausted(reason::OVERLOADED, message, retry_after)
    }
}

impl UnreadAnswer {
    /// Frees what it holds; what it was made of.
    fn cut(&mut self) -> Option<Body> {
        self.rest = Bytes::new();
        self.taken = None;
        self.trailers = None;
        self.inner.take().filter(|_| !self.is_over)
    }

    fn poll(&mut self, share: &Share, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = self.poll_piece(share, cx);
        match &polled {
            Poll::Ready(_) => self.offered_at = Some(Instant::now()),
            // It waits for its turn while others of this client are not read.
            Poll::Pending if !share.is_open() => {
                self.offered_at.get_or_insert_with(Instant::now);
            }
            Poll::Pending => self.offered_at = None,
        }
        polled
    }

    fn poll_piece(
        &mut self,
        share: &Share,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if !self.rest.is_empty() {
            // What was handed out before has gone, or this would not be asked for.
            if let Some(taken) = &mut self.taken {
                taken.shrink_to(self.rest.len());
            }
            let piece = self.rest.split_to(self.rest.len().min(PIECE_BYTES));
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        self.taken = None;
        let Some(inner) = &mut self.inner else {
            self.is_over = true;
            let text = "the reader is too slow while others wait for room: its streams were ended";
            let status = status::resource_exhausted(reason::OVERLOADED, text, Duration::from_secs(1));
            let mut trailers = HeaderMap::new();
            let written = status.add_header(&mut trailers);
            return Poll::Ready(Some(written.map(|()| Frame::trailers(trailers))));
        };
        if let Some(trailers) = self.trailers.take() {
            self.is_over = true;
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        // A part is made only if there is room for it, whatever its size turns out to be.
        let Poll::Ready(()) = share.poll_open(cx) else { return Poll::Pending };
        let Poll::Ready(frame) = Pin::new(inner).poll_frame(cx) else { return Poll::Pending };
        let data = match frame {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => data,
                Err(frame) => {
                    self.is_over = true;
                    return Poll::Ready(Some(Ok(frame)));
                }
            },
            other => {
                self.is_over = true;
                return Poll::Ready(other);
            }
        };
        self.taken = Some(share.take_anyway(data.len()));
        self.rest = data;
        let piece = self.rest.split_to(self.rest.len().min(PIECE_BYTES));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

/// The body of a counted answer.
struct UnreadPieces {
    answer: Arc<Mutex<UnreadAnswer>>,
    reader: Reader,
}

impl HttpBody for UnreadPieces {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &*self;
        this.answer.lock().poll(&this.reader.share, cx)
    }

    fn is_end_stream(&self) -> bool {
        let answer = self.answer.lock();
        answer.is_over
            || (answer.rest.is_empty()
                && answer.trailers.is_none()
                && answer.inner.as_ref().is_some_and(HttpBody::is_end_stream))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// So many messages of so many bytes; then nothing comes, or the end.
    struct Messages {
        left: usize,
        bytes: usize,
        ends: bool,
    }

    impl HttpBody for Messages {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            match self.left.checked_sub(1) {
                Some(left) => {
                    self.left = left;
                    Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![7; self.bytes])))))
                }
                None if self.ends => Poll::Ready(None),
                None => Poll::Pending,
            }
        }
    }

    fn stream(left: usize, bytes: usize) -> Response<Body> {
        Response::new(Body::new(Messages { left, bytes, ends: true }))
    }

    fn poll(answer: &mut Response<Body>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(answer.body_mut()).poll_frame(&mut Context::from_waker(std::task::Waker::noop()))
    }

    fn n_bytes(polled: Poll<Option<Result<Frame<Bytes>, Status>>>) -> Option<usize> {
        match polled {
            Poll::Ready(Some(Ok(frame))) => frame.into_data().ok().map(|data| data.len()),
            _ => None,
        }
    }

    fn wait(is_stream: bool) -> UnreadWait {
        if is_stream { UnreadWait::ForRoom } else { UnreadWait::Refuse }
    }

    async fn counted(
        unread: &UnreadBytes,
        answer: Response<Body>,
        is_stream: bool,
    ) -> Result<Response<Body>, Status> {
        unread.reader(None).counted(answer, wait(is_stream), Duration::from_millis(70)).await
    }

    #[tokio::test]
    async fn unread_answers_are_bounded_and_go_on_when_they_are_read() {
        let room = Room::new(1 << 20);
        let unread = UnreadBytes::new(&room);
        let mut answers = Vec::new();
        for _ in 0..100 {
            let mut answer = counted(&unread, stream(3, 100 << 10), true).await.unwrap();
            // HTTP/2 takes the first piece of each.
            let first = poll(&mut answer);
            answers.push((answer, first.is_ready()));
        }
        let n_begun = answers.iter().filter(|(_, begun)| *begun).count();
        assert!((5..=7).contains(&n_begun), "{n_begun}");
        assert!(room.used() <= (512 << 10) + (100 << 10), "{}", room.used());
        // Leases are answered whatever is not read.
        let lease = unread.reader(None).counted(stream(1, 100), UnreadWait::Never, Duration::ZERO).await;
        drop(lease.unwrap());
        // Unary calls of this client are refused, those of another one are not.
        let refused = counted(&unread, stream(1, 4 << 10), false).await.unwrap_err();
        assert_eq!(
            (refused.code(), status::retry_after(&refused)),
            (tonic::Code::ResourceExhausted, Some(Duration::from_millis(70)))
        );
        let mut other = counted(&UnreadBytes::new(&room), stream(1, 4 << 10), false).await.unwrap();
        assert_eq!(n_bytes(poll(&mut other)), Some(4 << 10));
        let (mut read, _) = answers.remove(0);
        let mut n_read = PIECE_BYTES;
        while let Some(n) = n_bytes(poll(&mut read)) {
            n_read += n;
        }
        assert_eq!(n_read, 300 << 10, "whoever reads gets all of it");
        drop((answers, read, other));
        assert_eq!(room.used(), 0);
    }

    #[tokio::test]
    async fn answers_that_nobody_reads_are_cut_once_room_is_short() {
        let room = Room::new(100 << 10);
        let (unread, other) = (UnreadBytes::new(&room), UnreadBytes::new(&room));
        let mut stuck = counted(&unread, stream(2, 60 << 10), true).await.unwrap();
        assert_eq!(n_bytes(poll(&mut stuck)), Some(PIECE_BYTES));
        let idle = Response::new(Body::new(Messages { left: 0, bytes: 0, ends: false }));
        let mut idle = counted(&other, idle, true).await.unwrap();
        assert!(poll(&mut idle).is_pending());
        let now = Instant::now();
        assert_eq!(unread.cut_stuck(now, PATIENCE), 0, "it is not long ago");
        let later = now + PATIENCE;
        assert_eq!((other.cut_stuck(later, PATIENCE), unread.cut_stuck(later, PATIENCE)), (0, 1));
        assert_eq!(room.used(), 0);
        let Poll::Ready(Some(Ok(end))) = poll(&mut stuck) else { panic!("it has an end") };
        let trailers = end.into_trailers().unwrap();
        assert_eq!(trailers.get("grpc-status").unwrap(), "8");
        assert!(poll(&mut idle).is_pending(), "a stream without anything to read is left alone");
    }

    #[tokio::test]
    async fn clients_behind_a_member_that_forwards_have_shares_of_their_own() {
        let room = Room::new(1 << 20);
        let unread = UnreadBytes::new(&room);
        let greedy = unread.reader(Some(1));
        let held = greedy.share.take_anyway(600 << 10);
        assert!(!unread.reader(Some(1)).share.is_open());
        assert!(unread.reader(Some(2)).share.is_open() && unread.reader(None).share.is_open());
        drop((greedy, held));
        for origin in 2..1_000 {
            drop(unread.reader(Some(origin)));
        }
        assert!(unread.origins.lock().len() <= N_ORIGINS_LOOK, "who has nothing open is forgotten");
    }
}
