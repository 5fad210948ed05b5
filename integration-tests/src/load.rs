//! Load of every class: units come, are cancelled and are deleted, one after the other in each class, and applications grow. Each
//! step is tried until it is acknowledged, and what was acknowledged is remembered.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::Result;
use godel_proto::v1::{self, WorkloadClass};
use parking_lot::Mutex;
use tokio::{
    task::{JoinSet, LocalSet},
    time::MissedTickBehavior,
};
use tonic::{Code, Response, Status, transport::Channel};

use crate::{
    api::{Api, Records},
    submit::Acknowledged,
    trace::{resources, unit},
    wait::wait_for,
};

/// All of them.
const CLASSES: [WorkloadClass; 8] = [
    WorkloadClass::Service,
    WorkloadClass::Stateful,
    WorkloadClass::Batch,
    WorkloadClass::Gang,
    WorkloadClass::Stream,
    WorkloadClass::Training,
    WorkloadClass::Yarn,
    WorkloadClass::Daemon,
];

/// Units of a class that are there; then the oldest one goes for each that comes.
const N_KEPT: usize = 6;
/// Between two units of a class.
const INTERVAL: Duration = Duration::from_millis(250);
/// Time in which each step must have been acknowledged: it bounds a failing run.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time of one try.
const TRY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a replica of a class that ends runs.
const DURATION_MS: u64 = 300;
/// Replicas of the group by which an application grows.
const N_GROWN: u32 = 2;

/// Units that come and go as long as it runs, on a thread of its own.
#[derive(Debug)]
pub struct Load {
    /// Where state is.
    state: String,
    ledger: Arc<Mutex<Ledger>>,
    is_over: Arc<AtomicBool>,
    running: Option<JoinHandle<()>>,
}

/// What was acknowledged.
#[derive(Debug, Default)]
struct Ledger {
    /// Units by name.
    units: BTreeMap<String, Kept>,
    /// Uids of units that were deleted.
    deleted: BTreeSet<String>,
    n_submitted: usize,
}

/// A unit that is there.
#[derive(Clone, Debug)]
struct Kept {
    number: usize,
    class: WorkloadClass,
    submitted: Acknowledged,
    /// The application of the unit has grown.
    has_grown: bool,
    /// Somebody has begun to cancel it.
    is_leaving: bool,
}

impl Load {
    /// On the cluster whose clients call at `state`; nothing runs yet.
    pub fn new(state: String) -> Self {
        Self { state, ledger: Arc::default(), is_over: Arc::default(), running: None }
    }

    /// Lets units come and go, until [`Load::rest`].
    pub fn go_on(&mut self) {
        self.is_over = Arc::default();
        let (state, ledger, is_over) =
            (self.state.clone(), Arc::clone(&self.ledger), Arc::clone(&self.is_over));
        self.running = Some(std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime can be made");
            LocalSet::new().block_on(&runtime, work_on_all(&state, &ledger, &is_over));
        }));
    }

    /// Lets no more units come and go, and waits until every step that was begun is acknowledged.
    pub async fn rest(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        let Some(running) = self.running.take() else { return };
        let ended = tokio::task::spawn_blocking(move || running.join()).await;
        if let Err(panic) = ended.expect("a join does not panic") {
            std::panic::resume_unwind(panic);
        }
    }

    /// Submissions that were acknowledged so far.
    pub fn n_submitted(&self) -> usize {
        self.ledger.lock().n_submitted
    }

    /// Deletions that were acknowledged so far.
    pub fn n_deleted(&self) -> usize {
        self.ledger.lock().deleted.len()
    }

    /// Waits until so many more submissions are acknowledged, while units come and go.
    ///
    /// # Panics
    /// Nothing comes and goes any more, because a step came to nothing.
    pub async fn wait_submitted(&self, n_more: usize) {
        let wanted = self.n_submitted() + n_more;
        wait_for("further acknowledgements", PATIENCE, async || {
            let goes_on = self.running.as_ref().is_some_and(|running| !running.is_finished());
            assert!(goes_on, "the load has ended: see above");
            let n = self.n_submitted();
            if n >= wanted { Ok(()) } else { Err(format!("{n} of {wanted}")) }
        })
        .await;
    }

    /// Submissions of all units that are there.
    pub fn acknowledged(&self) -> Vec<Acknowledged> {
        self.ledger.lock().units.values().map(|kept| kept.submitted.clone()).collect()
    }

    /// Writes them as a ledger of `godel audit`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_ledger(&self, path: &Path) -> Result<()> {
        let mut file = std::fs::File::create(path)?;
        for Acknowledged { uid, name, revision } in self.acknowledged() {
            writeln!(file, "{uid},{name},{revision}")?;
        }
        Ok(())
    }

    /// What is wrong with the records while it rests: units that were deleted are back, some are not there that were not, and replicas
    /// that nobody has ended have ended or have started again.
    pub fn problems(&self, records: &Records) -> Vec<String> {
        let ledger = self.ledger.lock();
        let mut problems = Vec::new();
        let mut found = BTreeSet::new();
        for (unit_id, record) in &records.units {
            let meta = record.spec.as_ref().and_then(|spec| spec.meta.clone()).unwrap_or_default();
            if ledger.deleted.contains(&meta.uid) {
                problems.push(format!("{} was deleted and is there", meta.name));
            }
            let Some(kept) = ledger.units.get(&meta.name) else {
                problems.push(format!("{} is there, and nobody was told so", meta.name));
                continue;
            };
            found.insert(meta.name.clone());
            let rows = records.rows.get(unit_id).map(|rows| &rows.blocks[..]).unwrap_or_default();
            if !kept.is_leaving {
                problems.extend(restless(kept, rows));
            }
        }
        let absent = ledger.units.keys().filter(|name| !found.contains(*name));
        problems.extend(absent.map(|name| format!("{name} was acknowledged and is gone")));
        problems
    }
}

/// Returns the faults of the replicas of a unit that stays.
fn restless(kept: &Kept, blocks: &[v1::RowBlock]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut n_rows = 0;
    for block in blocks {
        for (idx, phase) in block.phases.iter().enumerate() {
            n_rows += 1;
            let of = |column: &[u32]| column.get(idx).copied().unwrap_or_default();
            let counts = (of(&block.incarnations), of(&block.restarts), of(&block.evictions));
            let phase = v1::RunPhase::try_from(*phase).unwrap_or_default();
            let is_expected = match phase {
                v1::RunPhase::Bound | v1::RunPhase::Starting | v1::RunPhase::Running => true,
                v1::RunPhase::Succeeded => ends(kept.class),
                _ => false,
            };
            if counts != (0, 0, 0) || !is_expected {
                let (name, ordinal) = (&kept.submitted.name, of(&block.ordinals));
                problems.push(format!(
                    "{name}/{ordinal} is {phase:?}, with incarnation, restarts and eviction {counts:?}"
                ));
            }
        }
    }
    let n_grown = if kept.has_grown { N_GROWN } else { 0 };
    let n_expected = usize::try_from(n_replicas(kept.class) + n_grown).unwrap_or(usize::MAX);
    if n_rows < n_expected {
        problems.push(format!("{} has {n_rows} of {n_expected} replicas", kept.submitted.name));
    }
    problems
}

/// Whether units of the class end by themselves.
fn ends(class: WorkloadClass) -> bool {
    matches!(class, WorkloadClass::Batch | WorkloadClass::Gang)
}

fn n_replicas(class: WorkloadClass) -> u32 {
    match class {
        // It follows the nodes.
        WorkloadClass::Daemon => 0,
        WorkloadClass::Yarn => 1,
        WorkloadClass::Stateful => 2,
        _ => 3,
    }
}

/// A unit of the class.
fn spec(class: WorkloadClass, name: &str, uid: &str) -> v1::UnitSpec {
    let duration_ms = if ends(class) { DURATION_MS } else { 0 };
    v1::UnitSpec {
        workload_class: class.into(),
        ..unit(name, uid, n_replicas(class), resources(10, 1), None, duration_ms)
    }
}

async fn work_on_all(state: &str, ledger: &Arc<Mutex<Ledger>>, is_over: &Arc<AtomicBool>) {
    let api = Api::new(state).expect("a valid address");
    let mut running = JoinSet::new();
    for class in CLASSES {
        let (api, ledger, is_over) = (api.clone(), Arc::clone(ledger), Arc::clone(is_over));
        running.spawn_local(Hand { api, class, ledger, is_over }.work());
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("what was begun is acknowledged");
    }
}

/// Does the work of one class.
struct Hand {
    api: Api,
    class: WorkloadClass,
    ledger: Arc<Mutex<Ledger>>,
    is_over: Arc<AtomicBool>,
}

impl Hand {
    async fn work(self) {
        let mut pace = tokio::time::interval(INTERVAL);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.is_over.load(Ordering::SeqCst) {
            pace.tick().await;
            self.submit_next().await;
            if let Some(oldest) = self.oldest() {
                self.remove(&oldest).await;
            }
        }
    }

    async fn submit_next(&self) {
        let of_class = |kept: &&Kept| kept.class == self.class;
        let last = self.ledger.lock().units.values().filter(of_class).map(|kept| kept.number).max();
        let number = last.map_or(0, |last| last + 1);
        let name = format!("{}-{number:04}", self.class.as_str_name().trim_start_matches("WORKLOAD_CLASS_"));
        let name = name.to_lowercase();
        let uid = uuid::Uuid::now_v7().to_string();
        let unit = spec(self.class, &name, &uid);
        let answer = self
            .until_done(&format!("an acknowledgement of {name}"), async |units| {
                let request = v1::SubmitUnitRequest { unit: Some(unit.clone()) };
                units.submit_unit(request).await
            })
            .await;
        let submitted = Acknowledged { uid, name: name.clone(), revision: answer.revision };
        let kept = Kept { number, class: self.class, submitted, has_grown: false, is_leaving: false };
        {
            let mut ledger = self.ledger.lock();
            ledger.units.insert(name.clone(), kept);
            ledger.n_submitted += 1;
        }
        if self.class == WorkloadClass::Yarn {
            self.grow(&name).await;
        }
    }

    /// Has an application ask for containers, once.
    async fn grow(&self, name: &str) {
        let group = unit("", "", N_GROWN, resources(10, 1), None, 0).task_groups.remove(0);
        let added = vec![v1::TaskGroup { name: "tasks".to_owned(), ..group }];
        let groups = Some(v1::TaskGroupChanges { name: name.to_owned(), added, ..Default::default() });
        self.until_done(&format!("{name} to grow"), async |units| {
            let request = v1::UpdateUnitRequest { groups: groups.clone(), ..Default::default() };
            units.update_unit(request).await
        })
        .await;
        if let Some(kept) = self.ledger.lock().units.get_mut(name) {
            kept.has_grown = true;
        }
    }

    /// The oldest unit, where there are too many.
    fn oldest(&self) -> Option<Acknowledged> {
        let mut ledger = self.ledger.lock();
        let of_class = ledger.units.values_mut().filter(|kept| kept.class == self.class);
        let mut of_class: Vec<&mut Kept> = of_class.collect();
        of_class.sort_by_key(|kept| kept.number);
        if of_class.len() <= N_KEPT {
            return None;
        }
        let oldest = of_class.into_iter().next()?;
        oldest.is_leaving = true;
        Some(oldest.submitted.clone())
    }

    /// Cancels a unit, and deletes it once it has ended.
    async fn remove(&self, Acknowledged { name, uid, .. }: &Acknowledged) {
        self.until_done(&format!("{name} to be cancelled"), async |units| {
            let request = v1::CancelUnitRequest { name: uid.clone(), ..Default::default() };
            match units.cancel_unit(request).await {
                // Ended by itself.
                Err(status) if status.code() == Code::FailedPrecondition => {
                    Ok(Response::new(v1::CancelUnitResponse::default()))
                }
                answered => answered,
            }
        })
        .await;
        self.until_done(&format!("{name} to be deleted"), async |units| {
            let request = v1::DeleteUnitRequest { name: uid.clone(), ..Default::default() };
            match units.delete_unit(request).await {
                // By an earlier try whose answer was lost.
                Err(status) if status.code() == Code::NotFound => {
                    Ok(Response::new(v1::DeleteUnitResponse::default()))
                }
                answered => answered,
            }
        })
        .await;
        let mut ledger = self.ledger.lock();
        ledger.units.remove(name);
        ledger.deleted.insert(uid.clone());
    }

    /// Makes a call again and again until it is done.
    async fn until_done<T>(
        &self,
        what: &str,
        mut call: impl AsyncFnMut(&mut Units) -> Result<Response<T>, Status>,
    ) -> T {
        let answered = wait_for(what, PATIENCE, async || {
            let mut units = self.api.units().await.map_err(|error| format!("{error:#}"))?;
            let answered = tokio::time::timeout(TRY_TIMEOUT, call(&mut units)).await;
            match answered {
                Ok(Ok(answer)) => Ok(Ok(answer.into_inner())),
                Ok(Err(status)) if is_for_good(status.code()) => Ok(Err(status)),
                Ok(Err(status)) => Err(status.to_string()),
                Err(_) => Err("no answer in time".to_owned()),
            }
        })
        .await;
        answered.unwrap_or_else(|status| panic!("{what}: {status}"))
    }
}

type Units = v1::unit_service_client::UnitServiceClient<Channel>;

/// Codes after which no try can do better.
fn is_for_good(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::AlreadyExists
            | Code::NotFound
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::Internal
    )
}
