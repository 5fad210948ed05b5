//! What happened, from the watch of the store: every commit from the first one on.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use godel_proto::{raw, v1};
use parking_lot::{Mutex, MutexGuard};
use prost::Message as _;
use tokio::{sync::watch, task::JoinSet, time::MissedTickBehavior};

use super::{
    covers::{REASON, Traces, WAITING},
    file::{EventExpect, Glob, Never, Reason},
    lives::Lives,
    seen::Metrics,
};
use crate::api::Api;

/// How often a watch that ended is opened again.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(50);

/// Follows the store for as long as it lives.
pub(super) struct Informer {
    history: Arc<Mutex<History>>,
    news: watch::Receiver<()>,
    _task: JoinSet<()>,
}

impl Informer {
    pub(super) fn start(api: &Api) -> Self {
        let history = Arc::new(Mutex::new(History::default()));
        let (wake, news) = watch::channel(());
        let mut task = JoinSet::new();
        task.spawn(follow(api.clone(), Arc::clone(&history), wake));
        Self { history, news, _task: task }
    }

    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock()
    }

    /// Until something was committed, or might have changed that is not in the store.
    pub(super) async fn news(&mut self) {
        if self.news.changed().await.is_err() {
            // Its task is gone, and nothing will come any more.
            std::future::pending::<()>().await;
        }
    }
}

async fn follow(api: Api, history: Arc<Mutex<History>>, wake: watch::Sender<()>) {
    let mut tries = tokio::time::interval(RECONNECT_INTERVAL);
    tries.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tries.tick().await;
        let from_revision = history.lock().revision + 1;
        let request = v1::WatchRequest { from_revision, kinds: Vec::new(), ..v1::WatchRequest::default() };
        if let Ok(opened) = api.state().watch(request).await {
            let mut stream = opened.into_inner();
            // A bookmark wakes too.
            while let Ok(Some(response)) = stream.message().await {
                response.commits.iter().for_each(|commit| history.lock().apply(commit));
                wake.send_replace(());
            }
        }
        wake.send_replace(());
    }
}

/// Everything up to a revision.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) revision: u64,
    names: BTreeMap<u64, String>,
    /// Running units that are bound and not told to leave, by unit.
    placed: BTreeMap<u64, BTreeSet<u32>>,
    holds: BTreeSet<u64>,
    events: Vec<Event>,
    lives: Lives,
    /// What of the codes that scenarios cover has been seen, by the looks at the cluster too.
    pub(super) traces: Traces,
}

#[derive(Debug)]
struct Event {
    revision: u64,
    unit: String,
    what: What,
}

#[derive(Debug)]
enum What {
    /// So many running units.
    Bound(usize),
    Evicted {
        n: usize,
        reason: v1::EvictionReason,
        by: String,
    },
    /// So many are placed after the commit.
    Placed(usize),
}

impl History {
    /// Holds there are.
    pub(super) fn n_holds(&self) -> usize {
        self.holds.len()
    }

    /// Running units of events that are as expected, and the events in words.
    pub(super) fn count(&self, expected: &EventExpect) -> (usize, String) {
        let until = match &expected.before_last {
            Some(last) => self.last_bound(last),
            None => u64::MAX,
        };
        let events = self.events.iter().filter(|event| event.revision < until);
        let counted: Vec<&Event> = events.filter(|event| event.count(expected) > 0).collect();
        let shown: Vec<String> = counted.iter().take(20).map(ToString::to_string).collect();
        (counted.iter().map(|event| event.count(expected)).sum(), shown.join("; "))
    }

    /// What there is after a revision of what must not be.
    pub(super) fn violation(&self, from: u64, never: &Never) -> Option<String> {
        let mut events = self.events.iter().filter(|event| event.revision > from);
        events.find(|event| event.is_forbidden(never)).map(ToString::to_string)
    }

    /// What keeps units waiting.
    pub(super) fn note_waiting(&mut self, units: &[v1::Unit]) {
        let reasons = units.iter().filter_map(|unit| unit.refusals.as_ref()).flat_map(|all| &all.reasons);
        reasons.for_each(|one| self.traces.add(WAITING, one.plugin.clone()));
    }

    /// What the binder rejected.
    pub(super) fn note_rejected(&mut self, metrics: &Metrics) {
        metrics.rejected.iter().for_each(|reason| self.traces.add(REASON, reason.clone()));
    }

    fn last_bound(&self, glob: &Glob) -> u64 {
        let bound = |event: &&Event| matches!(event.what, What::Bound(_)) && glob.has(&event.unit);
        self.events.iter().rev().find(bound).map_or(0, |event| event.revision)
    }

    fn apply(&mut self, commit: &raw::Commit) {
        let mut touched = BTreeSet::new();
        for op in &commit.ops {
            let Ok(v1::Op { op: Some(op) }) = v1::Op::decode(op.clone()) else { continue };
            touched.extend(self.apply_op(commit.revision, op));
        }
        for unit in touched {
            let n = self.placed.get(&unit).map_or(0, BTreeSet::len);
            self.push(commit.revision, unit, What::Placed(n));
        }
        self.revision = commit.revision;
    }

    /// The unit of which more or fewer are placed.
    fn apply_op(&mut self, revision: u64, op: v1::op::Op) -> Option<u64> {
        match op {
            v1::op::Op::PutUnit(record) => {
                self.trace_unit(&record);
                let meta = record.spec.and_then(|spec| spec.meta);
                self.names.insert(record.unit_id, meta.map(|meta| meta.name).unwrap_or_default());
                None
            }
            v1::op::Op::PutQueue(queue) => {
                self.traces.add_value(queue.policy().as_str_name());
                None
            }
            v1::op::Op::Requeue(requeue) => {
                self.lives.requeue(&requeue, &mut self.traces);
                None
            }
            v1::op::Op::Bind(bind) => {
                self.lives.bind(&bind, &mut self.traces);
                self.push(revision, bind.unit_id, What::Bound(bind.ordinals.len()));
                self.placed.entry(bind.unit_id).or_default().extend(bind.ordinals);
                Some(bind.unit_id)
            }
            v1::op::Op::Evict(evict) => {
                self.lives.evict(&evict, &mut self.traces);
                self.traces.add_value(evict.reason().as_str_name());
                let (n, reason, by) = (evict.ordinals.len(), evict.reason(), self.evicted_by(&evict));
                self.push(revision, evict.unit_id, What::Evicted { n, reason, by });
                self.displace(evict.unit_id, &evict.ordinals);
                Some(evict.unit_id)
            }
            v1::op::Op::RunStatus(status) => {
                self.lives.report(&status, &mut self.traces);
                let each = status.ordinals.iter().zip(&status.phases);
                let over = each.filter(|(_, phase)| **phase > i32::from(v1::RunPhase::Running));
                let over: Vec<u32> = over.map(|(ordinal, _)| *ordinal).collect();
                self.displace(status.unit_id, &over);
                (!over.is_empty()).then_some(status.unit_id)
            }
            v1::op::Op::PutHold(hold) => {
                self.holds.insert(hold.hold_id);
                None
            }
            v1::op::Op::Delete(delete) if delete.kind() == v1::Kind::Hold => {
                self.holds.remove(&delete.key.unwrap_or_default().id);
                None
            }
            _ => None,
        }
    }

    /// What a unit chooses, and why it ended.
    fn trace_unit(&mut self, record: &v1::UnitRecord) {
        if let Some(spec) = &record.spec {
            self.traces.add_value(spec.restart_policy().as_str_name());
            self.traces.add_value(spec.on_eviction().as_str_name());
            self.traces.add_value(spec.on_below_min().as_str_name());
            self.traces.add_value(spec.on_failure().as_str_name());
        }
        if let Some(status) = &record.status {
            self.traces.add_value(status.ended().as_str_name());
        }
    }

    fn displace(&mut self, unit: u64, ordinals: &[u32]) {
        let placed = self.placed.entry(unit).or_default();
        for ordinal in ordinals {
            placed.remove(ordinal);
        }
    }

    /// The unit's name where it is a unit.
    fn evicted_by(&self, evict: &v1::Eviction) -> String {
        let unit = match evict.by.strip_prefix("unit ").map(str::parse) {
            Some(Ok(unit)) => unit,
            _ => evict.preemptor_id,
        };
        self.names.get(&unit).cloned().unwrap_or_else(|| evict.by.clone())
    }

    fn push(&mut self, revision: u64, unit: u64, what: What) {
        let unit = self.names.get(&unit).cloned().unwrap_or_else(|| format!("unit {unit}"));
        self.events.push(Event { revision, unit, what });
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { revision, unit, what } = self;
        match what {
            What::Bound(n) => write!(f, "{n} of {unit} bound at revision {revision}"),
            What::Evicted { n, reason, by } => {
                write!(f, "{n} of {unit} evicted at revision {revision}, {}, by {by}", reason.as_str_name())
            }
            What::Placed(n) => write!(f, "{n} of {unit} are placed after revision {revision}"),
        }
    }
}

impl Event {
    fn count(&self, expected: &EventExpect) -> usize {
        let is_wanted = |glob: &Option<Glob>, name: &str| glob.as_ref().is_none_or(|glob| glob.has(name));
        match &self.what {
            What::Bound(n) if expected.bound.as_ref().is_some_and(|glob| glob.has(&self.unit)) => *n,
            What::Evicted { n, reason, by }
                if expected.evicted.as_ref().is_some_and(|glob| glob.has(&self.unit))
                    && expected.reason.is_none_or(|wanted| wanted == Reason(*reason))
                    && is_wanted(&expected.by, by) =>
            {
                *n
            }
            What::Bound(_) | What::Evicted { .. } | What::Placed(_) => 0,
        }
    }

    fn is_forbidden(&self, never: &Never) -> bool {
        let is = |glob: &Option<Glob>| glob.as_ref().is_some_and(|glob| glob.has(&self.unit));
        match &self.what {
            What::Bound(_) => is(&never.bound),
            What::Evicted { reason, .. } => {
                is(&never.evicted) && never.reason.is_none_or(|forbidden| forbidden == Reason(*reason))
            }
            What::Placed(n) => {
                let n = i64::try_from(*n).unwrap_or(i64::MAX);
                is(&never.unit) && never.placed.as_ref().is_some_and(|forbidden| forbidden.has(n))
            }
        }
    }
}
