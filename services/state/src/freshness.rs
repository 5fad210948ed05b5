//! How fresh reads are: where several states serve one store, a read has all that any of them answered before it, unless its caller says otherwise.
//!
//! The state that leads asks what keeps the store whether it still does. A state that follows asks the leader for its last revision, and waits until it has read
//! that far. Both ask once for all reads that wait. The header [`READ`] says `stale-ok` for an answer at once from what is there, or a revision
//! that the answer must have; the answer says in headers at which revision it was read, and how old that may be.

use std::{future::ready, sync::Arc, time::Duration};

use godel_base::ids::Revision;
use godel_kit::{
    server::Admission,
    status::{self, reason, with_info},
};
use godel_membership::{front_door, succession::HOLD_MS};
use godel_store::{FenceHold, Standing, State, Store, Unconfirmed};
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tonic::{Code, Status};

/// Header of a call: how fresh its answer must be.
const READ: HeaderName = HeaderName::from_static("godel-read");
/// Header of an answer: the revision at which it was read, or a later one.
const REVISION: HeaderName = HeaderName::from_static("godel-revision");
/// Header of an answer: what was committed so long before may be missing, milliseconds.
const AGE: HeaderName = HeaderName::from_static("godel-age-ms");
/// How long a read waits until this state has read what the leader has.
const PATIENCE: Duration = Duration::from_secs(2);

/// How fresh an answer must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadWish {
    /// It has all that was answered before.
    Fresh,
    /// It may be as old as it is.
    StaleOk,
    /// It has at least this revision.
    AtLeast(Revision),
}

impl ReadWish {
    /// From the headers of a call.
    ///
    /// # Errors
    /// The header says something else.
    fn of(headers: &HeaderMap) -> Result<Self, Status> {
        let Some(value) = headers.get(READ) else { return Ok(Self::Fresh) };
        match value.to_str() {
            Ok("fresh") => Ok(Self::Fresh),
            Ok("stale-ok") => Ok(Self::StaleOk),
            text => {
                let revision = text.ok().and_then(|text| text.parse().ok());
                let message = format!("header {READ}: must be `fresh`, `stale-ok` or a revision");
                revision.map(Revision).map(Self::AtLeast).ok_or_else(|| Status::invalid_argument(message))
            }
        }
    }
}

/// Questions for the last revision of the leader, one for all who wait. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct RevisionQuestions(Arc<WaitingReads>);

#[derive(Default)]
struct WaitingReads {
    waiting: Mutex<Vec<oneshot::Sender<Result<Revision, Status>>>>,
    asked: Notify,
}

impl RevisionQuestions {
    /// Returns the last revision of the leader, asked for after this call.
    async fn ask(&self) -> Result<Revision, Status> {
        let (reply, answer) = oneshot::channel();
        self.0.waiting.lock().push(reply);
        self.0.asked.notify_one();
        answer.await.map_err(|_| status::stopping())?
    }

    /// Answers all who ask, with what `question` says.
    pub(crate) async fn answer<Q, A>(self, question: Q)
    where
        Q: Fn() -> A,
        A: Future<Output = Result<Revision, Status>>,
    {
        loop {
            self.0.asked.notified().await;
            let waiting = std::mem::take(&mut *self.0.waiting.lock());
            if waiting.is_empty() {
                continue;
            }
            let answer = question().await;
            for reply in waiting {
                // Who asked may have left.
                drop(reply.send(answer.clone()));
            }
        }
    }
}

/// What a call waits for that reads records, at a state that follows.
pub(crate) fn admit_to_follower(
    store: Store,
    questions: RevisionQuestions,
    headers: &HeaderMap,
) -> Admission {
    let wish = ReadWish::of(headers);
    Box::pin(async move {
        let revision = match wish? {
            ReadWish::StaleOk => None,
            ReadWish::AtLeast(revision) => Some(revision),
            ReadWish::Fresh => Some(questions.ask().await?),
        };
        wait_for(&store, revision).await?;
        Ok(shown_at(&store))
    })
}

/// What a call of `path` waits for at the state that leads; `None`: nothing. It gives no answer that depends on that while it is not certain to lead.
pub(crate) fn admit_to_leader(store: &Store, path: &str, headers: &HeaderMap) -> Option<Admission> {
    if !front_door::needs_leader(path) {
        return None;
    }
    if !front_door::confirms_leader(path) {
        let refused = || Box::pin(ready(Err(uncertain()))) as Admission;
        return (!is_certain_to_lead(store)).then(refused);
    }
    let (store, wish) = (store.clone(), ReadWish::of(headers));
    Some(Box::pin(async move {
        match wish? {
            ReadWish::StaleOk => {}
            ReadWish::AtLeast(revision) => wait_for(&store, Some(revision)).await?,
            ReadWish::Fresh => store.confirm().await.map_err(|error| unconfirmed(&error))?,
        }
        Ok(shown_at(&store))
    }))
}

/// Whether this state may answer as the one that leads.
pub(crate) fn is_certain_to_lead(store: &Store) -> bool {
    match &*store.standing().borrow() {
        Standing::Leads(None) => true,
        Standing::Leads(Some(hold)) => is_certain(hold),
        Standing::Follows(_) | Standing::Ended(_) => false,
    }
}

/// Whether a hold on the store was confirmed so recently that no other state leads.
pub(crate) fn is_certain(hold: &FenceHold) -> bool {
    hold.age() < Duration::from_millis(HOLD_MS)
}

/// What a caller hears of a state that may lead no more.
fn uncertain() -> Status {
    let message = "this state cannot tell whether it still leads, because the etcd of its store has not answered: try again, or read with the header \
                   `godel-read: stale-ok`";
    with_info::<&str, &str>(Code::Unavailable, reason::NOT_LEADER, message, [])
}

/// That it is not certain whether this state leads.
fn unconfirmed(error: &Unconfirmed) -> Status {
    tracing::debug!(%error, "a read was not answered");
    uncertain()
}

async fn wait_for(store: &Store, revision: Option<Revision>) -> Result<(), Status> {
    let Some(revision) = revision else { return Ok(()) };
    if store.wait_for(revision, PATIENCE).await {
        return Ok(());
    }
    let own = store.read(State::revision);
    Err(Status::unavailable(format!(
        "this state has read up to revision {own}, and the answer needs {revision}: try again"
    )))
}

fn shown_at(store: &Store) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(REVISION, HeaderValue::from(store.read(State::revision).0));
    headers.insert(AGE, HeaderValue::from(u64::try_from(store.age().as_millis()).unwrap_or(u64::MAX)));
    headers
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn the_header_says_how_fresh_an_answer_must_be() {
        let wish = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(READ, text.parse().unwrap());
            ReadWish::of(&headers).map_err(|refusal| refusal.code())
        };
        assert_eq!(ReadWish::of(&HeaderMap::new()).unwrap(), ReadWish::Fresh);
        assert_eq!(wish("fresh"), Ok(ReadWish::Fresh));
        assert_eq!(wish("stale-ok"), Ok(ReadWish::StaleOk));
        assert_eq!(wish("17"), Ok(ReadWish::AtLeast(Revision(17))));
        for bad in ["", "old", "-1", "1.5"] {
            assert_eq!(wish(bad), Err(Code::InvalidArgument), "{bad}");
        }
    }

    /// A read that came after a question was sent waits for the next one.
    #[tokio::test]
    async fn one_question_is_asked_for_all_who_wait() {
        let (questions, n_asked) = (RevisionQuestions::default(), Arc::new(AtomicU64::new(0)));
        let (asked, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let leader = {
            let (questions, n_asked) = (questions.clone(), Arc::clone(&n_asked));
            let (asked, goes_on) = (Arc::clone(&asked), Arc::clone(&goes_on));
            tokio::spawn(questions.answer(move || {
                let number = n_asked.fetch_add(1, Ordering::SeqCst);
                asked.notify_one();
                let goes_on = Arc::clone(&goes_on);
                async move {
                    goes_on.notified().await;
                    Ok(Revision(number))
                }
            }))
        };
        let read = || {
            let questions = questions.clone();
            tokio::spawn(async move { questions.ask().await.unwrap() })
        };
        let first = read();
        asked.notified().await;
        let later = [read(), read(), read()];
        while questions.0.waiting.lock().len() < 3 {
            tokio::task::yield_now().await;
        }
        goes_on.notify_one();
        assert_eq!(first.await.unwrap(), Revision(0));
        asked.notified().await;
        goes_on.notify_one();
        for read in later {
            assert_eq!(read.await.unwrap(), Revision(1));
        }
        assert_eq!(n_asked.load(Ordering::SeqCst), 2);
        leader.abort();
    }
}
