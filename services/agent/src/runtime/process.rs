//! Running units as child processes: what a real node does.

use std::{
    collections::BTreeMap,
    fs::{DirBuilder, File},
    io,
    os::unix::{
        fs::{DirBuilderExt as _, OpenOptionsExt as _},
        process::ExitStatusExt as _,
    },
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use godel_domain::time::Millis;
use rustc_hash::FxHashMap;
use rustix::{
    fs::OFlags,
    process::{Pid, Signal, getpgid, kill_process, kill_process_group},
};
use tokio::{
    process::{Child, Command},
    sync::{mpsc, oneshot},
};

use self::group::Group;
use super::{Event, NOT_STARTED, Run, Runtime};
use crate::{
    cgroup::{GroupLimits, Groups},
    life::{Key, Work},
};

mod group;

/// Added to the number of the signal that ended a process, as shells do.
const SIGNALLED: i32 = 128;

/// What to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Added to this process's environment.
    pub env: BTreeMap<String, String>,
    /// What its control group keeps it to.
    pub limits: GroupLimits,
}

/// Child processes by run.
pub(crate) struct Processes {
    events: mpsc::Sender<Event>,
    /// Output goes here, one file each; none: nowhere.
    log_dir: Option<PathBuf>,
    stops: FxHashMap<Run, oneshot::Sender<Duration>>,
    /// Where each gets a control group; `None`: nowhere.
    groups: Option<Arc<Groups>>,
}

impl Processes {
    pub(crate) fn new(events: mpsc::Sender<Event>, log_dir: Option<PathBuf>, groups: Option<Groups>) -> Self {
        Self { events, log_dir, stops: FxHashMap::default(), groups: groups.map(Arc::new) }
    }

    /// Starts a child in a group of its own, if there are any.
    fn spawn(&self, program: &Program, run: Run) -> io::Result<(Child, Option<Group>)> {
        let mut command = command(program, self.log_dir.as_deref(), run.key, run.incarnation)?;
        let group = self.groups.as_ref().and_then(|groups| Group::make(groups, program, run));
        let group = group.filter(|group| group.begin(&mut command, run));
        let child = command.spawn()?;
        let group = group.filter(|group| group.has(&child, run));
        Ok((child, group))
    }
}

impl Runtime for Processes {
    fn takes(&self, work: &Work) -> bool {
        matches!(work, Work::Program(_))
    }

    /// Both its start and its end come later.
    fn start(&mut self, run: Run, work: &Work, _now: Millis) -> Option<Event> {
        let Work::Program(program) = work else { return None };
        let (stop_tx, stop_rx) = oneshot::channel();
        self.stops.insert(run, stop_tx);
        let events = self.events.clone();
        let spawned = self.spawn(program, run);
        godel_kit::task::spawn("agent.child", async move {
            let exit_code = match spawned {
                Ok((child, group)) => {
                    // Nobody listens any more when the agent stops.
                    let _stopping = events.send(Event::Started(run)).await;
                    let exit_code = attend(child, group.as_ref(), stop_rx).await;
                    if let Some(group) = group {
                        group.end(run).await;
                    }
                    exit_code
                }
                Err(error) => {
                    let Key { unit, ordinal } = run.key;
                    tracing::warn!(unit_id = unit, ordinal, %error, "command cannot be started");
                    NOT_STARTED
                }
            };
            let _stopping = events.send(Event::Ended { run, exit_code, since: None }).await;
        });
        None
    }

    /// SIGTERM, and SIGKILL after the grace.
    fn stop(&mut self, run: Run, grace: Duration) -> bool {
        let Some(stop) = self.stops.remove(&run) else { return false };
        // It has ended in this moment otherwise.
        let _ended = stop.send(grace);
        true
    }

    fn forget(&mut self, run: Run) {
        self.stops.remove(&run);
    }
}

fn command(program: &Program, log_dir: Option<&Path>, key: Key, incarnation: u32) -> io::Result<Command> {
    let (name, arguments) = program.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(name);
    // A group of its own, so that a stop reaches what it starts.
    command.args(arguments).envs(&program.env).stdin(Stdio::null()).process_group(0).kill_on_drop(true);
    match log_dir {
        Some(dir) => {
            // What units write is for nobody else; a link that somebody has put there is not followed.
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            // What it wrote before it was started again stays.
            let path = dir.join(format!("{}-{}-{incarnation}.log", key.unit, key.ordinal));
            let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0);
            let file =
                File::options().create(true).append(true).mode(0o600).custom_flags(no_follow).open(path)?;
            command.stdout(file.try_clone()?).stderr(file);
        }
        None => {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
    }
    Ok(command)
}

/// Waits for the end of a child, or ends it when told to, with everything in its group.
async fn attend(mut child: Child, group: Option<&Group>, stop: oneshot::Receiver<Duration>) -> i32 {
    let grace = tokio::select! {
        ended = child.wait() => return exit_code(ended),
        grace = stop => grace.unwrap_or_default(),
    };
    signal(&child, group, Signal::TERM);
    if let Ok(ended) = tokio::time::timeout(grace, child.wait()).await {
        return exit_code(ended);
    }
    signal(&child, group, Signal::KILL);
    exit_code(child.wait().await)
}

/// Signals the process group of a child, and what has left that but not the control group.
fn signal(child: &Child, group: Option<&Group>, signal: Signal) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // The group may have ended in this moment.
        let _ended = kill_process_group(pid, signal);
    }
    for other in group.map(Group::pids).unwrap_or_default() {
        if getpgid(Some(other)).ok() != pid {
            let _ended = kill_process(other, signal);
        }
    }
}

fn exit_code(ended: io::Result<ExitStatus>) -> i32 {
    match ended {
        Ok(status) => {
            status.code().or_else(|| status.signal().map(|signal| SIGNALLED + signal)).unwrap_or(NOT_STARTED)
        }
        Err(_) => NOT_STARTED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(node: usize, incarnation: u32) -> Run {
        Run { node, key: Key { unit: 1, ordinal: 0 }, incarnation }
    }

    fn shell(script: &str) -> Work {
        Work::Program(Box::new(Program {
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            env: BTreeMap::from([("WORD".to_owned(), "hello".to_owned())]),
            limits: GroupLimits::default(),
        }))
    }

    fn start(processes: &mut Processes, run: Run, work: &Work) {
        assert!(processes.takes(work));
        assert_eq!(processes.start(run, work, Millis(0)), None, "what becomes of it comes later");
    }

    fn ended(run: Run, exit_code: i32) -> Event {
        Event::Ended { run, exit_code, since: None }
    }

    async fn next(events: &mut mpsc::Receiver<Event>) -> Event {
        tokio::time::timeout(Duration::from_secs(20), events.recv()).await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn children_start_and_their_exit_codes_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let (tx, mut events) = mpsc::channel(8);
        let mut processes = Processes::new(tx, Some(dir.path().to_owned()), None);
        start(&mut processes, run(7, 4), &shell("echo $WORD; exit 3"));
        assert_eq!(next(&mut events).await, Event::Started(run(7, 4)));
        assert_eq!(next(&mut events).await, ended(run(7, 4), 3));
        assert_eq!(std::fs::read_to_string(dir.path().join("1-0-4.log")).unwrap(), "hello\n");
    }

    #[tokio::test]
    async fn what_units_write_is_private_and_links_are_not_followed() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let (tx, mut events) = mpsc::channel(8);
        let logs = dir.path().join("logs");
        let mut processes = Processes::new(tx, Some(logs.clone()), None);
        start(&mut processes, run(0, 1), &shell("echo secret"));
        assert_eq!(next(&mut events).await, Event::Started(run(0, 1)));
        assert_eq!(next(&mut events).await, ended(run(0, 1), 0));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&logs), mode(&logs.join("1-0-1.log"))), (0o700, 0o600));
        // A link in the place of the next one.
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, logs.join("1-0-2.log")).unwrap();
        start(&mut processes, run(0, 2), &shell("echo overwritten"));
        assert_eq!(next(&mut events).await, ended(run(0, 2), NOT_STARTED));
        assert_eq!(std::fs::read_to_string(victim).unwrap(), "precious");
    }

    #[tokio::test]
    async fn a_command_that_does_not_exist_ends_with_127() {
        let (tx, mut events) = mpsc::channel(8);
        let mut processes = Processes::new(tx, None, None);
        let program = Program { command: vec!["/no/such/program".to_owned()], ..Program::default() };
        let program = Work::Program(Box::new(program));
        start(&mut processes, run(7, 0), &program);
        assert_eq!(next(&mut events).await, ended(run(7, 0), NOT_STARTED));
    }

    #[tokio::test]
    async fn a_stop_is_polite_first_and_forced_after_the_grace() {
        let (tx, mut events) = mpsc::channel(8);
        let mut processes = Processes::new(tx, None, None);
        start(&mut processes, run(7, 0), &shell("exec sleep 1000"));
        assert_eq!(next(&mut events).await, Event::Started(run(7, 0)));
        assert!(processes.stop(run(7, 0), Duration::from_secs(20)));
        assert_eq!(next(&mut events).await, ended(run(7, 0), SIGNALLED + 15));

        let dir = tempfile::tempdir().unwrap();
        let ready = dir.path().join("ready");
        let stubborn = format!("trap '' TERM; touch {}; while :; do sleep 0.05; done", ready.display());
        start(&mut processes, run(7, 1), &shell(&stubborn));
        assert_eq!(next(&mut events).await, Event::Started(run(7, 1)));
        tokio::time::timeout(Duration::from_secs(20), async {
            while !ready.exists() {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
        assert!(processes.stop(run(7, 1), Duration::from_millis(20)));
        assert!(!processes.stop(run(7, 1), Duration::ZERO), "it is being stopped");
        assert_eq!(next(&mut events).await, ended(run(7, 1), SIGNALLED + 9));
    }
}
