//! Real keepers and real processes; what lives is counted in `/proc`, by a mark in the environment.

use std::path::{Path, PathBuf};

use godel_domain::run_end::RunEndReason::{self, NoContact, OutOfMemory, Told};
use godel_testkit::skip;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::*;
use crate::{
    Config,
    cgroup::Groups,
    claim::DirClaim,
    keeper::files::{END, KEEPER},
    logs,
};

mod containers;
mod engine;
mod trouble;
mod users;

const LONG: Duration = Duration::from_secs(60);
const LOG_BYTES: u64 = 1 << 20;
const LOG_FILES: usize = 4;

fn run(ordinal: u32, incarnation: u32) -> HostedRun {
    HostedRun { node: 0, key: RunKey { unit: 1, ordinal }, incarnation }
}

/// The example of this crate, beside the tests.
fn keeper() -> Vec<std::ffi::OsString> {
    let own = std::env::current_exe().unwrap();
    let keeper = own.ancestors().nth(2).unwrap().join("examples/keeper");
    assert!(keeper.exists(), "no {}: it is built with all tests of this crate", keeper.display());
    vec![keeper.into_os_string()]
}

/// Groups of this machine; `None`, said in the output of the test, where it has none that can be written.
fn real_groups(name: &str) -> Option<Groups> {
    let opened = Groups::open(Path::new("/"), None, name, &mut Vec::new());
    opened.map_err(skip).ok()
}

/// An agent's processes with a state directory of their own.
struct Node {
    dir: TempDir,
    processes: Processes,
    events: mpsc::Receiver<Event>,
    home: Arc<Home>,
}

fn home(dir: Option<&Path>, groups: bool) -> Arc<Home> {
    let config = Config {
        state_dir: dir.map(Path::to_owned),
        log_max_bytes: LOG_BYTES,
        log_files: LOG_FILES,
        ..Config::default()
    };
    let open = |name: &str| if groups { real_groups(name) } else { None };
    Arc::new(Home::open(&config, "n", keeper(), open).unwrap())
}

impl Node {
    fn new(groups: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = home(Some(dir.path()), groups);
        Self::with(dir, home)
    }

    fn with(dir: TempDir, home: Arc<Home>) -> Self {
        let (tx, events) = mpsc::channel(64);
        Self { dir, processes: Processes::new(tx, Arc::clone(&home)), events, home }
    }

    /// The next agent on the same directory; the one before is gone as after SIGKILL.
    fn restarted(self, groups: bool) -> Self {
        let Self { dir, processes, events, home: old } = self;
        drop((processes, events, old));
        let home = home(Some(dir.path()), groups);
        Self::with(dir, home)
    }

    fn start(&mut self, run: HostedRun, program: Program) {
        let work = RunWork::Program(Box::new(program));
        assert!(self.processes.takes(&work));
        assert_eq!(self.processes.start(run, &work, 0, 0, Millis(0)), None, "what becomes of it comes later");
    }

    async fn next(&mut self) -> Event {
        tokio::time::timeout(LONG, self.events.recv()).await.unwrap().unwrap()
    }

    async fn started(&mut self, run: HostedRun) -> i64 {
        match self.next().await {
            Event::Started(started, at_ms) if started == run => at_ms,
            other => panic!("{other:?}"),
        }
    }

    async fn ended(&mut self, run: HostedRun) -> (i32, Option<RunEndReason>) {
        match self.next().await {
            Event::Ended { run: ended, ended: HowEnded { exit_code, end, refused: None }, since: None }
                if ended == run =>
            {
                assert!(end.ended_ms >= end.started_ms, "{end:?}");
                (exit_code, end.reason)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Nothing of it has run, and why.
    async fn refused(&mut self, run: HostedRun) -> AssignmentRefusal {
        match self.next().await {
            Event::Ended { run: ended, ended: HowEnded { refused: Some(why), .. }, since: None }
                if ended == run =>
            {
                why
            }
            other => panic!("{other:?}"),
        }
    }

    fn log(&self, run: HostedRun) -> String {
        let dir = self.dir.path().join("logs").join(logs::dir_name(run.key, run.incarnation));
        String::from_utf8(logs::read(&dir, 0, usize::MAX).unwrap().bytes).unwrap()
    }

    fn keeper_of(&self, name: &str) -> files::Keeper {
        files::read(&self.dir.path().join("runs").join(name).join(KEEPER)).unwrap()
    }
}

/// A program that is found by `mark` in `/proc`.
fn shell(script: &str, mark: &str) -> Program {
    Program {
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        env: BTreeMap::from([("MARK".to_owned(), mark.to_owned())]),
        ..Program::default()
    }
}

fn mark(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

fn n_marked(mark: &str) -> usize {
    let mark = format!("MARK={mark}\0");
    let has_mark = |entry: &std::fs::DirEntry| {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&mark)
    };
    std::fs::read_dir("/proc").unwrap().flatten().filter(has_mark).count()
}

async fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let reached = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(LONG, reached).await.is_ok(), "waited in vain: {what}");
}

/// Leaves its session, its process group and its parent, in every way, and ignores polite ends.
const ESCAPES: &str = "setsid sleep 1000 & setsid nohup sh -c 'trap \"\" TERM; sleep 1000; sleep 1000' & \
                       (setsid sh -c 'sleep 1000 & sleep 1000 &' &) & ";
/// Processes of that, beside the shell itself and what it goes on with.
const N_ESCAPED: usize = 5;

#[tokio::test]
async fn commands_start_and_how_they_end_comes_back() {
    let mut node = Node::new(false);
    let program = shell("echo $MARK; echo $HOME $PATH >&2; pwd; umask; env | wc -l; exit 3", "hello");
    node.start(run(0, 4), Program { directory: Some("/usr".to_owned()), umask: Some(0o27), ..program });
    assert!(node.started(run(0, 4)).await > 1_600_000_000_000, "milliseconds");
    assert_eq!(node.ended(run(0, 4)).await, (3, Some(RunEndReason::Exited)));
    let log = node.log(run(0, 4));
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!((lines[0], lines[2], lines[3]), ("hello", "/usr", "0027"), "in the order written: {log}");
    assert!(lines[1].ends_with(":/usr/sbin:/usr/bin:/sbin:/bin"), "{log}");
    let n: usize = lines[4].trim().parse().unwrap();
    // MARK, PATH, HOME, USER, LOGNAME, SHELL, GODEL_RUN, and what a shell adds: PWD, OLDPWD, SHLVL, _.
    assert!(n <= 11, "nothing of the environment of the agent: {n}");
    // Its directory goes once what became of it is written down.
    let dir = node.dir.path().join("runs/1-0-4.0");
    assert!(dir.join(END).exists());
    node.processes.forget(run(0, 4));
    assert!(dir.exists());
    node.processes.settle();
    assert!(!dir.exists());
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    let mut node = Node::new(false);
    let program = |word: &str| Program { command: vec![word.to_owned()], ..Program::default() };
    let not_executable = node.dir.path().join("text");
    std::fs::write(&not_executable, "words").unwrap();
    let text = not_executable.to_str().unwrap();
    let at = |directory: &str| Program { directory: Some(directory.to_owned()), ..program("true") };
    let by = |user: &str| Program { user: Some(user.to_owned()), ..program("true") };
    for (n, (program, exit_code, reason, words)) in (0..).zip([
        (program("no-such-program"), 127, RunEndReason::CommandNotFound, "no program `no-such-program`"),
        (program("/no/such/program"), 127, RunEndReason::CommandNotFound, "no program `/no/such/program`"),
        (program(text), 126, RunEndReason::CommandNotExecutable, "may not be executed"),
        (at("/no/such/directory"), 127, RunEndReason::NoDirectory, "`/no/such/directory` does not exist"),
        (by("no-such-user"), 127, RunEndReason::NoUser, "there is no user `no-such-user`"),
    ]) {
        node.start(run(n, 0), program);
        assert_eq!(node.ended(run(n, 0)).await, (exit_code, Some(reason)), "{words}");
        let log = node.log(run(n, 0));
        assert!(log.starts_with("[godel: ") && log.contains(words), "{log}");
    }
}

#[tokio::test]
async fn as_root_commands_run_as_other_users() {
    if !rustix::process::geteuid().is_root() {
        return skip("this test does not run as root");
    }
    let mut node = Node::new(true);
    let program = shell("id -u; id -g; id -G; echo $USER $HOME", "");
    node.start(run(0, 0), Program { user: Some("4711".to_owned()), ..program });
    node.started(run(0, 0)).await;
    assert_eq!(node.ended(run(0, 0)).await, (0, Some(RunEndReason::Exited)));
    assert_eq!(node.log(run(0, 0)), "4711\n4711\n4711\n4711 /\n");
}

#[tokio::test]
async fn a_stop_is_polite_first_and_forced_after_the_grace() {
    let mut node = Node::new(false);
    node.start(run(0, 0), shell("exec sleep 1000", ""));
    node.started(run(0, 0)).await;
    assert!(node.processes.stop(run(0, 0), LONG, Told));
    assert_eq!(node.ended(run(0, 0)).await, (143, Some(Told)));

    let stubborn = "trap 'echo heard' TERM; echo ready; while :; do sleep 0.05; done";
    node.start(run(0, 1), shell(stubborn, ""));
    node.started(run(0, 1)).await;
    wait_until("it is ready", || node.log(run(0, 1)) == "ready\n").await;
    assert!(node.processes.stop(run(0, 1), LONG, Told));
    wait_until("it was asked", || node.log(run(0, 1)).contains("heard")).await;
    assert!(node.processes.stop(run(0, 1), Duration::ZERO, Told), "a later stop may be sooner");
    assert_eq!(node.ended(run(0, 1)).await, (137, Some(Told)));
    assert!(!node.processes.stop(run(0, 2), LONG, Told), "it does not run here");
}

/// Stops, ends and loses what has left its session; with or without control groups.
async fn nothing_is_left(groups: bool) {
    let mut node = Node::new(groups);
    let mark = mark(if groups { "left-groups" } else { "left" });
    // It is stopped.
    node.start(run(0, 0), shell(&format!("{ESCAPES} sleep 1000"), &mark));
    node.started(run(0, 0)).await;
    wait_until("all of it runs", || n_marked(&mark) == N_ESCAPED + 2).await;
    assert!(node.processes.stop(run(0, 0), LONG, Told));
    assert_eq!(node.ended(run(0, 0)).await, (143, Some(Told)));
    assert_eq!(n_marked(&mark), 0);
    // It ends by itself.
    let begun = node.dir.path().join("begun");
    let script = format!("{ESCAPES} while ! test -e {}; do sleep 0.01; done; exit 4", begun.display());
    node.start(run(0, 1), shell(&script, &mark));
    node.started(run(0, 1)).await;
    wait_until("all of it runs", || n_marked(&mark) > N_ESCAPED).await;
    std::fs::write(begun, "").unwrap();
    assert_eq!(node.ended(run(0, 1)).await, (4, Some(RunEndReason::Exited)));
    assert_eq!(n_marked(&mark), 0);
    // Its keeper is killed.
    node.start(run(0, 2), shell(&format!("{ESCAPES} sleep 1000"), &mark));
    node.started(run(0, 2)).await;
    wait_until("all of it runs", || n_marked(&mark) == N_ESCAPED + 2).await;
    let keeper = node.keeper_of("1-0-2.0");
    kill_process(Pid::from_raw(i32::try_from(keeper.pid).unwrap()).unwrap(), Signal::KILL).unwrap();
    assert_eq!(node.ended(run(0, 2)).await, (137, Some(RunEndReason::Lost)));
    assert_eq!(n_marked(&mark), 0);
}

#[tokio::test]
async fn nothing_is_left_without_control_groups() {
    nothing_is_left(false).await;
}

#[tokio::test]
async fn nothing_is_left_with_control_groups() {
    nothing_is_left(true).await;
}

#[tokio::test]
async fn a_command_that_needs_too_much_memory_says_so() {
    let mut node = Node::new(true);
    let limits = GroupLimits { memory: Some(24 << 20), ..GroupLimits::default() };
    let script = "grep -q godel- /proc/self/cgroup || exit 9; head -c 200000000 /dev/zero | tail";
    node.start(run(0, 0), Program { limits, ..shell(script, "") });
    node.started(run(0, 0)).await;
    match node.ended(run(0, 0)).await {
        (9, _) => skip("there are no control groups here"),
        ended => assert_eq!(ended, (137, Some(OutOfMemory))),
    }
}

/// 100 MB in lines that count.
#[tokio::test]
async fn much_output_is_kept_in_order_up_to_the_limit() {
    const N_LINES: u64 = 5_600_000;
    let mut node = Node::new(false);
    let script = format!("seq -f 'line %012.0f' 1 {N_LINES}; exit 3");
    node.start(run(0, 0), shell(&script, ""));
    node.started(run(0, 0)).await;
    assert_eq!(node.ended(run(0, 0)).await, (3, Some(RunEndReason::Exited)));
    let dir = node.dir.path().join("logs/1-0-0");
    let line = |n: u64| format!("line {n:012}\n");
    let kept = logs::read(&dir, 0, usize::MAX).unwrap();
    let n_bytes = u64::try_from(line(0).len()).unwrap() * N_LINES;
    assert_eq!((kept.next, kept.end), (n_bytes, n_bytes), "every byte was written");
    let least = LOG_BYTES * u64::try_from(LOG_FILES - 1).unwrap();
    assert!(kept.bytes.len() as u64 >= least, "{} bytes are kept", kept.bytes.len());
    assert!(kept.bytes.len() as u64 <= LOG_BYTES * u64::try_from(LOG_FILES).unwrap());
    let first = kept.start.div_ceil(18) + 1;
    let expected: String = (first..=N_LINES).map(line).collect();
    let cut = usize::try_from((first - 1) * 18 - kept.start).unwrap();
    assert!(kept.bytes[cut..] == *expected.as_bytes(), "in order, without a gap");
    // The next start of the same incarnation goes on behind it.
    node.start(run(0, 0), shell("echo again", ""));
    node.started(run(0, 0)).await;
    node.ended(run(0, 0)).await;
    let more = logs::read(&dir, kept.next, 100).unwrap();
    assert_eq!(more.bytes, b"again\n");
}

#[tokio::test]
async fn the_next_agent_goes_on_with_what_it_finds() {
    let mut node = Node::new(false);
    let mark = mark("adopted");
    let file = node.dir.path().join("go");
    let wait = format!("echo a; while ! test -e {}; do sleep 0.01; done; echo b; exit 7", file.display());
    node.start(run(0, 0), shell(&wait, &mark));
    let since = node.started(run(0, 0)).await;
    node.start(run(1, 0), shell("sleep 1000", &mark));
    node.started(run(1, 0)).await;
    // The agent is gone; one run ends meanwhile.
    let mut node = node.restarted(false);
    std::fs::write(file, "").unwrap();
    let end = node.dir.path().join("runs/1-0-0.0").join(END);
    wait_until("it has ended", || end.exists()).await;
    let mut found = left::find(Arc::clone(&node.home)).await.unwrap();
    found.sort_by_key(left::Left::key);
    let shown: Vec<_> = found.iter().map(|left| (left.key().ordinal, left.goes_on())).collect();
    assert_eq!((shown, found[0].started_ms), (vec![(0, false), (1, true)], since));
    for left in found {
        let run = run(left.key().ordinal, left.run.incarnation);
        node.processes.adopt(run, left);
    }
    assert_eq!(node.ended(run(0, 0)).await, (7, Some(RunEndReason::Exited)));
    assert_eq!(node.log(run(0, 0)), "a\nb\n");
    assert!(node.processes.stop(run(1, 0), LONG, Told));
    assert_eq!(node.ended(run(1, 0)).await, (143, Some(Told)));
    assert_eq!(n_marked(&mark), 0);
    // What nobody wants any more is ended before anything else.
    node.start(run(2, 0), shell("sleep 1000", &mark));
    node.started(run(2, 0)).await;
    let node = node.restarted(false);
    left::end(left::find(Arc::clone(&node.home)).await.unwrap()).await;
    assert_eq!((n_marked(&mark), std::fs::read_dir(node.dir.path().join("runs")).unwrap().count()), (0, 0));
}

#[tokio::test]
async fn a_killed_keeper_is_found_by_the_next_agent() {
    let mut node = Node::new(false);
    let mark = mark("killed");
    node.start(run(0, 0), shell(&format!("{ESCAPES} sleep 1000"), &mark));
    node.started(run(0, 0)).await;
    wait_until("all of it runs", || n_marked(&mark) == N_ESCAPED + 2).await;
    let keeper = node.keeper_of("1-0-0.0");
    let mut node = node.restarted(false);
    kill_process(Pid::from_raw(i32::try_from(keeper.pid).unwrap()).unwrap(), Signal::KILL).unwrap();
    wait_until("it has ended", || keeper.process().open().is_none()).await;
    let found = left::find(Arc::clone(&node.home)).await.unwrap();
    assert_eq!(n_marked(&mark), 0, "what was left is ended before anything starts");
    for left in found {
        node.processes.adopt(run(0, 0), left);
    }
    assert_eq!(node.ended(run(0, 0)).await, (137, Some(RunEndReason::Lost)));
}

#[tokio::test]
async fn without_a_state_directory_runs_end_with_the_agent() {
    let mark = mark("temporary");
    let home = home(None, false);
    let mut node = Node::with(tempfile::tempdir().unwrap(), home);
    node.start(run(0, 0), shell("sleep 1000", &mark));
    node.started(run(0, 0)).await;
    // The shell and what it starts.
    wait_until("it runs", || n_marked(&mark) == 2).await;
    drop(node);
    wait_until("it has ended", || n_marked(&mark) == 0).await;
}

#[tokio::test]
async fn what_must_not_run_without_contact_ends_by_itself() {
    let mut node = Node::new(false);
    node.home.renew_contact(0);
    let tied = |ms| Program { stop_after_ms: ms, ..shell("sleep 1000", "") };
    node.start(run(0, 0), tied(600_000));
    node.started(run(0, 0)).await;
    node.start(run(1, 0), tied(1));
    node.started(run(1, 0)).await;
    assert_eq!(node.ended(run(1, 0)).await, (143, Some(NoContact)), "it is never renewed in time");
    // The other one still has contact, until its agent had none for too long.
    node.home.renew_contact(601_000);
    assert_eq!(node.ended(run(0, 0)).await, (143, Some(NoContact)));
}

#[tokio::test]
async fn a_keeper_that_cannot_begin_says_why() {
    let mut node = Node::new(false);
    let home = Arc::clone(&node.home);
    std::fs::remove_dir_all(node.dir.path().join("logs")).unwrap();
    std::fs::write(node.dir.path().join("logs"), "no directory").unwrap();
    node.start(run(0, 0), shell("true", ""));
    assert_eq!(node.refused(run(0, 0)).await, AssignmentRefusal::Keeper);
    let words = home.begin(&PathBuf::from("/no/such/run"), run(0, 0), &shell("true", ""), 0, 0);
    assert_eq!(words.err().unwrap().kind(), io::ErrorKind::NotFound);
}
