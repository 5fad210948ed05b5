//! `godel audit`: reads the live system through its public API and lets `core::invariants` judge it.
//!
//! Two lists and a watch from its floor are brought to one revision, so that what changes meanwhile does not
//! count as a fault. What agents say and what waits is a moment's picture: where that seems wrong, it is looked
//! at again, and what has moved since the first look is no fault: only what lasts is.

use std::{path::Path, time::Duration};

use godel_core::{
    ids::{NodeId, Revision, UnitId},
    invariants::{
        Acknowledged, AgentReport, AgentRun, Before, Commit, Evidence, History, Invariant, Report, World,
        check_all, held_up,
    },
    rows::Phase,
};
use godel_kit::from_proto;
use godel_proto::{raw, v1};
use serde::Serialize;
use tokio_stream::StreamExt as _;
use tonic::Status;

use crate::{
    client::Client,
    exit::{Code, Failure},
    output::Paint,
};

/// Looks before a momentary picture counts as a fault.
const N_LOOKS: u32 = 8;
/// Pause between them.
const PAUSE: Duration = Duration::from_millis(400);
/// A watch that delivers nothing for so long is stuck.
const WATCH_SILENCE_MAX: Duration = Duration::from_secs(30);

/// What an audit found.
#[derive(Clone, Debug)]
pub struct Findings {
    /// Revision that it is about.
    pub revision: u64,
    /// One per invariant.
    pub reports: Vec<Report>,
    /// The state that was judged.
    pub world: World,
}

impl Findings {
    /// Everything holds.
    pub fn hold(&self) -> bool {
        self.reports.iter().all(Report::holds)
    }

    /// One line per invariant.
    pub fn text(&self, paint: Paint) -> String {
        let lines: Vec<String> = self
            .reports
            .iter()
            .map(|report| {
                let text = report.to_string();
                if report.holds() {
                    text.replacen(" ok ", &format!(" {} ", paint.good("ok")), 1)
                } else {
                    text.replacen(" FAILED ", &format!(" {} ", paint.bad("FAILED")), 1)
                }
            })
            .collect();
        lines.join("\n") + "\n"
    }

    /// For machines.
    pub fn view(&self) -> AuditView {
        let invariants = self.reports.iter().map(|report| InvariantView {
            id: report.invariant.to_string(),
            says: report.invariant.sentence(),
            ok: report.holds(),
            checked: report.checked.clone(),
            violations: report.violations.clone(),
            n_violations: report.n_violations,
        });
        AuditView { ok: self.hold(), revision: self.revision, invariants: invariants.collect() }
    }
}

/// An audit as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct AuditView {
    /// Everything holds.
    pub ok: bool,
    /// Revision that it is about.
    pub revision: u64,
    /// One per invariant.
    pub invariants: Vec<InvariantView>,
}

/// One invariant as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct InvariantView {
    /// `I1` to `I9`.
    pub id: String,
    /// In one sentence.
    pub says: &'static str,
    /// It holds.
    pub ok: bool,
    /// What was looked at.
    pub checked: String,
    /// The first violations, by name.
    pub violations: Vec<String>,
    /// All of them.
    pub n_violations: usize,
}

/// Audits the system behind `client`.
///
/// # Errors
/// It cannot be read.
pub async fn run(client: &Client, ledger: Option<Vec<Acknowledged>>) -> Result<Findings, Failure> {
    let mut evidence = Evidence { ledger, ..Evidence::default() };
    let mut n_looks = 0;
    loop {
        look(client, &mut evidence).await?;
        n_looks += 1;
        let reports = check_all(&evidence);
        let momentary = |report: &&Report| matches!(report.invariant, Invariant::I3 | Invariant::I8);
        let settled = reports.iter().filter(momentary).all(Report::holds) && evidence.busy.is_none();
        let broken_for_good =
            reports.iter().filter(|report| !momentary(report)).any(|report| !report.holds());
        if settled || broken_for_good || n_looks >= N_LOOKS {
            return Ok(Findings { revision: evidence.listed.revision.0, reports, world: evidence.listed });
        }
        evidence.before = Some(Before::of(&evidence));
        tokio::time::sleep(PAUSE).await;
    }
}

/// Reads a ledger: `uid,name,revision` lines. A torn last line, without its end, does not count.
///
/// # Errors
/// The file cannot be read, or a line is wrong.
pub fn read_ledger(path: &Path) -> Result<Vec<Acknowledged>, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("the ledger {} cannot be read: {error}", path.display())))?;
    parse_ledger(&text).map_err(|what| Failure::usage(format!("{}:{what}", path.display())))
}

fn parse_ledger(text: &str) -> Result<Vec<Acknowledged>, String> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut ledger = Vec::new();
    for (idx, line) in whole.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let mut fields = line.split(',');
        let entry = (|| {
            let (uid, name) = (fields.next()?, fields.next()?);
            let revision = fields.next()?.parse().ok()?;
            fields.next().is_none().then(|| Acknowledged {
                uid: uid.to_owned(),
                name: name.to_owned(),
                revision: Revision(revision),
            })
        })();
        ledger.push(entry.ok_or_else(|| format!("{}: `{line}` is not uid,name,revision", idx + 1))?);
    }
    Ok(ledger)
}

/// Reads on to this moment: at first everything, and again where the history begins after what was read.
async fn look(client: &Client, evidence: &mut Evidence) -> Result<(), Failure> {
    let floor = client.store_status().await?.floor_revision;
    let read_up_to = evidence.history.up_to.0;
    if read_up_to == 0 || floor > read_up_to + 1 {
        (evidence.listed, evidence.listed_again) = (list(client).await?, list(client).await?);
        evidence.history = History::default();
    }
    evidence.agents = agent_reports(client).await?;
    let status = client.store_status().await?;
    watch(client, &status, &mut evidence.history).await?;
    bring_up(&mut evidence.listed, &evidence.history);
    bring_up(&mut evidence.listed_again, &evidence.history);
    evidence.busy = busy(client, &evidence.listed).await?;
    Ok(())
}

/// Applies what was committed after a list.
fn bring_up(world: &mut World, history: &History) {
    let listed_at = world.revision;
    for commit in history.commits.iter().filter(|commit| commit.revision > listed_at) {
        world.apply(commit, |_, _| {});
    }
}

/// Everything that is stored, as one look at it.
pub(crate) async fn list(client: &Client) -> Result<World, Failure> {
    let mut world = World::default();
    let mut request = v1::ListRecordsRequest {
        kinds: KINDS.iter().map(|kind| i32::from(*kind)).collect(),
        page_size: 10_000,
        page_token: String::new(),
    };
    let mut first = None;
    loop {
        let page = client
            .read(|| {
                let (mut state, request) = (client.state(), request.clone());
                async move { state.list_records(request).await }
            })
            .await?
            .into_inner();
        let revision = *first.get_or_insert(page.revision);
        for record in page.records {
            let loaded = from_proto::record(record).map_err(unreadable)?;
            world.load(loaded.create_revision, loaded.revision, &loaded.change);
        }
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            world.revision = Revision(revision);
            return Ok(world);
        }
    }
}

const KINDS: [v1::Kind; 14] = [
    v1::Kind::NodeSpec,
    v1::Kind::NodeReport,
    v1::Kind::NodeGrant,
    v1::Kind::NodeUsage,
    v1::Kind::UnitSpec,
    v1::Kind::Lease,
    v1::Kind::Partition,
    v1::Kind::Queue,
    v1::Kind::PriorityClass,
    v1::Kind::DisruptionBudget,
    v1::Kind::Reservation,
    v1::Kind::Hold,
    v1::Kind::Pause,
    v1::Kind::Rows,
];

/// The watch to the revision of `status`, from its floor or from where `history` ends. One that is cut off goes on where it
/// was.
async fn watch(
    client: &Client,
    status: &v1::GetStoreStatusResponse,
    history: &mut History,
) -> Result<(), Failure> {
    if history.up_to.0 == 0 {
        history.floor = Revision(status.floor_revision);
    }
    let mut n_failures = 0;
    while history.up_to.0 < status.revision {
        let Err(status) = watch_on(client, status.revision, history).await else { break };
        n_failures += 1;
        let retryable = godel_kit::status::is_retryable_idempotent(&status)
            || godel_kit::status::has_reason(&status, godel_kit::status::reason::SLOW_WATCHER);
        if !retryable || n_failures > 20 {
            return Err(client.explain(status).during("the watch"));
        }
    }
    Ok(())
}

async fn watch_on(client: &Client, end: u64, history: &mut History) -> Result<(), Status> {
    if end < history.floor.0 {
        history.up_to = Revision(end);
        return Ok(());
    }
    let from = history.up_to.0.max(history.floor.0.max(1) - 1) + 1;
    let request = v1::WatchRequest { from_revision: from, kinds: Vec::new(), ..v1::WatchRequest::default() };
    let mut stream = client.state().watch(request).await?.into_inner();
    loop {
        let next = tokio::time::timeout(WATCH_SILENCE_MAX, stream.next()).await;
        let next = next.map_err(|_| Status::deadline_exceeded("the watch is silent"))?;
        let answer = next.ok_or_else(|| Status::unavailable("the watch ended"))??;
        for commit in answer.commits.into_iter().filter(|commit| commit.revision <= end) {
            history.commits.push(commit_of(&commit)?);
        }
        history.up_to = Revision(answer.revision.min(end));
        if answer.revision >= end {
            return Ok(());
        }
    }
}

fn commit_of(commit: &raw::Commit) -> Result<Commit, Status> {
    let changes = commit.ops.iter().map(from_proto::op).collect::<Result<_, _>>();
    Ok(Commit {
        revision: Revision(commit.revision),
        time_ms: commit.commit_time_ms,
        changes: changes.map_err(|bad: godel_kit::convert::BadField| {
            Status::data_loss(format!("revision {}: {}: {}", commit.revision, bad.path, bad.description))
        })?,
    })
}

async fn agent_reports(client: &Client) -> Result<Vec<AgentReport>, Failure> {
    client
        .read(|| {
            let mut state = client.state();
            async move {
                let mut stream = state.list_agent_reports(v1::ListAgentReportsRequest {}).await?.into_inner();
                let mut reports = Vec::new();
                while let Some(answer) = stream.next().await {
                    join(&mut reports, agent_report(answer?));
                }
                Ok(reports)
            }
        })
        .await
}

/// Adds a report; one of the same node as the last goes on with it.
fn join(reports: &mut Vec<AgentReport>, next: AgentReport) {
    match reports.last_mut().filter(|last| last.node == next.node) {
        Some(last) => last.running.extend(next.running),
        None => reports.push(next),
    }
}

fn agent_report(answer: v1::ListAgentReportsResponse) -> AgentReport {
    let running = answer.running.iter().map(|run| AgentRun {
        unit: UnitId(run.unit_id),
        ordinal: run.ordinal,
        incarnation: run.incarnation,
        phase: match run.phase() {
            v1::RunPhase::Unspecified => Phase::Pending,
            v1::RunPhase::Bound => Phase::Bound,
            v1::RunPhase::Starting => Phase::Starting,
            v1::RunPhase::Running => Phase::Running,
            v1::RunPhase::Succeeded => Phase::Succeeded,
            v1::RunPhase::Failed => Phase::Failed,
            v1::RunPhase::Stopped => Phase::Stopped,
        },
    });
    AgentReport {
        node: NodeId(answer.node_id),
        name: answer.node.clone(),
        connected: answer.connected,
        running: running.collect(),
    }
}

/// Why pending units cannot be judged now.
async fn busy(client: &Client, world: &World) -> Result<Option<String>, Failure> {
    match client.dispatcher_status().await {
        Ok(_) => {}
        Err(failure) if failure.code == Code::Unreachable => {
            return Ok(Some("no dispatcher answers".to_owned()));
        }
        Err(failure) => return Err(failure),
    }
    let mut quiet = Quiet::look(client).await?;
    // What has no room under a maximum stays in the dispatcher's queues: nothing goes on with it.
    quiet.queued = quiet.queued.saturating_sub(u64::try_from(held_up(world)).unwrap_or(u64::MAX));
    Ok(quiet.busy())
}

/// Whether anything is on its way to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quiet {
    /// Units in the dispatcher's queues.
    pub queued: u64,
    /// Units handed out to schedulers that are neither parked nor bound, as either side sees it.
    pub at_work: u64,
    /// Decisions on their way to the binder.
    pub in_flight: u64,
    /// Units that found no place.
    pub parked: u64,
    /// Schedulers attached.
    pub schedulers: u64,
    /// Store revision that the slowest reader has read.
    pub read_up_to: u64,
    /// Store revision.
    pub revision: u64,
}

impl Quiet {
    /// Asks the dispatcher and every scheduler.
    ///
    /// # Errors
    /// The dispatcher does not answer.
    pub async fn look(client: &Client) -> Result<Self, Failure> {
        let store = client.store_status().await?;
        let dispatcher = client.dispatcher_status().await?;
        let mut quiet = Self {
            queued: dispatcher.queued_units,
            // Handed out and not reported parked: perhaps still on its way to a scheduler.
            at_work: dispatcher.dispatched_units.saturating_sub(dispatcher.parked_units),
            revision: store.revision,
            read_up_to: dispatcher.revision,
            ..Self::default()
        };
        for scheduler in client.schedulers().await?.schedulers.iter().filter(|scheduler| scheduler.attached) {
            quiet.schedulers += 1;
            // One that does not answer has what the dispatcher counts as handed out.
            let Ok(status) = client.scheduler_status(&scheduler.address).await else { continue };
            quiet.at_work += u64::from(status.ready_units) + u64::from(status.backoff_units);
            quiet.in_flight += u64::from(status.in_flight);
            quiet.parked += u64::from(status.parked_units);
            quiet.read_up_to = quiet.read_up_to.min(status.revision);
        }
        Ok(quiet)
    }

    /// What is going on; `None` when nothing is.
    pub fn busy(&self) -> Option<String> {
        if self.schedulers == 0 {
            return Some("no scheduler is attached".to_owned());
        }
        if self.queued + self.at_work + self.in_flight > 0 {
            let Self { queued, at_work, in_flight, .. } = self;
            return Some(format!(
                "{queued} units are queued, {at_work} tried, {in_flight} decisions in flight"
            ));
        }
        (self.read_up_to < self.revision)
            .then(|| format!("revision {} of {} is read", self.read_up_to, self.revision))
    }
}

fn unreadable(bad: godel_kit::convert::BadField) -> Failure {
    Failure::failed(format!("a record cannot be read: {}: {}", bad.path, bad.description))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledgers_are_read_up_to_a_torn_line() {
        let ledger = parse_ledger("u-1,a,5\nu-2,shop/b,6\nu-3,c").unwrap();
        assert_eq!(ledger.len(), 2);
        assert_eq!((ledger[1].name.as_str(), ledger[1].revision), ("shop/b", Revision(6)));
        assert_eq!(parse_ledger("").unwrap(), []);
        assert_eq!(parse_ledger("u-1,a\n").unwrap_err(), "1: `u-1,a` is not uid,name,revision");
        assert_eq!(parse_ledger("u-1,a,5\nu,a,x\n").unwrap_err(), "2: `u,a,x` is not uid,name,revision");
    }

    #[test]
    fn what_is_under_way_is_named() {
        let quiet = Quiet { schedulers: 3, parked: 9, revision: 7, read_up_to: 7, ..Quiet::default() };
        assert_eq!(quiet.busy(), None);
        assert!(Quiet { queued: 1, ..quiet }.busy().unwrap().contains("1 units are queued"));
        assert!(Quiet { schedulers: 0, ..quiet }.busy().unwrap().contains("no scheduler"));
        assert!(Quiet { read_up_to: 6, ..quiet }.busy().unwrap().contains("revision 6 of 7"));
    }
}
