//! What state's watch shows of applications: their units, their containers and their records. What was lost is found here, because
//! nothing of it comes from those who submitted.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use godel_base::resources::MEMORY;
use godel_client::{client::Client, exit::Failure};
use godel_kit::CancellationToken;
use godel_proto::{raw, v1};
use prost::Message as _;
use tokio::sync::Notify;
use tonic::Status;

use super::shares::{QUEUES, QueueShares, ShareMeter};
use crate::board::{self, BIND, RUN_STATUS, unreadable};

/// Field numbers in `godel.v1.Op`.
const PUT_UNIT: u32 = 4;
const DELETE: u32 = 16;
const PUT_TASK_GROUP: u32 = 18;
const PUT_YARN_APPLICATION: u32 = 27;
/// Ordinal of what stands for the master: no container. Its group is of the unit's own record.
const MASTER: u32 = 0;
/// Length of a window in which shares are measured.
const WINDOW: Duration = Duration::from_secs(1);

/// How far everything is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Applications whose unit was seen.
    pub(super) n_units: usize,
    /// Containers seen bound, each once.
    pub(super) n_bound: u64,
    /// Containers seen ended, each once.
    pub(super) n_ended: u64,
    /// Applications whose record says that they have finished with success.
    pub(super) n_succeeded: usize,
    /// Applications whose record says that they ended otherwise.
    pub(super) n_failed: usize,
}

/// What was seen of one application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// Its unit was seen.
    pub(super) has_unit: bool,
    /// Containers seen bound, each once.
    pub(super) n_bound: u32,
    /// Containers seen ended, each once.
    pub(super) n_ended: u32,
    /// Its record has an attempt.
    pub(super) has_attempt: bool,
    /// When its record said first how it ended, since the start.
    pub(super) over: Option<Duration>,
    /// It has finished with success.
    pub(super) has_succeeded: bool,
}

/// See the module.
pub(super) struct WatchedApplications {
    started: Instant,
    inner: Mutex<Inner>,
}

struct Inner {
    read_up_to: u64,
    applications: HashMap<String, Application>,
    /// Ids of applications, by unit.
    units: HashMap<u64, String>,
    progress: Progress,
    meter: ShareMeter,
    failure: Option<Failure>,
}

#[derive(Default)]
struct Application {
    seen: Seen,
    /// Rung by what its master wants to know.
    bell: Arc<Notify>,
    /// Position among the queues that are measured.
    queue: Option<usize>,
    /// Its unit asks for nothing any more.
    is_closed: bool,
    /// By position.
    groups: HashMap<u32, Group>,
    bound: HashSet<u32>,
    /// Memory of what runs, by ordinal.
    live: HashMap<u32, u64>,
}

/// A task group: containers that are alike.
#[derive(Default)]
struct Group {
    /// Of each container.
    mib: u64,
    /// Ordinals that are not released, as half-open ranges, ascending.
    ranges: Vec<(u32, u32)>,
    /// Those of them that have or had a place.
    bound: HashSet<u32>,
}

impl Group {
    fn has(&self, ordinal: u32) -> bool {
        let after = self.ranges.partition_point(|(start, _)| *start <= ordinal);
        after.checked_sub(1).is_some_and(|idx| ordinal < self.ranges[idx].1)
    }

    /// Containers without a place.
    fn n_waiting(&self) -> u64 {
        let n: u64 = self.ranges.iter().map(|(start, end)| u64::from(end.saturating_sub(*start))).sum();
        n.saturating_sub(u64::try_from(self.bound.len()).unwrap_or(u64::MAX))
    }
}

impl WatchedApplications {
    /// Watches from now on, until `stop`.
    pub(super) async fn start(client: &Client, stop: CancellationToken) -> Result<Arc<Self>, Failure> {
        let watched = Arc::new(Self::new(client.store_status().await?.revision));
        let (watching, client) = (Arc::clone(&watched), client.clone());
        godel_kit::task::spawn("bench.watch", async move {
            let kinds = [v1::Kind::Unit, v1::Kind::TaskGroup, v1::Kind::Rows, v1::Kind::YarnApplication];
            tokio::select! {
                () = stop.cancelled() => {}
                failure = board::watch(
                    &client,
                    &kinds,
                    || watching.lock().read_up_to,
                    |answer| watching.take(answer),
                ) => watching.lock().failure = Some(failure),
            }
        });
        Ok(watched)
    }

    fn new(read_up_to: u64) -> Self {
        let inner = Inner {
            read_up_to,
            applications: HashMap::new(),
            units: HashMap::new(),
            progress: Progress::default(),
            meter: ShareMeter::new(WINDOW),
            failure: None,
        };
        Self { started: Instant::now(), inner: Mutex::new(inner) }
    }

    /// Since the start.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// What rings when the record of an application changes, or a container of it has a place.
    pub(super) fn bell(&self, application: &str) -> Arc<Notify> {
        Arc::clone(&self.lock().applications.entry(application.to_owned()).or_default().bell)
    }

    /// What was seen of an application.
    pub(super) fn seen(&self, application: &str) -> Seen {
        self.lock().applications.get(application).map(|of| of.seen).unwrap_or_default()
    }

    /// How far everything is.
    pub(super) fn progress(&self) -> Progress {
        self.lock().progress
    }

    /// What each queue had while every queue waited, and how many containers of each wait now.
    pub(super) fn shares(&self) -> (QueueShares, Vec<u64>) {
        let inner = self.lock();
        (inner.meter.shares(), inner.meter.waiting().to_vec())
    }

    /// Why it does not watch any more.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.lock().failure.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing that holds the lock can leave it half changed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, answer: &v1::WatchResponse) -> Result<(), Status> {
        let now = self.now();
        let mut inner = self.lock();
        // A watch that is opened again may repeat.
        let read_up_to = inner.read_up_to;
        let fresh = answer.commits.iter().filter(|commit| commit.revision > read_up_to);
        for op in fresh.flat_map(|commit| &commit.ops) {
            match raw::op_payload(op) {
                Some((PUT_UNIT, payload)) => inner.on_unit(payload, now)?,
                Some((PUT_TASK_GROUP, payload)) => inner.on_group(payload, now)?,
                Some((BIND, payload)) => inner.on_bind(payload, now)?,
                Some((RUN_STATUS, payload)) => inner.on_statuses(payload, now)?,
                Some((PUT_YARN_APPLICATION, payload)) => inner.on_application(payload, now)?,
                Some((DELETE, payload)) => inner.on_delete(payload)?,
                _ => {}
            }
        }
        inner.read_up_to = read_up_to.max(answer.revision);
        Ok(())
    }
}

impl Inner {
    fn of_unit(&mut self, unit: u64) -> Option<(&mut Application, &mut Progress, &mut ShareMeter)> {
        let application = self.applications.get_mut(self.units.get(&unit)?)?;
        Some((application, &mut self.progress, &mut self.meter))
    }

    fn on_unit(&mut self, payload: Bytes, now: Duration) -> Result<(), Status> {
        let record = v1::UnitRecord::decode(payload).map_err(unreadable)?;
        let spec = record.spec.unwrap_or_default();
        let name = spec.meta.map(|meta| meta.name).unwrap_or_default();
        if spec.workload_class != i32::from(v1::WorkloadClass::Yarn) {
            return Ok(());
        }
        let id = name.replace('-', "_");
        let application = self.applications.entry(id.clone()).or_default();
        if !application.seen.has_unit {
            application.seen.has_unit = true;
            application.queue = QUEUES.iter().position(|(queue, _)| *queue == spec.queue);
            self.progress.n_units += 1;
            self.units.insert(record.unit_id, id);
        }
        let status = record.status.unwrap_or_default();
        if status.cancelled || status.ended() != v1::UnitEnd::Unspecified {
            let before = application.n_waiting();
            application.is_closed = true;
            application.count(now, before, &mut self.meter);
        }
        Ok(())
    }

    fn on_group(&mut self, payload: Bytes, now: Duration) -> Result<(), Status> {
        let record = v1::TaskGroupRecord::decode(payload).map_err(unreadable)?;
        let template = record.group.and_then(|group| group.template).unwrap_or_default();
        let requests = template.demand.and_then(|demand| demand.requests).unwrap_or_default();
        let mib = requests.amounts.get(MEMORY).map_or(0, |bytes| bytes.unsigned_abs() >> 20);
        let ranges = record.ordinals.into_iter().flat_map(|of| of.ranges);
        let Some((application, _, meter)) = self.of_unit(record.unit_id) else { return Ok(()) };
        let before = application.n_waiting();
        let group = application.groups.entry(record.task_group).or_default();
        group.mib = mib;
        group.ranges = ranges.map(|range| (range.start, range.end)).collect();
        let mut bound = std::mem::take(&mut group.bound);
        bound.retain(|ordinal| group.has(*ordinal));
        group.bound = bound;
        application.count(now, before, meter);
        Ok(())
    }

    fn on_bind(&mut self, payload: Bytes, now: Duration) -> Result<(), Status> {
        let bind = v1::Binding::decode(payload).map_err(unreadable)?;
        let Some((application, progress, meter)) = self.of_unit(bind.unit_id) else { return Ok(()) };
        let before = application.n_waiting();
        let group = application.groups.entry(bind.task_group).or_default();
        for ordinal in bind.ordinals.into_iter().filter(|ordinal| *ordinal != MASTER) {
            if !application.bound.insert(ordinal) {
                let text = format!("unit {}, ordinal {ordinal}: bound twice", bind.unit_id);
                return Err(Status::data_loss(text));
            }
            if group.has(ordinal) {
                group.bound.insert(ordinal);
            }
            application.live.insert(ordinal, group.mib);
            application.seen.n_bound += 1;
            progress.n_bound += 1;
            if let Some(queue) = application.queue {
                meter.placed(now, queue, group.mib);
            }
        }
        application.count(now, before, meter);
        application.bell.notify_one();
        Ok(())
    }

    fn on_statuses(&mut self, payload: Bytes, now: Duration) -> Result<(), Status> {
        use v1::RunPhase::{Failed, Stopped, Succeeded};
        let statuses = v1::RunStatuses::decode(payload).map_err(unreadable)?;
        let Some((application, progress, meter)) = self.of_unit(statuses.unit_id) else { return Ok(()) };
        let ended = statuses.ordinals.iter().zip(statuses.phases());
        for (ordinal, _) in ended.filter(|(_, phase)| matches!(phase, Succeeded | Failed | Stopped)) {
            let Some(mib) = application.live.remove(ordinal) else { continue };
            application.seen.n_ended += 1;
            progress.n_ended += 1;
            if let Some(queue) = application.queue {
                meter.ended(now, queue, mib);
            }
        }
        Ok(())
    }

    fn on_application(&mut self, payload: Bytes, now: Duration) -> Result<(), Status> {
        let record = v1::YarnApplication::decode(payload).map_err(unreadable)?;
        let attempt = record.attempts.last();
        // An unmanaged application finishes with its attempt: no other record says so.
        let has_finished = record.end() == v1::YarnEnd::Finished
            || attempt.is_some_and(|attempt| attempt.end() == v1::YarnEnd::Finished);
        let has_failed = matches!(record.end(), v1::YarnEnd::Failed | v1::YarnEnd::Killed);
        let said_so = attempt.is_some_and(|attempt| attempt.said() == v1::YarnFinalStatus::Succeeded);
        let has_attempt = attempt.is_some();
        let application = self.applications.entry(record.application).or_default();
        application.seen.has_attempt |= has_attempt;
        if (has_finished || has_failed) && application.seen.over.is_none() {
            application.seen.over = Some(now);
            application.seen.has_succeeded = has_finished && !has_failed && said_so;
            match application.seen.has_succeeded {
                true => self.progress.n_succeeded += 1,
                false => self.progress.n_failed += 1,
            }
        }
        application.bell.notify_one();
        Ok(())
    }

    /// Records of applications may go: what was seen of them stays.
    fn on_delete(&mut self, payload: Bytes) -> Result<(), Status> {
        let delete = v1::Delete::decode(payload).map_err(unreadable)?;
        if delete.kind() == v1::Kind::Unit {
            let id = delete.key.map(|key| key.id).unwrap_or_default();
            let application = self.units.remove(&id);
            if let Some(of) = application.and_then(|id| self.applications.get_mut(&id)) {
                if let Some(ordinal) = of.live.keys().next() {
                    let text = format!("unit {id} is deleted, and ordinal {ordinal} of it has not ended");
                    return Err(Status::data_loss(text));
                }
                (of.bound, of.groups) = Default::default();
            }
        }
        Ok(())
    }
}

impl Application {
    /// Containers that are asked for and have no place.
    fn n_waiting(&self) -> u64 {
        if self.is_closed { 0 } else { self.groups.values().map(Group::n_waiting).sum() }
    }

    /// Has the meter know how many wait now, if that has changed.
    fn count(&self, now: Duration, before: u64, meter: &mut ShareMeter) {
        let after = self.n_waiting();
        if let Some(queue) = self.queue.filter(|_| before != after) {
            meter.waits(now, queue, before, after);
        }
    }
}

#[cfg(test)]
mod tests;
