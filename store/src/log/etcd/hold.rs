//! The hold of this process on the store, as etcd confirms it.
//!
//! A process whose store was taken over does not notice that by itself: it may have been suspended, or cut off from etcd. So a hold
//! is valid only for a while after etcd has confirmed it, counted from the moment at which the question was sent, by a clock that goes on while
//! the machine is suspended. Each transaction of the writer confirms it, and so does a read of the fence, which is made all the time. A reader
//! that must not miss what another process has committed asks by itself; one question is made for all who wait for one.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use godel_etcd::{Answer, CallError, Etcd, RangeRequest, Reply, Request};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

use super::{keys::next_key, records::HeldFence};
use crate::log::{LogError, Waker};

/// How often the fence is read while nothing else confirms the hold.
const CONFIRM_PERIOD: Duration = Duration::from_millis(150);

/// A moment by the clock that goes on while the machine is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootTime(Duration);

impl BootTime {
    /// Returns the present moment.
    pub(crate) fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        Self(Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0)))
    }

    fn nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Why a hold was not confirmed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unconfirmed {
    /// Another process has taken the store over.
    #[error("another process has taken over the store{by}")]
    Lost {
        /// Which one, behind a colon, if that is known.
        by: String,
    },
    /// etcd has not answered.
    #[error("etcd does not say who holds the store: {0}")]
    Unknown(String),
}

/// Told whether the hold was confirmed by a question that was sent after it had asked.
pub(crate) type HoldWaiter = Box<dyn FnOnce(Result<(), Unconfirmed>) + Send>;

/// The hold of one process on the store.
pub struct FenceHold {
    etcd: Arc<dyn Etcd>,
    fence: HeldFence,
    /// When the last question was sent to which etcd has answered that the fence is this one, nanoseconds by [`BootTime`].
    confirmed_ns: AtomicU64,
    questions: Mutex<Questions>,
}

#[derive(Default)]
struct Questions {
    /// Another process holds the fence: its words.
    lost: Option<String>,
    is_under_way: bool,
    /// They wait for the next question.
    waiting: Vec<HoldWaiter>,
    /// Wakes the writer once the hold is lost.
    waker: Option<Waker>,
}

impl std::fmt::Debug for FenceHold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FenceHold").field("number", &self.number()).finish_non_exhaustive()
    }
}

impl FenceHold {
    /// A hold on `fence`, which this process took by a transaction that was sent at `sent`. It is confirmed until it is dropped.
    pub(super) fn keep(etcd: Arc<dyn Etcd>, fence: HeldFence, sent: BootTime) -> Arc<Self> {
        let (confirmed_ns, questions) = (AtomicU64::new(sent.nanos()), Mutex::default());
        let hold = Arc::new(Self { etcd, fence, confirmed_ns, questions });
        Self::confirm_later(&Arc::downgrade(&hold));
        hold
    }

    /// The number of the fence, which is higher for each process that takes the store over.
    pub fn number(&self) -> u64 {
        self.fence.record.number
    }

    /// How long ago the last question was sent that confirmed the hold. A lost hold is never confirmed again.
    pub fn age(&self) -> Duration {
        let confirmed_ns = self.confirmed_ns.load(Ordering::Acquire);
        Duration::from_nanos(BootTime::now().nanos().saturating_sub(confirmed_ns))
    }

    /// That another process has taken the store over, once this one knows.
    pub(crate) fn lost(&self) -> Option<LogError> {
        let questions = self.questions.lock();
        questions.lost.as_ref().map(|by| LogError::Fenced { by: by.clone() })
    }

    /// Has the writer woken once the hold is lost.
    pub(super) fn wake_when_lost(&self, waker: &Waker) {
        self.questions.lock().waker = Some(Arc::clone(waker));
    }

    /// Notes that etcd confirmed the hold in its answer to what was sent at `sent`.
    pub(super) fn note_confirmed(&self, sent: BootTime) {
        self.confirmed_ns.fetch_max(sent.nanos(), Ordering::AcqRel);
    }

    fn note_lost(&self, by: String) {
        let waker = {
            let mut questions = self.questions.lock();
            questions.lost.get_or_insert(by);
            questions.waker.take()
        };
        if let Some(waker) = waker {
            waker();
        }
    }

    /// Asks etcd whether the hold is still there, for a caller that waits for the answer; once for all who wait.
    pub(crate) fn ask(self: &Arc<Self>, waiter: HoldWaiter) {
        {
            let mut questions = self.questions.lock();
            questions.waiting.push(waiter);
            if questions.is_under_way {
                return;
            }
            questions.is_under_way = true;
        }
        self.send_question();
    }

    /// Sends a question for all who wait.
    fn send_question(self: &Arc<Self>) {
        let waiters = std::mem::take(&mut self.questions.lock().waiting);
        let question = Question { hold: Arc::downgrade(self), waiters };
        let sent = BootTime::now();
        let answer: Answer = Box::new(move |outcome| question.answer(sent, outcome));
        self.etcd.submit(self.request(), Duration::ZERO, answer);
    }

    fn request(&self) -> Request {
        let from = self.fence.key.clone();
        Request::Range(RangeRequest { to: next_key(&from), from, limit: 1, keys_only: false })
    }

    /// Judges an answer about the fence.
    fn judge(&self, sent: BootTime, outcome: Result<Reply, CallError>) -> Result<(), Unconfirmed> {
        match outcome {
            Ok(Reply::Page(page)) if self.fence.is_lost(page.entries.first()) => {
                let by = match self.fence.lost_to(page.entries.first()) {
                    LogError::Fenced { by } => by,
                    other => format!(": {other}"),
                };
                self.note_lost(by.clone());
                Err(Unconfirmed::Lost { by })
            }
            Ok(Reply::Page(_)) => {
                self.note_confirmed(sent);
                Ok(())
            }
            Ok(other) => Err(Unconfirmed::Unknown(format!("an unexpected answer: {other:?}"))),
            Err(error) => Err(Unconfirmed::Unknown(error.to_string())),
        }
    }

    /// Has the fence read after a pause, again and again while the hold exists and is not lost.
    fn confirm_later(hold: &Weak<Self>) {
        let Some(this) = hold.upgrade() else { return };
        if this.questions.lock().lost.is_some() {
            return;
        }
        let later = Weak::clone(hold);
        let submitted = BootTime::now();
        let answer: Answer = Box::new(move |outcome| {
            let Some(this) = later.upgrade() else { return };
            // The question was sent no earlier than after the pause.
            if let Err(error) = this.judge(BootTime(submitted.0 + CONFIRM_PERIOD), outcome) {
                tracing::debug!(%error, "the hold on the store is not confirmed");
            }
            drop(this);
            Self::confirm_later(&later);
        });
        this.etcd.submit(this.request(), CONFIRM_PERIOD, answer);
    }
}

/// A question that was sent, and who waits for its answer.
struct Question {
    hold: Weak<FenceHold>,
    waiters: Vec<HoldWaiter>,
}

impl Question {
    fn answer(mut self, sent: BootTime, outcome: Result<Reply, CallError>) {
        let waiters = std::mem::take(&mut self.waiters);
        let Some(hold) = self.hold.upgrade() else { return };
        let judged = hold.judge(sent, outcome);
        for waiter in waiters {
            waiter(judged.clone());
        }
    }
}

/// Also where the client of etcd ends without an answer.
impl Drop for Question {
    fn drop(&mut self) {
        let Some(hold) = self.hold.upgrade() else { return };
        let goes_on = {
            let mut questions = hold.questions.lock();
            questions.is_under_way = !questions.waiting.is_empty();
            questions.is_under_way
        };
        if goes_on {
            hold.send_question();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use godel_etcd::model::EtcdModel;

    use super::*;
    use crate::log::etcd::{
        keys::StoreKeys,
        records::{FenceRecord, seal},
    };

    fn fence(number: u64) -> HeldFence {
        let record = FenceRecord { number, token: number, ..FenceRecord::default() };
        HeldFence::new(StoreKeys::fence("p/"), record)
    }

    fn put(etcd: &dyn Etcd, fence: &HeldFence) {
        let op = godel_etcd::Op::Put(fence.key.clone(), seal(&fence.record));
        etcd.txn(godel_etcd::TxnRequest { ops: vec![op], ..Default::default() }).unwrap();
    }

    fn asked(hold: &Arc<FenceHold>) -> Result<(), Unconfirmed> {
        let (sender, receiver) = channel();
        hold.ask(Box::new(move |answer| sender.send(answer).unwrap()));
        receiver.recv().unwrap()
    }

    #[test]
    fn a_hold_is_confirmed_until_another_process_has_the_fence() {
        let model = EtcdModel::new(1);
        let etcd: Arc<dyn Etcd> = model.connect();
        put(&*etcd, &fence(1));
        let hold = FenceHold::keep(Arc::clone(&etcd), fence(1), BootTime(Duration::ZERO));
        assert!(hold.age() > Duration::from_secs(1), "nothing has confirmed it yet");
        asked(&hold).unwrap();
        assert!(hold.age() < Duration::from_mins(1) && hold.lost().is_none());
        put(&*etcd, &fence(2));
        assert!(matches!(asked(&hold), Err(Unconfirmed::Lost { .. })));
        assert!(matches!(hold.lost(), Some(LogError::Fenced { .. })));
    }

    #[test]
    fn the_writer_is_woken_when_the_fence_is_lost() {
        let model = EtcdModel::new(2);
        let etcd: Arc<dyn Etcd> = model.connect();
        put(&*etcd, &fence(2));
        let hold = FenceHold::keep(etcd, fence(1), BootTime::now());
        let (sender, receiver) = channel();
        let sender = Mutex::new(sender);
        let waker: Waker = Arc::new(move || sender.lock().send(()).unwrap());
        hold.wake_when_lost(&waker);
        // By the question that is asked all the time.
        receiver.recv().unwrap();
        assert!(hold.lost().is_some());
    }
}
