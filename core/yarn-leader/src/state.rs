//! What the leader knows: the adapter's applications with what is kept of them, the picture of the cluster, and what is to be written.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use godel_core_yarn::{
    AppAcls,
    adapter::{AdapterTime, AppRecord, AttemptRecord, MASTER, YarnAction, YarnAdapter, YarnApplication},
    asks::AskGrowth,
    ids::{YarnApplicationId, YarnAttemptId, YarnContainerId},
};
use godel_domain::{change_line::CallCause, yarn_keys::YarnKeys};

use crate::{
    access::AdapterRules,
    answers::{ManagerRefusal, MasterLaunch},
    config::YarnLeaderConfig,
    keys::KnownKeys,
    notes::{AppNotes, AttemptNotes},
    outbox::YarnWrite,
    picture::YarnPicture,
    queues::yarn_name,
    reports::YarnAmount,
    show::used_seconds,
};

/// Bytes of records in one transaction, about; one that is larger goes alone.
const BYTES_MAX: usize = 512 << 10;
/// Bytes of a record beside its texts and lists, at most; of an attempt; of an entry of a list.
const RECORD_BYTES: usize = 512;
const ATTEMPT_BYTES: usize = 256;
const ENTRY_BYTES: usize = 32;
/// Bytes of a line of the change log, about: a principal, a method, an application and an address.
const LINE_BYTES: usize = 512;
/// Changes of one application that wait for its record: further ones are refused until the store has taken that.
const N_CAUSES_MAX: usize = 16;
/// Lines of the change log in one transaction; the store takes 1,024.
const N_LINES_MAX: usize = 1_000;

/// Whether this adapter leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaderRole {
    /// It does not; `Some`: another one does, there.
    Standby(Option<String>),
    Leading,
}

/// Replicas that are being added to a task group, by what they are for.
pub(crate) type Growing = Vec<(String, VecDeque<AskGrowth>)>;

/// What the leader keeps of an application.
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
    /// What is done next about its unit.
    todo: VecDeque<YarnAction>,
    is_worked_on: bool,
    pub(crate) growing: Growing,
    /// The dispatcher has refused to add replicas: they are asked for again later.
    pub(crate) is_growth_refused: bool,
    /// Its record is about to be deleted.
    pub(crate) is_going: bool,
    /// Changes of nodes that its master has been told.
    pub(crate) n_node_changes_told: Option<u64>,
    /// On whose behalf it was changed since its record was written last: the change log has lines of these with the next one.
    causes: Vec<CallCause>,
}

impl AppEntry {
    /// Of an application whose newest record has this version; 0: it has none.
    pub(crate) fn new(notes: AppNotes, acls: AppAcls, saved: u64) -> Self {
        Self { notes, acls, saved, ..Self::default() }
    }

    /// What is kept of an attempt.
    pub(crate) fn attempt(&mut self, attempt: YarnAttemptId) -> Option<&mut AttemptNotes> {
        self.notes.attempts.get_mut(usize::try_from(attempt.number.checked_sub(1)?).ok()?)
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

/// Records that are written together.
#[derive(Debug, Default)]
pub(crate) struct RecordBatch {
    /// Applications with the version that is written.
    pub(crate) written: Vec<(YarnApplicationId, u64)>,
    pub(crate) deleted: Vec<YarnApplicationId>,
    keys: Vec<YarnKeys>,
    /// On whose behalf they are written, by application.
    causes: Vec<(YarnApplicationId, CallCause)>,
}

impl RecordBatch {
    /// On whose behalf they are written.
    pub(crate) fn causes(&self) -> Vec<CallCause> {
        self.causes.iter().map(|(_, cause)| cause.clone()).collect()
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct LeaderState {
    pub(crate) config: YarnLeaderConfig,
    pub(crate) rules: AdapterRules,
    pub(crate) role: LeaderRole,
    pub(crate) adapter: YarnAdapter,
    pub(crate) entries: BTreeMap<YarnApplicationId, AppEntry>,
    pub(crate) picture: YarnPicture,
    pub(crate) cluster_timestamp: i64,
    pub(crate) next_number: u32,
    pub(crate) started_ms: i64,
    /// Applications whose record is to be written, and those whose record is to go.
    to_write: BTreeSet<YarnApplicationId>,
    to_delete: BTreeSet<YarnApplicationId>,
    /// Applications whose record was refused alone: each is written alone again, when nothing else is to be written.
    refused: VecDeque<YarnApplicationId>,
    /// Records in one transaction: fewer after each refusal, until the one that is refused stands alone.
    n_records_max: usize,
    pub(crate) keys: KnownKeys,
    keys_to_write: Vec<YarnKeys>,
    /// Keys were handed to the store and not read back yet: no others are made meanwhile.
    pub(crate) are_keys_written: bool,
}

impl LeaderState {
    pub(crate) fn new(config: YarnLeaderConfig, rules: AdapterRules, started_ms: i64) -> Self {
        Self {
            role: LeaderRole::Standby(None),
            adapter: YarnAdapter::new(config.terms),
            entries: BTreeMap::new(),
            picture: YarnPicture::new(&config.namespace, &config.rack_key).with_label_key(&config.label_key),
            cluster_timestamp: started_ms,
            next_number: 1,
            started_ms,
            to_write: BTreeSet::new(),
            to_delete: BTreeSet::new(),
            refused: VecDeque::new(),
            n_records_max: usize::MAX,
            keys: KnownKeys::default(),
            keys_to_write: Vec::new(),
            are_keys_written: false,
            config,
            rules,
        }
    }

    pub(crate) fn leads(&self) -> bool {
        self.role == LeaderRole::Leading
    }

    /// Nothing of an earlier leadership is known any more.
    pub(crate) fn forget_all(&mut self, role: LeaderRole) {
        self.role = role;
        self.adapter = YarnAdapter::new(self.config.terms);
        self.entries.clear();
        self.to_write.clear();
        self.to_delete.clear();
        self.refused.clear();
        self.n_records_max = usize::MAX;
        self.keys_to_write.clear();
        self.are_keys_written = false;
    }

    /// Goes on while it leads.
    ///
    /// # Errors
    /// It stands by.
    pub(crate) fn term(&self) -> Result<(), ManagerRefusal> {
        match &self.role {
            LeaderRole::Leading => Ok(()),
            LeaderRole::Standby(leader) => Err(ManagerRefusal::Standby(leader.clone())),
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

    /// Takes what the adapter wants done. The applications about whose units somebody has to begin with that.
    pub(crate) fn take(&mut self, actions: Vec<YarnAction>, at: AdapterTime) -> Vec<YarnApplicationId> {
        let mut starts = Vec::new();
        let mut concerned = BTreeSet::new();
        for action in actions {
            let id = application_of(&action);
            concerned.insert(id);
            if let YarnAction::PutRecord(..) = action {
                if !self.refused.contains(&id) {
                    self.to_write.insert(id);
                }
                continue;
            }
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            match (entry.todo.back_mut(), action) {
                (Some(YarnAction::Release(_, queued)), YarnAction::Release(_, more)) => queued.extend(more),
                (_, action) => entry.todo.push_back(action),
            }
            if !std::mem::replace(&mut entry.is_worked_on, true) {
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

    /// The next thing that is done about the unit of an application; without one nobody is at it any more.
    pub(crate) fn next_action(&mut self, id: YarnApplicationId) -> Option<YarnAction> {
        let entry = self.entries.get_mut(&id)?;
        let action = entry.todo.pop_front();
        entry.is_worked_on = action.is_some();
        action
    }

    /// What a node is to be told of the master of an attempt; `None`: it is not on a node.
    pub(crate) fn master_launch(&self, attempt: YarnAttemptId) -> Option<MasterLaunch> {
        let (application, entry) = self.application(attempt.application).ok()?;
        let row = self.picture.unit(attempt.application)?.row(MASTER);
        if !row.phase.is_live() || row.incarnation.checked_add(1) != Some(attempt.number) {
            return None;
        }
        let (node, unit) = self.picture.place(attempt.application, MASTER)?;
        let submission = application.submission();
        let capability = submission.master.as_ref().map(|master| &master.capability);
        let wanted = u32::try_from(submission.max_attempts).unwrap_or(0);
        let most = self.config.terms.max_attempts;
        Some(MasterLaunch {
            attempt,
            container: YarnContainerId { attempt, epoch: 0, number: u64::from(MASTER) + 1 },
            node,
            unit,
            amount: capability.map(YarnAmount::from_capability).unwrap_or_default(),
            user: submission.user.clone(),
            queue: yarn_name(&self.config.root_queue, &submission.queue),
            launch: entry.notes.launch.clone(),
            submit_ms: application.times_ms().0,
            max_attempts: if (1..=most).contains(&wanted) { wanted } else { most },
        })
    }

    /// Has keys written that are due, made from `secret`.
    pub(crate) fn renew_keys(&mut self, at: AdapterTime, secret: &mut dyn FnMut() -> [u8; 32]) {
        if self.keys_to_write.is_empty() && !self.are_keys_written {
            self.keys_to_write = self.keys.due(at.wall_ms, self.config.key_period, secret);
        }
    }

    /// Applications that have ended are shown up to a number; the oldest ends go.
    pub(crate) fn forget_oldest(&mut self) {
        let stays = |id: &YarnApplicationId| {
            !self.to_write.contains(id)
                && !self.refused.contains(id)
                && self.entries.get(id).is_some_and(|entry| !entry.is_going)
        };
        let over =
            self.adapter.iter().filter(|application| application.is_over() && stays(&application.id()));
        let mut over: Vec<_> = over.map(|application| (application.times_ms().1, application.id())).collect();
        let n_left = over.len().saturating_sub(self.config.completed_max);
        over.sort_unstable();
        for (_, id) in over.into_iter().take(n_left) {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.is_going = true;
            }
            self.to_delete.insert(id);
        }
    }

    /// Replicas that the dispatcher has refused are asked for again.
    pub(crate) fn ask_again(&mut self, out: &mut Vec<YarnAction>) {
        let refused: Vec<YarnApplicationId> = self
            .entries
            .iter_mut()
            .filter_map(|(id, entry)| std::mem::take(&mut entry.is_growth_refused).then_some(*id))
            .collect();
        for id in refused {
            // It has an entry.
            let _ = self.adapter.with(id, |application, _| application.containers_mut().settle(out));
        }
    }

    /// What is to be written now, as far as one transaction has room for it.
    pub(crate) fn next_batch(&mut self, now_ms: i64) -> (Vec<YarnWrite>, RecordBatch) {
        let mut batch =
            RecordBatch { keys: std::mem::take(&mut self.keys_to_write), ..RecordBatch::default() };
        if !batch.keys.is_empty() {
            // Tokens need them, whatever becomes of records.
            self.are_keys_written = true;
            return (batch.keys.iter().cloned().map(YarnWrite::Keys).collect(), batch);
        }
        let mut writes = Vec::new();
        let mut n_bytes = 0;
        while writes.len() < self.n_records_max
            && let Some(id) = self.to_write.pop_first()
        {
            let Some((record, notes)) = self.record(id, now_ms) else { continue };
            let n_causes = self.entries.get(&id).map_or(0, |entry| entry.causes.len());
            let of_record = bytes_of(&record, &notes) + n_causes * LINE_BYTES;
            let is_over = n_bytes + of_record > BYTES_MAX || batch.causes.len() + n_causes > N_LINES_MAX;
            if n_bytes > 0 && is_over {
                self.to_write.insert(id);
                break;
            }
            n_bytes += of_record;
            self.put_into(&mut batch, record, notes, &mut writes);
        }
        while n_bytes < BYTES_MAX
            && writes.len() < self.n_records_max
            && let Some(id) = self.to_delete.pop_first()
        {
            n_bytes += RECORD_BYTES;
            writes.push(YarnWrite::ApplicationGone(id));
            batch.deleted.push(id);
        }
        while writes.is_empty()
            && let Some(id) = self.refused.pop_front()
        {
            let Some((record, notes)) = self.record(id, now_ms) else { continue };
            self.put_into(&mut batch, record, notes, &mut writes);
        }
        (writes, batch)
    }

    /// Has a record written, with lines of the change log for those on whose behalf it has changed.
    fn put_into(
        &mut self,
        batch: &mut RecordBatch,
        record: AppRecord,
        notes: AppNotes,
        writes: &mut Vec<YarnWrite>,
    ) {
        let causes = self.entries.get_mut(&record.id).map(|entry| std::mem::take(&mut entry.causes));
        batch.causes.extend(causes.into_iter().flatten().map(|cause| (record.id, cause)));
        batch.written.push((record.id, record.version));
        writes.push(YarnWrite::Application(Box::new(record), notes));
    }

    /// Goes on while an application may be changed on behalf of one more caller.
    ///
    /// # Errors
    /// The store has not taken earlier changes.
    pub(crate) fn has_room_for_cause(&self, id: YarnApplicationId) -> Result<(), ManagerRefusal> {
        if self.entries.get(&id).is_none_or(|entry| entry.causes.len() < N_CAUSES_MAX) {
            return Ok(());
        }
        let why = format!("the store has not recorded earlier changes of {id} yet: ask for this one again");
        Err(ManagerRefusal::Unavailable(why))
    }

    /// Notes on whose behalf an application was changed, if `actions` has its record written: what changes nothing has no line.
    pub(crate) fn note_cause(
        &mut self,
        id: YarnApplicationId,
        cause: Option<CallCause>,
        actions: &[YarnAction],
    ) {
        let is_put = |action: &YarnAction| matches!(action, YarnAction::PutRecord(of, _) if *of == id);
        if let Some((entry, cause)) = self.entries.get_mut(&id).zip(cause)
            && actions.iter().any(is_put)
        {
            entry.causes.push(cause);
        }
    }

    /// What is written of an application, if there is one.
    fn record(&mut self, id: YarnApplicationId, now_ms: i64) -> Option<(AppRecord, AppNotes)> {
        let (application, entry) = self.adapter.get(id).zip(self.entries.get_mut(&id))?;
        let until = application.times_ms().1.unwrap_or(now_ms);
        let used = used_seconds(&self.picture, application, &entry.notes.attempts, until);
        if let Some(used) = used {
            entry.notes.used_seconds = used;
        }
        Some((AppRecord::of(application), entry.notes.clone()))
    }

    /// What was refused is written again: one record alone behind all others, several in smaller transactions.
    pub(crate) fn write_again(&mut self, batch: RecordBatch) {
        match (&batch.written[..], &batch.deleted[..]) {
            ([(id, _)], []) => {
                self.to_write.remove(id);
                self.refused.push_back(*id);
            }
            (written, deleted) => {
                self.to_write.extend(written.iter().map(|(id, _)| *id));
                self.to_delete.extend(deleted);
                let n = written.len() + deleted.len();
                if n > 1 {
                    self.n_records_max = n / 2;
                }
            }
        }
        // They come before what was changed meanwhile.
        for (id, cause) in batch.causes.into_iter().rev() {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.causes.insert(0, cause);
            }
        }
        if !batch.keys.is_empty() {
            self.keys_to_write = batch.keys;
            self.are_keys_written = false;
        }
    }

    /// Records are written.
    pub(crate) fn on_written(&mut self, batch: &RecordBatch, at: AdapterTime, out: &mut Vec<YarnAction>) {
        self.n_records_max = self.n_records_max.saturating_mul(2);
        for (id, version) in &batch.written {
            if let Some(entry) = self.entries.get_mut(id) {
                entry.saved = entry.saved.max(*version);
            }
            // It is forgotten only after its record.
            let _ = self.adapter.with(*id, |application, terms| application.saved(*version, terms, at, out));
        }
        for id in &batch.deleted {
            self.adapter.forget(*id);
            self.entries.remove(id);
        }
    }
}

/// Bytes of the record of an application, at most.
fn bytes_of(record: &AppRecord, notes: &AppNotes) -> usize {
    let of = &record.submission;
    let texts = [&of.name, &of.user, &of.queue, &of.kind, &of.label, &record.diagnostics].map(String::len);
    let master = of.master.iter().flat_map(|master| master.capability.keys().chain([&master.label]));
    let of_registration = |attempt: &AttemptRecord| {
        let said = attempt.registration.as_ref();
        said.map_or(0, |said| said.host.len() + said.tracking_url.len())
            + attempt.node.as_ref().map_or(0, String::len)
    };
    let entries = notes.tags.iter().chain(master).map(|text| ENTRY_BYTES + text.len()).sum::<usize>();
    let attempts =
        record.attempts.iter().map(|attempt| ATTEMPT_BYTES + of_registration(attempt)).sum::<usize>();
    let said = notes.attempts.iter().map(|attempt| attempt.diagnostics.len()).sum::<usize>();
    let n_entries = record.request_ids.len() + record.failed.len();
    RECORD_BYTES
        + notes.launch.len()
        + texts.iter().sum::<usize>()
        + entries
        + attempts
        + said
        + n_entries * ENTRY_BYTES
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
