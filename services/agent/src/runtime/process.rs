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
    time::Duration,
};

use rustc_hash::FxHashMap;
use rustix::{
    fs::OFlags,
    process::{Pid, Signal, kill_process_group},
};
use tokio::{
    process::{Child, Command},
    sync::{mpsc, oneshot},
};

use crate::life::Key;

/// Exit code of a command that could not be started, as shells have it.
const NOT_STARTED: i32 = 127;
/// Added to the number of the signal that ended a process, as shells do.
const SIGNALLED: i32 = 128;

/// What became of a child process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// It runs: position of its node, running unit, incarnation.
    Started(usize, Key, u32),
    /// It is over, with its exit code.
    Ended(usize, Key, u32, i32),
}

/// What to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Added to this process's environment.
    pub env: BTreeMap<String, String>,
}

/// Child processes by running unit.
pub(crate) struct Processes {
    events: mpsc::Sender<Event>,
    /// Output goes here, one file each; none: nowhere.
    log_dir: Option<PathBuf>,
    stops: FxHashMap<(Key, u32), oneshot::Sender<Duration>>,
}

impl Processes {
    pub(crate) fn new(events: mpsc::Sender<Event>, log_dir: Option<PathBuf>) -> Self {
        Self { events, log_dir, stops: FxHashMap::default() }
    }

    /// Starts a child; what becomes of it comes as events.
    pub(crate) fn start(&mut self, key: Key, incarnation: u32, node: usize, program: &Program) {
        let (stop_tx, stop_rx) = oneshot::channel();
        self.stops.insert((key, incarnation), stop_tx);
        let events = self.events.clone();
        let spawned = spawn(program, self.log_dir.as_deref(), key, incarnation);
        godel_kit::task::spawn("agent.child", async move {
            let exit_code = match spawned {
                Ok(child) => {
                    // Nobody listens any more when the agent stops.
                    let _stopping = events.send(Event::Started(node, key, incarnation)).await;
                    attend(child, stop_rx).await
                }
                Err(error) => {
                    tracing::warn!(unit_id = key.unit, ordinal = key.ordinal, %error, "command cannot be started");
                    NOT_STARTED
                }
            };
            let _stopping = events.send(Event::Ended(node, key, incarnation, exit_code)).await;
        });
    }

    /// Stops a child: SIGTERM, and SIGKILL after the grace.
    pub(crate) fn stop(&mut self, key: Key, incarnation: u32, grace: Duration) {
        if let Some(stop) = self.stops.remove(&(key, incarnation)) {
            // It has ended in this moment otherwise.
            let _ended = stop.send(grace);
        }
    }

    /// It is a child that was neither stopped nor seen to end.
    pub(crate) fn has(&self, key: Key, incarnation: u32) -> bool {
        self.stops.contains_key(&(key, incarnation))
    }

    /// Its end was seen.
    pub(crate) fn forget(&mut self, key: Key, incarnation: u32) {
        self.stops.remove(&(key, incarnation));
    }
}

fn spawn(program: &Program, log_dir: Option<&Path>, key: Key, incarnation: u32) -> io::Result<Child> {
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
    command.spawn()
}

/// Waits for the end of a child, or ends it when told to.
async fn attend(mut child: Child, stop: oneshot::Receiver<Duration>) -> i32 {
    let grace = tokio::select! {
        ended = child.wait() => return exit_code(ended),
        grace = stop => grace.unwrap_or_default(),
    };
    signal(&child, Signal::TERM);
    if let Ok(ended) = tokio::time::timeout(grace, child.wait()).await {
        return exit_code(ended);
    }
    signal(&child, Signal::KILL);
    exit_code(child.wait().await)
}

fn signal(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // The group may have ended in this moment.
        let _ended = kill_process_group(pid, signal);
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

    const KEY: Key = Key { unit: 1, ordinal: 0 };

    fn shell(script: &str) -> Program {
        Program {
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            env: BTreeMap::from([("WORD".to_owned(), "hello".to_owned())]),
        }
    }

    async fn next(events: &mut mpsc::Receiver<Event>) -> Event {
        tokio::time::timeout(Duration::from_secs(20), events.recv()).await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn children_start_and_their_exit_codes_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let (tx, mut events) = mpsc::channel(8);
        let mut processes = Processes::new(tx, Some(dir.path().to_owned()));
        processes.start(KEY, 4, 7, &shell("echo $WORD; exit 3"));
        assert_eq!(next(&mut events).await, Event::Started(7, KEY, 4));
        assert_eq!(next(&mut events).await, Event::Ended(7, KEY, 4, 3));
        assert_eq!(std::fs::read_to_string(dir.path().join("1-0-4.log")).unwrap(), "hello\n");
    }

    #[tokio::test]
    async fn what_units_write_is_private_and_links_are_not_followed() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let (tx, mut events) = mpsc::channel(8);
        let logs = dir.path().join("logs");
        let mut processes = Processes::new(tx, Some(logs.clone()));
        processes.start(KEY, 1, 0, &shell("echo secret"));
        assert_eq!(next(&mut events).await, Event::Started(0, KEY, 1));
        assert_eq!(next(&mut events).await, Event::Ended(0, KEY, 1, 0));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&logs), mode(&logs.join("1-0-1.log"))), (0o700, 0o600));
        // A link in the place of the next one.
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, logs.join("1-0-2.log")).unwrap();
        processes.start(KEY, 2, 0, &shell("echo overwritten"));
        assert_eq!(next(&mut events).await, Event::Ended(0, KEY, 2, NOT_STARTED));
        assert_eq!(std::fs::read_to_string(victim).unwrap(), "precious");
    }

    #[tokio::test]
    async fn a_command_that_does_not_exist_ends_with_127() {
        let (tx, mut events) = mpsc::channel(8);
        let mut processes = Processes::new(tx, None);
        let program = Program { command: vec!["/no/such/program".to_owned()], ..Program::default() };
        processes.start(KEY, 0, 7, &program);
        assert_eq!(next(&mut events).await, Event::Ended(7, KEY, 0, NOT_STARTED));
    }

    #[tokio::test]
    async fn a_stop_is_polite_first_and_forced_after_the_grace() {
        let (tx, mut events) = mpsc::channel(8);
        let mut processes = Processes::new(tx, None);
        processes.start(KEY, 0, 7, &shell("exec sleep 1000"));
        assert_eq!(next(&mut events).await, Event::Started(7, KEY, 0));
        processes.stop(KEY, 0, Duration::from_secs(20));
        assert_eq!(next(&mut events).await, Event::Ended(7, KEY, 0, SIGNALLED + 15));

        let dir = tempfile::tempdir().unwrap();
        let ready = dir.path().join("ready");
        let stubborn = format!("trap '' TERM; touch {}; while :; do sleep 0.05; done", ready.display());
        processes.start(KEY, 1, 7, &shell(&stubborn));
        assert_eq!(next(&mut events).await, Event::Started(7, KEY, 1));
        tokio::time::timeout(Duration::from_secs(20), async {
            while !ready.exists() {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
        processes.stop(KEY, 1, Duration::from_millis(20));
        assert_eq!(next(&mut events).await, Event::Ended(7, KEY, 1, SIGNALLED + 9));
    }
}
