//! What an audit reads: two lists, the state on which the history rests, the watch from there, and what agents say.

use std::time::Duration;

use godel_audit::{
    AgentReport, AgentRun, Commit, Evidence, History, NodeProcesses, Orphan, OrphanUnit, RunProcesses, Start,
    World,
};
use godel_base::ids::{NodeId, ReplicaId, Revision, RunningUnitId, UnitId};
use godel_domain::change::Change;
use godel_kit::status;
use godel_proto::{raw, v1};
use godel_wire::from_proto;
use tokio_stream::StreamExt as _;
use tonic::{Code, Status};

use super::{quiet::busy, unreadable::Unreadables};
use crate::{client::Client, exit::Failure};

/// A stream that delivers nothing for so long is stuck.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How often everything is read anew because the history went on meanwhile.
const N_BEGINS_MAX: u32 = 3;

/// Reads on to this moment: at first everything, and again where the history begins after what was read. Returns whether units that wait
/// at each of several such looks can be judged.
pub(super) async fn look(
    client: &Client,
    evidence: &mut Evidence,
    unreadable: &mut Unreadables,
) -> Result<bool, Failure> {
    let mut n_begins = 0;
    loop {
        let read_up_to = evidence.history.up_to.0;
        let floor = client.store_status().await?.floor_revision;
        if read_up_to == 0 || floor > read_up_to + 1 {
            begin(client, evidence, unreadable, floor).await?;
        }
        evidence.agents = agent_reports(client).await?;
        evidence.processes = processes(client).await?;
        let status = client.store_status().await?;
        n_begins += 1;
        match watch(client, &status, &mut evidence.history, unreadable).await {
            Ok(()) => break,
            // What was to be read is not kept any more.
            Err(status)
                if status::has_reason(&status, status::reason::COMPACTED) && n_begins < N_BEGINS_MAX =>
            {
                evidence.history = History::default();
            }
            Err(status) => return Err(client.explain(status).during("the watch")),
        }
    }
    bring_up(&mut evidence.listed, &evidence.history);
    bring_up(&mut evidence.listed_again, &evidence.history);
    let busy = busy(client, &evidence.listed).await?;
    let can_be_judged = busy.as_ref().is_none_or(|busy| busy.only_goes_on);
    evidence.busy = busy.map(|busy| busy.why);
    // No dispatcher answers: bands are not compared, and that is said.
    if let Ok(status) = client.dispatcher_status().await {
        evidence.service.floor_percent = u8::try_from(status.band_floor_percent).ok();
    }
    Ok(can_be_judged)
}

/// Reads everything that is not the watch.
async fn begin(
    client: &Client,
    evidence: &mut Evidence,
    unreadable: &mut Unreadables,
    floor: u64,
) -> Result<(), Failure> {
    *unreadable = Unreadables::default();
    evidence.before = None;
    evidence.listed = readable(client, unreadable).await?;
    evidence.listed_again = readable(client, unreadable).await?;
    let (floor, start) = match start(client, unreadable).await {
        Ok((0, _)) => (1, Start::Empty),
        Ok((base, world)) => (base + 1, Start::Kept(Box::new(world))),
        Err(failure) => (floor, Start::Unknown(failure.message)),
    };
    evidence.history = History { floor: Revision(floor), start, ..History::default() };
    Ok(())
}

/// The revision behind which the history begins, and the state there.
async fn start(client: &Client, unreadable: &mut Unreadables) -> Result<(u64, World), Failure> {
    let read = || async {
        let mut stream = client.state().read_floor(v1::ReadFloorRequest {}).await?.into_inner();
        let (mut base, mut world, mut left_out) = (None, World::default(), Unreadables::default());
        loop {
            let next = tokio::time::timeout(SILENCE_MAX, stream.next()).await;
            let next = next.map_err(|_| Status::deadline_exceeded("state does not answer"))?;
            let Some(answer) = next.transpose()? else { break };
            base = Some(answer.base_revision);
            world.revision = Revision(answer.complete_revision);
            for record in answer.records {
                load(&mut world, record, &mut left_out);
            }
        }
        let base = base.ok_or_else(|| Status::unavailable("the stream ended before it began"))?;
        Ok((base, world, left_out))
    };
    let (base, world, left_out) = client.read(read).await?;
    unreadable.extend(left_out);
    Ok((base, world))
}

/// Loads a record, or notes that it cannot be read.
fn load(world: &mut World, record: v1::Record, unreadable: &mut Unreadables) {
    let loaded = from_proto::read_record(record);
    match loaded.change {
        Change::Unreadable(bad) => unreadable.add(*bad, None),
        change => world.load(loaded.create_revision, loaded.revision, &change),
    }
}

/// Applies what was committed after a list.
fn bring_up(world: &mut World, history: &History) {
    let listed_at = world.revision;
    for commit in history.commits.iter().filter(|commit| commit.revision > listed_at) {
        world.apply(commit, |_, _| {});
    }
}

/// Everything that is stored, as one look at it.
pub async fn list(client: &Client) -> Result<World, Failure> {
    let mut unreadable = Unreadables::default();
    let world = readable(client, &mut unreadable).await?;
    match unreadable.first() {
        None => Ok(world),
        Some(first) => Err(Failure::failed(format!("a record cannot be read: {first}"))),
    }
}

/// What of it can be read.
async fn readable(client: &Client, unreadable: &mut Unreadables) -> Result<World, Failure> {
    let mut world = World::default();
    let mut request = v1::ListRecordsRequest {
        kinds: godel_audit::follows().map(|kind| kind as i32).collect(),
        page_size: 10_000,
        page_token: String::new(),
    };
    let mut first = None;
    loop {
        let page =
            client.read(async || client.state().list_records(request.clone()).await).await?.into_inner();
        let revision = *first.get_or_insert(page.revision);
        for record in page.records {
            load(&mut world, record, unreadable);
        }
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            world.revision = Revision(revision);
            return Ok(world);
        }
    }
}

/// The watch to the revision of `status`, from where `history` begins or ends. One that is cut off goes on where it
/// was.
async fn watch(
    client: &Client,
    status: &v1::GetStoreStatusResponse,
    history: &mut History,
    unreadable: &mut Unreadables,
) -> Result<(), Status> {
    let mut n_failures = 0;
    while history.up_to.0 < status.revision {
        let Err(status) = watch_on(client, status.revision, history, unreadable).await else { break };
        n_failures += 1;
        let retryable = godel_kit::status::is_retryable_idempotent(&status)
            || godel_kit::status::has_reason(&status, godel_kit::status::reason::SLOW_WATCHER);
        if !retryable || n_failures > 20 {
            return Err(status);
        }
    }
    Ok(())
}

async fn watch_on(
    client: &Client,
    end: u64,
    history: &mut History,
    unreadable: &mut Unreadables,
) -> Result<(), Status> {
    if end < history.floor.0 {
        history.up_to = Revision(end);
        return Ok(());
    }
    let from = history.up_to.0.max(history.floor.0.max(1) - 1) + 1;
    let request = v1::WatchRequest { from_revision: from, ..v1::WatchRequest::default() };
    let mut stream = client.state().watch(request).await?.into_inner();
    loop {
        let next = tokio::time::timeout(SILENCE_MAX, stream.next()).await;
        let next = next.map_err(|_| Status::deadline_exceeded("the watch delivers nothing"))?;
        let answer = next.ok_or_else(|| Status::unavailable("the watch ended"))??;
        for commit in answer.commits.into_iter().filter(|commit| commit.revision <= end) {
            history.commits.push(commit_of(&commit, unreadable));
        }
        history.up_to = Revision(answer.revision.min(end));
        if answer.revision >= end {
            return Ok(());
        }
    }
}

fn commit_of(commit: &raw::Commit, unreadable: &mut Unreadables) -> Commit {
    let revision = Revision(commit.revision);
    let mut changes = Vec::with_capacity(commit.ops.len());
    for op in &commit.ops {
        match from_proto::read_op(op) {
            Change::Unreadable(bad) => unreadable.add(*bad, Some(revision)),
            change => changes.push(change),
        }
    }
    Commit { revision, time_ms: commit.commit_time_ms, changes }
}

async fn agent_reports(client: &Client) -> Result<Vec<AgentReport>, Failure> {
    client
        .read(async || {
            let mut state = client.state();
            let mut stream = state.list_agent_reports(v1::ListAgentReportsRequest {}).await?.into_inner();
            let mut reports = Vec::new();
            while let Some(answer) = stream.next().await {
                join(&mut reports, agent_report(answer?));
            }
            Ok(reports)
        })
        .await
}

/// What really runs, as the agents of nodes with processes find it now. A state of an earlier version does not ask them.
async fn processes(client: &Client) -> Result<Vec<NodeProcesses>, Failure> {
    client
        .read(async || {
            let mut nodes = client.nodes();
            let asked = nodes.list_run_processes(v1::ListRunProcessesRequest {}).await;
            let mut stream = match asked {
                Err(status) if status.code() == Code::Unimplemented => return Ok(Vec::new()),
                answer => answer?.into_inner(),
            };
            let mut found = Vec::new();
            while let Some(answer) = stream.next().await {
                found.push(node_processes(answer?));
            }
            Ok(found)
        })
        .await
}

fn node_processes(answer: v1::ListRunProcessesResponse) -> NodeProcesses {
    let running = answer.running.iter().map(|run| RunProcesses {
        id: RunningUnitId::new(UnitId(run.unit_id), run.ordinal, run.incarnation),
        n_processes: run.processes,
    });
    let orphan = |orphan: v1::OrphanProcess| Orphan {
        process: (orphan.pid, orphan.began),
        name: orphan.name,
        unit: match orphan.unit_id {
            0 => OrphanUnit::Uid(orphan.unit_uid),
            unit => OrphanUnit::Id(UnitId(unit)),
        },
        replica: ReplicaId { ordinal: orphan.ordinal, incarnation: orphan.incarnation },
    };
    NodeProcesses {
        node: NodeId(answer.node_id),
        name: answer.node,
        running: running.collect(),
        orphans: answer.orphans.into_iter().map(orphan).collect(),
        failure: Some(answer.failure).filter(|failure| !failure.is_empty()),
    }
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
        id: RunningUnitId::new(UnitId(run.unit_id), run.ordinal, run.incarnation),
        phase: from_proto::phase(run.phase).unwrap_or_default(),
    });
    AgentReport {
        node: NodeId(answer.node_id),
        name: answer.node.clone(),
        connected: answer.connected,
        running: running.collect(),
    }
}
