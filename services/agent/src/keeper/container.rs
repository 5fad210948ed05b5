//! The container of a run: made, started, watched until its end, and removed.
//!
//! The keeper of a container has a small runtime, for the connections to the engine. It goes on where the engine does: what is asked is asked
//! again until there is an answer, and an engine that has gone away is waited for. Only the end of a run does not wait for the engine:
//! what has to end is ended as a process too.

use std::{
    cell::Cell,
    fs::File,
    future::pending,
    path::Path,
    pin::pin,
    time::{Duration, Instant},
};

use bollard::container::LogOutput;
use futures_util::StreamExt as _;
use godel_domain::run_end::RunEndReason;
use godel_membership::agent_admission::AssignmentRefusal;
use rustix::process::Signal;

use super::{
    Error, STOPPED,
    command::CannotStart,
    failed,
    files::{Ended, KEEPER, Keeper, Run, Started},
    not_started,
    stopping::{SIGKILL, Stopping},
    wall_ms, why, write, write_end,
};
use crate::{
    docker::{
        self, Engine, Output,
        body::{self, Container, Facts},
    },
    logs,
    procfs::{self, Process},
    runtime::process::strays::NodeMark,
};

/// Longest pause between attempts to start a container.
const START_PAUSE_MAX: Duration = Duration::from_secs(10);
/// An engine that is away when a container is to start is waited for so long; then it is started elsewhere.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Between looks at a container whose engine does not say that it has ended.
const PAUSE: Duration = Duration::from_secs(1);
/// Attempts to read output again are further and further apart: a container may have closed it for good.
const ATTACH_PAUSE_MAX: Duration = Duration::from_secs(60);
/// What a container has written last is waited for.
const DRAIN: Duration = Duration::from_secs(5);
/// A kill for want of memory may be known a moment after the end.
const OOM_PAUSE: Duration = Duration::from_millis(200);
/// An engine that does not answer for so long, while the processes of the container are gone, is not waited for.
const ENGINE_PATIENCE: Duration = Duration::from_secs(60);
/// A container whose end is written down is removed in this time, or by the next agent.
const REMOVAL: Duration = Duration::from_secs(30);
/// Exit code of a container of which nobody saw the end: 128 + SIGKILL.
const KILLED: i32 = 137;

/// Keeps the container of a run until it has ended and is removed.
pub(super) fn keep(
    run: &Run,
    container: &Container,
    dir: &Path,
    keeper: &Keeper,
    control: File,
    log: &mut logs::LogWriter,
) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed("its runtime cannot be made"))?;
    runtime.block_on(async {
        let stopping = Stopping::new(run, control).map_err(failed("its control pipe cannot be read"))?;
        let is_made = Cell::new(false);
        let ended = live(run, container, &is_made, dir, keeper, stopping, log).await?;
        log.sync();
        // An agent without a state directory takes the directory with it: nobody asks for the end, and the container is removed all the same.
        let written = write_end(dir, &ended);
        if is_made.get() {
            remove(container).await;
        }
        written
    })
}

/// Starts the container and waits for its end.
async fn live(
    run: &Run,
    container: &Container,
    is_made: &Cell<bool>,
    dir: &Path,
    keeper: &Keeper,
    mut stopping: Stopping<'_>,
    log: &mut logs::LogWriter,
) -> Result<Ended, Error> {
    let started = tokio::select! {
        started = start(run, container, is_made, log) => started,
        // What the engine is doing just now is undone by the removal.
        reason = stopping.told() => {
            if is_made.get() {
                remove(container).await;
                // It may have come into being just then: it is removed once more at the end.
                tokio::time::sleep(PAUSE).await;
            }
            let reason = reason.name().to_owned();
            return Ok(Ended { exit_code: STOPPED, reason, ended_ms: wall_ms(), ..Ended::default() });
        }
    };
    match started {
        Ok(running) => {
            let Facts { pid, started_ms: at_ms, .. } = running.facts;
            let started = Some(Started { pid, at_ms, in_group: true });
            write(dir, KEEPER, &Keeper { started, ..keeper.clone() })?;
            Ok(watch(run, container, running, stopping, log).await)
        }
        Err(cannot) => Ok(not_started(cannot, log, wall_ms())),
    }
}

/// A container that runs, or has run.
struct Running {
    engine: Engine,
    output: Option<Output>,
    /// As it was found after the start.
    facts: Facts,
}

/// Why a container was not started, and for how long it is worth another try.
struct NotStarted {
    cannot: CannotStart,
    patience: Option<Duration>,
}

impl NotStarted {
    /// For what it is worth another try while the engine is away.
    fn engine(error: docker::Error) -> Self {
        let patience = error.passes().then_some(START_PATIENCE);
        let words = error.to_string();
        Self { cannot: CannotStart::new(body::reason(&words), words), patience }
    }

    /// The engine has tried; only one that goes away meanwhile is asked again.
    fn made(error: docker::Error) -> Self {
        let is_away = error.is_away();
        let failed = Self::engine(error);
        Self { patience: failed.patience.filter(|_| is_away), ..failed }
    }
}

/// Starts the container, with more attempts further and further apart while its engine or its registry is away. What has not started by
/// then has not failed: it is given back.
async fn start(
    run: &Run,
    container: &Container,
    is_made: &Cell<bool>,
    log: &mut logs::LogWriter,
) -> Result<Running, CannotStart> {
    let (begun, mut pause, mut said) = (Instant::now(), PAUSE, String::new());
    loop {
        let NotStarted { cannot, patience } = match try_start(run, container, is_made).await {
            Ok(running) => return Ok(running),
            Err(failed) => failed,
        };
        let Some(patience) = patience else { return Err(cannot) };
        if begun.elapsed() + pause > patience {
            return Err(CannotStart { refused: Some(AssignmentRefusal::Engine), ..cannot });
        }
        if cannot.why != said {
            log.write(format!("[godel: {}; it is tried again]\n", cannot.why).as_bytes());
            said = cannot.why;
        }
        tokio::time::sleep(pause).await;
        pause = START_PAUSE_MAX.min(2 * pause);
    }
}

/// Fetches the image if it is not there, and makes and starts the container.
async fn try_start(run: &Run, container: &Container, is_made: &Cell<bool>) -> Result<Running, NotStarted> {
    let Container { name, image, installation, .. } = container;
    let node = NodeMark { uid: installation.clone(), name: run.node.clone(), ..NodeMark::of(&run.env) };
    let engine = Engine::connect(&container.socket).await.map_err(NotStarted::engine)?;
    if is_made.get()
        && let Some(facts) = engine.inspect(name).await.map_err(NotStarted::engine)?.as_ref().map(Facts::of)
        && facts.started_ms > 0
    {
        // The engine went away just when it had started it.
        return Ok(Running { output: engine.attach(name).await.ok(), engine, facts });
    }
    // Of this replica nothing else may run: what is there was left by a keeper that was killed.
    for earlier in engine.find(&node, Some((run.unit, run.ordinal))).await.map_err(NotStarted::engine)? {
        if !earlier.is_own || earlier.incarnation.is_none_or(|incarnation| incarnation <= run.incarnation) {
            engine.remove(&earlier.name).await.map_err(NotStarted::engine)?;
        }
    }
    if !engine.has_image(image).await.map_err(NotStarted::engine)? {
        let limit = Duration::from_millis(container.pull_timeout_ms);
        engine.pull(image, limit).await.map_err(|error| {
            let why = format!("the image `{image}` is not on this node, and {error}");
            let cannot = CannotStart::new(RunEndReason::CannotStart, why);
            NotStarted { cannot, patience: error.passes().then_some(limit) }
        })?;
    }
    prepare_volumes(run).map_err(|why| {
        let cannot = CannotStart::new(RunEndReason::CannotStart, why);
        NotStarted { cannot, patience: None }
    })?;
    is_made.set(true);
    engine.create(name, body::of_run(run, container)).await.map_err(NotStarted::made)?;
    let output = engine.attach(name).await.map_err(NotStarted::made)?;
    engine.start(name).await.map_err(NotStarted::made)?;
    let found = engine.inspect(name).await.map_err(NotStarted::made)?;
    let mut facts = found.as_ref().map(Facts::of).unwrap_or_default();
    if facts.started_ms == 0 {
        facts.started_ms = wall_ms();
    }
    Ok(Running { engine, output: Some(output), facts })
}

/// Makes the volumes of a container: for the user that it was given, or for whatever user its image has.
fn prepare_volumes(run: &Run) -> Result<(), String> {
    let user = run.user.as_deref().filter(|_| !run.users.is_empty());
    let owner = user.and_then(|user| user.split_once(':'));
    let owner = owner.and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    run.volumes.prepare(run.key(), owner.is_none())?;
    let Some((uid, gid)) = owner else { return Ok(()) };
    let given = run.volumes.give(run.key(), uid, gid);
    given.map_err(|error| format!("its volumes cannot be given to its user: {error}"))
}

/// Copies the output of a container and keeps the deadlines until it has ended; returns how.
async fn watch(
    run: &Run,
    container: &Container,
    running: Running,
    mut stopping: Stopping<'_>,
    log: &mut logs::LogWriter,
) -> Ended {
    let Running { engine, mut output, facts } = running;
    let name = &container.name;
    let (mut first, mut silent_since) = (FirstProcess::new(run, facts.pid), None);
    let (mut attach_at, mut attach_pause) = (None, PAUSE);
    let mut wait = pin!(engine.wait(name, Duration::ZERO));
    let found = loop {
        tokio::select! {
            piece = next(&mut output) => match piece {
                Some(piece) => log.write(piece.as_ref()),
                None => {
                    output = None;
                    attach_at = Some(Instant::now() + attach_pause);
                    attach_pause = ATTACH_PAUSE_MAX.min(2 * attach_pause);
                }
            },
            // The container has closed its output, or the connection is broken.
            () = at(attach_at) => {
                attach_at = None;
                if let Ok(Some(found)) = engine.inspect(name).await
                    && Facts::of(&found).is_running
                {
                    output = engine.attach(name).await.ok();
                }
                if output.is_none() {
                    attach_at = Some(Instant::now() + attach_pause);
                }
            }
            () = &mut wait => {
                let found = engine.inspect(name).await.map(|found| found.as_ref().map(Facts::of));
                match found {
                    Ok(Some(found)) if found.is_running => silent_since = None,
                    Ok(found) => break found,
                    Err(_) => {
                        let since = *silent_since.get_or_insert_with(Instant::now);
                        if first.is_known_to_be_over() && since.elapsed() > ENGINE_PATIENCE {
                            break None;
                        }
                    }
                }
                wait.set(engine.wait(name, PAUSE));
            }
            () = stopping.changed() => {}
        }
        if let Some(signal) = stopping.due_signal(&facts.stop_signal) {
            if signal == SIGKILL {
                // The engine may be away just when something has to end.
                first.kill();
            }
            let sent = engine.kill(name, signal).await;
            stopping.sent(sent.is_ok());
        }
    };
    if output.is_some() {
        let rest = async {
            while let Some(piece) = next(&mut output).await {
                log.write(piece.as_ref());
            }
        };
        // A connection that stays open for longer has nothing to say.
        let _in_time = tokio::time::timeout(DRAIN, rest).await;
    }
    how(&engine, name, found, facts.started_ms, stopping.reason()).await
}

/// The next piece of output; `None`: it is over. Nothing comes of what is closed.
async fn next(output: &mut Option<Output>) -> Option<LogOutput> {
    match output {
        Some(output) => output.next().await.and_then(Result::ok),
        None => pending().await,
    }
}

/// Waits until a moment; without one for ever.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => pending().await,
    }
}

/// What to say of the end of a container; `None`: it is not there any more, or nobody can say.
async fn how(
    engine: &Engine,
    name: &str,
    found: Option<Facts>,
    started_ms: i64,
    told: Option<RunEndReason>,
) -> Ended {
    let Some(mut facts) = found else {
        let reason = told.unwrap_or(RunEndReason::Lost).name().to_owned();
        return Ended { exit_code: KILLED, reason, started_ms, ended_ms: wall_ms(), ..Ended::default() };
    };
    if facts.exit_code == KILLED && !facts.out_of_memory && told.is_none() {
        tokio::time::sleep(OOM_PAUSE).await;
        if let Ok(Some(again)) = engine.inspect(name).await {
            facts = Facts::of(&again);
        }
    }
    let reason = why(told, facts.out_of_memory && facts.exit_code != 0, facts.is_signalled());
    let or = |ms: i64, other: i64| if ms > 0 { ms } else { other };
    let started_ms = or(facts.started_ms, started_ms);
    Ended {
        exit_code: facts.exit_code,
        reason: reason.name().to_owned(),
        started_ms,
        ended_ms: or(facts.ended_ms, wall_ms()).max(started_ms),
        ..Ended::default()
    }
}

/// Removes a container whose end is written down.
async fn remove(container: &Container) {
    let removed = async {
        loop {
            if let Ok(engine) = Engine::connect(&container.socket).await
                && engine.remove(&container.name).await.is_ok()
            {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    // The next agent removes it otherwise.
    let _in_time = tokio::time::timeout(REMOVAL, removed).await;
}

/// The first process of a container, with which all others end: as a process of this machine, where it can be seen.
struct FirstProcess {
    pid: u32,
    mark: String,
    known: Option<Process>,
}

impl FirstProcess {
    fn new(run: &Run, pid: u32) -> Self {
        Self { pid, mark: format!("GODEL_RUN={}", run.mark), known: None }
    }

    /// Looks for it by its mark: the engine may count the processes of another namespace than the agent.
    fn look(&mut self) {
        if self.known.is_none() && self.pid > 0 {
            let process = Process::of(self.pid);
            self.known = process.filter(|_| procfs::has_mark(self.pid, &self.mark));
        }
    }

    fn is_known_to_be_over(&mut self) -> bool {
        self.look();
        self.known.is_some_and(|process| process.open().is_none())
    }

    fn kill(&mut self) {
        self.look();
        self.known.iter().for_each(|process| process.signal(Signal::KILL));
    }
}
