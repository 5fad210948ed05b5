//! The task that follows the store, leads when the lease is granted, and looks at the clock once a second.

use std::{collections::VecDeque, ops::Range, sync::Arc, time::Duration};

use godel_base::ids::{NodeId, ReplicaId, Revision};
use godel_core_yarn::{
    adapter::{AdapterTime, MASTER, YarnAction, YarnAdapter},
    application::PublicAppState,
    asks::AskGrowth,
    ids::YarnApplicationId,
};
use godel_domain::{change::Change, records::Record};
use godel_kit::{
    CancellationToken,
    client::{Backoff, Channel},
    informer::{FollowEvent, Informer, list_page},
    lease::{Fence, Leadership},
    service::Error,
    task,
    txn::TxnPipeline,
};
use godel_proto::v1;
use prost::Message as _;
use tokio::{sync::watch, task::JoinHandle, time::interval};
use tonic::Status;

use super::{
    act::{end_master, tell_master},
    shared::{AppEntry, Inner, Role, Shared, Term},
    waits::look,
    write::write,
};
use crate::{
    keys::KeySource,
    metrics::StateLabel,
    picture::{UnitEntry, UnitEvent},
    record::{self},
    unit::asked_of,
};

/// Between looks at the clock.
const TICK: Duration = Duration::from_secs(1);
/// Ticks until replicas that the dispatcher has refused are asked for again.
const N_TICKS_REFUSED: u32 = 10;
/// Records in a page of a list.
const PAGE_SIZE: u32 = 500;
/// Pauses between lists that fail.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// What people are told of an application whose unit somebody else has ended.
const UNIT_GONE: &str = "the unit of the application was cancelled or deleted in godel";

/// See the module.
pub(crate) struct Engine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) follower: Informer,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) state: Channel,
    pub(crate) keys: KeySource,
    /// The grant under which it leads or is about to.
    pub(crate) grant: Option<Grant>,
    /// Writes the records of the present or the last time in which it led.
    pub(crate) writer: Option<JoinHandle<()>>,
    pub(crate) n_ticks: u32,
}

/// The lease, as granted.
#[derive(Debug)]
pub(crate) struct Grant {
    fence: Fence,
    since: Revision,
    /// One for each grant: the store tells transactions apart by their numbers under it.
    pipeline: TxnPipeline,
}

impl Engine {
    /// Runs until `stop`.
    ///
    /// # Errors
    /// The store cannot be followed any more, or the election is over.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), Error> {
        let mut ticks = interval(TICK);
        self.on_leadership();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                changed = self.leadership.changed() => match changed {
                    Ok(()) => self.on_leadership(),
                    Err(_) if stop.is_cancelled() => break,
                    Err(_) => return Err(Error::Lease),
                },
                () = lost(self.grant.as_ref()) => self.step_down(None),
                event = self.follower.next() => match event {
                    Some(event) => self.on_follow(event),
                    None if stop.is_cancelled() => break,
                    None => return Err(Error::Informer),
                },
                _ = ticks.tick() => self.on_tick(),
            }
            if self.may_begin() {
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = self.begin() => {}
                }
            }
        }
        self.step_down(None);
        Ok(())
    }

    fn on_leadership(&mut self) {
        let leadership = self.leadership.borrow_and_update().clone();
        match leadership {
            Leadership::Leader { epoch, since, fence } => {
                if self.grant.as_ref().is_some_and(|known| known.fence.is_grant(&fence)) {
                    return;
                }
                self.step_down(None);
                tracing::info!(epoch = epoch.0, revision = since.0, "elected");
                let txn = &self.shared.context.config.txn;
                let pipeline = TxnPipeline::spawn(self.state.clone(), fence.clone(), txn);
                self.grant = Some(Grant { fence, since, pipeline });
            }
            Leadership::Standby { leader } => {
                self.grant = None;
                self.step_down(leader);
            }
        }
    }

    /// Stops acting. What was not recorded is forgotten: nobody was told of it.
    fn step_down(&mut self, leader: Option<String>) {
        let mut inner = self.shared.inner.lock();
        if let Role::Leading(term) = &inner.role {
            tracing::info!("no longer the leader");
            term.stop.cancel();
        }
        inner.role = Role::Standby(leader);
        inner.adapter = YarnAdapter::new(self.shared.context.config.terms());
        inner.entries.clear();
        inner.to_write.clear();
        inner.to_delete.clear();
        inner.keys_to_write.clear();
        inner.are_keys_written = false;
        drop(inner);
        if self.grant.as_ref().is_some_and(|grant| !grant.fence.is_valid()) {
            self.grant = None;
        }
        self.shared.context.metrics.leader.set(0);
        self.shared.note_change();
    }

    /// It is elected, has read everything up to the grant, and does not lead yet.
    fn may_begin(&self) -> bool {
        let Some(Grant { fence, since, .. }) = &self.grant else { return false };
        let inner = self.shared.inner.lock();
        let leads = matches!(&inner.role, Role::Leading(term) if !term.stop.is_cancelled());
        fence.is_valid() && !leads && inner.picture.read.is_some_and(|read| read >= *since)
    }

    /// Reads every application, and leads.
    async fn begin(&mut self) {
        let Some(Grant { fence, pipeline, .. }) = &self.grant else { return };
        let (pipeline, writer) = (pipeline.clone(), self.writer.take());
        let records = tokio::select! {
            () = fence.lost() => return,
            records = list_after(writer, &self.state) => records,
        };
        let term = Term { stop: CancellationToken::new() };
        let at = self.shared.at();
        let mut out = Vec::new();
        let mut inner = self.shared.inner.lock();
        inner.adapter = YarnAdapter::new(self.shared.context.config.terms());
        inner.entries.clear();
        let mut last_timestamp = 0;
        for pb in records {
            let name = pb.application.clone();
            match record::read(pb) {
                Ok((record, notes)) => {
                    last_timestamp = last_timestamp.max(record.id.cluster_timestamp);
                    let entry = AppEntry::new(notes, record.version);
                    inner.entries.insert(record.id, entry);
                    inner.adapter.recover(record, at, &mut out);
                }
                Err(bad) => {
                    self.shared.context.metrics.records_unread.inc();
                    tracing::warn!(application = name, %bad, "an application cannot be read, and is left alone");
                }
            }
        }
        // No id is given twice: not those of an earlier leader, even if the clock went back.
        inner.cluster_timestamp = at.wall_ms.max(last_timestamp.saturating_add(1));
        inner.next_number = 1;
        let ids: Vec<YarnApplicationId> = inner.entries.keys().copied().collect();
        for id in ids {
            replay(&mut inner, id, &self.shared.context.config.label_key, at, &mut out);
        }
        inner.picture.sum_up();
        inner.role = Role::Leading(term.clone());
        let n_applications = inner.entries.len();
        drop(inner);
        task::spawn("yarn.waits", look(Arc::clone(&self.shared), term.clone()));
        self.writer = Some(task::spawn("yarn.records", write(Arc::clone(&self.shared), term, pipeline)));
        // It leads since a moment ago.
        let _ = self.shared.run(|_, _, todo| todo.append(&mut out));
        self.shared.context.metrics.leader.set(1);
        tracing::info!(n_applications, "leading");
        self.on_tick();
    }

    fn on_follow(&mut self, event: FollowEvent) {
        match event {
            FollowEvent::Reset { .. } => {
                // What is known of units is not known any more: as after a start.
                let leader = match &*self.leadership.borrow() {
                    Leadership::Standby { leader } => leader.clone(),
                    Leadership::Leader { .. } => None,
                };
                self.step_down(leader);
                self.shared.inner.lock().picture.reset();
            }
            FollowEvent::Loaded(records) => {
                let mut inner = self.shared.inner.lock();
                for loaded in &records {
                    if let Change::Put(Record::YarnKeys(keys)) = &loaded.change {
                        self.keys.on_keys(keys);
                    }
                    inner.picture.apply(&loaded.change, loaded.revision, loaded.create_time_ms);
                }
            }
            FollowEvent::Synced { revision } => {
                self.shared.inner.lock().picture.read = Some(revision);
                self.shared.note_change();
            }
            FollowEvent::Committed(commit) => {
                for change in &commit.changes {
                    if let Change::Put(Record::YarnKeys(keys)) = change {
                        self.keys.on_keys(keys);
                        self.shared.inner.lock().are_keys_written = false;
                    }
                    let events = {
                        let mut inner = self.shared.inner.lock();
                        inner.picture.apply(change, commit.revision, commit.time_ms)
                    };
                    if let Some((id, events)) = events.filter(|(_, events)| !events.is_empty()) {
                        // A standby only follows.
                        let _ = self.shared.run(|inner, at, out| {
                            events.into_iter().for_each(|event| tell(inner, id, event, at, out));
                        });
                    }
                }
                self.shared.inner.lock().picture.read = Some(commit.revision);
                self.shared.note_change();
            }
        }
    }

    fn on_tick(&mut self) {
        self.n_ticks = self.n_ticks.wrapping_add(1);
        let asks_again = self.n_ticks.is_multiple_of(N_TICKS_REFUSED);
        let context = &self.shared.context;
        self.shared.inner.lock().picture.forget_over(context.config.completed_max);
        let ran = self.shared.run(|inner, at, out| {
            inner.picture.sum_up();
            inner.adapter.set_racks(Arc::clone(&inner.picture.places.racks));
            inner.adapter.tick(at, out);
            if inner.keys_to_write.is_empty() && !inner.are_keys_written {
                inner.keys_to_write = self.keys.due(at.wall_ms, context.config.key_period(), rand::random);
            }
            forget_oldest(inner, context.config.completed_max);
            if asks_again {
                ask_again(inner, out);
            }
            show(inner, &self.shared);
            !inner.keys_to_write.is_empty() || !inner.to_delete.is_empty()
        });
        match ran {
            Ok(true) => self.shared.records.notify_one(),
            Ok(false) => {}
            Err(_) => self.shared.inner.lock().picture.sum_up(),
        }
    }
}

fn show(inner: &Inner, shared: &Shared) {
    let metrics = &shared.context.metrics;
    let mut by_state = std::collections::BTreeMap::new();
    for application in inner.adapter.iter() {
        *by_state.entry(application.public_state()).or_insert(0_i64) += 1;
    }
    for (state, name) in STATES {
        let n = by_state.get(&state).copied().unwrap_or(0);
        metrics.applications.get_or_create(&StateLabel { state: name }).set(n);
    }
    metrics.containers.set(i64::try_from(inner.picture.sums.n_containers).unwrap_or(i64::MAX));
    let read = inner.picture.read.map_or(0, |read| read.0);
    metrics.revision.set(i64::try_from(read).unwrap_or(i64::MAX));
}

/// States as metrics name them.
const STATES: [(PublicAppState, &str); 8] = [
    (PublicAppState::New, "NEW"),
    (PublicAppState::NewSaving, "NEW_SAVING"),
    (PublicAppState::Submitted, "SUBMITTED"),
    (PublicAppState::Accepted, "ACCEPTED"),
    (PublicAppState::Running, "RUNNING"),
    (PublicAppState::Finished, "FINISHED"),
    (PublicAppState::Failed, "FAILED"),
    (PublicAppState::Killed, "KILLED"),
];

/// Applications that have ended are shown up to a number; the oldest ends go.
fn forget_oldest(inner: &mut Inner, n_max: usize) {
    let stays = |id: &YarnApplicationId| {
        !inner.to_write.contains(id) && inner.entries.get(id).is_some_and(|entry| !entry.is_going)
    };
    let over = inner.adapter.iter().filter(|application| application.is_over() && stays(&application.id()));
    let mut over: Vec<_> = over.map(|application| (application.times_ms().1, application.id())).collect();
    let n_left = over.len().saturating_sub(n_max);
    over.sort_unstable();
    for (_, id) in over.into_iter().take(n_left) {
        if let Some(entry) = inner.entries.get_mut(&id) {
            entry.is_going = true;
        }
        inner.to_delete.insert(id);
    }
}

/// Replicas that the dispatcher has refused are asked for again.
fn ask_again(inner: &mut Inner, out: &mut Vec<YarnAction>) {
    let refused: Vec<YarnApplicationId> = inner
        .entries
        .iter_mut()
        .filter_map(|(id, entry)| std::mem::take(&mut entry.is_growth_refused).then_some(*id))
        .collect();
    for id in refused {
        // It has an entry.
        let _ = inner.adapter.with(id, |application, _| application.settle(out));
    }
}

/// Tells an application what has happened to its unit.
fn tell(
    inner: &mut Inner,
    id: YarnApplicationId,
    event: UnitEvent,
    at: AdapterTime,
    out: &mut Vec<YarnAction>,
) {
    match event {
        UnitEvent::Added(group, ordinals) => on_added(inner, id, &group, &ordinals, out),
        UnitEvent::Gone => {
            // One that is over has ended its unit itself.
            let _ = inner.adapter.with(id, |application, terms| {
                application.unit_gone(UNIT_GONE, terms, at, out);
            });
        }
        UnitEvent::Placed { ordinal: MASTER, .. } => tell_master(inner, id, at, out),
        UnitEvent::Placed { ordinal, incarnation, node } => {
            let Some((node, rack)) = named(inner, node) else {
                out.push(YarnAction::Release(id, vec![ordinal]));
                return;
            };
            // Of an application that is not known any more nothing is placed.
            let _ = inner.adapter.with(id, |application, terms| {
                application.placed(ReplicaId::new(ordinal, incarnation), &node, &rack, terms, at, out);
            });
        }
        UnitEvent::Started(ordinal) => {
            let _ = inner.adapter.with(id, |application, _| application.started(ordinal, at, out));
        }
        UnitEvent::Ended { ordinal: MASTER, incarnation, .. } => end_master(inner, id, incarnation, at, out),
        UnitEvent::Ended { ordinal, incarnation, exit } => {
            let _ = inner.adapter.with(id, |application, terms| {
                application.ended(ReplicaId::new(ordinal, incarnation), exit, terms, at, out);
            });
        }
    }
}

/// Gives ordinals that were added to the keys for which they were asked, in order.
fn on_added(
    inner: &mut Inner,
    id: YarnApplicationId,
    group: &str,
    ordinals: &[u32],
    out: &mut Vec<YarnAction>,
) {
    let Some(entry) = inner.entries.get_mut(&id) else { return };
    let Some((_, keys)) = entry.growing.iter_mut().find(|(name, _)| name == group) else { return };
    let given = shared_out(keys, ordinals);
    // It has an entry.
    let _ = inner.adapter.with(id, |application, _| {
        for (growth, ordinals) in given {
            application.grown(&growth, ordinals, out);
        }
    });
}

/// Ordinals in order, to what wants so many of them, as ranges.
fn shared_out(growing: &mut VecDeque<AskGrowth>, ordinals: &[u32]) -> Vec<(AskGrowth, Range<u32>)> {
    let mut given: Vec<(AskGrowth, Range<u32>)> = Vec::new();
    for ordinal in ordinals {
        let Some(first) = growing.front_mut() else { break };
        match given.last_mut() {
            Some((last, range)) if last.key == first.key && range.end == *ordinal => range.end += 1,
            _ => given.push((first.clone(), *ordinal..ordinal.saturating_add(1))),
        }
        first.n -= 1;
        if first.n == 0 {
            growing.pop_front();
        }
    }
    given
}

fn named(inner: &Inner, node: NodeId) -> Option<(String, String)> {
    let launch = inner.picture.launch_node(node)?;
    Some((format!("{}:{}", launch.host, launch.port), inner.picture.rack(node)))
}

/// After a start: tells an application what its unit has.
fn replay(
    inner: &mut Inner,
    id: YarnApplicationId,
    label_key: &str,
    at: AdapterTime,
    out: &mut Vec<YarnAction>,
) {
    let is_known = inner.adapter.get(id).is_some_and(|application| !application.is_over());
    let had_unit = inner.adapter.get(id).is_some_and(|application| !application.attempts().is_empty());
    let Some(unit) = inner.picture.unit(id).filter(|_| is_known) else {
        if is_known && had_unit {
            tell(inner, id, UnitEvent::Gone, at, out);
        }
        return;
    };
    if !unit.is_alive() {
        tell(inner, id, UnitEvent::Gone, at, out);
        return;
    }
    tell_master(inner, id, at, out);
    let units: Vec<UnitEntry> = inner.picture.units_of(id).cloned().collect();
    for unit in units {
        for own in unit.record.iter_ordinals().filter(|ordinal| *ordinal != MASTER) {
            let group = unit.record.group_of(own).and_then(|idx| unit.record.spec.task_groups.get(idx));
            let Some(asked) = group.and_then(|group| asked_of(group, label_key)) else { continue };
            let (ordinal, row) = (unit.shown(own), unit.rows.row(own));
            let node = named(inner, row.node)
                .map(|(node, _)| node)
                .filter(|_| row.phase.is_live() || row.phase.is_ended());
            // It was recovered.
            let _ = inner.adapter.with(id, |application, _| match node {
                Some(node) if row.phase.is_ended() => {
                    application.found_ended(ordinal, asked, &node, unit.exit_of(ordinal), at, out);
                }
                node => application.found(ordinal, asked, node.as_deref(), at, out),
            });
        }
    }
}

/// Every record of an application once all that was under way is written.
async fn list_after(writer: Option<JoinHandle<()>>, state: &Channel) -> Vec<v1::YarnApplication> {
    if let Some(writer) = writer {
        // A panic of it was logged.
        let _ = writer.await;
    }
    list(state).await
}

/// Every record of an application, tried until the store answers.
async fn list(state: &Channel) -> Vec<v1::YarnApplication> {
    let mut backoff = Backoff::new(PAUSE.0, PAUSE.1);
    loop {
        match list_once(state).await {
            Ok(records) => return records,
            Err(status) => {
                tracing::debug!(code = ?status.code(), why = status.message(), "listing applications again");
                tokio::time::sleep(backoff.pause()).await;
            }
        }
    }
}

async fn list_once(state: &Channel) -> Result<Vec<v1::YarnApplication>, Status> {
    let mut records = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListRecordsRequest {
            kinds: vec![v1::Kind::YarnApplication.into()],
            page_size: PAGE_SIZE,
            page_token,
        };
        let page = list_page(state.clone(), request).await?;
        for encoded in page.records {
            match v1::Record::decode(encoded) {
                Ok(v1::Record { record: Some(v1::record::Record::YarnApplication(pb)), .. }) => {
                    records.push(pb)
                }
                Ok(_) => {}
                Err(bad) => tracing::warn!(%bad, "an application cannot be read, and is left alone"),
            }
        }
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok(records);
        }
    }
}

async fn lost(grant: Option<&Grant>) {
    match grant {
        Some(grant) => grant.fence.lost().await,
        None => std::future::pending().await,
    }
}
