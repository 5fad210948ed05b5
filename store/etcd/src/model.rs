//! An etcd in memory that answers late, twice or never.
//!
//! A seed decides what happens to each call. A transaction may be applied without an answer, lost, or delayed and applied
//! later in any order, even when its caller has given up or another process has taken over. The model also loses its
//! quorum for a while, raises its alarm for lack of space, and compacts. It never loses an applied transaction.
//!
//! [`Etcd::call`] always returns at once, possibly with an unknown outcome. Answers to [`Etcd::submit`] may be delayed until a later
//! call or [`EtcdModel::settle`]. A call with a delay is made by its own thread.

mod dice;
mod keys;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;

use self::{dice::Dice, keys::Keys};
use crate::{
    CallError,
    kv::{Answer, Etcd, Header, Reply, Request, Sizes, TxnRequest},
};

/// How often each fault happens to a call, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A transaction is applied, and the caller never hears of it.
    pub unanswered: u64,
    /// A transaction is lost, and the caller does not know.
    pub lost: u64,
    /// A transaction is delayed, and the caller does not know.
    pub late: u64,
    /// A transaction is applied and answered, and applied once more later.
    pub twice: u64,
    /// The quorum is lost for some calls.
    pub outage: u64,
    /// The alarm for lack of space is raised for some calls.
    pub alarm: u64,
    /// An answer to [`Etcd::submit`] is delayed.
    pub held: u64,
}

impl Faults {
    /// About every third transaction has a fault.
    pub fn many() -> Self {
        Self { unanswered: 80, lost: 60, late: 80, twice: 80, outage: 20, alarm: 5, held: 400 }
    }
}

/// Counts of what has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Happened {
    /// Transactions that were applied.
    pub applied: u64,
    /// Transactions whose comparisons did not hold.
    pub failed: u64,
    /// Transactions that were applied late, or once more; whether their comparisons held or not.
    pub late: u64,
    /// Transactions that changed something late, or once more.
    pub late_changes: u64,
    /// Calls that found no quorum.
    pub outages: u64,
    /// Transactions that were refused for lack of space.
    pub refused: u64,
}

/// Length of the longest outage, in calls.
const N_OUTAGE_CALLS: u64 = 6;

/// The cluster. Clones share it.
#[derive(Clone)]
pub struct EtcdModel(Arc<Mutex<Cluster>>);

struct Cluster {
    id: u64,
    keys: Keys,
    dice: Dice,
    faults: Faults,
    happened: Happened,
    /// Transactions that were sent and are not applied yet.
    late: Vec<LateTxn>,
    /// Whether delayed transactions are held until [`EtcdModel::settle`].
    holds_late: bool,
    /// Answers that were not given yet.
    held: Vec<(Answer, Result<Reply, CallError>)>,
    /// Number of calls that still find no quorum.
    n_down: u64,
    /// Number of calls that still find the alarm raised.
    n_full: u64,
    /// Whether the alarm is raised until it is disarmed.
    is_alarmed: bool,
}

struct LateTxn {
    txn: TxnRequest,
    /// Counts the changes of the session that sent it.
    n_changes: Arc<AtomicU64>,
}

/// One process that uses the cluster. Clones share it.
#[derive(Clone)]
pub struct Session {
    cluster: EtcdModel,
    /// Number of calls that the process may still make.
    n_txns: Arc<AtomicU64>,
    /// Number of its transactions that changed something.
    n_changes: Arc<AtomicU64>,
}

impl fmt::Debug for EtcdModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdModel").field("happened", &self.happened()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("n_txns", &self.n_txns).finish_non_exhaustive()
    }
}

impl EtcdModel {
    /// Creates an empty cluster without faults, whose random decisions follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Cluster {
            id: seed | 1,
            keys: Keys::default(),
            dice: Dice(seed),
            faults: Faults::default(),
            happened: Happened::default(),
            late: Vec::new(),
            holds_late: false,
            held: Vec::new(),
            n_down: 0,
            n_full: 0,
            is_alarmed: false,
        })))
    }

    /// Connects a process to the cluster.
    pub fn connect(&self) -> Arc<Session> {
        Arc::new(Session {
            cluster: self.clone(),
            n_txns: Arc::new(AtomicU64::new(u64::MAX)),
            n_changes: Arc::default(),
        })
    }

    /// Sets the faults of later calls.
    pub fn set_faults(&self, faults: Faults) {
        let mut cluster = self.0.lock();
        cluster.faults = faults;
        cluster.n_down = 0;
        cluster.n_full = 0;
    }

    /// Holds delayed transactions until [`EtcdModel::settle`], however much happens meanwhile.
    pub fn hold_late(&self) {
        self.0.lock().holds_late = true;
    }

    /// Takes the quorum away, or gives it back.
    pub fn set_quorum(&self, is_there: bool) {
        self.0.lock().n_down = if is_there { 0 } else { u64::MAX };
    }

    /// Raises or disarms the alarm for lack of space.
    pub fn set_alarm(&self, is_raised: bool) {
        self.0.lock().is_alarmed = is_raised;
    }

    /// Changes the id of the cluster, as a restore from a backup does.
    pub fn set_cluster(&self, id: u64) {
        self.0.lock().id = id;
    }

    /// Applies all delayed transactions in random order, and gives all answers.
    pub fn settle(&self) {
        let held = {
            let mut cluster = self.0.lock();
            while !cluster.late.is_empty() {
                cluster.apply_late();
            }
            std::mem::take(&mut cluster.held)
        };
        give(held);
    }

    /// Returns the counts of what has happened so far.
    pub fn happened(&self) -> Happened {
        self.0.lock().happened
    }

    /// Returns all keys with their values, in order.
    pub fn dump(&self) -> Vec<(Bytes, Bytes)> {
        self.0.lock().keys.all()
    }

    /// Replaces all keys by these and sets the revision, as a restored backup does.
    pub fn restore(&self, keys: Vec<(Bytes, Bytes)>, revision: u64) {
        self.0.lock().keys = Keys::of(keys, revision);
    }

    /// Returns the revision of the store, and the revision of the last compaction.
    pub fn revisions(&self) -> Revisions {
        let cluster = self.0.lock();
        Revisions { last: cluster.keys.revision, compacted: cluster.keys.compacted }
    }
}

/// Revisions of the store of an [`EtcdModel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revisions {
    /// The last revision.
    pub last: u64,
    /// The last revision that was compacted.
    pub compacted: u64,
}

/// Gives answers without holding the lock, because a receiver may call again.
fn give(held: Vec<(Answer, Result<Reply, CallError>)>) {
    for (answer, outcome) in held {
        answer(outcome);
    }
}

fn unknown() -> CallError {
    CallError::Unknown("no answer in time".to_owned())
}

impl Cluster {
    fn header(&self) -> Header {
        Header { cluster: self.id, revision: self.keys.revision }
    }

    /// Applies one of the delayed transactions.
    fn apply_late(&mut self) {
        let at = self.dice.index(self.late.len());
        let LateTxn { txn, n_changes } = self.late.swap_remove(at);
        self.happened.late += 1;
        if !self.is_full(&txn) {
            let before = self.keys.revision;
            self.keys.apply(&txn);
            let has_changed = u64::from(self.keys.revision > before);
            self.happened.late_changes += has_changed;
            n_changes.fetch_add(has_changed, Ordering::Relaxed);
        }
    }

    fn is_full(&self, txn: &TxnRequest) -> bool {
        (self.is_alarmed || self.n_full > 0) && txn.ops.iter().any(|op| op.bytes() > 0)
    }

    fn apply(&mut self, txn: &TxnRequest, n_changes: &Arc<AtomicU64>) -> Result<Reply, CallError> {
        if self.is_full(txn) {
            self.happened.refused += 1;
            return Err(CallError::NoSpace);
        }
        let before = self.keys.revision;
        let mut reply = self.keys.apply(txn);
        n_changes.fetch_add(u64::from(self.keys.revision > before), Ordering::Relaxed);
        if reply.succeeded {
            self.happened.applied += 1;
        } else {
            self.happened.failed += 1;
        }
        reply.header = self.header();
        Ok(Reply::Txn(reply))
    }

    /// Decides the outcome of a call.
    fn take(&mut self, request: &Request, n_changes: &Arc<AtomicU64>) -> Result<Reply, CallError> {
        // A delayed transaction arrives at any time, or never.
        while !self.holds_late && !self.late.is_empty() && self.dice.has_luck(300) {
            self.apply_late();
        }
        if !self.holds_late && !self.late.is_empty() && self.dice.has_luck(20) {
            let at = self.dice.index(self.late.len());
            self.late.swap_remove(at);
        }
        self.n_full = self.n_full.saturating_sub(1);
        if self.dice.has_luck(self.faults.alarm) {
            self.n_full = 1 + self.dice.roll(N_OUTAGE_CALLS);
        }
        if self.n_down == 0 && self.dice.has_luck(self.faults.outage) {
            self.n_down = 1 + self.dice.roll(N_OUTAGE_CALLS);
        }
        if self.n_down > 0 {
            if self.n_down < u64::MAX {
                self.n_down -= 1;
            }
            self.happened.outages += 1;
            if let Request::Txn(txn) = request
                && self.dice.has_luck(500)
            {
                self.put_aside(txn, n_changes);
                return Err(unknown());
            }
            return Err(CallError::NotDone("no member answers".to_owned()));
        }
        match request {
            Request::Range(range) => {
                let mut page = self.keys.range(range);
                page.header = self.header();
                Ok(Reply::Page(page))
            }
            Request::Sizes => Ok(Reply::Sizes(Sizes {
                header: self.header(),
                db_bytes: self.keys.db_bytes,
                in_use_bytes: self.keys.in_use_bytes(),
                has_no_space: self.is_alarmed || self.n_full > 0,
            })),
            Request::Compact(revision) => self.keys.compact(*revision).map(|()| Reply::Compacted),
            Request::Txn(txn) => self.take_txn(txn, n_changes),
        }
    }

    fn put_aside(&mut self, txn: &TxnRequest, n_changes: &Arc<AtomicU64>) {
        self.late.push(LateTxn { txn: txn.clone(), n_changes: Arc::clone(n_changes) });
    }

    fn take_txn(&mut self, txn: &TxnRequest, n_changes: &Arc<AtomicU64>) -> Result<Reply, CallError> {
        let mut drawn = self.dice.roll(1_000);
        let mut is_drawn = |rate: u64| {
            let is_drawn = drawn < rate;
            drawn = drawn.wrapping_sub(if is_drawn { 0 } else { rate });
            is_drawn
        };
        let Faults { unanswered, lost, late, twice, .. } = self.faults;
        if is_drawn(unanswered) {
            // The caller gets no answer.
            let _ = self.apply(txn, n_changes);
            return Err(unknown());
        }
        if is_drawn(lost) {
            return Err(unknown());
        }
        if is_drawn(late) {
            self.put_aside(txn, n_changes);
            return Err(unknown());
        }
        if is_drawn(twice) {
            self.put_aside(txn, n_changes);
        }
        self.apply(txn, n_changes)
    }
}

impl Session {
    /// Ends the process: only its delayed transactions may still arrive.
    pub fn cut(&self) {
        self.cut_after(0);
    }

    /// Ends the process after this many more transactions. Reads do not count: some are made all the time.
    pub fn cut_after(&self, n_txns: u64) {
        self.n_txns.store(n_txns, Ordering::Relaxed);
    }

    /// Whether the process has ended.
    pub fn is_cut(&self) -> bool {
        self.n_txns.load(Ordering::Relaxed) == 0
    }

    /// Counts a transaction; returns whether the process may still make the call.
    fn may_call(&self, request: &Request) -> bool {
        if !matches!(request, Request::Txn(_)) {
            return !self.is_cut();
        }
        let left = |n_txns: u64| if n_txns == u64::MAX { Some(n_txns) } else { n_txns.checked_sub(1) };
        self.n_txns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok()
    }

    /// Returns the number of its transactions that have changed something, however late.
    pub fn n_changes(&self) -> u64 {
        self.n_changes.load(Ordering::Relaxed)
    }
}

impl Etcd for Session {
    fn call(&self, request: Request) -> Result<Reply, CallError> {
        if !self.may_call(&request) {
            return Err(CallError::NotDone("the process has ended".to_owned()));
        }
        let (outcome, held) = {
            let mut cluster = self.cluster.0.lock();
            let outcome = cluster.take(&request, &self.n_changes);
            let mut held = Vec::new();
            while !cluster.held.is_empty() && cluster.dice.has_luck(500) {
                let len = cluster.held.len();
                let at = cluster.dice.index(len);
                held.push(cluster.held.swap_remove(at));
            }
            (outcome, held)
        };
        give(held);
        outcome
    }

    fn submit(&self, request: Request, delay: Duration, answer: Answer) {
        if !delay.is_zero() {
            let session = self.clone();
            let later = move || {
                std::thread::sleep(delay);
                session.submit(request, Duration::ZERO, answer);
            };
            // Without a thread the answer is dropped, as when a client ends.
            drop(std::thread::Builder::new().name("etcd-model".to_owned()).spawn(later));
            return;
        }
        if !self.may_call(&request) {
            return answer(Err(CallError::NotDone("the process has ended".to_owned())));
        }
        let given = {
            let mut cluster = self.cluster.0.lock();
            let outcome = cluster.take(&request, &self.n_changes);
            let rate = cluster.faults.held;
            if cluster.dice.has_luck(rate) {
                cluster.held.push((answer, outcome));
                None
            } else {
                Some((answer, outcome))
            }
        };
        give(given.into_iter().collect());
    }
}

#[cfg(test)]
mod tests;
