//! What faces, the follower, the writer of records and the workers share: the adapter behind one short lock, and what it wants done.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use godel_base::ids::Revision;
use godel_core_yarn::{
    AppAcls,
    adapter::{AdapterTime, YarnAction, YarnAdapter, YarnApplication},
    asks::AskGrowth,
    ids::YarnApplicationId,
};
use godel_crash::CrashPoints;
use godel_domain::yarn_keys::YarnKeys;
use godel_kit::{CancellationToken, client::Directory, clock::SharedClock, task};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};

use crate::{
    config::Config,
    launcher::Launcher,
    manager::ManagerRefusal,
    metrics::YarnMetrics,
    picture::Picture,
    record::{AppNotes, AttemptNotes},
    reports::YarnAmount,
    rules::{AdapterRules, acls_of_launch},
};

/// What does not change while the adapter runs.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) directory: Directory,
    pub(crate) crash: CrashPoints,
    pub(crate) metrics: YarnMetrics,
    pub(crate) launcher: Arc<dyn Launcher>,
    pub(crate) rules: AdapterRules,
}

/// A time in which this adapter leads.
#[derive(Clone, Debug)]
pub(crate) struct Term {
    /// Cancelled at its end.
    pub(crate) stop: CancellationToken,
}

/// Whether this adapter leads.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    /// It does not; `Some`: another one does, there.
    Standby(Option<String>),
    Leading(Term),
}

/// Replicas that are being added to a task group, by what they are for.
pub(crate) type Growing = Vec<(String, VecDeque<AskGrowth>)>;

/// What the service keeps of an application.
#[derive(Clone, Debug, Default)]
pub(crate) struct AppEntry {
    pub(crate) notes: AppNotes,
    /// What it allows others than its user.
    pub(crate) acls: AppAcls,
    /// Version of its newest record in the store.
    pub(crate) saved: u64,
    pub(crate) progress: f32,
    /// What its master waits for, a sentence; empty: nothing in particular.
    pub(crate) waits: String,
    /// What it could get, as its master was told last.
    pub(crate) headroom: Option<KnownHeadroom>,
    /// What its worker does next.
    todo: VecDeque<YarnAction>,
    has_worker: bool,
    pub(crate) growing: Growing,
    /// The dispatcher has refused to add replicas: they are asked for again later.
    pub(crate) is_growth_refused: bool,
    /// Its record is about to be deleted.
    pub(crate) is_going: bool,
    /// Changes of nodes that its master has been told.
    pub(crate) n_node_changes_told: Option<u64>,
}

impl AppEntry {
    /// Of an application whose newest record has this version; 0: it has none.
    pub(crate) fn new(notes: AppNotes, saved: u64) -> Self {
        Self { acls: acls_of_launch(&notes.launch), notes, saved, ..Self::default() }
    }
}

/// Room that a master was told of, which is the same until something changes.
#[derive(Clone, Debug)]
pub(crate) struct KnownHeadroom {
    /// The sums and the asks that it follows from.
    pub(crate) versions: (u64, u64),
    pub(crate) queue: String,
    pub(crate) room: YarnAmount,
}

/// What one lock guards.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) role: Role,
    pub(crate) adapter: YarnAdapter,
    pub(crate) entries: BTreeMap<YarnApplicationId, AppEntry>,
    pub(crate) picture: Picture,
    pub(crate) cluster_timestamp: i64,
    pub(crate) next_number: u32,
    pub(crate) started_ms: i64,
    /// Applications whose record is to be written, and those whose record is to go.
    pub(crate) to_write: BTreeSet<YarnApplicationId>,
    pub(crate) to_delete: BTreeSet<YarnApplicationId>,
    pub(crate) keys_to_write: Vec<YarnKeys>,
    /// Keys were handed to the store and not read back yet: no others are made meanwhile.
    pub(crate) are_keys_written: bool,
}

impl Inner {
    fn new(config: &Config, started_ms: i64) -> Self {
        Self {
            role: Role::Standby(None),
            adapter: YarnAdapter::new(config.terms()),
            entries: BTreeMap::new(),
            picture: Picture::new(&config.namespace, &config.rack_key).with_label_key(&config.label_key),
            cluster_timestamp: started_ms,
            next_number: 1,
            started_ms,
            to_write: BTreeSet::new(),
            to_delete: BTreeSet::new(),
            keys_to_write: Vec::new(),
            are_keys_written: false,
        }
    }

    /// The time in which it leads now.
    ///
    /// # Errors
    /// It stands by.
    pub(crate) fn term(&self) -> Result<Term, ManagerRefusal> {
        match &self.role {
            Role::Leading(term) if !term.stop.is_cancelled() => Ok(term.clone()),
            Role::Leading(_) => Err(ManagerRefusal::Standby(None)),
            Role::Standby(leader) => Err(ManagerRefusal::Standby(leader.clone())),
        }
    }

    /// An application with what is kept of it.
    ///
    /// # Errors
    /// There is none, or this adapter stands by.
    pub(crate) fn application(
        &self,
        id: YarnApplicationId,
    ) -> Result<(&YarnApplication, &AppEntry), ManagerRefusal> {
        self.term()?;
        let known = self.adapter.get(id).zip(self.entries.get(&id));
        known.ok_or(ManagerRefusal::NoApplication(id))
    }

    /// Takes what the adapter wants done. The applications that need a worker for that.
    pub(crate) fn take(&mut self, actions: Vec<YarnAction>, at: AdapterTime) -> Vec<YarnApplicationId> {
        let mut starts = Vec::new();
        let mut concerned = BTreeSet::new();
        for action in actions {
            let id = application_of(&action);
            concerned.insert(id);
            if let YarnAction::PutRecord(..) = action {
                self.to_write.insert(id);
                continue;
            }
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            match (entry.todo.back_mut(), action) {
                (Some(YarnAction::Release(_, queued)), YarnAction::Release(_, more)) => queued.extend(more),
                (_, action) => entry.todo.push_back(action),
            }
            if !std::mem::replace(&mut entry.has_worker, true) {
                starts.push(id);
            }
        }
        for id in concerned {
            self.note_attempts(id, at);
        }
        starts
    }

    fn note_attempts(&mut self, id: YarnApplicationId, at: AdapterTime) {
        let Some((application, entry)) = self.adapter.get(id).zip(self.entries.get_mut(&id)) else { return };
        let noted = &mut entry.notes.attempts;
        while noted.len() < application.attempts().len() {
            noted.push(AttemptNotes { start_ms: at.wall_ms, ..AttemptNotes::default() });
        }
        for (attempt, notes) in application.attempts().iter().zip(noted) {
            if attempt.state.is_over() && notes.finish_ms == 0 {
                notes.finish_ms = at.wall_ms;
            }
        }
    }

    /// The next thing that the worker of an application does; without one the worker ends.
    pub(crate) fn next_action(&mut self, id: YarnApplicationId) -> Option<YarnAction> {
        let entry = self.entries.get_mut(&id)?;
        let action = entry.todo.pop_front();
        entry.has_worker = action.is_some();
        action
    }
}

fn application_of(action: &YarnAction) -> YarnApplicationId {
    match action {
        YarnAction::PutRecord(id, _)
        | YarnAction::SubmitUnit(id)
        | YarnAction::Grow(id, _)
        | YarnAction::Release(id, _)
        | YarnAction::NextMaster(id)
        | YarnAction::MoveUnit(id, _)
        | YarnAction::CancelUnit(id) => *id,
        YarnAction::LaunchMaster(attempt, _) | YarnAction::StopMaster(attempt) => attempt.application,
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) inner: Mutex<Inner>,
    pub(crate) context: Context,
    clock: Clock,
    /// There is something to write.
    pub(crate) records: Notify,
    /// Rises when the picture or a record has changed.
    changes: watch::Sender<u64>,
    /// Calls of the dispatcher in progress.
    pub(crate) calls: Semaphore,
}

struct Clock(SharedClock);

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Clock").field(&self.0.wall_ms()).finish()
    }
}

impl Shared {
    pub(crate) fn new(context: Context, clock: SharedClock) -> Arc<Self> {
        let calls = Semaphore::new(context.config.calls_max.clamp(1, Semaphore::MAX_PERMITS));
        let inner = Mutex::new(Inner::new(&context.config, clock.wall_ms()));
        Arc::new(Self {
            inner,
            context,
            clock: Clock(clock),
            records: Notify::new(),
            changes: watch::Sender::new(0),
            calls,
        })
    }

    pub(crate) fn at(&self) -> AdapterTime {
        AdapterTime { now: self.clock.0.now(), wall_ms: self.clock.0.wall_ms() }
    }

    /// Runs something on the adapter under the lock, and has done what comes of it.
    ///
    /// # Errors
    /// This adapter stands by.
    pub(crate) fn run<T>(
        self: &Arc<Self>,
        what: impl FnOnce(&mut Inner, AdapterTime, &mut Vec<YarnAction>) -> T,
    ) -> Result<T, ManagerRefusal> {
        let at = self.at();
        let mut out = Vec::new();
        let mut inner = self.inner.lock();
        let term = inner.term()?;
        let answer = what(&mut inner, at, &mut out);
        let starts = inner.take(out, at);
        let has_records = !inner.to_write.is_empty();
        drop(inner);
        if has_records {
            self.records.notify_one();
        }
        for id in starts {
            task::spawn("yarn.unit", super::act::work(Arc::clone(self), term.clone(), id));
        }
        Ok(answer)
    }

    /// The same on one application; nothing if there is none, or this adapter stands by.
    pub(crate) fn run_on(
        self: &Arc<Self>,
        id: YarnApplicationId,
        what: impl FnOnce(
            &mut YarnApplication,
            godel_core_yarn::adapter::AdapterTerms,
            AdapterTime,
            &mut Vec<YarnAction>,
        ),
    ) {
        // Who follows has read what this would have been about.
        let _ = self.run(|inner, at, out| {
            inner.adapter.with(id, |application, terms| what(application, terms, at, out))
        });
    }

    /// The picture or a record has changed.
    pub(crate) fn note_change(&self) {
        self.changes.send_modify(|n| *n += 1);
    }

    /// Waits until something is so; looks again with each change.
    pub(crate) async fn until(&self, is_so: impl Fn(&Inner) -> bool) {
        let mut changes = self.changes.subscribe();
        loop {
            changes.mark_unchanged();
            let is_now = is_so(&self.inner.lock());
            if is_now || changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until the store was read up to a revision.
    pub(crate) async fn until_read(&self, revision: Revision) {
        self.until(|inner| inner.picture.read.is_some_and(|read| read >= revision)).await;
    }

    /// Waits for something that records or the dispatcher bring about, for so long at most. Whether it came.
    pub(crate) async fn until_in(&self, limit: Duration, is_so: impl Fn(&Inner) -> bool) -> bool {
        tokio::time::timeout(limit, self.until(is_so)).await.is_ok()
    }
}
