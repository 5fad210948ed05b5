//! Replays a trace through the real API: submits every task in file order at once, watches until each is bound
//! or found to fit nowhere, and sums up what happened.

mod submit;
mod summary;
mod watch;

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use indicatif::ProgressBar;
use tokio_util::sync::CancellationToken;

pub use self::summary::{Latency, SchedulerShare, Summary};
use self::{submit::Submitter, summary::Baseline, watch::ReplayBoard};
use crate::{
    audit::{self, Quiet},
    client::Client,
    exit::{Code, Failure},
    output::{self, progress},
    trace::{self, TraceTask},
};

/// How often the dispatcher and the schedulers are asked whether anything is left to do.
const QUIET_POLL: Duration = Duration::from_millis(25);
/// Looks in a row that must agree.
const N_QUIET_LOOKS: u32 = 2;

/// So long the audit at the end waits until it can judge everything.
const AUDIT_PATIENCE: Duration = Duration::from_mins(1);

/// What to replay and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// In file order.
    pub tasks: Vec<TraceTask>,
    /// Namespace of the units.
    pub namespace: String,
    /// Lifetimes divided by this; none: tasks run until stopped.
    pub speed: Option<f64>,
    /// Every acknowledgement goes here, handed to the system before the next is read.
    pub ledger: Option<PathBuf>,
    /// Give up after this.
    pub timeout: Duration,
    /// Processes whose CPU time counts; none: it is not known.
    pub cpu_pids: Vec<u32>,
    /// Audit at the end.
    pub audit: bool,
}

/// Replays.
///
/// # Errors
/// The system cannot be reached, refuses tasks, or does not come to rest in time.
pub async fn run(
    client: &Client,
    options: Options,
) -> Result<(Summary, Option<audit::AuditFindings>), Failure> {
    let timeout = options.timeout;
    let replay = run_untimed(client, options);
    tokio::time::timeout(timeout, replay).await.unwrap_or_else(|_| {
        let after = humantime::format_duration(timeout);
        Err(Failure::new(Code::Timeout, format!("timeout: the replay did not finish within {after}"))
            .hint("see `godel status` and `godel scheduler list`; --timeout sets a longer timeout"))
    })
}

/// The tasks of a trace.
///
/// # Errors
/// It cannot be read.
pub fn read_tasks(file: &Path) -> Result<Vec<TraceTask>, Failure> {
    let shown = file.display();
    let input = File::open(file)
        .map_err(|error| Failure::usage(format!("the trace {shown} cannot be read: {error}")))?;
    trace::read(std::io::BufReader::new(input))
        .map_err(|error| Failure::chain(Code::Usage, &error).during(shown))
}

async fn run_untimed(
    client: &Client,
    options: Options,
) -> Result<(Summary, Option<audit::AuditFindings>), Failure> {
    let baseline = Baseline::take(client, &options.cpu_pids).await?;
    let stop = CancellationToken::new();
    let _stop_at_the_end = stop.clone().drop_guard();
    let bar = progress(options.tasks.len(), "placed");
    let names: Vec<(String, String)> =
        options.tasks.iter().map(|task| (uuid::Uuid::now_v7().to_string(), task.name.clone())).collect();
    let board = ReplayBoard::start(client, baseline.revision + 1, &names, stop.clone());
    let submitter = Submitter::new(client.clone(), options.ledger.as_deref())?;
    let mut units = Vec::with_capacity(options.tasks.len());
    for (task, (uid, _)) in options.tasks.iter().zip(&names) {
        units.push(task.unit(uid.clone(), &options.namespace, options.speed));
    }
    let started = Instant::now();
    board.begin(started);
    let submitting = godel_kit::task::spawn(
        "replay.submit",
        submitter.run(Arc::new(units), Arc::clone(&board), stop.clone()),
    );
    let refused = join(submitting, &board, &bar).await?;
    if !refused.is_empty() {
        let lines: Vec<String> = refused.iter().take(10).map(|(_, said)| format!("  {said}")).collect();
        let code = Code::worst(refused.iter().map(|(code, _)| *code)).unwrap_or(Code::Usage);
        return Err(Failure::new(
            code,
            format!(
                "{} {} refused\n{}",
                output::count(refused.len(), "task"),
                output::one_or(refused.len(), "was", "were"),
                lines.join("\n")
            ),
        ));
    }
    settle(client, &board, &bar, &options).await?;
    bar.finish_and_clear();
    let mut summary = baseline.summary(client, &board, &options).await?;
    let findings = if options.audit {
        let ledger = options.ledger.as_deref().map(audit::read_ledger).transpose()?;
        let findings =
            audit::run(client, audit::Wanted { ledger, patience: AUDIT_PATIENCE, look_here: None }).await?;
        summary.set_audit(&findings);
        Some(findings)
    } else {
        None
    };
    Ok((summary, findings))
}

async fn join(
    submitting: tokio::task::JoinHandle<Result<Vec<(Code, String)>, Failure>>,
    board: &ReplayBoard,
    bar: &ProgressBar,
) -> Result<Vec<(Code, String)>, Failure> {
    let mut submitting = submitting;
    loop {
        tokio::select! {
            ended = &mut submitting => {
                return ended.unwrap_or_else(|_| Err(Failure::failed("the submission panicked")));
            }
            () = tokio::time::sleep(Duration::from_millis(100)) => show(bar, board),
        }
    }
}

fn show(bar: &ProgressBar, board: &ReplayBoard) {
    let (bound, acknowledged) = (board.n_bound(), board.n_acknowledged());
    bar.set_position(u64::try_from(bound).unwrap_or(0));
    bar.set_message(format!("({acknowledged} acknowledged)"));
}

/// Waits until every task is bound, or nothing is on its way to a node any more.
async fn settle(
    client: &Client,
    board: &ReplayBoard,
    bar: &ProgressBar,
    options: &Options,
) -> Result<(), Failure> {
    let n_tasks = options.tasks.len();
    let mut last: Option<Quiet> = None;
    let mut n_same = 0;
    let mut n_bound = 0;
    loop {
        show(bar, board);
        // While bindings come, nobody has to be asked.
        if std::mem::replace(&mut n_bound, board.n_bound()) != board.n_bound() && n_bound < n_tasks {
            tokio::time::sleep(QUIET_POLL).await;
            continue;
        }
        if board.n_bound() == n_tasks {
            return Ok(());
        }
        if let Some(failure) = board.failure() {
            return Err(failure);
        }
        // Tasks that end make room for others: it is not over while one with an end still runs.
        let may_wake = options.speed.is_some() && board.n_live() > 0;
        let quiet = Quiet::look(client).await?;
        let rests = quiet.busy().is_none() && board.read_up_to() >= quiet.revision && !may_wake;
        n_same = match last {
            Some(before) if rests && before.parked == quiet.parked => n_same + 1,
            _ => u32::from(rests),
        };
        if n_same >= N_QUIET_LOOKS {
            return Ok(());
        }
        last = Some(quiet);
        tokio::select! {
            () = board.all_bound(n_tasks) => {}
            () = tokio::time::sleep(QUIET_POLL) => {}
        }
    }
}
