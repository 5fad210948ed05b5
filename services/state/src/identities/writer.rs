//! The one writer of identities: it decides on a draft of the book, puts whatever waits into one commit, and answers once that is durable.

use std::sync::Arc;

use bytes::Bytes;
use godel_domain::change_line::{CallCause, ChangeLine};
use godel_identity::book::{IdentityBook, IdentityChange, N_ROUND_CHANGES_MAX, TidyClock};
use godel_kit::{CancellationToken, clock::SharedClock, status};
use godel_proto::{raw, v1};
use godel_store::{Role, Store, TxnRefusal, Watcher};
use godel_wire::{ops::ParsedOp, to_proto};
use parking_lot::{Mutex, RwLock};
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

use super::{
    first_start::fingerprint_of,
    keys::{Keys, KeysError},
    records::{self, unsigned},
};
use crate::error;

/// Decisions that may wait.
const N_WAITING_MAX: usize = 1_024;
/// Decisions in one commit.
const N_ROUND_MAX: usize = 128;
/// How often what nobody needs any more is looked for.
const TIDY_INTERVAL: std::time::Duration = std::time::Duration::from_secs(5);

/// What is known of identities, as committed, and the way to change it. Clones share it.
#[derive(Clone)]
pub(crate) struct IdentityLedger {
    shared: Arc<LedgerState>,
    jobs: mpsc::Sender<IdentityDecision>,
}

/// Told what is durable. It must be quick.
type ChangeFollower = Box<dyn Fn(&IdentityChange) + Send + Sync>;

struct LedgerState {
    /// Locked before the book, so that nobody misses a change or hears of one twice.
    followers: Mutex<Vec<ChangeFollower>>,
    book: RwLock<IdentityBook>,
    keys: RwLock<Arc<Keys>>,
    clock: SharedClock,
}

/// What a decision works on.
pub(crate) struct Draft {
    pub(crate) book: IdentityBook,
    /// What signs; a decision that changes it seals it first, and installs it when nothing is left to fail.
    keys: Arc<Keys>,
    /// Writes of keys that changed.
    key_ops: Vec<Bytes>,
    /// On whose behalf what is written next was decided.
    causes: Vec<CallCause>,
}

/// Keys, and what writes how they differ from those before.
pub(crate) struct SealedKeys {
    keys: Keys,
    ops: Vec<Bytes>,
}

type WaitingCaller = Box<dyn FnOnce(Result<(), Status>) + Send>;
/// Decides, and returns who waits for the commit; `None`: it was refused and has been answered.
type IdentityDecision = Box<dyn FnOnce(&mut Draft) -> Option<WaitingCaller> + Send>;

/// Writes what is decided, as long as it runs.
pub(crate) struct IdentityWriter {
    store: Store,
    shared: Arc<LedgerState>,
    jobs: mpsc::Receiver<IdentityDecision>,
    draft: Draft,
}

impl Draft {
    pub(crate) fn keys(&self) -> &Arc<Keys> {
        &self.keys
    }

    /// Seals other keys.
    ///
    /// # Errors
    /// They cannot be sealed.
    pub(crate) fn seal(&self, keys: Keys) -> Result<SealedKeys, KeysError> {
        Ok(SealedKeys { ops: keys.changed_since(&self.keys)?, keys })
    }

    /// Signs with other keys from the commit on.
    pub(crate) fn install(&mut self, SealedKeys { keys, ops }: SealedKeys) {
        self.key_ops.extend(ops);
        self.keys = Arc::new(keys);
    }
}

impl IdentityLedger {
    /// From what the store holds.
    pub(crate) fn new(
        store: Store,
        clock: SharedClock,
        book: IdentityBook,
        keys: Keys,
    ) -> (Self, IdentityWriter) {
        let (sender, jobs) = mpsc::channel(N_WAITING_MAX);
        let keys = Arc::new(keys);
        let shared = Arc::new(LedgerState {
            followers: Mutex::default(),
            book: RwLock::new(book.clone()),
            keys: RwLock::new(Arc::clone(&keys)),
            clock,
        });
        let draft = Draft { book, keys, key_ops: Vec::new(), causes: Vec::new() };
        let writer = IdentityWriter { store, shared: Arc::clone(&shared), jobs, draft };
        (Self { shared, jobs: sender }, writer)
    }

    /// Milliseconds since 1970: the clock by which all is judged.
    pub(crate) fn now_ms(&self) -> u64 {
        unsigned(self.shared.clock.wall_ms())
    }

    /// Reads what is committed. Keep it short.
    pub(crate) fn read<R>(&self, read: impl FnOnce(&IdentityBook) -> R) -> R {
        read(&self.shared.book.read())
    }

    /// What signs now.
    pub(crate) fn keys(&self) -> Arc<Keys> {
        Arc::clone(&self.shared.keys.read())
    }

    /// Tells `follower` all that is known, and from then on each change once it is durable.
    pub(crate) fn follow(&self, follower: impl Fn(&IdentityChange) + Send + Sync + 'static) {
        let mut followers = self.shared.followers.lock();
        self.shared.book.read().all().for_each(|change| follower(&change));
        followers.push(Box::new(follower));
    }

    /// Makes a decision, and returns what it says once it is durable. A refusal changes nothing.
    ///
    /// # Errors
    /// The decision refuses, or the commit fails.
    pub(crate) async fn decide<T: Send + 'static>(
        &self,
        decide: impl FnOnce(&mut Draft) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        self.decide_for(None, decide).await
    }

    /// The same on behalf of a call, of which the change log gets a line if the decision changes anything.
    ///
    /// # Errors
    /// The decision refuses, or the commit fails.
    pub(crate) async fn decide_for<T: Send + 'static>(
        &self,
        cause: Option<CallCause>,
        decide: impl FnOnce(&mut Draft) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let (reply, answer) = oneshot::channel();
        let decision: IdentityDecision = Box::new(move |draft| match decide(draft) {
            Ok(decided) => {
                draft.causes.extend(cause);
                Some(Box::new(move |written: Result<(), Status>| {
                    // Who asked may have left.
                    drop(reply.send(written.map(|()| decided)));
                }))
            }
            Err(refusal) => {
                drop(reply.send(Err(refusal)));
                None
            }
        });
        self.jobs.try_send(decision).map_err(error::queue)?;
        answer.await.map_err(|_| status::stopping())?
    }
}

impl IdentityWriter {
    /// Decides and writes until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut tidy = tokio::time::interval(TIDY_INTERVAL);
        tidy.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let mut answers = Vec::new();
            tokio::select! {
                decision = self.jobs.recv() => match decision {
                    Some(decision) => answers.extend(decision(&mut self.draft)),
                    None => return,
                },
                _ = tidy.tick() => self.tidy(),
                () = stop.cancelled() => return,
            }
            for _ in 1..N_ROUND_MAX {
                if self.draft.book.n_changed() > N_ROUND_CHANGES_MAX {
                    break;
                }
                let Ok(decision) = self.jobs.try_recv() else { break };
                answers.extend(decision(&mut self.draft));
            }
            let written = self.commit().await;
            for answer in answers {
                answer(written.clone().map_err(|refusal| error::status(&refusal, None)));
            }
            // Whoever renewed may have been the last one with a leaf of a root that is leaving.
            if self.draft.book.is_rotating() {
                self.tidy();
                // What it refuses is logged, and tried again.
                let _refused = self.commit().await;
            }
        }
    }

    /// Follows what the leader writes until `stop`. What is decided meanwhile is not written: this state issues its own leaf by it, and nothing else.
    pub(crate) async fn follow(mut self, mut watcher: Watcher, stop: CancellationToken) {
        loop {
            tokio::select! {
                decision = self.jobs.recv() => {
                    let Some(decision) = decision else { return };
                    if let Some(answer) = decision(&mut self.draft) {
                        answer(Ok(()));
                    }
                    self.start_over();
                }
                group = watcher.next() => match group {
                    Ok(group) => group.iter().flat_map(|published| &published.changes).for_each(|op| self.hear(op)),
                    Err(error) => return tracing::error!(%error, "identities are not followed any more"),
                },
                () = stop.cancelled() => return,
            }
        }
    }

    /// Shows what the leader has written.
    fn hear(&mut self, op: &ParsedOp) {
        if let Err(error) = self.hear_key(op) {
            tracing::error!(%error, "a key of a root cannot be opened");
        }
        let cluster = self.shared.book.read().trust().cluster.clone();
        match records::change_of(op, &cluster, fingerprint_of) {
            Ok(Some(change)) => {
                let followers = self.shared.followers.lock();
                followers.iter().for_each(|follower| follower(&change));
                self.shared.book.write().apply(change);
                drop(followers);
                self.start_over();
            }
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "a record of identities cannot be read"),
        }
    }

    /// Opens the keys of a root that has come, and drops those of one that has gone.
    fn hear_key(&mut self, op: &ParsedOp) -> Result<(), KeysError> {
        let keys = Arc::clone(&self.shared.keys.read());
        let keys = match op {
            ParsedOp::Put { kind: v1::Kind::SealedSigner, value, .. } => {
                let cluster = self.shared.book.read().trust().cluster.clone();
                keys.with_sealed(&cluster, &v1::SealedSigner::decode(value.clone()).unwrap_or_default())?
            }
            ParsedOp::Delete { kind: v1::Kind::SealedSigner, key } => keys.without_named(&key.to_string()),
            _ => return Ok(()),
        };
        *self.shared.keys.write() = Arc::new(keys);
        self.start_over();
        Ok(())
    }

    /// Drops roots that nobody uses, with their keys, and what ended long ago. Before other decisions: where it fails, it forgets them.
    fn tidy(&mut self) {
        let clock = &self.shared.clock;
        let clock = TidyClock { now_ms: unsigned(clock.wall_ms()), monotonic: clock.now() };
        let dropped = self.draft.book.tidy(clock);
        if dropped.is_empty() {
            return;
        }
        match self.draft.seal(self.draft.keys.without(&dropped)) {
            Ok(keys) => {
                self.draft.install(keys);
                dropped
                    .iter()
                    .for_each(|root| tracing::info!(%root, "a root that nobody uses any more is dropped"));
            }
            Err(error) => {
                tracing::error!(%error, "a root that nobody uses any more cannot be dropped");
                self.start_over();
            }
        }
    }

    /// Writes what has changed, and shows it.
    async fn commit(&mut self) -> Result<(), TxnRefusal> {
        let changes = self.draft.book.take_changes();
        let mut ops: Vec<Bytes> = std::mem::take(&mut self.draft.key_ops);
        ops.extend(changes.iter().cloned().map(records::op));
        let causes = std::mem::take(&mut self.draft.causes);
        if ops.is_empty() {
            return Ok(());
        }
        let lines = causes.into_iter().map(|cause| to_proto::change_line(&ChangeLine::done(cause)));
        let txn = raw::TxnRequest { ops, changes: lines.collect(), ..raw::TxnRequest::default() };
        debug_assert_eq!(crate::check::readable(&txn), Ok(()));
        if let Err(refusal) = self.store.submit(txn, Role::Identities).await {
            tracing::warn!(%refusal, "records of identities were refused");
            self.start_over();
            return Err(refusal);
        }
        let followers = self.shared.followers.lock();
        for change in changes {
            followers.iter().for_each(|follower| follower(&change));
            self.shared.book.write().apply(change);
        }
        drop(followers);
        *self.shared.keys.write() = Arc::clone(&self.draft.keys);
        Ok(())
    }

    /// Forgets what was not written.
    fn start_over(&mut self) {
        self.draft = Draft {
            book: self.shared.book.read().clone(),
            keys: Arc::clone(&self.shared.keys.read()),
            key_ops: Vec::new(),
            causes: Vec::new(),
        };
    }
}
