//! What the watch shows of units that come and go. It keeps the running units of a unit only until that is deleted,
//! so that its own memory does not grow with what has passed; of each unit remains the time of its last binding.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use godel_client::{client::Client, exit::Failure};
use godel_proto::{raw, v1};
use prost::Message as _;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::board::{self, BIND, RUN_STATUS, unreadable};

/// Field numbers in `godel.v1.Op`.
const PUT_UNIT: u32 = 4;
const DELETE: u32 = 16;

/// How far a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Running units seen bound, each once.
    pub(crate) n_bound: usize,
    /// Running units seen ended, each once.
    pub(crate) n_ended: usize,
    /// Units seen deleted, after all of their running units had ended.
    pub(crate) n_gone: usize,
}

/// See the module.
pub(crate) struct Ledger {
    started: Instant,
    replicas: u32,
    inner: Mutex<Inner>,
}

struct Inner {
    progress: Progress,
    read_up_to: u64,
    n_units: usize,
    last_ended: Duration,
    live: HashMap<u64, Live>,
    /// By number of the unit: when its last binding was seen.
    bound: Vec<Duration>,
    failure: Option<Failure>,
}

/// A unit that is not deleted.
#[derive(Default)]
struct Live {
    number: usize,
    n_bound: u32,
    n_ended: u32,
    /// By ordinal.
    is_bound: Vec<bool>,
    is_ended: Vec<bool>,
}

impl Ledger {
    /// Watches from now on, until `stop`: so many units of so many replicas at most.
    pub(crate) async fn start(
        client: &Client,
        n_units: usize,
        replicas: u32,
        stop: CancellationToken,
    ) -> Result<Arc<Self>, Failure> {
        let ledger = Arc::new(Self::new(client.store_status().await?.revision, n_units, replicas));
        let (watching, client) = (Arc::clone(&ledger), client.clone());
        godel_kit::task::spawn("bench.watch", async move {
            tokio::select! {
                () = stop.cancelled() => {}
                failure = board::watch(
                    &client,
                    &[v1::Kind::Rows, v1::Kind::Unit],
                    || watching.lock().read_up_to,
                    |answer| watching.take(answer),
                ) => watching.lock().failure = Some(failure),
            }
        });
        Ok(ledger)
    }

    fn new(read_up_to: u64, n_units: usize, replicas: u32) -> Self {
        let inner = Inner {
            progress: Progress::default(),
            read_up_to,
            n_units,
            last_ended: Duration::ZERO,
            live: HashMap::new(),
            bound: Vec::new(),
            failure: None,
        };
        Self { started: Instant::now(), replicas, inner: Mutex::new(inner) }
    }

    /// The moment to which all times refer.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// How far it is.
    pub(crate) fn progress(&self) -> Progress {
        self.lock().progress
    }

    /// Units of the run.
    pub(crate) fn n_units(&self) -> usize {
        self.lock().n_units
    }

    /// When the last running unit ended.
    pub(crate) fn last_ended(&self) -> Duration {
        self.lock().last_ended
    }

    /// Why it does not watch any more.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.lock().failure.clone()
    }

    /// When the last binding of a unit was seen; units by number.
    pub(crate) fn bound_at(&self, number: usize) -> Option<Duration> {
        self.lock().bound.get(number).copied().filter(|at| !at.is_zero())
    }

    /// From handing each unit over to its last binding, in order of submission.
    pub(crate) fn latencies(&self, sent: &[Duration]) -> Vec<Duration> {
        self.lock().bound.iter().zip(sent).map(|(bound, sent)| bound.saturating_sub(*sent)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing that holds the lock can leave it half changed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, answer: &v1::WatchResponse) -> Result<(), Status> {
        let now = self.started.elapsed();
        let mut inner = self.lock();
        // A watch that is opened again may repeat.
        let read_up_to = inner.read_up_to;
        for op in answer.commits.iter().filter(|commit| commit.revision > read_up_to).flat_map(|one| &one.ops)
        {
            match raw::op_payload(op) {
                Some((PUT_UNIT, payload)) => inner.on_unit(payload, self.replicas)?,
                Some((DELETE, payload)) => inner.on_delete(payload, self.replicas)?,
                Some((BIND, payload)) => inner.on_bind(payload, now)?,
                Some((RUN_STATUS, payload)) => inner.on_statuses(payload, now)?,
                _ => {}
            }
        }
        inner.read_up_to = read_up_to.max(answer.revision);
        Ok(())
    }
}

impl Inner {
    fn on_unit(&mut self, payload: Bytes, replicas: u32) -> Result<(), Status> {
        let record = v1::UnitRecord::decode(payload).map_err(unreadable)?;
        let meta = record.spec.and_then(|spec| spec.meta);
        let name = meta.map(|meta| meta.name).unwrap_or_default();
        // Units are called `u-1`, `u-2` and so on.
        let number = name.strip_prefix("u-").and_then(|number| number.parse::<usize>().ok()?.checked_sub(1));
        let number = number.filter(|number| *number < self.n_units);
        let number =
            number.ok_or_else(|| Status::data_loss(format!("unit {name} does not belong to this run")))?;
        let n = usize::try_from(replicas).unwrap_or(usize::MAX);
        self.live.entry(record.unit_id).or_insert_with(|| Live {
            number,
            is_bound: vec![false; n],
            is_ended: vec![false; n],
            ..Live::default()
        });
        Ok(())
    }

    fn on_bind(&mut self, payload: Bytes, now: Duration) -> Result<(), Status> {
        let bind = v1::Binding::decode(payload).map_err(unreadable)?;
        let unit = live(&mut self.live, bind.unit_id)?;
        for ordinal in &bind.ordinals {
            let is_fresh = mark(&mut unit.is_bound, *ordinal)?;
            unit.n_bound += u32::from(is_fresh);
            self.progress.n_bound += usize::from(is_fresh);
        }
        if self.bound.len() <= unit.number {
            self.bound.resize(unit.number + 1, Duration::ZERO);
        }
        self.bound[unit.number] = now;
        Ok(())
    }

    fn on_statuses(&mut self, payload: Bytes, now: Duration) -> Result<(), Status> {
        use v1::RunPhase::{Failed, Stopped, Succeeded};
        let statuses = v1::RunStatuses::decode(payload).map_err(unreadable)?;
        let unit = live(&mut self.live, statuses.unit_id)?;
        for (ordinal, phase) in statuses.ordinals.iter().zip(statuses.phases()) {
            match phase {
                Succeeded => {
                    let is_fresh = mark(&mut unit.is_ended, *ordinal)?;
                    unit.n_ended += u32::from(is_fresh);
                    self.progress.n_ended += usize::from(is_fresh);
                    self.last_ended = now;
                }
                Failed | Stopped => {
                    let text = format!("unit {}, ordinal {ordinal}: {phase:?}", statuses.unit_id);
                    return Err(Status::data_loss(text));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn on_delete(&mut self, payload: Bytes, replicas: u32) -> Result<(), Status> {
        let delete = v1::Delete::decode(payload).map_err(unreadable)?;
        let id = delete.key.map(|key| key.id).unwrap_or_default();
        // Rows go with their unit; the record counts.
        if let Some(unit) = self.live.remove(&id) {
            if (unit.n_bound, unit.n_ended) != (replicas, replicas) {
                let Live { n_bound, n_ended, .. } = unit;
                let text = format!("unit {id} is deleted: {n_bound} were bound, {n_ended} have ended");
                return Err(Status::data_loss(text));
            }
            self.progress.n_gone += 1;
        }
        Ok(())
    }
}

fn live(units: &mut HashMap<u64, Live>, id: u64) -> Result<&mut Live, Status> {
    units.get_mut(&id).ok_or_else(|| Status::data_loss(format!("unit {id} is unknown or deleted")))
}

/// Whether it was not marked before.
fn mark(marks: &mut [bool], ordinal: u32) -> Result<bool, Status> {
    let mark = usize::try_from(ordinal).ok().and_then(|idx| marks.get_mut(idx));
    let mark = mark.ok_or_else(|| Status::data_loss(format!("impossible ordinal {ordinal}")))?;
    Ok(!std::mem::replace(mark, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(id: u64, name: &str) -> v1::op::Op {
        let meta = Some(v1::ObjectMeta { name: name.to_owned(), ..v1::ObjectMeta::default() });
        let spec = Some(v1::UnitSpec { meta, ..v1::UnitSpec::default() });
        v1::op::Op::PutUnit(v1::UnitRecord { unit_id: id, spec, ..v1::UnitRecord::default() })
    }

    fn bind(unit_id: u64, ordinals: &[u32]) -> v1::op::Op {
        let ordinals = ordinals.to_vec();
        v1::op::Op::Bind(v1::Binding { unit_id, ordinals, ..v1::Binding::default() })
    }

    fn end(unit_id: u64, ordinals: &[u32], phase: v1::RunPhase) -> v1::op::Op {
        let phases = vec![phase.into(); ordinals.len()];
        let ordinals = ordinals.to_vec();
        v1::op::Op::RunStatus(v1::RunStatuses { unit_id, ordinals, phases, ..v1::RunStatuses::default() })
    }

    fn delete(id: u64) -> v1::op::Op {
        let key = Some(v1::Key { id, ..v1::Key::default() });
        v1::op::Op::Delete(v1::Delete { kind: v1::Kind::Unit.into(), key })
    }

    fn take(ledger: &Ledger, revision: u64, ops: Vec<v1::op::Op>) -> Result<Progress, Status> {
        let ops = ops.into_iter().map(raw::encode_op).collect();
        let commit = raw::Commit { revision, ops, ..raw::Commit::default() };
        ledger.take(&v1::WatchResponse { commits: vec![commit], revision })?;
        Ok(ledger.progress())
    }

    #[test]
    fn a_unit_is_followed_until_it_is_deleted() {
        use v1::RunPhase::{Running, Succeeded};
        let ledger = Ledger::new(4, 2, 2);
        take(&ledger, 5, vec![put(11, "u-2"), bind(11, &[0]), bind(11, &[0, 1])]).unwrap();
        let ended = vec![end(11, &[0, 1], Running), end(11, &[0, 1], Succeeded)];
        let progress = take(&ledger, 6, ended.clone()).unwrap();
        assert_eq!(progress, Progress { n_bound: 2, n_ended: 2, n_gone: 0 });
        assert_eq!(take(&ledger, 6, ended).unwrap(), progress, "a repetition");
        assert_eq!(take(&ledger, 7, vec![delete(11)]).unwrap().n_gone, 1);
        assert_eq!(ledger.lock().live.len(), 0);
        let latencies = ledger.latencies(&[Duration::ZERO, Duration::ZERO]);
        assert!(latencies[0].is_zero() && !latencies[1].is_zero());
        assert!(ledger.bound_at(0).is_none() && ledger.bound_at(1).is_some() && ledger.bound_at(2).is_none());
    }

    #[test]
    fn what_must_not_be_is_a_fault() {
        let ledger = Ledger::new(4, 2, 2);
        assert!(take(&ledger, 5, vec![put(11, "u-3")]).is_err(), "a unit of somebody else");
        assert!(take(&ledger, 5, vec![bind(11, &[0])]).is_err(), "a unit that is not there");
        take(&ledger, 5, vec![put(11, "u-1"), bind(11, &[0, 1])]).unwrap();
        assert!(take(&ledger, 6, vec![bind(11, &[2])]).is_err(), "an ordinal too many");
        assert!(take(&ledger, 6, vec![end(11, &[1], v1::RunPhase::Failed)]).is_err());
        let gone = take(&ledger, 6, vec![delete(11)]).unwrap_err();
        assert!(gone.message().contains("2 were bound, 0 have ended"), "{gone}");
    }
}
