//! A submitter that never gives up: it submits tasks of the trace one by one at a set pace, tries each with
//! the same uid until it is acknowledged, and writes each acknowledgement to a ledger. It runs as a process
//! of its own (`godel-test-submitter`), so that what it remembers is independent of what is killed.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use godel_proto::v1;
use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::{sync::Semaphore, task::JoinSet, time::MissedTickBehavior};
use tonic::{Code, transport::Channel};
use v1::unit_service_client::UnitServiceClient;

use crate::{
    api::Api,
    trace::{Task, Tasks},
    wait::wait_for,
};

/// Deadline of one try; then the leader is looked up again.
const TRY_TIMEOUT: Duration = Duration::from_secs(3);

/// Time in which each task must have been acknowledged.
const PATIENCE: Duration = Duration::from_secs(90);

/// Submissions under way at the same time.
const WINDOW: usize = 32;

/// What to submit, and how fast.
#[derive(Clone, Debug, clap::Parser)]
pub struct Plan {
    /// Address of state, `http://IP:PORT` or `unix:PATH`.
    #[arg(long)]
    pub state: String,
    /// Where acknowledgements go, as lines `uid,name,revision`: what `godel audit --ledger` reads.
    #[arg(long)]
    pub ledger: PathBuf,
    /// Number of units.
    #[arg(long)]
    pub tasks: usize,
    /// First part of each unit's name.
    #[arg(long)]
    pub prefix: String,
    /// Time between two submissions.
    #[arg(long, default_value_t = 10)]
    pub interval_ms: u64,
    /// How long each task runs; 0 runs until stopped.
    #[arg(long, default_value_t = 0)]
    pub duration_ms: u64,
    /// Of the uids.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Of every unit.
    #[arg(long, default_value_t = 0)]
    pub priority: i32,
    /// Of every unit; empty: the default one.
    #[arg(long, default_value = "")]
    pub queue: String,
}

/// One acknowledged submission.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acknowledged {
    /// Of the unit.
    pub uid: String,
    /// Of the unit.
    pub name: String,
    /// As answered: the unit is durable at this revision.
    pub revision: u64,
}

impl Plan {
    /// As arguments of the submitter process.
    pub fn args(&self) -> Vec<String> {
        let Self { state, ledger, tasks, prefix, interval_ms, duration_ms, seed, priority, queue } = self;
        vec![
            format!("--state={state}"),
            format!("--ledger={}", ledger.display()),
            format!("--tasks={tasks}"),
            format!("--prefix={prefix}"),
            format!("--interval-ms={interval_ms}"),
            format!("--duration-ms={duration_ms}"),
            format!("--seed={seed}"),
            format!("--priority={priority}"),
            format!("--queue={queue}"),
        ]
    }
}

/// Submits everything.
///
/// # Errors
/// When a submission is refused for good, or not acknowledged within 90 s.
pub async fn run(plan: Plan) -> Result<()> {
    tokio::task::LocalSet::new().run_until(submit_all(plan)).await
}

async fn submit_all(plan: Plan) -> Result<()> {
    // The trace's first 300, over and over.
    let tasks = Tasks::first(plan.tasks.min(300))?.tasks;
    let mut rng = StdRng::seed_from_u64(plan.seed);
    let ledger = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&plan.ledger)
        .with_context(|| format!("opening {}", plan.ledger.display()))?;
    let submitter = Arc::new(Submitter {
        api: Api::new(&plan.state)?,
        dispatcher: Mutex::new(None),
        ledger: Mutex::new(ledger),
    });
    let window = Arc::new(Semaphore::new(WINDOW));
    let mut pace = tokio::time::interval(Duration::from_millis(plan.interval_ms.max(1)));
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut submissions = JoinSet::new();
    for (idx, task) in tasks.iter().cycle().take(plan.tasks).enumerate() {
        pace.tick().await;
        let permit = Arc::clone(&window).acquire_owned().await?;
        let unit = numbered_unit(&plan, idx, task, &mut rng);
        let submitter = Arc::clone(&submitter);
        submissions.spawn_local(async move {
            let _permit = permit;
            submitter.submit(unit).await
        });
        while let Some(done) = submissions.try_join_next() {
            done??;
        }
    }
    while let Some(done) = submissions.join_next().await {
        done??;
    }
    Ok(())
}

/// Reads a ledger. A last line without its end is not an acknowledgement.
///
/// # Errors
/// When a whole line is not what [`run`] writes.
pub fn read_ledger(path: &Path) -> Result<Vec<Acknowledged>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(parse_line).collect()
}

struct Submitter {
    api: Api,
    dispatcher: Mutex<Option<UnitServiceClient<Channel>>>,
    ledger: Mutex<fs::File>,
}

impl Submitter {
    /// Tries until acknowledged.
    async fn submit(&self, unit: v1::UnitSpec) -> Result<()> {
        let mut refused = None;
        let answer = wait_for("an acknowledgement", PATIENCE, async || match self.try_once(&unit).await {
            Ok(answer) => Ok(Some(answer)),
            Err(Failure::ForGood(error)) => {
                refused = Some(error);
                Ok(None)
            }
            Err(Failure::Transient(error)) => Err(error),
        })
        .await;
        let Some(answer) = answer else {
            bail!("submission refused: {:?}", refused);
        };
        let meta = unit.meta.unwrap_or_default();
        let line = format!("{},{},{}\n", answer.uid, meta.name, answer.revision);
        self.ledger.lock().write_all(line.as_bytes())?;
        Ok(())
    }

    async fn try_once(&self, unit: &v1::UnitSpec) -> Result<v1::SubmitUnitResponse, Failure> {
        let known = self.dispatcher.lock().clone();
        let mut client = match known {
            Some(client) => client,
            None => {
                let client =
                    self.api.units().await.map_err(|error| Failure::Transient(format!("{error:#}")))?;
                *self.dispatcher.lock() = Some(client.clone());
                client
            }
        };
        let request = v1::SubmitUnitRequest { unit: Some(unit.clone()) };
        let answer = tokio::time::timeout(TRY_TIMEOUT, client.submit_unit(request)).await;
        let failure = match answer {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) if is_transient(status.code()) => Failure::Transient(status.to_string()),
            Ok(Err(status)) => Failure::ForGood(status.to_string()),
            Err(_) => Failure::Transient("timed out".into()),
        };
        *self.dispatcher.lock() = None;
        Err(failure)
    }
}

enum Failure {
    Transient(String),
    ForGood(String),
}

/// Codes after which the same call may be tried again.
fn is_transient(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Unknown
            | Code::ResourceExhausted
    )
}

fn numbered_unit(plan: &Plan, idx: usize, task: &Task, rng: &mut StdRng) -> v1::UnitSpec {
    let uid = uuid::Builder::from_random_bytes(rng.random()).into_uuid().to_string();
    v1::UnitSpec {
        priority: (plan.priority != 0).then_some(plan.priority),
        queue: plan.queue.clone(),
        ..task.unit(&format!("{}-{idx:05}", plan.prefix), &uid, plan.duration_ms)
    }
}

fn parse_line(line: &str) -> Result<Acknowledged> {
    let mut fields = line.splitn(3, ',');
    let mut field = || fields.next().with_context(|| format!("ledger line {line:?}"));
    Ok(Acknowledged { uid: field()?.to_owned(), name: field()?.to_owned(), revision: field()?.parse()? })
}
